//! A pair of real-time priorities: parked processes have the low one, the running one the high one.
//!
//! # Problem
//! A round-robin process that never sleeps keeps all of lower priority off its core. So a priority
//! is a switch, if every thread of the process has it.
//!
//! # Approach
//! - Adding gives every thread the class with the low priority. The former attributes (`Attr`) of
//!   each are read and restored whole.
//! - Parking and running only change priorities, with one system call a thread. A switch first
//!   raises the new process, which puts it behind the old one of the same priority and preempts
//!   nothing, and then lowers the old one: one rescheduling of the core, not two.
//! - The class is not inherited (SCHED_RESET_ON_FORK) where this user may undo that: threads and
//!   children made in a slice start with the default class. A child that kept the high priority
//!   would have the core for ever, since no controller has it.
//!   [`look_again`](Controller::look_again) gives new threads the class, and their release the
//!   class that their process had. Without CAP_SYS_NICE both inherit the class.
//!
//! # The kernel's rules
//! - `sched_rt_runtime_us` takes 5 % of each second from real-time processes by default, in one
//!   piece of 48 ms: [`warnings`].
//! - With CONFIG_RT_GROUP_SCHED, a cgroup of version 1 needs a budget for real-time processes:
//!   [`Refused::NotPermitted`] names it.
//! - A parked process below a spinner cannot even die: [`before_kill`](Controller::before_kill).
//! - The switching thread must be above those that it switches, or on another core: [`raise_self`].
//!
//! # Limits
//! Parked processes run while no process above them wants their core, in slices of 100 ms.
//! Processes on different cores do not exclude each other at all: pin them. A thread that changes
//! its own class keeps that until it is run or parked again. A new thread gets what is left of the
//! core until [`look_again`](Controller::look_again).

use std::collections::BTreeMap;
use std::fs;
use std::marker::PhantomData;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::Resource;
use rustix::thread::CapabilitySet;

use super::attr::{Attr, set_priority};
use super::guard::{Guard, Note};
use super::slots::Slots;
use super::target::{TargetMember, Threads};
use super::undo::{HostOps, Undo};
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, Target};
use crate::affinity::{self, Saved};
use crate::cgroup;
use crate::class::may_give;
use crate::process::{Identity, Proc};

/// Maximum number of passes over a process's threads when it is added.
const PASSES: usize = 16;

/// A controller by real-time priorities.
pub struct Realtime {
    guard: Arc<Guard>,
    settings: Settings,
    host: HostOps,
    /// Whether this user may undo SCHED_RESET_ON_FORK.
    without_heirs: bool,
    slots: Slots<Held>,
}

struct Held {
    target: Target,
    processes: Vec<Process>,
    priority: u8,
}

struct Process {
    identity: Identity,
    threads: Threads,
    /// The former attributes of its threads.
    former: BTreeMap<i32, Attr>,
    /// Low and high priority: they identify threads that have inherited the class.
    pair: (u8, u8),
    without_heirs: bool,
    note: Option<Note>,
}

/// The error for a class that the kernel refuses.
fn refused(settings: &Settings, pid: i32, priority: u8, error: Errno) -> Refused {
    if error != Errno::PERM {
        let what = format!("of process {pid}");
        return Refused::System { doing: "set the scheduling class", what, source: error.into() };
    }
    let what = match cgroup::without_real_time(&settings.root, pid, may_give()) {
        Some(folder) => format!(
            "process {pid} is in cgroup {}, which has no real-time budget (CONFIG_RT_GROUP_SCHED); write microseconds to \
             cpu.rt_runtime_us there and in those above it (version 1 only), or move it to the topmost cgroup",
            folder.display()
        ),
        None => {
            let limit = rustix::process::getrlimit(Resource::Rtprio).current;
            format!(
                "the kernel does not give process {pid} the round-robin class with priority {priority}: the capability \
                 CAP_SYS_NICE is lacking, and the limit of real-time priorities (ulimit -r) is {}",
                limit.map_or("none".into(), |limit| limit.to_string())
            )
        }
    };
    Refused::NotPermitted { mechanism: Mechanism::Realtime, what }
}

