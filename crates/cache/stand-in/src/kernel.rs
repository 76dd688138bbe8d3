//! The kernel's side: groups, their masks, and refusals.
//!
//! # Problem
//! A folder with files takes every write. The kernel does not: it checks masks, counts classes,
//! rounds bandwidths, stops a list of processes at the first that cannot be moved, and leaves a
//! line in `info/last_cmd_status`. A test on a plain folder would test none of this.
//!
//! # Approach
//! Paths in, text or an error number out, as resctrl's files answer; the module `mount` serves it
//! at a mount point. Checks come in the kernel's order, so that a write with two faults is refused
//! for the same one.
//!
//! # Limits
//! No pseudo-locking, no L2, no mount options at run time, no renaming, and no second user. Tests
//! set the hardware's counters ([`Kernel::count`]). The line in `last_cmd_status` has the kernel's
//! form; neither the kernel nor this module guarantees its words.
//!
//! # Source
//! `Documentation/filesystems/resctrl.rst` and the behaviour of `fs/resctrl` in Linux 6.16.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::Machine;

mod schemata;

/// An error number of the system.
pub type Errno = i32;

/// A counter's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Count {
    Bytes(u64),
    /// The counter has no value now.
    Unavailable,
    /// No counter is assigned to the event.
    Unassigned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKind {
    /// A folder: the names in it, each with whether it is a folder.
    Folder(Vec<(String, bool)>),
    File {
        writable: bool,
    },
}

#[derive(Debug, Clone, Default)]
struct Watched {
    rmid: u32,
    tasks: BTreeSet<i32>,
    cpus: BTreeSet<u32>,
}

#[derive(Debug, Clone)]
struct Group {
    closid: u32,
    rmid: u32,
    exclusive: bool,
    /// By line and domain.
    masks: BTreeMap<(&'static str, u32), u32>,
    bandwidth: BTreeMap<u32, u32>,
    /// Tasks that were moved here; the root has all others.
    tasks: BTreeSet<i32>,
    cpus: BTreeSet<u32>,
    watched: BTreeMap<String, Watched>,
}

#[derive(Debug)]
pub struct Kernel {
    machine: Machine,
    /// By name; the root is "".
    groups: BTreeMap<String, Group>,
    closids: BTreeSet<u32>,
    rmids: BTreeSet<u32>,
    limbo: BTreeSet<u32>,
    /// Whether released monitoring ids stay unusable for a while.
    dirty: bool,
    status: String,
    counts: BTreeMap<String, Count>,
    threshold: u64,
}

const GROUP_FILES: [&str; 3] = ["tasks", "cpus", "cpus_list"];
const CONTROL_FILES: [&str; 3] = ["schemata", "mode", "size"];

impl Kernel {
    /// The state right after the mount.
    pub fn new(machine: Machine) -> Self {
        let closids = (1..machine.closids()).collect();
        let rmids = machine.monitoring.as_ref().map_or_else(BTreeSet::new, |m| (1..m.num_rmids).collect());
        let mut kernel = Self {
            groups: BTreeMap::new(),
            closids,
            rmids,
            limbo: BTreeSet::new(),
            dirty: false,
            status: String::new(),
            counts: BTreeMap::new(),
            threshold: 65_536,
            machine,
        };
        let mut root = kernel.group(0, 0);
        let all = kernel.machine.all();
        root.masks.values_mut().for_each(|mask| *mask = all);
        root.cpus = kernel.machine.domains.values().flatten().copied().collect();
        kernel.groups.insert(String::new(), root);
        kernel
    }

    /// Sets the value of a counter's file, by its path below the mount point.
    pub fn count(&mut self, path: &str, count: Count) {
        self.counts.insert(path.into(), count);
    }

    /// Sets whether released monitoring ids still tag lines in the cache; `false` frees all that
    /// wait.
    pub fn set_dirty(&mut self, dirty: bool) {
        self.dirty = dirty;
        if !dirty {
            self.rmids.append(&mut self.limbo);
        }
    }

