//! ICMP errors and the packets that they quote.
//!
//! # Problem
//! An ICMP error ("port unreachable", "packet too big", "time exceeded") belongs to the flow of the
//! packet that it quotes: its IP header and at least 8 bytes behind it. A firewall admits it as
//! part of that flow. An address translator must translate the quoted packet too, or the receiver
//! cannot attribute the error (RFC 5508, section 4).
//!
//! # Approach
//! [`Quoted::find`] finds the quoted packet, and checks the error's checksum, because recomputing
//! it would make a wrong one look right. The setters change the quoted packet, with its checksums
//! as far as they are quoted; [`Quoted::seal`] then sets the error's own.
//!
//! # Limits
//! Quoted IPv6 packets with extension headers, quoted fragments other than the first, and errors
//! that are fragments themselves are ignored.

use std::net::IpAddr;

use sluice_nf::header::checksum::{compute, compute_with_pseudo_header, update};
use sluice_nf::header::{Headers, NotThere, protocol};

use crate::flow::FlowKey;

/// Bytes of the ICMP header in front of the quoted packet.
const ICMP_BYTES: usize = 8;

/// The packet that an ICMP error quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quoted {
    /// Its flow, by [`FlowKey::of_session`].
    pub key: FlowKey,
    ip: usize,
    l4: usize,
    end: usize,
}

impl Quoted {
    /// Finds the quoted packet. None if this is no ICMP error, its checksum is wrong, or the quote
    /// is bad.
    pub fn find(packet: &[u8], headers: &Headers) -> Option<Self> {
        let (outer, icmp) = (headers.ip?, headers.l4?);
        if outer.fragment.is_some() || outer.truncated {
            return None;
        }
        let message = packet.get(icmp.offset as usize..outer.end as usize)?;
        let is_error = match icmp.protocol {
            protocol::ICMP => matches!(message.first()?, 3 | 4 | 11 | 12) && compute(message) == 0,
            protocol::ICMPV6 => {
                let at = outer.offset as usize;
                matches!(message.first()?, 1..=4)
                    && compute_with_pseudo_header(packet.get(at + 8..at + 40)?, protocol::ICMPV6, message) == 0
            }
            _ => false,
        };
        if !is_error {
            return None;
        }
        let (ip, end) = (icmp.offset as usize + ICMP_BYTES, outer.end as usize);
        let quoted = packet.get(ip..end)?;
        let (header_bytes, number, src, dst): (usize, u8, IpAddr, IpAddr) = match quoted.first()? >> 4 {
            4 if outer.version == 4 => {
                let header: &[u8; 20] = quoted.first_chunk()?;
                if u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0 {
                    return None;
                }
                let [src, dst] = [12, 16].map(|at| IpAddr::from([header[at], header[at + 1], header[at + 2], header[at + 3]]));
                ((header[0] & 15) as usize * 4, header[9], src, dst)
            }
            6 if outer.version == 6 => {
                let header: &[u8; 40] = quoted.first_chunk()?;
                let address = |at: usize| header.get(at..)?.first_chunk::<16>().copied().map(IpAddr::from);
                (40, header[6], address(8)?, address(24)?)
            }
            _ => return None,
        };
        if header_bytes < 20 {
            return None;
        }
        let l4: &[u8; 8] = quoted.get(header_bytes..)?.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
        let (src_port, dst_port) = match (number, l4[0]) {
            (protocol::TCP | protocol::UDP | protocol::SCTP | protocol::UDP_LITE, _) => (word(0), word(2)),
            (protocol::ICMP, 0 | 8) | (protocol::ICMPV6, 128 | 129) => (word(4), word(4)),
            _ => return None,
        };
        Some(Self { key: FlowKey::new(src, dst, number, src_port, dst_port), ip, l4: ip + header_bytes, end })
    }

    /// Sets the quoted packet's source address and port (or echo identifier).
    ///
    /// # Errors
    /// [`NotThere`] if the address is not of the quoted packet's version.
    pub fn set_src(&self, packet: &mut [u8], address: IpAddr, port: u16) -> Result<(), NotThere> {
        self.set(packet, address, port, false)
    }

