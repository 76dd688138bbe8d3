//! Keeps the node's slice as it should be.
//!
//! The kubelet deletes the slices of its node when it starts, and those of a driver that does not
//! answer. So the slices are watched, and written anew when one has gone or is another.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::host::Host;
use crate::request::{RequestError, within};
use crate::settings::DRIVER;
use crate::slice::{is_shared, name, slice};

/// The owner of a slice's fields.
const MANAGER: &str = "sluice-dra";
/// Pause after a request has failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Pause after the API server has shown that it lacks the feature: it may be restarted with it.
const LONG_PAUSE: Duration = Duration::from_secs(60);

/// Why a slice is not published.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("{0}; it is tried again")]
    Server(String),
    #[error("the API server has no node {0}; it is tried again")]
    NoNode(String),
    #[error(
        "the API server lacks the feature gate DRAConsumableCapacity, so one claim would take the whole node: turn it on, \
         also in the scheduler and the kubelet"
    )]
    NotShared,
}

struct Publisher {
    client: Client,
    node: String,
    /// The slices of this driver and node, as the API server has them.
    seen: BTreeMap<String, ResourceSliceSpec>,
    is_listed: bool,
    /// What was written last: for which host, and what the API server made of it.
    written: Option<(Host, ResourceSliceSpec)>,
    not_before: Instant,
}

/// Publishes what the node has, as soon as that is known, and each change of it. Never returns.
pub(crate) async fn publish(client: Client, node: &str, mut host: watch::Receiver<Option<Host>>) -> Infallible {
    if host.wait_for(Option::is_some).await.is_err() {
        return std::future::pending().await;
    }
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let ours = Config::default().fields(&format!("spec.driver={DRIVER},spec.nodeName={node}"));
    let mut events = std::pin::pin!(watcher(api, ours).default_backoff());
    let mut publisher =
        Publisher { client, node: node.into(), seen: BTreeMap::new(), is_listed: false, written: None, not_before: Instant::now() };
    let mut is_known = true;
    loop {
        let now = host.borrow_and_update().clone();
        let is_due = publisher.is_listed && publisher.differs(now.as_ref());
        tokio::select! {
            Some(event) = events.next() => publisher.take(event),
            changed = host.changed(), if is_known => is_known = changed.is_ok(),
            () = sleep_until(publisher.not_before), if is_due => publisher.write(now.as_ref()).await,
        }
    }
}

impl Publisher {
    fn take(&mut self, event: Result<Event<ResourceSlice>, kube::runtime::watcher::Error>) {
        match event {
            Ok(Event::Init) => (self.seen, self.is_listed) = (BTreeMap::new(), false),
            Ok(Event::InitApply(slice) | Event::Apply(slice)) => drop(self.seen.insert(slice.name_any(), slice.spec)),
            Ok(Event::Delete(slice)) => drop(self.seen.remove(&slice.name_any())),
            Ok(Event::InitDone) => self.is_listed = true,
            Err(error) => warn!("the slices of {DRIVER} cannot be watched: {error}; they need Kubernetes 1.34 or newer"),
        }
    }

    /// Whether something is to be written or deleted. What is not known any more stays.
    fn differs(&self, host: Option<&Host>) -> bool {
        let Some(host) = host else { return false };
        let Some((of, spec)) = &self.written else { return true };
        of != host || self.seen.len() != 1 || self.seen.get(&name(&self.node)) != Some(spec)
    }

    async fn write(&mut self, host: Option<&Host>) {
        let Some(host) = host else { return };
        match self.try_write(host).await {
            Ok(spec) => {
                info!("published: {} cores and {} cache ways", host.cores, host.ways);
                self.seen = BTreeMap::from([(name(&self.node), spec.clone())]);
                self.written = Some((host.clone(), spec));
            }
            Err(error) => {
                warn!("what this node has for NFs is not published: {error}");
                let pause = if matches!(error, PublishError::NotShared) { LONG_PAUSE } else { PAUSE };
                self.not_before = Instant::now() + pause;
            }
        }
    }

    async fn try_write(&mut self, host: &Host) -> Result<ResourceSliceSpec, PublishError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let owner = within(nodes.get_opt(&self.node)).await?.ok_or_else(|| PublishError::NoNode(self.node.clone()))?;
        let wanted = slice(&self.node, Some(&owner), host);
        let own = name(&self.node);
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        // An API server without the feature drops what makes a device one that can be shared.
        let tried = within(api.patch(&own, &params.clone().dry_run(), &Patch::Apply(&wanted))).await?;
        let is_shared = is_shared(&tried);
        let wrong: Vec<String> = self.seen.keys().filter(|name| !is_shared || **name != own).cloned().collect();
        for name in wrong {
            match within(api.delete(&name, &DeleteParams::default())).await {
                Ok(_) | Err(RequestError::Gone) => drop(self.seen.remove(&name)),
                Err(error) => return Err(error.into()),
            }
        }
        if !is_shared {
            return Err(PublishError::NotShared);
        }
        Ok(within(api.patch(&own, &params, &Patch::Apply(&wanted))).await?.spec)
    }
}

impl From<RequestError> for PublishError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Gone => Self::Server("the API server does not know slices: they need Kubernetes 1.34 or newer".into()),
            RequestError::Other(why) => Self::Server(why),
        }
    }
}
