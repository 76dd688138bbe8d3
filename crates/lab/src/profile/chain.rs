//! The profile of a chain, composed of measurements of its NFs.
//!
//! # Terms and units
//! *Share* of an NF: packets that it gets per packet that enters the chain; 1 unless an earlier NF
//! drops some. *Late*: the part of packets that a percentile leaves out.
//!
//! # Approach
//! Each NF of the chain has its own core, and all share one class of the cache. The NFs are
//! measured one after another, each with the packets that its predecessor sends on, so that two
//! cores suffice: throughput with all ways, and latency against load. The chain's profile is
//! composed of these:
//! - *Throughput* is that of the NF that needs most time for its share. With w ways each NF takes
//!   longer by its additional misses, relative to the measurement alone. They come from one model
//!   of all NFs behind one cache ([`trace::chain`](sluice_cache::trace::chain)), in which they take
//!   ways from each other.
//! - *Latency* at a load is the sum of each NF's latency at its share of the load, slowed by its
//!   misses ([`sluice_slo::stage`]). Of n NFs, each leaves out 5 % / n of the packets, so at most 5
//!   % are late in one or another: the sum is at least the 95th percentile of all.
//!
//! # Limits
//! The manager's time per hop is included as far as the stand's rings take as long. Packets that
//! are dropped later count as waiting as long as others. Curves measured with the processor's own
//! classes do not compose, so they are not offered.

use std::convert::Infallible;
use std::path::Path;

use sluice_cache::model::SharedMisses;
use sluice_slo::curve::{self, Confidence, Curve, Point};
use sluice_slo::profile::{CacheUse, FORM, Key, Profile, Source};
use sluice_slo::stage::{self, Stage};

use super::traffic::Packets;
use super::{Bench, LATE, MeasureError, no_curve, slowed};
use crate::estimate::Subject;
use crate::estimate::stand;

/// The misses of all NFs of a chain, and the cost of a miss.
pub struct Model {
    /// For each NF, in order.
    pub misses: Vec<SharedMisses>,
    /// Nanoseconds per miss.
    pub miss_ns: f64,
}

pub struct Conditions {
    /// Core of the measured NF. The caller runs on another one.
    pub core: usize,
    pub packets: Packets,
    /// Model for throughput with fewer ways; without it, throughput is one value, with all ways.
    pub model: Option<Model>,
}

/// Measurements of one NF of the chain.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    name: String,
    share: f64,
    /// Throughput with all ways, alone: one point.
    throughput: Curve,
    /// Latency against its own load, of all packets but the late ones.
    latency: Curve,
    memory_mib: u64,
}

impl Part {
    fn rate_pps(&self) -> f64 {
        self.throughput.points.last().map_or(0.0, |point| point.y)
    }
}

/// Measures the NFs of a chain, in order.
pub fn measure(subjects: &[Subject], plan: Conditions, key: Key) -> Result<Profile, MeasureError> {
    let Conditions { core, mut packets, model } = plan;
    let _pin = stand::Pin::away_from(core)?;
    let late = LATE / subjects.len().max(1) as f64;
    let mut share = 1.0;
    let mut parts = Vec::with_capacity(subjects.len());
    for (i, subject) in subjects.iter().enumerate() {
        if packets.drawn.is_empty() {
            return Err(MeasureError::Dropped { name: subjects[i.saturating_sub(1)].name.clone() });
        }
        let got = packets.drawn.len();
        let (mut bench, on) = Bench::start(subject, core, packets)?;
        let fill = |_| Ok(vec![bench.fill(super::SAMPLE_NS)?]);
        let throughput = curve::build(&curve::Sweep::throughput(1, 1), fill).map_err(|error| no_curve("throughput", error))?;
        let latency = bench.latency(&throughput, late)?;
        let memory_mib = bench.stand.memory_mib();
        bench.stand.stop()?;
        parts.push(Part { name: subject.name.clone(), share, throughput, latency, memory_mib });
        share *= on.drawn.len() as f64 / got as f64;
        packets = on;
    }
    compose(&parts, model.as_ref(), super::all_ways(Path::new("/")), key)
}

/// Notes of the curves that it is composed of.
fn notes(parts: &[Part], curve: fn(&Part) -> &Curve) -> Vec<String> {
    let of = |part: &Part| curve(part).notes.iter().map(|note| format!("{}: {note}", part.name)).collect::<Vec<_>>();
    parts.iter().flat_map(of).collect()
}

/// A curve of these points, with the worst margin and spread of its parts.
fn composed(points: Vec<Point>, parts: &[Part], of: fn(&Part) -> &Curve) -> Curve {
    let most = |value: fn(&Curve) -> f64| parts.iter().map(|part| value(of(part))).fold(0.0, f64::max);
    Curve {
        points,
        measured: parts.iter().map(|part| of(part).measured).sum(),
        error_bound: most(|curve| curve.error_bound),
        spread: most(|curve| curve.spread),
        margin: most(|curve| curve.margin),
        confidence: Confidence::together(parts.iter().map(|part| of(part).confidence)),
        notes: notes(parts, of),
    }
}

