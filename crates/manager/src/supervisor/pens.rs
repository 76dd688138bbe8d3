//! Containment of NFs' processes: their process namespace, cgroups and users.
//!
//! An NF that has ended is lost, and its frames come back, when nothing that it has started is
//! left: [`Supervisor::is_held`] kills the rest, and checks again in each round. Moving processes
//! into cgroups of version 1 takes the kernel milliseconds, so a thread of its own does it. It
//! repeats this for NFs that fork and end faster than it moves them.
//!
//! A process may clone a child of its own parent (`CLONE_PARENT`), as zygotes do. The daemon
//! collects such unknown children when they have ended. Otherwise their user would reach its limit
//! of processes for good.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::nfs::Nf;
use super::{ServiceState, Supervisor};
use sluice_api::config::{self as model, Mode};
use sluice_host::affinity;
use sluice_host::cgroup::pen::{Bounds, Gatherer, Pen, Pens};
use sluice_host::process::{self, Proc};
use sluice_host::processes::helper;
use sluice_host::record::Thing;
use sluice_host::spawn::{Keeper, SpawnSpec};
use sluice_host::user::{Uids, User, UserError, look_up_group};

/// The program that becomes the keeper: this one.
const OURSELVES: &str = "/proc/self/exe";

/// Longest wait for what an NF has left behind. Killed processes that remain after it are stuck in
/// the kernel, and execute nothing of their own any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two attempts to move the rest.
const AGAIN: Duration = Duration::from_millis(50);

enum Job {
    /// Moves a forked process into a pen, before the rest.
    TakeIn(Gatherer, Pid, OwnedFd),
    Gather(Gatherer),
    /// Kills what is in a pen, and removes the pen.
    End(Box<Pen>),
    Remove(Box<Pen>),
}

#[derive(Default)]
pub(super) struct Holds {
    keeper: Option<Arc<Keeper>>,
    /// Whether there can be none on this host; logged once.
    has_no_keeper: bool,
    pens: Option<Pens>,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// How many pens were made: each has its own number.
    lives: u64,
    /// NFs whose process has ended and which have something left, and since when.
    ending: BTreeMap<u16, Instant>,
    /// Services whose zygote's pen may hold what instances have left there.
    swept: BTreeSet<u16>,
    /// Whether there may be ended unknown children.
    has_strays: bool,
    uids: Option<Uids>,
    /// Processes and threads that named users of services had at first, for their other programs.
    others: BTreeMap<u32, u64>,
}

impl Holds {
    /// Whether something is awaited that causes no event.
    pub(super) fn is_waiting(&self) -> bool {
        !self.ending.is_empty()
    }

    fn ask(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only when `jobs` is dropped.
            let _ = jobs.send(job);
        }
    }

    /// A unique name for a life of an NF.
    pub(super) fn name_life(&mut self, nf: &str) -> String {
        self.lives += 1;
        format!("{nf}-{}", self.lives)
    }
}

