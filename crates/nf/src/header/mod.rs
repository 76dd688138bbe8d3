//! Finds, reads and changes headers of a packet, with their checksums.
//!
//! # Terms
//! All offsets are from the packet's first byte, its Ethernet header. L2 is Ethernet and its VLAN
//! tags; L4 is TCP, UDP, ICMP, ICMPv6, SCTP or UDP-Lite.
//!
//! # Approach
//! [`parse`] walks the headers once and keeps offsets, which outlive changes to the bytes. Headers
//! are read by the re-exported [`etherparse`]: [`Headers::ipv4`] and its siblings return its
//! checked views. Setters ([`Headers::set_src`] and so on) write through the offsets and update
//! checksums by difference ([`checksum::update`]), so a wrong checksum stays wrong and a right one
//! right. Nothing here panics, whatever the bytes.
//!
//! # Limits
//! Four VLAN tags and eight IPv6 extension headers; a packet with more has no [`Headers::ip`], or
//! no [`Headers::l4`]. A packet in a tunnel is payload. With an IPv6 routing header the L4 checksum
//! covers the final destination, and [`Headers::set_dst`] changes the next one.

use std::net::IpAddr;

pub use etherparse;
use etherparse::{
    ArpPacketSlice, EtherType, Ethernet2HeaderSlice, Icmpv4Slice, Icmpv6Slice, IpAuthHeaderSlice, IpNumber, Ipv4HeaderSlice,
    Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, Ipv6RawExtHeaderSlice, SingleVlanHeaderSlice, TcpHeaderSlice, UdpHeaderSlice,
};

pub mod checksum;
mod edit;
#[cfg(test)]
mod tests;

pub use edit::{pop_vlan, push_vlan};

/// Most VLAN tags.
pub const MAX_VLANS: usize = 4;
/// Most IPv6 extension headers.
const MAX_EXTENSIONS: usize = 8;
/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Protocol numbers of [`L4::protocol`] and [`Ip::protocol`].
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// UDP-Lite.
    pub const UDP_LITE: u8 = 136;
}

/// The packet does not have, or no longer has, the header that this needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the packet has no such header")]
pub struct NotThere;

/// Which fragment of a packet this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// The same in all fragments of a packet.
    pub id: u32,
    /// Byte offset in the whole payload; 0 for the first one, which alone has an L4 header.
    pub offset: u16,
    /// Whether more fragments follow.
    pub more: bool,
}

/// An IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// Where it starts.
    pub offset: u16,
    /// 4 or 6.
    pub version: u8,
    /// Bytes of it, with IPv4 options or IPv6 extension headers.
    pub header_len: u16,
    /// Protocol of its payload.
    pub protocol: u8,
    /// Set for fragments, the first one included.
    pub fragment: Option<Fragment>,
    /// Where the IP packet ends. Ethernet padding may follow.
    pub end: u16,
    /// Whether the packet is shorter than the header says.
    pub truncated: bool,
}

/// A complete transport header. Fragments after the first have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct L4 {
    /// Where it starts.
    pub offset: u16,
    /// Bytes of it, with TCP options.
    pub header_len: u16,
    /// Its protocol, see [`protocol`].
    pub protocol: u8,
    /// Source and destination port, where the protocol has ports.
    pub ports: Option<(u16, u16)>,
}

/// Where the headers of a packet are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Bytes of the Ethernet header and VLAN tags.
    pub l2_len: u16,
    /// EtherType behind the VLAN tags.
    pub ethertype: u16,
    vlans: [u16; MAX_VLANS],
    vlan_count: u8,
    /// The IP header, if there is a valid one.
    pub ip: Option<Ip>,
    /// The transport header, if there is a complete one.
    pub l4: Option<L4>,
    /// Where the payload of the innermost parsed header starts.
    pub payload: u16,
}

