//! A hop: checks what an NF returns, and passes it to the next NF's ring or a port's buffer.
//!
//! # Checks
//! A descriptor is copied from the ring once. By the manager's private table, its frame must exist
//! and belong to this NF; offset and length must lie in the frame. Anything else is a violation.
//! Chain, flags and path come from the table, never from the descriptor. The frame is claimed in
//! the same step, so a descriptor that is sent twice is a violation the second time. Past the limit
//! of violations nothing more is taken from the NF; its frames come back when it is gone.
//!
//! # Ownership of frames
//! The words of the table change as [`sluice_ownership`] describes. A claimed frame belongs to this
//! thread, and passes to the next NF only once there is room on its ring. Without room, the owning
//! thread drops the packet. So a thread that has detached an NF's ring
//! ([`Worker::detach`](crate::worker::Worker::detach)) never makes that NF an owner again, and a
//! dead NF's frames are reclaimed ([`Plane::reclaim`]) once.
//!
//! # Packets that change tenants
//! Each tenant's packets lie in its own arena. A packet for an NF of another tenant is copied on
//! the way ([`Plane::enter`], `Plane::pass`). If that arena has no free frame, the packet is
//! dropped, which only the receiving tenant notices.

use std::sync::atomic::Ordering;

use sluice_ownership::in_hand;
use sluice_shm::BURST;
use sluice_shm::descriptor::{Descriptor, Verdict, flags};
use sluice_shm::page::{self, MAX_PARTS};

use crate::capture::{DropPlace, Point};
use crate::chain::registry::Course;
use crate::chain::{self, DropReason, NextHop, Path, PathKind, PathRegistry, Sent};
use crate::classify::key::{self, FlowKey, SHORT};
use crate::end::{Drain, Starts};
use crate::frame::{self, CopyPlace, DETOUR, Held, InFrame, MARKS, Packet, SAMPLED, TRACED, URGENT, owner};
use crate::handle::{NfHandle, Violation};
use crate::mark;
use crate::observers;
use crate::plane::Plane;
use crate::trace::{TraceEvent, TraceWhat};

impl Plane {
    /// Takes a burst from an NF's tx ring and passes every packet on. Returns how many there were.
    #[inline]
    pub fn forward(&mut self, registry: &PathRegistry, drain: &mut Drain) -> usize {
        if drain.is_cut_off {
            return 0;
        }
        let mut burst = [Descriptor::default(); BURST];
        match drain.consumer.dequeue(&mut burst) {
            Ok(0) => 0,
            Ok(n) => {
                drain.is_cut_off = !self.take(registry, &drain.handle, &mut burst[..n]);
                n
            }
            Err(_) => {
                drain.is_cut_off = drain.handle.violates(Violation::TxCursor, 1, self.settings.max_violations);
                0
            }
        }
    }

