//! What the papers claim, and whether a result agrees.
//!
//! Claims and the papers' values are data (`figures.toml`); measured values come from results, and
//! each verdict is computed from both. Plots mark the papers' values, too ([`PaperValue`]).
//!
//! # Terms
//! - *Check*: a measured value, or the ratio of two, against a bound, and against the paper's value
//!   where there is one. Ratios are taken run by run, so that a disturbance of the host affects
//!   both sides; what ran once is set against each run of the other. A run whose ratio is not
//!   finite has no value, and the claim does not hold in it.
//! - *Bound*: from which on a value has the shape that the paper shows.
//! - *Baseline*: what ours is compared with. One worse than the paper's is no better result.

use std::fmt::{self, Display};

use serde::Deserialize;

use crate::bench::report::{LeftOut, Params, Report, Summary, Variant};

/// How far from the paper's value, as a part of it, a value still agrees with it: one of ours on
/// its worse side, a baseline's on either.
const NEAR: f64 = 0.1;
/// What follows a verdict about a model.
pub const MODELLED: &str = " (modelled)";

/// A paper, or what belongs to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    Nfvnice,
    Flurries,
    Unis,
    Resq,
    Platform,
}

impl Paper {
    pub const ALL: [Self; 5] = [Self::Nfvnice, Self::Flurries, Self::Unis, Self::Resq, Self::Platform];

    /// Its word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nfvnice => "nfvnice",
            Self::Flurries => "flurries",
            Self::Unis => "unis",
            Self::Resq => "resq",
            Self::Platform => "platform",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Nfvnice => "NFVnice (SIGCOMM 2017)",
            Self::Flurries => "Flurries (CoNEXT 2016)",
            Self::Unis => "UNiS",
            Self::Resq => "ResQ (NSDI 2018)",
            Self::Platform => "The platform",
        }
    }
}

/// Everything in the data.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
    #[serde(rename = "run")]
    pub runs: Vec<PlannedRun>,
}

impl Known {
    /// Those of this build.
    ///
    /// # Errors
    /// The data is wrong, which a test finds.
    pub fn read() -> anyhow::Result<Self> {
        Ok(toml::from_str(include_str!("figures.toml"))?)
    }

    /// The paper whose figures an experiment measures first.
    pub fn paper_of(&self, experiment: &str) -> Paper {
        let figure = self.figures.iter().find(|figure| figure.experiment.as_deref() == Some(experiment));
        figure.map_or(Paper::Platform, |figure| figure.paper)
    }
}

/// An experiment, in the order in which all are run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedRun {
    pub experiment: String,
    /// How it runs with `--quick`, if it does.
    pub quick: Option<Quick>,
    /// Why it does not.
    pub slow: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// About how long it takes, in seconds.
    pub takes_s: f64,
    pub seconds: f64,
    pub repeats: u32,
    #[serde(default)]
    pub only: Vec<String>,
    #[serde(default, rename = "where")]
    pub given: Vec<String>,
    /// What is repeated, if not all.
    #[serde(default)]
    pub again: Vec<String>,
}

/// A figure, table or section of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub paper: Paper,
    pub name: String,
    pub claim: String,
    pub experiment: Option<String>,
    /// Why no experiment measures it, or why a host may have nothing of what it shows.
    pub missing: Option<String>,
    /// How ours is set up otherwise.
    pub differs: Option<String>,
    /// Metrics of which the report has a table ([`Variant::medians`]).
    #[serde(default)]
    pub shows: Vec<String>,
    #[serde(default, rename = "check")]
    pub checks: Vec<Check>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What is compared, with its unit.
    pub what: String,
    pub variant: String,
    pub metric: String,
    #[serde(default)]
    pub params: Params,
    /// The variant whose value it is divided by.
    pub of: Option<String>,
    /// A metric of the same variant by which each value is divided, before `of`.
    pub per: Option<String>,
    /// The value is divided by this.
    #[serde(default = "one")]
    pub unit: f64,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    /// The paper's value.
    pub paper: Option<f64>,
    /// Whether it is of a baseline.
    #[serde(default)]
    pub baseline: bool,
    /// Whether the value is of a model that gives the same on any host.
    #[serde(default)]
    pub modelled: bool,
    /// Why ours is not as the paper's, where it is not; it says so where that is not known.
    pub why: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// Whether a claim holds here; later ones are worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimVerdict {
    /// As in the paper, or better where it is ours.
    Holds,
    /// On the same side of the bound, but further from the paper's value than [`NEAR`].
    InShape,
    Not,
    /// There is no value.
    Unknown,
}

