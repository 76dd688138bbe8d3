//! Kernel scheduling of NFs: their class, its time slice, and a cgroup for each.
//!
//! Everything is recorded before it is made, and undone when the NF or the daemon stops.

use std::path::Path;
use std::sync::Arc;

use rustix::process::Pid;

use super::grouping::Grouping;
use super::nfs::{Foreign, Nf};
use super::priorities::{self, Priorities, class_of};
use super::{Supervisor, SupervisorError};
use crate::dataplane::PlaneError;
use sluice_api::config as model;
use sluice_dataplane::assigned::Assigned;
use sluice_dataplane::handle::NfHandle;
use sluice_host::cgroup::{CgroupError, Group, Hierarchy};
use sluice_host::class::{self, Class, ClassError, RrSlice, Slice};
use sluice_host::record::Thing;

/// What was changed on the host for scheduling.
#[derive(Debug, Default)]
pub(super) struct Tuning {
    grouping: Option<Grouping>,
    slice: Option<Slice>,
    priorities: Option<Priorities>,
}

impl Tuning {
    /// The thread that sets priorities, if NFs are of class rr.
    pub(super) fn priorities(&self) -> Option<&Priorities> {
        self.priorities.as_ref()
    }

    /// The object that notes pool members whose priority has changed.
    pub(super) fn assigned(&self) -> Option<Arc<Assigned>> {
        self.priorities.as_ref().map(Priorities::assigned)
    }
}

impl Supervisor {
    /// Prepares the host for NFs. Without cgroups the daemon logs a warning and goes on: NFs that
    /// hand over divide their core by themselves.
    pub(super) fn prepare_scheduling(&mut self) -> Result<(), SupervisorError> {
        let sched = self.config.sched.clone();
        let root = Path::new("/");
        if sched.class == model::Class::Rr {
            // Refused now, and not at the first NF.
            class::try_rr(root)?;
        }
        let is_realtime = match (sched.class, sched.priorities) {
            (model::Class::Rr, _) => true,
            (_, model::Priorities::Weights) => false,
            (_, model::Priorities::Realtime) => {
                let refused = class::try_rr(root).err();
                if let Some(error) = &refused {
                    warn!("warning: priorities have their effect by weights alone: {error}");
                }
                refused.is_none()
            }
        };
        if is_realtime {
            let started = Priorities::start(sched.downstream_first);
            let core = self.config.manager.first_monitor();
            self.tuning.priorities = Some(started.map_err(|source| PlaneError::Thread { core, source })?);
        }
        self.set_slice(sched.rr_slice_ms)?;
        // Weights mean nothing to real-time classes.
        if sched.weights && !is_realtime {
            match self.make_group(root) {
                Ok(group) => {
                    let started = Grouping::start(group, self.controller.link());
                    let core = self.config.manager.first_monitor();
                    self.tuning.grouping = Some(started.map_err(|source| PlaneError::Thread { core, source })?);
                }
                Err(error) => warn!("NFs get no weights from the kernel: {error}"),
            }
        }
        Ok(())
    }

    /// Sets the time slice of class rr in milliseconds, if NFs are of that class, or gives the host
    /// its own back.
    ///
    /// # Errors
    /// The kernel refuses it; the slice is as it was.
    pub(super) fn set_slice(&mut self, wanted: Option<u32>) -> Result<(), SupervisorError> {
        let Some(ms) = wanted.filter(|_| self.tuning.priorities.is_some()) else {
            // Before it is forgotten what the host's own is.
            self.tuning.slice.as_ref().map_or(Ok(()), |slice| slice.change(slice.former()))?;
            self.restore_slice();
            return Ok(());
        };
        if let Some(slice) = &self.tuning.slice {
            slice.change(ms)?;
        } else {
            let setting = RrSlice::at(Path::new("/"));
            let former = setting.read_ms()?;
            self.note(|r| r.changed(setting.path(), &former.to_string()));
            let set = setting.set(ms);
            if set.is_err() {
                self.note(|r| r.restored(setting.path()));
            }
            self.tuning.slice = Some(set?);
        }
        let real = self.tuning.slice.as_ref().and_then(|slice| slice.effective().ok());
        if let Some(real) = real.filter(|real| real.as_millis() != u128::from(ms)) {
            info!("the kernel rounds rr_slice_ms = {ms} to its tick: {} ms", real.as_millis());
        }
        Ok(())
    }

    fn restore_slice(&mut self) {
        let Some(slice) = self.tuning.slice.take() else { return };
        let path = slice.path().to_path_buf();
        match slice.restore() {
            Ok(()) => self.note(|r| r.restored(&path)),
            Err(error) => warn!("{error}"),
        }
    }

