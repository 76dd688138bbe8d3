//! From packet bytes to the key of a flow.
//!
//! Problem: find a packet's flow, at more than 25 million packets a second, from untrusted bytes.
//!
//! Terms: a [`FlowKey`] holds every field that a rule can match, so packets with the same key get
//! the same decision, which may be remembered. Its [`PacketKind`] says which fields are meaningful.
//!
//! Approach: IPv4 without options and IPv6 without extension headers, with at most one VLAN tag,
//! take a path of a few wide loads and one branch ([`FlowKey::parse_plain`]). It reads each byte
//! once, out of shared memory, and works on what it has read. All else takes a careful path, for
//! which the caller copies the first [`LONG`] bytes ([`FlowKey::parse`]).
//!
//! Special cases:
//! - Fragments, including the first, have ports 0: all fragments of a datagram have one key. A
//!   whole datagram with an IPv6 fragment header (an atomic fragment, RFC 6946) is not a fragment.
//! - AH, ESP, ICMP and all but TCP, UDP, UDP-Lite, DCCP and SCTP have ports 0.
//! - Packets that are not IP are distinguished by EtherType and MAC addresses. A frame with an
//!   802.3 length instead has EtherType 0.
//! - Of several VLAN tags the outer one counts.
//! - IP with contradictory headers, or which ends before its ports or has headers beyond [`LONG`]
//!   bytes, is [`PacketKind::Malformed`] and is treated as non-IP. A packet that lost only payload
//!   (a capture with a short snap length) is not malformed.
//!
//! Limits: tunnels are not parsed. Checksums are not verified. Nothing panics, whatever the bytes.

use sluice_api::protocol::{self, has_ports};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_shm::arena::Head;
use sluice_shm::descriptor::flags;

/// Bytes of a packet that the fast path reads at most: Ethernet, one VLAN tag, IPv6 and ports.
pub const SHORT: usize = 64;

/// Most bytes that are read: three VLAN tags, IPv6, about 200 bytes of extension headers.
pub const LONG: usize = 256;

const MAX_TAGS: usize = 4;

/// Most IPv6 extension headers that are skipped.
pub const MAX_EXTENSIONS: usize = 8;

const ETHERNET: usize = 14;

/// Shortest Ethernet frame, without FCS.
const SHORTEST: usize = 60;

/// EtherTypes, as loaded in little-endian order.
const V4: u16 = 0x0800u16.swap_bytes();
const V6: u16 = 0x86ddu16.swap_bytes();
const TAG: u16 = 0x8100u16.swap_bytes();

/// Kind of a packet. The numbers are those of the descriptor's flags, and one more bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    /// A whole IP packet.
    Ip = 0,
    /// A fragment of an IP packet.
    Fragment = flags::FRAGMENT,
    /// Not IP.
    NonIp = flags::NON_IP,
    /// Contradictory headers. Treated as non-IP.
    Malformed = flags::NON_IP | MALFORMED,
}

const MALFORMED: u8 = 1 << 7;

/// Whether this is an IPv6 extension header that is skipped: hop-by-hop, routing, fragment,
/// destination, mobility, HIP, shim6. AH counts as a protocol without ports.
#[inline(always)]
pub fn is_extension(next_header: u8) -> bool {
    matches!(next_header, 0 | 43 | 44 | 60 | 135 | 139 | 140)
}

/// The next-header number of an IPv6 fragment header.
pub const FRAGMENT_HEADER: u8 = 44;

/// Number of [`FlowKey`]'s words.
pub const WORDS: usize = 6;

/// Key of a flow: ingress port, VLAN, protocol, addresses, L4 ports, DSCP and kind.
///
/// Six words; each field has its place and all other bits are zero, so keys are equal iff the words
/// are. Words 0 and 1: source address; 2 and 3: destination (an IPv4 address in the low half of the
/// second word, a MAC address in its low six bytes); 4: L4 ports, ingress and VLAN; 5: protocol,
/// DSCP, kind, IP version and EtherType.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FlowKey {
    words: [u64; WORDS],
}

