//! Cgroups that hold all processes of an NF, including forked ones, and keep them on its core.
//!
//! # Problem
//! Processes that an NF has forked may have left its process group and session. When the NF is
//! stopped, they run on and keep packet memory mapped. Any process may also ask the kernel for
//! other cores, and make as many processes as its user may.
//!
//! # Terms
//! A *pen* holds one life of an NF, from its first instruction until its last process is gone: a
//! cgroup of version 2, where that hierarchy is mounted, with controllers or without, and one for
//! each controller of version 1.
//!
//! # Approach
//! ```text
//! version 2   home ─── sluice-PID-nfs ─┬─ nf-ids.0-7     born in it; or its weight's folder
//!                                      └─ nf-nat.0-9
//! v1 pids     home ─── sluice-PID-nfs ─── nf-ids.0-7     pids.max
//! v1 memory   home ─── sluice-PID-nfs ─── nf-ids.0-7     memory.limit_in_bytes; if bounded
//! v1 cpu      home ─── sluice-PID ─ core-1 ─ nf-ids.0-7  cpu.shares; if weighted by version 1
//! v1 cpuset   home ─── sluice-PID-nfs ─── cores-1        cpuset.cpus; of all NFs of these cores
//! ```
//! - A process is born in the folder of version 2 (`CLONE_INTO_CGROUP`), which costs nothing. It
//!   has to be moved into those of version 1, which takes the kernel some 15 ms:
//!   [`Gatherer::gather`] does so off the critical path, and also moves what the NF has forked by
//!   then. If a process forks and ends before it is moved, its child is missed: then `gather`
//!   returns false, and is called again. On a host without version 2 the process joins the folder
//!   of `pids` before it executes its program.
//! - [`Pen::kill`] ends all processes in it: by `cgroup.kill`, or, with version 1 and before Linux
//!   5.14, one by one, after `pids.max` was set to 0 where possible, so that no new ones appear.
//!   [`Pen::is_empty`] reports when all are gone.
//! - Each life has names of its own, so that removal never hits a new start.
//!
//! # Limits
//! Until a process is gathered, only its filter keeps it on its core, and only its user's limit
//! bounds its forks. Root may move itself to any cgroup: an NF that runs as root is not held. Where
//! neither version is available, nothing is held, and [`Pens::lacks`] reports it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::kernel::{Kernel, Linux};
use super::{Group, MORE, NfGroup, PROCS, SUBTREE, Version, component, folder_of, is_gone};
use crate::{affinity, process};

/// Maximum time for killed processes to leave a cgroup.
const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum number of passes over a pen's processes.
const PASSES: usize = 16;

/// Messages of [`Pens::lacks`].
pub const FORKED: &str = "what an NF has forked is not ended with it";
const CORE: &str = "only its filter keeps an NF on its core";
const NUMBER: &str = "`pids` holds for all processes of a user together";

/// The files that bound memory, of version 2 and of version 1.
const MEMORY: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];

/// The files that count OOM kills, of version 2 and of version 1.
const EVENTS: [&str; 2] = ["memory.events", "memory.oom_control"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of processes and threads.
    pub processes: u32,
    /// Maximum of memory in bytes; unbounded if None.
    pub memory: Option<u64>,
    /// Whether it has a CPU weight.
    pub is_weighed: bool,
}

/// A daemon's folders, in which pens are made.
#[derive(Debug)]
pub struct Pens {
    kernel: Arc<dyn Kernel>,
    unified: Option<Unified>,
    /// Folder of version 1 for the number of processes.
    pids: Option<PathBuf>,
    /// The same for memory.
    memory: Option<PathBuf>,
    /// The same for weights.
    cpu: Option<Arc<Group>>,
    /// The same for cores.
    cpuset: Option<PathBuf>,
    /// Folders of cores in `cpuset`.
    cores: Mutex<BTreeSet<PathBuf>>,
}

#[derive(Debug)]
enum Unified {
    Own(PathBuf),
    /// The group that weights NFs.
    Weighed(Arc<Group>),
}

/// Cgroups of one life of an NF. Drop removes them if possible.
#[derive(Debug)]
pub struct Pen {
    kernel: Arc<dyn Kernel>,
    /// Of version 2.
    unified: Option<PathBuf>,
    /// The folder with the NF's weight: `unified` or `cpu`.
    weighed: Option<NfGroup>,
    /// Of version 1.
    pids: Option<PathBuf>,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuset: Option<PathBuf>,
}

impl Pens {
    /// The folders that [`create`](Self::create) makes below the root `root`; note them before.
    pub fn paths(root: &Path, name: &str) -> Vec<PathBuf> {
        let place = |version, controller| folder_of(root, version, controller, "self").ok().flatten();
        let of_v1 = ["pids", "memory", "cpuset"].map(|controller| place(Version::V1, controller));
        [place(Version::V2, "")].into_iter().chain(of_v1).flatten().map(|home| home.join(component(name))).collect()
    }

