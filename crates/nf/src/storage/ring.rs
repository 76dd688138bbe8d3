//! The kernel's side: an io_uring, and how a sleeping NF waits on it.
//!
//! # Approach
//! Completions lie in memory that the kernel shares, so a check for them is a load and no system
//! call. Operations go to the kernel a buffer at a time, in one call.
//!
//! An NF sleeps on its doorbells, which are futexes, and must wake for a completion too. With
//! operations under way it waits in io_uring, with a futex-wait operation on the doorbells in the
//! ring (Linux 6.7): whatever ends first ends the wait. The operation stays in the ring after
//! another event, and may then consume a doorbell's wake; so the NF goes on to sleep here until it
//! is gone and nothing is under way, and then sleeps on the futexes themselves.
//!
//! On a kernel without that operation, the NF sleeps on its doorbell and checks every
//! [`LOOK_EVERY`] while operations are under way.
//!
//! # Alternatives
//! Waiting in the ring costs up to 1.8 µs more than on the futex (measured: round trip between two
//! threads of a core 6.3 µs against 4.5; on two cores 34.5 against 33.3), once for each sleep with
//! operations under way. A bounded sleep costs a switch each time, and half the bound in latency. A
//! thread that rings the doorbell on an eventfd costs two switches a batch, and competes for the
//! core.

use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use super::buffer::{Ask, Direction};
use super::error::StorageError;
use crate::sleeper::Doorbells;

/// The name of the doorbells' operation.
const BELL: u64 = u64::MAX;
/// Longest sleep with operations under way where the kernel cannot wait for both.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// From linux/futex.h: a 32-bit futex, not private to the process.
const FUTEX2_SIZE_U32: u32 = 2;

/// A ring with room for the operations of one buffer.
pub(super) struct IoRing {
    uring: IoUring,
    /// Whether the kernel can wait for a futex in the ring.
    waits_for_futex: bool,
    /// Whether the doorbells' operation is in the ring.
    is_armed: bool,
    /// What it waits for. The kernel reads it when it takes the operation.
    armed: Box<[types::FutexWaitV; 2]>,
}

impl IoRing {
    pub(super) fn new(operations: usize) -> Result<Self, StorageError> {
        // One more for the doorbells. Operations are in the ring once: completions fit.
        let uring = IoUring::builder().dontfork().build(operations as u32 + 1).map_err(|e| StorageError::refused(&e))?;
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_rw_cur_pos() {
            return Err(StorageError::Missing);
        }
        let mut probe = Probe::new();
        let probed = uring.submitter().register_probe(&mut probe).is_ok();
        let waits_for_futex = probed && probe.is_supported(opcode::FutexWaitV::CODE);
        Ok(Self { waits_for_futex, uring, is_armed: false, armed: Box::default() })
    }

    /// Behaves as on a kernel without the futex operation.
    #[cfg(test)]
    pub(super) fn forget_futex(&mut self) {
        self.waits_for_futex = false;
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the buffer keeps memory and file of an operation until its completion (see
        // ask()); doorbells are never freed, and `armed` lives as long as the ring.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            // The kernel takes earlier entries first; all of a buffer fits.
            self.enter(0, None);
        }
    }

    /// Puts an operation into the ring, for the next [`submit`](Self::submit) or wait.
    ///
    /// # Safety
    /// Bytes and descriptor stay, and no other code touches the bytes, until the completion.
    pub(super) unsafe fn ask(&mut self, name: u64, ask: &Ask) {
        let fd = types::Fd(ask.fd as RawFd);
        let entry = match ask.kind {
            Direction::Read => opcode::Read::new(fd, ask.start, ask.len).offset(ask.at).build(),
            Direction::Write => opcode::Write::new(fd, ask.start, ask.len).offset(ask.at).build(),
        };
        self.push(&entry.user_data(name));
    }

    /// Submits what was put into the ring, in one system call.
    pub(super) fn submit(&mut self) {
        if !self.uring.submission().is_empty() {
            self.enter(0, None);
        }
    }

    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        let submitter = self.uring.submitter();
        let result = match timeout {
            None => submitter.submit_and_wait(want),
            Some(timeout) => {
                let spec = types::Timespec::from(timeout);
                submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(&spec))
            }
        };
        match result.as_ref().err().and_then(Errno::from_io_error) {
            // Timeout, interrupt, or no kernel memory for now: the ring keeps it for the next call.
            None | Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {}
            Some(errno) => {
                panic!("io_uring does not work any more ({errno}): has this NF closed a descriptor that is not its own?")
            }
        }
    }

    /// Whether there are completions to take. Only reads memory.
    #[inline]
    pub(super) fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Takes the next completion of an operation: its name and its result.
    pub(super) fn next(&mut self) -> Option<(u64, i32)> {
        loop {
            let entry = self.uring.completion().next()?;
            if entry.user_data() != BELL {
                return Some((entry.user_data(), entry.result()));
            }
            self.is_armed = false;
        }
    }

    pub(super) fn wait_for_completion(&mut self) {
        self.enter(1, None);
    }

    /// Waits for a doorbell, a completion, or the timeout. `under_way`: the kernel has operations.
    pub(super) fn wait(&mut self, doorbells: Doorbells, timeout: Duration, under_way: bool) {
        // If only doorbells can wake it and no operation may consume a wake, futexes are cheaper.
        if !self.waits_for_futex || (!under_way && !self.is_armed) {
            self.submit();
            doorbells.wait(if under_way { timeout.min(LOOK_EVERY) } else { timeout });
            return;
        }
        if !self.is_armed {
            let waiter = |(bell, seen): (&std::sync::atomic::AtomicU32, u32)| {
                types::FutexWaitV::new().val(seen.into()).uaddr(bell.as_ptr() as u64).flags(FUTEX2_SIZE_U32)
            };
            self.armed[0] = waiter(doorbells.first);
            if let Some(second) = doorbells.second {
                self.armed[1] = waiter(second);
            }
            let wait = opcode::FutexWaitV::new(self.armed.as_ptr(), 1 + u32::from(doorbells.second.is_some()));
            self.push(&wait.build().user_data(BELL));
            self.is_armed = true;
        } else if doorbells.are_rung() {
            return;
        }
        self.enter(1, Some(timeout));
    }
}
