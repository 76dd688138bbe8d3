//! What an NF or a chain can do: two measured curves and their conditions.
//!
//! # Terms and units
//! *Throughput curve*: packets per second of one instance against the LLC ways of its class.
//! *Latency curve*: 95th percentile in microseconds against load in packets per second, at the
//! number of ways with the highest throughput (`best_ways`). *Instance*: runs on `cores` cores (a
//! chain may take several) that share one class. *Floor*: throughput with none of the LLC, as in a
//! class that others thrash; this much can be promised to an instance in a shared class. *Margin*:
//! the part of a curve's value that is not promised.
//!
//! # Approach
//! A latency is kept by limiting the load. An instance with fewer ways than `best_ways` takes
//! longer per packet, by the ratio k of the throughputs. A queue whose service takes k times as
//! long is the same queue in slow motion: at the same share of its throughput its packets wait k
//! times as long. So an instance keeps a latency L while its load is at most the share of its
//! throughput at which the latency curve is still below L / k. Times that do not grow with cache
//! misses (wires, timers) make the promise too low, never too high.
//!
//! In a chain, the cache slows each NF by its own factor, and the latency is the sum over the NFs
//! ([`crate::stage`]).
//!
//! # Limits
//! A profile is valid for one processor model, one binary of each NF, one configuration and one
//! traffic; [`Profile::is_for`] reports what differs. A profile from a file is checked before use:
//! [`crate::curve`] makes curves monotone, so a curve that is not was not made by it. Below its
//! first point a curve is 0: what was measured with the whole cache is promised only with the whole
//! cache.
//!
//! Source: Tootoonchian et al., "ResQ", NSDI 2018, sections 4 and 5.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::curve::{Confidence, Curve};
use crate::digest::Digest;
use crate::slo::{Slo, Workload};
use crate::stage::{self, Stage};

/// Version of the profile format.
pub const FORM: u32 = 1;

/// What a profile describes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "ProfileKey")]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// What ran.
    pub workload: Workload,
    /// Digest of each NF's program, in the order of the chain.
    pub binaries: Vec<Digest>,
    /// Digest of the configuration; of a chain, of those of its NFs.
    pub configuration: Digest,
    /// The traffic, as an SLO names it.
    pub traffic: String,
    /// The processor's model name, as the system reports it.
    pub cpu: String,
}

/// Where the numbers of a throughput curve come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The processor's cache control.
    Measured,
    /// A model of the cache, fed with the loads and stores of the NF.
    Simulated,
    /// No cache control: one point, at all ways of the profiled processor; nothing about fewer.
    None,
}

/// How an instance uses the cache: for models of contention, not for promises.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheUse {
    /// References per packet that pass the processor's private caches.
    pub references_per_packet: f64,
    /// Extra cost of a reference that misses the LLC, in nanoseconds.
    pub miss_ns: f64,
    /// For a chain: misses per packet of all its NFs together with 0, 1, 2, … ways. The chain's
    /// throughput is that of one NF and cannot show them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misses_per_packet: Vec<f64>,
}

