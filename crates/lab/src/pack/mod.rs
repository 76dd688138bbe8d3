//! Assignment of a running daemon's NFs to cores, by their measured loads.
//!
//! Loads are those of [`Nf::load`], which include wake-ups and switches, over several readings
//! ([`over`]). A single reading covers only the last milliseconds, in which a generator or the
//! manager may have had its core alone; plans by that would move NFs to and fro. The decision is
//! made by [`sluice_policy::plan::packing`]. A move works like an upgrade: an instance on the new
//! core replaces the old one, and no packet is lost or reordered. The old one's flow state is not
//! handed over.
//!
//! The group of a fused chain is one instance, with the load of all its parts: they stay together.
//!
//! Instances that attach themselves, foreign ones, and those with a flow of their own stay in
//! place; so do those of inline chains, which are on the cores of their packet threads. Instances
//! on cores outside the plan are ignored. A core is closed to others if such instances alone exceed
//! its planned load (a polling program is always busy).

pub mod command;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_policy::plan::packing::{self, Cores, Item, PackingError};

use sluice_api::model::{Nf, NfSched, NfState, Stats};

/// Loads closer than this are equal, in cores.
const ROUNDING: f64 = 1e-9;

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Cores for NFs; if empty, those of all services, without the manager's.
    pub cores: Vec<usize>,
    /// Part of each core to keep free, 0 to 1.
    pub margin: f64,
    /// Services that are slow with cold caches.
    pub sensitive: Vec<String>,
}

/// A planned move of an NF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    pub nf: String,
    pub service: String,
    pub from: usize,
    pub to: usize,
}

/// A core in the plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Core {
    pub core: usize,
    /// Load of its NFs, in cores.
    pub load: f64,
    pub nfs: Vec<String>,
}

/// An assignment of NFs to cores.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Packing {
    pub cores_now: usize,
    /// Whether no core exceeds its allowed load now.
    pub fits_now: bool,
    pub cores_needed: usize,
    /// Whether that number is proved to be the least.
    pub is_least: bool,
    /// Pairs of sensitive NFs that would share a core.
    pub conflicts: usize,
    /// Cores in use after the moves.
    pub cores: Vec<Core>,
    /// Moves, in an order that overloads no core longer than it is.
    pub moves: Vec<Move>,
}

impl Packing {
    /// Whether moves pay off: a core is overloaded, or one can be freed.
    pub fn is_worth_it(&self) -> bool {
        !self.moves.is_empty() && (!self.fits_now || self.cores_needed < self.cores_now)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("{0} is coming, going, or not known for long enough; wait until it has settled")]
    Unsettled(String),
    #[error("no NF is running; start some first")]
    Nothing,
    #[error("the cost of a packet is unknown for {}: run them under load, or measure them with `sluice estimate --keep` before they start", .0.join(", "))]
    Unknown(Vec<String>),
    #[error("there is no service {0}")]
    NoService(String),
    #[error("a margin of {0} leaves nothing to use; give percent from 0 to 90")]
    Margin(f64),
    #[error("all cores of the services are the manager's; name cores for NFs with --cores")]
    NoCores,
    #[error("{nf} needs {load:.2} cores by itself, and a core may be planned up to {capacity:.2}: {}", remedy(*.is_group))]
    TooBig {
        nf: String,
        load: f64,
        /// Largest load of a core.
        capacity: f64,
        /// Whether it is the group of a fused chain.
        is_group: bool,
    },
    /// The measured load is no valid number.
    #[error("{nf} is said to need {load} cores, which cannot be; wait for new measurements")]
    Load { nf: String, load: f64 },
    /// It cannot be moved, and its core is not one for NFs.
    #[error("{0} cannot be moved, and its core is not among those for NFs: add that with --cores")]
    Pinned(String),
    #[error(transparent)]
    Packing(#[from] PackingError),
}

fn remedy(is_group: bool) -> &'static str {
    match is_group {
        true => "give its parts more instances, or write run = \"isolated\" for its chain, whose NFs then take several cores",
        false => "add instances of its service",
    }
}

impl PackError {
    /// Whether the same request may succeed later.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unsettled(_) | Self::Nothing | Self::Unknown(_) => true,
            Self::TooBig { .. } | Self::Load { .. } | Self::Packing(_) => true,
            Self::NoService(_) | Self::Margin(_) | Self::NoCores | Self::Pinned(_) => false,
        }
    }
}

