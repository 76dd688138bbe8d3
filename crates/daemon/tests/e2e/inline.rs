//! Inline chains: handlers in the packet thread.

use sluice_api::health::DeathCause;
use sluice_api::model::{Apply, NfState};

use crate::fused::{parts, three_with};
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, open_folder, port, refusal, service};

const INLINE: &str = "run = \"inline\"";
const TRUSTED: &str = "trusted = true";

fn three(cycles: u32) -> String {
    three_with(&format!("args = [\"--cycles\", \"{cycles}\"]"), TRUSTED, INLINE)
}

#[test]
fn three_handlers_in_the_packet_thread_are_one_nf_without_a_process() {
    let mut daemon = Daemon::start("", &three(100));
    let stats = daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > 20_000);
    assert_eq!(stats.nfs.len(), 1);
    let group = find_nf(&stats, "web.inline.0");
    assert_eq!((group.pid, group.mode.as_str(), group.state), (None, "inline", NfState::Running));
    assert!(group.parts.iter().all(|part| part.packet_ns.is_some_and(|ns| ns > 0.0)), "{:?}", group.parts);
    let stats = daemon.settle("web", "all");
    let entered = find_chain(&stats, "web").entry_packets;
    assert_eq!(parts(&stats), [("cost", entered, 0), ("mark", entered, 0), ("bridge", entered, 0)]);
    let group = find_nf(&stats, "web.inline.0");
    assert_eq!((group.rx_packets, group.tx_packets, group.queue), (entered, entered, 0));
    daemon.client().remove_chain("web").unwrap();
    daemon.wait("its group goes with it", |s| s.nfs.is_empty() && s.services.iter().all(|service| service.name != "web.inline"));
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn another_version_of_a_part_replaces_an_inline_group_under_load_without_a_loss() {
    let mut daemon = Daemon::start("", &three(100));
    for cycles in [200, 300] {
        let had = find_port(&daemon.stats(), "all").tx_packets;
        daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > had + 10_000);
        let before = daemon.stats().nfs[0].name.clone();
        let config = head(daemon.folder(), "") + &three(cycles);
        let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
        let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
        assert_eq!(names, ["cost", "web.inline"], "{changes:?}");
        daemon.wait("the old group has left", |s| s.nfs.len() == 1 && s.nfs[0].name != before);
    }
    daemon.settle("web", "all");
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_part_that_panics_ends_its_group_alone_and_the_chain_does_what_it_says() {
    let first = "args = [\"--cycles\", \"100\", \"--fail-after\", \"5000\"]";
    let other = port("other", "gen", "rate = 20000.0")
        + &port("beside", "sink", "")
        + &service("macs", "sluice-nf-macswap", TRUSTED)
        + &chain("own", "other", &["macs"], "beside", INLINE);
    let config = |on_failure: &str| three_with(first, TRUSTED, &format!("{INLINE}\non_failure = \"{on_failure}\"")) + &other;
    let mut daemon = Daemon::start("", &config("restart"));
    let stats = daemon.wait("it has come back twice", |s| find_nf(s, "web.inline.0").restarts > 1);
    let death = find_nf(&stats, "web.inline.0").last_death.as_ref().expect("it has ended");
    assert_eq!(death.cause, DeathCause::Failed);
    assert!(death.what.contains("part cost: it panicked: --fail-after says so"), "{}", death.what);
    assert_eq!(find_nf(&stats, "own.inline.0").restarts, 0);
    let had = find_port(&stats, "beside").tx_packets;
    daemon.wait("the other chain goes on", |s| find_port(s, "beside").tx_packets > had + 1_000);
    // Its last bursts are counted as lost, and no frame is.
    daemon.client().remove_rule("web").unwrap();
    daemon.client().remove_rule("own").unwrap();
    let stats = daemon.wait("all packets have left", |s| {
        let (chain, sink) = (find_chain(s, "web"), find_port(s, "all"));
        chain.entry_packets == sink.tx_packets + chain.drops.get("nf_died").copied().unwrap_or_default()
    });
    assert!(find_chain(&stats, "web").drops.get("nf_died").is_some_and(|lost| *lost > 0), "{:?}", find_chain(&stats, "web").drops);
    daemon.stop();
    let mut daemon = Daemon::start("", &config("bypass").replace("overload = \"wait\"", "rate = 20000.0"));
    let stats = daemon.wait("packets go round it", |s| find_nf(s, "web.inline.0").state == NfState::Failed);
    let had = find_port(&stats, "all").tx_packets;
    daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > had + 5_000);
    daemon.stop();
}

#[test]
fn what_cannot_run_inline_is_refused_before_anything_starts() {
    let folder = open_folder();
    let config = |keys: &str| {
        head(folder.path(), "")
            + &port("in", "gen", "")
            + &port("out", "sink", "")
            + &service("bridge", "sluice-nf-bridge", TRUSTED)
            + &service("other", "sluice-nf-firewall", keys)
            + &chain("web", "in", &["bridge", "other"], "out", INLINE)
    };
    for (keys, what) in [
        ("", "is not trusted"),
        ("trusted = true\nuser = \"nobody\"", "has a `user`"),
        ("trusted = true\nmemory = 64", "`memory`"),
        ("trusted = true\nenv = { A = \"1\" }", "`env`"),
        ("trusted = true\nstorage = true", "uses the library's storage"),
        ("trusted = true\nexec = \"sluice-nf-encrypt\"", "no shared object"),
        // A part that cannot be made says why, with its name.
        ("trusted = true\nargs = [\"--rules\", \"/nowhere\"]", "part other: "),
    ] {
        let text = config(keys);
        let text = if keys.contains("exec") { text.replace("exec = \"sluice-nf-firewall\"\n", "") } else { text };
        let output = refusal(folder.path(), &text);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(what), "{keys}: {said}");
    }
}

#[test]
fn each_thread_that_receives_has_an_instance_of_its_own() {
    let threads = "rx = [0, 1]\ntx = [0, 1]";
    // Either thread may get no core for a while: then the generator waits, and so does what is for
    // the sink.
    let body = three(100).replace("overload = \"wait\"", "overload = \"wait\"\nrate = 100000.0\nqueues = 2");
    let body = body.replace("kind = \"sink\"", "kind = \"sink\"\noverload = \"wait\"");
    let mut daemon = Daemon::start(threads, &body);
    let stats =
        daemon.wait("packets pass both", |s| ["web.inline.0", "web.inline.1"].iter().all(|nf| find_nf(s, nf).tx_packets > 5_000));
    assert_eq!(["web.inline.0", "web.inline.1"].map(|nf| find_nf(&stats, nf).core), [0, 1]);
    daemon.settle("web", "all");
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}
