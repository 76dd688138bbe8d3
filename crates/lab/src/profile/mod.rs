//! Profiles of NFs: throughput against cache ways, and latency against load.
//!
//! # Problem
//! An SLO needs an NF's throughput for an amount of cache, and its latency under a load: before it
//! runs beside others, with its configuration and traffic, in less than a minute, and never too
//! optimistic.
//!
//! # Approach
//! The NF runs alone on its own core between two rings ([`stand`]), after one packet of each flow.
//! *Throughput* is packets per second that come back while its ring never runs dry, over
//! [`SAMPLE_NS`]. *Latency* is the 95th percentile of the time from when a packet is due until it
//! is back, at loads from 5 to 95 % of the throughput, offered evenly in an open loop.
//! [`sluice_slo::curve`] builds both curves: few points, each repeated, and more often if its
//! spread is not small; monotone, with a margin; anomalies are noted.
//!
//! Sources of throughput with fewer ways ([`Ways`]):
//! - `resctrl`: the NF's core gets a class, and each point is measured. Lost ways are evicted
//!   before ([`eviction`]), or a note says that they could not be.
//! - `simulated`: loads and stores of the traced NF are recorded once, and a model
//!   ([`sluice_cache::trace`]) computes the misses per packet for every number of ways. Throughput
//!   with all ways is measured. With w ways a packet takes longer by its additional misses times
//!   the cost of a miss ([`chase`]). This makes each miss wait for the previous one, where a
//!   processor overlaps several, and it counts the whole memory latency, where a hit would have
//!   taken a part of it. So it promises less than there is, as far as the model's misses are right.
//! - `none`: one value, with all ways of the processor. Fewer ways are unknown, and not promised.
//!
//! # Limits
//! The NF polls on its own core. An NF that sleeps when idle (`mode = "sleep"`), as in most
//! services, takes tens of microseconds longer at low load, and one on a part of a core carries
//! less. [`sluice_promises::overlay`] makes instances poll where possible, and reports where not. A
//! profile by `resctrl` has no floor, because nothing thrashes the class during measurement: its
//! SLOs take separate ways for every instance, and never a place in the shared class.
//!
//! For an NF of some thousand packets per second, profiling takes longer than a minute: at low load
//! each sample lasts up to a second.
//!
//! The stand is one thread, which writes the packets: an NF that is faster than this thread is
//! promised what the stand sends. Traffic in bursts waits longer than even traffic. A traced NF
//! older than the NF goes unnoticed. [`sluice_cache::model`] lists the model's limits. NFs of a
//! [`chain`] share a class and take its ways from each other, so that their own curves do not add
//! up.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, section 5.2.

pub mod again;
pub mod chain;
pub mod chase;
pub mod command;
pub mod eviction;
pub mod traffic;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_cache::control::{CacheControl, ClassSpec};
use sluice_cache::model::{Curve as Misses, Hierarchy, SharedMisses};
use sluice_cache::trace::Traced;
use sluice_cache::{CacheError, trace};
use sluice_slo::curve::{self, Curve, CurveError};
use sluice_slo::placement::MOST_WAYS;
use sluice_slo::profile::{CacheUse, FORM, Key, Profile, Source};

use crate::estimate::stand::{self, Offer, Sequence, Stand};
use crate::estimate::{EstimateError, Subject};
use eviction::Behind;
use traffic::{Followed, NoPackets, Packets};

/// Length of a throughput measurement.
pub const SAMPLE_NS: u64 = 20_000_000;
/// Length of a latency measurement; longer, up to a second, if fewer than `ENOUGH` packets would be
/// late.
pub const LATENCY_NS: u64 = 20_000_000;
const ENOUGH: f64 = 20.0;
/// The part of packets that may exceed a promised latency.
const LATE: f64 = 0.05;
const LONGEST_NS: f64 = 1e9;
/// Time limit of a point of a curve, beyond the fewest samples.
const POINT_NS: u64 = 2_000_000_000;
/// Settling time before the first measurement, and after a change of the class, whose new ways have
/// to fill.
const SETTLE_NS: u64 = 100_000_000;
/// Note for lost ways that stay full.
const NOT_EMPTIED: &str = "ways that the class lost were not emptied, for want of memory or of a core behind the same cache: with few \
                           ways it may have been measured with more";
