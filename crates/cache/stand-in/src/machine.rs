//! The simulated machine: processors, caches, and classes of its hardware.

use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bandwidth {
    /// Classes that the resource has.
    pub num_closids: u32,
    /// Smallest value, in percent.
    pub min: u32,
    /// The value of a new group.
    pub max: u32,
    /// Values are rounded up to multiples of this.
    pub granularity: u32,
}

/// Cache and bandwidth monitoring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitoring {
    /// Monitoring ids, the root group's included.
    pub num_rmids: u32,
    /// Events, such as `llc_occupancy`.
    pub events: Vec<String>,
    /// Nodes for each L3 with sub-NUMA clustering; 1 without.
    pub nodes: u32,
}

/// A machine with resctrl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Processors of each L3 cache, by the cache's id; ids may have gaps.
    pub domains: BTreeMap<u32, Vec<u32>>,
    pub l3_bytes: u64,
    /// Whether there is cache allocation.
    pub cat: bool,
    pub cbm_bits: u32,
    pub min_cbm_bits: u32,
    /// Ways that devices use too.
    pub shareable_bits: u32,
    /// Whether masks may have gaps; none omits the file, as in older kernels.
    pub sparse: Option<bool>,
    /// Classes for L3; halved by CDP.
    pub num_closids: u32,
    /// Whether code and data have separate masks.
    pub cdp: bool,
    pub bandwidth: Option<Bandwidth>,
    pub monitoring: Option<Monitoring>,
    /// Hardware that gives all of these bits to a mask that has any of them; 0 is none.
    pub widened: u32,
    /// Processes that the caller may not move.
    pub untouchable: Vec<i32>,
}

impl Default for Machine {
    /// Two sockets with ids 0 and 2, eight processors each, 45 MiB in 20 ways of which devices
    /// share the upper two, 16 classes, and all monitoring events.
    fn default() -> Self {
        Self {
            domains: BTreeMap::from([(0, (0..8).collect()), (2, (8..16).collect())]),
            l3_bytes: 45 << 20,
            cat: true,
            cbm_bits: 20,
            min_cbm_bits: 1,
            shareable_bits: 0xc_0000,
            sparse: Some(false),
            num_closids: 16,
            cdp: false,
            bandwidth: Some(Bandwidth { num_closids: 8, min: 10, max: 100, granularity: 10 }),
            monitoring: Some(Monitoring {
                num_rmids: 32,
                events: ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"].map(String::from).to_vec(),
                nodes: 1,
            }),
            widened: 0,
            untouchable: Vec::new(),
        }
    }
}

impl Machine {
    /// Names of the cache's lines in `schemata`.
    pub(crate) fn l3_names(&self) -> &'static [&'static str] {
        match (self.cat, self.cdp) {
            (false, _) => &[],
            (true, false) => &["L3"],
            (true, true) => &["L3DATA", "L3CODE"],
        }
    }

    pub fn allocates(&self) -> bool {
        self.cat || self.bandwidth.is_some()
    }

    /// Classes for the cache, as `info` shows them.
    pub(crate) fn l3_closids(&self) -> u32 {
        if self.cdp { self.num_closids / 2 } else { self.num_closids }
    }

    /// Classes that groups can have, the root's included: the least of all resources.
    pub(crate) fn closids(&self) -> u32 {
        let cache = self.cat.then(|| self.l3_closids());
        let bandwidth = self.bandwidth.as_ref().map(|b| b.num_closids);
        cache.into_iter().chain(bandwidth).min().unwrap_or(1)
    }

    pub fn all(&self) -> u32 {
        u32::try_from((1u64 << self.cbm_bits) - 1).unwrap_or(u32::MAX)
    }
}
