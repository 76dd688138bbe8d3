//! How a packet thread waits while idle, and what wakes it.
//!
//! # Problem
//! A thread that always polls takes a whole core; one that naps between polls wakes thousands of
//! times a second, and packets wait for the end of a nap. The kernel knows when a packet comes to a
//! socket, but not when an NF returns one, or when another packet thread has work for this one.
//!
//! # Approach
//! A thread rests only while no packet is at an NF, on a lane, in a buffer or at a gate. Then every
//! event comes from outside and can be waited for: packets, by the descriptor of their port
//! ([`Arrivals`]); commands and work from other packet threads, by the thread's [`Alarm`]. One
//! `ppoll` waits for all of them, until the next clock-driven work at most.
//!
//! A thread with work for one that may rest makes it visible and then checks whether that one
//! rests; the resting thread says that it rests and then looks for work. One of the two sees the
//! other. So a ring costs a system call only if the thread rests.
//!
//! Where a thread cannot rest, it naps between polls ([`Idle::Sleep`]), or does so after a second
//! ([`Idle::Adaptive`]). The kernel may put off the end of a nap to join it with other timers, by
//! 50 µs unless asked not to: as long as the shortest nap. So the threads ask it not to.
//!
//! # Limits
//! A port without such an event (a DPDK device, a generator, a file) is polled, and so is an NF
//! that has packets.

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{HOUSEKEEPING_NS, Worker};
use crate::handle::NfHandle;
use crate::queue::Arrivals;
use sluice_api::config::Idle;

/// Nanoseconds without a packet after which a thread may sleep.
pub(super) const IDLE_NS: u64 = 1_000_000;
/// Length of naps in nanoseconds: first, and longest. They grow with the time without packets.
const NAPS_NS: (u64, u64) = (50_000, 500_000);
/// A nap is this fraction of the time without a packet.
const NAP_PART: u64 = 20;
/// Naps end this long before the end of a slice, in nanoseconds: about the kernel's wake-up delay.
const WINDOW_NS: u64 = 80_000;
/// Nanoseconds without a packet after which the thread yields its core between polls. On a small
/// host the kernel may run an answering process there, which would wait for this thread's rest.
const YIELD_NS: u64 = 20_000;
/// A yield this long, in nanoseconds, means that others use the core: a thread that is woken gets
/// it back sooner than one that yields.
const AWAY_NS: u64 = 100_000;
/// Nanoseconds without a packet after which a thread with a port to poll naps between polls.
const LOOKED_AT_NS: u64 = 1_000_000_000;
/// Longest rest of a thread with a scheduler from outside: an NF may need to run without a packet.
const SHARED_NS: u64 = 10_000_000;
/// Flow table slots visited for ageing after a rest, which replaces thousands of rounds.
pub(super) const AGE_RESTED: usize = 4096;

/// Ends the calling thread's naps in time: the kernel does not put them off.
pub(super) fn nap_exactly() {
    // Without it, naps are longer.
    let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
}

/// Whether no packet is on its way to an NF or inside it.
fn has_nothing(handle: &NfHandle) -> bool {
    let (posted, returned) = handle.posted_returned();
    posted <= returned && handle.in_flight.load(Ordering::Relaxed) == 0
}

