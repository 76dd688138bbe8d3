//! The configuration of an experiment: generators, devices, services, chains.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sluice_api::config::Run;

pub use sluice_policy::sim::Class;

/// Bytes of the frame check sequence: on the wire, but not in the configuration.
const FCS: u32 = 4;
/// Size of the smallest packets on the wire, by which benchmarks name them.
pub const PACKET_BYTES: u32 = 64;
/// Name of the sink where chains end.
pub const SINK: &str = "out";

/// A generator, and the rule that steers its packets to a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    /// Name of the port.
    pub name: String,
    pub chain: String,
    /// Packets per second; 0 is as fast as possible.
    pub rate: f64,
    pub flows: u32,
    /// Whether packets wait for room in their chain; otherwise they are dropped at the entry.
    pub wait: bool,
    /// Size of a packet on the wire, in bytes.
    pub packet_bytes: u32,
    pub dst_port: u16,
    /// Whether packets are TCP; otherwise UDP.
    pub tcp: bool,
    /// Packets of a flow, after which another replaces it; 0 if flows do not end.
    pub flow_packets: u32,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            name: "in".into(),
            chain: "c".into(),
            rate: 0.0,
            flows: 1,
            wait: false,
            packet_bytes: PACKET_BYTES,
            dst_port: 9,
            tcp: false,
            flow_packets: 0,
        }
    }
}

/// A DPDK device, and the rule that steers its packets to a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Name of the port.
    pub name: String,
    /// Device arguments of DPDK.
    pub devargs: String,
    pub chain: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub name: String,
    pub exec: String,
    pub args: Vec<String>,
    /// Its tenant, if configured.
    pub tenant: Option<&'static str>,
    /// Number of instances at start.
    pub instances: u32,
    /// Core of its instances.
    pub core: usize,
    /// More cores, if they are spread over several.
    pub more_cores: Vec<usize>,
    /// Whether instances poll; otherwise they sleep when idle.
    pub poll: bool,
    pub ring: u32,
    /// Whether instances are forked from a zygote.
    pub zygote: bool,
    /// Its pool, if each flow has its own instance.
    pub pool: Option<Pool>,
    /// What its instances are made of, if they run in containers.
    pub containers: Option<Containers>,
}

/// OCI containers of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containers {
    /// Root directory, with the program.
    pub root: PathBuf,
    /// The runtime that starts them.
    pub runtime: PathBuf,
}

/// A pool with an instance per flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Least and most instances.
    pub members: (u32, u32),
    pub ring: u32,
    /// Time for which late packets reach their instance, in milliseconds.
    pub linger_ms: u32,
    /// Idle time after which a flow expires, in milliseconds; none for the daemon's default.
    pub idle_ms: Option<u32>,
    /// Action for a flow without an idle instance: `drop`, `wait`, or a shared service as fallback.
    pub when_empty: &'static str,
    /// Most waiting packets; none for the daemon's default.
    pub queue: Option<u32>,
    /// Whether an instance ends after its flow and is replaced.
    pub strict: bool,
}

impl Pool {
    /// A pool of a fixed number of instances.
    pub fn of(members: u32, ring: u32) -> Self {
        Self { members: (members, members), ring, linger_ms: 1, idle_ms: None, when_empty: "drop", queue: None, strict: false }
    }

    fn toml(&self) -> String {
        let Self { members: (min, max), ring, linger_ms, idle_ms, when_empty, queue, strict } = self;
        let idle = idle_ms.map(|ms| format!("tcp_idle_ms = {ms}\nhalf_open_ms = {ms}\nidle_ms = {ms}\n")).unwrap_or_default();
        let queue = queue.map(|packets| format!("queue = {packets}\n")).unwrap_or_default();
        let empty = match *when_empty {
            word @ ("drop" | "wait") => format!("when_empty = \"{word}\""),
            service => format!("when_empty = \"fallback\"\nfallback = {}", quoted(service)),
        };
        let isolation = if *strict { "strict" } else { "reset" };
        format!(
            "[service.pool]\nmin = {min}\nmax = {max}\nring = {ring}\nlinger_ms = {linger_ms}\n{idle}{queue}{empty}\nisolation = \"{isolation}\"\n"
        )
    }
}

