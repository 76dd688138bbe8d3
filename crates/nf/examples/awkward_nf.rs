//! A bridge that is a bad neighbour, for tests of NFs that share a core and a tenant.
//!
//! | argument | what it does |
//! |---|---|
//! | `make MS` | takes MS milliseconds to make its handler |
//! | `hang FILE` | waits while FILE exists before it makes its handler, and creates it |
//! | `block MS` | sleeps MS milliseconds in each burst |
//! | `noise` | a thread writes random words all over the core page |
//! | `flood` | the same, also all over its own region |
//! | `bits` | a thread keeps marking all slots as having packets and the core as free |
//! | `claim SLOT` | a thread keeps giving this slot the core; others are suspended without budget |
//! | `quiet SLOT` | a thread keeps giving its own slot the core; others have no packets or budget |
//! | `ghost` | a thread keeps saying that the last slot, of no NF, has packets and goes first |
//! | `steal N` | N threads wait on the doorbells of slots 0 to 7, to take their wakes |
//! | `lock` | a thread waits on each of these doorbells as for a lock with priority inheritance |
//! | `requeue` | a thread keeps moving the sleepers of these doorbells to a word of its own |
//! | `old` | does nothing bad; cannot wait on two futexes, as on a kernel before 5.16 |
//!
//! Packets pass it as they pass a bridge. `noise`, `flood` and `bits` take the milliseconds until
//! they begin as next argument. The core page is written by offset, by the table in `core_page`.

#![allow(unsafe_code)] // it writes to memory that the library has mapped

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use sluice_nf::{Burst, Context, Handler, run};
use sluice_shm::clock::monotonic_ns;
use sluice_shm::doorbell;

const LINE: usize = 64;
const SLOT: usize = 256;

struct Neighbour {
    block: Option<Duration>,
}

impl Handler for Neighbour {
    fn burst(&mut self, _burst: &mut Burst<'_>) {
        if let Some(block) = self.block {
            std::thread::sleep(block);
        }
    }
}

/// Words of a mapping of this process. They stay mapped until it ends.
#[derive(Clone, Copy)]
struct Words(&'static [AtomicU32]);

impl Words {
    /// The words of the first mapping whose name contains `name`.
    fn of(name: &str) -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there");
        let line = maps.lines().find(|line| line.contains(name)).expect("the library has mapped it");
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).expect("a number"));
        // SAFETY: shared memory, mapped read-write until the process ends; all access is atomic.
        Self(unsafe { std::slice::from_raw_parts(from as *const AtomicU32, (to - from) / 4) })
    }

    fn at(self, offset: usize) -> &'static AtomicU32 {
        &self.0[offset / 4]
    }
}

#[derive(Clone, Copy)]
struct Core {
    words: Words,
    slots: usize,
}

impl Core {
    fn new() -> Self {
        let words = Words::of("sluice-core");
        Self { words, slots: words.at(12).load(Ordering::Relaxed) as usize }
    }

    fn bits_bytes(self) -> usize {
        (self.slots.div_ceil(64) * 8).next_multiple_of(LINE)
    }

    fn slot(self, slot: usize, offset: usize) -> &'static AtomicU32 {
        self.words.at((2 * LINE + 3 * self.bits_bytes()).next_multiple_of(SLOT) + slot * SLOT + offset)
    }

    /// Frees the core, and marks all slots as having packets.
    fn set_all_bits(self) {
        self.words.at(LINE).store(0, Ordering::Relaxed);
        for offset in (0..self.slots / 8).step_by(4) {
            self.words.at(2 * LINE + offset).store(u32::MAX, Ordering::Relaxed);
        }
    }

    /// Gives the core to `mine`, and takes packets and budget from the others. Writes only words
    /// that the manager does not restore.
    fn hide_others(self, mine: usize) {
        self.words.at(LINE).store(mine as u32 + 1, Ordering::Relaxed);
        for offset in (0..self.slots / 8).step_by(4) {
            let bit = if mine / 32 == offset / 4 { 1 << (mine % 32) } else { 0 };
            self.words.at(2 * LINE + offset).store(bit, Ordering::Relaxed);
        }
        for slot in (0..self.slots.min(64)).filter(|slot| *slot != mine) {
            self.slot(slot, 2 * LINE + 8).store(-16_000_000i32 as u32, Ordering::Relaxed);
        }
    }

    /// Says that the last slot has had packets for a second, and goes before all others.
    fn raise_ghost(self) {
        let slot = self.slots - 1;
        let since_us = (monotonic_ns() / 1_000).wrapping_sub(1_000_000) as u32;
        // Posted, level, budget and since when.
        for (offset, value) in [(0, 1), (16, 9), (2 * LINE + 8, 10_000_000), (2 * LINE + 12, since_us)] {
            self.slot(slot, offset).store(value, Ordering::Relaxed);
        }
        for bits in [0, 2] {
            // Pending and favoured.
            let word = self.words.at(2 * LINE + bits * self.bits_bytes() + slot / 32 * 4);
            word.fetch_or(1 << (slot % 32), Ordering::Relaxed);
        }
        // Some slot is favoured.
        self.words.at(16).store(1, Ordering::Relaxed);
    }

    /// Gives the core to `mine`, so that the others cannot take it.
    fn claim(self, mine: usize) {
        self.words.at(LINE).store(mine as u32 + 1, Ordering::Relaxed);
        for slot in (0..self.slots.min(64)).filter(|slot| *slot != mine) {
            self.slot(slot, LINE + 4).store(1, Ordering::Relaxed);
            self.slot(slot, 2 * LINE + 8).store(-16_000_000i32 as u32, Ordering::Relaxed);
        }
    }
}

