//! Plots of a profile's two curves, each as measured and as promised.

use serde_json::json;
use sluice_slo::curve::Curve;
use sluice_slo::profile::Profile;

use crate::bench::plot;
use crate::bench::report::{Params, Variant};
use crate::bench::table::{Column, Form, Group};

const THROUGHPUT: Group = Group {
    title: "Throughput against ways of the last-level cache",
    keys: &["ways"],
    columns: &[Column::new("throughput_pps", "Mpps", 1e6, 2)],
    plotted: 1,
    form: Form::Series("ways"),
};
const LATENCY: Group = Group {
    title: "95th percentile of latency against load",
    keys: &["load Mpps"],
    columns: &[Column::new("latency_us", "µs", 1.0, 1)],
    plotted: 1,
    form: Form::Series("load Mpps"),
};

/// A picture of both curves; none if both are empty.
pub fn svg(profile: &Profile) -> Option<String> {
    let throughput = variants(&profile.throughput, "ways", 1.0, "throughput_pps", 1.0 - profile.throughput.margin);
    let latency = variants(&profile.latency, "load Mpps", 1e6, "latency_us", 1.0 + profile.latency.margin);
    let title = format!("{}: {}", profile.key.workload, profile.key.traffic);
    plot::svg(&title, &[(&THROUGHPUT, throughput.iter().collect()), (&LATENCY, latency.iter().collect())], &[])
}

/// The points of a curve, as measured and as promised.
fn variants(curve: &Curve, x: &str, unit: f64, metric: &str, promised: f64) -> Vec<Variant> {
    let line = |name: &'static str, times: f64| {
        curve.points.iter().map(move |point| {
            // Enough digits for the axis.
            let at = (point.x / unit * 100.0).round() / 100.0;
            let mut variant = Variant::new(name, Params::from([(x.to_string(), json!(at))]));
            variant.add(metric, point.y * times);
            variant
        })
    };
    line("curve", 1.0).chain(line("promised", promised)).collect()
}

#[cfg(test)]
mod tests {
    use sluice_planner::samples::{KINDS, OnServer, server};

    use super::*;

    #[test]
    fn both_curves_are_drawn_with_what_is_promised() {
        let profile = OnServer { kind: &KINDS[5], way_bytes: server().way_bytes }.profile(&server()).unwrap();
        let picture = svg(&profile).unwrap();
        assert!(picture.contains("Throughput against ways") && picture.contains("latency against load"), "{picture}");
        assert_eq!(picture.matches(">promised<").count(), 2);
    }
}