/// The class of the NF's core during profiling. An interrupted one leaves it, and
/// [`Resctrl::take_over`] removes it.
///
/// [`Resctrl::take_over`]: sluice_cache::resctrl::Resctrl::take_over
pub const CLASS: &str = sluice_cache::resctrl::PROFILE;

/// Source of throughput with fewer ways.
pub enum Ways {
    /// Cache classes of the kernel.
    Controlled(Box<dyn CacheControl>),
    Simulated {
        misses: Misses,
        /// Cost of a miss, in nanoseconds.
        miss_ns: f64,
    },
    /// None: only throughput with all ways is known.
    None,
}

#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error(transparent)]
    Stand(#[from] EstimateError),
    #[error(transparent)]
    Packets(#[from] NoPackets),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("no {which} curve: {why}")]
    Curve { which: &'static str, why: String },
    #[error(
        "there is no traced {program} for the model of the cache: run `scripts/trace-nf {}`, say where it is with --traced, or leave the cache out \
         with --cache none", program.strip_prefix("sluice-nf-").unwrap_or(program)
    )]
    NotTraced { program: String },
    #[error(
        "none of this traffic gets past {name}, so the NFs behind it have nothing to do: profile with traffic that it lets through"
    )]
    Dropped { name: String },
    #[error("this host does not say how large its last-level cache is, so there is none to model; use --cache none")]
    NoCache,
}

fn no_curve(which: &'static str, error: CurveError<MeasureError>) -> MeasureError {
    match error {
        CurveError::Measure { why, .. } => why,
        other => MeasureError::Curve { which, why: other.to_string() },
    }
}

/// The traced version of a program.
pub fn traced(program: &Path) -> Result<PathBuf, MeasureError> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    trace::beside(program).ok_or(MeasureError::NotTraced { program: name })
}

/// This host's caches, and the size of the last one in bytes.
fn host_caches() -> Result<(Hierarchy, u64), MeasureError> {
    let hierarchy = Hierarchy::of_host(&sluice_cache::host::caches(Path::new("/"))).ok_or(MeasureError::NoCache)?;
    Ok((hierarchy, hierarchy.way_bytes() * u64::from(hierarchy.llc.ways)))
}

/// An NF's misses, from one run of its traced program on a model of this host's caches; and the
/// size of the last cache in bytes.
pub fn misses(nf: &Traced, traffic: &Followed) -> Result<(Misses, u64), MeasureError> {
    if let Followed::Made(traffic) = traffic {
        let (hierarchy, bytes) = host_caches()?;
        return Ok((trace::profile(nf, traffic, hierarchy)?, bytes));
    }
    let (mut found, bytes) = chain_misses(std::slice::from_ref(nf), traffic)?;
    Ok((found.remove(0).together, bytes))
}

/// Like [`misses`], for the NFs of a chain, which share the last cache.
pub fn chain_misses(nfs: &[Traced], traffic: &Followed) -> Result<(Vec<SharedMisses>, u64), MeasureError> {
    let (hierarchy, bytes) = host_caches()?;
    Ok((trace::chain::profile(nfs, traffic.feed(), hierarchy)?, bytes))
}

pub struct Conditions {
    /// Core of the NF. The caller runs on another one.
    pub core: usize,
    pub packets: Packets,
    pub ways: Ways,
}

/// An NF on the stand, with its traffic.
struct Bench {
    stand: Stand,
    packets: Packets,
}

impl Bench {
    /// Starts an NF, sends it one packet of each flow and then others. Returns what it sends on of
    /// the former.
    fn start(subject: &Subject, core: usize, mut packets: Packets) -> Result<(Self, Packets), MeasureError> {
        let mut stand = Stand::start(subject, core)?;
        // The previous NF may drop the first packets of flows.
        let first = if packets.first.is_empty() { Sequence::default() } else { stand.pass(&mut packets.first)? };
        let mut bench = Self { stand, packets };
        bench.fill(SETTLE_NS)?;
        let drawn = bench.stand.pass(&mut bench.packets.drawn)?;
        let name = bench.packets.name.clone();
        Ok((bench, Packets { first, drawn, name }))
    }

