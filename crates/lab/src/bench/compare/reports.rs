//! Two reports of `bench all`.
//!
//! # Terms
//! - *Change* of a metric: the natural logarithm of after to before; of an experiment, the median
//!   of its variants' changes.
//! - *Noise*: the standard deviation of a change between two runs of one build.
//! - *Group*: the variants of an experiment that share a value, as a mode, a scheduler or a number
//!   of NFs: a part of their name, or a parameter.
//!
//! # Approach
//! A report has one to three runs of each variant, too few to know the noise of one. But it has
//! many experiments, and these have many variants.
//! 1. What the [`host`](super::host) explains of a change does not count.
//! 2. Variants run one after another and share what the host did meanwhile, so they are no
//!    independent samples of it. The noise of an experiment has two parts: the error of its
//!    variants' median, and how far the changes of experiments in the same metric scatter. The
//!    latter is learnt from this pair of reports. Of it, too, the host explains a part: one of its
//!    speeds is taken off in full, that which leaves the least, or none. For a metric of fewer than
//!    [`FEWEST_EXPERIMENTS`] the noise is the error alone, times how much more all changes of the
//!    report scatter than their errors say (R. T. Birge, The Calculation of Errors by the Method of
//!    Least Squares, 1932). Where a report has fewer, the variants of an experiment count as one
//!    sample of it.
//! 3. All experiments together have changed if the median of their changes is far from 0, by the
//!    same noise. This is tested only where the host's speed is known.
//! 4. A variant with [`FEWEST_RUNS`] or more on both sides has changed if no run before is among
//!    those after, and its change is far from that of its experiment, and from what the host
//!    explains, by how far the changes of the other variants scatter. Here, what is far off counts
//!    in full: where others are far off as well, as by a disk that is slow at times, being so says
//!    little of this one. Where its own runs scatter much more than that ([`OWN`]), their scatter
//!    counts instead.
//! 5. A group has changed if the mean of its changes is far from that of the other variants. The
//!    noise of this difference has two parts, as that of an experiment: its error, by the scatter
//!    within both, and how far such differences scatter in the same metric, over all groups of all
//!    experiments. For a metric of fewer than [`FEWEST_EXPERIMENTS`] it is the error alone, times
//!    how much more the groups of an experiment scatter than their errors say, in the middle of the
//!    experiments; ratios and counts are set against their like. Few variants say little of their
//!    scatter, so those of a group count as scattering at least as the others. Of two groups that
//!    are far apart, that has changed which has done so by itself.
//! 6. The exit status is one answer to all tests, and one false alarm makes it wrong. So the
//!    probability that counts is that of any false alarm, by S. Holm's procedure. It allows tests
//!    that depend on each other, as rates of a chain and of its NFs do. (By the procedure of Y.
//!    Benjamini and Y. Hochberg, a part of what is reported would be false.) Experiments, groups
//!    and variants have a third of [`SIGNIFICANT`] each.
//!
//! # Limits
//! - Metrics of fewer than [`FEWEST_VARIANTS`] are not tested, and neither is one that was 0. A
//!   rate that is 0 now is worse, whatever the noise, if it is so in half of the variants of a
//!   name, in several runs: one NF, or one second of a course, may have nothing by chance. So is
//!   a variant that is missing, as it is where a run has served nothing.
//! - A ratio to another variant (`of_…`) is not tested of a whole experiment: all have one base,
//!   which may be a single run. The rates that it was made of are.
//! - Of an experiment, a change of less than half of the variants shows if these are a group of
//!   [`FEWEST_OF_GROUP`] or more; else only by single ones, which hide each other. Compare results
//!   of that experiment, with more repeats.
//! - Variants whose load is a part of what another one carried change with that one, and count as
//!   if they did so by themselves.
//! - A single run of a variant can be off by any amount, so a quick report shows no change of one
//!   variant alone, and several that changed hide each other. Measure their experiment again, with
//!   more repeats.
//! - Where the host has changed, a variant may have done so by as much without showing, whatever
//!   the others did.
//! - On a noisy host only large changes of one experiment show; the noise is printed.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::FRAC_PI_2;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::direction::{Better, Follows, SIGNIFICANT, better, has_shared_base};
use super::host::{HostChange, SPEEDS};
use super::noise::{error_of_median, middle, of_any, p_of_t, spread};
use crate::bench::fair::mean;
use crate::bench::report::{Report, Summary, Variant};

