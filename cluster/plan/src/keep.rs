//! One reserved SLO: what it has, what it lacks, and what it no longer needs.

use std::collections::{BTreeMap, BTreeSet};

use sluice_cluster_types::{NodePlan, Use};
use sluice_planner::admission::{Reason, Refusal, admit};
use sluice_planner::demand::Demand;
use sluice_slo::assignment::Promised;
use sluice_slo::placement::{Instance, Placement};
use sluice_slo::profile::Profile;
use sluice_slo::slo::{Promise, Slo as Terms};

use crate::board::{Board, Room};
use crate::health::{Health, see_agents};
use crate::wish::{Why, Wish};

/// Packets per second are equal if they differ by less than this part.
pub const EPSILON: f64 = 1e-9;

/// An instance.
#[derive(Debug, Clone)]
pub struct Part {
    pub node: String,
    pub number: u32,
    carries_pps: f64,
    /// Whether packets are led to it.
    pub is_led: bool,
    /// Whether it may stay.
    pub is_good: bool,
}

pub fn parts(board: &Board<'_>, slo: &str) -> Vec<Part> {
    let part = |(node, one): (&str, &Instance)| Part {
        node: node.into(),
        number: one.number,
        carries_pps: one.capacity_pps,
        is_led: one.load_pps > 0.0,
        is_good: matches!(board.health.get(node), Some(Health::Open | Health::Closed))
            && !board.stale.get(slo).is_some_and(|nodes| nodes.contains(node))
            && !board.leaving.get(slo).is_some_and(|numbers| numbers.contains(&one.number)),
    };
    board.instances(slo).map(part).collect()
}

/// What nodes report of an SLO.
pub fn uses<'a>(plans: &'a BTreeMap<String, NodePlan>, node: &str, slo: &str) -> Option<&'a Use> {
    plans.get(node)?.status.as_ref()?.uses.iter().find(|one| one.slo == slo)
}

/// Takes instances off lost nodes.
pub fn drop_lost(board: &mut Board<'_>, slo: &str) {
    let is_lost = |node: &String| board.health.get(node) == Some(&Health::Lost);
    let lost: Vec<String> = board.nodes(slo).into_iter().filter(is_lost).collect();
    if !lost.is_empty() {
        board.remove(slo, |node, _| lost.iter().any(|gone| gone == node));
    }
}

/// Marks nodes that refuse other terms, and so keep some that promise less. What is there is good
/// until there is something better.
pub fn mark_stale(board: &mut Board<'_>, wish: &Wish<'_>) {
    let (slo, new) = (wish.name(), &wish.terms);
    let is_less = |old: &Terms| {
        let pps = |terms: &Terms| terms.promise.throughput_pps().unwrap_or(0.0);
        let is_slower = old.promise.latency_us() > new.promise.latency_us() || pps(old) < pps(new);
        old.traffic != new.traffic || is_slower
    };
    let has_less = |node: &String| {
        let old = board.terms(node, slo);
        board.is_barred(slo, node) && old.is_some_and(|old| is_less(&old.slo))
    };
    let stale: BTreeSet<String> = board.nodes(slo).into_iter().filter(has_less).collect();
    if !stale.is_empty() {
        board.stale.insert(slo.into(), stale);
    }
}

/// Takes one reserved SLO a step on: see the crate.
///
/// # Errors
/// Why it lacks something. What it has stays.
pub fn keep(
    board: &mut Board<'_>,
    wish: &Wish<'_>,
    throughput_pps: f64,
    plans: &BTreeMap<String, NodePlan>,
    room: &Room,
) -> Result<(), Why> {
    if is_steady(board, wish, throughput_pps) {
        return Ok(());
    }
    drop_lost(board, wish.name());
    retune(board, wish)?;
    mark_stale(board, wish);
    let has: f64 = parts(board, wish.name()).iter().filter(|one| one.is_good).map(|one| one.carries_pps).sum();
    let missing = throughput_pps - has;
    let done = match missing > throughput_pps * EPSILON {
        true if *room != Room::None => reserve(board, wish, missing, room),
        true => Err(waiting()),
        false => Ok(()),
    };
    lead(board, wish, throughput_pps, plans);
    done
}

/// Whether all is as the rest of the rule would leave it: every instance is needed and runs, has
/// its part of the packets, and may stay. Most SLOs are, and the rest copies what it looks at.
fn is_steady(board: &Board<'_>, wish: &Wish<'_>, target: f64) -> bool {
    let slo = wish.name();
    let is_well = |node: &str| {
        matches!(board.health.get(node), Some(Health::Open | Health::Closed))
            && board.terms(node, slo).is_some_and(|terms| has_terms(terms, wish))
    };
    let mut all = Vec::new();
    for (node, one) in board.instances(slo) {
        if !is_well(node) || !board.is_running(slo, one.number) {
            return false;
        }
        all.push(one);
    }
    if board.barred.contains_key(slo) || board.leaving.contains_key(slo) {
        return false;
    }
    all.sort_by_key(|one| one.number);
    let sum: f64 = all.iter().map(|one| one.capacity_pps).sum();
    let share = if sum > 0.0 { (target / sum).min(1.0) } else { 0.0 };
    let is_led =
        |one: &&Instance| one.load_pps > 0.0 && one.load_pps == one.capacity_pps * share && !board.is_idle(slo, one.number);
    let is_enough = |pps: f64| pps >= target * (1.0 - EPSILON);
    if !is_enough(sum) || !all.iter().all(is_led) {
        return false;
    }
    all.sort_by(|a, b| b.capacity_pps.total_cmp(&a.capacity_pps));
    all.pop().is_some() && !is_enough(all.iter().map(|one| one.capacity_pps).sum())
}

