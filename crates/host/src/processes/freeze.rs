//! The freezers of control groups: `cgroup.freeze` of version 2, and `freezer.state` of version 1.
//!
//! All processes in and below a cgroup stop, including those made later. This is invisible to
//! others. It needs only a folder in which cgroups may be made: one is made for the controller, and
//! in it one for each target.
//!
//! ```text
//! parent ─┬─ sluice-PID-core1 ─┬─ ids.0     the processes of one target; frozen or not
//!         │                    └─ nat.0
//!         └─ …
//! ```
//! Where the parent folder passes the cpu controller of version 2 on, running targets also have
//! weights.
//!
//! # Limits
//! Freezing is asynchronous: a process in the kernel continues until it returns from there. On
//! hosts whose cpu controller is in version 2, a moved process loses the weight of its former
//! cgroup: a target that has a cgroup of version 2 to itself ([`Target::in_cgroup`]) is frozen in
//! place instead. A process frozen by version 1 cannot be killed before it is thawed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::{Errno, pwrite};

use super::guard::{Guard, Note};
use super::slots::Slots;
use super::undo::{HostOps, Undo};
use super::{Controller, Failed, Mechanism, Refused, Settings, Slot, Target};
use crate::cgroup::{self, Version};

/// The names of one version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    mechanism: Mechanism,
    version: Version,
    /// Name of the hierarchy's controller, in version 1.
    controller: &'static str,
    file: &'static str,
    stop: &'static str,
    go: &'static str,
    /// Message if there is no such hierarchy.
    missing: &'static str,
}

pub(super) const V1: Words = Words {
    mechanism: Mechanism::Freezer,
    version: Version::V1,
    controller: "freezer",
    file: "freezer.state",
    stop: "FROZEN",
    go: "THAWED",
    missing: "no freezer hierarchy of cgroups of version 1 is mounted that shows this process's cgroup; choose freeze where \
              version 2 is mounted",
};

pub(super) const V2: Words = Words {
    mechanism: Mechanism::Freeze,
    version: Version::V2,
    controller: "",
    file: "cgroup.freeze",
    stop: "1",
    go: "0",
    missing: "no cgroup file system of version 2 is mounted that shows this process's cgroup; mount one \
              (`mount -t cgroup2 cgroup2 DIR`)",
};

/// A controller by cgroups of one version.
pub(super) struct Freezer {
    words: Words,
    root: PathBuf,
    host: HostOps,
    guard: Arc<Guard>,
    folder: PathBuf,
    own: Option<Note>,
    slots: Slots<Held>,
}

struct Held {
    target: Target,
    state: File,
    weight: Option<File>,
    /// The weight of an existing cgroup, which it gets back.
    former: Option<String>,
    undo: Undo,
    note: Note,
}

impl Freezer {
    /// Without targets; makes the folder.
    ///
    /// # Errors
    /// [`Refused::NotHere`], [`Refused::NotPermitted`], [`Refused::NoGuard`], [`Refused::System`].
    pub(super) fn new(words: Words, settings: &Settings, guard: &Arc<Guard>) -> Result<Self, Refused> {
        let parent = if words.version == Version::V2 { &settings.freeze_parent } else { &settings.freezer_parent };
        let not_here = || Refused::NotHere { mechanism: words.mechanism, what: words.missing.into() };
        let home = cgroup::folder_of(&settings.root, words.version, words.controller, "self");
        let home = home.map_err(|source| Refused::System { doing: "read", what: "where cgroups are mounted".into(), source })?;
        let parent = parent.clone().or(home).ok_or_else(not_here)?;
        if !parent.join("cgroup.procs").exists() {
            return Err(not_here());
        }
        let mut tree = Self {
            words,
            root: settings.root.clone(),
            host: settings.host(),
            guard: guard.clone(),
            folder: parent.join(cgroup::component(&settings.folder)),
            own: None,
            slots: Slots::default(),
        };
        // Tried now rather than at the first target.
        tree.make_own()?;
        Ok(tree)
    }

