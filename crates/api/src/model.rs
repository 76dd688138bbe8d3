//! The objects of the control API and of `sluice stats --json`: one type for each JSON object.
//!
//! Counters (names without a unit, or in `_packets`, `_bytes` or `_drops`) start with their object
//! and never decrease while it exists. A rate is the difference of two [`Stats`] over that of their
//! `time_ns`. Times are in nanoseconds unless the name has another unit. A test keeps
//! `deploy/openapi.json` equal. A later version may add fields; readers ignore unknown ones.

mod distribution;
mod flow;
mod nf;
mod packet;
mod timeline;
mod why;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::health::{Death, Health};
use crate::config;
use crate::counted::counted;
use crate::drops::{self, PortDrop};

pub use distribution::{Distribution, Exemplar};
pub use flow::{FlowEndReason, FlowLogCounts, FlowOrder, FlowReport, FlowsReply, FlowsRequest, MAX_FLOWS, TcpState};
pub use nf::{FeedCounts, Fusable, NfForeign, NfPart, Woken};
pub use packet::{CaptureRequest, Hop, Instruction, MAX_CAPTURES, MAX_TRACE_MS, MAX_TRACED, Trace, TraceRequest, TracedPacket};
pub use timeline::{MAX_TIMELINE_HZ, MAX_TIMELINE_MS, MAX_TIMELINES, MIN_TIMELINE_HZ, RecordRequest, Timeline};
pub use why::{Fate, FlowEntry, MAX_DIGITS, WhyNot, WhyReply, WhyRequest};

/// State of the daemon.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Seconds since it was ready.
    pub uptime_s: f64,
    /// Its process ID.
    pub pid: u32,
    /// The configuration file of the start or of the last apply.
    pub config: Option<String>,
    /// Cores of the host on which it may run.
    pub cores: u32,
    /// Its packet threads.
    pub threads: Vec<Thread>,
    /// Its packet memory.
    pub frames: Frames,
    /// Packet memory by tenant, and packets copied between tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memories: Vec<Memory>,
    /// Whether packet memory uses hugepages.
    pub hugepages: bool,
    /// Flows in the flow table.
    pub flows: u64,
    /// Share of one core spent on measurements, decisions and weights since the start, 0 to 100.
    #[serde(default)]
    pub tuning_percent: f64,
    /// Cores shared by NFs that do not cooperate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<Schedule>,
    /// The SDN controller, if the configuration names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openflow: Option<Openflow>,
    /// The flow log, if the configuration has a file or a collector for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_log: Option<FlowLogCounts>,
    /// The OpenTelemetry collector that metrics are pushed to, if the configuration names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otlp: Option<Otlp>,
    /// The instances of pooled services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pool>,
    /// Bounds of NIC receive queues.
    #[serde(default)]
    pub buffers: super::promise::Buffers,
    /// Names of SLOs by state: `kept`, `exceeded`, `violated` or `new`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub promises: BTreeMap<String, Vec<String>>,
    /// Chains that would use less of a core with `run = "fused"`. Only those whose configuration
    /// allows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fusable: Vec<Fusable>,
    /// Whether everything works, and what does not.
    #[serde(default)]
    pub health: Health,
}

counted! {
/// The SDN controller and the connection to it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Openflow {
    /// Its address.
    pub controller: String,
    /// Datapath ID of this host: 16 hexadecimal digits.
    pub datapath_id: String,
    /// Whether a connection is established and both sides have sent hello.
    pub connected: bool,
    /// Seconds since the connection was established or lost.
    pub since_s: f64,
    /// Why there is no connection, in words.
    pub problem: Option<String>,
    /// Connections so far, including this one.
    pub connections: u64 => "sluice_openflow_connections_total",
    /// Packet-ins sent.
    pub packet_ins: u64 => "sluice_openflow_packet_ins_total",
    /// Packet-ins dropped because of the rate limit or a slow controller.
    pub dropped_packet_ins: u64 => "sluice_openflow_dropped_packet_ins_total",
    /// Flow-mods received, including refused ones.
    pub flow_mods: u64 => "sluice_openflow_flow_mods_total",
    /// Errors that either side reported.
    pub errors: u64 => "sluice_openflow_errors_total",
    /// Flow entries in force.
    pub entries: u64,
    /// Packets that wait for an answer.
    pub held: u64,
}
}

