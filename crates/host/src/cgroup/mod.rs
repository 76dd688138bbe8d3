//! CPU weights of NF processes, by the kernel's control groups.
//!
//! # Problem
//! NFs that share a core get equal parts of it from the kernel, however much their packets cost. A policy computes the share that
//! each should have; this module makes the kernel's scheduler keep to it, on hosts with control groups of version 1 and of version 2.
//!
//! # Terms
//! A *share* is a number between 0 and 1: the part of a core that an NF should have while all NFs of the core have work. A *weight* is
//! the kernel's number for it: `cpu.shares` (2 to 262,144; version 1) or `cpu.weight` (1 to 10,000; version 2). Only ratios between
//! weights of one folder matter, so a share of 1 % is the weight that the kernel gives by default (1,024 or 100): the step is a
//! thousandth of that in version 1 and a hundredth in version 2.
//! The *home* is the manager's own cgroup; the *base* is the folder in which the manager may make its own.
//!
//! # Approach
//! ```text
//! base ─┬─ sluice-PID ─┬─ core-1 ─┬─ nf-ids.0     one process and its threads; weight by the policy
//!       │              │          └─ nf-nat.0
//!       │              └─ core-2 ─── nf-lb.0
//!       └─ everything else on the host
//! ```
//! - [`Hierarchy::find`] reads what is mounted. In version 1 the base is the home. In version 2 a cgroup with processes cannot pass the
//!   cpu controller on, so the base is the nearest folder from the home upwards that does, or could.
//! - A weight is written through a descriptor that stays open, which costs a quarter of opening, writing and closing.
//! - The manager's folder weighs as much as its NFs would weigh one by one, and so does each core's. Otherwise all NFs together would
//!   get what one process outside gets.
//! - NFs of a core have a folder of their own. The kernel splits the weight of a folder over the cores by the weights of those that run
//!   there: with all NFs in one, an NF of small weight alone on its core, besides a heavy one on another, got 2 % of it from a process
//!   outside that was busy there, where it should have had half.
//! - A folder is removed when it is empty. Processes that still run go to the home first: in version 2 the manager's folder may not
//!   hold any.
//! - What the kernel does with these files is behind a trait, so that both versions are tested on any host against a model that
//!   refuses what the kernel refuses; the version that the host has is tested on the kernel itself.
//!
//! Nothing here writes the [record](crate::record): note what [`Hierarchy::path_of`], [`Hierarchy::setting`] and [`Group::path_of`]
//! and [`Group::path_of_core`] say before calling what makes it.
//!
//! # Limits
//! The scheduler follows a new weight after 4 to 6 ms and is exact over a second, not over 10 ms. Weights mean nothing to real-time
//! classes, and a kernel with `CONFIG_RT_GROUP_SCHED` takes no real-time process into a new cgroup: [`CgroupError::RealTime`].
//! The manager's folder holds no other cgroups than those made here.
//!
//! # Source
//! Rate-cost proportional shares: NFVnice (SIGCOMM 2017), section 3.2. The files: the kernel's `cgroup-v1/cgroups.rst` and
//! `cgroup-v2.rst`.

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

/// Controllers that a cgroup of version 2 passes on to those inside.
const SUBTREE: &str = "cgroup.subtree_control";

/// Controllers of version 2 that hold NFs besides.
const MORE: [&str; 3] = ["cpuset", "memory", "pids"];

/// Time that processes which are moved or end have to leave a cgroup.
const PATIENCE: Duration = Duration::from_secs(1);

/// The processes of a cgroup and of those below it.
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
                // Somebody has removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// One path component for any name, and another one for any other name: bytes other than letters, digits, `-`, `_` and `.` (inside)
/// are written as `%` and two hexadecimal digits.
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

/// The cgroup of a process to which the kernel was seen to refuse a real-time class, if a missing budget in it explains that. `may`
/// says whether the user was allowed to give the class: version 2 has no file that shows a budget.
pub(super) fn without_real_time(root: &Path, pid: i32, may: bool) -> Option<PathBuf> {
    let (version, folder, top) = mount::find(&Linux, root, &pid.to_string()).ok()??;
    let is_without = match version {
        Version::V1 => Linux.read(&folder.join("cpu.rt_runtime_us")).is_ok_and(|text| text.trim() == "0"),
        Version::V2 => may && folder != top,
    };
    is_without.then_some(folder)
}

/// Where on this host CPU weights are set.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    kernel: Arc<dyn Kernel>,
    version: Version,
    /// The manager's own cgroup.
    home: PathBuf,
    /// Where the manager makes its folder.
    base: PathBuf,
    /// Version 2: controllers that the base does not pass on yet, cpu first. None if it passes cpu on: then what else it passes on is
    /// somebody else's affair.
    enable: Vec<&'static str>,
}

impl Hierarchy {
    /// Finds the cpu controller by what `root` says is mounted: its `proc/self/mountinfo` and `proc/self/cgroup`. `root` is `/`, or a
    /// tree that looks like it. Changes nothing.
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
        // Only the root of all may both have processes and pass controllers on, and only it has no cgroup.type.
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

