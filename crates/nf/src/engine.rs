//! An attached NF: its rings, its page, its clock, and how it waits.
//!
//! # Terms
//! `taken` is the number of descriptors ever dequeued from all rx rings, modulo 2³²; the other NFs
//! of the core and the manager compare it with what was posted. To *linger* is to go on looking for
//! packets before sleeping. A *glance* is the check, about once a millisecond, of the clock's
//! drift, the manager's socket and the tick.
//!
//! # Approach
//! Per burst the packet path reads the time-stamp counter, two control words and the rings, and
//! writes its own cursors and counters: no lock, no system call, no allocation. All system calls
//! are in [`Engine::wait`], [`Engine::suspend`] and, once a second, the glance.
//!
//! An NF sleeps for at most a second, so that it leaves by itself after its manager has died, which
//! hangs up its socket.
//!
//! # Sources
//! Sampling the service time about once a millisecond and skipping the first ten samples: NFVnice
//! (SIGCOMM 2017), section 3.2.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::thread::{CpuSet, sched_setaffinity};
use sluice_shm::BURST;
use sluice_shm::arena::Arena;
use sluice_shm::clock::Clock;
use sluice_shm::core_page::CorePage;
use sluice_shm::descriptor::{Descriptor, Verdict as RawVerdict};
use sluice_shm::doorbell;
use sluice_shm::handshake::{self, Hello};
use sluice_shm::page::{Attached, Control, Counter, Page};
use sluice_shm::ring::{Consumer, Producer, WildCursor};

use crate::context::Context;
use crate::error::{AttachError, NfError};
use crate::gate;
use crate::options::Options;
use crate::signals;
use crate::sleeper::{Place, Sleeper};

/// Longest sleep: how late an orphan notices that its manager is gone.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Longest sleep of an NF whose tx ring is full.
const SUSPENDED: Duration = Duration::from_millis(1);
/// Nanoseconds between glances, and between service-time samples.
const GLANCE_NS: u64 = 1_000_000;
/// Longest time that cursors of finished bursts are held back while more wait, in nanoseconds.
const PUBLISH_NS: u64 = 8_000;
/// Nanoseconds between checks of the manager's socket.
const SOCKET_NS: u64 = 1_000_000_000;
/// First samples, which are skipped: they measure cold caches.
const COLD_SAMPLES: u32 = 10;

pub(crate) struct Engine {
    arena: Arena,
    rx: Vec<Consumer>,
    tx: Producer,
    page: Page,
    /// Leaked: a signal handler may ring its doorbell at any time.
    core: &'static CorePage,
    slot: u32,
    linger_ns: u64,
    poll: bool,
    sleeper: Rc<Sleeper>,
    socket: OwnedFd,
    clock: Clock,
    /// Ring that the next burst starts with.
    turn: usize,
    taken: u32,
    glance_at: u64,
    socket_at: u64,
    samples: u32,
    /// Time at which cursors are published in any case, in nanoseconds.
    publish_at: u64,
    /// Time at which the next service-time sample is due, in nanoseconds.
    sample_at: u64,
    sampled_at: u32,
    /// The last [`Control::Reset`] for which the state was cleaned.
    cleaned: u32,
}

/// Moves the process to its core. If that fails it stays where it is: slower, never wrong.
fn pin(core: Option<u32>) {
    let Some(core) = core.map(|c| c as usize).filter(|c| *c < CpuSet::MAX_CPU) else { return };
    let mut cpus = CpuSet::new();
    cpus.set(core);
    let _ = sched_setaffinity(None, &cpus);
}

/// Connects to the manager of `options`. Returns the connection and the name to attach by.
pub(crate) fn connect(options: &Options) -> Result<(OwnedFd, String), AttachError> {
    let path = options.socket.as_deref().ok_or(AttachError::NoSocket)?;
    let name = options.name.clone().ok_or(AttachError::NoName)?;
    let fail = |source| AttachError::Connect { path: path.to_owned(), source };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(fail)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).map_err(fail)?).map_err(fail)?;
    Ok((socket, name))
}

