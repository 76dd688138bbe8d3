//! The model against cachegrind, for Sluice's own NFs on the same packets.
//!
//! Run by `make cachegrind`; needs valgrind, and NFs that scripts/trace-nf has built, with
//! `--plain` and without.
//!
//! Both have an L1 of 32 KiB in 8 ways, no L2, and a last-level cache of 8,192 sets; cachegrind
//! runs once for each number of ways, the model once. For some NFs the model runs a second time,
//! with its L2 in the place of the L1 ([`SECOND`]): cachegrind has no third cache. Cachegrind
//! counts from the start of the program, so the misses of a second run that ends after the warm-up
//! are subtracted. It also counts what the model does not: the harness, the standard library and
//! instructions; and its addresses differ. In a cache of two ways (1 MiB) these cost the NF a
//! hundredth of a miss per packet, which is more than a percent where there are few misses.
//!
//! Programs are searched in cargo's target folder, `CARGO_TARGET_DIR` if it is set. Missing ones
//! are skipped with a message; with `SLUICE_CACHEGRIND=required`, as `make cachegrind` sets it,
//! they are a failure.
//!
//! `SLUICE_CACHE_NFS=nat,router` selects NFs, `SLUICE_CACHE_WAYS=1,2,20` numbers of ways, and
//! `SLUICE_CACHE_PACKETS` a number of packets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sluice_cache::model::{Geometry, Hierarchy};
use sluice_cache::trace::examples::{EXAMPLES, Example, Scale};
use sluice_cache::trace::{Traced, TracedTraffic, profile};

/// Half a MiB per way: flow tables of some MiB need some ways.
const LLC: Geometry = Geometry { sets: 8_192, ways: 20 };
const L1: Geometry = Geometry { sets: 64, ways: 8 };
const LINE: u32 = 64;
/// Tolerance of the model against cachegrind: percent of its misses, or misses per packet where
/// there are few.
const WITHIN_PERCENT: f64 = 1.0;
const NEXT_TO_NONE: f64 = 0.01;

/// The example that touches no packet.
const UNTOUCHED: &str = "bridge";
/// Examples with disk batches, compared from `WAYS_OF_BATCHES` ways on. With two ways the model
/// itself counts 0.98 or 0.02 misses per packet for the logger, depending on where the allocator
/// puts its batches (`MALLOC_MMAP_THRESHOLD_`). With one way cachegrind's misses of the lookup
/// differ fourfold between runs.
const BATCHES: [&str; 2] = ["logger", "lookup"];
const WAYS_OF_BATCHES: u32 = 4;
/// Examples that use much of the cache with few accesses per packet.
const SECOND: [&str; 2] = ["monitor", "nat"];

const LAWS: [Option<f64>; 2] = [None, Some(1.1)];

/// An NF of a kind, if scripts/trace-nf has built it.
fn built(kind: &str, nf: &str) -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    // A relative one is relative to where scripts/trace-nf runs.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(set.unwrap_or_else(|| "target".into()));
    let target = target.join(format!("trace-{kind}"));
    let hosts = std::fs::read_dir(target).ok()?.flatten();
    hosts.map(|host| host.path().join("release").join(format!("sluice-nf-{nf}"))).find(|program| program.is_file())
}

/// Reports what is skipped, where skipping is allowed.
fn skipped(why: &str) {
    let is_required = std::env::var("SLUICE_CACHEGRIND").is_ok_and(|value| value == "required");
    assert!(!is_required, "{why}");
    eprintln!("skipped: {why}");
}

/// Misses of data in the last-level cache.
fn cachegrind(program: &Path, args: &[String], traffic: &TracedTraffic, ways: u32) -> u64 {
    let cache = |name: &str, geometry: Geometry| {
        format!("--{name}={},{},{LINE}", u64::from(geometry.sets) * u64::from(geometry.ways) * u64::from(LINE), geometry.ways)
    };
    let out = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null"])
        .args([cache("I1", L1), cache("D1", L1), cache("LL", Geometry { ways, ..LLC })])
        .arg(program)
        .args(args)
        .env("SLUICE_TRACE", traffic.variable())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    let line = text.lines().find(|line| line.contains("LLd misses:")).unwrap();
    line.split("misses:").nth(1).unwrap().split_whitespace().next().unwrap().replace(',', "").parse().unwrap()
}