const _: () = assert!(size_of::<FlowKey>() == 48);

#[inline(always)]
fn tail(protocol: u8, dscp: u8, kind: PacketKind, version: u8, ethertype: u16) -> u64 {
    u64::from(protocol) | u64::from(dscp) << 8 | u64::from(kind as u8) << 16 | u64::from(version) << 24 | u64::from(ethertype) << 32
}

/// The fifth word. `ports` in network order, as in the packet.
#[inline(always)]
fn edge(ports: u32, ingress: u16, vlan: u16) -> u64 {
    u64::from(ports) | u64::from(ingress) << 32 | u64::from(vlan) << 48
}

#[inline(always)]
/// `N` bytes of a packet at `at`, if it has them.
pub fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[inline(always)]
/// Two bytes of a packet, most significant first.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    word(bytes, at).map(u16::from_be_bytes)
}

impl FlowKey {
    /// The key of a common packet: IPv4 without options or IPv6 without extension headers, at most
    /// one VLAN tag, no fragment. None: call [`FlowKey::parse`]. Bytes of the header beyond `len`
    /// are ignored, and each is read once.
    #[inline(always)]
    pub fn parse_plain(header: Head<'_, SHORT>, len: u16, ingress: u16) -> Option<Self> {
        match header.u16::<12>() {
            V4 => Self::plain_v4::<14, 22, 26, 34>(header, len, ingress, 0),
            V6 => Self::plain_v6::<14, 22, 30, 38, 46, 54>(header, len, ingress, 0),
            TAG => {
                let vlan = header.u16::<14>().swap_bytes() & 0xfff;
                match header.u16::<16>() {
                    V4 => Self::plain_v4::<18, 26, 30, 38>(header, len, ingress, vlan),
                    V6 => Self::plain_v6::<18, 26, 34, 42, 50, 58>(header, len, ingress, vlan),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The key of a packet that is no IP and has no VLAN tag, such as ARP. None: call
    /// [`FlowKey::parse`]. It reads the header anew, and only what it reads counts.
    #[inline]
    pub fn parse_other(header: Head<'_, SHORT>, len: u16, ingress: u16) -> Option<Self> {
        let ethertype = header.u16::<12>().swap_bytes();
        if matches!(ethertype, 0x0800 | 0x86dd) || is_tag(ethertype) || usize::from(len) < ETHERNET {
            return None;
        }
        let (to, from) = (header.u64::<0>().swap_bytes() >> 16, header.u64::<4>().swap_bytes() & ((1 << 48) - 1));
        let tail = tail(0, 0, PacketKind::NonIp, 0, without_length(ethertype));
        Some(Self { words: [0, from, 0, to, edge(0, ingress, 0), tail] })
    }

    /// IPv4 without options that is not a fragment. The parameters are the offsets of the IP
    /// header, time to live, source address and ports.
    #[inline(always)]
    fn plain_v4<const IP: usize, const TTL: usize, const SRC: usize, const PORTS: usize>(
        header: Head<'_, SHORT>,
        len: u16,
        ingress: u16,
        vlan: u16,
    ) -> Option<Self> {
        // Version, header length, TOS, total length, identification, fragment bits.
        let start = header.u64::<IP>();
        let protocol = (header.u16::<TTL>() >> 8) as u8;
        let total = ((start >> 16) as u16).swap_bytes();
        let ported = has_ports(protocol);
        let need = 20 + u16::from(ported) * 4;
        // More fragments, or an offset; byte order as loaded.
        let fragment = start >> 48 & 0xff3f;
        let plain = (start & 0xff == 0x45) & (fragment == 0) & (total >= need) & (len >= need + IP as u16);
        if !plain {
            return None;
        }
        let ports = header.u32::<PORTS>() & u32::from(ported).wrapping_neg();
        let addresses = header.u64::<SRC>().swap_bytes();
        let dscp = (start >> 10) as u8 & 0x3f;
        let tail = tail(protocol, dscp, PacketKind::Ip, 4, 0);
        Some(Self { words: [0, addresses >> 32, 0, addresses & 0xffff_ffff, edge(ports, ingress, vlan), tail] })
    }

    /// IPv6 without extension headers; parameters: offsets of header, halves of both addresses, and
    /// ports.
    #[inline(always)]
    fn plain_v6<const IP: usize, const SRC: usize, const SRC2: usize, const DST: usize, const DST2: usize, const PORTS: usize>(
        header: Head<'_, SHORT>,
        len: u16,
        ingress: u16,
        vlan: u16,
    ) -> Option<Self> {
        // Version, traffic class, flow label, payload length, next header, hop limit.
        let start = header.u64::<IP>().swap_bytes();
        let protocol = (start >> 8) as u8;
        let payload = (start >> 16) as u16;
        let ported = has_ports(protocol);
        let need = u16::from(ported) * 4;
        let known = ported | (protocol == protocol::ICMPV6);
        let plain = (start >> 60 == 6) & known & (payload >= need.max(1)) & (len >= need + 40 + IP as u16);
        if !plain {
            return None;
        }
        let ports = header.u32::<PORTS>() & u32::from(ported).wrapping_neg();
        let src = [header.u64::<SRC>().swap_bytes(), header.u64::<SRC2>().swap_bytes()];
        let dst = [header.u64::<DST>().swap_bytes(), header.u64::<DST2>().swap_bytes()];
        let dscp = (start >> 54) as u8 & 0x3f;
        let tail = tail(protocol, dscp, PacketKind::Ip, 6, 0);
        Some(Self { words: [src[0], src[1], dst[0], dst[1], edge(ports, ingress, vlan), tail] })
    }

    /// Key of a packet of `len` bytes from port `ingress`, given its first [`LONG`] bytes, or all.
    #[cold]
    pub fn parse(header: &[u8], len: u16, ingress: u16) -> Self {
        let bytes = &header[..header.len().min(len.into())];
        let Some((vlan, ethertype, ip)) = link(bytes) else { return Self::of_link(bytes, ingress, 0, 0, PacketKind::Malformed) };
        let found = match ethertype {
            0x0800 => v4(bytes, ip),
            0x86dd => v6(bytes, ip),
            _ => return Self::of_link(bytes, ingress, vlan, ethertype, PacketKind::NonIp),
        };
        match found {
            Some([src_high, src_low, dst_high, dst_low, ports, tail]) => {
                Self { words: [src_high, src_low, dst_high, dst_low, edge(ports as u32, ingress, vlan), tail] }
            }
            None => Self::of_link(bytes, ingress, vlan, ethertype, PacketKind::Malformed),
        }
    }

    fn of_link(bytes: &[u8], ingress: u16, vlan: u16, ethertype: u16, kind: PacketKind) -> Self {
        let mac = |at| word::<6>(bytes, at).map_or(0, |m| m.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)));
        Self { words: [0, mac(6), 0, mac(0), edge(0, ingress, vlan), tail(0, 0, kind, 0, ethertype)] }
    }

    /// The words, for hashing and storing the key.
    #[inline(always)]
    pub fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// The key with these words.
    #[inline]
    pub(crate) fn of_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// The key of all packets that differ from this one's in their DSCP alone.
    #[inline]
    pub(crate) fn without_dscp(mut self) -> Self {
        self.words[5] &= !0xff00;
        self
    }

    /// Kind of the packet.
    #[inline(always)]
    pub fn kind(&self) -> PacketKind {
        match (self.words[5] >> 16) as u8 {
            flags::FRAGMENT => PacketKind::Fragment,
            flags::NON_IP => PacketKind::NonIp,
            0 => PacketKind::Ip,
            _ => PacketKind::Malformed,
        }
    }

    /// The packet's descriptor flags: FRAGMENT and NON_IP.
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        (self.words[5] >> 16) as u8 & (flags::FRAGMENT | flags::NON_IP)
    }

    /// 4 or 6; 0 if the packet is not IP or malformed.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        (self.words[5] >> 24) as u8
    }

