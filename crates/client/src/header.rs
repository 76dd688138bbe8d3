//! Headers of packets in words: `tcp 10.0.0.1:1234 > 10.0.1.2:80`.
//!
//! Problem: an operator names a packet in a line, and reads one in a line. Approach: the line that
//! is printed can be given back. Only what rules match is in it; the rest of a packet that is made
//! of a line is zero, checksums too: nothing looks at it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::{FromStr, SplitWhitespace};

use sluice_api::parse;
use sluice_api::protocol::{self, ProtocolMatch, has_ports};
use sluice_cli::usage::Usage;

const ETHERNET: usize = 14;
const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const FRAGMENT_HEADER: u8 = 44;
/// Most extension headers and tags that are passed over.
const MOST: usize = 8;
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

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// The headers of a packet, in a line.
pub fn line(bytes: &[u8]) -> String {
    let Some((vlan, ethertype, at)) = link(bytes) else {
        return match bytes.len() {
            0 => "its bytes are not known".into(),
            n => format!("{n} bytes, too few for an Ethernet header"),
        };
    };
    let tag = vlan.map_or_else(String::new, |vlan| format!("vlan {vlan} "));
    let ip = match ethertype {
        V4 => v4(bytes, at),
        V6 => v6(bytes, at),
        _ => None,
    };
    ip.map_or_else(
        || {
            let kind = if ethertype == ARP { "arp".into() } else { format!("ethertype {ethertype:04x}") };
            format!("{tag}{kind} {} > {}", mac(&bytes[6..12]), mac(&bytes[..6]))
        },
        |ip| format!("{tag}{ip}"),
    )
}

/// The headers of a packet that is given as hexadecimal digits, if it has any.
pub fn line_of_hex(digits: &str) -> Option<String> {
    from_hex(digits).map(|bytes| line(&bytes))
}

/// Outer VLAN, EtherType behind the tags, and where that is at its end.
fn link(bytes: &[u8]) -> Option<(Option<u16>, u16, usize)> {
    let (mut ethertype, mut at, mut vlan) = (u16_at(bytes, 12)?, ETHERNET, None);
    for _ in 0..MOST {
        if !TAGS.contains(&ethertype) {
            break;
        }
        vlan = vlan.or(Some(u16_at(bytes, at)? & 0xfff));
        ethertype = u16_at(bytes, at + 2)?;
        at += 4;
    }
    Some((vlan, ethertype, at))
}

fn v4(bytes: &[u8], at: usize) -> Option<String> {
    let head: &[u8; 20] = bytes.get(at..)?.first_chunk()?;
    let address = |at: usize| -> IpAddr { Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]).into() };
    let is_fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
    let ports = at + usize::from(head[0] & 0xf) * 4;
    Some(flow(bytes, head[9], (address(12), address(16)), ports, is_fragment, head[1] >> 2))
}

fn v6(bytes: &[u8], at: usize) -> Option<String> {
    let head: &[u8; 40] = bytes.get(at..)?.first_chunk()?;
    let address = |at: usize| -> Option<IpAddr> { Some(Ipv6Addr::from(*head[at..].first_chunk::<16>()?).into()) };
    let (mut next, mut behind, mut is_fragment) = (head[6], at + 40, false);
    for _ in 0..MOST {
        if !matches!(next, 0 | 43 | FRAGMENT_HEADER | 60 | 135 | 139 | 140) || is_fragment {
            break;
        }
        let Some(extension) = bytes.get(behind..).and_then(<[u8]>::first_chunk::<8>) else { break };
        if next == FRAGMENT_HEADER {
            is_fragment = u16::from_be_bytes([extension[2], extension[3]]) & 0xfff9 != 0;
            behind += 8;
        } else {
            behind += 8 + usize::from(extension[1]) * 8;
        }
        next = extension[0];
    }
    let dscp = (head[0] & 0xf) << 2 | head[1] >> 6;
    Some(flow(bytes, next, (address(8)?, address(24)?), behind, is_fragment, dscp))
}

fn flow(bytes: &[u8], number: u8, (src, dst): (IpAddr, IpAddr), ports: usize, is_fragment: bool, dscp: u8) -> String {
    let mut text = protocol::name(number).map_or_else(|| format!("protocol {number}"), String::from);
    let ports = u16_at(bytes, ports).zip(u16_at(bytes, ports + 2)).filter(|_| has_ports(number) && !is_fragment);
    // Writing to a text does not fail.
    let _ = match ports {
        Some((from, to)) => write!(text, " {} > {}", SocketAddr::new(src, from), SocketAddr::new(dst, to)),
        None => write!(text, " {src} > {dst}"),
    };
    if is_fragment {
        text += " fragment";
    }
    if dscp > 0 {
        let _ = write!(text, " dscp {dscp}");
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
        "arp" => Head::Other(ARP),
        "ethertype" => {
            let text = words.next().unwrap_or_default();
            Head::Other(u16::from_str_radix(text, 16).map_err(|_| wrong(format!("{text:?} is no EtherType, such as 88cc")))?)
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
    Other(u16),
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
    if text.len() < 2 * ETHERNET || !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
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

fn ethernet(to: [u8; 6], from: [u8; 6], vlan: Option<u16>, ethertype: u16) -> Vec<u8> {
    let mut bytes = [to, from].concat();
    if let Some(vlan) = vlan {
        bytes.extend(TAGS[0].to_be_bytes());
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes
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
    let is_v6 = src.is_ipv6();
    let mut bytes = ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], parts.vlan, if is_v6 { V6 } else { V4 });
    let header = bytes.len() + if is_v6 { 40 } else { 20 };
    let fragment_header = if is_v6 && parts.is_fragment { 8 } else { 0 };
    let least = (header + fragment_header + inner.len()).max(SHORTEST);
    let whole = parts.len.map_or(least, usize::from).max(least);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = (whole - (header - 20)) as u16;
            bytes.extend([0x45, parts.dscp << 2]);
            bytes.extend(total.to_be_bytes());
            bytes.extend([0, 0, if parts.is_fragment { 0x20 } else { 0 }, 0, 64, number, 0, 0]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let payload = (whole - header) as u16;
            bytes.extend([0x60 | parts.dscp >> 2, parts.dscp << 6, 0, 0]);
            bytes.extend(payload.to_be_bytes());
            bytes.extend([if parts.is_fragment { FRAGMENT_HEADER } else { number }, 64]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            if parts.is_fragment {
                bytes.extend([number, 0, 0, 1, 0, 0, 0, 1]);
            }
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
        assert_eq!((want.len, want.port.as_deref(), u16_at(&want.bytes, 20)), (Some(1400), Some("lan"), Some(1382)));
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