#[test]
fn the_model_says_what_cachegrind_says() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skipped("no valgrind; run scripts/deps test");
    }
    let set = |name| std::env::var(name).ok();
    let words = set("SLUICE_CACHE_WAYS").unwrap_or_else(|| "2,8,20".into());
    let packets = set("SLUICE_CACHE_PACKETS").and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let only = set("SLUICE_CACHE_NFS");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let (mut wrong, mut compared) = (Vec::new(), 0);
    let is_asked = |of: &&Example| only.as_ref().is_none_or(|only| only.split(',').any(|nf| nf == of.nf));
    // An NF that needs another NF's packets cannot generate its own.
    for example in EXAMPLES.iter().filter(|of| of.behind.is_none()).filter(is_asked) {
        let (Some(traced), Some(plain)) = (built("traced", example.nf), built("plain", example.nf)) else {
            skipped(&format!("{} is not built; make cachegrind does it", example.nf));
            continue;
        };
        example.make_file(&plain, &file).unwrap();
        let args = example.args(Scale::Small, &file);
        let traced = Traced { program: traced, args: args.clone(), env: Vec::new() };
        for zipf in LAWS {
            let Example { name, bytes, spread, .. } = *example;
            let flows = example.flows(Scale::Small);
            let traffic = TracedTraffic { packets, warm_up: packets / 2, accesses: None, flows, zipf, bytes, spread, seed: 7 };
            let mut hierarchies = vec![("L1", Hierarchy { line: LINE, l1: Some(L1), l2: None, llc: LLC })];
            if SECOND.contains(&name) {
                hierarchies.push(("L2", Hierarchy { line: LINE, l1: None, l2: Some(L1), llc: LLC }));
            }
            let model = |(first, hierarchy)| (first, profile(&traced, &traffic, hierarchy).unwrap());
            let curves: Vec<_> = hierarchies.into_iter().map(model).collect();
            assert!(curves.iter().all(|(_, curve)| curve.accesses > 0 || name == UNTOUCHED), "{name} was not followed");
            let least = if BATCHES.contains(&name) { WAYS_OF_BATCHES } else { 1 };
            for ways in words.split(',').map(|word| word.parse().unwrap()).filter(|ways| *ways >= least) {
                let whole = cachegrind(&plain, &args, &traffic, ways);
                let warm_up = cachegrind(&plain, &args, &TracedTraffic { packets: 0, ..traffic.clone() }, ways);
                let wanted = whole.saturating_sub(warm_up) as f64 / packets as f64;
                for (first, curve) in &curves {
                    let got = curve.misses_per_packet(ways);
                    let error = if got == wanted { 0.0 } else { (got - wanted) / wanted.max(1.0 / packets as f64) * 100.0 };
                    let law = zipf.map_or("uniform".into(), |s| format!("Zipf {s}"));
                    compared += 1;
                    let none = (got - wanted).abs() <= NEXT_TO_NONE;
                    let misses = format!("{got:8.4} misses a packet, cachegrind {wanted:8.4} ({error:+.2} %)");
                    let line = format!("{name:17} {law:8} {first} {ways:2} ways: {misses}");
                    println!("{line}");
                    if !none && error.abs() > WITHIN_PERCENT {
                        wrong.push(line);
                    }
                }
            }
        }
    }
    if compared == 0 {
        skipped("nothing was compared; see SLUICE_CACHE_NFS and SLUICE_CACHE_WAYS");
    }
    assert!(wrong.is_empty(), "more than {WITHIN_PERCENT} % off:\n{}", wrong.join("\n"));
}
