//! How the daemon is, and how NFs died, as the API says it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether all works that is to work.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Health {
    /// In one word.
    pub verdict: Verdict,
    /// What does not work, longest first; at most [`MOST`]. None if the verdict is `healthy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What works and does not do what it is to do, such as a generator that cannot keep its rate; at most [`MOST`]. The verdict does not
    /// depend on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Problem>,
}

/// Most problems, and most warnings, that are listed.
pub const MOST: usize = 64;

/// The daemon's health in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All chains and ports take packets, and all NFs run or come.
    #[default]
    Healthy,
    /// Something does not work.
    Degraded,
}

impl Verdict {
    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
        }
    }
}

/// Something that does not work.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Problem {
    /// Kind and name of what does not work, such as `chain web` or `nf fw.0`.
    pub subject: String,
    /// What is wrong with it, in words.
    pub what: String,
    /// Seconds since it began.
    pub since_s: f64,
}

/// What an NF's process ended of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeathCause {
    /// A signal killed it.
    Signal,
    /// It returned an exit status.
    Exit,
    /// The kernel killed it because its memory, or the host's, was used up.
    Memory,
    /// The daemon stopped it for its violations.
    Violations,
    /// The daemon stopped it because it held packets and returned none.
    Stalled,
    /// The daemon stopped it because it said no hello.
    Silent,
    /// It closed its connection to the daemon, and was stopped.
    Closed,
    /// It could not be started, or not let in.
    Unstarted,
    /// Not known: something else than the daemon has started the process, such as a script or a
    /// container's runtime.
    #[default]
    Unknown,
}

/// The death of an NF.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Death {
    /// When, by the monotonic clock of the host.
    pub time_ns: u64,
    /// When, in milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// Its cause.
    pub cause: DeathCause,
    /// Its cause in words: `killed by signal 11 (SIGSEGV)`.
    pub what: String,
}
