//! What a capture said of a packet, kept until the packet is written to another file.
//!
//! Problem: frames carry the bytes of packets alone. The time of a packet in its capture, the bytes
//! that a snap length has cut off, and that its Ethernet header is made would be lost on the way
//! from the port that replays a capture to the one that writes what comes out.
//!
//! Approach: a table in private memory of the manager, by frame. A replay writes the entry of each
//! frame that it fills; a port that writes a file reads it. NFs return the frame that they got,
//! so the entry is the packet's, whatever they did to its bytes.
//!
//! Limits: a frame that something else fills keeps the entry of an earlier packet. So nothing is
//! known any more once packets come from another kind of port, out of a foreign program or from an
//! OpenFlow controller ([`Origins::mix`]), or where tenants have memory of their own, into which
//! packets are copied. A replay writes entries even if no port writes a file: two stores a packet.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice_dataplane::frame::{FrameCache, FramePool};

/// What a capture said of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameOrigin {
    /// Nanoseconds since 1970, as recorded.
    pub time_ns: u64,
    /// Bytes at its end that the capture did not hold.
    pub missing: u32,
    /// Whether its Ethernet header was made.
    pub is_made: bool,
}

const MADE: u64 = 1 << 32;
const KNOWN: u64 = 1 << 33;

/// An entry: the time; the missing bytes, [`MADE`] and [`KNOWN`].
type Entry = [AtomicU64; 2];

#[derive(Debug)]
struct Table {
    first: u32,
    entries: Box<[Entry]>,
}

/// The origins of packets, by frame.
#[derive(Debug, Default)]
pub struct Origins {
    table: OnceLock<Table>,
    is_mixed: AtomicBool,
}

impl Origins {
    /// Makes room for the frames of a pool. Of those of a second pool nothing is kept.
    pub(crate) fn cover(&self, pool: &FramePool) {
        self.table.get_or_init(|| {
            let entries = (0..pool.frames()).map(|_| Entry::default()).collect();
            Table { first: pool.first(), entries }
        });
    }

    /// Notes that packets come from elsewhere too, for good: nothing is known any more.
    pub fn mix(&self) {
        // Relaxed: it is called before the first of them comes.
        self.is_mixed.store(true, Ordering::Relaxed);
    }

    #[inline(always)]
    fn entry(&self, frame: u32) -> Option<&Entry> {
        let table = self.table.get()?;
        // A number below the first wraps around to one that is too large.
        table.entries.get(frame.wrapping_sub(table.first) as usize)
    }

    /// Notes the origin of the packet in a frame that the caller has filled.
    #[inline(always)]
    pub fn note(&self, frame: u32, origin: FrameOrigin) {
        if let Some([time, rest]) = self.entry(frame) {
            // Relaxed: the packet itself is passed on by a release and an acquire.
            time.store(origin.time_ns, Ordering::Relaxed);
            rest.store(u64::from(origin.missing) | (u64::from(origin.is_made) * MADE) | KNOWN, Ordering::Relaxed);
        }
    }

    /// The origin of the packet in a frame; none if it is not known.
    #[inline(always)]
    pub fn of(&self, frame: u32, frames: &FrameCache) -> Option<FrameOrigin> {
        if self.is_mixed.load(Ordering::Relaxed) || frames.are_several() {
            return None;
        }
        let [time, rest] = self.entry(frame)?;
        // Relaxed: as in `note`.
        let rest = rest.load(Ordering::Relaxed);
        let time_ns = time.load(Ordering::Relaxed);
        (rest & KNOWN != 0).then_some(FrameOrigin { time_ns, missing: rest as u32, is_made: rest & MADE != 0 })
    }
}

#[cfg(test)]
mod tests {
    use sluice_dataplane::fake::cache;

    use super::*;

    #[test]
    fn an_origin_is_known_until_packets_come_from_elsewhere() {
        let (origins, frames) = (Origins::default(), cache(64));
        let origin = FrameOrigin { time_ns: u64::MAX, missing: u32::MAX, is_made: true };
        origins.note(3, origin);
        assert_eq!(origins.of(3, &frames), None, "it has no table");
        origins.cover(&FramePool::from(2, 4));
        for frame in 0..8 {
            origins.note(frame, FrameOrigin { missing: frame, ..origin });
            let wanted = (2..6).contains(&frame).then_some(FrameOrigin { missing: frame, ..origin });
            assert_eq!(origins.of(frame, &frames), wanted, "frame {frame}");
        }
        let plain = FrameOrigin { time_ns: 7, missing: 0, is_made: false };
        origins.note(4, plain);
        assert_eq!(origins.of(4, &frames), Some(plain));
        origins.mix();
        assert_eq!(origins.of(4, &frames), None);
    }

    #[test]
    fn a_frame_that_no_replay_has_filled_has_no_origin() {
        let (origins, frames) = (Origins::default(), cache(64));
        origins.cover(&FramePool::new(64));
        assert_eq!(origins.of(0, &frames), None);
    }
}
