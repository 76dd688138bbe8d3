//! Errors of cgroups, with their remedies.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The kernel or the container has no cpu controller.
    #[error(
        "no cgroup cpu controller is mounted below {root}; mount one (`mount -t cgroup -o cpu cpu DIR`, or cgroup2 with cpu among its \
         cgroup.controllers), or set [sched] weights = false"
    )]
    NoController {
        /// The file-system root that was searched.
        root: PathBuf,
    },
    /// Version 2: no folder from the manager's own upwards passes the cpu controller on.
    #[error(
        "cgroup {home} holds the manager, and neither it nor a folder above it can pass the cpu controller on; start sluiced from a \
         systemd unit with Delegate=cpu and DelegateSubgroup=manager, or set [sched] weights = false"
    )]
    NotDelegated { home: PathBuf },
    /// This user may not, or the file system is read-only.
    #[error(
        "not permitted to {doing} {path} ({source}); run sluiced as root, or in a cgroup that is delegated to its user, and in a \
         container with a writable cgroup mount; or set [sched] weights = false"
    )]
    NotPermitted { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cgroup {path} exists already; if no sluiced uses it, end the processes in it and remove it with rmdir")]
    Exists { path: PathBuf },
    #[error("no process has pid {pid}, so it cannot join cgroup {path}; start it first")]
    NoProcess { pid: i32, path: PathBuf },
    /// The kernel admits no real-time process to a cgroup without a real-time budget.
    #[error(
        "the kernel takes no real-time process into cgroup {path} (CONFIG_RT_GROUP_SCHED); weights do nothing for real-time classes: set \
         [sched] weights = false, or another class than rr, or give the cgroup and those above it a budget in cpu.rt_runtime_us \
         (version 1 only)"
    )]
    RealTime { path: PathBuf },
    /// A cgroup that is to be removed still has a process or a folder.
    #[error("cgroup {path} cannot be removed because it is still in use; end the processes in it and remove it with rmdir")]
    Busy { path: PathBuf },
    /// A cgroup was removed while in use.
    #[error("cgroup {path} is no longer there; leave removing it to sluiced, and restart the NF")]
    Gone { path: PathBuf },
    #[error("cannot {doing} {path}: {source}; look what is wrong there, or set [sched] weights = false")]
    System { doing: &'static str, path: PathBuf, source: io::Error },
}

/// Turns the error of a system call into a [`CgroupError`].
pub(super) fn refused(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    move |source| {
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => CgroupError::NotPermitted { doing, path, source },
            Some(libc::EEXIST) => CgroupError::Exists { path },
            Some(libc::ENOENT | libc::ENODEV) => CgroupError::Gone { path },
            _ => CgroupError::System { doing, path, source },
        }
    }
}
