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

use sluice_shm::BURST;

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

    /// Looks up a burst of packets from port number `ingress`. `headers[i]` is a private copy of
    /// the first bytes of packet `i`, whose length is `lens[i]`; the result goes to `out[i]`.
    /// Handles as many packets as the shortest slice has, at most [`BURST`], and returns how many.
    ///
    /// If a packet's headers reach beyond its copy, `more(i, bytes)` copies its first [`LONG`]
    /// bytes, or all if it is shorter, and returns how many it copied.
    #[inline]
    pub fn classify_burst(
        &mut self,
        headers: &[[u8; SHORT]],
        lens: &[u16],
        ingress: u16,
        now_ms: u64,
        mut more: impl FnMut(usize, &mut [u8; LONG]) -> usize,
        out: &mut [Lookup],
    ) -> usize {
        let n = headers.len().min(lens.len()).min(out.len()).min(BURST);
        let (keys, hashes, out) = (&mut self.keys[..n], &mut self.hashes[..n], &mut out[..n]);
        for (i, ((header, len), key)) in headers.iter().zip(lens).zip(keys.iter_mut()).enumerate() {
            if key.parse_short(header, *len, ingress).is_err() {
                *key = parse_long(*len, ingress, |bytes| more(i, bytes));
            }
        }
        for (key, hash) in keys.iter().zip(hashes.iter_mut()) {
            *hash = self.table.hash_of(key);
        }
        self.table.lookup_burst(keys, hashes, now_ms, |i, found| {
            out[i] = found.map_or(Lookup::Miss, Lookup::Hit);
        });
        n
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

    /// The flow table.
    pub fn table(&mut self) -> &mut FlowTable {
        &mut self.table
    }
}

#[cold]
#[inline(never)]
fn parse_long(len: u16, ingress: u16, more: impl FnOnce(&mut [u8; LONG]) -> usize) -> FlowKey {
    let mut bytes = [0; LONG];
    let copied = more(&mut bytes).min(LONG);
    FlowKey::parse(&bytes[..copied], len, ingress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Packed;
    use key::Kind;

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
        let packets: Vec<_> = [(false, 1), (true, 1), (false, 2), (true, 2), (false, 1)].map(|(v6, port)| packet(v6, port)).into();
        let headers: Vec<[u8; SHORT]> = packets.iter().map(|p| p[..SHORT].try_into().unwrap()).collect();
        let lens = [140; 5];
        let mut out = [Lookup::Hit(Known::default()); 6];
        let mut asked = Vec::new();
        let mut burst = |classifier: &mut Classifier, out: &mut [Lookup]| {
            let more = |i: usize, bytes: &mut [u8; LONG]| {
                asked.push(i);
                bytes[..140].copy_from_slice(&packets[i]);
                140
            };
            classifier.classify_burst(&headers, &lens, 7, 0, more, out)
        };
        assert_eq!(burst(&mut classifier, &mut out), 5);
        assert_eq!(out[..5], [Lookup::Miss; 5]);
        for i in 0..4 {
            assert_eq!((classifier.key(i).kind(), classifier.key(i).ingress()), (Kind::Ip, 7));
            assert_eq!(classifier.key(i).ports(), Some((1 + i as u16 / 2, 0)));
            assert_eq!(classifier.again(i, 0), None);
            classifier.remember(i, Known { decision: Packed::path(i as u32), generation: 1, note: 0 }, 0);
        }
        // The fifth is of the first one's flow.
        assert_eq!(classifier.again(4, 0), Some(Known { decision: Packed::path(0), generation: 1, note: 0 }));
        assert_eq!(burst(&mut classifier, &mut out), 5);
        let paths = [0, 1, 2, 3, 0].map(|path| Lookup::Hit(Known { decision: Packed::path(path), generation: 1, note: 0 }));
        assert_eq!(out[..5], paths);
        assert_eq!(asked, [1, 3, 1, 3]);
        let stats = classifier.stats();
        assert_eq!((stats.entries, stats.hits, stats.misses), (4, 6, 9));
        let all = classifier.table().capacity();
        assert_eq!(classifier.age(60_000, 30_000, all), 4);
    }
}
