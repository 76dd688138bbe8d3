//! Bad input: one clear error that says what to do, and exit code 1, before anything has started.

use std::path::Path;

use crate::pcap::{MICROS, Order, pcap};
use crate::support::{chain, head, port, refusal, service};

/// A configuration that is right.
fn right(folder: &Path) -> String {
    head(folder, "")
        + &port("in", "gen", "rate = 1000")
        + &port("out", "sink", "")
        + &service("a", "/bin/true", "")
        + &chain("c", "in", &["a"], "out", "")
}

/// Checks that a configuration is refused with these words, in one error, and that nothing was started or made.
#[track_caller]
fn refused(folder: &Path, config: &str, words: &[&str]) {
    let output = refusal(folder, config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} are missing in:\n{said}");
    assert_eq!(said.matches("sluiced: ").count(), 1, "more than one error:\n{said}");
    assert!(!said.contains("ready"), "{said}");
    assert!(!folder.join("run").exists(), "the runtime folder was made:\n{said}");
}

#[track_caller]
fn refused_with(from: &str, to: &str, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let config = right(folder.path());
    assert!(config.contains(from), "{from} is not in the configuration");
    refused(folder.path(), &config.replacen(from, to, 1), words);
}

#[test]
fn an_unknown_key() {
    refused_with("rate = 1000", "rat = 1000", &["rat", "rate"]);
}

#[test]
fn a_missing_port() {
    refused_with("egress = \"out\"", "egress = \"oot\"", &["oot", "out"]);
}

#[test]
fn a_chain_that_goes_round() {
    refused_with("services = [\"a\"]", "services = [\"a\", \"a\"]", &["chain loop", "\"a\""]);
}

#[test]
fn two_nfs_of_one_name() {
    let second = service("a", "/bin/true", "") + "[[chain]]";
    refused_with("[[chain]]", &second, &["\"a\""]);
}

#[test]
fn no_such_core() {
    refused_with("exec = \"/bin/true\"", "exec = \"/bin/true\"\ncores = [4095]", &["4095", "core"]);
}

#[test]
fn no_such_program() {
    refused_with("/bin/true", "/bin/sluice-has-no-such-nf", &["/bin/sluice-has-no-such-nf"]);
}

#[test]
fn no_hugepages() {
    // More than any machine that runs this has set aside: 2^26 frames.
    refused_with("frames = 2048\nhugepages = \"never\"", "frames = 16000000\nhugepages = \"always\"", &["hugepages"]);
}

#[test]
fn no_dpdk_built_in() {
    if !cfg!(feature = "dpdk") {
        refused_with("kind = \"sink\"", "kind = \"dpdk\"\ndevargs = \"net_null0\"", &["dpdk", "without DPDK"]);
    }
}

#[test]
fn not_toml() {
    refused_with("[[chain]]", "[[chain", &["not valid TOML"]);
}

#[test]
fn a_ring_that_is_no_power_of_two() {
    refused_with("exec = \"/bin/true\"", "exec = \"/bin/true\"\nring = 1000", &["ring", "power of two"]);
}

#[test]
fn no_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let output = crate::support::command(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("sluice.toml"), "{said}");
}

#[test]
fn a_capture_that_is_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.pcap");
    let mut bytes = pcap(Order::Little, MICROS, 1, &[vec![1; 60], vec![2; 60]]);
    bytes.truncate(bytes.len() - 10);
    std::fs::write(&file, bytes).unwrap();
    let config = right(folder.path()).replace("kind = \"gen\"\nrate = 1000", &format!("kind = \"pcap\"\nread = {file:?}"));
    refused(folder.path(), &config, &["cut.pcap", "cut short", "editcap"]);
}

#[test]
fn no_such_capture() {
    let folder = tempfile::tempdir().unwrap();
    let config = right(folder.path()).replace("kind = \"gen\"\nrate = 1000", "kind = \"pcap\"\nread = \"none.pcap\"");
    refused(folder.path(), &config, &["none.pcap", "no such file"]);
}

#[test]
fn no_place_for_the_runtime_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let run = folder.path().join("run");
    let config = right(folder.path()).replace(&format!("{run:?}"), &format!("{:?}", folder.path().join("file/run")));
    refused(folder.path(), &config, &["is a file"]);
}
