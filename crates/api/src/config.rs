//! The types of the configuration.
//! `sluice check --explain`, the checks and the JSON schemas take names, meanings, defaults and
//! bounds of keys from them (`sluice_config::schema`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod control;
mod flow_log;
mod interface;
mod manager;
mod order;
mod pcap;
pub mod pool;
mod port;
pub mod promise;
mod recorder;
mod service;
mod telemetry;
pub mod wakeup;
mod web;

pub use control::Control;
pub use flow_log::FlowLogConfig;
pub use interface::{AfPacket, AfXdp, WhenMissing};
pub use manager::{ESTIMATES, Manager};
use order::in_order;
pub use pcap::{Pcap, PcapSpeed, PcapTimes};
pub use pool::{Isolation, Per, Pool, WhenEmpty};
pub use port::PortKind;
pub use promise::Promises;
pub use recorder::Recorder;
pub use service::Run;
pub use telemetry::Telemetry;
pub use wakeup::Wakeup;
pub use web::WebPage;

/// Largest core number.
pub const MAX_CORE: u32 = 65_535;

/// Largest packet: the largest stride of a frame without the headroom.
const MAX_PACKET: usize = sluice_shm::arena::MAX_STRIDE - sluice_shm::arena::HEADROOM;

/// The whole configuration file.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Config {
    /// Threads, sockets, limits.
    pub manager: Manager,
    /// Packet memory: arenas of frames.
    pub memory: Memory,
    /// CPU scheduling and admission.
    pub sched: Sched,
    /// Time slices of NFs that poll and share a core.
    pub workflow: Workflow,
    /// The SDN controller, which decides about new flows before the rules, by OpenFlow 1.3.
    pub openflow: Openflow,
    /// SLOs: where the instances of a placement may run, and how promises are kept.
    pub promises: Promises,
    /// The control socket.
    pub control: Control,
    /// The web page, and what Prometheus and probes read by HTTP.
    pub page: WebPage,
    /// Metrics that are pushed to an OpenTelemetry collector.
    pub telemetry: Telemetry,
    /// The log of flows: what each flow had, and how it ended.
    pub flow_log: FlowLogConfig,
    /// The flight recorder: what happened before something went wrong, as a timeline.
    pub recorder: Recorder,
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

/// Which packets are looked up in the flow table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowTable {
    /// All: a flow stays with its instances when others are added.
    Always,
    /// Only where that can make a difference: not at a port whose packets all take one chain by one
    /// rule without other keys, with one instance of each service. Flows are not counted there, and
    /// move when an instance is added.
    Needed,
}

/// What a manager thread does when it finds no packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// After a millisecond without packets and with none inside, waits in the kernel for an event.
    /// Where that is impossible (DPDK devices, generators, replayed files), it spins, and after a
    /// second without packets behaves as `sleep`.
    Adaptive,
    /// Polls again at once: lowest latency, a whole core.
    Spin,
    /// After a millisecond without packets, waits in the kernel for an event as `adaptive` does.
    /// Where that is impossible, or an NF has packets, sleeps 50 to 500 µs between polls.
    Sleep,
}

/// Packet memory: arenas of frames.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Memory {
    /// Number of frames in each arena. Each tenant with NFs has one; another one receives packets
    /// that may be for several tenants.
    #[schemars(range(min = 512, max = 1 << 26))]
    pub frames: u32,
    /// Number of frames for single tenants, by name, such as `{ gold = 65536 }`.
    #[schemars(extend("additionalProperties" = { "type": "integer", "minimum": 512, "maximum": 1 << 26 }))]
    pub tenants: BTreeMap<String, u32>,
    /// Largest packet, in bytes; the stride of a frame follows from it.
    #[schemars(range(min = 64, max = MAX_PACKET))]
    pub packet_bytes: u32,
    /// Whether arenas use 2 MiB hugepages.
    pub hugepages: Hugepages,
    /// What happens to a tenant's arena after one of its NFs was stopped for violations: it stays
    /// (`keep`), or the tenant's NFs are restarted with a fresh one (`replace`).
    pub after_violation: AfterViolation,
    /// Whether DPDK is started even without a `dpdk` port, so that one can be added later.
    pub dpdk: bool,
    /// Ways of the last-level cache that devices write packets into. Left out: as the processor or
    /// resctrl reports.
    #[schemars(range(min = 1, max = 64))]
    pub io_ways: Option<u32>,
    /// Most packets in each receive queue of a NIC. Left out: as many as stay in those ways until
    /// they are read, if their number is known.
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

