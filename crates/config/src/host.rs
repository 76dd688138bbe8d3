//! The host that a configuration is for.
//!
//! A [`Host`] holds what checks may know of the host: the root of its file system and a few facts.
//! Tests make one up; the daemon uses [`Host::here`].

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sluice_api::config::Config;
use sluice_host::affinity;

/// What checks may know of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Root of the file system.
    pub root: PathBuf,
    /// Cores on which this process may run.
    pub allowed: BTreeSet<usize>,
    /// User ID of this process.
    pub uid: u32,
    /// Folder of this program's executable.
    pub beside: Option<PathBuf>,
    /// Folders in PATH.
    pub path: Vec<PathBuf>,
    /// Whether this build has DPDK.
    pub dpdk: bool,
}

impl Host {
    /// The host that this process runs on.
    pub fn here() -> Self {
        let allowed = affinity::allowed().map(|cores| cores.into_iter().collect()).unwrap_or_default();
        Self {
            root: "/".into(),
            allowed,
            uid: rustix::process::geteuid().as_raw(),
            beside: std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf)),
            path: std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default(),
            dpdk: sluice_dpdk::BUILT_IN,
        }
    }

    /// Prefixes an absolute path with the root of this host.
    pub(super) fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn online(&self) -> Option<BTreeSet<usize>> {
        Some(affinity::online(&self.root.join("sys")).ok()?.into_iter().collect())
    }

    /// Number of 2 MiB hugepages that nobody uses.
    pub fn free_hugepages(&self) -> Option<u64> {
        self.hugepages("free_hugepages", "HugePages_Free")
    }

    /// Number of 2 MiB hugepages in the pool, free or in use.
    pub fn all_hugepages(&self) -> Option<u64> {
        self.hugepages("nr_hugepages", "HugePages_Total")
    }

    /// Reads a counter of the 2 MiB hugepage pool from its file, or else from /proc/meminfo.
    fn hugepages(&self, file: &str, field: &str) -> Option<u64> {
        let pool = self.root.join("sys/kernel/mm/hugepages/hugepages-2048kB").join(file);
        if let Some(pages) = fs::read_to_string(pool).ok().and_then(|text| text.trim().parse().ok()) {
            return Some(pages);
        }
        match self.meminfo("Hugepagesize")? {
            2048 => self.meminfo(field),
            _ => Some(0),
        }
    }

    fn meminfo(&self, field: &str) -> Option<u64> {
        let text = fs::read_to_string(self.root.join("proc/meminfo")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Memory of the host, in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.meminfo("MemTotal")?.checked_mul(1024)
    }

    /// Looks up a user ID by name or number. The error lists the known names.
    pub(super) fn user(&self, user: &str) -> Result<u32, Vec<String>> {
        self.entry("etc/passwd", user)
    }

    /// Looks up a group ID, as [`Self::user`].
    pub(super) fn group(&self, group: &str) -> Result<u32, Vec<String>> {
        self.entry("etc/group", group)
    }

    /// The number of a name in a file of users or groups.
    fn entry(&self, file: &str, wanted: &str) -> Result<u32, Vec<String>> {
        if let Ok(number) = wanted.parse() {
            return Ok(number);
        }
        let entries = fs::read_to_string(self.root.join(file)).unwrap_or_default();
        let mut names = Vec::new();
        for line in entries.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(_), Some(number)) = (fields.next(), fields.next(), fields.next()) {
                match number.parse() {
                    Ok(number) if name == wanted => return Ok(number),
                    _ => names.push(name.to_string()),
                }
            }
        }
        Err(names)
    }
}

/// Whether a program is named without a folder, so that PATH has to be searched.
pub(crate) fn is_bare(exec: &Path) -> bool {
    !exec.as_os_str().as_encoded_bytes().contains(&b'/')
}

/// The absolute path of a service's program.
///
/// A bare name is searched for in the folder of this program, then in PATH.
///
/// # Errors
/// The problem and what to do, as one sentence.
pub fn resolve_exec(exec: &Path, host: &Host) -> Result<PathBuf, String> {
    let shown = exec.display();
    if !is_bare(exec) {
        return match fs::metadata(host.at(exec)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("there is no program {shown}; correct the path, or build it"))
            }
            Err(e) => Err(format!("cannot look at {shown}: {e}; correct the path, or run as a user with permission to read it")),
            Ok(m) if m.is_dir() => Err(format!("{shown} is a folder; name the program in it")),
            Ok(m) if m.permissions().mode() & 0o111 == 0 => Err(not_executable(exec, &host.at(exec))),
            Ok(_) => Ok(exec.to_path_buf()),
        };
    }
    let runs = |path: &PathBuf| fs::metadata(host.at(path)).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let folders = host.beside.iter().chain(&host.path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(exec)).find(runs).ok_or_else(|| {
        let beside = host.beside.as_ref().map_or("the folder of sluiced".into(), |b| b.display().to_string());
        format!("there is no program {shown} in {beside} or in PATH; write its path, such as \"/usr/bin/{shown}\"")
    })
}

/// Error text for a file that is not executable; `chmod +x` is for scripts and ELF files only.
pub(super) fn not_executable(exec: &Path, file: &Path) -> String {
    let shown = exec.display();
    let mut start = [0; 4];
    let read = fs::File::open(file).and_then(|mut file| file.read(&mut start)).unwrap_or(0);
    if start[..read].starts_with(b"#!") || start[..read] == *b"\x7fELF" {
        format!("{shown} is not executable; run `chmod +x {shown}`")
    } else {
        format!("{shown} is no program; write the path of one")
    }
}

/// Replaces the programs of all services by their absolute paths.
///
/// A program that is not found stays as it is: [`check`](crate::on_host::check) has reported it.
/// The program of a container is a path inside the container, and stays too.
pub fn resolve(config: &mut Config, host: &Host) {
    for exec in config.services.iter_mut().filter(|s| s.container.is_none()).filter_map(|s| s.exec.as_mut()) {
        if let Ok(path) = resolve_exec(exec, host) {
            *exec = path;
        }
    }
}

/// Reports that this process may not run NFs on a core, and what to do.
pub fn check_core(core: usize, host: &Host) -> Option<(String, String)> {
    if host.allowed.contains(&core) {
        return None;
    }
    let message = match host.online() {
        Some(online) if online.contains(&core) => format!("core {core} is not allowed for this process"),
        Some(_) | None => format!("no such core: {core}"),
    };
    Some((message, format!("use one of the cores {}", affinity::list(&host.allowed))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_cores() {
        let host = Host::here();
        assert!(!host.allowed.is_empty() && host.allowed.is_subset(&host.online().unwrap()));
    }
}
