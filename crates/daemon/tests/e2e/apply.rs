//! Failed applies keep what was in force, or a later apply restores it.

use sluice_api::model::Apply;

use crate::pcap::{MICROS, Order, pcap, read};
use crate::support::{Daemon, chain, find_chain, find_port, head, port, service};

/// A chain from a generator to a port of this kind.
fn leading_to(kind: &str, keys: &str) -> String {
    port("in", "gen", "rate = 5000\noverload = \"wait\"")
        + &port("out", kind, keys)
        + &service("s", "sluice-nf-bridge", "")
        + &chain("c", "in", &["s"], "out", "")
}

/// Applies a configuration; returns the number of changes, or the error.
fn apply(daemon: &Daemon, body: &str) -> Result<usize, String> {
    let config = head(daemon.folder(), "max_nfs = 3") + body;
    let applied = daemon.client().apply(&Apply { config, file: None, dry_run: false });
    applied.map(|a| a.changes.len()).map_err(|error| error.to_string())
}

#[track_caller]
fn goes_on(daemon: &mut Daemon) {
    let before = daemon.stats();
    let (sent, left) = (find_port(&before, "out").tx_packets, find_chain(&before, "c").exit_packets);
    daemon.wait("packets leave", |s| find_port(s, "out").tx_packets > sent + 500 && find_chain(s, "c").exit_packets > left + 500);
}

#[test]
fn a_port_that_cannot_be_opened_changes_nothing() {
    let mut daemon = Daemon::start("max_nfs = 3", &leading_to("sink", ""));
    let file = daemon.folder().join("cut.pcap");
    let mut capture = pcap(Order::Little, MICROS, 1, &[vec![1; 60], vec![2; 60]]);
    std::fs::write(&file, &capture[..capture.len() - 10]).unwrap();
    let reads = |file: &std::path::Path| {
        leading_to("sink", "").replace("kind = \"gen\"\nrate = 5000", &format!("kind = \"pcap\"\nread = {file:?}\nrepeat = 0"))
    };
    // With another change, which would be made first.
    let more = reads(&file) + &port("extra", "sink", "");
    let said = apply(&daemon, &more).unwrap_err();
    assert!(said.contains("cut short"), "{said}");
    assert_eq!(daemon.stats().ports.len(), 2, "the other port was not added");
    goes_on(&mut daemon);
    capture.splice(.., pcap(Order::Little, MICROS, 1, &vec![vec![1; 60]; 100]));
    std::fs::write(&file, capture).unwrap();
    assert_eq!(apply(&daemon, &more), Ok(2));
    goes_on(&mut daemon);
    daemon.stop();
}

#[test]
fn a_port_that_fails_to_open_leaves_the_old_one_in_place() {
    let mut daemon = Daemon::start("max_nfs = 3", &leading_to("sink", ""));
    // All checks before the opening pass; only the opening fails.
    let said = apply(&daemon, &leading_to("pcap", "write = \"/dev/full\"")).unwrap_err();
    assert!(said.contains("/dev/full"), "{said}");
    goes_on(&mut daemon);
    let file = daemon.folder().join("out.pcap");
    assert_eq!(apply(&daemon, &leading_to("pcap", &format!("write = {file:?}"))), Ok(1));
    goes_on(&mut daemon);
    assert_eq!(apply(&daemon, &leading_to("sink", "")), Ok(1));
    goes_on(&mut daemon);
    daemon.stop();
}

#[test]
fn a_port_that_is_lost_is_there_again_after_the_next_apply() {
    let folder = crate::support::open_folder();
    let (file, other) = (folder.path().join("out.pcap"), folder.path().join("other.pcap"));
    let writing = |keys: &str| leading_to("pcap", &format!("write = {file:?}\n{keys}"));
    let mut daemon = Daemon::start("max_nfs = 3", &writing(""));
    goes_on(&mut daemon);
    // The new port reads that file: the old one is closed first, and then neither opens.
    std::fs::write(&other, pcap(Order::Little, MICROS, 1, &[vec![1; 60]])).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&other, &file).unwrap();
    let said = apply(&daemon, &leading_to("pcap", &format!("read = {file:?}\nwrite = \"/dev/full\""))).unwrap_err();
    assert!(said.contains("is closed") && said.contains("apply it again"), "{said}");
    assert!(daemon.stats().ports.iter().all(|p| p.name != "out"));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(apply(&daemon, &writing("overload = \"wait\"")), Ok(1));
    goes_on(&mut daemon);
    daemon.stop();
}

#[test]
fn a_capture_goes_on_when_the_port_that_comes_in_its_place_cannot_be_opened() {
    let folder = crate::support::open_folder();
    let file = folder.path().join("out.pcap");
    let writes = format!("write = {file:?}\n");
    let beside = port("last", "sink", "");
    let mut daemon = Daemon::start("max_nfs = 3", &(leading_to("pcap", &writes) + &beside));
    goes_on(&mut daemon);
    // It is opened beside the old one, and a port behind it cannot be.
    let full = port("last", "pcap", "write = \"/dev/full\"");
    let said = apply(&daemon, &(leading_to("pcap", &(writes + "overload = \"wait\"")) + &full)).unwrap_err();
    assert!(said.contains("/dev/full"), "{said}");
    goes_on(&mut daemon);
    // The old one is closed for one that reads its file.
    let before = find_chain(&daemon.stats(), "c").exit_packets;
    let said = apply(&daemon, &(leading_to("pcap", &format!("read = {file:?}\nwrite = \"/dev/full\"")) + &beside)).unwrap_err();
    assert!(said.contains("/dev/full"), "{said}");
    goes_on(&mut daemon);
    daemon.stop();
    let written = read(&file).len() as u64;
    assert!(written > before, "{written} packets; {before} of them before the last change");
}

#[test]
fn a_service_for_which_there_is_no_room_stays_as_it_was() {
    let mut daemon = Daemon::start("max_nfs = 3", &leading_to("sink", ""));
    let with = |keys: &str| leading_to("sink", "").replace("sluice-nf-bridge\"", &format!("sluice-nf-bridge\"\n{keys}"));
    // One old instance and three new ones would be four for a while.
    let said = apply(&daemon, &with("instances = 3\nring = 64")).unwrap_err();
    assert!(said.contains("max_nfs"), "{said}");
    assert_eq!(daemon.stats().nfs.len(), 1);
    goes_on(&mut daemon);
    assert_eq!(apply(&daemon, &with("instances = 2\nring = 64")), Ok(1));
    assert_eq!(daemon.stats().nfs.len(), 2);
    goes_on(&mut daemon);
    daemon.stop();
}
