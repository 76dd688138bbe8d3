//! A port that replays a capture file, writes one, or both.
//!
//! Reading. The file is read and checked as a whole when the port is opened ([`super::capture`]).
//! It stays in memory, with 32 extra bytes a packet. Packets come out in file order, byte for byte.
//! A packet that the file holds in part (a snap length) is replayed as that part and counted `cut`;
//! one without any byte cannot be sent and is counted `empty`. Packets of other links than Ethernet
//! get a header, and are counted `headers_made`. Recorded times are relative to the
//! first packet; where they decrease, the file order wins. Each repetition follows the last packet
//! of the one before at once. What the file says of a packet is noted for the port that writes it
//! ([`Origins`]).
//!
//! Writing. Packets are copied to buffers of [`BUFFER`] bytes, which a thread of the port writes to
//! the file: the packet path makes no system call. When all [`BUFFERS`] buffers wait for the disk,
//! the port accepts no packets until one is free, so nothing is lost unless the caller drops the
//! rest. The thread sleeps up to [`NAP`] when idle, and runs on the cores of the thread that opened
//! the port. The format is pcapng or pcap, by the name of the file, with nanoseconds. A packet has
//! the time of the burst that wrote it, or, with `times = "recorded"`, that of the capture which it
//! was replayed from. What that capture had cut off counts for the packet's original length. All
//! packets are written by the time the queue is dropped.
//!
//! A file that is there keeps what it holds until a packet thread has the port, and one that was
//! made for a port that no thread gets is removed: a change that is refused leaves no trace. Only
//! a port that reads what the former one of its name wrote is opened after that is closed: if it
//! cannot be opened, the former one goes on at the end of its file ([`Begins::AtEnd`]). Another
//! thread opens files and reads them, and is waited for with a limit (`pcap/file.rs`).
//!
//! When the disk is full, or fails otherwise, the file is truncated after its last whole packet,
//! and the same packets are written again every [`RETRY`]. Meanwhile the buffers fill up, the port
//! accepts no more, and its chains close their gates. Accepted packets are lost only if they cannot
//! be written when the port is closed; they are counted `write_lost`. A file that another port of
//! this process still writes is refused likewise, also by another path; then it is begun as
//! [`Begins`] says.
//!
//! Limits. A capture has one order, so a port with several queues (of shards) has one thread read
//! and write, and passes packets between it and the others ([`spread`]). What these sent and it has
//! not taken when the port is closed is not written. Packets for a port that does not write are
//! dropped and counted as `swallowed`.

mod file;
mod format;

use std::fs::Metadata;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_queue::ArrayQueue;
use sluice_shm::BURST;
use sluice_shm::arena::HEADROOM;
use sluice_shm::clock::monotonic_ns;

use super::capture::{self, Capture};
use super::pace::Pacer;
use super::spread;
use crate::error::PortError;
use crate::origin::{FrameOrigin, Origins};
use file::{OPENING, Target};
use format::FileFormat;
use sluice_api::config::{Pcap, PcapSpeed, PcapTimes};
use sluice_api::model::PortState;
use sluice_dataplane::frame::{FrameCache, Packet};
use sluice_dataplane::link::Link;
use sluice_dataplane::port::OpenPort;
use sluice_dataplane::queue::{PortQueue, QueueCounters};

pub const BUFFER: usize = 1 << 18;

pub const BUFFERS: usize = 16;

/// Longest sleep of the writing thread.
pub const NAP: Duration = Duration::from_millis(8);

/// Time between two attempts to write what the disk refused.
pub const RETRY: Duration = Duration::from_millis(100);

/// Least time between two log lines about a refusing disk.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Where a port begins in the file that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// The file is truncated.
    Anew,
    /// Behind what it holds, if that begins as this port would; else as [`Begins::Anew`].
    AtEnd,
}

/// Opens a port. `room` is the largest packet that a frame holds, in bytes; `origins` has what
/// captures say of packets.
///
/// # Errors
/// [`PortError::Setting`] for contradictory settings, [`PortError::File`] if a file cannot be read
/// or written, [`PortError::Capture`] if the capture cannot be replayed. The output file is opened
/// only after all other checks.
pub fn open(
    name: &str,
    queues: u32,
    settings: &Pcap,
    room: usize,
    origins: &Arc<Origins>,
    begins: Begins,
) -> Result<OpenPort, PortError> {
    let source = source(name, settings, room)?;
    let mut words = Vec::new();
    if let (Some(source), Some(path)) = (&source, &settings.read) {
        let count = source.capture.records.len();
        words.push(format!("replays {count} packets of {}", path.display()));
        if source.capture.made > 0 {
            words.push(format!("makes Ethernet headers for {} of them", source.capture.made));
        }
    }
    let writer = match &settings.write {
        Some(path) => {
            words.push(format!("writes {}", path.display()));
            let keeps_times = settings.times == PcapTimes::Recorded;
            Some(Writer::create(name, path, Labels { origins: origins.clone(), keeps_times }, begins)?)
        }
        None => None,
    };
    let reader = source.map(|source| Reader::new(source.capture, settings, origins.clone()));
    let link = writer.as_ref().map_or_else(Arc::default, |writer| writer.exchange.link.clone());
    let queue = PcapQueue { reader, writer, swallowed: 0 };
    // One thread reads the file in its order, and passes packets to the others.
    let queues = spread::over(Box::new(queue), u16::try_from(queues).unwrap_or(u16::MAX), true);
    Ok(OpenPort { queues, description: words.join(", "), memory: None, link })
}

/// Checks a port as [`open`] does, without creating a file.
///
/// # Errors
/// As [`open`].
pub fn look_at(name: &str, settings: &Pcap, room: usize) -> Result<(), PortError> {
    source(name, settings, room).map(drop)
}

