//! A test stand for one NF: an arena, two rings, and a caller that sends bursts.
//!
//! The NF polls on its own core; the caller waits on another one. Returned descriptors are checked
//! as in use: a frame that was not in the burst, or a packet that leaves its frame, ends the
//! measurement.

mod offer;

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, Geometry, HEADROOM};
use sluice_shm::clock::{Clock, monotonic_ns, ticks};
use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::{Descriptor, Verdict};
use sluice_shm::handshake::{self, Welcome};
use sluice_shm::memory::SharedMemory;
use sluice_shm::page::{Control, Counter, Region, RegionLayout};
use sluice_shm::ring::{Consumer, Producer};

use super::subject::{EstimateError, PATIENCE, Subject};
use sluice_host::affinity::{self, Saved};
use sluice_host::attach::{AttachEvent, Attached, Listener};
use sluice_host::filter::Filter;
use sluice_host::process;
use sluice_host::spawn::{self, SpawnSpec, Spawned, Stdio};

pub use offer::{Offer, Sequence};

/// Bytes of the largest packet.
pub const ROOM: usize = 2048;
/// Frames: several bursts, so that a reused frame is cold, as in use.
const FRAMES: u32 = 1024;
const RING: u32 = 256;
/// Bursts that fit on a ring.
pub const MOST_BURSTS: usize = RING as usize / BURST;
/// Lines of an NF's output that are repeated when it ends.
const LAST_WORDS: usize = 10;
/// Polls of a ring between two checks of the clock and the process.
const LOOKS: u32 = 1 << 14;

static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::new);

/// Nanoseconds per tick of the time-stamp counter.
pub fn ns_per_tick() -> f64 {
    CLOCK.ns_per_tick()
}

/// Pins the calling thread to a core other than the NF's, until dropped.
#[derive(Debug)]
pub struct Pin(Saved);

impl Pin {
    /// Takes the first allowed core other than `core`.
    ///
    /// # Errors
    /// [`EstimateError::OneCore`], and errors of the kernel.
    pub fn away_from(core: usize) -> Result<Self, EstimateError> {
        let system = |what| move |source: affinity::AffinityError| EstimateError::System { what, source: io::Error::other(source) };
        let saved = Saved::of_this_thread().map_err(system("read the cores of this thread"))?;
        let other = saved.cores().into_iter().find(|other| *other != core).ok_or(EstimateError::OneCore { core })?;
        affinity::pin(other).map_err(system("take a core"))?;
        Ok(Self(saved))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = self.0.restore();
    }
}

/// A folder for the socket, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sluice-estimate-{}-{number}", std::process::id()));
        // Private and new: an existing folder is an error.
        fs::DirBuilder::new().mode(0o711).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Counters of the NF library's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled {
    busy_ns: u64,
    packets: u64,
}

impl Sampled {
    /// Nanoseconds per burst since an earlier reading; None without samples.
    pub fn burst_ns_since(&self, earlier: &Self) -> Option<u64> {
        let packets = self.packets.wrapping_sub(earlier.packets);
        let busy_ns = self.busy_ns.wrapping_sub(earlier.busy_ns);
        // The NF writes these numbers: any value must be safe.
        (packets > 0).then(|| (u128::from(busy_ns) * BURST as u128 / u128::from(packets)) as u64)
    }
}

/// Packets that go on the ring together.
pub struct RingLoad {
    descriptors: Vec<Descriptor>,
    first: u32,
}

impl RingLoad {
    /// A load of 1 to [`MOST_BURSTS`] bursts.
    pub fn new(bursts: usize) -> Self {
        Self { descriptors: vec![Descriptor::default(); bursts.clamp(1, MOST_BURSTS) * BURST], first: 0 }
    }
}

/// An NF that is measured. Its process ends with this.
pub struct Stand {
    process: Process,
    arena: Arena,
    region: Region,
    rx: Producer,
    tx: Consumer,
    frame: u32,
    /// Packets that were returned to be dropped.
    pub dropped: u64,
    _memory: (SharedMemory, SharedMemory, CorePage),
    _connection: Attached,
    _folder: Folder,
}