/// What one instance can do.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub form: u32,
    pub key: Key,
    pub source: Source,
    pub cores: u32,
    pub memory_mib: u64,
    /// Packets per second against ways.
    pub throughput: Curve,
    /// 95th percentile of latency, in microseconds, against packets per second.
    pub latency: Curve,
    /// Ways at which latency was measured: those with the highest throughput.
    pub best_ways: u32,
    /// Packets per second with none of the LLC. Without it, an instance needs its own class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_pps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// The NFs of a chain that the cache slows differently. Empty for a single NF, and where fewer
    /// ways were not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profile {path}: {why}")]
    File { path: String, why: String },
    /// Written by another version.
    #[error("the profile has form {form} and this program knows {FORM}: profile again")]
    Form { form: u32 },
    #[error("the profile was made on \"{profile}\" and the server has \"{server}\": profile there")]
    Cpu { profile: String, server: String },
    #[error("the profile is of another binary of \"{workload}\" ({profile}, now {now}): profile again")]
    Binary { workload: Workload, profile: String, now: String },
    /// It describes another workload, configuration or traffic.
    #[error("the profile is of {what} \"{profile}\" and the SLO names \"{slo}\": profile that")]
    Other { what: &'static str, profile: String, slo: String },
    #[error("the {which} curve has no points: profile again")]
    Empty { which: &'static str },
    #[error("the {which} curve has the point ({x}, {y}): both must be 0 or more and finite; profile again")]
    NoNumber { which: &'static str, x: f64, y: f64 },
    /// A margin, bound or spread that is no part of 1.
    #[error(
        "the {which} curve has a margin of {margin}, or a bound or spread that makes no sense: they are parts of 1; profile again"
    )]
    Margin { which: &'static str, margin: f64 },
    #[error(
        "the {which} curve is not monotone: {y} at {x}, after {before}; profiles that `sluice profile` writes are, so profile again"
    )]
    NotMonotone { which: &'static str, x: f64, y: f64, before: f64 },
    /// Other work disturbed the host while it was measured.
    #[error(
        "host too noisy: at {} of {} points the {which} is not known to within half of its value ({} of {} samples are within what would be \
         promised)", .confidence.unsure, .confidence.points, .confidence.within, .confidence.samples
    )]
    Noisy { which: &'static str, confidence: Confidence },
    #[error("the profile says {what}: profile again")]
    Shape { what: String },
}

fn check_curve(curve: &Curve, which: &'static str) -> Result<(), ProfileError> {
    if curve.points.is_empty() {
        return Err(ProfileError::Empty { which });
    }
    let sane = |value: f64| value.is_finite() && value >= 0.0;
    if let Some(point) = curve.points.iter().find(|point| !sane(point.x) || !sane(point.y)) {
        return Err(ProfileError::NoNumber { which, x: point.x, y: point.y });
    }
    let parts = [curve.error_bound, curve.spread, curve.margin];
    if parts.iter().any(|part| !sane(*part)) || curve.margin >= 1.0 {
        return Err(ProfileError::Margin { which, margin: curve.margin });
    }
    for pair in curve.points.windows(2) {
        if pair[0].x >= pair[1].x || pair[0].y > pair[1].y {
            return Err(ProfileError::NotMonotone { which, x: pair[1].x, y: pair[1].y, before: pair[0].y });
        }
    }
    Ok(())
}

