//! How fast the host is while an experiment runs, by loops that are no code of Sluice.
//!
//! # Problem
//! The cores of a virtual machine are faster at one time than at another, and other programs take
//! time of them. Then two results of the same build differ as if the build had changed.
//!
//! # Approach
//! Before the first run of an experiment, between two, and after the last, loops run for [`LOOP`]
//! each on the manager's core and on that of NFs:
//! - [`SPIN`]: steps of arithmetic, of which each needs the one before;
//! - [`COPY`]: bytes that are copied within memory that is larger than most caches;
//! - [`LINE`]: ways of a cache line from one of the cores to the other and back.
//!
//! The first two run on both cores at once, and the mean counts. [`LEFT`] is the part of a core
//! that others left since the sample before: 1, less the time per time that other programs and
//! other guests of the hypervisor had of these cores, and at least [`LEAST_LEFT`]. More is faster
//! in all.
//!
//! # Limits
//! - There is at most one sample in [`EVERY`], so that they take less than 2 % of an experiment.
//! - The kernel counts cores in ticks of some milliseconds, and a child when it is collected.
//! - What an experiment leaves running between two runs slows the loops down, in each result alike.
//! - The loops are as fast as they were built: compare results of one kind of build.
//! - Nothing is sampled where there is one core.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_host::affinity;

use crate::bench::proc::{CoreTimes, own_cpu_s};
use crate::bench::report::Summary;

/// Steps of arithmetic per second.
pub const SPIN: &str = "spin_per_s";
/// Copied bytes per second.
pub const COPY: &str = "copy_bytes_per_s";
/// Ways of a cache line there and back, per second.
pub const LINE: &str = "line_per_s";
/// Part of a core that others left.
pub const LEFT: &str = "left_ratio";

/// Time of a loop.
const LOOP: Duration = Duration::from_millis(2);
/// Least time between two samples: three loops take 1.2 % of it.
const EVERY: Duration = Duration::from_millis(500);
/// Time in which a core that answers has to see the end: the other core may lack time for a while.
const PATIENCE: Duration = Duration::from_millis(20);
/// Bytes that each core copies to and from.
const BLOCK: usize = 8 << 20;
/// Bytes between two looks at the clock.
const PIECE: usize = 64 << 10;
/// Steps of arithmetic between two looks at the clock.
const STEPS: u64 = 1_000;
/// Looks at a cache line between two at the clock.
const LOOKS: u32 = 1_000;
/// Smallest part of a core that is left: where others have more, their part is not known well.
const LEAST_LEFT: f64 = 0.1;
/// Says that the trips of a cache line are over.
const OVER: u64 = u64::MAX;

/// Most that a speed of a steady host differs between two experiments, as a factor.
pub const STEADY: f64 = 1.5;

/// Says between which speeds the host was in some experiments, by their medians, and whether that
/// is [steady](STEADY). None if none of them has samples.
pub fn spread<'a>(samples: impl Iterator<Item = &'a BTreeMap<String, Summary>> + Clone) -> Option<String> {
    let mut is_steady = true;
    let units = [
        (SPIN, "arithmetic", 1e9, "G steps"),
        (COPY, "copies of memory", 1e9, "GB"),
        (LINE, "a line between cores", 1e6, "M ways"),
    ];
    let speeds = units.map(|(name, what, unit, of)| {
        let medians = samples.clone().filter_map(|of| Some(of.get(name)?.median / unit));
        let (least, most) = medians.fold(None, |range: Option<(f64, f64)>, one| {
            Some(range.map_or((one, one), |(least, most)| (least.min(one), most.max(one))))
        })?;
        is_steady &= most <= STEADY * least;
        Some(format!("{what} {least:.2}–{most:.2} {of} a second"))
    });
    let speeds: Vec<String> = speeds.into_iter().flatten().collect();
    let verdict = if is_steady { "steady" } else { "not steady: runs differ by that too" };
    (!speeds.is_empty()).then(|| format!("Medians of the experiments: {}. The host was {verdict}.", speeds.join(", ")))
}

/// What a core copies to and from.
struct Blocks {
    from: Vec<u8>,
    to: Vec<u8>,
    /// Of the next piece.
    offset: usize,
}

impl Blocks {
    fn new() -> Self {
        // What is not 0 has memory of its own.
        Self { from: vec![1; BLOCK], to: vec![2; BLOCK], offset: 0 }
    }

