//! The life of foreign programs.
//!
//! States and failure policies are those of every NF. The start and the end differ: its namespace
//! is built before the program starts, which sends no hello; and its namespace is cleared after it
//! ends.
//!
//! Building and clearing take as long as their commands, so each runs on a thread of its own, which
//! sends its result to the supervisor as a job. An instance's namespace is built after its former
//! one is cleared.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::process::Pid;
use sluice_shm::arena::HEADROOM;
use sluice_shm::clock::monotonic_ns;

use super::nfs::{Event, Nf, Process, State};
use super::notice::NoticeKind;
use super::priorities::own_priority;
use super::{Job, Supervisor, token};
use crate::nf::death::Cause;
use crate::nf::output::Whose;
use sluice_api::config::{Drops, Mode, Service};
use sluice_foreign::{ForeignError, ForeignHop, Namespace, NamespacePlan, Wires, namespace::ProcessSet, wire};

use sluice_host::filter::Filter;
use sluice_host::netns;
use sluice_host::process::{Identity, Proc};
use sluice_host::processes::Target;
use sluice_host::record::Thing;
use sluice_host::spawn;
use sluice_host::user::User;

/// How long a program must run before it gets packets: its chains never count on one that fails.
const SETTLED: Duration = Duration::from_millis(100);

/// Longest time for a program that shares memory to connect, and the pause between two checks.
const CONNECT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// Pauses between announcements of a program's addresses. The chains that carry the first one may
/// not be complete when it starts, and a packet may be lost.
const ANNOUNCED: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3)];
/// Time between checks that a program's interfaces exist.
const LOOK_AT_WIRES: Duration = Duration::from_millis(200);