/// Fewest variants of an experiment by which a metric is tested: fewer say little of their scatter.
const FEWEST_VARIANTS: usize = 6;
/// Fewest experiments whose scatter is taken for noise. With fewer, only changes of ten times the
/// noise would be improbable among some hundred tests.
const FEWEST_EXPERIMENTS: usize = 8;
/// Fewest variants in a group, and beside it.
const FEWEST_OF_GROUP: usize = 3;
/// Fewest runs of a variant by which it is tested alone.
const FEWEST_RUNS: usize = 3;
/// From how many times the scatter of the other variants on the runs of one count by themselves.
const OWN: f64 = 2.0;
/// Kinds of tests, which have a part of [`SIGNIFICANT`] each.
const KINDS: f64 = 3.0;
/// What makes a part of a change.
const HOST: &str = "the host";

/// A variant in both reports.
#[derive(Debug, Clone, PartialEq)]
struct VariantChange {
    variant: String,
    /// What it can share with others ([`values`]).
    values: Vec<String>,
    change: f64,
    /// Its runs; none if there are too few.
    runs: Option<Runs>,
}

/// How the runs of a variant lie.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Runs {
    /// Whether none before is among those after.
    are_apart: bool,
    /// Standard error of the change of their medians, by the scatter on each side.
    error: f64,
    /// Degrees of freedom of it.
    freedom: usize,
}

impl Runs {
    fn of(before: &Summary, after: &Summary) -> Option<Self> {
        let sides = [before, after].map(|side| side.samples.iter().map(|sample| sample.ln()).collect::<Vec<f64>>());
        if sides.iter().any(|side| side.len() < FEWEST_RUNS || side.iter().any(|sample| !sample.is_finite())) {
            return None;
        }
        let freedom = sides.iter().map(|side| side.len() - 1).sum();
        let variance = sides.iter().map(|side| squares(side)).sum::<f64>() / freedom as f64;
        let error = (variance * FRAC_PI_2 * sides.iter().map(|side| 1.0 / side.len() as f64).sum::<f64>()).sqrt();
        Some(Self { are_apart: before.max < after.min || after.max < before.min, error, freedom })
    }
}

/// The sum of squared distances from the mean.
fn squares(numbers: &[f64]) -> f64 {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    numbers.iter().map(|number| (number - mean).powi(2)).sum()
}

impl VariantChange {
    /// None if a median is 0.
    fn of(variant: &Variant, before: &Summary, after: &Summary) -> Option<Self> {
        let change = Some((after.median / before.median).ln()).filter(|change| change.is_finite())?;
        let keys: Vec<&str> = variant.params.keys().map(String::as_str).collect();
        Some(Self { variant: variant.label(&keys), values: values(variant), change, runs: Runs::of(before, after) })
    }
}

/// What a variant can share with others: its name, each part of that, and each parameter.
fn values(variant: &Variant) -> Vec<String> {
    let part = |(at, part): (usize, &str)| if at == 0 { format!("{part}/…") } else { format!("…/{part}") };
    let parts = variant.name.split('/').enumerate().map(part);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    let params = variant.params.iter().map(|(key, value)| format!("{key} {}", text(value)));
    std::iter::once(variant.name.clone()).chain(parts).chain(params).collect()
}

/// A metric of an experiment in both reports.
#[derive(Debug, Clone, PartialEq)]
struct Compared {
    experiment: String,
    metric: String,
    better: Better,
    /// In order of measurement.
    variants: Vec<VariantChange>,
    host: Option<HostChange>,
    /// That of the experiment.
    change: f64,
    /// Standard error of it, by the scatter of the variants.
    error: f64,
}