    /// Number of the ingress port.
    #[inline(always)]
    pub fn ingress(&self) -> u16 {
        (self.words[4] >> 32) as u16
    }

    /// Id of the outer VLAN tag; 0 if untagged.
    #[inline(always)]
    pub fn vlan(&self) -> u16 {
        (self.words[4] >> 48) as u16
    }

    /// IP protocol; 0 if the packet is not IP.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.words[5] as u8
    }

    /// DSCP, 0 to 63.
    #[inline(always)]
    pub fn dscp(&self) -> u8 {
        (self.words[5] >> 8) as u8
    }

    /// Source and destination MAC address, if the packet is not IP or malformed.
    pub fn macs(&self) -> Option<([u8; 6], [u8; 6])> {
        let mac = |word: u64| {
            let [_, _, mac @ ..] = word.to_be_bytes();
            mac
        };
        (self.version() == 0).then(|| (mac(self.words[1]), mac(self.words[3])))
    }

    /// EtherType behind the VLAN tags if the packet is not IP or malformed, else 0.
    #[inline(always)]
    pub fn ethertype(&self) -> u16 {
        (self.words[5] >> 32) as u16
    }

    /// Source and destination L4 port, if the packet has ports.
    #[inline(always)]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let whole = self.words[5] >> 16 & 0xff == PacketKind::Ip as u64;
        (whole & has_ports(self.protocol()))
            .then_some(((self.words[4] as u16).swap_bytes(), ((self.words[4] >> 16) as u16).swap_bytes()))
    }

    /// Source and destination address, if the packet is IP.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let [src_high, src_low, dst_high, dst_low, ..] = self.words;
        match self.version() {
            4 => Some((Ipv4Addr::from_bits(src_low as u32).into(), Ipv4Addr::from_bits(dst_low as u32).into())),
            6 => {
                let whole = |high, low| Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into();
                Some((whole(src_high, src_low), whole(dst_high, dst_low)))
            }
            _ => None,
        }
    }

    /// The key that both directions of the packet's connection share, and this packet's direction
    /// (0 or 1). Excludes ingress port and DSCP.
    #[inline]
    pub fn connection(&self) -> (Self, u8) {
        let [src_high, src_low, dst_high, dst_low, edge, tail] = self.words;
        let (src_port, dst_port) = (edge & 0xffff, edge >> 16 & 0xffff);
        let tail = tail & !0xff00;
        let vlan = edge & 0xffff << 48;
        if (src_high, src_low, src_port) <= (dst_high, dst_low, dst_port) {
            (Self { words: [src_high, src_low, dst_high, dst_low, vlan | dst_port << 16 | src_port, tail] }, 0)
        } else {
            (Self { words: [dst_high, dst_low, src_high, src_low, vlan | src_port << 16 | dst_port, tail] }, 1)
        }
    }

    /// The key of one direction of a connection: inverts [`FlowKey::connection`].
    pub fn of_connection(connection: &Self, direction: u8, ingress: u16, dscp: u8) -> Self {
        let [low_high, low_low, high_high, high_low, edge, tail] = connection.words;
        let (vlan, low_port, high_port) = (edge & 0xffff << 48, edge & 0xffff, edge >> 16 & 0xffff);
        let tail = tail | u64::from(dscp) << 8;
        let edge = vlan | u64::from(ingress) << 32;
        if direction == 0 {
            Self { words: [low_high, low_low, high_high, high_low, edge | high_port << 16 | low_port, tail] }
        } else {
            Self { words: [high_high, high_low, low_high, low_low, edge | low_port << 16 | high_port, tail] }
        }
    }

    /// Hash for the flow table. What is fixed in a key of IPv4 takes no part in its hash.
    #[inline(always)]
    pub fn hash(&self, keys: &HashKeys) -> u64 {
        let HashKeys(k) = keys;
        let w = &self.words;
        if self.version() == 4 {
            let addresses = w[1] << 32 | w[3];
            return fold(fold(addresses ^ k[0], w[4] ^ k[1]) ^ k[2], w[5] ^ k[3]);
        }
        let src = fold(w[0] ^ k[0], w[1] ^ k[1]);
        let dst = fold(w[2] ^ k[2], w[3] ^ k[3]);
        let rest = fold(w[4] ^ k[4], w[5] ^ k[5]);
        fold(src ^ dst.rotate_left(32) ^ k[6], rest ^ dst ^ k[7])
    }

    /// A hash that is equal for both directions of a flow, for spreading flows over queues and
    /// instances. It excludes ingress port and DSCP, and is the same in every process: threads that
    /// see one direction each agree on it.
    #[inline]
    pub fn symmetric_hash(&self) -> u32 {
        const A: u64 = 0x9e37_79b9_7f4a_7c15;
        const B: u64 = 0xbf58_476d_1ce4_e5b9;
        const C: u64 = 0x94d0_49bb_1331_11eb;
        let w = &self.words;
        let end = |high: u64, low: u64, port: u16| fold(high.wrapping_add(u64::from(port).wrapping_mul(C)) ^ A, low ^ B);
        let src = end(w[0], w[1], w[4] as u16);
        let dst = end(w[2], w[3], (w[4] >> 16) as u16);
        // The sum is symmetric.
        let rest = (w[4] & 0xffff << 48) ^ (w[5] & 0xffff_ffff_ffff_00ff);
        (fold(src.wrapping_add(dst) ^ C, rest ^ A) >> 32) as u32
    }
}