/// What happens to a tenant's arena after one of its NFs was stopped for violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AfterViolation {
    /// It stays.
    Keep,
    /// It is replaced by a fresh one.
    Replace,
}

/// Whether arenas use hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Hugepages {
    /// If enough are free; otherwise ordinary pages, with advice for transparent ones.
    Auto,
    /// Always; without enough of them the daemon does not start.
    Always,
    /// Ordinary pages.
    Never,
}

/// CPU scheduling and admission. Each part can be switched off separately.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Sched {
    /// Scheduling class of NFs that sleep: SCHED_OTHER, SCHED_BATCH or SCHED_RR.
    pub class: Class,
    /// Time slice of SCHED_RR while the daemon runs, in milliseconds. It applies to the whole host;
    /// the kernel rounds it up to its tick.
    #[schemars(range(min = 1, max = 10_000))]
    pub rr_slice_ms: Option<u32>,
    /// Whether an NF that goes to sleep starts the next one on its core; if not, the manager does.
    pub handover: bool,
    /// Whether each NF gets a share of its core in proportion to its arrivals and their cost.
    pub weights: bool,
    /// Whether chains refuse packets that would be dropped inside; if not, full rings drop them.
    pub backpressure: bool,
    /// Whether packets that support ECN are marked before a queue overflows.
    pub ecn: bool,
    /// Fill of an rx ring above which its chains may be throttled, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub high_watermark: u32,
    /// Fill of an rx ring below which they are admitted again, in percent.
    #[schemars(range(max = 99))]
    pub low_watermark: u32,
    /// Least queueing time at which a ring above its high watermark throttles, in microseconds.
    #[schemars(range(max = 10_000_000))]
    pub queueing_us: u32,
    /// Average fill of an rx ring above which packets are marked, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub ecn_watermark: u32,
    /// Interval between updates of the shares, in milliseconds.
    #[schemars(range(min = 2, max = 10_000))]
    pub weight_every_ms: u32,
    /// Least change of a share that is written, in percent of it.
    #[schemars(range(max = 100))]
    pub weight_margin_percent: u32,
    /// Least share of its core that an NF keeps, in percent.
    #[schemars(range(max = 50))]
    pub min_share_percent: u32,
    /// How priorities take effect where the kernel divides a core: by its weights (`weights`), or
    /// by SCHED_RR with a priority for each NF (`realtime`). If the kernel does not allow the
    /// latter, a warning is logged and weights are used.
    pub priorities: Priorities,
    /// Run NFs that are later in their chain first, so that packets with the most work invested
    /// leave soonest.
    pub downstream_first: bool,
    /// Priorities of tenants, by name, such as `{ gold = 4.0 }`: for their services, and for the
    /// flows that rules assign to them.
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
    /// Priority of a tenant; 1 by default and without a tenant.
    pub fn priority_of(&self, tenant: Option<&str>) -> f64 {
        tenant.and_then(|name| self.tenants.get(name)).copied().unwrap_or(1.0)
    }
}

/// How priorities take effect where the kernel divides a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Priorities {
    /// By its weights.
    Weights,
    /// By SCHED_RR, or by its weights if that is not allowed.
    Realtime,
}

/// Time slices of NFs that poll and share a core.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Workflow {
    /// How an NF is stopped so that another runs: `auto` takes the quickest that works on the host
    /// and also stops what the NF has forked, or else a signal; `none` leaves it to the kernel's
    /// scheduler.
    pub mechanism: ByWhat,
    /// Other mechanisms for single cores, by number, such as `{ 2 = "signal" }`.
    pub cores: BTreeMap<String, String>,
    /// Packets below which an NF's input is almost empty, and free slots below which its output is
    /// almost full. Either ends its slice.
    #[schemars(range(min = 1, max = 1024))]
    pub near: u32,
    /// A slice is the time that a ring full of packets takes, divided by this; 1 or more.
    #[schemars(range(min = 0))]
    pub divisor: f64,
    /// Least length of a slice, as a multiple of the time of a switch.
    #[schemars(range(min = 1, max = 10_000))]
    pub least_switches: u32,
    /// Longest wait of an NF with fewer packets than `near` for a slice, in microseconds.
    #[schemars(range(min = 10, max = 1_000_000))]
    pub longest_wait_us: u32,
    /// Time after which an idle NF is stopped even if no other NF has work, in microseconds.
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
    /// The quickest that works on the host and stops forked processes, too; else a signal.
    Auto,
    /// None: the kernel's scheduler divides the core.
    None,
    /// A pair of real-time priorities.
    Realtime,
    /// The freezer of cgroup version 2.
    Freeze,
    /// SIGSTOP and SIGCONT. What an NF has forked runs on.
    Signal,
    /// The freezer of cgroup version 1.
    Freezer,
    /// A signal whose handler, in the library, waits.
    Gate,
    /// A word that the library polls between bursts.
    Doorbell,
}

