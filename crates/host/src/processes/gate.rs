//! A gate for processes with our library, where the scheduler may only signal them.
//!
//! A real-time signal makes each thread run the library's handler, which waits on a word in shared
//! memory until the gate opens. Unlike with the [doorbell](super::doorbell) the process need not
//! read a word: it stops between two instructions, not between two bursts. Unlike SIGSTOP this is
//! invisible to others, and running it again is one futex call. The signal would kill a process
//! without our library, so that is refused.
//!
//! # Limits
//! The signal goes to each thread by number, after its process was seen alive.
//! [`look_again`](Controller::look_again) finds new threads. A thread that blocks the signal runs
//! on.

use std::sync::Arc;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use sluice_shm::gate::{Gate as Word, SIGNAL};

use super::guard::{Guard, Note};
use super::slots::Slots;
use super::target::Threads;
use super::undo::{HostOps, Undo};
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, Target};
use crate::process::Proc;

/// A controller by gates and signals.
pub struct GateController {
    guard: Arc<Guard>,
    host: HostOps,
    slots: Slots<Held>,
}

struct Held {
    target: Target,
    gate: Word,
    threads: Vec<Threads>,
    note: Note,
    /// Parked: threads that were signalled need no second signal.
    is_closed: bool,
}

impl GateController {
    /// Without targets. Never fails: every host has signals.
    pub fn new(settings: &Settings, guard: &Arc<Guard>) -> Result<Self, Refused> {
        Ok(Self { guard: guard.clone(), host: settings.host(), slots: Slots::default() })
    }
}

impl Held {
    #[inline]
    fn park(&mut self) -> Result<(), Failed> {
        // Checked before: a reused number must not be signalled.
        self.target.check_runs()?;
        if self.is_closed {
            return Ok(());
        }
        self.gate.close();
        self.is_closed = true;
        self.threads.iter().map(|threads| call(threads, &threads.tids)).fold(Ok(()), Result::and)
    }

    fn look_again(&mut self, proc: &Proc) -> Result<(), Failed> {
        let mut result = self.target.check_runs();
        for threads in &mut self.threads {
            let new = threads.look_again(proc);
            if self.is_closed && result.is_ok() {
                result = call(threads, &new);
            }
        }
        // An ended process has no threads to miss.
        result.or_else(|error| if error == Failed::Ended { Ok(()) } else { Err(error) })
    }
}

/// Signals threads of a process to wait at its gate.
#[inline]
fn call(threads: &Threads, tids: &[i32]) -> Result<(), Failed> {
    let mut result = Ok(());
    for tid in tids {
        match threads.signal(*tid, SIGNAL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(source) => result = Err(Failed::System { doing: "call to its gate", pid: threads.pid, source }),
        }
    }
    result
}

impl Controller for GateController {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Gate
    }

    fn add(&mut self, target: &Target) -> Result<Slot, Refused> {
        let not_ours = |why| Refused::NotOurs { name: target.name().into(), mechanism: Mechanism::Gate, why };
        let gates =
            target.gates().ok_or_else(|| not_ours("it is not written with Sluice's library, so the signal would kill it"))?;
        if !gates.comes_when_called() {
            return Err(not_ours("its library has not said that it waits for the signal, which would kill it otherwise"));
        }
        if target.members().len() > 1 {
            return Err(not_ours("it has several processes, and only one of them has the library's handler"));
        }
        target.check_owner(CapabilitySet::KILL, "CAP_KILL")?;
        let threads = Threads::of(&self.host.proc, target)?;
        self.guard.take(target)?;
        let undo = Undo::Open { at: gates.gate.offset(), bytes: gates.bytes };
        let note = self.guard.note(&[undo], Some(gates.memory())).inspect_err(|_| self.guard.give(target))?;
        let gate = gates.gate.clone();
        let mut held = Held { target: target.clone(), gate, threads, note, is_closed: false };
        if let Err(error) = held.park() {
            let refused = error.into_refused(Mechanism::Gate, target.name());
            self.let_go(&held);
            return Err(refused);
        }
        Ok(self.slots.put(held))
    }

    fn park(&mut self, slot: Slot) -> Result<(), Failed> {
        self.slots.of(slot)?.park()
    }

    fn run(&mut self, slot: Slot) -> Result<(), Failed> {
        let held = self.slots.of(slot)?;
        held.is_closed = false;
        held.gate.open();
        held.target.check_runs()
    }

    fn look_again(&mut self) -> Result<(), Failed> {
        self.slots.values_mut().map(|held| held.look_again(&self.host.proc)).fold(Ok(()), Result::and)
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
        self.let_go(&held);
        Ok(())
    }

    fn teardown(&mut self) -> Vec<Failed> {
        self.slots.used().into_iter().filter_map(|slot| self.remove(slot).err()).collect()
    }
}

impl GateController {
    fn let_go(&self, held: &Held) {
        held.gate.open();
        self.guard.forget(&held.note);
        self.guard.give(&held.target);
    }
}

impl Drop for GateController {
    fn drop(&mut self) {
        self.teardown();
    }
}
