//! Reports of an NF's counters and tables: on SIGUSR1, at an interval, and at the end.
//!
//! The NF passes a [`Report`] of plain values to a separate thread, which formats and writes it, so
//! that no packet waits for a disk. While that thread is busy, new reports are left out, except the
//! last one.
//!
//! As text a report is one line of counters and a table for people; as JSON it is one line with one
//! object, whose keys are `nf`, `time_s` (seconds since 1970), `counters` (an object of numbers)
//! and a list of objects for each table. A file holds only the latest report, and is replaced as a
//! whole; on standard output they follow each other.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use signal_hook::consts::SIGUSR1;
use sluice_nf::{Burst, Handler};

/// Time between two checks whether a report is wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Destination and times of reports.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Reports (also written on SIGUSR1 and at the end)")]
pub struct ReportArgs {
    /// File for the reports; it holds the latest one. Without it they go to standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Format of the reports
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Seconds between reports; 0: none at an interval
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub every: u64,
}

/// Format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// Counters and aligned tables
    #[default]
    Table,
    /// One JSON object on one line
    Json,
}

/// Counters and tables at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    nf: &'static str,
    time: SystemTime,
    counters: Vec<(&'static str, u64)>,
    tables: Vec<ReportTable>,
}

/// One table of a report. Numbers are right-aligned.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportTable {
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Vec<Value>>,
}

impl Report {
    /// An empty report of this NF, taken now.
    pub fn new(nf: &'static str) -> Self {
        Self { nf, time: SystemTime::now(), counters: Vec::new(), tables: Vec::new() }
    }

    #[must_use]
    pub fn counter(mut self, name: &'static str, value: u64) -> Self {
        self.counters.push((name, value));
        self
    }

    /// Adds a table. Each row has a cell for each column.
    #[must_use]
    pub fn table(mut self, name: &'static str, columns: &'static [&'static str], rows: Vec<Vec<Value>>) -> Self {
        debug_assert!(rows.iter().all(|row| row.len() == columns.len()));
        self.tables.push(ReportTable { name, columns, rows });
        self
    }

    /// Wall-clock time in seconds since 1970 (with microseconds) of a monotonic time, at `now_ns`.
    pub fn wall_clock_s(&self, at_ns: u64, now_ns: u64) -> f64 {
        let ago = Duration::from_nanos(now_ns.saturating_sub(at_ns));
        seconds(self.time.checked_sub(ago).unwrap_or(UNIX_EPOCH))
    }

    /// A counter's value, by its name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    /// The report as one line of JSON.
    pub fn to_json(&self) -> String {
        let mut object = Map::new();
        object.insert("nf".into(), self.nf.into());
        object.insert("time_s".into(), json!(seconds(self.time)));
        object.insert(
            "counters".into(),
            self.counters.iter().map(|&(name, n)| (name.to_string(), n.into())).collect::<Map<_, _>>().into(),
        );
        for table in &self.tables {
            let rows = table.rows.iter().map(|row| {
                let cells = table.columns.iter().zip(row).map(|(column, cell)| (column.to_string(), cell.clone()));
                Value::from(cells.collect::<Map<_, _>>())
            });
            object.insert(table.name.into(), rows.collect());
        }
        format!("{}\n", Value::from(object))
    }

    /// The report as text for people.
    pub fn to_text(&self) -> String {
        let mut text = format!("{} at {:.3}:", self.nf, seconds(self.time));
        for (name, n) in &self.counters {
            let _ = write!(text, " {name} {n}");
        }
        text.push('\n');
        for table in &self.tables {
            table.write_text(&mut text);
        }
        text
    }
}

impl ReportTable {
    fn write_text(&self, text: &mut String) {
        let cell = |value: &Value| match value {
            Value::String(s) => s.clone(),
            Value::Null => "-".into(),
            Value::Number(n) if n.is_f64() => format!("{:.6}", n.as_f64().unwrap_or_default()),
            other => other.to_string(),
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
        let width = |i: usize| rows.iter().map(|row| row[i].len()).chain([self.columns[i].len()]).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let right: Vec<bool> = (0..self.columns.len()).map(|i| self.rows.first().is_some_and(|row| row[i].is_number())).collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut out = String::new();
            for ((cell, width), right) in cells.zip(&widths).zip(&right) {
                let _ = if *right { write!(out, "  {cell:>width$}") } else { write!(out, "  {cell:<width$}") };
            }
            text.push_str(out.trim_end());
            text.push('\n');
        };
        line(&mut self.columns.iter().copied());
        for row in &rows {
            line(&mut row.iter().map(String::as_str));
        }
    }
}

/// Seconds since 1970, to the microsecond, which a double can hold.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64 / 1e6
}

