//! The runtime directory, and its record of the manager's processes, files and changes.
//!
//! # Problem
//! A killed manager leaves things behind: sockets, cgroups, settings, perhaps processes. The next
//! one must find and undo just these, and nothing that belongs to another program by now. Two
//! managers must never share a directory.
//!
//! # Approach
//! - The directory holds a *lock* that lives as long as the manager's process (`flock`; it contains
//!   the holder's pid for error messages), and the *record*: a journal of JSON lines, one for each
//!   thing started, made or changed, and one when that is over. An entry costs one short write. A
//!   journal that is several times longer than its state is rewritten and renamed into place.
//! - Things are noted *before* they are made and forgotten *after* they are gone: a kill leaves at
//!   most an entry for something that is not there. A process can only be noted after its start.
//!   The kernel normally kills it with the manager (see [`super::spawn`]); the record is for
//!   processes that escape that.
//! - A process is recorded with its start time and the boot's id, and opened before it is compared
//!   ([`Identity::open`](crate::process::Identity::open)), so a reused pid is never killed.
//! - Undoing recurses only in the folder of a container, and not deeply there. It removes a file or
//!   socket only if it is of that type, and a directory or cgroup only if it is empty. In a cgroup
//!   it first kills all processes, also below it, and removes empty child cgroups. What cannot be
//!   undone stays in the record.
//! - The record is an order to kill and to delete. So it is accepted only in a directory that no
//!   other user can write to, or replace through a parent folder.
//!
//! | entry | undone by |
//! |---|---|
//! | process of an NF | killing it and its process group |
//! | socket, file | unlinking it |
//! | directory | removing it if it is empty |
//! | cgroup | killing the processes in and below it, removing it |
//! | network namespace | killing its processes, removing its name |
//! | folder of a container | removing it with the runtime's files; its processes are gone |
//! | changed setting | writing the former value |
//! | journal of the [guard], a file beside | undoing its entries before anything is killed |
//!
//! # Limits
//! Nothing is flushed to disk: the record survives the manager, not the host. After a reboot only
//! its files and sockets are undone. NFs that attach by themselves are not recorded.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::container;
use crate::cgroup::processes_below;
use crate::file::Lock;
use crate::netns::{self, Netns};
use crate::process::{self, Identity, Proc};
use crate::processes::guard;

const LOCK: &str = "lock";

const RECORD: &str = "record";

/// File name of the guard's journal: see [`guard`].
pub const UNDO: &str = "undo";

/// Maximum time for killed processes and emptied cgroups to disappear.
const PATIENCE: Duration = Duration::from_secs(5);

/// The record is rewritten when it has more lines than this and four times its entries.
const COMPACT_LINES: usize = 1024;

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("another sluiced{} runs in {dir}; stop it, or give this one another runtime_dir", pid.map(|p| format!(" (pid {p})")).unwrap_or_default())]
    Busy { dir: PathBuf, pid: Option<i32> },
    /// Other users could write the record.
    #[error("{dir} {what}: what is written there could have this manager kill and delete; choose a runtime_dir of its own")]
    Untrusted {
        /// The directory, or a file in it.
        dir: PathBuf,
        what: String,
    },
    #[error("cannot {doing} {path}: {source}{}", advice(source))]
    System { doing: &'static str, path: PathBuf, source: io::Error },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as a user with permission to, or choose another runtime_dir",
        io::ErrorKind::NotFound => "; make its parent folder, or choose another runtime_dir",
        _ => "",
    }
}

/// Kind of a file-system object that the manager makes and must remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thing {
    Socket,
    /// An ordinary file or a symbolic link.
    File,
    Directory,
    /// A control group, version 1 or 2.
    Cgroup,
    /// A named network namespace.
    Netns,
    /// The folder of a container, with its runtime's files.
    Container,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The manager that writes the record.
    Manager {
        process: Identity,
        boot: String,
        made_dir: bool,
    },
    Started {
        nf: String,
        process: Identity,
    },
    /// The process has ended and was collected.
    Ended {
        pid: i32,
    },
    /// A thing is about to be made.
    Made {
        thing: Thing,
        path: PathBuf,
    },
    Removed {
        path: PathBuf,
    },
    /// A setting is about to be changed.
    Changed {
        path: PathBuf,
        was: String,
    },
    Restored {
        path: PathBuf,
    },
}

/// Everything that a record lists and that is not yet undone.
#[derive(Debug, Clone, PartialEq, Default)]
struct Left {
    /// Process, boot id, and whether a manager made the directory.
    manager: Option<(Identity, String, bool)>,
    processes: BTreeMap<i32, (String, Identity)>,
    /// By path: in reverse order, contents come before their folder.
    things: BTreeMap<PathBuf, Thing>,
    settings: BTreeMap<PathBuf, String>,
}

impl Left {
    fn apply(&mut self, line: Line) {
        match line {
            Line::Manager { process, boot, made_dir } => self.manager = Some((process, boot, made_dir)),
            Line::Started { nf, process } => drop(self.processes.insert(process.pid, (nf, process))),
            Line::Ended { pid } => drop(self.processes.remove(&pid)),
            Line::Made { thing, path } => drop(self.things.insert(path, thing)),
            Line::Removed { path } => drop(self.things.remove(&path)),
            // The first value is the host's own.
            Line::Changed { path, was } => drop(self.settings.entry(path).or_insert(was)),
            Line::Restored { path } => drop(self.settings.remove(&path)),
        }
    }