/// What the packets of one conversation in one direction have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port; 0 where there are no ports.
    pub src_port: u16,
    /// Destination port; 0 where there are no ports.
    pub dst_port: u16,
    /// Protocol number.
    pub protocol: u8,
}

impl Flow {
    /// The other direction.
    pub fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port, protocol: self.protocol }
    }
}

/// Finds the headers of a packet. None if it is shorter than an Ethernet header. Invalid headers
/// are left out, with all that follow them.
#[inline]
pub fn parse(packet: &[u8]) -> Option<Headers> {
    // Offsets are 16 bits wide; no frame is longer.
    let packet = &packet[..packet.len().min(u16::MAX as usize)];
    let ethernet = Ethernet2HeaderSlice::from_slice(packet).ok()?;
    let mut headers = Headers {
        l2_len: ETHERNET as u16,
        ethertype: ethernet.ether_type().0,
        vlans: [0; MAX_VLANS],
        vlan_count: 0,
        ip: None,
        l4: None,
        payload: ETHERNET as u16,
    };
    while is_vlan(headers.ethertype) && (headers.vlan_count as usize) < MAX_VLANS {
        let Ok(tag) = SingleVlanHeaderSlice::from_slice(&packet[headers.l2_len as usize..]) else { return Some(headers) };
        headers.vlans[headers.vlan_count as usize] = tag.vlan_identifier().value();
        headers.vlan_count += 1;
        headers.ethertype = tag.ether_type().0;
        headers.l2_len += 4;
    }
    headers.payload = headers.l2_len;
    headers.ip = match EtherType(headers.ethertype) {
        EtherType::IPV4 => ipv4(packet, headers.l2_len as usize),
        EtherType::IPV6 => ipv6(packet, headers.l2_len as usize),
        _ => None,
    };
    if let Some(ip) = headers.ip {
        headers.payload = ip.offset + ip.header_len;
        if ip.fragment.is_none_or(|f| f.offset == 0) {
            headers.l4 = l4(&packet[..ip.end as usize], headers.payload, ip.protocol);
        }
    }
    if let Some(l4) = headers.l4 {
        headers.payload = l4.offset + l4.header_len;
    }
    Some(headers)
}

#[inline(always)]
fn is_vlan(ethertype: u16) -> bool {
    matches!(
        EtherType(ethertype),
        EtherType::VLAN_TAGGED_FRAME | EtherType::PROVIDER_BRIDGING | EtherType::VLAN_DOUBLE_TAGGED_FRAME
    )
}

#[inline]
fn ipv4(packet: &[u8], offset: usize) -> Option<Ip> {
    let header = Ipv4HeaderSlice::from_slice(&packet[offset..]).ok()?;
    let (header_len, total) = (header.slice().len(), header.total_len() as usize);
    if total < header_len {
        return None;
    }
    let fragment = header.is_fragmenting_payload().then(|| Fragment {
        id: u32::from(header.identification()),
        offset: header.fragments_offset().value() << 3,
        more: header.more_fragments(),
    });
    Some(Ip {
        offset: offset as u16,
        version: 4,
        header_len: header_len as u16,
        protocol: header.protocol().0,
        fragment,
        end: (offset + total).min(packet.len()) as u16,
        truncated: offset + total > packet.len(),
    })
}