impl ByWhat {
    /// Its names, in the order of preference.
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

    /// The mechanism with this name.
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

/// The SDN controller, which decides about new flows before the rules, by OpenFlow 1.3.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Openflow {
    /// Address of the controller: `tcp:HOST:PORT`. Left out: there is none.
    pub controller: Option<String>,
    /// Datapath ID, by which the controller identifies this host.
    #[schemars(range(min = 1))]
    pub datapath_id: u64,
    /// What happens to a packet without an entry until the controller decides.
    pub miss: Miss,
    /// What happens to packets without an entry while there is no connection to the controller.
    /// Entries stay in force.
    pub fail: Fail,
    /// Most flow entries.
    #[schemars(range(min = 1, max = 131_000))]
    pub entries: u32,
    /// With `miss = "wait"`: most packets that wait for a decision; further ones are dropped.
    #[schemars(range(max = 65_536))]
    pub held: u32,
    /// Longest wait for a decision, in milliseconds; then `fail` applies to the packet.
    #[schemars(range(min = 1, max = 60_000))]
    pub wait_ms: u64,
    /// Most packet-ins a second.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub packet_in_rate: u32,
    /// Most bytes of a packet in a packet-in.
    #[schemars(range(min = 64, max = 65_344))]
    pub packet_in_bytes: u32,
    /// Time without a message after which the controller gets an echo request, in milliseconds.
    #[schemars(range(min = 100, max = 3_600_000))]
    pub echo_ms: u64,
    /// Time without a message after which the connection is closed, in milliseconds.
    #[schemars(range(min = 200, max = 3_600_000))]
    pub dead_ms: u64,
    /// Time to the first reconnection attempt, in milliseconds; each attempt doubles it.
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

/// What happens to a packet without an entry until the controller decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Miss {
    /// It follows the rules.
    Rules,
    /// It waits for the decision.
    Wait,
    /// It is dropped.
    Drop,
}

/// What happens to packets without an entry while the controller is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fail {
    /// They follow the rules.
    Standalone,
    /// They are dropped.
    Secure,
}

/// A scheduling class of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// SCHED_OTHER: fair shares, a woken thread may preempt.
    Other,
    /// SCHED_BATCH: fair shares, a woken thread waits for the tick.
    Batch,
    /// SCHED_RR: real time, round robin.
    Rr,
}

/// Where packets enter and leave.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "PortConfig", deny_unknown_fields)]
pub struct Port {
    /// Name, unique among ports.
    pub name: String,
    /// What happens to packets while the gate of their chain is closed.
    #[serde(default)]
    pub overload: Overload,
    /// Receive (and transmit) queues, spread over the Rx threads.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub queues: u32,
    /// Tenant of all its packets, which are received into its memory. Left out: the tenant to which
    /// all applicable rules lead. If there are several, packets are copied on admission.
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

/// What a port does with packets while the gate of their chain is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overload {
    /// Drops them at the entry, counted.
    #[default]
    Drop,
    /// Holds them and receives no more until the gate opens.
    Wait,
}

/// A traffic generator.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Gen {
    /// Bytes of a packet with Ethernet header, without FCS ("64-byte packets" on the wire have 60).
    #[schemars(range(min = 42, max = MAX_PACKET))]
    pub size: u16,
    /// Instead of `size`: sizes and their weights, such as `[[60, 7], [590, 4], [1514, 1]]`.
    pub imix: Vec<(u16, u32)>,
    /// Packets per second over all queues; 0 is as fast as possible.
    #[schemars(range(min = 0))]
    pub rate: f64,
    /// Number of flows, which take turns.
    #[schemars(range(min = 1))]
    pub flows: u32,
    /// Packets in a flow, after which another begins; 0: flows do not end. TCP flows with an end
    /// begin with SYN and end with RST.
    pub flow_packets: u32,
    /// Protocol of the packets.
    pub protocol: GenProtocol,
    /// IP version.
    pub ipv6: bool,
    /// Number of packets after which it stops; 0 never stops.
    pub count: u64,
    /// VLAN tag of the packets, if any.
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
    /// Whether packets have a checksum over all of their bytes, 8 bytes before the stamp. Sinks
    /// count changed packets as `altered`.
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