    /// What pens below the root `root` will probably lack, as [`Self::lacks`]. Changes nothing.
    pub fn forecast(root: &Path) -> Vec<&'static str> {
        let is_there = |version, controller| folder_of(root, version, controller, "self").is_ok_and(|folder| folder.is_some());
        let lacks = [
            (!is_there(Version::V2, "") && !is_there(Version::V1, "pids"), FORKED),
            (!may_have(root, "cpuset"), CORE),
            (!may_have(root, "pids"), NUMBER),
        ];
        lacks.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect()
    }

    /// Whether pens below the file-system root `root` can probably bound memory. Changes nothing.
    pub fn may_bound_memory(root: &Path) -> bool {
        may_have(root, "memory")
    }

    /// Makes the daemon's folders. `weighed` is the group that weights NFs, of either version.
    /// Skips what cannot be made: see [`Self::lacks`].
    pub fn create(root: &Path, name: &str, weighed: Option<Arc<Group>>) -> Self {
        Self::create_on(Arc::new(Linux), root, name, weighed)
    }

    pub(super) fn create_on(kernel: Arc<dyn Kernel>, root: &Path, name: &str, weighed: Option<Arc<Group>>) -> Self {
        let home = |version, controller| folder_of(root, version, controller, "self").ok().flatten();
        let make = |home: PathBuf| {
            let folder = home.join(component(name));
            kernel.make(&folder).is_ok().then_some(folder)
        };
        let (of_v2, cpu) = match weighed {
            Some(group) if group.version() == Version::V2 => (Some(group), None),
            other => (None, other),
        };
        let unified = match of_v2 {
            Some(group) => Some(Unified::Weighed(group)),
            None => home(Version::V2, "").and_then(make).map(|folder| {
                for controller in MORE {
                    // Works if the folder above passes it on; otherwise version 1 may have it.
                    let _ = kernel.write(&folder.join(SUBTREE), &format!("+{controller}"));
                }
                Unified::Own(folder)
            }),
        };
        let (pids, memory) = (home(Version::V1, "pids").and_then(make), home(Version::V1, "memory").and_then(make));
        let cpuset = home(Version::V1, "cpuset").and_then(make).filter(|folder| {
            let above = folder.parent().unwrap_or(folder);
            let takes = |file: &str| {
                let text = kernel.read(&above.join(file)).unwrap_or_default();
                kernel.write(&folder.join(file), text.trim()).is_ok()
            };
            // Version 1 admits no process to a cpuset that lacks either.
            takes("cpuset.cpus") && takes("cpuset.mems") || {
                let _ = kernel.remove(folder);
                false
            }
        });
        Self { kernel, unified, pids, memory, cpu, cpuset, cores: Mutex::default() }
    }

    /// Whether children of the folder of version 2 have this controller.
    fn passes(&self, controller: &str) -> bool {
        let folder = match &self.unified {
            Some(Unified::Own(folder)) => folder,
            Some(Unified::Weighed(group)) => group.path(),
            None => return false,
        };
        let text = self.kernel.read(&folder.join(SUBTREE)).unwrap_or_default();
        text.split_whitespace().any(|word| word == controller)
    }

    /// What these pens cannot do, in words.
    pub fn lacks(&self) -> Vec<&'static str> {
        let mut lacks = Vec::new();
        if self.unified.is_none() && self.pids.is_none() {
            lacks.push(FORKED);
        }
        if self.cpuset.is_none() && !self.passes("cpuset") {
            lacks.push(CORE);
        }
        if self.pids.is_none() && !self.passes("pids") {
            lacks.push(NUMBER);
        }
        lacks
    }

    pub fn bounds_memory(&self) -> bool {
        self.memory.is_some() || self.passes("memory")
    }

    /// Makes a pen for a life of an NF. `life` is unique. Skips what cannot be made.
    pub fn make(&self, life: &str, core: usize, bounds: Bounds) -> Pen {
        let kernel = &self.kernel;
        let name = format!("nf-{}", component(life));
        let mut pen =
            Pen { kernel: kernel.clone(), unified: None, weighed: None, pids: None, memory: None, cpu: None, cpuset: None };
        match &self.unified {
            Some(Unified::Own(folder)) => {
                let own = folder.join(&name);
                pen.unified = kernel.make(&own).is_ok().then_some(own);
            }
            Some(Unified::Weighed(group)) => {
                pen.weighed = group.add_nf(life, core).ok();
                pen.unified = pen.weighed.as_ref().map(|nf| nf.path().to_path_buf());
            }
            None => {}
        }
        if let Some(folder) = &self.pids {
            let own = folder.join(&name);
            pen.pids = kernel.make(&own).is_ok().then_some(own);
        }
        for folder in [&pen.unified, &pen.pids].into_iter().flatten() {
            // Missing where this hierarchy does not bound it.
            let _ = kernel.write(&folder.join("pids.max"), &bounds.processes.to_string());
        }
        if let Some(bytes) = bounds.memory {
            pen.memory = self.memory.as_ref().map(|folder| folder.join(&name)).filter(|own| kernel.make(own).is_ok());
            for folder in [&pen.unified, &pen.memory].into_iter().flatten() {
                for file in MEMORY {
                    let _ = kernel.write(&folder.join(file), &bytes.to_string());
                }
                // An NF of which one process was killed is useless: kill all of it.
                let _ = kernel.write(&folder.join("memory.oom.group"), "1");
            }
        }
        // Only processes found in one of these are moved there.
        if let Some(group) = self.cpu.as_ref().filter(|_| bounds.is_weighed && (pen.unified.is_some() || pen.pids.is_some())) {
            pen.weighed = group.add_nf(life, core).ok();
            pen.cpu = pen.weighed.as_ref().map(|nf| nf.path().to_path_buf());
        }
        pen
    }

    /// Makes a pen only of version 1, for a container, which already has a cgroup of version 2.
    ///
    /// It bounds the number of processes; the runtime bounds memory.
    pub fn make_beside(&self, life: &str, processes: u32) -> Pen {
        let kernel = &self.kernel;
        let own = self.pids.as_ref().map(|folder| folder.join(format!("nf-{}", component(life))));
        let pids = own.filter(|own| kernel.make(own).is_ok());
        if let Some(folder) = &pids {
            let _ = kernel.write(&folder.join("pids.max"), &processes.to_string());
        }
        Pen { kernel: kernel.clone(), unified: None, weighed: None, pids, memory: None, cpu: None, cpuset: None }
    }

    /// Confines present and future processes of a pen to these cores. Present ones must be
    /// [gathered](Gatherer::gather).
    pub fn confine(&self, pen: &mut Pen, cores: &BTreeSet<usize>) {
        let list = affinity::list(cores);
        if let Some(folder) = &pen.unified {
            let _ = self.kernel.write(&folder.join("cpuset.cpus"), &list);
        }
        let Some(above) = &self.cpuset else { return };
        let folder = above.join(format!("cores-{}", list.replace(',', "_")));
        let mut made = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        if !made.contains(&folder) {
            let mems = self.kernel.read(&above.join("cpuset.mems")).unwrap_or_default();
            let done = self.kernel.make(&folder).and_then(|()| {
                self.kernel.write(&folder.join("cpuset.cpus"), &list)?;
                self.kernel.write(&folder.join("cpuset.mems"), mems.trim())
            });
            if done.is_err() {
                let _ = self.kernel.remove(&folder);
                return;
            }
            made.insert(folder.clone());
        }
        pen.cpuset = Some(folder);
    }

    /// Removes the daemon's folders. Remove the pens before.
    ///
    /// # Errors
    /// The first folder that could not be removed, and why.
    pub fn remove(self) -> Result<(), (PathBuf, io::Error)> {
        let cores = self.cores.into_inner().unwrap_or_else(PoisonError::into_inner);
        let own = match self.unified {
            Some(Unified::Own(folder)) => Some(folder),
            _ => None,
        };
        let mut first = Ok(());
        for folder in cores.into_iter().chain(own).chain(self.pids).chain(self.memory).chain(self.cpuset) {
            first = first.and(remove_empty(&*self.kernel, &folder).map_err(|error| (folder, error)));
        }
        first
    }
}

