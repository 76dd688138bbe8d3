//! Packets read from a port queue and not let in yet, grouped by path.

use std::sync::Arc;

use sluice_api::config::Overload;
use sluice_shm::BURST;
use sluice_shm::arena::Arena;

use crate::ahead;
use crate::capture::{Point, Sight};
use crate::chain::{PathRegistry, Tables};
use crate::classify::key::FlowKey;
use crate::decision::Packed;
use crate::frame::{CopyPlace, FrameCache, Packet};
use crate::observers::Observers;
use crate::plane::Plane;
use crate::queue::{PortQueue, QueueCounters};
use crate::steer::Wanted;

/// Most bursts that are read before packets are let in.
pub(crate) const MOST_BURSTS: usize = 16;

pub(crate) const VECTOR: usize = MOST_BURSTS * BURST;

/// Packets of a port queue, with what was found out about each.
pub(crate) struct Batch {
    pub(crate) packets: [Packet; VECTOR],
    pub(crate) decisions: [Packed; VECTOR],
    pub(crate) flags: [u8; VECTOR],
    /// TCP flags, where steering or a wake policy needs them.
    pub(crate) tcp: [u8; VECTOR],
    pub(crate) traceable: [bool; VECTOR],
    /// Position of each packet in order of arrival.
    pub(crate) came: [u16; VECTOR],
    is_in_order: bool,
}

/// The positions of packets that are in order of arrival.
const IN_ORDER: [u16; VECTOR] = {
    let (mut places, mut i) = ([0; VECTOR], 0);
    while i < VECTOR {
        (places[i], i) = (i as u16, i + 1);
    }
    places
};

impl Batch {
    /// Forgets the order of former packets.
    #[inline(always)]
    pub(crate) fn put_in_order(&mut self) {
        if !self.is_in_order {
            (self.came, self.is_in_order) = (IN_ORDER, true);
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            packets: [Packet::default(); VECTOR],
            decisions: [Packed::default(); VECTOR],
            flags: [0; VECTOR],
            tcp: [0; VECTOR],
            traceable: [false; VECTOR],
            came: IN_ORDER,
            is_in_order: true,
        }
    }
}

/// A port queue as its thread holds it.
pub struct OwnedQueue {
    /// Number of the port.
    pub port: u16,
    /// The queue.
    pub queue: Box<dyn PortQueue>,
    /// Its counters.
    pub counters: Arc<QueueCounters>,
    pub(crate) waits: bool,
    /// Number of the arena that it receives into, if it allocates frames itself.
    pub(crate) memory: u8,
    pub(crate) batch: Box<Batch>,
    gathering: Gathering,
    /// Whether it holds a packet for which NFs are woken at once.
    pub(crate) has_urgent: bool,
    /// Keys of the packets that wait for an instance, by position of arrival.
    pub(crate) waiting: Box<[(FlowKey, Wanted); VECTOR]>,
    /// Whether the active trace covers some packets of the queue: the [`Batch::traceable`] ones.
    pub(crate) traces_some: bool,
    /// Packets that were read last and not let in yet: `from..to`.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// What the decisions about the packets held are based on.
    pub(crate) basis: Basis,
    pub(crate) pace: Pace,
    pub(crate) sole: Sole,
}

/// The path of all packets of a queue, if there is one: no rule looks at them, and no service of
/// their chain has several instances.
#[derive(Debug, Default)]
pub(crate) struct Sole {
    /// Generation of the tables for which it was looked for.
    pub(crate) under: Option<u32>,
    /// Number of the path.
    pub(crate) path: Option<u32>,
}

/// What decisions depend on. A decision with an older basis is made again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Basis {
    pub(crate) generation: u32,
    /// As [`ChooseInstances::moved`](crate::steer::ChooseInstances::moved).
    pub(crate) moved: u32,
}

/// How often a queue is read when its packets are not let in.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    backoff: u32,
    skip: u32,
}

impl Pace {
    #[inline(always)]
    pub(crate) fn must_skip(&mut self) -> bool {
        let must_skip = self.skip > 0;
        self.skip -= u32::from(must_skip);
        must_skip
    }

    /// Notes how many of the packets read were let in.
    #[inline(always)]
    pub(crate) fn note(&mut self, let_in: usize) {
        self.backoff = if let_in == 0 { (self.backoff * 2 + 1).min(MAX_BACKOFF) } else { 0 };
        self.skip = self.backoff;
    }
}

#[derive(Default)]
struct Gathering {
    spare: Box<Batch>,
    groups: Box<Groups>,
    bursts: usize,
    /// Whether the packets held alternate between paths.
    is_mixed: bool,
    /// Packets before this one have been fetched for.
    fetched: usize,
    /// Reads left to skip gathering for, because the last one was not worth it.
    ungathered: u32,
}

/// Most rounds that a port is skipped when nothing is let in: packets inside get the time.
const MAX_BACKOFF: u32 = 32;