counted! {
/// An OpenTelemetry collector, and the metrics that are pushed to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Otlp {
    /// Its address.
    pub collector: String,
    /// Pushes of metrics that the collector took.
    pub pushes: u64 => "sluice_otlp_pushes_total",
    /// Pushes of metrics that the collector did not take. What they would have said is in the next
    /// one.
    pub dropped_pushes: u64 => "sluice_otlp_dropped_pushes_total",
    /// Values that the collector refused of the pushes that it took.
    pub rejected_points: u64 => "sluice_otlp_rejected_points_total",
    /// Why the last push was not taken, in words.
    pub problem: Option<String>,
}
}

/// A core shared by NFs that do not cooperate; the daemon assigns their time slices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Schedule {
    /// The core.
    pub core: u32,
    /// How an NF is stopped so that another runs.
    pub mechanism: String,
    /// Why this mechanism was chosen, in words.
    pub because: String,
    /// Time of a switch in nanoseconds, as measured at the choice.
    pub switch_ns: u64,
    /// Its NFs.
    pub nfs: Vec<String>,
    /// Ended slices by reason: `slice`, `empty` (input almost), `full` (output almost), `held`,
    /// `idle`.
    pub turns: BTreeMap<String, u64>,
    /// Nanoseconds that the packet thread has spent on stopping and starting NFs.
    pub controller_ns: u64,
    /// Longest wait of an NF with packets for its slice, in nanoseconds.
    pub longest_wait_ns: u64,
    /// Longest wait of an NF with packets between two switches.
    pub wait_ns: Distribution,
    /// Failed attempts to stop or start an NF.
    pub failures: u64,
}

/// A packet thread of the manager.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Thread {
    /// `rx`, `tx`, `wakeup`, `monitor`, or several joined by `+` that share one loop.
    pub role: String,
    /// Its core.
    pub core: u32,
    /// Share of its time with packets to move, 0 to 100. A spinning thread uses its whole core.
    pub busy_percent: f64,
    /// Duration of a round with packets to move, sampled in one round of 64.
    #[serde(default)]
    pub round_ns: Distribution,
}

/// Packet memory, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Frames {
    /// All frames.
    pub total: u64,
    /// Frames without a packet, or at a port.
    pub free: u64,
    /// Frames with an NF.
    pub in_use: u64,
}

/// The packet memory of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Memory {
    /// The tenant; `-` for services without one, `ingress` for packets that may be for several (no
    /// NF maps it), `former` for all arenas that were replaced, or whose tenant is gone, and that
    /// still hold packets.
    pub tenant: String,
    /// Its frames.
    pub frames: u64,
    /// Frames without a packet that are not with a device.
    pub free: u64,
    /// Frames with an NF.
    pub in_use: u64,
    /// Packets copied into it on admission.
    pub gate_packets: u64,
    /// Bytes of these packets.
    pub gate_bytes: u64,
    /// Packets copied into it from another tenant's memory or from a program.
    pub crossing_packets: u64,
    /// Bytes of these packets.
    pub crossing_bytes: u64,
    /// Packets dropped because it had no free frame for them.
    pub starved: u64,
}

