//! Kernel operations on cgroup folders and files; tests have a model of them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// File of a cgroup's processes.
pub(super) const PROCS: &str = "cgroup.procs";

/// The operations on cgroup folders and files. Errors are those of the system calls.
pub(super) trait Kernel: std::fmt::Debug + Send + Sync {
    /// Makes a cgroup: `mkdir`.
    fn make(&self, folder: &Path) -> io::Result<()>;
    /// Removes a cgroup that has neither processes nor cgroups inside: `rmdir`.
    fn remove(&self, folder: &Path) -> io::Result<()>;
    /// The cgroups in a cgroup.
    fn folders(&self, folder: &Path) -> io::Result<Vec<PathBuf>>;
    fn read(&self, file: &Path) -> io::Result<String>;
    /// Writes an existing file, in one piece.
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
    /// Opens an existing file for frequent writing.
    fn open(&self, file: &Path) -> io::Result<Box<dyn Knob>>;
}

/// A file that stays open.
pub(super) trait Knob: std::fmt::Debug + Send + Sync {
    /// Writes it in one piece.
    fn set(&self, text: &str) -> io::Result<()>;
}

#[derive(Debug)]
pub(super) struct Linux;

impl Kernel for Linux {
    fn make(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir(folder)
    }

    fn remove(&self, folder: &Path) -> io::Result<()> {
        fs::remove_dir(folder)
    }

    fn folders(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        Ok(entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(fs::DirEntry::path).collect())
    }

    fn read(&self, file: &Path) -> io::Result<String> {
        fs::read_to_string(file)
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        self.open(file)?.set(text)
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn Knob>> {
        // Not created: a file that the kernel did not make is not a cgroup file.
        Ok(Box::new(OpenOptions::new().write(true).open(file)?))
    }
}

impl Knob for File {
    fn set(&self, text: &str) -> io::Result<()> {
        self.write_all_at(text.as_bytes(), 0)
    }
}