    /// Sends as many packets as it takes for this time. Returns packets per second. On a busy host
    /// the NF may not run in all of that time; then it is given that time again.
    fn fill(&mut self, time_ns: u64) -> Result<f64, MeasureError> {
        let offer = Offer { rate_pps: None, time_ns, packets: u64::MAX };
        let until = Instant::now() + Duration::from_nanos(POINT_NS);
        loop {
            let found = self.stand.offer(&mut self.packets.drawn, &offer)?;
            if found.rate_pps > 0.0 || Instant::now() >= until {
                return Ok(found.rate_pps);
            }
        }
    }

    /// Latency at a load that all but a part of the packets stay within, in microseconds.
    fn latency_us(&mut self, load_pps: f64, late: f64) -> Result<f64, MeasureError> {
        let offer = Offer { rate_pps: Some(load_pps), time_ns: time_ns(load_pps, late), packets: u64::MAX };
        let found = self.stand.offer(&mut self.packets.drawn, &offer)?;
        Ok(percentile(found.latency_ns, 1.0 - late) / 1e3)
    }

    /// Latency against load, up to most of the promised end of a throughput curve.
    fn latency(&mut self, throughput: &Curve, late: f64) -> Result<Curve, MeasureError> {
        let Some(best) = throughput.points.last() else {
            return Err(MeasureError::Curve { which: "throughput", why: "it has no points".into() });
        };
        let best_pps = best.y * (1.0 - throughput.margin);
        let mut loads = curve::Sweep::latency_below(best_pps);
        // A sample takes longest at the least load.
        let most_samples = (POINT_NS / time_ns(loads.from, late)) as usize;
        loads.most_samples = most_samples.clamp(loads.samples, loads.most_samples);
        curve::build(&loads, |load_pps| Ok(vec![self.latency_us(load_pps, late)?])).map_err(|error| no_curve("latency", error))
    }
}

/// Length of a latency measurement at a load.
fn time_ns(load_pps: f64, late: f64) -> u64 {
    LATENCY_NS.max((ENOUGH / late * 1e9 / load_pps.max(f64::MIN_POSITIVE)).min(LONGEST_NS) as u64)
}

/// The value that this part of the values does not exceed; 0 of none.
fn percentile(mut values: Vec<f64>, part: f64) -> f64 {
    let rank = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len().max(1)) - 1;
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(rank, f64::total_cmp).1 }
}

/// Packets per second with additional misses, relative to the measurement.
fn slowed(rate_pps: f64, more_misses: f64, miss_ns: f64) -> f64 {
    1e9 / (1e9 / rate_pps.max(f64::MIN_POSITIVE) + more_misses.max(0.0) * miss_ns)
}

struct Throughput {
    source: Source,
    curve: Curve,
    floor_pps: Option<f64>,
    cache: Option<CacheUse>,
}

impl Throughput {
    fn plain(source: Source, curve: Curve) -> Self {
        Self { source, curve, floor_pps: None, cache: None }
    }
}

/// Measures an NF.
pub fn measure(subject: &Subject, plan: Conditions, key: Key) -> Result<Profile, MeasureError> {
    let Conditions { core, packets, mut ways } = plan;
    let _pin = stand::Pin::away_from(core)?;
    let (mut bench, _) = Bench::start(subject, core, packets)?;
    let measured = throughput(&mut bench, &mut ways, core).and_then(|throughput| {
        let latency = bench.latency(&throughput.curve, LATE)?;
        // If the class is gone, the curve is invalid.
        if let Ways::Controlled(control) = &ways {
            control.verify(CLASS)?;
        }
        Ok((throughput, latency))
    });
    // Releases the class also after an error.
    let released = if let Ways::Controlled(control) = &mut ways { control.release(CLASS) } else { Ok(()) };
    let (throughput, latency) = measured?;
    released?;
    let Some(best) = throughput.curve.points.last().copied() else {
        return Err(MeasureError::Curve { which: "throughput", why: "it has no points".into() });
    };
    let memory_mib = bench.stand.memory_mib();
    bench.stand.stop()?;
    Ok(Profile {
        form: FORM,
        key,
        source: throughput.source,
        cores: 1,
        memory_mib,
        throughput: throughput.curve,
        latency,
        best_ways: best.x as u32,
        floor_pps: throughput.floor_pps,
        cache: throughput.cache,
        stages: Vec::new(),
    })
}

