//! The report: a page with all plots in it (`index.html`), and the same as Markdown (`report.md`).
//!
//! Both are written from the results in the folder and the claims of
//! [`figures`](crate::bench::figures). The page needs no other file, no network and no script; the
//! Markdown shows the drawings that lie beside it.

use std::fmt::Write;

use super::folder::{self, Folder};
use crate::bench::compare::short;
use crate::bench::figures::{Check, Checked, ClaimVerdict, Figure, Known, MODELLED, Paper, PlannedRun};
use crate::bench::host_speed;
use crate::bench::lab::left_out_lines;
use crate::bench::report::{Report, Summary, Variant, median};
use sluice_cli::svg::escaped;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --good: #2a7d3f; --shape: #9a6a00; --bad: #b3261e; --none: #6b6b6b; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
section { border-top: 1px solid var(--line); margin-top: 2rem; }
.holds { color: var(--good); } .shape { color: var(--shape); } .not { color: var(--bad); } .unknown { color: var(--none); }
b.holds, b.shape, b.not, b.unknown { white-space: nowrap; }
svg { max-width: 100%; height: auto; display: block; border-radius: .4rem; }
details { margin: .4rem 0; } code { font-size: .9em; } .small { color: var(--none); font-size: .9em; }
";

/// Why claims have no page.
const PAGES: &str = "Claims are named by figure and section, and not by page: no text of the papers was at hand.";

/// What a verdict says about a model.
const MODEL: &str = "Modelled: computed by a model, and the same on any host; it says nothing of this one.";

/// What stands before the reason of a verdict, which was found in one report.
const KEPT: &str = "In a report of ours";

/// What that means.
const REASONS: &str = "In a report of ours: why a verdict was no better in a report that is or was kept with the sources \
     (docs/measured), as far as that is known. Another may have another reason.";

/// What stands below a table with such a column.
const MANY: &str = "NAME*: the medians of all metrics that begin with NAME, in the order of their names. nf1, nf2, … are the NFs, \
                    and c1, c2, … the chains. –: the variant has none.";

/// What the report says besides results.
#[derive(Clone, Copy)]
pub struct Words {
    /// Whether runs were short.
    pub is_quick: bool,
    /// What an experiment measures, in one line.
    pub about: fn(&str) -> &'static str,
}

/// A figure beside its result.
struct Compared<'a> {
    figure: &'a Figure,
    report: Option<Report>,
    checked: Vec<Checked<'a>>,
    /// Why there is no result.
    missing: Option<String>,
}

impl<'a> Compared<'a> {
    fn of(figure: &'a Figure, known: &Known, folder: &Folder) -> Self {
        let result = figure.experiment.as_ref().and_then(|name| folder.result(name));
        let missing = match (&result, &figure.experiment) {
            (Some(report), _) => figure.lacking(report),
            (None, None) => figure.missing.clone(),
            (None, Some(name)) => Some(not_run(known, name)),
        };
        let report = result.filter(|_| missing.is_none());
        let against = |check: &'a Check| match &report {
            Some(report) => check.against(report),
            None => check.unmeasured("the experiment has no result here"),
        };
        let checked = figure.checks.iter().map(against).collect();
        Self { figure, report, checked, missing }
    }

    /// Its verdict in words, which say so where only a part holds that was measured.
    fn word(&self) -> String {
        let word = self.verdict().map_or("drawn only".into(), |verdict| verdict.to_string());
        let part = match self.verdict() {
            Some(ClaimVerdict::Holds | ClaimVerdict::InShape) if Figure::coverage(&self.checked).is_some() => " in part",
            _ => "",
        };
        let measured = self.checked.iter().filter(|one| one.verdict != ClaimVerdict::Unknown);
        let is_of_model = self.verdict() != Some(ClaimVerdict::Unknown) && !self.checked.is_empty();
        let model = if is_of_model && measured.clone().all(|one| one.is_modelled) { MODELLED } else { "" };
        format!("{word}{part}{model}")
    }

    /// The same, with how much of it was measured.
    fn words(&self) -> String {
        let word = self.word();
        Figure::coverage(&self.checked).map_or(word.clone(), |coverage| format!("{word} ({coverage})"))
    }

    /// None without checks: it is drawn only. A result of no variant draws nothing.
    fn verdict(&self) -> Option<ClaimVerdict> {
        match &self.report {
            Some(report) if !report.variants.is_empty() => Figure::verdict(&self.checked),
            _ => Some(ClaimVerdict::Unknown),
        }
    }
}

