//! What an NF asks of its core: LOAD.
//!
//! # Problem
//! Packets times what a packet costs leaves out what waking costs. An NF of 30 ns a packet that is woken for each of 100,000 packets a
//! second needs 0.003 of a core for them, and with all that is around them a third of one. Who plans cores by the first number overfills
//! them.
//!
//! # Terms and units
//! *Asked*: arrival rate × cost of a packet, in cores: what its packets need, those with them that are refused at an entry. *Used*: CPU time
//! of its process over time, in cores. The kernel charges a process from the moment at which it has chosen it until it chooses another one, so
//! the switch to it, its way out of sleep and back, and the wake-up of its neighbour are in what it used.
//!
//! # Approach
//! The load is the larger one. Where an NF has less of its core than it wants, what it used is too little, and what is asked counts; where
//! it sleeps and wakes often, what is asked is too little. An NF that polls uses what it is given, whatever its packets need, so for it
//! what is asked counts.
//!
//! # Limits
//! An NF that is both short of time and woken often needs more than either. What a core spends in interrupts and on its way out of idle
//! belongs to no process: a core that is full of work does not spend it. What was used is of the last half second or more.

/// What is measured of an NF.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// Packets per second that want to come to it.
    pub arrival_pps: f64,
    /// What a packet costs it, in nanoseconds; 0 until known.
    pub cost_ns: f64,
    /// CPU time that it used, in cores; 0 until known.
    pub used: f64,
    /// It never sleeps.
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
        // A hundred thousand packets a second of 30 ns each, and a wake-up for each of them.
        let woken = Measured { arrival_pps: 1e5, cost_ns: 30.0, used: 0.39, polls: false };
        assert_eq!(woken.load(), 0.39);
        // One that gets half of what it wants.
        assert_eq!(Measured { arrival_pps: 1e6, cost_ns: 800.0, used: 0.4, polls: false }.load(), 0.8);
        // One that polls is always busy, and one that nobody has looked at yet has used nothing.
        assert_eq!(Measured { used: 1.0, polls: true, ..woken }.load(), 0.003);
        assert_eq!(Measured { used: 0.0, ..woken }.load(), 0.003);
        // What is no number stays one that is refused.
        assert_eq!(Measured { arrival_pps: f64::INFINITY, ..woken }.load(), f64::INFINITY);
    }
}
