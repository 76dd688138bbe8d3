//! The agent: has the daemon keep a plan.
//!
//! # Approach
//! A plan is taken over in three steps: the chains and NFs of the plan are added to those that are
//! there; the daemon places the plan, and so leads packets to what is new; what the plan lacks is
//! removed. If the daemon refuses one of the first two, it is taken back to where it was, so
//! it keeps the old plan or the new one as a whole. Each turn compares what the daemon keeps with
//! the plan, so a daemon that was restarted gets it again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sluice_api::config::Config;
use sluice_cluster_types::{NodePlanSpec, NodePlanStatus};
use sluice_slo::assignment::Assignment;
use tracing::{info, warn};

use crate::daemon::{Daemon, DaemonError};
use crate::merge::{assignment, merged, with_added};
use crate::report;

/// A plan that was refused is tried again after this long: the host may have changed.
const AGAIN: Duration = Duration::from_secs(30);

/// Has a daemon keep a plan.
pub struct Agent<D> {
    daemon: D,
    base: PathBuf,
    kept: PathBuf,
    /// What the daemon keeps, as far as is known.
    applied: Option<NodePlanSpec>,
    /// The revision that was refused last, why, and when.
    refused: Option<(i64, i64, String, Instant)>,
    notes: Vec<String>,
}

/// What a turn has found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// Without conditions.
    pub status: NodePlanStatus,
    /// Why the daemon does not answer.
    pub away: Option<String>,
}

impl<D: Daemon> Agent<D> {
    /// An agent that goes on with the plan in the file `kept`, if there is one.
    pub fn new(daemon: D, base: PathBuf, kept: PathBuf) -> Self {
        let applied = match std::fs::read(&kept).map(|text| serde_json::from_slice(&text)) {
            Ok(Ok(plan)) => Some(plan),
            Ok(Err(error)) => {
                warn!("{} holds no plan ({error}); it is left alone until there is a new one", kept.display());
                None
            }
            Err(_) => None,
        };
        Self { daemon, base, kept, applied, refused: None, notes: Vec::new() }
    }

    /// The plan that the daemon keeps, or kept when the agent last ran.
    pub fn applied(&self) -> Option<&NodePlanSpec> {
        self.applied.as_ref()
    }

    /// Compares what the daemon keeps with the plan, takes the plan over if that is something else,
    /// and reports.
    pub fn turn(&mut self, plan: &NodePlanSpec, now: Instant) -> Turn {
        let mut turn = Turn::default();
        turn.status.observed_revision = plan.revision;
        match self.keep(plan, now) {
            Ok(()) => {}
            Err(DaemonError::Refused(why)) => turn.status.refused = Some(why),
            Err(DaemonError::Away(why)) => turn.away = Some(why),
        }
        turn.status.applied_revision = self.applied.as_ref().map_or(0, |applied| applied.revision);
        turn.status.notes.clone_from(&self.notes);
        match self.daemon.promises() {
            Ok(promises) => turn.status.uses = report::uses(&promises),
            Err(error) => turn.away = turn.away.or_else(|| Some(error.to_string())),
        }
        turn
    }

    fn keep(&mut self, plan: &NodePlanSpec, now: Instant) -> Result<(), DaemonError> {
        let in_force = self.daemon.placement()?;
        if self.applied.as_ref() == Some(plan) && holds(in_force.as_ref(), assignment(plan).as_ref()) {
            return Ok(());
        }
        let id = (plan.term, plan.revision);
        if let Some((.., why, _)) =
            self.refused.as_ref().filter(|(term, revision, _, at)| (*term, *revision) == id && now < *at + AGAIN)
        {
            return Err(DaemonError::Refused(why.clone()));
        }
        match self.take_over(plan, in_force.as_ref()) {
            Ok(()) => {
                info!("keeps revision {} of the plan: {} instances", plan.revision, plan.server.instances.len());
                self.refused = None;
                self.applied = Some(plan.clone());
                let written = serde_json::to_vec(plan).map_err(std::io::Error::from);
                if let Err(error) = written.and_then(|text| sluice_host::file::replace(&self.kept, &text)) {
                    warn!(
                        "cannot write {}: {error}; after a restart without the API server, an older plan counts",
                        self.kept.display()
                    );
                }
                Ok(())
            }
            Err(error) => {
                if let DaemonError::Refused(why) = &error {
                    warn!("revision {} of the plan is refused: {why}", plan.revision);
                    self.refused = Some((plan.term, plan.revision, why.clone(), now));
                }
                Err(error)
            }
        }
    }

    fn take_over(&mut self, plan: &NodePlanSpec, in_force: Option<&Assignment>) -> Result<(), DaemonError> {
        let refused = |why: String| DaemonError::Refused(why);
        let path = self.base.clone();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            refused(format!("cannot read {}: {error}; name the configuration of sluiced with --base", path.display()))
        })?;
        let base: Config = toml::from_str(&text).map_err(|error| refused(format!("{}: {error}", path.display())))?;
        let before = self.applied.clone();
        let all = merged(&base, plan, before.as_ref()).map_err(|error| refused(error.to_string()))?;
        let exact = merged(&base, plan, None).map_err(|error| refused(error.to_string()))?;
        self.apply(&all)?;
        let placed = match (assignment(plan), in_force) {
            (Some(wanted), Some(now)) => self.daemon.place(&with_added(wanted, now)),
            (Some(wanted), None) => self.daemon.place(&wanted),
            (None, Some(_)) => self.daemon.withdraw().map(|()| Vec::new()),
            (None, None) => Ok(Vec::new()),
        };
        self.notes = match placed {
            Ok(notes) => notes,
            Err(error) => {
                // Back to what there was; the old plan is still placed.
                let old = before.as_ref().map_or(Ok(base.clone()), |before| merged(&base, before, None));
                if let Ok(old) = old {
                    let _ = self.apply(&old);
                }
                return Err(error);
            }
        };
        if all == exact { Ok(()) } else { self.apply(&exact) }
    }

    fn apply(&mut self, config: &Config) -> Result<(), DaemonError> {
        let text = toml::to_string(config).map_err(|error| DaemonError::Refused(error.to_string()))?;
        self.daemon.apply(&text, &self.base)
    }
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
mod tests;
