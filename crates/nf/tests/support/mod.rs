//! A fake manager: the other side of handshake and rings, driven by a test.
//!
//! Nothing here sleeps: waits poll, with a limit that only a hang reaches.

#![allow(dead_code)] // each test file uses its part

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use sluice_shm::arena::{Arena, Geometry, HEADROOM};
use sluice_shm::clock::Clock;
use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::handshake::{self, Answer, ENV_NF, ENV_SOCKET, Hello, Welcome};
use sluice_shm::memory::SharedMemory;
use sluice_shm::page::{Control, Counter, Region, RegionLayout};
use sluice_shm::ring::{Consumer, Producer};
use sluice_shm::zygote::{ENV_ZYGOTE, Fork, Surroundings, ZygoteReport};

/// Longer than anything takes that does not hang.
const HANG: Duration = Duration::from_secs(30);

/// Polls until `found` returns a value.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(started.elapsed() < HANG, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// The tenant's first frame; its arena is not the first one.
const FIRST_FRAME: u32 = 32_768;

/// How an NF is to run.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    pub rings: u32,
    pub capacity: u32,
    pub poll: bool,
    pub linger_ns: u32,
}

impl Default for Mode {
    fn default() -> Self {
        Self { rings: 2, capacity: 64, poll: false, linger_ns: 0 }
    }
}

/// The manager, with one core page of four slots.
pub struct Manager {
    folder: PathBuf,
    listener: OwnedFd,
    pub arena: Arena,
    arena_memory: SharedMemory,
    pub core: CorePage,
    core_memory: SharedMemory,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Manager {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sluice-nf-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(folder.join("nf.sock")).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let (arena_memory, arena) = Arena::create(Geometry { first: FIRST_FRAME, frames: 512, stride: 2240 }, false).unwrap();
        let (core_memory, core) = CorePage::create(4, true).unwrap();
        (0..4).for_each(|slot| core.reset(slot));
        Self { folder, listener, arena, arena_memory, core, core_memory }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts `command` as NF `ids.0`.
    pub fn spawn(&self, command: Command) -> Process {
        self.spawn_as("ids.0", command)
    }

    fn spawn_as(&self, name: &str, mut command: Command) -> Process {
        command.env(ENV_SOCKET, self.folder.join("nf.sock")).env(ENV_NF, name);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    /// Starts `command` as the zygote `ids.zygote`.
    pub fn spawn_zygote(&self, mut command: Command) -> Process {
        command.env(ENV_ZYGOTE, "1");
        self.spawn_as("ids.zygote", command)
    }

    /// Accepts the next process as a zygote.
    pub fn welcome_zygote(&self) -> Zygote {
        let (socket, hello) = self.hello();
        assert_eq!(hello, Hello { name: "ids.zygote".into(), is_zygote: true });
        let surroundings = Surroundings { name: hello.name, ports: ports(), services: services(), chains: chains() };
        handshake::send(socket.as_fd(), &surroundings.encode(), &[]).unwrap();
        Zygote { socket }
    }

    fn hello(&self) -> (OwnedFd, Hello) {
        let socket = accept_with(&self.listener, SocketFlags::CLOEXEC).unwrap();
        let (message, _) = handshake::receive(socket.as_fd()).unwrap();
        (socket, Hello::decode(&message).unwrap())
    }

    pub fn refuse(&self, why: &str) {
        let (socket, _) = self.hello();
        handshake::send(socket.as_fd(), &Answer::Refusal(why.into()).encode(), &[]).unwrap();
    }

    /// Accepts the next NF, into `slot`, and waits until it is ready.
    pub fn welcome(&self, slot: u32, mode: Mode) -> Nf<'_> {
        let nf = self.accept_with(slot, mode);
        wait_for("the NF to be ready", || (nf.count(Counter::Ready) == 1).then_some(()));
        nf
    }

    pub fn accept(&self, slot: u32) -> Nf<'_> {
        self.accept_with(slot, Mode::default())
    }

