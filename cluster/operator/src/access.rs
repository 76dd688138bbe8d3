//! What the operator may not do, where it is looked for: the status of SLOs, events of its lease,
//! and its probe.

use std::collections::BTreeMap;
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
/// that are to be made. Returns the pod's SLO if that is news of it.
pub fn note_pod(world: &mut World, wanted: &BTreeMap<Key, Key>, job: &Job, done: &Outcome) -> Option<Key> {
    let Job::Pod(key) = job else { return None };
    let Err(error) = done else { return world.denied_pods.remove(key).map(|(slo, _)| slo) };
    // Other failures pass, and say nothing of that.
    let why = denied(error, MANAGER)?;
    let of = world.pods.get(key).map(|pod| Key::new(&key.namespace, &pod.slo));
    let slo = of.or_else(|| wanted.get(key).cloned())?;
    let denied = (slo.clone(), why);
    (world.denied_pods.insert(key.clone(), denied.clone()) != Some(denied)).then_some(slo)
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

    use super::*;

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
        let refused = || -> Outcome {
            let status = Status { code: 403, message: "exceeded quota".into(), ..Status::default() };
            Err(Error::Api(status.boxed()))
        };
        assert_eq!(note_pod(&mut world, &wanted, &job, &refused()), Some(slo.clone()));
        assert_eq!(world.denied_pods[&pod].0, slo);
        assert_eq!(note_pod(&mut world, &wanted, &job, &refused()), None, "it is said already");
        assert_eq!(note_pod(&mut world, &wanted, &job, &Ok(None)), Some(slo));
        assert_eq!(note_pod(&mut world, &wanted, &job, &Ok(None)), None);
        // Of a pod that nothing wants any more, there is nothing to say.
        assert_eq!(note_pod(&mut world, &BTreeMap::new(), &job, &refused()), None);
    }
}
