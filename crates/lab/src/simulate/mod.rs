//! `sluice simulate`: the capacity of a configuration on other cores, before buying them.
//!
//! # Problem
//! How many packets per second will these chains carry on a number of cores, where do packets
//! queue, and what do weights, backpressure and hand-over gain? The simulator
//! ([`sluice_policy::sim`]) answers for a scenario; a user has a configuration.
//!
//! # Terms
//! - *Simulation*: the scenario of a configuration, with the names of its parts.
//! - *Stream*: packets of one port for one chain.
//! - *Lane*: a chain with one chosen instance per service; a chain of the simulator.
//! - *Straight*: through a chain without NFs: one without services, or an inline one.
//!
//! # Approach
//! Everything here is a function of the configuration and the [`Options`]. [`place`] assigns
//! instances to cores; [`traffic`] finds the chain of each port's packets, with the rules
//! themselves where the port generates packets; [`cost`] finds the cost of packets and switches.
//! [`Simulation::new`] spreads the flows of each chain evenly over its lanes. [`report`] runs the
//! scenario and the ideal, and maps the outcome back to names.
//!
//! # Limits
//! Those of the simulator, and:
//! - flows are spread evenly, while the daemon hashes them, so a few flows may collide there;
//! - a port that waits (`overload = "wait"`) does not slow down;
//! - marks (ECN) have no effect, for no source reacts;
//! - the manager moves any number of packets;
//! - packet threads, and so the handlers of inline chains, are not simulated. What these would take
//!   of the threads' cores is a note.
//!
//! The ideal serves lanes equally, so of competing chains one may exceed it. [`Simulation::notes`]
//! lists the limits that apply to a configuration.

pub mod command;
pub mod cost;
mod error;
mod options;
pub mod place;
pub mod report;
pub mod traffic;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use sluice_policy::sim;

use sluice_api::config::{self as model, Config};
use sluice_api::nearest;

use cost::lcm;
pub use error::SimulateError;
use error::names;
pub use options::Options;
pub use place::PlannedNf;
pub use report::Report;

/// Most lanes of a chain for which every instance of one service meets every instance of the next.
const MESH: u64 = 64;
/// Most lanes of a chain, unless a service has more instances.
const LANES: u64 = 1024;
/// Smallest ring that the simulator accepts, in packets: a burst.
const LEAST_RING: u32 = 32;
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedChain {
    pub name: String,
    /// Its lanes: indices of chains of the scenario.
    pub lanes: std::ops::Range<usize>,
    /// Packets per second that go straight to its egress port.
    pub straight_pps: f64,
}

/// A configuration, ready to be simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    pub scenario: sim::Scenario,
    /// Its NFs, in the scenario's order.
    pub nfs: Vec<PlannedNf>,
    /// Numbers of the cores.
    pub cores: Vec<usize>,
    pub chains: Vec<PlannedChain>,
    /// Deviations of the simulation from the configuration, in sentences.
    pub notes: Vec<String>,
}

