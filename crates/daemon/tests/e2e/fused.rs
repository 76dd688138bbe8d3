//! Fused chains: several handlers in one process.

use rustix::process::Signal;
use sluice_api::config::{Chain, Rule};
use sluice_api::model::{Apply, NfState, Stats, TraceRequest, TracedPacket, Upgrade};

use crate::skip::skip;
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, nf, open_folder, port, refusal, service, signal};

const FUSED: &str = "run = \"fused\"";

/// A chain of a NF in Rust, one in C and one more in Rust, each packet of which is checked.
fn three(cycles: u32) -> String {
    three_with(&format!("args = [\"--cycles\", \"{cycles}\"]"), "", FUSED)
}

/// The same, with these keys of the first service, of all services, and of the chain.
pub fn three_with(first: &str, all: &str, of_chain: &str) -> String {
    port("steady", "gen", "flows = 32\noverload = \"wait\"")
        + &port("all", "sink", "")
        + &service("cost", "sluice-nf-cost", &format!("{all}\n{first}"))
        + &service("mark", "sluice-mark-c", all)
        + &service("bridge", "sluice-nf-bridge", all)
        + &chain("web", "steady", &["cost", "mark", "bridge"], "all", of_chain)
}

pub fn parts(stats: &Stats) -> Vec<(&str, u64, u64)> {
    let is_group = |service: &str| service == "web.fused" || service == "web.inline";
    let nf = stats.nfs.iter().find(|nf| is_group(&nf.service)).expect("the group runs");
    nf.parts.iter().map(|part| (part.service.as_str(), part.packets, part.drops)).collect()
}

#[test]
fn three_handlers_in_one_process_are_one_nf_with_three_parts() {
    let mut daemon = Daemon::start("", &three(100));
    let stats = daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > 20_000);
    assert_eq!(stats.nfs.len(), 1, "one process");
    let group = find_nf(&stats, "web.fused.0");
    let names: Vec<&str> = group.parts.iter().map(|part| part.service.as_str()).collect();
    assert_eq!(names, ["cost", "mark", "bridge"]);
    assert!(group.parts.iter().all(|part| part.packet_ns.is_some_and(|ns| ns > 0.0)), "{:?}", group.parts);
    let metrics = daemon.client().metrics().unwrap();
    let line = "sluice_part_packets_total{nf=\"web.fused.0\",service=\"web.fused\",part=\"mark\"} ";
    assert!(metrics.lines().any(|l| l.starts_with(line)), "{metrics}");
    let stats = daemon.settle("web", "all");
    let all = parts(&stats);
    assert!(all.iter().all(|(_, packets, drops)| (*packets, *drops) == (all[0].1, 0)), "{all:?}");
    daemon.client().remove_chain("web").unwrap();
    daemon.wait("its group goes with it", |s| s.nfs.is_empty() && s.services.iter().all(|service| service.name != "web.fused"));
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_traced_packet_shows_each_part_that_it_passed() {
    let folder = open_folder();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "default deny\n").unwrap();
    for (run, keys) in [("fused", ""), ("inline", "trusted = true")] {
        let denies = format!("args = [\"--rules\", {rules:?}]\n{keys}");
        let body = port("steady", "gen", "flows = 32\nrate = 20000.0")
            + &port("other", "gen", "flows = 32\nrate = 20000.0")
            + &port("all", "sink", "")
            + &service("bridge", "sluice-nf-bridge", keys)
            + &service("fw", "sluice-nf-firewall", &denies)
            + &service("mark", "sluice-mark-c", keys)
            + &chain("web", "steady", &["bridge", "mark"], "all", &format!("run = {run:?}"))
            + &chain("deny", "other", &["bridge", "fw", "mark"], "all", &format!("run = {run:?}"));
        let mut daemon = Daemon::start("", &body);
        daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > 1_000);
        for (chain, parts, outcome) in
            [("web", &["bridge", "mark"][..], "sent to all"), ("deny", &["bridge", "fw"], "dropped: verdict")]
        {
            // Of several in one burst, only the first has its parts shown.
            let request = TraceRequest { chain: Some(chain.into()), count: 20, timeout_ms: 20_000, ..TraceRequest::default() };
            let trace = daemon.client().trace(&request).unwrap();
            assert!(!trace.timed_out, "{trace:?}");
            let nf = format!("nf {chain}.{run}.0");
            let through = parts.iter().map(|part| format!("{nf} part {part} done"));
            let wanted: Vec<String> = [nf.clone()].into_iter().chain(through).chain([format!("{nf} done")]).collect();
            for packet in &trace.packets {
                assert_eq!(packet.outcome, outcome, "{packet:?}");
                assert!(packet.hops.is_sorted_by_key(|hop| hop.ns), "{packet:?}");
            }
            let shown = |packet: &TracedPacket| packet.hops[1..].iter().map(|hop| hop.place.clone()).collect::<Vec<_>>();
            assert!(trace.packets.iter().any(|packet| shown(packet).starts_with(&wanted)), "{trace:?}");
        }
        daemon.stop();
    }
}