impl OwnedQueue {
    /// A queue that belongs to a thread.
    pub fn new(port: u16, mut queue: Box<dyn PortQueue>, overload: Overload, counters: Arc<QueueCounters>) -> Self {
        queue.count_with(&counters);
        queue.begin();
        Self {
            port,
            queue,
            counters,
            waits: overload == Overload::Wait,
            memory: 0,
            batch: Box::default(),
            gathering: Gathering { bursts: 1, ..Gathering::default() },
            has_urgent: false,
            waiting: Box::new([Default::default(); VECTOR]),
            traces_some: false,
            from: 0,
            to: 0,
            basis: Basis::default(),
            pace: Pace::default(),
            sole: Sole::default(),
        }
    }

    /// Bursts worth reading before packets are let in.
    #[inline(always)]
    pub(crate) fn bursts(&self) -> usize {
        if self.waits { 1 } else { self.gathering.bursts }
    }

    /// [Fetches](Plane::fetch_ahead) what the next packets held will touch, if they go to many
    /// paths: once for each packet, however long it waits.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&mut self, plane: &Plane, registry: &PathRegistry) {
        if self.gathering.is_mixed && self.from >= self.gathering.fetched {
            self.gathering.fetched = self.to.min(self.from + BURST);
            plane.fetch_ahead(registry, &self.batch.decisions[self.from..self.gathering.fetched]);
        }
    }

    /// Forgets for which packets that was done: they are others, or go to other paths.
    #[inline(always)]
    pub(crate) fn fetch_anew(&mut self) {
        self.gathering.fetched = 0;
    }

    /// Shows the packets that it has just read to the captures.
    #[cold]
    pub(crate) fn show(&self, observers: &mut Observers, registry: &PathRegistry, arena: &Arena, now_ns: u64) {
        let mut packets = &self.batch.packets[self.from..self.to];
        for run in self.batch.decisions[self.from..self.to].chunk_by(|a, b| a == b) {
            let (these, others) = packets.split_at(run.len());
            let point = Point::Received(self.port);
            let sight = match registry.of(run[0]) {
                Some(path) => Sight::on(path, point),
                None => Sight { point, why: None, place: None, ingress: Some(self.port), chain: None, hops: &[] },
            };
            observers.show(arena, now_ns, &sight, these);
            observers.meter(arena, now_ns, &sight, these);
            packets = others;
        }
    }

    /// Receives into the arena that the tables name from now on. If it is another one, the packets
    /// held are decided about again, once they have [moved](Self::move_in).
    pub(crate) fn use_memory(&mut self, tables: &Tables) {
        if let Some(Some(port)) = tables.ports.get(usize::from(self.port))
            && port.memory != self.memory
        {
            self.memory = port.memory;
            self.basis.generation = self.basis.generation.wrapping_sub(1);
        }
    }

    /// Copies the packets held into the arena that it receives into: a tenant that the port was
    /// alone for can write to where they lie. False: no frame is free there for some, or there is
    /// none.
    #[cold]
    pub(crate) fn move_in(&mut self, frames: &mut FrameCache) -> bool {
        let held = &mut self.batch.packets[self.from..self.to];
        !frames.are_several() || frames.bring(held, self.memory, CopyPlace::Gate, |_, _| {}) == held.len()
    }
}

/// Reads that are not gathered after one in which each path's packets were together.
const UNGATHERED: u32 = 64;
/// Packets a path: above the first number fewer bursts are read at a time, below the second more.
/// Many packets a path need not wait in the caches for those behind them; with few, each post costs
/// more than the packets that it carries.
const ENOUGH: (usize, usize) = (16, 8);

