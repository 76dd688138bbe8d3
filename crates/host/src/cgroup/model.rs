//! A model of the kernel's cgroup file systems, of both versions, on a test's own files.
//!
//! It refuses what the kernel refuses, with the same errors, as far as the manager could meet them:
//! an unknown pid, a weight that is out of range or no number, removing a cgroup with processes or
//! folders, real-time processes in a child, and in version 2 processes in a cgroup that passes
//! controllers on, and controllers that it does not have.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::kernel::{Kernel, Knob, Linux};
use super::{PROCS, SUBTREE, Version};

#[derive(Debug)]
pub(super) struct CgroupModel {
    pub root: tempfile::TempDir,
    version: Version,
    top: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeMap<i32, PathBuf>,
    real_time: Vec<i32>,
    /// Processes of another pid namespace.
    foreign: Vec<i32>,
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl CgroupModel {
    /// A host with its manager (pid 1) in the cgroup `home`, an absolute path in the hierarchy.
    pub fn new(version: Version, home: &str) -> Arc<Self> {
        let root = tempfile::tempdir().unwrap();
        let (point, line, member) = match version {
            Version::V1 => ("sys/fs/cgroup/cpu", "cgroup cgroup rw,cpu", format!("4:memory:/x\n1:cpu:{home}\n0::/y\n")),
            Version::V2 => ("sys/fs/cgroup", "cgroup2 cgroup2 rw", format!("0::{home}\n")),
        };
        let own = root.path().join("proc/self");
        fs::create_dir_all(&own).unwrap();
        let top = root.path().join(point);
        fs::create_dir_all(top.parent().unwrap()).unwrap();
        let mounts = format!("22 27 0:21 / /proc rw - proc proc rw\n31 27 0:22 / /{point} rw,relatime - {line}\n");
        fs::write(own.join("mountinfo"), mounts).unwrap();
        fs::write(own.join("cgroup"), member).unwrap();
        let model = Self { root, version, top: top.clone(), state: Arc::default() };
        model.make(&top).unwrap();
        let mut folder = top;
        for part in home.split('/').filter(|part| !part.is_empty()) {
            folder = folder.join(part);
            model.make(&folder).unwrap();
        }
        model.state.lock().unwrap().members.insert(1, folder);
        Arc::new(model)
    }

    pub fn folder(&self, cgroup: &str) -> PathBuf {
        self.top.join(cgroup)
    }

    /// Starts a process in the manager's cgroup.
    pub fn start(&self, pid: i32, real_time: bool) {
        let mut state = self.state.lock().unwrap();
        let home = state.members[&1].clone();
        state.members.insert(pid, home);
        if real_time {
            state.real_time.push(pid);
        }
    }

    /// Puts a process of another pid namespace into a cgroup.
    pub(crate) fn start_foreign(&self, pid: i32, folder: &Path) {
        let mut state = self.state.lock().unwrap();
        state.members.insert(pid, folder.into());
        state.foreign.push(pid);
    }

    pub fn cgroup_of(&self, pid: i32) -> PathBuf {
        self.state.lock().unwrap().members[&pid].strip_prefix(&self.top).unwrap().into()
    }

    pub fn tree(&self) -> Vec<(String, Vec<i32>)> {
        let mut found = Vec::new();
        let mut next = vec![self.top.clone()];
        while let Some(folder) = next.pop() {
            next.extend(self.folders(&folder).unwrap());
            let name = folder.strip_prefix(&self.top).unwrap().to_str().unwrap().to_owned();
            found.push((name, self.state.lock().unwrap().pids(&folder)));
        }
        found.sort();
        found
    }

    /// Whether a cgroup has the cpu controller's files.
    fn has_cpu(&self, folder: &Path) -> bool {
        self.version == Version::V1 || folder != self.top && passes_on_cpu(folder.parent().unwrap())
    }
}

impl State {
    fn pids(&self, folder: &Path) -> Vec<i32> {
        self.members.iter().filter(|(_, of)| *of == folder).map(|(pid, _)| *pid).collect()
    }
}

fn passes_on_cpu(folder: &Path) -> bool {
    fs::read_to_string(folder.join(SUBTREE)).is_ok_and(|text| text.contains("cpu"))
}

impl Kernel for CgroupModel {
    fn make(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir(folder)?;
        let mut files = vec![(PROCS, "")];
        let is_top = folder == self.top;
        match self.version {
            Version::V1 => files.push(("cpu.shares", "1024\n")),
            Version::V2 => {
                let controllers = if is_top || self.has_cpu(folder) { "cpu memory\n" } else { "memory\n" };
                files.extend([("cgroup.controllers", controllers), (SUBTREE, "memory\n")]);
                if !is_top {
                    files.push(("cgroup.type", "domain\n"));
                }
                if self.has_cpu(folder) {
                    files.push(("cpu.weight", "100\n"));
                }
            }
        }
        files.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
    }

