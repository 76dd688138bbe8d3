//! Counters of objects that are gone: totals never go back while the daemon runs.
//!
//! The rule is in [`control::totals`](crate::control::totals). Packets inside follow a removed
//! chain to its end, and it counts them. So its counters stay until nothing else holds them, and
//! then only their sum does. The same holds for the queues of ports.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::control::totals::{Counted, MOST};
use sluice_api::model as api;
use sluice_dataplane::chain::{ChainCounters, DropReason};
use sluice_dataplane::decision::Refusal;
use sluice_dataplane::queue::QueueCounters;

/// Counts of former objects by name.
#[derive(Debug)]
struct Names<T> {
    /// By name, with the order in which they last left.
    known: HashMap<String, (u64, T)>,
    next: u64,
    /// The counts of forgotten names, by group.
    rest: BTreeMap<String, T>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { known: HashMap::new(), next: 0, rest: BTreeMap::new() }
    }
}

impl<T: Counted + Default> Names<T> {
    /// Adds the counts of a former object. `group_of` is its group, once its name is forgotten.
    fn leave(&mut self, name: &str, counted: &T, group_of: impl Fn(&T) -> String) {
        self.next += 1;
        if let Some((at, sum)) = self.known.get_mut(name) {
            *at = self.next;
            sum.add(counted);
            return;
        }
        if self.known.len() >= MOST
            && let Some(first) = self.known.iter().min_by_key(|(_, (at, _))| *at).map(|(name, _)| name.clone())
            && let Some((_, sum)) = self.known.remove(&first)
        {
            self.rest.entry(group_of(&sum)).or_default().add(&sum);
        }
        let mut sum = T::default();
        sum.add(counted);
        self.known.insert(name.into(), (self.next, sum));
    }

    fn of(&self, name: &str) -> Option<&T> {
        self.known.get(name).map(|(_, sum)| sum)
    }
}

#[derive(Debug, Default)]
pub(super) struct Past {
    /// Counters that others may still write to.
    live_chains: Vec<(String, Arc<[ChainCounters]>)>,
    live_queues: Vec<(String, Arc<QueueCounters>)>,
    chains: Names<api::Chain>,
    ports: Names<api::Port>,
    nfs: Names<OfService>,
    pools: Names<api::Pool>,
    /// Counts of former packet memories, by tenant.
    memories: Names<api::Memory>,
}

#[derive(Debug, Default)]
struct OfService(String, api::Nf);

impl Counted for OfService {
    fn add(&mut self, more: &Self) {
        self.0.clone_from(&more.0);
        self.1.add(&more.1);
    }
}

pub(super) fn of_chain(counters: &[ChainCounters]) -> api::Chain {
    let dropped = |why: DropReason| counters.iter().map(|c| c.drops[why as usize].get()).sum::<u64>();
    let no_path = (Refusal::NoPath.name().to_string(), counters.iter().map(|c| c.no_path.get()).sum::<u64>());
    let drops = DropReason::ALL.iter().map(|why| (why.name().to_string(), dropped(*why))).chain([no_path]);
    let mut chain = api::Chain {
        drops: drops.filter(|(_, n)| *n > 0).collect(),
        wasted: DropReason::ALL.iter().filter(|why| why.is_wasted()).map(|why| dropped(*why)).sum(),
        ..api::Chain::default()
    };
    counters.iter().for_each(|c| chain.add_counts(&c.api.read()));
    chain
}

pub(super) fn of_queue(queue: &QueueCounters) -> api::Port {
    let mut port = api::Port {
        drops: queue.own_drops().into_iter().filter(|(_, n)| *n > 0).map(|(why, n)| (why.into(), n)).collect(),
        ..api::Port::default()
    };
    port.add_counts(&queue.api.read());
    port
}

fn no_group<T>(_: &T) -> String {
    String::new()
}

impl Past {
    /// Adds a chain that is gone, with its latencies.
    pub(super) fn chain(&mut self, name: &str, counters: &Arc<[ChainCounters]>, latency_ns: api::Distribution) {
        self.live_chains.push((name.into(), counters.clone()));
        self.chains.leave(name, &api::Chain { latency_ns, ..api::Chain::default() }, no_group);
        self.settle();
    }

    /// Adds a port that is gone, with the details that only its kind has.
    pub(super) fn port(&mut self, name: &str, queues: &[Arc<QueueCounters>], details: BTreeMap<String, f64>) {
        self.live_queues.extend(queues.iter().map(|queue| (name.to_string(), queue.clone())));
        self.ports.leave(name, &api::Port { details, ..api::Port::default() }, no_group);
        self.settle();
    }

