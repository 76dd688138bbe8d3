//! Checks of shards: each has a queue of each port, and instances on cores of its own.

use std::collections::BTreeMap;

use super::Validation;
use crate::fuse;
use crate::problem::{At, Problem};
use sluice_api::config::{Manager, Service};

impl Validation<'_> {
    pub(super) fn shards(&mut self) {
        match self.config.manager.shards.len() {
            0 => {}
            of => {
                self.roles_beside_shards();
                self.queues_of_shards(of);
                self.cores_of_shards(of);
            }
        }
    }

    fn roles_beside_shards(&mut self) {
        let manager = &self.config.manager;
        let usual = Manager::default();
        let roles = [
            ("rx", &manager.rx, &usual.rx),
            ("tx", &manager.tx, &usual.tx),
            ("wakeup", &manager.wakeup, &usual.wakeup),
            ("monitor", &manager.monitor, &usual.monitor),
        ];
        for (key, ..) in roles.into_iter().filter(|(_, cores, usual)| cores != usual) {
            self.error(
                At::key("manager", key),
                format!("`{key}` has no effect beside `shards`, whose threads have all roles"),
                format!("remove `{key}`, or `shards`"),
            );
        }
    }

    fn queues_of_shards(&mut self, of: usize) {
        let config = self.config;
        for (i, port) in config.ports.iter().enumerate().filter(|(_, port)| !(port.queues as usize).is_multiple_of(of)) {
            let queues = if port.queues == 1 { "1 queue".into() } else { format!("{} queues", port.queues) };
            self.error(
                At::entry("port", i, "queues"),
                format!("port \"{}\" has {queues}, and each of the {of} shards needs its own", port.name),
                format!("write queues = {of}"),
            );
        }
    }

    fn cores_of_shards(&mut self, of: usize) {
        let config = self.config;
        // The first use of each core: its shard, and where that is written.
        let mut shards: BTreeMap<usize, (usize, At)> = BTreeMap::new();
        let has_own =
            |service: &Service| service.is_sharded() && service.instances > 0 && !fuse::is_inline_alone(config, &service.name);
        for (i, service) in config.services.iter().enumerate().filter(|(_, service)| has_own(service)) {
            let (name, at) = (&service.name, At::entry("service", i, "cores"));
            let (instances, cores) = (service.instances as usize, service.cores.len());
            if instances.min(cores) < of {
                self.error(
                    if instances < of { At::entry("service", i, "instances") } else { at },
                    format!(
                        "service \"{name}\" has instances: {instances}, cores: {cores}, and each of the {of} shards needs its own"
                    ),
                    format!("give it {of} instances on {of} cores, or write all_shards = true if its instances serve all shards"),
                );
                continue;
            }
            for (place, core) in service.cores.iter().enumerate() {
                let (shard, at) = (place % of, at.item(place));
                let (first, before) = *shards.entry(*core).or_insert((shard, at));
                if first != shard {
                    self.problems.push(
                        Problem::error(
                            at,
                            format!("core {core} is of shard {first} and of shard {shard}"),
                            "the cores of a service belong to the shards in turn: write them in another order, or other cores",
                        )
                        .after(before),
                    );
                }
            }
        }
    }
}
