//! The packet cost of an NF, measured from outside before it is in use.
//!
//! # Problem
//! Time slices and placement need the time of an NF's bursts before it has run, and without its
//! help: an NF may be a program that measures nothing, or reports anything.
//!
//! # Approach
//! The NF runs alone on its own core between two rings ([`stand`]). Bursts of crafted or captured
//! packets are put on its ring and awaited: first a single one, then a *row* of eight at once. Each
//! time is from when they are on the ring until the last packet is back. Both times contain the way
//! between the cores and back, so a seventh of the difference is the time of one burst in a row.
//! Two references are measured alternately with the NF. The time of a reference's burst, less the
//! handler time that its library samples, is the cost of its rings. It is subtracted, which leaves
//! the handler's time.
//!
//! There are two references, because an NF fetches the next ring lines while its handler works: an
//! NF with little to do waits for its rings longer than one with much. [`IDLE`] does next to
//! nothing, and [`BUSY`] enough to hide all that can be hidden. For NFs with shorter bursts than
//! the latter's, the cost of the rings is interpolated by the time of a burst (`Rings::at`).
//!
//! Once a millisecond, a sample costs an NF some hundred nanoseconds, because its counters are in
//! lines that the caller reads. So rounds with a sample count only for the inside time. The outside
//! time comes from the others; for a comparison of the two, from the last one before a sample.
//! Where every round has a sample, its cost is nothing beside the handler's.
//!
//! # Terms and units
//! A *round* is a single burst and a row. Times are nanoseconds, or cycles of the time-stamp
//! counter. *Inside* is the handler time that the NF's library sampled in the rows of the same
//! rounds, for comparison only.
//!
//! # Limits
//! Caches are warm, since the NF has the core alone. Packets that a handler keeps (to wait for a
//! disk, say) end a round late or never; after [`subject::PATIENCE`] that is an error. Costs below
//! some tens of nanoseconds a burst are within the noise of the rings: the subtracted value is a
//! median, and [`Estimate::ring_spread_ns`] is its variation between turns.
//!
//! Source: UNiS (Anthony and Bai), the cycle estimator; its report leaves the subtraction for the
//! ring open.

pub mod command;
pub mod packets;
pub mod stand;
mod subject;

use std::ffi::OsString;
use std::path::PathBuf;

use sluice_config::estimates::{Estimate, Spread};
use sluice_shm::BURST;
use sluice_shm::clock::monotonic_ns;

use stand::{MOST_BURSTS, Stand};
pub use subject::{EstimateError, Names, Subject};

/// Reference program beside the daemon whose handler does next to nothing.
pub const IDLE: &str = "sluice-nf-bridge";
/// Reference program beside the daemon that works on each packet.
pub const BUSY: &str = "sluice-nf-cost";
/// Cycles per packet of `BUSY`: a burst takes longer than some lines need from another core.
const BUSY_CYCLES: &str = "50";
pub const BURSTS: u32 = 1 + MOST_BURSTS as u32;
/// Rounds before those that count: caches fill, branch predictors learn.
const WARM_UP: u64 = 100;
/// Largest variation of the rings' cost between turns. It is some hundred nanoseconds per burst;
/// beyond this, another program had the core.
const MOST_SPREAD_NS: f64 = 10_000.0;
/// Attempts on a disturbed host.
const TRIES: u32 = 3;
/// Turns: starts and measurements of the NF, each between two measurements of both references.
const TURNS: u32 = 3;
/// Shortest measurement of a turn, in nanoseconds: the NF's library samples its handler once a
/// millisecond.
const SHORTEST_NS: u64 = 200_000_000;
/// Longest measurement of a turn, in nanoseconds: on a shared core a round may take a whole time
/// slice.
const LONGEST_NS: u64 = 5_000_000_000;

/// How to measure.
#[derive(Debug, Clone)]
pub struct Procedure {
    /// Core of the NF. The caller runs on another one.
    pub core: usize,
    /// Least number of rounds; more until 0.6 s have passed, and fewer after 15 s.
    pub rounds: u32,
    /// Ethernet frames, sent in turn.
    pub packets: Vec<Vec<u8>>,
}

/// Rounds of one NF.
#[derive(Default)]
struct Rounds {
    /// Times of a burst in rounds without a sample, in ticks.
    ticks: Vec<u64>,
    /// For each row with a sample: ticks of a burst in the last round without a sample before it,
    /// and the sample in nanoseconds.
    sampled: Vec<(u64, u64)>,
    /// Rounds, with or without a sample.
    count: u64,
    dropped: u64,
    packets: u64,
}

impl Rounds {
    /// Nanoseconds per burst by the library's samples.
    fn inside_ns(&self) -> Option<f64> {
        let mut samples: Vec<u64> = self.sampled.iter().map(|(_, inside_ns)| *inside_ns).collect();
        (!samples.is_empty()).then(|| Spread::of(&mut samples).median)
    }