impl Pen {
    /// The folder of version 2 in which the NF's process is born.
    pub fn born_in(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    /// Without version 2: `cgroup.procs` that the NF's process joins before it executes.
    pub fn joined_first(&self) -> Option<PathBuf> {
        self.pids.as_ref().filter(|_| self.unified.is_none()).map(|folder| folder.join(PROCS))
    }

    /// Takes the cgroup of the NF's weight, if it is here. Gathering moves its processes.
    pub fn take_weighed(&mut self) -> Option<NfGroup> {
        self.weighed.take()
    }

    /// Gives it the least CPU weight that there is, if weights are set here.
    pub fn weigh_least(&self) {
        // It is of class idle as well, so a folder that is gone is no loss.
        let _ = self.weighed.as_ref().map(|weighed| weighed.set_weight(0.0));
    }

    /// A handle that moves processes from another thread.
    pub fn gatherer(&self) -> Gatherer {
        let pids = self.pids.as_ref().filter(|_| self.unified.is_some());
        // The folder that bounds forks comes first.
        let late = [pids, self.cpuset.as_ref(), self.cpu.as_ref(), self.memory.as_ref()];
        Gatherer {
            kernel: self.kernel.clone(),
            first: self.unified.clone().or_else(|| self.pids.clone()),
            late: late.into_iter().flatten().cloned().collect(),
        }
    }

    /// A gatherer of the processes in or below another cgroup, `first`.
    pub fn gatherer_of(&self, first: PathBuf) -> Gatherer {
        let late = self.pids.iter().chain(&self.cpuset).cloned().collect();
        Gatherer { kernel: self.kernel.clone(), first: Some(first), late }
    }

    pub fn is_empty(&self) -> bool {
        self.folders().all(|folder| below(&*self.kernel, folder, true).is_empty())
    }

    /// The folders of this life only.
    fn folders(&self) -> impl Iterator<Item = &Path> {
        self.unified.iter().chain(&self.pids).map(PathBuf::as_path)
    }

    /// Kills all processes in it, which may take a moment to end.
    pub fn kill(&self) {
        for folder in self.folders() {
            if self.kernel.write(&folder.join("cgroup.kill"), "1").is_ok() {
                continue;
            }
            let _ = self.kernel.write(&folder.join("pids.max"), "0");
            for pid in below(&*self.kernel, folder, true).into_iter().filter_map(Pid::from_raw) {
                let Ok(pidfd) = process::pidfd_open(pid) else { continue };
                // In this order: a member with this pid after opening is the pidfd's process.
                if below(&*self.kernel, folder, true).contains(&pid.as_raw_nonzero().get()) {
                    let _ = process::send_signal(pidfd.as_fd(), Signal::KILL);
                }
            }
        }
    }

    /// Number of its processes that the OOM killer has ended; 0 where that is not counted.
    pub fn killed_for_memory(&self) -> u64 {
        let files =
            [self.unified.as_ref().map(|folder| folder.join(EVENTS[0])), self.memory.as_ref().map(|folder| folder.join(EVENTS[1]))];
        let count = |file: PathBuf| {
            let text = self.kernel.read(&file).ok()?;
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
        };
        files.into_iter().flatten().filter_map(count).sum()
    }

    /// The folder that holds all of its processes, if this one is there by now.
    pub fn folder_with(&self, pid: i32) -> Option<&Path> {
        self.folders().find(|folder| below(&*self.kernel, folder, true).contains(&pid))
    }

    pub fn members(&self) -> Vec<i32> {
        self.folders().next().map_or(Vec::new(), |folder| below(&*self.kernel, folder, true))
    }

    /// Removes it; it must be empty.
    ///
    /// # Errors
    /// The first folder that could not be removed, and why.
    pub fn remove(mut self) -> Result<(), (PathBuf, io::Error)> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let weighed = self.weighed.take();
        let is_weighed = weighed.as_ref().is_some_and(|nf| Some(nf.path()) == self.unified.as_deref());
        let own = self.unified.take().filter(|_| !is_weighed);
        let mut first = Ok(());
        for folder in own.into_iter().chain(self.pids.take()).chain(self.memory.take()) {
            first = first.and(remove_empty(&*self.kernel, &folder).map_err(|error| (folder, error)));
        }
        // Last: a process that is still in it would go to the daemon's own.
        drop(weighed);
        first
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        // The record has the parent folder.
        let _ = self.take_down();
    }
}

