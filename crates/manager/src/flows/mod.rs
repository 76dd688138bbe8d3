//! The log of flows: takes the records of flows that have ended, and answers what flows there are.
//!
//! Problem: packet threads [meter] flows and must never wait for a file, a network or a client.
//! Approach: a thread takes the records of ended flows from the packet threads' queues, writes them
//! to a [file](FlowFile) and to a [collector](Exporter), and keeps the last ones. Flows that go on
//! are read where the packet threads count them, by the thread that answers. Names come from the
//! supervisor, once a second and when the name of a number is missing; nothing waits for it long.
//!
//! Limits: a record has the names of its numbers as they were when it was taken. Flows that ended
//! before the last [`MOST_NAMES`] changes of names are not kept for answers. What the file or the
//! collector does not take is lost, and counted.
//!
//! [meter]: sluice_dataplane::meter::FlowMeter

mod answer;
mod exemplars;
mod file;
mod ipfix;
mod report;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_api::config::FlowLogConfig;
use sluice_api::model::{Exemplar, FlowEndReason, FlowLogCounts};
use sluice_dataplane::meter::{FlowMeter, FlowRecord, MeteredFlows};
use sluice_shm::clock::monotonic_ns;

use exemplars::Exemplars;
use file::FlowFile;
use ipfix::Exporter;
pub use report::FlowNames;

/// Flows that have ended and are kept for answers.
const KEPT: usize = 1 << 15;
/// Versions of all names that are kept with them.
const MOST_NAMES: usize = 64;
/// Records that are taken from all packet threads before names are looked for.
const AT_ONCE: usize = 8192;
/// Time between two looks for ended flows, unless more are left.
const NAP: Duration = Duration::from_millis(20);
/// Time between two looks at names.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for a missing name.
const NAMED: Duration = Duration::from_millis(100);
/// Time without a question after which metering ends, if the configuration does not ask for it.
pub const FORGET: Duration = Duration::from_secs(60);
/// Longest wait of the end for the packet threads.
const RETURNED: Duration = Duration::from_secs(10);

/// Why flows cannot be logged. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FlowLogError {
    #[error("cannot write the log of flows to {path}: {source}; flow_log.file names a file in a folder that sluiced may write to")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot send flows to {address}: {source}; flow_log.collector is the address of an IPFIX collector")]
    Collector { address: SocketAddr, source: io::Error },
    #[error("cannot start the thread that logs flows: {0}")]
    Thread(io::Error),
}

/// Where records go besides to those that ask.
#[derive(Debug, Default)]
pub struct FlowOutputs {
    file: Option<FlowFile>,
    collector: Option<Exporter>,
}

impl FlowOutputs {
    /// Opens what the configuration names.
    ///
    /// # Errors
    /// [`FlowLogError::File`], [`FlowLogError::Collector`].
    pub fn open(config: &FlowLogConfig) -> Result<Self, FlowLogError> {
        let file = config.file.clone().map(|path| {
            let opened = FlowFile::open(path.clone(), u64::from(config.file_mib) << 20, config.files);
            opened.map_err(|source| FlowLogError::File { path, source })
        });
        // The configuration was checked.
        let address = config.collector.as_deref().and_then(|text| text.parse::<SocketAddr>().ok());
        let collector = address.map(|address| Exporter::new(address).map_err(|source| FlowLogError::Collector { address, source }));
        Ok(Self { file: file.transpose()?, collector: collector.transpose()? })
    }

    /// Goes over to others. A file of the same path is written on: none of its lines is cut.
    fn replace(&mut self, others: Self, [unwritten, unsent]: [u64; 2]) {
        let former = std::mem::take(self).file;
        *self = others;
        if let Some(file) = &mut self.file {
            file.follow(former);
            file.lost = unwritten;
        }
        self.collector.iter_mut().for_each(|collector| collector.lost = unsent);
    }

    /// Whether there are any.
    pub fn is_some(&self) -> bool {
        self.file.is_some() || self.collector.is_some()
    }
}

/// The supervisor, as the log of flows needs it. No call waits.
pub trait FlowSource: Send + 'static {
    /// Has it call [`FlowLog::name`], or [`FlowLog::keep_names`].
    fn ask_names(&self);

    /// Has it end the log, if nothing has asked for long.
    fn ask_end(&self);
}

/// A packet thread's meter, once the thread has given it back.
pub type Returned = Receiver<Option<Box<FlowMeter>>>;

/// The flows that have ended, as far as they are kept.
#[derive(Debug, Default)]
struct Ended {
    kept: VecDeque<(FlowRecord, Arc<FlowNames>)>,
    /// How many different names those that are kept have.
    versions: usize,
    /// Number of the last one; the first of all has 1.
    last: u64,
}

impl Ended {
    /// The number of the first one that is kept.
    fn first(&self) -> u64 {
        self.last + 1 - self.kept.len() as u64
    }