counted! {
/// A port and its counters.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Port: PortCounts {
    /// Name.
    pub name: String,
    /// `gen`, `sink`, `pcap`, `dpdk` or `af_packet`.
    pub kind: String,
    /// What was opened, in words.
    pub description: String,
    /// `drop` or `wait`.
    pub overload: String,
    /// Queues.
    pub queues: u32,
    /// Packets received.
    pub rx_packets: u64 => "sluice_port_rx_packets_total" by threads,
    /// Bytes received.
    pub rx_bytes: u64 => "sluice_port_rx_bytes_total" by threads,
    /// Packets sent.
    pub tx_packets: u64 => "sluice_port_tx_packets_total" by threads,
    /// Bytes sent.
    pub tx_bytes: u64 => "sluice_port_tx_bytes_total" by threads,
    /// Packets that the port did not accept in time.
    pub tx_drops: u64 => "sluice_port_tx_drops_total" by threads,
    /// Packets of this port dropped before any NF handled them.
    pub entry_drops: u64 => "sluice_port_entry_drops_total" by threads,
    /// Whether packets can pass.
    #[serde(default)]
    pub state: PortState,
    /// Other packets dropped at the port, by reason.
    #[serde(default)]
    #[schemars(transform = drops::of_ports_described)]
    pub drops: BTreeMap<String, u64>,
    /// Whether no more packets will arrive: the file was read or the generator's count was sent.
    #[serde(default)]
    pub finished: bool,
    /// Packets per second below its rate over the last second; 0 if within a hundredth of it, or
    /// without a rate.
    #[serde(default)]
    pub behind_pps: f64,
    /// Values that only this kind of port has, by name.
    #[serde(default)]
    pub details: BTreeMap<String, f64>,
}
}

impl Port {
    /// Packets dropped at the port for this reason, one of [`Port::drops`].
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }

    /// Packets that should have left by the port and did not.
    pub fn not_sent(&self) -> u64 {
        self.tx_drops + self.dropped(PortDrop::NoLink.name()) + self.dropped(PortDrop::Mtu.name())
    }
}

/// Whether packets can pass a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// They can.
    #[default]
    Up,
    /// Its interface is down, or its link is.
    NoLink,
    /// Its interface has disappeared. The port opens it again when it is back.
    Gone,
    /// Its interface has not appeared yet, and the port has `when_missing = "wait"`.
    Waiting,
    /// Its capture file cannot be written, as on a full disk. When its buffers are full, chains to
    /// it accept no packets.
    Blocked,
}

impl PortState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Up, Self::NoLink, Self::Gone, Self::Waiting, Self::Blocked];

    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::NoLink => "no_link",
            Self::Gone => "gone",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
        }
    }

    /// Its name in tables and logs.
    pub fn words(self) -> &'static str {
        if self == Self::NoLink { "no link" } else { self.word() }
    }
}

/// State in the life of an NF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NfState {
    /// Its process runs, but is not ready for packets.
    #[default]
    Starting,
    /// It accepts packets.
    Running,
    /// It was asked to stop and returns its packets.
    Stopping,
    /// It died and will be restarted after a pause.
    Restarting,
    /// It died or was stopped for violations, and is not restarted.
    Failed,
    /// Its service has `attach = true`, and no process has attached yet.
    Expected,
}

impl NfState {
    /// All states.
    pub const ALL: [Self; 6] = [Self::Starting, Self::Running, Self::Stopping, Self::Restarting, Self::Failed, Self::Expected];

    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Restarting => "restarting",
            Self::Failed => "failed",
            Self::Expected => "expected",
        }
    }
}

