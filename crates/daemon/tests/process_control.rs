//! Process controllers on the real kernel, by each mechanism that the host allows.
//! Busy processes stop, run, are given back as they were, and run on when their controller dies.
//!
//! They need root, for cgroups and real-time classes; without it they are skipped.

#[path = "../../host/src/skip.rs"]
mod skip;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use sluice_foreign::namespace::ProcessSet;
use sluice_host::class::{self, Class};
use sluice_host::process::Proc;
use sluice_host::processes::auto::{self, Probe};
use sluice_host::processes::guard::Guard;
use sluice_host::processes::spinner::Spinner;
use sluice_host::processes::{Controller, Failed, Gates, Mechanism, Refused, Settings, Target, ThreadWatch, make, realtime};
use sluice_host::{affinity, processes};
use sluice_shm::gate::{COMES_WHEN_CALLED, Gate, LOOKS};
use sluice_shm::memory::Mapping;

use skip::skip;

/// Time limit of every wait, generous for a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Progress of a running process after which one that made none counts as stopped.
const PROGRESS: u64 = 20_000;
/// Threads of a busy process.
const THREADS: usize = 3;

/// Environment variable with the role of a process of this test; see [`role`].
const ROLE: &str = "SLUICE_TEST_ROLE";

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sluiced"))
}

