//! Delayed wake-ups: an NF may sleep on while few packets wait, for a short time.
//!
//! # Problem
//! An NF that is woken for each packet spends its core on context switches. Its service may
//! configure later wake-ups ([`threshold`](sluice_policy::sched::threshold)). The decision is made
//! at each burst in each thread that posts, without locks and without extra system calls.
//!
//! # Approach
//! An NF is started because its slot's bit on the core page says that it has packets: the Wakeup
//! role, or an NF that goes to sleep, reads that bit. So delaying an NF means leaving the bit
//! clear. Its packets are on its ring; if it wakes for another reason it takes them. A running NF
//! is never delayed: it polls its rings before it sleeps. The posting thread checks whether the NF
//! sleeps with its bit clear
//! ([`CorePage::is_dormant`](sluice_shm::core_page::CorePage::is_dormant)), consults the policy,
//! and sets the bit or its own timer ([`Timers`]). The Wakeup role does the waking, as always.
//!
//! Timers are linked lists through NF numbers, one list for each duration. So they are ordered, and
//! set and unset in constant time. The thread checks the heads once a round.
//!
//! The packets that end a connection ([`URGENT`](crate::frame::URGENT)) are marked in their frame's
//! word, so each NF on their way is woken for them.
//!
//! # Limits
//! Each thread that posts to an NF has its own threshold and timer for it, and counts waiting
//! packets by itself. The NF itself writes what it has taken and whether it sleeps: with false
//! values it sleeps on until it is rescued.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sluice_policy::sched::threshold::{Rules, StartCause, Threshold};

const NONE: u32 = u32::MAX;

/// The next flow of an NF with one flow at a time, as its Rx thread sets it. All zero: none.
#[derive(Debug, Default)]
pub struct Start {
    pub(crate) flow: AtomicU32,
    /// Early packets, and the bounds of the threshold: 32, 16 and 16 bits.
    bounds: AtomicU64,
    /// The timer; 0: the service's rules apply.
    timer_ns: AtomicU64,
}

impl Start {
    /// Begins a flow, with or without rules of its own.
    pub fn begin(&self, rules: Option<Rules>) {
        let clip = |packets: u32| u64::from(packets.min(u32::from(u16::MAX)));
        let (bounds, timer_ns) =
            rules.map_or((0, 0), |r| (u64::from(r.early) << 32 | clip(r.least) << 16 | clip(r.most), r.timer_ns.max(1)));
        // Relaxed: the flow's first packet reaches other threads by rings, after this. A partial
        // read only starts an NF too early or too late.
        self.bounds.store(bounds, Ordering::Relaxed);
        self.timer_ns.store(timer_ns, Ordering::Relaxed);
        self.flow.fetch_add(1, Ordering::Relaxed);
    }

    fn rules(&self) -> Option<Rules> {
        let (bounds, timer_ns) = (self.bounds.load(Ordering::Relaxed), self.timer_ns.load(Ordering::Relaxed));
        let (early, least, most) = ((bounds >> 32) as u32, (bounds >> 16) as u16, bounds as u16);
        (timer_ns > 0).then_some(Rules { early, least: least.into(), most: most.into(), timer_ns })
    }
}

/// When a thread wakes one NF.
#[derive(Debug)]
pub struct Waker {
    service: Rules,
    pub(crate) rules: Rules,
    pub(crate) threshold: Threshold,
    pub(crate) flow: u32,
}

impl Waker {
    /// For an NF of a service with these rules, and a ring of `ring` packets.
    pub fn new(rules: Rules, ring: u32) -> Self {
        let rules = rules.within(ring);
        Self { service: rules, rules, threshold: Threshold::new(&rules), flow: 0 }
    }

    /// Longest time that packets wait, in nanoseconds.
    pub fn timer_ns(&self) -> u64 {
        self.rules.timer_ns
    }

