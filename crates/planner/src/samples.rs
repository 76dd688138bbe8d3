//! Sets of SLOs for experiments and tests: kinds of NF, and random SLOs of them.
//!
//! # Model
//! A packet takes an NF `base_ns`, plus `miss_ns` for each of its references that miss. A chain has
//! one core per NF, runs at the rate of its slowest NF, and shares one class among all of them.
//! Latency is that of a queue with batches of 32 before each NF. Profiles are made from the model's
//! values by [`sluice_slo::curve`], with the plans of `sluice profile`: the same number of points,
//! loads, and margins between points. Measurement effects are absent: samples are not repeated, no
//! spread enters the margin, and the throughput without any cache is known.
//!
//! # Parameters
//! Those of the traced kinds ([`TRACED`]) come from profiles: `base_ns` and `miss_ns` as `sluice
//! profile` found them on the host that `traced.json` names, and misses for each number of ways as
//! the cache model found them in the NFs' loads and stores, with uniform and with Zipf flows. NFs
//! of chains were traced together (scripts/sample-kinds). Measured latency is left out, because it
//! depends on that host and its neighbours.
//!
//! Those of the chosen kinds ([`KINDS`]) are not measured; the names say what each kind imitates.
//! An NF on one core without misses carries 1 to 22 million packets per second (`base_ns` 45 to
//! 900). Half a reference to 22 references per packet reach the LLC, by the law of the working set,
//! which is 0.3 to 70 MiB, against the 45 MiB of the paper's machine. A miss costs [`MISS_NS`]. The
//! shapes of the curves were matched with figure 6 of the paper (section 5.2) and with our own NFs
//! in `sluice bench profile-accuracy`: longest prefix match, statistics and NAT with Zipf flows
//! saturate; a firewall is flat; a NAT with uniform flows is convex until its table fits. The kinds
//! and their mixes stand for the sets of section 6.2, whose NFs are not ours.
//!
//! The terms of the SLOs of both are chosen, see [`SloTerms`].
//!
//! # Limits
//! Figures of the chosen kinds compare ways of placing and say nothing about how many servers real
//! NFs need. Those of the traced kinds do, as far as the cache model and a fixed cost of a miss are
//! right.

use std::convert::Infallible;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::contention::Behaviour;
use crate::demand::Demand;
use sluice_slo::curve::{Curve, CurveError, Point, Sweep, build};
use sluice_slo::digest::Digest;
use sluice_slo::placement::ServerShape;
use sluice_slo::profile::{CacheUse, FORM, Key, Profile, Source};
use sluice_slo::random::Random;
use sluice_slo::slo::{Promise, Slo, Workload};
use sluice_slo::stage::{self, Stage};

/// Cost of a miss of the chosen kinds, in ns: below DRAM latency, part of which other work of the
/// burst hides.
pub const MISS_NS: f64 = 30.0;

