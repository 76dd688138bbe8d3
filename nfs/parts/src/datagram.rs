//! Decisions about first fragments, which the other fragments of a datagram follow.
//!
//! # Problem
//! Only the first fragment has the transport header. A decision by it must hold for the fragments
//! that follow.
//!
//! # Approach
//! A decision is remembered under the datagram's addresses, protocol and number ([`Part::of`])
//! until all of the datagram has been seen: the bytes counted reach the end of its last fragment
//! (offset plus length, no more to come). So only datagrams in transit take space, at any rate. One
//! with lost fragments is forgotten after [`LIFE_NS`].
//!
//! # Limits
//! At most [`LIMIT`] datagrams are remembered; a new one replaces the oldest. So a flood of first
//! fragments makes others lose datagrams whose fragments are far apart, and stops none. Bytes are
//! counted, not mapped: with a repeated fragment a datagram may be forgotten before its last one.

use std::collections::VecDeque;

use sluice_nf::header::Headers;

use crate::flow::FlowKey;
use crate::table::Table;

/// Datagrams remembered at a time.
pub const LIMIT: usize = 65_536;
/// How long a datagram is remembered: as long as hosts wait for missing fragments (RFC 791 says 15
/// seconds, Linux 30).
pub const LIFE_NS: u64 = 30_000_000_000;

/// A fragment's place in its datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Key of all fragments of the datagram.
    pub datagram: FlowKey,
    /// Its offset in the datagram's payload, in bytes.
    pub offset: u16,
    /// Bytes of payload.
    pub len: u16,
    /// Whether more fragments follow.
    pub more: bool,
}

impl Part {
    /// The place of a packet. None if it is no fragment.
    #[inline]
    pub fn of(packet: &[u8], headers: &Headers) -> Option<Self> {
        let ip = headers.ip?;
        let fragment = ip.fragment?;
        let len = ip.end.saturating_sub(ip.offset + ip.header_len);
        Some(Self { datagram: FlowKey::of_datagram(packet, headers)?, offset: fragment.offset, len, more: fragment.more })
    }

    /// Whether it is the fragment with the transport header.
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }
}

#[derive(Debug, Clone, Copy)]
struct Seen<T> {
    decided: T,
    since_ns: u64,
    /// Serial number of the datagram.
    serial: u64,
    /// Bytes of payload seen so far, and of the whole datagram; 0 until its last fragment was seen.
    bytes: u32,
    whole: u32,
}

impl<T> Seen<T> {
    fn count(&mut self, part: &Part) {
        self.bytes += u32::from(part.len);
        if !part.more {
            self.whole = u32::from(part.offset) + u32::from(part.len);
        }
    }

    fn is_complete(&self) -> bool {
        self.whole > 0 && self.bytes >= self.whole
    }
}

/// Decisions by datagram.
#[derive(Debug)]
pub struct Datagrams<T> {
    table: Table<FlowKey, Seen<T>>,
    /// Datagrams in the order of arrival, with their serial numbers. Forgotten ones stay until they
    /// are the oldest.
    order: VecDeque<(FlowKey, u64)>,
    serial: u64,
}

impl<T: Copy> Datagrams<T> {
    pub fn new() -> Self {
        Self { table: Table::with_limit(LIMIT), order: VecDeque::with_capacity(LIMIT), serial: 0 }
    }

    /// Remembers the decision about a datagram's first fragment.
    pub fn remember(&mut self, first: &Part, decided: T, now_ns: u64) {
        if self.order.len() == LIMIT
            && let Some((oldest, serial)) = self.order.pop_front()
        {
            self.forget(&oldest, serial);
        }
        self.serial += 1;
        let mut seen = Seen { decided, since_ns: now_ns, serial: self.serial, bytes: 0, whole: 0 };
        seen.count(first);
        // There is space: every datagram in the table is in the order.
        if self.table.insert(first.datagram, seen).is_some() {
            self.order.push_back((first.datagram, self.serial));
        }
    }

    /// The decision for a fragment that is not the first. Forgets the datagram if it is complete
    /// now.
    pub fn follow(&mut self, part: &Part) -> Option<T> {
        let handle = self.table.find(&part.datagram)?;
        let (_, seen) = self.table.entry_mut(handle)?;
        seen.count(part);
        let decided = seen.decided;
        if seen.is_complete() {
            self.table.remove(handle);
        }
        Some(decided)
    }

