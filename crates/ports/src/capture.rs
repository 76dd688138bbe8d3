//! Capture files, decoded: the packets of a pcap or pcapng file, in order, with their times.
//!
//! A file is decoded as a whole before anything starts, and an incomplete file is refused: a replay
//! is either exactly the capture or nothing. Available libraries refuse valid files (packets cut by
//! a snap length, times in powers of two, big-endian time offsets) or skip what they do not know
//! (obsolete packet blocks), and do not report where a file is broken. The tests compare this
//! decoder with one.
//!
//! Supported: pcap with microseconds or nanoseconds, also with the longer records of Kuznetzov's
//! patch, in both byte orders; pcapng with any number of sections and interfaces, in both byte
//! orders; enhanced, simple and obsolete packet blocks. Other blocks are skipped. Packets of other
//! link types than Ethernet get an Ethernet header where one can be made (`capture/link.rs`).
//! Messages give offsets in bytes from the start of the file, and count packets from 1.
//!
//! Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

mod link;

use std::collections::HashMap;

use link::{Framed, Header, NoHeader};
use sluice_shm::arena::{HEADROOM, MAX_STRIDE};

/// Most bytes of a file: positions are 32 bits wide.
pub const MAX_BYTES: u64 = u32::MAX as u64;

/// Most bytes of a packet that tools write (libpcap's MAXIMUM_SNAPLEN). A longer record is broken.
const MAX_PACKET: u32 = 262_144;

/// LINKTYPE_ETHERNET.
pub const ETHERNET: u32 = 1;

/// A packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Time since the first packet in nanoseconds; never decreases.
    pub due_ns: u64,
    /// Nanoseconds since 1970, as recorded, as far as 64 bits hold them; without a time of its own
    /// that of the packet before.
    pub time_ns: u64,
    /// Bytes at its end that the file does not hold.
    pub missing: u32,
    at: u32,
    /// Number of bytes in the file, at least 1.
    len: u16,
    /// Which of the made headers comes before them, counted from 1; 0: none.
    header: u16,
}

impl Record {
    /// Whether its Ethernet header is made.
    #[inline(always)]
    pub fn is_made(&self) -> bool {
        self.header > 0
    }
}

#[derive(Debug, Default)]
pub struct Capture {
    bytes: Vec<u8>,
    headers: Vec<Header>,
    /// The packets, in order, without empty ones.
    pub records: Vec<Record>,
    /// Packets of which the file holds only the first part.
    pub cut: u64,
    /// Packets of which the file holds no byte, or none behind the link header: they cannot be
    /// sent.
    pub empty: u64,
    /// Packets whose Ethernet header is made.
    pub made: u64,
}

impl Capture {
    /// The bytes of a packet: a header that was made for it, empty for most, and what is in the
    /// file.
    #[inline(always)]
    pub fn parts_of(&self, record: &Record) -> [&[u8]; 2] {
        let header = self.headers.get(usize::from(record.header).wrapping_sub(1)).map_or(&[][..], |header| header);
        // The range was in the file when the record was made.
        let bytes = self.bytes.get(record.at as usize..record.at as usize + usize::from(record.len));
        [header, bytes.unwrap_or_default()]
    }
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The file is neither pcap nor pcapng.
    #[error("not a pcap or pcapng file{hint}; convert it with `editcap -F pcapng`")]
    Unknown { hint: &'static str },
    /// The file ends in the middle.
    #[error(
        "cut short: the file ends at byte {end}, in the {what} that starts at byte {at}, after {packets} whole packets; \
         copy it again, or keep the whole packets with `editcap`"
    )]
    CutShort { what: &'static str, at: usize, end: usize, packets: u64 },
    /// A length or number in the file is invalid.
    #[error("broken at byte {at}, after {packets} whole packets: {what}; keep the packets before it with `editcap`")]
    Broken { at: usize, packets: u64, what: String },
    /// Packets of this link type have no Ethernet header, and none can be made.
    #[error(
        "packet {packet} has link type {number}{}; Ethernet, raw IP, loopback, PPP and Linux cooked can be replayed: capture on one \
         of these, or, where the file names a wrong one, set another with `editcap -T`",
        link::name(*number)
    )]
    LinkType {
        /// Its number in the file.
        packet: u64,
        /// Number in the registry of link types.
        number: u32,
    },
    /// No Ethernet header can be made for a packet.
    #[error("packet {packet} of link type {number}{} has {what}; keep the others with `editcap`", link::name(*number))]
    NoHeader {
        /// Its number in the file.
        packet: u64,
        number: u32,
        what: String,
    },
    /// A packet does not fit in a frame.
    #[error("packet {packet} has {len} bytes, more than a frame holds; {advice}")]
    TooLarge {
        packet: u64,
        /// Bytes of the largest packet.
        len: u32,
        advice: String,
    },
}

