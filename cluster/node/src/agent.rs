//! The agent: has the daemon keep a plan.
//!
//! # Approach
//! A plan is taken over in three steps: the chains and NFs of the plan are added to those that are
//! there; the daemon places the plan, and so leads packets to what is new; what the plan lacks is
//! removed. If the daemon refuses a step, it gets the old plan again, so it keeps the old plan or
//! the new one as a whole. The way back is tried until it succeeds. Each turn compares what the
//! daemon keeps with the plan, so a daemon that was restarted gets it again.
//!
//! A daemon that does not answer refuses nothing: the next turn tries again. Nor does one that
//! fails: it is asked a few times before that is reported.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_api::config::Config;
use sluice_api::promise::Promises;
use sluice_cluster_types::{Has, NodePlanSpec, Use};
use sluice_slo::assignment::Assignment;
use sluice_slo::placement::Instance;
use tracing::warn;

use crate::daemon::{Daemon, DaemonError};
use crate::merge::{assignment, merged, with_added};
use crate::report;
use crate::size;
use crate::turn::{Trouble, Turn};

/// A plan that was refused is tried again after this long: the host may have changed.
const AGAIN: Duration = Duration::from_secs(30);
/// First pause before the way back is tried again. It doubles, up to [`AGAIN`].
const BACK: Duration = Duration::from_secs(1);
/// Turns in a row in which a daemon fails before that is reported.
const TRIES: u32 = 3;

/// Has a daemon keep a plan.
pub struct Agent<D> {
    daemon: D,
    base: PathBuf,
    kept: PathBuf,
    /// Memory of this host, if that is known.
    memory_mib: Option<u64>,
    /// What the daemon keeps, as far as is known.
    applied: Option<NodePlanSpec>,
    /// The plan that was not taken over last.
    held: Option<Held>,
    /// The daemon may have parts of two plans.
    between: Option<Between>,
    /// Turns in a row in which the daemon has failed.
    failures: u32,
    /// How SLOs are kept, as the daemon last said.
    uses: Vec<Use>,
    notes: Vec<String>,
    /// What the node has for NFs, and when that was looked at.
    has: Option<Has>,
    looked: Option<Instant>,
}

/// A plan that the daemon did not take over.
struct Held {
    /// Term and revision.
    plan: (i64, i64),
    error: DaemonError,
    at: Instant,
}

/// A daemon that may have parts of two plans.
#[derive(Clone)]
struct Between {
    /// Why it did not get the old one again, if that was tried.
    why: Option<String>,
    /// When that is tried next, and the pause after that.
    next: Instant,
    pause: Duration,
}

impl<D: Daemon> Agent<D> {
    /// An agent that goes on with the plan in the file `kept`, if there is one. The host has
    /// `memory_mib`, if that is known.
    pub fn new(daemon: D, base: PathBuf, kept: PathBuf, memory_mib: Option<u64>) -> Self {
        let applied = match std::fs::read(&kept).map(|text| serde_json::from_slice(&text)) {
            Ok(Ok(plan)) => Some(plan),
            Ok(Err(error)) => {
                warn!("{} holds no plan ({error}); it is left alone until there is a new one", kept.display());
                None
            }
            Err(_) => None,
        };
        let (held, between, uses, notes) = (None, None, Vec::new(), Vec::new());
        let (has, looked) = (None, None);
        Self { daemon, base, kept, memory_mib, applied, held, between, failures: 0, uses, notes, has, looked }
    }

    /// The plan that the daemon keeps, or kept when the agent last ran.
    pub fn applied(&self) -> Option<&NodePlanSpec> {
        self.applied.as_ref()
    }

    /// Sees whether the daemon answers, while there is no plan.
    pub fn look(&mut self) {
        // The answer is noted where the daemon is asked.
        let _ = self.daemon.placement();
    }

    /// Compares what the daemon keeps with the plan, takes the plan over if that is something else,
    /// and reports.
    pub fn turn(&mut self, plan: &NodePlanSpec, now: Instant) -> Turn {
        let mut turn = Turn::default();
        turn.status.observed_revision = plan.revision;
        let kept = self.keep(plan, now);
        let promises = self.daemon.promises();
        let is_failing = matches!(kept, Err(DaemonError::Failed(_))) || matches!(promises, Err(DaemonError::Failed(_)));
        self.failures = if is_failing { self.failures.saturating_add(1) } else { 0 };
        // What is not known now is as it was: that nothing runs would be another thing to say.
        if let Ok(promises) = &promises {
            self.uses = report::uses(promises);
            self.look_at_node(promises, now);
        }
        turn.status.has.clone_from(&self.has);
        turn.status.uses.clone_from(&self.uses);
        turn.status.applied_revision = self.applied.as_ref().map_or(0, |applied| applied.revision);
        turn.status.notes.clone_from(&self.notes);
        if let Err(DaemonError::Refused(why)) = &kept {
            turn.status.refused = Some(self.with_way_back(why));
        }
        turn.trouble = self.trouble(kept.err(), promises.err());
        turn
    }

