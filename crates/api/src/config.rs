//! What a configuration can say, once: `sluice check --explain`, the checks of what is written and the JSON schemas read names, meanings,
//! defaults and bounds of keys from these types (`sluice_config::schema`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod order;
pub mod pool;
pub mod promise;
pub mod wakeup;

use order::in_order;
pub use pool::{Isolation, Per, Pool, WhenEmpty};
pub use promise::Promises;
pub use wakeup::Wakeup;

/// Where estimates of NFs are kept when nobody says otherwise.
pub const ESTIMATES: &str = "/var/lib/sluice/estimates.json";

/// Largest number of a core.
pub const MAX_CORE: u32 = 65_535;

/// Largest packet: the largest stride of a frame, less the headroom.
const MAX_PACKET: usize = sluice_shm::arena::MAX_STRIDE - sluice_shm::arena::HEADROOM;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Config {
    /// Threads, sockets, limits.
    pub manager: Manager,
    /// Packet memory: arenas of frames.
    pub memory: Memory,
    /// Who runs, and who is let in.
    pub sched: Sched,
    /// Turns of NFs that do not cooperate: those that poll and share their core.
    pub workflow: Workflow,
    /// The SDN controller that is asked about new flows, by OpenFlow 1.3, before the rules.
    pub openflow: Openflow,
    /// Promises to tenants (SLOs): where the instances of a placement may run, and by what means promises are kept.
    pub promises: Promises,
    /// Where packets enter and leave.
    #[serde(rename = "port")]
    pub ports: Vec<Port>,
    /// Kinds of NF and how many instances of each run.
    #[serde(rename = "service")]
    pub services: Vec<Service>,
    /// Ordered lists of services and an egress port.
    #[serde(rename = "chain")]
    pub chains: Vec<Chain>,
    /// Match → chain; the first that matches wins.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
}

/// The manager's threads. Roles on the same core share one loop; a core may be given once in each list.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Manager {
    /// Folder of the sockets and of the record that a later start cleans up by.
    #[schemars(extend("format" = "path"))]
    pub runtime_dir: PathBuf,
    /// What packets cost NFs, as `sluice estimate --keep` has measured it: the first guess for an NF that starts. It need not be there.
    #[schemars(extend("format" = "path"))]
    pub estimates: PathBuf,
    /// Cores of the Rx threads: they poll the ports and classify.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub rx: Vec<usize>,
    /// Cores of the Tx threads: they take packets from NFs and forward them.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub tx: Vec<usize>,
    /// Cores of the Wakeup threads: they decide who runs; the cores of NFs are divided among them.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub wakeup: Vec<usize>,
    /// Cores of the Monitor threads: they measure; NFs are divided among them.
    #[schemars(inner(range(max = MAX_CORE)))]
    pub monitor: Vec<usize>,
    /// What a manager thread does when it finds no packets.
    pub idle: Idle,
    /// Most NFs at a time.
    #[schemars(range(min = 1, max = 65_000))]
    pub max_nfs: u32,
    /// Most flows that the flow table remembers.
    #[schemars(range(min = 1, max = 1 << 27))]
    pub max_flows: u32,
    /// Most paths: combinations of ingress port, chain and instances that flows take. At the bound flows share those there are.
    #[schemars(range(min = 1, max = 1 << 24))]
    pub max_paths: u32,
    /// A flow without packets for so long is forgotten, in milliseconds.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub flow_timeout_ms: u64,
    /// If no NF of a core has made progress for so long, in microseconds, although packets wait, who has them is woken whatever the core's
    /// page says, and whoever had the core takes no turns until it moves. Longer than a burst of the slowest NF.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub fallback_wake_us: u64,
    /// Violations (forged descriptors, wild cursors) after which an NF is stopped.
    #[schemars(range(min = 1))]
    pub max_violations: u64,
    /// An NF that holds packets and returns none for so long is stopped, in milliseconds; 0 never stops one (for a debugger).
    #[schemars(range(max = 86_400_000))]
    pub stall_ms: u64,
    /// One packet in so many of each chain is timed through it; 0 times none.
    pub latency_sample: u32,
    /// How long a stop waits for packets inside to leave, in milliseconds.
    #[schemars(range(max = 600_000))]
    pub drain_ms: u64,
    /// First of the user numbers that services without `user` run as, each with one of its own, where the manager is root.
    #[schemars(range(min = 1, max = u32::MAX - 1))]
    pub uid_first: u32,
    /// How many such numbers there are. None of them may be anybody else's: those that the host's user database has are left out.
    #[schemars(range(min = 1, max = 1 << 24))]
    pub uid_count: u32,
}

