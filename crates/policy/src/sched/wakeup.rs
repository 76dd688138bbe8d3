//! Which NF of a core runs next.
//!
//! # Problem
//! NFs that share a core take turns, and each switch costs as much as some dozens of packets. A
//! turn should have enough to do, and its results should find space. Over time each NF should get
//! its share, and no packet should wait for ever.
//!
//! # Terms and units
//! *Waiting*: packets in an NF's queue. *Age*: how long it has waited for the core with packets, in
//! nanoseconds. *Depth*: how far down its chains the NF is, its largest hop number. *Round*: a time
//! of the core that is divided among the NFs with packets; an NF's *part* of it follows its share.
//! *Budget*: CPU time that an NF may still use before others go first, in nanoseconds; it goes
//! below 0 when a turn takes longer.
//!
//! # Approach
//! An NF can run if packets wait for it. One that must yield, because of
//! [`backpressure`](super::backpressure), is no candidate. Of those that can run:
//! 1. one that waits longer than [`Rules::bound_ns`] goes first, the one that waits longest;
//! 2. else one that is *pressing*: what those above it add would soon find no space; the furthest
//!    down goes first ([`pressing`](super::priority::pressing), an option);
//! 3. else one with a [level](super::priority) above 0 and budget left, the highest level first;
//! 4. else the next one in the *circle*: the nearest further down the chains than the NF which
//!    gives the core away, and after the last one the first; NFs of one depth go by their numbers.
//!
//! So packets that were just worked on go on, those that arrived meanwhile join them, and
//! everything inside passes through a chain as one wave, which pays for as few switches as
//! possible. Taking the furthest down with a quarter of a ring first cuts the wave in pieces of
//! that size: ten NFs of 60 ns then make 14,000 switches a second instead of 4,000.
//!
//! Shares are kept by a deficit round robin over time instead of bytes. Each NF that is chosen gets
//! its part of a round on top of its budget, never more than one part in all, and gives the core
//! away when the budget is used up and another NF can run. An NF whose budget is not above 0 even
//! then is passed over until it is. If that is so for all, as many parts are given as it takes
//! until one has budget. A turn that took too long is paid for by waiting, up to [`DEBT_NS`].
//!
//! A round is longer when more NFs share it ([`round_ns`], at most [`LONGEST_ROUND_NS`]). A switch
//! costs some microseconds with the caches that it leaves cold: in a round of a fixed length ten
//! NFs would spend a tenth of the core on switches. An NF with few packets waits longer for it.
//!
//! The same code makes every choice ([`choose`]): in an NF that goes to sleep, in the manager when
//! no NF of a core runs, and in the simulator. Only the storage of the numbers differs ([`Core`]).
//!
//! # Limits
//! The bound must be well above the time to serve a full ring, and above a turn of every NF: else,
//! under overload, the choice becomes first come, first served. It is linear in the candidates.
//! Room for the results is no part of a choice: the manager admits no more packets than the whole
//! path has room for.
//!
//! Source: NFVnice, section 3.2 (which NF is woken, and why); M. Shreedhar, G. Varghese,
//! "Efficient Fair Queuing using Deficit Round Robin", SIGCOMM 1995, for the budgets.

/// An NF of the core at the time of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Candidate {
    /// Packets in its queue; 0 for an NF that may not run.
    pub waiting: u32,
    /// How long it has waited for the core with packets, in nanoseconds.
    pub age_ns: u64,
    /// Its largest hop number.
    pub depth: u32,
    /// An NF with a level above 0 goes first while it has budget; 0 is ordinary.
    pub level: u32,
    /// Packets with which it goes before those above it; 0 if it never does.
    pub pressing: u32,
}

impl Candidate {
    #[inline]
    fn can_run(&self) -> bool {
        self.waiting > 0
    }

    #[inline]
    fn is_pressing(&self) -> bool {
        self.pressing > 0 && self.waiting >= self.pressing
    }
}

/// Parameters of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Longest wait; an NF that has waited longer goes first, in nanoseconds.
    pub bound_ns: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { bound_ns: 100_000_000 }
    }
}

/// Shortest round, in nanoseconds.
pub const ROUND_NS: u64 = 1_000_000;
/// Longest round, in nanoseconds.
pub const LONGEST_ROUND_NS: u64 = 10_000_000;
/// Part of an NF with an average share, where the round is between the two, in nanoseconds.
const TURN_NS: u64 = 300_000;
/// Largest debt of an NF that had the core longer than its budget, in nanoseconds. An NF that could
/// not give the core away in time, by an accident of the host, does not pay for it for ever.
pub const DEBT_NS: i64 = 16_000_000;
/// Least part of a round, in nanoseconds: an NF without a share is slow, never stuck.
const LEAST_PART_NS: i64 = 1_000;

