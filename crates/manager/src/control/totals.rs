//! Counters that never go back.
//!
//! # Problem
//! Ports, chains, NFs, pools and rules come and go, and their counts must not be lost: a monitoring
//! system takes a sum that falls for a start from 0, and one that jumps for a burst.
//!
//! # The rule
//! - An object's counters are reported under its name while it exists, and not after its removal.
//! - A new object of a former name continues the former one's counters.
//! - The sum over all objects of a kind, with those that are gone, is reported too: the present
//!   objects and [`Gone`](sluice_api::model::Gone) together, and in the text for Prometheus a
//!   family without the object's label (`sluice_port_rx_packets_total` and
//!   `sluice_ports_rx_packets_total`); for NFs a family by service alone
//!   (`sluice_service_rx_packets_total`), also when that is gone.
//! - A rule without a name counts under its place in the order.
//!
//! # Limits
//! The daemon remembers [`MOST`] names of each kind that are gone, and forgets the oldest beyond
//! that: their counts stay in the sums, and a later object of such a name begins at 0.

use std::collections::BTreeMap;

use sluice_api::counted::Counters;
use sluice_api::model::{Chain, Distribution, Memory, Nf, NfForeign, Pool, Port, Woken};

/// Most former names of a kind that are remembered.
pub const MOST: usize = 1024;

/// Details of ports that are not counters: they may fall.
const GAUGES: [&str; 3] = ["packets_in_file", "link_up", "link_mbps"];

/// Details of a port that are quantiles of its measured latency, with the quantile of each.
pub const QUANTILES: [(&str, f64); 4] =
    [("latency_ns_p50", 0.5), ("latency_ns_p90", 0.9), ("latency_ns_p99", 0.99), ("latency_ns_p999", 0.999)];

pub fn is_counter(detail: &str) -> bool {
    !GAUGES.contains(&detail) && QUANTILES.iter().all(|(name, _)| *name != detail)
}

/// A set of counters.
pub trait Counted {
    /// Adds another's counters. Other fields stay as they are.
    fn add(&mut self, more: &Self);
}

fn more(sum: &mut u64, n: u64) {
    // An NF may write any count into its page.
    *sum = sum.saturating_add(n);
}

fn add_all(sums: &mut BTreeMap<String, u64>, all: &BTreeMap<String, u64>) {
    all.iter().for_each(|(name, n)| more(sums.entry(name.clone()).or_default(), *n));
}

impl Counted for Distribution {
    fn add(&mut self, others: &Self) {
        if others.count == 0 {
            return;
        }
        if others.buckets.is_empty() || self.count > 0 && self.buckets.is_empty() {
            more(&mut self.count, others.count);
            more(&mut self.sum, others.sum);
            return;
        }
        let mut all: BTreeMap<u64, u64> = self.buckets.iter().copied().collect();
        others.buckets.iter().for_each(|(lowest, n)| more(all.entry(*lowest).or_default(), *n));
        *self = Self::from_buckets(all.into_iter().collect());
    }
}

impl Counted for Chain {
    fn add(&mut self, former: &Self) {
        self.add_counters(former);
        add_all(&mut self.drops, &former.drops);
        self.latency_ns.add(&former.latency_ns);
    }
}

impl Counted for Port {
    fn add(&mut self, former: &Self) {
        self.add_counters(former);
        add_all(&mut self.drops, &former.drops);
        for (name, n) in former.details.iter().filter(|(name, _)| is_counter(name)) {
            *self.details.entry(name.clone()).or_default() += n;
        }
    }
}

impl Counted for Memory {
    fn add(&mut self, former: &Self) {
        more(&mut self.gate_packets, former.gate_packets);
        more(&mut self.gate_bytes, former.gate_bytes);
        more(&mut self.crossing_packets, former.crossing_packets);
        more(&mut self.crossing_bytes, former.crossing_bytes);
        more(&mut self.starved, former.starved);
    }
}

impl Counted for Woken {
    fn add(&mut self, former: &Self) {
        more(&mut self.early, former.early);
        more(&mut self.threshold, former.threshold);
        more(&mut self.timer, former.timer);
        more(&mut self.urgent, former.urgent);
    }
}

impl Counted for NfForeign {
    fn add(&mut self, former: &Self) {
        self.add_counters(former);
    }
}

impl Counted for Nf {
    fn add(&mut self, former: &Self) {
        self.add_counters(former);
        self.sched.add_counters(&former.sched);
        self.service_ns.add(&former.service_ns);
        if let Some(foreign) = &former.foreign {
            self.foreign.get_or_insert_default().add(foreign);
        }
        if let Some(woken) = &former.woken {
            self.woken.get_or_insert_default().add(woken);
        }
        // Sums of several groups, whose parts differ, have none.
        let own = self.parts.iter_mut().zip(&former.parts).filter(|(own, former)| own.service == former.service);
        own.for_each(|(own, former)| own.add_counters(former));
    }
}

impl Counted for Pool {
    fn add(&mut self, former: &Self) {
        self.add_counters(former);
        self.setup_ns.add(&former.setup_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_added_and_nothing_else() {
        let details = |lost: f64, link: f64| BTreeMap::from([("lost".to_string(), lost), ("link_up".to_string(), link)]);
        let former = Port { rx_packets: 5, queues: 3, details: details(2.0, 1.0), ..Port::default() };
        let mut port = Port { rx_packets: 1, queues: 1, details: details(3.0, 0.0), ..Port::default() };
        port.add(&former);
        assert_eq!((port.rx_packets, port.queues, port.details), (6, 1, details(5.0, 0.0)));
        let mut nf = Nf { queue: 1, sleeps: 7, ..Nf::default() };
        nf.add(&Nf {
            queue: 9,
            sleeps: u64::MAX,
            foreign: Some(NfForeign { entered: 4, ..NfForeign::default() }),
            ..Nf::default()
        });
        assert_eq!((nf.queue, nf.sleeps, nf.foreign.unwrap().entered), (1, u64::MAX, 4));
    }

    #[test]
    fn times_are_added_bucket_by_bucket() {
        let mut first = Distribution::from_buckets(vec![(16, 1), (64, 2)]);
        let second = Distribution::from_buckets(vec![(64, 1), (1024, 3)]);
        let sum = first.sum + second.sum;
        first.add(&second);
        assert_eq!((first.buckets.clone(), first.count, first.sum), (vec![(16, 1), (64, 3), (1024, 3)], 7, sum));
        first.add(&Distribution::default());
        assert_eq!(first.count, 7);
    }
}
