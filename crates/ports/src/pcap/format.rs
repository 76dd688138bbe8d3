//! The two formats of a written capture, with times in nanoseconds, in little-endian order.
//!
//! A pcap file has no place for words. A pcapng file has two interfaces, so that it says of each
//! packet whether its Ethernet header was made for the replay.
//!
//! Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

use std::ops::Range;
use std::path::Path;

use crate::capture::ETHERNET;
use crate::origin::FrameOrigin;

/// Bytes before a packet.
const PCAP_HEAD: usize = 16;
const PCAPNG_HEAD: usize = 28;

/// The largest packet that tools expect. Packets are not cut when they are written.
const SNAP_LEN: u32 = 262_144;

/// Blocks of pcapng.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;

/// Interfaces of a pcapng file, by number: what the name has behind that of the port, and what the
/// packets are.
const INTERFACES: [(&str, &str); 2] = [
    ("", "Packets as they left their chains"),
    ("-made", "Packets whose Ethernet header was made for the replay: the link that they were captured on has none"),
];

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    Pcap,
    Pcapng,
}

impl FileFormat {
    /// That of a file of this name: pcapng for `.pcapng`, pcap for all others.
    pub fn of(path: &Path) -> Self {
        let is_ng = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pcapng"));
        if is_ng { Self::Pcapng } else { Self::Pcap }
    }

    /// What the file of a port begins with.
    pub fn header(self, port: &str) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Pcap => {
                // Magic for nanoseconds, version 2.4, UTC, largest snap length.
                for word in [0xa1b2_3c4du32, 2 | 4 << 16, 0, 0, SNAP_LEN, ETHERNET] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Self::Pcapng => {
                // Byte order, version 1.0, and a length that is not known yet.
                let mut body = [&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &u64::MAX.to_le_bytes()].concat();
                option(&mut body, 4, concat!("sluiced ", env!("CARGO_PKG_VERSION")).as_bytes());
                option(&mut body, 0, &[]);
                block(&mut out, SECTION, &body);
                for (suffix, what) in INTERFACES {
                    let mut body = [&ETHERNET.to_le_bytes()[..], &SNAP_LEN.to_le_bytes()].concat();
                    option(&mut body, 2, format!("{port}{suffix}").as_bytes());
                    option(&mut body, 3, what.as_bytes());
                    // Negative powers of ten.
                    option(&mut body, 9, &[9]);
                    option(&mut body, 0, &[]);
                    block(&mut out, INTERFACE, &body);
                }
            }
        }
        out
    }

    /// Bytes that a packet of `len` bytes takes in the file.
    #[inline(always)]
    pub fn size(self, len: usize) -> usize {
        match self {
            Self::Pcap => PCAP_HEAD + len,
            Self::Pcapng => PCAPNG_HEAD + len.next_multiple_of(4) + 4,
        }
    }

    /// Where in its record the bytes of a packet of `len` bytes are.
    #[inline(always)]
    pub fn bytes(self, len: usize) -> Range<usize> {
        let head = match self {
            Self::Pcap => PCAP_HEAD,
            Self::Pcapng => PCAPNG_HEAD,
        };
        head..head + len
    }

    /// Writes what is around the bytes of a packet of `len` bytes. `record` has its
    /// [size](Self::size).
    #[inline(always)]
    pub(crate) fn wrap(self, record: &mut [u8], len: u16, origin: FrameOrigin) {
        let FrameOrigin { time_ns, missing, is_made } = origin;
        let (caught, original) = (u32::from(len), u32::from(len).saturating_add(missing));
        match self {
            Self::Pcap => {
                let (seconds, nanoseconds) = ((time_ns / 1_000_000_000) as u32, (time_ns % 1_000_000_000) as u32);
                fill(record, &[seconds, nanoseconds, caught, original]);
            }
            Self::Pcapng => {
                let size = record.len();
                let (high, low) = ((time_ns >> 32) as u32, time_ns as u32);
                fill(record, &[PACKET, size as u32, u32::from(is_made), high, low, caught, original]);
                record[PCAPNG_HEAD + usize::from(len)..size - 4].fill(0);
                fill(&mut record[size - 4..], &[size as u32]);
            }
        }
    }
}

/// Writes words at the beginning of a slice.
#[inline(always)]
fn fill(out: &mut [u8], words: &[u32]) {
    for (slot, word) in out.chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
}

/// Adds a block around a body, whose length is a multiple of four.
fn block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let len = (body.len() as u32 + 12).to_le_bytes();
    out.extend_from_slice(&[&kind.to_le_bytes()[..], &len, body, &len].concat());
}

/// Adds an option to the body of a block.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    // A name is cut before it breaks the block.
    let value = &value[..value.len().min(u16::MAX.into())];
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[test]
    fn the_name_of_a_file_chooses_its_format() {
        for (name, wanted) in [
            ("a.pcapng", FileFormat::Pcapng),
            ("/x.pcap/A.PCAPNG", FileFormat::Pcapng),
            ("a.pcap", FileFormat::Pcap),
            ("pcapng", FileFormat::Pcap),
            ("/dev/null", FileFormat::Pcap),
        ] {
            assert_eq!(FileFormat::of(Path::new(name)), wanted, "{name}");
        }
    }

    #[test]
    fn another_implementation_reads_a_pcapng_to_the_nanosecond() {
        let mut file = FileFormat::Pcapng.header("out");
        for len in 0..9u16 {
            let at = file.len();
            file.resize(at + FileFormat::Pcapng.size(len.into()), 0xee);
            let record = &mut file[at..];
            record[FileFormat::Pcapng.bytes(len.into())].fill(7);
            let time_ns = 1_700_000_000_123_456_789 + u64::from(len);
            FileFormat::Pcapng.wrap(record, len, FrameOrigin { time_ns, missing: 1000, is_made: len % 2 == 1 });
        }
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let (mut names, mut lens) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(interface) => {
                    assert!(interface.options.contains(&InterfaceDescriptionOption::IfTsResol(9)), "{:?}", interface.options);
                    names.extend(interface.options.iter().filter_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    }));
                }
                Block::EnhancedPacket(packet) => {
                    let len = packet.data.len() as u32;
                    assert!(packet.data.iter().all(|byte| *byte == 7), "{:?}", packet.data);
                    assert_eq!((packet.interface_id, packet.original_len), (len % 2, len + 1000));
                    assert_eq!(packet.timestamp.as_nanos(), 1_700_000_000_123_456_789 + u128::from(len));
                    lens.push(len);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((names.join(" ").as_str(), lens), ("out out-made", (0..9).collect::<Vec<u32>>()));
    }

    #[test]
    fn the_time_and_the_original_length_are_in_a_pcap() {
        let mut record = [0; 20];
        FileFormat::Pcap.wrap(&mut record, 4, FrameOrigin { time_ns: 5_000_000_006, missing: u32::MAX, is_made: true });
        let words: Vec<u32> = record.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [5, 6, 4, u32::MAX, 0]);
    }
}
