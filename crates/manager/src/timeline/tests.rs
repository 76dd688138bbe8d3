//! Timelines of NFs without processes, and of the flight recorder, read again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use sluice_api::config::Recorder;
use sluice_api::model::{Event, EventKind, PortState};
use sluice_dataplane::chain::{ChainCounters, DropReason};
use sluice_dataplane::fake::{Fake, core_page, give_back, post};
use sluice_dataplane::handle::{NfHandle, StopReason};
use sluice_dataplane::queue::QueueCounters;
use sluice_shm::core_page::CorePage;
use sluice_shm::page::Counter;

use super::drawing::{self, Drawing};
use super::flight::{self, Backwards, FlightRecorder};
use super::kept;
use super::live::LiveTimeline;
use super::perfetto::{self, ClockTimes, Note, TrackEvent, TrackHead};
use super::reader::{ReadTrace, ReadWhat};
use super::sampler::{NfSubject, Sampler, Subjects};
use super::track::{Objects, Observation, Track};
use super::watcher::{Ask, Watcher};
use crate::controller::events::{EventLog, Subject};

const PATIENCE: Duration = Duration::from_secs(20);

/// NFs on one core, sampled at times that the test says.
struct Rig {
    page: CorePage,
    nfs: Vec<Arc<NfHandle>>,
    chain: Arc<[ChainCounters]>,
    port: Arc<QueueCounters>,
    sampler: Sampler,
    observed: Vec<Observation>,
}

fn subject(handle: &Arc<NfHandle>) -> NfSubject {
    NfSubject { handle: handle.clone(), tenant: None, is_process: true }
}

impl Rig {
    fn new(nfs: u16) -> Self {
        let page = core_page(8);
        let nfs = (0..nfs).map(|number| sleeping(&page, number)).collect();
        let chain = std::iter::once_with(ChainCounters::default).collect();
        let (port, sampler) = (Arc::default(), Sampler::new(1_000_000));
        let mut rig = Self { page, nfs, chain, port, sampler, observed: Vec::new() };
        rig.follow(1_000);
        rig.sample(1_000);
        rig
    }

    fn subjects(&self) -> Subjects {
        Subjects {
            nfs: self.nfs.iter().map(subject).collect(),
            chains: vec![("web".into(), self.chain.clone())],
            ports: vec![("lan".into(), vec![self.port.clone()])],
        }
    }

    fn follow(&mut self, at_ns: u64) {
        let subjects = self.subjects();
        self.sampler.follow(at_ns, subjects, &mut self.observed);
    }

    fn sample(&mut self, at_ns: u64) {
        self.sampler.sample(at_ns, &mut self.observed);
    }

    fn runs(&self, slot: Option<u32>) {
        self.page.running().store(slot.map_or(0, |slot| slot + 1), Ordering::Relaxed);
    }

    /// The timeline of all that was observed, which ends at `at_ns`.
    fn read(&mut self, events: &[Event], at_ns: u64) -> ReadTrace {
        let mut out = Vec::new();
        drawing::begin(&mut out);
        let mut drawing = Drawing::default();
        for observation in &self.observed {
            drawing.observe(&mut out, self.sampler.objects(), observation);
        }
        events.iter().for_each(|event| drawing.event(&mut out, self.sampler.objects(), event));
        drawing.end(&mut out, at_ns);
        ReadTrace::of(&out)
    }
}

fn sleeping(page: &CorePage, number: u16) -> Arc<NfHandle> {
    let handle = Fake::default().on(page, number);
    handle.region.page.asleep().store(1, Ordering::Relaxed);
    handle
}

fn slice(name: &str, begins: u64, ends: u64) -> (String, u64, u64) {
    (name.into(), begins, ends)
}

