//! One SLO on demand: as many instances as its nodes ask for, and as its load needs.
//!
//! # Approach
//! A node that lacks instances, and has no place for another one, asks. The SLO gets one more then,
//! on any node, as long as its load is below its cap.
//!
//! How much an instance carries is unknown. So the most packets per instance with which all nodes
//! kept the promise is noted. One instance is taken away when the others would have [`GONE`] of
//! that at most, for [`CALM`] at a stretch; for twice as long each time that it was needed again
//! soon after. It gets no packets first, and stops when none come.
//!
//! Until more was asked for once, it may be that fewer have always been enough, as after a start of
//! the operator. Then one is taken away after the longest such time, whatever the load.
//!
//! To lead packets away, the others get a load of 1 in the plan, and it has none. Usually all have
//! none, which means equal parts.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_cluster_types::{NodePlan, Use};
use sluice_slo::on_demand::{Footprint, LeaseError, lease};
use sluice_slo::placement::Placement;
use sluice_slo::slo::{Cap, Promise, Slo as Terms};

use crate::board::{Board, Room};
use crate::health::is_settled;
use crate::keep::{Part, drop_lost, mark_stale, parts, uses, waiting, with_closed};
use crate::wish::{Why, Wish};

/// Part of what an instance is known to carry that it may be given when others go.
const GONE: f64 = 0.75;
/// Time for which one instance fewer has to be enough.
pub const CALM: Duration = Duration::from_secs(300);
/// The longest such time.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// Load is looked at this often at least.
pub const LOOK: Duration = Duration::from_secs(30);

/// What is known of the load of an SLO on demand.
#[derive(Debug)]
pub struct Load {
    /// How many instances it is to have.
    pub wanted: u32,
    /// The most packets per second for each instance with which the promise was kept.
    kept_pps: f64,
    /// Since when one instance fewer would do.
    calm: Option<Duration>,
    /// Since when the promise is kept, as long as no count of instances was known to be too low.
    kept: Option<Duration>,
    /// Whether one was.
    is_bounded: bool,
    /// How long that has to be so.
    patience: Duration,
    /// When one was taken away last.
    taken: Option<Duration>,
}

impl Load {
    fn new(wanted: u32) -> Self {
        Self { wanted, kept_pps: 0.0, calm: None, kept: None, is_bounded: false, patience: CALM, taken: None }
    }

    /// Notes what instances carry.
    fn note(&mut self, running: u32, seen: &Seen) {
        let per = seen.offered_pps / f64::from(running.max(1));
        if seen.is_short {
            self.kept_pps = self.kept_pps.min(per);
            self.is_bounded = true;
        } else if seen.is_kept {
            self.kept_pps = self.kept_pps.max(per);
        }
    }

    /// Whether one instance of these is to go.
    fn is_fewer(&mut self, count: u32, seen: &Seen, now: Duration) -> bool {
        let is_kept = count > 1 && seen.is_kept;
        let is_enough = is_kept && seen.offered_pps / f64::from(count - 1) <= GONE * self.kept_pps;
        let is_calm = has_lasted(&mut self.calm, is_enough, self.patience, now);
        let is_untried = has_lasted(&mut self.kept, is_kept && !self.is_bounded, LONGEST, now);
        if is_calm || is_untried {
            (self.calm, self.kept, self.taken) = (None, None, Some(now));
        }
        is_calm || is_untried
    }

    /// More are asked for.
    fn grow(&mut self, wanted: u32, now: Duration) {
        self.wanted = wanted;
        (self.calm, self.kept, self.is_bounded) = (None, None, true);
        if self.taken.take().is_some_and(|taken| now.saturating_sub(taken) < self.patience) {
            self.patience = (self.patience * 2).min(LONGEST);
        }
    }
}

/// Whether something has been so for this long. The clock starts when it is so first.
fn has_lasted(clock: &mut Option<Duration>, is_so: bool, time: Duration, now: Duration) -> bool {
    if !is_so {
        *clock = None;
        return false;
    }
    now.saturating_sub(*clock.get_or_insert(now)) >= time
}

