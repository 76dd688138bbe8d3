//! The comparison: what two versions of an NF did with each packet.
//!
//! Pure: packets in, counts and differences out. A packet of the old version is known by its frame,
//! which has one packet at a time, a copy of the new one by its number. Among the packets of a
//! flow, one has the same place on both sides if the same packet came back before it.
//!
//! # Limits
//! Once a packet of a flow was not compared, the order of that flow is not compared either, until
//! none of its packets is out.

use std::collections::HashMap;

use sluice_api::shadow::{DifferenceKind, ShadowCounts, ShadowDifference};
use sluice_dataplane::classify::key::FlowKey;
use sluice_shm::descriptor::Verdict;

/// Packets that may be out at a time. More are not compared.
const MOST: usize = 1 << 14;
/// Differing packets that are kept.
const KEPT: usize = 8;

/// What an NF wants done with a packet; with a target, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decided {
    Next,
    Drop,
    ToPort(u16),
    ToService(u16),
    /// What the manager would count as a violation.
    Invalid,
}

impl Decided {
    /// The decision of a descriptor whose packet lies in its frame.
    pub(crate) fn of(verdict: u8, arg: u16) -> Self {
        match Verdict::from_raw(verdict) {
            Some(Verdict::Next) => Self::Next,
            Some(Verdict::Drop) => Self::Drop,
            Some(Verdict::ToPort) => Self::ToPort(arg),
            Some(Verdict::ToService) => Self::ToService(arg),
            None => Self::Invalid,
        }
    }

    /// Whether it passes the packet on, so that its bytes count.
    pub(crate) fn passes(self) -> bool {
        !matches!(self, Self::Drop | Self::Invalid)
    }
}

impl std::fmt::Display for Decided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Next => f.write_str("next"),
            Self::Drop => f.write_str("drop"),
            Self::ToPort(port) => write!(f, "port {port}"),
            Self::ToService(service) => write!(f, "service {service}"),
            Self::Invalid => f.write_str("invalid"),
        }
    }
}

/// A packet that came back: the decision, its bytes if it is passed on, and the packet of its flow
/// that came back before it.
#[derive(Debug)]
struct Answer {
    decided: Decided,
    bytes: Vec<u8>,
    after: Option<u64>,
}

/// A packet that both versions have got.
#[derive(Debug)]
struct Pair {
    frame: u32,
    flow: FlowKey,
    packet: Vec<u8>,
    old: Option<Answer>,
    new: Option<Answer>,
}

/// A flow with packets that are out.
#[derive(Debug, Default)]
struct Flow {
    out: u32,
    last_old: Option<u64>,
    last_new: Option<u64>,
    /// A packet was not compared, so the order is not known.
    is_broken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Old,
    New,
}

#[derive(Debug, Default)]
pub(crate) struct Comparer {
    next: u64,
    pairs: HashMap<u64, Pair>,
    /// The packets that the old version has, by frame.
    frames: HashMap<u32, u64>,
    flows: HashMap<FlowKey, Flow>,
    counts: ShadowCounts,
    differences: Vec<ShadowDifference>,
}

impl Comparer {
    pub(crate) fn counts(&self) -> ShadowCounts {
        self.counts
    }

    pub(crate) fn differences(&self) -> &[ShadowDifference] {
        &self.differences
    }

    /// Whether another packet can be compared.
    pub(crate) fn has_room(&self) -> bool {
        self.pairs.len() < MOST
    }

    /// The old version gets a packet in a frame, and the new one gets a copy; returns the number of
    /// that.
    pub(crate) fn enters(&mut self, frame: u32, flow: FlowKey, packet: &[u8]) -> u64 {
        self.leaves(frame);
        let number = self.next;
        self.next += 1;
        self.frames.insert(frame, number);
        self.flows.entry(flow).or_default().out += 1;
        self.pairs.insert(number, Pair { frame, flow, packet: packet.to_vec(), old: None, new: None });
        number
    }

