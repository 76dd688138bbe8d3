//! Admission: which packets a chain lets in, and their first step.
//!
//! A packet is let in only when every NF of its path has room for it ([`Plane::admit`]). Each NF
//! may have as many packets on their way to it as its ring holds, counted from the chain's entry
//! until the packet has passed it for the last time. So inner rings never overflow, however slow an
//! NF is. An NF that stands still closes only the gates of the chains that pass it.

use std::sync::atomic::Ordering;

use sluice_shm::BURST;
use sluice_shm::descriptor::{Descriptor, flags};

use crate::capture::DropPlace;
use crate::chain::{Chain, DropReason, NextHop, Path};
use crate::end::{NfEnd, Starts};
use crate::frame::{self, CopyPlace, Held, InFrame, Packet, SAMPLED, TRACED, URGENT, kind_of, owner, with_kind};
use crate::hop::word_after;
use crate::plane::Plane;
use crate::trace::{Mark, TraceWhat};

/// Sampling period (packets) for chains with a limit, unless a shorter one is configured. A
/// second's 95th percentile needs twenty samples.
const LIMITED_EVERY: u32 = 16;

/// Bounds of what a thread lets in until a chain's frames are counted again: packets for each
/// packet thread that there is, and the part of the frames left that all threads let in together. A
/// count reads what each thread writes, so the more threads there are, the more seldom it is made.
const LOOK_AHEAD: (u64, u64) = (256, 8);

/// What keeps packets out of a path that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// Its chain has just changed, and packets of the former one are inside.
    Former,
    /// Its chain's rate limit.
    Limit,
    /// This NF is throttled: its queue is long.
    Throttled(u16),
    /// This NF has no room.
    Full(u16),
    /// This NF is gone, and the path has not ended yet.
    Gone(u16),
    /// There are no frames left for its chain.
    Frames,
    /// A port that its NFs, which run in this thread, send to takes no more.
    Port,
}

impl Obstacle {
    /// Why a packet is dropped that does not wait; `None` if it waits in any case.
    pub fn reason(self) -> Option<DropReason> {
        match self {
            Self::Former => None,
            Self::Limit => Some(DropReason::Policed),
            _ => Some(DropReason::Entry),
        }
    }
}

/// A number below `n` without a pattern as `seed` grows. `n` is above 0.
fn any_of(seed: u64, n: usize) -> u64 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % n as u64
}

impl Plane {
    /// Whether a chain's packets wait at its entry after its hops changed. Packets inside still go
    /// the old way, which may take longer, so that new packets would overtake them.
    #[cold]
    pub fn awaits_former(&mut self, chain: &Chain) -> bool {
        // Expired entries go: their chains may be gone, or have no packets.
        let now_ns = self.now_ns;
        self.changed.retain(|(number, until_ns)| now_ns < *until_ns && (*number != chain.number || chain.frames() > 0));
        self.changed.iter().any(|(number, _)| *number == chain.number)
    }

    /// How many of `n` packets a path admits: every NF of it has room. 0 while an NF is throttled.
    #[inline(always)]
    pub fn admit(&mut self, path: &Path, n: usize) -> usize {
        if self.awaits_port(path) || self.throttling(path).is_some() {
            return 0;
        }
        let n = match self.rooms.get_mut(usize::from(path.chain.number)) {
            Some(room) if (*room).min(self.unlooked) >= n as u32 => {
                *room -= n as u32;
                self.unlooked -= n as u32;
                n
            }
            _ => self.look_for_frames(path, n),
        };
        if n == 0 { 0 } else { self.admit_inside(path, n) }
    }

    /// As [`Self::admit`] for one packet, where no packet waits for it.
    #[cold]
    #[inline(never)]
    fn admit_one(&mut self, path: &Path) -> bool {
        self.admit(path, 1) == 1
    }

    /// Whether a full buffer of a port is all that holds a path's packets back.
    #[inline(always)]
    fn awaits_port(&self, path: &Path) -> bool {
        path.hops.first().is_none_or(|hop| self.runs_inline(hop.nf)) && self.is_held_up(path)
    }

