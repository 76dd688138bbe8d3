//! `sluice bench chain-priority`: rising costs, with and without priority.
//!
//! # Approach
//! Costs 1 : 3 : 7 on one core at line rate. Without refusal at the entry, packets for which the
//! third NF has no room have wasted the work of the first two. With `downstream_first`, an NF whose
//! ring fills runs before those that fill it, so hardly any packet is lost inside even without
//! backpressure.
//!
//! - *kernel*: the kernel schedules NFs, which are woken for each batch of packets, under
//!   SCHED_OTHER, or under SCHED_RR with the position as the NF's priority.
//! - *handover*: NFs hand over the core themselves.
//! - Param `backpressure`: 1 where packets are refused at the entry.
//! - `of_ideal`: relative to the same work in one process.
//!
//! # Source
//! Flurries, figure 8.

use serde_json::json;

use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Row, Trials};
use crate::bench::sched::{COST, CPU, DELIVERED, HopSpec, Mode, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, WASTED_PERCENT, line, params};
use crate::bench::setup::{Class, Sched, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "chain-priority",
    about: "costs 1:3:7, those further down first or not (Flurries, figure 8)",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// Costs of the chain's NFs, in cycles per packet.
const COSTS: [u64; 3] = [100, 300, 700];

const GROUP: Group = Group {
    title: "A chain of costs 100, 300 and 700 on one core",
    keys: &["backpressure"],
    columns: &[
        DELIVERED,
        Column::new("wasted_pps.nf1", "dropped behind NF 1, kpps", 1e3, 1),
        Column::new("wasted_pps.nf2", "behind NF 2, kpps", 1e3, 1),
        CPU[0],
        CPU[1],
        CPU[2],
        OF_IDEAL,
        OF_IDEAL_BY_CPU,
        WASTED,
        WASTED_PERCENT,
        Column::new("entry_drop_pps", "refused Mpps", 1e6, 2),
        Column::new("switches_per_s", "switches/s", 1.0, 0),
    ],
    plotted: 6,
    form: Form::Bars,
};

/// What selects the NF to run next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Kernel,
    Handover,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    by: By,
    class: Class,
    downstream_first: bool,
    backpressure: bool,
}

impl Way {
    fn name(self) -> String {
        let order = if self.downstream_first { "downstream" } else { "default" };
        let by = if self.by == By::Kernel { "kernel" } else { "handover" };
        format!("{order}-{by}/{}", self.class)
    }

    fn sched(self) -> Sched {
        Sched {
            class: self.class,
            handover: self.by == By::Handover,
            // The default is the plain platform.
            weights: self.by == By::Handover || self.downstream_first,
            backpressure: self.backpressure,
            ecn: false,
            watermarks: None,
            queueing_us: None,
            downstream_first: self.downstream_first,
        }
    }
}

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for (by, class) in [(By::Kernel, Class::Other), (By::Kernel, Class::Rr(100)), (By::Handover, Class::Other)] {
        for backpressure in [false, true] {
            for downstream_first in [false, true] {
                ways.push(Way { by, class, downstream_first, backpressure });
            }
        }
    }
    ways
}

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, derive, vec![(GROUP, |_| true)]);
    let hops: Vec<HopSpec> = COSTS.iter().zip(1..).map(|(cycles, i)| HopSpec::new(i, lab.cores.shared(), *cycles)).collect();
    for way in ways() {
        let setup = Setup { sched: Some(way.sched()), ..line(lab, Mode::Default, way.class, &hops) };
        plan.cases.push(Case::flow(&way.name(), params(&[("backpressure", json!(u8::from(way.backpressure)))]), setup));
    }
    let ideal = line(lab, Mode::Ideal, Class::Other, &hops);
    plan.cases.push(Case::flow("ideal/other", params(&[("backpressure", json!(1))]), ideal));
    plan
}

/// Adds ratios to the ideal, and sums of context switches.
fn derive(rows: &mut [Row]) -> Vec<Row> {
    let ideal = rows.iter().find(|row| row.name.starts_with("ideal"));
    let of = |metric: &str| ideal.and_then(|row| row.get(metric)).filter(|value| *value > 0.0);
    let (delivered, packet_ns) = (of("delivered_pps"), of("nf_ns_per_packet"));
    for row in rows {
        let switches = row.sample.iter().filter(|(name, _)| name.starts_with("switches_")).map(|(_, value)| *value).sum();
        row.put("switches_per_s", Some(switches));
        if row.name.starts_with("ideal") {
            continue;
        }
        let ratio = |value: Option<f64>, of: Option<f64>| Some(value? / of?);
        let of_ideal = ratio(row.get("delivered_pps"), delivered);
        let by_cpu = ratio(packet_ns, row.get("nf_ns_per_packet").filter(|ns| *ns > 0.0));
        row.put("ideal_pps", delivered);
        row.put("of_ideal", of_ideal);
        row.put("of_ideal_by_cpu", by_cpu);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;
    use crate::bench::measure::Sample;

    #[test]
    fn each_way_runs_with_and_without_backpressure() {
        let plan = plan(&lab(1));
        let of = |name: &str| plan.cases.iter().filter(|case| case.name == name).count();
        assert_eq!(plan.cases.len(), 13);
        for name in ["default-kernel/other", "downstream-kernel/rr100", "downstream-handover/other"] {
            assert_eq!(of(name), 2, "{name}");
        }
    }

    #[test]
    fn ratios_are_of_the_ideal() {
        let row = |name: &str, pps: f64| {
            let sample = Sample::from([
                ("delivered_pps".into(), pps),
                ("nf_ns_per_packet".into(), 1e9 / pps),
                ("switches_voluntary_per_s.nf1".into(), 5.0),
                ("switches_involuntary_per_s.nf2".into(), 6.0),
            ]);
            Row::new(name, &params(&[("backpressure", json!(1))]), sample)
        };
        let mut rows = vec![row("default-kernel/other", 50.0), row("ideal/other", 100.0)];
        assert!(derive(&mut rows).is_empty());
        assert_eq!((rows[0].get("of_ideal"), rows[0].get("of_ideal_by_cpu")), (Some(0.5), Some(0.5)));
        assert_eq!((rows[0].get("switches_per_s"), rows[1].get("of_ideal")), (Some(11.0), None));
    }
}
