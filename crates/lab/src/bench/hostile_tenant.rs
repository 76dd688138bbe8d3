//! `sluice bench hostile-tenant`: packets of a tenant beside a hostile NF of another tenant.
//!
//! # Approach
//! The flows of one generator are split in half between a chain of the tenant red and one of the
//! tenant blue, each with one NF; both NFs share a core. Packets have a checksum over all of their
//! bytes, and blue's sink counts altered and missing ones. Blue gets [`RATE`] packets per second.
//! - `honest`: red's NF is a bridge, too. Blue's deliveries in other variants are relative to this.
//! - `hostile`: red's NF writes noise over its tenant's packet memory, its region and the core
//!   page, forks processes that do the same, and tries to punch holes there
//!   ([`hostile::EVERYTHING`]). It is stopped for its violations and restarted, again and again.
//! - `unchecked`: the same without the system-call filter, so that holes are punched, and without
//!   the limits for which it would be stopped, so that it runs all the time.
//!
//! # Limits
//! One altered packet in 2⁴⁸ goes unnoticed. Packets that come too late to be admitted count as
//! refused.

use std::fmt::Write;

use anyhow::Context;

use crate::bench::chaos::hostile;
use crate::bench::daemon::LAB;
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Plan, Row};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::setup::{SINK, Setup};
use crate::bench::stats::Window;
use crate::bench::table::{Column, Form, Group};
use sluice_api::model::Stats;

pub const EXPERIMENT: Experiment = Experiment {
    name: "hostile-tenant",
    about: "packets of a tenant beside an NF of another that does all it can (--seconds 60)",
    run,
};

const NF: &str = "sluice-nf-bridge";
/// Packets per second of blue, and of red.
const RATE: f64 = 200_000.0;
const PACKET_BYTES: u32 = 256;
/// Blue's sink; red's is the usual one.
const BLUE: &str = "blue";
const HONEST: &str = "honest";
const DELIVERED: &str = "delivered_pps";
/// Limits that no NF reaches.
const NO_LIMITS: &str = "max_violations = 1000000000000\nstall_ms = 0\n";

/// A variant: name, whether red's NF is hostile, and whether it is checked.
const VARIANTS: [(&str, bool, bool); 3] = [(HONEST, false, true), ("hostile", true, true), ("unchecked", true, false)];

