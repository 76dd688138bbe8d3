//! NFs that sleep on although packets wait: fewer than their threshold, and not for long.
//!
//! # Problem
//! An NF that is woken for each packet spends its core on switches. Its service may say that it is woken later
//! ([`threshold`](sluice_policy::sched::threshold)). What is decided there has to be done at each burst, in each thread that posts, without
//! locks and without one more system call.
//!
//! # Approach
//! An NF runs because the bit of its slot on the core page says that it has packets: by that bit the Wakeup role wakes it, and another NF that
//! goes to sleep starts it. So holding an NF back is leaving the bit alone. The packets are on its ring meanwhile; if it
//! wakes for another reason it takes them, and an NF that runs is never held back: it looks at its rings before it sleeps.
//! The thread that has posted looks whether the NF sleeps with its bit off ([`CorePage::is_dormant`](sluice_shm::core_page::CorePage::is_dormant)),
//! asks the policy, and sets the bit or a timer of its own ([`Timers`]). The wake itself is the Wakeup role's, as ever.
//!
//! Timers are lists through the numbers of NFs, one for each length, so that they are in order, and set and unset in constant time.
//! The loop of the thread looks at their heads once a round.
//!
//! The packets that end a connection ([`URGENT`](crate::frame::URGENT)) are known by their frame's word, so that each NF on their way is
//! woken for them.
//!
//! # Limits
//! Thresholds are of a thread: where several threads post to an NF, each counts what waits for it, and has a threshold and a timer of
//! its own. What an NF has taken is its own word, and whether it sleeps is on the page: where that is not so it sleeps on, until it is
//! rescued.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sluice_policy::sched::threshold::{Cause, Rules, Threshold};

const NONE: u32 = u32::MAX;

/// What an NF that has one flow at a time is told of the next one, by the Rx thread that it belongs to. All zero: nothing.
#[derive(Debug, Default)]
pub struct Start {
    /// Flows that have begun.
    pub(crate) flow: AtomicU32,
    /// Early packets, and the bounds of the threshold: 32, 16 and 16 bits.
    bounds: AtomicU64,
    /// The timer; 0: the service's rules hold.
    timer_ns: AtomicU64,
}

impl Start {
    /// A flow begins, with rules of its own or without.
    pub fn begin(&self, rules: Option<Rules>) {
        let clip = |packets: u32| u64::from(packets.min(u32::from(u16::MAX)));
        let (bounds, timer_ns) =
            rules.map_or((0, 0), |r| (u64::from(r.early) << 32 | clip(r.least) << 16 | clip(r.most), r.timer_ns.max(1)));
        // Relaxed: the flow's first packet comes to other threads by rings, after this. Who reads half of it starts an NF too early or too late.
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
    /// For an NF of a service with these rules, whose ring holds so many packets.
    pub fn new(rules: Rules, ring: u32) -> Self {
        let rules = rules.within(ring);
        Self { service: rules, rules, threshold: Threshold::new(&rules), flow: 0 }
    }

    /// How long packets wait at most, in nanoseconds.
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

/// How many causes are counted.
pub const CAUSES: usize = Cause::ALL.len();

/// A list of timers of one length, oldest first.
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
    /// Makes room for an NF, and for timers of this length.
    pub fn make_room(&mut self, nf: u16, timer_ns: u64) {
        let most = usize::from(nf) + 1;
        if self.timers.len() < most {
            self.timers.resize(most.next_power_of_two(), UNSET);
        }
        self.unset(nf);
        self.learn(timer_ns);
    }

    /// Makes room for timers of this length.
    pub fn learn(&mut self, timer_ns: u64) {
        if !self.lists.iter().any(|list| list.timer_ns == timer_ns) {
            self.lists.push(List { timer_ns, head: NONE, tail: NONE });
        }
    }

    /// Whether any NF has ever had room here.
    #[inline(always)]
    pub fn are_used(&self) -> bool {
        !self.timers.is_empty()
    }

    /// Sets an NF's timer, unless it is set. One of a length that nobody has made room for is of another.
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

    /// An NF whose time is over, if there is one; its timer is unset.
    #[inline]
    pub fn late(&mut self, now_ns: u64) -> Option<u16> {
        let is_over = |list: &&List| {
            self.timers.get(list.head as usize).is_some_and(|timer| now_ns.saturating_sub(timer.since_ns) >= list.timer_ns)
        };
        let nf = self.lists.iter().find(is_over)?.head as u16;
        self.unset(nf);
        Some(nf)
    }

    /// When the first of them is over.
    pub fn next_ns(&self) -> Option<u64> {
        let over = |list: &List| Some(self.timers.get(list.head as usize)?.since_ns + list.timer_ns);
        self.lists.iter().filter_map(over).min()
    }
}

#[cfg(test)]
mod tests;
