//! Two reports of `bench all`.
//!
//! # Approach
//! A report has one to three runs of each variant, too few to tell a change of one from noise. But
//! an experiment has many variants, and what makes the platform slower makes most of them slower.
//! So each variant that both reports have is a pair, and a metric of an experiment has changed if
//! the median of its ratios (after to before) is beyond the threshold, and ratios fall on that side
//! as they hardly would by chance: p ≤ 0.05 by the sign test, corrected for the number of tests as
//! by S. Holm (1979).
//!
//! # Limits
//! - Fewer than six pairs never show a change.
//! - The host may be faster in one run than in the other: then everything has changed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};

use super::direction::{Better, SIGNIFICANT, better};
use crate::bench::report::Report;

/// A metric of an experiment in both reports.
#[derive(Debug, Clone, PartialEq)]
struct Compared {
    experiment: String,
    metric: String,
    /// After to before, of each variant, in order of size.
    ratios: Vec<f64>,
    better: Better,
    /// Probability of such ratios without a change.
    p: f64,
}

impl Compared {
    fn of(experiment: &str, metric: &str, mut ratios: Vec<f64>, better: Better) -> Self {
        ratios.sort_by(f64::total_cmp);
        let p = sign_test(&ratios);
        Self { experiment: experiment.into(), metric: metric.into(), ratios, better, p }
    }

    fn median(&self) -> f64 {
        crate::bench::report::median(&self.ratios)
    }

    fn words(&self) -> String {
        let (least, most) = (self.ratios.first().copied().unwrap_or(1.0), self.ratios.last().copied().unwrap_or(1.0));
        let Self { experiment, metric, ratios, p, .. } = self;
        format!("{experiment}  {metric}  × {:.3} ({least:.2}–{most:.2}) in {} variants  p {p:.4}", self.median(), ratios.len())
    }
}

/// Two-sided probability that as few of the ratios lie on one side of 1, if each side were as
/// likely; ratios of 1 say nothing.
fn sign_test(ratios: &[f64]) -> f64 {
    let (above, below) = (ratios.iter().filter(|ratio| **ratio > 1.0).count(), ratios.iter().filter(|ratio| **ratio < 1.0).count());
    let n = above + below;
    let mut ways = 1.0f64;
    let mut tail = 0.0;
    for k in 0..=above.min(below) {
        tail += ways;
        ways *= (n - k) as f64 / (k + 1) as f64;
    }
    (2.0 * tail / 2f64.powi(i32::try_from(n).unwrap_or(i32::MAX))).min(1.0)
}

/// Every metric of an experiment of which more or less is better, over all variants of both.
fn metrics(before: &Report, after: &Report) -> Vec<Compared> {
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for was in &before.variants {
        let Some(is) = after.variants.iter().find(|is| is.name == was.name && is.params == was.params) else { continue };
        for (metric, value) in &was.metrics {
            let ratio = is.metrics.get(metric).map(|now| now.median / value.median);
            ratios.entry(metric).or_default().extend(ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0));
        }
    }
    let directed = ratios.into_iter().filter(|(_, ratios)| !ratios.is_empty()).filter_map(|(metric, ratios)| {
        // A ratio of errors says nothing: both may be next to 0.
        let better = better(metric).filter(|better| *better != Better::NearZero)?;
        Some(Compared::of(&before.experiment, metric, ratios, better))
    });
    directed.collect()
}

