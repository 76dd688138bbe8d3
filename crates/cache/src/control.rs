//! The interface of cache control, common to all its implementations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::CacheError;

/// Where classes and counters come from; part of each profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The processor, through the kernel.
    Resctrl,
    Simulated,
    /// There is no cache control.
    None,
}

/// One L3 cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// The kernel's id of the cache; ids may have gaps.
    pub id: u32,
    /// Processors that share it; empty if unreadable.
    pub cpus: Vec<u32>,
    /// Bytes of one way; none if the size of the cache is unreadable.
    pub way_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BandwidthUnit {
    /// Percent of the full bandwidth (Intel).
    Percent,
    /// MiB per second (mount option `mba_MBps`).
    MebibytesPerSecond,
    /// Eighths of a GB per second (AMD).
    EighthGigabytesPerSecond,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthLimits {
    pub unit: BandwidthUnit,
    pub least: u32,
    /// Values are rounded up to multiples of it.
    pub step: u32,
    /// The value of a class without a limit.
    pub most: u32,
}

/// What the cache can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Ways; 0 if none can be given.
    pub ways: u32,
    /// Fewest ways of a class.
    pub min_ways: u32,
    /// Mask of the ways that devices use too, as the hardware reports it.
    pub io_mask: u32,
    /// Whether a mask may have gaps.
    pub sparse: bool,
    /// Whether code and data have separate masks (CDP). A class gets the same for both.
    pub code_and_data: bool,
    /// Most classes beside the root class.
    pub classes: u32,
    pub bandwidth: Option<BandwidthLimits>,
    pub occupancy: bool,
    /// Whether traffic to memory is counted.
    pub traffic: bool,
    /// The L3 caches.
    pub domains: Vec<Domain>,
}

impl Shape {
    /// These caches without control: nothing can be given to a class, and nothing is counted.
    pub fn without_control(domains: Vec<Domain>) -> Self {
        Self {
            ways: 0,
            min_ways: 1,
            io_mask: 0,
            sparse: false,
            code_and_data: false,
            classes: 0,
            bandwidth: None,
            occupancy: false,
            traffic: false,
            domains,
        }
    }
}

/// A request for a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSpec {
    /// Letters, digits, `.`, `-` and `_`; at most 64.
    pub name: String,
    /// Its ways in each domain.
    pub ways: u32,
    /// Its domains; empty means all. In others it shares the root class's ways.
    pub domains: Vec<u32>,
    /// Whether its ways may be I/O ways.
    pub io_ways: bool,
    /// Its bandwidth, in the shape's unit; none is no limit.
    pub bandwidth: Option<u32>,
}

impl ClassSpec {
    /// A class with ways in all domains, none of them I/O ways.
    pub fn new(name: impl Into<String>, ways: u32) -> Self {
        Self { name: name.into(), ways, domains: Vec::new(), io_ways: false, bandwidth: None }
    }
}

/// A class as read back from the hardware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    pub name: String,
    /// Its mask in each domain where it has its own ways.
    pub masks: BTreeMap<u32, u32>,
    /// Its bandwidth in each domain, as rounded by the hardware.
    pub bandwidth: BTreeMap<u32, u32>,
    /// Whether the hardware gave it more ways than requested. No other class has them.
    pub widened: bool,
}

/// A counter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    Bytes(u64),
    /// No value at the moment; a later read may succeed.
    Unavailable,
    /// The hardware has fewer counters than groups, and this one has none.
    Unassigned,
    /// It is not counted here.
    Absent,
}

impl Count {
    /// The bytes, if there is a value.
    pub fn bytes(self) -> Option<u64> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }
}

/// Use of one domain by a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes in the cache now.
    pub occupancy: Count,
    /// Bytes between the cache and all memory, since the start.
    pub total: Count,
    /// Bytes between the cache and its own socket's memory, since the start.
    pub local: Count,
}

/// Result of moving threads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moved {
    /// Threads that are in the class now.
    pub tasks: Vec<u32>,
    /// Threads that had ended before.
    pub gone: Vec<u32>,
}

/// Gives classes shares of the last-level cache. If a method fails, all classes are as they were
/// before it, unless the error says otherwise.
pub trait CacheControl {
    fn origin(&self) -> Origin;

    fn shape(&self) -> &Shape;

    /// Makes a class.
    ///
    /// # Errors
    /// No ways or class are left, the name is taken or invalid, or the kernel refuses; nothing has
    /// changed then.
    fn make(&mut self, spec: &ClassSpec) -> Result<Granted, CacheError>;

    /// Changes the number of ways of a class. Other classes may get other masks of the same size.
    /// Data in lost ways stays there until another class evicts it.
    ///
    /// # Errors
    /// As [`make`](Self::make), or there is no such class.
    fn resize(&mut self, name: &str, ways: u32) -> Result<Granted, CacheError>;

    fn classes(&self) -> Vec<Granted>;

    /// Puts threads into a class, by their thread ids; "" is the root class.
    ///
    /// # Errors
    /// There is no such class, or a thread may not be moved; those before it have been.
    fn assign_tasks(&mut self, name: &str, tasks: &[u32]) -> Result<Moved, CacheError>;

    /// Gives a class processors: threads without a class belong to it while they run there. This
    /// suits pinned NFs. The processors are taken from other classes; processors of the class that
    /// are not named go to the root class.
    ///
    /// # Errors
    /// There is no such class, or no such processor.
    fn assign_cpus(&mut self, name: &str, cpus: &[u32]) -> Result<(), CacheError>;

    /// Counts some threads of a class separately, as `watch`, until the class is released. "" is
    /// the root class; its watches last as long as this value. If the watch exists, the threads are
    /// added to it.
    ///
    /// # Errors
    /// There is no such class, its threads cannot be counted separately, or one is not of the
    /// class.
    fn watch(&mut self, name: &str, watch: &str, tasks: &[u32]) -> Result<Moved, CacheError>;

    /// The use of a class, or of a watch in it, by domain; "" is the root class.
    ///
    /// # Errors
    /// There is no such class or watch, or the counters cannot be read.
    fn usage(&self, name: &str, watch: Option<&str>) -> Result<BTreeMap<u32, Usage>, CacheError>;

    /// Checks that a class is still as granted. Other programs may remove or change one that the
    /// kernel keeps.
    ///
    /// # Errors
    /// There is no such class, it has changed, or it cannot be read.
    fn verify(&self, name: &str) -> Result<(), CacheError> {
        let is_there = self.classes().iter().any(|class| class.name == name);
        if is_there { Ok(()) } else { Err(CacheError::Unknown { name: name.into() }) }
    }

    /// Releases a class. Its threads and processors go to the root class, and so do its ways, as
    /// far as groups of other programs leave them.
    ///
    /// # Errors
    /// There is no such class, or the kernel refuses.
    fn release(&mut self, name: &str) -> Result<(), CacheError>;
}

/// Checks that a name is valid for a class.
pub(crate) fn check_name(name: &str) -> Result<(), CacheError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let taken = matches!(name, "info" | "mon_groups" | "mon_data");
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || taken || !name.chars().all(good) {
        return Err(CacheError::Name { name: name.into() });
    }
    Ok(())
}
