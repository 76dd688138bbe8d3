//! Cache classes by resctrl: ways (CAT), bandwidth (MBA), counters (CMT, MBM).
//!
//! # Problem
//! resctrl is a file system whose files take writes as commands. A refusal is an error number, and
//! a line in `info/last_cmd_status` that the next command of any program overwrites. Some commands
//! are done in part (a list of threads), some differently (masks that the hardware widens,
//! bandwidths that are rounded), and classes are few.
//!
//! # Approach
//! - A class is a group `sluice-NAME`. Its mask is the same for code and data where those are
//!   separate (CDP). Groups of other programs are left alone, and their ways are not given to our
//!   classes.
//! - A change is a transaction under the lock that resctrl's users agree on (`flock` on the mount
//!   point). [`layout`] computes the masks of all classes and of the root class; those that differ
//!   are written and read back, and if one fails all are restored.
//! - Threads are written in lists; after a refusal the file is read to see which have moved.
//!   Threads that have ended meanwhile are reported, and are no error.
//! - The root class is narrowed to what no class has, and widened again when classes go: to its
//!   mask before us, less what exclusive groups have by now. Where classes of another Sluice
//!   process are found, all ways count as the mask before us, because that process may end first.
//! - [`Resctrl::sweep`] removes what a killed manager has left, [`Resctrl::take_over`] what a tool
//!   with one class has left. A tool holds the lock of `info` while it runs, so that no other run
//!   and no manager removes its class. A manager holds the lock of `info/L3` (`info/L3DATA` where
//!   code and data are separate) while it lives ([`Resctrl::claim`]), so that no other manager
//!   takes its groups for leftovers.
//!
//! # Limits
//! No L2 masks, no pseudo-locking; files for them are not touched. A group of another program that
//! has all ways (a new group has) leaves none to give. Occupancy counts the lines that a class has
//! brought in, wherever they are; shrinking a class evicts nothing. Event counters that need manual
//! assignment (AMD's ABMC) read as [`Count::Unassigned`] until assigned.
//!
//! # Source
//! The kernel's `Documentation/filesystems/resctrl.rst`, and `fs/resctrl` of Linux 6.16 for the
//! order of checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::control::{CacheControl, ClassSpec, Count, Domain, Granted, Moved, Origin, Shape, Usage, check_name};
use crate::error::CacheError;
use crate::layout::{self, Limits, Want};
use crate::schemata::{self, Base, Line};

mod claim;
mod shape;

pub const MOUNT_POINT: &str = "/sys/fs/resctrl";

/// Prefix of our groups' names.
pub(crate) const PREFIX: &str = "sluice-";

/// The class of `sluice profile`.
pub const PROFILE: &str = "profile";

/// The class of a trial ([`crate::doctor::try_out`]).
pub const TRIAL: &str = "doctor";

/// Bytes of one list of threads; the kernel takes a page.
const LIST_BYTES: usize = 4_000;

#[derive(Debug, Clone)]
struct Class {
    spec: ClassSpec,
    granted: Granted,
    watches: BTreeSet<String>,
}

/// Cache classes by the kernel. Drop releases its classes.
#[derive(Debug)]
pub struct Resctrl {
    path: PathBuf,
    shape: Shape,
    /// Lines that a mask is written to: `L3`, or `L3DATA` and `L3CODE`.
    lines: Vec<&'static str>,
    all: u32,
    /// The root class's masks before us.
    root: Line,
    classes: BTreeMap<String, Class>,
    /// Watches in the root class.
    root_watches: BTreeSet<String>,
    /// The lock of a tool that has taken over its class.
    tool: Option<Lock>,
    /// The lock of the manager that owns these classes.
    manager: Option<Lock>,
}

/// A lock that is held until dropped. Drop unlocks it explicitly: a process that is being started
/// has a copy of the open file until it executes its program, and would hold the lock until then.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Fails only if it was not locked.
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