    fn accept_with(&self, slot: u32, mode: Mode) -> Nf<'_> {
        let (socket, hello) = self.hello();
        assert!(hello.name.starts_with("ids.") && !hello.is_zygote, "{hello:?}");
        let name = hello.name.clone();
        let layout = RegionLayout::new(mode.rings, mode.capacity).unwrap();
        let region = Region::create(layout).unwrap();
        let welcome = Welcome {
            geometry: self.arena.geometry(),
            region: layout,
            slots: self.core.slots(),
            slot,
            hands_over: self.core.hands_over(),
            name: hello.name,
            core: u32::MAX,
            poll: mode.poll,
            linger_ns: mode.linger_ns,
            clock_scale: Clock::new().scale_raw(),
            ports: ports(),
            services: services(),
            chains: chains(),
        };
        let fds = [self.arena_memory.fd(), region.memory.fd(), self.core_memory.fd()];
        handshake::send(socket.as_fd(), &Answer::Welcome(Box::new(welcome)).encode(), &fds).unwrap();
        let rx = (0..mode.rings).map(|ring| region.rx_producer(ring).unwrap()).collect();
        let tx = region.tx_consumer();
        Nf { manager: self, name, region, rx, tx, slot, frame: FIRST_FRAME + slot * 128, socket: Some(socket) }
    }
}

fn ports() -> Vec<String> {
    vec!["lan".into(), "wan".into()]
}

fn services() -> Vec<String> {
    vec![String::new(), String::new(), "ids".into()]
}

fn chains() -> Vec<String> {
    vec!["out".into()]
}

/// The manager's end of a zygote.
pub struct Zygote {
    socket: OwnedFd,
}

impl Zygote {
    /// Its next report; None when it has closed its end.
    pub fn report(&self) -> Option<ZygoteReport> {
        self.report_with().map(|(report, _)| report)
    }

    /// The same, with the files that came with it.
    fn report_with(&self) -> Option<(ZygoteReport, Vec<OwnedFd>)> {
        let (message, fds) = handshake::receive(self.socket.as_fd()).ok()?;
        Some((ZygoteReport::decode(&message).unwrap(), fds))
    }

    /// Requests an instance.
    pub fn ask(&self, name: &str) {
        handshake::send(self.socket.as_fd(), &Fork { name: name.into() }.encode(), &[]).unwrap();
    }

    /// Waits until a requested instance is forked, and returns its process.
    pub fn forked(&self, expected: &str) -> Child {
        match self.report_with() {
            Some((ZygoteReport::Forked { name, pid }, fds)) if name == expected => {
                let [pidfd] = &fds[..] else { panic!("{} files came with it", fds.len()) };
                let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
                assert!(info.lines().any(|line| line == format!("Pid:\t{pid}")), "{info}");
                Child::from_pid(pid)
            }
            other => panic!("{expected} is not forked: {other:?}"),
        }
    }
}

/// A process that a zygote has forked: a child of this one.
pub struct Child {
    pub pid: rustix::process::Pid,
    ended: bool,
}

impl Child {
    fn from_pid(pid: i32) -> Self {
        Self { pid: rustix::process::Pid::from_raw(pid).unwrap(), ended: false }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid, signal).unwrap();
    }

    /// Waits for its end: its exit status, or None if it was killed.
    pub fn end(&mut self) -> Option<i32> {
        let options = rustix::process::WaitOptions::empty();
        let (_, status) = rustix::process::waitpid(Some(self.pid), options).unwrap().expect("it was waited for");
        self.ended = true;
        status.exit_status()
    }

    pub fn status(&self, key: &str) -> String {
        status_of(self.pid.as_raw_nonzero().get().cast_unsigned(), key)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(rustix::process::Signal::KILL);
            self.end();
        }
    }
}

/// A line of a process's status below /proc.
pub fn status_of(pid: u32, key: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key} in {status}")).trim().to_owned()
}

/// The manager's end of one NF.
pub struct Nf<'m> {
    manager: &'m Manager,
    pub name: String,
    pub region: Region,
    rx: Vec<Producer>,
    tx: Consumer,
    slot: u32,
    frame: u32,
    socket: Option<OwnedFd>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Back {
    pub verdict: u8,
    pub arg: u16,
    pub bytes: Vec<u8>,
}