    /// An NF of a path that is throttled, if there is one.
    #[inline(always)]
    fn throttling(&self, path: &Path) -> Option<u16> {
        let throttled = |end: &NfEnd| end.handle.gate.throttled.load(Ordering::Relaxed);
        let is_it = |nf: &u16| matches!(self.nfs.get(*nf as usize), Some(Some(end)) if throttled(end));
        if self.settings.backpressure { path.nfs.iter().copied().find(is_it) } else { None }
    }

    /// What would keep a packet of a path out now, if anything would: [`Plane::admit`] is asked,
    /// and what it takes is given back. Only a count of frames that is due may be made earlier.
    #[cold]
    pub fn obstacle(&mut self, path: &Path) -> Option<Obstacle> {
        if !self.changed.is_empty() && self.awaits_former(&path.chain) {
            return Some(Obstacle::Former);
        }
        let is_within = path.chain.police.as_ref().is_none_or(|bucket| {
            let taken = bucket.take(self.now_ns, 1);
            bucket.give_back(taken);
            taken > 0
        });
        if !is_within {
            return Some(Obstacle::Limit);
        }
        if self.admit_one(path) {
            self.release_from(path, 0, 1);
            self.rooms.get_mut(usize::from(path.chain.number)).into_iter().for_each(|room| *room = room.saturating_add(1));
            self.unlooked = self.unlooked.saturating_add(1);
            return None;
        }
        if self.awaits_port(path) {
            return Some(Obstacle::Port);
        }
        if let Some(nf) = self.throttling(path) {
            return Some(Obstacle::Throttled(nf));
        }
        if self.look_for_frames(path, 1) == 0 {
            return Some(Obstacle::Frames);
        }
        let end = |nf: u16| self.nfs.get(usize::from(nf)).and_then(Option::as_ref);
        let gone = path.nfs.iter().copied().find(|nf| !end(*nf).is_some_and(NfEnd::is_there));
        let full = || path.nfs.iter().copied().find(|nf| end(*nf).is_some_and(|end| end.handle.room() == 0));
        // Without backpressure only the ring of the first NF counts.
        let first = || path.hops.first().map_or(Obstacle::Frames, |hop| Obstacle::Full(hop.nf));
        Some(gone.map(Obstacle::Gone).or_else(|| full().map(Obstacle::Full)).unwrap_or_else(first))
    }

    /// How many of `n` packets of a chain there are frames for. In every arena of the path, a chain
    /// may hold at most as many frames as are left for all others and for receiving, or its share
    /// of those that are kept for chains with few. So stalled chains leave enough, however many
    /// they are: the next chain's share is never zero.
    #[cold]
    fn look_for_frames(&mut self, path: &Path, n: usize) -> usize {
        let chain = &path.chain;
        // It is not counted where a chain's frames lie: all of them may end up in one arena.
        let (has, left) = (chain.frames(), self.least_left(path, n) as u64);
        let room = left.saturating_sub(has);
        let threads = self.threads as u64;
        let ahead = (LOOK_AHEAD.0 * threads).min(left / (LOOK_AHEAD.1 * threads));
        let n = (n as u64).min(room);
        let at = usize::from(chain.number);
        if self.rooms.len() <= at {
            self.rooms.resize(at + 1, 0);
        }
        if u64::from(self.unlooked) < n {
            // The shares granted ahead to others exceed what is left by now.
            self.rooms.fill(0);
            self.unlooked = ahead as u32;
        }
        self.unlooked = self.unlooked.saturating_sub(n as u32);
        self.rooms[at] = (room - n).min(ahead) as u32;
        n as usize
    }

    /// Frames that a path's chain may hold, in the arena that has the fewest for it of those that
    /// its packets may lie in. `n` packets ask.
    fn least_left(&self, path: &Path, n: usize) -> usize {
        if !self.frames.are_several() {
            return self.frames.left_of(frame::NO_ARENA, n);
        }
        let left = path.nfs.iter().map(|nf| self.frames.left_of(self.memory_of(*nf), n));
        left.min().unwrap_or_else(|| self.frames.left_of(frame::NO_ARENA, n))
    }

    /// As [`Self::admit`] for packets that are inside already: throttles apply at the entry only.
    #[inline]
    pub(crate) fn admit_inside(&mut self, path: &Path, n: usize) -> usize {
        if !self.settings.backpressure {
            return self.admit_to_first(path, n);
        }
        let mut m = n as u32;
        for nf in &path.nfs {
            match self.nfs.get(*nf as usize) {
                Some(Some(end)) if end.is_there() => m = m.min(end.handle.room()),
                _ => return 0,
            }
        }
        self.reserve(path.nfs.iter().copied(), m) as usize
    }

