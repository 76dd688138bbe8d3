//! How an NF sleeps: its place on the core page, and the storage that also wakes it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_shm::clock::{Clock, monotonic_ns};
use sluice_shm::core_page::CorePage;
use sluice_shm::doorbell;
use sluice_shm::page::{Control, Counter, Page, asleep};

/// Nanoseconds between checks for other NFs with packets, once the budget is used up.
const LOOK_ROUND_NS: u64 = 20_000;
/// Nanoseconds between checks for NFs that go first, where there are any.
const PRECEDENCE_NS: u64 = 20_000;
/// Longest sleep of an NF whose storage is full; the doorbell and completions wake it before.
const SUSPENDED: Duration = Duration::from_millis(100);

/// What the kernel completes for an NF: its storage.
pub(crate) trait Completions {
    /// Whether a [`poll`](Self::poll) has something to do.
    fn has_work(&self) -> bool;
    /// Calls the callbacks that are due, and returns how many.
    fn poll(&self) -> usize;
    /// Completes everything that was begun.
    fn flush(&self);
    /// Whether there are completions to take. Only reads memory.
    fn has_completions(&self) -> bool;
    /// Longest sleep before the next check of the storage.
    fn longest_sleep(&self) -> Duration;
    /// Waits for a doorbell, a completion, or the timeout.
    fn wait(&self, doorbells: Doorbells, timeout: Duration);
}

/// How an NF sleeps. Without a place, as in unit tests, only its storage wakes it.
#[derive(Default)]
pub(crate) struct Sleeper {
    place: Option<Place>,
    /// Not owned: callbacks may hold packets, which hold the engine, which holds this.
    storage: RefCell<Option<Weak<dyn Completions>>>,
    /// Whether a handler has waited for the disk since the last query.
    has_waited: Cell<bool>,
    /// Storage's time between bursts since the last query, in nanoseconds.
    storage_ns: Cell<u64>,
    /// Time since which the NF has had the core, in nanoseconds.
    ran_since: Cell<u64>,
    /// Time of the next check whether to give the core away: at the end of its budget or before.
    run_until: Cell<u64>,
    budget_until: Cell<u64>,
}

thread_local! {
    /// The sleeper of this thread's NF. Not in the NF's context, which other threads may hold.
    static HERE: RefCell<Weak<Sleeper>> = const { RefCell::new(Weak::new()) };
}

pub(crate) struct Place {
    pub(crate) core: &'static CorePage,
    pub(crate) slot: u32,
    pub(crate) poll: bool,
    /// Leaked, as the core page: a signal handler may ring its doorbell at any time.
    pub(crate) page: &'static Page,
    /// The engine's. Each page of memory that a turn need not touch counts where many NFs share a
    /// core: the kernel's clock is read by way of three.
    pub(crate) clock: Cell<Clock>,
}

/// The doorbells that a sleeping NF waits for, each with its value before the check for work. That
/// on the core page is rung by other NFs, and others can sleep on it in the NF's place; the one in
/// the NF's own page is rung by the manager only. As sleeping on both costs more, it is done only
/// on the manager's request ([`Control::Guarded`]). An NF outside the hand-over waits for its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doorbells {
    pub(crate) first: doorbell::Expected<'static>,
    pub(crate) second: Option<doorbell::Expected<'static>>,
}

impl Doorbells {
    /// Sleeps until one of them is rung.
    pub(crate) fn wait(&self, timeout: Duration) {
        match self.second {
            Some(second) => doorbell::wait_for_either(self.first, second, Some(timeout)),
            None => doorbell::wait(self.first.0, self.first.1, Some(timeout)),
        }
    }

    pub(crate) fn are_rung(&self) -> bool {
        // Acquire: sees what the waker wrote before.
        let rung = |(bell, seen): doorbell::Expected<'_>| bell.load(Ordering::Acquire) != seen;
        rung(self.first) || self.second.is_some_and(rung)
    }
}

impl Place {
    /// Now, in nanoseconds of the monotonic clock.
    fn now_ns(&self) -> u64 {
        self.clock.get().now_ns()
    }

    /// Whether this NF currently takes part in the hand-over.
    fn takes_turns(&self) -> bool {
        self.could_take_turns() && !self.is_alone()
    }

    fn could_take_turns(&self) -> bool {
        !self.poll && self.core.hands_over()
    }

    /// Whether the manager has taken it out of the hand-over for a while.
    fn is_alone(&self) -> bool {
        // Relaxed: only the word matters.
        self.page.control(Control::Alone).load(Ordering::Relaxed) != 0
    }

