//! Arguments of `sluice nf upgrade`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

/// How many packets of a shadow may differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Allowed {
    Packets(u64),
    Percent(f64),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("first").args(["canary", "shadow"]))]
pub struct NfUpgrade {
    /// The service
    pub service: String,
    /// Program of the new version: a path, or a name that is looked for beside sluiced, then in
    /// PATH
    #[arg(long, value_name = "PROGRAM", required_unless_present = "abort")]
    pub exec: Option<PathBuf>,
    /// Give it this part of new flows first, 1% to 50%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub canary: Option<u32>,
    /// Give it copies of packets first, and compare what it does with them
    #[arg(long, conflicts_with = "canary")]
    pub shadow: bool,
    /// How long, such as 60s, 5m or 1h
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = span, requires = "first")]
    pub lasts: u64,
    /// How many packets of a shadow may differ, such as 10 or 0.1% of those compared
    #[arg(long, value_name = "N", default_value = "0", value_parser = allowed, requires = "shadow", conflicts_with = "canary")]
    pub allow: Allowed,
    /// Core of a shadow; by default that of the instance whose packets it gets
    #[arg(long, value_name = "N", requires = "shadow", conflicts_with = "canary")]
    pub core: Option<usize>,
    /// By how many percent of its packets it may drop more than the old version
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = margin, requires = "canary", conflicts_with = "shadow")]
    pub max_drops: f64,
    /// Longest time for a burst in microseconds, which 99 of 100 must keep
    #[arg(long, value_name = "US", value_parser = micros, requires = "canary", conflicts_with = "shadow")]
    pub max_burst: Option<f64>,
    /// Do not wait for the end of the canary or shadow
    #[arg(long, requires = "first")]
    pub no_wait: bool,
    /// End the canary or shadow of the service
    #[arg(long, conflicts_with_all = ["exec", "canary", "shadow", "args"])]
    pub abort: bool,
    /// All its arguments, to the end of the line; by default those of the old version
    #[arg(long, value_name = "ARG", num_args = 0.., allow_hyphen_values = true)]
    pub args: Option<Vec<String>>,
}

/// A part of new flows: `1%` or `1`.
fn percent(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|percent| (1..=50).contains(percent));
    percent.ok_or_else(|| "write a whole number of percent, 1% to 50%".into())
}

/// By how much a canary may drop more, in percent.
fn margin(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "write a number of percent, 0 to 100".into())
}

/// How many packets may differ: `10` or `0.1%`.
fn allowed(text: &str) -> Result<Allowed, String> {
    let allowed = match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).map(Allowed::Percent),
        None => text.parse().ok().map(Allowed::Packets),
    };
    allowed.ok_or_else(|| "write a number of packets, such as 10, or 0% to 100% of those compared".into())
}

/// A time in microseconds.
fn micros(text: &str) -> Result<f64, String> {
    let micros = text.parse().ok().filter(|micros: &f64| micros.is_finite() && *micros > 0.0);
    micros.ok_or_else(|| "write a number of microseconds above 0".into())
}

/// A time in whole seconds: `60s`, `5m`, `1h` or `60`.
fn span(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let factor = [("s", 1u64), ("m", 60), ("h", 3_600)].into_iter().find(|(word, _)| *word == unit).map(|(_, factor)| factor);
    let seconds = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    let seconds = seconds.filter(|seconds| (1..=86_400).contains(seconds));
    seconds.ok_or_else(|| "write a time from 1s to 24h, such as 60s, 5m or 1h".into())
}