impl Realtime {
    /// Without targets. Tries the class in a new thread.
    ///
    /// # Errors
    /// [`Refused::NotPermitted`], [`Refused::NotHere`], [`Refused::System`].
    pub fn new(settings: &Settings, guard: &Arc<Guard>) -> Result<Self, Refused> {
        if runtime_us(settings) == Some(0) {
            let what = "kernel.sched_rt_runtime_us is 0, so real-time processes get no time; set it to 950000 or -1".into();
            return Err(Refused::NotHere { mechanism: Mechanism::Realtime, what });
        }
        if !(1..settings.high).contains(&settings.low) || settings.high > 97 {
            let what = format!("priorities {} and {} cannot be a pair; choose 1 ≤ low < high ≤ 97", settings.low, settings.high);
            return Err(Refused::NotHere { mechanism: Mechanism::Realtime, what });
        }
        let high = settings.high;
        let attempt = move || Attr::of(0).and_then(|attr| attr.round_robin(high).give(0));
        let thread = std::thread::Builder::new().name("rr-attempt".into()).spawn(attempt);
        let thread = thread.map_err(|source| Refused::System { doing: "start", what: "a thread".into(), source })?;
        let answer = thread.join().unwrap_or(Err(Errno::INVAL));
        answer.map_err(|error| refused(settings, std::process::id() as i32, high, error))?;
        Ok(Self {
            guard: guard.clone(),
            settings: settings.clone(),
            host: settings.host(),
            without_heirs: may_give(),
            slots: Slots::default(),
        })
    }

    /// Gives all threads of a process the class, after noting the former one with the guard.
    fn take_process(&self, member: &TargetMember, threads: Threads) -> (Process, Result<(), Refused>) {
        let pair = (self.settings.low, self.settings.high);
        let (identity, without_heirs) = (member.identity, self.without_heirs);
        let mut process = Process { identity, threads, former: BTreeMap::new(), pair, without_heirs, note: None };
        for _ in 0..PASSES {
            match process.take_new(&self.guard, &self.host.proc, self.settings.low) {
                Ok(false) => return (process, Ok(())),
                Ok(true) => {}
                Err(Taking::Refused(error)) => return (process, Err(error)),
                Err(Taking::Errno(error)) => {
                    return (process, Err(refused(&self.settings, member.raw(), self.settings.low, error)));
                }
            }
        }
        let what = format!("process {} makes threads faster than they can be given a class", member.raw());
        (process, Err(Refused::NotPermitted { mechanism: Mechanism::Realtime, what }))
    }

    fn let_go(&self, process: &Process) -> Result<(), Failed> {
        let result = process.undo().perform(&self.host, None);
        if let Some(note) = &process.note {
            self.guard.forget(note);
        }
        result
    }
}

enum Taking {
    Refused(Refused),
    Errno(Errno),
}

impl Process {
    /// The first thread's former attributes, used for later threads too.
    fn first(&self) -> Option<Attr> {
        self.former.get(&self.identity.pid).or(self.former.values().next()).copied()
    }

    fn undo(&self) -> Undo {
        Undo::Classes { process: self.identity, threads: self.former.clone(), others: self.first() }
    }

    /// The class of a thread that had this one.
    fn class(&self, attr: Attr, priority: u8) -> Attr {
        let class = attr.round_robin(priority);
        if self.without_heirs { class.without_heirs() } else { class }
    }

    fn is_ours(&self, attr: &Attr) -> bool {
        attr.is_round_robin(self.pair.0) || attr.is_round_robin(self.pair.1)
    }