    /// Finds out now and then what the node has: configuration and host may have changed.
    fn look_at_node(&mut self, promises: &Promises, now: Instant) {
        if self.looked.is_none_or(|at| now >= at + AGAIN) {
            self.looked = Some(now);
            self.has = self.base().ok().and_then(|config| report::has(&config, promises, Path::new("/")));
        }
    }

    /// What keeps the daemon from the plan, by the errors of a turn.
    fn trouble(&self, kept: Option<DaemonError>, promises: Option<DaemonError>) -> Option<Trouble> {
        match (kept, promises) {
            (Some(DaemonError::Away(why)), _) | (_, Some(DaemonError::Away(why))) => Some(Trouble::Away(why)),
            (Some(DaemonError::Refused(why) | DaemonError::Failed(why)), _) if self.is_stuck_between() => {
                Some(Trouble::Between(self.with_way_back(&why)))
            }
            (Some(DaemonError::Failed(why)), _) | (_, Some(DaemonError::Failed(why))) if self.failures >= TRIES => {
                Some(Trouble::Failed(why))
            }
            (_, Some(DaemonError::Refused(why))) => Some(Trouble::Failed(why)),
            _ => None,
        }
    }

    fn is_stuck_between(&self) -> bool {
        self.between.as_ref().is_some_and(|between| between.why.is_some())
    }

    /// Why a plan was not taken over, and why the old one is not whole again if it is not.
    fn with_way_back(&self, why: &str) -> String {
        match self.between.as_ref().and_then(|between| between.why.as_ref()) {
            None => why.into(),
            Some(back) => format!(
                "{why}; and the way back to the old plan fails: {back}; the node is between the two plans, and tries again; restart \
                 sluiced there if that stays"
            ),
        }
    }

    fn keep(&mut self, plan: &NodePlanSpec, now: Instant) -> Result<(), DaemonError> {
        let in_force = self.daemon.placement()?;
        let is_it = self.between.is_none() && self.applied.as_ref() == Some(plan);
        if is_it && holds(in_force.as_ref(), assignment(plan).as_ref()) {
            return Ok(());
        }
        let id = (plan.term, plan.revision);
        if let Some(held) = self.held.as_ref().filter(|held| held.plan == id && now < held.at + AGAIN) {
            let error = held.error.clone();
            self.go_back(now);
            return Err(error);
        }
        match self.take_over(plan, in_force.as_ref(), now) {
            Ok(()) => {
                self.note(plan);
                Ok(())
            }
            Err(DaemonError::Away(why)) => Err(DaemonError::Away(why)),
            Err(DaemonError::Failed(why)) if self.failures < TRIES - 1 => Err(DaemonError::Failed(why)),
            Err(error) => {
                self.held = Some(Held { plan: id, error: error.clone(), at: now });
                self.go_back(now);
                Err(error)
            }
        }
    }