/// How often an NF's references miss.
#[derive(Debug, Clone, PartialEq)]
pub enum Misses {
    /// All lines of a working set alike; its size in MiB.
    Uniform(f64),
    /// Some lines more than others: a cache of a part p of the set serves p^(1 − exponent) of the
    /// references.
    Zipf { set_mib: f64, exponent: f64 },
    /// As counted in a trace.
    Traced {
        way_bytes: f64,
        /// Misses per packet with 0, 1, 2, … ways.
        with_ways: Vec<f64>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct NfModel {
    /// Time of a packet without misses, in ns.
    pub base_ns: f64,
    /// References per packet that reach the LLC.
    pub references: f64,
    pub misses: Misses,
    pub miss_ns: f64,
}

impl NfModel {
    /// Misses per packet with `bytes` of cache.
    fn misses_per_packet(&self, bytes: f64) -> f64 {
        let part = |set_mib: f64| (bytes / (set_mib * f64::from(1 << 20))).clamp(0.0, 1.0);
        match &self.misses {
            Misses::Uniform(set_mib) => self.references * (1.0 - part(*set_mib)),
            Misses::Zipf { set_mib, exponent } => self.references * (1.0 - part(*set_mib).powf(1.0 - exponent)),
            Misses::Traced { way_bytes, with_ways } => {
                let ways = (bytes / way_bytes).clamp(0.0, with_ways.len() as f64 - 1.0);
                let (below, above) = (with_ways[ways.floor() as usize], with_ways[ways.ceil() as usize]);
                below + (above - below) * ways.fract()
            }
        }
    }

    fn packet_ns(&self, bytes: f64) -> f64 {
        self.base_ns + self.miss_ns * self.misses_per_packet(bytes)
    }
}

/// A kind of NF, or of chain.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleKind {
    pub name: String,
    /// Its NFs, each on its own core.
    pub nfs: Vec<NfModel>,
}

/// The chosen kinds: the first five hardly need the cache, the others do.
pub static KINDS: LazyLock<Vec<SampleKind>> = LazyLock::new(|| {
    let kind = |name: &str, base_ns: f64, references: f64, misses: Misses| {
        let nfs = vec![NfModel { base_ns, references, misses, miss_ns: MISS_NS }];
        SampleKind { name: name.into(), nfs }
    };
    let zipf = |set_mib, exponent| Misses::Zipf { set_mib, exponent };
    vec![
        kind("l2-forward", 45.0, 0.5, Misses::Uniform(0.3)),
        kind("firewall", 80.0, 1.0, Misses::Uniform(0.5)),
        kind("rate-limit", 70.0, 0.8, zipf(0.8, 0.6)),
        kind("ipsec", 620.0, 2.0, Misses::Uniform(0.5)),
        kind("regex", 900.0, 3.0, zipf(1.5, 0.7)),
        kind("lpm", 70.0, 2.5, zipf(40.0, 0.7)),
        kind("nat-uniform", 95.0, 3.0, Misses::Uniform(26.0)),
        kind("nat-zipf", 95.0, 3.0, zipf(60.0, 0.8)),
        kind("statistics", 75.0, 3.0, zipf(45.0, 0.5)),
        kind("ids", 360.0, 11.0, zipf(30.0, 0.6)),
        kind("epc", 420.0, 13.0, Misses::Uniform(36.0)),
        kind("redundancy", 520.0, 22.0, zipf(70.0, 0.3)),
    ]
});

/// The format of `samples/traced.json`, written by scripts/sample-kinds.
#[derive(Deserialize)]
struct Written {
    way_bytes: f64,
    miss_ns: f64,
    kinds: Vec<WrittenKind>,
}

#[derive(Deserialize)]
struct WrittenKind {
    name: String,
    nfs: Vec<WrittenNf>,
}

#[derive(Deserialize)]
struct WrittenNf {
    base_ns: f64,
    references: f64,
    misses: Vec<f64>,
}

/// The NFs that ship with Sluice, and chains of them, as traced and profiled. Kinds that hardly
/// need the cache come first.
pub static TRACED: LazyLock<Vec<SampleKind>> = LazyLock::new(|| {
    let Written { way_bytes, miss_ns, kinds } =
        serde_json::from_str(include_str!("samples/traced.json")).unwrap_or_else(|error| panic!("samples/traced.json: {error}"));
    let nf = |WrittenNf { base_ns, references, misses }| {
        let with_ways = std::iter::once(references).chain(misses).collect();
        NfModel { base_ns, references, misses: Misses::Traced { way_bytes, with_ways }, miss_ns }
    };
    let kind = |WrittenKind { name, nfs }| SampleKind { name, nfs: nfs.into_iter().map(nf).collect() };
    let mut kinds: Vec<SampleKind> = kinds.into_iter().map(kind).collect();
    kinds.sort_by_key(SampleKind::is_sensitive);
    kinds
});

/// A kind needs the cache if it is faster by this part with all ways of the server than with its
/// fair share.
const SENSITIVE: f64 = 0.1;

impl SampleKind {
    /// Whether it needs the cache.
    fn is_sensitive(&self) -> bool {
        let (shape, on) = (server(), OnServer { kind: self, way_bytes: server().way_bytes });
        on.throughput_pps(f64::from(shape.ways())) > on.throughput_pps(self.fair(&shape)) * (1.0 + SENSITIVE)
    }

    fn workload(&self) -> Workload {
        match self.nfs.len() {
            1 => Workload::Nf(self.name.clone()),
            nfs => Workload::Chain((0..nfs).map(|nf| format!("{} {nf}", self.name)).collect()),
        }
    }