    /// Lets packets into a path, checking only the ring of its first NF.
    fn admit_to_first(&mut self, path: &Path, n: usize) -> usize {
        let mut m = n as u32;
        if let Some(first) = path.hops.first() {
            m = match self.nfs.get_mut(first.nf as usize) {
                Some(Some(NfEnd { producer: Some(producer), .. })) => m.min(producer.room().unwrap_or(0)),
                Some(Some(end)) if end.is_there() => m,
                _ => return 0,
            };
        }
        self.take_credits(path.nfs.iter().copied(), m) as usize
    }

    /// Admits packets that come from a program to a path, from hop `from` on: how many of `n`.
    pub fn admit_onward(&mut self, path: &Path, from: usize, n: usize) -> usize {
        if from >= path.hops.len() && self.out.get(path.egress as usize).is_some_and(|b| b.open && b.waits && b.is_full()) {
            return 0;
        }
        let rest = &path.hops[from.min(path.hops.len())..];
        let mut m = n as u32;
        for hop in rest {
            m = match self.nfs.get_mut(hop.nf as usize) {
                Some(Some(end)) if self.settings.backpressure && end.is_there() => m.min(end.handle.room()),
                Some(Some(NfEnd { producer: Some(producer), .. })) => m.min(producer.room().unwrap_or(0)),
                Some(Some(end)) if end.is_there() => m,
                _ => return 0,
            };
            if !self.settings.backpressure {
                break;
            }
        }
        let nfs = rest.iter().filter(|hop| hop.last_visit).map(|hop| hop.nf);
        (if self.settings.backpressure { self.reserve(nfs, m) } else { self.take_credits(nfs, m) }) as usize
    }

    /// Takes credits of all these NFs for up to `n` packets, as far as all have some. Returns how
    /// many.
    #[inline]
    fn reserve(&self, nfs: impl Iterator<Item = u16> + Clone, n: u32) -> u32 {
        let mut m = n;
        for (at, nf) in nfs.clone().enumerate() {
            let granted = match self.nfs.get(nf as usize) {
                Some(Some(end)) => end.handle.reserve(m),
                _ => 0,
            };
            if granted < m {
                // Another packet thread has taken credits since the room was read.
                nfs.clone().take(at).for_each(|nf| self.give_back(nf, m - granted));
                m = granted;
            }
        }
        m
    }

    /// Takes credits of all these NFs for `n` packets, whatever they have left. Takes none if one
    /// of them is unknown: its packets would never be counted off.
    #[inline]
    fn take_credits(&self, nfs: impl Iterator<Item = u16> + Clone, n: u32) -> u32 {
        let count = |nf: u16| self.in_flight.get(nf as usize).and_then(Option::as_deref);
        if nfs.clone().any(|nf| count(nf).is_none()) {
            return 0;
        }
        nfs.filter_map(count).for_each(|count| count.take(n));
        n
    }

    /// Gives credits of an NF back, whether or not it still exists.
    #[inline(always)]
    pub(crate) fn give_back(&self, nf: u16, n: u32) {
        if let Some(Some(count)) = self.in_flight.get(nf as usize) {
            count.give_back(n);
        }
    }

    /// Releases the credits of packets that will not come to the NFs from hop `from` on.
    pub fn release_from(&self, path: &Path, from: usize, n: u32) {
        for hop in path.hops.iter().skip(from).filter(|h| h.last_visit) {
            self.give_back(hop.nf, n);
        }
    }

    /// Counts packets refused at the entry of a path, for each of its NFs.
    #[inline]
    pub(crate) fn count_refused(&self, path: &Path, n: usize) {
        for nf in &path.nfs {
            if let Some(Some(end)) = self.nfs.get(*nf as usize) {
                end.handle.counters[self.index].refused.add(n as u64);
            }
        }
    }

    /// Starts packets that [`Plane::admit`] let in on a path, after copying them into the memory of
    /// the first NF's tenant if needed. `flags` are those of the descriptors. `traceable` has a bit
    /// for each packet that the trace covers, `urgent` one for each that no NF delays.
    #[inline]
    pub fn enter(&mut self, path: &Path, number: u32, packets: &[Packet], packet_flags: &[u8], traceable: u32, urgent: u32) {
        if self.frames.are_several() {
            self.enter_own(path, number, packets, packet_flags, traceable, urgent);
        } else {
            self.start(path, number, packets, packet_flags, traceable, urgent);
        }
    }