    fn group(&self, closid: u32, rmid: u32) -> Group {
        let domains = || self.machine.domains.keys().copied();
        let masks = self.machine.l3_names().iter().flat_map(|name| domains().map(|domain| ((*name, domain), 0))).collect();
        let most = self.machine.bandwidth.as_ref().map(|b| b.max);
        let bandwidth = most.map_or_else(BTreeMap::new, |most| domains().map(|domain| (domain, most)).collect());
        Group {
            closid,
            rmid,
            exclusive: false,
            masks,
            bandwidth,
            tasks: BTreeSet::new(),
            cpus: BTreeSet::new(),
            watched: BTreeMap::new(),
        }
    }

    fn say(&mut self, words: impl AsRef<str>) {
        self.status.push_str(words.as_ref());
        self.status.push('\n');
    }

    fn refuse<T>(&mut self, words: impl AsRef<str>, errno: Errno) -> Result<T, Errno> {
        self.say(words);
        Err(errno)
    }

    // Paths.

    /// A path's group and what is left of the path.
    fn split<'p>(&self, path: &'p str) -> (&'p str, &'p str) {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        if !first.is_empty() && self.groups.contains_key(first) { (first, rest) } else { ("", path) }
    }

    fn info_folders(&self) -> Vec<(String, Vec<&'static str>)> {
        let mut found = Vec::new();
        for name in self.machine.l3_names() {
            let mut files = vec!["num_closids", "cbm_mask", "min_cbm_bits", "shareable_bits", "bit_usage"];
            files.extend(self.machine.sparse.map(|_| "sparse_masks"));
            found.push(((*name).to_string(), files));
        }
        if self.machine.bandwidth.is_some() {
            found.push(("MB".into(), vec!["num_closids", "min_bandwidth", "bandwidth_gran", "delay_linear"]));
        }
        if self.machine.monitoring.is_some() {
            found.push(("L3_MON".into(), vec!["num_rmids", "mon_features", "max_threshold_occupancy"]));
        }
        found
    }

    fn mon_data(&self, rest: &str) -> Option<NodeKind> {
        let monitoring = self.machine.monitoring.as_ref()?;
        let folder = |name: String| (name, true);
        let events = || monitoring.events.iter().map(|event| (event.clone(), false));
        let mut parts = rest.split('/').filter(|part| !part.is_empty());
        let Some(domain) = parts.next() else {
            return Some(NodeKind::Folder(self.machine.domains.keys().map(|id| folder(format!("mon_L3_{id:02}"))).collect()));
        };
        let id: u32 = domain.strip_prefix("mon_L3_")?.parse().ok()?;
        self.machine.domains.get(&id)?;
        let node = |part: &str| part.strip_prefix("mon_sub_L3_")?.parse().ok().filter(|n: &u32| *n < monitoring.nodes);
        let nodes = if monitoring.nodes > 1 { monitoring.nodes } else { 0 };
        match (parts.next(), parts.next()) {
            (None, _) => Some(NodeKind::Folder(events().chain((0..nodes).map(|n| folder(format!("mon_sub_L3_{n:02}")))).collect())),
            (Some(event), None) if monitoring.events.iter().any(|e| e == event) => Some(NodeKind::File { writable: false }),
            (Some(sub), event) if nodes > 0 && node(sub).is_some() => match event {
                None => Some(NodeKind::Folder(events().collect())),
                Some(event) => monitoring.events.iter().any(|e| e == event).then_some(NodeKind::File { writable: false }),
            },
            _ => None,
        }
    }

