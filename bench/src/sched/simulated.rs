//! What the simulator says of a variant, beside what was measured.
//!
//! The simulator ([`sluice_policy::sim`]) runs the daemon's policies (cost, weights, backpressure) on a simulated clock, and a model of how
//! NFs hand their core over. Here it is given the costs, rings and offered rates of a measured run and this host's clock rate, and
//! the difference is told: `simulated_pps` and `error_percent`, that is
//! (simulated − measured) / measured. What it does not model (caches, the manager's own cost, other load of the host) is in that error.

use sluice_policy::sim::{self, Chain, Nf, Scenario, Variant};

use crate::host;
use crate::lab::Row;
use crate::table::Column;

/// What the simulator says.
pub const SIMULATED: Column = Column::new("simulated_pps", "simulated Mpps", 1e6, 3);
/// By how much it is wrong.
pub const ERROR: Column = Column::new("error_percent", "error %", 1.0, 1);

/// Simulated time that is counted, in nanoseconds: enough for a thousand rounds of every policy.
const MEASURED_NS: u64 = 300_000_000;

/// The chains of a run on one core.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// Cycles of each NF of each chain.
    pub cycles: Vec<Vec<u64>>,
    /// Packets of each ring.
    pub ring: u32,
}

/// Adds what the simulator says to the rows that `lines` knows the chains of.
pub fn compare(rows: &mut [Row], lines: impl Fn(&Row) -> Option<Lines>) {
    let Some(hz) = host::tsc_hz() else { return };
    for row in rows {
        let Some(delivered) = row.get("delivered_pps").filter(|pps| *pps > 0.0) else { continue };
        let Some(scenario) = lines(row).and_then(|lines| scenario(row, &lines, hz)) else { continue };
        let outcome = sim::run(&scenario);
        let simulated: f64 = outcome.chains.iter().map(|chain| outcome.per_second(chain.delivered)).sum();
        row.put("simulated_pps", Some(simulated));
        row.put("error_percent", Some((simulated - delivered) / delivered * 100.0));
    }
}

/// A row's run as a scenario.
fn scenario(row: &Row, lines: &Lines, hz: f64) -> Option<Scenario> {
    let (mode, class) = row.name.split_once('/')?;
    let variant = Variant::ALL.into_iter().find(|v| v.to_string() == mode)?;
    let class = sim::Class::ALL.into_iter().find(|c| c.to_string() == class)?;
    let offered = row.get("offered_pps")? / lines.cycles.len().max(1) as f64;
    let (mut nfs, mut chains) = (Vec::new(), Vec::new());
    for cycles in &lines.cycles {
        let first = nfs.len();
        nfs.extend(cycles.iter().map(|cycles| Nf { ring: Some(lines.ring), ..Nf::fixed(0, *cycles) }));
        chains.push(Chain { nfs: (first..nfs.len()).collect(), rate_pps: offered as u64, flows: 1 });
    }
    let mut scenario = Scenario::new(nfs, chains, variant, class);
    scenario.machine.mhz = (hz / 1e6).round() as u64;
    scenario.measure_ns = MEASURED_NS;
    scenario.check().is_ok().then_some(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Sample;

    fn row(name: &str) -> Row {
        let sample = Sample::from([("delivered_pps".into(), 2e6), ("offered_pps".into(), 12e6)]);
        Row::new(name, &Default::default(), sample)
    }

    #[test]
    fn a_run_becomes_the_scenario_that_it_was() {
        let lines = Lines { cycles: vec![vec![120, 270], vec![550]], ring: 4096 };
        let got = scenario(&row("weights/rr100"), &lines, 2.6e9).unwrap();
        assert_eq!((got.class, got.machine.mhz), (sim::Class::Rr(100), 2600));
        assert_eq!(got.platform, Variant::Weights.platform());
        assert_eq!(
            got.chains.iter().map(|c| (c.nfs.clone(), c.rate_pps)).collect::<Vec<_>>(),
            [(vec![0, 1], 6_000_000), (vec![2], 6_000_000)]
        );
        assert!(got.nfs.iter().all(|nf| nf.ring == Some(4096)));
        for unknown in ["cooperative/other", "sluice/fifo", "sluice"] {
            assert_eq!(scenario(&row(unknown), &lines, 2.6e9), None, "{unknown}");
        }
    }

    #[test]
    fn the_error_is_of_what_was_measured() {
        let mut rows = vec![row("sluice/other"), row("strange")];
        compare(&mut rows, |_| Some(Lines { cycles: vec![vec![550]], ring: 1024 }));
        if host::tsc_hz().is_none() {
            println!("left out: the rate of the time-stamp counter is not known here");
            return;
        }
        let simulated = rows[0].get("simulated_pps").unwrap();
        assert!(simulated > 0.0);
        assert_eq!(rows[0].get("error_percent"), Some((simulated - 2e6) / 2e6 * 100.0));
        assert_eq!(rows[1].get("simulated_pps"), None);
    }
}
