//! The freezer of control groups of version 2: `cgroup.freeze`.
//!
//! All processes in and below a cgroup stop, including those made later. This is invisible to
//! others, and SIGKILL still works. It needs no controller, only a folder in which cgroups may be
//! made. Where the parent folder passes the cpu controller on, running targets also have weights.
//!
//! # Limits
//! Freezing is asynchronous: a process in the kernel continues until it returns from there. On
//! hosts whose cpu controller is in version 2, a moved process loses the weight of its former
//! cgroup: a target that has a cgroup to itself ([`Target::in_cgroup`]) is frozen in place instead.

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

/// A controller by cgroups of version 2.
pub struct Freeze(Tree);

impl Freeze {
    /// Without targets; makes the folder.
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
        // A process frozen by version 2 dies at once.
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
