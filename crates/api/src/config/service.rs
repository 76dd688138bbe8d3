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
    /// The packet threads run the handlers themselves, without any ring. Services need `trusted`.
    Inline,
}

impl Run {
    /// Its word in a configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Isolated => "isolated",
            Self::Fused => "fused",
            Self::Inline => "inline",
        }
    }

    /// What the name of a chain's group has after the chain's. None: no group.
    pub fn suffix(self) -> Option<&'static str> {
        match self {
            Self::Isolated => None,
            Self::Fused => Some(".fused"),
            Self::Inline => Some(".inline"),
        }
    }
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

    /// Whether each instance is of one shard, where there are several. Pools assign their members
    /// to threads by themselves.
    pub fn is_sharded(&self) -> bool {
        !self.all_shards && !self.is_pooled() && !self.is_inline()
    }

    /// Whether it is the group of a fused or inline chain.
    pub fn is_group(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Whether it is the group of an inline chain, whose instances run in packet threads.
    pub fn is_inline(&self) -> bool {
        self.is_group() && Run::Inline.suffix().is_some_and(|suffix| self.name.ends_with(suffix))
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
    /// services that attach, are foreign or inline, or give each instance flows of its own.
    pub fn can_be_moved(&self) -> bool {
        !self.attach && !self.is_foreign() && !self.is_inline() && !self.has_members_for_flows()
    }

    /// The least and the most priority that an instance may ask for; `priority` in between.
    pub fn priority_bounds(&self) -> (f64, f64) {
        (self.priority_min.unwrap_or(self.priority), self.priority_max.unwrap_or(self.priority))
    }

    /// Whether an instance may ask for another priority.
    pub fn lets_ask(&self) -> bool {
        self.priority_bounds() != (self.priority, self.priority)
    }

    /// The priority of an instance that asks for one, or for none.
    pub fn priority_for(&self, asked: Option<f64>) -> f64 {
        let (least, most) = self.priority_bounds();
        asked.map_or(self.priority, |asked| asked.min(most).max(least))
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