/// Groups packets by path, keeping their order within a path, so that each NF is posted to once.
/// Where flows alternate, posting is most of a packet's cost here. Packets of different paths
/// change places. The outcome sets how many bursts are read next. Packets that wait are left as
/// they came.
#[inline]
pub(crate) fn gather(owned: &mut OwnedQueue) {
    let (from, to) = (owned.from, owned.to);
    let runs = owned.batch.decisions[from..to].windows(2).filter(|pair| pair[0] != pair[1]).count();
    owned.gathering.is_mixed = runs >= ahead::MANY;
    if owned.waits {
        return;
    }
    let gathering = &mut owned.gathering;
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

/// Working memory of the gathering.
pub(crate) struct Groups {
    /// Hash table with the number of a path's group, plus 1 (0: none), indexed by the low bits of
    /// the path's number with linear probing; path numbers are assigned consecutively.
    slots: [u16; 2 * VECTOR],
    paths: [Packed; VECTOR],
    /// Packets of each group; then the position of its next one.
    places: [u16; VECTOR],
    of: [u16; VECTOR],
}

impl Default for Groups {
    fn default() -> Self {
        Self { slots: [0; 2 * VECTOR], paths: [Packed::default(); VECTOR], places: [0; VECTOR], of: [0; VECTOR] }
    }
}

impl Groups {
    /// Copies packets `from..to` grouped by path. Returns the number of paths.
    fn gather(&mut self, batch: &Batch, from: usize, to: usize, into: &mut Batch) -> usize {
        let last = (2 * (to - from)).next_power_of_two() - 1;
        self.slots[..=last].fill(0);
        into.is_in_order = false;
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
            *of = group as u16;
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
    use sluice_shm::arena::Range;

    use super::*;
    use crate::chain::PortInfo;
    use crate::frame::{FramePool, NO_ARENA, Stack};

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

    /// A queue that holds packets of these paths; each packet's frame is its position.
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
            (batch.flags[i], batch.tcp[i], batch.came[i], batch.traceable[i]) = (mark, mark ^ 1, i as u16, i.is_multiple_of(3));
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
            // The reference: a stable sort by the position of each path's first packet.
            let mut wanted: Vec<usize> = (from..to).collect();
            wanted.sort_by_key(|i| paths[from..to].iter().position(|path| *path == paths[*i]));
            let Batch { packets, decisions: got, flags, tcp, traceable, came, .. } = &*owned.batch;
            let all = |i: usize| (packets[i].frame, got[i].bits(), flags[i], tcp[i], traceable[i], came[i]);
            let got: Vec<_> = (from..to).map(all).collect();
            let came = |i: &usize| (*i as u32, paths[*i], *i as u8, *i as u8 ^ 1, i.is_multiple_of(3), *i as u16);
            prop_assert_eq!(got, wanted.iter().map(came).collect::<Vec<_>>());
        }
    }

    #[test]
    fn packets_held_move_into_the_arena_that_is_received_into_now() {
        let range = Range::reserve(2, 64, 2240).unwrap();
        range.make(0, 64, false).unwrap();
        range.make(1, 64, false).unwrap();
        let mut frames = FrameCache::over(range.whole(), range.shift(), 2);
        for number in [0u8, 1] {
            frames.add(number, Stack::new(FramePool::from(u32::from(number) << range.shift(), 64), 512));
        }
        let mut owned = holding(&[7; 40]);
        let mut taken = [0; 40];
        assert_eq!(frames.alloc(&mut taken), 40);
        for (packet, frame) in owned.batch.packets.iter_mut().zip(taken) {
            *packet = Packet::fresh(frame, 60);
            assert!(frames.arena().write(frame, packet.offset, &[frame as u8; 60]));
        }
        owned.from = 8;
        owned.basis = Basis { generation: 5, moved: 0 };
        let mut receive_into = |owned: &mut OwnedQueue, memory: u8| {
            let port = PortInfo { name: "p".into(), overload: Overload::Drop, owners: vec![0], memory };
            owned.use_memory(&Tables { ports: vec![Some(port)], ..Tables::default() });
            let is_there = owned.move_in(&mut frames);
            (owned.basis.generation == 5, is_there)
        };
        assert_eq!(receive_into(&mut owned, 0), (true, true), "nothing changes");
        assert_eq!(receive_into(&mut owned, NO_ARENA), (false, false), "there is no arena");
        assert_eq!(owned.batch.packets[..40].iter().map(|packet| packet.frame).collect::<Vec<_>>(), taken);
        assert_eq!(receive_into(&mut owned, 1), (false, true));
        for (i, (packet, was)) in owned.batch.packets[..40].iter().zip(taken).enumerate() {
            assert_eq!(frames.arena_of(packet.frame), u8::from(i >= 8), "{i}");
            let mut bytes = [0; 60];
            assert!(frames.arena().read(packet.frame, packet.offset, &mut bytes));
            assert_eq!(bytes, [was as u8; 60]);
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
        assert_eq!([32, 64, 128, 256, 512].map(|packets| after(packets, 45)), [2, 4, 8, 16, 16]);
        assert_eq!([after(512, 40), after(512, 32), after(256, 4), after(128, 4), after(64, 4)], [16, 8, 4, 2, 1]);
        assert_eq!([after(32, 32), after(32, 2)], [2, 1], "16 for each are enough, and more would stay longer in no cache");
        assert_eq!([after(32, 45), after(32, 1)], [2, 1]);
        assert_eq!([32, 64, 128, 256, 512].map(|packets| after(packets, 900)), [2, 4, 8, 16, 1], "nothing was worth it");
        assert_eq!(after(32, 4), 1);
        assert_eq!(owned.gathering.ungathered, UNGATHERED - 1, "for a while it is not tried");
        let runs: Vec<u32> = (0..32).map(|i| i / 8).collect();
        let mut owned = holding(&runs);
        gather(&mut owned);
        assert_eq!((owned.gathering.bursts, owned.gathering.ungathered), (1, UNGATHERED), "each path is in one place already");
    }
}