impl Engine {
    /// Connects to the manager, maps what it passes and moves to the assigned core.
    pub(crate) fn attach(options: &Options) -> Result<(Self, Context), AttachError> {
        let (socket, name) = connect(options)?;
        let (welcome, [arena, region, core]) = handshake::attach(&socket, &Hello { name, is_zygote: false })?;

        let arena = Arena::map(arena.as_fd(), welcome.geometry)?;
        let Attached { page, rx, tx } = Attached::map(region.as_fd(), welcome.region)?;
        let core: &'static CorePage = Box::leak(Box::new(CorePage::map(core.as_fd(), welcome.slots, welcome.hands_over)?));
        let poll = welcome.poll;
        let shared: &'static Page = Box::leak(Box::new(page.clone()));
        let clock = Cell::new(Clock::with_scale(welcome.clock_scale));
        let place = Place { core, slot: welcome.slot, poll, page: shared, clock };
        let context = Context { page: Some(page.clone()), ..Context::of(&welcome) };
        pin(context.core);
        doorbell::look_for_more();
        if options.signals {
            signals::install([shared.doorbell(), core.doorbell(welcome.slot)]);
        }
        gate::prepare(&page, &socket, poll, options.signals);
        Ok((Self::new(arena, rx, tx, place, u64::from(welcome.linger_ns), socket), context))
    }

    pub(crate) fn new(arena: Arena, rx: Vec<Consumer>, tx: Producer, place: Place, linger_ns: u64, socket: OwnedFd) -> Self {
        let Place { core, slot, poll, page, ref clock } = place;
        let clock = clock.get();
        let taken = rx.iter().fold(0u32, |sum, ring| sum.wrapping_add(ring.cursor()));
        let now = clock.now_ns();
        Self {
            arena,
            rx,
            tx,
            page: page.clone(),
            core,
            slot,
            linger_ns,
            poll,
            sleeper: Sleeper::new(place),
            socket,
            clock,
            turn: 0,
            taken,
            glance_at: now + GLANCE_NS,
            socket_at: now + SOCKET_NS,
            samples: 0,
            publish_at: 0,
            sample_at: 0,
            sampled_at: taken,
            cleaned: 0,
        }
    }

