//! How far a prediction of contention is off, for each NF, and what each NF gains by ways.
//!
//! # Approach
//! An NF at full load shares a server, without classes, with as many instances of one other kind as
//! the cores allow. Its throughput is
//! - *predicted* as prediction-based placement does: from its profile and the references per second
//!   of its neighbours, each alone at full speed, as if none of them ever hit;
//! - *real* by the model of contention ([`sluice_planner::contention`]).
//!
//! The error is how far the prediction is above the real one, in percent, for each other kind of
//! the same set. `median_error_percent` and `worst_error_percent` are without sign, `over_percent`
//! is the most that is promised above the real one. The variant without `nf` has all of a set.
//!
//! `curve` is the throughput by ways, relative to that with all ways.
//!
//! # Limits
//! Below one way a profile is a line to the throughput without any cache, so the prediction is off
//! for NFs that need less than a way, too.
//!
//! # Source
//! ResQ, figure 10 (error of the predictor) and figure 6 (throughput by cache, of all NFs).

use serde_json::{Value, json};
use sluice_planner::contention::{Behaviour, Running, occupancies};
use sluice_planner::samples::{KINDS, OnServer, SampleKind, TRACED, server};
use sluice_slo::placement::ServerShape;
use sluice_slo::profile::Profile;

use crate::bench::lab::{Case, Lab, Miss, Row};
use crate::bench::measure::Sample;
use crate::bench::report::{Params, Variant, median};
use crate::bench::sched::params;
use crate::bench::table::{Column, Form, Group};

pub const ERROR: &str = "predictor";
pub const CURVE: &str = "curve";

pub const ERRORS: Group = Group {
    title: "Error of the predicted throughput beside neighbours at full load",
    keys: &["set", "nf"],
    columns: &[
        Column::new("worst_error_percent", "worst error %", 1.0, 1),
        Column::new("median_error_percent", "median error %", 1.0, 1),
        Column::new("over_percent", "most above %", 1.0, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};
/// Curves of the chosen kinds, and of the traced ones by the law of their flows: a panel of all
/// would have more lines than there are styles.
pub const CHOSEN: Group = Group {
    title: "Throughput by ways of the cache: chosen kinds",
    keys: &["nf"],
    columns: &[Column::new("of_all_ways", "of all ways", 1.0, 2)],
    plotted: 1,
    form: Form::Series("ways"),
};
pub const UNIFORM: Group = Group { title: "Throughput by ways of the cache: traced kinds, uniform flows", ..CHOSEN };
pub const ZIPF: Group = Group { title: "Throughput by ways of the cache: traced kinds, flows by Zipf", ..CHOSEN };

/// Whether a variant is a curve of this set, of kinds whose name ends so.
pub fn is_curve(variant: &Variant, set: &str, kinds: &str) -> bool {
    let ends = |key: &str, end: &str| variant.params.get(key).and_then(Value::as_str).is_some_and(|text| text.ends_with(end));
    variant.name == CURVE && ends("set", set) && ends("nf", kinds)
}

/// The sets of kinds.
fn sets() -> [(&'static str, &'static [SampleKind]); 2] {
    [("chosen", KINDS.as_slice()), ("traced", TRACED.as_slice())]
}

/// A case with the errors of each set, and one with its curves.
pub fn cases() -> Vec<Case> {
    let case =
        |name: &str, set: &'static str, rows: fn(&str, &[SampleKind]) -> Result<Vec<Row>, Miss>, kinds: &'static [SampleKind]| {
            let run = move |_: &Lab| rows(set, kinds);
            Case { name: name.into(), params: of_set(set), run: Box::new(run) }
        };
    sets().into_iter().flat_map(|(set, kinds)| [case(ERROR, set, errors, kinds), case(CURVE, set, curves, kinds)]).collect()
}

fn of_set(set: &str) -> Params {
    params(&[("set", json!(set))])
}

fn of_nf(set: &str, kind: &SampleKind) -> Params {
    params(&[("set", json!(set)), ("nf", json!(kind.name))])
}

/// A competitor that never hits.
struct References {
    per_s: f64,
}

impl Behaviour for References {
    fn throughput_pps(&self, _: f64) -> f64 {
        self.per_s
    }

    fn references_per_packet(&self) -> f64 {
        1.0
    }

    fn misses_per_packet(&self, _: f64) -> f64 {
        1.0
    }

    fn carries_pps(&self, _: f64, _: f64) -> f64 {
        self.per_s
    }
}

/// At full load.
fn full(behaviour: &dyn Behaviour) -> Running<'_> {
    Running { behaviour, load_pps: f64::INFINITY }
}

/// A kind on a server: its behaviour, and its profile.
struct Known<'a> {
    truth: OnServer<'a>,
    profile: Profile,
}

impl<'a> Known<'a> {
    fn of(kind: &'a SampleKind, shape: &ServerShape) -> Result<Self, Miss> {
        let truth = OnServer { kind, way_bytes: shape.way_bytes };
        let profile = truth.profile(shape).map_err(|error| Miss::Failed(anyhow::anyhow!("{}: {error}", kind.name)))?;
        Ok(Self { truth, profile })
    }

    fn cores(&self) -> usize {
        self.truth.kind.nfs.len()
    }

