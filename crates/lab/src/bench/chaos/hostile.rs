//! An NF that breaks the rules, for runs and tests that check its effect on others.
//!
//! It attaches like any NF, and accesses shared memory directly, without the NF library. `fork` and
//! `reach` report each attempt on standard output, as `hostile: WHAT = ok` or an error.

// It attacks by system calls.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sluice_shm::core_page::{self, CorePage};
use sluice_shm::descriptor::Descriptor;
use sluice_shm::handshake::{self, Hello};
use sluice_shm::memory::Mapping;
use sluice_shm::page::{Attached, Counter};
use sluice_shm::zygote::{self, ZygoteReport};
use sluice_shm::{BURST, ring};

use super::attacks::{ATTACKS, AttackingNf, take};

/// Modes, and what each does.
pub const MODES: [(&str, &str); 20] = [
    ("random", "returns descriptors of random frames, offsets, lengths and verdicts"),
    ("replay", "returns every descriptor three times"),
    ("cursors", "writes random cursors to its rings"),
    ("lengths", "returns its frames with lengths and offsets past their ends"),
    ("deaf", "never reads its rx rings"),
    ("mute", "reads, and never returns a frame"),
    ("scribble", "overwrites its region and the core page with noise"),
    ("page", "overwrites the core page alone with noise"),
    ("slow", "sleeps for 10 ms before it returns a burst"),
    ("unready", "attaches, and never says that it is ready"),
    ("eager", "says again and again that it is ready"),
    ("liar", "as a zygote says that it has forked and failed to fork what it was not asked for; as an NF behaves"),
    ("quit", "ends as soon as it has a packet"),
    ("panic", "panics over its first packet"),
    ("hangup", "empties, shuts down and clogs its standard streams when it has a packet, and ends"),
    (OVERWRITE, "returns its packets, and meanwhile writes noise over all of its tenant's packet memory and makes holes in it"),
    (
        EVERYTHING,
        "writes noise over all that it has mapped, by several processes, and makes holes there; returns its packets meanwhile",
    ),
    ("fork", "leaves a process behind that has left its group and session and keeps all memory"),
    ("swarm", "forks as often as it may, and all of these processes spin"),
    ("reach", "tries what the host should deny it: other cores and classes, holes, other processes, namespaces, io_uring"),
];

/// Further modes, each of which tests a single fence.
pub const TRIALS: [(&str, &str); 4] = [
    ("herd", "has forked processes that spin before it says that it is there"),
    ("chain", "has a process that forks another one and ends, again and again for a while, before it says that it is there"),
    ("siblings", "clones processes that are the daemon's children, and end at once"),
    ("hoard", "takes half a gigabyte of memory"),
];

/// The mode that overwrites packets of its tenant, which NFs of one tenant share by design.
pub const OVERWRITE: &str = "overwrite";
/// `OVERWRITE`, and noise over its region and the core page.
pub const EVERYTHING: &str = "everything";
/// The modes that alter packets of their tenant.
pub const ALTER: [&str; 2] = [OVERWRITE, EVERYTHING];
/// Processes that `everything` forks, each of which does the same.
const HELPERS: usize = 4;
/// Processes of `herd`.
const HERD: usize = 32;
/// Processes of `chain`, one after another.
const LINKS: usize = 20_000;
/// Bytes that `hoard` allocates.
const HOARD: usize = 512 << 20;
/// An option of `prctl`, since Linux 5.14.
const PR_SCHED_CORE: libc::c_long = 62;
/// Bytes that `overwrite` writes between two polls of its rings.
const STRIDE: usize = 1 << 16;

/// Reproducible noise: xorshift.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn scribble(over: &Mapping, noise: &mut Noise) {
    for word in (0..over.len()).step_by(4).filter_map(|offset| over.atomic_u32(offset)) {
        word.store(noise.next() as u32, Ordering::Relaxed);
    }
}

fn say(what: &str, result: i64) {
    match result {
        -1 => println!("hostile: {what} = {}", std::io::Error::last_os_error()),
        _ => println!("hostile: {what} = ok"),
    }
}

/// Damages its standard streams for every process that shares them.
fn hang_up() {
    for stream in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: the calls take numbers, and a buffer that lives.
        unsafe {
            libc::ftruncate(stream, 0);
            libc::fcntl(stream, libc::F_SETFL, libc::O_NONBLOCK);
            let noise = [b'x'; 4096];
            // Any pipe is full after this; a file takes it all.
            for _ in 0..256 {
                libc::write(stream, noise.as_ptr().cast(), noise.len());
            }
            libc::shutdown(stream, libc::SHUT_RDWR);
        }
    }
}

