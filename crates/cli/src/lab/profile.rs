//! `sluice profile`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sluice_cache::resctrl::MOUNT_POINT;

use super::traffic::Traffic;

/// What `sluice profile --help` says below the options.
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

/// Loads at which latency is measured again, unless it is said.
const LOADS: u32 = 20;

/// Where throughput with fewer cache ways comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// resctrl where the kernel gives ways, or else simulated where there is a traced NF, or else none
    Auto,
    /// Classes of the cache, given by the kernel (root)
    Resctrl,
    /// A model of the cache, from one run of the traced NF
    Simulated,
    /// One value, with the whole cache: an SLO by it takes all ways of a server with ddio_ways = 0
    None,
}

/// Where throughput with fewer cache ways comes from.
#[derive(Debug, Args)]
pub struct WaysArgs {
    /// Where throughput with fewer cache ways comes from
    #[arg(long, value_enum, default_value_t = Cache::Auto)]
    pub cache: Cache,
    /// Where resctrl is mounted
    #[arg(long, value_name = "PATH", default_value = MOUNT_POINT)]
    pub resctrl: PathBuf,
    /// The NF as scripts/trace-nf has built it, or the folder of such NFs; looked for beside the program without
    #[arg(long, value_name = "FILE|FOLDER")]
    pub traced: Option<PathBuf>,
    /// What a cache miss costs, for the model; measured without
    #[arg(long, value_name = "NS", value_parser = parse_ns)]
    pub miss_ns: Option<f64>,
}

/// Arguments of `sluice profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// A program that uses the NF library, or with --config the name of a service or of a chain
    pub nf: String,
    /// Take programs, arguments, environment and users from the services of this configuration
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// It is the chain of this name, where a service has the same
    #[arg(long, requires = "config")]
    pub chain: bool,
    /// What is sent: settings, or a capture (.pcap or .pcapng)
    #[arg(long, value_name = "SPEC|FILE", default_value = "size=60,flows=1000")]
    pub traffic: Traffic,
    /// Write the profile to this file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw both curves, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Throughput with fewer ways
    #[command(flatten)]
    pub ways: WaysArgs,
    /// Core that the NF has for itself; the last that this process may use without
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Measure again, at loads close together, what this profile of the same NF, configuration and traffic says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "plot", "cache", "traced", "miss_ns"])]
    pub check: Option<PathBuf>,
    /// Loads at which --check measures latency
    #[arg(long, value_name = "N", default_value_t = LOADS, requires = "check")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub loads: u32,
    /// Write the profile though the host was too noisy for it; its notes say so
    #[arg(long, conflicts_with = "check")]
    pub noisy: bool,
    /// Print the profile, or what --check found, as JSON
    #[arg(long)]
    pub json: bool,
    /// Arguments of the program
    #[arg(last = true, conflicts_with = "config")]
    pub args: Vec<String>,
}

fn parse_ns(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ns: &f64| *ns >= 0.0 && ns.is_finite()).ok_or_else(|| "nanoseconds are 0 or more".into())
}
