//! What changes at the API server, for commands that go on.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use kube::api::{Api, ListParams, Resource};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, Store, reflector};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Error, ResourceExt};
use serde::de::DeserializeOwned;
use sluice_cluster_types::{NodePlan, Slo};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::connect::Cluster;
use crate::trouble::{self, Asked, Place};

/// Changes that come together are shown together.
const GATHER: Duration = Duration::from_millis(200);

/// SLOs and plans as they are now.
pub struct Feed {
    slos: Store<Slo>,
    /// None where they may not be read.
    plans: Option<Store<NodePlan>>,
    news: UnboundedReceiver<News>,
}

/// Something has changed, or a watch has failed and is tried again.
type News = Result<(), String>;

impl Feed {
    /// Watches SLOs of a namespace, or of all, and plans where that is allowed. Returns when all is
    /// known, and why plans are not.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn start(cluster: &Cluster, namespace: Option<&str>) -> anyhow::Result<(Self, Option<String>)> {
        // A watch would try again for ever.
        let one = ListParams::default().limit(1);
        let slos: Api<Slo> = cluster.api(namespace);
        cluster.list(&slos, namespace, &one).await?;
        let plans: Api<NodePlan> = Api::all(cluster.client.clone());
        let denied = cluster.list(&plans, None, &one).await.err().map(|error| error.to_string());
        let (send, mut news) = unbounded_channel();
        let slos = follow(slos, namespace, &cluster.place, &send);
        let plans = denied.is_none().then(|| follow(plans, None, &cluster.place, &send));
        let all = async {
            slos.wait_until_ready().await.context("the watch of SLOs has ended")?;
            match &plans {
                Some(plans) => plans.wait_until_ready().await.context("the watch of plans has ended"),
                None => Ok(()),
            }
        };
        tokio::select! {
            done = all => done?,
            why = failure(&mut news) => bail!("{why}"),
        }
        Ok((Self { slos, plans, news }, denied))
    }

    pub fn slos(&self) -> Vec<Arc<Slo>> {
        self.slos.state()
    }

    /// The plans, by node.
    pub fn plans(&self) -> Vec<Arc<NodePlan>> {
        let mut plans = self.plans.as_ref().map(Store::state).unwrap_or_default();
        plans.sort_by_key(|plan| plan.name_any());
        plans
    }

    /// Waits for changes. Returns why a watch has failed, if one has; it is tried again.
    pub async fn change(&mut self) -> Option<String> {
        let mut trouble = self.news.recv().await.and_then(Result::err);
        tokio::time::sleep(GATHER).await;
        while let Ok(news) = self.news.try_recv() {
            trouble = news.err();
        }
        trouble
    }
}

/// Waits until a watch fails.
async fn failure(news: &mut UnboundedReceiver<News>) -> String {
    loop {
        match news.recv().await {
            Some(Ok(())) => {}
            Some(Err(why)) => return why,
            None => return "the watches have ended".into(),
        }
    }
}

fn follow<K>(api: Api<K>, namespace: Option<&str>, place: &Place, news: &UnboundedSender<News>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    let stream = reflector(writer, stream.modify(|object: &mut K| object.managed_fields_mut().clear()));
    let (place, news, namespace) = (place.clone(), news.clone(), namespace.map(str::to_owned));
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            let sent = match event {
                Ok(Event::Init | Event::InitApply(_)) => continue,
                Ok(_) => news.send(Ok(())),
                Err(error) => news.send(Err(failed(&error, &K::plural(&()), namespace.as_deref(), &place))),
            };
            if sent.is_err() {
                return;
            }
        }
    });
    store
}

fn failed(error: &watcher::Error, kind: &str, namespace: Option<&str>, place: &Place) -> String {
    let of = |error: &Error| trouble::explain(error, &Asked { verb: "watch", kind, namespace }, place);
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            of(error)
        }
        // The list is too old, and read again.
        other => other.to_string(),
    }
}
