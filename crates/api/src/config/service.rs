//! How many instances a service has, and where.

use super::{Per, Service};

impl Service {
    /// Number of instances at start.
    pub fn first_instances(&self) -> u32 {
        if self.is_pooled() { self.pool().min } else { self.instances }
    }

    /// Most instances at any time.
    pub fn most_instances(&self) -> u32 {
        match self.per {
            Per::Shared => self.instances,
            Per::Flow | Per::Class => self.pool().max,
            Per::Rss | Per::RoundRobin => self.pool().min,
        }
    }

    /// Most instances on a core, of which each takes the next of `cores` in turn. The configuration
    /// need not be valid.
    pub fn most_on(&self, core: usize) -> usize {
        let instances = self.most_instances() as usize;
        let Some(rounds) = instances.checked_div(self.cores.len()) else { return 0 };
        let on = |cores: &[usize]| cores.iter().filter(|one| **one == core).count();
        rounds * on(&self.cores) + on(&self.cores[..instances % self.cores.len()])
    }
}