    /// The shortest journal of this state.
    fn lines(&self) -> Vec<Line> {
        let manager = self.manager.iter().cloned();
        let manager = manager.map(|(process, boot, made_dir)| Line::Manager { process, boot, made_dir });
        let processes = self.processes.values().map(|(nf, process)| Line::Started { nf: nf.clone(), process: *process });
        let things = self.things.iter().map(|(path, thing)| Line::Made { thing: *thing, path: path.clone() });
        let settings = self.settings.iter().map(|(path, was)| Line::Changed { path: path.clone(), was: was.clone() });
        manager.chain(processes).chain(things).chain(settings).collect()
    }

    fn len(&self) -> usize {
        self.processes.len() + self.things.len() + self.settings.len()
    }

    /// Reads a journal. Ignores a last line that was truncated by a kill or a full disk.
    fn parse(text: &str) -> Self {
        let mut left = Self::default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).for_each(|line| left.apply(line));
        left
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CleanedUp {
    /// Pid of the manager that had left things, if any.
    pub manager: Option<i32>,
    /// Killed NFs, with their pids.
    pub killed: Vec<(String, i32)>,
    pub removed: Vec<PathBuf>,
    /// Settings that have their former value again.
    pub restored: Vec<PathBuf>,
    /// Number of undone changes on processes: stopped, frozen or real-time ones.
    pub released: usize,
    /// What could not be undone, and why. It stays in the record.
    pub failed: Vec<String>,
}

impl CleanedUp {
    pub fn is_nothing(&self) -> bool {
        self.killed.is_empty()
            && self.removed.is_empty()
            && self.restored.is_empty()
            && self.failed.is_empty()
            && self.released == 0
    }
}

impl std::fmt::Display for CleanedUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing was left to clean up");
        }
        let mut parts = Vec::new();
        let mut part = |what: &str, names: Vec<String>| {
            if !names.is_empty() {
                parts.push(format!("{what} {}", names.join(", ")));
            }
        };
        let paths = |paths: &[PathBuf]| paths.iter().map(|p| p.display().to_string()).collect();
        part("killed", self.killed.iter().map(|(nf, pid)| format!("{nf} (pid {pid})")).collect());
        part("removed", paths(&self.removed));
        part("restored", paths(&self.restored));
        if self.released > 0 {
            part("given back", vec![format!("{} changes on processes", self.released)]);
        }
        part("could not undo:", self.failed.clone());
        if let Some(pid) = self.manager {
            write!(f, "left by the manager with pid {pid}: ")?;
        }
        f.write_str(&parts.join("; "))
    }
}

/// The runtime directory, locked by this manager, and its record.
///
/// Dropping it (a panic) releases the lock and leaves the record to the next manager;
/// [`Record::finish`] is the orderly end.
#[derive(Debug)]
pub struct Record {
    dir: PathBuf,
    proc: Proc,
    left: Left,
    journal: File,
    lines: usize,
    // Last field: the others are dropped before the lock is released.
    lock: Lock,
}

impl Record {
    /// Opens the directory: makes it (mode 0755) if missing, locks it, undoes an earlier manager's
    /// record, and begins a new record.
    ///
    /// Waits up to some seconds for processes that it kills.
    ///
    /// # Errors
    /// [`RecordError`]. What could not be undone is no error: see [`CleanedUp::failed`].
    pub fn open(dir: &Path, proc: Proc) -> Result<(Self, CleanedUp), RecordError> {
        let dir = std::path::absolute(dir).map_err(system("find", dir))?;
        let mut made_dir = make_dir(&dir)?;
        let lock = take_lock(&dir)?;
        let mut left = read_record(&dir)?;
        let boot = proc.boot_id().map_err(system("read the boot id below", Path::new("/proc")))?;
        let mut report = CleanedUp::default();
        if let Some((manager, last_boot, made)) = left.manager.take() {
            made_dir |= made;
            report.manager = Some(manager.pid);
            if last_boot != boot {
                // Pids, cgroups and settings of another boot mean nothing in this one.
                left.processes.clear();
                left.settings.clear();
                left.things.retain(|_, thing| !matches!(thing, Thing::Cgroup | Thing::Netns));
            }
        }
        // Before processes are killed: a frozen one cannot end.
        let journal = dir.join(UNDO);
        if let Ok(metadata) = fs::symlink_metadata(&journal) {
            trust(&journal, &metadata)?;
            let (undone, failed) = guard::undo_left(&journal);
            report.released = undone;
            report.failed.extend(failed.map(|why| format!("giving back what the scheduler had changed on processes: {why}")));
        }
        undo(&mut left, &proc, &mut report);

        let own = Pid::from_raw(std::process::id() as i32).and_then(|pid| proc.identity(pid));
        let own = own.ok_or_else(|| system("find this process below", Path::new("/proc"))(io::ErrorKind::NotFound.into()))?;
        left.manager = Some((own, boot, made_dir));
        let (journal, lines) = write_anew(&dir, &left)?;
        Ok((Self { dir, proc, left, journal, lines, lock }, report))
    }

    /// Makes directory, lock and record again if any was removed. Returns whether that was so.
    ///
    /// In that case sockets and other files in it may be gone, too. Entries of a manager that was
    /// killed there in between are adopted.
    ///
    /// # Errors
    /// [`RecordError::Busy`] if another manager runs there by now; otherwise as [`Record::open`].
    /// On an error nothing changes, except that the directory may have been made.
    pub fn keep(&mut self) -> Result<bool, RecordError> {
        if self.has_dir() {
            if self.dir.join(RECORD).exists() {
                return Ok(false);
            }
            (self.journal, self.lines) = write_anew(&self.dir, &self.left)?;
            return Ok(true);
        }
        let made_dir = make_dir(&self.dir)?;
        let lock = take_lock(&self.dir)?;
        let between = read_record(&self.dir)?;
        between.lines().into_iter().filter(|line| !matches!(line, Line::Manager { .. })).for_each(|line| self.left.apply(line));
        if let Some((_, _, made)) = &mut self.left.manager {
            *made |= made_dir;
        }
        (self.journal, self.lines) = write_anew(&self.dir, &self.left)?;
        self.lock = lock;
        Ok(true)
    }