    /// Checks and passes on an NF's packets, in its draining thread. False: too many violations.
    #[inline(always)]
    pub fn take(&mut self, registry: &PathRegistry, handle: &NfHandle, burst: &mut [Descriptor]) -> bool {
        let geometry = self.frames.arena().geometry();
        let me = handle.owner();
        let n = burst.len();
        let (mut accepted, mut forged, mut what) = (0u64, 0, Violation::Frame);
        let mut i = 0;
        while i < n {
            let first = burst[i];
            let Some(word) = self.table.claim(first.frame, me) else {
                (forged, what) = (forged + 1, Violation::Frame);
                i += 1;
                continue;
            };
            let held = Held::unpack(word);
            accepted += 1;
            let Some(path) = registry.get(held.path) else {
                // Impossible: a path is not hidden while a frame names it.
                debug_assert!(false, "frame {} names path {}, which is not there", first.frame, held.path);
                self.discard(first.frame);
                i += 1;
                continue;
            };
            let hop = held.hop as usize;
            if first.verdict != 0 || held.flags & MARKS != 0 || !geometry.contains(first.frame, first.offset, first.len) {
                if let Some(violation) = self.special(registry, handle, path, held, first) {
                    (forged, what) = (forged + 1, violation);
                }
                i += 1;
                continue;
            }
            // A run: packets at the same hop of the same path, and so with the same word.
            let step = path.step(hop + 1);
            let next = word_after(step, hop + 1, held.flags, held.path);
            // A packet for a port gets its last word here: a device may free it.
            let meanwhile = match step {
                NextHop::Nf(_) => in_hand(word),
                NextHop::Port(_) => {
                    self.table.free(first.frame);
                    0
                }
            };
            let start = i;
            loop {
                let descriptor = &mut burst[i];
                descriptor.chain = path.chain.number;
                descriptor.arg = 0;
                descriptor.ingress = path.ingress;
                descriptor.flags = held.kind();
                i += 1;
                if i == n {
                    break;
                }
                let descriptor = &burst[i];
                if descriptor.verdict != 0
                    || !geometry.contains(descriptor.frame, descriptor.offset, descriptor.len)
                    || !self.table.claim_same(descriptor.frame, word, meanwhile)
                {
                    break;
                }
            }
            let count = i - start;
            accepted += count as u64 - 1;
            if path.hops[hop].last_visit {
                handle.release(count as u32);
            }
            self.pass_back(path, hop, step, &burst[start..i], next);
        }
        let returned = &handle.counters[self.index].api.tx_packets;
        if returned.get() == 0 && accepted > 0 {
            handle.first_return_ns.store(self.now_ns, Ordering::Relaxed);
        }
        returned.add(accepted);
        forged == 0 || !handle.violates(what, forged, self.settings.max_violations)
    }

    /// Handles a claimed packet that has a verdict other than next, is sampled or traced, or has an
    /// offset or length outside its frame. Returns the violation, if it is one.
    #[cold]
    pub(crate) fn special(
        &mut self,
        registry: &PathRegistry,
        handle: &NfHandle,
        path: &Path,
        held: Held,
        descriptor: Descriptor,
    ) -> Option<Violation> {
        let hop = held.hop as usize;
        if held.flags & TRACED != 0 {
            self.record_parts(handle, held, descriptor);
        }
        self.record_hop(descriptor.frame, descriptor.len, held.flags, held.path, TraceWhat::FromNf(handle.number));
        let is_inside = self.frames.arena().geometry().contains(descriptor.frame, descriptor.offset, descriptor.len);
        let verdict = if is_inside { Verdict::from_raw(descriptor.verdict) } else { None };
        let (chain, ingress) = (path.chain.number, path.ingress);
        let clean = Descriptor { chain, verdict: 0, flags: held.kind(), arg: 0, ingress, ..descriptor };
        let sent = match verdict {
            Some(Verdict::ToPort) if self.is_open(descriptor.arg) => {
                self.tables.may_send(handle.service, chain::VerdictTarget::Port(descriptor.arg))
            }
            Some(Verdict::ToService) => self.tables.may_send(handle.service, chain::VerdictTarget::Service(descriptor.arg)),
            _ => Sent::Goes,
        };
        if sent == Sent::Goes && verdict.is_some_and(|verdict| verdict != Verdict::Drop) {
            self.show_back(path, hop, &[Descriptor { verdict: descriptor.verdict, arg: descriptor.arg, ..clean }]);
        }
        match verdict {
            Some(Verdict::Next) => {
                if path.hops[hop].last_visit {
                    handle.release(1);
                }
                let step = path.step(hop + 1);
                self.go_on(path, held, hop + 1, step, clean);
            }
            Some(Verdict::Drop) => {
                handle.counters[self.index].api.verdict_drops.add(1);
                self.lose(path, held, hop, clean.packet(), DropReason::Verdict);
            }
            Some(Verdict::ToPort) if sent == Sent::Goes => {
                self.release_from(path, hop, 1);
                self.go_on(path, held, path.hops.len(), NextHop::Port(descriptor.arg), clean);
            }
            Some(Verdict::ToService) if sent == Sent::Goes => self.detour(registry, path, held, clean, descriptor.arg),
            Some(Verdict::ToPort | Verdict::ToService) => {
                self.lose(path, held, hop, clean.packet(), DropReason::NotAllowed);
                // A violation only if no configuration ever allowed it.
                return (sent == Sent::Violates).then_some(Violation::Destination);
            }
            None => {
                let packet = clean.packet();
                let packet = if is_inside { packet } else { self.as_received(packet.frame) };
                self.lose(path, held, hop, packet, DropReason::Violation);
                return Some(Violation::Descriptor);
            }
        }
        None
    }