fn throughput(bench: &mut Bench, ways: &mut Ways, core: usize) -> Result<Throughput, MeasureError> {
    let fail = |error| no_curve("throughput", error);
    match ways {
        Ways::None => {
            let all = all_ways(Path::new("/"));
            let curve = curve::build(&curve::Sweep::throughput(all, all), |_| Ok(vec![bench.fill(SAMPLE_NS)?])).map_err(fail)?;
            Ok(Throughput::plain(Source::None, curve))
        }
        Ways::Simulated { misses, miss_ns } => {
            let (misses, miss_ns) = (&*misses, *miss_ns);
            let mut rates: Vec<f64> = Vec::new();
            let curve = simulated(misses, miss_ns, &mut rates, || bench.fill(SAMPLE_NS)).map_err(fail)?;
            let most = misses.misses.len() as u32;
            let references_per_packet = misses.misses_per_packet(0);
            let with_all = curve.points.last().map_or(0.0, |point| point.y);
            let floor = slowed(with_all, references_per_packet - misses.misses_per_packet(most), miss_ns);
            Ok(Throughput {
                source: Source::Simulated,
                floor_pps: curve.points.first().map(|point| point.y.min(floor)),
                cache: Some(CacheUse { references_per_packet, miss_ns, misses_per_packet: Vec::new() }),
                curve,
            })
        }
        Ways::Controlled(control) => {
            let (least, most) = class_sizes(control.as_ref());
            let cpu = u32::try_from(core).unwrap_or(u32::MAX);
            control.make(&ClassSpec::new(CLASS, most))?;
            control.assign_cpus(CLASS, &[cpu])?;
            let behind = Behind::of(control.shape(), core);
            let (mut now, mut is_emptied) = (most, true);
            let mut give = |bench: &mut Bench, ways: u32| -> Result<(), MeasureError> {
                if ways != now {
                    control.resize(CLASS, ways)?;
                    if ways < now {
                        is_emptied &= behind.as_ref().is_some_and(Behind::fill);
                    }
                    now = ways;
                    bench.fill(SETTLE_NS)?;
                }
                Ok(())
            };
            let curve = curve::build(&curve::Sweep::throughput(least, most), |ways| {
                give(bench, ways as u32)?;
                Ok(vec![bench.fill(SAMPLE_NS)?])
            });
            let mut curve = curve.map_err(fail)?;
            // Latency is measured with all ways.
            give(bench, most)?;
            if !is_emptied {
                curve.notes.push(NOT_EMPTIED.into());
            }
            Ok(Throughput::plain(Source::Measured, curve))
        }
    }
}

/// All ways of the last-level cache of the host with root directory `system`.
///
/// If the kernel does not report them, the largest number of any server, so that no SLO gets fewer
/// ways than its value was measured with.
pub fn all_ways(system: &Path) -> u32 {
    let ways = sluice_cache::host::l3_caches(system).iter().map(|cache| cache.ways).max();
    ways.filter(|ways| (1..=MOST_WAYS).contains(ways)).unwrap_or(MOST_WAYS)
}

/// The smallest and the largest class beside the root class, without the ways that devices use.
fn class_sizes(control: &dyn CacheControl) -> (u32, u32) {
    let shape = control.shape();
    let others = shape.io_mask.count_ones().max(shape.min_ways);
    (shape.min_ways, shape.ways.saturating_sub(others).max(shape.min_ways))
}

