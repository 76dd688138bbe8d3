//! A placement that is kept: services, chains, input, parts of cores, cache classes; one that cannot be; and who is told of.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sluice_manager::control::client::ClientError;
use sluice_manager::control::promise::Promise;
use sluice_manager::control::{ApiError, ErrorKind};
use sluice_resctrl_stand_in::{Machine, StandIn};
use sluice_slo::assignment::{Assignment, Promised};
use sluice_slo::placement::{Instance, PlacedServer, ServerShape};
use sluice_slo::profile::{Digest, Key};
use sluice_slo::slo::{self, Slo, Workload};

use crate::support::{Daemon, chain, find_chain, find_nf, find_port, nf, port, service};

/// A server of four places.
fn shape(cpu: &str) -> ServerShape {
    let (cpu, memory_mib, way_bytes) = (cpu.to_string(), 1 << 10, 1 << 20);
    ServerShape { cpu, cores: 4, llc_ways: 20, way_bytes, ddio_ways: 2, min_ways: 1, classes: 8, memory_mib }
}

/// SLOs of one NF each: name, places of its instances, ways, packets per second of each.
fn assignment(slos: &[(&str, &[u32], u32, f64)]) -> Assignment {
    let mut server = PlacedServer::empty("s0", &shape("any"));
    let mut promised = Vec::new();
    for (name, places, ways, pps) in slos {
        for (number, place) in (0..).zip(*places) {
            let (slo, cores) = (name.to_string(), vec![*place]);
            server.instances.push(Instance { slo, number, cores, ways: *ways, memory_mib: 1, capacity_pps: *pps, load_pps: *pps });
        }
        let throughput_pps = pps * places.len() as f64;
        let slo = Slo {
            name: name.to_string(),
            workload: Workload::Nf("nf".into()),
            configuration: Digest::of(b""),
            traffic: "64 B".into(),
            promise: slo::Promise::Reserved { throughput_pps, latency_us: 1e6 },
        };
        promised.push(Promised { slo, profile: None });
    }
    Assignment { server, slos: promised }
}

const PROMISES: &str = "[promises]\nserver = \"s0\"\ncores = [0, 0, 1, 1]\nburst_us = 1000\n";

/// Two tenants, each with a port and a chain.
fn two(keys: &str, exec: &str) -> String {
    port("acme-in", "gen", "rate = 3000\noverload = \"wait\"")
        + &port("rogue-in", "gen", "rate = 20000")
        + &port("out", "sink", "")
        + &service("nf", exec, "")
        + &chain("acme", "acme-in", &["nf"], "out", "")
        + &chain("rogue", "rogue-in", &["nf"], "out", "")
        + &format!("{PROMISES}{keys}\n")
}

