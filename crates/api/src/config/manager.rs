//! The manager: `[manager]`.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;
use super::{FlowTable, Idle, MAX_CORE};

/// Default file of the estimates of NFs.
pub const ESTIMATES: &str = "/var/lib/sluice/estimates.json";

/// Default runtime directory, and the folder of former configurations that goes with it.
const RUNTIME_DIR: &str = "/run/sluice";
const HISTORY: &str = "/var/lib/sluice/history";

/// The manager's threads. Roles on one core share one loop. A core may occur once in each list.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Manager {
    /// Folder of the sockets and of the record by which a later start cleans up.
    #[schemars(extend("format" = "path"))]
    pub runtime_dir: PathBuf,
    /// Folder of the last ten configurations before the present one, to which `sluice undo` goes
    /// back. Left out: `/var/lib/sluice/history` with the usual `runtime_dir`, else
    /// `RUNTIME_DIR.history`. Where it cannot be made, they are kept until a stop.
    #[schemars(extend("format" = "path"))]
    pub history: Option<PathBuf>,
    /// The least level that is logged: `error`, `warn`, `info`, `debug`, `trace` or `off`, or by
    /// module, such as `warn,sluice_sdn=debug`. Left out: as the command line of `sluiced` says.
    pub log_level: Option<String>,
    /// File of packet costs from `sluice estimate --keep`: first estimates for new NFs. Optional.
    #[schemars(extend("format" = "path"))]
    pub estimates: PathBuf,
    /// Cores of the shards: packet threads that each have all roles, a queue of each port, a flow
    /// table, and instances of their own. With them `rx`, `tx`, `wakeup` and `monitor` are left
    /// out.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub shards: Vec<usize>,
    /// Cores of the Rx threads, which poll the ports and classify.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub rx: Vec<usize>,
    /// Cores of the Tx threads, which take packets from NFs and forward them.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub tx: Vec<usize>,
    /// Cores of the Wakeup threads, which decide which NF runs. The NFs' cores are divided among
    /// them.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub wakeup: Vec<usize>,
    /// Cores of the Monitor threads, which measure. NFs are divided among them.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub monitor: Vec<usize>,
    /// What a manager thread does when it finds no packets.
    pub idle: Idle,
    /// Most NFs at a time.
    #[schemars(range(min = 1, max = 65_000))]
    pub max_nfs: u32,
    /// Which packets are looked up in the flow table.
    pub flow_table: FlowTable,
    /// Most flows in the flow table.
    #[schemars(range(min = 1, max = 1 << 27))]
    pub max_flows: u32,
    /// Most paths (ingress port, chain and instances). At the limit, flows share existing ones.
    #[schemars(range(min = 1, max = 1 << 24))]
    pub max_paths: u32,
    /// Idle timeout of flows, in milliseconds.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub flow_timeout_ms: u64,
    /// If no NF of a core makes progress for this long while packets wait, the NF with packets is
    /// woken regardless of the core's page, and the NF that had the core is left out of the
    /// hand-over until it makes progress. In microseconds; longer than a burst of the slowest NF.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub fallback_wake_us: u64,
    /// Violations (forged descriptors, wild cursors) after which an NF is stopped.
    #[schemars(range(min = 1))]
    pub max_violations: u64,
    /// An NF that holds packets and returns none for this long is stopped, in milliseconds; 0 never
    /// stops one (for a debugger).
    #[schemars(range(max = 86_400_000))]
    pub stall_ms: u64,
    /// Sampling period of latency: one packet of this many in each chain is timed; 0 times none.
    pub latency_sample: u32,
    /// How long a stop waits for the packets inside to leave, in milliseconds.
    #[schemars(range(max = 600_000))]
    pub drain_ms: u64,
    /// First user ID for services without `user`. Each gets its own, if the manager is root.
    #[schemars(range(min = 1, max = u32::MAX - 1))]
    pub uid_first: u32,
    /// Number of these user IDs. They must not be in use; those in the host's user database are
    /// skipped.
    #[schemars(range(min = 1, max = 1 << 24))]
    pub uid_count: u32,
}

impl Default for Manager {
    fn default() -> Self {
        Self {
            runtime_dir: RUNTIME_DIR.into(),
            history: None,
            log_level: None,
            estimates: ESTIMATES.into(),
            shards: Vec::new(),
            rx: vec![0],
            tx: vec![0],
            wakeup: vec![0],
            monitor: vec![0],
            idle: Idle::Adaptive,
            max_nfs: 4096,
            flow_table: FlowTable::Always,
            max_flows: 1 << 20,
            max_paths: 1 << 16,
            flow_timeout_ms: 30_000,
            fallback_wake_us: 1_000,
            max_violations: 64,
            stall_ms: 10_000,
            latency_sample: 128,
            drain_ms: 2_000,
            // Between the ranges of containers and of systemd.
            uid_first: 1_879_100_000,
            uid_count: 65_536,
        }
    }
}

impl Manager {
    /// The keys by which packet threads have their cores, and these: `shards`, or one for each
    /// role.
    pub fn roles(&self) -> Vec<(&'static str, &[usize])> {
        let roles = [("rx", &self.rx), ("tx", &self.tx), ("wakeup", &self.wakeup), ("monitor", &self.monitor)];
        match self.shards.as_slice() {
            [] => roles.map(|(key, cores)| (key, cores.as_slice())).to_vec(),
            shards => vec![("shards", shards)],
        }
    }

    /// The folder of former configurations.
    pub fn history_folder(&self) -> PathBuf {
        match &self.history {
            Some(folder) => folder.clone(),
            None if self.runtime_dir == Path::new(RUNTIME_DIR) => HISTORY.into(),
            None => {
                let mut beside = self.runtime_dir.clone().into_os_string();
                beside.push(".history");
                beside.into()
            }
        }
    }

    /// The cores of its packet threads; one with several roles is repeated.
    pub fn cores(&self) -> impl Iterator<Item = usize> {
        self.roles().into_iter().flat_map(|(_, cores)| cores.iter().copied())
    }

    /// The cores of its threads with the role Rx.
    pub fn rx_cores(&self) -> &[usize] {
        if self.shards.is_empty() { &self.rx } else { &self.shards }
    }

    /// The core of its first thread with the role Monitor, where its helpers run. The configuration
    /// is valid.
    pub fn first_monitor(&self) -> usize {
        if self.shards.is_empty() { self.monitor[0] } else { self.shards[0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_configurations_are_apart_for_each_runtime_directory() {
        let of = |runtime_dir: &str, history: Option<&str>| {
            let (runtime_dir, history) = (runtime_dir.into(), history.map(PathBuf::from));
            Manager { runtime_dir, history, ..Manager::default() }.history_folder()
        };
        assert_eq!(of("/run/sluice", None), Path::new("/var/lib/sluice/history"));
        assert_eq!(of("/tmp/run", None), Path::new("/tmp/run.history"));
        assert_eq!(of("/tmp/run", Some("/x")), Path::new("/x"));
    }
}
