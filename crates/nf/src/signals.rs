//! Clean stop on SIGTERM and SIGINT.
//!
//! The handler sets a flag and rings the doorbells on which the NF may sleep, so that it wakes
//! whichever thread got the signal: an atomic addition and a system call for each, safe in a
//! handler. A second signal of the same kind ends the process at once: the first restores the
//! default action.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use sluice_shm::doorbell;

static STOP: AtomicBool = AtomicBool::new(false);
static BELLS: [AtomicPtr<AtomicU32>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

extern "C" fn on_signal(_signal: libc::c_int) {
    STOP.store(true, Ordering::Release);
    for bell in &BELLS {
        // SAFETY: install() only stores a pointer to a word that lives until the process ends.
        if let Some(bell) = unsafe { bell.load(Ordering::Acquire).as_ref() } {
            doorbell::ring(bell);
        }
    }
}

/// Makes SIGTERM and SIGINT set the flag and ring the given doorbells.
pub(crate) fn install(bells: [&'static AtomicU32; 2]) {
    STOP.store(false, Ordering::Relaxed);
    for (kept, bell) in BELLS.iter().zip(bells) {
        // Release: the handler, on any thread, sees the word behind the pointer.
        kept.store(std::ptr::from_ref(bell).cast_mut(), Ordering::Release);
    }
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
