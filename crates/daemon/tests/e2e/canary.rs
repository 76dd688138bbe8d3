//! A new version of a service on a part of new flows: it takes over, or its flows go back.

use rustix::process::Signal;
use sluice_api::change::CanaryRequest;
use sluice_api::model::{Event, EventKind, Nf, NfState, Stats};

use crate::promises::{ALWAYS, NEVER, PROMISES, assignment, on_demand};
use crate::support::{Daemon, PATIENCE, chain, find_chain, find_nf, find_port, open_folder, port, service, signal};

/// Flows that end, so that there are always new ones, through two instances of a service.
pub fn busy() -> String {
    port("steady", "gen", "rate = 30000\nflows = 64\nflow_packets = 20\noverload = \"wait\"")
        + &port("all", "sink", "")
        + &service("s", "sluice-nf-bridge", "instances = 2")
        + &chain("steady", "steady", &["s"], "all", "")
}

fn request(exec: &str, args: &[&str], seconds: u64) -> CanaryRequest {
    let args = Some(args.iter().map(|arg| arg.to_string()).collect());
    CanaryRequest { exec: exec.into(), args, percent: 25, seconds, drops_percent: 1.0, burst_us: None }
}

/// A copy of the bridge: another version of it.
pub fn version(folder: &std::path::Path) -> String {
    crate::support::open_nf(folder, "sluice-nf-bridge")
}

/// Waits for an event about the service that says this, and returns its text.
#[track_caller]
pub fn wait_for_event(daemon: &Daemon, words: &str) -> String {
    let is_it = |event: &Event| event.event == EventKind::Upgrade && event.text.as_ref().is_some_and(|text| text.contains(words));
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let events = daemon.client().events().unwrap();
        if let Some(event) = events.iter().find(|event| is_it(event)) {
            assert_eq!(event.subject.as_deref(), Some("service s"));
            return event.text.clone().unwrap();
        }
        assert!(std::time::Instant::now() < until, "no event says {words:?}: {events:#?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The instances of the service, with their processes.
pub fn instances(stats: &Stats) -> Vec<(String, Option<u32>)> {
    stats.nfs.iter().filter(|nf| nf.state == NfState::Running).map(|nf| (nf.name.clone(), nf.pid)).collect()
}

/// Checks that each packet that entered has left, but for these that an NF or its death has taken.
pub fn settle(mut daemon: Daemon, may_lose: bool) {
    daemon.client().remove_rule("steady").unwrap();
    let stats = daemon.wait("its packets have left", |s| {
        let (entered, gone) = (find_chain(s, "steady").entry_packets, find_chain(s, "steady").drops.values().sum::<u64>());
        entered == find_port(s, "all").tx_packets + gone
    });
    let lost: u64 = find_chain(&stats, "steady").drops.values().sum();
    assert!(may_lose || lost == 0, "{:?}", find_chain(&stats, "steady").drops);
    daemon.client().remove_port("steady").unwrap();
    daemon.wait_until_empty();
    daemon.stop();
}

/// Begins a canary, and waits until it has got packets.
#[track_caller]
fn begun(daemon: &mut Daemon, wanted: &CanaryRequest) -> (String, Nf) {
    let before = daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 1_000);
    let begun = daemon.client().canary("s", wanted).unwrap();
    assert_eq!((begun.instances.len(), begun.service.as_str()), (1, "s"));
    let name = begun.instances[0].clone();
    assert!(instances(&before).iter().all(|(other, _)| *other != name));
    let stats = daemon.wait("it gets packets", |s| s.nfs.iter().all(|nf| nf.name != name || nf.rx_packets > 200));
    let nf = stats.nfs.iter().find(|nf| nf.name == name).cloned().unwrap_or_default();
    (name, nf)
}

#[test]
fn a_canary_without_a_fault_takes_over_and_no_packet_is_lost() {
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let exec = version(folder.path());
    // On a busy host, too, it gets packets enough to be compared.
    let (name, _) = begun(&mut daemon, &CanaryRequest { percent: 50, ..request(&exec, &[], 10) });
    let said = wait_for_event(&daemon, "upgraded to");
    assert!(said.contains(&exec), "{said}");
    let stats = daemon.wait("the canary has left", |s| s.nfs.len() == 2 && s.nfs.iter().all(|nf| nf.name != name));
    let programs = stats.nfs.iter().map(|nf| std::fs::read_link(format!("/proc/{}/exe", nf.pid.unwrap())).unwrap());
    assert!({ programs }.all(|program| program == std::path::Path::new(&exec)));
    let had = find_port(&stats, "all").tx_packets;
    daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > had + 1_000);
    settle(daemon, false);
}

#[test]
fn a_canary_that_drops_more_than_the_others_goes_back() {
    let folder = open_folder();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "1 000102030405060708090a0b0c0d0e0f\n").unwrap();
    let mut daemon = Daemon::start("", &busy());
    let before = daemon.wait("both run", |s| instances(s).len() == 2);
    // It decrypts what nothing has encrypted, and so drops it.
    let wanted = request("sluice-nf-decrypt", &["--keys", keys.to_str().unwrap()], 3_600);
    let (name, _) = begun(&mut daemon, &wanted);
    let said = wait_for_event(&daemon, "failed: ");
    assert!(said.contains("goes on as it was: it dropped "), "{said}");
    let after = daemon.wait("it has left", |s| s.nfs.iter().all(|nf| nf.name != name));
    assert_eq!(instances(&after), instances(&before), "the others are as they were");
    settle(daemon, true);
}

