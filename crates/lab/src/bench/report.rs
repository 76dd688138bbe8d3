//! The format of results, the same for all experiments.
//!
//! `{"experiment", "host": {cpu, cores, kernel, hugepages, dpdk}, "seconds", "repeats", "variants":
//! [{"name", "params": {…}, "metrics": {NAME: {"median", "min", "max", "samples": […]}}}],
//! "left_out": [{"name", "params", "why"}], "host_speed": {NAME: {"median", "min", "max",
//! "samples": […]}}}`. Names of metrics end in their unit, or in `.NF` or `.REASON` after it.
//! `drop_pps.REASON` has a sample only for runs with such a drop. Older results have no
//! `host_speed`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bench::host::HostInfo;

/// Params by name: numbers where a figure has them on its x axis.
pub type Params = BTreeMap<String, Value>;

#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
pub struct Summary {
    /// The middle sample; for an even number, the mean of the middle two.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// In order of measurement.
    pub samples: Vec<f64>,
}

impl Summary {
    /// Summarizes samples; all 0 if there are none.
    pub fn of(samples: Vec<f64>) -> Self {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        Self {
            median: median(&sorted),
            min: sorted.first().copied().unwrap_or(0.0),
            max: sorted.last().copied().unwrap_or(0.0),
            samples,
        }
    }

    pub fn push(&mut self, sample: f64) {
        let mut samples = std::mem::take(&mut self.samples);
        samples.push(sample);
        *self = Self::of(samples);
    }
}

/// The median of sorted samples; 0 of none.
pub fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    match n {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// A quantile of samples; none without any.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len().saturating_sub(1) as f64 * q).round() as usize).copied()
}

/// One way of running the experiment, with its measurements.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
pub struct Variant {
    /// The mode and, where it varies, the scheduler or loop.
    pub name: String,
    pub params: Params,
    pub metrics: BTreeMap<String, Summary>,
}

impl Variant {
    pub fn new(name: &str, params: Params) -> Self {
        Self { name: name.into(), params, metrics: BTreeMap::new() }
    }

    /// Adds a sample; ignores one that is not finite (a rate over no time).
    pub fn add(&mut self, metric: &str, sample: f64) {
        if sample.is_finite() {
            self.metrics.entry(metric.into()).or_default().push(sample);
        }
    }

