//! Plots of a result as SVG: bars of medians with their range, or lines over a param.
//!
//! A panel per metric. A panel has a bar per variant, from zero, or a line per variant (module
//! `lines`). Bars of one mode (the name up to its slash) have one colour, so that the same mode is
//! found under each scheduler. Bars that differ in nothing but the mode are a group. A thin line
//! marks the ideal of a ratio to it, a thick one across a bar what a paper gives for it. The SVG is
//! written by hand: rectangles and texts need no library.

use std::fmt::Write;

use crate::bench::figures::PaperValue;
use crate::bench::lines;
use crate::bench::report::{Summary, Variant};
use crate::bench::table::{Column, Form, Group};
use sluice_cli::svg::escaped;

const WIDTH: f64 = 800.0;
/// Where bars begin; their names are to the left.
const LEFT: f64 = 290.0;
const LENGTH: f64 = 360.0;
const ROW: f64 = 22.0;
const HEAD: f64 = 34.0;
/// Between two groups of bars.
const GAP: f64 = 8.0;
/// The style of the mark of a paper's value.
const PAPER: &str = "stroke=\"#b3261e\" stroke-width=\"2.5\"";

/// A picture of all groups, with the papers' values; none if there is nothing to show.
pub fn svg(title: &str, groups: &[(&Group, Vec<&Variant>)], papers: &[PaperValue]) -> Option<String> {
    let mut body = String::new();
    let mut y = 44.0;
    for (group, variants) in groups {
        for column in &group.columns[..group.plotted] {
            match group.form {
                Form::Bars => panel(&mut body, &mut y, group, column, variants, papers),
                Form::Lines(x) | Form::Series(x) | Form::LogSeries(x) => {
                    lines::panel(&mut body, &mut y, group, column, variants, x, papers)
                }
            }
        }
    }
    if body.is_empty() {
        return None;
    }
    let height = y + 10.0;
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"16\">{}</text>\n{body}</svg>\n",
        escaped(title)
    ))
}

/// The mode of a variant: its name up to the slash.
fn mode(variant: &Variant) -> &str {
    variant.name.split_once('/').map_or(&variant.name, |(mode, _)| mode)
}

/// A bar: its label, what was measured, and the paper's value.
type Bar<'a> = (String, &'a Summary, Option<f64>);

fn panel<'a>(out: &mut String, y: &mut f64, group: &Group, column: &Column, variants: &[&'a Variant], papers: &[PaperValue]) {
    let bar =
        |v: &&'a Variant| Some((v.label(group.keys), v.metrics.get(column.metric)?, PaperValue::find(papers, v, column.metric)));
    let bars: Vec<Bar> = variants.iter().filter_map(bar).collect();
    let modes: Vec<&str> = variants.iter().filter(|v| v.metrics.contains_key(column.metric)).map(|v| mode(v)).collect();
    // The label without its mode.
    let groups: Vec<String> = bars.iter().zip(&modes).map(|((label, ..), mode)| label[mode.len()..].to_string()).collect();
    let has_groups = groups.windows(2).any(|two| two[0] == two[1]);
    let begins = |bar: usize| has_groups && bar > 0 && groups[bar] != groups[bar - 1];
    let mut distinct = modes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let colour = |mode: &str| lines::COLOURS[distinct.binary_search(&mode).unwrap_or(0) % lines::COLOURS.len()];
    let longest = bars.iter().map(|(_, m, _)| m.max).fold(0.0, f64::max);
    if longest <= 0.0 {
        return;
    }
    let longest = bars.iter().filter_map(|(.., paper)| *paper).chain(column.ideal()).fold(longest, f64::max);
    let x = |value: f64| LEFT + (value / longest).clamp(0.0, 1.0) * LENGTH;
    *y += HEAD;
    let head = escaped(&format!("{}: {}", group.title, column.head));
    let _ = writeln!(out, "<text x=\"12\" y=\"{:.1}\" font-weight=\"bold\">{head}</text>", *y - 12.0);
    let top = *y;
    for (number, (bar, mode)) in bars.iter().zip(modes).enumerate() {
        *y += if begins(number) { GAP } else { 0.0 };
        row(out, *y, bar, column, colour(mode), x);
        *y += ROW;
    }
    if let Some(ideal) = column.ideal() {
        let at = x(ideal);
        let _ = writeln!(out, "<path d=\"M{at:.1} {top:.1}V{:.1}\" {}/>", *y - 4.0, lines::IDEAL);
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"middle\">ideal</text>", top - 2.0);
    }
}

