//! A process that the manager handles: of an NF, of a zygote, or a wrapper.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, Signal};

use sluice_host::attach::Peer;
use sluice_host::container::ContainerRun;
use sluice_host::process::{self, Proc};

pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// Whether the manager is its parent and must reap it.
    pub(crate) child: bool,
    /// Whether the manager did not start it and must not end it.
    pub(crate) theirs: bool,
    /// If it is the runtime of a container: what the container leaves behind.
    pub(crate) container: Option<ContainerRun>,
}

impl Process {
    pub(crate) fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    /// Asks it to end, with what it started.
    pub(crate) fn terminate(&self) {
        if self.theirs {
            return;
        }
        // It is not collected yet, so the number is still its own.
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
    }

    /// Kills it, and what it started if it is ours: then it leads its own group.
    pub(crate) fn kill(&self) {
        if self.theirs {
            return;
        }
        let pidfd = self.pidfd.as_fd();
        let _ = if self.child { process::kill_group(pidfd) } else { process::send_signal(pidfd, Signal::KILL) };
    }

    /// Whether another process is this one or descends from it: a program may start the NF.
    ///
    /// No secret of the process would do, as other processes of its user can read its environment
    /// and memory. The kernel vouches for the descent.
    pub(crate) fn has_started(&self, peer: &Peer) -> bool {
        let Some(pid) = peer.pid else { return false };
        let descends = || Proc::default().ancestors(pid).is_ok_and(|ancestors| ancestors.contains(&self.pid));
        // Both numbers are valid: ours has not been collected, and the other process lives.
        (pid == self.pid || descends()) && process::wait_readable(peer.pidfd.as_fd(), Some(0)) == Ok(false)
    }
}