counted! {
/// One instance of a service.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Nf: NfCounts {
    /// Name: `SERVICE.i`.
    pub name: String,
    /// Its service.
    pub service: String,
    /// Its number in descriptors and in the handshake.
    pub number: u32,
    /// Its process ID, if there is a process.
    pub pid: Option<u32>,
    /// Its core.
    pub core: u32,
    /// Its state.
    pub state: NfState,
    /// `sleep`, `poll` or `foreign`.
    pub mode: String,
    /// Number of restarts.
    pub restarts: u64 => "sluice_nf_restarts_total",
    /// Packets posted to its rx rings.
    pub rx_packets: u64 => "sluice_nf_rx_packets_total" by threads,
    /// Packets taken from its tx ring.
    pub tx_packets: u64 => "sluice_nf_tx_packets_total" by threads,
    /// Packets returned with the verdict `drop`.
    pub verdict_drops: u64 => "sluice_nf_verdict_drops_total" by threads,
    /// Packets posted and not yet returned.
    pub queue: u64,
    /// Most such packets.
    pub queue_capacity: u64,
    /// Forged descriptors and wild cursors.
    pub violations: u64 => "sluice_nf_violations_total",
    /// Share of one core that its process used in the last sampling period, 0 to 100.
    pub cpu_percent: f64,
    /// Time for a burst, as the NF reports it.
    pub service_ns: Distribution,
    /// Number of times that it went to sleep.
    pub sleeps: u64 => "sluice_nf_sleeps_total",
    /// Number of times that it started the next NF on its core.
    pub hand_overs: u64 => "sluice_nf_hand_overs_total",
    /// Number of times that the manager rang its doorbell.
    pub wakes: u64 => "sluice_nf_wakes_total" by threads,
    /// Frames that it owns at present.
    pub frames_held: u64,
    /// Time from the start of its process to its admission, in nanoseconds; none if it attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ns: Option<u64>,
    /// Time from the start of its process to its first returned packet, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_packet_ns: Option<u64>,
    /// Time to reclaim the frames of its last dead process, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_ns: Option<u64>,
    /// Number of times that it was stopped for violations or a stall.
    #[serde(default)]
    pub stops: u64 => "sluice_nf_stops_total",
    /// Its last death, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_death: Option<Death>,
    /// Measurements of its load and decisions about it.
    #[serde(default)]
    pub sched: NfSched,
    /// Packets of a foreign program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<NfForeign>,
    /// Wakes by cause, unless it is woken for each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken: Option<Woken>,
    /// Of a group: the handlers that run in it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<NfPart>,
    /// In the answer to a request that started or moved it: probable mistakes, such as a core where
    /// a packet thread never sleeps. Each names a remedy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
}

counted! {
/// Load of an NF, and decisions about it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct NfSched: SchedCounts {
    /// Its weight besides load: that of its service, or what it asked for, times that of its flow.
    pub priority: f64,
    /// An NF with a higher level precedes others on its core until it has used its part; default 0.
    #[serde(default)]
    pub level: u32,
    /// Packets per second on their way to it, including those refused at an entry.
    pub arrival_pps: f64,
    /// Median service time per packet over the last 100 ms, in nanoseconds; 0 until known.
    pub service_ns: f64,
    /// Cores that it needs: the larger of arrivals times cost and the CPU time that it used, with
    /// waking and switching; for a polling NF, arrivals times cost.
    pub load: f64,
    /// Its share of its core, 0 to 1; 0 until one is set.
    pub share: f64,
    /// Number of times that its share was written.
    pub share_writes: u64 => "sluice_nf_share_writes_total",
    /// Whether the chains that pass it are refused at their entry.
    pub throttled: bool,
    /// Number of times that throttling began.
    pub throttles: u64 => "sluice_nf_throttles_total",
    /// Whether it has to sleep because its output would only wait further on.
    pub held: bool,
    /// Packets marked (congestion experienced) on their way to it.
    pub marked: u64 => "sluice_nf_marked_total" by threads,
    /// Cost of a packet in nanoseconds, measured as CPU time over packets; 0 until known, or
    /// without time slices.
    #[serde(default)]
    pub outside_ns: f64,
    /// Its time slices, if NFs of its core do not cooperate.
    #[serde(default)]
    pub turns: u64 => "sluice_nf_turns_total",
    /// Number of times that its priority changed because it asked for another.
    #[serde(default)]
    pub priority_changes: u64 => "sluice_nf_priority_changes_total",
}
}

