//! Sets of SLOs for experiments and tests: twelve kinds of NF with stated parameters, and random SLOs of them.
//!
//! # Model
//! A packet takes `base_ns`, and [`MISS_NS`] for each of its references that miss; a reference misses by the law of the working set. Latency is
//! that of a queue with batches of 32. Profiles of kinds are made of the model's values by [`crate::curve`], with the plans that `sluice profile`
//! has: as many points, the same loads, the same margins for what lies between points. What a measurement adds is not there: nothing is repeated,
//! no spread is part of a margin, and the throughput without any cache is known.
//!
//! # Parameters
//! They are chosen, and not measured of any NF; the kinds' names say what they are to be like. Of an NF on a core, without misses, that is 1 to
//! 22 million packets per second (`base_ns` 45 to 900); half a reference to 22 of a packet reach the LLC; working sets are 0.3 to 70 MiB, beside
//! the 45 MiB of the paper's machine. What was matched is the shape of curves, with those of the paper's figure 6 (section 4.2) and of our
//! own NFs in `sluice bench profile-accuracy`: longest prefix match, statistics and NAT with Zipf flows saturate; a firewall is flat; a NAT
//! with uniform flows is convex until its table fits. The kinds and their mixes stand for the sets of section 6.3, whose NFs are not
//! ours. SLOs ask for what [`set`] says, which is chosen too.
//!
//! # Limits
//! So figures of these sets compare ways of placing, and say nothing of how many servers real NFs need. Profiles of real NFs (`sluice profile`)
//! are not read here: a set needs what an NF is like in truth beside its profile, to tell violations, and a file has the profile only.

use std::convert::Infallible;

use crate::contention::Behaviour;
use crate::curve::{CurveError, Plan, build};
use crate::demand::Demand;
use crate::placement::ServerShape;
use crate::profile::{CacheUse, Digest, FORM, Key, Profile, Source};
use crate::slo::{Promise, Slo, Workload};

/// What a miss costs, in ns; chosen, less than DRAM's latency, of which other work of the burst hides a part.
pub const MISS_NS: f64 = 30.0;

/// How references spread over the working set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Law {
    /// All lines alike.
    Uniform,
    /// Some lines more than others: a cache of a part p of the set serves p^(1 − exponent) of the references.
    Zipf(f64),
}

/// A kind of NF.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Cores of an instance.
    pub cores: u32,
    /// A packet without misses, in ns.
    pub base_ns: f64,
    /// References per packet that reach the LLC.
    pub references: f64,
    /// Working set, in MiB.
    pub set_mib: f64,
    /// How references spread.
    pub law: Law,
}

/// The kinds: the first five hardly need the cache, the others do. Their numbers are chosen.
pub const KINDS: [Kind; 12] = [
    kind("l2-forward", 45.0, 0.5, 0.3, Law::Uniform),
    kind("firewall", 80.0, 1.0, 0.5, Law::Uniform),
    kind("rate-limit", 70.0, 0.8, 0.8, Law::Zipf(0.6)),
    kind("ipsec", 620.0, 2.0, 0.5, Law::Uniform),
    kind("regex", 900.0, 3.0, 1.5, Law::Zipf(0.7)),
    kind("lpm", 70.0, 2.5, 40.0, Law::Zipf(0.7)),
    kind("nat-uniform", 95.0, 3.0, 26.0, Law::Uniform),
    kind("nat-zipf", 95.0, 3.0, 60.0, Law::Zipf(0.8)),
    kind("statistics", 75.0, 3.0, 45.0, Law::Zipf(0.5)),
    kind("ids", 360.0, 11.0, 30.0, Law::Zipf(0.6)),
    kind("epc", 420.0, 13.0, 36.0, Law::Uniform),
    kind("redundancy", 520.0, 22.0, 70.0, Law::Zipf(0.3)),
];

const fn kind(name: &'static str, base_ns: f64, references: f64, set_mib: f64, law: Law) -> Kind {
    Kind { name, cores: 1, base_ns, references, set_mib, law }
}

