//! Pipes that carry the standard output and error of NFs to the daemon's log.
//!
//! # Problem
//! An NF that shares the daemon's own streams can shut them down, make writes to them fail (both
//! belong to the open file, not to the process), erase the log, imitate the daemon's lines, and
//! fill the disk.
//!
//! # Approach
//! Each process that is started for an NF has its own pipe for both streams ([`Stdio::Pipe`]). One
//! thread reads all pipes and logs whole lines, with the name in front: `fw.0: 12 rules`. Control
//! characters are escaped, and a line of more than [`LONGEST`] bytes is cut in pieces. For each
//! name at most [`RATE`] bytes a second are written, and [`BURST`] after a quiet time. The rest is
//! read, dropped and counted; a line reports the count when there is budget for half a burst again.
//!
//! An NF that writes without end blocks in its write: the thread reads at most `PIPES` chunks of
//! `CHUNK` bytes, and then pauses for `PAUSE`.
//!
//! | output of | has the name of |
//! |---|---|
//! | an NF's program and all that it starts; a foreign program | the NF |
//! | a container's runtime, and all that runs in the container | the NF |
//! | a zygote | the zygote: `ids.zygote` |
//! | an instance that a zygote forked | the NF: its pipe comes with the request to fork |
//! | an NF that attaches by itself | it is not read here |
//!
//! # Limits
//! An unfinished line is written when the process ends. The output of processes that outlive their
//! NF's process is lost, and so is an NF's output if no pipe can be made.

use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use sluice_host::spawn::Stdio;

/// Target of the output of NFs in the log. The field `nf` names the NF.
pub const TARGET: &str = "output";
/// Most bytes written per second for a name: 1.4 GB a day, which a disk can take.
pub const RATE: u64 = 16 << 10;
/// Most bytes written at once after a quiet time: a panic with its backtrace, twice.
pub const BURST: u64 = 64 << 10;
/// Least cost of a line, in bytes: two NFs that flood stay below the 333 lines a second above which
/// journald drops lines of a unit, the daemon's own among them.
const LEAST: u64 = 128;
/// Longest line, in bytes, as read from the pipe.
pub const LONGEST: usize = 16 << 10;
/// Bytes read from a pipe at a time: its capacity.
const CHUNK: usize = 64 << 10;
const PIPES: usize = 16;
/// Time between two reads.
const PAUSE: Duration = Duration::from_millis(10);
/// Most chunks read of a pipe whose process has ended: its largest size, 1 MiB.
const LAST: usize = 16;
/// Time between checks whether a count can be written.
const LOOK: Duration = Duration::from_millis(250);

/// Start of this module's own lines; a name of an NF or a zygote has a dot.
const OURS: &str = "sluiced";

/// Token of the eventfd that wakes the thread.
const WAKE: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The NF of this number.
    Nf(u16),
    /// The zygote of the service of this number.
    Zygote(u16),
}

enum Job {
    Read(Source),
    Close(Whose),
}

/// The pipes of all NFs, and the thread that reads them. A drop writes the rest and ends it.
#[derive(Debug)]
pub struct Outputs {
    jobs: Option<Sender<Job>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Outputs {
    /// Starts the thread, which logs lines.
    ///
    /// # Errors
    /// The system cannot make an event loop or a thread.
    pub fn start() -> io::Result<Self> {
        Self::start_with(|lines| {
            for (name, line) in lines.lines().filter_map(|line| line.split_once(": ")) {
                match name {
                    OURS => warn!("{line}"),
                    _ => info!(target: TARGET, nf = name, "{line}"),
                }
            }
        })
    }

    /// Starts the thread; `write` gets lines, without the last line's end.
    fn start_with(write: impl FnMut(&str) + Send + 'static) -> io::Result<Self> {
        let (jobs, todo) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let reader = Reader { epoll, wake: wake.clone(), todo, sources: HashMap::new(), next: 0, budgets: HashMap::new(), write };
        let thread = std::thread::Builder::new().name("sluice-output".into()).spawn(move || reader.run())?;
        Ok(Self { jobs: Some(jobs), wake, thread: Some(thread) })
    }

    /// The streams of a process that is about to start. The user `owner` may open them again by
    /// path (`/dev/stderr`); without it, root may.
    pub fn pipe(&self, whose: Whose, name: &str, owner: Option<u32>) -> Stdio {
        match self.open(whose, name, owner) {
            Ok(pipe) => Stdio::Pipe(Arc::new(pipe)),
            Err(error) => {
                warn!("the output of {name} is not logged: cannot make a pipe: {error}; raise LimitNOFILE= or ulimit -n");
                Stdio::Null
            }
        }
    }

    /// Makes a pipe, and returns the end for writing.
    ///
    /// # Errors
    /// The kernel's answer: no descriptors are left, for example.
    pub fn open(&self, whose: Whose, name: &str, owner: Option<u32>) -> Result<OwnedFd, Errno> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        // This end only: the other one is an open file of its own.
        rustix::fs::fcntl_setfl(&ours, rustix::fs::OFlags::NONBLOCK)?;
        if let Some(owner) = owner {
            let _ = rustix::fs::fchown(&theirs, Some(rustix::fs::Uid::from_raw(owner)), None);
        }
        self.ask(Job::Read(Source { whose, name: name.into(), pipe: ours, begun: Vec::new() }));
        Ok(theirs)
    }

