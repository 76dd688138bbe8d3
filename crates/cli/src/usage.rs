//! What commands share: errors with their own exit codes, JSON output, file input.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use serde::Serialize;

/// Wrong usage of the command line: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The daemon is degraded, as already reported: exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("degraded")]
pub struct Degraded;

pub fn json<T: Serialize + ?Sized>(out: &mut dyn Write, value: &T) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(value)?)?)
}

/// Most bytes of a file that is read: as of a configuration.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a file, or standard input for `-`.
///
/// # Errors
/// The system's; it has no end within 64 MiB, or is no text.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let is_stdin = path == Path::new("-");
    let shown = if is_stdin { "standard input".into() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    // What has no size beforehand, such as a pipe, may have no end.
    let read = match is_stdin {
        true => io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes)),
    };
    let read = read.with_context(|| format!("cannot read {shown}"))?;
    ensure!(read as u64 <= MOST_BYTES, "cannot read {shown}: it has more than {} MiB; name another file", MOST_BYTES >> 20);
    String::from_utf8(bytes).map_err(|_| anyhow!("cannot read {shown}: it is no text; save it as UTF-8, or name another file"))
}

#[derive(Debug, Clone, Copy, Args)]
pub struct Json {
    /// Print JSON, as the API returns it
    #[arg(long)]
    pub json: bool,
}

pub fn seconds(text: &str) -> Result<f64, String> {
    seconds_within(text, 86_400_000)
}

/// As [`seconds`], up to this many milliseconds.
pub fn seconds_within(text: &str, most_ms: u64) -> Result<f64, String> {
    let most = most_ms as f64 / 1e3;
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=most).contains(&seconds) => Ok(seconds),
        Ok(_) => Err(format!("must be between 0.01 and {most} seconds")),
        Err(_) => Err("must be a number of seconds, such as 1 or 0.5".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_or_has_no_end_is_not_read() {
        assert!(read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).unwrap().contains("sluice-cli"));
        for (path, wanted) in [
            ("/bin/sh", "cannot read /bin/sh: it is no text; save it as UTF-8"),
            ("/dev/zero", "cannot read /dev/zero: it has more than 64 MiB; name another file"),
            ("/", "cannot read /: "),
        ] {
            let said = format!("{:#}", read(Path::new(path)).unwrap_err());
            assert!(said.contains(wanted), "{said}");
        }
    }
}
