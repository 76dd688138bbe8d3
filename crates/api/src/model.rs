//! What the control API says: plain types, one to each JSON object, shared by the daemon, its client and anyone who reads
//! `sluice stats --json`.
//!
//! Counters (names that end in no unit, `_packets`, `_bytes` or `_drops`) count from the start of what they belong to and never go
//! back, except when that is made anew; rates are the difference of two [`Stats`] over the difference of their `time_ns`. Times
//! are nanoseconds unless the name says otherwise. `deploy/openapi.json` describes the same objects, and a test keeps both equal.
//! A later version may add fields; a reader ignores those it does not know.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_policy::plan::load::Measured;
use sluice_shm::histogram::Histogram;

use super::change::Change;
use super::health::{Death, Health};
use crate::config;

/// What the daemon is and has.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Seconds since it was ready.
    pub uptime_s: f64,
    /// Its process.
    pub pid: u32,
    /// The configuration file that it was started with or that was applied last.
    pub config: Option<String>,
    /// Cores of the host that it may use.
    pub cores: u32,
    /// Its packet threads.
    pub threads: Vec<Thread>,
    /// Its packet memory.
    pub frames: Frames,
    /// The same by tenant, and what was copied from one to another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memories: Vec<Memory>,
    /// Whether packet memory stands on hugepages.
    pub hugepages: bool,
    /// Flows that the flow table remembers at the moment.
    pub flows: u64,
    /// Share of one core that measuring, deciding and writing weights took since the start, 0 to 100.
    #[serde(default)]
    pub tuning_percent: f64,
    /// Cores that NFs which do not cooperate share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<Schedule>,
    /// The SDN controller that is asked about flows, if the configuration names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openflow: Option<Openflow>,
    /// The instances of services that are not shared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pool>,
    /// How receive queues of NICs are bounded.
    #[serde(default)]
    pub buffers: super::promise::Buffers,
    /// Of promises, by state: `kept`, `exceeded`, `violated` or `new`, the names of those that are in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub promises: BTreeMap<String, Vec<String>>,
    /// Whether all works that is to work, and what does not.
    #[serde(default)]
    pub health: Health,
}

/// The SDN controller that is asked about flows, and how it is with it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Openflow {
    /// Where it listens.
    pub controller: String,
    /// The identity that it knows this host by: 16 hexadecimal digits.
    pub datapath_id: String,
    /// Whether there is a connection, over which both have said hello.
    pub connected: bool,
    /// Seconds since there is one, or none.
    pub since_s: f64,
    /// Why there is none, in words.
    pub problem: Option<String>,
    /// Connections that there were, this one too.
    pub connections: u64,
    /// Packets that it was shown.
    pub packet_ins: u64,
    /// Packets that it was to be shown: too many in a second, or it did not read them.
    pub dropped_packet_ins: u64,
    /// Changes of entries that it asked for, refused ones too.
    pub flow_mods: u64,
    /// Errors that either side told the other of.
    pub errors: u64,
    /// Flow entries in force.
    pub entries: u64,
    /// Packets that wait for an answer.
    pub held: u64,
}

/// A core that NFs which do not cooperate share: turns are made from outside.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Schedule {
    /// The core.
    pub core: u32,
    /// How an NF is stopped so that another runs.
    pub mechanism: String,
    /// Why by this, in words.
    pub because: String,
    /// What a switch takes, as measured when it was chosen, in nanoseconds.
    pub switch_ns: u64,
    /// Its NFs.
    pub nfs: Vec<String>,
    /// Turns that ended, by why: `slice`, `empty` (its input was almost), `full` (its output was almost), `held`, `idle`.
    pub turns: BTreeMap<String, u64>,
    /// Nanoseconds that the packet thread spent stopping and starting NFs.
    pub controller_ns: u64,
    /// The longest that an NF with packets has waited for its turn, in nanoseconds.
    pub longest_wait_ns: u64,
    /// The longest wait of an NF with packets between two changes of turns.
    pub wait_ns: Distribution,
    /// Times that an NF could not be stopped or started.
    pub failures: u64,
}

