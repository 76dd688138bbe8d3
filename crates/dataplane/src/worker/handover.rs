//! The Wakeup role's own view of a core: which NFs have packets, move and are woken.
//!
//! # Problem
//! The NFs of a core start each other by hints on a page that all of them can write ([`CorePage`]).
//! A hint may be false, and the NF that it names may wait for a disk, hang, or have died. No other
//! NF may wait for that longer than one slice.
//!
//! # Approach
//! For each page the thread keeps the owner of each slot. Which NFs have packets and which move, it
//! knows from its own counters and the NF's own ring, which no other NF can reach. The page only
//! suggests which NFs to check. Each round does a bounded number of checks, whatever the page says,
//! and an NF that is woken and does not move is woken again at growing intervals.
//!
//! An NF's words about its own rings count only as far as they can be true ([`NfWatch::moved`]): it
//! takes no more than was posted, and takes nothing back. So it moves at most twice for each
//! packet, and is woken no more often, apart from a slow clock.
//!
//! Every [`LOOK_NS`] some NFs are checked more closely, round-robin:
//! - Words of the manager that changed are written again, as is the bit that a sleeping NF has
//!   packets, and marks of slots without an NF are cleared. If that recurs, the page is distrusted
//!   for [`DISTRUST_NS`].
//! - An NF with packets that has not moved is *rescued*: woken by its own doorbell, whatever the
//!   page says, with its part of a round. If no NF on the core has moved for
//!   [`Handover::still_ns`], that is at once. Else it counts as *neglected* after
//!   [`PATIENT_ROUNDS`] rounds plus those that it owes. The page says what it owes, which counts as
//!   far as the NF can have had the core ([`super::watch`]).
//! - An NF that is rescued twice in short also waits, for [`GUARDED_NS`], for a doorbell in its own
//!   region, where no other NF can sleep in its place. If it cannot wait for two (before Linux
//!   5.16), the next rescue takes it out of hand-overs for that time: then it needs only that one.
//! - An NF that had the core by the page each time that another was rescued, and has not moved
//!   either, is *alone* until it moves: outside hand-overs, woken by this thread and scheduled by
//!   the kernel. So is, for a while, an NF that is rescued again and again, and every NF of a
//!   distrusted page. A page is also distrusted when an NF was neglected [`NEGLECTS`] times.
//!
//! Once is no evidence: a host may take a core away for some milliseconds, in which no NF on it
//! moves. So an NF must be rescued, or have the core, [`STRIKES`] times in short; of rescues
//! between which no NF moved, only the first counts. An NF is neglected only while it sleeps and
//! others on the page move. After a pause of the host it does not sleep, because it was woken
//! during the pause. So neglects are forgotten only after the NF has taken part in hand-overs for
//! [`NEGLECT_NS`] without one. Else a lying NF would have the core again after each pause.
//!
//! An NF that is alone loses only the hand-over: the kernel divides the core between it and the
//! others by their weights. So a needless rescue costs little time. A lie costs the rounds until
//! the rescue, [`NEGLECTS`] times and then once for each time that the page is distrusted.
//!
//! # Limits
//! A look checks at most [`LOOKED_AT`] NFs of a page, and pages with more than [`FEW`] NFs are
//! checked less often, so rescues come later. If the NFs of a page are more than a look checks, all
//! are checked before none is said to move, and an NF may wait for three laps of them, as they are
//! measured ([`Laps`]). An NF behind more sleepers than its rescues wake ([`super::thefts`]) sleeps
//! until its timeout (a second).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_policy::sched::wakeup::{self, LONGEST_ROUND_NS, Rules};
use sluice_shm::core_page::{CorePage, WHOLE};

use super::laps::Laps;
use super::shortlist::{CANDIDATES, Shortlist};
use super::thefts::{CROWD, GUARDED_NS, LOOK_WAKES};
use super::watch::NfWatch;
use crate::end::NfEnd;
use crate::handle::NfHandle;

