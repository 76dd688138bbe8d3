//! Segmentation offload in software: cuts large segments into packets, and merges them again.
//!
//! # Problem
//! A host that sends TCP through a veth pair hands over segments of up to 64 KiB and leaves cutting
//! and checksums to missing hardware. Frames hold one packet, and NFs expect packets as on a wire.
//!
//! # Approach
//! [`Cut`] makes the headers of each packet: lengths, sequence number, identification, checksums.
//! [`Headers::follows`] checks whether one packet continues another, and [`Headers::merge`] makes
//! one large segment of them. For a device without this offload the kernel cuts what is sent, and a
//! receiver on this host takes it whole. So the stacks at both ends handle one large segment
//! instead of forty packets.
//!
//! # Limits
//! TCP and UDP directly in IPv4 or IPv6, also behind VLAN tags; no tunnels. Packets are merged only
//! if they are neighbours in a burst, differ only in position and the push flag, and have right
//! checksums: replacing a wrong checksum by a right one would hide an NF's error.
//!
//! Source: the kernel's `include/uapi/linux/virtio_net.h`, `net/ipv4/tcp_offload.c`; RFC 1624.

/// Bytes of the longest headers: Ethernet with two tags, IPv4 or IPv6 and TCP with options.
pub(crate) const MAX_HEADERS: usize = 256;
/// Most packets that one large segment is cut into.
pub(crate) const MAX_SEGMENTS: usize = 128;

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 1;
const PUSH: u8 = 8;
const ACK: u8 = 16;
const CONGESTION_REDUCED: u8 = 128;

/// Kind of a large segment, as in a `virtio_net_hdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    Tcp4,
    Tcp6,
    /// Consecutive UDP datagrams of one size.
    Udp,
}

impl Offload {
    /// From `gso_type` without its congestion flag; `None` for kinds that are not cut here.
    pub(crate) fn from_kind(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Tcp4),
            4 => Some(Self::Tcp6),
            5 => Some(Self::Udp),
            _ => None,
        }
    }

    /// Its value in `gso_type`.
    pub fn kind(self) -> u8 {
        match self {
            Self::Tcp4 => 1,
            Self::Tcp6 => 4,
            Self::Udp => 5,
        }
    }
}

/// The sum of big-endian 16-bit words, not folded, over up to 128 KiB.
pub fn sum(bytes: &[u8]) -> u64 {
    // In native order, which compiles to vector code; the byte order is corrected at the end.
    let words = bytes.chunks_exact(4);
    let rest = words.remainder();
    let mut sum = words.map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))).sum::<u64>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_ne_bytes(last));
    u64::from(u16::from_be(fold(sum)))
}

/// The sum folded to 16 bits, in the byte order of its words.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// A private copy of a packet's headers, with their offsets.
#[derive(Debug, Clone, Copy)]
pub struct Headers {
    bytes: [u8; MAX_HEADERS],
    ip: usize,
    /// Offset of the TCP or UDP header.
    transport: usize,
    /// Offset of the payload.
    end: usize,
    is_v6: bool,
    protocol: u8,
}

