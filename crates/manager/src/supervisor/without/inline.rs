//! NFs in packet threads in a build without the feature: there are none.

use super::Supervisor;

impl Supervisor {
    pub(super) fn launch_inline(&mut self, _: u16) {}

    pub(super) fn end_inline(&mut self, _: u16) {}
}
