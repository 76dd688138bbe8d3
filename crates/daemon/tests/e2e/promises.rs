//! SLO placements: what keeps them, those that are refused, and what is reported.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use sluice_api::client::ClientError;
use sluice_api::model::{Apply, EventKind, NfState, Stats, Upgrade};
use sluice_api::promise::Promise;
use sluice_api::{ApiError, ErrorKind};
use sluice_cache::host::Processor;
use sluice_planner::migration::{Old, Step};
use sluice_resctrl_stand_in::{Count, Machine, StandIn};
use sluice_slo::assignment::{Assignment, Promised};
use sluice_slo::digest::Digest;
use sluice_slo::on_demand::Remedy;
use sluice_slo::placement::{Instance, PlacedServer, Placement, ServerShape};
use sluice_slo::profile::{Key, Profile};
use sluice_slo::slo::{self, Slo, Workload};

use crate::profile::measured;
use crate::reader::ReadTrace;
use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, find_chain, find_nf, find_port, head, nf, open_nf, port, service};

/// A server of four places.
fn shape(cpu: &str) -> ServerShape {
    let (cpu, memory_mib, way_bytes) = (cpu.to_string(), 1 << 10, 1 << 20);
    ServerShape { cpu, cores: 4, llc_ways: 20, way_bytes, ddio_ways: 2, min_ways: 1, classes: 8, memory_mib, path_us: 0 }
}

/// SLOs of one NF: name, places of its instances, and ways and packets/s of each.
pub fn assignment(slos: &[(&str, &[u32], u32, f64)]) -> Assignment {
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

pub const PROMISES: &str = "[promises]\nserver = \"s0\"\ncores = [0, 0, 1, 1]\nburst_us = 1000\n";

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
    let changes: Vec<String> = placed.changes.iter().map(ToString::to_string).collect();
    assert!(changes.contains(&"+ service acme-nf: 2 instances".to_string()), "{changes:?}");
    assert!(placed.notes[0].contains("no cache classes: it is off"), "{placed:?}");
    assert_eq!(daemon.client().placement().unwrap(), wanted);
    let stats = daemon.stats();
    assert_eq!(find_chain(&stats, "acme").services, ["acme-nf"]);
    assert_eq!([0, 1].map(|i| find_nf(&stats, &format!("acme-nf.{i}")).core), [0, 1]);

    // On a busy host, not in each window.
    let stats = daemon.wait("windows in which one sends too much and gets what it was promised", |s| {
        let has_two = s.promises.len() == 2 && s.promises.iter().all(|promise| promise.windows > 1);
        has_two && {
            let (acme, rogue) = (promise(&s.promises, "acme"), promise(&s.promises, "rogue"));
            let is_too_much = rogue.excess.is_some() && rogue.policed_pps > 0.0;
            acme.excess.is_none() && acme.offered_pps > 0.0 && is_too_much && rogue.violations.is_empty()
        }
    });
    let (acme, rogue) = (promise(&stats.promises, "acme"), promise(&stats.promises, "rogue"));
    assert_eq!((acme.promised_pps, acme.part, acme.burst, acme.policed), (Some(1e4), 1.0, Some(64), 0));
    assert!(rogue.exceeded > 0 && rogue.policed > 0, "{rogue:?}");
    assert!(find_chain(&stats, "rogue").drops["policed"] > 0 && stats.drops["policed"] > 0);
    assert!(!find_chain(&stats, "acme").drops.contains_key("policed"));
    let row = crate::drops::ask(&daemon, "policed");
    assert_eq!((&row["samples"][0]["chain"], &row["samples"][0]["port"]), (&"rogue".into(), &"rogue-in".into()), "{row}");
    assert!(find_port(&stats, "rogue-in").entry_drops > 0);
    daemon.wait("parts of cores", |s| ["rogue-nf.0", "acme-nf.1"].iter().all(|nf| find_nf(s, nf).sched.share >= 0.45));
    assert!(stats.status.promises["exceeded"].contains(&"rogue".to_string()), "{:?}", stats.status.promises);
    let metrics = daemon.client().metrics().unwrap();
    assert!(metrics.contains("sluice_promise_promised_pps{slo=\"rogue\"} 2000\n"), "{metrics}");

    // The same placement changes nothing; a new rate alone changes no instance.
    assert!(daemon.client().place(&wanted).unwrap().changes.is_empty());
    let before = find_nf(&daemon.stats(), "rogue-nf.0").pid;
    let more = assignment(&[("acme", &[0, 2], 2, 5e3), ("rogue", &[3], 0, 3e4)]);
    assert!(daemon.client().place(&more).unwrap().changes.is_empty());
    assert_eq!(find_nf(&daemon.stats(), "rogue-nf.0").pid, before);
    daemon.wait("it keeps to its rate now", |s| {
        let rogue = promise(&s.promises, "rogue");
        rogue.windows > 1 && rogue.excess.is_none()
    });

    // Another configuration keeps the placement, too.
    let config =
        head(daemon.folder(), "") + &two("cache = \"none\"", &nf("sluice-nf-bridge")).replace("rate = 20000", "rate = 21000");
    let applied = daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    assert_eq!(applied.changes.len(), 1, "a port: {applied:?}");
    let stats = daemon.stats();
    assert_eq!((find_chain(&stats, "acme").services.as_slice(), stats.promises.len()), (&["acme-nf".to_string()][..], 2));
    assert_eq!(find_nf(&stats, "rogue-nf.0").pid, before);

    // What keeps an SLO cannot be changed by hand.
    daemon.client().remove_rule("acme").unwrap();
    let mut client = daemon.client();
    let refused = [
        (refusal(client.remove_chain("acme")), "an SLO is kept by chain"),
        (refusal(client.remove_service("nf")), "instances like those"),
        (refusal(client.add_nf("acme-nf", None)), "place it anew"),
        (refusal(client.remove_nf("acme-nf.1")), "place it anew"),
        (refusal(client.move_nf("acme-nf.1", 0)), "place it anew"),
        (refusal(client.upgrade("acme-nf", &Upgrade { exec: nf("sluice-nf-bridge"), args: None })), "place it anew"),
    ];
    for (error, why) in refused {
        assert!(error.kind == ErrorKind::Conflict && error.error.contains(why), "{why}: {error}");
    }
    daemon.client().withdraw().unwrap();
    let stats = daemon.stats();
    assert!(stats.promises.is_empty() && stats.nfs.len() == 1, "{:?}", stats.nfs);
    assert_eq!(find_chain(&stats, "acme").services, ["nf"]);
    assert_eq!(refusal(daemon.client().placement()).kind, ErrorKind::NotFound);
    daemon.stop();
}