/// A group of another program.
struct Foreign {
    name: String,
    masks: Line,
    /// Whether its ways are exclusive: the kernel refuses masks that overlap with it, or it is a
    /// class of another Sluice process.
    is_exclusive: bool,
}

/// The kernel's refusal of a command.
struct Refusal {
    source: io::Error,
    status: String,
}

impl Refusal {
    fn is(&self, errno: Errno) -> bool {
        self.source.raw_os_error() == Some(errno.raw_os_error())
    }

    /// The kernel's text, or the error if there is none.
    fn words(&self) -> String {
        if self.status == "ok" || self.status.is_empty() { self.source.to_string() } else { self.status.clone() }
    }
}

impl Resctrl {
    /// Opens resctrl at its mount point (usually [`MOUNT_POINT`]); `system` is the root directory
    /// of `/sys` and `/proc`.
    ///
    /// # Errors
    /// It is not mounted there, is unreadable, or has an unknown format.
    pub fn open(path: &Path, system: &Path) -> Result<Self, CacheError> {
        if !path.join("info").is_dir() {
            return Err(CacheError::NotMounted { path: path.into() });
        }
        let lines: Vec<&'static str> = match (path.join("info/L3").is_dir(), path.join("info/L3DATA").is_dir()) {
            (true, _) => vec!["L3"],
            (false, true) => vec!["L3DATA", "L3CODE"],
            (false, false) => Vec::new(),
        };
        let mut found = Self {
            path: path.into(),
            shape: Shape::without_control(Vec::new()),
            all: 0,
            root: Line::new(),
            classes: BTreeMap::new(),
            root_watches: BTreeSet::new(),
            tool: None,
            manager: None,
            lines,
        };
        found.read_shape(system)?;
        Ok(found)
    }

    // Files.

    fn text(&self, file: &str) -> Result<String, CacheError> {
        fs::read_to_string(self.path.join(file)).map_err(|e| self.system("read", file, e))
    }

    fn info_number(&self, resource: &str, file: &str, radix: u32) -> Result<u32, CacheError> {
        let file = format!("info/{resource}/{file}");
        let text = self.text(&file)?;
        u32::from_str_radix(text.trim(), radix)
            .map_err(|_| CacheError::Strange { path: self.path.join(file), text: text.trim().into() })
    }

    fn schemata(&self, group: &str) -> Result<BTreeMap<String, Line>, CacheError> {
        let path = self.path.join(group).join("schemata");
        // Absent if there is only monitoring.
        let text = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.lines.is_empty() => return Ok(BTreeMap::new()),
            Err(e) => return Err(self.system("read", &format!("{group}/schemata"), e)),
            Ok(text) => text,
        };
        schemata::parse(&text).ok_or_else(|| CacheError::Strange { path, text: text.trim().into() })
    }

    fn status(&self) -> String {
        let text = fs::read_to_string(self.path.join("info/last_cmd_status")).unwrap_or_default();
        text.trim().replace('\n', "; ")
    }

    fn system(&self, doing: &'static str, file: &str, source: io::Error) -> CacheError {
        self.refused(doing, file, Refusal { source, status: self.status() })
    }

    fn refused(&self, doing: &'static str, file: &str, refusal: Refusal) -> CacheError {
        let path = self.path.join(file);
        if refusal.is(Errno::ACCESS) || refusal.is(Errno::PERM) || refusal.is(Errno::ROFS) {
            return CacheError::NotPermitted { path };
        }
        CacheError::System { doing, path, status: refusal.words(), source: refusal.source }
    }

    /// One command: it must be one write, and the status is read before any other command.
    fn command(&self, file: &str, text: &str) -> Result<(), Refusal> {
        let written = OpenOptions::new().write(true).open(self.path.join(file)).and_then(|mut file| {
            let bytes = file.write(text.as_bytes())?;
            if bytes == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
        });
        written.map_err(|source| Refusal { source, status: self.status() })
    }

    /// The lock that users of resctrl agree on; held until dropped.
    fn lock(&self) -> Result<Lock, CacheError> {
        self.lock_of("")
    }

    fn lock_of(&self, folder: &str) -> Result<Lock, CacheError> {
        let path = if folder.is_empty() { self.path.clone() } else { self.path.join(folder) };
        let opened = File::open(&path).map_err(|e| self.system("open", folder, e))?;
        match rustix::fs::flock(&opened, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock(opened)),
            Err(Errno::WOULDBLOCK) => Err(CacheError::Locked { path }),
            Err(e) => Err(self.system("lock", folder, e.into())),
        }
    }

    fn groups(&self) -> Result<Vec<String>, CacheError> {
        let entries = fs::read_dir(&self.path).map_err(|e| self.system("read", "", e))?;
        let names = entries.flatten().filter(|entry| entry.path().join("tasks").is_file());
        Ok(names.filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    // Masks.

    /// A group's masks, of code and data together.
    fn masks(&self, group: &str) -> Result<Line, CacheError> {
        let found = self.schemata(group)?;
        let mut masks = Line::new();
        for (domain, mask) in self.lines.iter().filter_map(|name| found.get(*name)).flatten() {
            *masks.entry(*domain).or_default() |= mask;
        }
        Ok(masks)
    }

    fn write_masks(&self, group: &str, masks: &Line) -> Result<(), CacheError> {
        let text: String = self.lines.iter().map(|name| schemata::line(name, Base::Hex, masks)).collect();
        self.write_schemata(group, &text)
    }

    fn write_schemata(&self, group: &str, text: &str) -> Result<(), CacheError> {
        let file = format!("{}schemata", slashed(group));
        self.command(&file, text).map_err(|refusal| {
            if refusal.is(Errno::INVAL) {
                CacheError::Refused { group: shown(group).into(), line: text.trim().replace('\n', ", "), status: refusal.words() }
            } else {
                self.refused("write", &file, refusal)
            }
        })
    }

    /// Groups of other programs, and their masks.
    fn foreign(&self) -> Result<Vec<Foreign>, CacheError> {
        let ours = |name: &String| self.classes.keys().any(|class| *name == group(class));
        let of = |name: String| {
            // Kernels without modes share all.
            let mode = fs::read_to_string(self.path.join(&name).join("mode")).unwrap_or_default();
            let is_exclusive = !matches!(mode.trim(), "" | "shareable") || name.starts_with(PREFIX);
            Ok(Foreign { masks: self.masks(&name)?, is_exclusive, name })
        };
        self.groups()?.into_iter().filter(|name| !ours(name)).map(of).collect()
    }

    /// The root class's ways in a domain where our classes have the ways `used`. Of its mask before
    /// us, it gets what other programs' groups leave; if that is too little, also what they would
    /// share. Without any classes of ours, it gets both, as before us. None if even that is too
    /// little.
    fn root_beside(&self, domain: u32, used: u32, foreign: &[Foreign]) -> Option<u32> {
        let before = self.root.get(&domain).copied()?;
        let taken = |groups: &dyn Fn(&&Foreign) -> bool| {
            foreign.iter().filter(groups).filter_map(|group| group.masks.get(&domain)).fold(0u32, |all, mask| all | mask)
        };
        let left = |taken: u32| {
            let free = before & !taken & !used;
            let root = if free == before { before } else { layout::longest(free, self.shape.sparse) };
            (root.count_ones() >= self.shape.min_ways.max(1)).then_some(root)
        };
        let shared = || left(taken(&|group| group.is_exclusive));
        if used == 0 { shared() } else { left(taken(&|_| true)).or_else(shared) }
    }

    /// Gives the root class what our classes no longer have. These stay in place, whatever groups
    /// of other programs have appeared meanwhile.
    fn widen(&self) -> Result<(), CacheError> {
        if self.root.is_empty() {
            return Ok(());
        }
        let foreign = self.foreign()?;
        let root_now = self.masks("")?;
        let mut wanted: BTreeMap<String, Line> = BTreeMap::new();
        for domain in self.root.keys().copied() {
            let (own, others): (Vec<&Class>, Vec<&Class>) =
                self.classes.values().partition(|class| wants_domain(&class.spec, domain));
            let mut used = 0;
            for class in own {
                let Some(mask) = class.granted.masks.get(&domain).copied() else { continue };
                wanted.entry(group(&class.spec.name)).or_default().insert(domain, mask);
                used |= mask;
            }
            let root = self.root_beside(domain, used, &foreign).or_else(|| root_now.get(&domain).copied());
            let Some(root) = root else { continue };
            wanted.entry(String::new()).or_default().insert(domain, root);
            for class in others {
                wanted.entry(group(&class.spec.name)).or_default().insert(domain, root);
            }
        }
        if wanted.is_empty() { Ok(()) } else { self.write_all(&wanted, &root_now).map(drop) }
    }

    /// Lays out the classes and writes what differs; `changed` is the class that needs room. On an
    /// error all masks are as before.
    fn apply(&mut self, changed: &ClassSpec) -> Result<(), CacheError> {
        let foreign = self.foreign()?;
        let root_now = self.masks("")?;
        let mut wanted: BTreeMap<String, Line> = BTreeMap::new();
        for domain in self.shape.domains.iter().map(|domain| domain.id).collect::<Vec<_>>() {
            let Some(before) = self.root.get(&domain).copied() else { continue };
            let has = |name: &str| wants_domain(&self.classes[name].spec, domain);
            let names: Vec<&String> = self.classes.keys().filter(|name| has(name)).collect();
            let want = |name: &&String| {
                let class = &self.classes[*name];
                Want { ways: class.spec.ways, io: class.spec.io_ways, mask: class.granted.masks.get(&domain).copied().unwrap_or(0) }
            };
            let root = if names.is_empty() {
                // With no class here there is nothing to lay out: the root class gets back what it
                // had.
                let now = || root_now.get(&domain).copied().unwrap_or(before);
                self.root_beside(domain, 0, &foreign).unwrap_or_else(now)
            } else {
                let wants: Vec<Want> = names.iter().map(want).collect();
                let taken = foreign.iter().filter_map(|group| group.masks.get(&domain)).fold(0, |all, mask| all | mask);
                let limits = self.limits(taken, before);
                let Some(found) = layout::lay_out(&wants, &limits) else {
                    return Err(self.unfit(changed, domain, &names, &wants, &limits, &foreign));
                };
                for (name, mask) in names.iter().zip(&found.masks) {
                    wanted.entry(group(name)).or_default().insert(domain, *mask);
                }
                found.root
            };
            // Classes of other domains share the root class's ways here.
            wanted.entry(String::new()).or_default().insert(domain, root);
            for name in self.classes.keys().filter(|name| !has(name)) {
                wanted.entry(group(name)).or_default().insert(domain, root);
            }
        }
        let written = self.write_all(&wanted, &root_now);
        if written.is_ok() {
            for class in self.classes.values_mut() {
                let masks = wanted.get(&group(&class.spec.name)).cloned().unwrap_or_default();
                class.granted.masks = masks.into_iter().filter(|(domain, _)| wants_domain(&class.spec, *domain)).collect();
                class.granted.widened = false;
            }
        }
        let wider = written?;
        for (name, domain, mask) in wider {
            if let Some(class) = self.classes.values_mut().find(|class| group(&class.spec.name) == name) {
                class.granted.widened = true;
                if let Some(granted) = class.granted.masks.get_mut(&domain) {
                    *granted = mask;
                }
            }
        }
        Ok(())
    }

    fn limits(&self, taken: u32, root: u32) -> Limits {
        Limits { all: self.all, io: self.shape.io_mask, taken, root, min_ways: self.shape.min_ways, sparse: self.shape.sparse }
    }

    fn unfit(
        &self,
        changed: &ClassSpec,
        domain: u32,
        names: &[&String],
        wants: &[Want],
        limits: &Limits,
        foreign: &[Foreign],
    ) -> CacheError {
        let others: Vec<Want> =
            names.iter().zip(wants).filter(|(name, _)| ***name != changed.name).map(|(_, want)| *want).collect();
        let free = layout::room(&others, changed.io_ways, limits);
        let alone = layout::room(&others, changed.io_ways, &Limits { taken: 0, ..*limits });
        let biggest = foreign.iter().max_by_key(|group| group.masks.get(&domain).map_or(0, |mask| mask.count_ones()));
        match biggest {
            Some(group) if alone >= changed.ways => CacheError::Foreign { group: group.name.clone(), path: self.path.clone() },
            _ => CacheError::NoRoom { domain, asked: changed.ways, free },
        }
    }

    /// Writes the masks that differ, reads them back, and restores all if one is refused or
    /// overlaps other classes' ways. Returns those that came back wider: group, domain and mask.
    fn write_all(&self, wanted: &BTreeMap<String, Line>, root_now: &Line) -> Result<Vec<(String, u32, u32)>, CacheError> {
        let mut before: Vec<(String, Line)> = Vec::new();
        let mut written = Ok(());
        // The root class goes last when it is widened, and first when it is narrowed: no class ever
        // shares more with it than before.
        let narrows = wanted
            .get("")
            .is_some_and(|root| root.iter().any(|(domain, mask)| root_now.get(domain).is_some_and(|now| now & !mask != 0)));
        let mut order: Vec<&String> = wanted.keys().collect();
        if !narrows {
            order.rotate_left(1);
        }
        for name in order {
            let masks = &wanted[name];
            let now = self.masks(name)?;
            let differs: Line =
                masks.iter().filter(|(domain, mask)| now.get(domain) != Some(mask)).map(|(d, m)| (*d, *m)).collect();
            if differs.is_empty() {
                continue;
            }
            before.push((name.clone(), differs.keys().filter_map(|domain| Some((*domain, *now.get(domain)?))).collect()));
            written = self.write_masks(name, &differs);
            if written.is_err() {
                break;
            }
        }
        let checked = written.and_then(|()| self.read_back(wanted));
        if checked.is_err() {
            for (name, masks) in before.iter().rev() {
                // The first error is the one to report.
                let _ = self.write_masks(name, masks);
            }
        }
        checked
    }

    fn read_back(&self, wanted: &BTreeMap<String, Line>) -> Result<Vec<(String, u32, u32)>, CacheError> {
        let mut wider = Vec::new();
        let got: BTreeMap<&String, Line> =
            wanted.keys().map(|name| Ok((name, self.masks(name)?))).collect::<Result<_, CacheError>>()?;
        for (name, masks) in wanted {
            for (domain, asked) in masks {
                let mask = got[name].get(domain).copied().unwrap_or(0);
                if mask == *asked {
                    continue;
                }
                // Additional ways, also of the root class, must belong to no other class of ours.
                let others = got.iter().filter(|(other, _)| **other != name && owns(&self.classes, other, *domain));
                let others = others.filter_map(|(_, masks)| masks.get(domain)).fold(0, |all, mask| all | mask);
                let reaches = mask & others & !asked != 0 || (owns(&self.classes, name, *domain) && mask & others != 0);
                if reaches || asked & !mask != 0 {
                    return Err(CacheError::Widened { group: shown(name).into(), domain: *domain, asked: *asked, got: mask });
                }
                wider.push((name.clone(), *domain, mask));
            }
        }
        Ok(wider)
    }

    // Groups.

    fn make_folder(&self, file: &str) -> Result<(), CacheError> {
        let Err(source) = fs::create_dir(self.path.join(file)) else { return Ok(()) };
        let refusal = Refusal { source, status: self.status() };
        let status = refusal.words();
        let of_monitor = refusal.status.contains("RMID") || file.contains('/');
        if refusal.is(Errno::EXIST) {
            return Err(CacheError::Exists { name: file.rsplit('/').next().unwrap_or(file).into() });
        }
        if refusal.is(Errno::BUSY) {
            return Err(CacheError::Limbo { status });
        }
        if refusal.is(Errno::NOSPC) {
            return Err(if of_monitor {
                CacheError::NoMonitor { status }
            } else {
                CacheError::NoClass { classes: self.shape.classes, status }
            });
        }
        Err(self.refused("make", file, refusal))
    }

    fn remove_folder(&self, file: &str) -> Result<(), CacheError> {
        match fs::remove_dir(self.path.join(file)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.system("remove", file, e)),
            _ => Ok(()),
        }
    }

    fn class(&self, name: &str) -> Result<&Class, CacheError> {
        self.classes.get(name).ok_or_else(|| CacheError::Unknown { name: name.into() })
    }

    fn group_of(&self, name: &str) -> Result<String, CacheError> {
        if name.is_empty() { Ok(String::new()) } else { self.class(name).map(|class| group(&class.spec.name)) }
    }

    fn check(&self, spec: &ClassSpec) -> Result<(), CacheError> {
        check_name(&spec.name)?;
        if self.lines.is_empty() {
            return Err(CacheError::NoWays { why: "resctrl has no L3 allocation here" });
        }
        let most = self.shape.ways.saturating_sub(self.shape.min_ways);
        if spec.ways < self.shape.min_ways || spec.ways > most {
            return Err(CacheError::Ways { asked: spec.ways, least: self.shape.min_ways, most });
        }
        let known = || self.shape.domains.iter().map(|domain| domain.id.to_string()).collect::<Vec<_>>().join(", ");
        if let Some(domain) = spec.domains.iter().find(|domain| !self.root.contains_key(domain)) {
            return Err(CacheError::Domain { domain: *domain, known: known() });
        }
        if let Some(asked) = spec.bandwidth {
            let limits = self.shape.bandwidth.ok_or(CacheError::NoBandwidth)?;
            if !(limits.least..=limits.most).contains(&asked) {
                return Err(CacheError::Bandwidth { asked, least: limits.least, most: limits.most });
            }
        }
        Ok(())
    }

    fn set_bandwidth(&mut self, spec: &ClassSpec) -> Result<(), CacheError> {
        let group = group(&spec.name);
        let here = |domain: &&Domain| wants_domain(spec, domain.id);
        if let Some(value) = spec.bandwidth {
            let values: Line = self.shape.domains.iter().filter(here).map(|domain| (domain.id, value)).collect();
            self.write_schemata(&group, &schemata::line("MB", Base::Decimal, &values))?;
        }
        let mut values = self.schemata(&group)?.remove("MB").unwrap_or_default();
        values.retain(|domain, _| wants_domain(spec, *domain));
        if let Some(class) = self.classes.get_mut(&spec.name) {
            class.granted.bandwidth = values;
        }
        Ok(())
    }

    /// Moves threads to a group or a watch of it.
    fn move_tasks(&self, group: &str, tasks: &[u32]) -> Result<Moved, CacheError> {
        let file = format!("{}tasks", slashed(group));
        let mut moved = Moved::default();
        let mut left = tasks;
        while !left.is_empty() {
            let (mut text, mut count) = (String::new(), 0);
            for task in left {
                let word = if text.is_empty() { task.to_string() } else { format!(",{task}") };
                if text.len() + word.len() >= LIST_BYTES {
                    break;
                }
                text.push_str(&word);
                count += 1;
            }
            let Err(refusal) = self.command(&file, &format!("{text}\n")) else {
                moved.tasks.extend(&left[..count]);
                left = &left[count..];
                continue;
            };
            // Threads before the refused one have moved. Their ids are looked up: the file lists
            // its members in its own order.
            let there: BTreeSet<u32> = self.text(&file)?.lines().filter_map(|line| line.trim().parse().ok()).collect();
            let is_gone = |task: u32| !Path::new(&format!("/proc/{task}")).exists();
            let failed = left[..count].iter().position(|task| !there.contains(task)).unwrap_or(0);
            moved.tasks.extend(&left[..failed]);
            let task = left[failed];
            if refusal.is(Errno::SRCH) && is_gone(task) {
                moved.gone.push(task);
                left = &left[failed + 1..];
                continue;
            }
            return Err(CacheError::Task { group: shown(group).into(), task, status: refusal.words(), moved: moved.tasks });
        }
        Ok(moved)
    }

    fn counter(&self, folder: &Path, event: &str) -> Result<Count, CacheError> {
        let path = folder.join(event);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound && folder.is_dir() => return Ok(Count::Absent),
            Err(e) => return Err(self.system("read", &path.strip_prefix(&self.path).unwrap_or(&path).to_string_lossy(), e)),
        };
        match text.trim() {
            "Unavailable" | "Error" => Ok(Count::Unavailable),
            "Unassigned" => Ok(Count::Unassigned),
            number => number.parse().map(Count::Bytes).map_err(|_| CacheError::Strange { path, text: number.into() }),
        }
    }
}