/// Why an experiment has no result here.
fn not_run(known: &Known, experiment: &str) -> String {
    let slow = known.runs.iter().find(|run| run.experiment == experiment).and_then(|run| run.slow.as_ref());
    let why = slow.map_or(String::new(), |why| format!(" and is not part of --quick: {why}"));
    format!("`sluice bench {experiment}` has no result here{why}")
}

/// How a verdict is coloured.
fn class(verdict: Option<ClaimVerdict>) -> &'static str {
    match verdict {
        Some(ClaimVerdict::Holds) => "holds",
        Some(ClaimVerdict::InShape) => "shape",
        Some(ClaimVerdict::Not) => "not",
        Some(ClaimVerdict::Unknown) | None => "unknown",
    }
}

/// A number with three digits that count, and none that do not.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.1 { format!("{value:.4}") } else { short(value) }
}

/// Why a verdict is not the best, where it is not.
fn reason(one: &Checked) -> Option<String> {
    one.needs_reason().then(|| one.why.map_or("No reason is written yet".into(), |why| format!("{KEPT}: {why}")))
}

/// The same with as many digits more as set it apart from a bound that it is near.
fn number_beside(value: f64, bound: f64) -> String {
    let text = number(value);
    if value == bound || text != number(bound) {
        return text;
    }
    let mut longer = (3..9).map(|digits| format!("{value:.digits$}"));
    longer.find(|text| text.parse::<f64>() != Ok(bound)).unwrap_or(text)
}

/// The median beside its bound, with the least and the greatest run.
fn spread(ours: &Summary, bound: f64) -> String {
    let median = number_beside(ours.median, bound);
    match ours.samples.len() {
        1 => median,
        _ => format!("{median} ({}–{})", number(ours.min), number(ours.max)),
    }
}

/// The page, the same as Markdown, and how many figures of each paper hold, a line each.
pub fn texts(known: &Known, folder: &Folder, words: Words) -> [String; 3] {
    let compared: Vec<Compared> = known.figures.iter().map(|figure| Compared::of(figure, known, folder)).collect();
    let counted = counts(&compared).iter().map(|(paper, words)| format!("{}: {words}", paper.title())).collect::<Vec<_>>();
    [html(known, &compared, folder, words), markdown(known, &compared, folder, words), counted.join("\n")]
}

/// Writes both forms; returns how many figures of each paper hold, a line each.
///
/// # Errors
/// A file cannot be written.
pub fn write(known: &Known, folder: &Folder, words: Words) -> anyhow::Result<String> {
    let [html, markdown, counted] = texts(known, folder, words);
    folder::write(&folder.0.join("index.html"), &html)?;
    folder::write(&folder.0.join("report.md"), &markdown)?;
    Ok(counted)
}

/// How many figures of each paper have each verdict.
fn counts(compared: &[Compared]) -> Vec<(Paper, String)> {
    let of_paper = |paper: Paper| {
        let kind = |one: &Compared| (one.verdict().map_or(u8::MAX, |verdict| verdict as u8), one.word());
        let mut kinds: Vec<_> = compared.iter().filter(|one| one.figure.paper == paper).map(kind).collect();
        kinds.sort_unstable();
        let words: Vec<String> = kinds.chunk_by(|a, b| a == b).map(|same| format!("{} {}", same.len(), same[0].1)).collect();
        (!words.is_empty()).then(|| (paper, words.join(", ")))
    };
    Paper::ALL.into_iter().filter_map(of_paper).collect()
}

/// The host and the amount of measuring, from the first result.
fn setting(known: &Known, folder: &Folder, is_quick: bool) -> String {
    let all: Vec<Report> = known.runs.iter().filter_map(|run| folder.result(&run.experiment)).collect();
    let Some(report) = all.first() else { return "Nothing has been measured yet.".into() };
    let host = &report.host;
    // Experiments without packets do not know of pages.
    let has_hugepages = all.iter().any(|report| report.host.hugepages);
    let pages = if has_hugepages { "with hugepages" } else { "without hugepages" };
    let short = if is_quick { " Runs are short (--quick): take single values with care." } else { "" };
    let measured = folder.provenance(&report.experiment);
    let measured = if measured.is_empty() { String::new() } else { format!(" {measured}.") };
    let speeds =
        host_speed::spread(all.iter().map(|report| &report.host_speed)).map_or(String::new(), |speeds| format!(" {speeds}"));
    format!("{}, {} cores, Linux {}, {pages}.{measured}{short}{speeds}", host.cpu, host.cores, host.kernel)
}

