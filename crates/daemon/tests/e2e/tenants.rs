//! Packet memory of tenants: each maps its own, and no packet reaches another's.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use sluice_api::model::{Memory, NfState, Stats, Upgrade};

use crate::foreign::{Site, can};
use crate::support::{Daemon, awkward_nf, chain, find_nf, find_port, hostile_nf, open_folder, port, service, signal};

/// Flows 0 to 3 of each source are red's, all others blue's.
const RULES: &str =
    "[[rule]]\nport = \"in\"\nsrc = \"198.18.0.0/30\"\nchain = \"red\"\n[[rule]]\nport = \"in\"\nchain = \"blue\"\n";

/// Services of two tenants behind one port; red runs `exec`.
fn two_tenants(load: &str, exec: &str, keys: &str) -> String {
    let mut text = port("in", "gen", load) + &port("red-out", "sink", "") + &port("blue-out", "sink", "");
    text += &service("r", exec, &format!("tenant = \"red\"\n{keys}"));
    text += &service("b", "sluice-nf-bridge", "tenant = \"blue\"");
    // Not by `chain`, whose rules would lead all packets to one chain.
    for (name, of, out) in [("red", "r", "red-out"), ("blue", "b", "blue-out")] {
        text += &format!("[[chain]]\nname = \"{name}\"\nservices = [\"{of}\"]\negress = \"{out}\"\non_failure = \"drop\"\n");
    }
    text + RULES
}

fn memory<'a>(stats: &'a Stats, tenant: &str) -> &'a Memory {
    stats.status.memories.iter().find(|memory| memory.tenant == tenant).expect("the tenant has memory")
}

/// Inodes of the mapped files whose name holds a word.
fn mapped(pid: u32, word: &str) -> BTreeSet<String> {
    inodes(&std::fs::read_to_string(maps_of(pid)).unwrap(), word)
}

fn maps_of(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("maps")
}

fn inodes(maps: &str, word: &str) -> BTreeSet<String> {
    let lines = maps.lines().filter(|line| line.contains(word));
    lines.filter_map(|line| line.split_whitespace().nth(4).map(str::to_owned)).collect()
}

#[test]
fn an_nf_maps_the_memory_of_its_tenant_and_no_other() {
    let mut text = two_tenants("rate = 2000\nflows = 16\nsrc = \"198.18.0.0\"", "sluice-nf-bridge", "");
    text += &service("b2", "sluice-nf-bridge", "tenant = \"blue\"");
    text += &service("n", "sluice-nf-bridge", "");
    text += &port("other", "gen", "rate = 2000");
    text += &port("other-out", "sink", "");
    text += &chain("other", "other", &["n"], "other-out", "");
    let mut daemon = Daemon::start("", &text);
    let stats = daemon.wait("packets of all", |s| {
        let copied = |tenant: &&str| memory(s, tenant).gate_packets > 100;
        ["red-out", "blue-out", "other-out"].iter().all(|p| find_port(s, p).tx_packets > 100) && ["red", "blue"].iter().all(copied)
    });
    let pid = |name: &str| find_nf(&stats, name).pid.expect("it runs");
    let (red, blue, second, none) = (pid("r.0"), pid("b.0"), pid("b2.0"), pid("n.0"));
    for what in ["sluice-arena", "sluice-core"] {
        let of = |pid| mapped(pid, what);
        assert_eq!(of(red).len(), 1, "{what}: {:?}", of(red));
        assert_eq!(of(blue), of(second), "{what} of one tenant and core");
        assert!(of(red).is_disjoint(&of(blue)) && of(red).is_disjoint(&of(none)) && of(blue).is_disjoint(&of(none)), "{what}");
    }
    let ours = mapped(daemon.pid(), "sluice-arena");
    assert_eq!(ours.len(), 4, "three tenants, and the ingress: {ours:?}");
    assert!([red, blue, none].iter().all(|nf| mapped(*nf, "sluice-arena").is_subset(&ours)));
    // The port of one tenant alone receives into its memory.
    assert_eq!((memory(&stats, "-").gate_packets, memory(&stats, "ingress").gate_packets), (0, 0));
    assert!(memory(&stats, "red").gate_packets > 100 && memory(&stats, "blue").gate_packets > 100);
    daemon.stop();
}

