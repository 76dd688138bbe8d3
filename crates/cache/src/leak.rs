//! A model of DDIO: how many packets have left the cache when they are read.
//!
//! # Approach
//! One cache of sets and ways with least-recently-used replacement. A device writes a packet's
//! lines: a cached line is written in place, in any way; else it goes into the I/O ways and
//! replaces the line there that was used longest ago. A core reads: what is not cached comes from
//! memory into the core's ways. For each packet it also reads some lines of the NF's own data, of
//! which there are more than its ways hold. An evicted line that a device has written goes to
//! memory. Queues take packets in turn, and their frames are used in a circle, as a NIC does.
//!
//! # Limits
//! There is no L1 or L2 in front (a packet is read once), and no prefetcher. The cache is
//! inclusive, as on the paper's machine. Frames are contiguous, as in the arena.

use serde::{Deserialize, Serialize};

use crate::model::Geometry;

/// Marks an empty way.
const EMPTY: u64 = u64::MAX;

/// What is received, and where it is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    pub cache: Geometry,
    /// Ways that devices write into; the last ones.
    pub io_ways: u32,
    /// Ways that cores read into; the first ones.
    pub core_ways: u32,
    /// Bytes of a line.
    pub line: u32,
    pub queues: u32,
    /// Frames of each queue.
    pub frames: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
    pub packet_bytes: u32,
    /// Lines beside the packet's that the device writes.
    pub extra_lines: u32,
    /// Packets that wait in each queue before they are read; at most one less than its frames.
    pub waiting: u32,
    /// Lines of the NFs' own data read with each packet; always new ones.
    pub state_lines: u32,
}

/// Average cost of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Leak {
    pub packets: u64,
    /// Reads of uncached lines, as a part of all reads.
    pub read_misses: f64,
    /// Writes of uncached lines, as a part of all writes.
    pub write_misses: f64,
    /// Bytes between cache and memory per packet.
    pub memory_bytes: f64,
}

struct Cache {
    sets: u64,
    ways: usize,
    /// Line and time of its last use, for each set and way.
    lines: Vec<(u64, u64)>,
    dirty: Vec<bool>,
    now: u64,
    written_back: u64,
}

impl Cache {
    fn new(geometry: Geometry) -> Self {
        let slots = geometry.sets as usize * geometry.ways as usize;
        Self {
            sets: u64::from(geometry.sets),
            ways: geometry.ways as usize,
            lines: vec![(EMPTY, 0); slots],
            dirty: vec![false; slots],
            now: 0,
            written_back: 0,
        }
    }

    /// Uses a line; if it is not cached, puts it into one of the ways `into`. Returns whether it
    /// was cached.
    fn touch(&mut self, line: u64, into: std::ops::Range<usize>, write: bool) -> bool {
        self.now += 1;
        let from = (line % self.sets) as usize * self.ways;
        let found = self.lines[from..from + self.ways].iter().position(|(held, _)| *held == line);
        let slot = from + found.unwrap_or_else(|| into.min_by_key(|way| self.lines[from + way].1).unwrap_or(0));
        if found.is_none() {
            self.written_back += u64::from(self.dirty[slot]);
            self.dirty[slot] = false;
        }
        self.lines[slot] = (line, self.now);
        self.dirty[slot] |= write;
        found.is_some()
    }
}

