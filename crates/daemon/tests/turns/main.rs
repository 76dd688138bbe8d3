//! Time slices of NFs that do not cooperate, end to end.
//! These tests run one at a time: real-time NFs would leave others nothing of the shared core.

mod priorities;
#[path = "../../../host/src/skip.rs"]
mod skip;
#[path = "../e2e/support.rs"]
#[allow(dead_code)]
mod support;
mod workflow;
