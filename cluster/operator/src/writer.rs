//! What an operator writes while it holds the lease: plans, many at a time; and the requests that
//! follow from them, of one object each, which go on beside the rounds.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, Resource};
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::runtime::watcher::Event;
use kube::{Client, Error, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_cluster_plan::pods::Decision;
use sluice_cluster_plan::status::Statuses;
use sluice_cluster_plan::{Key, World};
use sluice_cluster_types::{NodePlan, NodePlanSpec};
use sluice_slo::placement::PlacedServer;
use tokio::sync::watch;

use crate::feed::Change;
use crate::jobs::{Job, Work};
use crate::lease::{Held, leads};
use crate::news::{self, Herald, News};
use crate::pulse::Pulse;
use crate::write;

/// What became of a plan.
pub enum Written {
    As(Box<NodePlan>),
    Gone,
    /// It was left as it is, because the lease is over.
    Not,
}

/// The server of a plan that may be written yet, without instances.
pub type Tried = Option<PlacedServer>;

/// A plan that was read; none if it was left as it is, because the lease is over.
pub type Read = Option<Result<Option<NodePlan>, Error>>;

/// Makes requests.
pub struct Writer {
    pub client: Client,
    /// Time limit of a request.
    pub limit: Duration,
    /// Most requests at a time.
    pub most: usize,
    pub herald: Herald,
    pub held: watch::Receiver<Option<Held>>,
    pub pulse: Pulse,
}

impl Writer {
    /// Makes requests that the loop waits for. Returns their answers.
    async fn all<T>(&self, requests: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
        let answers = stream::iter(requests).buffer_unordered(self.most);
        answers.inspect(|_| self.pulse.note(Instant::now())).collect().await
    }

    /// Writes a term into these plans. Returns them with their servers; none where nobody knows.
    pub async fn claim<'a>(&self, plans: impl Iterator<Item = &'a NodePlan>, term: i64) -> Vec<(PlacedServer, Option<NodePlan>)> {
        let claims = plans.map(|known| async move {
            let spec = NodePlanSpec { term, ..known.spec.clone() };
            let server = PlacedServer::empty(&spec.server.name, &spec.server.shape);
            let is_held = leads(&self.held, term);
            let done = if is_held { write::plan(&self.client, self.limit, Some(known), spec).await.ok() } else { None };
            (server, done)
        });
        self.all(claims).await
    }

    /// Writes plans over those that are known. Those without a spec are deleted.
    pub async fn plans(
        &self,
        known: &BTreeMap<String, NodePlan>,
        all: impl Iterator<Item = (String, Option<NodePlanSpec>)>,
        term: i64,
    ) -> Vec<(String, Tried, Result<Written, Error>)> {
        let writes = all.map(|(name, spec)| async move {
            let tried = spec.as_ref().map(|spec| PlacedServer::empty(&name, &spec.server.shape));
            let (client, limit) = (&self.client, self.limit);
            let done = match (known.get(&name), spec) {
                // Whatever has taken so long, another one may lead by now.
                _ if !leads(&self.held, term) => Ok(Written::Not),
                (known, Some(spec)) => write::plan(client, limit, known, spec).await.map(|plan| Written::As(Box::new(plan))),
                (Some(known), None) => write::delete_plan(client, limit, known).await.map(|()| Written::Gone),
                (None, None) => Ok(Written::Gone),
            };
            (name, tried, done)
        });
        self.all(writes).await
    }

    /// Reads plans of which nobody knows whether they were written, so that whatever is on its way
    /// comes too late.
    pub async fn fence(&self, unsure: BTreeMap<String, Tried>, term: i64) -> Vec<(String, Tried, Read)> {
        let reads = unsure.into_iter().map(|(name, tried)| async move {
            let is_held = leads(&self.held, term);
            let read = if is_held { Some(write::fence(&self.client, self.limit, &name, tried.clone(), term).await) } else { None };
            (name, tried, read)
        });
        self.all(reads).await
    }

    /// Writes these statuses.
    pub fn statuses(&self, world: &World, all: Statuses) -> BTreeMap<Job, Work> {
        let mut todo: BTreeMap<Job, Work> = BTreeMap::new();
        for (key, status) in all.slos {
            let Some(slo) = world.slos.get(&key) else { continue };
            let news = news::of_slo(&slo.status.clone().unwrap_or_default(), &status);
            let work = self.status(self.within(&key), slo, status, news, |slo| Change::Slo(Event::Apply(slo)));
            todo.insert(Job::Slo(key), work);
        }
        for (key, status) in all.chains {
            let Some(chain) = world.chains.get(&key) else { continue };
            let news = news::accepted(chain.status.as_ref().map(|status| &status.conditions), &status.conditions);
            let work = self.status(self.within(&key), chain, status, news, |chain| Change::Chain(Event::Apply(chain)));
            todo.insert(Job::Chain(key), work);
        }
        for (key, status) in all.functions {
            let Some(function) = world.functions.get(&key) else { continue };
            let news = news::of_function(&function.status.clone().unwrap_or_default(), &status);
            let work = self.status(self.within(&key), function, status, news, |function| Change::Function(Event::Apply(function)));
            todo.insert(Job::Function(key), work);
        }
        for (key, status) in all.profiles {
            let Some(profile) = world.profiles.get(&key) else { continue };
            let news = news::accepted(profile.status.as_ref().map(|status| &status.conditions), &status.conditions);
            let wrap = |profile| Change::Profile(Event::Apply(DeserializeGuard(Ok(profile))));
            let work = self.status(self.within(&key), profile, status, news, wrap);
            todo.insert(Job::Profile(key), work);
        }
        for (name, status) in all.classes {
            let Some(class) = world.classes.get(&name) else { continue };
            let news = news::accepted(class.status.as_ref().map(|status| &status.conditions), &status.conditions);
            let wrap = |class| Change::Class(Event::Apply(DeserializeGuard(Ok(class))));
            let work = self.status(Api::all(self.client.clone()), class, status, news, wrap);
            todo.insert(Job::Class(name), work);
        }
        todo
    }

    /// Carries out what was decided about a pod, while the lease is held in this term.
    pub fn pod(&self, world: &World, decision: Decision, term: Option<i64>) -> Work {
        let pod = decision.pod();
        let of = match &decision {
            // There is none yet that could have events.
            Decision::Create(new) => world.slos.get(&Key::new(&pod.namespace, &new.slo)).map(|slo| slo.object_ref(&())),
            _ => Some(news::pod(pod, world.pods.get(pod).map_or("", |pod| &pod.uid))),
        };
        let (client, limit, herald, held) = (self.client.clone(), self.limit, self.herald.clone(), self.held.clone());
        let leads = move || term.is_some_and(|term| leads(&held, term));
        Box::pin(async move {
            let done = write::carry_out(client, limit, &decision, leads).await;
            if let Some(of) = of {
                herald.say(&of, news::of_pod(&decision, &done));
            }
            done.map(|pod| pod.map(Event::Apply).map(Change::Pod))
        })
    }

    /// Reads a pod that may be bound yet, so that whatever is on its way to it comes too late.
    pub fn fence_pod(&self, key: Key) -> Work {
        let (client, limit) = (self.client.clone(), self.limit);
        Box::pin(async move { Ok(write::fence_pod(client, limit, &key).await?.map(Event::Apply).map(Change::Pod)) })
    }

    /// The objects of a namespace.
    fn within<K>(&self, key: &Key) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Writes the status of an object, and then says what is new of it.
    fn status<K>(
        &self,
        api: Api<K>,
        object: &K,
        status: impl Serialize + Debug + Send + 'static,
        news: Vec<News>,
        wrap: fn(K) -> Change,
    ) -> Work
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (limit, herald) = (self.limit, self.herald.clone());
        let of: ObjectReference = object.object_ref(&());
        let name = object.name_any();
        Box::pin(async move {
            let object = write::status::<K>(api, limit, &name, status).await?;
            herald.say(&of, news);
            Ok(Some(wrap(object)))
        })
    }
}