    /// Records which parts of a group a traced packet passed, and when. One burst may have several
    /// traced packets; of each part the last burst's first is known.
    #[cold]
    fn record_parts(&self, handle: &NfHandle, held: Held, packet: Descriptor) {
        let Some(trace) = self.trace() else { return };
        let name = (self.entered_ns[packet.frame as usize].load(Ordering::Relaxed), packet.frame);
        // A process cannot have returned it after this. Handlers in this thread have.
        let latest = if self.runs_inline(handle.number) { u64::MAX } else { self.now_ns };
        for part in 0..MAX_PARTS {
            // An NF may write all words, whatever it is. Half of the room is for hops alone.
            if trace.events.len() >= trace.events.capacity() / 2 {
                break;
            }
            // Relaxed: see the group, which writes it before the descriptor.
            let word = handle.region.page.traced(part).map_or(0, |word| word.load(Ordering::Relaxed));
            if let Some(at_ns) = page::returned_at(word, packet.frame, self.now_ns) {
                let what = TraceWhat::FromPart(handle.number, part as u8);
                let (path, at_ns, len) = (Some(held.path), at_ns.min(latest), packet.len);
                // As in `record_hop`.
                let _ = trace.events.push(TraceEvent { packet: name, path, what, at_ns, len });
            }
        }
    }

    fn is_open(&self, port: u16) -> bool {
        self.out.get(usize::from(port)).is_some_and(|buffer| buffer.open)
    }

    /// Passes one packet on, with its marks.
    pub(crate) fn go_on(&mut self, path: &Path, held: Held, hop: usize, step: NextHop, mut descriptor: Descriptor) {
        let (frame, number) = (descriptor.frame, held.path);
        match step {
            NextHop::Nf(nf) => {
                self.record_hop(frame, descriptor.len, held.flags, number, TraceWhat::ToNf(nf));
                descriptor.flags = held.kind() | if held.flags & TRACED != 0 { flags::TRACED } else { 0 };
            }
            NextHop::Port(port) => {
                self.record_hop(frame, descriptor.len, held.flags, number, TraceWhat::ToPort(port));
                if held.flags & SAMPLED != 0 {
                    let entered_ns = self.entered_ns[frame as usize].load(Ordering::Relaxed);
                    let took = self.now_ns.saturating_sub(entered_ns);
                    let chain = path.chain.number as usize;
                    if let Some(observers) = &mut self.observers {
                        observers.end_timing(frame, entered_ns, took);
                    }
                    // The last packets of a chain that is gone are in no report.
                    if self.tables.chains.get(chain).is_some_and(Option::is_some) {
                        if self.latencies.len() <= chain {
                            self.latencies.resize(chain + 1, None);
                        }
                        self.latencies[chain].get_or_insert_default().record(took);
                    }
                }
                self.table.free(frame);
            }
        }
        self.urgent = held.flags & URGENT != 0;
        let word = word_after(step, hop, held.flags, number);
        self.pass(path, hop, step, &[descriptor], |_| word);
        self.urgent = false;
    }

    /// Drops a packet at hop `hop` of its path.
    pub(crate) fn lose(&mut self, path: &Path, held: Held, hop: usize, packet: Packet, why: DropReason) {
        self.lose_at(path, held, hop, packet, why, DropPlace::hop(path, hop));
    }

