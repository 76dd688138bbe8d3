//! Output to stderr, and its rate limit.
//!
//! Events are `tracing`'s; the daemon writes each with [`write()`]. [`Notices`] is for events whose
//! number other processes control.
//!
//! # Problem
//! Any client of the NF socket can open and close connections in a loop, and an NF can end again
//! and again. A line for each fills the disk and hides what matters.
//!
//! # Approach
//! Each kind of line has a key. For each key [`BURST`] lines are logged in [`EVERY`]. Further lines
//! are counted: the next logged line, or [`Notices::flush`], reports their number.
//!
//! # Limits
//! The text of suppressed lines is lost. At most [`MOST`] keys are kept; beyond that, keys without
//! suppressed lines are forgotten first, and if there are none a line is suppressed.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Maximum wait for a reader of stderr.
const PATIENCE: Duration = Duration::from_millis(200);
/// Bytes that a writable pipe accepts without blocking (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Writes lines to stderr. They are lost if stderr is closed, or stays full for a short wait.
///
/// `std::eprintln` panics where stderr is closed, full or broken, and every holder of the open file
/// can cause that. In the daemon clippy refuses it.
pub fn write(lines: &str) {
    let mut stderr = std::io::stderr().lock();
    for piece in lines.as_bytes().chunks(PIECE) {
        if !takes_more(&stderr) || stderr.write_all(piece).is_err() {
            return;
        }
    }
}

/// Whether a write will not block. Waits for that, unless the last wait was in vain.
fn takes_more(file: &impl AsFd) -> bool {
    static IS_STUCK: AtomicBool = AtomicBool::new(false);
    // Relaxed: it is set and read under the lock of stderr.
    let patience = if IS_STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
    let until = Timespec { tv_sec: 0, tv_nsec: patience.as_nanos() as _ };
    let ready = loop {
        match poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&until)) {
            Err(Errno::INTR) => {}
            ready => break ready != Ok(0),
        }
    };
    IS_STUCK.store(!ready, Ordering::Relaxed);
    ready
}

/// An error and its causes in one line, with colons between, without repeated causes.
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

/// Period in which at most [`BURST`] lines of a key are logged.
pub const EVERY: Duration = Duration::from_secs(10);
/// Maximum number of lines of a key in [`EVERY`].
pub const BURST: u32 = 5;
pub const MOST: usize = 4096;

#[derive(Debug)]
struct Kind {
    since: Instant,
    logged: u32,
    left_out: u64,
    last: String,
}

/// Lines by key, and the number logged of each.
#[derive(Debug)]
pub struct Notices<K> {
    kinds: HashMap<K, Kind>,
    log: fn(&str),
}

impl<K: Eq + Hash> Notices<K> {
    /// Lines go to `log`, which sets the level and target of its events.
    pub fn new(log: fn(&str)) -> Self {
        Self { kinds: HashMap::new(), log }
    }

    /// The line to log now, if any.
    #[must_use]
    pub fn line(&mut self, key: K, now: Instant, line: impl FnOnce() -> String) -> Option<String> {
        if let Some(kind) = self.kinds.get_mut(&key) {
            if now.duration_since(kind.since) >= EVERY {
                (kind.since, kind.logged) = (now, 0);
            } else if kind.logged >= BURST {
                kind.left_out += 1;
                kind.last = line();
                return None;
            }
            kind.logged += 1;
            return Some(with_count(&line(), std::mem::take(&mut kind.left_out)));
        }
        if self.kinds.len() >= MOST {
            self.kinds.retain(|_, kind| now.duration_since(kind.since) < EVERY || kind.left_out > 0);
            if self.kinds.len() >= MOST {
                return None;
            }
        }
        self.kinds.insert(key, Kind { since: now, logged: 1, left_out: 0, last: String::new() });
        Some(line())
    }

    /// Lines that report suppressed ones after [`EVERY`]. Forgets keys that were quiet.
    #[must_use]
    pub fn flush(&mut self, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        self.kinds.retain(|_, kind| {
            if now.duration_since(kind.since) < EVERY {
                return true;
            }
            let left_out = std::mem::take(&mut kind.left_out);
            if left_out == 0 {
                return false;
            }
            (kind.since, kind.logged) = (now, 1);
            lines.push(with_count(&std::mem::take(&mut kind.last), left_out - 1));
            true
        });
        lines
    }

    /// Logs a line, unless it is suppressed.
    pub fn print(&mut self, key: K, line: impl FnOnce() -> String) {
        self.line(key, Instant::now(), line).iter().for_each(|line| (self.log)(line));
    }

    /// Logs reports of suppressed lines that are due.
    pub fn print_rest(&mut self, now: Instant) {
        self.flush(now).iter().for_each(|line| (self.log)(line));
    }
}

/// Maximum number of characters quoted from another process.
const QUOTED: usize = 200;

/// Adds a text of another process to a line, with control characters (also newlines) escaped.
pub fn add_escaped(text: &str, line: &mut String) {
    for c in text.chars() {
        match c {
            '\t' => line.push(c),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
}

/// The beginning of a text of another process, as part of a line.
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
    fn a_few_lines_in_ten_seconds_and_a_count_of_the_others() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut notices = Notices::new(|_| ());
        let mut printed = Vec::new();
        for ms in (0..25_000).step_by(10) {
            printed.extend(notices.line("closed", at(ms), || format!("closed {ms}")));
        }
        let expected = [0, 10, 20, 30, 40, 10_000, 10_010, 10_020, 10_030, 10_040, 20_000, 20_010, 20_020, 20_030, 20_040];
        let expected = expected.map(|ms| match ms {
            10_000 | 20_000 => format!("closed {ms} (995 more such lines left out)"),
            _ => format!("closed {ms}"),
        });
        assert_eq!(printed, expected);
        // Another key has its own limit.
        assert_eq!(notices.line("ended", at(25_000), || "ended".into()).as_deref(), Some("ended"));
        assert!(notices.flush(at(29_999)).is_empty());
        assert_eq!(notices.flush(at(30_000)), ["closed 24990 (494 more such lines left out)"]);
        assert!(notices.flush(at(40_000)).is_empty() && notices.kinds.is_empty(), "quiet keys are forgotten");
        assert_eq!(notices.line("closed", at(40_001), || "closed".into()).as_deref(), Some("closed"));
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
        let mut notices = Notices::new(|_| ());
        for key in 0..2 * MOST {
            let printed = notices.line(key, start, || "x".into());
            assert_eq!(printed.is_some(), key < MOST);
        }
        assert!(notices.line(2 * MOST, start + EVERY, || "x".into()).is_some(), "those of before are forgotten");
    }
}