/// Draws a bar at `y`, with its label, its range and the paper's value; `x` gives the place of a
/// value.
fn row(out: &mut String, y: f64, (label, summary, paper): &Bar, column: &Column, colour: &str, x: impl Fn(f64) -> f64) {
    let middle = y + ROW / 2.0 - 2.0;
    let text = middle + 4.0;
    let _ = writeln!(out, "<text x=\"{}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>", LEFT - 8.0, escaped(label));
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
        y,
        x(summary.median) - LEFT,
        ROW - 4.0,
        colour
    );
    let (low, high) = (x(summary.min), x(summary.max));
    let _ = writeln!(
        out,
        "<path d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {0:.1}V{1:.1}M{high:.1} {0:.1}V{1:.1}\" stroke=\"#222\" fill=\"none\"/>",
        middle - 4.0,
        middle + 4.0
    );
    let (mut words, mut right) = (column.cell(summary), high);
    if let Some(paper) = *paper {
        let at = x(paper);
        let _ = writeln!(out, "<path d=\"M{at:.1} {:.1}V{:.1}\" {PAPER}/>", y - 1.0, y + ROW - 3.0);
        let _ = write!(words, ", paper {}", column.number(paper));
        right = right.max(at);
    }
    let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{text:.1}\">{}</text>", right + 6.0, escaped(&words));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Params;

    const GROUP: Group = Group {
        title: "Rates <all>",
        keys: &[],
        columns: &[Column::new("delivered_pps", "Mpps", 1e6, 1), Column::new("wasted_pps", "wasted", 1.0, 0)],
        plotted: 1,
        form: Form::Bars,
    };

    #[test]
    fn bars_are_as_long_as_their_medians() {
        let mut half = Variant::new("half", Params::new());
        half.add("delivered_pps", 5e6);
        let mut full = Variant::new("full", Params::new());
        full.add("delivered_pps", 10e6);
        full.add("wasted_pps", 1.0);
        let picture = svg("a & b", &[(&GROUP, vec![&half, &full])], &[]).unwrap();
        assert!(picture.contains("width=\"180.0\"") && picture.contains("width=\"360.0\""), "{picture}");
        assert!(picture.contains("a &amp; b") && picture.contains("Rates &lt;all&gt;: Mpps") && picture.contains(">5.0<"));
        assert!(!picture.contains("wasted"), "only so many columns are plotted");
    }

    #[test]
    fn bars_of_one_mode_have_one_colour() {
        let of = |name: &str| {
            let mut variant = Variant::new(name, Params::new());
            variant.add("delivered_pps", 1e6);
            variant
        };
        let all = ["default/other", "sluice/other", "default/batch"].map(of);
        let picture = svg("x", &[(&GROUP, all.iter().collect())], &[]).unwrap();
        let count = |colour: usize| picture.matches(&format!("fill=\"{}\"", lines::COLOURS[colour])).count();
        assert_eq!((count(0), count(1), count(2)), (2, 1, 0), "{picture}");
        // Two of one scheduler, and a gap before the next one.
        let below = |y: f64| picture.contains(&format!("<rect x=\"{LEFT}\" y=\"{y:.1}\""));
        assert!([0.0, ROW, 2.0 * ROW + GAP].iter().all(|y| below(44.0 + HEAD + y)), "{picture}");
        let alone = svg("x", &[(&GROUP, vec![&all[0], &all[2]])], &[]).unwrap();
        assert!(alone.contains(&format!("y=\"{:.1}\"", 44.0 + HEAD + ROW)), "no bar has another beside it: {alone}");
    }

    #[test]
    fn the_ideal_of_a_ratio_is_marked() {
        const RATIO: Group = Group { columns: &[Column::new("of_ideal", "of ideal", 1.0, 2)], ..GROUP };
        let of = |value: f64| {
            let mut variant = Variant::new("sluice", Params::new());
            variant.add("of_ideal", value);
            variant.add("delivered_pps", value);
            variant
        };
        // The bar has half of the room up to the ideal; or ends behind it.
        let below = svg("x", &[(&RATIO, vec![&of(0.5)])], &[]).unwrap();
        assert!(below.contains("width=\"180.0\"") && below.contains("<path d=\"M650.0 78.0V96.0\""), "{below}");
        let above = svg("x", &[(&RATIO, vec![&of(2.0)])], &[]).unwrap();
        assert!(above.contains("width=\"360.0\"") && above.contains("<path d=\"M470.0 78.0V96.0\""), "{above}");
        assert!(above.contains("text-anchor=\"middle\">ideal<"), "{above}");
        assert!(!svg("x", &[(&GROUP, vec![&of(0.5)])], &[]).unwrap().contains("ideal"), "a rate has none");
    }

    #[test]
    fn the_papers_value_is_marked() {
        const JAIN: Group = Group { columns: &[Column::new("jain", "Jain", 1.0, 2)], ..GROUP };
        let mut variant = Variant::new("default/other", Params::from([("diversity".into(), 6.into())]));
        variant.add("jain", 0.31);
        let papers = PaperValue::of(&crate::bench::figures::tests::report("fairness", &[])).unwrap();
        let picture = svg("x", &[(&JAIN, vec![&variant])], &papers).unwrap();
        // The room reaches up to 0.62 of the paper, of which the bar is half.
        let top = 44.0 + HEAD;
        let mark = format!("<path d=\"M{:.1} {:.1}V{:.1}\" {PAPER}/>", LEFT + LENGTH, top - 1.0, top + ROW - 3.0);
        assert!(
            picture.contains(&mark) && picture.contains("width=\"180.0\"") && picture.contains(">0.31, paper 0.62<"),
            "{picture}"
        );
        assert!(!svg("x", &[(&JAIN, vec![&variant])], &[]).unwrap().contains("paper"));
    }

    #[test]
    fn nothing_measured_is_no_picture() {
        assert_eq!(svg("x", &[(&GROUP, vec![&Variant::new("none", Params::new())])], &[]), None);
    }
}