/// An experiment that was simulated too.
struct Simulated<'a> {
    experiment: &'a str,
    /// Variants that have a simulated rate.
    variants: usize,
    /// Those whose simulated rate is within a tenth of the measured one.
    near: usize,
    /// The error in the middle of all, without sign, in percent.
    median_percent: f64,
    /// Each variant: its label, and what was measured and simulated, in packets a second, with the
    /// error in percent.
    rows: Vec<(String, [f64; 3])>,
}

/// The part of variants that the simulator should be within a tenth of.
const GOAL: f64 = 0.9;

/// How many variants of all experiments are near, and whether that is enough.
fn near_of_all(all: &[Simulated]) -> String {
    let (near, variants): (usize, usize) = (all.iter().map(|one| one.near).sum(), all.iter().map(|one| one.variants).sum());
    let is_met = near as f64 >= GOAL * variants as f64;
    format!("{near} of {variants} within 10 %; the goal is 9 of 10: {}", if is_met { "met" } else { "not met" })
}

/// How far the simulator is from what was measured.
fn simulated<'a>(known: &'a Known, folder: &Folder) -> Vec<Simulated<'a>> {
    let of_run = |run: &'a PlannedRun| {
        let report = folder.result(&run.experiment)?;
        let row = |variant: &Variant| {
            let numbers = ["delivered_pps", "simulated_pps", "error_percent"].map(|metric| variant.median(metric));
            let [Some(measured), Some(simulated), Some(error)] = numbers else { return None };
            let keys: Vec<&str> = variant.params.keys().map(String::as_str).collect();
            Some((variant.label(&keys), [measured, simulated, error]))
        };
        let rows: Vec<(String, [f64; 3])> = report.variants.iter().filter_map(row).collect();
        let mut errors: Vec<f64> = rows.iter().map(|(_, [.., error])| error.abs()).collect();
        errors.sort_by(f64::total_cmp);
        let (variants, near) = (errors.len(), errors.iter().filter(|error| **error <= 10.0).count());
        (variants > 0).then(|| Simulated { experiment: &run.experiment, variants, near, median_percent: median(&errors), rows })
    };
    known.runs.iter().filter_map(of_run).collect()
}

/// What a figure shows of the variants that have any of it: their labels, and medians.
fn shown(figure: &Figure, report: &Report) -> Vec<(String, Vec<String>)> {
    let cell = |medians: Vec<f64>| match medians.len() {
        0 => "–".to_string(),
        _ => medians.into_iter().map(number).collect::<Vec<_>>().join(" / "),
    };
    let has_any = |variant: &&Variant| figure.shows.iter().any(|name| !variant.medians(name).is_empty());
    let row = |variant: &Variant| {
        let keys: Vec<&str> = variant.params.keys().map(String::as_str).collect();
        let cells: Vec<String> = figure.shows.iter().map(|name| cell(variant.medians(name))).collect();
        (variant.label(&keys), cells)
    };
    report.variants.iter().filter(has_any).map(row).collect()
}

/// What explains the columns of what a figure shows, where it takes words.
fn legend(figure: &Figure) -> Option<&'static str> {
    figure.shows.iter().any(|name| name.ends_with('*')).then_some(MANY)
}

/// Experiments without a figure that have a result.
fn others<'a>(known: &'a Known, folder: &Folder) -> Vec<(&'a str, Report)> {
    let runs = known.runs.iter().map(|run| run.experiment.as_str());
    runs.filter(|name| known.paper_of(name) == Paper::Platform).filter_map(|name| Some((name, folder.result(name)?))).collect()
}

