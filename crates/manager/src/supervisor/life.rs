//! How NFs are started, met, lost and stopped. The states and their transitions are in [`crate::nf`].

use std::ffi::OsString;
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::process::{Pid, Signal};
use sluice_policy::restart;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::handshake::{self, Welcome};
use sluice_shm::page::{Control, Counter};

use super::priorities::own_priority;
use super::{
    ANSWERS, HELLO_PATIENCE, MOST_RESPITES, NfState, QUIET_TICK, RESPITE, RESPITES, STOP_PATIENCE, ServiceState, Supervisor,
    SupervisorError, TICK, token,
};
use crate::controller::events::{self, Subject};
use crate::dataplane::Fence;
use crate::nf::death::Cause;
use crate::nf::output::Whose;
use crate::nf::{State, attach};
use sluice_api::config::{Mode, OnFailure};
use sluice_api::health::Death;
use sluice_api::model::EventKind;
use sluice_config::estimates::Of;
use sluice_dataplane::handle::{NfHandle, Sentence};
use sluice_dataplane::succession::Succession;
use sluice_host::cgroup::pen::Pen;
use sluice_host::container::Life;
use sluice_host::filter::Filter;
use sluice_host::process::{self, Proc};
use sluice_host::silence;
use sluice_host::spawn;

/// A process of an NF.
pub(super) struct Process {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    /// We are its parent and must reap it.
    pub child: bool,
    /// Somebody else's, who alone ends it.
    pub theirs: bool,
    /// It is the runtime of a container, which leaves this behind.
    pub container: Option<Life>,
}

impl Process {
    pub(super) fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    /// Asks it to end, with what it started.
    pub(super) fn terminate(&self) {
        if self.theirs {
            return;
        }
        // Not collected yet, so the number is still its own.
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
    }

    /// Ends it at once, and what it started if it is ours: it leads a group of its own then.
    pub(super) fn kill(&self) {
        if self.theirs {
            return;
        }
        let pidfd = self.pidfd.as_fd();
        let _ = if self.child { process::kill_group(pidfd) } else { process::send_signal(pidfd, Signal::KILL) };
    }
}

/// Most processes whose CPU time one tick looks at.
const SAMPLES: usize = 64;

/// Memory that an NF may lock, in bytes: as much as the kernel allows any process by default.
const LOCKED: u64 = 8 << 20;

/// Nanoseconds that an NF goes on looking for packets before it sleeps.
const LINGER_NS: u32 = 3_000;

/// How NFs are started again, or let in again, that were stopped for cause.
pub(super) const AFTER_CAUSE: restart::Backoff =
    restart::Backoff { first_ns: 1_000_000_000, longest_ns: 60_000_000_000, good_run_ns: 600_000_000_000, give_up_after: None };

/// Lines of the log whose number NFs and strangers decide: a few in ten seconds of each kind ([`sluice_host::notice`]). Those about NFs are of
/// a kind for each service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A connection to the NF socket was closed.
    Closed(std::mem::Discriminant<attach::Dropped>),
    /// A process that had no right to a name was refused.
    Impostor,
    /// An NF of a service has ended.
    Ended(u16),
    /// It is stopped for cause.
    Stopped(u16),
    /// It has said no hello because the host is busy.
    Starved,
    /// It is stopped because it said no hello.
    Silent(u16),
    /// It could not be started, or let in.
    Failed(u16),
    /// The same of its zygote.
    Zygote(u16),
    /// A port is in another state.
    Port(u16),
}

/// How NFs that end are started again.
pub(super) const BACKOFF: restart::Backoff =
    restart::Backoff { first_ns: 10_000_000, longest_ns: 5_000_000_000, good_run_ns: 10_000_000_000, give_up_after: None };

/// What becomes of a caller that may be the NF that it says it is.
enum Admission {
    /// It is this one.
    Now(u16),
    /// It may have been forked by the zygote of this service, which is to say so.
    Later(u16),
}

