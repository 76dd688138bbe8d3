//! `sluice bench hostile-tenant`: packets of a tenant beside a hostile NF of another tenant.
//!
//! # Approach
//! The flows of one generator are split in half between a chain of the tenant red and one of the
//! tenant blue, each with one NF. Packets have a checksum over all of their bytes, and blue's sink
//! counts altered and missing ones. Blue gets [`RATE`] packets per second. Both NFs share a core:
//! - `honest`: red's NF is a bridge, too.
//! - `hostile`: red's NF writes noise over its tenant's packet memory, its region and the core
//!   page, forks processes that do the same, and tries to punch holes there
//!   ([`hostile::EVERYTHING`]). It is stopped for its violations and restarted, again and again.
//! - `unchecked`: the same without the system-call filter, so that holes are punched, and without
//!   the limits for which it would be stopped, so that it runs all the time.
//! - `fork`: red's NF forks as often as it may, and all processes spin.
//! - `move`: red's NF tries without pause to get to the packet thread's core and into SCHED_FIFO
//!   and SCHED_RR. Its filter refuses each of these calls.
//!
//! Others are set up differently, and have an honest partner with the same setup:
//! - `bits`: red's NF has a core of its own, on which it sets all bits of its core page and its own
//!   page without pause. Two cores suffice, because blue's handler runs in the packet thread.
//! - `rr`: as `move` on a core of its own, without a filter and in SCHED_RR already: its cpuset
//!   alone keeps it from the packet thread's core.
//! - `steal`: red has a bridge before its NF, and shares a page and the core with it. The NF takes
//!   the wakes of both, so that the packet thread has to rescue the bridge.
//!
//! Blue's deliveries (`of_honest`) and the packet threads' rounds with packets (`rounds_of_honest`,
//! of their 99th percentiles) are relative to the honest partner. They should be 0.97 at least, and
//! 2 at most. The longest round is reported, too.
//!
//! Of others, both chains are of one tenant and core (`within`). Red's NF comes when blue's chain
//! has run for a while, writes to all but packet memory for 2 s or until it is stopped, and is gone
//! then:
//! - `own/scribble`: it writes noise over its region and the core page. It is stopped for that.
//! - `own/unchecked`: the same without the limits for which it would be stopped.
//! - `own/page`: it writes noise over the core page, and returns its packets.
//! - `own/bits`: as `bits`.
//!
//! Blue's rate meanwhile should be half of its rate before at least (`of_before`), and 0.99 of it
//! from 100 ms after the end on (`of_before_next`); no packet that was let in is lost.
//!
//! # Limits
//! The daemon measures one round of 64, so the longest of all may be missing.
//! One altered packet in 2⁴⁸ goes unnoticed. Packets that come too late to be admitted count as
//! refused. The NFs of other tenants sleep on pages that red does not map, so it can take the wakes
//! of its own tenant only. A rate over less than 100 ms would say little: if red's NF is stopped
//! sooner, `of_before` is of the first 100 ms. NFs of the `own` variants are started by the
//! experiment, and so have no filter.

mod within;

use std::fmt::Write;
use std::process::Command;

use anyhow::Context;

use crate::bench::chaos::hostile;
use crate::bench::daemon::LAB;
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Shown, Trials};
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
/// Blue's chain, service and sink; red's sink is the usual one.
const BLUE: &str = "blue";
const RED: &str = "red";
/// The service before red's, where there is one.
const FRONT: &str = "front";
const DELIVERED: &str = "delivered_pps";
const ROUND: &str = "round_ns_p99";
const LONGEST_ROUND: &str = "round_ns_longest";
/// All NFs are in SCHED_RR.
const REALTIME: &str = "[sched]\nclass = \"rr\"\n";
/// The parameter of variants whose two chains are of one tenant.
const TENANT: &str = "tenant";
/// Limits that no NF reaches.
const NO_LIMITS: &str = "max_violations = 1000000000000\nstall_ms = 0\n";

