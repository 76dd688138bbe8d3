//! The model against cachegrind, for NFs that come along, on the same packets. Needs valgrind, and NFs that scripts/trace-nf has built:
//!
//! ```sh
//! scripts/trace-nf nat monitor && scripts/trace-nf --plain nat monitor
//! cargo test -p sluice-cache --test cachegrind -- --nocapture
//! ```
//! `SLUICE_CACHE_WAYS=1,2,20` compares other numbers of ways, `SLUICE_CACHE_PACKETS` over other numbers of packets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sluice_cache::model::{Geometry, Hierarchy};
use sluice_cache::trace::{Traffic, profile};

/// Half a MiB a way: flow tables of some MiB need some ways.
const LLC: Geometry = Geometry { sets: 8_192, ways: 20 };
const L1: Geometry = Geometry { sets: 64, ways: 8 };
const LINE: u32 = 64;
/// How far the model may be from cachegrind, in percent of its misses; where there are next to none, in misses of a packet.
const WITHIN_PERCENT: f64 = 1.0;
const NEXT_TO_NONE: f64 = 0.01;

/// NFs, their arguments, and their flows.
const CASES: &[(&str, &[&str], u32, Option<f64>)] = &[
    ("monitor", &["--flows", "262144"], 100_000, None),
    ("nat", &["--inside", "10.0.0.0/8", "--outside", "203.0.113.1,203.0.113.2,203.0.113.3"], 50_000, None),
    ("nat", &["--inside", "10.0.0.0/8", "--outside", "203.0.113.1,203.0.113.2,203.0.113.3"], 50_000, Some(1.1)),
];

fn built(kind: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(format!("trace-{kind}"));
    let hosts = std::fs::read_dir(target).ok()?.flatten().map(|entry| entry.path().join("release"));
    hosts.into_iter().find(|folder| folder.join("sluice-nf-nat").is_file() && folder.join("sluice-nf-monitor").is_file())
}

/// Misses of data in the last-level cache.
fn cachegrind(program: &Path, args: &[&str], traffic: &Traffic, ways: u32) -> u64 {
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
    let (Some(traced), Some(plain)) = (built("traced"), built("plain")) else {
        return eprintln!("skipped: no traced NFs; run scripts/trace-nf nat monitor, and the same with --plain");
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        return eprintln!("skipped: no valgrind; run scripts/deps test");
    }
    let words = std::env::var("SLUICE_CACHE_WAYS").unwrap_or_else(|_| "2,8,20".into());
    let packets = std::env::var("SLUICE_CACHE_PACKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let mut worst: f64 = 0.0;
    for (nf, args, flows, zipf) in CASES {
        let name = format!("sluice-nf-{nf}");
        let traffic = Traffic { packets, warm_up: packets / 2, flows: *flows, zipf: *zipf, bytes: 60, spread: false, seed: 7 };
        let owned: Vec<String> = args.iter().map(|arg| (*arg).into()).collect();
        let hierarchy = Hierarchy { line: LINE, l1: Some(L1), l2: None, llc: LLC };
        let curve = profile(&traced.join(&name), &owned, &traffic, hierarchy).unwrap();
        for ways in words.split(',').map(|word| word.parse().unwrap()) {
            // Cachegrind counts from the start; the warm-up alone is taken off.
            let whole = cachegrind(&plain.join(&name), args, &traffic, ways);
            let warm_up = cachegrind(&plain.join(&name), args, &Traffic { packets: 0, ..traffic.clone() }, ways);
            let wanted = (whole - warm_up) as f64 / packets as f64;
            let got = curve.misses_per_packet(ways);
            let error = (got - wanted) / wanted * 100.0;
            let zipf = zipf.map_or("uniform".into(), |s| format!("Zipf {s}"));
            println!("{nf} {zipf}, {ways} ways: {got:.4} misses a packet, cachegrind {wanted:.4} ({error:+.2} %)");
            if (got - wanted).abs() > NEXT_TO_NONE {
                worst = worst.max(error.abs());
            }
        }
    }
    assert!(worst <= WITHIN_PERCENT, "{worst:.2} %");
}
