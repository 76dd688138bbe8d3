//! Keys of the running configuration are set, and former configurations come back.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use sluice_api::change::{SetKeys, Undo};
use sluice_api::model::{Applied, Apply, EventKind, NfState, Stats};

use crate::support::{Daemon, chain, find_nf, find_port, head, open_folder, port, service, signal};

/// A chain from a generator with this rate through one NF.
fn steady(rate: u32) -> String {
    port("in", "gen", &format!("rate = {rate}\nflows = 4\noverload = \"wait\""))
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("c", "in", &["s"], "out", "")
}

pub fn keys(kind: &str, name: &str, keys: serde_json::Value) -> SetKeys {
    let name = Some(name.to_string()).filter(|name| !name.is_empty());
    SetKeys { kind: kind.into(), name, keys: serde_json::from_value(keys).unwrap(), dry_run: false }
}

/// Changes as lines.
fn lines(applied: &Applied) -> Vec<String> {
    applied.changes.iter().map(ToString::to_string).collect()
}

/// The process of the only NF, and the packets that the sink has got.
fn state(stats: &Stats) -> (Option<u32>, u64) {
    (find_nf(stats, "s.0").pid, find_port(stats, "out").tx_packets)
}

/// Checks that each packet that entered has left, once and in order.
fn settle(mut daemon: Daemon) {
    daemon.settle("c", "out");
    daemon.stop();
}

#[test]
fn keys_change_in_what_runs_and_no_packet_is_lost() {
    let mut daemon = Daemon::start("", &steady(5_000));
    let (process, before) = state(&daemon.wait("packets flow", |s| state(s).1 > 500));
    let mut client = daemon.client();
    for (set, line) in [
        (keys("service", "s", json!({ "priority": 2 })), "~ service s: priority 1.0 → 2.0"),
        (keys("port", "in", json!({ "rate": 20000 })), "~ port in: rate 5000.0 → 20000.0"),
        (
            keys("sched", "", json!({ "high_watermark": 70, "ecn": false, "weight_every_ms": 20 })),
            "~ section sched: ecn true → false; high_watermark 80 → 70; weight_every_ms 10 → 20",
        ),
        (keys("manager", "", json!({ "latency_sample": 7 })), "~ section manager: latency_sample 128 → 7"),
    ] {
        let planned = client.set(&SetKeys { dry_run: true, ..set.clone() }).unwrap();
        assert_eq!((lines(&planned), planned.dry_run), (vec![line.to_string()], true));
        assert_eq!(lines(&client.set(&set).unwrap()), [line]);
        assert_eq!(client.set(&set).unwrap().changes, vec![], "it is so already");
    }
    let stats = daemon.wait("packets go on", |s| state(s).1 > before + 2_000);
    assert_eq!(state(&stats).0, process, "its instance stays");
    assert_eq!(find_nf(&stats, "s.0").sched.priority, 2.0);
    assert!(find_port(&stats, "in").description.contains("20000 packets/s"), "{}", find_port(&stats, "in").description);
    let events = client.events().unwrap();
    let set = events.iter().filter(|event| event.event == EventKind::Apply);
    let set: Vec<_> = set.map(|event| (event.subject.clone().unwrap(), event.text.clone().unwrap())).collect();
    assert_eq!(set.len(), 4, "{set:?}");
    assert_eq!(set[0], ("service s".into(), "set priority 1.0 → 2.0".into()));
    daemon.wait_for_log("sluiced: service s: set priority 1.0 → 2.0");
    settle(daemon);
}

#[test]
fn what_cannot_be_set_is_refused_before_anything_changes() {
    let mut daemon = Daemon::start("", &steady(5_000));
    let before = state(&daemon.stats()).0;
    let mut client = daemon.client();
    for (set, what) in [
        (keys("service", "nat", json!({ "priority": 2 })), "no service is called \"nat\""),
        (keys("service", "s", json!({ "prio": 2 })), "has no key \"prio\""),
        (keys("service", "s", json!({ "priority": -1, "ring": 64 })), "priority"),
        (keys("sched", "", json!({ "low_watermark": 90 })), "low watermark"),
        (keys("manager", "", json!({ "max_nfs": 9 })), "manager.max_nfs cannot be changed on a running daemon"),
        (keys("manager", "", json!({ "log_level": "loud" })), "is no level"),
    ] {
        let said = client.set(&set).expect_err(what).to_string();
        assert!(said.contains(what), "{said}");
    }
    assert!(client.history().unwrap().is_empty());
    assert_eq!(state(&daemon.stats()).0, before);
    settle(daemon);
}