#[test]
fn messages_are_read_as_they_were_written() {
    let mut out = Vec::new();
    perfetto::begin(&mut out, &ClockTimes { monotonic_ns: 5, boot_ns: u64::MAX, real_ns: 300 });
    let long = "x".repeat(1_000);
    perfetto::track(&mut out, &TrackHead { uuid: u64::MAX, parent: None, name: &long, is_counter: false });
    perfetto::track(&mut out, &TrackHead { uuid: 128, parent: Some(u64::MAX), name: "ä", is_counter: true });
    let notes = [("why", Note::Text("späť")), ("n", Note::Number(1 << 40))];
    perfetto::event(&mut out, 1 << 50, u64::MAX, &TrackEvent::Instant("i", &notes));
    for value in [i64::MIN, -1, 0, 127, 128, i64::MAX] {
        perfetto::event(&mut out, 7, 128, &TrackEvent::Value(value));
    }
    let trace = ReadTrace::of(&out);
    assert_eq!(trace.clocks.into_iter().collect::<Vec<_>>(), [(1, 300), (3, 5), (6, u64::MAX)]);
    let trace = ReadTrace::of(&out);
    assert_eq!((trace.track(None, &long), trace.track(Some(&long), "ä")), (Some(u64::MAX), Some(128)));
    assert_eq!(trace.values(Some(&long), "ä"), [i64::MIN, -1, 0, 127, 128, i64::MAX]);
    let instants = trace.instants(&long, "i");
    assert_eq!((instants.len(), instants[0]["why"].as_str(), instants[0]["n"].as_str()), (1, "späť", "1099511627776"));
    assert_eq!((trace.events[0].at_ns, trace.events[0].track), (1 << 50, u64::MAX));
}

#[test]
fn it_shows_which_nf_has_the_core_and_what_waits_for_it() {
    let mut rig = Rig::new(2);
    let (a, b) = (rig.nfs[0].clone(), rig.nfs[1].clone());
    rig.runs(Some(0));
    a.region.page.asleep().store(0, Ordering::Relaxed);
    post(&a, 3);
    a.in_flight.store(4, Ordering::Relaxed);
    a.counters[0].api.wakes.add(2);
    a.rung_ns.store(1_700, Ordering::Relaxed);
    rig.sample(2_000);
    rig.runs(Some(1));
    give_back(&a, 2);
    a.region.page.add(Counter::HandOvers, 1);
    b.gate.throttled.store(true, Ordering::Relaxed);
    b.gate.throttles.fetch_add(1, Ordering::Relaxed);
    rig.sample(3_000);
    // Nothing has changed.
    rig.sample(3_500);
    a.region.page.asleep().store(5, Ordering::Relaxed);
    rig.runs(None);
    rig.sample(4_000);
    let trace = rig.read(&[], 5_000);
    assert_eq!(trace.slices(None, "core 0"), [slice("s.0", 2_000, 3_000), slice("s.1", 3_000, 4_000)]);
    assert_eq!(
        trace.slices(Some("nf s.0"), "awake"),
        [slice("awake", 2_000, 4_000), slice("waits for something else", 4_000, 5_000)]
    );
    assert_eq!(trace.slices(Some("nf s.1"), "throttled"), [slice("throttled", 3_000, 5_000)]);
    assert_eq!(trace.values(Some("nf s.0"), "queue"), [0, 3, 1]);
    assert_eq!(trace.values(Some("nf s.0"), "in flight"), [0, 4]);
    assert_eq!(trace.values(Some("nf s.0"), "hand-overs"), [1]);
    assert_eq!(trace.instants("nf s.1", "throttled")[0]["times"], "1");
    // The time of the wake is known better than to a sample.
    let woken: Vec<u64> =
        trace.events_of(None, "nf s.0").iter().filter(|event| is_instant(&event.what, "woken")).map(|e| e.at_ns).collect();
    assert_eq!((woken, trace.instants("nf s.0", "woken")[0]["times"].as_str()), (vec![1_700], "2"));
    assert_eq!(trace.track(Some("nf s.1"), "hand-overs"), None, "no curve of what never happened");
}

fn is_instant(what: &ReadWhat, name: &str) -> bool {
    matches!(what, ReadWhat::Instant(of, _) if of == name)
}

#[test]
fn drops_are_counted_from_the_beginning_of_the_recording() {
    let mut rig = Rig::new(0);
    rig.observed.clear();
    // Drops from before.
    rig.chain[0].drops[DropReason::Entry as usize].add(1_000);
    rig.sampler = Sampler::new(1_000_000);
    rig.follow(2_000);
    rig.sample(2_000);
    rig.chain[0].drops[DropReason::Entry as usize].add(5);
    rig.chain[0].drops[DropReason::Verdict as usize].add(1);
    rig.port.api.tx_drops.add(9);
    rig.sample(3_000);
    let trace = rig.read(&[], 4_000);
    assert_eq!(trace.values(Some("chain web"), "dropped: entry"), [5]);
    assert_eq!(trace.values(Some("chain web"), "dropped: verdict"), [1]);
    assert_eq!(trace.track(Some("chain web"), "dropped: ring_full"), None);
    assert_eq!(trace.values(Some("port lan"), "dropped: not accepted"), [9]);
    assert_eq!(trace.track(Some("port lan"), "dropped at the entry"), None);
}

