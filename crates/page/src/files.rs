//! The files of the listener: tokens, the certificate and its key.
//!
//! They are looked at every [`LOOK`], and read again when they have changed. What is being written
//! is half of a file, and a certificate and its key are two: a change of those that belong together
//! counts once two looks have found the same. Tokens do not wait for each other.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

/// Time between two looks at the files.
pub const LOOK: Duration = Duration::from_secs(1);

/// Largest file, in bytes.
const MOST: u64 = 1 << 20;

/// What a file of the listener has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A secret that requests are let in with.
    Token,
    /// Certificates, that of the listener first.
    Certificate,
    /// The private key of the first of these.
    Key,
}

impl FileKind {
    /// The bits of a mode by which users could read or write it that must not.
    fn forbidden(self) -> u32 {
        match self {
            Self::Token => 0o077,
            Self::Certificate => 0,
            // A group for keys is usual.
            Self::Key => 0o027,
        }
    }

    fn is_secret(self) -> bool {
        self != Self::Certificate
    }
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token => "a token of the page",
            Self::Certificate => "the certificate of the page",
            Self::Key => "the key of the page",
        })
    }
}

/// A file of the listener cannot be used. What to do stands behind a semicolon.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {kind} from {path}: {source}; correct the path, or run as a user that may read it")]
    Read {
        /// What it should have.
        kind: FileKind,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Other users could read it.
    #[error("other users may read or write {path}, {kind}; write `chmod 600 {path}`")]
    Open {
        /// What it has.
        kind: FileKind,
        /// The file.
        path: PathBuf,
    },
    /// Another user made it.
    #[error("{path}, {kind}, belongs to user {uid}; it needs to be root's or the daemon's own")]
    Owner {
        /// What it has.
        kind: FileKind,
        /// The file.
        path: PathBuf,
        /// The user's number.
        uid: u32,
    },
    /// It does not have what it should have.
    #[error("{path}, {kind}, {why}")]
    Content {
        /// What it should have.
        kind: FileKind,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
}

impl FileError {
    pub(crate) fn content(kind: FileKind, path: &Path, why: impl Into<String>) -> Self {
        Self::Content { kind, path: path.to_owned(), why: why.into() }
    }

    /// What the file has, or should have.
    pub fn kind(&self) -> FileKind {
        match self {
            Self::Read { kind, .. } | Self::Open { kind, .. } | Self::Owner { kind, .. } | Self::Content { kind, .. } => *kind,
        }
    }
}

/// Reads a file of the listener. One with a secret has to be for its owner alone, and that is root
/// or this process's user. A link counts as what it leads to: certificates are renewed that way,
/// and secrets of Kubernetes are mounted as links.
pub(crate) fn read(path: &Path, kind: FileKind) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { kind, path: path.to_owned(), source };
    // A pipe is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|error| failed(error.into()))?);
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(FileError::content(kind, path, "is no file; name one"));
    }
    if kind.is_secret() && ![rustix::process::geteuid().as_raw(), 0].contains(&about.uid()) {
        return Err(FileError::Owner { kind, path: path.to_owned(), uid: about.uid() });
    }
    if about.mode() & kind.forbidden() != 0 {
        return Err(FileError::Open { kind, path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST {
        return Err(FileError::content(kind, path, "is larger than 1 MiB; name another file"));
    }
    Ok(bytes)
}

/// What tells a file from another one in its place; None if there is none.
type Stamp = Option<[u64; 5]>;

fn stamp(path: &Path) -> Stamp {
    let about = std::fs::metadata(path).ok()?;
    // The change time is that of the mode, too. As nanoseconds it fits for centuries.
    let changed = (about.ctime() as u64).wrapping_mul(1_000_000_000).wrapping_add(about.ctime_nsec() as u64);
    Some([about.dev(), about.ino(), about.size(), about.mtime() as u64, changed])
}

/// Files that belong together, and are read again when they have changed.
pub(crate) struct FileWatch {
    paths: Vec<PathBuf>,
    /// As they were when they were read.
    read: Vec<Stamp>,
    /// As they were at the last look.
    seen: Vec<Stamp>,
}

impl FileWatch {
    /// Begins to watch files that are read after this.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let now: Vec<Stamp> = paths.iter().map(|path| stamp(path)).collect();
        Self { paths, read: now.clone(), seen: now }
    }

    /// Whether they are to be read again: they are not as they were when they were read, and are as
    /// they were at the last look.
    pub fn has_changed(&mut self) -> bool {
        let now: Vec<Stamp> = self.paths.iter().map(|path| stamp(path)).collect();
        let rests = now == self.seen;
        self.seen.clone_from(&now);
        if !rests || now == self.read {
            return false;
        }
        self.read = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn file(folder: &tempfile::TempDir, text: &[u8], mode: u32) -> PathBuf {
        let path = folder.path().join("file");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn secrets_are_for_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, of_token, of_key) in
            [(0o600, true, true), (0o400, true, true), (0o640, false, true), (0o620, false, false), (0o604, false, false)]
        {
            let path = file(&folder, b"text", mode);
            assert!(read(&path, FileKind::Certificate).is_ok(), "{mode:o}");
            for (kind, good) in [(FileKind::Token, of_token), (FileKind::Key, of_key)] {
                match read(&path, kind) {
                    Ok(bytes) => assert!(good && bytes == b"text", "{kind} {mode:o}"),
                    Err(error) => {
                        assert!(!good && matches!(error, FileError::Open { .. }), "{kind} {mode:o}: {error}");
                        assert!(error.to_string().ends_with(&format!("; write `chmod 600 {}`", path.display())), "{error}");
                    }
                }
            }
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_secret_that_another_user_made_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return crate::skip::skip("only root can give a file to another user");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, b"text", 0o600);
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        for kind in [FileKind::Token, FileKind::Key] {
            let error = read(&path, kind).unwrap_err();
            assert!(matches!(error, FileError::Owner { uid: 65_534, .. }), "{error}");
            let said = format!("{}, {kind}, belongs to user 65534; it needs to be root's or the daemon's own", path.display());
            assert_eq!(error.to_string(), said);
        }
        assert_eq!(read(&path, FileKind::Certificate).unwrap(), b"text", "it is no secret");
    }

    #[test]
    fn what_is_no_file_is_neither_read_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        for path in [folder.path(), &pipe] {
            let error = read(path, FileKind::Certificate).unwrap_err();
            assert_eq!(error.to_string(), format!("{}, the certificate of the page, is no file; name one", path.display()));
        }
        let error = read(Path::new("/nonexistent"), FileKind::Key).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the key of the page from /nonexistent: "), "{error}");
        let large = file(&folder, &vec![b'x'; MOST as usize + 1], 0o600);
        assert!(read(&large, FileKind::Certificate).unwrap_err().to_string().contains("larger than 1 MiB"));
        // A link counts as what it leads to.
        let (plain, link) = (file(&folder, b"text", 0o600), folder.path().join("link"));
        symlink(&plain, &link).unwrap();
        for kind in [FileKind::Key, FileKind::Token] {
            assert_eq!(read(&link, kind).unwrap(), b"text");
        }
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(read(&link, FileKind::Token), Err(FileError::Open { .. })));
    }

    #[test]
    fn a_change_counts_once_and_when_it_rests() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder, b"one", 0o600);
        let mut watch = FileWatch::new(vec![path.clone(), folder.path().join("none")]);
        assert!(!watch.has_changed() && !watch.has_changed());
        std::fs::write(&path, "two, longer").unwrap();
        assert!(!watch.has_changed(), "it may be written still");
        std::fs::write(&path, "two, and longer").unwrap();
        assert!(!watch.has_changed(), "it was");
        assert!(watch.has_changed());
        assert!(!watch.has_changed());
        // One that goes, and one that comes.
        std::fs::rename(&path, folder.path().join("none")).unwrap();
        assert!(!watch.has_changed() && watch.has_changed() && !watch.has_changed());
    }
}
