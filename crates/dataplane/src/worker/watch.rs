//! What a thread knows of one NF on a core page, by its own counters and the NF's own ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_policy::sched::wakeup::{Candidate, LONGEST_ROUND_NS};
use sluice_shm::core_page::{CorePage, WHOLE};

use super::shortlist::Named;
use super::thefts::{CROWD, GUARDED_NS, Thefts};
use crate::handle::NfHandle;

/// Most nanoseconds that a waiting NF may owe: a little more than a time slice of the kernel.
const MOST_DEBT_NS: u64 = 4_000_000;
/// Pause in nanoseconds before an unmoved NF is woken again: first, and longest.
const PAUSES_NS: (u64, u64) = (100_000, 16_000_000);

/// Rescues of one kind, each soon after the last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Strikes {
    pub(super) n: u32,
    pub(super) last_ns: u64,
}

impl Strikes {
    /// Counts one at `now`; forgets older ones if the last and `since_ns` are over `kept_ns` ago.
    pub(super) fn add(&mut self, kept_ns: u64, since_ns: u64, now: u64) -> u32 {
        if now.saturating_sub(self.last_ns.max(since_ns)) > kept_ns {
            self.n = 0;
        }
        (self.n, self.last_ns) = (self.n + 1, now);
        self.n
    }
}

/// When an NF slept, by its own region, which bounds how long it can have had the core. It owes no
/// more than that: it pays for a slice before it sleeps, and gets no other while it owes.
#[derive(Debug, Clone, Copy)]
struct Slept {
    /// When it was last seen asleep, and what it had moved by then.
    last_ns: u64,
    moved: u64,
    /// Time between the last two looks that saw it asleep and between which it moved.
    apart_ns: u64,
}

/// What is known of an NF, and when it was seen.
pub(super) struct NfWatch {
    pub(super) handle: Arc<NfHandle>,
    /// Packets that it has taken from its rings.
    taken: u64,
    /// What it had moved when that was checked last, and when it was last seen to have moved.
    pub(super) moved: u64,
    pub(super) moved_ns: u64,
    /// It moved since its last look, as was seen between two of its looks.
    pub(super) moved_meanwhile: bool,
    slept: Slept,
    /// At the last look it could take packets.
    pub(super) waits: bool,
    /// Since when it has had packets without moving.
    pub(super) since_ns: u64,
    /// When it was last woken, what it had moved then, and the pause until the next wake.
    woken_ns: u64,
    moved_when_woken: u64,
    pause_ns: u64,
    /// Rescues while no NF moved, or slices held meanwhile; and rescues while others moved.
    pub(super) silences: Strikes,
    pub(super) neglects: Strikes,
    /// In a crowd, its longest wait of the neglects that count, in nanoseconds.
    pub(super) neglected_ns: u64,
    pub(super) thefts: Thefts,
    /// When it joins hand-overs again, if it is alone.
    pub(super) alone_until_ns: u64,
    /// It is alone until it moves.
    pub(super) is_absent: bool,
    /// Until when it also waits for its own doorbell; 0: it does not.
    pub(super) guarded_until_ns: u64,
    /// Error of the page's count of its packets at the last look.
    pub(super) off_by: u32,
    /// At the last look, the page falsely said that it waits for something other than packets.
    pub(super) seems_suspended: bool,
    /// At the last look it slept with packets, and the page did not show them.
    pub(super) is_hidden: bool,
}

impl NfWatch {
    pub(super) fn new(handle: Arc<NfHandle>, now: u64) -> Self {
        Self {
            handle,
            taken: 0,
            moved: 0,
            moved_ns: now,
            moved_meanwhile: false,
            slept: Slept { last_ns: now, moved: 0, apart_ns: 0 },
            waits: false,
            since_ns: now,
            woken_ns: 0,
            moved_when_woken: 0,
            pause_ns: 0,
            silences: Strikes::default(),
            neglects: Strikes::default(),
            neglected_ns: 0,
            thefts: Thefts::default(),
            alone_until_ns: 0,
            is_absent: false,
            guarded_until_ns: 0,
            off_by: 0,
            seems_suspended: false,
            is_hidden: false,
        }
    }