/// Whether the sink has that many packets. Its details are read a moment before its counters.
fn has_all(stats: &Stats, packets: u64) -> bool {
    let out = find_port(stats, "out");
    out.tx_packets >= packets && out.details["stamped"] >= packets as f64
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
    for places in [&[0][..], &[0, 2], &[2, 3], &[1]] {
        client.place(&assignment(&[("acme", places, 0, 1e6)])).unwrap();
        let before = find_chain(&daemon.stats(), "acme").exit_packets;
        daemon.wait("packets go on", |s| find_chain(s, "acme").exit_packets > before || find_port(s, "in").finished);
    }
    client.withdraw().unwrap();
    let stats = daemon.wait("all packets", |s| has_all(s, PACKETS));
    assert_eq!(
        (find_port(&stats, "out").tx_packets, find_port(&stats, "out").details["lost"]),
        (PACKETS, 0.0),
        "{:?}",
        stats.drops
    );
    daemon.stop();
}

#[test]
fn a_migration_is_taken_in_steps_and_what_stays_keeps_running() {
    const PACKETS: u64 = 60_000;
    let folder = crate::support::open_folder();
    let root = folder.path().to_path_buf();
    let config = head(&root, "")
        + &port("in", "gen", &format!("rate = 30000\noverload = \"wait\"\ncount = {PACKETS}\nflows = 64"))
        + &port("out", "sink", "")
        + &service("nf", &nf("sluice-nf-bridge"), "")
        + &chain("acme", "in", &["nf"], "out", "")
        + PROMISES
        + "cache = \"none\"\n";
    std::fs::write(root.join("sluice.toml"), config).unwrap();
    std::fs::create_dir(root.join("plan")).unwrap();
    let Assignment { server, slos } = assignment(&[("acme", &[0], 0, 1e6)]);
    let ServerShape { cores, llc_ways, way_bytes, ddio_ways, min_ways, classes, memory_mib, .. } = server.shape;
    let shape = format!(
        "[[server]]\nname = \"s0\"\ncpu = \"any\"\ncores = {cores}\nllc_ways = {llc_ways}\nway_bytes = {way_bytes}\n\
         ddio_ways = {ddio_ways}\nmin_ways = {min_ways}\nclasses = {classes}\nmemory_mib = {memory_mib}\n"
    );
    let second = Instance { number: 1, cores: vec![2], load_pps: 0.0, ..server.instances[0].clone() };
    let placement = Placement { servers: vec![server] };
    let steps = [
        Step::Start { server: "s0".into(), instance: second },
        Step::Redirect { slo: "acme".into(), parts: [(1, 1.0)].into(), away_from: vec![0], old: Old::Stay },
        Step::Stop { server: "s0".into(), slo: "acme".into(), number: 0 },
    ];
    let written = |name: &str, value: serde_json::Value| std::fs::write(root.join("plan").join(name), value.to_string()).unwrap();
    std::fs::write(root.join("plan/servers.toml"), shape).unwrap();
    written("placement.json", json!({ "form": 1, "slos": [{ "slo": slos[0].slo }], "placement": placement }));
    written("steps.json", json!({ "form": 1, "now": placement, "taken": 0, "left": steps }));
    let mut daemon = Daemon::again(folder);
    let sluice = |args: &[&str]| {
        let mut command = Command::new(crate::support::sluice());
        command.args(args).env("SLUICE_PLAN", root.join("plan")).env("SLUICE_CONTROL", root.join("run/control.sock"));
        let out = command.output().expect("sluice runs");
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    // Of instances that are not leaving.
    let pids = |stats: &Stats| -> BTreeMap<String, Option<u32>> {
        let own = stats.nfs.iter().filter(|nf| nf.service == "acme-nf" && nf.state == NfState::Running);
        own.map(|nf| (nf.name.clone(), nf.pid)).collect()
    };
    let mut names = Vec::new();
    let mut seen = BTreeMap::new();
    for said in ["", "step 1 of 3: start acme.1", "step 2 of 3: send no new flows to acme.0", "step 3 of 3: stop acme.0"] {
        if !said.is_empty() {
            let printed = sluice(&["plan", "step"]);
            assert!(printed.starts_with(said), "{printed}");
        }
        sluice(&["slo", "apply"]);
        let stats = daemon.stats();
        let now = pids(&stats);
        assert!(now.iter().all(|(name, pid)| *seen.entry(name.clone()).or_insert(*pid) == *pid), "{said}: {now:?} {seen:?}");
        names.push(now.into_keys().collect::<Vec<_>>());
        let before = find_chain(&stats, "acme").exit_packets;
        daemon.wait("packets go on", |s| find_chain(s, "acme").exit_packets > before || find_port(s, "in").finished);
    }
    assert_eq!(names, [&["acme-nf.0"][..], &["acme-nf.0", "acme-nf.1"], &["acme-nf.0", "acme-nf.1"], &["acme-nf.1"]]);
    // A new instance has a lower number; the one that stays keeps its place.
    let Assignment { mut server, slos } = daemon.client().placement().unwrap();
    let place = |number, core, ways| Instance { number, cores: vec![core], ways, ..server.instances[0].clone() };
    server.instances = vec![place(0, 0, 1), place(1, 2, 2)];
    daemon.client().place(&Assignment { server, slos }).unwrap();
    let stats = daemon.stats();
    let cores = ["acme-nf.1", "acme-nf.2"].map(|name| find_nf(&stats, name).core);
    assert_eq!((cores, pids(&stats)["acme-nf.1"]), ([1, 0], seen["acme-nf.1"]));
    let stats = daemon.wait("all packets", |s| has_all(s, PACKETS));
    assert_eq!(find_port(&stats, "out").details["lost"], 0.0, "{:?}", stats.drops);
    daemon.stop();
}

#[test]
fn of_two_instances_on_one_core_the_one_goes_that_is_taken_away() {
    let body = two("cache = \"none\"", &nf("sluice-nf-bridge")).replace("cores = [0, 0, 1, 1]", "cores = [1, 1, 0]");
    let mut daemon = Daemon::start("", &body);
    let with = |numbers: &[u32]| {
        let mut wanted = assignment(&[("acme", &[0, 1, 2], 0, 5e3)]);
        wanted.server.shape.cores = 3;
        wanted.server.instances.retain(|one| numbers.contains(&one.number));
        wanted
    };
    daemon.client().place(&with(&[0, 1])).unwrap();
    let pid = |stats: &Stats, nf: &str| find_nf(stats, nf).pid;
    let before = pid(&daemon.stats(), "acme-nf.1");
    daemon.client().place(&with(&[1])).unwrap();
    let stats = daemon.wait("the first is gone", |s| s.nfs.iter().filter(|nf| nf.service == "acme-nf").count() == 1);
    assert_eq!(pid(&stats, "acme-nf.1"), before);
    // One with a lower number returns while another goes: the one that stays is the same process.
    daemon.client().place(&with(&[1, 2])).unwrap();
    daemon.client().place(&with(&[0, 1])).unwrap();
    let stats = daemon.wait("the third is gone", |s| s.nfs.iter().filter(|nf| nf.service == "acme-nf").count() == 2);
    assert_eq!((pid(&stats, "acme-nf.1"), find_nf(&stats, "acme-nf.3").core), (before, 1));
    daemon.stop();
}

/// An NF program that starts only while a file exists: the paths of both.
fn flagged(folder: &Path) -> (String, PathBuf) {
    let (script, flag) = (folder.join("nf"), folder.join("good"));
    std::fs::write(&script, format!("#!/bin/sh\n[ -e {flag:?} ] || exit 1\nexec {} \"$@\"\n", open_nf(folder, "sluice-nf-bridge")))
        .unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&flag, "").unwrap();
    (script.display().to_string(), flag)
}