    /// Keeps flows with their names, and forgets the oldest ones above the limits.
    fn keep(&mut self, flows: impl Iterator<Item = FlowRecord>, names: &Arc<FlowNames>) {
        for record in flows {
            self.versions += usize::from(self.kept.back().is_none_or(|(_, last)| !Arc::ptr_eq(last, names)));
            self.kept.push_back((record, names.clone()));
        }
        while self.kept.len() > KEPT || self.versions > MOST_NAMES {
            let Some((_, gone)) = self.kept.pop_front() else { break };
            self.versions -= usize::from(self.kept.front().is_none_or(|(_, next)| !Arc::ptr_eq(next, &gone)));
        }
    }
}

/// What is known of flows: shared by the thread that logs and those that answer.
#[derive(Debug)]
pub struct FlowLog {
    flows: Vec<Arc<MeteredFlows>>,
    /// Whether it goes on while nothing asks.
    is_kept: AtomicBool,
    /// What its thread is to write to from now on.
    next: Mutex<Option<FlowOutputs>>,
    ended: Mutex<Ended>,
    /// Number of the last flow in `ended`: reports must not wait for answers.
    count: AtomicU64,
    /// Of flows in `ended`, behind a lock of their own for that reason.
    exemplars: Mutex<Exemplars>,
    /// The names, and how often they came.
    names: Mutex<(Arc<FlowNames>, u64)>,
    named: Condvar,
    began: Instant,
    /// Wall clock minus monotonic clock, in nanoseconds.
    epoch_ns: u64,
    asked: Mutex<Instant>,
    unwritten: AtomicU64,
    unsent: AtomicU64,
    /// What to wait for, once the log is to end.
    ending: Mutex<Option<Vec<Returned>>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FlowLog {
    /// Starts the thread that logs the flows of these packet threads.
    ///
    /// # Errors
    /// [`FlowLogError::Thread`].
    pub fn start(
        flows: Vec<Arc<MeteredFlows>>,
        outputs: FlowOutputs,
        names: FlowNames,
        source: impl FlowSource,
    ) -> Result<(Arc<Self>, JoinHandle<()>), FlowLogError> {
        let wall_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let log = Arc::new(Self {
            flows,
            is_kept: outputs.is_some().into(),
            next: Mutex::default(),
            ended: Mutex::default(),
            count: AtomicU64::new(0),
            exemplars: Mutex::default(),
            names: Mutex::new((Arc::new(names), 0)),
            named: Condvar::new(),
            began: Instant::now(),
            epoch_ns: wall_ns.wrapping_sub(monotonic_ns()),
            asked: Mutex::new(Instant::now()),
            unwritten: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            ending: Mutex::new(None),
        });
        let mut writer =
            Writer { log: log.clone(), outputs, source, last: 0, looked: Instant::now(), waited: None, batch: Vec::new() };
        let thread = std::thread::Builder::new().name("sluice-flows".into()).spawn(move || writer.run());
        Ok((log, thread.map_err(FlowLogError::Thread)?))
    }

    /// Whether it goes on while nothing asks.
    pub fn is_kept(&self) -> bool {
        // Relaxed: it says when to end, and orders nothing.
        self.is_kept.load(Ordering::Relaxed)
    }

    /// Has it write records to other outputs. Those that it has at hand go to the former ones.
    pub fn write_to(&self, outputs: FlowOutputs) {
        self.is_kept.store(outputs.is_some(), Ordering::Relaxed);
        // From now on it lasts as if something had just asked.
        *locked(&self.asked) = Instant::now();
        *locked(&self.next) = Some(outputs);
    }

    /// Sets the names that there are now.
    pub fn name(&self, names: FlowNames) {
        let mut known = locked(&self.names);
        if *known.0 != names {
            known.0 = Arc::new(names);
        }
        known.1 += 1;
        self.named.notify_all();
    }

    /// Says that the names are those that it has.
    pub fn keep_names(&self) {
        locked(&self.names).1 += 1;
        self.named.notify_all();
    }

    /// The time since something asked last.
    pub fn silence(&self) -> Duration {
        locked(&self.asked).elapsed()
    }

    /// Ends it: the thread waits for the packet threads' meters, logs all flows that go on as
    /// stopped, and returns.
    pub fn end(&self, meters: Vec<Returned>) {
        *locked(&self.ending) = Some(meters);
    }

    /// Its flows of a packet thread.
    pub fn flows_of(&self, thread: usize) -> Option<&Arc<MeteredFlows>> {
        self.flows.get(thread)
    }

    /// Flows for the latencies of a chain.
    pub fn exemplars(&self, chain: &str) -> Vec<Exemplar> {
        locked(&self.exemplars).of(chain)
    }

    /// What is counted. Unless it is kept, it begins anew with each metering.
    pub fn counts(&self) -> FlowLogCounts {
        // Acquire, and first: flows counted as ended are kept, and counted as live no more.
        let ended = self.count.load(Ordering::Acquire);
        FlowLogCounts {
            live: self.flows.iter().map(|flows| flows.count()).sum(),
            ended,
            lost: self.flows.iter().map(|flows| flows.lost()).sum(),
            // Relaxed: numbers for people.
            unwritten: self.unwritten.load(Ordering::Relaxed),
            unsent: self.unsent.load(Ordering::Relaxed),
            flowless_drops: self.flows.iter().map(|flows| flows.flowless_drops()).sum(),
            metered_s: self.began.elapsed().as_secs_f64(),
        }
    }
}

/// The thread that logs.
struct Writer<S> {
    log: Arc<FlowLog>,
    outputs: FlowOutputs,
    source: S,
    /// Number of the last flow.
    last: u64,
    looked: Instant,
    /// When it last waited for names.
    waited: Option<Instant>,
    batch: Vec<FlowRecord>,
}

impl<S: FlowSource> Writer<S> {
    fn run(&mut self) {
        loop {
            self.change_outputs();
            let ending = locked(&self.log.ending).take();
            if let Some(meters) = ending {
                return self.end(meters);
            }
            if !self.step() {
                std::thread::sleep(NAP);
            }
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                self.source.ask_names();
                if !self.log.is_kept() && self.log.silence() >= FORGET {
                    self.source.ask_end();
                }
            }
        }
    }