    /// A number that grows when it takes or returns packets, at most by one of each a packet.
    /// Claims of its rings that it took more than was posted, or less than before, do not count.
    #[inline]
    pub(super) fn moved(&mut self) -> u64 {
        let newly = self.handle.taken().wrapping_sub(self.taken as u32);
        let (posted, returned) = self.handle.posted_returned();
        if u64::from(newly) <= posted.saturating_sub(self.taken) {
            self.taken += u64::from(newly);
        }
        self.taken + returned
    }

    #[inline]
    pub(super) fn see_asleep(&mut self, now: u64) {
        let has_moved = self.moved != self.slept.moved;
        // An NF without packets that has not moved sleeps on: its words need not be fetched.
        if (has_moved || self.handle.may_have_unread()) && !self.handle.is_asleep() {
            return;
        }
        if has_moved {
            (self.slept.moved, self.slept.apart_ns) = (self.moved, now - self.slept.last_ns);
        }
        self.slept.last_ns = now;
    }

    /// Its remaining budget in nanoseconds, as far as the page's value can be true.
    pub(super) fn budget_ns(&self, page: &CorePage) -> i64 {
        let most = i64::try_from(LONGEST_ROUND_NS).unwrap_or(i64::MAX);
        let least = i64::try_from(self.slept.apart_ns.min(MOST_DEBT_NS)).unwrap_or(0);
        i64::from(page.budget(self.handle.slot)).clamp(-least, most)
    }

    /// It as a candidate for the core.
    #[inline]
    pub(super) fn named(&self, page: &CorePage, now: u64) -> Named {
        let said = self.handle.said();
        let candidate = Candidate {
            waiting: self.handle.unread(),
            age_ns: now.saturating_sub(self.since_ns),
            depth: said.depth,
            level: said.level,
            pressing: said.pressing,
        };
        Named { slot: self.handle.slot, share: said.share.min(WHOLE), budget_ns: self.budget_ns(page), candidate }
    }

    /// Whether it was to wait for its own doorbell as well, and does not.
    pub(super) fn is_deaf(&self) -> bool {
        self.guarded_until_ns != 0 && !self.is_alone() && self.handle.is_deaf()
    }

    /// How many sleepers a rescue would wake at most.
    pub(super) fn wanted(&mut self, now: u64) -> u32 {
        let moved = self.moved();
        let sleepers = self.thefts.wanted(moved, now);
        if self.is_deaf() { sleepers.max(CROWD) } else { sleepers }
    }

    /// Counts a rescue. Returns how many sleepers on its doorbell on the page to wake.
    pub(super) fn count_rescue(&mut self, now: u64) -> u32 {
        let moved = self.moved();
        let sleepers = self.thefts.count(moved, now);
        if self.thefts.recur() {
            self.guarded_until_ns = now + GUARDED_NS;
            self.handle.set_guarded(true);
        }
        sleepers
    }

    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.handle.alone.load(Ordering::Relaxed)
    }

    /// Whether it may take packets and has unread ones.
    #[inline]
    pub(super) fn can_run(&self) -> bool {
        let handle = &self.handle;
        handle.may_have_unread()
            && handle.alive.load(Ordering::Relaxed)
            && !handle.gate.held.load(Ordering::Relaxed)
            && !handle.is_suspended()
            && handle.unread() > 0
    }

    /// Whether it was woken a moment ago and has not moved since.
    #[inline]
    pub(super) fn is_paused(&mut self, now: u64) -> bool {
        let moved = self.moved();
        if moved != self.moved_when_woken {
            (self.moved_when_woken, self.pause_ns) = (moved, 0);
        }
        self.pause_ns > 0 && now < self.woken_ns + self.pause_ns
    }

    /// Whether it may be woken now: at growing intervals while it does not move.
    #[inline]
    pub(super) fn may_be_woken(&mut self, now: u64) -> bool {
        if self.is_paused(now) {
            return false;
        }
        self.pause_ns = (2 * self.pause_ns).clamp(PAUSES_NS.0, PAUSES_NS.1);
        self.woken_ns = now;
        true
    }
}
