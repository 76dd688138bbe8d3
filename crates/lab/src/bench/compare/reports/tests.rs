//! Two reports that are drawn from known distributions, and folders.

use std::f64::consts::TAU;

use serde_json::json;
use sluice_slo::random::Random;

use super::*;
use crate::bench::compare::host::tests::set;
use crate::bench::compare::tests::report;
use crate::bench::report::Params;

const EXPERIMENTS: usize = 12;
const MODES: [&str; 4] = ["inline", "fused", "poll", "isolated"];
/// Standard deviation of a speed of the host, as it is sampled.
const OF_SPEEDS: f64 = 0.005;

/// What two reports of the same experiments differ by. Deviations are of logarithms.
struct Drawn {
    variants: usize,
    /// Modes of the variants, one after another; of one, they do not say it.
    modes: usize,
    runs: usize,
    /// Of a run.
    spread: f64,
    /// Of an experiment, in what no speed of the host shows.
    between: f64,
    /// Of a mode of an experiment, in the same.
    apart: f64,
    /// Of the host's speed, from one experiment to the next.
    drift: f64,
    /// By what the host is faster in all experiments.
    faster: f64,
    /// What the build makes of the rate of a variant, by experiment and variant.
    build: fn(usize, usize) -> f64,
}

const QUIET: Drawn =
    Drawn { variants: 20, modes: 1, runs: 3, spread: 0.02, between: 0.01, apart: 0.0, drift: 0.0, faster: 1.0, build: |_, _| 1.0 };
/// The same with five variants of each mode.
const OF_MODES: Drawn = Drawn { modes: 4, apart: 0.01, ..QUIET };
/// Five variants of one mode have half the rate.
const HALVED: Drawn = Drawn { build: |experiment, variant| if experiment == 5 && variant >= 15 { 0.5 } else { 1.0 }, ..OF_MODES };

/// A normal number (G. E. P. Box and M. E. Muller, A Note on the Generation of Random Normal
/// Deviates, 1958).
fn normal(random: &mut Random) -> f64 {
    let (one, other) = (1.0 - random.part(), random.part());
    (-2.0 * one.ln()).sqrt() * (TAU * other).cos()
}

impl Drawn {
    /// The same numbers for the same seed. A quarter of the experiments has given rates, which do
    /// not follow the host.
    fn reports(&self, seed: u64) -> [Vec<Report>; 2] {
        let mut random = Random::new(seed);
        let mut both = [Vec::new(), Vec::new()];
        for experiment in 0..EXPERIMENTS {
            let host = self.faster.ln() + self.drift * normal(&mut random);
            let follows = if experiment % 4 == 0 { 0.0 } else { host };
            let shift = follows + self.between * normal(&mut random);
            let mut of_mode = || if self.modes > 1 { self.apart * normal(&mut random) } else { 0.0 };
            let of_modes: Vec<f64> = (0..self.modes).map(|_| of_mode()).collect();
            for (reports, after) in both.iter_mut().zip([0.0, 1.0]) {
                let mut result = report(&format!("e{experiment}"), &[]);
                let variants = (0..self.variants).map(|variant| {
                    let mut one = Variant::new("sluice", Params::from([("nfs".into(), json!(variant))]));
                    let mode = variant * self.modes / self.variants;
                    if self.modes > 1 {
                        one.params.insert("mode".into(), json!(MODES[mode]));
                    }
                    for _ in 0..self.runs {
                        let moved = after * (shift + of_modes[mode] + (self.build)(experiment, variant).ln());
                        let rate = 1e6 * (variant + 1) as f64 * (moved + self.spread * normal(&mut random)).exp();
                        one.add("delivered_pps", rate);
                        one.add("nf_ns_per_packet", 1e9 / rate);
                        one.add("of_default", (self.spread * normal(&mut random)).exp());
                        if experiment < 2 {
                            one.add("setup_ns_p50", 1e9 / rate);
                        }
                    }
                    one
                });
                result.variants = variants.collect();
                let speeds = [(); 3].map(|()| (after * host + OF_SPEEDS * normal(&mut random)).exp());
                set(&mut result, speeds, 1.0);
                reports.push(result);
            }
        }
        both
    }

    /// What is worse, most improbable first.
    fn worse(&self, seed: u64) -> Vec<String> {
        let [before, after] = self.reports(seed);
        let compared: Vec<Compared> = before.iter().zip(&after).flat_map(|(was, is)| metrics(was, is)).collect();
        let tests = kinds_of_tests(&compared);
        let changed = tests.each_ref().map(|kind| changed(kind, 0.03)).concat();
        let worse = changed.into_iter().filter(|(one, _)| !one.is_improved());
        worse.map(|(one, _)| format!("{} {}", one.what, one.metric)).collect()
    }
}

