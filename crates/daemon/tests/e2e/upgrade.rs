//! Upgrades of services while packets flow.
//! No packet is lost or overtakes another, and a version that does not work changes nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use sluice_api::change::Action;
use sluice_api::model::{Apply, Nf, NfState, Stats, Upgrade};

use crate::changes::settle;
use crate::support::{Daemon, chain, find_nf, find_port, flow_nf, head, nf, port, service, signal, test_nf};

/// Another version of a program: a copy of it.
fn version(of: &str, folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    std::fs::copy(of, &path).unwrap();
    path.display().to_string()
}

fn to(exec: &str) -> Upgrade {
    Upgrade { exec: exec.into(), args: None }
}

/// The programs that a service's processes run.
fn programs(stats: &Stats, service: &str) -> BTreeSet<PathBuf> {
    let of = stats.nfs.iter().filter(|nf| nf.service == service);
    of.filter_map(|nf| std::fs::read_link(format!("/proc/{}/exe", nf.pid?)).ok()).collect()
}

fn pids(stats: &Stats, service: &str) -> BTreeSet<u32> {
    stats.nfs.iter().filter(|nf| nf.service == service).filter_map(|nf| nf.pid).collect()
}

/// Full rate, so that rings are always full, through two instances and then one.
fn busy(s: &str) -> String {
    port("steady", "gen", "flows = 32\noverload = \"wait\"")
        + &port("all", "sink", "")
        + &service("s", s, "instances = 2\nring = 512")
        + &service("t", "sluice-nf-bridge", "")
        + &chain("steady", "steady", &["s", "t"], "all", "")
}

fn goes_on(daemon: &mut Daemon) {
    let had = find_port(&daemon.stats(), "all").tx_packets;
    daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > had + 5_000);
}

#[test]
fn an_nf_is_moved_to_another_core_under_load_without_a_loss_and_in_order() {
    let Some([one, other]) = crate::pack::two_cores() else { return };
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    for _ in 0..4 {
        for service in ["s", "t"] {
            let before = daemon.stats();
            let nf = before.nfs.iter().find(|nf| nf.service == service).unwrap();
            let core = if nf.core as usize == one { other } else { one };
            let moved = daemon.client().move_nf(&nf.name, core).unwrap();
            assert_eq!((moved.core as usize, moved.service.as_str()), (core, service));
            let after = daemon.stats();
            assert!(after.nfs.iter().all(|n| n.name != nf.name), "the old one is gone");
            let now = find_nf(&after, &moved.name);
            assert_eq!((now.state, now.core as usize), (NfState::Running, core));
            let allowed = std::fs::read_to_string(format!("/proc/{}/status", now.pid.unwrap())).unwrap();
            let line = allowed.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
            assert_eq!(line.trim(), core.to_string());
            assert_eq!(pids(&before, service).intersection(&pids(&after, service)).count(), if service == "s" { 1 } else { 0 });
            // After that the old NF's number is free: the next to move may get it, elsewhere.
            let had = find_port(&after, "all").tx_packets;
            let stats = daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > had + 60_000);
            assert!(find_nf(&stats, &moved.name).rx_packets > 1_000, "it has the flows of the one whose place it took");
        }
    }
    let stats = daemon.stats();
    let nf = stats.nfs.iter().find(|nf| nf.service == "t").unwrap();
    for (name, core, why) in
        [(nf.name.as_str(), nf.core as usize, "it is there"), ("t.99", one, "no NF"), (&nf.name, 4_000, "core")]
    {
        let refused = daemon.client().move_nf(name, core).unwrap_err().to_string();
        assert!(refused.contains(why), "{name} to {core}: {refused}");
    }
    assert_eq!(daemon.stats().nfs.len(), 3);
    settle(daemon);
}