impl Default for Service {
    fn default() -> Self {
        let (name, exec) = (String::new(), String::new());
        Self {
            name,
            exec,
            args: Vec::new(),
            tenant: None,
            instances: 1,
            core: 1,
            more_cores: Vec::new(),
            poll: false,
            ring: 1024,
            zygote: false,
            pool: None,
            containers: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    pub name: String,
    /// In order.
    pub services: Vec<String>,
    /// Port where its packets leave.
    pub egress: String,
    /// Action when an NF dies: `drop`, `bypass` or `restart`.
    pub on_failure: &'static str,
    /// How its NFs run.
    pub run: Run,
}

impl Default for Chain {
    fn default() -> Self {
        Self { name: "c".into(), services: Vec::new(), egress: SINK.into(), on_failure: "restart", run: Run::Isolated }
    }
}

/// The table `[sched]`; an option that is none keeps the daemon's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sched {
    pub class: Class,
    /// Whether an NF that goes to sleep starts the next one on its core.
    pub handover: bool,
    /// Whether shares of a core follow load.
    pub weights: bool,
    /// Whether packets are refused at a chain's entry, rather than dropped inside.
    pub backpressure: bool,
    /// Whether packets are marked before queues overflow.
    pub ecn: bool,
    /// Ring fill in percent that reopens its chains, and that throttles them.
    pub watermarks: Option<(u32, u32)>,
    /// Queueing time at which a ring throttles, in microseconds.
    pub queueing_us: Option<u32>,
    /// Whether NFs later in their chains run first.
    pub downstream_first: bool,
}

impl Sched {
    fn toml(&self) -> String {
        let class = match self.class {
            Class::Other => "\"other\"".into(),
            Class::Batch => "\"batch\"".into(),
            Class::Rr(ms) => format!("\"rr\"\nrr_slice_ms = {ms}"),
        };
        let Self { handover, weights, backpressure, ecn, .. } = self;
        let mut out = format!(
            "[sched]\nclass = {class}\nhandover = {handover}\nweights = {weights}\nbackpressure = {backpressure}\necn = {ecn}\n"
        );
        if let Some((low, high)) = self.watermarks {
            let _ = writeln!(out, "low_watermark = {low}\nhigh_watermark = {high}");
        }
        if let Some(us) = self.queueing_us {
            let _ = writeln!(out, "queueing_us = {us}");
        }
        if self.downstream_first {
            out.push_str("downstream_first = true\n");
        }
        out + "\n"
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Core of the manager, with all its roles, unless there are shards.
    pub manager_core: usize,
    /// Cores of its shards. Each has a queue of the sink.
    pub shards: Vec<usize>,
    /// Whether packet threads sleep while idle; otherwise they poll all the time.
    pub rests: bool,
    /// Frames of packet memory.
    pub frames: u32,
    /// Capacity of the flow table; none for the daemon's default.
    pub max_flows: Option<u32>,
    /// Most NFs; none for the daemon's default.
    pub max_nfs: Option<u32>,
    /// Scheduling and admission; none for the daemon's defaults.
    pub sched: Option<Sched>,
    /// How polling NFs are stopped for others: `mechanism` in `[workflow]`; none for the daemon's
    /// default.
    pub mechanism: Option<&'static str>,
    /// More keys of `[manager]`, as TOML lines.
    pub manager: &'static str,
    pub traffic: Vec<Traffic>,
    pub devices: Vec<Device>,
    /// Ports that write captures: name and file.
    pub files: Vec<(String, PathBuf)>,
    pub services: Vec<Service>,
    pub chains: Vec<Chain>,
    /// More of the configuration as TOML, for everything else.
    pub more: String,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            manager_core: 0,
            shards: Vec::new(),
            rests: false,
            frames: 16_384,
            max_flows: None,
            max_nfs: None,
            sched: None,
            mechanism: None,
            manager: "",
            traffic: Vec::new(),
            devices: Vec::new(),
            files: Vec::new(),
            services: Vec::new(),
            chains: Vec::new(),
            more: String::new(),
        }
    }
}

