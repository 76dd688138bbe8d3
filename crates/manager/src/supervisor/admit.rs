//! Admission of processes that claim to be NFs.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use rustix::process::Pid;
use rustix::thread::CpuSet;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::handshake::{self, Welcome};

use super::act::offence;
use super::nfs::{Event, Nf, Process, State, at_once};
use super::notice::NoticeKind;
use super::priorities::own_priority;
use super::{Supervisor, SupervisorError, token};
use crate::dataplane::Place;
use crate::nf::death::Cause;
use sluice_api::config::Mode;
use sluice_config::estimates::Of;
use sluice_dataplane::handle::NfHandle;
use sluice_host::affinity::{self, AffinityError};
use sluice_host::attach;
use sluice_host::process;

/// Time that an NF polls for packets before it sleeps, in nanoseconds.
const LINGER_NS: u32 = 3_000;

/// Whether an NF waits for a process.
fn may_come(nf: &Nf) -> Result<(), String> {
    if let Some((cause, until_ns)) = nf.life().kept_out() {
        let wait = until_ns.saturating_sub(monotonic_ns()) as f64 / 1e9;
        let service = nf.name.rsplit_once('.');
        let why = cause.map_or("ended again and again after a short time".into(), |cause| {
            format!("was stopped because it {}", offence(cause))
        });
        return Err(format!(
            "{} {why}; it is let in again in {wait:.1} s (to let another one in at once, `sluice nf remove {}` and `sluice nf add {}`)",
            nf.name,
            nf.name,
            service.map_or(&*nf.name, |(service, _)| service)
        ));
    }
    if nf.handle.is_some() || nf.held.connection.is_some() || !matches!(nf.life().state(), State::Starting | State::Expected) {
        return Err(format!("{} is {} already; an NF has one process", nf.name, nf.life().state()));
    }
    Ok(())
}

/// Moves a process of others to the core of its NF: it would have less there than was planned, were
/// it elsewhere.
///
/// # Errors
/// The cpuset of its cgroup, which is not the daemon's, lacks the core; or the process has ended.
fn move_to(peer: &attach::Peer, core: usize) -> Result<(), String> {
    let Some(pid) = peer.pid.filter(|_| core < CpuSet::MAX_CPU) else { return Ok(()) };
    match affinity::pin_process(pid, peer.pidfd.as_fd(), core) {
        Err(AffinityError::NoSuchCore { .. }) => {
            Err("the cpuset of its own cgroup lacks that core: give it the cores of NFs (for a pod, at the kubelet)".into())
        }
        Err(error @ (AffinityError::Ended | AffinityError::Unsettled)) => Err(error.to_string()),
        // Without the right to, the NF moves by itself.
        Ok(()) | Err(AffinityError::System(_)) => Ok(()),
    }
}

/// The decision about a caller that may be the NF it claims to be.
enum Admission {
    Now(u16),
    /// The zygote of this service may have forked it, and is yet to confirm that.
    Later(u16),
}

impl Supervisor {
    pub(super) fn greet(&mut self) {
        for (slo, event) in self.host.sockets.serve(monotonic_ns()) {
            match event {
                attach::AttachEvent::Hello(caller) if slo.is_none() && caller.hello.is_zygote => self.accept_zygote(caller),
                attach::AttachEvent::Hello(caller) => self.accept_nf(slo.as_deref(), caller),
                attach::AttachEvent::Dropped { uid, pid, why } => {
                    let pid = pid.map_or("?".into(), |p| p.as_raw_nonzero().to_string());
                    let line = || format!("a connection to the NF socket (process {pid}, user {uid}) was closed: {why}");
                    self.host.notices.print(NoticeKind::Closed(std::mem::discriminant(&why)), line);
                }
            }
        }
    }