fn run(jobs: &Receiver<Job>) {
    // The gatherers that are not done, and the time of the last attempt.
    let (mut left, mut looked) = (Vec::<Gatherer>::new(), Instant::now());
    loop {
        let job = match left.is_empty() {
            true => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => jobs.recv_timeout(AGAIN.saturating_sub(looked.elapsed())),
        };
        match job {
            Ok(Job::TakeIn(gatherer, pid, pidfd)) => {
                gatherer.take_in(pid, pidfd.as_fd());
                gather(gatherer, &mut left);
            }
            Ok(Job::Gather(gatherer)) => gather(gatherer, &mut left),
            Ok(Job::End(pen)) => {
                pen.kill();
                remove(*pen);
            }
            Ok(Job::Remove(pen)) => remove(*pen),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if looked.elapsed() >= AGAIN {
            left.retain(|gatherer| !is_gathered(gatherer.gather_again()));
            looked = Instant::now();
        }
    }
}

fn remove(pen: Pen) {
    if let Err((folder, error)) = pen.remove() {
        warn!("cannot remove cgroup {}: {error}; it is removed when the daemon ends", folder.display());
    }
}

/// Moves what is in a pen, and keeps a gatherer that is not done.
fn gather(gatherer: Gatherer, left: &mut Vec<Gatherer>) {
    // The cores of the former one may be out of date.
    left.retain(|before| !before.is_of_same(&gatherer));
    if !is_gathered(gatherer.gather()) {
        left.push(gatherer);
    }
}

fn is_gathered(result: std::io::Result<bool>) -> bool {
    result.unwrap_or_else(|error| {
        warn!("a process of an NF cannot be moved into its cgroup: {error}; its filter alone keeps it on its core");
        true
    })
}

/// The bounds of a pen for this many instances of a service.
fn bounds_of(config: &model::Service, instances: u32, is_weighed: bool) -> Bounds {
    let memory = config.memory.map(|mib| (u64::from(mib) << 20).saturating_mul(u64::from(instances)));
    Bounds { processes: config.pids.saturating_mul(instances), memory, is_weighed }
}

impl Supervisor {
    /// Prepares the containment of NFs' processes, after their weights. Anything that the host does
    /// not allow is left out and logged.
    pub(super) fn prepare_pens(&mut self) {
        let (root, name) = (Path::new("/"), format!("sluice-{}-nfs", std::process::id()));
        for path in Pens::paths(root, &name) {
            self.note(|r| r.made(Thing::Cgroup, &path));
        }
        let weighed = self.grouping().map(super::grouping::Grouping::group);
        let pens = Pens::create(root, &name, weighed);
        let is_unbounded = !pens.bounds_memory() && self.config.services.iter().any(|service| service.memory.is_some());
        for lack in pens.lacks().into_iter().chain(is_unbounded.then_some("`memory` of services is not held")) {
            warn!("warning: this host's cgroups are not to be had, so {lack}; see `sluice check`");
        }
        self.host.holds.pens = Some(pens);
        let (jobs, todo) = channel();
        match std::thread::Builder::new().name("sluice-pens".into()).spawn(move || run(&todo)) {
            Ok(thread) => (self.host.holds.jobs, self.host.holds.thread) = (Some(jobs), Some(thread)),
            Err(error) => warn!("NFs stay out of cgroups of version 1: {error}"),
        }
    }

    /// The keeper of the NFs' process namespace. Without it, forks of NFs outlive the daemon.
    fn keeper(&mut self) -> Option<Arc<Keeper>> {
        if !rustix::process::geteuid().is_root() || self.host.holds.has_no_keeper {
            return None;
        }
        match &self.host.holds.keeper {
            Some(keeper) if keeper.is_alive() => return Some(keeper.clone()),
            Some(_) => {
                warn!("the process that keeps those of NFs has ended, and all of them with it; another one is started")
            }
            None => {}
        }
        match Keeper::start(Path::new(OURSELVES), &[helper::KEEPER]) {
            Ok(keeper) => Some(self.host.holds.keeper.insert(Arc::new(keeper)).clone()),
            Err(error) => {
                self.host.holds.has_no_keeper = self.host.holds.keeper.is_none();
                warn!("warning: what NFs have forked may outlive a daemon that is killed: {error}");
                None
            }
        }
    }

    /// Whether NFs are in a process namespace of their own.
    pub(super) fn has_keeper(&self) -> bool {
        self.host.holds.keeper.is_some()
    }

    /// The limit of processes and threads of the user that a service runs as, set for each of its
    /// processes. It covers all services of that user, with an old and a new version of each side
    /// by side, and zygotes; and what else a user of the host runs. None for root, which the kernel
    /// does not bound so.
    pub(super) fn most_processes(&self, service: &ServiceState) -> Option<u64> {
        let own = rustix::process::geteuid().as_raw();
        let uid_of = |service: &ServiceState| service.user.as_ref().map_or(own, |user| user.uid);
        let uid = uid_of(service);
        let most = |s: &ServiceState| u64::from(s.config.pids) * (2 * u64::from(s.config.most_instances()) + 1);
        // While a service changes its version, the larger limit of both counts.
        let of_user = (0..).zip(&self.services).filter_map(|(number, service)| {
            let versions = service.iter().chain(self.version_on_trial(number));
            versions.filter(|s| uid_of(s) == uid && s.exec.is_some()).map(most).max()
        });
        let sum = of_user.sum::<u64>();
        (uid != 0).then(|| sum + self.host.holds.others.get(&uid).copied().unwrap_or(0))
    }

    /// Cores for a process that has yet to send its hello and whose own core has polling NFs, which
    /// would delay it: unused cores. If there are none, its own, of which the kernel leaves it a
    /// little.
    pub(super) fn cores_elsewhere(&self, core: usize) -> BTreeSet<usize> {
        let mut cores: BTreeSet<usize> = affinity::allowed().unwrap_or_default().into_iter().collect();
        let of_services = self.services.iter().flatten().flat_map(|service| service.config.cores.iter().copied());
        let taken = self.config.manager.cores().chain(of_services).chain(self.nfs.values().map(|nf| nf.core));
        taken.for_each(|core| _ = cores.remove(&core));
        if cores.is_empty() { [core].into() } else { cores }
    }

    /// The bounds of a pen for this many instances of a service on a core.
    pub(super) fn bounds_on(&self, config: &model::Service, instances: u32, core: usize) -> Bounds {
        bounds_of(config, instances, self.is_weighed(config.mode == Mode::Poll, core))
    }

    /// Makes a process start in a pen of its own, on these cores.
    pub(super) fn hold(&mut self, spec: &mut SpawnSpec, bounds: Bounds, core: usize, cores: &BTreeSet<usize>) -> Option<Pen> {
        spec.keeper = self.keeper();
        let life = self.host.holds.name_life(&spec.name);
        let pens = self.host.holds.pens.as_ref()?;
        let mut pen = pens.make(&life, core, bounds);
        pens.confine(&mut pen, cores);
        spec.born_in = pen.born_in().map(Path::to_path_buf);
        spec.cgroup = pen.joined_first();
        Some(pen)
    }

    /// Requests to move what is in a pen into all of its cgroups.
    pub(super) fn gather(&self, pen: &Pen) {
        self.host.holds.ask(Job::Gather(pen.gatherer()));
    }

    /// Makes a pen for the processes of a container and of its runtime.
    pub(super) fn hold_container(&mut self, name: &str, processes: u32) -> Option<Pen> {
        let life = self.host.holds.name_life(name);
        Some(self.host.holds.pens.as_ref()?.make_beside(&life, processes))
    }

    /// Requests to move a container's runtime and all that it has started into its NF's pen.
    pub(super) fn gather_container(&self, number: u16) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let (Some(pen), Some(runtime)) = (&nf.held.pen, &nf.process) else { return };
        match runtime.container.as_ref().and_then(|life| life.cgroup.clone()) {
            Some(cgroup) => self.host.holds.ask(Job::Gather(pen.gatherer_of(cgroup))),
            // Nothing contains both but their pen, once the runtime is in it.
            None => {
                let Ok(pidfd) = runtime.pidfd.try_clone() else { return };
                self.host.holds.ask(Job::TakeIn(pen.gatherer(), runtime.pid, pidfd));
            }
        }
    }

    fn confine_container(&mut self, number: u16) {
        let (Some(nf), Some(pens)) = (self.nfs.get_mut(&number), &self.host.holds.pens) else { return };
        if let Some(cgroup) = nf.process.as_ref().and_then(|runtime| runtime.container.as_ref()?.cgroup.as_ref()) {
            // The file is missing if this hierarchy has no cores; version 1 may have them.
            let cores = std::fs::OpenOptions::new().write(true).open(cgroup.join("cpuset.cpus"));
            let _ = cores.and_then(|mut to| std::io::Write::write_all(&mut to, nf.core.to_string().as_bytes()));
        }
        if let Some(pen) = &mut nf.held.pen {
            pens.confine(pen, &[nf.core].into());
        }
        self.gather_container(number);
    }

    /// Keeps the process of an admitted NF on its core, whatever started it.
    pub(super) fn confine(&mut self, number: u16, pid: Pid, pidfd: OwnedFd, is_forked: bool) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let core = nf.core;
        pin(pid, core);
        let Some(service) = self.service_of(nf) else { return };
        if service.container.is_some() {
            return self.confine_container(number);
        }
        let bounds = self.bounds_on(&service.config, 1, core);
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        let life = self.host.holds.name_life(&nf.name);
        let Some(pens) = &self.host.holds.pens else { return };
        let pen = nf.held.pen.get_or_insert_with(|| pens.make(&life, core, bounds));
        pens.confine(pen, &[core].into());
        let gatherer = pen.gatherer();
        self.host.holds.ask(if is_forked { Job::TakeIn(gatherer, pid, pidfd) } else { Job::Gather(gatherer) });
    }

    /// Kills what is left of an NF whose process has ended, if any: the NF is lost after that.
    pub(super) fn is_held(&mut self, number: u16) -> bool {
        self.leave_schedule(number);
        let Some(nf) = self.nfs.get_mut(&number) else { return false };
        let Some(pen) = nf.held.pen.as_ref().filter(|pen| !pen.is_empty()) else { return false };
        pen.kill();
        if let Some(process) = &nf.process {
            // It stays readable, and has nothing more to report.
            let _ = epoll::delete(&self.host.epoll, process.pidfd.as_fd());
        }
        self.host.holds.ending.entry(number).or_insert_with(Instant::now);
        true
    }

    pub(super) fn let_go(&mut self) {
        let mut gone = Vec::new();
        for (number, since) in &self.host.holds.ending {
            let Some(nf) = self.nfs.get(number) else {
                gone.push(*number);
                continue;
            };
            let is_late = since.elapsed() >= PATIENCE;
            match &nf.held.pen {
                Some(pen) if !pen.is_empty() && !is_late => pen.kill(),
                Some(pen) if is_late => {
                    warn!("{} has left processes that cannot end: {:?}", nf.name, pen.members());
                    gone.push(*number);
                }
                _ => gone.push(*number),
            }
        }
        for number in gone {
            self.host.holds.ending.remove(&number);
            self.lost(number);
        }
    }

    /// Requests to remove the pen of a lost NF, and checks what it may have left with its zygote.
    pub(super) fn release(&mut self, number: u16) {
        self.host.holds.ending.remove(&number);
        let Some(nf) = self.nfs.get_mut(&number) else { return };
        if let Some(pen) = nf.held.pen.take() {
            // One that was never admitted may still run.
            if !pen.is_empty() {
                pen.kill();
            }
            self.host.holds.ask(Job::Remove(Box::new(pen)));
        }
        self.host.holds.swept.insert(nf.service);
        self.host.holds.has_strays = true;
    }

    /// Removes a zygote's pen with all in it, after admitted instances have moved to their own.
    pub(super) fn release_zygote(&mut self, pen: Option<Pen>) {
        let Some(pen) = pen else { return };
        if self.host.holds.jobs.is_none() {
            // There is no thread that moves anything.
            pen.kill();
        }
        self.host.holds.ask(Job::End(Box::new(pen)));
        self.host.holds.has_strays = true;
    }

    /// Kills forks that instances made before they were moved from their zygote's pen.
    pub(super) fn sweep_zygotes(&mut self) {
        self.collect_strays();
        for service in std::mem::take(&mut self.host.holds.swept) {
            let Some(Some(state)) = self.services.get(usize::from(service)) else { continue };
            let Some((pen, is_busy)) = state.zygote.as_ref().and_then(super::zygote::Zygote::pen) else { continue };
            if is_busy {
                // One of them is an instance that has not come yet.
                self.host.holds.swept.insert(service);
                continue;
            }
            let strays: Vec<Pid> = pen.members().into_iter().filter_map(Pid::from_raw).filter(|pid| !self.is_known(*pid)).collect();
            for pid in strays {
                let Ok(pidfd) = process::pidfd_open(pid) else { continue };
                if pen.members().contains(&pid.as_raw_nonzero().get()) {
                    let _ = process::send_signal(pidfd.as_fd(), rustix::process::Signal::KILL);
                }
            }
        }
    }

    /// Collects ended unknown children: NFs may have cloned them.
    fn collect_strays(&mut self) {
        // Without a keeper they look like those that other threads of this process have started.
        if !self.host.holds.has_strays || !self.has_keeper() {
            return;
        }
        let is_busy =
            |service: &ServiceState| service.zygote.as_ref().and_then(super::zygote::Zygote::pen).is_some_and(|(_, is)| is);
        if self.services.iter().flatten().any(is_busy) {
            // One of the ended may be an instance that a zygote has forked and not reported yet.
            return;
        }
        self.host.holds.has_strays = false;
        if !process::has_ended_child() {
            return;
        }
        let proc = Proc::default();
        let has_ended = |pid: &Pid| proc.stat(*pid).is_ok_and(|stat| stat.has_ended());
        // The first of a namespace is the keeper, or the runtime of a container.
        let is_kept = |pid: &Pid| proc.number_inside(*pid).is_some_and(|inside| inside > 1);
        let unknown: Vec<Pid> = proc.children().into_iter().filter(|pid| !self.is_known(*pid)).collect();
        for pid in unknown.into_iter().filter(|pid| is_kept(pid) && has_ended(pid)) {
            if let Ok(pidfd) = process::pidfd_open(pid) {
                let _ = process::reap(pidfd.as_fd());
            }
        }
    }

    /// Removes all pens. No NF is left.
    pub(super) fn restore_pens(&mut self) {
        self.nfs.values_mut().for_each(|nf: &mut Nf| drop(nf.held.pen.take()));
        self.host.holds.jobs = None;
        if let Some(thread) = self.host.holds.thread.take() {
            let _ = thread.join();
        }
        if let Some(keeper) = self.host.holds.keeper.take() {
            // Everything inside ends with it, and all remaining children are collected.
            keeper.kill();
            let until = Instant::now() + Duration::from_secs(1);
            while keeper.is_alive() && Instant::now() < until {
                if !matches!(rustix::process::wait(rustix::process::WaitOptions::NOHANG), Ok(Some(_))) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        let Some(pens) = self.host.holds.pens.take() else { return };
        match pens.remove() {
            Ok(()) => {
                let paths = Pens::paths(Path::new("/"), &format!("sluice-{}-nfs", std::process::id()));
                paths.into_iter().for_each(|path| self.note(|r| r.removed(&path)));
            }
            Err((folder, error)) => warn!("cannot remove cgroup {}: {error}", folder.display()),
        }
    }

    /// Makes the NF socket refuse users that no service has. Users in a container may be any.
    pub(super) fn know_users(&mut self) {
        let services = self.services.iter().flatten().chain(self.versions_on_trial());
        let any = services.clone().any(|service| service.container.is_some());
        let users = services.filter_map(|service| service.user.as_ref()).map(|user| user.uid).collect();
        self.host.sockets.main.know((!any).then_some(users));
    }

    /// The user of a service: the named one; or its own, if the daemon is root and starts it.
    pub(super) fn user_of(&mut self, config: &model::Service, named: Option<User>) -> Result<Option<User>, UserError> {
        let control = self.config.control.group.as_deref().map(look_up_group).transpose()?;
        let controls = |user: &&User| user.uid != 0 && control.is_some_and(|gid| user.gid == gid || user.groups.contains(&gid));
        if let Some(user) = named.as_ref().filter(controls) {
            return Err(UserError::Controls { service: config.name.clone(), uid: user.uid });
        }
        let has_process = config.exec.is_some() && !config.is_inline();
        let is_ours = has_process && config.container.is_none() && !config.attach && !config.is_foreign();
        let is_root = rustix::process::geteuid().is_root();
        if named.is_some() || !is_ours || !is_root {
            let uid = named.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
            if is_ours && uid != 0 {
                self.host.holds.others.entry(uid).or_insert_with(|| Proc::default().threads_of(uid));
            }
            return Ok(named);
        }
        let manager = &self.config.manager;
        for folder in manager.runtime_dir.ancestors() {
            let mode = folder.metadata().map_or(0o755, |metadata| metadata.mode() & 0o7777);
            if mode & 0o001 == 0 {
                return Err(UserError::Closed { service: config.name.clone(), folder: folder.into(), mode });
            }
        }
        let uids = self.host.holds.uids.get_or_insert_with(|| Uids::new(manager.uid_first, manager.uid_count));
        let busy: BTreeSet<u32> = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
            .filter_map(|entry| Some(entry.metadata().ok()?.uid()))
            .collect();
        uids.give(&manager.runtime_dir, &config.name, |uid| busy.contains(&uid) || control == Some(uid)).map(Some)
    }
}

/// Moves all threads of a process to a core. One that may not, or has ended, stays.
fn pin(pid: Pid, core: usize) {
    if core >= CpuSet::MAX_CPU {
        return;
    }
    let mut cpus = CpuSet::new();
    cpus.set(core);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    for task in tasks.into_iter().flatten().flatten() {
        let number = task.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let _ = number.map(|thread| sched_setaffinity(Some(thread), &cpus));
    }
}