/// Where the NFs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Red's and blue's share a core.
    Shared,
    /// Red's has the core for itself: blue's handler runs in the packet thread.
    Own,
    /// As [`Place::Shared`], and red has a bridge before its NF.
    Behind,
    /// As [`Place::Shared`], and blue's chain is of the tenant red, too. Red's NF attaches.
    Within,
}

struct Variant {
    name: &'static str,
    /// The variant with the same place whose NF of red is a bridge.
    honest: &'static str,
    place: Place,
    /// The mode of red's NF; none for a bridge.
    mode: Option<&'static str>,
    /// Whether red's NF is filtered and stopped for what it does.
    is_checked: bool,
    /// The section about scheduling, if there is one.
    sched: &'static str,
}

impl Variant {
    const fn honest(name: &'static str, place: Place) -> Self {
        Self { name, honest: name, place, mode: None, is_checked: true, sched: "" }
    }

    const fn hostile(name: &'static str, mode: &'static str, honest: &Self) -> Self {
        Self { honest: honest.name, mode: Some(mode), sched: honest.sched, ..Self::honest(name, honest.place) }
    }
}

const SHARED: Variant = Variant::honest("honest", Place::Shared);
const OWN: Variant = Variant::honest("bits/honest", Place::Own);
const RR: Variant = Variant { sched: REALTIME, ..Variant::honest("rr/honest", Place::Own) };
const BEHIND: Variant = Variant::honest("steal/honest", Place::Behind);
const WITHIN: Variant = Variant::honest("own/honest", Place::Within);

static VARIANTS: [Variant; 16] = [
    SHARED,
    Variant::hostile("hostile", hostile::EVERYTHING, &SHARED),
    Variant { is_checked: false, ..Variant::hostile("unchecked", hostile::EVERYTHING, &SHARED) },
    Variant::hostile("fork", "swarm", &SHARED),
    Variant::hostile("move", "move", &SHARED),
    OWN,
    Variant::hostile("bits", "bits", &OWN),
    RR,
    Variant { is_checked: false, ..Variant::hostile("rr", "move", &RR) },
    BEHIND,
    Variant::hostile("steal", "steal", &BEHIND),
    WITHIN,
    Variant::hostile("own/scribble", "scribble", &WITHIN),
    Variant { is_checked: false, ..Variant::hostile("own/unchecked", "scribble", &WITHIN) },
    Variant::hostile("own/page", "page", &WITHIN),
    Variant::hostile("own/bits", "bits", &WITHIN),
];

const GROUP: Group = Group {
    title: "Packets of blue at 200,000 a second, beside an NF of red behind the same port",
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
        Column::new(ROUND, "round p99 µs", 1e3, 1),
        Column::new("rounds_of_honest", "rounds of honest", 1.0, 2),
        Column::new(LONGEST_ROUND, "longest round µs", 1e3, 0),
    ],
    plotted: 2,
    form: Form::Bars,
};

/// Of variants whose two chains are of one tenant.
const OWN_GROUP: Group = Group {
    title: "Packets of blue at 200,000 a second, while an NF of its tenant and core comes and goes",
    keys: &["packet_bytes"],
    columns: &[
        Column::new(DELIVERED, "meanwhile kpps", 1e3, 2),
        Column::new("of_before", "of before", 1.0, 4),
        Column::new("of_before_first", "100 ms after", 1.0, 4),
        Column::new("of_before_next", "the next 100 ms", 1.0, 4),
        Column::new("of_honest", "of honest", 1.0, 4),
        Column::new("lost_inside_count", "lost inside", 1.0, 0),
        Column::new("altered_count", "altered", 1.0, 0),
        Column::new("refused_count", "refused", 1.0, 0),
        Column::new("stopped_count", "red stopped", 1.0, 0),
        Column::new("attack_ms", "red there ms", 1.0, 0),
    ],
    plotted: 4,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[NF])?;
    lab.programs.has(LAB, LAB)?;
    lab.run(&plan())
}

