//! What an experiment reads of `GET /v1/stats`, and the difference of two readings.
//!
//! Terms: a *window* is the time between two readings; everything that is told of it is counted in it, so that warming up does not
//! show. Fields that a daemon does not send are as if nothing had been counted.

use std::collections::BTreeMap;

use serde::Deserialize;
use sluice_shm::histogram::Histogram;

/// Everything that is counted, at one moment.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Monotonic clock.
    pub time_ns: u64,
    /// The daemon.
    pub status: Status,
    /// Ports.
    pub ports: Vec<Port>,
    /// NFs.
    pub nfs: Vec<Nf>,
    /// Chains.
    pub chains: Vec<Chain>,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Services.
    pub services: Vec<Service>,
    /// What chains and ports have counted that are not there any more.
    pub gone: Gone,
}

/// What chains and ports have counted that are not there any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Gone {
    /// Packets let into chains.
    pub entry_packets: u64,
    /// Packets that left them.
    pub exit_packets: u64,
    /// Packets that programs on their way have put in.
    pub originated_packets: u64,
    /// Packets that did not leave, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets out of ports.
    pub tx_packets: u64,
}

/// A service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name.
    pub name: String,
    /// Names of its instances.
    pub instances: Vec<String>,
    /// The process that its NFs are forked from, if there is one.
    pub zygote: Option<Zygote>,
}

/// A process that NFs are forked from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Zygote {
    /// Its process, while there is one.
    pub pid: Option<u32>,
}

/// Frames of packet memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Frames {
    /// All.
    pub total: u64,
    /// Those that no packet is in.
    pub free: u64,
    /// The others.
    pub in_use: u64,
}

/// The packet memory of a tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The tenant, or `ingress`, or `former`.
    pub tenant: String,
    /// Its frames.
    pub frames: u64,
    /// Those in pools, each counted where it lies.
    pub free: u64,
    /// Those that NFs have.
    pub in_use: u64,
}

/// The instances of a service that has one for each flow.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// The service.
    pub service: String,
    /// Instances.
    pub size: u32,
    /// Instances that wait for a flow.
    pub idle: u64,
    /// Flows that were given an instance.
    pub activations: u64,
    /// Instances that became idle again.
    pub ended: u64,
    /// Flows that the shared service got instead.
    pub fallbacks: u64,
    /// Packets dropped because no instance was idle.
    pub drops: u64,
    /// Time from the look at the first packet of a flow until it could go to its instance.
    pub setup_ns: Distribution,
}

/// The daemon.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Whether packet memory stands on hugepages.
    pub hugepages: bool,
    /// Its packet threads.
    pub threads: Vec<Thread>,
    /// Flows that the flow table remembers.
    pub flows: u64,
    /// Frames of packet memory.
    pub frames: Frames,
    /// The same by tenant.
    pub memories: Vec<Memory>,
    /// Pools of instances.
    pub pools: Vec<Pool>,
    /// Cores whose NFs have turns from outside.
    pub schedules: Vec<Schedule>,
    /// Share of its core that the controller uses, 0 to 100, where the daemon says so.
    #[serde(rename = "tuning_percent")]
    pub controller_busy_percent: Option<f64>,
}

/// A core whose NFs have turns from outside.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Schedule {
    /// The longest wait of an NF with packets between two changes of turns.
    pub wait_ns: Distribution,
}

/// A packet thread of the daemon.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// Share of its time in which it had packets to move, 0 to 100.
    pub busy_percent: f64,
    /// Time for a round with packets.
    pub round_ns: Distribution,
}

/// A port.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Name.
    pub name: String,
    /// Packets in.
    pub rx_packets: u64,
    /// Packets out.
    pub tx_packets: u64,
    /// What its kind of port counts besides.
    pub details: BTreeMap<String, f64>,
}

