//! Estimates that are kept in a file, so that a daemon knows what an NF costs before its first packet.
//!
//! # Approach
//! One JSON file, replaced as a whole. An entry counts for a program with the same path, size, time of change and arguments, on the
//! same model of processor: anything else is another NF, or the same one elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Estimate;
use sluice_host::file;

/// Where estimates are kept if nothing else is said, for root.
pub const DEFAULT: &str = "/var/lib/sluice/estimates.json";

/// What an estimate is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Of {
    /// The program.
    pub exec: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Bytes of the program.
    pub bytes: u64,
    /// When it was changed last, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// Model of the processor.
    pub cpu: String,
}

impl Of {
    /// A program with these arguments, as it is now on this host.
    ///
    /// # Errors
    /// If the program cannot be looked at.
    pub fn here(exec: &Path, args: &[String]) -> io::Result<Self> {
        let metadata = fs::metadata(exec)?;
        Ok(Self {
            exec: exec.into(),
            args: args.to_vec(),
            bytes: metadata.len(),
            changed_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
            cpu: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        })
    }

    /// Name of the entry: an NF that was built anew replaces its older self.
    fn key(&self) -> String {
        let mut key = self.exec.display().to_string();
        self.args.iter().for_each(|arg| {
            key.push(' ');
            key.push_str(arg);
        });
        key
    }
}

fn cpu_model(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

/// An estimate and what it is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is of.
    pub of: Of,
    /// What was found.
    pub estimate: Estimate,
}

/// The kept estimates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Kept {
    entries: BTreeMap<String, Entry>,
}

/// Why kept estimates could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The system's answer.
    #[error("cannot {what} {path}: {source}; name another file", path = path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// It is something else.
    #[error("{path} holds no estimates ({source}); move it away", path = path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl Kept {
    /// Reads a file; nothing is kept if it is not there.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn read(path: &Path) -> Result<Self, KeptError> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| KeptError::Broken { path: path.into(), source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(KeptError::System { what: "read", path: path.into(), source }),
        }
    }

    /// The estimate of a program, if there is one of exactly this.
    pub fn find(&self, of: &Of) -> Option<&Estimate> {
        self.entries.get(&of.key()).filter(|entry| entry.of == *of).map(|entry| &entry.estimate)
    }

    /// Keeps an estimate in place of an older one.
    pub fn put(&mut self, entry: Entry) {
        self.entries.insert(entry.of.key(), entry);
    }

    /// Writes the file anew: it is always either the old or the new one.
    ///
    /// # Errors
    /// [`KeptError::System`].
    pub fn write(&self, path: &Path) -> Result<(), KeptError> {
        let system = |what| move |source| KeptError::System { what, path: path.to_path_buf(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(system("make the folder of"))?;
        }
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::from);
        text.and_then(|text| file::replace(path, &text)).map_err(system("write"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spread;
    use super::*;

    fn estimate(ns: f64) -> Estimate {
        let spread = Spread { median: ns, low: ns, high: ns };
        Estimate {
            rounds: 1,
            burst: 32,
            ns_per_burst: spread,
            ns_per_packet: spread,
            cycles_per_burst: spread,
            cycles_per_packet: spread,
            ring_ns: 1.0,
            ring_spread_ns: 0.0,
            inside_ns: None,
            off_inside: None,
            dropped: 0,
            packets: 32,
            ns_per_cycle: 0.4,
        }
    }

    #[test]
    fn an_estimate_is_found_again_for_the_same_program_only() {
        let folder = tempfile::tempdir().unwrap();
        let (program, file) = (folder.path().join("nf"), folder.path().join("state/estimates.json"));
        fs::write(&program, "one").unwrap();
        let args = ["--a".to_owned(), "b".to_owned()];
        let of = Of::here(&program, &args).unwrap();
        assert_eq!(Kept::read(&file).unwrap(), Kept::default());

        let mut kept = Kept::default();
        kept.put(Entry { of: of.clone(), estimate: estimate(5.0) });
        kept.put(Entry { of: of.clone(), estimate: estimate(7.0) });
        kept.write(&file).unwrap();
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no file is left behind");
        let kept = Kept::read(&file).unwrap();
        assert_eq!(kept.find(&of).unwrap().ns_per_packet.median, 7.0);

        assert_eq!(kept.find(&Of::here(&program, &args[..1]).unwrap()), None, "other arguments");
        assert_eq!(kept.find(&Of { cpu: "other".into(), ..of }), None, "another processor");
        fs::write(&program, "another one").unwrap();
        assert_eq!(kept.find(&Of::here(&program, &args).unwrap()), None, "another program");
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        fs::write(&file, "[1]").unwrap();
        assert!(matches!(Kept::read(&file), Err(KeptError::Broken { .. })));
        assert!(matches!(Kept::read(folder.path()), Err(KeptError::System { what: "read", .. })));
        assert!(matches!(Kept::default().write(&file.join("y")), Err(KeptError::System { .. })));
        assert!(Of::here(&folder.path().join("nothing"), &[]).is_err());
    }

    #[test]
    fn the_model_of_the_processor_is_read() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2.3GHz\n"), "Some CPU @ 2.3GHz");
        assert_eq!(cpu_model("nothing"), "");
    }
}