/// One test at a time: real-time processes keep all others from their core.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if !rustix::process::geteuid().is_root() {
        skip("it needs root, for cgroups and real-time classes");
        return None;
    }
    Some(ONE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn settings(name: &str) -> Settings {
    Settings::new(&format!("sluice-test-{}-{name}", std::process::id()))
}

/// The core of the busy processes: the last, where there are several.
fn core() -> usize {
    *affinity::allowed().unwrap().last().unwrap()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn spinner(threads: usize, looks: bool) -> Spinner {
    Spinner::start(program(), Some(core()), threads, looks).unwrap()
}

fn target(spinner: &Spinner, name: &str) -> Target {
    spinner.target(&Proc::default(), name).unwrap()
}

/// Waits until all threads make progress.
fn runs(spinner: &Spinner) {
    let before = spinner.counts();
    until("all threads run", || spinner.counts().iter().zip(&before).all(|(now, then)| now - then > PROGRESS));
}

/// Waits until one makes progress and the other does not.
fn only_runs(one: &Spinner, other: &Spinner) {
    only_runs_but(one, other, 0);
}

/// As [`only_runs`]; up to `in_hand` threads of the other may still end a round.
fn only_runs_but(one: &Spinner, other: &Spinner, in_hand: u64) {
    until("one runs and the other does not", || {
        let (own, others) = (one.count(), other.count());
        until("it runs", || one.count() - own > PROGRESS);
        other.count() == others
    });
    let others = other.count();
    runs(one);
    let more = other.count() - others;
    assert!(more <= in_hand, "it stands for good, but went on {more} times, where {in_hand} may be");
}

fn classes(pid: i32) -> Vec<Option<Class>> {
    class::of(Path::new("/"), Pid::from_raw(pid).unwrap()).unwrap().into_iter().map(|(_, class)| class).collect()
}

fn cgroups(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

/// The state that must be restored.
#[derive(Debug, PartialEq)]
struct Former {
    classes: Vec<Option<Class>>,
    cgroups: String,
}

impl Former {
    fn of(spinner: &Spinner) -> Self {
        Self { classes: classes(spinner.pid()), cgroups: cgroups(spinner.pid()) }
    }
}

/// Cgroup folders whose name holds `part`, anywhere.
fn folders(part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = next.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        {
            if entry.file_name().to_string_lossy().contains(part) {
                found.push(entry.path());
            }
            next.push(entry.path());
        }
    }
    found
}

/// A controller, if this host allows it.
fn made(mechanism: Mechanism, settings: &Settings, guard: &Arc<Guard>) -> Option<Box<dyn Controller>> {
    match make(mechanism, settings, guard) {
        Ok(controller) => Some(controller),
        Err(error @ (Refused::NotHere { .. } | Refused::NotPermitted { .. })) => {
            skip(format_args!("{mechanism}: {error}"));
            None
        }
        Err(error) => panic!("{mechanism}: {error}"),
    }
}

/// Runs a test with each controller that this host allows; each has its own guard.
fn each(name: &str, mut test: impl FnMut(Mechanism, Box<dyn Controller>)) {
    for mechanism in Mechanism::ALL {
        let guard = Guard::start(program()).unwrap();
        if let Some(controller) = made(mechanism, &settings(name), &guard) {
            test(mechanism, controller);
        }
        assert!(folders(&settings(name).folder).is_empty(), "{mechanism}");
    }
}

#[test]
fn each_mechanism_stops_and_runs_processes_and_gives_them_back_as_they_were() {
    let Some(_alone) = alone() else { return };
    each("stops", |mechanism, mut controller| {
        println!("{mechanism}");
        let looks = mechanism == Mechanism::Doorbell;
        let (a, b) = (spinner(THREADS, looks), spinner(THREADS, looks));
        // A process that reads its gate does so when its round has ended.
        let in_hand = if looks { THREADS as u64 } else { 0 };
        let former = [&a, &b].map(Former::of);
        let (one, two) = (controller.add(&target(&a, "a")).unwrap(), controller.add(&target(&b, "b")).unwrap());
        assert!(matches!(controller.add(&target(&a, "again")), Err(Refused::Taken { .. })), "{mechanism}");
        controller.run(one).unwrap();
        only_runs_but(&a, &b, in_hand);
        controller.switch(one, two).unwrap();
        only_runs_but(&b, &a, in_hand);
        controller.run(two).unwrap();
        controller.park(one).unwrap();
        only_runs_but(&b, &a, in_hand);
        controller.switch(two, one).unwrap();
        only_runs_but(&a, &b, in_hand);

        // One is removed while the other is parked; teardown or drop releases that one.
        controller.remove(one).unwrap();
        assert_eq!(Former::of(&a), former[0], "{mechanism}");
        assert_eq!(controller.park(one), Err(Failed::NoSuchSlot(one)));
        assert_eq!(controller.teardown(), [], "{mechanism}");
        assert_eq!(Former::of(&b), former[1], "{mechanism}");
        runs(&a);
        runs(&b);
        let one = controller.add(&target(&a, "a")).unwrap();
        controller.run(one).unwrap();
        controller.add(&target(&b, "b")).unwrap();
        drop(controller);
        assert_eq!([&a, &b].map(Former::of), former, "{mechanism}");
        runs(&a);
        runs(&b);
    });
}

#[test]
fn what_was_changed_is_given_back_though_guard_and_scheduler_were_killed_together() {
    let Some(_alone) = alone() else { return };
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("undo");
    for mechanism in [Mechanism::Signal, Mechanism::Freezer, Mechanism::Freeze, Mechanism::Realtime] {
        let guard = Guard::start_with(program(), Some(&journal)).unwrap();
        let Some(mut controller) = made(mechanism, &settings("journal"), &guard) else { continue };
        let (a, b) = (spinner(1, false), spinner(1, false));
        let former = [&a, &b].map(Former::of);
        let (one, _two) = (controller.add(&target(&a, "a")).unwrap(), controller.add(&target(&b, "b")).unwrap());
        controller.run(one).unwrap();
        only_runs(&a, &b);
        // As SIGKILL leaves both: nothing is undone.
        rustix::process::kill_process(Pid::from_raw(guard.pid()).unwrap(), rustix::process::Signal::KILL).unwrap();
        until("the guard has gone", || !guard.is_alive());
        std::mem::forget(controller);
        std::mem::forget(guard);
        // Then the file lists what is to be undone.
        assert_eq!(sluice_host::processes::guard::undo_left(&journal).1, None, "{mechanism}");
        assert_eq!([&a, &b].map(Former::of), former, "{mechanism}");
        runs(&a);
        runs(&b);
        assert!(!journal.exists() && folders(&settings("journal").folder).is_empty(), "{mechanism}");
    }
    // A guard that ends in order leaves no file.
    drop(Guard::start_with(program(), Some(&journal)).unwrap());
    assert!(!journal.exists());
    assert_eq!(sluice_host::processes::guard::undo_left(&journal), (0, None));
}

#[test]
fn a_process_that_has_ended_is_reported_and_removed() {
    let Some(_alone) = alone() else { return };
    each("ended", |mechanism, mut controller| {
        let mut a = spinner(1, mechanism == Mechanism::Doorbell);
        let slot = controller.add(&target(&a, "a")).unwrap();
        assert!(!controller.is_ended(slot));
        // While parked: version 1 does not let it die, and priorities leave it without a core.
        controller.before_kill(slot).unwrap();
        let known = target(&a, "a");
        a.kill().unwrap();
        assert!(controller.is_ended(slot));
        assert_eq!(controller.run(slot), Err(Failed::Ended), "{mechanism}");
        assert_eq!(controller.park(slot), Err(Failed::Ended), "{mechanism}");
        assert_eq!(controller.remove(slot), Ok(()), "{mechanism}");
        let refused = controller.add(&known).err().map(|error| error.to_string());
        assert!(refused.is_some(), "{mechanism}: an ended process is not added");
    });
}

#[test]
fn what_is_not_to_be_scheduled_is_refused_by_name() {
    let Some(_alone) = alone() else { return };
    let proc = Proc::default();
    let refused = |pid: i32| Target::of_pid(&proc, "x", pid).unwrap_err();
    assert!(matches!(refused(1), Refused::Init));
    // The kernel's kthreadd, in the first pid namespace.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd") {
        assert!(matches!(refused(2), Refused::KernelThread { pid: 2, .. }));
    }
    assert!(matches!(refused(std::process::id() as i32), Refused::Ourselves { .. }));
    assert!(matches!(refused(0), Refused::NoProcess { .. }));
    assert!(matches!(refused(-1), Refused::NoProcess { .. }));
    let mut a = spinner(2, false);
    let pid = a.pid();
    let thread =
        class::of(Path::new("/"), Pid::from_raw(pid).unwrap()).unwrap().into_iter().map(|(tid, _)| tid).find(|tid| *tid != pid);
    assert!(matches!(refused(thread.unwrap()), Refused::Thread { process, .. } if process == pid));
    a.kill().unwrap();
    assert!(matches!(refused(pid), Refused::NoProcess { .. }));

    let guard = Guard::start(program()).unwrap();
    let stranger = spinner(1, false);
    let stranger = Target::of_pid(&proc, "stranger", stranger.pid()).unwrap();
    for mechanism in [Mechanism::Doorbell, Mechanism::Gate] {
        let mut controller = make(mechanism, &settings("refused"), &guard).unwrap();
        let error = controller.add(&stranger).unwrap_err();
        assert!(matches!(error, Refused::NotOurs { .. }), "{error}");
        assert!(error.to_string().contains("not written with Sluice's library"), "{error}");
    }
    let mut controller = make(Mechanism::Signal, &settings("refused"), &guard).unwrap();
    let error = controller.add(&Target::of_pid(&proc, "guard", guard.pid()).unwrap()).unwrap_err();
    assert!(matches!(error, Refused::Ourselves { .. }), "{error}");
}

#[test]
fn another_user_learns_what_is_lacking() {
    let Some(_alone) = alone() else { return };
    let a = spinner(1, false);
    // Copies: the build folder may be closed to others.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let [test, daemon] = [("test", std::env::current_exe().unwrap()), ("sluiced", program().into())].map(|(name, from)| {
        let copy = folder.path().join(name);
        std::fs::copy(from, &copy).unwrap();
        copy
    });
    let mut stranger = role_of(&test, "stranger", &[a.pid().to_string(), daemon.display().to_string()]);
    let mut child = stranger.uid(65_534).gid(65_534).current_dir("/").spawn().unwrap();
    let words: Vec<String> = lines(&mut child).map(Result::unwrap).filter(|line| line.starts_with("said ")).collect();
    assert!(child.wait().unwrap().success());
    let said = |part: &str| words.iter().any(|line| line.contains(part));
    assert!(said("belongs to user 0") && said("CAP_KILL"), "{words:?}");
    assert!(said("CAP_SYS_NICE"), "{words:?}");
    runs(&a);
}