    /// Makes the controller's folder if it is missing.
    fn make_own(&mut self) -> Result<(), Refused> {
        if self.own.is_some() {
            return Ok(());
        }
        if self.folder.exists() {
            let what = format!("cgroup {} exists already; remove it with rmdir if nobody uses it", self.folder.display());
            return Err(Refused::NotHere { mechanism: self.words.mechanism, what });
        }
        let note = self.guard.note(&[Undo::Remove { folder: self.folder.clone() }], None)?;
        match (self.host.make)(&self.folder) {
            Ok(()) => {
                // If the parent passes the cpu controller on, this gives the targets weights.
                let passes = |folder: &Path| {
                    let text = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
                    text.split_whitespace().any(|word| word == "cpu")
                };
                if self.words.version == Version::V2 && self.folder.parent().is_some_and(passes) {
                    let _ = fs::write(self.folder.join("cgroup.subtree_control"), "+cpu");
                }
                self.own = Some(note);
                Ok(())
            }
            Err(source) => {
                self.guard.forget(&note);
                Err(self.refused("make cgroup", &self.folder, source))
            }
        }
    }

    fn refused(&self, doing: &'static str, path: &Path, source: io::Error) -> Refused {
        let mechanism = self.words.mechanism;
        match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Refused::NotPermitted {
                mechanism,
                what: format!(
                    "cannot {doing} {} ({source}); run sluiced as root, or in a cgroup that is delegated to its user, with a \
                     writable cgroup mount",
                    path.display()
                ),
            },
            Some(libc::EINVAL) => Refused::NotPermitted {
                mechanism,
                what: format!(
                    "cannot {doing} {} ({source}); the kernel takes no real-time process into a cgroup without a real-time budget \
                     (CONFIG_RT_GROUP_SCHED)",
                    path.display()
                ),
            },
            _ => Refused::System { doing, what: path.display().to_string(), source },
        }
    }

    fn take(&mut self, target: &Target) -> Result<Slot, Refused> {
        let in_place = target.cgroup().filter(|_| self.words.version == Version::V2);
        let folder = in_place.map_or_else(|| self.free_folder(target.name()), Path::to_path_buf);
        let undo = self.undo(target, &folder, in_place.is_none())?;
        let note = self.guard.note(std::slice::from_ref(&undo), None)?;
        let former = in_place.filter(|_| target.weighs()).and_then(|own| fs::read_to_string(own.join(Version::V2.file())).ok());
        let done = self.move_in(target, &folder, in_place.is_none());
        match done {
            Ok((state, weight)) => {
                let held = Held { target: target.clone(), state, weight, former, undo, note };
                Ok(self.slots.put(held))
            }
            Err(error) => {
                // Only the first error is reported.
                let _ = undo.perform(&self.host, None);
                self.guard.forget(&note);
                Err(error)
            }
        }
    }

    fn free_folder(&self, name: &str) -> PathBuf {
        let first = self.folder.join(cgroup::component(name));
        let others = (1..).map(|n| self.folder.join(format!("{}~{n}", cgroup::component(name))));
        std::iter::once(first).chain(others).find(|folder| !folder.exists()).expect("there is no end of numbers")
    }

    /// Undoes the move and the freeze.
    fn undo(&self, target: &Target, folder: &Path, made: bool) -> Result<Undo, Refused> {
        let mut homes = Vec::new();
        if made {
            for member in target.members() {
                let process = member.raw().to_string();
                let home = cgroup::folder_of(&self.root, self.words.version, self.words.controller, &process);
                match home {
                    Ok(Some(home)) => homes.push((member.raw(), home)),
                    // Outside of the mounts here: it could not be moved back.
                    Ok(None) => {
                        let what =
                            format!("process {process} is in a cgroup that is not mounted here, so it could not be moved back");
                        return Err(Refused::NotPermitted { mechanism: self.words.mechanism, what });
                    }
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
                    Err(source) => {
                        return Err(Refused::System { doing: "read the cgroup of process", what: process, source });
                    }
                }
            }
            if homes.is_empty() {
                return Err(Refused::NoProcess { name: target.name().into() });
            }
        }
        let home = homes.first().map(|(_, home)| home.clone()).unwrap_or_default();
        let elsewhere = homes.into_iter().filter(|(_, at)| *at != home).collect();
        let text = match made {
            true => self.words.go.to_owned(),
            // Its present state.
            false => fs::read_to_string(folder.join(self.words.file)).map_or(self.words.go.into(), |text| text.trim().into()),
        };
        Ok(Undo::Thaw { folder: folder.into(), file: self.words.file.into(), text, made, home, elsewhere })
    }

    fn move_in(&self, target: &Target, folder: &Path, made: bool) -> Result<(File, Option<File>), Refused> {
        if made {
            (self.host.make)(folder).map_err(|source| self.refused("make cgroup", folder, source))?;
        }
        let file = folder.join(self.words.file);
        let state = OpenOptions::new().write(true).open(&file).map_err(|source| self.refused("open", &file, source))?;
        // An existing cgroup keeps the weight that others give it.
        let weighs = made || target.weighs();
        let weight = weighs.then(|| OpenOptions::new().write(true).open(folder.join(Version::V2.file())).ok()).flatten();
        if made {
            let procs = folder.join("cgroup.procs");
            let mut is_left = false;
            for member in target.members() {
                match fs::write(&procs, member.raw().to_string()) {
                    Ok(()) => is_left = true,
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(source) => return Err(self.refused("move a process into cgroup", folder, source)),
                }
            }
            if !is_left || target.is_ended() {
                return Err(Refused::NoProcess { name: target.name().into() });
            }
        }
        pwrite(&state, self.words.stop.as_bytes(), 0).map_err(|error| self.refused("freeze cgroup", folder, error.into()))?;
        Ok((state, weight))
    }

    #[inline]
    fn say(&mut self, slot: Slot, text: &'static str, doing: &'static str) -> Result<(), Failed> {
        let held = self.slots.of(slot)?;
        match pwrite(&held.state, text.as_bytes(), 0) {
            Ok(_) => held.target.check_runs(),
            // The cgroup was removed, so it was empty.
            Err(Errno::NODEV) => Err(Failed::Ended),
            Err(source) => Err(Failed::System { doing, pid: held.target.members()[0].raw(), source }),
        }
    }
}

