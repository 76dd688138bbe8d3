//! Comparison of a measured variant with its simulation.
//!
//! The simulator ([`sluice_policy::sim`]) runs the daemon's policies (cost, weights, backpressure)
//! on a simulated clock, with a model of hand-over. Its input is the setup of a measured run
//! (cores, costs, rings, frames, chains and their rates) and what was measured of this host by
//! itself ([`MeasuredHost`]). Where it is not known what packets take of the manager, the input is
//! also the total offered rate, which the manager bounds. The results are `simulated_pps` and
//! `error_percent`, (simulated − measured) / measured. That error includes what the simulator does
//! not model: caches, other load of the host beyond that of the measured costs.

use std::collections::BTreeMap;
use std::ops::Range;

use sluice_policy::sim::{self, Chain, Cost, Machine, Nf, Others, Scenario, ThreadCosts, Variant};

use super::host_costs::tick_ns;
use super::packet_costs::{ManagerCosts, MeasuredCosts, NfCosts, OtherCosts};
use crate::bench::daemon::COST;
use crate::bench::lab::{Lab, Row};
use crate::bench::setup::{Service, Setup};
use crate::bench::table::Column;

pub const SIMULATED: Column = Column::new("simulated_pps", "simulated Mpps", 1e6, 3);
/// Error of the simulation.
pub const ERROR: Column = Column::new("error_percent", "error %", 1.0, 1);

/// Simulated time that is counted, in nanoseconds: enough for a thousand rounds of every policy,
/// and for some hundred other processes, so that it matters little when each of them comes.
const MEASURED_NS: u64 = 1_000_000_000;

/// What was measured of a host. What is not known is as in the simulator.
#[derive(Debug, Clone, Default)]
pub struct MeasuredHost {
    /// The frequency of the time-stamp counter; nothing is simulated without it.
    pub hz: Option<f64>,
    /// Slice of the fair classes, in nanoseconds.
    pub slice_ns: Option<u64>,
    /// Time between two ticks of the kernel, in nanoseconds.
    pub tick_ns: Option<u64>,
    pub costs: MeasuredCosts,
}

impl MeasuredHost {
    /// Of this host. The first call takes some seconds.
    pub fn here(lab: &Lab) -> Self {
        let slice = sluice_host::processes::fair_slice();
        Self {
            hz: lab.tsc_hz(),
            slice_ns: slice.and_then(|slice| u64::try_from(slice.as_nanos()).ok()),
            tick_ns: Some(tick_ns()),
            costs: MeasuredCosts::here(lab).clone(),
        }
    }

    /// Puts it into a simulated machine.
    fn apply(&self, machine: &mut Machine) {
        machine.slice_ns = self.slice_ns.unwrap_or(machine.slice_ns);
        machine.tick_ns = self.tick_ns.unwrap_or(machine.tick_ns);
        if let Some(costs) = &self.costs.host {
            machine.switch_ns = costs.switch_ns as u64;
            machine.wake_cost_ns = costs.wake_cost_ns as u64;
            machine.wake_idle_ns = costs.wake_idle_ns as u64;
            machine.wake_busy_ns = costs.wake_busy_ns as u64;
            machine.interrupt_ns = costs.interrupt_ns as u64;
        }
        if let Some(NfCosts { hop_cycles, mhz }) = self.costs.nf {
            machine.hop_cycles = hop_cycles.round() as u64;
            machine.mhz = (mhz.round() as u64).max(1);
        }
        if let Some(ManagerCosts { entry_ns, pass_ns, round_ns }) = self.costs.manager {
            machine.round_ns = (round_ns as u64).max(1);
            machine.thread = Some(ThreadCosts { entry_ns, pass_ns });
        }
        if let Some(OtherCosts { per_s, has_ns }) = self.costs.others.filter(|others| others.per_s > 0.0) {
            machine.others = Some(Others { every_ns: ((1e9 / per_s - has_ns) as u64).max(1), has_ns: has_ns as u64 });
        }
    }
}