/// In how many of 200 draws something is worse.
fn alarms(drawn: &Drawn) -> usize {
    (1..=200).filter(|seed| !drawn.worse(*seed).is_empty()).count()
}

#[test]
fn two_runs_of_one_build_are_within_noise() {
    // A quick report, on a quiet and on an unsteady host, and one whose runs scatter less than its
    // experiments do.
    let quick = Drawn { runs: 1, variants: 10, ..QUIET };
    assert!(alarms(&quick) <= 10, "{}", alarms(&quick));
    let unsteady = Drawn { drift: 0.1, between: 0.03, spread: 0.04, ..quick };
    assert!(alarms(&unsteady) <= 10, "{}", alarms(&unsteady));
    let apart = Drawn { between: 0.03, spread: 0.002, ..QUIET };
    assert!(alarms(&apart) <= 10, "{}", alarms(&apart));
}

#[test]
fn modes_of_one_build_are_within_noise() {
    let quick = Drawn { runs: 1, ..OF_MODES };
    assert!(alarms(&quick) <= 10, "{}", alarms(&quick));
    let unsteady = Drawn { drift: 0.1, between: 0.03, apart: 0.03, spread: 0.04, ..quick };
    assert!(alarms(&unsteady) <= 10, "{}", alarms(&unsteady));
    let apart = Drawn { between: 0.03, apart: 0.03, spread: 0.002, ..OF_MODES };
    assert!(alarms(&apart) <= 10, "{}", alarms(&apart));
}

#[test]
fn a_mode_that_is_halved_is_found() {
    let quick = Drawn { runs: 1, ..HALVED };
    let unsteady = Drawn { runs: 1, drift: 0.1, between: 0.03, apart: 0.03, spread: 0.04, ..HALVED };
    for (drawn, seed) in [HALVED, quick, unsteady].iter().flat_map(|drawn| (1..=20).map(move |seed| (drawn, seed))) {
        let worse = drawn.worse(seed);
        assert!(worse.contains(&"e5, all of mode isolated delivered_pps".to_string()), "{seed}: {worse:?}");
        // Beside it, the others are better, and have not changed by themselves.
        let mut groups = worse.iter().filter(|one| one.contains("all of"));
        assert!(groups.all(|one| one.starts_with("e5, all of mode isolated ")), "{seed}: {worse:?}");
    }
}

#[test]
fn groups_are_of_what_variants_share() {
    let mut before = report("workflow", &[]);
    before.variants.clear();
    for (name, nfs) in ["linux/other", "linux/rr100", "ideal/other"].iter().flat_map(|name| [1, 3, 10].map(|nfs| (*name, nfs))) {
        let mut one = Variant::new(name, Params::from([("nfs".into(), json!(nfs)), ("run".into(), json!("isolated"))]));
        one.add("delivered_pps", 1.0);
        before.variants.push(one);
    }
    let mut after = before.clone();
    for one in &mut after.variants[..3] {
        one.metrics.insert("delivered_pps".into(), Summary::of(vec![0.5]));
    }
    let compared = metrics(&before, &after);
    let groups: Vec<(&str, usize)> = Group::all(&compared[0]).iter().map(|group| (group.value, group.size)).collect();
    // Each once, and none of `run`, which all have.
    let names = [("ideal/other", 3usize), ("linux/other", 3), ("linux/rr100", 3), ("linux/…", 6)];
    let others = [("nfs 1", 3), ("nfs 10", 3), ("nfs 3", 3), ("…/other", 6)];
    assert_eq!(groups, [names, others].concat());
    let tests = tests_of_groups(&compared);
    let changed: Vec<&str> = changed(&tests, 0.03).into_iter().map(|(one, _)| one.what.as_str()).collect();
    assert_eq!(changed, ["workflow, all of linux/other"]);
}

#[test]
fn an_error_of_means_is_welchs_and_few_scatter_as_the_others_at_least() {
    let close = |(error, freedom): (f64, f64), wanted: (f64, f64)| {
        assert!((error - wanted.0).abs() < 1e-9 && (freedom - wanted.1).abs() < 1e-9, "{error} {freedom}");
    };
    // Variances of 4 and 1: 4 / 3 + 1 / 5 together.
    let (wide, others) = ([-2.0, 0.0, 2.0], [-1.0, -1.0, 0.0, 1.0, 1.0]);
    close(error_of_means(&wide, &others), ((23.0f64 / 15.0).sqrt(), (23.0f64 / 15.0).powi(2) / (8.0 / 9.0 + 0.01)));
    close(error_of_means(&[0.0; 3], &others), ((8.0f64 / 15.0).sqrt(), 4.0));
}