/// The secret key of [`FlowKey::hash`], so that no attacker can target one flow table bucket.
#[derive(Debug, Clone, Copy)]
pub struct HashKeys([u64; 8]);

impl HashKeys {
    /// Keys from a seed (SplitMix64).
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        }))
    }
}

/// Multiplies, and XORs the halves of the product.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Outer VLAN, EtherType behind the tags, and offset of what follows; `None` if cut off.
pub fn link(bytes: &[u8]) -> Option<(u16, u16, usize)> {
    let mut ethertype = u16_at(bytes, 12)?;
    let mut at = ETHERNET;
    let mut vlan = None;
    for _ in 0..MAX_TAGS {
        if !is_tag(ethertype) {
            break;
        }
        let tag = u16_at(bytes, at)?;
        vlan = vlan.or(Some(tag & 0xfff));
        ethertype = u16_at(bytes, at + 2)?;
        at += 4;
    }
    Some((vlan.unwrap_or(0), without_length(ethertype), at))
}

/// Whether this is the EtherType of a C-tag, an S-tag, or the S-tag used before 802.1ad.
#[inline(always)]
fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

/// An EtherType; 0 for what is a length, below 0x600, and differs between packets.
#[inline(always)]
fn without_length(ethertype: u16) -> u16 {
    if ethertype < 0x600 { 0 } else { ethertype }
}

