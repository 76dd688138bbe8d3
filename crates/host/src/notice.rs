//! Lines on stderr, which is the daemon's log.
//!
//! [`log_line!`](crate::log_line) writes one, whatever becomes of it. [`Notices`] is for lines
//! whose number other processes decide.
//!
//! # Problem
//! Whoever can reach the NF socket can open and close connections in a loop, and an NF can end again and again. A line for each fills
//! the disk and hides what matters.
//!
//! # Approach
//! Each kind of line has a key. One line of a key is printed at once, and the next one [`EVERY`] later at the earliest. Lines in between
//! are left out and counted: the next line that is printed, or [`Notices::flush`], says how many.
//!
//! # Limits
//! What was left out is not said in words. At most [`MOST`] keys are remembered; beyond that, those that have nothing to say are forgotten
//! first, and if there are none a line is left out.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::io::Write;
use std::time::{Duration, Instant};

/// Writes a line to stderr, in one piece, and goes on where that fails: see [`write()`].
///
/// `std::eprintln` panics where stderr is closed, full or broken, and whoever shares the open file
/// can make it so. In the daemon clippy refuses it.
#[macro_export]
macro_rules! log_line {
    ($($part:tt)*) => { $crate::notice::write(::std::format_args!($($part)*)) };
}

/// Writes a line to stderr. A log that nobody reads any more, or that takes nothing for now, is no
/// reason to end: the line is lost.
pub fn write(line: fmt::Arguments<'_>) {
    let line = format!("{line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// An error and its causes in one line, with colons between. A cause that the line says already is not said again.
pub fn in_one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        let cause = cause.to_string();
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// Least time between two lines of a key.
pub const EVERY: Duration = Duration::from_secs(1);
/// Most keys that are remembered.
pub const MOST: usize = 4096;

#[derive(Debug)]
struct Kind {
    at: Instant,
    left_out: u64,
    /// The line that was left out last.
    last: String,
}

/// Lines by key, and when each was printed last.
#[derive(Debug)]
pub struct Notices<K> {
    kinds: HashMap<K, Kind>,
}

impl<K> Default for Notices<K> {
    fn default() -> Self {
        Self { kinds: HashMap::new() }
    }
}

impl<K: Eq + Hash> Notices<K> {
    /// The line to print now, if one is.
    #[must_use]
    pub fn line(&mut self, key: K, now: Instant, line: impl FnOnce() -> String) -> Option<String> {
        if let Some(kind) = self.kinds.get_mut(&key) {
            if now.duration_since(kind.at) < EVERY {
                kind.left_out += 1;
                kind.last = line();
                return None;
            }
            kind.at = now;
            let left_out = std::mem::take(&mut kind.left_out);
            return Some(with_count(&line(), left_out));
        }
        if self.kinds.len() >= MOST {
            self.kinds.retain(|_, kind| now.duration_since(kind.at) < EVERY || kind.left_out > 0);
            if self.kinds.len() >= MOST {
                return None;
            }
        }
        self.kinds.insert(key, Kind { at: now, left_out: 0, last: String::new() });
        Some(line())
    }

    /// Lines about what was left out and has waited for [`EVERY`]. Keys that have been quiet for so long are forgotten.
    #[must_use]
    pub fn flush(&mut self, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        self.kinds.retain(|_, kind| {
            if now.duration_since(kind.at) < EVERY {
                return true;
            }
            let left_out = std::mem::take(&mut kind.left_out);
            if left_out == 0 {
                return false;
            }
            kind.at = now;
            lines.push(with_count(&std::mem::take(&mut kind.last), left_out - 1));
            true
        });
        lines
    }

    /// Prints a line, if its time has come.
    pub fn print(&mut self, key: K, line: impl FnOnce() -> String) {
        self.line(key, Instant::now(), line).into_iter().for_each(|line| log_line!("sluiced: {line}"));
    }

    /// Prints what was left out and has waited long enough.
    pub fn print_rest(&mut self, now: Instant) {
        self.flush(now).into_iter().for_each(|line| log_line!("sluiced: {line}"));
    }
}

/// Most characters of what another process has said that stand in a line.
const QUOTED: usize = 200;

/// Adds a text of another process to a line: control characters, ends of lines too, are escaped.
pub fn add_escaped(text: &str, line: &mut String) {
    for c in text.chars() {
        match c {
            '\t' => line.push(c),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
}

/// The beginning of a text of another process, as a part of a line.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    let end = text.char_indices().nth(QUOTED).map_or(text.len(), |(end, _)| end);
    add_escaped(&text[..end], &mut quoted);
    if end < text.len() {
        quoted.push('…');
    }
    quoted
}

fn with_count(line: &str, left_out: u64) -> String {
    match left_out {
        0 => line.into(),
        n => format!("{line} ({n} more such lines left out)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        #[derive(Debug, thiserror::Error)]
        enum Trouble {
            #[error("cannot make /proc/x: {source}; choose another")]
            Said { source: std::io::Error },
            #[error("cannot read a.toml")]
            Left { source: std::io::Error },
        }
        let source = || std::io::Error::other("no such file");
        assert_eq!(in_one_line(&Trouble::Said { source: source() }), "cannot make /proc/x: no such file; choose another");
        assert_eq!(in_one_line(&Trouble::Left { source: source() }), "cannot read a.toml: no such file");
        assert_eq!(in_one_line(&source()), "no such file");
    }

    #[test]
    fn one_line_a_second_and_a_count_of_the_others() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut notices = Notices::default();
        let mut printed = Vec::new();
        for ms in 0..2_500 {
            printed.extend(notices.line("closed", at(ms), || format!("closed {ms}")));
        }
        assert_eq!(
            printed,
            ["closed 0", "closed 1000 (999 more such lines left out)", "closed 2000 (999 more such lines left out)"]
        );
        // Another key has its own second.
        assert_eq!(notices.line("ended", at(2_500), || "ended".into()).as_deref(), Some("ended"));
        assert!(notices.flush(at(2_999)).is_empty());
        assert_eq!(notices.flush(at(3_000)), ["closed 2499 (498 more such lines left out)"]);
        assert!(notices.flush(at(4_000)).is_empty() && notices.kinds.is_empty(), "quiet keys are forgotten");
        assert_eq!(notices.line("closed", at(4_001), || "closed".into()).as_deref(), Some("closed"));
    }

    #[test]
    fn words_of_others_are_one_short_line() {
        assert_eq!(quoted("no memory"), "no memory");
        assert_eq!(quoted("a\r\nsluiced: \u{1b}[2J"), "a\\r\\nsluiced: \\u{1b}[2J");
        assert_eq!(quoted(&"ü".repeat(QUOTED)), "ü".repeat(QUOTED));
        assert_eq!(quoted(&"ü\n".repeat(QUOTED)), "ü\\n".repeat(QUOTED / 2) + "…");
    }

    #[test]
    fn keys_are_bounded() {
        let start = Instant::now();
        let mut notices = Notices::default();
        for key in 0..2 * MOST {
            let printed = notices.line(key, start, || "x".into());
            assert_eq!(printed.is_some(), key < MOST);
        }
        assert!(notices.line(2 * MOST, start + EVERY, || "x".into()).is_some(), "those of before are forgotten");
    }
}