#[test]
fn threads_that_come_later_get_the_class_too() {
    let Some(_alone) = alone() else { return };
    let guard = Guard::start(program()).unwrap();
    let settings = settings("later");
    let Some(mut controller) = made(Mechanism::Realtime, &settings, &guard) else { return };
    let mut child = role("maker", &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut said = lines(&mut child);
    let mut wait_for = |what: &str| until(what, || said.next().is_some_and(|line| line.unwrap() == what));
    wait_for("threads 0");
    let pid = child.id() as i32;
    let before = classes(pid);
    let target = Target::of_pid(&Proc::default(), "maker", pid).unwrap();
    let mut watch = ThreadWatch::of(&Proc::default(), &target);
    let slot = controller.add(&target).unwrap();
    assert!(!watch.has_changed());
    let mut input = child.stdin.take().unwrap();
    for n in 1..=3 {
        writeln!(input).unwrap();
        wait_for(&format!("threads {n}"));
        assert!(watch.has_changed());
        controller.look_again().unwrap();
        controller.run(slot).unwrap();
        assert_eq!(classes(pid), vec![Some(Class::Rr(settings.high)); before.len() + n]);
        controller.park(slot).unwrap();
        assert_eq!(classes(pid), vec![Some(Class::Rr(settings.low)); before.len() + n]);
    }
    // A thread that is not known yet when its process is released.
    writeln!(input).unwrap();
    wait_for("threads 4");
    controller.remove(slot).unwrap();
    assert!(classes(pid).iter().all(|class| *class == before[0]), "{:?}", classes(pid));
    drop(input);
    child.wait().unwrap();
}

/// A child with a slice's priority has no controller and would keep the core for ever.
#[test]
fn children_that_are_made_in_a_turn_do_not_keep_its_class() {
    let Some(_alone) = alone() else { return };
    let guard = Guard::start(program()).unwrap();
    let settings = settings("children");
    let Some(mut controller) = made(Mechanism::Realtime, &settings, &guard) else { return };
    // A class of its own, so that the test sees it given back.
    let mut child = role("parent", &[]).stdin(Stdio::piped()).spawn().unwrap();
    let mut said = lines(&mut child);
    until("it waits", || said.next().is_some_and(|line| line.unwrap() == "waits"));
    let pid = child.id() as i32;
    class::set(Path::new("/"), Pid::from_raw(pid).unwrap(), Class::Batch).unwrap();
    let before = classes(pid);
    let slot = controller.add(&Target::of_pid(&Proc::default(), "parent", pid).unwrap()).unwrap();
    controller.run(slot).unwrap();
    assert_eq!(classes(pid), vec![Some(Class::Rr(settings.high)); before.len()]);
    let mut input = child.stdin.take().unwrap();
    writeln!(input).unwrap();
    let forked = said.next().unwrap().unwrap().strip_prefix("child ").unwrap().parse().unwrap();
    assert_eq!(classes(forked), [Some(Class::Other)]);
    controller.park(slot).unwrap();
    controller.run(slot).unwrap();
    assert_eq!(classes(forked), [Some(Class::Other)]);
    controller.remove(slot).unwrap();
    assert_eq!(classes(pid), before);
    // Later children inherit the process's own class: nothing of the controller's is left.
    writeln!(input).unwrap();
    let forked = said.next().unwrap().unwrap().strip_prefix("child ").unwrap().parse().unwrap();
    assert_eq!(classes(forked), [Some(Class::Batch)]);
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// A foreign NF's processes are found by the cgroup that freezes them (version 2).
#[test]
fn processes_that_are_found_by_their_cgroup_are_found_while_they_are_frozen() {
    let Some(_alone) = alone() else { return };
    let Some(top) = version_2() else { return skip("there are no cgroups of version 2") };
    let folder = top.join(settings("found").folder);
    std::fs::create_dir(&folder).unwrap();
    let (a, other) = (spinner(2, false), spinner(1, false));
    std::fs::write(folder.join("cgroup.procs"), a.pid().to_string()).unwrap();
    let (set, proc) = (ProcessSet::in_cgroup(&folder), Proc::default());
    let pids = || -> Vec<i32> { set.members().iter().map(|pid| pid.as_raw_nonzero().get()).collect() };
    assert_eq!(pids(), [a.pid()]);
    let guard = Guard::start(program()).unwrap();
    for mechanism in Mechanism::ALL.into_iter().filter(|mechanism| mechanism.works_uncooperatively()) {
        let Some(mut controller) = made(mechanism, &settings("finder"), &guard) else { continue };
        let (former, target) = (Former::of(&a), set.target(&proc, "found", &pids()).unwrap());
        let b = spinner(1, false);
        let slot = controller.add(&target).unwrap();
        assert_eq!(pids(), [a.pid()], "{mechanism}");
        if mechanism != Mechanism::Realtime {
            only_runs(&other, &a);
        }
        controller.run(slot).unwrap();
        runs(&a);
        assert_eq!(pids(), [a.pid()], "{mechanism}");
        // A process that joins while the target is stopped is found, and runs on.
        controller.park(slot).unwrap();
        std::fs::write(folder.join("cgroup.procs"), b.pid().to_string()).unwrap();
        assert_eq!(pids().len(), 2, "{mechanism}");
        controller.remove(slot).unwrap();
        assert_eq!((Former::of(&a), pids().len()), (former, 2), "{mechanism}");
        runs(&b);
    }
    // A process in a cgroup below belongs to it, and is frozen with it.
    let (below, c) = (folder.join("below"), spinner(1, false));
    std::fs::create_dir(&below).unwrap();
    std::fs::write(below.join("cgroup.procs"), c.pid().to_string()).unwrap();
    until("what has ended is gone", || pids().len() == 2);
    let mut both = pids();
    both.sort_unstable();
    let mut expected = [a.pid(), c.pid()];
    expected.sort_unstable();
    assert_eq!(both, expected);
    if let Some(mut controller) = made(Mechanism::Freeze, &settings("finder"), &guard) {
        let slot = controller.add(&set.target(&proc, "found", &both).unwrap()).unwrap();
        only_runs(&other, &c);
        controller.remove(slot).unwrap();
        runs(&c);
    }
    drop(c);
    until("the cgroup below is removed", || std::fs::remove_dir(&below).is_ok());
    drop(a);
    until("the cgroup is removed", || std::fs::remove_dir(&folder).is_ok());
}

#[test]
fn several_processes_of_a_cgroup_are_one_target_and_stay_where_they_are() {
    let Some(_alone) = alone() else { return };
    let Some(top) = version_2() else { return skip("there are no cgroups of version 2") };
    let folder = top.join(settings("herd").folder);
    std::fs::create_dir(&folder).unwrap();
    let (a, b, other) = (spinner(2, false), spinner(1, false), spinner(1, false));
    for spinner in [&a, &b] {
        std::fs::write(folder.join("cgroup.procs"), spinner.pid().to_string()).unwrap();
    }
    let guard = Guard::start(program()).unwrap();
    for mechanism in [Mechanism::Freeze, Mechanism::Signal] {
        let mut controller = make(mechanism, &settings("herder"), &guard).unwrap();
        let herd = Target::of_pids(&Proc::default(), "herd", &[a.pid(), b.pid()]).unwrap().in_cgroup(&folder);
        assert_eq!(herd.members().len(), 2);
        let former = [&a, &b].map(Former::of);
        let slot = controller.add(&herd).unwrap();
        only_runs(&other, &a);
        only_runs(&other, &b);
        controller.run(slot).unwrap();
        runs(&a);
        runs(&b);
        controller.park(slot).unwrap();
        only_runs(&other, &a);
        controller.remove(slot).unwrap();
        runs(&a);
        runs(&b);
        assert_eq!([&a, &b].map(Former::of), former);
    }
    drop((a, b));
    until("the cgroup is removed", || std::fs::remove_dir(&folder).is_ok());
}

#[test]
fn auto_chooses_one_that_works_and_says_why() {
    let Some(_alone) = alone() else { return };
    let guard = Guard::start(program()).unwrap();
    let choice = auto::choose(&settings("auto"), &guard, program(), core(), &Mechanism::ALL);
    let reasons = choice.reasons();
    reasons.iter().for_each(|reason| println!("{reason}"));
    assert_eq!(reasons.len(), Mechanism::ALL.len());
    let chosen = choice.mechanism.expect("signals work everywhere");
    assert_eq!(reasons.iter().filter(|reason| reason.contains(": chosen")).count(), 1);
    if affinity::allowed().unwrap().len() > 1 {
        assert!(choice.latency_ns().is_some_and(|ns| ns > 0.0), "{chosen}");
    } else {
        assert!(choice.tried.iter().all(|tried| !matches!(tried.outcome, Probe::Works(_))));
    }
    assert!(folders(&settings("auto").folder).is_empty());
}

#[test]
fn the_scheduler_is_above_what_it_schedules_until_it_is_done() {
    let Some(_alone) = alone() else { return };
    let settings = settings("above");
    let scheduler = std::thread::spawn(move || {
        let own = || class::of(Path::new("/"), rustix::process::getpid()).unwrap();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let class_of = |tid: i32| own().into_iter().find(|(other, _)| *other == tid).unwrap().1;
        let (before, cores) = (class_of(tid), affinity::allowed().unwrap());
        let raised = match realtime::raise_self(&settings, Some(cores[0])) {
            Ok(raised) => raised,
            Err(error) => return skip(error),
        };
        assert_eq!(class_of(tid), Some(Class::Rr(settings.high + 1)));
        assert_eq!(affinity::allowed().unwrap(), [cores[0]]);
        drop(raised);
        assert_eq!((class_of(tid), affinity::allowed().unwrap()), (before, cores));
        assert!(
            realtime::warnings(&settings)
                .iter()
                .all(|warning| warning.contains("sched_rt_runtime_us") || warning.contains("cgroup"))
        );
    });
    scheduler.join().unwrap();
}

#[test]
fn a_guard_that_is_gone_is_noticed_and_nothing_is_changed_without_one() {
    let Some(_alone) = alone() else { return };
    let a = spinner(1, true);
    for mechanism in Mechanism::ALL {
        let guard = Guard::start(program()).unwrap();
        let Some(mut controller) = made(mechanism, &settings("unguarded"), &guard) else { continue };
        assert!(guard.is_alive());
        rustix::process::kill_process(Pid::from_raw(guard.pid()).unwrap(), rustix::process::Signal::KILL).unwrap();
        until("it is gone", || !guard.is_alive());
        let former = Former::of(&a);
        assert!(matches!(controller.add(&target(&a, "a")), Err(Refused::NoGuard(_))), "{mechanism}");
        runs(&a);
        assert_eq!(Former::of(&a), former);
    }
}

/// A controller leaves nothing behind, at whatever moment it is killed.
#[test]
fn the_guard_gives_everything_back_when_the_controller_is_killed() {
    let Some(_alone) = alone() else { return };
    // A linear congruential generator, not random, so that a failure repeats.
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for mechanism in Mechanism::ALL {
        let looks = mechanism == Mechanism::Doorbell;
        let (a, b) = (spinner(2, looks), spinner(1, looks));
        let former = [&a, &b].map(Former::of);
        for round in 0..8 {
            let pids = [a.pid(), b.pid()].map(|pid| pid.to_string());
            let mut child = role("controller", &[&[mechanism.to_string()], pids.as_slice()].concat()).spawn().unwrap();
            let mut said = lines(&mut child);
            // How many steps it takes. The last never ends: the processes then make some progress.
            let steps = if round < 5 { round } else { 4 };
            let mut is_refused = false;
            let mut step = 0;
            while step < steps {
                match said.next() {
                    Some(Ok(line)) if line.starts_with("step") => step += 1,
                    Some(Ok(line)) if line.starts_with("refused") => {
                        skip(format_args!("{mechanism}: {line}"));
                        is_refused = true;
                        break;
                    }
                    Some(Ok(_)) => {}
                    _ => panic!("{mechanism}: the controller ended"),
                }
            }
            if step == 4 {
                let (seen, more) = (a.count() + b.count(), random(400_000));
                until("they run", || a.count() + b.count() - seen > more);
            } else {
                (0..random(200_000)).for_each(|_| std::hint::spin_loop());
            }
            child.kill().unwrap();
            child.wait().unwrap();
            if is_refused {
                break;
            }
            runs(&a);
            runs(&b);
            until("they have what they had", || [&a, &b].map(Former::of) == former);
            let name = format!("sluice-test-{}-killed", child.id());
            until("its cgroups are gone", || folders(&name).is_empty());
        }
    }
}

fn lines(child: &mut Child) -> std::io::Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

fn version_2() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let point = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == "cgroup2").then_some(point.into())
    });
    point.filter(|point: &PathBuf| point.join("cgroup.procs").exists())
}