    /// Writes the rest of the output of a process that has ended, and closes its pipe, even if
    /// another process holds the other end.
    pub fn close(&self, whose: Whose) {
        self.ask(Job::Close(whose));
    }

    fn ask(&self, job: Job) {
        // The thread ends only when this is dropped.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        self.wake_up();
    }

    fn wake_up(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.jobs = None;
        self.wake_up();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A pipe, and what was read of an unfinished line.
struct Source {
    whose: Whose,
    name: String,
    pipe: OwnedFd,
    begun: Vec<u8>,
}

struct Reader<W> {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    todo: Receiver<Job>,
    sources: HashMap<u64, Source>,
    next: u64,
    /// By name, so that an NF that keeps restarting has no more than one that stays. A full budget
    /// is dropped: a new one equals it.
    budgets: HashMap<String, Budget>,
    write: W,
}

impl<W: FnMut(&str)> Reader<W> {
    fn run(mut self) {
        let mut chunk = vec![0; CHUNK];
        loop {
            let mut events: Vec<epoll::Event> = Vec::with_capacity(PIPES);
            let look = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as _ };
            // EINTR is an empty round.
            let until = self.budgets.values().any(Budget::is_out).then_some(&look);
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), until);
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            let (mut ended, is_over) = self.take_jobs();
            if is_over {
                ended = self.sources.keys().copied().collect();
            }
            let (now, mut lines) = (Instant::now(), String::new());
            let mut has_read = false;
            for event in events.iter().map(|event| event.data.u64()).filter(|token| *token != WAKE) {
                has_read = true;
                if !self.read(event, &mut chunk, now, &mut lines) {
                    self.forget(event, now, &mut lines);
                }
            }
            for token in ended {
                let _ = (0..LAST).all(|_| self.read(token, &mut chunk, now, &mut lines));
                self.forget(token, now, &mut lines);
            }
            self.budgets.iter_mut().for_each(|(name, budget)| budget.report(name, now, is_over, &mut lines));
            self.budgets.retain(|_, budget| !budget.is_whole());
            if !lines.is_empty() {
                (self.write)(lines.trim_end_matches('\n'));
            }
            if is_over {
                return;
            }
            if has_read {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Takes new pipes. Returns those whose processes have ended, and whether no more will come.
    fn take_jobs(&mut self) -> (Vec<u64>, bool) {
        let mut ended = Vec::new();
        loop {
            match self.todo.try_recv() {
                Ok(Job::Read(source)) => {
                    let data = epoll::EventData::new_u64(self.next);
                    let _ = epoll::add(&self.epoll, source.pipe.as_fd(), data, epoll::EventFlags::IN);
                    self.sources.insert(self.next, source);
                    self.next += 1;
                }
                // Only the present pipes: the next process of an NF has the same number.
                Ok(Job::Close(whose)) => {
                    ended.extend(self.sources.iter().filter(|(_, source)| source.whose == whose).map(|(token, _)| *token));
                }
                Err(TryRecvError::Empty) => return (ended, false),
                Err(TryRecvError::Disconnected) => return (ended, true),
            }
        }
    }

    /// Reads a chunk of a pipe. False when no process can write to the pipe any more.
    fn read(&mut self, token: u64, chunk: &mut [u8], now: Instant, lines: &mut String) -> bool {
        let Some(source) = self.sources.get_mut(&token) else { return false };
        match rustix::io::read(&source.pipe, &mut *chunk) {
            Ok(0) => false,
            Ok(n) => {
                let budget = self.budgets.entry(source.name.clone()).or_insert_with(|| Budget::new(now));
                source.take(&chunk[..n], budget, now, lines);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Closes a pipe, and ends its unfinished line.
    fn forget(&mut self, token: u64, now: Instant, lines: &mut String) {
        let Some(mut source) = self.sources.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, source.pipe.as_fd());
        if !source.begun.is_empty() {
            let budget = self.budgets.entry(source.name.clone()).or_insert_with(|| Budget::new(now));
            source.take(b"\n", budget, now, lines);
        }
    }
}

impl Source {
    /// Adds lines to `lines` from what was read.
    fn take(&mut self, mut bytes: &[u8], budget: &mut Budget, now: Instant, lines: &mut String) {
        budget.refill(now);
        while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
            if budget.is_out() {
                // Counted in one pass: a flood of short lines costs little.
                let last = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(at);
                let ended = bytes[..=last].iter().filter(|byte| **byte == b'\n').count();
                budget.leave_out(ended as u64, (self.begun.len() + last + 1) as u64);
                self.begun.clear();
                bytes = &bytes[last + 1..];
                break;
            }
            self.begun.extend_from_slice(&bytes[..at]);
            self.end_line(budget, lines);
            bytes = &bytes[at + 1..];
        }
        self.begun.extend_from_slice(bytes);
        if self.begun.len() >= LONGEST {
            self.end_line(budget, lines);
        }
    }

    /// Writes the unfinished line, in as many pieces as it takes.
    fn end_line(&mut self, budget: &mut Budget, lines: &mut String) {
        let whole = std::mem::take(&mut self.begun);
        let whole = whole.strip_suffix(b"\r").unwrap_or(&whole);
        // An empty line is one piece.
        for piece in whole.chunks(LONGEST).chain(whole.is_empty().then_some(whole)) {
            budget.line(&self.name, piece, lines);
        }
    }
}

/// How much may be written for one name, and how much was dropped.
#[derive(Debug)]
struct Budget {
    left: u64,
    at: Instant,
    lines: u64,
    bytes: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { left: BURST, at: now, lines: 0, bytes: 0 }
    }

    fn refill(&mut self, now: Instant) {
        let earned = (now.duration_since(self.at).as_micros() as u64).saturating_mul(RATE) / 1_000_000;
        // Steps that earn nothing do not advance the time: else short ones would never earn.
        if earned > 0 {
            (self.left, self.at) = ((self.left + earned).min(BURST), now);
        }
    }

    /// Whether lines are being dropped.
    fn is_out(&self) -> bool {
        self.lines > 0
    }

    fn is_whole(&self) -> bool {
        self.left == BURST && !self.is_out()
    }

    fn leave_out(&mut self, lines: u64, bytes: u64) {
        (self.lines, self.bytes) = (self.lines + lines, self.bytes + bytes);
    }

    /// Adds a line, if there is budget for it and no line before it was dropped.
    fn line(&mut self, name: &str, bytes: &[u8], lines: &mut String) {
        let before = lines.len();
        if !self.is_out() {
            lines.push_str(name);
            lines.push_str(": ");
            sluice_host::notice::add_escaped(&String::from_utf8_lossy(bytes), lines);
            lines.push('\n');
        }
        let cost = ((lines.len() - before) as u64).max(LEAST);
        if self.is_out() || cost > self.left {
            lines.truncate(before);
            self.leave_out(1, bytes.len() as u64 + 1);
        } else {
            self.left -= cost;
        }
    }

    /// Adds a line that reports the drops, when there is budget for half a burst, or `at_once`.
    fn report(&mut self, name: &str, now: Instant, at_once: bool, lines: &mut String) {
        self.refill(now);
        if self.is_out() && (at_once || self.left >= BURST / 2) {
            let _ = writeln!(
                lines,
                "{OURS}: {} lines ({} bytes) of {name} were left out; an NF may log {RATE} bytes a second",
                self.lines, self.bytes
            );
            self.left -= LEAST.min(self.left);
            (self.lines, self.bytes) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::sync::Mutex;

    fn source(name: &str) -> Source {
        let (pipe, _) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        Source { whose: Whose::Nf(0), name: name.into(), pipe, begun: Vec::new() }
    }

    fn said(source: &mut Source, budget: &mut Budget, now: Instant, bytes: &[u8]) -> String {
        let mut lines = String::new();
        source.take(bytes, budget, now, &mut lines);
        lines
    }

    #[test]
    fn whole_lines_carry_the_name_and_control_nothing() {
        let now = Instant::now();
        let (mut fw, mut budget) = (source("fw.0"), Budget::new(now));
        let mut say = |bytes: &[u8]| said(&mut fw, &mut budget, now, bytes);
        assert_eq!(say(b"one\ntw"), "fw.0: one\n");
        assert_eq!(say(b"o\r\n\n"), "fw.0: two\nfw.0: \n");
        assert_eq!(say("ü\tx\u{1b}[2J\rsluiced: ready\n".as_bytes()), "fw.0: ü\tx\\u{1b}[2J\\rsluiced: ready\n");
        assert_eq!(say(b"\xff\n"), "fw.0: \u{fffd}\n");
        // An unfinished line comes in pieces.
        assert_eq!(say(&vec![b'x'; LONGEST - 1]), "");
        assert_eq!(say(b"xx"), format!("fw.0: {}\nfw.0: x\n", "x".repeat(LONGEST)));
    }

    #[test]
    fn what_is_too_much_is_left_out_and_counted() {
        let start = Instant::now();
        let (mut fw, mut budget) = (source("fw.0"), Budget::new(start));
        // 100 short lines a millisecond for three seconds.
        let (mut written, mut counted, mut report) = (0, 0, String::new());
        for ms in 0..3_000 {
            let now = start + Duration::from_millis(ms);
            let lines = said(&mut fw, &mut budget, now, &b"short\n".repeat(100));
            written += lines.lines().count() as u64;
            let before = budget.lines;
            budget.report("fw.0", now, false, &mut report);
            counted += before - budget.lines;
        }
        counted += budget.lines;
        assert_eq!(written + counted, 300_000, "each is written or counted");
        assert!((BURST / LEAST..=(BURST + 3 * RATE) / LEAST).contains(&written), "{written}");
        assert!(report.starts_with("sluiced: ") && report.contains(" of fw.0 were left out"), "{report}");
        assert!(report.lines().count() <= 2, "{report}");
        // After a quiet time the budget is full again.
        let now = start + Duration::from_secs(60);
        budget.report("fw.0", now, false, &mut report);
        budget.refill(now + Duration::from_secs(1));
        assert!(budget.is_whole());
        assert_eq!(said(&mut fw, &mut budget, now, b"calm\n"), "fw.0: calm\n");
    }

    #[test]
    fn pipes_are_read_until_their_processes_have_ended() {
        let log = Arc::new(Mutex::new(String::new()));
        let to = log.clone();
        let outputs = Outputs::start_with(move |lines| {
            let mut to = to.lock().unwrap();
            to.push_str(lines);
            to.push('\n');
        });
        let outputs = outputs.unwrap();
        let mut pipes: Vec<std::fs::File> = Vec::new();
        for (number, name) in ["a.0", "b.0"].into_iter().enumerate() {
            pipes.push(outputs.open(Whose::Nf(number as u16), name, None).unwrap().into());
        }
        // More than a pipe holds: only its beginning is written, and the other pipe still works.
        for _ in 0..CHUNK / 16 {
            pipes[0].write_all(&b"0123456789abcde\n".repeat(3)).unwrap();
        }
        writeln!(pipes[1], "hello").unwrap();
        write!(pipes[1], "the end").unwrap();
        let has = |what: &str| log.lock().unwrap().contains(what);
        let until = Instant::now() + Duration::from_secs(60);
        while !has("b.0: hello\n") {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!has("the end"), "a line comes when it is ended");
        // The other end is still open: another process may have it, and is not waited for.
        outputs.close(Whose::Nf(1));
        while !has("b.0: the end\n") {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        while pipes[1].write_all(b"x\n").is_ok() {
            assert!(Instant::now() < until, "nobody reads it");
        }
        drop(outputs);
        let log = log.lock().unwrap();
        let lines = log.lines().filter(|line| *line == "a.0: 0123456789abcde").count() as u64;
        assert!(lines > 0, "{log}");
        assert!(log.contains(" of a.0 were left out"), "{log}");
    }
}