    #[inline(never)]
    fn enter_own(&mut self, path: &Path, number: u32, packets: &[Packet], packet_flags: &[u8], traceable: u32, urgent: u32) {
        let memory = match path.step(0) {
            NextHop::Nf(nf) => self.memory_of(nf),
            NextHop::Port(_) => frame::NO_ARENA,
        };
        if memory == frame::NO_ARENA {
            return self.start(path, number, packets, packet_flags, traceable, urgent);
        }
        let mut own = [Packet::default(); BURST];
        let own = &mut own[..packets.len().min(BURST)];
        own.copy_from_slice(&packets[..own.len()]);
        let n = self.frames.bring(own, memory, CopyPlace::Gate, |_, _| {});
        if n > 0 {
            self.start(path, number, &own[..n], packet_flags, traceable, urgent);
        }
        if n < own.len() {
            // They were let in, and are lost at this point.
            self.counters(path).api.entry_packets.add((own.len() - n) as u64);
            if self.is_tracing() {
                let lost = own.iter().enumerate().skip(n).filter(|(i, _)| traceable >> i & 1 != 0);
                lost.for_each(|(_, packet)| {
                    self.note_refused(*packet, path.ingress, Some(path.chain.number), DropReason::NoFrame.into())
                });
            }
            self.starve(path, memory, &own[n..]);
        }
    }

    /// Drops packets that start on a path, because an arena has no free frame for them.
    #[cold]
    pub(crate) fn starve(&mut self, path: &Path, memory: u8, packets: &[Packet]) {
        self.frames.count_starved(memory, packets.len());
        self.release_from(path, 0, packets.len() as u32);
        self.counters(path).drops[DropReason::NoFrame as usize].add(packets.len() as u64);
        self.show_lost(path, DropReason::NoFrame, DropPlace::hop(path, 0), packets);
        packets.iter().for_each(|packet| self.discard(packet.frame));
    }

    /// Starts packets on a path; they lie in the right arena.
    #[inline(always)]
    pub(crate) fn start(&mut self, path: &Path, number: u32, packets: &[Packet], packet_flags: &[u8], traceable: u32, urgent: u32) {
        let counters = self.counters(path);
        let before = counters.api.entry_packets.get();
        counters.api.entry_packets.add(packets.len() as u64);
        let mut marked: Option<(usize, u8)> = None;
        // Counted by chain: a chain with few packets is timed as often as a busy one.
        let at = counters.timed_at.get();
        if before + packets.len() as u64 > at && self.settings.sample_every > 0 {
            let every = if path.chain.police.is_some() {
                self.settings.sample_every.min(LIMITED_EVERY)
            } else {
                self.settings.sample_every
            };
            // A sample that is overdue takes any packet of the run, so that the first is not
            // favoured: it waits for none before it.
            let at = if at < before { before + any_of(before, packets.len()) } else { at };
            counters.timed_at.set(at + u64::from(every));
            marked = Some(((at - before) as usize, SAMPLED));
        }
        if let Some(trace) = self.trace()
            && trace.chain.is_none_or(|c| c == path.chain.number)
            && (traceable.trailing_zeros() as usize) < packets.len()
            && trace.pick()
        {
            // One packet of a burst is marked: the one that is timed, if it may be traced.
            marked = match marked {
                Some((at, flags)) if traceable >> at & 1 != 0 => Some((at, flags | TRACED)),
                _ => Some((traceable.trailing_zeros() as usize, TRACED)),
            };
        }
        let step = path.step(0);
        let mut burst = [Descriptor::default(); BURST];
        let [_, of_path] = Descriptor { chain: path.chain.number, ingress: path.ingress, ..Descriptor::default() }.to_words();
        for ((packet, flags), descriptor) in packets.iter().zip(packet_flags).zip(&mut burst) {
            Descriptor::put(descriptor, [packet.to_word(), Descriptor::with_flags(of_path, *flags)]);
        }
        let burst = &mut burst[..packets.len().min(BURST)];
        let kinds = packet_flags.iter().take(burst.len()).fold(0, |all, flags| all | flags);
        if marked.is_none() && urgent == 0 && kinds == 0 {
            let word = word_after(step, 0, 0, number);
            self.pass(path, 0, step, burst, |_| word);
        } else {
            self.enter_marked(path, number, step, burst, marked, urgent);
        }
    }

