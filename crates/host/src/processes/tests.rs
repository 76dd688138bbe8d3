//! Tests of the controllers on a fake file system, with a guard played by the test.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_shm::gate::{COMES_WHEN_CALLED, LOOKS};
use sluice_shm::handshake;
use sluice_shm::page::{Counter, Region, RegionLayout};

use super::guard::{Guard, Message};
use super::undo::{HostOps, Undo};
use super::*;
use crate::cgroup::Version;
use crate::process::Proc;

/// An idle process that ends with its test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("/bin/sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn state(&self) -> char {
        Proc::default().stat(rustix::process::Pid::from_raw(self.pid()).unwrap()).unwrap().state
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tree with processes in the cgroup `home`.
struct Fake {
    root: tempfile::TempDir,
    version: Version,
    settings: Settings,
}

fn make_cgroup(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    for (file, text) in [("cgroup.procs", ""), ("cgroup.freeze", "0\n"), ("freezer.state", "THAWED\n"), ("cpu.weight", "100\n")] {
        fs::write(folder.join(file), text)?;
    }
    Ok(())
}

impl Fake {
    fn new(version: Version) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (point, line) = match version {
            Version::V1 => ("sys/fs/cgroup/freezer", "cgroup cgroup rw,freezer"),
            Version::V2 => ("sys/fs/cgroup", "cgroup2 cgroup2 rw"),
        };
        let own = root.path().join("proc/self");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(root.path().join(point).parent().unwrap()).unwrap();
        make_cgroup(&root.path().join(point)).unwrap();
        make_cgroup(&root.path().join(point).join("home")).unwrap();
        fs::write(own.join("mountinfo"), format!("31 27 0:22 / /{point} rw,relatime - {line}\n")).unwrap();
        let host = HostOps { make: make_cgroup, remove: |folder| fs::remove_dir_all(folder), ..HostOps::at(root.path()) };
        let settings = Settings { root: root.path().into(), fake: Some(host), ..Settings::new("sluice-1-core1") };
        let fake = Self { root, version, settings };
        fs::write(own.join("cgroup"), fake.member("/home")).unwrap();
        fake
    }

    fn member(&self, cgroup: &str) -> String {
        match self.version {
            Version::V1 => format!("6:freezer:{cgroup}\n1:cpu:/x\n"),
            Version::V2 => format!("0::{cgroup}\n"),
        }
    }

    /// Shows a process of the real host in the tree.
    fn show(&self, pid: i32, cgroup: &str) -> Proc {
        let folder = self.root.path().join(format!("proc/{pid}"));
        fs::create_dir_all(folder.join(format!("task/{pid}"))).unwrap();
        for file in ["stat", "status"] {
            fs::copy(format!("/proc/{pid}/{file}"), folder.join(file)).unwrap();
        }
        fs::write(folder.join("cgroup"), self.member(cgroup)).unwrap();
        self.settings.host().proc
    }

    fn home(&self) -> PathBuf {
        self.root.path().join(match self.version {
            Version::V1 => "sys/fs/cgroup/freezer/home",
            Version::V2 => "sys/fs/cgroup/home",
        })
    }

    fn controller(&self, guard: &Arc<Guard>) -> Result<Box<dyn Controller>, Refused> {
        let mechanism = if self.version == Version::V1 { Mechanism::Freezer } else { Mechanism::Freeze };
        make(mechanism, &self.settings, guard)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.home().join("sluice-1-core1/nf").join(file)).unwrap()
    }
}

/// A guard played by the holder of the socket.
fn guard() -> (Arc<Guard>, OwnedFd) {
    let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (Arc::new(Guard::over(own)), theirs)
}

/// The next message to the guard.
fn reported(socket: &OwnedFd) -> Message {
    serde_json::from_slice(&handshake::receive(socket.as_fd()).unwrap().0).unwrap()
}

