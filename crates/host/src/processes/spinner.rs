//! A process that polls and reports when it runs: for measuring and testing controllers.
//!
//! Each of its threads writes the time into shared memory as fast as it can, and the begin and end
//! of each gap in which it did not run. It treats its gate like our library.
//!
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | its gate | the maker |
//! | 8 | threads that spin | the spinner |
//! | 64 × (1 + n) | thread n: last time, count of writes, begin and end of last gap | the spinner |

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use sluice_shm::clock::ticks;
use sluice_shm::gate::{self, COMES_WHEN_CALLED, Gate, LOOKS};
use sluice_shm::memory::{Mapping, SharedMemory};

use super::{Gates, Refused, Target};
use crate::affinity;
use crate::process::Proc;

/// First argument of a spinner.
pub(super) const ARGUMENT: &str = "__sluice-spinner";
/// Size of the memory in bytes.
const BYTES: usize = 8192;
const THREADS: usize = BYTES / 64 - 1;
/// Offset of the number of threads.
const SPINNING: usize = 8;
/// Minimum length of a gap: more than an interrupt, less than a switch; in ticks of about a third
/// to a half nanosecond.
const GAP: u64 = 3000;
/// Maximum time for a spinner to start.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
enum Word {
    Beat = 0,
    Count = 1,
    From = 2,
    To = 3,
}

fn word(mapping: &Mapping, thread: usize, word: Word) -> &AtomicU64 {
    mapping.atomic_u64(64 * (1 + thread) + 8 * word as usize).expect("there are no more threads than there is room for")
}

/// The maker's side of a spinner, which ends with it.
///
/// Release it from controllers before: a frozen process cannot be killed.
#[derive(Debug)]
pub struct Spinner {
    child: Child,
    memory: SharedMemory,
    threads: usize,
    looks: bool,
}

impl Spinner {
    /// Starts a spinner with `threads` threads on a core, or anywhere, and waits until all spin.
    ///
    /// `program` calls [`super::helper::take_over`]. The spinner ends with the calling thread.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn start(program: &Path, core: Option<usize>, threads: usize, looks: bool) -> Result<Self, Refused> {
        let system = |source| Refused::System { doing: "start a spinner from", what: program.display().to_string(), source };
        let other = |error: &dyn std::fmt::Display| system(io::Error::other(error.to_string()));
        let threads = threads.clamp(1, THREADS);
        let memory = SharedMemory::create("sluice-spinner", BYTES, true).map_err(|error| other(&error))?;
        let input = rustix::io::fcntl_dupfd_cloexec(memory.fd(), 0).map_err(|error| system(error.into()))?;
        let mut command = Command::new(program);
        let core = core.map_or("any".into(), |core| core.to_string());
        command.arg0("sluice-spinner").args([ARGUMENT, &core, &threads.to_string(), if looks { "looks" } else { "" }]);
        command.env_clear().current_dir("/").stdin(input).stdout(Stdio::null());
        let child = command.spawn().map_err(system)?;
        let mut spinner = Self { child, memory, threads, looks };
        let end = Instant::now() + PATIENCE;
        while spinner.spinning() < threads as u64 {
            let has_ended = spinner.child.try_wait().map_err(system)?.is_some();
            if has_ended || Instant::now() > end {
                return Err(system(io::Error::other("it does not spin")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(spinner)
    }

    fn spinning(&self) -> u64 {
        self.memory.mapping().atomic_u64(SPINNING).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn word(&self, thread: usize, which: Word) -> u64 {
        // Acquire: the end of a gap is written after its begin, and both before the next time.
        word(self.memory.mapping(), thread, which).load(Ordering::Acquire)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The last time that a thread ran, in ticks.
    #[inline(always)]
    pub fn beat(&self, thread: usize) -> u64 {
        self.word(thread, Word::Beat)
    }

    /// Begin and end of a thread's last gap, in ticks.
    #[inline(always)]
    pub fn gap(&self, thread: usize) -> (u64, u64) {
        let to = self.word(thread, Word::To);
        (self.word(thread, Word::From), to)
    }

    /// Number of reports by all threads.
    pub fn count(&self) -> u64 {
        (0..self.threads).map(|thread| self.word(thread, Word::Count)).fold(0, u64::wrapping_add)
    }

    /// Number of reports by each thread.
    pub fn counts(&self) -> Vec<u64> {
        (0..self.threads).map(|thread| self.word(thread, Word::Count)).collect()
    }

    /// Its gate.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn gates(&self) -> Result<Gates, Refused> {
        let system =
            |error: rustix::io::Errno| Refused::System { doing: "pass", what: "a spinner's memory".into(), source: error.into() };
        let memory = rustix::io::fcntl_dupfd_cloexec(self.memory.fd(), 0).map_err(system)?;
        let gate = Gate::in_mapping(self.memory.mapping(), 0).expect("the memory begins with it");
        let does = if self.looks { LOOKS | COMES_WHEN_CALLED } else { COMES_WHEN_CALLED };
        Ok(Gates { gate, memory: Arc::new(memory), bytes: BYTES, does })
    }

    /// The target for controllers.
    pub fn target(&self, proc: &Proc, name: &str) -> Result<Target, Refused> {
        Ok(Target::of_pid(proc, name, self.pid())?.with_gates(self.gates()?))
    }

    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let end = Instant::now() + PATIENCE;
        // Not for ever: it may be frozen.
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Always false: the maker's death kills this process.
fn is_orphan() -> bool {
    false
}

/// Main function of the spinner, whose memory is its standard input.
pub(super) fn spin(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = rustix::thread::set_name(c"sluice-spinner");
    let mut text = || arguments.next().and_then(|text| text.into_string().ok());
    let (core, threads, looks) = (text(), text(), text());
    let Ok(mapping) = Mapping::new(io::stdin().as_fd(), BYTES, true) else { return ExitCode::FAILURE };
    let mapping: &'static Arc<Mapping> = Box::leak(Box::new(mapping));
    if let Some(core) = core.and_then(|core| core.parse().ok())
        && affinity::pin(core).is_err()
    {
        return ExitCode::FAILURE;
    }
    let Some(gate) = mapping.atomic_u32(0) else { return ExitCode::FAILURE };
    gate::come_when_called(gate, is_orphan);
    let looks = looks.is_some_and(|text| text == "looks");
    let threads = threads.and_then(|text| text.parse().ok()).unwrap_or(1).clamp(1, THREADS);
    for thread in 1..threads {
        std::thread::spawn(move || turn(mapping, thread, looks));
    }
    turn(mapping, 0, looks)
}

/// Runs one thread, for ever.
fn turn(mapping: &Mapping, thread: usize, looks: bool) -> ! {
    let [beat, count, from, to] = [Word::Beat, Word::Count, Word::From, Word::To].map(|which| word(mapping, thread, which));
    let gate = mapping.atomic_u32(0).expect("the memory begins with it");
    let spinning = mapping.atomic_u64(SPINNING).expect("it is inside");
    let mut last = ticks();
    let mut n = 0u64;
    spinning.fetch_add(1, Ordering::AcqRel);
    loop {
        if looks && gate::is_closed(gate) {
            gate::wait(gate, None);
        }
        let now = ticks();
        if now.wrapping_sub(last) > GAP {
            // Release: pairs with the reader's Acquire.
            from.store(last, Ordering::Release);
            to.store(now, Ordering::Release);
        }
        last = now;
        n += 1;
        count.store(n, Ordering::Relaxed);
        beat.store(now, Ordering::Release);
    }
}