/// Moves the processes of a pen into the cgroups that they were not born in.
#[derive(Debug)]
pub struct Gatherer {
    kernel: Arc<dyn Kernel>,
    first: Option<PathBuf>,
    late: Vec<PathBuf>,
}

impl Gatherer {
    /// Moves a living process that was forked elsewhere into the cgroup of its birth.
    pub fn take_in(&self, pid: Pid, pidfd: std::os::fd::BorrowedFd<'_>) {
        let Some(first) = &self.first else { return };
        if process::wait_readable(pidfd, Some(0)) == Ok(false) {
            // If it ends meanwhile, this has no effect.
            let _ = self.kernel.write(&first.join(PROCS), &pid.as_raw_nonzero().to_string());
        }
    }

    /// Moves all processes of the pen; false if they fork faster than that.
    ///
    /// If false, call it again after a while.
    ///
    /// # Errors
    /// The first process that could not be moved, and why. An ended one is no error.
    pub fn gather(&self) -> io::Result<bool> {
        self.pass_through(PASSES)
    }

    /// Repeats an unfinished [`gather`](Self::gather) with one pass.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn gather_again(&self) -> io::Result<bool> {
        self.pass_through(2)
    }

    fn pass_through(&self, passes: usize) -> io::Result<bool> {
        let Some(first) = &self.first else { return Ok(true) };
        let mut result = Ok(());
        for _ in 0..passes {
            let members = below(&*self.kernel, first, true);
            let mut is_done = true;
            for folder in &self.late {
                let there = below(&*self.kernel, folder, false);
                for pid in members.iter().filter(|pid| !there.contains(pid)) {
                    match self.kernel.write(&folder.join(PROCS), &pid.to_string()) {
                        Ok(()) => is_done = false,
                        // It has ended, and may have forked another one before.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => is_done = false,
                        // The NF is gone with its cgroups.
                        Err(error) if is_gone(&error) => {}
                        Err(error) => result = result.and(Err(error)),
                    }
                }
            }
            if is_done || result.is_err() {
                return result.map(|()| true);
            }
        }
        Ok(false)
    }

    pub fn is_of_same(&self, other: &Self) -> bool {
        self.first == other.first
    }
}

