//! Loads and stores of a real NF.
//!
//! # Approach
//! An NF that `scripts/trace-nf` has built runs without a manager when `SLUICE_TRACE` describes its
//! packets. It writes its accesses to standard output (`crates/nf/src/trace.rs` has the format),
//! and they are streamed into a [`Model`].

pub mod chain;
pub mod examples;

use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::CacheError;
use crate::model::{Curve, Geometry, Hierarchy, Model};

const RECORD: usize = 8;

/// Bytes of one read.
const CHUNK: usize = 256 << 10;

/// Loads and stores that suffice for a curve; of an NF with very many per packet, that takes the
/// model some seconds.
pub const ENOUGH: u64 = 400_000_000;

/// An NF that scripts/trace-nf has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Its whole environment; nothing is inherited from the caller.
    pub env: Vec<(OsString, OsString)>,
}

impl Traced {
    /// The command that runs it, with the value of `SLUICE_TRACE`.
    fn command(&self, traced: String) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().cloned()).env("SLUICE_TRACE", traced);
        command
    }
}

/// A record of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEvent {
    Access {
        address: u64,
        bytes: u32,
        store: bool,
    },
    /// The end of the warm-up, and then the end of the trace. A trace that may end early has a
    /// third one with the packets that count.
    Mark {
        /// Loads and stores until then, including those before the first packet and those without a
        /// record because the first cache held them; 0 is a program that was not built to be
        /// traced. In the third mark, packets.
        number: u64,
    },
}

/// Decodes one record; none if it is invalid.
#[inline]
pub fn decode(record: u64) -> Option<TraceEvent> {
    let (store, size, address) = (record >> 63 == 1, record >> 56 & 0x7f, record & ((1 << 56) - 1));
    match size {
        0 if !store => Some(TraceEvent::Mark { number: address }),
        1..=5 => Some(TraceEvent::Access { address, bytes: 1 << (size - 1), store }),
        _ => None,
    }
}

/// Reads a trace to its end. Returns the number of records.
///
/// # Errors
/// It cannot be read, ends within a record, or has an invalid one.
pub fn read(stream: impl Read, mut each: impl FnMut(TraceEvent)) -> Result<u64, CacheError> {
    let broken = |what: String| CacheError::Model {
        what,
        cure: "see that the NF prints nothing on standard output, and was built by scripts/trace-nf",
    };
    let mut stream = BufReader::with_capacity(CHUNK, stream);
    let mut records = 0;
    loop {
        let bytes = match io::BufRead::fill_buf(&mut stream) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(broken(format!("the trace cannot be read: {e}"))),
        };
        if bytes.is_empty() {
            return Ok(records);
        }
        let whole = bytes.len() / RECORD * RECORD;
        for record in bytes[..whole].as_chunks::<RECORD>().0 {
            let event = decode(u64::from_le_bytes(*record));
            each(event.ok_or_else(|| broken(format!("record {records} of the trace is none")))?);
            records += 1;
        }
        let rest = bytes.len() - whole;
        io::BufRead::consume(&mut stream, whole);
        if rest > 0 && whole == 0 {
            // A record came in two parts: the buffer is filled only when it is empty.
            let mut record = [0; RECORD];
            stream.read_exact(&mut record).map_err(|_| broken(format!("the trace ends within record {records}")))?;
            each(decode(u64::from_le_bytes(record)).ok_or_else(|| broken(format!("record {records} of the trace is none")))?);
            records += 1;
        }
    }
}

/// The packets that an NF is traced on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TracedTraffic {
    /// Packets that count.
    pub packets: u64,
    /// Packets before them, after one of each flow.
    pub warm_up: u64,
    /// Loads and stores among the packets that count after which the trace may end. None: all
    /// packets are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accesses: Option<u64>,
    pub flows: u32,
    /// Zipf's exponent; none is all flows alike.
    pub zipf: Option<f64>,
    /// Bytes of a packet, without FCS.
    pub bytes: u32,
    /// Whether flows have destinations over the whole address space.
    pub spread: bool,
    /// Seed of the draws.
    pub seed: u64,
}

