//! A new version of a service on copies of packets: it takes over, or nothing has changed.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use sluice_api::model::{EventKind, Upgrade};
use sluice_api::shadow::{DifferenceKind, ShadowReport, ShadowRequest};

use crate::canary::{busy, instances, settle, version, wait_for_event};
use crate::holes::{addresses_of, fault};
use crate::revise::keys;
use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, class, find_nf, find_port, open_folder, port, service, signal};

fn request(exec: &str, seconds: u64) -> ShadowRequest {
    ShadowRequest { exec: exec.into(), args: Some(Vec::new()), seconds, allow: 0, allow_percent: 0.0, core: None }
}

/// Begins a shadow, and waits until some of its packets were compared. Returns its name.
#[track_caller]
fn begun(daemon: &mut Daemon, wanted: &ShadowRequest) -> String {
    daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 1_000);
    let begun = daemon.client().shadow("s", wanted).unwrap();
    assert_eq!((begun.instances.len(), begun.service.as_str()), (1, "s"));
    let until = Instant::now() + PATIENCE;
    loop {
        let ShadowReport { nf, counts, .. } = daemon.client().shadow_report("s").unwrap();
        if counts.compared > 0 {
            assert_eq!(nf, begun.instances[0]);
            return nf;
        }
        assert!(Instant::now() < until, "{counts}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Lets a program be a shadow, for longer each time, until enough of its packets were compared to
/// say something: others of its core go first. Returns its name and what was compared.
#[track_caller]
fn run_to_end(daemon: &mut Daemon, exec: &str) -> (String, ShadowReport) {
    let until = Instant::now() + PATIENCE;
    let mut seconds = 2;
    loop {
        let name = begun(daemon, &request(exec, seconds));
        let latest = Instant::now() + Duration::from_secs(seconds) + PATIENCE;
        let report = loop {
            let report = daemon.client().shadow_report("s").unwrap();
            if !report.runs {
                break report;
            }
            assert!(Instant::now() < latest, "{report:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(report.nf, name);
        if !report.failed.as_ref().is_some_and(|why| why.contains("too few to say anything")) {
            return (name, report);
        }
        assert!(Instant::now() < until, "{report:?}");
        seconds *= 2;
    }
}

#[test]
fn a_shadow_that_does_the_same_takes_over_and_no_packet_is_lost() {
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let exec = version(folder.path());
    let (name, report) = run_to_end(&mut daemon, &exec);
    assert!(!report.runs && report.failed.is_none() && report.differences.is_empty(), "{report:?}");
    assert!(report.counts.compared >= 100 && report.counts.equal == report.counts.compared, "{report:?}");
    let said = wait_for_event(&daemon, "upgraded to");
    assert!(said.contains(&exec), "{said}");
    let stats = daemon.wait("the shadow has left", |s| s.nfs.len() == 2 && s.nfs.iter().all(|nf| nf.name != name));
    let programs = stats.nfs.iter().map(|nf| std::fs::read_link(format!("/proc/{}/exe", nf.pid.unwrap())).unwrap());
    assert!({ programs }.all(|program| program == std::path::Path::new(&exec)));
    let said = daemon.client().abort_canary("s").unwrap_err().to_string();
    assert!(said.contains("shadow") && said.contains("has passed"), "{said}");
    let had = find_port(&stats, "all").tx_packets;
    daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > had + 1_000);
    settle(daemon, false);
}

#[test]
fn a_shadow_that_changes_a_byte_is_found_out_and_nothing_has_changed() {
    let mut daemon = Daemon::start("", &busy());
    let before = daemon.wait("both run", |s| instances(s).len() == 2);
    // It marks packets as expedited, which the old version does not.
    let (name, report) = run_to_end(&mut daemon, "sluice-nf-mark");
    let why = report.failed.as_ref().unwrap();
    assert!(why.contains(" packets differ, and 0 may"), "{why}");
    let said = wait_for_event(&daemon, why);
    assert!(said.contains("goes on as it was: ") && said.ends_with(why), "{said}");
    let after = daemon.wait("it has left", |s| s.nfs.iter().all(|nf| nf.name != name));
    assert_eq!(instances(&after), instances(&before), "the old version is as it was");
    // It may have some at the end that it had no time for.
    let counts = report.counts;
    assert!(counts.bytes > 0 && counts.bytes + counts.kept == counts.compared, "{report:?}");
    let differs: Vec<_> = report.differences.iter().filter(|one| one.kind == DifferenceKind::Bytes).collect();
    assert!(!differs.is_empty(), "{report:?}");
    for one in differs {
        assert_eq!((one.old.as_str(), one.new.as_str()), ("next", "next"));
        // Ethernet, the first byte of the IP header, then the class of service.
        assert_eq!((one.first_byte(), &one.packet), (Some(15), &one.old_bytes));
        assert_eq!((&one.new_bytes[30..32], &one.old_bytes[30..32]), ("b8", "00"));
    }
    settle(daemon, false);
}

#[test]
fn a_shadow_keeps_its_class_where_that_of_the_others_changes() {
    const BATCH: u32 = 3;
    const IDLE: u32 = 5;
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let name = begun(&mut daemon, &request(&version(folder.path()), 3_600));
    daemon.client().set(&keys("sched", "", json!({ "class": "batch" }))).unwrap();
    for nf in &daemon.stats().nfs {
        let wanted = if nf.name == name { IDLE } else { BATCH };
        assert_eq!(class(nf.pid.unwrap()).0, wanted, "{}", nf.name);
    }
    daemon.client().abort_canary("s").unwrap();
    daemon.wait("it has left", |s| s.nfs.len() == 2);
    settle(daemon, false);
}

#[test]
fn a_shadow_that_dies_is_reported_and_no_packet_is_lost() {
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let before = daemon.wait("both run", |s| instances(s).len() == 2);
    let name = begun(&mut daemon, &request(&version(folder.path()), 3_600));
    // Nothing else may change the service meanwhile.
    let refused = daemon.client().upgrade("s", &Upgrade { exec: "sluice-nf-bridge".into(), args: None });
    assert!(refused.unwrap_err().to_string().contains("with copies of packets"));
    signal(find_nf(&daemon.stats(), &name), Signal::KILL);
    let said = wait_for_event(&daemon, "failed: ");
    assert!(said.contains("ended while it got copies"), "{said}");
    let events = daemon.client().events().unwrap();
    assert!(events.iter().any(|event| event.event == EventKind::Death && event.nf == name), "{events:#?}");
    let after = daemon.wait("it has gone", |s| s.nfs.iter().all(|nf| nf.name != name));
    assert_eq!(instances(&after), instances(&before));
    let had = find_port(&after, "all").tx_packets;
    daemon.wait("packets go on", |s| find_port(s, "all").tx_packets > had + 1_000);
    settle(daemon, false);
}

#[test]
fn a_shadow_is_ended_by_request_and_with_the_instance_that_it_is_compared_with() {
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let exec = version(folder.path());
    let name = begun(&mut daemon, &request(&exec, 3_600));
    daemon.client().abort_canary("s").unwrap();
    let said = wait_for_event(&daemon, "failed: ");
    assert!(said.contains("ended by request"), "{said}");
    daemon.wait("it has left", |s| s.nfs.len() == 2 && s.nfs.iter().all(|nf| nf.name != name));
    assert!(daemon.client().abort_canary("s").unwrap_err().to_string().contains("no shadow"));
    assert!(daemon.client().shadow_report("t").unwrap_err().to_string().contains("there is no service `t`"));
    let name = begun(&mut daemon, &request(&exec, 3_600));
    let of = daemon.client().shadow_report("s").unwrap().of;
    signal(find_nf(&daemon.stats(), &of), Signal::KILL);
    wait_for_event(&daemon, "was started again meanwhile");
    daemon.wait("it has left", |s| s.nfs.iter().all(|nf| nf.name != name));
    settle(daemon, true);
}

#[test]
fn a_missing_page_of_a_shadow_ends_it_and_nothing_else() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root may send the daemon such a signal");
    }
    let folder = open_folder();
    let mut daemon = Daemon::start("", &busy());
    let before = daemon.wait("both run", |s| instances(s).len() == 2);
    let others = addresses_of(&daemon, "sluice-core");
    let name = begun(&mut daemon, &request(&version(folder.path()), 3_600));
    let all = addresses_of(&daemon, "sluice-core");
    fault(&daemon, *all.iter().find(|address| !others.contains(address)).expect("it has a page of its own"));
    let said = wait_for_event(&daemon, "failed: ");
    assert!(said.contains("a page of its memory was missing"), "{said}");
    let after = daemon.wait("it has left", |s| s.nfs.iter().all(|nf| nf.name != name));
    assert_eq!(instances(&after), instances(&before));
    settle(daemon, false);
}

#[test]
fn what_can_have_no_shadow_is_refused() {
    let pool = port("more", "gen", "rate = 10")
        + &service("p", "sluice-nf-bridge", "per = \"flow\"")
        + &chain("c", "more", &["p"], "all", "");
    let daemon = Daemon::start("", &(busy() + &pool));
    for (name, wanted, what) in [
        ("s", ShadowRequest { allow_percent: 101.0, ..request("sluice-nf-bridge", 1) }, "0 to 100 percent"),
        ("s", ShadowRequest { core: Some(100_000), ..request("sluice-nf-bridge", 1) }, "core"),
        ("s", request("/no/such/program", 1), "there is no program"),
        ("p", request("sluice-nf-bridge", 1), "its pool gives flows"),
        ("nat", request("sluice-nf-bridge", 1), "there is no service `nat`"),
    ] {
        let said = daemon.client().shadow(name, &wanted).expect_err(what).to_string();
        assert!(said.contains(what), "{said}");
    }
    assert!(daemon.client().shadow_report("s").unwrap_err().to_string().contains("has had no shadow"));
    let said = daemon.client().shadow("s", &request("/bin/true", 1)).unwrap_err().to_string();
    assert!(said.contains("goes on as it was"), "{said}");
    daemon.stop();
}
