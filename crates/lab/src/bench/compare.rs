//! `sluice bench compare BEFORE AFTER`: two results of an experiment, or two reports of `bench
//! all`, side by side.
//!
//! # Approach
//! Variants are matched by name and params, and the medians of each metric that both measured are
//! compared. Rates scatter where others use the host too, so a metric has changed only if its
//! median differs by more than a threshold, and its samples differ as they hardly would without a
//! change: p ≤ 0.05 by the test of H. B. Mann and D. R. Whitney (1947), which assumes nothing about
//! how samples are distributed. Its exact probability is counted here, ties included: that of
//! statrs 0.19 is 1 for two sets of one size that lie wholly apart.
//!
//! What the [`host`] explains of a change does not count: the samples after are tested without it.
//!
//! The runs of a report are too few for that test, and its metrics are many. [`reports`] has
//! another.
//!
//! # Limits
//! - Fewer than four samples on each side never show a change.
//! - Each metric is tested by itself: of a hundred that did not change, up to five seem to, if
//!   their medians are that far apart.
//! - Two results differ by the time of their measurement as well, and the host's speed is not all
//!   of that. Run them in turns.
//! - The count takes long from some hundred samples on.

mod direction;
mod host;
mod noise;
mod reports;

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::bail;
use sluice_cli::lab::bench::BenchArgs;

use crate::bench::report::{Report, Summary, Variant};
use direction::{Follows, SIGNIFICANT, better};
use host::HostChange;

pub const NAME: &str = "compare";
pub const ABOUT: &str =
    "two results of an experiment of four runs or more (files of --json), or two reports (folders): compare BEFORE AFTER";

/// Fewest samples on each side that can be significant.
const FEWEST: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Worse,
    Better,
    Same,
    /// Too few samples to tell.
    Unknown,
}

/// A metric of both results.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    variant: String,
    metric: String,
    before: Summary,
    after: Summary,
    /// Probability of such samples without a change; none of too few.
    p: Option<f64>,
    verdict: Verdict,
}

impl Row {
    fn of(variant: &Variant, metric: &str, (before, after): (&Summary, &Summary), settings: &Settings) -> Option<Self> {
        let better = better(metric)?;
        let enough = before.samples.len() >= FEWEST && after.samples.len() >= FEWEST;
        let without_host = settings.without_host(metric, before, after);
        let p = enough.then(|| p_of(&before.samples, &without_host.samples));
        let is_far = (without_host.median - before.median).abs() > settings.threshold * before.median.abs();
        let verdict = match p {
            None if is_far => Verdict::Unknown,
            Some(p) if is_far && p <= SIGNIFICANT => {
                if better.is_improved(before.median, without_host.median) {
                    Verdict::Better
                } else {
                    Verdict::Worse
                }
            }
            _ => Verdict::Same,
        };
        let keys: Vec<&str> = variant.params.keys().map(String::as_str).collect();
        let (variant, metric) = (variant.label(&keys), metric.into());
        Some(Self { variant, metric, before: before.clone(), after: after.clone(), p, verdict })
    }

    /// Of the medians, after to before; nothing to compare with is no ratio.
    fn ratio(&self) -> String {
        if self.before.median == 0.0 { String::new() } else { format!("  × {:.3}", self.after.median / self.before.median) }
    }
}

/// What changes are set against.
struct Settings {
    /// Part by which a median may differ.
    threshold: f64,
    /// None if a result does not say how fast the host was.
    host: Option<HostChange>,
}

impl Settings {
    /// The samples after, without what the host explains of the change of their median.
    fn without_host(&self, metric: &str, before: &Summary, after: &Summary) -> Summary {
        let change = (after.median / before.median).ln();
        match self.host.filter(|_| change.is_finite()) {
            Some(host) => {
                let explained = host.explains(change, Follows::of(metric)).exp();
                Summary::of(after.samples.iter().map(|sample| sample / explained).collect())
            }
            None => after.clone(),
        }
    }
}

