//! A bounded hash table for flows.
//!
//! # Problem
//! An NF looks a flow up for every packet and must never stall: no allocation, no rehash of a whole
//! table, no pause to collect everything that is old. And a sender that opens flows without end
//! must meet a limit.
//!
//! # Approach
//! Entries are in a slab that is reserved at the start and never moves, so an entry's [`Handle`] is
//! valid until it is removed. A second array of 8-byte slots, twice as many as entries, maps hashes
//! to entries by linear probing: 32 bits of hash and 32 bits of handle, so that probing touches the
//! slots alone, and a hit costs two cache misses. Removal shifts later slots back, so there are no
//! tombstones and lookups do not slow down with age. Memory is touched only as entries come.
//!
//! [`Table::age`] ages a few entries at each tick, in turn: all of them every two seconds.
//!
//! # Limits
//! At most 2³¹ entries. The hash has a random seed: a sender cannot aim at one slot, and no two
//! runs iterate alike. A traced NF ([`sluice_nf::is_traced`]) always has the same seed, so that its
//! misses can be compared.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use foldhash::fast::SeedableRandomState;

/// Number of an entry, which may be reused once the entry is removed.
pub type Handle = u32;

/// How often to call [`Table::age`].
pub const AGE_TICK: Duration = Duration::from_millis(10);
/// Calls of [`Table::age`] that visit the whole table.
pub const AGE_TICKS: usize = 200;

const EMPTY: u64 = 0;

/// A hash table with a fixed limit.
#[derive(Debug)]
pub struct Table<K, V> {
    /// Hash in the upper half, handle + 1 in the lower; [`EMPTY`] if free.
    slots: Vec<u64>,
    mask: usize,
    entries: Vec<Option<(K, V)>>,
    free: Vec<Handle>,
    limit: usize,
    /// Where the next sweep starts.
    hand: usize,
    state: SeedableRandomState,
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    /// A table of at most `limit` entries (clamped to 1 to 2³¹).
    pub fn with_limit(limit: usize) -> Self {
        let limit = limit.clamp(1, 1 << 31);
        let slots = (limit * 2).next_power_of_two().max(16);
        Self {
            slots: vec![EMPTY; slots],
            mask: slots - 1,
            entries: Vec::with_capacity(limit),
            free: Vec::with_capacity(limit),
            limit,
            hand: 0,
            state: if sluice_nf::is_traced() { SeedableRandomState::fixed() } else { SeedableRandomState::random() },
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn is_full(&self) -> bool {
        self.len() == self.limit
    }

    #[inline(always)]
    fn tag(&self, key: &K) -> u32 {
        (self.state.hash_one(key) >> 32) as u32
    }

    #[inline]
    pub fn find(&self, key: &K) -> Option<Handle> {
        let tag = self.tag(key);
        let mut at = tag as usize & self.mask;
        // Ends: at least half of the slots are empty.
        loop {
            let slot = self.slots[at];
            if slot == EMPTY {
                return None;
            }
            if (slot >> 32) as u32 == tag {
                let handle = slot as u32 - 1;
                if self.entries[handle as usize].as_ref().is_some_and(|(k, _)| k == key) {
                    return Some(handle);
                }
            }
            at = (at + 1) & self.mask;
        }
    }

    #[inline]
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let handle = self.find(key)?;
        self.entries[handle as usize].as_mut().map(|(_, value)| value)
    }

    #[inline]
    pub fn entry_mut(&mut self, handle: Handle) -> Option<(&K, &mut V)> {
        self.entries.get_mut(handle as usize)?.as_mut().map(|(key, value)| (&*key, value))
    }

    #[inline]
    pub fn entry(&self, handle: Handle) -> Option<(&K, &V)> {
        self.entries.get(handle as usize)?.as_ref().map(|(key, value)| (key, value))
    }

    /// Adds an entry, or replaces the value of an existing one. None if the table is full.
    #[inline]
    pub fn insert(&mut self, key: K, value: V) -> Option<Handle> {
        if let Some(handle) = self.find(&key) {
            self.entries[handle as usize] = Some((key, value));
            return Some(handle);
        }
        let handle = match self.free.pop() {
            Some(handle) => {
                self.entries[handle as usize] = Some((key, value));
                handle
            }
            None if self.entries.len() < self.limit => {
                self.entries.push(Some((key, value)));
                (self.entries.len() - 1) as Handle
            }
            None => return None,
        };
        let tag = self.tag(&key);
        let mut at = tag as usize & self.mask;
        while self.slots[at] != EMPTY {
            at = (at + 1) & self.mask;
        }
        self.slots[at] = u64::from(tag) << 32 | u64::from(handle + 1);
        Some(handle)
    }

    /// Removes the entry with a handle and returns it.
    pub fn remove(&mut self, handle: Handle) -> Option<(K, V)> {
        let (key, value) = self.entries.get_mut(handle as usize)?.take()?;
        self.free.push(handle);
        let mut at = self.tag(&key) as usize & self.mask;
        while self.slots[at] as u32 != handle + 1 {
            at = (at + 1) & self.mask;
        }
        self.close_gap(at);
        Some((key, value))
    }

    /// Empties slot `gap` and moves back the slots that were pushed past it.
    fn close_gap(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at];
            if slot == EMPTY {
                break;
            }
            let home = (slot >> 32) as usize & self.mask;
            // It may move if its home is not between the gap and its slot.
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(gap) & self.mask {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
    }

    /// Sweeps the share of the table that is due at each [`AGE_TICK`].
    pub fn age(&mut self, is_old: impl FnMut(&K, &V) -> bool, removed: impl FnMut(Handle, K, V)) {
        self.sweep(self.limit.div_ceil(AGE_TICKS), is_old, removed);
    }

    /// Removes the entries of the next `count` places of the slab for which `is_old` holds, and
    /// calls `removed` for each.
    pub fn sweep(&mut self, count: usize, mut is_old: impl FnMut(&K, &V) -> bool, mut removed: impl FnMut(Handle, K, V)) {
        for _ in 0..count.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let handle = self.hand as Handle;
            self.hand += 1;
            if self.entries[handle as usize].as_ref().is_some_and(|(key, value)| is_old(key, value))
                && let Some((key, value)) = self.remove(handle)
            {
                removed(handle, key, value);
            }
        }
    }

