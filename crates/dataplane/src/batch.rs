//! Packets of a port queue that were read and still have to be let in, and how those of one path are put together.

use std::sync::Arc;

use sluice_api::config::Overload;
use sluice_shm::BURST;

use crate::chain::Tables;
use crate::classify::key::{FlowKey, SHORT};
use crate::decision::Packed;
use crate::frame::Packet;
use crate::queue::{PortQueue, QueueCounters};
use crate::steer::Wanted;

/// Most bursts that are read before packets are let in.
pub(crate) const MOST_BURSTS: usize = 8;

/// Packets that are read at most before they are let in.
pub(crate) const VECTOR: usize = MOST_BURSTS * BURST;

/// Packets of a port queue, with what was found about each.
pub(crate) struct Batch {
    pub(crate) packets: [Packet; VECTOR],
    pub(crate) decisions: [Packed; VECTOR],
    /// Flags of their descriptors.
    pub(crate) flags: [u8; VECTOR],
    /// TCP flags, where a director or a waker wants to know.
    pub(crate) tcp: [u8; VECTOR],
    pub(crate) traceable: [bool; VECTOR],
    /// As which of them it came.
    pub(crate) came: [u8; VECTOR],
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            packets: [Packet::default(); VECTOR],
            decisions: [Packed::default(); VECTOR],
            flags: [0; VECTOR],
            tcp: [0; VECTOR],
            traceable: [false; VECTOR],
            came: [0; VECTOR],
        }
    }
}

/// A port queue with its thread.
pub struct OwnedQueue {
    /// Number of the port.
    pub port: u16,
    /// The queue.
    pub queue: Box<dyn PortQueue>,
    /// Its counters.
    pub counters: Arc<QueueCounters>,
    pub(crate) waits: bool,
    /// Number of the arena that its packets are received into, of those that it takes frames for by itself.
    pub(crate) memory: u8,
    pub(crate) batch: Box<Batch>,
    gathering: Gathering,
    /// Whether there is a packet that NFs are woken for at once.
    pub(crate) has_urgent: bool,
    /// Keys of the packets that wait for an instance, by where they came.
    pub(crate) waiting: Box<[(FlowKey, Wanted); VECTOR]>,
    /// Whether the trace that goes on is about packets of one rule: those that are [`Batch::traceable`].
    pub(crate) traces_rule: bool,
    /// Copies of the first bytes of the packets of a burst.
    pub(crate) headers: [[u8; SHORT]; BURST],
    /// Packets that were read last and still have to be let in: `from..to`.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// What the paths of the packets held were decided by.
    pub(crate) basis: Basis,
    pub(crate) pace: Pace,
}

/// What decisions are made by. Packets whose decisions have another basis are looked at again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Basis {
    /// Generation of the tables.
    pub(crate) generation: u32,
    /// As [`ChooseInstances::moved`](crate::steer::ChooseInstances::moved).
    pub(crate) moved: u32,
}

/// How often a queue is read whose packets are not let in.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    backoff: u32,
    skip: u32,
}

impl Pace {
    /// Whether the queue is left alone in this round.
    #[inline(always)]
    pub(crate) fn must_skip(&mut self) -> bool {
        let must_skip = self.skip > 0;
        self.skip -= u32::from(must_skip);
        must_skip
    }

    /// Packets were read, and so many let in.
    #[inline(always)]
    pub(crate) fn note(&mut self, let_in: usize) {
        self.backoff = if let_in == 0 { (self.backoff * 2 + 1).min(MAX_BACKOFF) } else { 0 };
        self.skip = self.backoff;
    }
}

/// What packets are put together with, and whether that is worth it.
struct Gathering {
    /// What gathered packets are put into.
    spare: Box<Batch>,
    groups: Box<Groups>,
    /// How many bursts are read before packets are let in.
    bursts: usize,
    /// Reads that are not gathered, because the last one was not worth it.
    ungathered: u32,
}

/// Rounds that a port is left alone after a burst of which nothing was let in: under overload the time goes to packets inside.
const MAX_BACKOFF: u32 = 32;