impl Supervisor {
    /// Starts the process of an NF, or waits for one that comes by itself.
    pub(super) fn launch(&mut self, number: u16) {
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return };
        if service.config.is_foreign() {
            return self.launch_foreign(number);
        }
        if nf.on_trial {
            return self.launch_on_trial(number);
        }
        if let Some(template) = service.container.clone() {
            return self.launch_container(number, &template);
        }
        if service.pool.is_some() {
            return self.start_member(number);
        }
        self.launch_process(number);
    }

    /// Starts the process of an NF: from its zygote, or by its program.
    pub(super) fn launch_process(&mut self, number: u16) {
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return };
        if service.exec.is_none() {
            nf.state = State::Expected;
            nf.deadline = None;
            return;
        }
        if !self.fork_from_zygote(number) {
            self.spawn_alone(number);
        }
    }

    /// How a process of a service is started, under this name, with more variables.
    pub(super) fn spec_of(
        &self,
        service: &ServiceState,
        name: &str,
        exec: PathBuf,
        core: usize,
        more: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> spawn::SpawnSpec {
        let mut env: Vec<(OsString, OsString)> = service.config.env.iter().map(|(k, v)| (k.into(), v.into())).collect();
        env.push((handshake::ENV_SOCKET.into(), self.listener.path().into()));
        env.push((handshake::ENV_NF.into(), name.into()));
        env.extend(more);
        if let Some(path) = std::env::var_os("PATH") {
            env.push(("PATH".into(), path));
        }
        spawn::SpawnSpec {
            exec,
            args: service.config.args.iter().map(Into::into).collect(),
            env,
            user: service.user.clone(),
            // Where polling NFs have turns a new process would get no core; an NF moves there by
            // itself when it is let in.
            cores: if self.outside.is_governed(core) { self.cores_elsewhere(core) } else { [core].into() },
            stdio: spawn::Stdio::Null,
            name: name.into(),
            filter: match service.config.filter {
                true => Filter::Nf { storage: service.config.storage, zygote: service.config.zygote },
                false => Filter::None,
            },
            limits: spawn::Limits {
                unprivileged: service.user.as_ref().map_or_else(|| !rustix::process::geteuid().is_root(), |user| user.uid != 0),
                processes: self.most_processes(service),
                locked: Some(LOCKED),
                goes_first: true,
            },
            keeper: None,
            born_in: None,
            netns: None,
            cgroup: None,
            apart: false,
        }
    }

    /// Starts the process of an NF by executing its program.
    pub(super) fn spawn_alone(&mut self, number: u16) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return };
        let Some(exec) = service.exec.clone() else { return };
        let spec = self.spec_of(service, &nf.name, exec, nf.core, []);
        let service = nf.service;
        if let Err(error) = self.start_process(number, &spec, None) {
            self.ends_for(number, Cause::Unstarted(error.clone()));
            self.notices.print(Kind::Failed(service), || error);
            self.lost(number);
        }
    }

    /// Notes why an NF is about to be ended, or did not come, if nothing is noted yet.
    pub(super) fn ends_for(&mut self, number: u16, cause: Cause) {
        self.nfs.get_mut(&number).into_iter().for_each(|nf| _ = nf.ended_for.get_or_insert(cause.clone()));
    }

    /// Starts what an NF is started with: its program, or the runtime of its container. It is starting then; so it is if that fails,
    /// and lost next.
    pub(super) fn start_process(&mut self, number: u16, spec: &spawn::SpawnSpec, container: Option<Life>) -> Result<(), String> {
        let Some(nf) = self.nfs.get_mut(&number) else { return Ok(()) };
        nf.started_at = Instant::now();
        nf.spawned_ns = Some(monotonic_ns());
        (nf.respites, nf.used) = (0, None);
        nf.state = State::Starting;
        let core = nf.core;
        let mut spec = spec.clone();
        // In a pen of its own, and on its core, unless it begins elsewhere because somebody who
        // polls would keep it from starting there.
        let cores = spec.cores.clone();
        let service = self.nfs.get(&number).and_then(|nf| self.service_of(nf));
        let bounds = service.map(|service| self.bounds_on(&service.config, 1, core));
        let pen = bounds.and_then(|bounds| match &container {
            Some(_) => self.hold_container(&spec.name, bounds.processes),
            None => self.hold(&mut spec, bounds, core, &cores),
        });
        spec.stdio = self.outputs.pipe(Whose::Nf(number), &spec.name, spec.user.as_ref().map(|user| user.uid));
        let Some(nf) = self.nfs.get_mut(&number) else { return Ok(()) };
        match spawn::spawn(&spec) {
            Ok(spawned) => {
                let (name, pid) = (nf.name.clone(), spawned.pid);
                nf.pen = pen;
                let data = epoll::EventData::new_u64(token::PROCESS | u64::from(number));
                let _ = epoll::add(&self.epoll, spawned.pidfd.as_fd(), data, epoll::EventFlags::IN);
                nf.process = Some(Process { pid: spawned.pid, pidfd: spawned.pidfd, child: true, theirs: false, container });
                nf.deadline = Some(Instant::now() + HELLO_PATIENCE);
                self.note(|r| r.started(&name, pid));
                match self.nfs.get(&number).and_then(|nf| Some((nf.pen.as_ref()?, nf.process.as_ref()?.container.is_some()))) {
                    Some((_, true)) => self.gather_container(number),
                    Some((pen, false)) => self.gather(pen),
                    None => {}
                }
                Ok(())
            }
            Err(error) => {
                let said = format!("{}: {error}", nf.name);
                container.into_iter().for_each(|life| self.clear_container(life));
                Err(said)
            }
        }
    }

    /// Waits until all NFs that were spawned are ready, so that the first packet finds its chain complete.
    pub(super) fn await_hellos(&mut self, stop: &AtomicBool) -> Result<(), SupervisorError> {
        let mut told = Instant::now();
        // One that was stopped for cause has come; that it breaks the rules keeps nobody else from a start.
        let comes = |nf: &&NfState| nf.stops == 0;
        while self.nfs.values().filter(comes).any(|nf| matches!(nf.state, State::Starting | State::Restarting)) {
            self.turn(Duration::from_millis(5));
            if stop.load(Ordering::Relaxed) {
                return Err(SupervisorError::Interrupted);
            }
            if told.elapsed() >= HELLO_PATIENCE {
                told = Instant::now();
                for nf in self.nfs.values().filter(|nf| nf.state == State::Starting && nf.handle.is_some()) {
                    let so_far = nf.started_at.elapsed().as_secs();
                    info!("{} has made its handler for {so_far} s and is not ready; still waiting for it", nf.name);
                }
            }
            let trouble = |nf: &NfState| nf.foreign.as_ref().and_then(|foreign| foreign.trouble.clone());
            if let Some(trouble) = self.nfs.values().find_map(trouble) {
                return Err(SupervisorError::Invalid(trouble));
            }
            let has_ended = |nf: &&NfState| nf.restarts > 0 || matches!(nf.state, State::Failed | State::Restarting);
            if let Some(nf) = self.nfs.values().filter(comes).find(has_ended) {
                return Err(SupervisorError::Invalid(format!(
                    "{} ended before it was ready; start it by hand to see why, and look at its arguments in the configuration",
                    nf.name
                )));
            }
        }
        Ok(())
    }

    /// Answers those who want to be NFs.
    pub(super) fn greet(&mut self) {
        let events = match self.listener.serve(monotonic_ns()) {
            Ok(events) => events,
            Err(error) => {
                error!("the NF socket is broken: {error}");
                return;
            }
        };
        for event in events {
            match event {
                attach::Event::Hello(caller) if caller.hello.is_zygote => self.greet_zygote(caller),
                attach::Event::Hello(caller) => self.greet_nf(caller),
                attach::Event::Dropped { uid, pid, why } => {
                    let pid = pid.map_or("?".into(), |p| p.as_raw_nonzero().to_string());
                    let line = || format!("a connection to the NF socket (process {pid}, user {uid}) was closed: {why}");
                    self.notices.print(Kind::Closed(std::mem::discriminant(&why)), line);
                }
            }
        }
    }

    /// Answers a process that says that it is an NF.
    pub(super) fn greet_nf(&mut self, caller: attach::Caller) {
        let why = match self.admit_caller(&caller) {
            Ok(Admission::Now(number)) => {
                if let Err(error) = self.welcome(number, caller) {
                    let service = self.nfs.get(&number).map_or(u16::MAX, |nf| nf.service);
                    self.ends_for(number, Cause::Unstarted(error.to_string()));
                    self.notices.print(Kind::Failed(service), || error.to_string());
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
        self.was_refused(&name, peer);
    }

    /// Whether a caller may be the NF that it says it is: which one, or why not.
    fn admit_caller(&mut self, caller: &attach::Caller) -> Result<Admission, String> {
        if self.stopping {
            return Err("the manager is stopping".into());
        }
        let name = &caller.hello.name;
        let by_name = self.nf_number(name).and_then(|number| self.nfs.get(&number));
        let of_service = || {
            let service = self.services.iter().flatten().find(|s| s.config.name == *name)?;
            service.instances.iter().filter_map(|n| self.nfs.get(n)).find(|nf| nf.state == State::Expected)
        };
        let Some(nf) = by_name.or_else(of_service) else {
            return Err(format!("there is no NF and no free instance of a service named `{name}`; see `sluice nf list`"));
        };
        if let (State::Failed, Some(cause), Some(until)) = (nf.state, nf.stopped_for, nf.deadline) {
            let (wait, service) = (until.saturating_duration_since(Instant::now()).as_secs_f64(), nf.name.rsplit_once('.'));
            return Err(format!(
                "{} was stopped because it {}; it is let in again in {wait:.1} s (to let another one in at once, `sluice nf remove {}` and \
                 `sluice nf add {}`)",
                nf.name,
                told(cause),
                nf.name,
                service.map_or(&*nf.name, |(service, _)| service)
            ));
        }
        if nf.handle.is_some() || !matches!(nf.state, State::Starting | State::Expected) {
            return Err(format!("{} is {} already; an NF has one process", nf.name, nf.state));
        }
        let service = self.service_of(nf).ok_or("its service is gone")?;
        match (service.container.is_some(), self.in_container_of(&caller.peer)) {
            (false, None) => {
                caller.may_attach_as(service.user.as_ref().map(|u| u.uid))?;
                match (nf.state, &nf.process) {
                    (State::Starting, Some(process)) if !is_of(&caller.peer, process) => {
                        let pid = caller.peer.pid.map_or("?".into(), |p| p.as_raw_nonzero().to_string());
                        let started = process.number();
                        let (name, uid) = (nf.name.clone(), caller.peer.uid);
                        let line = || {
                            format!("process {pid} (user {uid}) said that it is {name}, which is process {started}: it was refused")
                        };
                        self.notices.print(Kind::Impostor, line);
                        return Err(format!(
                            "{name} is started by the manager, as process {started}, and this is neither that one nor a child of it; a \
                             program that starts the NF has to wait for it"
                        ));
                    }
                    // Forked by now, which its zygote has not said yet, or somebody else.
                    (State::Starting, None) => {
                        let asked = service.zygote.as_ref().is_some_and(|zygote| zygote.is_asked_for(nf.number));
                        let why = || format!("{} is not started yet", nf.name);
                        return if asked { Ok(Admission::Later(nf.service)) } else { Err(why()) };
                    }
                    _ => {}
                }
            }
            // Whoever it is in there, it is nobody else.
            (true, Some(number)) if number == nf.number => {}
            (_, Some(_)) => return Err(format!("a process in the container of another NF may not attach as {}", nf.name)),
            (true, None) => return Err(format!("{} runs in a container, and only a process in there may attach as it", nf.name)),
        }
        Ok(Admission::Now(nf.number))
    }

    /// Gives an NF its memory and takes it in.
    fn welcome(&mut self, number: u16, caller: attach::Caller) -> Result<(), SupervisorError> {
        let nf = self.nfs.get(&number).expect("the caller found it");
        let service = self.service_of(nf).expect("an NF has a service");
        let (name, core, service_number) = (nf.name.clone(), nf.core, nf.service);
        let (poll, ring, tenant) = (service.config.mode == Mode::Poll, service.config.ring_slots(), service.config.tenant.clone());
        let priority = own_priority(&service.config, &self.config.sched);
        let wakeup = service.config.wakeup.and_then(|wakeup| wakeup.rules());
        let (is_attached, is_forked) = (service.config.attach, nf.pen.is_none());
        // A fork has had its handler made by a zygote of its service, whichever that was.
        let now = Instant::now();
        let told = (if service.config.zygote { service.added } else { now }, now);
        // Known before its first packet, if it was measured; what is measured in use takes its place.
        let of = service.exec.as_ref().and_then(|exec| Of::here(exec, &service.config.args).ok());
        let known = of.and_then(|of| self.estimates.find(&of)).map(|estimate| estimate.ns_per_packet.median);
        let place = self.plane.place(core, tenant)?;
        let handle = match self.plane.attach(number, &name, service_number, core, poll, ring, &place, priority, wakeup) {
            Ok(handle) => handle,
            Err(error) => {
                self.plane.vacate(&place);
                return Err(error.into());
            }
        };
        let _ = handle.bell.set(self.bell.clone());
        if let Some(ns) = known {
            handle.load.service_ns.set(ns);
        }
        let geometry = self.plane.memory_of(&place).expect("the place is of a tenant, which has memory").geometry();
        let welcome = Welcome {
            geometry,
            region: handle.region.page.layout(),
            slots: place.page.slots(),
            slot: place.slot,
            name,
            core: core as u32,
            poll,
            linger_ns: if self.config.sched.handover { LINGER_NS } else { 0 },
            clock_scale: self.plane.clock().scale_raw(),
            ports: self.port_names(),
            services: self.service_names(),
            chains: self.chain_names(),
        };
        // Before it is told where it is: its filter lets it go nowhere by itself.
        if let (false, Some(pid), Ok(pidfd)) = (is_attached, caller.peer.pid, caller.peer.pidfd.try_clone()) {
            self.confine(number, pid, pidfd, is_forked);
        }
        let core_memory = self.plane.page_memory(&place).expect("the place has a page").fd();
        let memory = self.plane.memory_of(&place).expect("it is still there");
        let fds = [memory.file().fd(), handle.region.memory.fd(), core_memory];
        let sent = caller.welcome(&welcome, fds);
        let nf = self.nfs.get_mut(&number).expect("it is still there");
        nf.told = Some(told);
        nf.service_times.get_mut().begin();
        nf.handle = Some(handle);
        nf.place = Some(place);
        let attached = match sent {
            Ok(attached) => attached,
            Err(_) => {
                // It left before it was let in: what it was given is taken back, and its process will be noticed to have ended.
                kill(nf);
                if nf.process.is_none() {
                    self.lost(number);
                }
                return Ok(());
            }
        };
        let pid = attached.peer.pid;
        let (mut came, name) = (None, nf.name.clone());
        if nf.process.as_ref().is_none_or(|p| Some(p.pid) != pid) {
            // It came by itself, or through a program that started it: its own process counts, and the other must not outlive it.
            came = pid;
            if let Some(wrapper) = nf.process.take() {
                let data = epoll::EventData::new_u64(token::WRAPPER | u64::from(wrapper.number()));
                let _ = epoll::modify(&self.epoll, wrapper.pidfd.as_fd(), data, epoll::EventFlags::IN);
                nf.wrapper = Some(wrapper);
            }
            let data = epoll::EventData::new_u64(token::PROCESS | u64::from(number));
            let _ = epoll::add(&self.epoll, attached.peer.pidfd.as_fd(), data, epoll::EventFlags::IN);
            let pid = pid.unwrap_or(Pid::INIT);
            // One that was forked may come before its zygote has told of it.
            let child = process::is_child(attached.peer.pidfd.as_fd());
            nf.process = Some(Process { pid, pidfd: attached.peer.pidfd, child, theirs: false, container: None });
        }
        let data = epoll::EventData::new_u64(token::CONNECTION | u64::from(number));
        let _ = epoll::add(&self.epoll, attached.socket.as_fd(), data, epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
        nf.connection = Some(attached.socket);
        nf.has_said_ready = false;
        if let Some(pid) = pid {
            nf.cpu.start(pid);
        }
        nf.welcomed_ns = nf.spawned_ns.map(|at| monotonic_ns().saturating_sub(at));
        nf.state = State::Starting;
        (nf.deadline, nf.stopped_for) = (None, None);
        nf.started_at = Instant::now();
        let handle = nf.handle.clone();
        if let Some(pid) = came {
            self.note(|r| r.started(&name, pid));
        }
        if let Some(handle) = &handle {
            self.controller.add(handle.clone());
        }
        if let Some(Err(error)) = pid.map(|pid| self.schedule(handle, pid, core, poll)) {
            // It has its memory already: what it was given comes back when its process has ended, and not before.
            warn!("{name} is stopped: {error}");
            self.ends_for(number, Cause::Unstarted(error.to_string()));
            self.nfs.get(&number).into_iter().for_each(kill);
            return Ok(());
        }
        self.govern();
        Ok(())
    }

    /// An NF has said something on its connection, or closed it.
    pub(super) fn hear(&mut self, number: u16) {
        let Some(connection) = self.nfs.get(&number).and_then(|nf| nf.connection.as_ref()) else { return };
        match handshake::receive(connection.as_fd()) {
            Ok((message, _)) if handshake::is_ready(&message) && self.says_first(number) => self.became_ready(number),
            Err(handshake::HandshakeError::Socket(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)) => {}
            // An NF says nothing else, and that once. One that goes on would keep this thread busy.
            Ok(_) | Err(_) => self.connection_closed(number),
        }
    }

    /// Whether a process has not said before that it is ready.
    fn says_first(&mut self, number: u16) -> bool {
        self.nfs.get_mut(&number).is_some_and(|nf| !std::mem::replace(&mut nf.has_said_ready, true))
    }

    /// The handler of an NF is made: packets may be given to it.
    fn became_ready(&mut self, number: u16) {
        let Some(nf) = self.nfs.get_mut(&number).filter(|nf| nf.state == State::Starting && nf.handle.is_some()) else { return };
        nf.state = State::Running;
        let service = nf.service;
        if !self.stir_pool(service) {
            self.publish();
        }
    }

    /// Names of the ports, by number.
    pub(super) fn port_names(&self) -> Vec<String> {
        self.ports.iter().map(|port| port.as_ref().map_or(String::new(), |p| p.config.name.clone())).collect()
    }

    /// Names of the services, by number.
    pub(super) fn service_names(&self) -> Vec<String> {
        self.services.iter().map(|service| service.as_ref().map_or(String::new(), |s| s.config.name.clone())).collect()
    }

    /// Names of the chains, by number.
    pub(super) fn chain_names(&self) -> Vec<String> {
        self.chains.iter().map(|chain| chain.as_ref().map_or(String::new(), |c| c.name.clone())).collect()
    }

    /// The process of an NF has ended.
    pub(super) fn process_ended(&mut self, number: u16) {
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let Some(process) = &nf.process else { return };
        if process.child {
            match process::reap(process.pidfd.as_fd()) {
                Ok(None) => return,
                Ok(exit) => nf.exit = exit,
                // One that was collected with the group of its zygote has ended too.
                Err(_) => {}
            }
        }
        if !self.is_held(number) {
            self.lost(number);
        }
    }

    /// A program that had started an NF has ended, by itself or with its NF.
    pub(super) fn wrapper_ended(&mut self, number: u32) {
        let is_it = |process: &Process| process.number() == number;
        let wrapper = match self.leaving.iter().position(is_it) {
            Some(at) => &self.leaving[at],
            None => match self.nfs.values().filter_map(|nf| nf.wrapper.as_ref()).find(|p| is_it(p)) {
                Some(wrapper) => wrapper,
                None => return,
            },
        };
        if !matches!(process::reap(wrapper.pidfd.as_fd()), Ok(None)) {
            let (pid, _) = (wrapper.pid, epoll::delete(&self.epoll, wrapper.pidfd.as_fd()));
            let mut ended: Vec<Process> = self.leaving.extract_if(.., |p| is_it(p)).collect();
            ended.extend(self.nfs.values_mut().filter_map(|nf| nf.wrapper.take_if(|p| is_it(p))));
            self.note(|r| r.ended(pid));
            ended.into_iter().filter_map(|process| process.container).for_each(|life| self.clear_container(life));
        }
    }

    /// The socket of an NF was closed: whether it still runs or not, it is no NF any more.
    pub(super) fn connection_closed(&mut self, number: u16) {
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        if let Some(connection) = nf.connection.take() {
            let _ = epoll::delete(&self.epoll, connection.as_fd());
            // The kernel closes it when a process ends, too, and then how that ends is decided.
            let is_ending = |process: &Process| Proc::default().stat(process.pid).is_ok_and(|stat| stat.is_ending());
            if nf.state != State::Stopping && nf.process.as_ref().is_some_and(|process| !is_ending(process)) {
                nf.ended_for.get_or_insert(Cause::Closed);
            }
            // It still has the arena mapped: its frames come back when its process has ended, and not before.
            kill(nf);
        }
    }

    /// Takes an NF that has no process any more out of the packet threads, and decides what becomes of it.
    pub(super) fn lost(&mut self, number: u16) {
        self.trial_ended(number);
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let was = nf.state;
        let starts_anew = nf.starts_anew();
        nf.renewed = false;
        let noticed_ns = monotonic_ns();
        let (mut ended, mut container) = (None, None);
        let (exit, ended_for) = (nf.exit.take(), nf.ended_for.take());
        if let Some(process) = nf.process.take() {
            let _ = epoll::delete(&self.epoll, process.pidfd.as_fd());
            ended = Some(process.pid);
            container = process.container;
        }
        if let Some(wrapper) = nf.wrapper.take() {
            wrapper.kill();
            self.leaving.push(wrapper);
        }
        if let Some(connection) = nf.connection.take() {
            let _ = epoll::delete(&self.epoll, connection.as_fd());
        }
        self.outputs.close(Whose::Nf(number));
        let handle = nf.handle.take();
        let place = nf.place.take();
        let memory = place.as_ref().and_then(|place| self.plane.memory_of(place)).map(|memory| memory.holder.clone());
        if let Some(handle) = &handle {
            // First of all: nobody on its core is to wait for it, or to start it.
            handle.alive.store(false, Ordering::Relaxed);
            handle.core_page.release(handle.slot);
        }
        self.controller.remove(number);
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return };
        let (service_number, attach) = (nf.service, service.config.attach);
        let pooled = service.pool.is_some();
        let sentence = handle.as_ref().map_or(Sentence::None, |h| h.sentence());
        let spent = sentence == Sentence::Spent;
        let for_cause = matches!(sentence, Sentence::Violations | Sentence::Stalled);
        if for_cause {
            nf.stops += 1;
            nf.stopped_for = Some(sentence);
        }
        let ended_for = match sentence {
            Sentence::Violations => Some(Cause::Violations {
                times: handle.as_ref().map_or(0, |handle| handle.violations.load(Ordering::Relaxed)),
                last: handle.as_ref().and_then(|handle| handle.last_violation()),
            }),
            Sentence::Stalled => Some(Cause::Stalled(self.config.manager.stall_ms)),
            _ if starts_anew => Some(Cause::Renewed),
            _ => ended_for,
        };
        let cause = Cause::of(exit, ended_for, nf.pen.as_ref().is_some_and(|pen| pen.killed_for_memory() > 0));
        let restart = pooled
            || self.chains.iter().flatten().any(|c| c.services.contains(&service_number) && c.on_failure == OnFailure::Restart);
        let ran_for = nf.started_at.elapsed();
        let renewed = starts_anew && !attach;
        let ran_ns = restart::run_ns(handle.is_some(), ran_for.as_nanos() as u64);
        let (mut at_once, mut pause) = (false, None);
        nf.state = match was {
            State::Stopping => State::Gone,
            _ if nf.draining || nf.on_trial && !renewed || nf.leaves => State::Gone,
            _ if attach && !for_cause => State::Expected,
            // It is to have its tenant's fresh memory.
            _ if renewed => State::Restarting,
            _ if !attach && !restart => State::Failed,
            // Its end was asked for.
            _ if spent => State::Restarting,
            _ => {
                let decision = match sentence {
                    // It has stood still for `stall_ms` already.
                    Sentence::Stalled if !attach => AFTER_CAUSE.after_failure(&mut nf.offences, ran_ns),
                    _ if for_cause => AFTER_CAUSE.after_offence(&mut nf.offences, ran_ns),
                    _ => BACKOFF.after_failure(&mut nf.streak, ran_ns),
                };
                match decision {
                    restart::Decision::StartAfter(pause_ns) => {
                        pause = Some(Duration::from_nanos(pause_ns));
                        let until = Instant::now() + Duration::from_nanos(pause_ns);
                        // What a foreign program leaves behind is still being cleared.
                        at_once = pause_ns == 0 && nf.foreign.is_none();
                        nf.deadline = Some(until);
                        self.due = Some(self.due.map_or(until, |due| due.min(until)));
                        if attach { State::Failed } else { State::Restarting }
                    }
                    restart::Decision::GiveUp => State::Failed,
                }
            }
        };
        if matches!(nf.state, State::Expected | State::Gone) || nf.state == State::Failed && !attach {
            nf.deadline = None;
        }
        let is_foreign = nf.foreign.is_some();
        if let (State::Starting, Some(foreign)) = (was, &mut nf.foreign) {
            let at_once = || format!("{} ended before it was given packets; run its program by hand to see why", nf.name);
            foreign.trouble.get_or_insert_with(at_once);
        }
        if nf.state != State::Gone && !self.stopping && !spent {
            let next = what_next(nf.state, pause);
            let line = || format!("{} has ended after {:.3} s: {cause}; {next}", nf.name, ran_for.as_secs_f64());
            self.notices.print(Kind::Ended(service_number), line);
            if cause != Cause::Renewed {
                let death = Death { time_ns: noticed_ns, unix_ms: events::unix_ms(), cause: cause.kind(), what: cause.to_string() };
                let text = format!("{cause}, after {:.3} s; {next}", ran_for.as_secs_f64());
                self.controller.events().note_at(noticed_ns, EventKind::Death, Subject::Nf(&nf.name), text);
                nf.last_death = Some(death);
            }
        }
        if let Some(handle) = &handle {
            nf.count_off(handle);
        }
        let gone = nf.state == State::Gone;
        // It has no handle any more, so it leaves its schedule.
        self.govern();
        if !is_foreign {
            self.unschedule(number);
        }
        if let Some(pid) = ended {
            self.note(|r| r.ended(pid));
        }
        container.into_iter().for_each(|life| self.clear_container(life));
        if handle.is_some() {
            // New tables first: no flow is sent to it any more. Then its frames come back.
            if pooled {
                self.publish_pool(service_number);
            } else {
                self.publish();
            }
            if is_foreign {
                self.unfeed(number);
            }
            match self.plane.detach(number) {
                Ok(_) => {
                    if let Some(nf) = self.nfs.get_mut(&number) {
                        nf.reclaim_ns = Some(monotonic_ns().saturating_sub(noticed_ns));
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
            self.clear_room(number);
        }
        if gone {
            self.bury(number);
        } else if (spent || renewed || at_once) && !self.stopping {
            if at_once && let Some(nf) = self.nfs.get_mut(&number) {
                nf.deadline = None;
                nf.restarts += 1;
                let text = format!("started again at once; restarts so far: {}", nf.restarts);
                self.controller.events().note(EventKind::Restart, Subject::Nf(&nf.name), text);
            }
            // A start that fails comes back here, and is the second failure then.
            self.launch(number);
        }
        if let (Sentence::Violations, Some(memory)) = (sentence, memory) {
            self.after_violation(service_number, &memory);
        }
    }

    /// Forgets an NF that was removed.
    fn bury(&mut self, number: u16) {
        let Some(nf) = self.nfs.remove(&number) else { return };
        self.past.nf(self.own_report(&nf, 0));
        // A service that was added again may have given the name to another one already.
        if self.names.get(&nf.name) == Some(&number) {
            self.names.remove(&nf.name);
        }
        if let Some(Some(service)) = self.services.get_mut(nf.service as usize) {
            service.instances.retain(|n| *n != number);
            let index = nf.name.rsplit('.').next().and_then(|index| index.parse().ok());
            if let (Some(pool), Some(index)) = (&mut service.pool, index) {
                pool.keep_number(number, index);
            } else {
                self.resting.push(number);
            }
        }
        for waiter in nf.waiters {
            let _ = waiter.send(());
        }
    }

    /// Has the other instances of a service follow one that goes: they get its flows, unless these are given by a pool.
    fn followed(&self, number: u16) -> Vec<Arc<Succession>> {
        let service = self.nfs.get(&number).and_then(|nf| self.services.get(usize::from(nf.service))?.as_ref());
        let others = service.filter(|service| service.pool.is_none()).map_or(&[][..], |service| &service.instances);
        let runs = |nf: &&u16| self.nfs.get(*nf).is_some_and(|nf| nf.state == State::Running && !nf.draining);
        others.iter().filter(runs).filter_map(|other| self.follow(*other, [&number].into_iter())).collect()
    }

    /// Begins to remove an NF: no new packets, then, when those on their way have passed, the word to stop.
    pub(super) fn retire(&mut self, number: u16) {
        let drain = Duration::from_millis(self.config.manager.drain_ms);
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        match nf.state {
            State::Running => {
                nf.draining = true;
                nf.deadline = Some(Instant::now() + drain);
                let service = nf.service;
                let successions = self.followed(number);
                if !self.publish_pool(service) {
                    self.publish();
                }
                self.let_follow(&successions);
                let fence = self.plane.fence();
                if let Some(nf) = self.nfs.get_mut(&number) {
                    nf.fence = Some(fence);
                }
            }
            State::Starting => {
                nf.state = State::Stopping;
                kill(nf);
                let has_none = nf.process.as_ref().is_none_or(|process| process.theirs);
                match &mut nf.foreign {
                    // Its room is built, so no thread comes any more that would notice. One that builds it does.
                    Some(foreign) => foreign.is_leaving = has_none && foreign.has_room(),
                    // It was to be forked. If it is forked after all, its zygote says so or it says hello, and is ended then.
                    None if nf.process.is_none() => self.lost(number),
                    None => {}
                }
            }
            State::Stopping => {}
            // Its former room may still be being cleared; the thread that does it needs nobody.
            _ => {
                nf.state = State::Gone;
                self.bury(number);
            }
        }
    }

    /// Tells an NF to stop.
    fn tell_to_stop(nf: &mut NfState) {
        nf.state = State::Stopping;
        (nf.draining, nf.fence) = (false, None);
        nf.deadline = Some(Instant::now() + STOP_PATIENCE);
        if let Some(handle) = &nf.handle {
            handle.wants_core.store(true, Ordering::Relaxed);
        }
        if let Some(foreign) = &mut nf.foreign {
            match &nf.process {
                Some(process) if !process.theirs => process.terminate(),
                _ => foreign.is_leaving = true,
            }
        } else if let Some(handle) = &nf.handle {
            handle.region.page.control(Control::Stop).store(1, Ordering::Release);
            // Whatever its core's page says, and without a word there that it has the core.
            handle.rouse(1);
        } else {
            kill(nf);
        }
    }

    /// Ends NFs that packet threads have condemned, and members of pools that had the one flow that they may have.
    pub(super) fn end_condemned(&mut self) {
        let stall_ms = self.config.manager.stall_ms;
        for nf in self.nfs.values_mut() {
            let (State::Running | State::Starting, Some(handle)) = (nf.state, nf.handle.clone()) else { continue };
            let sentence = handle.sentence();
            // One that is dying already looks as if it waited for its core.
            let may_be_spared = sentence == Sentence::Stalled && nf.ended_for.is_none();
            if sentence == Sentence::None || may_be_spared && is_spared(nf, &handle) {
                continue;
            }
            if sentence == Sentence::Stalled {
                nf.ended_for.get_or_insert(Cause::Stalled(stall_ms));
            }
            // Without violations it was stopped for something else, which was told.
            let is_told = sentence == Sentence::Violations && handle.violations.load(Ordering::Relaxed) == 0;
            if sentence != Sentence::Spent && !is_told {
                let violations = handle.violations.load(Ordering::Relaxed);
                self.notices.print(Kind::Stopped(nf.service), || match sentence {
                    Sentence::Stalled => format!("{} {}, and is stopped (manager.stall_ms)", nf.name, told(sentence)),
                    _ => format!("{} forged {violations} descriptors or cursors and is stopped", nf.name),
                });
            }
            kill(nf);
            if nf.process.as_ref().is_none_or(|process| process.theirs)
                && let Some(foreign) = &mut nf.foreign
            {
                // There is no process of ours whose end would be noticed.
                foreign.is_leaving = true;
            }
        }
    }

    /// How long a wait for events may take at most: until the next tick, which comes early where the pause of an NF ends before.
    pub(super) fn until_due(&self, now: Instant) -> Duration {
        // Not at any time: a tick looks at every NF.
        let soonest = self.ticked + ANSWERS;
        let due = self.due.map_or(Duration::MAX, |due| due.max(soonest).saturating_duration_since(now));
        let tick = if self.is_quiet { QUIET_TICK } else { TICK };
        due.min(tick.saturating_sub(now.duration_since(self.ticked)))
    }

    /// Timers, sentences, measurements.
    pub(super) fn tick(&mut self, now: Instant) {
        self.sample_cpu(now);
        self.note_removed();
        self.tell_of_lacking_paths();
        self.free_numbers();
        self.govern_late();
        self.tick_zygotes(now);
        self.sweep_zygotes();
        self.see_holes();
        self.size_pools(now);
        self.see_restored();
        self.tend_promises();
        self.drop_former_memory();
        self.see_ports(now);
        self.see_wires(now);
        self.keep_runtime_dir(now);
        self.end_condemned();
        self.watch_health(now);
        self.notices.print_rest(now);
        let (mut starting, mut settled, mut late, mut ready) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for nf in self.nfs.values_mut() {
            if let (State::Starting, Some(handle), None) = (nf.state, &nf.handle, &nf.foreign)
                // Acquire: goes with the library's word that its handler is made. One that says it there alone is heard a little later.
                && handle.region.page.counter(Counter::Ready).load(Ordering::Acquire) > 0
            {
                ready.push(nf.number);
            }
            if nf.state == State::Running && nf.draining {
                // In this order: what a thread was about to send it is counted when the thread has passed.
                let passed = nf.fence.as_mut().is_none_or(Fence::is_passed);
                let empty = nf.handle.as_ref().is_none_or(|h| {
                    let (posted, returned) = h.posted_returned();
                    h.in_flight.load(Ordering::Relaxed) == 0 && posted <= returned
                });
                if passed && empty || nf.deadline.is_some_and(|d| now >= d) {
                    Self::tell_to_stop(nf);
                }
                continue;
            }
            if nf.deadline.is_some_and(|d| now >= d) {
                nf.deadline = None;
                match nf.state {
                    State::Restarting => {
                        nf.restarts += 1;
                        let text = format!("started again after a pause; restarts so far: {}", nf.restarts);
                        self.controller.events().note(EventKind::Restart, Subject::Nf(&nf.name), text);
                        starting.push(nf.number);
                    }
                    State::Starting if nf.foreign.is_some() => settled.push(nf.number),
                    State::Starting if nf.process.is_none() => late.push(nf.number),
                    State::Starting
                        if nf.respites < RESPITES
                            && nf
                                .process
                                .as_ref()
                                .is_some_and(|p| silence::is_starved(&Proc::default(), p.pid, HELLO_PATIENCE)) =>
                    {
                        nf.respites += 1;
                        nf.deadline = Some(now + HELLO_PATIENCE);
                        self.notices.print(Kind::Starved, || {
                            let waited = HELLO_PATIENCE.as_secs() * u64::from(nf.respites);
                            format!("{} has hardly run in {waited} s, because core {} is busy, and is waited for", nf.name, nf.core)
                        });
                    }
                    State::Starting => {
                        let line = || format!("{} said no hello within {} s and is stopped", nf.name, HELLO_PATIENCE.as_secs());
                        self.notices.print(Kind::Silent(nf.service), line);
                        nf.ended_for.get_or_insert(Cause::Silent(HELLO_PATIENCE.as_secs() * u64::from(nf.respites + 1)));
                        kill(nf);
                    }
                    State::Stopping => kill(nf),
                    // It had come by itself, and was stopped for cause.
                    State::Failed => nf.state = State::Expected,
                    _ => {}
                }
            }
        }
        let pauses = |nf: &NfState| nf.deadline.filter(|_| matches!(nf.state, State::Restarting | State::Failed));
        self.due = self.nfs.values().filter_map(pauses).min();
        if !self.stopping {
            starting.into_iter().for_each(|number| self.launch(number));
        }
        ready.into_iter().for_each(|number| self.became_ready(number));
        settled.into_iter().for_each(|number| self.settle(number));
        late.into_iter().for_each(|number| self.fork_is_late(number));
        self.let_leave();
        self.note_quiet();
    }

    /// Looks whether anything moves, or is under way: if not, the next tick can come later. Whatever happens makes it come as ever.
    fn note_quiet(&mut self) {
        let counters = self.ports.iter().flatten().flat_map(|port| &port.counters);
        let moved = counters.fold(0u64, |sum, queue| sum.wrapping_add(queue.rx_packets.get()).wrapping_add(queue.tx_packets.get()));
        let stands = |nf: &NfState| matches!(nf.state, State::Running | State::Failed | State::Expected) && !nf.draining;
        self.is_quiet = moved == std::mem::replace(&mut self.moved, moved)
            && self.nfs.values().all(stands)
            && self.upgrades.is_empty()
            && self.applying.is_empty()
            && self.leaving.is_empty()
            && self.clearing.is_empty()
            && self.rooms_in_work == 0
            && self.resting.is_empty()
            && self.tracing.is_none()
            && self.promises.are_none()
            && self.services.iter().flatten().all(|service| service.zygote.is_none())
            && self.plane.memories().former().is_empty()
            && self.plane.is_collected();
    }

    /// Takes out foreign NFs that were told to stop and have no process whose end would be noticed.
    fn let_leave(&mut self) {
        let leaves = |nf: &&NfState| nf.foreign.as_ref().is_some_and(|foreign| foreign.is_leaving);
        let leaving: Vec<u16> = self.nfs.values().filter(leaves).map(|nf| nf.number).collect();
        leaving.into_iter().for_each(|number| self.lost(number));
    }

    /// Looks at the CPU time of some processes whose turn it is: a system call each, so not of all at once.
    fn sample_cpu(&mut self, now: Instant) {
        let (from, mut left) = (self.next_sample, SAMPLES);
        for part in [(Bound::Included(from), Bound::Unbounded), (Bound::Unbounded, Bound::Excluded(from))] {
            for (number, nf) in self.nfs.range_mut(part) {
                if left == 0 {
                    self.next_sample = *number;
                    return;
                }
                let looked = nf.cpu.sample(now);
                left -= usize::from(looked);
                if let (true, Some(foreign), Some(handle), Some(used)) = (looked, &mut nf.foreign, &nf.handle, nf.cpu.last_ns()) {
                    foreign.tell_cost(handle, used);
                }
            }
        }
    }

    /// Stops reading ports, lets the packets inside leave, stops every NF and thread, and removes what was made on the host.
    pub(super) fn shut_down(&mut self) {
        self.stopping = true;
        self.agent = None;
        let _ = self.plane.stop_rx();
        let until = Instant::now() + Duration::from_millis(self.config.manager.drain_ms);
        let inside = |this: &Self| {
            let held = |nf: &NfState| nf.handle.as_ref().is_some_and(|h| h.in_flight.load(Ordering::Relaxed) > 0);
            let waiting = || this.plane.snapshots().map_or(0, |s| s.iter().map(|s| s.waiting).sum::<u64>());
            this.nfs.values().any(held) || waiting() > 0
        };
        while inside(self) && Instant::now() < until {
            self.turn(Duration::from_millis(1));
        }
        self.dismiss_zygotes();
        for nf in self.nfs.values_mut() {
            match nf.state {
                State::Running => Self::tell_to_stop(nf),
                State::Starting => {
                    nf.state = State::Stopping;
                    nf.deadline = None;
                    kill(nf);
                }
                _ => {}
            }
        }
        self.let_leave();
        while self.nfs.values().any(|nf| nf.process.is_some()) || !self.leaving.is_empty() || self.rooms_in_work > 0 {
            self.turn(Duration::from_millis(5));
        }
        for number in 0..self.ports.len() {
            let _ = self.close(number as u16);
        }
        self.plane.stop();
        self.controller.stop();
        self.restore_pens();
        self.restore_scheduling();
        // It removes its file when it has nothing more to undo.
        self.outside.end_guard();
        if let Some(record) = self.record.take() {
            match record.finish() {
                Ok(undone) if undone.failed.is_empty() => {}
                Ok(undone) => error!("could not undo: {}", undone.failed.join(", ")),
                Err(error) => warn!("{error}"),
            }
        }
    }
}

/// Whether a process is the one that was started, or one that descends from it: a program may start the NF.
///
/// Nothing that the process knows would tell it from another one of its user, who can read its environment and its memory; who started
/// whom is the kernel's word.
pub(super) fn is_of(peer: &attach::Peer, started: &Process) -> bool {
    let Some(pid) = peer.pid else { return false };
    let descends = || Proc::default().ancestors(pid).is_ok_and(|ancestors| ancestors.contains(&started.pid));
    // Both still are who they were, so their numbers are theirs: ours has not been collected, and the other one lives.
    (pid == started.pid || descends()) && process::wait_readable(peer.pidfd.as_fd(), Some(0)) == Ok(false)
}

/// Whether an NF that stands still is given more time: it is runnable, and has not run. That shows after a while, for which it is spared once.
/// What its other processes use is its own use: else it could hold packets for as long as they keep it from the core.
fn is_spared(nf: &mut NfState, handle: &NfHandle) -> bool {
    let proc = Proc::default();
    let Some(process) = nf.process.as_ref().filter(|process| !process.theirs && silence::waits(&proc, process.pid)) else {
        return false;
    };
    let mut all: Vec<Pid> = nf.pen.as_ref().map_or(Vec::new(), Pen::members).into_iter().filter_map(Pid::from_raw).collect();
    if all.is_empty() {
        all.push(process.pid);
    }
    let used = silence::used_by(&proc, &all);
    let now = Instant::now();
    // What it had used when it stood still some other time says nothing.
    let before = nf.used.replace((used, now)).filter(|(_, at)| now.duration_since(*at) < 4 * RESPITE);
    let has_run = before.is_some_and(|(before, at)| used.saturating_sub(before) > now.duration_since(at) / 20);
    if has_run || nf.respites >= MOST_RESPITES {
        return false;
    }
    nf.respites += 1;
    handle.spare(monotonic_ns() + RESPITE.as_nanos() as u64);
    true
}

/// What becomes of an NF that has ended, in words.
fn what_next(state: State, pause: Option<Duration>) -> String {
    let time = |pause: Duration| match pause.as_millis() {
        ms @ ..1_000 => format!("{ms} ms"),
        _ => format!("{:.1} s", pause.as_secs_f64()),
    };
    match (state, pause) {
        (State::Restarting, None | Some(Duration::ZERO)) => "it is started again at once".into(),
        (State::Restarting, Some(pause)) => format!("it is started again in {}", time(pause)),
        (State::Failed, Some(pause)) => format!("it is let in again in {}", time(pause)),
        (State::Failed, None) => "it is not started again (on_failure)".into(),
        (State::Expected, _) => "another process may come in its place".into(),
        (state, _) => format!("it is {state} now"),
    }
}

/// What an NF that was stopped for cause has done.
fn told(cause: Sentence) -> &'static str {
    match cause {
        Sentence::Stalled => "holds packets and returns none",
        _ => "forged descriptors or cursors",
    }
}

/// Ends the process of an NF at once. Its end is noticed through its pidfd.
pub(super) fn kill(nf: &NfState) {
    if let Some(handle) = &nf.handle {
        // A process that is parked may be unable to die: it is given turns for it.
        handle.wants_core.store(true, Ordering::Relaxed);
    }
    if let Some(process) = &nf.process {
        process.kill();
    }
}