/// A DPDK device. One of `pci` and `devargs` is needed.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Dpdk {
    /// A virtual device, such as `net_af_packet0,iface=veth0` or `net_null0`.
    pub devargs: Option<String>,
    /// PCI address of a NIC, such as `0000:3b:00.0`.
    pub pci: Option<String>,
    /// Descriptors in a receive and in a transmit queue.
    #[schemars(range(min = 32, max = 32_768))]
    pub descriptors: Option<u16>,
    /// Whether the manager spreads one queue of a device without RSS over the `queues` of the port.
    pub software_rss: bool,
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
    /// Program of an instance, unless `attach = true`. A bare name is searched for in the folder of
    /// `sluiced`, then in PATH. In a container with a `root` it is a path in the container.
    #[serde(default)]
    #[schemars(extend("format" = "path"))]
    pub exec: Option<PathBuf>,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment, besides SLUICE_SOCKET, SLUICE_NF, SLUICE_ZYGOTE and PATH. A container does
    /// not get the host's PATH, and may set its own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// User of its processes (name or number). By default, if the manager is root, a user of its
    /// own without any rights (see `uid_first`); otherwise the manager's. With `attach = true`: the
    /// user that may attach, besides root and the manager's.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether it starts with a system-call filter, which denies what no packet handler needs and
    /// what could affect other processes. Switch it off for a debugger.
    #[serde(default = "yes")]
    pub filter: bool,
    /// Whether it uses the library's storage, and so needs io_uring, which the filter then allows.
    #[serde(default)]
    pub storage: bool,
    /// Whether its handler may run inside the daemon (`run = "inline"` of a chain), where nothing
    /// protects the daemon and other NFs from its errors.
    #[serde(default)]
    pub trusted: bool,
    /// Most processes and threads of an instance; in a container including those of the runtime.
    #[serde(default = "processes")]
    #[schemars(range(min = 1, max = 4_194_304))]
    pub pids: u32,
    /// Most memory of an instance, in MiB: its own, and shared memory that it touches first. Above
    /// that the kernel kills it. By default the host's memory.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1 << 24))]
    pub memory: Option<u32>,
    /// OCI container for each instance, from a bundle or a root directory.
    #[serde(default)]
    pub container: Option<Container>,
    /// Whether instances are started from outside and attach by themselves, as `NAME.i` or `NAME`.
    /// Those of an SLO attach by the SLO's socket, as `NAME/NUMBER`.
    #[serde(default)]
    pub attach: bool,
    /// Whether instances are forked from a process that has made the handler (a zygote). They start
    /// fast and share unchanged memory. For programs in callback style that have one thread when
    /// the handler is made.
    #[serde(default)]
    pub zygote: bool,
    /// Number of instances at start.
    #[serde(default = "one")]
    #[schemars(range(max = 65_000))]
    pub instances: u32,
    /// Cores of the instances, assigned round robin. With `shards` in `[manager]` the first core is
    /// of the first shard, the second of the second, and so on in turn.
    #[serde(default = "core_one")]
    #[schemars(inner(range(max = MAX_CORE)))]
    pub cores: Vec<usize>,
    /// With `shards` in `[manager]`: whether each instance serves all shards, and not only the one
    /// of its core.
    #[serde(default)]
    pub all_shards: bool,
    /// Whether it sleeps or polls when it has no packets. For polling NFs that share a core, see
    /// `[workflow]`.
    #[serde(default)]
    pub mode: Mode,
    /// Capacity of each ring, a power of two. Also the most packets in flight to an instance.
    #[serde(default = "ring")]
    #[schemars(range(min = 2, max = 1 << 20))]
    pub ring: u32,
    /// NFs of different tenants share neither packet memory nor core pages. Services without a
    /// tenant form one too.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Ports and services to which instances may send packets by a verdict. By default the services
    /// and egress ports of its chains. Packets to others are dropped, and count as violations.
    #[serde(default)]
    pub may_send_to: Option<Vec<String>>,
    /// Weight of its instances besides load: 2 gives twice the share, and precedence until it is
    /// used up.
    #[serde(default = "ordinary")]
    #[schemars(range(min = 0))]
    pub priority: f64,
    /// Least priority that an instance may ask for by the library; default `priority`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub priority_min: Option<f64>,
    /// Most priority that an instance may ask for by the library; default `priority`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub priority_max: Option<f64>,
    /// Whether its program was written for Sluice, or is any program between two network
    /// interfaces.
    #[serde(default)]
    pub kind: ServiceKind,
    /// For a foreign service: how packets reach its program: by virtual interfaces (`af_packet`, or
    /// `af_xdp` with other sockets), or, with DPDK, by shared memory (`memif`, `vhost-user`).
    #[serde(default)]
    pub via: Via,
    /// For a foreign service: names of its program's interfaces. Packets of a chain enter at the
    /// first and leave at the second. With one it is a tap, which gets copies. With shared memory:
    /// names of its sockets, `RUNTIME_DIR/SERVICE.i.NAME`.
    #[serde(default = "in_and_out")]
    pub interfaces: Vec<String>,
    /// For a foreign service: its network namespace, made if missing; default `sluice-SERVICE.i`.
    #[serde(default)]
    pub netns: Option<String>,
    /// For a foreign service: MTU of its interfaces.
    #[serde(default = "ethernet")]
    #[schemars(range(min = 68, max = 65_535))]
    pub mtu: u32,
    /// For a foreign service: most packets that wait behind each of its interfaces.
    #[serde(default = "slots")]
    #[schemars(range(min = 64, max = 1 << 20))]
    pub queue: u32,
    /// For a foreign service: shell commands that run in its namespace before its program starts.
    #[serde(default)]
    pub setup: Vec<String>,
    /// For a foreign service: shell commands that run in its namespace once its program has
    /// started. It gets packets after them.
    #[serde(default)]
    pub ready: Vec<String>,
    /// For a foreign service: shell commands that run in its namespace after its program has ended.
    #[serde(default)]
    pub teardown: Vec<String>,
    /// For a foreign service: whether packets that do not return are losses or consumed by design.
    #[serde(default)]
    pub drops: Drops,
    /// For a foreign service: time after which a packet that has not come back counts as gone, in
    /// milliseconds.
    #[serde(default = "second")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub inside_ms: u32,
    /// For a foreign service: file with the process ID of a program started from outside. The
    /// program and its children get time slices, and are not ended with the daemon.
    #[serde(default)]
    #[schemars(extend("format" = "path"))]
    pub pid_file: Option<PathBuf>,
    /// What an instance receives: any packets (`shared`), one flow (`flow`), flows of a class
    /// (`class`), or, of a fixed number, flows of a hash (`rss`) or packets in turn
    /// (`round-robin`).
    #[serde(default)]
    pub per: Per,
    /// For a pooled service: number of instances and treatment of flows. `[service.pool]`.
    #[serde(default)]
    pub pool: Option<Pool>,
    /// When a sleeping instance is woken; by default at each packet. `[service.wakeup]`.
    #[serde(default)]
    pub wakeup: Option<Wakeup>,
    /// Of a group, which a fused or inline chain makes: the services whose handlers run in it, in
    /// order.
    #[serde(skip)]
    #[schemars(skip)]
    pub parts: Vec<String>,
    /// Of a service that runs in groups alone, and has no `instances` for that: how many it has
    /// again when another chain names it.
    #[serde(skip)]
    #[schemars(skip)]
    pub apart: u32,
}

