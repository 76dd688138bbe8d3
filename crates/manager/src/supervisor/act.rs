//! Carries out the actions of NFs' life state machines.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Pid;
use sluice_shm::page::Control;

use super::Supervisor;
use super::nfs::{Action, Again, Event, HELLO_PATIENCE, Nf};
use super::notice::NoticeKind;
use crate::controller::events::Subject;
use sluice_api::model::EventKind;
use sluice_dataplane::handle::{StopReason, Violation};
use sluice_dataplane::succession::Succession;
use sluice_host::cgroup::pen::Pen;
use sluice_host::process::Proc;
use sluice_host::silence;

impl Supervisor {
    /// Feeds an event to an NF's life, and carries out its actions.
    pub(super) fn feed(&mut self, number: u16, event: Event) {
        for action in self.nfs.on(number, event) {
            self.act(number, action);
        }
    }

    /// Carries out one action of an NF's life.
    pub(super) fn act(&mut self, number: u16, action: Action) {
        let ends = matches!(action, Action::Kill | Action::Terminate | Action::SayStop);
        if ends && self.nfs.get(&number).is_some_and(|nf| nf.handle.is_some() && nf.is_inline()) {
            // There is no process whose end would be noticed.
            return self.end_inline(number);
        }
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        match action {
            Action::Launch(again) => self.launch_again(number, again),
            Action::Kill => nf.kill(),
            Action::Terminate => nf.terminate(),
            Action::SayStop => say_stop(nf),
            Action::Drain => self.drain_nf(number),
            Action::Announce => self.announce(number),
            Action::LookWhetherStarved => {
                let is_starved = nf.process.as_ref().is_some_and(|p| silence::is_starved(&Proc::default(), p.pid, HELLO_PATIENCE));
                self.feed(number, Event::Starved(is_starved));
            }
            Action::LookAtUse => {
                let used = use_of(nf);
                self.feed(number, Event::Used(used, self.config.manager.stall_ms));
            }
            Action::Spare(until_ns) => nf.handle.iter().for_each(|handle| handle.spare(until_ns)),
            Action::ReportStarved(waited) => self.host.notices.print(NoticeKind::Starved, || {
                let waited = waited.as_secs();
                format!("{} has hardly run in {waited} s, because core {} is busy, and is waited for", nf.name, nf.core)
            }),
            Action::ReportSilent => {
                let line = || format!("{} said no hello within {} s and is stopped", nf.name, HELLO_PATIENCE.as_secs());
                self.host.notices.print(NoticeKind::Silent(nf.service), line);
            }
            Action::ReportStopped(stop_reason) => {
                self.host.notices.print(NoticeKind::Stopped(nf.service), || stopped(nf, stop_reason))
            }
            Action::Settle => self.settle(number),
            Action::ForkIsLate => self.fork_is_late(number),
            Action::Lose => self.lost(number),
            Action::TrialFailed(how) => self.trial_ended(number, how),
            Action::ScheduleAt(until_ns) => self.turns.due_ns = Some(self.turns.due_ns.map_or(until_ns, |due| due.min(until_ns))),
            Action::Remove => self.forget_nf(number),
            // Carried out by the function that holds the remains.
            Action::ReportEnd(_) | Action::Reclaim => {}
        }
    }

    /// Starts the process of an NF that had one before.
    fn launch_again(&mut self, number: u16, again: Again) {
        let Some(nf) = self.nfs.get(&number).filter(|_| !self.turns.stopping) else { return };
        let how = match again {
            Again::AtOnce => Some("at once"),
            Again::AfterPause => Some("after a pause"),
            Again::Fresh => None,
        };
        if let Some(how) = how {
            let text = format!("started again {how}; restarts so far: {}", nf.life().restarts());
            self.controller.events().note(EventKind::Restart, Subject::Nf(&nf.name), text);
        }
        // A start that fails is the next failure.
        self.launch(number);
    }