impl Headers {
    /// The headers of an untunnelled TCP or UDP packet in IPv4 or IPv6. `start` begins the packet
    /// and has at least its headers. `None` for fragments, and IPv6 with extension headers.
    pub fn parse(start: &[u8]) -> Option<Self> {
        let mut ip = ETHERNET;
        let mut kind = u16_at(start.get(..ip)?, 12);
        while matches!(kind, 0x8100 | 0x88a8) && ip < ETHERNET + 8 {
            ip += 4;
            kind = u16_at(start.get(..ip)?, ip - 2);
        }
        let header = start.get(ip..)?;
        let (is_v6, length, protocol) = match kind {
            0x0800 => {
                let first = *header.get(..20)?.first()?;
                let length = usize::from(first & 15) * 4;
                // More fragments, or not the first one.
                let is_fragment = u16_at(header, 6) & 0x3fff != 0;
                if first >> 4 != 4 || length < 20 || is_fragment {
                    return None;
                }
                (false, length, header[9])
            }
            0x86dd if header.get(..40)?[0] >> 4 == 6 => (true, 40, header[6]),
            _ => return None,
        };
        let transport = ip + length;
        let header = start.get(transport..)?;
        let length = match protocol {
            TCP => usize::from(header.get(..20)?[12] >> 4) * 4,
            UDP => header.get(..8).map(|_| 8)?,
            _ => return None,
        };
        let end = transport + length;
        if (protocol == TCP && length < 20) || end > start.len() || end > MAX_HEADERS {
            return None;
        }
        let mut bytes = [0; MAX_HEADERS];
        bytes[..end].copy_from_slice(&start[..end]);
        Some(Self { bytes, ip, transport, end, is_v6, protocol })
    }

    /// The bytes from the Ethernet header up to the payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    pub fn ip(&self) -> usize {
        self.ip
    }

    pub fn transport(&self) -> usize {
        self.transport
    }

    /// Whether the receiver must deliver it at once.
    pub(crate) fn is_pushed(&self) -> bool {
        self.flags() & PUSH != 0
    }

    /// Bytes of payload by the IP header; `None` if it covers less than the headers.
    pub fn payload(&self) -> Option<usize> {
        let total = match self.is_v6 {
            false => self.ip + usize::from(u16_at(&self.bytes, self.ip + 2)),
            true => self.ip + 40 + usize::from(u16_at(&self.bytes, self.ip + 4)),
        };
        total.checked_sub(self.end)
    }

    fn flags(&self) -> u8 {
        self.bytes[self.transport + 13]
    }

    fn sequence(&self) -> u32 {
        u32_at(&self.bytes, self.transport + 4)
    }

    fn checksum_at(&self) -> usize {
        self.transport + if self.protocol == TCP { 16 } else { 6 }
    }

    /// The sum of addresses, protocol and length, which checksums of TCP and UDP cover.
    fn pseudo(&self, payload: usize) -> u64 {
        let addresses = if self.is_v6 { self.ip + 8..self.ip + 40 } else { self.ip + 12..self.ip + 20 };
        sum(&self.bytes[addresses]) + u64::from(self.protocol) + (self.end - self.transport + payload) as u64
    }

    /// Whether the TCP or UDP checksum is right for this payload.
    pub(crate) fn is_right(&self, payload: &[u8]) -> bool {
        // Headers have an even length, so the payload's words are the packet's.
        let all = self.pseudo(payload.len()) + sum(&self.bytes[self.transport..self.end]) + sum(payload);
        fold(all) == 0xffff
    }

    /// Whether packets may be appended: TCP with payload, not at either end of a connection.
    pub(crate) fn may_lead(&self) -> bool {
        self.protocol == TCP && self.flags() & !PUSH == ACK && !self.has_ip_surprises()
    }

    /// IPv4 options cannot be part of a large segment.
    fn has_ip_surprises(&self) -> bool {
        !self.is_v6 && self.bytes[self.ip] != 0x45
    }

    /// Whether a packet continues this one after `payload` bytes: its headers differ only in
    /// position, lengths, checksums, identification and the push flag.
    pub fn follows(&self, next: &Self, payload: usize) -> bool {
        if (self.end, self.ip, self.transport, self.is_v6) != (next.end, next.ip, next.transport, next.is_v6) || !next.may_lead() {
            return false;
        }
        let same = |from: usize, to: usize| self.bytes[from..to] == next.bytes[from..to];
        let (ip, tcp) = (self.ip, self.transport);
        let is_same_ip = match self.is_v6 {
            // Not length (2), identification (4), checksum (10).
            false => same(ip, ip + 2) && same(ip + 6, ip + 10) && same(ip + 12, tcp),
            // Not the length (4).
            true => same(ip, ip + 4) && same(ip + 6, tcp),
        };
        // Not sequence (4), flags (13), checksum (16).
        is_same_ip
            && same(0, ip)
            && same(tcp, tcp + 4)
            && same(tcp + 8, tcp + 13)
            && same(tcp + 14, tcp + 16)
            && same(tcp + 18, self.end)
            && next.sequence() == self.sequence().wrapping_add(payload as u32)
    }

    /// Takes over the push flag of an appended packet.
    pub(crate) fn absorb(&mut self, next: &Self) {
        self.bytes[self.transport + 13] |= next.flags() & PUSH;
    }

    /// Makes these the headers of a large segment with `payload` bytes. Leaves the TCP checksum
    /// open, as the sum from which the kernel continues.
    pub fn merge(&mut self, payload: usize) {
        self.set_lengths(payload);
        let open = fold(self.pseudo(payload));
        put(&mut self.bytes, self.transport + 16, open);
    }

    /// Kind of a large segment with these headers.
    pub(crate) fn offload(&self) -> Offload {
        if self.is_v6 { Offload::Tcp6 } else { Offload::Tcp4 }
    }

    fn set_lengths(&mut self, payload: usize) {
        let length = self.end - self.ip + payload;
        if self.is_v6 {
            put(&mut self.bytes, self.ip + 4, (length - 40) as u16);
        } else {
            put(&mut self.bytes, self.ip + 2, length as u16);
            put(&mut self.bytes, self.ip + 10, 0);
            let sum = !fold(sum(&self.bytes[self.ip..self.transport]));
            put(&mut self.bytes, self.ip + 10, sum);
        }
        if self.protocol == UDP {
            put(&mut self.bytes, self.transport + 4, (8 + payload) as u16);
        }
    }
}

