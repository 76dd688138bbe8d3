//! A port that drops packets, and measures by the stamps of a generator ([`super::generator`]).
//!
//! For each flow, a queue keeps the next expected number and which of the last 64 have come:
//! - a number above the expected one: those between are counted `lost`;
//! - a lower number that was counted lost: `lost` − 1, `reordered` + 1;
//! - a lower number that has come already: `duplicated` + 1;
//! - a number more than 64 below the highest: which of the two is unknown; `stale` + 1;
//! - no stamp, or a flow number out of range: `unstamped` + 1;
//! - a stamp with a wrong checksum (`checksum` of a generator): `altered` + 1. The rest of the
//!   stamp is not used, so the packet counts as lost when a later one of its flow comes.
//!
//! Limits. A loss shows when a later packet of the flow arrives: losses at the very end of a flow
//! are not counted. A flow first seen below number [`JOINED`] counts as begun at 0, so that losses
//! at its start count; one first seen at or above it counts as joined midway. Queues are
//! independent: the numbers are right if a flow leaves by one queue, as it does on one chain; the
//! caller adds queues up.
//!
//! Latency is the caller's `now_ns` at the sink minus the generator's: both once a burst.

use std::sync::Arc;

use sluice_shm::BURST;
use sluice_shm::arena::Arena;
use sluice_shm::histogram::Histogram;

use super::stamp::{self, MAX_FLOWS, Stamp};
use sluice_api::config::Sink;
use sluice_dataplane::frame::{FrameCache, Packet};
use sluice_dataplane::port::OpenPort;
use sluice_dataplane::queue::PortQueue;

/// From this first sequence number on, a flow counts as joined midway.
pub const JOINED: u32 = 1 << 16;

pub fn open(queues: u32, Sink {}: &Sink) -> OpenPort {
    let queues = (0..queues.max(1)).map(|_| -> Box<dyn PortQueue> { Box::default() as Box<SinkQueue> }).collect();
    OpenPort { queues, description: "swallows packets and reads their stamps".into(), memory: None, link: Arc::default() }
}

/// State of a flow: 16 bytes, four to a cache line.
///
/// Word 0: the expected number (low half) and the run of the flow's generator (high half; 0: not
/// seen yet). Word 1: bit i is set if "expected − 1 − i" has come; a clear bit was counted lost.
///
/// Plain words: only these get zeroed memory without touching its pages.
type Flow = [u64; 2];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    stamped: u64,
    unstamped: u64,
    lost: u64,
    reordered: u64,
    duplicated: u64,
    stale: u64,
    altered: u64,
}

pub struct SinkQueue {
    /// By flow number. Untouched zeroed memory takes no space: only flows that are seen do.
    flows: Vec<Flow>,
    counts: Counts,
    latency: Histogram,
    /// First word of the last stamp, and stamps with that word not yet in the histogram: packets of
    /// a burst have the same time, so most are added together.
    time_word: u64,
    same_time: u64,
}

impl Default for SinkQueue {
    fn default() -> Self {
        Self {
            flows: vec![[0; 2]; MAX_FLOWS as usize],
            counts: Counts::default(),
            latency: Histogram::default(),
            time_word: 0,
            same_time: 0,
        }
    }
}

impl SinkQueue {
    /// Counts one packet by its last words.
    #[inline(always)]
    fn count(&mut self, [time, rest]: [u64; 2], now_ns: u64, packet: &Packet, arena: &Arena) {
        if time != self.time_word {
            self.settle_latency(now_ns);
            self.time_word = time;
        }
        let number = (rest >> 32) as usize & 0xff_ffff;
        let expected = rest >> 56 << 32 | rest & 0xffff_ffff;
        if let Some([next, seen]) = self.flows.get_mut(number)
            && *next == expected
            && time as u16 == stamp::MAGIC
            && rest as u32 != u32::MAX
            && expected >> 32 != 0
        {
            *next += 1;
            *seen = *seen << 1 | 1;
            self.same_time += 1;
            return;
        }
        self.count_odd([time, rest], packet, arena);
    }

