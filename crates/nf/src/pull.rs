//! Pull style: the NF owns the loop, reads packets and writes them back.
//!
//! ```no_run
//! # fn main() -> Result<(), sluice_nf::NfError> {
//! let mut nf = sluice_nf::pull::Nf::attach()?;
//! while let Some(mut packet) = nf.read()? {
//!     packet.packet().data_mut()[0] = 0;
//!     nf.write(packet)?;
//! }
//! # Ok(())
//! # }
//! ```
//! A packet that is dropped (in Rust's sense) without being written goes back to the manager as
//! dropped, even when the thread unwinds or the [`Nf`] is gone first: no frame is lost. Reading
//! costs a few nanoseconds more than callback style; use [`Nf::read_burst`] where that counts.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use sluice_shm::BURST;
use sluice_shm::descriptor::{Descriptor, Verdict as RawVerdict};

use crate::context::Context;
use crate::engine::Engine;
use crate::error::{AttachError, NfError};
use crate::options::Options;
use crate::packet::Packet;
use crate::signals;
use crate::zygote;

#[cfg(feature = "trace")]
use crate::trace::pull::{Feed, apart, reading, within};

#[cfg(not(feature = "trace"))]
#[inline(always)]
fn apart<T>(library: impl FnOnce() -> T) -> T {
    library()
}

#[cfg(not(feature = "trace"))]
use {apart as reading, apart as within};

struct Shared {
    engine: RefCell<Engine>,
}

/// An attached NF, pull style. It belongs to one thread.
pub struct Nf {
    shared: Rc<Shared>,
    context: Context,
    /// When the current packets were read, if their service time is sampled, and their number.
    sampling: Option<(u64, usize)>,
    /// Source of packets in a traced run.
    #[cfg(feature = "trace")]
    feed: Option<Feed>,
}

/// A packet that was read and not yet written.
pub struct OwnedPacket {
    descriptor: Descriptor,
    shared: Rc<Shared>,
}

impl OwnedPacket {
    /// The packet, to read, change and give a verdict.
    #[inline(always)]
    pub fn packet(&mut self) -> Packet<'_> {
        let engine = self.shared.engine.borrow();
        let arena = engine.arena();
        let stride = arena.geometry().stride;
        let frame = arena.frame_ptr(self.descriptor.frame).expect("read() checked the frame");
        // SAFETY: read() checked that the packet lies in its frame, which is this value's alone
        // until written or dropped. The borrow excludes a second Packet; self keeps the arena
        // mapped.
        unsafe { Packet::new(&mut self.descriptor, frame, stride) }
    }
}

impl Drop for OwnedPacket {
    fn drop(&mut self) {
        self.descriptor.verdict = RawVerdict::Drop as u8;
        // If the manager is gone or broken this fails, and the next read reports it.
        let _ = apart(|| self.shared.engine.borrow_mut().send(&[self.descriptor]));
    }
}

impl Nf {
    /// Attaches to the manager that the environment or the arguments name ([`Options::from_env`]).
    ///
    /// # Errors
    /// [`NfError::Attach`], which says what to do.
    pub fn attach() -> Result<Self, NfError> {
        Self::attach_with(&Options::from_env())
    }

    /// Attaches to the manager that `options` name.
    ///
    /// # Errors
    /// As [`Nf::attach`].
    pub fn attach_with(options: &Options) -> Result<Self, NfError> {
        #[cfg(feature = "trace")]
        if let Some(traffic) = crate::trace::asked() {
            return Self::traced(traffic);
        }
        if options.zygote {
            zygote::decline(options, "it is written in pull style")?;
            return Err(AttachError::PullZygote.into());
        }
        let (mut engine, context) = Engine::attach(options)?;
        engine.ready();
        Ok(Self::new(engine, context))
    }

    /// An NF without a manager, on generated packets.
    #[cfg(feature = "trace")]
    pub(crate) fn traced(traffic: Result<crate::trace::TracedTraffic, String>) -> Result<Self, NfError> {
        let (engine, context, feed) = crate::trace::pull::attach(traffic)?;
        Ok(Self { feed: Some(feed), ..Self::new(engine, context) })
    }

    fn new(engine: Engine, context: Context) -> Self {
        Self {
            shared: Rc::new(Shared { engine: RefCell::new(engine) }),
            context,
            sampling: None,
            #[cfg(feature = "trace")]
            feed: None,
        }
    }

    /// The NF's surroundings: ports, services and chains.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether this NF got another flow since the last call. If so it must forget its state before
    /// it handles packets read meanwhile. Call after each read of a service with `per = "flow"`.
    pub fn must_clean(&mut self) -> bool {
        let mut engine = self.shared.engine.borrow_mut();
        let must = engine.must_clean();
        if must {
            engine.cleaned();
        }
        must
    }

    /// Now, in nanoseconds of CLOCK_MONOTONIC.
    pub fn now_ns(&self) -> u64 {
        self.shared.engine.borrow().now_ns()
    }

    /// Waits for a packet. None: stop, on a signal or on request with nothing left to read.
    ///
    /// # Errors
    /// [`NfError::ManagerGone`], [`NfError::Broken`].
    pub fn read(&mut self) -> Result<Option<OwnedPacket>, NfError> {
        let mut one = [Descriptor::default()];
        loop {
            match self.take(&mut one, None)? {
                None => return Ok(None),
                // Only callbacks of the storage have run.
                Some(0) => {}
                Some(_) => return Ok(Some(self.own(one[0]))),
            }
        }
    }