/// Nanoseconds between two closer looks, with up to [`FEW`] NFs.
const LOOK_NS: u64 = 250_000;
const FEW: usize = 16;
/// NFs checked in a closer look.
const LOOKED_AT: usize = 64;
/// Most rescues in a look.
pub(super) const RESCUES: usize = 4;
/// Rounds, plus those that it owes, after which an NF waiting for its turn is rescued.
const PATIENT_ROUNDS: u64 = 3;
/// Upper bound of that wait, in nanoseconds.
const MOST_PATIENCE_NS: u64 = 4 * LONGEST_ROUND_NS;
/// A look this many nanoseconds late means that the thread lost its core: all times restart.
const FROZEN_NS: u64 = 50_000_000;
/// Nanoseconds for which a page is distrusted, at least.
const DISTRUST_NS: u64 = 1_000_000_000;
/// In a crowd an NF may wait for long: the page is distrusted, and neglects are remembered, for
/// this multiple of the longest of them.
const DISTRUST_FACTOR: u64 = 25;
/// Altered words in one look, and nanoseconds between two such looks, that make a page distrusted.
const LIES: (u32, u64) = (2, 100_000_000);
/// From this many rescues in short on, an NF is alone for this time, which doubles.
const STRIKES: u32 = 3;
const STRIKE_NS: u64 = 100_000_000;
const ALONE_NS: u64 = 10_000_000;
const LONGEST_DOUBLING: u32 = 7;
/// This many rescues of a neglected NF, each soon after the last, make its page distrusted.
const NEGLECTS: u32 = 2 * STRIKES;
const NEGLECT_NS: u64 = 1_000_000_000;
/// Nanoseconds between searches of a page that named NFs, none of which can run.
const FRUITLESS_NS: u64 = 10_000;

/// The NFs of a page that this thread wakes.
pub(super) struct Handover {
    page: CorePage,
    members: Vec<NfWatch>,
    /// By slot: index of the member, plus 1; 0: none.
    at: Vec<u32>,
    /// A bit for each slot with a member, and for each whose member is alone.
    mine: Vec<u64>,
    outside: Vec<u64>,
    /// Slot at which the next round begins, if there are many.
    cursor: u32,
    /// Member at which the next look begins, and the last one that was rescued.
    next: usize,
    last_rescued: usize,
    looked_ns: u64,
    look_at_ns: u64,
    /// No candidates are searched until then.
    quiet_until_ns: u64,
    /// When an NF was last seen to move, or all to have nothing to do.
    moved_ns: u64,
    /// That time, when all NFs of a crowded page were checked and none had moved.
    still_since_ns: u64,
    /// Time of the last rescue, and of the last one that passed the core.
    rescued_ns: u64,
    passed_ns: u64,
    /// Whether an NF had packets since the current circle of looks began.
    some_wait: bool,
    laps: Laps,
    /// When words were last found altered, and until when the page is distrusted.
    lied_ns: u64,
    distrust_until_ns: u64,
    alone: usize,
    /// Nanoseconds after which a core on which no NF moves is checked.
    still_ns: u64,
}

impl Handover {
    /// For a page. After `still_ns` nanoseconds, a core with packets but no movement is checked.
    pub(super) fn new(page: CorePage, still_ns: u64) -> Self {
        Self {
            page,
            members: Vec::new(),
            at: Vec::new(),
            mine: Vec::new(),
            outside: Vec::new(),
            cursor: 0,
            next: 0,
            last_rescued: 0,
            looked_ns: 0,
            look_at_ns: 0,
            quiet_until_ns: 0,
            moved_ns: 0,
            still_since_ns: u64::MAX,
            rescued_ns: 0,
            passed_ns: 0,
            some_wait: false,
            laps: Laps::default(),
            lied_ns: 0,
            distrust_until_ns: 0,
            alone: 0,
            still_ns,
        }
    }