/// Kind of an [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Throttling of the chains that pass the NF began or ended.
    #[default]
    Throttle,
    /// The NF's share of its core was written.
    Share,
    /// The state of a port changed.
    Port,
    /// The NF died, or was stopped for cause.
    Death,
    /// The NF is restarted after a death.
    Restart,
    /// A service was upgraded, or the upgrade failed.
    Upgrade,
    /// An NF moved to another core, or the move failed.
    Move,
    /// A configuration was applied, or keys of it were set, at least in part.
    Apply,
    /// An NF, a service, a chain, a rule or a port was added.
    Add,
    /// An NF, a service, a chain, a rule or a port was removed.
    Remove,
    /// A chain changed what it does with packets at its entry.
    Chain,
    /// An SLO was broken: its throughput or its latency.
    Promise,
    /// The flight recorder wrote a timeline.
    Timeline,
    /// The priority of an NF changed, because it asked for another.
    Priority,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Throttle,
        Self::Share,
        Self::Death,
        Self::Restart,
        Self::Upgrade,
        Self::Move,
        Self::Apply,
        Self::Add,
        Self::Remove,
        Self::Chain,
        Self::Port,
        Self::Promise,
        Self::Timeline,
        Self::Priority,
    ];

    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Throttle => "throttle",
            Self::Share => "share",
            Self::Port => "port",
            Self::Death => "death",
            Self::Restart => "restart",
            Self::Upgrade => "upgrade",
            Self::Move => "move",
            Self::Apply => "apply",
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Chain => "chain",
            Self::Promise => "promise",
            Self::Timeline => "timeline",
            Self::Priority => "priority",
        }
    }
}

/// An event. Decisions about an NF are summed up over a tenth of a second.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Event {
    /// Number of the event, from 1; missing ones were discarded.
    pub number: u64,
    /// Time by the monotonic clock of the host.
    pub time_ns: u64,
    /// Time in milliseconds since 1970 (UTC); 0 if unknown.
    #[serde(default)]
    pub unix_ms: u64,
    /// Name of the NF; empty if another object is concerned.
    pub nf: String,
    /// Kind and name of an object other than an NF: `chain web`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Kind of the event.
    pub event: EventKind,
    /// Number of occurrences.
    pub count: u64,
    /// Description, except for throttles and shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// For a throttle: whether it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<bool>,
    /// For a share: the old one, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// For a share: the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<f64>,
    /// For a port: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// For a port: its new state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PortState>,
}

/// A kind of NF.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Service {
    /// Name.
    pub name: String,
    /// Names of its instances.
    pub instances: Vec<String>,
    /// Number of instances that accept packets.
    pub running: u32,
    /// Its program; none if instances attach or their bundle names it.
    pub exec: Option<String>,
    /// Bundle or root directory of the containers that instances run in.
    #[serde(default)]
    pub container: Option<String>,
    /// Arguments of its program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Whether instances are started from outside.
    pub attach: bool,
    /// Whether an instance can move to another core without losing a packet.
    #[serde(default)]
    pub moves: bool,
    /// Cores of new instances, assigned round robin.
    pub cores: Vec<usize>,
    /// `sleep`, `poll` or `foreign`.
    pub mode: String,
    /// Capacity of each ring.
    pub ring: u32,
    /// Tenant, if named.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The process from which its instances are forked, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zygote: Option<Zygote>,
}

/// The process from which instances of a service are forked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Zygote {
    /// `starting`, `ready`, `restarting`, or `unfit` (instances are started one by one).
    pub state: String,
    /// Its process ID, while it runs.
    pub pid: Option<u32>,
    /// Instances forked.
    pub forks: u64,
    /// Why it is unfit.
    #[serde(default)]
    pub why: Option<String>,
}

