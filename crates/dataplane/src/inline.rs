//! NFs that run in a packet thread: their handlers get a burst where another NF's ring would be
//! written.
//!
//! # Approach
//! To the rest of the data plane such an NF is an instance of a service, with a hop on paths,
//! credits and counters. Each packet thread that receives has one of its own ([`Member::thread`]),
//! so its handlers are called by one thread. A burst goes through them while it is in this thread's
//! hands: no frame changes its owner. Then packets go on by their verdicts, as those from a ring.
//!
//! # Limits
//! The handlers are trusted. They can write anywhere in the process, and the time that they take is
//! the thread's. If they fail, their burst is dropped, and the supervisor is asked to stop the NF.

use std::sync::atomic::Ordering;

use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;

use crate::capture::Point;
#[cfg(doc)]
use crate::chain::Member;
use crate::chain::{DropReason, NextHop, Path, PathRegistry};
use crate::frame::{Held, MARKS};
use crate::handle::{NfHandle, StopReason};
use crate::hop::word_after;
use crate::observers;
use crate::plane::Plane;

impl Plane {
    /// Whether an NF runs in this thread.
    #[inline(always)]
    pub(crate) fn runs_inline(&self, nf: u16) -> bool {
        matches!(self.nfs.get(nf as usize), Some(Some(end)) if end.inline.is_some())
    }

    /// Whether nothing but a full buffer holds packets of a path back: all of its NFs run in this
    /// thread, and its port, or one that an NF has filled by verdicts, waits.
    pub(crate) fn is_held_up(&self, path: &Path) -> bool {
        let full = |port: usize| self.out.get(port).is_some_and(|b| b.open && b.waits && b.is_full());
        let fills = |nf: u16| match self.nfs.get(nf as usize) {
            Some(Some(end)) if end.inline.is_some() => Some(end.fills),
            _ => None,
        };
        let all = path.hops.iter().map(|hop| fills(hop.nf)).try_fold(0, |all, fills| Some(all | fills?));
        let by_verdict = |all: u64| all != 0 && (0..self.out.len()).any(|port| all >> (port % 64) & 1 != 0 && full(port));
        all.is_some_and(|all| full(path.egress.into()) || by_verdict(all))
    }

    /// Gives packets in this thread's hands to an NF that runs in it, and passes them on. `words`
    /// are those that the table would have if the NF had them.
    #[inline(never)]
    pub(crate) fn run_inline(&mut self, path: &Path, hop: usize, nf: u16, packets: &[Descriptor], words: &[u64; BURST]) {
        let Some(Some(end)) = self.nfs.get_mut(nf as usize) else { return };
        let mut burst = [Descriptor::default(); BURST];
        let n = packets.len().min(BURST);
        burst[..n].copy_from_slice(&packets[..n]);
        let burst = &mut burst[..n];
        let goes = match &mut end.inline {
            Some(inline) if end.producer.is_none() && !end.has_failed => {
                observers::show_on(&mut self.observers, self.frames.arena(), self.now_ns, path, Point::ToNf(nf), burst);
                end.has_failed = !inline.burst(self.frames.arena(), burst, self.now_ns);
                !end.has_failed
            }
            _ => return self.drop_from(path, hop, packets, |i| words[i], DropReason::NfGone),
        };
        let counters = &end.handle.counters[self.index];
        counters.api.rx_packets.add(n as u64);
        if !goes {
            end.handle.ask_to_stop(StopReason::Failed);
            return self.drop_from(path, hop, packets, |i| words[i], DropReason::NfDied);
        }
        if counters.api.tx_packets.get() == 0 {
            end.handle.first_return_ns.store(self.now_ns, Ordering::Relaxed);
        }
        counters.api.tx_packets.add(n as u64);
        let geometry = self.frames.arena().geometry();
        let is_plain = |descriptor: &Descriptor, word: u64| {
            let Descriptor { frame, offset, len, verdict, .. } = *descriptor;
            verdict == 0 && Held::unpack(word).flags & MARKS == 0 && geometry.contains(frame, offset, len)
        };
        let step = path.step(hop + 1);
        let (mut i, mut special) = (0, None);
        while i < n {
            let (start, word) = (i, words[i]);
            while i < n && words[i] == word && is_plain(&burst[i], word) {
                i += 1;
            }
            let count = i - start;
            if count == 0 {
                if special.is_none() {
                    let end = self.nfs.get(nf as usize).and_then(Option::as_ref);
                    special = end.map(|end| (self.registry.clone(), end.handle.clone()));
                }
                if let Some((registry, handle)) = &special {
                    self.run_special(registry, handle, path, word, burst[i]);
                }
                i += 1;
                continue;
            }
            if path.hops[hop].last_visit {
                self.give_back(nf, count as u32);
            }
            if let NextHop::Port(_) = step {
                // A packet for a port gets its last word here: a device may free it.
                burst[start..i].iter().for_each(|descriptor| self.table.free(descriptor.frame));
            }
            let held = Held::unpack(word);
            let next = word_after(step, hop + 1, held.flags, held.path);
            self.pass_back(path, hop, step, &burst[start..i], next);
        }
    }

    /// Handles the marks and the verdict of a packet as those of one from a ring.
    #[cold]
    fn run_special(&mut self, registry: &PathRegistry, handle: &NfHandle, path: &Path, word: u64, packet: Descriptor) {
        let before = std::mem::take(&mut self.filled);
        if let Some(violation) = self.special(registry, handle, path, Held::unpack(word), packet) {
            handle.violates(violation, 1, self.settings.max_violations);
        }
        if self.filled != 0
            && let Some(Some(end)) = self.nfs.get_mut(handle.number as usize)
        {
            end.fills |= self.filled;
        }
        self.filled |= before;
    }

    /// Runs the ticks of the NFs that run in this thread.
    #[cold]
    pub(crate) fn tick_inline(&mut self) {
        for nf in &self.inlines {
            let Some(Some(end)) = self.nfs.get_mut(*nf as usize) else { continue };
            if let Some(inline) = end.inline.as_mut().filter(|_| !end.has_failed)
                && !inline.tick(self.now_ns)
            {
                end.has_failed = true;
                end.handle.ask_to_stop(StopReason::Failed);
            }
        }
    }
}
