//! The file of the flow log: a line of JSON for each flow, and former files beside it.
//!
//! A file ends with a whole line: what was written of a line that did not fit is cut off again.
//! Limits: a file that something else moves or removes is written on until the next change of
//! files; files beyond `flow_log.files` that an earlier configuration has left stay.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_api::model::FlowReport;

/// Bytes after which lines are written.
const PIECE: usize = 1 << 16;
/// Time from a failure to the next attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// A file of lines that is replaced by a new one when it is full.
#[derive(Debug)]
pub struct FlowFile {
    path: PathBuf,
    /// None after a failure.
    file: Option<File>,
    /// Bytes in the file.
    len: u64,
    most: u64,
    files: u32,
    /// Whole lines that are not written yet, and their number.
    lines: Vec<u8>,
    count: u64,
    failed: Option<Instant>,
    /// Flows that could not be written.
    pub lost: u64,
}

/// Opens a file to append to, and its length.
fn open(path: &Path) -> io::Result<(File, u64)> {
    // A pipe is refused, and not waited for. The log is not easier to read than the traffic.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&about.uid()) || about.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is there already, and another user may write to it"));
    }
    Ok((file, about.len()))
}

impl FlowFile {
    /// Opens or makes it. It holds `most` bytes at most, and there are `files` of them.
    ///
    /// # Errors
    /// Those of the system; or it is no regular file, or one that another user may write to.
    pub fn open(path: PathBuf, most: u64, files: u32) -> io::Result<Self> {
        let (file, len) = open(&path)?;
        Ok(Self { path, file: Some(file), len, most, files, lines: Vec::with_capacity(2 * PIECE), count: 0, failed: None, lost: 0 })
    }

    /// Goes on where a former one, which has written all its lines, is at, if they have one path.
    pub fn follow(&mut self, former: Option<Self>) {
        if let Some(Self { path, file: Some(file), len, .. }) = former
            && path == self.path
        {
            (self.file, self.len) = (Some(file), len);
        }
    }

    /// Adds the line of a flow.
    pub fn push(&mut self, flow: &FlowReport) {
        let before = self.lines.len();
        if serde_json::to_writer(&mut self.lines, flow).is_err() {
            // Impossible: it is made of numbers and strings, and memory takes it.
            self.lines.truncate(before);
            self.lost += 1;
            return;
        }
        self.lines.push(b'\n');
        self.count += 1;
        if self.lines.len() >= PIECE {
            self.flush();
        }
    }

    /// Writes what was added.
    pub fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        if self.failed.is_some_and(|failed| failed.elapsed() < AGAIN) {
            self.lost += self.count;
        } else if let Err(error) = self.write() {
            self.lost += self.count;
            if self.failed.replace(Instant::now()).is_none() {
                warn!("cannot log flows to {}: {error}; they are counted as unwritten until it goes again", self.path.display());
            }
        } else if self.failed.take().is_some() {
            info!("flows are logged to {} again", self.path.display());
        }
        self.lines.clear();
        self.count = 0;
    }

    fn write(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            let (file, len) = open(&self.path)?;
            (self.file, self.len) = (Some(file), len);
        }
        if self.len > 0 && self.len + self.lines.len() as u64 > self.most {
            self.change_files()?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(&self.lines) {
            let _ = file.set_len(self.len);
            self.file = None;
            return Err(error);
        }
        self.len += self.lines.len() as u64;
        Ok(())
    }

    /// The path of a former file.
    fn former(&self, number: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }

    /// Gives each file the next number, and begins a new one.
    fn change_files(&mut self) -> io::Result<()> {
        self.file = None;
        for number in (1..self.files.saturating_sub(1)).rev() {
            match std::fs::rename(self.former(number), self.former(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.files > 1 {
            std::fs::rename(&self.path, self.former(1))?;
        } else {
            std::fs::remove_file(&self.path)?;
        }
        let (file, len) = open(&self.path)?;
        (self.file, self.len) = (Some(file), len);
        Ok(())
    }
}