/// One instance of a service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Nf {
    /// Name.
    pub name: String,
    /// Its service.
    pub service: String,
    /// Its process.
    pub pid: Option<u32>,
    /// `running` and others.
    pub state: String,
    /// Times that it was started again.
    pub restarts: u64,
    /// Times that it was stopped for its violations, or because it stood still.
    pub stops: u64,
    /// Packets given to it.
    pub rx_packets: u64,
    /// Packets taken from it.
    pub tx_packets: u64,
    /// Packets that it wanted dropped.
    pub verdict_drops: u64,
    /// Packets given to it and not yet taken from it.
    pub queue: u64,
    /// Its core.
    pub core: u32,
    /// What goes through it, if it is a program that knows nothing of Sluice.
    pub foreign: Option<NfForeign>,
    /// What is measured of its load.
    pub sched: NfSched,
    /// Share of its core, 0 to 100.
    pub cpu_percent: f64,
    /// Time for a burst.
    pub service_ns: Distribution,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Times that it started the next NF on its core.
    pub hand_overs: u64,
    /// Times that the manager rang its doorbell.
    pub wakes: u64,
    /// Frames that it owns.
    pub frames_held: u64,
    /// From its spawn until it was let in.
    pub started_ns: Option<u64>,
    /// From its spawn until its first packet came back.
    pub first_packet_ns: Option<u64>,
    /// From the daemon's news of the end of its last process until its frames were back.
    pub reclaim_ns: Option<u64>,
}

/// What goes through a program that knows nothing of Sluice.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NfForeign {
    /// Packets that went in.
    pub entered: u64,
    /// Packets that came out.
    pub returned: u64,
    /// Of these, the ones that are none of those that went in, or are so no more.
    pub originated: u64,
    /// Packets that have not come out in time.
    pub not_back: u64,
    /// Packets that are in there.
    pub inside: u64,
}

/// What is measured of an NF's load.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct NfSched {
    /// Packets per second that want to come to it.
    pub arrival_pps: f64,
    /// Nanoseconds a packet, by the NF's own word; 0 until known.
    pub service_ns: f64,
}

/// A chain.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// Its services.
    pub services: Vec<String>,
    /// Packets let in.
    pub entry_packets: u64,
    /// Packets that left.
    pub exit_packets: u64,
    /// Packets that programs on its way have put in.
    pub originated_packets: u64,
    /// Packets that did not leave, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Its egress.
    pub egress: String,
    /// From entry to exit.
    pub latency_ns: Distribution,
}

/// Times, as smallest time and count of each bucket.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// Smallest time and count.
    pub buckets: Vec<(u64, u64)>,
}

impl Distribution {
    /// What was measured since `earlier`.
    pub fn since(&self, earlier: &Self) -> Histogram {
        let then: BTreeMap<u64, u64> = earlier.buckets.iter().copied().collect();
        let mut out = Histogram::default();
        for (lowest, n) in &self.buckets {
            out.record_many(*lowest, n.saturating_sub(then.get(lowest).copied().unwrap_or(0)));
        }
        out
    }
}

/// Drop reasons that are no wasted work: no NF had seen the packet, or an NF wanted it so.
const NOT_WASTED: [&str; 7] = ["entry", "nf_down", "verdict", "policed", "no_rule", "none_idle", "no_path"];

/// Two readings and what came between.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// The earlier one.
    pub before: &'a Stats,
    /// The later one.
    pub after: &'a Stats,
}