/// Time of the core that a round divides among `nfs` NFs with packets, in nanoseconds.
#[inline]
pub fn round_ns(nfs: u32) -> u64 {
    (u64::from(nfs) * TURN_NS).clamp(ROUND_NS, LONGEST_ROUND_NS)
}

/// Round length for summing up shares as whole numbers, in nanoseconds.
const WHOLE_NS: u64 = 1_000_000_000;

/// Part that a round of `round_ns` gives an NF with this share (0 to 1), in nanoseconds.
#[inline]
pub fn part_ns(round_ns: u64, share: f64) -> i64 {
    ((round_ns as f64 * share) as i64).max(LEAST_PART_NS)
}

/// A budget after a turn of `used_ns`.
#[inline]
pub fn paid(budget_ns: i64, used_ns: u64) -> i64 {
    budget_ns.saturating_sub_unsigned(used_ns).max(-DEBT_NS)
}

/// A budget after `rounds` rounds of `part_ns`, at most one part.
#[inline]
pub fn refilled(budget_ns: i64, part_ns: i64, rounds: i64) -> i64 {
    budget_ns.saturating_add(part_ns.saturating_mul(rounds)).min(part_ns)
}

/// The NFs of a core, numbered by the implementer, and their budgets.
pub trait Core {
    /// Calls `each` with the NFs that may run. Those without packets may be left out; of very many
    /// NFs some may be left out, if a later choice names them.
    fn candidates(&self, each: impl FnMut(u32, Candidate));

    /// As [`candidates`](Self::candidates), but only NFs with a level or that may be pressing.
    fn favoured(&self, each: impl FnMut(u32, Candidate));

    /// Depth and number of the NF that gives the core away, if there is one.
    fn leaving(&self) -> Option<(u32, u32)>;

    /// Whether the NF that gives the core away still has packets, and so takes part in the round.
    fn leaves_packets(&self) -> bool;

    /// What an NF has left of its budget, in nanoseconds.
    fn budget_ns(&self, nf: u32) -> i64;

    /// Part that a round of `round_ns` gives an NF, in nanoseconds, as [`part_ns`].
    fn part_ns(&self, nf: u32, round_ns: u64) -> i64;

    /// Gives an NF its part of `rounds` rounds of `round_ns`, as [`refilled`].
    fn grant(&mut self, nf: u32, rounds: i64, round_ns: u64);
}

/// Chooses the NF that runs next, and gives it its part; None if none can run.
#[inline]
pub fn choose(core: &mut impl Core, rules: &Rules) -> Option<u32> {
    // Those that can run divide the round among themselves. Where everything passes a chain as one
    // wave, they are few at a time, and their shares alone would cut the wave.
    let (mut takers, mut parts, mut late) = (0, 0, None);
    core.candidates(|nf, candidate| {
        if candidate.can_run() {
            takers += 1;
            parts += core.part_ns(nf, WHOLE_NS);
            if candidate.age_ns > rules.bound_ns && late.is_none_or(|(age_ns, _)| candidate.age_ns > age_ns) {
                late = Some((candidate.age_ns, nf));
            }
        }
    });
    if let Some((_, leaving)) = core.leaving().filter(|_| core.leaves_packets()) {
        takers += 1;
        parts += core.part_ns(leaving, WHOLE_NS);
    }
    let whole = (parts.max(1) as f64 / WHOLE_NS as f64).min(1.0);
    let round_ns = (round_ns(takers) as f64 / whole) as u64;
    if let Some((_, nf)) = late {
        core.grant(nf, 1, round_ns);
        return Some(nf);
    }
    if let Some((first, is_pressing)) = foremost(core) {
        if is_pressing {
            let rounds = rounds_to_budget(core, first, round_ns);
            core.grant(first, rounds, round_ns);
        }
        return Some(first);
    }
    let mut from = core.leaving();
    for _ in 0..takers {
        let place = next(core, from)?;
        core.grant(place.1, 1, round_ns);
        if core.budget_ns(place.1) > 0 {
            return Some(place.1);
        }
        from = Some(place);
    }
    // All are in debt: give as many parts as the first one needs. Budget + rounds · part ≥ 1.
    let mut first: Option<(i64, u32)> = None;
    core.candidates(|nf, candidate| {
        if candidate.can_run() {
            let rounds = rounds_to_budget(core, nf, round_ns);
            if first.is_none_or(|(least, _)| rounds < least) {
                first = Some((rounds, nf));
            }
        }
    });
    let (rounds, nf) = first?;
    let mut from = core.leaving();
    for _ in 0..takers {
        // The numbers may change meanwhile; then no NF can run any more.
        let Some(place) = next(core, from) else { break };
        core.grant(place.1, rounds, round_ns);
        from = Some(place);
    }
    Some(nf)
}

