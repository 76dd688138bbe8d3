//! Cores that write memory, and how long a load takes meanwhile.
//!
//! # Approach
//! A thread on each core writes a byte of each line of memory that no cache holds, a chunk at a
//! time, and rests after each chunk, so that it writes for a part of the time (`pace_percent`). The
//! rate is that of the bytes of written lines; most processors read each line, too, before they
//! write it back.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use sluice_host::affinity;

use crate::profile::chase::PointerChain;

/// Bytes of a line, or fewer.
const LINE: usize = 64;
/// Bytes that are written without a rest.
const CHUNK: usize = 1 << 20;
/// Steps of the pointer chain between two looks at the clock.
const STEPS: u32 = 50_000;

/// What the threads have done.
#[derive(Default)]
struct WriteState {
    stop: AtomicBool,
    bytes: AtomicU64,
}

/// Threads that write memory until it is dropped.
pub struct MemoryWriters {
    state: Arc<WriteState>,
    threads: Vec<JoinHandle<()>>,
}

impl MemoryWriters {
    /// Starts a thread on each of these cores, which all write for `pace_percent` (1 to 100) of the
    /// time into `bytes` of memory together. Returns when all of them write.
    ///
    /// # Errors
    /// A thread cannot run on its core.
    pub fn start(cores: &[usize], pace_percent: u32, bytes: u64) -> anyhow::Result<Self> {
        let each = usize::try_from(bytes)? / cores.len().max(1);
        let mut writers = Self { state: Arc::default(), threads: Vec::new() };
        let (ready, begun) = channel();
        for core in cores.iter().copied() {
            let (state, ready) = (writers.state.clone(), ready.clone());
            let write = move || write_on(core, pace_percent, vec![0; each.max(CHUNK)], &state, &ready);
            writers.threads.push(std::thread::spawn(write));
        }
        // The threads have the only senders: if one panics, nothing is waited for.
        drop(ready);
        for _ in cores {
            begun.recv().context("a thread that writes memory ended")??;
        }
        Ok(writers)
    }

    /// Bytes of the lines that were written so far.
    pub fn written(&self) -> u64 {
        // A count, of which nothing else depends.
        self.state.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryWriters {
    fn drop(&mut self) {
        // The threads only have to see it some time.
        self.state.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("sluice bench: a thread that writes memory panicked");
            }
        }
    }
}

/// Writes on a core until it is to stop. Says when it has written everything once, or that it
/// cannot.
fn write_on(core: usize, pace_percent: u32, mut memory: Vec<u8>, state: &WriteState, ready: &Sender<anyhow::Result<()>>) {
    if let Err(error) = affinity::pin(core) {
        let _ = ready.send(Err(error.into()));
        return;
    }
    // So that its pages are there.
    memory.iter_mut().step_by(LINE).for_each(|byte| *byte = 1);
    // It is of no use to one that does not wait any more.
    let _ = ready.send(Ok(()));
    let mut pass = 1u8;
    loop {
        pass = pass.wrapping_add(1);
        for chunk in memory.chunks_mut(CHUNK) {
            // Some time after it was set is soon enough.
            if state.stop.load(Ordering::Relaxed) {
                return;
            }
            let began = Instant::now();
            chunk.iter_mut().step_by(LINE).for_each(|byte| *byte = pass);
            black_box(&mut *chunk);
            // A count, of which nothing else depends.
            state.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            let until = Instant::now() + began.elapsed() * (100 - pace_percent.min(100)) / pace_percent.max(1);
            while Instant::now() < until {
                spin_loop();
            }
        }
    }
}

/// Nanoseconds of a load that waits for the one before and misses all caches, on a core, for this
/// time.
///
/// # Errors
/// The thread cannot run on that core.
pub fn load_ns(chain: &PointerChain, core: usize, time: Duration) -> anyhow::Result<f64> {
    let chase = || -> anyhow::Result<f64> {
        affinity::pin(core)?;
        let (began, mut at) = (Instant::now(), 0);
        let mut each = Vec::new();
        while each.is_empty() || began.elapsed() < time {
            each.push(chain.step_ns(&mut at, STEPS));
        }
        Ok(each.iter().sum::<f64>() / each.len() as f64)
    };
    // In a thread of its own, so that the affinity of this one does not change.
    let chased = std::thread::scope(|scope| scope.spawn(chase).join());
    chased.map_err(|_| anyhow::anyhow!("a thread of the experiment panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_core() -> usize {
        affinity::allowed().unwrap()[0]
    }

    #[test]
    fn memory_is_written_until_it_is_dropped() {
        let writers = MemoryWriters::start(&[a_core()], 50, 3 << 20).unwrap();
        let state = writers.state.clone();
        let began = Instant::now();
        while writers.written() < 8 << 20 {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing is written");
            std::thread::yield_now();
        }
        drop(writers);
        let written = state.bytes.load(Ordering::Relaxed);
        assert_eq!((written % CHUNK as u64, Arc::strong_count(&state)), (0, 1), "whole chunks, and no thread is left");
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        let error = MemoryWriters::start(&[100_000], 100, 1).err().unwrap();
        assert!(format!("{error:#}").contains("core 100000"), "{error:#}");
        let chain = PointerChain::behind(1 << 16).unwrap();
        assert!(load_ns(&chain, 100_000, Duration::ZERO).is_err());
        assert!(load_ns(&chain, a_core(), Duration::ZERO).unwrap() > 0.0);
    }
}
