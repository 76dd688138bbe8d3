//! Which NF of a core runs next.
//!
//! # Problem
//! NFs that share a core take turns, and each switch costs as much as some dozens of packets. A turn should have enough to do, its
//! results should find room, and over time each NF should get its share, and no packet should wait for ever.
//!
//! # Terms and units
//! *Waiting*: packets in an NF's queue. *Age*: how long it has waited for the core with packets, in nanoseconds. *Room*: packets that
//! the NF can pass on before something downstream is full. *Held*: told to yield ([`backpressure`](super::backpressure)). *Depth*:
//! how far down its chains the NF is, its largest hop number. *Round*: a time of the core that is divided among the NFs with packets;
//! an NF's *part* of it follows its share. *Budget*: CPU time that an NF may still use before others go first, in nanoseconds; it goes
//! below 0 when a turn takes longer. *Enough*: packets that make a turn worth its switch.
//!
//! # Approach
//! An NF can run if packets wait for it, it is not held, and there is room for a burst (or for all that waits, if that is less).
//! Of those that can:
//! 1. one that waits longer than [`Rules::bound_ns`] goes first, the one that waits longest;
//! 2. of those with budget and enough packets, the next one down the chains from who gives the core away, and behind the last the first:
//!    the packets that were just worked on go on, and what came meanwhile joins them, so that all that is inside passes through as one
//!    wave;
//! 3. else of those with budget the next one down;
//! 4. else nobody who can run has budget: as many rounds begin as it takes until one has, and the choice is made again.
//!
//! Ties go to the one that waits longer, then to the one that is named first. Budgets are a deficit round robin over time instead of
//! bytes: a round gives each NF with packets its part. What is not used is kept up to one part: an NF without packets saves for no
//! more than its next turn. A turn that took too long is paid for by waiting, up to [`DEBT_NS`].
//!
//! A round is the longer the more NFs share it ([`round_ns`]): a switch costs some microseconds with the caches that it leaves cold, and
//! in a round of a fixed length ten NFs would spend a tenth of the core on switches. Who has few packets waits the longer for it, but
//! no longer than [`LONGEST_ROUND_NS`].
//!
//! The last one with enough packets first (what is almost through leaves first) was the rule before, and cut the wave in pieces of a
//! quarter of a ring, each of which paid for all the switches: ten NFs of 60 ns made 14,000 a second instead of 3,500.
//!
//! The rule is the same code wherever a choice is made ([`choose`]): in an NF that goes to sleep, in the manager when a core has
//! nobody who runs, and in the simulator. What differs is where the numbers are kept ([`Core`]).
//!
//! # Limits
//! The bound must be well above what a full ring takes to serve, and above a turn of everybody: under overload everything is late
//! else, and the choice becomes first come, first served. One choice is linear in the NFs that are named.
//!
//! Source: NFVnice, sections 3.1 and 3.3 (who is woken, and what it depends on); M. Shreedhar, G. Varghese, "Efficient Fair Queuing
//! using Deficit Round Robin", SIGCOMM 1995, for the budgets.

use std::cmp::Reverse;

/// What is known of an NF at the time of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Candidate {
    /// Packets in its queue.
    pub waiting: u32,
    /// How long it has waited for the core with packets, in nanoseconds.
    pub age_ns: u64,
    /// Packets that it can pass on before something downstream is full.
    pub room: u32,
    /// Told to yield.
    pub held: bool,
    /// Its largest hop number.
    pub depth: u32,
}

impl Candidate {
    #[inline]
    fn can_run(&self, burst: u32) -> bool {
        self.waiting > 0 && !self.held && self.room >= self.waiting.min(burst)
    }
}

/// How choices are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Packets that make a turn worth its switch.
    pub enough: u32,
    /// An NF that has waited longer goes first, in nanoseconds.
    pub bound_ns: u64,
    /// Packets of a burst: the room that a turn needs.
    pub burst: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { enough: 32, bound_ns: 100_000_000, burst: 32 }
    }
}

