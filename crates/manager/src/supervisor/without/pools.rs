//! Pools in a build without the feature: there are none.

use super::nfs::PoolLife;
use super::{Supervisor, SupervisorError};
use sluice_api::config::Service;
use sluice_api::model as api;
use sluice_dataplane::worker::Snapshot;

/// Never made.
pub(super) struct PoolState {
    pub(super) life: PoolLife,
}

impl PoolState {
    pub(super) fn of(_: &Service, _: usize) -> Option<Self> {
        None
    }

    pub(super) fn after(former: Option<Self>, _: &Service, _: usize) -> Option<Self> {
        former
    }
}

impl Supervisor {
    pub(super) fn start_member(&mut self, number: u16) {
        self.launch_process(number);
    }

    pub(super) fn change_pool(&mut self, _: Service) -> Result<(), SupervisorError> {
        Ok(())
    }

    pub(super) fn stir_pool(&mut self, _: u16) -> bool {
        false
    }

    pub(super) fn publish_stirred_pools(&mut self) {}

    pub(super) fn publish_pool(&mut self, _: u16) -> bool {
        false
    }

    pub(super) fn close_pool(&mut self, _: u16, _: PoolState) {}

    pub(super) fn size_pools(&mut self) {}

    pub(super) fn pool_reports(&self, _: &[Snapshot]) -> Vec<api::Pool> {
        Vec::new()
    }

    pub(super) fn own_pool_report(&mut self, _: u16) -> Option<api::Pool> {
        None
    }
}