fn undo(message: Message) -> Undo {
    match message {
        Message::Note(_, undo) => undo,
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_are_read_and_written() {
    for mechanism in Mechanism::ALL {
        assert_eq!(mechanism.to_string().parse(), Ok(mechanism));
        assert_eq!(serde_json::to_string(&mechanism).unwrap(), format!("\"{mechanism}\""));
    }
    let error = "rt".parse::<Mechanism>().unwrap_err().to_string();
    assert!(Mechanism::ALL.iter().all(|mechanism| error.contains(mechanism.name())), "{error}");
}

#[test]
fn both_freezers_write_what_the_kernel_reads_and_move_processes_back() {
    for (version, file, [stop, go]) in
        [(Version::V1, "freezer.state", ["FROZEN", "THAWED"]), (Version::V2, "cgroup.freeze", ["1", "0"])]
    {
        let (fake, sleeper) = (Fake::new(version), Sleeper::start());
        let (guard, socket) = guard();
        let mut controller = fake.controller(&guard).unwrap();
        let folder = fake.home().join("sluice-1-core1");
        assert_eq!(undo(reported(&socket)), Undo::Remove { folder: folder.clone() });
        let proc = fake.show(sleeper.pid(), "/home");
        let target = Target::of_pid(&proc, "nf", sleeper.pid()).unwrap();
        let slot = controller.add(&target).unwrap();
        assert_eq!((fake.read(file).trim_end(), fake.read("cgroup.procs")), (stop, sleeper.pid().to_string()));
        let text = go.to_string();
        let want =
            Undo::Thaw { folder: folder.join("nf"), file: file.into(), text, made: true, home: fake.home(), elsewhere: vec![] };
        assert_eq!(undo(reported(&socket)), want);
        controller.run(slot).unwrap();
        // A shorter text overwrites a longer one; only a fake shows the rest.
        assert!(fake.read(file).starts_with(go));
        controller.park(slot).unwrap();
        assert!(fake.read(file).starts_with(stop));
        let weighs = controller.set_weight(slot, 0.25).unwrap();
        assert_eq!(weighs, version == Version::V2);
        if weighs {
            assert_eq!(fake.read("cpu.weight").trim_end(), "2500");
        }
        assert!(matches!(controller.add(&target), Err(Refused::Taken { .. })));
        controller.before_kill(slot).unwrap();
        assert!(fake.read(file).starts_with(if version == Version::V1 { go } else { stop }));
        controller.remove(slot).unwrap();
        assert!(!folder.join("nf").exists());
        assert_eq!(fs::read_to_string(fake.home().join("cgroup.procs")).unwrap(), sleeper.pid().to_string());
        assert_eq!(reported(&socket), Message::Forget(1));
        assert_eq!(controller.run(slot), Err(Failed::NoSuchSlot(slot)));
        assert_eq!(controller.teardown(), []);
        assert!(!folder.exists());
        assert_eq!(reported(&socket), Message::Forget(0));
    }
}

#[test]
fn a_cgroup_of_its_own_is_frozen_as_it_is_and_left_as_it_was() {
    let (fake, sleeper) = (Fake::new(Version::V2), Sleeper::start());
    let (guard, _socket) = guard();
    let proc = fake.show(sleeper.pid(), "/home/own");
    let own = fake.home().join("own");
    make_cgroup(&own).unwrap();
    fs::write(own.join("cgroup.procs"), sleeper.pid().to_string()).unwrap();
    let target = Target::of_pid(&proc, "nf", sleeper.pid()).unwrap().in_cgroup(&own);
    assert_eq!((target.members().len(), target.cgroup()), (1, Some(own.as_path())));
    let mut controller = fake.controller(&guard).unwrap();
    let slot = controller.add(&target).unwrap();
    let state = || fs::read_to_string(own.join("cgroup.freeze")).unwrap();
    assert!(state().starts_with('1'));
    assert!(!controller.set_weight(slot, 0.25).unwrap(), "others give it its weight");
    controller.remove(slot).unwrap();
    assert_eq!(state(), "0");
    let slot = controller.add(&target.weighed_there()).unwrap();
    assert!(controller.set_weight(slot, 0.25).unwrap());
    let weight = || fs::read_to_string(own.join("cpu.weight")).unwrap();
    assert_eq!(weight().trim_end(), "2500");
    controller.remove(slot).unwrap();
    assert!(weight().starts_with("100"), "it has its former weight: {}", weight());
    assert!(own.exists());
    drop(controller);
    assert!(!fake.home().join("sluice-1-core1").exists());
}

#[test]
fn a_host_without_the_hierarchy_says_so_and_nothing_is_made() {
    let (guard, _socket) = guard();
    let (v1, v2) = (Fake::new(Version::V1), Fake::new(Version::V2));
    let freeze = make(Mechanism::Freeze, &v1.settings, &guard).err().unwrap();
    assert!(matches!(freeze, Refused::NotHere { mechanism: Mechanism::Freeze, .. }), "{freeze}");
    let freezer = make(Mechanism::Freezer, &v2.settings, &guard).err().unwrap();
    assert!(freezer.to_string().contains("version 1"), "{freezer}");
    // A foreign folder is not touched.
    make_cgroup(&v2.home().join("sluice-1-core1")).unwrap();
    let taken = v2.controller(&guard).err().unwrap();
    assert!(taken.to_string().contains("exists already"), "{taken}");
    assert!(v2.home().join("sluice-1-core1").exists());
}

#[test]
fn a_process_that_cannot_be_moved_stays_as_it_was() {
    let (fake, mut sleeper) = (Fake::new(Version::V2), Sleeper::start());
    let (guard, socket) = guard();
    let mut controller = fake.controller(&guard).unwrap();
    let proc = fake.show(sleeper.pid(), "/home");
    let target = Target::of_pid(&proc, "nf", sleeper.pid()).unwrap();
    sleeper.kill();
    assert!(matches!(controller.add(&target), Err(Refused::NoProcess { .. })));
    assert!(!fake.home().join("sluice-1-core1/nf").exists());
    assert!(matches!(reported(&socket), Message::Note(0, _)));
    assert!(matches!((reported(&socket), reported(&socket)), (Message::Note(1, _), Message::Forget(1))));
}

#[test]
fn a_dead_guard_refuses_before_anything_is_changed() {
    let (fake, sleeper) = (Fake::new(Version::V2), Sleeper::start());
    let (guard, socket) = guard();
    let proc = fake.show(sleeper.pid(), "/home");
    let target = Target::of_pid(&proc, "nf", sleeper.pid()).unwrap();
    let mut freeze = fake.controller(&guard).unwrap();
    let mut signal = make(Mechanism::Signal, &fake.settings, &guard).unwrap();
    assert!(guard.is_alive());
    drop(socket);
    assert!(!guard.is_alive());
    for controller in [&mut freeze, &mut signal] {
        assert!(matches!(controller.add(&target), Err(Refused::NoGuard(_))));
    }
    assert!(!fake.home().join("sluice-1-core1/nf").exists());
    assert_ne!(sleeper.state(), 'T', "it was not stopped");
}

#[test]
fn a_stopped_process_is_continued_by_the_guards_orders() {
    let sleeper = Sleeper::start();
    let (guard, socket) = guard();
    let settings = Settings::new("unused");
    let mut controller = make(Mechanism::Signal, &settings, &guard).unwrap();
    let target = Target::of_pid(&Proc::default(), "nf", sleeper.pid()).unwrap();
    controller.add(&target).unwrap();
    let wait_for = |state: char| {
        while sleeper.state() != state {
            std::thread::yield_now();
        }
    };
    wait_for('T');
    // As the guard would.
    let told = undo(reported(&socket));
    for _ in 0..2 {
        told.perform(&settings.host(), None).unwrap();
        wait_for('S');
    }
    drop(controller);
    assert_eq!(sleeper.state(), 'S');
}

#[test]
fn a_gate_is_opened_by_the_guards_orders() {
    let (sleeper, region) = (Sleeper::start(), Region::create(RegionLayout::new(1, 8).unwrap()).unwrap());
    let (guard, socket) = guard();
    let settings = Settings::new("unused");
    let mut controller = make(Mechanism::Doorbell, &settings, &guard).unwrap();
    let target = |does: u64| {
        region.page.counter(Counter::Gate).store(does, std::sync::atomic::Ordering::Release);
        Target::of_pid(&Proc::default(), "nf", sleeper.pid()).unwrap().with_gates(Gates::of(&region).unwrap())
    };
    for does in [0, COMES_WHEN_CALLED] {
        assert!(matches!(controller.add(&target(does)), Err(Refused::NotOurs { .. })));
    }
    let slot = controller.add(&target(LOOKS)).unwrap();
    assert!(region.page.gate().is_closed());
    let (bytes, fds) = handshake::receive(socket.as_fd()).unwrap();
    let told = undo(serde_json::from_slice(&bytes).unwrap());
    told.perform(&settings.host(), Some(fds[0].as_fd())).unwrap();
    assert!(!region.page.gate().is_closed());
    controller.park(slot).unwrap();
    assert!(region.page.gate().is_closed());
    controller.run(slot).unwrap();
    assert!(!region.page.gate().is_closed());
    controller.park(slot).unwrap();
    drop(controller);
    assert!(!region.page.gate().is_closed());
    // Without a handler the signal would kill it.
    let mut gate = make(Mechanism::Gate, &settings, &guard).unwrap();
    assert!(matches!(gate.add(&target(LOOKS)), Err(Refused::NotOurs { .. })));
}

#[test]
fn the_rules_for_real_time_classes_are_read_where_the_root_says() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("proc/sys/kernel");
    fs::create_dir_all(&folder).unwrap();
    let settings = Settings { root: root.path().into(), ..Settings::new("x") };
    let set = |text: &str| fs::write(folder.join("sched_rt_runtime_us"), text).unwrap();
    set("950000\n");
    let warnings = realtime::warnings(&settings);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("takes 50 ms of each 1000 ms"), "{}", warnings[0]);
    set("-1\n");
    assert!(realtime::warnings(&settings).is_empty());
    // Under both mechanisms a parked process does not end, whatever the kernel's rules are.
    let outlive = Mechanism::ALL.into_iter().filter_map(|mechanism| Some((mechanism, mechanism.outlives_a_kill()?)));
    let outlive: Vec<(Mechanism, &str)> = outlive.collect();
    assert_eq!(outlive.iter().map(|(mechanism, _)| *mechanism).collect::<Vec<_>>(), [Mechanism::Realtime, Mechanism::Freezer]);
    assert!(outlive.iter().all(|(_, why)| why.contains("`kill -9` takes effect in its next turn")), "{outlive:?}");
    set("0\n");
    let (guard, _socket) = guard();
    let error = make(Mechanism::Realtime, &settings, &guard).err().unwrap();
    assert!(matches!(error, Refused::NotHere { .. }), "{error}");
    set("-1\n");
    for (low, high) in [(0, 5), (5, 5), (6, 5), (90, 98)] {
        let settings = Settings { low, high, ..settings.clone() };
        assert!(matches!(make(Mechanism::Realtime, &settings, &guard), Err(Refused::NotHere { .. })));
    }
}

#[test]
fn what_is_reported_of_many_threads_is_cut_into_messages() {
    use super::attr::Attr;
    use crate::process::Identity;
    let (guard, socket) = guard();
    let attr = Attr::of(0).unwrap();
    let process = Identity { pid: 7, start: 1 };
    let threads = (7..1007).map(|tid| (tid, attr)).collect();
    let all = Undo::Classes { process, threads, others: Some(attr) };
    let note = guard.note(&[all], None).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        match undo(reported(&socket)) {
            Undo::Classes { threads, others, .. } => {
                // Only the first may name the newcomers' class: it also sets the others' threads.
                assert_eq!(others.is_some(), seen.is_empty());
                seen.extend(threads.into_keys());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, (7..1007).collect::<Vec<_>>());
    guard.forget(&note);
    assert_eq!(reported(&socket), Message::Forget(0));
}
