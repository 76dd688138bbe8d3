//! `sluice bench profile-accuracy`: a curve of few points against all.
//!
//! # Approach
//! Each NF built by `scripts/trace-nf` runs once on a million packets, or on as many as give enough
//! loads and stores ([`ENOUGH`]; `packets_count` has their number), with uniform and with Zipf
//! flows ([`EXAMPLES`]). The model computes its misses with each of 20 ways of 2,304 KiB, as on the
//! paper's machine. A packet takes `PACKET_NS`, and `MISS_NS` for each miss. The curve is built
//! from as few of the 20 points as [`sluice_slo::curve`] requests, and compared with all 20:
//! - `error_percent`: the worst distance of the curve;
//! - `over_percent`: the most by which the promised value (less the margin) exceeds the real one;
//!   below 0, it never does;
//! - `paper_percent`: the worst distance for the paper's own rule, which stops where the middle of
//!   an interval is within 1 % of the line;
//! - `cpu_s`: CPU time of model and traced NF, for these packets and those before them (one of each
//!   flow, and a tenth to warm up); `million_s`: CPU time for a million packets of all kinds.
//!
//! An NF that works on another one's packets is traced behind that one, and shares the cache with
//! it.
//!
//! For some chains ([`CHAINS`]), the misses of their NFs in a shared cache are computed, too, and
//! the error of a curve of few points, for the chain at the rate of its slowest NF. Variants'
//! metrics include misses per packet of each NF: `references.NF`, and `misses.NF.01` for one way to
//! `misses.NF.20`. Together with packet times (`base_ns` of whole profiles) they are the source of
//! sets of SLOs (scripts/sample-kinds).
//!
//! What each NF does to the caches stands in a table of its own, per packet: `accesses_per_packet`
//! (loads and stores), `references_per_packet` (those that reach the last-level cache), and
//! `misses_per_packet` with all ways and `misses_one_way_per_packet` with one.
//!
//! Whole profiles of the same NFs are made and measured again ([`whole`]).
//!
//! # Limits
//! The two times are assumed, and shorter than those of real packets, so that misses weigh more and
//! curves are steeper than in reality. The model is exact, so there is no noise. It has no clock:
//! there are neither cycles nor instructions.
//!
//! # Source
//! ResQ, figures 6 and 7, and table 1 without cycles and instructions.

use std::convert::Infallible;
use std::path::Path;

use anyhow::Context;
use serde_json::json;
use sluice_cache::model::{Curve as Misses, Geometry, Hierarchy};
use sluice_cache::trace::chain::{self, Feed};
use sluice_cache::trace::examples::{EXAMPLES, Example, Scale};
use sluice_cache::trace::{ENOUGH, Traced, TracedTraffic, beside, profile};
use sluice_slo::curve;

use super::whole;
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::{Params, Variant};
use crate::bench::sched::params;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "profile-accuracy",
    about: "points of a profile and its error against a full sweep of cache ways, for NFs that are built by scripts/trace-nf",
    run: |args| Lab::measure(args, &[], |_| plan()),
};

const PACKET_NS: f64 = 50.0;
const MISS_NS: f64 = 100.0;
const PACKETS: u64 = 1_000_000;
const WARM_UP: u64 = 100_000;
const HIERARCHY: Hierarchy = Hierarchy {
    line: 64,
    l1: Some(Geometry { sets: 64, ways: 8 }),
    l2: Some(Geometry { sets: 512, ways: 8 }),
    llc: Geometry { sets: 36_864, ways: 20 },
};
/// Chains, of examples by name, and their number of flows.
const CHAINS: [&[&str]; 3] = [&["firewall-stateful", "nat"], &["monitor", "lb"], &["firewall-stateful", "monitor", "nat"]];
const CHAIN_FLOWS: u32 = 150_000;
const LAWS: [(&str, Option<f64>); 2] = [("uniform", None), ("zipf 1.1", Some(1.1))];
/// Distance at which the paper's rule stops.
const CLOSE: f64 = 0.01;

