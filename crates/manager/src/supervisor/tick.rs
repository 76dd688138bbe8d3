//! The periodic tick: timers, stop reasons, measurements.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_shm::clock::monotonic_ns;
use sluice_shm::page::Counter;

use super::nfs::{Event, Nf, State};
use super::{ANSWERS, QUIET_TICK, Supervisor, TICK};
use crate::dataplane::Fence;

const SAMPLES: usize = 64;

impl Supervisor {
    /// The longest wait for events: until the next tick, or sooner the end of an NF's pause.
    pub(super) fn until_due(&self, now: Instant) -> Duration {
        // Ticks keep a least distance: each checks every NF.
        let soonest = self.turns.ticked + ANSWERS;
        let left = |due_ns: u64| Duration::from_nanos(due_ns.saturating_sub(monotonic_ns()));
        let due = self.turns.due_ns.map_or(Duration::MAX, |due_ns| left(due_ns).max(soonest.saturating_duration_since(now)));
        let tick = if self.turns.is_quiet { QUIET_TICK } else { TICK };
        due.min(tick.saturating_sub(now.duration_since(self.turns.ticked)))
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.sample_cpu(now);
        self.note_removed();
        self.report_lacking_paths();
        self.free_numbers();
        self.govern_late();
        self.tick_zygotes();
        self.sweep_zygotes();
        self.see_holes();
        self.size_pools();
        self.see_restored();
        self.poll_promises();
        self.drop_former_memory();
        self.see_ports(now);
        self.see_wires(now);
        self.keep_runtime_dir(now);
        self.stop_marked();
        self.watch_health(now);
        self.host.notices.print_rest(now);
        self.tick_nfs();
        self.read_requests();
        self.note_quiet();
    }

    /// Feeds the events that only polling shows: an NF is ready, has drained, or its time is over.
    fn tick_nfs(&mut self) {
        let now_ns = monotonic_ns();
        let look = |nf: &mut Nf| happened(nf, now_ns).map(|event| (nf.number, event));
        let events: Vec<(u16, Event)> = self.nfs.values_mut().filter_map(look).collect();
        events.into_iter().for_each(|(number, event)| self.feed(number, event));
        let looks = self.changes.upgrades.iter().filter_map(Self::next_look_ns);
        self.turns.due_ns = self.nfs.values().filter_map(|nf| nf.life().pause_until_ns()).chain(looks).min();
        self.let_leave();
    }

    /// Checks whether anything moves or is under way. If not, the next tick comes later.
    fn note_quiet(&mut self) {
        let counters = self.ports.iter().flatten().flat_map(|port| &port.counters);
        let moved =
            counters.fold(0u64, |sum, queue| sum.wrapping_add(queue.api.rx_packets.get()).wrapping_add(queue.api.tx_packets.get()));
        let stands = |nf: &Nf| matches!(nf.life().state(), State::Running | State::Failed | State::Expected) && !nf.life().drains();
        self.turns.is_quiet = moved == std::mem::replace(&mut self.turns.moved, moved)
            && self.nfs.values().all(stands)
            && self.changes.upgrades.iter().all(|upgrade| Self::next_look_ns(upgrade).is_some())
            && self.changes.applying.is_empty()
            && self.host.leaving.is_empty()
            && self.host.clearing.is_empty()
            && self.host.in_work == 0
            && !self.nfs.rest_some()
            && self.seen.tracing.is_none()
            && self.promises.are_none()
            && self.services.iter().flatten().all(|service| service.zygote.is_none())
            && self.plane.memories().former().is_empty()
            && self.plane.is_collected();
    }

    /// Removes foreign NFs that are stopping and have no process whose end would be noticed.
    pub(super) fn let_leave(&mut self) {
        let leaving: Vec<u16> = self.nfs.values().filter(|nf| nf.life().is_leaving()).map(|nf| nf.number).collect();
        leaving.into_iter().for_each(|number| self.lost(number));
    }

    /// Samples the CPU time of some processes in turn: each costs a system call.
    fn sample_cpu(&mut self, now: Instant) {
        let mut left = SAMPLES;
        let next = self.nfs.each_from(self.turns.next_sample, |nf| {
            if left == 0 {
                return false;
            }
            let looked = nf.counted.cpu.sample(now, || nf.handle.as_deref().map_or(0, |handle| handle.posted_returned().1));
            left -= usize::from(looked);
            if let (true, Some(foreign), Some(handle), Some(used)) = (looked, &mut nf.foreign, &nf.handle, nf.counted.cpu.last_ns())
            {
                foreign.report_cost(handle, used);
            }
            true
        });
        self.turns.next_sample = next.unwrap_or(self.turns.next_sample);
    }
}

/// The event of an NF that only polling shows.
fn happened(nf: &mut Nf, now_ns: u64) -> Option<Event> {
    if nf.life().drains() {
        // In this order: after the fence, everything that a thread was about to send is counted.
        let passed = nf.removal.fence.as_mut().is_none_or(Fence::is_passed);
        let empty = nf.handle.as_ref().is_none_or(|h| {
            let (posted, returned) = h.posted_returned();
            h.in_flight.load(Ordering::Relaxed) == 0 && posted <= returned
        });
        if passed && empty {
            return Some(Event::Drained);
        }
    }
    if let (State::Starting, Some(handle), None) = (nf.life().state(), &nf.handle, &nf.foreign)
        // Acquire: pairs with the library's store when its handler is made. An NF that reports it
        // only there is seen a little later.
        && handle.region.page.counter(Counter::Ready).load(Ordering::Acquire) > 0
    {
        return Some(Event::Ready);
    }
    nf.life().is_due(now_ns).then_some(Event::Due)
}