    /// Version of the control groups.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The folder in which [`create`](Self::create) makes one.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The folder that [`create`](Self::create) makes, to be noted before as
    /// [`Thing::Cgroup`](crate::record::Thing::Cgroup).
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.base.join(component(name))
    }

    /// A setting of the host that [`create`](Self::create) changes, and the text that undoes that: to be noted before with
    /// [`Record::changed`](crate::record::Record::changed). Most hosts need none.
    pub fn setting(&self) -> Option<(PathBuf, String)> {
        let text: Vec<String> = self.enable.iter().map(|name| format!("-{name}")).collect();
        (!text.is_empty()).then(|| (self.base.join(SUBTREE), text.join(" ")))
    }

    /// Makes the manager's folder, `sluice-PID` for example.
    ///
    /// # Errors
    /// [`CgroupError::Exists`], [`CgroupError::NotPermitted`], [`CgroupError::RealTime`] (version 2: a real-time process runs in some
    /// cgroup), [`CgroupError::System`]. Then nothing has changed.
    pub fn create(&self, name: &str) -> Result<Group, CgroupError> {
        let path = self.path_of(name);
        if let Some((file, _)) = self.setting() {
            self.pass_on_cpu(&file)?;
            self.pass_on_more(&file);
        }
        let made = self.kernel.make(&path).map_err(refused("make cgroup", &path));
        // From here on the drop of the group cleans up.
        let (herd, cores) = (Arc::default(), Mutex::default());
        let mut group = Group { hierarchy: self.clone(), path, herd, cores, is_made: made.is_ok() };
        made?;
        if self.version == Version::V2 {
            self.pass_on_cpu(&group.path.join(SUBTREE))?;
            self.pass_on_more(&group.path.join(SUBTREE));
        }
        group.herd = self.herd(&group.path)?;
        Ok(group)
    }

    /// Passes on what NFs are held by, where it is there: see [`pen`].
    fn pass_on_more(&self, file: &Path) {
        for name in MORE {
            let _ = self.kernel.write(file, &format!("+{name}"));
        }
    }

    /// What a folder of NFs, which has none yet, weighs.
    fn herd(&self, path: &Path) -> Result<Arc<Mutex<Herd>>, CgroupError> {
        let weight = Weight::open(&self.kernel, self.version, path)?;
        Ok(Arc::new(Mutex::new(Herd { nfs: 0, weight: Some(weight) })))
    }

    fn pass_on_cpu(&self, file: &Path) -> Result<(), CgroupError> {
        self.kernel.write(file, "+cpu").map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) => CgroupError::RealTime { path: file.parent().unwrap_or(file).into() },
            Some(libc::ENOENT) => CgroupError::NotDelegated { home: self.home.clone() },
            _ => refused("enable cpu in", file)(source),
        })
    }

    /// Empties a folder, with those that were made below it, and removes it. That it is gone already is no error.
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
            // A process outside of our pid namespace is shown as 0, which would mean this process when written.
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
                // Nothing tells when the kernel has let go of the last process, so ask again a little later.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// How many NFs a group has, and its own weight, which follows from that.
#[derive(Debug, Default)]
struct Herd {
    nfs: usize,
    weight: Option<Weight>,
}

impl Herd {
    fn change(herd: &Mutex<Self>, change: impl FnOnce(usize) -> usize) -> Result<(), CgroupError> {
        let mut herd = herd.lock().unwrap_or_else(PoisonError::into_inner);
        herd.nfs = change(herd.nfs);
        let Some(weight) = &herd.weight else { return Ok(()) };
        weight.write(weight.version.weight_of_all(herd.nfs)).map(drop)
    }
}

/// The manager's folder. Dropping it removes it with all that was made in it, as far as that is possible;
/// [`remove`](Self::remove) says whether it was.
#[derive(Debug)]
pub struct Group {
    hierarchy: Hierarchy,
    path: PathBuf,
    herd: Arc<Mutex<Herd>>,
    /// The folders of cores that there are.
    cores: Mutex<BTreeMap<usize, Arc<Mutex<Herd>>>>,
    is_made: bool,
}

impl Group {
    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the control groups.
    pub fn version(&self) -> Version {
        self.hierarchy.version
    }

    /// The folder that [`add_nf`](Self::add_nf) makes, to be noted before as
    /// [`Thing::Cgroup`](crate::record::Thing::Cgroup).
    pub fn path_of(&self, nf: &str, core: usize) -> PathBuf {
        // The prefix keeps NFs from having the names of the kernel's files.
        self.path_of_core(core).join(format!("nf-{}", component(nf)))
    }

    /// The folder of a core's NFs, which [`add_nf`](Self::add_nf) makes with the first of them, and which goes with the group.
    pub fn path_of_core(&self, core: usize) -> PathBuf {
        self.path.join(format!("core-{core}"))
    }