/// Number of parts of a round that an NF needs to have budget, at least one.
#[inline]
fn rounds_to_budget(core: &impl Core, nf: u32, round_ns: u64) -> i64 {
    let part = core.part_ns(nf, round_ns).max(1);
    (1i64.saturating_sub(core.budget_ns(nf)).max(1).saturating_add(part - 1)) / part
}

/// Whether it is pressing; depth or level; whether further on in the circle; depth and number.
type Rank = (bool, u32, bool, std::cmp::Reverse<(u32, u32)>);

/// The NF that goes before the circle, and whether it is pressing; None if the circle decides.
#[inline]
fn foremost(core: &impl Core) -> Option<(u32, bool)> {
    let from = core.leaving();
    let mut first: Option<(Rank, u32)> = None;
    core.favoured(|nf, candidate| {
        if !candidate.can_run() {
            return;
        }
        let is_pressing = candidate.is_pressing();
        if !is_pressing && (candidate.level == 0 || core.budget_ns(nf) <= 0) {
            return;
        }
        let place = (candidate.depth, nf);
        let much = if is_pressing { candidate.depth } else { candidate.level };
        let key = (is_pressing, much, from.is_some_and(|from| place > from), std::cmp::Reverse(place));
        if first.is_none_or(|(best, _)| key > best) {
            first = Some((key, nf));
        }
    });
    first.map(|((is_pressing, ..), nf)| (nf, is_pressing))
}

/// Whether an NF with this level must give the core away early, because another goes before it.
#[inline]
pub fn is_preceded(core: &impl Core, level: u32) -> bool {
    let Some((depth, _)) = core.leaving() else { return false };
    let mut found = false;
    core.favoured(|nf, candidate| {
        let goes_first = candidate.is_pressing() && candidate.depth > depth || candidate.level > level && core.budget_ns(nf) > 0;
        found |= goes_first && candidate.can_run();
    });
    found
}

/// Depth and number of the next NF in the circle after `from` that can run.
#[inline]
fn next(core: &impl Core, from: Option<(u32, u32)>) -> Option<(u32, u32)> {
    let mut first: Option<(u32, u32)> = None;
    let mut further: Option<(u32, u32)> = None;
    core.candidates(|nf, candidate| {
        if candidate.can_run() {
            let place = (candidate.depth, nf);
            let nearest = if from.is_some_and(|from| place > from) { &mut further } else { &mut first };
            *nearest = Some(nearest.map_or(place, |before| before.min(place)));
        }
    });
    further.or(first)
}

/// A core with all numbers in one place, for simulators and tests.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreTable {
    /// By NF.
    pub candidates: Vec<Candidate>,
    /// By NF, 0 to 1. A missing entry is no share.
    pub shares: Vec<f64>,
    /// The NF that gives the core away. It is no candidate, and those after it are named first.
    pub leaving: Option<usize>,
    budgets_ns: Vec<i64>,
}

impl CoreTable {
    /// For `nfs` NFs without packets, with equal shares and no budget.
    pub fn new(nfs: usize) -> Self {
        Self {
            candidates: vec![Candidate::default(); nfs],
            shares: vec![1.0 / nfs.max(1) as f64; nfs],
            leaving: None,
            budgets_ns: vec![0; nfs],
        }
    }

    /// Subtracts used CPU time from an NF's budget. Panics if there is no such NF.
    pub fn charge(&mut self, nf: usize, used_ns: u64) {
        self.budgets_ns[nf] = paid(self.budgets_ns[nf], used_ns);
    }

    /// Whether an NF must leave: no budget is left, and another can run. Panics without such an NF.
    pub fn must_leave(&self, nf: usize) -> bool {
        let others = || self.candidates.iter().enumerate().filter(|(other, _)| *other != nf);
        self.budgets_ns[nf] <= 0 && others().any(|(_, candidate)| candidate.can_run())
    }
}

