//! `sluice simulate`.

use std::path::PathBuf;

use clap::Args;

use crate::usage::seconds;

/// Text of `sluice simulate --help` below the options.
pub const HELP: &str = "\
Examples:
  sluice simulate edge.toml --cores 16 --rate 2e6 --cost fw=300,nat=450
                                        sixteen cores for NFs, each port without a rate at two million packets a second
  sluice simulate edge.toml --rate lan=1e6 --rate wan=3e6 --measured
                                        the configured cores, costs as the running daemon measures them
  sluice simulate bench.toml --cores 2 --compare
                                        what weights, backpressure and hand-over bring, beside the ideal
  sluice simulate bench.toml --cores 8 --ghz 3.5 --json
                                        a faster clock, for scripts

A packet's cost is what --cost says of its service, else what --measured finds, else what `sluice estimate --keep` found, else
--cycles of sluice-nf-cost. SWITCHES are what a core spends on going from NF to NF: the way out of sleep and back, and the wake-up
of the next one. CPU of an NF counts the switches to it, as LOAD in `sluice nf list` does.
\"of ideal\" compares with NFs that run as calls in one process on each core: no switches, no wake-ups. Chains that
compete for a core get alike of it there, so one that gets more here may be above 100 %.
DROPS of an NF are wasted work: packets that another NF worked on before they met a full ring.

Limits: flows are spread evenly over instances; ports that wait drop; ECN changes nothing; the manager has cores of its own and
is never the bottleneck; caches and other processes are left out. So compare the runs first, and then with a measurement.";

/// Most cores; the simulator's run time grows with them.
const MOST_CORES: i64 = 1024;

/// Most cycles per packet: the limit of `sluice-nf-cost`.
const MOST_CYCLES: u64 = 1_000_000_000;
/// Default cost of a switch to an NF on its core, in nanoseconds.
///
/// It covers leaving and entering sleep, waking the next NF, and the first accesses to data that
/// the caches have lost meanwhile. With this value, a simulation of the example configuration
/// matches the kernel's count on a busy two-core virtual machine: its NFs use 39 % of a core, of
/// which 3 % is for packets.
pub const SWITCH_NS: u64 = 5_000;

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The configuration
    pub config: PathBuf,
    /// Cores for NFs, assigned round-robin; by default those of the configuration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_CORES))]
    pub cores: Option<u32>,
    /// Packets per second: of each port without a rate of its own, or of a named port
    #[arg(long, value_name = "[PORT=]PPS", value_parser = rate, value_delimiter = ',')]
    pub rate: Vec<(Option<String>, f64)>,
    /// Cycles that a packet costs a service
    #[arg(long, value_name = "SERVICE=CYCLES", value_parser = service_cost, value_delimiter = ',')]
    pub cost: Vec<(String, u64)>,
    /// Get the packet costs of services from the running daemon, with the clock of this host
    #[arg(long)]
    pub measured: bool,
    /// Clock of the cores in GHz; by default that of this host
    #[arg(long, value_name = "GHZ", value_parser = ghz)]
    pub ghz: Option<f64>,
    /// Cost of a switch to an NF on its core, with wake-up and going to sleep
    #[arg(long, value_name = "NS", default_value_t = SWITCH_NS, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub switch: u64,
    /// Simulated seconds, after a warm-up of 0.2
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
    /// Run default, weights, backpressure, sluice and ideal instead of the configured section sched
    #[arg(long)]
    pub compare: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<(Option<String>, f64), String> {
    let (port, number) = text.rsplit_once('=').map_or((None, text), |(port, number)| (Some(port.to_owned()), number));
    match number.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok((port, rate)),
        _ => Err("must be packets per second, such as 2e6, or PORT=PPS, such as lan=2e6".into()),
    }
}

fn service_cost(text: &str) -> Result<(String, u64), String> {
    let (service, number) = text.rsplit_once('=').ok_or("must be SERVICE=CYCLES, such as fw=550")?;
    Ok((service.to_owned(), cycles(number)?))
}

fn ghz(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ghz) if (0.1..=100.0).contains(&ghz) => Ok(ghz),
        _ => Err("must be between 0.1 and 100, such as 2.5".into()),
    }
}

/// Reads a number of cycles.
///
/// # Errors
/// A sentence that says what to write.
pub fn cycles(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(cycles) if cycles <= MOST_CYCLES => Ok(cycles),
        Ok(_) => Err(format!("{text} cycles are too many; at most {MOST_CYCLES}")),
        Err(_) => Err(format!("{text:?} is no number of cycles, such as 550")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        assert_eq!(rate("2e6"), Ok((None, 2e6)));
        assert_eq!(rate("lan=5"), Ok((Some("lan".into()), 5.0)));
        assert!(["", "lan", "lan=", "-1", "inf", "lan=nan"].iter().all(|text| rate(text).is_err()));
        assert_eq!(service_cost("fw=550"), Ok(("fw".into(), 550)));
        assert!(["fw", "fw=", "fw=1.5", "fw=2000000000"].iter().all(|text| service_cost(text).is_err()));
        assert!(ghz("2.5").is_ok() && ghz("0").is_err() && ghz("x").is_err());
    }
}