impl Worker {
    /// Makes this round's work visible to the other threads.
    #[inline]
    pub(super) fn ring_others(&self, has_worked: bool) {
        if self.setup.others.is_empty() {
            return;
        }
        if has_worked {
            // Relaxed: a reader that is too early sees the time of the round before.
            self.setup.alarm.worked_ns.store(self.setup.plane.now_ns, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.setup.others.iter().for_each(|alarm| alarm.ring_after_fence());
    }

    /// Waits after a round without work; the last work was `idle_ns` ago. Returns whether it
    /// rested.
    #[inline]
    pub(super) fn wait(&mut self, now: u64, idle_ns: u64) -> bool {
        if idle_ns <= YIELD_NS
            || self.setup.settings.idle == Idle::Spin
            || self.setup.settings.idle == Idle::Sleep && idle_ns <= IDLE_NS
        {
            std::hint::spin_loop();
            return false;
        }
        let was_away = self.yielded_ns.take().is_some_and(|at| now.saturating_sub(at) > AWAY_NS);
        if idle_ns <= IDLE_NS && !was_away {
            self.yielded_ns = Some(now);
            std::thread::yield_now();
            return false;
        }
        self.wait_long(now, idle_ns.max(IDLE_NS + 1))
    }

    #[cold]
    fn wait_long(&mut self, now: u64, idle_ns: u64) -> bool {
        // Work of another thread may concern this one, even without own packets: it wakes NFs.
        let is_adaptive = self.setup.settings.idle == Idle::Adaptive;
        let others = self.setup.others.iter().filter(|_| is_adaptive);
        let others_ns = others.map(|alarm| alarm.worked_ns.load(Ordering::Relaxed)).max().unwrap_or(0);
        let idle_ns = idle_ns.min(now.saturating_sub(others_ns));
        if idle_ns <= IDLE_NS {
            std::hint::spin_loop();
            return false;
        }
        if self.is_empty() {
            match self.rest(now) {
                Some(has_rested) => return has_rested,
                None if self.setup.settings.idle == Idle::Adaptive && idle_ns <= LOOKED_AT_NS => {
                    std::hint::spin_loop();
                    return false;
                }
                None => {}
            }
        }
        match self.nap(now, idle_ns) {
            Some(nap) => std::thread::sleep(nap),
            None => std::hint::spin_loop(),
        }
        false
    }

    /// How long this thread may sleep after `idle_ns` without packets: longer with time, but not
    /// beyond the end of a slice for which others wait. `None` if that is near.
    fn nap(&self, now: u64, idle_ns: u64) -> Option<Duration> {
        let mut nap_ns = (idle_ns / NAP_PART).clamp(NAPS_NS.0, NAPS_NS.1);
        if self.sharings.iter().any(|sharing| !sharing.is_idle()) {
            nap_ns = NAPS_NS.0;
        }
        if let Some(deadline_ns) = self.sharings.iter().filter_map(|sharing| sharing.deadline_ns()).min() {
            nap_ns = nap_ns.min(deadline_ns.saturating_sub(now + WINDOW_NS));
        }
        if let Some(next_ns) = self.setup.plane.timers.next_ns() {
            nap_ns = nap_ns.min(next_ns.saturating_sub(now));
        }
        (nap_ns > 0).then_some(Duration::from_nanos(nap_ns))
    }

    /// Whether no packet is inside that this thread would have to handle.
    fn is_empty(&mut self) -> bool {
        let setup = &mut self.setup;
        let plane = &setup.plane;
        let waits = setup.rx.waiting() > 0
            || setup.rx.chains.as_ref().is_some_and(|chains| chains.has_released())
            || !self.closing.is_empty()
            // Packets may be out, with what works on them elsewhere.
            || self.sharings.iter().any(|sharing| !sharing.is_idle())
            || self.throttling.as_ref().is_some_and(|throttling| !throttling.is_quiet())
            || self.queues.iter().any(|owned| owned.from < owned.to)
            || self.feeders.iter().any(|feeder| feeder.holds_packets())
            || plane.out.iter().any(|buffer| !buffer.packets.is_empty());
        if waits || setup.lanes_in.iter_mut().flatten().any(|lane| lane.available() != Ok(0)) {
            return false;
        }
        if !(setup.roles.tx || setup.roles.wakeup || setup.roles.monitor) {
            return true;
        }
        // The NF that was busy the last time may still be.
        let last = plane.nfs.get(self.last_busy).into_iter().flatten();
        if last.into_iter().any(|end| !has_nothing(&end.handle)) {
            return false;
        }
        let busy = plane.nfs.iter().position(|end| end.as_ref().is_some_and(|end| !has_nothing(&end.handle)));
        self.last_busy = busy.unwrap_or(self.last_busy);
        busy.is_none()
    }

    /// Rests until an event or due work, and returns whether; `None` if a port must be polled.
    fn rest(&mut self, now: u64) -> Option<bool> {
        let alarm = self.setup.alarm.clone();
        alarm.begin();
        // A thread with earlier work saw this one not resting.
        if alarm.is_raised() || !self.is_empty() {
            alarm.end();
            return Some(false);
        }
        let mut fds = vec![PollFd::new(&alarm.wake, PollFlags::IN)];
        let is_read = self.setup.roles.rx && !self.rx_stopped;
        let queues = self.queues.iter().filter(|_| is_read).map(|owned| owned.queue.arrivals());
        for arrivals in queues.chain(self.feeders.iter().flat_map(|feeder| feeder.arrivals())) {
            match arrivals {
                Arrivals::Never => {}
                Arrivals::Readable(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                Arrivals::Looked => {
                    alarm.end();
                    return None;
                }
            }
        }
        let mut rest_ns = HOUSEKEEPING_NS;
        if !self.sharings.is_empty() {
            rest_ns = SHARED_NS;
        }
        if let Some(next_ns) = self.setup.plane.timers.next_ns() {
            rest_ns = rest_ns.min(next_ns.saturating_sub(now));
        }
        let rest = Duration::from_nanos(rest_ns);
        let rest = Timespec { tv_sec: rest.as_secs() as _, tv_nsec: rest.subsec_nanos().into() };
        // An error only costs an extra poll.
        let _ = poll(&mut fds, Some(&rest));
        alarm.end();
        if !fds[0].revents().is_empty() {
            alarm.hush();
        }
        for fd in &fds[1..] {
            if fd.revents().contains(PollFlags::ERR) {
                // Cleared, or it would end each rest: an interface went down.
                let _ = rustix::net::sockopt::socket_error(fd.as_fd());
            }
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn naps_are_not_put_off() {
        let slack_ns = std::thread::spawn(|| {
            super::nap_exactly();
            rustix::thread::current_timer_slack().unwrap()
        });
        assert_eq!(slack_ns.join().unwrap(), 1);
    }
}