    /// As [`Self::lose`], for a packet that is dropped at another place than its hop.
    fn lose_at(&mut self, path: &Path, held: Held, hop: usize, packet: Packet, why: DropReason, place: Option<DropPlace>) {
        self.record_hop(packet.frame, 0, held.flags, held.path, TraceWhat::Dropped(why));
        self.show_lost(path, why, place, &[packet]);
        self.release_from(path, hop, 1);
        self.counters(path).drops[why as usize].add(1);
        self.discard(packet.frame);
    }

    /// Sends a packet to an instance of a service, chosen by the packet's current flow, and on to
    /// its chain's egress port. Unshared instances are assigned only where flows are steered. NFs
    /// that send a packet to each other keep it no longer than [`DETOURS`](frame::DETOURS) can
    /// count. What comes out of a foreign program is a new packet.
    fn detour(&mut self, registry: &PathRegistry, path: &Path, held: Held, descriptor: Descriptor, service: u16) {
        let hop = held.hop as usize;
        let Some(flags) = held.flags.checked_add(DETOUR) else {
            return self.lose(path, held, hop, descriptor.packet(), DropReason::NotAllowed);
        };
        let members = self.tables.services.get(service as usize).map_or(&[][..], |m| m);
        let mut header = [0; 64];
        let len = (descriptor.len as usize).min(header.len());
        self.frames.arena().read(descriptor.frame, descriptor.offset, &mut header[..len]);
        let hash = FlowKey::parse(&header[..len], descriptor.len, path.ingress).symmetric_hash();
        let Some(nf) = chain::picked(members, hash, self.index) else {
            let why = if self.tables.is_steered(service) { DropReason::NotShared } else { DropReason::NoSuchPort };
            return self.lose(path, held, hop, descriptor.packet(), why);
        };
        if self.runs_inline(nf) && path.hops.get(hop).is_some_and(|sender| self.runs_inline(sender.nf)) {
            // It would be called from here, and could do the same again.
            return self.lose(path, held, hop, descriptor.packet(), DropReason::NotAllowed);
        }
        let (ingress, chain, under) = (path.ingress, &path.chain, self.tables.generation);
        let number =
            registry.find(&mut self.ways, &Course { ingress, chain, nfs: &[nf], reversed: &[], kind: PathKind::Detour, under });
        let Some((number, detour)) = number.and_then(|number| Some((number, registry.get(number)?))) else {
            return self.lose(path, held, hop, descriptor.packet(), DropReason::NoSuchPort);
        };
        if self.admit_inside(detour, 1) == 0 {
            return self.lose_at(path, held, hop, descriptor.packet(), DropReason::RingFull, Some(DropPlace::Nf(nf)));
        }
        self.release_from(path, hop, 1);
        self.go_on(detour, Held { path: number, hop: 0, flags, ..held }, 0, NextHop::Nf(nf), descriptor);
    }

    /// Takes back every frame that a dead NF held, and returns how many. Packets that it returned
    /// before it died are passed on first.
    ///
    /// Only for the thread that drains the NF, once no thread has its producer any more.
    pub fn reclaim(&mut self, registry: &PathRegistry, drain: &mut Drain) -> usize {
        // The content of a full ring. A child process of the NF may still be writing.
        for _ in 0..drain.consumer.capacity() as usize / BURST + 1 {
            if self.forward(registry, drain) == 0 {
                break;
            }
        }
        // No thread posts to it any more, so it holds what was posted and not returned.
        let (posted, returned) = drain.handle.posted_returned();
        let (owner, mut left, mut taken) = (drain.handle.owner(), posted.saturating_sub(returned), 0);
        // All of them are in the arena that it maps; a program's may be in any.
        for frame in self.frames.frames_of(drain.handle.memory.load(Ordering::Relaxed)) {
            if left == 0 {
                break;
            }
            let Some(held) = self.table.reclaim(frame, owner) else { continue };
            left -= 1;
            taken += 1;
            match registry.get(held.path) {
                Some(path) => {
                    let packet = self.as_received(frame);
                    self.lose(path, held, held.hop as usize, packet, DropReason::NfDied);
                }
                // Impossible, as in `take`.
                None => {
                    debug_assert!(false, "frame {frame} names path {}, which is not there", held.path);
                    self.discard(frame);
                }
            }
        }
        debug_assert_eq!(left, 0, "{} has fewer frames than it was given and did not return", drain.handle.name);
        taken
    }