    /// Lets the other instances of a service succeed one, unless a pool assigns the flows.
    fn followed(&self, number: u16) -> Vec<Arc<Succession>> {
        let service = self.nfs.get(&number).and_then(|nf| self.services.get(usize::from(nf.service))?.as_ref());
        let others = service.filter(|service| service.pool.is_none()).map_or(&[][..], |service| &service.instances);
        let runs = |nf: &&u16| self.nfs.get(nf).is_some_and(|nf| nf.life().takes_packets());
        // Those of another shard get none of its flows.
        let is_sharded = service.is_some_and(|service| self.is_sharded(&service.config));
        let may_follow = |nf: &&u16| !is_sharded || self.plane.division().drains_alike(**nf, number);
        others.iter().filter(runs).filter(may_follow).filter_map(|other| self.follow(*other, [&number].into_iter())).collect()
    }

    /// Begins to remove an NF: no new packets, and a request to stop when it has drained.
    pub(super) fn retire(&mut self, number: u16) {
        self.feed(number, Event::StopRequested(Duration::from_millis(self.config.manager.drain_ms)));
    }

    fn drain_nf(&mut self, number: u16) {
        let Some(service) = self.nfs.get(&number).map(|nf| nf.service) else { return };
        let successions = self.followed(number);
        if !self.publish_pool(service) {
            self.publish();
        }
        self.let_follow(&successions);
        let fence = self.plane.fence();
        if let Some(nf) = self.nfs.get_mut(&number) {
            nf.removal.fence = Some(fence);
        }
    }

    /// Stops NFs that packet threads have marked: for cause, or after a member's only flow.
    pub(super) fn stop_marked(&mut self) {
        let marked = |nf: &Nf| {
            let handle = nf.handle.as_ref()?;
            let stop_reason = handle.stop_reason();
            let event = || Event::MustStop(stop_reason, handle.violations.load(Ordering::Relaxed));
            (stop_reason != StopReason::None).then(|| (nf.number, event()))
        };
        let marked: Vec<(u16, Event)> = self.nfs.values().filter_map(marked).collect();
        marked.into_iter().for_each(|(number, event)| self.feed(number, event));
    }
}

/// Asks an NF to stop through its page.
fn say_stop(nf: &mut Nf) {
    nf.removal.fence = None;
    let Some(handle) = &nf.handle else { return nf.kill() };
    handle.wants_core.store(true, Ordering::Relaxed);
    handle.region.page.control(Control::Stop).store(1, Ordering::Release);
    // Whatever its core's page says, and even if it does not have the core there.
    handle.rouse(1);
}

/// The CPU time of an NF that stands still, if it is runnable and waits for its core. That of its
/// other processes counts: else these could keep it from the core while it holds packets.
fn use_of(nf: &Nf) -> Option<Duration> {
    let proc = Proc::default();
    let process = nf.process.as_ref().filter(|process| !process.theirs && silence::waits(&proc, process.pid))?;
    let mut all: Vec<Pid> = nf.held.pen.as_ref().map_or(Vec::new(), Pen::members).into_iter().filter_map(Pid::from_raw).collect();
    if all.is_empty() {
        all.push(process.pid);
    }
    Some(silence::used_by(&proc, &all))
}

fn stopped(nf: &Nf, stop_reason: StopReason) -> String {
    let violations = nf.handle.as_ref().map_or(0, |handle| handle.violations.load(Ordering::Relaxed));
    let last = nf.handle.as_ref().and_then(|handle| handle.last_violation());
    match stop_reason {
        StopReason::Stalled => format!("{} {}, and is stopped (manager.stall_ms)", nf.name, offence(stop_reason)),
        _ if last == Some(Violation::Hole) => format!("{} {} and is stopped", nf.name, Violation::Hole),
        _ => format!("{} forged {violations} descriptors or cursors and is stopped", nf.name),
    }
}

pub(super) fn offence(cause: StopReason) -> &'static str {
    match cause {
        StopReason::Stalled => "holds packets and returns none",
        _ => "forged descriptors or cursors",
    }
}
