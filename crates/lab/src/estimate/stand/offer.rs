//! An open loop: packets are put on the NF's ring when they are due, whether or not earlier ones have come back.
//!
//! # Approach
//! Packets are due one after the other, evenly in time. Each is stamped with the moment at which it is due, not with that at which there was room
//! for it, so a packet that had to wait to be sent has waited. What comes back is checked as in a [round](Stand::round). Packets that go on
//! to the next hop can be kept, for the next NF of a chain.
//!
//! # Limits
//! As many packets as a ring holds are with the NF at most. Packets that come in bursts wait longer for each other than these.

use std::collections::VecDeque;
use std::ops::Range;

use super::{FRAMES, LOOKS, RING, ROOM, Stand, ns_per_tick};
use crate::estimate::{EstimateError, PATIENCE};
use sluice_shm::BURST;
use sluice_shm::arena::HEADROOM;
use sluice_shm::clock::{monotonic_ns, ticks};
use sluice_shm::descriptor::{Descriptor, Verdict};

/// Packets one after the other in memory, dealt from the first on and then again.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    bytes: Vec<u8>,
    packets: Vec<Range<usize>>,
    next: usize,
}

impl Sequence {
    /// Adds a packet at the end.
    ///
    /// # Errors
    /// [`EstimateError::TooLong`].
    pub fn push(&mut self, packet: &[u8]) -> Result<(), EstimateError> {
        if packet.len() > ROOM {
            return Err(EstimateError::TooLong { bytes: packet.len(), most: ROOM });
        }
        let from = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.packets.push(from..self.bytes.len());
        Ok(())
    }

    /// Packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The next packet. There must be one.
    fn deal(&mut self) -> &[u8] {
        let range = self.packets[self.next].clone();
        self.next = (self.next + 1) % self.packets.len();
        &self.bytes[range]
    }
}

/// How packets are offered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Packets per second; none is as many as the NF takes.
    pub rate_pps: Option<f64>,
    /// For so long, in nanoseconds.
    pub time_ns: u64,
    /// No more packets than these.
    pub packets: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Offered {
    /// Packets per second that came back while packets were offered.
    pub rate_pps: f64,
    /// From when a packet was due until it was back, in nanoseconds, of each; empty where no rate was given.
    pub latency_ns: Vec<f64>,
}

impl Stand {
    /// Offers packets, and waits until all have come back.
    ///
    /// # Errors
    /// [`EstimateError::NoPackets`], [`EstimateError::Keeps`], [`EstimateError::Broken`] or [`EstimateError::Ended`].
    pub fn offer(&mut self, sequence: &mut Sequence, offer: &Offer) -> Result<Offered, EstimateError> {
        self.run(sequence, offer, None)
    }

    /// Offers all packets once, from the next on. What the NF sends on to the next hop, in the same order.
    ///
    /// # Errors
    /// Those of [`offer`](Self::offer).
    pub fn pass(&mut self, sequence: &mut Sequence) -> Result<Sequence, EstimateError> {
        let mut on = Sequence::default();
        let all = Offer { rate_pps: None, time_ns: u64::MAX / 4, packets: sequence.len() as u64 };
        self.run(sequence, &all, Some(&mut on))?;
        Ok(on)
    }

