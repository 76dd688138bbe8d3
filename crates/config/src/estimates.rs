//! Estimates of what a packet costs an NF, in the file that `[manager] estimates` names.
//! `sluice estimate --keep` writes it. The daemon reads the cost of an NF before its first packet.
//!
//! One JSON file, replaced as a whole. An entry is valid for a program with the same path, size,
//! modification time and arguments on the same processor model.
//! size, modification time and arguments on the same processor model.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use sluice_host::file;

/// Median and quartiles of a measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half are below.
    pub median: f64,
    /// Lower quartile.
    pub low: f64,
    /// Upper quartile.
    pub high: f64,
}

impl Spread {
    /// Median and quartiles of these values; all 0 if there are none.
    pub fn of(values: &mut [u64]) -> Self {
        values.sort_unstable();
        let at = |part: usize| values.get(values.len() * part / 4).copied().unwrap_or(0) as f64;
        Self { median: at(2), low: at(1), high: at(3) }
    }

    /// All three values multiplied by `by`.
    pub fn times(self, by: f64) -> Self {
        Self { median: self.median * by, low: self.low * by, high: self.high * by }
    }
}

/// The measured cost of an NF.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Rounds that were counted.
    pub rounds: u64,
    /// Packets in a burst.
    pub burst: u32,
    /// Handler time for a burst, in nanoseconds.
    pub ns_per_burst: Spread,
    /// Handler time for a packet, in nanoseconds.
    pub ns_per_packet: Spread,
    /// Handler cycles for a burst.
    pub cycles_per_burst: Spread,
    /// Handler cycles for a packet.
    pub cycles_per_packet: Spread,
    /// Ring time for a burst, in nanoseconds, already subtracted.
    pub ring_ns: f64,
    /// Range of the ring time over the rounds: a handler cheaper than this cannot be resolved.
    #[serde(default)]
    pub ring_spread_ns: f64,
    /// Nanoseconds for a burst, sampled by the NF's library in the same rounds; None if there were
    /// too few samples.
    pub inside_ns: Option<f64>,
    /// Relative difference of the time from outside to that sample, positive if larger. The median
    /// over rounds with a sample, each with the round before it, so that both cover the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_inside: Option<f64>,
    /// Packets that the NF dropped.
    pub dropped: u64,
    /// Packets in all.
    pub packets: u64,
    /// Nanoseconds in a cycle.
    pub ns_per_cycle: f64,
}

/// What an estimate is valid for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Of {
    /// The program.
    pub exec: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Size of the program, in bytes.
    pub bytes: u64,
    /// Modification time of the program, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// Processor model.
    pub cpu: String,
}

impl Of {
    /// A program with these arguments, as it is now on this host.
    ///
    /// # Errors
    /// If the metadata of the program cannot be read.
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

    /// Name of the entry. It leaves out size and time, so that a rebuilt NF replaces its old entry.
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

/// An estimate and what it is valid for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptEstimate {
    /// What it is valid for.
    pub of: Of,
    /// The measured cost.
    pub estimate: Estimate,
}

/// The kept estimates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Kept {
    entries: BTreeMap<String, KeptEstimate>,
}

/// Why the file of estimates could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// A system call failed.
    #[error("cannot {what} {path}: {source}; name another file", path = path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file has another content.
    #[error("{path} holds no estimates ({source}); move it away", path = path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl Kept {
    /// Reads a file; a missing file holds no estimates.
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

    /// The estimate of exactly this program, if there is one.
    pub fn find(&self, of: &Of) -> Option<&Estimate> {
        self.entries.get(&of.key()).filter(|entry| entry.of == *of).map(|entry| &entry.estimate)
    }

    /// Stores an estimate and replaces an older one.
    pub fn put(&mut self, entry: KeptEstimate) {
        self.entries.insert(entry.of.key(), entry);
    }

    /// Replaces the file atomically.
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
    use super::*;

    #[test]
    fn a_spread_is_the_median_and_the_quartiles() {
        let spread = Spread::of(&mut [9, 1, 5, 3, 7, 2, 8, 4]);
        assert_eq!(spread, Spread { low: 3.0, median: 5.0, high: 8.0 });
        assert_eq!(spread.times(2.0).high, 16.0);
        assert_eq!(Spread::of(&mut []).median, 0.0);
    }

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
        kept.put(KeptEstimate { of: of.clone(), estimate: estimate(5.0) });
        kept.put(KeptEstimate { of: of.clone(), estimate: estimate(7.0) });
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