impl Window<'_> {
    /// Its length in seconds.
    pub fn seconds(&self) -> f64 {
        (self.after.time_ns.saturating_sub(self.before.time_ns)).max(1) as f64 / 1e9
    }

    fn per_s(&self, of: impl Fn(&Stats) -> u64) -> f64 {
        of(self.after).saturating_sub(of(self.before)) as f64 / self.seconds()
    }

    /// Packets per second that a port took in.
    pub fn rx_pps(&self, port: &str) -> f64 {
        self.per_s(|s| s.ports.iter().filter(|p| p.name == port).map(|p| p.rx_packets).sum())
    }

    /// Packets per second that a port sent out.
    pub fn tx_pps(&self, port: &str) -> f64 {
        self.per_s(|s| s.ports.iter().filter(|p| p.name == port).map(|p| p.tx_packets).sum())
    }

    /// Packets per second that were refused at the entry.
    pub fn entry_drop_pps(&self) -> f64 {
        self.per_s(|s| s.drops.get("entry").copied().unwrap_or(0))
    }

    /// Packets per second that were dropped after an NF had worked on them.
    pub fn wasted_pps(&self) -> f64 {
        self.per_s(|s| s.drops.iter().filter(|(why, _)| !NOT_WASTED.contains(&why.as_str())).map(|(_, n)| n).sum())
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

    /// Packets per second that came back from `service` to go on to `next`, and did not get there. Right where the two follow each
    /// other in every chain that has either.
    pub fn lost_between_pps(&self, service: &str, next: &str) -> f64 {
        let of = |name: &str, count: fn(&Nf) -> u64| self.per_s(|s| s.nfs.iter().filter(|nf| nf.service == name).map(count).sum());
        let went_on = of(service, |nf| nf.tx_packets) - of(service, |nf| nf.verdict_drops);
        (went_on - of(next, |nf| nf.rx_packets)).max(0.0)
    }

    /// Time for a round with packets of all packet threads.
    pub fn rounds(&self) -> Histogram {
        let mut out = Histogram::default();
        let threads = self.before.status.threads.iter().zip(&self.after.status.threads);
        threads.for_each(|(then, now)| out.merge(&now.round_ns.since(&then.round_ns)));
        out
    }

    /// Time from entry to exit of a chain's packets.
    pub fn latency(&self, chain: &str) -> Histogram {
        let find = |s: &Stats| s.chains.iter().find(|c| c.name == chain).map(|c| c.latency_ns.clone()).unwrap_or_default();
        find(self.after).since(&find(self.before))
    }

    /// A pool as it was before and is after.
    pub fn pool(&self, service: &str) -> Option<(&Pool, &Pool)> {
        let find = |pools: &[Pool]| pools.iter().position(|pool| pool.service == service);
        let (before, after) = (&self.before.status.pools, &self.after.status.pools);
        Some((&before[find(before)?], &after[find(after)?]))
    }

    /// Each NF as it was before and after, if it was there both times.
    pub fn nfs(&self) -> impl Iterator<Item = (&Nf, &Nf)> {
        self.after.nfs.iter().filter_map(|b| Some((self.before.nfs.iter().find(|a| a.name == b.name && a.pid == b.pid)?, b)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stats(time_ns: u64, n: u64) -> Stats {
        serde_json::from_value(json!({
            "time_ns": time_ns,
            "ports": [{"name": "in", "rx_packets": 10 * n}, {"name": "out", "tx_packets": 4 * n, "kind": "sink"}],
            "nfs": [{"name": "b1.0", "service": "b1", "pid": 7, "wakes": n, "tx_packets": 5 * n, "service_ns": {"p50": 1}},
                {"name": "b2.0", "service": "b2", "pid": 9, "wakes": n, "rx_packets": 3 * n}],
            "chains": [{"name": "c", "exit_packets": 4 * n, "latency_ns": {"count": n, "buckets": [[8, n], [1024, 1]]}}],
            "drops": {"entry": 3 * n, "verdict": n, "ring_full": 2 * n, "port_tx": n, "no_rule": 9 * n},
        }))
        .unwrap()
    }

    #[test]
    fn a_window_counts_what_came_between() {
        let (before, after) = (stats(1_000_000_000, 100), stats(3_000_000_000, 300));
        let window = Window { before: &before, after: &after };
        assert_eq!(window.seconds(), 2.0);
        assert_eq!(window.rx_pps("in"), 1000.0);
        assert_eq!(window.tx_pps("out"), 400.0);
        assert_eq!(window.tx_pps("other"), 0.0);
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