    pub(super) fn page(&self) -> &CorePage {
        &self.page
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds an NF, which has its slot from `now` on.
    pub(super) fn add(&mut self, handle: &Arc<NfHandle>, now: u64) {
        let slot = handle.slot as usize;
        if self.at.len() <= slot {
            self.at.resize(slot + 1, 0);
            self.mine.resize(slot / 64 + 1, 0);
            self.outside.resize(slot / 64 + 1, 0);
        }
        let member = NfWatch::new(handle.clone(), now);
        match self.at[slot] {
            0 => {
                self.members.push(member);
                self.at[slot] = self.members.len() as u32;
            }
            // The former one has ended.
            at => self.members[at as usize - 1] = member,
        }
        // What was said of it before may have been cleared.
        self.page.restore(handle.slot, &handle.said());
        self.mine[slot / 64] |= 1 << (slot % 64);
        self.count_alone();
    }

    pub(super) fn remove(&mut self, handle: &Arc<NfHandle>) {
        let Some(at) = self.members.iter().position(|member| Arc::ptr_eq(&member.handle, handle)) else { return };
        let slot = handle.slot as usize;
        self.at[slot] = 0;
        self.mine[slot / 64] &= !(1 << (slot % 64));
        self.members.swap_remove(at);
        if let Some(moved) = self.members.get(at) {
            self.at[moved.handle.slot as usize] = at as u32 + 1;
        }
        self.count_alone();
        self.page.release(handle.slot);
        // Nothing that it wrote stays. One that is favoured from now on says so again.
        self.page.set_any_favoured(self.members.iter().any(|member| member.handle.said().is_favoured()));
    }

    fn count_alone(&mut self) {
        self.alone = self.members.iter().filter(|member| member.is_alone()).count();
        self.outside.fill(0);
        for member in self.members.iter().filter(|member| member.is_alone()) {
            self.outside[member.handle.slot as usize / 64] |= 1 << (member.handle.slot % 64);
        }
    }

    #[inline]
    fn member(&self, slot: u32) -> Option<usize> {
        let at = *self.at.get(slot as usize)?;
        (at > 0).then(|| at as usize - 1)
    }

    /// Wakes an NF to run, if none does. `index` is the thread's number.
    #[inline]
    pub(super) fn step(&mut self, nfs: &[Option<NfEnd>], index: usize, now: u64) {
        if now >= self.look_at_ns {
            self.look(nfs, index, now);
        }
        let is_free = !self.page.hands_over() || self.page.running().load(Ordering::Relaxed) == 0;
        if (is_free || self.alone > 0) && now >= self.quiet_until_ns {
            self.start(is_free, index, now);
        }
    }

    /// Checks the NFs that the page names, wakes those alone, and one other if the core is free.
    fn start(&mut self, is_free: bool, index: usize, now: u64) {
        let mut shortlist = Shortlist::new(&self.page);
        let (mut looks, mut woken) = (CANDIDATES, 0);
        let words = self.mine.len();
        let from = if (self.cursor as usize) < words * 64 { self.cursor } else { 0 };
        let (first, behind) = (from as usize / 64, u64::MAX << (from % 64));
        'all: for step in 0..=words {
            let word = if first + step >= words { first + step - words } else { first + step };
            if word >= words {
                break;
            }
            let mask = match step {
                0 => behind,
                last if last == words => !behind,
                _ => u64::MAX,
            };
            // Clearing the bit of an NF that is alone does not delay it.
            let mut bits = (self.page.pending(word) | self.outside[word]) & self.mine[word] & mask;
            while bits != 0 {
                let slot = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if looks == 0 {
                    self.cursor = slot;
                    break 'all;
                }
                looks -= 1;
                let Some(at) = self.at.get(slot as usize).and_then(|at| (*at as usize).checked_sub(1)) else { continue };
                let member = &mut self.members[at];
                if !member.can_run() {
                    continue;
                }
                if self.page.hands_over() && !member.is_alone() {
                    if is_free {
                        shortlist.add(member.named(&self.page, now));
                    }
                } else if member.handle.is_asleep() && member.may_be_woken(now) && member.handle.wake(now) {
                    member.handle.counters[index].api.wakes.add(1);
                    woken += 1;
                }
            }
        }
        let mut next = None;
        if !shortlist.is_empty() {
            next = wakeup::choose(&mut shortlist, &Rules::default());
        }
        if let Some(at) = next.and_then(|slot| self.member(slot)) {
            let (page, member) = (&self.page, &mut self.members[at]);
            // One that is awake already now has the core by the page, and hands it over itself.
            if member.may_be_woken(now) && page.pass_to(member.handle.slot, 0) && member.handle.wake(now) {
                member.handle.counters[index].api.wakes.add(1);
                woken += 1;
            }
        }
        if woken == 0 && looks < CANDIDATES {
            self.quiet_until_ns = now + FRUITLESS_NS;
        }
    }