#[test]
fn with_time_slices_the_core_is_that_of_the_last_one() {
    let mut rig = Rig::new(2);
    let (a, b) = (rig.nfs[0].clone(), rig.nfs[1].clone());
    [&a, &b].into_iter().for_each(|nf| nf.governed.store(true, Ordering::Relaxed));
    for (at_ns, nf) in [(2_000, &a), (3_000, &b), (4_000, &a)] {
        nf.load.slices.fetch_add(1, Ordering::Relaxed);
        rig.sample(at_ns);
    }
    // The one that has the core goes.
    rig.nfs.remove(0);
    rig.follow(5_000);
    rig.sample(5_000);
    let trace = rig.read(&[], 9_000);
    let wanted = [slice("s.0", 2_000, 3_000), slice("s.1", 3_000, 4_000), slice("s.0", 4_000, 5_000)];
    assert_eq!(trace.slices(None, "core 0"), wanted);
    assert_eq!(trace.instants("nf s.0", "time slice").len(), 2);
}

#[test]
fn a_restarted_nf_is_drawn_on_and_its_counts_begin_anew() {
    let mut rig = Rig::new(1);
    let a = rig.nfs[0].clone();
    a.counters[0].api.wakes.add(3);
    a.gate.held.store(true, Ordering::Relaxed);
    post(&a, 7);
    rig.sample(2_000);
    a.ask_to_stop(StopReason::Stalled);
    a.violations.fetch_add(2, Ordering::Relaxed);
    rig.sample(3_000);
    // It dies; another process comes in its place, whose count is higher at once.
    rig.nfs.clear();
    rig.follow(4_000);
    rig.sample(4_000);
    rig.nfs.push(sleeping(&rig.page, 0));
    rig.nfs[0].counters[0].api.wakes.add(50);
    rig.follow(5_000);
    rig.sample(5_000);
    rig.nfs[0].counters[0].api.wakes.add(1);
    rig.sample(6_000);
    let trace = rig.read(&[], 9_000);
    assert_eq!(trace.slices(Some("nf s.0"), "held"), [slice("held", 2_000, 4_000)]);
    assert_eq!(trace.values(Some("nf s.0"), "queue"), [0, 7, 0]);
    let times: Vec<String> = trace.instants("nf s.0", "woken").iter().map(|notes| notes["times"].clone()).collect();
    assert_eq!(times, ["3", "1"]);
    assert_eq!(trace.instants("nf s.0", "must stop")[0]["why"], "stalled");
    assert_eq!(trace.instants("nf s.0", "violation")[0]["times"], "2");
    assert_eq!(trace.instants("nf s.0", "begins").len(), 2);
}

#[test]
fn tenants_of_a_core_have_a_track_each_and_nonsense_on_a_page_is_nobody() {
    let mut rig = Rig::new(1);
    let other = core_page(8);
    let b = sleeping(&other, 3);
    let mut subjects = rig.subjects();
    subjects.nfs.push(NfSubject { tenant: Some("gold".into()), ..subject(&b) });
    rig.sampler.follow(2_000, subjects, &mut rig.observed);
    other.running().store(4, Ordering::Relaxed);
    rig.runs(Some(u32::MAX - 1));
    rig.sample(2_000);
    let trace = rig.read(&[], 3_000);
    assert_eq!(trace.slices(None, "core 0, tenant gold"), [slice("s.3", 2_000, 3_000)]);
    assert_eq!(trace.slices(None, "core 0"), []);
}

#[test]
fn what_was_not_sampled_is_said() {
    let mut rig = Rig::new(1);
    rig.sample(1_500_000);
    rig.sample(1_600_000);
    let trace = rig.read(&[], 2_000_000);
    assert_eq!(trace.instants("sluiced", "not sampled")[0]["nanoseconds"], "1499000");
    assert_eq!(trace.instants("sluiced", "not sampled").len(), 1);
}

#[test]
fn events_are_instants_of_what_they_are_about() {
    let log = EventLog::default();
    log.note_at(1_000, EventKind::Death, Subject::Nf("s.0"), "killed by signal 9");
    log.note_at(1_500, EventKind::Apply, Subject::Other("configuration", ""), "1 change");
    log.note_at(1_600, EventKind::Chain, Subject::Other("chain", "web"), "takes packets");
    log.add(1_700, "lan", crate::controller::events::What::Port(PortState::Gone));
    log.add(1_800, "s.0", crate::controller::events::What::Throttled { times: 3, now: false });
    let trace = Rig::new(1).read(&log.all(), 2_000);
    assert_eq!(trace.instants("nf s.0", "death")[0]["what"], "killed by signal 9");
    assert_eq!(trace.instants("configuration", "apply")[0]["what"], "1 change");
    assert_eq!(trace.instants("chain web", "chain")[0]["number"], "3");
    assert_eq!(trace.instants("port lan", "port")[0]["what"], "gone");
    assert_eq!(trace.instants("nf s.0", "throttle"), [], "a track shows it");
}