    /// As [`Self::start`], for a burst with a marked packet, urgent ones, or some with flags.
    #[cold]
    fn enter_marked(
        &mut self,
        path: &Path,
        number: u32,
        step: NextHop,
        burst: &mut [Descriptor],
        marked: Option<(usize, u8)>,
        urgent: u32,
    ) {
        // All words are complete before the first packet goes: an NF may return it at once, and
        // then another packet may own the word.
        let mut words = [word_after(step, 0, 0, number); BURST];
        words.iter_mut().zip(&*burst).for_each(|(word, descriptor)| *word = with_kind(*word, descriptor.flags));
        if let Some((at, mark)) = marked {
            words[at] |= word_after(step, 0, mark, number);
            let descriptor = &mut burst[at];
            self.entered_ns[descriptor.frame as usize].store(self.now_ns, Ordering::Relaxed);
            if let Some(observers) = self.observers.as_mut().filter(|_| mark & SAMPLED != 0) {
                observers.begin_timing(self.frames.arena(), path.ingress, descriptor.packet(), self.now_ns);
            }
            if mark & TRACED != 0 {
                descriptor.flags |= flags::TRACED;
                self.record_head(descriptor.packet());
            }
            let to = match step {
                NextHop::Nf(nf) => TraceWhat::ToNf(nf),
                NextHop::Port(port) => TraceWhat::ToPort(port),
            };
            self.record_hop(descriptor.frame, descriptor.len, mark, number, to);
        }
        if urgent != 0 && self.holds_back(path) {
            for (i, word) in words.iter_mut().enumerate().filter(|(i, word)| urgent >> i & 1 != 0 && **word != 0) {
                let held = Held::unpack(*word);
                *word = Held { flags: held.flags | URGENT, ..held }.pack();
                self.urgent |= i < burst.len();
            }
        }
        self.pass(path, 0, step, burst, |i| words[i]);
        self.urgent = false;
    }

    /// Whether an NF of a path delays packets, so that marking urgent ones is useful.
    fn holds_back(&self, path: &Path) -> bool {
        path.nfs.iter().any(|nf| matches!(self.nfs.get(*nf as usize), Some(Some(end)) if end.starts == Starts::Held))
    }

    /// Continues packets that [`Plane::admit_onward`] let in at hop `from` of a path. `kind` has
    /// their flags FRAGMENT and NON_IP.
    pub fn onward(&mut self, path: &Path, number: u32, from: usize, packets: &[Packet], kind: u8) {
        self.counters(path).back.add(packets.len() as u64);
        self.show_back(path, from.wrapping_sub(1), packets);
        let step = path.step(from);
        let word = word_after(step, from, kind_of(kind), number);
        let mut burst = [Descriptor::default(); BURST];
        for (packet, descriptor) in packets.iter().zip(&mut burst) {
            *descriptor = Descriptor {
                frame: packet.frame,
                offset: packet.offset,
                len: packet.len,
                chain: path.chain.number,
                ingress: path.ingress,
                flags: kind,
                ..Default::default()
            };
        }
        self.pass(path, from, step, &burst[..packets.len().min(BURST)], |_| word);
    }

    /// As [`Self::onward`] for a marked packet that came out of a program.
    #[cold]
    pub fn onward_marked(&mut self, path: &Path, number: u32, from: usize, packet: Packet, mark: Mark, nf: u16) {
        self.counters(path).back.add(1);
        self.entered_ns[packet.frame as usize].store(mark.entered_ns, Ordering::Relaxed);
        self.record_mark(&mark, TraceWhat::CameOut(nf, packet.frame));
        self.show_back(path, from.wrapping_sub(1), &[packet]);
        let descriptor = Descriptor {
            frame: packet.frame,
            offset: packet.offset,
            len: packet.len,
            chain: path.chain.number,
            ingress: path.ingress,
            ..Default::default()
        };
        let held = Held { owner: owner::FREE, hop: from as u8, flags: mark.flags, path: number };
        self.go_on(path, held, from, path.step(from), descriptor);
    }
}