#[test]
fn a_canary_that_dies_goes_back_and_its_flows_with_it() {
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let before = daemon.wait("both run", |s| instances(s).len() == 2);
    let (name, nf) = begun(&mut daemon, &request(&version(folder.path()), &[], 3_600));
    assert_eq!(nf.name, name);
    // Nothing else may change the service meanwhile.
    let refused = daemon.client().upgrade("s", &sluice_api::model::Upgrade { exec: "sluice-nf-bridge".into(), args: None });
    assert!(refused.unwrap_err().to_string().contains("part of new flows"));
    signal(&nf, Signal::KILL);
    let said = wait_for_event(&daemon, "failed: ");
    assert!(said.contains("ended while it took packets"), "{said}");
    let events = daemon.client().events().unwrap();
    assert!(events.iter().any(|event| event.event == EventKind::Death && event.nf == name), "{events:#?}");
    let after = daemon.wait("it has gone", |s| s.nfs.iter().all(|nf| nf.name != name));
    assert_eq!(instances(&after), instances(&before));
    let had = find_port(&after, "all").tx_packets;
    daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > had + 1_000);
    settle(daemon, true);
}

#[test]
fn a_canary_goes_back_when_an_slo_on_its_core_is_violated() {
    let folder = open_folder();
    let promised = port("acme-in", "gen", "rate = 2000")
        + &service("nf", "sluice-nf-bridge", "")
        + &chain("acme", "acme-in", &["nf"], "all", "")
        + &format!("{PROMISES}cache = \"none\"\n");
    let mut daemon = Daemon::start("", &(busy() + &promised));
    let before = daemon.wait("both run", |s| instances(s).len() == 3);
    // Two places a core.
    let place = 2 * find_nf(&before, "s.0").core as u32;
    let within = |latency_us: f64| {
        let mut wanted = assignment(&[("acme", &[place], 0, 0.0)]);
        on_demand(&mut wanted, "acme", latency_us, 1);
        wanted
    };
    daemon.client().place(&within(ALWAYS)).unwrap();
    daemon.wait("windows", |s| s.promises[0].windows > 1 && s.promises[0].violations.is_empty());
    let before = instances(&daemon.stats());
    let (name, _) = begun(&mut daemon, &request(&version(folder.path()), &[], 3_600));
    assert_eq!(find_nf(&daemon.stats(), &name).core, find_nf(&daemon.stats(), "acme-nf.0").core);
    // From now on no packet is in time.
    daemon.client().place(&within(NEVER)).unwrap();
    let said = wait_for_event(&daemon, "failed: ");
    assert!(said.contains("the SLO acme is violated since it takes packets"), "{said}");
    let after = daemon.wait("it has left", |s| s.nfs.iter().all(|nf| nf.name != name));
    assert_eq!(instances(&after), before, "the others are as they were");
    // What was violated before says nothing about the next one.
    let (name, _) = begun(&mut daemon, &request(&version(folder.path()), &[], 3_600));
    let windows = daemon.stats().promises[0].windows;
    daemon.wait("more violated windows", |s| s.promises[0].windows > windows + 2 && !s.promises[0].violations.is_empty());
    assert!(daemon.stats().nfs.iter().any(|nf| nf.name == name), "it stays");
    daemon.client().abort_canary("s").unwrap();
    daemon.wait("it has left", |s| s.nfs.iter().all(|nf| nf.name != name));
    daemon.stop();
}

#[test]
fn a_canary_is_ended_by_request_without_a_loss() {
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let (name, nf) = begun(&mut daemon, &request(&version(folder.path()), &[], 3_600));
    assert_eq!(nf.name, name);
    assert_eq!(find_nf(&daemon.stats(), &name).pid, nf.pid, "it runs");
    daemon.client().abort_canary("s").unwrap();
    let said = wait_for_event(&daemon, "failed: ");
    assert!(said.contains("ended by request"), "{said}");
    let stats = daemon.wait("it has left", |s| s.nfs.len() == 2);
    assert!(stats.nfs.iter().all(|nf| nf.name != name));
    assert!(daemon.client().abort_canary("s").unwrap_err().to_string().contains("no canary"));
    assert!(daemon.client().abort_canary("t").unwrap_err().to_string().contains("there is no service `t`"));
    settle(daemon, false);
}

#[test]
fn what_can_have_no_canary_is_refused() {
    let pool = port("more", "gen", "rate = 10")
        + &service("p", "sluice-nf-bridge", "per = \"flow\"")
        + &chain("c", "more", &["p"], "all", "");
    let daemon = Daemon::start("", &(busy() + &pool));
    for (name, wanted, what) in [
        ("s", CanaryRequest { percent: 60, ..request("sluice-nf-bridge", &[], 1) }, "1 to 50 percent"),
        ("s", request("/no/such/program", &[], 1), "there is no program"),
        ("p", request("sluice-nf-bridge", &[], 1), "its pool gives flows"),
        ("nat", request("sluice-nf-bridge", &[], 1), "there is no service `nat`"),
    ] {
        let said = daemon.client().canary(name, &wanted).expect_err(what).to_string();
        assert!(said.contains(what), "{said}");
    }
    let said = daemon.client().canary("s", &request("/bin/true", &[], 1)).unwrap_err().to_string();
    assert!(said.contains("goes on as it was"), "{said}");
    daemon.stop();
}
