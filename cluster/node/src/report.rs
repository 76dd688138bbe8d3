//! What the agent reports of its node.

use std::path::Path;

use sluice_api::config::Config;
use sluice_api::promise::{Promise, Promises};
use sluice_cluster_types::condition::{CONNECTED, READY, State};
use sluice_cluster_types::{Has, NodePlanStatus, Use};
use sluice_dra::Host;

use crate::size;
use crate::turn::{Trouble, Turn};

/// Rounds to two digits: a report is written when it changes, and load changes a little all the
/// time.
fn two_digits(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 0.0;
    }
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}

fn use_of(promise: &Promise) -> Use {
    Use {
        slo: promise.slo.clone(),
        state: promise.word().into(),
        offered_pps: two_digits(promise.offered_pps),
        delivered_pps: two_digits(promise.delivered_pps),
        latency_us: promise.latency_us.map(two_digits),
        asks_for: promise.steered.as_ref().and_then(|steered| Some(steered.asks_for.as_ref()?.instances)),
    }
}

/// How SLOs are kept.
pub fn uses(promises: &Promises) -> Vec<Use> {
    promises.promises.iter().map(use_of).collect()
}

/// What the node has for NFs, by the daemon's configuration and report; none if no cores are for
/// them. `system` is the root directory of `/sys` and `/proc`.
pub fn has(config: &Config, promises: &Promises, system: &Path) -> Option<Has> {
    // Where the cache cannot be read here, its ways are unknown.
    let host = Host::of(config, promises, system).or_else(|_| Host::of(config, &Promises::default(), system)).ok()?;
    Some(Has { cpu: host.cpu, cores: host.cores, ways: host.ways, memory_mib: size::memory_mib(system).unwrap_or(0) })
}

/// The condition of a plan.
pub fn ready(turn: &Turn, revision: i64) -> State {
    let is_not = |reason, why: &str| State::new(READY, Some(false), reason, why);
    match (&turn.trouble, &turn.status.refused) {
        (Some(Trouble::Away(why)), _) => is_not("DaemonAway", why),
        (Some(Trouble::Between(why)), _) => is_not("BetweenPlans", why),
        (Some(Trouble::Failed(why)), _) => is_not("DaemonFails", why),
        (None, Some(why)) => is_not("Refused", why),
        (None, None) if turn.status.applied_revision == revision => {
            State::new(READY, Some(true), "Applied", "sluiced keeps the plan")
        }
        (None, None) => is_not("Applying", "sluiced is taking over the plan"),
    }
}

/// The condition of what the agent may do at the API server. `fault` is what it may not.
pub fn connected(fault: Option<String>) -> State {
    match fault {
        None => State::new(CONNECTED, Some(true), "Allowed", "the agent may do at the API server what it has to"),
        Some(fault) => State::new(CONNECTED, Some(false), "NoAccess", fault),
    }
}

/// Whether a report says more than other numbers: it is written at once.
pub fn is_news(before: &NodePlanStatus, now: &NodePlanStatus) -> bool {
    let of = |status: &NodePlanStatus| {
        let uses = status.uses.iter().map(|one| (one.slo.clone(), one.state.clone(), one.offered_pps > 0.0, one.asks_for));
        let plan = (status.observed_revision, status.applied_revision, status.refused.clone());
        (plan, status.profiling, status.notes.clone(), status.has.clone(), uses.collect::<Vec<_>>())
    };
    of(before) != of(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_of_load_are_no_news() {
        assert_eq!([two_digits(1_234_567.0), two_digits(0.0), two_digits(99.6), two_digits(f64::NAN)], [1.2e6, 0.0, 100.0, 0.0]);
        let status = |offered_pps: f64, state: &str| NodePlanStatus {
            uses: vec![Use { slo: "a".into(), state: state.into(), offered_pps, ..Use::default() }],
            ..NodePlanStatus::default()
        };
        assert!(!is_news(&status(1e6, "kept"), &status(2e6, "kept")));
        assert!(is_news(&status(1e6, "kept"), &status(0.0, "kept")), "an instance can go");
        assert!(is_news(&status(1e6, "kept"), &status(1e6, "violated")));
        let has = Some(Has { cores: 3, ..Has::default() });
        assert!(is_news(&status(1e6, "kept"), &NodePlanStatus { has, ..status(1e6, "kept") }));
    }

    #[test]
    fn what_a_node_has_is_what_its_daemon_and_its_system_say() {
        let root = tempfile::tempdir().unwrap();
        let config: Config = toml::from_str("[promises]\ncores = [1, 2]\n").unwrap();
        let promises = Promises { cache: "none".into(), ..Promises::default() };
        let bare = has(&config, &promises, root.path()).unwrap();
        assert_eq!(bare, Has { cores: 2, ..Has::default() });
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal:       65536000 kB\nMemFree: 1 kB\n").unwrap();
        std::fs::write(root.path().join("proc/cpuinfo"), "model name\t: A\n").unwrap();
        // A cache that cannot be read hides nothing else.
        let resctrl = format!("resctrl = {:?}\n", root.path().join("none"));
        let config: Config = toml::from_str(&format!("[promises]\ncores = [1, 2]\n{resctrl}")).unwrap();
        let promises = Promises { cache: "resctrl".into(), ..Promises::default() };
        let found = has(&config, &promises, root.path());
        assert_eq!(found, Some(Has { cpu: "A".into(), cores: 2, ways: 0, memory_mib: 64_000 }));
        assert_eq!(has(&Config::default(), &promises, root.path()), None);
    }
}