    /// Copies a piece; returns its bytes.
    fn copy(&mut self) -> u64 {
        let piece = self.offset..self.offset + PIECE;
        self.to[piece.clone()].copy_from_slice(&self.from[piece]);
        black_box(self.to[self.offset]);
        self.offset = (self.offset + PIECE) % BLOCK;
        PIECE as u64
    }
}

/// A cache line, with its neighbour, which some processors fetch too.
#[repr(align(128))]
struct Ball(AtomicU64);

/// Times by which the part of a core is found that others had.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    /// CPU seconds of others for each core; none if the kernel does not count.
    others_s: Option<f64>,
}

/// The loops of an experiment, and what they gave.
pub struct HostSpeed {
    /// The manager's, and that of NFs.
    cores: [usize; 2],
    blocks: [Blocks; 2],
    last: Option<Moment>,
    samples: BTreeMap<String, Summary>,
}

impl HostSpeed {
    pub fn new(manager_core: usize, nf_core: usize) -> Self {
        let blocks = [Blocks::new(), Blocks::new()];
        Self { cores: [manager_core, nf_core], blocks, last: None, samples: BTreeMap::new() }
    }

    /// Takes a sample, unless the last one was a moment ago.
    pub fn sample(&mut self) {
        let [manager_core, nf_core] = self.cores;
        if manager_core == nf_core || self.last.is_some_and(|last| last.at.elapsed() < EVERY) {
            return;
        }
        let [first, second] = &mut self.blocks;
        let line = Ball(AtomicU64::new(0));
        let mean = |both: [f64; 2]| (both[0] + both[1]) / 2.0;
        let spin = both(self.cores, || per_s(spin), || per_s(spin)).map(mean);
        let copy = both(self.cores, || per_s(|| first.copy()), || per_s(|| second.copy())).map(mean);
        let trips = both(self.cores, || throw(&line.0), || answer(&line.0)).map(|[trips, _]| trips);
        let now = Moment { at: Instant::now(), others_s: others_s(&self.cores) };
        let left = self.last.and_then(|last| now.left_since(&last));
        self.last = Some(now);
        for (name, value) in [(SPIN, spin), (COPY, copy), (LINE, trips), (LEFT, left)] {
            if let Some(value) = value.filter(|value| *value > 0.0) {
                self.samples.entry(name.into()).or_default().push(value);
            }
        }
    }

    /// What was sampled, by name, in order of time.
    pub fn samples(self) -> BTreeMap<String, Summary> {
        self.samples
    }
}

impl Moment {
    /// The part of a core that others left since `earlier`.
    fn left_since(&self, earlier: &Self) -> Option<f64> {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        let others = (self.others_s? - earlier.others_s?) / seconds;
        Some((1.0 - others).clamp(LEAST_LEFT, 1.0))
    }
}

/// CPU seconds of other programs and of other guests, on some cores, for each of them. Interrupts
/// are left out: they are of no program, and what is measured causes most of them.
fn others_s(cores: &[usize]) -> Option<f64> {
    let times = CoreTimes::read(cores).ok()?;
    let programs_s = times.busy_s - times.softirq_s - times.irq_s - own_cpu_s()?;
    Some((programs_s + times.stolen_s) / cores.len() as f64)
}

/// What two pieces of work give, on a core each, at the same time; none if they cannot run there.
fn both(cores: [usize; 2], first: impl FnOnce() -> f64 + Send, second: impl FnOnce() -> f64 + Send) -> Option<[f64; 2]> {
    std::thread::scope(|scope| {
        let one = scope.spawn(move || affinity::pin(cores[0]).ok().map(|_| first()));
        let other = scope.spawn(move || affinity::pin(cores[1]).ok().map(|_| second()));
        let (one, other) = (one.join().ok().flatten(), other.join().ok().flatten());
        Some([one?, other?])
    })
}

/// Does work again and again for the time of a loop; returns the sum of what it gives, per second.
fn per_s(mut work: impl FnMut() -> u64) -> f64 {
    let (began, mut done) = (Instant::now(), 0);
    loop {
        done += work();
        let took = began.elapsed();
        if took >= LOOP {
            return done as f64 / took.as_secs_f64();
        }
    }
}