    /// Counts a packet that is not the next of its flow, or has a checksum.
    #[cold]
    #[inline(never)]
    fn count_odd(&mut self, mut words: [u64; 2], packet: &Packet, arena: &Arena) {
        let counts = &mut self.counts;
        if let Some(time) = stamp::unchecked(words[0]) {
            if !is_whole(packet, arena) {
                counts.altered += 1;
                return;
            }
            words[0] = time;
        }
        let Some(stamp) = Stamp::unpack(words) else {
            counts.unstamped += 1;
            return;
        };
        let Some(flow) = self.flows.get_mut(stamp.flow as usize) else {
            counts.unstamped += 1;
            return;
        };
        self.same_time += 1;
        let run = u64::from(stamp.run);
        let [mut next, mut seen] = *flow;
        if next >> 32 != run {
            let joined = stamp.sequence >= JOINED;
            // Nothing before the first packet of a joined flow was counted lost.
            (next, seen) = if joined { (stamp.sequence.into(), !0) } else { (0, 0) };
        }
        let mut expected = next as u32;
        let ahead = stamp.sequence.wrapping_sub(expected) as i32;
        if ahead >= 0 {
            counts.lost += ahead as u64;
            seen = seen.checked_shl(ahead as u32 + 1).unwrap_or(0) | 1;
            expected = stamp.sequence.wrapping_add(1);
        } else {
            match 1u64.checked_shl(!ahead as u32) {
                None => counts.stale += 1,
                Some(bit) if seen & bit != 0 => counts.duplicated += 1,
                Some(bit) => {
                    seen |= bit;
                    counts.reordered += 1;
                    counts.lost -= 1;
                }
            }
        }
        *flow = [run << 32 | u64::from(expected), seen];
    }

    /// Adds pending stamps to the histogram.
    #[inline(always)]
    fn settle_latency(&mut self, now_ns: u64) {
        if self.same_time > 0 {
            self.latency.record_many(stamp::age_ns(self.time_word, now_ns), self.same_time);
            self.counts.stamped += self.same_time;
            self.same_time = 0;
        }
    }
}

/// Whether a packet's checksum matches its bytes.
fn is_whole(packet: &Packet, arena: &Arena) -> bool {
    let len = usize::from(packet.len);
    let word = |at: usize| arena.read_array(packet.frame, packet.offset + at as u16).map_or(0, u64::from_le_bytes);
    stamp::checksum_at(len).is_some_and(|at| word(at) == stamp::checksum(len, word))
}

impl PortQueue for SinkQueue {
    fn rx_burst(&mut self, _out: &mut [Packet], _frames: &mut FrameCache, _now_ns: u64) -> usize {
        0
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        for burst in packets.chunks(BURST) {
            let arena = frames.arena();
            for packet in burst {
                // For writing: the frame goes on top of the free stack, and the next packet in is
                // written there. That saves fetching the line twice from the core of the last NF.
                arena.prefetch_write(packet.frame, (packet.offset + packet.len).saturating_sub(stamp::BYTES as u16));
            }
            for packet in burst {
                let at = (packet.offset + packet.len).wrapping_sub(stamp::BYTES as u16);
                match arena.read_array::<{ stamp::BYTES }>(packet.frame, at) {
                    Some(bytes) if packet.len >= stamp::BYTES as u16 => {
                        let word = u128::from_le_bytes(bytes);
                        self.count([word as u64, (word >> 64) as u64], now_ns, packet, arena);
                    }
                    _ => self.counts.unstamped += 1,
                }
            }
            self.settle_latency(now_ns);
            frames.free_packets(burst);
        }
        packets.len()
    }