/// Throughput by the model: `measure` gives packets per second with all ways, and `rates` collects
/// them.
fn simulated<E>(
    misses: &Misses,
    miss_ns: f64,
    rates: &mut Vec<f64>,
    mut measure: impl FnMut() -> Result<f64, E>,
) -> Result<Curve, CurveError<E>> {
    let most = misses.misses.len() as u32;
    let plan = curve::Sweep::throughput(1, most);
    let with_all = misses.misses_per_packet(most);
    let mut asked = 0.0;
    curve::build(&plan, |ways| {
        let more = misses.misses_per_packet(ways as u32) - with_all;
        let at = |rate_pps: f64| slowed(rate_pps, more, miss_ns);
        // A measurement counts for every number of ways; a repeated request needs new ones.
        if asked != ways && rates.len() >= plan.samples {
            asked = ways;
            return Ok(rates.iter().copied().map(at).collect());
        }
        asked = ways;
        let rate_pps = measure()?;
        rates.push(rate_pps);
        Ok(vec![at(rate_pps)])
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use sluice_cache::Origin;
    use sluice_cache::none::NoControl;

    fn model(misses: &[u64], reads: u64) -> Misses {
        Misses { origin: Origin::Simulated, way_bytes: 1 << 20, packets: 1000, accesses: 9000, reads, misses: misses.to_vec() }
    }

    #[test]
    fn the_percentile_is_that_of_the_nearest_rank() {
        let hundred = || (1..=100).rev().map(f64::from).collect();
        assert_eq!((percentile(hundred(), 0.95), percentile(hundred(), 1.0), percentile(hundred(), 0.0)), (95.0, 100.0, 1.0));
        assert_eq!((percentile(vec![7.0], 0.95), percentile(Vec::new(), 0.95)), (7.0, 0.0));
    }

    #[test]
    fn misses_slow_a_packet_by_what_they_cost() {
        // 100 ns per packet, and 2 misses of 50 ns.
        assert_eq!(slowed(1e7, 2.0, 50.0), 5e6);
        assert_eq!(slowed(1e7, -1.0, 50.0), 1e7);
    }

    #[test]
    fn the_model_s_curve_goes_through_what_was_measured_and_no_higher() {
        let falling: Vec<u64> = (0..20).map(|i| 4000 - i * 150).collect();
        let misses = model(&falling, 5000);
        let mut rates = Vec::new();
        let curve = simulated(&misses, 80.0, &mut rates, || Ok::<_, Infallible>(1e7)).unwrap();
        assert_eq!(rates.len(), 7, "what is always the same is measured seven times, for all ways together");
        assert_eq!(curve.points.last().unwrap().y, 1e7);
        for ways in 1..=20u32 {
            let truth = slowed(1e7, misses.misses_per_packet(ways) - misses.misses_per_packet(20), 80.0);
            let promised = curve.at(f64::from(ways)).unwrap() * (1.0 - curve.margin);
            assert!(promised <= truth * (1.0 + 1e-12) && promised > 0.95 * truth, "{ways}: {promised} {truth}");
        }
    }

    #[test]
    fn noise_is_in_the_margin_of_the_model_s_curve() {
        let misses = model(&[3000, 2000, 1000], 5000);
        let (mut rates, mut turn) = (Vec::new(), 0u32);
        let noisy = || {
            turn += 1;
            Ok::<_, Infallible>(1e7 * (1.0 + 0.1 * f64::from(turn % 5)))
        };
        let curve = simulated(&misses, 80.0, &mut rates, noisy).unwrap();
        assert!(rates.len() >= 15 && curve.margin > 0.01, "{curve:?}");
        assert!(curve.notes.iter().any(|note| note.starts_with("noisy")), "{curve:?}");
    }

    #[test]
    fn a_class_leaves_the_root_and_devices_their_ways() {
        let hierarchy = sluice_cache::model::Hierarchy {
            line: 64,
            l1: None,
            l2: None,
            llc: sluice_cache::model::Geometry { sets: 16, ways: 20 },
        };
        let sizes = |io| class_sizes(&sluice_cache::simulated::Simulated::new(hierarchy, io, 4).unwrap());
        assert_eq!((sizes(0xc_0000), sizes(0)), ((1, 18), (1, 19)));
        // None at all: the class is refused, with the reason.
        assert_eq!(class_sizes(&NoControl::new(Path::new("/nowhere"))), (1, 1));
    }

    #[test]
    fn a_cache_that_is_not_described_has_more_ways_than_a_server_gives() {
        assert_eq!(all_ways(Path::new("/nowhere")), MOST_WAYS);
        assert!((1..=MOST_WAYS).contains(&all_ways(Path::new("/"))));
    }

    #[test]
    fn a_missing_traced_program_is_reported_with_its_command() {
        let error = traced(Path::new("/nowhere/sluice-nf-x")).unwrap_err().to_string();
        assert!(error.contains("run `scripts/trace-nf x`"), "{error}");
    }
}
