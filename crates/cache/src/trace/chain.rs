//! Loads and stores of the NFs of a chain, which share the last-level cache.
//!
//! # Problem
//! NFs of one class share its ways: lines that one caches evict the others'. So curves traced alone
//! do not show what they miss together.
//!
//! # Approach
//! All NFs of the chain run, each traced. The reader of the traces passes the packets that one NF
//! sends on to the next (`crates/nf/src/trace/relay.rs` has the format), `BATCH` bursts at once so
//! that processes seldom wait for each other. The accesses of a batch are ordered before the model
//! gets them: the first burst by the first NF, then by the second, and so on; then the next burst.
//!
//! # Limits
//! Those of a trace. Real NFs work on different bursts at the same time, not one after the other;
//! and one that gets partial bursts would be given full ones.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::{RECORD, TraceEvent, Traced, TracedTraffic, cannot_start, decode, first_cache, is_traced};
use crate::error::CacheError;
use crate::model::{Hierarchy, Shared, SharedMisses};

/// What the first NF gets.
#[derive(Debug, Clone, Copy)]
pub enum Feed<'a> {
    /// Packets that it generates itself.
    Made(&'a TracedTraffic),
    /// Given packets, in turn.
    Given {
        packets: &'a [Vec<u8>],
        /// How many come before those that count.
        warm_up: u64,
        count: u64,
    },
}

const BURST: u64 = 32;
/// Bursts per transfer.
const BATCH: usize = 16;
/// A mark in the input of an NF, in place of a number of packets.
const MARK: u64 = u64::MAX;
/// Flag of a record in a trace with the number of packets sent on.
const ON: u64 = 1 << 63;
/// Most packets of a burst, and most bytes of a packet; more is an error.
const MOST: u64 = 1 << 16;

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Burst {
        /// Its accesses: address and bytes.
        accesses: Vec<(u64, u32)>,
        /// Packets sent on.
        on: u64,
        /// These packets, in the input format of the next NF.
        packets: Vec<u8>,
    },
    Mark {
        /// Loads and stores until then.
        accesses: u64,
    },
}

/// Why there is no next step.
#[derive(Debug)]
enum Lost {
    /// The NF has closed its end.
    Ended,
    /// Its output is invalid.
    Broken(String),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => Self::Ended,
            _ => Self::Broken(error.to_string()),
        }
    }
}