const GROUP: Group = Group {
    title: "Packets of blue at 200,000 a second, beside an NF of red on the same core and behind the same port",
    keys: &["packet_bytes"],
    columns: &[
        Column::new(DELIVERED, "delivered kpps", 1e3, 2),
        Column::new("of_honest", "of honest", 1.0, 4),
        Column::new("altered_count", "altered", 1.0, 0),
        Column::new("lost_count", "lost", 1.0, 0),
        Column::new("refused_count", "refused", 1.0, 0),
        Column::new("whole_count", "whole", 1.0, 0),
        Column::new("stopped_count", "red stopped", 1.0, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
        Column::new("round_ns_p99", "round p99 µs", 1e3, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[NF])?;
    lab.programs.has(LAB, LAB)?;
    lab.run(&plan())
}

fn plan() -> Plan {
    let mut plan = Plan::new(EXPERIMENT.name, of_honest, vec![(GROUP, |_| true)]);
    for (name, is_hostile, is_checked) in VARIANTS {
        let params = Params::from([("packet_bytes".to_string(), PACKET_BYTES.into())]);
        let row = params.clone();
        let run = move |lab: &Lab| Ok(vec![Row::new(name, &row, one(lab, is_hostile, is_checked)?)]);
        plan.cases.push(Case { name: name.into(), params, run: Box::new(run) });
    }
    plan
}

/// A generator of 16 flows, eight for each chain.
fn setup(lab: &Lab, is_hostile: bool, is_checked: bool) -> Setup {
    let core = lab.cores.shared();
    let hostile = lab.programs.path(LAB).display().to_string();
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let red = if is_hostile {
        format!("exec = {}\nargs = [\"hostile-nf\", \"{}\"]\nfilter = {is_checked}", quoted(&hostile), hostile::EVERYTHING)
    } else {
        format!("exec = \"{NF}\"")
    };
    let mut more = format!(
        "[[port]]\nname = \"in\"\nkind = \"gen\"\nsize = {}\nflows = 16\nrate = {:?}\nsrc = \"198.18.0.0\"\nchecksum = true\noverload = \"drop\"\n\
         [[port]]\nname = \"{BLUE}\"\nkind = \"sink\"\n",
        PACKET_BYTES - 4,
        2.0 * RATE
    );
    for (number, (tenant, program, egress)) in [("red", red, SINK), (BLUE, format!("exec = \"{NF}\""), BLUE)].iter().enumerate() {
        let _ = write!(
            more,
            "[[service]]\nname = \"{tenant}\"\n{program}\ntenant = \"{tenant}\"\ncores = [{core}]\nring = 4096\n\
             [[chain]]\nname = \"{tenant}\"\nservices = [\"{tenant}\"]\negress = \"{egress}\"\non_failure = \"restart\"\n\
             [[rule]]\nport = \"in\"\nsrc = \"198.18.0.{}/29\"\nchain = \"{tenant}\"\n",
            8 * number
        );
    }
    let manager = if is_checked { "" } else { NO_LIMITS };
    Setup { manager_core: lab.manager_core, manager, more, ..Setup::default() }
}

fn one(lab: &Lab, is_hostile: bool, is_checked: bool) -> Result<Sample, Miss> {
    let daemon = lab.start(&setup(lab, is_hostile, is_checked))?;
    lab.warm_up()?;
    let before = daemon.stats()?;
    lab.programs.pause(std::time::Duration::from_secs_f64(lab.args.seconds))?;
    let after = daemon.stats()?;
    // Also ends all processes that red has forked.
    daemon.stop()?;
    Ok(outcome(&before, &after)?)
}

/// What happened to blue's packets in between.
fn outcome(before: &Stats, after: &Stats) -> anyhow::Result<Sample> {
    let window = Window { before, after };
    let detail = |name: &str| -> anyhow::Result<f64> {
        let of = |stats: &Stats| stats.ports.iter().find(|port| port.name == BLUE)?.details.get(name).copied();
        let both = of(after).zip(of(before)).with_context(|| format!("blue's sink does not say how many packets were {name}"))?;
        Ok(both.0 - both.1)
    };
    let refused = |stats: &Stats| stats.chains.iter().filter(|c| c.name == BLUE).filter_map(|c| c.drops.get("entry")).sum::<u64>();
    let stops = |stats: &Stats| stats.nfs.iter().filter(|nf| nf.service == "red").map(|nf| nf.stops).sum::<u64>();
    let mut out = Sample::from([
        (DELIVERED.into(), window.tx_pps(BLUE)),
        // Noise over a stamp leaves none.
        ("altered_count".into(), detail("altered")? + detail("unstamped")?),
        ("lost_count".into(), detail("lost")?),
        ("whole_count".into(), detail("stamped")?),
        ("refused_count".into(), (refused(after) - refused(before)) as f64),
        ("stopped_count".into(), (stops(after) - stops(before)) as f64),
    ]);
    for (metric, times) in [("latency_ns_p99", window.latency(BLUE)), ("round_ns_p99", window.rounds())] {
        out.extend(times.quantile(0.99).map(|ns| (metric.to_string(), ns as f64)));
    }
    Ok(out)
}

/// Blue's deliveries, relative to those beside a bridge.
fn of_honest(rows: &mut [Row]) -> Vec<Row> {
    let honest = rows.iter().find(|row| row.name == HONEST).and_then(|row| row.get(DELIVERED));
    for row in rows.iter_mut().filter(|row| row.name != HONEST) {
        let ratio = row.get(DELIVERED).zip(honest).map(|(pps, honest)| pps / honest);
        row.put("of_honest", ratio);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn only_what_blue_loses_counts() {
        let stats = |seconds: u64, n: u64| -> Stats {
            let details = |n: u64| json!({"altered": n, "unstamped": n, "lost": 3 * n, "stamped": 100 * n});
            crate::bench::stats::tests::partial(json!({
                "time_ns": seconds * 1_000_000_000,
                "ports": [{"name": "out", "tx_packets": 7, "details": details(77)}, {"name": "blue", "tx_packets": 100 * n, "details": details(n)}],
                "chains": [{"name": "red", "drops": {"entry": 9 * n}}, {"name": "blue", "drops": {"entry": 2 * n}}],
                "nfs": [{"name": "red.0", "service": "red", "stops": n}],
            }))
        };
        let out = outcome(&stats(1, 1), &stats(3, 5)).unwrap();
        let of = |metric: &str| out[metric];
        assert_eq!((of("delivered_pps"), of("altered_count"), of("lost_count"), of("whole_count")), (200.0, 8.0, 12.0, 400.0));
        assert_eq!((of("refused_count"), of("stopped_count")), (8.0, 4.0));
        let error = outcome(&Stats::default(), &Stats::default()).unwrap_err().to_string();
        assert!(error.contains("altered"), "a daemon that does not count them has not shown that there are none: {error}");
    }

    #[test]
    fn the_daemon_takes_all_variants_and_they_differ_in_red_alone() {
        let texts = VARIANTS.map(|(_, is_hostile, is_checked)| {
            let setup = setup(&lab(1), is_hostile, is_checked);
            assert_accepted(&setup, &[NF]);
            setup.toml(std::path::Path::new("/tmp"))
        });
        assert!(texts.iter().all(|text| text.contains("checksum = true") && text.matches("tenant = \"blue\"").count() == 1));
        assert_eq!(texts.each_ref().map(|text| text.matches("everything").count()), [0, 1, 1]);
        assert_eq!(
            texts.each_ref().map(|text| text.contains("filter = false") && text.contains("stall_ms = 0")),
            [false, false, true]
        );
        let row = |name: &str, pps: f64| Row::new(name, &Params::new(), [(DELIVERED.to_string(), pps)].into());
        let mut rows = [row("honest", 10.0), row("hostile", 9.0)];
        of_honest(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.get("of_honest")), [None, Some(0.9)]);
    }
}
