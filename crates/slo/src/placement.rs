//! Placements: servers, what they have, and what each instance has of it.
//!
//! A *server* is what shares one last-level cache: a machine with two sockets is two servers here.
//! The LLC ways that DDIO writes packets to are given to no instance; one class (CLOS) is the
//! system's own. An instance has its own class with a number of ways, or is in the server's *shared
//! class*, which has the least ways that a class may have and serves instances that need no cache.
//! Ways are counted here; [`PlacedServer::masks`] lays them out, each class in one piece as the
//! hardware requires.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most ways of an LLC: masks have 64 bits.
pub const MOST_WAYS: u32 = 64;

/// What a server has for NFs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerShape {
    /// The processor's model name, as the system reports it.
    pub cpu: String,
    /// Cores that NFs may have.
    pub cores: u32,
    /// Ways of the LLC.
    pub llc_ways: u32,
    /// Bytes of one way.
    pub way_bytes: u64,
    /// Ways that DDIO writes to, from the top.
    pub ddio_ways: u32,
    /// Least ways of a class.
    pub min_ways: u32,
    /// Classes (CLOS), the system's own included.
    pub classes: u32,
    /// Memory that NFs may have, in MiB.
    pub memory_mib: u64,
    /// Time in µs from port to port besides the NFs, which at most one packet in a thousand
    /// exceeds; no profile knows it. With it, a thousandth more packets may be late than the 5 %
    /// that a profile leaves out.
    #[serde(default)]
    pub path_us: u32,
}

/// Why a shape is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("a server without cores for NFs has no room")]
    NoCores,
    #[error("of {llc_ways} ways of the LLC, DDIO has {ddio_ways}, and a class has {min_ways} at least: nothing is left for NFs")]
    NoWays { llc_ways: u32, ddio_ways: u32, min_ways: u32 },
    #[error("the server has {classes} classes, one of which is the system's own: an instance needs another")]
    NoClasses { classes: u32 },
}

impl ServerShape {
    /// Checks that NFs have anything to run on.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub fn check(&self) -> Result<(), ShapeError> {
        let Self { llc_ways, ddio_ways, min_ways, classes, .. } = *self;
        if self.cores == 0 {
            return Err(ShapeError::NoCores);
        }
        if min_ways == 0 || llc_ways > MOST_WAYS || llc_ways < ddio_ways.saturating_add(min_ways) {
            return Err(ShapeError::NoWays { llc_ways, ddio_ways, min_ways });
        }
        if classes < 2 {
            return Err(ShapeError::NoClasses { classes });
        }
        Ok(())
    }

    /// Ways that instances may have.
    pub fn ways(&self) -> u32 {
        self.llc_ways - self.ddio_ways
    }

    /// Classes that instances may have.
    pub fn own_classes(&self) -> u32 {
        self.classes - 1
    }

    /// Cores that an instance counts for: its own, or its part of the memory in cores if that is
    /// more. So whatever fits by this count fits by memory too.
    pub fn cores_with_memory(&self, cores: u32, memory_mib: u64) -> u32 {
        let by_memory = memory_mib.saturating_mul(u64::from(self.cores)).div_ceil(self.memory_mib.max(1));
        cores.max(u32::try_from(by_memory).unwrap_or(u32::MAX))
    }
}

/// An instance and what it has.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PlacedInstance")]
pub struct Instance {
    /// The SLO that it is for.
    pub slo: String,
    /// Which of the SLO's instances, from 0.
    pub number: u32,
    /// Its cores, by their index among those that NFs may have.
    pub cores: Vec<u32>,
    /// Ways of its own class; 0 in the shared class.
    pub ways: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Packets per second that it carries within the SLO's latency.
    pub capacity_pps: f64,
    /// Packets per second assigned to it.
    pub load_pps: f64,
}

