//! What leaves the daemon, checked by other programs: tshark and editcap.
//!
//! `SLUICE_CAPTURES` names a folder of more captures to replay.

use std::path::{Path, PathBuf};
use std::process::Command;

use sluice_api::model::Stats;

use crate::skip::skip;
use crate::support::{Daemon, chain, find_port, nf, port, service};

/// The outside address of the NAT.
const OUTSIDE: &str = "203.0.113.7";

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// Whether these programs are installed. In CI, a missing one is an error.
fn has(tools: &[&str]) -> bool {
    let runs = |tool: &&&str| Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    let missing: Vec<_> = tools.iter().filter(|tool| !runs(tool)).collect();
    if !missing.is_empty() {
        skip(format_args!("{missing:?} are missing; run `make deps`"));
    }
    missing.is_empty()
}

/// A packet by tshark: its source and checksum states (0 bad, 1 good, 2 unverified, 3 absent).
#[derive(Debug)]
struct Verdict {
    src: String,
    checksums: [Option<u8>; 4],
}

impl Verdict {
    fn is_bad(&self) -> bool {
        self.checksums.contains(&Some(0))
    }
}

/// tshark's verdicts on IPv4, TCP, UDP and ICMP checksums, over fragments, too.
fn verdicts(capture: &Path) -> Vec<Verdict> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]);
    for preference in ["ip", "tcp", "udp"] {
        tshark.args(["-o", &format!("{preference}.check_checksum:TRUE")]);
    }
    for field in ["ip.src", "ip.checksum.status", "tcp.checksum.status", "udp.checksum.status", "icmp.checksum.status"] {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = |line: &str| {
        let mut fields = line.split(';');
        let src = fields.next().unwrap().into();
        let mut status = || fields.next().unwrap().parse().ok();
        Verdict { src, checksums: [status(), status(), status(), status()] }
    };
    String::from_utf8(output.stdout).unwrap().lines().map(line).collect()
}

/// Sends a capture through the NAT into another one, and waits for all of it.
fn through_nat(capture: &Path, target: &Path, inside: &str) {
    let packets = verdicts(capture).len() as u64;
    let nat = format!("args = [\"--inside\", \"{inside}\", \"--outside\", \"{OUTSIDE}\"]");
    let body = port("in", "pcap", &format!("read = {capture:?}\noverload = \"wait\""))
        + &port("out", "pcap", &format!("write = {target:?}"))
        + &service("nat", &nf("sluice-nf-nat"), &nat)
        + &chain("c", "in", &["nat"], "out", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("the capture has passed", |s| find_port(s, "in").finished && find_port(s, "out").tx_packets == packets);
    daemon.wait_until_empty();
    daemon.stop();
}

/// Checks that checksums are right after the NAT, and no inside address shows.
#[track_caller]
fn is_right_behind_nat(capture: &Path, inside: &str, hosts: &str) {
    let folder = crate::support::open_folder();
    let target = folder.path().join("out.pcap");
    through_nat(capture, &target, inside);
    let (before, after) = (verdicts(capture), verdicts(&target));
    assert_eq!(before.len(), after.len());
    assert!(before.iter().any(|v| v.src.starts_with(hosts)), "nothing to translate");
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(!before.is_bad(), "packet {number} was wrong before: {before:?}");
        assert!(!after.is_bad(), "packet {number}: {after:?}");
        let wanted = if before.src.starts_with(hosts) { OUTSIDE } else { &before.src };
        assert_eq!(after.src, wanted, "packet {number}");
    }
    // The check works: it finds a flipped bit.
    let mut bytes = std::fs::read(&target).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&target, bytes).unwrap();
    assert!(verdicts(&target).last().unwrap().is_bad());
}

#[test]
fn generated_packets_have_valid_checksums_behind_nat() {
    if !has(&["tshark"]) {
        return;
    }
    let folder = crate::support::open_folder();
    let file = folder.path().join("generated.pcap");
    let keys = |protocol: &str, size: u32| {
        format!(
            "protocol = \"{protocol}\"\nsize = {size}\ncount = 200\nflows = 50\nsrc = \"10.1.0.1\"\ndst = \"198.51.100.9\"\noverload = \"wait\""
        )
    };
    let body = port("udp", "gen", &keys("udp", 90))
        + &port("tcp", "gen", &keys("tcp", 1001))
        + &port("file", "pcap", &format!("write = {file:?}"))
        + &chain("u", "udp", &[], "file", "")
        + &chain("t", "tcp", &[], "file", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("all are written", |s: &Stats| find_port(s, "file").tx_packets == 400);
    daemon.stop();
    is_right_behind_nat(&file, "10.0.0.0/8", "10.1.0.");
}

#[test]
fn real_packets_have_valid_checksums_behind_nat() {
    if has(&["tshark"]) {
        is_right_behind_nat(&captures().join("host-traffic.pcap"), "10.77.0.0/16", "10.77.0.");
    }
}

#[test]
fn real_captures_come_out_byte_for_byte() {
    if !has(&["tshark", "editcap", "curl"]) {
        return;
    }
    let programs = Path::new(&nf("sluice-nf-bridge")).parent().unwrap().to_path_buf();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/replay-corpus");
    for corpus in [Some(captures()), std::env::var_os("SLUICE_CAPTURES").map(PathBuf::from)].into_iter().flatten() {
        let output = Command::new(&script).arg(&corpus).arg(&programs).output().unwrap();
        let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}\n{wrong}");
        assert!(said.contains("same ") && said.contains(" 0 did not"), "{said}");
        assert_eq!(wrong, "", "what it says of itself");
    }
}

/// Runs `scripts/deps --check build` with a `cargo` that reports this version.
fn deps_with_cargo(version: &str) -> (bool, String) {
    use std::os::unix::fs::PermissionsExt;
    let folder = crate::support::open_folder();
    let cargo = folder.path().join("cargo");
    std::fs::write(&cargo, format!("#!/bin/sh\necho 'cargo {version} (abcdef 2023-01-01)'\n")).unwrap();
    std::fs::set_permissions(&cargo, PermissionsExt::from_mode(0o755)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/deps");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let output = Command::new("bash")
        .arg(script)
        .args(["--check", "build"])
        .env("PATH", path)
        .env("CARGO_HOME", folder.path())
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_rust_that_is_too_old_is_reported() {
    let (good, said) = deps_with_cargo("1.63.0");
    assert!(!good && said.contains("Rust 1.63.0 is too old") && said.contains("rustup"), "{said}");
    let (_, said) = deps_with_cargo("1.100.1");
    assert!(!said.contains("Rust"), "{said}");
}
