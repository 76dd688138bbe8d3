//! Every section and key: type, default, meaning.
//!
//! This one table is what the reading checks keys and types against ([`super::load`]), what numbers are checked against
//! ([`super::validate`]), and what `sluice check --explain` prints ([`reference()`]). Tests hold it to the model: the same
//! keys, the same defaults, and the same words as the model's doc comments.

use std::fmt::Write;

use self::Preset::{Needed, Unset, Value};
use self::Type::{
    Address, Bool, Cores, Integer, IntegerTable, Keys, Mix, Names, Number, NumberTable, Path, Ports, Text, TextTable, Texts, Words,
};
use super::pool::POOL;
use super::promise::PROMISES;
use super::wakeup::WAKEUP;

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `true` or `false`.
    Bool,
    /// A whole number within these bounds, both included.
    Integer(i64, i64),
    /// A finite number that is not negative.
    Number,
    /// A string.
    Text,
    /// A path; a relative one counts from the folder of the file.
    Path,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A list of core numbers.
    Cores,
    /// A list of strings.
    Texts,
    /// A list of names.
    Names,
    /// A table of strings.
    TextTable,
    /// A table of finite numbers that are not negative.
    NumberTable,
    /// A table of whole numbers within these bounds, both included.
    IntegerTable(i64, i64),
    /// An IP address.
    Address,
    /// A port number or a range of them.
    Ports,
    /// A list of pairs, each a size and a weight.
    Mix,
    /// A table with keys of its own.
    Keys(&'static [Key]),
}

/// What a key means when it is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// It must be written.
    Needed,
    /// This value, as TOML.
    Value(&'static str),
    /// Nothing: see the meaning.
    Unset,
}

/// A key of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub takes: Type,
    /// What it means when it is not written.
    pub default: Preset,
    /// What it says.
    pub meaning: &'static str,
}

/// A section of the file.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// The kind of port that its keys belong to; empty for a section of its own.
    pub kind: &'static str,
    /// Whether it may stand several times, as `[[name]]`.
    pub many: bool,
    /// What it is for.
    pub meaning: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

impl Type {
    /// The type in words, for the reference and for errors.
    pub fn words(self) -> String {
        match self {
            Bool => "true or false".into(),
            Integer(0, i64::MAX) => "a whole number, 0 or more".into(),
            Integer(low, i64::MAX) => format!("a whole number, {low} or more"),
            Integer(low, high) => format!("a whole number, {low} to {high}"),
            Number => "a number, 0 or more".into(),
            Text => "a string".into(),
            Path => "a path (a string)".into(),
            Words(words) => words.iter().map(|w| format!("{w:?}")).collect::<Vec<_>>().join(" or "),
            Cores => "a list of core numbers, such as [0, 1]".into(),
            Texts => "a list of strings".into(),
            Names => "a list of names, such as [\"a\", \"b\"]".into(),
            TextTable => "a table of strings, such as { NAME = \"value\" }".into(),
            NumberTable => "a table of numbers, such as { NAME = 2.0 }".into(),
            IntegerTable(..) => "a table of whole numbers, such as { NAME = 2048 }".into(),
            Address => "an IP address (a string)".into(),
            Ports => "a port number, such as 80, or a range, such as \"1000-2000\"".into(),
            Mix => "a list of [size, weight] pairs, such as [[60, 7], [1514, 1]]".into(),
            Keys(keys) => {
                let names: Vec<String> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
                format!("a table of {}", names.join(", "))
            }
        }
    }
}

pub(super) const fn key(name: &'static str, takes: Type, default: Preset, meaning: &'static str) -> Key {
    Key { name, takes, default, meaning }
}

/// Largest number of a core.
pub const MAX_CORE: i64 = 65_535;
pub(super) const U32: i64 = u32::MAX as i64;
const U16: i64 = u16::MAX as i64;
/// Largest packet: the largest stride of a frame, less the headroom.
const MAX_PACKET: i64 = (sluice_shm::arena::MAX_STRIDE - sluice_shm::arena::HEADROOM) as i64;

/// Keys of a service's `container`.
const CONTAINER: &[Key] = &[
    key(
        "bundle",
        Path,
        Unset,
        "Bundle: a folder with a `config.json`, which names the program and its root directory. `args` go behind its own, `env` over its \
         own.",
    ),
    key("root", Path, Unset, "Root directory, without a `config.json`. The program is `exec`, as it is called in there."),
    key("runtime", Path, Value("\"auto\""), "The host's OCI runtime: `auto` (crun, else runc), a name or a path."),
    key("writable", Bool, Value("false"), "Whether instances may write to their root directory, which they share."),
];