/// Adds the simulation of `setup` to its measured row.
///
/// A row of a variant or of costs that the simulator does not know stays as it is.
pub fn compare(row: &mut Row, setup: &Setup, host: &MeasuredHost) {
    let Some(mut scenario) = host.hz.and_then(|hz| scenario(row, setup, hz, host.costs.manager.is_some())) else { return };
    host.apply(&mut scenario.machine);
    let simulated = sim::run(&scenario).total_pps();
    let delivered = row.get("delivered_pps").filter(|pps| *pps > 0.0);
    row.put("simulated_pps", Some(simulated));
    row.put("error_percent", delivered.map(|pps| (simulated - pps) / pps * 100.0));
}

/// A row's run as a scenario. `is_bounded`: by a manager whose costs are known, so that sources
/// send what they are set to; else what was offered.
fn scenario(row: &Row, setup: &Setup, hz: f64, is_bounded: bool) -> Option<Scenario> {
    let (variant, class) = row.name.split_once('/')?;
    let variant = Variant::ALL.into_iter().find(|v| v.to_string() == variant)?;
    let class = class_of(class)?;
    let (mut nfs, mut cores) = (Vec::new(), Vec::new());
    let mut of_service: BTreeMap<&str, Range<usize>> = BTreeMap::new();
    for service in &setup.services {
        let core = cores.iter().position(|core| *core == service.core).unwrap_or_else(|| {
            cores.push(service.core);
            cores.len() - 1
        });
        let first = nfs.len();
        nfs.extend(stages(service)?.into_iter().map(|cost| Nf { cost, ring: Some(service.ring), ..Nf::fixed(core, 0) }));
        // Only the ideal calls several handlers in one process.
        if nfs.len() > first + 1 && variant != Variant::Ideal {
            return None;
        }
        of_service.insert(&service.name, first..nfs.len());
    }
    let wanted: f64 = setup.traffic.iter().map(|traffic| traffic.rate).sum();
    let part = if is_bounded { 1.0 } else { row.get("offered_pps")? / wanted };
    let chain = |chain: &crate::bench::setup::Chain| {
        let traffic = setup.traffic.iter().find(|traffic| traffic.chain == chain.name)?;
        let nfs = chain.services.iter().map(|name| of_service.get(name.as_str()).cloned()).collect::<Option<Vec<_>>>()?;
        Some(Chain { nfs: nfs.into_iter().flatten().collect(), rate_pps: (traffic.rate * part) as u64, flows: traffic.flows })
    };
    let chains = setup.chains.iter().map(chain).collect::<Option<_>>()?;
    let mut scenario = Scenario::new(nfs, chains, variant, class);
    scenario.machine.mhz = (hz / 1e6).round() as u64;
    scenario.machine.frames = Some(setup.frames);
    scenario.measure_ns = MEASURED_NS;
    scenario.check().is_ok().then_some(scenario)
}

/// The class of a word such as `batch` or `rr4`.
fn class_of(word: &str) -> Option<sim::Class> {
    match word {
        "other" => Some(sim::Class::Other),
        "batch" => Some(sim::Class::Batch),
        _ => word.strip_prefix("rr")?.parse().ok().map(sim::Class::Rr),
    }
}