    /// Whether the lock in the directory is this manager's.
    fn has_dir(&self) -> bool {
        let there = fs::symlink_metadata(self.dir.join(LOCK));
        let ours = self.lock.file().metadata();
        there.is_ok_and(|there| ours.is_ok_and(|ours| is_same(&there, &ours)))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Notes the process of an NF, right after its start. Ignores one that has ended already.
    ///
    /// # Errors
    /// [`RecordError::System`], for example if the disk is full.
    pub fn started(&mut self, nf: &str, pid: Pid) -> Result<(), RecordError> {
        match self.proc.identity(pid) {
            Some(process) => self.note(Line::Started { nf: nf.into(), process }),
            None => Ok(()),
        }
    }

    /// Notes that a process has ended. Call it after the process was collected.
    ///
    /// # Errors
    /// As [`Record::started`].
    pub fn ended(&mut self, pid: Pid) -> Result<(), RecordError> {
        let pid = pid.as_raw_nonzero().get();
        if self.left.processes.contains_key(&pid) { self.note(Line::Ended { pid }) } else { Ok(()) }
    }

    /// Notes a thing that is about to be made. `path` is absolute.
    ///
    /// # Errors
    /// As [`Record::started`]; then do not make it.
    pub fn made(&mut self, thing: Thing, path: &Path) -> Result<(), RecordError> {
        if !path.is_absolute() {
            return Err(system("record", path)(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path")));
        }
        if self.left.things.get(path) == Some(&thing) {
            return Ok(());
        }
        self.note(Line::Made { thing, path: path.into() })
    }

    /// Notes that a thing was removed.
    ///
    /// # Errors
    /// As [`Record::started`].
    pub fn removed(&mut self, path: &Path) -> Result<(), RecordError> {
        if self.left.things.contains_key(path) { self.note(Line::Removed { path: path.into() }) } else { Ok(()) }
    }

    /// Notes a setting that is about to be changed, and the text that restores it.
    ///
    /// It is a file below /proc or /sys. Of several changes the first counts.
    ///
    /// # Errors
    /// As [`Record::started`]; then do not change it.
    pub fn changed(&mut self, path: &Path, was: &str) -> Result<(), RecordError> {
        if self.left.settings.contains_key(path) {
            return Ok(());
        }
        self.note(Line::Changed { path: path.into(), was: was.into() })
    }

    /// Notes that a setting has its former value again.
    ///
    /// # Errors
    /// As [`Record::started`].
    pub fn restored(&mut self, path: &Path) -> Result<(), RecordError> {
        if self.left.settings.contains_key(path) { self.note(Line::Restored { path: path.into() }) } else { Ok(()) }
    }

    /// The orderly end: undoes what is still recorded, and removes the record and the lock.
    ///
    /// Removes the directory too, if a manager made it and it is empty. The report is empty after
    /// an orderly stop. If something could not be undone, the record stays for the next manager.
    ///
    /// # Errors
    /// [`RecordError::System`].
    pub fn finish(mut self) -> Result<CleanedUp, RecordError> {
        let mut report = CleanedUp::default();
        let has_dir = self.has_dir();
        if !has_dir {
            // The present directory is another manager's.
            let dir = &self.dir;
            self.left.things.retain(|path, _| !path.starts_with(dir));
        }
        undo(&mut self.left, &self.proc, &mut report);
        if !has_dir {
            return Ok(report);
        }
        if self.left.len() > 0 {
            write_anew(&self.dir, &self.left)?;
            return Ok(report);
        }
        let made_dir = self.left.manager.as_ref().is_some_and(|(_, _, made)| *made);
        // The lock's file goes last, and while the lock is held: see take_lock.
        for name in [RECORD, LOCK] {
            let path = self.dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(system("remove", &path)(error)),
                _ => {}
            }
        }
        if made_dir {
            match fs::remove_dir(&self.dir) {
                Err(error) if !matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => {
                    return Err(system("remove", &self.dir)(error));
                }
                _ => {}
            }
        }
        Ok(report)
    }

    fn note(&mut self, line: Line) -> Result<(), RecordError> {
        let path = self.dir.join(RECORD);
        self.journal.write_all(&encode(&line).map_err(system("record something in", &path))?).map_err(system("write", &path))?;
        self.left.apply(line);
        self.lines += 1;
        if self.lines > COMPACT_LINES && self.lines > 4 * self.left.len() {
            (self.journal, self.lines) = write_anew(&self.dir, &self.left)?;
        }
        Ok(())
    }
}

fn system(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
    move |source| RecordError::System { doing, path: path.into(), source }
}

/// Encodes one line for a single write.
///
/// The newline comes first: if a full disk truncates a line, the next line does not continue it.
fn encode(line: &Line) -> io::Result<Vec<u8>> {
    let mut bytes = vec![b'\n'];
    serde_json::to_writer(&mut bytes, line)?;
    Ok(bytes)
}

/// Writes a whole record beside the old one, renames it into place, and opens it for appending.
fn write_anew(dir: &Path, left: &Left) -> Result<(File, usize), RecordError> {
    let (path, next) = (dir.join(RECORD), dir.join("record.new"));
    let lines = left.lines();
    let bytes = lines.iter().map(encode).collect::<io::Result<Vec<_>>>().map_err(system("write", &next))?.concat();
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(system("remove", &next)(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&next).map_err(system("make", &next))?;
    file.write_all(&bytes).map_err(system("write", &next))?;
    fs::rename(&next, &path).map_err(system("replace", &path))?;
    Ok((file, lines.len()))
}

/// Makes a directory that only this user can write to, or replace. Returns whether it was missing.
fn make_dir(dir: &Path) -> Result<bool, RecordError> {
    trust_way_to(dir)?;
    let made = match DirBuilder::new().mode(0o755).create(dir) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(system("make", dir)(error)),
    };
    check_dir(dir)?;
    Ok(made)
}

/// Refuses a directory, given by its absolute path, that another user could write to or replace.
///
/// # Errors
/// [`RecordError::Untrusted`], whose advice is about a runtime directory; [`RecordError::System`]
/// where there is none.
pub fn check_dir(dir: &Path) -> Result<(), RecordError> {
    trust_way_to(dir)?;
    let metadata = fs::symlink_metadata(dir).map_err(system("read", dir))?;
    if !metadata.is_dir() {
        return Err(RecordError::Untrusted { dir: dir.into(), what: "is no directory".into() });
    }
    trust(dir, &metadata)
}

/// Whether the lock in a directory names this process.
pub fn is_ours(dir: &Path) -> bool {
    let holder = fs::read_to_string(dir.join(LOCK));
    holder.is_ok_and(|text| text.trim().parse() == Ok(std::process::id()))
}

/// Reads the record in a directory; empty if there is none.
fn read_record(dir: &Path) -> Result<Left, RecordError> {
    let path = dir.join(RECORD);
    match fs::symlink_metadata(&path) {
        Ok(metadata) => {
            trust(&path, &metadata)?;
            // Invalid UTF-8 damages one line, not the others.
            Ok(Left::parse(&String::from_utf8_lossy(&fs::read(&path).map_err(system("read", &path))?)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Left::default()),
        Err(error) => Err(system("read", &path)(error)),
    }
}

fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Refuses a path that another user could have written.
fn trust(path: &Path, metadata: &fs::Metadata) -> Result<(), RecordError> {
    let own = rustix::process::geteuid().as_raw();
    let untrusted = |what: String| Err(RecordError::Untrusted { dir: path.into(), what });
    if metadata.uid() != own && metadata.uid() != 0 {
        return untrusted(format!("belongs to user {}", metadata.uid()));
    }
    if metadata.mode() & 0o022 != 0 {
        return untrusted(format!("may be written by others (mode {:o})", metadata.mode() & 0o7777));
    }
    Ok(())
}

/// Refuses a directory that another user could replace: through a folder above it that is theirs,
/// or writable to them and not sticky, or through a link that is theirs.
fn trust_way_to(dir: &Path) -> Result<(), RecordError> {
    let own = rustix::process::geteuid().as_raw();
    let above = dir.parent().unwrap_or(dir);
    // The path as written, with links, and as resolved.
    let real = fs::canonicalize(above).unwrap_or_default();
    for folder in above.ancestors().chain(real.ancestors()) {
        // A missing folder is reported when the directory cannot be made.
        let Ok(metadata) = fs::symlink_metadata(folder) else { continue };
        let untrusted = |what: String| Err(RecordError::Untrusted { dir: dir.into(), what });
        let shown = folder.display();
        if metadata.uid() != own && metadata.uid() != 0 {
            return untrusted(format!("is below {shown}, which belongs to user {}", metadata.uid()));
        }
        let mode = metadata.mode() & 0o7777;
        if metadata.is_dir() && mode & 0o022 != 0 && mode & libc::S_ISVTX == 0 {
            return untrusted(format!("is below {shown}, which may be written by others (mode {mode:o})"));
        }
    }
    Ok(())
}

/// Takes the lock of a directory, for as long as the result lives.
fn take_lock(dir: &Path) -> Result<Lock, RecordError> {
    let path = dir.join(LOCK);
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&path).map_err(system("open", &path))?;
        // A process that can open the file could hold the lock after the manager is gone. An
        // earlier version may have left it open to all.
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(system("close to others", &path))?;
        let lock = match file.try_clone().and_then(Lock::take) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Err(RecordError::Busy { dir: dir.into(), pid: text.trim().parse().ok() });
            }
            Err(error) => return Err(system("lock", &path)(error)),
        };
        // A manager that ended just now may have removed the file between our open and our lock;
        // then a third may have made a new one.
        let ours = file.metadata().map_err(system("read", &path))?;
        let there = fs::symlink_metadata(&path);
        if there.is_ok_and(|there| is_same(&there, &ours)) {
            file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(system("write", &path))?;
            return Ok(lock);
        }
    }
}