impl Compared {
    fn of(experiment: &str, metric: &str, better: Better, variants: Vec<VariantChange>, host: Option<HostChange>) -> Self {
        let changes: Vec<f64> = variants.iter().map(|one| one.change).collect();
        let (change, error) = (middle(&changes), error_of_median(&changes));
        Self { experiment: experiment.into(), metric: metric.into(), better, variants, host, change, error }
    }

    /// How far its variants scatter.
    fn spread(&self) -> f64 {
        spread(&self.variants.iter().map(|one| one.change).collect::<Vec<_>>())
    }

    /// The metric without the name of an NF, a chain or a reason.
    fn name(&self) -> &str {
        self.metric.split('.').next().unwrap_or(&self.metric)
    }

    fn follows(&self) -> Follows {
        Follows::of(&self.metric)
    }

    /// A change without what the host explains.
    fn without_host(&self, change: f64) -> f64 {
        change - self.host.map_or(0.0, |host| host.explains(change, self.follows()))
    }

    /// What some variants have changed by themselves: the change that the host does not explain, or
    /// how far it is `apart` from that of the others, which may be what has changed; the lesser.
    fn own_part(&self, change: f64, apart: f64) -> f64 {
        let own = self.without_host(change);
        if own * apart > 0.0 { own.abs().min(apart.abs()).copysign(apart) } else { 0.0 }
    }

    /// Its change without what the host explains.
    fn unexplained(&self) -> f64 {
        self.without_host(self.change)
    }
}

/// Every metric of an experiment of which more or less is better, over the variants of both.
fn metrics(before: &Report, after: &Report) -> Vec<Compared> {
    let mut changes: BTreeMap<&str, Vec<VariantChange>> = BTreeMap::new();
    for was in &before.variants {
        let Some(is) = after.variants.iter().find(|is| is.name == was.name && is.params == was.params) else { continue };
        for (metric, value) in &was.metrics {
            let change = is.metrics.get(metric).and_then(|now| VariantChange::of(was, value, now));
            changes.entry(metric).or_default().extend(change);
        }
    }
    let host = HostChange::between(before, after);
    let directed = changes.into_iter().filter(|(_, variants)| !variants.is_empty()).filter_map(|(metric, variants)| {
        // A ratio of errors says nothing: both may be next to 0.
        let better = better(metric).filter(|better| *better != Better::NearZero)?;
        Some(Compared::of(&before.experiment, metric, better, variants, host))
    });
    directed.collect()
}

/// Whether each of several runs gave something, or each gave nothing; none where they differ, or
/// where there is one run.
fn is_served(runs: &Summary) -> Option<bool> {
    let served = runs.samples.iter().filter(|rate| **rate > 0.0).count();
    (runs.samples.len() > 1 && (served == 0 || served == runs.samples.len())).then_some(served > 0)
}

/// Variants that are not there any more, and rates that are 0 now in half of the variants of a name
/// that had them, or more.
fn gone(before: &Report, after: &Report) -> Vec<String> {
    let mut gone = Vec::new();
    // By name and metric: the number of variants that had the rate, and those that lost it.
    let mut rates: BTreeMap<(&str, &str), (usize, Vec<String>)> = BTreeMap::new();
    for was in &before.variants {
        let keys: Vec<&str> = was.params.keys().map(String::as_str).collect();
        let what = format!("{}, {}", before.experiment, was.label(&keys));
        let Some(is) = after.variants.iter().find(|is| is.name == was.name && is.params == was.params) else {
            gone.push(format!("{what}: it is not there any more"));
            continue;
        };
        let had = was.metrics.iter().filter(|(metric, runs)| better(metric) == Some(Better::More) && is_served(runs) == Some(true));
        for (metric, value) in had {
            let (had, lost) = rates.entry((&was.name, metric)).or_default();
            *had += 1;
            if is.metrics.get(metric).and_then(is_served) == Some(false) {
                lost.push(format!("{what}  {metric}: it was {:.4e} and is 0", value.median));
            }
        }
    }
    gone.extend(rates.into_values().filter(|(had, lost)| 2 * lost.len() >= *had).flat_map(|(_, lost)| lost));
    gone
}

