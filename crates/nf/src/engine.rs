//! An attached NF: its rings, its page, its clock, and how it waits.
//!
//! # Terms
//! `taken` is the number of descriptors ever dequeued from all rx rings, modulo 2³²; neighbours on the core and the manager compare
//! it with what was posted. To *linger* is to go on looking for packets before sleeping. A *glance* is the look about once a
//! millisecond at everything that need not be looked at every burst: the clock's drift, the manager's socket, the tick.
//!
//! # Approach
//! The packet path reads the time-stamp counter once a burst, two control words and the rings, and writes its own cursors and
//! counters: no lock, no system call, no allocation. All system calls are in [`Engine::wait`] and [`Engine::suspend`], and, once a
//! second, in the glance.
//!
//! An NF sleeps for at most a second at a time, so that one whose manager died (its socket then hangs up) leaves by itself.
//!
//! # Sources
//! Sampling the service time about once a millisecond and skipping the first ten samples: NFVnice (SIGCOMM 2017), section 3.2.

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
use crate::seat::{Place, Seat};
use crate::signals;

/// Longest sleep: how late an orphan notices that its manager is gone.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Longest sleep of an NF whose tx ring is full.
const SUSPENDED: Duration = Duration::from_millis(1);
/// Nanoseconds between glances, and between service-time samples.
const GLANCE_NS: u64 = 1_000_000;
/// Longest time for which the cursors of bursts that are done are kept back while more bursts wait, in nanoseconds.
const PUBLISH_NS: u64 = 8_000;
/// Nanoseconds between looks at the manager's socket.
const SOCKET_NS: u64 = 1_000_000_000;
/// Samples that say more about cold caches than about the handler.
const COLD_SAMPLES: u32 = 10;

/// An attached NF.
pub(crate) struct Engine {
    arena: Arena,
    rx: Vec<Consumer>,
    tx: Producer,
    page: Page,
    /// Leaked: a signal handler may ring the bell in it at any time.
    core: &'static CorePage,
    slot: u32,
    linger_ns: u64,
    poll: bool,
    /// Where it sleeps, and what its storage has to say.
    seat: Rc<Seat>,
    socket: OwnedFd,
    clock: Clock,
    /// Ring that the next burst starts with.
    turn: usize,
    taken: u32,
    glance_at: u64,
    socket_at: u64,
    samples: u32,
    /// When cursors are published whatever waits, in nanoseconds.
    publish_at: u64,
    /// When the next service-time sample is due, in nanoseconds.
    sample_at: u64,
    /// `taken` at the last sample.
    sampled_at: u32,
    /// The last [`Control::Reset`] that the state was cleaned for.
    cleaned: u32,
}

/// Moves the process to its core. It stays where it is if it may not, or the core is not there for it: slower, never wrong.
fn pin(core: Option<u32>) {
    let Some(core) = core.map(|c| c as usize).filter(|c| *c < CpuSet::MAX_CPU) else { return };
    let mut cpus = CpuSet::new();
    cpus.set(core);
    let _ = sched_setaffinity(None, &cpus);
}

/// Connects to the manager that `options` name. Gives the connection, and the name to come under.
pub(crate) fn connect(options: &Options) -> Result<(OwnedFd, String), AttachError> {
    let path = options.socket.as_deref().ok_or(AttachError::NoSocket)?;
    let name = options.name.clone().ok_or(AttachError::NoName)?;
    let fail = |source| AttachError::Connect { path: path.to_owned(), source };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(fail)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).map_err(fail)?).map_err(fail)?;
    Ok((socket, name))
}

impl Engine {
    /// Connects to the manager, maps what it passes and moves to the core that it names.
    pub(crate) fn attach(options: &Options) -> Result<(Self, Context), AttachError> {
        let (socket, name) = connect(options)?;
        let (welcome, [arena, region, core]) = handshake::attach(&socket, &Hello { name, is_zygote: false })?;

        let arena = Arena::map(arena.as_fd(), welcome.geometry)?;
        let Attached { page, rx, tx } = Attached::map(region.as_fd(), welcome.region)?;
        let core: &'static CorePage = Box::leak(Box::new(CorePage::map(core.as_fd(), welcome.slots)?));
        let poll = welcome.poll;
        let shared: &'static Page = Box::leak(Box::new(page.clone()));
        let place = Place { core, slot: welcome.slot, poll, page: shared };
        let context = Context::of(&welcome);
        pin(context.core);
        doorbell::look_for_more();
        if options.signals {
            signals::install(if core.hands_over() && !doorbell::waits_for_more() {
                core.bell(welcome.slot)
            } else {
                shared.bell()
            });
        }
        gate::prepare(&page, &socket, poll, options.signals);
        let clock = Clock::with_scale(welcome.clock_scale);
        Ok((Self::new(arena, rx, tx, place, u64::from(welcome.linger_ns), socket, clock), context))
    }

