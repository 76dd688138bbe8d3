//! Model of a shared LLC without isolation between instances, for comparison.
//!
//! # Model
//! Instances on one server bring lines into the LLC at the rate of their misses; lines leave it in
//! the order of their last use. In the steady state each instance holds the part of the cache that
//! it has of all misses, and never more than it can use: occupancy_i = ways × misses_i / Σ misses,
//! where misses_i = rate_i × misses per packet at occupancy_i. Damped iteration finds the fixed
//! point. At its occupancy an instance behaves as with a class of as many ways.
//!
//! # Parameters
//! Throughput against ways, references per packet past the private caches, and the cost of a miss:
//! all from the profile ([`sluice_slo::profile::CacheUse`]), or from what a profile was made of.
//! Without any cache every reference of an NF misses. With some ways a packet is faster than that
//! by the cost of each miss saved, which gives the misses per packet. For a chain, the profile
//! lists them.
//!
//! # Limits
//! Memory bandwidth, the processor's interconnect, lines shared between NFs, and what DDIO brings
//! in beyond its own ways are left out; all of them would make sharing look worse. References are
//! taken as independent.
//!
//! Sources: the share of misses: Suh, Rudolph and Devadas, "Dynamic partitioning of shared cache
//! memory", 2004; prediction from competitors' references: Dobrescu, Argyraki and Ratnasamy,
//! "Toward predictable performance in software packet-processing platforms", NSDI 2012.

use sluice_slo::profile::Profile;
use sluice_slo::stage;

/// How an instance behaves with some of the cache.
pub trait Behaviour {
    /// Packets per second with this many ways, which need not be whole.
    fn throughput_pps(&self, ways: f64) -> f64;
    /// References per packet that reach the LLC.
    fn references_per_packet(&self) -> f64;
    /// Misses of the LLC per packet with this many ways.
    fn misses_per_packet(&self, ways: f64) -> f64;
    /// Packets per second that it carries with this many ways if 95 % take at most `latency_us`.
    fn carries_pps(&self, ways: f64, latency_us: f64) -> f64;
}

impl Behaviour for Profile {
    fn throughput_pps(&self, ways: f64) -> f64 {
        let (first, last) = match (self.throughput.points.first(), self.throughput.points.last()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => return 0.0,
        };
        if ways >= first.x {
            return self.throughput.at(ways.min(last.x)).unwrap_or(last.y);
        }
        let floor = self.floor_pps.unwrap_or(first.y);
        floor + (first.y - floor) * (ways / first.x).max(0.0)
    }

    fn references_per_packet(&self) -> f64 {
        self.cache.as_ref().map_or(0.0, |cache| cache.references_per_packet)
    }

    fn misses_per_packet(&self, ways: f64) -> f64 {
        let Some(cache) = self.cache.as_ref().filter(|cache| cache.miss_ns > 0.0) else { return 0.0 };
        if let Some(most) = cache.misses_per_packet.len().checked_sub(1) {
            let ways = ways.clamp(0.0, most as f64);
            let [below, above] = [ways.floor(), ways.ceil()].map(|ways| cache.misses_per_packet[ways as usize]);
            return below + (above - below) * ways.fract();
        }
        // Without any cache, every reference misses.
        let at = |ways| 1e9 / Behaviour::throughput_pps(self, ways);
        let longer_ns = at(0.0) - at(ways);
        (cache.references_per_packet - longer_ns / cache.miss_ns).clamp(0.0, cache.references_per_packet)
    }

    fn carries_pps(&self, ways: f64, latency_us: f64) -> f64 {
        let throughput = Behaviour::throughput_pps(self, ways);
        if !self.stages.is_empty() {
            return throughput.min(stage::within(&self.stages, ways, latency_us));
        }
        throughput * self.load_part(throughput / Behaviour::throughput_pps(self, f64::from(self.best_ways)), latency_us)
    }
}

/// An instance and its load.
pub struct Running<'a> {
    pub behaviour: &'a dyn Behaviour,
    pub load_pps: f64,
}

const ROUNDS: u32 = 200;