/// Shortest round, in nanoseconds.
pub const ROUND_NS: u64 = 1_000_000;
/// Longest round, in nanoseconds.
pub const LONGEST_ROUND_NS: u64 = 10_000_000;
/// What a round gives an NF with an average share, where its length is between the two.
const TURN_NS: u64 = 300_000;
/// Largest debt of an NF that had the core longer than its budget, in nanoseconds: who could not give the core away in time, by an
/// accident of the host, does not pay for it for ever.
pub const DEBT_NS: i64 = 16_000_000;
/// Least part of a round, in nanoseconds: an NF that is given nothing is slow, never stuck.
const LEAST_PART_NS: i64 = 1_000;

/// Time of the core that a round divides among so many NFs with packets, in nanoseconds.
#[inline]
pub fn round_ns(nfs: u32) -> u64 {
    (u64::from(nfs) * TURN_NS).clamp(ROUND_NS, LONGEST_ROUND_NS)
}

/// A time whose parts tell shares, in nanoseconds.
const WHOLE_NS: u64 = 1_000_000_000;

/// What a round of `round_ns` gives an NF with that share (0 to 1) of the core, in nanoseconds.
#[inline]
pub fn part_ns(round_ns: u64, share: f64) -> i64 {
    ((round_ns as f64 * share) as i64).max(LEAST_PART_NS)
}

/// A budget after a turn of `used_ns`.
#[inline]
pub fn paid(budget_ns: i64, used_ns: u64) -> i64 {
    budget_ns.saturating_sub_unsigned(used_ns).max(-DEBT_NS)
}

/// A budget after so many rounds of `part_ns`: what was saved is no more than one part.
#[inline]
pub fn refilled(budget_ns: i64, part_ns: i64, rounds: i64) -> i64 {
    budget_ns.saturating_add(part_ns.saturating_mul(rounds)).min(part_ns)
}

/// The NFs of a core, by numbers of its own, and where their budgets are kept.
pub trait Core {
    /// Calls `each` with those that may run, in the order in which ties are decided. Who cannot run may be left out, and of very many
    /// those that come late, if they are named first another time.
    fn candidates(&self, each: impl FnMut(u32, Candidate));

    /// How far down its chains who gives the core away is; None if nobody does.
    fn leaving_depth(&self) -> Option<u32>;

    /// What an NF has left of its budget, in nanoseconds.
    fn budget_ns(&self, nf: u32) -> i64;

    /// What a round of `round_ns` gives an NF, in nanoseconds, as [`part_ns`].
    fn part_ns(&self, nf: u32, round_ns: u64) -> i64;

    /// Begins so many rounds of `round_ns` for everybody with packets, as [`refilled`].
    fn begin_rounds(&mut self, rounds: i64, round_ns: u64);
}

/// The NF of the core that runs next; None if none can. Rounds begin if they must.
#[inline]
pub fn choose(core: &mut impl Core, rules: &Rules) -> Option<u32> {
    let (best, is_settled) = best(core, rules)?;
    if is_settled {
        return Some(best);
    }
    // Those that can run divide the round among themselves: of a chain through which everything passes as one wave they are few at a
    // time, and their shares alone would cut the wave.
    let (mut takers, mut parts) = (0, 0);
    core.candidates(|nf, candidate| {
        if candidate.can_run(rules.burst) {
            takers += 1;
            parts += core.part_ns(nf, WHOLE_NS);
        }
    });
    let whole = (parts.max(1) as f64 / WHOLE_NS as f64).min(1.0);
    let round_ns = (round_ns(takers) as f64 / whole) as u64;
    // So many rounds until the first of them has budget: budget + rounds · part ≥ 1.
    let mut rounds = i64::MAX;
    core.candidates(|nf, candidate| {
        if candidate.can_run(rules.burst) {
            let part = core.part_ns(nf, round_ns).max(1);
            rounds = rounds.min((1i64.saturating_sub(core.budget_ns(nf)).max(1).saturating_add(part - 1)) / part);
        }
    });
    // The numbers may change under the choice: then nobody can run any more.
    if rounds == i64::MAX {
        return None;
    }
    core.begin_rounds(rounds, round_ns);
    self::best(core, rules).map(|found| found.0)
}