/// The server of the experiments: as the paper's, 20 ways of 2.25 MiB of which DDIO has 2, and 9 cores for NFs.
pub fn server() -> ServerShape {
    ServerShape {
        cpu: "sample".into(),
        cores: 9,
        llc_ways: 20,
        way_bytes: 2304 << 10,
        ddio_ways: 2,
        min_ways: 1,
        classes: 16,
        memory_mib: 64 << 10,
    }
}

/// A kind on a server.
#[derive(Debug, Clone, PartialEq)]
pub struct OnServer<'a> {
    /// The kind.
    pub kind: &'a Kind,
    /// Bytes of a way there.
    pub way_bytes: u64,
}

impl Behaviour for OnServer<'_> {
    fn throughput_pps(&self, ways: f64) -> f64 {
        1e9 / (self.kind.base_ns + MISS_NS * self.misses_per_packet(ways))
    }

    fn references_per_packet(&self) -> f64 {
        self.kind.references
    }

    fn misses_per_packet(&self, ways: f64) -> f64 {
        let part = (ways * self.way_bytes as f64 / (self.kind.set_mib * f64::from(1 << 20))).clamp(0.0, 1.0);
        let hits = match self.kind.law {
            Law::Uniform => part,
            Law::Zipf(exponent) => part.powf(1.0 - exponent),
        };
        self.kind.references * (1.0 - hits)
    }

    /// By what it is, and not by its profile.
    fn carries_pps(&self, ways: f64, latency_us: f64) -> f64 {
        let throughput = self.throughput_pps(ways);
        let waits = latency_us / (32.0 * 1e6 / throughput) - 1.0;
        if waits <= 0.0 { 0.0 } else { throughput * (waits / (waits + 1.5)).min(1.0) }
    }
}

impl OnServer<'_> {
    /// 95th percentile of latency in µs, at a part of its throughput with this many ways.
    pub fn latency_us(&self, ways: f64, part: f64) -> f64 {
        let packet_us = 1e6 / self.throughput_pps(ways);
        packet_us * 32.0 * (1.0 + 1.5 * part / (1.0 - part).max(1e-9))
    }

    /// Its profile: that of an NF that does exactly this, by the plans of `sluice profile`.
    ///
    /// # Errors
    /// The curve cannot be built.
    pub fn profile(&self, shape: &ServerShape) -> Result<Profile, CurveError<Infallible>> {
        let plan = Plan::throughput(shape.min_ways, shape.ways()).exact();
        let throughput = build(&plan, |ways| Ok(vec![self.throughput_pps(ways)]))?;
        let best = self.throughput_pps(f64::from(shape.ways()));
        let promised = throughput.points.last().map_or(best, |point| point.y) * (1.0 - throughput.margin);
        let latency =
            build(&Plan::latency_below(promised).exact(), |load| Ok(vec![self.latency_us(f64::from(shape.ways()), load / best)]))?;
        Ok(Profile {
            form: FORM,
            key: Key {
                workload: Workload::Nf(self.kind.name.into()),
                binaries: vec![Digest::of(self.kind.name.as_bytes())],
                configuration: Digest::of(b""),
                traffic: "sample".into(),
                cpu: shape.cpu.clone(),
            },
            source: Source::Simulated,
            cores: self.kind.cores,
            memory_mib: 256,
            throughput,
            latency,
            best_ways: shape.ways(),
            floor_pps: Some(self.throughput_pps(0.0)),
            cache: Some(CacheUse { references_per_packet: self.kind.references, miss_ns: MISS_NS }),
        })
    }
}

/// Which kinds a set is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Those that hardly need the cache.
    Insensitive,
    /// Those that need it.
    Sensitive,
    /// All.
    Mixed,
}

impl Mix {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Insensitive, Self::Mixed, Self::Sensitive];

    /// Its kinds.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Insensitive => &KINDS[..5],
            Self::Sensitive => &KINDS[5..],
            Self::Mixed => &KINDS,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Insensitive => "insensitive",
            Self::Sensitive => "sensitive",
            Self::Mixed => "mixed",
        }
    }
}

/// A random SLO of a set.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The SLO.
    pub slo: Slo,
    /// Its kind.
    pub kind: &'static Kind,
    /// The place of its profile in the set's.
    pub profile: usize,
}