impl OwnedQueue {
    /// A queue for a thread.
    pub fn new(port: u16, mut queue: Box<dyn PortQueue>, overload: Overload, counters: Arc<QueueCounters>) -> Self {
        queue.count_with(&counters);
        Self {
            port,
            queue,
            counters,
            waits: overload == Overload::Wait,
            memory: 0,
            batch: Box::default(),
            gathering: Gathering { spare: Box::default(), groups: Box::default(), bursts: 1, ungathered: 0 },
            has_urgent: false,
            waiting: Box::new([Default::default(); VECTOR]),
            traces_rule: false,
            headers: [[0; SHORT]; BURST],
            from: 0,
            to: 0,
            basis: Basis::default(),
            pace: Pace::default(),
        }
    }

    /// How many bursts are worth reading before packets are let in.
    #[inline(always)]
    pub(crate) fn bursts(&self) -> usize {
        if self.waits { 1 } else { self.gathering.bursts }
    }

    /// Receives into the arena that the tables say from now on.
    pub(crate) fn use_memory(&mut self, tables: &Tables) {
        if let Some(Some(port)) = tables.ports.get(usize::from(self.port)) {
            self.memory = port.memory;
        }
    }
}

/// Reads that are left as they are after one in which no path had packets in several places.
const UNGATHERED: u32 = 64;
/// Packets for each path from which on less is read at a time, and below which more is: many for each, and packets need not wait in the
/// caches for those behind them; few, and each posting costs more than what it carries.
const ENOUGH: (usize, usize) = (16, 8);

/// Puts packets of one path behind each other, in the order in which they came, so that each NF is posted to once: where flows come in turn,
/// that is most of what a packet costs here. Packets of different paths change places; those of one do not. How many bursts are read next
/// follows from what there was to gather.
#[inline]
pub(crate) fn gather(owned: &mut OwnedQueue) {
    let (from, to) = (owned.from, owned.to);
    let gathering = &mut owned.gathering;
    let runs = owned.batch.decisions[from..to].windows(2).filter(|pair| pair[0] != pair[1]).count();
    if runs < 2 {
        gathering.bursts = 1;
        return;
    }
    if gathering.ungathered > 0 {
        gathering.ungathered -= 1;
        return;
    }
    let groups = gathering.groups.gather(&owned.batch, from, to, &mut gathering.spare);
    std::mem::swap(&mut owned.batch, &mut gathering.spare);
    let each = (to - from) / groups;
    if groups > runs && (gathering.bursts == MOST_BURSTS || each >= ENOUGH.1) {
        (gathering.bursts, gathering.ungathered) = (1, UNGATHERED);
    } else if each < ENOUGH.1 {
        gathering.bursts = (gathering.bursts * 2).min(MOST_BURSTS);
    } else if each >= ENOUGH.0 {
        gathering.bursts = (gathering.bursts / 2).max(1);
    }
}

/// What packets are gathered with.
pub(crate) struct Groups {
    /// Number of a path's group, plus 1, at the low bits of the path's number or the next free place: numbers are given in turn. 0: none.
    slots: [u16; 2 * VECTOR],
    /// Path of each group.
    paths: [Packed; VECTOR],
    /// Packets of each group; then, where its next one goes.
    places: [u16; VECTOR],
    /// Group of each packet.
    of: [u8; VECTOR],
}

impl Default for Groups {
    fn default() -> Self {
        Self { slots: [0; 2 * VECTOR], paths: [Packed::default(); VECTOR], places: [0; VECTOR], of: [0; VECTOR] }
    }
}