    /// Waits up to `timeout` (None: for ever) for packets, adds up to 32 to `out` and returns how
    /// many: 0 after the timeout, or after callbacks of a [`storage`](crate::storage). None: stop,
    /// as [`Nf::read`], with the storage flushed.
    ///
    /// # Errors
    /// As [`Nf::read`].
    pub fn read_burst(&mut self, out: &mut Vec<OwnedPacket>, timeout: Option<Duration>) -> Result<Option<usize>, NfError> {
        let mut burst = [Descriptor::default(); BURST];
        let n = self.take(&mut burst, timeout)?;
        out.extend(burst[..n.unwrap_or(0)].iter().map(|d| self.own(*d)));
        Ok(n)
    }

    /// Returns a packet to the manager with its verdict.
    ///
    /// # Errors
    /// As [`Nf::read`].
    pub fn write(&mut self, packet: OwnedPacket) -> Result<(), NfError> {
        self.send(&[packet.into_descriptor()])
    }

    /// Returns packets to the manager, in order. `packets` is empty afterwards.
    ///
    /// # Errors
    /// As [`Nf::read`].
    pub fn write_burst(&mut self, packets: &mut Vec<OwnedPacket>) -> Result<(), NfError> {
        let mut burst = [Descriptor::default(); BURST];
        while !packets.is_empty() {
            let n = packets.len().min(BURST);
            for (slot, packet) in burst.iter_mut().zip(packets.drain(..n)) {
                *slot = packet.into_descriptor();
            }
            self.send(&burst[..n])?;
        }
        Ok(())
    }

    fn own(&self, descriptor: Descriptor) -> OwnedPacket {
        OwnedPacket { descriptor, shared: self.shared.clone() }
    }

    pub(crate) fn send(&mut self, descriptors: &[Descriptor]) -> Result<(), NfError> {
        apart(|| self.shared.engine.borrow_mut().send(descriptors))
    }

    pub(crate) fn with_arena<T>(&self, f: impl FnOnce(&sluice_shm::arena::Arena) -> T) -> T {
        f(self.shared.engine.borrow().arena())
    }

    /// Waits for descriptors, checks them and sets their verdicts to `Next`. None is a stop; 0 the
    /// timeout or callbacks of the storage.
    pub(crate) fn take(&mut self, out: &mut [Descriptor], timeout: Option<Duration>) -> Result<Option<usize>, NfError> {
        reading(|| self.wait_for(out, timeout))
    }

    #[inline(always)]
    fn wait_for(&mut self, out: &mut [Descriptor], timeout: Option<Duration>) -> Result<Option<usize>, NfError> {
        let sleeper = self.shared.engine.borrow().sleeper();
        let deadline = self.begin(timeout)?;
        if signals::stopped() {
            sleeper.flush();
            return Ok(None);
        }
        loop {
            // Not while the engine is borrowed: a callback may return packets.
            let called = within(|| sleeper.poll());
            #[cfg(feature = "trace")]
            if let Some(feed) = &mut self.feed {
                feed.turn(self.shared.engine.borrow().arena())?;
            }
            let engine = &mut *self.shared.engine.borrow_mut();
            if engine.is_shut_out() {
                engine.stand()?;
            }
            let stop = engine.must_stop();
            let n = engine.receive(out)?;
            if n > 0 {
                let now = engine.now_ns();
                if engine.is_sample_due(now) {
                    self.sampling = Some((now, n));
                }
                return Ok(Some(n));
            }
            if called > 0 {
                return Ok(Some(0));
            }
            if stop || signals::stopped() {
                break;
            }
            engine.wait(deadline)?;
            let now = engine.now_ns();
            if engine.is_glance_due(now) {
                engine.glance(now)?;
            }
            if deadline.is_some_and(|d| now >= d) {
                return Ok(Some(0));
            }
        }
        sleeper.flush();
        Ok(None)
    }

    /// Prepares a read: takes the last burst's sample and yields on request. Returns the deadline.
    fn begin(&mut self, timeout: Option<Duration>) -> Result<Option<u64>, NfError> {
        let engine = &mut *self.shared.engine.borrow_mut();
        let now = engine.now_ns();
        if let Some((since, packets)) = self.sampling.take() {
            if !engine.sleeper().has_waited() {
                engine.sample(packets, now, now.saturating_sub(since));
            }
            engine.glance(now)?;
        }
        let deadline = timeout.map(|t| now.saturating_add(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)));
        if !signals::stopped() && engine.must_yield(now) {
            engine.rest(deadline)?;
        }
        Ok(deadline)
    }
}

impl OwnedPacket {
    /// The descriptor, without the drop that returns the frame.
    fn into_descriptor(self) -> Descriptor {
        let mut this = std::mem::ManuallyDrop::new(self);
        let descriptor = this.descriptor;
        // SAFETY: the Rc is dropped only here: ManuallyDrop suppresses the destructor of self.
        unsafe { std::ptr::drop_in_place(&raw mut this.shared) };
        descriptor
    }
}
