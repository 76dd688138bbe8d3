//! `sluice profile`: real NFs, alone between two rings.

use std::path::Path;
use std::process::{Command, Output};

use sluice_resctrl_stand_in::{Machine, StandIn};
use sluice_slo::profile::{Digest, Profile, Source};
use sluice_slo::slo::Workload;

use crate::support::nf;

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).arg("profile").args(args).output().expect("sluice runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether it could be measured; false, with the reason printed, where there is but one core.
fn measured(out: &Output) -> bool {
    if text(&out.stderr).contains("need a core each") {
        println!("left out: {}", text(&out.stderr));
        return false;
    }
    assert!(out.status.success(), "{}", text(&out.stderr));
    true
}

/// One line, besides what the NF itself has said.
fn refusal(args: &[&str]) -> String {
    let out = sluice(args);
    assert!(!out.status.success(), "{args:?}: {}", text(&out.stdout));
    let said = text(&out.stderr);
    assert_eq!(said.lines().filter(|line| line.starts_with("sluice: ")).count(), 1, "{said}");
    said
}

#[test]
fn a_profile_is_written_drawn_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (program, traffic) = (nf("sluice-nf-cost"), "flows=50");
    let files = ["--out", &path("cost.json"), "--plot", &path("cost.svg")];
    let start = [program.as_str(), "--cache", "none", "--traffic", traffic];
    let out = sluice(&[&start[..], &files[..], &["--", "--cycles", "2000"][..]].concat());
    if !measured(&out) {
        return;
    }
    let profile = Profile::load(Path::new(&path("cost.json"))).unwrap();
    assert_eq!((profile.source, profile.best_ways, profile.throughput.points.len()), (Source::None, 1, 1));
    assert_eq!(profile.key.workload, Workload::Nf(program.clone()));
    assert_eq!(profile.key.binaries, [Digest::of(&std::fs::read(&program).unwrap())]);
    assert_eq!(profile.key.traffic, "size=60,flows=50");
    assert!((3..=12).contains(&profile.latency.measured), "{:?}", profile.latency);
    assert!(profile.throughput_pps(1) > 0.0 && profile.least_latency_us() > 0.0);
    let told = text(&out.stdout);
    assert!(told.contains("MPPS") && told.contains("95TH PERCENTILE") && told.contains("margin"), "{told}");
    assert!(std::fs::read_to_string(path("cost.svg")).unwrap().contains("</svg>"));
}

#[test]
fn a_captures_packets_are_told_by_their_name_and_contents() {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/host-traffic.pcap").display().to_string();
    let out = sluice(&[&nf("sluice-nf-cost"), "--cache", "none", "--traffic", &capture, "--json", "--", "--cycles", "3000"]);
    if measured(&out) {
        let profile: Profile = serde_json::from_slice(&out.stdout).expect("it prints JSON and nothing else");
        assert!(profile.key.traffic.starts_with("host-traffic.pcap "), "{}", profile.key.traffic);
    }
}

#[test]
fn the_kernel_s_classes_are_used_released_and_their_refusal_told() {
    let kernel = match StandIn::mount(Machine::default()) {
        Ok(kernel) => kernel,
        Err(why) => return println!("left out: no FUSE file system can be mounted here ({why})"),
    };
    let (mount, program) = (kernel.path().display().to_string(), nf("sluice-nf-cost"));
    let args = [program.as_str(), "--cache", "resctrl", "--resctrl", mount.as_str(), "--json", "--", "--cycles", "3000"];
    let out = sluice(&args);
    if !measured(&out) {
        return;
    }
    let profile: Profile = serde_json::from_slice(&out.stdout).expect("it prints JSON and nothing else");
    // Devices have two of the twenty ways.
    assert_eq!((profile.source, profile.best_ways), (Source::Measured, 18));
    assert!((3..=12).contains(&profile.throughput.measured), "{:?}", profile.throughput);
    assert!(!kernel.path().join("sluice-profile").exists(), "the class is released");
    // A new group has all ways, and leaves none to give.
    std::fs::create_dir(kernel.path().join("other")).unwrap();
    let said = refusal(&args);
    assert!(said.contains("way"), "{said}");
    assert!(!kernel.path().join("sluice-profile").exists(), "nothing is left behind");
}

#[test]
fn what_cannot_be_profiled_is_said() {
    let folder = tempfile::tempdir().unwrap();
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
    // With one core, that is what is said.
    let said = refusal(&["/bin/true", "--cache", "none"]);
    assert!(said.contains("before it attached") || said.contains("need a core each"), "{said}");
}
