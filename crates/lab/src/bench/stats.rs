//! The difference of two readings of the daemon's counters.
//!
//! A *window* is the time between two readings. All its values are counted within it, so warm-up
//! does not show.

use std::collections::BTreeMap;

use sluice_api::drops;
use sluice_api::model::{Distribution, Nf, Pool, Stats};
use sluice_shm::histogram::Histogram;

/// Values added to a distribution since `then`, an earlier state of it.
pub fn since(now: &Distribution, then: &Distribution) -> Histogram {
    let before: BTreeMap<u64, u64> = then.buckets.iter().copied().collect();
    let mut out = Histogram::default();
    for (lowest, n) in &now.buckets {
        out.record_many(*lowest, n.saturating_sub(before.get(lowest).copied().unwrap_or(0)));
    }
    out
}

/// Two readings.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    pub before: &'a Stats,
    pub after: &'a Stats,
}

impl Window<'_> {
    pub fn seconds(&self) -> f64 {
        (self.after.time_ns.saturating_sub(self.before.time_ns)).max(1) as f64 / 1e9
    }

    fn per_s(&self, of: impl Fn(&Stats) -> u64) -> f64 {
        of(self.after).saturating_sub(of(self.before)) as f64 / self.seconds()
    }

    /// Packets per second that a port received.
    pub fn rx_pps(&self, port: &str) -> f64 {
        self.per_s(|s| s.ports.iter().filter(|p| p.name == port).map(|p| p.rx_packets).sum())
    }

    /// Packets per second that a port sent.
    pub fn tx_pps(&self, port: &str) -> f64 {
        self.per_s(|s| s.ports.iter().filter(|p| p.name == port).map(|p| p.tx_packets).sum())
    }

    /// Bits per second that a port sent.
    pub fn tx_bps(&self, port: &str) -> f64 {
        8.0 * self.per_s(|s| s.ports.iter().filter(|p| p.name == port).map(|p| p.tx_bytes).sum())
    }

    /// Packets per second that were refused at the entry.
    pub fn entry_drop_pps(&self) -> f64 {
        self.per_s(|s| s.drops.get("entry").copied().unwrap_or(0))
    }

    /// Packets per second that were dropped after an NF had worked on them.
    pub fn wasted_pps(&self) -> f64 {
        self.per_s(|s| s.drops.iter().filter(|(why, _)| drops::is_wasted(why)).map(|(_, n)| n).sum())
    }

    /// Packets per second that were dropped, by reason; reasons without any are left out.
    pub fn drops_pps(&self) -> BTreeMap<String, f64> {
        let rates = self.after.drops.keys().map(|why| (why.clone(), self.per_s(|s| s.drops.get(why).copied().unwrap_or(0))));
        rates.filter(|(_, pps)| *pps > 0.0).collect()
    }

    /// Packets per second that left a chain at its end.
    pub fn exit_pps(&self, chain: &str) -> f64 {
        self.per_s(|s| s.chains.iter().filter(|c| c.name == chain).map(|c| c.exit_packets).sum())
    }

    /// Packets per second that came back from all NFs of a service.
    pub fn processed_pps(&self, service: &str) -> f64 {
        self.per_s(|s| s.nfs.iter().filter(|nf| nf.service == service).map(|nf| nf.tx_packets).sum())
    }

    /// Packets per second that `service` returned for `next` and that did not get there.
    ///
    /// Valid where the two follow each other in every chain with either.
    pub fn lost_between_pps(&self, service: &str, next: &str) -> f64 {
        let of = |name: &str, count: fn(&Nf) -> u64| self.per_s(|s| s.nfs.iter().filter(|nf| nf.service == name).map(count).sum());
        let went_on = of(service, |nf| nf.tx_packets) - of(service, |nf| nf.verdict_drops);
        (went_on - of(next, |nf| nf.rx_packets)).max(0.0)
    }

    /// Time per round with packets, over all packet threads.
    pub fn rounds(&self) -> Histogram {
        let mut out = Histogram::default();
        let threads = self.before.status.threads.iter().zip(&self.after.status.threads);
        threads.for_each(|(then, now)| out.merge(&since(&now.round_ns, &then.round_ns)));
        out
    }

    /// Time from entry to exit of a chain's packets.
    pub fn latency(&self, chain: &str) -> Histogram {
        let find = |s: &Stats| s.chains.iter().find(|c| c.name == chain).map(|c| c.latency_ns.clone()).unwrap_or_default();
        since(&find(self.after), &find(self.before))
    }

    /// A pool before and after.
    pub fn pool(&self, service: &str) -> Option<(&Pool, &Pool)> {
        let find = |pools: &[Pool]| pools.iter().position(|pool| pool.service == service);
        let (before, after) = (&self.before.status.pools, &self.after.status.pools);
        Some((&before[find(before)?], &after[find(after)?]))
    }

    /// Each NF before and after, if it is the same process.
    pub fn nfs(&self) -> impl Iterator<Item = (&Nf, &Nf)> {
        self.after.nfs.iter().filter_map(|b| Some((self.before.nfs.iter().find(|a| a.name == b.name && a.pid == b.pid)?, b)))
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json, to_value};
    use sluice_api::model::{Chain, Gone, Memory, Port, Service, Thread};

    use super::*;

    /// Counters of which only some are given; the others are 0.
    pub fn partial(some: Value) -> Stats {
        fn fill(name: &str, some: Value, usual: Value) -> Value {
            let of_each = match name {
                "ports" => to_value(Port::default()),
                "nfs" => to_value(Nf::default()),
                "chains" => to_value(Chain::default()),
                "services" => to_value(Service::default()),
                "threads" => to_value(Thread::default()),
                "pools" => to_value(Pool::default()),
                "memories" => to_value(Memory::default()),
                "gone" => to_value(Gone::default()),
                _ if name.ends_with("_ns") => to_value(Distribution::default()),
                _ => Ok(Value::Null),
            };
            let of_each = of_each.unwrap();
            match (some, usual) {
                (Value::Object(some), Value::Object(mut all)) => {
                    for (key, value) in some {
                        let usual = all.remove(&key).unwrap_or(Value::Null);
                        let value = fill(&key, value, usual);
                        all.insert(key, value);
                    }
                    Value::Object(all)
                }
                (some @ Value::Object(_), Value::Null) if !of_each.is_null() => fill("", some, of_each),
                (Value::Array(some), _) if of_each.is_object() => {
                    Value::Array(some.into_iter().map(|one| fill("", one, of_each.clone())).collect())
                }
                (some, _) => some,
            }
        }
        serde_json::from_value(fill("", some, to_value(Stats::default()).unwrap())).unwrap()
    }

    fn stats(time_ns: u64, n: u64) -> Stats {
        partial(json!({
            "time_ns": time_ns,
            "ports": [{"name": "in", "rx_packets": 10 * n}, {"name": "out", "tx_packets": 4 * n, "tx_bytes": 240 * n, "kind": "sink"}],
            "nfs": [{"name": "b1.0", "service": "b1", "pid": 7, "wakes": n, "tx_packets": 5 * n, "service_ns": {"p50": 1}},
                {"name": "b2.0", "service": "b2", "pid": 9, "wakes": n, "rx_packets": 3 * n}],
            "chains": [{"name": "c", "exit_packets": 4 * n, "latency_ns": {"count": n, "buckets": [[8, n], [1024, 1]]}}],
            "drops": {"entry": 3 * n, "verdict": n, "ring_full": 2 * n, "port_tx": n, "no_rule": 9 * n},
        }))
    }

    #[test]
    fn a_window_counts_what_came_between() {
        let (before, after) = (stats(1_000_000_000, 100), stats(3_000_000_000, 300));
        let window = Window { before: &before, after: &after };
        assert_eq!(window.seconds(), 2.0);
        assert_eq!(window.rx_pps("in"), 1000.0);
        assert_eq!(window.tx_pps("out"), 400.0);
        assert_eq!(window.tx_pps("other"), 0.0);
        assert_eq!(window.tx_bps("out"), 192_000.0);
        assert_eq!(window.entry_drop_pps(), 300.0);
        assert_eq!(window.wasted_pps(), 300.0, "ring_full and port_tx");
        assert_eq!(window.drops_pps()["no_rule"], 900.0);
        let latency = window.latency("c");
        assert_eq!(latency.count(), 200, "the slow one was there before");
        assert_eq!(latency.quantile(0.999), latency.quantile(0.5));
        assert_eq!(window.latency("other").count(), 0);
        assert_eq!(window.nfs().map(|(a, b)| b.wakes - a.wakes).collect::<Vec<_>>(), [200, 200]);
        assert_eq!((window.exit_pps("c"), window.exit_pps("other")), (400.0, 0.0));
        assert_eq!(window.processed_pps("b1"), 500.0);
        assert_eq!((window.lost_between_pps("b1", "b2"), window.lost_between_pps("b2", "b1")), (200.0, 0.0));
    }

    #[test]
    fn an_nf_that_was_started_again_is_not_compared_with_itself() {
        let (before, mut after) = (stats(0, 1), stats(1, 2));
        after.nfs[0].pid = Some(8);
        assert_eq!(Window { before: &before, after: &after }.nfs().count(), 1);
    }
}
