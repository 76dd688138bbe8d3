//! Classification: from packet bytes to the decision about the packet's flow.
//!
//! [`key`] turns header bytes into a flow key, [`flow_table`] remembers decisions, [`rule`] decides
//! about a flow's first packet, and [`rss`] maps flows to Rx threads where the device does not.
//! [`Classifier`] does the first two for a burst. On a miss, the caller evaluates the rules and
//! calls [`Classifier::remember`]. Each Rx thread has its own classifier.

pub mod compile;
pub mod flow_table;
pub mod hits;
pub mod key;
pub mod rss;
pub mod rule;
pub mod tcp;

use sluice_api::protocol;
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, Packet};

use flow_table::{FlowTable, FlowTableStats, Known};
use key::{FlowKey, LONG, SHORT};

/// Result of a flow table lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lookup {
    /// What is known.
    Hit(Known),
    /// Nothing: evaluate the rules for [`Classifier::key`], then call [`Classifier::remember`].
    #[default]
    Miss,
}

/// Classifies the packets of one Rx thread.
#[derive(Debug)]
pub struct Classifier {
    table: FlowTable,
    keys: [FlowKey; BURST],
    hashes: [u64; BURST],
}

impl Classifier {
    /// Remembers up to `max_flows` flows; `seed` is secret (see [`flow_table::random_seed`]).
    pub fn new(max_flows: usize, seed: u64) -> Self {
        Self { table: FlowTable::new(max_flows, seed), keys: [FlowKey::default(); BURST], hashes: [0; BURST] }
    }

    /// Looks up a burst of packets from port number `ingress`, which lie in `arena`: at most
    /// [`BURST`], and as many as `flags` has places for their descriptors' flags. Calls `found`
    /// with the number and the key of each and what is known of its flow; not always in order.
    #[inline(always)]
    pub fn classify_burst(
        &mut self,
        arena: &Arena,
        packets: &[Packet],
        ingress: u16,
        now_ms: u64,
        flags: &mut [u8],
        mut found: impl FnMut(usize, &FlowKey, Lookup),
    ) {
        let n = self.make_keys(arena, packets, ingress, flags);
        let keys = &self.keys;
        self.table.lookup_burst(&keys[..n], &self.hashes[..n], now_ms, |i, known| {
            found(i, &keys[i % BURST], known.map_or(Lookup::Miss, Lookup::Hit));
        });
    }

    /// Makes keys and hashes of a burst, and flags for its descriptors; returns how many.
    ///
    /// By itself, so that what its caller keeps at hand takes no registers of this loop.
    #[inline(never)]
    fn make_keys(&mut self, arena: &Arena, packets: &[Packet], ingress: u16, flags: &mut [u8]) -> usize {
        let n = packets.len().min(flags.len()).min(BURST);
        let (keys, hashes) = (&mut self.keys[..n], &mut self.hashes[..n]);
        let hasher = self.table.hasher();
        for (((packet, flags), key), hash) in packets.iter().zip(flags).zip(keys.iter_mut()).zip(hashes.iter_mut()) {
            let head = arena.head(packet.frame, packet.offset);
            match head.and_then(|head| FlowKey::parse_plain(head, packet.len, ingress)) {
                Some(plain) => {
                    *hash = hasher.hash(&plain);
                    (*key, *flags) = (plain, 0);
                }
                None => {
                    *key = parse_rest(arena, *packet, ingress);
                    *hash = hasher.hash(key);
                    *flags = key.flags();
                }
            }
        }
        n
    }

    /// Sets the descriptors' flags of packets from port number `ingress` that nothing else is asked
    /// of.
    #[inline(always)]
    pub(crate) fn flags_of(&self, arena: &Arena, packets: &[Packet], ingress: u16, flags: &mut [u8]) {
        for (packet, flags) in packets.iter().zip(flags) {
            let head = arena.head(packet.frame, packet.offset);
            let is_plain = head.is_some_and(|head| FlowKey::parse_plain(head, packet.len, ingress).is_some());
            *flags = if is_plain { 0 } else { parse_rest(arena, *packet, ingress).flags() };
        }
    }

    /// Key of packet `i` of the last burst.
    #[inline(always)]
    pub fn key(&self, i: usize) -> &FlowKey {
        &self.keys[i % BURST]
    }

    /// Hash of packet `i` of the last burst, for [`Classifier::table`].
    #[inline(always)]
    pub fn hash(&self, i: usize) -> u64 {
        self.hashes[i % BURST]
    }

    /// Remembers a decision about the flow of packet `i` of the last burst.
    #[inline]
    pub fn remember(&mut self, i: usize, known: Known, now_ms: u64) {
        self.table.insert(&self.keys[i % BURST], self.hashes[i % BURST], known, now_ms);
    }

    /// Repeats the lookup of packet `i` of the last burst: its flow may have been added since.
    #[inline]
    pub fn again(&mut self, i: usize, now_ms: u64) -> Option<Known> {
        self.table.lookup(&self.keys[i % BURST], self.hashes[i % BURST], now_ms)
    }

    /// Removes flows idle for `timeout_ms` among the next `budget` slots: see [`FlowTable::age`].
    #[inline]
    pub fn age(&mut self, now_ms: u64, timeout_ms: u64, budget: usize) -> usize {
        self.table.age(now_ms, timeout_ms, budget)
    }

