//! The cost of a last-level cache miss on this host.
//!
//! # Approach
//! A pointer chain runs through memory four times as large as the cache, one pointer per line, in
//! an order that defeats prefetchers: each load waits for the previous one. A step is an isolated
//! miss, with the way to the cache and, with pages of the usual size, a TLB miss. An NF's misses
//! cost no more.
//!
//! # Limits
//! Neighbours on the same memory make it longer while they run; the median of three tries counts.

use std::hint::black_box;
use std::time::Instant;

/// Assumed cost of a miss where it cannot be measured, in nanoseconds: more than typical memory
/// latency.
pub const STATED_NS: f64 = 200.0;

/// A cache line, with the index of the next one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(u32);

const STEPS: u32 = 500_000;
const TRIES: usize = 3;
/// Memory limit, in bytes.
const MOST: u64 = 2 << 30;
/// Size of the memory, relative to the cache.
const TIMES: u64 = 4;

/// The pointer chain.
pub struct PointerChain(Vec<Line>);

impl PointerChain {
    /// One that runs behind a last-level cache of this size; None if there is too little memory.
    pub fn behind(cache_bytes: u64) -> Option<Self> {
        let bytes = cache_bytes.checked_mul(TIMES)?;
        if bytes > MOST || bytes > free_bytes()? / 2 {
            return None;
        }
        Some(Self(ring(usize::try_from(bytes / 64).ok()?.max(2))))
    }

    /// Nanoseconds of each of some steps, from `at` on, which it moves.
    pub fn step_ns(&self, at: &mut u32, steps: u32) -> f64 {
        let began = Instant::now();
        for _ in 0..steps {
            *at = self.0[*at as usize].0;
        }
        black_box(*at);
        began.elapsed().as_nanos() as f64 / f64::from(steps)
    }
}

/// Nanoseconds per miss behind a last-level cache of this size; None if there is too little memory.
pub fn miss_ns(cache_bytes: u64) -> Option<f64> {
    let chain = PointerChain::behind(cache_bytes)?;
    let mut at = 0;
    let mut tries: [f64; TRIES] = std::array::from_fn(|_| chain.step_ns(&mut at, STEPS));
    tries.sort_by(f64::total_cmp);
    Some(tries[TRIES / 2])
}

/// One ring through all lines, in a random order (Sattolo).
fn ring(lines: usize) -> Vec<Line> {
    let mut ring: Vec<Line> = (0..lines as u32).map(Line).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..lines).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ring.swap(i, (state % i as u64) as usize);
    }
    ring
}

/// Available memory, in bytes.
pub(super) fn free_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_through_all_lines() {
        for lines in [2, 3, 1000] {
            let ring = ring(lines);
            let (mut at, mut steps) = (ring[0].0, 1);
            while at != 0 {
                (at, steps) = (ring[at as usize].0, steps + 1);
            }
            assert_eq!(steps, lines);
        }
    }

    #[test]
    fn a_step_takes_time_and_too_much_memory_is_not_taken() {
        assert!(miss_ns(1 << 16).is_some_and(|ns| ns > 0.0));
        assert_eq!((miss_ns(MOST), miss_ns(u64::MAX)), (None, None));
        let (chain, mut at) = (PointerChain::behind(1 << 16).unwrap(), 0);
        assert!(chain.step_ns(&mut at, 3) > 0.0 && at != 0);
    }
}