    /// The median of a metric, if it was measured.
    pub fn median(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric).map(|m| m.median)
    }

    /// The same as a list; of a name that ends in `*`, of all metrics that begin so, by name.
    pub fn medians(&self, name: &str) -> Vec<f64> {
        match name.strip_suffix('*') {
            Some(start) => self.metrics.iter().filter(|(metric, _)| metric.starts_with(start)).map(|(_, m)| m.median).collect(),
            None => self.median(name).into_iter().collect(),
        }
    }

    /// Name and params in one line.
    pub fn label(&self, keys: &[&str]) -> String {
        let mut out = self.name.clone();
        for key in keys {
            match self.params.get(*key) {
                Some(Value::String(text)) => out.push_str(&format!(" {key} {text}")),
                Some(value) => out.push_str(&format!(" {key} {value}")),
                None => {}
            }
        }
        out
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct LeftOut {
    pub name: String,
    pub params: Params,
    pub why: String,
}

/// How the reason begins where a variant failed.
pub const FAILED: &str = "failed: ";

impl LeftOut {
    pub fn has_failed(&self) -> bool {
        self.why.starts_with(FAILED)
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Report {
    pub experiment: String,
    pub host: HostInfo,
    /// Seconds of each run.
    pub seconds: f64,
    /// Runs of each variant.
    pub repeats: u32,
    pub variants: Vec<Variant>,
    pub left_out: Vec<LeftOut>,
    /// How fast the host was meanwhile ([`host_speed`](crate::bench::host_speed)), by name.
    #[serde(default)]
    pub host_speed: BTreeMap<String, Summary>,
}

impl Report {
    /// Reads one from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no result.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let expected = || format!("{} is no result of an experiment; `sluice bench NAME --json FILE` writes one", path.display());
        serde_json::from_str(&text).with_context(expected)
    }

    /// What two results differ in besides their measurements.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let (a, b) = (&self.host, &after.host);
        let pairs = [
            ("processor", a.cpu.clone(), b.cpu.clone()),
            ("cores", a.cores.to_string(), b.cores.to_string()),
            ("kernel", a.kernel.clone(), b.kernel.clone()),
            ("hugepages", a.hugepages.to_string(), b.hugepages.to_string()),
            ("seconds of a run", self.seconds.to_string(), after.seconds.to_string()),
        ];
        pairs.into_iter().filter(|(_, a, b)| a != b).map(|(what, a, b)| format!("{what}: {a}, then {b}")).collect()
    }

    /// Writes it as JSON with a line for each variant: the file is small, and two are easy to
    /// compare.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let Self { experiment, host, seconds, repeats, variants, left_out, host_speed } = self;
        let text = format!(
            "{{\n\"experiment\":{},\n\"host\":{},\n\"seconds\":{},\n\"repeats\":{repeats},\n\"variants\":[\n{}\n],\n\"left_out\":[\n{}\n],\n\"host_speed\":{}\n}}\n",
            serde_json::to_string(experiment)?,
            serde_json::to_string(host)?,
            serde_json::to_string(seconds)?,
            lines(variants)?,
            lines(left_out)?,
            serde_json::to_string(host_speed)?,
        );
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Each as JSON in a line.
fn lines<T: Serialize>(all: &[T]) -> serde_json::Result<String> {
    Ok(all.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?.join(",\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn medians_are_those_of_the_book() {
        assert_eq!(Summary::of(vec![3.0, 1.0, 2.0]), Summary { median: 2.0, min: 1.0, max: 3.0, samples: vec![3.0, 1.0, 2.0] });
        assert_eq!(Summary::of(vec![4.0, 1.0, 2.0, 10.0]).median, 3.0);
        assert_eq!(Summary::of(vec![]), Summary::default());
        let mut one = Summary::default();
        one.push(5.0);
        one.push(-1.0);
        assert_eq!((one.median, one.min, one.max), (2.0, -1.0, 5.0));
        assert_eq!([0.0, 0.5, 0.99].map(|q| quantile(&[9.0, 7.0, 8.0], q)), [Some(7.0), Some(8.0), Some(9.0)]);
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn what_is_no_number_is_no_measurement() {
        let mut variant = Variant::new("poll/open", Params::new());
        variant.add("delivered_pps", f64::NAN);
        variant.add("delivered_pps", f64::INFINITY);
        assert_eq!(variant.metrics, BTreeMap::new());
        assert_eq!(variant.median("delivered_pps"), None);
    }

    #[test]
    fn the_form_is_the_one_that_readers_know() {
        let mut variant = Variant::new("shared/open", Params::from([("nfs".into(), json!(3)), ("loop".into(), json!("open"))]));
        variant.add("delivered_pps", 2.0);
        variant.add("delivered_pps", 1.0);
        let report = Report {
            experiment: "forward".into(),
            host: HostInfo { cpu: "x".into(), cores: 2, kernel: "6.1".into(), hugepages: false, dpdk: None, tsc_hz: None },
            seconds: 1.0,
            repeats: 2,
            variants: vec![variant.clone()],
            left_out: vec![LeftOut { name: "poll/open".into(), params: Params::new(), why: "no core".into() }],
            host_speed: BTreeMap::from([("spin_per_s".into(), Summary::of(vec![4.0]))]),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        report.write(&path).unwrap();
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let want = json!({
            "experiment": "forward",
            "host": {"cpu": "x", "cores": 2, "kernel": "6.1", "hugepages": false, "dpdk": null, "tsc_hz": null},
            "seconds": 1.0, "repeats": 2,
            "variants": [{"name": "shared/open", "params": {"nfs": 3, "loop": "open"},
                "metrics": {"delivered_pps": {"median": 1.5, "min": 1.0, "max": 2.0, "samples": [2.0, 1.0]}}}],
            "left_out": [{"name": "poll/open", "params": {}, "why": "no core"}],
            "host_speed": {"spin_per_s": {"median": 4.0, "min": 4.0, "max": 4.0, "samples": [4.0]}},
        });
        assert_eq!(json, want);
        let mut older = json;
        older.as_object_mut().unwrap().remove("host_speed");
        std::fs::write(&path, older.to_string()).unwrap();
        assert_eq!(Report::read(&path).unwrap(), Report { host_speed: BTreeMap::new(), ..report });
        assert_eq!(variant.label(&["nfs", "loop", "ring"]), "shared/open nfs 3 loop open");
    }
}
