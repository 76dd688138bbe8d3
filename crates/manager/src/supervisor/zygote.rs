//! Zygotes: processes of services that have made their handler and fork the instances.
//!
//! A zygote is no NF: it has no number, memory or core of its own, and gets no packets.
//! [`sluice_shm::zygote`] has the messages; the library does the fork and decides what it keeps.
//! This module requests a forked instance, which then sends its own hello like a spawned one. From
//! then on both are alike: children of this process with their own cgroup, core, rings and name.
//!
//! [`super::nfs`] has the stages of a zygote, and decides the actions that this module carries out.
//!
//! A zygote's report is trusted only for what it could do anyway: before a process that it names as
//! forked is ever signalled, it must be an otherwise unknown child of ours that runs as the
//! service's user. A zygote that sends anything but a requested answer, once, is ended: that costs
//! one message.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::Pid;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::handshake::{self, HandshakeError};
use sluice_shm::zygote::{ENV_ZYGOTE, Fork, Surroundings, ZygoteReport};

use super::nfs::{ASKED, Event, Process, Stage, State, ZygoteAction, ZygoteEvent, ZygoteLife, at_once};
use super::notice::NoticeKind;
use super::{ServiceState, Supervisor, token};
use crate::nf::output::Whose;
use sluice_api::model as api;
use sluice_host::attach;
use sluice_host::cgroup::pen::Pen;
use sluice_host::notice::quoted;
use sluice_host::process;
use sluice_host::spawn;

/// Most processes that may attach as forks before their zygote reports them.
const EARLY: usize = 2 * ASKED;

/// Most messages of a zygote that are read at a time.
const MESSAGES: usize = 64;

/// Suffix of a zygote's name, after its service's.
const SUFFIX: &str = ".zygote";

pub(super) struct Zygote {
    life: ZygoteLife,
    process: Option<Process>,
    pen: Option<Pen>,
    connection: Option<OwnedFd>,
    /// When it learned names of ports, services and chains.
    learned: Option<Instant>,
    /// Processes that claim to be requested instances which it has not reported yet.
    early: Vec<attach::Caller>,
}

impl Zygote {
    pub(super) fn report(&self) -> api::Zygote {
        let (state, why) = match self.life.stage() {
            Stage::Starting | Stage::Making => ("starting", None),
            Stage::Ready => ("ready", None),
            Stage::Pausing => ("restarting", None),
            Stage::Unfit(why) => ("unfit", Some(why.clone())),
        };
        let pid = self.process.as_ref().map(Process::number);
        api::Zygote { state: state.into(), pid, forks: self.life.forks(), why }
    }

    /// Whether an instance was requested and is not answered.
    pub(super) fn is_asked_for(&self, number: u16) -> bool {
        self.life.is_asked_for(number)
    }

    pub(super) fn learned(&self) -> Option<Instant> {
        self.learned
    }

    /// Its pen, and whether a fork is on its way out of that.
    pub(super) fn pen(&self) -> Option<(&Pen, bool)> {
        Some((self.pen.as_ref()?, self.life.is_busy()))
    }
}

fn name_of(service: &ServiceState) -> String {
    format!("{}{SUFFIX}", service.config.name)
}

impl Supervisor {
    /// Requests an instance from the zygote of its service, which is started if there is none.
    /// Returns false if that cannot be: then nothing has changed, and the instance is to be
    /// spawned. Otherwise it is starting, and sends its own hello; if the zygote cannot fork it
    /// after all, it is spawned automatically.
    pub(super) fn fork_from_zygote(&mut self, number: u16) -> bool {
        let Some(service_number) = self.nfs.get(&number).map(|nf| nf.service) else { return false };
        let Some(Some(service)) = self.services.get(service_number as usize) else { return false };
        if !service.config.zygote || service.exec.is_none() {
            return false;
        }
        if service.zygote.is_none() {
            self.start_zygote(service_number);
        }
        let Some(Some(service)) = self.services.get_mut(service_number as usize) else { return false };
        if !service.zygote.as_ref().is_some_and(|zygote| zygote.life.may_fork()) {
            return false;
        }
        let Some(nf) = self.nfs.get_mut(&number) else { return false };
        nf.counted.spawned_ns = Some(monotonic_ns());
        self.feed(number, Event::Launched);
        if self.nfs.get(&number).is_some_and(|nf| nf.is(State::Starting)) {
            let zygote = self.services.get_mut(service_number as usize).and_then(|s| s.as_mut()?.zygote.as_mut());
            zygote.into_iter().for_each(|zygote| zygote.life.wants(number));
            self.ask_zygote(service_number);
        }
        true
    }

