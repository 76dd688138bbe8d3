//! Example NFs to trace, with their arguments, files and traffic.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// How much cache the NFs with large state use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Some MiB: for runs repeated for each number of ways in a slow simulator.
    Small,
    /// Enough flows to fill part of a server's cache.
    Large,
}

/// An NF and what it gets.
#[derive(Debug, Clone, Copy)]
pub struct Example {
    pub name: &'static str,
    /// What follows `sluice-nf-` in the name of its program.
    pub nf: &'static str,
    /// `FILE` stands for the path of its file (longer names that begin so are beside it),
    /// `CONNECTIONS` for the number of connections that it keeps.
    args: &'static [&'static str],
    file: fn() -> String,
    /// Arguments with which it makes its file from `FILE.text`; empty if the text is the file.
    build: &'static [&'static str],
    /// Small and large.
    flows: [u32; 2],
    /// Name of the example that produces its packets from the traffic, if there is one.
    pub behind: Option<&'static str>,
    /// Whether destinations are over the whole address space.
    pub spread: bool,
    pub bytes: u32,
}

impl Example {
    pub fn flows(&self, scale: Scale) -> u32 {
        self.flows[usize::from(scale == Scale::Large)]
    }

    /// Its arguments, once its file has been [made](Self::make_file).
    pub fn args(&self, scale: Scale, file: &Path) -> Vec<String> {
        let connections = if scale == Scale::Large { "262144" } else { "131072" };
        filled(self.args, file).map(|arg| arg.replace("CONNECTIONS", connections)).collect()
    }

    /// Makes its file, empty if it has none. If it reads no text, its program compiles the file.
    ///
    /// # Errors
    /// The file cannot be written, or the program does not make it.
    pub fn make_file(&self, program: &Path, file: &Path) -> io::Result<()> {
        if self.build.is_empty() {
            return std::fs::write(file, (self.file)());
        }
        std::fs::write(format!("{}.text", file.display()), (self.file)())?;
        let made = Command::new(program).args(filled(self.build, file)).stdout(Stdio::null()).status()?;
        if made.success() { Ok(()) } else { Err(io::Error::other(format!("{} cannot make its file: {made}", program.display()))) }
    }

    pub fn before(&self) -> Option<&'static Example> {
        EXAMPLES.iter().find(|example| Some(example.name) == self.behind)
    }
}

/// Arguments with the file's name substituted.
fn filled<'a>(args: &'a [&str], file: &Path) -> impl Iterator<Item = String> + 'a {
    let file = file.display().to_string();
    args.iter().map(move |arg| arg.replace("FILE", &file))
}

const fn example(name: &'static str, args: &'static [&'static str], file: fn() -> String, flows: [u32; 2]) -> Example {
    Example { name, nf: name, args, file, build: &[], flows, behind: None, spread: false, bytes: 60 }
}

const NAT: &[&str] = &["--inside", "10.0.0.0/8", "--outside", "203.0.113.1,203.0.113.2,203.0.113.3"];
const BALANCER: &[&str] = &["--vip", "198.18.0.1:9", "--protocol", "udp", "--backends", "FILE", "--connections", "CONNECTIONS"];
const STATEFUL: &[&str] = &["--rules", "FILE", "--connections", "CONNECTIONS"];
/// Flows of stateless NFs.
const FEW: [u32; 2] = [1_000, 1_000];

pub const EXAMPLES: &[Example] = &[
    example("monitor", &["--flows", "262144"], String::new, [100_000, 200_000]),
    example("nat", NAT, String::new, [50_000, 150_000]),
    Example { nf: "firewall", ..example("firewall-stateful", STATEFUL, stateful, [100_000, 200_000]) },
    example("firewall", &["--rules", "FILE"], rules, [10_000, 10_000]),
    example("lb", BALANCER, backends, [50_000, 150_000]),
    Example { spread: true, ..example("router", &["--routes", "FILE"], routes, [50_000, 200_000]) },
    Example {
        build: &["--build", "FILE.text", "--table", "FILE"],
        spread: true,
        ..example("lookup", &["--table", "FILE"], hosts, [10_000, 20_000])
    },
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

/// A hundred rules that match nothing, then one that matches all.
fn rules() -> String {
    (0..100).map(|i| format!("deny udp from 172.16.{i}.0/24 port 53\n")).chain(["allow udp from 10.0.0.0/8\n".into()]).collect()
}

fn backends() -> String {
    (1..=50).map(|i| format!("web{i} 192.0.2.{i}:8080\n")).collect()
}

/// A default and twenty thousand /24 prefixes over the whole address space.
fn routes() -> String {
    let nets = (0..20_000u32).map(|i| i.wrapping_mul(0x9e37_79b1) >> 8 & 0x7f_ffff).filter(|net| net >> 16 > 0);
    let nets: BTreeSet<u32> = nets.collect();
    let lines = nets.iter().map(|net| format!("{}.{}.{}.0/24 mac 02:00:00:00:00:02\n", net >> 16, net >> 8 & 0xff, net & 0xff));
    ["0.0.0.0/0 mac 02:00:00:00:00:01\n".into()].into_iter().chain(lines).collect()
}

/// Twenty thousand hosts, the destinations of spread traffic.
fn hosts() -> String {
    let host = |flow: u32| {
        let to = flow.wrapping_mul(0x9e37_79b1).to_be_bytes();
        format!("{}.{}.{}.{} pass\n", 1 + to[0] % 126, to[1], to[2], to[3])
    };
    (0..20_000).map(host).collect()
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
        assert!(EXAMPLES.iter().all(|example| example.args.contains(&"FILE") != (example.file)().is_empty()));
    }

    #[test]
    fn a_file_is_the_text_or_made_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let read = || std::fs::read_to_string(&file).unwrap();
        let plain = example("x", &[], || "text".into(), FEW);
        plain.make_file(Path::new("/nowhere"), &file).unwrap();
        assert_eq!(read(), "text");
        Example { build: &["FILE.text", "FILE"], ..example("x", &[], || "other".into(), FEW) }
            .make_file(Path::new("/bin/cp"), &file)
            .unwrap();
        assert_eq!(read(), "other");
        assert!(Example { build: &["FILE.text"], ..plain }.make_file(Path::new("/bin/false"), &file).is_err());
    }
}
