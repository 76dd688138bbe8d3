//! A gate: a word in shared memory at which a process waits while it is closed.
//!
//! The manager closes and opens it. The process passes it between two bursts (it *looks*) or in a
//! signal handler (it is *called*). What the process writes there affects only itself.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use crate::memory::Mapping;

/// The real-time signal that calls a process to its gate. It is far from those that C libraries
/// reserve (32 to 34), and from SIGRTMIN and SIGRTMAX, which programs take first.
pub const SIGNAL: i32 = 44;

/// How a process uses its gate: not at all. Other values are sums of the bits below.
pub const IGNORES: u64 = 0;
/// It looks at the gate between two bursts.
pub const LOOKS: u64 = 1;
/// It has a handler for [`SIGNAL`] that waits at the gate.
pub const COMES_WHEN_CALLED: u64 = 2;

const OPEN: u32 = 0;
const CLOSED: u32 = 1;

/// A gate in a mapping.
#[derive(Debug, Clone)]
pub struct Gate {
    mapping: Arc<Mapping>,
    at: usize,
}

impl Gate {
    /// The gate at an aligned offset inside a mapping, or None. Zeroed memory is an open gate.
    pub fn in_mapping(mapping: &Arc<Mapping>, at: usize) -> Option<Self> {
        mapping.atomic_u32(at)?;
        Some(Self { mapping: mapping.clone(), at })
    }

    /// Its offset in the mapping.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// The word in shared memory.
    #[inline(always)]
    pub fn word(&self) -> &AtomicU32 {
        self.mapping.atomic_u32(self.at).expect("in_mapping has asked")
    }

    /// Closes it. A process that comes later waits.
    #[inline(always)]
    pub fn close(&self) {
        // Release: a process that finds it closed sees what the manager wrote before.
        self.word().store(CLOSED, Ordering::Release);
    }

    /// Opens it and wakes all waiting threads, with one system call.
    #[inline(always)]
    pub fn open(&self) {
        // Release: as in close(). The kernel orders the store before its search for sleepers.
        self.word().store(OPEN, Ordering::Release);
        let _ = futex::wake(self.word(), futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Whether it is closed.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        is_closed(self.word())
    }

    /// Waits until it is open.
    pub fn pass(&self) {
        while self.is_closed() {
            wait(self.word(), None);
        }
    }
}

/// Whether the gate with this word is closed.
#[inline(always)]
pub fn is_closed(word: &AtomicU32) -> bool {
    // Acquire: pairs with open() and close().
    word.load(Ordering::Acquire) == CLOSED
}

/// Waits until the gate opens, `timeout` expires, or without cause. Safe in a signal handler.
pub fn wait(word: &AtomicU32, timeout: Option<Duration>) {
    crate::doorbell::wait(word, CLOSED, timeout);
}

struct Called {
    word: &'static AtomicU32,
    is_orphan: fn() -> bool,
}

static CALLED: OnceLock<Called> = OnceLock::new();

/// Longest wait in the handler between two calls of `is_orphan`.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

extern "C" fn on_signal(_signal: libc::c_int) {
    // An atomic load: safe in a handler.
    let Some(called) = CALLED.get() else { return };
    while is_closed(called.word) {
        wait(called.word, Some(LONGEST_WAIT));
        if is_closed(called.word) && (called.is_orphan)() {
            return;
        }
    }
}

/// Makes a thread that receives [`SIGNAL`] wait at this gate. The handler asks `is_orphan`, which
/// must be safe there, once a second whether no process is left to open the gate, and then returns.
/// True if this was the process's first call, and it succeeded.
pub fn come_when_called(word: &'static AtomicU32, is_orphan: fn() -> bool) -> bool {
    if CALLED.set(Called { word, is_orphan }).is_err() {
        return false;
    }
    // SAFETY: sigaction is plain data for which all zeroes are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
    // Interrupted calls resume by themselves, and a program's alternative signal stack is used.
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler only loads atomics and makes system calls; action outlives the call.
    unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) == 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::SharedMemory;

    #[test]
    fn one_that_comes_to_a_closed_gate_passes_when_it_opens() {
        let memory = SharedMemory::create("gate", 4096, false).unwrap();
        let gate = Gate::in_mapping(memory.mapping(), 64).unwrap();
        assert!(Gate::in_mapping(memory.mapping(), 4096).is_none() && Gate::in_mapping(memory.mapping(), 2).is_none());
        gate.pass();
        gate.close();
        let passed = Arc::new(AtomicU32::new(0));
        let other = std::thread::spawn({
            let (gate, passed) = (gate.clone(), passed.clone());
            move || {
                gate.pass();
                passed.store(1, Ordering::SeqCst);
            }
        });
        assert!(gate.is_closed());
        assert_eq!(passed.load(Ordering::SeqCst), 0);
        gate.open();
        other.join().unwrap();
        assert_eq!(passed.load(Ordering::SeqCst), 1);
    }
}