    /// One with these rings, at this place. It lingers so many nanoseconds.
    pub(crate) fn new(
        arena: Arena,
        rx: Vec<Consumer>,
        tx: Producer,
        place: Place,
        linger_ns: u64,
        socket: OwnedFd,
        clock: Clock,
    ) -> Self {
        let Place { core, slot, poll, page } = place;
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
            seat: Seat::new(place),
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

    /// Tells the manager that packets can come.
    pub(crate) fn ready(&mut self) {
        // Relaxed: a hint for neighbours; sleep() sets both right.
        self.core.asleep(self.slot).store(0, Ordering::Relaxed);
        self.core.taken(self.slot).store(self.taken, Ordering::Relaxed);
        // Release: whatever the handler set up is done before the manager sees it.
        self.page.counter(Counter::Ready).store(1, Ordering::Release);
        // A manager that is gone is noticed later.
        let _ = handshake::send(self.socket.as_fd(), &handshake::ready(), &[]);
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Where the NF sleeps. Its storage is polled through it, with no borrow of the engine that a callback may need.
    pub(crate) fn seat(&self) -> Rc<Seat> {
        self.seat.clone()
    }

    /// Now, in nanoseconds of CLOCK_MONOTONIC.
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Takes up to `out.len()` descriptors from the rx rings, beginning with another ring each time, and says how many. Each lies in
    /// its frame, and its verdict is `Next`.
    #[inline]
    pub(crate) fn receive(&mut self, out: &mut [Descriptor]) -> Result<usize, NfError> {
        // SAFETY: out is ours.
        let n = unsafe { self.gather(NonNull::from(out)) }?;
        if n > 0 {
            self.publish();
        }
        Ok(n)
    }

    /// Takes a burst from the rx rings to where it is returned, in the tx ring, and says how many: to be handled there and then sent
    /// with [`Engine::send_burst`]. So a descriptor is copied once. Otherwise as [`Engine::receive`]; nobody sees what was read until
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

    /// Packets wait. A wild cursor counts as packets: who reads then reports it.
    #[cold]
    fn has_packets(&mut self) -> bool {
        self.rx.iter_mut().any(|ring| ring.available() != Ok(0))
    }

    /// # Safety
    /// `out` may be written to, and nobody else looks at it.
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
                // SAFETY: read_words() calls no more often than it was told to, so n is below the length.
                unsafe { out.cast::<[u64; 2]>().add(n).write_unaligned(Descriptor::with_next(words)) };
                n += 1;
            })
            .map_err(broken)?;
            // What the next call reads comes while the handler works.
            ring.prefetch_known();
            if n == out.len() {
                break;
            }
        }
        self.turn = if self.turn + 1 >= rings { 0 } else { self.turn + 1 };
        self.taken = self.taken.wrapping_add(n as u32);
        if valid { Ok(n) } else { Err(NfError::Broken("a descriptor is out of its frame")) }
    }

    /// Shows the others what was read and what was returned.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // The slots first: who sees a packet returned may post another for it.
        self.rx.iter().for_each(Consumer::release);
        self.tx.publish();
        self.core.note_returned(self.slot);
        // Relaxed: a hint for those who share the core.
        self.core.taken(self.slot).store(self.taken, Ordering::Relaxed);
    }

    /// Whether cursors are published later than they move. Not those of an NF that may sleep in its handler, for its storage. One that is
    /// stopped from outside while it keeps something back has more packets, and so another turn.
    #[inline(always)]
    fn keeps_back(&self) -> bool {
        self.seat.storage().is_none()
    }

    /// Publishes after the burst that began at `now`, unless more bursts wait and it was done a short while ago: each publishing takes
    /// lines away from the manager's core and back.
    #[inline(always)]
    pub(crate) fn publish_at(&mut self, now: u64) {
        let is_last = self.rx.iter().all(|ring| (ring.known() as usize) < BURST);
        if is_last || now >= self.publish_at || !self.keeps_back() {
            self.publish_at = now + PUBLISH_NS;
            self.publish();
        }
    }

    /// Returns frames to the manager, and counts. Waits if the tx ring is full, which an honest NF does not see: the manager lets no
    /// more packets into an NF than its ring holds.
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

    /// Returns the burst of `n` that was received last, where it lies; it is seen after [`Engine::publish`].
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
            let Self { seat, tx, page, .. } = self;
            page.add(Counter::Sleeps, 1);
            // A wild cursor counts as room: the next enqueue reports it.
            if seat.sleep(SUSPENDED, || tx.room() != Ok(0)) {
                page.add(Counter::HandOvers, 1);
            }
        }
    }

    /// Whether to give the core away after the burst that began at `now`: because the manager said so, or because the budget of this
    /// round is used up and another NF has packets.
    #[inline(always)]
    pub(crate) fn must_yield(&mut self, now: u64) -> bool {
        // Relaxed: only the word matters.
        self.page.control(Control::Yield).load(Ordering::Relaxed) != 0 || self.seat.is_over_budget(now)
    }

    /// Whether the NF was given to another flow, and has to forget the former one before it handles what it has read. Asked after
    /// reading: the word changes before the first packet of the new flow is there.
    #[inline(always)]
    pub(crate) fn must_clean(&self) -> bool {
        // Acquire: goes with the manager's release, so that what was read after the change is seen to be.
        self.page.control(Control::Reset).load(Ordering::Acquire) != self.cleaned
    }

    /// The state is clean.
    #[cold]
    pub(crate) fn cleaned(&mut self) {
        self.cleaned = self.page.control(Control::Reset).load(Ordering::Acquire);
        // Release: the cleaning is done before the manager sees it.
        self.page.counter(Counter::Reset).store(self.cleaned.into(), Ordering::Release);
    }

    /// Whether this NF looks at its gate, and finds it closed.
    #[inline(always)]
    pub(crate) fn is_shut_out(&self) -> bool {
        sluice_shm::gate::is_closed(self.page.control(Control::Gate)) && !self.poll
    }

    /// Waits at its gate until that is open, or the NF is to leave.
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
        // Acquire: packets posted before the word are seen by the look at the rings after it.
        self.page.control(Control::Stop).load(Ordering::Acquire) != 0
    }

    /// Packets wait, or a stop. A wild cursor counts as packets: receive() reports it.
    #[inline]
    fn has_work(rx: &mut [Consumer], page: &Page) -> bool {
        rx.iter_mut().any(|ring| ring.available() != Ok(0))
            || signals::stopped()
            || page.control(Control::Stop).load(Ordering::Relaxed) != 0
    }

    /// Called when there was nothing to receive: lingers, then sleeps until there is, until `deadline_ns`, or until a stop. A polling
    /// NF only pauses for a moment.
    #[cold]
    pub(crate) fn wait(&mut self, deadline_ns: Option<u64>) -> Result<(), NfError> {
        if self.poll {
            std::hint::spin_loop();
            return Ok(());
        }
        if self.linger_ns > 0 {
            let until = self.now_ns() + self.linger_ns;
            loop {
                if Self::has_work(&mut self.rx, &self.page) || self.seat.storage().is_some_and(|storage| storage.has_completions())
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

    /// Gives the core away after a burst because the manager said so, packets or not.
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
        let Self { core, rx, page, slot, seat, .. } = self;
        let handed_over = seat.sleep(timeout, || {
            if with_work {
                if rx.iter_mut().any(|ring| ring.available() != Ok(0)) {
                    // sleep() took the mark off; those who share the core must know that packets wait here.
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

    /// Whether a service-time sample is due at `now`. It has a time of its own: an NF that sleeps between bursts has its glances when
    /// it wakes, and would never be sampled by them.
    #[inline(always)]
    pub(crate) fn is_sample_due(&self, now: u64) -> bool {
        now >= self.sample_at
    }

    /// Whether a glance is due at `now`.
    #[inline(always)]
    pub(crate) fn is_glance_due(&self, now: u64) -> bool {
        now >= self.glance_at
    }

    /// The look at everything that need not be looked at every burst.
    #[cold]
    pub(crate) fn glance(&mut self, now: u64) -> Result<(), NfError> {
        self.glance_at = now + GLANCE_NS;
        if now >= self.socket_at { self.look_at_socket() } else { Ok(()) }
    }

    /// Notes that a burst of `packets` took `ns`, and with it its part of what storage has cost between bursts since the last sample.
    #[cold]
    pub(crate) fn sample(&mut self, packets: usize, now: u64, ns: u64) {
        self.sample_at = now + GLANCE_NS;
        let since = self.taken.wrapping_sub(std::mem::replace(&mut self.sampled_at, self.taken));
        let ns = ns + part_of(self.seat.storage_ns(), packets, since);
        if self.samples < COLD_SAMPLES {
            self.samples += 1;
            return;
        }
        self.page.service_time().record(ns);
        self.page.add(Counter::BusyNs, ns);
        self.page.add(Counter::Sampled, packets as u64);
    }

    /// Counts errors or a panic of the handler.
    #[cold]
    pub(crate) fn count_errors(&mut self, n: usize) {
        self.page.add(Counter::Errors, n as u64);
    }

    /// Whether the manager is still there; once a second also the time to take off the clock's drift.
    fn look_at_socket(&mut self) -> Result<(), NfError> {
        self.clock.resync();
        self.socket_at = self.now_ns() + SOCKET_NS;
        if gate::is_gone(self.socket.as_fd()) { Err(NfError::ManagerGone) } else { Ok(()) }
    }
}

impl Drop for Engine {
    /// However it ends, by a return, an error or a panic, its neighbours wait for nothing.
    fn drop(&mut self) {
        self.seat.leave();
        gate::let_go(&self.socket);
    }
}

/// The part of `ns` that `packets` of all `since` have. Both are of the same count, so `since` is no less.
fn part_of(ns: u64, packets: usize, since: u32) -> u64 {
    (u128::from(ns) * packets as u128 / u128::from(since.max(1))) as u64
}

#[cold]
fn broken(_: WildCursor) -> NfError {
    NfError::Broken("a ring cursor is where it cannot be")
}
