//! `sluice profile`: real NFs, alone between two rings.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sluice_resctrl_stand_in::{Machine, StandIn};
use sluice_slo::digest::Digest;
use sluice_slo::profile::{Profile, Source};
use sluice_slo::slo::Workload;

use crate::skip::skip;
use crate::support::{chain, nf, port, service};

fn sluice(args: &[&str]) -> Output {
    Command::new(crate::support::sluice()).arg("profile").args(args).output().expect("sluice runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether it could be measured; false, and the test is skipped, on one core.
pub fn measured(out: &Output) -> bool {
    if text(&out.stderr).contains("need a core each") {
        skip(text(&out.stderr));
        return false;
    }
    assert!(out.status.success(), "{}", text(&out.stderr));
    true
}

/// The stderr of a refusal: one line of `sluice`, besides the NF's own output.
fn refusal(args: &[&str]) -> String {
    let out = sluice(args);
    assert!(!out.status.success(), "{args:?}: {}", text(&out.stdout));
    let said = text(&out.stderr);
    assert_eq!(said.lines().filter(|line| line.starts_with("sluice: ")).count(), 1, "{said}");
    said
}

#[test]
fn a_profile_is_written_drawn_and_read_back() {
    let folder = crate::support::open_folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (program, traffic) = (nf("sluice-nf-cost"), "flows=50");
    let files = ["--noisy", "--out", &path("cost.json"), "--plot", &path("cost.svg")];
    let start = [program.as_str(), "--cache", "none", "--traffic", traffic];
    let out = sluice(&[&start[..], &files[..], &["--", "--cycles", "2000"][..]].concat());
    if !measured(&out) {
        return;
    }
    let profile = Profile::load(Path::new(&path("cost.json"))).unwrap();
    assert_eq!((profile.source, profile.throughput.points.len()), (Source::None, 1));
    assert!(text(&out.stderr).contains("ddio_ways = 0"), "{}", text(&out.stderr));
    assert_eq!(f64::from(profile.best_ways), profile.throughput.points[0].x, "with the whole cache");
    assert_eq!(profile.key.workload, Workload::Nf(program.clone()));
    assert_eq!(profile.key.binaries, [Digest::of(&std::fs::read(&program).unwrap())]);
    assert_eq!(profile.key.traffic, "size=60,flows=50");
    assert!((3..=12).contains(&profile.latency.measured), "{:?}", profile.latency);
    assert!(profile.throughput_pps(profile.best_ways) > 0.0 && profile.least_latency_us(profile.best_ways) > 0.0);
    let sure = profile.latency.confidence;
    assert!(sure.samples >= 7 * sure.points && sure.within <= sure.samples && sure.points == profile.latency.measured, "{sure:?}");
    let printed = text(&out.stdout);
    assert!(printed.contains("samples") && printed.contains("within what is promised"), "{printed}");
    assert!(printed.contains("MPPS") && printed.contains("95TH PERCENTILE") && printed.contains("margin"), "{printed}");
    assert!(std::fs::read_to_string(path("cost.svg")).unwrap().contains("</svg>"));

    // A second measurement checks the profile; another configuration is refused.
    let check = [program.as_str(), "--check", &path("cost.json"), "--traffic", traffic, "--loads", "4"];
    let out = sluice(&[&check[..], &["--json", "--", "--cycles", "2000"][..]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let again: Value = serde_json::from_slice(&out.stdout).expect("it prints JSON and nothing else");
    let (at, loads) = (again["latency"].as_array().unwrap(), &profile.latency.points);
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap();
    let ends = [0, 3].map(|i| number(&at[i], "load_pps"));
    assert_eq!((ends, at.len()), ([loads.first().unwrap().x, loads.last().unwrap().x], 4));
    let promised = profile.throughput_pps(profile.best_ways);
    assert!(number(&again, "now_pps") > 0.0 && (number(&again, "promised_pps") / promised - 1.0).abs() < 1e-9, "{again}");
    for at in at {
        let [now, curve, promised] = ["now_us", "curve_us", "promised_us"].map(|name| number(at, name));
        assert!(now > 0.0 && curve > 0.0 && promised >= curve, "{again}");
    }
    let out = sluice(&[&check[..], &["--", "--cycles", "2000"][..]].concat());
    assert!(text(&out.stdout).contains("of 4 loads"), "{}", text(&out.stdout));
    let said = refusal(&[&check[..], &["--", "--cycles", "2001"][..]].concat());
    assert!(said.contains("configuration") && said.contains("profile that"), "{said}");
}

#[test]
fn a_profile_is_of_a_quiet_host_or_is_not_written() {
    let folder = crate::support::open_folder();
    let file = folder.path().join("cost.json").display().to_string();
    let out = sluice(&[&nf("sluice-nf-cost"), "--cache", "none", "--out", &file, "--", "--cycles", "2000"]);
    let said = text(&out.stderr);
    if said.contains("need a core each") {
        return skip(said);
    }
    // Beside other tests, either may happen.
    if out.status.success() {
        Profile::load(Path::new(&file)).unwrap().check_quiet().unwrap();
    } else {
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("sluice: host too noisy: ") && last.contains("run again on a quiet host"), "{said}");
        assert!(out.status.code() == Some(1) && !Path::new(&file).exists(), "{said}");
    }
}

#[test]
fn a_captures_packets_are_known_by_their_name_and_contents() {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/host-traffic.pcap").display().to_string();
    let out =
        sluice(&[&nf("sluice-nf-cost"), "--cache", "none", "--traffic", &capture, "--noisy", "--json", "--", "--cycles", "3000"]);
    if measured(&out) {
        let profile: Profile = serde_json::from_slice(&out.stdout).expect("it prints JSON and nothing else");
        assert!(profile.key.traffic.starts_with("host-traffic.pcap "), "{}", profile.key.traffic);
    }
}

/// A configuration with a chain of these services.
fn config(folder: &Path, name: &str, services: &[(&str, &str, &str)]) -> String {
    let names: Vec<&str> = services.iter().map(|(name, ..)| *name).collect();
    let services = services.iter().map(|(name, program, more)| service(name, &nf(program), more));
    let parts =
        [port("in", "gen", ""), port("out", "sink", "")].into_iter().chain(services).chain([chain("c", "in", &names, "out", "")]);
    let path = folder.join(name);
    std::fs::write(&path, parts.collect::<String>()).unwrap();
    path.display().to_string()
}

#[test]
fn a_chain_is_profiled_as_its_nfs_with_what_the_one_before_sends_on() {
    let folder = crate::support::open_folder();
    let rules = folder.path().join("rules");
    // Half of the flows: sources are 10.0.0.0 and up.
    std::fs::write(&rules, "default deny\nallow udp from 10.0.0.0/27\n").unwrap();
    let fw = format!("args = [\"--rules\", {:?}]", rules.display().to_string());
    let services = [("fw", "sluice-nf-firewall", fw.as_str()), ("work", "sluice-nf-cost", "args = [\"--cycles\", \"3000\"]")];
    let edge = config(folder.path(), "edge.toml", &services);
    let profile = |name: &str, cache: &str| {
        let out = sluice(&[name, "--config", &edge, "--cache", cache, "--traffic", "flows=64", "--noisy", "--json"]);
        measured(&out).then(|| serde_json::from_slice::<Profile>(&out.stdout).expect("it prints JSON and nothing else"))
    };
    let (Some(whole), Some(work)) = (profile("c", "none"), profile("work", "none")) else { return };
    assert_eq!(whole.key.workload, Workload::Chain(vec!["fw".into(), "work".into()]));
    let binaries = ["sluice-nf-firewall", "sluice-nf-cost"].map(|name| Digest::of(&std::fs::read(nf(name)).unwrap()));
    assert_eq!((whole.key.binaries.as_slice(), whole.cores), (&binaries[..], 2));
    assert_ne!(whole.key.configuration, work.key.configuration);
    assert!(
        whole.throughput_pps(whole.best_ways) > 0.0 && whole.least_latency_us(whole.best_ways) > 0.0 && whole.stages.is_empty()
    );

    // The chain's NFs share one modelled cache.
    if are_traced(&["firewall", "macswap"]) {
        let services = [("fw", "sluice-nf-firewall", fw.as_str()), ("swap", "sluice-nf-macswap", "")];
        let swap = config(folder.path(), "swap.toml", &services);
        let model = ["--cache", "simulated", "--miss-ns", "100", "--traffic", "flows=64", "--noisy", "--json"];
        let out = sluice(&[&["c", "--config", &swap][..], &model].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        let found: Profile = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(found.source, Source::Simulated);
        assert!((1..=12).contains(&found.throughput.measured) && found.best_ways > 1, "{found:?}");
        found.check().unwrap();
        // Neither needs much of the cache.
        let speeds: Vec<f64> = found.stages.iter().map(|stage| stage.speed(f64::from(found.best_ways))).collect();
        assert!(speeds.len() == 2 && speeds.iter().all(|speed| *speed > 0.5), "{speeds:?}");
    }
}

/// Whether traced builds of these NFs exist; `make test` makes them.
fn are_traced(nfs: &[&str]) -> bool {
    let built = nfs.iter().all(|name| sluice_cache::trace::beside(Path::new(&nf(&format!("sluice-nf-{name}")))).is_some());
    let is_required = std::env::var("SLUICE_TRACED").is_ok_and(|value| value == "required");
    assert!(built || !is_required, "run `scripts/trace-nf {}`", nfs.join(" "));
    if !built {
        println!("the modelled cache is left out: run `scripts/trace-nf {}`", nfs.join(" "));
    }
    built
}

#[test]
fn a_traced_nf_s_profile_tells_what_it_does_with_less_cache() {
    let args = ["--inside", "10.0.0.0/8", "--outside", "203.0.113.1,203.0.113.2"];
    let program = nf("sluice-nf-nat");
    let start =
        [program.as_str(), "--cache", "simulated", "--miss-ns", "100", "--traffic", "flows=50000", "--noisy", "--json", "--"];
    if !are_traced(&["nat"]) {
        return;
    }
    let out = sluice(&[&start[..], &args].concat());
    if !measured(&out) {
        return;
    }
    let found: Profile = serde_json::from_slice(&out.stdout).unwrap();
    let (first, last) = (found.throughput.points.first().unwrap(), found.throughput.points.last().unwrap());
    assert_eq!((found.source, first.x, last.x), (Source::Simulated, 1.0, f64::from(found.best_ways)));
    assert!(first.y <= last.y && found.throughput.measured <= 12, "{found:?}");
    // Packets of other flows touch table lines that the private caches do not hold.
    let (cache, floor) = (found.cache.as_ref().unwrap(), found.floor_pps.unwrap());
    assert!(cache.references_per_packet > 0.01 && cache.miss_ns == 100.0, "{cache:?}");
    assert!(floor > 0.0 && floor <= first.y && floor < last.y, "{floor}: {found:?}");
}

#[test]
fn a_chain_that_cannot_be_profiled_is_said() {
    let folder = crate::support::open_folder();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "default deny\n").unwrap();
    let fw = format!("args = [\"--rules\", {:?}]", rules.display().to_string());
    let services = [("fw", "sluice-nf-firewall", fw.as_str()), ("swap", "sluice-nf-macswap", "")];
    let deny = config(folder.path(), "deny.toml", &services);
    let said = text(&sluice(&["nowhere", "--config", &deny]).stderr);
    assert!(said.contains("no service or chain nowhere") && said.contains("fw, swap") && said.contains("chains c"), "{said}");
    let said = text(&sluice(&["swap", "--chain", "--config", &deny]).stderr);
    assert!(said.contains("no service or chain swap"), "{said}");
    let said = refusal(&["c", "--config", &deny, "--cache", "resctrl"]);
    assert!(said.contains("--cache simulated"), "{said}");
    // With one core, that is the error.
    let said = refusal(&["c", "--config", &deny, "--cache", "none"]);
    assert!(said.contains("gets past fw.0") || said.contains("need a core each"), "{said}");
    let twice = [("a", "sluice-nf-macswap", ""), ("b", "sluice-nf-bridge", "")];
    let path = config(folder.path(), "twice.toml", &twice);
    let written = std::fs::read_to_string(&path).unwrap().replace("[\"a\", \"b\"]", "[\"a\", \"b\", \"a\"]");
    std::fs::write(&path, written).unwrap();
    let said = refusal(&["c", "--config", &path, "--cache", "none"]);
    assert!(said.contains("come to a twice"), "{said}");
}

#[test]
fn the_kernel_s_classes_are_used_released_and_their_refusal_reported() {
    let Some(kernel) = StandIn::for_test(Machine::default()) else { return };
    let (mount, program) = (kernel.path().display().to_string(), nf("sluice-nf-cost"));
    let args = [program.as_str(), "--cache", "resctrl", "--resctrl", mount.as_str(), "--noisy", "--json", "--", "--cycles", "3000"];
    let out = sluice(&args);
    if !measured(&out) {
        return;
    }
    let profile: Profile = serde_json::from_slice(&out.stdout).expect("it prints JSON and nothing else");
    // Devices have two of the twenty ways.
    assert_eq!((profile.source, profile.best_ways), (Source::Measured, 18));
    assert!((3..=12).contains(&profile.throughput.measured), "{:?}", profile.throughput);
    assert!(!kernel.path().join("sluice-profile").exists(), "the class is released");
    // A new group has all ways and leaves none.
    std::fs::create_dir(kernel.path().join("other")).unwrap();
    let said = refusal(&args);
    assert!(said.contains("way"), "{said}");
    assert!(!kernel.path().join("sluice-profile").exists(), "nothing is left behind");
}

#[test]
fn what_cannot_be_profiled_is_said() {
    let folder = crate::support::open_folder();
    let empty = folder.path().join("empty.pcap");
    let header = [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    std::fs::write(&empty, header).unwrap();
    let empty = empty.display().to_string();
    let cost = nf("sluice-nf-cost");
    assert!(refusal(&["no-such-nf"]).contains("there is no program no-such-nf"));
    let said = refusal(&[&cost, "--traffic", &empty]);
    assert!(said.contains("empty.pcap") && said.contains("no packets"), "{said}");
    assert!(refusal(&[&cost, "--cache", "simulated", "--traffic", &format!("{empty}ng")]).contains("empty.pcapng"));
    assert!(refusal(&[&cost, "--out", "/nowhere/x.json"]).contains("there is no folder /nowhere"));
    let copy = folder.path().join("sluice-nf-copy");
    std::fs::copy(&cost, &copy).unwrap();
    let said = refusal(&[copy.to_str().unwrap(), "--cache", "simulated"]);
    assert!(said.contains("run `scripts/trace-nf copy`"), "{said}");
    let said = refusal(&[&cost, "--cache", "resctrl", "--resctrl", "/nowhere"]);
    assert!(said.contains("mount -t resctrl"), "{said}");
    let said = text(&sluice(&[&cost, "--traffic", "colour=1"]).stderr);
    assert!(said.contains("\"colour=1\" names no traffic"), "{said}");
    // With one core, that is the error.
    let said = refusal(&["/bin/true", "--cache", "none"]);
    assert!(said.contains("before it attached") || said.contains("need a core each"), "{said}");
}
