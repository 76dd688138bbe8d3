//! Blocks of pcapng, in little-endian order.
//!
//! Format: draft-ietf-opsawg-pcapng.

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// Options of all blocks.
const COMMENT: u16 = 1;
const END: u16 = 0;

/// The direction in which a packet passes an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// A packet.
#[derive(Debug, Clone, Copy)]
pub struct PacketBlock<'a> {
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    pub len: u32,
    /// Its first bytes.
    pub bytes: &'a [u8],
    /// Its [options](packet_options).
    pub options: &'a [u8],
    /// Packets of the interface that were missed since the one before it.
    pub missed: u64,
}

/// What was counted at an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceCounts {
    /// Packets that came by, whether or not they were missed.
    pub seen: u64,
    /// Packets that there was no room for.
    pub missed: u64,
    /// Packets that were written.
    pub written: u64,
}

/// Writes a block around what `body` writes.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
}

/// Fills up to a multiple of four bytes.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&[0; 3][..len.next_multiple_of(4) - len]);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    // The words of this program are short; a name is cut before it breaks the block.
    let value = &value[..value.len().min(u16::MAX.into())];
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn time(out: &mut Vec<u8>, at_ns: u64) {
    out.extend_from_slice(&((at_ns >> 32) as u32).to_le_bytes());
    out.extend_from_slice(&(at_ns as u32).to_le_bytes());
}

/// The header of the file.
pub fn section(out: &mut Vec<u8>, program: &str) {
    block(out, SECTION, |out| {
        out.extend_from_slice(&0x1a2b_3c4du32.to_le_bytes());
        out.extend_from_slice(&[1, 0, 0, 0]);
        // Its length is not known yet.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, 4, program.as_bytes());
        option(out, END, &[]);
    });
}

/// An interface with times in nanoseconds. The first one has number 0.
pub fn interface(out: &mut Vec<u8>, name: &str, snaplen: u16) {
    block(out, INTERFACE, |out| {
        out.extend_from_slice(&ETHERNET.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&u32::from(snaplen).to_le_bytes());
        option(out, 2, name.as_bytes());
        // Negative powers of ten.
        option(out, 9, &[9]);
        option(out, END, &[]);
    });
}

/// The options of packets with this comment and direction.
pub fn packet_options(comment: &str, direction: Option<Direction>) -> Vec<u8> {
    let mut options = Vec::new();
    option(&mut options, COMMENT, comment.as_bytes());
    if let Some(direction) = direction {
        option(&mut options, 2, &(direction as u32).to_le_bytes());
    }
    options
}

pub fn packet(out: &mut Vec<u8>, packet: &PacketBlock<'_>) {
    block(out, PACKET, |out| {
        let (high, low) = ((packet.at_ns >> 32) as u32, packet.at_ns as u32);
        let head = [packet.interface, high, low, packet.bytes.len() as u32, packet.len];
        out.extend_from_slice(head.map(u32::to_le_bytes).as_flattened());
        out.extend_from_slice(packet.bytes);
        pad(out, packet.bytes.len());
        out.extend_from_slice(packet.options);
        if packet.missed > 0 {
            option(out, 4, &packet.missed.to_le_bytes());
        }
        option(out, END, &[]);
    });
}

pub fn statistics(out: &mut Vec<u8>, interface: u32, at_ns: u64, counts: InterfaceCounts) {
    block(out, STATISTICS, |out| {
        out.extend_from_slice(&interface.to_le_bytes());
        time(out, at_ns);
        option(out, 4, &counts.seen.to_le_bytes());
        option(out, 5, &counts.missed.to_le_bytes());
        option(out, 6, &counts.written.to_le_bytes());
        option(out, END, &[]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a stream: kind and body.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut all = Vec::new();
        let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        while !bytes.is_empty() {
            let len = word(bytes, 4) as usize;
            assert!(len.is_multiple_of(4) && word(bytes, len - 4) as usize == len, "{len}");
            all.push((word(bytes, 0), bytes[8..len - 4].to_vec()));
            bytes = &bytes[len..];
        }
        all
    }

    #[test]
    fn a_packet_is_written_to_the_byte() {
        let mut out = Vec::new();
        let options = packet_options("nf", Some(Direction::Outbound));
        packet(
            &mut out,
            &PacketBlock { interface: 3, at_ns: 0x1_0000_0002, len: 60, bytes: &[1, 2, 3, 4, 5], options: &options, missed: 9 },
        );
        #[rustfmt::skip]
        let wanted: &[u8] = &[
            6, 0, 0, 0, 72, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 60, 0, 0, 0,
            1, 2, 3, 4, 5, 0, 0, 0,
            1, 0, 2, 0, b'n', b'f', 0, 0, 2, 0, 4, 0, 2, 0, 0, 0, 4, 0, 8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            72, 0, 0, 0,
        ];
        assert_eq!(out, wanted);
    }

    #[test]
    fn blocks_follow_each_other_whatever_the_lengths() {
        let mut out = Vec::new();
        section(&mut out, "sluiced 0.1.0");
        for name in ["", "a", "ab", "abc", "port:lan"] {
            interface(&mut out, name, 100);
        }
        for len in 0..9 {
            let bytes = vec![7; len];
            packet(&mut out, &PacketBlock { interface: 0, at_ns: 1, len: 60, bytes: &bytes, options: &[], missed: 0 });
        }
        statistics(&mut out, 0, 5, InterfaceCounts { seen: 3, missed: 1, written: 2 });
        let kinds: Vec<u32> = blocks(&out).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [&[SECTION][..], &[INTERFACE; 5], &[PACKET; 9], &[STATISTICS]].concat());
        let (_, last) = blocks(&out).pop().unwrap();
        assert_eq!(last[12..28], [4, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 8, 0]);
    }
}