/// Receives `packets` packets after the cache has settled.
pub fn run(setup: &Setup, packets: u64) -> Leak {
    let ways = setup.cache.ways.max(1);
    let io = (ways - setup.io_ways.clamp(1, ways)) as usize..ways as usize;
    let core = 0..setup.core_ways.clamp(1, ways) as usize;
    let mut cache = Cache::new(Geometry { ways, sets: setup.cache.sets.max(1) });
    let (queues, frames) = (u64::from(setup.queues.max(1)), u64::from(setup.frames.max(1)));
    let waiting = u64::from(setup.waiting).min(frames - 1) * queues;
    let lines = u64::from(setup.packet_bytes.div_ceil(setup.line.max(1)) + setup.extra_lines);
    let stride = u64::from(setup.stride.div_ceil(setup.line.max(1))).max(lines);
    // Packets take queues in turn; the frame's address follows from the queue and the frame's
    // index.
    let first_line = |packet: u64| ((packet % queues) * frames + packet / queues % frames) * stride;
    // Behind all frames; twice the lines of the cache, so that none is used again while cached.
    let (state_from, state_lines) = (queues * frames * stride, cache.lines.len() as u64 * 2);
    let mut state = 0;
    let settle = queues * frames * 2;
    let (mut read_misses, mut write_misses, mut written_back) = (0u64, 0u64, 0u64);
    for packet in 0..settle + packets {
        let counts = packet >= settle;
        if packet == settle {
            written_back = cache.written_back;
        }
        let from = first_line(packet);
        let missed = (from..from + lines).filter(|line| !cache.touch(*line, io.clone(), true)).count();
        write_misses += if counts { missed as u64 } else { 0 };
        if let Some(read) = packet.checked_sub(waiting) {
            let from = first_line(read);
            let missed = (from..from + lines).filter(|line| !cache.touch(*line, core.clone(), false)).count();
            read_misses += if counts { missed as u64 } else { 0 };
            for _ in 0..setup.state_lines {
                cache.touch(state_from + state % state_lines, core.clone(), false);
                state += 1;
            }
        }
    }
    written_back = cache.written_back - written_back;
    let all = (packets * lines).max(1) as f64;
    Leak {
        packets,
        read_misses: read_misses as f64 / all,
        write_misses: write_misses as f64 / all,
        memory_bytes: (read_misses + written_back) as f64 * f64::from(setup.line) / packets.max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::{IoCache, Queues, bound};

    /// A small machine: 2 of 8 ways of 64 KiB for devices.
    fn setup(frames: u32, packet_bytes: u32, waiting: u32) -> Setup {
        Setup {
            cache: Geometry { sets: 1_024, ways: 8 },
            io_ways: 2,
            core_ways: 6,
            line: 64,
            queues: 2,
            frames,
            stride: 2_240,
            packet_bytes,
            extra_lines: 2,
            waiting,
            state_lines: 2,
        }
    }

    #[test]
    fn packets_stay_cached_where_all_frames_fit() {
        let cache = IoCache { ways: 2, way_bytes: 65_536, line: 64 };
        let queues = Queues { queues: 2, packet_bytes: 512, extra_lines: 2, stride: 640 };
        assert!(bound(cache, Queues { stride: 2_240, ..queues }).unwrap_err().to_string().contains("fewer queues"));
        let frames = bound(cache, queues).unwrap().per_queue;
        let leak = run(&Setup { stride: 640, ..setup(frames, 512, frames - 1) }, 10_000);
        assert_eq!((leak.read_misses, leak.write_misses, leak.memory_bytes), (0.0, 0.0, 0.0));
    }

    #[test]
    fn they_leak_where_they_do_not_and_wait() {
        let full = run(&setup(1_024, 1_518, 1_023), 10_000);
        // A line just read is cached when its frame is written again; the line that it evicted is
        // not cached when it is read.
        assert!(full.read_misses > 0.9 && full.write_misses < 0.1, "{full:?}");
        // Read at once they are cached, but each still evicts another's lines to memory.
        let empty = run(&setup(1_024, 1_518, 0), 10_000);
        assert!(empty.read_misses < 0.01 && empty.write_misses > 0.9, "{empty:?}");
        assert!(empty.memory_bytes > 1_500.0 && full.memory_bytes > empty.memory_bytes);
    }

    #[test]
    fn sizes_that_make_no_sense_do_no_harm() {
        let setup = Setup { queues: 0, frames: 0, io_ways: 0, core_ways: 99, waiting: 7, ..setup(1, 64, 0) };
        assert_eq!(run(&setup, 0).packets, 0);
        assert_eq!(run(&setup, 10).read_misses, 0.0);
    }
}