impl Default for Manager {
    fn default() -> Self {
        Self {
            runtime_dir: "/run/sluice".into(),
            estimates: ESTIMATES.into(),
            rx: vec![0],
            tx: vec![0],
            wakeup: vec![0],
            monitor: vec![0],
            idle: Idle::Adaptive,
            max_nfs: 4096,
            max_flows: 1 << 20,
            max_paths: 1 << 16,
            flow_timeout_ms: 30_000,
            fallback_wake_us: 1_000,
            max_violations: 64,
            stall_ms: 10_000,
            latency_sample: 128,
            drain_ms: 2_000,
            // Between what containers and what systemd take.
            uid_first: 1_879_100_000,
            uid_count: 65_536,
        }
    }
}

/// What a manager thread does when it finds no packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// After a millisecond without packets and with none inside, has the kernel wake it when something comes. Where that cannot be (a
    /// device of DPDK, a generator, a file that is played), it spins, and after a second without packets does as [`Idle::Sleep`].
    Adaptive,
    /// Looks again at once: lowest latency, a whole core.
    Spin,
    /// After a millisecond without packets, sleeps 50 to 500 µs between looks.
    Sleep,
}

/// Packet memory: arenas of frames.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Memory {
    /// Number of frames of each arena: there is one for each tenant that has NFs, and one where packets are received that may be for several.
    #[schemars(range(min = 512, max = 1 << 26))]
    pub frames: u32,
    /// Frames of the arenas of tenants that have others, by their names, such as `{ gold = 65536 }`.
    #[schemars(extend("additionalProperties" = { "type": "integer", "minimum": 512, "maximum": 1 << 26 }))]
    pub tenants: BTreeMap<String, u32>,
    /// Largest packet, in bytes; the stride of a frame follows from it.
    #[schemars(range(min = 64, max = MAX_PACKET))]
    pub packet_bytes: u32,
    /// Whether arenas stand on 2 MiB hugepages.
    pub hugepages: Hugepages,
    /// What becomes of a tenant's arena when one of its NFs was stopped for violations: it stays (`keep`), or the tenant's NFs are started again
    /// with a fresh one (`replace`).
    pub after_violation: AfterViolation,
    /// Whether DPDK is started even if no `dpdk` port is configured, so that one can be added later.
    pub dpdk: bool,
    /// Ways of the last-level cache that devices write packets into. Left out: as the processor or resctrl says.
    #[schemars(range(min = 1, max = 64))]
    pub io_ways: Option<u32>,
    /// Most packets that wait in each receive queue of a NIC. Left out: as many as stay in those ways until they are read, where these are
    /// known.
    #[schemars(range(min = 32, max = 1 << 15))]
    pub rx_frames: Option<u32>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            frames: 16_384,
            tenants: BTreeMap::new(),
            packet_bytes: 2_112,
            hugepages: Hugepages::Auto,
            after_violation: AfterViolation::Keep,
            dpdk: false,
            io_ways: None,
            rx_frames: None,
        }
    }
}

/// What becomes of a tenant's arena when one of its NFs was stopped for violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AfterViolation {
    /// It stays.
    Keep,
    /// The tenant has a fresh one.
    Replace,
}

/// Whether the arena stands on hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Hugepages {
    /// If enough are free; else ordinary pages, with advice for transparent ones.
    Auto,
    /// Refuse to start without.
    Always,
    /// Ordinary pages.
    Never,
}

/// Who runs, and who is let in. Each part can be switched off alone.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Sched {
    /// Scheduling class of NFs that sleep: the kernel's SCHED_OTHER, SCHED_BATCH or SCHED_RR.
    pub class: Class,
    /// Time slice of SCHED_RR while the daemon runs, in milliseconds: a setting of the whole host, which the kernel rounds up to its tick.
    #[schemars(range(min = 1, max = 10_000))]
    pub rr_slice_ms: Option<u32>,
    /// Whether an NF that goes to sleep starts the next one on its core; else the manager wakes each NF that has packets.
    pub handover: bool,
    /// Whether each NF gets the share of its core that its arrivals and their cost ask for.
    pub weights: bool,
    /// Whether chains are refused at their entry where packets would die inside; else full rings inside drop.
    pub backpressure: bool,
    /// Whether packets that can carry the mark are marked before a queue overflows.
    pub ecn: bool,
    /// Fill of an rx ring at which its chains may be throttled, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub high_watermark: u32,
    /// Fill of an rx ring at which they are let in again, in percent.
    #[schemars(range(max = 99))]
    pub low_watermark: u32,
    /// Queueing time from which a ring over its high watermark throttles, in microseconds.
    #[schemars(range(max = 10_000_000))]
    pub queueing_us: u32,
    /// Average fill of an rx ring from which packets are marked, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub ecn_watermark: u32,
    /// Time between two looks at the shares, in milliseconds.
    #[schemars(range(min = 2, max = 10_000))]
    pub weight_every_ms: u32,
    /// Change of a share that is worth writing, in percent of it.
    #[schemars(range(max = 100))]
    pub weight_margin_percent: u32,
    /// Least share of its core that an NF keeps, in percent.
    #[schemars(range(max = 50))]
    pub min_share_percent: u32,
    /// What gives priorities their effect where the kernel divides a core: its weights (`weights`), or SCHED_RR with a priority for each
    /// NF (`realtime`), which goes back to weights, with a warning, where the kernel does not allow it.
    pub priorities: Priorities,
    /// Whether of the NFs of a core those further down their chains go first: what most work was done for is passed on soonest.
    pub downstream_first: bool,
    /// Priorities of tenants, by their names, such as `{ gold = 4.0 }`: of the flows that rules say are theirs, and of their services.
    pub tenants: BTreeMap<String, f64>,
}

