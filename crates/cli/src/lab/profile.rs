//! `sluice profile`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sluice_cache::resctrl::MOUNT_POINT;

use super::traffic::Traffic;

/// Text of `sluice profile --help` below the options.
pub const HELP: &str = "\
Examples:
  sluice profile sluice-nf-nat --traffic flows=100000 --out nat.json -- --inside 10.0.0.0/8 --outside 203.0.113.1
                                        a program beside sluice (or in PATH, or a path) with its arguments
  sluice profile fw --config edge.toml --traffic noon.pcap --out fw.json --plot fw.svg
                                        the service fw as edge.toml starts it, with captured packets
  sluice profile fw --config edge.toml --traffic flows=100000,zipf=1.1,size=590 --cache simulated
  sluice profile web --config edge.toml --traffic flows=100000 --out web.json
                                        the chain web: each of its NFs on a core, behind one cache
  sluice profile fw --config edge.toml --traffic noon.pcap --check fw.json
                                        is what fw.json promises still true here?

Traffic is size (bytes with the Ethernet header), flows, zipf (the exponent; without, all flows alike) and spread (1: destinations all
over), or a capture. Throughput against cache ways is measured where the kernel gives ways (resctrl); `simulated` takes the misses from a
model, for which the NF has to be built by scripts/trace-nf too; `none` is one value with the whole cache, and nothing is promised with
less of it: an SLO by such a profile takes all ways of a server, one with ddio_ways = 0 in the plan. The NFs of a chain are measured one
after another, each with what the one before it sends on, and composed; ways of a chain are always modelled. No daemon is needed.
Other work on the host makes a profile promise less: it says how many of its samples are within what it promises, and where a quarter of
its points is not known to within half of their value, nothing is written without --noisy.";

/// Default number of loads at which --check measures latency.
const LOADS: u32 = 20;

/// Source of throughput with fewer cache ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheSource {
    /// resctrl if the kernel offers ways; else simulated if there is a traced NF; else none
    Auto,
    /// Cache classes of the kernel (root)
    Resctrl,
    /// A model of the cache, from one run of the traced NF
    Simulated,
    /// One value for the whole cache: its SLOs take all ways of a server with ddio_ways = 0
    None,
}

/// Options for throughput with fewer cache ways.
#[derive(Debug, Args)]
pub struct WaysArgs {
    /// Source of throughput with fewer cache ways
    #[arg(long, value_enum, default_value_t = CacheSource::Auto)]
    pub cache: CacheSource,
    /// Where resctrl is mounted
    #[arg(long, value_name = "PATH", default_value = MOUNT_POINT)]
    pub resctrl: PathBuf,
    /// The NF as built by scripts/trace-nf, or a folder of such NFs; by default looked for beside
    /// the program
    #[arg(long, value_name = "FILE|FOLDER")]
    pub traced: Option<PathBuf>,
    /// Cost of a cache miss in the model; measured by default
    #[arg(long, value_name = "NS", value_parser = parse_ns)]
    pub miss_ns: Option<f64>,
}

#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// A program that uses the NF library, or with --config the name of a service or of a chain
    pub nf: String,
    /// Take programs, arguments, environment and users from the services of this configuration
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The name is that of a chain, where a service has the same name
    #[arg(long, requires = "config")]
    pub chain: bool,
    /// Packets to send: settings, or a capture (.pcap or .pcapng)
    #[arg(long, value_name = "SPEC|FILE", default_value = "size=60,flows=1000")]
    pub traffic: Traffic,
    /// Write the profile to this file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw both curves, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub ways: WaysArgs,
    /// Core for the NF alone; the default is the last one that this process may use
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Measure this profile again, with the same NF, configuration and traffic, at closely spaced
    /// loads
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "plot", "cache", "traced", "miss_ns"])]
    pub check: Option<PathBuf>,
    /// Loads at which --check measures latency
    #[arg(long, value_name = "N", default_value_t = LOADS, requires = "check")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub loads: u32,
    /// Write the profile even if the host was too noisy; its notes say so
    #[arg(long, conflicts_with = "check")]
    pub noisy: bool,
    /// Print the profile, or the findings of --check, as JSON
    #[arg(long)]
    pub json: bool,
    /// Arguments of the program
    #[arg(last = true, conflicts_with = "config")]
    pub args: Vec<String>,
}

fn parse_ns(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ns: &f64| *ns >= 0.0 && ns.is_finite()).ok_or_else(|| "nanoseconds are 0 or more".into())
}
