//! How many frames may be in flight so that packets are still cached when read.
//!
//! # Problem
//! Devices write packets into a few ways of the last-level cache (DDIO). A receive queue is
//! circular: with 2,048 frames each frame is written again after 2,048 packets. Twelve queues of
//! 2,048 frames of 1,518 bytes are 40 MB in 4.5 MB of ways. So each packet evicts another that has
//! not been read yet, which crosses the memory bus twice for nothing: the leaky DMA problem.
//!
//! # Approach
//! A frame in flight takes the lines of the largest packet and those of its descriptors. Contiguous
//! frames take the distance between two, if that is more: then no set of the cache gets more lines
//! than it has I/O ways, which the lines alone would not ensure ([`leak`](crate::leak) shows it).
//! All queues together get as many as fit, less a twentieth for the queues themselves. It is a
//! function of plain numbers; [`io_cache`] finds them.
//!
//! # Limits
//! All queues are alike. What NFs read of packets in their own ways, and packets being transmitted,
//! are not counted: they have left the queue. Where the arena is not on hugepages, frames fall on
//! random sets, and some leak however few they are.
//!
//! # Source
//! Tootoonchian and others, ResQ, NSDI 2018, section 4.2.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::host::{self, DdioError};

/// Lines of a frame beside the packet's: the driver's description of it.
pub const EXTRA_LINES: u32 = 2;

/// Part of the ways that is given to frames, in percent.
pub(crate) const FILL_PERCENT: u64 = 95;

/// Fewest frames of a queue: a burst.
pub const LEAST_FRAMES: u32 = 32;

/// The part of the cache that devices write into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCache {
    pub ways: u32,
    pub way_bytes: u64,
    /// Bytes of a line.
    pub line: u32,
}

/// The receive queues, and what they receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// Receive queues of all ports on this cache.
    pub queues: u32,
    /// Bytes of the largest packet, with its Ethernet header.
    pub packet_bytes: u32,
    /// Lines of a frame beside its packet's; usually [`EXTRA_LINES`].
    pub extra_lines: u32,
    /// Bytes from one frame to the next; 0 if they are not contiguous.
    pub stride: u32,
}

/// How many frames may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Frames of all queues together.
    pub frames: u64,
    pub per_queue: u32,
    /// Descriptors of each queue: the greatest power of two up to `per_queue`.
    pub descriptors: u32,
    /// Bytes of cache that a frame takes.
    pub frame_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    #[error("{0} is 0; a receive queue needs ways, queues and packets")]
    Zero(&'static str),
    #[error(
        "{queues} queues for packets of {packet_bytes} bytes would have {per_queue} frames each, fewer than {LEAST_FRAMES}; use fewer \
         queues, a smaller MTU, or give devices more ways"
    )]
    TooFew { queues: u32, packet_bytes: u32, per_queue: u32 },
}

/// The bound for these queues on this cache.
///
/// # Errors
/// A number is 0, or a queue would have fewer frames than a burst.
pub fn bound(cache: IoCache, queues: Queues) -> Result<Bound, BufferError> {
    let named = [
        ("the number of I/O ways", u64::from(cache.ways)),
        ("the size of a way", cache.way_bytes),
        ("the size of a line", u64::from(cache.line)),
        ("the number of queues", u64::from(queues.queues)),
        ("the size of a packet", u64::from(queues.packet_bytes)),
    ];
    if let Some((name, _)) = named.iter().find(|(_, value)| *value == 0) {
        return Err(BufferError::Zero(name));
    }
    let lines = u64::from(queues.packet_bytes.div_ceil(cache.line)) + u64::from(queues.extra_lines);
    let frame_bytes = (lines * u64::from(cache.line)).max(u64::from(queues.stride));
    let room = u128::from(cache.ways) * u128::from(cache.way_bytes) * u128::from(FILL_PERCENT) / 100;
    let frames = u64::try_from(room / u128::from(frame_bytes)).unwrap_or(u64::MAX);
    let per_queue = u32::try_from(frames / u64::from(queues.queues)).unwrap_or(u32::MAX);
    if per_queue < LEAST_FRAMES {
        return Err(BufferError::TooFew { queues: queues.queues, packet_bytes: queues.packet_bytes, per_queue });
    }
    Ok(Bound { frames, per_queue, descriptors: 1 << per_queue.ilog2(), frame_bytes })
}

