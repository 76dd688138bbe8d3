//! A process that the manager has to do with: of an NF, of a zygote, or one that has started an NF.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, Signal};

use sluice_host::attach::Peer;
use sluice_host::container::Life;
use sluice_host::process::{self, Proc};

/// A process of an NF.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// We are its parent and must reap it.
    pub(crate) child: bool,
    /// Somebody else's, who alone ends it.
    pub(crate) theirs: bool,
    /// It is the runtime of a container, which leaves this behind.
    pub(crate) container: Option<Life>,
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
        // Not collected yet, so the number is still its own.
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
    }

    /// Ends it at once, and what it started if it is ours: it leads a group of its own then.
    pub(crate) fn kill(&self) {
        if self.theirs {
            return;
        }
        let pidfd = self.pidfd.as_fd();
        let _ = if self.child { process::kill_group(pidfd) } else { process::send_signal(pidfd, Signal::KILL) };
    }

    /// Whether another process is the one that was started, or one that descends from it: a program may start the NF.
    ///
    /// Nothing that the process knows would tell it from another one of its user, who can read its environment and its memory; who started
    /// whom is the kernel's word.
    pub(crate) fn has_started(&self, peer: &Peer) -> bool {
        let Some(pid) = peer.pid else { return false };
        let descends = || Proc::default().ancestors(pid).is_ok_and(|ancestors| ancestors.contains(&self.pid));
        // Both still are who they were, so their numbers are theirs: ours has not been collected, and the other one lives.
        (pid == self.pid || descends()) && process::wait_readable(peer.pidfd.as_fd(), Some(0)) == Ok(false)
    }
}