impl CacheControl for Resctrl {
    fn origin(&self) -> Origin {
        Origin::Resctrl
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn make(&mut self, spec: &ClassSpec) -> Result<Granted, CacheError> {
        self.check(spec)?;
        if self.classes.contains_key(&spec.name) {
            return Err(CacheError::Exists { name: spec.name.clone() });
        }
        let _lock = self.lock()?;
        let folder = group(&spec.name);
        self.make_folder(&folder)?;
        let granted = Granted { name: spec.name.clone(), masks: Line::new(), bandwidth: Line::new(), widened: false };
        let before = self.classes.clone();
        self.classes.insert(spec.name.clone(), Class { spec: spec.clone(), granted, watches: BTreeSet::new() });
        let made = self.apply(spec).and_then(|()| self.set_bandwidth(spec));
        if let Err(e) = made {
            // Masks written before the bandwidth was refused are restored too.
            self.classes = before;
            let _ = self.remove_folder(&folder);
            let _ = self.widen();
            return Err(e);
        }
        Ok(self.classes[&spec.name].granted.clone())
    }

    fn resize(&mut self, name: &str, ways: u32) -> Result<Granted, CacheError> {
        let spec = ClassSpec { ways, ..self.class(name)?.spec.clone() };
        self.check(&spec)?;
        let _lock = self.lock()?;
        let before = self.classes.clone();
        if let Some(class) = self.classes.get_mut(name) {
            class.spec.ways = ways;
        }
        if let Err(e) = self.apply(&spec) {
            self.classes = before;
            return Err(e);
        }
        Ok(self.classes[name].granted.clone())
    }

    fn classes(&self) -> Vec<Granted> {
        self.classes.values().map(|class| class.granted.clone()).collect()
    }

    fn assign_tasks(&mut self, name: &str, tasks: &[u32]) -> Result<Moved, CacheError> {
        let group = self.group_of(name)?;
        self.move_tasks(&group, tasks)
    }

    fn assign_cpus(&mut self, name: &str, cpus: &[u32]) -> Result<(), CacheError> {
        let group = self.group_of(name)?;
        let file = format!("{}cpus_list", slashed(&group));
        let list = schemata::cpu_list(cpus);
        let _lock = self.lock()?;
        self.command(&file, &format!("{list}\n")).map_err(|refusal| {
            // Out of range is a processor that the kernel has no number for.
            if refusal.is(Errno::INVAL) || refusal.is(Errno::RANGE) {
                CacheError::Cpus { group: shown(&group).into(), cpus: list.clone(), status: refusal.words() }
            } else {
                self.refused("write", &file, refusal)
            }
        })
    }

    fn watch(&mut self, name: &str, watch: &str, tasks: &[u32]) -> Result<Moved, CacheError> {
        check_name(watch)?;
        if !self.shape.occupancy && !self.shape.traffic {
            return Err(CacheError::NoMonitoring);
        }
        let folder = format!("{}mon_groups/{watch}", slashed(&self.group_of(name)?));
        let _lock = self.lock()?;
        let known = if name.is_empty() { Some(&self.root_watches) } else { self.classes.get(name).map(|class| &class.watches) };
        let is_known = known.is_some_and(|watches| watches.contains(watch));
        if !is_known {
            self.make_folder(&folder)?;
        }
        let moved = self.move_tasks(&folder, tasks).inspect_err(|_| {
            if !is_known {
                let _ = self.remove_folder(&folder);
            }
        })?;
        let known =
            if name.is_empty() { Some(&mut self.root_watches) } else { self.classes.get_mut(name).map(|class| &mut class.watches) };
        if let Some(watches) = known {
            watches.insert(watch.into());
        }
        Ok(moved)
    }

    fn usage(&self, name: &str, watch: Option<&str>) -> Result<BTreeMap<u32, Usage>, CacheError> {
        let mut folder = self.path.join(self.group_of(name)?);
        if !self.shape.occupancy && !self.shape.traffic {
            return Err(CacheError::NoMonitoring);
        }
        if let Some(watch) = watch {
            folder = folder.join("mon_groups").join(watch);
            if !folder.is_dir() {
                return Err(CacheError::Unknown { name: format!("{name}/{watch}") });
            }
        }
        let of = |domain: &Domain| {
            let folder = folder.join("mon_data").join(format!("mon_L3_{:02}", domain.id));
            let usage = Usage {
                occupancy: self.counter(&folder, "llc_occupancy")?,
                total: self.counter(&folder, "mbm_total_bytes")?,
                local: self.counter(&folder, "mbm_local_bytes")?,
            };
            Ok((domain.id, usage))
        };
        self.shape.domains.iter().map(of).collect()
    }

    fn verify(&self, name: &str) -> Result<(), CacheError> {
        let class = self.class(name)?;
        let found = match self.masks(&group(name)) {
            Err(CacheError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => Line::new(),
            found => found?,
        };
        let is_same = class.granted.masks.iter().all(|(domain, mask)| found.get(domain) == Some(mask));
        if is_same { Ok(()) } else { Err(CacheError::Taken { name: name.into() }) }
    }

    fn release(&mut self, name: &str) -> Result<(), CacheError> {
        self.class(name)?;
        let _lock = self.lock()?;
        self.remove_folder(&group(name))?;
        self.classes.remove(name);
        // The class is released even if its ways are not; the next change gives them to the root
        // class.
        if let Err(error) = self.widen() {
            // A closed stderr is ignored.
            let _ = writeln!(io::stderr(), "the cache class {name} is released, and its ways are nobody's for now: {error}");
        }
        Ok(())
    }
}

impl Drop for Resctrl {
    fn drop(&mut self) {
        let names: Vec<String> = self.classes.keys().cloned().collect();
        for name in names {
            // No caller is left to report to; the next `sweep` finds what remains.
            let _ = self.release(&name);
        }
        for watch in &self.root_watches {
            let _ = self.remove_folder(&format!("mon_groups/{watch}"));
        }
    }
}

fn group(class: &str) -> String {
    format!("{PREFIX}{class}")
}

/// A group's name for people.
fn shown(group: &str) -> &str {
    if group.is_empty() { "of the root" } else { group }
}

fn slashed(group: &str) -> String {
    if group.is_empty() { String::new() } else { format!("{group}/") }
}

fn wants_domain(spec: &ClassSpec, domain: u32) -> bool {
    spec.domains.is_empty() || spec.domains.contains(&domain)
}

/// Whether a group is a class of ours with its own ways in a domain.
fn owns(classes: &BTreeMap<String, Class>, name: &str, domain: u32) -> bool {
    name.strip_prefix(PREFIX).and_then(|name| classes.get(name)).is_some_and(|class| wants_domain(&class.spec, domain))
}