/// A group of variants in a metric.
struct Group<'a> {
    of: &'a Compared,
    /// What they share.
    value: &'a str,
    size: usize,
    /// The mean of their changes.
    change: f64,
    /// How far it is from that of the others.
    apart: f64,
    /// Standard error of that, by the scatter within both, and its degrees of freedom.
    error: f64,
    freedom: f64,
}

impl<'a> Group<'a> {
    /// Those of an experiment that are large enough, each once: variants may share several values.
    fn all(of: &'a Compared) -> Vec<Self> {
        let mut groups: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for (at, value) in of.variants.iter().enumerate().flat_map(|(at, one)| one.values.iter().map(move |value| (at, value))) {
            groups.entry(value).or_default().insert(at);
        }
        let sizes = FEWEST_OF_GROUP..=of.variants.len().saturating_sub(FEWEST_OF_GROUP);
        let mut seen = BTreeSet::new();
        groups.retain(|_, members| sizes.contains(&members.len()) && seen.insert(members.clone()));
        groups.into_iter().map(|(value, members)| Self::of(of, value, &members)).collect()
    }

    fn of(of: &'a Compared, value: &'a str, members: &BTreeSet<usize>) -> Self {
        let changes = |is_member: bool| -> Vec<f64> {
            let side = of.variants.iter().enumerate().filter(|(at, _)| members.contains(at) == is_member);
            side.map(|(_, one)| one.change).collect()
        };
        let (own, others) = (changes(true), changes(false));
        let (error, freedom) = error_of_means(&own, &others);
        let change = mean(&own);
        Self { of, value, size: own.len(), change, apart: change - mean(&others), error, freedom }
    }

    /// Tests it, by the scatter of groups in its metric and of all.
    fn tested(&self, same: Option<Scatter>, any: Option<Scatter>) -> Tested {
        let Self { of, value, size, change, apart, error, freedom } = *self;
        let variants = of.variants.len();
        let (noise, freedom) = match (same, any) {
            (Some(Scatter { deviation, experiments }), _) => {
                let noise = deviation.hypot(error);
                // As of an experiment.
                let parts = deviation.powi(4) / (experiments - 1) as f64 + error.powi(4) / freedom;
                (noise, if parts > 0.0 { (noise.powi(4) / parts) as usize } else { variants - 2 })
            }
            (None, Some(Scatter { deviation, experiments })) => {
                (deviation.max(1.0) * error, (freedom as usize).min(experiments - 1))
            }
            (None, None) => (error, freedom as usize),
        };
        let rest = of.own_part(change, apart);
        let experiments = same.or(any).map_or(String::new(), |scatter| format!(", {} experiments", scatter.experiments));
        let (what, metric) = (format!("{}, all of {value}", of.experiment), of.metric.clone());
        let (by, words) = ("the host and the others", format!("{size} of {variants} variants{experiments}"));
        Tested { what, metric, better: of.better, change, rest, by, noise, of: words, p: 1.0 }.with_p(freedom)
    }
}

/// Standard error of the difference of two means, and its degrees of freedom (B. L. Welch, The
/// Generalization of "Student's" Problem when Several Different Population Variances are Involved,
/// 1947). A group that scatters less than the others counts as one of them.
fn error_of_means(group: &[f64], others: &[f64]) -> (f64, f64) {
    let sides = [group, others];
    let [n, m] = sides.map(|side| side.len() as f64);
    let [own, rest] = sides.map(|side| squares(side) / (side.len() - 1) as f64);
    if own <= rest {
        return ((rest * (1.0 / n + 1.0 / m)).sqrt(), m - 1.0);
    }
    let [own, rest] = [own / n, rest / m];
    ((own + rest).sqrt(), (own + rest).powi(2) / (own.powi(2) / (n - 1.0) + rest.powi(2) / (m - 1.0)))
}

/// How far the changes of experiments scatter.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scatter {
    deviation: f64,
    experiments: usize,
}