fn read_ring(ring: &Backwards, objects: &mut Objects) -> ReadTrace {
    let mut bytes = Vec::new();
    flight::trace(ring, objects, &[], &mut bytes).unwrap();
    ReadTrace::of(&bytes)
}

#[test]
fn a_long_ring_is_written_in_pieces() {
    let mut objects = Objects::default();
    let nf = objects.number("nf a.0");
    let mut ring = Backwards::new(20_000 * size_of::<Observation>(), 0).unwrap();
    (1..=20_000).for_each(|n| ring.push(Observation { at_ns: n, object: nf, track: Track::Queue, value: n }));
    let trace = read_ring(&ring, &mut objects);
    assert_eq!(trace.values(Some("nf a.0"), "queue"), (1..=20_000).collect::<Vec<i64>>());
}

#[test]
fn the_ring_begins_with_what_was_known_when_its_first_observation_was_made() {
    let mut objects = Objects::default();
    let (core, nf, web) = (objects.number("core 1"), objects.number("nf a.0"), objects.number("chain web"));
    let mut ring = Backwards::new(4 * size_of::<Observation>(), 0).unwrap();
    assert_eq!(ring.since_ns(), 0);
    let entry = Track::Dropped(DropReason::Entry as u8);
    for (at_ns, object, track, value) in [
        (1, nf, Track::Begins, 1),
        (1, nf, Track::Wakes, 10),
        (1, nf, Track::Queue, 5),
        (1, web, entry, 70),
        (1, core, Track::Runs, u64::from(nf)),
        // These stay.
        (20, nf, Track::Wakes, 12),
        (21, web, entry, 75),
        (22, core, Track::Runs, 0),
        (23, nf, Track::Queue, 0),
    ] {
        ring.push(Observation { at_ns, object, track, value });
    }
    assert_eq!(ring.since_ns(), 20);
    let trace = read_ring(&ring, &mut objects);
    assert_eq!(trace.slices(None, "core 1"), [slice("a.0", 20, 22)]);
    assert_eq!(trace.values(Some("nf a.0"), "queue"), [5, 0]);
    assert_eq!(trace.values(Some("chain web"), "dropped: entry"), [5]);
    assert_eq!(trace.instants("nf a.0", "woken")[0]["times"], "2");
    // Another process behind the name, and then its first observations leave the ring, too.
    for (at_ns, track, value) in [(30, Track::Begins, 1), (30, Track::Wakes, 3), (31, Track::Wakes, 4), (32, Track::Wakes, 5)] {
        ring.push(Observation { at_ns, object: nf, track, value });
    }
    ring.push(Observation { at_ns: 33, object: nf, track: Track::Queue, value: 1 });
    let trace = read_ring(&ring, &mut objects);
    assert_eq!(trace.instants("nf a.0", "woken").len(), 2, "the first count of the new process is no wake");
}

#[test]
fn objects_that_nothing_uses_are_forgotten_and_numbers_are_not_used_again() {
    let mut rig = Rig::new(1);
    let gone = rig.sampler.objects().number("nf gone.7");
    let kept = rig.sampler.objects().number("nf kept.7");
    let own = rig.sampler.objects().number("nf s.0");
    rig.sampler.forget(|object| object == kept);
    let objects = rig.sampler.objects();
    assert_eq!((objects.label(gone), objects.label(kept), objects.label(own)), ("", "nf kept.7", "nf s.0"));
    assert!(objects.number("nf gone.7") > kept);
}

/// Answers each question with the NFs of a rig.
fn asks(subjects: Subjects) -> Ask {
    Box::new(move || {
        let (to, answer) = channel();
        to.send(subjects.clone()).unwrap();
        answer
    })
}

/// Asks a supervisor that has ended.
fn asks_nobody() -> Ask {
    Box::new(|| -> Receiver<Subjects> { channel().1 })
}

const PERIOD: Duration = Duration::from_millis(1);

