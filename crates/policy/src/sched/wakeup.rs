//! Which NF of a core runs next.
//!
//! # Problem
//! NFs that share a core take turns, and each switch costs as much as some dozens of packets. A turn should have enough to do, its
//! results should find room, and over time each NF should get its share, and no packet should wait for ever.
//!
//! # Terms and units
//! *Waiting*: packets in an NF's queue. *Age*: how long the oldest of them has waited, in nanoseconds. *Room*: packets that the
//! NF can pass on before something downstream is full. *Held*: told to yield ([`backpressure`](super::backpressure)). *Depth*:
//! how far down its chains the NF is, its largest hop number. *Budget*: CPU time that an NF may still use before others go first,
//! in nanoseconds; it goes below 0 when a turn takes longer. *Enough*: packets that make a turn worth its switch.
//!
//! # Approach
//! An NF can run if packets wait for it, it is not held, and there is room for a burst (or for all that waits, if that is less).
//! Of those that can:
//! 1. one whose oldest packet waits longer than [`Rules::bound_ns`] goes first, the oldest of them;
//! 2. of those with budget and enough packets, the one furthest down its chains: what is almost through leaves first, and makes
//!    room;
//! 3. else of those with budget the one furthest down;
//! 4. else nobody who can run has budget: budgets are refilled in proportion to shares, as often as it takes until one has, and the
//!    choice is made again.
//!
//! Ties go to the older packet, then to the lower number. Budgets are a deficit round robin over time instead of bytes: a refill
//! adds quantum × share × n, so that an NF with an average share gets one quantum. What is not used is kept up to [`Budgets`]'
//! cap: an NF without packets saves for no more than a few quanta. A turn that took too long is paid for by waiting.
//!
//! # Limits
//! The bound must be well above what a full ring takes to serve, or under overload everything is late, and the choice becomes first
//! come, first served. One choice is linear in the NFs of the core.
//!
//! Source: NFVnice, sections 3.1 and 3.3 (who is woken, and what it depends on); M. Shreedhar, G. Varghese, "Efficient Fair Queuing
//! using Deficit Round Robin", SIGCOMM 1995, for the budgets.

/// What is known of an NF at the time of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Candidate {
    /// Packets in its queue.
    pub waiting: u32,
    /// How long the oldest of them has waited, in nanoseconds.
    pub age_ns: u64,
    /// Packets that it can pass on before something downstream is full.
    pub room: u32,
    /// Told to yield.
    pub held: bool,
    /// Its largest hop number.
    pub depth: u32,
}

impl Candidate {
    fn can_run(&self, burst: u32) -> bool {
        self.waiting > 0 && !self.held && self.room >= self.waiting.min(burst)
    }
}

/// How choices are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Packets that make a turn worth its switch.
    pub enough: u32,
    /// An NF whose oldest packet has waited longer goes first, in nanoseconds.
    pub bound_ns: u64,
    /// Packets of a burst: the room that a turn needs.
    pub burst: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { enough: 32, bound_ns: 10_000_000, burst: 32 }
    }
}

/// CPU time that each NF of a core may still use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    left_ns: Vec<i64>,
    quantum_ns: u64,
    cap: u32,
}

impl Budgets {
    /// For `nfs` NFs, all without budget. A refill gives `quantum_ns` to an NF with an average share; nobody saves more than `cap`
    /// refills.
    pub fn new(nfs: usize, quantum_ns: u64, cap: u32) -> Self {
        Self { left_ns: vec![0; nfs], quantum_ns, cap: cap.max(1) }
    }

    /// What an NF has left, in nanoseconds. Panics if there is no such NF.
    #[inline]
    pub fn left_ns(&self, nf: usize) -> i64 {
        self.left_ns[nf]
    }

    /// Takes the CPU time that an NF has used. Panics if there is no such NF.
    #[inline]
    pub fn charge(&mut self, nf: usize, used_ns: u64) {
        // A debt is bounded (by 146 years), so that one refill can always make up for it.
        self.left_ns[nf] = self.left_ns[nf].saturating_sub_unsigned(used_ns).max(i64::MIN / 2);
    }