impl Scatter {
    /// Of some metrics; an experiment with several of them counts once, by their median. None if
    /// there are too few experiments. `of` makes what scatters of a metric, and of what a speed of
    /// the host leaves of its change.
    fn of<'a>(some: impl Iterator<Item = &'a Compared>, of: fn(&Compared, f64) -> f64) -> Option<Self> {
        let mut of_each: BTreeMap<&str, Vec<&Compared>> = BTreeMap::new();
        some.for_each(|one| of_each.entry(&one.experiment).or_default().push(one));
        let experiments = of_each.len();
        if experiments < FEWEST_EXPERIMENTS {
            return None;
        }
        // None if it is not known of all.
        let deviation = |left: &dyn Fn(&Compared) -> Option<f64>| -> Option<f64> {
            let value = |&one: &&Compared| left(one).map(|left| of(one, left));
            let of_one = |some: &Vec<&Compared>| some.iter().map(value).collect::<Option<Vec<f64>>>();
            let all: Option<Vec<f64>> = of_each.values().map(|some| of_one(some).map(|values| middle(&values))).collect();
            all.map(|all| spread(&all))
        };
        let with_speed = |at: usize| deviation(&|one| Some(one.change - one.host?.alone(one.follows())[at]));
        let all = [deviation(&|one| Some(one.change))].into_iter().chain((0..SPEEDS.len()).map(with_speed)).flatten();
        Some(Self { deviation: all.fold(f64::INFINITY, f64::min), experiments })
    }

    /// Of changes in a metric.
    fn of_changes<'a>(some: impl Iterator<Item = &'a Compared>) -> Option<Self> {
        Self::of(some, |_, left| left)
    }

    /// Of changes for the better in any metric, relative to their errors.
    fn of_errors<'a>(all: impl Iterator<Item = &'a Compared>) -> Option<Self> {
        let for_better = |one: &Compared, left: f64| if one.better == Better::More { left / one.error } else { -left / one.error };
        Self::of(all.filter(|one| one.error > 0.0), for_better)
    }

    /// Of how far groups in a metric are from the others.
    fn of_groups(groups: &[&Group]) -> Option<Self> {
        let experiments = groups.iter().map(|group| &group.of.experiment).collect::<BTreeSet<_>>().len();
        let apart: Vec<f64> = groups.iter().map(|group| group.apart).collect();
        (experiments >= FEWEST_EXPERIMENTS).then(|| Self { deviation: spread(&apart), experiments })
    }

    /// The same relative to their errors, in the middle of the experiments.
    fn of_errors_of_groups<'a>(groups: impl Iterator<Item = &'a Group<'a>>) -> Option<Self> {
        let mut of_each: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for group in groups {
            let errors = if group.error > 0.0 { group.apart / group.error } else { 0.0 };
            of_each.entry(&group.of.experiment).or_default().push(errors);
        }
        let (deviations, experiments) = (of_each.values().map(|all| spread(all)).collect::<Vec<_>>(), of_each.len());
        (experiments >= FEWEST_EXPERIMENTS).then(|| Self { deviation: middle(&deviations), experiments })
    }
}

/// Whether a change is more than noise.
#[derive(Debug, Clone, PartialEq)]
struct Tested {
    /// The experiment, its variant, or all experiments.
    what: String,
    metric: String,
    better: Better,
    change: f64,
    /// The change without the part that `by` made.
    rest: f64,
    /// What made the other part.
    by: &'static str,
    noise: f64,
    /// What the noise was learnt from.
    of: String,
    p: f64,
}

impl Tested {
    /// The same with the probability of such a rest without a change, of which `freedom` plus one
    /// are known.
    fn with_p(self, freedom: usize) -> Self {
        // What never scatters does not change by chance.
        let deviations = if self.rest == 0.0 { 0.0 } else { self.rest / self.noise };
        Self { p: p_of_t(deviations, freedom), ..self }
    }

    fn is_beyond(&self, threshold: f64) -> bool {
        (self.rest.exp() - 1.0).abs() > threshold
    }

