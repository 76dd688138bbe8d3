//! Whole profiles by `sluice profile`, and their accuracy when the NF is measured again.
//!
//! # Approach
//! The command runs as for a user, with the cache model where the NF can be traced: `profile_s` is
//! its elapsed time. Then `sluice profile --check` measures throughput and, at twenty loads,
//! latency again, in another process on the same host:
//! - `distance_percent`: distance of latency from the curve, the median over loads;
//! - `above_percent`: the most by which latency exceeds the promise at any load;
//!   `loads_above_percent`: the share of loads where it does; `always_above_percent`: the share
//!   where even the lowest of seven measurements does, which a short disturbance of the host does
//!   not explain;
//! - `throughput_above_percent`: by how much the promise exceeds the throughput now;
//! - `miss_ns`: cost of a miss by the profile; `base_ns`: time per packet without misses, which is
//!   unknown for the NFs of a chain.
//!
//! For an NF that works on another one's packets, it is the chain of both, which is not measured
//! again.
//!
//! Rows over `load_percent` are the points of the profile's latency curve: `latency_ns_p95` against
//! the load, in percent of the throughput that the profile promises, to a tenth.
//!
//! # Limits
//! On a shared host, latency includes the load of others: an excess may be momentary.
//!
//! # Source
//! ResQ, figure 7 (latency by load, of all NFs).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};
use sluice_cache::trace::examples::{Example, Scale};
use sluice_slo::curve::LOADS;

use crate::bench::lab::{Miss, Row};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::table::{Column, Form, Group};

/// Prefix of the names of these variants.
pub const WHOLE: &str = "whole/";
/// Name of the variants that are points of latency curves.
pub const CURVE: &str = "latency";

pub const GROUP: Group = Group {
    title: "Whole profiles, and their NFs measured again",
    keys: &["law"],
    columns: &[
        Column::new("profile_s", "s to make", 1.0, 1),
        Column::new("points_count", "points", 1.0, 0),
        Column::new("latency_points_count", "of latency", 1.0, 0),
        Column::new("margin_percent", "margin %", 1.0, 1),
        Column::new("latency_margin_percent", "of latency %", 1.0, 1),
        Column::new("throughput_above_percent", "promised above %", 1.0, 1),
        Column::new("distance_percent", "latency off %", 1.0, 1),
        Column::new("above_percent", "above promise %", 1.0, 1),
        Column::new("loads_above_percent", "at % of loads", 1.0, 0),
        Column::new("always_above_percent", "always at %", 1.0, 0),
    ],
    plotted: 1,
    form: Form::Bars,
};

/// Those of uniform flows; others have another title.
pub const CURVES: Group = Group {
    title: "Latency by load in percent of what is promised, uniform flows",
    keys: &["nf"],
    columns: &[Column::new("latency_ns_p95", "p95 µs", 1e3, 1)],
    plotted: 1,
    form: Form::LogSeries("load_percent"),
};

/// Makes the profile of an example with flows of this law, and measures again. The first row is the
/// profile's, which has these params; the others are its latency curve.
pub fn rows(example: &Example, zipf: Option<f64>, of: &Params) -> Result<Vec<Row>, Miss> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    let here = std::env::current_exe()?;
    let program = |nf: &Example| -> Result<Program, Miss> {
        let input = file(nf.name);
        let path = here.with_file_name(format!("sluice-nf-{}", nf.nf));
        nf.make_file(&path, &input)?;
        Ok(Program { path, args: nf.args(Scale::Large, &input) })
    };
    let traffic = traffic(example, zipf);
    let target = match example.before() {
        Some(before) => {
            let path = file("chain.toml");
            std::fs::write(&path, chain(&[program(before)?, program(example)?]))?;
            vec!["c".to_string(), "--config".into(), path.display().to_string()]
        }
        None => vec![program(example)?.path.display().to_string()],
    };
    let args = if example.before().is_some() { Vec::new() } else { program(example)?.args };
    let run = |more: &[&str]| -> Result<Value, Miss> {
        let mut command = Command::new(&here);
        command.arg("profile").args(&target).args(["--traffic", &traffic, "--json"]).args(more);
        if !args.is_empty() {
            command.arg("--").args(&args);
        }
        answer(&mut command)
    };
    let kept = file("profile.json").display().to_string();
    let began = Instant::now();
    let profile = run(&["--cache", "simulated", "--noisy", "--out", &kept])?;
    let mut found = Sample::from([("profile_s".to_string(), began.elapsed().as_secs_f64())]);
    let mut put = |name: &str, value: f64| found.extend([(name.to_string(), value)]);
    for (name, curve) in [("", &profile["throughput"]), ("latency_", &profile["latency"])] {
        put(&format!("{name}points_count"), number(&curve["measured"])?);
        put(&format!("{name}margin_percent"), number(&curve["margin"])? * 100.0);
    }
    let (floor_pps, cache) = (number(&profile["floor_pps"])?, &profile["cache"]);
    let (references, miss_ns) = (number(&cache["references_per_packet"])?, number(&cache["miss_ns"])?);
    put("miss_ns", miss_ns);
    if example.before().is_none() {
        // Without misses. A chain has one NF's rate but the references of all.
        put("base_ns", 1e9 / floor_pps - references * miss_ns);
        compare(&run(&["--check", &kept])?, &mut put)?;
    }
    let mut rows = vec![Row::new(&format!("{WHOLE}{}", example.name), of, found)];
    rows.extend(curve(example.name, of, &profile["latency"])?);
    Ok(rows)
}