/// A server and its instances.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacedServer {
    /// Its name.
    pub name: String,
    /// What it has.
    pub shape: ServerShape,
    /// What runs there.
    pub instances: Vec<Instance>,
}

/// Servers and their instances, as the planner sends them to the agents.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// All servers, in use or not.
    pub servers: Vec<PlacedServer>,
}

/// What a server has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    pub cores: u32,
    pub ways: u32,
    pub classes: u32,
    pub memory_mib: u64,
    /// Whether it has a shared class, whose ways are already taken.
    pub shared: bool,
    /// Ways that a shared class has.
    pub min_ways: u32,
}

impl Remaining {
    pub fn of(shape: &ServerShape) -> Self {
        Self {
            cores: shape.cores,
            ways: shape.ways(),
            classes: shape.own_classes(),
            memory_mib: shape.memory_mib,
            shared: false,
            min_ways: shape.min_ways,
        }
    }

    /// What is left with one more instance; none if it does not fit.
    pub fn less(self, cores: u32, ways: u32, memory_mib: u64) -> Option<Self> {
        // The first in the shared class brings the class.
        let (takes_ways, takes_class) = match ways {
            0 if self.shared => (0, 0),
            0 => (self.min_ways, 1),
            ways => (ways.max(self.min_ways), 1),
        };
        Some(Self {
            cores: self.cores.checked_sub(cores)?,
            ways: self.ways.checked_sub(takes_ways)?,
            classes: self.classes.checked_sub(takes_class)?,
            memory_mib: self.memory_mib.checked_sub(memory_mib)?,
            shared: self.shared || ways == 0,
            min_ways: self.min_ways,
        })
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlacementError {
    #[error("server \"{server}\": {why}")]
    Shape { server: String, why: ShapeError },
    #[error("server \"{server}\" does not have the {what} that its instances are given")]
    Overfull {
        server: String,
        /// Cores, ways, classes or memory.
        what: &'static str,
    },
    #[error("core {core} of server \"{server}\" is given to two instances, or does not exist")]
    Core { server: String, core: u32 },
    /// A class smaller than the hardware allows.
    #[error("instance {number} of \"{slo}\" has {ways} ways, and a class of server \"{server}\" has {min_ways} at least")]
    SmallClass { server: String, slo: String, number: u32, ways: u32, min_ways: u32 },
    #[error("there are two {what} named \"{name}\"")]
    Twice {
        /// Servers or instances.
        what: &'static str,
        name: String,
    },
    #[error("instance {number} of \"{slo}\" is to be given {load_pps:.0} packets/s and carries {capacity_pps:.0}")]
    Overload { slo: String, number: u32, load_pps: f64, capacity_pps: f64 },
}

/// Mask of `ways` ways from `at` on.
pub fn bits(at: u32, ways: u32) -> u64 {
    // 128 bits, because ways may be 64.
    let low = (1u128 << ways.min(64)) - 1;
    low.checked_shl(at).unwrap_or(0) as u64
}

/// Mask of each instance's class; all those in the shared class have the same.
pub type Masks = BTreeMap<(String, u32), u64>;

impl PlacedServer {
    pub fn empty(name: &str, shape: &ServerShape) -> Self {
        Self { name: name.into(), shape: shape.clone(), instances: Vec::new() }
    }

    /// What is left.
    ///
    /// # Errors
    /// [`PlacementError`]: more is given away than there is.
    pub fn room(&self) -> Result<Remaining, PlacementError> {
        let mut room = Remaining::of(&self.shape);
        for instance in &self.instances {
            let cores = u32::try_from(instance.cores.len()).unwrap_or(u32::MAX);
            room = room.less(cores, instance.ways, instance.memory_mib).ok_or_else(|| PlacementError::Overfull {
                server: self.name.clone(),
                what: match () {
                    () if room.cores < cores => "cores",
                    () if room.memory_mib < instance.memory_mib => "memory",
                    () if room.classes == 0 => "classes",
                    () => "ways",
                },
            })?;
        }
        Ok(room)
    }

    /// The lowest `cores` free cores; none if there are too few.
    pub fn free_cores(&self, cores: u32) -> Option<Vec<u32>> {
        let taken: BTreeSet<u32> = self.instances.iter().flat_map(|instance| instance.cores.iter().copied()).collect();
        let free: Vec<u32> = (0..self.shape.cores).filter(|core| !taken.contains(core)).take(cores as usize).collect();
        (free.len() == cores as usize).then_some(free)
    }

    /// The mask of each instance's class: DDIO's ways highest, below them one class after the
    /// other, and the shared class lowest. So free ways lie beside the shared class, and instances
    /// on demand can have both ([`crate::on_demand`]).
    pub fn masks(&self) -> Masks {
        let mut top = self.shape.llc_ways.saturating_sub(self.shape.ddio_ways);
        let mut masks = Masks::new();
        for instance in &self.instances {
            top = top.saturating_sub(instance.ways);
            let mask = if instance.ways == 0 { bits(0, self.shape.min_ways) } else { bits(top, instance.ways) };
            masks.insert((instance.slo.clone(), instance.number), mask);
        }
        masks
    }

    fn check(&self) -> Result<(), PlacementError> {
        let server = || self.name.clone();
        self.shape.check().map_err(|why| PlacementError::Shape { server: server(), why })?;
        self.room()?;
        let mut cores = BTreeSet::new();
        for instance in &self.instances {
            let Instance { number, ways, load_pps, capacity_pps, .. } = *instance;
            let (slo, min_ways) = (|| instance.slo.clone(), self.shape.min_ways);
            if let Some(&core) = instance.cores.iter().find(|core| **core >= self.shape.cores || !cores.insert(**core)) {
                return Err(PlacementError::Core { server: server(), core });
            }
            if ways > 0 && ways < min_ways {
                return Err(PlacementError::SmallClass { server: server(), slo: slo(), number, ways, min_ways });
            }
            // Sums of loads are rounded.
            if !(load_pps >= 0.0 && load_pps <= capacity_pps * (1.0 + 1e-9)) {
                return Err(PlacementError::Overload { slo: slo(), number, load_pps, capacity_pps });
            }
        }
        Ok(())
    }
}

impl Placement {
    /// Empty servers of one shape, named `s0`, `s1` and so on.
    pub fn empty(servers: usize, shape: &ServerShape) -> Self {
        Self { servers: (0..servers).map(|i| PlacedServer::empty(&format!("s{i}"), shape)).collect() }
    }

    /// Checks that every server has what its instances are given, and that no load exceeds a
    /// capacity.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn check(&self) -> Result<(), PlacementError> {
        let (mut names, mut instances) = (BTreeSet::new(), BTreeSet::new());
        for server in &self.servers {
            if !names.insert(&server.name) {
                return Err(PlacementError::Twice { what: "servers", name: server.name.clone() });
            }
            server.check()?;
            if let Some(twice) = server.instances.iter().find(|instance| !instances.insert((&instance.slo, instance.number))) {
                return Err(PlacementError::Twice { what: "instances", name: format!("{} {}", twice.slo, twice.number) });
            }
        }
        Ok(())
    }

    /// Number of servers with an instance.
    pub fn used(&self) -> usize {
        self.servers.iter().filter(|server| !server.instances.is_empty()).count()
    }

    /// All instances, with the index of their server.
    pub fn instances(&self) -> impl Iterator<Item = (usize, &Instance)> {
        self.servers.iter().enumerate().flat_map(|(i, server)| server.instances.iter().map(move |instance| (i, instance)))
    }

    /// Assigned packets per second of each SLO.
    pub fn loads_pps(&self) -> BTreeMap<&str, f64> {
        let mut loads = BTreeMap::new();
        for (_, instance) in self.instances() {
            *loads.entry(instance.slo.as_str()).or_insert(0.0) += instance.load_pps;
        }
        loads
    }

    /// Removes all instances of an SLO; returns how many there were.
    pub fn remove(&mut self, slo: &str) -> usize {
        let count = |servers: &[PlacedServer]| servers.iter().map(|server| server.instances.len()).sum::<usize>();
        let before = count(&self.servers);
        for server in &mut self.servers {
            server.instances.retain(|instance| instance.slo != slo);
        }
        before - count(&self.servers)
    }
}

/// Also used by tests of other modules.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::shape;