    fn references(&self) -> f64 {
        self.nfs.iter().map(|nf| nf.references).sum()
    }

    /// Its part of the ways of a server if each core has an equal one.
    fn fair(&self, shape: &ServerShape) -> f64 {
        f64::from(shape.ways()) / f64::from(shape.cores) * self.nfs.len() as f64
    }
}

/// The server of the experiments, as in the paper: 20 ways of 2.25 MiB of which DDIO has 2, and 9
/// cores for NFs.
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
        path_us: 0,
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct OnServer<'a> {
    pub kind: &'a SampleKind,
    pub way_bytes: u64,
}

impl Behaviour for OnServer<'_> {
    fn throughput_pps(&self, ways: f64) -> f64 {
        self.packets_ns(ways).map(|ns| 1e9 / ns).fold(f64::INFINITY, f64::min)
    }

    fn references_per_packet(&self) -> f64 {
        self.kind.references()
    }

    fn misses_per_packet(&self, ways: f64) -> f64 {
        self.kind.nfs.iter().map(|nf| nf.misses_per_packet(ways * self.way_bytes as f64)).sum()
    }

    /// By the model, and not by its profile.
    fn carries_pps(&self, ways: f64, latency_us: f64) -> f64 {
        let throughput = self.throughput_pps(ways);
        let (mut carries, mut too_much) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let part = f64::midpoint(carries, too_much);
            *(if self.latency_us(ways, part) <= latency_us { &mut carries } else { &mut too_much }) = part;
        }
        throughput * carries
    }
}

/// 95th percentile of latency in µs, in front of an NF that takes `packet_ns` per packet.
fn queue_us(packet_ns: f64, load_pps: f64) -> f64 {
    let part = load_pps * packet_ns / 1e9;
    packet_ns / 1e3 * 32.0 * (1.0 + 1.5 * part / (1.0 - part).max(1e-9))
}

/// Bisection steps, enough for all bits of a load's mantissa.
const HALVINGS: u32 = 52;

impl OnServer<'_> {
    /// Time of a packet in each NF with this many ways, in ns.
    fn packets_ns(&self, ways: f64) -> impl Iterator<Item = f64> {
        self.kind.nfs.iter().map(move |nf| nf.packet_ns(ways * self.way_bytes as f64))
    }

    /// 95th percentile of latency in µs, at `part` of its throughput with this many ways.
    pub fn latency_us(&self, ways: f64, part: f64) -> f64 {
        let load_pps = part * self.throughput_pps(ways);
        self.packets_ns(ways).map(|packet_ns| queue_us(packet_ns, load_pps)).sum()
    }

    /// The NFs of a chain as they are profiled: each at its own loads, with its speed for each
    /// number of ways.
    fn stages(&self, shape: &ServerShape) -> Result<Vec<Stage>, CurveError<Infallible>> {
        let best = f64::from(shape.ways());
        let one = |(nf, best_ns): (&NfModel, f64)| {
            let latency = build(&Sweep::latency_below(1e9 / best_ns).exact(), |load| Ok(vec![queue_us(best_ns, load)]))?;
            let speed = |ways: u32| best_ns / nf.packet_ns(f64::from(ways) * self.way_bytes as f64);
            let points = (0..=shape.ways()).map(|ways| Point { x: f64::from(ways), y: speed(ways) }).collect();
            Ok(Stage { latency, speed: Curve { points, ..Curve::default() } })
        };
        self.kind.nfs.iter().zip(self.packets_ns(best)).map(one).collect()
    }

    /// Its profile, as `sluice profile` would make it of an NF that behaves exactly like this.
    ///
    /// # Errors
    /// The curve cannot be built.
    pub fn profile(&self, shape: &ServerShape) -> Result<Profile, CurveError<Infallible>> {
        let plan = Sweep::throughput(shape.min_ways, shape.ways()).exact();
        let throughput = build(&plan, |ways| Ok(vec![self.throughput_pps(ways)]))?;
        let best = self.throughput_pps(f64::from(shape.ways()));
        let promised = throughput.points.last().map_or(best, |point| point.y) * (1.0 - throughput.margin);
        let stages = if self.kind.nfs.len() > 1 { self.stages(shape)? } else { Vec::new() };
        let latency = match stage::together(&stages) {
            Some(latency) => latency,
            None => build(&Sweep::latency_below(promised).exact(), |load| {
                Ok(vec![self.latency_us(f64::from(shape.ways()), load / best)])
            })?,
        };
        Ok(Profile {
            form: FORM,
            key: Key {
                workload: self.kind.workload(),
                binaries: self.kind.workload().services().into_iter().map(|nf| Digest::of(nf.as_bytes())).collect(),
                configuration: Digest::of(b""),
                traffic: "sample".into(),
                cpu: shape.cpu.clone(),
            },
            source: Source::Simulated,
            cores: self.kind.nfs.len() as u32,
            memory_mib: 256,
            latency,
            best_ways: shape.ways(),
            // Rounding must not lift it above the curve.
            floor_pps: throughput.points.first().map(|point| point.y.min(self.throughput_pps(0.0))),
            throughput,
            cache: Some(CacheUse {
                references_per_packet: self.kind.references(),
                miss_ns: self.kind.nfs[0].miss_ns,
                misses_per_packet: if stages.is_empty() {
                    Vec::new()
                } else {
                    (0..=shape.ways()).map(|ways| self.misses_per_packet(f64::from(ways))).collect()
                },
            }),
            stages,
        })
    }
}

