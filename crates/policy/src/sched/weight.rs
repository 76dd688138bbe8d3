//! Share of an NF of its core: rate-cost proportional fairness.
//!
//! # Problem
//! A scheduler that gives equal time to NFs with unequal work starves some of them. Two flows of
//! the same rate should leave at the same rate, whatever their packets cost; of two NFs of the same
//! cost, the one with twice the packets should send twice as many.
//!
//! # Terms and units
//! *Arrival rate*: packets a second that want the NF, including those refused at an entry: a
//! throttled NF is wanted as before. *Service time*: nanoseconds a packet. *Load*: arrival rate ×
//! service time, in cores: 0.5 keeps half a core busy, 3 wants three. It excludes the cost of
//! waking, which the load that cores are planned by includes ([`crate::plan::load`]). *Share*: part
//! of the core, 0 to 1; the shares of a core sum to 1. *Floor*: the smallest share.
//!
//! # Approach
//! share(i) = priority(i) · load(i) / Σ priority · load over the NFs of the core. An NF that would
//! get less than the floor gets the floor, and the others share the rest in the same proportion,
//! until none is below. An NF without a known service time has no load: it gets the floor, on which
//! it runs, is sampled, and becomes known. Without any load, shares go by priority.
//!
//! Rates are smoothed ([`ArrivalRate`]): samples of 1 ms are noisy, decisions come each 10 ms. A
//! share is written only if it differs enough from the one before ([`Margin`]): a write costs a
//! system call, and the kernel takes some milliseconds to follow.
//!
//! # Limits
//! A weight does not say when an NF runs; it holds for sums over 100 ms and more. Time is quadratic
//! in the NFs of a core at worst (each round lifts one more NF to the floor), and usually linear.
//!
//! Source: NFVnice, 3.2: load(i) = λ(i) · s(i), shares(i) = Priority(i) · load(i) / TotalLoad(m).

/// Demand of an NF for its core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Packets a second that want the NF, including those refused at an entry.
    pub arrival_pps: f64,
    /// Nanoseconds a packet; None until it is known.
    pub service_ns: Option<f64>,
    /// 1 as a rule; 2 gets twice the share that the load alone would give.
    pub priority: f64,
}

impl Demand {
    /// Arrival rate × service time, in cores. NaN, infinite and negative values count as 0.
    pub fn load(&self) -> f64 {
        positive(self.arrival_pps * self.service_ns.unwrap_or(0.0) / 1e9)
    }

    fn weighted(&self) -> f64 {
        positive(self.load() * positive(self.priority))
    }
}

/// The value, or 0 if it is negative, infinite or NaN.
fn positive(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 0.0 }
}

/// Shares of the NFs of one core, in `out` in the order of `demands`; they sum to 1. `floor` is the
/// smallest share; a floor above 1/n gives all n NFs the same.
pub fn shares(demands: &[Demand], floor: f64, out: &mut Vec<f64>) {
    out.clear();
    if demands.is_empty() {
        return;
    }
    let n = demands.len() as f64;
    let floor = positive(floor).min(1.0 / n);
    let loaded: f64 = demands.iter().map(Demand::weighted).sum();
    let preferred: f64 = demands.iter().map(|d| positive(d.priority)).sum();
    out.extend(demands.iter().map(|d| match () {
        () if loaded > 0.0 => d.weighted(),
        () if preferred > 0.0 => positive(d.priority),
        () => 1.0,
    }));
    raise(out, floor);
}

/// Turns weights into shares of at least `floor` (at most 1/n) that sum to 1.
fn raise(weights: &mut [f64], floor: f64) {
    let n = weights.len() as f64;
    // Rates without packets fade for ever. Scaled to 1, even the smallest have a usable sum.
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest > 0.0 && !(1e-100..1e100).contains(&largest) {
        weights.iter_mut().for_each(|w| *w /= largest);
    }
    // An NF at the floor stays there: raising others leaves less for the rest, never more.
    let mut at_floor = 0;
    let mut bar = 0.0;
    let scale = loop {
        let above: f64 = weights.iter().filter(|w| **w > bar).sum();
        if above <= 0.0 {
            // All are at the floor, which is 1/n but for rounding.
            weights.fill(1.0 / n);
            return;
        }
        let scale = (1.0 - at_floor as f64 * floor).max(0.0) / above;
        let below = weights.iter().filter(|w| **w <= bar || **w * scale <= floor).count();
        if below == at_floor {
            break scale;
        }
        at_floor = below;
        bar = weights.iter().copied().filter(|w| *w <= bar || *w * scale <= floor).fold(bar, f64::max);
    };
    weights.iter_mut().for_each(|w| *w = if *w <= bar { floor } else { *w * scale });
}

