//! SIGSTOP and SIGCONT through a pidfd: needs only the right to signal, and stops all threads.
//!
//! A pidfd names one process for ever, so no other process is ever stopped. A process with several
//! threads also gets signals to each by number, right after. Limits: parents and debuggers see the
//! signals; a shell that waits for the process takes its terminal back; below about 13 µs a CONT
//! overtakes the preceding STOP, which is harmless (the process runs) but makes shorter slices
//! meaningless.

use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Signal as Number, pidfd_send_signal};
use rustix::thread::CapabilitySet;

use super::guard::{Guard, Note};
use super::slots::Slots;
use super::target::Threads;
use super::undo::{HostOps, Undo};
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, Target};

/// A controller by signals.
pub struct Signal {
    guard: Arc<Guard>,
    host: HostOps,
    slots: Slots<Held>,
}

struct Held {
    target: Target,
    threads: Vec<Threads>,
    undos: Vec<Undo>,
    note: Note,
}

impl Signal {
    /// Without targets. Never fails: every supported kernel (from 5.1 on) has the call.
    pub fn new(settings: &Settings, guard: &Arc<Guard>) -> Result<Self, Refused> {
        Ok(Self { guard: guard.clone(), host: settings.host(), slots: Slots::default() })
    }
}

impl Held {
    #[inline]
    fn park(&self) -> Result<(), Failed> {
        let result = send(&self.target, Number::STOP, "stop");
        for threads in &self.threads {
            // The kernel gives the signal to one thread, and all stop when that one gets a core,
            // possibly after the others. So each known thread gets its own, and the one that has
            // the core stops all.
            for tid in threads.tids.iter().filter(|_| threads.tids.len() > 1) {
                // An ended thread needs none; any other error was reported by the first signal.
                let _ = threads.signal(*tid, libc::SIGSTOP);
            }
        }
        result.and_then(|()| self.target.check_runs())
    }
}

/// Signals all living processes of a target.
#[inline]
fn send(target: &Target, number: Number, doing: &'static str) -> Result<(), Failed> {
    let mut result = Ok(());
    for member in target.members() {
        match pidfd_send_signal(member.pidfd(), number) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(source) => result = Err(Failed::System { doing, pid: member.raw(), source }),
        }
    }
    result
}

impl Controller for Signal {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Signal
    }

    fn add(&mut self, target: &Target) -> Result<Slot, Refused> {
        target.check_owner(CapabilitySet::KILL, "CAP_KILL")?;
        // Signal 0 only checks the permission.
        for member in target.members() {
            if let Err(Errno::PERM) = rustix::process::test_kill_process(member.pid) {
                let what = format!("the kernel does not let this user signal process {}; CAP_KILL is lacking", member.raw());
                return Err(Refused::NotPermitted { mechanism: Mechanism::Signal, what });
            }
        }
        let threads = Threads::of(&self.host.proc, target)?;
        self.guard.take(target)?;
        let undos: Vec<Undo> = target.members().iter().map(|member| Undo::Continue { process: member.identity }).collect();
        let note = self.guard.note(&undos, None).inspect_err(|_| self.guard.give(target))?;
        let held = Held { target: target.clone(), threads, undos, note };
        let stopped = held.park();
        if let Err(error) = stopped {
            let refused = error.into_refused(Mechanism::Signal, target.name());
            let _ = self.let_go(held);
            return Err(refused);
        }
        Ok(self.slots.put(held))
    }

    fn park(&mut self, slot: Slot) -> Result<(), Failed> {
        self.slots.of(slot)?.park()
    }

    fn run(&mut self, slot: Slot) -> Result<(), Failed> {
        // It also cancels pending stops of threads.
        let target = &self.slots.of(slot)?.target;
        send(target, Number::CONT, "continue").and_then(|()| target.check_runs())
    }

    fn look_again(&mut self) -> Result<(), Failed> {
        let threads = self.slots.values_mut().flat_map(|held| &mut held.threads);
        threads.for_each(|threads| drop(threads.look_again(&self.host.proc)));
        Ok(())
    }

    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed> {
        // A stopped process dies at once.
        self.slots.of(slot)?.target.check_runs()
    }

    fn is_ended(&self, slot: Slot) -> bool {
        self.slots.get(slot).is_none_or(|held| held.target.is_ended())
    }

    fn remove(&mut self, slot: Slot) -> Result<(), Failed> {
        let held = self.slots.take(slot)?;
        self.let_go(held)
    }

    fn teardown(&mut self) -> Vec<Failed> {
        self.slots.used().into_iter().filter_map(|slot| self.remove(slot).err()).collect()
    }
}

impl Signal {
    fn let_go(&self, held: Held) -> Result<(), Failed> {
        let results = held.undos.iter().map(|undo| undo.perform(&self.host, None));
        let result = results.fold(Ok(()), Result::and);
        self.guard.forget(&held.note);
        self.guard.give(&held.target);
        result
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.teardown();
    }
}