impl Profile {
    /// Checks that the host was quiet enough for what the profile promises.
    ///
    /// # Errors
    /// [`ProfileError::Noisy`].
    pub fn check_quiet(&self) -> Result<(), ProfileError> {
        for (which, curve) in [("throughput", &self.throughput), ("latency", &self.latency)] {
            let confidence = curve.confidence;
            if confidence.is_too_noisy() {
                return Err(ProfileError::Noisy { which, confidence });
            }
        }
        Ok(())
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ProfileError`]: unreadable, no profile, or it does not pass [`check`](Self::check).
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let fail = |why: String| ProfileError::File { path: path.display().to_string(), why };
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        let profile: Self = serde_json::from_str(&text).map_err(|e| fail(e.to_string()))?;
        profile.check()?;
        Ok(profile)
    }

    /// Writes a file atomically: readers see the old file or the new one.
    ///
    /// # Errors
    /// [`ProfileError::File`].
    pub fn save(&self, path: &Path) -> Result<(), ProfileError> {
        let fail = |why: String| ProfileError::File { path: path.display().to_string(), why };
        let text = serde_json::to_string_pretty(self).map_err(|e| fail(e.to_string()))?;
        let beside = path.with_extension("json.new");
        std::fs::write(&beside, text + "\n").and_then(|()| std::fs::rename(&beside, path)).map_err(|e| fail(e.to_string()))
    }

    /// Checks that the profile is consistent.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.form != FORM {
            return Err(ProfileError::Form { form: self.form });
        }
        check_curve(&self.throughput, "throughput")?;
        check_curve(&self.latency, "latency")?;
        let shape = |what: &str| Err(ProfileError::Shape { what: what.into() });
        if self.cores == 0 {
            return shape("that an instance takes no core");
        }
        match self.throughput.at(f64::from(self.best_ways)) {
            None => return shape(&format!("that {} ways are best, where its throughput curve has no value", self.best_ways)),
            Some(best) if best <= 0.0 => return shape("that its best throughput is 0"),
            Some(_) => {}
        }
        let lowest = self.throughput.points[0].y;
        if self.floor_pps.is_some_and(|floor| !floor.is_finite() || floor < 0.0 || floor > lowest) {
            return shape(&format!("that its throughput without cache is not between 0 and {lowest:.0}, that with least cache"));
        }
        let sane = |value: f64| value.is_finite() && value >= 0.0;
        let mut of_cache = self
            .cache
            .iter()
            .flat_map(|cache| [&cache.references_per_packet, &cache.miss_ns].into_iter().chain(&cache.misses_per_packet));
        if !of_cache.all(|value| sane(*value)) {
            return shape("a use of the cache that is no number");
        }
        if self.cores > 1 && self.source == Source::Simulated && self.stages.is_empty() {
            return shape("nothing of the single NFs of a chain, without which nobody knows how late it is with less cache");
        }
        if !self.stages.is_empty() && self.stages.len() != self.cores as usize {
            return shape(&format!(
                "something of {} NFs, where a chain has one on each of its {} cores",
                self.stages.len(),
                self.cores
            ));
        }
        for stage in &self.stages {
            check_curve(&stage.latency, "latency of an NF")?;
            check_curve(&stage.speed, "speed")?;
            if stage.speed.points.iter().any(|point| point.y <= 0.0 || point.y > 1.0) {
                return shape("that an NF of the chain stands still, or is faster than when it was measured");
            }
            if self.floor_pps.is_some() && stage.speed.points[0].x > 0.0 {
                return shape("what the chain does without cache, and of one of its NFs not how fast it is then");
            }
        }
        Ok(())
    }

    /// Checks that it describes what an SLO names, with these programs, on this processor.
    ///
    /// # Errors
    /// [`ProfileError`] names what differs.
    pub fn is_for(&self, slo: &Slo, binaries: &[Digest], cpu: &str) -> Result<(), ProfileError> {
        let other = |what, profile: &dyn ToString, slo: &dyn ToString| {
            Err(ProfileError::Other { what, profile: profile.to_string(), slo: slo.to_string() })
        };
        if self.key.workload != slo.workload {
            return other("the NF or chain", &self.key.workload, &slo.workload);
        }
        if self.key.configuration != slo.configuration {
            return other("configuration", &self.key.configuration, &slo.configuration);
        }
        if self.key.traffic != slo.traffic {
            return other("traffic", &self.key.traffic, &slo.traffic);
        }
        if self.key.binaries != binaries {
            let list = |digests: &[Digest]| digests.iter().map(|digest| digest.0.as_str()).collect::<Vec<_>>().join(", ");
            return Err(ProfileError::Binary {
                workload: slo.workload.clone(),
                profile: list(&self.key.binaries),
                now: list(binaries),
            });
        }
        if self.key.cpu != cpu {
            return Err(ProfileError::Cpu { profile: self.key.cpu.clone(), server: cpu.into() });
        }
        Ok(())
    }

    /// Throughput that can be promised to one instance with a class of `ways` ways, in packets per
    /// second, latency aside. 0 below the curve.
    pub fn throughput_pps(&self, ways: u32) -> f64 {
        let last = self.throughput.points.last().map_or(0.0, |point| point.x);
        self.throughput.at(f64::from(ways).min(last)).unwrap_or(0.0) * (1.0 - self.throughput.margin)
    }

    /// Throughput that can be promised to one instance in a class that others thrash, in packets
    /// per second, latency aside. 0 if unknown.
    pub fn shared_pps(&self) -> f64 {
        self.floor_pps.unwrap_or(0.0) * (1.0 - self.throughput.margin)
    }

    /// Packets per second that one instance carries within `latency_us` microseconds. `ways` is the
    /// size of its own class; 0 is a class that others thrash. Returns 0 if it cannot keep the
    /// latency.
    pub fn capacity_pps(&self, ways: u32, latency_us: f64) -> f64 {
        let throughput = if ways == 0 { self.shared_pps() } else { self.throughput_pps(ways) };
        let best = self.throughput_pps(self.best_ways);
        let latency_us = latency_us / (1.0 + self.latency.margin);
        if best <= 0.0 {
            return 0.0;
        }
        if self.stages.is_empty() {
            return throughput * self.load_part(throughput / best, latency_us);
        }
        throughput.min(stage::within(&self.stages, f64::from(ways), latency_us) * (1.0 - self.throughput.margin))
    }

    /// Factor by which a packet takes longer with a class of `ways` ways than at `best_ways`;
    /// `ways` 0 is a class that others thrash. For a chain, the factor of its most slowed NF.
    /// Infinite if unknown.
    pub fn slower(&self, ways: u32) -> f64 {
        let throughput = if ways == 0 { self.shared_pps() } else { self.throughput_pps(ways) };
        let whole = self.throughput_pps(self.best_ways) / throughput;
        self.stages.iter().map(|stage| 1.0 / stage.speed(f64::from(ways))).fold(whole, f64::max).max(1.0)
    }

    /// Part of its throughput with which an instance may be loaded to keep a latency, where its
    /// throughput is the part `of_best` of the best.
    pub fn load_part(&self, of_best: f64, latency_us: f64) -> f64 {
        let best = self.throughput.at(f64::from(self.best_ways)).unwrap_or(0.0);
        // No faster than the best: more cache than that was not measured.
        match self.latency.reach(latency_us * of_best.min(1.0)) {
            Some(load_pps) if best > 0.0 => (load_pps / best).min(1.0),
            _ => 0.0,
        }
    }

    /// Shortest latency that can be promised at all, in microseconds, with a class of `ways` ways
    /// (0: a class that others thrash): the latency at the least measured load.
    pub fn least_latency_us(&self, ways: u32) -> f64 {
        let first = |latency: &Curve| latency.points.first().map_or(f64::INFINITY, |point| point.y);
        let one = |stage: &Stage| first(&stage.latency) / stage.speed(f64::from(ways));
        let least =
            if self.stages.is_empty() { first(&self.latency) * self.slower(ways) } else { self.stages.iter().map(one).sum() };
        least * (1.0 + self.latency.margin)
    }
}

/// Also used by tests of other modules.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{curve, profile, slo, whole};

    #[test]
    fn a_latency_is_kept_by_keeping_the_load_down() {
        let profile = profile();
        assert_eq!(profile.capacity_pps(10, 20.0), 5e6, "20 µs is half of the load");
        assert_eq!(profile.capacity_pps(10, 1000.0), 9e6, "no more than was measured");
        assert_eq!(profile.capacity_pps(5, 40.0), 2.5e6, "with half the throughput, queues last twice as long");
        assert_eq!(profile.capacity_pps(10, 9.0), 0.0);
        assert_eq!(profile.capacity_pps(1, 20.0), 0.0, "ten times as slow");
        assert_eq!(profile.capacity_pps(20, 20.0), 5e6, "what is more than was measured is no better");
        assert_eq!(profile.capacity_pps(0, 400.0), 0.25e6, "the floor is a twentieth");
    }

    #[test]
    fn what_was_measured_with_the_whole_cache_is_promised_with_no_less() {
        let profile = whole();
        profile.check().unwrap();
        assert_eq!((0..20).map(|ways| profile.capacity_pps(ways, 1000.0)).fold(0.0, f64::max), 0.0);
        assert_eq!((profile.throughput_pps(20), profile.capacity_pps(20, 20.0)), (10e6, 5e6));
    }

    #[test]
    fn margins_are_taken_off() {
        let mut profile = profile();
        profile.throughput.margin = 0.1;
        profile.latency.margin = 1.0;
        assert_eq!(profile.throughput_pps(10), 9e6);
        assert!((profile.capacity_pps(10, 40.0) - 4.5e6).abs() < 1.0, "half of what is promised");
        assert_eq!(profile.least_latency_us(profile.best_ways), 20.0);
    }

    #[test]
    fn what_differs_is_named() {
        let profile = profile();
        let binaries = [Digest::of(b"nat")];
        assert!(profile.is_for(&slo(1e6, 50.0), &binaries, "A").is_ok());
        let said = |slo: &Slo, binaries: &[Digest], cpu: &str| profile.is_for(slo, binaries, cpu).unwrap_err().to_string();
        assert_eq!(said(&slo(1e6, 50.0), &binaries, "B"), "the profile was made on \"A\" and the server has \"B\": profile there");
        assert!(said(&slo(1e6, 50.0), &[Digest::of(b"new")], "A").contains("another binary of \"nat\""));
        assert!(said(&Slo { traffic: "1518 B".into(), ..slo(1e6, 50.0) }, &binaries, "A").contains("traffic \"64 B\""));
        assert!(said(&Slo { workload: Workload::Nf("ids".into()), ..slo(1e6, 50.0) }, &binaries, "A").contains("names \"ids\""));
    }

    #[test]
    fn bad_profiles_are_refused() {
        let refused = |change: fn(&mut Profile)| {
            let mut profile = profile();
            change(&mut profile);
            profile.check().unwrap_err().to_string()
        };
        assert!(refused(|p| p.throughput.points[1].y = 0.9e6).contains("not monotone"));
        assert!(refused(|p| p.latency.points.swap(0, 1)).contains("latency curve is not monotone"));
        assert!(refused(|p| p.latency.points.clear()).contains("no points"));
        assert!(refused(|p| p.throughput.points[0].y = f64::NAN).contains("NaN"));
        assert!(refused(|p| p.throughput.margin = 1.0).contains("margin"));
        assert!(refused(|p| p.best_ways = 11).contains("11 ways are best"));
        assert!(refused(|p| p.cores = 0).contains("no core"));
        assert!(refused(|p| p.floor_pps = Some(2e6)).contains("without cache"));
        assert!(refused(|p| p.form = 9).contains("form 9"));
        assert!(refused(|p| p.cores = 2).contains("single NFs of a chain"));
        let staged = |speed: &[(f64, f64)]| {
            let stage = Stage { latency: curve(&[(1e6, 10.0)]), speed: curve(speed) };
            Profile { cores: 2, stages: vec![stage; 2], ..profile() }.check()
        };
        assert!(staged(&[(0.0, 0.5), (10.0, 1.0)]).is_ok());
        for (speed, why) in [
            (&[][..], "no points"),
            (&[(0.0, 0.0), (10.0, 1.0)], "stands still"),
            (&[(0.0, 0.5), (10.0, 1.1)], "faster than when"),
            (&[(1.0, 0.5), (10.0, 1.0)], "without cache"),
        ] {
            assert!(staged(speed).unwrap_err().to_string().contains(why), "{speed:?}");
        }
    }

    #[test]
    fn a_file_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nat.json");
        profile().save(&path).unwrap();
        assert_eq!(Profile::load(&path).unwrap(), profile());
        std::fs::write(&path, "{}").unwrap();
        assert!(Profile::load(&path).unwrap_err().to_string().contains("nat.json: missing field"));
        assert!(Profile::load(&folder.path().join("none.json")).is_err());
    }
}
