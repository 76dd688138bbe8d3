//! What a service is, how many instances it has, and where; how those of a chain run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Per, Pool, Service, ServiceKind};

/// How the NFs of a chain run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Run {
    /// Each NF is a process, which it may share with other chains.
    #[default]
    Isolated,
    /// One process runs all handlers of the chain, one after another, without rings between them.
    Fused,
}

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

    /// Whether it is the group of a fused chain.
    pub fn is_group(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Whether its instances have flows or packets assigned by a pool.
    pub fn is_pooled(&self) -> bool {
        self.per != Per::Shared
    }

    /// Its `[service.pool]`.
    pub fn pool(&self) -> Pool {
        self.pool.clone().unwrap_or_default()
    }

    /// Whether flows are assigned to its instances as they arrive, each to its end.
    pub fn has_members_for_flows(&self) -> bool {
        self.per.is_held()
    }

    /// Whether an instance on another core can replace one without losing a packet. Not for
    /// services that attach, are foreign, or give each instance flows of its own.
    pub fn can_be_moved(&self) -> bool {
        !self.attach && !self.is_foreign() && !self.has_members_for_flows()
    }

    /// Capacity of each ring of its instances.
    pub fn ring_slots(&self) -> u32 {
        if self.is_pooled() { self.pool().ring } else { self.ring }
    }

    /// Whether its program does not use Sluice's library.
    pub fn is_foreign(&self) -> bool {
        self.kind == ServiceKind::Foreign
    }

    /// Whether it receives copies of packets, while the originals go on at once.
    pub fn is_tap(&self) -> bool {
        self.is_foreign() && self.interfaces.len() == 1
    }
}