fn plan() -> Trials {
    let groups: Vec<Shown> = vec![(GROUP, |v| !v.params.contains_key(TENANT)), (OWN_GROUP, |v| v.params.contains_key(TENANT))];
    let mut plan = Trials::new(EXPERIMENT.name, of_honest, groups);
    for variant in &VARIANTS {
        let mut params = Params::from([("packet_bytes".to_string(), PACKET_BYTES.into())]);
        if variant.place == Place::Within {
            params.insert(TENANT.into(), "own".into());
        }
        plan.cases.push(Case::one(variant.name, params, move |lab| one(lab, variant)));
    }
    plan
}

/// A service of this tenant, whose program and other keys are `keys`.
fn service(name: &str, tenant: &str, core: usize, keys: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\n{keys}\ntenant = \"{tenant}\"\ncores = [{core}]\nring = 4096\n")
}

/// A generator of 16 flows, eight for each chain.
fn setup(lab: &Lab, variant: &Variant) -> Setup {
    let core = lab.cores.shared();
    let hostile = lab.programs.path(LAB).display().to_string();
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let bridge = format!("exec = \"{NF}\"");
    let red = match variant.mode {
        _ if variant.place == Place::Within => "attach = true".into(),
        Some(mode) => format!("exec = {}\nargs = [\"hostile-nf\", \"{mode}\"]\nfilter = {}", quoted(&hostile), variant.is_checked),
        None => bridge.clone(),
    };
    let mut more = variant.sched.to_string();
    more += &format!(
        "[[port]]\nname = \"in\"\nkind = \"gen\"\nsize = {}\nflows = 16\nrate = {:?}\nsrc = \"198.18.0.0\"\nchecksum = true\noverload = \"drop\"\n\
         [[port]]\nname = \"{BLUE}\"\nkind = \"sink\"\n",
        PACKET_BYTES - 4,
        2.0 * RATE
    );
    more += &service(RED, RED, core, &red);
    let reds: &[&str] = if variant.place == Place::Behind { &[FRONT, RED] } else { &[RED] };
    if variant.place == Place::Behind {
        more += &service(FRONT, RED, core, &bridge);
    }
    let (trusted, run) = if variant.place == Place::Own { ("\ntrusted = true", "run = \"inline\"\n") } else { ("", "") };
    let tenant = if variant.place == Place::Within { RED } else { BLUE };
    more += &service(BLUE, tenant, core, &(bridge + trusted));
    for (number, (chain, services, egress, run)) in [(RED, reds, SINK, ""), (BLUE, &[BLUE][..], BLUE, run)].iter().enumerate() {
        let _ = write!(
            more,
            "[[chain]]\nname = \"{chain}\"\nservices = {services:?}\negress = \"{egress}\"\non_failure = \"restart\"\n{run}\
             [[rule]]\nport = \"in\"\nsrc = \"198.18.0.{}/29\"\nchain = \"{chain}\"\n",
            8 * number
        );
    }
    let manager = if variant.is_checked { "" } else { NO_LIMITS };
    Setup { manager_core: lab.manager_core, manager, more, ..Setup::default() }
}

fn one(lab: &Lab, variant: &Variant) -> Result<Sample, Miss> {
    let daemon = lab.start(&setup(lab, variant))?;
    lab.warm_up()?;
    if variant.place == Place::Within {
        let mut program = Command::new(lab.programs.path(if variant.mode.is_some() { LAB } else { NF }));
        if let Some(mode) = variant.mode {
            program.args(["hostile-nf", mode]);
        }
        let readings = within::readings(lab, &daemon, RED, program)?;
        daemon.stop()?;
        let mut out = outcome(&readings.start, &readings.next)?;
        out.extend(readings.rates(BLUE)?);
        return Ok(out);
    }
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
    let stops = |stats: &Stats| stats.nfs.iter().filter(|nf| nf.service == RED).map(|nf| nf.stops).sum::<u64>();
    let mut out = Sample::from([
        (DELIVERED.into(), window.tx_pps(BLUE)),
        // Noise over a stamp leaves none.
        ("altered_count".into(), detail("altered")? + detail("unstamped")?),
        ("lost_count".into(), detail("lost")?),
        ("whole_count".into(), detail("stamped")?),
        ("refused_count".into(), (refused(after) - refused(before)) as f64),
        ("stopped_count".into(), (stops(after) - stops(before)) as f64),
    ]);
    let rounds = window.rounds();
    for (metric, times, quantile) in
        [("latency_ns_p99", &window.latency(BLUE), 0.99), (ROUND, &rounds, 0.99), (LONGEST_ROUND, &rounds, 1.0)]
    {
        out.extend(times.quantile(quantile).map(|ns| (metric.to_string(), ns as f64)));
    }
    Ok(out)
}