/// All sections, in the order of the reference. The common keys of ports come first, then those of each kind.
pub const SECTIONS: &[Section] = &[
    Section {
        name: "manager",
        kind: "",
        many: false,
        meaning: "The manager's threads. Roles on the same core share one loop; a core may be given once in each list.",
        keys: &[
            key(
                "runtime_dir",
                Path,
                Value("\"/run/sluice\""),
                "Folder of the sockets and of the record that a later start cleans up by.",
            ),
            key(
                "estimates",
                Path,
                Value("\"/var/lib/sluice/estimates.json\""),
                "What packets cost NFs, as `sluice estimate --keep` has measured it: the first guess for an NF that starts. It need \
                 not be there.",
            ),
            key("rx", Cores, Value("[0]"), "Cores of the Rx threads: they poll the ports and classify."),
            key("tx", Cores, Value("[0]"), "Cores of the Tx threads: they take packets from NFs and forward them."),
            key(
                "wakeup",
                Cores,
                Value("[0]"),
                "Cores of the Wakeup threads: they decide who runs; the cores of NFs are divided among them.",
            ),
            key("monitor", Cores, Value("[0]"), "Cores of the Monitor threads: they measure; NFs are divided among them."),
            key(
                "idle",
                Words(&["adaptive", "spin", "sleep"]),
                Value("\"adaptive\""),
                "What a manager thread does when it finds no packets.",
            ),
            key("max_nfs", Integer(1, 65_000), Value("4096"), "Most NFs at a time."),
            key("max_flows", Integer(1, 1 << 27), Value("1048576"), "Most flows that the flow table remembers."),
            key(
                "max_paths",
                Integer(1, 1 << 24),
                Value("65536"),
                "Most paths: combinations of ingress port, chain and instances that flows take. At the bound flows share those there \
                 are.",
            ),
            key(
                "flow_timeout_ms",
                Integer(1, 86_400_000),
                Value("30000"),
                "A flow without packets for so long is forgotten, in milliseconds.",
            ),
            key(
                "fallback_wake_us",
                Integer(1, 10_000_000),
                Value("1000"),
                "If no NF of a core has made progress for so long, in microseconds, although packets wait, who has them is woken \
                 whatever the core's page says, and whoever had the core takes no turns until it moves. Longer than a burst of the \
                 slowest NF.",
            ),
            key(
                "max_violations",
                Integer(1, i64::MAX),
                Value("64"),
                "Violations (forged descriptors, wild cursors) after which an NF is stopped.",
            ),
            key(
                "stall_ms",
                Integer(0, 86_400_000),
                Value("10000"),
                "An NF that holds packets and returns none for so long is stopped, in milliseconds; 0 never stops one (for a debugger).",
            ),
            key(
                "latency_sample",
                Integer(0, U32),
                Value("128"),
                "One packet in so many of each chain is timed through it; 0 times none.",
            ),
            key(
                "drain_ms",
                Integer(0, 600_000),
                Value("2000"),
                "How long a stop waits for packets inside to leave, in milliseconds.",
            ),
            key(
                "uid_first",
                Integer(1, U32 - 1),
                Value("1879100000"),
                "First of the user numbers that services without `user` run as, each with one of its own, where the manager is root.",
            ),
            key(
                "uid_count",
                Integer(1, 1 << 24),
                Value("65536"),
                "How many such numbers there are. None of them may be anybody else's: those that the host's user database has are left \
                 out.",
            ),
        ],
    },
    Section {
        name: "memory",
        kind: "",
        many: false,
        meaning: "Packet memory: arenas of frames.",
        keys: &[
            key(
                "frames",
                Integer(512, 1 << 26),
                Value("16384"),
                "Number of frames of each arena: there is one for each tenant that has NFs, and one where packets are received that may be \
                 for several.",
            ),
            key(
                "tenants",
                IntegerTable(512, 1 << 26),
                Value("{}"),
                "Frames of the arenas of tenants that have others, by their names, such as `{ gold = 65536 }`.",
            ),
            key(
                "packet_bytes",
                Integer(64, MAX_PACKET),
                Value("2112"),
                "Largest packet, in bytes; the stride of a frame follows from it.",
            ),
            key("hugepages", Words(&["auto", "always", "never"]), Value("\"auto\""), "Whether arenas stand on 2 MiB hugepages."),
            key(
                "after_violation",
                Words(&["keep", "replace"]),
                Value("\"keep\""),
                "What becomes of a tenant's arena when one of its NFs was stopped for violations: it stays (`keep`), or the tenant's NFs are \
                 started again with a fresh one (`replace`).",
            ),
            key(
                "dpdk",
                Bool,
                Value("false"),
                "Whether DPDK is started even if no `dpdk` port is configured, so that one can be added later.",
            ),
            key(
                "io_ways",
                Integer(1, 64),
                Unset,
                "Ways of the last-level cache that devices write packets into. Left out: as the processor or resctrl says.",
            ),
            key(
                "rx_frames",
                Integer(32, 1 << 15),
                Unset,
                "Most packets that wait in each receive queue of a NIC. Left out: as many as stay in those ways until they are read, where \
                 these are known.",
            ),
        ],
    },
    Section {
        name: "sched",
        kind: "",
        many: false,
        meaning: "Who runs, and who is let in. Each part can be switched off alone.",
        keys: &[
            key(
                "class",
                Words(&["other", "batch", "rr"]),
                Value("\"other\""),
                "Scheduling class of NFs that sleep: the kernel's SCHED_OTHER, SCHED_BATCH or SCHED_RR.",
            ),
            key(
                "rr_slice_ms",
                Integer(1, 10_000),
                Unset,
                "Time slice of SCHED_RR while the daemon runs, in milliseconds: a setting of the whole host, which the kernel rounds \
                 up to its tick.",
            ),
            key(
                "handover",
                Bool,
                Value("true"),
                "Whether an NF that goes to sleep starts the next one on its core; else the manager wakes each NF that has packets.",
            ),
            key(
                "weights",
                Bool,
                Value("true"),
                "Whether each NF gets the share of its core that its arrivals and their cost ask for.",
            ),
            key(
                "backpressure",
                Bool,
                Value("true"),
                "Whether chains are refused at their entry where packets would die inside; else full rings inside drop.",
            ),
            key("ecn", Bool, Value("true"), "Whether packets that can carry the mark are marked before a queue overflows."),
            key(
                "high_watermark",
                Integer(1, 100),
                Value("80"),
                "Fill of an rx ring at which its chains may be throttled, in percent.",
            ),
            key("low_watermark", Integer(0, 99), Value("60"), "Fill of an rx ring at which they are let in again, in percent."),
            key(
                "queueing_us",
                Integer(0, 10_000_000),
                Value("100"),
                "Queueing time from which a ring over its high watermark throttles, in microseconds.",
            ),
            key(
                "ecn_watermark",
                Integer(1, 100),
                Value("50"),
                "Average fill of an rx ring from which packets are marked, in percent.",
            ),
            key("weight_every_ms", Integer(2, 10_000), Value("10"), "Time between two looks at the shares, in milliseconds."),
            key("weight_margin_percent", Integer(0, 100), Value("5"), "Change of a share that is worth writing, in percent of it."),
            key("min_share_percent", Integer(0, 50), Value("1"), "Least share of its core that an NF keeps, in percent."),
            key(
                "priorities",
                Words(&["weights", "realtime"]),
                Value("\"weights\""),
                "What gives priorities their effect where the kernel divides a core: its weights (`weights`), or SCHED_RR with a priority \
                 for each NF (`realtime`), which goes back to weights, with a warning, where the kernel does not allow it.",
            ),
            key(
                "downstream_first",
                Bool,
                Value("false"),
                "Whether of the NFs of a core those further down their chains go first: what most work was done for is passed on \
                 soonest.",
            ),
            key(
                "tenants",
                NumberTable,
                Value("{}"),
                "Priorities of tenants, by their names, such as `{ gold = 4.0 }`: of the flows that rules say are theirs, and of their \
                 services.",
            ),
        ],
    },
    Section {
        name: "workflow",
        kind: "",
        many: false,
        meaning: "Turns of NFs that do not cooperate: those that poll and share their core.",
        keys: &[
            key(
                "mechanism",
                Words(&["auto", "none", "realtime", "freeze", "signal", "freezer", "gate", "doorbell"]),
                Value("\"auto\""),
                "How an NF is stopped so that another runs: `auto` takes what works quickest on the host; `none` leaves all to the \
                 kernel's scheduler.",
            ),
            key(
                "cores",
                TextTable,
                Value("{}"),
                "Another mechanism for some cores, by their numbers, such as `{ 2 = \"signal\" }`.",
            ),
            key(
                "near",
                Integer(1, 1024),
                Value("32"),
                "Packets below which an NF's input is almost empty, and places below which its output is almost full: either ends its \
                 turn.",
            ),
            key(
                "divisor",
                Number,
                Value("1.0"),
                "A slice is the time that a ring full of packets takes, divided by this; 1 or more.",
            ),
            key("least_switches", Integer(1, 10_000), Value("5"), "A slice is at least so many times what a switch takes."),
            key(
                "longest_wait_us",
                Integer(10, 1_000_000),
                Value("1000"),
                "An NF with fewer packets than `near` has its turn after so long all the same, in microseconds.",
            ),
            key(
                "park_after_us",
                Integer(0, 1_000_000_000),
                Value("1000"),
                "An NF with nothing to do is stopped after so long, though nobody else has anything to do either, in microseconds.",
            ),
        ],
    },
    Section {
        name: "openflow",
        kind: "",
        many: false,
        meaning: "The SDN controller that is asked about new flows, by OpenFlow 1.3, before the rules.",
        keys: &[
            key("controller", Text, Unset, "Where the controller listens: `tcp:HOST:PORT`. Left out: nobody is asked."),
            key("datapath_id", Integer(1, i64::MAX), Value("1"), "The identity that the controller knows this host by."),
            key(
                "miss",
                Words(&["rules", "wait", "drop"]),
                Value("\"rules\""),
                "What becomes of packets that the controller is asked about.",
            ),
            key(
                "fail",
                Words(&["standalone", "secure"]),
                Value("\"standalone\""),
                "What becomes of packets without an entry while there is no connection to the controller. Entries stay in force.",
            ),
            key("entries", Integer(1, 131_000), Value("16384"), "Most flow entries."),
            key(
                "held",
                Integer(0, 65_536),
                Value("256"),
                "Most packets that wait for an answer, with `miss = \"wait\"`; further ones are dropped.",
            ),
            key(
                "wait_ms",
                Integer(1, 60_000),
                Value("100"),
                "How long a packet waits for an answer, in milliseconds; then it is treated as without a connection.",
            ),
            key("packet_in_rate", Integer(1, 1_000_000), Value("1000"), "Most packets that the controller is shown in a second."),
            key("packet_in_bytes", Integer(64, 65_344), Value("2048"), "Most bytes of a packet that the controller is shown."),
            key(
                "echo_ms",
                Integer(100, 3_600_000),
                Value("5000"),
                "After so long without a message the controller is asked whether it is there, in milliseconds.",
            ),
            key(
                "dead_ms",
                Integer(200, 3_600_000),
                Value("15000"),
                "After so long without a message the connection is given up, in milliseconds.",
            ),
            key(
                "retry_ms",
                Integer(10, 3_600_000),
                Value("500"),
                "Time to the first attempt to connect again, in milliseconds; each attempt doubles it.",
            ),
            key("retry_max_ms", Integer(10, 3_600_000), Value("8000"), "Longest time between two attempts, in milliseconds."),
        ],
    },
    Section {
        name: "promises",
        kind: "",
        many: false,
        meaning: "Promises to tenants (SLOs): where the instances of a placement may run, and by what means promises are kept.",
        keys: PROMISES,
    },
    Section {
        name: "port",
        kind: "",
        many: true,
        meaning: "Where packets enter and leave.",
        keys: &[
            key("name", Text, Needed, "Name, unique among ports."),
            key("kind", Words(&["gen", "sink", "pcap", "dpdk", "af_packet"]), Needed, "The kind; it has keys of its own."),
            key(
                "overload",
                Words(&["drop", "wait"]),
                Value("\"drop\""),
                "What happens to packets that find their chain's gate closed.",
            ),
            key("queues", Integer(1, 256), Value("1"), "Receive (and transmit) queues; spread over the Rx threads."),
            key(
                "tenant",
                Text,
                Unset,
                "Tenant that all of its packets are of: they are received into its memory. Left out: the one that all rules which can apply \
                 lead to; if these lead to several, packets are copied when they are let in.",
            ),
        ],
    },
    Section {
        name: "port",
        kind: "gen",
        many: true,
        meaning: "Generates traffic.",
        keys: &[
            key(
                "size",
                Integer(42, MAX_PACKET),
                Value("60"),
                "Size of a packet with its Ethernet header, without FCS, in bytes (so \"64-byte packets\" on the wire are 60 \
                 here).",
            ),
            key(
                "imix",
                Mix,
                Value("[]"),
                "Instead of `size`: a mix of sizes and their weights, such as `[[60, 7], [590, 4], [1514, 1]]`.",
            ),
            key("rate", Number, Value("0.0"), "Packets per second over all queues; 0 is as fast as possible."),
            key("flows", Integer(1, U32), Value("1"), "Number of flows, taken in turn."),
            key(
                "flow_packets",
                Integer(0, U32),
                Value("0"),
                "Packets of a flow; then another one begins in its place. TCP flows begin with SYN and end with RST then. 0: flows do not end.",
            ),
            key("protocol", Words(&["udp", "tcp"]), Value("\"udp\""), "Protocol of the packets."),
            key("ipv6", Bool, Value("false"), "IP version."),
            key("count", Integer(0, i64::MAX), Value("0"), "Stop after so many packets; 0 goes on for ever."),
            key("vlan", Integer(1, 4094), Unset, "VLAN tag to put on, if any."),
            key("dscp", Integer(0, 63), Value("0"), "DSCP of the packets, 0 to 63."),
            key("src", Address, Unset, "First source address; flow i adds i."),
            key("dst", Address, Unset, "Destination address."),
            key("dst_port", Integer(0, U16), Value("9"), "Destination port."),
            key(
                "checksum",
                Bool,
                Value("false"),
                "Give packets a checksum over all of their bytes, 8 bytes before the stamp. Sinks count those that are not as they were made as \
                 `altered`.",
            ),
        ],
    },
    Section {
        name: "port",
        kind: "sink",
        many: true,
        meaning: "Swallows packets, and measures what [`Gen`] wrote in them.",
        keys: &[],
    },
    Section {
        name: "port",
        kind: "pcap",
        many: true,
        meaning: "Reads and writes capture files.",
        keys: &[
            key("read", Path, Unset, "File to read packets from (pcap or pcapng)."),
            key("write", Path, Unset, "File to write packets to (pcap, nanosecond time stamps)."),
            key("speed", Words(&["fast", "recorded", "rate"]), Value("\"fast\""), "How fast to read."),
            key("rate", Number, Value("0.0"), "With `speed = \"rate\"`: packets per second."),
            key("repeat", Integer(0, U32), Unset, "How many times to read the file; 0 for ever."),
        ],
    },
    Section {
        name: "port",
        kind: "dpdk",
        many: true,
        meaning: "Any DPDK device.",
        keys: &[
            key("devargs", Text, Unset, "A virtual device, such as `net_af_packet0,iface=veth0` or `net_null0`."),
            key("pci", Text, Unset, "PCI address of a NIC, such as `0000:3b:00.0`."),
            key("descriptors", Integer(32, 32_768), Unset, "Descriptors of a receive and of a transmit queue."),
            key(
                "software_rss",
                Bool,
                Value("false"),
                "Whether one queue of the device is spread over the `queues` of the port by the manager, for a device that cannot.",
            ),
        ],
    },
    Section {
        name: "port",
        kind: "af_packet",
        many: true,
        meaning: "A network interface of the kernel, without DPDK.",
        keys: &[
            key("interface", Text, Needed, "Name of the interface."),
            key("netns", Text, Unset, "Name of the network namespace that it is in; the daemon's own without."),
            key("slots", Integer(64, 1 << 20), Value("4096"), "Packets that wait to be received at most, in each queue."),
            key("promiscuous", Bool, Value("true"), "Whether packets for other stations are taken too."),
            key(
                "when_missing",
                Words(&["refuse", "wait"]),
                Value("\"refuse\""),
                "What happens where there is no such interface when the port is opened: `refuse` refuses the configuration, `wait` opens \
                 it when it is there. One that goes later is waited for in any case.",
            ),
        ],
    },
    Section {
        name: "service",
        kind: "",
        many: true,
        meaning: "A kind of NF. Its instances are named `NAME.0`, `NAME.1`, ….",
        keys: &[
            key("name", Text, Needed, "Name, unique among services."),
            key(
                "exec",
                Path,
                Unset,
                "Program of an instance. Needed unless `attach = true`. A bare name is looked for beside `sluiced`, then in PATH. In a \
                 container with a `root` it is the program's path in there.",
            ),
            key("args", Texts, Value("[]"), "Its arguments."),
            key(
                "env",
                TextTable,
                Value("{}"),
                "Its environment, besides SLUICE_SOCKET, SLUICE_NF, SLUICE_ZYGOTE and PATH (which a container does not take from the \
                 host, and may set).",
            ),
            key(
                "user",
                Text,
                Unset,
                "User that it runs as (name or number). Without, where the manager is root, a user of its own that nobody else has and \
                 that may nothing (see `uid_first`); else the manager's own. With `attach = true`: the user who may attach, besides root \
                 and the manager's own.",
            ),
            key(
                "filter",
                Bool,
                Value("true"),
                "Whether it starts with a filter of system calls, which denies what no packet handler needs and what would reach \
                 others. For a debugger, say.",
            ),
            key(
                "storage",
                Bool,
                Value("false"),
                "Whether it uses the library's storage, and so needs io_uring, which the filter denies without this.",
            ),
            key(
                "pids",
                Integer(1, 4_194_304),
                Value("256"),
                "Most processes and threads of an instance; in a container those of its runtime too.",
            ),
            key(
                "memory",
                Integer(1, 1 << 24),
                Unset,
                "Most memory of an instance, in MiB: its own, and what it is the first to touch of what it shares. Past that the kernel ends \
                 it. Without, as much as the host has.",
            ),
            key(
                "container",
                Keys(CONTAINER),
                Unset,
                "An OCI container that each instance runs in, from a bundle or a root directory.",
            ),
            key(
                "attach",
                Bool,
                Value("false"),
                "Instances are started from outside and attach by themselves, under the name `NAME.i` or `NAME`.",
            ),
            key(
                "zygote",
                Bool,
                Value("false"),
                "Whether instances are forked from a process of the service that has made its handler (a zygote). They need no \
                 start of their own and share what they do not change. For programs in callback style that have one thread when the \
                 handler is made.",
            ),
            key("instances", Integer(0, 65_000), Value("1"), "Number of instances at start."),
            key("cores", Cores, Value("[1]"), "Cores of the instances, in turn."),
            key(
                "mode",
                Words(&["sleep", "poll"]),
                Value("\"sleep\""),
                "Sleep when there is nothing to do, or poll. Those that poll and share a core have their turns from outside: see \
                 `[workflow]`.",
            ),
            key(
                "ring",
                Integer(2, 1 << 20),
                Value("2048"),
                "Capacity of each ring, a power of two. Also the most packets that may be on their way to an instance.",
            ),
            key(
                "tenant",
                Text,
                Unset,
                "NFs of different tenants share neither packet memory nor core pages; those without one are a tenant too.",
            ),
            key(
                "may_send_to",
                Texts,
                Unset,
                "Ports and services that instances may send packets to by a verdict. Without: the services and egress ports of the chains \
                 that the service is in. What goes elsewhere is dropped, and counts as a violation.",
            ),
            key(
                "priority",
                Number,
                Value("1.0"),
                "Weight of its instances beside what their load asks for: 2 gives twice the share, and lets them go before others while \
                 they have used up less than that.",
            ),
            key(
                "kind",
                Words(&["nf", "foreign"]),
                Value("\"nf\""),
                "Whether its program was written for Sluice, or is any program that sits between two network interfaces.",
            ),
            key(
                "via",
                Words(&["af_packet", "af_xdp", "memif", "vhost-user"]),
                Value("\"af_packet\""),
                "Of a foreign one: how packets get to its program and back: a pair of virtual interfaces (`af_packet`; `af_xdp` reads \
                 and writes it by other sockets), or memory shared with a program that connects to a socket (`memif`, `vhost-user`; \
                 with DPDK).",
            ),
            key(
                "interfaces",
                Texts,
                Value("[\"in\", \"out\"]"),
                "Of a foreign one: names of the interfaces that its program finds; packets of a chain go in at the first and come out \
                 of the second. With one it is a tap: it is shown copies. With shared memory: names of its sockets, \
                 `RUNTIME_DIR/SERVICE.i.NAME`.",
            ),
            key(
                "netns",
                Text,
                Unset,
                "Of a foreign one: name of its network namespace, which is made if it is not there; `sluice-SERVICE.i` without.",
            ),
            key("mtu", Integer(68, 65_535), Value("1500"), "Of a foreign one: MTU of its interfaces."),
            key(
                "queue",
                Integer(64, 1 << 20),
                Value("4096"),
                "Of a foreign one: packets that wait behind each of its interfaces at most.",
            ),
            key(
                "setup",
                Texts,
                Value("[]"),
                "Of a foreign one: shell commands that are run in its namespace, one after another, before its program.",
            ),
            key(
                "ready",
                Texts,
                Value("[]"),
                "Of a foreign one: shell commands that are run in its namespace when its program was started; it gets packets after \
                 them.",
            ),
            key(
                "teardown",
                Texts,
                Value("[]"),
                "Of a foreign one: shell commands that are run in its namespace when its program has ended.",
            ),
            key(
                "drops",
                Words(&["counted", "by-design"]),
                Value("\"counted\""),
                "Of a foreign one: whether packets that do not come back are losses, or it eats packets by design.",
            ),
            key(
                "inside_ms",
                Integer(1, 3_600_000),
                Value("1000"),
                "Of a foreign one: a packet that has not come back for so long is counted as gone, in milliseconds.",
            ),
            key(
                "pid_file",
                Path,
                Unset,
                "Of a foreign one: file that holds the number of its process, where somebody else has started it; it and what it starts \
                 have turns, and are not ended with the daemon.",
            ),
            key(
                "per",
                Words(&["shared", "flow", "class", "rss", "round-robin"]),
                Value("\"shared\""),
                "What an instance is given: whatever comes (`shared`), one flow at a time (`flow`), all flows of a traffic class \
                 (`class`), or, of a fixed number of instances, the flows of one hash (`rss`) or each packet in turn (`round-robin`).",
            ),
            key(
                "pool",
                Keys(POOL),
                Unset,
                "Of one that is not shared: how many instances there are, and what a flow is. `[service.pool]`.",
            ),
            key(
                "wakeup",
                Keys(WAKEUP),
                Unset,
                "When an instance that sleeps is woken; at every packet without. `[service.wakeup]`.",
            ),
        ],
    },
    Section {
        name: "chain",
        kind: "",
        many: true,
        meaning: "An ordered list of services and an egress port.",
        keys: &[
            key("name", Text, Needed, "Name, unique among chains."),
            key(
                "services",
                Names,
                Value("[]"),
                "Services, in order; the same one may come again, but not twice in a row. `NAME:reverse` is a foreign one from its far \
                 side: packets go in at its second interface and come out of its first.",
            ),
            key("egress", Text, Needed, "Port where packets leave."),
            key(
                "on_failure",
                Words(&["drop", "bypass", "restart"]),
                Value("\"restart\""),
                "What happens when an NF of the chain dies.",
            ),
        ],
    },
    Section {
        name: "rule",
        kind: "",
        many: true,
        meaning: "Match → chain. Every key that is given must match.",
        keys: &[
            key("name", Text, Unset, "Name, unique among rules; `rule.N` without."),
            key("port", Text, Unset, "Ingress port."),
            key("vlan", Integer(0, 4094), Unset, "VLAN id; 0 matches untagged packets."),
            key("protocol", Text, Unset, "`tcp`, `udp`, `icmp`, `icmpv6`, `ip` (any IP), `non-ip`, or a protocol number."),
            key("src", Text, Unset, "Source prefix, v4 or v6."),
            key("dst", Text, Unset, "Destination prefix, v4 or v6."),
            key("src_port", Ports, Unset, "Source ports: `80` or `1000-2000`. Fragments have no ports and never match."),
            key("dst_port", Ports, Unset, "Destination ports."),
            key("dscp", Integer(0, 63), Unset, "DSCP, 0 to 63."),
            key(
                "priority",
                Number,
                Unset,
                "Priority of the flows that match: a weight of the instances that are given one of them alone. 1 without.",
            ),
            key("tenant", Text, Unset, "Tenant of the flows that match. Its priority, in `[sched]`, multiplies that of the rule."),
            key("chain", Text, Needed, "Chain of the packets that match."),
            key(
                "wakeup",
                Keys(WAKEUP),
                Unset,
                "When instances that have one flow at a time are woken for packets of this one, where their service has a policy.",
            ),
        ],
    },
];

