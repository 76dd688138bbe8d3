//! The stamp that a generator writes in a packet and a sink reads: which flow it is of, which number in its flow, and when it left.
//!
//! A stamp is the last 16 bytes of a packet, so that NFs may push, pull and rewrite headers in front of it. It must leave the chain
//! as it came in: a packet that an NF encrypted, cut or padded at its end has none any more, and a sink counts it as unstamped.
//! With a stamp, the smallest UDP packet over IPv4 has 58 bytes, or 62 with a VLAN tag.
//!
//! | bytes  | content, little-endian |
//! |--------|------------------------|
//! | 0..2   | magic |
//! | 2..8   | time of departure: the low 48 bits of the monotonic clock in nanoseconds (they come around every 78 hours) |
//! | 8..12  | sequence number in the flow, from 0, wrapping |
//! | 12..15 | flow |
//! | 15     | run: 1 to 255, another one for each generator opened, so that flow numbers can be used again |
//!
//! Flow numbers are unique in the process: each generator takes a [`FlowRange`], and gives it back when it is closed. So any number
//! of generators can send to one sink.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a stamp.
pub const BYTES: usize = 16;

/// Flow numbers are below this.
pub const MAX_FLOWS: u32 = 1 << 22;

/// Marks a stamp.
pub const MAGIC: u16 = 0x511c;

/// Bits of the time that a stamp holds.
const TIME_BITS: u32 = 48;

/// A stamp, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Flow number, below 2²⁴.
    pub flow: u32,
    /// Run of the generator, not 0.
    pub run: u8,
    /// Number in the flow.
    pub sequence: u32,
    /// Time of departure, its low 48 bits, in nanoseconds.
    pub time_ns: u64,
}

impl Stamp {
    /// As two words, to be written little-endian.
    #[inline(always)]
    pub fn pack(self) -> [u64; 2] {
        [time_word(self.time_ns), u64::from(self.sequence) | flow_word(self.flow, self.run)]
    }

    /// From two words. None if it is no stamp.
    #[inline(always)]
    pub fn unpack([time, rest]: [u64; 2]) -> Option<Self> {
        let run = (rest >> 56) as u8;
        if time as u16 != MAGIC || run == 0 {
            return None;
        }
        Some(Self { flow: (rest >> 32) as u32 & 0xff_ffff, run, sequence: rest as u32, time_ns: time >> 16 })
    }
}

/// First word of a stamp.
#[inline(always)]
pub(super) fn time_word(time_ns: u64) -> u64 {
    time_ns << 16 | u64::from(MAGIC)
}

/// Second word of a stamp, with sequence number 0.
#[inline(always)]
pub(super) fn flow_word(flow: u32, run: u8) -> u64 {
    u64::from(flow) << 32 | u64::from(run) << 56
}

/// Nanoseconds from the time in a stamp's first word to `now_ns`. 0 if the stamp is younger, as it may be by the little that the
/// clocks of two threads differ.
#[inline(always)]
pub(super) fn age_ns(time_word: u64, now_ns: u64) -> u64 {
    let age = now_ns.wrapping_sub(time_word >> 16) & ((1 << TIME_BITS) - 1);
    if age >> (TIME_BITS - 1) == 0 { age } else { 0 }
}

/// The flow numbers in use, as (first, count), in order.
static TAKEN: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

/// The run of the generator opened last.
static RUN: AtomicU8 = AtomicU8::new(0);

/// Flow numbers of one generator. Given back when dropped.
#[derive(Debug)]
pub struct FlowRange {
    first: u32,
    run: u8,
}

impl FlowRange {
    /// Takes the lowest `flows` numbers in a row that are free. None if there are no such.
    pub fn take(flows: u32) -> Option<Self> {
        let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut first = 0u32;
        let mut at = taken.len();
        for (i, (start, count)) in taken.iter().enumerate() {
            if start - first >= flows {
                at = i;
                break;
            }
            first = start + count;
        }
        if MAX_FLOWS - first < flows {
            return None;
        }
        taken.insert(at, (first, flows));
        // Relaxed: only different values matter.
        let run = RUN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |run| Some(run.checked_add(1).unwrap_or(1)));
        let run = run.map_or(1, |before| before.checked_add(1).unwrap_or(1));
        Some(Self { first, run })
    }

    /// The lowest number.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The run.
    pub fn run(&self) -> u8 {
        self.run
    }
}

impl Drop for FlowRange {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        taken.retain(|(first, _)| *first != self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stamp_is_read_as_written(flow in 0..MAX_FLOWS, run in 1u8.., sequence: u32, time_ns in 0u64..1 << 48) {
            let stamp = Stamp { flow, run, sequence, time_ns };
            prop_assert_eq!(Stamp::unpack(stamp.pack()), Some(stamp));
        }

        #[test]
        fn ages_survive_the_wrap_of_the_time(sent: u64, age in 0u64..1 << 47) {
            prop_assert_eq!(age_ns(time_word(sent), sent.wrapping_add(age)), age);
            prop_assert_eq!(age_ns(time_word(sent.wrapping_add(age)), sent), 0);
        }
    }

    #[test]
    fn other_bytes_are_no_stamp() {
        let [time, rest] = Stamp { flow: 1, run: 1, sequence: 1, time_ns: 1 }.pack();
        assert_eq!(Stamp::unpack([time ^ 1, rest]), None);
        assert_eq!(Stamp::unpack([time, rest & !(0xff << 56)]), None);
    }

    #[test]
    fn ranges_are_apart_and_come_back() {
        // Other tests open generators meanwhile, so only what holds in any case is asserted.
        let a = FlowRange::take(1000).unwrap();
        let b = FlowRange::take(1000).unwrap();
        assert!(a.first().abs_diff(b.first()) >= 1000);
        assert_ne!(a.run(), b.run());
        assert!(FlowRange::take(MAX_FLOWS).is_none());
        // Each of these fits only because the one before it was given back.
        for _ in 0..3 {
            assert!(FlowRange::take(MAX_FLOWS / 2 + 1).is_some());
        }
    }
}
