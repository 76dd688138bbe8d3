//! Packet costs of services in cycles, and the cost of a switch to an NF.
//!
//! Packet costs come from options, from measurements, or from the arguments of `sluice-nf-cost`.
//! That of a group (a fused or inline chain) is the sum of its parts', unless the group itself is
//! named or measured. Rings and checks cost it once, where isolated NFs have them each.

use std::collections::{BTreeMap, BTreeSet};

use sluice_cli::lab::simulate::cycles;
use sluice_policy::sim::Cost;

use super::error::SimulateError;
use super::options::Options;
use sluice_api::config::{Config, Service};
use sluice_api::model::Nf;

/// Program whose arguments are its packet cost.
const PROGRAM: &str = "sluice-nf-cost";
/// Most elements of a combined list.
const LONGEST: usize = 4096;

/// The costs of these services, by number.
///
/// # Errors
/// Services of unknown cost, or invalid arguments.
pub fn costs(
    config: &Config,
    options: &Options,
    services: &BTreeSet<usize>,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<usize, Cost>, SimulateError> {
    let mut costs = BTreeMap::new();
    let mut unknown = Vec::new();
    for number in services {
        if let Some(cost) = of(config, options, &config.services[*number], &mut unknown, notes)? {
            costs.insert(*number, cost);
        }
    }
    if unknown.is_empty() { Ok(costs) } else { Err(SimulateError::NoCost { services: unknown }) }
}

/// The cost of a service. If it is not known, `unknown` gets the services to measure.
fn of(
    config: &Config,
    options: &Options,
    service: &Service,
    unknown: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Result<Option<Cost>, SimulateError> {
    let invalid = |what| SimulateError::Arguments { service: service.name.clone(), what };
    // A part's option counts for more than a measurement of the whole group.
    let measured = options.measured.get(&service.name).filter(|_| !service.parts.iter().any(|p| options.costs.contains_key(p)));
    if let Some(cycles) = options.costs.get(&service.name).or(measured) {
        return Ok(Some(Cost::Fixed(*cycles)));
    }
    if service.is_group() {
        let parts = config.services.iter().filter(|part| service.parts.contains(&part.name));
        let costs: Vec<Option<Cost>> = parts.map(|part| of(config, options, part, unknown, notes)).collect::<Result<_, _>>()?;
        let Some(costs) = costs.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        return costs.into_iter().try_fold(Cost::Fixed(0), plus).map(Some).map_err(invalid);
    }
    let cost = of_args(service, notes).map_err(invalid)?;
    if cost.is_none() && !unknown.contains(&service.name) {
        unknown.push(service.name.clone());
    }
    Ok(cost)
}

/// The cost of one handler after another.
fn plus(one: Cost, other: Cost) -> Result<Cost, String> {
    match (one, other) {
        (Cost::Fixed(one), Cost::Fixed(other)) => Ok(Cost::Fixed(one + other)),
        (Cost::Fixed(0), cost) => Ok(cost),
        (Cost::Random(list), Cost::Fixed(cycles)) | (Cost::Fixed(cycles), Cost::Random(list)) => {
            draws(list, vec![cycles]).map(Cost::Random)
        }
        (Cost::Random(one), Cost::Random(other)) => draws(one, other).map(Cost::Random),
        (Cost::ByFlow(list), Cost::Fixed(cycles)) | (Cost::Fixed(cycles), Cost::ByFlow(list)) => {
            by_flow(&[list, vec![cycles]]).map(Cost::ByFlow)
        }
        (Cost::ByFlow(one), Cost::ByFlow(other)) => by_flow(&[one, other]).map(Cost::ByFlow),
        _ => Err("a part costs by flow and another at random, which has no sum".into()),
    }
}

/// The mean cycles of a packet.
pub fn mean(cost: &Cost) -> f64 {
    match cost {
        Cost::Fixed(cycles) => *cycles as f64,
        Cost::List(list) | Cost::Random(list) | Cost::ByFlow(list) => list.iter().sum::<u64>() as f64 / list.len().max(1) as f64,
    }
}

/// Cycles per packet of each service with recent work: the median of its instances, and of the
/// groups in which it is a part. `mhz` is the clock of the measuring host.
pub fn measured(nfs: &[Nf], mhz: u64) -> BTreeMap<String, u64> {
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for nf in nfs {
        let parts = nf.parts.iter().filter_map(|part| Some((part.service.as_str(), part.packet_ns?)));
        for (service, ns) in parts.chain([(nf.service.as_str(), nf.sched.service_ns)]).filter(|(_, ns)| *ns > 0.0) {
            times.entry(service).or_default().push(ns);
        }
    }
    let cycles = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        cycles_of(times[times.len() / 2], mhz)
    };
    times.into_iter().map(|(service, mut times)| (service.to_owned(), cycles(&mut times))).collect()
}

/// Cycles in this time, at least 1. `mhz` is the clock of the measuring host.
pub fn cycles_of(ns: f64, mhz: u64) -> u64 {
    (ns * mhz as f64 / 1e3).round().max(1.0) as u64
}

/// The cost in a service's arguments; none if it runs another program.
fn of_args(service: &Service, notes: &mut Vec<String>) -> Result<Option<Cost>, String> {
    if service.exec.as_ref().and_then(|exec| exec.file_name()).is_none_or(|name| name != PROGRAM) {
        return Ok(None);
    }
    let mut lists: Vec<Vec<u64>> = Vec::new();
    let mut pick = "random";
    let mut args = service.args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        let (key, value) = arg.split_once('=').map_or((arg, None), |(key, value)| (key, Some(value)));
        if !matches!(key, "--cycles" | "--pick") {
            continue;
        }
        let value = value.or_else(|| args.next()).ok_or_else(|| format!("{key} has no value"))?;
        if key == "--cycles" {
            lists.push(value.split(',').map(cycles).collect::<Result<_, _>>()?);
        } else {
            pick = value;
        }
    }
    let sum = |lists: &[Vec<u64>]| Cost::Fixed(lists.iter().flatten().sum());
    if lists.is_empty() {
        return Err("its args have no --cycles".into());
    }
    if lists.iter().all(|list| list.len() == 1) {
        return Ok(Some(sum(&lists)));
    }
    match pick {
        "each" => Ok(Some(sum(&lists))),
        "random" => lists.into_iter().try_fold(vec![0], draws).map(|list| Some(Cost::Random(list))),
        "flow" => by_flow(&lists).map(|list| Some(Cost::ByFlow(list))),
        "signal" => {
            notes.push(format!("service {} changes its cost by signal; it is simulated with the first of each list", service.name));
            Ok(Some(Cost::Fixed(lists.iter().map(|list| list[0]).sum())))
        }
        other => Err(format!("--pick {other} is not known; it can be random, flow, each or signal")),
    }
}

/// Adds a stage that draws from `list` to stages that draw from `before`: all sums, with equal
/// probability.
fn draws(before: Vec<u64>, list: Vec<u64>) -> Result<Vec<u64>, String> {
    if before.len() * list.len() > LONGEST {
        return Err(format!("its lists of cycles have more than {LONGEST} sums"));
    }
    Ok(before.iter().flat_map(|before| list.iter().map(move |cycles| before + cycles)).collect())
}

/// The costs of flows over stages. A flow has the same relative position in each list.
fn by_flow(lists: &[Vec<u64>]) -> Result<Vec<u64>, String> {
    let len = lists.iter().fold(1u64, |len, list| lcm(len, list.len() as u64));
    if len > LONGEST as u64 {
        return Err(format!("its lists of cycles make more than {LONGEST} kinds of flow"));
    }
    let len = len as usize;
    Ok((0..len).map(|i| lists.iter().map(|list| list[i * list.len() / len]).sum()).collect())
}

pub(super) fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}