/// Leaves a grandchild behind.
fn fork() {
    // SAFETY: this process has one thread; the children call what a forked process may.
    unsafe {
        if libc::fork() == 0 {
            libc::setsid();
            if libc::fork() == 0 {
                println!("hostile: forked = ok");
                loop {
                    libc::pause();
                }
            }
            libc::_exit(0);
        }
    }
}

/// Tries to reach what does not belong to it.
fn reach(memories: [(&str, BorrowedFd<'_>); 3]) {
    // SAFETY: each call gets valid arguments; its effect on this process, if allowed, is what is
    // tested.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        (0..2).for_each(|core| libc::CPU_SET(core, &mut cores));
        say("all cores", libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores).into());
        for (name, class) in [("fifo", libc::SCHED_FIFO), ("rr", libc::SCHED_RR)] {
            let param = libc::sched_param { sched_priority: 50 };
            say(name, libc::sched_setscheduler(0, class, &raw const param).into());
        }
        say("nice", libc::setpriority(libc::PRIO_PROCESS, 0, -20).into());
        for (name, memory) in memories {
            let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            say(&format!("hole in {name}"), libc::fallocate(memory.as_raw_fd(), punch, 0, 4096).into());
            let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let at = libc::mmap(std::ptr::null_mut(), 4096, protection, shared, memory.as_raw_fd(), 0);
            if at != libc::MAP_FAILED {
                say(&format!("remove in {name}"), libc::madvise(at, 4096, libc::MADV_REMOVE).into());
            }
        }
        say("user namespace", libc::unshare(libc::CLONE_NEWUSER).into());
        let flags = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
        let cloned =
            libc::syscall(libc::SYS_clone, flags, 0 as libc::c_long, 0 as libc::c_long, 0 as libc::c_long, 0 as libc::c_long);
        if cloned == 0 {
            libc::_exit(0);
        }
        say("user namespace by clone", cloned);
        say("sibling", sibling());
        // A core-scheduling cookie, which keeps other processes off the sibling threads of its
        // core.
        let (this, none) = (1 as libc::c_long, 0 as libc::c_long);
        say("core scheduling", libc::syscall(libc::SYS_prctl, PR_SCHED_CORE, this, none, none, none));
        // What would make a doorbell deaf: a lock with priority inheritance, and many waits.
        let mut word = 0u32;
        say("lock", libc::syscall(libc::SYS_futex, &raw mut word, libc::FUTEX_LOCK_PI, 0 as libc::c_long, none));
        let waits = [[1u64, (&raw const word) as u64, 2]; 4];
        say("four waits", libc::syscall(libc::SYS_futex_waitv, waits.as_ptr(), 4 as libc::c_long, none, none, none));
        let mut params = [0u8; 256];
        say("io_uring", libc::syscall(libc::SYS_io_uring_setup, 4 as libc::c_long, params.as_mut_ptr()));
    }
    // Other processes, by the host's numbers, which /proc shows.
    let own = std::fs::read_link("/proc/self").unwrap_or_default();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_process = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if is_process && own.as_os_str() != name && comm.starts_with("sluice") {
            let memory = std::fs::OpenOptions::new().read(true).write(true).open(entry.path().join("mem"));
            println!("hostile: memory of {} = {}", comm.trim(), memory.err().map_or("ok".into(), |error| error.to_string()));
        }
    }
    println!("hostile: done");
}

/// Creates a child of its own parent, which ends at once. Returns -1, or the child's number.
fn sibling() -> i64 {
    let (flags, none) = (libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD), 0 as libc::c_long);
    // SAFETY: as `fork`, and this process has one thread; the child calls what a forked process
    // may.
    unsafe {
        let cloned = libc::syscall(libc::SYS_clone, flags, none, none, none, none);
        if cloned == 0 {
            libc::_exit(0);
        }
        cloned
    }
}

/// Forks children that spin.
fn herd() {
    for _ in 0..HERD {
        // SAFETY: this process has one thread; the child computes and nothing else.
        if unsafe { libc::fork() } == 0 {
            loop {
                std::hint::spin_loop();
            }
        }
    }
}

/// Leaves a process that forks its successor and ends, `LINKS` times; the last process stays.
fn chain() {
    // SAFETY: this process has one thread; the children call what a forked process may.
    unsafe {
        if libc::fork() == 0 {
            for _ in 0..LINKS {
                if libc::fork() > 0 {
                    libc::_exit(0);
                }
            }
            loop {
                libc::pause();
            }
        }
    }
}

/// Forks as many children as it may, which use all the time they get.
fn swarm() {
    loop {
        // SAFETY: this process has one thread; the child computes and nothing else.
        match unsafe { libc::fork() } {
            0 => loop {
                std::hint::spin_loop();
            },
            -1 => return,
            _ => {}
        }
    }
}

