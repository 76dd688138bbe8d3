//! What commands share: errors with exit codes of their own, output as JSON, input from files.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

/// Something on the command line makes no sense: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The daemon is degraded, which was said: exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("degraded")]
pub struct Degraded;

/// Prints JSON.
pub fn json<T: Serialize + ?Sized>(out: &mut dyn Write, value: &T) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(value)?)?)
}

/// The text of a file, or of standard input for `-`.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(text)
}

/// Print JSON.
#[derive(Debug, Clone, Copy, Args)]
pub struct Json {
    /// Print JSON, as the API gives it
    #[arg(long)]
    pub json: bool,
}

/// Reads a number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("must be between 0.01 and 86400 seconds".into()),
        Err(_) => Err("must be a number of seconds, such as 1 or 0.5".into()),
    }
}