    /// Starts the zygote of a service that is to have one.
    pub(super) fn start_zygote(&mut self, service_number: u16) {
        let Some(Some(service)) = self.services.get(service_number as usize) else { return };
        let Some(exec) = service.exec.clone().filter(|_| service.config.zygote) else { return };
        let name = name_of(service);
        let first = service.config.cores.first().copied().unwrap_or(0);
        let more: [(OsString, OsString); 1] = [(ENV_ZYGOTE.into(), "1".into())];
        let mut spec = self.spec_of(service, &name, exec, first, more);
        // Instances start where it is, and are moved when they attach.
        let (cores, instances) =
            (service.config.cores.iter().copied().collect(), service.config.most_instances().saturating_add(1));
        let bounds = self.bounds_on(&service.config, instances, first);
        let pen = self.hold(&mut spec, bounds, first, &cores);
        spec.stdio = self.host.outputs.pipe(Whose::Zygote(service_number), &name, spec.user.as_ref().map(|user| user.uid));
        let spawned = spawn::spawn(&spec);
        drop(spec);
        if let Some(pen) = &pen {
            self.gather(pen);
        }
        let Some(Some(service)) = self.services.get_mut(service_number as usize) else { return };
        let zygote = service.zygote.get_or_insert_with(|| Zygote {
            life: ZygoteLife::new(),
            process: None,
            pen: None,
            connection: None,
            learned: None,
            early: Vec::new(),
        });
        zygote.life.begins(monotonic_ns());
        match spawned {
            Ok(spawned) => {
                let pid = spawned.pid;
                let data = epoll::EventData::new_u64(token::ZYGOTE | u64::from(pid.as_raw_nonzero().get().cast_unsigned()));
                let _ = epoll::add(&self.host.epoll, spawned.pidfd.as_fd(), data, epoll::EventFlags::IN);
                zygote.process = Some(Process { pid, pidfd: spawned.pidfd, child: true, theirs: false, container: None });
                zygote.pen = pen;
                self.feed_zygote(service_number, ZygoteEvent::Spawned);
                self.note(|r| r.started(&name, pid));
            }
            Err(error) => {
                self.host.notices.print(NoticeKind::Zygote(service_number), || format!("{name}: {error}"));
                self.feed_zygote(service_number, ZygoteEvent::Ended);
            }
        }
    }

    /// Feeds an event to the life of a service's zygote, and carries out its actions.
    fn feed_zygote(&mut self, service: u16, event: ZygoteEvent) {
        let zygote = self.services.get_mut(usize::from(service)).and_then(|s| s.as_mut()?.zygote.as_mut());
        let todo = zygote.map_or(Vec::new(), |zygote| zygote.life.on(monotonic_ns(), event));
        todo.into_iter().for_each(|action| self.act_on_zygote(service, action));
    }

    fn act_on_zygote(&mut self, number: u16, action: ZygoteAction) {
        let Some(Some(service)) = self.services.get(usize::from(number)) else { return };
        match action {
            ZygoteAction::Start if self.turns.stopping => {}
            ZygoteAction::Start => self.start_zygote(number),
            ZygoteAction::Kill => service.zygote.iter().filter_map(|z| z.process.as_ref()).for_each(Process::kill),
            ZygoteAction::LetGo => self.end_zygote(number),
            // Once in the life of a service.
            ZygoteAction::ReportUnfit(why) => {
                warn!("warning: instances of service {} are started one by one, not forked: {why}", service.config.name);
            }
            ZygoteAction::Spawn(nf) => self.spawn_unforked(nf),
            // Carried out where the forked process is known.
            ZygoteAction::Adopt(_) => {}
        }
    }