    /// As [`Quoted::set_src`], for the destination.
    pub fn set_dst(&self, packet: &mut [u8], address: IpAddr, port: u16) -> Result<(), NotThere> {
        self.set(packet, address, port, true)
    }

    fn set(&self, packet: &mut [u8], address: IpAddr, port: u16, is_destination: bool) -> Result<(), NotThere> {
        let number = self.key.protocol();
        let second = usize::from(is_destination);
        match (address, self.key.src()) {
            (IpAddr::V4(new), IpAddr::V4(_)) => {
                let (at, checksum) = (self.ip + 12 + 4 * second, self.ip + 10);
                let old = replace(packet, at, new.octets())?;
                patch(packet, checksum, &old, &new.octets(), false)?;
                self.patch_l4(packet, &old, &new.octets(), number != protocol::ICMP)?;
            }
            (IpAddr::V6(new), IpAddr::V6(_)) => {
                let old = replace(packet, self.ip + 8 + 16 * second, new.octets())?;
                self.patch_l4(packet, &old, &new.octets(), true)?;
            }
            _ => return Err(NotThere),
        }
        let at = match number {
            protocol::ICMP | protocol::ICMPV6 => 4,
            _ => 2 * second,
        };
        let old = replace(packet, self.l4 + at, port.to_be_bytes())?;
        self.patch_l4(packet, &old, &port.to_be_bytes(), true)
    }

    /// Updates the quoted transport checksum, if it was quoted.
    fn patch_l4(&self, packet: &mut [u8], old: &[u8], new: &[u8], is_covered: bool) -> Result<(), NotThere> {
        let (field, zero_is_none) = match self.key.protocol() {
            protocol::TCP => (16, false),
            protocol::UDP => (6, true),
            protocol::UDP_LITE => (6, false),
            protocol::ICMP | protocol::ICMPV6 => (2, false),
            _ => return Ok(()),
        };
        if !is_covered || self.l4 + field + 2 > self.end {
            return Ok(());
        }
        patch(packet, self.l4 + field, old, new, zero_is_none)
    }

    /// Sets the error's own checksum, after the last change.
    ///
    /// # Errors
    /// [`NotThere`] if the packet is not the one that this was found in.
    pub fn seal(&self, packet: &mut [u8], headers: &Headers) -> Result<(), NotThere> {
        headers.fix_checksums(packet)
    }
}

/// Writes `new` at `at` and returns what stood there.
fn replace<const N: usize>(packet: &mut [u8], at: usize, new: [u8; N]) -> Result<[u8; N], NotThere> {
    let place = packet.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()).ok_or(NotThere)?;
    Ok(std::mem::replace(place, new))
}

