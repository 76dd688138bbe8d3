//! What chains and ports that are gone have dropped: totals count for the daemon's whole life, and never go back.
//!
//! Packets inside follow a chain that was removed to its end, and are counted there. So its counters are kept as they are until nobody
//! else has them, and only their sum after that.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chain::{ChainCounters, Drop};
use crate::worker::QueueCounters;

/// Counters of what is gone.
#[derive(Debug, Default)]
pub(super) struct Past {
    chains: Vec<Arc<[ChainCounters]>>,
    queues: Vec<Arc<QueueCounters>>,
    /// Sums of those that nobody counts with any more.
    drops: [u64; Drop::ALL.len()],
    tx_drops: u64,
}

fn dropped(counters: &[ChainCounters], why: Drop) -> u64 {
    counters.iter().map(|c| c.drops[why as usize].get()).sum()
}

impl Past {
    /// A chain is gone.
    pub(super) fn chain(&mut self, counters: &Arc<[ChainCounters]>) {
        self.chains.push(counters.clone());
        self.settle();
    }

    /// A port is gone.
    pub(super) fn port(&mut self, queues: &[Arc<QueueCounters>]) {
        self.queues.extend(queues.iter().cloned());
        self.settle();
    }

    /// Nobody can get a counter again that only this has: its value stays.
    fn settle(&mut self) {
        let Self { chains, queues, drops, tx_drops } = self;
        chains.retain(|counters| {
            let in_use = Arc::strong_count(counters) > 1;
            if !in_use {
                Drop::ALL.iter().for_each(|why| drops[*why as usize] += dropped(counters, *why));
            }
            in_use
        });
        queues.retain(|queue| {
            let in_use = Arc::strong_count(queue) > 1;
            *tx_drops += if in_use { 0 } else { queue.tx_drops.get() };
            in_use
        });
    }

    /// Adds what was dropped, by reason.
    pub(super) fn add_to(&self, drops: &mut BTreeMap<String, u64>) {
        let mut more = |name: &str, n: u64| *drops.entry(name.into()).or_default() += n;
        for why in Drop::ALL {
            more(why.name(), self.drops[why as usize] + self.chains.iter().map(|c| dropped(c, why)).sum::<u64>());
        }
        more("port_tx", self.tx_drops + self.queues.iter().map(|q| q.tx_drops.get()).sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(past: &Past, why: &str) -> u64 {
        let mut drops = BTreeMap::from([(why.to_string(), 100)]);
        past.add_to(&mut drops);
        drops[why]
    }

    #[test]
    fn what_is_gone_is_counted_on_and_only_once() {
        let counters: Arc<[ChainCounters]> = std::iter::once(ChainCounters::default()).collect();
        let queue = Arc::new(QueueCounters::default());
        let mut past = Past::default();
        counters[0].drops[Drop::NfDied as usize].add(3);
        past.chain(&counters);
        past.port(std::slice::from_ref(&queue));
        // Packets that were inside.
        counters[0].drops[Drop::NfDied as usize].add(4);
        queue.tx_drops.add(5);
        assert_eq!((told(&past, "nf_died"), told(&past, "port_tx"), told(&past, "verdict")), (107, 105, 100));
        drop((counters, queue));
        past.settle();
        assert!(past.chains.is_empty() && past.queues.is_empty());
        assert_eq!((told(&past, "nf_died"), told(&past, "port_tx"), told(&past, "verdict")), (107, 105, 100));
    }
}