/// A packet thread of the manager.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Thread {
    /// `rx`, `tx`, `wakeup`, `monitor`, or several with `+` between, where one loop runs them all.
    pub role: String,
    /// Its core.
    pub core: u32,
    /// Share of its time in which it had packets to move, 0 to 100. A spinning thread uses its whole core all the same.
    pub busy_percent: f64,
    /// Time that it takes for a round in which it has packets to move, of one round in 64.
    #[serde(default)]
    pub round_ns: Distribution,
}

/// Packet memory, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Frames {
    /// All.
    pub total: u64,
    /// All others: without a packet, or with a port.
    pub free: u64,
    /// With an NF.
    pub in_use: u64,
}

/// The packet memory of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Memory {
    /// The tenant: `-` of services without one; `ingress` where packets come in that may be for
    /// several, which no NF maps; `former` of all arenas that were made anew and wait for the last
    /// of their packets.
    pub tenant: String,
    /// Its frames.
    pub frames: u64,
    /// Of these, without a packet, and not with a device.
    pub free: u64,
    /// With an NF.
    pub in_use: u64,
    /// Packets that were copied into it when they were let in.
    pub gate_packets: u64,
    /// Their bytes.
    pub gate_bytes: u64,
    /// Packets that were copied into it from another tenant's, or when they came out of a program.
    pub crossing_packets: u64,
    /// Their bytes.
    pub crossing_bytes: u64,
    /// Packets that were dropped because it had no free frame for them.
    pub starved: u64,
}

/// A port and its counters.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Port {
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
    /// Packets in.
    pub rx_packets: u64,
    /// Bytes in.
    pub rx_bytes: u64,
    /// Packets out.
    pub tx_packets: u64,
    /// Bytes out.
    pub tx_bytes: u64,
    /// Packets that the port did not take in time.
    pub tx_drops: u64,
    /// Packets of this port that were dropped before any NF worked on them.
    pub entry_drops: u64,
    /// Whether packets can go through it.
    #[serde(default)]
    pub state: PortState,
    /// Other packets that were dropped at the port, by reason: `no_link` (there was no interface, or it had no link), `mtu` (larger than
    /// the interface takes), `oversize` (came in, and larger than packet memory holds; not counted among those that came in).
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Whether no packet will come in any more: a file that was read, a generator that has sent its count.
    #[serde(default)]
    pub finished: bool,
    /// Packets per second that its rate asks for and that it did not make over the last second; 0 where it keeps its rate, within a
    /// hundredth, or has none.
    #[serde(default)]
    pub behind_pps: f64,
    /// What only this kind of port knows, by name.
    #[serde(default)]
    pub details: BTreeMap<String, f64>,
}

impl Port {
    /// Packets that were dropped at the port for this reason, one of [`Port::drops`].
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }

    /// Packets that were to leave by the port and did not, for whatever reason.
    pub fn not_sent(&self) -> u64 {
        self.tx_drops + self.dropped("no_link") + self.dropped("mtu")
    }
}

/// Whether packets can go through a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// They can.
    #[default]
    Up,
    /// Its interface is down, or nothing is at the other end.
    NoLink,
    /// Its interface was there and is not any more. It is opened again when there is one of its name.
    Gone,
    /// Its interface was not there yet, and the port says `when_missing = "wait"`.
    Waiting,
    /// Its capture file cannot be written: the disk is full, for example. When its buffers are full, chains to it take no packets.
    Blocked,
}

impl PortState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Up, Self::NoLink, Self::Gone, Self::Waiting, Self::Blocked];

    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::NoLink => "no_link",
            Self::Gone => "gone",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
        }
    }

    /// The words of tables and logs.
    pub fn words(self) -> &'static str {
        if self == Self::NoLink { "no link" } else { self.word() }
    }
}

/// Where an NF is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NfState {
    /// Its process runs, and is not ready for packets yet.
    #[default]
    Starting,
    /// It takes packets.
    Running,
    /// It was told to leave and returns its packets.
    Stopping,
    /// It died and is started again after a pause.
    Restarting,
    /// It died, or was stopped for its violations, and stays so.
    Failed,
    /// Its service says `attach = true`, and nobody has attached yet.
    Expected,
}

impl NfState {
    /// All states.
    pub const ALL: [Self; 6] = [Self::Starting, Self::Running, Self::Stopping, Self::Restarting, Self::Failed, Self::Expected];