/// The last of some readings, with each NF's mean rate and CPU time and median cost over all of
/// them.
///
/// # Errors
/// [`PackError::Unsettled`] if an NF was not running in each of them, or its CPU time is not known
/// yet; [`PackError::Nothing`] without readings.
pub fn over(readings: Vec<Stats>) -> Result<Stats, PackError> {
    let mut seen: BTreeMap<String, Vec<(NfSched, f64)>> = BTreeMap::new();
    // Packets alone underestimate an NF that sleeps and has packets, so its CPU time is needed. It
    // is unavailable for a process that is not visible from here (reported as process 1, or none).
    let is_known = |nf: &Nf| {
        let is_seen = nf.mode == "sleep" && nf.pid.is_some_and(|pid| pid > 1);
        nf.cpu_percent > 0.0 || nf.sched.arrival_pps < 1.0 || !is_seen
    };
    for nf in readings.iter().flat_map(|stats| &stats.nfs) {
        // An NF that is awaited, or has failed for good, is not planned for.
        if matches!(nf.state, NfState::Expected | NfState::Failed) {
            continue;
        }
        let known = seen.entry(nf.name.clone()).or_default();
        if nf.state == NfState::Running && is_known(nf) {
            known.push((nf.sched, nf.cpu_percent));
        }
    }
    if let Some((name, _)) = seen.iter().find(|(_, known)| known.len() != readings.len()) {
        return Err(PackError::Unsettled(name.clone()));
    }
    let mut last = readings.into_iter().next_back().ok_or(PackError::Nothing)?;
    for nf in &mut last.nfs {
        let Some(known) = seen.get(&nf.name) else { continue };
        let mean = |of: fn(&(NfSched, f64)) -> f64| known.iter().map(of).sum::<f64>() / known.len() as f64;
        (nf.sched.arrival_pps, nf.cpu_percent) = (mean(|(sched, _)| sched.arrival_pps), mean(|(_, cpu)| *cpu));
        // 0 before its first sample, which is no measurement.
        let median = |cost: fn(&NfSched) -> f64| {
            let mut costs: Vec<f64> = known.iter().map(|(sched, _)| cost(sched)).filter(|ns| *ns > 0.0).collect();
            costs.sort_by(f64::total_cmp);
            costs.get(costs.len() / 2).copied().unwrap_or(0.0)
        };
        nf.sched.service_ns = median(|sched| sched.service_ns);
        nf.sched.outside_ns = median(|sched| sched.outside_ns);
    }
    Ok(last)
}

/// Plans for the running NFs.
pub fn plan(stats: &Stats, request: &Request) -> Result<Packing, PackError> {
    if !(0.0..=0.9).contains(&request.margin) {
        return Err(PackError::Margin(request.margin));
    }
    if let Some(unknown) = request.sensitive.iter().find(|name| stats.services.iter().all(|s| s.name != **name)) {
        return Err(PackError::NoService(unknown.clone()));
    }
    let nfs: Vec<&Nf> = stats.nfs.iter().filter(|nf| nf.state == NfState::Running).collect();
    if nfs.is_empty() {
        return Err(PackError::Nothing);
    }
    let capacity = 1.0 - request.margin;
    let moves = |nf: &Nf| stats.services.iter().any(|s| s.name == nf.service && s.moves);
    let mut numbers = cores(stats, request)?;
    let is_left_out = |nf: &Nf, numbers: &[usize]| !moves(nf) && !numbers.contains(&(nf.core as usize));
    let has_unknown_cost = |nf: &&&Nf| nf.sched.arrival_pps >= 1.0 && nf.cost_ns() <= 0.0;
    let unknown: Vec<String> =
        nfs.iter().filter(|nf| !is_left_out(nf, &numbers)).filter(has_unknown_cost).map(|nf| nf.name.clone()).collect();
    if !unknown.is_empty() {
        return Err(PackError::Unknown(unknown));
    }
    numbers.retain(|core| {
        let stays = nfs.iter().filter(|nf| nf.core as usize == *core && !moves(nf)).map(|nf| nf.load()).sum::<f64>();
        // An invalid load is reported below.
        stays <= capacity + ROUNDING || !stays.is_finite()
    });
    let place = |core: u32| numbers.iter().position(|number| *number == core as usize);
    let (others, nfs): (Vec<&Nf>, Vec<&Nf>) = nfs.into_iter().partition(|nf| is_left_out(nf, &numbers));
    let items: Vec<Item> = nfs
        .iter()
        .map(|nf| Item {
            load: nf.load(),
            sensitive: services_of(nf).any(|service| request.sensitive.contains(service)),
            at: place(nf.core),
            pinned: !moves(nf),
        })
        .collect();
    let all = Cores { count: numbers.len(), capacity };
    let now = packing::as_it_is(&items, all);
    let packed = packing::pack(&items, all).map_err(|error| match error {
        PackingError::TooBig { item, load, capacity } => {
            PackError::TooBig { nf: nfs[item].name.clone(), load, capacity, is_group: !nfs[item].parts.is_empty() }
        }
        PackingError::Load { item, load } => PackError::Load { nf: nfs[item].name.clone(), load },
        PackingError::Pinned { item } => PackError::Pinned(nfs[item].name.clone()),
        other @ PackingError::TooMuch { .. } => other.into(),
    })?;

    let placed: Vec<(usize, &Nf)> = nfs.iter().zip(&packed.at).map(|(nf, at)| (numbers[*at], *nf)).collect();
    let cores = loaded(placed.iter().copied().chain(others.iter().map(|nf| (nf.core as usize, *nf))));
    let cores_now: BTreeSet<u32> = nfs.iter().chain(&others).map(|nf| nf.core).collect();
    Ok(Packing {
        cores_now: cores_now.len(),
        fits_now: now.is_some(),
        cores_needed: cores.len(),
        is_least: packed.is_least,
        conflicts: packed.conflicts,
        cores,
        moves: lightest_first(placed),
    })
}