    /// Finds unknown threads, notes their attributes with the guard, and gives them the class.
    ///
    /// Returns whether any had another class.
    #[cold]
    fn take_new(&mut self, guard: &Guard, proc: &Proc, priority: u8) -> Result<bool, Taking> {
        self.threads.look_again(proc);
        let first = self.first();
        let mut others = Vec::new();
        for tid in &self.threads.tids {
            if self.former.contains_key(tid) {
                continue;
            }
            match Attr::of(*tid) {
                // Made by a thread that was taken already.
                Ok(attr) if first.is_some() && self.is_ours(&attr) => {}
                // The same, but without the class: note what its maker would have passed on.
                Ok(attr) => {
                    let from_first = first.filter(|first| self.without_heirs && first.has_heirs() && attr.is_default());
                    others.push((*tid, from_first.unwrap_or(attr)));
                }
                Err(Errno::SRCH) => {}
                Err(error) => return Err(Taking::Errno(error)),
            }
        }
        if others.is_empty() {
            return Ok(false);
        }
        self.former.extend(others.iter().copied());
        // The new note first, so that the guard always has one.
        let note = guard.note(&[self.undo()], None).map_err(Taking::Refused)?;
        if let Some(old) = self.note.replace(note) {
            guard.forget(&old);
        }
        for (tid, attr) in others {
            match self.class(attr, priority).give(tid) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(Taking::Errno(error)),
            }
        }
        Ok(true)
    }
}

impl Held {
    #[inline]
    fn give(&mut self, priority: u8) -> Result<(), Failed> {
        self.priority = priority;
        let mut result = Ok(());
        let mut is_left = false;
        for process in &self.processes {
            match process.give(priority) {
                Ok(runs) => is_left |= runs,
                Err(error) => (result, is_left) = (Err(error), true),
            }
        }
        if is_left { result.and_then(|()| self.target.check_runs()) } else { Err(Failed::Ended) }
    }

    fn look_again(&mut self, guard: &Guard, proc: &Proc) -> Result<(), Failed> {
        let priority = self.priority;
        self.processes.iter_mut().map(|process| process.look_again(guard, proc, priority)).fold(Ok(()), Result::and)
    }
}

impl Process {
    /// Gives the known threads a priority; returns whether any is left.
    #[inline]
    fn give(&self, priority: u8) -> Result<bool, Failed> {
        let mut is_left = false;
        for tid in &self.threads.tids {
            let given = match set_priority(*tid, priority) {
                // It has changed its own class, and gets ours again.
                Err(Errno::INVAL) => Attr::of(*tid).and_then(|attr| self.class(attr, priority).give(*tid)),
                given => given,
            };
            match given {
                Ok(()) => is_left = true,
                Err(Errno::SRCH) => {}
                Err(source) => return Err(Failed::System { doing: "set the priority of", pid: self.identity.pid, source }),
            }
        }
        Ok(is_left)
    }

    /// Gives all threads a priority, including new ones.
    fn look_again(&mut self, guard: &Guard, proc: &Proc, priority: u8) -> Result<(), Failed> {
        let pid = self.identity.pid;
        let failed = |source| Failed::System { doing: "give its class to a new thread of", pid, source };
        for _ in 0..PASSES {
            match self.take_new(guard, proc, priority) {
                Ok(true) => {}
                Ok(false) => break,
                Err(Taking::Errno(error)) => return Err(failed(error)),
                Err(Taking::Refused(_)) => return Err(failed(Errno::PIPE)),
            }
        }
        // Threads that inherited the class have their maker's priority at that time.
        self.give(priority).map(drop)
    }
}