    /// The folders of all cores that have one.
    pub fn cores(&self) -> Vec<PathBuf> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner).keys().map(|core| self.path_of_core(*core)).collect()
    }

    /// The folder of a core, made if it is not there.
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
            Ok(herd) => Ok(cores.entry(core).or_insert(herd).clone()),
            Err(error) => {
                // The first error is the one to tell.
                let _ = self.hierarchy.remove(&path);
                Err(error)
            }
        }
    }

    /// Makes a folder for an NF of a core, with the kernel's default weight and no process in it.
    ///
    /// # Errors
    /// [`CgroupError::Exists`] if the NF has one, [`CgroupError::NotPermitted`], [`CgroupError::System`]. Then nothing has changed, but that
    /// the core may have a folder.
    pub fn add_nf(&self, nf: &str, core: usize) -> Result<NfGroup, CgroupError> {
        let herds = [self.of_core(core)?, self.herd.clone()];
        let (kernel, path) = (&self.hierarchy.kernel, self.path_of(nf, core));
        kernel.make(&path).map_err(refused("make cgroup", &path))?;
        let made = Weight::open(kernel, self.hierarchy.version, &path).and_then(|weight| {
            herds.iter().try_for_each(|herd| Herd::change(herd, |nfs| nfs + 1))?;
            Ok(weight)
        });
        match made {
            Ok(weight) => Ok(NfGroup { hierarchy: self.hierarchy.clone(), path, herds, weight, is_made: true }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = self.hierarchy.remove(&path);
                Err(error)
            }
        }
    }

    /// Removes the folder with those of all NFs. Processes that still run go to the manager's own cgroup.
    ///
    /// # Errors
    /// [`CgroupError::Busy`], [`CgroupError::NotPermitted`], [`CgroupError::System`]. What could be removed was.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<(), CgroupError> {
        if !std::mem::take(&mut self.is_made) {
            return self.give_back_setting();
        }
        let kernel = &self.hierarchy.kernel;
        // There is no use in a weight for what is about to go.
        let cores = std::mem::take(self.cores.get_mut().unwrap_or_else(PoisonError::into_inner));
        for herd in cores.values().chain([&self.herd]) {
            herd.lock().unwrap_or_else(PoisonError::into_inner).weight = None;
        }
        let mut first = Ok(());
        for core in kernel.folders(&self.path).unwrap_or_default() {
            let nfs = kernel.folders(&core).unwrap_or_default();
            // The core's is removed if all of its NFs' could be.
            for folder in nfs.iter().chain([&core]) {
                first = first.and(self.hierarchy.remove(folder));
            }
        }
        first?;
        self.hierarchy.remove(&self.path)?;
        self.give_back_setting()
    }

    /// Undoes what [`Hierarchy::setting`] told.
    fn give_back_setting(&self) -> Result<(), CgroupError> {
        let Some((file, text)) = self.hierarchy.setting() else { return Ok(()) };
        match self.hierarchy.kernel.write(&file, &text) {
            // Somebody else has come to need it.
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

/// The folder of an NF. Dropping it removes it, as far as that is possible.
#[derive(Debug)]
pub struct NfGroup {
    hierarchy: Hierarchy,
    path: PathBuf,
    /// Of its core, and of all.
    herds: [Arc<Mutex<Herd>>; 2],
    weight: Weight,
    is_made: bool,
}

impl NfGroup {
    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process here, with all its threads. What it starts later starts here.
    ///
    /// # Errors
    /// [`CgroupError::NoProcess`], [`CgroupError::RealTime`], [`CgroupError::NotPermitted`], [`CgroupError::Gone`].
    pub fn join(&self, pid: Pid) -> Result<(), CgroupError> {
        let (file, pid) = (self.path.join(PROCS), pid.as_raw_nonzero().get());
        self.hierarchy.kernel.write(&file, &pid.to_string()).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => CgroupError::NoProcess { pid, path: self.path.clone() },
            Some(libc::EINVAL | libc::EPERM) => CgroupError::RealTime { path: self.path.clone() },
            _ => refused("move a process to", &file)(source),
        })
    }

    /// Sets the weight for a share between 0 and 1 of what all NFs of the group have on a core, and says which weight that is. One
    /// system call.
    ///
    /// # Errors
    /// [`CgroupError::Gone`], [`CgroupError::System`].
    pub fn set_weight(&self, share: f64) -> Result<u64, CgroupError> {
        self.weight.set(share)
    }

    /// The weight that the kernel says the folder has.
    ///
    /// # Errors
    /// [`CgroupError::Gone`], [`CgroupError::System`].
    pub fn weight(&self) -> Result<u64, CgroupError> {
        let file = self.path.join(self.hierarchy.version.file());
        let text = self.hierarchy.kernel.read(&file).map_err(refused("read", &file))?;
        let no_number = |_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no weight"));
        text.trim().parse().map_err(no_number).map_err(refused("read", &file))
    }

    /// What sets the weight, for another thread.
    pub fn handle(&self) -> Weight {
        self.weight.clone()
    }

    /// Removes the folder. Processes that still run go to the manager's own cgroup.
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
        self.herds.iter().try_for_each(|herd| match Herd::change(herd, |nfs| nfs.saturating_sub(1)) {
            // The group went before.
            Err(CgroupError::Gone { .. }) => Ok(()),
            other => other,
        })
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