/// Steps of arithmetic (xorshift); returns their number.
fn spin() -> u64 {
    let mut word = black_box(1u64);
    for _ in 0..STEPS {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
    }
    black_box(word);
    STEPS
}

/// Sends even numbers to the core that answers, each when the one before has its answer, for the
/// time of a loop; returns answers per second.
fn throw(line: &AtomicU64) -> f64 {
    let (mut began, mut looks, mut number) = (Instant::now(), 0u32, 0u64);
    let trips = loop {
        // Here and below: the number is all that the two say to each other, and so no order with
        // other memory is needed.
        if line.load(Ordering::Relaxed) == number + 1 {
            if number == 0 {
                // The first answer says that the other core is there.
                began = Instant::now();
            }
            number += 2;
            line.store(number, Ordering::Relaxed);
        }
        looks += 1;
        if looks.is_multiple_of(LOOKS) && began.elapsed() >= LOOP {
            break (number / 2).saturating_sub(1);
        }
    };
    let took = began.elapsed();
    line.store(OVER, Ordering::Relaxed);
    trips as f64 / took.as_secs_f64()
}

/// Answers each even number with the next one until it is over.
fn answer(line: &AtomicU64) -> f64 {
    let (began, mut looks) = (Instant::now(), 0u32);
    loop {
        let seen = line.load(Ordering::Relaxed);
        if seen != OVER && seen.is_multiple_of(2) {
            // It fails where the end has come meanwhile.
            let _ = line.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        looks = looks.wrapping_add(1);
        if seen == OVER || (looks.is_multiple_of(LOOKS) && began.elapsed() >= PATIENCE) {
            return 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::host::Cores;

    #[test]
    fn the_next_sample_waits() {
        let cores = Cores::here();
        let Ok(manager_core) = cores.manager() else {
            return crate::skip::skip("there is one core, and so none is sampled");
        };
        let mut speed = HostSpeed::new(manager_core, cores.shared());
        speed.sample();
        assert!(speed.last.is_some_and(|last| last.others_s.is_some()));
        speed.last = speed.last.map(|last| Moment { at: last.at + Duration::from_secs(3_600), ..last });
        speed.sample();
        let samples = speed.samples();
        assert!(samples.values().all(|one| one.samples.len() == 1 && one.median > 0.0), "{samples:?}");
        assert!(samples.contains_key(SPIN) && samples.contains_key(COPY) && !samples.contains_key(LEFT), "{samples:?}");
    }

    #[test]
    fn speeds_of_experiments_are_steady_or_not() {
        let of = |speeds: [f64; 2]| {
            BTreeMap::from([(SPIN, 4e8), (COPY, speeds[0]), (LINE, speeds[1])].map(|(n, v)| (n.into(), Summary::of(vec![v]))))
        };
        let all = [of([2e9, 8e6]), of([2.9e9, 7e6])];
        let text = spread(all.iter()).unwrap();
        assert!(text.contains("copies of memory 2.00–2.90 GB a second, a line between cores 7.00–8.00 M ways"), "{text}");
        assert!(text.ends_with("The host was steady."), "{text}");
        assert!(spread([of([2e9, 8e6]), of([3.1e9, 8e6])].iter()).unwrap().contains("not steady"));
        assert_eq!(spread([BTreeMap::new()].iter()), None);
    }

    #[test]
    fn a_core_is_not_sampled_against_itself() {
        let mut speed = HostSpeed::new(0, 0);
        speed.sample();
        assert_eq!(speed.samples(), BTreeMap::new());
    }

    #[test]
    fn what_others_had_is_not_left() {
        let start = Instant::now();
        let at = |seconds: u64, others_s: Option<f64>| Moment { at: start + Duration::from_secs(seconds), others_s };
        let left = |others_s| at(12, others_s).left_since(&at(10, Some(5.0)));
        assert_eq!((left(Some(6.0)), left(Some(5.0)), left(None)), (Some(0.5), Some(1.0), None));
        assert_eq!((left(Some(4.0)), left(Some(9.0))), (Some(1.0), Some(LEAST_LEFT)), "within its limits");
    }

    #[test]
    fn an_answer_ends_without_the_other_side() {
        assert_eq!(answer(&AtomicU64::new(OVER)), 0.0);
        assert_eq!(answer(&AtomicU64::new(1)), 0.0, "after some patience");
        assert_eq!(throw(&AtomicU64::new(0)), 0.0);
    }
}
