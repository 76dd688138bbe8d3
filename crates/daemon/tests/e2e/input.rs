//! Bad input: one error with a remedy, and exit code 1, before anything starts.

use std::path::Path;
use std::process::Command;

use crate::pcap::{MICROS, Order, pcap, pcapng};
use crate::support::{Daemon, chain, head, port, refusal, service};

/// A valid configuration.
fn right(folder: &Path) -> String {
    head(folder, "")
        + &port("in", "gen", "rate = 1000")
        + &port("out", "sink", "")
        + &service("a", "/bin/true", "")
        + &chain("c", "in", &["a"], "out", "")
}

/// Checks for one error with these words, before anything is started or made.
#[track_caller]
fn refused(folder: &Path, config: &str, words: &[&str]) {
    let output = refusal(folder, config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} are missing in:\n{said}");
    assert_eq!(said.matches("sluiced: ").count(), 1, "more than one error:\n{said}");
    assert!(!said.contains("ready"), "{said}");
    assert!(!folder.join("run").exists(), "the runtime folder was made:\n{said}");
    // `sluice check` refuses what sluiced refuses.
    let output = Command::new(crate::support::sluice()).arg("check").arg(folder.join("sluice.toml")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "sluice check finds nothing wrong:\n{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} are missing in what sluice check says:\n{said}");
}

#[track_caller]
fn refused_with(from: &str, to: &str, words: &[&str]) {
    let folder = crate::support::open_folder();
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
    // More than any machine that runs this has reserved.
    refused_with("frames = 4096\nhugepages = \"never\"", "frames = 16000000\nhugepages = \"always\"", &["hugepages"]);
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
    let folder = crate::support::open_folder();
    let output = crate::support::command(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("sluice.toml"), "{said}");
}

#[test]
fn a_capture_that_is_cut_short() {
    let folder = crate::support::open_folder();
    let file = folder.path().join("cut.pcap");
    let mut bytes = pcap(Order::Little, MICROS, 1, &[vec![1; 60], vec![2; 60]]);
    bytes.truncate(bytes.len() - 10);
    std::fs::write(&file, bytes).unwrap();
    let config = right(folder.path()).replace("kind = \"gen\"\nrate = 1000", &format!("kind = \"pcap\"\nread = {file:?}"));
    refused(folder.path(), &config, &["cut.pcap", "cut short", "editcap"]);
}

#[test]
fn a_pcapng_that_is_cut_short() {
    let folder = crate::support::open_folder();
    let file = folder.path().join("cut.pcapng");
    let mut bytes = pcapng(Order::Little, &[vec![1; 60], vec![2; 60]]);
    bytes.truncate(bytes.len() - 10);
    std::fs::write(&file, bytes).unwrap();
    let config = right(folder.path()).replace("kind = \"gen\"\nrate = 1000", &format!("kind = \"pcap\"\nread = {file:?}"));
    refused(folder.path(), &config, &["cut.pcapng", "cut short"]);
}

#[test]
fn a_capture_that_would_be_written_over() {
    let folder = crate::support::open_folder();
    let (file, link) = (folder.path().join("a.pcap"), folder.path().join("b.pcap"));
    std::fs::write(&file, pcap(Order::Little, MICROS, 1, &[vec![1; 60]])).unwrap();
    std::fs::hard_link(&file, &link).unwrap();
    let keys = format!("kind = \"pcap\"\nread = {file:?}\nwrite = {link:?}");
    let config = right(folder.path()).replace("kind = \"gen\"\nrate = 1000", &keys);
    refused(folder.path(), &config, &["same file"]);
    assert!(std::fs::metadata(&file).unwrap().len() > 24, "it is as it was");
}

#[test]
fn devices_that_are_not_there() {
    if cfg!(feature = "dpdk") {
        let device = |devargs: &str| format!("kind = \"dpdk\"\ndevargs = \"{devargs}\"");
        refused_with("kind = \"sink\"", &device("net_nope0"), &["net_nope0", "no driver"]);
        refused_with("kind = \"sink\"", &device("net_af_packet0,iface=no-such0"), &["no interface no-such0", "ip link"]);
        refused_with("kind = \"sink\"", &device("net_af_packet0"), &["needs an interface"]);
        refused_with("kind = \"sink\"", &device("net_pcap0,rx_pcap=/no/such.pcap"), &["no file /no/such.pcap"]);
    }
}

#[test]
fn a_chain_that_leaves_by_a_generator() {
    refused_with("kind = \"sink\"", "kind = \"gen\"", &["\"out\"", "only generates"]);
}

#[test]
fn a_port_that_is_added_later() {
    let mut daemon =
        Daemon::start("", &(port("in", "gen", "rate = 1000") + &port("out", "sink", "") + &chain("c", "in", &[], "out", "")));
    let file = daemon.folder().join("cut.pcap");
    let capture = pcap(Order::Little, MICROS, 1, &[vec![1; 60]]);
    std::fs::write(&file, &capture[..capture.len() - 10]).unwrap();
    let late = toml::from_str(&format!("name = \"late\"\nkind = \"pcap\"\nread = {file:?}")).unwrap();
    let said = daemon.client().add_port(&late).unwrap_err().to_string();
    assert!(said.contains("cut short"), "{said}");
    let device = toml::from_str("name = \"late\"\nkind = \"dpdk\"\ndevargs = \"net_null0\"").unwrap();
    let said = daemon.client().add_port(&device).unwrap_err().to_string();
    assert!(said.contains("[memory]") || said.contains("without DPDK"), "{said}");
    assert_eq!(daemon.stats().ports.len(), 2);
    daemon.stop();
}

#[test]
fn no_such_capture() {
    let folder = crate::support::open_folder();
    let config = right(folder.path()).replace("kind = \"gen\"\nrate = 1000", "kind = \"pcap\"\nread = \"none.pcap\"");
    refused(folder.path(), &config, &["none.pcap", "no such file"]);
}

#[test]
fn no_place_for_the_runtime_folder() {
    let folder = crate::support::open_folder();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let run = folder.path().join("run");
    let config = right(folder.path()).replace(&format!("{run:?}"), &format!("{:?}", folder.path().join("file/run")));
    refused(folder.path(), &config, &["is a file"]);
}