    /// Adds an NF that is gone, with its own counts.
    pub(super) fn nf(&mut self, nf: api::Nf) {
        self.nfs.leave(&nf.name.clone(), &OfService(nf.service.clone(), nf), |of| of.0.clone());
    }

    /// Adds a pool that is gone, with its own counts.
    pub(super) fn pool(&mut self, pool: &api::Pool) {
        self.pools.leave(&pool.service, pool, no_group);
    }

    /// Adds the counts of a tenant's former packet memory.
    pub(super) fn memory(&mut self, memory: &api::Memory) {
        self.memories.leave(&memory.tenant, memory, no_group);
    }

    /// Sums counters that only this holds: their values are final.
    fn settle(&mut self) {
        let Self { live_chains, live_queues, chains, ports, .. } = self;
        live_chains.retain(|(name, counters)| {
            let in_use = Arc::strong_count(counters) > 1;
            if !in_use {
                chains.leave(name, &of_chain(counters), no_group);
            }
            in_use
        });
        live_queues.retain(|(name, queue)| {
            let in_use = Arc::strong_count(queue) > 1;
            if !in_use {
                ports.leave(name, &of_queue(queue), no_group);
            }
            in_use
        });
    }

    /// The counts of former chains of a name.
    pub(super) fn of_chain(&self, name: &str) -> api::Chain {
        let mut sum = api::Chain::default();
        self.chains.of(name).into_iter().for_each(|former| sum.add(former));
        self.live_chains.iter().filter(|(of, _)| of == name).for_each(|(_, counters)| sum.add(&of_chain(counters)));
        sum
    }

    pub(super) fn of_port(&self, name: &str) -> api::Port {
        let mut sum = api::Port::default();
        self.ports.of(name).into_iter().for_each(|former| sum.add(former));
        self.live_queues.iter().filter(|(of, _)| of == name).for_each(|(_, queue)| sum.add(&of_queue(queue)));
        sum
    }

    pub(super) fn of_nf(&self, name: &str) -> Option<&api::Nf> {
        self.nfs.of(name).map(|of| &of.1)
    }

    pub(super) fn of_pool(&self, service: &str) -> Option<&api::Pool> {
        self.pools.of(service)
    }

    /// Adds the counts of former packet memories of its tenant.
    pub(super) fn add_memory(&self, memory: &mut api::Memory) {
        self.memories.of(&memory.tenant).into_iter().for_each(|former| memory.add(former));
    }

    /// Packets that former chains have dropped, by reason, whatever chains exist now.
    pub(super) fn drops(&self) -> BTreeMap<String, u64> {
        let mut sum = api::Chain::default();
        self.chains.known.values().map(|(_, former)| former).chain(self.chains.rest.values()).for_each(|former| sum.add(former));
        self.live_chains.iter().for_each(|(_, counters)| sum.add(&of_chain(counters)));
        sum.drops
    }

    /// Packets that were dropped at former ports, whether a port of their name exists or not: those
    /// that the port did not take, and others by reason.
    pub(super) fn port_drops(&self) -> (u64, BTreeMap<String, u64>) {
        let mut sum = api::Port::default();
        self.ports.known.values().map(|(_, former)| former).chain(self.ports.rest.values()).for_each(|former| sum.add(former));
        self.live_queues.iter().for_each(|(_, queue)| sum.add(&of_queue(queue)));
        (sum.tx_drops, sum.drops)
    }

