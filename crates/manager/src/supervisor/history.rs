//! The configurations before the present one, to which an operator can go back.
//!
//! # Approach
//! Each change of the whole configuration (an apply, set keys) keeps the one that it replaces, as
//! TOML text with a line about what replaced it. Going back is an apply of that text, and removes
//! it and those after it. The last [`KEPT`] are in memory, and in files that a restart reads again.
//!
//! # Limits
//! Changes of single objects (`sluice nf add`, `sluice rule add`) keep none; what they made is gone
//! when an operator goes back behind them. Files are best effort: where they cannot be written, or
//! another user could write them, the log says so once, and the configurations are kept in memory.
//! Nothing waits for the disk, so the last ones may be lost with the host. Texts of more than
//! [`MOST_BYTES`] are not kept.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_api::change::FormerConfig;
use sluice_host::file;
use sluice_host::record::{self, RecordError};

use crate::controller::events::unix_ms;

/// Most configurations that are kept.
const KEPT: usize = 10;
/// Longest text that is kept, in bytes.
const MOST_BYTES: usize = 4 << 20;
/// Numbers above it are not of this program; JSON has no greater ones.
const MOST_NUMBER: u64 = 1 << 53;
/// Begins the first line of a file.
const HEAD: &str = "# sluice undo: ";

/// What brings another configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConfigSource {
    /// An apply of what has this name.
    Apply(String),
    /// Keys that were set.
    Set(String),
    /// A return to the configuration of this number.
    Undo(u64),
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(name) => f.write_str(name),
            Self::Set(what) => write!(f, "set {what}"),
            Self::Undo(number) => write!(f, "former configuration {number}"),
        }
    }
}

/// What a file says about its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    unix_ms: u64,
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Former {
    number: u64,
    about: About,
    text: String,
}

#[derive(Debug, Default)]
pub(super) struct History {
    folder: PathBuf,
    /// Begins the names of this daemon's files: others of the host may use the same folder.
    prefix: String,
    /// The oldest first.
    all: VecDeque<Former>,
    last: u64,
    /// Whether the log says that files cannot be written.
    is_said: bool,
}

impl History {
    /// The history of the daemon with this runtime directory, with what an earlier run has kept.
    pub(super) fn open(folder: &Path, runtime_dir: &Path) -> Self {
        let mut history = Self { folder: folder.into(), prefix: prefix(runtime_dir), ..Self::default() };
        // What is in it may be put in force.
        if let Err(error) = check(folder) {
            if error.kind() != io::ErrorKind::NotFound {
                history.say(&error);
            }
            return history;
        }
        let mut numbers: Vec<u64> = history.numbers();
        numbers.sort_unstable();
        for number in numbers.iter().rev().take(KEPT).rev() {
            let path = history.path(*number);
            let is_ours = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= 2 * MOST_BYTES as u64);
            let former = is_ours.then(|| fs::read_to_string(&path).ok()).flatten().and_then(|text| {
                let (head, rest) = text.split_once('\n')?;
                let about = serde_json::from_str(head.strip_prefix(HEAD)?).ok()?;
                Some(Former { number: *number, about, text: rest.into() })
            });
            history.all.extend(former);
        }
        history.last = numbers.last().copied().unwrap_or(0);
        history
    }

    /// The numbers of this daemon's files.
    fn numbers(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let number = |name: String| name.strip_prefix(&self.prefix)?.strip_suffix(".toml")?.parse::<u64>().ok();
        let numbers = entries.filter_map(|entry| number(entry.file_name().into_string().ok()?));
        numbers.filter(|number| *number < MOST_NUMBER).collect()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{}{number}.toml", self.prefix))
    }

    /// Keeps a configuration that something has replaced.
    pub(super) fn keep(&mut self, text: String, source: &str) {
        if text.len() > MOST_BYTES {
            warn!(
                "the former configuration is not kept for `sluice undo`: it has {} bytes, and {MOST_BYTES} is the most",
                text.len()
            );
            return;
        }
        self.last = self.last.saturating_add(1);
        let former = Former { number: self.last, about: About { unix_ms: unix_ms(), source: source.into() }, text };
        if let Err(error) = self.write(&former) {
            self.say(&error);
        }
        self.all.push_back(former);
        while self.all.len() > KEPT {
            self.forget_first();
        }
    }

    /// Says once that there are no files.
    fn say(&mut self, error: &io::Error) {
        if std::mem::replace(&mut self.is_said, true) {
            return;
        }
        warn!(
            "former configurations are kept until the daemon stops, and not in {}: {error}; make its parent folder, or name another \
             one (manager.history)",
            self.folder.display()
        );
    }

    fn write(&self, former: &Former) -> io::Result<()> {
        // Environments of services may hold secrets.
        if let Err(error) = DirBuilder::new().mode(0o700).create(&self.folder)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error);
        }
        check(&self.folder)?;
        let about = serde_json::to_string(&former.about)?;
        file::replace_private(&self.path(former.number), format!("{HEAD}{about}\n{}", former.text).as_bytes())
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.all.pop_front() {
            self.remove(first.number);
        }
    }

    fn remove(&self, number: u64) {
        if check(&self.folder).is_ok() {
            let _ = fs::remove_file(self.path(number));
        }
    }

    /// What can be gone back to, the latest first.
    pub(super) fn list(&self) -> Vec<FormerConfig> {
        let one = |former: &Former| FormerConfig {
            number: former.number,
            unix_ms: former.about.unix_ms,
            source: former.about.source.clone(),
        };
        self.all.iter().rev().map(one).collect()
    }

    /// A configuration by its number, or the latest: its number and its text.
    pub(super) fn get(&self, number: Option<u64>) -> Option<(u64, String)> {
        let mut latest_first = self.all.iter().rev();
        let found = latest_first.find(|former| number.is_none_or(|number| number == former.number))?;
        Some((found.number, found.text.clone()))
    }

    /// Forgets this configuration and all after it.
    pub(super) fn forget_from(&mut self, number: u64) {
        while let Some(last) = self.all.back().map(|last| last.number).filter(|last| *last >= number) {
            self.all.pop_back();
            self.remove(last);
        }
    }
}

