//! Which packet thread drains and wakes an NF, and how many meet its packets: division by numbers
//! and cores, or by shards.

use std::collections::HashMap;

use sluice_api::config::{Config, Manager};
use sluice_dataplane::roles::Roles;

/// An NF is drained by the thread that its number, taken modulo the threads with the role Tx, says.
/// So an instance of a shard gets a number whose thread is the shard's.
pub struct Division {
    /// The threads with the role Tx.
    tx: Vec<usize>,
    /// The threads with the role Wakeup.
    wakeup: Vec<usize>,
    /// The thread that wakes NFs of a core, where that is its shard's.
    of_core: HashMap<usize, usize>,
    /// How many threads may let packets in for an NF that is a process, and take them from it.
    pub sharers: usize,
}

impl Division {
    /// Of this many packet threads.
    pub fn new(config: &Config, threads: usize, tx: Vec<usize>, wakeup: Vec<usize>) -> Self {
        let sharers = if config.manager.shards.is_empty() { threads } else { 1 };
        Self { tx, wakeup, of_core: of_cores(config), sharers }
    }

    /// Has NFs of a configuration woken by the threads of their shards, except on cores that have
    /// NFs already: these keep their thread.
    pub fn learn_cores(&mut self, config: &Config, has_nfs: impl Fn(usize) -> bool) {
        self.of_core.extend(of_cores(config).into_iter().filter(|(core, _)| !has_nfs(*core)));
    }

    /// The thread that wakes NFs of a core.
    pub fn wakes(&self, core: usize) -> usize {
        self.of_core.get(&core).copied().unwrap_or_else(|| self.wakeup[core % self.wakeup.len()])
    }

    /// The thread that takes packets from an NF: with shards, that of its shard.
    pub fn drains(&self, number: u16) -> usize {
        self.tx[usize::from(number) % self.tx.len()]
    }

    /// Whether one thread drains both NFs.
    pub fn drains_alike(&self, one: u16, other: u16) -> bool {
        self.drains(one) == self.drains(other)
    }

    /// A function: whether an NF is of a shard, by its number. With an NF's number instead of a
    /// shard: whether one thread drains both.
    pub fn is_of_shard(&self, shard: usize) -> impl Fn(u16) -> bool + use<> {
        let threads = self.tx.len();
        move |number| usize::from(number) % threads == shard % threads
    }
}

/// The cores of the packet threads in a configuration, with the roles of each.
pub fn threads_of(manager: &Manager) -> Vec<(usize, Roles)> {
    let mut threads: Vec<(usize, Roles)> = Vec::new();
    let mut role = |core: usize, set: fn(&mut Roles)| match threads.iter_mut().find(|(c, _)| *c == core) {
        Some((_, roles)) => set(roles),
        None => {
            let mut roles = Roles::default();
            set(&mut roles);
            threads.push((core, roles));
        }
    };
    for (key, cores) in manager.roles() {
        let set = match key {
            "rx" => |r: &mut Roles| r.rx = true,
            "tx" => |r: &mut Roles| r.tx = true,
            "wakeup" => |r: &mut Roles| r.wakeup = true,
            "monitor" => |r: &mut Roles| r.monitor = true,
            _ => |r: &mut Roles| *r = Roles { rx: true, tx: true, wakeup: true, monitor: true },
        };
        cores.iter().for_each(|core| role(*core, set));
    }
    threads
}

/// For each core of a shard's NFs the shard's thread, by number.
fn of_cores(config: &Config) -> HashMap<usize, usize> {
    let cores = config.services.iter().flat_map(|service| &service.cores);
    cores.filter_map(|core| Some((*core, config.shard_of(*core)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cores: &str) -> Config {
        let text = format!("[manager]\nshards = [0, 1]\n[[service]]\nname = \"s\"\nexec = \"s\"\ninstances = 2\ncores = {cores}");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn a_shard_drains_and_wakes_its_own() {
        let mut division = Division::new(&config("[3, 2]"), 2, vec![0, 1], vec![0, 1]);
        assert_eq!([2, 3, 4].map(|core| division.wakes(core)), [1, 0, 0], "core 4 is nobody's");
        assert_eq!([0, 1, 2, 3].map(|number| division.drains(number)), [0, 1, 0, 1]);
        assert!((0..9).all(|number| division.is_of_shard(1)(number) == (division.drains(number) == 1)));
        assert!(division.drains_alike(1, 3) && !division.drains_alike(1, 2));
        assert_eq!(division.sharers, 1);
        division.learn_cores(&config("[2, 5]"), |core| core == 2);
        assert_eq!([2, 5].map(|core| division.wakes(core)), [1, 1], "core 2 has NFs of the shard that had it");
        division.learn_cores(&config("[2, 5]"), |_| false);
        assert_eq!(division.wakes(2), 0);
    }

    #[test]
    fn without_shards_numbers_and_cores_divide() {
        let division = Division::new(&Config::default(), 3, vec![1, 2], vec![0]);
        assert_eq!([0, 1, 2].map(|number| division.drains(number)), [1, 2, 1]);
        assert_eq!((division.wakes(0), division.wakes(7), division.sharers), (0, 0, 3));
    }
}