/// A large segment to cut.
#[derive(Debug)]
pub struct Cut<'a> {
    headers: Headers,
    payload: &'a [u8],
    size: usize,
}

impl<'a> Cut<'a> {
    /// Parses a large segment: its bytes, kind, payload bytes of each packet (`gso_size`), and
    /// start of its checksum (`csum_start`). `None` if it cannot be cut here.
    pub fn of(bytes: &'a [u8], offload: Offload, size: u16, start: usize) -> Option<Self> {
        let headers = Headers::parse(bytes)?;
        let protocol = if offload == Offload::Udp { UDP } else { TCP };
        // Any other start is that of a header within a tunnel.
        if headers.transport != start || headers.protocol != protocol || size == 0 {
            return None;
        }
        let payload = &bytes[headers.end..];
        let cut = Self { headers, payload, size: size.into() };
        (cut.segments() <= MAX_SEGMENTS).then_some(cut)
    }

    /// Number of its packets.
    pub fn segments(&self) -> usize {
        self.payload.len().div_ceil(self.size).max(1)
    }

    pub fn largest(&self) -> usize {
        self.headers.end + self.payload.len().min(self.size)
    }

    /// Headers and payload of a packet, by its index.
    pub fn segment(&self, number: usize) -> (Headers, &'a [u8]) {
        let begin = self.payload.len().min(number * self.size);
        let payload = &self.payload[begin..self.payload.len().min(begin + self.size)];
        let mut headers = self.headers;
        if !headers.is_v6 {
            let at = headers.ip + 4;
            let id = u16_at(&headers.bytes, at).wrapping_add(number as u16);
            put(&mut headers.bytes, at, id);
        }
        headers.set_lengths(payload.len());
        if headers.protocol == TCP {
            let sequence = headers.sequence().wrapping_add(begin as u32);
            let at = headers.transport + 4;
            headers.bytes[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
            let flags = &mut headers.bytes[headers.transport + 13];
            // Only the first reports that the sender slowed down; only the last ends or pushes.
            if number > 0 {
                *flags &= !CONGESTION_REDUCED;
            }
            if number + 1 < self.segments() {
                *flags &= !(FIN | PUSH);
            }
        }
        let at = headers.checksum_at();
        put(&mut headers.bytes, at, 0);
        let all = headers.pseudo(payload.len()) + sum(&headers.bytes[headers.transport..headers.end]) + sum(payload);
        let checksum = match !fold(all) {
            // In UDP 0 means "none"; both values are equal in sums.
            0 => u16::MAX,
            checksum => checksum,
        };
        put(&mut headers.bytes, at, checksum);
        (headers, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

    fn tcp(v6: bool, sequence: u32, payload: &[u8], push: bool) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let ip = if v6 { link.ipv6([1; 16], [2; 16], 9) } else { link.ipv4([10, 0, 0, 1], [10, 0, 1, 1], 9) };
        let mut tcp = ip.tcp(1000, 2000, sequence, 500).ack(77);
        if push {
            tcp = tcp.psh();
        }
        let tcp = tcp.options(&[etherparse::TcpOptionElement::Timestamp(5, 6)]).unwrap();
        let mut bytes = Vec::new();
        tcp.write(&mut bytes, payload).unwrap();
        bytes
    }

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    /// Checks lengths and checksums with another parser, and returns TCP sequence and payload.
    fn check(packet: &[u8]) -> (u32, Vec<u8>, bool) {
        let sliced = SlicedPacket::from_ethernet(packet).unwrap();
        match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                assert_eq!(usize::from(header.total_len), packet.len() - 14);
            }
            Some(NetSlice::Ipv6(ip)) => assert_eq!(usize::from(ip.header().payload_length()), packet.len() - 54),
            other => panic!("{other:?}"),
        }
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!() };
        let header = tcp.to_header();
        let sum = match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => header.calc_checksum_ipv4(&ip.header().to_header(), tcp.payload()).unwrap(),
            Some(NetSlice::Ipv6(ip)) => header.calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap(),
            _ => unreachable!(),
        };
        assert_eq!(header.checksum, sum);
        (header.sequence_number, tcp.payload().to_vec(), header.psh)
    }

    fn assemble(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        [headers.bytes(), payload].concat()
    }

    #[test]
    fn a_large_segment_is_cut_into_packets_that_another_parser_finds_right() {
        for v6 in [false, true] {
            for len in [1448 * 3, 1448 * 3 + 1, 1449, 20_001] {
                let sent = payload(len);
                let whole = tcp(v6, u32::MAX - 1000, &sent, true);
                let offload = if v6 { Offload::Tcp6 } else { Offload::Tcp4 };
                let cut = Cut::of(&whole, offload, 1448, if v6 { 54 } else { 34 }).unwrap();
                assert_eq!(cut.segments(), len.div_ceil(1448));
                let mut got = Vec::new();
                for number in 0..cut.segments() {
                    let (headers, part) = cut.segment(number);
                    let packet = assemble(&headers, part);
                    assert!(packet.len() <= cut.largest());
                    let (sequence, bytes, push) = check(&packet);
                    assert_eq!(sequence, (u32::MAX - 1000).wrapping_add(got.len() as u32));
                    assert_eq!(push, number + 1 == cut.segments());
                    got.extend(bytes);
                }
                assert_eq!(got, sent);
            }
        }
    }

    #[test]
    fn what_was_cut_is_put_together_again() {
        for v6 in [false, true] {
            let sent = payload(1448 * 4 + 5);
            let whole = tcp(v6, 7, &sent, true);
            let transport = if v6 { 54 } else { 34 };
            let cut = Cut::of(&whole, if v6 { Offload::Tcp6 } else { Offload::Tcp4 }, 1448, transport).unwrap();
            let (mut all, first) = cut.segment(0);
            assert!(all.may_lead() && all.is_right(first));
            let mut bytes = first.to_vec();
            for number in 1..cut.segments() {
                let (next, part) = cut.segment(number);
                assert!(next.is_right(part) && all.follows(&next, bytes.len()));
                all.absorb(&next);
                bytes.extend(part);
            }
            all.merge(bytes.len());
            assert_eq!((all.offload(), all.transport()), (if v6 { Offload::Tcp6 } else { Offload::Tcp4 }, transport));
            // The kernel completes the checksum; then it is the segment that was sent.
            let mut merged = assemble(&all, &bytes);
            let checksum = !fold(sum(&merged[transport..]));
            merged[transport + 16..transport + 18].copy_from_slice(&checksum.to_be_bytes());
            assert_eq!(merged, whole);
        }
    }

    #[test]
    fn what_does_not_continue_a_packet_is_not_put_behind_it() {
        let parse = |packet: &[u8]| Headers::parse(packet).unwrap();
        let (sent, size) = (payload(100), 100);
        let first = parse(&tcp(false, 0, &sent, false));
        assert!(first.follows(&parse(&tcp(false, 100, &sent, true)), size));
        assert!(!first.follows(&parse(&tcp(false, 101, &sent, false)), size), "a gap");
        assert!(!first.follows(&parse(&tcp(true, 100, &sent, false)), size), "another protocol");
        let mut other = tcp(false, 100, &sent, false);
        // Port, acknowledgement, window, timestamp, address, MAC, TTL, TOS: each alone matters.
        for at in [34, 42, 48, 60, 29, 3, 22, 15] {
            other[at] ^= 1;
            assert!(!first.follows(&parse(&other), size), "byte {at}");
            other[at] ^= 1;
        }
        for flag in [1, 2, 4, 32, 64, 128] {
            other[47] ^= flag;
            assert!(!first.follows(&parse(&other), size) && !parse(&other).may_lead(), "flag {flag}");
            other[47] ^= flag;
        }
        assert!(parse(&other).is_right(&sent));
        assert!(!parse(&other).is_right(&payload(99)), "a checksum that is wrong");
    }

    #[test]
    fn what_is_no_plain_tcp_or_udp_is_not_cut() {
        let whole = tcp(false, 0, &payload(5000), false);
        assert!(Cut::of(&whole, Offload::Tcp4, 0, 34).is_none(), "no size");
        assert!(Cut::of(&whole, Offload::Tcp4, 10, 34).is_none(), "too many packets");
        assert!(Cut::of(&whole, Offload::Tcp4, 1448, 84).is_none(), "in a tunnel");
        assert!(Cut::of(&whole, Offload::Udp, 1448, 34).is_none(), "another protocol");
        for len in 0..whole.len().min(80) {
            let _ = Headers::parse(&whole[..len]);
        }
        assert!(Headers::parse(&whole[..65]).is_none(), "headers that are cut off");
    }

    #[test]
    fn datagrams_behind_each_other_are_cut() {
        let mut whole = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 1, 1], 9).udp(1000, 2000);
        builder.write(&mut whole, &payload(2500)).unwrap();
        let cut = Cut::of(&whole, Offload::Udp, 1000, 34).unwrap();
        let lens: Vec<usize> = (0..cut.segments())
            .map(|number| {
                let (headers, part) = cut.segment(number);
                let packet = assemble(&headers, part);
                let sliced = SlicedPacket::from_ethernet(&packet).unwrap();
                let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (&sliced.net, &sliced.transport) else { panic!() };
                let header = udp.to_header();
                let ip = ip.header().to_header();
                assert_eq!(header.checksum, header.calc_checksum_ipv4(&ip, udp.payload()).unwrap());
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                udp.payload().len()
            })
            .collect();
        assert_eq!(lens, [1000, 1000, 500]);
    }

    #[test]
    fn sums_of_any_length_are_those_of_the_words() {
        for len in 0..70 {
            let bytes = payload(len);
            let mut padded = bytes.clone();
            padded.resize(len.next_multiple_of(2), 0);
            let plain: u64 = padded.chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            assert_eq!(fold(sum(&bytes)), fold(plain), "{len}");
        }
    }
}