impl Setup {
    /// The configuration as TOML, with its sockets in `runtime_dir`.
    pub fn toml(&self, runtime_dir: &Path) -> String {
        let mut out = String::new();
        let core = self.manager_core;
        let bounds = [("max_flows", self.max_flows), ("max_nfs", self.max_nfs)];
        let mut bounds: String = bounds.iter().filter_map(|(key, n)| Some(format!("{key} = {}\n", (*n)?))).collect();
        if !self.rests {
            bounds.push_str("idle = \"spin\"\n");
        }
        bounds.push_str(self.manager);
        let threads = match self.shards.as_slice() {
            [] => format!("rx = [{core}]\ntx = [{core}]\nwakeup = [{core}]\nmonitor = [{core}]"),
            shards => format!("shards = {shards:?}"),
        };
        let _ = writeln!(out, "[manager]\nruntime_dir = {}\n{threads}\n{bounds}", quoted(&runtime_dir.display().to_string()));
        // Uses hugepages where the host has some reserved; an experiment reserves none.
        let _ = writeln!(out, "[memory]\nframes = {}\nhugepages = \"auto\"\n", self.frames);
        out.push_str(&self.sched.as_ref().map(Sched::toml).unwrap_or_default());
        if let Some(mechanism) = self.mechanism {
            let _ = writeln!(out, "[workflow]\nmechanism = \"{mechanism}\"\n");
        }
        self.traffic.iter().for_each(|traffic| traffic.write(&mut out));
        for d in &self.devices {
            let _ = writeln!(out, "[[port]]\nname = {}\nkind = \"dpdk\"\ndevargs = {}\n", quoted(&d.name), quoted(&d.devargs));
            rule(&mut out, &d.name, &d.chain);
        }
        for (name, file) in &self.files {
            let file = quoted(&file.display().to_string());
            let _ = writeln!(out, "[[port]]\nname = {}\nkind = \"pcap\"\nwrite = {file}\n", quoted(name));
        }
        let queues = if self.shards.len() > 1 { format!("queues = {}\n", self.shards.len()) } else { String::new() };
        let _ = writeln!(out, "[[port]]\nname = \"{SINK}\"\nkind = \"sink\"\n{queues}");
        let inline = |service: &Service| self.chains.iter().any(|c| c.run == Run::Inline && c.services.contains(&service.name));
        self.services.iter().for_each(|service| service.write(&mut out, inline(service)));
        for c in &self.chains {
            let _ = writeln!(
                out,
                "[[chain]]\nname = {}\nservices = [{}]\negress = {}\non_failure = \"{}\"\n{}",
                quoted(&c.name),
                list(&c.services),
                quoted(&c.egress),
                c.on_failure,
                if c.run == Run::Isolated { String::new() } else { format!("run = \"{}\"\n", c.run.word()) }
            );
        }
        out.push_str(&self.more);
        out
    }
}

impl Traffic {
    /// Writes its port and the rule of its packets.
    fn write(&self, out: &mut String) {
        let overload = if self.wait { "wait" } else { "drop" };
        let name = quoted(&self.name);
        let mut ends = if self.tcp { "protocol = \"tcp\"\n".to_string() } else { String::new() };
        if self.flow_packets > 0 {
            let _ = writeln!(ends, "flow_packets = {}", self.flow_packets);
        }
        let _ = writeln!(
            out,
            "[[port]]\nname = {name}\nkind = \"gen\"\nsize = {}\nflows = {}\nrate = {:?}\ndst_port = {}\noverload = \"{overload}\"\n{ends}",
            self.packet_bytes.saturating_sub(FCS),
            self.flows,
            self.rate,
            self.dst_port
        );
        rule(out, &self.name, &self.chain);
    }
}

impl Service {
    fn write(&self, out: &mut String, is_inline: bool) {
        let trusted = if is_inline { "trusted = true\n" } else { "" };
        let mode = if self.poll { "poll" } else { "sleep" };
        let zygote = if self.zygote { "zygote = true\n" } else { "" };
        let tenant = self.tenant.map(|tenant| format!("tenant = {}\n", quoted(tenant))).unwrap_or_default();
        // These use the library's storage.
        let has_storage = ["logger", "lookup"].iter().any(|nf| self.exec.ends_with(nf));
        let storage = if has_storage { "storage = true\n" } else { "" };
        let number = match &self.pool {
            None => format!("instances = {}\nring = {}\n", self.instances, self.ring),
            Some(_) => "per = \"flow\"\n".into(),
        };
        let contained = self.containers.as_ref().map(|Containers { root, runtime }| {
            let [root, runtime] = [root, runtime].map(|path| quoted(&path.display().to_string()));
            format!("container = {{ root = {root}, runtime = {runtime} }}\n")
        });
        let contained = contained.unwrap_or_default();
        let cores = [&[self.core][..], &self.more_cores].concat();
        let _ = writeln!(
            out,
            "[[service]]\nname = {}\nexec = {}\nargs = [{}]\ncores = {cores:?}\nmode = \"{mode}\"\n\
             {number}{zygote}{storage}{tenant}{trusted}{contained}",
            quoted(&self.name),
            quoted(&self.exec),
            list(&self.args),
        );
        if let Some(pool) = &self.pool {
            let _ = writeln!(out, "{}", pool.toml());
        }
    }
}

fn rule(out: &mut String, port: &str, chain: &str) {
    let _ = writeln!(out, "[[rule]]\nport = {}\nchain = {}\n", quoted(port), quoted(chain));
}

fn list(texts: &[String]) -> String {
    texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")
}