/// Probability that two sets of samples of one distribution differ as much as these: the part of
/// all ways of choosing the first set out of both whose sum of ranks is at least as far out.
fn p_of(before: &[f64], after: &[f64]) -> f64 {
    let mut all = [before, after].concat();
    all.sort_by(f64::total_cmp);
    // Twice the mean rank of equal samples, which is whole.
    let rank = |sample: &f64| all.partition_point(|other| other < sample) + all.partition_point(|other| other <= sample) + 1;
    let (chosen, most) = (before.len(), all.len() * (all.len() + 1));
    // How many ways there are of choosing a number of samples whose ranks have a sum.
    let mut ways = vec![vec![0.0; most + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for rank in all.iter().map(rank) {
        for n in (1..=chosen).rev() {
            for sum in rank..=most {
                ways[n][sum] += ways[n - 1][sum - rank];
            }
        }
    }
    let seen: usize = before.iter().map(rank).sum();
    let count = |ways: &[f64]| ways.iter().sum::<f64>();
    let (low, high) = (count(&ways[chosen][..=seen]), count(&ways[chosen][seen..]));
    (2.0 * low.min(high) / count(&ways[chosen])).min(1.0)
}

/// The metrics that both results have, and of which more or less is better.
fn rows(before: &Report, after: &Report, settings: &Settings) -> Vec<Row> {
    let same = |a: &Variant, b: &Variant| a.name == b.name && a.params == b.params;
    let pairs = before.variants.iter().filter_map(|a| Some((a, after.variants.iter().find(|b| same(a, b))?)));
    let of_pair = |(a, b): (&Variant, &Variant)| {
        let both = a.metrics.iter().filter_map(|(metric, was)| Some((metric, was, b.metrics.get(metric)?)));
        both.filter_map(|(metric, was, is)| Row::of(a, metric, (was, is), settings)).collect::<Vec<_>>()
    };
    pairs.flat_map(of_pair).collect()
}

/// A number with three digits that count.
pub fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}

fn cell(summary: &Summary) -> String {
    format!("{} ({}–{})", short(summary.median), short(summary.min), short(summary.max))
}

/// Prints the changes, what was not compared, and how many are of each kind.
///
/// # Errors
/// A file cannot be read or is no result; the results are of different experiments or have nothing
/// in common; a metric is worse.
pub fn run(args: &BenchArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let [before, after] = args.files.as_slice() else {
        bail!("compare needs two results, or two folders of `bench all`: sluice bench compare BEFORE.json AFTER.json");
    };
    match (before.is_dir(), after.is_dir()) {
        (true, true) => return reports::run(before, after, args.threshold, out),
        (false, false) => {}
        _ => bail!("compare two files, or two folders: one of {} and {} is a folder", before.display(), after.display()),
    }
    let (before, after) = (Report::read(before)?, Report::read(after)?);
    if before.experiment != after.experiment {
        bail!("one result is of {}, the other of {}; compare results of the same experiment", before.experiment, after.experiment);
    }
    let settings = Settings { threshold: args.threshold / 100.0, host: HostChange::between(&before, &after) };
    let rows = rows(&before, &after, &settings);
    if rows.is_empty() {
        bail!("the results have no variant and metric in common; give both the same --only and --where");
    }
    for difference in before.differences(&after) {
        writeln!(out, "The results differ by more than the change ({difference}).")?;
    }
    if let Some(host) = settings.host {
        writeln!(out, "The host, after to before: {}.", HostChange::words(&[host]))?;
    }
    let mut counts = BTreeMap::new();
    for row in &rows {
        *counts.entry(row.verdict as u8).or_insert(0usize) += 1;
    }
    let count = |verdict: Verdict| counts.get(&(verdict as u8)).copied().unwrap_or(0);
    for (verdict, title) in [(Verdict::Worse, "Worse"), (Verdict::Better, "Better"), (Verdict::Unknown, "Too few samples to tell")]
    {
        let of_verdict: Vec<&Row> = rows.iter().filter(|row| row.verdict == verdict).collect();
        if of_verdict.is_empty() {
            continue;
        }
        writeln!(out, "{title}")?;
        for row in of_verdict {
            let p = row.p.map_or(String::new(), |p| format!("  p {p:.3}"));
            let Row { variant, metric, before, after, .. } = row;
            writeln!(out, "  {variant}  {metric}  {} → {}{}{p}", cell(before), cell(after), row.ratio())?;
        }
    }
    let (worse, few) = (count(Verdict::Worse), count(Verdict::Unknown));
    writeln!(
        out,
        "{} metrics compared: {worse} worse, {} better, {few} with too few samples, {} not changed by more than {} %.",
        rows.len(),
        count(Verdict::Better),
        count(Verdict::Same),
        args.threshold
    )?;
    if few > 0 {
        writeln!(out, "Four runs or more of each tell more: --repeats 5.")?;
    }
    if worse > 0 {
        bail!("{worse} of {} metrics are worse by more than {} %", rows.len(), args.threshold);
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::bench::host::HostInfo;
    use crate::bench::report::Params;

    /// A result with these samples of metrics.
    pub fn report(experiment: &str, metrics: &[(&str, &[f64])]) -> Report {
        let mut variant = Variant::new("shared/open", Params::from([("nfs".into(), json!(3))]));
        for (metric, samples) in metrics {
            samples.iter().for_each(|sample| variant.add(metric, *sample));
        }
        let host = HostInfo { cpu: "x".into(), cores: 2, kernel: "6.1".into(), hugepages: false, dpdk: None, tsc_hz: None };
        let (variants, left_out, host_speed) = (vec![variant], vec![], BTreeMap::new());
        Report { experiment: experiment.into(), host, seconds: 1.0, repeats: 5, variants, left_out, host_speed }
    }

    fn verdicts(before: &[(&str, &[f64])], after: &[(&str, &[f64])]) -> Vec<(String, Verdict)> {
        let rows = rows(&report("forward", before), &report("forward", after), &Settings { threshold: 0.03, host: None });
        rows.into_iter().map(|row| (row.metric, row.verdict)).collect()
    }

    const FAST: [f64; 5] = [10.0, 10.1, 10.2, 10.3, 10.4];
    const SLOW: [f64; 5] = [9.0, 9.1, 9.2, 9.3, 9.4];

    #[test]
    fn what_is_far_apart_in_every_run_has_changed_for_better_or_worse() {
        let of = |metric: &str, before: &[f64], after: &[f64]| verdicts(&[(metric, before)], &[(metric, after)])[0].1;
        assert_eq!(of("delivered_pps", &FAST, &SLOW), Verdict::Worse);
        assert_eq!(of("delivered_pps.c1", &SLOW, &FAST), Verdict::Better);
        assert_eq!(of("latency_ns_p99", &FAST, &SLOW), Verdict::Better);
        assert_eq!(of("latency_ns_p99", &SLOW, &FAST), Verdict::Worse);
        for less in ["worst_error_percent", "tcp_starved", "of_optimum", "of_untuned", "mixed_pps", "error_percent"] {
            assert_eq!(of(less, &SLOW, &FAST), Verdict::Worse, "{less}");
        }
        assert_eq!(of("error_percent", &SLOW.map(|error| -error), &[4.0, 4.1, 4.2, 4.3, 4.4]), Verdict::Better, "nearer to 0");
        // Significant, and too small to matter.
        assert_eq!(of("delivered_pps", &FAST, &FAST.map(|sample| sample * 0.975)), Verdict::Same);
        // Large, and not more than the runs scatter.
        assert_eq!(of("delivered_pps", &[5.0, 10.0, 15.0, 9.0, 11.0], &[4.0, 9.0, 14.0, 8.0, 10.0]), Verdict::Same);
        assert_eq!(of("delivered_pps", &FAST[..3], &SLOW), Verdict::Unknown);
        assert_eq!(of("delivered_pps", &FAST[..3], &FAST[..3]), Verdict::Same);
        assert_eq!(verdicts(&[("switches_per_s", &FAST)], &[("switches_per_s", &SLOW)]), [], "nothing is better");
        assert_eq!(verdicts(&[("delivered_pps", &FAST)], &[("latency_ns_p99", &SLOW)]), [], "nothing in common");
    }

    #[test]
    fn what_the_host_explains_has_not_changed() {
        let (mut before, mut after) = (
            report("forward", &[("delivered_pps", &FAST), ("latency_ns_p50", &SLOW)]),
            report("forward", &[("delivered_pps", &SLOW), ("latency_ns_p50", &SLOW)]),
        );
        host::tests::set(&mut before, [10.0; 3], 1.0);
        host::tests::set(&mut after, [10.0, 9.0, 10.0], 1.0);
        let settings = |after: &Report| Settings { threshold: 0.03, host: HostChange::between(&before, after) };
        let verdicts = |after: &Report| rows(&before, after, &settings(after)).iter().map(|row| row.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&after), [Verdict::Same, Verdict::Same]);
        host::tests::set(&mut after, [10.0; 3], 1.0);
        assert_eq!(verdicts(&after), [Verdict::Worse, Verdict::Same]);
    }

    #[test]
    fn a_significant_change_is_as_improbable_as_tables_say() {
        // All of one side are larger: 2 of the 70 and 252 orders are as extreme.
        assert!((p_of(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]) - 2.0 / 70.0).abs() < 1e-9);
        assert!((p_of(&FAST, &SLOW) - 2.0 / 252.0).abs() < 1e-9);
        assert_eq!((p_of(&FAST, &FAST), p_of(&[1.0; 4], &[1.0; 4])), (1.0, 1.0));
        // With ties: of the 6 ways, 2 have as low a sum of ranks, and 2 as high a one.
        assert!((p_of(&[1.0, 1.0], &[1.0, 2.0]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn results_are_compared_and_a_regression_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, report: &Report| {
            let path = folder.path().join(name);
            report.write(&path).unwrap();
            path
        };
        let fast = write("fast.json", &report("forward", &[("delivered_pps", &FAST), ("wasted_pps", &[0.0; 5])]));
        let mut other = report("forward", &[("delivered_pps", &SLOW), ("wasted_pps", &[0.0; 5])]);
        other.host.kernel = "6.18".into();
        let slow = write("slow.json", &other);
        let chain = write("chain.json", &report("chain", &[("delivered_pps", &FAST)]));
        let (broken, missing) = (folder.path().join("broken.json"), folder.path().join("missing.json"));
        std::fs::write(&broken, "{}").unwrap();
        let compare = |files: &[&Path]| {
            let files = files.iter().map(|file| file.to_path_buf()).collect();
            let args = BenchArgs { name: Some("compare".into()), files, threshold: 3.0, ..BenchArgs::default() };
            let mut out = Vec::new();
            let ended = run(&args, &mut out).map_err(|error| error.to_string());
            (ended, String::from_utf8(out).unwrap())
        };
        let (ended, said) = compare(&[&fast, &slow]);
        assert_eq!(ended.unwrap_err(), "1 of 2 metrics are worse by more than 3 %");
        assert!(said.contains("kernel: 6.1, then 6.18"), "{said}");
        assert!(
            said.contains("Worse\n  shared/open nfs 3  delivered_pps  10.2 (10.0–10.4) → 9.20 (9.00–9.40)  × 0.902  p 0.008"),
            "{said}"
        );
        let (ended, said) = compare(&[&slow, &fast]);
        assert!(
            ended.is_ok() && said.contains("2 metrics compared: 0 worse, 1 better, 0 with too few samples, 1 not changed"),
            "{said}"
        );
        for (files, words) in [
            (vec![fast.as_path()], "compare needs two results"),
            (vec![fast.as_path(), chain.as_path()], "one result is of forward, the other of chain"),
            (vec![fast.as_path(), broken.as_path()], "is no result of an experiment"),
            (vec![fast.as_path(), folder.path()], "compare two files, or two folders"),
            (vec![fast.as_path(), missing.as_path()], "cannot read"),
        ] {
            assert!(compare(&files).0.unwrap_err().contains(words), "{words}");
        }
    }
}