/// Checks the settings, and reads the input file.
fn source(name: &str, settings: &Pcap, room: usize) -> Result<Option<Source>, PortError> {
    let refuse = |what: &str| PortError::Setting { port: name.into(), what: what.into() };
    if settings.read.is_none() && settings.write.is_none() {
        return Err(refuse("neither a file to read nor one to write is given; set read or write"));
    }
    if settings.speed == PcapSpeed::Rate && !(settings.rate.is_finite() && settings.rate > 0.0) {
        return Err(refuse("speed = \"rate\" needs a rate; set rate to packets per second, above 0"));
    }
    let source = settings.read.as_deref().map(|path| Source::open(name, path, room)).transpose()?;
    if let (Some(source), Some(path)) = (&source, &settings.write)
        && source.is(name, path)?
    {
        return Err(refuse("read and write name the same file, which writing would destroy; set another one"));
    }
    Ok(source)
}

struct Source {
    capture: Capture,
    metadata: Metadata,
}

impl Source {
    fn open(port: &str, path: &Path, room: usize) -> Result<Self, PortError> {
        let file_error = |source| PortError::File { port: port.into(), doing: "read", path: path.into(), source };
        let refuse = |what: String| PortError::Capture { port: port.into(), path: path.into(), what };
        let (file, metadata) = file::open(path).map_err(file_error)?;
        if !metadata.is_file() {
            return Err(refuse("not a regular file; a capture is read as a whole before it is replayed".into()));
        }
        if metadata.len() > capture::MAX_BYTES {
            return Err(refuse(format!("{} bytes are too many; split it with `editcap -c`", metadata.len())));
        }
        let bytes = file::read(file, metadata.len(), OPENING).map_err(file_error)?;
        let capture = capture::decode(bytes, room).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { capture, metadata })
    }

    /// Whether a path leads to the file that was read.
    fn is(&self, port: &str, path: &Path) -> Result<bool, PortError> {
        let error = |source| PortError::File { port: port.into(), doing: "write", path: path.into(), source };
        Ok(file::look(path).map_err(error)?.is_some_and(|other| file::is_same(&other, &self.metadata)))
    }
}

enum Speed {
    Fast,
    /// Since the first packet of this repetition was due.
    Recorded {
        start_ns: Option<u64>,
    },
    Rate(Pacer),
}

struct Reader {
    capture: Capture,
    next: usize,
    speed: Speed,
    /// Repetitions left, including this one; `None`: for ever.
    repeat: Option<u32>,
    /// What this repetition adds to recorded times, in nanoseconds.
    later_ns: u64,
    origins: Arc<Origins>,
    replayed: u64,
    no_frames: u64,
}

impl Reader {
    fn new(capture: Capture, settings: &Pcap, origins: Arc<Origins>) -> Self {
        let speed = match settings.speed {
            PcapSpeed::Fast => Speed::Fast,
            PcapSpeed::Recorded => Speed::Recorded { start_ns: None },
            PcapSpeed::Rate => Speed::Rate(Pacer::new(settings.rate)),
        };
        let repeat = match settings.repeat.unwrap_or(1) {
            0 => None,
            times => Some(times),
        };
        // A file without packets is finished, whatever `repeat` is.
        let repeat = if capture.records.is_empty() { Some(0) } else { repeat };
        Self { capture, next: 0, speed, repeat, later_ns: 0, origins, replayed: 0, no_frames: 0 }
    }

    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        if self.repeat == Some(0) {
            return 0;
        }
        // A burst ends at the end of the file, at the latest.
        let ahead = &self.capture.records[self.next..];
        let wanted = out.len().min(BURST).min(ahead.len());
        let wanted = match &mut self.speed {
            Speed::Fast => wanted,
            Speed::Rate(pacer) => wanted.min(pacer.due(now_ns) as usize),
            Speed::Recorded { start_ns } => {
                let since = now_ns.saturating_sub(*start_ns.get_or_insert(now_ns));
                ahead[..wanted].iter().take_while(|record| record.due_ns <= since).count()
            }
        };
        if wanted == 0 {
            return 0;
        }
        let mut taken = [0; BURST];
        let n = frames.alloc(&mut taken[..wanted]);
        if n == 0 {
            self.no_frames += 1;
            return 0;
        }
        for ((frame, record), packet) in taken[..n].iter().zip(ahead).zip(out) {
            let [header, bytes] = self.capture.parts_of(record);
            // It fits: sizes were checked when the file was decoded.
            if !header.is_empty() {
                frames.arena().write(*frame, HEADROOM as u16, header);
            }
            frames.arena().write(*frame, (HEADROOM + header.len()) as u16, bytes);
            let time_ns = record.time_ns.saturating_add(self.later_ns);
            self.origins.note(*frame, FrameOrigin { time_ns, missing: record.missing, is_made: record.is_made() });
            *packet = Packet::fresh(*frame, (header.len() + bytes.len()) as u16);
        }
        if let Speed::Rate(pacer) = &mut self.speed {
            pacer.sent(n as u64);
        }
        self.replayed += n as u64;
        self.next += n;
        if self.next == self.capture.records.len() {
            self.next = 0;
            self.repeat = self.repeat.map(|times| times - 1);
            let took_ns = self.capture.records.last().map_or(0, |last| last.due_ns);
            self.later_ns = self.later_ns.saturating_add(took_ns);
            if let Speed::Recorded { start_ns: Some(start) } = &mut self.speed {
                *start = start.saturating_add(took_ns);
            }
        }
        n
    }
}

/// Packets on their way to the file, in the file's format.
struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
    packets: u64,
}