impl Display for ClaimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::InShape => "holds in shape",
            Self::Not => "does not hold",
            Self::Unknown => "not measured",
        })
    }
}

/// A check, with what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked<'a> {
    pub what: &'a str,
    /// Of the runs that have a value.
    pub ours: Result<Summary, String>,
    /// How many runs have none, and why.
    pub without: Option<String>,
    pub paper: Option<f64>,
    pub bound: String,
    /// The bound's value.
    pub limit: f64,
    pub verdict: ClaimVerdict,
    /// Whether it is of a model, and not of this host.
    pub is_modelled: bool,
    /// Why the verdict is not the best.
    pub why: Option<&'a str>,
}

impl Checked<'_> {
    /// The verdict, which says so where it is of a model.
    pub fn word(&self) -> String {
        let is_of_model = self.is_modelled && self.verdict != ClaimVerdict::Unknown;
        format!("{}{}", self.verdict, if is_of_model { MODELLED } else { "" })
    }

    /// Whether the verdict asks for a reason.
    pub fn needs_reason(&self) -> bool {
        matches!(self.verdict, ClaimVerdict::InShape | ClaimVerdict::Not)
    }
}

impl Check {
    /// The value in a result.
    pub fn against(&self, report: &Report) -> Checked<'_> {
        let all = match self.values(report) {
            Ok(all) => all,
            Err(why) => return self.checked(Err(why), None),
        };
        let finite: Vec<f64> = all.iter().copied().filter(|value| value.is_finite()).collect();
        let why = match (&self.per, &self.of) {
            (Some(per), _) => format!("{per} is zero"),
            (None, Some(of)) => format!("{} of {of} is zero", self.metric),
            (None, None) => format!("{} is not finite", self.metric),
        };
        if finite.is_empty() {
            return self.checked(Err(why), None);
        }
        let without = all.len() - finite.len();
        let has = if without == 1 { "has" } else { "have" };
        let words = (without > 0).then(|| format!("{without} of {} runs {has} no value: {why}", all.len()));
        self.checked(Ok(Summary::of(finite)), words)
    }

    /// Whether a variant is one that it compares.
    #[cfg(test)]
    pub fn reads(&self, variant: &Variant) -> bool {
        let is_named = variant.name == self.variant || self.of.as_ref() == Some(&variant.name);
        is_named && has_all(&variant.params, &self.params)
    }

    /// The same without a result.
    pub fn unmeasured(&self, why: &str) -> Checked<'_> {
        self.checked(Err(why.into()), None)
    }

    fn checked(&self, ours: Result<Summary, String>, without: Option<String>) -> Checked<'_> {
        let verdict = match &ours {
            Ok(_) if without.is_some() => ClaimVerdict::Not,
            Ok(ours) => self.verdict(ours.median),
            Err(_) => ClaimVerdict::Unknown,
        };
        let bound = match (self.at_least, self.at_most) {
            (Some(least), _) => format!("≥ {least}"),
            (None, most) => format!("≤ {}", most.unwrap_or_default()),
        };
        let limit = self.at_least.or(self.at_most).unwrap_or_default();
        let (what, paper, is_modelled, why) = (self.what.as_str(), self.paper, self.modelled, self.why.as_deref());
        Checked { what, ours, without, paper, bound, limit, verdict, is_modelled, why }
    }

    fn verdict(&self, value: f64) -> ClaimVerdict {
        let inside = self.at_least.is_none_or(|least| value >= least) && self.at_most.is_none_or(|most| value <= most);
        // Whether it is not that much less, and not that much more.
        let near = self.paper.map_or([true; 2], |paper| [value >= paper * (1.0 - NEAR), value <= paper * (1.0 + NEAR)]);
        let is_near = match near {
            both if self.baseline => both == [true; 2],
            [not_less, _] if self.at_least.is_some() => not_less,
            [_, not_more] => not_more,
        };
        match (inside, is_near) {
            (true, true) => ClaimVerdict::Holds,
            (true, false) => ClaimVerdict::InShape,
            (false, _) => ClaimVerdict::Not,
        }
    }

    /// The value of each run, or why there is none.
    fn values(&self, report: &Report) -> Result<Vec<f64>, String> {
        let ours = self.samples_of(&self.variant, report)?;
        match &self.of {
            Some(of) => ratios(&ours, &self.samples_of(of, report)?),
            None => Ok(ours.iter().map(|sample| sample / self.unit).collect()),
        }
    }

    /// The samples of a variant, each divided by that of `per` in the same run.
    fn samples_of(&self, variant: &str, report: &Report) -> Result<Vec<f64>, String> {
        let samples = &self.metric_of(variant, &self.metric, report)?.samples;
        match &self.per {
            Some(per) => ratios(samples, &self.metric_of(variant, per, report)?.samples),
            None => Ok(samples.clone()),
        }
    }

    fn metric_of<'a>(&self, variant: &str, metric: &str, report: &'a Report) -> Result<&'a Summary, String> {
        let fits = |name: &str, params: &Params| name == variant && has_all(params, &self.params);
        if let Some(found) = report.variants.iter().find(|Variant { name, params, .. }| fits(name, params)) {
            return found.metrics.get(metric).ok_or_else(|| format!("{variant} has no {metric}"));
        }
        let why = report.left_out.iter().find(|LeftOut { name, params, .. }| fits(name, params)).map(|left| left.why.clone());
        Err(why.unwrap_or_else(|| format!("{variant} was not run with these parameters")))
    }
}

