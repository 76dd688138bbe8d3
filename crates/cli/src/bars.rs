//! Servers as bars of cores and cache ways: letters for terminals, rectangles for SVG.
//!
//! A bar has a cell per core or way, from the lowest. Both pictures use the same list of cells.

use std::fmt::Write as _;
use std::io::{self, Write};

use sluice_slo::placement::{Instance, PlacedServer, Placement, PlacementError};

use crate::number;
use crate::svg::escaped;
use crate::table::Table;

/// Use of a core or way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    /// An SLO, by its index on the server.
    Own(usize),
    /// The shared class.
    Shared,
    Ddio,
    Free,
}

/// A server's cells, and its SLOs by first appearance.
struct Bars<'a> {
    server: &'a PlacedServer,
    slos: Vec<&'a str>,
    cores: Vec<Cell>,
    ways: Vec<Cell>,
    classes: u32,
}

const LETTERS: &[u8] = b"ABCEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Terminal colours; without red, which would look like an error.
const CODES: [&str; 5] = ["32", "33", "34", "35", "36"];
const PALETTE: [&str; 8] = ["#4878a8", "#e49444", "#6a9f58", "#85618e", "#d1615d", "#5ba3a3", "#967662", "#b8a13a"];

impl<'a> Bars<'a> {
    fn of(server: &'a PlacedServer) -> Result<Self, PlacementError> {
        let shape = &server.shape;
        let mut bars = Self {
            server,
            slos: Vec::new(),
            cores: vec![Cell::Free; shape.cores as usize],
            ways: vec![Cell::Free; shape.llc_ways as usize],
            classes: shape.own_classes() - server.room()?.classes,
        };
        bars.ways[shape.ways() as usize..].fill(Cell::Ddio);
        let masks = server.masks();
        for instance in &server.instances {
            let known = bars.slos.iter().position(|slo| *slo == instance.slo);
            let slo = known.unwrap_or_else(|| {
                bars.slos.push(&instance.slo);
                bars.slos.len() - 1
            });
            for core in &instance.cores {
                bars.cores[*core as usize] = Cell::Own(slo);
            }
            let mask = masks.get(&(instance.slo.clone(), instance.number)).copied().unwrap_or(0);
            let cell = if instance.ways == 0 { Cell::Shared } else { Cell::Own(slo) };
            for (way, at) in bars.ways.iter_mut().enumerate() {
                if mask >> way & 1 == 1 {
                    *at = cell;
                }
            }
        }
        Ok(bars)
    }

    /// Used cells of a bar, and all cells but DDIO's.
    fn taken(cells: &[Cell]) -> (usize, usize) {
        let all = cells.iter().filter(|cell| **cell != Cell::Ddio).count();
        (cells.iter().filter(|cell| matches!(cell, Cell::Own(_) | Cell::Shared)).count(), all)
    }

    fn head(&self) -> String {
        let ((cores, of_cores), (ways, of_ways)) = (Self::taken(&self.cores), Self::taken(&self.ways));
        let classes = self.server.shape.own_classes();
        format!(
            "{}: {cores} of {of_cores} cores, {ways} of {of_ways} ways, {} of {classes} classes",
            self.server.name, self.classes
        )
    }

    /// The instances of an SLO here, for people.
    fn says(&self, slo: usize) -> String {
        let own = || self.server.instances.iter().filter(|instance| instance.slo == self.slos[slo]);
        let n = own().count();
        let shared = own().filter(|instance| instance.ways == 0).count();
        let ways: u32 = own().map(|instance| instance.ways).sum();
        let has = match shared {
            0 => format!("{ways} ways"),
            _ if shared == n => "shared class".into(),
            _ => format!("{ways} ways and shared class"),
        };
        let load: f64 = own().map(|instance| instance.load_pps).sum();
        let instances = if n == 1 { String::new() } else { format!("{n} instances, ") };
        format!("{} ({instances}{has}, {})", self.slos[slo], number::rate(load))
    }
}

fn letter(slo: usize) -> char {
    LETTERS[slo % LETTERS.len()] as char
}