impl Groups {
    /// Copies packets `from..to` so that those of one path are together. Says how many paths there are.
    fn gather(&mut self, batch: &Batch, from: usize, to: usize, into: &mut Batch) -> usize {
        let last = (2 * (to - from)).next_power_of_two() - 1;
        self.slots[..=last].fill(0);
        let mut groups = 0;
        for (path, of) in batch.decisions[from..to].iter().zip(&mut self.of[from..to]) {
            let mut slot = path.bits() as usize & last;
            let group = loop {
                match usize::from(self.slots[slot]) {
                    0 => {
                        (self.paths[groups], self.places[groups]) = (*path, 0);
                        groups += 1;
                        self.slots[slot] = groups as u16;
                        break groups - 1;
                    }
                    group if self.paths[group - 1] == *path => break group - 1,
                    _ => slot = (slot + 1) & last,
                }
            };
            *of = group as u8;
            self.places[group] += 1;
        }
        let mut next = from as u16;
        for place in &mut self.places[..groups] {
            next += std::mem::replace(place, next);
        }
        for i in from..to {
            let place = &mut self.places[usize::from(self.of[i])];
            let at = usize::from(*place);
            *place += 1;
            into.packets[at] = batch.packets[i];
            into.decisions[at] = batch.decisions[i];
            into.flags[at] = batch.flags[i];
            into.tcp[at] = batch.tcp[i];
            into.traceable[at] = batch.traceable[i];
            into.came[at] = batch.came[i];
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::frame::FrameCache;

    /// A queue without packets.
    struct Nothing;

    impl PortQueue for Nothing {
        fn rx_burst(&mut self, _out: &mut [Packet], _frames: &mut FrameCache, _now_ns: u64) -> usize {
            0
        }

        fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
            frames.free_packets(packets);
            packets.len()
        }
    }

    /// A queue that holds packets of these paths, each known by its place.
    fn holding(paths: &[u32]) -> OwnedQueue {
        let mut owned = OwnedQueue::new(0, Box::new(Nothing), Overload::Drop, Arc::default());
        hold(&mut owned, paths);
        owned
    }

    fn hold(owned: &mut OwnedQueue, paths: &[u32]) {
        let batch = &mut owned.batch;
        batch.decisions.iter_mut().zip(paths).for_each(|(to, path)| *to = Packed::path(*path));
        for i in 0..paths.len() {
            batch.packets[i].frame = i as u32;
            let mark = i as u8;
            (batch.flags[i], batch.tcp[i], batch.came[i], batch.traceable[i]) = (mark, mark ^ 1, mark, i.is_multiple_of(3));
        }
        (owned.from, owned.to) = (0, paths.len());
    }

    proptest! {
        #[test]
        fn gathered_packets_are_the_same_in_order_by_path(
            paths in (1u32..300).prop_flat_map(|most| prop::collection::vec(0..most, 1..=VECTOR)),
            step in 1u32..1000,
            from in 0usize..4,
        ) {
            let paths: Vec<u32> = paths.iter().map(|path| path * step).collect();
            let mut owned = holding(&paths);
            let to = paths.len();
            let from = from.min(to);
            owned.from = from;
            gather(&mut owned);
            // As a stable sort by the place of a path's first packet would have it.
            let mut wanted: Vec<usize> = (from..to).collect();
            wanted.sort_by_key(|i| paths[from..to].iter().position(|path| *path == paths[*i]));
            let Batch { packets, decisions: got, flags, tcp, traceable, came } = &*owned.batch;
            let all = |i: usize| (packets[i].frame, got[i].bits(), flags[i], tcp[i], traceable[i], came[i]);
            let got: Vec<_> = (from..to).map(all).collect();
            let came = |i: &usize| (*i as u32, paths[*i], *i as u8, *i as u8 ^ 1, i.is_multiple_of(3), *i as u8);
            prop_assert_eq!(got, wanted.iter().map(came).collect::<Vec<_>>());
        }
    }

    #[test]
    fn more_is_read_where_that_gathers_more() {
        let mut owned = holding(&[]);
        let mut after = |packets: usize, paths: u32| {
            let paths: Vec<u32> = (0..packets as u32).map(|i| i % paths).collect();
            hold(&mut owned, &paths);
            gather(&mut owned);
            owned.gathering.bursts
        };
        assert_eq!([after(32, 45), after(64, 45), after(128, 45), after(256, 45)], [2, 4, 8, 8]);
        assert_eq!([after(256, 20), after(256, 16), after(128, 4), after(64, 4)], [8, 4, 2, 1]);
        assert_eq!([after(32, 32), after(32, 2)], [2, 1], "16 for each are enough, and more would stay longer in no cache");
        assert_eq!([after(32, 45), after(32, 1)], [2, 1]);
        assert_eq!([after(32, 900), after(64, 900), after(128, 900), after(256, 900)], [2, 4, 8, 1], "nothing was worth it");
        assert_eq!(after(32, 4), 1);
        assert_eq!(owned.gathering.ungathered, UNGATHERED - 1, "for a while it is not tried");
        let runs: Vec<u32> = (0..32).map(|i| i / 8).collect();
        let mut owned = holding(&runs);
        gather(&mut owned);
        assert_eq!((owned.gathering.bursts, owned.gathering.ungathered), (1, UNGATHERED), "each path is in one place already");
    }
}
