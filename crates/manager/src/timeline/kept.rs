//! The files of the flight recorder.
//!
//! A name says when a file was written and why: `flight-1764036100123-death-nf-fw.0.pftrace`. Only
//! files with such names are listed, read and removed. A file is there once it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_api::model::Timeline;

const PREFIX: &str = "flight-";
const SUFFIX: &str = ".pftrace";
/// A file that is being written. Each recorder has its own: one may end while another begins.
pub fn unfinished_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: it is a number, and orders nothing.
    match NEXT.fetch_add(1, Ordering::Relaxed) {
        0 => "flight.tmp".into(),
        number => format!("flight.{number}.tmp"),
    }
}

/// Most bytes of a reason in a name.
const WHY: usize = 64;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 16;

/// The name of a file.
fn name_of(unix_ms: u64, why: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' };
    let why: String = why.chars().map(plain).take(WHY).collect();
    format!("{PREFIX}{unix_ms}-{why}{SUFFIX}")
}

/// The time and the reason in the name of a file; none if it is another file.
fn parts_of(name: &str) -> Option<(u64, &str)> {
    let (unix_ms, why) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    Some((unix_ms.parse().ok()?, why))
}

/// The files in a folder, oldest first. A folder that is missing has none.
///
/// # Errors
/// The system's.
pub fn list(folder: &Path) -> io::Result<Vec<Timeline>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(name) = name.to_str()
            && let Some((unix_ms, why)) = parts_of(name)
            // One that was removed meanwhile is none.
            && let Ok(meta) = entry.metadata()
            && meta.is_file()
        {
            all.push(Timeline { name: name.into(), unix_ms, why: why.into(), bytes: meta.len() });
        }
    }
    all.sort_unstable_by(|one, other| (one.unix_ms, &one.name).cmp(&(other.unix_ms, &other.name)));
    Ok(all)
}

/// A file in a folder, in pieces; none if there is no such file of the flight recorder.
///
/// # Errors
/// The system's.
pub fn read(folder: &Path, name: &str) -> io::Result<Option<FilePieces>> {
    if !list(folder)?.iter().any(|known| known.name == name) {
        return Ok(None);
    }
    Ok(Some(FilePieces(File::open(folder.join(name))?)))
}

/// The pieces of a file. A file that cannot be read on ends.
#[derive(Debug)]
pub struct FilePieces(File);

impl Iterator for FilePieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut piece = vec![0; PIECE];
        let n = self.0.read(&mut piece).ok().filter(|n| *n > 0)?;
        piece.truncate(n);
        Some(piece)
    }
}

/// Opens the file to write in a folder, which is made if it is missing.
fn open(folder: &Path, unfinished: &Path) -> io::Result<File> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(unfinished)
}

/// Makes a folder, if it is missing, and tries whether it takes a file.
///
/// # Errors
/// The system's.
pub fn prepare(folder: &Path, unfinished: &str) -> io::Result<()> {
    let unfinished = folder.join(unfinished);
    open(folder, &unfinished)?;
    fs::remove_file(&unfinished)
}

/// Writes a file into a folder, which is made if it is missing, and removes the oldest ones above
/// `most`. Returns its path. `fill` writes what is in it; it is `unfinished` until then.
///
/// # Errors
/// The system's, and those of `fill`. There is no new file then.
pub fn write(
    (folder, unfinished): (&Path, &str),
    unix_ms: u64,
    why: &str,
    most: usize,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<PathBuf> {
    let unfinished = folder.join(unfinished);
    let path = folder.join(name_of(unix_ms, why));
    let mut file = open(folder, &unfinished)?;
    let written = fill(&mut file).and_then(|()| fs::rename(&unfinished, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    let all = list(folder)?;
    // Not this one, if the host's time was set back.
    let others = all.iter().map(|old| folder.join(&old.name)).filter(|old| *old != path);
    for old in others.take(all.len().saturating_sub(most.max(1))) {
        fs::remove_file(old)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_oldest_files_go_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        assert_eq!(list(&inner).unwrap(), []);
        prepare(&inner, "x.tmp").unwrap();
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 0);
        // The order is that of the times, not that of the names.
        let written =
            [(20, "early"), (999, "death nf b.0"), (1_000, "promise slo \"x\"/../y"), (1_001, "death nf b.0"), (30, "set back")];
        for (unix_ms, why) in written {
            let path = write((&inner, "x.tmp"), unix_ms, why, 3, |file| file.write_all(&[7; 100])).unwrap();
            assert_eq!(path.parent(), Some(inner.as_path()));
            fs::write(inner.join("notes.txt"), "mine").unwrap();
            fs::write(inner.join("flight-old.pftrace"), "mine").unwrap();
        }
        let names: Vec<(u64, String, u64)> =
            list(&inner).unwrap().into_iter().map(|one| (one.unix_ms, one.why, one.bytes)).collect();
        let wanted = [(30, "set-back"), (1_000, "promise-slo--x--..-y"), (1_001, "death-nf-b.0")];
        assert_eq!(names, wanted.map(|(unix_ms, why)| (unix_ms, why.to_string(), 100)));
        let mut left: Vec<String> =
            fs::read_dir(&inner).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(
            left,
            [
                "flight-1000-promise-slo--x--..-y.pftrace",
                "flight-1001-death-nf-b.0.pftrace",
                "flight-30-set-back.pftrace",
                "flight-old.pftrace",
                "notes.txt"
            ]
        );
    }

    #[test]
    fn only_files_of_the_recorder_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let path = write((folder.path(), "x.tmp"), 5, "x", 1, |file| file.write_all(&bytes)).unwrap();
        let failed = write((folder.path(), "x.tmp"), 6, "x", 1, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        assert_eq!(read(folder.path(), &name).unwrap().unwrap().flatten().collect::<Vec<u8>>(), bytes);
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        for other in ["notes.txt", "../flight-5-x.pftrace", "", "flight-6-x.pftrace", "."] {
            assert!(read(folder.path(), other).unwrap().is_none(), "{other}");
        }
    }

    #[test]
    fn a_name_has_no_more_than_is_safe_and_short() {
        let name = name_of(7, &"ä/".repeat(100));
        assert_eq!(name, format!("flight-7-{}.pftrace", "-".repeat(WHY)));
        assert_eq!(parts_of(&name), Some((7, &*"-".repeat(WHY))));
        assert_eq!(["flight-x-y.pftrace", "flight-1.pftrace", "flight-1-y", "x"].map(parts_of), [None; 4]);
    }
}
