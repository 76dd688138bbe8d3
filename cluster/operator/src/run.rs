//! The loop: read what has changed, decide, write.
//!
//! Plans are written first, and each answer is put into the world. Statuses and pods follow from
//! the plans that are written, so nothing is said or bound that no plan holds. They are written
//! beside the next round: nothing waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Resource};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::Event;
use kube::{Client, Error, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_cluster_plan::pods;
use sluice_cluster_plan::status::statuses;
use sluice_cluster_plan::{Key, Memo, Round, World, place};
use sluice_cluster_types::{NodePlan, labels};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::args::RunArgs;
use crate::feed::{self, Change, Lists, put_plan};
use crate::lease::{Candidate, Held};
use crate::write::{self, is_conflict};

/// Changes are collected for this long, so that many that come together are one round.
const GATHER: Duration = Duration::from_millis(4);
/// Pause after a request has failed.
const PAUSE: Duration = Duration::from_millis(500);

/// What a request beside the rounds has done: the object as it is now.
type Outcome = Result<Option<Change>, Error>;

/// A request beside the rounds; one of each at a time, pods first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    Pod(Key),
    Slo(Key),
    Chain(Key),
    Function(Key),
}

struct Operator {
    client: Client,
    world: World,
    lists: Lists,
    memo: Memo,
    /// The term that the memo is of.
    term: Option<i64>,
    began: Instant,
    most: usize,
    /// Requests that are under way, and those that are to follow.
    jobs: FuturesUnordered<BoxFuture<'static, (Job, Outcome)>>,
    busy: BTreeSet<Job>,
    todo: BTreeMap<Job, BoxFuture<'static, Outcome>>,
    /// None is started before, because one has failed.
    quiet_until: Option<Instant>,
    held: watch::Receiver<Option<Held>>,
    highest: Arc<AtomicI64>,
}

/// Plans until a signal ends it.
pub async fn run(args: &RunArgs) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no API server is known: run in a pod, or name a file in $KUBECONFIG")?;
    let (mut ends, mut stops) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (out, changes) = unbounded_channel();
    feed::watch(&client, &out);
    let highest = Arc::new(AtomicI64::new(0));
    let me = format!("{}-{}", std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".into()), uuid());
    let candidate = Candidate::new(client.clone(), &args.namespace, &args.lease, &me, args.lease_time());
    let (say, held) = watch::channel(None);
    let end = Arc::new(Notify::new());
    let election = tokio::spawn(elect(candidate, say, highest.clone(), end.clone()));
    let operator = Operator {
        client,
        world: World::default(),
        lists: Lists::default(),
        memo: Memo::default(),
        term: None,
        began: Instant::now(),
        most: args.requests as usize,
        jobs: FuturesUnordered::new(),
        busy: BTreeSet::new(),
        todo: BTreeMap::new(),
        quiet_until: None,
        held,
        highest,
    };
    info!("{me} watches; it acts while it has the lease {}/{}", args.namespace, args.lease);
    tokio::select! {
        _ = ends.recv() => {}
        _ = stops.recv() => {}
        () = operator.go(changes) => {}
    }
    end.notify_one();
    election.await?;
    Ok(())
}

/// A word that no other process has.
fn uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map_or_else(|_| std::process::id().to_string(), |text| text.trim().into())
}

/// Takes and renews the lease, and gives it back in the end.
async fn elect(mut candidate: Candidate, say: watch::Sender<Option<Held>>, highest: Arc<AtomicI64>, end: Arc<Notify>) {
    let mut ticks = tokio::time::interval(candidate.period());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut has_warned = false;
    loop {
        tokio::select! {
            () = end.notified() => return candidate.release().await,
            _ = ticks.tick() => {}
        }
        // Negative until the plans are read: without their terms, none of its own is high enough.
        let Ok(above) = u32::try_from(highest.load(Ordering::Relaxed)) else { continue };
        match candidate.attempt(above.into()).await {
            Ok(()) => has_warned = false,
            Err(error) if !has_warned => {
                warn!("the lease cannot be read or written: {error}; it is tried again");
                has_warned = true;
            }
            Err(_) => {}
        }
        let held = candidate.held();
        say.send_if_modified(|before| std::mem::replace(before, held) != held);
    }
}