    /// Answers a process that claims to be an NF, by the socket of an SLO or that of the daemon.
    pub(super) fn accept_nf(&mut self, slo: Option<&str>, caller: attach::Caller) {
        let why = match self.admit_caller(slo, &caller) {
            Ok(Admission::Now(number)) => {
                let welcomed = self.welcome(number, caller);
                self.host.sockets.answered(slo, welcomed.is_ok(), monotonic_ns());
                if let Err(error) = welcomed {
                    let service = self.nfs.get(&number).map_or(u16::MAX, |nf| nf.service);
                    self.feed(number, Event::Fails(Cause::Unstarted(error.to_string())));
                    self.host.notices.print(NoticeKind::Failed(service), || error.to_string());
                    self.lost(number);
                }
                return;
            }
            Ok(Admission::Later(service)) => match self.keep_early(service, caller) {
                Ok(()) => return,
                Err(caller) => return drop(caller.refuse("too many processes say that they are forked by this zygote")),
            },
            Err(why) => why,
        };
        let name = caller.hello.name.clone();
        let peer = caller.refuse(&why);
        self.host.sockets.answered(slo, false, monotonic_ns());
        match slo {
            // No process of a service's zygote comes by this socket.
            Some(slo) => {
                let line =
                    || format!("a process (user {}) that says that it is {name:?} of the SLO {slo} was refused: {why}", peer.uid);
                self.host.notices.print(NoticeKind::Refused, line);
            }
            None => self.was_refused(&name, peer),
        }
    }

    /// The NF that a caller names at the daemon's socket.
    fn named(&self, name: &str) -> Result<&Nf, String> {
        let by_name = self.nf_number(name).and_then(|number| self.nfs.get(&number));
        let of_service = || {
            let service = self.services.iter().flatten().find(|s| s.config.name == *name)?;
            service.instances.iter().filter_map(|n| self.nfs.get(n)).find(|nf| nf.is(State::Expected))
        };
        let found = by_name.or_else(of_service);
        let found = found
            .ok_or_else(|| format!("there is no NF and no free instance of a service named `{name}`; see `sluice nf list`"))?;
        match self.service_of(found) {
            Some(service) if service.config.attach && self.is_of_slo(&service.config.name) => Err(format!(
                "{} is an instance of an SLO: it attaches by the socket of that SLO alone, attach/SLO/nf.sock in the runtime directory",
                found.name
            )),
            _ => Ok(found),
        }
    }

    /// Which NF a caller is, if it may be the one that it claims to be; or why not.
    fn admit_caller(&mut self, slo: Option<&str>, caller: &attach::Caller) -> Result<Admission, String> {
        if self.turns.stopping {
            return Err("the manager is stopping".into());
        }
        let name = &caller.hello.name;
        let nf = match slo {
            Some(_) if caller.hello.is_zygote => return Err("NFs that attach have no zygote".into()),
            Some(slo) => self.named_of_slo(slo, name)?,
            None => self.named(name)?,
        };
        may_come(nf)?;
        let service = self.service_of(nf).ok_or("its service is gone")?;
        match (service.container.is_some(), self.in_container_of(&caller.peer)) {
            (false, None) if slo.is_some() => {
                if let Some(user) = &service.user {
                    caller.may_attach_as(Some(user.uid))?;
                }
                let moved = move_to(&caller.peer, nf.core);
                moved.map_err(|why| format!("{} belongs on core {}, and {why}", nf.name, nf.core))?;
            }
            (false, None) => {
                caller.may_attach_as(service.user.as_ref().map(|u| u.uid))?;
                match (nf.life().state(), &nf.process) {
                    (State::Starting, Some(process)) if !process.has_started(&caller.peer) => {
                        let pid = caller.peer.pid.map_or("?".into(), |p| p.as_raw_nonzero().to_string());
                        let started = process.number();
                        let (name, uid) = (nf.name.clone(), caller.peer.uid);
                        let line = || {
                            format!("process {pid} (user {uid}) said that it is {name}, which is process {started}: it was refused")
                        };
                        self.host.notices.print(NoticeKind::Impostor, line);
                        return Err(format!(
                            "{name} is started by the manager, as process {started}, and this is neither that one nor a child of it; a \
                             program that starts the NF has to wait for it"
                        ));
                    }
                    // A fork that its zygote has not reported yet, or a stranger.
                    (State::Starting, None) => {
                        let asked = service.zygote.as_ref().is_some_and(|zygote| zygote.is_asked_for(nf.number));
                        let why = || format!("{} is not started yet", nf.name);
                        return if asked { Ok(Admission::Later(nf.service)) } else { Err(why()) };
                    }
                    _ => {}
                }
            }
            // Any process in its container counts as the NF.
            (true, Some(number)) if number == nf.number => {}
            (_, Some(_)) => return Err(format!("a process in the container of another NF may not attach as {}", nf.name)),
            (true, None) => return Err(format!("{} runs in a container, and only a process in there may attach as it", nf.name)),
        }
        Ok(Admission::Now(nf.number))
    }