/// SLOs, and the profiles that they name.
#[derive(Debug, Clone, PartialEq)]
pub struct Set {
    /// One of each kind.
    pub profiles: Vec<Profile>,
    /// The SLOs.
    pub samples: Vec<Sample>,
}

/// Numbers from 0 to 1, always the same ones for a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next.
    pub fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Random SLOs, every one different: 0.3 to 2.5 times the throughput of an instance with its fair share of the cache, within a latency
/// that such an instance keeps at 75 to 95 % of its throughput.
///
/// # Errors
/// A profile cannot be made.
pub fn set(mix: Mix, slos: usize, seed: u64, shape: &ServerShape) -> Result<Set, CurveError<Infallible>> {
    let kinds = mix.kinds();
    let on = |kind| OnServer { kind, way_bytes: shape.way_bytes };
    let profiles = kinds.iter().map(|kind| on(kind).profile(shape)).collect::<Result<Vec<_>, _>>()?;
    let fair = f64::from(shape.ways()) / f64::from(shape.cores);
    let mut random = Random::new(seed);
    let samples = (0..slos)
        .map(|i| {
            let profile = ((random.part() * kinds.len() as f64) as usize).min(kinds.len() - 1);
            let kind = &kinds[profile];
            let throughput_pps = on(kind).throughput_pps(fair) * (0.3 + 2.2 * random.part());
            let latency_us = on(kind).latency_us(fair, 0.75 + 0.2 * random.part());
            let slo = Slo {
                name: format!("slo{i}"),
                workload: Workload::Nf(kind.name.into()),
                configuration: Digest::of(b""),
                traffic: "sample".into(),
                promise: Promise::Reserved { throughput_pps, latency_us },
            };
            Sample { slo, kind, profile }
        })
        .collect();
    Ok(Set { profiles, samples })
}

impl Set {
    /// The demands of all SLOs.
    ///
    /// # Errors
    /// One of them is impossible.
    pub fn demands(&self, shape: &ServerShape) -> Result<Vec<Demand>, crate::demand::DemandError> {
        self.samples.iter().map(|sample| Demand::of(&sample.slo, &self.profiles[sample.profile], shape)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::LOADS;

    #[test]
    fn profiles_of_all_kinds_take_few_points_and_promise_no_more_than_there_is() {
        let shape = server();
        for kind in &KINDS {
            let on = OnServer { kind, way_bytes: shape.way_bytes };
            let profile = on.profile(&shape).unwrap();
            profile.check().unwrap();
            let measured = [&profile.throughput, &profile.latency].map(|curve| curve.measured);
            assert!(measured.iter().all(|points| *points <= Plan::throughput(1, 1).points), "{}: {measured:?}", kind.name);
            assert_eq!(Plan::latency_below(1.0).points, 12);
            let (loads, most) = (&profile.latency.points, profile.throughput_pps(shape.ways()));
            let ends = [loads.first().unwrap().x, loads.last().unwrap().x];
            assert!((ends[0] / most - LOADS.0).abs() < 1e-9 && (ends[1] / most - LOADS.1).abs() < 1e-9, "{}: {ends:?}", kind.name);
            for ways in 1..=shape.ways() {
                assert!(profile.throughput_pps(ways) <= on.throughput_pps(f64::from(ways)) * (1.0 + 1e-9), "{} {ways}", kind.name);
                for latency_us in [20.0, 50.0, 100.0, 400.0] {
                    let (promised, true_pps) =
                        (profile.capacity_pps(ways, latency_us), on.carries_pps(f64::from(ways), latency_us));
                    assert!(promised <= true_pps * (1.0 + 1e-9), "{} {ways} {latency_us}: {promised} {true_pps}", kind.name);
                }
            }
        }
    }

    #[test]
    fn a_set_is_the_same_each_time_and_every_slo_is_possible() {
        for mix in Mix::ALL {
            let one = set(mix, 50, 7, &server()).unwrap();
            assert_eq!(one, set(mix, 50, 7, &server()).unwrap());
            assert_eq!(one.demands(&server()).unwrap().len(), 50);
        }
    }
}