    #[cold]
    fn look(&mut self, nfs: &[Option<NfEnd>], index: usize, now: u64) {
        let is_late = now.saturating_sub(self.looked_ns) > FROZEN_NS;
        let longer = (self.members.len() / FEW).clamp(1, LOOKED_AT / FEW) as u64;
        (self.looked_ns, self.look_at_ns) = (now, now + LOOK_NS * longer);
        if is_late {
            self.moved_ns = now;
            self.laps.restart(now);
            self.members.iter_mut().for_each(|member| (member.moved_ns, member.since_ns) = (now, now));
        }
        // No honest NF marks a slot that none has, so one mark is enough.
        let (mut late, mut wrong) = ([0usize; LOOKED_AT], if self.page.sweep(&self.mine) { LIES.0 } else { 0 });
        let mut waiting = 0;
        for _ in 0..self.members.len().min(LOOKED_AT) {
            if self.next >= self.members.len() {
                self.next = 0;
            }
            if self.next == 0 {
                self.begin_circle(now);
            }
            let at = self.next;
            self.next += 1;
            wrong += self.restore(at);
            if self.see(at, now) {
                late[waiting] = at;
                waiting += 1;
                wrong += self.reveal(at, now);
            } else {
                self.members[at].is_hidden = false;
            }
        }
        if wrong >= LIES.0 {
            self.count_lie(now);
        }
        if self.is_crowded() {
            self.look_at_holder(now);
            self.look_at_all(now, waiting > 0);
        }
        self.correct_running(now);
        let (mut left, mut wakes) = (RESCUES, LOOK_WAKES);
        // Those behind the last one first, so that all get their turn in the end.
        let late = &late[..waiting];
        let last = self.last_rescued;
        let (behind, before) = (late.iter().filter(|at| **at > last), late.iter().filter(|at| **at <= last));
        for at in behind.chain(before) {
            if left == 0 || !self.is_overdue(*at, nfs, now) || self.members[*at].is_paused(now) {
                continue;
            }
            let wanted = self.members[*at].wanted(now);
            if wanted > wakes {
                // It is the first of the next look.
                self.last_rescued = at.wrapping_sub(1);
                if self.is_crowded() {
                    self.next = *at;
                }
                break;
            }
            if self.members[*at].may_be_woken(now) {
                (left, wakes) = (left - 1, wakes - wanted);
                self.last_rescued = *at;
                self.rescue(*at, index, wanted, now);
            }
        }
    }

    fn count_lie(&mut self, now: u64) {
        if now.saturating_sub(self.lied_ns) < LIES.1 {
            self.distrust_until_ns = self.distrust_until_ns.max(now + DISTRUST_NS);
        }
        self.lied_ns = now;
    }

    /// Notes that an NF of the page moved, though no look may see which.
    pub(super) fn note_moved(&mut self, now: u64) {
        self.moved_ns = now;
    }

    /// Whether it looks closely at `now`, and then sees only some of its NFs.
    #[inline]
    pub(super) fn looks_at_some(&self, now: u64) -> bool {
        now >= self.look_at_ns && self.is_crowded()
    }

    /// Checks whether the page's holder of the core moved, whose turn in the circle may be far.
    fn look_at_holder(&mut self, now: u64) {
        let running = self.page.running().load(Ordering::Relaxed);
        if let Some(at) = running.checked_sub(1).and_then(|slot| self.member(slot)) {
            self.look_out_of_turn(at, now);
        }
    }

    /// Checks all NFs if none was seen to move for long: once until one moves.
    fn look_at_all(&mut self, now: u64, some_wait: bool) {
        // Without hand-overs nothing depends on it.
        if some_wait && self.page.hands_over() && self.is_still(now) && self.still_since_ns != self.moved_ns {
            let found = (0..self.members.len()).fold(false, |found, at| self.look_out_of_turn(at, now) | found);
            if !found {
                self.still_since_ns = self.moved_ns;
            }
        }
    }

    /// Checks whether an NF moved, apart from its turn in the circle.
    fn look_out_of_turn(&mut self, at: usize, now: u64) -> bool {
        let has_moved = self.see_moved(at, now);
        if has_moved {
            let member = &mut self.members[at];
            (member.since_ns, member.moved_meanwhile) = (now, true);
        }
        has_moved
    }