    /// Gives an NF its memory and admits it.
    fn welcome(&mut self, number: u16, caller: attach::Caller) -> Result<(), SupervisorError> {
        if self.is_shadow(number) {
            return self.welcome_shadow(number, caller);
        }
        let nf = self.nfs.get(&number).expect("the caller found it");
        let service = self.service_of(nf).expect("an NF has a service");
        let (comes, is_forked) = (service.config.attach, nf.held.pen.is_none());
        let (handle, place) = self.grant(number)?;
        let (welcome, learned) = (self.welcome_of(&handle, &place), Instant::now());
        // Before it learns its address: its filter keeps it from moving by itself.
        if let (false, Some(pid), Ok(pidfd)) = (comes, caller.peer.pid, caller.peer.pidfd.try_clone()) {
            self.confine(number, pid, pidfd, is_forked);
        }
        let core_memory = self.plane.page_memory(&place).expect("the place has a page").fd();
        let memory = self.plane.memory_of(&place).expect("it is still there");
        let fds = [memory.file().fd(), handle.region.memory.fd(), core_memory];
        let sent = caller.welcome(&welcome, fds);
        self.feed(number, Event::Granted);
        let nf = self.nfs.get_mut(&number).expect("it is still there");
        nf.learned.push(at_once(learned));
        nf.counted.service_times.get_mut().begin();
        nf.handle = Some(handle);
        nf.request.begin();
        nf.place = Some(place);
        match sent {
            Ok(attached) => self.was_let_in(number, attached),
            Err(_) => {
                // It left before its admission: its memory is taken back, and its end will be
                // noticed.
                nf.kill();
                if nf.process.is_none() {
                    self.lost(number);
                }
            }
        }
        Ok(())
    }

    /// Makes the place and the rings of an NF.
    fn grant(&mut self, number: u16) -> Result<(Arc<NfHandle>, Place), SupervisorError> {
        let nf = self.nfs.get(&number).expect("the caller found it");
        let service = self.service_of(nf).expect("an NF has a service");
        let (name, core, of) = (nf.name.clone(), nf.core, nf.service);
        let (poll, ring, tenant) = (service.config.mode == Mode::Poll, service.config.ring_slots(), service.config.tenant.clone());
        let priority = own_priority(&service.config, &self.config.sched, None);
        let wakeup = service.config.wakeup.and_then(|wakeup| wakeup.rules());
        // A cost measured before is known before the first packet; later measurements replace it.
        let program = service.exec.as_ref().and_then(|exec| Of::here(exec, &service.config.args).ok());
        let known = program.and_then(|of| self.host.estimates.find(&of)).map(|estimate| estimate.ns_per_packet.median);
        let place = self.plane.place(core, tenant)?;
        let handle = match self.plane.attach(number, &name, of, core, poll, ring, &place, priority, wakeup) {
            Ok(handle) => handle,
            Err(error) => {
                self.plane.vacate(&place);
                return Err(error.into());
            }
        };
        let _ = handle.waker.set(self.turns.waker.clone());
        if let Some(ns) = known {
            handle.load.service_ns.set(ns);
        }
        Ok((handle, place))
    }

    fn welcome_of(&self, handle: &NfHandle, place: &Place) -> Welcome {
        Welcome {
            geometry: self.plane.memory_of(place).expect("the place is of a tenant, which has memory").geometry(),
            region: handle.region.page.layout(),
            slots: place.page.slots(),
            slot: place.slot,
            hands_over: place.page.hands_over(),
            name: handle.name.clone(),
            core: handle.core as u32,
            poll: handle.poll,
            linger_ns: if self.config.sched.handover { LINGER_NS } else { 0 },
            clock_scale: self.plane.clock().scale_raw(),
            ports: self.port_names(),
            services: self.service_names(),
            chains: self.chain_names(),
        }
    }