/// What the nodes of an SLO report.
struct Seen {
    offered_pps: f64,
    /// Whether a node asks for another instance. What it said before its last plan does not count.
    asks: bool,
    /// Whether a node measures less than is promised, or asks for more.
    is_short: bool,
    /// Whether all measure what is promised.
    is_kept: bool,
}

impl Seen {
    fn of(board: &Board<'_>, plans: &BTreeMap<String, NodePlan>, slo: &str) -> Self {
        let nodes = board.nodes(slo);
        let said: Vec<&Use> = nodes.iter().filter_map(|node| uses(plans, node, slo)).collect();
        let here = |node: &str| board.instances(slo).filter(|(on, _)| *on == node).count() as u32;
        let asks = |node: &String| {
            let asked = uses(plans, node, slo).and_then(|one| one.asks_for);
            plans.get(node).is_some_and(is_settled) && asked.is_some_and(|asked| asked > here(node))
        };
        let has_asked = said.iter().any(|one| one.asks_for.is_some());
        Self {
            offered_pps: said.iter().map(|one| one.offered_pps).sum(),
            asks: nodes.iter().any(asks),
            is_short: has_asked || said.iter().any(|one| one.state == "violated"),
            is_kept: !has_asked && said.len() == nodes.len() && said.iter().all(|one| one.state == "kept"),
        }
    }
}

/// Whether packets are led away from an instance: to others, and not to it.
fn is_leaving(one: &Part, all: &[Part]) -> bool {
    !one.is_led && all.iter().any(|other| other.is_led)
}

/// Takes one SLO on demand a step on.
///
/// # Errors
/// Why it lacks an instance. Those that it has stay.
pub fn share(
    board: &mut Board<'_>,
    wish: &Wish<'_>,
    cap: Cap,
    plans: &BTreeMap<String, NodePlan>,
    room: &Room,
    loads: &mut BTreeMap<String, Load>,
    now: Duration,
) -> Result<(), Why> {
    let slo = wish.name();
    let before = parts(board, slo);
    let staying = before.iter().filter(|one| !is_leaving(one, &before));
    let stay = staying.clone().count() as u32;
    let running = staying.filter(|one| board.is_running(slo, one.number)).count() as u32;
    drop_lost(board, slo);
    mark_stale(board, wish);
    let seen = Seen::of(board, plans, slo);
    let load = loads.entry(slo.into()).or_insert_with(|| Load::new(stay.max(1)));
    load.note(running, &seen);
    // Beyond its load the promise ends, so nothing more is needed for it.
    let is_over = cap.load_pps.is_some_and(|most| seen.offered_pps >= most);
    if seen.asks && !is_over && stay >= load.wanted {
        load.grow(load.wanted + 1, now);
    }
    load.wanted = load.wanted.min(cap.instances.unwrap_or(u32::MAX)).max(1);
    let done = add(board, wish, load.wanted, room);
    let all = parts(board, slo);
    let good = all.iter().filter(|one| one.is_good).count() as u32;
    let do_run = all.iter().filter(|one| one.is_good).all(|one| board.is_running(slo, one.number));
    if done.is_ok() && do_run {
        if good == load.wanted && all.len() as u32 == good && load.is_fewer(good, &seen, now) {
            load.wanted -= 1;
        }
        lead_away(board, slo, load.wanted, plans);
    }
    promise(board, wish, cap);
    done
}