impl Simulation {
    /// Plans a valid configuration.
    ///
    /// # Errors
    /// Missing information, or something that cannot be simulated.
    pub fn new(config: &Config, options: &Options) -> Result<Self, SimulateError> {
        known("--cost", "service", options.costs.keys(), config.services.iter().map(|s| s.name.as_str()))?;
        known("--rate", "port", options.port_rates.keys(), config.ports.iter().map(|p| p.name.as_str()))?;
        let mut notes = Vec::new();
        let place::Placement { nfs, cores } = place::place(config, options.cores, &mut notes);
        let streams = traffic::streams(config, options, &mut notes)?;
        let mut chains = Vec::with_capacity(config.chains.len());
        let mut lanes = Vec::new();
        for (number, chain) in config.chains.iter().enumerate() {
            let mine = streams.iter().filter(|s| s.chain == number);
            let (rate_pps, flows) = mine.fold((0.0, 0), |(rate, flows), s| (rate + s.rate_pps, flows + s.flows));
            let first = lanes.len();
            let group = config.services.iter().position(|s| s.is_inline() && chain.services.contains(&s.name));
            let is_straight = chain.services.is_empty() || group.is_some();
            match group {
                _ if chain.services.is_empty() || flows == 0 || rate_pps <= 0.0 => {}
                Some(group) => notes.push(in_threads(config, options, (&chain.name, rate_pps), group)?),
                None => spread(config, chain, &nfs, rate_pps, flows, &mut lanes)?,
            }
            let straight_pps = if is_straight { rate_pps } else { 0.0 };
            chains.push(PlannedChain { name: chain.name.clone(), lanes: first..lanes.len(), straight_pps });
        }
        if lanes.is_empty() {
            return Err(nothing(config, &chains));
        }
        let reached: BTreeSet<usize> = lanes.iter().flat_map(|lane| lane.nfs.iter().copied()).collect();
        let idle: Vec<String> = (0..nfs.len()).filter(|nf| !reached.contains(nf)).map(|nf| nfs[nf].name.clone()).collect();
        if !idle.is_empty() {
            notes.push(format!("no packets come to {}: more instances than flows, or no rule leads there", names(&idle)));
        }
        let services: BTreeSet<usize> = reached.iter().map(|nf| nfs[*nf].service).collect();
        let costs = cost::costs(config, options, &services, &mut notes)?;
        let nf = |planned: &PlannedNf| {
            let service = &config.services[planned.service];
            sim::Nf {
                core: planned.core,
                cost: costs.get(&planned.service).cloned().unwrap_or(sim::Cost::Fixed(0)),
                priority: service.priority,
                factors: Vec::new(),
                ring: Some(service.ring.max(LEAST_RING)),
            }
        };
        let small: Vec<String> =
            services.iter().map(|s| &config.services[*s]).filter(|s| s.ring < LEAST_RING).map(|s| s.name.clone()).collect();
        if !small.is_empty() {
            notes.push(format!("rings of {} are simulated with {LEAST_RING} packets, the least there is", names(&small)));
        }
        let scenario = sim::Scenario {
            machine: sim::Machine { cores: cores.len(), mhz: options.mhz, switch_ns: options.switch_ns, ..sim::Machine::default() },
            nfs: nfs.iter().map(nf).collect(),
            chains: lanes,
            class: class(&config.sched),
            platform: platform(&config.sched),
            warmup_ns: 200_000_000,
            measure_ns: options.measure_ns,
            seed: 1,
        };
        scenario.check()?;
        Ok(Self { scenario, nfs, cores, chains, notes })
    }

    /// The scenario under a variant, which enables and disables its parts; other settings are as
    /// configured.
    pub fn variant(&self, variant: sim::Variant) -> sim::Scenario {
        let sim::Platform { fused, handover, weights, backpressure, .. } = variant.platform();
        let platform = sim::Platform { fused, handover, weights, backpressure, ..self.scenario.platform.clone() };
        sim::Scenario { platform, ..self.scenario.clone() }
    }
}

/// Why no packet would meet an NF.
fn nothing(config: &Config, chains: &[PlannedChain]) -> SimulateError {
    let with_packets =
        config.chains.iter().zip(chains).filter(|(chain, planned)| !chain.services.is_empty() && planned.straight_pps > 0.0);
    let inline: Vec<String> = with_packets.map(|(chain, _)| chain.name.clone()).collect();
    if inline.is_empty() { SimulateError::Nothing } else { SimulateError::Inline { chains: inline } }
}

/// What is not simulated of an inline chain with this rate: the cores that its handlers take.
fn in_threads(config: &Config, options: &Options, chain: (&str, f64), group: usize) -> Result<String, SimulateError> {
    let (name, rate_pps) = chain;
    let takes = match cost::costs(config, options, &BTreeSet::from([group]), &mut Vec::new()) {
        Ok(costs) => {
            let cores: f64 = costs.values().map(|cost| rate_pps * cost::mean(cost) / (options.mhz as f64 * 1e6)).sum();
            format!("its handlers alone take {cores:.2} of the {} that receive", cores_of(config.services[group].instances))
        }
        Err(SimulateError::NoCost { services }) => {
            format!("--cost {}=CYCLES would show what its handlers take of a core", services[0])
        }
        Err(other) => return Err(other),
    };
    Ok(format!("chain {name} is inline, in packet threads, which are not simulated: all its packets count as delivered; {takes}"))
}

fn cores_of(threads: u32) -> String {
    if threads == 1 { "1 core".into() } else { format!("{threads} cores") }
}