    fn is_improved(&self) -> bool {
        self.better.is_improved(1.0, self.rest.exp())
    }

    /// `p` is the probability of any such test by chance.
    fn words(&self, p: f64) -> String {
        let Self { what, metric, change, rest, by, noise, of, .. } = self;
        let by = if change == rest { String::new() } else { format!(" (by {by} × {:.3})", (change - rest).exp()) };
        let p = if p < 0.0001 { "< 0.0001".into() } else { format!("{p:.4}") };
        let noise = 100.0 * noise.exp_m1();
        format!("{what}  {metric}  × {:.3}{by}, noise ± {noise:.1} % ({of}), p {p}", change.exp())
    }
}

/// Tests an experiment's change of a metric, by the scatter of that metric and of all.
fn experiment(one: &Compared, same: Option<Scatter>, any: Option<Scatter>) -> Tested {
    let variants = one.variants.len();
    let (noise, freedom, experiments) = match (same, any) {
        (Some(Scatter { deviation, experiments }), _) => {
            let noise = deviation.hypot(one.error);
            // Of a sum of two variances: F. E. Satterthwaite, An Approximate Distribution of
            // Estimates of Variance Components (1946).
            let parts = deviation.powi(4) / (experiments - 1) as f64 + one.error.powi(4) / (variants - 1) as f64;
            (noise, if parts > 0.0 { (noise.powi(4) / parts) as usize } else { variants - 1 }, experiments)
        }
        (None, Some(Scatter { deviation, experiments })) => {
            (deviation.max(1.0) * one.error, variants.min(experiments) - 1, experiments)
        }
        (None, None) => (one.spread(), variants - 1, 1),
    };
    let of =
        if experiments > 1 { format!("{variants} variants, {experiments} experiments") } else { format!("{variants} variants") };
    let (what, metric, change, rest) = (one.experiment.clone(), one.metric.clone(), one.change, one.unexplained());
    Tested { what, metric, better: one.better, change, rest, by: HOST, noise, of, p: 1.0 }.with_p(freedom)
}

/// Tests a metric of all experiments together, by its scatter; none if it is not known of one how
/// fast the host was.
fn together(some: &[&Compared], scatter: Scatter) -> Option<Tested> {
    let mut of_each: BTreeMap<&str, [Vec<f64>; 2]> = BTreeMap::new();
    for one in some {
        one.host?;
        let [changes, rests] = of_each.entry(&one.experiment).or_default();
        changes.push(one.change);
        rests.push(one.unexplained());
    }
    let [change, rest] = [0, 1].map(|which| middle(&of_each.values().map(|both| middle(&both[which])).collect::<Vec<_>>()));
    let noise = scatter.deviation * (FRAC_PI_2 / scatter.experiments as f64).sqrt();
    let (what, of) = ("all experiments".into(), format!("{} experiments", scatter.experiments));
    let (metric, better) = (some.first()?.name().into(), some.first()?.better);
    Some(Tested { what, metric, better, change, rest, by: HOST, noise, of, p: 1.0 }.with_p(scatter.experiments - 1))
}

/// The tests of experiments, and of all of them together.
fn tests_of_experiments(all: &[Compared]) -> Vec<Tested> {
    let enough: Vec<&Compared> = all.iter().filter(|one| one.variants.len() >= FEWEST_VARIANTS).collect();
    let names: BTreeSet<&str> = enough.iter().map(|one| one.name()).collect();
    let any = Scatter::of_errors(enough.iter().copied());
    let mut tests = Vec::new();
    for name in names {
        let some: Vec<&Compared> = enough.iter().copied().filter(|one| one.name() == name).collect();
        let same = Scatter::of_changes(some.iter().copied());
        tests.extend(same.and_then(|same| together(&some, same)));
        let tested = some.into_iter().filter(|one| !has_shared_base(&one.metric));
        tests.extend(tested.map(|one| experiment(one, same, any)));
    }
    tests
}