    /// Starts the next circle: all have been checked.
    fn begin_circle(&mut self, now: u64) {
        if !std::mem::take(&mut self.some_wait) {
            self.moved_ns = now;
        }
        self.laps.end_circle(now);
    }

    /// Whether the page has more NFs than a look checks.
    fn is_crowded(&self) -> bool {
        self.members.len() > LOOKED_AT
    }

    /// Restores the manager's words about an NF on the page. Returns how many were altered.
    fn restore(&mut self, at: usize) -> u32 {
        let (page, member) = (&self.page, &mut self.members[at]);
        let handle = &member.handle;
        let mut wrong = page.restore(handle.slot, &handle.said());
        // The counter is read first: a thread counts before it updates the page.
        let posted = handle.counters.iter().fold(0u64, |sum, c| sum.wrapping_add(c.api.rx_packets.get())) as u32;
        let off_by = posted.wrapping_sub(page.posted(handle.slot).load(Ordering::Relaxed));
        if off_by != 0 && off_by == std::mem::replace(&mut member.off_by, off_by) && !handle.poll {
            page.posted(handle.slot).fetch_add(off_by, Ordering::Release);
            member.off_by = 0;
            wrong += 1;
        }
        // The NF's line costs more to read than the manager's: only if it could hold packets.
        let seems_suspended =
            handle.may_have_unread() && page.suspended(handle.slot).load(Ordering::Relaxed) != 0 && !handle.is_suspended();
        if seems_suspended && std::mem::replace(&mut member.seems_suspended, seems_suspended) {
            page.suspended(handle.slot).store(0, Ordering::Relaxed);
            wrong += 1;
        }
        member.seems_suspended &= seems_suspended;
        wrong
    }

    /// Checks whether an NF moved since the last check.
    #[inline]
    fn see_moved(&mut self, at: usize, now: u64) -> bool {
        let member = &mut self.members[at];
        let moved = member.moved();
        let has_moved = moved != member.moved;
        if has_moved {
            (member.moved, member.moved_ns, member.is_absent) = (moved, now, false);
            self.moved_ns = now;
        }
        has_moved
    }

    /// Checks whether an NF moved. Returns whether it has packets, could take them, and has not.
    fn see(&mut self, at: usize, now: u64) -> bool {
        let has_moved = self.see_moved(at, now) | std::mem::take(&mut self.members[at].moved_meanwhile);
        if has_moved {
            self.laps.count_moved();
        }
        let member = &mut self.members[at];
        let waits = member.can_run() && !member.handle.is_fed.load(Ordering::Relaxed);
        // Until the first look that sees it wait: the thread may have rested before.
        let has_waited = std::mem::replace(&mut member.waits, waits);
        if has_moved || !waits || !has_waited {
            member.since_ns = now;
        }
        member.see_asleep(now);
        self.some_wait |= waits;
        // NFs of a chain get packets one after another, and each has its turn in a round.
        if waits || now.saturating_sub(member.moved_ns) < LONGEST_ROUND_NS {
            self.laps.count_taker(member.handle.share());
        }
        if member.guarded_until_ns != 0 && now >= member.guarded_until_ns {
            member.guarded_until_ns = 0;
            member.handle.set_guarded(false);
        }
        if member.is_alone() && !member.is_absent && now >= member.alone_until_ns.max(self.distrust_until_ns) {
            self.set_alone(at, false);
        }
        waits && !has_moved
    }

    /// Sets the pending bit of an NF that sleeps with packets, has not moved since the last look,
    /// and was hidden twice. The NF itself clears the bit only when it has no packets or is awake.
    /// Returns how many words were altered.
    fn reveal(&mut self, at: usize, now: u64) -> u32 {
        let (page, member) = (&self.page, &mut self.members[at]);
        let handle = &member.handle;
        // One that is woken later than at each packet may rightly have none.
        let is_hidden = !page.is_pending(handle.slot)
            && !member.is_alone()
            && handle.wakeup.is_none()
            && !handle.governed.load(Ordering::Relaxed)
            && handle.is_asleep();
        if is_hidden && member.is_hidden {
            page.set_pending(handle.slot, now);
            return 1;
        }
        member.is_hidden = is_hidden;
        0
    }