/// Writes random words all over, except the first line: NFs keep its contents from the start.
fn scribble(words: Words, state: &mut u64) {
    for word in &words.0[LINE / 4..] {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        word.store(*state as u32, Ordering::Relaxed);
    }
}

/// Repeats `what` for ever, from `after` on.
fn forever(after: Duration, mut what: impl FnMut() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        loop {
            what();
        }
    });
}

fn make(_: &Context) -> Result<Neighbour, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok()).map(Duration::from_millis);
    let after = number(1).unwrap_or_default();
    let mut state = 0x5eed_5eed_5eed_5eed;
    let mut block = None;
    match arguments.first().map(String::as_str) {
        Some("make") => std::thread::sleep(after),
        Some("hang") => {
            let mark = arguments.get(1).ok_or("name a file")?;
            // One of several that start together makes it, whatever their turns are.
            while let Err(error) = std::fs::File::create_new(mark) {
                if error.kind() != std::io::ErrorKind::AlreadyExists {
                    return Err(error.into());
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        Some("block") => block = Some(after),
        Some("noise") => {
            let core = Core::new();
            forever(after, move || scribble(core.words, &mut state));
        }
        Some("flood") => {
            let all = [Core::new().words, Words::of("sluice-nf")];
            forever(after, move || all.iter().for_each(|words| scribble(*words, &mut state)));
        }
        Some("bits") => {
            let core = Core::new();
            forever(after, move || core.set_all_bits());
        }
        Some(mode @ ("claim" | "quiet")) => {
            let core = Core::new();
            let slot = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(0usize);
            let is_quiet = mode == "quiet";
            forever(Duration::ZERO, move || if is_quiet { core.hide_others(slot) } else { core.claim(slot) });
        }
        Some("ghost") => {
            let core = Core::new();
            forever(Duration::ZERO, move || core.raise_ghost());
        }
        Some("steal") => {
            let core = Core::new();
            let threads = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(16usize);
            for n in 0..threads {
                let bell = core.slot(n % 8, 2 * LINE + 4);
                forever(Duration::ZERO, move || doorbell::wait(bell, bell.load(Ordering::Relaxed), None));
            }
        }
        Some("lock") => {
            let (core, own) = (Core::new(), Words::of("sluice-nf").at(0));
            for n in 0..8 {
                let bell = core.slot(n, 2 * LINE + 4);
                forever(Duration::ZERO, move || {
                    if !wait_for_lock(bell, own) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
        }
        Some("requeue") => {
            let (core, own) = (Core::new(), Words::of("sluice-nf").at(0));
            let flags = futex::Flags::empty();
            forever(Duration::ZERO, move || {
                // The filter of NFs refuses it.
                for n in 0..8 {
                    let _ = futex::requeue(core.slot(n, 2 * LINE + 4), flags, 0, u32::MAX >> 1, own);
                }
            });
        }
        // See main().
        Some("old") => {}
        _ => {
            return Err("say one of make, hang, block, noise, flood, bits, claim, quiet, ghost, steal, lock, requeue or old".into());
        }
    }
    Ok(Neighbour { block })
}

/// Waits until it is moved to `lock`, which nobody does. False if that is refused.
fn wait_for_lock(bell: &AtomicU32, lock: &AtomicU32) -> bool {
    let seen = bell.load(Ordering::Relaxed);
    let no_timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the kernel reads both words, which stay mapped, and may write the second.
    let waited =
        unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAIT_REQUEUE_PI, seen, no_timeout, lock.as_ptr(), 0) };
    waited >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EPERM)
}

/// Makes `futex_waitv` fail as where the kernel does not know it.
fn forget_waitv() -> std::io::Result<()> {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The first word of `seccomp_data` is the number of the call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_futex_waitv as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives during the calls, which copy it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|mode| mode == "old") {
        // Before it attaches, when the library finds out what the kernel can do.
        forget_waitv().expect("a process may filter its own calls");
    }
    run(make)
}