/// Those that have changed, by S. Holm's procedure: of the smallest probability, as often as there
/// are tests; of the next, once less.
fn changed(compared: &[Compared], threshold: f64) -> Vec<&Compared> {
    let mut by_p: Vec<&Compared> = compared.iter().collect();
    by_p.sort_by(|a, b| a.p.total_cmp(&b.p));
    let tests = by_p.len();
    let improbable = by_p.into_iter().enumerate().take_while(|(rank, one)| one.p * (tests - rank) as f64 <= SIGNIFICANT);
    improbable.map(|(_, one)| one).filter(|one| (one.median() - 1.0).abs() > threshold).collect()
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

/// Prints what has changed, and how much was compared.
///
/// # Errors
/// A folder or a result in it cannot be read, or there is none; they have nothing in common; a
/// metric of an experiment is worse by more than `threshold` percent.
pub fn run(before: &Path, after: &Path, threshold: f64, out: &mut dyn Write) -> anyhow::Result<()> {
    let (before, after) = (results(before)?, results(after)?);
    for (one, other, which) in [(&before, &after, "before"), (&after, &before, "after")] {
        let alone: Vec<&str> = one.keys().filter(|name| !other.contains_key(*name)).map(String::as_str).collect();
        if !alone.is_empty() {
            writeln!(out, "Only {which}: {}.", alone.join(", "))?;
        }
    }
    let both: Vec<(&Report, &Report)> = before.iter().filter_map(|(name, was)| Some((was, after.get(name)?))).collect();
    let differing: std::collections::BTreeSet<String> = both.iter().flat_map(|(was, is)| was.differences(is)).collect();
    for difference in differing {
        writeln!(out, "The reports differ by more than the change ({difference}).")?;
    }
    let compared: Vec<Compared> = both.iter().flat_map(|(was, is)| metrics(was, is)).collect();
    if compared.is_empty() {
        bail!("the reports have no variant and metric in common; make both with the same options");
    }
    let changed = changed(&compared, threshold / 100.0);
    let (improved, worse): (Vec<&Compared>, Vec<&Compared>) =
        changed.into_iter().partition(|one| one.better.is_improved(1.0, one.median()));
    for (title, some) in [("Worse", &worse), ("Better", &improved)] {
        if !some.is_empty() {
            writeln!(out, "{title}")?;
        }
        for one in some {
            writeln!(out, "  {}", one.words())?;
        }
    }
    writeln!(
        out,
        "{} experiments, {} metrics compared: {} worse, {} better, {} within noise or {threshold} %.",
        both.len(),
        compared.len(),
        worse.len(),
        improved.len(),
        compared.len() - worse.len() - improved.len()
    )?;
    if !worse.is_empty() {
        bail!("{} of {} metrics are worse by more than {threshold} %", worse.len(), compared.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::compare::tests::report;

    /// A result of variants with these rates.
    fn rates(experiment: &str, rates: &[f64]) -> Report {
        let mut result = report(experiment, &[]);
        result.variants.clear();
        for (nfs, rate) in rates.iter().enumerate() {
            let mut one = report(experiment, &[("delivered_pps", &[*rate])]).variants.remove(0);
            one.params.insert("nfs".into(), json!(nfs));
            result.variants.push(one);
        }
        result
    }

    const EIGHT: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];

    #[test]
    fn the_sign_test_counts_both_sides() {
        assert_eq!(sign_test(&[]), 1.0);
        assert_eq!(sign_test(&[1.0, 1.0]), 1.0, "nothing has changed");
        assert_eq!(sign_test(&[2.0, 0.5]), 1.0);
        assert_eq!(sign_test(&[0.5; 6]), 2.0 / 64.0);
        assert_eq!(sign_test(&[0.5, 0.5, 0.5, 0.5, 0.5, 2.0]), 2.0 * 7.0 / 64.0);
    }

    #[test]
    fn what_most_variants_agree_on_has_changed() {
        let of = |factors: [f64; 8]| {
            let after: Vec<f64> = EIGHT.iter().zip(factors).map(|(rate, factor)| rate * factor).collect();
            let compared = metrics(&rates("chain", &EIGHT), &rates("chain", &after));
            changed(&compared, 0.03).len()
        };
        assert_eq!(of([0.9, 0.8, 0.9, 0.85, 0.9, 0.7, 0.9, 0.95]), 1);
        assert_eq!(of([0.99; 8]), 0, "on one side, and too little");
        assert_eq!(of([0.9, 1.2, 0.8, 1.1, 0.9, 1.1, 0.9, 1.2]), 0, "noise");
        // Of twenty tests, one as improbable as this is no wonder.
        let one = metrics(&rates("chain", &EIGHT), &rates("chain", &EIGHT.map(|rate| rate * 0.9)));
        let many: Vec<Compared> = (0..20).flat_map(|_| one.clone()).collect();
        assert_eq!((changed(&one, 0.03).len(), changed(&many, 0.03).len()), (1, 0));
    }

    #[test]
    fn folders_are_compared_by_experiment() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str, reports: &[Report]| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            reports.iter().for_each(|report| report.write(&path.join(&report.experiment).with_extension("json")).unwrap());
            path
        };
        let before = folder("before", &[rates("chain", &EIGHT), rates("forward", &EIGHT)]);
        let after = folder("after", &[rates("chain", &EIGHT.map(|rate| rate * 0.5)), rates("dynamic", &EIGHT)]);
        let empty = folder("empty", &[]);
        let compare = |a: &Path, b: &Path| {
            let mut out = Vec::new();
            let ended = run(a, b, 3.0, &mut out).map_err(|error| error.to_string());
            (ended, String::from_utf8(out).unwrap())
        };
        let (ended, said) = compare(&before, &after);
        assert_eq!(ended.unwrap_err(), "1 of 1 metrics are worse by more than 3 %");
        assert!(said.starts_with("Only before: forward.\nOnly after: dynamic.\nWorse\n  chain  delivered_pps  × 0.500"), "{said}");
        let (ended, said) = compare(&before, &before);
        assert!(ended.is_ok() && said.contains("2 experiments, 2 metrics compared: 0 worse, 0 better, 2 within noise"), "{said}");
        let (ended, said) = compare(&after, &before);
        assert!(ended.is_ok() && said.contains("1 experiments, 1 metrics compared: 0 worse, 1 better"), "{said}");
        assert!(compare(&before, &empty).0.unwrap_err().contains("has no result"));
    }
}