/// The tests of groups.
fn tests_of_groups(all: &[Compared]) -> Vec<Tested> {
    let groups: Vec<Group> = all.iter().filter(|one| one.variants.len() >= FEWEST_VARIANTS).flat_map(Group::all).collect();
    let follows = |group: &Group| group.of.follows() != Follows::Nothing;
    let of_kind = |kind: bool| Scatter::of_errors_of_groups(groups.iter().filter(|group| follows(group) == kind));
    let [others, followers] = [false, true].map(of_kind);
    let mut of_each: BTreeMap<&str, Vec<&Group>> = BTreeMap::new();
    groups.iter().for_each(|group| of_each.entry(group.of.name()).or_default().push(group));
    let of_metric = |some: &Vec<&Group>| {
        let same = Scatter::of_groups(some);
        some.iter().map(|group| group.tested(same, if follows(group) { followers } else { others })).collect::<Vec<_>>()
    };
    of_each.values().flat_map(of_metric).collect()
}

/// The tests of variants that ran often enough.
fn tests_of_variants(all: &[Compared]) -> Vec<Tested> {
    let of_one = |one: &Compared| {
        let variants = one.variants.len();
        let test = |(at, variant): (usize, &VariantChange)| {
            let runs = variant.runs?;
            let others: Vec<f64> =
                one.variants.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other.change).collect();
            let deviation = (squares(&others) / (variants - 2) as f64).sqrt();
            let is_own = runs.error > OWN * deviation;
            let (noise, freedom) = if is_own { (runs.error, runs.freedom) } else { (deviation, variants - 2) };
            let what = format!("{}, {}", one.experiment, variant.variant);
            let (metric, of) = (one.metric.clone(), format!("{variants} variants"));
            let change = variant.change;
            let (rest, by) = (one.own_part(change, change - one.change), "the host and its experiment");
            let tested = Tested { what, metric, better: one.better, change, rest, by, noise, of, p: 1.0 };
            Some(if runs.are_apart { tested.with_p(freedom) } else { tested })
        };
        one.variants.iter().enumerate().filter_map(test).collect::<Vec<_>>()
    };
    all.iter().filter(|one| one.variants.len() >= FEWEST_VARIANTS).flat_map(of_one).collect()
}

/// The tests of experiments, of groups and of variants.
fn kinds_of_tests(all: &[Compared]) -> [Vec<Tested>; 3] {
    [tests_of_experiments(all), tests_of_groups(all), tests_of_variants(all)]
}

/// Those that have changed by more than a threshold and than noise, each with the probability of
/// any such test by chance; the most improbable first.
fn changed(tests: &[Tested], threshold: f64) -> Vec<(&Tested, f64)> {
    let p = of_any(&tests.iter().map(|one| one.p).collect::<Vec<_>>());
    let mut changed: Vec<(&Tested, f64)> =
        tests.iter().zip(p).filter(|(one, p)| *p <= SIGNIFICANT / KINDS && one.is_beyond(threshold)).collect();
    changed.sort_by(|a, b| a.1.total_cmp(&b.1));
    changed
}

/// The results in a folder, by experiment.
fn results(folder: &Path) -> anyhow::Result<BTreeMap<String, Report>> {
    let mut reports = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let report = Report::read(&path)?;
            reports.insert(report.experiment.clone(), report);
        }
    }
    if reports.is_empty() {
        bail!("{} has no result; `sluice bench all --report DIR` makes such a folder", folder.display());
    }
    Ok(reports)
}

