//! Network namespaces: made, entered, named, and removed with their processes.
//!
//! # Approach
//! A namespace lives as long as a descriptor of it is open, a process runs in it, or its file is
//! mounted somewhere; by custom below `/run/netns`, where `ip netns` finds it by name. The
//! manager's own namespaces have a descriptor and no name: they end with the manager in any case,
//! with their interfaces. A named one outlives a killed manager, so it is noted in the
//! [record](crate::record).
//!
//! Each visit of a namespace has a thread of its own, which ends with it ([`Netns::visit`]). So no
//! other thread of the manager is ever in the wrong namespace.
//!
//! # Limits
//! Needs root (CAP_SYS_ADMIN). Only processes with the manager's mounts (`ip netns`) see a name.

// The safe wrappers of setns, unshare and mount do not say which thread they affect.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::process::{self, Proc};

/// Folder of named namespaces.
pub(crate) const NAMED: &str = "/run/netns";

/// Maximum time for killed processes to end.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
}

impl Netns {
    /// Makes a namespace without a name, which ends with its last descriptor.
    ///
    /// # Errors
    /// The kernel's: not permitted without root, or too many namespaces.
    pub fn private() -> io::Result<Self> {
        apart(fresh)
    }

    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: File::open(path)?.into() })
    }

    /// Makes a named namespace. Note its path in the record before.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name is taken; the kernel's.
    pub fn named(name: &str) -> io::Result<Self> {
        let path = path_of(name);
        fs::create_dir_all(NAMED)?;
        OpenOptions::new().write(true).create_new(true).open(&path)?;
        let made = apart(|| {
            let ns = fresh()?;
            let (from, to) = (c"/proc/thread-self/ns/net", text(&path)?);
            // SAFETY: both strings end in zero; a bind mount ignores the other pointers.
            let result = unsafe { libc::mount(from.as_ptr(), to.as_ptr(), null(), libc::MS_BIND, null()) };
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(ns) }
        });
        if made.is_err() {
            let _ = fs::remove_file(&path);
        }
        made
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Runs `job` in it, on a thread of its own.
    ///
    /// # Errors
    /// Those of `job`, or that the namespace cannot be entered.
    pub fn visit<T: Send, E: From<io::Error> + Send>(&self, job: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E> {
        apart(|| {
            // SAFETY: a plain system call on an open descriptor; it only changes the calling
            // thread, which ends after this.
            if unsafe { libc::setns(self.fd.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error().into());
            }
            job()
        })
    }

    /// The processes in it, according to `proc`.
    pub fn members(&self, proc: &Proc) -> io::Result<Vec<Pid>> {
        let own = File::from(self.fd.try_clone()?).metadata()?;
        let is_in = |pid: &Pid| {
            let ns = fs::metadata(proc.path(&format!("{}/ns/net", pid.as_raw_nonzero())));
            ns.is_ok_and(|ns| (ns.dev(), ns.ino()) == (own.dev(), own.ino()))
        };
        let pids = fs::read_dir(proc.path(""))?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(pids.filter_map(Pid::from_raw).filter(is_in).collect())
    }

    /// Kills the processes in it, and waits for their end. The caller collects its own children.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::TimedOut`] if one does not end.
    pub fn kill_members(&self, proc: &Proc) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            // Until it is empty: a process that is being made is found in the next round.
            let members = self.members(proc)?;
            if members.is_empty() {
                return Ok(());
            }
            for pid in members {
                let Some(identity) = proc.identity(pid) else { continue };
                let Ok(Some(pidfd)) = identity.open(proc) else { continue };
                // In this order: a member with this pid after opening is the pidfd's process.
                if self.members(proc)?.contains(&pid) {
                    process::send_signal(pidfd.as_fd(), Signal::KILL)?;
                    let left = end.saturating_duration_since(Instant::now()).as_millis() as u64;
                    if !process::wait_readable(pidfd.as_fd(), Some(left))? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }
}

/// The file of a named namespace.
pub fn path_of(name: &str) -> PathBuf {
    Path::new(NAMED).join(name)
}

/// Removes the name of a namespace; false if there was none.
///
/// The namespace ends with its last process and its last descriptor.
pub fn unname(path: &Path) -> io::Result<bool> {
    let file = text(path)?;
    // SAFETY: a string that ends in zero.
    if unsafe { libc::umount2(file.as_ptr(), libc::MNT_DETACH) } < 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The file has no mount: its maker was killed before the mount.
            Some(libc::EINVAL) => {}
            Some(libc::ENOENT) => return Ok(false),
            _ => return Err(error),
        }
    }
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Runs `job` on a thread of its own, and waits for its end.
fn apart<T: Send, E: From<io::Error> + Send>(job: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E> {
    std::thread::scope(|scope| match std::thread::Builder::new().name("sluice-netns".into()).spawn_scoped(scope, job) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(error) => Err(error.into()),
    })
}

/// Makes a new namespace and leaves the calling thread in it.
fn fresh() -> io::Result<Netns> {
    // SAFETY: a plain system call that only changes the calling thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Netns::open(Path::new("/proc/thread-self/ns/net"))
}

fn text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
    use std::process::{Command, Stdio};

    #[test]
    fn a_namespace_ends_with_its_name_and_its_processes() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make network namespaces");
        }
        let name = format!("sluice-test-{}", std::process::id());
        let ns = Netns::named(&name).unwrap();
        assert_eq!(Netns::named(&name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let proc = Proc::default();
        assert_eq!(ns.members(&proc).unwrap(), []);
        // It has only its loopback, and a visit does not move this thread.
        let interfaces = || fs::read_to_string("/proc/thread-self/net/dev");
        let there = ns.visit(interfaces).unwrap();
        assert_eq!(there.lines().count(), 3, "{there}");
        let mut child = ns.visit(|| Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn()).unwrap();
        assert_eq!(ns.members(&proc).unwrap(), [Pid::from_child(&child)]);
        ns.kill_members(&proc).unwrap();
        assert_eq!(ns.members(&proc).unwrap(), [], "one that has ended is in no namespace, collected or not");
        assert!(!child.wait().unwrap().success());
        assert!(unname(&path_of(&name)).unwrap());
        assert!(!unname(&path_of(&name)).unwrap() && !path_of(&name).exists());
    }

    #[test]
    fn a_file_that_a_killed_one_left_is_removed() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can unmount a namespace");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ns");
        fs::write(&file, "").unwrap();
        assert!(unname(&file).unwrap() && !file.exists());
    }
}
