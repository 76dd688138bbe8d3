//! The file by which a probe sees how a program is: written every few seconds, and read by the same
//! program, started as the probe.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

/// Time between two writes of the file.
pub const PERIOD: Duration = Duration::from_secs(5);
/// A file that is older than this, in seconds, is of a program that is stuck.
const OLD: f64 = 30.0;

/// What a program has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// How it is, in one word.
    pub word: String,
    /// What is wrong with its access, one line each.
    pub faults: Vec<String>,
}

impl Beat {
    /// # Errors
    /// What is wrong with the access of the program, and what to do.
    pub fn has_access(&self) -> anyhow::Result<()> {
        if self.faults.is_empty() { Ok(()) } else { bail!("{}", self.faults.join("\n")) }
    }
}

/// Seconds since the host has started: the same clock for all its processes.
fn uptime() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().with_context(|| format!("/proc/uptime says {text}"))
}

/// Writes how the program is.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &Path, word: &str, faults: &[String]) -> anyhow::Result<()> {
    let mut lines = vec![format!("{} {word}", uptime()?)];
    lines.extend(faults.iter().map(|fault| fault.replace('\n', " ")));
    Ok(sluice_host::file::replace_private(file, lines.join("\n").as_bytes())?)
}

/// Reads what a program has written.
///
/// # Errors
/// It has written nothing, or nothing for a while.
pub fn read(file: &Path, program: &str) -> anyhow::Result<Beat> {
    let path = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {path}; does {program} run?"))?;
    let mut lines = text.lines();
    let first = lines.next().and_then(|line| line.split_once(' '));
    let (written, word) = first.with_context(|| format!("{path} was not written by {program}"))?;
    let age = uptime()? - written.parse::<f64>().with_context(|| format!("{path} says {text}"))?;
    // What was written before the host has started anew seems to come later.
    if age < 0.0 {
        bail!("{program} has written nothing since the host has started: it is stuck");
    }
    if age > OLD {
        bail!("{program} has written nothing for {age:.0} s: it is stuck");
    }
    Ok(Beat { word: word.into(), faults: lines.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_reads_what_was_written_of_late() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("beat");
        assert!(read(&file, "sluice-node").unwrap_err().to_string().contains("does sluice-node run?"));
        write(&file, "ready", &[]).unwrap();
        let beat = read(&file, "sluice-node").unwrap();
        assert_eq!(beat.word, "ready");
        beat.has_access().unwrap();
        write(&file, "alone", &["a\nb".into(), "c".into()]).unwrap();
        let beat = read(&file, "sluice-node").unwrap();
        assert_eq!(beat, Beat { word: "alone".into(), faults: vec!["a b".into(), "c".into()] });
        assert_eq!(beat.has_access().unwrap_err().to_string(), "a b\nc");
        // The second one is of before a start of the host.
        for written in [uptime().unwrap() - OLD - 1.0, uptime().unwrap() + 1e6] {
            std::fs::write(&file, format!("{written} ready")).unwrap();
            assert!(read(&file, "sluice-node").unwrap_err().to_string().contains("stuck"), "{written}");
        }
    }
}