    /// The word of the API.
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

/// One instance of a service.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Nf {
    /// Name: `SERVICE.i`.
    pub name: String,
    /// Its service.
    pub service: String,
    /// The number that descriptors and the handshake know it by.
    pub number: u32,
    /// Its process, if there is one.
    pub pid: Option<u32>,
    /// Its core.
    pub core: u32,
    /// Where it is in its life.
    pub state: NfState,
    /// `sleep`, `poll` or `foreign`.
    pub mode: String,
    /// Times that it was started again.
    pub restarts: u64,
    /// Packets posted to its rx rings.
    pub rx_packets: u64,
    /// Packets taken from its tx ring.
    pub tx_packets: u64,
    /// Packets that came back with the verdict `drop`.
    pub verdict_drops: u64,
    /// Packets posted and not yet returned.
    pub queue: u64,
    /// Most of those.
    pub queue_capacity: u64,
    /// Forged descriptors and wild cursors.
    pub violations: u64,
    /// Share of one core that its process used over the last sampling period, 0 to 100.
    pub cpu_percent: f64,
    /// Time that it takes for a burst, by its own word.
    pub service_ns: Distribution,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Times that it started the next NF on its core.
    pub hand_overs: u64,
    /// Times that the manager rang its doorbell.
    pub wakes: u64,
    /// Frames that it owns at the moment.
    pub frames_held: u64,
    /// Time from the start of its process until it was let in, in nanoseconds; none if it came by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ns: Option<u64>,
    /// Time from the start of its process until it returned its first packet, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_packet_ns: Option<u64>,
    /// Time that it took to take back the frames of its last process that died, from the news of its end, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_ns: Option<u64>,
    /// Times that it was stopped for its violations, or because it stood still.
    #[serde(default)]
    pub stops: u64,
    /// How it died last, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_death: Option<Death>,
    /// What is measured of its load and decided about it.
    #[serde(default)]
    pub sched: NfSched,
    /// Of a foreign program: what went in and came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<NfForeign>,
    /// Of one that is not woken for each packet: how often it was let go on, by cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub woken: Option<Woken>,
    /// In the answer to a request that started or moved it: what is probably not as it was meant, such as a core where a packet
    /// thread never sleeps. Each says what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Nf {
    /// What a packet costs its core, in nanoseconds; 0 until known. From outside, taking and returning packets counts with the rest.
    pub fn cost_ns(&self) -> f64 {
        self.sched.service_ns.max(self.sched.outside_ns)
    }

    /// Its load by what else is told of it, in cores ([`sluice_policy::plan::load`]).
    pub fn load(&self) -> f64 {
        let (arrival_pps, used) = (self.sched.arrival_pps, self.cpu_percent / 100.0);
        Measured { arrival_pps, cost_ns: self.cost_ns(), used, polls: self.mode == "poll" }.load()
    }
}

/// How often an NF that is not woken for each packet was let go on, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Woken {
    /// Its flow had only begun.
    pub early: u64,
    /// As many packets waited as its threshold said.
    pub threshold: u64,
    /// Fewer waited, and long enough.
    pub timer: u64,
    /// A packet that ends a connection came.
    pub urgent: u64,
}

impl Woken {
    /// Each cause as a word, and its count.
    pub fn causes(&self) -> [(&'static str, u64); 4] {
        [("early", self.early), ("threshold", self.threshold), ("timer", self.timer), ("urgent", self.urgent)]
    }
}

/// What is counted of a program that knows nothing of Sluice, over all its lives.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct NfForeign {
    /// Packets that went in.
    pub entered: u64,
    /// Packets that came out and went on.
    pub returned: u64,
    /// Of these, the ones that it made itself.
    pub originated: u64,
    /// Packets that went in and did not come back in time. Of a program that eats packets by design these are no losses.
    pub not_back: u64,
    /// Packets that went in and may still come back.
    pub inside: u64,
    /// Packets that came out and belong to no chain.
    pub strays: u64,
    /// Packets that a tap was not shown, because its wire was full.
    pub missed: u64,
    /// Packets that came out while there was no room for them.
    pub overruns: u64,
    /// Whether it eats packets by design.
    pub by_design: bool,
    /// Its processes.
    pub processes: Vec<u32>,
}

