//! Ethernet headers for packets of other link types.
//!
//! NFs get Ethernet packets. In a capture of IP packets alone, of a loopback interface, of PPP, or
//! of all interfaces at once (Linux's *cooked* capture) something else stands before the payload,
//! or nothing. It is left out, and an Ethernet header is made from what it says. It says no
//! addresses, or the sender's alone: the others are made up, locally administered ones.
//!
//! Source: the registry of link types, <https://www.tcpdump.org/linktypes.html>.

/// Destination, source, EtherType.
pub type Header = [u8; 14];

/// Made-up addresses.
const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const BROADCAST: [u8; 6] = [0xff; 6];

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const MPLS: u16 = 0x8847;
const MPLS_TO_MANY: u16 = 0x8848;
const PPP: u16 = 0x880b;
const PPPOE_DISCOVERY: u16 = 0x8863;
const PPPOE_SESSION: u16 = 0x8864;
/// The least EtherType; lower numbers are lengths.
const LEAST: u16 = 0x0600;

/// Link types that are known, with their names.
const NAMES: [(u32, &str); 45] = [
    (0, "loopback"),
    (1, "Ethernet"),
    (6, "Token Ring"),
    (8, "SLIP"),
    (9, "PPP"),
    (10, "FDDI"),
    (12, "raw IP"),
    (14, "raw IP"),
    (50, "PPP in HDLC"),
    (51, "PPPoE"),
    (100, "ATM"),
    (101, "raw IP"),
    (104, "Cisco HDLC"),
    (105, "Wi-Fi"),
    (107, "Frame Relay"),
    (108, "OpenBSD loopback"),
    (113, "Linux cooked"),
    (117, "OpenBSD pflog"),
    (119, "Wi-Fi with Prism header"),
    (127, "Wi-Fi with radiotap"),
    (138, "FireWire"),
    (143, "DOCSIS"),
    (163, "Wi-Fi with AVS header"),
    (166, "pppd"),
    (187, "Bluetooth"),
    (189, "USB"),
    (192, "PPI"),
    (195, "IEEE 802.15.4"),
    (197, "ERF"),
    (201, "Bluetooth"),
    (220, "USB"),
    (224, "Fibre Channel"),
    (227, "CAN"),
    (228, "raw IPv4"),
    (229, "raw IPv6"),
    (230, "IEEE 802.15.4"),
    (239, "NFLOG"),
    (249, "USB"),
    (251, "Bluetooth LE"),
    (253, "netlink"),
    (254, "Bluetooth"),
    (256, "Bluetooth LE"),
    (266, "USB"),
    (276, "Linux cooked v2"),
    (283, "IEEE 802.15.4"),
];

/// The name of a link type in brackets, after a blank; empty for uncommon ones.
pub fn name(number: u32) -> String {
    NAMES.iter().find(|(known, _)| *known == number).map_or(String::new(), |(_, name)| format!(" ({name})"))
}

/// What a packet of a capture becomes.
#[derive(Debug, PartialEq, Eq)]
pub enum Framed {
    /// It is an Ethernet packet.
    AsItIs,
    /// This header takes the place of its first bytes.
    Made { skip: usize, header: Header },
    /// The file holds nothing behind its link header.
    Empty,
}

/// Why a packet has no Ethernet header.
#[derive(Debug, PartialEq, Eq)]
pub enum NoHeader {
    /// Packets of this link type get none.
    LinkType,
    /// What is wrong with this one.
    Packet(String),
}