impl Stand {
    /// Starts an NF on `core`, and waits until it is ready.
    pub fn start(subject: &Subject, core: usize) -> Result<Self, EstimateError> {
        let system = |what: &'static str| move |source: io::Error| EstimateError::System { what, source };
        let other = |what: &'static str| move |error: &dyn std::fmt::Display| system(what)(io::Error::other(error.to_string()));
        let folder = Folder::new().map_err(system("make a folder for the NF's socket"))?;
        let path = folder.0.join("nf.sock");
        let log = folder.0.join("log");
        let mut listener = Listener::bind(&path, 0o666).map_err(|e| other("listen for the NF")(&e))?;
        let geometry = Geometry { first: 0, frames: FRAMES, stride: Geometry::stride_for(ROOM) as u32 };
        let (arena_memory, arena) = Arena::create(geometry, false).map_err(|e| other("make packet memory")(&e))?;
        let (core_memory, core_page) = CorePage::create(1, false).map_err(|e| other("make a core page")(&e))?;
        core_page.reset(0);
        let layout = RegionLayout::new(1, RING).expect("one ring of a valid capacity");
        let region = Region::create(layout).map_err(|e| other("make rings")(&e))?;

        let mut env = subject.env.clone();
        env.push((handshake::ENV_SOCKET.into(), path.into()));
        env.push((handshake::ENV_NF.into(), subject.name.clone().into()));
        env.extend(std::env::var_os("PATH").map(|path| ("PATH".into(), path)));
        let spec = SpawnSpec {
            args: subject.args.clone(),
            env,
            user: subject.user.clone(),
            cores: [core].into(),
            stdio: Stdio::Log(log.clone()),
            filter: Filter::Nf { storage: true, zygote: false },
            ..SpawnSpec::new(&subject.name, &subject.exec)
        };
        let mut process = Process { name: subject.name.clone(), spawned: spawn::spawn(&spec)?, ended: false, log };
        let deadline = monotonic_ns() + PATIENCE.as_nanos() as u64;
        let welcome = welcome(subject, core, geometry, layout);
        let connection = loop {
            let events = listener.serve(monotonic_ns()).map_err(|e| other("listen for the NF")(&e))?;
            let caller = events.into_iter().find_map(|event| match event {
                AttachEvent::Hello(caller) => Some(caller),
                AttachEvent::Dropped { .. } => None,
            });
            if let Some(caller) = caller {
                let fds = [arena_memory.fd(), region.memory.fd(), core_memory.fd()];
                break caller.welcome(&welcome, fds).map_err(|e| other("let the NF in")(&e))?;
            }
            process.wait("before it attached", deadline)?;
        };
        // Acquire: pairs with the NF's store, after which its setup is complete.
        while region.page.counter(Counter::Ready).load(Ordering::Acquire) != 1 {
            process.wait("before it was ready", deadline)?;
        }
        let (rx, tx) = (region.rx_producer(0).expect("there is one ring"), region.tx_consumer());
        Ok(Self {
            process,
            arena,
            region,
            rx,
            tx,
            frame: 0,
            dropped: 0,
            _memory: (arena_memory, core_memory, core_page),
            _connection: connection,
            _folder: folder,
        })
    }