impl Default for Sched {
    fn default() -> Self {
        Self {
            class: Class::Other,
            rr_slice_ms: None,
            handover: true,
            weights: true,
            backpressure: true,
            ecn: true,
            high_watermark: 80,
            low_watermark: 60,
            queueing_us: 100,
            ecn_watermark: 50,
            weight_every_ms: 10,
            weight_margin_percent: 5,
            min_share_percent: 1,
            priorities: Priorities::Weights,
            downstream_first: false,
            tenants: BTreeMap::new(),
        }
    }
}

impl Sched {
    /// Priority of a tenant; 1 of one that nothing is said of, and of nobody.
    pub fn priority_of(&self, tenant: Option<&str>) -> f64 {
        tenant.and_then(|name| self.tenants.get(name)).copied().unwrap_or(1.0)
    }
}

/// What gives priorities their effect where the kernel divides a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Priorities {
    /// Its weights.
    Weights,
    /// SCHED_RR, or its weights where that is not allowed.
    Realtime,
}

/// Turns of NFs that do not cooperate: those that poll and share their core.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Workflow {
    /// How an NF is stopped so that another runs: `auto` takes what works quickest on the host; `none` leaves all to the kernel's scheduler.
    pub mechanism: ByWhat,
    /// Another mechanism for some cores, by their numbers, such as `{ 2 = "signal" }`.
    pub cores: BTreeMap<String, String>,
    /// Packets below which an NF's input is almost empty, and places below which its output is almost full: either ends its turn.
    #[schemars(range(min = 1, max = 1024))]
    pub near: u32,
    /// A slice is the time that a ring full of packets takes, divided by this; 1 or more.
    #[schemars(range(min = 0))]
    pub divisor: f64,
    /// A slice is at least so many times what a switch takes.
    #[schemars(range(min = 1, max = 10_000))]
    pub least_switches: u32,
    /// An NF with fewer packets than `near` has its turn after so long all the same, in microseconds.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub longest_wait_us: u32,
    /// An NF with nothing to do is stopped after so long, though nobody else has anything to do either, in microseconds.
    #[schemars(range(max = 1_000_000_000))]
    pub park_after_us: u32,
}

impl Default for Workflow {
    fn default() -> Self {
        Self {
            mechanism: ByWhat::Auto,
            cores: BTreeMap::new(),
            near: 32,
            divisor: 1.0,
            least_switches: 5,
            longest_wait_us: 1_000,
            park_after_us: 1_000,
        }
    }
}

/// How an NF is stopped so that another runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ByWhat {
    /// What works quickest on the host.
    Auto,
    /// By nothing: the kernel's scheduler divides the core.
    None,
    /// A pair of real-time priorities.
    Realtime,
    /// The freezer of cgroups of version 2.
    Freeze,
    /// SIGSTOP and SIGCONT.
    Signal,
    /// The freezer of cgroups of version 1.
    Freezer,
    /// A signal whose handler, the library's, waits.
    Gate,
    /// A word that the library looks at between bursts.
    Doorbell,
}

impl ByWhat {
    /// Its words, in the order of preference.
    pub const ALL: [(&str, Self); 8] = [
        ("auto", Self::Auto),
        ("none", Self::None),
        ("realtime", Self::Realtime),
        ("freeze", Self::Freeze),
        ("signal", Self::Signal),
        ("freezer", Self::Freezer),
        ("gate", Self::Gate),
        ("doorbell", Self::Doorbell),
    ];

    /// What a word means.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, what)| *what)
    }
}

impl Workflow {
    /// The mechanism of a core.
    pub fn of_core(&self, core: usize) -> ByWhat {
        self.cores.get(&core.to_string()).and_then(|word| ByWhat::of(word)).unwrap_or(self.mechanism)
    }
}