/// Moves of NFs to their cores, the lightest first: a moved NF runs in two places for a moment.
fn lightest_first(mut placed: Vec<(usize, &Nf)>) -> Vec<Move> {
    placed.retain(|(to, nf)| *to != nf.core as usize);
    placed.sort_by(|a, b| a.1.load().total_cmp(&b.1.load()));
    let step = |(to, nf): (usize, &Nf)| Move { nf: nf.name.clone(), service: nf.service.clone(), from: nf.core as usize, to };
    placed.into_iter().map(step).collect()
}

/// Cores with their assigned NFs.
fn loaded<'a>(placed: impl Iterator<Item = (usize, &'a Nf)>) -> Vec<Core> {
    let mut then: BTreeMap<usize, Vec<&Nf>> = BTreeMap::new();
    for (core, nf) in placed {
        then.entry(core).or_default().push(nf);
    }
    let core = |(core, nfs): (usize, Vec<&Nf>)| Core {
        core,
        load: nfs.iter().map(|nf| nf.load()).sum(),
        nfs: nfs.iter().map(|nf| nf.name.clone()).collect(),
    };
    then.into_iter().map(core).collect()
}

/// The service of an NF, and those of its parts.
fn services_of(nf: &Nf) -> impl Iterator<Item = &String> {
    nf.parts.iter().map(|part| &part.service).chain([&nf.service])
}

