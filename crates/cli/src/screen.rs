//! What live views draw with, and the same as text for pipes.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use crate::table::Tone;

/// A table. A leading `>` in a heading marks a column of numbers.
pub fn table(columns: &[(&'static str, Constraint)], rows: Vec<Row<'static>>) -> Table<'static> {
    let head = columns.iter().map(|(name, _)| match name.strip_prefix('>') {
        Some(name) => Line::from(name).right_aligned(),
        None => Line::from(*name),
    });
    let head = Row::new(head.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, columns.iter().map(|(_, width)| *width)).header(head).column_spacing(1)
}

/// The style of a tone.
pub fn style(tone: Tone, has_colour: bool) -> Style {
    match tone {
        _ if !has_colour => Style::new(),
        Tone::Plain => Style::new(),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red),
    }
}

/// What is drawn into an area of this size, as lines of text.
pub fn text(width: u16, rows: usize, draw: impl FnOnce(Rect, &mut Buffer)) -> String {
    let area = Rect::new(0, 0, width, u16::try_from(rows).unwrap_or(u16::MAX));
    let mut buffer = Buffer::empty(area);
    draw(area, &mut buffer);
    let mut text = String::new();
    for y in 0..area.height {
        let line: String = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