/// The SDN controller that is asked about new flows, by OpenFlow 1.3, before the rules.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Openflow {
    /// Where the controller listens: `tcp:HOST:PORT`. Left out: nobody is asked.
    pub controller: Option<String>,
    /// The identity that the controller knows this host by.
    #[schemars(range(min = 1))]
    pub datapath_id: u64,
    /// What becomes of packets that the controller is asked about.
    pub miss: Miss,
    /// What becomes of packets without an entry while there is no connection to the controller. Entries stay in force.
    pub fail: Fail,
    /// Most flow entries.
    #[schemars(range(min = 1, max = 131_000))]
    pub entries: u32,
    /// Most packets that wait for an answer, with `miss = "wait"`; further ones are dropped.
    #[schemars(range(max = 65_536))]
    pub held: u32,
    /// How long a packet waits for an answer, in milliseconds; then it is treated as without a connection.
    #[schemars(range(min = 1, max = 60_000))]
    pub wait_ms: u64,
    /// Most packets that the controller is shown in a second.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub packet_in_rate: u32,
    /// Most bytes of a packet that the controller is shown.
    #[schemars(range(min = 64, max = 65_344))]
    pub packet_in_bytes: u32,
    /// After so long without a message the controller is asked whether it is there, in milliseconds.
    #[schemars(range(min = 100, max = 3_600_000))]
    pub echo_ms: u64,
    /// After so long without a message the connection is given up, in milliseconds.
    #[schemars(range(min = 200, max = 3_600_000))]
    pub dead_ms: u64,
    /// Time to the first attempt to connect again, in milliseconds; each attempt doubles it.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub retry_ms: u64,
    /// Longest time between two attempts, in milliseconds.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub retry_max_ms: u64,
}

impl Default for Openflow {
    fn default() -> Self {
        Self {
            controller: None,
            datapath_id: 1,
            miss: Miss::Rules,
            fail: Fail::Standalone,
            entries: 16_384,
            held: 256,
            wait_ms: 100,
            packet_in_rate: 1_000,
            packet_in_bytes: 2_048,
            echo_ms: 5_000,
            dead_ms: 15_000,
            retry_ms: 500,
            retry_max_ms: 8_000,
        }
    }
}

/// What becomes of packets that the controller is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Miss {
    /// What the rules say, until the controller says something else.
    Rules,
    /// They wait for the answer.
    Wait,
    /// They are dropped.
    Drop,
}

/// What becomes of packets without an entry while there is no connection to the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fail {
    /// What the rules say.
    Standalone,
    /// They are dropped.
    Secure,
}

/// A scheduling class of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// SCHED_OTHER: fair shares, who wakes may preempt.
    Other,
    /// SCHED_BATCH: fair shares, who wakes waits for the tick.
    Batch,
    /// SCHED_RR: real time, in turns.
    Rr,
}

/// Where packets enter and leave.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "PortConfig", deny_unknown_fields)]
pub struct Port {
    /// Name, unique among ports.
    pub name: String,
    /// What happens to packets that find their chain's gate closed.
    #[serde(default)]
    pub overload: Overload,
    /// Receive (and transmit) queues; spread over the Rx threads.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub queues: u32,
    /// Tenant that all of its packets are of: they are received into its memory. Left out: the one that all rules which can apply lead to; if
    /// these lead to several, packets are copied when they are let in.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The kind; it has keys of its own.
    #[serde(flatten)]
    pub kind: PortKind,
}

fn one() -> u32 {
    1
}

fn processes() -> u32 {
    256
}

/// What a port does with packets that find their chain's gate closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overload {
    /// Drops them at the door, counted.
    #[default]
    Drop,
    /// Holds them and reads no more until there is room.
    Wait,
}

/// Kinds of port. A new kind is one variant here and one file in `port/`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum PortKind {
    /// Generates traffic.
    Gen(Gen),
    /// Swallows packets, and measures what [`Gen`] wrote in them.
    Sink(Sink),
    /// Reads and writes capture files.
    Pcap(Pcap),
    /// Any DPDK device.
    Dpdk(Dpdk),
    /// A network interface of the kernel, without DPDK.
    #[serde(rename = "af_packet")]
    AfPacket(AfPacket),
}

/// A traffic generator.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Gen {
    /// Size of a packet with its Ethernet header, without FCS, in bytes (so "64-byte packets" on the wire are 60 here).
    #[schemars(range(min = 42, max = MAX_PACKET))]
    pub size: u16,
    /// Instead of `size`: a mix of sizes and their weights, such as `[[60, 7], [590, 4], [1514, 1]]`.
    pub imix: Vec<(u16, u32)>,
    /// Packets per second over all queues; 0 is as fast as possible.
    #[schemars(range(min = 0))]
    pub rate: f64,
    /// Number of flows, taken in turn.
    #[schemars(range(min = 1))]
    pub flows: u32,
    /// Packets of a flow; then another one begins in its place. TCP flows begin with SYN and end with RST then. 0: flows do not end.
    pub flow_packets: u32,
    /// Protocol of the packets.
    pub protocol: GenProtocol,
    /// IP version.
    pub ipv6: bool,
    /// Stop after so many packets; 0 goes on for ever.
    pub count: u64,
    /// VLAN tag to put on, if any.
    #[schemars(range(min = 1, max = 4094))]
    pub vlan: Option<u16>,
    /// DSCP of the packets, 0 to 63.
    #[schemars(range(max = 63))]
    pub dscp: u8,
    /// First source address; flow i adds i.
    pub src: Option<std::net::IpAddr>,
    /// Destination address.
    pub dst: Option<std::net::IpAddr>,
    /// Destination port.
    pub dst_port: u16,
    /// Give packets a checksum over all of their bytes, 8 bytes before the stamp. Sinks count those
    /// that are not as they were made as `altered`.
    pub checksum: bool,
}