impl Operator {
    async fn go(mut self, mut changes: UnboundedReceiver<Change>) {
        self.highest.store(-1, Ordering::Relaxed);
        let mut again = false;
        let mut pause = None;
        loop {
            let mut is_new = std::mem::take(&mut again);
            if !is_new {
                is_new = self.wait(&mut changes, pause.take()).await;
            }
            while let Ok(change) = changes.try_recv() {
                is_new |= self.lists.take(&mut self.world, change);
            }
            if !self.lists.are_done() {
                continue;
            }
            let terms = self.world.plans.values().map(|plan| plan.spec.term);
            self.highest.store(terms.max().unwrap_or(0), Ordering::Relaxed);
            let Some(held) = self.leads() else {
                self.term = None;
                // What was decided is the next holder's to decide, and nothing is waited for.
                self.todo.clear();
                self.quiet_until = None;
                continue;
            };
            if self.term != Some(held.term) {
                match self.begin(held.term).await {
                    Ok(()) => is_new = true,
                    Err(error) => {
                        warn!("plans and pods cannot be read: {error}; it is tried again");
                        pause = Some(PAUSE);
                        continue;
                    }
                }
            }
            if is_new {
                let round = place(&self.world, &mut self.memo, held.term, self.began.elapsed());
                again = round.again;
                let (is_stale, failed) = self.write(round).await;
                self.follow();
                // Not to try a broken API server without a pause.
                again = (again || is_stale) && !failed;
                pause = failed.then_some(PAUSE);
            }
        }
    }

    /// The lease, while it is held.
    fn leads(&self) -> Option<Held> {
        self.held.borrow().filter(|held| Instant::now() < held.until)
    }

    /// Waits for a change that matters, for a deadline, or for the lease.
    async fn wait(&mut self, changes: &mut UnboundedReceiver<Change>, pause: Option<Duration>) -> bool {
        let now = self.began.elapsed();
        let deadline = self.memo.next_deadline(now).map(|end| end.saturating_sub(now));
        let quiet = self.quiet_until.map(|until| until.saturating_duration_since(Instant::now()));
        let longest = [pause, deadline, quiet].into_iter().flatten().min().unwrap_or(Duration::from_secs(3600));
        tokio::select! {
            change = changes.recv() => {
                tokio::time::sleep(GATHER).await;
                change.is_some_and(|change| self.lists.take(&mut self.world, change))
            }
            Some((job, done)) = self.jobs.next() => self.finish(job, done),
            _ = self.held.changed() => false,
            () = tokio::time::sleep(longest) => true,
        }
    }

    /// Reads plans and pods when it begins to lead: what it has watched may be behind what its
    /// predecessor has written.
    async fn begin(&mut self, term: i64) -> Result<(), Error> {
        let api: Api<NodePlan> = Api::all(self.client.clone());
        let listed = write::within(write::LIMIT * 2, api.list(&ListParams::default())).await?;
        let names: BTreeSet<String> = listed.items.iter().filter_map(|plan| plan.metadata.name.clone()).collect();
        self.world.plans.retain(|name, _| names.contains(name));
        for plan in listed.items {
            self.put(plan);
        }
        // The same of pods: one that has an instance must not look as if it waited.
        let api: Api<Pod> = Api::all(self.client.clone());
        let listed = write::within(write::LIMIT * 2, api.list(&ListParams::default().labels(labels::SLO))).await?;
        for pod in listed.items {
            self.lists.take(&mut self.world, Change::Pod(Event::Apply(pod)));
        }
        self.memo = Memo::default();
        self.term = Some(term);
        info!("leads, in term {term}: {} nodes, {} SLOs", self.world.nodes.len(), self.world.slos.len());
        Ok(())
    }

    /// Writes the plans of a round. Returns whether some have changed meanwhile, and whether
    /// something else has failed.
    async fn write(&mut self, round: Round) -> (bool, bool) {
        let (client, held) = (&self.client, &self.held);
        let leads = || held.borrow().is_some_and(|held| Instant::now() < held.until);
        let known = &self.world.plans;
        let writes = round.plans.into_iter().map(|spec| async move {
            let name = spec.server.name.clone();
            // Whatever has taken so long, another one may lead by now.
            let done = match leads() {
                true => write::plan(client, known.get(&name), spec).await.map(Some),
                false => Ok(None),
            };
            (name, done)
        });
        let written: Vec<_> = futures::stream::iter(writes).buffer_unordered(self.most).collect().await;
        let mut failed: Option<Error> = None;
        let mut stale = Vec::new();
        for (name, done) in written {
            match done {
                Ok(Some(plan)) => self.put(plan),
                Ok(None) => {}
                Err(error) if is_conflict(&error) => stale.push(name),
                Err(error) => {
                    // It may be written all the same.
                    stale.push(name);
                    failed = failed.or(Some(error));
                }
            }
        }
        for name in round.gone {
            let Some(plan) = self.world.plans.get(&name) else { continue };
            match write::delete_plan(&self.client, plan).await {
                Ok(()) => drop(self.world.plans.remove(&name)),
                Err(_) => stale.push(name),
            }
        }
        for name in &stale {
            if let Err(error) = self.read(name).await {
                failed = failed.or(Some(error));
            }
        }
        if let Some(error) = &failed {
            warn!("a plan could not be written: {error}; it is tried again");
        }
        (!stale.is_empty(), failed.is_some())
    }

