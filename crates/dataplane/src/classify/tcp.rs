//! TCP header flags, behind headers of any length.

pub use sluice_policy::tcp::{ACK, FIN, RST, SYN};

use super::key::{is_extension, link};

const FLAGS: usize = 13;

/// Whether NFs are woken at once for these flags, which end a connection or half of it.
#[inline(always)]
pub fn is_urgent(flags: u8) -> bool {
    flags & (FIN | RST) != 0
}

/// Flags of a whole TCP packet, from its first bytes; `None` if they end before.
#[inline]
pub fn flags(bytes: &[u8]) -> Option<u8> {
    // IPv4 without options or tags.
    if let Some([0x08, 0x00, 0x45]) = bytes.get(12..15) {
        return bytes.get(14 + 20 + FLAGS).copied();
    }
    flags_of_any(bytes)
}

#[cold]
fn flags_of_any(bytes: &[u8]) -> Option<u8> {
    let (_, ethertype, ip) = link(bytes)?;
    let mut at = match ethertype {
        0x0800 => ip + usize::from(bytes.get(ip)? & 0xf) * 4,
        0x86dd => ip + 40,
        _ => return None,
    };
    if ethertype == 0x86dd {
        let mut next = *bytes.get(ip + 6)?;
        // The key was parsed from the same headers, so they end; and each step moves forward.
        while is_extension(next) {
            let length = if next == 44 { 8 } else { 8 + usize::from(*bytes.get(at + 1)?) * 8 };
            next = *bytes.get(at)?;
            at += length;
        }
    }
    bytes.get(at + FLAGS).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN_ACK: u8 = 0x12;

    /// A TCP packet, given the bytes between the MAC addresses and TCP.
    fn packet(between: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 12];
        packet.extend(between);
        packet.extend([0; 13]);
        packet.push(SYN_ACK);
        packet
    }

    fn v4(options: usize) -> Vec<u8> {
        let mut header = vec![0; 20 + options];
        header[0] = 0x45 + (options / 4) as u8;
        header
    }

    fn v6(next: u8, extensions: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 40];
        (header[0], header[6]) = (0x60, next);
        header.extend(extensions);
        header
    }

    #[test]
    fn flags_are_found_behind_all_that_may_stand_before() {
        let tagged = |tags: usize| [&[0x81, 0x00, 0, 5].repeat(tags)[..], &[0x08, 0x00]].concat();
        let hop_by_hop = [6, 1].into_iter().chain([0; 14]).collect::<Vec<u8>>();
        let fragment = [0, 0].into_iter().chain([0; 6]).chain([6, 0]).chain([0; 6]).collect::<Vec<u8>>();
        for between in [
            [tagged(0), v4(0)],
            [tagged(0), v4(12)],
            [tagged(1), v4(0)],
            [tagged(2), v4(4)],
            [vec![0x86, 0xdd], v6(6, &[])],
            [vec![0x86, 0xdd], v6(0, &hop_by_hop)],
            [vec![0x86, 0xdd], v6(44, &fragment)],
        ] {
            let packet = packet(&between.concat());
            assert_eq!(flags(&packet), Some(SYN_ACK), "{packet:?}");
            assert!((0..packet.len()).all(|n| flags(&packet[..n]).is_none()), "{packet:?}");
        }
    }
}