impl Controller for Freezer {
    fn mechanism(&self) -> Mechanism {
        self.words.mechanism
    }

    fn add(&mut self, target: &Target) -> Result<Slot, Refused> {
        self.make_own()?;
        self.guard.take(target)?;
        let result = self.take(target);
        if result.is_err() {
            self.guard.give(target);
        }
        result
    }

    #[inline]
    fn park(&mut self, slot: Slot) -> Result<(), Failed> {
        self.say(slot, self.words.stop, "freeze")
    }

    #[inline]
    fn run(&mut self, slot: Slot) -> Result<(), Failed> {
        self.say(slot, self.words.go, "thaw")
    }

    fn set_weight(&mut self, slot: Slot, share: f64) -> Result<bool, Failed> {
        let held = self.slots.of(slot)?;
        let Some(file) = held.weight.as_ref().filter(|_| self.words.version == Version::V2) else { return Ok(false) };
        let mut digits = [0; 20];
        let text = decimal(Version::V2.weight(share), &mut digits);
        match pwrite(file, text, 0) {
            Ok(_) => Ok(true),
            Err(Errno::NODEV) => Err(Failed::Ended),
            Err(source) => Err(Failed::System { doing: "set the weight of", pid: held.target.members()[0].raw(), source }),
        }
    }

    fn before_kill(&mut self, slot: Slot) -> Result<(), Failed> {
        match self.words.version {
            Version::V1 => self.run(slot),
            // A process frozen by version 2 dies at once.
            Version::V2 => self.slots.of(slot)?.target.check_runs(),
        }
    }

    fn is_ended(&self, slot: Slot) -> bool {
        self.slots.get(slot).is_none_or(|held| held.target.is_ended())
    }

    fn remove(&mut self, slot: Slot) -> Result<(), Failed> {
        let held = self.slots.take(slot)?;
        if let (Some(file), Some(former)) = (&held.weight, &held.former) {
            // It is gone if that fails.
            let _ = pwrite(file, former.trim().as_bytes(), 0);
        }
        let result = held.undo.perform(&self.host, None);
        self.guard.forget(&held.note);
        self.guard.give(&held.target);
        result
    }

    fn teardown(&mut self) -> Vec<Failed> {
        let mut failed: Vec<Failed> = self.slots.used().into_iter().filter_map(|slot| self.remove(slot).err()).collect();
        if let Some(note) = self.own.take() {
            let undo = Undo::Remove { folder: self.folder.clone() };
            failed.extend(undo.perform(&self.host, None).err());
            self.guard.forget(&note);
        }
        failed
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.teardown();
    }
}

/// Formats a decimal number without allocation.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}
