//! Leases and placement of instances on demand: cores, memory, and the shared ways.
//!
//! # Terms
//! *Lease*: the ways of a server that are in no reserved instance's own class, with the classes
//! that are left. It is never less than the shared class, and shrinks when reserved SLOs are
//! admitted. Reserved instances that need no cache are in the shared class too: their promise holds
//! whatever happens to its ways.
//!
//! # Approach
//! An instance on demand is promised nothing by a profile, so it needs none. It takes cores, memory
//! and a place in the shared class. Servers in use come first, and of these the one with the
//! largest part of the lease per instance in the shared class.

use serde::{Deserialize, Serialize};

use crate::placement::{Instance, PlacedServer, Placement, PlacementError, bits};
use crate::slo::{Promise, Slo, SloError};

/// What instances on demand share of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Its ways, in one piece.
    pub mask: u64,
    /// Classes, the shared class included.
    pub classes: u32,
    pub min_ways: u32,
    pub way_bytes: u64,
    /// Whether reserved instances are in the shared class, so that there must be one.
    pub riders: bool,
    /// Masks of reserved classes.
    pub reserved: Vec<u64>,
}

/// What an instance takes besides the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Footprint {
    pub cores: u32,
    pub memory_mib: u64,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LeaseError {
    #[error(transparent)]
    Slo(#[from] SloError),
    #[error("SLO \"{0}\" is reserved: it is admitted by a profile")]
    Reserved(String),
    #[error("an instance of \"{0}\" is to take no core")]
    NoCores(String),
    #[error("\"{slo}\" has {instances} instances, as many as its cap allows")]
    Capped { slo: String, instances: u32 },
    #[error("no server has {cores} cores and {memory_mib} MiB left, and a place in a shared class")]
    Full { cores: u32, memory_mib: u64 },
    #[error("the placement cannot be: {0}")]
    Placement(#[from] PlacementError),
}

impl PlacedServer {
    /// The lease of this server. `is_on_demand` is true for the names of SLOs on demand.
    ///
    /// # Errors
    /// [`PlacementError`]: more is given away than there is.
    pub fn lease(&self, is_on_demand: impl Fn(&str) -> bool) -> Result<Lease, PlacementError> {
        self.shape.check().map_err(|why| PlacementError::Shape { server: self.name.clone(), why })?;
        self.room()?;
        let masks = self.masks();
        let own = || self.instances.iter().filter(|instance| instance.ways > 0);
        let taken: u32 = own().map(|instance| instance.ways).sum();
        Ok(Lease {
            mask: bits(0, self.shape.ways() - taken),
            classes: self.shape.own_classes() - own().count() as u32,
            min_ways: self.shape.min_ways,
            way_bytes: self.shape.way_bytes,
            riders: self.instances.iter().any(|instance| instance.ways == 0 && !is_on_demand(&instance.slo)),
            reserved: own().filter_map(|own| masks.get(&(own.slo.clone(), own.number)).copied()).collect(),
        })
    }
}

/// Finds room for one more instance of an SLO on demand and adds it. Returns it with the index of
/// its server.
///
/// # Errors
/// [`LeaseError`]; the placement is unchanged.
pub fn lease(placement: &mut Placement, slo: &Slo, footprint: Footprint) -> Result<(usize, Instance), LeaseError> {
    let Footprint { cores, memory_mib } = footprint;
    slo.check()?;
    let Promise::OnDemand { cap, .. } = slo.promise else { return Err(LeaseError::Reserved(slo.name.clone())) };
    if cores == 0 {
        return Err(LeaseError::NoCores(slo.name.clone()));
    }
    let own: Vec<u32> = placement.instances().filter(|(_, one)| one.slo == slo.name).map(|(_, one)| one.number).collect();
    let instances = own.len() as u32;
    if cap.instances.is_some_and(|most| instances >= most) {
        return Err(LeaseError::Capped { slo: slo.name.clone(), instances });
    }
    let mut best: Option<((bool, f64), usize)> = None;
    for (k, server) in placement.servers.iter().enumerate() {
        let Some(left) = server.room()?.less(cores, 0, memory_mib) else { continue };
        let sharing = server.instances.iter().filter(|one| one.ways == 0).count() + 1;
        let rank = (!server.instances.is_empty(), f64::from(left.ways + left.min_ways) / sharing as f64);
        if best.is_none_or(|(best, _)| rank > best) {
            best = Some((rank, k));
        }
    }
    let Some((_, k)) = best else { return Err(LeaseError::Full { cores, memory_mib }) };
    let number = (0..).find(|number| !own.contains(number)).unwrap_or(instances);
    let server = &mut placement.servers[k];
    let Some(cores) = server.free_cores(cores) else { return Err(LeaseError::Full { cores, memory_mib }) };
    let instance = Instance { slo: slo.name.clone(), number, cores, ways: 0, memory_mib, capacity_pps: 0.0, load_pps: 0.0 };
    server.instances.push(instance.clone());
    Ok((k, instance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{shape, slo};
    use crate::slo::Cap;

    const SMALL: Footprint = Footprint { cores: 1, memory_mib: 64 };

    fn on_demand(name: &str, instances: u32) -> Slo {
        let cap = Cap { instances: Some(instances), load_pps: None };
        Slo { name: name.into(), promise: Promise::OnDemand { latency_us: 50.0, cap }, ..slo(1.0, 1.0) }
    }

    #[test]
    fn no_profile_is_needed_and_the_cap_is_kept() {
        let mut placement = Placement::empty(2, &shape());
        let web = on_demand("web", 2);
        assert_eq!(lease(&mut placement, &web, SMALL).unwrap().0, 0);
        let (at, second) = lease(&mut placement, &web, SMALL).unwrap();
        assert_eq!((at, second.number, second.ways, second.cores), (0, 1, 0, vec![1]));
        placement.check().unwrap();
        let before = placement.clone();
        assert!(lease(&mut placement, &web, SMALL).unwrap_err().to_string().contains("has 2 instances"));
        assert!(lease(&mut placement, &slo(1e6, 10.0), SMALL).unwrap_err().to_string().contains("is reserved"));
        assert!(lease(&mut placement, &on_demand("big", 1), Footprint { cores: 10, ..SMALL }).is_err());
        assert!(lease(&mut placement, &on_demand("none", 1), Footprint { cores: 0, ..SMALL }).is_err());
        assert_eq!(placement, before);
        // The other server has more cache, but is not in use.
        lease(&mut placement, &on_demand("dns", 1), Footprint { cores: 7, ..SMALL }).unwrap();
        assert_eq!(lease(&mut placement, &on_demand("more", 1), SMALL).unwrap().0, 1, "all cores of the first are taken");
    }

    #[test]
    fn the_lease_is_what_is_not_reserved() {
        let mut placement = Placement::empty(1, &shape());
        placement.servers[0].instances = [(0, 5), (1, 0)]
            .map(|(number, ways)| Instance {
                slo: "nat".into(),
                number,
                cores: vec![number],
                ways,
                memory_mib: 64,
                capacity_pps: 1e6,
                load_pps: 1e6,
            })
            .to_vec();
        lease(&mut placement, &on_demand("web", 2), SMALL).unwrap();
        let server = &placement.servers[0];
        let lease = server.lease(|slo| slo == "web").unwrap();
        assert_eq!(lease.mask, bits(0, 13));
        assert_eq!(lease.mask & lease.reserved.iter().fold(0, |all, mask| all | mask), 0);
        assert_eq!(lease.mask | lease.reserved.iter().fold(0, |all, mask| all | mask), bits(0, 18), "DDIO's are not leased");
        assert_eq!(lease.classes as usize + lease.reserved.len(), 15);
        assert!(lease.riders, "the second needs no cache");
        assert_eq!(server.masks()[&("web".into(), 0)] & !lease.mask, 0, "the shared class is of the lease");
        assert!(server.lease(|_| false).unwrap().riders);
    }
}
