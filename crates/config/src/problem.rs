//! Problems of a configuration, in one clear form.
//!
//! Terms: a *place* ([`At`]) names a value by section, number and key, so that the checks need no
//! text. A *location* is the line and column of a place in its file; `SourceText::locate` finds it.
//! A problem prints as
//! ```text
//! sluice.toml:12:9: error: no chain is called "wbe"
//!    |
//! 12 | chain = "wbe"
//!    |         ^^^^^
//!    = did you mean "web"?
//! ```
//! and without a file (a change through the API) as `rule[0].chain: no chain is called "wbe"`.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Whether a problem makes the configuration unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It does.
    Error,
    /// It does not, but the value is probably a mistake.
    Warning,
}

/// A value of a configuration: section, entry, key and list item. Numbers count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct At {
    /// Name of the section, such as `manager` or `port`.
    pub section: &'static str,
    /// Index of the entry, in sections with several.
    pub entry: Option<usize>,
    /// Key; empty for the entry itself. A key of a nested table is written `table.key`.
    pub key: &'static str,
    /// Index of the item, in a list.
    pub item: Option<usize>,
}

impl At {
    /// A key of a section that occurs once.
    pub fn key(section: &'static str, key: &'static str) -> Self {
        Self { section, entry: None, key, item: None }
    }

    /// A key of an entry.
    pub fn entry(section: &'static str, entry: usize, key: &'static str) -> Self {
        Self { section, entry: Some(entry), key, item: None }
    }

    /// An item of this key's list.
    pub fn item(self, item: usize) -> Self {
        Self { item: Some(item), ..self }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.section)?;
        if let Some(entry) = self.entry {
            write!(f, "[{entry}]")?;
        }
        if !self.key.is_empty() {
            write!(f, ".{}", self.key)?;
        }
        match self.item {
            Some(item) => write!(f, "[{item}]"),
            None => Ok(()),
        }
    }
}

/// A location in a file, with the text that shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Location {
    /// Name of the file, as it was given.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The line, or the part of a long one around the column.
    pub text: String,
    /// Characters of `text` before the marked part.
    pub before: usize,
    /// Number of marked characters, at least 1.
    pub marked: usize,
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Error or warning.
    pub severity: Severity,
    /// The value with the problem.
    pub at: Option<At>,
    /// An earlier value that it conflicts with.
    pub earlier: Option<At>,
    /// Its location in the file.
    pub location: Option<Location>,
    /// Line of `earlier`.
    pub earlier_line: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: String,
}

impl Problem {
    /// An error at a place.
    pub fn error(at: At, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            at: Some(at),
            earlier: None,
            location: None,
            earlier_line: None,
            message: message.into(),
            help: help.into(),
        }
    }

    /// A warning at a place.
    pub fn warning(at: At, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(at, message, help) }
    }

    /// An error without a place.
    pub fn nowhere(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { at: None, ..Self::error(At::key("", ""), message, help) }
    }

    /// Adds the earlier place that it conflicts with.
    pub fn after(self, earlier: At) -> Self {
        Self { earlier: Some(earlier), ..self }
    }

    /// Whether it makes the configuration unusable.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.location, &self.at) {
            (Some(l), _) => write!(f, "{}:{}:{}: ", l.file, l.line, l.column)?,
            (None, Some(at)) => write!(f, "{at}: ")?,
            (None, None) => {}
        }
        match (self.severity, &self.location) {
            (Severity::Warning, _) => f.write_str("warning: ")?,
            // In the format of compilers, which editors parse.
            (Severity::Error, Some(_)) => f.write_str("error: ")?,
            (Severity::Error, None) => {}
        }
        f.write_str(&self.message)?;
        let mut margin = 1;
        if let Some(l) = &self.location {
            let number = l.line.to_string();
            margin = number.len();
            // Tabs are kept so that the marks line up.
            let indent: String = l.text.chars().take(l.before).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            write!(f, "\n{:margin$} |\n{number} | {}\n{:margin$} | {indent}{}", "", l.text, "", "^".repeat(l.marked))?;
        }
        if let (Some(earlier), line) = (&self.earlier, self.earlier_line) {
            match line {
                Some(line) => write!(f, "\n{:margin$} = the first is on line {line}", "")?,
                None => write!(f, "\n{:margin$} = the first is {earlier}", "")?,
            }
        }
        if !self.help.is_empty() {
            write!(f, "\n{:margin$} = {}", "", self.help)?;
        }
        Ok(())
    }
}

/// Why a configuration was refused: at least one error, and the warnings found with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigErrors {
    /// In file order.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// Number of errors, without warnings.
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|p| p.is_error()).count()
    }

    /// Counts errors and warnings in words: `2 errors and 1 warning`.
    pub fn count(&self) -> String {
        count(&self.problems)
    }
}

/// Counts errors and warnings in words: `2 errors and 1 warning`. Leaves out a kind with none.
pub fn count(problems: &[Problem]) -> String {
    let errors = problems.iter().filter(|problem| problem.is_error()).count();
    let words = [(errors, "error"), (problems.len() - errors, "warning")];
    let words = words.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}{}", if *n == 1 { "" } else { "s" }));
    words.collect::<Vec<_>>().join(" and ")
}

impl From<ConfigErrors> for sluice_api::ApiError {
    fn from(errors: ConfigErrors) -> Self {
        Self::unprocessable(errors.to_string().trim_end(), "nothing was changed; mend the configuration and send it again")
    }
}