fn html(known: &Known, compared: &[Compared], folder: &Folder, words: Words) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Sluice beside the papers</title>\n<style>{STYLE}</style></head><body>\n<h1>Sluice beside the papers</h1>\n<p>{}</p>\n",
        escaped(&setting(known, folder, words.is_quick))
    );
    let _ = write!(
        out,
        "<p><b class=\"holds\">holds</b>: within a tenth of the paper's value, or better where it is ours; where the paper gives none, \
         beyond the bound. \
         <b class=\"shape\">holds in shape</b>: beyond the bound, and further from the paper's value. \
         <b class=\"holds\">in part</b>: as far as it was measured. \
         {MODEL} {REASONS} \
         Bounds are ours, values of the paper are where it gives them. {PAGES} \
         Values are medians, with the least and the greatest run.</p>\n<table><tr><th>Paper</th><th>Figures</th></tr>\n"
    );
    for (paper, verdicts) in counts(compared) {
        let _ = writeln!(out, "<tr><td><a href=\"#{}\">{}</a></td><td>{verdicts}</td></tr>", paper.word(), paper.title());
    }
    out.push_str("</table>\n");
    let mut drawn: Vec<&str> = Vec::new();
    for paper in Paper::ALL {
        let _ = writeln!(out, "<h2 id=\"{}\">{}</h2>", paper.word(), paper.title());
        for one in compared.iter().filter(|one| one.figure.paper == paper) {
            html_figure(&mut out, one, (folder, words), &mut drawn);
        }
        if paper == Paper::Platform {
            for (name, report) in others(known, folder) {
                let _ = writeln!(out, "<section><h3>{}</h3><p>{}</p>", escaped(name), escaped((words.about)(name)));
                html_run(&mut out, name, &report, (folder, words), &mut drawn);
                out.push_str("</section>\n");
            }
        }
    }
    let simulated = simulated(known, folder);
    if !simulated.is_empty() {
        out.push_str(
            "<h2>The simulator</h2>\n<table><tr><th>Experiment</th><th>Variants</th><th>Within 10 %</th><th>Error in the middle</th></tr>\n",
        );
        for Simulated { experiment, variants, near, median_percent, .. } in &simulated {
            html_row(&mut out, experiment, &[variants.to_string(), near.to_string(), format!("{median_percent:.1} %")]);
        }
        let _ = writeln!(out, "</table>\n<p>{}</p>", near_of_all(&simulated));
        out.push_str("<details><summary>Each variant</summary><table>");
        out.push_str("<tr><th>Experiment, variant</th><th>Measured, packets a second</th><th>Simulated</th><th>Error</th></tr>\n");
        for (one, (label, [measured, simulated, error])) in
            simulated.iter().flat_map(|one| one.rows.iter().map(move |row| (one, row)))
        {
            let label = format!("{}, {label}", one.experiment);
            html_row(&mut out, &label, &[number(*measured), number(*simulated), format!("{error:.1} %")]);
        }
        out.push_str("</table></details>\n");
    }
    out.push_str("</body></html>\n");
    out
}

/// A row of a table: words, then numbers.
fn html_row(out: &mut String, words: &str, numbers: &[String]) {
    let cells: String = numbers.iter().map(|number| format!("<td class=\"n\">{number}</td>")).collect();
    let _ = writeln!(out, "<tr><td>{}</td>{cells}</tr>", escaped(words));
}

