//! Headers of packets in words: `tcp 10.0.0.1:1234 > 10.0.1.2:80`.
//!
//! Problem: an operator names a packet in a line, and reads one in a line. Approach: the line that
//! is printed can be given back. Only what rules match is in it; the rest of a packet that is made
//! of a line is zero, checksums too: nothing looks at it.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::str::{FromStr, SplitWhitespace};

use etherparse::{
    EtherType, Ethernet2Header, IpDscp, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, LaxIpPayloadSlice,
    LaxNetSlice, LaxSlicedPacket, SingleVlanHeader, VlanId, VlanPcp,
};
use sluice_api::parse;
use sluice_api::protocol::{self, ProtocolMatch, has_ports};
use sluice_cli::usage::Usage;

/// Shortest frame, without FCS.
const SHORTEST: usize = 60;

/// A packet in words, and what is said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderWords {
    pub bytes: Vec<u8>,
    /// Its length, if it is longer than its headers.
    pub len: Option<u16>,
    /// The port where it comes in.
    pub port: Option<String>,
}

fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// The headers of a packet, in a line.
pub fn line(bytes: &[u8]) -> String {
    let Ok(packet) = LaxSlicedPacket::from_ethernet(bytes) else {
        return match bytes.len() {
            0 => "its bytes are not known".into(),
            n => format!("{n} bytes, too few for an Ethernet header"),
        };
    };
    let tag = packet.vlan_ids().first().map_or_else(String::new, |vlan| format!("vlan {} ", vlan.value()));
    let ip = match &packet.net {
        Some(LaxNetSlice::Ipv4(v4)) => {
            let header = v4.header();
            let ends = (header.source_addr().into(), header.destination_addr().into());
            Some(flow(v4.payload(), ends, header.dcp()))
        }
        Some(LaxNetSlice::Ipv6(v6)) => {
            let header = v6.header();
            let ends = (header.source_addr().into(), header.destination_addr().into());
            Some(flow(v6.payload(), ends, header.dscp()))
        }
        _ => None,
    };
    ip.map_or_else(
        || {
            let ethertype = packet.ether_payload().map_or(EtherType(0), |payload| payload.ether_type);
            let kind = if ethertype == EtherType::ARP { "arp".into() } else { format!("ethertype {:04x}", ethertype.0) };
            format!("{tag}{kind} {} > {}", mac(&bytes[6..12]), mac(&bytes[..6]))
        },
        |ip| format!("{tag}{ip}"),
    )
}

/// The headers of a packet that is given as hexadecimal digits, if it has any.
pub fn line_of_hex(digits: &str) -> Option<String> {
    from_hex(digits).map(|bytes| line(&bytes))
}

