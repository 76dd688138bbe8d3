//! Files of a port, opened and read by a thread of their own.
//!
//! A remote file system may not answer, and the opening thread has other work: it waits up to
//! [`OPENING`]. Files must be regular: a pipe would block, and a symbolic link planted by another
//! user would have another file overwritten. The mode of a new file is 0640: it must not be easier
//! to read than the manager's traffic.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a file system may take for an answer.
pub const OPENING: Duration = Duration::from_secs(5);

/// Bytes of a file that must come within [`OPENING`]. A large file takes longer as a whole, on a
/// disk as well; a file system from which nothing comes is dead.
const PIECE: u64 = 1 << 20;

const FLAGS: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

/// Runs what may wait for a file system in a thread of its own. Waits up to `limit` for the result,
/// and anew each time that `work` calls its argument, which returns whether somebody still waits.
fn apart<T: Send + 'static>(limit: Duration, work: impl FnOnce(&dyn Fn() -> bool) -> Result<T> + Send + 'static) -> Result<T> {
    let (to, from) = channel();
    std::thread::Builder::new().name("pcap-open".into()).spawn(move || {
        let done = work(&|| to.send(None).is_ok());
        // If it took too long, there is no receiver, and files are closed here.
        let _ = to.send(Some(done));
    })?;
    loop {
        match from.recv_timeout(limit) {
            Ok(None) => {}
            Ok(Some(done)) => return done,
            Err(_) => {
                let what = "its file system does not answer; see whether it is mounted from another host";
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
        }
    }
}

fn explained(error: Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => Error::new(error.kind(), "it is a symbolic link, and is not followed; name the file itself"),
        Some(libc::ENXIO) => Error::new(error.kind(), "it is no regular file; name another one"),
        _ => error,
    }
}

/// Whether both are of one file.
pub fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Opens a file to read, without blocking on special files.
pub fn open(path: &Path) -> Result<(File, Metadata)> {
    let path = path.to_path_buf();
    apart(OPENING, move |_| {
        let file = OpenOptions::new().read(true).custom_flags(FLAGS).open(path).map_err(explained)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    })
}

/// Reads a file of `len` bytes as a whole, without what it grows by meanwhile. Each [`PIECE`] must
/// come within `limit`.
pub fn read(file: File, len: u64, limit: Duration) -> Result<Vec<u8>> {
    apart(limit, move |goes_on| {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len as usize)?;
        let mut rest = file.take(len);
        while rest.by_ref().take(PIECE).read_to_end(&mut bytes)? > 0 && goes_on() {}
        Ok(bytes)
    })
}

/// What a path leads to, if to anything.
///
/// # Errors
/// If there is no answer.
pub fn look(path: &Path) -> Result<Option<Metadata>> {
    let path = path.to_path_buf();
    apart(OPENING, move |_| Ok(std::fs::metadata(path).ok()))
}

/// Device and inode of each file that a port writes now.
static WRITTEN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// A file that no other port writes while this lives.
#[derive(Debug)]
struct Claim((u64, u64));

impl Claim {
    /// None if another port has it.
    fn of(metadata: &Metadata) -> Option<Self> {
        let which = (metadata.dev(), metadata.ino());
        WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).insert(which).then(|| Self(which))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// A file to write. Until its port is in use, it keeps what it held. A file that was made for a
/// port that is never in use is removed when this is dropped.
#[derive(Debug)]
pub struct Target {
    pub file: File,
    pub path: PathBuf,
    /// It was made here, and the port is not in use yet.
    pub is_unused: bool,
    /// Where the last whole packet ends; 0: what the file holds is to go.
    pub end: u64,
    claim: Option<Claim>,
}

impl Target {
    /// `end` is 0, or where a file ends that begins as the port would have it.
    pub fn new(file: File, path: PathBuf, is_unused: bool, end: u64) -> Self {
        Self { file, path, is_unused, end, claim: None }
    }

    /// Keeps other ports of this process from writing the file as long as this lives, also by
    /// another path: one whose disk does not answer may have been closed, and not be at its end.
    ///
    /// # Errors
    /// If another port writes it.
    pub fn claim(&mut self) -> Result<()> {
        if self.claim.is_some() {
            return Ok(());
        }
        let metadata = self.file.metadata()?;
        if !metadata.is_file() {
            return Ok(());
        }
        let claim = Claim::of(&metadata).ok_or_else(|| Error::new(ErrorKind::ResourceBusy, "another port writes it"))?;
        if self.end > 0 {
            // Another port may have written since this one was opened.
            self.end = self.file.seek(SeekFrom::End(0))?;
        }
        self.claim = Some(claim);
        Ok(())
    }

    /// Opens a file. One that was missing is made, and begins with `header`: a full disk is noticed
    /// now. `goes_on`: what is written comes behind what the file holds, if that begins with
    /// `header`.
    pub fn open(path: &Path, header: Vec<u8>, goes_on: bool) -> Result<Self> {
        let path = path.to_path_buf();
        apart(OPENING, move |_| {
            let mut options = OpenOptions::new();
            options.read(goes_on).write(true).create_new(true).mode(0o640).custom_flags(FLAGS | libc::O_NOFOLLOW);
            let (file, is_unused) = match options.open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    (options.create_new(false).create(true).open(&path).map_err(explained)?, false)
                }
                made => (made.map_err(explained)?, true),
            };
            let mut this = Self::new(file, path, is_unused, 0);
            let metadata = this.file.metadata()?;
            // /dev/null is allowed: its data is meant to be discarded.
            let is_nowhere = metadata.rdev() == rustix::fs::makedev(1, 3) && metadata.file_type().is_char_device();
            if !metadata.is_file() && !is_nowhere {
                return Err(Error::new(ErrorKind::InvalidInput, "it is no regular file; name another one"));
            }
            if is_unused || is_nowhere {
                this.file.write_all(&header)?;
                this.end = header.len() as u64;
            } else if goes_on {
                let mut first = vec![0; header.len()];
                if this.file.read_exact_at(&mut first, 0).is_ok() && first == header {
                    this.end = this.file.seek(SeekFrom::End(0))?;
                }
            }
            Ok(this)
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Another port may write it by now.
        if !self.is_unused || self.claim().is_err() {
            return;
        }
        // Another file may have its name by now.
        let named = std::fs::symlink_metadata(&self.path);
        if named.is_ok_and(|named| self.file.metadata().is_ok_and(|own| is_same(&own, &named))) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_which_no_more_comes_is_not_waited_for() {
        // A pipe stands for a file on a host that is gone.
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"part").unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let error = read(file, 9, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("does not answer"), "{error}");
    }

    #[test]
    fn a_file_of_several_pieces_is_read_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        let file = File::create(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"end", PIECE + 1).unwrap();
        let (file, metadata) = open(&path).unwrap();
        let bytes = read(file, metadata.len(), OPENING).unwrap();
        assert_eq!((bytes.len() as u64, &bytes[bytes.len() - 3..]), (PIECE + 4, &b"end"[..]));
    }

    #[test]
    fn only_the_file_that_was_made_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("a"), folder.path().join("b"));
        let target = Target::open(&path, b"header".to_vec(), false).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        std::fs::write(&path, "of another").unwrap();
        drop(target);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of another");
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "header");
        std::fs::remove_file(&path).unwrap();
        let target = Target::open(&path, b"header".to_vec(), false).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "header");
        drop(target);
        assert!(!path.exists());
    }
}
