//! What the operator may not do, where it is looked for: the status of SLOs, events of its lease,
//! and its probe.

use std::path::PathBuf;
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Error;
use sluice_access::{Faults, beat, denied};
use sluice_cluster_plan::pods::{self, Decision};
use sluice_cluster_plan::{Key, Pod, World};
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::warn;

use crate::jobs::{Job, Outcome};
use crate::news::{self, Herald};
use crate::write::MANAGER;

/// Notes why the plan of a node cannot be written, if the API server refuses it.
pub fn deny_plan(world: &mut World, name: &str, error: &Error) {
    if let Some(why) = denied(error, MANAGER) {
        world.denied_plans.insert(name.into(), why);
    }
}

/// Notes whether the API server refuses what was decided about a pod. Returns whether that is news.
pub fn note_pod(world: &mut World, job: &Job, done: &Outcome) -> bool {
    let Job::Pod(key) = job else { return false };
    let Err(error) = done else { return world.denied_pods.remove(key).is_some() };
    // Other failures pass, and say nothing of that.
    let Some(why) = denied(error, MANAGER) else { return false };
    let Some(slo) = slo_of(world, key) else { return false };
    let denied = (slo, why);
    world.denied_pods.insert(key.clone(), denied.clone()) != Some(denied)
}

/// The SLO of a pod that is there, or is to be made.
fn slo_of(world: &World, key: &Key) -> Option<Key> {
    let made = |decision: Decision| match decision {
        Decision::Create(new) if new.pod == *key => Some(Key::new(&key.namespace, &new.slo)),
        _ => None,
    };
    let of = |pod: &Pod| Key::new(&key.namespace, &pod.slo);
    world.pods.get(key).map(of).or_else(|| pods::bind(world).into_iter().find_map(made))
}

/// Has each fault be an event.
pub async fn herald(mut said: UnboundedReceiver<String>, herald: Herald, of: ObjectReference) {
    while let Some(fault) = said.recv().await {
        herald.say(&of, [news::no_access(fault)]);
    }
}

/// Writes the file of the probe, for ever.
pub async fn beat(file: PathBuf, faults: Faults) {
    let mut is_written = true;
    loop {
        let faults = faults.list(Instant::now());
        let word = if faults.is_empty() { "ready" } else { "alone" };
        let written = beat::write(&file, word, &faults);
        if let Err(error) = &written
            && is_written
        {
            warn!("cannot write {}: {error:#}; probes by it fail", file.display());
        }
        is_written = written.is_ok();
        tokio::time::sleep(beat::PERIOD).await;
    }
}
