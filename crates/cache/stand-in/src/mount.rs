//! Serves the kernel's side at a mount point.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};

use crate::kernel::{Kernel, NodeKind};
use crate::machine::Machine;
use crate::skip::skip;

/// Nothing is cached between two requests.
const NOW: Duration = Duration::ZERO;

/// Paths and their inode numbers. A folder that is made again gets a new number.
#[derive(Default)]
struct Inodes {
    paths: HashMap<u64, String>,
    numbers: HashMap<String, u64>,
    last: u64,
}

impl Inodes {
    fn new() -> Self {
        let root = INodeNo::ROOT.0;
        Self { paths: HashMap::from([(root, String::new())]), numbers: HashMap::from([(String::new(), root)]), last: root }
    }

    fn of(&mut self, path: &str) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        self.last += 1;
        self.numbers.insert(path.into(), self.last);
        self.paths.insert(self.last, path.into());
        self.last
    }

    fn forget(&mut self, path: &str) {
        let below = format!("{path}/");
        self.numbers.retain(|known, _| known != path && !known.starts_with(&below));
    }
}

struct Mounted {
    kernel: Arc<Mutex<Kernel>>,
    inodes: Mutex<Inodes>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join(folder: &str, name: &OsStr) -> Option<String> {
    let name = name.to_str()?;
    Some(if folder.is_empty() { name.into() } else { format!("{folder}/{name}") })
}

impl Mounted {
    fn path(&self, ino: INodeNo) -> Option<String> {
        locked(&self.inodes).paths.get(&ino.0).cloned()
    }

    fn below(&self, parent: INodeNo, name: &OsStr) -> Option<String> {
        join(&self.path(parent)?, name)
    }

    fn attr(&self, path: &str) -> Option<FileAttr> {
        let kind = locked(&self.kernel).look(path)?;
        let ino = INodeNo(locked(&self.inodes).of(path));
        let (kind, perm) = match kind {
            NodeKind::Folder(_) => (FileType::Directory, 0o755),
            NodeKind::File { writable: true } => (FileType::RegularFile, 0o644),
            NodeKind::File { writable: false } => (FileType::RegularFile, 0o444),
        };
        let at = UNIX_EPOCH;
        let times = (at, at, at, at);
        Some(FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: times.0,
            mtime: times.1,
            ctime: times.2,
            crtime: times.3,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn entry(&self, path: Option<String>, reply: ReplyEntry) {
        match path.and_then(|path| self.attr(&path)) {
            Some(attr) => reply.entry(&NOW, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }
}

impl Filesystem for Mounted {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.below(parent, name), reply);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(ino).and_then(|path| self.attr(&path)) {
            Some(attr) => reply.attr(&NOW, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    // A shell's `>` truncates the file first, which changes nothing here, as in the kernel.
    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.getattr(req, ino, fh, reply);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Past the page cache: a write arrives as it was made, and each read is a new request.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(path) = self.path(ino) else { return reply.error(Errno::ENOENT) };
        match locked(&self.kernel).read(&path) {
            Ok(text) => {
                let bytes = text.as_bytes();
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let to = from.saturating_add(size as usize).min(bytes.len());
                reply.data(&bytes[from..to]);
            }
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(path) = self.path(ino) else { return reply.error(Errno::ENOENT) };
        match locked(&self.kernel).write(&path, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn mkdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        let Some(path) = self.below(parent, name) else { return reply.error(Errno::ENOENT) };
        let made = locked(&self.kernel).mkdir(&path);
        match made {
            Ok(()) => self.entry(Some(path), reply),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(path) = self.below(parent, name) else { return reply.error(Errno::ENOENT) };
        match locked(&self.kernel).rmdir(&path) {
            Ok(()) => {
                locked(&self.inodes).forget(&path);
                reply.ok();
            }
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let path = self.path(ino);
        let Some(NodeKind::Folder(names)) = path.as_ref().and_then(|path| locked(&self.kernel).look(path)) else {
            return reply.error(Errno::ENOENT);
        };
        let own = [(".".to_string(), true), ("..".to_string(), true)];
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, (name, folder)) in own.into_iter().chain(names).enumerate().skip(from) {
            let below = path.as_deref().and_then(|path| join(path, OsStr::new(&name))).unwrap_or_default();
            let number = if name.starts_with('.') { ino.0 } else { locked(&self.inodes).of(&below) };
            let kind = if folder { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(number), i as u64 + 1, kind, &name) {
                break;
            }
        }
        reply.ok();
    }
}

/// A mounted stand-in; unmounted on drop.
pub struct StandIn {
    kernel: Arc<Mutex<Kernel>>,
    session: Option<BackgroundSession>,
    folder: tempfile::TempDir,
}

impl StandIn {
    /// Mounts a stand-in.
    ///
    /// # Errors
    /// The host has no `/dev/fuse`, or this user may not mount.
    pub fn mount(machine: Machine) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("sluice-resctrl-").tempdir()?;
        let kernel = Arc::new(Mutex::new(Kernel::new(machine)));
        let files = Mounted { kernel: kernel.clone(), inodes: Mutex::new(Inodes::new()) };
        let mut options = Config::default();
        options.mount_options = vec![MountOption::FSName("resctrl-stand-in".into()), MountOption::DefaultPermissions];
        let session = fuser::spawn_mount(files, folder.path(), &options)?;
        Ok(Self { kernel, session: Some(session), folder })
    }

    /// Mounts a stand-in for a test. None where this host cannot, which skips the test.
    #[track_caller]
    pub fn for_test(machine: Machine) -> Option<Self> {
        match Self::mount(machine) {
            Ok(mounted) => Some(mounted),
            Err(error) => {
                skip(format_args!("no FUSE file system can be mounted here: {error}"));
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn kernel(&self) -> MutexGuard<'_, Kernel> {
        locked(&self.kernel)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(e) = session.umount_and_join()
        {
            eprintln!("{} stays mounted: {e}", self.folder.path().display());
        }
    }
}