/// An NF's load, and what was decided about it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct NfSched {
    /// Weight beside its load: of its service, times that of the flow that it has.
    pub priority: f64,
    /// Who has a higher one goes before others of its core while it has used up less than its part; 0 is ordinary.
    #[serde(default)]
    pub level: u32,
    /// Packets per second that want to come to it, those refused at an entry with them.
    pub arrival_pps: f64,
    /// Median of its service time over the last 100 ms, in nanoseconds a packet; 0 until known.
    pub service_ns: f64,
    /// Cores that it asks for: the larger of what its packets ask for (arrivals times what a packet costs) and the CPU time that it
    /// really used, waking and switching with it; of one that polls, what its packets ask for.
    pub load: f64,
    /// Its share of its core, 0 to 1; 0 until one was given.
    pub share: f64,
    /// Times that its share was written.
    pub share_writes: u64,
    /// Whether the chains that pass it are refused at their entry.
    pub throttled: bool,
    /// Times that they began to be.
    pub throttles: u64,
    /// Whether it is told to sleep, because what it could do would only wait further on.
    pub held: bool,
    /// Packets that were marked on their way to it (congestion experienced).
    pub marked: u64,
    /// What a packet costs it in nanoseconds, told from outside: CPU time over packets; 0 until known, and of NFs that have no turns.
    #[serde(default)]
    pub outside_ns: f64,
    /// Turns that it was given, where NFs do not cooperate.
    #[serde(default)]
    pub turns: u64,
}

/// What an [`Event`] tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Chains that pass the NF were refused at their entry, or are let in again.
    #[default]
    Throttle,
    /// The NF's share of its core was written anew.
    Share,
    /// A port has another state.
    Port,
    /// The NF died, or was stopped for cause.
    Death,
    /// The NF is started again after a death.
    Restart,
    /// A service went over to another version, or did not.
    Upgrade,
    /// An NF went to another core, or did not.
    Move,
    /// A configuration was applied, or a part of it.
    Apply,
    /// An NF, a service, a chain, a rule or a port was added.
    Add,
    /// One of them was removed.
    Remove,
    /// A chain does something else with packets at its entry than before.
    Chain,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
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
    ];

    /// The word of the API.
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
        }
    }
}

/// Something that has happened. Decisions about an NF are summed up over a tenth of a second.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Event {
    /// Number of the event, from 1; those that are missing have been pushed out.
    pub number: u64,
    /// The monotonic clock of the host.
    pub time_ns: u64,
    /// The host's other clock, in milliseconds since 1970 (UTC); 0 where the daemon does not say.
    #[serde(default)]
    pub unix_ms: u64,
    /// Name of the NF; empty if it is about something else.
    pub nf: String,
    /// Kind and name of what it is about, if that is no NF: `chain web`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What has happened.
    pub event: EventKind,
    /// How many times.
    pub count: u64,
    /// In words, but for throttles and shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Of a throttle: whether it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<bool>,
    /// Of a share: what it was, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// Of a share: what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<f64>,
    /// Of a port: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Of a port: its state from now on.
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
    /// How many of them take packets.
    pub running: u32,
    /// Its program; none if instances attach by themselves, or their bundle names it.
    pub exec: Option<String>,
    /// Bundle or root directory of the containers that instances run in.
    #[serde(default)]
    pub container: Option<String>,
    /// Arguments of its program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Whether instances are started from outside.
    pub attach: bool,
    /// Whether an instance can be moved to another core without losing a packet.
    #[serde(default)]
    pub moves: bool,
    /// Cores that new instances go to, in turn.
    pub cores: Vec<usize>,
    /// `sleep`, `poll` or `foreign`.
    pub mode: String,
    /// Capacity of each ring.
    pub ring: u32,
    /// Tenant, if named.
    #[serde(default)]
    pub tenant: Option<String>,
    /// What its instances are forked from, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zygote: Option<Zygote>,
}

/// The process that instances of a service are forked from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Zygote {
    /// `starting`, `ready`, `restarting`, or `unfit`: then instances are started one by one.
    pub state: String,
    /// Its process, while it has one.
    pub pid: Option<u32>,
    /// Instances that were forked.
    pub forks: u64,
    /// Why it is unfit.
    #[serde(default)]
    pub why: Option<String>,
}