/// Kinds that a set draws from, by whether they need the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    Insensitive,
    Mixed,
    Sensitive,
    TracedInsensitive,
    Traced,
    TracedSensitive,
}

impl Mix {
    pub const ALL: [Self; 6] =
        [Self::Insensitive, Self::Mixed, Self::Sensitive, Self::TracedInsensitive, Self::Traced, Self::TracedSensitive];

    pub fn kinds(self) -> &'static [SampleKind] {
        let traced = || TRACED.split_at(TRACED.partition_point(|kind| !kind.is_sensitive()));
        match self {
            Self::Insensitive => &KINDS[..5],
            Self::Sensitive => &KINDS[5..],
            Self::Mixed => &KINDS,
            Self::TracedInsensitive => traced().0,
            Self::TracedSensitive => traced().1,
            Self::Traced => &TRACED,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Insensitive => "insensitive",
            Self::Mixed => "mixed",
            Self::Sensitive => "sensitive",
            Self::TracedInsensitive => "traced/insensitive",
            Self::Traced => "traced/mixed",
            Self::TracedSensitive => "traced/sensitive",
        }
    }
}

/// A random SLO of a set.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub slo: Slo,
    pub kind: &'static SampleKind,
    /// Index of its profile in the set.
    pub profile: usize,
}

/// SLOs, and the profiles that they name.
#[derive(Debug, Clone, PartialEq)]
pub struct Set {
    /// One of each kind.
    pub profiles: Vec<Profile>,
    pub samples: Vec<Sample>,
}

/// What the SLOs of a set promise, by what an instance does alone on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SloTerms {
    /// Each different: 0.3 to 2.5 times the throughput with its fair share of the cache, within a
    /// latency that it keeps there at 75 to 95 % of its throughput.
    FairShare,
    /// 90 % or 100 % of the throughput with the whole cache, as in the paper (section 6.2), within
    /// a latency that it keeps there at 95 % of its throughput. The latency is ours.
    Alone,
}

impl SloTerms {
    pub const ALL: [Self; 2] = [Self::FairShare, Self::Alone];

    pub fn name(self) -> &'static str {
        match self {
            Self::FairShare => "fair-share",
            Self::Alone => "alone",
        }
    }

    /// A random promise for this kind of NF.
    fn promise(self, on: &OnServer<'_>, shape: &ServerShape, random: &mut Random) -> Promise {
        match self {
            Self::FairShare => {
                let fair = on.kind.fair(shape);
                let throughput_pps = on.throughput_pps(fair) * (0.3 + 2.2 * random.part());
                let latency_us = on.latency_us(fair, 0.75 + 0.2 * random.part());
                Promise::Reserved { throughput_pps, latency_us }
            }
            Self::Alone => {
                let all = f64::from(shape.ways());
                let part = if random.part() < 0.5 { 0.9 } else { 1.0 };
                Promise::Reserved { throughput_pps: on.throughput_pps(all) * part, latency_us: on.latency_us(all, 0.95) }
            }
        }
    }
}

