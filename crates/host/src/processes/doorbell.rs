//! The cooperative doorbell: a word that the process reads between bursts, and may wait on.
//!
//! The cheapest mechanism, and the only one that never stops a process in the middle of a packet.
//! Parking is one store; running is one store and one system call. It takes effect at the end of a
//! burst, and only if the process really reads the word: where that is not certain, use another.

use std::sync::Arc;

use sluice_shm::gate::Gate;

use super::guard::{Guard, Note};
use super::slots::Slots;
use super::undo::Undo;
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, Target};

/// A controller by gates that processes read.
pub struct Doorbell {
    guard: Arc<Guard>,
    slots: Slots<Held>,
}

struct Held {
    target: Target,
    gate: Gate,
    note: Note,
}

impl Doorbell {
    /// Without targets. Never fails: every host has shared memory.
    pub fn new(_settings: &Settings, guard: &Arc<Guard>) -> Result<Self, Refused> {
        Ok(Self { guard: guard.clone(), slots: Slots::default() })
    }
}

impl Controller for Doorbell {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Doorbell
    }

    fn add(&mut self, target: &Target) -> Result<Slot, Refused> {
        let not_ours = |why| Refused::NotOurs { name: target.name().into(), mechanism: Mechanism::Doorbell, why };
        let gates =
            target.gates().ok_or_else(|| not_ours("it is not written with Sluice's library, so it has no gate to look at"))?;
        if !gates.looks() {
            return Err(not_ours("it does not look at its gate (mode = \"poll\", or an older library)"));
        }
        target.check_runs().map_err(|error| error.into_refused(Mechanism::Doorbell, target.name()))?;
        self.guard.take(target)?;
        let undo = Undo::Open { at: gates.gate.offset(), bytes: gates.bytes };
        let note = self.guard.note(&[undo], Some(gates.memory())).inspect_err(|_| self.guard.give(target))?;
        gates.gate.close();
        Ok(self.slots.put(Held { target: target.clone(), gate: gates.gate.clone(), note }))
    }

    fn park(&mut self, slot: Slot) -> Result<(), Failed> {
        let held = self.slots.of(slot)?;
        held.gate.close();
        held.target.check_runs()
    }

    fn run(&mut self, slot: Slot) -> Result<(), Failed> {
        let held = self.slots.of(slot)?;
        held.gate.open();
        held.target.check_runs()
    }

    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed> {
        // A process that waits on a futex dies at once.
        self.slots.of(slot)?.target.check_runs()
    }

    fn is_ended(&self, slot: Slot) -> bool {
        self.slots.get(slot).is_none_or(|held| held.target.is_ended())
    }

    fn remove(&mut self, slot: Slot) -> Result<(), Failed> {
        let held = self.slots.take(slot)?;
        held.gate.open();
        self.guard.forget(&held.note);
        self.guard.give(&held.target);
        Ok(())
    }

    fn teardown(&mut self) -> Vec<Failed> {
        self.slots.used().into_iter().filter_map(|slot| self.remove(slot).err()).collect()
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.teardown();
    }
}
