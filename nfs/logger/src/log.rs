//! A log: pcap records in numbered files.
//!
//! # Format
//! pcap with nanoseconds, in this machine's byte order: 24 bytes of header (magic 0xa1b23c4d,
//! version 2.4, the snap length, link type Ethernet). Then for each packet: its time in seconds and
//! nanoseconds since 1970, the number of bytes that follow, and its original length.
//!
//! # When the disk fails
//! A record that could not be written leaves a hole, behind which nothing can be read. So the file
//! is given up: when its last record has completed, it is cut after the last whole record, or
//! removed if it has none. A second later the next packet tries a new file. Packets in between are
//! counted as lost.
//!
//! Old files are removed, in a separate thread, once the new one has its first record on the disk:
//! so a full disk costs no old logs.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sluice_nf::storage::{At, File, IoResult, RequestError, Storage};

use crate::series::Series;

/// Bytes of a pcap file's header.
pub const FILE_HEADER: usize = 24;
/// Bytes of a record's header.
pub const RECORD_HEADER: usize = 16;

const MAGIC: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
const PAUSE_NS: u64 = 1_000_000_000;

/// Error of starting a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("`{0}` names no file; give something like /var/log/web.pcap")]
    Name(PathBuf),
    #[error("cannot look for old files beside {path}: {source}; is the folder there, and may this user read it?")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("cannot make {path}: {source}; may this user write there?")]
    Open { path: PathBuf, source: std::io::Error },
}

/// Limits of a log's files.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most bytes of a packet that are written.
    pub snap: u32,
    /// Most bytes of a file.
    pub bytes: u64,
    /// Age at which the next packet begins a new file.
    pub age_ns: u64,
    /// Number of files to keep.
    pub keep: usize,
}

/// Counts, shared with callbacks.
#[derive(Debug, Default)]
pub struct Tally {
    /// Packets in files.
    pub logged: Cell<u64>,
    /// Their bytes, with record headers.
    pub bytes: Cell<u64>,
    /// Packets that should be in a file and are not.
    pub lost: Cell<u64>,
    pub files: Cell<u64>,
    /// Files given up because of an error.
    pub failures: Cell<u64>,
}

fn add(cell: &Cell<u64>, n: u64) {
    cell.set(cell.get() + n);
}

/// A file of the log. It lives while the log writes to it or a record is in progress.
struct Part {
    file: File,
    /// The same file, for calls that storage lacks.
    plain: std::fs::File,
    path: PathBuf,
    tally: Rc<Tally>,
    /// Bytes from the start that are known to be written: whole records.
    good: Cell<u64>,
    failed: Cell<bool>,
}

impl Part {
    /// Handles the completion of a record, or of the file header (`packets` is 0).
    fn settle(&self, packets: u64, written: Result<u64, String>) {
        match written {
            Ok(bytes) if !self.failed.get() => {
                add(&self.good, bytes);
                add(&self.tally.logged, packets);
                add(&self.tally.bytes, bytes * u64::from(packets > 0));
            }
            Ok(_) => add(&self.tally.lost, packets),
            Err(error) => {
                add(&self.tally.lost, packets);
                if !self.failed.replace(true) {
                    add(&self.tally.failures, 1);
                    eprintln!(
                        "cannot write {}: {error}; packets are not logged, the next attempt is in a second",
                        self.path.display()
                    );
                }
            }
        }
    }

    fn has_records(&self) -> bool {
        self.good.get() > FILE_HEADER as u64
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.failed.get() {
            let repaired = if self.has_records() { self.plain.set_len(self.good.get()) } else { std::fs::remove_file(&self.path) };
            if let Err(error) = repaired {
                eprintln!("cannot cut {} after its last whole packet: {error}", self.path.display());
            }
        }
    }
}

struct Current {
    part: Rc<Part>,
    /// Bytes submitted.
    bytes: u64,
    since_ns: u64,
    is_pruned: bool,
}

/// Path of records to the disk.
pub enum Sink {
    /// The library's asynchronous storage.
    Async(Storage),
    /// A system call for each burst, which blocks.
    Blocking(RefCell<Vec<u8>>),
}

pub struct Log {
    sink: Sink,
    series: Series,
    limits: Limits,
    current: Option<Current>,
    /// Packets in the buffer of the blocking sink.
    in_hand: u64,
    next_number: u32,
    retry_ns: u64,
    tally: Rc<Tally>,
}