#[test]
fn neighbours_of_a_chain_are_one_nf_between_others_and_are_throttled_as_one() {
    let body = port("load", "gen", "flows = 8")
        + &port("all", "sink", "")
        + &service("first", "sluice-nf-bridge", "ring = 256")
        + &service("mark", "sluice-mark-c", "ring = 256")
        + &service("slow", "sluice-nf-cost", "args = [\"--cycles\", \"20000\"]\nring = 256")
        + &service("last", "sluice-nf-bridge", "ring = 256")
        + &chain("web", "load", &["first", "mark", "slow", "last"], "all", "run = \"fused\"\nfuse = [\"mark\", \"slow\"]");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("the group throttles, and the one before it is held", |s| {
        find_nf(s, "web.fused.0").sched.throttles > 0 && find_nf(s, "first.0").sched.held && find_port(s, "all").tx_packets > 2_000
    });
    let mut names: Vec<&str> = stats.nfs.iter().map(|nf| nf.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["first.0", "last.0", "web.fused.0"]);
    assert_eq!(find_chain(&stats, "web").services, ["first", "web.fused", "last"]);
    let before = parts(&stats)[1].1;
    signal(find_nf(&stats, "web.fused.0"), Signal::KILL);
    daemon.wait("it is back", |s| find_nf(s, "web.fused.0").restarts == 1 && parts(s)[1].1 > before + 1_000);
    daemon.silence("web", "load");
    daemon.wait_until_empty();
    let stats = daemon.stats();
    let drops = &find_chain(&stats, "web").drops;
    let inside = drops.keys().find(|why| !["entry", "nf_down", "nf_died", "nf_gone"].contains(&why.as_str()));
    assert!(inside.is_none(), "only what the death costs is lost inside: {drops:?}");
    let all = parts(&stats);
    assert_eq!((all[0].0, all[1].0), ("mark", "slow"));
    // Another run of them needs another group, and what names no neighbours changes nothing.
    let late = ["chain", "add", "late", "first", "mark", "last", "--egress", "all", "--run", "fused", "--fuse"];
    let refused = daemon.sluice(&[&late[..], &["first,last"]].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("names no neighbours"), "{said}");
    daemon.says(&[&late[..], &["mark,last"]].concat());
    let stats = daemon.wait("its group runs", |s| s.nfs.iter().any(|nf| nf.name == "late.fused.0" && nf.state == NfState::Running));
    assert_eq!(find_chain(&stats, "late").services, ["first", "late.fused"]);
    daemon.client().remove_chain("late").unwrap();
    daemon.client().remove_chain("web").unwrap();
    daemon.wait("the groups go with their chains", |s| s.services.iter().all(|service| !service.name.contains(".fused")));
    daemon.stop();
}