/// Undoes all that is left: processes first, since they use the rest, and settings last, since a
/// cgroup controller cannot be disabled while a child cgroup has it. What fails stays in `left`.
fn undo(left: &mut Left, proc: &Proc, report: &mut CleanedUp) {
    kill_all(left, proc, report);
    let things = std::mem::take(&mut left.things);
    for (path, thing) in things.into_iter().rev() {
        match remove(thing, &path, proc) {
            Ok(true) => report.removed.push(path),
            Ok(false) => {}
            Err(error) => {
                report.failed.push(format!("removing {}: {error}", path.display()));
                left.things.insert(path, thing);
            }
        }
    }
    let settings = std::mem::take(&mut left.settings);
    for (path, was) in settings.into_iter().rev() {
        match OpenOptions::new().write(true).truncate(true).open(&path).and_then(|mut file| file.write_all(was.as_bytes())) {
            Ok(()) => report.restored.push(path),
            // The object of the setting is gone.
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                report.failed.push(format!("writing {was:?} to {}: {error}", path.display()));
                left.settings.insert(path, was);
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound) || error.raw_os_error() == Some(libc::ENODEV)
}

/// Kills all processes, then waits for them.
fn kill_all(left: &mut Left, proc: &Proc, report: &mut CleanedUp) {
    let mut dying = Vec::new();
    let own = std::process::id() as i32;
    for (pid, (nf, process)) in std::mem::take(&mut left.processes).into_iter().filter(|(pid, _)| *pid != own) {
        let killed = process.open(proc).and_then(|pidfd| {
            pidfd.as_ref().map_or(Ok(()), |pidfd| process::kill_group(pidfd.as_fd()))?;
            Ok(pidfd)
        });
        match killed {
            Ok(Some(pidfd)) => dying.push((pid, nf, process, pidfd)),
            Ok(None) => {}
            Err(error) => {
                report.failed.push(format!("killing {nf} (pid {pid}): {error}"));
                left.processes.insert(pid, (nf, process));
            }
        }
    }
    let end = Instant::now() + PATIENCE;
    for (pid, nf, process, pidfd) in dying {
        let rest = end.saturating_duration_since(Instant::now()).as_millis() as u64;
        if process::wait_readable(pidfd.as_fd(), Some(rest)) == Ok(true) {
            // A child of this process (at the end) must be collected here.
            let _ = process::reap(pidfd.as_fd());
            report.killed.push((nf, pid));
        } else {
            report.failed.push(format!("killing {nf} (pid {pid}): it does not end"));
            left.processes.insert(pid, (nf, process));
        }
    }
}

/// Removes a thing; returns whether it was there.
fn remove(thing: Thing, path: &Path, proc: &Proc) -> io::Result<bool> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if is_gone(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    let kind = metadata.file_type();
    let is_it = match thing {
        Thing::Socket => kind.is_socket(),
        Thing::File => kind.is_file() || kind.is_symlink(),
        Thing::Netns => kind.is_file(),
        Thing::Directory | Thing::Cgroup | Thing::Container => kind.is_dir(),
    };
    if !is_it {
        return Err(io::Error::other("something else has its name; look, and remove it by hand"));
    }
    let removed = match thing {
        Thing::Socket | Thing::File => fs::remove_file(path),
        Thing::Directory => fs::remove_dir(path),
        Thing::Cgroup => remove_cgroup(path, proc),
        Thing::Container => container::remove_folder(path),
        Thing::Netns => Netns::open(path).and_then(|ns| ns.kill_members(proc)).and_then(|()| netns::unname(path)).map(drop),
    };
    match removed {
        Err(error) if is_gone(&error) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Kills the processes in and below a cgroup of ours, and removes it. Until the last process is
/// gone the kernel answers EBUSY.
fn remove_cgroup(path: &Path, proc: &Proc) -> io::Result<()> {
    let members = || -> Vec<Pid> {
        let mut pids = Vec::new();
        // An unreadable cgroup is not empty, and is not removed.
        let _ = processes_below(path, &mut pids);
        pids.into_iter().filter_map(Pid::from_raw).collect()
    };
    let own = std::process::id() as i32;
    let end = Instant::now() + PATIENCE;
    loop {
        for pid in members().into_iter().filter(|pid| pid.as_raw_nonzero().get() != own) {
            let Some(identity) = proc.identity(pid) else { continue };
            let Ok(Some(pidfd)) = identity.open(proc) else { continue };
            // In this order: a member with this pid after opening is the pidfd's process.
            if members().contains(&pid) {
                process::send_signal(pidfd.as_fd(), rustix::process::Signal::KILL)?;
                process::wait_readable(pidfd.as_fd(), Some(end.saturating_duration_since(Instant::now()).as_millis() as u64))?;
            }
        }
        match remove_folders(path) {
            // The kernel does not signal when it has released the last member: retry soon.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// Removes an empty cgroup after the empty cgroups below it.
fn remove_folders(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            match remove_folders(&entry.path()) {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{self, Class};
    use crate::skip::skip;
    use rustix::process::getpid;
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering};

    const DIR: &str = "SLUICE_TEST_DIR";
    const CGROUP: &str = "SLUICE_TEST_CGROUP";

    fn open(dir: &Path) -> (Record, CleanedUp) {
        Record::open(dir, Proc::default()).unwrap()
    }

    fn sleeper() -> Child {
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap()
    }

    fn runs(child: &mut Child) -> bool {
        child.try_wait().unwrap().is_none()
    }

    fn own_boot() -> String {
        Proc::default().boot_id().unwrap()
    }

    /// Writes a record as a manager would have left it.
    fn leave(dir: &Path, boot: &str, lines: &[Line]) {
        let manager = Line::Manager { process: Identity { pid: 4_000_000, start: 1 }, boot: boot.into(), made_dir: false };
        let text = std::iter::once(&manager).chain(lines).map(|line| encode(line).unwrap()).collect::<Vec<_>>().concat();
        fs::write(dir.join(RECORD), text).unwrap();
    }

    #[test]
    fn a_directory_has_one_manager_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        let (first, report) = open(&dir);
        assert!(report.is_nothing());
        assert_eq!(report.to_string(), "nothing was left to clean up");
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o755);
        let error = Record::open(&dir, Proc::default()).unwrap_err().to_string();
        let pid = std::process::id();
        assert_eq!(
            error,
            format!("another sluiced (pid {pid}) runs in {}; stop it, or give this one another runtime_dir", dir.display())
        );
        drop(first);
        open(&dir).0.finish().unwrap();
        assert!(!dir.exists(), "made by a manager, removed by a manager");
    }

    #[test]
    fn nobody_else_may_put_another_directory_in_its_place() {
        let parent = tempfile::tempdir().unwrap();
        let inner = parent.path().join("inner");
        let dir = inner.join("run");
        fs::create_dir(&inner).unwrap();
        let refused = |dir: &Path| Record::open(dir, Proc::default()).unwrap_err().to_string();
        let mode = |mode: u32| fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        assert!(refused(&dir).contains("inner, which may be written by others (mode 777)"), "{}", refused(&dir));
        assert!(!dir.exists(), "nothing was made");
        // Through a link, too.
        std::os::unix::fs::symlink(&inner, parent.path().join("link")).unwrap();
        assert!(refused(&parent.path().join("link/run")).contains("inner, which may be"));
        // As /tmp is.
        mode(0o1777);
        open(&dir).0.finish().unwrap();
        mode(0o755);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&inner, Some(65_534), None).unwrap();
            assert!(refused(&dir).contains("inner, which belongs to user 65534: "), "{}", refused(&dir));
        } else {
            skip("only root can give a folder to another user");
        }
    }

    #[test]
    fn others_can_neither_read_the_record_nor_hold_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        // As an earlier version has left them.
        for name in [LOCK, RECORD] {
            fs::write(dir.path().join(name), "").unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let (record, _) = open(dir.path());
        for name in [LOCK, RECORD] {
            assert_eq!(dir.path().join(name).metadata().unwrap().mode() & 0o777, 0o600, "{name}");
        }
        record.finish().unwrap();
    }

    #[test]
    fn a_directory_that_somebody_removes_is_there_again_with_all_that_was_recorded() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        let (mut record, _) = open(&dir);
        record.made(Thing::File, &parent.path().join("log")).unwrap();
        assert!(!record.keep().unwrap(), "all is there");
        fs::remove_dir_all(&dir).unwrap();
        assert!(record.keep().unwrap());
        assert!(!record.keep().unwrap(), "and is seen to be there");
        let busy = Record::open(&dir, Proc::default()).unwrap_err();
        assert!(matches!(busy, RecordError::Busy { .. }), "{busy}");
        fs::write(parent.path().join("log"), "").unwrap();
        assert_eq!(record.finish().unwrap().removed, [parent.path().join("log")]);
        assert!(!dir.exists());
    }

    #[test]
    fn a_directory_that_another_manager_has_by_now_is_left_to_it() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        let (mut first, _) = open(&dir);
        fs::remove_dir_all(&dir).unwrap();
        let (mut second, _) = open(&dir);
        second.made(Thing::File, &parent.path().join("log")).unwrap();
        let refused = first.keep().unwrap_err();
        assert!(matches!(refused, RecordError::Busy { .. }), "{refused}");
        // It is killed; the first manager undoes its entries.
        let files = || fs::read_dir(&dir).unwrap().count();
        assert_eq!(files(), 2, "lock and record");
        drop(second);
        fs::write(parent.path().join("log"), "").unwrap();
        assert!(first.keep().unwrap());
        assert_eq!(first.finish().unwrap().removed, [parent.path().join("log")]);
    }

    #[test]
    fn the_end_of_a_manager_that_has_lost_its_directory_leaves_it_to_the_other() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        let (mut first, _) = open(&dir);
        first.made(Thing::File, &dir.join("control.sock")).unwrap();
        first.made(Thing::File, &parent.path().join("log")).unwrap();
        fs::write(parent.path().join("log"), "").unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let (second, _) = open(&dir);
        fs::write(dir.join("control.sock"), "").unwrap();
        assert_eq!(first.finish().unwrap().removed, [parent.path().join("log")]);
        assert!([LOCK, RECORD, "control.sock"].iter().all(|name| dir.join(name).exists()));
        fs::remove_file(dir.join("control.sock")).unwrap();
        second.finish().unwrap();
    }

    #[test]
    fn a_record_that_somebody_removes_is_written_again() {
        let parent = tempfile::tempdir().unwrap();
        let (mut record, _) = open(parent.path());
        record.made(Thing::File, &parent.path().join("log")).unwrap();
        fs::remove_file(parent.path().join(RECORD)).unwrap();
        assert!(record.keep().unwrap() && !record.keep().unwrap());
        assert!(fs::read_to_string(parent.path().join(RECORD)).unwrap().contains("log"));
        record.finish().unwrap();
    }

    #[test]
    fn only_what_a_manager_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), "").unwrap();
        assert!(open(dir.path()).0.finish().unwrap().is_nothing());
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["precious"]);

        let made = dir.path().join("run");
        let (record, _) = open(&made);
        fs::write(made.join("precious"), "").unwrap();
        record.finish().unwrap();
        assert!(made.join("precious").exists());
    }

    #[test]
    fn what_a_dead_manager_left_is_undone_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        let path = |name: &str| parent.path().join(name);
        let (mut record, _) = open(&dir);
        let mut nfs = [sleeper(), sleeper()];
        record.started("ids.0", Pid::from_child(&nfs[0])).unwrap();
        record.started("ids.1", Pid::from_child(&nfs[1])).unwrap();
        nfs[1].kill().unwrap();
        nfs[1].wait().unwrap();
        record.ended(Pid::from_child(&nfs[1])).unwrap();

        for (thing, name) in [
            (Thing::Socket, "nf.sock"),
            (Thing::File, "log"),
            (Thing::Directory, "logs"),
            (Thing::File, "logs/ids.0"),
            (Thing::File, "never-made"),
            (Thing::File, "removed"),
        ] {
            record.made(thing, &path(name)).unwrap();
        }
        let _listener = UnixListener::bind(path("nf.sock")).unwrap();
        fs::create_dir(path("logs")).unwrap();
        for name in ["log", "logs/ids.0", "removed", "setting", "setting-put-back"] {
            fs::write(path(name), "changed").unwrap();
        }
        record.removed(&path("removed")).unwrap();
        record.changed(&path("setting"), "950000").unwrap();
        record.changed(&path("setting"), "a later value").unwrap();
        record.changed(&path("log"), "of a thing that goes, and goes with it").unwrap();
        record.changed(&path("setting-put-back"), "x").unwrap();
        record.restored(&path("setting-put-back")).unwrap();
        // As a kill leaves it: no destructor undoes anything.
        drop(record);

        let (record, report) = open(&dir);
        assert_eq!(report.manager, Some(std::process::id() as i32));
        assert_eq!(report.killed, [("ids.0".to_owned(), nfs[0].id() as i32)]);
        assert_eq!(Proc::default().identity(Pid::from_child(&nfs[0])), None);
        assert_eq!(report.removed, [path("nf.sock"), path("logs/ids.0"), path("logs"), path("log")]);
        assert_eq!(report.restored, [path("setting")]);
        assert_eq!(report.failed, Vec::<String>::new());
        assert_eq!(fs::read_to_string(path("setting")).unwrap(), "950000");
        assert_eq!(fs::read_to_string(path("setting-put-back")).unwrap(), "changed");
        assert!(path("removed").exists(), "it was no longer the manager's");
        let text = report.to_string();
        assert!(text.starts_with(&format!("left by the manager with pid {}: killed ids.0 (pid", std::process::id())), "{text}");
        drop(record);
        // Nothing is undone twice, and it is still known that a manager made the directory.
        let (record, report) = open(&dir);
        assert!(report.is_nothing(), "{report}");
        record.finish().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn what_cannot_be_undone_is_reported_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (full, file) = (dir.path().join("full"), dir.path().join("file"));
        fs::create_dir(&full).unwrap();
        fs::create_dir(&file).unwrap();
        fs::write(full.join("precious"), "").unwrap();
        let (mut record, _) = open(dir.path());
        record.made(Thing::Directory, &full).unwrap();
        record.made(Thing::File, &file).unwrap();
        assert!(record.made(Thing::File, Path::new("relative")).is_err());
        let report = record.finish().unwrap();
        assert_eq!(report.failed.len(), 2, "{report}");
        assert!(report.failed[0].contains("full: Directory not empty"), "{report}");
        assert!(report.failed[1].contains("something else has its name"), "{report}");

        fs::remove_file(full.join("precious")).unwrap();
        fs::remove_dir(&file).unwrap();
        let (record, report) = open(dir.path());
        assert_eq!((report.removed, report.failed), (vec![full], vec![]));
        assert!(record.finish().unwrap().is_nothing());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_reused_pid_and_another_boot_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut stranger = sleeper();
        let process = Proc::default().identity(Pid::from_child(&stranger)).unwrap();
        let reused = Identity { start: process.start - 1, ..process };
        leave(dir.path(), &own_boot(), &[Line::Started { nf: "ids.0".into(), process: reused }]);
        assert!(open(dir.path()).1.is_nothing());
        assert!(runs(&mut stranger));

        let (socket, cgroup, setting) = (dir.path().join("nf.sock"), dir.path().join("cgroup"), dir.path().join("setting"));
        let _listener = UnixListener::bind(&socket).unwrap();
        fs::create_dir(&cgroup).unwrap();
        fs::write(&setting, "this boot's").unwrap();
        let lines = [
            Line::Started { nf: "ids.0".into(), process },
            Line::Made { thing: Thing::Socket, path: socket.clone() },
            Line::Made { thing: Thing::Cgroup, path: cgroup.clone() },
            Line::Changed { path: setting.clone(), was: "another boot's".into() },
        ];
        leave(dir.path(), "another boot", &lines);
        let (_, report) = open(dir.path());
        assert_eq!((report.killed.len(), report.removed, report.restored.len()), (0, vec![socket], 0));
        assert!(runs(&mut stranger) && cgroup.exists());
        assert_eq!(fs::read_to_string(&setting).unwrap(), "this boot's");

        // A process that matches exactly is killed.
        leave(dir.path(), &own_boot(), &lines[..1]);
        assert_eq!(open(dir.path()).1.killed.len(), 1);
    }

    #[test]
    fn a_record_that_others_could_write_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let message = || Record::open(dir.path(), Proc::default()).unwrap_err().to_string();
        leave(dir.path(), &own_boot(), &[]);
        fs::set_permissions(dir.path().join(RECORD), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(message().contains("record may be written by others (mode 666)"), "{}", message());
        fs::remove_file(dir.path().join(RECORD)).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(message().contains("may be written by others (mode 1777): what is written there"), "{}", message());
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(dir.path(), Some(4242), None).unwrap();
            assert!(message().contains("belongs to user 4242"), "{}", message());
        } else {
            skip("only root can give a folder to another user");
        }
    }

    #[test]
    fn a_place_that_cannot_be_is_refused_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let message = |name: &str| Record::open(&dir.path().join(name), Proc::default()).unwrap_err().to_string();
        assert!(
            message("missing/run").ends_with("make its parent folder, or choose another runtime_dir"),
            "{}",
            message("missing/run")
        );
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(message("file").contains("is no directory"), "{}", message("file"));
    }

    #[test]
    fn damaged_lines_harm_only_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "").unwrap();
        leave(dir.path(), &own_boot(), &[Line::Made { thing: Thing::File, path: log.clone() }]);
        let mut file = OpenOptions::new().append(true).open(dir.path().join(RECORD)).unwrap();
        file.write_all(b"\n\xff\xfe\n{\"unknown\":1}\n\n{\"removed\":{\"path\":\"/").unwrap();
        assert_eq!(open(dir.path()).1.removed, [log]);
    }

    #[test]
    fn a_thousand_starts_are_a_thousand_short_writes() {
        let dir = tempfile::tempdir().unwrap();
        let (mut record, _) = open(dir.path());
        let path = dir.path().join(RECORD);
        let inode = path.metadata().unwrap().ino();
        let mut lengths = vec![path.metadata().unwrap().len()];
        for i in 0..1000 {
            record.made(Thing::File, &dir.path().join(format!("log.{i:04}"))).unwrap();
            lengths.push(path.metadata().unwrap().len());
        }
        assert_eq!(path.metadata().unwrap().ino(), inode, "never written anew");
        assert!(lengths.windows(2).all(|pair| pair[1] - pair[0] == lengths[1] - lengths[0]));
        assert_eq!(Left::parse(&fs::read_to_string(&path).unwrap()), record.left);
    }

    #[test]
    fn restarts_for_ever_do_not_fill_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (mut record, _) = open(dir.path());
        record.made(Thing::File, &dir.path().join("log")).unwrap();
        let path = dir.path().join(RECORD);
        let mut longest = 0;
        for _ in 0..3000 {
            record.started("ids.0", getpid()).unwrap();
            record.ended(getpid()).unwrap();
            longest = longest.max(path.metadata().unwrap().len());
        }
        // A line is about 60 bytes.
        assert!(longest < COMPACT_LINES as u64 * 100, "{longest}");
        assert_eq!(Left::parse(&fs::read_to_string(&path).unwrap()), record.left);
        assert_eq!(record.left.len(), 1);
    }

    #[test]
    fn the_lock_survives_managers_that_come_and_go() {
        let parent = tempfile::tempdir().unwrap();
        // Kept, so that only the lock's file comes and goes.
        let dir = parent.path();
        let holders = AtomicUsize::new(0);
        let compete = || {
            let mut held = 0;
            while held < 30 {
                match Record::open(dir, Proc::default()) {
                    Ok((record, _)) => {
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                        held += 1;
                        holders.fetch_sub(1, Ordering::SeqCst);
                        record.finish().unwrap();
                    }
                    Err(RecordError::Busy { .. }) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(compete))));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }

    /// Makes a cgroup of this test, of the host's version; None where that is not allowed.
    fn make_cgroup(name: &str) -> Option<PathBuf> {
        let name = format!("sluice-{name}-{}", std::process::id());
        let made = |root: &str| {
            let path = Path::new(root).join(&name);
            fs::create_dir(&path).ok().filter(|()| path.join("cgroup.procs").exists()).map(|()| path)
        };
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids"];
        roots.iter().filter(|root| Path::new(root).join("cgroup.procs").exists()).find_map(|root| made(root))
    }

    /// Not a test itself: the manager that [`a_manager_killed_at_work_is_cleaned_up_after`] kills.
    #[test]
    fn manager_to_be_killed() {
        let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
        let (mut record, _) = open(&dir);
        let socket = dir.join("nf.sock");
        record.made(Thing::Socket, &socket).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let cgroup = std::env::var_os(CGROUP).map(PathBuf::from);
        // Children that survive this process, like those that change their user: the hard case.
        let mut children: Vec<Child> = (0..3).map(|_| sleeper()).collect();
        for (i, child) in children.iter().enumerate() {
            record.started(&format!("ids.{i}"), Pid::from_child(child)).unwrap();
        }
        if let Some(cgroup) = &cgroup {
            record.made(Thing::Cgroup, cgroup).unwrap();
            // A child of an NF in a cgroup of its own: in the cgroup, but not in the record.
            let child = sleeper();
            let below = cgroup.join("below");
            fs::create_dir(&below).unwrap();
            // The tests may inherit a real-time class, whose processes cannot enter these cgroups.
            class::set(Path::new("/"), Pid::from_child(&child), Class::Other).unwrap();
            fs::write(below.join("cgroup.procs"), child.id().to_string()).unwrap();
            children.push(child);
        }
        for child in &children {
            println!("child {}", child.id());
        }
        println!("ready child");
        children[0].wait().unwrap();
    }

    #[test]
    fn a_manager_killed_at_work_is_cleaned_up_after() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        let cgroup = make_cgroup("record");
        if cgroup.is_none() {
            skip("no cgroup can be made here: the manager is killed without one");
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "record::tests::manager_to_be_killed", "--nocapture"]).env(DIR, &dir);
        if let Some(cgroup) = &cgroup {
            command.env(CGROUP, cgroup);
        }
        let mut manager = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(manager.stdout.take().unwrap()).lines().map_while(Result::ok);
        let words = lines.filter(|line| line.contains("child")).take_while(|line| !line.contains("ready"));
        let pids: Vec<Pid> = words.filter_map(|line| Pid::from_raw(line.split("child ").nth(1)?.trim().parse().ok()?)).collect();
        assert_eq!(pids.len(), 3 + usize::from(cgroup.is_some()));
        let pidfds: Vec<OwnedFd> = pids.iter().map(|pid| process::pidfd_open(*pid).unwrap()).collect();
        assert!(
            matches!(Record::open(&dir, Proc::default()), Err(RecordError::Busy { pid: Some(pid), .. }) if pid == manager.id() as i32)
        );

        manager.kill().unwrap();
        manager.wait().unwrap();
        for pidfd in &pidfds {
            assert_eq!(process::wait_readable(pidfd.as_fd(), Some(0)), Ok(false), "they outlive the manager");
        }
        let (record, report) = open(&dir);
        assert_eq!(report.manager, Some(manager.id() as i32));
        assert_eq!(report.failed, Vec::<String>::new());
        assert_eq!(report.killed.len(), 3);
        for pidfd in &pidfds {
            assert_eq!(process::wait_readable(pidfd.as_fd(), Some(0)), Ok(true));
        }
        assert_eq!(report.removed.len(), 1 + usize::from(cgroup.is_some()), "{report}");
        assert!(!dir.join("nf.sock").exists());
        assert!(cgroup.is_none_or(|cgroup| !cgroup.exists()));
        assert!(record.finish().unwrap().is_nothing());
        assert!(!dir.exists());
    }
}
