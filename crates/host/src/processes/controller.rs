//! The interface of all controllers, and their settings.

use std::path::PathBuf;

use super::mechanism::{Failed, Mechanism, Refused, Slot};
use super::target::Target;
use super::undo::HostOps;

/// Stops and runs targets by one mechanism.
///
/// Not for several threads at once: each core's scheduler has its own. Drop calls
/// [`teardown`](Controller::teardown).
pub trait Controller: Send {
    fn mechanism(&self) -> Mechanism;

    /// Takes a target under control: it is parked from now on.
    ///
    /// # Errors
    /// [`Refused`]; then the target is as before.
    fn add(&mut self, target: &Target) -> Result<Slot, Refused>;

    /// Stops a target; no error if it is parked already.
    ///
    /// # Errors
    /// [`Failed`]; [`Failed::Ended`] if all its processes have ended.
    fn park(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Lets a target run; no error if it runs already.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn run(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Stops one target and lets another run. `to` runs even if stopping `from` fails.
    ///
    /// # Errors
    /// As [`park`](Controller::park): `to`'s failure, else `from`'s.
    /// [`is_ended`](Controller::is_ended) says which of them has ended.
    fn switch(&mut self, from: Slot, to: Slot) -> Result<(), Failed> {
        let parked = self.park(from);
        self.run(to).and(parked)
    }

    /// Sets a target's share of the core, 0 to 1, among running ones; false without weights.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn set_weight(&mut self, slot: Slot, share: f64) -> Result<bool, Failed> {
        let _ = (slot, share);
        Ok(false)
    }

    /// Finds new threads of the targets, which park and run ignore before.
    ///
    /// It reads folders: too slow to run between two slices.
    ///
    /// # Errors
    /// The failure for one of them; all others were looked for.
    fn look_again(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    /// Ensures that a parked target can be killed; it may run a little.
    ///
    /// SIGKILL has no effect on one frozen by version 1, and little below a real-time spinner.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Whether all processes of a target have ended, or there is no such target.
    fn is_ended(&self, slot: Slot) -> bool;

    /// Releases a target: it runs, with its former class and cgroup. Frees the slot in any case.
    ///
    /// # Errors
    /// What could not be restored. An ended target is no error.
    fn remove(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Releases all targets, removes what was made for them, and returns failures.
    fn teardown(&mut self) -> Vec<Failed>;
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// Root of the file system, with `proc` and the mounts. Tests inject another.
    pub root: PathBuf,
    /// Unique name of the folder made for cgroups, one for each controller.
    pub folder: String,
    /// Parent of that folder in version 2. If None, only this process's own cgroup.
    pub freeze_parent: Option<PathBuf>,
    /// The same in the freezer hierarchy of version 1.
    pub freezer_parent: Option<PathBuf>,
    /// Real-time priority of parked processes.
    pub low: u8,
    /// Real-time priority of running processes; the controller has the next one, see
    /// [`raise_self`](super::realtime::raise_self).
    pub high: u8,
    /// Ordinary folders in place of cgroups.
    #[cfg(test)]
    pub(crate) fake: Option<HostOps>,
}

impl Settings {
    /// The defaults. `folder` must be unique on the host, such as `sluice-PID-core1`.
    pub fn new(folder: &str) -> Self {
        Self {
            root: "/".into(),
            folder: folder.into(),
            freeze_parent: None,
            freezer_parent: None,
            low: 10,
            high: 20,
            #[cfg(test)]
            fake: None,
        }
    }

    pub(super) fn host(&self) -> HostOps {
        #[cfg(test)]
        if let Some(host) = &self.fake {
            return host.clone();
        }
        HostOps::at(&self.root)
    }
}
