//! The lease of the agent, by which the operator knows that the node is served.
//!
//! It is renewed while the agent is at work and its daemon answers. The operator goes by how long
//! ago it was seen to change, so clocks need not agree.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use sluice_cluster_types::labels;
use tokio::sync::watch;
use tracing::warn;

use crate::api::{MANAGER, within};
use crate::pulse::Pulse;

/// Time after which the operator takes the node for unserved, in seconds.
const DURATION: i32 = 40;
/// Time between two renewals.
const RENEWAL: Duration = Duration::from_secs(10);
/// Pause after one that failed.
const PAUSE: Duration = Duration::from_secs(2);
/// Time between two looks at the pulse.
const LOOK: Duration = Duration::from_millis(500);

/// Keeps the lease of a node renewed. It goes with its owner, the plan of the node.
pub async fn keep(client: Client, namespace: String, node: String, pulse: Pulse, owner: watch::Receiver<Option<OwnerReference>>) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let (name, began) = (labels::lease_of(&node), Timestamp::now());
    let (mut next, mut is_renewed) = (Instant::now(), true);
    loop {
        tokio::time::sleep(LOOK).await;
        let now = Instant::now();
        if now < next || !pulse.is_served(now) {
            continue;
        }
        let lease = lease(&name, &node, began, owner.borrow().clone());
        let written = within(api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&lease))).await;
        if let Err(error) = &written
            && is_renewed
        {
            warn!(
                "the lease {namespace}/{name} cannot be renewed: {error}; it is tried again, and without it the node gets nothing more"
            );
        }
        is_renewed = written.is_ok();
        next = now + if is_renewed { RENEWAL } else { PAUSE };
    }
}

fn lease(name: &str, node: &str, began: Timestamp, owner: Option<OwnerReference>) -> Lease {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        labels: Some(BTreeMap::from([(labels::AGENT.into(), String::new())])),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    let spec = LeaseSpec {
        holder_identity: Some(node.into()),
        lease_duration_seconds: Some(DURATION),
        acquire_time: Some(MicroTime(began)),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    };
    Lease { metadata, spec: Some(spec) }
}