#[test]
fn another_version_of_a_part_replaces_the_group_under_load_without_a_loss() {
    let mut daemon = Daemon::start("", &three(100));
    // One part alone has no instances that could be replaced.
    for (service, why) in [("cost", "it is a part of web.fused"), ("web.fused", "it is a group")] {
        let to = Upgrade { exec: "sluice-nf-cost".into(), args: None };
        let said = daemon.client().upgrade(service, &to).expect_err("it is refused").to_string();
        assert!(said.contains(why) && said.contains("apply a configuration with"), "{said}");
    }
    for cycles in [200, 300] {
        let had = find_port(&daemon.stats(), "all").tx_packets;
        daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > had + 10_000);
        let before = daemon.stats().nfs[0].pid;
        let config = head(daemon.folder(), "") + &three(cycles);
        let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
        let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
        assert_eq!(names, ["cost", "web.fused"], "{changes:?}");
        let stats = daemon.wait("the old group has left", |s| s.nfs.len() == 1 && s.nfs[0].pid != before);
        assert!(stats.nfs[0].parts.len() == 3);
    }
    daemon.settle("web", "all");
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_packet_that_a_part_drops_is_seen_by_no_later_part() {
    let folder = open_folder();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "default deny\n").unwrap();
    let body = port("steady", "gen", "flows = 32\nrate = 20000.0")
        + &port("all", "sink", "")
        + &service("bridge", "sluice-nf-bridge", "")
        + &service("fw", "sluice-nf-firewall", &format!("args = [\"--rules\", {rules:?}]"))
        + &service("monitor", "sluice-nf-monitor", "")
        + &chain("web", "steady", &["bridge", "fw", "monitor"], "all", FUSED);
    let mut daemon = Daemon::start("", &body);
    daemon.wait("packets are dropped", |s| find_nf(s, "web.fused.0").verdict_drops > 1_000);
    daemon.client().remove_rule("web").unwrap();
    let stats = daemon.wait("all are", |s| find_nf(s, "web.fused.0").verdict_drops == find_chain(s, "web").entry_packets);
    let n = find_chain(&stats, "web").entry_packets;
    assert_eq!(parts(&stats), [("bridge", n, 0), ("fw", n, n), ("monitor", 0, 0)]);
    assert_eq!(find_port(&stats, "all").tx_packets, 0);
    daemon.stop();
}

#[test]
fn a_group_that_is_killed_comes_back_with_all_its_parts() {
    let mut daemon = Daemon::start("", &three(100).replace("overload = \"wait\"", "rate = 20000.0"));
    let stats = daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > 1_000);
    let before = parts(&stats)[2].1;
    signal(find_nf(&stats, "web.fused.0"), Signal::KILL);
    let stats = daemon.wait("it is back", |s| {
        let nf = find_nf(s, "web.fused.0");
        nf.restarts == 1 && nf.state == NfState::Running && parts(s)[2].1 > before + 1_000
    });
    assert_eq!(parts(&stats).len(), 3);
    daemon.stop();
}

#[test]
fn a_group_is_forked_from_a_zygote_that_made_its_handlers() {
    let zygote = |text: String| text.replace("exec =", "zygote = true\nexec =");
    let mut daemon = Daemon::start("", &zygote(three(100)).replace("overload = \"wait\"", "rate = 20000.0"));
    let stats = daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > 1_000);
    let nf = find_nf(&stats, "web.fused.0");
    assert!(nf.parts.iter().all(|part| part.packets > 0), "{:?}", nf.parts);
    let service = stats.services.iter().find(|service| service.name == "web.fused").unwrap();
    assert!(service.zygote.is_some(), "{service:?}");
    daemon.stop();
}