/// OCI container of an instance. One of `bundle` and `root` is needed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct Container {
    /// Bundle: a folder with a `config.json`, which names the program and its root directory.
    /// `args` are appended to its own, `env` overrides its own.
    #[schemars(extend("format" = "path"))]
    pub bundle: Option<PathBuf>,
    /// Root directory, without a `config.json`. The program is `exec`, a path in the container.
    #[schemars(extend("format" = "path"))]
    pub root: Option<PathBuf>,
    /// The host's OCI runtime: `auto` (crun, else runc), a name or a path.
    #[schemars(extend("format" = "path"))]
    pub runtime: PathBuf,
    /// Whether instances may write to their shared root directory.
    pub writable: bool,
}

impl Default for Container {
    fn default() -> Self {
        Self { bundle: None, root: None, runtime: "auto".into(), writable: false }
    }
}

impl Config {
    /// The shard whose instances run on a core: by its place among the cores of a service. None if
    /// there are no shards, or no service with instances for each names it. The configuration is
    /// valid.
    pub fn shard_of(&self, core: usize) -> Option<usize> {
        let of = self.manager.shards.len();
        let mut sharded = self.services.iter().filter(|service| of > 1 && service.is_sharded());
        sharded.find_map(|service| Some(service.cores.iter().position(|one| *one == core)? % of))
    }
}

