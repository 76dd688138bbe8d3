//! Line panels of a plot: medians of each variant over a numeric param, from zero. The param has a
//! logarithmic axis where its values are far apart, with 0 at its left end. A thin line marks the
//! ideal of a ratio to it, a diamond what a paper gives for a variant.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::bench::figures::PaperValue;
use crate::bench::report::{Summary, Variant};
use crate::bench::table::{Column, Form, Group};
use sluice_cli::svg::escaped;

const LEFT: f64 = 70.0;
const RIGHT: f64 = 520.0;
const HEIGHT: f64 = 200.0;
const HEAD: f64 = 34.0;
const FOOT: f64 = 36.0;
/// Height of a legend line.
const LEGEND: f64 = 16.0;
pub const COLOURS: [&str; 8] = ["#4878a8", "#d1605e", "#6a9f58", "#e49444", "#967662", "#a87c9f", "#5fa2a0", "#767676"];
const DASHES: [&str; 3] = ["none", "6 3", "2 2"];
/// Lines of a panel that are unlike each other.
#[cfg(test)]
pub const STYLES: usize = COLOURS.len() * DASHES.len();
/// The style of the line at the ideal.
pub const IDEAL: &str = "stroke=\"#222\" stroke-width=\"0.7\" stroke-dasharray=\"4 3\" fill=\"none\"";
/// Least room between two marks of the x axis.
const APART: f64 = 30.0;
/// Most decades of a logarithmic axis of values.
const DECADES: f64 = 6.0;
/// Ratio of the last to the first positive value from which on the x axis is logarithmic.
const FAR: f64 = 50.0;

struct Line<'a> {
    label: String,
    /// In ascending order of x.
    points: Vec<(f64, &'a Summary)>,
    /// Values of the paper.
    papers: Vec<(f64, f64)>,
}

impl Line<'_> {
    /// Draws it as the line of this number in a panel that begins at `top`, with its range if
    /// `spread`; `to_x` and `to_y` are the places of values.
    fn draw(
        &self,
        out: &mut String,
        number: usize,
        (top, spread): (f64, bool),
        to_x: impl Fn(f64) -> f64,
        to_y: impl Fn(f64) -> f64,
    ) {
        let (colour, dash) = (COLOURS[number % COLOURS.len()], DASHES[number / COLOURS.len() % DASHES.len()]);
        let path: Vec<String> = self.points.iter().map(|(at, m)| format!("{:.1} {:.1}", to_x(*at), to_y(m.median))).collect();
        let style = format!("stroke=\"{colour}\" fill=\"none\" stroke-width=\"1.5\"");
        let _ = writeln!(out, "<path d=\"M{}\" {style} stroke-dasharray=\"{dash}\"/>", path.join("L"));
        if spread {
            for (at, m) in &self.points {
                let (at, dot) = (to_x(*at), to_y(m.median));
                let _ = writeln!(out, "<path d=\"M{at:.1} {:.1}V{:.1}\" {style}/>", to_y(m.min), to_y(m.max));
                let _ = writeln!(out, "<circle cx=\"{at:.1}\" cy=\"{dot:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
            }
        }
        for (at, value) in &self.papers {
            let (at, middle) = (to_x(*at), to_y(*value));
            let _ = writeln!(out, "<path d=\"M{at:.1} {:.1}l5 5l-5 5l-5 -5z\" {style}/>", middle - 5.0);
        }
        let text = top + 10.0 + LEGEND * number as f64;
        let (from, to) = (RIGHT + 14.0, RIGHT + 38.0);
        let _ = writeln!(out, "<path d=\"M{from} {:.1}H{to}\" {style} stroke-dasharray=\"{dash}\"/>", text - 4.0);
        let paper = if self.papers.is_empty() { "" } else { " (paper: ◇)" };
        let _ = writeln!(out, "<text x=\"{}\" y=\"{text:.1}\">{}{paper}</text>", to + 6.0, escaped(&self.label));
    }
}