/// Adds instances until there are as many as are wanted.
fn add(board: &mut Board<'_>, wish: &Wish<'_>, wanted: u32, room: &Room) -> Result<(), Why> {
    let slo = wish.name();
    let footprint = Footprint { cores: wish.footprint.cores, memory_mib: u64::from(wish.footprint.memory_mib) };
    // Instances that leave do not count against the cap while others take their place.
    let cap = Cap { instances: Some(parts(board, slo).len() as u32 + 1), load_pps: None };
    let promise = Promise::OnDemand { latency_us: wish.terms.promise.latency_us(), cap };
    let asked = Terms { name: format!("{slo}+"), promise, ..wish.terms.clone() };
    while (parts(board, slo).iter().filter(|one| one.is_good).count() as u32) < wanted {
        if *room == Room::None {
            return Err(waiting());
        }
        let next = board.instances(slo).map(|(_, one)| one.number + 1).max().unwrap_or(0);
        let one_more = |open: &mut Placement| -> Result<Vec<usize>, LeaseError> {
            let (at, new) = lease(open, &asked, footprint)?;
            let mut instances = open.servers[at].instances.iter_mut();
            if let Some(one) = instances.find(|one| one.slo == asked.name && one.number == new.number) {
                (one.slo, one.number) = (slo.into(), next);
            }
            Ok(vec![at])
        };
        let added = board.add_to(slo, room, one_more, || wish.promised(None));
        added.map_err(|error| Why::new("NoRoom", with_closed(board, error.to_string())))?;
    }
    Ok(())
}

/// Leads packets away from instances that are not needed, and stops those to which none come.
fn lead_away(board: &mut Board<'_>, slo: &str, wanted: u32, plans: &BTreeMap<String, NodePlan>) {
    let all = parts(board, slo);
    let offered = |node: &str| uses(plans, node, slo).map_or(0.0, |one| one.offered_pps);
    let beside = |node: &str| all.iter().filter(|one| one.node == node).count();
    let mut order: Vec<&Part> = all.iter().collect();
    // Those that may not stay; then those that leave already; then those without packets, and those
    // beside others, whose node can lead their packets to these; then the newest.
    order.sort_by_key(|one| {
        let is_easy = offered(&one.node) <= 0.0 || beside(&one.node) > 1;
        (one.is_good, !is_leaving(one, &all), !is_easy, std::cmp::Reverse(one.number))
    });
    let going = &order[..all.len().saturating_sub(wanted as usize)];
    let goes = |number: u32| going.iter().any(|one| one.number == number);
    let is_quiet = |node: &str| all.iter().any(|one| one.node == node && !goes(one.number)) || offered(node) <= 0.0;
    let is_over = |one: &&&Part| is_leaving(one, &all) && board.is_idle(slo, one.number) && is_quiet(&one.node);
    let over: Vec<u32> = going.iter().filter(is_over).map(|one| one.number).collect();
    let left = going.len() - over.len();
    let load = |number: u32| if left > 0 && !goes(number) { 1.0 } else { 0.0 };
    let loads: BTreeMap<u32, f64> = all.iter().map(|one| (one.number, load(one.number))).collect();
    board.edit(slo, |_, one| {
        let pps = loads.get(&one.number).copied().unwrap_or(0.0);
        (one.capacity_pps, one.load_pps) = (pps, pps);
    });
    if !over.is_empty() {
        board.remove(slo, |_, one| over.contains(&one.number));
    }
}

/// Writes what each node promises: the cap less what the others have, and its part of the load.
fn promise(board: &mut Board<'_>, wish: &Wish<'_>, cap: Cap) {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (node, _) in board.instances(wish.name()) {
        *counts.entry(node.into()).or_default() += 1;
    }
    let all: u32 = counts.values().sum();
    for (node, here) in counts {
        let part = f64::from(here) / f64::from(all);
        let own = Cap {
            instances: cap.instances.map(|most| most.saturating_sub(all - here).max(here)),
            load_pps: cap.load_pps.map(|most| most * part),
        };
        let before = board.terms(&node, wish.name());
        let mut promised = match before.filter(|_| board.is_barred(wish.name(), &node)) {
            Some(before) => before.clone(),
            None => wish.promised(None),
        };
        promised.slo.promise = Promise::OnDemand { latency_us: promised.slo.promise.latency_us(), cap: own };
        board.promise(&node, wish.name(), promised);
    }
}