    fn is_finished(&self) -> bool {
        true
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        let Counts { stamped, unstamped, lost, reordered, duplicated, stale, altered } = self.counts;
        vec![
            ("stamped", stamped as f64),
            ("unstamped", unstamped as f64),
            ("lost", lost as f64),
            ("reordered", reordered as f64),
            ("duplicated", duplicated as f64),
            ("stale", stale as f64),
            ("altered", altered as f64),
        ]
    }

    fn latency(&self) -> Option<&Histogram> {
        Some(&self.latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_dataplane::fake::cache;

    const RUN: u8 = 9;

    fn send(sink: &mut SinkQueue, frames: &mut FrameCache, stamps: &[Stamp], len: u16, now_ns: u64) {
        for burst in stamps.chunks(BURST) {
            let mut numbers = [0; BURST];
            assert_eq!(frames.alloc(&mut numbers[..burst.len()]), burst.len());
            let mut packets = Vec::new();
            for (frame, stamp) in numbers.iter().zip(burst) {
                let packet = Packet::fresh(*frame, len);
                let [a, b] = stamp.pack();
                let bytes = (u128::from(a) | u128::from(b) << 64).to_le_bytes();
                assert!(frames.arena().write(*frame, packet.offset + len - stamp::BYTES as u16, &bytes));
                packets.push(packet);
            }
            assert_eq!(sink.tx_burst(&packets, frames, now_ns), packets.len());
        }
    }

    fn stamps(flow: u32, numbers: &[u32]) -> Vec<Stamp> {
        numbers.iter().map(|&sequence| Stamp { flow, run: RUN, sequence, time_ns: 1000 }).collect()
    }

    fn counts_of(numbers: &[u32]) -> Counts {
        let (mut sink, mut frames) = (SinkQueue::default(), cache(64));
        send(&mut sink, &mut frames, &stamps(3, numbers), 60, 2000);
        sink.counts
    }

    #[test]
    fn each_irregularity_is_counted_as_what_it_is() {
        let none = Counts::default();
        assert_eq!(counts_of(&[0, 1, 2, 3]), Counts { stamped: 4, ..none });
        assert_eq!(counts_of(&[0, 3]), Counts { stamped: 2, lost: 2, ..none });
        assert_eq!(counts_of(&[2]), Counts { stamped: 1, lost: 2, ..none });
        assert_eq!(counts_of(&[0, 2, 1, 3]), Counts { stamped: 4, reordered: 1, ..none });
        assert_eq!(counts_of(&[1, 0]), Counts { stamped: 2, reordered: 1, ..none });
        assert_eq!(counts_of(&[0, 0, 1, 1, 0]), Counts { stamped: 5, duplicated: 3, ..none });
        assert_eq!(counts_of(&[0, 2, 1, 1]), Counts { stamped: 4, reordered: 1, duplicated: 1, ..none });
        assert_eq!(counts_of(&[0, 64, 1, 0]), Counts { stamped: 4, lost: 62, reordered: 1, stale: 1, ..none });
        assert_eq!(counts_of(&[0, 200, 199, 137, 136]), Counts { stamped: 5, lost: 197, reordered: 2, stale: 1, ..none });
        // Joined midway; across the wrap of the numbers.
        assert_eq!(counts_of(&[JOINED, JOINED + 2]), Counts { stamped: 2, lost: 1, ..none });
        assert_eq!(counts_of(&[u32::MAX - 1, u32::MAX, 1, 0, 2]), Counts { stamped: 5, reordered: 1, ..none });
    }

    #[test]
    fn packets_without_a_stamp_are_counted_and_freed() {
        let (mut sink, mut frames) = (SinkQueue::default(), cache(64));
        let mut numbers = [0; 3];
        frames.alloc(&mut numbers);
        let held = frames.held();
        let packets =
            [Packet::fresh(numbers[0], 60), Packet::fresh(numbers[1], 15), Packet { frame: numbers[2], offset: 0, len: 1 }];
        assert_eq!(sink.tx_burst(&packets, &mut frames, 1), 3);
        assert_eq!(sink.counts, Counts { unstamped: 3, ..Counts::default() });
        assert_eq!(frames.held(), held + 3);
        send(&mut sink, &mut frames, &[Stamp { flow: MAX_FLOWS, run: RUN, sequence: 0, time_ns: 0 }], 60, 1);
        assert_eq!(sink.counts, Counts { unstamped: 4, ..Counts::default() });
        assert_eq!(sink.latency.count(), 0);
    }

    #[test]
    fn a_new_run_of_the_same_flow_number_starts_anew() {
        let (mut sink, mut frames) = (SinkQueue::default(), cache(64));
        send(&mut sink, &mut frames, &stamps(3, &[0, 1, 2]), 60, 1);
        let next: Vec<Stamp> = stamps(3, &[0, 1, 2]).into_iter().map(|stamp| Stamp { run: RUN + 1, ..stamp }).collect();
        send(&mut sink, &mut frames, &next, 60, 1);
        assert_eq!(sink.counts, Counts { stamped: 6, ..Counts::default() });
    }

    #[test]
    fn latency_is_from_stamp_to_now() {
        let (mut sink, mut frames) = (SinkQueue::default(), cache(64));
        let mut all = stamps(1, &[0, 1, 2, 3]);
        all[3].time_ns = 100;
        send(&mut sink, &mut frames, &all, 60, 1512);
        assert_eq!(sink.latency.count(), 4);
        let buckets: Vec<_> = sink.latency().unwrap().buckets().collect();
        assert_eq!(buckets, [(512, 3), (1408, 1)]);
    }

    #[derive(Debug, Clone, Copy)]
    enum Fate {
        Pass,
        Lose,
        Twice,
        /// Comes this many packets of its flow later.
        Late(usize),
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![12 => Just(Fate::Pass), 2 => Just(Fate::Lose), 1 => Just(Fate::Twice), 1 => (1usize..8).prop_map(Fate::Late)]
    }

    proptest! {
        #[test]
        fn what_was_done_to_flows_is_what_is_counted(fates in proptest::collection::vec((0u32..4, fate()), 1..400)) {
            // Each flow as (place, number): a late packet moves back; places give the order.
            let mut expected = Counts::default();
            let mut flows: [Vec<(usize, u32)>; 4] = Default::default();
            let mut numbers = [0u32; 4];
            for (flow, fate) in fates {
                let number = numbers[flow as usize];
                numbers[flow as usize] += 1;
                let place = number as usize * 2;
                let list = &mut flows[flow as usize];
                match fate {
                    Fate::Pass => list.push((place, number)),
                    Fate::Lose => expected.lost += 1,
                    Fate::Twice => {
                        list.extend([(place, number); 2]);
                        expected.duplicated += 1;
                    }
                    Fate::Late(by) => list.push((place + 2 * by + 1, number)),
                }
            }
            for (list, sent) in flows.iter_mut().zip(numbers) {
                // A final packet, in order, reveals losses before it.
                list.push((usize::MAX, sent));
                list.sort_by_key(|(place, _)| *place);
                // By definition, reordered is below the highest before, and for the first time.
                let (mut highest, mut came) = (None, std::collections::HashSet::new());
                for (_, number) in list.iter() {
                    let first_time = came.insert(*number);
                    expected.reordered += u64::from(first_time && Some(*number) < highest);
                    highest = highest.max(Some(*number));
                }
            }
            let mut all: Vec<Stamp> = Vec::new();
            for i in 0.. {
                let round: Vec<Stamp> =
                    (0u32..4).flat_map(|f| flows[f as usize].get(i).map(|(_, n)| stamps(f, &[*n])[0])).collect();
                if round.is_empty() {
                    break;
                }
                all.extend(round);
            }
            expected.stamped = all.len() as u64;
            let (mut sink, mut frames) = (SinkQueue::default(), cache(64));
            send(&mut sink, &mut frames, &all, 75, 5000);
            prop_assert_eq!(sink.counts, expected);
            prop_assert_eq!(sink.latency.count(), expected.stamped);
        }
    }
}
