//! Health of the daemon and deaths of NFs, as the API reports them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether everything works.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Health {
    /// The state in one word.
    pub verdict: HealthVerdict,
    /// What does not work, longest first; at most [`MOST`]. Empty if the verdict is `healthy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What works poorly, such as a generator below its rate; at most [`MOST`]. Not in the verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Problem>,
}

/// Most problems, and most warnings, in a report.
pub const MOST: usize = 64;

/// The daemon's health in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Verdict")]
pub enum HealthVerdict {
    /// All chains and ports accept packets; all NFs run or are starting.
    #[default]
    Healthy,
    /// Something does not work.
    Degraded,
}

impl HealthVerdict {
    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
        }
    }
}

/// A part of the daemon that does not work.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Problem {
    /// Kind and name of what does not work, such as `chain web` or `nf fw.0`.
    pub subject: String,
    /// What is wrong with it, in words.
    pub what: String,
    /// Seconds since it began.
    pub since_s: f64,
}

/// Why an NF's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeathCause {
    /// A signal killed it.
    Signal,
    /// It returned an exit status.
    Exit,
    /// The kernel killed it because it, or the host, ran out of memory.
    Memory,
    /// The daemon stopped it for its violations.
    Violations,
    /// The daemon stopped it because it held packets and returned none.
    Stalled,
    /// The daemon stopped it because it sent no hello.
    Silent,
    /// It closed its connection to the daemon, and was stopped.
    Closed,
    /// It could not be started or admitted.
    Unstarted,
    /// Its handlers have failed in a packet thread (an inline chain).
    Failed,
    /// Unknown: the daemon is not its parent; a script or a container runtime started it.
    #[default]
    Unknown,
}

/// The death of an NF.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Death {
    /// Time by the monotonic clock of the host.
    pub time_ns: u64,
    /// Time in milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// Its cause.
    pub cause: DeathCause,
    /// Its cause in words: `killed by signal 11 (SIGSEGV)`.
    pub what: String,
}