impl From<Problem> for ConfigErrors {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The text that a configuration was read from, and its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceText {
    name: String,
    text: String,
}

/// Characters of a line that are shown at most.
const SHOWN: usize = 120;

impl SourceText {
    /// A text and the name of its file.
    pub fn new(name: &str, text: &str) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Gives every problem its location, and sorts the problems in file order.
    pub(crate) fn locate(&self, problems: &mut [Problem]) {
        let lacks_line = |problem: &Problem| problem.location.is_none() && problem.at.is_some() || problem.earlier.is_some();
        // Most texts have no problem, or only some that were found in the text itself.
        if problems.iter().any(lacks_line) {
            let Ok(root) = DeTable::parse(&self.text) else { return };
            for problem in problems.iter_mut() {
                if problem.location.is_none() {
                    problem.location = problem.at.and_then(|at| span(&root, at)).map(|s| self.location(s));
                }
                problem.earlier_line = problem.earlier.and_then(|at| span(&root, at)).map(|s| self.location(s).line);
            }
        }
        problems.sort_by_key(|p| p.location.as_ref().map(|l| (l.line, l.column)));
    }

    /// An error at a part of the text.
    pub fn problem(&self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Problem {
        Problem { location: Some(self.location(span)), ..Problem::nowhere(message, help) }
    }

    /// Line and column of a part of the text, cut at the end of its first line.
    pub fn location(&self, span: Range<usize>) -> Location {
        let text = &self.text;
        let start = floor(text, span.start);
        let end = floor(text, span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        let line = text[line_start..line_end].trim_end_matches('\r');
        let column = text[line_start..start].chars().count();
        let marked = text[start..end.min(line_end)].trim_end().chars().count().max(1);
        let cut = if column + marked > SHOWN { column.saturating_sub(SHOWN / 2) } else { 0 };
        // Control characters could manipulate a terminal.
        let clean = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
        let shown: String = line.chars().skip(cut).take(SHOWN).map(clean).collect();
        Location {
            file: self.name.clone(),
            line: text[..start].matches('\n').count() + 1,
            column: column + 1,
            text: shown,
            before: column - cut,
            marked: marked.min((SHOWN + cut).saturating_sub(column)).max(1),
        }
    }
}

/// The last character boundary at or before a byte.
fn floor(text: &str, byte: usize) -> usize {
    (0..=byte.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// Span of a place: the value, else the name of its entry, else the entry, else None.
fn span(root: &Spanned<DeTable<'_>>, at: At) -> Option<Range<usize>> {
    let section = root.get_ref().get(at.section)?;
    let entry = match (section.get_ref(), at.entry) {
        (DeValue::Array(entries), Some(i)) => entries.get(i)?,
        (DeValue::Table(_), None) => section,
        _ => return Some(section.span()),
    };
    let DeValue::Table(table) = entry.get_ref() else { return Some(entry.span()) };
    let (key, inner) = at.key.split_once('.').unwrap_or((at.key, ""));
    let Some(value) = table.get(key) else {
        return Some(table.get("name").map_or(entry.span(), Spanned::span));
    };
    let value = match value.get_ref() {
        DeValue::Table(table) => table.get(inner).unwrap_or(value),
        _ => value,
    };
    match (value.get_ref(), at.item) {
        (DeValue::Array(items), Some(i)) => Some(items.get(i).unwrap_or(value).span()),
        _ => Some(value.span()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_its_line() {
        let source = SourceText::new("a.toml", "[[rule]]\n\tchain = \"wbe\"\n");
        let mut problems = [Problem::error(At::entry("rule", 0, "chain"), "no chain is called \"wbe\"", "did you mean \"web\"?")];
        assert_eq!(problems[0].to_string(), "rule[0].chain: no chain is called \"wbe\"\n  = did you mean \"web\"?");
        source.locate(&mut problems);
        assert_eq!(
            problems[0].to_string(),
            "a.toml:2:10: error: no chain is called \"wbe\"\n  |\n2 | \tchain = \"wbe\"\n  | \t        ^^^^^\n  = did you mean \"web\"?"
        );
    }

    #[test]
    fn problems_are_counted_in_words() {
        let at = At::key("manager", "rx");
        let (error, warning) = (Problem::error(at, "m", ""), Problem::warning(at, "m", ""));
        let count = |problems: &[&Problem]| count(&problems.iter().copied().cloned().collect::<Vec<_>>());
        assert_eq!(count(&[&error]), "1 error");
        assert_eq!(count(&[&warning, &error, &error]), "2 errors and 1 warning");
        assert_eq!(count(&[&warning, &warning]), "2 warnings");
    }

    #[test]
    fn a_key_that_is_not_written_is_shown_at_its_entry() {
        let source = SourceText::new("a.toml", "[[port]]\nname = \"in\"\n[memory]\n[[rule]]\n");
        let line = |at| {
            let mut problems = [Problem::warning(at, "m", "")];
            source.locate(&mut problems);
            problems[0].location.as_ref().map(|l| l.line)
        };
        assert_eq!(line(At::entry("port", 0, "queues")), Some(2));
        assert_eq!(line(At::entry("rule", 0, "port")), Some(4));
        assert_eq!(line(At::key("memory", "frames")), Some(3));
        assert_eq!(line(At::key("manager", "rx")), None);
    }

    #[test]
    fn long_lines_are_cut_around_the_mark() {
        let text = format!("x = \"{}\"; oops", "é".repeat(400));
        let start = text.find("oops").unwrap();
        let location = SourceText::new("a", &text).location(start..start + 4);
        assert_eq!((location.line, location.column, location.marked), (1, 409, 4));
        assert_eq!(location.text.chars().skip(location.before).collect::<String>(), "oops");
        assert!(location.text.chars().count() <= SHOWN);
        // A span may begin inside a character and end beyond the text.
        SourceText::new("a", "é").location(1..900);
    }
}