    /// Reports to the manager that packets can come.
    pub(crate) fn ready(&mut self) {
        // Relaxed: hints for the other NFs of the core; sleep() corrects both.
        self.core.asleep(self.slot).store(0, Ordering::Relaxed);
        self.core.taken(self.slot).store(self.taken, Ordering::Relaxed);
        // Release: the handler's set-up comes before the manager's read of it.
        self.page.counter(Counter::Ready).store(1, Ordering::Release);
        // The loss of a manager is noticed later.
        let _ = handshake::send(self.socket.as_fd(), &handshake::ready(), &[]);
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The NF's sleeper, through which storage is polled without a borrow of the engine.
    pub(crate) fn sleeper(&self) -> Rc<Sleeper> {
        self.sleeper.clone()
    }

    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Takes up to `out.len()` descriptors from the rx rings, from another ring first each time,
    /// and returns how many. Each lies in its frame, and its verdict is `Next`.
    #[inline]
    pub(crate) fn receive(&mut self, out: &mut [Descriptor]) -> Result<usize, NfError> {
        // SAFETY: out is ours.
        let n = unsafe { self.gather(NonNull::from(out)) }?;
        if n > 0 {
            self.publish();
        }
        Ok(n)
    }

    /// As [`Engine::receive`], straight into the tx ring, where the burst is handled and then sent
    /// by [`Engine::send_burst`]: one copy per descriptor. Nothing of it is visible before
    /// [`Engine::publish`].
    #[inline]
    pub(crate) fn receive_burst(&mut self) -> Result<(NonNull<Descriptor>, usize), NfError> {
        let mut slots = self.tx.slots(BURST).map_err(broken)?;
        if slots.is_empty() {
            if !self.has_packets() {
                return Ok((slots.cast(), 0));
            }
            self.suspend(&[])?;
            slots = self.tx.slots(BURST).map_err(broken)?;
        }
        // SAFETY: the slots are this side's until they are published.
        let n = unsafe { self.gather(slots) }?;
        if n > 0 {
            self.tx.prefetch(n);
            if !self.keeps_back() {
                self.publish();
            }
        }
        Ok((slots.cast(), n))
    }

    /// Whether packets wait. A wild cursor counts as packets: the next read reports it.
    #[cold]
    fn has_packets(&mut self) -> bool {
        self.rx.iter_mut().any(|ring| ring.available() != Ok(0))
    }

    /// # Safety
    /// `out` may be written to, and no other code reads it.
    #[inline(always)]
    unsafe fn gather(&mut self, out: NonNull<[Descriptor]>) -> Result<usize, NfError> {
        let geometry = self.arena.geometry();
        let rings = self.rx.len();
        let (mut n, mut valid) = (0, true);
        for i in 0..rings {
            let index = self.turn + i;
            let ring = &mut self.rx[if index >= rings { index - rings } else { index }];
            ring.read_words(out.len() - n, |words| {
                let Descriptor { frame, offset, len, .. } = Descriptor::from_words(words);
                valid &= geometry.contains(frame, offset, len);
                // SAFETY: read_words() calls at most out.len() times, so n is below the length.
                unsafe { out.cast::<[u64; 2]>().add(n).write_unaligned(Descriptor::with_next(words)) };
                n += 1;
            })
            .map_err(broken)?;
            // Fetches what the next call reads while the handler works.
            ring.prefetch_known();
            if n == out.len() {
                break;
            }
        }
        self.turn = if self.turn + 1 >= rings { 0 } else { self.turn + 1 };
        self.taken = self.taken.wrapping_add(n as u32);
        if valid { Ok(n) } else { Err(NfError::Broken("a descriptor is out of its frame")) }
    }

    /// Publishes what was read and what was returned.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // The slots first: the manager may post another packet for each one it sees returned.
        self.rx.iter().for_each(Consumer::release);
        self.tx.publish();
        self.core.note_returned(self.slot);
        // Relaxed: a hint for the other NFs of the core.
        self.core.taken(self.slot).store(self.taken, Ordering::Relaxed);
    }

    /// Whether cursors may be published late. Not if the NF may sleep in its handler, for its
    /// storage. An NF that is stopped from outside meanwhile has more packets, and so runs again.
    #[inline(always)]
    fn keeps_back(&self) -> bool {
        self.sleeper.storage().is_none()
    }

    /// Publishes after the burst that began at `now`, unless more bursts wait and the last time was
    /// recent: each publishing moves cache lines to the manager's core and back.
    #[inline(always)]
    pub(crate) fn publish_at(&mut self, now: u64) {
        let is_last = self.rx.iter().all(|ring| (ring.known() as usize) < BURST);
        if is_last || now >= self.publish_at || !self.keeps_back() {
            self.publish_at = now + PUBLISH_NS;
            self.publish();
        }
    }

    /// Returns frames to the manager and counts them. Waits if the tx ring is full, which an honest
    /// NF never sees: no more packets are inside an NF than its ring holds.
    #[inline]
    pub(crate) fn send(&mut self, descriptors: &[Descriptor]) -> Result<(), NfError> {
        let drops = descriptors.iter().filter(|d| d.verdict == RawVerdict::Drop as u8).count();
        let sent = self.tx.write(descriptors).map_err(broken)?;
        if sent < descriptors.len() {
            self.publish();
            self.suspend(&descriptors[sent..])?;
        }
        self.publish();
        self.count(descriptors.len(), drops);
        Ok(())
    }

    /// Returns the received burst of `n` in place; visible after [`Engine::publish`].
    #[inline]
    pub(crate) fn send_burst(&mut self, n: usize, drops: usize) {
        self.tx.advance(n);
        self.count(n, drops);
    }

    #[inline(always)]
    fn count(&self, packets: usize, drops: usize) {
        self.page.add(Counter::Packets, packets as u64);
        self.page.add(Counter::Bursts, 1);
        if drops > 0 {
            self.page.add(Counter::Drops, drops as u64);
        }
    }

