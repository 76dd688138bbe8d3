//! Watches the runtime directory while the daemon runs, and restores what was removed.
//!
//! Another program may sweep a directory below `/run` or `/tmp`. Without the lock a second daemon
//! would start there, and without its socket no NF would find the first one.

use std::time::{Duration, Instant};

use super::notice::NoticeKind;
use super::{Supervisor, SupervisorError};

/// Time between two checks.
const EVERY: Duration = Duration::from_secs(1);

/// The last check, and what is wrong.
#[derive(Debug, Default)]
pub(super) struct DirWatch {
    looked: Option<Instant>,
    trouble: Option<String>,
    /// The guard's file is to be written anew.
    owes_guard: bool,
}

impl DirWatch {
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

impl Supervisor {
    /// Checks, if it is time to, that the lock, the record and the NF sockets exist, and restores
    /// the missing ones. The control socket's server restores that.
    pub(super) fn keep_runtime_dir(&mut self, now: Instant) {
        if self.host.runtime_dir.looked.is_some_and(|at| now.duration_since(at) < EVERY) {
            return;
        }
        self.host.runtime_dir.looked = Some(now);
        let (is_made, trouble) = self.make_runtime_dir_anew().unwrap_or_else(|error| (false, Some(error.to_string())));
        // A container can remove a socket each second.
        if is_made {
            let dir = self.config.manager.runtime_dir.display();
            let line = || format!("the runtime directory {dir}, or a file in it, was removed; it is there again");
            self.host.notices.print(NoticeKind::Restored, line);
        }
        if let Some(trouble) = trouble.as_ref().filter(|trouble| self.host.runtime_dir.trouble.as_ref() != Some(trouble)) {
            let line = || format!("something in the runtime directory was removed and cannot be made anew as it was: {trouble}");
            self.host.notices.print(NoticeKind::Unrestored, line);
        }
        self.host.runtime_dir.trouble = trouble;
    }

    /// Returns whether something was made, and what could not be made.
    fn make_runtime_dir_anew(&mut self) -> Result<(bool, Option<String>), SupervisorError> {
        let Some(record) = &mut self.host.record else { return Ok((false, None)) };
        let is_made = record.keep()?;
        self.host.runtime_dir.owes_guard |= is_made;
        if let Some(guard) = self.outside.guard().filter(|_| self.host.runtime_dir.owes_guard) {
            guard
                .write_journal_anew()
                .map_err(|source| SupervisorError::Conflict(format!("cannot write the guard's file: {source}")))?;
        }
        self.host.runtime_dir.owes_guard = false;
        let (are_made, trouble) = self.host.sockets.keep(&self.config.manager.runtime_dir);
        Ok((is_made | are_made, trouble.or(self.open_missing().err())))
    }
}