/// Composes the chain's profile; without a model, for all ways of the cache (`all_ways`).
fn compose(parts: &[Part], model: Option<&Model>, all_ways: u32, key: Key) -> Result<Profile, MeasureError> {
    let empty = |which| MeasureError::Curve { which, why: "the chain has no NF".into() };
    // Packets per second of the chain, with this many additional misses per packet of an NF.
    let rate = |more: &dyn Fn(usize) -> f64, miss_ns: f64| {
        let of = |(i, part): (usize, &Part)| slowed(part.rate_pps(), more(i), miss_ns) / part.share;
        parts.iter().enumerate().map(of).min_by(f64::total_cmp)
    };
    let measured = rate(&|_| 0.0, 0.0).ok_or_else(|| empty("throughput"))?;
    let mut throughput = composed(vec![Point { x: f64::from(all_ways), y: measured }], parts, |part| &part.throughput);
    let (mut floor_pps, mut cache) = (None, None);
    if let Some(Model { misses, miss_ns }) = model {
        let with = |ways: u32| {
            let more = |i: usize| misses.get(i).map_or(0.0, |nf| nf.together.misses_per_packet(ways) - nf.alone_per_packet());
            rate(&more, *miss_ns).unwrap_or(0.0)
        };
        let most = misses.iter().map(|nf| nf.together.misses.len() as u32).max().unwrap_or(1);
        let built = curve::build(&curve::Sweep::throughput(1, most).exact(), |ways| Ok::<_, Infallible>(vec![with(ways as u32)]));
        let mut built = built.map_err(|error| MeasureError::Curve { which: "throughput", why: error.to_string() })?;
        built.notes.append(&mut throughput.notes);
        built.spread = throughput.spread;
        built.confidence = throughput.confidence;
        built.margin = (built.margin + throughput.margin).min(0.99);
        throughput = built;
        floor_pps = throughput.points.first().map(|point| point.y.min(with(0)));
        let missed =
            |ways| -> f64 { parts.iter().zip(misses).map(|(part, nf)| part.share * nf.together.misses_per_packet(ways)).sum() };
        let misses_per_packet: Vec<f64> = (0..=most).map(missed).collect();
        cache = Some(CacheUse { references_per_packet: misses_per_packet[0], miss_ns: *miss_ns, misses_per_packet });
    }
    let stages = stages(parts, model);
    let latency = stage::together(&stages).ok_or_else(|| empty("latency"))?;
    Ok(Profile {
        form: FORM,
        key,
        source: if model.is_some() { Source::Simulated } else { Source::None },
        cores: u32::try_from(parts.len()).unwrap_or(u32::MAX),
        memory_mib: parts.iter().map(|part| part.memory_mib).sum(),
        best_ways: throughput.points.last().map_or(all_ways, |point| point.x as u32),
        throughput,
        latency: Curve { notes: notes(parts, |part| &part.latency), ..latency },
        floor_pps,
        cache,
        // Without a model, fewer ways are unknown.
        stages: if model.is_some() { stages } else { Vec::new() },
    })
}