    /// Counters of the flow table.
    pub fn stats(&self) -> FlowTableStats {
        self.table.stats()
    }

    /// The flow table, to look at.
    pub fn flows(&self) -> &FlowTable {
        &self.table
    }

    /// The flow table.
    pub fn table(&mut self) -> &mut FlowTable {
        &mut self.table
    }
}

/// The key of a packet that [`FlowKey::parse_plain`] does not know.
#[inline(never)]
fn parse_rest(arena: &Arena, packet: Packet, ingress: u16) -> FlowKey {
    let head = arena.head(packet.frame, packet.offset);
    let other = head.and_then(|head| FlowKey::parse_other(head, packet.len, ingress));
    other.unwrap_or_else(|| parse_long(arena, packet, ingress))
}

#[cold]
#[inline(never)]
fn parse_long(arena: &Arena, packet: Packet, ingress: u16) -> FlowKey {
    let mut bytes = [0; LONG];
    let copied = copy_long(arena, packet, &mut bytes);
    FlowKey::parse(&bytes[..copied], packet.len, ingress)
}

/// The flow key of a packet from port number `ingress`.
#[inline]
pub(crate) fn key_of(arena: &Arena, packet: Packet, ingress: u16) -> FlowKey {
    let head = arena.head(packet.frame, packet.offset);
    let plain = head.and_then(|head| FlowKey::parse_plain(head, packet.len, ingress));
    plain.unwrap_or_else(|| parse_rest(arena, packet, ingress))
}

/// TCP flags of a packet with this key; 0 if it has none, or they cannot be read.
#[inline(always)]
pub(crate) fn tcp_flags(key: &FlowKey, arena: &Arena, packet: Packet) -> u8 {
    if key.protocol() != protocol::TCP || key.flags() != 0 {
        return 0;
    }
    let short: Option<[u8; SHORT]> = arena.read_array(packet.frame, packet.offset);
    let flags = short.and_then(|header| tcp::flags(&header[..SHORT.min(packet.len.into())]));
    flags.unwrap_or_else(|| long_tcp_flags(arena, packet))
}

#[cold]
#[inline(never)]
fn long_tcp_flags(arena: &Arena, packet: Packet) -> u8 {
    let mut bytes = [0; LONG];
    let copied = copy_long(arena, packet, &mut bytes);
    tcp::flags(&bytes[..copied]).unwrap_or(0)
}

/// Copies the first bytes of a packet, at most [`LONG`]; returns how many.
#[inline]
pub(crate) fn copy_long(arena: &Arena, packet: Packet, bytes: &mut [u8; LONG]) -> usize {
    let n = (packet.len as usize).min(LONG);
    if arena.read(packet.frame, packet.offset, &mut bytes[..n]) { n } else { 0 }
}

#[cfg(test)]
mod tests {
    use sluice_shm::arena::Geometry;

    use super::*;
    use crate::decision::Packed;
    use key::PacketKind;

    /// UDP over IPv6 behind 64 bytes of destination options, or over IPv4.
    fn packet(v6: bool, port: u8) -> Vec<u8> {
        let mut packet = vec![0; 140];
        if v6 {
            packet[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 86, 60, 64]);
            packet[54..56].copy_from_slice(&[17, 7]);
            packet[119] = port;
        } else {
            packet[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 126]);
            packet[23] = 17;
            packet[35] = port;
        }
        packet
    }

    #[test]
    fn a_burst_is_missed_once_then_found() {
        let mut classifier = Classifier::new(1000, 5);
        let (_memory, arena) = Arena::create(Geometry { first: 0, frames: 5, stride: 576 }, false).unwrap();
        let packets = (0..).zip([(false, 1), (true, 1), (false, 2), (true, 2), (false, 1)]).map(|(frame, (v6, port))| {
            assert!(arena.write(frame, 128, &packet(v6, port)));
            Packet { frame, offset: 128, len: 140 }
        });
        let packets: Vec<Packet> = packets.collect();
        let burst = |classifier: &mut Classifier| {
            let mut out = [None; 5];
            classifier.classify_burst(&arena, &packets, 7, 0, &mut [0xff; 5], |i, _, found| out[i] = Some(found));
            out
        };
        assert_eq!(burst(&mut classifier), [Some(Lookup::Miss); 5]);
        for i in 0..4 {
            assert_eq!((classifier.key(i).kind(), classifier.key(i).ingress()), (PacketKind::Ip, 7));
            assert_eq!(classifier.key(i).ports(), Some((1 + i as u16 / 2, 0)));
            assert_eq!(classifier.again(i, 0), None);
            classifier.remember(i, Known { decision: Packed::path(i as u32), generation: 1, note: 0 }, 0);
        }
        // The fifth is of the first one's flow.
        assert_eq!(classifier.again(4, 0), Some(Known { decision: Packed::path(0), generation: 1, note: 0 }));
        let hit = |path| Some(Lookup::Hit(Known { decision: Packed::path(path), generation: 1, note: 0 }));
        assert_eq!(burst(&mut classifier), [0, 1, 2, 3, 0].map(hit));
        let stats = classifier.stats();
        assert_eq!((stats.entries, stats.hits, stats.misses), (4, 6, 9));
        let all = classifier.table().capacity();
        assert_eq!(classifier.age(60_000, 30_000, all), 4);
    }
}