    fn set_alone(&mut self, at: usize, alone: bool) {
        let handle = &self.members[at].handle;
        if handle.set_alone(alone) {
            self.alone = if alone { self.alone + 1 } else { self.alone.saturating_sub(1) };
            let (word, bit) = (&mut self.outside[handle.slot as usize / 64], 1 << (handle.slot % 64));
            *word = if alone { *word | bit } else { *word & !bit };
        }
        if alone {
            self.page.give_up(handle.slot);
        }
    }

    /// Clears the page's holder of the core if that NF cannot have it.
    fn correct_running(&self, now: u64) {
        let running = self.page.running().load(Ordering::Relaxed);
        let Some(slot) = running.checked_sub(1) else { return };
        let may_have = self.member(slot).is_some_and(|at| {
            let member = &self.members[at];
            let is_idle = || !member.handle.may_have_unread() && now.saturating_sub(member.moved_ns) > self.still_ns;
            member.handle.alive.load(Ordering::Relaxed) && !member.is_alone() && !is_idle()
        });
        if !may_have {
            self.page.give_up(slot);
        }
    }

    /// Whether an NF that has packets and has not moved has waited too long.
    fn is_overdue(&self, at: usize, nfs: &[Option<NfEnd>], now: u64) -> bool {
        let member = &self.members[at];
        let handle = &member.handle;
        let waited_ns = now.saturating_sub(member.since_ns);
        // It may be waiting for more packets.
        let end = nfs.get(usize::from(handle.number)).and_then(Option::as_ref);
        let held_ns = end.and_then(|end| end.waker.as_ref()).map_or(0, |waker| 2 * waker.timer_ns());
        let patience_ns = if handle.governed.load(Ordering::Relaxed) {
            // It waits for a slice, which is assigned elsewhere.
            MOST_PATIENCE_NS
        } else if member.is_alone() || now < self.distrust_until_ns {
            LOOK_NS
        } else if !self.page.hands_over() || self.is_still(now) {
            self.still_ns
        } else {
            self.patience_ns(member, now)
        };
        waited_ns >= patience_ns + held_ns
    }

    /// Whether no NF on the core has moved for `still_ns`.
    fn is_still(&self, now: u64) -> bool {
        now.saturating_sub(self.moved_ns) >= self.still_ns
    }

    /// How long an NF may wait for its turn: each has one in a round, measured in wall-clock time.
    fn patience_ns(&self, member: &NfWatch, now: u64) -> u64 {
        let lap_ns = if self.is_crowded() { self.laps.lap_ns(now) } else { 0 };
        let round_ns = wakeup::round_ns(self.laps.takers.0).max(lap_ns);
        let most_ns = MOST_PATIENCE_NS.max(PATIENT_ROUNDS * lap_ns);
        let part_ns = self.part_ns(&member.handle);
        let owes_ns = member.budget_ns(&self.page).min(0).unsigned_abs();
        let rounds = PATIENT_ROUNDS + owes_ns / part_ns.unsigned_abs().max(1);
        // In a crowd, one that owes may rightly wait until it goes first for having waited.
        let first_ns = if lap_ns > 0 && owes_ns > 0 { Rules::default().bound_ns + 2 * lap_ns } else { 0 };
        rounds.saturating_mul(round_ns).min(most_ns).max(first_ns).max(self.still_ns)
    }

    /// An NF's part of a round, in nanoseconds.
    fn part_ns(&self, handle: &NfHandle) -> i64 {
        let (takers, shares) = self.laps.takers;
        let share = handle.share().clamp(1, WHOLE);
        let whole = shares.clamp(share, WHOLE);
        wakeup::part_ns(wakeup::round_ns(takers), f64::from(share) / f64::from(whole))
    }