    fn put(&mut self, mut plan: NodePlan) {
        plan.metadata.managed_fields = None;
        self.lists.note_plan(&plan.name_any());
        put_plan(&mut self.world, plan);
    }

    /// Reads a plan again.
    async fn read(&mut self, name: &str) -> Result<(), Error> {
        let api: Api<NodePlan> = Api::all(self.client.clone());
        match write::within(write::LIMIT, api.get_opt(name)).await? {
            Some(plan) => self.put(plan),
            None => drop(self.world.plans.remove(name)),
        }
        Ok(())
    }

    /// Notes the requests that follow from the plans, and starts as many as may be under way.
    fn follow(&mut self) {
        if self.quiet_until.is_some_and(|until| Instant::now() < until) {
            // They were decided by plans that have changed since.
            self.todo.clear();
            return;
        }
        self.quiet_until = None;
        let mut todo: BTreeMap<Job, BoxFuture<'static, Outcome>> = BTreeMap::new();
        // A pod that is being given an instance does not have it yet in the world.
        let asks = |key: &Key| self.world.pods.get(key).map(|pod| (key.namespace.clone(), pod.slo.clone(), pod.function.clone()));
        let under_way: BTreeSet<_> =
            self.busy.iter().filter_map(|job| if let Job::Pod(key) = job { asks(key) } else { None }).collect();
        for decision in pods::bind(&self.world) {
            let pod = decision.pod();
            if asks(pod).is_some_and(|of| under_way.contains(&of)) {
                continue;
            }
            let (client, job) = (self.client.clone(), Job::Pod(pod.clone()));
            let work = async move { write::carry_out(client, &decision).await.map(|pod| pod.map(Event::Apply).map(Change::Pod)) };
            todo.insert(job, Box::pin(work));
        }
        let all = statuses(&self.world, &self.memo, &Time(Timestamp::now()));
        for (key, status) in all.slos {
            todo.insert(Job::Slo(key.clone()), self.status(key, status, Change::Slo));
        }
        for (key, status) in all.chains {
            todo.insert(Job::Chain(key.clone()), self.status(key, status, Change::Chain));
        }
        for (key, status) in all.functions {
            todo.insert(Job::Function(key.clone()), self.status(key, status, Change::Function));
        }
        todo.retain(|job, _| !self.busy.contains(job));
        self.todo = todo;
        self.start();
    }

    fn status<K>(
        &self,
        key: Key,
        status: impl Serialize + Debug + Send + 'static,
        wrap: fn(Event<K>) -> Change,
    ) -> BoxFuture<'static, Outcome>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let client = self.client.clone();
        Box::pin(async move { write::status::<K>(client, &key, status).await.map(|object| Some(wrap(Event::Apply(object)))) })
    }

    /// Starts requests, while the lease is held.
    fn start(&mut self) {
        while self.jobs.len() < self.most && self.leads().is_some() {
            let Some((job, work)) = self.todo.pop_first() else { return };
            self.busy.insert(job.clone());
            self.jobs.push(Box::pin(async move { (job, work.await) }));
        }
    }

    /// Puts what a request has done into the world, and starts others. Returns whether a round is
    /// to follow: there may be more to write by now.
    fn finish(&mut self, job: Job, done: Outcome) -> bool {
        self.busy.remove(&job);
        match done {
            Ok(Some(change)) => drop(self.lists.take(&mut self.world, change)),
            Ok(None) => {}
            Err(error) => {
                // What has changed or gone meanwhile comes by the watch.
                if !is_conflict(&error) {
                    warn!("{job:?} could not be written: {error}; it is tried again");
                }
                self.quiet_until = Some(Instant::now() + PAUSE);
            }
        }
        self.start();
        self.jobs.is_empty()
    }
}