    pub(super) fn service_of_zygote(&self, name: &str) -> Option<u16> {
        let service = name.strip_suffix(SUFFIX)?;
        let is_it = |s: &Option<ServiceState>| s.as_ref().is_some_and(|s| s.zygote.is_some() && s.config.name == service);
        self.services.iter().position(is_it).map(|i| i as u16)
    }

    /// Answers a process that claims to be a zygote.
    pub(super) fn accept_zygote(&mut self, caller: attach::Caller) {
        let Some(number) = self.service_of_zygote(&caller.hello.name).filter(|_| !self.turns.stopping) else {
            caller.refuse("no zygote of this name is expected");
            return;
        };
        let Some(Some(service)) = self.services.get(number as usize) else { return };
        let Some(zygote) = &service.zygote else { return };
        let started = zygote.process.as_ref().map(|p| p.pid);
        if *zygote.life.stage() != Stage::Starting {
            caller.refuse("the zygote of this service is here already");
            return;
        }
        if let Err(why) = caller.may_attach_as(service.user.as_ref().map(|u| u.uid)) {
            caller.refuse(&why);
            return;
        }
        if !zygote.process.as_ref().is_some_and(|process| process.has_started(&caller.peer)) {
            let (name, uid) = (caller.hello.name.clone(), caller.peer.uid);
            caller.refuse("the manager has started the zygote of this name, and this is neither that process nor a child of it");
            let line = || format!("a process of user {uid} said that it is {name}, which it is not: it was refused");
            return self.host.notices.print(NoticeKind::Impostor, line);
        }
        if started != caller.peer.pid {
            let why =
                "its program starts another one, which is the NF, and whose children would not be the daemon's; let it `exec` that";
            caller.refuse(why);
            return self.feed_zygote(number, ZygoteEvent::Unfit(why.into()));
        }
        let surroundings = Surroundings {
            name: caller.hello.name.clone(),
            ports: self.port_names(),
            services: self.service_names(),
            chains: self.chain_names(),
        };
        let learned = Instant::now();
        // If the welcome cannot be sent, it has gone, which is noticed.
        let Ok(attached) = caller.introduce(&surroundings) else { return };
        let data = epoll::EventData::new_u64(token::ZYGOTE_SAYS | u64::from(number));
        let _ = epoll::add(&self.host.epoll, attached.socket.as_fd(), data, epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
        let Some(Some(service)) = self.services.get_mut(number as usize) else { return };
        let Some(zygote) = &mut service.zygote else { return };
        (zygote.connection, zygote.learned) = (Some(attached.socket), Some(learned));
        self.feed_zygote(number, ZygoteEvent::Introduced);
    }

    /// Requests waiting instances from a zygote, up to the limit.
    fn ask_zygote(&mut self, service_number: u16) {
        let Some(Some(service)) = self.services.get_mut(service_number as usize) else { return };
        let Some(zygote) = &mut service.zygote else { return };
        let Some(connection) = &zygote.connection else { return };
        while let Some(number) = zygote.life.next_to_ask() {
            // It may have been removed while it waited.
            let Some(nf) = self.nfs.get_mut(&number).filter(|nf| nf.life().awaits_fork()) else { continue };
            // Without a pipe it continues with its zygote's.
            let pipe = self.host.outputs.open(Whose::Nf(number), &nf.name, service.user.as_ref().map(|user| user.uid)).ok();
            let pipe: Vec<_> = pipe.iter().map(AsFd::as_fd).collect();
            if handshake::send(connection.as_fd(), &Fork { name: nf.name.clone() }.encode(), &pipe).is_err() {
                // With so few messages the socket cannot be full: the zygote is gone; that is
                // noticed.
                zygote.life.not_asked(number);
                return;
            }
            zygote.life.was_asked(number, nf.name.clone());
            // The fork has its zygote's handler.
            nf.learned = zygote.learned.into_iter().map(at_once).collect();
            // This event has no actions.
            self.nfs.on(number, Event::Asked);
        }
    }

    /// Reads the messages of a service's zygote.
    pub(super) fn hear_zygote(&mut self, number: u16) {
        for _ in 0..MESSAGES {
            let Some(Some(service)) = self.services.get_mut(usize::from(number)) else { return };
            let uid = service.user.as_ref().map(|u| u.uid);
            let Some(zygote) = &mut service.zygote else { return };
            let Some(connection) = &zygote.connection else { return };
            let (report, pidfd) = match handshake::receive(connection.as_fd()) {
                Ok((message, fds)) => (ZygoteReport::decode(&message), fds.into_iter().next()),
                Err(error) => (Err(error), None),
            };
            let event = match &report {
                Ok(ZygoteReport::Ready) => ZygoteEvent::Ready,
                Ok(ZygoteReport::Unfit(why)) => ZygoteEvent::SaysUnfit(quoted(why)),
                Ok(ZygoteReport::Forked { name, .. }) => ZygoteEvent::Forked(name.clone()),
                Ok(ZygoteReport::Failed { name, .. }) => ZygoteEvent::Failed(name.clone()),
                Err(HandshakeError::Socket(Errno::AGAIN)) => break,
                Err(HandshakeError::Socket(Errno::INTR)) => continue,
                Err(_) => ZygoteEvent::Nonsense,
            };
            let todo = zygote.life.on(monotonic_ns(), event);
            if todo.contains(&ZygoteAction::Kill) {
                // It closed its end, or sent an invalid message. Its end is noticed.
                let _ = zygote.connection.take().map(|connection| epoll::delete(&self.host.epoll, connection.as_fd()));
                if report.is_ok() {
                    let line = || format!("{} says what it was not asked for, and is ended", name_of(service));
                    self.host.notices.print(NoticeKind::Zygote(number), line);
                }
            }
            if let Ok(ZygoteReport::Failed { name, why }) = &report
                && matches!(todo[..], [ZygoteAction::Spawn(_)])
            {
                self.host
                    .notices
                    .print(NoticeKind::Zygote(number), || format!("{name} is started by itself: its zygote {}", quoted(why)));
            }
            for action in todo {
                match (action, &report) {
                    (ZygoteAction::Adopt(nf), Ok(ZygoteReport::Forked { name, pid })) => {
                        let hint = pidfd.as_ref().and_then(|pidfd| process::pid_of(pidfd.as_fd()));
                        self.was_forked(number, nf, name, (*pid, hint), uid);
                        self.meet_early(number);
                    }
                    (action, _) => self.act_on_zygote(number, action),
                }
            }
        }
        self.ask_zygote(number);
    }

    /// Keeps a process that the zygote of a service may have forked, until that reports it.
    pub(super) fn keep_early(&mut self, service_number: u16, caller: attach::Caller) -> Result<(), attach::Caller> {
        let zygote = self.services.get_mut(service_number as usize).and_then(|s| s.as_mut()?.zygote.as_mut());
        match zygote {
            Some(zygote) if zygote.early.len() < EARLY => zygote.early.push(caller),
            _ => return Err(caller),
        }
        Ok(())
    }

    /// Answers processes that attached before their zygote reported them, as far as it has by now.
    fn meet_early(&mut self, service_number: u16) {
        let zygote = self.services.get_mut(service_number as usize).and_then(|s| s.as_mut()?.zygote.as_mut());
        let early = zygote.map(|zygote| std::mem::take(&mut zygote.early));
        // Those that are still not reported are kept again.
        early.into_iter().flatten().for_each(|caller| self.accept_nf(None, caller));
    }

    /// Handles the report of a service's zygote that it has forked this process for an instance
    /// that was requested under this name. `forked`: its number there, and the process of the pidfd
    /// that came with the report.
    fn was_forked(&mut self, service: u16, number: u16, name: &str, forked: (i32, Option<Pid>), uid: Option<u32>) {
        let Some(pid) = self.child_that_is(forked) else { return };
        if self.is_known(pid) {
            // Its own hello came first.
            return;
        }
        // A child of ours keeps its number until it is collected: it is this process, or not ours.
        let Ok(pidfd) = process::pidfd_open(pid) else { return };
        if !process::is_child(pidfd.as_fd()) || !runs_as(pid, uid) {
            let line = || format!("the zygote of {name} says that it has forked process {pid:?}, which is no child of it");
            return self.host.notices.print(NoticeKind::Zygote(service), line);
        }
        let process = Process { pid, pidfd, child: true, theirs: false, container: None };
        let nf = self.nfs.get_mut(&number);
        let nf = nf.filter(|nf| nf.name == name && nf.life().awaits_fork());
        let Some(nf) = nf else {
            // The instance is no longer wanted.
            process.kill();
            return self.bid_farewell(process, false);
        };
        let data = epoll::EventData::new_u64(token::PROCESS | u64::from(nf.number));
        let _ = epoll::add(&self.host.epoll, process.pidfd.as_fd(), data, epoll::EventFlags::IN);
        nf.process = Some(process);
        let name = nf.name.clone();
        self.feed(number, Event::Forked);
        self.note(|r| r.started(&name, pid));
    }

    /// The otherwise unknown child of ours that a zygote knows by this number. With a keeper,
    /// zygotes are in a process namespace of their own, and report numbers of that namespace. The
    /// keeper is 1 there, and no helper of this program was forked by a zygote. `hint` may be it,
    /// and known already.
    fn child_that_is(&self, (inside, hint): (i32, Option<Pid>)) -> Option<Pid> {
        let inside = (inside > 1).then_some(inside)?;
        if !self.has_keeper() {
            return Pid::from_raw(inside).filter(|pid| !runs_this_program(*pid));
        }
        let is_it = |pid: &Pid| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let mut numbers = numbers.unwrap_or_default().split_whitespace().skip(1);
            numbers.next().and_then(|number| number.parse().ok()) == Some(inside)
        };
        if let Some(pid) = hint.filter(is_it) {
            return Some(pid);
        }
        let tasks = std::fs::read_dir("/proc/self/task").ok()?;
        let texts = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<i32> =
            texts.flat_map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i32>>()).collect();
        // Without a hint: the newest first, as to know each of a thousand takes long.
        let unknown = children.into_iter().rev().filter_map(Pid::from_raw).filter(|pid| !self.is_known(*pid));
        unknown.into_iter().find(is_it)
    }

    /// Handles a process that was refused. An unknown child of ours is a stray fork of a zygote: it
    /// is killed and collected. If it is a zygote that does not attach as one, its service does
    /// without a zygote.
    pub(super) fn was_refused(&mut self, hello: &str, peer: attach::Peer) {
        let Some(pid) = peer.pid else { return };
        if let Some(number) = self.service_of_zygote(hello) {
            let zygote = self.services.get(number as usize).and_then(|s| s.as_ref()?.zygote.as_ref());
            let is_it = zygote.and_then(|z| z.process.as_ref()).is_some_and(|p| p.pid == pid);
            if is_it {
                self.feed_zygote(number, ZygoteEvent::Unfit("its program is built with a library that knows no zygotes".into()));
            }
        } else if !self.is_known(pid) && process::is_child(peer.pidfd.as_fd()) {
            let process = Process { pid, pidfd: peer.pidfd, child: true, theirs: false, container: None };
            process.kill();
            self.bid_farewell(process, false);
        }
    }

    /// Whether this daemon already knows a process.
    pub(super) fn is_known(&self, pid: Pid) -> bool {
        let is_it = |p: &Process| p.pid == pid;
        self.nfs.know(pid)
            || self.host.leaving.iter().any(is_it)
            || self.services.iter().flatten().filter_map(|s| s.zygote.as_ref()?.process.as_ref()).any(is_it)
    }

    /// Collects a killed process when it has ended.
    fn bid_farewell(&mut self, process: Process, is_watched: bool) {
        let data = epoll::EventData::new_u64(token::WRAPPER | u64::from(process.number()));
        let fd = process.pidfd.as_fd();
        let _ = if is_watched {
            epoll::modify(&self.host.epoll, fd, data, epoll::EventFlags::IN)
        } else {
            epoll::add(&self.host.epoll, fd, data, epoll::EventFlags::IN)
        };
        self.host.leaving.push(process);
    }

    fn spawn_unforked(&mut self, number: u16) {
        if self.nfs.get(&number).is_some_and(|nf| nf.life().awaits_fork()) && !self.turns.stopping {
            self.spawn_alone(number);
        }
    }

    /// Handles the end of a zygote's process.
    pub(super) fn zygote_ended(&mut self, pid: u32) {
        let is_it = |s: &Option<ServiceState>| {
            let process = s.as_ref().and_then(|s| s.zygote.as_ref()?.process.as_ref());
            process.is_some_and(|p| p.number() == pid)
        };
        let Some(number) = self.services.iter().position(is_it) else { return };
        // Its last words come first: with them it may have said that it is unfit, and is let go.
        self.hear_zygote(number as u16);
        let Some(Some(service)) = self.services.get_mut(number) else { return };
        let name = name_of(service);
        let Some(zygote) = &mut service.zygote else { return };
        let Some(process) = zygote.process.as_ref().filter(|process| process.number() == pid) else { return };
        if matches!(process::reap(process.pidfd.as_fd()), Ok(None)) {
            return;
        }
        let pid = process.pid;
        let _ = epoll::delete(&self.host.epoll, process.pidfd.as_fd());
        // If the group was killed, forks that had not left it have ended too.
        process::reap_group(pid);
        (zygote.process, zygote.learned) = (None, None);
        self.host.outputs.close(Whose::Zygote(number as u16));
        let pen = zygote.pen.take();
        if let Some(connection) = zygote.connection.take() {
            let _ = epoll::delete(&self.host.epoll, connection.as_fd());
        }
        let ran_ns = monotonic_ns().saturating_sub(zygote.life.started_ns());
        let line = || format!("{name} has ended after {:.3} s", ran_ns as f64 / 1e9);
        self.host.notices.print(NoticeKind::Zygote(number as u16), line);
        self.note(|r| r.ended(pid));
        self.release_zygote(pen);
        self.feed_zygote(number as u16, ZygoteEvent::Ended);
    }

    fn end_zygote(&mut self, service_number: u16) {
        let Some(Some(service)) = self.services.get_mut(service_number as usize) else { return };
        let Some(zygote) = &mut service.zygote else { return };
        if let Some(connection) = zygote.connection.take() {
            let _ = epoll::delete(&self.host.epoll, connection.as_fd());
        }
        let pen = zygote.pen.take();
        zygote.learned = None;
        if let Some(process) = zygote.process.take() {
            process.kill();
            self.bid_farewell(process, true);
        }
        self.host.outputs.close(Whose::Zygote(service_number));
        self.release_zygote(pen);
    }

    /// Ends the zygote of a service, with all that waits for it: the service is removed or
    /// replaced, or the daemon stops.
    pub(super) fn dismiss_zygote(&mut self, service_number: u16) {
        self.end_zygote(service_number);
        if let Some(Some(service)) = self.services.get_mut(service_number as usize) {
            service.zygote = None;
        }
    }

    pub(super) fn dismiss_zygotes(&mut self) {
        (0..self.services.len()).for_each(|number| self.dismiss_zygote(number as u16));
    }

    /// Handles a requested instance that has not come: its zygote hangs, and is ended. Then the
    /// waiting instances are spawned.
    pub(super) fn fork_is_late(&mut self, number: u16) {
        let Some(service) = self.nfs.get(&number).map(|nf| nf.service) else { return };
        match self.services.get(service as usize).and_then(|s| s.as_ref()?.zygote.as_ref()) {
            Some(zygote) if zygote.process.is_some() => self.feed_zygote(service, ZygoteEvent::Late(number)),
            _ => self.spawn_unforked(number),
        }
    }

    pub(super) fn tick_zygotes(&mut self) {
        for number in 0..self.services.len() as u16 {
            self.meet_early(number);
            self.feed_zygote(number, ZygoteEvent::Due);
        }
    }
}

/// Whether a process runs this program, as guards and other helpers do.
fn runs_this_program(pid: Pid) -> bool {
    let program = |process: &str| std::fs::read_link(format!("/proc/{process}/exe"));
    let own = program("self");
    program(&pid.as_raw_nonzero().to_string()).is_ok_and(|program| own.is_ok_and(|own| own == program))
}

/// Whether a process runs as this user, or as the manager's.
fn runs_as(pid: Pid, uid: Option<u32>) -> bool {
    let owner = std::fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).map(|m| m.uid());
    let expected = uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    // The folder of an undumpable process belongs to root: such a process is taken in at its hello.
    owner.is_ok_and(|owner| owner == expected)
}