/// The points of a profile's latency curve, whose last load is the most of [`LOADS`].
fn curve(nf: &str, of: &Params, latency: &Value) -> Result<Vec<Row>, Miss> {
    let points = latency["points"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(last) = points.last() else { return Ok(Vec::new()) };
    let most_pps = number(&last["x"])?;
    let row = |point: &Value| -> Result<Row, Miss> {
        let percent = number(&point["x"])? / most_pps * LOADS.1 * 100.0;
        let mut of = of.clone();
        of.extend([("nf".to_string(), json!(nf)), ("load_percent".to_string(), json!((percent * 10.0).round() / 10.0))]);
        Ok(Row::new(CURVE, &of, Sample::from([("latency_ns_p95".to_string(), number(&point["y"])? * 1e3)])))
    };
    points.iter().map(row).collect()
}

struct Program {
    path: PathBuf,
    args: Vec<String>,
}

/// The argument of `--traffic`.
fn traffic(example: &Example, zipf: Option<f64>) -> String {
    let zipf = zipf.map_or(String::new(), |exponent| format!(",zipf={exponent}"));
    format!("size={},flows={}{zipf},spread={}", example.bytes, example.flows(Scale::Large), u8::from(example.spread))
}

/// A configuration with these programs as the chain `c`.
fn chain(programs: &[Program]) -> String {
    let services = programs.iter().enumerate().map(|(i, Program { path, args })| {
        format!("[[service]]\nname = \"s{i}\"\nexec = {path:?}\nargs = {args:?}\n", path = path.display().to_string())
    });
    let names: Vec<String> = (0..programs.len()).map(|i| format!("s{i}")).collect();
    let ports = "[[port]]\nname = \"in\"\nkind = \"gen\"\n[[port]]\nname = \"out\"\nkind = \"sink\"\n";
    let chain = format!("[[chain]]\nname = \"c\"\nservices = {names:?}\negress = \"out\"\n");
    services.chain([ports.to_string(), chain]).collect()
}

/// Runs a command that prints JSON.
///
/// # Errors
/// It fails; it is left out if the NF is not built for tracing.
pub fn answer(command: &mut Command) -> Result<Value, Miss> {
    let out = command.output().with_context(|| format!("cannot run {}", Path::new(command.get_program()).display()))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        let why = said.trim().to_string();
        return Err(match why.contains("scripts/trace-nf") && why.contains("no traced") {
            true => Miss::LeaveOut(why),
            false => Miss::Failed(anyhow::anyhow!("sluice profile: {why}")),
        });
    }
    Ok(serde_json::from_slice(&out.stdout).context("sluice profile printed no JSON")?)
}

fn number(value: &Value) -> Result<f64, Miss> {
    Ok(value.as_f64().with_context(|| format!("sluice profile said {value} where a number belongs"))?)
}