#[test]
fn a_host_that_is_slower_in_all_is_no_regression() {
    let slower = Drawn { faster: 0.9, ..QUIET };
    assert!((1..=20).all(|seed| slower.worse(seed).is_empty()));
    // Nor is it an improvement.
    let [before, after] = slower.reports(1);
    let compared: Vec<Compared> = before.iter().zip(&after).flat_map(|(was, is)| metrics(was, is)).collect();
    assert_eq!(changed(&tests_of_experiments(&compared), 0.03), []);
}

#[test]
fn a_regression_of_an_experiment_is_found_where_the_host_is_the_same() {
    let one = Drawn { build: |experiment, _| if experiment == 5 { 0.9 } else { 1.0 }, ..QUIET };
    for seed in 1..=20 {
        let worse = one.worse(seed);
        assert_eq!(worse.iter().filter(|one| one.starts_with("e5 ")).count(), 2, "{seed}: {worse:?}");
    }
}

#[test]
fn a_regression_of_all_experiments_is_found_where_the_host_is_the_same() {
    let all = Drawn { build: |_, _| 0.9, ..QUIET };
    for seed in 1..=20 {
        let worse = all.worse(seed);
        assert!(worse.contains(&"all experiments delivered_pps".to_string()), "{seed}: {worse:?}");
    }
    // Where nothing is known of the host, it may be the host.
    let [mut before, after] = all.reports(1);
    before[0].host_speed.clear();
    let compared: Vec<Compared> = before.iter().zip(&after).flat_map(|(was, is)| metrics(was, is)).collect();
    assert!(!tests_of_experiments(&compared).iter().any(|one| one.what == "all experiments" && one.metric == "delivered_pps"));
}

#[test]
fn a_regression_of_one_variant_is_found() {
    let one = Drawn { runs: 5, build: |experiment, variant| if (experiment, variant) == (3, 7) { 0.9 } else { 1.0 }, ..QUIET };
    let found = (1..=20).filter(|seed| one.worse(*seed).iter().any(|one| one.starts_with("e3, sluice nfs 7 "))).count();
    assert!(found >= 10, "{found}");
    // A single run of it may be off by as much.
    assert!((1..=20).all(|seed| Drawn { runs: 1, ..one }.worse(seed).is_empty()));
}

#[test]
fn a_variant_that_is_far_off_where_others_are_too_is_noise() {
    // A tenth of the variants are three times as fast or as slow in the second report.
    let unsteady = Drawn {
        build: |experiment, variant| match (experiment * 7 + variant) % 20 {
            0 => 3.0,
            10 => 1.0 / 3.0,
            _ => 1.0,
        },
        ..QUIET
    };
    assert!((1..=20).all(|seed| unsteady.worse(seed).is_empty()));
}

#[test]
fn a_variant_that_alone_follows_the_host_is_no_regression() {
    // The rates of the other variants are given, and one has only what the host gives it.
    let slower = |host: f64| {
        let one = Drawn { build: |experiment, variant| if (experiment, variant) == (4, 7) { 0.3 } else { 1.0 }, ..QUIET };
        let [before, mut after] = one.reports(1);
        set(&mut after[4], [1.0, 1.0, host], 1.0);
        let compared: Vec<Compared> = before.iter().zip(&after).flat_map(|(was, is)| metrics(was, is)).collect();
        changed(&tests_of_variants(&compared), 0.03).len()
    };
    assert_eq!(slower(0.25), 0);
    assert!(slower(1.0) > 0 && slower(0.8) > 0, "it explains a part");
}

