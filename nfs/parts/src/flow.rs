//! Key of a flow: the 5-tuple, for IPv4 and IPv6 alike.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_nf::header::{Flow, Headers, protocol};

/// Flags in `tail`, below the ports (or the datagram's number).
const IPV4: u64 = 1 << 8;
const DATAGRAM: u64 = 1 << 9;

/// Addresses, protocol and ports of a flow; or the key of a datagram ([`FlowKey::datagram`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    src: u128,
    dst: u128,
    /// Source port (16), destination port (16), spare (22), flags (2), protocol (8).
    tail: u64,
}

impl FlowKey {
    /// The key of a flow. Without ports they are 0. The addresses must be of one family.
    #[inline]
    pub fn new(src: IpAddr, dst: IpAddr, protocol: u8, src_port: u16, dst_port: u16) -> Self {
        let tail = u64::from(src_port) << 48 | u64::from(dst_port) << 32 | u64::from(protocol);
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Self { src: src.to_bits().into(), dst: dst.to_bits().into(), tail: tail | IPV4 },
            (src, dst) => Self { src: bits(src), dst: bits(dst), tail },
        }
    }

    /// The key of a packet's flow, with the ports of a first fragment. None if it is not IP.
    #[inline]
    pub fn of(packet: &[u8], headers: &Headers) -> Option<Self> {
        let ip = headers.ip?;
        let (src_port, dst_port) = headers.l4.and_then(|l4| l4.ports).unwrap_or_default();
        Some(Self::new(headers.src(packet)?, headers.dst(packet)?, ip.protocol, src_port, dst_port))
    }

    /// As [`FlowKey::of`], with the identifier of an ICMP echo message as both ports, so that
    /// requests and replies of one ping are one session.
    #[inline]
    pub fn of_session(packet: &[u8], headers: &Headers) -> Option<Self> {
        let key = Self::of(packet, headers)?;
        let id = if matches!(key.protocol(), protocol::ICMP | protocol::ICMPV6) { headers.echo_id(packet) } else { None };
        Some(id.map_or(key, |id| Self { tail: key.tail | u64::from(id) << 48 | u64::from(id) << 32, ..key }))
    }

    /// The common key of the fragments of a packet's datagram. None if it is no fragment.
    #[inline]
    pub fn of_datagram(packet: &[u8], headers: &Headers) -> Option<Self> {
        let ip = headers.ip?;
        Some(Self::datagram(headers.src(packet)?, headers.dst(packet)?, ip.protocol, ip.fragment?.id))
    }

    /// The common key of the fragments of a datagram.
    #[inline]
    pub fn datagram(src: IpAddr, dst: IpAddr, protocol: u8, id: u32) -> Self {
        let key = Self::new(src, dst, protocol, (id >> 16) as u16, id as u16);
        Self { tail: key.tail | DATAGRAM, ..key }
    }

    pub fn src(&self) -> IpAddr {
        self.address(self.src)
    }

    pub fn dst(&self) -> IpAddr {
        self.address(self.dst)
    }

    fn address(&self, bits: u128) -> IpAddr {
        if self.is_ipv4() { Ipv4Addr::from_bits(bits as u32).into() } else { Ipv6Addr::from_bits(bits).into() }
    }

    #[inline]
    pub fn is_ipv4(&self) -> bool {
        self.tail & IPV4 != 0
    }

    /// Source address as a number; an IPv4 address is the lower 32 bits.
    #[inline]
    pub fn src_bits(&self) -> u128 {
        self.src
    }

    /// Destination address as a number; an IPv4 address is the lower 32 bits.
    #[inline]
    pub fn dst_bits(&self) -> u128 {
        self.dst
    }

    #[inline]
    pub fn src_port(&self) -> u16 {
        (self.tail >> 48) as u16
    }

    #[inline]
    pub fn dst_port(&self) -> u16 {
        (self.tail >> 32) as u16
    }

    #[inline]
    pub fn protocol(&self) -> u8 {
        self.tail as u8
    }

    /// The key of the other direction.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        let ports = (self.tail >> 32) as u32;
        Self { src: self.dst, dst: self.src, tail: self.tail & 0xffff_ffff | u64::from(ports.rotate_left(16)) << 32 }
    }

    /// The common key of both directions, and whether it is the reversed one.
    #[inline]
    #[must_use]
    pub fn canonical(&self) -> (Self, bool) {
        let other = self.reversed();
        if other < *self { (other, true) } else { (*self, false) }
    }

    /// The key as words, for a hash that is the same on all machines.
    #[inline]
    pub fn words(&self) -> [u64; 5] {
        [self.src as u64, (self.src >> 64) as u64, self.dst as u64, (self.dst >> 64) as u64, self.tail]
    }
}

impl From<Flow> for FlowKey {
    #[inline]
    fn from(flow: Flow) -> Self {
        Self::new(flow.src, flow.dst, flow.protocol, flow.src_port, flow.dst_port)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Whether packets to an address never leave their link: broadcast, link-local, multicast.
#[inline]
pub fn stays_on_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_broadcast() || v4.is_link_local() || v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.is_unicast_link_local() || matches!(v6.segments()[0] & 0xff0f, 0xff01 | 0xff02),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(src: &str, dst: &str) -> FlowKey {
        FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), 6, 1000, 80)
    }

    #[test]
    fn a_key_keeps_what_it_was_made_of() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "::2")] {
            let key = key(src, dst);
            assert_eq!((key.src().to_string(), key.dst().to_string()), (src.into(), dst.into()));
            assert_eq!((key.protocol(), key.src_port(), key.dst_port()), (6, 1000, 80));
            let back = key.reversed();
            assert_eq!((back.src(), back.dst(), back.src_port(), back.dst_port()), (key.dst(), key.src(), 80, 1000));
            assert_eq!(back.reversed(), key);
            assert_eq!(key.canonical().0, back.canonical().0);
            assert_ne!(key.canonical().1, back.canonical().1);
        }
    }

    #[test]
    fn families_and_datagrams_are_kept_apart() {
        assert_ne!(key("0.0.0.1", "0.0.0.2"), key("::1", "::2"));
        let a = "10.0.0.1".parse().unwrap();
        assert_ne!(FlowKey::datagram(a, a, 17, 5), FlowKey::new(a, a, 17, 0, 5));
        assert_ne!(FlowKey::datagram(a, a, 17, 5), FlowKey::datagram(a, a, 17, 5 << 16));
    }
}