/// The key of a profile of the NF.
fn key(cpu: &str, binary: &[u8], configuration: &[u8]) -> Key {
    let (workload, traffic) = (Workload::Nf("nf".into()), "64 B".into());
    Key { workload, binaries: vec![Digest::of(binary)], configuration: Digest::of(configuration), traffic, cpu: cpu.into() }
}

#[test]
fn what_was_profiled_polls_on_a_core_of_its_own() {
    let body = two("cache = \"none\"", &nf("sluice-nf-bridge"))
        .replace("cores = [0, 0, 1, 1]", "cores = [1]")
        .replace("[[service]]\n", "[[service]]\ncores = [0]\n");
    let mut daemon = Daemon::start("", &body);
    let mut wanted = assignment(&[("acme", &[0], 0, 5e3)]);
    wanted.server.shape.cores = 1;
    let cpu = Processor::read(Path::new("/")).model;
    wanted.slos[0].profile = Some(key(&cpu, &std::fs::read(nf("sluice-nf-bridge")).unwrap(), b""));
    let placed = daemon.client().place(&wanted).unwrap();
    assert!(placed.notes.len() == 1 && placed.notes[0].contains("no cache classes"), "{placed:?}");
    let stats = daemon.stats();
    assert_eq!(["nf.0", "acme-nf.0"].map(|name| find_nf(&stats, name).mode.clone()), ["sleep", "poll"]);
    assert_eq!(find_nf(&stats, "acme-nf.0").core, 1);
    let before = find_chain(&stats, "acme").exit_packets;
    daemon.wait("packets and windows, and its whole core is its part", |s| {
        let acme = promise(&s.promises, "acme");
        find_chain(s, "acme").exit_packets > before + 1000 && acme.windows > 1 && acme.excess.is_none()
    });
    daemon.client().withdraw().unwrap();
    daemon.stop();
}

#[test]
fn an_instance_that_is_given_nothing_ends_its_old_flows_and_gets_no_new_ones() {
    let mut daemon = Daemon::start("", &two("cache = \"none\"", &nf("sluice-nf-bridge")));
    daemon.wait("packets flow", |s| find_chain(s, "acme").exit_packets > 100);
    let with = |loads: [f64; 2]| {
        let mut wanted = assignment(&[("acme", &[0, 2], 2, 5e3), ("rogue", &[3], 0, 2e4)]);
        let acme = wanted.server.instances.iter_mut().filter(|one| one.slo == "acme");
        acme.zip(loads).for_each(|(one, load_pps)| one.load_pps = load_pps);
        wanted
    };
    let passed = |stats: &Stats| [0, 1].map(|i| find_nf(stats, &format!("acme-nf.{i}")).tx_packets);
    daemon.client().place(&with([5e3, 0.0])).unwrap();
    let stats = daemon.wait("the first has all flows", |s| passed(s)[0] > 500);
    assert_eq!(passed(&stats)[1], 0);
    // The other way round: old flows stay, and there are no others.
    daemon.client().place(&with([0.0, 5e3])).unwrap();
    let before = passed(&daemon.stats())[0];
    let stats = daemon.wait("the first keeps them", |s| passed(s)[0] > before + 500);
    assert_eq!(passed(&stats)[1], 0);
    // Instances on their way out are not policed.
    daemon.client().place(&with([0.0, 0.0])).unwrap();
    let before = passed(&daemon.stats())[0];
    let stats = daemon.wait("they are let in", |s| passed(s)[0] > before + 500);
    assert_eq!(promise(&stats.promises, "acme").promised_pps, Some(1e4));
    daemon.stop();
}

