//! What is measured, and why it cannot be.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use sluice_host::spawn::SpawnError;
use sluice_host::user::User;

/// Time limit for an NF to attach, and for a burst to come back.
pub const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// Name for messages and for the NF itself.
    pub name: String,
    /// An absolute path.
    pub exec: PathBuf,
    pub args: Vec<OsString>,
    /// Environment, besides what attaching needs.
    pub env: Vec<(OsString, OsString)>,
    /// User; by default the caller's.
    pub user: Option<User>,
    /// Names of ports, services and chains that it may look up.
    pub names: Names,
}

/// Names that an NF may look up, by number.
#[derive(Debug, Clone, Default)]
pub struct Names {
    pub ports: Vec<String>,
    pub services: Vec<String>,
    pub chains: Vec<String>,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    #[error("there are no packets to send: give a capture with packets, or leave it out for crafted ones")]
    NoPackets,
    #[error(
        "a packet of {bytes} bytes does not fit in a frame; at most {most} do: cut the capture, for instance with `editcap -s {most}`"
    )]
    TooLong { bytes: usize, most: usize },
    #[error("NF and measurement need a core each, and core {core} is the only one that this process may use; allow it another one")]
    OneCore { core: usize },
    #[error(
        "{0} is missing: it is what the cost of the rings is measured with; it stands beside sluice (`make build` builds both)"
    )]
    NoReference(&'static str),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("{name} ended ({how}) {when}; look at its arguments{said}")]
    Ended {
        name: String,
        /// How it ended.
        how: String,
        /// Before or during which phase.
        when: &'static str,
        /// Its last output, on separate lines.
        said: String,
    },
    #[error("{name} did not attach within {} s: only programs that use Sluice's NF library can be measured", PATIENCE.as_secs())]
    Silent { name: String },
    #[error("{name} has returned {returned} of {packets} packets after {} s: it keeps packets, so what a burst takes cannot be said",
            PATIENCE.as_secs())]
    Keeps { name: String, returned: usize, packets: usize },
    #[error("{name} breaks the rules of its rings: {what}; it would be stopped in use")]
    Broken { name: String, what: &'static str },
    #[error(
        "other programs keep the cores so busy that the time of a burst cannot be measured: in between, the rings alone took up to \
             {spread_us:.0} µs of it more than at best; stop them, or measure when they are done"
    )]
    Disturbed {
        /// Excess of the rings' cost, in microseconds.
        spread_us: f64,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: std::io::Error },
}
