//! CPU weights of NF processes, by the kernel's control groups.
//!
//! # Problem
//! The kernel divides a shared core equally among its NFs, whatever their packets cost. A policy
//! computes the share of each; this module makes the kernel's scheduler keep it, on hosts with
//! control groups of version 1 or 2.
//!
//! # Terms
//! A *share* is a number between 0 and 1: an NF's part of a core while all NFs of the core have
//! work. A *weight* is the kernel's number for it: `cpu.shares` (2 to 262,144; version 1) or
//! `cpu.weight` (1 to 10,000; version 2). Only ratios between weights of one folder matter, so a
//! share of 1 % is the kernel's default weight (1,024 or 100): the step is a thousandth of that in
//! version 1 and a hundredth in version 2. The *home* is the manager's own cgroup; the *base* is
//! the folder in which the manager may make its own.
//!
//! # Approach
//! ```text
//! base ─┬─ sluice-PID ─┬─ core-1 ─┬─ nf-ids.0     one process with its threads; weighted
//!       │              │          └─ nf-nat.0
//!       │              └─ core-2 ─── nf-lb.0
//!       └─ everything else on the host
//! ```
//! - [`Hierarchy::find`] reads what is mounted. In version 1 the base is the home. In version 2 a
//!   cgroup with processes cannot pass the cpu controller on, so the base is the nearest folder
//!   from the home upwards that does, or could.
//! - A weight is written through a descriptor that stays open: a quarter of the cost of opening,
//!   writing and closing.
//! - The manager's folder weighs as much as its NFs would one by one, and so does each core's.
//!   Otherwise all NFs together would get as much as one process outside.
//! - On a core where a packet thread of the manager runs, all NFs together weigh as much as one NF,
//!   as that thread does. As one process among many it would starve, with all chains of the core.
//!   A cgroup of its own for the thread was tried. Beside threads that never rested, all other
//!   processes of the host got next to nothing, on Linux 6.18.
//! - The NFs of each core have a folder. The kernel splits a folder's weight over the cores by the
//!   weights of those that run there. With all NFs in one folder, a light NF alone on its core,
//!   with a heavy one on another core, got 2 % of its core against a busy process outside, instead
//!   of half.
//! - A folder is removed when it is empty. Processes that still run are moved to the home first: in
//!   version 2 the manager's folder may not hold any.
//! - A trait covers what the kernel does with these files. So both versions are tested on any host
//!   with a model that refuses what the kernel refuses; the host's version is also tested on the
//!   kernel itself.
//!
//! Nothing here writes the [record](crate::record): note [`Hierarchy::path_of`],
//! [`Hierarchy::setting`], [`Group::path_of`] and [`Group::path_of_core`] before the calls that
//! make or change them.
//!
//! # Limits
//! The scheduler follows a new weight after 4 to 6 ms and is exact over a second, not over 10 ms.
//! Weights do not affect real-time classes, and a kernel with `CONFIG_RT_GROUP_SCHED` admits no
//! real-time process to a new cgroup: [`CgroupError::RealTime`]. The manager's folder holds only
//! cgroups made here.
//!
//! # Source
//! Rate-cost proportional shares: NFVnice (SIGCOMM 2017), section 3.2. The files: the kernel's
//! `cgroup-v1/cgroups.rst` and `cgroup-v2.rst`.

mod error;
mod kernel;
mod mount;
pub mod pen;
mod version;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Pid;

pub use error::CgroupError;
use error::refused;
use kernel::{Kernel, Knob, Linux, PROCS};
pub(crate) use mount::folder_of;
pub use mount::unified_home;
pub use version::Version;

/// Controllers that a cgroup of version 2 passes on to its children.
const SUBTREE: &str = "cgroup.subtree_control";

/// Other controllers of version 2 that bound NFs.
const MORE: [&str; 3] = ["cpuset", "memory", "pids"];

/// Maximum time for moved or ending processes to leave a cgroup.
const PATIENCE: Duration = Duration::from_secs(1);

