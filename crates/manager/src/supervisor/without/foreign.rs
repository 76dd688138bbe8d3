//! Foreign NFs in a build without the feature: there are none.

use std::time::Instant;

use super::Supervisor;

impl Supervisor {
    pub(super) fn launch_foreign(&mut self, _: u16) {}

    pub(super) fn settle(&mut self, _: u16) {}

    pub(super) fn see_wires(&mut self, _: Instant) {}

    pub(super) fn unfeed(&mut self, _: u16) {}

    pub(super) fn clear_namespace(&mut self, _: u16) {}
}