impl Default for Gen {
    fn default() -> Self {
        Self {
            size: 60,
            imix: Vec::new(),
            rate: 0.0,
            flows: 1,
            flow_packets: 0,
            protocol: GenProtocol::Udp,
            ipv6: false,
            count: 0,
            vlan: None,
            dscp: 0,
            src: None,
            dst: None,
            dst_port: 9,
            checksum: false,
        }
    }
}

/// Protocol of generated packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GenProtocol {
    /// UDP.
    Udp,
    /// TCP: data segments with growing sequence numbers, no handshake.
    Tcp,
}

/// A sink.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sink {}

/// Capture files.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Pcap {
    /// File to read packets from (pcap or pcapng).
    #[schemars(extend("format" = "path"))]
    pub read: Option<PathBuf>,
    /// File to write packets to (pcap, nanosecond time stamps).
    #[schemars(extend("format" = "path"))]
    pub write: Option<PathBuf>,
    /// How fast to read.
    pub speed: PcapSpeed,
    /// With `speed = "rate"`: packets per second.
    #[schemars(range(min = 0))]
    pub rate: f64,
    /// How many times to read the file; 0 for ever.
    pub repeat: Option<u32>,
}

/// How fast a capture is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PcapSpeed {
    /// As fast as possible.
    #[default]
    Fast,
    /// At the recorded times.
    Recorded,
    /// At `rate` packets per second.
    Rate,
}

/// A DPDK device. One of `pci` and `devargs` is needed.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Dpdk {
    /// A virtual device, such as `net_af_packet0,iface=veth0` or `net_null0`.
    pub devargs: Option<String>,
    /// PCI address of a NIC, such as `0000:3b:00.0`.
    pub pci: Option<String>,
    /// Descriptors of a receive and of a transmit queue.
    #[schemars(range(min = 32, max = 32_768))]
    pub descriptors: Option<u16>,
    /// Whether one queue of the device is spread over the `queues` of the port by the manager, for a device that cannot.
    pub software_rss: bool,
}

/// A network interface of the kernel, without DPDK.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = in_order::<Self>)]
pub struct AfPacket {
    /// Name of the interface.
    pub interface: String,
    /// Name of the network namespace that it is in; the daemon's own without.
    #[serde(default)]
    pub netns: Option<String>,
    /// Packets that wait to be received at most, in each queue.
    #[serde(default = "slots")]
    #[schemars(range(min = 64, max = 1 << 20))]
    pub slots: u32,
    /// Whether packets for other stations are taken too.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// What happens where there is no such interface when the port is opened: `refuse` refuses the configuration, `wait` opens it when it
    /// is there. One that goes later is waited for in any case.
    #[serde(default)]
    pub when_missing: WhenMissing,
}

/// What happens where a port's interface is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenMissing {
    /// The configuration is refused.
    #[default]
    Refuse,
    /// The interface is opened when it is there.
    Wait,
}

fn slots() -> u32 {
    4096
}

fn yes() -> bool {
    true
}