    /// Ticks of a burst.
    fn burst(&self) -> f64 {
        Spread::of(&mut self.ticks.clone()).median
    }

    /// Ticks of a burst without the handler, by the library's samples.
    fn rest(&self) -> f64 {
        let ns_per_tick = stand::ns_per_tick();
        let mut left: Vec<f64> = self.sampled.iter().map(|(ticks, ns)| *ticks as f64 - *ns as f64 / ns_per_tick).collect();
        middle(&mut left).unwrap_or(0.0).max(0.0)
    }

    /// Adds the rounds of another process of the same NF.
    fn add(&mut self, mut more: Self) {
        self.ticks.append(&mut more.ticks);
        self.sampled.append(&mut more.sampled);
        self.count += more.count;
        self.dropped += more.dropped;
        self.packets += more.packets;
    }
}

/// Cost of the rings per burst, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Rings {
    /// For [`IDLE`]: of a whole burst, and of the rings in it.
    idle: (f64, f64),
    /// The same for [`BUSY`].
    busy: (f64, f64),
}

impl Rings {
    /// Cost for an NF by the time of its burst, rings included: linear between the references,
    /// constant beyond.
    fn at(&self, burst: f64) -> f64 {
        let between = self.busy.0 - self.idle.0;
        if between <= 0.0 {
            return self.busy.1;
        }
        let part = ((burst - self.idle.0) / between).clamp(0.0, 1.0);
        self.idle.1 + part * (self.busy.1 - self.idle.1)
    }

    /// Mean of two measurements.
    fn midpoint(&self, other: &Self) -> Self {
        let mid = |a: (f64, f64), b: (f64, f64)| (a.0.midpoint(b.0), a.1.midpoint(b.1));
        Self { idle: mid(self.idle, other.idle), busy: mid(self.busy, other.busy) }
    }
}

/// Paths of the two reference programs.
#[derive(Debug, Clone, Default)]
pub struct References {
    pub idle: PathBuf,
    pub busy: PathBuf,
}

impl References {
    fn measure(&self, plan: &Procedure) -> Result<Rings, EstimateError> {
        let of = |exec: &PathBuf, args: &[&str]| {
            let args = args.iter().map(OsString::from).collect();
            let found = rounds(&Subject { name: "reference".into(), exec: exec.clone(), args, ..Subject::default() }, plan)?;
            Ok::<_, EstimateError>((found.burst(), found.rest()))
        };
        Ok(Rings { idle: of(&self.idle, &[])?, busy: of(&self.busy, &["--cycles", BUSY_CYCLES])? })
    }
}