    /// Whether another NF may be sleeping in its place.
    fn is_guarded(&self) -> bool {
        // Relaxed: only the word matters.
        self.page.control(Control::Guarded).load(Ordering::Relaxed) != 0
    }

    /// Sleeps by `wait`, with the bits `says` in its page. True if it handed the core over. `turn`
    /// is as for [`CorePage::sleep_by`].
    fn sleep(&self, says: u32, turn: Option<u64>, has_work: impl FnMut() -> bool, wait: impl FnOnce(Doorbells)) -> bool {
        let page = self.page;
        // Acquire: as for the doorbell on the core page.
        let own = (page.doorbell(), page.doorbell().load(Ordering::Acquire));
        // Read after the value of its own doorbell, which the manager rings when this changes.
        let hears_neighbours = self.core.hands_over() && !self.is_alone();
        let hears_manager = !hears_neighbours || self.is_guarded() && doorbell::waits_for_more();
        let hears = if hears_manager { asleep::HEARS } else { 0 };
        // Relaxed: the fence in sleep_by() separates this word from the check for work.
        page.asleep().store(asleep::ASLEEP | hears | says, Ordering::Relaxed);
        let core = self.core;
        let handed_over = core.sleep_by(self.slot, turn, has_work, |_, seen| {
            let shared = (core.doorbell(self.slot), seen);
            wait(match (hears_neighbours, hears_manager) {
                (true, guarded) => Doorbells { first: shared, second: guarded.then_some(own) },
                (false, _) => Doorbells { first: own, second: None },
            });
        });
        page.asleep().store(0, Ordering::Relaxed);
        handed_over
    }
}

impl Sleeper {
    pub(crate) fn new(place: Place) -> Rc<Self> {
        let now = place.now_ns();
        let sleeper = Rc::new(Self { place: Some(place), ran_since: Cell::new(now), run_until: Cell::new(now), ..Self::default() });
        HERE.set(Rc::downgrade(&sleeper));
        sleeper
    }

    /// Sets the clock, which has been corrected.
    pub(crate) fn set_clock(&self, clock: Clock) {
        self.place.iter().for_each(|place| place.clock.set(clock));
    }

    /// The sleeper of this thread's NF; one without a place if it has not attached.
    pub(crate) fn here() -> Rc<Self> {
        HERE.with_borrow(Weak::upgrade).unwrap_or_else(|| {
            let sleeper = Rc::default();
            HERE.set(Rc::downgrade(&sleeper));
            sleeper
        })
    }

    /// Whether at `now` the budget is used up and another NF has packets, or another goes first.
    #[inline(always)]
    pub(crate) fn is_over_budget(&self, now: u64) -> bool {
        now >= self.run_until.get() && self.has_rival(now)
    }

    #[cold]
    fn has_rival(&self, now: u64) -> bool {
        let Some(place) = self.place.as_ref().filter(|place| place.could_take_turns()) else {
            self.run_until.set(u64::MAX);
            return false;
        };
        if place.is_alone() {
            self.ran_since.set(now);
            self.run_until.set(now + LOOK_ROUND_NS);
            return false;
        }
        let budget_until = self.budget_until.get();
        if now < budget_until {
            let is_preceded = place.core.is_preceded(place.slot);
            self.run_until.set(budget_until.min(now + PRECEDENCE_NS));
            return is_preceded;
        }
        if place.core.has_other(place.slot) {
            return true;
        }
        // Alone: the core costs no other NF anything.
        self.ran_since.set(now);
        self.run_until.set(now + LOOK_ROUND_NS);
        false
    }

    /// Pays for the NF's time on the core, sleeps by `sleep`, and notes the time of waking.
    fn turn<T>(&self, place: &Place, sleep: impl FnOnce(Option<u64>) -> T) -> T {
        if !place.could_take_turns() {
            return sleep(None);
        }
        let turn = place.takes_turns().then(|| place.now_ns());
        if let Some(now) = turn {
            place.core.pay(place.slot, now.saturating_sub(self.ran_since.get()));
        }
        let slept = sleep(turn);
        let now = place.now_ns();
        self.ran_since.set(now);
        let budget_until = now + u64::try_from(place.core.budget(place.slot)).unwrap_or(0);
        let look = if place.core.has_favoured() { now + PRECEDENCE_NS } else { u64::MAX };
        self.budget_until.set(budget_until);
        self.run_until.set(budget_until.min(look));
        slept
    }