/// Blue's deliveries and the packet threads' rounds, relative to those of the honest partner.
fn of_honest(rows: &mut [Row]) -> Vec<Row> {
    let all = rows.to_vec();
    for row in rows {
        let hostile = VARIANTS.iter().find(|variant| variant.name == row.name && variant.mode.is_some());
        let Some(honest) = hostile.and_then(|variant| all.iter().find(|row| row.name == variant.honest)) else { continue };
        for (ratio, metric) in [("of_honest", DELIVERED), ("rounds_of_honest", ROUND)] {
            row.put(ratio, row.get(metric).zip(honest.get(metric)).map(|(own, honest)| own / honest));
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
    fn the_daemon_takes_all_variants_and_they_differ_from_their_honest_partners_in_red_alone() {
        let lab = lab(1);
        let lines = |variant: &Variant| -> BTreeSet<String> {
            let text = setup(&lab, variant).toml(std::path::Path::new("/tmp"));
            let blues = usize::from(variant.place != Place::Within);
            assert!(text.contains("checksum = true") && text.matches("tenant = \"blue\"").count() == blues);
            text.lines().map(str::to_owned).collect()
        };
        for variant in &VARIANTS {
            assert_accepted(&setup(&lab, variant), &[NF]);
            let honest = VARIANTS.iter().find(|other| other.name == variant.honest).unwrap();
            let (own, honest) = (lines(variant), lines(honest));
            let of_red = ["exec = ", "args = ", "filter = ", "max_violations = ", "stall_ms = "];
            assert!(own.difference(&honest).all(|line| of_red.iter().any(|key| line.starts_with(key))), "{}", variant.name);
            assert_eq!(honest.difference(&own).count(), 0, "{}: blue has its bridge", variant.name);
            let started = variant.mode.filter(|_| variant.place != Place::Within);
            let args = started.map(|mode| format!("args = [\"hostile-nf\", \"{mode}\"]"));
            assert!(args.is_none_or(|args| own.contains(&args)), "{}", variant.name);
            assert!(variant.mode.is_none_or(|mode| hostile::modes().any(|name| name == mode)), "{}", variant.name);
            let has_limits = !own.contains("filter = false") && !own.contains("stall_ms = 0");
            let is_checked = !["unchecked", "rr", "own/unchecked"].contains(&variant.name);
            assert_eq!((variant.is_checked, is_checked), (has_limits, has_limits), "{}", variant.name);
            assert_eq!(own.contains("class = \"rr\""), ["rr", "rr/honest"].contains(&variant.name), "{}", variant.name);
            let are_apart = own.contains("run = \"inline\"") && own.contains("trusted = true");
            assert_eq!(
                (are_apart, own.contains("services = [\"front\", \"red\"]")),
                match variant.place {
                    Place::Shared | Place::Within => (false, false),
                    Place::Own => (true, false),
                    Place::Behind => (false, true),
                }
            );
        }
    }

    #[test]
    fn each_hostile_variant_is_compared_with_its_own_partner() {
        let row = |name: &str, pps: f64, round_ns: f64| {
            Row::new(name, &Params::new(), [(DELIVERED.to_string(), pps), (ROUND.to_string(), round_ns)].into())
        };
        let mut rows = [
            row("honest", 10.0, 100.0),
            row("hostile", 9.0, 150.0),
            row("bits/honest", 8.0, 10.0),
            row("bits", 8.0, 20.0),
            // Its partner was not run.
            row("steal", 7.0, 1.0),
        ];
        of_honest(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.get("of_honest")), [None, Some(0.9), None, Some(1.0), None]);
        assert_eq!(rows.each_ref().map(|row| row.get("rounds_of_honest")), [None, Some(1.5), None, Some(2.0), None]);
    }
}
