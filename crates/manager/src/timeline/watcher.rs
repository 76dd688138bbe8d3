//! Follows the daemon while it is sampled: its NFs, chains and ports, and the log of events.
//!
//! The supervisor is asked for them now and then, and nothing waits for its answer: while it is
//! busy, those that are known are sampled on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use sluice_api::model::Event;
use sluice_shm::clock::monotonic_ns;

use super::sampler::{Sampler, Subjects};
use super::track::{Objects, Observation};
use crate::controller::events::EventLog;

/// Time between two questions for what there is.
const FOLLOW: Duration = Duration::from_millis(250);
/// Periods without a sample that are reported, and the shortest such time.
const LATE_PERIODS: u32 = 10;
const LATE: Duration = Duration::from_millis(5);

/// Asks for what there is to sample. No answer comes from a supervisor that has ended.
pub type Ask = Box<dyn Fn() -> Receiver<Subjects> + Send>;

pub struct Watcher {
    sampler: Sampler,
    ask: Ask,
    /// The question that waits for its answer.
    asked: Option<Receiver<Subjects>>,
    /// When the next question is due.
    due: Instant,
    is_over: bool,
    log: Arc<EventLog>,
    /// Number of the last event that was heard.
    heard: u64,
}

impl Watcher {
    /// A watcher that samples each `period`, and hears of events from now on.
    pub fn new(period: Duration, ask: Ask, log: Arc<EventLog>) -> Self {
        let late = (period * LATE_PERIODS).max(LATE);
        let heard = log.last();
        let sampler = Sampler::new(late.as_nanos() as u64);
        Self { sampler, ask, asked: None, due: Instant::now(), is_over: false, log, heard }
    }

    /// Follows these subjects, which have been there before.
    pub fn begin(&mut self, subjects: Subjects) {
        self.sampler.follow(monotonic_ns(), subjects, &mut Vec::new());
        self.due = Instant::now() + FOLLOW;
    }

    /// Takes a sample.
    pub fn sample(&mut self, out: &mut Vec<Observation>) {
        let now_ns = monotonic_ns();
        match self.asked.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(subjects)) => {
                self.sampler.follow(now_ns, subjects, out);
                self.asked = None;
            }
            Some(Err(TryRecvError::Disconnected)) => {
                self.is_over = true;
                self.asked = None;
            }
        }
        if self.asked.is_none() && !self.is_over && Instant::now() >= self.due {
            self.due = Instant::now() + FOLLOW;
            self.asked = Some((self.ask)());
        }
        self.sampler.sample(now_ns, out);
    }

    /// The events since the last call, oldest first.
    pub fn news(&mut self) -> Vec<Event> {
        let news = self.log.since(self.heard);
        self.heard = news.last().map_or(self.heard, |event| event.number);
        news
    }

    pub fn log(&self) -> &EventLog {
        &self.log
    }

    /// Whether the supervisor has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn objects(&mut self) -> &mut Objects {
        self.sampler.objects()
    }

    /// Forgets the objects that neither sampling nor anything else uses.
    pub fn forget(&mut self, is_used: impl Fn(u32) -> bool) {
        self.sampler.forget(is_used);
    }
}