impl Core for CoreTable {
    fn candidates(&self, mut each: impl FnMut(u32, Candidate)) {
        let from = self.leaving.map_or(0, |leaving| leaving + 1);
        for nf in (from..self.candidates.len()).chain(0..from).filter(|nf| Some(*nf) != self.leaving) {
            each(nf as u32, self.candidates[nf]);
        }
    }

    fn favoured(&self, mut each: impl FnMut(u32, Candidate)) {
        self.candidates(|nf, candidate| {
            if candidate.level > 0 || candidate.pressing > 0 {
                each(nf, candidate);
            }
        });
    }

    fn leaving(&self) -> Option<(u32, u32)> {
        self.leaving.map(|nf| (self.candidates[nf].depth, nf as u32))
    }

    fn leaves_packets(&self) -> bool {
        self.leaving.is_some_and(|nf| self.candidates[nf].waiting > 0)
    }

    fn budget_ns(&self, nf: u32) -> i64 {
        self.budgets_ns[nf as usize]
    }

    fn part_ns(&self, nf: u32, round_ns: u64) -> i64 {
        part_ns(round_ns, self.shares.get(nf as usize).copied().unwrap_or(0.0))
    }

    fn grant(&mut self, nf: u32, rounds: i64, round_ns: u64) {
        self.budgets_ns[nf as usize] = refilled(self.budgets_ns[nf as usize], self.part_ns(nf, round_ns), rounds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { bound_ns: 1_000_000 };

    fn waiting(waiting: u32, depth: u32) -> Candidate {
        Candidate { waiting, depth, age_ns: 1000, ..Candidate::default() }
    }

    fn core(candidates: &[Candidate]) -> CoreTable {
        let mut core = CoreTable::new(candidates.len());
        core.candidates = candidates.to_vec();
        core
    }

    fn pick(candidates: &[Candidate]) -> Option<u32> {
        choose(&mut core(candidates), &RULES)
    }

    #[test]
    fn the_next_one_down_the_chains_runs_and_behind_the_last_the_first() {
        let next_to = |leaving: usize, candidates: &[Candidate]| {
            let mut core = core(candidates);
            core.leaving = Some(leaving);
            choose(&mut core, &RULES)
        };
        let all = [waiting(500, 1), waiting(4, 2), waiting(32, 3)];
        assert_eq!([0, 1, 2].map(|leaving| next_to(leaving, &all)), [Some(1), Some(2), Some(0)]);
        assert_eq!(next_to(0, &[waiting(500, 1), waiting(0, 2), waiting(1, 3)]), Some(2));
        assert_eq!(next_to(1, &[waiting(500, 1), waiting(40, 2), waiting(0, 3)]), Some(0));
        // Of one depth, by their numbers; between depths numbers do not matter.
        assert_eq!(next_to(1, &[waiting(1, 1), waiting(1, 1), waiting(1, 1), waiting(1, 2)]), Some(2));
        assert_eq!(next_to(2, &[waiting(1, 1), waiting(1, 3), waiting(1, 2)]), Some(1));
        assert_eq!(pick(&[waiting(500, 2), waiting(500, 1)]), Some(1));
        assert_eq!(pick(&[waiting(0, 1), waiting(0, 2)]), None);
        assert_eq!(pick(&[]), None);
    }

    #[test]
    fn one_that_waits_too_long_goes_first_with_or_without_budget() {
        let late = |age_ns| Candidate { age_ns, ..waiting(1, 0) };
        assert_eq!(pick(&[waiting(100, 0), late(1_000_000)]), Some(0));
        assert_eq!(pick(&[late(1_000_001), late(1_000_002), waiting(100, 5)]), Some(1));
        assert_eq!(pick(&[Candidate { waiting: 0, ..late(9_000_000) }, waiting(1, 1)]), Some(1), "it cannot run");
        let mut poor = core(&[late(2_000_000), waiting(100, 5)]);
        poor.charge(0, 9_000_000);
        assert_eq!(choose(&mut poor, &RULES), Some(0));
    }

    #[test]
    fn one_that_leaves_is_not_chosen_and_others_come_after_it_in_turn() {
        let mut core = core(&[waiting(50, 1); 3]);
        for (leaving, next) in [(0, 1), (1, 2), (2, 0)] {
            core.leaving = Some(leaving);
            assert_eq!(choose(&mut core, &RULES), Some(next));
        }
        core.candidates[1].waiting = 0;
        core.candidates[2].waiting = 0;
        core.leaving = Some(0);
        assert_eq!(choose(&mut core, &RULES), None);
        // With budget it may stay; without, only if no other can run.
        core.charge(0, 1_000_000);
        assert!(!core.must_leave(0));
        core.candidates[2].waiting = 1;
        assert!(core.must_leave(0) && !core.must_leave(2));
    }

    #[test]
    fn one_that_is_in_debt_is_passed_over_until_it_has_paid() {
        // Parts of 0.5 ms.
        let mut core = core(&[waiting(1, 1), waiting(500, 2)]);
        core.charge(0, 700_000);
        assert_eq!(choose(&mut core, &RULES), Some(1));
        assert_eq!((core.budget_ns(0), core.budget_ns(1)), (-200_000, 500_000), "it was given its part, and lacks a little");
        core.charge(1, 500_000);
        core.leaving = Some(1);
        assert_eq!(choose(&mut core, &RULES), Some(0));
        assert_eq!(core.budget_ns(0), 300_000, "who leaves has packets, and a part of its own");
        // Without packets at the NF that leaves, the whole round is for NF 0.
        core.candidates[1].waiting = 0;
        assert_eq!(choose(&mut core, &RULES), Some(0));
        assert_eq!(core.budget_ns(0), 1_000_000);
    }

    #[test]
    fn parts_follow_shares_and_nobody_saves_more_than_one() {
        let mut core = core(&[waiting(9, 1); 3]);
        core.shares = vec![0.6, 0.3, 0.1];
        let left = |core: &CoreTable| [0, 1, 2].map(|nf| core.budget_ns(nf));
        (0..3).for_each(|nf| core.grant(nf, 1, ROUND_NS));
        assert_eq!(left(&core), [600_000, 300_000, 100_000]);
        core.charge(1, 500_000);
        (0..3).for_each(|nf| core.grant(nf, 1, ROUND_NS));
        assert_eq!(left(&core), [600_000, 100_000, 100_000]);
        // A smaller share cuts what was saved.
        core.shares = vec![0.1, 0.3, 0.6];
        core.grant(0, 1, ROUND_NS);
        assert_eq!(left(&core), [100_000, 100_000, 100_000]);
    }

    #[test]
    fn debts_are_bounded_and_paid_in_one_go() {
        let mut core = core(&[waiting(90, 2), waiting(90, 1)]);
        core.charge(0, u64::MAX);
        core.charge(1, 6_000_000);
        assert_eq!((core.budget_ns(0), core.budget_ns(1)), (-16_000_000, -6_000_000));
        // A part of 0.5 ms each helps neither; then 1 needs twelve more, and 0 would need 32.
        assert_eq!(choose(&mut core, &RULES), Some(1));
        assert_eq!((core.budget_ns(0), core.budget_ns(1)), (-9_500_000, 500_000));
        // Without any share there is the least part.
        let mut core = CoreTable { shares: Vec::new(), ..self::core(&[waiting(1, 0)]) };
        core.charge(0, 3_000_000);
        assert_eq!(choose(&mut core, &RULES), Some(0));
        assert!(core.budget_ns(0) > 0, "{}", core.budget_ns(0));
    }

    #[test]
    fn a_round_is_longer_for_more_nfs() {
        assert_eq!(
            [1, 3, 4, 10, 33, 34, 5000].map(round_ns),
            [1_000_000, 1_000_000, 1_200_000, 3_000_000, 9_900_000, 10_000_000, 10_000_000]
        );
        // Ten can run: 3 ms, a tenth each. Two alone share the whole round, with shares of 0.2.
        let mut core = CoreTable::new(11);
        core.candidates = vec![waiting(50, 1); 11];
        core.candidates[3] = waiting(0, 1);
        core.leaving = Some(3);
        core.shares = vec![0.1; 11];
        assert_eq!(choose(&mut core, &RULES), Some(4));
        assert_eq!((core.budget_ns(4), core.budget_ns(3)), (300_000, 0));
        let mut two = CoreTable::new(11);
        two.candidates[..2].fill(waiting(50, 1));
        two.shares = vec![0.1; 11];
        assert_eq!(choose(&mut two, &RULES), Some(0));
        assert_eq!(two.budget_ns(0), 500_000, "half of the least round");
    }

    #[test]
    fn one_that_has_a_level_goes_first_while_there_is_budget() {
        let favoured = |level| Candidate { level, ..waiting(10, 1) };
        let mut core = core(&[waiting(10, 1), favoured(1), favoured(2), waiting(10, 2), favoured(2)]);
        // No budget yet: the circle.
        assert_eq!(choose(&mut core, &RULES), Some(0));
        (1..5).for_each(|nf| core.grant(nf, 1, ROUND_NS));
        assert_eq!(choose(&mut core, &RULES), Some(2));
        // Of two on one level, the next one in the circle.
        core.leaving = Some(2);
        assert_eq!(choose(&mut core, &RULES), Some(4));
        core.leaving = Some(4);
        assert_eq!(choose(&mut core, &RULES), Some(2));
        core.charge(2, 10_000_000);
        assert_eq!(choose(&mut core, &RULES), Some(1), "4 gives the core away, and 2 has had its part");
        core.charge(1, 10_000_000);
        core.charge(4, 10_000_000);
        core.leaving = Some(1);
        assert_eq!(choose(&mut core, &RULES), Some(3), "the circle goes on behind who leaves: 2 and 4 have debts");
    }

    /// The parts of the time that three NFs get which have packets all the time.
    fn parts(core: &mut CoreTable) -> [f64; 3] {
        let mut used = [0u64; 3];
        for _ in 0..10_000 {
            let nf = choose(core, &RULES).expect("all can run") as usize;
            core.leaving = None;
            loop {
                core.charge(nf, 60_000);
                used[nf] += 60_000;
                if core.must_leave(nf) {
                    break;
                }
            }
            core.leaving = Some(nf);
        }
        let total: u64 = used.iter().sum();
        used.map(|used| used as f64 / total as f64)
    }

    #[test]
    fn levels_take_no_time_from_others() {
        // All have packets and equal shares. The one with a level only runs sooner, not longer.
        let mut core = core(&[waiting(100, 1), Candidate { level: 4, ..waiting(100, 1) }, waiting(100, 1)]);
        parts(&mut core).iter().for_each(|part| assert!((part - 1.0 / 3.0).abs() < 0.01, "{part}"));
    }

    #[test]
    fn the_furthest_down_that_is_pressing_goes_first_with_or_without_budget() {
        let at = |packets, depth| Candidate { pressing: 64, ..waiting(packets, depth) };
        let mut core = core(&[waiting(500, 0), at(64, 1), at(200, 2), Candidate { level: 3, ..waiting(9, 0) }]);
        core.grant(3, 1, ROUND_NS);
        core.charge(2, 9_000_000);
        core.leaving = Some(0);
        assert_eq!(choose(&mut core, &RULES), Some(2));
        assert!(core.budget_ns(2) > 0, "it can do more than a burst");
        core.candidates[2].waiting = 63;
        assert_eq!(choose(&mut core, &RULES), Some(1));
        core.candidates[1].waiting = 63;
        assert_eq!(choose(&mut core, &RULES), Some(3), "then who has a level");
        // Late NFs still go first.
        core.candidates[1].age_ns = 2_000_000;
        assert_eq!(choose(&mut core, &RULES), Some(1));
    }

    #[test]
    fn one_that_has_the_core_is_preceded_by_higher_levels_and_by_those_further_down() {
        let mut core =
            core(&[waiting(10, 1), Candidate { level: 2, ..waiting(10, 0) }, Candidate { pressing: 64, ..waiting(63, 2) }]);
        core.leaving = Some(0);
        assert!(!is_preceded(&core, 0), "no budget, and not pressing");
        core.grant(1, 1, ROUND_NS);
        assert!(is_preceded(&core, 0) && is_preceded(&core, 1) && !is_preceded(&core, 2));
        core.candidates[2].waiting = 64;
        assert!(is_preceded(&core, 9));
        core.candidates[0].depth = 2;
        assert!(!is_preceded(&core, 9), "as far down itself");
    }

    #[test]
    fn over_time_each_gets_its_share() {
        // Costs 120, 270 and 550 with shares to match, turns of 60 µs, and packets all the time.
        let mut core = core(&[waiting(100, 1), waiting(100, 2), waiting(100, 3)]);
        core.shares = vec![120.0 / 940.0, 270.0 / 940.0, 550.0 / 940.0];
        for (got, share) in parts(&mut core).iter().zip(&core.shares) {
            assert!((got - share).abs() < 0.001, "{got} for {share}");
        }
    }
}
