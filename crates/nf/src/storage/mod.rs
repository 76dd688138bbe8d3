//! Files for an NF that must not wait for a disk: `read_data` and `write_data` with a callback.
//!
//! # Problem
//! A packet that needs a disk waits for it. If the NF waited too, so would every packet behind; and
//! a system call for each small read or write costs more than the packet.
//!
//! # Terms
//! A *request* is one call of [`Storage::read_data`] or [`Storage::write_data`]. Its *callback* is
//! a closure that is called once, with the bytes read or written or with the error; it captures its
//! *context* (counters, a waiting packet). A *batch* is what one buffer holds when it goes to the
//! kernel.
//!
//! # Approach
//! - Requests are copied into a buffer, and go to the kernel together, by io_uring, when the buffer
//!   is full or its oldest request has waited for the *flush interval*. Adjacent writes become one.
//! - Two buffers alternate: while the kernel has one, requests fill the other. When both are full,
//!   the next request waits: the NF is suspended, hands its core over, and wakes with the
//!   completion.
//! - Completions are found once a burst by a read of memory. The library calls the callbacks
//!   between bursts, on the NF's thread, or within a request that has to wait.
//! - On a clean stop the library submits everything, waits, and calls the callbacks, before
//!   [`Handler::clean`](crate::Handler::clean) and after it.
//!
//! ```no_run
//! # fn make(context: &sluice_nf::Context) -> Result<(), Box<dyn std::error::Error>> {
//! use std::{cell::Cell, rc::Rc};
//! use sluice_nf::storage::{At, File, Storage, StorageOptions};
//!
//! let storage = Storage::new(context, &StorageOptions::default())?;
//! let file = File::new(std::fs::File::create("/tmp/log")?);
//! let lost = Rc::new(Cell::new(0u64));
//! let context = lost.clone();
//! storage.write_data(&file, At::End, b"a line\n", move |outcome| {
//!     if outcome.is_err() {
//!         context.set(context.get() + 1);
//!     }
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//! Requests that touch the same bytes of a file, one of them a write, are carried out in the order
//! of their calls; so are writes [`At::End`]. Callbacks of merged writes come in order; otherwise
//! callbacks come as the operations end.
//!
//! # Limits
//! An NF has one storage (clones are the same). A request larger than a buffer is refused. A
//! callback may make requests, but cannot wait: with both buffers full it gets
//! [`RequestError::Full`]. A request may call callbacks while it waits, so hold no `RefCell` borrow
//! that a callback takes. If a process is not stopped cleanly, requests not yet submitted are lost
//! and their callbacks are not called. Nothing here calls fsync: completed writes are in the page
//! cache, unless the file was opened otherwise. Buffers are aligned to 4,096 bytes, reads in them
//! to their own size, so files without page cache (`O_DIRECT`) can be read.
//!
//! Submitting a batch is one system call, which copies to the page cache where the file system can
//! do so without waiting; else kernel threads do (ext4). They count as the NF's in its cgroup, and
//! may run on every processor of its cpuset. On one loaded core a write of 80 bytes cost the NF 50
//! ns, of 1,516 bytes 105 to 140; with a blocking system call per 32 writes 160 to 200 and 1,200 to
//! 1,800.
//!
//! # Source
//! NFVnice (SIGCOMM 2017), section 3.4: asynchronous I/O with batches, double buffering and
//! suspension. Its library uses an I/O thread for each NF; io_uring needs none.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use sluice_shm::clock::monotonic_ns;

mod buffer;
mod callback;
mod error;
mod file;
mod ring;
#[cfg(test)]
mod tests;

pub use error::{IoError, IoResult, RequestError, StorageError};
pub use file::{At, File};

use crate::context::Context;
use crate::sleeper::{Completions, Doorbells, Sleeper};
use buffer::Buffer;
use callback::Callback;
use ring::IoRing;

/// How a storage batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageOptions {
    /// Bytes of a buffer, 4 KiB to 64 MiB, in whole pages. A request takes at least 32 of them.
    pub batch_bytes: usize,
    /// Most operations of a buffer, 1 to 4096: a read each, or a run of adjacent writes to a file.
    pub batch_operations: usize,
    /// Longest wait of a request in a buffer while the kernel is idle; zero: until the burst ends.
    pub flush_interval: Duration,
}

impl Default for StorageOptions {
    /// 256 KiB, 256 operations, a millisecond.
    fn default() -> Self {
        Self { batch_bytes: 256 << 10, batch_operations: 256, flush_interval: Duration::from_millis(1) }
    }
}

/// Reads and writes files while packets go on. A clone is the same storage.
#[derive(Clone)]
pub struct Storage(Rc<Inner>);

pub(crate) struct Inner {
    state: RefCell<State>,
    sleeper: Rc<Sleeper>,
    interval_ns: u64,
    /// Whether a callback runs: then no request may wait, and no other callback may run.
    is_calling: Cell<bool>,
}