/// The best of those that can run, and whether it is late or has budget.
#[inline]
fn best(core: &impl Core, rules: &Rules) -> Option<(u32, bool)> {
    let mut best: Option<(Rank, u32)> = None;
    let leaving = core.leaving_depth();
    core.candidates(|nf, candidate| {
        if !candidate.can_run(rules.burst) {
            return;
        }
        let rank = if candidate.age_ns > rules.bound_ns {
            Rank { is_late: true, has_budget: true, age_ns: candidate.age_ns, ..Rank::default() }
        } else {
            Rank {
                is_late: false,
                has_budget: core.budget_ns(nf) > 0,
                has_enough: candidate.waiting >= rules.enough,
                is_further: leaving.is_some_and(|leaving| candidate.depth > leaving),
                near: Reverse(candidate.depth),
                age_ns: candidate.age_ns,
            }
        };
        if best.is_none_or(|(before, _)| rank > before) {
            best = Some((rank, nf));
        }
    });
    best.map(|(rank, nf)| (nf, rank.has_budget))
}

/// Compared in the order of its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Rank {
    is_late: bool,
    has_budget: bool,
    has_enough: bool,
    /// It is further down the chains than who gives the core away.
    is_further: bool,
    near: Reverse<u32>,
    age_ns: u64,
}

/// A core whose numbers are all in one place: for simulators and tests.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// By NF.
    pub candidates: Vec<Candidate>,
    /// By NF, 0 to 1. Who is missing has none.
    pub shares: Vec<f64>,
    /// Who gives the core away: no candidate, and those after it are named first.
    pub leaving: Option<usize>,
    budgets_ns: Vec<i64>,
}

impl Table {
    /// For `nfs` NFs without packets, with equal shares and no budget.
    pub fn new(nfs: usize) -> Self {
        Self {
            candidates: vec![Candidate::default(); nfs],
            shares: vec![1.0 / nfs.max(1) as f64; nfs],
            leaving: None,
            budgets_ns: vec![0; nfs],
        }
    }

    /// Takes the CPU time that an NF has used off its budget. Panics if there is no such NF.
    pub fn charge(&mut self, nf: usize, used_ns: u64) {
        self.budgets_ns[nf] = paid(self.budgets_ns[nf], used_ns);
    }

    /// Whether an NF that has the core is to give it away: its budget is used up, and another can run. Panics if there is no such NF.
    pub fn must_leave(&self, nf: usize, rules: &Rules) -> bool {
        let others = || self.candidates.iter().enumerate().filter(|(other, _)| *other != nf);
        self.budgets_ns[nf] <= 0 && others().any(|(_, candidate)| candidate.can_run(rules.burst))
    }
}

impl Core for Table {
    fn candidates(&self, mut each: impl FnMut(u32, Candidate)) {
        let from = self.leaving.map_or(0, |leaving| leaving + 1);
        for nf in (from..self.candidates.len()).chain(0..from).filter(|nf| Some(*nf) != self.leaving) {
            each(nf as u32, self.candidates[nf]);
        }
    }

    fn leaving_depth(&self) -> Option<u32> {
        self.leaving.map(|nf| self.candidates[nf].depth)
    }

    fn budget_ns(&self, nf: u32) -> i64 {
        self.budgets_ns[nf as usize]
    }

    fn part_ns(&self, nf: u32, round_ns: u64) -> i64 {
        part_ns(round_ns, self.shares.get(nf as usize).copied().unwrap_or(0.0))
    }

