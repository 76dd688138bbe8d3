//! Classification: from packet bytes to what was decided about the packet's flow.
//!
//! [`key`] turns header bytes into a flow key, [`flow_table`] remembers what was decided about a flow, [`rule`] decides about the
//! first packet of one, and [`rss`] says which Rx thread a flow belongs to where the device does not. [`Classifier`] does the first
//! two for a burst; the caller, who knows chains and instances, asks the rules about what was missed and tells the classifier
//! with [`Classifier::remember`]. Each Rx thread has a classifier of its own: nothing is shared.

pub mod flow_table;
pub mod key;
pub mod rss;
pub mod rule;

use sluice_shm::BURST;

use flow_table::{Decision, FlowTable, FlowTableStats};
use key::{FlowKey, LONG, SHORT};

/// What the flow table knows of a packet's flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lookup {
    /// What was decided.
    Hit(Decision),
    /// Nothing: ask the rules about [`Classifier::key`], then [`Classifier::remember`].
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
    /// A classifier that remembers `max_flows` flows; `seed` is secret (see [`flow_table::random_seed`]).
    pub fn new(max_flows: usize, seed: u64) -> Self {
        Self { table: FlowTable::new(max_flows, seed), keys: [FlowKey::default(); BURST], hashes: [0; BURST] }
    }

    /// Looks up a burst of packets that came in at port number `ingress`: `headers[i]` is a private copy of the first bytes of packet
    /// `i`, whose length is `lens[i]`, and the answer goes to `out[i]`. Does as many as the shortest of the three has, at most
    /// [`BURST`], and says how many.
    ///
    /// For a packet whose headers reach past its copy, `more(i, bytes)` copies the packet's first [`LONG`] bytes, or all of a shorter
    /// one, and says how many it copied.
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
            *key = match FlowKey::parse_short(header, *len, ingress) {
                Ok(key) => key,
                Err(key::MoreNeeded) => parse_long(*len, ingress, |bytes| more(i, bytes)),
            };
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

    /// Remembers what was decided about the flow of packet `i` of the last burst.
    #[inline]
    pub fn remember(&mut self, i: usize, decision: Decision, now_ms: u64) {
        self.table.insert(&self.keys[i % BURST], self.hashes[i % BURST], decision, now_ms);
    }

    /// Looks at the flow of packet `i` of the last burst again: an earlier packet of the burst may have made it known.
    #[inline]
    pub fn again(&mut self, i: usize, now_ms: u64) -> Option<Decision> {
        self.table.lookup(&self.keys[i % BURST], self.hashes[i % BURST], now_ms)
    }

    /// Forgets flows that were idle for `timeout_ms`, among the next `budget` slots: see [`FlowTable::age`].
    #[inline]
    pub fn age(&mut self, now_ms: u64, timeout_ms: u64, budget: usize) -> usize {
        self.table.age(now_ms, timeout_ms, budget)
    }

    /// What the table counted.
    pub fn stats(&self) -> FlowTableStats {
        self.table.stats()
    }

    /// The table.
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