impl TracedTraffic {
    /// The value of `SLUICE_TRACE`.
    pub fn variable(&self) -> String {
        let zipf = self.zipf.map_or(String::new(), |s| format!(",zipf={s}"));
        let accesses = self.accesses.map_or(String::new(), |n| format!(",accesses={n}"));
        format!(
            "packets={},warm_up={}{accesses},flows={}{zipf},bytes={},spread={},seed={}",
            self.packets,
            self.warm_up,
            self.flows,
            self.bytes,
            u8::from(self.spread),
            self.seed
        )
    }
}

/// The traced program that belongs to this one, built by `scripts/trace-nf`: below the same folder
/// of build outputs. None if it is not built.
pub fn beside(program: &Path) -> Option<PathBuf> {
    let name = program.file_name()?;
    let folders = program.ancestors().skip(1).take(4).map(|folder| folder.join("trace-traced"));
    let hosts = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    hosts.map(|host| host.path().join("release").join(name)).find(|file| file.is_file())
}

/// Bytes of a line, and most sets and ways of a first cache, in a traced NF.
const LINE: u32 = 64;
const MOST_SETS: u32 = 256;
const MOST_WAYS: u32 = 16;

/// The caches left to model if the NF models the first one itself, and its setting for that.
///
/// # Errors
/// Lines are shorter than a trace's, or a size is invalid.
fn first_cache(hierarchy: Hierarchy) -> Result<(Hierarchy, String), CacheError> {
    if hierarchy.line < LINE {
        let what = format!("a trace is of lines of {LINE} bytes, not {}", hierarchy.line);
        return Err(CacheError::Model { what, cure: "model a cache with lines of 64 bytes or more" });
    }
    Model::new(hierarchy)?;
    let is_known = |l1: &Geometry| l1.sets.is_power_of_two() && l1.sets <= MOST_SETS && l1.ways <= MOST_WAYS;
    let l1 = hierarchy.l1.filter(|l1| hierarchy.line == LINE && is_known(l1));
    let variable = l1.map_or(String::new(), |l1| format!(",l1={}x{}", l1.sets, l1.ways));
    Ok((Hierarchy { l1: hierarchy.l1.filter(|_| l1.is_none()), ..hierarchy }, variable))
}

/// Whether the accesses at both marks are those of a program that was built to be traced. Its
/// handler may have none.
fn is_traced(start: u64, end: u64) -> bool {
    start > 0 && end >= start
}

fn cannot_start(program: &Path, error: &io::Error) -> CacheError {
    let what = format!("cannot start {}: {error}", program.display());
    CacheError::Model { what, cure: "build it with scripts/trace-nf and try its arguments by hand" }
}