    /// Goes over to other outputs, if there are any: all records before this were delivered.
    fn change_outputs(&mut self) {
        if let Some(next) = locked(&self.log.next).take() {
            // Relaxed: this thread has written them.
            let lost = [&self.log.unwritten, &self.log.unsent].map(|count| count.load(Ordering::Relaxed));
            self.outputs.replace(next, lost);
        }
    }

    /// Takes records of all packet threads, and delivers them. Returns whether more are left.
    fn step(&mut self) -> bool {
        let each = AT_ONCE.div_ceil(self.log.flows.len().max(1));
        let mut is_more = false;
        for flows in &self.log.flows {
            let before = self.batch.len();
            self.batch.extend(std::iter::from_fn(|| flows.take()).take(each));
            is_more |= self.batch.len() - before == each;
        }
        self.deliver();
        is_more
    }

    fn end(&mut self, meters: Vec<Returned>) {
        let until = Instant::now() + RETURNED;
        // They are freed here, not in the packet threads.
        meters.into_iter().for_each(|meter| drop(meter.recv_timeout(until.saturating_duration_since(Instant::now()))));
        while self.step() {}
        for flows in self.log.flows.clone() {
            flows.live(|mut record| {
                record.end = Some(FlowEndReason::Stopped);
                self.batch.push(record);
                if self.batch.len() >= AT_ONCE {
                    self.deliver();
                }
            });
        }
        self.deliver();
    }

    /// The names for the records at hand.
    fn names(&mut self) -> Arc<FlowNames> {
        let (names, version) = locked(&self.log.names).clone();
        let is_new = self.waited.is_none_or(|waited| waited.elapsed() >= LOOK);
        if !is_new || self.batch.iter().all(|record| names.know(record)) {
            return names;
        }
        self.waited = Some(Instant::now());
        self.source.ask_names();
        let known = locked(&self.log.names);
        let waited = self.log.named.wait_timeout_while(known, NAMED, |(_, now)| *now == version);
        let (known, _) = waited.unwrap_or_else(PoisonError::into_inner);
        known.0.clone()
    }

    /// Writes and keeps the records at hand.
    fn deliver(&mut self) {
        if !self.batch.is_empty() {
            let (names, epoch_ns) = (self.names(), self.log.epoch_ns);
            for (record, number) in self.batch.iter().zip(self.last + 1..) {
                if let Some(file) = &mut self.outputs.file {
                    file.push(&report::report(record, &names, epoch_ns, Some(number)));
                }
                if let Some(collector) = &mut self.outputs.collector {
                    collector.push(record, epoch_ns);
                }
            }
            let mut ended = locked(&self.log.ended);
            // Behind the other lock, so that a report waits for no answer.
            let mut exemplars = locked(&self.log.exemplars);
            for (record, number) in self.batch.iter().zip(self.last + 1..) {
                exemplars.take(record, number, &names, epoch_ns);
            }
            self.last += self.batch.len() as u64;
            ended.last = self.last;
            ended.keep(self.batch.drain(..), &names);
            exemplars.forget_before(ended.first());
            // Release: as for the load.
            self.log.count.store(self.last, Ordering::Release);
        }
        // Relaxed: numbers for people.
        if let Some(file) = &mut self.outputs.file {
            file.flush();
            self.log.unwritten.store(file.lost, Ordering::Relaxed);
        }
        if let Some(collector) = &mut self.outputs.collector {
            collector.flush();
            self.log.unsent.store(collector.lost, Ordering::Relaxed);
        }
    }
}