fn flow(payload: &LaxIpPayloadSlice<'_>, (src, dst): (IpAddr, IpAddr), dscp: IpDscp) -> String {
    let number = payload.ip_number.0;
    let mut text = protocol::name(number).map_or_else(|| format!("protocol {number}"), String::from);
    let ports = payload.payload.first_chunk::<4>().filter(|_| has_ports(number) && !payload.fragmented);
    // Writing to a text does not fail.
    let _ = match ports.map(|ports| ports.map(u16::from)) {
        Some([a, b, c, d]) => write!(text, " {} > {}", SocketAddr::new(src, a << 8 | b), SocketAddr::new(dst, c << 8 | d)),
        None => write!(text, " {src} > {dst}"),
    };
    if payload.fragmented {
        text += " fragment";
    }
    if dscp.value() > 0 {
        let _ = write!(text, " dscp {}", dscp.value());
    }
    text
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How a packet is written.
const FORM: &str = "write it like \"tcp 10.0.0.1:1234 > 10.0.1.2:80 on lan\", with `vlan N`, `dscp N`, `fragment` or `bytes N` \
                    where it matters, or give its bytes as hexadecimal digits";

fn wrong(what: impl std::fmt::Display) -> Usage {
    Usage(format!("{what}; {FORM}"))
}

/// What a packet is made of.
#[derive(Debug, Default)]
struct Parts {
    vlan: Option<u16>,
    dscp: u8,
    is_fragment: bool,
    len: Option<u16>,
    port: Option<String>,
}

impl Parts {
    /// Takes a word that may stand anywhere. False: it is another one.
    fn take(&mut self, word: &str, rest: &mut SplitWhitespace<'_>) -> Result<bool, Usage> {
        match word {
            "vlan" => self.vlan = Some(number(word, rest, 4094)?),
            "dscp" => self.dscp = number(word, rest, 63)? as u8,
            "bytes" => self.len = Some(number(word, rest, u16::MAX)?),
            "fragment" => self.is_fragment = true,
            "on" | "at" => {
                self.port =
                    Some(rest.next().ok_or_else(|| wrong(format!("\"{word}\" names no port")))?.trim_end_matches(',').into());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The number behind a word.
fn number(word: &str, rest: &mut SplitWhitespace<'_>, most: u16) -> Result<u16, Usage> {
    let text = rest.next().unwrap_or_default().trim_end_matches(',');
    text.parse().ok().filter(|n| *n <= most).ok_or_else(|| wrong(format!("{word} takes a number up to {most}, and not {text:?}")))
}

/// The packet of a text: its headers in words, or its bytes as hexadecimal digits.
///
/// # Errors
/// What is wrong with the text.
pub fn packet(text: &str) -> Result<HeaderWords, Usage> {
    let mut parts = Parts::default();
    let mut words = text.split_whitespace();
    let first = loop {
        let word = words.next().ok_or_else(|| wrong("there is no packet"))?;
        if !parts.take(word, &mut words)? {
            break word;
        }
    };
    if let Some(bytes) = from_hex(first) {
        rest_of(&mut parts, &mut words)?;
        return Ok(HeaderWords { bytes, len: parts.len, port: parts.port });
    }
    let head = match first {
        "arp" => Head::Other(EtherType::ARP),
        "ethertype" => {
            let text = words.next().unwrap_or_default();
            let number = u16::from_str_radix(text, 16).map_err(|_| wrong(format!("{text:?} is no EtherType, such as 88cc")))?;
            Head::Other(EtherType(number))
        }
        "protocol" => Head::Ip(ip_protocol(words.next().unwrap_or_default())?),
        word => Head::Ip(ip_protocol(word)?),
    };
    let from = words.next().ok_or_else(|| wrong("there is no source"))?;
    if !matches!(words.next(), Some(">" | "to" | "->")) {
        return Err(wrong(format!("behind {from:?} stands no \">\" or \"to\"")));
    }
    let to = words.next().ok_or_else(|| wrong("there is no destination"))?.trim_end_matches(',');
    rest_of(&mut parts, &mut words)?;
    let bytes = match head {
        Head::Other(ethertype) => {
            let mut bytes = ethernet(mac_of(to)?, mac_of(from)?, parts.vlan, ethertype);
            bytes.resize(bytes.len().max(SHORTEST), 0);
            bytes
        }
        Head::Ip(number) => ip(number, from, to, &parts)?,
    };
    Ok(HeaderWords { bytes, len: parts.len, port: parts.port })
}

enum Head {
    Ip(u8),
    /// With this EtherType.
    Other(EtherType),
}

fn rest_of(parts: &mut Parts, words: &mut SplitWhitespace<'_>) -> Result<(), Usage> {
    while let Some(word) = words.next() {
        if !parts.take(word, words)? {
            return Err(wrong(format!("{word:?} is not understood")));
        }
    }
    Ok(())
}

/// The bytes of at least an Ethernet header.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() < 2 * Ethernet2Header::LEN
        || !text.len().is_multiple_of(2)
        || !text.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

fn ip_protocol(word: &str) -> Result<u8, Usage> {
    match parse::protocol(word) {
        Ok(ProtocolMatch::Number(number)) => Ok(number),
        Ok(_) => Err(wrong(format!(
            "{word:?} is no single protocol; for others than IP write \"arp MAC > MAC\" or \"ethertype 88cc MAC > MAC\""
        ))),
        Err(what) => Err(wrong(what)),
    }
}

fn mac_of(text: &str) -> Result<[u8; 6], Usage> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| wrong(format!("{text:?} is no MAC address, such as 02:00:00:00:00:01")))
}

fn ethernet(destination: [u8; 6], source: [u8; 6], vlan: Option<u16>, ether_type: EtherType) -> Vec<u8> {
    let Some(vlan) = vlan.and_then(|vlan| VlanId::try_new(vlan).ok()) else {
        return Ethernet2Header { source, destination, ether_type }.to_bytes().to_vec();
    };
    let tag = SingleVlanHeader { pcp: VlanPcp::ZERO, drop_eligible_indicator: false, vlan_id: vlan, ether_type };
    let outer = Ethernet2Header { source, destination, ether_type: EtherType::VLAN_TAGGED_FRAME };
    [&outer.to_bytes()[..], &tag.to_bytes()].concat()
}

/// An address, and its port if the protocol has ports.
fn end(text: &str, has_port: bool) -> Result<(IpAddr, u16), Usage> {
    let with_port = SocketAddr::from_str(text).map(|end| (end.ip(), end.port()));
    let address = IpAddr::from_str(text.trim_matches(['[', ']'])).map(|address| (address, 0));
    match (with_port, address) {
        (Ok(end), _) if has_port => Ok(end),
        (_, Ok(end)) if !has_port => Ok(end),
        (Ok(_), _) => Err(wrong(format!("{text:?} has a port, and the packet has none"))),
        (_, Ok(_)) => Err(wrong(format!("{text:?} lacks a port, as in 10.0.0.1:1234 or [2001:db8::1]:1234"))),
        _ => Err(wrong(format!("{text:?} is no address{}", if has_port { " with a port" } else { "" }))),
    }
}

/// A packet of an IP protocol between two ends.
fn ip(number: u8, from: &str, to: &str, parts: &Parts) -> Result<Vec<u8>, Usage> {
    let has_port = has_ports(number) && !parts.is_fragment;
    let ((src, src_port), (dst, dst_port)) = (end(from, has_port)?, end(to, has_port)?);
    let mut inner = Vec::new();
    if has_port {
        inner.extend(src_port.to_be_bytes());
        inner.extend(dst_port.to_be_bytes());
        // The smallest header of any protocol with ports: that of TCP, with its length and ACK.
        inner.resize(20, 0);
        if number == protocol::TCP {
            inner[12..14].copy_from_slice(&[0x50, 0x10]);
        }
    }
    let dscp = IpDscp::try_new(parts.dscp).unwrap_or_default();
    let ether_type = if src.is_ipv6() { EtherType::IPV6 } else { EtherType::IPV4 };
    let mut bytes = ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], parts.vlan, ether_type);
    // The packet is as long as is asked for, and at least as its headers and the shortest frame.
    let payload = |header: usize| {
        let least = (header + inner.len()).max(SHORTEST);
        parts.len.map_or(least, usize::from).max(least) - header
    };
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let payload = payload(bytes.len() + Ipv4Header::MIN_LEN) as u16;
            let header = Ipv4Header {
                dscp,
                total_len: payload + Ipv4Header::MIN_LEN as u16,
                more_fragments: parts.is_fragment,
                time_to_live: 64,
                protocol: IpNumber(number),
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv4Header::default()
            };
            bytes.extend(header.to_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let fragment = Ipv6FragmentHeader::new(IpNumber(number), IpFragOffset::ZERO, true, 1);
            let fragment = parts.is_fragment.then(|| fragment.to_bytes());
            let more = fragment.map_or(0, |fragment| fragment.len());
            let mut header = Ipv6Header {
                payload_length: (payload(bytes.len() + Ipv6Header::LEN + more) + more) as u16,
                next_header: if parts.is_fragment { IpNumber::IPV6_FRAGMENTATION_HEADER } else { IpNumber(number) },
                hop_limit: 64,
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv6Header::default()
            };
            header.set_dscp(dscp);
            bytes.extend(header.to_bytes());
            bytes.extend(fragment.into_iter().flatten());
        }
        _ => return Err(wrong(format!("{from:?} and {to:?} are of different IP versions"))),
    }
    bytes.extend(inner);
    bytes.resize(bytes.len().max(SHORTEST), 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_the_packet_whose_line_it_is() {
        for text in [
            "tcp 10.0.0.1:1234 > 10.0.1.2:80",
            "udp 10.0.0.1:53 > 192.0.2.9:65535 dscp 46",
            "vlan 5 protocol 132 10.0.0.1:1 > 10.0.0.2:2",
            "icmp 10.0.0.1 > 10.0.0.2",
            "udp 10.0.0.1 > 10.0.0.2 fragment",
            "protocol 47 10.0.0.1 > 10.0.0.2 fragment dscp 1",
            "tcp [2001:db8::1]:1234 > [2001:db8::2]:80",
            "vlan 4094 icmpv6 fe80::1 > ff02::1 dscp 63",
            "tcp 2001:db8::1 > 2001:db8::2 fragment",
            "arp 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff",
            "vlan 7 ethertype 88cc 02:00:00:00:00:01 > 01:80:c2:00:00:0e",
        ] {
            let words = packet(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(line(&words.bytes), text);
            assert_eq!((words.len, words.port), (None, None));
            assert!(words.bytes.len() >= 60);
            let (digits, again) = (hex(&words.bytes), format!("{} on lan", hex(&words.bytes)));
            assert_eq!(packet(&digits).unwrap().bytes, words.bytes);
            assert_eq!(packet(&again).unwrap().port.as_deref(), Some("lan"));
            // However much is cut off, it is still a line.
            (0..words.bytes.len()).for_each(|n| assert!(!line(&words.bytes[..n]).is_empty()));
        }
    }

    #[test]
    fn what_is_said_beside_the_headers_may_stand_anywhere() {
        let want = packet("vlan 5 tcp 10.0.0.1:1 > 10.0.0.2:2 dscp 3 bytes 1400 on lan").unwrap();
        assert_eq!((want.len, want.port.as_deref(), &want.bytes[20..22]), (Some(1400), Some("lan"), &1382u16.to_be_bytes()[..]));
        for text in [
            "on lan dscp 3 vlan 5 bytes 1400 tcp 10.0.0.1:1 to 10.0.0.2:2",
            "tcp 10.0.0.1:1 -> 10.0.0.2:2, vlan 5, dscp 3, bytes 1400, at lan",
            "6 10.0.0.1:1 > 10.0.0.2:2 vlan 5 bytes 1400 on lan dscp 3",
        ] {
            assert_eq!(packet(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_packet_is_said_with_the_form() {
        for (text, word) in [
            ("", "there is no packet"),
            ("on lan", "there is no packet"),
            ("tcp 10.0.0.1 > 10.0.0.2:2", "lacks a port"),
            ("icmp 10.0.0.1:1 > 10.0.0.2", "has a port"),
            ("tcp 10.0.0.1:1 10.0.0.2:2", "stands no \">\""),
            ("tcp 10.0.0.1:1 > [2001:db8::1]:2", "different IP versions"),
            ("tpc 10.0.0.1:1 > 10.0.0.2:2", "did you mean \"tcp\"?"),
            ("ip 10.0.0.1 > 10.0.0.2", "no single protocol"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 vlan 4095", "up to 4094"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 dscp 64", "up to 63"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 on", "names no port"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 quickly", "\"quickly\" is not understood"),
            ("tcp ten:1 > 10.0.0.2:2", "no address"),
            ("arp 02:00 > ff:ff:ff:ff:ff:ff", "no MAC address"),
            ("ethertype x 02:00:00:00:00:01 > 02:00:00:00:00:02", "no EtherType"),
            ("0123456789", "no protocol"),
        ] {
            let said = packet(text).unwrap_err().to_string();
            assert!(said.contains(word) && said.contains("write it like"), "{text}: {said}");
        }
    }
}
