//! Cgroups that hold the processes of an NF together, whatever it forks, and keep them on its core.
//!
//! # Problem
//! An NF that is stopped may have forked processes that have left its process group and its session: they keep packet memory mapped, and
//! run on. Any process may also ask the kernel for other cores than it was given, and make as many processes as its user may.
//!
//! # Terms
//! A *pen* is what holds one life of an NF, from its first instruction until nothing of it is left: a cgroup of version 2, where that
//! hierarchy is mounted, with controllers or without, and one for each controller of version 1.
//!
//! # Approach
//! ```text
//! version 2     home ─── sluice-PID-nfs ─┬─ nf-ids.0-7        born in it; or, where NFs are weighed by version 2, its folder there
//!                                        └─ nf-nat.0-9
//! v1 pids       home ─── sluice-PID-nfs ─── nf-ids.0-7        pids.max
//! v1 cpuset     home ─── sluice-PID-nfs ─── cores-1           cpuset.cpus; of all NFs of these cores
//! ```
//! - A process is born in the folder of version 2 (`CLONE_INTO_CGROUP`), which costs nothing. Into those of version 1 it has to be moved,
//!   which takes the kernel some 15 ms: whoever has the time does it with [`Gatherer::gather`], which moves what the NF has forked by then,
//!   too. On a host without version 2 the process joins that of `pids` before it executes its program.
//! - [`Pen::kill`] ends all that is in it: by `cgroup.kill`, or, of version 1 and before Linux 5.14, process by process, after `pids.max`
//!   was set to 0 where it can be, so that no new ones come. [`Pen::is_empty`] says when they have gone.
//! - Each life has names of its own, so that what is being removed is never what is being started.
//!
//! # Limits
//! Until a process was gathered, its filter alone keeps it on its core. Root may move itself to any cgroup: an NF that runs as root is not
//! held. Where neither version is to be had, nothing is held, and [`Pens::lacks`] says so.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::kernel::{Kernel, Linux};
use super::{Group, NfGroup, PROCS, SUBTREE, Version, component, folder_of, is_gone};
use crate::mechanism::process;

/// Time that processes which were killed have to leave a cgroup.
const PATIENCE: Duration = Duration::from_secs(2);

/// Times that the processes of a pen are gone through.
const PASSES: usize = 16;

/// What a host may lack.
pub(crate) const FORKED: &str = "what an NF has forked is not ended with it";
const CORE: &str = "only its filter keeps an NF on its core";
const NUMBER: &str = "`pids` holds for all processes of a user together";

/// Where the pens of a daemon are made.
#[derive(Debug)]
pub struct Pens {
    kernel: Arc<dyn Kernel>,
    unified: Option<Unified>,
    /// Folder of version 1 for numbers of processes.
    pids: Option<PathBuf>,
    /// And for cores.
    cpuset: Option<PathBuf>,
    /// Folders of cores that were made in that.
    cores: Mutex<BTreeSet<PathBuf>>,
}

#[derive(Debug)]
enum Unified {
    /// A folder of our own.
    Own(PathBuf),
    /// That in which NFs are weighed.
    Weighed(Arc<Group>),
}

/// What holds one life of an NF. Dropping it removes its folders, as far as that is possible.
#[derive(Debug)]
pub struct Pen {
    kernel: Arc<dyn Kernel>,
    /// Of version 2.
    unified: Option<PathBuf>,
    /// It, where it is the one that the NF is weighed by.
    weighed: Option<NfGroup>,
    /// Of version 1.
    pids: Option<PathBuf>,
    cpuset: Option<PathBuf>,
}

impl Pens {
    /// The folders that [`create`](Self::create) would make below the file-system root `root`, to be noted before.
    pub fn paths(root: &Path, name: &str) -> Vec<PathBuf> {
        let place = |version, controller| folder_of(root, version, controller, "self").ok().flatten();
        let homes = [place(Version::V2, ""), place(Version::V1, "pids"), place(Version::V1, "cpuset")];
        homes.into_iter().flatten().map(|home| home.join(component(name))).collect()
    }