/// Writes reports in a separate thread.
#[derive(Debug)]
pub struct Reporter {
    asked: Arc<AtomicBool>,
    every_ns: u64,
    next_ns: Option<u64>,
    sender: Option<SyncSender<Report>>,
    writer: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts the thread and catches SIGUSR1. Fails if the file cannot be written.
    pub fn start(args: &ReportArgs) -> io::Result<Self> {
        if let Some(path) = &args.report {
            // Fail at the start, not at the end.
            replace(path, "").map_err(|e| io::Error::new(e.kind(), format!("cannot write reports to {}: {e}", path.display())))?;
        }
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, asked.clone())?;
        let (sender, reports) = sync_channel(1);
        let (path, format) = (args.report.clone(), args.format);
        let writer =
            std::thread::Builder::new().name("report".into()).spawn(move || write_all(&reports, path.as_deref(), format))?;
        let every_ns = args.every.saturating_mul(1_000_000_000);
        Ok(Self { asked, every_ns, next_ns: None, sender: Some(sender), writer: Some(writer) })
    }

    pub fn is_due(&mut self, now_ns: u64) -> bool {
        let next = *self.next_ns.get_or_insert(now_ns.saturating_add(self.every_ns));
        let in_turn = self.every_ns > 0 && now_ns >= next;
        if in_turn {
            self.next_ns = Some(now_ns.saturating_add(self.every_ns));
        }
        // Relaxed: the flag publishes no other data.
        self.asked.swap(false, Ordering::Relaxed) || in_turn
    }

    /// Sends a report. Never blocks: while the last one is being written, the report is left out.
    pub fn send(&self, report: Report) {
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(report);
        }
    }

    /// Whether the last report is still to come.
    pub fn is_running(&self) -> bool {
        self.sender.is_some()
    }

    /// Sends the last report and waits until it is written.
    pub fn finish(&mut self, report: Report) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(report);
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

pub trait Reports {
    /// Its counters and tables; `now_ns` is the time of the last burst or tick.
    fn report(&self, now_ns: u64) -> Report;
}

/// A handler with reports: on SIGUSR1, at an interval, and when it ends for any reason.
#[derive(Debug)]
pub struct Reported<H: Reports> {
    handler: H,
    reporter: Reporter,
    now_ns: u64,
}

impl<H: Reports> Reported<H> {
    /// Starts the reporter's thread, as [`Reporter::start`].
    pub fn new(handler: H, args: &ReportArgs) -> io::Result<Self> {
        Ok(Self { handler, reporter: Reporter::start(args)?, now_ns: 0 })
    }
}

impl<H: Handler + Reports> Handler for Reported<H> {
    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        self.now_ns = burst.now_ns();
        self.handler.burst(burst);
    }

    fn tick(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.handler.tick(now_ns);
        if self.reporter.is_due(now_ns) {
            self.reporter.send(self.handler.report(now_ns));
        }
    }

    fn tick_every(&self) -> Option<Duration> {
        Some(self.handler.tick_every().map_or(LOOK_EVERY, |own| own.min(LOOK_EVERY)))
    }

    fn clean(&mut self) {
        // First, because nothing is left afterwards.
        self.reporter.finish(self.handler.report(self.now_ns));
        self.handler.clean();
    }
}

