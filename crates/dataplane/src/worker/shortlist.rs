//! The NFs of a core that can run, of which the policy chooses the next.

use sluice_policy::sched::wakeup::{self, Candidate};
use sluice_shm::core_page::{CorePage, WHOLE};

/// Most NFs among which a choice is made.
pub(super) const CANDIDATES: usize = 16;

/// An NF that can run, by the manager's numbers; its budget on the page, if plausible.
#[derive(Clone, Copy, Default)]
pub(super) struct Named {
    pub(super) slot: u32,
    pub(super) share: u32,
    pub(super) budget_ns: i64,
    pub(super) candidate: Candidate,
}

/// The NFs of a page that can run.
pub(super) struct Shortlist<'a> {
    page: &'a CorePage,
    candidates: [Named; CANDIDATES],
    n: usize,
}

impl<'a> Shortlist<'a> {
    pub(super) fn new(page: &'a CorePage) -> Self {
        Self { page, candidates: [Named::default(); CANDIDATES], n: 0 }
    }

    /// Adds an NF, unless there are [`CANDIDATES`] already.
    #[inline]
    pub(super) fn add(&mut self, named: Named) {
        if let Some(free) = self.candidates.get_mut(self.n) {
            *free = named;
            self.n += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n == 0
    }

    fn named(&self) -> &[Named] {
        &self.candidates[..self.n]
    }

    fn of(&self, slot: u32) -> Option<&Named> {
        self.named().iter().find(|named| named.slot == slot)
    }
}

impl wakeup::Core for Shortlist<'_> {
    fn candidates(&self, mut each: impl FnMut(u32, Candidate)) {
        self.named().iter().for_each(|named| each(named.slot, named.candidate));
    }

    fn favoured(&self, mut each: impl FnMut(u32, Candidate)) {
        let is_favoured = |named: &&Named| named.candidate.level > 0 || named.candidate.pressing > 0;
        self.named().iter().filter(is_favoured).for_each(|named| each(named.slot, named.candidate));
    }

    fn leaving(&self) -> Option<(u32, u32)> {
        None
    }

    fn leaves_packets(&self) -> bool {
        false
    }

    fn budget_ns(&self, slot: u32) -> i64 {
        self.of(slot).map_or(0, |named| named.budget_ns)
    }

    fn part_ns(&self, slot: u32, round_ns: u64) -> i64 {
        let share = self.of(slot).map_or(0, |named| named.share);
        wakeup::part_ns(round_ns, f64::from(share) / f64::from(WHOLE))
    }

    fn grant(&mut self, slot: u32, rounds: i64, round_ns: u64) {
        let part_ns = self.part_ns(slot, round_ns);
        let page = self.page;
        if let Some(named) = self.candidates[..self.n].iter_mut().find(|named| named.slot == slot) {
            named.budget_ns = wakeup::refilled(named.budget_ns, part_ns, rounds);
            page.set_budget(slot, named.budget_ns);
        }
    }
}