    /// Gives the NFs that run the class of the configuration, after a change between the fair ones.
    /// A shadow keeps its own.
    pub(super) fn set_class_again(&self) {
        if self.tuning.priorities.is_some() {
            return;
        }
        let class = if self.config.sched.class == model::Class::Batch { Class::Batch } else { Class::Other };
        let is_ours = |nf: &&Nf| nf.process.as_ref().is_some_and(|process| !process.theirs);
        let is_to_poll = |nf: &Nf| self.service_of(nf).is_some_and(|service| service.config.mode == model::Mode::Poll);
        let polls = |nf: &Nf| is_to_poll(nf) || nf.handle.as_ref().is_some_and(|handle| handle.poll);
        let takes = |nf: &&Nf| is_ours(nf) && !self.is_shadow(nf.number) && self.takes_class(polls(nf), nf.core);
        for nf in self.nfs.values().filter(takes) {
            let own = || nf.process.iter().map(|process| process.pid).collect();
            for pid in nf.foreign.as_ref().map_or_else(own, Foreign::members) {
                match class::set(Path::new("/"), pid, class) {
                    // The end of its process is noticed elsewhere.
                    Ok(_) | Err(ClassError::NoProcess { .. }) => {}
                    Err(error) => warn!("{} keeps its class: {error}", nf.name),
                }
            }
        }
    }

    fn make_group(&mut self, root: &Path) -> Result<Group, CgroupError> {
        let hierarchy = Hierarchy::find(root)?;
        let name = format!("sluice-{}", std::process::id());
        if let Some((file, undo)) = hierarchy.setting() {
            self.note(|r| r.changed(&file, &undo));
        }
        let path = hierarchy.path_of(&name);
        self.note(|r| r.made(Thing::Cgroup, &path));
        let threads: Vec<usize> = self.config.manager.cores().collect();
        hierarchy.create(&name, &threads)
    }

    pub(super) fn grouping(&self) -> Option<&Grouping> {
        self.tuning.grouping.as_ref()
    }

    /// Sets the class of a process on `core`, and requests its cgroup; `poll`: it never sleeps.
    ///
    /// # Errors
    /// The kernel refuses the class.
    pub(super) fn schedule(
        &mut self,
        handle: Option<Arc<NfHandle>>,
        pid: Pid,
        core: usize,
        poll: bool,
    ) -> Result<(), SupervisorError> {
        let downstream_first = self.config.sched.downstream_first;
        let class = match (&self.tuning.priorities, self.config.sched.class) {
            (Some(_), _) => Some(handle.as_ref().map_or(priorities::ORDINARY, |handle| class_of(handle, downstream_first))),
            (None, model::Class::Batch) => Some(Class::Batch),
            (None, _) => None,
        };
        if let Some(class) = class.filter(|_| self.takes_class(poll, core)) {
            class::set(Path::new("/"), pid, class)?;
            if let (Some(priorities), Some(handle)) = (&self.tuning.priorities, &handle) {
                priorities.add(handle.clone(), pid, class);
            }
        }
        let Some(handle) = handle.filter(|_| self.is_weighed(poll, core)) else { return Ok(()) };
        // A container of others has bounds by its own cgroup, which it would leave.
        let service = self.nfs.get(&handle.number).and_then(|nf| self.service_of(nf));
        if service.is_some_and(|service| service.config.attach && self.is_of_slo(&service.config.name)) {
            return Ok(());
        }
        let life = self.host.holds.name_life(&handle.name);
        let Some(grouping) = &self.tuning.grouping else { return Ok(()) };
        let weighed = self.nfs.get_mut(&handle.number).and_then(|nf| nf.held.pen.as_mut()?.take_weighed());
        if let Some(nf) = weighed {
            grouping.adopt(handle, nf);
            return Ok(());
        }
        for path in grouping.paths_of(&life, handle.core) {
            if let Some(record) = &mut self.host.record {
                // A full disk is no reason to stop packets.
                let _ = record.made(Thing::Cgroup, &path);
            }
        }
        grouping.add(handle, life, pid);
        Ok(())
    }

    /// Whether an NF of a core has the class of the configuration; `poll`: it never sleeps. It
    /// would keep its core from all others, unless the configuration asks for that.
    fn takes_class(&self, poll: bool, core: usize) -> bool {
        !poll || self.config.workflow.of_core(core) == model::ByWhat::None
    }

    /// Whether an NF of a core has a CPU weight of its own; `poll`: it never sleeps. A polling NF
    /// has its core to itself, or time slices, as do the NFs beside it. Shares mean nothing to
    /// these, and a cgroup without a budget allows no real-time class.
    pub(super) fn is_weighed(&self, poll: bool, core: usize) -> bool {
        self.tuning.grouping.is_some() && !poll && !self.has_turns(core)
    }

    /// Removes the cgroup of an NF whose process has ended.
    pub(super) fn unschedule(&mut self, number: u16) {
        if let Some(priorities) = &self.tuning.priorities {
            priorities.remove(number);
        }
        if let Some(grouping) = &self.tuning.grouping {
            grouping.remove(number);
        }
    }

    /// Removes cgroups that are gone from the record.
    pub(super) fn note_removed(&mut self) {
        for path in self.tuning.grouping.as_ref().map_or(Vec::new(), Grouping::removed) {
            // An NF of the same name may have come since.
            if !path.exists() {
                self.note(|r| r.removed(&path));
            }
        }
    }

    /// Restores the host.
    pub(super) fn restore_scheduling(&mut self) {
        self.tuning.priorities = None;
        if let Some(grouping) = self.tuning.grouping.take() {
            let (gone, result) = grouping.finish();
            for path in gone {
                self.note(|r| r.removed(&path));
            }
            if let Err(error) = result {
                warn!("{error}");
            }
        }
        self.restore_slice();
    }
}
