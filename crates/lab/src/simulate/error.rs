//! Why a configuration cannot be simulated.

use sluice_policy::sim;

use super::options::MOST_PPS;

/// Most names in a sentence.
const NAMES: usize = 8;

/// Why a configuration cannot be simulated, and what to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    #[error(
        "nothing says how many packets a second come in at {}; say --rate PPS for all such ports, or --rate {}=PPS for each",
        names(ports),
        ports[0]
    )]
    NoRate { ports: Vec<String> },
    #[error(
        "nothing says what a packet costs {}; there are four ways: --cost {}=CYCLES for each; --measured, where a daemon runs them \
         under load; `sluice estimate {} --config CONFIG --keep`, which measures one alone; or exec = \"sluice-nf-cost\" with args = [\"--cycles\", \"CYCLES\"] in the configuration",
        names(services),
        services[0],
        services[0]
    )]
    NoCost { services: Vec<String> },
    /// An option names something that the configuration lacks.
    #[error("{option} {name}: the configuration has no {what} of that name; {hint}")]
    Unknown {
        option: &'static str,
        name: String,
        /// `port` or `service`.
        what: &'static str,
        hint: String,
    },
    #[error("port {port} has a rate of {rate} packets per second; it can be 0 to {:e}", MOST_PPS)]
    Rate { port: String, rate: f64 },
    /// Settings or rules that the daemon would refuse, too.
    #[error("{0}")]
    Refused(String),
    #[error("service {service}: {what}; mend its args, or say --cost {service}=CYCLES")]
    Arguments { service: String, what: String },
    #[error("chain {chain} passes service {service}, which has no instances; write instances = 1 or more")]
    NoInstances { chain: String, service: String },
    #[error(
        "all packets take inline chains ({}), whose handlers run in the packet threads, which are not simulated; write run = \"fused\" \
         to simulate such a chain as one process",
        names(chains)
    )]
    Inline { chains: Vec<String> },
    #[error(
        "no packet would meet an NF; `sluice check` says whether rules lead to chains with services, and rates must be above 0"
    )]
    Nothing,
    #[error(transparent)]
    Scenario(#[from] sim::ScenarioError),
}

impl SimulateError {
    /// Whether other options would help.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::NoRate { .. } | Self::NoCost { .. } | Self::Unknown { .. } | Self::Rate { .. })
    }
}

/// Names with commas between, shortened where they are many.
pub(super) fn names(all: &[String]) -> String {
    match all.len().saturating_sub(NAMES) {
        0 => all.join(", "),
        more => format!("{} and {more} more", all[..NAMES].join(", ")),
    }
}