/// Prints what the two are besides their metrics: the host, and the noise.
fn setting(both: &[(&Report, &Report)], tests: &[Tested], out: &mut dyn Write) -> std::io::Result<()> {
    let differing: BTreeSet<String> = both.iter().flat_map(|(was, is)| was.differences(is)).collect();
    for difference in differing {
        writeln!(out, "The reports differ by more than the change ({difference}).")?;
    }
    let hosts: Vec<HostChange> = both.iter().filter_map(|(was, is)| HostChange::between(was, is)).collect();
    if !hosts.is_empty() {
        writeln!(out, "The host, after to before, in the middle of {} experiments: {}.", hosts.len(), HostChange::words(&hosts))?;
        let large = hosts.iter().filter(|host| host.is_large()).count();
        if large > 0 {
            writeln!(
                out,
                "In {large} of them it changed so much that a rate that moved with it does not count: compare on a steadier host."
            )?;
        }
    }
    let silent = both.len() - hosts.len();
    if silent > 0 {
        writeln!(
            out,
            "{silent} of {} results do not say how fast the host was: what has changed there may be the host.",
            both.len()
        )?;
    }
    let kinds = [(Follows::Speed, "rates"), (Follows::Slowness, "times"), (Follows::Nothing, "ratios and counts")];
    let of_kind = |(follows, words): (Follows, &str)| {
        let noise: Vec<f64> = tests.iter().filter(|one| Follows::of(&one.metric) == follows).map(|one| one.noise).collect();
        (!noise.is_empty()).then(|| format!("{words} ± {:.1} %", 100.0 * middle(&noise).exp_m1()))
    };
    let noise: Vec<String> = kinds.into_iter().filter_map(of_kind).collect();
    if !noise.is_empty() {
        writeln!(out, "Noise of an experiment, in the middle: {}.", noise.join(", "))?;
    }
    Ok(())
}

/// Prints what has changed, against what noise, and how much was compared.
///
/// # Errors
/// A folder or a result in it cannot be read, or there is none; they have nothing in common; a
/// metric is worse by more than `threshold` percent and than noise.
pub fn run(before: &Path, after: &Path, threshold: f64, out: &mut dyn Write) -> anyhow::Result<()> {
    let (before, after) = (results(before)?, results(after)?);
    for (one, other, which) in [(&before, &after, "before"), (&after, &before, "after")] {
        let alone: Vec<&str> = one.keys().filter(|name| !other.contains_key(*name)).map(String::as_str).collect();
        if !alone.is_empty() {
            writeln!(out, "Only {which}: {}.", alone.join(", "))?;
        }
    }
    let both: Vec<(&Report, &Report)> = before.iter().filter_map(|(name, was)| Some((was, after.get(name)?))).collect();
    let compared: Vec<Compared> = both.iter().flat_map(|(was, is)| metrics(was, is)).collect();
    if compared.is_empty() {
        bail!("the reports have no variant and metric in common; make both with the same options");
    }
    let tests = kinds_of_tests(&compared);
    setting(&both, &tests[0], out)?;
    let changed = tests.each_ref().map(|kind| changed(kind, threshold / 100.0)).concat();
    let (improved, worse): (Vec<_>, Vec<_>) = changed.into_iter().partition(|(one, _)| one.is_improved());
    let gone: Vec<String> = both.iter().flat_map(|(was, is)| gone(was, is)).collect();
    for (title, some) in [("Worse", &worse), ("Better", &improved)] {
        let gone: &[String] = if title == "Worse" { &gone } else { &[] };
        if !some.is_empty() || !gone.is_empty() {
            writeln!(out, "{title}")?;
        }
        gone.iter().try_for_each(|one| writeln!(out, "  {one}"))?;
        for (one, p) in some {
            writeln!(out, "  {}", one.words(*p))?;
        }
    }
    let [of_experiments, of_groups, of_variants] = tests.each_ref().map(Vec::len);
    let count = of_experiments + of_groups + of_variants;
    let few = compared.iter().filter(|one| one.variants.len() < FEWEST_VARIANTS);
    writeln!(
        out,
        "{} experiments, {of_experiments} metrics, {of_groups} groups and {of_variants} single variants tested: \
         {} worse, {} better, {} within noise or {threshold} %. {} metrics have too few variants.",
        both.len(),
        worse.len(),
        improved.len(),
        count - worse.len() - improved.len(),
        few.count()
    )?;
    if !worse.is_empty() {
        bail!("{} of {count} are worse by more than {threshold} % and than noise", worse.len());
    }
    if !gone.is_empty() {
        bail!("{} rates or variants are gone", gone.len());
    }
    Ok(())
}