    /// The headers of the packet in a frame whose place in it is lost, to be shown: as a port
    /// received it, if no NF has moved it, and at most [`SHORT`] bytes. How long it was is not
    /// known: its headers may say more than it had, and another packet's bytes lie behind it. Empty
    /// if nothing looks.
    fn as_received(&self, frame: u32) -> Packet {
        if self.observers.is_none() {
            return Packet { frame, offset: 0, len: 0 };
        }
        let (bytes, there) = self.head_of(Packet::fresh(frame, SHORT as u16));
        let len = key::length(&bytes[..there]).unwrap_or(0);
        Packet::fresh(frame, len.min(there) as u16)
    }

    /// Passes on packets that came back from hop `hop`. `word` is the table word of each once an NF
    /// has it.
    #[inline(always)]
    pub(crate) fn pass_back(&mut self, path: &Path, hop: usize, step: NextHop, burst: &[Descriptor], word: u64) {
        self.show_back(path, hop, burst);
        self.pass(path, hop + 1, step, burst, |_| word);
    }

    /// Passes packets in this thread's hands to an NF's ring, or as copies to another tenant's, or
    /// to a port's buffer. `words` gives the table word of each once an NF has it.
    #[inline(always)]
    pub(crate) fn pass(&mut self, path: &Path, hop: usize, step: NextHop, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        match step {
            NextHop::Nf(nf) if self.frames.are_several() => self.cross(path, hop, nf, burst, words),
            _ => self.hand_on(path, hop, step, burst, words),
        }
    }

    /// Passes packets to an NF; copies those outside its tenant's memory into it.
    #[inline(never)]
    fn cross(&mut self, path: &Path, hop: usize, nf: u16, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        let memory = self.memory_of(nf);
        if memory == frame::NO_ARENA || burst.iter().all(|descriptor| self.frames.arena_of(descriptor.frame) == memory) {
            return self.hand_on(path, hop, NextHop::Nf(nf), burst, words);
        }
        let mut own = [Descriptor::default(); BURST];
        let own = &mut own[..burst.len().min(BURST)];
        own.copy_from_slice(&burst[..own.len()]);
        let (table, moving) = (&self.table, path.moving());
        let n = self.frames.bring(own, memory, CopyPlace::Crossing, |from, to| table.carry(from, to));
        drop(moving);
        for i in 0..n {
            let (from, to, held) = (burst[i].frame, own[i].frame, Held::unpack(words(i)));
            if from != to && held.flags & (SAMPLED | TRACED) != 0 {
                self.entered_ns[to as usize].store(self.entered_ns[from as usize].load(Ordering::Relaxed), Ordering::Relaxed);
                if let Some(observers) = &mut self.observers {
                    observers.move_timing(from, to);
                }
                self.record_hop(from, own[i].len, held.flags, held.path, TraceWhat::Crossed(to));
            }
        }
        if n > 0 {
            self.hand_on(path, hop, NextHop::Nf(nf), &own[..n], &words);
        }
        if n < own.len() {
            self.frames.count_starved(memory, own.len() - n);
            self.drop_from(path, hop, &own[n..], |i| words(n + i), DropReason::NoFrame);
        }
    }

