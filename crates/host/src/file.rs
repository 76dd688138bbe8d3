//! Atomic replacement of files, also across crashes; and locks on files and folders.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The lock of a file or folder (`flock`), held until this is dropped.
///
/// Drop unlocks it, and does not only close it: a process that is just being started has a copy of
/// the open file until its program runs, and would hold the lock until then. If this process is
/// killed, the kernel releases the lock.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// The system's: remote file systems may have no locks.
    pub fn wait(file: File) -> io::Result<Self> {
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(Self(file))
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if it is held; otherwise as [`Self::wait`].
    pub fn take(file: File) -> io::Result<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }

    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // It can fail only where there is no lock.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Replaces a file, or makes it.
///
/// # Errors
/// The system's; the file is unchanged then, or may be after a crash if only its folder's sync
/// failed.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    let new = path.with_file_name(format!("{name}.new-{}", std::process::id()));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = (|| {
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(folder)?.sync_all()
    })();
    written.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_dropped_is_free_though_a_copy_of_the_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::open(folder.path()).unwrap();
        let file = open();
        let copy = file.try_clone().unwrap();
        let lock = Lock::wait(file).unwrap();
        assert_eq!(Lock::take(open()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        Lock::take(open()).unwrap();
        drop(copy);
    }

    #[test]
    fn a_file_is_replaced_or_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for text in ["one", "two"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::create_dir(folder.path().join("b.json")).unwrap();
        replace(&folder.path().join("b.json"), b"").unwrap_err();
        replace(&folder.path().join("none/a.json"), b"").unwrap_err();
        replace(Path::new("/"), b"").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    }
}