counted! {
/// The instances of a pooled service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Pool: PoolCounts {
    /// The service.
    pub service: String,
    /// What an instance receives: `flow`, `class`, `rss` or `round-robin`.
    pub per: String,
    /// Least number of instances.
    pub min: u32,
    /// Most instances.
    pub max: u32,
    /// How an instance is reset for the next flow: `reset` or `strict`.
    pub isolation: String,
    /// Instances, including those being started.
    pub size: u32,
    /// Instances without a flow.
    pub idle: u64,
    /// Instances with a flow.
    pub assigned: u64,
    /// Instances whose flow has ended, but which still get its late packets.
    pub lingering: u64,
    /// Instances that are being reset or wait for their last packets.
    pub resetting: u64,
    /// Flows that were assigned an instance.
    pub activations: u64 => "sluice_pool_activations_total" by threads,
    /// Number of times that an instance became idle again.
    pub ended: u64 => "sluice_pool_ended_total" by threads,
    /// Flows that ended because their instances said that they are over.
    #[serde(default)]
    pub ended_by_nf: u64 => "sluice_pool_ended_by_nf_total" by threads,
    /// Packets that waited for an idle instance.
    pub waits: u64 => "sluice_pool_waits_total" by threads,
    /// Flows that went to the shared service instead.
    pub fallbacks: u64 => "sluice_pool_fallbacks_total" by threads,
    /// Packets dropped because no instance was idle.
    pub drops: u64 => "sluice_pool_drops_total" by threads,
    /// Time from the first packet of a flow until its instances are assigned.
    pub setup_ns: Distribution,
}
}

/// What a chain does with packets at its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChainState {
    /// Accepts them.
    #[default]
    Open,
    /// Refuses them for now: throttled, or an NF is being restarted.
    Refused,
    /// Accepts them, and skips a hop.
    Bypassing,
    /// Drops them: an NF is gone for good.
    Down,
}

impl ChainState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Open, Self::Refused, Self::Bypassing, Self::Down];

    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Refused => "refused",
            Self::Bypassing => "bypassing",
            Self::Down => "down",
        }
    }
}

counted! {
/// A chain and its counters.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Chain: ChainCounts {
    /// Name.
    pub name: String,
    /// Its services, in order.
    pub services: Vec<String>,
    /// Port where packets leave.
    pub egress: String,
    /// `drop`, `bypass` or `restart`.
    pub on_failure: String,
    /// What it does with packets at its entry.
    pub state: ChainState,
    /// Packets that entered.
    pub entry_packets: u64 => "sluice_chain_entry_packets_total" by threads,
    /// Packets that left by its port.
    pub exit_packets: u64 => "sluice_chain_exit_packets_total" by threads,
    /// Packets that its foreign programs created, or returned after they counted as `not_back`.
    /// Packets that left, were dropped or are inside add up to `entry_packets +
    /// originated_packets`.
    #[serde(default)]
    pub originated_packets: u64 => "sluice_chain_originated_packets_total" by threads,
    /// Packets that did not leave, by reason: the words of [`Stats::drops`].
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Time from entry to exit of sampled packets.
    pub latency_ns: Distribution,
    /// Flows that had such a packet, while flows are metered: the last one for each power of two of
    /// its longest time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exemplars: Vec<Exemplar>,
    /// Whether one of its NFs throttles it, so that it refuses packets.
    #[serde(default)]
    pub throttled: bool,
    /// Packets dropped after an NF had handled them.
    #[serde(default)]
    pub wasted: u64 => "sluice_chain_wasted_total",
}
}

/// A rule and its counter.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Rule {
    /// Name.
    pub name: String,
    /// Position in the order of evaluation, from 0.
    pub position: usize,
    /// What it matches, and the chain. Its `name` is [`Rule::name`].
    #[serde(rename = "match")]
    pub matches: config::Rule,
    /// Chain of the matching packets.
    pub chain: String,
    /// Decisions: one for each new flow, and for each known one when rules or its NFs change. The
    /// flow table handles all other packets.
    pub hits: u64,
}