    /// Passes packets that lie in the right arena to an NF's ring or a port's buffer.
    #[inline(always)]
    fn hand_on(&mut self, path: &Path, hop: usize, step: NextHop, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        if self.unannounced.len() == self.unannounced.capacity() {
            // Its memory does not grow here.
            self.announce();
        }
        match step {
            NextHop::Nf(nf) if self.runs_inline(nf) => {
                let words: [u64; BURST] = std::array::from_fn(words);
                self.run_inline(path, hop, nf, burst, &words);
            }
            NextHop::Nf(nf) => {
                let mut queued = 0;
                if let Some(Some(end)) = self.nfs.get_mut(nf as usize) {
                    let queue = end.queue(self.index);
                    if self.settings.backpressure && queue >= end.high {
                        self.alerts.raise(nf);
                    }
                    let must_mark = self.settings.ecn && end.must_mark(queue, self.now_ns);
                    if let Some(producer) = &mut end.producer {
                        let counters = &end.handle.counters[self.index];
                        let (arena, observers, now_ns) = (self.frames.arena(), &mut self.observers, self.now_ns);
                        let prepare = |burst: &[Descriptor]| {
                            if must_mark {
                                counters.sched.marked.add(mark::mark(arena, burst));
                            }
                            observers::show_on(observers, arena, now_ns, path, Point::ToNf(nf), burst);
                        };
                        match self.table.hand_over(producer, burst, &words, prepare) {
                            Ok(n) => {
                                queued = n;
                                end.posted = end.posted.wrapping_add(queued as u32);
                                counters.api.rx_packets.add(queued as u64);
                                let page = &end.handle.core_page;
                                if self.threads > 1 {
                                    page.posted(end.handle.slot).fetch_add(queued as u32, Ordering::Release);
                                } else if !end.handle.poll {
                                    page.posted(end.handle.slot).store(end.posted, Ordering::Release);
                                }
                                producer.prefetch_for(queued);
                                match end.starts {
                                    Starts::AtOnce if self.unannounced.last() != Some(&nf) => self.unannounced.push(nf),
                                    Starts::Held => {
                                        let (timers, n) = (&mut self.timers, queued as u32);
                                        end.hold_or_wake(timers, self.index, n, self.urgent, self.now_ns);
                                    }
                                    Starts::AtOnce | Starts::ByItself => {}
                                }
                            }
                            Err(_) => {
                                end.handle.violates(Violation::RxCursor, 1, self.settings.max_violations);
                            }
                        }
                    }
                }
                if queued < burst.len() {
                    self.refuse(path, hop, nf, &burst[queued..], |i| words(queued + i));
                }
            }
            NextHop::Port(port) => self.emit(path, port, burst),
        }
    }

    /// Drops packets that could not be passed to an NF.
    #[cold]
    pub(crate) fn refuse(&mut self, path: &Path, hop: usize, nf: u16, burst: &[Descriptor], words: impl Fn(usize) -> u64) {
        let gone = !matches!(self.nfs.get(nf as usize), Some(Some(end)) if end.is_there());
        let why = if gone { DropReason::NfGone } else { DropReason::RingFull };
        self.drop_from(path, hop, burst, words, why);
    }

    /// Drops packets that are on an NF's ring, at hop `hop` of their path.
    #[cold]
    pub fn drop_at(&mut self, path: &Path, hop: usize, burst: &[Descriptor], why: DropReason) {
        let words: Vec<u64> = burst.iter().map(|d| self.table.word(d.frame).unwrap_or(0)).collect();
        self.drop_from(path, hop, burst, |i| words[i], why);
    }

    pub(crate) fn drop_from(
        &mut self,
        path: &Path,
        hop: usize,
        burst: &[Descriptor],
        words: impl Fn(usize) -> u64,
        why: DropReason,
    ) {
        self.release_from(path, hop, burst.len() as u32);
        self.counters(path).drops[why as usize].add(burst.len() as u64);
        self.show_lost(path, why, DropPlace::hop(path, hop), burst);
        for (i, descriptor) in burst.iter().enumerate() {
            let held = Held::unpack(words(i));
            self.record_hop(descriptor.frame, 0, held.flags, held.path, TraceWhat::Dropped(why));
            self.discard(descriptor.frame);
        }
    }
}

/// The table word of a packet after a step. A packet for a port has no owner: it waits in a buffer
/// of the manager, and a device may free it.
#[inline(always)]
pub(crate) fn word_after(step: NextHop, hop: usize, flags: u8, path: u32) -> u64 {
    match step {
        NextHop::Nf(nf) => Held { owner: owner::FIRST_NF + nf, hop: hop as u8, flags, path }.pack(),
        NextHop::Port(_) => 0,
    }
}
