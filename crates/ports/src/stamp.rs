//! The stamp of a generated packet, which a sink reads: flow, sequence number, and departure time.
//!
//! A stamp is the last 16 bytes of a packet, so NFs may push, pull and rewrite headers before it.
//! It must leave the chain unchanged: a packet that an NF encrypted, truncated or padded has none,
//! and a sink counts it as unstamped. With a stamp, the smallest UDP packet over IPv4 has 58 bytes,
//! or 62 with a VLAN tag.
//!
//! | bytes  | content, little-endian |
//! |--------|------------------------|
//! | 0..2   | magic |
//! | 2..8   | departure: low 48 bits of the monotonic clock in ns (they wrap every 78 hours) |
//! | 8..12  | sequence number in the flow, from 0, wrapping |
//! | 12..15 | flow |
//! | 15     | run: 1 to 255, different for each generator, so that flow numbers can be reused |
//!
//! With `checksum = true` a generator uses another magic, and stores a checksum in the 8 bytes
//! before the stamp: 48 bits over all other bytes of the packet, including headers and stamp, and
//! 16 bits that make the 8 bytes neutral in the sums of TCP and UDP. A sink recomputes the
//! checksum, and counts the packet as altered if it differs. It is for chains that change nothing:
//! a rewritten header counts as altered, too. The smallest packet has 8 bytes more.
//!
//! Flow numbers are unique in the process: each generator takes a [`FlowRange`], and returns it
//! when it is closed. So any number of generators can send to one sink.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

pub const BYTES: usize = 16;

pub const MAX_FLOWS: u32 = 1 << 22;

pub const MAGIC: u16 = 0x511c;

/// Marks a stamp with a checksum before it.
pub(crate) const MAGIC_CHECKED: u16 = 0x511d;

pub(crate) const CHECKSUM_BYTES: usize = 8;

/// 2⁶⁴ divided by the golden ratio: odd, with scattered bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of the checksum; those above them balance it.
const SUM_BITS: u32 = 48;

const TIME_BITS: u32 = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Flow number, below 2²⁴.
    pub flow: u32,
    /// Run of the generator, not 0.
    pub run: u8,
    pub sequence: u32,
    /// Low 48 bits of the departure time, in nanoseconds.
    pub time_ns: u64,
}

impl Stamp {
    /// As two words, to be stored little-endian.
    #[inline(always)]
    pub fn pack(self) -> [u64; 2] {
        [time_word(self.time_ns), u64::from(self.sequence) | flow_word(self.flow, self.run)]
    }