/// A kind of NF. Its instances are named `NAME.0`, `NAME.1`, ….
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ServiceConfig", transform = in_order::<Self>)]
pub struct Service {
    /// Name, unique among services.
    pub name: String,
    /// Program of an instance. Needed unless `attach = true`. A bare name is looked for beside `sluiced`, then in PATH. In a container
    /// with a `root` it is the program's path in there.
    #[serde(default)]
    #[schemars(extend("format" = "path"))]
    pub exec: Option<PathBuf>,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment, besides SLUICE_SOCKET, SLUICE_NF, SLUICE_ZYGOTE and PATH (which a container does not take from the host, and may
    /// set).
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// User that it runs as (name or number). Without, where the manager is root, a user of its own that nobody else has and that may
    /// nothing (see `uid_first`); else the manager's own. With `attach = true`: the user who may attach, besides root and the manager's own.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether it starts with a filter of system calls, which denies what no packet handler needs and what would reach others. For a
    /// debugger, say.
    #[serde(default = "yes")]
    pub filter: bool,
    /// Whether it uses the library's storage, and so needs io_uring, which the filter denies without this.
    #[serde(default)]
    pub storage: bool,
    /// Most processes and threads of an instance; in a container those of its runtime too.
    #[serde(default = "processes")]
    #[schemars(range(min = 1, max = 4_194_304))]
    pub pids: u32,
    /// Most memory of an instance, in MiB: its own, and what it is the first to touch of what it
    /// shares. Past that the kernel ends it. Without, as much as the host has.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1 << 24))]
    pub memory: Option<u32>,
    /// An OCI container that each instance runs in, from a bundle or a root directory.
    #[serde(default)]
    pub container: Option<Container>,
    /// Instances are started from outside and attach by themselves, under the name `NAME.i` or `NAME`.
    #[serde(default)]
    pub attach: bool,
    /// Whether instances are forked from a process of the service that has made its handler (a zygote). They need no start of
    /// their own and share what they do not change. For programs in callback style that have one thread when the handler is made.
    #[serde(default)]
    pub zygote: bool,
    /// Number of instances at start.
    #[serde(default = "one")]
    #[schemars(range(max = 65_000))]
    pub instances: u32,
    /// Cores of the instances, in turn.
    #[serde(default = "core_one")]
    #[schemars(inner(range(max = MAX_CORE)))]
    pub cores: Vec<usize>,
    /// Sleep when there is nothing to do, or poll. Those that poll and share a core have their turns from outside: see `[workflow]`.
    #[serde(default)]
    pub mode: Mode,
    /// Capacity of each ring, a power of two. Also the most packets that may be on their way to an instance.
    #[serde(default = "ring")]
    #[schemars(range(min = 2, max = 1 << 20))]
    pub ring: u32,
    /// NFs of different tenants share neither packet memory nor core pages; those without one are a tenant too.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Ports and services that instances may send packets to by a verdict. Without: the services and egress ports of the chains that the service
    /// is in. What goes elsewhere is dropped, and counts as a violation.
    #[serde(default)]
    pub may_send_to: Option<Vec<String>>,
    /// Weight of its instances beside what their load asks for: 2 gives twice the share, and lets them go before others while they have
    /// used up less than that.
    #[serde(default = "ordinary")]
    #[schemars(range(min = 0))]
    pub priority: f64,
    /// Whether its program was written for Sluice, or is any program that sits between two network interfaces.
    #[serde(default)]
    pub kind: ServiceKind,
    /// Of a foreign one: how packets get to its program and back: a pair of virtual interfaces (`af_packet`; `af_xdp` reads and writes
    /// it by other sockets), or memory shared with a program that connects to a socket (`memif`, `vhost-user`; with DPDK).
    #[serde(default)]
    pub via: Via,
    /// Of a foreign one: names of the interfaces that its program finds; packets of a chain go in at the first and come out of the
    /// second. With one it is a tap: it is shown copies. With shared memory: names of its sockets, `RUNTIME_DIR/SERVICE.i.NAME`.
    #[serde(default = "in_and_out")]
    pub interfaces: Vec<String>,
    /// Of a foreign one: name of its network namespace, which is made if it is not there; `sluice-SERVICE.i` without.
    #[serde(default)]
    pub netns: Option<String>,
    /// Of a foreign one: MTU of its interfaces.
    #[serde(default = "ethernet")]
    #[schemars(range(min = 68, max = 65_535))]
    pub mtu: u32,
    /// Of a foreign one: packets that wait behind each of its interfaces at most.
    #[serde(default = "slots")]
    #[schemars(range(min = 64, max = 1 << 20))]
    pub queue: u32,
    /// Of a foreign one: shell commands that are run in its namespace, one after another, before its program.
    #[serde(default)]
    pub setup: Vec<String>,
    /// Of a foreign one: shell commands that are run in its namespace when its program was started; it gets packets after them.
    #[serde(default)]
    pub ready: Vec<String>,
    /// Of a foreign one: shell commands that are run in its namespace when its program has ended.
    #[serde(default)]
    pub teardown: Vec<String>,
    /// Of a foreign one: whether packets that do not come back are losses, or it eats packets by design.
    #[serde(default)]
    pub drops: Drops,
    /// Of a foreign one: a packet that has not come back for so long is counted as gone, in milliseconds.
    #[serde(default = "second")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub inside_ms: u32,
    /// Of a foreign one: file that holds the number of its process, where somebody else has started it; it and what it starts have turns, and
    /// are not ended with the daemon.
    #[serde(default)]
    #[schemars(extend("format" = "path"))]
    pub pid_file: Option<PathBuf>,
    /// What an instance is given: whatever comes (`shared`), one flow at a time (`flow`), all flows of a traffic class (`class`), or, of a
    /// fixed number of instances, the flows of one hash (`rss`) or each packet in turn (`round-robin`).
    #[serde(default)]
    pub per: Per,
    /// Of one that is not shared: how many instances there are, and what a flow is. `[service.pool]`.
    #[serde(default)]
    pub pool: Option<Pool>,
    /// When an instance that sleeps is woken; at every packet without. `[service.wakeup]`.
    #[serde(default)]
    pub wakeup: Option<Wakeup>,
}

/// An OCI container that an instance runs in. One of `bundle` and `root` is needed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Container {
    /// Bundle: a folder with a `config.json`, which names the program and its root directory. `args` go behind its own, `env` over its own.
    #[schemars(extend("format" = "path"))]
    pub bundle: Option<PathBuf>,
    /// Root directory, without a `config.json`. The program is `exec`, as it is called in there.
    #[schemars(extend("format" = "path"))]
    pub root: Option<PathBuf>,
    /// The host's OCI runtime: `auto` (crun, else runc), a name or a path.
    #[schemars(extend("format" = "path"))]
    pub runtime: PathBuf,
    /// Whether instances may write to their root directory, which they share.
    pub writable: bool,
}