/// Packet cost in each stage of a service, unless it depends on the flow or on a signal.
fn stages(service: &Service) -> Option<Vec<Cost>> {
    if service.exec != COST || service.args.iter().any(|arg| arg == "--pick") {
        return None;
    }
    let cost = |list: &str| match list.split(',').map(|cycles| cycles.parse().ok()).collect::<Option<Vec<u64>>>()?[..] {
        [cycles] => Some(Cost::Fixed(cycles)),
        ref drawn => Some(Cost::Random(drawn.to_vec())),
    };
    service.args.windows(2).filter(|pair| pair[0] == "--cycles").map(|pair| cost(&pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Sample;
    use crate::bench::sched::host_costs::HostCosts;
    use crate::bench::sched::{self, HopSpec, chain_of, nf, nf_of, traffic_to};

    fn row(name: &str) -> Row {
        let sample = Sample::from([("delivered_pps".into(), 2e6), ("offered_pps".into(), 12e6)]);
        Row::new(name, &Default::default(), sample)
    }

    /// Chains c1, c2, … over services, with rates.
    fn setup(services: Vec<Service>, chains: &[(&[&str], f64)]) -> Setup {
        let mut setup = Setup { services, ..Setup::default() };
        for ((services, rate), i) in chains.iter().zip(1..) {
            setup.traffic.push(traffic_to(&format!("c{i}"), *rate));
            setup.chains.push(chain_of(&format!("c{i}"), services));
        }
        setup
    }

    fn cores_and_costs(scenario: &Scenario) -> Vec<(usize, Cost)> {
        scenario.nfs.iter().map(|nf| (nf.core, nf.cost.clone())).collect()
    }

    fn nfs_and_rates(scenario: &Scenario) -> Vec<(Vec<usize>, u64)> {
        scenario.chains.iter().map(|chain| (chain.nfs.clone(), chain.rate_pps)).collect()
    }

    #[test]
    fn a_run_becomes_the_scenario_that_it_was() {
        let mut services = vec![nf_of("nf1", 1, 120), nf_of("nf2", 1, 270)];
        services.iter_mut().for_each(|service| service.ring = 4096);
        let setup = setup(services, &[(&["nf1", "nf2"], 15e6)]);
        let got = scenario(&row("weights/rr100"), &setup, 2.6e9, false).unwrap();
        assert_eq!((got.class, got.machine.mhz, got.machine.cores), (sim::Class::Rr(100), 2600, 1));
        assert_eq!(got.platform, Variant::Weights.platform());
        assert_eq!(cores_and_costs(&got), [(0, Cost::Fixed(120)), (0, Cost::Fixed(270))]);
        assert_eq!(nfs_and_rates(&got), [(vec![0, 1], 12_000_000)], "what was offered counts");
        assert!(got.nfs.iter().all(|nf| nf.ring == Some(4096)));
        assert_eq!(scenario(&row("nfvnice/rr4"), &setup, 2.6e9, false).map(|got| got.class), Some(sim::Class::Rr(4)));
        for unknown in ["cooperative/other", "sluice/fifo", "sluice/rr", "sluice"] {
            assert_eq!(scenario(&row(unknown), &setup, 2.6e9, false), None, "{unknown}");
        }
    }

    #[test]
    fn cores_are_numbered_in_the_order_of_their_use() {
        let services = vec![nf_of("nf1", 5, 550), nf_of("nf2", 3, 2200), nf_of("nf3", 5, 4500)];
        let got = scenario(&row("default/other"), &setup(services, &[(&["nf1", "nf2", "nf3"], 1e6)]), 2e9, false).unwrap();
        assert_eq!(got.nfs.iter().map(|nf| nf.core).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(got.machine.cores, 2);
    }

    #[test]
    fn nfs_can_be_shared_and_rates_uneven() {
        let services = vec![nf_of("a", 1, 270), nf_of("b", 1, 120), nf_of("d", 1, 300)];
        let setup = setup(services, &[(&["a", "b", "d"], 6e6), (&["d", "a"], 6e6), (&["b"], 3e6)]);
        let got = scenario(&row("sluice/batch"), &setup, 2e9, false).unwrap();
        assert_eq!(nfs_and_rates(&got), [(vec![0, 1, 2], 4_800_000), (vec![2, 0], 4_800_000), (vec![1], 2_400_000)]);
    }

    #[test]
    fn a_list_is_drawn_from_and_the_ideal_has_a_stage_for_each_hop() {
        let drawn = Cost::Random(vec![120, 550]);
        let list = nf("nf1", 1, &["--cycles", "120,550", "--seed", "1"]);
        let got = scenario(&row("default/other"), &setup(vec![list], &[(&["nf1"], 1e6)]), 2e9, false).unwrap();
        assert_eq!(cores_and_costs(&got), [(0, drawn.clone())]);
        let hops = [HopSpec { cycles: vec![120, 550], ..HopSpec::new(1, 1, 0) }, HopSpec::new(2, 1, 270)];
        let ideal = setup(vec![sched::stages("ideal", 1, &hops)], &[(&["ideal"], 1e6), (&["ideal"], 1e6)]);
        let got = scenario(&row("ideal/other"), &ideal, 2e9, false).unwrap();
        assert_eq!(cores_and_costs(&got), [(0, drawn), (0, Cost::Fixed(270))]);
        assert_eq!(nfs_and_rates(&got), [(vec![0, 1], 6_000_000), (vec![0, 1], 6_000_000)]);
        assert!(got.platform.fused);
        assert_eq!(scenario(&row("sluice/other"), &ideal, 2e9, false), None, "NFs of one process are the ideal's");
    }

    #[test]
    fn what_it_cannot_know_is_not_simulated() {
        let signal = nf("nf1", 1, &["--cycles", "1,2", "--pick", "signal"]);
        let logger = Service { exec: "sluice-nf-logger".into(), ..nf_of("nf1", 1, 1) };
        for service in [signal, logger] {
            assert_eq!(scenario(&row("sluice/other"), &setup(vec![service], &[(&["nf1"], 1e6)]), 2e9, false), None);
        }
        let mut silent = setup(vec![nf_of("nf1", 1, 1)], &[(&["nf1"], 1e6)]);
        silent.traffic.clear();
        assert_eq!(scenario(&row("sluice/other"), &silent, 2e9, false), None);
    }

    #[test]
    fn the_error_is_of_what_was_measured() {
        let setup = setup(vec![nf_of("nf1", 1, 550)], &[(&["nf1"], 15e6)]);
        let mut known = row("sluice/other");
        let host = MeasuredHost { hz: Some(2.3e9), ..MeasuredHost::default() };
        compare(&mut known, &setup, &host);
        let simulated = known.get("simulated_pps").unwrap();
        // 2.3 GHz by 550 cycles in the handler and 25 beside it.
        assert!((simulated / 4e6 - 1.0).abs() < 0.02, "{simulated}");
        assert_eq!(known.get("error_percent"), Some((simulated - 2e6) / 2e6 * 100.0));
        let mut starved = row("sluice/other");
        starved.put("delivered_pps", Some(0.0));
        compare(&mut starved, &setup, &host);
        assert_eq!((starved.get("simulated_pps"), starved.get("error_percent")), (Some(simulated), None));
        for (name, hz) in [("strange", Some(2.3e9)), ("sluice/other", None)] {
            let mut unknown = row(name);
            compare(&mut unknown, &setup, &MeasuredHost { hz, ..MeasuredHost::default() });
            assert_eq!(unknown, row(name));
        }
    }

    #[test]
    fn what_was_measured_of_the_host_goes_into_the_machine() {
        let costs = HostCosts { switch_ns: 1.0, wake_cost_ns: 2.0, wake_idle_ns: 3.0, wake_busy_ns: 4.0, interrupt_ns: 5.0 };
        let manager = ManagerCosts { entry_ns: 6.0, pass_ns: 7.0, round_ns: 8.0 };
        let nf = NfCosts { hop_cycles: 29.6, mhz: 2399.7 };
        let others = Some(OtherCosts { per_s: 200.0, has_ns: 11.0 });
        let costs = MeasuredCosts { host: Some(costs), nf: Some(nf), manager: Some(manager), others, unset: Vec::new() };
        let mut host = MeasuredHost { hz: None, slice_ns: Some(9), tick_ns: Some(10), costs };
        let mut machine = Machine::default();
        host.apply(&mut machine);
        let wanted = Machine {
            switch_ns: 1,
            wake_cost_ns: 2,
            wake_idle_ns: 3,
            wake_busy_ns: 4,
            interrupt_ns: 5,
            thread: Some(ThreadCosts { entry_ns: 6.0, pass_ns: 7.0 }),
            hop_cycles: 30,
            mhz: 2400,
            round_ns: 8,
            slice_ns: 9,
            tick_ns: 10,
            others: Some(Others { every_ns: 4_999_989, has_ns: 11 }),
            ..Machine::default()
        };
        assert_eq!(machine, wanted);
        host.costs.others = Some(OtherCosts { per_s: 0.0, has_ns: 0.0 });
        let mut machine = Machine::default();
        host.apply(&mut machine);
        assert_eq!(machine, Machine { others: None, ..wanted });
        let mut machine = Machine::default();
        MeasuredHost::default().apply(&mut machine);
        assert_eq!(machine, Machine::default());
    }

    #[test]
    fn a_manager_of_known_costs_bounds_what_sources_send() {
        let setup = setup(vec![nf_of("nf1", 1, 120)], &[(&["nf1"], 15e6)]);
        let got = scenario(&row("default/other"), &setup, 2e9, true).unwrap();
        assert_eq!(nfs_and_rates(&got), [(vec![0], 15_000_000)]);
        assert_eq!(got.machine.frames, Some(setup.frames));
    }
}