/// How a packet of a link type becomes an Ethernet packet.
///
/// # Errors
/// [`NoHeader`].
pub fn framed(link_type: u32, bytes: &[u8]) -> Result<Framed, NoHeader> {
    let (skip, source, destination, ether_type) = match link_type {
        1 => return Ok(Framed::AsItIs),
        12 | 14 | 101 => (0, SOURCE, DESTINATION, bytes.first().map(|first| of_version(*first >> 4)).transpose()?),
        228 => (0, SOURCE, DESTINATION, Some(IPV4)),
        229 => (0, SOURCE, DESTINATION, Some(IPV6)),
        0 | 108 => (4, SOURCE, DESTINATION, bytes.first_chunk().map(|family| of_family(link_type, *family)).transpose()?),
        50 if matches!(bytes, [0x0f | 0x8f, ..]) => {
            // Cisco's HDLC: address, control, EtherType.
            let ether_type = bytes.get(2..4).map(|ether_type| u16::from_be_bytes([ether_type[0], ether_type[1]]));
            (4, SOURCE, DESTINATION, ether_type.map(of_cisco).transpose()?)
        }
        9 | 50 => {
            let (skip, ether_type) = of_ppp(bytes);
            (skip, SOURCE, DESTINATION, ether_type)
        }
        // The code of a session's packets is 0.
        51 => (0, SOURCE, DESTINATION, bytes.get(1).map(|code| if *code == 0 { PPPOE_SESSION } else { PPPOE_DISCOVERY })),
        113 => {
            let Some(header) = bytes.first_chunk::<16>() else { return Ok(Framed::Empty) };
            let [_, sent, hardware @ .., p0, p1] = *header;
            let [h0, h1, _, len, a0, a1, a2, a3, a4, a5, ..] = hardware;
            let payload = bytes.len() - header.len();
            let ether_type = of_protocol(u16::from_be_bytes([h0, h1]), u16::from_be_bytes([p0, p1]), payload)?;
            (16, source_of(len, [a0, a1, a2, a3, a4, a5]), destination_of(sent), ether_type)
        }
        276 => {
            let Some(header) = bytes.first_chunk::<20>() else { return Ok(Framed::Empty) };
            let [p0, p1, _, _, _, _, _, _, h0, h1, sent, len, a0, a1, a2, a3, a4, a5, ..] = *header;
            let payload = bytes.len() - header.len();
            let ether_type = of_protocol(u16::from_be_bytes([h0, h1]), u16::from_be_bytes([p0, p1]), payload)?;
            (20, source_of(len, [a0, a1, a2, a3, a4, a5]), destination_of(sent), ether_type)
        }
        _ => return Err(NoHeader::LinkType),
    };
    match ether_type {
        Some(ether_type) if bytes.len() > skip => {
            let mut header = [0; 14];
            header[..6].copy_from_slice(&destination);
            header[6..12].copy_from_slice(&source);
            header[12..].copy_from_slice(&ether_type.to_be_bytes());
            Ok(Framed::Made { skip, header })
        }
        _ => Ok(Framed::Empty),
    }
}

fn of_version(version: u8) -> Result<u16, NoHeader> {
    match version {
        4 => Ok(IPV4),
        6 => Ok(IPV6),
        other => Err(NoHeader::Packet(format!("IP version {other}"))),
    }
}

/// The address family of a loopback capture, in the byte order of the host that wrote it, or in
/// network order (108). IPv6 has another number on each system.
fn of_family(link_type: u32, family: [u8; 4]) -> Result<u16, NoHeader> {
    let (big, little) = (u32::from_be_bytes(family), u32::from_le_bytes(family));
    let family = if link_type == 108 { big } else { big.min(little) };
    match family {
        2 => Ok(IPV4),
        10 | 24 | 28 | 30 => Ok(IPV6),
        other => Err(NoHeader::Packet(format!("address family {other}, which is neither IPv4 nor IPv6"))),
    }
}

fn of_cisco(ether_type: u16) -> Result<u16, NoHeader> {
    if ether_type < LEAST {
        return Err(NoHeader::Packet(format!("protocol {ether_type:#06x}, which Ethernet does not carry")));
    }
    Ok(ether_type)
}

/// Bytes before the payload, and the payload's EtherType. Address and control may be missing, and
/// the protocol may be one byte (RFC 1661, section 6). Other protocols than IP and MPLS, such as
/// PPP's own, stay in the payload, whose EtherType is PPP's (RFC 7042).
fn of_ppp(bytes: &[u8]) -> (usize, Option<u16>) {
    let skip = if bytes.starts_with(&[0xff, 3]) { 2 } else { 0 };
    let (protocol, len) = match bytes[skip..] {
        [short, ..] if short & 1 == 1 => (u16::from(short), 1),
        [high, low, ..] => (u16::from_be_bytes([high, low]), 2),
        _ => return (bytes.len(), None),
    };
    match protocol {
        0x21 => (skip + len, Some(IPV4)),
        0x57 => (skip + len, Some(IPV6)),
        0x281 => (skip + len, Some(MPLS)),
        0x283 => (skip + len, Some(MPLS_TO_MANY)),
        _ => (skip, Some(PPP)),
    }
}

