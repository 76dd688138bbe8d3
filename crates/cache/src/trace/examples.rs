//! The NFs that come along, with arguments, files and traffic that make each of them work: what experiments and tests trace.

use std::collections::BTreeSet;
use std::path::Path;

/// How much of the cache the NFs use that use much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Some MiB: for runs that are repeated for each number of ways, in a slow simulator.
    Small,
    /// As many flows as fill some of a server's.
    Large,
}

/// An NF and what it gets.
#[derive(Debug, Clone, Copy)]
pub struct Example {
    /// Its name.
    pub name: &'static str,
    /// What follows `sluice-nf-` in the name of its program.
    pub nf: &'static str,
    /// `FILE` is where its file is (what else begins so is beside it), and `CONNECTIONS` how many connections it keeps.
    args: &'static [&'static str],
    file: fn() -> String,
    /// Small and large.
    flows: [u32; 2],
    /// The NF that makes its packets of the traffic, as the examples name it, if there is one before it.
    pub behind: Option<&'static str>,
    /// Whether destinations are all over.
    pub spread: bool,
    /// Bytes of a packet.
    pub bytes: u32,
}

impl Example {
    /// Flows of its traffic.
    pub fn flows(&self, scale: Scale) -> u32 {
        self.flows[usize::from(scale == Scale::Large)]
    }

    /// Its arguments, once what [`contents`](Self::contents) gives is in this file.
    pub fn args(&self, scale: Scale, file: &Path) -> Vec<String> {
        let connections = if scale == Scale::Large { "262144" } else { "131072" };
        let given = |arg: &&str| arg.replace("FILE", &file.display().to_string()).replace("CONNECTIONS", connections);
        self.args.iter().map(given).collect()
    }

    /// The example before it.
    pub fn before(&self) -> Option<&'static Example> {
        EXAMPLES.iter().find(|example| Some(example.name) == self.behind)
    }

    /// What is in its file; nothing where it has none.
    pub fn contents(&self) -> String {
        (self.file)()
    }
}

const fn example(name: &'static str, args: &'static [&'static str], file: fn() -> String, flows: [u32; 2]) -> Example {
    Example { name, nf: name, args, file, flows, behind: None, spread: false, bytes: 60 }
}

const NAT: &[&str] = &["--inside", "10.0.0.0/8", "--outside", "203.0.113.1,203.0.113.2,203.0.113.3"];
const BALANCER: &[&str] = &["--vip", "198.18.0.1:9", "--protocol", "udp", "--backends", "FILE", "--connections", "CONNECTIONS"];
const STATEFUL: &[&str] = &["--rules", "FILE", "--connections", "CONNECTIONS"];
/// Flows of NFs that keep nothing of them.
const FEW: [u32; 2] = [1_000, 1_000];

/// All of them but `lookup`, which reads its packets itself (`sluice_nf::pull`) and cannot be traced.
pub const EXAMPLES: &[Example] = &[
    example("monitor", &["--flows", "262144"], String::new, [100_000, 200_000]),
    example("nat", NAT, String::new, [50_000, 150_000]),
    Example { nf: "firewall", ..example("firewall-stateful", STATEFUL, stateful, [100_000, 200_000]) },
    example("firewall", &["--rules", "FILE"], rules, [10_000, 10_000]),
    example("lb", BALANCER, backends, [50_000, 150_000]),
    Example { spread: true, ..example("router", &["--routes", "FILE"], routes, [50_000, 200_000]) },
    Example { bytes: 1_514, ..example("search", &["--patterns", "FILE"], patterns, FEW) },
    example("encrypt", &["--keys", "FILE"], keys, FEW),
    Example { behind: Some("encrypt"), ..example("decrypt", &["--keys", "FILE"], keys, FEW) },
    example("logger", &["--write", "FILE.pcap", "--rotate-mib", "16", "--keep", "1"], String::new, FEW),
    example("cost", &["--cycles", "200"], String::new, FEW),
    example("single", &[], String::new, FEW),
    example("bridge", &[], String::new, FEW),
    example("macswap", &[], String::new, FEW),
    example("mark", &[], String::new, FEW),
    example("vlan", &["tag", "--id", "7"], String::new, FEW),
];

fn stateful() -> String {
    "stateful\ndefault deny\nallow udp from 10.0.0.0/8\n".into()
}

/// A hundred that match nothing, then one that matches all.
fn rules() -> String {
    (0..100).map(|i| format!("deny udp from 172.16.{i}.0/24 port 53\n")).chain(["allow udp from 10.0.0.0/8\n".into()]).collect()
}

fn backends() -> String {
    (1..=50).map(|i| format!("web{i} 192.0.2.{i}:8080\n")).collect()
}

/// A default and twenty thousand prefixes of 24 bits, all over the space.
fn routes() -> String {
    let nets = (0..20_000u32).map(|i| i.wrapping_mul(0x9e37_79b1) >> 8 & 0x7f_ffff).filter(|net| net >> 16 > 0);
    let nets: BTreeSet<u32> = nets.collect();
    let lines = nets.iter().map(|net| format!("{}.{}.{}.0/24 mac 02:00:00:00:00:02\n", net >> 16, net >> 8 & 0xff, net & 0xff));
    ["0.0.0.0/0 mac 02:00:00:00:00:01\n".into()].into_iter().chain(lines).collect()
}

fn patterns() -> String {
    let word = |i: u32| (i.wrapping_mul(0x9e37_79b1), i.wrapping_mul(0x85eb_ca6b) | 1);
    (0..2_000).map(word).map(|(a, b)| format!("alert hex {a:08x}{b:08x}\n")).collect()
}

fn keys() -> String {
    format!("1 {}\n", "5a".repeat(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_the_file_and_its_size() {
        let stateful = &EXAMPLES[2];
        assert_eq!(stateful.args(Scale::Small, Path::new("/f")), ["--rules", "/f", "--connections", "131072"]);
        assert_eq!((stateful.flows(Scale::Small), stateful.flows(Scale::Large)), (100_000, 200_000));
        assert!(EXAMPLES.iter().all(|example| example.before().is_some() == example.behind.is_some()));
        // Every one that names a file has something to put there.
        assert!(EXAMPLES.iter().all(|example| example.args.contains(&"FILE") != example.contents().is_empty()));
    }
}