    /// The old version gets a packet in a frame, and the new one gets no copy.
    pub(crate) fn passes_by(&mut self, frame: u32) {
        self.leaves(frame);
        self.counts.missed += 1;
    }

    /// The old version no longer has the packet in a frame, and how it returned it is not known.
    pub(crate) fn leaves(&mut self, frame: u32) {
        if let Some(number) = self.frames.remove(&frame) {
            self.forget(number);
        }
    }

    /// Copies of the old version's packets were missed: which ones it still has is not known.
    pub(crate) fn misses(&mut self, copies: u64) {
        self.counts.missed += copies;
        for (_, number) in std::mem::take(&mut self.frames) {
            self.forget(number);
        }
    }

    /// The old version has returned the packet in a frame.
    pub(crate) fn old_returns(&mut self, frame: u32, decided: Decided, bytes: &[u8]) {
        // One that it got before the comparison began, or whose copy was missed, is not known.
        if let Some(number) = self.frames.remove(&frame) {
            self.answer(number, Side::Old, decided, bytes);
        }
    }

    /// The new version has returned a copy.
    pub(crate) fn new_returns(&mut self, number: u64, decided: Decided, bytes: &[u8]) {
        self.answer(number, Side::New, decided, bytes);
    }

    /// Counts what the new version has not returned; it has not taken the last `unread` packets.
    /// Nothing comes any more.
    pub(crate) fn end(&mut self, unread: u64) {
        let mut numbers: Vec<u64> = self.pairs.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(pair) = self.take(number) else { continue };
            match (&pair.old, &pair.new) {
                (Some(_), None) if number + unread < self.next => self.count(number, &pair, Some(DifferenceKind::Kept)),
                _ => self.counts.missed += 1,
            }
        }
        self.frames.clear();
    }

    fn answer(&mut self, number: u64, side: Side, decided: Decided, bytes: &[u8]) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let flow = self.flows.entry(pair.flow).or_default();
        let (last, answer) = match side {
            Side::Old => (&mut flow.last_old, &mut pair.old),
            Side::New => (&mut flow.last_new, &mut pair.new),
        };
        let bytes = if decided.passes() { bytes.to_vec() } else { Vec::new() };
        *answer = Some(Answer { decided, bytes, after: last.replace(number) });
        let (Some(old), Some(new)) = (&pair.old, &pair.new) else { return };
        let kind = if old.decided != new.decided {
            Some(DifferenceKind::Verdict)
        } else if old.bytes != new.bytes {
            Some(DifferenceKind::Bytes)
        } else {
            (!flow.is_broken && old.after != new.after).then_some(DifferenceKind::Order)
        };
        if let Some(pair) = self.take(number) {
            self.count(number, &pair, kind);
        }
    }

    /// A packet is not compared.
    fn forget(&mut self, number: u64) {
        if let Some(pair) = self.pairs.get(&number) {
            self.flows.entry(pair.flow).or_default().is_broken = true;
            self.counts.missed += 1;
            self.take(number);
        }
    }

    /// Takes a packet out that has come back, or is not compared.
    fn take(&mut self, number: u64) -> Option<Pair> {
        let pair = self.pairs.remove(&number)?;
        if self.frames.get(&pair.frame) == Some(&number) {
            self.frames.remove(&pair.frame);
        }
        if let Some(flow) = self.flows.get_mut(&pair.flow) {
            flow.out -= 1;
            if flow.out == 0 {
                self.flows.remove(&pair.flow);
            }
        }
        Some(pair)
    }

    fn count(&mut self, number: u64, pair: &Pair, kind: Option<DifferenceKind>) {
        let counts = &mut self.counts;
        counts.compared += 1;
        let of_kind = match kind {
            None => &mut counts.equal,
            Some(DifferenceKind::Verdict) => &mut counts.verdict,
            Some(DifferenceKind::Bytes) => &mut counts.bytes,
            Some(DifferenceKind::Order) => &mut counts.order,
            Some(DifferenceKind::Kept) => &mut counts.kept,
        };
        *of_kind += 1;
        if let Some(kind) = kind.filter(|_| self.differences.len() < KEPT) {
            let word = |answer: &Option<Answer>| answer.as_ref().map_or_else(|| "kept".into(), |answer| answer.decided.to_string());
            let digits = |answer: &Option<Answer>| answer.as_ref().map_or(String::new(), |answer| hex(&answer.bytes));
            self.differences.push(ShadowDifference {
                number,
                kind,
                packet: hex(&pair.packet),
                old: word(&pair.old),
                new: word(&pair.new),
                old_bytes: digits(&pair.old),
                new_bytes: digits(&pair.new),
            });
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of many flows.
    fn flow(number: u16) -> FlowKey {
        FlowKey::parse(&[], 0, number)
    }

    /// Lets `packets` packets of a flow enter, in frames of their own from 100 on.
    fn entered(packets: u32) -> Comparer {
        let mut comparer = Comparer::default();
        for i in 0..packets {
            assert_eq!(comparer.enters(100 + i, flow(1), &[i as u8]), u64::from(i));
        }
        comparer
    }

    fn kinds(comparer: &Comparer) -> Vec<(u64, DifferenceKind)> {
        comparer.differences().iter().map(|difference| (difference.number, difference.kind)).collect()
    }

    /// Nothing is left of packets that have come back.
    fn is_empty(comparer: &Comparer) -> bool {
        comparer.pairs.is_empty() && comparer.frames.is_empty() && comparer.flows.is_empty()
    }

    #[test]
    fn the_same_answers_are_equal_whichever_comes_first() {
        let mut comparer = entered(4);
        for (frame, decided) in [(100, Decided::Next), (101, Decided::Drop)] {
            comparer.old_returns(frame, decided, b"abc");
        }
        for number in 0..4 {
            let decided = [Decided::Next, Decided::Drop, Decided::ToPort(2), Decided::ToService(3)][number as usize];
            // Bytes of a packet that is dropped do not count.
            comparer.new_returns(number, decided, if number == 1 { b"xyz" } else { b"abc" });
        }
        comparer.old_returns(102, Decided::ToPort(2), b"abc");
        comparer.old_returns(103, Decided::ToService(3), b"abc");
        assert_eq!(comparer.counts(), ShadowCounts { compared: 4, equal: 4, ..ShadowCounts::default() });
        assert!(comparer.differences().is_empty() && is_empty(&comparer));
    }

    #[test]
    fn another_verdict_target_or_byte_is_a_difference() {
        for (old, new, kind) in [
            ((Decided::Next, b"a"), (Decided::Drop, b"a"), DifferenceKind::Verdict),
            ((Decided::Next, b"a"), (Decided::Invalid, b"a"), DifferenceKind::Verdict),
            ((Decided::ToPort(1), b"a"), (Decided::ToPort(2), b"a"), DifferenceKind::Verdict),
            ((Decided::ToPort(1), b"a"), (Decided::ToService(1), b"a"), DifferenceKind::Verdict),
            ((Decided::Next, b"a"), (Decided::Next, b"b"), DifferenceKind::Bytes),
        ] {
            let mut comparer = entered(1);
            comparer.new_returns(0, new.0, new.1);
            comparer.old_returns(100, old.0, old.1);
            assert_eq!((kinds(&comparer), comparer.counts().different()), (vec![(0, kind)], 1), "{old:?} {new:?}");
            let seen = &comparer.differences()[0];
            assert_eq!((seen.old.as_str(), seen.new.as_str()), (&*old.0.to_string(), &*new.0.to_string()));
            assert_eq!((seen.packet.as_str(), seen.old_bytes.as_str()), ("00", "61"));
        }
    }

    #[test]
    fn a_packet_behind_another_of_its_flow_is_in_another_order() {
        let mut comparer = entered(3);
        comparer.enters(200, flow(2), b"other flow");
        for frame in [100, 101, 102, 200] {
            comparer.old_returns(frame, Decided::Next, b"");
        }
        // Flows may overtake each other; packets of one may not.
        for number in [3, 0, 2, 1] {
            comparer.new_returns(number, Decided::Next, b"");
        }
        assert_eq!(kinds(&comparer), [(2, DifferenceKind::Order), (1, DifferenceKind::Order)]);
        assert!(is_empty(&comparer));
    }

    #[test]
    fn what_lacks_a_copy_is_not_compared_and_nothing_is_mistaken_for_it() {
        let mut comparer = entered(3);
        comparer.old_returns(100, Decided::Next, b"");
        comparer.misses(2);
        // The first is known on the old side already. Of the others it is not known.
        comparer.old_returns(101, Decided::Next, b"");
        // The frame has another packet by now.
        assert_eq!(comparer.enters(101, flow(1), b"later"), 3);
        comparer.old_returns(101, Decided::Drop, b"");
        for number in [0, 1, 2] {
            comparer.new_returns(number, Decided::Next, b"");
        }
        comparer.new_returns(3, Decided::Drop, b"");
        assert_eq!(comparer.counts(), ShadowCounts { compared: 2, equal: 2, missed: 4, ..ShadowCounts::default() });
        assert!(is_empty(&comparer));
    }

    #[test]
    fn a_frame_that_comes_again_has_another_packet() {
        let mut comparer = entered(1);
        comparer.enters(100, flow(1), b"again");
        comparer.passes_by(100);
        // It has none that the shadow has.
        comparer.old_returns(100, Decided::Next, b"");
        comparer.new_returns(0, Decided::Drop, b"");
        comparer.new_returns(1, Decided::Drop, b"");
        assert_eq!(comparer.counts(), ShadowCounts { missed: 3, ..ShadowCounts::default() });
        assert!(is_empty(&comparer));
    }

    #[test]
    fn the_order_of_a_flow_is_compared_again_when_it_has_rested() {
        let mut comparer = entered(3);
        comparer.leaves(100);
        for frame in [101, 102] {
            comparer.old_returns(frame, Decided::Next, b"");
        }
        for number in [2, 0, 1] {
            comparer.new_returns(number, Decided::Next, b"");
        }
        assert_eq!(comparer.counts(), ShadowCounts { compared: 2, equal: 2, missed: 1, ..ShadowCounts::default() });
        for frame in [100, 101] {
            comparer.enters(frame, flow(1), b"");
        }
        for frame in [100, 101] {
            comparer.old_returns(frame, Decided::Next, b"");
        }
        for number in [4, 3] {
            comparer.new_returns(number, Decided::Next, b"");
        }
        assert_eq!(comparer.counts().order, 2);
    }

    #[test]
    fn what_only_the_old_version_has_returned_at_the_end_is_kept_by_the_new_one() {
        let mut comparer = entered(6);
        comparer.old_returns(100, Decided::Next, b"");
        comparer.old_returns(101, Decided::Drop, b"");
        comparer.new_returns(2, Decided::Next, b"");
        // The last two are on the ring of the new one.
        comparer.old_returns(104, Decided::Next, b"");
        comparer.end(2);
        assert_eq!(comparer.counts(), ShadowCounts { compared: 2, kept: 2, missed: 4, ..ShadowCounts::default() });
        assert_eq!(kinds(&comparer), [(0, DifferenceKind::Kept), (1, DifferenceKind::Kept)]);
        assert_eq!(comparer.differences()[1].new, "kept");
        assert!(is_empty(&comparer));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut comparer = Comparer::default();
        let mut frame = 0;
        while comparer.has_room() {
            comparer.enters(frame, flow(frame as u16), b"");
            frame += 1;
        }
        assert_eq!(frame as usize, MOST);
        for number in 0..u64::from(frame) {
            comparer.new_returns(number, Decided::Drop, b"");
            comparer.old_returns(number as u32, Decided::Next, b"");
        }
        assert_eq!((comparer.differences().len(), comparer.counts().verdict), (KEPT, MOST as u64));
        assert!(comparer.has_room() && is_empty(&comparer));
    }
}