#[test]
fn a_chain_that_would_gain_is_said_and_can_be_added_fused() {
    // What is gained must be a part of the core that is worth saying, whatever runs beside it. This
    // thread's niceness is the daemon's and its NFs', and ends with the test.
    if let Err(error) = rustix::process::setpriority_process(None, -20) {
        skip(format_args!("this daemon cannot run before others: {error}"));
    }
    let mut daemon = Daemon::start("", &three_with("args = [\"--cycles\", \"0\"]", "", ""));
    let stats = daemon.wait("fusing would help", |s| s.status.fusable.iter().any(|fusable| fusable.chain == "web"));
    let advice = &stats.status.fusable[0];
    assert_eq!(advice.services, ["cost", "mark", "bridge"]);
    assert!(advice.packet_ns > 0.0 && (5.0..=100.0).contains(&advice.saves_percent), "{advice:?}");
    daemon.says(&["chain", "add", "late", "cost", "mark", "bridge", "--egress", "all", "--run", "fused"]);
    let rule = Rule { name: Some("late".into()), chain: "late".into(), port: Some("steady".into()), ..Rule::default() };
    daemon.client().add_rule(rule, Some(0)).unwrap();
    let stats = daemon.wait("packets take it", |s| find_chain(s, "late").exit_packets > 10_000);
    let names: Vec<&str> = find_nf(&stats, "late.fused.0").parts.iter().map(|part| part.service.as_str()).collect();
    assert_eq!(names, ["cost", "mark", "bridge"]);
    daemon.client().remove_rule("late").unwrap();
    daemon.client().remove_chain("late").unwrap();
    let stats = daemon.wait("its group goes with it", |s| s.services.iter().all(|service| service.name != "late.fused"));
    assert_eq!(stats.chains.iter().map(|chain| chain.name.as_str()).collect::<Vec<_>>(), ["web"]);
    daemon.stop();
}

#[test]
fn a_service_in_groups_alone_has_instances_while_another_chain_names_it() {
    let mut daemon = Daemon::start("", &three(100));
    daemon.wait("packets come out", |s| find_port(s, "all").tx_packets > 1_000);
    let own: Chain = toml::from_str("name = \"own\"\nservices = [\"mark\"]\negress = \"all\"").unwrap();
    let names = |s: &Stats| s.nfs.iter().filter(|nf| nf.state == NfState::Running).map(|nf| nf.name.clone()).collect::<Vec<_>>();
    daemon.client().add_chain(&own).unwrap();
    daemon.wait("one of them runs by itself", |s| names(s).len() == 2 && names(s).iter().any(|name| name.starts_with("mark.")));
    daemon.client().remove_chain("own").unwrap();
    daemon.wait("it has gone with its chain", |s| names(s) == ["web.fused.0"]);
    daemon.client().remove_rule("web").unwrap();
    daemon.client().remove_chain("web").unwrap();
    daemon.wait("the group has gone", |s| s.nfs.is_empty());
    daemon.client().add_chain(&own).unwrap();
    daemon.wait("one of them runs by itself again", |s| names(s).len() == 1 && names(s)[0].starts_with("mark."));
    daemon.stop();
}

#[test]
fn what_cannot_be_fused_is_refused_before_anything_starts() {
    let folder = open_folder();
    let config = |exec: &str, keys: &str| {
        head(folder.path(), "")
            + &port("in", "gen", "")
            + &port("out", "sink", "")
            + &service("bridge", "sluice-nf-bridge", "")
            + &service("other", exec, keys)
            + &chain("web", "in", &["bridge", "other"], "out", FUSED)
    };
    for (exec, keys, what) in [
        (nf("sluice-nf-encrypt").as_str(), "", "libsluice_nf_encrypt.so beside it"),
        ("sluice-nf-monitor", "tenant = \"b\"", "differ in `tenant`"),
        ("sluice-nf-monitor", "storage = true", "uses the library's storage"),
    ] {
        let output = refusal(folder.path(), &config(exec, keys));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(what), "{exec}: {said}");
    }
    // A part that cannot be made says why, with its name.
    let output = refusal(folder.path(), &config("sluice-nf-firewall", "args = [\"--rules\", \"/nowhere\"]"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("part other: ") && said.contains("/nowhere"), "{said}");
}