const ERRORS: Group = Group {
    title: "Throughput curves against a full sweep of 20 ways",
    keys: &["law"],
    columns: &[
        Column::new("error_percent", "error %", 1.0, 2),
        Column::new("over_percent", "promised above %", 1.0, 2),
        Column::new("margin_percent", "margin %", 1.0, 2),
        Column::new("points_count", "points", 1.0, 0),
        Column::new("range_ratio", "20 ways / 1 way", 1.0, 2),
        Column::new("paper_percent", "paper's rule: error %", 1.0, 2),
        Column::new("paper_points_count", "its points", 1.0, 0),
        Column::new("packets_count", "packets", 1.0, 0),
        Column::new("cpu_s", "CPU s", 1.0, 2),
        Column::new("nf_s", "of it NF", 1.0, 2),
        Column::new("million_s", "CPU s per million", 1.0, 2),
    ],
    plotted: 2,
    form: Form::Bars,
};

const CACHES: Group = Group {
    title: "Accesses and misses of NFs, per packet",
    keys: &["law"],
    columns: &[
        Column::new("references_per_packet", "references of the last cache", 1.0, 2),
        Column::new("misses_per_packet", "misses with 20 ways", 1.0, 2),
        Column::new("misses_one_way_per_packet", "with 1 way", 1.0, 2),
        Column::new("accesses_per_packet", "loads and stores", 1.0, 0),
    ],
    plotted: 2,
    form: Form::Bars,
};

fn plan() -> Trials {
    let zipf = Group { title: "Latency by load in percent of what is promised, Zipf flows", ..whole::CURVES };
    let groups: Vec<crate::bench::lab::Shown> = vec![
        (ERRORS, |v| !v.name.starts_with(whole::WHOLE) && v.name != whole::CURVE),
        (CACHES, |v| v.metrics.contains_key("accesses_per_packet")),
        (whole::GROUP, |v| v.name.starts_with(whole::WHOLE)),
        (whole::CURVES, |v| is_curve(v, LAWS[0].0)),
        (zipf, |v| is_curve(v, LAWS[1].0)),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, groups);
    let examples = || EXAMPLES.iter().flat_map(|example| LAWS.map(|(law, zipf)| (example, law, zipf)));
    for (example, law, zipf) in examples() {
        plan.cases.push(case(example.name.into(), example.flows(Scale::Large), law, move || sample(example, zipf)));
    }
    for (names, (law, zipf)) in CHAINS.into_iter().flat_map(|chain| LAWS.map(|law| (chain, law))) {
        let run = move || {
            let examples: Vec<&Example> = names.iter().filter_map(|name| EXAMPLES.iter().find(|one| one.name == *name)).collect();
            chain_sample(&examples, zipf)
        };
        plan.cases.push(case(names.join("+"), CHAIN_FLOWS, law, run));
    }
    for (example, law, zipf) in examples() {
        let (name, of) = (format!("{}{}", whole::WHOLE, example.name), of_flows(example.flows(Scale::Large), law));
        let row_params = of.clone();
        let run = move |_: &Lab| whole::rows(example, zipf, &row_params);
        plan.cases.push(Case { name, params: of, run: Box::new(run) });
    }
    plan
}

/// Whether a variant is a point of a latency curve with flows of this law.
fn is_curve(variant: &Variant, law: &str) -> bool {
    variant.name == whole::CURVE && variant.params["law"] == law
}

fn of_flows(flows: u32, law: &str) -> Params {
    params(&[("law", json!(law)), ("flows", json!(flows))])
}

fn case(name: String, flows: u32, law: &str, run: impl Fn() -> Result<Sample, Miss> + 'static) -> Case {
    Case::one(name, of_flows(flows, law), move |_| run())
}

/// A traced NF of the examples, with its packets.
fn traced(example: &Example, folder: &Path) -> Result<Traced, Miss> {
    let program = std::env::current_exe()?.with_file_name(format!("sluice-nf-{}", example.nf));
    let missing = || Miss::LeaveOut(format!("it is not built to be traced: run `scripts/trace-nf {}`", example.nf));
    let program = beside(&program).ok_or_else(missing)?;
    let file = folder.join(example.name);
    example.make_file(&program, &file)?;
    Ok(Traced { program, args: example.args(Scale::Large, &file), env: Vec::new() })
}

/// The packets of an example, for this number of flows.
fn traffic(example: &Example, flows: u32, zipf: Option<f64>, accesses: Option<u64>) -> TracedTraffic {
    let Example { bytes, spread, .. } = *example;
    TracedTraffic { packets: PACKETS, warm_up: WARM_UP, accesses, flows, zipf, bytes, spread, seed: 1 }
}

