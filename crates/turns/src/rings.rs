//! The ring monitor: packets that wait before, in and behind an NF.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_policy::sched::workflow::Reading;
use sluice_shm::page::Counter;
use sluice_shm::ring::Gauge;

use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::hooks::FeedCounters;

/// The rings of one NF, and the next NFs of its packets.
///
/// The manager's own counters, which no NF can write, give the amount of work. The rings' cursors
/// come partly from the NF: wrong ones only end its slices sooner or later.
#[derive(Debug)]
pub struct NfRings {
    handle: Arc<NfHandle>,
    rx: Vec<Gauge>,
    tx: Gauge,
    foreign: Option<Program>,
    /// Possible next NFs on a path.
    next: Vec<Arc<NfHandle>>,
}

impl NfRings {
    /// Of an NF; `foreign` for a foreign program.
    pub fn new(handle: Arc<NfHandle>, foreign: Option<Program>) -> Self {
        let rings = handle.region.page.layout().rx_rings;
        let rx = (0..rings).filter_map(|ring| handle.region.rx_gauge(ring)).collect();
        Self { rx, tx: handle.region.tx_gauge(), handle, foreign, next: Vec::new() }
    }

    pub fn handle(&self) -> &Arc<NfHandle> {
        &self.handle
    }

    /// Sets the possible next NFs.
    pub(crate) fn lead_to(&mut self, next: Vec<Arc<NfHandle>>) {
        self.next = next;
    }

    /// Packets that it has taken from its rings so far, and packets that are there now.
    #[inline]
    pub fn taken(&self) -> (u64, u32) {
        let unread = self.unread();
        (self.handle.posted_returned().0.saturating_sub(unread.into()), unread)
    }

    #[inline]
    fn unread(&self) -> u32 {
        self.rx.iter().map(Gauge::fill).sum()
    }

    /// Begins its slice, at a time in nanoseconds.
    pub(crate) fn turn_began(&mut self, now_ns: u64) {
        self.foreign.iter_mut().for_each(|program| program.turn_began(now_ns));
    }

    /// Ends its slice.
    pub(crate) fn turn_ended(&mut self, now_ns: u64) {
        self.foreign.iter_mut().for_each(|program| program.turn_ended(now_ns));
    }

    /// Packets that the next NFs can still take.
    #[inline]
    fn behind(&self) -> u32 {
        let room = |next: &Arc<NfHandle>| {
            let (posted, returned) = next.posted_returned();
            let room = u64::from(next.limit).saturating_sub(posted.saturating_sub(returned));
            // One that is gone takes and returns nothing. Half of a small ring is enough.
            if !next.alive.load(Ordering::Relaxed) || 2 * room >= u64::from(next.limit) { u64::MAX } else { room }
        };
        u32::try_from(self.next.iter().map(room).min().unwrap_or(u64::MAX)).unwrap_or(u32::MAX)
    }

    #[inline]
    pub fn read(&self) -> Reading {
        let handle = &self.handle;
        if !handle.alive.load(Ordering::Relaxed) {
            return Reading { held: true, ..Reading::default() };
        }
        let (posted, returned) = handle.posted_returned();
        let mut work = u32::try_from(posted.saturating_sub(returned)).unwrap_or(u32::MAX);
        let held = handle.gate.held.load(Ordering::Relaxed);
        if handle.wants_core.load(Ordering::Relaxed) {
            // It has other work than packets: to end.
            return Reading { work: u32::MAX, unread: u32::MAX, room: u32::MAX, ..Reading::default() };
        }
        if let Some(program) = &self.foreign {
            // Packets that it has taken from its wire and those that wait there look the same from
            // here: its input is empty when all are back. It may also have timers, or connections
            // of its own.
            work = work.saturating_add(program.work());
            return Reading { work, unread: u32::MAX, room: self.behind(), held, background: true };
        }
        if handle.region.page.counter(Counter::Ready).load(Ordering::Relaxed) == 0 {
            // It has not started yet.
            return Reading { work: u32::MAX, unread: u32::MAX, room: u32::MAX, ..Reading::default() };
        }
        // The NF's ring goes to the manager, which empties it at once if it can forward.
        let room = self.tx.room().min(self.behind());
        Reading { work, unread: self.unread().min(work), room, held, background: false }
    }
}

