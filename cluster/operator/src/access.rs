//! What the operator may not do, where it is looked for: the status of SLOs, events of its lease,
//! and its probe.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Error;
use sluice_access::{Faults, beat, denied};
use sluice_cluster_plan::{Key, World};
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::warn;

use crate::jobs::{Job, Outcome};
use crate::news::{self, Herald};
use crate::pulse::Pulse;
use crate::write::MANAGER;

/// Notes why the plan of a node cannot be written, if the API server refuses it.
pub fn deny_plan(world: &mut World, name: &str, error: &Error) {
    if let Some(why) = denied(error, MANAGER) {
        world.denied_plans.insert(name.into(), why);
    }
}

/// Notes whether the API server refuses what was decided about a pod. `wanted` has the SLOs of pods
/// that are to be made. Returns the SLOs that this is news of: a pod may have come to another one.
pub fn note_pod(world: &mut World, wanted: &BTreeMap<Key, Key>, job: &Job, done: &Outcome) -> BTreeSet<Key> {
    let Job::Pod(key) = job else { return BTreeSet::new() };
    let (before, now) = match done {
        Ok(_) => (world.denied_pods.remove(key), None),
        Err(error) => {
            let of = world.pods.get(key).map(|pod| Key::new(&key.namespace, &pod.slo));
            let slo = of.or_else(|| wanted.get(key).cloned());
            // Other failures pass, and say nothing of that.
            let Some(now) = slo.zip(denied(error, MANAGER)) else { return BTreeSet::new() };
            (world.denied_pods.insert(key.clone(), now.clone()), Some(now))
        }
    };
    if before == now {
        return BTreeSet::new();
    }
    [before, now].into_iter().flatten().map(|(slo, _)| slo).collect()
}

/// Forgets what was refused of pods that have come to another SLO, or are gone and not to be made.
/// Returns the SLOs that it was of.
pub fn forget_pods(world: &mut World, is_wanted: impl Fn(&Key) -> bool) -> BTreeSet<Key> {
    let World { denied_pods, pods, .. } = world;
    let mut over = BTreeSet::new();
    denied_pods.retain(|key, (slo, _)| {
        let lasts = pods.get(key).map_or_else(|| is_wanted(key), |pod| pod.slo == slo.name);
        if !lasts {
            over.insert(slo.clone());
        }
        lasts
    });
    over
}

/// Has each fault be an event.
pub async fn herald(mut said: UnboundedReceiver<String>, herald: Herald, of: ObjectReference) {
    while let Some(fault) = said.recv().await {
        herald.say(&of, [news::no_access(fault)]);
    }
}

/// Writes the file of the probes again and again, while the loop is at work.
pub async fn beat(file: PathBuf, pulse: Pulse, faults: Faults) {
    let mut is_written = true;
    loop {
        let written = write_beat(&file, &pulse, &faults, Instant::now());
        if let Err(error) = &written
            && is_written
        {
            warn!("cannot write {}: {error:#}; probes by it fail", file.display());
        }
        is_written = written.is_ok();
        tokio::time::sleep(beat::PERIOD).await;
    }
}

fn write_beat(file: &Path, pulse: &Pulse, faults: &Faults, now: Instant) -> anyhow::Result<()> {
    if !pulse.is_working(now) {
        // The file gets old.
        return Ok(());
    }
    let faults = faults.list(now);
    beat::write(file, if faults.is_empty() { "ready" } else { "alone" }, &faults)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::core::Status;
    use sluice_cluster_plan::Pod;

    use super::*;

    fn refused() -> Outcome {
        let status = Status { code: 403, message: "exceeded quota".into(), ..Status::default() };
        Err(Error::Api(status.boxed()))
    }

    #[test]
    fn the_probe_sees_a_loop_that_is_stuck() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("beat");
        let is_alive = || beat::read(&file, MANAGER).is_ok();
        let (faults, _said) = Faults::new(MANAGER);
        let start = Instant::now();
        let pulse = Pulse::new(start);
        let long = Duration::from_secs(600);
        write_beat(&file, &pulse, &faults, start).unwrap();
        assert!(is_alive());
        std::fs::remove_file(&file).unwrap();
        write_beat(&file, &pulse, &faults, start + long).unwrap();
        assert!(!is_alive(), "nothing was written");
        pulse.note(start + long);
        write_beat(&file, &pulse, &faults, start + long).unwrap();
        assert!(is_alive(), "it goes on");
    }

    #[test]
    fn a_pod_that_is_refused_is_news_of_its_slo_once() {
        let (mut world, slo) = (World::default(), Key::new("t", "web"));
        let pod = Key::new("t", "web-nat-0-x");
        let wanted = BTreeMap::from([(pod.clone(), slo.clone())]);
        let job = Job::Pod(pod.clone());
        let (of_it, of_none) = (BTreeSet::from([slo.clone()]), BTreeSet::<Key>::new());
        assert_eq!(note_pod(&mut world, &wanted, &job, &refused()), of_it);
        assert_eq!(world.denied_pods[&pod].0, slo);
        assert_eq!(note_pod(&mut world, &wanted, &job, &refused()), of_none, "it is said already");
        assert_eq!(note_pod(&mut world, &wanted, &job, &Ok(None)), of_it);
        assert_eq!(note_pod(&mut world, &wanted, &job, &Ok(None)), of_none);
        // Of a pod that nothing wants any more, there is nothing to say.
        assert_eq!(note_pod(&mut world, &BTreeMap::new(), &job, &refused()), of_none);
    }

    #[test]
    fn a_pod_that_comes_to_another_slo_leaves_nothing_behind() {
        let (mut world, key, other) = (World::default(), Key::new("t", "p"), Key::new("t", "late"));
        let (slo, job) = (Key::new("t", "web"), Job::Pod(key.clone()));
        let refuse = |world: &mut World| note_pod(world, &BTreeMap::new(), &job, &refused());
        world.pods.insert(key.clone(), Pod { slo: "web".into(), ..Pod::default() });
        assert_eq!(refuse(&mut world), BTreeSet::from([slo.clone()]));
        let never = |_: &Key| false;
        assert!(forget_pods(&mut world, never).is_empty() && world.denied_pods.contains_key(&key), "it is there");
        world.pods.get_mut(&key).unwrap().slo = "late".into();
        let mut looked = world.clone();
        assert_eq!(forget_pods(&mut looked, never), BTreeSet::from([slo.clone()]));
        assert!(looked.denied_pods.is_empty());
        // It is refused again before that was looked at.
        assert_eq!(refuse(&mut world), BTreeSet::from([slo, other.clone()]));
        world.pods.clear();
        assert!(forget_pods(&mut world, |_| true).is_empty(), "it is to be made");
        assert_eq!(forget_pods(&mut world, never), BTreeSet::from([other]));
    }
}
