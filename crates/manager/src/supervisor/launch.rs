//! How the processes of NFs are started. [`super::nfs`] decides about their lives.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::handshake;
use sluice_shm::object;

use super::nfs::{Event, HELLO_PATIENCE, Nf, Process, State};
use super::notice::NoticeKind;
use super::{ServiceState, Supervisor, SupervisorError, token};
use crate::nf::death::Cause;
use crate::nf::output::Whose;
use sluice_host::container::ContainerRun;
use sluice_host::filter::Filter;
use sluice_host::spawn;

/// Memory that an NF may lock, in bytes: the kernel's default for any process.
const LOCKED: u64 = 8 << 20;

impl Supervisor {
    /// Starts the process of an NF, or waits for one that attaches by itself.
    pub(super) fn launch(&mut self, number: u16) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return };
        if service.config.is_foreign() {
            return self.launch_foreign(number);
        }
        if service.config.is_inline() {
            return self.launch_inline(number);
        }
        if nf.life().is_on_trial() {
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
        let Some(nf) = self.nfs.get(&number) else { return };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return };
        // Without a program it attaches by itself.
        if service.exec.is_some() && !self.fork_from_zygote(number) {
            self.spawn_alone(number);
        }
    }

    /// How to start a process of a service under a name, with more variables.
    pub(super) fn spec_of(
        &self,
        service: &ServiceState,
        name: &str,
        exec: PathBuf,
        core: usize,
        more: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> spawn::SpawnSpec {
        let mut env: Vec<(OsString, OsString)> = service.config.env.iter().map(|(k, v)| (k.into(), v.into())).collect();
        env.push((handshake::ENV_SOCKET.into(), self.host.sockets.main.path().into()));
        env.push((handshake::ENV_NF.into(), name.into()));
        env.extend(more);
        let files = sluice_config::fuse::objects(&service.config);
        if !files.is_empty() {
            env.push((object::ENV_OBJECTS.into(), spawn::FILES_AT.to_string().into()));
        }
        if let Some(path) = std::env::var_os("PATH") {
            env.push(("PATH".into(), path));
        }
        spawn::SpawnSpec {
            exec,
            args: service.config.args.iter().map(Into::into).collect(),
            env,
            files,
            user: service.user.clone(),
            // A new process would get no time slice; an NF moves there by itself at its admission.
            cores: if self.outside.is_governed(core) { self.cores_elsewhere(core) } else { [core].into() },
            stdio: spawn::Stdio::Null,
            name: name.into(),
            filter: match service.config.filter {
                true => Filter::Nf { storage: service.config.storage, zygote: service.config.zygote },
                false => Filter::None,
            },
            limits: spawn::ProcessLimits {
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
            self.feed(number, Event::Fails(Cause::Unstarted(error.clone())));
            self.host.notices.print(NoticeKind::Failed(service), || error);
            self.lost(number);
        }
    }

    /// Starts an NF's program, or the runtime of its container. The NF is starting then, also if
    /// this fails; the caller then handles it as lost.
    pub(super) fn start_process(
        &mut self,
        number: u16,
        spec: &spawn::SpawnSpec,
        container: Option<ContainerRun>,
    ) -> Result<(), String> {
        self.feed(number, Event::Launched);
        let Some(nf) = self.nfs.get_mut(&number).filter(|nf| nf.is(State::Starting)) else { return Ok(()) };
        nf.counted.spawned_ns = Some(monotonic_ns());
        let core = nf.core;
        let mut spec = spec.clone();
        // In a pen of its own and on its core. On a core where a polling NF would keep it from
        // running, it starts elsewhere.
        let cores = spec.cores.clone();
        let service = self.nfs.get(&number).and_then(|nf| self.service_of(nf));
        let bounds = service.map(|service| self.bounds_on(&service.config, 1, core));
        let pen = bounds.and_then(|bounds| match &container {
            Some(_) => self.hold_container(&spec.name, bounds.processes),
            None => self.hold(&mut spec, bounds, core, &cores),
        });
        spec.stdio = self.host.outputs.pipe(Whose::Nf(number), &spec.name, spec.user.as_ref().map(|user| user.uid));
        let Some(nf) = self.nfs.get_mut(&number) else { return Ok(()) };
        match spawn::spawn(&spec) {
            Ok(spawned) => {
                let (name, pid) = (nf.name.clone(), spawned.pid);
                nf.held.pen = pen;
                let data = epoll::EventData::new_u64(token::PROCESS | u64::from(number));
                let _ = epoll::add(&self.host.epoll, spawned.pidfd.as_fd(), data, epoll::EventFlags::IN);
                nf.process = Some(Process { pid: spawned.pid, pidfd: spawned.pidfd, child: true, theirs: false, container });
                self.feed(number, Event::Spawned);
                self.note(|r| r.started(&name, pid));
                match self.nfs.get(&number).and_then(|nf| Some((nf.held.pen.as_ref()?, nf.process.as_ref()?.container.is_some()))) {
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

    /// Waits until all spawned NFs are ready, so that the first packet finds its chain complete.
    pub(super) fn await_hellos(&mut self, stop: &AtomicBool) -> Result<(), SupervisorError> {
        let mut told = Instant::now();
        // One that was stopped for cause counts as come: its fault delays no other NF.
        let comes = |nf: &&Nf| nf.life().stops() == 0;
        while self.nfs.values().filter(comes).any(|nf| matches!(nf.life().state(), State::Starting | State::Restarting)) {
            self.turn(Duration::from_millis(5));
            if stop.load(Ordering::Relaxed) {
                return Err(SupervisorError::Interrupted);
            }
            if told.elapsed() >= HELLO_PATIENCE {
                told = Instant::now();
                for nf in self.nfs.values().filter(|nf| nf.is(State::Starting) && (nf.handle.is_some() || nf.is_inline())) {
                    let so_far = monotonic_ns().saturating_sub(nf.life().started_ns()) / 1_000_000_000;
                    info!("{} has made its handler for {so_far} s and is not ready; still waiting for it", nf.name);
                }
            }
            let trouble = |nf: &Nf| nf.foreign.as_ref().and_then(|foreign| foreign.trouble().map(String::from));
            if let Some(trouble) = self.nfs.values().find_map(trouble) {
                return Err(SupervisorError::Invalid(trouble));
            }
            let has_ended = |nf: &&Nf| nf.life().restarts() > 0 || matches!(nf.life().state(), State::Failed | State::Restarting);
            if let Some(nf) = self.nfs.values().filter(comes).find(has_ended) {
                if nf.is_inline() {
                    return Err(SupervisorError::Invalid(format!("{} could not be loaded; its reason is above", nf.name)));
                }
                return Err(SupervisorError::Invalid(format!(
                    "{} ended before it was ready; start it by hand to see why, and look at its arguments in the configuration",
                    nf.name
                )));
            }
        }
        Ok(())
    }
}
