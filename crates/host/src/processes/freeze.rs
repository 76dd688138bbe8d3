//! The freezer of control groups of version 2: `cgroup.freeze`.
//!
//! All processes of a cgroup and below stop, those that they make later, too. Nobody but the kernel notices, and SIGKILL still
//! kills. It needs no controller, only a folder in which cgroups may be made. Where the folder above passes the cpu controller on,
//! running targets have weights besides.
//!
//! # Limits
//! Freezing is asynchronous: what is in the kernel goes on until it returns from there. On hosts whose cpu controller is in version
//! 2, a process that is moved leaves the weight that it had in its former cgroup: a target that has a cgroup to itself
//! ([`Target::in_cgroup`]) is frozen where it is instead.

use std::sync::Arc;

use super::guard::Guard;
use super::tree::{Tree, Words};
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, Target};
use crate::cgroup::Version;

const WORDS: Words = Words {
    mechanism: Mechanism::Freeze,
    version: Version::V2,
    controller: "",
    file: "cgroup.freeze",
    stop: "1",
    go: "0",
    missing: "no cgroup file system of version 2 is mounted that shows this process's cgroup; mount one \
              (`mount -t cgroup2 cgroup2 DIR`)",
};

/// Controls by cgroups of version 2.
pub struct Freeze(Tree);

impl Freeze {
    /// Without targets; the folder is made.
    ///
    /// # Errors
    /// [`Refused::NotHere`], [`Refused::NotPermitted`], [`Refused::NoGuard`], [`Refused::System`].
    pub fn new(settings: &Settings, guard: &Arc<Guard>) -> Result<Self, Refused> {
        Ok(Self(Tree::new(WORDS, settings, settings.freeze_parent.as_deref(), guard)?))
    }
}

impl Controller for Freeze {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Freeze
    }

    fn add(&mut self, target: &Target) -> Result<Slot, Refused> {
        self.0.add(target)
    }

    fn park(&mut self, slot: Slot) -> Result<(), Failed> {
        self.0.park(slot)
    }

    fn run(&mut self, slot: Slot) -> Result<(), Failed> {
        self.0.run(slot)
    }

    fn set_weight(&mut self, slot: Slot, share: f64) -> Result<bool, Failed> {
        self.0.set_weight(slot, share)
    }

    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed> {
        // One that is frozen by version 2 dies at once.
        self.0.check_runs(slot)
    }

    fn is_ended(&self, slot: Slot) -> bool {
        self.0.is_ended(slot)
    }

    fn remove(&mut self, slot: Slot) -> Result<(), Failed> {
        self.0.remove(slot)
    }

    fn teardown(&mut self) -> Vec<Failed> {
        self.0.teardown()
    }
}
