//! The ends of NFs' processes: how they are noticed, and how resources come back.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll;
use sluice_shm::clock::monotonic_ns;

use super::Supervisor;
use super::nfs::{Action, End, Ended, Event, Process, State};
use super::notice::NoticeKind;
use crate::controller::events::{self, Subject};
use crate::dataplane::Place;
use crate::nf::death::Cause;
use crate::nf::output::Whose;
use sluice_api::config::OnFailure;
use sluice_api::health::Death;
use sluice_api::model::EventKind;
use sluice_dataplane::chain::Chain;
use sluice_dataplane::handle::{NfHandle, StopReason};
use sluice_host::process::{self, Proc};

struct Remains {
    process: Option<Process>,
    handle: Option<Arc<NfHandle>>,
    place: Option<Place>,
}

/// Ends all waits for an NF on its core: no other one may wait for it or start it.
fn leave_core(handle: &NfHandle) {
    handle.alive.store(false, Ordering::Relaxed);
    handle.core_page.release(handle.slot);
}

impl Supervisor {
    pub(super) fn process_ended(&mut self, number: u16) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let Some(process) = &nf.process else { return };
        if process.child {
            match process::reap(process.pidfd.as_fd()) {
                Ok(None) => return,
                Ok(exit) => self.feed(number, Event::Exited(exit)),
                // One that was collected with its zygote's group has ended too.
                Err(_) => {}
            }
        }
        // Before what it has started is killed, which takes a moment.
        self.nfs.get(&number).and_then(|nf| nf.handle.as_deref()).into_iter().for_each(leave_core);
        if !self.is_held(number) {
            self.lost(number);
        }
    }

    /// Handles the end of a program that had started an NF, by itself or with its NF.
    pub(super) fn wrapper_ended(&mut self, number: u32) {
        let is_it = |process: &Process| process.number() == number;
        let wrapper = match self.host.leaving.iter().position(is_it) {
            Some(at) => &self.host.leaving[at],
            None => match self.nfs.values().filter_map(|nf| nf.held.wrapper.as_ref()).find(|p| is_it(p)) {
                Some(wrapper) => wrapper,
                None => return,
            },
        };
        if !matches!(process::reap(wrapper.pidfd.as_fd()), Ok(None)) {
            let (pid, _) = (wrapper.pid, epoll::delete(&self.host.epoll, wrapper.pidfd.as_fd()));
            let mut ended: Vec<Process> = self.host.leaving.extract_if(.., |p| is_it(p)).collect();
            ended.extend(self.nfs.values_mut().filter_map(|nf| nf.held.wrapper.take_if(|p| is_it(p))));
            self.note(|r| r.ended(pid));
            ended.into_iter().filter_map(|process| process.container).for_each(|life| self.clear_container(life));
        }
    }

    /// Handles a closed connection: the process is no NF any more, even if it runs.
    pub(super) fn connection_closed(&mut self, number: u16) {
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let Some(connection) = nf.held.connection.take() else { return };
        let _ = epoll::delete(&self.host.epoll, connection.as_fd());
        // The kernel also closes it when a process ends; then the way it ends decides.
        let is_ending = |process: &Process| Proc::default().stat(process.pid).is_ok_and(|stat| stat.is_ending());
        let is_ending = nf.process.as_ref().is_some_and(is_ending);
        // It still has the arena mapped: its frames come back only when its process has ended.
        self.feed(number, Event::Closed(is_ending));
    }

    /// Removes an NF without a process from the packet threads. Its next state is decided then.
    pub(super) fn lost(&mut self, number: u16) {
        let noticed_ns = monotonic_ns();
        let Some(remains) = self.take_apart(number) else { return };
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        if let (true, Some(foreign)) = (nf.is(State::Starting), &mut nf.foreign) {
            foreign.note_trouble(|| format!("{} ended before it was given packets; run its program by hand to see why", nf.name));
        }
        let service = nf.service;
        let memory = remains.place.as_ref().and_then(|place| self.plane.memory_of(place)).map(|memory| memory.holder.clone());
        let Some(ended) = self.ended(number, remains.handle.as_deref()) else { return };
        let stop_reason = ended.stop_reason;
        let mut remains = Some(remains);
        for action in self.nfs.on(number, Event::Ended(ended)) {
            match action {
                Action::ReportEnd(end) => self.report_end(number, &end, noticed_ns),
                Action::Reclaim => remains.take().into_iter().for_each(|remains| self.reclaim(number, remains, noticed_ns)),
                other => self.act(number, other),
            }
        }
        // Whatever is decided of its life: what it had is taken back.
        if let Some(remains) = remains {
            self.reclaim(number, remains, noticed_ns);
        }
        if let (StopReason::Violations, Some(memory)) = (stop_reason, memory) {
            self.after_violation(service, &memory);
        }
    }

    /// Takes what an NF had of its process, and ends all waits for it on its core.
    fn take_apart(&mut self, number: u16) -> Option<Remains> {
        let nf = self.nfs.get_mut(&number)?;
        let process = nf.process.take();
        if let Some(process) = &process {
            let _ = epoll::delete(&self.host.epoll, process.pidfd.as_fd());
        }
        if let Some(wrapper) = nf.held.wrapper.take() {
            wrapper.kill();
            self.host.leaving.push(wrapper);
        }
        if let Some(connection) = nf.held.connection.take() {
            let _ = epoll::delete(&self.host.epoll, connection.as_fd());
        }
        self.host.outputs.close(Whose::Nf(number));
        let handle = nf.handle.take();
        // First of all.
        handle.as_deref().into_iter().for_each(leave_core);
        let place = nf.place.take();
        nf.learned.clear();
        self.controller.remove(number);
        Some(Remains { process, handle, place })
    }

    /// What is known of an NF whose process is gone and which had this handle.
    fn ended(&self, number: u16, handle: Option<&NfHandle>) -> Option<Ended> {
        let nf = self.nfs.get(&number)?;
        let service = self.services.get(usize::from(nf.service))?.as_ref()?;
        let restarts = |chain: &&Arc<Chain>| chain.services.contains(&nf.service) && chain.on_failure == OnFailure::Restart;
        let violations = |handle: &NfHandle| (handle.violations.load(Ordering::Relaxed), handle.last_violation());
        Some(Ended {
            stop_reason: handle.map_or(StopReason::None, NfHandle::stop_reason),
            violations: handle.map_or((0, None), violations),
            lacked_memory: nf.held.pen.as_ref().is_some_and(|pen| pen.killed_for_memory() > 0),
            comes_again: service.pool.is_some() || self.chains.iter().flatten().any(|chain| restarts(&chain)),
            stall_ms: self.config.manager.stall_ms,
        })
    }

    fn report_end(&mut self, number: u16, end: &End, noticed_ns: u64) {
        let Some(nf) = self.nfs.get_mut(&number).filter(|_| !self.turns.stopping) else { return };
        let (cause, ran, next) = (&end.cause, end.ran.as_secs_f64(), end.next());
        self.host
            .notices
            .print(NoticeKind::Ended(nf.service), || format!("{} has ended after {ran:.3} s: {cause}; {next}", nf.name));
        if *cause != Cause::Renewed {
            let death = Death { time_ns: noticed_ns, unix_ms: events::unix_ms(), cause: cause.kind(), what: cause.to_string() };
            let text = format!("{cause}, after {ran:.3} s; {next}");
            self.controller.events().note_at(noticed_ns, EventKind::Death, Subject::Nf(&nf.name), text);
            nf.counted.last_death = Some(death);
        }
    }

    /// Takes back an NF's time slices, tables and frames.
    fn reclaim(&mut self, number: u16, remains: Remains, noticed_ns: u64) {
        let Remains { process, handle, place } = remains;
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let (service, is_foreign) = (nf.service, nf.foreign.is_some());
        if let Some(handle) = &handle {
            nf.counted.count_off(handle);
        }
        // Without a handle, it leaves its schedule.
        self.govern();
        if !is_foreign {
            self.unschedule(number);
        }
        if let Some(process) = process {
            self.note(|r| r.ended(process.pid));
            process.container.into_iter().for_each(|life| self.clear_container(life));
        }
        if handle.is_some() {
            // New tables first: it gets no more flows. Then its frames come back.
            if !self.publish_pool(service) {
                self.publish();
            }
            if is_foreign {
                self.unfeed(number);
            }
            match self.plane.detach(number) {
                Ok(_) => {
                    if let Some(nf) = self.nfs.get_mut(&number) {
                        nf.counted.reclaim_ns = Some(monotonic_ns().saturating_sub(noticed_ns));
                    }
                }
                Err(error) => warn!("{error}"),
            }
        }
        self.release(number);
        if let Some(place) = place {
            self.plane.vacate(&place);
        }
        if is_foreign {
            self.clear_namespace(number);
        }
    }

    pub(super) fn forget_nf(&mut self, number: u16) {
        let Some(nf) = self.nfs.remove(number) else { return };
        self.seen.past.nf(self.own_report(&nf, 0));
        if let Some(Some(service)) = self.services.get_mut(nf.service as usize) {
            service.instances.retain(|n| *n != number);
            match &mut service.pool {
                Some(pool) => pool.life.keep_number(number, nf.index()),
                None => self.nfs.rest([number]),
            }
        }
        for waiter in nf.removal.waiters {
            let _ = waiter.send(());
        }
    }
}
