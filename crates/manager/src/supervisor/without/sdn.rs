//! The SDN controller in a build without the feature: there is none.

use super::Supervisor;
use crate::dataplane::{DataPlane, RxThread};
use sluice_api::config::Config;
use sluice_api::model as api;
use sluice_dataplane::steer::ChooseChain;

#[derive(Default)]
pub(super) struct Sdn;

impl Sdn {
    pub(super) fn new(_: &Config) -> Self {
        Self
    }

    pub(super) fn chooser(&self, _: &Config, _: RxThread) -> Option<Box<dyn ChooseChain>> {
        None
    }

    pub(super) fn start(&mut self, _: &Config, _: &DataPlane) -> std::io::Result<()> {
        Ok(())
    }

    pub(super) fn stop(&mut self) {}

    pub(super) fn is_there(&self) -> bool {
        false
    }

    pub(super) fn status(&self) -> Option<api::Openflow> {
        None
    }
}

impl Supervisor {
    pub(super) fn update_agent(&self) {}
}
