//! A packet thread's ends of an NF's rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_api::config::Sched;
use sluice_policy::sched::backpressure::Watermarks;
use sluice_policy::sched::ecn::{self, Marker};
use sluice_shm::ring::{Consumer, Producer};

use crate::handle::NfHandle;
use crate::handlers::Inline;
use crate::succession::Succession;
use crate::wake::{Timers, Waker};

/// A manager thread's end of one NF's rx ring.
pub struct NfEnd {
    /// The NF.
    pub handle: Arc<NfHandle>,
    /// Producer of this thread's rx ring of the NF; `None` once the NF is gone.
    pub producer: Option<Producer>,
    /// Its handlers, if it runs in this thread, and whether they have failed.
    pub(crate) inline: Option<Box<dyn Inline>>,
    pub(crate) has_failed: bool,
    /// Ports whose buffer its handlers filled by verdicts, as [`Drain::fills`].
    pub(crate) fills: u64,
    /// Packets posted by this thread, modulo 2³². NFs can alter the page's copy, but not this.
    pub(crate) posted: u32,
    /// Queue length (packets) from which the Wakeup role is alerted.
    pub(crate) high: u32,
    marker: Marker,
    posted_ns: u64,
    pub(crate) starts: Starts,
    /// When it is woken, if not for each packet.
    pub(crate) waker: Option<Box<Waker>>,
    /// Number of its packets' arena; [`NO_ARENA`](crate::frame::NO_ARENA) if any will do.
    pub(crate) memory: u8,
}

/// What starts an NF that packets are posted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starts {
    /// Nothing: it polls.
    ByItself,
    /// Each packet.
    AtOnce,
    /// Its waker decides.
    Held,
}

impl NfEnd {
    /// The end of a fresh NF.
    pub fn new(handle: Arc<NfHandle>, producer: Producer, sched: &Sched) -> Self {
        let ring = handle.limit;
        let high = Watermarks::new(ring, sched.high_watermark, sched.low_watermark, 0).high;
        let marker = Marker::new(ring, sched.ecn_watermark, ecn::USUAL_SHIFT);
        let waker = handle.wakeup.map(|rules| Box::new(Waker::new(rules, ring)));
        let starts = match &waker {
            _ if handle.poll => Starts::ByItself,
            Some(_) => Starts::Held,
            None => Starts::AtOnce,
        };
        // Relaxed: it was written before the handle was passed to this thread.
        let memory = handle.memory.load(Ordering::Relaxed);
        let (producer, inline, has_failed) = (Some(producer), None, false);
        Self { handle, producer, inline, has_failed, fills: 0, posted: 0, high, marker, posted_ns: 0, starts, waker, memory }
    }

    /// The end of an NF that runs in packet threads: in this one, if there are handlers for it.
    pub fn inline(handle: Arc<NfHandle>, inline: Option<Box<dyn Inline>>, sched: &Sched) -> Self {
        let marker = Marker::new(handle.limit, sched.ecn_watermark, ecn::USUAL_SHIFT);
        let (memory, starts) = (handle.memory.load(Ordering::Relaxed), Starts::ByItself);
        let (producer, has_failed, high, waker) = (None, false, u32::MAX, None);
        Self { handle, producer, inline, has_failed, fills: 0, posted: 0, high, marker, posted_ns: 0, starts, waker, memory }
    }

    /// Changes the queue lengths from which the Wakeup role is alerted, and packets are marked.
    pub(crate) fn tune(&mut self, sched: &Sched) {
        let ring = self.handle.limit;
        // Nobody is alerted for an inline NF, which has no queue.
        if self.high != u32::MAX {
            self.high = Watermarks::new(ring, sched.high_watermark, sched.low_watermark, 0).high;
        }
        self.marker.mark_from(ring, sched.ecn_watermark);
    }

    /// Whether this thread can give it packets.
    #[inline(always)]
    pub(crate) fn is_there(&self) -> bool {
        self.producer.is_some() || self.inline.is_some() && !self.has_failed
    }

    #[inline(always)]
    pub(crate) fn queue(&self, index: usize) -> u32 {
        if self.handle.in_flight.has_one_thread() {
            let counters = &self.handle.counters[index];
            counters.api.rx_packets.get().wrapping_sub(counters.api.tx_packets.get()) as u32
        } else {
            let (posted, returned) = self.handle.posted_returned();
            posted.saturating_sub(returned) as u32
        }
    }