    fn forget(&mut self, datagram: &FlowKey, serial: u64) {
        if let Some(handle) = self.table.find(datagram)
            && self.table.entry(handle).is_some_and(|(_, seen)| seen.serial == serial)
        {
            self.table.remove(handle);
        }
    }

    /// Changes decisions; forgets those for which `change` returns None.
    pub fn change(&mut self, change: impl Fn(T) -> Option<T>) {
        self.table.retain(|_, seen| change(seen.decided).inspect(|new| seen.decided = *new).is_some());
    }

    /// Forgets old decisions; call it at each [`crate::table::AGE_TICK`].
    pub fn age(&mut self, now_ns: u64) {
        self.table.age(|_, seen| now_ns.saturating_sub(seen.since_ns) >= LIFE_NS, |_, _, _| {});
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl<T: Copy> Default for Datagrams<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::AGE_TICKS;

    fn part(id: u32, offset: u16, len: u16, more: bool) -> Part {
        let address = "10.0.0.1".parse().unwrap();
        Part { datagram: FlowKey::datagram(address, address, 17, id), offset, len, more }
    }

    fn first(id: u32) -> Part {
        part(id, 0, 16, true)
    }

    /// One in the middle, which completes nothing.
    fn middle(id: u32) -> Part {
        part(id, 16, 8, true)
    }

    #[test]
    fn datagrams_are_remembered_changed_and_forgotten() {
        let mut datagrams = Datagrams::new();
        datagrams.remember(&first(1), 10, 0);
        datagrams.remember(&first(2), 20, 5);
        assert_eq!([1, 2, 3].map(|id| datagrams.follow(&middle(id))), [Some(10), Some(20), None]);
        datagrams.change(|n| (n == 20).then_some(21));
        assert_eq!([1, 2].map(|id| datagrams.follow(&middle(id))), [None, Some(21)]);
        for _ in 0..AGE_TICKS {
            datagrams.age(LIFE_NS + 4);
        }
        assert_eq!(datagrams.follow(&middle(2)), Some(21));
        for _ in 0..AGE_TICKS {
            datagrams.age(LIFE_NS + 5);
        }
        assert_eq!(datagrams.follow(&middle(2)), None);
    }

    #[test]
    fn a_datagram_is_forgotten_when_all_of_it_has_been_seen() {
        let mut datagrams = Datagrams::new();
        // In order, and with the last fragment before the one in the middle.
        for (id, rest) in [(1, [(16, 8, true), (24, 5, false)]), (2, [(24, 5, false), (16, 8, true)])] {
            datagrams.remember(&first(id), id, 0);
            for (offset, len, more) in rest {
                assert_eq!(datagrams.follow(&part(id, offset, len, more)), Some(id));
            }
            assert!(datagrams.is_empty());
            assert_eq!(datagrams.follow(&part(id, 24, 5, false)), None);
        }
    }

    #[test]
    fn any_number_passes_and_the_oldest_is_forgotten_first() {
        let mut datagrams = Datagrams::new();
        let all = 3 * LIMIT as u32;
        // Complete ones leave no trace, however many come in a moment.
        for id in 0..all {
            datagrams.remember(&first(id), id, 0);
            assert_eq!(datagrams.follow(&part(id, 16, 8, false)), Some(id));
        }
        assert_eq!(datagrams.len(), 0);
        // Without their other fragments, the latest are kept.
        for id in 0..all {
            datagrams.remember(&first(id), id, 0);
        }
        assert_eq!(datagrams.len(), LIMIT);
        assert_eq!(datagrams.follow(&middle(all - 1 - LIMIT as u32)), None);
        assert_eq!(datagrams.follow(&middle(all - LIMIT as u32)), Some(all - LIMIT as u32));
        assert_eq!(datagrams.follow(&middle(all - 1)), Some(all - 1));
    }

    #[test]
    fn a_number_that_comes_again_is_a_new_datagram() {
        let mut datagrams = Datagrams::new();
        datagrams.remember(&first(7), 1, 0);
        for id in 0..LIMIT as u32 - 2 {
            datagrams.remember(&first(100 + id), 0, 0);
        }
        datagrams.remember(&first(7), 2, 0);
        // The oldest place in the order is reused, and the second datagram stays.
        datagrams.remember(&first(8), 3, 0);
        assert_eq!((datagrams.follow(&middle(7)), datagrams.follow(&middle(8))), (Some(2), Some(3)));
    }
}