/// Collects the processes in and below a cgroup.
///
/// # Errors
/// The system's; `pids` has those that were found before.
pub fn processes_below(folder: &Path, pids: &mut Vec<i32>) -> io::Result<()> {
    let text = fs::read_to_string(folder.join(PROCS))?;
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            match processes_below(&entry.path(), pids) {
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// A unique path component for any name.
///
/// Bytes other than letters, digits, `-`, `_` and `.` (not leading) become `%` and two hex digits.
pub(super) fn component(name: &str) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(name.len());
    for (i, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => text.push(byte.into()),
            b'.' if i > 0 => text.push('.'),
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
    if text.is_empty() { "%".into() } else { text }
}

/// The cgroup of a process that was refused a real-time class, if a missing budget explains that.
///
/// `may`: the user was allowed to give the class, since version 2 has no file that shows a budget.
pub(super) fn without_real_time(root: &Path, pid: i32, may: bool) -> Option<PathBuf> {
    let (version, folder, top) = mount::find(&Linux, root, &pid.to_string()).ok()??;
    let is_without = match version {
        Version::V1 => Linux.read(&folder.join("cpu.rt_runtime_us")).is_ok_and(|text| text.trim() == "0"),
        Version::V2 => may && folder != top,
    };
    is_without.then_some(folder)
}

/// The host's hierarchy for CPU weights.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    kernel: Arc<dyn Kernel>,
    version: Version,
    /// The manager's own cgroup.
    home: PathBuf,
    /// Parent of the manager's folder.
    base: PathBuf,
    /// Version 2: controllers that the base does not pass on yet, cpu first. Empty if it passes cpu
    /// on: then others decide what else it passes on.
    enable: Vec<&'static str>,
}

impl Hierarchy {
    /// Finds the cpu controller through `proc/self/mountinfo` and `proc/self/cgroup` below `root`.
    ///
    /// `root` is `/`, or a tree that looks like it. Changes nothing.
    ///
    /// # Errors
    /// [`CgroupError::NoController`], [`CgroupError::NotDelegated`], [`CgroupError::System`].
    pub fn find(root: &Path) -> Result<Self, CgroupError> {
        Self::find_on(Arc::new(Linux), root)
    }

    fn find_on(kernel: Arc<dyn Kernel>, root: &Path) -> Result<Self, CgroupError> {
        let none = || CgroupError::NoController { root: root.into() };
        let (version, home, top) = mount::find(&*kernel, root, "self")?.ok_or_else(none)?;
        if version == Version::V1 {
            return Ok(Self { kernel, version, base: home.clone(), home, enable: Vec::new() });
        }
        let up = || home.ancestors().take_while(|folder| folder.starts_with(&top));
        let has_cpu = |file: PathBuf| kernel.read(&file).is_ok_and(|text| text.split_whitespace().any(|word| word == "cpu"));
        // Only the root may have processes and pass controllers on, and only it has no cgroup.type.
        let may_enable = |folder: &Path| {
            let is_root = kernel.read(&folder.join("cgroup.type")).is_err();
            let is_empty = || kernel.read(&folder.join(PROCS)).is_ok_and(|text| text.trim().is_empty());
            has_cpu(folder.join("cgroup.controllers")) && (is_root || is_empty())
        };
        let enabled = up().find(|folder| has_cpu(folder.join(SUBTREE)));
        let base = enabled.or_else(|| up().find(|folder| may_enable(folder)));
        let base = base.ok_or_else(|| CgroupError::NotDelegated { home: home.clone() })?.to_path_buf();
        let enable = match enabled {
            Some(_) => Vec::new(),
            None => {
                let words = |file: &str| kernel.read(&base.join(file)).unwrap_or_default();
                let (has, passes) = (words("cgroup.controllers"), words(SUBTREE));
                let is_in = |text: &str, name: &str| text.split_whitespace().any(|word| word == name);
                let more = MORE.into_iter().filter(|name| is_in(&has, name) && !is_in(&passes, name));
                std::iter::once("cpu").chain(more).collect()
            }
        };
        Ok(Self { enable, kernel, version, base, home })
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// The folder in which [`create`](Self::create) makes one.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The folder that [`create`](Self::create) makes; note it before as
    /// [`Thing::Cgroup`](crate::record::Thing::Cgroup).
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.base.join(component(name))
    }

    /// A host setting that [`create`](Self::create) changes, and the text that undoes that.
    ///
    /// Note it before with [`Record::changed`](crate::record::Record::changed). Usually None.
    pub fn setting(&self) -> Option<(PathBuf, String)> {
        let text: Vec<String> = self.enable.iter().map(|name| format!("-{name}")).collect();
        (!text.is_empty()).then(|| (self.base.join(SUBTREE), text.join(" ")))
    }

    /// Makes the manager's folder, for example `sluice-PID`. Its packet threads run on these cores.
    ///
    /// # Errors
    /// [`CgroupError::Exists`], [`CgroupError::NotPermitted`], [`CgroupError::RealTime`] (version
    /// 2: a real-time process runs in some cgroup), [`CgroupError::System`]. Then nothing has
    /// changed.
    pub fn create(&self, name: &str, threads: &[usize]) -> Result<Group, CgroupError> {
        let path = self.path_of(name);
        if let Some((file, _)) = self.setting() {
            self.pass_on_cpu(&file)?;
            self.pass_on_more(&file);
        }
        let made = self.kernel.make(&path).map_err(refused("make cgroup", &path));
        // From here on the group's drop cleans up.
        let (herd, cores) = (Arc::default(), Mutex::default());
        let mut group = Group { hierarchy: self.clone(), path, herd, threads: threads.to_vec(), cores, is_made: made.is_ok() };
        made?;
        if self.version == Version::V2 {
            self.pass_on_cpu(&group.path.join(SUBTREE))?;
            self.pass_on_more(&group.path.join(SUBTREE));
        }
        group.herd = self.herd(&group.path)?;
        Ok(group)
    }

    /// Passes on the other controllers that bound NFs, where they exist: see [`pen`].
    fn pass_on_more(&self, file: &Path) {
        for name in MORE {
            let _ = self.kernel.write(file, &format!("+{name}"));
        }
    }

    /// The weight of a folder that has no NFs yet.
    fn herd(&self, path: &Path) -> Result<Arc<Mutex<Herd>>, CgroupError> {
        let weight = Weight::open(&self.kernel, self.version, path)?;
        Ok(Arc::new(Mutex::new(Herd { nfs: 0, is_beside_thread: false, weight: Some(weight) })))
    }

    fn pass_on_cpu(&self, file: &Path) -> Result<(), CgroupError> {
        self.kernel.write(file, "+cpu").map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) => CgroupError::RealTime { path: file.parent().unwrap_or(file).into() },
            Some(libc::ENOENT) => CgroupError::NotDelegated { home: self.home.clone() },
            _ => refused("enable cpu in", file)(source),
        })
    }

    /// Removes a folder and those below it, and moves their processes away. No error if it is gone.
    fn remove(&self, path: &Path) -> Result<(), CgroupError> {
        let (procs, home) = (path.join(PROCS), self.home.join(PROCS));
        let end = Instant::now() + PATIENCE;
        loop {
            match self.kernel.remove(path) {
                Ok(()) => return Ok(()),
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end => {}
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return Err(CgroupError::Busy { path: path.into() });
                }
                Err(error) => return Err(refused("remove cgroup", path)(error)),
            }
            // A program in it may have made some of its own.
            for folder in self.kernel.folders(path).unwrap_or_default() {
                self.remove(&folder)?;
            }
            let text = self.kernel.read(&procs).unwrap_or_default();
            // Processes outside of our pid namespace show as 0; writing 0 would move this one.
            let pids: Vec<i32> = text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect();
            for pid in &pids {
                match self.kernel.write(&home, &pid.to_string()) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                        return Err(refused("move processes to", &home)(error));
                    }
                    _ => {}
                }
            }
            if pids.is_empty() {
                // The kernel does not signal when it has released the last process: retry soon.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// The number of NFs of a group, and the group's weight, which follows from it.
#[derive(Debug, Default)]
struct Herd {
    nfs: usize,
    /// Whether they are on the core of a packet thread: then all of them weigh as much as one.
    is_beside_thread: bool,
    weight: Option<Weight>,
}

impl Herd {
    /// The number of NFs that it weighs as much as.
    fn weighs(&self) -> usize {
        if self.is_beside_thread { self.nfs.min(1) } else { self.nfs }
    }

    /// Counts NFs that come or go. Returns by how many NFs its weight has changed.
    fn count(herd: &Mutex<Self>, nfs: isize) -> (isize, Result<(), CgroupError>) {
        let mut herd = herd.lock().unwrap_or_else(PoisonError::into_inner);
        let before = herd.weighs();
        herd.nfs = herd.nfs.saturating_add_signed(nfs);
        let weighs = herd.weighs();
        let write = |weight: &Weight| weight.write(weight.version.weight_of_all(weighs)).map(drop);
        (weighs as isize - before as isize, herd.weight.as_ref().map_or(Ok(()), write))
    }

    /// Counts NFs of a core, in its group and in that of all.
    fn count_in([core, all]: &[Arc<Mutex<Self>>; 2], nfs: isize) -> Result<(), CgroupError> {
        let (change, of_core) = Self::count(core, nfs);
        let (_, of_all) = Self::count(all, change);
        of_core.and(of_all)
    }
}

/// The manager's folder. Drop removes it if possible; [`remove`](Self::remove) reports errors.
#[derive(Debug)]
pub struct Group {
    hierarchy: Hierarchy,
    path: PathBuf,
    herd: Arc<Mutex<Herd>>,
    /// Cores of packet threads.
    threads: Vec<usize>,
    /// Existing folders of cores.
    cores: Mutex<BTreeMap<usize, Arc<Mutex<Herd>>>>,
    is_made: bool,
}

impl Group {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> Version {
        self.hierarchy.version
    }

    /// The folder that [`add_nf`](Self::add_nf) makes; note it before as
    /// [`Thing::Cgroup`](crate::record::Thing::Cgroup).
    pub fn path_of(&self, nf: &str, core: usize) -> PathBuf {
        // The prefix separates NFs from the kernel's files.
        self.path_of_core(core).join(format!("nf-{}", component(nf)))
    }

    /// The folder of a core's NFs; [`add_nf`](Self::add_nf) makes it, the group removes it.
    pub fn path_of_core(&self, core: usize) -> PathBuf {
        self.path.join(format!("core-{core}"))
    }

    /// The existing folders of cores.
    pub fn cores(&self) -> Vec<PathBuf> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner).keys().map(|core| self.path_of_core(*core)).collect()
    }

    /// The folder of a core, made if missing.
    fn of_core(&self, core: usize) -> Result<Arc<Mutex<Herd>>, CgroupError> {
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(herd) = cores.get(&core) {
            return Ok(herd.clone());
        }
        let path = self.path_of_core(core);
        self.hierarchy.kernel.make(&path).map_err(refused("make cgroup", &path))?;
        let passed_on = match self.hierarchy.version {
            Version::V1 => Ok(()),
            Version::V2 => self.hierarchy.pass_on_cpu(&path.join(SUBTREE)),
        };
        if self.hierarchy.version == Version::V2 {
            self.hierarchy.pass_on_more(&path.join(SUBTREE));
        }
        match passed_on.and_then(|()| self.hierarchy.herd(&path)) {
            Ok(herd) => {
                herd.lock().unwrap_or_else(PoisonError::into_inner).is_beside_thread = self.threads.contains(&core);
                Ok(cores.entry(core).or_insert(herd).clone())
            }
            Err(error) => {
                // Only the first error is reported.
                let _ = self.hierarchy.remove(&path);
                Err(error)
            }
        }
    }

    /// Makes a folder for an NF of a core, with the kernel's default weight and no process.
    ///
    /// # Errors
    /// [`CgroupError::Exists`] if the NF has one, [`CgroupError::NotPermitted`],
    /// [`CgroupError::System`]. Then nothing has changed, except that the core may have a folder.
    pub fn add_nf(&self, nf: &str, core: usize) -> Result<NfGroup, CgroupError> {
        let herds = [self.of_core(core)?, self.herd.clone()];
        let (kernel, path) = (&self.hierarchy.kernel, self.path_of(nf, core));
        kernel.make(&path).map_err(refused("make cgroup", &path))?;
        let made = Weight::open(kernel, self.hierarchy.version, &path).and_then(|weight| {
            Herd::count_in(&herds, 1)?;
            Ok(weight)
        });
        match made {
            Ok(weight) => Ok(NfGroup { hierarchy: self.hierarchy.clone(), path, herds, weight, is_made: true }),
            Err(error) => {
                // Only the first error is reported.
                let _ = self.hierarchy.remove(&path);
                Err(error)
            }
        }
    }

    /// Removes the folder and those of all NFs. Running processes go to the manager's own cgroup.
    ///
    /// # Errors
    /// [`CgroupError::Busy`], [`CgroupError::NotPermitted`], [`CgroupError::System`]. What could be
    /// removed was.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), CgroupError> {
        if !std::mem::take(&mut self.is_made) {
            return self.give_back_setting();
        }
        let kernel = &self.hierarchy.kernel;
        // A folder that is about to go needs no weight.
        let cores = std::mem::take(self.cores.get_mut().unwrap_or_else(PoisonError::into_inner));
        for herd in cores.values().chain([&self.herd]) {
            herd.lock().unwrap_or_else(PoisonError::into_inner).weight = None;
        }
        let mut first = Ok(());
        for core in kernel.folders(&self.path).unwrap_or_default() {
            let nfs = kernel.folders(&core).unwrap_or_default();
            // The core's folder is removed if all of its NFs' could be.
            for folder in nfs.iter().chain([&core]) {
                first = first.and(self.hierarchy.remove(folder));
            }
        }
        first?;
        self.hierarchy.remove(&self.path)?;
        self.give_back_setting()
    }

    /// Undoes [`Hierarchy::setting`].
    fn give_back_setting(&self) -> Result<(), CgroupError> {
        let Some((file, text)) = self.hierarchy.setting() else { return Ok(()) };
        match self.hierarchy.kernel.write(&file, &text) {
            // Another program needs it by now.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            other => other.map_err(refused("disable cpu in", &file)),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The record still has it.
        let _ = self.take_down();
    }
}