    #[inline(always)]
    pub(crate) fn storage(&self) -> Option<Rc<dyn Completions>> {
        self.storage.borrow().as_ref()?.upgrade()
    }

    pub(crate) fn set_storage(&self, storage: Weak<dyn Completions>) {
        *self.storage.borrow_mut() = Some(storage);
    }

    /// Calls the storage's callbacks that are due, without a borrow that they may need.
    #[inline(always)]
    pub(crate) fn poll(&self) -> usize {
        self.storage().map_or(0, |storage| self.poll_storage(&*storage))
    }

    #[cold]
    fn poll_storage(&self, storage: &dyn Completions) -> usize {
        if !storage.has_work() {
            return storage.poll();
        }
        let began = monotonic_ns();
        let called = storage.poll();
        self.storage_ns.set(self.storage_ns.get().saturating_add(monotonic_ns().saturating_sub(began)));
        called
    }

    /// Time of requests and callbacks outside the handler since the last call, in nanoseconds.
    pub(crate) fn storage_ns(&self) -> u64 {
        self.storage_ns.take()
    }

    /// Whether a handler has waited for the disk since the last call, which voids its service time.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited.take()
    }

    /// Completes everything that the storage has begun.
    pub(crate) fn flush(&self) {
        if let Some(storage) = self.storage() {
            storage.flush();
        }
    }

    /// Hands the core over for the last time.
    pub(crate) fn leave(&self) {
        if let Some(place) = self.place.as_ref().filter(|place| !place.poll) {
            place.core.leave(place.slot);
        }
    }

    /// Sleeps and hands the core over; see [`CorePage::sleep`]. A completion of the storage also
    /// ends the sleep. True if the core was handed over.
    pub(crate) fn sleep(&self, timeout: Duration, mut has_work: impl FnMut() -> bool) -> bool {
        let Some(place) = &self.place else { return false };
        let Some(storage) = self.storage() else {
            return self.turn(place, |turn| place.sleep(0, turn, has_work, |doorbells| doorbells.wait(timeout)));
        };
        let timeout = timeout.min(storage.longest_sleep());
        self.turn(place, |turn| {
            place.sleep(0, turn, || has_work() || storage.has_completions(), |doorbells| storage.wait(doorbells, timeout))
        })
    }

    /// Sleeps because `storage` is full. False if the NF has no place or never sleeps: then the
    /// caller waits in the kernel.
    pub(crate) fn suspend(&self, storage: &dyn Completions) -> bool {
        self.has_waited.set(true);
        let Some(place) = self.place.as_ref().filter(|place| !place.poll) else { return false };
        place.page.add(Counter::Sleeps, 1);
        // Packets do not wake it; a completion does.
        let suspended = place.core.suspended(place.slot);
        suspended.store(1, Ordering::Relaxed);
        let handed_over = self.turn(place, |turn| {
            place.sleep(asleep::SUSPENDED, turn, || storage.has_completions(), |doorbells| storage.wait(doorbells, SUSPENDED))
        });
        suspended.store(0, Ordering::Relaxed);
        if handed_over {
            place.page.add(Counter::HandOvers, 1);
        }
        true
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper").field("slot", &self.place.as_ref().map(|place| place.slot)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use sluice_shm::core_page::WHOLE;
    use sluice_shm::page::{Region, RegionLayout};

    use super::*;

    const ME: u32 = 0;
    const RIVAL: u32 = 1;
    const MS: u64 = 1_000_000;

    fn core_page(hand_over: bool) -> &'static CorePage {
        let (_memory, page) = CorePage::create(2, hand_over).unwrap();
        (0..2).for_each(|slot| page.reset(slot));
        Box::leak(Box::new(page))
    }

    fn sleeper(core: &'static CorePage, poll: bool) -> Rc<Sleeper> {
        let region = Region::create(RegionLayout::new(1, 8).unwrap()).unwrap();
        Sleeper::new(Place { core, slot: ME, poll, page: Box::leak(Box::new(region.page.clone())), clock: Clock::kernel().into() })
    }

    /// Sets the packets of the other NF on the core.
    fn rival(core: &CorePage, packets: u32) {
        core.posted(RIVAL).store(core.taken(RIVAL).load(Ordering::Relaxed) + packets, Ordering::Relaxed);
        core.set_pending(RIVAL, 0);
    }

    /// Sleeps without a wait, as packets are there.
    fn doze(sleeper: &Sleeper) {
        assert!(!sleeper.sleep(Duration::ZERO, || true));
    }

    #[test]
    fn a_budget_that_is_used_up_counts_while_another_has_packets() {
        let core = core_page(true);
        let sleeper = sleeper(core, false);
        let end = sleeper.run_until.get();
        rival(core, 5);
        assert!(!sleeper.is_over_budget(end - 1));
        assert!(sleeper.is_over_budget(end) && sleeper.is_over_budget(end + MS));
        // A held NF is no reason to stop.
        core.hold(RIVAL).store(1, Ordering::Relaxed);
        assert!(!sleeper.is_over_budget(end + 2 * MS));
        core.hold(RIVAL).store(0, Ordering::Relaxed);
        // It came while we had the core for ourselves: it waits for the next check.
        let look = sleeper.run_until.get();
        assert_eq!(look, end + 2 * MS + LOOK_ROUND_NS);
        assert!(!sleeper.is_over_budget(look - 1));
        assert!(sleeper.is_over_budget(look));
    }

    #[test]
    fn alone_the_core_costs_nothing() {
        let core = core_page(true);
        let sleeper = sleeper(core, false);
        let mut now = sleeper.run_until.get();
        for _ in 0..10 {
            now += 3_600_000 * MS;
            assert!(!sleeper.is_over_budget(now));
            assert_eq!(sleeper.ran_since.get(), now);
            assert!(!sleeper.is_over_budget(now + LOOK_ROUND_NS - 1));
            assert_eq!(sleeper.ran_since.get(), now, "no look before its time");
        }
        // The test's clock is ahead of the real one: no time passed since the last check.
        doze(&sleeper);
        assert_eq!(core.budget(ME), 0);
    }

    #[test]
    fn time_is_paid_for_when_the_core_is_given_away() {
        let core = core_page(true);
        let sleeper = sleeper(core, false);
        rival(core, 5);
        sleeper.ran_since.set(monotonic_ns() - 3 * MS);
        doze(&sleeper);
        let budget = core.budget(ME);
        assert!(budget <= -3 * MS as i32, "{budget}");
        // Nothing is left: it goes on for one burst.
        assert_eq!(sleeper.run_until.get(), sleeper.ran_since.get());
        assert!(sleeper.is_over_budget(sleeper.ran_since.get()));
        // Paid once: time before the sleep is not paid again.
        let slept = sleeper.ran_since.get();
        doze(&sleeper);
        let passed = sleeper.ran_since.get() - slept;
        assert!(core.budget(ME).abs_diff(budget) as u64 <= passed, "{} of {passed}", core.budget(ME).abs_diff(budget));
    }

    #[test]
    fn a_budget_lasts_from_when_the_core_is_had_again() {
        let core = core_page(true);
        let sleeper = sleeper(core, false);
        core.share(ME).store(WHOLE, Ordering::Relaxed);
        rival(core, 5);
        sleeper.sleep(Duration::ZERO, || {
            // While it sleeps the others use up their budgets, and a round begins that is all its
            // own.
            core.posted(ME).store(1, Ordering::Relaxed);
            core.set_pending(ME, 0);
            rival(core, 0);
            assert_eq!(core.choose(None, 0), Some(ME));
            true
        });
        let budget = u64::try_from(core.budget(ME)).unwrap();
        assert!(budget > 0);
        let (since, until) = (sleeper.ran_since.get(), sleeper.run_until.get());
        assert_eq!(until - since, budget);
        rival(core, 5);
        assert!(!sleeper.is_over_budget(until - 1));
        assert!(sleeper.is_over_budget(until));
    }

    #[test]
    fn one_that_goes_first_ends_a_turn_before_its_budget_does() {
        let core = core_page(true);
        let sleeper = sleeper(core, false);
        core.set_level(RIVAL, 2);
        core.favour(RIVAL, true);
        rival(core, 5);
        sleeper.sleep(Duration::ZERO, || {
            core.endow(ME, MS);
            true
        });
        let since = sleeper.ran_since.get();
        assert_eq!(sleeper.run_until.get(), since + PRECEDENCE_NS);
        assert!(!sleeper.is_over_budget(since + PRECEDENCE_NS - 1), "no look before its time");
        // The rival has no budget: it waits for its turn.
        let look = since + PRECEDENCE_NS;
        assert!(!sleeper.is_over_budget(look));
        core.endow(RIVAL, MS);
        assert!(!sleeper.is_over_budget(look + PRECEDENCE_NS - 1) && sleeper.is_over_budget(look + PRECEDENCE_NS));
        // One on the same level does not end it; the end of the budget does.
        core.set_level(ME, 2);
        assert!(!sleeper.is_over_budget(look + 2 * PRECEDENCE_NS));
        let end = sleeper.budget_until.get();
        assert!(end <= since + MS && sleeper.is_over_budget(end.max(look + 3 * PRECEDENCE_NS)));
    }

    #[test]
    fn one_that_takes_no_turns_is_never_over_budget_and_pays_nothing() {
        let (handing, kernel) = (core_page(true), core_page(false));
        for (core, poll) in [(handing, true), (kernel, false)] {
            let sleeper = sleeper(core, poll);
            rival(core, 5);
            sleeper.ran_since.set(0);
            assert!(!sleeper.is_over_budget(u64::MAX - 1));
            doze(&sleeper);
            assert_eq!(core.budget(ME), 0);
            assert!(!sleeper.is_over_budget(u64::MAX - 1));
        }
        // Unit tests of an NF have no place at all.
        let nowhere = Sleeper::default();
        assert!(!nowhere.is_over_budget(1) && !nowhere.is_over_budget(u64::MAX - 1));
        assert!(!nowhere.sleep(Duration::MAX, || panic!("there is nothing to sleep in")));
    }

    #[test]
    fn one_that_is_alone_takes_no_turns_until_it_is_so_no_more() {
        let core = core_page(true);
        let sleeper = sleeper(core, false);
        let place = sleeper.place.as_ref().unwrap();
        place.page.control(Control::Alone).store(1, Ordering::Relaxed);
        rival(core, 5);
        sleeper.ran_since.set(0);
        let now = monotonic_ns();
        assert!(!sleeper.is_over_budget(now.max(sleeper.run_until.get())));
        doze(&sleeper);
        assert_eq!(core.budget(ME), 0, "it pays nothing");
        core.running().store(ME + 1, Ordering::Relaxed);
        assert!(!sleeper.sleep(Duration::ZERO, || false), "and starts nobody");
        assert_eq!((core.running().load(Ordering::Relaxed), core.asleep(RIVAL).load(Ordering::Relaxed)), (0, 1));
        place.page.control(Control::Alone).store(0, Ordering::Relaxed);
        core.running().store(ME + 1, Ordering::Relaxed);
        assert!(sleeper.sleep(Duration::ZERO, || false));
        assert_eq!((core.running().load(Ordering::Relaxed), core.asleep(RIVAL).load(Ordering::Relaxed)), (RIVAL + 1, 0));
    }

    #[test]
    fn a_sleeper_outside_the_hand_over_hears_the_manager_whatever_takes_the_wakes_of_the_page() {
        hears_the_manager(Control::Alone);
    }

    #[test]
    fn a_guarded_sleeper_hears_the_manager_whatever_takes_the_wakes_of_the_page() {
        if !doorbell::look_for_more() {
            return crate::skip::skip("this kernel cannot wait on two futexes");
        }
        hears_the_manager(Control::Guarded);
    }

    fn hears_the_manager(control: Control) {
        let core = core_page(true);
        let region = Region::create(RegionLayout::new(1, 8).unwrap()).unwrap();
        let page: &'static Page = Box::leak(Box::new(region.page.clone()));
        page.control(control).store(1, Ordering::Relaxed);
        // Thieves that wait on the sleeper's doorbell before it does.
        let stop: &'static std::sync::atomic::AtomicBool = Box::leak(Box::default());
        let thieves: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let bell = core.doorbell(ME);
                        doorbell::wait(bell, bell.load(Ordering::Relaxed), Some(Duration::from_millis(20)));
                    }
                })
            })
            .collect();
        let sleeper = std::thread::spawn(move || {
            let sleeper = Sleeper::new(Place { core, slot: ME, poll: false, page, clock: Clock::kernel().into() });
            sleeper.sleep(Duration::from_secs(3600), || false);
        });
        while page.asleep().load(Ordering::Acquire) & asleep::HEARS == 0 {
            std::thread::yield_now();
        }
        doorbell::ring(page.doorbell());
        sleeper.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
    }

    #[test]
    fn the_thread_finds_the_sleeper_of_its_nf() {
        let core = core_page(true);
        let sleeper = sleeper(core, false);
        assert!(Rc::ptr_eq(&Sleeper::here(), &sleeper));
        drop(sleeper);
        // Gone with its engine: the thread then has a sleeper without a place.
        assert!(Sleeper::here().place.is_none());
        let elsewhere = std::thread::spawn(|| Sleeper::here().place.is_none());
        assert!(elsewhere.join().unwrap());
    }
}
