//! Shards: packet threads that each have queues, flows and instances of their own.

use rustix::process::Signal;
use sluice_api::model::{Apply, NfState, Stats};

use crate::fused::three_with;
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, port, service, signal};

const SHARDS: &str = "shards = [0, 1]";

/// A chain `web` of two services, with an instance in each shard.
fn two(args: &str, keys: &str) -> String {
    let all = format!("instances = 2\ncores = [0, 1]\nargs = [\"--cycles\", \"{args}\"]");
    port("steady", "gen", "flows = 64\nqueues = 2\noverload = \"wait\"")
        // Its threads may get no core for a while.
        + &port("all", "sink", "queues = 2\noverload = \"wait\"")
        + &service("first", "sluice-nf-cost", &all)
        + &service("second", "sluice-nf-cost", &all)
        + &chain("web", "steady", &["first", "second"], "all", keys)
}

fn rx(stats: &Stats, nfs: [&str; 2]) -> u64 {
    nfs.map(|nf| find_nf(stats, nf).rx_packets).iter().sum()
}

#[test]
fn the_flows_of_a_shard_pass_its_instances_alone() {
    let mut daemon = Daemon::start(SHARDS, &two("100", ""));
    daemon.wait("packets pass all", |s| s.nfs.len() == 4 && s.nfs.iter().all(|nf| nf.tx_packets > 10_000));
    let stats = daemon.settle("web", "all");
    for (shard, core) in [(0, 0), (1, 1)] {
        let names = ["first", "second"].map(|of| format!("{of}.{shard}"));
        let [first, second] = names.each_ref().map(|name| find_nf(&stats, name));
        assert_eq!([first.core, second.core], [core, core]);
        // Of 32 flows some would go over to the other shard, if they could.
        assert_eq!(first.rx_packets, second.rx_packets, "{}", names[0]);
    }
    assert_eq!(rx(&stats, ["first.0", "first.1"]), find_chain(&stats, "web").entry_packets);
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn the_death_of_an_instance_concerns_its_shard_alone_until_it_is_back() {
    let mut daemon =
        Daemon::start(SHARDS, &two("100", "on_failure = \"drop\"").replacen("overload = \"wait\"", "rate = 50000.0", 1));
    daemon.wait("packets pass all", |s| s.nfs.len() == 4 && s.nfs.iter().all(|nf| nf.tx_packets > 1_000));
    let why = daemon.client().remove_nf("first.1").unwrap_err().to_string();
    assert!(why.contains("only instance of service `first` in its shard"), "{why}");
    signal(find_nf(&daemon.stats(), "first.1"), Signal::KILL);
    let stats = daemon.wait("it is gone", |s| find_nf(s, "first.1").state == NfState::Failed);
    let had = find_nf(&stats, "second.0").tx_packets;
    let refused = stats.drops.get("nf_down").copied().unwrap_or_default();
    daemon.wait("its shard refuses packets and the other goes on", |s| {
        find_nf(s, "second.0").tx_packets > had + 5_000 && s.drops.get("nf_down").is_some_and(|n| *n > refused + 1_000)
    });
    daemon.client().add_nf("first", Some(1)).unwrap();
    let had = find_nf(&daemon.stats(), "second.1").tx_packets;
    let stats = daemon.wait("its shard goes on too", |s| find_nf(s, "second.1").tx_packets > had + 5_000);
    assert_eq!(find_nf(&stats, "first.2").core, 1);
    daemon.client().remove_nf("first.1").unwrap();
    daemon.stop();
}

#[test]
fn a_handler_that_fails_in_one_shard_comes_back_there() {
    let first = "args = [\"--cycles\", \"100\", \"--fail-after\", \"5000\"]";
    let body = three_with(first, "trusted = true", "run = \"inline\"\non_failure = \"restart\"")
        .replace("overload = \"wait\"", "rate = 200000.0\nqueues = 2")
        .replace("kind = \"sink\"", "kind = \"sink\"\nqueues = 2");
    let mut daemon = Daemon::start(SHARDS, &body);
    // Each fails when it has got packets again.
    daemon.wait("both have come back", |s| ["web.inline.0", "web.inline.1"].iter().all(|nf| find_nf(s, nf).restarts > 2));
    daemon.stop();
}

#[test]
fn another_version_replaces_the_instances_of_each_shard_without_a_loss() {
    let mut daemon = Daemon::start(SHARDS, &two("100", ""));
    for cycles in ["200", "300"] {
        let had = find_port(&daemon.stats(), "all").tx_packets;
        daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > had + 20_000);
        let config = head(daemon.folder(), SHARDS) + &two(cycles, "");
        let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
        assert_eq!(changes.iter().map(|change| change.name.as_str()).collect::<Vec<_>>(), ["first", "second"], "{changes:?}");
        daemon.wait("the old ones have left", |s| s.nfs.len() == 4);
    }
    let stats = daemon.settle("web", "all");
    for service in ["first", "second"] {
        let mut cores: Vec<u32> = stats.nfs.iter().filter(|nf| nf.service == service).map(|nf| nf.core).collect();
        cores.sort_unstable();
        assert_eq!(cores, [0, 1]);
    }
    daemon.stop();
}

