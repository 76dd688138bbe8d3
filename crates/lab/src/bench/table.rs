//! Tables of a result for people: one row per variant, medians with their spread.

use crate::bench::report::{Summary, Variant};

/// A column: a metric and its format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Column {
    pub metric: &'static str,
    /// With the unit.
    pub head: &'static str,
    /// The metric is divided by this.
    pub unit: f64,
    /// Digits after the point.
    pub digits: usize,
}

impl Column {
    pub const fn new(metric: &'static str, head: &'static str, unit: f64, digits: usize) -> Self {
        Self { metric, head, unit, digits }
    }

    pub fn number(&self, value: f64) -> String {
        format!("{:.*}", self.digits, value / self.unit)
    }

    /// The ideal, which plots mark: 1 for ratios to an ideal or an optimum (by the metric's name),
    /// and nothing for other metrics.
    pub fn ideal(&self) -> Option<f64> {
        ["of_ideal", "of_optimum"].iter().any(|of| self.metric.starts_with(of)).then_some(1.0)
    }

    /// Median, smallest and largest; the median alone where they are the same.
    pub fn cell(&self, summary: &Summary) -> String {
        let [median, min, max] = [summary.median, summary.min, summary.max].map(|v| self.number(v));
        if min == max { median } else { format!("{median} ({min}–{max})") }
    }
}

/// Variants in one table and one part of the plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    pub title: &'static str,
    /// Params that distinguish its rows.
    pub keys: &'static [&'static str],
    pub columns: &'static [Column],
    /// Number of plotted columns, from the first on.
    pub plotted: usize,
    pub form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A table, and bars.
    Bars,
    /// A table, and lines over this numeric param.
    Lines(&'static str),
    /// Lines alone: too many rows for a table.
    Series(&'static str),
    /// The same with a logarithmic axis of values.
    LogSeries(&'static str),
}

/// A table, or nothing if none of its variants ran.
pub fn table(group: &Group, variants: &[&Variant]) -> String {
    if matches!(group.form, Form::Series(_) | Form::LogSeries(_)) {
        return String::new();
    }
    let columns: Vec<&Column> =
        group.columns.iter().filter(|c| variants.iter().any(|v| v.metrics.contains_key(c.metric))).collect();
    if columns.is_empty() {
        return String::new();
    }
    let mut rows = vec![std::iter::once(String::new()).chain(columns.iter().map(|c| c.head.to_string())).collect::<Vec<_>>()];
    for variant in variants {
        let cell = |c: &&Column| variant.metrics.get(c.metric).map_or("–".into(), |m| c.cell(m));
        rows.push(std::iter::once(variant.label(group.keys)).chain(columns.iter().map(cell)).collect());
    }
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
    let mut out = format!("{}\n", group.title);
    for row in &rows {
        let mut line = format!("  {:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::report::Params;

    const GROUP: Group = Group {
        title: "Rates",
        keys: &["nfs"],
        columns: &[
            Column::new("delivered_pps", "Mpps", 1e6, 2),
            Column::new("never_pps", "never", 1.0, 0),
            Column::new("latency_ns_p50", "µs", 1e3, 1),
        ],
        plotted: 1,
        form: Form::Bars,
    };

    #[test]
    fn a_table_has_the_columns_that_were_measured() {
        let mut one = Variant::new("poll/open", Params::from([("nfs".into(), json!(1))]));
        one.add("delivered_pps", 25e6);
        one.add("delivered_pps", 26e6);
        one.add("delivered_pps", 24.5e6);
        let mut two = Variant::new("shared/open", Params::from([("nfs".into(), json!(3))]));
        two.add("delivered_pps", 15e6);
        two.add("latency_ns_p50", 1500.0);
        let want = "\
Rates
                                    Mpps   µs
  poll/open nfs 1    25.00 (24.50–26.00)    –
  shared/open nfs 3                15.00  1.5
";
        assert_eq!(table(&GROUP, &[&one, &two]), want);
        assert_eq!(table(&Group { form: Form::Series("nfs"), ..GROUP }, &[&one, &two]), "", "a series is for plots");
    }

    #[test]
    fn only_ratios_to_an_ideal_have_one() {
        let of = |metric| Column::new(metric, "", 1.0, 2).ideal();
        assert_eq!(["of_ideal", "of_ideal_by_cpu", "of_optimum"].map(of), [Some(1.0); 3]);
        assert_eq!(["of_default", "ideal_pps", "delivered_pps"].map(of), [None::<f64>; 3]);
    }

    #[test]
    fn nothing_measured_is_no_table() {
        assert_eq!(table(&GROUP, &[&Variant::new("poll/open", Params::new())]), "");
    }
}