    #[cold]
    pub(crate) fn begin(&mut self, flow: u32, start: &Start, ring: u32) {
        self.flow = flow;
        self.rules = start.rules().map_or(self.service, |rules| rules.within(ring));
        self.threshold = Threshold::new(&self.rules);
    }
}

/// Number of causes that are counted.
pub const CAUSES: usize = StartCause::ALL.len();

/// Timers of one duration, oldest first.
#[derive(Debug, Clone, Copy)]
struct List {
    timer_ns: u64,
    head: u32,
    tail: u32,
}

#[derive(Debug, Clone, Copy)]
struct Timer {
    /// Its list; [`NONE`] if it is not set.
    list: u32,
    before: u32,
    behind: u32,
    since_ns: u64,
}

const UNSET: Timer = Timer { list: NONE, before: NONE, behind: NONE, since_ns: 0 };

/// The timers of one thread, one for each NF that is not woken for each packet.
#[derive(Debug, Default)]
pub struct Timers {
    lists: Vec<List>,
    timers: Vec<Timer>,
}

impl Timers {
    /// Reserves a timer for an NF, and a list for this duration.
    pub(crate) fn make_room(&mut self, nf: u16, timer_ns: u64) {
        let most = usize::from(nf) + 1;
        if self.timers.len() < most {
            self.timers.resize(most.next_power_of_two(), UNSET);
        }
        self.unset(nf);
        self.learn(timer_ns);
    }

    /// Reserves a list for this duration.
    pub fn learn(&mut self, timer_ns: u64) {
        if !self.lists.iter().any(|list| list.timer_ns == timer_ns) {
            self.lists.push(List { timer_ns, head: NONE, tail: NONE });
        }
    }

    /// Whether an NF ever had a timer here.
    #[inline(always)]
    pub(crate) fn are_used(&self) -> bool {
        !self.timers.is_empty()
    }

    /// Sets an NF's timer, unless it is set. A duration without a list uses another one.
    #[inline]
    pub fn set(&mut self, nf: u16, timer_ns: u64, now_ns: u64) {
        let number = u32::from(nf);
        let at = self.lists.iter().position(|list| list.timer_ns == timer_ns).unwrap_or(0);
        let (Some(list), Some(timer)) = (self.lists.get_mut(at), self.timers.get_mut(usize::from(nf))) else { return };
        if timer.list != NONE {
            return;
        }
        *timer = Timer { list: at as u32, before: list.tail, behind: NONE, since_ns: now_ns };
        let last = std::mem::replace(&mut list.tail, number);
        match self.timers.get_mut(last as usize) {
            Some(last) => last.behind = number,
            None => list.head = number,
        }
    }

    /// Unsets an NF's timer, if it is set.
    #[inline]
    pub fn unset(&mut self, nf: u16) {
        let Some(timer) = self.timers.get_mut(usize::from(nf)) else { return };
        let Timer { list, before, behind, .. } = std::mem::replace(timer, UNSET);
        let Some(list) = self.lists.get_mut(list as usize) else { return };
        match self.timers.get_mut(before as usize) {
            Some(neighbour) => neighbour.behind = behind,
            None => list.head = behind,
        }
        match self.timers.get_mut(behind as usize) {
            Some(neighbour) => neighbour.before = before,
            None => list.tail = before,
        }
    }

    /// Takes an NF whose timer has expired, and unsets the timer.
    #[inline]
    pub fn late(&mut self, now_ns: u64) -> Option<u16> {
        let is_over = |list: &&List| {
            self.timers.get(list.head as usize).is_some_and(|timer| now_ns.saturating_sub(timer.since_ns) >= list.timer_ns)
        };
        let nf = self.lists.iter().find(is_over)?.head as u16;
        self.unset(nf);
        Some(nf)
    }

    /// When the first timer expires, in nanoseconds.
    pub fn next_ns(&self) -> Option<u64> {
        let over = |list: &List| Some(self.timers.get(list.head as usize)?.since_ns + list.timer_ns);
        self.lists.iter().filter_map(over).min()
    }
}

#[cfg(test)]
mod tests;