    #[inline(always)]
    pub(crate) fn must_mark(&mut self, queue: u32, now_ns: u64) -> bool {
        let mark = self.marker.should_mark(queue);
        let idle_since = std::mem::replace(&mut self.posted_ns, now_ns);
        mark && (queue > 0 || self.is_still_long(now_ns.saturating_sub(idle_since)))
    }

    /// The average is high but the queue empty: decays the average for the pause.
    #[cold]
    fn is_still_long(&mut self, idle_ns: u64) -> bool {
        let service = self.handle.load.service_ns.get().max(1.0);
        self.marker.idle((idle_ns as f64 / service) as u64);
        self.marker.should_mark(0)
    }
}

impl NfEnd {
    /// Holds or wakes an NF that is not woken for each packet, after `n` packets were posted to it.
    /// `index` is the number of the thread.
    #[inline(never)]
    pub(crate) fn hold_or_wake(&mut self, timers: &mut Timers, index: usize, n: u32, urgent: bool, now_ns: u64) {
        let Self { handle, waker: Some(waker), .. } = self else { return };
        let (page, slot) = (&handle.core_page, handle.slot);
        let flow = handle.start.flow.load(Ordering::Relaxed);
        if flow != waker.flow {
            waker.begin(flow, &handle.start, handle.limit);
        }
        if !page.is_dormant(slot) {
            // It runs, or will.
            waker.threshold.pass(n);
            timers.unset(handle.number);
            page.set_pending(slot, now_ns);
            return;
        }
        let waiting = handle.unread().max(n);
        match waker.threshold.come(&waker.rules, n, waiting, urgent) {
            Some(cause) => {
                timers.unset(handle.number);
                page.set_pending(slot, now_ns);
                handle.counters[index].woken[cause as usize].add(1);
            }
            None => {
                if waiting == n {
                    // The packets for which the timer was set have been taken.
                    timers.unset(handle.number);
                }
                timers.set(handle.number, waker.rules.timer_ns, now_ns);
            }
        }
    }

    /// Its packets have waited long enough: wakes it.
    #[cold]
    pub(crate) fn wake_late(&mut self, index: usize, now_ns: u64) {
        let Self { handle, waker: Some(waker), .. } = self else { return };
        let (page, slot) = (&handle.core_page, handle.slot);
        if page.is_dormant(slot) && handle.unread() > 0 {
            let cause = waker.threshold.expire(&waker.rules);
            page.set_pending(slot, now_ns);
            handle.counters[index].woken[cause as usize].add(1);
        }
    }
}

/// The end of one NF's tx ring, in the thread that drains it.
#[derive(Debug)]
pub struct Drain {
    /// The NF.
    pub handle: Arc<NfHandle>,
    /// From its tx ring.
    pub consumer: Consumer,
    /// Nothing is taken from it until these are over.
    pub behind: Vec<Arc<Succession>>,
    /// It has committed too many violations: nothing is taken from it any more.
    pub is_cut_off: bool,
    /// Ports whose buffer it filled, as [`Plane::filled`](crate::plane::Plane::filled).
    pub fills: u64,
    /// As [`NfHandle::is_held_up`].
    is_held_up: bool,
}

impl Drain {
    /// The end of a fresh NF.
    pub fn new(handle: Arc<NfHandle>, consumer: Consumer) -> Self {
        Self { handle, consumer, behind: Vec::new(), is_cut_off: false, fills: 0, is_held_up: false }
    }

    /// Records whether its packets wait for a port.
    #[inline]
    pub(crate) fn hold_up(&mut self, is_held_up: bool) {
        if is_held_up != self.is_held_up {
            self.is_held_up = is_held_up;
            self.handle.is_held_up.store(is_held_up, Ordering::Relaxed);
        }
    }

    /// Whether it still waits for NFs whose flows it took over.
    #[cold]
    pub fn waits(&mut self) -> bool {
        self.behind.retain(|succession| !succession.is_over());
        if self.behind.is_empty() {
            self.handle.is_behind.store(false, Ordering::Relaxed);
        }
        !self.behind.is_empty()
    }
}