fn bars(placement: &Placement) -> Result<Vec<Bars<'_>>, PlacementError> {
    placement.servers.iter().filter(|server| !server.instances.is_empty()).map(Bars::of).collect()
}

/// Servers that are not in use, for people.
fn unused(placement: &Placement) -> Option<String> {
    const SHOWN: usize = 12;
    let names: Vec<&str> = placement.servers.iter().filter(|s| s.instances.is_empty()).map(|s| s.name.as_str()).collect();
    let more = names.len().saturating_sub(SHOWN);
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(" ");
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!names.is_empty()).then(|| format!("not in use: {shown}{more}"))
}

/// Prints servers as bars, a cell for each core and way.
///
/// # Errors
/// More is given away than a server has, or the output's.
pub fn print(placement: &Placement, colour: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    for bars in bars(placement)? {
        writeln!(out, "{}", bars.head())?;
        line(out, "cores", &bars.cores, colour)?;
        line(out, "ways", &bars.ways, colour)?;
        for slo in 0..bars.slos.len() {
            let mark = painted(&letter(slo).to_string(), Cell::Own(slo), colour);
            writeln!(out, "  {mark} {}", bars.says(slo))?;
        }
    }
    if let Some(text) = unused(placement) {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, what: &str, cells: &[Cell], colour: bool) -> io::Result<()> {
    let mut text = String::new();
    for run in cells.chunk_by(|a, b| a == b) {
        let mark = match run[0] {
            Cell::Own(slo) => letter(slo),
            Cell::Shared => '=',
            Cell::Ddio => 'D',
            Cell::Free => '·',
        };
        text.push_str(&painted(&mark.to_string().repeat(run.len()), run[0], colour));
    }
    writeln!(out, "  {what:<5} {text}")
}

fn painted(text: &str, cell: Cell, colour: bool) -> String {
    match cell {
        Cell::Own(slo) if colour => format!("\x1b[7;{}m{text}\x1b[0m", CODES[slo % CODES.len()]),
        Cell::Shared if colour => format!("\x1b[7m{text}\x1b[0m"),
        Cell::Ddio | Cell::Free if colour => format!("\x1b[2m{text}\x1b[0m"),
        _ => text.into(),
    }
}

/// Instances with their servers and the masks of their classes, a row each.
pub fn instances<'a>(rows: impl IntoIterator<Item = (&'a str, &'a Instance, u64)>) -> Table {
    // Unknown on demand.
    let pps = |pps: f64| if pps > 0.0 { number::rate(pps) } else { "-".into() };
    let mut table = Table::new(&["INSTANCE", "SERVER", "CORES", "WAYS", ">CARRIES", ">IS GIVEN"]);
    for (server, instance, mask) in rows {
        let cores = instance.cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let ways = if instance.ways == 0 { format!("shared ({mask:x})") } else { format!("{} ({mask:x})", instance.ways) };
        table.row(vec![
            format!("{}.{}", instance.slo, instance.number).into(),
            server.into(),
            cores.into(),
            ways.into(),
            pps(instance.capacity_pps).into(),
            pps(instance.load_pps).into(),
        ]);
    }
    table
}

const WIDTH: f64 = 800.0;
/// Start and length of bars.
const BAR: (f64, f64) = (70.0, 710.0);
const ROW: f64 = 22.0;