/// The sections of a name: one, or for ports the common one and those of each kind.
pub fn sections(name: &str) -> impl Iterator<Item = &'static Section> {
    SECTIONS.iter().filter(move |s| s.name == name)
}

/// The names of all sections.
pub fn section_names() -> Vec<&'static str> {
    SECTIONS.iter().filter(|s| s.kind.is_empty()).map(|s| s.name).collect()
}

/// A key with its type, its default and its meaning.
fn describe(out: &mut String, key: &Key) {
    let default = match key.default {
        Needed => "needed".to_string(),
        Value(value) => format!("default {value}"),
        Unset => "may be left out".to_string(),
    };
    let _ = write!(out, "  {}: {}; {default}\n      {}\n", key.name, key.takes.words(), key.meaning);
}

/// Every key with its type, its default and its meaning, for people to read.
pub fn reference() -> String {
    let mut out = String::from("A configuration is one TOML file. Relative paths count from its folder.\n");
    for section in SECTIONS {
        let head = match (section.many, section.kind) {
            (false, _) => format!("[{}]", section.name),
            (true, "") => format!("[[{}]]", section.name),
            (true, kind) => format!("[[{}]] with kind = {kind:?}", section.name),
        };
        let _ = write!(out, "\n{head}\n{}\n", section.meaning.replace("[`Gen`]", "`gen`"));
        section.keys.iter().for_each(|key| describe(&mut out, key));
        for key in section.keys {
            if let Keys(inner) = key.takes {
                let _ = write!(out, "\n[{}.{}]\n{}\n", section.name, key.name, key.meaning);
                inner.iter().for_each(|key| describe(&mut out, key));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value as Json;
    use sluice_api::config::Config;

    use super::*;

    /// What the model makes of the shortest text of a section, as JSON.
    fn shortest(section: &Section) -> Json {
        let text = match (section.name, section.kind) {
            ("port", "") => "[[port]]\nname = \"x\"\nkind = \"sink\"",
            ("port", "af_packet") => "[[port]]\nname = \"x\"\nkind = \"af_packet\"\ninterface = \"y\"",
            ("port", kind) => &format!("[[port]]\nname = \"x\"\nkind = {kind:?}"),
            ("service", _) => "[[service]]\nname = \"x\"",
            ("chain", _) => "[[chain]]\nname = \"x\"\negress = \"y\"",
            ("rule", _) => "[[rule]]\nchain = \"x\"",
            _ => "",
        };
        let config: Config = toml::from_str(text).unwrap();
        let value = &serde_json::to_value(config).unwrap()[section.name];
        if section.many { value[0].clone() } else { value.clone() }
    }

    /// What the model makes of an empty `[service.pool]`, as JSON.
    fn pool() -> Json {
        serde_json::to_value(sluice_api::config::Pool::default()).unwrap()
    }

    /// What the model makes of an empty `[service.wakeup]`, as JSON.
    fn wakeup() -> Json {
        serde_json::to_value(sluice_api::config::Wakeup::default()).unwrap()
    }

    #[test]
    fn the_table_has_the_keys_of_the_model() {
        let common: BTreeSet<String> = shortest(sections("port").next().unwrap()).as_object().unwrap().keys().cloned().collect();
        for section in SECTIONS {
            let mut model: BTreeSet<String> = shortest(section).as_object().unwrap().keys().cloned().collect();
            if !section.kind.is_empty() {
                model.retain(|k| !common.contains(k));
            }
            let table: BTreeSet<String> = section.keys.iter().map(|k| k.name.to_string()).collect();
            assert_eq!(table, model, "[{}] {}", section.name, section.kind);
        }
        let pool: BTreeSet<String> = pool().as_object().unwrap().keys().cloned().collect();
        assert_eq!(POOL.iter().map(|k| k.name.to_string()).collect::<BTreeSet<_>>(), pool);
        let wakeup: BTreeSet<String> = wakeup().as_object().unwrap().keys().cloned().collect();
        assert_eq!(WAKEUP.iter().map(|k| k.name.to_string()).collect::<BTreeSet<_>>(), wakeup);
        let all: BTreeSet<String> = serde_json::to_value(Config::default()).unwrap().as_object().unwrap().keys().cloned().collect();
        assert_eq!(section_names().into_iter().map(str::to_string).collect::<BTreeSet<_>>(), all);
    }

    #[test]
    fn the_table_has_the_defaults_of_the_model() {
        let sections = SECTIONS.iter().map(|section| (section.name, section.keys, shortest(section)));
        for (section, keys, model) in sections.chain([("service.pool", POOL, pool()), ("service.wakeup", WAKEUP, wakeup())]) {
            for key in keys {
                let stated = match key.default {
                    Needed => continue,
                    Unset => Json::Null,
                    Value(text) => {
                        let mut table: toml::Table = toml::from_str(&format!("x = {text}")).unwrap();
                        serde_json::to_value(table.remove("x").unwrap()).unwrap()
                    }
                };
                assert_eq!(model[key.name], stated, "{section}.{}", key.name);
            }
        }
        let model = serde_json::to_value(sluice_api::config::Container::default()).unwrap();
        for key in CONTAINER {
            let stated = match key.default {
                Value(text) => serde_json::from_str(text).unwrap(),
                _ => Json::Null,
            };
            assert_eq!(model[key.name], stated, "container.{}", key.name);
        }
        assert_eq!(model.as_object().unwrap().len(), CONTAINER.len());
    }

    #[test]
    fn the_table_speaks_with_the_words_of_the_model() {
        // Doc comments of fields, by structure and by name on the wire.
        let mut docs: BTreeMap<(String, String), String> = BTreeMap::new();
        let (mut owner, mut doc, mut rename) = (String::new(), String::new(), None);
        for line in concat!(
            include_str!("../../api/src/config.rs"),
            include_str!("../../api/src/config/pool.rs"),
            include_str!("../../api/src/config/promise.rs"),
            include_str!("../../api/src/config/wakeup.rs")
        )
        .lines()
        {
            let line = line.trim();
            if let Some(text) = line.strip_prefix("/// ") {
                doc += if doc.is_empty() { "" } else { " " };
                doc += text;
            } else if let Some(rest) = line.strip_prefix("#[serde(rename = \"") {
                rename = rest.split('"').next().map(str::to_string);
            } else if let Some(name) = line.strip_prefix("pub struct ") {
                owner = name.split(' ').next().unwrap().to_string();
                docs.insert((owner.clone(), String::new()), std::mem::take(&mut doc));
            } else if let Some(rest) = line.strip_prefix("pub ").filter(|l| l.contains(':')) {
                let name = rename.take().unwrap_or_else(|| rest.split(':').next().unwrap().to_string());
                docs.insert((owner.clone(), name), std::mem::take(&mut doc));
            } else if !line.starts_with("#[") {
                doc.clear();
                rename = None;
            }
        }
        for key in CONTAINER {
            let meaning = docs.get(&("Container".to_string(), key.name.to_string()));
            assert_eq!(meaning.map(String::as_str), Some(key.meaning), "Container.{}", key.name);
        }
        for section in SECTIONS {
            let name = if section.kind.is_empty() { section.name } else { section.kind };
            let owner: String = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
            if section.kind.is_empty() {
                assert_eq!(docs[&(owner.clone(), String::new())], section.meaning);
            }
            for key in section.keys {
                let meaning = docs.get(&(owner.clone(), key.name.to_string()));
                assert_eq!(meaning.map(String::as_str), Some(key.meaning), "{owner}.{}", key.name);
            }
        }
        for key in POOL {
            let meaning = docs.get(&("Pool".to_string(), key.name.to_string()));
            assert_eq!(meaning.map(String::as_str), Some(key.meaning), "Pool.{}", key.name);
        }
        for key in WAKEUP {
            let meaning = docs.get(&("Wakeup".to_string(), key.name.to_string()));
            assert_eq!(meaning.map(String::as_str), Some(key.meaning), "Wakeup.{}", key.name);
        }
    }

    #[test]
    fn the_reference_names_every_key() {
        let reference = crate::schema::reference();
        for key in SECTIONS.iter().flat_map(|s| s.keys).chain(POOL).chain(CONTAINER).chain(WAKEUP) {
            assert!(reference.contains(&format!("\n  {}: {}; ", key.name, key.takes.words())), "{}", key.name);
            assert!(reference.contains(key.meaning));
        }
        assert!(
            reference
                .contains("[[port]] with kind = \"gen\"\nGenerates traffic.\n  size: a whole number, 42 to 65344; default 60\n")
        );
        assert!(reference.contains("\n  max_violations: a whole number, 1 or more; default 64\n"));
    }
}