    /// Removes all entries that `keep` refuses. Scans the whole table: not for the packet path.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for handle in 0..self.entries.len() {
            if self.entries[handle].as_mut().is_some_and(|(key, value)| !keep(key, value)) {
                self.remove(handle as Handle);
            }
        }
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().flatten().map(|(key, value)| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16, u32),
        Remove(u16),
        Sweep(usize, u32),
        Retain(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..300u16, any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
            2 => (0..300u16).prop_map(Step::Remove),
            1 => (0..50usize, any::<u32>()).prop_map(|(n, v)| Step::Sweep(n, v)),
            1 => any::<u32>().prop_map(Step::Retain),
        ];
        prop::collection::vec(step, 0..600)
    }

    proptest! {
        #[test]
        fn it_does_what_a_map_does(steps in steps()) {
            const LIMIT: usize = 128;
            let mut table = Table::with_limit(LIMIT);
            let mut map = HashMap::new();
            for step in steps {
                match step {
                    Step::Insert(k, v) => {
                        let fits = map.len() < LIMIT || map.contains_key(&k);
                        prop_assert_eq!(table.insert(k, v).is_some(), fits);
                        if fits {
                            map.insert(k, v);
                        }
                    }
                    Step::Remove(k) => {
                        let removed = table.find(&k).and_then(|h| table.remove(h)).map(|(_, v)| v);
                        prop_assert_eq!(removed, map.remove(&k));
                    }
                    Step::Sweep(n, below) => {
                        table.sweep(n, |_, v| *v < below, |_, k, _| { map.remove(&k); });
                    }
                    Step::Retain(from) => {
                        table.retain(|_, v| *v >= from / 4);
                        map.retain(|_, v| *v >= from / 4);
                    }
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for (k, v) in &map {
                prop_assert_eq!(table.get_mut(k).copied(), Some(*v));
            }
            prop_assert_eq!(table.iter().count(), map.len());
        }
    }

    #[test]
    fn a_full_table_refuses_and_takes_again_after_a_sweep() {
        let mut table = Table::with_limit(4);
        for k in 0..4 {
            assert!(table.insert(k, k).is_some());
        }
        assert!(table.is_full());
        assert_eq!(table.insert(9, 9), None);
        assert!(table.insert(3, 30).is_some(), "replacing needs no room");
        let mut gone = Vec::new();
        table.sweep(4, |_, v| *v < 2, |_, k, _| gone.push(k));
        assert_eq!(gone, [0, 1]);
        assert!(table.insert(9, 9).is_some());
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn handles_stay_while_others_come_and_go() {
        let mut table = Table::with_limit(1000);
        let kept = table.insert(u32::MAX, 7).unwrap();
        for k in 0..999 {
            table.insert(k, 0).unwrap();
        }
        for k in 0..999 {
            let handle = table.find(&k).unwrap();
            table.remove(handle).unwrap();
        }
        assert_eq!(table.find(&u32::MAX), Some(kept));
        assert_eq!(table.entry(kept), Some((&u32::MAX, &7)));
        assert_eq!(table.remove(kept), Some((u32::MAX, 7)));
        assert_eq!(table.remove(kept), None);
    }
}