/// The same as a picture. An SLO has the colour of its place among these names.
///
/// # Errors
/// More is given away than a server has.
pub fn svg(placement: &Placement, names: &[&str]) -> anyhow::Result<String> {
    let (mut body, mut y) = (String::new(), 44.0);
    let colour = |name: &str| {
        let place = names.iter().position(|known| *known == name).unwrap_or(0);
        PALETTE[place % PALETTE.len()]
    };
    for bars in bars(placement)? {
        y += 12.0;
        writeln!(body, "<text x=\"12\" y=\"{y:.1}\" font-weight=\"bold\">{}</text>", escaped(&bars.head()))?;
        y += 8.0;
        for (what, cells) in [("cores", &bars.cores), ("ways", &bars.ways)] {
            writeln!(body, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{what}</text>", BAR.0 - 8.0, y + 14.0)?;
            let (cell, mut x) = (BAR.1 / cells.len() as f64, BAR.0);
            for run in cells.chunk_by(|a, b| a == b) {
                let width = cell * run.len() as f64;
                let (fill, text, title) = match run[0] {
                    Cell::Own(slo) => (colour(bars.slos[slo]), bars.slos[slo], bars.says(slo)),
                    Cell::Shared => ("#bbb", "shared", "the shared class".into()),
                    Cell::Ddio => ("#ddd", "DDIO", "ways that DDIO writes to".into()),
                    Cell::Free => ("none", "", format!("{} {what} are free", run.len())),
                };
                writeln!(
                    body,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{fill}\" stroke=\"#222\">\
                     <title>{}</title></rect>",
                    ROW - 4.0,
                    escaped(&title)
                )?;
                // A letter is about seven points wide.
                if !text.is_empty() && text.chars().count() as f64 * 7.0 < width {
                    let ink = if matches!(run[0], Cell::Own(_)) { "white" } else { "black" };
                    let (middle, base) = (x + width / 2.0, y + 13.0);
                    let text = escaped(text);
                    writeln!(body, "<text x=\"{middle:.1}\" y=\"{base:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{text}</text>")?;
                }
                x += width;
            }
            y += ROW;
        }
        y += 8.0;
    }
    if let Some(text) = unused(placement) {
        y += 14.0;
        writeln!(body, "<text x=\"12\" y=\"{y:.1}\">{}</text>", escaped(&text))?;
    }
    let height = y + 14.0;
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"16\">{} of {} servers in use</text>\n{body}</svg>\n",
        placement.used(),
        placement.servers.len()
    ))
}

#[cfg(test)]
mod tests {
    use sluice_slo::examples::shape;

    use super::*;

    fn instance(slo: &str, number: u32, cores: &[u32], ways: u32) -> Instance {
        Instance { slo: slo.into(), number, cores: cores.to_vec(), ways, memory_mib: 1, capacity_pps: 2e6, load_pps: 1e6 }
    }

    fn placement() -> Placement {
        let mut placement = Placement::empty(3, &shape());
        placement.servers[1].instances =
            vec![instance("a<b", 0, &[0, 1], 4), instance("web", 0, &[2], 0), instance("a<b", 1, &[4], 3)];
        placement.check().unwrap();
        placement
    }

    fn printed(colour: bool) -> String {
        let mut out = Vec::new();
        print(&placement(), colour, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bars_have_a_cell_for_each_core_and_way() {
        let expected = "\
s1: 4 of 9 cores, 8 of 18 ways, 3 of 15 classes
  cores AAB·A····
  ways  =··········AAAAAAADD
  A a<b (2 instances, 7 ways, 2.00 M/s)
  B web (shared class, 1.00 M/s)
not in use: s0 s2
";
        assert_eq!(printed(false), expected);
    }

    #[test]
    fn colour_changes_nothing_else() {
        let mut plain = printed(true);
        assert!(plain.contains("\x1b[7;32mAA\x1b[0m"));
        for code in ["\x1b[7;32m", "\x1b[7;33m", "\x1b[7m", "\x1b[2m", "\x1b[0m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, printed(false));
    }

    #[test]
    fn a_picture_has_the_same_cells() {
        let picture = svg(&placement(), &[]).unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert!(picture.contains("1 of 3 servers in use") && picture.contains(">a&lt;b</text>") && !picture.contains("a<b"));
        assert!(picture.contains(&format!("width=\"{:.1}\"", BAR.1 * 7.0 / 20.0)), "{picture}");
        assert!(picture.contains("not in use: s0 s2"));
        assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
    }

    #[test]
    fn many_unused_servers_are_counted() {
        let placement = Placement::empty(20, &shape());
        assert!(unused(&placement).unwrap().ends_with("s11 and 8 more"));
        assert!(bars(&placement).unwrap().is_empty());
    }
}