impl Controller for Realtime {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Realtime
    }

    fn add(&mut self, target: &Target) -> Result<Slot, Refused> {
        target.check_owner(CapabilitySet::SYS_NICE, "CAP_SYS_NICE")?;
        let threads = Threads::of(&self.host.proc, target)?;
        self.guard.take(target)?;
        let mut processes = Vec::new();
        let mut result = Ok(());
        for (member, threads) in target.members().iter().zip(threads) {
            let (process, taken) = self.take_process(member, threads);
            processes.push(process);
            result = taken;
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() && target.is_ended() {
            result = Err(Refused::NoProcess { name: target.name().into() });
        }
        if let Err(error) = result {
            for process in &processes {
                // Only the first error is reported.
                let _ = self.let_go(process);
            }
            self.guard.give(target);
            return Err(error);
        }
        Ok(self.slots.put(Held { target: target.clone(), processes, priority: self.settings.low }))
    }

    fn park(&mut self, slot: Slot) -> Result<(), Failed> {
        let low = self.settings.low;
        self.slots.of(slot)?.give(low)
    }

    fn run(&mut self, slot: Slot) -> Result<(), Failed> {
        let high = self.settings.high;
        self.slots.of(slot)?.give(high)
    }

    fn switch(&mut self, from: Slot, to: Slot) -> Result<(), Failed> {
        if from == to {
            return self.run(to);
        }
        let run = self.run(to);
        run.and(self.park(from))
    }

    fn look_again(&mut self) -> Result<(), Failed> {
        self.slots.values_mut().map(|held| held.look_again(&self.guard, &self.host.proc)).fold(Ok(()), Result::and)
    }

    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed> {
        self.run(slot)
    }

    fn is_ended(&self, slot: Slot) -> bool {
        self.slots.get(slot).is_none_or(|held| held.target.is_ended())
    }

    fn remove(&mut self, slot: Slot) -> Result<(), Failed> {
        let held = self.slots.take(slot)?;
        let result = held.processes.iter().map(|process| self.let_go(process)).fold(Ok(()), Result::and);
        self.guard.give(&held.target);
        result
    }

    fn teardown(&mut self) -> Vec<Failed> {
        self.slots.used().into_iter().filter_map(|slot| self.remove(slot).err()).collect()
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        self.teardown();
    }
}

fn runtime_us(settings: &Settings) -> Option<i64> {
    let text = fs::read_to_string(settings.root.join("proc/sys/kernel/sched_rt_runtime_us")).ok()?;
    text.trim().parse().ok()
}

/// Problems with the kernel's real-time rules on this host, one sentence each.
pub fn warnings(settings: &Settings) -> Vec<String> {
    let mut out = Vec::new();
    let period = fs::read_to_string(settings.root.join("proc/sys/kernel/sched_rt_period_us"));
    let period = period.ok().and_then(|text| text.trim().parse::<i64>().ok()).unwrap_or(1_000_000);
    match runtime_us(settings) {
        Some(runtime) if (1..period).contains(&runtime) => out.push(format!(
            "kernel.sched_rt_runtime_us = {runtime} takes {} ms of each {} ms from NFs of real-time priority that fill a core, in \
             one piece; set it to -1 to give them all",
            (period - runtime) / 1000,
            period / 1000
        )),
        _ => {}
    }
    if let Some(folder) = cgroup::without_real_time(&settings.root, std::process::id() as i32, true) {
        out.push(format!(
            "cgroup {} has no real-time budget (CONFIG_RT_GROUP_SCHED), so its processes cannot have real-time priorities; write \
             microseconds to cpu.rt_runtime_us there and in those above it, or start sluiced in the topmost cgroup",
            folder.display()
        ));
    }
    out
}

/// The calling thread above all that it controls; drop it in the same thread.
#[derive(Debug)]
pub struct Raised {
    former: Attr,
    cores: Option<Saved>,
    _not_send: PhantomData<*const ()>,
}

/// Raises the calling thread above all that it controls, and moves it to `core` if given.
///
/// Optional, but a controller that waits for a core of its NFs waits for ever.
///
/// # Errors
/// [`Refused::NotPermitted`], [`Refused::System`].
pub fn raise_self(settings: &Settings, core: Option<usize>) -> Result<Raised, Refused> {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let denied = |error| refused(settings, own, settings.high + 1, error);
    let former = Attr::of(0).map_err(denied)?;
    let cores = core.map(affinity::pin).transpose().map_err(|error| Refused::System {
        doing: "move the scheduler to",
        what: format!("core {}", core.unwrap_or(0)),
        source: std::io::Error::other(error),
    })?;
    // From here on the drop cleans up.
    let raised = Raised { former, cores, _not_send: PhantomData };
    former.round_robin(settings.high + 1).give(0).map_err(denied)?;
    Ok(raised)
}

impl Drop for Raised {
    fn drop(&mut self) {
        let _ = self.former.give(0);
        if let Some(cores) = &self.cores {
            let _ = cores.restore();
        }
    }
}