impl Nf<'_> {
    pub fn count(&self, counter: Counter) -> u64 {
        self.region.page.counter(counter).load(Ordering::Acquire)
    }

    pub fn control(&self, word: Control, value: u32) {
        self.region.page.control(word).store(value, Ordering::Release);
    }

    /// Puts packets on an rx ring, without waking the NF. They entered at port 1, chain 0.
    pub fn post(&mut self, ring: usize, packets: &[&[u8]]) {
        let core = &self.manager.core;
        let descriptors: Vec<_> = packets
            .iter()
            .zip(self.frame..)
            .map(|(bytes, frame)| {
                assert!(self.manager.arena.write(frame, HEADROOM as u16, bytes));
                // The verdict is that of the last hop: the library clears it.
                Descriptor { frame, offset: HEADROOM as u16, len: bytes.len() as u16, verdict: 3, ingress: 1, ..Default::default() }
            })
            .collect();
        // All at once, so that the NF sees none of them or all.
        assert_eq!(self.rx[ring].enqueue(&descriptors), Ok(packets.len()), "the ring has room");
        self.frame += packets.len() as u32;
        core.posted(self.slot).fetch_add(packets.len() as u32, Ordering::Release);
        core.set_pending(self.slot, sluice_shm::clock::monotonic_ns());
    }

    pub fn wake(&self) {
        self.manager.core.wake(self.slot);
    }

    /// Posts packets on the first ring and wakes the NF.
    pub fn send(&mut self, packets: &[&[u8]]) {
        self.post(0, packets);
        self.wake();
    }

    /// Waits for the next returned packet. Does not wake the NF.
    pub fn one(&mut self) -> Back {
        let tx = &mut self.tx;
        let mut out = [Descriptor::default()];
        wait_for("a packet to come back", || (tx.dequeue(&mut out).unwrap() == 1).then_some(()));
        let [descriptor] = out;
        let mut bytes = vec![0; descriptor.len as usize];
        assert!(self.manager.arena.read(descriptor.frame, descriptor.offset, &mut bytes));
        Back { verdict: descriptor.verdict, arg: descriptor.arg, bytes }
    }

    /// Waits for `n` packets, waking the NF when it sleeps with packets, as the manager does.
    pub fn collect(&mut self, n: usize) -> Vec<Back> {
        (0..n)
            .map(|_| {
                wait_for("packets", || {
                    let waiting = self.tx.available().unwrap() > 0;
                    if !waiting && self.manager.core.waiting(self.slot) > 0 {
                        self.wake();
                    }
                    waiting.then_some(())
                });
                self.one()
            })
            .collect()
    }

    /// Starts again with the first frame: all have come back.
    pub fn reuse_frames(&mut self) {
        self.frame = FIRST_FRAME + self.slot * 128;
    }

    pub fn is_asleep(&self) -> bool {
        self.manager.core.asleep(self.slot).load(Ordering::Acquire) == 1
    }

    pub fn waiting(&self) -> u32 {
        self.manager.core.waiting(self.slot)
    }

    pub fn hang_up(&mut self) {
        self.socket = None;
    }
}

pub struct Process {
    child: std::process::Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    /// The next line that it prints, without its end; empty when its output is closed.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end. Returns its status, its remaining output, and its stderr.
    pub fn end(&mut self) -> (ExitStatus, String, String) {
        let status = wait_for("the NF to end", || self.child.try_wait().unwrap());
        let (mut out, mut err) = (String::new(), String::new());
        self.lines.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (status, out, err)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of build outputs, such as `target/debug`.
pub fn outputs() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_owned()
}

/// The test NF, in a style. `cargo test` builds it; a single test may not find it.
pub fn test_nf(style: &str) -> Command {
    let program = outputs().join("examples/test_nf");
    assert!(program.exists(), "run `cargo test -p sluice-nf` as a whole, or `cargo build -p sluice-nf --examples` first");
    let mut command = Command::new(program);
    command.arg(style);
    command
}
