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
//! the time of the next round. In a round the manager forwards packets, admits new ones, finds
//! bottlenecks, and wakes NFs; each wake makes the round longer. Packets are kept in batches of one
//! chain and hop. The operating system may preempt after each burst.
//!
//! A core runs its NFs by class: [`Class::Other`] is weighted fair with a virtual deadline for each
//! request of a slice, and a waking process with an earlier deadline preempts; [`Class::Batch`] is
//! the same without preemption; [`Class::Rr`] is a queue. [`Machine`] has the costs of switches and
//! wakes; [`sched`](crate::sched) decides bottlenecks, weights and the choice of the next NF.
//!
//! With backpressure, a packet is admitted if each NF of its chain has a credit for it, as in the
//! platform; without, full rings inside drop. [`Variant::Ideal`] calls consecutive NFs of a chain
//! on one core one after another in one process, which serves its chains burst by burst in turn.
//!
//! # Limits
//! The manager forwards any number of packets in a round. Caches are not modelled: a hop always
//! costs [`Machine::hop_cycles`]. Sources send at a constant rate and ignore drops and marks. The
//! kernel's timer tick, real-time throttling and other processes are left out. The ideal bounds a
//! chain; where chains compete, it serves them alike, and a variant that favours cheap ones may
//! carry more in all. So compare variants with each other first, then absolute numbers with a
//! measurement.
//!
//! Source: the experiments of NFVnice, section 4; I. Stoica, H. Abdel-Wahab, "Earliest Eligible
//! Virtual Deadline First", Old Dominion University TR-95-22, 1995, for the fair class.

mod cpu;
pub mod experiments;
mod manager;
mod outcome;
mod packets;
mod process;
mod runqueue;
mod scenario;
#[cfg(test)]
mod tests;

pub use outcome::{ChainOutcome, CoreOutcome, NfOutcome, Outcome};
pub use scenario::{Chain, Class, Cost, Machine, Nf, Platform, Scenario, ScenarioError, Variant};

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
