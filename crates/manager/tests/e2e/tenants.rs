//! Packets of tenants: what each has mapped, and that none reaches another's.

use std::collections::BTreeSet;
use std::path::Path;

use sluice_manager::control::model::{Memory, NfState, Stats};

use crate::support::{Daemon, chain, find_nf, find_port, hostile_nf, port, service};

/// Flows 0 to 3 of each source are red's, all others blue's.
const RULES: &str =
    "[[rule]]\nport = \"in\"\nsrc = \"198.18.0.0/30\"\nchain = \"red\"\n[[rule]]\nport = \"in\"\nchain = \"blue\"\n";

/// Services of two tenants behind one port; red runs `exec`.
fn two_tenants(load: &str, exec: &str, keys: &str) -> String {
    let mut text = port("in", "gen", load) + &port("red-out", "sink", "") + &port("blue-out", "sink", "");
    text += &service("r", exec, &format!("tenant = \"red\"\n{keys}"));
    text += &service("b", "sluice-nf-bridge", "tenant = \"blue\"");
    // Rules are written by hand: those of `chain` would lead all packets to one.
    for (name, of, out) in [("red", "r", "red-out"), ("blue", "b", "blue-out")] {
        text += &format!("[[chain]]\nname = \"{name}\"\nservices = [\"{of}\"]\negress = \"{out}\"\non_failure = \"drop\"\n");
    }
    text + RULES
}

fn memory<'a>(stats: &'a Stats, tenant: &str) -> &'a Memory {
    stats.status.memories.iter().find(|memory| memory.tenant == tenant).expect("the tenant has memory")
}

/// The files that a process has mapped whose name holds a word, by their inode.
fn mapped(pid: u32, word: &str) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("maps")).unwrap();
    let lines = maps.lines().filter(|line| line.contains(word));
    lines.filter_map(|line| line.split_whitespace().nth(4).map(str::to_owned)).collect()
}

#[test]
fn an_nf_maps_the_memory_of_its_tenant_and_no_other() {
    let mut text = two_tenants("rate = 2000\nflows = 16\nsrc = \"198.18.0.0\"", "sluice-nf-bridge", "");
    text += &service("b2", "sluice-nf-bridge", "tenant = \"blue\"");
    text += &service("n", "sluice-nf-bridge", "");
    text += &port("other", "gen", "rate = 2000");
    text += &port("other-out", "sink", "");
    text += &chain("other", "other", &["n"], "other-out", "");
    let mut daemon = Daemon::start("", &text);
    let stats =
        daemon.wait("packets of all", |s| ["red-out", "blue-out", "other-out"].iter().all(|p| find_port(s, p).tx_packets > 100));
    let pid = |name: &str| find_nf(&stats, name).pid.expect("it runs");
    let (red, blue, second, none) = (pid("r.0"), pid("b.0"), pid("b2.0"), pid("n.0"));
    for what in ["sluice-arena", "sluice-core"] {
        let of = |pid| mapped(pid, what);
        assert_eq!(of(red).len(), 1, "{what}: {:?}", of(red));
        assert_eq!(of(blue), of(second), "{what} of one tenant and core");
        assert!(of(red).is_disjoint(&of(blue)) && of(red).is_disjoint(&of(none)) && of(blue).is_disjoint(&of(none)), "{what}");
    }
    let ours = mapped(daemon.pid(), "sluice-arena");
    assert_eq!(ours.len(), 4, "three tenants, and the ingress: {ours:?}");
    assert!([red, blue, none].iter().all(|nf| mapped(*nf, "sluice-arena").is_subset(&ours)));
    // The port of one tenant alone receives into its memory.
    assert_eq!((memory(&stats, "-").gate_packets, memory(&stats, "ingress").gate_packets), (0, 0));
    assert!(memory(&stats, "red").gate_packets > 100 && memory(&stats, "blue").gate_packets > 100);
    daemon.stop();
}

#[test]
fn a_tenant_that_overwrites_all_it_has_alters_no_packet_of_another() {
    const PACKETS: u64 = 20_000;
    let load = format!("rate = 20000\ncount = {PACKETS}\nflows = 16\noverload = \"wait\"\nsrc = \"198.18.0.0\"");
    let mut daemon = Daemon::start("", &two_tenants(&load, &hostile_nf(), "args = [\"overwrite\"]"));
    // A quarter of the flows are red's.
    let blue = PACKETS * 3 / 4;
    let stats = daemon.wait("all of blue's", |s| find_port(s, "blue-out").tx_packets == blue);
    let seen = |what: &str| find_port(&stats, "blue-out").details[what];
    assert_eq!(seen("stamped"), blue as f64);
    for what in ["unstamped", "lost", "reordered", "duplicated"] {
        assert_eq!(seen(what), 0.0, "{what}");
    }
    assert_eq!((find_nf(&stats, "b.0").state, find_nf(&stats, "b.0").violations), (NfState::Running, 0));
    let stats = daemon.wait("all of red's", |s| find_port(s, "red-out").tx_packets == PACKETS - blue);
    assert_eq!((memory(&stats, "blue").gate_packets, memory(&stats, "red").gate_packets), (blue, PACKETS - blue));
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn after_violations_a_tenant_has_fresh_memory_and_another_notices_nothing() {
    let load = "rate = 10000\nflows = 16\nsrc = \"198.18.0.0\"";
    // What comes first goes on in the section [memory].
    let mut text = "after_violation = \"replace\"\n".to_string() + &two_tenants(load, &hostile_nf(), "args = [\"replay\"]");
    // One more of the same tenant, which did nothing wrong.
    text += &service("r2", "sluice-nf-bridge", "tenant = \"red\"");
    text += &port("more", "gen", "rate = 1000\ntenant = \"red\"");
    text += &port("more-out", "sink", "");
    text += &chain("more", "more", &["r2"], "more-out", "on_failure = \"drop\"");
    let mut daemon = Daemon::start("", &text);
    let before = find_nf(&daemon.stats(), "r2.0").pid.expect("it runs");
    let stats = daemon.wait("fresh memory of red", |s| {
        let r2 = find_nf(s, "r2.0");
        find_nf(s, "r.0").state == NfState::Failed && r2.state == NfState::Running && r2.pid != Some(before)
    });
    assert_eq!(find_nf(&stats, "r2.0").violations, 0);
    // The old one goes with the last of its packets, and packets come and go in the new one.
    let sent = find_port(&stats, "more-out").tx_packets;
    let stats = daemon.wait("packets of the one that did nothing wrong", |s| find_port(s, "more-out").tx_packets > sent + 100);
    daemon.wait("the end of the former memory", |s| s.status.memories.iter().all(|memory| memory.tenant != "former"));
    let blue = find_port(&stats, "blue-out");
    for what in ["unstamped", "duplicated"] {
        assert_eq!(blue.details[what], 0.0, "{what}");
    }
    // Whoever has the control socket can have the same at any time.
    let before = find_nf(&stats, "r2.0").pid;
    daemon.client().renew_memory("red").unwrap();
    let stats = daemon.wait("it again", |s| find_nf(s, "r2.0").state == NfState::Running && find_nf(s, "r2.0").pid != before);
    assert!(daemon.client().renew_memory("green").unwrap_err().to_string().contains("sluice tenant list"));
    let b = find_nf(&stats, "b.0");
    assert_eq!((b.state, b.restarts, b.violations), (NfState::Running, 0, 0));
    daemon.stop();
}