/// Where the number of I/O ways comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The user.
    Given,
    /// The processor's register.
    Register,
    /// The ways that devices share, as resctrl reports them.
    Resctrl,
}

/// Why the I/O ways of this host are unknown.
#[derive(Debug, thiserror::Error)]
pub enum IoCacheError {
    #[error("the kernel describes no last-level cache here; give the number of frames of a queue yourself")]
    NoCache,
    #[error(transparent)]
    Ways(#[from] DdioError),
}

/// The I/O ways of this host: `given` if set, else from the processor's register, else from resctrl
/// (`shareable`, a mask; 0 is none).
///
/// # Errors
/// None of these exists, or the kernel describes no L3.
pub fn io_cache(system: &Path, given: Option<u32>, shareable: u32) -> Result<(IoCache, Source), IoCacheError> {
    let caches = host::l3_caches(system);
    let cache = caches.first().filter(|cache| cache.ways > 0).ok_or(IoCacheError::NoCache)?;
    let way_bytes = cache.bytes / u64::from(cache.ways);
    let of = |ways: u32, source| (IoCache { ways: ways.min(cache.ways), way_bytes, line: cache.line }, source);
    if let Some(ways) = given {
        return Ok(of(ways, Source::Given));
    }
    match host::ddio_mask(system, cache.cpus.first().copied().unwrap_or(0)) {
        Ok(mask) => Ok(of(mask.count_ones(), Source::Register)),
        Err(_) if shareable != 0 => Ok(of(shareable.count_ones(), Source::Resctrl)),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: IoCache = IoCache { ways: 2, way_bytes: (45 << 20) / 20, line: 64 };

    fn queues(queues: u32, packet_bytes: u32) -> Queues {
        Queues { queues, packet_bytes, extra_lines: EXTRA_LINES, stride: 0 }
    }

    #[test]
    fn the_papers_machine() {
        // 4.5 MB in frames of 26 lines; the paper's estimate is 2,700 to 2,900.
        let found = bound(PAPER, queues(12, 1_518)).unwrap();
        assert_eq!(found, Bound { frames: 2_693, per_queue: 224, descriptors: 128, frame_bytes: 1_664 });
        assert_eq!(bound(PAPER, queues(12, 64)).unwrap().per_queue, 1_945);
        assert_eq!(bound(PAPER, queues(1, 1_518)).unwrap().descriptors, 2_048);
        let found = bound(PAPER, Queues { stride: 2_240, ..queues(12, 1_518) }).unwrap();
        assert_eq!(found, Bound { frames: 2_001, per_queue: 166, descriptors: 128, frame_bytes: 2_240 });
    }

    #[test]
    fn what_cannot_be_is_reported() {
        assert!(matches!(bound(PAPER, queues(100, 1_518)), Err(BufferError::TooFew { per_queue: 26, .. })));
        assert!(matches!(bound(PAPER, queues(12, 9_018)), Ok(Bound { per_queue: 40, .. })));
        for (cache, queues) in [
            (IoCache { ways: 0, ..PAPER }, queues(1, 64)),
            (IoCache { line: 0, ..PAPER }, queues(1, 64)),
            (IoCache { way_bytes: 0, ..PAPER }, queues(1, 64)),
            (PAPER, queues(0, 64)),
            (PAPER, queues(1, 0)),
        ] {
            assert!(matches!(bound(cache, queues), Err(BufferError::Zero(_))));
        }
        assert!(bound(IoCache { ways: u32::MAX, way_bytes: u64::MAX, line: 1 }, queues(1, 1)).is_ok());
    }

    #[test]
    fn the_hosts_ways_are_given_or_read() {
        let root = host::tests::two_sockets();
        assert!(matches!(io_cache(root.path(), None, 0), Err(IoCacheError::Ways(DdioError::NoModule { .. }))));
        assert_eq!(io_cache(root.path(), None, 0xc_0000).unwrap(), (PAPER, Source::Resctrl));
        assert_eq!(io_cache(root.path(), Some(4), 0).unwrap(), (IoCache { ways: 4, ..PAPER }, Source::Given));
        assert!(matches!(io_cache(Path::new("/nowhere"), Some(2), 0), Err(IoCacheError::NoCache)));
    }
}