fn sample(example: &Example, zipf: Option<f64>) -> Result<Sample, Miss> {
    let folder = tempfile::tempdir()?;
    let nf = traced(example, folder.path())?;
    let before = example.before().map(|before| traced(before, folder.path())).transpose()?;
    let flows = example.flows(Scale::Large);
    let traffic = traffic(example, flows, zipf, Some(ENOUGH));
    let began = times(Path::new("/proc/self/stat"))?;
    let misses = match before {
        None => profile(&nf, &traffic, HIERARCHY).context("the traced NF")?,
        Some(before) => {
            let of_each = chain::profile(&[before, nf], Feed::Made(&traffic), HIERARCHY).context("the traced NFs")?;
            of_each.into_iter().next_back().context("the chain has no NF")?.together
        }
    };
    let ended = times(Path::new("/proc/self/stat"))?;
    let mut found = compare(std::slice::from_ref(&misses)).map_err(anyhow::Error::from)?;
    let [model_s, nf_s] = [0, 1].map(|i| ended[i] - began[i]);
    let cpu_s = model_s + nf_s;
    // Warm-up packets end after a tenth of the others' limit.
    let all = misses.packets as f64 * (1.0 + WARM_UP as f64 / PACKETS as f64) + f64::from(flows);
    found.extend([
        ("packets_count".to_string(), misses.packets as f64),
        ("cpu_s".to_string(), cpu_s),
        ("nf_s".to_string(), nf_s),
        ("million_s".to_string(), cpu_s / all * 1e6),
    ]);
    found.extend(each_way(example.name, &misses));
    found.extend(per_packet(&misses));
    Ok(found)
}

/// Like the sample of an NF, for a chain and without times.
fn chain_sample(examples: &[&Example], zipf: Option<f64>) -> Result<Sample, Miss> {
    let folder = tempfile::tempdir()?;
    let nfs = examples.iter().map(|example| traced(example, folder.path())).collect::<Result<Vec<_>, _>>()?;
    let first = examples.first().context("a chain has an NF")?;
    let traffic = traffic(first, CHAIN_FLOWS, zipf, None);
    let shared = chain::profile(&nfs, Feed::Made(&traffic), HIERARCHY).context("the traced NFs")?;
    let misses: Vec<Misses> = shared.into_iter().map(|nf| nf.together).collect();
    let mut found = compare(&misses).map_err(anyhow::Error::from)?;
    found.insert("packets_count".into(), misses[0].packets as f64);
    found.extend(examples.iter().zip(&misses).flat_map(|(example, misses)| each_way(example.name, misses)));
    Ok(found)
}

/// Misses of an NF per packet, for each number of ways.
fn each_way(nf: &str, misses: &Misses) -> Vec<(String, f64)> {
    let name = |ways| if ways == 0 { format!("references.{nf}") } else { format!("misses.{nf}.{ways:02}") };
    (0..=HIERARCHY.llc.ways).map(|ways| (name(ways), misses.misses_per_packet(ways))).collect()
}

/// Accesses of an NF per packet, and how many of them miss.
fn per_packet(misses: &Misses) -> [(String, f64); 4] {
    [
        ("accesses_per_packet".to_string(), misses.accesses as f64 / misses.packets.max(1) as f64),
        ("references_per_packet".to_string(), misses.misses_per_packet(0)),
        ("misses_one_way_per_packet".to_string(), misses.misses_per_packet(1)),
        ("misses_per_packet".to_string(), misses.misses_per_packet(HIERARCHY.llc.ways)),
    ]
}

/// Compares a curve of few points with one of all, for NFs at the rate of the slowest.
fn compare(nfs: &[Misses]) -> Result<Sample, curve::CurveError<Infallible>> {
    let slowest = |ways| nfs.iter().map(|nf| nf.packets_per_second(ways, PACKET_NS, MISS_NS)).fold(f64::INFINITY, f64::min);
    let all: Vec<f64> = (1..=HIERARCHY.llc.ways).map(slowest).collect();
    let plan = curve::Sweep::throughput(1, HIERARCHY.llc.ways).exact();
    let found = curve::build(&plan, |ways| Ok(vec![all[ways as usize - 1]]))?;
    let (mut error, mut over) = (0.0f64, f64::NEG_INFINITY);
    for (i, truth) in all.iter().enumerate() {
        let value = found.at(i as f64 + 1.0).unwrap_or(0.0);
        error = error.max((value / truth - 1.0).abs());
        over = over.max(value * (1.0 - found.margin) / truth - 1.0);
    }
    let (paper, paper_points) = papers_rule(&all);
    let last = all.len() - 1;
    Ok(Sample::from([
        ("error_percent".to_string(), error * 100.0),
        ("over_percent".to_string(), over * 100.0),
        ("margin_percent".to_string(), found.margin * 100.0),
        ("points_count".to_string(), f64::from(found.measured)),
        ("range_ratio".to_string(), all[last] / all[0]),
        ("paper_percent".to_string(), paper * 100.0),
        ("paper_points_count".to_string(), paper_points as f64),
    ]))
}