    /// Writes the packets of a load into frames. `packet` gives the bytes of each.
    pub fn fill<'p>(&mut self, load: &mut RingLoad, packet: impl Fn(usize) -> &'p [u8]) {
        let packets = load.descriptors.len();
        load.first = if self.frame as usize + packets <= FRAMES as usize { self.frame } else { 0 };
        self.frame = load.first + packets as u32;
        for (i, descriptor) in load.descriptors.iter_mut().enumerate() {
            let bytes = packet(i);
            let frame = load.first + i as u32;
            assert!(self.arena.write(frame, HEADROOM as u16, bytes), "packets were checked to fit");
            *descriptor = Descriptor { frame, offset: HEADROOM as u16, len: bytes.len() as u16, ..Descriptor::default() };
        }
    }

    /// Puts a load on the ring, and waits until all of it is back.
    ///
    /// Returns ticks of the time-stamp counter since it was on the ring.
    ///
    /// # Errors
    /// [`EstimateError::Keeps`], [`EstimateError::Broken`] or [`EstimateError::Ended`].
    pub fn round(&mut self, load: &RingLoad) -> Result<u64, EstimateError> {
        let (first, packets) = (load.first, load.descriptors.len());
        let sent = self.rx.enqueue(&load.descriptors).map_err(|_| self.broken("a ring cursor is where it cannot be"))?;
        let began = ticks();
        if sent < packets {
            return Err(self.broken("its ring is full although all of its packets had come back"));
        }
        let mut back = [Descriptor::default(); MOST_BURSTS * BURST];
        let back = &mut back[..packets];
        let (mut returned, mut looks) = (0, 0u32);
        let mut deadline = None;
        while returned < packets {
            returned += self.tx.dequeue(&mut back[returned..]).map_err(|_| self.broken("a ring cursor is where it cannot be"))?;
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                self.process.check("while it had packets")?;
                let now = monotonic_ns();
                if now > *deadline.get_or_insert(now + PATIENCE.as_nanos() as u64) {
                    return Err(EstimateError::Keeps { name: self.process.name.clone(), returned, packets });
                }
            }
            std::hint::spin_loop();
        }
        let took = ticks().wrapping_sub(began);

        let mut seen = [false; MOST_BURSTS * BURST];
        for descriptor in back {
            let i = descriptor.frame.wrapping_sub(first) as usize;
            if i >= packets || std::mem::replace(&mut seen[i], true) {
                return Err(self.broken("it returned a frame that it did not have"));
            }
            if !self.arena.geometry().contains(descriptor.frame, descriptor.offset, descriptor.len) {
                return Err(self.broken("it returned a packet that leaves its frame"));
            }
            self.dropped += u64::from(descriptor.verdict == Verdict::Drop as u8);
        }
        Ok(took)
    }

    pub fn sampled(&self) -> Sampled {
        let word = |counter| self.region.page.counter(counter).load(Ordering::Relaxed);
        Sampled { busy_ns: word(Counter::BusyNs), packets: word(Counter::Sampled) }
    }

    fn broken(&self, what: &'static str) -> EstimateError {
        EstimateError::Broken { name: self.process.name.clone(), what }
    }

    /// Stops the NF and waits; kills it if it does not end in time.
    pub fn stop(self) -> Result<(), EstimateError> {
        // Release: nothing is posted after it.
        self.region.page.control(Control::Stop).store(1, Ordering::Release);
        let left = process::wait_readable(self.process.spawned.pidfd.as_fd(), Some(PATIENCE.as_millis() as u64));
        left.map(drop).map_err(|error| EstimateError::System { what: "wait for the NF", source: error.into() })
    }
}

/// The welcome message for an NF.
fn welcome(subject: &Subject, core: usize, geometry: Geometry, region: RegionLayout) -> Welcome {
    Welcome {
        geometry,
        region,
        slots: 1,
        slot: 0,
        hands_over: false,
        name: subject.name.clone(),
        core: core as u32,
        poll: true,
        linger_ns: 0,
        clock_scale: CLOCK.scale_raw(),
        ports: subject.names.ports.clone(),
        services: subject.names.services.clone(),
        chains: subject.names.chains.clone(),
    }
}

/// The NF's process, killed and reaped on drop.
struct Process {
    name: String,
    spawned: Spawned,
    ended: bool,
    /// Its standard output and error.
    log: PathBuf,
}

impl Process {
    /// Yields to it, unless it has ended or the deadline is over.
    fn wait(&mut self, when: &'static str, deadline_ns: u64) -> Result<(), EstimateError> {
        self.check(when)?;
        if monotonic_ns() > deadline_ns {
            return Err(EstimateError::Silent { name: self.name.clone() });
        }
        std::thread::yield_now();
        Ok(())
    }

    /// Fails if it has ended.
    fn check(&mut self, when: &'static str) -> Result<(), EstimateError> {
        match spawn::reap(&self.spawned) {
            Ok(None) => Ok(()),
            Ok(Some(exit)) => {
                self.ended = true;
                Err(EstimateError::Ended { name: self.name.clone(), how: exit.to_string(), when, said: self.last_words() })
            }
            Err(error) => Err(EstimateError::System { what: "look after the NF", source: error.into() }),
        }
    }

    /// The end of its output, each line indented below its message.
    fn last_words(&self) -> String {
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(LAST_WORDS)..].iter().map(|line| format!("\n  {line}")).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            let _ = process::send_signal(self.spawned.pidfd.as_fd(), Signal::KILL);
            let _ = process::wait(self.spawned.pidfd.as_fd());
        }
    }
}