fn html_figure<'a>(out: &mut String, one: &Compared<'a>, place: (&Folder, Words), drawn: &mut Vec<&'a str>) {
    let Figure { name, claim, experiment, differs, .. } = one.figure;
    let verdict = one.verdict();
    let _ = writeln!(
        out,
        "<section><h3>{} <b class=\"{}\">{}</b></h3><p>{}</p>",
        escaped(name),
        class(verdict),
        one.words(),
        escaped(claim)
    );
    if let Some(why) = &one.missing {
        let _ = writeln!(out, "<p class=\"small\">Not measured: {}.</p>", escaped(why));
    }
    if !one.checked.is_empty() {
        out.push_str("<table><tr><th>What</th><th>Ours</th><th>Paper</th><th>Bound</th><th></th></tr>\n");
        for check in &one.checked {
            let Checked { what, ours, without, paper, bound, limit, verdict, .. } = check;
            let spread = |ours| spread(ours, *limit);
            let small = |words: &String| format!(" <span class=\"small\">{}</span>", escaped(words));
            let mut ours = ours.as_ref().map_or_else(|why| format!("–{}", small(why)), spread);
            ours.extend(without.as_ref().map(small));
            let paper = paper.map_or(String::new(), number);
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"n\">{ours}</td><td class=\"n\">{paper}</td><td class=\"n\">{bound}</td>\
                 <td class=\"{}\">{}</td></tr>",
                escaped(what),
                class(Some(*verdict)),
                check.word()
            );
            if let Some(why) = reason(check) {
                let _ = writeln!(out, "<tr><td class=\"small\" colspan=\"5\">{}</td></tr>", escaped(&why));
            }
        }
        out.push_str("</table>\n");
    }
    if let Some(differs) = differs {
        let _ = writeln!(out, "<p class=\"small\">Set up otherwise: {}</p>", escaped(differs));
    }
    if let (Some(name), Some(report)) = (experiment, &one.report) {
        html_shown(out, one.figure, report);
        html_run(out, name, report, place, drawn);
    }
    out.push_str("</section>\n");
}

fn html_shown(out: &mut String, figure: &Figure, report: &Report) {
    if figure.shows.is_empty() {
        return;
    }
    let heads: String = figure.shows.iter().map(|name| format!("<th>{}</th>", escaped(name))).collect();
    let _ = writeln!(out, "<details><summary>Medians of each variant</summary><table>\n<tr><th></th>{heads}</tr>");
    for (label, cells) in shown(figure, report) {
        html_row(out, &label, &cells);
    }
    let legend = legend(figure).map_or(String::new(), |words| format!("<p class=\"small\">{words}</p>"));
    let _ = writeln!(out, "</table>{legend}</details>");
}

/// The command, the plot (once), and what was left out.
fn html_run<'a>(out: &mut String, name: &'a str, report: &Report, place: (&Folder, Words), drawn: &mut Vec<&'a str>) {
    let (folder, words) = place;
    let _ = writeln!(out, "<p class=\"small\"><code>{}</code></p>", escaped(&command(name, report, folder)));
    if drawn.contains(&name) {
        let _ = writeln!(out, "<p class=\"small\">Drawn above.</p>");
    } else if let Ok(picture) = std::fs::read_to_string(folder.file(name, "svg")) {
        let _ = writeln!(out, "<details open><summary>{}</summary>\n{picture}</details>", escaped((words.about)(name)));
        drawn.push(name);
    }
    let left_out = left_out_lines(&report.left_out);
    if !left_out.is_empty() {
        let lines: String = left_out.iter().map(|line| format!("<li>{}</li>", escaped(line))).collect();
        let _ = writeln!(
            out,
            "<details><summary>{} reasons to leave something out</summary><ul>{lines}</ul></details>",
            left_out.len()
        );
    }
}

/// The command that gave a result: as it was run, or, where that is not written, its amount.
fn command(name: &str, report: &Report, folder: &Folder) -> String {
    let words = folder.words(name).unwrap_or_else(|| format!("--seconds {} --repeats {}", report.seconds, report.repeats));
    format!("sluice bench {name} {words}")
}

fn markdown(known: &Known, compared: &[Compared], folder: &Folder, words: Words) -> String {
    let mut out = format!(
        "# Sluice beside the papers\n\n{}\n\n{PAGES}\n\n{MODEL}\n\n{REASONS}\n\n| paper | figures |\n|---|---|\n",
        setting(known, folder, words.is_quick)
    );
    for (paper, verdicts) in counts(compared) {
        let _ = writeln!(out, "| {} | {verdicts} |", paper.title());
    }
    let mut drawn: Vec<&str> = Vec::new();
    for paper in Paper::ALL {
        let _ = write!(out, "\n## {}\n", paper.title());
        for one in compared.iter().filter(|one| one.figure.paper == paper) {
            markdown_figure(&mut out, one, folder, &mut drawn);
        }
        if paper == Paper::Platform {
            for (name, report) in others(known, folder) {
                let _ = write!(out, "\n### {name}\n\n{}\n", (words.about)(name));
                markdown_run(&mut out, name, &report, folder, &mut drawn);
            }
        }
    }
    let simulated = simulated(known, folder);
    if !simulated.is_empty() {
        out.push_str("\n## The simulator\n\n| experiment | variants | within 10 % | error in the middle |\n|---|---|---|---|\n");
        for Simulated { experiment, variants, near, median_percent, .. } in &simulated {
            let _ = writeln!(out, "| {experiment} | {variants} | {near} | {median_percent:.1} % |");
        }
        let _ = write!(out, "\n{}\n", near_of_all(&simulated));
    }
    out
}