/// A command that runs this test's program in a role.
fn role(name: &str, arguments: &[String]) -> Command {
    role_of(&std::env::current_exe().unwrap(), name, arguments)
}

/// The same with a copy of this test's program.
fn role_of(test: &Path, name: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(test);
    command.args(["--exact", "plays_its_role", "--nocapture", "--test-threads", "1"]);
    command.env(ROLE, [&[name.to_string()], arguments].concat().join(" "));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// No test, unless a test started this process to play a role.
#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    // Ends the line that the harness has begun.
    println!();
    match words[..] {
        ["controller", mechanism, a, b] => control(mechanism.parse().unwrap(), &[a, b].map(|pid| pid.parse().unwrap())),
        ["stranger", pid, daemon] => stranger(pid.parse().unwrap(), Path::new(daemon)),
        ["maker"] => make_threads(),
        ["parent"] => make_children(),
        _ => panic!("no such role: {role}"),
    }
}

/// A spinner as another process finds it; its memory is its standard input.
fn found(pid: i32, looks: bool) -> Target {
    let file = std::fs::File::options().read(true).write(true).open(format!("/proc/{pid}/fd/0")).unwrap();
    let memory: Arc<OwnedFd> = Arc::new(file.into());
    let bytes = rustix::fs::fstat(&*memory).unwrap().st_size as usize;
    let mapping = Mapping::new(std::os::fd::AsFd::as_fd(&*memory), bytes, false).unwrap();
    let gate = Gate::in_mapping(&mapping, 0).unwrap();
    let gates = Gates { gate, memory, bytes, does: COMES_WHEN_CALLED + if looks { LOOKS } else { 0 } };
    Target::of_pid(&Proc::default(), "found", pid).unwrap().with_gates(gates)
}

