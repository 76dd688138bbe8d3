//! Changes headers in place, with their checksums.

use std::net::IpAddr;

use super::checksum::{compute, compute_with_pseudo_header, update};
use super::{ETHERNET, Headers, Ip, NotThere, is_vlan, protocol};
use crate::packet::{NoRoom, Packet};

const IPV4_CHECKSUM: usize = 10;

/// Offset of the checksum in a transport header, and whether it covers the IP addresses.
fn l4_checksum(number: u8) -> Option<(usize, bool)> {
    match number {
        protocol::TCP => Some((16, true)),
        protocol::UDP | protocol::UDP_LITE => Some((6, true)),
        protocol::ICMPV6 => Some((2, true)),
        protocol::ICMP => Some((2, false)),
        _ => None,
    }
}

fn word(packet: &[u8], at: usize) -> Option<u16> {
    packet.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn set_word(packet: &mut [u8], at: usize, value: u16) -> Result<(), NotThere> {
    *packet.get_mut(at..).and_then(|p| p.first_chunk_mut()).ok_or(NotThere)? = value.to_be_bytes();
    Ok(())
}

impl Headers {
    pub(super) fn address(&self, packet: &[u8], destination: bool) -> Option<IpAddr> {
        let (at, len) = address_at(&self.ip?, destination);
        let bytes = packet.get(at..at + len)?;
        match *bytes {
            [a, b, c, d] => Some(IpAddr::from([a, b, c, d])),
            _ => bytes.first_chunk::<16>().copied().map(IpAddr::from),
        }
    }

    /// Sets the source address (of the packet's own IP version).
    ///
    /// # Errors
    /// [`NotThere`] if the packet has no IP header of this version.
    pub fn set_src(&self, packet: &mut [u8], address: IpAddr) -> Result<(), NotThere> {
        self.set_address(packet, address, false)
    }

    /// Sets the destination address (of the packet's own IP version).
    ///
    /// # Errors
    /// As [`Headers::set_src`].
    pub fn set_dst(&self, packet: &mut [u8], address: IpAddr) -> Result<(), NotThere> {
        self.set_address(packet, address, true)
    }

    fn set_address(&self, packet: &mut [u8], address: IpAddr, destination: bool) -> Result<(), NotThere> {
        let ip = self.ip.ok_or(NotThere)?;
        let (at, len) = address_at(&ip, destination);
        let mut old = [0; 16];
        let old = &mut old[..len];
        let place = packet.get_mut(at..at + len).ok_or(NotThere)?;
        old.copy_from_slice(place);
        let (v4, v6);
        let new: &[u8] = match (address, len) {
            (IpAddr::V4(a), 4) => {
                v4 = a.octets();
                &v4
            }
            (IpAddr::V6(a), 16) => {
                v6 = a.octets();
                &v6
            }
            _ => return Err(NotThere),
        };
        place.copy_from_slice(new);
        if ip.version == 4 {
            self.update_ip(packet, &ip, old, new)?;
        }
        self.update_l4(packet, old, new, true)
    }

    /// Sets the source port.
    ///
    /// # Errors
    /// [`NotThere`] if there is no transport header with ports.
    pub fn set_src_port(&mut self, packet: &mut [u8], port: u16) -> Result<(), NotThere> {
        self.set_port(packet, port, false)
    }

    /// Sets the destination port.
    ///
    /// # Errors
    /// As [`Headers::set_src_port`].
    pub fn set_dst_port(&mut self, packet: &mut [u8], port: u16) -> Result<(), NotThere> {
        self.set_port(packet, port, true)
    }

    fn set_port(&mut self, packet: &mut [u8], port: u16, destination: bool) -> Result<(), NotThere> {
        let l4 = self.l4.as_mut().ok_or(NotThere)?;
        let ports = l4.ports.as_mut().ok_or(NotThere)?;
        let at = l4.offset as usize + if destination { 2 } else { 0 };
        let old = word(packet, at).ok_or(NotThere)?;
        set_word(packet, at, port)?;
        *(if destination { &mut ports.1 } else { &mut ports.0 }) = port;
        self.update_l4(packet, &old.to_be_bytes(), &port.to_be_bytes(), false)
    }

    /// Sets the identifier of an ICMP or ICMPv6 echo message, which NAT uses as a port.
    ///
    /// # Errors
    /// [`NotThere`] if it is no echo request or reply.
    pub fn set_echo_id(&self, packet: &mut [u8], id: u16) -> Result<(), NotThere> {
        let old = self.echo_id(packet).ok_or(NotThere)?;
        let at = self.l4.ok_or(NotThere)?.offset as usize + 4;
        set_word(packet, at, id)?;
        self.update_l4(packet, &old.to_be_bytes(), &id.to_be_bytes(), false)
    }

    /// The echo identifier of an ICMP or ICMPv6 echo request or reply.
    pub fn echo_id(&self, packet: &[u8]) -> Option<u16> {
        let l4 = self.l4?;
        let at = l4.offset as usize;
        let kind = *packet.get(at)?;
        let is_echo = match l4.protocol {
            protocol::ICMP => matches!(kind, 0 | 8),
            protocol::ICMPV6 => matches!(kind, 128 | 129),
            _ => false,
        };
        if is_echo { word(packet, at + 4) } else { None }
    }

    /// TTL or hop limit.
    pub fn ttl(&self, packet: &[u8]) -> Option<u8> {
        packet.get(ttl_at(&self.ip?)).copied()
    }

    /// Sets TTL or hop limit.
    ///
    /// # Errors
    /// [`NotThere`] if it is not IP.
    pub fn set_ttl(&self, packet: &mut [u8], ttl: u8) -> Result<(), NotThere> {
        let ip = self.ip.ok_or(NotThere)?;
        if ip.version == 6 {
            *packet.get_mut(ttl_at(&ip)).ok_or(NotThere)? = ttl;
            return Ok(());
        }
        let at = ttl_at(&ip); // with the protocol behind it, a word at an even offset of the header
        let old = word(packet, at).ok_or(NotThere)?;
        let new = u16::from(ttl) << 8 | old & 0xff;
        set_word(packet, at, new)?;
        self.update_ip(packet, &ip, &old.to_be_bytes(), &new.to_be_bytes())
    }

    /// DSCP, 0 to 63.
    pub fn dscp(&self, packet: &[u8]) -> Option<u8> {
        self.traffic_class(packet).map(|class| class >> 2)
    }

    /// ECN, 0 to 3.
    pub fn ecn(&self, packet: &[u8]) -> Option<u8> {
        self.traffic_class(packet).map(|class| class & 3)
    }

    /// Sets DSCP; the upper two bits of `dscp` are ignored.
    ///
    /// # Errors
    /// [`NotThere`] if it is not IP.
    pub fn set_dscp(&self, packet: &mut [u8], dscp: u8) -> Result<(), NotThere> {
        let class = self.traffic_class(packet).ok_or(NotThere)?;
        self.set_traffic_class(packet, dscp << 2 | class & 3)
    }

    /// Sets ECN; the upper six bits of `ecn` are ignored.
    ///
    /// # Errors
    /// [`NotThere`] if it is not IP.
    pub fn set_ecn(&self, packet: &mut [u8], ecn: u8) -> Result<(), NotThere> {
        let class = self.traffic_class(packet).ok_or(NotThere)?;
        self.set_traffic_class(packet, class & !3 | ecn & 3)
    }

    fn traffic_class(&self, packet: &[u8]) -> Option<u8> {
        let ip = self.ip?;
        let first = word(packet, ip.offset as usize)?;
        Some(if ip.version == 4 { first as u8 } else { (first >> 4) as u8 })
    }

    fn set_traffic_class(&self, packet: &mut [u8], class: u8) -> Result<(), NotThere> {
        let ip = self.ip.ok_or(NotThere)?;
        let at = ip.offset as usize;
        let old = word(packet, at).ok_or(NotThere)?;
        let new = if ip.version == 4 { old & 0xff00 | u16::from(class) } else { old & 0xf00f | u16::from(class) << 4 };
        set_word(packet, at, new)?;
        if ip.version == 4 { self.update_ip(packet, &ip, &old.to_be_bytes(), &new.to_be_bytes()) } else { Ok(()) }
    }

    fn update_ip(&self, packet: &mut [u8], ip: &Ip, old: &[u8], new: &[u8]) -> Result<(), NotThere> {
        let at = ip.offset as usize + IPV4_CHECKSUM;
        let sum = word(packet, at).ok_or(NotThere)?;
        set_word(packet, at, update(sum, old, new))
    }

    /// Updates the transport checksum, if there is one, for a change of what it covers.
    fn update_l4(&self, packet: &mut [u8], old: &[u8], new: &[u8], is_address: bool) -> Result<(), NotThere> {
        let Some(l4) = self.l4 else { return Ok(()) };
        let Some((field, covers_addresses)) = l4_checksum(l4.protocol) else { return Ok(()) };
        if is_address && !covers_addresses {
            return Ok(());
        }
        let at = l4.offset as usize + field;
        let sum = word(packet, at).ok_or(NotThere)?;
        if sum == 0 && l4.protocol == protocol::UDP {
            return Ok(()); // the sender made none
        }
        let mut sum = update(sum, old, new);
        if sum == 0 && l4.protocol == protocol::UDP {
            sum = 0xffff;
        }
        set_word(packet, at, sum)
    }

    /// Computes the checksums of the IPv4 header and of TCP, UDP, ICMP or ICMPv6. The latter stay
    /// as they are in fragments and truncated packets, which lack covered bytes; so does
    /// UDP-Lite's, whose coverage varies. After a change of length call [`Headers::set_ip_len`]
    /// first.
    ///
    /// # Errors
    /// [`NotThere`] if it is not IP.
    pub fn fix_checksums(&self, packet: &mut [u8]) -> Result<(), NotThere> {
        let ip = self.ip.ok_or(NotThere)?;
        if ip.version == 4 {
            let at = ip.offset as usize;
            set_word(packet, at + IPV4_CHECKSUM, 0)?;
            let sum = compute(packet.get(at..at + ip.header_len as usize).ok_or(NotThere)?);
            set_word(packet, at + IPV4_CHECKSUM, sum)?;
        }
        let Some((at, sum)) = self.l4_sum(packet, &ip)? else { return Ok(()) };
        set_word(packet, at, sum)
    }

    /// Whether the checksums are as [`Headers::fix_checksums`] would set them. A UDP checksum of 0
    /// (none) over IPv4 is right.
    pub fn are_checksums_right(&self, packet: &[u8]) -> bool {
        let Some(ip) = self.ip else { return true };
        let at = ip.offset as usize;
        if ip.version == 4 && packet.get(at..at + ip.header_len as usize).is_none_or(|header| compute(header) != 0) {
            return false;
        }
        let mut copy = packet.to_vec();
        match self.l4_sum(&mut copy, &ip) {
            Ok(None) => true,
            Ok(Some((at, sum))) => {
                let stored = word(packet, at);
                stored == Some(sum)
                    || (stored == Some(0) && ip.version == 4 && self.l4.is_some_and(|l4| l4.protocol == protocol::UDP))
            }
            Err(NotThere) => false,
        }
    }

    /// Offset and right value of the transport checksum; clears the field. None if not computable.
    fn l4_sum(&self, packet: &mut [u8], ip: &Ip) -> Result<Option<(usize, u16)>, NotThere> {
        let Some(l4) = self.l4.filter(|l4| l4.protocol != protocol::UDP_LITE) else { return Ok(None) };
        let Some((field, covers_addresses)) = l4_checksum(l4.protocol) else { return Ok(None) };
        if ip.fragment.is_some() || ip.truncated {
            return Ok(None);
        }
        let (start, end) = (l4.offset as usize, ip.end as usize);
        set_word(packet, start + field, 0)?;
        let message = packet.get(start..end).ok_or(NotThere)?;
        let sum = if covers_addresses {
            let (first, len) = address_at(ip, false);
            compute_with_pseudo_header(packet.get(first..first + 2 * len).ok_or(NotThere)?, l4.protocol, message)
        } else {
            compute(message)
        };
        Ok(Some((start + field, if sum == 0 && l4.protocol == protocol::UDP { 0xffff } else { sum })))
    }

    /// Ends the IP packet at `end`, after a change of the payload's length: sets IPv4's total
    /// length or IPv6's payload length, and UDP's length. [`Headers::fix_checksums`] must follow.
    ///
    /// # Errors
    /// [`NotThere`] if it is not IP, or `end` lies before its headers' end or behind the packet.
    pub fn set_ip_len(&mut self, packet: &mut [u8], end: usize) -> Result<(), NotThere> {
        let payload = self.payload as usize;
        let ip = self.ip.as_mut().ok_or(NotThere)?;
        if end < payload || end > packet.len() || end > u16::MAX as usize {
            return Err(NotThere);
        }
        let fixed = if ip.version == 4 { 0 } else { 40 };
        let len = end.checked_sub(ip.offset as usize + fixed).ok_or(NotThere)?;
        set_word(packet, ip.offset as usize + if ip.version == 4 { 2 } else { 4 }, len as u16)?;
        ip.end = end as u16;
        ip.truncated = false;
        match self.l4 {
            Some(l4) if l4.protocol == protocol::UDP => {
                let len = end.checked_sub(l4.offset as usize).ok_or(NotThere)?;
                set_word(packet, l4.offset as usize + 4, len as u16)
            }
            _ => Ok(()),
        }
    }

    /// Swaps source and destination MAC address.
    ///
    /// # Errors
    /// [`NotThere`] if the packet is shorter than an Ethernet header.
    #[inline]
    pub fn swap_macs(packet: &mut [u8]) -> Result<(), NotThere> {
        let header = packet.first_chunk_mut::<ETHERNET>().ok_or(NotThere)?;
        let (destination, rest) = header.split_at_mut(6);
        destination.swap_with_slice(&mut rest[..6]);
        Ok(())
    }

    /// Sets the destination MAC address, and the source if one is given.
    ///
    /// # Errors
    /// As [`Headers::swap_macs`].
    #[inline]
    pub fn set_macs(packet: &mut [u8], destination: [u8; 6], source: Option<[u8; 6]>) -> Result<(), NotThere> {
        let header = packet.first_chunk_mut::<ETHERNET>().ok_or(NotThere)?;
        header[..6].copy_from_slice(&destination);
        if let Some(source) = source {
            header[6..12].copy_from_slice(&source);
        }
        Ok(())
    }

    /// Lowers TTL or hop limit by one and returns the new value. At 0 or 1 it changes nothing and
    /// returns 0: such a packet goes no further.
    ///
    /// # Errors
    /// [`NotThere`] if it is not IP.
    #[inline]
    pub fn decrement_ttl(&self, packet: &mut [u8]) -> Result<u8, NotThere> {
        let ttl = self.ttl(packet).ok_or(NotThere)?;
        if ttl <= 1 {
            return Ok(0);
        }
        self.set_ttl(packet, ttl - 1)?;
        Ok(ttl - 1)
    }
}

/// Offset and length of an address.
fn address_at(ip: &Ip, destination: bool) -> (usize, usize) {
    let at = ip.offset as usize;
    match (ip.version, destination) {
        (4, false) => (at + 12, 4),
        (4, true) => (at + 16, 4),
        (_, false) => (at + 8, 16),
        (_, true) => (at + 24, 16),
    }
}

fn ttl_at(ip: &Ip) -> usize {
    ip.offset as usize + if ip.version == 4 { 8 } else { 7 }
}

/// Adds an outermost VLAN tag (EtherType 0x8100). `tci` is the priority and, in 12 bits, the id.
///
/// # Errors
/// [`NoRoom`] if the packet has no Ethernet header or less than four bytes of headroom.
pub fn push_vlan(packet: &mut Packet<'_>, tci: u16) -> Result<(), NoRoom> {
    if packet.len() < ETHERNET {
        return Err(NoRoom);
    }
    packet.push(4)?;
    let bytes = packet.data_mut();
    bytes.copy_within(4..16, 0);
    bytes[12..14].copy_from_slice(&0x8100u16.to_be_bytes());
    bytes[14..16].copy_from_slice(&tci.to_be_bytes());
    Ok(())
}

/// Removes the outermost VLAN tag and returns its priority and id. None if there is none.
pub fn pop_vlan(packet: &mut Packet<'_>) -> Option<u16> {
    let bytes = packet.data_mut();
    if bytes.len() < ETHERNET + 4 || !is_vlan(word(bytes, 12)?) {
        return None;
    }
    let tci = word(bytes, 14)?;
    bytes.copy_within(0..12, 4);
    packet.pull(4).ok()?;
    Some(tci)
}