#[inline]
fn ipv6(packet: &[u8], offset: usize) -> Option<Ip> {
    let header = Ipv6HeaderSlice::from_slice(&packet[offset..]).ok()?;
    let total = header.slice().len() + header.payload_length() as usize;
    let end = (offset + total).min(packet.len());
    let mut ip = Ip {
        offset: offset as u16,
        version: 6,
        header_len: header.slice().len() as u16,
        protocol: header.next_header().0,
        fragment: None,
        end: end as u16,
        truncated: offset + total > packet.len(),
    };
    for _ in 0..MAX_EXTENSIONS {
        let rest = &packet[offset + ip.header_len as usize..end];
        let (next, len) = match IpNumber(ip.protocol) {
            IpNumber::IPV6_FRAGMENTATION_HEADER => {
                let Ok(fragment) = Ipv6FragmentHeaderSlice::from_slice(rest) else { break };
                // An "atomic fragment" (RFC 6946), alone and first, is a whole packet.
                if fragment.is_fragmenting_payload() {
                    ip.fragment = Some(Fragment {
                        id: fragment.identification(),
                        offset: fragment.fragment_offset().value() << 3,
                        more: fragment.more_fragments(),
                    });
                }
                (fragment.next_header(), fragment.slice().len())
            }
            IpNumber::AUTHENTICATION_HEADER => {
                let Ok(header) = IpAuthHeaderSlice::from_slice(rest) else { break };
                (header.next_header(), header.slice().len())
            }
            number if Ipv6RawExtHeaderSlice::header_type_supported(number) => {
                let Ok(header) = Ipv6RawExtHeaderSlice::from_slice(rest) else { break };
                (header.next_header(), header.slice().len())
            }
            _ => break,
        };
        ip.protocol = next.0;
        ip.header_len += len as u16;
        if ip.fragment.is_some_and(|f| f.offset != 0) {
            break; // what follows is the middle of something
        }
    }
    Some(ip)
}

#[inline]
fn l4(packet: &[u8], offset: u16, number: u8) -> Option<L4> {
    let rest = &packet[offset as usize..];
    let (header_len, ports) = match number {
        protocol::TCP => {
            let tcp = TcpHeaderSlice::from_slice(rest).ok()?;
            (tcp.slice().len(), Some((tcp.source_port(), tcp.destination_port())))
        }
        protocol::UDP | protocol::UDP_LITE => {
            let udp = UdpHeaderSlice::from_slice(rest).ok()?;
            (udp.slice().len(), Some((udp.source_port(), udp.destination_port())))
        }
        protocol::SCTP => {
            // Ports, verification tag, checksum (RFC 9260, section 3.1); etherparse has no SCTP.
            let &[a, b, c, d, ..] = rest.first_chunk::<12>()?;
            (12, Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))))
        }
        protocol::ICMP => (Icmpv4Slice::from_slice(rest).ok()?.header_len(), None),
        protocol::ICMPV6 => (Icmpv6Slice::from_slice(rest).ok()?.header_len(), None),
        _ => return None,
    };
    Some(L4 { offset, header_len: header_len as u16, protocol: number, ports })
}

impl Headers {
    /// Headers from parts: (L2 length, EtherType, payload), VLAN ids, and the rest.
    pub(crate) fn from_parts(fixed: (u16, u16, u16), vlan_ids: &[u16], ip: Option<Ip>, l4: Option<L4>) -> Self {
        let mut vlans = [0; MAX_VLANS];
        vlans[..vlan_ids.len()].copy_from_slice(vlan_ids);
        let (l2_len, ethertype, payload) = fixed;
        Self { l2_len, ethertype, vlans, vlan_count: vlan_ids.len() as u8, ip, l4, payload }
    }

    /// VLAN ids, the outermost first.
    #[inline]
    pub fn vlan_ids(&self) -> &[u16] {
        &self.vlans[..self.vlan_count as usize]
    }