/// Whether a cgroup of this controller is probably available.
fn may_have(root: &Path, controller: &str) -> bool {
    let place = |version, controller| folder_of(root, version, controller, "self").ok().flatten();
    // A folder that passes it on is looked for when it is made; here a possible one suffices.
    let text = place(Version::V2, "").and_then(|home| std::fs::read_to_string(home.join("cgroup.controllers")).ok());
    place(Version::V1, controller).is_some() || text.unwrap_or_default().split_whitespace().any(|word| word == controller)
}

/// The processes of a cgroup, and, if `deep`, of those below it. Empty if it does not exist.
fn below(kernel: &dyn Kernel, folder: &Path, deep: bool) -> Vec<i32> {
    let text = kernel.read(&folder.join(PROCS)).unwrap_or_default();
    let mut pids: Vec<i32> = text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect();
    if deep {
        for inside in kernel.folders(folder).unwrap_or_default() {
            pids.extend(below(kernel, &inside, true));
        }
    }
    pids
}

/// Removes a cgroup whose last process is about to leave, and those below it.
fn remove_empty(kernel: &dyn Kernel, folder: &Path) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        for inside in kernel.folders(folder).unwrap_or_default() {
            let _ = kernel.remove(&inside);
        }
        match kernel.remove(folder) {
            Err(error) if is_gone(&error) => return Ok(()),
            // The kernel does not signal when it has released the last one.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
    use crate::spawn::{self, SpawnSpec, Stdio};
    use std::fs;

    fn most(processes: u32) -> Bounds {
        Bounds { processes, memory: None, is_weighed: false }
    }

    /// A kernel whose cgroups are plain folders below a root; written files are created.
    #[derive(Debug)]
    struct Plain;

    impl Kernel for Plain {
        fn make(&self, folder: &Path) -> io::Result<()> {
            Linux.make(folder)?;
            fs::write(folder.join(PROCS), "")?;
            let is = |name: &str| folder.components().any(|part| part.as_os_str() == name);
            let files: &[&str] = match () {
                () if is("cpuset") => &["cpuset.cpus", "cpuset.mems"],
                () if is("pids") => &["pids.max"],
                () if is("memory") => &["memory.limit_in_bytes"],
                () => &["cgroup.kill", "memory.max"],
            };
            files.iter().try_for_each(|file| fs::write(folder.join(file), ""))
        }
        fn remove(&self, folder: &Path) -> io::Result<()> {
            fs::remove_dir_all(folder)
        }
        fn folders(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
            Linux.folders(folder)
        }
        fn read(&self, file: &Path) -> io::Result<String> {
            Linux.read(file)
        }
        fn write(&self, file: &Path, text: &str) -> io::Result<()> {
            fs::metadata(file)?;
            fs::write(file, text)
        }
        fn open(&self, file: &Path) -> io::Result<Box<dyn super::super::kernel::Knob>> {
            Linux.open(file)
        }
    }

    /// A file-system root with these hierarchies mounted.
    fn root(mounts: &[(&str, Version)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let (mut mountinfo, mut member) = (String::new(), String::new());
        for (i, (name, version)) in mounts.iter().enumerate() {
            let (kind, options) = if *version == Version::V1 { ("cgroup", *name) } else { ("cgroup2", "") };
            mountinfo += &format!("{} 1 0:{i} / /cg/{name} rw - {kind} {kind} rw,{options}\n", 30 + i);
            member += &if *version == Version::V1 { format!("{}:{name}:/\n", i + 1) } else { "0::/\n".to_owned() };
            let folder = root.path().join("cg").join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(PROCS), "").unwrap();
            fs::write(folder.join("cpuset.cpus"), "0-3\n").unwrap();
            fs::write(folder.join("cpuset.mems"), "0-1\n").unwrap();
        }
        fs::write(root.path().join("proc/self/mountinfo"), mountinfo).unwrap();
        fs::write(root.path().join("proc/self/cgroup"), member).unwrap();
        root
    }

    #[test]
    fn a_pen_of_version_1_has_a_core_a_number_and_is_joined_first() {
        let root = root(&[("cpuset", Version::V1), ("pids", Version::V1)]);
        let pens = Pens::create_on(Arc::new(Plain), root.path(), "sluice-1-nfs", None);
        assert_eq!(pens.lacks(), Vec::<&str>::new());
        let mut pen = pens.make("ids.0-7", 2, most(77));
        pens.confine(&mut pen, &[2].into());
        let (cpuset, pids) = (root.path().join("cg/cpuset/sluice-1-nfs"), root.path().join("cg/pids/sluice-1-nfs"));
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!((read(cpuset.join("cpuset.cpus")), read(cpuset.join("cpuset.mems"))), ("0-3".into(), "0-1".into()));
        assert_eq!(
            (read(cpuset.join("cores-2/cpuset.cpus")), read(cpuset.join("cores-2/cpuset.mems"))),
            ("2".into(), "0-1".into())
        );
        assert_eq!(read(pids.join("nf-ids.0-7/pids.max")), "77");
        assert_eq!(pen.born_in(), None);
        assert_eq!(pen.joined_first(), Some(pids.join("nf-ids.0-7/cgroup.procs")));
        fs::write(pids.join("nf-ids.0-7/cgroup.procs"), "42\n").unwrap();
        assert!(!pen.is_empty());
        pen.gatherer().gather().unwrap();
        assert_eq!(read(cpuset.join("cores-2/cgroup.procs")), "42");
        // No new process appears while they are killed.
        fs::write(pids.join("nf-ids.0-7/cgroup.procs"), "").unwrap();
        pen.kill();
        assert_eq!(read(pids.join("nf-ids.0-7/pids.max")), "0");
        pen.remove().unwrap();
        pens.remove().unwrap();
        assert!(!cpuset.exists() && !pids.exists());
    }

    #[test]
    fn a_pen_of_version_2_is_born_in_and_killed_at_once() {
        let root = root(&[("cpuset", Version::V1), ("unified", Version::V2)]);
        let paths = Pens::paths(root.path(), "sluice-1-nfs");
        let pens = Pens::create_on(Arc::new(Plain), root.path(), "sluice-1-nfs", None);
        assert!(paths.len() == 2 && paths.iter().all(|path| path.exists()), "what is noted is what is made: {paths:?}");
        assert_eq!(pens.lacks(), ["`pids` holds for all processes of a user together"]);
        let mut pen = pens.make("ids.0-7", 2, most(77));
        pens.confine(&mut pen, &[1, 3].into());
        let own = root.path().join("cg/unified/sluice-1-nfs/nf-ids.0-7");
        assert_eq!((pen.born_in(), pen.joined_first()), (Some(&*own), None));
        // With its forks, but without a child cgroup of its own.
        fs::create_dir(own.join("below")).unwrap();
        fs::write(own.join("below/cgroup.procs"), "43\n").unwrap();
        assert!(!pen.is_empty());
        assert_eq!(pen.members(), [43]);
        pen.kill();
        assert_eq!(fs::read_to_string(own.join("cgroup.kill")).unwrap(), "1");
        drop(pen);
        pens.remove().unwrap();
        assert!(paths.iter().all(|path| !path.exists()));
    }

    #[test]
    fn memory_is_bounded_by_either_version_where_it_is_to_be() {
        let bounds = Bounds { memory: Some(64 << 20), ..most(8) };
        let root_of_v1 = root(&[("unified", Version::V2), ("memory", Version::V1)]);
        let pens = Pens::create_on(Arc::new(Plain), root_of_v1.path(), "sluice-1-nfs", None);
        assert!(pens.bounds_memory() && Pens::may_bound_memory(root_of_v1.path()));
        let own = root_of_v1.path().join("cg/memory/sluice-1-nfs");
        drop(pens.make("ids.0-1", 1, most(8)));
        assert!(Linux.folders(&own).unwrap().is_empty(), "none that nobody has asked for");
        let pen = pens.make("ids.0-2", 1, bounds);
        assert_eq!(fs::read_to_string(own.join("nf-ids.0-2/memory.limit_in_bytes")).unwrap(), (64 << 20).to_string());
        fs::write(pen.born_in().unwrap().join(PROCS), "42\n").unwrap();
        pen.gatherer().gather().unwrap();
        assert_eq!(fs::read_to_string(own.join("nf-ids.0-2/cgroup.procs")).unwrap(), "42");
        pen.remove().unwrap();
        pens.remove().unwrap();
        assert!(!own.exists());

        let root_of_v2 = root(&[("unified", Version::V2)]);
        let pens = Pens::create_on(Arc::new(Plain), root_of_v2.path(), "sluice-1-nfs", None);
        assert!(!pens.bounds_memory() && !Pens::may_bound_memory(root_of_v2.path()), "it has no such controller");
        fs::write(root_of_v2.path().join("cg/unified/cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(root_of_v2.path().join("cg/unified/sluice-1-nfs/cgroup.subtree_control"), "memory\n").unwrap();
        assert!(pens.bounds_memory() && Pens::may_bound_memory(root_of_v2.path()));
        let pen = pens.make("ids.0-2", 1, bounds);
        assert_eq!(fs::read_to_string(pen.born_in().unwrap().join("memory.max")).unwrap(), (64 << 20).to_string());
    }

    /// Plain cgroups in which a process forks and ends each time it is looked for, a given number
    /// of times, and then stays.
    #[derive(Debug)]
    struct Chain {
        first: PathBuf,
        looks: std::sync::atomic::AtomicI32,
        ends_after: i32,
    }

    impl Chain {
        fn now(&self) -> i32 {
            self.looks.load(std::sync::atomic::Ordering::Relaxed)
        }
    }

    impl Kernel for Chain {
        fn make(&self, folder: &Path) -> io::Result<()> {
            Plain.make(folder)
        }
        fn remove(&self, folder: &Path) -> io::Result<()> {
            Plain.remove(folder)
        }
        fn folders(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
            Plain.folders(folder)
        }
        fn read(&self, file: &Path) -> io::Result<String> {
            if file != self.first.join(PROCS) {
                return Plain.read(file);
            }
            let before = self.now();
            if before < self.ends_after {
                self.looks.store(before + 1, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(format!("{}\n", 1000 + before))
        }
        fn write(&self, file: &Path, text: &str) -> io::Result<()> {
            let is_gone = file.ends_with(PROCS) && text != (1000 + self.ends_after).to_string();
            if is_gone { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Plain.write(file, text) }
        }
        fn open(&self, file: &Path) -> io::Result<Box<dyn super::super::kernel::Knob>> {
            Plain.open(file)
        }
    }

    #[test]
    fn one_that_forks_and_ends_before_it_is_moved_is_moved_when_it_stays() {
        let root = root(&[("unified", Version::V2), ("pids", Version::V1)]);
        let first = root.path().join("cg/unified/sluice-1-nfs/nf-bad.0-1");
        let kernel = Arc::new(Chain { first: first.clone(), looks: 0.into(), ends_after: 40 });
        let pens = Pens::create_on(kernel.clone(), root.path(), "sluice-1-nfs", None);
        let pen = pens.make("bad.0-1", 1, most(8));
        assert_eq!(pen.born_in(), Some(&*first));
        let gatherer = pen.gatherer();
        assert!(!gatherer.gather().unwrap(), "somebody new is found each time");
        let mut times = 0;
        while !gatherer.gather_again().unwrap() {
            times += 1;
            assert!(times < 40, "it stays, and is not found");
        }
        let own = root.path().join("cg/pids/sluice-1-nfs/nf-bad.0-1");
        assert_eq!(fs::read_to_string(own.join(PROCS)).unwrap(), "1040");
        assert!(gatherer.is_of_same(&pen.gatherer()) && !gatherer.is_of_same(&pens.make("bad.0-2", 1, most(8)).gatherer()));
    }

    #[test]
    fn many_cores_have_a_name_that_is_not_too_long() {
        let root = root(&[("cpuset", Version::V1), ("pids", Version::V1)]);
        let pens = Pens::create_on(Arc::new(Plain), root.path(), "sluice-1-nfs", None);
        let mut pen = pens.make("ids.0-7", 2, most(8));
        pens.confine(&mut pen, &(1..=200).chain([300]).collect());
        let folder = root.path().join("cg/cpuset/sluice-1-nfs/cores-1-200_300");
        assert_eq!(fs::read_to_string(folder.join("cpuset.cpus")).unwrap(), "1-200,300");
    }

    #[test]
    fn a_host_without_cgroups_is_reported_and_does_without() {
        let root = root(&[]);
        let pens = Pens::create_on(Arc::new(Plain), root.path(), "sluice-1-nfs", None);
        assert_eq!(pens.lacks().len(), 3);
        let mut pen = pens.make("ids.0-7", 2, most(77));
        pens.confine(&mut pen, &[1].into());
        assert!(pen.is_empty() && pen.born_in().is_none() && pen.joined_first().is_none());
        pen.gatherer().gather().unwrap();
        pen.kill();
        pen.remove().unwrap();
        pens.remove().unwrap();
    }

    /// On the real kernel: processes that fork while they are moved, and their earlier forks, end
    /// up in all cgroups of the NF.
    #[test]
    fn what_forks_while_it_is_moved_is_moved_with_all_that_it_has_forked() {
        let name = format!("sluice-{}-forktest", std::process::id());
        let weighed =
            super::super::Hierarchy::find(Path::new("/")).and_then(|hierarchy| hierarchy.create(&name, &[])).map(Arc::new).ok();
        let pens = Pens::create(Path::new("/"), &format!("{name}-nfs"), weighed.clone());
        let core = *crate::affinity::allowed().unwrap().last().unwrap();
        let mut pen = pens.make("bad.0-1", core, Bounds { is_weighed: true, memory: Some(1 << 30), ..most(100) });
        pens.confine(&mut pen, &[core].into());
        if pen.gatherer().late.is_empty() {
            return skip("there is no cgroup here that processes are moved to");
        }
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let mut spec = SpawnSpec::new("bad.0", "/bin/sh");
        let script = format!(
            "fork() {{ (sleep 1000 & sleep 1000) & }}; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do fork; done; echo > {}; wait",
            ready.display()
        );
        spec.args = vec!["-c".into(), script.into()];
        spec.stdio = Stdio::Null;
        (spec.born_in, spec.cgroup) = (pen.born_in().map(Path::to_path_buf), pen.joined_first());
        let spawned = spawn::spawn(&spec).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        // Some were forked before, others are meanwhile.
        while !pen.gatherer().gather().unwrap() || !ready.exists() || pen.members().len() < 33 {
            assert!(Instant::now() < until, "{:?}", pen.members());
        }
        let gatherer = pen.gatherer();
        let members: BTreeSet<i32> = pen.members().into_iter().collect();
        for late in &gatherer.late {
            let there: BTreeSet<i32> = below(&Linux, late, false).into_iter().collect();
            assert!(there.is_superset(&members), "{}: {:?} are not there", late.display(), members.difference(&there));
        }
        if let Some(group) = weighed.as_ref().filter(|group| group.version() == Version::V1) {
            assert!(gatherer.late.contains(&group.path_of("bad.0-1", core)), "what it has forked has its weight");
        }
        pen.kill();
        assert_eq!(process::wait(spawned.pidfd.as_fd()), Ok(process::Exit::Signal(libc::SIGKILL)));
        while !pen.is_empty() {
            assert!(Instant::now() < until, "{:?}", pen.members());
            std::thread::sleep(Duration::from_millis(1));
        }
        pen.remove().unwrap();
        pens.remove().unwrap();
        if let Some(group) = weighed.and_then(Arc::into_inner) {
            group.remove().unwrap();
        }
        assert!(Pens::paths(Path::new("/"), &format!("{name}-nfs")).iter().all(|path| !path.exists()));
    }

    /// On the real kernel, with what it has mounted.
    #[test]
    fn what_an_nf_has_forked_ends_with_its_pen() {
        let name = format!("sluice-{}-pentest", std::process::id());
        let pens = Pens::create(Path::new("/"), &name, None);
        let core = *crate::affinity::allowed().unwrap().last().unwrap();
        let mut pen = pens.make("ids.0-1", core, most(8));
        pens.confine(&mut pen, &[core].into());
        if pen.born_in().is_none() && pen.joined_first().is_none() {
            skip("no cgroup can be made here: what is asserted is that this is told");
            assert!(pens.lacks().contains(&"what an NF has forked is not ended with it"));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let mut spec = SpawnSpec::new("ids.0", "/bin/sh");
        let script = format!("(setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000' &) ; sleep 1000", ready.display());
        spec.args = vec!["-c".into(), script.into()];
        spec.stdio = Stdio::Null;
        (spec.born_in, spec.cgroup) = (pen.born_in().map(Path::to_path_buf), pen.joined_first());
        let spawned = spawn::spawn(&spec).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !ready.exists() {
            assert!(Instant::now() < until, "it does not start");
            std::thread::sleep(Duration::from_millis(1));
        }
        let orphan: i32 = fs::read_to_string(&ready).unwrap().trim().parse().unwrap();
        assert!(pen.members().contains(&orphan) && pen.members().contains(&spawned.pid.as_raw_nonzero().get()));
        pen.gatherer().gather().unwrap();
        if pens.cpuset.is_some() {
            let status = fs::read_to_string(format!("/proc/{orphan}/status")).unwrap();
            assert!(status.contains(&format!("Cpus_allowed_list:\t{core}\n")), "{status}");
        }
        let orphan = process::pidfd_open(Pid::from_raw(orphan).unwrap()).unwrap();
        pen.kill();
        assert_eq!(process::wait(spawned.pidfd.as_fd()), Ok(process::Exit::Signal(libc::SIGKILL)));
        assert_eq!(process::wait_readable(orphan.as_fd(), Some(60_000)), Ok(true));
        while !pen.is_empty() {
            assert!(Instant::now() < until, "{:?}", pen.members());
            std::thread::sleep(Duration::from_millis(1));
        }
        pen.remove().unwrap();
        pens.remove().unwrap();
        assert!(Pens::paths(Path::new("/"), &name).iter().all(|path| !path.exists()));
    }
}
