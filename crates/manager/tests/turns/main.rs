//! Turns of NFs that do not cooperate, end to end. A program of their own, whose tests run one at a time: NFs of real-time priority would
//! leave those of other tests nothing of the core that all use.

mod priorities;
#[path = "../e2e/support.rs"]
#[allow(dead_code)]
mod support;
mod workflow;