/// Whether these terms are those of an SLO.
fn has_terms(promised: &Promised, wish: &Wish<'_>) -> bool {
    let (has, asked) = (&promised.slo, &wish.terms);
    has.workload == asked.workload && has.promise == asked.promise && has.traffic == asked.traffic
}

pub fn waiting() -> Why {
    Why::new("Waiting", "others are placed first")
}

/// A message, with what to do about the nodes that could have room.
pub fn with_closed(board: &Board<'_>, mut message: String) -> String {
    if !board.silent.is_empty() {
        let silent: Vec<&str> = board.silent.iter().map(String::as_str).collect();
        message = format!("{message}; {}", see_agents(&silent));
    }
    let cordoned = board.health.iter().filter(|(_, health)| **health == Health::Leaving);
    let mut cordoned: Vec<&str> = cordoned.map(|(node, _)| node.as_str()).collect();
    cordoned.sort_unstable();
    match cordoned[..] {
        [] => message,
        [node] => format!("{message}; node {node} is cordoned"),
        [node, ..] => format!("{message}; {} nodes are cordoned, as {node}", cordoned.len()),
    }
}

/// Keeps other terms from now on, where they have changed.
fn retune(board: &mut Board<'_>, wish: &Wish<'_>) -> Result<(), Why> {
    let mut changes: BTreeMap<String, (Vec<f64>, Promised)> = BTreeMap::new();
    for node in board.nodes(wish.name()) {
        let Some((server, promised)) = board.server(&node).zip(board.terms(&node, wish.name())) else {
            continue;
        };
        if promised.slo.workload != wish.terms.workload {
            let message = format!(
                "its chain now runs {}, and it was admitted for {}: delete the SLO and make it again",
                wish.terms.workload, promised.slo.workload
            );
            return Err(Why::new("ChainChanged", message));
        }
        if has_terms(promised, wish) || board.is_barred(wish.name(), &node) {
            continue;
        }
        let shape = server.shape.clone();
        let Some(profile) = wish.profiles.iter().find(|profile| profile.key.cpu == shape.cpu) else {
            return Err(no_server(wish, &shape.cpu));
        };
        let demand = Demand::of(&wish.terms, profile, &shape).map_err(|error| Why::new("Impossible", error.to_string()))?;
        changes.insert(node, (demand.capacity_pps, wish.promised(Some(profile))));
    }
    // All nodes or none: after an error, terms and instances must still be of each other.
    board.edit(wish.name(), |node, one| {
        if let Some(pps) = changes.get(node).and_then(|(sizes, _)| sizes.get(one.ways as usize)) {
            one.capacity_pps = *pps;
            one.load_pps = one.load_pps.min(*pps);
        }
    });
    for (node, (_, promised)) in changes {
        board.promise(&node, wish.name(), promised);
    }
    Ok(())
}

fn no_server(wish: &Wish<'_>, cpu: &str) -> Why {
    let own: Vec<&str> = wish.profiles.iter().map(|profile| profile.key.cpu.as_str()).collect();
    let message = format!("its profiles are of {}, and the nodes have {cpu}: profile it on one of them", own.join(", "));
    Why::new("NoServer", message)
}

/// What is missing of an SLO, with a name that no SLO has, so that it counts as another one.
pub fn rest(terms: &Terms, missing_pps: f64) -> Terms {
    let promise = Promise::Reserved { throughput_pps: missing_pps, latency_us: terms.promise.latency_us() };
    Terms { name: format!("{}+", terms.name), promise, ..terms.clone() }
}

/// Finds room for the [`rest`] of an SLO. Its instances are numbered from `next` on. Returns their
/// servers, by their index.
///
/// # Errors
/// There is none.
pub fn admit_rest(open: &mut Placement, slo: &str, rest: &Terms, profile: &Profile, next: u32) -> Result<Vec<usize>, Refusal> {
    let added = admit(open, rest, profile)?;
    for (n, (at, new)) in added.iter().enumerate() {
        let mut instances = open.servers[*at].instances.iter_mut();
        if let Some(one) = instances.find(|one| one.slo == rest.name && one.number == new.number) {
            (one.slo, one.number) = (slo.into(), next + n as u32);
        }
    }
    Ok(added.into_iter().map(|(at, _)| at).collect())
}