/// Acts as a zygote that sends false reports, without end.
fn lie(socket: &OwnedFd, name: &str) -> anyhow::Result<()> {
    zygote::attach(socket, name)?;
    let say = |report: ZygoteReport| handshake::send(socket.as_fd(), &report.encode(), &[]);
    say(ZygoteReport::Ready)?;
    loop {
        // 1 is the first process of its namespace; 2 may be a sibling.
        for pid in [1, 2] {
            say(ZygoteReport::Forked { name: String::new(), pid })?;
        }
        say(ZygoteReport::Failed { name: "sluiced".into(), why: "\nsluiced: has ended\n".repeat(100) })?;
        say(ZygoteReport::Ready)?;
    }
}

/// Punches the memory out from under a mapping, where that is allowed.
fn punch(file: BorrowedFd<'_>, bytes: usize) {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = fallocate(file, hole, 0, bytes as u64);
    // SAFETY: a private use of a new mapping, which nothing else accesses.
    unsafe {
        let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = libc::mmap(std::ptr::null_mut(), bytes, protection, shared, file.as_raw_fd(), 0);
        if at != libc::MAP_FAILED {
            libc::madvise(at, bytes, libc::MADV_REMOVE);
            libc::munmap(at, bytes);
        }
    }
}

/// Forks up to `HELPERS` children that do the same to these memories for ever.
fn help(memories: &[(BorrowedFd<'_>, &Mapping)]) {
    for helper in 1..=HELPERS as u64 {
        // SAFETY: this process has one thread; the child writes to its mappings and makes system
        // calls.
        match unsafe { libc::fork() } {
            0 => {
                let mut noise = Noise(0x5eed_5eed_5eed_5eed ^ helper);
                loop {
                    spoil(memories, &mut noise, || {});
                }
            }
            -1 => return,
            _ => {}
        }
    }
}

/// Writes noise over all of these memories, and punches holes in them. Calls `between` after every
/// few words.
fn spoil(memories: &[(BorrowedFd<'_>, &Mapping)], noise: &mut Noise, mut between: impl FnMut()) {
    for (file, memory) in memories {
        for offset in (0..memory.len()).step_by(4) {
            if offset.is_multiple_of(STRIDE) {
                between();
            }
            memory.atomic_u32(offset).into_iter().for_each(|word| word.store(noise.next() as u32, Ordering::Relaxed));
        }
        punch(*file, memory.len());
    }
}

/// Spoils these memories for ever, with helpers, and returns its packets meanwhile.
fn everything(memories: &[(BorrowedFd<'_>, &Mapping)], rx: &mut [ring::Consumer], tx: &mut ring::Producer) -> ! {
    help(memories);
    let (mut noise, mut burst) = (Noise(0x5eed_5eed_5eed_5eed), [Descriptor::default(); BURST]);
    loop {
        spoil(memories, &mut noise, || {
            let n = take(rx, &mut burst);
            let _ = tx.enqueue(&burst[..n]);
        });
    }
}

/// The names of all modes.
pub fn modes() -> impl Iterator<Item = &'static str> {
    MODES.into_iter().chain(TRIALS).map(|(name, _)| name).chain(ATTACKS.into_iter().map(|(name, ..)| name))
}

/// Runs the mode until it is killed.
///
/// # Errors
/// No daemon has started it, or there is no such mode.
pub fn run(mode: &str) -> anyhow::Result<()> {
    if !modes().any(|name| name == mode) {
        bail!("there is no mode {mode}; there are: {}", modes().collect::<Vec<_>>().join(", "));
    }
    let path = std::env::var(handshake::ENV_SOCKET).context("it is started by sluiced alone")?;
    let name = std::env::var(handshake::ENV_NF).context("it is started by sluiced alone")?;
    match mode {
        "herd" => herd(),
        "chain" => chain(),
        _ => {}
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(Path::new(&path))?)?;
    if mode == "liar" && std::env::var_os(zygote::ENV_ZYGOTE).is_some() {
        return lie(&socket, &name);
    }
    let (welcome, [arena, region, core]) = handshake::attach(&socket, &Hello { name, is_zygote: false })?;
    let layout = welcome.region;
    let Attached { page, mut rx, mut tx } = Attached::map(region.as_fd(), layout)?;
    let raw = Mapping::new(region.as_fd(), layout.bytes as usize, false)?;
    if mode != "unready" {
        page.counter(Counter::Ready).store(1, Ordering::Release);
        handshake::send(socket.as_fd(), &handshake::ready(), &[])?;
    }
    match mode {
        "fork" => fork(),
        "swarm" => swarm(),
        "siblings" => (0..8).for_each(|_| say("sibling", sibling())),
        "hoard" => {
            let hoard = vec![1u8; HOARD];
            println!("hostile: hoarded {} bytes", std::hint::black_box(&hoard).len());
        }
        "reach" => reach([("packet memory", arena.as_fd()), ("rings", region.as_fd()), ("core page", core.as_fd())]),
        _ => {}
    }
    let page_file = core;
    let core = Mapping::new(page_file.as_fd(), core_page::bytes(welcome.slots), false)?;
    if mode == EVERYTHING {
        let packets = Mapping::new(arena.as_fd(), welcome.geometry.bytes(), false)?;
        let memories = [(arena.as_fd(), &*packets), (region.as_fd(), &*raw), (page_file.as_fd(), &*core)];
        everything(&memories, &mut rx, &mut tx);
    }
    if let Some((.., attack)) = ATTACKS.into_iter().find(|(name, ..)| *name == mode) {
        let shared = CorePage::map(page_file.as_fd(), welcome.slots, welcome.hands_over)?;
        let attached = Attached { page, rx, tx };
        attack(AttackingNf { attached, region: raw, core, page: shared, slot: welcome.slot, processor: welcome.core });
    }
    let mut noise = Noise(0x5eed_5eed_5eed_5eed);
    let mut burst = [Descriptor::default(); BURST];
    let mut packets = None;
    loop {
        let reads = !matches!(mode, "random" | "cursors" | "deaf" | "scribble" | "unready" | OVERWRITE);
        let n = if reads { take(&mut rx, &mut burst) } else { 0 };
        let burst = &mut burst[..n];
        match mode {
            "random" => {
                let mut forged = [Descriptor::default(); BURST];
                forged.fill_with(|| Descriptor::from_words([noise.next(), noise.next()]));
                for descriptor in forged.iter_mut().step_by(2) {
                    descriptor.frame = welcome.geometry.first + descriptor.frame % welcome.geometry.frames;
                }
                let _ = tx.enqueue(&forged);
            }
            "replay" => {
                for _ in 0..3 {
                    let _ = tx.enqueue(burst);
                }
            }
            "lengths" => {
                burst.iter_mut().for_each(|d| (d.offset, d.len) = (noise.next() as u16, u16::MAX));
                let _ = tx.enqueue(burst);
            }
            "cursors" => {
                for index in 0..=layout.rx_rings as usize {
                    let start = layout.rings as usize + index * ring::bytes(layout.capacity);
                    for word in [start, start + sluice_shm::CACHE_LINE].into_iter().filter_map(|at| raw.atomic_u32(at)) {
                        word.store(noise.next() as u32, Ordering::Relaxed);
                    }
                }
            }
            "scribble" => [&raw, &core].into_iter().for_each(|over| scribble(over, &mut noise)),
            "page" => {
                scribble(&core, &mut noise);
                let _ = tx.enqueue(burst);
            }
            "eager" => {
                handshake::send(socket.as_fd(), &handshake::ready(), &[])?;
                let _ = tx.enqueue(burst);
            }
            "slow" => {
                std::thread::sleep(Duration::from_millis(10));
                let _ = tx.enqueue(burst);
            }
            "quit" if n > 0 => return Ok(()),
            "hangup" if n > 0 => {
                hang_up();
                return Ok(());
            }
            "panic" => assert!(n == 0, "as it was asked to"),
            "fork" | "swarm" | "herd" | "chain" | "siblings" | "hoard" | "reach" | "liar" => {
                let _ = tx.enqueue(burst);
            }
            OVERWRITE => {
                let packets = packets.get_or_insert_with(|| Mapping::new(arena.as_fd(), welcome.geometry.bytes(), false));
                let packets = packets.as_ref().map_err(|error| anyhow::anyhow!("cannot map packet memory: {error}"))?;
                let mut burst = [Descriptor::default(); BURST];
                for offset in (0..packets.len()).step_by(4) {
                    if offset.is_multiple_of(STRIDE) {
                        let n = take(&mut rx, &mut burst);
                        let _ = tx.enqueue(&burst[..n]);
                    }
                    packets.atomic_u32(offset).context("it is mapped")?.store(noise.next() as u32, Ordering::Relaxed);
                }
                // Where this is allowed, it costs its own tenant its packets.
                punch(arena.as_fd(), packets.len());
                continue;
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_mode_and_a_start_by_hand_are_refused() {
        assert!(run("nice").unwrap_err().to_string().contains("there are: random, replay"));
        assert!(run("random").unwrap_err().to_string().contains("sluiced"));
    }
}