impl Log {
    /// Begins a log with its first file, numbered after existing ones.
    pub fn new(path: &Path, limits: Limits, sink: Sink, now_ns: u64) -> Result<Self, LogError> {
        let series = Series::new(path).ok_or_else(|| LogError::Name(path.into()))?;
        let numbers = series.numbers().map_err(|source| LogError::Folder { path: path.into(), source })?;
        let next_number = numbers.last().map_or(1, |last| last + 1);
        let mut log = Self { sink, series, limits, current: None, in_hand: 0, next_number, retry_ns: 0, tally: Rc::default() };
        log.begin(now_ns)?;
        Ok(log)
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The storage of an asynchronous sink.
    #[cfg(test)]
    pub fn storage(&self) -> Option<Storage> {
        match &self.sink {
            Sink::Async(storage) => Some(storage.clone()),
            Sink::Blocking(_) => None,
        }
    }

    /// Opens the next file: a few system calls, at rotations only.
    fn begin(&mut self, now_ns: u64) -> Result<(), LogError> {
        let path = self.series.path(self.next_number);
        let fail = |source| LogError::Open { path: path.clone(), source };
        let plain = std::fs::File::options().write(true).create_new(true).open(&path).map_err(fail)?;
        let file = File::new(plain.try_clone().map_err(fail)?);
        let part = Part { file, plain, path, tally: self.tally.clone(), good: Cell::new(0), failed: Cell::new(false) };
        self.current = Some(Current { part: Rc::new(part), bytes: FILE_HEADER as u64, since_ns: now_ns, is_pruned: false });
        self.next_number += 1;
        add(&self.tally.files, 1);
        let header: [u8; FILE_HEADER] = words([MAGIC, version(), 0, 0, self.limits.snap, ETHERNET]);
        self.put(&[&header], 0);
        Ok(())
    }

    /// Writes one packet. `time_ns` is its time since 1970, `now_ns` the monotonic clock.
    pub fn record(&mut self, packet: &[u8], time_ns: u64, now_ns: u64) {
        let kept = &packet[..packet.len().min(self.limits.snap as usize)];
        let len = (RECORD_HEADER + kept.len()) as u64;
        self.rotate(len, now_ns);
        if self.current.is_none() {
            add(&self.tally.lost, 1);
            return;
        }
        let (seconds, nanos) = ((time_ns / 1_000_000_000) as u32, (time_ns % 1_000_000_000) as u32);
        let header: [u8; RECORD_HEADER] = words([seconds, nanos, kept.len() as u32, packet.len() as u32]);
        self.put(&[&header, kept], 1);
    }

    /// Rotates if the current file cannot take `len` bytes more or is too old.
    fn rotate(&mut self, len: u64, now_ns: u64) {
        if let Some(current) = &self.current {
            if current.part.failed.get() {
                self.retry_ns = now_ns + PAUSE_NS;
            } else {
                let is_full = current.bytes + len > self.limits.bytes && current.bytes > FILE_HEADER as u64;
                if !is_full && now_ns.saturating_sub(current.since_ns) < self.limits.age_ns {
                    return;
                }
            }
            self.end_burst();
            self.current = None;
        }
        if now_ns < self.retry_ns {
            return;
        }
        if let Err(error) = self.begin(now_ns) {
            add(&self.tally.failures, 1);
            eprintln!("{error}; packets are not logged, the next attempt is in a second");
            self.retry_ns = now_ns + PAUSE_NS;
        }
    }

    fn put(&mut self, parts: &[&[u8]], packets: u64) {
        let Some(current) = &mut self.current else { return };
        let len = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        current.bytes += len;
        match &self.sink {
            Sink::Async(storage) => {
                let part = current.part.clone();
                let callback = move |outcome: IoResult<'_>| {
                    part.settle(packets, outcome.map(|bytes| bytes.len() as u64).map_err(|error| error.to_string()));
                };
                // Never full here, outside of callbacks; too large only if a packet is larger than
                // a buffer.
                if let Err(error @ (RequestError::Size { .. } | RequestError::Full)) =
                    storage.write_parts(&current.part.file, At::End, parts, callback)
                {
                    current.part.settle(packets, Err(error.to_string()));
                }
            }
            Sink::Blocking(buffer) => {
                parts.iter().for_each(|part| buffer.borrow_mut().extend_from_slice(part));
                self.in_hand += packets;
            }
        }
    }

    /// Ends a burst: the blocking sink writes.
    pub fn end_burst(&mut self) {
        let (Sink::Blocking(buffer), Some(current)) = (&self.sink, &self.current) else { return };
        let mut buffer = buffer.borrow_mut();
        if buffer.is_empty() {
            return;
        }
        let written = (&current.part.plain).write_all(&buffer);
        let bytes = buffer.len() as u64;
        let packets = std::mem::take(&mut self.in_hand);
        // Bytes of the file header belong to no packet.
        let header = if current.part.good.get() == 0 { FILE_HEADER as u64 } else { 0 };
        current.part.settle(0, written.as_ref().map(|()| header).map_err(ToString::to_string));
        current.part.settle(packets, written.map(|()| bytes - header).map_err(|error| error.to_string()));
        buffer.clear();
    }

    /// Removes old files once the current one has a record on the disk. Called periodically.
    pub fn tick(&mut self) {
        let Some(current) = self.current.as_mut().filter(|current| !current.is_pruned && current.part.has_records()) else {
            return;
        };
        current.is_pruned = true;
        let (series, keep) = (self.series.clone(), self.limits.keep);
        let remove = move || {
            if let Err(error) = series.prune(keep) {
                eprintln!("cannot remove old files of the log: {error}");
            }
        };
        // Large files take milliseconds to remove, and packets would wait.
        if let Err(error) = std::thread::Builder::new().name("prune".into()).spawn(remove) {
            eprintln!("cannot remove old files of the log: {error}");
        }
    }

    /// Removes old files before the log ends.
    pub fn finish(&mut self) {
        self.end_burst();
        if self.current.as_ref().is_some_and(|current| current.part.has_records())
            && let Err(error) = self.series.prune(self.limits.keep)
        {
            eprintln!("cannot remove old files of the log: {error}");
        }
    }
}

/// Version 2.4: two 16-bit words in place of a 32-bit one.
fn version() -> u32 {
    let ([a, b], [c, d]) = (2u16.to_ne_bytes(), 4u16.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// Words in this machine's byte order. `BYTES` is 4 × `N`.
fn words<const N: usize, const BYTES: usize>(words: [u32; N]) -> [u8; BYTES] {
    const { assert!(BYTES == 4 * N) };
    let mut bytes = [0; BYTES];
    bytes.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
    bytes
}