/// Adds the lanes of a chain, with flows and rate spread evenly.
fn spread(
    config: &Config,
    chain: &model::Chain,
    nfs: &[PlannedNf],
    rate_pps: f64,
    flows: u64,
    lanes: &mut Vec<sim::Chain>,
) -> Result<(), SimulateError> {
    // Each service once: a packet that returns meets the same instance.
    let mut services: Vec<usize> = Vec::new();
    let mut hops = Vec::with_capacity(chain.services.len());
    for name in &chain.services {
        let name = model::hop(name).0;
        let service = config.services.iter().position(|s| s.name == *name);
        let service = service.ok_or_else(|| SimulateError::Refused(format!("chain {}: there is no service {name}", chain.name)))?;
        let place = services.iter().position(|s| *s == service).unwrap_or_else(|| {
            services.push(service);
            services.len() - 1
        });
        hops.push(place);
    }
    let instances: Vec<Vec<usize>> =
        services.iter().map(|service| (0..nfs.len()).filter(|nf| nfs[*nf].service == *service).collect()).collect();
    if let Some(none) = instances.iter().position(Vec::is_empty) {
        let service = config.services[services[none]].name.clone();
        return Err(SimulateError::NoInstances { chain: chain.name.clone(), service });
    }
    let counts: Vec<u64> = instances.iter().map(|i| i.len() as u64).collect();
    let count = lane_count(&counts).min(flows);
    for lane in 0..count {
        let mine = flows / count + u64::from(lane < flows % count);
        let chosen = lane_of(lane, &counts);
        lanes.push(sim::Chain {
            nfs: hops.iter().map(|place| instances[*place][chosen[*place] as usize]).collect(),
            rate_pps: (rate_pps * mine as f64 / flows as f64).round() as u64,
            flows: u32::try_from(mine).unwrap_or(u32::MAX),
        });
    }
    Ok(())
}

/// Number of lanes of a chain, given the instances of its services.
///
/// All combinations if they are few; otherwise enough to use the instances of each service evenly.
fn lane_count(counts: &[u64]) -> u64 {
    let all = counts.iter().fold(1u64, |all, n| all.saturating_mul(*n));
    if all <= MESH {
        return all;
    }
    let most = counts.iter().copied().max().unwrap_or(1).max(LANES);
    counts.iter().fold(1, |even, n| lcm(even, *n).min(most))
}

/// The instance of each service on a lane.
///
/// Consecutive lanes alternate at every service, and all lanes together meet every combination
/// once: after a common period of the services so far and the next, the next one is shifted by one.
fn lane_of(lane: u64, counts: &[u64]) -> Vec<u64> {
    let mut period = 1u64;
    let instance = |n: &u64| {
        let within = lane % period.saturating_mul(*n);
        let chosen = (within + within / lcm(period, *n)) % n;
        period = period.saturating_mul(*n);
        chosen
    };
    counts.iter().map(instance).collect()
}

fn class(sched: &model::Sched) -> sim::Class {
    match sched.class {
        model::Class::Other => sim::Class::Other,
        model::Class::Batch => sim::Class::Batch,
        // The kernel's own slice is 100 ms.
        model::Class::Rr => sim::Class::Rr(sched.rr_slice_ms.unwrap_or(100)),
    }
}

fn platform(sched: &model::Sched) -> sim::Platform {
    sim::Platform {
        fused: false,
        handover: sched.handover,
        weights: sched.weights,
        backpressure: sched.backpressure,
        high_watermark: sched.high_watermark,
        low_watermark: sched.low_watermark,
        queueing_ns: u64::from(sched.queueing_us) * 1_000,
        weight_every_ns: u64::from(sched.weight_every_ms) * 1_000_000,
        weight_margin_percent: f64::from(sched.weight_margin_percent),
        min_share: f64::from(sched.min_share_percent) / 100.0,
        ..sim::Platform::default()
    }
}

/// Checks that everything exists that an option names.
fn known<'a>(
    option: &'static str,
    what: &'static str,
    named: impl Iterator<Item = &'a String>,
    there: impl Iterator<Item = &'a str>,
) -> Result<(), SimulateError> {
    let there: Vec<&str> = there.collect();
    for name in named {
        if !there.contains(&name.as_str()) {
            return Err(SimulateError::Unknown { option, name: name.clone(), what, hint: nearest::hint(name, &there) });
        }
    }
    Ok(())
}