    /// From two words; `None` if they are no stamp.
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

/// Nanoseconds from a stamp's time to `now_ns`. 0 for a later stamp: clocks differ a little.
#[inline(always)]
pub(super) fn age_ns(time_word: u64, now_ns: u64) -> u64 {
    let age = now_ns.wrapping_sub(time_word >> 16) & ((1 << TIME_BITS) - 1);
    if age >> (TIME_BITS - 1) == 0 { age } else { 0 }
}

/// First word of a stamp with a checksum before it.
#[inline(always)]
pub(super) fn checked(time_word: u64) -> u64 {
    time_word & !0xffff | u64::from(MAGIC_CHECKED)
}

/// First word without the mark of a checksum, if it has that mark.
pub(super) fn unchecked(time_word: u64) -> Option<u64> {
    (time_word as u16 == MAGIC_CHECKED).then_some(time_word & !0xffff | u64::from(MAGIC))
}

/// Least bytes of a packet with a checksum.
const LEAST_CHECKED: usize = CHECKSUM_BYTES + BYTES;

/// Offset of the checksum in a packet of `len` bytes, if it has space for one.
pub(super) fn checksum_at(len: usize) -> Option<usize> {
    len.checked_sub(LEAST_CHECKED)
}

/// The checksum of a packet of `len` bytes, to be stored little-endian; 0 without space for one.
/// `word` returns the eight bytes at an offset as a little-endian word, always within the packet.
///
/// One change in 2⁴⁸ goes undetected.
pub(super) fn checksum(len: usize, word: impl Fn(usize) -> u64) -> u64 {
    let Some(end) = checksum_at(len) else { return 0 };
    let mix = |sum: u64, word: u64| {
        let sum = (sum ^ word).wrapping_mul(SPREAD);
        sum ^ sum >> 32
    };
    let whole = end - end % 8;
    let mut sum = (0..whole).step_by(8).fold(len as u64, |sum, at| mix(sum, word(at)));
    if end > whole {
        // The checksum lies behind them, so eight bytes can be read.
        sum = mix(sum, word(whole) & ((1 << (8 * (end - whole))) - 1));
    }
    sum = mix(sum, word(end + CHECKSUM_BYTES));
    sum = mix(sum, word(end + CHECKSUM_BYTES + 8));
    let sum = sum >> (64 - SUM_BITS);
    let words = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let words = (words & 0xffff) + (words >> 16);
    let words = (words & 0xffff) + (words >> 16);
    // Ones' complement: all ones are zero.
    sum | (0xffff - words) << SUM_BITS
}

/// The flow numbers in use, as (first, count), in order.
static TAKEN: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

static RUN: AtomicU8 = AtomicU8::new(0);

/// Flow numbers of one generator. Dropping it releases them.
#[derive(Debug)]
pub struct FlowRange {
    first: u32,
    run: u8,
}

impl FlowRange {
    /// Takes the lowest `flows` consecutive free numbers; `None` if there are none.
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
        // Relaxed: the values only have to differ.
        let run = RUN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |run| Some(run.checked_add(1).unwrap_or(1)));
        let run = run.map_or(1, |before| before.checked_add(1).unwrap_or(1));
        Some(Self { first, run })
    }

    pub fn first(&self) -> u32 {
        self.first
    }

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

    fn checksum_of(packet: &[u8]) -> u64 {
        checksum(packet.len(), |at| u64::from_le_bytes(packet[at..at + 8].try_into().unwrap()))
    }

    proptest! {
        #[test]
        fn a_changed_byte_a_moved_one_and_a_cut_show(bytes in proptest::collection::vec(any::<u8>(), 24..200), at: usize, by in 1u8..) {
            let place = checksum_at(bytes.len()).unwrap();
            let sum = checksum_of(&bytes);
            let mut changed = bytes.clone();
            let at = at % bytes.len();
            changed[at] ^= by;
            let is_sum = (place..place + CHECKSUM_BYTES).contains(&at);
            prop_assert_eq!(checksum_of(&changed) == sum, is_sum, "byte {}", at);
            changed = bytes.clone();
            changed.push(0);
            prop_assert_ne!(checksum_of(&changed), sum);
            if bytes.len() > 24 {
                prop_assert_ne!(checksum_of(&bytes[1..]), sum);
            }
            // It is neutral in the sums of TCP and UDP.
            let words = (0..4).map(|i| sum >> (16 * i) & 0xffff).sum::<u64>();
            prop_assert_eq!(words % 0xffff, 0);
        }
    }

    #[test]
    fn a_stamp_says_whether_there_is_a_checksum() {
        let [time, rest] = Stamp { flow: 1, run: 1, sequence: 1, time_ns: 77 }.pack();
        assert_eq!((unchecked(time), Stamp::unpack([checked(time), rest])), (None, None));
        assert_eq!(unchecked(checked(time)), Some(time));
        assert_eq!((checksum_at(23), checksum_at(24), checksum_of(&[7; 23])), (None, Some(0), 0));
    }

    #[test]
    fn other_bytes_are_no_stamp() {
        let [time, rest] = Stamp { flow: 1, run: 1, sequence: 1, time_ns: 1 }.pack();
        assert_eq!(Stamp::unpack([time ^ 1, rest]), None);
        assert_eq!(Stamp::unpack([time, rest & !(0xff << 56)]), None);
    }

    #[test]
    fn ranges_are_apart_and_come_back() {
        // Other tests open generators meanwhile, so only what always holds is asserted.
        let a = FlowRange::take(1000).unwrap();
        let b = FlowRange::take(1000).unwrap();
        assert!(a.first().abs_diff(b.first()) >= 1000);
        assert_ne!(a.run(), b.run());
        assert!(FlowRange::take(MAX_FLOWS).is_none());
        // Each of these fits only because the one before was released.
        for _ in 0..3 {
            assert!(FlowRange::take(MAX_FLOWS / 2 + 1).is_some());
        }
    }
}