    /// Wakes an NF whatever the page says, among `most` sleepers at most, and takes out NFs that do
    /// not move.
    fn rescue(&mut self, at: usize, index: usize, most: u32, now: u64) {
        let slot = self.members[at].handle.slot;
        // If no NF moved since the last rescue, the core was not available to any.
        let counts = self.moved_ns > self.rescued_ns;
        self.rescued_ns = now;
        let is_governed = self.members[at].handle.governed.load(Ordering::Relaxed);
        if self.page.hands_over() && !is_governed && !self.members[at].is_alone() {
            // One that is awake has been started; what stops it is not on the page.
            let (is_still, is_asleep) = (self.is_still(now), self.members[at].handle.is_asleep());
            let running = self.page.running().load(Ordering::Relaxed);
            let holder = running.checked_sub(1).and_then(|slot| self.member(slot));
            let holder = holder.filter(|holder| now.saturating_sub(self.members[*holder].moved_ns) >= self.still_ns);
            if let Some(holder) = holder.filter(|holder| counts && *holder != at)
                && self.strike(holder, now)
            {
                self.members[holder].is_absent = true;
                self.set_alone(holder, true);
            }
            let is_struck = match is_still {
                true => counts && self.strike(at, now),
                // On a distrusted page no NF waits for turns.
                false => is_asleep && now >= self.distrust_until_ns && self.neglect(at, now),
            };
            if is_struck || now < self.distrust_until_ns {
                self.members[at].is_absent = holder == Some(at);
                self.set_alone(at, true);
            } else {
                let part_ns = self.part_ns(&self.members[at].handle);
                if i64::from(self.page.budget(slot)) < part_ns {
                    self.page.endow(slot, part_ns.unsigned_abs());
                }
                self.page.set_pending(slot, now);
                // Only one gets the core: the first rescued in a look, unless it keeps the core.
                if holder != Some(at) && self.passed_ns != now {
                    self.passed_ns = now;
                    // Giving up a holder, or another NF, may have changed it: then that one has it.
                    let running = self.page.running().load(Ordering::Relaxed);
                    self.page.pass_to(slot, running);
                }
            }
        }
        let is_deaf = self.page.hands_over() && self.members[at].is_deaf();
        let member = &mut self.members[at];
        // It got its turn, and gets time to use it.
        member.since_ns = now;
        let mut sleepers = member.count_rescue(now);
        if is_deaf {
            // Once it is awake, it waits for its own doorbell alone.
            (member.alone_until_ns, sleepers) = (member.alone_until_ns.max(now + GUARDED_NS), sleepers.max(CROWD));
            self.set_alone(at, true);
        }
        let (member, sleepers) = (&mut self.members[at], sleepers.min(most));
        member.thefts.woke(sleepers, member.handle.rouse(sleepers));
        member.handle.rung_ns.store(now, Ordering::Relaxed);
        member.handle.counters[index].api.wakes.add(1);
    }

    /// Counts a rescue of an NF while no NF moved, or a slice of it that did not end. Returns
    /// whether that recurs: then it is alone for a while.
    fn strike(&mut self, at: usize, now: u64) -> bool {
        let strikes = self.members[at].silences.add(STRIKE_NS, 0, now);
        self.take_out(at, strikes, now)
    }

    /// Counts a rescue of an NF while others moved; else as [`Self::strike`].
    fn neglect(&mut self, at: usize, now: u64) -> bool {
        let is_crowded = self.is_crowded();
        let member = &mut self.members[at];
        let waited_ns = if is_crowded { now.saturating_sub(member.since_ns) } else { 0 };
        let longest_ns = member.neglected_ns.max(waited_ns);
        let (kept_ns, since_ns) = (DISTRUST_FACTOR * longest_ns, member.alone_until_ns.max(self.distrust_until_ns));
        // Since it joined hand-overs again.
        let strikes = member.neglects.add(NEGLECT_NS.max(kept_ns), since_ns, now);
        member.neglected_ns = if strikes == 1 { waited_ns } else { longest_ns };
        if strikes >= NEGLECTS {
            self.distrust_until_ns = self.distrust_until_ns.max(now + DISTRUST_NS.max(DISTRUST_FACTOR * member.neglected_ns));
        }
        self.take_out(at, strikes, now)
    }

    fn take_out(&mut self, at: usize, strikes: u32, now: u64) -> bool {
        if strikes < STRIKES {
            return false;
        }
        let doublings = (strikes - STRIKES).min(LONGEST_DOUBLING);
        self.members[at].alone_until_ns = now + (ALONE_NS << doublings);
        true
    }
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
