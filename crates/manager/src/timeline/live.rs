//! A recording that a client has asked for, as a stream of pieces of a trace.
//!
//! The thread that makes the pieces samples, too. While the client takes none it waits, and the
//! timeline says for how long nothing was sampled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_shm::clock::monotonic_ns;

use super::drawing::{self, Drawing};
use super::sampler::Subjects;
use super::track::Observation;
use super::watcher::Watcher;

/// Bytes after which a piece of the stream is sent.
const PIECE: usize = 1 << 16;
/// Longest time without a piece.
const SILENCE: Duration = Duration::from_millis(100);
/// Objects above which those that are gone are forgotten.
const MOST_OBJECTS: usize = 1 << 16;

/// The recording. Dropping it ends it.
pub struct LiveTimeline {
    watcher: Watcher,
    drawing: Drawing,
    period: Duration,
    until: Instant,
    /// When the next sample is due.
    next: Instant,
    state: State,
    observed: Vec<Observation>,
    /// Its place among the recordings that there can be at a time.
    _place: Arc<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begins,
    Goes,
    Over,
}

impl LiveTimeline {
    /// A recording of these subjects, and of what follows them, for this long. It begins with its
    /// first piece.
    pub fn new(mut watcher: Watcher, subjects: Subjects, period: Duration, lasts: Duration, place: Arc<()>) -> Self {
        watcher.begin(subjects);
        let now = Instant::now();
        let until = now + lasts;
        let drawing = Drawing::default();
        Self { watcher, drawing, period, until, next: now, state: State::Begins, observed: Vec::new(), _place: place }
    }

    /// Takes a sample, and writes what has changed and happened.
    fn step(&mut self, out: &mut Vec<u8>) {
        self.watcher.sample(&mut self.observed);
        for observation in self.observed.drain(..) {
            self.drawing.observe(out, self.watcher.objects(), &observation);
        }
        for event in self.watcher.news() {
            self.drawing.event(out, self.watcher.objects(), &event);
        }
        if self.watcher.objects().count() > MOST_OBJECTS {
            self.watcher.forget(|_| false);
        }
    }
}

impl Iterator for LiveTimeline {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match self.state {
            State::Over => return None,
            State::Begins => {
                let lasts = self.until.saturating_duration_since(self.next);
                self.next = Instant::now();
                self.until = self.next + lasts;
                drawing::begin(&mut out);
                self.state = State::Goes;
            }
            State::Goes => {}
        }
        let silent_until = Instant::now() + SILENCE;
        loop {
            self.step(&mut out);
            let now = Instant::now();
            if now >= self.until || self.watcher.is_over() {
                self.drawing.end(&mut out, monotonic_ns());
                self.state = State::Over;
                return Some(out);
            }
            if out.len() >= PIECE || now >= silent_until {
                return Some(out);
            }
            self.next += self.period;
            match self.next.checked_duration_since(now) {
                Some(rest) => std::thread::sleep(rest),
                // Late: those that are due are one.
                None => self.next = now,
            }
        }
    }
}