impl Supervisor {
    /// Begins the life of a foreign NF: its namespace is built.
    pub(super) fn launch_foreign(&mut self, number: u16) {
        let room = self.plane.arena().geometry().stride as usize - HEADROOM;
        let group = self.grouping().map(super::grouping::Grouping::group);
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return };
        let plan = plan_of(&service.config, &nf.name, nf.core, room, &self.config.manager.runtime_dir);
        nf.counted.spawned_ns = Some(monotonic_ns());
        let foreign = nf.foreign.get_or_insert_default();
        foreign.life += 1;
        let (life, clearing) = (foreign.life, self.host.clearing.remove(&plan.netns));
        self.feed(number, Event::Launched);
        let path = netns::path_of(&plan.netns);
        // One that exists and is not being cleared is not ours.
        let is_theirs = clearing.is_none() && path.exists();
        let mut noted: Vec<(Thing, PathBuf)> = if is_theirs { Vec::new() } else { vec![(Thing::Netns, path)] };
        if let Some([of_core, own]) = self.grouping().map(|grouping| grouping.paths_of(&plan.name, plan.core)) {
            self.note(|r| r.made(Thing::Cgroup, &of_core));
            noted.push((Thing::Cgroup, own));
        }
        for (thing, path) in noted {
            self.note(|r| r.made(thing, &path));
            self.nfs.get_mut(&number).and_then(|nf| nf.foreign.as_mut()).into_iter().for_each(|f| f.noted.push(path.clone()));
        }
        if let Err(what) = self.open_devices(number) {
            // The former namespace may still exist: the next start waits for its clearing thread.
            let error = ForeignError::Device { nf: plan.name.clone(), what };
            self.host.clearing.extend(clearing.map(|thread| (plan.netns, thread)));
            self.trouble(number, error.to_string());
            return;
        }
        let kinds = self.host.opener.kinds.clone();
        self.apart(move || {
            clearing.into_iter().for_each(|thread| drop(thread.join()));
            let built = Namespace::build(plan, &*kinds, group.as_deref());
            // `group` holds a folder of the cgroup, which the daemon's end must be able to remove.
            drop(group);
            Box::new(move |this: &mut Self| this.namespace_built(number, life, built))
        });
    }

    /// Opens the devices that share memory with a foreign NF's program. On return they listen.
    fn open_devices(&mut self, number: u16) -> Result<(), String> {
        let Some(nf) = self.nfs.get(&number) else { return Ok(()) };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return Ok(()) };
        let (via, owner) = (service.config.via, service.user.as_ref().map(|user| user.uid));
        if !via.is_device() {
            return Ok(());
        }
        let (name, interfaces) = (nf.name.clone(), service.config.interfaces.clone());
        let dir = self.config.manager.runtime_dir.clone();
        for (side, interface) in interfaces.iter().enumerate() {
            let socket = sluice_config::socket::of_side(&dir, &name, interface)?;
            self.note(|r| r.made(Thing::Socket, &socket));
            self.nfs.get_mut(&number).and_then(|nf| nf.foreign.as_mut()).into_iter().for_each(|f| f.noted.push(socket.clone()));
            let (memory, pool) = (self.plane.memories().usual(), self.plane.memories().usual_pool());
            let device = self
                .host
                .opener
                .kinds
                .device(&wire::device(via, &socket, (number, side)), &pool)
                .map_err(|fault| fault.to_string())?;
            // For root and the program's user.
            std::os::unix::fs::chown(&socket, owner, None)
                .map_err(|error| format!("cannot give {} to its user: {error}", socket.display()))?;
            let Some(foreign) = self.nfs.get_mut(&number).and_then(|nf| nf.foreign.as_mut()) else { return Ok(()) };
            foreign.devices.push(device);
            foreign.memory = Some(memory);
        }
        Ok(())
    }

    /// Whether a foreign NF's program has yet to connect. Checks again later, up to a limit.
    fn awaits_connection(&mut self, number: u16) -> bool {
        let Some(nf) = self.nfs.get_mut(&number) else { return false };
        let ends = nf.foreign.as_ref().and_then(|foreign| foreign.wires.as_ref()).map_or(&[][..], |wires| &wires.ends);
        if ends.iter().all(|end| end.is_connected()) {
            return false;
        }
        if monotonic_ns().saturating_sub(nf.life().started_ns()) < CONNECT.as_nanos() as u64 {
            self.feed(number, Event::Settles(LOOK));
        } else {
            let name = nf.name.clone();
            let missing = ends.iter().filter(|end| !end.is_connected()).count();
            let why = format!(
                "{name}: its program has not connected at {missing} of its {} sockets within {} s; they are RUNTIME_DIR/{name}.INTERFACE",
                ends.len(),
                CONNECT.as_secs()
            );
            self.trouble(number, why);
        }
        true
    }

    /// Runs `work` on a thread of its own, and its resulting job on this one.
    fn apart(&mut self, work: impl FnOnce() -> Job + Send + 'static) -> Option<JoinHandle<()>> {
        let remote = self.remote();
        let thread = std::thread::Builder::new().name("sluice-netns".into()).spawn(move || remote.hand(work()));
        match thread {
            Ok(thread) => {
                self.host.in_work += 1;
                Some(thread)
            }
            Err(error) => {
                warn!("cannot make a thread for a foreign program: {error}");
                None
            }
        }
    }

    /// Handles a namespace that was built, or could not be.
    fn namespace_built(&mut self, number: u16, life: u64, built: Result<(Namespace, Wires), ForeignError>) {
        self.host.in_work -= 1;
        let is_wanted = |nf: &&mut Nf| nf.is(State::Starting) && nf.foreign.as_ref().is_some_and(|foreign| foreign.life == life);
        let Some(nf) = self.nfs.get_mut(&number).filter(is_wanted) else {
            if let Ok((namespace, _)) = built {
                self.apart(move || {
                    namespace.clear();
                    Box::new(|this: &mut Self| this.host.in_work -= 1)
                });
            }
            self.left_while_starting(number);
            return;
        };
        let foreign = nf.foreign.get_or_insert_default();
        let namespace = match built {
            Ok((namespace, mut wires)) => {
                wires.ends.append(&mut foreign.devices);
                foreign.wires = Some(wires);
                foreign.processes = namespace.processes();
                Arc::new(namespace)
            }
            Err(error) => return self.trouble(number, error.to_string()),
        };
        foreign.namespace = Some(namespace.clone());
        let of = nf.service;
        self.feed(number, Event::Built);
        let Some(Some(service)) = self.services.get(usize::from(of)) else { return };
        let (exec, user, config) = (service.exec.clone(), service.user.clone(), service.config.clone());
        let settled = if exec.is_some() { SETTLED } else { Duration::ZERO };
        let started = exec.map_or(Ok(()), |exec| self.start_program(number, &namespace, &exec, user, &config.args));
        let found =
            started.and_then(|()| config.pid_file.as_ref().map_or(Ok(()), |file| self.find_program(number, &config.name, file)));
        if let Err(why) = found {
            return self.trouble(number, why);
        }
        if config.ready.is_empty() {
            return self.feed(number, Event::Settles(settled));
        }
        self.apart(move || {
            let done = namespace.run(&config.ready);
            drop(namespace);
            Box::new(move |this: &mut Self| {
                this.host.in_work -= 1;
                let current = |nf: &&Nf| nf.foreign.as_ref().is_some_and(|f| f.life == life) && nf.is(State::Starting);
                match (this.nfs.get(&number).filter(current), done) {
                    (Some(_), Ok(())) => this.feed(number, Event::Settles(Duration::ZERO)),
                    (Some(_), Err(error)) => this.trouble(number, error.to_string()),
                    (None, _) => this.left_while_starting(number),
                }
            })
        });
    }

    fn start_program(
        &mut self,
        number: u16,
        namespace: &Namespace,
        exec: &Path,
        user: Option<User>,
        args: &[String],
    ) -> Result<(), String> {
        let mut spec = namespace.spec(exec, args);
        // No filter for root; see the limits that `sluice check` lists.
        spec.filter = if user.is_some() { Filter::Foreign } else { Filter::None };
        spec.user = user;
        spec.stdio = self.host.outputs.pipe(Whose::Nf(number), &spec.name, spec.user.as_ref().map(|user| user.uid));
        let spawned = spawn::spawn(&spec).map_err(|error| error.to_string())?;
        let Some(nf) = self.nfs.get_mut(&number) else { return Ok(()) };
        let (name, pid) = (nf.name.clone(), spawned.pid);
        let data = epoll::EventData::new_u64(token::PROCESS | u64::from(number));
        let _ = epoll::add(&self.host.epoll, spawned.pidfd.as_fd(), data, epoll::EventFlags::IN);
        nf.process = Some(Process { pid, pidfd: spawned.pidfd, child: true, theirs: false, container: None });
        self.feed(number, Event::Spawned);
        self.note(|r| r.started(&name, pid));
        Ok(())
    }

    /// Finds the program of a foreign NF that something else has started.
    fn find_program(&mut self, number: u16, service: &str, file: &Path) -> Result<(), String> {
        let (pid, pidfd, identity) = process_of(file).map_err(|why| format!("{service}: {why}"))?;
        let Some(nf) = self.nfs.get_mut(&number) else { return Ok(()) };
        let data = epoll::EventData::new_u64(token::PROCESS | u64::from(number));
        let _ = epoll::add(&self.host.epoll, pidfd.as_fd(), data, epoll::EventFlags::IN);
        nf.foreign.get_or_insert_default().processes = ProcessSet::only(identity);
        nf.process = Some(Process { pid, pidfd, child: false, theirs: true, container: None });
        self.feed(number, Event::Found);
        Ok(())
    }

    /// Removes a foreign NF that was stopped while it started, when its threads are done.
    fn left_while_starting(&mut self, number: u16) {
        if self.nfs.get(&number).is_some_and(|nf| nf.life().left_while_starting()) {
            self.lost(number);
        }
    }

    fn trouble(&mut self, number: u16, why: String) {
        let service = self.nfs.get(&number).map_or(u16::MAX, |nf| nf.service);
        self.host.notices.print(NoticeKind::Failed(service), || why.clone());
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        nf.foreign.get_or_insert_default().trouble = Some(why.clone());
        self.feed(number, Event::Troubled(Cause::Unstarted(why)));
    }

    /// Completes the start: from now on the program is an NF.
    pub(super) fn settle(&mut self, number: u16) {
        if self.awaits_connection(number) {
            return;
        }
        if let Err(error) = self.join(number) {
            self.trouble(number, error.to_string());
        }
    }

    fn join(&mut self, number: u16) -> Result<(), super::SupervisorError> {
        let Some(nf) = self.nfs.get(&number) else { return Ok(()) };
        let Some(Some(service)) = self.services.get(nf.service as usize) else { return Ok(()) };
        let (name, core, of, config) = (nf.name.clone(), nf.core, nf.service, service.config.clone());
        let place = self.plane.place_foreign(core)?;
        let priority = own_priority(&config, &self.config.sched, None);
        let handle = match self.plane.attach(number, &name, of, core, true, config.ring, &place, priority, None) {
            Ok(handle) => handle,
            Err(error) => {
                self.plane.vacate(&place);
                return Err(error.into());
            }
        };
        handle.is_fed.store(true, std::sync::atomic::Ordering::Relaxed);
        let threads = self.plane.threads();
        let Some(nf) = self.nfs.get_mut(&number) else { return Ok(()) };
        let foreign = nf.foreign.get_or_insert_default();
        let Some(wires) = foreign.wires.take() else { return Ok(()) };
        let stay_ns = u64::from(config.inside_ms) * 1_000_000;
        let by_design = config.drops == Drops::ByDesign;
        let hop = ForeignHop::new(handle.clone(), threads, wires, foreign.counters.clone(), by_design, stay_ns);
        let weight = foreign.namespace.as_ref().and_then(|namespace| namespace.cgroup().map(|cgroup| cgroup.handle()));
        foreign.reported = (0, foreign.counters.api.entered.get());
        foreign.trouble = None;
        foreign.announced = Some((Instant::now() + ANNOUNCED[0], 0));
        let processes = foreign.processes.clone();
        nf.counted.cpu.start_of(move || processes.members());
        nf.counted.welcomed(monotonic_ns());
        (nf.handle, nf.place) = (Some(handle.clone()), Some(place));
        // A process that the manager did not start keeps its class: it would not get it back.
        let is_theirs = nf.process.as_ref().is_some_and(|process| process.theirs);
        let ours = nf.foreign.as_ref().filter(|_| !is_theirs).map_or(Vec::new(), |foreign| foreign.processes.members());
        self.feed(number, Event::Joined);
        self.plane.feed(Box::new(hop))?;
        for pid in ours {
            // A process that has ended meanwhile needs no class.
            if let Err(error) = self.schedule(None, pid, core, config.mode == Mode::Poll) {
                warn!("{name}: {error}");
            }
        }
        self.controller.add(handle.clone());
        if let Some(weight) = weight {
            self.controller.link().give(&handle, Box::new(weight));
        }
        self.publish();
        self.govern();
        Ok(())
    }

    /// Announces the addresses of foreign NFs that have started. Ends those that have lost an
    /// interface: they restart as after any death.
    pub(super) fn see_wires(&mut self, now: Instant) {
        let mut cut = Vec::new();
        for nf in self.nfs.values_mut().filter(|nf| nf.is(State::Running)) {
            let Some((foreign, namespace)) =
                nf.foreign.as_mut().and_then(|foreign| foreign.namespace.clone().map(|namespace| (foreign, namespace)))
            else {
                continue;
            };
            if let Some((_, time)) = foreign.announced.filter(|(at, _)| now >= *at) {
                foreign.announced = ANNOUNCED.get(time + 1).map(|pause| (now + *pause, time + 1));
                if let Err(error) = namespace.announce() {
                    warn!("{}: its addresses cannot be announced to its neighbours: {error}", nf.name);
                    foreign.announced = None;
                }
            }
            if foreign.looked.is_some_and(|at| now.duration_since(at) < LOOK_AT_WIRES) {
                continue;
            }
            foreign.looked = Some(now);
            if let Some(interface) = namespace.missing() {
                let why = format!("{}: its interface {interface} was removed, so it gets no packets and is ended", nf.name);
                cut.push((nf.number, why));
            }
        }
        for (number, why) in cut {
            self.trouble(number, why);
        }
    }

    /// Takes a foreign NF from the packet thread that feeds it. Before
    /// [`crate::dataplane::DataPlane::detach`].
    pub(super) fn unfeed(&mut self, number: u16) {
        match self.plane.unfeed(number) {
            // Its sockets are closed here, not on a packet thread: the kernel takes milliseconds.
            Ok(hop) => drop(hop),
            Err(error) => warn!("{error}"),
        }
    }

    /// Clears the namespace of a foreign NF whose program has ended.
    pub(super) fn clear_namespace(&mut self, number: u16) {
        let Some(foreign) = self.nfs.get_mut(&number).and_then(|nf| nf.foreign.as_mut()) else { return };
        foreign.life += 1;
        // Only this thread opens and closes devices.
        (foreign.wires, foreign.devices, foreign.memory) = (None, Vec::new(), None);
        let (namespace, noted) = (foreign.namespace.take(), std::mem::take(&mut foreign.noted));
        for path in &noted {
            // The socket that a device has left.
            if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
                let _ = std::fs::remove_file(path);
            }
        }
        let name = namespace.as_ref().map(|namespace| namespace.netns().to_string());
        let thread = self.apart(move || {
            // A thread that works in it still has it; its work there fails or ends: wait for it.
            let mut namespace = namespace;
            while let Some(shared) = namespace.take() {
                match Arc::try_unwrap(shared) {
                    Ok(namespace) => namespace.clear(),
                    Err(shared) => {
                        namespace = Some(shared);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
            Box::new(move |this: &mut Self| {
                this.host.in_work -= 1;
                for path in noted {
                    // Its next life may have made them again.
                    if !path.exists() {
                        this.note(|r| r.removed(&path));
                    }
                }
            })
        });
        if let (Some(name), Some(thread)) = (name, thread) {
            self.host.clearing.insert(name, thread);
        }
    }
}

/// The process whose id is in a file, if it may be scheduled.
fn process_of(file: &Path) -> Result<(Pid, OwnedFd, Identity), String> {
    let shown = file.display();
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("cannot read pid_file {shown}: {error}; start its program first"))?;
    let number: i32 =
        text.trim().parse().map_err(|_| format!("pid_file {shown} holds {:?}, which is no process number", text.trim()))?;
    let target = Target::of_pid(&Proc::default(), "it", number).map_err(|refused| format!("pid_file {shown}: {refused}"))?;
    let member = &target.members()[0];
    let pidfd = member.pidfd().try_clone_to_owned().map_err(|error| format!("pid_file {shown}: {error}"))?;
    Ok((member.pid, pidfd, member.identity))
}

/// What is to be built for an instance of a service.
fn plan_of(service: &Service, name: &str, core: usize, room: usize, runtime_dir: &Path) -> NamespacePlan {
    let mut env: Vec<(OsString, OsString)> = service.env.iter().map(|(k, v)| (k.into(), v.into())).collect();
    env.extend(std::env::var_os("PATH").map(|path| ("PATH".into(), path)));
    if service.via.is_device() {
        let sockets =
            service.interfaces.iter().filter_map(|interface| sluice_config::socket::of_side(runtime_dir, name, interface).ok());
        env.extend(["SLUICE_IN", "SLUICE_OUT"].into_iter().zip(sockets).map(|(key, path)| (key.into(), path.into())));
    }
    NamespacePlan {
        name: name.into(),
        netns: service.netns.clone().unwrap_or_else(|| format!("sluice-{name}")),
        may_exist: service.netns.is_some(),
        via: service.via,
        interfaces: service.interfaces.clone(),
        mtu: service.mtu,
        slots: service.queue,
        room,
        setup: service.setup.clone(),
        teardown: service.teardown.clone(),
        env,
        core,
    }
}
