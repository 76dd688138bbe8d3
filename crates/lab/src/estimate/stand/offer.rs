//! An open loop: packets go on the NF's ring when due, whether or not earlier ones are back.
//!
//! # Approach
//! Packets are due at even intervals. The stamp of a packet is its due time, not the time at which
//! there was room, so time spent waiting to be sent counts. Returned packets are checked as in a
//! [round](Stand::round). Packets for the next hop can be kept, for the next NF of a chain.
//!
//! # Limits
//! The NF has at most a ring of packets at a time. Packets that arrive in bursts wait longer for
//! each other than these.

use std::collections::VecDeque;
use std::ops::Range;

use super::{FRAMES, LOOKS, RING, ROOM, Stand, ns_per_tick};
use crate::estimate::subject::{EstimateError, PATIENCE};
use sluice_shm::BURST;
use sluice_shm::arena::HEADROOM;
use sluice_shm::clock::{monotonic_ns, ticks};
use sluice_shm::descriptor::{Descriptor, Verdict};

/// A repeated sequence of packets in memory.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    bytes: Vec<u8>,
    packets: Vec<Range<usize>>,
    next: usize,
}

impl Sequence {
    /// Adds a packet at the end.
    pub fn push(&mut self, packet: &[u8]) -> Result<(), EstimateError> {
        if packet.len() > ROOM {
            return Err(EstimateError::TooLong { bytes: packet.len(), most: ROOM });
        }
        let from = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.packets.push(from..self.bytes.len());
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.packets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The next packet; the sequence must not be empty.
    fn deal(&mut self) -> &[u8] {
        let range = self.packets[self.next].clone();
        self.next = (self.next + 1) % self.packets.len();
        &self.bytes[range]
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer {
    /// Packets per second; none is as many as the NF takes.
    pub rate_pps: Option<f64>,
    /// Duration, in nanoseconds.
    pub time_ns: u64,
    /// Most packets.
    pub packets: u64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Offered {
    /// Packets per second that came back while packets were offered.
    pub rate_pps: f64,
    /// Time of each packet from due to returned, in nanoseconds; empty without a rate.
    pub latency_ns: Vec<f64>,
}

impl Stand {
    /// Offers packets, and waits until all are back.
    ///
    /// # Errors
    /// [`EstimateError::NoPackets`], [`EstimateError::Keeps`], [`EstimateError::Broken`] or
    /// [`EstimateError::Ended`].
    pub fn offer(&mut self, sequence: &mut Sequence, offer: &Offer) -> Result<Offered, EstimateError> {
        self.run(sequence, offer, None)
    }

    /// Offers all packets once, from the next on. Returns what the NF sends to the next hop, in
    /// order.
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
        // Used in turn, so that a reused frame is cold, as in use.
        let mut free: VecDeque<u32> = (0..FRAMES).collect();
        // Due time of the packet in each frame, while the NF has it.
        let mut due: Vec<Option<u64>> = vec![None; FRAMES as usize];
        let mut latencies: Vec<u64> = Vec::with_capacity(gap.map_or(0, |gap| (time as f64 / gap) as usize + 1));
        let mut batch = [Descriptor::default(); BURST];
        let (mut sent, mut returned, mut looks) = (0u64, 0u64, 0u32);
        // Returned packets and the time, when the first ring's worth was sent and at the end.
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

    /// Peak memory of the NF in MiB, without packets; 0 if the kernel does not report it.
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