/// A smoothed packet rate, from a counter that is read about once a millisecond.
///
/// A reading over a time t weighs t / (t + τ), so uneven readings are smoothed alike: with τ = 10
/// ms and readings of 1 ms, 61 % of a step is in the rate after one τ, 94 % after three.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalRate {
    tau_ns: f64,
    last: Option<(u64, u64)>,
    pps: Option<f64>,
}

impl ArrivalRate {
    /// With a time constant of `tau_ns`; 10 ms fits decisions each 10 ms. 0 does not smooth.
    pub fn new(tau_ns: u64) -> Self {
        Self { tau_ns: tau_ns as f64, last: None, pps: None }
    }

    /// Takes a reading at `now_ns`: `total` packets have ever wanted the NF. A counter that fell
    /// has restarted from 0. The first reading starts the count; one at the same time is ignored.
    pub fn add(&mut self, now_ns: u64, total: u64) {
        let Some((then, before)) = self.last else {
            self.last = Some((now_ns, total));
            return;
        };
        let Some(dt) = now_ns.checked_sub(then).filter(|dt| *dt > 0) else { return };
        self.last = Some((now_ns, total));
        let packets = total.checked_sub(before).unwrap_or(total);
        let (dt, seen) = (dt as f64, packets as f64 * 1e9 / dt as f64);
        // The first rate is not smoothed.
        self.pps = Some(self.pps.map_or(seen, |pps| pps + (seen - pps) * dt / (dt + self.tau_ns)));
    }

    /// Packets a second; 0 until two readings were taken.
    pub fn pps(&self) -> f64 {
        self.pps.unwrap_or(0.0)
    }
}

/// Least difference for which a new share is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin {
    /// In percent of the share that was written.
    pub percent: f64,
}

impl Margin {
    /// Whether `share` should be written over `written`. A first share always is.
    pub fn is_exceeded(&self, written: Option<f64>, share: f64) -> bool {
        written.is_none_or(|written| (share - written).abs() * 100.0 > self.percent * written.abs())
    }
}

/// Weight of a whole core in cgroup v1's `cpu.shares`, and of v2's default scale in the kernel.
const V1_CORE: f64 = 102_400.0;
/// Weight of a whole core in cgroup v2's `cpu.weight`, its largest value.
const V2_CORE: f64 = 10_000.0;

/// A share as cgroup v1's `cpu.shares` (2 to 262,144): 1 % is 1,024, a new cgroup's default.
/// NaN and negative shares count as 0.
pub fn cgroup_v1(share: f64) -> u64 {
    (share.max(0.0) * V1_CORE).round().clamp(2.0, 262_144.0) as u64
}