impl Default for Container {
    fn default() -> Self {
        Self { bundle: None, root: None, runtime: "auto".into(), writable: false }
    }
}

impl Manager {
    /// The cores of its packet threads; one that has several roles comes as often.
    pub fn cores(&self) -> impl Iterator<Item = usize> {
        self.rx.iter().chain(&self.tx).chain(&self.wakeup).chain(&self.monitor).copied()
    }
}

impl Service {
    /// Whether its instances are not shared by whatever comes.
    pub fn is_pooled(&self) -> bool {
        self.per != Per::Shared
    }

    /// What its section `[service.pool]` says.
    pub fn pool(&self) -> Pool {
        self.pool.clone().unwrap_or_default()
    }

    /// Whether flows are given to its instances as they come, each to its end.
    pub fn has_members_for_flows(&self) -> bool {
        self.per.is_held()
    }

    /// Whether an instance on another core can take the place of one without losing a packet: not of those that come by themselves, of
    /// programs that are foreign, and where each has flows to itself.
    pub fn can_be_moved(&self) -> bool {
        !self.attach && !self.is_foreign() && !self.has_members_for_flows()
    }

    /// Instances that it starts with.
    pub fn first_instances(&self) -> u32 {
        if self.is_pooled() { self.pool().min } else { self.instances }
    }

    /// Most instances that it has.
    pub fn most_instances(&self) -> u32 {
        match self.per {
            Per::Shared => self.instances,
            Per::Flow | Per::Class => self.pool().max,
            Per::Rss | Per::RoundRobin => self.pool().min,
        }
    }

    /// Capacity of each ring of its instances.
    pub fn ring_slots(&self) -> u32 {
        if self.is_pooled() { self.pool().ring } else { self.ring }
    }

    /// Whether its program knows nothing of Sluice.
    pub fn is_foreign(&self) -> bool {
        self.kind == ServiceKind::Foreign
    }

    /// Whether it is shown copies of packets, which go on at once.
    pub fn is_tap(&self) -> bool {
        self.is_foreign() && self.interfaces.len() == 1
    }
}

/// Whether a program was written for Sluice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// It uses the library, and shares the packets' memory.
    #[default]
    Nf,
    /// It knows nothing of Sluice, and is fed through network interfaces.
    Foreign,
}

/// How packets get to a foreign program and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// Pairs of virtual interfaces, with packet sockets at the manager's ends.
    #[default]
    #[serde(rename = "af_packet")]
    AfPacket,
    /// Pairs of virtual interfaces, with sockets of the kernel's express data path at the manager's ends.
    #[serde(rename = "af_xdp")]
    AfXdp,
    /// Memory shared by memif, whose server the manager is.
    Memif,
    /// Memory shared as with a virtual machine, whose network card the manager is.
    VhostUser,
}

/// Bytes of the largest packet by AF_XDP: a chunk of 4 KiB, less what the kernel keeps of it.
pub const AF_XDP_LARGEST: usize = 4096 - 256;

impl Via {
    /// Whether a device of DPDK stands at the manager's end.
    pub fn is_device(self) -> bool {
        matches!(self, Self::Memif | Self::VhostUser)
    }
}

/// What it means that a packet does not come back from a foreign program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Drops {
    /// It is lost, and counted so.
    #[default]
    Counted,
    /// The program eats packets by design: a tap, a proxy.
    ByDesign,
}

fn in_and_out() -> Vec<String> {
    vec!["in".into(), "out".into()]
}

fn ethernet() -> u32 {
    1500
}

fn second() -> u32 {
    1000
}

fn ordinary() -> f64 {
    1.0
}

fn core_one() -> Vec<usize> {
    vec![1]
}

fn ring() -> u32 {
    2048
}