#[test]
fn the_configuration_in_force_has_what_was_set_and_added_and_is_the_same_when_applied() {
    let mut daemon = Daemon::start("", &steady(5_000));
    let mut client = daemon.client();
    client.set(&keys("service", "s", json!({ "priority": 2 }))).unwrap();
    client.add_nf("s", Some(0)).unwrap();
    let config = client.running_config().unwrap();
    assert!(
        config.contains("priority = 2.0")
            && config.contains("instances = 2")
            && config.contains("cores = [")
            && !config.contains("ecn = "),
        "{config}"
    );
    let output = daemon.sluice(&["config"]).output().unwrap();
    assert_eq!((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()), (true, config.clone()));
    assert_eq!(client.apply(&Apply { config, file: None, dry_run: true }).unwrap().changes, vec![]);
    daemon.wait("both run", |s| s.nfs.iter().all(|nf| nf.state == NfState::Running));
    settle(daemon);
}

#[test]
fn the_level_of_the_log_changes_and_goes_back() {
    let mut daemon = Daemon::start("", &steady(1_000));
    let mut client = daemon.client();
    let dies = |daemon: &mut Daemon, deaths: u64| {
        signal(find_nf(&daemon.stats(), "s.0"), Signal::KILL);
        daemon.wait("it is back", |s| {
            let nf = find_nf(s, "s.0");
            nf.restarts == deaths && nf.state == NfState::Running
        });
    };
    client.set(&keys("manager", "", json!({ "log_level": "error" }))).unwrap();
    dies(&mut daemon, 1);
    assert!(!daemon.log().contains("has ended after"), "{}", daemon.log());
    client.set(&keys("manager", "", json!({ "log_level": null }))).unwrap();
    dies(&mut daemon, 2);
    daemon.wait_for_log("s.0 has ended after");
    daemon.stop();
}

#[test]
fn former_configurations_come_back_also_after_a_restart() {
    let folder = open_folder();
    let history = format!("history = {:?}", folder.path().join("history"));
    std::fs::write(folder.path().join("sluice.toml"), head(folder.path(), &history) + &steady(5_000)).unwrap();
    let mut daemon = Daemon::again(folder);
    let mut client = daemon.client();
    client.set(&keys("port", "in", json!({ "rate": 6000 }))).unwrap();
    let config = head(daemon.folder(), &history) + &steady(7_000) + &port("spare", "sink", "");
    client.apply(&Apply { config, file: None, dry_run: false }).unwrap();
    let listed = client.history().unwrap();
    let sources: Vec<&str> = listed.iter().map(|former| former.source.as_str()).collect();
    assert_eq!(sources, ["the configuration", "set port in rate"]);

    assert!(daemon.end(Signal::TERM).success());
    let mut daemon = Daemon::again(daemon.into_folder());
    let mut client = daemon.client();
    assert_eq!(client.history().unwrap(), listed);
    let planned = client.undo(Undo { to: None, dry_run: true }).unwrap();
    assert_eq!(lines(&planned), ["~ port in: rate 5000.0 → 6000.0"]);
    assert_eq!(client.undo(Undo::default()).unwrap().changes, planned.changes);
    assert_eq!(client.history().unwrap(), listed[1..], "it is kept no more");
    let said = client.undo(Undo { to: Some(listed[0].number), dry_run: false }).unwrap_err().to_string();
    assert!(said.contains("no former configuration"), "{said}");
    assert_eq!(lines(&client.undo(Undo::default()).unwrap()), ["~ port in: rate 6000.0 → 5000.0"]);
    let said = client.undo(Undo::default()).unwrap_err().to_string();
    assert!(said.contains("nothing to undo"), "{said}");
    daemon.wait("packets flow", |s| state(s).1 > 100);
    settle(daemon);
}