/// Time of slices without output, in nanoseconds, after which earlier packets count as dropped.
const QUIET_NS: u64 = 10_000_000;

/// The visible state of a foreign program.
///
/// Packets that wait in it look like packets that it has dropped. As long as packets come out,
/// those inside count as its work. After 10 ms of slices without output, and after each slice of a
/// program that drops by design, only packets that went in since that slice began count. For the
/// rest it has slices as background work.
#[derive(Debug)]
pub struct Program {
    counters: Arc<FeedCounters>,
    /// It has one interface: no packet comes out, and those inside are not counted.
    is_tap: bool,
    /// It drops packets by design.
    eats: bool,
    /// Packets in, packets out, and the time at the begin of its last slice.
    began: (u64, u64, u64),
    /// Packets that have gone in and no longer count as work.
    past: u64,
    /// Time of its last slices, in which no packet came out.
    quiet_ns: u64,
}

impl Program {
    pub fn new(counters: Arc<FeedCounters>, is_tap: bool, eats: bool) -> Self {
        let entered = counters.api.entered.get();
        Self { began: (entered, counters.api.returned.get(), 0), past: entered, quiet_ns: 0, counters, is_tap, eats }
    }

    /// Packets inside that are its work.
    #[inline]
    fn work(&self) -> u32 {
        let since = self.counters.api.entered.get().saturating_sub(self.past);
        let inside = if self.is_tap { u64::MAX } else { self.counters.inside.load(Ordering::Relaxed) };
        u32::try_from(since.min(inside)).unwrap_or(u32::MAX)
    }

    fn turn_began(&mut self, now_ns: u64) {
        self.began = (self.counters.api.entered.get(), self.counters.api.returned.get(), now_ns);
    }