/// Random SLOs with these terms.
///
/// # Errors
/// A profile cannot be made.
pub fn set(mix: Mix, terms: SloTerms, slos: usize, seed: u64, shape: &ServerShape) -> Result<Set, CurveError<Infallible>> {
    let kinds = mix.kinds();
    let on = |kind| OnServer { kind, way_bytes: shape.way_bytes };
    let profiles = kinds.iter().map(|kind| on(kind).profile(shape)).collect::<Result<Vec<_>, _>>()?;
    let mut random = Random::new(seed);
    let samples = (0..slos)
        .map(|i| {
            let profile = ((random.part() * kinds.len() as f64) as usize).min(kinds.len() - 1);
            let kind = &kinds[profile];
            let slo = Slo {
                name: format!("slo{i}"),
                workload: kind.workload(),
                configuration: Digest::of(b""),
                traffic: "sample".into(),
                promise: terms.promise(&on(kind), shape, &mut random),
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
    /// An SLO is impossible.
    pub fn demands(&self, shape: &ServerShape) -> Result<Vec<Demand>, crate::demand::DemandError> {
        self.samples.iter().map(|sample| Demand::of(&sample.slo, &self.profiles[sample.profile], shape)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use sluice_slo::curve::LOADS;

    #[test]
    fn profiles_of_all_kinds_take_few_points_and_promise_no_more_than_there_is() {
        let shape = server();
        for kind in KINDS.iter().chain(TRACED.iter()) {
            let on = OnServer { kind, way_bytes: shape.way_bytes };
            let profile = on.profile(&shape).unwrap();
            profile.check().unwrap();
            let most = Sweep::throughput(1, 1).points;
            assert_eq!((most, Sweep::latency_below(1.0).points), (12, 12));
            let latencies = profile.stages.iter().map(|stage| &stage.latency);
            let single = if profile.stages.is_empty() { Some(&profile.latency) } else { None };
            let mut curves = latencies.chain(single).chain([&profile.throughput]);
            assert!(curves.all(|curve| (1..=most).contains(&curve.measured)), "{}: {profile:?}", kind.name);
            // Loads of a chain are parts of its slowest NF's throughput, which has no margin.
            let margin = if kind.nfs.len() > 1 { profile.throughput.margin } else { 0.0 };
            let (loads, most) = (&profile.latency.points, profile.throughput_pps(shape.ways()) / (1.0 - margin));
            let ends = [loads.first().unwrap().x, loads.last().unwrap().x];
            assert!((ends[0] / most - LOADS.0).abs() < 1e-9 && (ends[1] / most - LOADS.1).abs() < 1e-9, "{}: {ends:?}", kind.name);
            assert_eq!(profile.stages.len(), if kind.nfs.len() > 1 { kind.nfs.len() } else { 0 });
            for ways in 0..=shape.ways() {
                let throughput = if ways == 0 { profile.shared_pps() } else { profile.throughput_pps(ways) };
                assert!(throughput <= on.throughput_pps(f64::from(ways)) * (1.0 + 1e-9), "{} {ways}", kind.name);
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
        for (mix, terms) in Mix::ALL.into_iter().flat_map(|mix| SloTerms::ALL.map(|terms| (mix, terms))) {
            let one = set(mix, terms, 50, 7, &server()).unwrap();
            assert_eq!(one, set(mix, terms, 50, 7, &server()).unwrap());
            assert_eq!(one.demands(&server()).unwrap().len(), 50);
        }
    }

    #[test]
    fn terms_alone_are_two_parts_of_what_the_whole_cache_gives() {
        let shape = server();
        let Set { samples, .. } = set(Mix::Sensitive, SloTerms::Alone, 100, 1, &shape).unwrap();
        let parts = samples.iter().map(|sample| {
            let Promise::Reserved { throughput_pps, .. } = sample.slo.promise else { panic!("{sample:?}") };
            let alone = OnServer { kind: sample.kind, way_bytes: shape.way_bytes }.throughput_pps(f64::from(shape.ways()));
            (throughput_pps / alone * 1e3).round() as u32
        });
        assert_eq!(parts.collect::<BTreeSet<u32>>(), BTreeSet::from([900, 1000]));
    }
}
