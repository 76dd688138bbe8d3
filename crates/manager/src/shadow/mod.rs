//! Shadows: an NF that gets copies of another one's packets, and what it does with them.
//!
//! Problem: a new version is to be compared with the old one on real packets, without any effect on
//! these. Approach: [taps] copy what the old version gets, returns and drops, as for a capture. A
//! thread of its own gives the copies to the shadow by [memory](memory) that nothing else has,
//! reads what the shadow returns, and [compares](compare) both. Nothing of it goes to a port or to
//! another NF, and no packet waits for it: what it has no time for is missed, and counted.
//!
//! Limits: copies of one instance. Its thread looks for packets 2,000 times a second, and
//! more often while there are many.
//!
//! [taps]: sluice_dataplane::capture::following

mod compare;
mod memory;

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_api::shadow::{ShadowCounts, ShadowDifference, ShadowRequest};
use sluice_dataplane::capture::{CaptureReader, CapturedPacket, LossReason, Point, Tap};
use sluice_dataplane::chain::DropReason;
use sluice_dataplane::classify::key::FlowKey;
use sluice_shm::BURST;

use compare::{Comparer, Decided};
use memory::Broken;
pub(crate) use memory::ShadowMemory;

/// Copies that are taken before answers are.
const AT_ONCE: usize = 256;
/// Time between two looks for packets while there are few.
const NAP: Duration = Duration::from_micros(500);
/// Time between two publications of the counts.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait at the end for packet threads, each, and for what the shadow still has: it may have
/// little of its core.
const GRACE: Duration = Duration::from_secs(10);
/// Packets before which a comparison says nothing.
const ENOUGH: u64 = 100;
/// Niceness of the thread: it gives way to the daemon's others.
const NICE: i32 = 10;

/// The end of a capture's taps: each packet thread gives its own back.
pub(crate) type Ends = Vec<Receiver<Option<Tap>>>;

/// What is known of a comparison.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    pub(crate) counts: ShadowCounts,
    pub(crate) differences: Vec<ShadowDifference>,
    /// Whether all has been compared.
    pub(crate) is_done: bool,
    /// What the shadow did that an NF may not do, or why nothing is compared any more.
    pub(crate) broken: Option<String>,
}

/// What was published last; copied outside of the lock, which the supervisor takes.
type Published = Arc<Mutex<Arc<Progress>>>;

/// The thread of a shadow. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Shadowing {
    progress: Published,
    ends: Sender<Ends>,
    thread: JoinHandle<()>,
}

impl Shadowing {
    /// Begins to give the shadow what `readers` take out, as soon as all packet threads copy: each
    /// of `begun` says with which order its thread began.
    ///
    /// # Errors
    /// The system's, if it makes no thread.
    pub(crate) fn start(memory: ShadowMemory, readers: Vec<CaptureReader>, begun: Vec<Receiver<u32>>) -> std::io::Result<Self> {
        let (ends, ending) = channel();
        let progress = Published::default();
        let worker = ShadowLoop {
            memory,
            readers,
            begun,
            from: 0,
            missed: 0,
            next: 0,
            comparer: Comparer::default(),
            record: CapturedPacket::default(),
            progress: progress.clone(),
        };
        let thread = std::thread::Builder::new().name("sluice-shadow".into()).spawn(move || worker.run(&ending))?;
        Ok(Self { progress, ends, thread })
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        // In this order: one that has ended has published all.
        let has_ended = self.thread.is_finished();
        let progress = lock(&self.progress).clone();
        if has_ended && !progress.is_done && progress.broken.is_none() {
            let broken = Some("its thread has ended; the daemon's log has the reason".into());
            return Arc::new(Progress { broken, ..(*progress).clone() });
        }
        progress
    }

    /// Ends the comparison when the packet threads have given back their taps, and the shadow what
    /// it has.
    pub(crate) fn end(&self, taps: Ends) {
        // A thread that has panicked takes none.
        let _ = self.ends.send(taps);
    }
}

/// Frees taps here: that takes more time than packet threads have.
fn free(taps: Ends) {
    taps.into_iter().for_each(|tap| drop(tap.recv_timeout(GRACE)));
}

/// A thread that has panicked has left what it had published.
fn lock(progress: &Mutex<Arc<Progress>>) -> MutexGuard<'_, Arc<Progress>> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a version does not take over after this comparison, if it does not.
pub(crate) fn shadow_fault(wanted: &ShadowRequest, counts: &ShadowCounts) -> Option<String> {
    let ShadowCounts { compared, missed, .. } = *counts;
    if compared < ENOUGH {
        return Some(format!(
            "{compared} packets could be compared and {missed} were missed, too few to say anything; {ENOUGH} are the least, so give it more \
             time or another core"
        ));
    }
    let of_all = (compared as f64 * wanted.allow_percent / 100.0) as u64;
    let (different, most) = (counts.different(), wanted.allow.max(of_all));
    (different > most).then(|| format!("{different} of {compared} packets differ, and {most} may"))
}

/// What is wrong with a request, if anything is.
pub(crate) fn wrong_shadow(wanted: &ShadowRequest) -> Option<&'static str> {
    if !(1..=86_400).contains(&wanted.seconds) {
        return Some("a shadow gets copies for 1 to 86400 seconds");
    }
    let is_part = (0.0..=100.0).contains(&wanted.allow_percent);
    (!is_part).then_some("0 to 100 percent of the packets of a shadow may differ")
}

