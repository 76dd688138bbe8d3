//! The model against cachegrind, for the NFs that come along, on the same packets: `make cachegrind`. Needs valgrind, and NFs that
//! scripts/trace-nf has built, with `--plain` and without.
//!
//! Both have an L1 of 32 KiB in 8 ways, no L2, and a last-level cache of 8,192 sets; cachegrind runs once for each number of ways, the
//! model once. Cachegrind counts from the start of the program, so the misses of a second run that ends after the warm-up are taken off. It
//! sees what the model does not: the harness, the standard library, instructions; and other addresses. What these fill of a cache of two
//! ways (1 MiB) costs the NF a hundredth of a miss for each packet, which is more than a percent where there are few misses.
//!
//! `SLUICE_CACHE_NFS=nat,router` compares these alone, `SLUICE_CACHE_WAYS=1,2,20` other numbers of ways, `SLUICE_CACHE_PACKETS` other
//! numbers of packets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sluice_cache::model::{Geometry, Hierarchy};
use sluice_cache::trace::{Traffic, profile};

/// Half a MiB a way: flow tables of some MiB need some ways.
const LLC: Geometry = Geometry { sets: 8_192, ways: 20 };
const L1: Geometry = Geometry { sets: 64, ways: 8 };
const LINE: u32 = 64;
/// How far the model may be from cachegrind, in percent of its misses; or in misses of a packet, where there are few.
const WITHIN_PERCENT: f64 = 1.0;
const NEXT_TO_NONE: f64 = 0.01;

/// An NF and what it gets.
struct Case {
    nf: &'static str,
    /// `FILE` is where its file is.
    args: &'static [&'static str],
    file: fn() -> String,
    flows: u32,
    spread: bool,
    bytes: u32,
}

const fn case(nf: &'static str, args: &'static [&'static str], file: fn() -> String, flows: u32) -> Case {
    Case { nf, args, file, flows, spread: false, bytes: 60 }
}

const NAT: &[&str] = &["--inside", "10.0.0.0/8", "--outside", "203.0.113.1,203.0.113.2,203.0.113.3"];
const BALANCER: &[&str] = &["--vip", "198.18.0.1:9", "--protocol", "udp", "--backends", "FILE", "--connections", "131072"];

const CASES: &[Case] = &[
    case("monitor", &["--flows", "262144"], String::new, 100_000),
    case("nat", NAT, String::new, 50_000),
    case("firewall", &["--rules", "FILE", "--connections", "131072"], stateful, 100_000),
    case("firewall", &["--rules", "FILE"], rules, 10_000),
    case("lb", BALANCER, backends, 50_000),
    Case { spread: true, ..case("router", &["--routes", "FILE"], routes, 50_000) },
    Case { bytes: 1_514, ..case("search", &["--patterns", "FILE"], patterns, 1_000) },
    case("encrypt", &["--keys", "FILE"], || format!("1 {}\n", "5a".repeat(16)), 1_000),
    case("single", &[], String::new, 1_000),
    case("bridge", &[], String::new, 1_000),
    case("macswap", &[], String::new, 1_000),
    case("mark", &[], String::new, 1_000),
    case("vlan", &["tag", "--id", "7"], String::new, 1_000),
];

const LAWS: [Option<f64>; 2] = [None, Some(1.1)];

fn stateful() -> String {
    "stateful\ndefault deny\nallow udp from 10.0.0.0/8\n".into()
}

/// A hundred that match nothing, then one that matches all.
fn rules() -> String {
    (0..100).map(|i| format!("deny udp from 172.16.{i}.0/24 port 53\n")).chain(["allow udp from 10.0.0.0/8\n".into()]).collect()
}

fn backends() -> String {
    (1..=50).map(|i| format!("web{i} 192.0.2.{i}:8080\n")).collect()
}

/// A default and twenty thousand prefixes of 24 bits, all over the space.
fn routes() -> String {
    let mut all: Vec<u32> =
        (0..20_000u32).map(|i| i.wrapping_mul(0x9e37_79b1) >> 8 & 0x7f_ffff).filter(|net| net >> 16 > 0).collect();
    all.sort_unstable();
    all.dedup();
    let lines = all.iter().map(|net| format!("{}.{}.{}.0/24 mac 02:00:00:00:00:02\n", net >> 16, net >> 8 & 0xff, net & 0xff));
    ["0.0.0.0/0 mac 02:00:00:00:00:01\n".into()].into_iter().chain(lines).collect()
}

fn patterns() -> String {
    (0..2_000u32)
        .map(|i| format!("alert hex {:08x}{:08x}\n", i.wrapping_mul(0x9e37_79b1), i.wrapping_mul(0x85eb_ca6b) | 1))
        .collect()
}

/// An NF of a kind, if scripts/trace-nf has built it.
fn built(kind: &str, nf: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(format!("trace-{kind}"));
    let hosts = std::fs::read_dir(target).ok()?.flatten();
    hosts.map(|host| host.path().join("release").join(format!("sluice-nf-{nf}"))).find(|program| program.is_file())
}

/// Misses of data in the last-level cache.
fn cachegrind(program: &Path, args: &[String], traffic: &Traffic, ways: u32) -> u64 {
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
        return eprintln!("skipped: no valgrind; run scripts/deps test");
    }
    let set = |name| std::env::var(name).ok();
    let words = set("SLUICE_CACHE_WAYS").unwrap_or_else(|| "2,8,20".into());
    let packets = set("SLUICE_CACHE_PACKETS").and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let only = set("SLUICE_CACHE_NFS");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let mut wrong = Vec::new();
    for case in CASES.iter().filter(|case| only.as_ref().is_none_or(|only| only.split(',').any(|nf| nf == case.nf))) {
        let (Some(traced), Some(plain)) = (built("traced", case.nf), built("plain", case.nf)) else {
            eprintln!("skipped: {} is not built; make cachegrind does it", case.nf);
            continue;
        };
        std::fs::write(&file, (case.file)()).unwrap();
        let args: Vec<String> = case.args.iter().map(|arg| arg.replace("FILE", file.to_str().unwrap())).collect();
        for zipf in LAWS {
            let Case { flows, bytes, spread, .. } = *case;
            let traffic = Traffic { packets, warm_up: packets / 2, flows, zipf, bytes, spread, seed: 7 };
            let hierarchy = Hierarchy { line: LINE, l1: Some(L1), l2: None, llc: LLC };
            let curve = profile(&traced, &args, &traffic, hierarchy).unwrap();
            for ways in words.split(',').map(|word| word.parse().unwrap()) {
                let whole = cachegrind(&plain, &args, &traffic, ways);
                let warm_up = cachegrind(&plain, &args, &Traffic { packets: 0, ..traffic.clone() }, ways);
                let wanted = whole.saturating_sub(warm_up) as f64 / packets as f64;
                let got = curve.misses_per_packet(ways);
                let error = if got == wanted { 0.0 } else { (got - wanted) / wanted.max(1.0 / packets as f64) * 100.0 };
                let law = zipf.map_or("uniform".into(), |s| format!("Zipf {s}"));
                let nf = case.nf;
                let none = (got - wanted).abs() <= NEXT_TO_NONE;
                let line =
                    format!("{nf:9} {law:8} {ways:2} ways: {got:8.4} misses a packet, cachegrind {wanted:8.4} ({error:+.2} %)");
                println!("{line}");
                if !none && error.abs() > WITHIN_PERCENT {
                    wrong.push(line);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "more than {WITHIN_PERCENT} % off:\n{}", wrong.join("\n"));
}
