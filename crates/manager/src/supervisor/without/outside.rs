//! Time slices in a build without the feature: the kernel divides a core among NFs that poll.

use std::sync::Arc;

use super::{Supervisor, SupervisorError};
use sluice_api::config::Config;
use sluice_api::model as api;
use sluice_host::processes::guard::Guard;

#[derive(Default)]
pub(super) struct Outside {}

impl Outside {
    pub(super) fn guard(&self) -> Option<&Arc<Guard>> {
        None
    }

    pub(super) fn end_guard(&mut self) {}

    pub(super) fn is_governed(&self, _: usize) -> bool {
        false
    }
}

impl Supervisor {
    pub(super) fn prepare_outside(&mut self, _: &Config) -> Result<(), SupervisorError> {
        Ok(())
    }

    pub(super) fn has_turns(&self, _: usize) -> bool {
        false
    }

    pub(super) fn govern(&mut self) {}

    pub(super) fn govern_late(&mut self) {}

    pub(super) fn leave_schedule(&mut self, _: u16) {}

    pub(super) fn schedule_reports(&self) -> Vec<api::Schedule> {
        Vec::new()
    }
}