struct State {
    ring: IoRing,
    buffers: [Buffer; 2],
    /// The buffer that takes requests. The kernel has the other one, or nothing.
    filling: usize,
    kernel_has_other: bool,
    /// When the first request came into the filling buffer.
    since_ns: u64,
}

impl State {
    fn other(&mut self) -> &mut Buffer {
        &mut self.buffers[1 - self.filling]
    }

    /// Gives the filling buffer to the kernel, which must have nothing.
    fn turn(&mut self) {
        debug_assert!(!self.kernel_has_other);
        self.filling = 1 - self.filling;
        self.kernel_has_other = true;
        self.give();
    }

    fn give(&mut self) {
        let Self { ring, buffers, filling, .. } = self;
        buffers[1 - *filling].give(|number, ask| {
            // SAFETY: the buffer keeps bytes and file until the answer to this operation, and is
            // not freed before (see Inner::drop).
            unsafe { ring.ask(number as u64, &ask) };
        });
        ring.submit();
    }

    fn take(&mut self) {
        let mut took = false;
        while let Some((name, result)) = self.ring.next() {
            took = true;
            if let Some(rest) = self.buffers[1 - self.filling].answer(name as usize, result) {
                // SAFETY: as in give().
                unsafe { self.ring.ask(name, &rest) };
            }
        }
        if took {
            self.give();
        }
    }

    fn is_due(&self, interval_ns: u64) -> bool {
        let filling = &self.buffers[self.filling];
        !self.kernel_has_other
            && !filling.is_empty()
            && (interval_ns == 0 || filling.is_full() || monotonic_ns() >= self.since_ns.saturating_add(interval_ns))
    }
}

impl Storage {
    /// Sets up the storage of an NF, on the NF's thread. `_context` shows that it has attached.
    ///
    /// # Errors
    /// [`StorageError`]: no io_uring, or forbidden; wrong options; or the NF has a storage already.
    pub fn new(_context: &Context, options: &StorageOptions) -> Result<Self, StorageError> {
        let (bytes, operations) = (options.batch_bytes, options.batch_operations);
        if !(4096..=64 << 20).contains(&bytes) || !(1..=4096).contains(&operations) {
            return Err(StorageError::Options { bytes, operations });
        }
        let sleeper = Sleeper::here();
        if sleeper.storage().is_some() {
            return Err(StorageError::Second);
        }
        let buffer = || Buffer::new(bytes.next_multiple_of(4096), operations);
        let state = State {
            ring: IoRing::new(operations)?,
            buffers: [buffer(), buffer()],
            filling: 0,
            kernel_has_other: false,
            since_ns: 0,
        };
        let inner = Rc::new(Inner {
            state: RefCell::new(state),
            sleeper: sleeper.clone(),
            interval_ns: u64::try_from(options.flush_interval.as_nanos()).unwrap_or(u64::MAX),
            is_calling: Cell::new(false),
        });
        let completions: Rc<dyn Completions> = inner.clone();
        sleeper.set_storage(Rc::downgrade(&completions));
        Ok(Self(inner))
    }

