//! A file that an NF reads and writes.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use rustix::fs::FileType;

/// Offset that stands for the file's position.
pub(super) const STANDS: u64 = u64::MAX;

/// Where in a file to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Behind the last write. Writes at the end lie in the file in the order of their calls.
    End,
    /// From this byte on, counted from 0.
    Byte(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Has numbered bytes, and an end that we track.
    Numbered,
    /// Has only a position: a pipe, a socket, a terminal.
    Stream,
    /// The caller's descriptor: numbered if the caller gives offsets; its position is its end.
    Lent,
}

#[derive(Debug)]
struct Inner {
    /// None: the descriptor is the caller's, which keeps it open.
    _owned: Option<OwnedFd>,
    raw: RawFd,
    kind: Kind,
    end: Cell<u64>,
}

/// An open file, shared by its clones. It closes when the last clone is gone and the last request
/// for it has ended. A regular file or a block device has an end, which moves with each write
/// [`At::End`]. Any other file (a pipe, a socket, a terminal) is written as a stream, whatever
/// [`At`] says.
#[derive(Debug, Clone)]
pub struct File(Rc<Inner>);

impl File {
    /// Takes an open file, for example a [`std::fs::File`], with its current end.
    pub fn new(file: impl Into<OwnedFd>) -> Self {
        let owned = file.into();
        let stat = rustix::fs::fstat(&owned).ok();
        let kind = match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Some(FileType::RegularFile | FileType::BlockDevice) => Kind::Numbered,
            _ => Kind::Stream,
        };
        let end = stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        Self(Rc::new(Inner { raw: owned.as_raw_fd(), _owned: Some(owned), kind, end: Cell::new(end) }))
    }

    /// A descriptor that other code keeps open; its end is its position.
    pub(crate) fn lent(raw: RawFd) -> Self {
        Self(Rc::new(Inner { _owned: None, raw, kind: Kind::Lent, end: Cell::new(0) }))
    }

    /// Where the next write [`At::End`] will lie: the file's length once all is written.
    pub fn end(&self) -> u64 {
        self.0.end.get()
    }

    /// Moves the end, for example back to the last byte known to be written after an error.
    pub fn set_end(&self, end: u64) {
        self.0.end.set(end);
    }

    pub(super) fn raw(&self) -> RawFd {
        self.0.raw
    }

    pub(super) fn place(&self, at: At) -> u64 {
        match (self.0.kind, at) {
            (Kind::Stream, _) | (Kind::Lent, At::End) => STANDS,
            (_, At::Byte(byte)) => byte,
            (Kind::Numbered, At::End) => self.0.end.get(),
        }
    }

    /// Moves the end behind a write that was taken.
    pub(super) fn moved(&self, at: At, len: u64) {
        if at == At::End {
            self.0.end.set(self.0.end.get() + len);
        }
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.0.raw
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self::new(file)
    }
}
