//! SLOs in a build without the feature: none is kept, and a placement is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::change::Gone;
use super::nfs::Nf;
use super::{Supervisor, SupervisorError};
use crate::features::lacks;
use sluice_api::config::Config;
use sluice_api::promise::{self as report, Placed};
use sluice_dataplane::bucket::Bucket;
use sluice_slo::assignment::Assignment;

pub(super) type PlaceResult = Result<(Placed, Gone), SupervisorError>;

/// Never made.
pub(super) struct Overlaid {
    pub(super) config: Config,
}

pub(super) struct PromiseKeeper;

impl PromiseKeeper {
    pub(super) fn open(_: &Config) -> Result<Self, SupervisorError> {
        Ok(Self)
    }

    pub(super) fn are_none(&self) -> bool {
        true
    }

    pub(super) fn base(&self, config: &Config) -> Config {
        config.clone()
    }

    pub(super) fn time(&mut self, _: bool) {}

    pub(super) fn bucket(&self, _: &str) -> Option<Arc<Bucket>> {
        None
    }

    pub(super) fn io_mask(&self) -> u32 {
        0
    }
}

fn absent<T>() -> Result<T, SupervisorError> {
    Err(SupervisorError::Invalid(lacks("promises")))
}

impl Supervisor {
    pub(super) fn begin_placing(&mut self, _: Assignment) -> Result<Receiver<PlaceResult>, SupervisorError> {
        absent()
    }

    pub(super) fn begin_withdrawing(&mut self) -> Result<Receiver<PlaceResult>, SupervisorError> {
        absent()
    }

    pub(super) fn placement(&self) -> Result<Assignment, SupervisorError> {
        absent()
    }

    pub(super) fn not_promised(&self, _: &str) -> Result<(), SupervisorError> {
        Ok(())
    }

    pub(super) fn not_kept(&self, _: &str) -> Result<(), SupervisorError> {
        Ok(())
    }

    pub(super) fn not_copied(&self, _: &str) -> Result<(), SupervisorError> {
        Ok(())
    }

    pub(super) fn is_kept(&self, _: &str) -> bool {
        false
    }

    pub(super) fn is_of_slo(&self, _: &str) -> bool {
        false
    }

    /// No SLO has a socket.
    pub(super) fn named_of_slo(&self, slo: &str, name: &str) -> Result<&Nf, String> {
        Err(format!("the SLO {slo} has no instance `{name}`"))
    }

    pub(super) fn with_promises(&self, _: &Config) -> Result<Option<Overlaid>, SupervisorError> {
        Ok(None)
    }

    pub(super) fn promises_follow(&mut self, _: Overlaid) {}

    pub(super) fn open_missing(&mut self) -> Result<(), String> {
        Ok(())
    }

    pub(super) fn keeps_profiles(&self, _: &Config) -> Result<(), SupervisorError> {
        Ok(())
    }

    pub(super) fn go_on_placing(&mut self) {}

    pub(super) fn restore_placement(&mut self) {}

    pub(super) fn see_restored(&mut self) {}

    pub(super) fn bind(&mut self) {}

    pub(super) fn spread_parts(&self) -> BTreeMap<u16, u32> {
        BTreeMap::new()
    }

    pub(super) fn poll_promises(&mut self) {}

    pub(super) fn promise_reports(&self) -> Vec<report::Promise> {
        Vec::new()
    }

    pub(super) fn promises_report(&self) -> report::Promises {
        report::Promises::default()
    }

    pub(super) fn promise_states(&self) -> BTreeMap<String, Vec<String>> {
        BTreeMap::new()
    }
}