#[test]
fn a_recording_ends_by_itself_and_has_events_of_its_time() {
    let rig = Rig::new(2);
    let log = Arc::new(EventLog::default());
    log.note(EventKind::Add, Subject::Nf("s.0"), "before");
    let watcher = Watcher::new(PERIOD, asks(rig.subjects()), log.clone());
    let mut stream = LiveTimeline::new(watcher, rig.subjects(), PERIOD, Duration::from_millis(1), Arc::default());
    log.note(EventKind::Remove, Subject::Nf("s.1"), "meanwhile");
    let bytes: Vec<u8> = stream.by_ref().flatten().collect();
    assert_eq!(stream.next(), None);
    let trace = ReadTrace::of(&bytes);
    assert_eq!((trace.instants("nf s.0", "add"), trace.instants("nf s.1", "remove").len()), (vec![], 1));
    assert_eq!(trace.instants("nf s.0", "begins"), [], "they were there before");
    assert_eq!(trace.values(Some("nf s.1"), "queue"), [0]);
}

#[test]
fn a_recording_ends_with_the_supervisor() {
    let rig = Rig::new(1);
    let watcher = Watcher::new(PERIOD, asks_nobody(), Arc::default());
    let stream = LiveTimeline::new(watcher, rig.subjects(), PERIOD, Duration::from_secs(3_600), Arc::default());
    let bytes: Vec<u8> = stream.flatten().collect();
    assert_eq!(ReadTrace::of(&bytes).values(Some("nf s.0"), "queue"), [0]);
}

#[test]
fn the_flight_recorder_writes_what_was_before_a_death() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Recorder { memory_mib: 1, rate_hz: 1_000, folder: folder.path().join("f"), files: 2 };
    let rig = Rig::new(1);
    let log = Arc::new(EventLog::default());
    let recorder = FlightRecorder::start(&settings, "x.tmp".into(), asks(rig.subjects()), log.clone()).unwrap();
    log.note(EventKind::Restart, Subject::Nf("s.0"), "is no cause");
    log.note(EventKind::Death, Subject::Nf("s.0"), "killed");
    let until = Instant::now() + PATIENCE;
    let of_kind = |kind: EventKind| log.all().into_iter().filter(|event| event.event == kind).collect::<Vec<_>>();
    while of_kind(EventKind::Timeline).is_empty() {
        assert!(Instant::now() < until, "there is no file: {:?}", log.all());
        std::thread::yield_now();
    }
    let files = kept::list(&settings.folder).unwrap();
    assert_eq!((files.len(), files[0].why.as_str()), (1, "death-nf-s.0"));
    let said = &of_kind(EventKind::Timeline)[0];
    assert_eq!(said.subject.as_deref(), Some(&*format!("timeline {}", files[0].name)));
    let path = settings.folder.join(&files[0].name);
    assert!(said.text.as_deref().unwrap().ends_with(&format!("are in {}", path.display())), "{said:?}");
    let trace = ReadTrace::of(&std::fs::read(path).unwrap());
    assert_eq!(trace.instants("nf s.0", "death")[0]["what"], "killed");
    assert_eq!(trace.instants("nf s.0", "restart").len(), 1);
    assert_eq!(trace.values(Some("nf s.0"), "queue"), [0]);
    // What is due is written at the end, and two causes are one file.
    log.note(EventKind::Promise, Subject::Other("slo", "acme"), "latency");
    log.note(EventKind::Death, Subject::Nf("s.0"), "again");
    drop(recorder);
    let files = kept::list(&settings.folder).unwrap();
    assert_eq!((files.len(), files[1].why.as_str()), (2, "promise-slo-acme"));
    assert!(of_kind(EventKind::Timeline)[1].text.as_deref().unwrap().starts_with("promise slo acme and 1 more: "));
    let trace = ReadTrace::of(&std::fs::read(settings.folder.join(&files[1].name)).unwrap());
    assert_eq!(trace.instants("nf s.0", "death").len(), 2);
}

#[test]
fn a_folder_that_takes_no_file_is_no_end_of_the_recorder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f"), "a file").unwrap();
    let settings = Recorder { memory_mib: 1, rate_hz: 1_000, folder: folder.path().join("f"), files: 1 };
    let log = Arc::new(EventLog::default());
    let recorder = FlightRecorder::start(&settings, "x.tmp".into(), asks_nobody(), log.clone()).unwrap();
    log.note(EventKind::Death, Subject::Nf("s.0"), "killed");
    drop(recorder);
    assert!(log.all().iter().all(|event| event.event != EventKind::Timeline));
    assert_eq!(std::fs::read_to_string(folder.path().join("f")).unwrap(), "a file");
}