/// Kinds of hardware whose packets in a cooked capture have something else for a protocol: Frame
/// Relay, Wi-Fi in three forms, netlink.
const WITHOUT_PROTOCOL: [u16; 5] = [770, 801, 802, 803, 824];

/// The EtherType, or the length field, of a packet of a cooked capture; none without a payload.
fn of_protocol(hardware: u16, protocol: u16, payload: usize) -> Result<Option<u16>, NoHeader> {
    match protocol {
        _ if payload == 0 => Ok(None),
        _ if WITHOUT_PROTOCOL.contains(&hardware) => {
            Err(NoHeader::Packet(format!("hardware of kind {hardware}, whose packets Ethernet does not carry")))
        }
        LEAST.. => Ok(Some(protocol)),
        // IPX without a header of its own, and 802.2: Ethernet has their length there.
        1 | 4 => Ok(Some(payload.min(1500) as u16)),
        other => Err(NoHeader::Packet(format!("protocol {other:#06x}, which Ethernet does not carry"))),
    }
}

/// The sender's address, if it is as long as Ethernet's.
fn source_of(len: u8, address: [u8; 6]) -> [u8; 6] {
    if len == 6 && address != [0; 6] { address } else { SOURCE }
}

fn destination_of(sent: u8) -> [u8; 6] {
    if sent == 1 { BROADCAST } else { DESTINATION }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(link_type: u32, bytes: &[u8]) -> (usize, [u8; 6], [u8; 6], u16) {
        match framed(link_type, bytes).unwrap() {
            Framed::Made { skip, header } => {
                let [destination @ .., _, _, _, _, _, _, _, _] = header;
                let [.., t0, t1] = header;
                (skip, destination, header[6..12].try_into().unwrap(), u16::from_be_bytes([t0, t1]))
            }
            other => panic!("{other:?} of link type {link_type}"),
        }
    }

    fn ether_type(link_type: u32, bytes: &[u8]) -> (usize, u16) {
        let (skip, destination, source, ether_type) = made(link_type, bytes);
        assert_eq!((destination, source), (DESTINATION, SOURCE), "of link type {link_type}");
        (skip, ether_type)
    }

    #[test]
    fn ip_packets_get_the_ether_type_of_their_version() {
        for raw in [12, 14, 101] {
            assert_eq!(ether_type(raw, &[0x45, 0]), (0, IPV4));
            assert_eq!(ether_type(raw, &[0x60]), (0, IPV6));
        }
        assert_eq!(ether_type(228, &[0]), (0, IPV4));
        assert_eq!(ether_type(229, &[0]), (0, IPV6));
    }

    #[test]
    fn loopback_captures_of_all_systems_are_understood() {
        for (family, wanted) in [(2u32, IPV4), (10, IPV6), (24, IPV6), (28, IPV6), (30, IPV6)] {
            let packet = |family: [u8; 4]| [&family[..], &[1]].concat();
            assert_eq!(ether_type(0, &packet(family.to_le_bytes())), (4, wanted));
            assert_eq!(ether_type(0, &packet(family.to_be_bytes())), (4, wanted));
            assert_eq!(ether_type(108, &packet(family.to_be_bytes())), (4, wanted));
        }
        assert_eq!(
            framed(108, &[2, 0, 0, 0, 1]).unwrap_err(),
            NoHeader::Packet("address family 33554432, which is neither IPv4 nor IPv6".into())
        );
    }

    #[test]
    fn ppp_is_understood_with_and_without_its_short_forms() {
        for (start, skip) in [(&[0xff, 3][..], 2), (&[], 0)] {
            let packet = |protocol: &[u8]| [start, protocol, &[0x45]].concat();
            assert_eq!(ether_type(9, &packet(&[0, 0x21])), (skip + 2, IPV4));
            assert_eq!(ether_type(50, &packet(&[0x21])), (skip + 1, IPV4));
            assert_eq!(ether_type(9, &packet(&[0, 0x57])), (skip + 2, IPV6));
            assert_eq!(ether_type(9, &packet(&[2, 0x81])), (skip + 2, MPLS));
            assert_eq!(ether_type(9, &packet(&[2, 0x83])), (skip + 2, MPLS_TO_MANY));
            assert_eq!(ether_type(9, &packet(&[0xc0, 0x21])), (skip, PPP), "the protocol stays");
        }
        assert_eq!(ether_type(51, &[0x11, 0]), (0, PPPOE_SESSION));
        assert_eq!(ether_type(51, &[0x11, 9]), (0, PPPOE_DISCOVERY));
        assert_eq!(ether_type(50, &[0x0f, 0, 0x86, 0xdd, 0x60]), (4, IPV6), "Cisco's HDLC");
        assert!(framed(50, &[0x8f, 0, 0, 0x35, 1]).is_err(), "Cisco's keep-alives");
    }

    #[test]
    fn cooked_captures_tell_sender_and_protocol() {
        let v1 = |sent: u8, len: u8, protocol: u16| {
            [&[0, sent, 0, 1, 0, len, 4, 5, 6, 7, 8, 9, 0, 0][..], &protocol.to_be_bytes(), &[1; 60]].concat()
        };
        let v2 = |sent: u8, len: u8, protocol: u16| {
            [&protocol.to_be_bytes()[..], &[0, 0, 0, 0, 0, 3, 0, 1, sent, len, 4, 5, 6, 7, 8, 9, 0, 0], &[1; 60]].concat()
        };
        let sender = [4, 5, 6, 7, 8, 9];
        assert_eq!(made(113, &v1(0, 6, IPV4)), (16, DESTINATION, sender, IPV4));
        assert_eq!(made(276, &v2(0, 6, IPV6)), (20, DESTINATION, sender, IPV6));
        assert_eq!(made(113, &v1(1, 6, 0x0806)), (16, BROADCAST, sender, 0x0806));
        assert_eq!(made(276, &v2(1, 6, 0x0806)), (20, BROADCAST, sender, 0x0806));
        assert_eq!(made(113, &v1(4, 0, IPV4)), (16, DESTINATION, SOURCE, IPV4), "without an address");
        assert_eq!(made(276, &v2(0, 6, 4)), (20, DESTINATION, sender, 60), "802.2 has its length there");
        assert_eq!(
            framed(113, &v1(0, 6, 0x000c)).unwrap_err(),
            NoHeader::Packet("protocol 0x000c, which Ethernet does not carry".into())
        );
        let mut netlink = v1(4, 0, 4);
        netlink[2..4].copy_from_slice(&824u16.to_be_bytes());
        let what = "hardware of kind 824, whose packets Ethernet does not carry";
        assert_eq!(framed(113, &netlink).unwrap_err(), NoHeader::Packet(what.into()));
        assert_eq!(framed(113, &netlink[..16]).unwrap(), Framed::Empty);
    }

    #[test]
    fn what_has_no_payload_is_empty_and_other_links_are_refused() {
        for (link_type, header) in
            [(0, 4), (9, 2), (12, 0), (50, 2), (51, 0), (101, 0), (108, 4), (113, 16), (228, 0), (229, 0), (276, 20)]
        {
            let mut whole = [0; 32];
            // Headers that name IPv4, where they name anything.
            whole[..4].copy_from_slice(&[0, 0, 0, 2]);
            if let 9 | 50 = link_type {
                whole[..2].copy_from_slice(&[0, 0x21]);
            }
            if let 113 | 276 = link_type {
                let at = if link_type == 113 { 14 } else { 0 };
                whole[at..at + 2].copy_from_slice(&IPV4.to_be_bytes());
            }
            for len in 0..=header {
                assert_eq!(framed(link_type, &whole[..len]).unwrap(), Framed::Empty, "{len} bytes of link type {link_type}");
            }
        }
        assert_eq!(framed(1, &[]).unwrap(), Framed::AsItIs);
        assert_eq!(framed(105, &[0; 99]).unwrap_err(), NoHeader::LinkType);
        assert_eq!((name(113), name(7777)), (" (Linux cooked)".into(), String::new()));
        assert_eq!(framed(101, &[0x75]).unwrap_err(), NoHeader::Packet("IP version 7".into()));
    }
}