impl<H: Reports> Drop for Reported<H> {
    /// Sends the last report of an NF that was not stopped in order: its manager died, or it
    /// panicked.
    fn drop(&mut self) {
        if self.reporter.is_running() {
            self.reporter.finish(self.handler.report(self.now_ns));
        }
    }
}

fn write_all(reports: &Receiver<Report>, path: Option<&Path>, format: Format) {
    for report in reports {
        let text = match format {
            Format::Table => report.to_text(),
            Format::Json => report.to_json(),
        };
        let written = match path {
            Some(path) => replace(path, &text),
            None => io::stdout().lock().write_all(text.as_bytes()),
        };
        if let Err(e) = written {
            eprintln!("cannot write a report: {e}");
        }
    }
}

/// Replaces a file atomically, so that a reader sees the old report or the new one. A pipe or a
/// terminal is written to instead.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if path.metadata().is_ok_and(|m| !m.is_file()) {
        return std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes());
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}", std::process::id()));
    let fresh = path.with_file_name(name);
    std::fs::write(&fresh, text)?;
    std::fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use sluice_nf::harness::Harness;

    use super::*;

    fn report() -> Report {
        let rows = vec![vec!["10.0.0.1".into(), 5.into()], vec!["10.0.0.200".into(), 1234.into()]];
        Report::new("monitor").counter("packets", 7).table("flows", &["src", "packets"], rows)
    }

    #[test]
    fn text_is_aligned_and_json_has_every_cell() {
        let text = report().to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("monitor at ") && lines[0].ends_with(": packets 7"), "{text}");
        assert_eq!(lines[1], "  src         packets");
        assert_eq!(lines[2], "  10.0.0.1          5");
        assert_eq!(lines[3], "  10.0.0.200     1234");
        let json: Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["counters"]["packets"], 7);
        assert_eq!(json["flows"][1], json!({"src": "10.0.0.200", "packets": 1234}));
    }

    #[test]
    fn a_moment_becomes_wall_clock_time() {
        let report = report();
        let s = report.wall_clock_s(3_000_000_000, 5_000_000_000);
        assert!((seconds(report.time) - s - 2.0).abs() < 1e-5);
    }

    #[test]
    fn reports_are_due_on_the_signal_and_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let args = ReportArgs { report: Some(path.clone()), format: Format::Json, every: 10 };
        let mut reporter = Reporter::start(&args).unwrap();
        assert!(!reporter.is_due(1_000_000_000));
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert!(reporter.is_due(2_000_000_000));
        assert!(!reporter.is_due(3_000_000_000));
        assert!(reporter.is_due(11_000_000_000));
        assert!(!reporter.is_due(12_000_000_000));
        reporter.finish(report());
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(json["nf"], "monitor");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_handler_reports_at_its_end_however_it_ends() {
        struct Counting(u64);
        impl Handler for Counting {
            fn burst(&mut self, burst: &mut Burst<'_>) {
                self.0 += burst.len() as u64;
            }
            fn clean(&mut self) {
                self.0 = 0;
            }
        }
        impl Reports for Counting {
            fn report(&self, _now_ns: u64) -> Report {
                Report::new("counting").counter("packets", self.0)
            }
        }
        for clean in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("report");
            let args = ReportArgs { report: Some(path.clone()), ..Default::default() };
            let mut nf = Harness::new(Reported::new(Counting(0), &args).unwrap());
            assert_eq!(nf.handler().tick_every(), Some(LOOK_EVERY));
            nf.burst(&[[0u8; 60]; 5]);
            nf.tick(1);
            if clean {
                nf.clean();
            }
            drop(nf);
            assert!(std::fs::read_to_string(&path).unwrap().ends_with(": packets 5\n"));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
        let args = ReportArgs { report: Some("/nonexistent/report".into()), ..Default::default() };
        let error = Reporter::start(&args).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/report"), "{error}");
    }
}