/// How many of `ways` ways each instance holds.
pub fn occupancies(running: &[Running<'_>], ways: f64) -> Vec<f64> {
    let mut held = vec![ways / running.len().max(1) as f64; running.len()];
    for _ in 0..ROUNDS {
        let misses: Vec<f64> = running
            .iter()
            .zip(&held)
            .map(|(one, held)| one.load_pps.min(one.behaviour.throughput_pps(*held)) * one.behaviour.misses_per_packet(*held))
            .collect();
        let all: f64 = misses.iter().sum();
        if all <= 0.0 {
            break;
        }
        for (held, misses) in held.iter_mut().zip(&misses) {
            *held = 0.8 * *held + 0.2 * ways * misses / all;
        }
    }
    held
}

/// How many of `ways` ways an instance holds beside competitors with this many references per
/// second to the LLC, each to another line: a prediction from references alone.
pub(crate) fn held_beside_references(one: &Running<'_>, references_per_s: f64, ways: f64) -> f64 {
    let mut held = ways;
    for _ in 0..ROUNDS {
        let misses = one.load_pps.min(one.behaviour.throughput_pps(held)) * one.behaviour.misses_per_packet(held);
        let part = if references_per_s > 0.0 { misses / (misses + references_per_s) } else { 1.0 };
        held = 0.8 * held + 0.2 * ways * part;
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Uniform {
        base_ns: f64,
        references: f64,
        set_ways: f64,
    }

    impl Behaviour for Uniform {
        fn throughput_pps(&self, ways: f64) -> f64 {
            1e9 / (self.base_ns + 30.0 * self.misses_per_packet(ways))
        }
        fn references_per_packet(&self) -> f64 {
            self.references
        }
        fn misses_per_packet(&self, ways: f64) -> f64 {
            self.references * (1.0 - ways / self.set_ways).max(0.0)
        }
        fn carries_pps(&self, ways: f64, _latency_us: f64) -> f64 {
            self.throughput_pps(ways)
        }
    }

    #[test]
    fn equals_share_equally_and_one_without_need_has_none() {
        let nat = Uniform { base_ns: 100.0, references: 4.0, set_ways: 30.0 };
        let firewall = Uniform { base_ns: 100.0, references: 0.0, set_ways: 1.0 };
        let run = |behaviour| Running { behaviour, load_pps: 1e7 };
        let held = occupancies(&[run(&nat), run(&nat), run(&firewall)], 18.0);
        assert!((held[0] - 9.0).abs() < 0.01 && (held[1] - 9.0).abs() < 0.01 && held[2] < 0.01, "{held:?}");
        let hungry = Uniform { base_ns: 100.0, references: 40.0, set_ways: 300.0 };
        let held = occupancies(&[run(&nat), run(&hungry)], 18.0);
        assert!(held[0] < 7.0 && held[1] > 11.0, "{held:?}");
    }

    #[test]
    fn what_fits_is_not_evicted_and_prediction_says_otherwise() {
        let small = Uniform { base_ns: 100.0, references: 4.0, set_ways: 4.0 };
        let one = Running { behaviour: &small, load_pps: 5e6 };
        let held = occupancies(&[Running { ..one }, Running { behaviour: &small, load_pps: 5e6 }], 18.0);
        assert!(held.iter().all(|ways| *ways >= 4.0));
        assert!(held_beside_references(&one, 20e6, 18.0) < 4.0, "references that hit count as well");
        assert_eq!(held_beside_references(&one, 0.0, 18.0), 18.0);
    }

    #[test]
    fn a_profile_behaves_as_its_curve() {
        let mut profile = sluice_slo::examples::profile();
        profile.cache =
            Some(sluice_slo::profile::CacheUse { references_per_packet: 20.0, miss_ns: 100.0, misses_per_packet: Vec::new() });
        assert_eq!(Behaviour::throughput_pps(&profile, 0.0), 0.5e6);
        assert_eq!(profile.misses_per_packet(0.0), 20.0);
        // 2,000 ns without cache, 100 ns with ten ways.
        assert!((profile.misses_per_packet(10.0) - 1.0).abs() < 1e-9);
        assert_eq!((profile.carries_pps(10.0, 20.0), profile.carries_pps(5.0, 40.0)), (5e6, 2.5e6));
        // A chain's throughput does not show its misses.
        profile.cache.as_mut().unwrap().misses_per_packet = vec![20.0, 8.0, 2.0];
        assert_eq!([0.0, 1.5, 2.0, 18.0].map(|ways| profile.misses_per_packet(ways)), [20.0, 5.0, 2.0, 2.0]);
    }
}