    /// Waits until the tx ring has taken all of `rest`; with no rest, until it has room.
    #[cold]
    fn suspend(&mut self, mut rest: &[Descriptor]) -> Result<(), NfError> {
        let must_have_room = rest.is_empty();
        loop {
            rest = &rest[self.tx.write(rest).map_err(broken)?..];
            self.publish();
            if rest.is_empty() && !(must_have_room && self.tx.room().map_err(broken)? == 0) {
                return Ok(());
            }
            self.look_at_socket()?;
            if self.poll {
                std::hint::spin_loop();
                continue;
            }
            let Self { sleeper, tx, page, .. } = self;
            page.add(Counter::Sleeps, 1);
            // A wild cursor counts as room: the next enqueue reports it.
            if sleeper.sleep(SUSPENDED, || tx.room() != Ok(0)) {
                page.add(Counter::HandOvers, 1);
            }
        }
    }

    /// Whether to give the core away after the burst that began at `now`: on the manager's request,
    /// or when this round's budget is used up and another NF has packets.
    #[inline(always)]
    pub(crate) fn must_yield(&mut self, now: u64) -> bool {
        // Relaxed: only the word matters.
        self.page.control(Control::Yield).load(Ordering::Relaxed) != 0 || self.sleeper.is_over_budget(now)
    }

    /// Whether the NF got another flow, and must forget the former one before it handles what it
    /// has read. Called after reading: the word changes before the new flow's first packet comes.
    #[inline(always)]
    pub(crate) fn must_clean(&self) -> bool {
        // Acquire: pairs with the manager's Release; packets read after the change are seen to be.
        self.page.control(Control::Reset).load(Ordering::Acquire) != self.cleaned
    }

    /// Reports that the state is clean.
    #[cold]
    pub(crate) fn cleaned(&mut self) {
        self.cleaned = self.page.control(Control::Reset).load(Ordering::Acquire);
        // Release: the cleaning is done before the manager sees it. Whether this NF looks at its
        // gate, and the gate is closed.
        self.page.counter(Counter::Reset).store(self.cleaned.into(), Ordering::Release);
    }

    /// Whether this NF looks at its gate, and finds it closed.
    #[inline(always)]
    pub(crate) fn is_shut_out(&self) -> bool {
        sluice_shm::gate::is_closed(self.page.control(Control::Gate)) && !self.poll
    }

    /// Waits at the gate until it opens, or the NF is to leave.
    #[cold]
    pub(crate) fn stand(&mut self) -> Result<(), NfError> {
        self.publish();
        while self.is_shut_out() && !self.must_stop() && !signals::stopped() {
            sluice_shm::gate::wait(self.page.control(Control::Gate), Some(LONGEST_SLEEP));
            if self.now_ns() >= self.socket_at {
                self.look_at_socket()?;
            }
        }
        Ok(())
    }

    /// Whether the manager asked this NF to leave once its rx rings are empty.
    #[inline(always)]
    pub(crate) fn must_stop(&self) -> bool {
        // Acquire: the read of the rings that follows sees packets posted before the word.
        self.page.control(Control::Stop).load(Ordering::Acquire) != 0
    }

    /// Whether packets or a stop wait. A wild cursor counts as packets: receive() reports it.
    #[inline]
    fn has_work(rx: &mut [Consumer], page: &Page) -> bool {
        rx.iter_mut().any(|ring| ring.available() != Ok(0))
            || signals::stopped()
            || page.control(Control::Stop).load(Ordering::Relaxed) != 0
    }