    /// What pens below the file-system root `root` will probably lack, in the words of [`Self::lacks`]. Changes nothing.
    pub fn forecast(root: &Path) -> Vec<&'static str> {
        let place = |version, controller| folder_of(root, version, controller, "self").ok().flatten();
        let (unified, pids, cpuset) = (place(Version::V2, ""), place(Version::V1, "pids"), place(Version::V1, "cpuset"));
        let has = |controller: &str| {
            // The nearest that passes it on is found when it is made; here it is enough that it could be had.
            let text = unified.as_ref().and_then(|home| std::fs::read_to_string(home.join("cgroup.controllers")).ok());
            text.unwrap_or_default().split_whitespace().any(|word| word == controller)
        };
        let lacks = [
            (unified.is_none() && pids.is_none(), FORKED),
            (cpuset.is_none() && !has("cpuset"), CORE),
            (pids.is_none() && !has("pids"), NUMBER),
        ];
        lacks.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect()
    }

    /// Makes the daemon's folders. `weighed` is the cgroup in which NFs are weighed, if that is one of version 2. What cannot be made is
    /// done without: see [`Self::lacks`].
    pub fn create(root: &Path, name: &str, weighed: Option<Arc<Group>>) -> Self {
        Self::create_on(Arc::new(Linux), root, name, weighed)
    }

    pub(super) fn create_on(kernel: Arc<dyn Kernel>, root: &Path, name: &str, weighed: Option<Arc<Group>>) -> Self {
        let home = |version, controller| folder_of(root, version, controller, "self").ok().flatten();
        let make = |home: PathBuf| {
            let folder = home.join(component(name));
            kernel.make(&folder).is_ok().then_some(folder)
        };
        let unified = match weighed {
            Some(group) => Some(Unified::Weighed(group)),
            None => home(Version::V2, "").and_then(make).map(|folder| {
                for controller in ["+cpuset", "+pids"] {
                    // Where the folder above passes it on; elsewhere version 1 may have it.
                    let _ = kernel.write(&folder.join(SUBTREE), controller);
                }
                Unified::Own(folder)
            }),
        };
        let pids = home(Version::V1, "pids").and_then(make);
        let cpuset = home(Version::V1, "cpuset").and_then(make).filter(|folder| {
            let above = folder.parent().unwrap_or(folder);
            let takes = |file: &str| {
                let text = kernel.read(&above.join(file)).unwrap_or_default();
                kernel.write(&folder.join(file), text.trim()).is_ok()
            };
            // Nobody can be in one of version 1 that has not both.
            takes("cpuset.cpus") && takes("cpuset.mems") || {
                let _ = kernel.remove(folder);
                false
            }
        });
        Self { kernel, unified, pids, cpuset, cores: Mutex::default() }
    }

    /// What these pens cannot do, in words; none if nothing.
    pub fn lacks(&self) -> Vec<&'static str> {
        let passes = |controller: &str| {
            let folder = match &self.unified {
                Some(Unified::Own(folder)) => folder.clone(),
                Some(Unified::Weighed(group)) => group.path().to_path_buf(),
                None => return false,
            };
            let text = self.kernel.read(&folder.join(SUBTREE)).unwrap_or_default();
            text.split_whitespace().any(|word| word == controller)
        };
        let mut lacks = Vec::new();
        if self.unified.is_none() && self.pids.is_none() {
            lacks.push(FORKED);
        }
        if self.cpuset.is_none() && !passes("cpuset") {
            lacks.push(CORE);
        }
        if self.pids.is_none() && !passes("pids") {
            lacks.push(NUMBER);
        }
        lacks
    }

    /// Whether the number of processes of each NF can be bounded.
    pub fn bounds_processes(&self) -> bool {
        !self.lacks().contains(&NUMBER)
    }

    /// Makes a pen for a life of an NF, for so many processes. `life` is no other's. What cannot be made is done without.
    pub fn make(&self, life: &str, core: usize, processes: u32) -> Pen {
        let kernel = &self.kernel;
        let name = format!("nf-{}", component(life));
        let mut pen = Pen { kernel: kernel.clone(), unified: None, weighed: None, pids: None, cpuset: None };
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
            // Not there where this hierarchy does not bound it.
            let _ = kernel.write(&folder.join("pids.max"), &processes.to_string());
        }
        pen
    }

    /// Makes a pen of version 1 alone, for a container: that has a cgroup of version 2 already.
    pub fn make_beside(&self, life: &str, processes: u32) -> Pen {
        let kernel = &self.kernel;
        let own = self.pids.as_ref().map(|folder| folder.join(format!("nf-{}", component(life))));
        let pids = own.filter(|own| kernel.make(own).is_ok());
        if let Some(folder) = &pids {
            let _ = kernel.write(&folder.join("pids.max"), &processes.to_string());
        }
        Pen { kernel: kernel.clone(), unified: None, weighed: None, pids, cpuset: None }
    }

    /// Keeps what is in a pen, and what comes, on these cores. What is in it already has to be [gathered](Gatherer::gather) for it.
    pub fn confine(&self, pen: &mut Pen, cores: &BTreeSet<usize>) {
        let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
        if let Some(folder) = &pen.unified {
            let _ = self.kernel.write(&folder.join("cpuset.cpus"), &list.join(","));
        }
        let Some(above) = &self.cpuset else { return };
        let folder = above.join(format!("cores-{}", list.join("-")));
        let mut made = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        if !made.contains(&folder) {
            let mems = self.kernel.read(&above.join("cpuset.mems")).unwrap_or_default();
            let done = self.kernel.make(&folder).and_then(|()| {
                self.kernel.write(&folder.join("cpuset.cpus"), &list.join(","))?;
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

    /// Removes the daemon's folders. Pens are removed before.
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
        for folder in cores.into_iter().chain(own).chain(self.pids).chain(self.cpuset) {
            first = first.and(remove_empty(&*self.kernel, &folder).map_err(|error| (folder, error)));
        }
        first
    }
}

impl Pen {
    /// The folder of version 2 that the NF's process is to be born in.
    pub fn born_in(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    /// The file that the NF's process writes itself to before it executes its program, where there is no version 2.
    pub fn joined_first(&self) -> Option<PathBuf> {
        self.pids.as_ref().filter(|_| self.unified.is_none()).map(|folder| folder.join(PROCS))
    }

    /// The cgroup that the NF is weighed by, if it is this one.
    pub fn take_weighed(&mut self) -> Option<NfGroup> {
        self.weighed.take()
    }

    /// What moves processes, for another thread.
    pub fn gatherer(&self) -> Gatherer {
        let late = [self.pids.as_ref().filter(|_| self.unified.is_some()), self.cpuset.as_ref()];
        Gatherer {
            kernel: self.kernel.clone(),
            first: self.unified.clone().or_else(|| self.pids.clone()),
            late: late.into_iter().flatten().map(|folder| folder.join(PROCS)).collect(),
        }
    }

    /// What moves the processes that are in another cgroup, `first`, or below it.
    pub fn gatherer_of(&self, first: PathBuf) -> Gatherer {
        let late = self.pids.iter().chain(&self.cpuset).map(|folder| folder.join(PROCS)).collect();
        Gatherer { kernel: self.kernel.clone(), first: Some(first), late }
    }

    /// Whether no process is left in it.
    pub fn is_empty(&self) -> bool {
        self.folders().all(|folder| below(&*self.kernel, folder, true).is_empty())
    }

    /// Those that hold this life alone.
    fn folders(&self) -> impl Iterator<Item = &Path> {
        self.unified.iter().chain(&self.pids).map(PathBuf::as_path)
    }

    /// Ends all that is in it. They may take a moment to go.
    pub fn kill(&self) {
        for folder in self.folders() {
            if self.kernel.write(&folder.join("cgroup.kill"), "1").is_ok() {
                continue;
            }
            let _ = self.kernel.write(&folder.join("pids.max"), "0");
            for pid in below(&*self.kernel, folder, true).into_iter().filter_map(Pid::from_raw) {
                let Ok(pidfd) = process::pidfd_open(pid) else { continue };
                // In this order: whoever is in the cgroup after the pidfd was opened is whom the pidfd names.
                if below(&*self.kernel, folder, true).contains(&pid.as_raw_nonzero().get()) {
                    let _ = process::send_signal(pidfd.as_fd(), Signal::KILL);
                }
            }
        }
    }

    /// Processes that are in it.
    pub fn members(&self) -> Vec<i32> {
        self.folders().next().map_or(Vec::new(), |folder| below(&*self.kernel, folder, true))
    }

    /// Removes it. Nobody is in it any more.
    ///
    /// # Errors
    /// The first folder that could not be removed, and why.
    pub fn remove(mut self) -> Result<(), (PathBuf, io::Error)> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let weighed = self.weighed.take().is_some();
        let own = self.unified.take().filter(|_| !weighed);
        let mut first = Ok(());
        for folder in own.into_iter().chain(self.pids.take()) {
            first = first.and(remove_empty(&*self.kernel, &folder).map_err(|error| (folder, error)));
        }
        first
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        // The record has the folder above.
        let _ = self.take_down();
    }
}

/// Moves the processes of a pen into those of its cgroups that they were not born in.
#[derive(Debug)]
pub struct Gatherer {
    kernel: Arc<dyn Kernel>,
    first: Option<PathBuf>,
    late: Vec<PathBuf>,
}

impl Gatherer {
    /// Moves a process into the cgroup that it should have been born in, if it lives: one that another process has forked.
    pub fn take_in(&self, pid: Pid, pidfd: std::os::fd::BorrowedFd<'_>) {
        let Some(first) = &self.first else { return };
        if process::wait_readable(pidfd, Some(0)) == Ok(false) {
            // One that has ended meanwhile is none.
            let _ = self.kernel.write(&first.join(PROCS), &pid.as_raw_nonzero().to_string());
        }
    }

    /// Moves all that is in it, until nobody new is found.
    ///
    /// # Errors
    /// The first that could not be moved, and why. That one has ended is none.
    pub fn gather(&self) -> io::Result<()> {
        let Some(first) = &self.first else { return Ok(()) };
        if self.late.is_empty() {
            return Ok(());
        }
        let mut done: BTreeSet<i32> = BTreeSet::new();
        for _ in 0..PASSES {
            let new: Vec<i32> = below(&*self.kernel, first, true).into_iter().filter(|pid| !done.contains(pid)).collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                for file in &self.late {
                    match self.kernel.write(file, &pid.to_string()) {
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                        other => other?,
                    }
                }
                done.insert(pid);
            }
        }
        Ok(())
    }
}

/// The processes of a cgroup, and, if so asked, of those made below it. None in one that is not there.
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

/// Removes a cgroup from which the last process is about to go, with those that were made below it.
fn remove_empty(kernel: &dyn Kernel, folder: &Path) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        for inside in kernel.folders(folder).unwrap_or_default() {
            let _ = kernel.remove(&inside);
        }
        match kernel.remove(folder) {
            Err(error) if is_gone(&error) => return Ok(()),
            // Nothing tells when the kernel has let go of the last one.
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
    use crate::nf::spawn::{self, SpawnSpec, Stdio};
    use std::fs;

    /// A kernel whose cgroups are plain folders below a root that says where they are mounted; files that are written are made.
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
                () => &["cgroup.kill"],
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
        let mut pen = pens.make("ids.0-7", 2, 77);
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
        // Nobody new comes while they are ended.
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
        let mut pen = pens.make("ids.0-7", 2, 77);
        pens.confine(&mut pen, &[1, 3].into());
        let own = root.path().join("cg/unified/sluice-1-nfs/nf-ids.0-7");
        assert_eq!((pen.born_in(), pen.joined_first()), (Some(&*own), None));
        // With what it has forked, and not what is in a cgroup that it has made.
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
    fn a_host_without_cgroups_is_done_without_and_told() {
        let root = root(&[]);
        let pens = Pens::create_on(Arc::new(Plain), root.path(), "sluice-1-nfs", None);
        assert_eq!(pens.lacks().len(), 3);
        assert!(!pens.bounds_processes());
        let mut pen = pens.make("ids.0-7", 2, 77);
        pens.confine(&mut pen, &[1].into());
        assert!(pen.is_empty() && pen.born_in().is_none() && pen.joined_first().is_none());
        pen.gatherer().gather().unwrap();
        pen.kill();
        pen.remove().unwrap();
        pens.remove().unwrap();
    }

    /// On the kernel itself, with whatever it has mounted.
    #[test]
    fn what_an_nf_has_forked_ends_with_its_pen() {
        let name = format!("sluice-{}-pentest", std::process::id());
        let pens = Pens::create(Path::new("/"), &name, None);
        let core = *crate::mechanism::affinity::allowed().unwrap().last().unwrap();
        let mut pen = pens.make("ids.0-1", core, 8);
        pens.confine(&mut pen, &[core].into());
        if pen.born_in().is_none() && pen.joined_first().is_none() {
            log_line!("no cgroup can be made here: what is asserted is that this is told");
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
