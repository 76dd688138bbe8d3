//! What can be asked of a cache, and what it answers, of whatever kind it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::CacheError;

/// Where classes and figures come from. Each profile says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The processor, through the kernel.
    Resctrl,
    /// A model.
    Simulated,
    /// There is no cache control.
    None,
}

/// One L3 cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// The kernel's id of the cache; ids may have gaps.
    pub id: u32,
    /// Processors that share it; empty where that cannot be read.
    pub cpus: Vec<u32>,
    /// Bytes of one way; none where the size of the cache cannot be read.
    pub way_bytes: Option<u64>,
}

/// In what bandwidth is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BandwidthUnit {
    /// Of all that there is (Intel).
    Percent,
    /// MiB a second (mount option `mba_MBps`).
    MebibytesPerSecond,
    /// Eighths of a GB a second (AMD).
    EighthGigabytesPerSecond,
}

/// What bandwidths can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthLimits {
    /// The unit of all values.
    pub unit: BandwidthUnit,
    /// Smallest value.
    pub least: u32,
    /// Values are rounded up to multiples of it.
    pub step: u32,
    /// What a class has that asks for none.
    pub most: u32,
}

/// What the cache can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Ways; 0 where none can be given.
    pub ways: u32,
    /// Fewest ways of a class.
    pub min_ways: u32,
    /// Mask of the ways that devices use too, as the hardware says it.
    pub io_mask: u32,
    /// Whether a mask may have gaps.
    pub sparse: bool,
    /// Whether code and data have masks of their own (CDP). A class gets the same for both.
    pub code_and_data: bool,
    /// Most classes beside the root class.
    pub classes: u32,
    /// What bandwidths can be given, if any.
    pub bandwidth: Option<BandwidthLimits>,
    /// Whether occupancy is counted.
    pub occupancy: bool,
    /// Whether traffic to memory is counted.
    pub traffic: bool,
    /// The caches.
    pub domains: Vec<Domain>,
}

impl Shape {
    /// These caches, of which no class can be given anything, and nothing is counted.
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

/// A class that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSpec {
    /// Its name: letters, digits, `.`, `-` and `_`, at most 64.
    pub name: String,
    /// Its ways in each domain.
    pub ways: u32,
    /// Its domains; empty is all. In others it is where the root class is.
    pub domains: Vec<u32>,
    /// Whether its ways may be those that devices use too.
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

/// A class as it is, read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Its name.
    pub name: String,
    /// Its mask in each domain where it has ways of its own.
    pub masks: BTreeMap<u32, u32>,
    /// Its bandwidth in each domain; rounded to what the hardware can do.
    pub bandwidth: BTreeMap<u32, u32>,
    /// Whether the hardware gave it more ways than were asked for. No other class has them.
    pub widened: bool,
}

/// A counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// Bytes.
    Bytes(u64),
    /// It has no value at the moment; ask again.
    Unavailable,
    /// The hardware has fewer counters than groups, and this one has none.
    Unassigned,
    /// It is not counted here.
    Absent,
}

impl Count {
    /// Bytes, if there are any to tell.
    pub fn bytes(self) -> Option<u64> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }
}

/// What a class uses of one domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes in the cache now.
    pub occupancy: Count,
    /// Bytes between the cache and all memory, ever.
    pub total: Count,
    /// Bytes between the cache and its own socket's memory, ever.
    pub local: Count,
}

/// What became of threads that were to be moved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moved {
    /// Those that are in the class now.
    pub tasks: Vec<u32>,
    /// Those that had ended before.
    pub gone: Vec<u32>,
}

/// Gives classes shares of the last-level cache. If a method fails, all classes are as they were before it, unless the error says otherwise.
pub trait CacheControl {
    /// Where classes and figures come from.
    fn origin(&self) -> Origin;

    /// What the cache can do.
    fn shape(&self) -> &Shape;

    /// Makes a class.
    ///
    /// # Errors
    /// There is no room or no class left, the name is taken or none, or the kernel refuses; nothing has changed then.
    fn make(&mut self, spec: &ClassSpec) -> Result<Granted, CacheError>;

    /// Gives a class another number of ways. Other classes may get other masks of the same size. What lies in ways that a class has lost stays
    /// there until somebody else needs the room.
    ///
    /// # Errors
    /// As [`make`](Self::make), and where there is no such class.
    fn resize(&mut self, name: &str, ways: u32) -> Result<Granted, CacheError>;

    /// The classes, as they are.
    fn classes(&self) -> Vec<Granted>;

    /// Puts threads into a class, by their thread ids; "" is the root class.
    ///
    /// # Errors
    /// There is no such class, or a thread may not be moved; those before it have been.
    fn assign_tasks(&mut self, name: &str, tasks: &[u32]) -> Result<Moved, CacheError>;

    /// Gives a class processors: threads that are in no class of their own belong to it while they run there. For NFs that are pinned. They are
    /// taken from other classes; those that the class had and are not named go to the root class.
    ///
    /// # Errors
    /// There is no such class, or no such processor.
    fn assign_cpus(&mut self, name: &str, cpus: &[u32]) -> Result<(), CacheError>;

    /// Counts some threads of a class apart, as `watch`, until the class is released; "" is the root class, of which they are as long as this
    /// lives. If there is such a watch, they are counted with it.
    ///
    /// # Errors
    /// There is no such class, its threads cannot be counted apart, or one is not of the class.
    fn watch(&mut self, name: &str, watch: &str, tasks: &[u32]) -> Result<Moved, CacheError>;

    /// What a class uses, or of it what a watch counts, by domain; "" is the root class.
    ///
    /// # Errors
    /// There is no such class or watch, or the counters cannot be read.
    fn usage(&self, name: &str, watch: Option<&str>) -> Result<BTreeMap<u32, Usage>, CacheError>;

    /// Whether a class still is as it was granted. Others may remove or change one that the kernel keeps.
    ///
    /// # Errors
    /// There is no such class, it is another by now, or it cannot be read.
    fn verify(&self, name: &str) -> Result<(), CacheError> {
        let is_there = self.classes().iter().any(|class| class.name == name);
        if is_there { Ok(()) } else { Err(CacheError::Unknown { name: name.into() }) }
    }

    /// Gives a class up. Its threads and processors go to the root class, and so do its ways, as far as others let it have them.
    ///
    /// # Errors
    /// There is no such class, or the kernel refuses.
    fn release(&mut self, name: &str) -> Result<(), CacheError>;
}

/// Whether a name can be a class's.
pub(crate) fn check_name(name: &str) -> Result<(), CacheError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let taken = matches!(name, "info" | "mon_groups" | "mon_data");
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || taken || !name.chars().all(good) {
        return Err(CacheError::Name { name: name.into() });
    }
    Ok(())
}