/// Samples run by run, each divided by that of the same run, or by the only one.
///
/// # Errors
/// It is not known which are of the same run.
fn ratios(samples: &[f64], divisors: &[f64]) -> Result<Vec<f64>, String> {
    let runs = samples.len().max(divisors.len());
    if [samples, divisors].iter().any(|side| side.is_empty() || ![1, runs].contains(&side.len())) {
        return Err(format!("{} runs have a value, and {} have one to divide it by", samples.len(), divisors.len()));
    }
    Ok((0..runs).map(|run| samples[run % samples.len()] / divisors[run % divisors.len()]).collect())
}

/// A value that a paper gives for a variant, in the unit of the metric.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperValue {
    metric: String,
    variant: String,
    params: Params,
    value: f64,
}

impl PaperValue {
    /// All values for a result. A ratio of two variants is of what was measured of the second, and
    /// left out without it.
    ///
    /// # Errors
    /// The data is wrong, which a test finds.
    pub fn of(report: &Report) -> anyhow::Result<Vec<Self>> {
        let experiment = Some(report.experiment.as_str());
        let figures = Known::read()?.figures.into_iter().filter(|figure| figure.experiment.as_deref() == experiment);
        let value = |check: Check| {
            let unit = match &check.of {
                Some(of) => check.metric_of(of, &check.metric, report).ok()?.median,
                None => check.unit,
            };
            let Check { metric, variant, params, paper, .. } = check;
            Some(Self { metric, variant, params, value: paper? * unit })
        };
        Ok(figures.flat_map(|figure| figure.checks).filter_map(value).collect())
    }

    /// The value for a metric of a variant, if there is one.
    pub fn find(all: &[Self], variant: &Variant, metric: &str) -> Option<f64> {
        let is_of = |one: &&Self| one.metric == metric && one.variant == variant.name && has_all(&variant.params, &one.params);
        all.iter().find(is_of).map(|one| one.value)
    }
}