    /// The counts that no report of `stats` contains, because no object of their name exists.
    pub(super) fn report(&self, stats: &api::Stats) -> api::Gone {
        let mut chain = api::Chain::default();
        let is_chain = |name: &str| stats.chains.iter().any(|there| there.name == name);
        self.chains.rest.values().for_each(|former| chain.add(former));
        self.chains.known.iter().filter(|(name, _)| !is_chain(name)).for_each(|(_, (_, former))| chain.add(former));
        self.live_chains.iter().filter(|(name, _)| !is_chain(name)).for_each(|(_, counters)| chain.add(&of_chain(counters)));
        let mut port = api::Port::default();
        let is_port = |name: &str| stats.ports.iter().any(|there| there.name == name);
        self.ports.rest.values().for_each(|former| port.add(former));
        self.ports.known.iter().filter(|(name, _)| !is_port(name)).for_each(|(_, (_, former))| port.add(former));
        self.live_queues.iter().filter(|(name, _)| !is_port(name)).for_each(|(_, queue)| port.add(&of_queue(queue)));
        let there: std::collections::HashSet<&str> = stats.nfs.iter().map(|nf| nf.name.as_str()).collect();
        let mut nfs: BTreeMap<String, api::Nf> = BTreeMap::new();
        let gone = self.nfs.known.iter().filter(|(name, _)| !there.contains(name.as_str())).map(|(_, (_, former))| former);
        for OfService(service, counted) in gone.chain(self.nfs.rest.values()) {
            nfs.entry(service.clone()).or_default().add(counted);
        }
        let mut pools = api::Pool::default();
        let is_pool = |name: &str| stats.status.pools.iter().any(|there| there.service == name);
        self.pools.rest.values().for_each(|former| pools.add(former));
        self.pools.known.iter().filter(|(name, _)| !is_pool(name)).for_each(|(_, (_, former))| pools.add(former));
        api::Gone {
            chains: chain.counts(),
            ports: port.counts(),
            drops: chain.drops,
            wasted: chain.wasted,
            latency_ns: chain.latency_ns,
            port_drops: port.drops,
            details: port.details,
            nfs,
            pools,
            ..api::Gone::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_counted_on_and_only_once() {
        let counters: Arc<[ChainCounters]> = std::iter::once(ChainCounters::default()).collect();
        let queue = Arc::new(QueueCounters::default());
        let mut past = Past::default();
        counters[0].api.entry_packets.add(9);
        counters[0].drops[DropReason::NfDied as usize].add(3);
        past.chain("c", &counters, api::Distribution::default());
        past.port("p", std::slice::from_ref(&queue), BTreeMap::from([("lost".into(), 2.0)]));
        // Packets that were inside.
        counters[0].drops[DropReason::NfDied as usize].add(4);
        counters[0].api.exit_packets.add(2);
        queue.api.tx_drops.add(5);
        queue.no_link.add(4);
        queue.api.tx_packets.add(1);
        let told = api::Gone {
            chains: api::ChainCounts { entry_packets: 9, exit_packets: 2, ..api::ChainCounts::default() },
            ports: api::PortCounts { tx_packets: 1, tx_drops: 5, ..api::PortCounts::default() },
            drops: [("nf_died".to_string(), 7)].into(),
            wasted: 7,
            port_drops: [("no_link".to_string(), 4)].into(),
            details: [("lost".to_string(), 2.0)].into(),
            ..api::Gone::default()
        };
        let none = api::Stats::default();
        assert_eq!(past.report(&none), told);
        drop((counters, queue));
        past.settle();
        assert!(past.live_chains.is_empty() && past.live_queues.is_empty());
        assert_eq!(past.report(&none), told);
        assert_eq!((past.drops(), past.port_drops().0), (told.drops, told.ports.tx_drops));
        // New objects of these names continue the counts, which are not reported twice.
        assert_eq!((past.of_chain("c").entry_packets, past.of_port("p").tx_packets, past.of_chain("d").entry_packets), (9, 1, 0));
        let chains = vec![api::Chain { name: "c".into(), ..api::Chain::default() }];
        let ports = vec![api::Port { name: "p".into(), ..api::Port::default() }];
        assert_eq!(past.report(&api::Stats { chains, ports, ..api::Stats::default() }), api::Gone::default());
        assert_eq!((past.drops()["nf_died"], past.port_drops().0), (7, 5));
    }

    #[test]
    fn names_that_are_forgotten_stay_in_the_sums() {
        let mut past = Past::default();
        let nf = |n: usize| api::Nf { name: format!("ids.{n}"), service: "ids".into(), rx_packets: 1, ..api::Nf::default() };
        (0..MOST + 10).for_each(|n| past.nf(nf(n)));
        past.nf(nf(10));
        assert!(past.of_nf("ids.9").is_none());
        assert_eq!((past.of_nf("ids.10").unwrap().rx_packets, past.nfs.known.len()), (2, MOST));
        let gone = past.report(&api::Stats::default());
        assert_eq!(gone.nfs["ids"].rx_packets, MOST as u64 + 11);
        let nfs = vec![nf(10)];
        assert_eq!(past.report(&api::Stats { nfs, ..api::Stats::default() }).nfs["ids"].rx_packets, MOST as u64 + 9);
    }
}