/// Whether a program was written for Sluice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// It uses the library, and shares packet memory.
    #[default]
    Nf,
    /// It does not use the library, and gets packets by network interfaces.
    Foreign,
}

/// How packets get to a foreign program and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// Virtual interfaces, with packet sockets at the manager's ends.
    #[default]
    #[serde(rename = "af_packet")]
    AfPacket,
    /// Virtual interfaces, with AF_XDP sockets at the manager's ends.
    #[serde(rename = "af_xdp")]
    AfXdp,
    /// Memory shared by memif; the manager is the server.
    Memif,
    /// Memory shared as with a virtual machine; the manager is its network card.
    VhostUser,
}

/// Largest packet by AF_XDP, in bytes: a chunk of 4 KiB less what the kernel reserves.
pub const AF_XDP_LARGEST: usize = 4096 - 256;

impl Via {
    /// Whether the manager's end is a DPDK device.
    pub fn is_device(self) -> bool {
        matches!(self, Self::Memif | Self::VhostUser)
    }
}

/// What it means that a packet does not come back from a foreign program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Drops {
    /// It is counted as lost.
    #[default]
    Counted,
    /// The program consumes packets by design: a tap, a proxy.
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

/// What an NF does when it has no packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Sleeps on its doorbell.
    #[default]
    Sleep,
    /// Polls again at once.
    Poll,
}

/// An ordered list of services and an egress port.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ChainConfig", transform = in_order::<Self>)]
pub struct Chain {
    /// Name, unique among chains.
    pub name: String,
    /// Services, in order. One may occur again, but not twice in a row. `NAME:reverse` is a foreign
    /// one in the other direction: packets enter at its second interface and leave at its first.
    #[serde(default)]
    #[schemars(extend("items" = { "type": "string", "format": "name" }))]
    pub services: Vec<String>,
    /// Port where packets leave.
    pub egress: String,
    /// What happens when an NF of the chain dies.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whether its NFs run in processes of their own, or all in one. In one they cost less and have
    /// no protection from each other; they need one tenant, user and core, and a shared object.
    #[serde(default)]
    pub run: Run,
    /// The services, neighbours in the chain, that a fused chain runs in one process; the others
    /// have processes of their own. By default all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("items" = { "type": "string", "format": "name" }))]
    pub fuse: Vec<String>,
}

/// Splits a hop of a chain into the service and whether it is reversed.
pub fn hop(written: &str) -> (&str, bool) {
    match written.strip_suffix(":reverse") {
        Some(service) => (service, true),
        None => (written, false),
    }
}

/// What a chain does when one of its NFs has died and its service has no other instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Its packets are dropped at the entry until an instance is back.
    Drop,
    /// The hop is left out until an instance is back.
    Bypass,
    /// The NF is restarted, with growing pauses; until then packets are dropped or held at the
    /// port.
    #[default]
    Restart,
}

/// Match → chain. All given keys must match.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RuleConfig", transform = in_order::<Self>)]
pub struct Rule {
    /// Name, unique among rules; `rule.N` by default.
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
    /// Priority of matching flows, 1 by default: a weight of instances with one such flow alone.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub priority: Option<f64>,
    /// Tenant of the matching flows. Its priority, in `[sched]`, multiplies that of the rule.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Chain of the matching packets.
    pub chain: String,
    /// When instances with one flow each are woken for packets of such a flow, if their service has
    /// a policy.
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
    /// The problem and the correct form, as one sentence.
    pub fn bounds(&self) -> Result<(u16, u16), String> {
        let text = match self {
            Self::One(port) => return Ok((*port, *port)),
            Self::Text(text) => text,
        };
        let number = |word: &str| match word.parse::<u16>() {
            // The standard library accepts a sign.
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
    /// The name of the rule, or `rule.N` by its `index` from 0.
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