/// Updates the checksum at `at`.
fn patch(packet: &mut [u8], at: usize, old: &[u8], new: &[u8], zero_is_none: bool) -> Result<(), NotThere> {
    let place = packet.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()).ok_or(NotThere)?;
    let sum = u16::from_be_bytes(*place);
    if zero_is_none && sum == 0 {
        return Ok(());
    }
    let sum = match update(sum, old, new) {
        0 if zero_is_none => 0xffff,
        sum => sum,
    };
    *place = sum.to_be_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use etherparse::icmpv4::DestUnreachableHeader;
    use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv6};
    use sluice_nf::header::parse;

    use super::*;

    const V4: ([u8; 4], [u8; 4]) = ([10, 0, 0, 1], [192, 0, 2, 9]);
    const V6: ([u8; 16], [u8; 16]) = ([0x20; 16], [0x30; 16]);

    /// Packets without Ethernet header, as they are quoted.
    fn quotes() -> Vec<Vec<u8>> {
        let mut quotes = vec![Vec::new(); 5];
        PacketBuilder::ipv4(V4.0, V4.1, 64).udp(5000, 53).write(&mut quotes[0], &[1; 20]).unwrap();
        PacketBuilder::ipv4(V4.0, V4.1, 64).tcp(5000, 80, 7, 1000).write(&mut quotes[1], &[2; 20]).unwrap();
        PacketBuilder::ipv4(V4.0, V4.1, 64).icmpv4_echo_request(5000, 1).write(&mut quotes[2], &[3; 20]).unwrap();
        PacketBuilder::ipv6(V6.0, V6.1, 64).udp(5000, 53).write(&mut quotes[3], &[1; 20]).unwrap();
        PacketBuilder::ipv6(V6.0, V6.1, 64).icmpv6_echo_request(5000, 1).write(&mut quotes[4], &[3; 20]).unwrap();
        quotes
    }

    fn error(quoted: &[u8]) -> Vec<u8> {
        let (mut packet, ethernet) = (Vec::new(), PacketBuilder::ethernet2([1; 6], [2; 6]));
        if quoted[0] >> 4 == 4 {
            let kind = Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port);
            ethernet.ipv4([8; 4], V4.0, 64).icmpv4(kind).write(&mut packet, quoted).unwrap();
        } else {
            let kind = Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port);
            ethernet.ipv6([8; 16], V6.0, 64).icmpv6(kind).write(&mut packet, quoted).unwrap();
        }
        packet
    }

    /// A quoted packet as a whole one.
    fn whole(packet: &[u8], quoted: &Quoted) -> Vec<u8> {
        let kind: &[u8] = if packet[quoted.ip] >> 4 == 4 { &[8, 0] } else { &[0x86, 0xdd] };
        [&[0; 12], kind, &packet[quoted.ip..quoted.end]].concat()
    }

    #[test]
    fn the_quoted_packet_is_found_changed_and_all_checksums_stay_right() {
        for quote in quotes() {
            let mut packet = error(&quote);
            let headers = parse(&packet).unwrap();
            let quoted = Quoted::find(&packet, &headers).unwrap();
            assert_eq!(quoted.key.src_port(), 5000);
            let is_v4 = quoted.key.src().is_ipv4();
            let (new_src, new_dst): (IpAddr, IpAddr) =
                if is_v4 { ([172, 16, 0, 1].into(), [172, 16, 0, 2].into()) } else { ([0x77; 16].into(), [0x78; 16].into()) };
            quoted.set_src(&mut packet, new_src, 4321).unwrap();
            quoted.set_dst(&mut packet, new_dst, 4321).unwrap();
            quoted.seal(&mut packet, &headers).unwrap();
            assert!(headers.are_checksums_right(&packet), "the error's");
            let inner = whole(&packet, &quoted);
            let inner_headers = parse(&inner).unwrap();
            assert!(inner_headers.are_checksums_right(&inner), "the quoted packet's");
            let again = Quoted::find(&packet, &headers).unwrap().key;
            assert_eq!((again.src(), again.dst(), again.src_port(), again.dst_port()), (new_src, new_dst, 4321, 4321));
            assert_eq!(FlowKey::of_session(&inner, &inner_headers), Some(again));
        }
    }

    #[test]
    fn eight_bytes_behind_the_quoted_header_are_enough_and_fewer_are_not() {
        for (len, found) in [(28, true), (27, false), (19, false), (0, false)] {
            let mut packet = error(&quotes()[1][..len.max(1)]);
            let headers = parse(&packet).unwrap();
            let quoted = Quoted::find(&packet, &headers);
            assert_eq!(quoted.is_some(), found, "{len}");
            if let Some(quoted) = quoted {
                quoted.set_src(&mut packet, [1, 2, 3, 4].into(), 9).unwrap();
                quoted.seal(&mut packet, &headers).unwrap();
                assert!(headers.are_checksums_right(&packet));
            }
        }
    }

    #[test]
    fn what_is_no_sound_error_is_left_alone() {
        let mut wrong_sum = error(&quotes()[0]);
        *wrong_sum.last_mut().unwrap() ^= 1;
        let mut echo = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4(V4.0, V4.1, 64)
            .icmpv4_echo_request(1, 1)
            .write(&mut echo, &quotes()[0])
            .unwrap();
        let mut later_fragment = quotes()[0].clone();
        later_fragment[7] = 3;
        for packet in [wrong_sum, echo, error(&later_fragment)] {
            let headers = parse(&packet).unwrap();
            assert_eq!(Quoted::find(&packet, &headers), None);
        }
    }
}