/// A share as cgroup v2's `cpu.weight` (1 to 10,000): 1 % is 100, the default, in steps of 0.01 %.
pub fn cgroup_v2(share: f64) -> u64 {
    (share.max(0.0) * V2_CORE).round().clamp(1.0, 10_000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(arrival_pps: f64, service_ns: f64) -> Demand {
        Demand { arrival_pps, service_ns: Some(service_ns), priority: 1.0 }
    }

    fn of(demands: &[Demand], floor: f64) -> Vec<f64> {
        let mut out = Vec::new();
        shares(demands, floor, &mut out);
        assert!((out.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{out:?}");
        assert!(out.iter().all(|s| *s >= floor.min(1.0 / demands.len() as f64) - 1e-12), "{out:?}");
        out
    }

    fn close(got: &[f64], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-9), "{got:?}, expected {expected:?}");
    }

    #[test]
    fn equal_rates_get_time_by_cost_and_equal_costs_by_rate() {
        // Twice the cost at the same rate takes twice the time: both leave at the same rate.
        close(&of(&[demand(1e6, 200.0), demand(1e6, 400.0)], 0.01), &[1.0 / 3.0, 2.0 / 3.0]);
        // Twice the rate at the same cost takes twice the time, and gives twice the output.
        close(&of(&[demand(2e6, 200.0), demand(1e6, 200.0)], 0.01), &[2.0 / 3.0, 1.0 / 3.0]);
        // The paper's chain of 120, 270 and 550 cycles: 940 in all.
        close(
            &of(&[demand(5e6, 120.0), demand(5e6, 270.0), demand(5e6, 550.0)], 0.01),
            &[120.0 / 940.0, 270.0 / 940.0, 550.0 / 940.0],
        );
        // And its table of uneven load, 6:6:3 Mpps, at 500, 250 and 50 cycles: 3,000 : 1,500 : 150.
        close(
            &of(&[demand(6e6, 500.0), demand(6e6, 250.0), demand(3e6, 50.0)], 0.01),
            &[300.0 / 465.0, 150.0 / 465.0, 15.0 / 465.0],
        );
    }

    #[test]
    fn priority_scales_the_load() {
        let mut demands = [demand(1e6, 100.0), demand(1e6, 100.0), demand(1e6, 200.0)];
        demands[0].priority = 2.0;
        // 2·1 : 1 : 2.
        close(&of(&demands, 0.01), &[0.4, 0.2, 0.4]);
        demands[1].priority = 0.0;
        // No priority, no more than the floor: 2 : 2 share 0.99.
        close(&of(&demands, 0.01), &[0.495, 0.01, 0.495]);
    }

    #[test]
    fn the_starving_and_the_unknown_keep_a_floor() {
        let unknown = Demand { service_ns: None, ..demand(1e6, 0.0) };
        close(&of(&[demand(1e6, 300.0), unknown, demand(0.0, 100.0), demand(1e6, 100.0)], 0.01), &[0.735, 0.01, 0.01, 0.245]);
        // Raising one pushes the next under the floor: of 1 : 10 : 989 at 1 %, the second has
        // exactly 1 % of 1,000, and less once the first has been lifted.
        close(&of(&[demand(1.0, 1.0), demand(10.0, 1.0), demand(989.0, 1.0)], 0.01), &[0.01, 0.01, 0.98]);
        // 11 : 100 : 889 at 10 %: the second would get 100/989 · 0.9 = 9.1 %.
        close(&of(&[demand(11.0, 1.0), demand(100.0, 1.0), demand(889.0, 1.0)], 0.1), &[0.1, 0.1, 0.8]);
    }

    #[test]
    fn without_load_shares_go_by_priority_and_without_that_they_are_equal() {
        let idle = Demand { service_ns: None, ..demand(0.0, 0.0) };
        close(&of(&[idle, idle, idle, idle], 0.01), &[0.25; 4]);
        close(&of(&[Demand { priority: 3.0, ..idle }, idle], 0.01), &[0.75, 0.25]);
        close(&of(&[Demand { priority: 0.0, ..idle }, Demand { priority: -1.0, ..idle }], 0.01), &[0.5, 0.5]);
        assert!(of_none().is_empty());
    }

    fn of_none() -> Vec<f64> {
        let mut out = vec![1.0];
        shares(&[], 0.01, &mut out);
        out
    }

    #[test]
    fn many_nfs_and_odd_numbers_do_no_harm() {
        // 200 NFs cannot have 1 % each.
        let many: Vec<Demand> = (0..200).map(|i| demand(1e6 * f64::from(i), 100.0)).collect();
        close(&of(&many, 0.01), &[0.005; 200]);
        let odd = [demand(f64::NAN, 100.0), demand(1e6, f64::INFINITY), demand(-1.0, 100.0), demand(1e6, 100.0)];
        close(&of(&odd, 0.01), &[0.01, 0.01, 0.01, 0.97]);
        close(&of(&[demand(1e6, 100.0), demand(1e-300, 1.0)], 0.0), &[1.0, 0.0]);
        close(&of(&[demand(1e6, 100.0)], 0.01), &[1.0]);
    }

    #[test]
    fn rates_that_fade_away_are_shared_like_any() {
        const MS: u64 = 1_000_000;
        let mut rates = [ArrivalRate::new(10 * MS); 2];
        for (i, rate) in rates.iter_mut().enumerate() {
            rate.add(0, 0);
            rate.add(MS, 1000 * (1 + 2 * i as u64));
        }
        // No more packets: for seconds the rates fall to the smallest numbers, and vanish.
        for t in 2..20_000 {
            let demands = [0, 1].map(|i: usize| {
                rates[i].add(t * MS, 1000 * (1 + 2 * i as u64));
                demand(rates[i].pps(), 500.0)
            });
            let shares = of(&demands, 0.01);
            if demands[0].load() > 1e-300 {
                close(&shares, &[0.25, 0.75]);
            }
        }
        close(&of(&[demand(rates[0].pps(), 500.0), demand(rates[1].pps(), 500.0)], 0.01), &[0.5, 0.5]);
        // The largest numbers.
        let great = Demand { arrival_pps: 1e308, service_ns: Some(1.0), priority: 1e9 };
        close(&of(&[great, great], 0.01), &[0.5, 0.5]);
    }

    #[test]
    fn rates_are_smoothed_over_the_time_constant() {
        const MS: u64 = 1_000_000;
        let mut rate = ArrivalRate::new(10 * MS);
        rate.add(0, 500);
        assert_eq!(rate.pps(), 0.0);
        rate.add(MS, 1_500);
        assert_eq!(rate.pps(), 1e6);
        // One millisecond at 12 Mpps weighs 1/11: 1 + 11/11 = 2 Mpps.
        rate.add(2 * MS, 13_500);
        assert!((rate.pps() - 2e6).abs() < 1e-3);
        // The rest of ten steps: 12 − 11·(10/11)^10 = 7.76 Mpps.
        (1..10).for_each(|i| rate.add((2 + i) * MS, 13_500 + i * 12_000));
        assert!((rate.pps() / 1e6 - (12.0 - 11.0 * (10.0f64 / 11.0).powi(10))).abs() < 1e-6, "{}", rate.pps());
        // Ten milliseconds at once weigh one half.
        let before = rate.pps();
        rate.add(21 * MS, 121_500);
        assert!((rate.pps() - before / 2.0).abs() < 1e-3);
    }

    #[test]
    fn a_counter_that_starts_anew_and_a_clock_that_stands_do_no_harm() {
        let mut rate = ArrivalRate::new(0);
        rate.add(1_000, 1_000_000);
        rate.add(1_000, 2_000_000);
        assert_eq!(rate.pps(), 0.0);
        rate.add(2_000, 1_000_100);
        assert!((rate.pps() - 1e8).abs() < 1.0);
        rate.add(1_500, 7);
        assert!((rate.pps() - 1e8).abs() < 1.0);
        rate.add(3_000, 50);
        assert!((rate.pps() - 5e7).abs() < 1.0);
    }

    #[test]
    fn a_share_is_written_only_if_it_differs_enough() {
        let margin = Margin { percent: 5.0 };
        assert!(margin.is_exceeded(None, 0.3));
        assert!(!margin.is_exceeded(Some(0.3), 0.314));
        assert!(margin.is_exceeded(Some(0.3), 0.316));
        assert!(margin.is_exceeded(Some(0.3), 0.284));
        // 1 % to 1.1 % is a tenth more.
        assert!(margin.is_exceeded(Some(0.01), 0.011));
        let none = Margin { percent: 0.0 };
        assert!(!none.is_exceeded(Some(0.3), 0.3));
        assert!(none.is_exceeded(Some(0.3), 0.300_001));
    }

    #[test]
    fn cgroup_weights_keep_one_percent_apart_from_two() {
        assert_eq!([1.0, 0.5, 0.02, 0.01, 0.0].map(cgroup_v1), [102_400, 51_200, 2_048, 1_024, 2]);
        assert_eq!([1.0, 0.5, 0.02, 0.01, 0.0].map(cgroup_v2), [10_000, 5_000, 200, 100, 1]);
        assert_eq!((cgroup_v1(f64::NAN), cgroup_v1(99.0), cgroup_v2(-1.0), cgroup_v2(99.0)), (2, 262_144, 1, 10_000));
        for thousandths in 10..=1000 {
            let share = f64::from(thousandths) / 1000.0;
            assert!((cgroup_v1(share) as f64 / 102_400.0 / share - 1.0).abs() < 0.0005, "{share}");
            assert!((cgroup_v2(share) as f64 / 10_000.0 / share - 1.0).abs() < 0.005, "{share}");
        }
    }
}
