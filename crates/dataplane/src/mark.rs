//! The congestion mark: sets CE on packets whose senders support ECN.
//!
//! # Terms
//! ECT: the low bits of the traffic class are 01 or 10, "ECN-capable transport". CE: they are 11,
//! "congestion experienced". With 00 the sender does not support ECN; the packet is not changed.
//!
//! # Limits
//! Packets with up to two VLAN tags are marked; IP inside tunnels is not.
//!
//! Source: RFC 3168, sections 5 and 6; the checksum update is RFC 1624, equation 3.

use sluice_shm::arena::Arena;
use sluice_shm::descriptor::Descriptor;

/// Bytes that are read: Ethernet, two tags, and the relevant part of an IP header.
const LOOK: usize = 14 + 8 + 12;
const CE: u8 = 3;

/// Marks the packets of a burst that can be marked; returns how many were.
#[cold]
pub fn mark(arena: &Arena, burst: &[Descriptor]) -> u64 {
    burst.iter().filter(|d| mark_one(arena, d)).count() as u64
}

fn mark_one(arena: &Arena, descriptor: &Descriptor) -> bool {
    let mut header = [0; LOOK];
    let len = (descriptor.len as usize).min(LOOK);
    if !arena.read(descriptor.frame, descriptor.offset, &mut header[..len]) {
        return false;
    }
    let Some((at, changed, n)) = marked(&header[..len]) else { return false };
    arena.write(descriptor.frame, descriptor.offset + at as u16, &changed[..n])
}

/// The change that marks a packet: offset, bytes and their number; `None` if it is not possible.
fn marked(packet: &[u8]) -> Option<(usize, [u8; 12], usize)> {
    let mut at = 12;
    let mut ethertype = word(packet, at)?;
    for _ in 0..2 {
        if matches!(ethertype, 0x8100 | 0x88a8) {
            at += 4;
            ethertype = word(packet, at)?;
        }
    }
    let ip = at + 2;
    match ethertype {
        0x0800 => {
            let mut header: [u8; 12] = packet.get(ip..ip + 12)?.try_into().ok()?;
            if header[0] >> 4 != 4 || !is_capable(header[1]) {
                return None;
            }
            let before = u16::from_be_bytes([header[0], header[1]]);
            header[1] |= CE;
            let after = u16::from_be_bytes([header[0], header[1]]);
            let checksum = u16::from_be_bytes([header[10], header[11]]);
            header[10..12].copy_from_slice(&update(checksum, before, after).to_be_bytes());
            Some((ip, header, header.len()))
        }
        // The class spans two bytes; its low bits are 4 and 5 of the second. There is no checksum.
        0x86dd => {
            let (first, second) = (*packet.get(ip)?, *packet.get(ip + 1)?);
            let mut changed = [0; 12];
            changed[0] = second | CE << 4;
            (first >> 4 == 6 && is_capable(second >> 4)).then_some((ip + 1, changed, 1))
        }
        _ => None,
    }
}

/// ECT(0) or ECT(1).
fn is_capable(class: u8) -> bool {
    matches!(class & CE, 1 | 2)
}

fn word(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?))
}

/// A header's checksum after one of its words has changed.
fn update(checksum: u16, before: u16, after: u16) -> u16 {
    let mut sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, tags and an IP header with this traffic class, for IPv4 with a valid checksum.
    fn packet(tags: usize, v6: bool, class: u8) -> Vec<u8> {
        let mut packet = vec![0; 12];
        for _ in 0..tags {
            packet.extend([0x81, 0, 0, 5]);
        }
        if v6 {
            packet.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4 | 0xb, 1, 2]);
            packet.extend([0; 36]);
        } else {
            packet.extend([8, 0]);
            let mut header = [0x45, class, 0, 60, 0x1c, 0x46, 0x40, 0, 0x40, 6, 0, 0, 0xac, 16, 10, 99, 0xac, 16, 10, 12];
            let sum = !sum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            packet.extend(header);
        }
        packet
    }

    fn sum(header: &[u8]) -> u16 {
        let mut sum: u32 = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn after(packet: &[u8]) -> Option<Vec<u8>> {
        let (at, bytes, n) = marked(&packet[..packet.len().min(LOOK)])?;
        let mut packet = packet.to_vec();
        packet[at..at + n].copy_from_slice(&bytes[..n]);
        Some(packet)
    }

    #[test]
    fn capable_packets_are_marked_and_their_checksums_hold() {
        for tags in 0..=2 {
            for class in 0..=255u8 {
                let ip = 14 + 4 * tags;
                let four = packet(tags, false, class);
                let six = packet(tags, true, class);
                if matches!(class & 3, 1 | 2) {
                    let four = after(&four).unwrap();
                    assert_eq!(four[ip + 1], class | 3);
                    assert_eq!(sum(&four[ip..]), 0xffff, "class {class}");
                    let six = after(&six).unwrap();
                    assert_eq!(six[ip..ip + 4], [0x60 | class >> 4, (class | 3) << 4 | 0xb, 1, 2]);
                } else {
                    assert_eq!((after(&four), after(&six)), (None, None), "class {class}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_ip_or_cut_short_is_left_alone() {
        let whole = packet(1, false, 1);
        for len in 0..18 + 12 {
            assert_eq!(after(&whole[..len]), None, "{len} bytes");
        }
        let mut arp = packet(0, false, 1);
        arp[13] = 6;
        assert_eq!(after(&arp), None);
        let mut lie = packet(0, true, 1);
        lie[14] = 0x45;
        assert_eq!(after(&lie), None);
    }
}