/// All counters at one moment.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Stats {
    /// Time by the monotonic clock of the host.
    pub time_ns: u64,
    /// State of the daemon.
    pub status: Status,
    /// Ports.
    pub ports: Vec<Port>,
    /// Services.
    pub services: Vec<Service>,
    /// NFs.
    pub nfs: Vec<Nf>,
    /// Chains.
    pub chains: Vec<Chain>,
    /// Rules, in order.
    pub rules: Vec<Rule>,
    /// How SLOs are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<super::promise::Promise>,
    /// Packets dropped, by reason.
    #[schemars(transform = drops::all_described)]
    pub drops: BTreeMap<String, u64>,
    /// Counters of chains and ports that were removed.
    #[serde(default)]
    pub gone: Gone,
}

/// Counters of removed chains, ports, NFs, pools and rules whose name no present one has. Packets
/// inside a removed chain are counted to their end. `totals` in the daemon defines the details.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Gone {
    /// Counters of chains.
    #[serde(flatten)]
    pub chains: ChainCounts,
    /// Counters of ports.
    #[serde(flatten)]
    pub ports: PortCounts,
    /// Packets that did not leave chains, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets dropped after an NF had handled them.
    #[serde(default)]
    pub wasted: u64,
    /// Time from entry to exit of sampled packets.
    #[serde(default)]
    pub latency_ns: Distribution,
    /// Other packets dropped at ports, by reason, as in [`Port::drops`].
    #[serde(default)]
    pub port_drops: BTreeMap<String, u64>,
    /// Counters that only one kind of port has, by name.
    #[serde(default)]
    pub details: BTreeMap<String, f64>,
    /// Packets that left their chain after their port was removed; also in the total of `port_tx`.
    pub unsent_packets: u64,
    /// Decisions of rules.
    #[serde(default)]
    pub decisions: u64,
    /// Sums over the removed NFs of each service; only the counters are valid.
    #[serde(default)]
    pub nfs: BTreeMap<String, Nf>,
    /// Sum over removed pools; only the counters are valid.
    #[serde(default)]
    pub pools: Pool,
}

/// Body of `POST /v1/nfs`: one more instance of a service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNf {
    /// The service.
    pub service: String,
    /// Its core; by default the next of the service's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
}

/// Parameters of `DELETE /v1/nfs/{name}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveNf {
    /// Whether to remove even the last instance of a service that an open chain passes.
    #[serde(default)]
    pub force: bool,
}

/// Body of `POST /v1/nfs/{name}/move`: another core for an instance.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveNf {
    /// The core.
    pub core: usize,
}

/// Body of `POST /v1/services/{name}/upgrade`: another version of the service's program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Its program. A bare name is searched for in the folder of `sluiced`, then in PATH. In a
    /// container with a `root` it is the path in the container.
    pub exec: String,
    /// Its arguments; by default those of the old version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
}

/// Answer of `POST /v1/services/{name}/upgrade`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Upgraded {
    /// The service.
    pub service: String,
    /// Its present program.
    pub exec: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Instances of the new version.
    pub instances: Vec<String>,
    /// For a pool: old members. Those with a flow leave when it ends, the others at once.
    #[serde(default)]
    pub leaving: u32,
}

/// Body of `POST /v1/rules`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddRule {
    /// The rule.
    pub rule: config::Rule,
    /// Its position, from 0; last by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
}

/// Body of `POST /v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The whole configuration, as TOML text.
    pub config: String,
    /// Name of its file, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether to report what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer of `POST /v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Applied {
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// The changes, in order. Empty if the daemon already runs this configuration.
    pub changes: Vec<Change>,
    /// Probable mistakes in the configuration, each with its place and a remedy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Answer to a request without further results.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Done {
    /// True.
    pub done: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_json() {
        for state in NfState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
        for state in ChainState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
    }
}
