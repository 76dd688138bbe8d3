//! `sluice estimate`.

use std::path::PathBuf;

use clap::Args;
use sluice_api::config::ESTIMATES;

/// Text of `sluice estimate --help` below the options.
pub const HELP: &str = "\
Examples:
  sluice estimate sluice-nf-firewall -- --rules edge.rules
                                        a program beside sluice (or in PATH, or a path) with its arguments
  sluice estimate fw --config edge.toml
                                        the service fw as edge.toml starts it
  sluice estimate ids --config edge.toml --capture noon.pcap --keep
                                        with captured packets; the daemon and `sluice simulate` use the result from now on

The NF runs alone on a core. Bursts of 32 packets are sent to it, alternately one alone and eight in a row; the cost is the time of
one more burst in a row. The cost of the rings is measured with sluice-nf-bridge and sluice-nf-cost, and subtracted. INSIDE is the time
of the same bursts by the NF's own library.";

/// Largest number of distinct packets, which are sent in turn.
pub const MOST_PACKETS: usize = 65_536;

#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// A program that uses the NF library, or with --config the name of a service
    pub nf: String,
    /// Take program, arguments, environment and user from the service of this configuration
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Send the packets of this capture, in turn, instead of crafted ones
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "flows"])]
    pub capture: Option<PathBuf>,
    /// Bytes of a crafted packet, with its Ethernet header
    #[arg(long, value_name = "BYTES", default_value_t = 60)]
    pub size: u16,
    /// Flows of crafted packets, sent in turn
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=MOST_PACKETS as i64))]
    pub flows: u32,
    /// Least number of measured bursts
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub bursts: u32,
    /// Core for the NF alone; the default is the last one that this process may use
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Keep the result in this file, which the daemon and the simulator read [default:
    /// /var/lib/sluice/estimates.json]
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = ESTIMATES)]
    pub keep: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Arguments of the program
    #[arg(last = true, conflicts_with = "config")]
    pub args: Vec<String>,
}