#[test]
fn what_is_profiled_is_admitted_applied_and_kept() {
    let folder = crate::support::open_folder();
    let root = folder.path().to_path_buf();
    let path = |name: &str| root.join(name);
    let config = head(&root, "")
        + &port("in", "gen", "rate = 80\nflows = 64\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("work", &nf("sluice-nf-cost"), "args = [\"--cycles\", \"3000\"]")
        + &chain("acme", "in", &["work"], "out", "")
        + "[promises]\nserver = \"s0\"\ncores = [1]\ncache = \"none\"\n";
    std::fs::write(path("sluice.toml"), config).unwrap();
    std::fs::create_dir_all(path("plan/profiles")).unwrap();
    let sluice = |args: &[&str]| {
        let mut command = Command::new(crate::support::sluice());
        command.args(args).env("SLUICE_PLAN", path("plan")).env("SLUICE_CONTROL", path("run/control.sock"));
        command.output().expect("sluice runs")
    };
    let shown = |name: &str| path(name).display().to_string();
    let (file, out) = (shown("sluice.toml"), shown("plan/profiles/work.json"));
    let profiled = ["profile", "work", "--config", &file, "--traffic", "flows=64", "--cache", "none", "--noisy", "--out", &out];
    // Beside other tests an NF may carry next to nothing, and then that is what its profile has.
    let enough = |profile: &Profile| profile.throughput_pps(profile.best_ways) >= 200.0;
    for tries in 1.. {
        if !measured(&sluice(&profiled)) {
            return;
        }
        if enough(&Profile::load(Path::new(&out)).unwrap()) {
            break;
        }
        assert!(tries < 5, "the NF carried less than 200 packets/s each time");
    }
    // As `sluice doctor` shows this host, with all ways for NFs: the profile is of the whole cache.
    let profile = Profile::load(Path::new(&out)).unwrap();
    let (cpu, ways) = (&profile.key.cpu, profile.best_ways);
    let server = format!(
        "[[server]]\nname = \"s0\"\ncpu = {cpu:?}\ncores = 1\nllc_ways = {ways}\nway_bytes = 1048576\nddio_ways = 0\nmin_ways = 1\n\
         classes = 2\nmemory_mib = 4096\n"
    );
    std::fs::write(path("plan/servers.toml"), server).unwrap();
    let slo = |pps: f64| {
        format!(
            "name = \"acme\"\nworkload = {{ nf = \"work\" }}\ntraffic = \"size=60,flows=64\"\n\
             promise = {{ reserved = {{ throughput_pps = {pps:?}, latency_us = 1e6 }} }}\n"
        )
    };
    let asked = shown("acme.toml");
    let most = profile.throughput_pps(ways);
    std::fs::write(&asked, slo(most * 1.1)).unwrap();
    let too_much = sluice(&["slo", "add", &asked]);
    let said = String::from_utf8_lossy(&too_much.stderr).into_owned();
    assert!(!too_much.status.success() && said.contains("acme"), "more than its profile says: {said}");
    std::fs::write(&asked, slo(100.0)).unwrap();

    let mut daemon = Daemon::again(folder);
    daemon.wait("packets flow", |s| find_chain(s, "acme").exit_packets > 10);
    for args in [&["slo", "add", asked.as_str()][..], &["slo", "apply"]] {
        let out = sluice(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let stats = daemon.wait("three windows, all kept", |s| {
        let acme = s.promises.iter().find(|promise| promise.slo == "acme");
        acme.is_some_and(|acme| acme.windows >= 3 && acme.violations.is_empty() && acme.excess.is_none())
    });
    let acme = promise(&stats.promises, "acme");
    assert_eq!((acme.promised_pps, acme.promised_us, acme.policed), (Some(100.0), 1e6, 0));
    assert!(acme.offered_pps > 0.0 && acme.delivered_pps > 0.0, "{acme:?}");
    let listed = sluice(&["slo", "list", "--live"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("acme"), "{listed:?}");
    daemon.stop();
}

#[test]
fn a_broken_slo_is_an_event_and_the_flight_recorder_writes_what_was_before() {
    let folder = crate::support::open_folder();
    let kept = folder.path().join("kept");
    // Of 10,000 packets a second that are promised and offered, some hundred can pass.
    let body = port("in", "gen", "rate = 20000")
        + &port("out", "sink", "")
        + &service("nf", "sluice-nf-cost", "args = [\"--cycles\", \"10000000\"]\nring = 64")
        + &chain("acme", "in", &["nf"], "out", "")
        + &format!("{PROMISES}cache = \"none\"\n[recorder]\nmemory_mib = 4\nfolder = {kept:?}\n");
    let mut daemon = Daemon::start("", &body);
    daemon.client().place(&assignment(&[("acme", &[0, 2], 0, 5e3)])).unwrap();
    daemon.wait("it is broken", |s| !promise(&s.promises, "acme").violations.is_empty());
    let events = daemon.client().events().unwrap();
    let broken = events.iter().find(|event| event.event == EventKind::Promise).expect("it is an event");
    assert_eq!(broken.subject.as_deref(), Some("slo acme"));
    let said = broken.text.as_deref().unwrap_or_default();
    assert!(said.starts_with("broken: ") && said.contains(" promised"), "{said}");
    let until = Instant::now() + PATIENCE;
    let written = loop {
        if let Some(first) = daemon.client().timelines().unwrap().into_iter().find(|one| one.why == "promise-slo-acme") {
            break std::fs::read(kept.join(first.name)).unwrap();
        }
        assert!(Instant::now() < until, "there is no file:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    };
    let trace = ReadTrace::of(&written);
    assert_eq!(trace.instants("slo acme", "promise")[0]["what"], said);
    assert!(trace.values(Some("nf acme-nf.0"), "queue").iter().any(|queue| *queue > 0), "it shows why");
    daemon.stop();
}

#[test]
fn the_way_from_a_profile_to_a_promise_works_as_the_book_has_it() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(project.join("docs/src/guide-slos.md")).unwrap();
    let begin = page.find("export SLUICE_PLAN=").expect("the page has the way");
    let block = page[begin..].split("```").next().unwrap();
    let folder = crate::support::open_folder();
    let plan = folder.path().join("deploy/plan");
    std::fs::create_dir_all(&plan).unwrap();
    for file in ["sluice.toml", "acme.toml"] {
        std::fs::copy(project.join("deploy/plan").join(file), plan.join(file)).unwrap();
    }
    // Beside other tests, and not optimised, an NF carries next to nothing.
    let slo = std::fs::read_to_string(plan.join("acme.toml")).unwrap();
    let modest = slo.replace("10_000.0", "100.0").replace("2_000.0", "1e6");
    assert_ne!(modest, slo);
    std::fs::write(plan.join("acme.toml"), modest).unwrap();
    // The commands as they are; only steps that depend on the host's load have more patience.
    let line = |line: &str| match line {
        _ if line.contains("& sleep 1") => line.replace("sleep 1", "until sluice status >&2; do kill -0 $!; sleep 0.05; done"),
        _ if line.starts_with("sluice profile") => format!("{line} || {line} --noisy"),
        _ => line.into(),
    };
    let lines: Vec<String> = block.lines().map(line).collect();
    assert!(lines.len() > 8 && lines.iter().filter(|line| line.contains("kill -0 $!")).count() == 1, "{block}");
    let script = format!("set -euo pipefail\ntrap 'kill %1 2>/dev/null || true' EXIT\n{}\nwait\n", lines.join("\n"));
    let sluice = crate::support::sluice();
    let programs = sluice.parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let out = Command::new("bash").args(["-c", &script]).current_dir(folder.path()).env("PATH", path).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if errors.contains("need a core each") {
        return skip(errors);
    }
    assert!(out.status.success(), "{said}\n{errors}");
    for wanted in
        ["server s0, cores for NFs: 1", "added: acme", "+ service acme-nat: 1 instance\n", "- service acme-nat\n", "removed acme"]
    {
        assert!(said.contains(wanted), "{wanted}: {said}\n{errors}");
    }
    // An existing plan is not overwritten.
    let mut again = Command::new(crate::support::sluice());
    let again = again.args(["plan", "init"]).env("SLUICE_PLAN", &plan).output().unwrap();
    let errors = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && errors.contains("is there already"), "{errors}");
}

#[test]
fn a_placement_that_cannot_be_kept_changes_nothing() {
    let folder = crate::support::open_folder();
    let (script, flag) = flagged(folder.path());
    let mut daemon = Daemon::start("", &two("", &script));
    let good = assignment(&[("acme", &[0], 0, 5e3)]);
    daemon.client().place(&good).unwrap();
    let nfs = |daemon: &mut Daemon| -> Vec<String> { daemon.stats().nfs.into_iter().map(|nf| nf.name).collect() };
    assert_eq!(nfs(&mut daemon), ["nf.0", "acme-nf.0"]);
    let of = |change: &dyn Fn(&mut Assignment)| {
        let mut wrong = assignment(&[("acme", &[0], 0, 5e3), ("rogue", &[1], 0, 5e3)]);
        change(&mut wrong);
        wrong
    };
    let (cpu, program) = (Processor::read(Path::new("/")).model, std::fs::read(&script).unwrap());
    let wrong: [(&str, Assignment); 10] = [
        ("for server \"s1\", and this is \"s0\"", of(&|a| a.server.name = "s1".into())),
        ("is given to two instances", of(&|a| a.server.instances[1].cores = vec![0])),
        ("is to be given", of(&|a| a.server.instances[1].load_pps = 1e9)),
        (
            "no chain is named as the SLO \"web\"",
            of(&|a| (a.slos[1].slo.name, a.server.instances[1].slo) = ("web".into(), "web".into())),
        ),
        ("runs ids, and the chain of that name passes nf", of(&|a| a.slos[1].slo.workload = Workload::Nf("ids".into()))),
        ("with 5 cores for NFs", of(&|a| a.server.shape.cores = 5)),
        ("admitted by a profile of \"another\"", of(&|a| a.slos[1].profile = Some(key("another", b"another", b"")))),
        ("another binary of \"nf\"", of(&|a| a.slos[1].profile = Some(key(&cpu, b"another", b"")))),
        ("another configuration of nf", of(&|a| a.slos[1].profile = Some(key(&cpu, &program, b"another")))),
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
        assert_eq!(error.kind, ErrorKind::Unprocessable, "{why}");
        assert!(error.error.contains("the placement before stands"), "{error}");
    }
    // A valid placement whose NF does not start.
    std::fs::remove_file(&flag).unwrap();
    let error = refusal(daemon.client().place(&of(&|_| {})));
    assert!(error.error.contains("rogue-nf.0 ended before it was ready") && error.kind == ErrorKind::Conflict, "{error}");
    daemon.wait("what was begun is gone", |s| s.nfs.len() == 2);
    assert_eq!(nfs(&mut daemon), ["nf.0", "acme-nf.0"]);
    assert_eq!(daemon.client().placement().unwrap(), good);
    std::fs::write(&flag, "").unwrap();
    daemon.client().place(&of(&|_| {})).unwrap();
    // An NF stays as profiled, but for its core: only a configuration that changes it is refused.
    let placed = daemon.client().place(&of(&|a| a.slos[1].profile = Some(key(&cpu, &program, b"")))).unwrap();
    assert!(placed.notes.iter().any(|note| note.contains("\"rogue\" is kept on a part of a core (1/2 of core 0)")), "{placed:?}");
    let same = head(daemon.folder(), "") + &two("", &script).replace("rate = 20000", "rate = 21000");
    let other = same.replace("[[service]]\n", "[[service]]\nenv = { A = \"b\" }\n");
    let mut client = daemon.client();
    let error = refusal(client.apply(&Apply { config: other, file: None, dry_run: false }));
    assert!(error.error.contains("does not keep what is placed") && error.error.contains("another configuration of nf"), "{error}");
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert_eq!(client.apply(&Apply { config: same, file: None, dry_run: false }).unwrap().changes.len(), 1);
    daemon.stop();
}

#[test]
fn instances_that_are_added_are_ready_before_they_count() {
    let folder = crate::support::open_folder();
    let (script, flag) = flagged(folder.path());
    let mut daemon = Daemon::start("max_nfs = 3", &two("", &script));
    let one = assignment(&[("acme", &[0], 0, 5e3)]);
    daemon.client().place(&one).unwrap();
    // An instance that does not start does not count.
    let mut more = assignment(&[("acme", &[0, 2], 0, 5e3)]);
    std::fs::remove_file(&flag).unwrap();
    let error = refusal(daemon.client().place(&more));
    assert!(error.error.contains("acme-nf.1 ended before it was ready") && error.kind == ErrorKind::Conflict, "{error}");
    daemon.wait("it is gone", |s| s.nfs.len() == 2);
    assert_eq!(daemon.client().placement().unwrap(), one);
    let first = find_nf(&daemon.stats(), "acme-nf.0").pid;
    std::fs::write(&flag, "").unwrap();
    daemon.client().place(&more).unwrap();
    let stats = daemon.stats();
    let nfs = promise(&stats.promises, "acme").nfs.clone();
    assert_eq!((nfs.len(), find_nf(&stats, "acme-nf.0").pid), (2, first), "{nfs:?}");
    assert_eq!(nfs.iter().map(|nf| find_nf(&stats, nf).core).collect::<Vec<_>>(), [0, 1]);

    // A request beyond `max_nfs` is reported.
    on_demand(&mut more, "acme", NEVER, 9);
    daemon.client().place(&more).unwrap();
    let asked = |s: &sluice_api::model::Stats| promise(&s.promises, "acme").steered.clone()?.asks_for;
    let stats = daemon.wait("a request that is reported", |s| asked(s).is_some());
    assert!(asked(&stats).unwrap().why.contains("max_nfs is 3"), "{stats:?}");
    daemon.stop();
}

#[test]
fn instances_for_which_there_is_no_room_leave_all_as_it_is() {
    let spare = port("spare-in", "gen", "rate = 1000\nflows = 64")
        + &service("spare", &nf("sluice-nf-bridge"), "instances = 2")
        + &chain("spare", "spare-in", &["spare"], "out", "");
    let body = two("cache = \"none\"", &nf("sluice-nf-bridge")) + &spare;
    let mut daemon = Daemon::start("max_nfs = 4\ndrain_ms = 60000\nstall_ms = 60000", &body);
    let one = assignment(&[("acme", &[0], 0, 5e3)]);
    let more = assignment(&[("acme", &[0, 2], 0, 5e3)]);
    daemon.client().place(&one).unwrap();
    // An instance that leaves exists while it has packets, though the configuration dropped it.
    let leaving = find_nf(&daemon.stats(), "spare.0").clone();
    crate::support::signal(&leaving, rustix::process::Signal::STOP);
    daemon.wait("packets in it", |s| find_nf(s, "spare.0").frames_held > 0);
    let mut client = daemon.client();
    let removed = std::thread::spawn(move || client.remove_nf("spare.0"));
    daemon.wait("it is leaving", |s| find_nf(s, "spare.0").state == NfState::Stopping);
    let error = refusal(daemon.client().place(&more));
    assert!(error.error.contains("there are 4 NFs, 1 more are wanted") && error.kind == ErrorKind::Conflict, "{error}");
    assert_eq!(daemon.client().placement().unwrap(), one);
    assert_eq!(promise(&daemon.stats().promises, "acme").promised_pps, Some(5e3));
    assert!(daemon.client().place(&one).unwrap().changes.is_empty(), "this is what there is");
    crate::support::signal(&leaving, rustix::process::Signal::CONT);
    // It goes now, however long that took.
    let _ = removed.join().unwrap();
    daemon.wait("it is gone", |s| s.nfs.iter().all(|nf| nf.name != "spare.0"));
    daemon.client().place(&more).unwrap();
    assert_eq!(promise(&daemon.stats().promises, "acme").nfs.len(), 2);
    daemon.stop();
}

/// The threads of each group, by its `tasks`.
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
    let Some(kernel) = StandIn::for_test(Machine::default()) else { return };
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
    // A second daemon leaves these classes alone, and reports that it goes on without.
    let second = Daemon::start("", &two(&format!("resctrl = {:?}", kernel.path()), &nf("sluice-nf-bridge")));
    let placed = second.client().place(&assignment(&[("acme", &[0], 4, 5e3)])).unwrap();
    assert!(placed.notes[0].contains("no cache classes: another sluiced that runs here has the cache classes"), "{placed:?}");
    second.stop();
    assert_eq!(groups(&kernel).keys().collect::<Vec<_>>(), inside.keys().collect::<Vec<_>>());
    // An instance that is started again is put back into its class.
    crate::support::signal(find_nf(&stats, "acme-nf.0"), rustix::process::Signal::KILL);
    let stats = daemon.wait("it is back", |s| find_nf(s, "acme-nf.0").restarts > 0 && find_nf(s, "acme-nf.0").pid.is_some());
    let pid = find_nf(&stats, "acme-nf.0").pid.unwrap();
    daemon.wait("it is in its class", |_| groups(&kernel)["sluice-acme.0"].contains(&pid));
    daemon.wait("occupancy", |s| s.promises.iter().all(|promise| promise.occupancy_bytes.is_some()));
    // A request for more ways than there are changes nothing.
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

/// Ways of a group in the first cache; 0 if there is no such group.
fn ways_of(kernel: &StandIn, group: &str) -> u32 {
    let text = std::fs::read_to_string(kernel.path().join(group).join("schemata")).unwrap_or_default();
    let mask =
        text.lines().find_map(|line| line.trim().strip_prefix("L3:")?.split(';').next()?.split('=').nth(1).map(String::from));
    mask.map_or(0, |mask| u32::from_str_radix(&mask, 16).unwrap().count_ones())
}

#[test]
fn one_that_stays_keeps_its_ways_until_new_instances_are_ready() {
    let Some(kernel) = StandIn::for_test(Machine::default()) else { return };
    let folder = crate::support::open_folder();
    let (script, flag) = (folder.path().join("nf"), folder.path().join("go"));
    let text = format!(
        "#!/bin/sh\nwhile [ ! -e {flag:?} ]; do sleep 0.02; done\nexec {} \"$@\"\n",
        open_nf(folder.path(), "sluice-nf-bridge")
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&flag, "").unwrap();
    let mut daemon = Daemon::start("", &two(&format!("resctrl = {:?}", kernel.path()), &script.display().to_string()));
    daemon.client().place(&assignment(&[("acme", &[0], 10, 5e3)])).unwrap();
    let ways = || [ways_of(&kernel, "sluice-acme.0"), ways_of(&kernel, "sluice-rogue.0")];
    let both = || assignment(&[("acme", &[0], 4, 5e3), ("rogue", &[1], 12, 2e3)]);
    let place_both = |daemon: &mut Daemon, meanwhile: [u32; 2]| {
        std::fs::remove_file(&flag).unwrap();
        let mut client = daemon.client();
        let next = std::thread::spawn(move || client.place(&both()));
        daemon.wait("the new one starts", |s| s.nfs.iter().any(|nf| nf.service.starts_with("rogue-nf") && nf.pid.is_some()));
        assert_eq!(ways(), meanwhile);
        std::fs::write(&flag, "").unwrap();
        next.join().unwrap().unwrap();
        assert_eq!(ways(), [4, 12]);
    };
    place_both(&mut daemon, [10, 0]);
    // An NF with the whole cache is in no class until then.
    let mut whole = assignment(&[("acme", &[0], 20, 5e3)]);
    whole.server.shape.ddio_ways = 0;
    daemon.client().place(&whole).unwrap();
    daemon.wait("the other one is gone", |s| s.nfs.iter().all(|nf| !nf.service.starts_with("rogue-nf")));
    assert_eq!(ways(), [0, 0]);
    place_both(&mut daemon, [0, 0]);
    let grown = assignment(&[("acme", &[0], 5, 5e3), ("rogue", &[1], 12, 2e3)]);
    daemon.client().place(&grown).unwrap();
    assert_eq!(ways(), [5, 12]);
    daemon.stop();
    assert!(groups(&kernel).is_empty());
}

/// Latencies (µs) that no packet and that all packets keep.
pub const NEVER: f64 = 0.001;
pub const ALWAYS: f64 = 1e8;

/// Makes an SLO one on demand, with a latency (µs) and a cap of instances.
pub fn on_demand(assignment: &mut Assignment, name: &str, latency_us: f64, most: u32) {
    let promised = assignment.slos.iter_mut().find(|promised| promised.slo.name == name).unwrap();
    let cap = slo::Cap { instances: Some(most), load_pps: None };
    promised.slo.promise = slo::Promise::OnDemand { latency_us, cap };
    for instance in assignment.server.instances.iter_mut().filter(|instance| instance.slo == name) {
        (instance.ways, instance.capacity_pps, instance.load_pps) = (0, 0.0, 0.0);
    }
}

/// A port and a chain for each tenant.
fn tenants(names: &[&str], keys: &str) -> String {
    let each =
        |name: &&str| port(&format!("{name}-in"), "gen", "rate = 2000") + &chain(name, &format!("{name}-in"), &["nf"], "out", "");
    names.iter().map(each).collect::<String>()
        + &port("out", "sink", "")
        + &service("nf", &nf("sluice-nf-bridge"), "")
        + &format!("{PROMISES}{keys}\n")
}

#[test]
fn one_that_misses_and_breaks_its_promise_has_a_class_until_its_neighbour_is_quiet() {
    let Some(kernel) = StandIn::for_test(Machine::default()) else { return };
    let mut daemon = Daemon::start("", &tenants(&["acme", "rogue", "firm"], &format!("resctrl = {:?}", kernel.path())));
    let promised = |acme: f64| {
        let mut wanted = assignment(&[("acme", &[0], 0, 0.0), ("rogue", &[1], 0, 0.0), ("firm", &[2], 4, 1e6)]);
        on_demand(&mut wanted, "acme", acme, 1);
        on_demand(&mut wanted, "rogue", ALWAYS, 1);
        wanted
    };
    // The counters: both fill the cache together, acme misses, and rogue while it is noisy.
    let mut moment = 0;
    let mut play = |is_noisy: bool| {
        moment += 1;
        let mut hardware = kernel.kernel();
        for (name, bytes) in [("acme", 1u64 << 24), ("rogue", if is_noisy { 1 << 28 } else { 0 })] {
            for group in [format!("sluice-shared/mon_groups/{name}.0"), format!("sluice-{name}.0")] {
                let of = |event: &str| format!("{group}/mon_data/mon_L3_00/{event}");
                hardware.count(&of("llc_occupancy"), Count::Bytes(9 << 20));
                hardware.count(&of("mbm_total_bytes"), Count::Bytes(1 + moment * bytes));
            }
        }
    };
    daemon.client().place(&promised(ALWAYS)).unwrap();
    let schemata = |group: &str| std::fs::read_to_string(kernel.path().join(group).join("schemata")).unwrap_or_default();
    let ways = |group: &str| ways_of(&kernel, group);
    let firm = schemata("sluice-firm.0");
    assert_eq!((ways("sluice-shared"), ways("sluice-firm.0")), (14, 4), "the whole lease");
    let stats = daemon.stats();
    let pid = find_nf(&stats, "acme-nf.0").pid.unwrap();
    assert!(groups(&kernel)["sluice-shared"].contains(&pid));

    daemon.client().place(&promised(NEVER)).unwrap();
    let own = |s: &sluice_api::model::Stats, name: &str| promise(&s.promises, name).steered.clone().unwrap().own_ways;
    daemon.wait("a class of its own", |s| {
        play(true);
        !own(s, "acme").is_empty() && groups(&kernel).get("sluice-acme.0").is_some_and(|tasks| tasks.contains(&pid))
    });
    assert!(ways("sluice-acme.0") >= 7, "its fair share of what is leased");
    // It keeps its promise there, while the neighbour goes on.
    daemon.client().place(&promised(ALWAYS)).unwrap();
    assert!(groups(&kernel)["sluice-acme.0"].contains(&pid), "a placement that leaves it room leaves it its class");
    let before = promise(&daemon.stats().promises, "acme").windows;
    daemon.wait("windows beside a neighbour that misses", |s| {
        play(true);
        promise(&s.promises, "acme").windows > before + 6
    });
    daemon.wait("it goes back", |s| {
        play(false);
        own(s, "acme").is_empty() && groups(&kernel)["sluice-shared"].contains(&pid)
    });
    assert!(!groups(&kernel).contains_key("sluice-acme.0"));
    assert_eq!((ways("sluice-shared"), schemata("sluice-firm.0")), (14, firm), "what is reserved is not touched");
    daemon.wait("it is counted apart again", |s| promise(&s.promises, "acme").occupancy_bytes == Some(9 << 20));
    let promises = daemon.client().promises().unwrap();
    let decisions: Vec<&str> = promises.decisions.iter().map(|decided| decided.what.as_str()).collect();
    let expected = ["acme.0 is given a cache class of its own, with 7 ways", "acme.0 goes back to the shared cache class"];
    assert_eq!(decisions, expected, "{promises:?}");
    assert_eq!(promises.notes, Vec::<String>::new());
    daemon.stop();
    assert!(groups(&kernel).is_empty());
}

#[test]
fn what_the_kernel_refuses_or_does_not_count_holds_up_nobody() {
    let Some(kernel) = StandIn::for_test(Machine::default()) else { return };
    let mut daemon = Daemon::start("", &tenants(&["acme", "rogue"], &format!("resctrl = {:?}", kernel.path())));
    let promised = |acme: f64| {
        let mut wanted = assignment(&[("acme", &[0], 0, 0.0), ("rogue", &[1], 0, 0.0)]);
        on_demand(&mut wanted, "acme", acme, 1);
        on_demand(&mut wanted, "rogue", ALWAYS, 1);
        wanted
    };
    // `rogue` never has a counter.
    let mut moment = 0;
    let mut play = || {
        moment += 1;
        let mut hardware = kernel.kernel();
        for (name, total) in [("acme", Count::Bytes(1 + (moment << 24))), ("rogue", Count::Unassigned)] {
            for group in [format!("sluice-shared/mon_groups/{name}.0"), format!("sluice-{name}.0")] {
                for domain in ["00", "02"] {
                    let of = |event: &str| format!("{group}/mon_data/mon_L3_{domain}/{event}");
                    hardware.count(&of("llc_occupancy"), Count::Bytes(18 << 20));
                    hardware.count(&of("mbm_total_bytes"), total.clone());
                }
            }
        }
    };
    play();
    daemon.client().place(&promised(ALWAYS)).unwrap();
    daemon.wait("what it uses is counted", |s| promise(&s.promises, "acme").occupancy_bytes.is_some());
    // Another program holds the lock on cache classes.
    let other = std::fs::File::open(kernel.path()).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    daemon.client().place(&promised(NEVER)).unwrap();
    let own = |s: &sluice_api::model::Stats| promise(&s.promises, "acme").steered.clone().unwrap().own_ways;
    let mut notes = daemon.client();
    daemon.wait("a class is wanted", |_| {
        play();
        let notes = notes.promises().unwrap().notes;
        notes.iter().any(|note| note.contains("cache classes of SLOs on demand stay as they were"))
    });
    let before = promise(&daemon.stats().promises, "acme").windows;
    daemon.wait("windows without it", |s| {
        play();
        assert!(own(s).is_empty(), "it is not there");
        promise(&s.promises, "acme").windows > before + 2
    });
    rustix::fs::flock(&other, rustix::fs::FlockOperation::Unlock).unwrap();
    let pid = find_nf(&daemon.stats(), "acme-nf.0").pid.unwrap();
    daemon.wait("a class of its own", |s| {
        play();
        !own(s).is_empty() && groups(&kernel).get("sluice-acme.0").is_some_and(|tasks| tasks.contains(&pid))
    });
    daemon.stop();
}

#[test]
fn ways_that_others_have_are_not_leased() {
    let Some(kernel) = StandIn::for_test(Machine::default()) else { return };
    let other = kernel.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("schemata"), "L3:0=f;2=f\n").unwrap();
    let mut daemon = Daemon::start("", &tenants(&["acme", "firm"], &format!("resctrl = {:?}", kernel.path())));
    let mut wanted = assignment(&[("acme", &[0], 0, 0.0), ("firm", &[2], 4, 1e6)]);
    on_demand(&mut wanted, "acme", ALWAYS, 1);
    daemon.client().place(&wanted).unwrap();
    let steered = promise(&daemon.stats().promises, "acme").steered.clone().unwrap();
    assert_eq!(steered.shared_ways, Some(10), "eighteen less the other's and those of \"firm\"");
    daemon.stop();
}

#[test]
fn a_placement_that_is_not_taken_leaves_classes_to_those_that_had_them() {
    let Some(kernel) = StandIn::for_test(Machine::default()) else { return };
    let folder = crate::support::open_folder();
    let (script, flag) = flagged(folder.path());
    let body = tenants(&["acme", "rogue", "firm"], &format!("resctrl = {:?}", kernel.path()));
    let mut daemon = Daemon::start("", &body.replace(&nf("sluice-nf-bridge"), &script));
    let mut wanted = assignment(&[("acme", &[0], 0, 0.0), ("rogue", &[1], 0, 0.0)]);
    on_demand(&mut wanted, "acme", NEVER, 1);
    on_demand(&mut wanted, "rogue", ALWAYS, 1);
    daemon.client().place(&wanted).unwrap();
    let pid = find_nf(&daemon.stats(), "acme-nf.0").pid.unwrap();
    let own = |s: &sluice_api::model::Stats| promise(&s.promises, "acme").steered.clone().unwrap().own_ways;
    let mut moment = 0;
    let stats = daemon.wait("a class of its own", |s| {
        moment += 1;
        let mut hardware = kernel.kernel();
        for (name, bytes) in [("acme", 1u64 << 24), ("rogue", 1 << 28)] {
            let group = format!("sluice-shared/mon_groups/{name}.0/mon_data/mon_L3_00");
            hardware.count(&format!("{group}/llc_occupancy"), Count::Bytes(9 << 20));
            hardware.count(&format!("{group}/mbm_total_bytes"), Count::Bytes(1 + moment * bytes));
        }
        !own(s).is_empty()
    });
    let before = own(&stats);
    // This one would leave no ways for that class, and fails.
    std::fs::remove_file(&flag).unwrap();
    let mut more = assignment(&[("acme", &[0], 0, 0.0), ("rogue", &[1], 0, 0.0), ("firm", &[2], 16, 1e6)]);
    on_demand(&mut more, "acme", NEVER, 1);
    on_demand(&mut more, "rogue", ALWAYS, 1);
    let error = refusal(daemon.client().place(&more));
    assert!(error.error.contains("firm-nf.0 ended before it was ready"), "{error}");
    let stats = daemon.stats();
    assert_eq!(own(&stats), before);
    assert!(groups(&kernel)["sluice-acme.0"].contains(&pid), "{:?}", groups(&kernel));
    let windows = promise(&stats.promises, "acme").windows;
    daemon.wait("windows", |s| promise(&s.promises, "acme").windows > windows + 2);
    let promises = daemon.client().promises().unwrap();
    let given = promises.decisions.iter().filter(|decided| decided.what.starts_with("acme.0 is given a cache class")).count();
    assert_eq!(given, 1, "it was not taken away: {promises:?}");
    daemon.stop();
}

#[test]
fn what_no_cache_helps_is_given_an_instance_and_then_policed() {
    let mut daemon = Daemon::start("", &tenants(&["acme", "rogue"], "cache = \"none\""));
    let mut wanted = assignment(&[("acme", &[0], 0, 0.0), ("rogue", &[1, 2], 0, 0.0)]);
    on_demand(&mut wanted, "acme", NEVER, 2);
    on_demand(&mut wanted, "rogue", ALWAYS, 9);
    let placed = daemon.client().place(&wanted).unwrap();
    assert!(placed.notes.iter().any(|note| note.contains("SLOs on demand share no cache: it is off")), "{placed:?}");
    let first = find_nf(&daemon.stats(), "acme-nf.0").pid;
    let stats = daemon.wait("another instance, on the free place", |s| promise(&s.promises, "acme").nfs.len() == 2);
    assert_eq!(find_nf(&stats, "acme-nf.0").pid, first, "the one that there was goes on");
    let placement = daemon.client().placement().unwrap();
    assert_eq!(placement.instances("acme").iter().map(|instance| &instance.cores[..]).collect::<Vec<_>>(), [&[0], &[3]]);

    // That is all that the cap allows.
    let stats = daemon.wait("policed", |s| {
        let acme = promise(&s.promises, "acme");
        acme.policed > 0 && acme.burst.is_some() && acme.steered.as_ref().unwrap().limit_pps.is_some()
    });
    let (acme, rogue) = (promise(&stats.promises, "acme"), promise(&stats.promises, "rogue"));
    assert!(acme.steered.as_ref().unwrap().asks_for.is_none(), "{acme:?}");
    assert!(rogue.policed == 0 && rogue.steered.as_ref().unwrap().limit_pps.is_none(), "{rogue:?}");
    daemon
        .wait("it is said what is done", |s| promise(&s.promises, "acme").steered.as_ref().unwrap().remedy == Some(Remedy::Police));

    // Another SLO asks, and there is no place.
    let mut wanted = placement;
    on_demand(&mut wanted, "acme", ALWAYS, 2);
    on_demand(&mut wanted, "rogue", NEVER, 9);
    daemon.client().place(&wanted).unwrap();
    let stats = daemon.wait("a request for others to meet", |s| {
        promise(&s.promises, "rogue").steered.as_ref().unwrap().asks_for.as_ref().is_some_and(|asked| asked.instances == 3)
    });
    let asked = promise(&stats.promises, "rogue").steered.clone().unwrap().asks_for.unwrap();
    assert!(asked.why.contains("no server has 1 cores"), "{asked:?}");
    daemon.wait("policed meanwhile", |s| promise(&s.promises, "rogue").policed > 0);
    assert_eq!(daemon.client().placement().unwrap(), wanted);
    assert!(daemon.log().matches("SLOs on demand share no cache").count() == 1, "{}", daemon.log());
    daemon.stop();
}

#[test]
fn latencies_that_nobody_measures_are_reported() {
    let daemon = Daemon::start("latency_sample = 0", &two("cache = \"none\"", &nf("sluice-nf-bridge")));
    let notes = |daemon: &Daemon| daemon.client().promises().unwrap().notes;
    assert!(notes(&daemon).is_empty(), "nothing is promised");
    let placed = daemon.client().place(&assignment(&[("acme", &[0], 0, 5e3)])).unwrap();
    assert!(placed.notes.iter().any(|note| note.contains("manager.latency_sample = 0")), "{placed:?}");
    assert_eq!(notes(&daemon), placed.notes);
    daemon.stop();
}

#[test]
fn nothing_is_decided_while_the_daemon_ends() {
    let mut daemon = Daemon::start("drain_ms = 6000", &tenants(&["acme", "rogue"], "cache = \"none\""));
    let mut wanted = assignment(&[("acme", &[0], 0, 0.0), ("rogue", &[1], 0, 0.0)]);
    on_demand(&mut wanted, "acme", NEVER, 1);
    on_demand(&mut wanted, "rogue", ALWAYS, 1);
    daemon.client().place(&wanted).unwrap();
    daemon.wait("policed", |s| promise(&s.promises, "acme").policed > 0);
    // Packets do not leave: the daemon waits some windows for them, and nothing comes in.
    crate::support::signal(find_nf(&daemon.stats(), "rogue-nf.0"), rustix::process::Signal::STOP);
    daemon.wait("packets inside", |s| find_nf(s, "rogue-nf.0").frames_held > 0);
    let status = daemon.end(rustix::process::Signal::TERM);
    let log = daemon.log();
    assert!(status.success() && log.contains("input is policed"), "{status}: {log}");
    assert!(!log.contains("input is not policed any more"), "{log}");
}

#[test]
fn what_is_placed_is_there_after_a_restart() {
    let folder = crate::support::open_folder();
    let file = folder.path().join("placed.json");
    let body = two(&format!("placement = {file:?}"), &nf("sluice-nf-bridge"));
    let daemon = Daemon::start("", &body);
    let wanted = assignment(&[("acme", &[0], 0, 5e3)]);
    daemon.client().place(&wanted).unwrap();
    daemon.stop();

    let mut daemon = Daemon::start("", &body);
    daemon.wait("the placement again", |s| s.promises.iter().any(|promise| promise.slo == "acme" && !promise.nfs.is_empty()));
    assert_eq!(daemon.client().placement().unwrap(), wanted);
    daemon.client().withdraw().unwrap();
    assert!(!file.exists(), "nothing is placed");
    daemon.stop();

    // A placement that can no longer be kept is reported, and the daemon still serves.
    std::fs::write(&file, serde_json::to_string(&assignment(&[("stranger", &[0], 0, 5e3)])).unwrap()).unwrap();
    let daemon = Daemon::start("", &body);
    let notes = daemon.client().promises().unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("before the restart is not kept") && note.contains("stranger")), "{notes:?}");
    daemon.client().withdraw().unwrap();
    assert!(!file.exists() && daemon.client().promises().unwrap().notes.is_empty(), "it does not come back");
    assert_eq!(refusal(daemon.client().withdraw()).kind, ErrorKind::NotFound);
    daemon.stop();
}
