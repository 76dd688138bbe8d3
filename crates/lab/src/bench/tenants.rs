//! `sluice bench tenants`: the cost of splitting the packets of one port between two tenants.
//!
//! # Approach
//! The flows of one generator are split in half between two chains of one bridge each; both bridges
//! share a core, and packets without room are dropped at the entry.
//! - `one`: both chains belong to one tenant, so packets are received into its memory.
//! - `two`: each chain has its own tenant, so packets are received where no NF can reach them, and
//!   copied on admission. NFs of two tenants do not hand over the core to each other either: the
//!   kernel divides it.
//! - `one-apart` and `two-apart`: with `[sched] handover = false`, where the kernel divides the
//!   core in either case and only the copies differ.
//!
//! Deliveries for two tenants are relative to those for one in the same turn: `of_one` with
//! hand-over, the whole cost of a second tenant, and `of_apart` without, the cost of the copies.
//! Packets have 64 and 1,500 bytes on the wire. The duration of the packet thread's rounds is
//! reported, too.

use std::fmt::Write;

use serde_json::json;

use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Row, Trials};
use crate::bench::report::Params;
use crate::bench::setup::{SINK, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "tenants",
    about: "packets of one port for two tenants, beside those for one",
    run: |args| Lab::measure(args, &[NF], plan),
};

const NF: &str = "sluice-nf-bridge";
const SIZES: [u32; 2] = [64, 1500];
/// Name of a variant, the tenants of both services, and whether NFs of one tenant hand over the
/// core.
const VARIANTS: [(&str, [&str; 2], bool); 4] = [
    ("one", ["red", "red"], true),
    ("two", ["red", "blue"], true),
    ("one-apart", ["red", "red"], false),
    ("two-apart", ["red", "blue"], false),
];
/// The compared variants, and the metric of their ratio.
const COMPARED: [(&str, &str, &str); 2] = [("two", "one", "of_one"), ("two-apart", "one-apart", "of_apart")];
const DELIVERED: &str = "delivered_pps";

const GROUP: Group = Group {
    title: "One port whose flows go half by one NF and half by another, of one tenant or of two",
    keys: &["packet_bytes"],
    columns: &[
        Column::new(DELIVERED, "delivered Mpps", 1e6, 3),
        Column::new("of_one", "of one", 1.0, 3),
        Column::new("of_apart", "of one apart", 1.0, 3),
        Column::new("latency_ns_p50", "p50 µs", 1e3, 0),
        Column::new("round_ns_p99", "round p99 µs", 1e3, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, of_one, vec![(GROUP, |_| true)]);
    for bytes in SIZES {
        for (name, tenants, handover) in VARIANTS {
            let params = Params::from([("packet_bytes".to_string(), json!(bytes))]);
            plan.cases.push(Case::flow(name, params, setup(lab, bytes, tenants, handover)));
        }
    }
    plan
}

/// A generator of 16 flows, eight for each chain.
fn setup(lab: &Lab, packet_bytes: u32, tenants: [&str; 2], handover: bool) -> Setup {
    let mut more = format!(
        "[sched]\nhandover = {handover}\n[[port]]\nname = \"in\"\nkind = \"gen\"\nsize = {}\nflows = 16\nsrc = \"198.18.0.0\"\noverload = \"drop\"\n",
        packet_bytes - 4
    );
    let core = lab.cores.shared();
    for (number, tenant) in tenants.iter().enumerate() {
        let _ = write!(
            more,
            "[[service]]\nname = \"nf{number}\"\nexec = \"{NF}\"\ntenant = \"{tenant}\"\ncores = [{core}]\nring = 2048\n\
             [[chain]]\nname = \"c{number}\"\nservices = [\"nf{number}\"]\negress = \"{SINK}\"\n\
             [[rule]]\nport = \"in\"\nsrc = \"198.18.0.{}/29\"\nchain = \"c{number}\"\n",
            8 * number
        );
    }
    Setup { manager_core: lab.manager_core, more, ..Setup::default() }
}

/// Deliveries for two tenants, relative to those for one.
fn of_one(rows: &mut [Row]) -> Vec<Row> {
    let all = rows.to_vec();
    for row in rows {
        let Some((_, one, metric)) = COMPARED.iter().find(|(two, _, _)| *two == row.name) else { continue };
        let one = all.iter().find(|other| other.name == *one && other.params == row.params).and_then(|one| one.get(DELIVERED));
        let ratio = row.get(DELIVERED).zip(one).map(|(two, one)| two / one);
        row.put(metric, ratio);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn both_variants_run_with_both_sizes_and_are_compared_within_a_size() {
        let plan = plan(&lab(1));
        assert_eq!(plan.cases.len(), 8);
        let row = |name: &str, bytes: u32, pps: f64| {
            let params = Params::from([("packet_bytes".to_string(), json!(bytes))]);
            Row::new(name, &params, [(DELIVERED.to_string(), pps)].into())
        };
        let mut rows = vec![
            row("one", 64, 10.0),
            row("two", 64, 9.0),
            row("one-apart", 64, 8.0),
            row("two-apart", 64, 6.0),
            row("one", 1500, 4.0),
            row("two", 1500, 3.0),
        ];
        assert!(of_one(&mut rows).is_empty());
        let ratios = |part| rows.iter().map(|row| row.get(part)).collect::<Vec<_>>();
        assert_eq!(ratios("of_one"), [None, Some(0.9), None, None, None, Some(0.75)]);
        assert_eq!(ratios("of_apart"), [None, None, None, Some(0.75), None, None]);
    }

    #[test]
    fn flows_go_half_by_each_chain_and_tenants_are_one_or_two() {
        for ((_, tenants, handover), blue) in VARIANTS.into_iter().zip([0, 1, 0, 1]) {
            let text = setup(&lab(1), 64, tenants, handover).toml(std::path::Path::new("/tmp"));
            assert_eq!(text.matches("tenant = \"blue\"").count(), blue, "{text}");
            assert!(text.contains("src = \"198.18.0.0/29\"") && text.contains("src = \"198.18.0.8/29\""), "{text}");
        }
    }
}