#[test]
fn shared_nfs_hand_over_their_places_under_load_without_a_loss_and_in_order() {
    let folder = crate::support::open_folder();
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    for round in 0..4 {
        for (name, instances) in [("s", 2), ("t", 1)] {
            let exec = version(&nf("sluice-nf-bridge"), folder.path(), &format!("{name}-{round}"));
            let before = daemon.stats();
            let done = daemon.client().upgrade(name, &to(&exec)).unwrap();
            assert_eq!((done.instances.len(), done.exec.as_str(), done.leaving), (instances, exec.as_str(), 0));
            let after = daemon.stats();
            assert_eq!(programs(&after, name), BTreeSet::from([PathBuf::from(&exec)]));
            assert!(pids(&before, name).is_disjoint(&pids(&after, name)), "the old ones are gone");
            assert_eq!(after.nfs.iter().filter(|nf| nf.service == name).count(), instances);
            assert!(find_nf(&after, &done.instances[0]).state == NfState::Running);
            goes_on(&mut daemon);
        }
    }
    // The file has the first version: to apply it is to go back.
    let config = head(daemon.folder(), "") + &busy("sluice-nf-bridge");
    let changes = daemon.client().apply(&Apply { config, file: None, dry_run: true }).unwrap().changes;
    let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(names, ["s", "t"], "{changes:?}");
    // One with the running versions changes nothing.
    let now = busy(&format!("{}", folder.path().join("s-3").display()));
    let now = now.replace("\"sluice-nf-bridge\"", &format!("\"{}\"", folder.path().join("t-3").display()));
    let config = head(daemon.folder(), "") + &now;
    assert_eq!(daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes, vec![]);
    // A further instance goes to the core that the list has for it, however many there were.
    let cores: BTreeSet<usize> = daemon.stats().nfs.iter().filter(|nf| nf.service == "s").map(|nf| nf.core as usize).collect();
    let allowed = sluice_host::affinity::allowed().expect("the kernel says which cores there are");
    if let (Some(own), Some(other)) =
        (cores.first().filter(|_| cores.len() == 1), allowed.iter().find(|core| !cores.contains(core)))
    {
        let more = now.replacen("instances = 2", &format!("instances = 3\ncores = [{own}, {own}, {other}]"), 1);
        let config = head(daemon.folder(), "") + &more;
        let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
        assert_eq!(changes.iter().map(|change| change.action).collect::<Vec<_>>(), [Action::Add], "{changes:?}");
        let stats = daemon.stats();
        let on_other = stats.nfs.iter().filter(|nf| nf.service == "s" && nf.core as usize == *other).count();
        assert_eq!(on_other, 1, "{:?}", stats.nfs);
        goes_on(&mut daemon);
    }
    settle(daemon);
}

#[test]
fn a_configuration_changes_services_under_load_without_a_loss_and_in_order() {
    let folder = crate::support::open_folder();
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    let bridge = |name: &str| match folder.path().join(name) {
        known if known.exists() => known.display().to_string(),
        _ => version(&nf("sluice-nf-bridge"), folder.path(), name),
    };
    let wanted = |s: &str, t: &str, more: &str| {
        port("steady", "gen", "flows = 32\noverload = \"wait\"")
            + &port("all", "sink", "")
            + &service("s", &bridge(s), &format!("ring = 512\n{more}"))
            + &service("t", &bridge(t), "")
            + &chain("steady", "steady", &["s", "t"], "all", "")
    };
    let mut last = daemon.stats();
    for (s, t, more, instances, changed) in [
        ("s-1", "t-1", "instances = 2", 2, "st"),
        ("s-1", "t-1", "instances = 2\nenv = { A = \"1\" }", 2, "s"),
        ("s-2", "t-2", "instances = 3\nenv = { A = \"1\" }", 3, "st"),
        ("s-2", "t-2", "instances = 3\npids = 99\nmode = \"poll\"", 3, "s"),
        ("s-3", "t-3", "instances = 1", 1, "st"),
        ("s-3", "t-4", "instances = 1", 1, "t"),
    ] {
        let config = head(daemon.folder(), "") + &wanted(s, t, more);
        let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
        let names: String = changes.iter().map(|change| change.name.as_str()).collect();
        assert_eq!(names, changed, "{changes:?}");
        let stats = daemon.stats();
        for (name, exec, n) in [("s", s, instances), ("t", t, 1)] {
            assert_eq!(programs(&stats, name), BTreeSet::from([folder.path().join(exec)]));
            assert_eq!(pids(&stats, name).len(), n);
            assert_eq!(pids(&stats, name).is_disjoint(&pids(&last, name)), changed.contains(name), "{changes:?}");
        }
        last = stats;
        goes_on(&mut daemon);
    }
    settle(daemon);
}

