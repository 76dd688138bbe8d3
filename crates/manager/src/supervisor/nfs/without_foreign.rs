//! Foreign NFs in a build without the feature: there are none.

use std::sync::Arc;

use rustix::process::Pid;

use sluice_api::model as api;
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::hooks::FeedCounters;
use sluice_host::process::Proc;
use sluice_host::processes::{Refused, Target};

/// Never made.
pub(crate) enum Foreign {}

impl Foreign {
    pub(crate) fn report_cost(&mut self, _: &NfHandle, _: u64) {}

    pub(crate) fn note_trouble(&mut self, _: impl FnOnce() -> String) {}

    pub(crate) fn trouble(&self) -> Option<&str> {
        match *self {}
    }

    pub(crate) fn memory(&self) -> Option<u8> {
        match *self {}
    }

    pub(crate) fn counters(&self) -> Arc<FeedCounters> {
        match *self {}
    }

    pub(crate) fn members(&self) -> Vec<Pid> {
        match *self {}
    }

    pub(crate) fn target(&self, _: &Proc, _: &str, _: &[i32]) -> Result<Target, Refused> {
        match *self {}
    }

    pub(crate) fn report(&self, _: bool) -> api::NfForeign {
        match *self {}
    }
}
