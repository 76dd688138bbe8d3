//! Timelines of a running daemon, read again by a reader of their own.

use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sluice_api::model::{Event, EventKind, MAX_TIMELINES, RecordRequest};

use crate::reader::{ReadTrace, ReadWhat};
use crate::support::{Daemon, PATIENCE, chain, find_chain, find_nf, find_port, head, open_folder, port, refusal, service, signal};

fn run(daemon: &Daemon, args: &[&str]) -> Output {
    daemon.sluice(&["record"]).args(args).output().unwrap()
}

/// The timeline that a command writes to its output.
fn record(daemon: &Daemon, args: &[&str]) -> ReadTrace {
    let output = run(daemon, &[args, &["-w", "-"]].concat());
    assert!(output.status.success(), "{args:?}: {output:?}");
    ReadTrace::of(&output.stdout)
}

#[test]
fn a_timeline_shows_which_nf_had_the_core_and_what_was_refused() {
    let costs = "args = [\"--cycles\", \"5000\"]\nring = 64";
    let body = port("much", "gen", "flows = 8")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-cost", costs)
        + &service("b", "sluice-nf-cost", costs)
        + &chain("c", "much", &["a", "b"], "out", "");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("packets are refused", |s| {
        find_chain(s, "c").drops.get("entry").is_some_and(|n| *n > 0) && find_chain(s, "c").exit_packets > 0
    });
    let core = format!("core {}", find_nf(&stats, "a.0").core);
    assert_eq!(find_nf(&stats, "a.0").core, find_nf(&stats, "b.0").core);
    let until = Instant::now() + PATIENCE;
    let trace = loop {
        let trace = record(&daemon, &["--seconds", "0.5", "--rate", "5000"]);
        let had = trace.slices(None, &core);
        let both = ["a.0", "b.0"].iter().all(|nf| had.iter().any(|(name, ..)| name == nf));
        // On a busy host there may be few samples.
        let waited = |nf: &&str| trace.values(Some(*nf), "queue").iter().any(|queue| *queue > 0);
        let queues = ["nf a.0", "nf b.0"].iter().all(waited);
        if both && queues && !trace.values(Some("chain c"), "dropped: entry").is_empty() {
            break trace;
        }
        assert!(Instant::now() < until, "{had:?}");
    };
    assert!(trace.slices(None, &core).iter().all(|(name, ..)| ["a.0", "b.0"].contains(&name.as_str())));
    for nf in ["nf a.0", "nf b.0"] {
        let in_flight = trace.values(Some(nf), "in flight");
        assert!(in_flight.iter().all(|n| (0..=64).contains(n)), "{nf}: no more than its ring: {in_flight:?}");
        assert!(trace.track(Some(nf), "awake").is_some(), "{nf}");
        // Each slice has an end.
        ["awake", "throttled", "held"].iter().for_each(|state| drop(trace.slices(Some(nf), state)));
    }
    let dropped = trace.values(Some("chain c"), "dropped: entry");
    assert!(dropped.is_sorted() && dropped.iter().all(|n| *n >= 0), "a count never falls: {dropped:?}");
    // Times are of the clock that the beginning has.
    let begins = trace.clocks[&3];
    let away = trace.events.iter().find(|event| event.at_ns.abs_diff(begins) > PATIENCE.as_nanos() as u64);
    assert_eq!((away, trace.clocks.len()), (None, 3));
    daemon.silence("c", "much");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_recording_has_the_events_of_its_time_and_nfs_that_come_and_go() {
    let body = port("in", "gen", "rate = 1000\nflows = 8")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("c", "in", &["s"], "out", "");
    let daemon = Daemon::start("", &body);
    let (begun, changed) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut bytes = Vec::new();
    let until = Instant::now() + PATIENCE;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let take = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                begun.store(true, Ordering::Relaxed);
                // Until it shows all that is to be seen.
                !(changed.load(Ordering::Relaxed) && shows_all(&read(&bytes))) && Instant::now() < until
            };
            let request = RecordRequest { duration_ms: 600_000, rate_hz: 1_000 };
            daemon.client().record(&request, take).unwrap();
        });
        while !begun.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let removed = daemon.client().add_nf("s", None).and_then(|nf| daemon.client().remove_nf(&nf.name));
        changed.store(true, Ordering::Relaxed);
        removed.unwrap();
    });
    let trace = read(&bytes);
    assert!(shows_all(&trace), "{trace:?}");
    assert_eq!((trace.instants("nf s.0", "begins"), trace.track(None, "nf s.0").is_some()), (vec![], true));
    daemon.stop();
}