    /// Reads `len` bytes of `file` from byte `at` on, fewer at its end, and calls `callback` with
    /// them. A stream is read at its position. Waits while both buffers are full.
    ///
    /// # Errors
    /// [`RequestError`]: the request was not taken, and the callback is not called.
    pub fn read_data(
        &self,
        file: &File,
        at: u64,
        len: usize,
        callback: impl FnOnce(IoResult<'_>) + 'static,
    ) -> Result<(), RequestError> {
        let at = file.place(At::Byte(at));
        self.0.request(len, Callback::new(callback), |buffer, callback| buffer.read(file, at, len, callback))
    }

    /// Writes a copy of `data`, then calls `callback`. Waits while both buffers are full.
    ///
    /// # Errors
    /// As [`read_data`](Self::read_data).
    pub fn write_data(
        &self,
        file: &File,
        at: At,
        data: &[u8],
        callback: impl FnOnce(IoResult<'_>) + 'static,
    ) -> Result<(), RequestError> {
        self.write_parts(file, at, &[data], callback)
    }

    /// Writes several pieces as one request: a header and a packet, for example.
    ///
    /// # Errors
    /// As [`read_data`](Self::read_data).
    pub fn write_parts(
        &self,
        file: &File,
        at: At,
        parts: &[&[u8]],
        callback: impl FnOnce(IoResult<'_>) + 'static,
    ) -> Result<(), RequestError> {
        let len = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        // Evaluated after a wait: callbacks may have moved the file's end.
        let place = || file.place(at);
        self.0.request(len, Callback::new(callback), |buffer, callback| buffer.write(file, place(), parts, len, callback))?;
        file.moved(at, len as u64);
        Ok(())
    }

    /// Calls due callbacks, and submits what has waited long enough. The library does so once a
    /// burst; a long task in a handler, or a test, may call it. Does nothing within a callback.
    pub fn poll(&self) {
        self.0.poll();
    }

    /// Submits everything, waits until it is done, and calls the callbacks. The library does so at
    /// a clean stop. Does nothing within a callback.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Whether every request has ended and its callback has returned.
    pub fn is_idle(&self) -> bool {
        let state = self.0.state.borrow();
        !state.kernel_has_other && state.buffers[state.filling].is_empty()
    }

    #[cfg(test)]
    fn forget_futex(&self) {
        self.0.state.borrow_mut().ring.forget_futex();
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storage").field("is_idle", &self.is_idle()).finish_non_exhaustive()
    }
}

impl Inner {
    fn request(
        &self,
        len: usize,
        callback: Callback,
        mut put: impl FnMut(&mut Buffer, Callback) -> Result<(), Callback>,
    ) -> Result<(), RequestError> {
        let mut callback = callback;
        loop {
            {
                let state = &mut *self.state.borrow_mut();
                let filling = &mut state.buffers[state.filling];
                if len == 0 || len > filling.bytes() {
                    return Err(RequestError::Size { len, most: filling.bytes() });
                }
                let was_empty = filling.is_empty();
                match put(filling, callback) {
                    Ok(()) => {
                        if was_empty {
                            state.since_ns = monotonic_ns();
                        }
                        if !state.kernel_has_other && state.buffers[state.filling].is_full() {
                            state.turn();
                        }
                        return Ok(());
                    }
                    Err(back) => callback = back,
                }
                if !state.kernel_has_other {
                    state.turn();
                    continue;
                }
            }
            if self.is_calling.get() {
                return Err(RequestError::Full);
            }
            if self.call_back() == 0 {
                self.suspend();
            }
        }
    }

    /// Calls the callbacks of ended requests, and returns how many.
    fn call_back(&self) -> usize {
        /// Clears `is_calling`, also when a callback panics.
        struct Calling<'a>(&'a Cell<bool>);
        impl Drop for Calling<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        if self.is_calling.replace(true) {
            return 0;
        }
        let _calling = Calling(&self.is_calling);
        let mut called = 0;
        self.state.borrow_mut().take();
        loop {
            let ended = self.state.borrow_mut().other().next_ended();
            let Some(ended) = ended else { return called };
            called += 1;
            let outcome = match ended.failure {
                Some(error) => Err(error),
                // SAFETY: the bytes lie in the buffer that the kernel is done with. It takes no
                // requests before settle() reports that this callback, the last with them, has
                // returned; is_calling excludes others.
                None => Ok(unsafe { std::slice::from_raw_parts(ended.start, ended.len) }),
            };
            ended.callback.call(outcome);
            let state = &mut *self.state.borrow_mut();
            if state.other().settle() {
                state.kernel_has_other = false;
            }
        }
    }

    /// Sleeps until the kernel has completed something.
    #[cold]
    fn suspend(&self) {
        if !self.sleeper.suspend(self) {
            self.state.borrow_mut().ring.wait_for_completion();
        }
    }
}

impl Completions for Inner {
    fn poll(&self) -> usize {
        if self.is_calling.get() {
            return 0;
        }
        let called = self.call_back();
        let state = &mut *self.state.borrow_mut();
        if state.is_due(self.interval_ns) {
            state.turn();
        }
        called
    }

    fn has_work(&self) -> bool {
        !self.is_calling.get() && (self.has_completions() || self.state.borrow().is_due(self.interval_ns))
    }

    fn flush(&self) {
        if self.is_calling.get() {
            return;
        }
        loop {
            let called = self.call_back();
            {
                let state = &mut *self.state.borrow_mut();
                if !state.kernel_has_other {
                    if state.buffers[state.filling].is_empty() {
                        return;
                    }
                    state.turn();
                    continue;
                }
            }
            if called == 0 {
                self.suspend();
            }
        }
    }

    fn has_completions(&self) -> bool {
        self.state.borrow_mut().ring.has_completions()
    }

    fn longest_sleep(&self) -> Duration {
        let state = self.state.borrow();
        if state.kernel_has_other || state.buffers[state.filling].is_empty() {
            return Duration::MAX;
        }
        Duration::from_nanos(state.since_ns.saturating_add(self.interval_ns).saturating_sub(monotonic_ns()))
    }

    fn wait(&self, doorbells: Doorbells, timeout: Duration) {
        let state = &mut *self.state.borrow_mut();
        let under_way = state.kernel_has_other;
        state.ring.wait(doorbells, timeout, under_way);
    }
}

impl Drop for Inner {
    /// The kernel writes to the buffers until it is done. No callback is called.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        while state.other().with_kernel() > 0 {
            while let Some((name, result)) = state.ring.next() {
                let failed = result.min(0);
                // A short or interrupted operation is not repeated: it counts as failed.
                if state.buffers[1 - state.filling].answer(name as usize, failed).is_some() {
                    let _ = state.buffers[1 - state.filling].answer(name as usize, -libc::ECANCELED);
                }
            }
            if state.other().with_kernel() > 0 {
                state.ring.wait_for_completion();
            }
        }
    }
}