/// State shared by the queue and the writing thread.
struct Exchange {
    full: ArrayQueue<Buffer>,
    empty: ArrayQueue<Buffer>,
    /// A packet thread has the port.
    is_begun: AtomicBool,
    stop: AtomicBool,
    written: AtomicU64,
    lost: AtomicU64,
    errors: AtomicU64,
    /// [`PortState::Blocked`] while the disk refuses writes.
    link: Arc<Link>,
}

/// What is written of a packet besides its bytes.
struct Labels {
    origins: Arc<Origins>,
    /// Whether a packet that was replayed has the time of its capture.
    keeps_times: bool,
}

struct Writer {
    exchange: Arc<Exchange>,
    buffer: Option<Buffer>,
    format: FileFormat,
    labels: Labels,
    thread: Option<JoinHandle<()>>,
    /// Disconnected once the thread has let go of the file.
    ended: Receiver<()>,
    /// Wall clock minus monotonic clock in nanoseconds, when the file was created.
    epoch_ns: u64,
}

impl Writer {
    fn create(port: &str, path: &Path, labels: Labels, begins: Begins) -> Result<Self, PortError> {
        let error = |source| PortError::File { port: port.into(), doing: "write", path: path.into(), source };
        let target = Target::open(path, FileFormat::of(path).header(port), begins == Begins::AtEnd).map_err(error)?;
        Self::start(port, target, labels).map_err(error)
    }

    /// Starts the thread.
    fn start(port: &str, target: Target, labels: Labels) -> std::io::Result<Self> {
        let exchange = Arc::new(Exchange {
            full: ArrayQueue::new(BUFFERS),
            empty: ArrayQueue::new(BUFFERS),
            is_begun: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            link: Arc::default(),
        });
        for _ in 0..BUFFERS {
            // The queue holds them all.
            let _ = exchange.empty.push(Buffer { bytes: vec![0; BUFFER].into(), len: 0, packets: 0 });
        }
        let format = FileFormat::of(&target.path);
        let output = Output { port: port.into(), target, refused: false, reported: None };
        let (shared, (ends, ended)) = (exchange.clone(), channel());
        let thread = std::thread::Builder::new().name(format!("pcap-{port}")).spawn(move || {
            let _ends = ends;
            output.run(&shared);
        })?;
        let wall_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let epoch_ns = wall_ns.wrapping_sub(monotonic_ns());
        Ok(Self { buffer: exchange.empty.pop(), exchange, format, labels, thread: Some(thread), ended, epoch_ns })
    }

    /// Copies packets to the buffers, and returns how many fitted.
    fn take(&mut self, packets: &[Packet], frames: &FrameCache, now_ns: u64) -> usize {
        let (format, wall_ns) = (self.format, self.epoch_ns.wrapping_add(now_ns));
        for (i, packet) in packets.iter().enumerate() {
            let needed = format.size(packet.len.into());
            if self.buffer.as_ref().is_none_or(|buffer| BUFFER - buffer.len < needed) {
                self.hand_over();
            }
            let Some(buffer) = &mut self.buffer else { return i };
            let record = &mut buffer.bytes[buffer.len..buffer.len + needed];
            if !frames.arena().read(packet.frame, packet.offset, &mut record[format.bytes(packet.len.into())]) {
                // Impossible: the manager checked the packet when it came. It is no reason to stop.
                self.exchange.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut origin =
                self.labels.origins.of(packet.frame, frames).unwrap_or(FrameOrigin { time_ns: wall_ns, ..FrameOrigin::default() });
            if !self.labels.keeps_times {
                origin.time_ns = wall_ns;
            }
            format.wrap(record, packet.len, origin);
            buffer.len += needed;
            buffer.packets += 1;
        }
        packets.len()
    }

    /// Passes the buffer on unless it is empty, and takes an empty one if there is one.
    fn hand_over(&mut self) {
        match self.buffer.take() {
            Some(buffer) if buffer.len > 0 => {
                // The queue holds all buffers.
                let _ = self.exchange.full.push(buffer);
            }
            other => self.buffer = other,
        }
        if self.buffer.is_none() {
            self.buffer = self.exchange.empty.pop();
        }
    }

    /// Wakes the thread, by a system call.
    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.hand_over();
        // Release: a thread that sees the stop flag sees the last buffer in the queue.
        self.exchange.stop.store(true, Ordering::Release);
        self.wake();
        if !self.exchange.is_begun.load(Ordering::Relaxed) {
            // It may have a file to remove. Without an answer to that it ends by itself.
            let _ = self.ended.recv_timeout(OPENING);
        } else if let Some(thread) = self.thread.take() {
            // It does not panic, and if it did, nothing would be left to do.
            let _ = thread.join();
        }
    }
}

/// The file, as the writing thread owns it.
struct Output {
    port: String,
    target: Target,
    /// The last write failed, so that part of a packet may lie after the last whole one.
    refused: bool,
    /// When the log last reported the reason.
    reported: Option<Instant>,
}