/// The median.
fn middle(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Measures an NF several times, and the references before and after each; repeats if other
/// programs had the cores.
pub fn estimate(subject: &Subject, references: &References, plan: &Procedure) -> Result<Estimate, EstimateError> {
    if plan.packets.is_empty() {
        return Err(EstimateError::NoPackets);
    }
    if let Some(long) = plan.packets.iter().map(Vec::len).find(|bytes| *bytes > stand::ROOM) {
        return Err(EstimateError::TooLong { bytes: long, most: stand::ROOM });
    }
    let _pin = stand::Pin::away_from(plan.core)?;
    for _ in 1..TRIES {
        match measure(subject, references, plan) {
            Err(EstimateError::Disturbed { .. }) => {}
            other => return other,
        }
    }
    measure(subject, references, plan)
}

fn measure(subject: &Subject, references: &References, plan: &Procedure) -> Result<Estimate, EstimateError> {
    let ns_per_cycle = stand::ns_per_tick();
    let each = Procedure { rounds: plan.rounds.div_ceil(TURNS), ..plan.clone() };
    let mut found = Rounds::default();
    let (mut ticks, mut taken_off, mut off) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = references.measure(&each)?;
    for _ in 0..TURNS {
        let turn = rounds(subject, &each)?;
        let after = references.measure(&each)?;
        // Processor speeds vary: a turn is compared with its neighbouring measurements.
        let ring = before.midpoint(&after).at(turn.burst());
        before = after;
        taken_off.push(ring);
        ticks.extend(turn.ticks.iter().map(|ticks| (*ticks as f64 - ring).max(0.0) as u64));
        off.extend(
            turn.sampled.iter().map(|(ticks, inside_ns)| (*ticks as f64 - ring) * ns_per_cycle / (*inside_ns).max(1) as f64 - 1.0),
        );
        found.add(turn);
    }
    let ring = middle(&mut taken_off).unwrap_or(0.0);
    let ring_spread = taken_off.last().unwrap_or(&0.0) - taken_off.first().unwrap_or(&0.0);
    if ring_spread * ns_per_cycle > MOST_SPREAD_NS {
        return Err(EstimateError::Disturbed { spread_us: ring_spread * ns_per_cycle / 1e3 });
    }
    let cycles_per_burst = Spread::of(&mut ticks);
    let per_packet = 1.0 / BURST as f64;
    Ok(Estimate {
        rounds: found.count,
        burst: BURST as u32,
        ns_per_burst: cycles_per_burst.times(ns_per_cycle),
        ns_per_packet: cycles_per_burst.times(ns_per_cycle * per_packet),
        cycles_per_burst,
        cycles_per_packet: cycles_per_burst.times(per_packet),
        ring_ns: ring * ns_per_cycle,
        ring_spread_ns: ring_spread * ns_per_cycle,
        inside_ns: found.inside_ns(),
        off_inside: middle(&mut off),
        dropped: found.dropped,
        packets: found.packets,
        ns_per_cycle,
    })
}

/// Starts an NF, sends bursts, and stops it.
fn rounds(subject: &Subject, plan: &Procedure) -> Result<Rounds, EstimateError> {
    let mut stand = Stand::start(subject, plan.core)?;
    let mut next = 0;
    let mut packets = |bursts: usize| {
        let from = next;
        next = (next + bursts * BURST) % plan.packets.len();
        move |i: usize| plan.packets[(from + i) % plan.packets.len()].as_slice()
    };
    let (mut single, mut row) = (stand::RingLoad::new(1), stand::RingLoad::new(MOST_BURSTS));
    let (mut dropped, mut began) = (0, 0);
    let mut found = Rounds { ticks: Vec::with_capacity(plan.rounds as usize), ..Rounds::default() };
    let mut unsampled = None;
    for turn in 0u64.. {
        if turn == WARM_UP {
            (dropped, began) = (stand.dropped, monotonic_ns());
        }
        if found.count > 0 {
            let passed_ns = monotonic_ns() - began;
            if passed_ns >= LONGEST_NS || found.count >= u64::from(plan.rounds) && passed_ns >= SHORTEST_NS {
                break;
            }
        }
        // All packets are written first, so the NF hardly waits between the two rounds. A sample
        // that was due while it waited falls on the single burst, which finds everything cold.
        // Those of the row fall on typical bursts.
        stand.fill(&mut single, packets(1));
        stand.fill(&mut row, packets(MOST_BURSTS));
        let start = stand.sampled();
        let one = stand.round(&single)?;
        let between = stand.sampled();
        let all = stand.round(&row)?;
        let end = stand.sampled();
        if turn < WARM_UP {
            continue;
        }
        // The way there and back is in both and cancels out.
        let ticks = all.saturating_sub(one) / (MOST_BURSTS as u64 - 1);
        if end == start {
            unsampled = Some(ticks);
            found.ticks.push(ticks);
        }
        found.sampled.extend(end.burst_ns_since(&between).map(|inside_ns| (unsampled.unwrap_or(ticks), inside_ns)));
        found.count += 1;
        found.packets += u64::from(BURSTS) * BURST as u64;
    }
    if found.ticks.is_empty() {
        // Bursts of a millisecond or more.
        found.ticks = found.sampled.iter().map(|(ticks, _)| *ticks).collect();
    }
    found.dropped = stand.dropped - dropped;
    stand.stop()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_that_of_the_sorted() {
        assert_eq!((middle(&mut [3.0, 1.0, 2.0]), middle(&mut [])), (Some(2.0), None));
    }

    #[test]
    fn rings_cost_less_where_the_handler_hides_them() {
        let rings = Rings { idle: (700.0, 600.0), busy: (1500.0, 400.0) };
        assert_eq!([0.0, 700.0, 1100.0, 1500.0, 9000.0].map(|burst| rings.at(burst)), [600.0, 600.0, 500.0, 400.0, 400.0]);
        let other = Rings { idle: (900.0, 800.0), busy: (1500.0, 600.0) };
        assert_eq!(rings.midpoint(&other), Rings { idle: (800.0, 700.0), busy: (1500.0, 500.0) });
        // Measured under disturbance: the references are in the wrong order.
        assert_eq!(Rings { idle: (1500.0, 400.0), busy: (700.0, 600.0) }.at(1000.0), 600.0);
    }

    #[test]
    fn the_rest_of_a_burst_is_what_no_sample_has() {
        let ns = |n: f64| (n / stand::ns_per_tick()) as u64;
        let found = Rounds { ticks: vec![ns(300.0)], sampled: vec![(ns(300.0), 100), (ns(400.0), 100)], ..Rounds::default() };
        assert!((found.rest() * stand::ns_per_tick() - 300.0).abs() < 3.0, "{}", found.rest());
        assert_eq!((found.inside_ns(), Rounds::default().rest()), (Some(100.0), 0.0));
    }

    #[test]
    fn what_cannot_be_sent_is_refused_before_anything_starts() {
        let plan = |packets| Procedure { core: 0, rounds: 1, packets };
        let run = |packets| estimate(&Subject::default(), &References::default(), &plan(packets));
        assert!(matches!(run(Vec::new()), Err(EstimateError::NoPackets)));
        assert!(matches!(run(vec![vec![0; 64], vec![0; 5000]]), Err(EstimateError::TooLong { bytes: 5000, .. })));
    }
}
