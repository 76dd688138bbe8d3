//! Simulator of chains on shared cores, with the policies of [`sched`](crate::sched).
//!
//! # Problem
//! The throughput of chains depends on the operating system's scheduler, on the platform's policies
//! and on the order and cost of the NFs, in surprising ways. It should be known before hardware is
//! bought, and a change of a policy should show in a table that is reproducible to the last digit.
//!
//! # Terms and units
//! As in [`sched`](crate::sched); times in nanoseconds, costs in cycles. *Round*: one pass of the
//! manager's loop. [`Class`]: the operating system's scheduling. [`Variant`]: the active policies.
//!
//! # Approach
//! Cores and the manager meet only in rings and flags, so the simulation advances by rounds of the
//! manager: between two rounds each core runs alone, burst after burst of at most 32 packets, up to
//! the time of the next round. In a round the manager admits new packets, forwards others, finds
//! bottlenecks, and wakes NFs; each wake makes the round longer. So do packets where
//! [`Machine::thread`] says what they take: then a source sends at most a burst in a round, skips
//! what was due beyond that, and is read seldom while nothing is let in. Packets are kept in
//! batches of one chain and hop.
//!
//! A core runs its NFs by class: [`Class::Other`] is weighted fair with a virtual deadline for each
//! request of a slice, and a waking process with an earlier deadline preempts one that has had more
//! than the average; [`Class::Batch`] is the same without preemption; [`Class::Rr`] is a queue.
//! Slices end at ticks. [`Others`] take a core of the fair classes for a moment, and then the next
//! NF is picked anew, as if no slice lasted. [`Machine`] has the costs of switches and wakes;
//! [`sched`](crate::sched) decides bottlenecks, weights and the choice of the next NF.
//!
//! With backpressure, a packet is admitted if each NF of its chain has a credit for it, as in the
//! platform; without, full rings inside drop. [`Variant::Ideal`] calls consecutive NFs of a chain
//! on one core one after another in one process, which serves its chains burst by burst in turn.
//!
//! # Limits
//! There is one packet thread. Caches are not modelled: a hop always costs [`Machine::hop_cycles`],
//! however many NFs share the core and whatever a switch left cold. Sources send at a constant rate
//! and ignore drops and marks. Lingering before sleep, real-time throttling, and other processes on
//! the manager's core are left out. Without backpressure, small differences of costs decide whether
//! an NF empties its ring, and so much of what is delivered. The ideal bounds a chain; where chains
//! compete, it serves them alike, and a variant that favours cheap ones may carry more in all. So
//! compare variants with each other first, then absolute numbers with a measurement.
//!
//! Source: the experiments of NFVnice, section 4; I. Stoica, H. Abdel-Wahab, "Earliest Eligible
//! Virtual Deadline First", Old Dominion University TR-95-22, 1995, for the fair class; Linux 6.18.

mod cpu;
pub mod experiments;
mod manager;
mod others;
mod outcome;
mod packets;
mod process;
mod runqueue;
mod scenario;
#[cfg(test)]
mod tests;

pub use outcome::{ChainOutcome, CoreOutcome, NfOutcome, Outcome};
pub use scenario::{Chain, Class, Cost, Machine, Nf, Others, Platform, Scenario, ScenarioError, ThreadCosts, Variant};

/// Runs a scenario. The outcome is deterministic, on any machine.
///
/// # Panics
/// If [`Scenario::check`] refuses the scenario.
pub fn run(scenario: &Scenario) -> Outcome {
    if let Err(e) = scenario.check() {
        panic!("{e}");
    }
    manager::Manager::new(scenario).run()
}