/// The instances of a service that is not shared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Pool {
    /// The service.
    pub service: String,
    /// What an instance is given: `flow`, `rss` or `round-robin`.
    pub per: String,
    /// Least number of instances.
    pub min: u32,
    /// Most instances.
    pub max: u32,
    /// How an instance is made as new for the next flow: `reset` or `strict`.
    pub isolation: String,
    /// Instances, those that are being started too.
    pub size: u32,
    /// Instances that wait for a flow.
    pub idle: u64,
    /// Instances with a flow.
    pub assigned: u64,
    /// Instances whose flow has ended, and which late packets still meet.
    pub lingering: u64,
    /// Instances that are made as new, or wait for their last packets.
    pub resetting: u64,
    /// Flows that were given an instance.
    pub activations: u64,
    /// Instances that became idle again.
    pub ended: u64,
    /// Packets that had to wait for an idle instance.
    pub waits: u64,
    /// Flows that the shared service got instead.
    pub fallbacks: u64,
    /// Packets dropped because no instance was idle.
    pub drops: u64,
    /// Time from the look at the first packet of a flow until it could go to its instances.
    pub setup_ns: Distribution,
}

/// What a chain does with packets at its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChainState {
    /// Takes them.
    #[default]
    Open,
    /// Refuses them for now: throttled, or waiting for an NF to be back.
    Refused,
    /// Takes them past a hop that is left out.
    Bypassing,
    /// Drops them: an NF is gone for good.
    Down,
}

impl ChainState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Open, Self::Refused, Self::Bypassing, Self::Down];

    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Refused => "refused",
            Self::Bypassing => "bypassing",
            Self::Down => "down",
        }
    }
}

/// A chain and its counters.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Chain {
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
    pub entry_packets: u64,
    /// Packets that left by its port.
    pub exit_packets: u64,
    /// Packets that foreign programs on its way have put in, or gave back after they had been counted as `not_back`. With them,
    /// `entry_packets + originated_packets` is what left, what was dropped inside and what is inside.
    #[serde(default)]
    pub originated_packets: u64,
    /// Packets that did not leave, by reason: the words of [`Stats::drops`].
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Time from entry to exit of the packets that were sampled.
    pub latency_ns: Distribution,
    /// Whether one of its NFs throttles it: packets are refused at its entry.
    #[serde(default)]
    pub throttled: bool,
    /// Packets that were dropped after an NF had worked on them.
    #[serde(default)]
    pub wasted: u64,
}

/// Times, in nanoseconds. Known to within an eighth: see [`sluice_shm::histogram`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Distribution {
    /// How many were measured.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// Half are below.
    pub p50: u64,
    /// 90 % are below.
    pub p90: u64,
    /// 99 % are below.
    pub p99: u64,
    /// 99.9 % are below.
    pub p999: u64,
    /// Smallest time and count of each bucket that is not empty. Left out where nobody needs it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(u64, u64)>,
}

impl Distribution {
    /// What was measured since `earlier`, a former state of the same distribution. Without buckets there is nothing to take a
    /// difference of, and the answer is `self`.
    pub fn since(&self, earlier: &Self) -> Self {
        if self.buckets.is_empty() || earlier.count > self.count {
            return self.clone();
        }
        let then: BTreeMap<u64, u64> = earlier.buckets.iter().copied().collect();
        let now = self.buckets.iter().map(|(lowest, n)| (*lowest, n.saturating_sub(then.get(lowest).copied().unwrap_or(0))));
        Self::from_buckets(now.filter(|(_, n)| *n > 0).collect())
    }