    /// Whether it is an IP fragment, the first one included.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.ip.is_some_and(|ip| ip.fragment.is_some())
    }

    fn l4_of(&self, number: u8) -> Option<usize> {
        self.l4.filter(|l4| l4.protocol == number).map(|l4| l4.offset as usize)
    }

    /// The packet's bytes from `offset` to the end of the IP packet.
    fn ip_part<'a>(&self, packet: &'a [u8], offset: usize) -> Option<&'a [u8]> {
        packet.get(offset..(self.ip?.end as usize).min(packet.len()))
    }

    /// View of the Ethernet header.
    pub fn ethernet<'a>(&self, packet: &'a [u8]) -> Option<Ethernet2HeaderSlice<'a>> {
        Ethernet2HeaderSlice::from_slice(packet).ok()
    }

    /// View of the ARP message.
    pub fn arp<'a>(&self, packet: &'a [u8]) -> Option<ArpPacketSlice<'a>> {
        if EtherType(self.ethertype) != EtherType::ARP {
            return None;
        }
        ArpPacketSlice::from_slice(packet.get(self.l2_len as usize..)?).ok()
    }

    /// View of the IPv4 header.
    pub fn ipv4<'a>(&self, packet: &'a [u8]) -> Option<Ipv4HeaderSlice<'a>> {
        let ip = self.ip.filter(|ip| ip.version == 4)?;
        Ipv4HeaderSlice::from_slice(packet.get(ip.offset as usize..)?).ok()
    }

    /// View of the IPv6 header.
    pub fn ipv6<'a>(&self, packet: &'a [u8]) -> Option<Ipv6HeaderSlice<'a>> {
        let ip = self.ip.filter(|ip| ip.version == 6)?;
        Ipv6HeaderSlice::from_slice(packet.get(ip.offset as usize..)?).ok()
    }

    /// View of the TCP header.
    pub fn tcp<'a>(&self, packet: &'a [u8]) -> Option<TcpHeaderSlice<'a>> {
        TcpHeaderSlice::from_slice(self.ip_part(packet, self.l4_of(protocol::TCP)?)?).ok()
    }

    /// View of the UDP header.
    pub fn udp<'a>(&self, packet: &'a [u8]) -> Option<UdpHeaderSlice<'a>> {
        UdpHeaderSlice::from_slice(self.ip_part(packet, self.l4_of(protocol::UDP)?)?).ok()
    }

    /// View of the ICMP message.
    pub fn icmp<'a>(&self, packet: &'a [u8]) -> Option<Icmpv4Slice<'a>> {
        Icmpv4Slice::from_slice(self.ip_part(packet, self.l4_of(protocol::ICMP)?)?).ok()
    }

    /// View of the ICMPv6 message.
    pub fn icmpv6<'a>(&self, packet: &'a [u8]) -> Option<Icmpv6Slice<'a>> {
        Icmpv6Slice::from_slice(self.ip_part(packet, self.l4_of(protocol::ICMPV6)?)?).ok()
    }

    /// The payload of the innermost parsed header, without Ethernet padding.
    #[inline]
    pub fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        let end = self.ip.map_or(packet.len(), |ip| (ip.end as usize).min(packet.len()));
        packet.get(self.payload as usize..end).unwrap_or_default()
    }

    /// As [`Headers::payload`], mutable. Correct checksums by [`Headers::fix_checksums`].
    #[inline]
    pub fn payload_mut<'a>(&self, packet: &'a mut [u8]) -> &'a mut [u8] {
        let end = self.ip.map_or(packet.len(), |ip| (ip.end as usize).min(packet.len()));
        packet.get_mut(self.payload as usize..end).unwrap_or_default()
    }

    /// Source address.
    #[inline]
    pub fn src(&self, packet: &[u8]) -> Option<IpAddr> {
        self.address(packet, false)
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self, packet: &[u8]) -> Option<IpAddr> {
        self.address(packet, true)
    }

    /// Flow of the packet: addresses, ports, protocol. None if it is not IP. No fragment, not even
    /// the first, has ports, so that all fragments of a packet are in one flow.
    #[inline]
    pub fn flow(&self, packet: &[u8]) -> Option<Flow> {
        let ip = self.ip?;
        let ports = if ip.fragment.is_some() { None } else { self.l4.and_then(|l4| l4.ports) };
        let (src_port, dst_port) = ports.unwrap_or_default();
        Some(Flow { src: self.src(packet)?, dst: self.dst(packet)?, src_port, dst_port, protocol: ip.protocol })
    }
}
