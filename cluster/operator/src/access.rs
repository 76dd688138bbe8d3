//! What the operator may not do, where it is looked for: the status of SLOs, events of its lease,
//! and its probe.

use std::path::PathBuf;
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Error;
use sluice_access::{Faults, beat, denied};
use sluice_cluster_plan::World;
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
    let World { denied_pods, pods, .. } = world;
    denied_pods.retain(|key, _| pods.contains_key(key));
    let Job::Pod(key) = job else { return false };
    let why = done.as_ref().err().and_then(|error| denied(error, MANAGER));
    // A failure that passes says nothing of that.
    if (done.is_err() && why.is_none()) || denied_pods.get(key) == why.as_ref() {
        return false;
    }
    match why {
        Some(why) => drop(denied_pods.insert(key.clone(), why)),
        None => drop(denied_pods.remove(key)),
    }
    true
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