    /// What a path is, below the mount point and without a leading slash.
    pub fn look(&self, path: &str) -> Option<NodeKind> {
        let file = |name: &str| (name.to_string(), false);
        let folder = |name: &str| (name.to_string(), true);
        if let Some(rest) = path.strip_prefix("info").filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            let folders = self.info_folders();
            let mut parts = rest.split('/').filter(|part| !part.is_empty());
            return match (parts.next(), parts.next()) {
                (None, _) => {
                    let names = folders.iter().map(|(name, _)| folder(name));
                    Some(NodeKind::Folder(names.chain([file("last_cmd_status")]).collect()))
                }
                (Some("last_cmd_status"), None) => Some(NodeKind::File { writable: false }),
                (Some(name), part) => {
                    let (_, files) = folders.iter().find(|(known, _)| known == name)?;
                    match part {
                        None => Some(NodeKind::Folder(files.iter().map(|name| file(name)).collect())),
                        Some(part) if files.contains(&part) => Some(NodeKind::File { writable: part == "max_threshold_occupancy" }),
                        Some(_) => None,
                    }
                }
            };
        }
        let (name, rest) = self.split(path);
        let group = &self.groups[name];
        let monitors = self.machine.monitoring.is_some();
        let control: &[&str] = if self.machine.allocates() { &CONTROL_FILES } else { &[] };
        if rest.is_empty() {
            let mut names: Vec<(String, bool)> = GROUP_FILES.iter().chain(control).map(|name| file(name)).collect();
            if monitors {
                names.extend([folder("mon_data"), folder("mon_groups")]);
            }
            if name.is_empty() {
                names.push(folder("info"));
                names.extend(self.groups.keys().filter(|name| !name.is_empty()).map(|name| folder(name)));
            }
            return Some(NodeKind::Folder(names));
        }
        if GROUP_FILES.contains(&rest) || control.contains(&rest) {
            return Some(NodeKind::File { writable: rest != "size" });
        }
        if let Some(rest) = rest.strip_prefix("mon_data").filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            return self.mon_data(rest);
        }
        let rest = rest.strip_prefix("mon_groups").filter(|rest| monitors && (rest.is_empty() || rest.starts_with('/')))?;
        let mut parts = rest.trim_start_matches('/').splitn(2, '/');
        let watched = parts.next().filter(|part| !part.is_empty());
        let Some(watched) = watched else {
            return Some(NodeKind::Folder(group.watched.keys().map(|name| folder(name)).collect()));
        };
        group.watched.get(watched)?;
        match parts.next() {
            None => Some(NodeKind::Folder(GROUP_FILES.iter().map(|name| file(name)).chain([folder("mon_data")]).collect())),
            Some(name) if GROUP_FILES.contains(&name) => Some(NodeKind::File { writable: true }),
            Some(rest) => self.mon_data(rest.strip_prefix("mon_data")?),
        }
    }

    // Reading.

    /// The text of a file.
    ///
    /// # Errors
    /// ENOENT: there is no such file; EISDIR: it is a folder.
    pub fn read(&self, path: &str) -> Result<String, Errno> {
        match self.look(path) {
            Some(NodeKind::File { .. }) => {}
            Some(NodeKind::Folder(_)) => return Err(libc::EISDIR),
            None => return Err(libc::ENOENT),
        }
        if let Some(rest) = path.strip_prefix("info/") {
            return Ok(self.read_info(rest));
        }
        if path.contains("mon_data/") {
            return Ok(match self.counts.get(path) {
                Some(Count::Bytes(bytes)) => format!("{bytes}\n"),
                Some(Count::Unavailable) => "Unavailable\n".into(),
                Some(Count::Unassigned) => "Unassigned\n".into(),
                None => "0\n".into(),
            });
        }
        let (name, rest) = self.split(path);
        let group = &self.groups[name];
        if let Some(rest) = rest.strip_prefix("mon_groups/") {
            let (watched, file) = rest.split_once('/').ok_or(libc::EISDIR)?;
            let watched = &group.watched[watched];
            return Ok(match file {
                "tasks" => lines(watched.tasks.iter().copied().filter(|pid| lives(*pid))),
                "cpus" => bits(&watched.cpus),
                _ => ranges(&watched.cpus),
            });
        }
        Ok(match rest {
            "tasks" if name.is_empty() => {
                let elsewhere: BTreeSet<i32> = self.groups.values().flat_map(|group| group.tasks.iter().copied()).collect();
                lines(all_tasks().into_iter().filter(|pid| !elsewhere.contains(pid)))
            }
            "tasks" => lines(group.tasks.iter().copied().filter(|pid| lives(*pid))),
            "cpus" => bits(&group.cpus),
            "cpus_list" => ranges(&group.cpus),
            "mode" => if group.exclusive { "exclusive\n" } else { "shareable\n" }.into(),
            "size" => {
                let each = self.machine.l3_bytes / u64::from(self.machine.cbm_bits.max(1));
                self.schemata(group, |mask| (each * u64::from(mask.count_ones())).to_string())
            }
            _ => self.schemata(group, |mask| format!("{mask:x}")),
        })
    }

    fn read_info(&self, rest: &str) -> String {
        let machine = &self.machine;
        let (folder, file) = rest.split_once('/').unwrap_or(("", rest));
        let bandwidth = machine.bandwidth.as_ref().filter(|_| folder == "MB");
        match (file, bandwidth) {
            ("last_cmd_status", _) if self.status.is_empty() => "ok\n".into(),
            ("last_cmd_status", _) => self.status.clone(),
            ("num_closids", Some(b)) => format!("{}\n", b.num_closids),
            ("num_closids", None) => format!("{}\n", machine.l3_closids()),
            ("min_bandwidth", Some(b)) => format!("{}\n", b.min),
            ("bandwidth_gran", Some(b)) => format!("{}\n", b.granularity),
            ("delay_linear", _) => "1\n".into(),
            ("cbm_mask", _) => format!("{:x}\n", machine.all()),
            ("min_cbm_bits", _) => format!("{}\n", machine.min_cbm_bits),
            ("shareable_bits", _) => format!("{:x}\n", machine.shareable_bits),
            ("sparse_masks", _) => format!("{}\n", u8::from(machine.sparse == Some(true))),
            ("bit_usage", _) => self.bit_usage(folder),
            ("num_rmids", _) => format!("{}\n", machine.monitoring.as_ref().map_or(0, |m| m.num_rmids)),
            ("mon_features", _) => machine.monitoring.iter().flat_map(|m| &m.events).map(|event| format!("{event}\n")).collect(),
            ("max_threshold_occupancy", _) => format!("{}\n", self.threshold),
            _ => String::new(),
        }
    }

    fn bit_usage(&self, line: &str) -> String {
        let of = |domain: u32| -> String {
            let used = |exclusive: bool| {
                let groups = self.groups.values().filter(move |group| group.exclusive == exclusive);
                groups
                    .flat_map(|group| group.masks.iter())
                    .filter(|((name, id), _)| *name == line && *id == domain)
                    .fold(0, |all, (_, m)| all | m)
            };
            let (shared, exclusive, devices) = (used(false), used(true), self.machine.shareable_bits);
            let letter = |bit: u32| match (devices >> bit & 1, shared >> bit & 1, exclusive >> bit & 1) {
                (1, 1, _) => 'X',
                (1, 0, _) => 'H',
                (0, 1, _) => 'S',
                (_, _, 1) => 'E',
                _ => '0',
            };
            (0..self.machine.cbm_bits).rev().map(letter).collect()
        };
        let parts: Vec<String> = self.machine.domains.keys().map(|domain| format!("{domain}={}", of(*domain))).collect();
        format!("{}\n", parts.join(";"))
    }

    // Writing.

    /// One write to a file.
    ///
    /// # Errors
    /// The kernel's error number.
    pub fn write(&mut self, path: &str, data: &[u8]) -> Result<(), Errno> {
        match self.look(path) {
            Some(NodeKind::File { writable: true }) => {}
            Some(NodeKind::File { writable: false }) => return Err(libc::EINVAL),
            Some(NodeKind::Folder(_)) => return Err(libc::EISDIR),
            None => return Err(libc::ENOENT),
        }
        let text = std::str::from_utf8(data).map_err(|_| libc::EINVAL)?.to_string();
        if path.starts_with("info/") {
            self.threshold = text.trim_end().parse().map_err(|_| libc::EINVAL)?;
            return Ok(());
        }
        let (name, rest) = self.split(path);
        let (name, rest) = (name.to_string(), rest.to_string());
        let watched = rest.strip_prefix("mon_groups/").and_then(|rest| rest.split_once('/')).map(|(name, _)| name.to_string());
        let file = rest.rsplit('/').next().unwrap_or_default();
        match file {
            "tasks" => {
                self.status.clear();
                self.write_tasks(&name, watched.as_deref(), &text)
            }
            "cpus" | "cpus_list" => {
                self.status.clear();
                self.write_cpus(&name, watched.as_deref(), &text, file == "cpus_list")
            }
            "mode" | "schemata" => {
                // These two require a whole line; without one, the last status stays as it was.
                let text = text.strip_suffix('\n').ok_or(libc::EINVAL)?;
                self.status.clear();
                if file == "mode" { self.write_mode(&name, text) } else { self.write_schemata(&name, text) }
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn write_tasks(&mut self, name: &str, watched: Option<&str>, text: &str) -> Result<(), Errno> {
        for word in text.lines().next().unwrap_or_default().split(',') {
            let word = word.trim();
            if word.is_empty() && text.trim().is_empty() {
                return Ok(());
            }
            let Ok(pid) = word.parse::<i32>() else {
                return self.refuse(format!("Task list parsing error pid {word}"), libc::EINVAL);
            };
            if pid < 0 {
                return self.refuse(format!("Invalid pid {pid}"), libc::EINVAL);
            }
            let moved = self.move_task(name, watched, pid);
            if let Err(errno) = moved {
                return self.refuse(format!("Error while processing task {pid}"), errno);
            }
        }
        Ok(())
    }

    fn move_task(&mut self, name: &str, watched: Option<&str>, pid: i32) -> Result<(), Errno> {
        if !lives(pid) {
            return self.refuse(format!("No task {pid}"), libc::ESRCH);
        }
        if self.machine.untouchable.contains(&pid) {
            return self.refuse(format!("No permission to move task {pid}"), libc::EPERM);
        }
        let owner =
            self.groups.iter().find(|(_, group)| group.tasks.contains(&pid)).map_or(String::new(), |(name, _)| name.clone());
        if watched.is_some() && owner != name {
            return self.refuse("Can't move task to different control group", libc::EINVAL);
        }
        for group in self.groups.values_mut() {
            group.tasks.remove(&pid);
            group.watched.values_mut().for_each(|watched| {
                watched.tasks.remove(&pid);
            });
        }
        let group = self.groups.get_mut(name).ok_or(libc::ENOENT)?;
        if !name.is_empty() {
            group.tasks.insert(pid);
        }
        if let Some(watched) = watched.and_then(|name| group.watched.get_mut(name)) {
            watched.tasks.insert(pid);
        }
        Ok(())
    }

    fn write_cpus(&mut self, name: &str, watched: Option<&str>, text: &str, list: bool) -> Result<(), Errno> {
        let wanted = if list { parse_list(text.trim()) } else { parse_bits(text.trim()).ok_or(libc::EINVAL) };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(errno) => return self.refuse("Bad CPU list/mask", errno),
        };
        let online: BTreeSet<u32> = self.machine.domains.values().flatten().copied().collect();
        if !wanted.is_subset(&online) {
            return self.refuse("Can only assign online CPUs", libc::EINVAL);
        }
        if let Some(watched) = watched {
            let group = self.groups.get_mut(name).ok_or(libc::ENOENT)?;
            if !wanted.is_subset(&group.cpus) {
                return self.refuse("Can only add CPUs to mongroup that belong to parent", libc::EINVAL);
            }
            for (other, of) in &mut group.watched {
                of.cpus = if other == watched { wanted.clone() } else { &of.cpus - &wanted };
            }
            return Ok(());
        }
        let dropped: BTreeSet<u32> = &self.groups[name].cpus - &wanted;
        if !dropped.is_empty() && name.is_empty() {
            return self.refuse("Can't drop CPUs from default group", libc::EINVAL);
        }
        if let Some(root) = self.groups.get_mut("") {
            root.cpus.extend(dropped);
        }
        for (other, group) in &mut self.groups {
            let keeps = if other == name { wanted.clone() } else { &group.cpus - &wanted };
            group.watched.values_mut().for_each(|watched| watched.cpus = &watched.cpus & &keeps);
            group.cpus = keeps;
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.watched.values_mut().for_each(|watched| watched.cpus.clear());
        }
        Ok(())
    }

    /// Whether a mask overlaps another group's. With `exclusive`, only exclusive groups count;
    /// without it, devices count too.
    fn overlaps(&self, name: &str, domain: u32, mask: u32, exclusive: bool) -> bool {
        if !exclusive && mask & self.machine.shareable_bits != 0 {
            return true;
        }
        let others = self.groups.iter().filter(|(other, group)| *other != name && (!exclusive || group.exclusive));
        others.flat_map(|(_, group)| &group.masks).any(|((_, id), other)| *id == domain && other & mask != 0)
    }

    fn write_mode(&mut self, name: &str, mode: &str) -> Result<(), Errno> {
        let group = &self.groups[name];
        match mode {
            "shareable" => self.groups.get_mut(name).ok_or(libc::ENOENT)?.exclusive = false,
            "exclusive" if group.exclusive => {}
            "exclusive" if !self.machine.cat => return self.refuse("Cannot be exclusive without CAT/CDP", libc::EINVAL),
            "exclusive" => {
                if group.masks.iter().any(|((_, domain), mask)| self.overlaps(name, *domain, *mask, false)) {
                    return self.refuse("Schemata overlaps", libc::EINVAL);
                }
                self.groups.get_mut(name).ok_or(libc::ENOENT)?.exclusive = true;
            }
            _ => return self.refuse("Unknown or unsupported mode", libc::EINVAL),
        }
        Ok(())
    }

    // Folders.

    fn take_rmid(&mut self) -> Result<u32, Errno> {
        if self.machine.monitoring.is_none() {
            return Ok(0);
        }
        match self.rmids.pop_first() {
            Some(rmid) => Ok(rmid),
            None => {
                let errno = if self.limbo.is_empty() { libc::ENOSPC } else { libc::EBUSY };
                self.refuse("Out of RMIDs", errno)
            }
        }
    }

    fn give_rmid(&mut self, rmid: u32) {
        if rmid == 0 {
            return;
        }
        if self.dirty {
            self.limbo.insert(rmid)
        } else {
            self.rmids.insert(rmid)
        };
    }

    /// Makes a group.
    ///
    /// # Errors
    /// The kernel's error number.
    pub fn mkdir(&mut self, path: &str) -> Result<(), Errno> {
        if self.look(path).is_some() {
            return Err(libc::EEXIST);
        }
        if path.contains('\n') {
            return Err(libc::EINVAL);
        }
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        if folder.is_empty() && self.machine.allocates() {
            self.status.clear();
            let Some(closid) = self.closids.pop_first() else { return self.refuse("Out of CLOSIDs", libc::ENOSPC) };
            let made = self.take_rmid().and_then(|rmid| self.fresh(closid, rmid).inspect_err(|_| self.give_rmid(rmid)));
            return match made {
                Ok(group) => {
                    self.groups.insert(name.into(), group);
                    Ok(())
                }
                Err(errno) => {
                    self.closids.insert(closid);
                    Err(errno)
                }
            };
        }
        if self.machine.monitoring.is_none() {
            return Err(libc::EPERM);
        }
        let (group, rest) = self.split(folder);
        let (group, rest) = (group.to_string(), rest.to_string());
        self.status.clear();
        if rest != "mon_groups" || name == "mon_groups" {
            return Err(libc::EPERM);
        }
        let rmid = self.take_rmid()?;
        let watched = Watched { rmid, ..Watched::default() };
        self.groups.get_mut(&group).ok_or(libc::ENOENT)?.watched.insert(name.into(), watched);
        Ok(())
    }

    /// A new group as the kernel makes it: all ways that no group has exclusively; where masks may
    /// have no gaps, their first run.
    fn fresh(&mut self, closid: u32, rmid: u32) -> Result<Group, Errno> {
        let mut group = self.group(closid, rmid);
        for ((line, domain), mask) in &mut group.masks {
            let others = self.groups.values().flat_map(|g| g.masks.iter().map(move |(key, mask)| (g.exclusive, key, *mask)));
            let taken = others.filter(|(exclusive, (_, id), _)| *exclusive && id == domain).fold(0, |all, (.., mask)| all | mask);
            let free = self.machine.all() & !taken;
            *mask = if self.machine.sparse == Some(true) || free == 0 {
                free
            } else {
                let from = free.trailing_zeros();
                let run = (free >> from).trailing_ones();
                free & (u32::MAX.checked_shr(32 - run).unwrap_or(0) << from)
            };
            if mask.count_ones() < self.machine.min_cbm_bits {
                let words = format!("No space on {line}:{domain}\n");
                self.status.push_str(&words);
                return Err(libc::ENOSPC);
            }
        }
        Ok(group)
    }

    /// Removes a group; its contents go to the one above.
    ///
    /// # Errors
    /// The kernel's error number.
    pub fn rmdir(&mut self, path: &str) -> Result<(), Errno> {
        let prefix = format!("{path}/");
        if !path.is_empty() && !path.contains('/') && self.groups.contains_key(path) {
            let group = self.groups.remove(path).ok_or(libc::ENOENT)?;
            if let Some(root) = self.groups.get_mut("") {
                root.cpus.extend(group.cpus);
            }
            self.give_rmid(group.rmid);
            group.watched.values().for_each(|watched| self.give_rmid(watched.rmid));
            self.closids.insert(group.closid);
        } else {
            let (name, rest) = self.split(path);
            let watched = rest.strip_prefix("mon_groups/").filter(|rest| !rest.contains('/'));
            let (name, Some(watched)) = (name.to_string(), watched.map(str::to_string)) else { return Err(libc::EPERM) };
            let group = self.groups.get_mut(&name).ok_or(libc::ENOENT)?;
            let watched = group.watched.remove(&watched).ok_or(libc::ENOENT)?;
            self.give_rmid(watched.rmid);
        }
        self.counts.retain(|counted, _| !counted.starts_with(&prefix));
        Ok(())
    }
}

fn lines(pids: impl Iterator<Item = i32>) -> String {
    pids.map(|pid| format!("{pid}\n")).collect()
}

fn lives(pid: i32) -> bool {
    pid > 0 && std::path::Path::new(&format!("/proc/{pid}")).exists()
}

fn all_tasks() -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<i32> = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

fn bits(cpus: &BTreeSet<u32>) -> String {
    let mask = cpus.iter().fold(0u64, |all, cpu| all | 1u64.checked_shl(*cpu).unwrap_or(0));
    format!("{mask:08x}\n")
}

fn ranges(cpus: &BTreeSet<u32>) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => parts.push((*cpu, *cpu)),
        }
    }
    let words: Vec<String> = parts.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    format!("{}\n", words.join(","))
}

/// Processors that the kernel has numbers for (`nr_cpu_ids`), online or not.
const NUMBERS: u32 = 1024;

fn parse_list(text: &str) -> Result<BTreeSet<u32>, Errno> {
    let mut found = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<u32>().map_err(|_| libc::EINVAL);
        let (from, to) = (number(from)?, number(to)?);
        if from > to {
            return Err(libc::EINVAL);
        }
        if to >= NUMBERS {
            return Err(libc::ERANGE);
        }
        found.extend(from..=to);
    }
    Ok(found)
}

fn parse_bits(text: &str) -> Option<BTreeSet<u32>> {
    let mask = u64::from_str_radix(&text.replace(',', ""), 16).ok()?;
    Some((0..64).filter(|cpu| mask >> cpu & 1 == 1).collect())
}
