//! Which nodes are served: the leases of their agents.
//!
//! An agent renews its lease as long as it works. When a lease was last seen to change counts by
//! the operator's own clock, so clocks need not agree. What seems silent is read once before it
//! counts ([`Agents::silence`] comes after a list): it may be the watch that is silent. An
//! operator that begins to lead trusts leases anew: it may have seen nothing for long.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::ResourceExt;
use sluice_cluster_types::labels;

/// Where a lease does not say how long it lasts.
const LASTS: Duration = Duration::from_secs(40);

#[derive(Debug)]
struct Agent {
    said: LeaseSpec,
    /// When that was seen first.
    since: Instant,
    is_served: bool,
}

impl Agent {
    fn lasts(&self) -> Duration {
        let seconds = self.said.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        seconds.filter(|seconds| *seconds > 0).map_or(LASTS, Duration::from_secs)
    }

    fn end(&self) -> Instant {
        self.since + self.lasts()
    }

    /// Notes its lease. Returns whether it is served again.
    fn note(&mut self, lease: &Lease, now: Instant) -> bool {
        let said = lease.spec.clone().unwrap_or_default();
        if self.said == said {
            return false;
        }
        !std::mem::replace(self, Self { said, since: now, is_served: true }).is_served
    }
}

/// The agents that have a lease, by node. The watch of leases shares them with the operator, so
/// that a lease that is only renewed wakes nobody.
#[derive(Debug, Default, Clone)]
pub struct Agents(Arc<Mutex<BTreeMap<String, Agent>>>);

/// The node of an agent's lease.
pub fn node(lease: &Lease) -> Option<String> {
    lease.name_any().strip_prefix(&labels::lease_of("")).map(str::to_owned)
}

impl Agents {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Agent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a lease if its node is served already, so that it is no news. Returns whether it is.
    pub fn renews(&self, lease: &Lease, now: Instant) -> bool {
        let mut all = self.all();
        let Some(agent) = node(lease).and_then(|node| all.get_mut(&node)).filter(|agent| agent.is_served) else { return false };
        agent.note(lease, now);
        true
    }

    /// Notes a lease as it was read. Returns its node if that was not served before.
    pub fn see(&self, lease: &Lease, now: Instant) -> Option<String> {
        let node = node(lease)?;
        match self.all().entry(node.clone()) {
            Entry::Occupied(mut known) => known.get_mut().note(lease, now).then_some(node),
            Entry::Vacant(free) => {
                free.insert(Agent { said: lease.spec.clone().unwrap_or_default(), since: now, is_served: true });
                Some(node)
            }
        }
    }

    /// Notes that a lease is gone, unless it is there again by now. Returns its node if that was
    /// served.
    pub fn lose(&self, lease: &Lease) -> Option<String> {
        let node = node(lease)?;
        let mut all = self.all();
        all.get(&node).filter(|agent| agent.said == lease.spec.clone().unwrap_or_default())?;
        all.remove(&node).filter(|agent| agent.is_served).map(|_| node)
    }

    pub fn is_served(&self, node: &str) -> bool {
        self.all().get(node).is_some_and(|agent| agent.is_served)
    }

    /// Takes each lease as just seen, but for those that had ended when the newest one was renewed:
    /// their agents are silent until they renew.
    pub fn trust(&self, now: Instant) {
        let mut all = self.all();
        let renewed = |agent: &Agent| agent.said.renew_time.as_ref().map(|time| time.0);
        let newest = all.values().filter_map(renewed).max();
        for agent in all.values_mut() {
            let age = newest.zip(renewed(agent)).and_then(|(newest, own)| Duration::try_from(newest - own).ok());
            agent.is_served = age.is_none_or(|age| age <= agent.lasts());
            agent.since = now;
        }
    }

    /// When the first lease will have been silent for too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.all().values().filter(|agent| agent.is_served).map(Agent::end).min()
    }

    /// The nodes that are not served any more: their leases have been silent for too long.
    pub fn silence(&self, now: Instant) -> Vec<String> {
        let mut all = self.all();
        let silent = all.iter_mut().filter(|(_, agent)| agent.is_served && agent.end() <= now);
        let note = |(node, agent): (&String, &mut Agent)| {
            agent.is_served = false;
            node.clone()
        };
        silent.map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use k8s_openapi::jiff::Timestamp;
    use kube::api::ObjectMeta;

    use super::*;

    fn lease(node: &str, renewed: i64) -> Lease {
        let renew_time = Some(MicroTime(Timestamp::from_second(renewed).unwrap()));
        let spec = LeaseSpec { lease_duration_seconds: Some(40), renew_time, ..LeaseSpec::default() };
        Lease { metadata: ObjectMeta { name: Some(labels::lease_of(node)), ..ObjectMeta::default() }, spec: Some(spec) }
    }

    #[test]
    fn an_agent_is_silent_by_the_clock_of_the_operator() {
        let (agents, start) = (Agents::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        // An old lease, of a clock that is wrong, counts as just seen.
        assert_eq!(agents.see(&lease("a", 5), at(0)), Some("a".into()));
        assert!(agents.renews(&lease("a", 15), at(10)), "a renewal changes nothing");
        assert_eq!(agents.see(&lease("a", 15), at(30)), None, "the same lease is no renewal");
        assert_eq!(agents.deadline(), Some(at(50)));
        assert!(agents.silence(at(49)).is_empty() && agents.is_served("a"));
        assert_eq!(agents.silence(at(50)), ["a"]);
        assert!(!agents.is_served("a") && agents.deadline().is_none() && agents.silence(at(60)).is_empty());
        assert!(!agents.renews(&lease("a", 25), at(70)) && !agents.renews(&lease("b", 25), at(70)), "both are news");
        assert_eq!(agents.see(&lease("a", 25), at(70)), Some("a".into()), "it is back");
        assert_eq!(agents.silence(at(200)), ["a"]);
        // One that has long ended is none that is trusted.
        agents.see(&lease("gone", 25 - 41), at(250));
        agents.trust(at(300));
        assert!(agents.is_served("a") && !agents.is_served("gone") && agents.silence(at(339)).is_empty());
        assert!(agents.lose(&lease("a", 15)).is_none() && agents.is_served("a"), "it was made again, and renewed");
        assert_eq!(agents.lose(&lease("a", 25)), Some("a".into()));
        assert!(!agents.is_served("a") && agents.lose(&lease("a", 25)).is_none());
        assert!(agents.see(&Lease { metadata: ObjectMeta::default(), spec: None }, at(300)).is_none(), "no agent's");
    }
}