/// Whether parameters have all of these values.
fn has_all(params: &Params, wanted: &Params) -> bool {
    wanted.iter().all(|(key, value)| params.get(key).is_some_and(|has| same(has, value)))
}

/// Whether two values of a parameter are the same: 50 is 50.0.
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

impl Figure {
    /// Why a result has nothing of what it shows, where that may be so: as the result says, if it
    /// does.
    pub fn lacking(&self, report: &Report) -> Option<String> {
        let has_any = |variant: &Variant| self.shows.iter().any(|name| !variant.medians(name).is_empty());
        let why = self.missing.as_ref().filter(|_| !report.variants.iter().any(has_any))?;
        let said = report.left_out.iter().find(|left| self.shows.contains(&left.name));
        Some(said.map_or(why, |left| &left.why).clone())
    }

    /// How many of the checks were measured, where that is some and not all.
    pub fn coverage(checked: &[Checked]) -> Option<String> {
        let measured = checked.iter().filter(|one| one.verdict != ClaimVerdict::Unknown).count();
        (measured > 0 && measured < checked.len()).then(|| format!("{measured} of {} checks measured", checked.len()))
    }

    /// The verdict of all its checks: the worst of those that were measured. None without checks.
    pub fn verdict(checked: &[Checked]) -> Option<ClaimVerdict> {
        let measured = checked.iter().map(|one| one.verdict).filter(|verdict| *verdict != ClaimVerdict::Unknown).max();
        measured.or((!checked.is_empty()).then_some(ClaimVerdict::Unknown))
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;
    use sluice_cli::lab::bench::{Given, Repeated};

    use super::*;
    use crate::bench::host::HostInfo;

    /// A result with these samples of one metric, `delivered_pps`.
    pub fn report(experiment: &str, variants: &[(&str, &[f64])]) -> Report {
        let host = HostInfo { cpu: "x".into(), cores: 2, kernel: "6".into(), hugepages: false, dpdk: None, tsc_hz: None };
        let of = |(name, samples): &(&str, &[f64])| {
            let mut variant = Variant::new(name, Params::from([("nfs".into(), json!(3))]));
            samples.iter().for_each(|sample| variant.add("delivered_pps", *sample));
            variant
        };
        let variants = variants.iter().map(of).collect();
        Report {
            experiment: experiment.into(),
            host,
            seconds: 1.0,
            repeats: 2,
            variants,
            left_out: vec![],
            host_speed: Default::default(),
        }
    }

    fn check(at_least: Option<f64>, at_most: Option<f64>, paper: Option<f64>) -> Check {
        Check {
            what: "rate".into(),
            variant: "sluice/other".into(),
            metric: "delivered_pps".into(),
            params: Params::from([("nfs".into(), json!(3.0))]),
            of: Some("default/other".into()),
            per: None,
            unit: 1.0,
            at_least,
            at_most,
            paper,
            baseline: false,
            modelled: false,
            why: None,
        }
    }

    #[test]
    fn a_verdict_follows_from_bound_and_paper() {
        let of = |value: f64, at_least, at_most, paper| check(at_least, at_most, paper).verdict(value);
        assert_eq!(of(1.85, Some(1.2), None, Some(2.0)), ClaimVerdict::Holds);
        assert_eq!(of(9.0, Some(1.2), None, Some(2.0)), ClaimVerdict::Holds, "better than the paper");
        assert_eq!(of(1.7, Some(1.2), None, Some(2.0)), ClaimVerdict::InShape);
        assert_eq!(of(1.1, Some(1.2), None, Some(2.0)), ClaimVerdict::Not);
        assert_eq!(of(1.2, Some(1.2), None, None), ClaimVerdict::Holds);
        assert_eq!(of(10.9, None, Some(30.0), Some(10.0)), ClaimVerdict::Holds);
        assert_eq!(of(20.0, None, Some(30.0), Some(10.0)), ClaimVerdict::InShape);
        assert_eq!(of(31.0, None, Some(30.0), None), ClaimVerdict::Not);
    }

    #[test]
    fn a_baseline_that_is_worse_than_the_papers_is_no_better_result() {
        let of =
            |value: f64, at_least, at_most, paper| Check { baseline: true, ..check(at_least, at_most, Some(paper)) }.verdict(value);
        let all = [ClaimVerdict::Holds, ClaimVerdict::InShape, ClaimVerdict::Not];
        assert_eq!([1.3, 2.44, 1.1].map(|value| of(value, Some(1.2), None, 1.37)), all);
        assert_eq!([0.6, 0.1, 0.95].map(|value| of(value, None, Some(0.9), 0.62)), all);
    }

    #[test]
    fn ratios_are_of_the_same_run() {
        let both = report("chain", &[("default/other", &[1.0, 2.0]), ("sluice/other", &[2.0, 6.0])]);
        let wanted = check(Some(2.0), None, Some(2.5));
        let got = wanted.against(&both);
        assert_eq!(got.ours.clone().unwrap().samples, [2.0, 3.0]);
        assert_eq!((got.verdict, got.bound.as_str()), (ClaimVerdict::Holds, "≥ 2"));
        let alone = Check { of: None, unit: 2.0, ..check(Some(1.0), None, None) };
        assert_eq!(alone.against(&both).ours.unwrap().samples, [1.0, 3.0]);
        // What ran once is set against each run.
        let once = report("chain", &[("default/other", &[2.0]), ("sluice/other", &[2.0, 6.0])]);
        assert_eq!(wanted.against(&once).ours.unwrap().samples, [1.0, 3.0]);
        let uneven = report("chain", &[("default/other", &[1.0; 3]), ("sluice/other", &[2.0; 2])]);
        assert_eq!(wanted.against(&uneven).ours.unwrap_err(), "2 runs have a value, and 3 have one to divide it by");
    }

    #[test]
    fn a_run_without_a_value_is_said_and_the_claim_does_not_hold_in_it() {
        let wanted = check(Some(2.0), None, None);
        let both = report("chain", &[("default/other", &[1.0, 0.0, 0.0]), ("sluice/other", &[2.0, 6.0, 0.0])]);
        let got = wanted.against(&both);
        assert_eq!(got.ours.unwrap().samples, [2.0]);
        assert_eq!(got.without.unwrap(), "2 of 3 runs have no value: delivered_pps of default/other is zero");
        assert_eq!(got.verdict, ClaimVerdict::Not);
        let mut idle = report("affinity", &[("default/other", &[4.0, 8.0]), ("sluice/other", &[2.0, 6.0])]);
        for (variant, per_s) in idle.variants.iter_mut().zip([[4.0, 8.0], [1.0, 0.0]]) {
            per_s.iter().for_each(|per_s| variant.add("requests_per_s", *per_s));
        }
        let per = Check { per: Some("requests_per_s".into()), ..wanted };
        let got = per.against(&idle);
        assert_eq!((got.ours.unwrap().samples, got.verdict), (vec![2.0], ClaimVerdict::Not));
        assert_eq!(got.without.as_deref(), Some("1 of 2 runs has no value: requests_per_s is zero"));
    }

    #[test]
    fn a_value_for_each_request_is_one_where_requests_differ() {
        let mut both = report("affinity", &[("default/other", &[4.0, 8.0]), ("sluice/other", &[2.0, 6.0])]);
        for (variant, per_s) in both.variants.iter_mut().zip([[4.0, 8.0], [1.0, 2.0]]) {
            per_s.iter().for_each(|per_s| variant.add("requests_per_s", *per_s));
        }
        let per = Check { per: Some("requests_per_s".into()), ..check(None, Some(1.0), None) };
        let got = per.against(&both);
        assert_eq!(got.ours.clone().unwrap().samples, [2.0, 3.0]);
        assert_eq!(got.verdict, ClaimVerdict::Not, "fewer, of fewer requests");
        let unknown = Check { per: Some("packets".into()), ..per };
        assert_eq!(unknown.against(&both).ours.unwrap_err(), "sluice/other has no packets");
    }

    #[test]
    fn a_verdict_about_a_model_says_so() {
        let both = report("chain", &[("default/other", &[1.0]), ("sluice/other", &[2.0])]);
        let modelled = Check { modelled: true, ..check(Some(1.2), None, None) };
        assert_eq!(modelled.against(&both).word(), "holds (modelled)");
        assert_eq!(modelled.unmeasured("no result").word(), "not measured");
        assert_eq!(check(Some(1.2), None, None).against(&both).word(), "holds");
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let mut one = report("chain", &[("sluice/other", &[2.0]), ("idle", &[0.0])]);
        one.left_out.push(LeftOut {
            name: "default/other".into(),
            params: Params::from([("nfs".into(), json!(3))]),
            why: "no core".into(),
        });
        let why = |check: &Check| check.against(&one).ours.unwrap_err();
        let wanted = check(Some(1.0), None, None);
        assert_eq!(why(&wanted), "no core");
        assert_eq!(why(&Check { of: Some("other".into()), ..wanted.clone() }), "other was not run with these parameters");
        assert_eq!(why(&Check { of: Some("idle".into()), ..wanted.clone() }), "delivered_pps of idle is zero");
        assert_eq!(why(&Check { metric: "jain".into(), ..wanted.clone() }), "sluice/other has no jain");
        let params = Params::from([("nfs".into(), json!(4))]);
        assert_eq!(why(&Check { params, ..wanted.clone() }), "sluice/other was not run with these parameters");
        assert_eq!(wanted.against(&one).verdict, ClaimVerdict::Unknown);
    }

    #[test]
    fn values_of_papers_are_those_of_their_variants() {
        let values = PaperValue::of(&report("fairness", &[])).unwrap();
        let of = |name: &str, diversity: u32, metric: &str| {
            let variant = Variant::new(name, Params::from([("diversity".into(), json!(diversity)), ("more".into(), json!(1))]));
            PaperValue::find(&values, &variant, metric)
        };
        assert_eq!([of("default/other", 6, "jain"), of("nfvnice/other", 6, "jain")], [Some(0.62), Some(1.0)]);
        let others = [of("default/other", 3, "jain"), of("weights/other", 6, "jain"), of("default/other", 6, "least_pps")];
        assert_eq!(others, [None::<f64>; 3]);
        let light = Variant::new("light", Params::from([("nfs".into(), json!(900))]));
        let values = PaperValue::of(&report("pool-scale", &[])).unwrap();
        assert_eq!(PaperValue::find(&values, &light, "delivered_pps"), Some(8.9e6), "of the metric");
    }

    #[test]
    fn a_papers_ratio_is_of_what_was_measured() {
        let mut chain = report("chain", &[]);
        assert!(PaperValue::of(&chain).unwrap().is_empty(), "without the default there is nothing to be a part of");
        let mut variant = Variant::new("default/other", Params::new());
        variant.add("wasted_pps", 1e6);
        chain.variants.push(variant);
        let values = PaperValue::of(&chain).unwrap();
        assert_eq!(PaperValue::find(&values, &Variant::new("nfvnice/other", Params::new()), "wasted_pps"), Some(3100.0));
    }

    #[test]
    fn a_figure_is_as_good_as_its_worst_check() {
        let of = |verdicts: &[ClaimVerdict]| {
            let checked = verdicts.iter().map(|verdict| Checked {
                what: "",
                ours: Ok(Summary::default()),
                without: None,
                paper: None,
                bound: String::new(),
                limit: 0.0,
                verdict: *verdict,
                is_modelled: false,
                why: None,
            });
            Figure::verdict(&checked.collect::<Vec<_>>())
        };
        assert_eq!(of(&[ClaimVerdict::Holds, ClaimVerdict::Not, ClaimVerdict::InShape]), Some(ClaimVerdict::Not));
        assert_eq!(of(&[ClaimVerdict::Holds, ClaimVerdict::Unknown]), Some(ClaimVerdict::Holds));
        assert_eq!(of(&[ClaimVerdict::Unknown, ClaimVerdict::Unknown]), Some(ClaimVerdict::Unknown));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn no_verdict_is_decided_before_something_is_measured() {
        let known = Known::read().unwrap();
        for check in known.figures.iter().flat_map(|figure| &figure.checks) {
            // Of a value, by way of a result. What is measured is 0 at least, as are ratios.
            let of = |value: f64| {
                let variant = |name: &str, sample: f64| {
                    let mut variant = Variant::new(name, check.params.clone());
                    variant.add(&check.metric, sample);
                    check.per.iter().for_each(|per| variant.add(per, 1.0));
                    variant
                };
                let mut result = report("x", &[]);
                match &check.of {
                    Some(base) => result.variants.extend([variant(base, 2.0), variant(&check.variant, 2.0 * value)]),
                    None => result.variants.push(variant(&check.variant, value * check.unit)),
                }
                check.against(&result).verdict
            };
            let (good, bad) = match (check.at_least, check.at_most) {
                (Some(least), _) => (least.max(check.paper.unwrap_or(least)), least / 2.0),
                (None, most) => (check.paper.filter(|_| check.baseline).unwrap_or(0.0), 2.0 * most.unwrap() + 1.0),
            };
            assert_eq!((of(good), of(bad)), (ClaimVerdict::Holds, ClaimVerdict::Not), "{}", check.what);
        }
    }

    #[test]
    fn the_data_fits_the_experiments() {
        let known = Known::read().unwrap();
        let experiments: Vec<&str> = crate::bench::measuring().map(|experiment| experiment.name).collect();
        for figure in &known.figures {
            let at = format!("{} {}", figure.paper.title(), figure.name);
            let may_lack = figure.missing.is_some() && figure.checks.is_empty() && !figure.shows.is_empty();
            let fits = may_lack || figure.experiment.is_none() == figure.missing.is_some();
            assert!(fits, "{at}: an experiment, or why there is none; what only shows metrics may lack them");
            assert!(figure.experiment.iter().all(|name| experiments.contains(&name.as_str())), "{at}");
            assert!(figure.experiment.is_some() || figure.shows.is_empty(), "{at}");
            assert_ne!(figure.paper, Paper::Platform, "{at}: the platform's experiments need no claim");
            for check in &figure.checks {
                assert!(figure.experiment.is_some(), "{at}");
                assert_eq!(check.at_least.is_some(), check.at_most.is_none(), "{at}, {}: one bound", check.what);
                let inside = |value: f64| check.verdict(value) == ClaimVerdict::Holds;
                assert!(check.paper.is_none_or(inside), "{at}, {}: the paper's own value holds", check.what);
            }
        }
        for run in &known.runs {
            assert_eq!(run.quick.is_none(), run.slow.is_some(), "{}: how it runs with --quick, or why it does not", run.experiment);
        }
        let mut run: Vec<&str> = known.runs.iter().map(|run| run.experiment.as_str()).collect();
        for quick in known.runs.iter().filter_map(|run| run.quick.as_ref()) {
            assert!(quick.given.iter().all(|given| given.parse::<Given>().is_ok()), "{:?}", quick.given);
            let is_value = |again: &String| !again.starts_with('-') && again.parse::<Repeated>().is_ok();
            assert!(quick.again.iter().all(is_value), "{:?}", quick.again);
        }
        let mut all = experiments;
        run.sort_unstable();
        all.sort_unstable();
        assert_eq!(run, all, "each experiment is run once");
        let quick_s: f64 = known.runs.iter().filter_map(|run| run.quick.as_ref()).map(|quick| quick.takes_s).sum();
        assert!(quick_s <= 1450.0, "{quick_s} s");
    }
}