/// Decodes a file. `room` is the largest packet that a frame holds, in bytes.
///
/// # Errors
/// [`CaptureError`]: the file is no capture, incomplete, or has packets that cannot be replayed.
pub fn decode(bytes: Vec<u8>, room: usize) -> Result<Capture, CaptureError> {
    let mut decoder = Decoder { bytes: &bytes, big_endian: false, packets: Packets::default() };
    match bytes.first_chunk::<4>().map(|magic| u32::from_le_bytes(*magic)) {
        None => return Err(decoder.cut_short("file header", 0)),
        Some(SECTION) => decoder.pcapng()?,
        Some(magic) => {
            let (big_endian, magic) = match magic {
                0xd4c3_b2a1 | 0x4d3c_b2a1 | 0x34cd_b2a1 => (true, magic.swap_bytes()),
                _ => (false, magic),
            };
            decoder.big_endian = big_endian;
            match magic {
                0xa1b2_c3d4 => decoder.pcap(1000, 16)?,
                0xa1b2_3c4d => decoder.pcap(1, 16)?,
                0xa1b2_cd34 => decoder.pcap(1000, 24)?,
                _ => {
                    let hint = match bytes.as_slice() {
                        [0x1f, 0x8b, ..] => " (it is compressed with gzip: unpack it first)",
                        [0x28, 0xb5, 0x2f, 0xfd, ..] => " (it is compressed with zstd: unpack it first)",
                        _ => "",
                    };
                    return Err(CaptureError::Unknown { hint });
                }
            }
        }
    }
    let Packets { records, headers, cut, empty, made, largest: (largest, packet), .. } = decoder.packets;
    if largest as usize > room.min(MAX_STRIDE - HEADROOM) {
        let most = MAX_STRIDE - HEADROOM;
        let advice = if largest as usize > most {
            format!("no frame can hold more than {most}; cut the packets with `editcap -s {most}`")
        } else {
            format!("set memory.packet_bytes to at least {largest}")
        };
        return Err(CaptureError::TooLarge { packet, len: largest, advice });
    }
    Ok(Capture { bytes, headers, records, cut, empty, made })
}

#[derive(Debug, Default)]
struct Packets {
    records: Vec<Record>,
    headers: Vec<Header>,
    numbers: HashMap<Header, u16>,
    count: u64,
    cut: u64,
    empty: u64,
    made: u64,
    /// Size and number of the largest one.
    largest: (u32, u64),
    first_ns: Option<i128>,
    due_ns: u64,
    time_ns: u64,
}

/// A packet as a file has it.
struct Found {
    link_type: u32,
    at: usize,
    /// Bytes in the file, and bytes that the packet had.
    caught: u32,
    len: u32,
    /// Nanoseconds since 1970. Without, it follows the packet before at once.
    time_ns: Option<i128>,
}

impl Packets {
    /// Adds a packet with these bytes.
    fn add(&mut self, found: &Found, bytes: &[u8]) -> Result<(), CaptureError> {
        let &Found { link_type, at, caught, len, time_ns } = found;
        self.count += 1;
        let packet = self.count;
        let refuse = |what| CaptureError::NoHeader { packet, number: link_type, what };
        let framed = link::framed(link_type, bytes).map_err(|why| match why {
            NoHeader::LinkType => CaptureError::LinkType { packet, number: link_type },
            NoHeader::Packet(what) => refuse(what),
        })?;
        let (skip, header) = match framed {
            Framed::AsItIs => (0, 0),
            Framed::Empty => (bytes.len(), 0),
            Framed::Made { skip, header } => {
                let number = self.number_of(header).ok_or_else(|| refuse("a header unlike those of 65,535 others".into()))?;
                (skip, number)
            }
        };
        if let Some(time) = time_ns {
            let since = time - *self.first_ns.get_or_insert(time);
            self.due_ns = self.due_ns.max(since.clamp(0, u64::MAX.into()) as u64);
            self.time_ns = time.clamp(0, u64::MAX.into()) as u64;
        }
        self.cut += u64::from(caught < len);
        let left = caught - skip as u32;
        if left == 0 {
            self.empty += 1;
            return Ok(());
        }
        let made = if header > 0 { size_of::<Header>() as u32 } else { 0 };
        self.made += u64::from(header > 0);
        if left + made > self.largest.0 {
            self.largest = (left + made, self.count);
        }
        // A packet of 64 KiB or more makes the whole file refused at the end.
        let len = left.min(u16::MAX.into()) as u16;
        let missing = found.len.saturating_sub(caught);
        self.records.push(Record { due_ns: self.due_ns, time_ns: self.time_ns, missing, at: (at + skip) as u32, len, header });
        Ok(())
    }