impl Output {
    fn run(mut self, exchange: &Exchange) {
        if !self.is_put_in_use(exchange) {
            return;
        }
        // If another port has the file, each write tries again.
        let _ = self.target.claim();
        let header = FileFormat::of(&self.target.path).header(&self.port);
        let mut nap = Duration::from_millis(1);
        let (mut refused, mut lost) = (None, 0);
        loop {
            // Acquire, before reading the queue: buffers from before the stop are written.
            let stop = exchange.stop.load(Ordering::Acquire);
            let has_header = self.target.end > 0 || self.write(&header, exchange);
            while let Some(mut buffer) = refused.take().or_else(|| exchange.full.pop()) {
                nap = Duration::from_millis(1);
                if has_header && self.write(&buffer.bytes[..buffer.len], exchange) {
                    exchange.written.fetch_add(buffer.packets, Ordering::Relaxed);
                    // Here, too: under load the queue may never be empty.
                    let _ = exchange.link.set(PortState::Up);
                } else if stop {
                    exchange.lost.fetch_add(buffer.packets, Ordering::Relaxed);
                    lost += buffer.packets;
                } else {
                    refused = Some(buffer);
                    break;
                }
                buffer.len = 0;
                buffer.packets = 0;
                let _ = exchange.empty.push(buffer);
            }
            if stop {
                if lost > 0 {
                    let path = self.target.path.display();
                    error!("port {}: packets lost because {path} could not be written when it was closed: {lost}", self.port);
                }
                return;
            }
            // Has no effect while the supervisor takes the changes: then the next round sets it.
            let is_refused = !has_header || refused.is_some();
            let _ = exchange.link.set(if is_refused { PortState::Blocked } else { PortState::Up });
            if is_refused {
                // Not parked: more packets are no reason to try again.
                std::thread::sleep(RETRY);
            } else {
                std::thread::park_timeout(nap);
                nap = (nap * 2).min(NAP);
            }
        }
    }

    /// Waits until a packet thread has the port. Returns whether one ever did.
    fn is_put_in_use(&mut self, exchange: &Exchange) -> bool {
        loop {
            // The stop first: a port that is closed after it was begun is written to its end.
            let stop = exchange.stop.load(Ordering::Acquire);
            if exchange.is_begun.load(Ordering::Acquire) {
                self.target.is_unused = false;
                return true;
            }
            if stop {
                return false;
            }
            std::thread::park();
        }
    }

    /// Writes after the last whole packet, or over what the file held before. Returns whether the
    /// disk accepted it.
    fn write(&mut self, bytes: &[u8], exchange: &Exchange) -> bool {
        let ready = self.target.claim().and_then(|()| if self.refused || self.target.end == 0 { self.cut_back() } else { Ok(()) });
        match ready.and_then(|()| self.target.file.write_all(bytes)) {
            Ok(()) => {
                self.target.end += bytes.len() as u64;
                self.refused = false;
                true
            }
            Err(error) => {
                exchange.errors.fetch_add(1, Ordering::Relaxed);
                let is_known = self.reported.is_some_and(|at| at.elapsed() < REPORT_EVERY);
                if !std::mem::replace(&mut self.refused, true) && !is_known {
                    self.reported = Some(Instant::now());
                    error!(
                        "port {}: cannot write {}: {error}; it is tried again each {RETRY:?}",
                        self.port,
                        self.target.path.display()
                    );
                }
                // A capture must not end with part of a packet while the disk refuses the rest. If
                // this fails, too, the next attempt begins with it.
                if self.target.claim().is_ok() {
                    let _ = self.cut_back();
                }
                false
            }
        }
    }

    /// Truncates the file after the last whole packet.
    fn cut_back(&mut self) -> std::io::Result<()> {
        let Target { file, end, .. } = &mut self.target;
        file.set_len(*end)?;
        file.seek(SeekFrom::Start(*end)).map(drop)
    }
}

struct PcapQueue {
    reader: Option<Reader>,
    writer: Option<Writer>,
    swallowed: u64,
}