    /// A distribution of buckets (smallest time, count) in rising order.
    pub fn from_buckets(buckets: Vec<(u64, u64)>) -> Self {
        use sluice_shm::histogram::{BUCKETS, bucket, lowest};
        let middle = |low: u64| low + (lowest((bucket(low) + 1).min(BUCKETS - 1)).saturating_sub(low)) / 2;
        // An NF may write any counts into its page.
        let count = buckets.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let sum = buckets.iter().fold(0u64, |sum, (low, n)| sum.saturating_add(middle(*low).saturating_mul(*n)));
        let quantile = |q: f64| {
            let rank = ((q * count as f64).ceil() as u64).max(1);
            let mut seen = 0u64;
            let found = buckets.iter().find(|(_, n)| {
                seen = seen.saturating_add(*n);
                seen >= rank
            });
            found.map_or(0, |(low, _)| middle(*low))
        };
        let (p50, p90, p99, p999) = (quantile(0.5), quantile(0.9), quantile(0.99), quantile(0.999));
        Self { count, sum, p50, p90, p99, p999, buckets }
    }
}

impl From<&Histogram> for Distribution {
    fn from(histogram: &Histogram) -> Self {
        Self::from_buckets(histogram.buckets().collect())
    }
}

/// A rule and its counter.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Rule {
    /// Name.
    pub name: String,
    /// Place in the order in which rules are asked, from 0.
    pub position: usize,
    /// What it matches, and the chain. Its `name` is [`Rule::name`].
    #[serde(rename = "match")]
    pub matches: config::Rule,
    /// Chain of the packets that match.
    pub chain: String,
    /// Decisions: one for each new flow, and one for each known flow when the rules change or its NFs do. The flow table
    /// answers for all other packets.
    pub hits: u64,
}

/// Everything that is counted, at one moment.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Stats {
    /// The monotonic clock of the host.
    pub time_ns: u64,
    /// What the daemon is and has.
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
    /// How promises are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<super::promise::Promise>,
    /// Packets dropped, by reason: those of the packet path (`entry`, `nf_down`, `verdict`, `ring_full`, `nf_died`,
    /// `nf_gone`, `tx_full`, `no_such_port`, `violation`, `not_shared`, `policed`, `no_frame`), and `no_rule`, `none_idle`, `no_path`,
    /// `port_tx`, `no_link`, `mtu` and `oversize`, which belong to no chain.
    pub drops: BTreeMap<String, u64>,
    /// What chains and ports have counted that are not there any more.
    #[serde(default)]
    pub gone: Gone,
}

/// What chains, ports, NFs, pools and rules have counted that are not there any more, and of whose
/// name there is none. Packets that were inside when a chain was removed are counted to their end.
/// The rule is in `totals` of the daemon.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Gone {
    /// Packets let into chains.
    pub entry_packets: u64,
    /// Packets that left them.
    pub exit_packets: u64,
    /// Packets that foreign programs on their way have put in.
    pub originated_packets: u64,
    /// Packets that did not leave, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets that were dropped after an NF had worked on them.
    #[serde(default)]
    pub wasted: u64,
    /// Time from entry to exit of the packets that were sampled.
    #[serde(default)]
    pub latency_ns: Distribution,
    /// Packets that came in through ports.
    #[serde(default)]
    pub rx_packets: u64,
    /// Their bytes.
    #[serde(default)]
    pub rx_bytes: u64,
    /// Packets that left through ports.
    pub tx_packets: u64,
    /// Their bytes.
    #[serde(default)]
    pub tx_bytes: u64,
    /// Packets that ports did not take.
    pub tx_drops: u64,
    /// Other packets that were dropped at ports, by reason, as in [`Port::drops`].
    #[serde(default)]
    pub port_drops: BTreeMap<String, u64>,
    /// Packets of ports that were dropped before any NF worked on them.
    #[serde(default)]
    pub entry_drops: u64,
    /// What only kinds of ports knew, by name: counters alone.
    #[serde(default)]
    pub details: BTreeMap<String, f64>,
    /// Packets that had left their chain when nobody had their port any more. Counted in the total
    /// of `port_tx` besides.
    pub unsent_packets: u64,
    /// Decisions of rules.
    #[serde(default)]
    pub decisions: u64,
    /// By service, the sum of its NFs that are gone: counters alone, whatever else the object
    /// holds.
    #[serde(default)]
    pub nfs: BTreeMap<String, Nf>,
    /// The sum of pools: counters alone.
    #[serde(default)]
    pub pools: Pool,
}

/// The paths of sampled packets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Trace {
    /// One to each packet, in the order of their ends.
    pub packets: Vec<TracedPacket>,
    /// Whether the time was over before as many were seen as asked for.
    #[serde(default)]
    pub timed_out: bool,
}

