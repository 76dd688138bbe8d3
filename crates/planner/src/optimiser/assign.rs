//! A placement from a solution: servers for patterns, slots for instances.
//!
//! Slots and instances with the same number of cores are matched largest to largest, which fits if
//! there are enough slots of each size or more. Then running instances stay where they are as far
//! as possible: patterns go to the servers whose instances are most like them, and instances are
//! exchanged while an exchange brings one of them home.

use std::collections::{BTreeMap, BTreeSet};

use super::pattern::{Pattern, Slot};
use super::{OptimiserError, Solution};
use crate::demand::Demand;
use sluice_slo::placement::{Instance, PlacedServer, Placement, ServerShape};

/// An instance to be placed.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    demand: usize,
    size: u32,
    /// Index of its server in the solution.
    at: usize,
    slot: Slot,
}

/// The placement of a solution, on the servers of the current one of this shape. Servers of other
/// shapes and their instances stay as they are, also instances of the same SLOs.
///
/// # Errors
/// [`OptimiserError::Solver`]: the solution has too few slots, or there are too few servers.
pub fn assign(
    solution: &Solution,
    demands: &[Demand],
    shape: &ServerShape,
    current: &Placement,
) -> Result<Placement, OptimiserError> {
    let wrong = |why: &str| OptimiserError::Solver(why.into());
    let own: Vec<usize> = (0..current.servers.len()).filter(|i| current.servers[*i].shape == *shape).collect();
    if own.len() < solution.patterns.len() {
        return Err(OptimiserError::Solver(format!("{} servers are needed and there are {}", solution.patterns.len(), own.len())));
    }
    let mut wanted = matched(solution, demands).ok_or_else(|| wrong("its answer has too few slots"))?;
    let homes = homes(&solution.patterns, current, &own);
    let index: BTreeMap<&str, usize> = demands.iter().enumerate().map(|(i, demand)| (demand.slo.as_str(), i)).collect();
    // How many instances of each SLO a server has.
    let mut there: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new(); solution.patterns.len()];
    for (at, home) in homes.iter().enumerate() {
        for instance in &current.servers[*home].instances {
            if let Some(demand) = index.get(instance.slo.as_str()) {
                *there[at].entry(*demand).or_insert(0) += 1;
            }
        }
    }
    settle(&mut wanted, &there);
    let mut placement = current.clone();
    for server in placement.servers.iter_mut().filter(|server| server.shape == *shape) {
        server.instances.clear();
    }
    let sums: Vec<f64> =
        (0..demands.len()).map(|i| solution.recipes[i].iter().map(|size| demands[i].capacity_pps[*size as usize]).sum()).collect();
    // Numbers of an SLO's instances on servers of other shapes are taken.
    let taken: BTreeSet<(String, u32)> =
        placement.instances().map(|(_, instance)| (instance.slo.clone(), instance.number)).collect();
    let mut numbers = vec![0; demands.len()];
    for wanted in &wanted {
        let (demand, sum) = (&demands[wanted.demand], sums[wanted.demand]);
        let server: &mut PlacedServer = &mut placement.servers[homes[wanted.at]];
        let carries = demand.capacity_pps[wanted.size as usize];
        let next = &mut numbers[wanted.demand];
        while taken.contains(&(demand.slo.clone(), *next)) {
            *next += 1;
        }
        let number = *next;
        *next += 1;
        server.instances.push(Instance {
            slo: demand.slo.clone(),
            number,
            cores: server.free_cores(demand.cores).ok_or_else(|| wrong("its answer has too few cores"))?,
            ways: wanted.size,
            memory_mib: demand.memory_mib,
            capacity_pps: carries,
            load_pps: if sum > 0.0 { demand.target_pps * carries / sum } else { 0.0 },
        });
    }
    placement.check().map_err(|e| OptimiserError::Solver(e.to_string()))?;
    Ok(placement)
}

