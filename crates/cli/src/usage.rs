//! What commands share: errors with their own exit codes, JSON output, file input.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
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

/// Reads a file, or standard input for `-`.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(text)
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