/// Controls two processes until it is killed, and prints each step.
fn control(mechanism: Mechanism, pids: &[i32; 2]) {
    let guard = Guard::start(program()).unwrap();
    println!("step guard");
    let mut controller = match make(mechanism, &settings("killed"), &guard) {
        Ok(controller) => controller,
        Err(error) => return println!("refused {error}"),
    };
    println!("step made");
    let slots = pids.map(|pid| {
        let slot = controller.add(&found(pid, mechanism == Mechanism::Doorbell)).unwrap();
        println!("step added");
        slot
    });
    controller.run(slots[0]).unwrap();
    loop {
        for (from, to) in [(0, 1), (1, 0)] {
            controller.switch(slots[from], slots[to]).unwrap();
            (0..20_000).for_each(|_| std::hint::spin_loop());
        }
    }
}

/// Prints the errors that a user without rights gets, with a daemon's program that it may run.
fn stranger(pid: i32, daemon: &Path) {
    let guard = Guard::start(daemon).unwrap();
    let target = Target::of_pid(&Proc::default(), "theirs", pid).unwrap();
    for mechanism in [Mechanism::Signal, Mechanism::Realtime, Mechanism::Freeze, Mechanism::Freezer] {
        let error = make(mechanism, &settings("stranger"), &guard).and_then(|mut controller| controller.add(&target).map(drop));
        println!("said {mechanism}: {}", error.unwrap_err());
    }
    let processes::Refused::OtherUser { .. } =
        make(Mechanism::Signal, &settings("stranger"), &guard).unwrap().add(&target).unwrap_err()
    else {
        panic!("the owner comes first");
    };
}

/// Starts a thread for each line of input.
fn make_threads() {
    println!("threads 0");
    for (n, _) in std::io::stdin().lines().enumerate() {
        let (started, starts) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            started.send(()).unwrap();
            loop {
                std::thread::park();
            }
        });
        starts.recv().unwrap();
        println!("threads {}", n + 1);
    }
}

/// Starts a child for each line of input, and prints its number.
fn make_children() {
    println!("waits");
    let mut children = Vec::new();
    for _ in std::io::stdin().lines() {
        let child = Command::new("/bin/sleep").arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        println!("child {}", child.id());
        children.push(child);
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
