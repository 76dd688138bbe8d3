//! The freezer of control groups of version 1: `freezer.state`.
//!
//! For hosts without version 2. As [`freeze`](super::freeze), but a frozen process cannot be killed
//! before it is thawed: see [`before_kill`](Controller::before_kill). Release also thaws first.

use std::sync::Arc;

use super::guard::Guard;
use super::tree::{Tree, Words};
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, Target};
use crate::cgroup::Version;

const WORDS: Words = Words {
    mechanism: Mechanism::Freezer,
    version: Version::V1,
    controller: "freezer",
    file: "freezer.state",
    stop: "FROZEN",
    go: "THAWED",
    missing: "no freezer hierarchy of cgroups of version 1 is mounted that shows this process's cgroup; choose freeze where \
              version 2 is mounted",
};

/// A controller by cgroups of version 1.
pub struct Freezer(Tree);

impl Freezer {
    /// Without targets; makes the folder.
    ///
    /// # Errors
    /// [`Refused::NotHere`], [`Refused::NotPermitted`], [`Refused::NoGuard`], [`Refused::System`].
    pub fn new(settings: &Settings, guard: &Arc<Guard>) -> Result<Self, Refused> {
        Ok(Self(Tree::new(WORDS, settings, settings.freezer_parent.as_deref(), guard)?))
    }
}

impl Controller for Freezer {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Freezer
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

    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed> {
        self.0.run(slot)
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