#[test]
fn a_replaced_service_and_a_removed_chain_come_back() {
    let mut daemon = Daemon::start("", &steady(2_000));
    let other = port("in", "gen", "rate = 2000\nflows = 4\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "ring = 64")
        + &service("t", "sluice-nf-bridge", "")
        + &chain("c", "in", &["s", "t"], "out", "");
    let config = head(daemon.folder(), "") + &other;
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    daemon.wait("the new chain delivers", |s| s.nfs.iter().any(|nf| nf.service == "t" && nf.tx_packets > 100));
    let undone = lines(&daemon.client().undo(Undo::default()).unwrap());
    assert!(undone.iter().any(|line| line.starts_with("~ service s: ring 64 → 2048")), "{undone:?}");
    assert!(undone.contains(&"- service t".to_string()), "{undone:?}");
    let stats = daemon.wait("the former service runs", |s| {
        let all: Vec<_> = s.nfs.iter().filter(|nf| nf.state == NfState::Running).collect();
        all.len() == 1 && all[0].service == "s" && all[0].tx_packets > 100
    });
    assert_eq!(stats.services.len(), 1);
    settle(daemon);
}

#[test]
fn set_is_saved_in_the_file_which_keeps_its_comments() {
    let folder = open_folder();
    let file = folder.path().join("sluice.toml");
    let text = format!("# Ours.\n{}", head(folder.path(), "") + &steady(5_000).replace("rate = 5000", "rate = 5000 # slow"));
    std::fs::write(&file, &text).unwrap();
    let daemon = Daemon::again(folder);
    let set = daemon.says(&["set", "port", "in", "rate=6000", "--save"]);
    assert_eq!(set, format!("~ port in\n-     rate = 5000.0\n+     rate = 6000.0\n1 change done\nsaved in {}\n", file.display()));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text.replace("rate = 5000 # slow", "rate = 6000 # slow"));
    assert!(daemon.says(&["apply", file.to_str().unwrap()]).starts_with("nothing to change"));
    // What the file does not have is refused before the daemon changes.
    daemon.client().add_service(&toml::from_str("name = \"live\"\nexec = \"sluice-nf-bridge\"").unwrap()).unwrap();
    let refused = daemon.sluice(&["set", "service", "live", "priority=2", "--save"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("nothing was changed"), "{said}");
    assert!(daemon.says(&["set", "service", "live", "priority=2"]).contains("+     priority = 2.0"));
    assert!(daemon.says(&["undo", "--list"]).contains("set service live priority"));
    assert!(daemon.says(&["undo"]).contains("-     priority = 2.0\n+     priority = 1.0\n1 change done"));
    daemon.stop();
}

/// Runs a command on a terminal of its own, answers its question, and returns its whole output.
fn on_terminal(daemon: &Daemon, args: &[&str], answer: &str) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let path = name.to_str().unwrap();
    let theirs = || File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path).unwrap();
    let mut command = daemon.sluice(args);
    let mut child = command.env("NO_COLOR", "1").stdin(theirs()).stdout(theirs()).stderr(theirs()).spawn().unwrap();
    // The terminal is ours alone now: reading it ends with the command.
    drop(command);
    let mut ours = File::from(ours);
    ours.write_all(answer.as_bytes()).unwrap();
    let mut said = Vec::new();
    // A terminal that nothing has open any more is an error.
    let _ = ours.read_to_end(&mut said);
    assert!(child.wait().unwrap().success());
    String::from_utf8_lossy(&said).replace("\r\n", "\n")
}

#[test]
fn an_apply_on_a_terminal_shows_its_plan_and_asks() {
    let mut daemon = Daemon::start("", &steady(5_000));
    let file = daemon.folder().join("new.toml");
    std::fs::write(&file, head(daemon.folder(), "") + &steady(6_000)).unwrap();
    let path = file.to_str().unwrap();
    let said = on_terminal(&daemon, &["apply", path], "n\n");
    assert!(said.contains("+     rate = 6000.0") && said.contains("make 1 change? [y/N]"), "{said}");
    assert!(said.contains("nothing was changed"), "{said}");
    assert!(find_port(&daemon.stats(), "in").description.contains("5000 packets/s"));
    let said = on_terminal(&daemon, &["apply", path], "y\n");
    assert!(said.contains("1 change done"), "{said}");
    assert!(find_port(&daemon.stats(), "in").description.contains("6000 packets/s"));
    let said = on_terminal(&daemon, &["undo", "--yes"], "");
    assert!(said.contains("replaced by ") && said.contains(path) && !said.contains("[y/N]"), "{said}");
    assert!(find_port(&daemon.stats(), "in").description.contains("5000 packets/s"));
    daemon.stop();
}