/// Adds the new measurement, relative to the promise.
fn compare(again: &Value, put: &mut dyn FnMut(&str, f64)) -> Result<(), Miss> {
    put("throughput_above_percent", (number(&again["promised_pps"])? / number(&again["now_pps"])? - 1.0) * 100.0);
    let all = again["latency"].as_array().map(Vec::as_slice).unwrap_or_default();
    let parts = |of: &str, than: &str| -> Result<Vec<f64>, Miss> {
        all.iter().map(|at| Ok(number(&at[of])? / number(&at[than])? - 1.0)).collect()
    };
    let mut off: Vec<f64> = parts("now_us", "curve_us")?.into_iter().map(f64::abs).collect();
    off.sort_by(f64::total_cmp);
    let (above, always) = (parts("now_us", "promised_us")?, parts("least_us", "promised_us")?);
    let most = above.iter().copied().max_by(f64::total_cmp);
    let (Some(median), Some(most)) = (off.get(off.len() / 2), most) else {
        return Err(Miss::Failed(anyhow::anyhow!("sluice profile measured at no load again")));
    };
    put("distance_percent", median * 100.0);
    put("above_percent", most * 100.0);
    let percent = |of: &[f64]| of.iter().filter(|part| **part > 0.0).count() as f64 / of.len() as f64 * 100.0;
    put("loads_above_percent", percent(&above));
    put("always_above_percent", percent(&always));
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_cache::trace::examples::EXAMPLES;

    use super::*;

    #[test]
    fn what_is_above_the_promise_is_counted() {
        let at = |now: f64| json!({ "load_pps": 1.0, "now_us": now, "least_us": now - 1.0, "curve_us": 10.0, "promised_us": 11.0 });
        let again = json!({ "now_pps": 2e6, "promised_pps": 1.9e6, "latency": [at(9.0), at(11.5), at(12.1), at(10.0)] });
        let mut found = Sample::new();
        compare(&again, &mut |name, value| found.extend([(name.to_string(), value)])).unwrap();
        let is = |name: &str, wanted: f64| assert!((found[name] - wanted).abs() < 1e-6, "{name}: {found:?}");
        is("throughput_above_percent", -5.0);
        is("distance_percent", 15.0);
        is("above_percent", 10.0);
        is("loads_above_percent", 50.0);
        is("always_above_percent", 25.0);
        assert!(compare(&json!({ "now_pps": 1.0, "promised_pps": 1.0, "latency": [] }), &mut |_, _| ()).is_err());
        assert!(compare(&json!({}), &mut |_, _| ()).is_err());
    }

    #[test]
    fn a_latency_curve_has_a_row_for_each_point_by_its_part_of_the_load() {
        let latency = json!({ "points": [{ "x": 1e5, "y": 2.0 }, { "x": 1.9e6, "y": 8.5 }] });
        let of = Params::from([("law".to_string(), json!("uniform"))]);
        let rows = curve("nat", &of, &latency).unwrap();
        let points: Vec<_> = rows.iter().map(|row| (row.params["load_percent"].as_f64(), row.get("latency_ns_p95"))).collect();
        assert_eq!(points, [(Some(5.0), Some(2e3)), (Some(95.0), Some(8.5e3))]);
        assert!(rows.iter().all(|row| row.params["nf"] == "nat" && row.params["law"] == "uniform"));
        assert!(curve("nat", &of, &json!({})).unwrap().is_empty());
    }

    #[test]
    fn a_program_that_cannot_be_traced_is_left_out_and_others_fail() {
        let say = |words: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo '{words}' >&2; exit 1")]);
            answer(&mut command).unwrap_err()
        };
        assert!(matches!(say("there is no traced x: run `scripts/trace-nf x`"), Miss::LeaveOut(_)));
        assert!(matches!(say("no such service"), Miss::Failed(_)));
    }

    #[test]
    fn traffic_and_chains_are_written_as_the_command_reads_them() {
        let search = EXAMPLES.iter().find(|example| example.name == "search").unwrap();
        assert_eq!(traffic(search, Some(1.1)), "size=1514,flows=1000,zipf=1.1,spread=0");
        let program = |name: &str| Program { path: name.into(), args: vec!["--keys".into(), "a b".into()] };
        let written = chain(&[program("/x"), program("/y")]);
        assert!(written.contains("exec = \"/x\"\nargs = [\"--keys\", \"a b\"]") && written.contains("services = [\"s0\", \"s1\"]"));
    }
}
