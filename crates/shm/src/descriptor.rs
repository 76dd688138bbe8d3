//! The 16 bytes that name a frame on a ring.

use crate::sync::{AtomicU64, Ordering};

/// What an NF wants done with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Verdict {
    /// To the next hop of its chain.
    #[default]
    Next = 0,
    /// Drop it.
    Drop = 1,
    /// Out of the port whose number is in [`Descriptor::arg`].
    ToPort = 2,
    /// To the service whose number is in [`Descriptor::arg`]. The packet leaves its chain, and its
    /// next verdict `Next` sends it to the chain's egress port.
    ToService = 3,
}

impl Verdict {
    /// The verdict with number `raw`, if there is one.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Next,
            1 => Self::Drop,
            2 => Self::ToPort,
            3 => Self::ToService,
            _ => return None,
        })
    }
}

/// Flags that the manager sets on the way to an NF; ignored on the way back.
pub mod flags {
    /// The packet's path is traced.
    pub const TRACED: u8 = 1;
    /// An IP fragment, the first one included.
    pub const FRAGMENT: u8 = 2;
    /// Neither IPv4 nor IPv6.
    pub const NON_IP: u8 = 4;
}

/// A frame of the arena and the packet in it. Never a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Descriptor {
    /// Frame number in the arena.
    pub frame: u32,
    /// Where the packet starts in its frame, in bytes.
    pub offset: u16,
    /// Length of the packet, in bytes.
    pub len: u16,
    /// Number of the chain; information for the NF, ignored on the way back.
    pub chain: u16,
    /// A [`Verdict`], as a number: it may come from a hostile process.
    pub verdict: u8,
    /// See [`flags`].
    pub flags: u8,
    /// To the NF: zero. From the NF: the port or service of the verdict.
    pub arg: u16,
    /// Number of the ingress port; information for the NF, ignored on the way back.
    pub ingress: u16,
}

const _: () = assert!(size_of::<Descriptor>() == 16);
const _: () = assert!(align_of::<Descriptor>() == 4);

impl Descriptor {
    /// The two words that a ring's slot holds.
    #[inline(always)]
    pub fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.frame) | u64::from(self.offset) << 32 | u64::from(self.len) << 48,
            u64::from(self.chain)
                | u64::from(self.verdict) << 16
                | u64::from(self.flags) << 24
                | u64::from(self.arg) << 32
                | u64::from(self.ingress) << 48,
        ]
    }

    /// The second word of a descriptor, with [`flags`] where it had none.
    #[inline(always)]
    pub fn with_flags(word: u64, flags: u8) -> u64 {
        word | u64::from(flags) << 24
    }

    /// A descriptor's words with verdict `Next`: two copies, where its fields would take eight.
    #[inline(always)]
    pub fn with_next([a, b]: [u64; 2]) -> [u64; 2] {
        [a, b & !(0xff << 16)]
    }

    /// Stores a descriptor as two words. Loads of words that were stored as fields wait until the
    /// store buffer has drained, which takes long for cache lines of other cores.
    #[inline(always)]
    pub fn put(place: &mut Self, words: [u64; 2]) {
        // SAFETY: equal sizes, all bits are valid in both, and the write needs no alignment.
        unsafe { std::ptr::from_mut(place).cast::<[u64; 2]>().write_unaligned(words) }
    }

    /// A descriptor from any two words of a slot; the receiver checks whether it makes sense.
    #[inline(always)]
    pub fn from_words(words: [u64; 2]) -> Self {
        let [a, b] = words;
        Self {
            frame: a as u32,
            offset: (a >> 32) as u16,
            len: (a >> 48) as u16,
            chain: b as u16,
            verdict: (b >> 16) as u8,
            flags: (b >> 24) as u8,
            arg: (b >> 32) as u16,
            ingress: (b >> 48) as u16,
        }
    }
}

/// A ring's slot, as atomics: a peer that writes out of turn causes nonsense, not UB.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct RingSlot([AtomicU64; 2]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<RingSlot>() == 16);

impl RingSlot {
    #[inline(always)]
    pub(crate) fn store(&self, descriptor: Descriptor) {
        let [a, b] = descriptor.to_words();
        // Relaxed: the ring's cursor publishes the slot.
        self.0[0].store(a, Ordering::Relaxed);
        self.0[1].store(b, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> [u64; 2] {
        // Relaxed: follows the Acquire load of the ring's cursor. Each word is read exactly once.
        [self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::Packet;

    #[test]
    fn words_keep_every_field() {
        let descriptor = Descriptor {
            frame: 0x0102_0304,
            offset: 0x0506,
            len: 0x0708,
            chain: 0x090a,
            verdict: 0x0b,
            flags: 0x0c,
            arg: 0x0d0e,
            ingress: 0x0f10,
        };
        assert_eq!(Descriptor::from_words(descriptor.to_words()), descriptor);
        let Descriptor { frame, offset, len, flags, .. } = descriptor;
        let unmarked = Descriptor { flags: 0, ..descriptor }.to_words()[1];
        let words = [Packet { frame, offset, len }.to_word(), Descriptor::with_flags(unmarked, flags)];
        assert_eq!(words, descriptor.to_words());
        let mut place = Descriptor::default();
        Descriptor::put(&mut place, descriptor.to_words());
        assert_eq!(place, descriptor);
    }

    #[test]
    fn unknown_verdicts_are_refused() {
        for raw in 0..=255u8 {
            assert_eq!(Verdict::from_raw(raw).map(|v| v as u8), (raw < 4).then_some(raw));
        }
    }
}