    fn turn_ended(&mut self, now_ns: u64) {
        let (entered, returned, began_ns) = self.began;
        let is_quiet = self.counters.api.returned.get() == returned;
        self.quiet_ns = if is_quiet { self.quiet_ns + now_ns.saturating_sub(began_ns) } else { 0 };
        if self.eats || self.quiet_ns >= QUIET_NS {
            self.past = entered;
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_shm::core_page::CorePage;
    use sluice_shm::descriptor::Descriptor;
    use sluice_shm::page::{Attached, Region, RegionLayout};

    use super::*;

    fn nf(number: u16) -> (Arc<NfHandle>, Attached) {
        let layout = RegionLayout::new(2, 64).unwrap();
        let region = Region::create(layout).unwrap();
        let attached = Attached::map(region.memory.fd(), layout).unwrap();
        let (_, page) = CorePage::create(8, true).unwrap();
        let name = format!("nf.{number}");
        let handle = NfHandle::new(number, name, 0, 1, true, region, page, u32::from(number), 2, Arc::default(), 1.0, None);
        (handle, attached)
    }

    #[test]
    fn what_waits_is_seen_on_every_ring() {
        let ((handle, mut nf), (behind, _)) = (nf(0), nf(1));
        nf.page.counter(Counter::Ready).store(1, Ordering::Relaxed);
        let mut rings = NfRings::new(handle.clone(), None);
        assert_eq!(rings.read(), Reading { work: 0, unread: 0, room: 64, held: false, background: false });
        for (ring, packets) in [(0, 3), (1, 5)] {
            handle.region.rx_producer(ring).unwrap().enqueue(&[Descriptor::default(); 8][..packets]).unwrap();
            handle.counters[ring as usize].api.rx_packets.add(packets as u64);
        }
        assert_eq!(rings.read(), Reading { work: 8, unread: 8, room: 64, held: false, background: false });
        nf.rx[1].dequeue(&mut [Descriptor::default(); 4]).unwrap();
        nf.tx.enqueue(&[Descriptor::default(); 2]).unwrap();
        assert_eq!(
            rings.read(),
            Reading { work: 8, unread: 4, room: 62, held: false, background: false },
            "two in hand, two on the output"
        );
        assert_eq!(rings.taken(), (4, 4));
        handle.counters[0].api.tx_packets.add(2);
        // The next ring is nearly full.
        rings.lead_to(vec![behind.clone()]);
        behind.counters[0].api.rx_packets.add(60);
        assert_eq!(rings.read(), Reading { work: 6, unread: 4, room: behind.limit - 60, held: false, background: false });
        // The next NF has died with them.
        behind.alive.store(false, Ordering::Relaxed);
        assert_eq!(rings.read().room, 62);
    }

    #[test]
    fn one_that_begins_or_ends_wants_the_core_and_a_dead_one_does_not() {
        let (handle, nf) = nf(0);
        let rings = NfRings::new(handle.clone(), None);
        assert!(rings.read().work > 0, "it has not begun");
        nf.page.counter(Counter::Ready).store(1, Ordering::Relaxed);
        assert_eq!(rings.read().work, 0);
        handle.gate.held.store(true, Ordering::Relaxed);
        assert!(rings.read().held);
        handle.wants_core.store(true, Ordering::Relaxed);
        assert!(rings.read().work > 0 && !rings.read().held);
        handle.alive.store(false, Ordering::Relaxed);
        assert_eq!(rings.read(), Reading { held: true, ..Reading::default() });
    }

    /// A program with two interfaces.
    fn program(is_tap: bool, eats: bool) -> (NfRings, Arc<NfHandle>, Arc<FeedCounters>, Attached) {
        let (handle, nf) = nf(0);
        let counters = Arc::new(FeedCounters::default());
        let program = Program::new(counters.clone(), is_tap, eats);
        (NfRings::new(handle.clone(), Some(program)), handle, counters, nf)
    }

    fn go_in(counters: &FeedCounters, n: u64) {
        counters.api.entered.add(n);
        counters.inside.fetch_add(n, Ordering::Relaxed);
    }

    fn come_out(counters: &FeedCounters, n: u64) {
        counters.api.returned.add(n);
        counters.inside.fetch_sub(n, Ordering::Relaxed);
    }

    #[test]
    fn what_is_inside_a_foreign_program_is_its_work() {
        let (rings, handle, counters, _nf) = program(false, false);
        assert_eq!((rings.read().work, rings.read().background), (0, true), "it may have something to do that nobody sees");
        go_in(&counters, 7);
        handle.counters[1].api.rx_packets.add(2);
        assert_eq!((rings.read().work, rings.read().held), (9, false));
    }

    #[test]
    fn what_a_foreign_program_keeps_is_no_work_for_ever() {
        let (mut rings, _, counters, _nf) = program(false, false);
        let mut now_ns = 0;
        let mut turn = |rings: &mut NfRings, ns: u64, come: u64| {
            rings.turn_began(now_ns);
            come_out(&counters, come);
            now_ns += ns;
            rings.turn_ended(now_ns);
            rings.read().work
        };
        go_in(&counters, 10);
        // It is slow, and has slices until it has had enough time.
        assert_eq!(turn(&mut rings, QUIET_NS - 1, 0), 10);
        assert_eq!(turn(&mut rings, 1_000_000, 4), 6, "one that comes out says that it works");
        assert_eq!(turn(&mut rings, QUIET_NS - 1, 0), 6);
        assert_eq!(turn(&mut rings, 1, 0), 0, "it has eaten them");
        go_in(&counters, 3);
        assert_eq!(rings.read().work, 3);
        assert_eq!(turn(&mut rings, 1, 0), 0);
        // Late output only means that it is not quiet any more.
        go_in(&counters, 3);
        assert_eq!(turn(&mut rings, 1, 2), 3);
    }

    #[test]
    fn what_is_eaten_by_design_is_work_for_one_turn() {
        for is_tap in [false, true] {
            let (mut rings, _, counters, _nf) = program(is_tap, true);
            let show = |n| if is_tap { counters.api.entered.add(n) } else { go_in(&counters, n) };
            show(5);
            assert_eq!(rings.read().work, 5);
            rings.turn_began(0);
            show(2);
            assert_eq!(rings.read().work, 7);
            rings.turn_ended(1);
            assert_eq!(rings.read().work, 2, "they went in when the turn had begun");
        }
    }

    #[test]
    fn a_foreign_program_has_the_room_that_is_behind_it() {
        let ((mut rings, ..), (behind, _)) = (program(false, false), nf(1));
        assert_eq!(rings.read().room, u32::MAX);
        rings.lead_to(vec![behind.clone()]);
        behind.counters[0].api.rx_packets.add(60);
        assert_eq!(rings.read().room, behind.limit - 60);
    }
}