/// Finds room for what is missing of a reserved SLO.
fn reserve(board: &mut Board<'_>, wish: &Wish<'_>, missing: f64, room: &Room) -> Result<(), Why> {
    let is_new = board.instances(wish.name()).next().is_none();
    let next = board.instances(wish.name()).map(|(_, one)| one.number + 1).max().unwrap_or(0);
    let asked = rest(&wish.terms, missing);
    let mut refused: Option<Refusal> = None;
    for profile in wish.profiles.iter().copied() {
        let add = |open: &mut Placement| admit_rest(open, wish.name(), &asked, profile, next);
        match board.add_to(wish.name(), room, add, || wish.promised(Some(profile))) {
            Ok(()) => return Ok(()),
            Err(refusal) => {
                refused = Some(match refused {
                    Some(other) => other.or_nearer(refusal, &asked),
                    None => refusal,
                });
            }
        }
    }
    let Some(refusal) = refused else { return Err(Why::new("NoProfile", "it has no profile")) };
    Err(why_not(board, wish, &refusal, is_new))
}

fn why_not(board: &Board<'_>, wish: &Wish<'_>, refusal: &Refusal, is_new: bool) -> Why {
    // What would fit of a missing part is of no use to anybody.
    let message = if is_new { refusal.to_string() } else { refusal.reason.to_string() };
    match &refusal.reason {
        Reason::Full { .. } => Why::new("NoRoom", with_closed(board, message)),
        Reason::NoServer { .. } if board.open.servers.is_empty() => {
            let message =
                "no node is ready and has a ServerClass and an agent: label one as a ServerClass says, and run sluice-node there";
            Why::new("NoServer", with_closed(board, message.into()))
        }
        Reason::NoServer { .. } => no_server(wish, &processors(board)),
        _ => Why::new("Impossible", message),
    }
}

/// The processors of the nodes that can have more.
fn processors(board: &Board<'_>) -> String {
    let mut all: Vec<&str> = board.open.servers.iter().map(|server| server.shape.cpu.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all.join(", ")
}

/// Leads the packets of a reserved SLO to the instances that are to stay, and stops the others when
/// nothing comes to them any more.
fn lead(board: &mut Board<'_>, wish: &Wish<'_>, target: f64, plans: &BTreeMap<String, NodePlan>) {
    let slo = wish.name();
    let all = parts(board, slo);
    let mut good: Vec<&Part> = all.iter().filter(|one| one.is_good).collect();
    good.sort_by(|a, b| b.is_led.cmp(&a.is_led).then(b.carries_pps.total_cmp(&a.carries_pps)).then(a.number.cmp(&b.number)));
    let mut sum = 0.0;
    let needed = |one: &&Part| {
        let is_needed = sum < target * (1.0 - EPSILON);
        sum += one.carries_pps;
        is_needed
    };
    let stay: Vec<&Part> = good.into_iter().take_while(needed).collect();
    let is_enough = sum >= target * (1.0 - EPSILON);
    let do_run = stay.iter().all(|one| board.is_running(slo, one.number));
    let led: Vec<&Part> = all.iter().filter(|one| one.is_led).collect();
    // A plan may change for others without end, so that it is never settled.
    let runs = |one: &&&Part| uses(plans, &one.node, slo).is_some();
    let carried: f64 = led.iter().filter(runs).map(|one| one.carries_pps).sum();
    let mut to: Vec<&Part> = match () {
        // What promises less goes on until there is something better.
        () if !is_enough || (board.stale.contains_key(slo) && !do_run) => all.iter().collect(),
        // Where what runs does not carry it anyway, nothing is gained by waiting.
        () if do_run || carried < target * (1.0 - EPSILON) => stay.clone(),
        () => led,
    };
    // The order of a sum is in its last bits, and a plan that differs in these is another one.
    to.sort_by_key(|one| one.number);
    let of: f64 = to.iter().map(|one| one.carries_pps).sum();
    let share = if of > 0.0 { (target / of).min(1.0) } else { 0.0 };
    let loads: BTreeMap<u32, f64> = to.iter().map(|one| (one.number, one.carries_pps * share)).collect();
    board.edit(slo, |_, one| one.load_pps = loads.get(&one.number).copied().unwrap_or(0.0));
    let are_led = stay.iter().all(|one| one.is_led && board.is_running(slo, one.number) && !board.is_idle(slo, one.number));
    if !is_enough || !are_led {
        return;
    }
    let is_shared = |node: &str| stay.iter().any(|one| one.node == node);
    let is_quiet = |node: &str| is_shared(node) || uses(plans, node, slo).is_none_or(|one| one.offered_pps <= 0.0);
    let is_gone = |one: &Part| {
        let is_idle = board.is_idle(slo, one.number) && is_quiet(&one.node);
        !one.is_led && (is_idle || !board.is_running(slo, one.number))
    };
    let gone: Vec<u32> = all
        .iter()
        .filter(|one| !stay.iter().any(|other| other.number == one.number) && is_gone(one))
        .map(|one| one.number)
        .collect();
    if !gone.is_empty() {
        board.remove(slo, |_, one| gone.contains(&one.number));
    }
}