    /// Waits for packets: lingers, then sleeps until there are any, until `deadline_ns`, or until a
    /// stop. A polling NF only pauses for a moment.
    #[cold]
    pub(crate) fn wait(&mut self, deadline_ns: Option<u64>) -> Result<(), NfError> {
        if self.poll {
            std::hint::spin_loop();
            return Ok(());
        }
        if self.linger_ns > 0 {
            let until = self.now_ns() + self.linger_ns;
            loop {
                if Self::has_work(&mut self.rx, &self.page)
                    || self.sleeper.storage().is_some_and(|storage| storage.has_completions())
                {
                    return Ok(());
                }
                let now = self.now_ns();
                if self.core.has_other(self.slot) || now >= until {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        self.sleep(deadline_ns, false)
    }

    /// Gives the core away after a burst on the manager's request, even with packets.
    #[cold]
    pub(crate) fn rest(&mut self, deadline_ns: Option<u64>) -> Result<(), NfError> {
        self.sleep(deadline_ns, true)
    }

    fn sleep(&mut self, deadline_ns: Option<u64>, with_work: bool) -> Result<(), NfError> {
        let now = self.now_ns();
        let timeout = match deadline_ns {
            Some(deadline) => Duration::from_nanos(deadline.saturating_sub(now)).min(LONGEST_SLEEP),
            None => LONGEST_SLEEP,
        };
        let mut slept = true;
        let Self { core, rx, page, slot, sleeper, .. } = self;
        let handed_over = sleeper.sleep(timeout, || {
            if with_work {
                if rx.iter_mut().any(|ring| ring.available() != Ok(0)) {
                    // sleep() cleared the bit; the core's other NFs must see that packets wait
                    // here.
                    core.set_pending(*slot, now);
                }
                slept = !(signals::stopped() || page.control(Control::Stop).load(Ordering::Relaxed) != 0);
            } else {
                slept = !Self::has_work(rx, page);
            }
            !slept
        });
        if slept {
            self.page.add(Counter::Sleeps, 1);
        }
        if handed_over {
            self.page.add(Counter::HandOvers, 1);
        }
        if self.now_ns() >= self.socket_at {
            self.look_at_socket()?;
        }
        Ok(())
    }

    /// Whether a service-time sample is due at `now`. Not part of the glance, which an NF that
    /// sleeps between bursts has when it wakes.
    #[inline(always)]
    pub(crate) fn is_sample_due(&self, now: u64) -> bool {
        now >= self.sample_at
    }

    #[inline(always)]
    pub(crate) fn is_glance_due(&self, now: u64) -> bool {
        now >= self.glance_at
    }

    #[cold]
    pub(crate) fn glance(&mut self, now: u64) -> Result<(), NfError> {
        self.glance_at = now + GLANCE_NS;
        if now >= self.socket_at { self.look_at_socket() } else { Ok(()) }
    }

    /// Records that `packets` took `ns`, plus their part of storage's time since the last sample.
    #[cold]
    pub(crate) fn sample(&mut self, packets: usize, now: u64, ns: u64) {
        self.sample_at = now + GLANCE_NS;
        let since = self.taken.wrapping_sub(std::mem::replace(&mut self.sampled_at, self.taken));
        let ns = ns + part_of(self.sleeper.storage_ns(), packets, since);
        if self.samples < COLD_SAMPLES {
            self.samples += 1;
            return;
        }
        self.page.service_time().record(ns);
        self.page.add(Counter::BusyNs, ns);
        self.page.add(Counter::Sampled, packets as u64);
    }

    #[cold]
    pub(crate) fn count_errors(&mut self, n: usize) {
        self.page.add(Counter::Errors, n as u64);
    }

    /// Checks the manager's socket, and corrects the clock's drift, once a second.
    fn look_at_socket(&mut self) -> Result<(), NfError> {
        self.clock.resync();
        self.sleeper.set_clock(self.clock);
        self.socket_at = self.now_ns() + SOCKET_NS;
        if gate::is_gone(self.socket.as_fd()) { Err(NfError::ManagerGone) } else { Ok(()) }
    }
}

impl Drop for Engine {
    /// However the NF ends (return, error or panic), no other NF waits for it.
    fn drop(&mut self) {
        self.sleeper.leave();
        gate::let_go(&self.socket);
    }
}

/// The part of `ns` for `packets` of `since`, which is not less.
fn part_of(ns: u64, packets: usize, since: u32) -> u64 {
    (u128::from(ns) * packets as u128 / u128::from(since.max(1))) as u64
}

#[cold]
fn broken(_: WildCursor) -> NfError {
    NfError::Broken("a ring cursor is where it cannot be")
}