fn markdown_figure<'a>(out: &mut String, one: &Compared<'a>, folder: &Folder, drawn: &mut Vec<&'a str>) {
    let Figure { name, claim, experiment, differs, .. } = one.figure;
    let _ = write!(out, "\n### {name}: {}\n\n{claim}\n", one.words());
    if let Some(why) = &one.missing {
        let _ = write!(out, "\nNot measured: {why}.\n");
    }
    if !one.checked.is_empty() {
        out.push_str("\n| what | ours | paper | bound | |\n|---|---|---|---|---|\n");
        for check in &one.checked {
            let Checked { what, ours, without, paper, bound, limit, .. } = check;
            let (spread, verdict) = (|ours| spread(ours, *limit), check.word());
            let mut ours = ours.as_ref().map_or_else(|why| format!("– ({why})"), spread);
            ours.extend(without.as_ref().map(|words| format!(" ({words})")));
            let why = reason(check).map_or(String::new(), |why| format!(". {why}"));
            let _ = writeln!(out, "| {what} | {ours} | {} | {bound} | {verdict}{why} |", paper.map_or(String::new(), number));
        }
    }
    if let Some(differs) = differs {
        let _ = write!(out, "\nSet up otherwise: {differs}\n");
    }
    if let (Some(name), Some(report)) = (experiment, &one.report) {
        markdown_shown(out, one.figure, report);
        markdown_run(out, name, report, folder, drawn);
    }
}

fn markdown_shown(out: &mut String, figure: &Figure, report: &Report) {
    if figure.shows.is_empty() {
        return;
    }
    let columns = figure.shows.len();
    let _ = write!(out, "\n| medians | `{}` |\n|{}\n", figure.shows.join("` | `"), "---|".repeat(columns + 1));
    for (label, cells) in shown(figure, report) {
        let _ = writeln!(out, "| {label} | {} |", cells.join(" | "));
    }
    if let Some(words) = legend(figure) {
        let _ = write!(out, "\n{words}\n");
    }
}