/// The path of one packet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct TracedPacket {
    /// Its chain; none if no rule takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Its length at the entry, in bytes.
    #[serde(default)]
    pub bytes: u32,
    /// Where it was, in order.
    pub hops: Vec<Hop>,
    /// `sent to PORT`, or `dropped: REASON`.
    pub outcome: String,
}

/// Where a packet was, and when.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Hop {
    /// Such as `port in0`, `rule web`, `nf fw.0`, `port out0`.
    #[serde(rename = "where")]
    pub place: String,
    /// Nanoseconds since it entered.
    pub ns: u64,
}

/// Body of `POST /v1/nfs`: one more instance of a service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNf {
    /// The service.
    pub service: String,
    /// Its core; the next of the service's without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
}

/// Parameters of `DELETE /v1/nfs/{name}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveNf {
    /// Remove it also if it is the last instance of a service that an open chain passes.
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
    /// Its program. A bare name is looked for beside `sluiced`, then in PATH. In a container with a `root`, its path in there.
    pub exec: String,
    /// Its arguments; those of the old version without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
}

/// Answer of `POST /v1/services/{name}/upgrade`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Upgraded {
    /// The service.
    pub service: String,
    /// The program that it has now.
    pub exec: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Instances of the new version.
    pub instances: Vec<String>,
    /// Of a pool: members of the old version that there were. Those with a flow leave when it ends, the others at once.
    #[serde(default)]
    pub leaving: u32,
}

/// Body of `POST /v1/rules`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddRule {
    /// The rule.
    pub rule: config::Rule,
    /// Its place, from 0; last without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
}

/// Body of `POST /v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The whole configuration, as TOML text.
    pub config: String,
    /// Name of the file that it came from, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer of `POST /v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
pub struct Applied {
    /// Whether nothing was changed, as asked.
    pub dry_run: bool,
    /// What changed, in the order in which it did. Empty if the daemon runs this configuration already.
    pub changes: Vec<Change>,
    /// What of the configuration is probably not as it was meant. Each has its place, and says what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Body of `POST /v1/trace`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Only packets of this chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Only packets that this rule classifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// How many packets.
    #[schemars(range(min = 1, max = MAX_TRACED))]
    #[serde(default = "ten")]
    pub count: u32,
    /// How long to wait for them, in milliseconds.
    #[schemars(range(min = 1, max = MAX_TRACE_MS))]
    #[serde(default = "five_seconds")]
    pub timeout_ms: u64,
}

/// Most packets of one [`TraceRequest`].
pub const MAX_TRACED: u32 = 1024;

/// Longest wait of one [`TraceRequest`], in milliseconds.
pub const MAX_TRACE_MS: u64 = 60_000;

fn ten() -> u32 {
    10
}

fn five_seconds() -> u64 {
    5_000
}

impl Default for TraceRequest {
    fn default() -> Self {
        Self { chain: None, rule: None, count: ten(), timeout_ms: five_seconds() }
    }
}

/// Answer of a request that has no more to say than that it was done.
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

    #[test]
    fn a_distribution_says_what_its_histogram_says() {
        let mut histogram = Histogram::default();
        for value in [3, 100, 100, 5_000, 1 << 50] {
            histogram.record(value);
        }
        let all = Distribution::from(&histogram);
        assert_eq!(all.count, 5);
        for (q, got) in [(0.5, all.p50), (0.9, all.p90), (0.99, all.p99)] {
            let want = histogram.quantile(q).unwrap();
            assert!(got.abs_diff(want) <= want / 8, "{got} for {want}");
        }
        let earlier = all.clone();
        for _ in 0..10 {
            histogram.record(1_000_000);
        }
        let recent = Distribution::from(&histogram).since(&earlier);
        assert_eq!(recent.count, 10);
        assert!(recent.p50 > 900_000 && recent.p50 == recent.p999);
        assert_eq!(recent.sum, recent.p50 * 10);
        assert_eq!(earlier.since(&Distribution::default()), earlier);
        assert_eq!(Distribution::default().since(&earlier), Distribution::default());
    }
}
