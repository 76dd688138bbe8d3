//! What a simulation needs besides the configuration.

use std::collections::BTreeMap;

use sluice_cli::lab::simulate::SWITCH_NS;

/// Most packets per second of a port: 400 Gbit/s of the smallest packets are 0.6e9.
pub const MOST_PPS: f64 = 1e9;

/// Inputs beyond the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Cores for NFs, assigned round-robin; by default the configured ones.
    pub cores: Option<usize>,
    /// Packets per second of each port without another known rate.
    pub rate_pps: Option<f64>,
    /// Packets per second of ports, by name.
    pub port_rates: BTreeMap<String, f64>,
    /// Cycles per packet of services, by name.
    pub costs: BTreeMap<String, u64>,
    /// The same, as measured; [`Options::costs`] takes precedence.
    pub measured: BTreeMap<String, u64>,
    /// Cycles per microsecond.
    pub mhz: u64,
    /// Cost of a switch to an NF on its core, in nanoseconds.
    pub switch_ns: u64,
    /// Simulated time that is counted, in nanoseconds.
    pub measure_ns: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cores: None,
            rate_pps: None,
            port_rates: BTreeMap::new(),
            costs: BTreeMap::new(),
            measured: BTreeMap::new(),
            mhz: 2_500,
            switch_ns: SWITCH_NS,
            measure_ns: 1_000_000_000,
        }
    }
}
