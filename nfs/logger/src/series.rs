//! Numbered files: `/var/log/web.pcap` stands for `/var/log/web-000001.pcap` and so on.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub struct Series {
    folder: PathBuf,
    stem: String,
    extension: String,
}

impl Series {
    /// The files that `path` stands for. None if it names no file, or not in UTF-8.
    pub fn new(path: &Path) -> Option<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let stem = path.file_stem()?.to_str()?.to_owned();
        let extension = path.extension().map_or(Some("pcap"), |e| e.to_str())?.to_owned();
        Some(Self { folder: folder.into(), stem, extension })
    }

    pub fn path(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{}-{number:06}.{}", self.stem, self.extension))
    }

    /// Numbers of the existing files, ascending.
    pub fn numbers(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| {
                let rest = name.strip_prefix(&self.stem)?.strip_prefix('-')?.strip_suffix(&self.extension)?.strip_suffix('.')?;
                rest.parse::<u32>().ok().filter(|_| rest.len() >= 6 && rest.bytes().all(|b| b.is_ascii_digit()))
            });
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Removes all files but the last `keep`. Returns the first error, and tries all files.
    pub fn prune(&self, keep: usize) -> io::Result<()> {
        let numbers = self.numbers()?;
        let old = &numbers[..numbers.len().saturating_sub(keep)];
        let mut result = Ok(());
        for number in old {
            match std::fs::remove_file(self.path(*number)) {
                // Another process was faster.
                Err(error) if error.kind() != io::ErrorKind::NotFound => result = result.and(Err(error)),
                _ => {}
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_series_are_counted_and_pruned() {
        let folder = tempfile::tempdir().unwrap();
        let series = Series::new(&folder.path().join("web.pcap")).unwrap();
        let strangers = ["web.pcap", "web-1.pcap", "web-00000x.pcap", "web-000001.pcapng", "other-000001.pcap", "web-+00001.pcap"];
        strangers.iter().for_each(|name| std::fs::write(folder.path().join(name), "").unwrap());
        for number in [3, 1_000_000, 2, 10] {
            std::fs::write(series.path(number), "").unwrap();
        }
        assert_eq!(series.numbers().unwrap(), [2, 3, 10, 1_000_000]);
        series.prune(2).unwrap();
        assert_eq!(series.numbers().unwrap(), [10, 1_000_000]);
        series.prune(5).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2 + strangers.len());
    }

    #[test]
    fn names_come_from_the_path() {
        assert_eq!(Series::new(Path::new("log")).unwrap().path(7), Path::new("./log-000007.pcap"));
        assert_eq!(Series::new(Path::new("/a/b.c.cap")).unwrap().path(1), Path::new("/a/b.c-000001.cap"));
        assert!(Series::new(Path::new("/")).is_none());
    }
}
