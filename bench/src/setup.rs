//! What an experiment starts: generators, services and chains into one sink, and the configuration that says so.

use std::fmt::Write;
use std::path::Path;

/// Size of the packets in the configuration, without FCS.
const SIZE: u32 = 60;
/// The same on the wire, as benchmarks name it.
pub const PACKET_BYTES: u32 = SIZE + 4;
/// Name of the sink that all chains end in.
pub const SINK: &str = "out";

/// A generator and the rule that leads its packets to a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    /// Name of the port.
    pub name: String,
    /// Chain of its packets.
    pub chain: String,
    /// Packets per second; 0 is as fast as possible.
    pub rate: f64,
    /// Number of flows.
    pub flows: u32,
    /// Whether packets wait where their chain is full; else they are dropped at the entry.
    pub wait: bool,
}

/// A kind of NF.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Name.
    pub name: String,
    /// Program.
    pub exec: String,
    /// Number of instances at start.
    pub instances: u32,
    /// Core of all instances.
    pub core: usize,
    /// Whether they poll; else they sleep when there is nothing to do.
    pub poll: bool,
    /// Capacity of each ring.
    pub ring: u32,
}

/// A chain into the sink.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// Services, in order.
    pub services: Vec<String>,
    /// What happens when an NF dies: `drop`, `bypass` or `restart`.
    pub on_failure: &'static str,
}

/// A configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Setup {
    /// Core of the manager, with all its roles.
    pub manager_core: usize,
    /// Generators.
    pub traffic: Vec<Traffic>,
    /// Services.
    pub services: Vec<Service>,
    /// Chains.
    pub chains: Vec<Chain>,
}

impl Setup {
    /// The configuration as TOML, with its sockets in `runtime_dir`.
    pub fn toml(&self, runtime_dir: &Path) -> String {
        let mut out = String::new();
        let core = self.manager_core;
        let _ = writeln!(
            out,
            "[manager]\nruntime_dir = {}\nrx = [{core}]\ntx = [{core}]\nwakeup = [{core}]\nmonitor = [{core}]\n",
            quoted(&runtime_dir.display().to_string())
        );
        // Hugepages are used where the host has some reserved; an experiment reserves none.
        out.push_str("[memory]\nframes = 16384\nhugepages = \"auto\"\n\n");
        for t in &self.traffic {
            let overload = if t.wait { "wait" } else { "drop" };
            let (name, chain) = (quoted(&t.name), quoted(&t.chain));
            let _ = writeln!(
                out,
                "[[port]]\nname = {name}\nkind = \"gen\"\nsize = {SIZE}\nflows = {}\nrate = {:.1}\noverload = \"{overload}\"\n\n\
                 [[rule]]\nport = {name}\nchain = {chain}\n",
                t.flows, t.rate
            );
        }
        let _ = writeln!(out, "[[port]]\nname = \"{SINK}\"\nkind = \"sink\"\n");
        for s in &self.services {
            let mode = if s.poll { "poll" } else { "sleep" };
            let _ = writeln!(
                out,
                "[[service]]\nname = {}\nexec = {}\ninstances = {}\ncores = [{}]\nmode = \"{mode}\"\nring = {}\n",
                quoted(&s.name),
                quoted(&s.exec),
                s.instances,
                s.core,
                s.ring
            );
        }
        for c in &self.chains {
            let services: Vec<String> = c.services.iter().map(|s| quoted(s)).collect();
            let _ = writeln!(
                out,
                "[[chain]]\nname = {}\nservices = [{}]\negress = \"{SINK}\"\non_failure = \"{}\"\n",
                quoted(&c.name),
                services.join(", "),
                c.on_failure
            );
        }
        out
    }
}

/// A text as TOML; its basic strings know all escapes that JSON writes.
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
            traffic: vec![Traffic { name: "in".into(), chain: "c".into(), rate: 1.5e6, flows: 16, wait: true }],
            services: vec![Service { name: "b1".into(), exec: "nf".into(), instances: 2, core: 4, poll: true, ring: 64 }],
            chains: vec![Chain { name: "c".into(), services: vec!["b1".into()], on_failure: "drop" }],
        };
        let want = r#"[manager]
runtime_dir = "/tmp/a \"b"
rx = [3]
tx = [3]
wakeup = [3]
monitor = [3]

[memory]
frames = 16384
hugepages = "auto"

[[port]]
name = "in"
kind = "gen"
size = 60
flows = 16
rate = 1500000.0
overload = "wait"

[[rule]]
port = "in"
chain = "c"

[[port]]
name = "out"
kind = "sink"

[[service]]
name = "b1"
exec = "nf"
instances = 2
cores = [4]
mode = "poll"
ring = 64

[[chain]]
name = "c"
services = ["b1"]
egress = "out"
on_failure = "drop"

"#;
        assert_eq!(setup.toml(Path::new("/tmp/a \"b")), want);
    }
}