    /// Gives everybody `times` refills in proportion to `shares`, up to the cap.
    pub fn refill(&mut self, shares: &[f64], times: u64) {
        let n = self.left_ns.len();
        for (i, left) in self.left_ns.iter_mut().enumerate() {
            let each = part_ns(self.quantum_ns, n, shares.get(i));
            let gain = i64::try_from(each.saturating_mul(times)).unwrap_or(i64::MAX);
            let most = i64::try_from(each.saturating_mul(u64::from(self.cap))).unwrap_or(i64::MAX);
            // Who has more than a smaller share allows keeps no more than that.
            *left = left.saturating_add(gain).min(most);
        }
    }
}

/// One NF's part of a refill, in nanoseconds: at least 1, so that enough refills bring anybody above 0.
fn part_ns(quantum_ns: u64, nfs: usize, share: Option<&f64>) -> u64 {
    (quantum_ns as f64 * share.copied().unwrap_or(0.0) * nfs as f64).max(1.0) as u64
}

/// The NF of the core that runs next; None if none can. `shares` are those of the candidates; budgets are refilled if they must be.
/// The candidates are numbered as in `budgets`; those beyond its length are not looked at.
pub fn choose(candidates: &[Candidate], budgets: &mut Budgets, shares: &[f64], rules: &Rules) -> Option<usize> {
    let n = budgets.left_ns.len();
    let can_run = || candidates.iter().take(n).enumerate().filter(|(_, c)| c.can_run(rules.burst));
    let late = can_run().filter(|(_, c)| c.age_ns > rules.bound_ns).max_by_key(|(i, c)| (c.age_ns, usize::MAX - i));
    if let Some((late, _)) = late {
        return Some(late);
    }
    let furthest = |budgets: &Budgets| {
        let funded = can_run().filter(|(i, _)| budgets.left_ns[*i] > 0);
        funded.max_by_key(|(i, c)| (c.waiting >= rules.enough, c.depth, c.age_ns, usize::MAX - i)).map(|(i, _)| i)
    };
    if let Some(nf) = furthest(budgets) {
        return Some(nf);
    }
    // So many refills until the first of them has budget: left + times · part ≥ 1.
    let times = |i: usize| {
        let part = part_ns(budgets.quantum_ns, n, shares.get(i));
        (1i64.saturating_sub(budgets.left_ns[i])).unsigned_abs().div_ceil(part)
    };
    let times = can_run().map(|(i, _)| times(i)).min()?;
    budgets.refill(shares, times);
    furthest(budgets)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { enough: 32, bound_ns: 1_000_000, burst: 32 };

    fn waiting(waiting: u32, depth: u32) -> Candidate {
        Candidate { waiting, depth, age_ns: 1000, room: 1000, held: false }
    }

    /// Budgets that do not matter.
    fn rich(n: usize) -> Budgets {
        let mut b = Budgets::new(n, 1_000_000, 4);
        b.refill(&vec![1.0 / n as f64; n], 1);
        b
    }

    fn pick(candidates: &[Candidate]) -> Option<usize> {
        choose(candidates, &mut rich(candidates.len()), &vec![1.0 / candidates.len() as f64; candidates.len()], &RULES)
    }

    #[test]
    fn the_furthest_downstream_with_enough_runs() {
        assert_eq!(pick(&[waiting(500, 1), waiting(40, 2), waiting(31, 3)]), Some(1));
        assert_eq!(pick(&[waiting(500, 1), waiting(40, 2), waiting(32, 3)]), Some(2));
        // Nobody has enough.
        assert_eq!(pick(&[waiting(5, 1), waiting(4, 2), waiting(0, 3)]), Some(1));
        assert_eq!(pick(&[waiting(0, 1), waiting(0, 2)]), None);
        assert_eq!(pick(&[]), None);
    }

    #[test]
    fn ties_go_to_the_older_packet_then_to_the_lower_number() {
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
        assert_eq!(pick(&[waiting(1, 1), Candidate { room: 4, ..waiting(4, 2) }]), Some(1));
        // A late one that cannot run does not either.
        assert_eq!(pick(&[Candidate { age_ns: 9_000_000, ..held }, waiting(1, 1)]), Some(1));
    }

    #[test]
    fn a_packet_that_waits_too_long_goes_first_with_or_without_budget() {
        let late = |age_ns| Candidate { age_ns, ..waiting(1, 0) };
        assert_eq!(pick(&[late(1_000_000), waiting(100, 5)]), Some(1));
        assert_eq!(pick(&[late(1_000_001), late(1_000_002), waiting(100, 5)]), Some(1));
        let mut poor = rich(2);
        poor.charge(0, 9_000_000);
        assert_eq!(choose(&[late(2_000_000), waiting(100, 5)], &mut poor, &[0.5, 0.5], &RULES), Some(0));
    }

    #[test]
    fn budget_goes_before_depth() {
        let mut b = rich(2);
        // 1 has used its quantum of 1 ms.
        b.charge(1, 1_000_000);
        assert_eq!(choose(&[waiting(1, 1), waiting(500, 2)], &mut b, &[0.5, 0.5], &RULES), Some(0));
        // A refill of 1 ms each, once nobody who can run has any: 0 is at −0.2, so 1 refill helps both.
        b.charge(0, 1_200_000);
        assert_eq!(choose(&[waiting(1, 1), waiting(500, 2)], &mut b, &[0.5, 0.5], &RULES), Some(1));
        assert_eq!((b.left_ns(0), b.left_ns(1)), (800_000, 1_000_000));
    }

    #[test]
    fn refills_follow_shares_and_are_capped() {
        // Three NFs, a quantum of 100 µs: 3 · 0.6 = 1.8 quanta, 0.9, 0.3.
        let shares = [0.6, 0.3, 0.1];
        let mut b = Budgets::new(3, 100_000, 2);
        b.refill(&shares, 1);
        let left = |b: &Budgets| [0, 1, 2].map(|i| b.left_ns(i));
        let near = |got: [i64; 3], want: [i64; 3]| assert!((0..3).all(|i| (got[i] - want[i]).abs() <= 3), "{got:?}");
        near(left(&b), [180_000, 90_000, 30_000]);
        b.charge(1, 100_000);
        b.refill(&shares, 5);
        near(left(&b), [360_000, 180_000, 60_000]);
        // A smaller share cuts what was saved.
        b.refill(&[0.1, 0.3, 0.6], 1);
        near(left(&b), [60_000, 180_000, 240_000]);
    }

    #[test]
    fn deep_debts_are_refilled_in_one_go() {
        let mut b = Budgets::new(2, 100_000, 4);
        b.charge(0, 10_000_000);
        b.charge(1, 5_000_000);
        // 1 needs 51 refills of 100 µs, 0 would need 101.
        assert_eq!(choose(&[waiting(90, 2), waiting(90, 1)], &mut b, &[0.5, 0.5], &RULES), Some(1));
        assert_eq!((b.left_ns(0), b.left_ns(1)), (-4_900_000, 100_000));
        // Without any share it takes as many as there are nanoseconds.
        let mut b = Budgets::new(1, 100_000, 4);
        b.charge(0, u64::MAX);
        assert_eq!(choose(&[waiting(1, 0)], &mut b, &[], &RULES), Some(0));
        assert!(b.left_ns(0) > 0);
    }

    #[test]
    fn over_time_each_gets_its_share() {
        // Costs 120, 270 and 550 with weights to match, turns of 60 µs whoever runs, all with packets all the time.
        let shares = [120.0 / 940.0, 270.0 / 940.0, 550.0 / 940.0];
        let mut b = Budgets::new(3, 100_000, 4);
        let all = [waiting(100, 1), waiting(100, 2), waiting(100, 3)];
        let mut used = [0u64; 3];
        for _ in 0..100_000 {
            let nf = choose(&all, &mut b, &shares, &RULES).expect("all can run");
            b.charge(nf, 60_000);
            used[nf] += 60_000;
        }
        let total: u64 = used.iter().sum();
        for (used, share) in used.iter().zip(shares) {
            let got = *used as f64 / total as f64;
            assert!((got - share).abs() < 0.001, "{got} for {share}");
        }
    }
}