/// Each instance in a slot, largest in largest; none if there are too few.
fn matched(solution: &Solution, demands: &[Demand]) -> Option<Vec<Wanted>> {
    let mut slots: BTreeMap<u32, Vec<(u32, usize)>> = BTreeMap::new();
    for (at, pattern) in solution.patterns.iter().enumerate() {
        for slot in pattern {
            slots.entry(slot.0).or_default().push((slot.1, at));
        }
    }
    let mut items: BTreeMap<u32, Vec<(u32, usize)>> = BTreeMap::new();
    for (i, recipe) in solution.recipes.iter().enumerate() {
        for size in recipe {
            items.entry(demands[i].counted_cores).or_default().push((*size, i));
        }
    }
    let mut wanted = Vec::new();
    for (cores, mut items) in items {
        let mut slots = slots.remove(&cores).unwrap_or_default();
        items.sort_by(|a, b| b.cmp(a));
        slots.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        if slots.len() < items.len() || items.iter().zip(&slots).any(|(item, slot)| item.0 > slot.0) {
            return None;
        }
        wanted.extend(items.iter().zip(&slots).map(|(item, slot)| Wanted {
            demand: item.1,
            size: item.0,
            at: slot.1,
            slot: (cores, slot.0),
        }));
    }
    Some(wanted)
}

/// The server of each pattern: the pairs that have most in common first.
fn homes(patterns: &[Pattern], current: &Placement, own: &[usize]) -> Vec<usize> {
    let mut pairs = Vec::new();
    for &server in own {
        let mut has: Vec<Slot> = current.servers[server].instances.iter().map(|i| (i.cores.len() as u32, i.ways)).collect();
        has.sort_unstable();
        for (at, pattern) in patterns.iter().enumerate() {
            let mut left = has.clone();
            let common =
                pattern.iter().filter(|slot| left.iter().position(|has| has == *slot).map(|i| left.remove(i)).is_some()).count();
            pairs.push((common, has.len(), at, server));
        }
    }
    pairs.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)).then(a.3.cmp(&b.3)));
    let (mut homes, mut taken) = (vec![None; patterns.len()], vec![false; current.servers.len()]);
    for (_, _, at, server) in pairs {
        if homes[at].is_none() && !taken[server] {
            homes[at] = Some(server);
            taken[server] = true;
        }
    }
    homes.into_iter().flatten().collect()
}

/// Exchanges instances that fit each other's slots while that brings one home and takes none away.
fn settle(wanted: &mut [Wanted], there: &[BTreeMap<usize, usize>]) {
    let mut now: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new(); there.len()];
    let mut on: Vec<Vec<usize>> = vec![Vec::new(); there.len()];
    for (i, item) in wanted.iter().enumerate() {
        *now[item.at].entry(item.demand).or_insert(0) += 1;
        on[item.at].push(i);
    }
    let of = |list: &[BTreeMap<usize, usize>], at: usize, demand: usize| list[at].get(&demand).copied().unwrap_or(0);
    let mut homes_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, has) in there.iter().enumerate() {
        for demand in has.keys() {
            homes_of.entry(*demand).or_default().push(at);
        }
    }
    for i in 0..wanted.len() {
        let (a, from) = (wanted[i].demand, wanted[i].at);
        if of(&now, from, a) <= of(there, from, a) {
            continue;
        }
        let homes = homes_of.get(&a).cloned().unwrap_or_default();
        let swap =
            homes.iter().filter(|at| of(&now, **at, a) < of(there, **at, a)).flat_map(|at| on[*at].iter().copied()).find(|&j| {
                let (b, at) = (wanted[j].demand, wanted[j].at);
                let is_home = of(&now, at, b) <= of(there, at, b);
                b != a
                    && !is_home
                    && wanted[i].slot.0 == wanted[j].slot.0
                    && wanted[i].size <= wanted[j].slot.1
                    && wanted[j].size <= wanted[i].slot.1
            });
        let Some(j) = swap else { continue };
        let (b, to) = (wanted[j].demand, wanted[j].at);
        for (at, demand, more) in [(from, a, false), (to, a, true), (to, b, false), (from, b, true)] {
            let n = now[at].entry(demand).or_insert(0);
            *n = if more { *n + 1 } else { n.saturating_sub(1) };
        }
        let (at, slot) = (wanted[i].at, wanted[i].slot);
        (wanted[i].at, wanted[i].slot) = (wanted[j].at, wanted[j].slot);
        (wanted[j].at, wanted[j].slot) = (at, slot);
        on[from].retain(|k| *k != i);
        on[to].retain(|k| *k != j);
        on[from].push(j);
        on[to].push(i);
    }
}