#[test]
fn cores_that_change_their_shard_have_an_instance_of_it() {
    let mut daemon = Daemon::start(SHARDS, &two("100", ""));
    daemon.wait("packets pass all", |s| s.nfs.len() == 4 && s.nfs.iter().all(|nf| nf.tx_packets > 1_000));
    let config = head(daemon.folder(), SHARDS) + &two("100", "").replace("cores = [0, 1]", "cores = [1, 0]");
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    let before = daemon.wait("the old ones have left", |s| s.nfs.len() == 4 && s.nfs.iter().all(|nf| nf.state == NfState::Running));
    daemon.wait("packets pass all of the new ones", |s| {
        s.nfs.len() == 4 && s.nfs.iter().all(|nf| nf.tx_packets > find_nf(&before, &nf.name).tx_packets + 5_000)
    });
    daemon.settle("web", "all");
    daemon.stop();
}

#[test]
fn a_pool_in_a_chain_leaves_flows_in_their_shards() {
    let body = two("100", "").replacen(
        "instances = 2\ncores = [0, 1]\nargs = [\"--cycles\", \"100\"]",
        "per = \"rss\"\ncores = [0, 1]\nargs = [\"--cycles\", \"100\"]\n[service.pool]\nmin = 2\nmax = 2",
        1,
    );
    let mut daemon = Daemon::start(SHARDS, &body);
    daemon.wait("packets of both pass", |s| ["second.0", "second.1"].iter().all(|nf| find_nf(s, nf).tx_packets > 5_000));
    daemon.client().remove_rule("web").unwrap();
    daemon.stop();
}

#[test]
fn what_an_inline_chain_leaves_behind_keeps_no_change_from_being_made() {
    let body = three_with("args = [\"--cycles\", \"100\"]", "trusted = true", "run = \"inline\"")
        .replace("overload = \"wait\"", "queues = 2\noverload = \"wait\"")
        .replace("kind = \"sink\"", "kind = \"sink\"\nqueues = 2");
    let mut daemon = Daemon::start(SHARDS, &body);
    daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > 1_000);
    daemon.client().remove_rule("web").unwrap();
    daemon.client().remove_chain("web").unwrap();
    // One instance each would be too few for shards, and none is started.
    daemon.wait("its group has gone", |s| s.nfs.is_empty());
    let direct = toml::from_str("name = \"direct\"\negress = \"all\"").unwrap();
    daemon.client().add_chain(&direct).unwrap();
    let over = toml::from_str("name = \"over\"\nservices = [\"cost\"]\negress = \"all\"").unwrap();
    let why = daemon.client().add_chain(&over).unwrap_err().to_string();
    assert!(why.contains("each of the 2 shards needs its own"), "{why}");
    daemon.stop();
}

#[test]
fn an_instance_may_serve_all_shards_and_none_moves_to_another() {
    let body = two("100", "").replacen("instances = 2\ncores = [0, 1]", "cores = [1]\nall_shards = true", 1);
    let mut daemon = Daemon::start(SHARDS, &body);
    daemon.wait("packets of both pass", |s| ["second.0", "second.1"].iter().all(|nf| find_nf(s, nf).tx_packets > 10_000));
    let why = daemon.client().move_nf("second.0", 1).unwrap_err().to_string();
    assert!(why.contains("that is of another shard"), "{why}");
    let stats = daemon.settle("web", "all");
    assert_eq!(find_nf(&stats, "first.0").rx_packets, rx(&stats, ["second.0", "second.1"]));
    daemon.stop();
}