/// Variants that differ only in `x` form a line; lines are in order of first appearance.
fn lines<'a>(group: &Group, column: &Column, variants: &[&'a Variant], x: &str, papers: &[PaperValue]) -> Vec<Line<'a>> {
    let keys: Vec<&str> = group.keys.iter().copied().filter(|key| *key != x).collect();
    let mut lines: Vec<Line> = Vec::new();
    for variant in variants {
        let (Some(at), Some(summary)) = (variant.params.get(x).and_then(|v| v.as_f64()), variant.metrics.get(column.metric)) else {
            continue;
        };
        let label = variant.label(&keys);
        let line = lines.iter().position(|line| line.label == label).unwrap_or_else(|| {
            lines.push(Line { label, points: Vec::new(), papers: Vec::new() });
            lines.len() - 1
        });
        lines[line].points.push((at, summary));
        lines[line].papers.extend(PaperValue::find(papers, variant, column.metric).map(|value| (at, value)));
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// The least value of an axis up to `highest`: 0, or positive on a logarithmic axis.
///
/// That has as many decades as the values, and at most [`DECADES`].
fn least(values: impl Iterator<Item = f64>, highest: f64, is_log: bool) -> f64 {
    let lowest = values.filter(|value| *value > 0.0).fold(highest, f64::min);
    let decades = (highest / lowest).log10().ceil().clamp(1.0, DECADES);
    if is_log { highest / 10f64.powf(decades) } else { 0.0 }
}

/// How values of the x axis are placed: by their logarithm where they are far apart. If
/// `may_begin_at_zero`, 0 then has the place of a tenth of the least of the others.
fn x_scale(values: &[f64], may_begin_at_zero: bool) -> impl Fn(f64) -> f64 {
    let least = |from: f64| values.iter().copied().filter(|value| *value >= from).fold(f64::INFINITY, f64::min);
    let (first, positive) = (least(f64::NEG_INFINITY), least(f64::MIN_POSITIVE));
    let last = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let begins = first > 0.0 || (may_begin_at_zero && first == 0.0);
    let is_log = begins && last / positive >= FAR;
    move |value: f64| if is_log { value.max(positive / 10.0).ln() } else { value }
}

/// Draws a panel at `y` and moves `y` below it. `key` is the param of the x axis.
pub fn panel(
    out: &mut String,
    y: &mut f64,
    group: &Group,
    column: &Column,
    variants: &[&Variant],
    key: &str,
    papers: &[PaperValue],
) {
    let spread = matches!(group.form, Form::Lines(_));
    let lines = lines(group, column, variants, key, papers);
    let points = || lines.iter().flat_map(|line| &line.points);
    let highest = points().map(|(_, m)| if spread { m.max } else { m.median }).fold(0.0, f64::max);
    if highest <= 0.0 {
        return;
    }
    let of_papers = lines.iter().flat_map(|line| &line.papers).map(|(_, value)| *value);
    let highest = of_papers.chain(column.ideal()).fold(highest, f64::max);
    let least = least(points().map(|(_, m)| m.median), highest, matches!(group.form, Form::LogSeries(_)));
    let (first, last) = points().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), (at, _)| (a.min(*at), b.max(*at)));
    *y += HEAD;
    let (top, bottom) = (*y, *y + HEIGHT);
    let all: Vec<f64> = points().map(|(at, _)| *at).collect();
    // A curve begins at 0 as time does, and is not bent for that.
    let scale = x_scale(&all, spread);
    let width = scale(last) - scale(first);
    let to_x =
        |at: f64| if width > 0.0 { LEFT + (scale(at) - scale(first)) / width * (RIGHT - LEFT) } else { (LEFT + RIGHT) / 2.0 };
    // The part of the axis below a value, and the value above a part of the axis.
    let part = |value: f64| if least > 0.0 { (value / least).ln() / (highest / least).ln() } else { value / highest };
    let above = |part: f64| if least > 0.0 { least * (highest / least).powf(part) } else { highest * part };
    let to_y = |value: f64| bottom - part(value).clamp(0.0, 1.0) * HEIGHT;
    let head = escaped(&format!("{}: {}", group.title, column.head));
    let _ = writeln!(out, "<text x=\"12\" y=\"{:.1}\" font-weight=\"bold\">{head}</text>", top - 12.0);
    for quarter in 0..=4 {
        let value = above(f64::from(quarter) / 4.0);
        let at = to_y(value);
        let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/>");
        let text = escaped(&column.number(value));
        let _ = writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 6.0, at + 4.0);
    }
    out.push_str(&column.ideal().map_or_else(String::new, |ideal| ideal_line(to_y(ideal))));
    for mark in marks(all.iter().copied(), to_x) {
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{mark}</text>", to_x(mark), bottom + 15.0);
    }
    let middle = (LEFT + RIGHT) / 2.0;
    let _ = writeln!(out, "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", bottom + 29.0, escaped(key));
    for (number, line) in lines.iter().enumerate() {
        line.draw(out, number, (top, spread), to_x, to_y);
    }
    *y = (bottom + FOOT).max(top + LEGEND * lines.len() as f64 + 12.0);
}