/// The cores for NFs.
fn cores(stats: &Stats, request: &Request) -> Result<Vec<usize>, PackError> {
    let mut cores: BTreeSet<usize> = request.cores.iter().copied().collect();
    if cores.is_empty() {
        // A service that is a part and no more runs where its group does.
        let is_part = |name: &String| stats.nfs.iter().any(|nf| nf.parts.iter().any(|part| part.service == *name));
        let has_own = |name: &String| stats.nfs.iter().any(|nf| nf.service == *name);
        let services = stats.services.iter().filter(|service| has_own(&service.name) || !is_part(&service.name));
        cores.extend(services.flat_map(|service| service.cores.iter().copied()));
        stats.status.threads.iter().for_each(|thread| _ = cores.remove(&(thread.core as usize)));
    }
    if cores.is_empty() { Err(PackError::NoCores) } else { Ok(cores.into_iter().collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::model::{NfPart, Service, Status, Thread};

    fn nf(name: &str, core: u32, arrival_pps: f64, service_ns: f64) -> Nf {
        let service = name.split('.').next().unwrap().to_string();
        let sched = NfSched { arrival_pps, service_ns, ..NfSched::default() };
        Nf { name: name.into(), service, core, state: NfState::Running, sched, ..Nf::default() }
    }

    /// Services a, b, c, … of the NFs, on cores 0 to 3, the first of which is the manager's.
    fn stats(nfs: Vec<Nf>) -> Stats {
        let mut services: Vec<Service> = Vec::new();
        for nf in &nfs {
            if services.iter().all(|s| s.name != nf.service) {
                services.push(Service { name: nf.service.clone(), cores: vec![0, 1, 2, 3], moves: true, ..Service::default() });
            }
        }
        let status = Status { threads: vec![Thread { core: 0, ..Thread::default() }], ..Status::default() };
        Stats { nfs, services, status, ..Stats::default() }
    }

    fn request() -> Request {
        Request { cores: Vec::new(), margin: 0.1, sensitive: Vec::new() }
    }

    fn moves(plan: &Packing) -> Vec<(&str, usize, usize)> {
        plan.moves.iter().map(|m| (m.nf.as_str(), m.from, m.to)).collect()
    }

    #[test]
    fn what_fits_on_fewer_cores_is_brought_together() {
        // 0.3, 0.2 and 0.1 cores, on separate cores.
        let stats = stats(vec![nf("a.0", 1, 1e6, 300.0), nf("b.0", 2, 1e6, 200.0), nf("c.0", 3, 1e6, 100.0)]);
        let plan = plan(&stats, &request()).unwrap();
        assert_eq!((plan.cores_now, plan.fits_now, plan.cores_needed, plan.is_least), (3, true, 1, true));
        assert_eq!(moves(&plan), [("c.0", 3, 1), ("b.0", 2, 1)]);
        assert!(plan.is_worth_it());
        assert!((plan.cores[0].load - 0.6).abs() < 1e-9 && plan.cores.len() == 1);
    }

    /// The group of services a and b, which name core 2, and an NF of service c.
    fn grouped(name: &str, core: u32, service_ns: f64) -> Stats {
        let part = |service: &str| NfPart { service: service.into(), packet_ns: Some(service_ns / 2.0), ..NfPart::default() };
        let service = name.rsplit_once('.').unwrap().0.to_string();
        let group = Nf { parts: vec![part("a"), part("b")], service, ..nf(name, core, 1e6, service_ns) };
        let mut stats = stats(vec![group, nf("c.0", 3, 1e6, 300.0)]);
        let part = |name: &str| Service { name: name.into(), cores: vec![2], moves: true, ..Service::default() };
        stats.services.extend(["a", "b"].map(part));
        stats.services[0].cores = vec![1];
        stats.services[1].cores = vec![3];
        stats
    }

    #[test]
    fn a_fused_chain_is_one_thing_to_place() {
        let stats = grouped("web.fused.0", 1, 400.0);
        let together = plan(&stats, &request()).unwrap();
        assert_eq!((together.cores_now, together.cores_needed), (2, 1));
        assert_eq!(moves(&together), [("c.0", 3, 1)]);
        assert!((together.cores[0].load - 0.7).abs() < 1e-9, "both parts count");
        // A core that only parts name is none for NFs.
        let crowded = plan(&grouped("web.fused.0", 1, 800.0), &request()).unwrap();
        assert!(crowded.cores.iter().all(|core| [1, 3].contains(&core.core)), "{crowded:?}");
        // Too much for a core, it cannot be divided.
        let error = plan(&grouped("web.fused.0", 1, 1200.0), &request()).unwrap_err().to_string();
        assert!(error.contains("web.fused.0 needs 1.20 cores") && error.contains("run = \"isolated\""), "{error}");
        // A sensitive part makes its group sensitive.
        let sensitive = Request { sensitive: vec!["b".into(), "c".into()], cores: vec![1], ..request() };
        assert_eq!(plan(&stats, &sensitive).unwrap().conflicts, 1);
    }

    #[test]
    fn an_inline_chain_stays_in_its_packet_thread() {
        let mut stats = grouped("web.inline.0", 0, 400.0);
        stats.services[0] = Service { cores: vec![0], moves: false, ..stats.services[0].clone() };
        stats.nfs[0].mode = "inline".into();
        let all = over(vec![stats.clone(), stats]).unwrap();
        let got = plan(&all, &request()).unwrap();
        assert_eq!((got.moves.len(), got.cores_now, got.cores_needed), (0, 2, 2), "{got:?}");
        // NFs may come to its core if that is named.
        let named = Request { cores: vec![0], ..request() };
        assert_eq!(moves(&plan(&all, &named).unwrap()), [("c.0", 3, 0)]);
    }

    #[test]
    fn a_moment_moves_nobody() {
        // Two NFs of 0.3 cores each; in one reading of five, waiting packets came all at once.
        let reading = |pps: f64, ns: f64| stats(vec![nf("a.0", 1, pps, ns), nf("b.0", 1, 1e6, 300.0)]);
        let calm = || reading(1e6, 300.0);
        assert!(plan(&reading(2.5e6, 300.0), &request()).unwrap().is_worth_it(), "by this alone they would be spread");
        let all = over(vec![calm(), reading(2.5e6, 300.0), calm(), reading(1e6, 9000.0), reading(1e6, 0.0)]).unwrap();
        assert_eq!((all.nfs[0].sched.arrival_pps, all.nfs[0].sched.service_ns), (1.3e6, 300.0));
        assert!(!plan(&all, &request()).unwrap().is_worth_it());
        // An NF that is not always there is not planned for, and prevents a plan.
        let mut comes = calm();
        comes.nfs[1].state = NfState::Starting;
        let mut gone = calm();
        gone.nfs.pop();
        for other in [comes, gone] {
            assert!(matches!(over(vec![other, calm()]), Err(error @ PackError::Unsettled(_)) if error.passes()));
        }
        // One that is not expected soon is left out.
        let mut failed = calm();
        failed.nfs.push(Nf { state: NfState::Failed, ..nf("c.0", 1, 0.0, 0.0) });
        assert_eq!(over(vec![failed.clone(), failed]).unwrap().nfs.len(), 3);
        assert!(matches!(over(Vec::new()), Err(PackError::Nothing)));
    }

    #[test]
    fn what_is_too_much_for_a_core_is_spread_and_what_fits_is_left_alone() {
        let crowded = stats(vec![nf("a.0", 1, 1e6, 600.0), nf("b.0", 1, 1e6, 500.0)]);
        let spread = plan(&crowded, &request()).unwrap();
        assert!(!spread.fits_now && spread.is_worth_it());
        assert_eq!((spread.cores_now, spread.cores_needed, spread.moves.len()), (1, 2, 1));
        let well = stats(vec![nf("a.0", 1, 1e6, 600.0), nf("b.0", 2, 1e6, 500.0)]);
        let stay = plan(&well, &request()).unwrap();
        assert!(stay.moves.is_empty() && stay.fits_now && !stay.is_worth_it());
    }

    #[test]
    fn one_that_cannot_be_moved_stays_and_the_managers_core_is_left_out() {
        let mut stats = stats(vec![nf("a.0", 2, 1e6, 100.0), nf("b.0", 0, 1e6, 100.0)]);
        stats.services[0].moves = false;
        let plan = plan(&stats, &request()).unwrap();
        assert_eq!(moves(&plan), [("b.0", 0, 2)]);
        // Given explicitly, the manager's core is one like any.
        let all = Request { cores: vec![0, 2], ..request() };
        assert_eq!(moves(&super::plan(&stats, &all).unwrap()), [("b.0", 0, 2)]);
    }

    #[test]
    fn one_that_stays_on_a_core_that_is_not_for_others_is_no_reason_against_a_plan() {
        // A polling program, always busy, on a core of the list, and one of unknown cost on the
        // manager's.
        let mut all = vec![nf("a.0", 1, 1e6, 990.0), nf("b.0", 0, 1e6, 0.0), nf("c.0", 2, 1e6, 300.0), nf("d.0", 3, 1e6, 200.0)];
        let planned = |all: &[Nf]| {
            let mut stats = stats(all.to_vec());
            stats.services[..2].iter_mut().for_each(|service| service.moves = false);
            plan(&stats, &request())
        };
        let got = planned(&all).unwrap();
        assert_eq!(moves(&got), [("d.0", 3, 2)]);
        assert_eq!((got.cores_now, got.fits_now, got.cores_needed), (4, true, 3));
        assert_eq!(got.cores.iter().map(|core| (core.core, core.nfs.len())).collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 2)]);
        // The NF beside the polling one has to leave.
        all[3].core = 1;
        let got = planned(&all).unwrap();
        assert_eq!((moves(&got), got.fits_now), (vec![("d.0", 1, 2)], false));
        // No other NF is there: there is nothing to do.
        let got = planned(&all[..2]).unwrap();
        assert_eq!((got.moves.len(), got.fits_now, got.is_worth_it(), got.cores_needed), (0, true, false, 2));
        // With the list's cores all closed, there is no room.
        all[3].core = 3;
        let list = Request { cores: vec![1], ..request() };
        let mut stats = stats(all);
        stats.services[..2].iter_mut().for_each(|service| service.moves = false);
        assert!(plan(&stats, &list).unwrap_err().to_string().contains("add cores"));
    }

    #[test]
    fn a_packet_costs_the_core_what_is_seen_from_outside_if_that_is_more() {
        let reading = |outside_ns: f64| {
            let mut stats = stats(vec![nf("a.0", 1, 1e6, 300.0), nf("b.0", 2, 1e6, 500.0)]);
            stats.nfs[0].sched.outside_ns = outside_ns;
            stats
        };
        let load = |stats: &Stats| plan(stats, &request()).unwrap().cores.iter().map(|core| core.load).sum::<f64>();
        assert!((load(&reading(350.0)) - 0.85).abs() < 1e-9);
        assert!((load(&reading(250.0)) - 0.8).abs() < 1e-9, "it was told in other turns");
        let all = over(vec![reading(350.0), reading(0.0), reading(340.0), reading(9000.0)]).unwrap();
        assert_eq!((all.nfs[0].sched.service_ns, all.nfs[0].sched.outside_ns), (300.0, 350.0));
        // Known from outside alone.
        let mut only = reading(350.0);
        only.nfs[0].sched.service_ns = 0.0;
        assert!((load(&only) - 0.85).abs() < 1e-9);
    }

    #[test]
    fn an_nf_that_wakes_often_has_the_load_that_it_really_is() {
        // By its packets each needs 0.003 of a core; the kernel counts 39 %.
        let woken = |name: &str, core: u32, cpu_percent: f64| Nf {
            cpu_percent,
            mode: "sleep".into(),
            pid: Some(7),
            ..nf(name, core, 1e5, 30.0)
        };
        let reading = |cpu: f64| stats(vec![woken("a.0", 1, cpu), woken("b.0", 2, cpu), woken("c.0", 3, cpu)]);
        let all = over(vec![reading(38.0), reading(40.0)]).unwrap();
        let got = plan(&all, &request()).unwrap();
        assert_eq!((got.cores_needed, moves(&got).len()), (2, 1), "{got:?}");
        assert!((got.cores.iter().map(|core| core.load).sum::<f64>() - 3.0 * 0.39).abs() < 1e-9, "{got:?}");
        // Without a known CPU time, there is no plan.
        assert!(matches!(over(vec![reading(0.0), reading(39.0)]), Err(PackError::Unsettled(_))));
        // A polling NF is always busy, and is planned for by its packets.
        let mut polls = reading(100.0);
        polls.nfs.iter_mut().for_each(|nf| nf.mode = "poll".into());
        assert_eq!(plan(&over(vec![polls]).unwrap(), &request()).unwrap().cores_needed, 1);
    }

    #[test]
    fn what_cannot_be_planned_is_said() {
        let one = |pps, ns| stats(vec![nf("a.0", 1, pps, ns)]);
        let refusal = |stats: &Stats, request: &Request| plan(stats, request).unwrap_err().to_string();
        assert!(refusal(&Stats::default(), &request()).contains("no NF is running"));
        assert!(refusal(&one(1e6, 0.0), &request()).contains("unknown for a.0"));
        assert!(refusal(&one(1e6, 950.0), &request()).contains("a.0 needs 0.95 cores"));
        assert!(refusal(&one(1e6, 9.0), &Request { margin: 0.95, ..request() }).contains("margin"));
        assert!(refusal(&one(f64::INFINITY, 9.0), &request()).contains("a.0 is said to need inf cores"));
        let mut stays = one(f64::INFINITY, 9.0);
        stays.services[0].moves = false;
        assert!(refusal(&stays, &request()).contains("a.0 is said to need inf cores"));
        assert!(refusal(&one(1e6, 9.0), &Request { sensitive: vec!["x".into()], ..request() }).contains("no service x"));
        let full = stats((0..9).map(|i| nf(&format!("a.{i}"), 1, 1e6, 800.0)).collect());
        assert!(refusal(&full, &request()).contains("add cores"));
        let mut managers = one(1e6, 9.0);
        managers.services[0].cores = vec![0];
        assert!(refusal(&managers, &request()).contains("--cores"));
        // Without packets no cost has to be known.
        assert_eq!(plan(&one(0.0, 0.0), &request()).unwrap().cores_needed, 1);
    }
}