/// What an NF does when it has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Sleeps on its doorbell.
    #[default]
    Sleep,
    /// Looks again at once.
    Poll,
}

/// An ordered list of services and an egress port.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ChainConfig", transform = in_order::<Self>)]
pub struct Chain {
    /// Name, unique among chains.
    pub name: String,
    /// Services, in order; the same one may come again, but not twice in a row. `NAME:reverse` is a foreign one from its far side:
    /// packets go in at its second interface and come out of its first.
    #[serde(default)]
    #[schemars(extend("items" = { "type": "string", "format": "name" }))]
    pub services: Vec<String>,
    /// Port where packets leave.
    pub egress: String,
    /// What happens when an NF of the chain dies.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// A hop of a chain as it is written: the service, and whether it is met from its far side.
pub fn hop(written: &str) -> (&str, bool) {
    match written.strip_suffix(":reverse") {
        Some(service) => (service, true),
        None => (written, false),
    }
}

/// What a chain does when one of its NFs has died and no other instance of its service is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Its packets are dropped at the entry until an instance is back.
    Drop,
    /// The hop is left out until an instance is back.
    Bypass,
    /// The NF is started again, with growing pauses; meanwhile packets are refused at the entry (dropped, or held where the port
    /// waits).
    #[default]
    Restart,
}

/// Match → chain. Every key that is given must match.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RuleConfig", transform = in_order::<Self>)]
pub struct Rule {
    /// Name, unique among rules; `rule.N` without.
    #[serde(default)]
    pub name: Option<String>,
    /// Ingress port.
    #[serde(default)]
    pub port: Option<String>,
    /// VLAN id; 0 matches untagged packets.
    #[serde(default)]
    #[schemars(range(max = 4094))]
    pub vlan: Option<u16>,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `ip` (any IP), `non-ip`, or a protocol number.
    #[serde(default)]
    pub protocol: Option<String>,
    /// Source prefix, v4 or v6.
    #[serde(default)]
    pub src: Option<String>,
    /// Destination prefix, v4 or v6.
    #[serde(default)]
    pub dst: Option<String>,
    /// Source ports: `80` or `1000-2000`. Fragments have no ports and never match.
    #[serde(default)]
    pub src_port: Option<PortRange>,
    /// Destination ports.
    #[serde(default)]
    pub dst_port: Option<PortRange>,
    /// DSCP, 0 to 63.
    #[serde(default)]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// Priority of the flows that match: a weight of the instances that are given one of them alone. 1 without.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub priority: Option<f64>,
    /// Tenant of the flows that match. Its priority, in `[sched]`, multiplies that of the rule.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Chain of the packets that match.
    pub chain: String,
    /// When instances that have one flow at a time are woken for packets of this one, where their service has a policy.
    #[serde(default)]
    pub wakeup: Option<Wakeup>,
}

/// A port number or a range of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum PortRange {
    /// One port.
    One(u16),
    /// `FIRST-LAST`, both included.
    Text(String),
}

impl PortRange {
    /// First and last port, both included.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub fn bounds(&self) -> Result<(u16, u16), String> {
        let text = match self {
            Self::One(port) => return Ok((*port, *port)),
            Self::Text(text) => text,
        };
        let number = |word: &str| match word.parse::<u16>() {
            // The standard library reads a number with a sign, too.
            Ok(port) if !word.starts_with('+') => Ok(port),
            _ => Err(format!("{text:?} is no range of ports; write a port such as 80, or \"1000-2000\", within 0 to 65535")),
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(format!("the range {text:?} runs backwards; write \"{last}-{first}\""));
        }
        Ok((first, last))
    }
}

impl Rule {
    /// The name of the rule, or `rule.N` where it has none and stands at `index`, counted from 0.
    pub fn label(&self, index: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("rule.{index}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges() {
        let range = |text: &str| PortRange::Text(text.into()).bounds();
        assert_eq!(PortRange::One(80).bounds(), Ok((80, 80)));
        assert_eq!(range("80"), Ok((80, 80)));
        assert_eq!(range("1000-2000"), Ok((1000, 2000)));
        assert_eq!(range("2000-1000").unwrap_err(), "the range \"2000-1000\" runs backwards; write \"1000-2000\"");
        for wrong in ["", "-", "1-", "-1", "1-2-3", "+1", "65536", "a-b", "1 - 2"] {
            assert_eq!(
                range(wrong).unwrap_err(),
                format!("{wrong:?} is no range of ports; write a port such as 80, or \"1000-2000\", within 0 to 65535")
            );
        }
    }

    #[test]
    fn rules_without_a_name_are_numbered() {
        assert_eq!(Rule::default().label(3), "rule.3");
        assert_eq!(Rule { name: Some("web".into()), ..Rule::default() }.label(3), "web");
    }
}
