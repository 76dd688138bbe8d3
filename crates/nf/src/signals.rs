//! Clean stop on SIGTERM and SIGINT.
//!
//! The handler sets a flag and rings the NF's own doorbell, so that a sleeping NF wakes whichever
//! thread got the signal: an atomic addition and one system call, both safe in a handler. A second
//! signal of the same kind ends the process at once: the first restores the default action.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use sluice_shm::doorbell;

static STOP: AtomicBool = AtomicBool::new(false);
static BELL: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn on_signal(_signal: libc::c_int) {
    STOP.store(true, Ordering::Release);
    let bell = BELL.load(Ordering::Acquire);
    // SAFETY: install() only stores a pointer to a word that lives until the process ends.
    if let Some(bell) = unsafe { bell.as_ref() } {
        doorbell::ring(bell);
    }
}

/// Makes SIGTERM and SIGINT set the flag and ring the given doorbell.
pub(crate) fn install(bell: &'static AtomicU32) {
    STOP.store(false, Ordering::Relaxed);
    // Release: the handler, on any thread, sees the word behind the pointer.
    BELL.store(std::ptr::from_ref(bell).cast_mut(), Ordering::Release);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: all zeroes are a valid sigaction; no SA_RESTART, so that blocking calls return.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: the handler is async-signal-safe (see the module), and action outlives the call.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Whether a signal asked for a stop.
#[inline(always)]
pub(crate) fn stopped() -> bool {
    // Relaxed: only the flag matters.
    STOP.load(Ordering::Relaxed)
}