/// The line at the ideal, with its name below it: above, there may be the panel's head.
fn ideal_line(y: f64) -> String {
    let name = format!("<text x=\"{}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"end\">ideal</text>", RIGHT - 4.0, y + 10.0);
    format!("<path d=\"M{LEFT} {y:.1}H{RIGHT}\" {IDEAL}/>\n{name}\n")
}

/// The values at which the x axis is marked: all that have room.
fn marks(values: impl Iterator<Item = f64>, to_x: impl Fn(f64) -> f64) -> Vec<f64> {
    // In millionths, so that they are distinct and sortable.
    let all: BTreeSet<i64> = values.map(|v| (v * 1e6).round() as i64).collect();
    let mut marked: Vec<f64> = Vec::new();
    for value in all.into_iter().map(|v| v as f64 / 1e6) {
        if marked.last().is_none_or(|last| to_x(value) - to_x(*last) >= APART) {
            marked.push(value);
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::report::Params;

    const GROUP: Group = Group {
        title: "Rates",
        keys: &["nfs", "ring"],
        columns: &[Column::new("delivered_pps", "Mpps", 1e6, 1)],
        plotted: 1,
        form: Form::Lines("nfs"),
    };

    fn variant(name: &str, nfs: u32, pps: f64) -> Variant {
        let mut variant = Variant::new(name, Params::from([("nfs".into(), json!(nfs)), ("ring".into(), json!(64))]));
        variant.add("delivered_pps", pps);
        variant
    }

    #[test]
    fn variants_that_differ_in_x_are_one_line() {
        let all = [variant("a", 10, 4e6), variant("b", 1, 1e6), variant("a", 1, 2e6)];
        let lines = lines(&GROUP, &GROUP.columns[0], &all.iter().collect::<Vec<_>>(), "nfs", &[]);
        let got: Vec<_> = lines.iter().map(|l| (l.label.as_str(), l.points.iter().map(|p| p.0).collect::<Vec<_>>())).collect();
        assert_eq!(got, [("a ring 64", vec![1.0, 10.0]), ("b ring 64", vec![1.0])]);
        let (mut out, mut y) = (String::new(), 0.0);
        panel(&mut out, &mut y, &GROUP, &GROUP.columns[0], &all.iter().collect::<Vec<_>>(), "nfs", &[]);
        // Half of the highest at the left end, the highest at the right.
        assert!(out.contains("d=\"M70.0 134.0L520.0 34.0\""), "{out}");
        assert!(out.contains(">a ring 64<") && out.contains(">4.0<") && out.contains(">10<"), "{out}");
        assert_eq!(y, HEAD + HEIGHT + FOOT);
    }

    #[test]
    fn the_ideal_of_a_ratio_is_marked() {
        let drawn = |metric: &'static str, value: f64| {
            let columns = [Column::new(metric, "of ideal", 1.0, 2)];
            let mut variant = variant("a", 1, 0.0);
            variant.add(metric, value);
            let (mut out, mut y) = (String::new(), 0.0);
            panel(&mut out, &mut y, &GROUP, &columns[0], &[&variant], "nfs", &[]);
            out
        };
        let below = drawn("of_ideal", 0.5);
        assert!(below.contains(&format!("<path d=\"M70 34.0H520\" {IDEAL}/>")) && below.contains(">ideal<"), "{below}");
        assert!(below.contains("cy=\"134.0\""), "the axis reaches up to the ideal: {below}");
        assert!(drawn("of_ideal", 2.0).contains("<path d=\"M70 134.0H520\" stroke=\"#222\""));
        assert!(!drawn("of_default", 0.5).contains(">ideal<"));
        assert_eq!(drawn("of_ideal", 0.0), "", "an ideal alone is nothing to show");
    }

    #[test]
    fn the_papers_value_is_a_diamond_of_its_line() {
        const JAIN: Group = Group {
            columns: &[Column::new("jain", "Jain", 1.0, 2)],
            form: Form::Lines("diversity"),
            keys: &["diversity"],
            ..GROUP
        };
        let of = |diversity: u32| {
            let mut variant = Variant::new("default/other", Params::from([("diversity".into(), json!(diversity))]));
            variant.add("jain", 0.31);
            variant
        };
        let all = [of(1), of(6)];
        let (mut out, mut y) = (String::new(), 0.0);
        let papers = PaperValue::of(&crate::bench::figures::tests::report("fairness", &[])).unwrap();
        panel(&mut out, &mut y, &JAIN, &JAIN.columns[0], &all.iter().collect::<Vec<_>>(), "diversity", &papers);
        // The paper's 0.62 for six flows is the highest value; ours is half of it.
        assert!(out.contains("<path d=\"M520.0 29.0l5 5l-5 5l-5 -5z\"") && out.contains("M70.0 134.0L520.0 134.0"), "{out}");
        assert_eq!((out.matches("l5 5l").count(), out.matches("default/other (paper: ◇)").count()), (1, 1), "{out}");
    }

    #[test]
    fn nothing_to_show_takes_no_room() {
        let (mut out, mut y) = (String::new(), 5.0);
        let nothing = variant("a", 1, 0.0);
        panel(&mut out, &mut y, &GROUP, &GROUP.columns[0], &[&nothing], "nfs", &[]);
        assert_eq!((out.as_str(), y), ("", 5.0));
    }

    #[test]
    fn a_logarithmic_axis_shows_decades_and_keeps_what_is_below_at_its_foot() {
        assert_eq!([true, false].map(|is_log| least([1e3, 1e6, 0.0].into_iter(), 1e6, is_log)), [1e3, 0.0]);
        assert_eq!(least([1.0, 1e9].into_iter(), 1e9, true), 1e3, "six decades");
        assert_eq!(least([5.0].into_iter(), 5.0, true), 0.5, "one value");
        let all = [variant("a", 1, 1e6), variant("a", 2, 1e4), variant("a", 3, 0.0), variant("a", 4, 1e2)];
        let (mut out, mut y) = (String::new(), 0.0);
        let group = Group { form: Form::LogSeries("nfs"), ..GROUP };
        panel(&mut out, &mut y, &group, &GROUP.columns[0], &all.iter().collect::<Vec<_>>(), "nfs", &[]);
        assert!(out.contains("d=\"M70.0 34.0L220.0 134.0L370.0 234.0L520.0 234.0\""), "{out}");
        assert!(!out.contains("<circle"), "a series has no spread");
    }

    #[test]
    fn values_are_marked_where_there_is_room() {
        assert_eq!(marks([3.0, 1.0, 1.0, 0.5].into_iter(), |x| x * 100.0), [0.5, 1.0, 3.0]);
        assert_eq!(marks((0..50).map(f64::from), |x| x * 2.0), [0.0, 15.0, 30.0, 45.0]);
    }

    #[test]
    fn values_that_are_far_apart_have_a_logarithmic_axis() {
        let all = [variant("a", 1, 1e6), variant("a", 10, 1e6), variant("a", 100, 1e6)];
        let (mut out, mut y) = (String::new(), 0.0);
        panel(&mut out, &mut y, &GROUP, &GROUP.columns[0], &all.iter().collect::<Vec<_>>(), "nfs", &[]);
        assert!(out.contains("d=\"M70.0 34.0L295.0 34.0L520.0 34.0\""), "{out}");
    }

    #[test]
    fn a_zero_stands_at_the_left_end_of_a_logarithmic_axis() {
        let all = [variant("a", 0, 1e6), variant("a", 1_000, 1e6), variant("a", 1_000_000, 1e6)];
        let drawn = |form: Form| {
            let (mut out, mut y) = (String::new(), 0.0);
            let group = Group { form, ..GROUP };
            panel(&mut out, &mut y, &group, &GROUP.columns[0], &all.iter().collect::<Vec<_>>(), "nfs", &[]);
            out
        };
        // Four decades, the first of which is that from 0.
        let of_rates = drawn(Form::Lines("nfs"));
        assert!(of_rates.contains("d=\"M70.0 34.0L182.5 34.0L520.0 34.0\"") && of_rates.contains(">0<"), "{of_rates}");
        let of_times = drawn(Form::Series("nfs"));
        assert!(of_times.contains("d=\"M70.0 34.0L70."), "{of_times}");
    }
}