    fn run(&mut self, sequence: &mut Sequence, offer: &Offer, mut kept: Option<&mut Sequence>) -> Result<Offered, EstimateError> {
        if sequence.is_empty() {
            return Err(EstimateError::NoPackets);
        }
        let ns_per_tick = ns_per_tick();
        let gap = offer.rate_pps.map(|rate_pps| 1e9 / rate_pps.max(1e-3) / ns_per_tick);
        let time = (offer.time_ns as f64 / ns_per_tick) as u64;
        // Taken in turn, so that a frame is cold when it comes again, as in use.
        let mut free: VecDeque<u32> = (0..FRAMES).collect();
        // When the packet in each frame was due, while the NF has it.
        let mut due: Vec<Option<u64>> = vec![None; FRAMES as usize];
        let mut latencies: Vec<u64> = Vec::with_capacity(gap.map_or(0, |gap| (time as f64 / gap) as usize + 1));
        let mut batch = [Descriptor::default(); BURST];
        let (mut sent, mut returned, mut looks) = (0u64, 0u64, 0u32);
        // Packets that had come back, and when, as the first ring's worth was through and at the end.
        let (mut first, mut last) = (None, None);
        let mut deadline = None;
        let start = ticks();
        loop {
            let n = self.tx.dequeue(&mut batch).map_err(|_| self.broken("a ring cursor is where it cannot be"))?;
            let now = ticks();
            for descriptor in &batch[..n] {
                let Some(was_due) = due.get_mut(descriptor.frame as usize).and_then(Option::take) else {
                    return Err(self.broken("it returned a frame that it did not have"));
                };
                if !self.arena.geometry().contains(descriptor.frame, descriptor.offset, descriptor.len) {
                    return Err(self.broken("it returned a packet that leaves its frame"));
                }
                if gap.is_some() {
                    latencies.push(now.saturating_sub(was_due));
                }
                self.dropped += u64::from(descriptor.verdict == Verdict::Drop as u8);
                if let Some(kept) = kept.as_deref_mut()
                    && descriptor.verdict == Verdict::Next as u8
                {
                    let mut packet = vec![0; usize::from(descriptor.len)];
                    assert!(self.arena.read(descriptor.frame, descriptor.offset, &mut packet), "it was checked to be in its frame");
                    kept.push(&packet)?;
                }
                free.push_back(descriptor.frame);
            }
            returned += n as u64;
            let passed = now.wrapping_sub(start);
            if first.is_none() && returned >= u64::from(RING) {
                first = Some((returned, now));
            }
            let over = passed >= time || sent >= offer.packets;
            if over {
                last = last.or(Some((returned, now)));
                if returned == sent {
                    break;
                }
            } else {
                let ready = gap.map_or(u64::MAX, |gap| (passed as f64 / gap) as u64 + 1);
                let room = u64::from(RING) - (sent - returned);
                let want = ready.saturating_sub(sent).min(room).min(offer.packets - sent).min(BURST as u64) as usize;
                for (i, descriptor) in batch[..want].iter_mut().enumerate() {
                    let Some(frame) = free.pop_front() else { return Err(self.broken("it has more packets than its ring holds")) };
                    let packet = sequence.deal();
                    assert!(self.arena.write(frame, HEADROOM as u16, packet), "packets were checked to fit");
                    *descriptor = Descriptor { frame, offset: HEADROOM as u16, len: packet.len() as u16, ..Descriptor::default() };
                    due[frame as usize] = Some(gap.map_or(now, |gap| start + ((sent + i as u64) as f64 * gap) as u64));
                }
                if want > 0 {
                    let took = self.rx.enqueue(&batch[..want]).map_err(|_| self.broken("a ring cursor is where it cannot be"))?;
                    if took < want {
                        return Err(self.broken("its ring is full although all of its packets had come back"));
                    }
                    sent += took as u64;
                }
            }
            looks += 1;
            if n > 0 || returned == sent {
                deadline = None;
            }
            if looks.is_multiple_of(LOOKS) {
                self.process.check("while it had packets")?;
                let now = monotonic_ns();
                if now > *deadline.get_or_insert(now + PATIENCE.as_nanos() as u64) {
                    let (returned, packets) = (returned as usize, sent as usize);
                    return Err(EstimateError::Keeps { name: self.process.name.clone(), returned, packets });
                }
            }
            std::hint::spin_loop();
        }
        let (from, to) = (first.unwrap_or((0, start)), last.unwrap_or((returned, start)));
        let took_ns = to.1.saturating_sub(from.1) as f64 * ns_per_tick;
        let rate_pps = if took_ns > 0.0 { to.0.saturating_sub(from.0) as f64 * 1e9 / took_ns } else { 0.0 };
        Ok(Offered { rate_pps, latency_ns: latencies.iter().map(|ticks| *ticks as f64 * ns_per_tick).collect() })
    }

    /// The most memory that the NF has had, in MiB, packets left out; 0 if the kernel does not say.
    pub fn memory_mib(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.spawned.pid.as_raw_nonzero())).unwrap_or_default();
        let kib = |name: &str| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        kib("RssAnon:").unwrap_or(0).div_ceil(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_dealt_in_turn() {
        let mut sequence = Sequence::default();
        assert!(sequence.is_empty());
        [&[1u8][..], &[2, 2], &[3, 3, 3]].iter().for_each(|packet| sequence.push(packet).unwrap());
        let dealt: Vec<usize> = (0..7).map(|_| sequence.deal().len()).collect();
        assert_eq!(dealt, [1, 2, 3, 1, 2, 3, 1]);
        assert!(matches!(sequence.push(&[0; ROOM + 1]), Err(EstimateError::TooLong { .. })));
        assert_eq!(sequence.len(), 3);
    }
}
