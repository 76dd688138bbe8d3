//! Tables for terminals and pipes: aligned columns, and colour on terminals only.

use std::io::{self, IsTerminal, Write};

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Meaning of a cell beyond its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    /// Needs attention.
    Warn,
    Bad,
}

#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

impl Cell {
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

/// A table, printed when it is complete.
#[derive(Debug)]
pub struct Table {
    head: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these columns. A leading `>` in a name marks a column of numbers.
    pub fn new(columns: &[&'static str]) -> Self {
        let head = columns.iter().map(|c| c.strip_prefix('>').map_or((*c, Align::Left), |name| (name, Align::Right))).collect();
        Self { head, rows: Vec::new() }
    }

    /// Adds a row, with one cell per column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    /// Leaves those of these columns out that have 0 in each row.
    pub fn without_zeros(mut self, columns: &[&str]) -> Self {
        for name in columns {
            if let Some(at) = self.head.iter().position(|(column, _)| column == name)
                && self.rows.iter().all(|row| row[at].text == "0")
            {
                self.head.remove(at);
                self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
            }
        }
        self
    }

    /// Prints the table.
    pub fn print(&self, out: &mut dyn Write, colour: bool) -> io::Result<()> {
        self.follow(&mut Vec::new(), out, colour)
    }

    /// Prints the table below others of the same columns, which have left their widths: without a
    /// head, and no narrower. Where there are no widths it is the first.
    pub fn follow(&self, widths: &mut Vec<usize>, out: &mut dyn Write, colour: bool) -> io::Result<()> {
        let width = |text: &str| text.chars().count();
        let is_first = widths.is_empty();
        widths.resize(self.head.len(), 0);
        for (i, most) in widths.iter_mut().enumerate() {
            let own = self.rows.iter().map(|r| width(&r[i].text)).chain([width(self.head[i].0)]).max();
            *most = own.unwrap_or(0).max(*most);
        }
        let line = |out: &mut dyn Write, cells: &mut dyn Iterator<Item = (&str, &str)>| -> io::Result<()> {
            let mut text = String::new();
            for (i, (cell, code)) in cells.enumerate() {
                let pad = " ".repeat(widths[i] - width(cell));
                let cell = if code.is_empty() { cell.to_owned() } else { format!("\x1b[{code}m{cell}\x1b[0m") };
                if i > 0 {
                    text.push_str("  ");
                }
                match self.head[i].1 {
                    Align::Left => text.extend([cell.as_str(), &pad]),
                    Align::Right => text.extend([pad.as_str(), &cell]),
                }
            }
            writeln!(out, "{}", text.trim_end())
        };
        if is_first {
            line(out, &mut self.head.iter().map(|(name, _)| (*name, if colour { "1" } else { "" })))?;
        }
        for row in &self.rows {
            line(out, &mut row.iter().map(|cell| (cell.text.as_str(), if colour { code(cell.tone) } else { "" })))?;
        }
        Ok(())
    }
}

fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "32",
        Tone::Warn => "33",
        Tone::Bad => "31",
    }
}

/// Whether standard output takes colour: a capable terminal, without NO_COLOR
/// (<https://no-color.org>).
pub fn colour() -> bool {
    colour_wanted() && io::stdout().is_terminal()
}

/// Whether colour is wanted, on an output that can show it.
pub fn colour_wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(table: &Table, colour: bool) -> String {
        let mut out = Vec::new();
        table.print(&mut out, colour).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn tables_below_each_other_are_in_line() {
        let (mut out, mut widths) = (Vec::new(), Vec::new());
        for (name, rate) in [("longest", "1"), ("b", "1234567"), ("c", "2")] {
            let mut table = Table::new(&["NAME", ">RATE"]);
            table.row(vec![name.into(), rate.into()]);
            table.follow(&mut widths, &mut out, false).unwrap();
        }
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, "NAME     RATE\nlongest     1\nb        1234567\nc              2\n");
    }

    #[test]
    fn columns_of_zeros_are_left_out_where_that_is_asked_for() {
        let mut table = Table::new(&["NAME", ">DROPS", ">RESTARTS", ">QUEUE"]);
        table.row(vec!["fw.0".into(), "0".into(), "0".into(), "0".into()]);
        table.row(vec!["fw.1".into(), "0".into(), "2".into(), "0".into()]);
        let table = table.without_zeros(&["DROPS", "RESTARTS", "NONE"]);
        assert_eq!(printed(&table, false), "NAME  RESTARTS  QUEUE\nfw.0         0      0\nfw.1         2      0\n");
    }

    #[test]
    fn columns_are_aligned_with_and_without_colour() {
        let mut table = Table::new(&["NAME", ">RATE", "STATE"]);
        table.row(vec!["fw.0".into(), "1.23 µs".into(), Cell::toned("failed", Tone::Bad)]);
        table.row(vec!["longer.1".into(), "7".into(), "".into()]);
        assert_eq!(printed(&table, false), "NAME         RATE  STATE\nfw.0      1.23 µs  failed\nlonger.1        7\n");
        let coloured = printed(&table, true);
        assert!(coloured.contains("\x1b[31mfailed\x1b[0m"));
        let plain = coloured.replace("\x1b[31m", "").replace("\x1b[1m", "").replace("\x1b[0m", "");
        assert_eq!(plain.replace(' ', ""), printed(&table, false).replace(' ', ""));
    }
}
