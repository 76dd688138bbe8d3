//! Checks of pooled services: their pools and their chains.

use super::Validation;
use crate::class::TrafficClass;
use crate::problem::At;
use sluice_api::config::{Config, Per, Service, WhenEmpty, hop};

/// Most pooled services of a connection, over all its chains.
pub const MAX_POOLS: usize = 8;

/// Most services in a chain with a pooled one: path search uses fixed-size memory.
pub const MAX_POOLED_HOPS: usize = sluice_policy::spread::MAX_NFS;

/// Default ring size.
const USUAL_RING: u32 = 2048;

impl Validation<'_> {
    /// Checks all pooled services.
    pub(super) fn pools(&mut self) {
        let config = self.config;
        for (i, service) in config.services.iter().enumerate() {
            if service.is_pooled() {
                self.pool(i, service);
            } else if service.pool.is_some() {
                self.error(
                    At::entry("service", i, "pool"),
                    format!("service \"{}\" is shared, and has no pool", service.name),
                    "write per = \"flow\", or remove [service.pool]",
                );
            }
        }
        for (i, chain) in config.chains.iter().enumerate() {
            let pooled = |written: &&String| of(config, hop(written).0).is_some_and(Service::is_pooled);
            let mut names: Vec<&String> = chain.services.iter().filter(pooled).collect();
            names.sort_unstable();
            names.dedup();
            if names.len() > MAX_POOLS {
                self.error(
                    At::entry("chain", i, "services"),
                    format!("chain \"{}\" has {} services that are not shared", chain.name, names.len()),
                    format!("a connection has {MAX_POOLS} of them at most"),
                );
            }
            if !names.is_empty() && chain.services.len() > MAX_POOLED_HOPS {
                self.error(
                    At::entry("chain", i, "services"),
                    format!("chain \"{}\" has {} services, and one of them is not shared", chain.name, chain.services.len()),
                    format!("such a chain has {MAX_POOLED_HOPS} at most"),
                );
            }
        }
    }

    fn pool(&mut self, i: usize, service: &Service) {
        let (name, pool) = (&service.name, service.pool());
        let in_pool = At::entry("service", i, if service.pool.is_some() { "pool" } else { "per" });
        self.keys_of_shared(i, service);
        if service.per.is_held() && pool.min > pool.max {
            self.error(
                in_pool,
                format!("the pool of service \"{name}\" has at least {} instances and at most {}", pool.min, pool.max),
                "make min at most max",
            );
        }
        if !service.per.is_held() && pool.min == 0 {
            self.error(in_pool, format!("service \"{name}\" has no instance"), "write min = 1 or more in [service.pool]");
        }
        self.class(in_pool, service);
        if !pool.ring.is_power_of_two() && pool.ring >= 2 {
            let below = 1u32 << pool.ring.ilog2();
            self.error(
                in_pool,
                format!("a ring of {} is no power of two", pool.ring),
                format!("write ring = {below} or ring = {}", u64::from(below) * 2),
            );
        }
        self.fallback(in_pool, service);
        self.both_directions(i, service);
    }

    /// Checks that pooled services have no keys of shared ones.
    fn keys_of_shared(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        if service.is_foreign() {
            self.error(at("per"), format!("service \"{name}\" is foreign, and can only be shared"), "remove `per`");
        }
        if service.attach {
            self.error(
                at("attach"),
                format!("service \"{name}\" is not shared, so the manager starts its instances"),
                "remove attach = true and write `exec`, or remove `per`",
            );
        }
        if service.instances != 1 {
            self.error(
                at("instances"),
                format!("service \"{name}\" is not shared, so its pool says how many instances there are"),
                "remove `instances`, and write min and max in [service.pool]",
            );
        }
        if service.ring != USUAL_RING {
            self.error(
                at("ring"),
                format!("service \"{name}\" is not shared, so its pool says how large rings are"),
                "remove `ring`, and write ring in [service.pool]",
            );
        }
    }

    /// Checks that `class` is set if and only if there is an instance for each class.
    fn class(&mut self, in_pool: At, service: &Service) {
        let name = &service.name;
        match (&service.pool().class, service.per) {
            (None, Per::Class) => self.error(
                in_pool,
                format!("service \"{name}\" has an instance for each class, and nothing says what makes one"),
                "write class = \"tenant\", \"vlan\", \"port\", \"dscp\" or \"source-prefix/24\" in [service.pool]",
            ),
            (Some(class), Per::Class) => {
                if let Err(known) = class.parse::<TrafficClass>() {
                    self.error(in_pool, format!("\"{class}\" makes no traffic class"), known);
                }
            }
            (Some(_), _) => self.error(
                in_pool,
                format!("service \"{name}\" has no instance for each class"),
                "write per = \"class\", or remove `class`",
            ),
            (None, _) => {}
        }
    }

    /// Checks that the fallback of a pool is a shared service.
    fn fallback(&mut self, in_pool: At, service: &Service) {
        let (name, pool) = (&service.name, service.pool());
        match (&pool.fallback, pool.when_empty) {
            (None, WhenEmpty::Fallback) => self.error(
                in_pool,
                format!("the pool of service \"{name}\" falls back to nothing"),
                "write fallback = \"SERVICE\" in [service.pool], or another when_empty",
            ),
            (Some(_), WhenEmpty::Wait | WhenEmpty::Drop) => self.error(
                in_pool,
                format!("the pool of service \"{name}\" never falls back"),
                "write when_empty = \"fallback\" in [service.pool], or remove `fallback`",
            ),
            (Some(fallback), WhenEmpty::Fallback) => {
                let others: Vec<&str> = self.config.services.iter().map(|s| s.name.as_str()).collect();
                if self.reference(in_pool, "service", fallback, &others)
                    && of(self.config, fallback).is_some_and(|s| s.is_pooled() || s.is_foreign())
                {
                    self.error(
                        in_pool,
                        format!("the pool of service \"{name}\" falls back to \"{fallback}\", which is not shared, or foreign"),
                        "name a service that is shared",
                    );
                }
            }
            (None, _) => {}
        }
    }

    /// Checks that both directions of a connection reach the same Rx thread.
    fn both_directions(&mut self, i: usize, service: &Service) {
        let threads = self.config.manager.rx_cores().len() as u32;
        if !service.per.is_held() || threads < 2 {
            return;
        }
        let most = service.pool().max;
        if most < threads {
            self.error(
                At::entry("service", i, if service.pool.is_some() { "pool" } else { "per" }),
                format!(
                    "the pool of service \"{}\" has at most {most} instances, and there are {threads} Rx threads",
                    service.name
                ),
                format!("write max = {threads} or more in [service.pool]: an instance belongs to one thread"),
            );
        }
        let queues: Vec<u32> = self.config.ports.iter().filter(|p| p.kind.no_input().is_none()).map(|p| p.queues).collect();
        if queues.iter().any(|n| n % threads != 0 || Some(n) != queues.first()) {
            self.error(
                At::entry("service", i, "per"),
                format!(
                    "service \"{}\" has instances that flows hold, and the two directions of a flow would come to different Rx threads",
                    service.name
                ),
                format!("give each port that packets come in at the same number of queues: {threads}, or several times that"),
            );
        }
    }
}

fn of<'a>(config: &'a Config, name: &str) -> Option<&'a Service> {
    config.services.iter().find(|s| s.name == name)
}
