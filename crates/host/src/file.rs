//! Atomic replacement of files, also across crashes; and locks on files and folders.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
    let new = beside(path)?;
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

/// Replaces a file, or makes it, so that its owner alone may read it. Nothing waits for the disk:
/// after a crash of the host it may be cut.
///
/// # Errors
/// The system's; the file is unchanged then.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path)?;
    // Of an earlier process with this pid. It is not written to, whatever it is.
    let _ = fs::remove_file(&new);
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let written = made.and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// The name under which a file is written before it has its own.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    Ok(path.with_file_name(format!("{name}.new-{}", std::process::id())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn a_private_file_is_its_owners_alone_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a.toml"), folder.path().join("other"));
        fs::write(&path, "open to all").unwrap();
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, beside(&path).unwrap()).unwrap();
        replace_private(&path, b"secret").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "secret");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        replace_private(&folder.path().join("none/a.toml"), b"").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    }
}