    /// Completes the admission of an NF that knows its memory.
    pub(super) fn was_let_in(&mut self, number: u16, attached: attach::Attached) {
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let (pid, name, core) = (attached.peer.pid, nf.name.clone(), nf.core);
        let mut came = None;
        if nf.process.as_ref().is_none_or(|p| Some(p.pid) != pid) {
            // It attached by itself or through a program that started it: its own process counts,
            // and the wrapper must not outlive it.
            came = pid;
            if let Some(wrapper) = nf.process.take() {
                let data = epoll::EventData::new_u64(token::WRAPPER | u64::from(wrapper.number()));
                let _ = epoll::modify(&self.host.epoll, wrapper.pidfd.as_fd(), data, epoll::EventFlags::IN);
                nf.held.wrapper = Some(wrapper);
            }
            let data = epoll::EventData::new_u64(token::PROCESS | u64::from(number));
            let _ = epoll::add(&self.host.epoll, attached.peer.pidfd.as_fd(), data, epoll::EventFlags::IN);
            let pid = pid.unwrap_or(Pid::INIT);
            // A fork may attach before its zygote reports it.
            let child = process::is_child(attached.peer.pidfd.as_fd());
            nf.process = Some(Process { pid, pidfd: attached.peer.pidfd, child, theirs: false, container: None });
        }
        let data = epoll::EventData::new_u64(token::CONNECTION | u64::from(number));
        let _ = epoll::add(&self.host.epoll, attached.socket.as_fd(), data, epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
        nf.held.connection = Some(attached.socket);
        nf.held.has_said_ready = false;
        if let Some(pid) = pid {
            nf.counted.cpu.start(pid);
        }
        nf.counted.welcomed(monotonic_ns());
        let handle = nf.handle.clone();
        self.feed(number, Event::Admitted);
        if let Some(pid) = came {
            self.note(|r| r.started(&name, pid));
        }
        if let Some(handle) = &handle {
            self.controller.add(handle.clone());
        }
        let poll = handle.as_ref().is_some_and(|handle| handle.poll);
        if let Some(Err(error)) = pid.map(|pid| self.schedule(handle, pid, core, poll)) {
            // It has its memory already, which comes back only when its process has ended.
            warn!("{name} is stopped: {error}");
            return self.feed(number, Event::Troubled(Cause::Unstarted(error.to_string())));
        }
        self.govern();
    }

    /// Handles a message on an NF's connection, or its end.
    pub(super) fn hear(&mut self, number: u16) {
        let Some(connection) = self.nfs.get(&number).and_then(|nf| nf.held.connection.as_ref()) else { return };
        match handshake::receive(connection.as_fd()) {
            Ok((message, _)) if handshake::is_ready(&message) && self.says_first(number) => self.feed(number, Event::Ready),
            Err(handshake::HandshakeError::Socket(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)) => {}
            // An NF sends one message. More would keep this thread busy.
            Ok(_) | Err(_) => self.connection_closed(number),
        }
    }

    /// Whether this is the first time that a process reports to be ready.
    fn says_first(&mut self, number: u16) -> bool {
        self.nfs.get_mut(&number).is_some_and(|nf| !std::mem::replace(&mut nf.held.has_said_ready, true))
    }

    /// Makes an NF whose handler is made eligible for packets.
    pub(super) fn announce(&mut self, number: u16) {
        let Some(service) = self.nfs.get(&number).map(|nf| nf.service) else { return };
        if !self.stir_pool(service) {
            self.publish();
        }
    }

    pub(super) fn port_names(&self) -> Vec<String> {
        self.ports.iter().map(|port| port.as_ref().map_or(String::new(), |p| p.config.name.clone())).collect()
    }

    pub(super) fn service_names(&self) -> Vec<String> {
        self.services.iter().map(|service| service.as_ref().map_or(String::new(), |s| s.config.name.clone())).collect()
    }

    pub(super) fn chain_names(&self) -> Vec<String> {
        self.chains.iter().map(|chain| chain.as_ref().map_or(String::new(), |c| c.name.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_its_cgroup_keeps_off_a_core_is_refused() {
        let pid = rustix::process::getpid();
        let pidfd = process::pidfd_open(pid).unwrap();
        let peer = attach::Peer { pid: Some(pid), uid: 0, gid: 0, pidfd };
        // To the kernel, a core that is not there is one that a cpuset lacks.
        let why = move_to(&peer, CpuSet::MAX_CPU - 1).unwrap_err();
        assert!(why.contains("lacks that core"), "{why}");
    }

    #[test]
    fn what_has_the_number_of_a_process_that_has_ended_stays_where_it_is() {
        let start = || std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let (mut ended, mut other) = (start(), start());
        let pidfd = process::pidfd_open(Pid::from_child(&ended)).unwrap();
        ended.kill().unwrap();
        ended.wait().unwrap();
        let pid = Pid::from_child(&other);
        let cores = || rustix::thread::sched_getaffinity(Some(pid)).unwrap();
        let before = cores();
        let core = (0..CpuSet::MAX_CPU).rfind(|core| before.is_set(*core)).unwrap();
        let moved = move_to(&attach::Peer { pid: Some(pid), uid: 0, gid: 0, pidfd }, core);
        let after = cores();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!((moved, after), (Err("the process has ended".into()), before));
    }
}