/// What a client has got so far: it may have left in the middle of a packet.
fn read(bytes: &[u8]) -> ReadTrace {
    ReadTrace::of(&bytes[..bytes.len() - cut_off(bytes)])
}

/// Whether an NF has been added and removed, and another one woken.
fn shows_all(trace: &ReadTrace) -> bool {
    let has = |nf: &str, what: &str| !trace.instants(nf, what).is_empty();
    has("nf s.1", "add") && has("nf s.1", "remove") && has("nf s.0", "woken")
}

/// Bytes behind the last whole packet: the client left in the middle of one.
fn cut_off(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        let Some((_, lengths)) = rest.split_first() else { return 0 };
        let Some(last) = lengths.iter().position(|byte| byte & 0x80 == 0) else { return rest.len() };
        let len = lengths[..=last].iter().rev().fold(0, |len, byte| len << 7 | usize::from(byte & 0x7f));
        let Some(behind) = lengths.get(last + 1 + len..) else { return rest.len() };
        rest = behind;
    }
}

#[test]
fn the_flight_recorder_keeps_what_was_before_an_nf_died() {
    let folder = open_folder();
    let kept = folder.path().join("kept");
    let body = port("load", "gen", "rate = 5000\nflows = 8")
        + &port("away", "sink", "")
        + &service("b", "sluice-nf-bridge", "")
        + &chain("c", "load", &["b"], "away", "on_failure = \"restart\"")
        + &format!("[recorder]\nmemory_mib = 4\nfolder = {kept:?}\n");
    let mut daemon = Daemon::start("", &body);
    assert_eq!(daemon.client().timelines().unwrap(), []);
    let none = run(&daemon, &["--last", "-w", "-"]);
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.code() == Some(1) && said.contains("has written nothing"), "{said}");
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    signal(find_nf(&stats, "b.0"), Signal::KILL);
    let of_timelines = || -> Vec<Event> {
        daemon.client().events().unwrap().into_iter().filter(|event| event.event == EventKind::Timeline).collect()
    };
    let until = Instant::now() + PATIENCE;
    while of_timelines().is_empty() {
        assert!(Instant::now() < until, "there is no file:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    let listed = daemon.client().timelines().unwrap();
    assert_eq!((listed.len(), listed[0].why.as_str()), (1, "death-nf-b.0"));
    let said = &of_timelines()[0];
    assert_eq!(said.subject.as_deref(), Some(&*format!("timeline {}", listed[0].name)));
    let path = kept.join(&listed[0].name);
    assert!(said.text.as_deref().is_some_and(|text| text.contains(&path.display().to_string())), "{said:?}");
    let written = std::fs::read(&path).unwrap();
    assert_eq!(written.len() as u64, listed[0].bytes);
    assert_eq!(run(&daemon, &["--last", "-w", "-"]).stdout, written);
    let trace = record(&daemon, &["--name", &listed[0].name]);
    let death = trace.instants("nf b.0", "death").pop().expect("it shows what it was written for");
    assert!(death["what"].starts_with("killed by signal 9 (SIGKILL)"), "{death:?}");
    let death_ns = trace.events_of(None, "nf b.0").iter().find(|event| is_death(&event.what)).map(|event| event.at_ns).unwrap();
    let (before, behind): (Vec<u64>, Vec<u64>) = trace.events.iter().map(|event| event.at_ns).partition(|at_ns| *at_ns < death_ns);
    assert!(!before.is_empty() && behind.len() > 1, "what was before it, and what followed");
    let table = run(&daemon, &["--list"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("death-nf-b.0"), "{table:?}");
    daemon.silence("c", "load");
    daemon.wait_until_empty();
    daemon.stop();
    assert!(path.exists(), "it stays when the daemon ends");
}

#[test]
fn the_flight_recorder_changes_on_a_running_daemon() {
    let folder = open_folder();
    let kept = folder.path().join("kept");
    let body = port("load", "gen", "rate = 5000\nflows = 8")
        + &port("away", "sink", "")
        + &service("b", "sluice-nf-bridge", "")
        + &chain("c", "load", &["b"], "away", "on_failure = \"restart\"");
    let mut daemon = Daemon::start("", &body);
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let bad = daemon.sluice(&["set", "recorder", "memory_mib=4", &format!("folder={}/x", file.display())]).output().unwrap();
    let words = String::from_utf8_lossy(&bad.stderr);
    assert!(!bad.status.success() && words.contains("set recorder.folder to another folder"), "{words}");
    let said = daemon.says(&["set", "recorder", "memory_mib=4", &format!("folder={}", kept.display())]);
    assert!(said.contains("~ section recorder"), "{said}");
    let stats = daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 500);
    signal(find_nf(&stats, "b.0"), Signal::KILL);
    daemon.wait("its death is kept", |_| timelines(&kept) == 1);
    // Off again: another death is not kept.
    daemon.says(&["set", "recorder", "memory_mib="]);
    let sent = find_port(&daemon.stats(), "away").tx_packets;
    let stats = daemon.wait("packets flow again", |s| find_port(s, "away").tx_packets > sent + 500);
    signal(find_nf(&stats, "b.0"), Signal::KILL);
    daemon.wait_for_log("b.0 has ended");
    daemon.silence("c", "load");
    daemon.wait_until_empty();
    // A recorder would write it now at the latest.
    daemon.stop();
    assert_eq!(timelines(&kept), 1);
}

/// The number of whole files of a flight recorder.
fn timelines(folder: &Path) -> usize {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|word| word == "pftrace")).count()
}