impl PortQueue for PcapQueue {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        self.reader.as_mut().map_or(0, |reader| reader.rx_burst(out, frames, now_ns))
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        let n = match &mut self.writer {
            Some(writer) => writer.take(packets, frames, now_ns),
            None => {
                self.swallowed += packets.len() as u64;
                packets.len()
            }
        };
        frames.free_packets(&packets[..n]);
        n
    }

    fn begin(&mut self) {
        if let Some(writer) = &self.writer {
            writer.exchange.is_begun.store(true, Ordering::Release);
            writer.wake();
        }
    }

    fn count_with(&mut self, counters: &Arc<QueueCounters>) {
        if let Some(Reader { speed: Speed::Rate(pacer), .. }) = &mut self.reader {
            pacer.count_with(counters);
        }
    }

    fn is_finished(&self) -> bool {
        self.reader.as_ref().is_none_or(|reader| reader.repeat == Some(0))
    }

    fn housekeeping(&mut self, _now_ns: u64) {
        if let Some(writer) = &mut self.writer {
            writer.hand_over();
            writer.wake();
        }
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        let mut details = Vec::new();
        if let Some(reader) = &self.reader {
            details.push(("packets_in_file", reader.capture.records.len() as f64));
            details.push(("replayed", reader.replayed as f64));
            details.push(("cut", reader.capture.cut as f64));
            details.push(("empty", reader.capture.empty as f64));
            details.push(("headers_made", reader.capture.made as f64));
            details.push(("no_frames", reader.no_frames as f64));
            if let Speed::Rate(pacer) = &reader.speed {
                details.push(("skipped", pacer.skipped() as f64));
            }
        }
        if let Some(writer) = &self.writer {
            let Exchange { written, lost, errors, .. } = &*writer.exchange;
            details.push(("written", written.load(Ordering::Relaxed) as f64));
            details.push(("write_lost", lost.load(Ordering::Relaxed) as f64));
            details.push(("write_errors", errors.load(Ordering::Relaxed) as f64));
        } else {
            details.push(("swallowed", self.swallowed as f64));
        }
        details
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::path::PathBuf;

    use super::*;
    use crate::capture::tests::{Wanted, packets, pcap_of};
    use pcap_file::pcap::PcapReader;
    use pcap_file::{Endianness, TsResolution};
    use proptest::prelude::*;
    use sluice_dataplane::fake::cache;

    const ROOM: usize = 2112;

    /// Opens a port of a process that has no other, and begins to use it; no origins are kept.
    fn open(name: &str, queues: u32, settings: &Pcap, room: usize) -> Result<OpenPort, PortError> {
        let mut port = super::open(name, queues, settings, room, &Arc::default(), Begins::Anew)?;
        port.queues.iter_mut().for_each(|queue| queue.begin());
        Ok(port)
    }

    fn labels() -> Labels {
        Labels { origins: Arc::default(), keeps_times: false }
    }

    /// Takes all packets that are available.
    fn drain(queue: &mut dyn PortQueue, frames: &mut FrameCache, now_ns: u64) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut packets = [Packet::default(); 40];
        loop {
            let n = queue.rx_burst(&mut packets, frames, now_ns);
            if n == 0 {
                return all;
            }
            for packet in &packets[..n] {
                let mut bytes = vec![0; packet.len.into()];
                assert!(frames.arena().read(packet.frame, packet.offset, &mut bytes));
                all.push(bytes);
            }
            frames.free_packets(&packets[..n]);
        }
    }

    fn details(queue: &dyn PortQueue) -> std::collections::HashMap<&'static str, f64> {
        queue.details().into_iter().collect()
    }

    fn refusal(settings: &Pcap) -> String {
        open("p", 1, settings, ROOM).err().unwrap().to_string()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_is_replayed_and_written_comes_out_the_same(packets in packets(), repeat in 1u32..4) {
            let folder = tempfile::tempdir().unwrap();
            let (source, target) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
            std::fs::write(&source, pcap_of(&packets, Endianness::Little, TsResolution::NanoSecond)).unwrap();
            let settings = Pcap { read: Some(source), write: Some(target.clone()), repeat: Some(repeat), ..Pcap::default() };
            let mut port = open("p", 1, &settings, ROOM).unwrap();
            let queue = port.queues[0].as_mut();
            let mut frames = cache(64);
            let mut burst = [Packet::default(); 32];
            loop {
                let n = queue.rx_burst(&mut burst, &mut frames, monotonic_ns());
                let mut sent = 0;
                while sent < n {
                    sent += queue.tx_burst(&burst[sent..n], &mut frames, monotonic_ns());
                }
                if n == 0 {
                    break;
                }
            }
            prop_assert!(queue.is_finished());
            prop_assert_eq!(frames.held(), 64);
            drop(port);
            // An independent reader checks what was written.
            let mut reader = PcapReader::new(File::open(&target).unwrap()).unwrap();
            let mut written = Vec::new();
            let mut last = Duration::ZERO;
            while let Some(packet) = reader.next_packet() {
                let packet = packet.unwrap();
                prop_assert!(packet.timestamp >= last && packet.orig_len as usize == packet.data.len());
                last = packet.timestamp;
                written.push(packet.data.into_owned());
            }
            let once: Vec<Vec<u8>> = packets.into_iter().map(|(_, bytes, _)| bytes).filter(|bytes| !bytes.is_empty()).collect();
            let expected: Vec<Vec<u8>> = (0..repeat).flat_map(|_| once.clone()).collect();
            prop_assert_eq!(written, expected);
        }
    }

    /// Replays a capture into the file of another port. Returns what was written: time, original
    /// length and interface of each packet.
    fn written(source: &Path, target: &Path, repeat: u32, times: PcapTimes) -> Vec<(u64, u32, u32)> {
        let (origins, pool) = (Arc::<Origins>::default(), sluice_dataplane::frame::FramePool::new(64));
        origins.cover(&pool);
        let reads = Pcap { read: Some(source.into()), repeat: Some(repeat), ..Pcap::default() };
        let writes = Pcap { write: Some(target.into()), times, ..Pcap::default() };
        let mut from = super::open("in", 1, &reads, ROOM, &origins, Begins::Anew).unwrap();
        let mut to = super::open("out", 1, &writes, ROOM, &origins, Begins::Anew).unwrap();
        to.queues[0].begin();
        let mut frames = cache(64);
        let mut burst = [Packet::default(); BURST];
        loop {
            let n = from.queues[0].rx_burst(&mut burst, &mut frames, monotonic_ns());
            if n == 0 {
                break;
            }
            assert_eq!(to.queues[0].tx_burst(&burst[..n], &mut frames, monotonic_ns()), n);
        }
        drop(to);
        let file = std::fs::read(target).unwrap();
        let mut reader = pcap_file::pcapng::PcapNgReader::new(&file[..]).unwrap();
        let mut all = Vec::new();
        while let Some(block) = reader.next_block() {
            if let pcap_file::pcapng::Block::EnhancedPacket(packet) = block.unwrap() {
                all.push((packet.timestamp.as_nanos() as u64, packet.original_len, packet.interface_id));
            }
        }
        all
    }

    #[test]
    fn times_original_lengths_and_made_headers_get_into_the_written_file() {
        const FIRST: u64 = 1_700_000_000_123_456_789;
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("in.pcap"), folder.path().join("out.pcapng"));
        let packets: [Wanted; 3] = [(FIRST, vec![0x45; 60], 1440), (FIRST + 7, vec![0x45; 61], 0), (FIRST + 3, vec![0x60; 40], 20)];
        let mut file = pcap_of(&packets, Endianness::Big, TsResolution::NanoSecond);
        std::fs::write(&source, &file).unwrap();
        let once: [(u64, u32, u32); 3] = [(FIRST, 1500, 0), (FIRST + 7, 61, 0), (FIRST + 3, 60, 0)];
        assert_eq!(written(&source, &target, 1, PcapTimes::Recorded), once);
        // The second repetition begins when the last packet of the first was due.
        let again = once.map(|(time, len, interface)| (time + 7, len, interface));
        assert_eq!(written(&source, &target, 2, PcapTimes::Recorded), [once, again].concat());
        for (time, len, _) in written(&source, &target, 1, PcapTimes::Written) {
            assert!(time > FIRST + 1_000_000_000 && [1500, 61, 60].contains(&len), "{time} {len}");
        }
        // Link type 101, in the header of a big-endian file.
        file[20..24].copy_from_slice(&101u32.to_be_bytes());
        std::fs::write(&source, &file).unwrap();
        let made = once.map(|(time, len, _)| (time, len + 14, 1));
        assert_eq!(written(&source, &target, 1, PcapTimes::Recorded), made);
    }

    fn three(folder: &Path) -> PathBuf {
        let at = |ms: u64, byte: u8| -> Wanted { (1_700_000_000_000_000_000 + ms * 1_000_000, vec![byte; 60], 0) };
        let path = folder.join("three.pcap");
        // The third packet has a time before the second.
        std::fs::write(&path, pcap_of(&[at(0, 1), at(10, 2), at(5, 3)], Endianness::Little, TsResolution::MicroSecond)).unwrap();
        path
    }

    #[test]
    fn recorded_times_are_kept_and_repetitions_follow_on() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Pcap { read: Some(three(folder.path())), speed: PcapSpeed::Recorded, repeat: Some(0), ..Pcap::default() };
        let mut port = open("p", 1, &settings, ROOM).unwrap();
        let (queue, mut frames) = (port.queues[0].as_mut(), cache(64));
        let ms = 1_000_000;
        let mut at = |now: u64| drain(queue, &mut frames, 7 + now).iter().map(|bytes| bytes[0]).collect::<Vec<_>>();
        assert_eq!(at(0), [1]);
        assert_eq!(at(10 * ms - 1), Vec::<u8>::new());
        // The second, the third behind it, and the first of the next repetition.
        assert_eq!(at(10 * ms), [2, 3, 1]);
        assert_eq!(at(19 * ms), Vec::<u8>::new());
        assert_eq!(at(20 * ms), [2, 3, 1]);
        assert!(!queue.is_finished());
    }

    #[test]
    fn a_rate_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let read = Some(three(folder.path()));
        let settings = Pcap { read: read.clone(), speed: PcapSpeed::Rate, rate: 1e6, repeat: Some(100), ..Pcap::default() };
        let mut port = open("p", 1, &settings, ROOM).unwrap();
        let (queue, mut frames) = (port.queues[0].as_mut(), cache(64));
        assert_eq!(drain(queue, &mut frames, 0).len(), 1);
        assert_eq!(drain(queue, &mut frames, 10_000).len(), 10);
        assert_eq!(drain(queue, &mut frames, 900_000).len(), 32, "it does not make up for a pause");
        assert_eq!(details(queue)["skipped"], 901.0 - 11.0 - 32.0);
        let mut now = 900_000;
        while !queue.is_finished() {
            now += 20_000;
            assert!(!drain(queue, &mut frames, now).is_empty());
        }
        assert_eq!(details(queue)["replayed"], 300.0);
        for rate in [0.0, -1.0, f64::INFINITY] {
            let settings = Pcap { read: read.clone(), speed: PcapSpeed::Rate, rate, ..Pcap::default() };
            assert!(refusal(&settings).contains("set rate to packets per second"));
        }
    }

    #[test]
    fn several_threads_read_and_write_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
        let udp = |flow: u8| {
            let mut packet = vec![0; 60];
            packet[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
            packet[26..34].copy_from_slice(&[10, 0, 0, flow, 10, 0, 1, 1]);
            packet
        };
        let packets: Vec<Wanted> = (0..200u8).map(|i| (1_700_000_000_000_000_000 + u64::from(i), udp(i), 0)).collect();
        std::fs::write(&source, pcap_of(&packets, Endianness::Little, TsResolution::NanoSecond)).unwrap();
        let settings = Pcap { read: Some(source), write: Some(target.clone()), ..Pcap::default() };
        let mut port = open("p", 2, &settings, ROOM).unwrap();
        let mut frames = cache(1024);
        let mut sent = [0; 2];
        while !port.queues.iter().all(|queue| queue.is_finished()) {
            for (queue, sent) in port.queues.iter_mut().zip(&mut sent) {
                let mut burst = [Packet::default(); BURST];
                let n = queue.rx_burst(&mut burst, &mut frames, monotonic_ns());
                assert_eq!(queue.tx_burst(&burst[..n], &mut frames, monotonic_ns()), n);
                *sent += n;
            }
        }
        // What the second thread sent is written when the first one polls.
        assert_eq!(port.queues[0].rx_burst(&mut [Packet::default(); BURST], &mut frames, monotonic_ns()), 0);
        assert!(sent.iter().all(|n| *n > 50) && sent.iter().sum::<usize>() == packets.len(), "{sent:?}");
        drop(port);
        let mut reader = PcapReader::new(File::open(&target).unwrap()).unwrap();
        let mut written = Vec::new();
        while let Some(packet) = reader.next_packet() {
            written.push(packet.unwrap().data[29]);
        }
        written.sort_unstable();
        assert_eq!(written, (0..200).collect::<Vec<u8>>());
    }

    #[test]
    fn without_frames_the_replay_waits() {
        let folder = tempfile::tempdir().unwrap();
        let mut port = open("p", 1, &Pcap { read: Some(three(folder.path())), ..Pcap::default() }, ROOM).unwrap();
        let (queue, mut frames) = (port.queues[0].as_mut(), cache(2));
        let mut packets = [Packet::default(); 8];
        assert_eq!(queue.rx_burst(&mut packets, &mut frames, 0), 2);
        assert_eq!(queue.rx_burst(&mut packets[2..], &mut frames, 0), 0);
        assert_eq!((details(queue)["no_frames"], queue.is_finished()), (1.0, false));
        // It does not write: packets sent to it are dropped.
        assert_eq!(queue.tx_burst(&packets[..2], &mut frames, 0), 2);
        assert_eq!(queue.rx_burst(&mut packets, &mut frames, 0), 1);
        let details = details(queue);
        assert_eq!((details["swallowed"], details["replayed"], queue.is_finished()), (2.0, 3.0, true));
    }

    #[test]
    fn only_regular_files_are_opened_and_what_is_made_is_not_for_all() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let writing = |name: &str| Pcap { write: Some(at(name)), ..Pcap::default() };
        let reading = |name: &str| Pcap { read: Some(at(name)), ..Pcap::default() };
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        // The pipe has no reader: an open that waits for one never returns.
        assert!(refusal(&writing("pipe")).contains("it is no regular file"));
        assert!(refusal(&reading("pipe")).contains("not a regular file"));
        // The pipe has a reader.
        let _reader = OpenOptions::new().read(true).write(true).open(at("pipe")).unwrap();
        assert!(refusal(&writing("pipe")).contains("it is no regular file"));

        std::fs::write(at("precious"), "precious").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("link")).unwrap();
        assert!(refusal(&writing("link")).contains("it is a symbolic link"));
        assert_eq!(std::fs::read_to_string(at("precious")).unwrap(), "precious");
        open("p", 1, &writing("new"), ROOM).unwrap();
        assert_eq!(at("new").metadata().unwrap().permissions().mode() & 0o137, 0, "group may read, others nothing");
        // An existing file is truncated.
        std::fs::write(at("new"), "x".repeat(100)).unwrap();
        open("p", 1, &writing("new"), ROOM).unwrap();
        assert_eq!(at("new").metadata().unwrap().len(), 24);
    }

    #[test]
    fn an_empty_capture_is_finished_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.pcap");
        std::fs::write(&path, pcap_of(&[], Endianness::Little, TsResolution::MicroSecond)).unwrap();
        let mut port = open("p", 1, &Pcap { read: Some(path), repeat: Some(0), ..Pcap::default() }, ROOM).unwrap();
        assert!(port.queues[0].is_finished());
        assert!(drain(port.queues[0].as_mut(), &mut cache(64), 0).is_empty());
    }

    #[test]
    fn what_cannot_be_opened_is_refused_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let three = three(folder.path());
        let read = |path: &Path| Pcap { read: Some(path.into()), ..Pcap::default() };
        assert!(refusal(&Pcap::default()).contains("set read or write"));
        assert!(refusal(&read(&folder.path().join("none"))).contains("cannot read"));
        assert!(refusal(&read(folder.path())).contains("not a regular file"));
        let same = Pcap { write: Some(folder.path().join(".").join("three.pcap")), ..read(&three) };
        assert!(refusal(&same).contains("the same file"));
        assert!(refusal(&Pcap { write: Some(folder.path().join("no/such")), ..Pcap::default() }).contains("cannot write"));
        assert!(refusal(&Pcap { write: Some("/dev/full".into()), ..Pcap::default() }).contains("cannot write /dev/full"));
        let whole = std::fs::read(&three).unwrap();
        std::fs::write(&three, &whole[..whole.len() - 1]).unwrap();
        // Nothing was created yet: the input file comes first.
        let target = folder.path().join("out.pcap");
        let error = refusal(&Pcap { write: Some(target.clone()), ..read(&three) });
        assert!(error.contains("three.pcap: cut short") && error.contains("after 2 whole packets"), "{error}");
        assert!(!target.exists());
        std::fs::write(&three, &whole).unwrap();
        assert!(open("p", 1, &read(&three), 59).err().unwrap().to_string().contains("memory.packet_bytes to at least 60"));
    }

    fn burst(frames: &mut FrameCache, n: usize, len: u16) -> Vec<Packet> {
        let mut numbers = vec![0; n];
        assert_eq!(frames.alloc(&mut numbers), n);
        numbers.into_iter().map(|frame| Packet::fresh(frame, len)).collect()
    }

    #[test]
    fn a_port_with_all_buffers_full_takes_no_more() {
        // A thread that has ended stands for a disk that never finishes.
        let exchange = Arc::new(Exchange {
            full: ArrayQueue::new(BUFFERS),
            empty: ArrayQueue::new(BUFFERS),
            is_begun: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            link: Arc::default(),
        });
        for _ in 0..2 {
            assert!(exchange.empty.push(Buffer { bytes: vec![0; BUFFER].into(), len: 0, packets: 0 }).is_ok());
        }
        let buffer = exchange.empty.pop();
        let (exchanged, ended) = (exchange.clone(), channel().1);
        let writer =
            Writer { buffer, exchange: exchanged, format: FileFormat::Pcap, labels: labels(), thread: None, ended, epoch_ns: 0 };
        let mut queue = PcapQueue { reader: None, writer: Some(writer), swallowed: 0 };
        let mut frames = cache(64);
        let each = BUFFER / FileFormat::Pcap.size(2000);
        let mut taken = 0;
        loop {
            let packets = burst(&mut frames, 32, 2000);
            let n = queue.tx_burst(&packets, &mut frames, 0);
            frames.free_packets(&packets[n..]);
            taken += n;
            if n < 32 {
                break;
            }
        }
        assert_eq!(taken, 2 * each);
        // One buffer comes back from the disk: there is space again.
        let buffer = exchange.full.pop().unwrap();
        assert_eq!(buffer.packets as usize, each);
        assert!(exchange.empty.push(Buffer { len: 0, packets: 0, ..buffer }).is_ok());
        let packets = burst(&mut frames, 32, 2000);
        assert_eq!(queue.tx_burst(&packets, &mut frames, 0), 32);
        assert_eq!(frames.held(), 64);
    }

    #[test]
    fn what_the_disk_refuses_to_the_end_is_counted_and_the_file_stays_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.pcap");
        drop(open("p", 1, &Pcap { write: Some(path.clone()), ..Pcap::default() }, ROOM).unwrap());
        // With a header, and before that is written.
        for end in [24, 0] {
            // A file that is open for reading only refuses writes, and truncation.
            let target = Target::new(File::open(&path).unwrap(), path.clone(), false, end);
            let writer = Writer::start("p", target, labels()).unwrap();
            let mut queue = PcapQueue { reader: None, writer: Some(writer), swallowed: 0 };
            queue.begin();
            let mut frames = cache(64);
            let exchange = queue.writer.as_ref().unwrap().exchange.clone();
            for _ in 0..2 {
                let packets = burst(&mut frames, 10, 60);
                assert_eq!(queue.tx_burst(&packets, &mut frames, 0), 10);
                queue.housekeeping(0);
            }
            drop(queue);
            assert_eq!(exchange.lost.load(Ordering::Relaxed), 20);
            assert!(exchange.errors.load(Ordering::Relaxed) >= 1);
            assert_eq!(exchange.written.load(Ordering::Relaxed), 0);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 24);
        }
    }

    #[test]
    fn files_are_as_they_were_until_a_thread_has_the_port() {
        let folder = tempfile::tempdir().unwrap();
        for (name, before) in [("old.pcap", Some("precious")), ("empty.pcap", Some("")), ("new.pcap", None)] {
            let path = folder.path().join(name);
            if let Some(before) = before {
                std::fs::write(&path, before).unwrap();
            }
            let settings = Pcap { write: Some(path.clone()), ..Pcap::default() };
            for queues in [1, 2] {
                drop(super::open("p", queues, &settings, ROOM, &Arc::default(), Begins::Anew).unwrap());
                assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), before, "{name}");
            }
            drop(open("p", 2, &settings, ROOM).unwrap());
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 24, "{name}");
        }
    }

    /// Sends packets to a port that is in use, and closes it.
    fn send(mut port: OpenPort, n: usize) {
        let mut frames = cache(64);
        let packets = burst(&mut frames, n, 60);
        port.queues[0].begin();
        assert_eq!(port.queues[0].tx_burst(&packets, &mut frames, monotonic_ns()), n);
    }

    #[test]
    fn a_capture_that_is_written_goes_on_when_its_next_port_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["out.pcap", "out.pcapng"] {
            let path = folder.path().join(name);
            let settings = Pcap { write: Some(path.clone()), ..Pcap::default() };
            let opened = |begins| super::open("p", 1, &settings, ROOM, &Arc::default(), begins).unwrap();
            let len = || std::fs::metadata(&path).unwrap().len();
            send(opened(Begins::Anew), 0);
            let header = len();
            send(opened(Begins::Anew), 1);
            let each = len() - header;
            // The next port is opened beside it, and closed before it was in use.
            let mut running = opened(Begins::Anew);
            running.queues[0].begin();
            for begins in [Begins::Anew, Begins::AtEnd] {
                drop(opened(begins));
            }
            send(running, 5);
            assert_eq!(len(), header + 5 * each, "{name}");
            // The former port is closed, and opened again.
            send(opened(Begins::AtEnd), 3);
            assert_eq!(len(), header + 8 * each, "{name}");
            std::fs::write(&path, "what no port has written").unwrap();
            send(opened(Begins::AtEnd), 2);
            assert_eq!(len(), header + 2 * each, "{name}");
        }
    }

    #[test]
    fn a_file_that_another_port_writes_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("a")).unwrap();
        std::os::unix::fs::symlink(at("a"), at("b")).unwrap();
        let opened = |path: &str, begins| {
            let settings = Pcap { write: Some(at(path)), ..Pcap::default() };
            super::open("p", 1, &settings, ROOM, &Arc::default(), begins).unwrap()
        };
        let path = at("a/out.pcap");
        let len = || std::fs::metadata(&path).unwrap().len();
        let mut first = opened("a/out.pcap", Begins::Anew);
        let mut frames = cache(64);
        let mut sent = |port: &mut OpenPort, n, has: &dyn Fn(&dyn PortQueue) -> bool| {
            let packets = burst(&mut frames, n, 60);
            port.queues[0].begin();
            assert_eq!(port.queues[0].tx_burst(&packets, &mut frames, monotonic_ns()), n);
            while !has(port.queues[0].as_ref()) {
                port.queues[0].housekeeping(0);
                std::thread::yield_now();
            }
        };
        sent(&mut first, 1, &|queue| details(queue)["written"] == 1.0);
        // In use while the first one is: it begins when that has ended, behind what it wrote.
        let mut second = opened("b/out.pcap", Begins::AtEnd);
        sent(&mut second, 3, &|queue| details(queue)["write_errors"] > 0.0);
        assert_eq!(len(), 24 + 76);
        send(first, 4);
        assert_eq!(len(), 24 + 5 * 76);
        send(second, 1);
        assert_eq!(len(), 24 + 9 * 76);
    }

    #[test]
    fn housekeeping_brings_packets_to_the_file_before_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.pcap");
        let mut port = open("p", 1, &Pcap { write: Some(path.clone()), ..Pcap::default() }, ROOM).unwrap();
        let (queue, mut frames) = (port.queues[0].as_mut(), cache(64));
        let packets = burst(&mut frames, 5, 100);
        assert_eq!(queue.tx_burst(&packets, &mut frames, monotonic_ns()), 5);
        queue.housekeeping(0);
        while details(queue)["written"] < 5.0 {
            std::thread::yield_now();
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 24 + 5 * 116);
        assert!(queue.is_finished());
    }
}