    /// How far its predicted throughput is above the real one, in percent, beside as many of
    /// another kind as fit.
    fn error_percent(&self, other: &Self, shape: &ServerShape) -> f64 {
        let ways = f64::from(shape.ways());
        let neighbours = (shape.cores as usize).saturating_sub(self.cores()) / other.cores();
        let alone = Behaviour::throughput_pps(&other.profile, ways) * Behaviour::references_per_packet(&other.profile);
        let references = References { per_s: neighbours as f64 * alone };
        let held = occupancies(&[full(&self.profile), full(&references)], ways);
        let predicted = Behaviour::throughput_pps(&self.profile, held[0]);
        let mut running = vec![full(&self.truth)];
        running.extend((0..neighbours).map(|_| full(&other.truth)));
        let real = Behaviour::throughput_pps(&self.truth, occupancies(&running, ways)[0]);
        (predicted / real - 1.0) * 100.0
    }
}

fn summary(errors: &[f64]) -> Sample {
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    Sample::from([
        ("median_error_percent".into(), median(&sizes)),
        ("worst_error_percent".into(), sizes.last().copied().unwrap_or(0.0)),
        ("over_percent".into(), errors.iter().copied().fold(0.0, f64::max)),
    ])
}

/// The errors of all kinds together, and of each.
fn errors(set: &str, kinds: &[SampleKind]) -> Result<Vec<Row>, Miss> {
    let shape = server();
    let known = kinds.iter().map(|kind| Known::of(kind, &shape)).collect::<Result<Vec<_>, _>>()?;
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    for one in &known {
        let others = known.iter().filter(|other| other.truth.kind.name != one.truth.kind.name);
        let errors: Vec<f64> = others.map(|other| one.error_percent(other, &shape)).collect();
        rows.push(Row::new(ERROR, &of_nf(set, one.truth.kind), summary(&errors)));
        all.extend(errors);
    }
    rows.insert(0, Row::new(ERROR, &of_set(set), summary(&all)));
    Ok(rows)
}

/// The throughput of each kind by ways.
fn curves(set: &str, kinds: &[SampleKind]) -> Result<Vec<Row>, Miss> {
    let shape = server();
    let mut rows = Vec::new();
    for kind in kinds {
        let truth = OnServer { kind, way_bytes: shape.way_bytes };
        let all = truth.throughput_pps(f64::from(shape.ways()));
        for ways in 0..=shape.ways() {
            let mut of = of_nf(set, kind);
            of.insert("ways".into(), json!(ways));
            rows.push(Row::new(CURVE, &of, Sample::from([("of_all_ways".into(), truth.throughput_pps(f64::from(ways)) / all)])));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lines::STYLES;

    #[test]
    fn prediction_is_further_off_where_cache_is_needed_and_not_above_what_there_is() {
        let rows = errors("chosen", &KINDS).unwrap();
        assert_eq!(rows.len(), 1 + KINDS.len());
        let of =
            |nf: &str, metric: &str| rows.iter().find(|row| row.params.get("nf") == Some(&json!(nf))).unwrap().get(metric).unwrap();
        assert!(of("ipsec", "worst_error_percent") < 10.0, "{rows:#?}");
        assert!(of("lpm", "worst_error_percent") > of("l2-forward", "worst_error_percent"), "{rows:#?}");
        // Neighbours have at most the references that they have alone, and some of them hit.
        assert!(rows[0].get("over_percent").unwrap() < 5.0, "{rows:#?}");
    }

    #[test]
    fn curves_end_at_all_ways() {
        let rows = curves("chosen", &KINDS[5..6]).unwrap();
        let parts: Vec<f64> = rows.iter().filter_map(|row| row.get("of_all_ways")).collect();
        assert_eq!((rows.len(), parts.last()), (19, Some(&1.0)));
        assert!(parts.is_sorted() && parts[0] < 0.9, "{parts:?}");
        assert_eq!(rows[3].params["ways"], 3);
    }

    #[test]
    fn each_curve_is_in_one_panel_and_unlike_the_others_there() {
        let all: Vec<Variant> = sets()
            .into_iter()
            .flat_map(|(set, kinds)| curves(set, kinds).unwrap())
            .map(|row| Variant::new(&row.name, row.params))
            .collect();
        let panels = [("chosen", ""), ("traced", "uniform"), ("traced", "zipf 1.1")];
        let of = |variant: &Variant| panels.iter().filter(|(set, kinds)| is_curve(variant, set, kinds)).count();
        assert!(all.iter().all(|variant| of(variant) == 1));
        for (set, kinds) in panels {
            let mut names: Vec<&str> =
                all.iter().filter(|one| is_curve(one, set, kinds)).filter_map(|one| one.params["nf"].as_str()).collect();
            names.dedup();
            assert!((1..=STYLES).contains(&names.len()), "{set} {kinds}: {names:?}");
        }
    }

    #[test]
    fn a_summary_is_without_signs_but_for_what_is_above() {
        let got = summary(&[-8.0, 2.0, -4.0]);
        let of = |metric: &str| got[metric];
        assert_eq!((of("median_error_percent"), of("worst_error_percent"), of("over_percent")), (4.0, 8.0, 2.0));
    }
}