    /// The number of a made header, counted from 1; none if there are too many.
    fn number_of(&mut self, header: Header) -> Option<u16> {
        if let Some(number) = self.numbers.get(&header) {
            return Some(*number);
        }
        let number = u16::try_from(self.headers.len() + 1).ok()?;
        self.headers.push(header);
        self.numbers.insert(header, number);
        Some(number)
    }
}

/// pcapng block types.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

#[derive(Debug, Clone)]
struct Interface {
    link_type: u32,
    snap_len: u32,
    /// Units of time in a second.
    units: u128,
    /// Seconds to add.
    offset: i64,
}

struct Decoder<'a> {
    bytes: &'a [u8],
    big_endian: bool,
    packets: Packets,
}

impl Decoder<'_> {
    fn u32(&self, at: usize) -> u32 {
        let bytes = self.bytes.get(at..at + 4).and_then(|b| b.first_chunk()).copied().unwrap_or_default();
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn u16(&self, at: usize) -> u16 {
        let bytes = self.bytes.get(at..at + 2).and_then(|b| b.first_chunk()).copied().unwrap_or_default();
        if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    fn cut_short(&self, what: &'static str, at: usize) -> CaptureError {
        CaptureError::CutShort { what, at, end: self.bytes.len(), packets: self.packets.count }
    }

    fn broken(&self, at: usize, what: String) -> CaptureError {
        CaptureError::Broken { at, packets: self.packets.count, what }
    }

    /// Adds a packet, whose bytes lie in the file.
    fn add(&mut self, found: &Found) -> Result<(), CaptureError> {
        self.packets.add(found, &self.bytes[found.at..found.at + found.caught as usize])
    }

    /// Decodes a header and records. `unit_ns` is the unit of the fraction of a second.
    fn pcap(&mut self, unit_ns: u32, header: usize) -> Result<(), CaptureError> {
        let end = self.bytes.len();
        if end < 24 {
            return Err(self.cut_short("file header", 0));
        }
        // The upper bits describe a frame check sequence.
        let link_type = self.u32(20) & 0xffff;
        let mut at = 24;
        while at < end {
            if end - at < header {
                return Err(self.cut_short("header of a packet", at));
            }
            let (seconds, fraction) = (self.u32(at), self.u32(at + 4));
            let (caught, len) = (self.u32(at + 8), self.u32(at + 12));
            if caught > MAX_PACKET {
                return Err(self.broken(at, format!("a packet of {caught} bytes")));
            }
            if end - at - header < caught as usize {
                return Err(self.cut_short("packet", at));
            }
            let time = i128::from(seconds) * 1_000_000_000 + i128::from(fraction) * i128::from(unit_ns);
            self.add(&Found { link_type, at: at + header, caught, len, time_ns: Some(time) })?;
            at += header + caught as usize;
        }
        Ok(())
    }

    fn pcapng(&mut self) -> Result<(), CaptureError> {
        let end = self.bytes.len();
        let mut interfaces: Vec<Interface> = Vec::new();
        let mut at = 0;
        while at < end {
            if end - at < 12 {
                return Err(self.cut_short("header of a block", at));
            }
            // A section's type reads the same in both orders; its third word gives the order.
            let section = self.u32(at) == SECTION;
            if section {
                self.big_endian = match self.bytes.get(at + 8..at + 12) {
                    Some([0x1a, 0x2b, 0x3c, 0x4d]) => true,
                    Some([0x4d, 0x3c, 0x2b, 0x1a]) => false,
                    _ => return Err(self.broken(at, "a section of no known byte order".into())),
                };
            }
            let (kind, len) = (self.u32(at), self.u32(at + 4) as usize);
            if len < 12 || len % 4 != 0 || section && len < 28 {
                return Err(self.broken(at, format!("a block of {len} bytes")));
            }
            if end - at < len {
                return Err(self.cut_short("block", at));
            }
            let again = self.u32(at + len - 4) as usize;
            if again != len {
                return Err(self.broken(at, format!("a block of {len} bytes that says {again} at its end")));
            }
            match kind {
                SECTION => {
                    let version = self.u16(at + 12);
                    if version != 1 {
                        return Err(self.broken(at, format!("pcapng version {version}, and only version 1 is known")));
                    }
                    interfaces.clear();
                }
                INTERFACE => interfaces.push(self.interface(at, len)?),
                ENHANCED_PACKET | OBSOLETE_PACKET => self.packet(at, len, kind, &interfaces)?,
                SIMPLE_PACKET => self.simple_packet(at, len, &interfaces)?,
                _ => {}
            }
            at += len;
        }
        Ok(())
    }

    fn interface(&self, start: usize, len: usize) -> Result<Interface, CaptureError> {
        if len < 20 {
            return Err(self.broken(start, format!("an interface block of {len} bytes")));
        }
        let mut interface =
            Interface { link_type: self.u16(start + 8).into(), snap_len: self.u32(start + 12), units: 1_000_000, offset: 0 };
        let (mut at, end) = (start + 16, start + len - 4);
        while at + 4 <= end {
            let (code, option_len) = (self.u16(at), usize::from(self.u16(at + 2)));
            let value = at + 4;
            if code == 0 {
                break;
            }
            if value + option_len > end {
                return Err(self.broken(at, format!("an option of {option_len} bytes that its block does not hold")));
            }
            match (code, option_len) {
                // if_tsresol: a negative power of 10, or of 2 if the highest bit is set.
                (9, 1) => {
                    let byte = self.bytes[value];
                    let power = u32::from(byte & 0x7f);
                    interface.units = if byte & 0x80 == 0 { 10u128.checked_pow(power) } else { 1u128.checked_shl(power) }
                        .filter(|units| *units <= u128::from(u64::MAX))
                        .ok_or_else(|| self.broken(at, format!("a time resolution of {byte:#x}")))?;
                }
                // if_tsoffset.
                (14, 8) => {
                    let (first, second) = (u64::from(self.u32(value)), u64::from(self.u32(value + 4)));
                    let offset = if self.big_endian { first << 32 | second } else { second << 32 | first };
                    interface.offset = offset as i64;
                }
                _ => {}
            }
            at = value + option_len.next_multiple_of(4);
        }
        Ok(interface)
    }

    /// An enhanced or obsolete packet block: only the width of the interface number differs.
    fn packet(&mut self, at: usize, len: usize, kind: u32, interfaces: &[Interface]) -> Result<(), CaptureError> {
        if len < 32 {
            return Err(self.broken(at, format!("a packet block of {len} bytes")));
        }
        let number = if kind == ENHANCED_PACKET { self.u32(at + 8) } else { self.u16(at + 8).into() };
        let Some(interface) = interfaces.get(number as usize) else {
            return Err(self.broken(at, format!("a packet of interface {number}, which the section has not described")));
        };
        let ticks = u128::from(self.u32(at + 12)) << 32 | u128::from(self.u32(at + 16));
        let (caught, packet_len) = (self.u32(at + 20), self.u32(at + 24));
        if caught as usize > len - 32 {
            return Err(self.broken(at, format!("a packet of {caught} bytes in a block of {len}")));
        }
        // Below 2⁶⁴ ticks and 10⁹: no overflow.
        let time = (ticks * 1_000_000_000 / interface.units) as i128 + i128::from(interface.offset) * 1_000_000_000;
        self.add(&Found { link_type: interface.link_type, at: at + 28, caught, len: packet_len, time_ns: Some(time) })
    }

    /// A packet block without time, of the first interface, at most as long as the snap length.
    fn simple_packet(&mut self, at: usize, len: usize, interfaces: &[Interface]) -> Result<(), CaptureError> {
        let Some(interface) = interfaces.first().filter(|_| len >= 16) else {
            return Err(self.broken(at, format!("a simple packet block of {len} bytes, or without an interface")));
        };
        let packet_len = self.u32(at + 8);
        let snap_len = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
        let caught = packet_len.min(snap_len);
        if caught as usize > len - 16 {
            return Err(self.broken(at, format!("a packet of {caught} bytes in a block of {len}")));
        }
        self.add(&Found { link_type: interface.link_type, at: at + 12, caught, len: packet_len, time_ns: None })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
    use pcap_file::{DataLink, Endianness, TsResolution};
    use proptest::prelude::*;
    use std::borrow::Cow;
    use std::time::Duration;

    const ROOM: usize = 2112;

    /// A packet of a test: nanoseconds since 1970, bytes, and bytes cut by the snap length.
    pub type Wanted = (u64, Vec<u8>, u32);

    pub fn packets() -> impl Strategy<Value = Vec<Wanted>> {
        let packet =
            (0u64..3_600_000_000_000, proptest::collection::vec(any::<u8>(), 0..200), prop_oneof![3 => Just(0u32), 1 => 1u32..99]);
        proptest::collection::vec(packet, 0..60)
            .prop_map(|all| all.into_iter().map(|(time, bytes, cut)| (1_600_000_000_000_000_000 + time, bytes, cut)).collect())
    }

    /// A pcap file, made by another implementation.
    pub fn pcap_of(packets: &[Wanted], endianness: Endianness, ts_resolution: TsResolution) -> Vec<u8> {
        let header = PcapHeader { snaplen: 300, endianness, ts_resolution, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for (time, bytes, cut) in packets {
            writer.write_packet(&PcapPacket::new(Duration::from_nanos(*time), bytes.len() as u32 + cut, bytes)).unwrap();
        }
        writer.into_writer()
    }

    struct Blocks {
        big_endian: bool,
        bytes: Vec<u8>,
    }

    impl Blocks {
        fn new(big_endian: bool) -> Self {
            let mut blocks = Self { big_endian, bytes: Vec::new() };
            blocks.section();
            blocks
        }

        fn section(&mut self) {
            let version = if self.big_endian { [0, 1, 0, 0] } else { [1, 0, 0, 0] };
            let body = [&self.word(0x1a2b_3c4d)[..], &version, &[0xff; 8]].concat();
            self.block(SECTION, &body);
        }

        fn word(&self, word: u32) -> [u8; 4] {
            if self.big_endian { word.to_be_bytes() } else { word.to_le_bytes() }
        }

        fn half(&self, half: u16) -> [u8; 2] {
            if self.big_endian { half.to_be_bytes() } else { half.to_le_bytes() }
        }

        fn block(&mut self, kind: u32, body: &[u8]) {
            let len = self.word(12 + body.len().next_multiple_of(4) as u32);
            let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
            self.bytes.extend([&self.word(kind)[..], &len, body, &padding, &len].concat());
        }

        fn interface(&mut self, link_type: u16, snap_len: u32, resolution: Option<u8>, offset: Option<i64>) {
            let mut body = [&self.half(link_type)[..], &[0, 0], &self.word(snap_len)].concat();
            if let Some(resolution) = resolution {
                body.extend([&self.half(9)[..], &self.half(1), &[resolution, 0, 0, 0]].concat());
            }
            if let Some(offset) = offset {
                let offset = if self.big_endian { offset.to_be_bytes() } else { offset.to_le_bytes() };
                body.extend([&self.half(14)[..], &self.half(8), &offset].concat());
            }
            self.block(INTERFACE, &body);
        }

        fn packet(&mut self, kind: u32, interface: u32, ticks: u64, bytes: &[u8], len: u32) {
            let number = if kind == ENHANCED_PACKET {
                self.word(interface)
            } else {
                [self.half(interface as u16), self.half(7)].concat().try_into().unwrap()
            };
            let words = [(ticks >> 32) as u32, ticks as u32, bytes.len() as u32, len].map(|word| self.word(word));
            self.block(kind, &[&number[..], &words.concat(), bytes].concat());
        }
    }

    /// What the capture said of each packet: its time, and bytes that are missing.
    fn said(capture: &Capture) -> Vec<(u64, u32)> {
        capture.records.iter().map(|record| (record.time_ns, record.missing)).collect()
    }

    /// The same of packets that were written with times in units of `unit_ns`.
    fn wanted_said(packets: &[Wanted], unit_ns: u64) -> Vec<(u64, u32)> {
        let whole = packets.iter().filter(|(_, bytes, _)| !bytes.is_empty());
        whole.map(|(time, _, cut)| (time / unit_ns * unit_ns, *cut)).collect()
    }

    fn bytes_and_times(capture: &Capture) -> Vec<(Vec<u8>, u64)> {
        capture.records.iter().map(|record| (capture.parts_of(record).concat(), record.due_ns)).collect()
    }

    /// Expected result of a decoder, with times truncated to `unit_ns`.
    fn wanted(packets: &[Wanted], unit_ns: u64) -> Vec<(Vec<u8>, u64)> {
        let Some(first) = packets.first().map(|(time, ..)| time / unit_ns * unit_ns) else { return Vec::new() };
        let mut due = 0;
        let mut all = Vec::new();
        for (time, bytes, _) in packets {
            due = due.max((time / unit_ns * unit_ns).saturating_sub(first));
            if !bytes.is_empty() {
                all.push((bytes.clone(), due));
            }
        }
        all
    }

    proptest! {
        #[test]
        fn pcap_is_read_as_another_implementation_wrote_it(packets in packets(), big: bool, nano: bool) {
            let endianness = if big { Endianness::Big } else { Endianness::Little };
            let (resolution, unit) = if nano { (TsResolution::NanoSecond, 1) } else { (TsResolution::MicroSecond, 1000) };
            let capture = decode(pcap_of(&packets, endianness, resolution), ROOM).unwrap();
            prop_assert_eq!(bytes_and_times(&capture), wanted(&packets, unit));
            prop_assert_eq!(said(&capture), wanted_said(&packets, unit));
            prop_assert_eq!(capture.cut, packets.iter().filter(|(_, _, cut)| *cut > 0).count() as u64);
            prop_assert_eq!(capture.empty, packets.iter().filter(|(_, bytes, _)| bytes.is_empty()).count() as u64);
        }

        #[test]
        fn pcapng_is_read_as_another_implementation_wrote_it(packets in packets(), big: bool) {
            let endianness = if big { Endianness::Big } else { Endianness::Little };
            let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
            let options = vec![InterfaceDescriptionOption::IfTsResol(9)];
            writer.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 300, options }).unwrap();
            for (time, bytes, cut) in &packets {
                writer
                    .write_pcapng_block(EnhancedPacketBlock {
                        interface_id: 0,
                        timestamp: Duration::from_nanos(*time),
                        original_len: bytes.len() as u32 + cut,
                        data: Cow::Borrowed(bytes),
                        options: Vec::new(),
                    })
                    .unwrap();
            }
            let capture = decode(writer.into_inner(), ROOM).unwrap();
            prop_assert_eq!(bytes_and_times(&capture), wanted(&packets, 1));
            prop_assert_eq!(said(&capture), wanted_said(&packets, 1));
        }

        #[test]
        fn a_file_cut_anywhere_is_refused_or_ends_between_two_records(packets in packets(), ng: bool, at: prop::sample::Index) {
            let (whole, ends) = if ng {
                let mut blocks = Blocks::new(false);
                let mut ends = vec![blocks.bytes.len()];
                blocks.interface(1, 0, None, None);
                ends.push(blocks.bytes.len());
                for (time, bytes, cut) in &packets {
                    blocks.packet(ENHANCED_PACKET, 0, time / 1000, bytes, bytes.len() as u32 + cut);
                    ends.push(blocks.bytes.len());
                }
                (blocks.bytes, ends)
            } else {
                let size = |packets: &[Wanted]| packets.iter().map(|(_, bytes, _)| 16 + bytes.len()).sum::<usize>();
                let ends = (0..=packets.len()).map(|n| 24 + size(&packets[..n]));
                (pcap_of(&packets, Endianness::Little, TsResolution::MicroSecond), ends.collect())
            };
            let at = at.index(whole.len());
            match decode(whole[..at].to_vec(), ROOM) {
                Ok(_) => prop_assert!(ends.contains(&at)),
                Err(CaptureError::CutShort { end, .. }) => prop_assert!(end == at && !ends.contains(&at)),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }

        #[test]
        fn no_bytes_make_it_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
            start in 0usize..4,
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let mut blocks = Blocks::new(start == 3);
            blocks.interface(1, 65_535, Some(9), Some(-5));
            blocks.packet(ENHANCED_PACKET, 0, 1 << 40, &[1; 61], 61);
            blocks.packet(OBSOLETE_PACKET, 0, 1 << 41, &[2; 62], 100);
            blocks.block(SIMPLE_PACKET, &[60; 64]);
            let mut whole = match start {
                0 => Vec::new(),
                1 => pcap_of(&[(1, vec![3; 60], 0)], Endianness::Little, TsResolution::MicroSecond),
                _ => blocks.bytes,
            };
            whole.append(&mut bytes);
            for (at, byte) in changes {
                if !whole.is_empty() {
                    let at = at.index(whole.len());
                    whole[at] = byte;
                }
            }
            // Whatever it is, accepted packets lie in the file.
            if let Ok(capture) = decode(whole, ROOM) {
                prop_assert!(capture.records.iter().all(|record| capture.parts_of(record)[1].len() == usize::from(record.len)));
            }
        }
    }

    #[test]
    fn every_kind_of_block_and_clock_is_understood() {
        for big_endian in [false, true] {
            let mut blocks = Blocks::new(big_endian);
            blocks.interface(1, 0, None, None);
            blocks.interface(101, 0, None, None);
            // 2⁻¹⁰ seconds, an hour later.
            blocks.interface(1, 40, Some(0x8a), Some(3600));
            blocks.block(5, &[0; 8]);
            blocks.packet(ENHANCED_PACKET, 0, 1_000_000, b"one", 3);
            blocks.packet(OBSOLETE_PACKET, 0, 1_000_500, b"two", 3);
            blocks.block(0x0bad_cafe, &[9; 40]);
            blocks.packet(ENHANCED_PACKET, 2, 2048 + 512, b"four", 4);
            blocks.block(SIMPLE_PACKET, &[&blocks.word(5)[..], b"fiver"].concat());
            // Interface numbers restart with a section, and the byte order may change.
            blocks.big_endian = !big_endian;
            blocks.section();
            blocks.interface(1, 6, Some(3), None);
            blocks.packet(ENHANCED_PACKET, 0, 4_000_000, b"six", 9);
            blocks.block(SIMPLE_PACKET, &[&blocks.word(60)[..], b"sevens"].concat());
            let capture = decode(blocks.bytes, ROOM).unwrap();
            let hour = 3_600_000_000_000;
            let expected: [(&[u8], u64); 6] = [
                (b"one", 0),
                (b"two", 500_000),
                (b"four", hour + 1_500_000_000),
                (b"fiver", hour + 1_500_000_000),
                (b"six", hour + 399_000_000_000),
                (b"sevens", hour + 399_000_000_000),
            ];
            assert_eq!(bytes_and_times(&capture), expected.map(|(bytes, due)| (bytes.to_vec(), due)));
            assert_eq!((capture.cut, capture.empty), (2, 0));
            let times =
                [1_000_000_000, 1_000_500_000, hour + 2_500_000_000, hour + 2_500_000_000, 4_000_000_000_000, 4_000_000_000_000];
            let missing = [0, 0, 0, 0, 6, 54];
            assert_eq!(said(&capture), times.into_iter().zip(missing).collect::<Vec<_>>());
        }
    }

    #[test]
    fn times_before_1970_and_beyond_64_bits_stop_at_the_ends() {
        let mut blocks = Blocks::new(false);
        blocks.interface(1, 0, Some(0), Some(-9));
        blocks.packet(ENHANCED_PACKET, 0, 5, b"early", 5);
        blocks.packet(ENHANCED_PACKET, 0, u64::MAX, b"late", 4);
        let capture = decode(blocks.bytes, ROOM).unwrap();
        assert_eq!(said(&capture), [(0, 0), (u64::MAX, 0)]);
    }

    #[test]
    fn packets_of_other_links_get_an_ethernet_header_each() {
        let mut blocks = Blocks::new(false);
        for link_type in [101, 1, 113] {
            blocks.interface(link_type, 0, None, None);
        }
        let cooked = [&[0, 1, 0, 1, 0, 6, 4, 5, 6, 7, 8, 9, 0, 0, 8, 6][..], b"arp"].concat();
        blocks.packet(ENHANCED_PACKET, 0, 0, &[0x45, 1], 99);
        blocks.packet(ENHANCED_PACKET, 1, 0, b"as it is", 8);
        blocks.packet(ENHANCED_PACKET, 2, 0, &cooked, cooked.len() as u32);
        blocks.packet(ENHANCED_PACKET, 2, 0, &cooked[..16], 60);
        blocks.packet(ENHANCED_PACKET, 0, 0, &[0x46, 2], 2);
        let capture = decode(blocks.bytes, ROOM).unwrap();
        let ip = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        let arp = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 4, 5, 6, 7, 8, 9, 8, 6];
        let wanted =
            [[&ip[..], &[0x45, 1]].concat(), b"as it is".to_vec(), [&arp[..], b"arp"].concat(), [&ip[..], &[0x46, 2]].concat()];
        assert_eq!(bytes_and_times(&capture).into_iter().map(|(bytes, _)| bytes).collect::<Vec<_>>(), wanted);
        assert_eq!((capture.made, capture.cut, capture.empty, capture.headers.len()), (3, 2, 1, 2));
        // The made header counts for the room.
        let mut blocks = Blocks::new(false);
        blocks.interface(228, 0, None, None);
        blocks.packet(ENHANCED_PACKET, 0, 0, &[0x45; 100], 100);
        assert!(decode(blocks.bytes.clone(), 114).is_ok());
        let error = decode(blocks.bytes, 113).unwrap_err().to_string();
        assert_eq!(error, "packet 1 has 114 bytes, more than a frame holds; set memory.packet_bytes to at least 114");
    }

    #[test]
    fn the_longer_records_of_the_patched_format_are_understood() {
        let mut bytes = pcap_of(&[], Endianness::Little, TsResolution::MicroSecond);
        bytes[..4].copy_from_slice(&0xa1b2_cd34u32.to_le_bytes());
        for word in [1u32, 2, 5, 5, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"bytes");
        assert_eq!(bytes_and_times(&decode(bytes, ROOM).unwrap()), [(b"bytes".to_vec(), 0)]);
    }

    #[test]
    fn refusals_say_where_and_what_to_do() {
        let whole = pcap_of(&[(0, vec![1; 60], 0), (0, vec![2; 70], 0)], Endianness::Little, TsResolution::MicroSecond);
        let ng = |edit: &dyn Fn(&mut Blocks)| {
            let mut blocks = Blocks::new(false);
            edit(&mut blocks);
            blocks.bytes
        };
        let patched = |at: usize, with: &[u8]| {
            let mut bytes = whole.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            bytes
        };
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (Vec::new(), "ends at byte 0, in the file header"),
            (b"hello, world".to_vec(), "not a pcap or pcapng file;"),
            (vec![0x1f, 0x8b, 8, 0], "compressed with gzip"),
            (whole[..180].to_vec(), "ends at byte 180, in the packet that starts at byte 100, after 1 whole packets"),
            (whole[..110].to_vec(), "in the header of a packet that starts at byte 100"),
            (patched(32, &[0xff; 4]), "broken at byte 24, after 0 whole packets: a packet of 4294967295 bytes"),
            (patched(20, &[105]), "packet 1 has link type 105 (Wi-Fi); Ethernet, raw IP"),
            (patched(20, &[101]), "packet 1 of link type 101 (raw IP) has IP version 0; keep the others"),
            (ng(&|b| b.packet(ENHANCED_PACKET, 0, 0, b"x", 1)), "of interface 0, which the section has not described"),
            (
                ng(&|b| {
                    b.interface(249, 0, None, None);
                    b.packet(ENHANCED_PACKET, 0, 0, b"x", 1);
                }),
                "link type 249 (USB)",
            ),
            (ng(&|b| b.bytes[8] = 0), "a section of no known byte order"),
            (ng(&|b| b.bytes[4] = 27), "a block of 27 bytes"),
            (ng(&|b| b.bytes[24] = 1), "that says 1 at its end"),
            (ng(&|b| b.bytes[12] = 2), "pcapng version 2"),
            (ng(&|b| b.interface(1, 0, Some(20), None)), "a time resolution of 0x14"),
            (ng(&|b| b.bytes.truncate(20)), "in the block that starts at byte 0"),
        ];
        for (bytes, words) in cases {
            let error = decode(bytes, ROOM).unwrap_err().to_string();
            assert!(error.contains(words), "{error}, without {words}");
        }
        let large =
            pcap_of(&[(0, vec![1; 60], 0), (0, vec![2; 290], 0), (0, vec![2; 100], 0)], Endianness::Big, TsResolution::MicroSecond);
        let error = decode(large.clone(), 99).unwrap_err().to_string();
        assert_eq!(error, "packet 2 has 290 bytes, more than a frame holds; set memory.packet_bytes to at least 290");
        assert!(decode(large, 290).is_ok());
        let giant = ng(&|b| {
            b.interface(1, 0, None, None);
            b.packet(ENHANCED_PACKET, 0, 0, &[0; 70_000], 70_000);
        });
        assert!(decode(giant, ROOM).unwrap_err().to_string().ends_with("cut the packets with `editcap -s 65344`"));
    }
}