fn is_death(what: &ReadWhat) -> bool {
    matches!(what, ReadWhat::Instant(name, _) if name == "death")
}

#[test]
fn a_folder_that_takes_no_file_is_refused_at_the_start() {
    let folder = open_folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let body = port("in", "gen", "rate = 100") + &port("out", "sink", "") + &chain("c", "in", &[], "out", "");
    for (keys, word) in [
        (format!("memory_mib = 1\nfolder = {:?}", file.join("x")), "set recorder.folder to another folder"),
        ("memory_mib = 5000".into(), "memory_mib"),
        ("rate_hz = 9".into(), "rate_hz"),
    ] {
        let output = refusal(folder.path(), &(head(folder.path(), "") + &body + &format!("[recorder]\n{keys}\n")));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word), "{keys}: {said}");
    }
    assert!(!folder.path().join("run").exists(), "nothing is left");
}

#[test]
fn what_cannot_be_recorded_is_refused_at_once() {
    let body = port("in", "gen", "rate = 100") + &port("out", "sink", "") + &chain("c", "in", &[], "out", "");
    let daemon = Daemon::start("", &body);
    let bad =
        |duration_ms, rate_hz| daemon.client().record(&RecordRequest { duration_ms, rate_hz }, |_| false).unwrap_err().to_string();
    assert!(bad(0, 1_000).contains("cannot record for 0 ms"), "{}", bad(0, 1_000));
    assert!(bad(600_001, 1_000).contains("ask for 1 to 600000 ms"));
    assert!(bad(1, 9).contains("cannot take 9 samples a second"));
    assert!(bad(1, 20_001).contains("ask for 10 to 20000"));
    let unknown = daemon.client().timeline("flight-1-x.pftrace", |_| true).unwrap_err().to_string();
    assert!(unknown.contains("no timeline is named \"flight-1-x.pftrace\""), "{unknown}");
    let unknown = daemon.client().timeline("../../etc/passwd", |_| true).unwrap_err().to_string();
    assert!(unknown.contains("no timeline is named"), "{unknown}");

    // As many as there can be, and one more.
    let (begun, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..MAX_TIMELINES {
            scope.spawn(|| {
                let mut is_first = true;
                let take = |_: &[u8]| {
                    begun.fetch_add(usize::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
                    !stop.load(Ordering::Relaxed)
                };
                daemon.client().record(&RecordRequest { duration_ms: 600_000, rate_hz: 10 }, take).unwrap();
            });
        }
        let until = Instant::now() + PATIENCE;
        while begun.load(Ordering::Relaxed) < MAX_TIMELINES && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let refused = daemon.client().record(&RecordRequest::default(), |_| false);
        stop.store(true, Ordering::Relaxed);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("recordings go on, the most at a time"), "{refused}");
    });
    // When they have ended, the next can begin.
    let until = Instant::now() + PATIENCE;
    while let Err(error) = daemon.client().record(&RecordRequest { duration_ms: 1, rate_hz: 1_000 }, |_| true) {
        assert!(error.to_string().contains("recordings go on") && Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.stop();
}