    fn begin_rounds(&mut self, rounds: i64, round_ns: u64) {
        for nf in 0..self.budgets_ns.len() {
            if self.candidates[nf].waiting > 0 {
                self.budgets_ns[nf] = refilled(self.budgets_ns[nf], self.part_ns(nf as u32, round_ns), rounds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { enough: 32, bound_ns: 1_000_000, burst: 32 };

    fn waiting(waiting: u32, depth: u32) -> Candidate {
        Candidate { waiting, depth, age_ns: 1000, room: 1000, held: false }
    }

    /// A core with equal shares, and a round of 1 ms begun.
    fn core(candidates: &[Candidate]) -> Table {
        let mut core = Table::new(candidates.len());
        core.candidates = candidates.to_vec();
        core.begin_rounds(1, ROUND_NS);
        core
    }

    fn pick(candidates: &[Candidate]) -> Option<u32> {
        choose(&mut core(candidates), &RULES)
    }

    #[test]
    fn the_next_one_down_the_chains_with_enough_runs_and_behind_the_last_the_first() {
        let next_to = |leaving: usize, candidates: &[Candidate]| {
            let mut core = core(candidates);
            core.leaving = Some(leaving);
            choose(&mut core, &RULES)
        };
        let all = [waiting(500, 1), waiting(40, 2), waiting(32, 3)];
        assert_eq!([0, 1, 2].map(|leaving| next_to(leaving, &all)), [Some(1), Some(2), Some(0)]);
        // The next one has too little, another has enough.
        assert_eq!(next_to(0, &[waiting(500, 1), waiting(31, 2), waiting(32, 3)]), Some(2));
        assert_eq!(next_to(1, &[waiting(500, 1), waiting(40, 2), waiting(31, 3)]), Some(0));
        // Nobody has enough.
        assert_eq!(next_to(1, &[waiting(5, 1), waiting(0, 2), waiting(4, 3)]), Some(2));
        // Nobody leaves: the first.
        assert_eq!(pick(&[waiting(500, 2), waiting(500, 1)]), Some(1));
        assert_eq!(pick(&[waiting(0, 1), waiting(0, 2)]), None);
        assert_eq!(pick(&[]), None);
    }

    #[test]
    fn ties_go_to_who_waits_longer_then_to_who_is_named_first() {
        let old = Candidate { age_ns: 2000, ..waiting(100, 1) };
        assert_eq!(pick(&[waiting(900, 1), old, waiting(100, 1)]), Some(1));
        assert_eq!(pick(&[waiting(32, 1), waiting(900, 1)]), Some(0));
    }

    #[test]
    fn who_is_held_or_has_no_room_does_not_run() {
        let held = Candidate { held: true, ..waiting(100, 3) };
        let full = Candidate { room: 31, ..waiting(100, 2) };
        assert_eq!(pick(&[waiting(1, 1), full, held]), Some(0));
        assert_eq!(pick(&[full, held]), None);
        // Room for all that waits is room enough.
        assert_eq!(pick(&[waiting(1, 2), Candidate { room: 4, ..waiting(4, 1) }]), Some(1));
        // A late one that cannot run does not either.
        assert_eq!(pick(&[Candidate { age_ns: 9_000_000, ..held }, waiting(1, 1)]), Some(1));
    }

    #[test]
    fn who_waits_too_long_goes_first_with_or_without_budget() {
        let late = |age_ns| Candidate { age_ns, ..waiting(1, 0) };
        assert_eq!(pick(&[late(1_000_000), waiting(100, 5)]), Some(1));
        assert_eq!(pick(&[late(1_000_001), late(1_000_002), waiting(100, 5)]), Some(1));
        let mut poor = core(&[late(2_000_000), waiting(100, 5)]);
        poor.charge(0, 9_000_000);
        assert_eq!(choose(&mut poor, &RULES), Some(0));
    }

    #[test]
    fn who_leaves_is_not_chosen_and_others_come_after_it_in_turn() {
        let mut core = core(&[waiting(50, 1); 3]);
        for (leaving, next) in [(0, 1), (1, 2), (2, 0)] {
            core.leaving = Some(leaving);
            assert_eq!(choose(&mut core, &RULES), Some(next));
        }
        core.candidates[1].held = true;
        core.candidates[2].waiting = 0;
        core.leaving = Some(0);
        assert_eq!(choose(&mut core, &RULES), None);
        // With budget it may stay; without, only if nobody else can run.
        core.charge(0, 1_000_000);
        assert!(!core.must_leave(0, &RULES));
        core.candidates[2].waiting = 1;
        assert!(core.must_leave(0, &RULES) && !core.must_leave(2, &RULES));
    }

    #[test]
    fn budget_goes_before_depth() {
        // Parts of 0.5 ms; 1 has used its own.
        let mut core = core(&[waiting(1, 1), waiting(500, 2)]);
        core.charge(1, 500_000);
        assert_eq!(choose(&mut core, &RULES), Some(0));
        // A round, once nobody who can run has any: 0 is at −0.2, so one round helps both.
        core.charge(0, 700_000);
        assert_eq!(choose(&mut core, &RULES), Some(1));
        assert_eq!((core.budget_ns(0), core.budget_ns(1)), (300_000, 500_000));
    }

    #[test]
    fn rounds_follow_shares_and_nobody_saves_more_than_a_part() {
        let mut core = core(&[waiting(9, 1); 3]);
        core.shares = vec![0.6, 0.3, 0.1];
        core.begin_rounds(1, ROUND_NS);
        let left = |core: &Table| [0, 1, 2].map(|nf| core.budget_ns(nf));
        assert_eq!(left(&core), [600_000, 300_000, 100_000]);
        core.charge(1, 500_000);
        core.begin_rounds(1, ROUND_NS);
        assert_eq!(left(&core), [600_000, 100_000, 100_000]);
        // A smaller share cuts what was saved; who has no packets has no part in a round.
        core.shares = vec![0.1, 0.3, 0.6];
        core.candidates[2] = waiting(0, 1);
        core.begin_rounds(1, ROUND_NS);
        assert_eq!(left(&core), [100_000, 300_000, 100_000]);
    }

    #[test]
    fn debts_are_bounded_and_paid_in_one_go() {
        let mut core = core(&[waiting(90, 2), waiting(90, 1)]);
        core.charge(0, u64::MAX);
        core.charge(1, 5_500_000);
        assert_eq!((core.budget_ns(0), core.budget_ns(1)), (-16_000_000, -5_000_000));
        // 1 needs eleven rounds' parts of 0.5 ms, 0 would need 33.
        assert_eq!(choose(&mut core, &RULES), Some(1));
        assert_eq!((core.budget_ns(0), core.budget_ns(1)), (-10_500_000, 500_000));
        // Without any share there is the least part.
        let mut core = Table { shares: Vec::new(), ..self::core(&[waiting(1, 0)]) };
        core.charge(0, 3_000_000);
        assert_eq!(choose(&mut core, &RULES), Some(0));
        assert!((1..=1_000).contains(&core.budget_ns(0)), "{}", core.budget_ns(0));
    }

    #[test]
    fn a_round_is_longer_for_more_nfs() {
        assert_eq!(
            [1, 3, 4, 10, 33, 34, 5000].map(round_ns),
            [1_000_000, 1_000_000, 1_200_000, 3_000_000, 9_900_000, 10_000_000, 10_000_000]
        );
        // Ten that can run: 3 ms, of which each has a tenth; nine tenths of the core are nobody's at the moment where two can.
        let mut core = Table::new(11);
        core.candidates = vec![waiting(50, 1); 11];
        core.candidates[3] = waiting(0, 1);
        core.leaving = Some(3);
        core.shares = vec![0.1; 11];
        assert_eq!(choose(&mut core, &RULES), Some(4));
        assert_eq!((core.budget_ns(4), core.budget_ns(3)), (300_000, 0));
        let mut two = Table::new(11);
        two.candidates[..2].fill(waiting(50, 1));
        two.shares = vec![0.1; 11];
        assert_eq!(choose(&mut two, &RULES), Some(0));
        assert_eq!(two.budget_ns(0), 500_000, "half of the least round");
    }

    #[test]
    fn over_time_each_gets_its_share() {
        // Costs 120, 270 and 550 with weights to match, turns of 60 µs whoever runs, all with packets all the time.
        let mut core = core(&[waiting(100, 1), waiting(100, 2), waiting(100, 3)]);
        core.shares = vec![120.0 / 940.0, 270.0 / 940.0, 550.0 / 940.0];
        let mut used = [0u64; 3];
        for _ in 0..100_000 {
            let nf = choose(&mut core, &RULES).expect("all can run") as usize;
            core.charge(nf, 60_000);
            used[nf] += 60_000;
        }
        let total: u64 = used.iter().sum();
        for (used, share) in used.iter().zip(&core.shares) {
            let got = *used as f64 / total as f64;
            assert!((got - share).abs() < 0.001, "{got} for {share}");
        }
    }
}