/// A text as TOML, whose basic strings accept all escapes that JSON writes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_reads_as_it_was_meant() {
        let setup = Setup {
            manager_core: 3,
            traffic: vec![Traffic { rate: 1.5e6, flows: 16, wait: true, ..Traffic::default() }],
            devices: vec![Device { name: "veth".into(), devargs: "net_af_packet0,iface=v0".into(), chain: "back".into() }],
            services: vec![Service {
                name: "b1".into(),
                exec: "nf".into(),
                args: vec!["--cycles".into(), "1,2".into()],
                tenant: None,
                instances: 2,
                core: 4,
                more_cores: vec![6],
                poll: true,
                ring: 64,
                zygote: false,
                pool: None,
                containers: None,
            }],
            chains: vec![
                Chain { services: vec!["b1".into()], on_failure: "drop", ..Chain::default() },
                Chain { name: "back".into(), egress: "veth".into(), ..Chain::default() },
            ],
            ..Setup::default()
        };
        let want = r#"[manager]
runtime_dir = "/tmp/a \"b"
rx = [3]
tx = [3]
wakeup = [3]
monitor = [3]
idle = "spin"

[memory]
frames = 16384
hugepages = "auto"

[[port]]
name = "in"
kind = "gen"
size = 60
flows = 16
rate = 1500000.0
dst_port = 9
overload = "wait"

[[rule]]
port = "in"
chain = "c"

[[port]]
name = "veth"
kind = "dpdk"
devargs = "net_af_packet0,iface=v0"

[[rule]]
port = "veth"
chain = "back"

[[port]]
name = "out"
kind = "sink"

[[service]]
name = "b1"
exec = "nf"
args = ["--cycles", "1,2"]
cores = [4, 6]
mode = "poll"
instances = 2
ring = 64

[[chain]]
name = "c"
services = ["b1"]
egress = "out"
on_failure = "drop"

[[chain]]
name = "back"
services = []
egress = "veth"
on_failure = "restart"

"#;
        assert_eq!(setup.toml(Path::new("/tmp/a \"b")), want);
    }

    #[test]
    fn a_pool_is_a_table_of_its_service() {
        let mut service = Service { pool: Some(Pool::of(45, 64)), zygote: true, ..Service::default() };
        let text = |service: &Service| Setup { services: vec![service.clone()], ..Setup::default() }.toml(Path::new("/tmp/x"));
        let got = text(&service);
        assert!(
            got.contains("mode = \"sleep\"\nper = \"flow\"\nzygote = true\n\n[service.pool]\nmin = 45\nmax = 45\nring = 64\n"),
            "{got}"
        );
        assert!(got.contains("when_empty = \"drop\"\nisolation = \"reset\"\n"), "{got}");
        service.pool = Some(Pool { when_empty: "rest", strict: true, ..Pool::of(1, 64) });
        assert!(text(&service).contains("when_empty = \"fallback\"\nfallback = \"rest\"\nisolation = \"strict\"\n"));
        service.pool = Some(Pool { when_empty: "wait", queue: Some(4096), ..Pool::of(1, 64) });
        assert!(text(&service).contains("queue = 4096\nwhen_empty = \"wait\"\n"));
    }

    #[test]
    fn flows_that_end_are_asked_for() {
        let traffic = Traffic { tcp: true, flow_packets: 12, ..Traffic::default() };
        let text = Setup { traffic: vec![traffic], ..Setup::default() }.toml(Path::new("/tmp/x"));
        assert!(text.contains("overload = \"drop\"\nprotocol = \"tcp\"\nflow_packets = 12\n\n[[rule]]"), "{text}");
    }

    #[test]
    fn scheduling_is_a_table_of_its_own() {
        let plain = Sched {
            class: Class::Batch,
            handover: false,
            weights: true,
            backpressure: false,
            ecn: false,
            watermarks: None,
            queueing_us: None,
            downstream_first: false,
        };
        let want = "[sched]\nclass = \"batch\"\nhandover = false\nweights = true\nbackpressure = false\necn = false\n\n";
        assert_eq!(plain.toml(), want);
        let first = Sched { downstream_first: true, ..plain }.toml();
        assert!(first.contains("ecn = false\ndownstream_first = true\n"), "{first}");
        let tuned = Sched { class: Class::Rr(100), watermarks: Some((30, 50)), queueing_us: Some(20), ..plain };
        assert!(tuned.toml().starts_with("[sched]\nclass = \"rr\"\nrr_slice_ms = 100\nhandover = false\n"));
        assert!(tuned.toml().ends_with("low_watermark = 30\nhigh_watermark = 50\nqueueing_us = 20\n\n"));
        let setup = Setup { sched: Some(plain), frames: 512, ..Setup::default() };
        let text = setup.toml(Path::new("/tmp/x"));
        assert!(text.contains(want) && text.contains("frames = 512"), "{text}");
        let plain = Setup::default().toml(Path::new("/tmp/x"));
        assert!(!plain.contains("[sched]") && !plain.contains("[workflow]"), "{plain}");
        let outside = Setup { mechanism: Some("none"), ..Setup::default() };
        assert!(outside.toml(Path::new("/tmp/x")).contains("[workflow]\nmechanism = \"none\"\n"));
    }
}
