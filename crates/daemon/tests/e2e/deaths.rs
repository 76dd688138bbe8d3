//! Why an NF died: log, events and report; and the health verdict on the daemon.

use std::time::Instant;

use rustix::process::Signal;
use sluice_api::config;
use sluice_api::health::{DeathCause, HealthVerdict};
use sluice_api::model::{Apply, Event, EventKind, NfState};

use crate::support::{Daemon, PATIENCE, chain, find_nf, find_port, head, open_folder, open_nf, port, service, signal};

fn one(nf: &str) -> String {
    port("load", "gen", "rate = 5000\nflows = 8")
        + &port("away", "sink", "")
        + nf
        + &chain("c", "load", &["b"], "away", "on_failure = \"restart\"")
}

/// Texts of the events of a kind about a subject.
fn texts(daemon: &Daemon, kind: EventKind, about: &str) -> Vec<String> {
    let is_it = |event: &Event| event.event == kind && (event.nf == about || event.subject.as_deref() == Some(about));
    let events = daemon.client().events().unwrap();
    assert!(events.iter().all(|event| event.unix_ms > 1_700_000_000_000), "{events:?}");
    events.into_iter().filter(is_it).map(|event| event.text.unwrap_or_default()).collect()
}

#[test]
fn a_death_says_which_signal_it_was_of_or_which_status() {
    let mut daemon = Daemon::start("", &one(&service("b", "sluice-nf-bridge", "")));
    daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    assert_eq!(daemon.client().status().unwrap().health.verdict, HealthVerdict::Healthy);
    assert_eq!(find_nf(&daemon.stats(), "b.0").last_death, None);
    for (n, (cause, what)) in
        [(Signal::KILL, "killed by signal 9 (SIGKILL)"), (Signal::ABORT, "killed by signal 6 (SIGABRT)")].into_iter().enumerate()
    {
        let stats = daemon.stats();
        signal(find_nf(&stats, "b.0"), cause);
        let again = |nf: &sluice_api::model::Nf| nf.restarts == n as u64 + 1 && nf.state == NfState::Running;
        let back = daemon.wait("it is back", |s| again(find_nf(s, "b.0")));
        let death = find_nf(&back, "b.0").last_death.clone().expect("it has died");
        assert_eq!((death.cause, death.what.as_str()), (DeathCause::Signal, what));
        assert!(death.unix_ms > 1_700_000_000_000 && death.time_ns <= back.time_ns);
        let deaths = texts(&daemon, EventKind::Death, "b.0");
        assert!(deaths.len() == n + 1 && deaths[n].starts_with(&format!("{what}, after ")), "{deaths:?}");
        assert_eq!(texts(&daemon, EventKind::Restart, "b.0").len(), n + 1);
    }
    daemon.wait_for_log(": killed by signal 9 (SIGKILL); it is started again at once");
    daemon.wait_for_log(": killed by signal 6 (SIGABRT); it is started again in 10 ms");
    // An NF in no chain is not started again.
    let exits: config::Service = toml::from_str("name = \"x\"\nexec = \"/bin/sh\"\nargs = [\"-c\", \"exit 3\"]").unwrap();
    daemon.client().add_service(&exits).unwrap();
    let stats = daemon.wait("it has failed", |s| find_nf(s, "x.0").state == NfState::Failed);
    let death = find_nf(&stats, "x.0").last_death.clone().expect("it has died");
    assert_eq!((death.cause, death.what.as_str()), (DeathCause::Exit, "exit status 3"));
    daemon.wait_for_log(": exit status 3; it is not started again");
    let health = stats.status.health;
    assert_eq!((health.verdict, health.problems.len()), (HealthVerdict::Degraded, 1), "{health:?}");
    assert_eq!(
        (health.problems[0].subject.as_str(), health.problems[0].what.as_str()),
        ("nf x.0", "has failed; the last time: exit status 3")
    );
    daemon.client().remove_service("x").unwrap();
    assert_eq!(daemon.client().status().unwrap().health.verdict, HealthVerdict::Healthy);
    assert_eq!(texts(&daemon, EventKind::Add, "service x"), ["added"]);
    assert_eq!(texts(&daemon, EventKind::Remove, "service x"), ["removed"]);
    daemon.silence("c", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_loop_of_deaths_says_its_pauses_and_degrades_the_verdict() {
    let folder = open_folder();
    let (broken, script) = (folder.path().join("broken"), folder.path().join("b"));
    let text = format!("#!/bin/sh\n[ -e {broken:?} ] && exit 3\nexec {}\n", open_nf(folder.path(), "sluice-nf-bridge"));
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut daemon = Daemon::start("", &one(&service("b", script.to_str().unwrap(), "")));
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    std::fs::write(&broken, "").unwrap();
    signal(find_nf(&stats, "b.0"), Signal::KILL);
    let stats = daemon.wait("it is in a loop", |s| {
        let subjects = |name: &str| s.status.health.problems.iter().any(|problem| problem.subject == name);
        find_nf(s, "b.0").restarts >= 4 && subjects("nf b.0") && subjects("chain c")
    });
    assert_eq!(stats.status.health.verdict, HealthVerdict::Degraded);
    for problem in &stats.status.health.problems {
        let words =
            if problem.subject == "chain c" { "refuses packets until" } else { "times in a row; the last time: exit status 3" };
        assert!(problem.what.contains(words) && problem.since_s >= 0.0, "{problem:?}");
    }
    let deaths = texts(&daemon, EventKind::Death, "b.0");
    assert!(deaths[0].starts_with("killed by signal 9") && deaths[0].ends_with("; it is started again at once"), "{deaths:?}");
    for (death, pause) in deaths[1..].iter().zip(["10 ms", "20 ms", "40 ms"]) {
        assert!(
            death.starts_with("exit status 3, after ") && death.ends_with(&format!("; it is started again in {pause}")),
            "{deaths:?}"
        );
    }
    daemon.wait_for_log(": exit status 3; it is started again in ");
    let until = Instant::now() + PATIENCE;
    while !texts(&daemon, EventKind::Chain, "chain c").iter().any(|text| text.starts_with("refuses packets")) {
        assert!(Instant::now() < until, "{}", daemon.log());
        daemon.stats();
    }
    std::fs::remove_file(&broken).unwrap();
    let before = find_port(&daemon.stats(), "away").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "away").tx_packets > before + 500);
    // It counts as in its loop until it has run well, but its chain no longer waits for it.
    let problems = daemon.client().status().unwrap().health.problems;
    assert!(problems.iter().all(|problem| problem.subject == "nf b.0"), "{problems:?}");
    daemon.wait("it has run well", |s| s.status.health.verdict == HealthVerdict::Healthy);
    daemon.silence("c", "load");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn changes_are_events() {
    let body = one(&service("b", "sluice-nf-bridge", ""));
    let mut daemon = Daemon::start("", &body);
    let config = head(daemon.folder(), "") + &body.replace("rate = 5000", "rate = 4000");
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    let applied = texts(&daemon, EventKind::Apply, "configuration");
    assert!(applied.len() == 1 && applied[0].contains("1 change (~ port load: "), "{applied:?}");
    let upgrade = |exec: &str| sluice_api::model::Upgrade { exec: exec.into(), args: None };
    daemon.client().upgrade("b", &upgrade("sluice-nf-bridge")).unwrap();
    daemon.client().upgrade("b", &upgrade("/bin/true")).unwrap_err();
    let upgrades = texts(&daemon, EventKind::Upgrade, "service b");
    assert!(upgrades[0].starts_with("upgraded to ") && upgrades[1].starts_with("failed: "), "{upgrades:?}");
    daemon.client().add_nf("b", None).unwrap();
    let added: Vec<Event> = daemon.client().events().unwrap().into_iter().filter(|event| event.event == EventKind::Add).collect();
    assert!(added.len() == 1 && added[0].nf.starts_with("b."), "{added:?}");
    daemon.wait("it runs", |s| find_nf(s, &added[0].nf).state == NfState::Running);
    daemon.client().remove_nf(&added[0].nf).unwrap();
    assert_eq!(texts(&daemon, EventKind::Remove, &added[0].nf), ["removed"]);
    daemon.silence("c", "load");
    assert_eq!((texts(&daemon, EventKind::Remove, "rule c").len(), texts(&daemon, EventKind::Remove, "port load").len()), (1, 1));
    daemon.wait_until_empty();
    daemon.stop();
}