/// The NFs as stages of the profile: latency against the chain's load, and speed by ways from
/// additional misses.
fn stages(parts: &[Part], model: Option<&Model>) -> Vec<Stage> {
    let one = |(i, part): (usize, &Part)| {
        let mut latency = part.latency.clone();
        latency.points.iter_mut().for_each(|point| point.x /= part.share);
        let speed = |(nf, miss_ns): (&SharedMisses, f64)| {
            let more = |ways| nf.together.misses_per_packet(ways) - nf.alone_per_packet();
            // Rounding must not make it faster than it was.
            let at = |ways| (slowed(part.rate_pps(), more(ways), miss_ns) / part.rate_pps()).min(1.0);
            (0..=nf.together.misses.len() as u32).map(|ways| Point { x: f64::from(ways), y: at(ways) }).collect()
        };
        let misses = model.and_then(|model| Some((model.misses.get(i)?, model.miss_ns)));
        Stage { latency, speed: Curve { points: misses.map_or_else(Vec::new, speed), ..Curve::default() } }
    };
    parts.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use sluice_cache::Origin;
    use sluice_cache::model::Curve as Misses;
    use sluice_slo::digest::Digest;
    use sluice_slo::slo::Workload;

    use super::*;

    fn key() -> Key {
        let workload = Workload::Chain(vec!["a".into(), "b".into()]);
        let digest = Digest::of(b"");
        Key { workload, binaries: vec![digest.clone(); 2], configuration: digest, traffic: "t".into(), cpu: "c".into() }
    }

    fn part(name: &str, share: f64, rate_pps: f64, latency: &[(f64, f64)]) -> Part {
        let curve = |points: &[(f64, f64)]| Curve {
            points: points.iter().map(|(x, y)| Point { x: *x, y: *y }).collect(),
            measured: points.len() as u32,
            margin: 0.02,
            ..Curve::default()
        };
        let throughput = Curve { notes: vec!["noisy".into()], ..curve(&[(1.0, rate_pps)]) };
        Part { name: name.into(), share, throughput, latency: curve(latency), memory_mib: 3 }
    }

    /// Misses per packet with 1 way, 2 ways and so on, and alone with all.
    fn sharing(misses: &[u64], alone: u64) -> SharedMisses {
        let origin = Origin::Simulated;
        let together = Misses { origin, way_bytes: 64, packets: 1, accesses: 100, reads: 50, misses: misses.to_vec() };
        SharedMisses { together, alone }
    }

    fn two() -> [Part; 2] {
        // Half of the packets get to the second.
        let first = part("a", 1.0, 1e7, &[(5e5, 2.0), (9e6, 10.0)]);
        let second = part("b", 0.5, 4e6, &[(2e5, 3.0), (2e6, 5.0), (3.6e6, 20.0)]);
        [first, second]
    }

    #[test]
    fn the_slowest_nf_is_what_the_chain_can_do_and_latencies_add_up() {
        let found = compose(&two(), None, 20, key()).unwrap();
        found.check().unwrap();
        assert_eq!((found.source, found.cores, found.memory_mib, found.best_ways), (Source::None, 2, 6, 20));
        assert_eq!(found.throughput.points, [Point { x: 20.0, y: 8e6 }], "with all ways, and with no less");
        assert_eq!(
            (found.throughput.notes.as_slice(), found.throughput.margin),
            (&["a: noisy".into(), "b: noisy".into()][..], 0.02)
        );
        let loads: Vec<f64> = found.latency.points.iter().map(|point| point.x).collect();
        assert_eq!(loads, [4e5, 5e5, 4e6, 7.2e6], "from where the first begins to where the first ends");
        // Below its first point, the first NF's latency is constant.
        assert!((found.latency.points[0].y - 5.0).abs() < 1e-9);
        for load in [6e5, 1e6, 4e6, 6e6, 7.1e6] {
            let wanted = two()[0].latency.at(load).unwrap() + two()[1].latency.at(load / 2.0).unwrap();
            assert!((found.latency.at(load).unwrap() - wanted).abs() < 1e-6, "{load}");
        }
        assert!(compose(&[], None, 20, key()).unwrap_err().to_string().contains("no NF"));
    }

    #[test]
    fn misses_of_all_nfs_slow_the_chain() {
        // The second, with more misses, is slower with few ways; with many the first is.
        let parts = [part("a", 1.0, 1e7, &[(1e5, 1.0), (9e6, 2.0)]), part("b", 1.0, 2e7, &[(1e5, 1.0), (1.9e7, 2.0)])];
        let model = Model { misses: vec![sharing(&[0, 0, 0, 0], 0), sharing(&[9, 5, 1, 1], 1)], miss_ns: 50.0 };
        let found = compose(&parts, Some(&model), 20, key()).unwrap();
        found.check().unwrap();
        assert_eq!((found.source, found.best_ways), (Source::Simulated, 4));
        // 50 ns for each of 8, 4 and 0 additional misses; the first takes 100 ns.
        for (ways, pps) in [(1.0, 1e9 / 450.0), (2.0, 1e9 / 250.0), (3.0, 1e7), (4.0, 1e7)] {
            let at = found.throughput.at(ways).unwrap();
            assert!((at / pps - 1.0).abs() < 0.011, "{ways}: {at} {pps}");
        }
        assert!(found.throughput.margin >= 0.02);
        // Without cache: all accesses that pass the cores' own caches miss.
        assert!((found.floor_pps.unwrap() - 1e9 / (100.0 + 50.0 * 50.0)).abs() < 1.0);
        assert_eq!(
            found.cache,
            Some(CacheUse { references_per_packet: 100.0, miss_ns: 50.0, misses_per_packet: vec![100.0, 9.0, 5.0, 1.0, 1.0] })
        );
        // The first is as fast as ever; the second takes 50 ns, and with one way 450.
        let speeds: Vec<f64> = found.stages.iter().map(|stage| stage.speed(1.0)).collect();
        assert!(speeds[0] == 1.0 && (speeds[1] - 50.0 / 450.0).abs() < 1e-9, "{speeds:?}");
        assert!(
            found.capacity_pps(1, 1.02 * 10.1) > 0.0 && found.capacity_pps(1, 1.02 * 9.9) == 0.0,
            "1 µs and nine times as much"
        );
        assert!(compose(&parts, None, 20, key()).unwrap().stages.is_empty());
    }
}
