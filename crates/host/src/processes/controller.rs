//! What every controller can do, and what it is made with.

use std::path::PathBuf;

use super::mechanism::{Failed, Mechanism, Refused, Slot};
use super::target::Target;
use super::undo::Host;

/// Stops and runs targets by one mechanism.
///
/// Not for several threads at once: each core's scheduler has its own. Dropping it is [`teardown`](Controller::teardown).
pub trait Controller: Send {
    /// What it does it by.
    fn mechanism(&self) -> Mechanism;

    /// Takes a target under control: it is parked from now on.
    ///
    /// # Errors
    /// [`Refused`]; then the target is as before.
    fn add(&mut self, target: &Target) -> Result<Slot, Refused>;

    /// Stops a target. It is no error if it is parked already.
    ///
    /// # Errors
    /// [`Failed`]; [`Failed::Ended`] if there is nobody left to stop.
    fn park(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Lets a target run. It is no error if it runs already.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn run(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Stops one target and lets another run. Both are tried: if `from` fails, `to` runs all the same. What is told is `to`'s
    /// failure, else `from`'s.
    ///
    /// # Errors
    /// As [`park`](Controller::park); ask [`is_ended`](Controller::is_ended) which of both it was.
    fn switch(&mut self, from: Slot, to: Slot) -> Result<(), Failed> {
        let parked = self.park(from);
        self.run(to).and(parked)
    }

    /// Gives a target a share of the core, 0 to 1, for as long as it is running and others are, and says whether this mechanism has
    /// such weights at all.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn set_weight(&mut self, slot: Slot, share: f64) -> Result<bool, Failed> {
        let _ = (slot, share);
        Ok(false)
    }

    /// Looks for threads that the targets have made since, which [`park`](Controller::park) and [`run`](Controller::run) pass over
    /// until then. It reads folders, so it is not for the time between two slices.
    ///
    /// # Errors
    /// What could not be done about one of them; all others were looked for.
    fn look_again(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    /// Makes sure that a target that is parked can be killed: SIGKILL does nothing to one that is frozen by version 1, and little
    /// to one that waits for a core under a real-time spinner. It may run a little by that.
    ///
    /// # Errors
    /// As [`park`](Controller::park).
    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Whether all processes of a target have ended (or there is no such target).
    fn is_ended(&self, slot: Slot) -> bool;

    /// Lets a target go: it runs, with the class and in the cgroup that it had before. The slot is free in any case.
    ///
    /// # Errors
    /// What could not be given back. That it has ended is no error here.
    fn remove(&mut self, slot: Slot) -> Result<(), Failed>;

    /// Lets all targets go, and removes what was made for them. Tells what could not be given back.
    fn teardown(&mut self) -> Vec<Failed>;
}

/// What controllers are made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Root of the file system: below it are `proc` and what is mounted. Tests inject another.
    pub root: PathBuf,
    /// Name of the folder that is made for cgroups, one for each controller: must be the only one of its name.
    pub folder: String,
    /// Folder of version 2 below which that one is made. None: the one that this process is in, and no other if that refuses.
    pub freeze_parent: Option<PathBuf>,
    /// The same in the freezer hierarchy of version 1.
    pub freezer_parent: Option<PathBuf>,
    /// Real-time priority of parked processes.
    pub low: u8,
    /// Real-time priority of running processes; the controller itself has the next one, see [`raise_self`](super::realtime::raise_self).
    pub high: u8,
    /// Folders that do as cgroups do.
    #[cfg(test)]
    pub(crate) fake: Option<Host>,
}

impl Settings {
    /// The ones that most hosts need. `folder` must be the only one of its name on the host, such as `sluice-PID-core1`.
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

    pub(super) fn host(&self) -> Host {
        #[cfg(test)]
        if let Some(host) = &self.fake {
            return host.clone();
        }
        Host::at(&self.root)
    }
}