    fn instance(slo: &str, cores: &[u32], ways: u32) -> Instance {
        Instance { slo: slo.into(), number: 0, cores: cores.to_vec(), ways, memory_mib: 64, capacity_pps: 1e6, load_pps: 1e6 }
    }

    fn server(instances: &[Instance]) -> Placement {
        let mut placement = Placement::empty(2, &shape());
        placement.servers[0].instances = instances.to_vec();
        placement
    }

    #[test]
    fn what_fits_is_counted() {
        let placement = server(&[instance("a", &[0], 4), instance("b", &[1, 2], 0), instance("c", &[3], 0)]);
        placement.check().unwrap();
        let room = placement.servers[0].room().unwrap();
        assert_eq!((room.cores, room.ways, room.classes, room.shared), (5, 13, 13, true), "the shared class counts once");
        assert_eq!(placement.servers[0].free_cores(2), Some(vec![4, 5]));
        assert_eq!(placement.servers[0].free_cores(6), None);
        assert_eq!(placement.used(), 1);
        let masks = placement.servers[0].masks();
        assert_eq!(masks[&("a".into(), 0)], 0b1111 << 14, "below DDIO's");
        assert_eq!((masks[&("b".into(), 0)], masks[&("c".into(), 0)]), (1, 1));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let said = |instances: &[Instance]| server(instances).check().unwrap_err().to_string();
        assert!(said(&[instance("a", &[0], 10), instance("b", &[1], 9)]).contains("does not have the ways"));
        assert!(said(&[instance("a", &[0], 1), instance("b", &[0], 1)]).contains("core 0 of server \"s0\""));
        assert!(said(&[instance("a", &[9], 1)]).contains("core 9"));
        assert!(said(&[instance("a", &[0], 1), instance("a", &[1], 1)]).contains("two instances named \"a 0\""));
        assert!(said(&[Instance { load_pps: 2e6, ..instance("a", &[0], 1) }]).contains("carries 1000000"));
        assert!(said(&[Instance { memory_mib: 1 << 20, ..instance("a", &[0], 1) }]).contains("memory"));
        let mut few = server(&[instance("a", &[0], 1), instance("b", &[1], 1)]);
        few.servers[0].shape.classes = 2;
        assert!(few.check().unwrap_err().to_string().contains("classes"));
        few.servers[0].shape = ServerShape { min_ways: 2, ..shape() };
        assert!(few.check().unwrap_err().to_string().contains("2 at least"));
        few.servers[0].shape = ServerShape { ddio_ways: 20, ..shape() };
        assert!(few.check().unwrap_err().to_string().contains("nothing is left"));
    }

    #[test]
    fn an_slo_is_taken_away() {
        let mut placement = server(&[instance("a", &[0], 4), instance("b", &[1], 2)]);
        assert_eq!(placement.loads_pps().get("a"), Some(&1e6));
        assert_eq!((placement.remove("a"), placement.remove("a")), (1, 0));
        assert_eq!(placement.instances().count(), 1);
    }

    #[test]
    fn memory_may_take_the_place_of_cores() {
        assert_eq!(shape().cores_with_memory(1, 64), 1);
        assert_eq!(shape().cores_with_memory(1, 32 << 10), 5);
        assert_eq!(shape().cores_with_memory(1, u64::MAX), u32::MAX, "a profile may say anything");
    }
}