#[test]
fn an_instance_goes_under_load_without_a_loss_and_in_order() {
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    let mut went = 0;
    for _ in 0..8 {
        let more = daemon.client().add_nf("s", None).unwrap().name;
        let before = daemon.wait("it to run", |s| find_nf(s, &more).state == NfState::Running);
        goes_on(&mut daemon);
        let after = daemon.stats();
        let packets = |nf: &&Nf| nf.rx_packets - find_nf(&before, &nf.name).rx_packets;
        let busiest = after.nfs.iter().filter(|nf| nf.service == "s").max_by_key(packets).unwrap();
        daemon.client().remove_nf(&busiest.name).unwrap();
        goes_on(&mut daemon);
        went += usize::from(packets(&busiest) > 1_000);
    }
    assert_eq!(went, 8, "flows of each went to others");
    settle(daemon);
}

#[test]
fn a_chain_gets_other_hops_under_load_without_a_loss_and_in_order() {
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    let before = busy("sluice-nf-bridge");
    for hops in [&["t"][..], &["t", "s"], &["s"], &["s", "t"], &[], &["s", "t", "s"]].repeat(3) {
        let now = chain("steady", "steady", hops, "all", "");
        let config = head(daemon.folder(), "") + &before.replacen(&chain("steady", "steady", &["s", "t"], "all", ""), &now, 1);
        let changes = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap().changes;
        assert_eq!(changes.len(), 1, "{changes:?}");
        goes_on(&mut daemon);
    }
    settle(daemon);
}

#[test]
fn a_configuration_with_a_version_that_does_not_work_changes_nothing() {
    let folder = crate::support::open_folder();
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    let before = daemon.stats();
    let good = version(&nf("sluice-nf-bridge"), folder.path(), "t-1");
    for (exec, keys, words) in [
        ("/bin/true", "", "is it an NF?"),
        ("sluice-nf-cost", "args = [\"--nonsense\"]", "ended before"),
        ("/no/such/program", "", "there is no program /no/such/program"),
    ] {
        // Beside a version that works, and a new port.
        let config = busy(&good).replacen(
            &service("s", &good, "instances = 2\nring = 512"),
            &(port("more", "sink", "") + &service("s", exec, &format!("instances = 2\nring = 512\n{keys}"))),
            1,
        );
        let config = head(daemon.folder(), "") + &config.replace("\"sluice-nf-bridge\"", &format!("{good:?}"));
        let said = daemon.client().apply(&Apply { config, file: None, dry_run: false }).expect_err("it does not work").to_string();
        assert!(said.contains(words), "{said}");
        let after = daemon.wait("what was tried is gone", |s| s.nfs.len() == 3);
        for name in ["s", "t"] {
            assert_eq!(pids(&before, name), pids(&after, name), "{said}");
        }
        assert!(after.ports.iter().all(|port| port.name != "more"), "{said}");
    }
    goes_on(&mut daemon);
    settle(daemon);
}

#[test]
fn a_version_that_does_not_work_changes_nothing() {
    let folder = crate::support::open_folder();
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    let before = daemon.stats();
    let text = folder.path().join("text");
    std::fs::write(&text, "no program").unwrap();
    let no_args = |exec: &str| Upgrade { exec: exec.into(), args: Some(Vec::new()) };
    for (service, upgrade, words) in [
        ("s", no_args("/no/such/program"), "there is no program /no/such/program"),
        ("s", no_args(&text.display().to_string()), "is no program"),
        ("s", no_args("/bin/true"), "is it an NF?"),
        ("s", Upgrade { exec: "/bin/sleep".into(), args: Some(vec!["1000".into()]) }, "said no hello within 10 s"),
        ("t", Upgrade { exec: "sluice-nf-cost".into(), args: Some(vec!["--nonsense".into()]) }, "ended before"),
        ("u", no_args("/bin/true"), "there is no service `u`"),
    ] {
        let said = daemon.client().upgrade(service, &upgrade).expect_err("it does not work").to_string();
        assert!(said.contains(words), "{said}");
        let after = daemon.wait("what was tried is gone", |s| s.nfs.len() == 3);
        for name in ["s", "t"] {
            assert_eq!(pids(&before, name), pids(&after, name), "{said}");
            assert_eq!(programs(&before, name), programs(&after, name), "{said}");
        }
    }
    goes_on(&mut daemon);
    settle(daemon);
}

