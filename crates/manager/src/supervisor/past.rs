//! What chains and ports that are gone have counted: totals count for the daemon's whole life, and
//! never go back.
//!
//! Packets inside follow a chain that was removed to its end, and are counted there. So its counters are kept as they are until nobody
//! else has them, and only their sum after that.

use std::sync::Arc;

use crate::chain::{ChainCounters, Counter, Drop};
use crate::control::model as api;
use crate::worker::QueueCounters;

/// Counters of what is gone.
#[derive(Debug, Default)]
pub(super) struct Past {
    chains: Vec<Arc<[ChainCounters]>>,
    queues: Vec<Arc<QueueCounters>>,
    /// Sums of those that nobody counts with any more.
    settled: api::Gone,
}

fn add_chain(sums: &mut api::Gone, counters: &[ChainCounters]) {
    let sum = |of: fn(&ChainCounters) -> &Counter| counters.iter().map(|c| of(c).get()).sum::<u64>();
    sums.entry_packets += sum(|c| &c.entered);
    sums.exit_packets += sum(|c| &c.left);
    sums.originated_packets += sum(|c| &c.originated);
    for why in Drop::ALL {
        let dropped: u64 = counters.iter().map(|c| c.drops[why as usize].get()).sum();
        if dropped > 0 {
            *sums.drops.entry(why.name().into()).or_default() += dropped;
        }
    }
}

fn add_queue(sums: &mut api::Gone, queue: &QueueCounters) {
    sums.tx_packets += queue.tx_packets.get();
    sums.tx_drops += queue.tx_drops.get();
    for (why, n) in queue.own_drops().into_iter().filter(|(_, n)| *n > 0) {
        *sums.port_drops.entry(why.into()).or_default() += n;
    }
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
        let Self { chains, queues, settled } = self;
        chains.retain(|counters| {
            let in_use = Arc::strong_count(counters) > 1;
            if !in_use {
                add_chain(settled, counters);
            }
            in_use
        });
        queues.retain(|queue| {
            let in_use = Arc::strong_count(queue) > 1;
            if !in_use {
                add_queue(settled, queue);
            }
            in_use
        });
    }

    /// What they have counted.
    pub(super) fn report(&self) -> api::Gone {
        let mut sums = self.settled.clone();
        self.chains.iter().for_each(|counters| add_chain(&mut sums, counters));
        self.queues.iter().for_each(|queue| add_queue(&mut sums, queue));
        sums
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
        counters[0].entered.add(9);
        counters[0].drops[Drop::NfDied as usize].add(3);
        past.chain(&counters);
        past.port(std::slice::from_ref(&queue));
        // Packets that were inside.
        counters[0].drops[Drop::NfDied as usize].add(4);
        counters[0].left.add(2);
        queue.tx_drops.add(5);
        queue.no_link.add(4);
        queue.tx_packets.add(1);
        let told = api::Gone {
            entry_packets: 9,
            exit_packets: 2,
            drops: [("nf_died".to_string(), 7)].into(),
            tx_packets: 1,
            tx_drops: 5,
            port_drops: [("no_link".to_string(), 4)].into(),
            ..api::Gone::default()
        };
        assert_eq!(past.report(), told);
        drop((counters, queue));
        past.settle();
        assert!(past.chains.is_empty() && past.queues.is_empty());
        assert_eq!(past.report(), told);
    }
}