#[test]
fn a_variant_whose_own_runs_scatter_is_noise() {
    let [mut before, mut after] = QUIET.reports(1);
    let set = |reports: &mut Vec<Report>, runs: [f64; 3]| {
        let metrics = &mut reports[3].variants[7].metrics;
        metrics.insert("delivered_pps".into(), Summary::of(runs.to_vec()));
    };
    let worse = |before: &[Report], after: &[Report]| {
        let compared: Vec<Compared> = before.iter().zip(after).flat_map(|(was, is)| metrics(was, is)).collect();
        changed(&tests_of_variants(&compared), 0.03).len()
    };
    set(&mut before, [8e6, 8.1e6, 7.9e6]);
    set(&mut after, [7.7e6, 2e6, 2.1e6]);
    assert_eq!(worse(&before, &after), 0);
    set(&mut after, [2.2e6, 2e6, 2.1e6]);
    assert_eq!(worse(&before, &after), 1);
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
    let compare = |a: &Path, b: &Path| {
        let mut out = Vec::new();
        let ended = run(a, b, 3.0, &mut out).map_err(|error| error.to_string());
        (ended, String::from_utf8(out).unwrap())
    };
    let rates = |experiment: &str, factor: f64| {
        let mut result = report(experiment, &[]);
        for nfs in 1..=8 {
            let mut one = Variant::new("sluice", Params::from([("nfs".into(), json!(nfs))]));
            // The last two have one run, the others two.
            for _ in 0..if nfs < 7 { 2 } else { 1 } {
                one.add("delivered_pps", factor * f64::from(nfs));
            }
            result.variants.push(one);
        }
        result
    };
    let before = folder("before", &[rates("chain", 1.0), rates("forward", 1.0)]);
    let after = folder("after", &[rates("chain", 0.5), rates("dynamic", 1.0)]);
    let empty = folder("empty", &[]);
    let (ended, said) = compare(&before, &after);
    assert_eq!(ended.unwrap_err(), "1 of 1 are worse by more than 3 % and than noise");
    assert!(said.starts_with("Only before: forward.\nOnly after: dynamic.\n1 of 1 results do not say how fast"), "{said}");
    assert!(said.contains("Worse\n  chain  delivered_pps  × 0.500, noise ± 0.0 % (8 variants), p < 0.0001"), "{said}");
    let (ended, said) = compare(&before, &before);
    let same = "2 experiments, 2 metrics, 0 groups and 0 single variants tested: 0 worse, 0 better, 2 within noise";
    assert!(ended.is_ok() && said.contains(same), "{said}");
    let (ended, said) = compare(&after, &before);
    assert!(ended.is_ok() && said.contains("0 groups and 0 single variants tested: 0 worse, 1 better"), "{said}");
    assert!(compare(&before, &empty).0.unwrap_err().contains("has no result"));

    // All ratios have one base, so that they change together says nothing.
    let with_ratios = |factor: f64| {
        let mut result = rates("chain", 1.0);
        result.variants.iter_mut().for_each(|variant| variant.add("of_ideal", factor));
        result
    };
    let (was, is) = (folder("ratios", &[with_ratios(1.0)]), folder("lower", &[with_ratios(0.5)]));
    let (ended, said) = compare(&was, &is);
    assert!(ended.is_ok() && said.contains("1 metrics, 0 groups and 0 single variants tested: 0 worse"), "{said}");

    // A rate that is 0 in several runs of half of the variants, and a variant that is missing, are
    // no noise.
    let stalled = |runs: &[usize]| {
        let mut stalled = rates("chain", 1.0);
        for (variant, runs) in stalled.variants.iter_mut().skip(1).zip(runs) {
            variant.metrics.insert("delivered_pps".into(), Summary::of(vec![0.0; *runs]));
        }
        stalled.variants.pop();
        compare(&before, &folder(&format!("stalled-{}", runs.iter().sum::<usize>()), &[stalled]))
    };
    let (ended, said) = stalled(&[2, 2, 1, 1]);
    assert_eq!(ended.unwrap_err(), "1 rates or variants are gone", "{said}");
    assert!(said.contains("Worse\n  chain, sluice nfs 8: it is not there any more\n"), "{said}");
    let (ended, said) = stalled(&[2, 2, 2, 1]);
    assert_eq!(ended.unwrap_err(), "4 rates or variants are gone", "{said}");
    assert!(said.contains("  chain, sluice nfs 3  delivered_pps: it was 3.0000e0 and is 0\n"), "{said}");

    let [was, is] = Drawn { build: |experiment, _| if experiment == 5 { 0.9 } else { 1.0 }, ..QUIET }.reports(1);
    let (was, is) = (folder("was", &was), folder("is", &is));
    let (ended, said) = compare(&was, &is);
    assert!(ended.unwrap_err().contains("are worse by more than 3 % and than noise"), "{said}");
    assert!(said.starts_with("The host, after to before, in the middle of 12 experiments: arithmetic × "), "{said}");
    assert!(said.contains("Noise of an experiment, in the middle: rates ± "), "{said}");
}