/// Length in bytes of a packet from its Ethernet header on, as its IP header says, or the shortest
/// frame if it is not IP; `None` if the bytes end before.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let (_, ethertype, ip) = link(bytes)?;
    Some(match ethertype {
        0x0800 => ip + usize::from(u16_at(bytes, ip + 2)?),
        0x86dd => ip + 40 + usize::from(u16_at(bytes, ip + 4)?),
        _ => SHORTEST,
    })
}

/// The words of an IPv4 packet; the fifth holds only ports. None: the headers contradict
/// themselves, or the bytes end before them.
fn v4(bytes: &[u8], ip: usize) -> Option<[u64; WORDS]> {
    let head = word::<20>(bytes, ip)?;
    let header = usize::from(head[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if head[0] >> 4 != 4 || header < 20 || total < header {
        return None;
    }
    if bytes.len() < ip + header {
        return None;
    }
    let protocol = head[9];
    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
    let kind = if fragment { PacketKind::Fragment } else { PacketKind::Ip };
    let ports = if fragment { 0 } else { ports(bytes, protocol, ip + header, ip + total)? };
    let address = |at: usize| u64::from(u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    Some([0, address(12), 0, address(16), ports, tail(protocol, head[1] >> 2, kind, 4, 0)])
}

/// The words of an IPv6 packet; the fifth holds only ports.
fn v6(bytes: &[u8], ip: usize) -> Option<[u64; WORDS]> {
    let head = word::<40>(bytes, ip)?;
    if head[0] >> 4 != 6 {
        return None;
    }
    let payload = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let mut at = ip + 40;
    // 0 means a jumbogram (or a packet not segmented yet): it extends to the packet's end.
    let end = if payload == 0 { usize::MAX } else { at + payload };
    let mut next = head[6];
    let mut kind = PacketKind::Ip;
    let mut steps = 0;
    while is_extension(next) {
        steps += 1;
        if steps > MAX_EXTENSIONS || at + 8 > end {
            return None;
        }
        let extension = word::<8>(bytes, at)?;
        if next == FRAGMENT_HEADER {
            next = extension[0];
            // Nonzero offset, or more fragments.
            if u16::from_be_bytes([extension[2], extension[3]]) & 0xfff9 != 0 {
                kind = PacketKind::Fragment;
                break;
            }
            at += 8;
        } else {
            next = extension[0];
            at += 8 + usize::from(extension[1]) * 8;
        }
        if at > end {
            return None;
        }
        if at > bytes.len() {
            return None;
        }
    }
    let ports = if kind == PacketKind::Fragment { 0 } else { ports(bytes, next, at, end)? };
    let dscp = (head[0] & 0xf) << 2 | head[1] >> 6;
    let half = |at: usize| word::<8>(&head, at).map_or(0, u64::from_be_bytes);
    Some([half(8), half(16), half(24), half(32), ports, tail(next, dscp, kind, 6, 0)])
}

/// The ports behind the IP header, in network order, if the protocol has ports. They must lie
/// before `end`, the packet's end by its IP header: the rest is padding.
fn ports(bytes: &[u8], protocol: u8, at: usize, end: usize) -> Option<u64> {
    if !has_ports(protocol) {
        return Some(0);
    }
    if at + 4 > end {
        return None;
    }
    word(bytes, at).map(|ports| u64::from(u32::from_le_bytes(ports)))
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// For example `port 1 vlan 5 udp 10.0.0.1:53 > 10.0.0.2:1024 dscp 0`.
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} vlan {} ", self.ingress(), self.vlan())?;
        let Some((src, dst)) = self.addresses() else {
            let word = if self.kind() == PacketKind::NonIp { "non-ip" } else { "malformed" };
            return write!(f, "{word} {:04x} {:012x} > {:012x}", self.ethertype(), self.words[1], self.words[3]);
        };
        match self.protocol() {
            protocol::TCP => write!(f, "tcp ")?,
            protocol::UDP => write!(f, "udp ")?,
            protocol::ICMP => write!(f, "icmp ")?,
            protocol::ICMPV6 => write!(f, "icmpv6 ")?,
            other => write!(f, "protocol {other} ")?,
        }
        match self.ports() {
            Some((src_port, dst_port)) => {
                write!(f, "{} > {}", std::net::SocketAddr::new(src, src_port), std::net::SocketAddr::new(dst, dst_port))?;
            }
            None => write!(f, "{src} > {dst}")?,
        }
        if self.kind() == PacketKind::Fragment {
            write!(f, " fragment")?;
        }
        write!(f, " dscp {}", self.dscp())
    }
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