/// The paper's rule on all points: its worst distance, and its number of points.
fn papers_rule(all: &[f64]) -> (f64, usize) {
    let mut taken = vec![0, all.len() - 1];
    let mut open = vec![(0usize, all.len() - 1)];
    while let Some((left, right)) = open.pop() {
        let middle = left.midpoint(right);
        if middle == left {
            continue;
        }
        taken.push(middle);
        if (line(all, left, right, middle) / all[middle] - 1.0).abs() > CLOSE {
            open.extend([(left, middle), (middle, right)]);
        }
    }
    taken.sort_unstable();
    taken.dedup();
    let gaps = taken.windows(2).flat_map(|pair| (pair[0]..pair[1]).map(|at| line(all, pair[0], pair[1], at) / all[at] - 1.0));
    (gaps.fold(0.0, |worst: f64, off| worst.max(off.abs())), taken.len())
}

/// Linear interpolation between two points.
fn line(all: &[f64], left: usize, right: usize, at: usize) -> f64 {
    all[left] + (all[right] - all[left]) * (at - left) as f64 / (right - left) as f64
}

/// CPU time of a process, and of its ended children.
fn times(stat: &Path) -> anyhow::Result<[f64; 2]> {
    // utime, stime, cutime and cstime are words 14 to 17, in hundredths of a second on all Linux
    // platforms. The second word is the name in brackets, which may contain blanks.
    let text = std::fs::read_to_string(stat)?;
    let words = text.rsplit(')').next().unwrap_or("").split_whitespace();
    let times: Vec<f64> = words.skip(11).take(4).filter_map(|word| word.parse().ok()).collect();
    let [utime, stime, cutime, cstime] = times[..] else { anyhow::bail!("{} has no times", stat.display()) };
    Ok([(utime + stime) / 100.0, (cutime + cstime) / 100.0])
}

#[cfg(test)]
mod tests {
    use sluice_cache::Origin;

    use super::*;

    fn misses(of: impl Fn(u64) -> u64) -> Misses {
        let misses = (1..=20).map(of).collect();
        Misses { origin: Origin::Simulated, way_bytes: 2304 << 10, packets: 1000, accesses: 9000, reads: 3000, misses }
    }

    #[test]
    fn few_points_are_close_to_all_and_never_promised_above() {
        let falling = [misses(|ways| 3000 - ways * 100), misses(|_| 10), misses(|ways| 3000 / ways)];
        for found in [&falling[..1], &falling[1..2], &falling[2..], &falling].map(compare) {
            let found = found.unwrap();
            assert!(found["over_percent"] <= 1e-9 && found["error_percent"] <= 1.01 && found["points_count"] <= 12.0, "{found:?}");
        }
    }

    #[test]
    fn accesses_and_misses_are_per_packet() {
        let found = Sample::from(per_packet(&misses(|ways| 2100 - ways * 100)));
        assert_eq!((found["accesses_per_packet"], found["references_per_packet"]), (9.0, 3.0));
        assert_eq!((found["misses_one_way_per_packet"], found["misses_per_packet"]), (2.0, 0.1));
        assert!(CACHES.columns.iter().all(|column| found.contains_key(column.metric)));
    }

    #[test]
    fn the_papers_rule_stops_at_a_middle_that_lies_on_the_line() {
        let (error, points) = papers_rule(&[1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!((error, points), (0.0, 3));
        // The middle is on the line, the quarters are not.
        let (error, points) = papers_rule(&[1.0, 2.0, 3.0, 3.5, 5.0]);
        assert_eq!(points, 3);
        assert!((error - 0.5 / 3.5).abs() < 1e-12);
    }

    #[test]
    fn every_example_runs_by_both_laws() {
        assert_eq!(plan().cases.len(), 4 * EXAMPLES.len() + 2 * CHAINS.len());
        assert!(CHAINS.concat().iter().all(|name| EXAMPLES.iter().any(|example| example.name == *name)));
        assert!(times(Path::new("/proc/self/stat")).unwrap()[0] >= 0.0 && times(Path::new("/nowhere")).is_err());
    }
}
