//! Work of a calibrated length: a chain of dependent instructions.
//!
//! # Problem
//! A synthetic NF must use a known number of cycles a packet, and do all the work however it is
//! scheduled. A loop that waits on the time-stamp counter does less work when it is preempted, and
//! so would hide what is to be measured.
//!
//! # Approach
//! `x = x · 6364136223846793005 + 1442695040888963407`, repeatedly. Each step needs the one before,
//! so no processor can overlap them. `x` starts from a byte of the packet and the result of the
//! packet before, so two packets cannot overlap and the compiler cannot drop anything. The cycles
//! of a step are measured at the start: the fastest of several runs, which nothing disturbed, so
//! that processes that start side by side agree.
//!
//! # Units and limits
//! Cycles are those of the time-stamp counter, at its fixed rate; a core that runs at another rate
//! changes the time of a step in proportion. A step, the grain, takes about 4 cycles. The loop and
//! the packet's bookkeeping add about 10 cycles a packet.

use std::hint::black_box;

use sluice_shm::clock::ticks;

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// Steps of one calibration run: about 0.1 ms.
const RUN_STEPS: u64 = 50_000;
const RUNS: usize = 18;

/// Fraction bits of [`Work::steps_per_cycle`].
const SHIFT: u32 = 32;

/// The calibrated chain and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    carry: u64,
    /// Scaled by 2³².
    steps_per_cycle: u64,
    multiplier: u64,
}

impl Work {
    /// Measures how long a step takes, in about 2 milliseconds.
    pub fn calibrated() -> Self {
        let multiplier = black_box(MULTIPLIER);
        let mut carry = 1;
        let runs = (0..RUNS).map(|_| {
            let start = ticks();
            carry = black_box(chain(carry, multiplier, RUN_STEPS));
            ticks().saturating_sub(start)
        });
        let fastest = runs.min().unwrap_or(1).max(1);
        Self { carry, ..Self::with_rate(fastest, RUN_STEPS) }
    }

    /// A rate of `steps` steps in `cycles` cycles.
    pub fn with_rate(cycles: u64, steps: u64) -> Self {
        let steps_per_cycle = ((u128::from(steps) << SHIFT) / u128::from(cycles)) as u64;
        Self { carry: 1, steps_per_cycle, multiplier: black_box(MULTIPLIER) }
    }

    pub fn cycles_per_step(&self) -> f64 {
        (1u64 << SHIFT) as f64 / self.steps_per_cycle.max(1) as f64
    }

    /// Steps that take about this many cycles.
    pub fn steps(&self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.steps_per_cycle)) >> SHIFT) as u64
    }

    #[inline]
    pub fn run(&mut self, packet: &[u8], steps: u64) {
        let seed = packet.first().copied().unwrap_or_default();
        self.carry = black_box(chain(self.carry ^ u64::from(seed), self.multiplier, steps));
    }
}

/// Runs the chain. The multiplier is opaque to the compiler, which would fold several steps with a
/// known one into one.
#[inline(never)]
fn chain(mut x: u64, multiplier: u64, steps: u64) -> u64 {
    for _ in 0..steps {
        x = x.wrapping_mul(multiplier).wrapping_add(INCREMENT);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_does_every_step() {
        // The generator's own jump formula: n steps are one affine map.
        let (mut a, mut c) = (1u64, 0u64);
        for _ in 0..1000 {
            (a, c) = (a.wrapping_mul(MULTIPLIER), c.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT));
        }
        assert_eq!(chain(77, MULTIPLIER, 1000), 77u64.wrapping_mul(a).wrapping_add(c));
        assert_eq!(chain(77, MULTIPLIER, 0), 77);
    }

    #[test]
    fn packets_depend_on_each_other_and_on_their_bytes() {
        let run = |packets: &[[u8; 1]]| {
            let mut work = Work::with_rate(4, 1);
            for packet in packets {
                work.run(packet, 10);
            }
            work.carry
        };
        assert_ne!(run(&[[1], [2]]), run(&[[2], [1]]));
        assert_ne!(run(&[[1]]), run(&[[2]]));
        assert_eq!(run(&[[1], [2]]), run(&[[1], [2]]));
    }

    #[test]
    fn cycles_become_steps() {
        let work = Work::with_rate(400, 100);
        assert_eq!(work.steps(1000), 250);
        assert_eq!(work.steps(3), 0);
        assert_eq!(work.cycles_per_step(), 4.0);
    }

    #[test]
    fn a_calibration_finds_some_rate() {
        let work = Work::calibrated();
        assert!(work.cycles_per_step() > 0.1 && work.steps(1_000_000) > 0);
    }
}