fn promise<'a>(promises: &'a [Promise], slo: &str) -> &'a Promise {
    promises.iter().find(|promise| promise.slo == slo).unwrap_or_else(|| panic!("no promise to {slo}"))
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ApiError {
    match result.unwrap_err() {
        ClientError::Api(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_placement_is_kept_and_a_tenant_that_sends_too_much_is_named() {
    let mut daemon = Daemon::start("", &two("cache = \"none\"", &nf("sluice-nf-bridge")));
    daemon.wait("packets flow", |s| find_chain(s, "acme").exit_packets > 100);
    let wanted = assignment(&[("acme", &[0, 2], 2, 5e3), ("rogue", &[3], 0, 2e3)]);
    let placed = daemon.client().place(&wanted).unwrap();
    let told: Vec<String> = placed.changes.iter().map(ToString::to_string).collect();
    assert!(told.contains(&"+ service acme-nf: 2 instances".to_string()), "{told:?}");
    assert!(placed.notes[0].contains("no cache classes: it is off"), "{placed:?}");
    assert_eq!(daemon.client().placement().unwrap(), wanted);
    let stats = daemon.stats();
    assert_eq!(find_chain(&stats, "acme").services, ["acme-nf"]);
    assert_eq!([0, 1].map(|i| find_nf(&stats, &format!("acme-nf.{i}")).core), [0, 1]);

    let stats = daemon.wait("windows", |s| s.promises.len() == 2 && s.promises.iter().all(|promise| promise.windows > 1));
    let (acme, rogue) = (promise(&stats.promises, "acme"), promise(&stats.promises, "rogue"));
    assert_eq!((acme.promised_pps, acme.part, acme.burst, acme.policed), (Some(1e4), 1.0, Some(64), 0));
    assert!(acme.excess.is_none() && acme.offered_pps > 0.0, "{acme:?}");
    assert!(rogue.excess.is_some() && rogue.exceeded > 0 && rogue.policed_pps > 0.0 && rogue.policed > 0, "{rogue:?}");
    assert!(rogue.violations.is_empty(), "who does not keep to its rate is promised nothing: {rogue:?}");
    assert!(find_chain(&stats, "rogue").drops["policed"] > 0 && stats.drops["policed"] > 0);
    assert!(!find_chain(&stats, "acme").drops.contains_key("policed"));
    assert!(find_port(&stats, "rogue-in").entry_drops > 0);
    daemon.wait("parts of cores", |s| find_nf(s, "rogue-nf.0").sched.share >= 0.45);
    assert!(stats.status.promises.iter().any(|(_, names)| names.contains(&"rogue".to_string())));
    let metrics = daemon.client().metrics().unwrap();
    assert!(metrics.contains("sluice_promise_promised_pps{slo=\"rogue\"} 2000\n"), "{metrics}");

    // The same again changes nothing; a rate alone changes no instance.
    assert!(daemon.client().place(&wanted).unwrap().changes.is_empty());
    let before = find_nf(&daemon.stats(), "rogue-nf.0").pid;
    let more = assignment(&[("acme", &[0, 2], 2, 5e3), ("rogue", &[3], 0, 3e4)]);
    assert!(daemon.client().place(&more).unwrap().changes.is_empty());
    assert_eq!(find_nf(&daemon.stats(), "rogue-nf.0").pid, before);
    daemon.wait("it keeps to its rate now", |s| {
        let rogue = promise(&s.promises, "rogue");
        rogue.windows > 1 && rogue.excess.is_none()
    });

    // Another configuration keeps it too, and a chain that it needs cannot go.
    assert_eq!(refusal(daemon.client().remove_chain("acme")).kind, ErrorKind::Conflict);
    daemon.client().withdraw().unwrap();
    let stats = daemon.stats();
    assert!(stats.promises.is_empty() && stats.nfs.len() == 1, "{:?}", stats.nfs);
    assert_eq!(find_chain(&stats, "acme").services, ["nf"]);
    assert_eq!(refusal(daemon.client().placement()).kind, ErrorKind::NotFound);
    daemon.stop();
}

#[test]
fn no_packet_is_lost_when_a_placement_comes_moves_and_goes() {
    const PACKETS: u64 = 60_000;
    let body = port("in", "gen", &format!("rate = 30000\noverload = \"wait\"\ncount = {PACKETS}\nflows = 64"))
        + &port("out", "sink", "")
        + &service("nf", &nf("sluice-nf-bridge"), "")
        + &chain("acme", "in", &["nf"], "out", "")
        + PROMISES;
    let mut daemon = Daemon::start("", &body);
    let mut client = daemon.client();
    for places in [&[0][..], &[2, 3], &[1]] {
        client.place(&assignment(&[("acme", places, 0, 1e6)])).unwrap();
        let before = find_chain(&daemon.stats(), "acme").exit_packets;
        daemon.wait("packets go on", |s| find_chain(s, "acme").exit_packets > before || find_port(s, "in").finished);
    }
    client.withdraw().unwrap();
    let stats = daemon.wait("all packets", |s| find_port(s, "out").tx_packets >= PACKETS);
    assert_eq!(
        (find_port(&stats, "out").tx_packets, find_port(&stats, "out").details["lost"]),
        (PACKETS, 0.0),
        "{:?}",
        stats.drops
    );
    daemon.stop();
}

#[test]
fn a_placement_that_cannot_be_kept_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (script, flag) = (folder.path().join("nf"), folder.path().join("good"));
    std::fs::write(&script, format!("#!/bin/sh\n[ -e {flag:?} ] || exit 1\nexec {} \"$@\"\n", nf("sluice-nf-bridge"))).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&flag, "").unwrap();
    let mut daemon = Daemon::start("", &two("", &script.display().to_string()));
    let good = assignment(&[("acme", &[0], 0, 5e3)]);
    daemon.client().place(&good).unwrap();
    let nfs = |daemon: &mut Daemon| -> Vec<String> { daemon.stats().nfs.into_iter().map(|nf| nf.name).collect() };
    assert_eq!(nfs(&mut daemon), ["nf.0", "acme-nf.0"]);
    let of = |change: &dyn Fn(&mut Assignment)| {
        let mut wrong = assignment(&[("acme", &[0], 0, 5e3), ("rogue", &[1], 0, 5e3)]);
        change(&mut wrong);
        wrong
    };
    let key = Key {
        workload: Workload::Nf("nf".into()),
        binaries: vec![Digest::of(b"another")],
        configuration: Digest::of(b""),
        traffic: "64 B".into(),
        cpu: "another".into(),
    };
    let wrong: [(&str, Assignment); 8] = [
        ("for server \"s1\", and this is \"s0\"", of(&|a| a.server.name = "s1".into())),
        ("is given to two instances", of(&|a| a.server.instances[1].cores = vec![0])),
        ("is to be given", of(&|a| a.server.instances[1].load_pps = 1e9)),
        (
            "no chain is named as the SLO \"web\"",
            of(&|a| (a.slos[1].slo.name, a.server.instances[1].slo) = ("web".into(), "web".into())),
        ),
        ("runs ids, and the chain of that name passes nf", of(&|a| a.slos[1].slo.workload = Workload::Nf("ids".into()))),
        ("with 5 cores for NFs", of(&|a| a.server.shape.cores = 5)),
        ("admitted by a profile of \"another\"", of(&|a| a.slos[1].profile = Some(key.clone()))),
        (
            "a latency is above 0",
            of(&|a| {
                a.slos[1].slo.promise =
                    slo::Promise::OnDemand { latency_us: -1.0, cap: slo::Cap { instances: Some(1), ..Default::default() } }
            }),
        ),
    ];
    for (why, wrong) in wrong {
        let error = refusal(daemon.client().place(&wrong));
        assert!(error.error.contains(why), "{why}: {error}");
        assert_eq!(error.kind, ErrorKind::BadInput, "{why}");
        assert!(error.error.contains("the placement before stands"), "{error}");
    }
    // One that looks good, and whose NF does not start.
    std::fs::remove_file(&flag).unwrap();
    let error = refusal(daemon.client().place(&of(&|_| {})));
    assert!(error.error.contains("rogue-nf.0 ended before it was ready") && error.kind == ErrorKind::Conflict, "{error}");
    daemon.wait("what was begun is gone", |s| s.nfs.len() == 2);
    assert_eq!(nfs(&mut daemon), ["nf.0", "acme-nf.0"]);
    assert_eq!(daemon.client().placement().unwrap(), good);
    std::fs::write(&flag, "").unwrap();
    daemon.client().place(&of(&|_| {})).unwrap();
    daemon.stop();
}

/// The group that a thread is in, by the files of all groups.
fn groups(kernel: &StandIn) -> BTreeMap<String, Vec<u32>> {
    let read = |folder: &Path| {
        let tasks = std::fs::read_to_string(folder.join("tasks")).ok()?;
        let name = folder.file_name()?.to_str()?.to_string();
        Some((name, tasks.lines().filter_map(|line| line.parse().ok()).collect()))
    };
    std::fs::read_dir(kernel.path()).unwrap().flatten().filter_map(|entry| read(&entry.path())).collect()
}

#[test]
fn instances_have_their_ways_of_the_cache() {
    let kernel = match StandIn::mount(Machine::default()) {
        Ok(kernel) => kernel,
        Err(error) => return eprintln!("left out: no FUSE file system can be mounted here ({error})"),
    };
    let mut daemon = Daemon::start("", &two(&format!("resctrl = {:?}", kernel.path()), &nf("sluice-nf-bridge")));
    assert_eq!(daemon.client().promises().unwrap().cache, "resctrl");
    let placed = daemon.client().place(&assignment(&[("acme", &[0, 2], 4, 5e3), ("rogue", &[3], 0, 2e3)])).unwrap();
    assert_eq!(placed.notes, Vec::<String>::new());
    let stats = daemon.stats();
    let pid = |name: &str| find_nf(&stats, name).pid.unwrap();
    let inside = groups(&kernel);
    assert_eq!(inside.keys().collect::<Vec<_>>(), ["sluice-acme.0", "sluice-acme.1", "sluice-shared"]);
    assert!(
        inside["sluice-acme.0"].contains(&pid("acme-nf.0")) && inside["sluice-acme.1"].contains(&pid("acme-nf.1")),
        "{inside:?}"
    );
    assert!(inside["sluice-shared"].contains(&pid("rogue-nf.0")), "{inside:?}");
    // An instance that is started again is put there again.
    crate::support::signal(find_nf(&stats, "acme-nf.0"), rustix::process::Signal::KILL);
    let stats = daemon.wait("it is back", |s| find_nf(s, "acme-nf.0").restarts > 0 && find_nf(s, "acme-nf.0").pid.is_some());
    let pid = find_nf(&stats, "acme-nf.0").pid.unwrap();
    daemon.wait("it is in its class", |_| groups(&kernel)["sluice-acme.0"].contains(&pid));
    daemon.wait("occupancy", |s| s.promises.iter().all(|promise| promise.occupancy_bytes.is_some()));
    // More than there is: the ways that there were stay.
    let error = refusal(daemon.client().place(&{
        let mut wrong = assignment(&[("acme", &[0, 2], 4, 5e3), ("rogue", &[3], 10, 2e3)]);
        wrong.server.shape.llc_ways = 24;
        wrong
    }));
    assert!(error.error.contains("24 ways, and the cache here has 20"), "{error}");
    assert_eq!(groups(&kernel).len(), 3);
    daemon.client().withdraw().unwrap();
    assert!(groups(&kernel).is_empty());
    daemon.client().place(&assignment(&[("acme", &[0], 4, 5e3)])).unwrap();
    daemon.stop();
    assert!(groups(&kernel).is_empty(), "nothing is left behind");
}