fn word(stream: &mut impl Read) -> io::Result<u64> {
    let mut word = [0; RECORD];
    stream.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

impl Step {
    fn read(stream: &mut impl Read) -> Result<Self, Lost> {
        let mut accesses = Vec::new();
        loop {
            let record = word(stream)?;
            if record & !(u64::MAX >> 8) == ON {
                let on = record & !ON;
                return Ok(Self::Burst { accesses, on, packets: packets(stream, on)? });
            }
            match decode(record) {
                Some(TraceEvent::Access { address, bytes, .. }) => accesses.push((address, bytes)),
                Some(TraceEvent::Mark { number: until }) if accesses.is_empty() => return Ok(Self::Mark { accesses: until }),
                _ => return Err(Lost::Broken(format!("{record:#x} is no record"))),
            }
        }
    }

    /// Appends it in the input format of the next NF.
    fn hand_on(&self, to: &mut Vec<u8>) {
        match self {
            Self::Mark { .. } => to.extend(MARK.to_le_bytes()),
            Self::Burst { on, packets, .. } => {
                to.extend(on.to_le_bytes());
                to.extend_from_slice(packets);
            }
        }
    }
}

/// Reads packets, and keeps their format.
fn packets(stream: &mut impl Read, count: u64) -> Result<Vec<u8>, Lost> {
    let mut found = Vec::new();
    if count > MOST {
        return Err(Lost::Broken(format!("a burst of {count} packets is none")));
    }
    for _ in 0..count {
        let len = word(stream)?;
        if len > MOST {
            return Err(Lost::Broken(format!("a packet of {len} bytes is none")));
        }
        found.extend(len.to_le_bytes());
        let from = found.len();
        found.resize(from + (len as usize).next_multiple_of(RECORD), 0);
        stream.read_exact(&mut found[from..])?;
    }
    Ok(found)
}

/// Appends a packet in the input format.
fn write_packet(packet: &[u8], to: &mut Vec<u8>) {
    to.extend((packet.len() as u64).to_le_bytes());
    to.extend_from_slice(packet);
    to.resize(to.len().next_multiple_of(RECORD), 0);
}

/// A running traced NF; drop kills it.
struct Running {
    name: String,
    child: Option<Child>,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(nf: &Traced, variable: String, input: bool) -> Result<Self, CacheError> {
        let mut child = nf
            .command(variable)
            .stdin(if input { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| cannot_start(&nf.program, &e))?;
        let name = nf.program.display().to_string();
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| failed(format!("{name} has no standard output")))?;
        Ok(Self { name, child: Some(child), input, output: BufReader::with_capacity(super::CHUNK, output) })
    }

    /// Sends it a batch, if any, and reads as many steps as that has; without one, reads up to a
    /// batch.
    fn steps(&mut self, batch: Option<(&[u8], usize)>) -> Result<Vec<Step>, Lost> {
        let mut steps = Vec::with_capacity(BATCH);
        if let (Some((bytes, _)), Some(input)) = (batch, &mut self.input) {
            input.write_all(&(bytes.len() as u64).to_le_bytes())?;
            input.write_all(bytes)?;
            input.flush()?;
        }
        let wanted = batch.map_or(BATCH, |(_, steps)| steps);
        while steps.len() < wanted {
            let mut at_end = || Ok::<_, io::Error>(io::BufRead::fill_buf(&mut self.output)?.is_empty());
            if batch.is_none() && at_end()? {
                break;
            }
            steps.push(Step::read(&mut self.output)?);
        }
        Ok(steps)
    }

    fn why(&mut self, lost: Lost) -> CacheError {
        self.input = None;
        let Some(mut child) = self.child.take() else { return failed(format!("{} is lost", self.name)) };
        if let Lost::Broken(what) = &lost {
            let _ = child.kill();
            let _ = child.wait();
            return failed(format!("the trace of {} cannot be read: {what}", self.name));
        }
        match child.wait_with_output() {
            Err(e) => failed(format!("{} is lost: {e}", self.name)),
            Ok(ended) if ended.status.success() => failed(format!("{} ended too early", self.name)),
            Ok(ended) => failed(format!("{} failed: {}", self.name, String::from_utf8_lossy(&ended.stderr).trim())),
        }
    }

    fn finish(&mut self) -> Result<(), CacheError> {
        self.input = None;
        match self.child.as_mut().map(Child::wait) {
            Some(Ok(status)) if !status.success() => Err(self.why(Lost::Ended)),
            _ => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn failed(what: String) -> CacheError {
    CacheError::Model { what, cure: "build it with scripts/trace-nf and try its arguments by hand" }
}

/// The input of the first NF, batch by batch.
struct Deal<'a> {
    packets: std::iter::Cycle<std::slice::Iter<'a, Vec<u8>>>,
    /// Packets left before each of the two marks.
    left: [u64; 2],
    marks: usize,
}

impl Deal<'_> {
    /// A batch, and its number of steps; none at the end.
    fn next(&mut self) -> Option<(Vec<u8>, usize)> {
        let (mut bytes, mut steps) = (Vec::new(), 0);
        while steps < BATCH && self.marks < self.left.len() {
            let left = &mut self.left[self.marks];
            let n = (*left).min(BURST);
            *left -= n;
            steps += 1;
            if n == 0 {
                self.marks += 1;
                bytes.extend(MARK.to_le_bytes());
                continue;
            }
            bytes.extend(n.to_le_bytes());
            self.packets.by_ref().take(n as usize).for_each(|packet| write_packet(packet, &mut bytes));
        }
        (steps > 0).then_some((bytes, steps))
    }
}

/// Counts of the NFs of a chain.
struct Tally {
    /// For each NF, the accesses until each mark.
    marks: Vec<Vec<u64>>,
    /// For each NF, the packets that it got since the first mark.
    got: Vec<u64>,
}

impl Tally {
    fn take(&mut self, nf: usize, step: &Step, model: &mut Shared) {
        match step {
            Step::Burst { accesses, on, .. } => {
                accesses.iter().for_each(|(address, bytes)| model.access(nf, *address, *bytes));
                self.got[nf + 1] += on;
            }
            Step::Mark { accesses } => {
                if nf == 0 && self.marks[0].is_empty() {
                    model.start();
                    self.got.fill(0);
                }
                self.marks[nf].push(*accesses);
            }
        }
    }
}

/// Runs the traced NFs of a chain, in its order, and models the misses of each: with the others on
/// cores beside it and one last-level cache for all, and alone. For each NF, the packets that count
/// are those that it got.
///
/// # Errors
/// An NF cannot be started, fails, or was not built to be traced; lines are shorter than a trace's;
/// or there are no packets to give.
pub fn profile(nfs: &[Traced], feed: Feed<'_>, hierarchy: Hierarchy) -> Result<Vec<SharedMisses>, CacheError> {
    let (hierarchy, l1) = first_cache(hierarchy)?;
    let mut model = Shared::new(hierarchy, nfs.len())?;
    let (mut deal, counted) = match feed {
        Feed::Made(traffic) => (None, traffic.packets),
        Feed::Given { packets: [], .. } => return Err(failed("there are no packets to trace it on".into())),
        Feed::Given { packets, warm_up, count } => {
            (Some(Deal { packets: packets.iter().cycle(), left: [warm_up, count], marks: 0 }), count)
        }
    };
    let start = |(i, nf): (usize, &Traced)| {
        let made = match feed {
            // The packets that count are counted here.
            Feed::Made(traffic) if i == 0 => TracedTraffic { accesses: None, ..traffic.clone() }.variable(),
            _ => "input=1".into(),
        };
        Running::start(nf, format!("{made}{l1},output=1"), made == "input=1")
    };
    let mut running = nfs.iter().enumerate().map(start).collect::<Result<Vec<_>, _>>()?;
    let mut tally = Tally { marks: vec![Vec::new(); nfs.len()], got: vec![0; nfs.len() + 1] };
    loop {
        let mut batch = match &mut deal {
            None => None,
            Some(deal) => match deal.next() {
                None => break,
                some => some,
            },
        };
        let mut all: Vec<Vec<Step>> = Vec::with_capacity(nfs.len());
        for nf in &mut running {
            let given = batch.as_ref().map(|(bytes, steps)| (bytes.as_slice(), *steps));
            let steps = nf.steps(given).map_err(|lost| nf.why(lost))?;
            let mut bytes = Vec::new();
            steps.iter().for_each(|step| step.hand_on(&mut bytes));
            batch = Some((bytes, steps.len()));
            all.push(steps);
        }
        let steps = all.first().map_or(0, Vec::len);
        if steps == 0 {
            break;
        }
        (0..steps).for_each(|step| all.iter().enumerate().for_each(|(nf, steps)| tally.take(nf, &steps[step], &mut model)));
    }
    tally.got[0] = counted;
    running.iter_mut().try_for_each(Running::finish)?;
    let mut found = Vec::with_capacity(nfs.len());
    for (i, nf) in nfs.iter().enumerate() {
        let mut sharing = model.sharing(i, tally.got[i]).unwrap_or_else(|| unreachable!("it was made for all"));
        match tally.marks[i][..] {
            [start, end] if is_traced(start, end) => sharing.together.accesses = end - start,
            _ => return Err(failed(format!("{} wrote no loads and stores", nf.program.display()))),
        }
        found.push(sharing);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Geometry;

    const HIERARCHY: Hierarchy = Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets: 16, ways: 2 } };

    /// An NF that writes these words, each part after it has read that many bytes.
    fn says(parts: &[(usize, &[u64])]) -> Traced {
        let octal = |word: &u64| word.to_le_bytes().map(|byte| format!("\\{byte:03o}")).concat();
        let part = |(bytes, words): &(usize, &[u64])| {
            let words: String = words.iter().map(octal).collect();
            format!("dd bs=1 count={bytes} >/dev/null 2>&1; printf '{words}'\n")
        };
        // It also reads the input after its last word: a write to an exited process would fail.
        let script = parts.iter().map(part).collect::<String>() + "cat >/dev/null";
        Traced { program: "/bin/sh".into(), args: vec!["-c".into(), script], env: Vec::new() }
    }

    const fn load(address: u64) -> u64 {
        1 << 56 | address
    }

    const PACKET: u64 = 0x0102_0304_0506_0708;

    #[test]
    fn packets_are_handed_on_and_misses_counted_by_part() {
        // A line before the mark, the same and another one after it; one packet goes on each time.
        let first = says(&[(0, &[load(64), ON | 1, 8, PACKET, 1, load(64), load(128), ON | 1, 5, PACKET, 3])]);
        // Eight bytes for the length; two bursts of one packet, and two marks.
        let second = says(&[(8 + 2 * 24 + 2 * 8, &[load(64), ON, 1, load(64), load(64), load(256), ON | 1, 8, PACKET, 4])]);
        let traffic =
            TracedTraffic { packets: 2, warm_up: 1, accesses: None, flows: 1, zipf: None, bytes: 60, spread: false, seed: 1 };
        let found = profile(&[first, second], Feed::Made(&traffic), HIERARCHY).unwrap();
        assert_eq!((found[0].together.packets, found[1].together.packets), (2, 1));
        assert_eq!((found[0].together.accesses, found[1].together.accesses), (2, 3));
        assert_eq!((found[0].alone, found[1].alone), (1, 1), "what was there before the mark is cached");
        // With one way, both lines 1 are in one set: each evicts the other.
        assert_eq!((&found[0].together.misses[..], &found[1].together.misses[..]), (&[2, 1][..], &[2, 1][..]));
    }

    #[test]
    fn packets_can_be_given() {
        let given = [vec![1; 60], vec![2; 61]];
        // One batch: bursts of 10, 32 and 8 packets, of 72 bytes each with its length, and two
        // marks.
        let bytes = 8 + 2 * 8 + 3 * 8 + 50 * 72;
        let nf = says(&[(bytes, &[load(64), ON, 1, load(128), ON, load(192), ON, 3])]);
        let found = profile(&[nf], Feed::Given { packets: &given, warm_up: 10, count: 40 }, HIERARCHY).unwrap();
        assert_eq!((found[0].together.packets, found[0].together.misses[1], found[0].together.accesses), (40, 2, 2));
        let error = profile(&[], Feed::Given { packets: &[], warm_up: 0, count: 1 }, HIERARCHY).unwrap_err().to_string();
        assert!(error.contains("no packets"), "{error}");
    }

    #[test]
    fn a_program_that_is_no_traced_nf_is_reported() {
        let traffic =
            TracedTraffic { packets: 1, warm_up: 0, accesses: None, flows: 1, zipf: None, bytes: 60, spread: false, seed: 1 };
        let good = says(&[(0, &[1, ON | 1, 8, PACKET, 1])]);
        let plain = says(&[(0, &[0, ON | 1, 8, PACKET, 0])]);
        let fails =
            Traced { program: "/bin/sh".into(), args: vec!["-c".into(), "echo no rules >&2; exit 1".into()], env: Vec::new() };
        let nowhere = Traced { program: "/nowhere/nf".into(), args: Vec::new(), env: Vec::new() };
        let script = "echo \"$TABLE/$HOME\" >&2; exit 1";
        let env = vec![("TABLE".into(), "7".into())];
        let with_env = Traced { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()], env };
        let silent = Traced { program: "/bin/true".into(), args: Vec::new(), env: Vec::new() };
        let garbage = says(&[(8 + 8 + 24, &[u64::MAX])]);
        for (chain, words) in [
            (vec![nowhere], "cannot start"),
            (vec![silent.clone()], "no loads"),
            (vec![plain], "no loads"),
            (vec![fails.clone()], "no rules"),
            // Its own environment, and nothing of the caller's.
            (vec![with_env], "failed: 7/;"),
            (vec![good.clone(), fails], "no rules"),
            (vec![good.clone(), silent], "too early"),
            (vec![good, garbage], "cannot be read"),
        ] {
            let error = profile(&chain, Feed::Made(&traffic), HIERARCHY).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("scripts/trace-nf"), "{words}: {error}");
        }
    }
}