    /// Notes that the daemon keeps a plan, also for the time after a restart.
    fn note(&mut self, plan: &NodePlanSpec) {
        self.held = None;
        self.between = None;
        self.applied = Some(plan.clone());
        let written = serde_json::to_vec(plan).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|text| sluice_host::file::replace(&self.kept, &text)) {
            warn!("cannot write {}: {error}; after a restart without the API server, an older plan counts", self.kept.display());
        }
    }

    fn take_over(&mut self, plan: &NodePlanSpec, in_force: Option<&Assignment>, now: Instant) -> Result<(), DaemonError> {
        let base = self.base()?;
        if self.is_more(plan) {
            size::check(&plan.server.shape, &base, self.memory_mib).map_err(refused)?;
        }
        let all = merged(&base, plan, self.applied.as_ref()).map_err(refused)?;
        let exact = merged(&base, plan, None).map_err(refused)?;
        let before = self.between.take();
        let between = before.clone().unwrap_or(Between { why: None, next: now, pause: BACK });
        match self.apply(&all) {
            // It has changed nothing.
            Err(DaemonError::Refused(why)) => {
                self.between = before;
                return Err(DaemonError::Refused(why));
            }
            applied => {
                self.between = Some(between);
                applied?;
            }
        }
        self.notes = self.place(assignment(plan), in_force)?;
        if all == exact { Ok(()) } else { self.apply(&exact) }
    }

    /// Whether a plan has what the node does not run. One without instances counts as more where
    /// there are none: nothing is to come then.
    fn is_more(&self, plan: &NodePlanSpec) -> bool {
        let had = self.applied.as_ref().map(|applied| applied.server.instances.as_slice()).unwrap_or_default();
        let has = |one: &Instance| had.iter().any(|before| (&before.slo, before.number) == (&one.slo, one.number));
        let instances = &plan.server.instances;
        if instances.is_empty() { had.is_empty() } else { !instances.iter().all(has) }
    }

    /// Has the daemon keep the old plan as a whole again.
    fn go_back(&mut self, now: Instant) {
        if self.between.as_ref().is_some_and(|between| now < between.next) {
            return;
        }
        match self.restore() {
            Ok(()) => self.between = None,
            Err(error) => {
                warn!("the way back to the old plan fails: {error}");
                let pause = self.between.as_ref().map_or(BACK, |between| between.pause);
                let why = Some(error.to_string());
                self.between = Some(Between { why, next: now + pause, pause: (pause * 2).min(AGAIN) });
            }
        }
    }

    fn restore(&mut self) -> Result<(), DaemonError> {
        let in_force = self.daemon.placement()?;
        let wanted = self.applied.as_ref().and_then(assignment);
        let is_placed = self.applied.is_none() || holds(in_force.as_ref(), wanted.as_ref());
        if is_placed && self.between.is_none() {
            return Ok(());
        }
        let base = self.base()?;
        let config = match &self.applied {
            None => base,
            Some(old) => merged(&base, old, None).map_err(refused)?,
        };
        match (is_placed, &in_force) {
            (true, _) => self.apply(&config),
            // It was restarted, and has the chains of its own configuration alone.
            (false, None) => {
                self.apply(&config)?;
                self.place(wanted, None).map(drop)
            }
            // It has the chains of both plans, and those of the new one are in use.
            (false, Some(now)) => {
                self.place(wanted, Some(now))?;
                self.apply(&config)
            }
        }
    }

    /// The configuration of this server without a plan.
    fn base(&self) -> Result<Config, DaemonError> {
        let path = self.base.display();
        let text = std::fs::read_to_string(&self.base)
            .map_err(|error| refused(format!("cannot read {path}: {error}; name the configuration of sluiced with --base")))?;
        toml::from_str(&text).map_err(|error| refused(format!("{path}: {error}")))
    }

    fn apply(&mut self, config: &Config) -> Result<(), DaemonError> {
        let text = toml::to_string(config).map_err(refused)?;
        self.daemon.apply(&text, &self.base)
    }

    fn place(&mut self, wanted: Option<Assignment>, in_force: Option<&Assignment>) -> Result<Vec<String>, DaemonError> {
        match (wanted, in_force) {
            (Some(wanted), Some(now)) => self.daemon.place(&with_added(wanted, now)),
            (Some(wanted), None) => self.daemon.place(&wanted),
            (None, Some(_)) => self.daemon.withdraw().map(|()| Vec::new()),
            (None, None) => Ok(Vec::new()),
        }
    }
}

fn refused(why: impl std::fmt::Display) -> DaemonError {
    DaemonError::Refused(why.to_string())
}

/// Whether what is in force is what is wanted, besides what the daemon itself has added for SLOs on
/// demand.
fn holds(in_force: Option<&Assignment>, wanted: Option<&Assignment>) -> bool {
    match (in_force, wanted) {
        (None, None) => true,
        (Some(now), Some(wanted)) => {
            let mut planned = now.clone();
            let is_wanted = |slo: &str, number: u32| wanted.instances(slo).iter().any(|one| one.number == number);
            planned.server.instances.retain(|one| is_wanted(&one.slo, one.number));
            let added = now.server.instances.len() - planned.server.instances.len();
            planned == *wanted && with_added(wanted.clone(), now).server.instances.len() == wanted.server.instances.len() + added
        }
        _ => false,
    }
}

#[cfg(test)]
pub mod tests;
