//! What is wrong with a cgroup, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why weights cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The kernel, or the container, has no cpu controller.
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
    NotDelegated {
        /// The manager's own cgroup.
        home: PathBuf,
    },
    /// This user may not, or the file system is mounted read-only.
    #[error(
        "not permitted to {doing} {path} ({source}); run sluiced as root, or in a cgroup that is delegated to its user, and in a \
         container with a writable cgroup mount; or set [sched] weights = false"
    )]
    NotPermitted {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is a folder of that name already.
    #[error("cgroup {path} exists already; if no sluiced uses it, end the processes in it and remove it with rmdir")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The process has ended, or never was.
    #[error("no process has pid {pid}, so it cannot join cgroup {path}; start it first")]
    NoProcess {
        /// The pid.
        pid: i32,
        /// The folder.
        path: PathBuf,
    },
    /// The kernel takes no real-time process into a cgroup without a real-time budget.
    #[error(
        "the kernel takes no real-time process into cgroup {path} (CONFIG_RT_GROUP_SCHED); weights do nothing for real-time classes: set \
         [sched] weights = false, or another class than rr, or give the cgroup and those above it a budget in cpu.rt_runtime_us \
         (version 1 only)"
    )]
    RealTime {
        /// The folder.
        path: PathBuf,
    },
    /// Somebody keeps a process or a folder in a cgroup that is to be removed.
    #[error("cgroup {path} cannot be removed because it is still in use; end the processes in it and remove it with rmdir")]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// Somebody removed a cgroup that is in use.
    #[error("cgroup {path} is no longer there; leave removing it to sluiced, and restart the NF")]
    Gone {
        /// The folder or file.
        path: PathBuf,
    },
    /// Another system call failed.
    #[error("cannot {doing} {path}: {source}; look what is wrong there, or set [sched] weights = false")]
    System {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Makes the error of a system call.
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