fn markdown_run<'a>(out: &mut String, name: &'a str, report: &Report, folder: &Folder, drawn: &mut Vec<&'a str>) {
    let _ = write!(out, "\n`{}`\n", command(name, report, folder));
    if drawn.contains(&name) {
        out.push_str("\nDrawn above.\n");
    } else if folder.file(name, "svg").exists() {
        let _ = write!(out, "\n![{name}]({name}.svg)\n");
        drawn.push(name);
    }
    for line in left_out_lines(&report.left_out) {
        let _ = write!(out, "\n- {line}");
    }
    if !report.left_out.is_empty() {
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::tests::report;

    const DATA: &str = r#"
        [[figure]]
        paper = "nfvnice"
        name = "Figure 7"
        experiment = "chain"
        claim = "More & more."
        shows = ["delivered_pps", "run_ms.nf*"]
        [[figure.check]]
        what = "throughput, of the default"
        variant = "sluice/other"
        of = "default/other"
        metric = "delivered_pps"
        at_least = 1.2
        paper = 2.0
        why = "Cores are <slow>"
        [[figure]]
        paper = "resq"
        name = "Figure 3"
        claim = "Latency."
        missing = "no experiment"
        [[run]]
        experiment = "chain"
        [[run]]
        experiment = "forward"
    "#;

    const WORDS: Words = Words { is_quick: false, about: |_| "what it measures" };

    #[test]
    fn a_report_has_claims_values_verdicts_and_plots() {
        let known: Known = toml::from_str(DATA).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().into());
        assert_eq!(
            write(&known, &folder, WORDS).unwrap(),
            "NFVnice (SIGCOMM 2017): 1 not measured\nResQ (NSDI 2018): 1 not measured"
        );
        let mut chain = report("chain", &[("default/other", &[1.0, 1.0]), ("sluice/other", &[1.5, 1.6]), ("idle", &[])]);
        [("run_ms.nf1", 2.0), ("run_ms.nf2", 3.0)].into_iter().for_each(|(metric, ms)| chain.variants[1].add(metric, ms));
        chain.write(&folder.file("chain", "json")).unwrap();
        std::fs::write(folder.file("chain", "svg"), "<svg>bars</svg>").unwrap();
        std::fs::write(
            folder.file("chain", "settings"),
            "--seconds 1 --repeats 2 --only chain/\nbuild 7\nSluice 0.1.0, 2026-11-27\n",
        )
        .unwrap();
        report("forward", &[("poll/open", &[1.0])]).write(&folder.file("forward", "json")).unwrap();
        let said = write(&known, &folder, Words { is_quick: true, ..WORDS }).unwrap();
        assert_eq!(said, "NFVnice (SIGCOMM 2017): 1 holds in shape\nResQ (NSDI 2018): 1 not measured");
        let page = std::fs::read_to_string(dir.path().join("index.html")).unwrap();
        for wanted in [
            "More &amp; more.",
            "<svg>bars</svg>",
            "1.55 (1.50–1.60)",
            ">2.00<",
            "≥ 1.2",
            "holds in shape",
            "<td class=\"small\" colspan=\"5\">In a report of ours: Cores are &lt;slow&gt;</td>",
            "<td>sluice/other nfs 3</td><td class=\"n\">1.55</td><td class=\"n\">2.00 / 3.00</td>",
            "no experiment",
            "--quick",
        ] {
            assert!(page.contains(wanted), "{wanted}: {page}");
        }
        assert!(page.contains("<h3>forward</h3>") && !page.contains("<script") && !page.contains("http://"), "{page}");
        let text = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
        let row = "| throughput, of the default | 1.55 (1.50–1.60) | 2.00 | ≥ 1.2 | holds in shape. In a report of ours: ";
        assert!(text.contains(row), "{text}");
        let said = [&page, &text].map(|form| form.matches("(docs/measured), as far as that is known").count());
        assert_eq!(said, [1, 1], "what a report of ours is, is said once: {text}");
        let drawing = "`sluice bench chain --seconds 1 --repeats 2 --only chain/`\n\n![chain](chain.svg)\n";
        assert!(text.contains(drawing), "{text}");
        let table = "| medians | `delivered_pps` | `run_ms.nf*` |\n|---|---|---|\n\
                     | default/other nfs 3 | 1.00 | – |\n| sluice/other nfs 3 | 1.55 | 2.00 / 3.00 |\n\nNAME*: the medians";
        assert!(text.contains(table), "{text}");
        assert!(page.contains("</table><p class=\"small\">NAME*: the medians of all metrics that begin with NAME"), "{page}");
        assert!(text.contains("`sluice bench forward --seconds 1 --repeats 2`"), "{text}");
        assert!(text.contains(" cores, Linux 6, without hugepages. Sluice 0.1.0, 2026-11-27. Runs are short"), "{text}");
    }

    #[test]
    fn a_run_without_a_value_stands_beside_the_others() {
        let known: Known = toml::from_str(DATA).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().into());
        let chain = report("chain", &[("default/other", &[1.0, 0.0]), ("sluice/other", &[1.5, 1.6])]);
        chain.write(&folder.file("chain", "json")).unwrap();
        let [page, text, _] = texts(&known, &folder, WORDS);
        let why = "1 of 2 runs has no value: delivered_pps of default/other is zero";
        assert!(page.contains(&format!("<td class=\"n\">1.50 <span class=\"small\">{why}</span></td>")), "{page}");
        let row = format!("| 1.50 ({why}) | 2.00 | ≥ 1.2 | does not hold. In a report of ours: Cores are <slow> |");
        assert!(text.contains(&row), "{text}");
    }

    #[test]
    fn what_has_no_result_says_why() {
        let known: Known = toml::from_str(&DATA.replace(
            "experiment = \"chain\"\n        [[run]]",
            "experiment = \"chain\"\n        slow = \"it takes a day\"\n        [[run]]",
        ))
        .unwrap();
        let dir = tempfile::tempdir().unwrap();
        write(&known, &Folder(dir.path().into()), WORDS).unwrap();
        let text = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
        let wanted = "Not measured: `sluice bench chain` has no result here and is not part of --quick: it takes a day.";
        assert!(text.contains(wanted) && text.contains("Not measured: no experiment."), "{text}");
    }

    #[test]
    fn a_result_without_a_variant_is_not_drawn() {
        let known: Known = toml::from_str(
            "figure = [{ paper = \"resq\", name = \"Table 1\", claim = \"Misses.\", experiment = \"chain\" }]\n\
             run = [{ experiment = \"chain\", slow = \"it takes a day\" }]",
        )
        .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().into());
        let words = |result: Report| {
            result.write(&folder.file("chain", "json")).unwrap();
            write(&known, &folder, WORDS).unwrap()
        };
        assert_eq!(words(report("chain", &[])), "ResQ (NSDI 2018): 1 not measured");
        assert_eq!(words(report("chain", &[("poll", &[1.0])])), "ResQ (NSDI 2018): 1 drawn only");
    }

    #[test]
    fn a_host_that_lacks_what_a_figure_shows_has_not_measured_it() {
        let known: Known = toml::from_str(
            "figure = [{ paper = \"nfvnice\", name = \"Section 4\", claim = \"Caches.\", experiment = \"chain\", \
             shows = [\"instructions_per_cycle\"], missing = \"hosts may have no counters\" }]\n\
             run = [{ experiment = \"chain\", slow = \"it takes a day\" }]",
        )
        .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().into());
        let text = |result: &Report| {
            result.write(&folder.file("chain", "json")).unwrap();
            let [_, text, _] = texts(&known, &folder, WORDS);
            text
        };
        let mut chain = report("chain", &[("poll", &[1.0])]);
        let without = text(&chain);
        let wanted = "### Section 4: not measured\n\nCaches.\n\nNot measured: hosts may have no counters.\n";
        assert!(without.contains(wanted), "{without}");
        assert!(!without.contains("sluice bench chain"), "{without}");
        let (name, params) = ("instructions_per_cycle".to_string(), Default::default());
        chain.left_out.push(crate::bench::report::LeftOut { name, params, why: "it needs root".into() });
        assert!(text(&chain).contains("\n\nNot measured: it needs root.\n"), "{}", text(&chain));
        chain.variants[0].add("instructions_per_cycle", 1.5);
        let with = text(&chain);
        assert!(with.contains("### Section 4: drawn only") && with.contains("| poll nfs 3 | 1.50 |"), "{with}");
    }

    #[test]
    fn the_simulators_error_is_of_what_was_simulated() {
        let known: Known = toml::from_str(DATA).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().into());
        let mut chain = report("chain", &[("a", &[1.0]), ("b", &[1.0]), ("c", &[1.0])]);
        for (variant, (error, is_simulated)) in chain.variants.iter_mut().zip([(-4.0, true), (12.0, true), (90.0, false)]) {
            variant.add("error_percent", error);
            if is_simulated {
                variant.add("simulated_pps", 1.0);
            }
        }
        chain.write(&folder.file("chain", "json")).unwrap();
        write(&known, &folder, WORDS).unwrap();
        let text = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
        let wanted = "| chain | 2 | 1 | 8.0 % |\n\n1 of 2 within 10 %; the goal is 9 of 10: not met\n";
        assert!(text.ends_with(wanted), "{text}");
        let page = std::fs::read_to_string(dir.path().join("index.html")).unwrap();
        assert!(
            page.contains("<td>chain, a nfs 3</td><td class=\"n\">1.00</td><td class=\"n\">1.00</td><td class=\"n\">-4.0 %</td>"),
            "{page}"
        );
    }

    #[test]
    fn a_value_beside_its_bound_has_the_digits_that_say_on_which_side() {
        let of = |value| number_beside(value, 0.95);
        assert_eq!([0.9525, 0.95, 0.94, 0.94999].map(of), ["0.953", "0.95", "0.94", "0.94999"]);
        assert_eq!([number_beside(20_001.0, 20_000.0), number_beside(0.0, 1.0)], ["20001.000", "0.00"]);
    }

    #[test]
    fn small_numbers_keep_their_digits() {
        assert_eq!([0.0, 0.0031, 0.5, 2.0, 8.9e6].map(number), ["0.00", "0.0031", "0.50", "2.00", "8.90 M"]);
    }
}