/// What the names of a daemon's files begin with, by its runtime directory. Different directories
/// have different ones.
fn prefix(runtime_dir: &Path) -> String {
    let runtime = runtime_dir.to_string_lossy();
    let escaped = runtime.trim_matches('/').replace('%', "%25").replace('-', "%2d");
    format!("{}.", escaped.replace('/', "-"))
}

/// Refuses a folder that another user could write to or replace.
fn check(folder: &Path) -> io::Result<()> {
    record::check_dir(&std::path::absolute(folder)?).map_err(|error| match error {
        RecordError::Untrusted { dir, what } => {
            io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {what}", dir.display()))
        }
        RecordError::System { source, .. } => source,
        other => io::Error::other(other),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sources(history: &History) -> Vec<(u64, String)> {
        history.list().into_iter().map(|former| (former.number, former.source)).collect()
    }

    #[test]
    fn the_last_ten_are_kept_over_a_restart_and_others_on_the_host_are_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let mut history = History::open(&path, Path::new("/run/sluice"));
        assert_eq!((history.list(), history.get(None)), (vec![], None));
        (1..=12).for_each(|n| history.keep(format!("text {n}\nmore\n"), &format!("source \"{n}\"\nx")));
        assert_eq!(fs::read_dir(&path).unwrap().count(), KEPT);
        let mut again = History::open(&path, Path::new("/run/sluice"));
        assert_eq!(again.list(), history.list());
        assert_eq!(sources(&again).first(), Some(&(12, "source \"12\"\nx".to_string())));
        assert_eq!(again.get(None), Some((12, "text 12\nmore\n".into())));
        assert_eq!(again.get(Some(4)), Some((4, "text 4\nmore\n".into())));
        assert_eq!(again.get(Some(2)), None, "it was the eleventh");
        again.forget_from(11);
        again.keep("new".into(), "y");
        assert_eq!(sources(&again)[..2], [(13, "y".to_string()), (10, "source \"10\"\nx".to_string())]);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 9);
        assert_eq!(History::open(&path, Path::new("/run/other")).list(), vec![]);
    }

    #[test]
    fn what_cannot_be_written_is_kept_in_memory_and_what_is_broken_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(&folder.path().join("none/history"), Path::new("/run/sluice"));
        history.keep("text".into(), "source");
        assert_eq!(history.get(None), Some((1, "text".into())));
        fs::write(folder.path().join("run-sluice.7.toml"), "not ours").unwrap();
        let history = History::open(folder.path(), Path::new("/run/sluice/"));
        assert_eq!((history.list(), history.last), (vec![], 7));
    }

    #[test]
    fn what_another_user_could_have_written_is_neither_read_nor_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let runtime = Path::new("/run/sluice");
        History::open(&path, runtime).keep("secret".into(), "source");
        let file = path.join("run-sluice.1.toml");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(History::open(&link, runtime).list(), vec![], "a link may be anybody's");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let mut history = History::open(&path, runtime);
        assert_eq!((history.list(), history.is_said), (vec![], true));
        (0..=KEPT).for_each(|n| history.keep(format!("text {n}"), "source"));
        assert_eq!((history.list().len(), fs::read_dir(&path).unwrap().count()), (KEPT, 1), "in memory alone");
        assert_eq!(fs::read_to_string(&file).unwrap().lines().last(), Some("secret"), "and not removed");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(History::open(&path, runtime).get(None), Some((1, "secret".into())));
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &file).unwrap();
        fs::write(folder.path().join("elsewhere"), format!("{HEAD}{{\"unix_ms\":1,\"source\":\"x\"}}\nfoul")).unwrap();
        assert_eq!(History::open(&path, runtime).list(), vec![]);
    }

    #[test]
    fn names_of_files_are_of_one_daemon_and_their_numbers_have_an_end() {
        let of = |runtime: &str| prefix(Path::new(runtime));
        assert_eq!((of("/run/sluice/").as_str(), of("/run-sluice").as_str()), ("run-sluice.", "run%2dsluice."));
        assert_ne!(of("/run/a-b"), of("/run/a%2db"));
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(format!("run-sluice.{}.toml", u64::MAX)), "").unwrap();
        let mut history = History::open(folder.path(), Path::new("/run/sluice"));
        history.keep("text".into(), "source");
        assert_eq!(history.get(None), Some((1, "text".into())));
    }

    #[test]
    fn a_text_that_is_too_long_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path(), Path::new("/run/sluice"));
        history.keep("x".repeat(MOST_BYTES + 1), "source");
        assert_eq!(history.list(), vec![]);
    }
}