#[test]
fn what_is_started_again_is_of_the_new_version() {
    let folder = crate::support::open_folder();
    let mut daemon = Daemon::start("", &busy("sluice-nf-bridge"));
    goes_on(&mut daemon);
    let exec = version(&nf("sluice-nf-bridge"), folder.path(), "s-1");
    let done = daemon.client().upgrade("s", &to(&exec)).unwrap();
    signal(find_nf(&daemon.stats(), &done.instances[1]), Signal::KILL);
    let again = |s: &Stats| {
        let nf = find_nf(s, &done.instances[1]);
        nf.restarts == 1 && nf.state == NfState::Running
    };
    let stats = daemon.wait("it is started again", again);
    assert_eq!(programs(&stats, "s"), BTreeSet::from([PathBuf::from(&exec)]));
    goes_on(&mut daemon);
    let more = daemon.client().add_nf("s", None).unwrap().name;
    let stats = daemon.wait("it runs", |s| find_nf(s, &more).state == NfState::Running);
    assert_eq!(programs(&stats, "s"), BTreeSet::from([PathBuf::from(&exec)]));
    daemon.silence("steady", "steady");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_zygote_is_replaced_with_its_service() {
    let folder = crate::support::open_folder();
    let config = port("in", "gen", "rate = 20000\nflows = 64\noverload = \"wait\"")
        + &port("wan", "sink", "")
        + &service("ids", &test_nf(), "args = [\"callback\"]\nzygote = true\ninstances = 2")
        + &chain("c", "in", &["ids"], "wan", "on_failure = \"restart\"");
    let mut daemon = Daemon::start("", &config);
    let zygote = |s: &Stats| s.services[0].zygote.clone().unwrap();
    let before = daemon.wait("packets flow", |s| find_port(s, "wan").tx_packets > 100 && zygote(s).state == "ready");
    let exec = version(&test_nf(), folder.path(), "ids-2");
    let done = daemon.client().upgrade("ids", &to(&exec)).unwrap();
    let stats = daemon.wait("there is a new zygote", |s| zygote(s).state == "ready");
    assert_ne!(zygote(&stats).pid, zygote(&before).pid);
    let program = std::fs::read_link(format!("/proc/{}/exe", zygote(&stats).pid.unwrap())).unwrap();
    assert_eq!(program, Path::new(&exec));
    signal(find_nf(&stats, &done.instances[0]), Signal::KILL);
    let stats = daemon.wait("one is forked from it", |s| {
        let nf = find_nf(s, &done.instances[0]);
        zygote(s).forks == 1 && nf.state == NfState::Running
    });
    assert_eq!(programs(&stats, "ids"), BTreeSet::from([PathBuf::from(&exec)]));
    daemon.stop();
}

#[test]
fn flows_begin_and_end_while_a_pool_is_upgraded_and_none_is_lost_or_mixed() {
    let folder = crate::support::open_folder();
    let log = folder.path().join("flows");
    let config = port("in", "gen", "flows = 4\nsize = 80\nflow_packets = 40\nprotocol = \"tcp\"\nrate = 4000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service(
            "ids",
            &flow_nf(),
            &format!("args = [{log:?}]\nper = \"flow\"\n[service.pool]\nmin = 8\nmax = 24\nidle_ms = 3000\nlinger_ms = 20"),
        )
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let ended = |s: &Stats| s.status.pools[0].ended;
    daemon.wait("flows come and go", |s| ended(s) > 50);
    for name in ["ids-2", "ids-3"] {
        let exec = version(&flow_nf(), folder.path(), name);
        daemon.client().upgrade("ids", &to(&exec)).unwrap();
        let after = daemon.wait("the old ones have left", |s| programs(s, "ids") == BTreeSet::from([PathBuf::from(&exec)]));
        daemon.wait("flows come and go", |s| ended(s) > ended(&after) + 50);
    }
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    let stats = daemon.stats();
    // Only what came after the rule was removed.
    assert_eq!(stats.drops.values().sum::<u64>(), stats.drops["no_rule"], "{:?}", stats.drops);
    let out = find_port(&stats, "out");
    assert_eq!(out.details.get("lost"), Some(&0.0));
    let seen = std::fs::read_to_string(&log).unwrap();
    assert!(seen.matches("begin").count() > 150 && !seen.contains("mixed"), "{seen}");
    daemon.stop();
}

#[test]
fn flows_end_on_the_old_members_of_a_pool_and_begin_on_the_new() {
    let folder = crate::support::open_folder();
    let log = folder.path().join("flows");
    let from = |name: &str, keys: &str| port(name, "gen", &format!("rate = 4000\noverload = \"wait\"\n{keys}"));
    let config = from("old", "flows = 4")
        + &port("out", "sink", "")
        + &service(
            "ids",
            &flow_nf(),
            &format!("args = [{log:?}]\nper = \"flow\"\n[service.pool]\nmin = 6\nmax = 16\nidle_ms = 3000\nlinger_ms = 50"),
        )
        + &chain("old", "old", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let assigned = |s: &Stats| s.status.pools[0].assigned;
    let before = daemon.wait("each flow has its NF", |s| assigned(s) == 4 && find_port(s, "out").tx_packets > 100);
    let old: Vec<String> = before.nfs.iter().filter(|nf| nf.rx_packets > 0).map(|nf| nf.name.clone()).collect();
    assert_eq!(old.len(), 4);
    let exec = version(&flow_nf(), folder.path(), "ids-2");
    let done = daemon.client().upgrade("ids", &to(&exec)).unwrap();
    assert!(done.leaving >= 4 && done.instances.len() >= 6, "{done:?}");
    let is_old = |name: &str| !done.instances.iter().any(|new| new == name);
    let after = daemon.wait("old members without a flow have left", |s| s.nfs.iter().filter(|nf| is_old(&nf.name)).count() == 4);
    daemon.wait("old flows go on with the old members", |s| {
        old.iter().all(|name| find_nf(s, name).rx_packets > find_nf(&after, name).rx_packets + 500)
    });

    let mut client = daemon.client();
    client
        .add_port(
            &toml::from_str("name = \"new\"\nkind = \"gen\"\nrate = 3000\nflows = 3\ndst_port = 77\noverload = \"wait\"").unwrap(),
        )
        .unwrap();
    client.add_rule(toml::from_str("name = \"new\"\nport = \"new\"\nchain = \"old\"").unwrap(), None).unwrap();
    let stats = daemon.wait("new flows have NFs", |s| {
        assigned(s) == 7 && s.nfs.iter().filter(|nf| old.contains(&nf.name) || nf.rx_packets > 100).count() == 7
    });
    for nf in stats.nfs.iter().filter(|nf| nf.rx_packets > 0) {
        let program = std::fs::read_link(format!("/proc/{}/exe", nf.pid.unwrap())).unwrap();
        assert_eq!(program == Path::new(&exec), !old.contains(&nf.name), "{}", nf.name);
    }
    daemon.silence("old", "old");
    let stats = daemon.wait("the old members have left with their flows", |s| s.nfs.iter().all(|nf| !old.contains(&nf.name)));
    assert_eq!(programs(&stats, "ids"), BTreeSet::from([PathBuf::from(&exec)]));
    let seen = std::fs::read_to_string(&log).unwrap();
    assert_eq!((seen.matches("begin").count(), seen.matches("mixed").count()), (7, 0), "{seen}");
    // Only packets of the new port before its rule, and of the old one after its, are lost.
    assert_eq!(stats.drops.values().sum::<u64>(), stats.drops["no_rule"]);
    assert_eq!(find_port(&stats, "out").details.get("lost"), Some(&(find_port(&stats, "new").entry_drops as f64)));
    daemon.silence("new", "new");
    daemon.wait_until_empty();
    daemon.stop();
}
