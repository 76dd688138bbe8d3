//! NFs ask for a priority, and say that a flow is over.

use rustix::process::Signal;
use serde_json::{Value, json};
use sluice_api::change::SetKeys;
use sluice_api::model::{Event, EventKind, NfState};

use crate::pools::{distinct, ids, lines, pool, seen};
use crate::support::{Daemon, chain, find_nf, find_port, flow_nf, open_folder, port, service, signal};

/// Sets `priority_max` of service s.
fn bound(daemon: &Daemon, most: Value) {
    let keys = [("priority_max".to_string(), most)].into();
    daemon.client().set(&SetKeys { kind: "service".into(), name: Some("s".into()), keys, dry_run: false }).unwrap();
}

#[test]
fn an_nf_gets_the_priority_that_it_asks_for_within_the_bounds_of_its_service() {
    let config = port("in", "gen", "rate = 2000")
        + &port("out", "sink", "")
        + &service("s", &flow_nf(), "args = [\"/dev/null\", \"--ask=9\"]\nzygote = true\npriority_max = 4")
        + &service("t", &flow_nf(), "args = [\"/dev/null\", \"--ask=9\"]")
        + &chain("c", "in", &["s", "t"], "out", "");
    let mut daemon = Daemon::start("", &config);
    let stats = daemon.wait("it has the most that its service allows", |s| find_nf(s, "s.0").sched.priority == 4.0);
    let before = find_nf(&stats, "s.0");
    assert_eq!((before.sched.priority_changes, before.sched.level), (1, 4));
    let is_it = |event: &Event| event.event == EventKind::Priority;
    let events: Vec<Event> = daemon.client().events().unwrap().into_iter().filter(is_it).collect();
    let said: Vec<_> = events.iter().map(|event| (event.nf.as_str(), event.text.as_deref().unwrap())).collect();
    assert_eq!(said, [("s.0", "asks for 9: 1 → 4")]);
    for (most, priority) in [(json!(2), 2.0), (Value::Null, 1.0), (json!(3), 3.0)] {
        bound(&daemon, most);
        daemon.wait("the bound is another", |s| find_nf(s, "s.0").sched.priority == priority);
    }
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 1_000);
    assert_eq!(find_nf(&stats, "s.0").pid, before.pid, "its instance stays");
    let other = &find_nf(&stats, "t.0").sched;
    assert_eq!((other.priority, other.priority_changes), (1.0, 0), "a service without bounds allows nothing");
    // Another process has not asked until it does.
    signal(find_nf(&stats, "s.0"), Signal::KILL);
    daemon.wait("another process asks, too", |s| {
        let nf = find_nf(s, "s.0");
        (nf.restarts, nf.state, nf.sched.priority, nf.sched.priority_changes) == (1, NfState::Running, 3.0, 2)
    });
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_flow_that_its_nf_says_is_over_ends() {
    let folder = open_folder();
    let at = folder.path();
    let config = port("in", "gen", "flows = 3\nrate = 3000")
        + &port("out", "sink", "")
        + &ids("ids", at, ", \"--end\"", "min = 8\nmax = 8\nlinger_ms = 0")
        + &chain("c", "in", &["ids"], "out", "");
    let mut daemon = Daemon::start("", &config);
    daemon.wait("flows end, though packets of them come", |s| pool(s, "ids").ended_by_nf >= 9 && pool(s, "ids").ended >= 9);
    let seen_now = seen(at, "ids");
    let begun = lines(&seen_now, "begin");
    assert!(lines(&seen_now, "mixed").is_empty(), "{seen_now:?}");
    assert!(begun.len() > 6 && distinct(&begun, 3).len() == 3 && distinct(&begun, 1).len() > 3, "{seen_now:?}");
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    daemon.stop();
}
