//! Whether the agent is at work, and whether its daemon answers.
//!
//! The thread of the agent notes each request to the daemon that has ended. The lease of the agent
//! and the probes of its pod go by that.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::ValueEnum;
use sluice_access::{Faults, beat};
use sluice_api::promise::Promises;
use sluice_slo::assignment::Assignment;

use crate::api::MANAGER;
use crate::daemon::{Daemon, DaemonError};

/// A daemon that has not answered for this long does not answer.
const SILENT: Duration = Duration::from_secs(30);
/// An agent is stuck when no request has ended for this long. It is longer than one takes that gets
/// no answer, and is sent twice.
const STUCK: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Times {
    /// When a request ended.
    worked: Instant,
    /// When the daemon answered, unless it has not answered since.
    answered: Option<Instant>,
}

/// Notes of requests to a daemon, shared by those that make them and those that go by them.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<Mutex<Times>>);

impl Pulse {
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Times { worked: now, answered: None })))
    }

    fn times(&self) -> std::sync::MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note<T>(&self, answer: Result<T, DaemonError>) -> Result<T, DaemonError> {
        let now = Instant::now();
        let answered = (!matches!(answer, Err(DaemonError::Away(_)))).then_some(now);
        *self.times() = Times { worked: now, answered };
        answer
    }

    /// Whether the daemon answers, as far as is known at this time.
    pub fn is_served(&self, now: Instant) -> bool {
        self.times().answered.is_some_and(|answered| now.saturating_duration_since(answered) < SILENT)
    }

    /// Whether the agent is at work at this time.
    pub fn is_working(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.times().worked) < STUCK
    }
}

/// A daemon whose answers are noted.
pub struct Watched<D> {
    pub daemon: D,
    pub pulse: Pulse,
}

impl<D: Daemon> Daemon for Watched<D> {
    fn apply(&mut self, config: &str, base: &Path) -> Result<(), DaemonError> {
        self.pulse.note(self.daemon.apply(config, base))
    }

    fn place(&mut self, assignment: &Assignment) -> Result<Vec<String>, DaemonError> {
        self.pulse.note(self.daemon.place(assignment))
    }

    fn withdraw(&mut self) -> Result<(), DaemonError> {
        self.pulse.note(self.daemon.withdraw())
    }

    fn placement(&mut self) -> Result<Option<Assignment>, DaemonError> {
        self.pulse.note(self.daemon.placement())
    }

    fn promises(&mut self) -> Result<Promises, DaemonError> {
        self.pulse.note(self.daemon.promises())
    }
}

/// What a probe asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Probe {
    /// The agent is at work
    Alive,
    /// And its daemon answers, and the API server lets it do what it has to
    Ready,
}

/// Writes the file of a probe again and again, while the agent is at work.
pub async fn beat(file: &Path, pulse: &Pulse, faults: &Faults) {
    let mut is_written = true;
    loop {
        let now = Instant::now();
        if pulse.is_working(now) {
            let written = write(file, pulse.is_served(now), &faults.list(now));
            if let Err(error) = &written
                && is_written
            {
                tracing::warn!("cannot write {}: {error:#}; probes by it fail", file.display());
            }
            is_written = written.is_ok();
        }
        tokio::time::sleep(beat::PERIOD).await;
    }
}

fn write(file: &Path, is_served: bool, faults: &[String]) -> anyhow::Result<()> {
    beat::write(file, if is_served { "ready" } else { "alone" }, faults)
}

/// Answers a probe by the file of an agent.
///
/// # Errors
/// What is asked for is not so.
pub fn probe(file: &Path, what: Probe) -> anyhow::Result<()> {
    let beat = beat::read(file, MANAGER)?;
    if what == Probe::Alive {
        return Ok(());
    }
    let away = (beat.word != "ready").then(|| "sluiced does not answer; see its log".to_owned());
    let wrong: Vec<String> = away.into_iter().chain(beat.faults).collect();
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_while_its_daemon_answers_and_alive_while_it_works() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("beat");
        let say = |pulse: &Pulse| write(&file, pulse.is_served(Instant::now()), &[]).unwrap();
        let is = |what| probe(&file, what).is_ok();
        assert!(!is(Probe::Alive), "it has not begun");
        let now = Instant::now();
        let pulse = Pulse::new(now);
        say(&pulse);
        assert!(is(Probe::Alive) && !is(Probe::Ready), "nothing was answered yet");
        for error in [DaemonError::Refused("no".into()), DaemonError::Failed("no".into())] {
            let _ = pulse.note::<()>(Err(error));
            say(&pulse);
            assert!(is(Probe::Ready), "it answers");
        }
        let _ = pulse.note::<()>(Err(DaemonError::Away("no".into())));
        say(&pulse);
        assert!(is(Probe::Alive) && !is(Probe::Ready));
        let _ = pulse.note(Ok(()));
        let ended = pulse.times().worked;
        assert!(pulse.is_served(ended) && !pulse.is_served(ended + SILENT));
        assert!(pulse.is_working(ended + SILENT) && !pulse.is_working(ended + STUCK));
        write(&file, true, &["it may not report".into()]).unwrap();
        assert!(is(Probe::Alive), "a restart gives no rights");
        assert_eq!(probe(&file, Probe::Ready).unwrap_err().to_string(), "it may not report");
    }
}