/// What the thread has.
struct ShadowLoop {
    memory: ShadowMemory,
    readers: Vec<CaptureReader>,
    /// The packet threads that have not said yet that they copy, and the order from which those
    /// copy that have.
    begun: Vec<Receiver<u32>>,
    from: u32,
    /// Missed copies that were counted.
    missed: u64,
    /// The order of the next copy.
    next: u32,
    comparer: Comparer,
    record: CapturedPacket,
    progress: Published,
}

impl ShadowLoop {
    fn run(mut self, ending: &Receiver<Ends>) {
        // Without it, it takes more of a core that others need.
        let _ = rustix::process::setpriority_process(None, NICE);
        let (mut published, mut until) = (Instant::now(), None);
        loop {
            let moved = match self.turn() {
                Ok(moved) => moved,
                Err(broken) => {
                    self.publish(false, Some(broken.to_string()));
                    return ending.recv().into_iter().for_each(free);
                }
            };
            match ending.try_recv() {
                Ok(taps) => {
                    free(taps);
                    until = Some(Instant::now() + GRACE);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            if let Some(until) = until
                && moved == 0
                && (self.memory.is_empty() || Instant::now() >= until)
            {
                self.finish();
                return self.publish(true, None);
            }
            if published.elapsed() >= LOOK {
                published = Instant::now();
                self.publish(false, None);
            }
            if moved < AT_ONCE {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Counts what comes no more: copies that were missed behind the last one, too.
    fn finish(&mut self) {
        let missed: u64 = self.readers.iter().map(CaptureReader::missed).sum();
        if missed > self.missed {
            self.comparer.misses(missed - self.missed);
        }
        // One that has set its cursor where it cannot be has been noticed before.
        let unread = self.memory.unread().unwrap_or(0);
        self.comparer.end(unread.into());
    }

    /// Publishes what is known, if that is more than was published.
    fn publish(&self, is_done: bool, broken: Option<String>) {
        let counts = self.comparer.counts();
        // Differences have counts.
        if !is_done && broken.is_none() && lock(&self.progress).counts == counts {
            return;
        }
        let progress = Progress { counts, differences: self.comparer.differences().to_vec(), is_done, broken };
        let former = std::mem::replace(&mut *lock(&self.progress), Arc::new(progress));
        // Here, without the lock.
        drop(former);
    }

    /// Whether all packet threads copy by now.
    ///
    /// Until then one may have had packets that it has not shown, so what others have shown before
    /// is not compared: a packet that came back there, or before another one of its flow, would be
    /// taken for one that did not.
    fn all_copy(&mut self) -> bool {
        let from = &mut self.from;
        self.begun.retain(|thread| match thread.try_recv() {
            Ok(order) => {
                *from = order.max(*from);
                false
            }
            Err(TryRecvError::Empty) => true,
            // A thread that has ended has no packets.
            Err(TryRecvError::Disconnected) => false,
        });
        self.begun.is_empty()
    }

    /// Takes some copies and some answers. Returns how many.
    fn turn(&mut self) -> Result<usize, Broken> {
        let mut moved = 0;
        let all_copy = self.all_copy();
        for _ in 0..AT_ONCE {
            if !self.take() {
                break;
            }
            if all_copy && self.record.origin.is_none_or(|origin| origin.order >= self.from) {
                self.note()?;
            } else {
                self.missed += u64::from(self.record.missed);
            }
            moved += 1;
        }
        self.memory.wake();
        let Self { memory, comparer, .. } = self;
        for _ in 0..AT_ONCE / BURST {
            let n = memory.collect(|number, decided, bytes| comparer.new_returns(number, decided, bytes))?;
            if n == 0 {
                break;
            }
            moved += n;
        }
        Ok(moved)
    }

    /// Takes the copy that is next in order, if it is there.
    fn take(&mut self) -> bool {
        for reader in &mut self.readers {
            if reader.next_order() == Some(self.next) {
                self.next = self.next.wrapping_add(1);
                return reader.take(&mut self.record);
            }
        }
        // There is none, or a packet thread is about to show it.
        false
    }

    /// Notes a copy, and gives it to the shadow if it is of a packet that the old version gets.
    fn note(&mut self) -> Result<(), Broken> {
        let record = &self.record;
        if record.missed > 0 {
            self.missed += u64::from(record.missed);
            self.comparer.misses(record.missed.into());
        }
        let Some(origin) = record.origin else { return Ok(()) };
        let frame = origin.descriptor.frame;
        match (record.sighting.point, record.sighting.why) {
            (Point::ToNf(_), _) if self.comparer.has_room() && self.memory.fits(record, &origin) && self.memory.has_room()? => {
                let flow = FlowKey::parse(&record.bytes, record.len, origin.descriptor.ingress).connection().0;
                let number = self.comparer.enters(frame, flow, &record.bytes);
                self.memory.give(number, record, &origin)?;
            }
            (Point::ToNf(_), _) => self.comparer.passes_by(frame),
            (Point::FromNf(_), _) => {
                let decided = Decided::of(origin.descriptor.verdict, origin.descriptor.arg);
                self.comparer.old_returns(frame, decided, &record.bytes);
            }
            (_, Some(LossReason::Chain(DropReason::Verdict))) => self.comparer.old_returns(frame, Decided::Drop, &[]),
            // Its ring was full, its process has ended, or it may not send a packet where it wants.
            _ => self.comparer.leaves(frame),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