    fn remove(&self, folder: &Path) -> io::Result<()> {
        if !self.folders(folder)?.is_empty() || !self.state.lock().unwrap().pids(folder).is_empty() {
            return Err(errno(libc::EBUSY));
        }
        fs::remove_dir_all(folder)
    }

    fn folders(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        Linux.folders(folder)
    }

    fn read(&self, file: &Path) -> io::Result<String> {
        let text = Linux.read(file)?;
        if !file.ends_with(PROCS) {
            return Ok(text);
        }
        let state = self.state.lock().unwrap();
        let shown = |pid: i32| if state.foreign.contains(&pid) { 0 } else { pid };
        Ok(state.pids(file.parent().unwrap()).into_iter().map(|pid| format!("{}\n", shown(pid))).collect())
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        fs::metadata(file)?;
        let folder = file.parent().unwrap();
        let mut state = self.state.lock().unwrap();
        if file.ends_with(PROCS) {
            let pid = text.parse().map_err(|_| errno(libc::EINVAL))?;
            // 0 stands for the writing process.
            let pid = if pid == 0 { 1 } else { pid };
            if !state.members.contains_key(&pid) || state.foreign.contains(&pid) {
                return Err(errno(libc::ESRCH));
            }
            if state.real_time.contains(&pid) && folder != self.top {
                return Err(errno(libc::EINVAL));
            }
            if self.version == Version::V2 && folder != self.top && passes_on_cpu(folder) {
                return Err(errno(libc::EBUSY));
            }
            state.members.insert(pid, folder.into());
            return Ok(());
        }
        if file.ends_with(SUBTREE) {
            let inside = self.folders(folder)?;
            match text {
                "+cpu" if !fs::read_to_string(folder.join("cgroup.controllers"))?.contains("cpu") => {
                    return Err(errno(libc::ENOENT));
                }
                "+cpu" if folder != self.top && !state.pids(folder).is_empty() => return Err(errno(libc::EBUSY)),
                "+cpu" if !state.real_time.is_empty() => return Err(errno(libc::EINVAL)),
                "+cpu" => {
                    fs::write(file, "cpu memory\n")?;
                    for child in inside.iter().filter(|child| !child.join("cpu.weight").exists()) {
                        fs::write(child.join("cpu.weight"), "100\n")?;
                        fs::write(child.join("cgroup.controllers"), "cpu memory\n")?;
                    }
                }
                "-cpu" if inside.iter().any(|child| passes_on_cpu(child)) => return Err(errno(libc::EBUSY)),
                "-cpu" => {
                    fs::write(file, "memory\n")?;
                    for child in &inside {
                        fs::remove_file(child.join("cpu.weight"))?;
                        fs::write(child.join("cgroup.controllers"), "memory\n")?;
                    }
                }
                _ => return Err(errno(libc::EINVAL)),
            }
            return Ok(());
        }
        self.open(file)?.set(text)
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn Knob>> {
        fs::metadata(file)?;
        if !file.ends_with(self.version.file()) {
            return Err(errno(libc::EACCES));
        }
        Ok(Box::new(Setting { version: self.version, file: file.into() }))
    }
}

#[derive(Debug)]
struct Setting {
    version: Version,
    file: PathBuf,
}

impl Knob for Setting {
    fn set(&self, text: &str) -> io::Result<()> {
        if !self.file.exists() {
            return Err(errno(libc::ENODEV));
        }
        let number: u64 = text.parse().map_err(|_| errno(libc::EINVAL))?;
        let (least, most) = self.version.range();
        let number = match self.version {
            // The kernel accepts any number here, and clamps it.
            Version::V1 => number.clamp(least, most),
            Version::V2 if (least..=most).contains(&number) => number,
            Version::V2 => return Err(errno(libc::ERANGE)),
        };
        fs::write(&self.file, format!("{number}\n"))
    }
}