#[test]
fn a_tenant_that_overwrites_all_it_has_alters_no_packet_of_another() {
    const PACKETS: u64 = 20_000;
    let load = format!("rate = 20000\ncount = {PACKETS}\nflows = 16\noverload = \"wait\"\nsrc = \"198.18.0.0\"");
    let mut daemon = Daemon::start("", &two_tenants(&load, &hostile_nf(), "args = [\"hostile-nf\", \"overwrite\"]"));
    // A quarter of the flows are red's.
    let blue = PACKETS * 3 / 4;
    // The sink's details are read a moment before the port's counters.
    let stats = daemon.wait("all of blue's", |s| {
        let out = find_port(s, "blue-out");
        out.tx_packets == blue && out.details["stamped"] + out.details["unstamped"] == blue as f64
    });
    let seen = |what: &str| find_port(&stats, "blue-out").details[what];
    assert_eq!(seen("stamped"), blue as f64);
    for what in ["unstamped", "lost", "reordered", "duplicated"] {
        assert_eq!(seen(what), 0.0, "{what}");
    }
    assert_eq!((find_nf(&stats, "b.0").state, find_nf(&stats, "b.0").violations), (NfState::Running, 0));
    let stats = daemon.wait("all of red's", |s| find_port(s, "red-out").tx_packets == PACKETS - blue);
    assert_eq!((memory(&stats, "blue").gate_packets, memory(&stats, "red").gate_packets), (blue, PACKETS - blue));
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn after_violations_a_tenant_has_fresh_memory_and_another_notices_nothing() {
    let load = "rate = 10000\nflows = 16\nsrc = \"198.18.0.0\"";
    // The first line continues the section [memory].
    let mut text =
        "after_violation = \"replace\"\n".to_string() + &two_tenants(load, &hostile_nf(), "args = [\"hostile-nf\", \"replay\"]");
    // Another NF of the same tenant, which breaks no rule.
    text += &service("r2", "sluice-nf-bridge", "tenant = \"red\"");
    text += &port("more", "gen", "rate = 1000\ntenant = \"red\"");
    text += &port("more-out", "sink", "");
    text += &chain("more", "more", &["r2"], "more-out", "on_failure = \"drop\"");
    // It breaks the rules at its first packets, which come with a rule that is added below.
    let mut daemon = Daemon::start("", &text.replacen("198.18.0.0/30", "198.18.9.0/30", 1));
    let before = find_nf(&daemon.stats(), "r2.0").pid.expect("it runs");
    let rule = "name = \"bad\"\nport = \"in\"\nsrc = \"198.18.0.0/30\"\nchain = \"red\"";
    daemon.client().add_rule(toml::from_str(rule).unwrap(), Some(0)).unwrap();
    let stats = daemon.wait("fresh memory of red", |s| {
        let r2 = find_nf(s, "r2.0");
        find_nf(s, "r.0").state == NfState::Failed && r2.state == NfState::Running && r2.pid != Some(before)
    });
    assert_eq!(find_nf(&stats, "r2.0").violations, 0);
    // The old memory goes with its last packets; the new one carries packets.
    let sent = find_port(&stats, "more-out").tx_packets;
    let stats = daemon.wait("packets of the one that did nothing wrong", |s| find_port(s, "more-out").tx_packets > sent + 100);
    daemon.wait("the end of the former memory", |s| s.status.memories.iter().all(|memory| memory.tenant != "former"));
    let blue = find_port(&stats, "blue-out");
    for what in ["unstamped", "duplicated"] {
        assert_eq!(blue.details[what], 0.0, "{what}");
    }
    // The operator can do the same at any time.
    let before = find_nf(&stats, "r2.0").pid;
    daemon.client().renew_memory("red").unwrap();
    let stats = daemon.wait("it again", |s| find_nf(s, "r2.0").state == NfState::Running && find_nf(s, "r2.0").pid != before);
    assert!(daemon.client().renew_memory("green").unwrap_err().to_string().contains("sluice tenant list"));
    let b = find_nf(&stats, "b.0");
    assert_eq!((b.state, b.restarts, b.violations), (NfState::Running, 0, 0));
    daemon.stop();
}

#[test]
fn tenants_come_and_go_however_many() {
    // Of nine: one is the first service's, and with fewer than two free ones no memory rests.
    const MOST_THAT_REST: usize = 7;
    let mut daemon = Daemon::start("", &service("first", "sluice-nf-bridge", ""));
    let mut client = daemon.client();
    // More than there are places for arenas.
    for n in 0..10 {
        let tenant = format!("t{n}");
        let text = format!("name = \"s\"\nexec = \"sluice-nf-bridge\"\ntenant = \"{tenant}\"");
        client.add_service(&toml::from_str(&text).unwrap()).unwrap();
        let stats = daemon.wait("its NF runs", |s| find_nf(s, "s.0").state == NfState::Running);
        assert_eq!(memory(&stats, &tenant).in_use, 0);
        client.remove_service("s").unwrap();
        daemon.wait("a place for the next one", |s| {
            let memories = &s.status.memories;
            memories.len() <= MOST_THAT_REST && memories.iter().all(|memory| memory.tenant != "former")
        });
    }
    daemon.stop();
}

/// Chains of red and blue, each with its own port, and one more of red.
/// The NF of that one is a bad neighbour, which hangs while a file exists.
fn one_that_hangs(mark: &Path) -> String {
    let mut text = String::new();
    for (tenant, nf) in [("red", "r"), ("blue", "b")] {
        text += &port(&format!("{tenant}-in"), "gen", "rate = 2000\nflows = 16");
        text += &port(&format!("{tenant}-out"), "sink", "");
        text += &service(nf, "sluice-nf-bridge", &format!("tenant = \"{tenant}\""));
        text += &chain(tenant, &format!("{tenant}-in"), &[nf], &format!("{tenant}-out"), "on_failure = \"drop\"");
    }
    text += &port("slow-in", "gen", "rate = 1000\nflows = 16");
    text += &port("slow-out", "sink", "");
    text += &service("slow", &awkward_nf(), &format!("tenant = \"red\"\nargs = [\"hang\", {mark:?}]"));
    text + &chain("slow", "slow-in", &["slow"], "slow-out", "on_failure = \"restart\"")
}

/// The packet memory that a process has mapped, if it lives.
fn arenas(pid: u32) -> BTreeSet<String> {
    // It may end at any time.
    inodes(&std::fs::read_to_string(maps_of(pid)).unwrap_or_default(), "sluice-arena")
}

#[test]
fn an_nf_that_still_makes_its_handler_has_its_tenants_fresh_memory_too() {
    let folder = open_folder();
    let mark = folder.path().join("made");
    let mut daemon = Daemon::start("", &one_that_hangs(&mark));
    let stats = daemon.wait("packets of all", |s| ["red-out", "slow-out"].iter().all(|p| find_port(s, p).tx_packets > 100));
    let first = find_nf(&stats, "slow.0").pid.expect("it runs");
    signal(find_nf(&stats, "slow.0"), Signal::KILL);
    // The next process has its memory, and hangs before it is ready.
    let has_begun = |s: &Stats, not: u32| {
        let nf = find_nf(s, "slow.0");
        nf.state == NfState::Starting && nf.pid.is_some_and(|pid| pid != not && !arenas(pid).is_empty())
    };
    let stats = daemon.wait("the next one to begin", |s| has_begun(s, first));
    let (second, red) = (find_nf(&stats, "slow.0").pid.unwrap(), find_nf(&stats, "r.0").pid.unwrap());
    let old = arenas(red);
    assert_eq!(arenas(second), old, "one tenant, one arena");
    daemon.client().renew_memory("red").unwrap();
    let stats = daemon.wait("both to begin anew", |s| {
        let r = find_nf(s, "r.0");
        has_begun(s, second) && r.state == NfState::Running && r.pid != Some(red)
    });
    let fresh = arenas(find_nf(&stats, "r.0").pid.unwrap());
    assert_eq!(arenas(find_nf(&stats, "slow.0").pid.unwrap()), fresh);
    assert!(fresh.is_disjoint(&old));
    daemon.wait("the end of the former memory", |s| s.status.memories.iter().all(|memory| memory.tenant != "former"));
    // When it goes on, its packets are in the memory that it has.
    let before = find_port(&daemon.stats(), "slow-out").tx_packets;
    std::fs::remove_file(&mark).unwrap();
    let stats = daemon.wait("packets of it", |s| find_port(s, "slow-out").tx_packets > before + 100);
    assert_eq!(memory(&stats, "red").starved, 0);
    let b = find_nf(&stats, "b.0");
    assert_eq!((b.state, b.restarts, b.violations), (NfState::Running, 0, 0));
    daemon.stop();
}

#[test]
fn a_version_on_trial_has_its_tenants_fresh_memory_too() {
    let folder = open_folder();
    let mark = folder.path().join("made");
    let mut daemon = Daemon::start("", &one_that_hangs(&mark));
    daemon.wait("packets of all", |s| ["red-out", "slow-out"].iter().all(|p| find_port(s, p).tx_packets > 100));
    let hangs = folder.path().join("hangs");
    std::fs::write(&hangs, "").unwrap();
    let to = Upgrade { exec: awkward_nf(), args: Some(vec!["hang".into(), hangs.display().to_string()]) };
    let mut client = daemon.client();
    let upgrade = std::thread::spawn(move || client.upgrade("r", &to));
    let trial = |s: &Stats| s.nfs.iter().find(|nf| nf.name == "r.1" && nf.state == NfState::Starting).and_then(|nf| nf.pid);
    let has_begun = |s: &Stats, not: u32| trial(s).is_some_and(|pid| pid != not && !arenas(pid).is_empty());
    let stats = daemon.wait("the trial", |s| has_begun(s, 0));
    let first = trial(&stats).unwrap();
    daemon.client().renew_memory("red").unwrap();
    let running = |s: &Stats, name: &str| find_nf(s, name).state == NfState::Running;
    let stats = daemon.wait("the trial with fresh memory", |s| has_begun(s, first) && running(s, "r.0"));
    assert_eq!(arenas(trial(&stats).unwrap()), arenas(find_nf(&stats, "r.0").pid.unwrap()));
    assert!(!upgrade.is_finished(), "it goes on");
    std::fs::remove_file(&hangs).unwrap();
    let upgraded = upgrade.join().unwrap().unwrap();
    assert_eq!(upgraded.instances, ["r.1"]);
    let before = find_port(&daemon.stats(), "red-out").tx_packets;
    daemon.wait("packets of the new version", |s| find_port(s, "red-out").tx_packets > before + 100);
    daemon.stop();
}

/// Whether a process has these bytes in its mapped packet memory.
fn has_in_memory(pid: u32, bytes: &[u8]) -> bool {
    let proc = Path::new("/proc").join(pid.to_string());
    let maps = std::fs::read_to_string(proc.join("maps")).unwrap();
    let memory = std::fs::File::open(proc.join("mem")).unwrap();
    let arenas = maps.lines().filter(|line| line.contains("sluice-arena"));
    arenas
        .filter_map(|line| line.split([' ', '-']).take(2).map(|end| u64::from_str_radix(end, 16).ok()).collect::<Option<Vec<_>>>())
        .any(|range| {
            let mut all = vec![0; (range[1] - range[0]) as usize];
            memory.read_exact_at(&mut all, range[0]).unwrap();
            all.windows(bytes.len()).any(|some| some == bytes)
        })
}

#[test]
fn what_comes_in_where_no_rule_leads_is_in_no_nfs_memory() {
    if !can(&["ip"]) {
        return;
    }
    const PACKETS: u64 = 200;
    let site = Site::new(None);
    // Each tenant has its own ingress port. Blue's packets leave by an interface, and no rule
    // assigns what that receives to a tenant.
    let mut text = site.ports() + &port("red-out", "sink", "");
    for (tenant, nf, out) in [("red", "r", "red-out"), ("blue", "b", "c")] {
        text += &port(&format!("{tenant}-in"), "gen", "rate = 500");
        text += &service(nf, "sluice-nf-bridge", &format!("tenant = \"{tenant}\""));
        text += &chain(tenant, &format!("{tenant}-in"), &[nf], out, "");
    }
    let mut daemon = Daemon::start("", &text);
    daemon.wait("packets of both", |s| ["red-out", "c"].iter().all(|p| find_port(s, p).tx_packets > 100));
    let secret = b"nobody of red is to read this: ".repeat(20);
    let socket = site
        .in_client(|| {
            let socket = UdpSocket::bind("10.0.0.2:0")?;
            socket.set_broadcast(true)?;
            Ok(socket)
        })
        .unwrap();
    let before = find_port(&daemon.stats(), "c").rx_packets;
    let stats = daemon.wait("what comes in", |s| {
        (0..20).for_each(|_| drop(socket.send_to(&secret, "10.0.255.255:9")));
        find_port(s, "c").rx_packets >= before + PACKETS && s.drops["no_rule"] >= PACKETS
    });
    for nf in ["r.0", "b.0"] {
        assert!(!has_in_memory(find_nf(&stats, nf).pid.unwrap(), &secret), "{nf} has it mapped");
    }
    assert!(has_in_memory(daemon.pid(), &secret), "it came");
    daemon.stop();
}
