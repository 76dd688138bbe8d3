//! Load of an NF: how much of a core it needs.
//!
//! # Problem
//! Packets × cost leaves out what waking costs. An NF of 30 ns a packet, woken for each of 100,000
//! packets a second, needs 0.003 of a core for them, but a third in all, which overfills cores.
//!
//! # Terms and units
//! *Asked*: arrival rate × cost of a packet, in cores, including packets refused at an entry.
//! *Used*: CPU time of its process over time, in cores. The kernel charges a process from the
//! moment at which it chooses it until it chooses another, so *used* includes the switch to it, its
//! way out of sleep and back, and the wake-up of its neighbour.
//!
//! # Approach
//! The load is the larger one. If an NF gets less of its core than it wants, *used* is too small;
//! if it sleeps and wakes often, *asked* is. A polling NF uses all it is given: its load is
//! *asked*.
//!
//! # Limits
//! An NF that is both short of time and woken often needs more than either. What a core spends in
//! interrupts and on its way out of idle belongs to no process; a core full of work does not spend
//! it. *Used* is of the last half second or more.

/// Measurements of an NF.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// Packets per second that want it.
    pub arrival_pps: f64,
    /// Cost of a packet, in nanoseconds; 0 until known.
    pub cost_ns: f64,
    /// CPU time used, in cores; 0 until known.
    pub used: f64,
    /// Whether it polls, and so never sleeps.
    pub polls: bool,
}

impl Measured {
    /// Its load, in cores.
    pub fn load(&self) -> f64 {
        let asked = self.arrival_pps * self.cost_ns / 1e9;
        if self.polls { asked } else { asked.max(self.used) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_counts_what_waking_and_switching_cost() {
        // 100,000 packets a second of 30 ns each, and a wake-up for each of them.
        let woken = Measured { arrival_pps: 1e5, cost_ns: 30.0, used: 0.39, polls: false };
        assert_eq!(woken.load(), 0.39);
        // One that gets half of what it wants.
        assert_eq!(Measured { arrival_pps: 1e6, cost_ns: 800.0, used: 0.4, polls: false }.load(), 0.8);
        // A polling NF is always busy; an NF without a measurement has used nothing.
        assert_eq!(Measured { used: 1.0, polls: true, ..woken }.load(), 0.003);
        assert_eq!(Measured { used: 0.0, ..woken }.load(), 0.003);
        // An infinite rate gives an infinite load, which packing refuses.
        assert_eq!(Measured { arrival_pps: f64::INFINITY, ..woken }.load(), f64::INFINITY);
    }
}