/// Runs a traced NF and models its misses. If possible the NF models the first cache itself, so
/// that it writes only that cache's misses.
///
/// # Errors
/// It cannot be started, fails, or was not built to be traced; or lines are shorter than a trace's.
pub fn profile(nf: &Traced, traffic: &TracedTraffic, hierarchy: Hierarchy) -> Result<Curve, CacheError> {
    let program = &nf.program;
    let (hierarchy, l1) = first_cache(hierarchy)?;
    let mut model = Model::new(hierarchy)?;
    let cure = "build it with scripts/trace-nf and try its arguments by hand";
    let failed = |what: String| CacheError::Model { what, cure };
    let mut nf = nf
        .command(traffic.variable() + &l1)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| cannot_start(program, &e))?;
    let mut marks = Vec::new();
    let stream = nf.stdout.take().ok_or_else(|| failed("the NF has no standard output".into()))?;
    let read = read(stream, |event| match event {
        TraceEvent::Access { address, bytes, .. } => model.access(address, bytes),
        TraceEvent::Mark { number } => {
            if marks.is_empty() {
                model.start();
            }
            marks.push(number);
        }
    });
    if read.is_err() {
        let _ = nf.kill();
    }
    let ended = nf.wait_with_output().map_err(|e| failed(format!("{} is lost: {e}", program.display())))?;
    read?;
    if !ended.status.success() {
        return Err(failed(format!("{} failed: {}", program.display(), String::from_utf8_lossy(&ended.stderr).trim())));
    }
    match (&marks[..], traffic.accesses) {
        (&[start, end], None) if is_traced(start, end) => Ok(Curve { accesses: end - start, ..model.curve(traffic.packets) }),
        (&[start, end, packets], Some(_)) if is_traced(start, end) => Ok(Curve { accesses: end - start, ..model.curve(packets) }),
        _ => Err(failed(format!("{} wrote no loads and stores", program.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte stream in pieces of a given size.
    struct Pieces(Vec<u8>, usize);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(buffer.len()).min(self.0.len());
            buffer[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }

    #[test]
    fn records_are_read_in_any_pieces() {
        let records = [4u64 << 56 | 0x7fff_1234, 1 << 63 | 1 << 56 | 7, 77, 5 << 56 | 16];
        let bytes: Vec<u8> = records.iter().flat_map(|r| r.to_le_bytes()).collect();
        for piece in [1, 3, 8, 13, 100] {
            let mut found = Vec::new();
            assert_eq!(read(Pieces(bytes.clone(), piece), |event| found.push(event)).unwrap(), 4);
            assert_eq!(found[0], TraceEvent::Access { address: 0x7fff_1234, bytes: 8, store: false });
            assert_eq!(found[1], TraceEvent::Access { address: 7, bytes: 1, store: true });
            assert_eq!((found[2], found.len()), (TraceEvent::Mark { number: 77 }, 4));
        }
        assert!(read(&bytes[..20], |_| ()).is_err());
        assert!(read(&b"listening\n"[..8], |_| ()).is_err());
    }

    #[test]
    fn a_handler_that_touches_nothing_is_traced() {
        let traffic =
            TracedTraffic { packets: 9, warm_up: 0, accesses: None, flows: 1, zipf: None, bytes: 60, spread: false, seed: 1 };
        let hierarchy = Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets: 16, ways: 2 } };
        let marks = |number| {
            let script = format!("printf '\\{number}\\0\\0\\0\\0\\0\\0\\0%.0s' 1 2");
            Traced { program: "/bin/sh".into(), args: vec!["-c".into(), script], env: Vec::new() }
        };
        let curve = profile(&marks(5), &traffic, hierarchy).unwrap();
        assert_eq!((curve.packets, curve.accesses, curve.misses), (9, 0, vec![0, 0]));
        // One that was not built to be traced.
        assert!(profile(&marks(0), &traffic, hierarchy).is_err());
    }

    #[test]
    fn traffic_is_written_as_the_nf_reads_it() {
        let traffic =
            TracedTraffic { packets: 10, warm_up: 2, accesses: None, flows: 3, zipf: Some(1.1), bytes: 60, spread: true, seed: 4 };
        assert_eq!(traffic.variable(), "packets=10,warm_up=2,flows=3,zipf=1.1,bytes=60,spread=1,seed=4");
        let traffic = TracedTraffic { accesses: Some(9), zipf: None, ..traffic };
        assert_eq!(traffic.variable(), "packets=10,warm_up=2,accesses=9,flows=3,bytes=60,spread=1,seed=4");
    }

    #[test]
    fn a_traced_program_is_found_beside() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("debug/sluice-nf-x");
        assert_eq!(beside(&program), None);
        let file = folder.path().join("trace-traced/some-host/release/sluice-nf-x");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(beside(&program), Some(file));
    }

    #[test]
    fn a_program_that_is_no_traced_nf_is_reported() {
        let traffic =
            TracedTraffic { packets: 1, warm_up: 0, accesses: None, flows: 1, zipf: None, bytes: 60, spread: false, seed: 1 };
        let hierarchy = Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets: 16, ways: 2 } };
        for (program, words) in [("/bin/true", "no loads"), ("/bin/false", "failed"), ("/nowhere/nf", "cannot start")] {
            let nf = Traced { program: program.into(), args: Vec::new(), env: Vec::new() };
            let error = profile(&nf, &traffic, hierarchy).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("scripts/trace-nf"), "{error}");
        }
    }
}
