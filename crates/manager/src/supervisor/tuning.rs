//! What the supervisor asks of the kernel's scheduler: the class of NFs, its time slice, and a cgroup for each NF.
//!
//! Everything is noted in the record before it is made, and undone when the NF or the daemon stops.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::Pid;

use super::{Supervisor, SupervisorError};
use crate::config::model;
use crate::controller::WriteShare;
use crate::mechanism::cgroup::{CgroupError, Group, Hierarchy, NfGroup, Weight};
use crate::mechanism::class::{self, Class, RrSlice, Slice};
use crate::nf::record::Thing;

/// Priority of NFs in class rr: the lowest, so that whatever real-time work the host has goes before.
const PRIORITY: u8 = 1;

/// What was changed on the host for the sake of scheduling.
#[derive(Debug, Default)]
pub(super) struct Tuning {
    group: Option<Group>,
    nfs: BTreeMap<u16, NfGroup>,
    slice: Option<Slice>,
}

impl WriteShare for Weight {
    fn write(&mut self, share: f64) -> Result<(), String> {
        self.set(share).map(drop).map_err(|error| error.to_string())
    }
}

impl Supervisor {
    /// Makes what NFs will need. Where the kernel gives no cgroups, the daemon says so and goes on: NFs that hand over divide their
    /// core by themselves.
    pub(super) fn prepare_scheduling(&mut self) -> Result<(), SupervisorError> {
        let sched = self.config.sched.clone();
        let root = Path::new("/");
        if sched.class == model::Class::Rr {
            // Refused now, and not when the first NF asks.
            class::try_rr(root)?;
        }
        if let (model::Class::Rr, Some(ms)) = (sched.class, sched.rr_slice_ms) {
            let setting = RrSlice::at(root);
            let former = setting.read_ms()?;
            self.note(|r| r.changed(setting.path(), &former.to_string()));
            let slice = setting.set(ms)?;
            match slice.effective() {
                Ok(real) if real.as_millis() != u128::from(ms) => {
                    eprintln!("sluiced: the kernel rounds rr_slice_ms = {ms} to its tick: {} ms", real.as_millis());
                }
                Ok(_) => {}
                Err(error) => {
                    self.tuning.slice = Some(slice);
                    return Err(error.into());
                }
            }
            self.tuning.slice = Some(slice);
        }
        // Weights mean nothing to real-time classes.
        if sched.weights && sched.class != model::Class::Rr {
            match self.make_group(root) {
                Ok(group) => self.tuning.group = Some(group),
                Err(error) => eprintln!("sluiced: NFs get no weights from the kernel: {error}"),
            }
        }
        Ok(())
    }

    fn make_group(&mut self, root: &Path) -> Result<Group, CgroupError> {
        let hierarchy = Hierarchy::find(root)?;
        let name = format!("sluice-{}", std::process::id());
        if let Some((file, undo)) = hierarchy.setting() {
            self.note(|r| r.changed(&file, undo));
        }
        let path = hierarchy.path_of(&name);
        self.note(|r| r.made(Thing::Cgroup, &path));
        hierarchy.create(&name)
    }

    /// Gives a process its class, and its cgroup where there are any. Says where its share is to be written.
    pub(super) fn schedule(&mut self, number: u16, pid: Pid, poll: bool) -> Result<Option<Box<dyn WriteShare>>, SupervisorError> {
        let class = match self.config.sched.class {
            model::Class::Other => None,
            model::Class::Batch => Some(Class::Batch),
            model::Class::Rr => Some(Class::Rr(PRIORITY)),
        };
        // One that polls would keep everybody else from its core.
        if let Some(class) = class.filter(|_| !poll) {
            class::set(Path::new("/"), pid, class)?;
        }
        let Some(group) = &self.tuning.group else { return Ok(None) };
        let name = self.nfs.get(&number).map_or(String::new(), |nf| nf.name.clone());
        let path = group.path_of(&name);
        // Only the latest: a former process of the NF may have left one.
        drop(self.tuning.nfs.remove(&number));
        if let Some(record) = &mut self.record {
            // A full disk is no reason to stop packets.
            let _ = record.made(Thing::Cgroup, &path);
        }
        let joined = group.add_nf(&name).and_then(|nf| nf.join(pid).map(|()| nf));
        match joined {
            Ok(nf) => {
                let weight = nf.handle();
                self.tuning.nfs.insert(number, nf);
                Ok(Some(Box::new(weight)))
            }
            Err(error) => {
                eprintln!("sluiced: {name} gets no weight from the kernel: {error}");
                self.note(|r| r.removed(&path));
                Ok(None)
            }
        }
    }

    /// Removes the cgroup of an NF whose process has ended.
    pub(super) fn unschedule(&mut self, number: u16) {
        let Some(nf) = self.tuning.nfs.remove(&number) else { return };
        let path = nf.path().to_path_buf();
        match nf.remove() {
            Ok(()) => self.note(|r| r.removed(&path)),
            Err(error) => eprintln!("sluiced: {error}"),
        }
    }

    /// Gives the host back as it was.
    pub(super) fn restore_scheduling(&mut self) {
        let numbers: Vec<u16> = self.tuning.nfs.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.unschedule(number));
        if let Some(group) = self.tuning.group.take() {
            let path = group.path().to_path_buf();
            match group.remove() {
                Ok(()) => self.note(|r| r.removed(&path)),
                Err(error) => eprintln!("sluiced: {error}"),
            }
        }
        if let Some(slice) = self.tuning.slice.take() {
            let path = slice.path().to_path_buf();
            match slice.restore() {
                Ok(()) => self.note(|r| r.restored(&path)),
                Err(error) => eprintln!("sluiced: {error}"),
            }
        }
    }
}
