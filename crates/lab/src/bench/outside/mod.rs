//! Experiments on NFs that do not cooperate: those of the UNiS report, and related ones.
//!
//! # Terms
//! - *Uncooperative*: NFs that poll, never sleep and never yield, and get their slices from
//!   outside.
//! - *Cooperative*: the same NFs with the library's sleep, which hand over their core themselves.
//! - *Linux*: the NFs that poll, left to the kernel's scheduler.
//! - *Ideal*: a fused chain: the handlers one after another in one process.
//!
//! # Units
//! Costs are nanoseconds per packet on top of swapping its addresses; a *unit* of load is
//! [`UNIT_NS`], which is our choice: about what a small NF costs.
//!
//! # Source
//! Anthony and Bai, *UNiS: A User-space Non-intrusive Workflow-aware Virtual Network Function
//! Scheduler*. Each module names its figure.

pub mod controllers;
pub mod idle;
pub mod linux_schedulers;
pub mod workflow;

use crate::bench::lab::Lab;
use crate::bench::sched::{COST, LINE_FRAMES, LINE_RING, Mode, chain_of, line_rate, traffic_to};
use crate::bench::setup::{Chain, Class, Service, Setup};
use sluice_api::config::Run;

/// A unit of load, in nanoseconds per packet.
pub const UNIT_NS: f64 = 50.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// They poll and get slices from outside.
    Uncooperative,
    /// They sleep and hand over.
    Cooperative,
    /// They poll, and the kernel divides the core.
    Linux(Class),
    /// They are one process.
    Ideal,
}

/// Cycles of the time-stamp counter in this time.
pub fn cycles(ns: f64, tsc_hz: f64) -> u64 {
    (ns * tsc_hz / 1e9).round() as u64
}

/// One chain of MAC swaps with these costs in cycles, all on the NFs' shared core, at line rate.
///
/// `polls` says for each NF whether it polls when it is not cooperative.
pub fn chain(lab: &Lab, sharing: Scheduler, costs: &[u64], polls: &[bool]) -> Setup {
    let class = match sharing {
        Scheduler::Linux(class) => class,
        _ => Class::Other,
    };
    let core = lab.cores.shared();
    let run = if sharing == Scheduler::Ideal { Run::Fused } else { Run::Isolated };
    let nf = |(number, cycles): (usize, &u64)| Service {
        name: format!("nf{}", number + 1),
        exec: COST.into(),
        args: vec!["--cycles".into(), cycles.to_string(), "--swap-macs".into()],
        core,
        ring: LINE_RING,
        poll: polls[number] && !matches!(sharing, Scheduler::Cooperative | Scheduler::Ideal),
        ..Service::default()
    };
    let services: Vec<Service> = costs.iter().enumerate().map(nf).collect();
    let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
    Setup {
        manager_core: lab.manager_core,
        sched: Some(Mode::Sluice.sched(class)),
        mechanism: matches!(sharing, Scheduler::Linux(_)).then_some("none"),
        traffic: vec![traffic_to("c", line_rate(64))],
        chains: vec![Chain { run, ..chain_of("c", &names) }],
        frames: LINE_FRAMES,
        services,
        ..Setup::default()
    }
}
