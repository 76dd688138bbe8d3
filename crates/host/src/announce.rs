//! Announces a network namespace's IP addresses by gratuitous ARP and neighbour advertisements.
//!
//! # Problem
//! A neighbour keeps the MAC address of an IP address for minutes, and a switch keeps the port of a
//! MAC address. When the interface is made again elsewhere or with another MAC address, both
//! entries are wrong, and packets are lost until they expire.
//!
//! # Approach
//! One packet for each address of each interface that is up, sent from that interface, as the
//! kernel does when an address moves.
//!
//! # Limits
//! A neighbour that ignores gratuitous ARP keeps its entry. A program with its own network stack
//! announces its addresses itself.
//!
//! Source: RFC 5227 section 2.3 (ARP announcements), RFC 4861 section 7.2.6 (unsolicited neighbour
//! advertisements).

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{ArpHardwareId, ArpOperation, ArpPacket, EtherType, Icmpv6Type, PacketBuilder};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrStorage, sendto, socket};

/// The all-nodes address and its MAC address.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Announces the addresses of the interfaces of the calling thread's namespace that are up and
/// accepted by `is_meant`.
pub fn addresses(is_meant: impl Fn(&str) -> bool) -> io::Result<()> {
    let mut links: BTreeMap<String, (LinkAddr, [u8; 6])> = BTreeMap::new();
    let mut addresses: Vec<(String, IpAddr)> = Vec::new();
    for entry in getifaddrs()? {
        let is_up = entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
        let is_ethernet = !entry.flags.intersects(InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_NOARP);
        let Some(address) = entry.address.filter(|_| is_up && is_ethernet && is_meant(&entry.interface_name)) else { continue };
        match (address.as_link_addr(), ip_of(&address)) {
            (Some(link), _) => {
                if let Some(mac) = link.addr().filter(|mac| *mac != [0; 6]) {
                    links.insert(entry.interface_name, (*link, mac));
                }
            }
            (_, Some(ip)) => addresses.push((entry.interface_name, ip)),
            _ => {}
        }
    }
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    for (interface, ip) in addresses {
        let Some((link, mac)) = links.get(&interface) else { continue };
        let packet = match ip {
            IpAddr::V4(ip) => arp(*mac, ip),
            IpAddr::V6(ip) => advertisement(*mac, ip, is_router(&interface)),
        };
        sendto(socket.as_raw_fd(), &packet, link, MsgFlags::empty())?;
    }
    Ok(())
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
}

/// Whether the kernel forwards packets from an interface: hosts drop a router that does not say so.
fn is_router(interface: &str) -> bool {
    std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/forwarding")).is_ok_and(|text| text.trim() == "1")
}

/// A gratuitous ARP request: the owner of the address asks for it.
fn arp(mac: [u8; 6], ip: Ipv4Addr) -> Vec<u8> {
    let ip = ip.octets();
    let mut bytes = Vec::new();
    let arp = ArpPacket::new(ArpHardwareId::ETHERNET, EtherType::IPV4, ArpOperation::REQUEST, &mac, &ip, &[0; 6], &ip);
    if let Ok(arp) = arp {
        // Writing to memory does not fail.
        let _ = PacketBuilder::ethernet2(mac, [0xff; 6]).arp(arp).write(&mut bytes);
    }
    bytes
}

/// An unsolicited neighbour advertisement, which overrides existing entries.
fn advertisement(mac: [u8; 6], ip: Ipv6Addr, router: bool) -> Vec<u8> {
    // The address, and the option (2) of eight bytes (1) with the MAC address.
    let body = [&ip.octets()[..], &[2, 1], &mac].concat();
    let header = NeighborAdvertisementHeader { router, solicited: false, r#override: true };
    let mut bytes = Vec::new();
    let packet = PacketBuilder::ethernet2(mac, ALL_NODES_MAC).ipv6(ip.octets(), ALL_NODES.octets(), 255);
    // Writing to memory does not fail.
    let _ = packet.icmpv6(Icmpv6Type::NeighborAdvertisement(header)).write(&mut bytes, &body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn announcements_are_what_the_standards_say() {
        let arp = arp(MAC, Ipv4Addr::new(10, 0, 0, 1));
        let wanted = [&[0xff; 6][..], &MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &MAC, &[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]];
        assert_eq!(arp, wanted.concat());
        let ip: Ipv6Addr = "fd00::1".parse().unwrap();
        for router in [false, true] {
            let bytes = advertisement(MAC, ip, router);
            let parsed = etherparse::PacketHeaders::from_ethernet_slice(&bytes).unwrap();
            let Some(etherparse::TransportHeader::Icmpv6(icmp)) = parsed.transport else { panic!("{parsed:?}") };
            let wanted = NeighborAdvertisementHeader { router, solicited: false, r#override: true };
            assert_eq!(icmp.icmp_type, Icmpv6Type::NeighborAdvertisement(wanted));
            let payload = parsed.payload.slice();
            assert_eq!(payload, [&ip.octets()[..], &[2, 1], &MAC].concat());
            let right = icmp.icmp_type.calc_checksum(ip.octets(), ALL_NODES.octets(), payload).unwrap();
            assert_eq!(icmp.checksum, right);
            assert_eq!(bytes[21], 255, "hop limit");
        }
    }
}