/// The folder of an NF. Drop removes it if possible.
#[derive(Debug)]
pub struct NfGroup {
    hierarchy: Hierarchy,
    path: PathBuf,
    /// Those of its core and of the group.
    herds: [Arc<Mutex<Herd>>; 2],
    weight: Weight,
    is_made: bool,
}

impl NfGroup {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process here, with all its threads. What it starts later starts here.
    ///
    /// # Errors
    /// [`CgroupError::NoProcess`], [`CgroupError::RealTime`], [`CgroupError::NotPermitted`],
    /// [`CgroupError::Gone`].
    pub fn join(&self, pid: Pid) -> Result<(), CgroupError> {
        let (file, pid) = (self.path.join(PROCS), pid.as_raw_nonzero().get());
        self.hierarchy.kernel.write(&file, &pid.to_string()).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => CgroupError::NoProcess { pid, path: self.path.clone() },
            Some(libc::EINVAL | libc::EPERM) => CgroupError::RealTime { path: self.path.clone() },
            _ => refused("move a process to", &file)(source),
        })
    }

    /// Sets the weight for a share, 0 to 1, of the group's time on a core; returns it.
    ///
    /// One system call.
    ///
    /// # Errors
    /// [`CgroupError::Gone`], [`CgroupError::System`].
    pub fn set_weight(&self, share: f64) -> Result<u64, CgroupError> {
        self.weight.set(share)
    }

    /// Reads the folder's weight from the kernel.
    ///
    /// # Errors
    /// [`CgroupError::Gone`], [`CgroupError::System`].
    pub fn weight(&self) -> Result<u64, CgroupError> {
        let file = self.path.join(self.hierarchy.version.file());
        let text = self.hierarchy.kernel.read(&file).map_err(refused("read", &file))?;
        let no_number = |_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no weight"));
        text.trim().parse().map_err(no_number).map_err(refused("read", &file))
    }

    /// A handle that sets the weight from another thread.
    pub fn handle(&self) -> Weight {
        self.weight.clone()
    }

    /// Removes the folder. Running processes go to the manager's own cgroup.
    ///
    /// # Errors
    /// [`CgroupError::Busy`], [`CgroupError::NotPermitted`], [`CgroupError::System`].
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), CgroupError> {
        if !std::mem::take(&mut self.is_made) {
            return Ok(());
        }
        self.hierarchy.remove(&self.path)?;
        match Herd::count_in(&self.herds, -1) {
            // The group was removed before.
            Err(CgroupError::Gone { .. }) => Ok(()),
            other => other,
        }
    }
}

impl Drop for NfGroup {
    fn drop(&mut self) {
        // The record still has it.
        let _ = self.take_down();
    }
}

/// Sets the weight of a folder through a descriptor that stays open. Clones share it.
#[derive(Debug, Clone)]
pub struct Weight {
    version: Version,
    path: Arc<Path>,
    knob: Arc<dyn Knob>,
}

impl Weight {
    fn open(kernel: &Arc<dyn Kernel>, version: Version, folder: &Path) -> Result<Self, CgroupError> {
        let path = folder.join(version.file());
        let knob = kernel.open(&path).map_err(refused("open", &path))?;
        Ok(Self { version, path: path.into(), knob: knob.into() })
    }

    /// As [`NfGroup::set_weight`].
    ///
    /// # Errors
    /// [`CgroupError::Gone`] once the folder was removed, [`CgroupError::System`].
    pub fn set(&self, share: f64) -> Result<u64, CgroupError> {
        self.write(self.version.weight(share))
    }

    fn write(&self, weight: u64) -> Result<u64, CgroupError> {
        self.knob.set(&weight.to_string()).map_err(refused("write", &self.path))?;
        Ok(weight)
    }
}
