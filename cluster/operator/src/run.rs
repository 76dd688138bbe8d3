//! The loop: read what has changed, decide, write.
//!
//! Plans are written first, and each answer is put into the world. Statuses and pods follow from
//! the plans that are written, so nothing is said or bound that no plan holds. They are written
//! beside the next round: nothing waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod as KubePod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::Event;
use kube::{Error, ResourceExt};
use sluice_access::{Faults, is_fault};
use sluice_cluster_plan::pods::{self, Decided, Decision, Turnovers};
use sluice_cluster_plan::status::{Touched, statuses, statuses_of};
use sluice_cluster_plan::{Better, Key, Memo, Pod, Round, World, place};
use sluice_cluster_types::{NodePlan, NodePlanSpec, labels};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::access;
use crate::args::RunArgs;
use crate::backoff::Failure;
use crate::feed::{self, Change, Lists, put_plan};
use crate::jobs::{Job, Jobs, Outcome, Work};
use crate::lease::{Candidate, Held};
use crate::news::{self, Herald};
use crate::optimise::Optimiser;
use crate::order::is_early;
use crate::pulse::{Pulse, TURN};
use crate::write;
use crate::writer::{Tried, Writer, Written};

/// Changes are collected for this long, so that many that come together are one round.
const GATHER: Duration = Duration::from_millis(4);

struct Operator {
    writer: Writer,
    /// Its leases, and those of agents, are there.
    namespace: String,
    world: World,
    lists: Lists,
    memo: Memo,
    /// The term that the memo is of.
    term: Option<i64>,
    began: Instant,
    jobs: Jobs,
    /// Nodes of whose plans nobody knows whether they were written. They are read before the next
    /// round.
    unsure: BTreeMap<String, Tried>,
    /// Pods of which nobody knows whether they have, or will have, been given an instance. They are
    /// read before others of the same function get one.
    unsure_pods: BTreeSet<Key>,
    /// What nodes say that refuse their plans.
    refusals: BTreeMap<String, String>,
    /// Of which objects something else may be said since that was looked at.
    touched: Touched,
    seen: Seen,
    highest: Arc<AtomicI64>,
}

/// What was found when pods were decided about last.
#[derive(Debug, Default)]
struct Seen {
    turnovers: Turnovers,
    /// Pods that are to be made, with their SLOs.
    wanted: BTreeMap<Key, Key>,
}

/// What a change asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Nothing,
    /// Something else may be said of what was touched.
    Touched,
    /// The same, and other pods may get instances.
    Pods,
    /// The same, and something else may be said of any object. No plan is another one.
    Follow,
    Round,
}

/// What a pod asks for that has come, changed or gone. No plan depends on it.
fn due_for(before: Option<&Pod>, now: Option<&Pod>) -> Due {
    // Of others' pods nothing waits until they are ready.
    let is_alike = |(before, now): (&Pod, &Pod)| now.made.is_none() && Pod { is_ready: now.is_ready, ..before.clone() } == *now;
    if before.zip(now).is_some_and(is_alike) { Due::Touched } else { Due::Pods }
}

impl Due {
    fn round_if(is_due: bool) -> Self {
        if is_due { Self::Round } else { Self::Nothing }
    }
}

/// Plans until a signal ends it.
pub async fn run(args: &RunArgs) -> anyhow::Result<()> {
    let (faults, said) = Faults::new(write::MANAGER);
    let client = sluice_access::connect(&faults).await?;
    let (mut ends, mut stops) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (out, changes) = unbounded_channel();
    let lists = Lists::default();
    feed::watch(&client, &args.namespace, &lists.agents, &out);
    let highest = Arc::new(AtomicI64::new(0));
    let me = format!("{}-{}", std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".into()), uuid());
    let candidate = Candidate::new(client.clone(), &args.namespace, &args.lease, &me, args.lease_time());
    let (say, held) = watch::channel(None);
    let end = Arc::new(Notify::new());
    let election = tokio::spawn(candidate.stand(say, highest.clone(), end.clone()));
    let herald = Herald::start(client.clone(), &me, args.request_time());
    tokio::spawn(access::herald(said, herald.clone(), news::lease(&args.namespace, &args.lease)));
    let pulse = Pulse::new(Instant::now());
    if let Some(file) = args.beat.clone() {
        tokio::spawn(access::beat(file, pulse.clone(), faults));
    }
    let writer = Writer { client, limit: args.request_time(), most: args.requests as usize, herald, held, pulse };
    let operator = Operator::new(writer, &args.namespace, lists, highest);
    info!("{me} watches; it acts while it has the lease {}/{}", args.namespace, args.lease);
    tokio::select! {
        _ = ends.recv() => {}
        _ = stops.recv() => {}
        () = operator.go(changes, Optimiser::new(args.optimise_gap)) => {}
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

impl Operator {
    fn new(writer: Writer, namespace: &str, lists: Lists, highest: Arc<AtomicI64>) -> Self {
        Self {
            namespace: namespace.into(),
            world: World::default(),
            lists,
            memo: Memo::default(),
            term: None,
            began: Instant::now(),
            jobs: Jobs::new(writer.most),
            writer,
            unsure: BTreeMap::new(),
            unsure_pods: BTreeSet::new(),
            refusals: BTreeMap::new(),
            touched: Touched::default(),
            seen: Seen::default(),
            highest,
        }
    }

    async fn go(mut self, mut changes: UnboundedReceiver<Change>, mut optimiser: Optimiser) {
        self.highest.store(-1, Ordering::Relaxed);
        let mut again = false;
        loop {
            self.writer.pulse.note(Instant::now());
            let mut due = Due::round_if(std::mem::take(&mut again));
            if due == Due::Nothing {
                due = self.wait(&mut changes, &mut optimiser).await;
            }
            while let Ok(change) = changes.try_recv() {
                due = due.max(self.take(change));
            }
            if !self.lists.are_done() {
                continue;
            }
            let terms = self.world.plans.values().map(|plan| plan.spec.term);
            self.highest.store(terms.max().unwrap_or(0).max(0), Ordering::Relaxed);
            let Some(held) = self.leads() else {
                self.stand_by();
                continue;
            };
            if self.term != Some(held.term) {
                due = Due::round_if(self.try_begin(held.term).await);
            }
            due = due.max(Due::round_if(self.listen().await));
            if !self.unsure.is_empty() {
                due = Due::Round;
            }
            if due == Due::Nothing || self.term != Some(held.term) {
                continue;
            }
            // Meanwhile, another one may have come to lead.
            if self.leads().is_none_or(|now| now.term != held.term) {
                again = true;
                continue;
            }
            if !self.read_unsure(held.term).await {
                // After a conflict there is no pause to wait for.
                again = self.jobs.pauses.may(&Job::Unsure, Instant::now());
                continue;
            }
            if due == Due::Pods {
                self.follow_pods();
            }
            if due <= Due::Pods {
                self.say_touched();
                continue;
            }
            if due == Due::Round {
                self.jobs.looked = Instant::now();
                let round = place(&self.world, &mut self.memo, held.term, self.began.elapsed());
                let is_quiet = round.is_quiet();
                again = round.again;
                again |= self.write(round, held.term).await;
                if is_quiet {
                    optimiser.start(&self.world, &mut self.memo, self.began.elapsed());
                }
            }
            self.follow();
        }
    }

    /// Leads no more: what was decided is the next holder's to decide, and nothing is waited for.
    fn stand_by(&mut self) {
        self.term = None;
        self.jobs.stop();
        self.jobs.pauses.clear();
        self.jobs.ended.clear();
        self.touched = Touched::default();
    }

    /// Puts a change into the world.
    fn take(&mut self, change: Change) -> Due {
        let Some(job) = Job::of(&change) else { return Due::round_if(self.lists.take(&mut self.world, change)) };
        let (before, pod) = (self.status_of(&job), self.pod(&job));
        let is_new = self.lists.take(&mut self.world, change);
        if is_new {
            self.jobs.pauses.end(&job);
        }
        if let Job::Pod(key) = &job
            && self.world.pods.get(key).is_some_and(|pod| pod.made.is_some() && pod.is_ready)
        {
            self.jobs.ended.end(&job);
        }
        // Somebody else has written the status, or an old request that came late.
        let is_other = !is_new && before != self.status_of(&job);
        match &job {
            Job::Pod(key) if is_new => self.touch_pod(key, pod.as_ref()),
            Job::Chain(chain) if is_new && !self.is_promised(chain) => Due::Follow,
            _ if is_new => Due::Round,
            Job::Slo(key) if is_other => {
                self.touched.slos.insert(key.clone());
                Due::Touched
            }
            Job::Function(key) if is_other => {
                self.touched.functions.insert(key.clone());
                Due::Touched
            }
            _ if is_other && self.jobs.is_busy(&job) => {
                self.jobs.rest_left = true;
                Due::Nothing
            }
            _ if is_other => Due::Follow,
            _ => Due::Nothing,
        }
    }

    /// The pod that a job is of, as it is known.
    fn pod(&self, job: &Job) -> Option<Pod> {
        if let Job::Pod(key) = job { self.world.pods.get(key).cloned() } else { None }
    }

    /// Notes a pod that has come, changed or gone.
    fn touch_pod(&mut self, key: &Key, before: Option<&Pod>) -> Due {
        let now = self.world.pods.get(key);
        before.into_iter().chain(now).for_each(|pod| self.touched.note_pod(key, pod));
        due_for(before, now)
    }

    /// Whether an SLO is of a chain.
    fn is_promised(&self, chain: &Key) -> bool {
        let own = self.world.slos.range(Key::new(&chain.namespace, "")..).take_while(|(key, _)| key.namespace == chain.namespace);
        own.map(|(_, slo)| slo).any(|slo| slo.spec.chain.as_ref() == Some(&chain.name))
    }

    /// The status of an object that the operator writes, as text.
    fn status_of(&self, job: &Job) -> Option<String> {
        match job {
            Job::Slo(key) => self.world.slos.get(key).map(|one| format!("{:?}", one.status)),
            Job::Chain(key) => self.world.chains.get(key).map(|one| format!("{:?}", one.status)),
            Job::Function(key) => self.world.functions.get(key).map(|one| format!("{:?}", one.status)),
            Job::Profile(key) => self.world.profiles.get(key).map(|one| format!("{:?}", one.status)),
            Job::Class(name) => self.world.classes.get(name).map(|one| format!("{:?}", one.status)),
            _ => None,
        }
    }

    /// The lease, while it is held.
    fn leads(&self) -> Option<Held> {
        self.writer.held.borrow().filter(|held| Instant::now() < held.until)
    }

    /// Waits for a change that matters, for a deadline, for the lease, or for what a search finds.
    async fn wait(&mut self, changes: &mut UnboundedReceiver<Change>, optimiser: &mut Optimiser) -> Due {
        let (since, now) = (self.began.elapsed(), Instant::now());
        // Otherwise a deadline that has passed would be waited for again and again.
        let may_round = self.term.is_some() && self.unsure.is_empty();
        let planned = self.memo.next_deadline(since).filter(|end| may_round || *end > since).map(|end| end.saturating_sub(since));
        let is_asked = self.term.is_some() && self.jobs.pauses.may(&Job::Leases, now);
        let silent = self.lists.agents.deadline().filter(|_| is_asked);
        // A pause may have ended while the round's plans were written, so that they were left out.
        let paused = self.jobs.next_pause(if may_round { self.jobs.looked } else { now });
        let others = [silent, paused].into_iter().flatten().map(|end| end.saturating_duration_since(now));
        let search = optimiser.deadline(&self.memo, since).map(|end| end.saturating_sub(since));
        let end = others.chain(planned).chain(search).min().filter(|end| *end <= TURN);
        tokio::select! {
            change = changes.recv() => {
                tokio::time::sleep(GATHER).await;
                change.map_or(Due::Nothing, |change| self.take(change))
            }
            Some((job, done)) = self.jobs.next() => self.finish(job, done),
            found = optimiser.next() => Due::round_if(found.is_some_and(|better| self.rearrange(better))),
            _ = self.writer.held.changed() => Due::Nothing,
            () = tokio::time::sleep(end.unwrap_or(TURN)) => Due::round_if(end.is_some()),
        }
    }

    /// Has SLOs move, and says so. Returns whether a round is to follow.
    fn rearrange(&mut self, better: Better) -> bool {
        if self.term.is_none() {
            return false;
        }
        info!("{better}");
        better.free.iter().for_each(|node| self.writer.herald.say(&news::node(node), [news::freed()]));
        self.memo.take(better, self.began.elapsed());
        true
    }

    /// Begins to lead, if that is not tried in vain just now. Returns whether it does.
    async fn try_begin(&mut self, term: i64) -> bool {
        if !self.jobs.pauses.may(&Job::Begin, Instant::now()) {
            return false;
        }
        let done = self.begin(term).await;
        self.jobs.end(&Job::Begin, done.as_ref().err().map(Failure::of));
        match done {
            Ok(()) => {
                self.term = Some(term);
                info!("leads, in term {term}: {} nodes, {} SLOs", self.world.nodes.len(), self.world.slos.len());
                true
            }
            Err(error) => {
                warn!("plans, pods and leases cannot be read: {error}; it is tried again");
                false
            }
        }
    }

    /// Reads plans, pods and leases when it begins to lead: what it has watched may be behind what
    /// its predecessor has written.
    async fn begin(&mut self, term: i64) -> Result<(), Error> {
        let limit = self.writer.limit * 2;
        let api: Api<NodePlan> = Api::all(self.writer.client.clone());
        let listed = write::within(limit, api.list(&ListParams::default())).await?;
        let names: BTreeSet<String> = listed.items.iter().filter_map(|plan| plan.metadata.name.clone()).collect();
        self.world.plans.retain(|name, _| names.contains(name));
        for plan in listed.items {
            self.put(plan);
        }
        // The same of pods: one that has an instance must not look as if it waited.
        self.writer.pulse.note(Instant::now());
        let api: Api<KubePod> = Api::all(self.writer.client.clone());
        let listed = write::within(limit, api.list(&ListParams::default().labels(labels::SLO))).await?;
        for pod in listed.items {
            self.take(Change::Pod(Event::Apply(pod)));
        }
        self.read_leases().await?;
        self.lists.trust_agents(&mut self.world);
        self.unsure.clear();
        (self.world.denied_plans, self.world.denied_pods) = Default::default();
        // A request of its predecessor may be on its way.
        self.unsure_pods = self.world.pods.iter().filter(|(_, pod)| pod.is_gated).map(|(key, _)| key.clone()).collect();
        self.memo = Memo::default();
        self.claim(term).await;
        Ok(())
    }

    /// Writes its term into all plans, so that the API server refuses whatever an operator before
    /// it has sent, and comes late. The revisions stay, so nodes have nothing to do.
    async fn claim(&mut self, term: i64) {
        let older = self.world.plans.values().filter(|plan| plan.spec.term < term);
        let claimed = self.writer.claim(older, term).await;
        for (server, done) in claimed {
            match done {
                Some(plan) => self.put(plan),
                // It is fenced before the first round.
                None => drop(self.unsure.insert(server.name.clone(), Some(server))),
            }
        }
    }

    /// Reads the leases of agents. Returns whether any is news.
    async fn read_leases(&mut self) -> Result<bool, Error> {
        let api: Api<Lease> = Api::namespaced(self.writer.client.clone(), &self.namespace);
        let listed = write::within(self.writer.limit, api.list(&ListParams::default().labels(labels::AGENT))).await?;
        let mut is_new = false;
        for lease in listed.items {
            is_new |= self.take(Change::Lease(Event::Apply(lease))) != Due::Nothing;
        }
        Ok(is_new)
    }

    /// Finds out which agents are silent by now. Returns whether that is news.
    async fn listen(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.lists.agents.deadline().is_some_and(|end| end <= now);
        if !is_due || self.term.is_none() || !self.jobs.pauses.may(&Job::Leases, now) {
            return false;
        }
        let done = self.read_leases().await;
        self.jobs.end(&Job::Leases, done.as_ref().err().map(Failure::of));
        let is_new = match done {
            Ok(is_new) => is_new,
            Err(error) => {
                warn!("leases of agents cannot be read: {error}; until they are, none counts as silent");
                return false;
            }
        };
        let silent = self.lists.silence(&mut self.world);
        for node in &silent {
            warn!("the agent of {node} is silent");
            self.writer.herald.say(&news::node(node), [news::silent()]);
        }
        is_new || !silent.is_empty()
    }

    /// Writes the plans of a round. Returns whether another one is to follow at once: some plans
    /// have changed meanwhile, or nobody knows.
    async fn write(&mut self, round: Round, term: i64) -> bool {
        // What is not to be written any more is not denied.
        let is_wanted = |name: &String| round.gone.contains(name) || round.plans.iter().any(|spec| spec.server.name == *name);
        self.world.denied_plans.retain(|name, _| is_wanted(name));
        let (later, first): (Vec<_>, Vec<_>) = round.plans.into_iter().partition(|spec| is_early(&self.world, spec));
        let gone = round.gone.into_iter().map(|name| (name, None));
        let named = |spec: NodePlanSpec| (spec.server.name.clone(), Some(spec));
        let mut is_left = self.write_all(first.into_iter().map(named).chain(gone).collect(), term).await;
        // Those of which that does not hold yet are decided anew.
        let (_, later): (Vec<_>, Vec<_>) = later.into_iter().partition(|spec| is_early(&self.world, spec));
        is_left |= self.write_all(later.into_iter().map(named).collect(), term).await;
        is_left || !self.unsure.is_empty()
    }

    /// Returns whether some were left as they are, because the lease is over.
    async fn write_all(&mut self, all: Vec<(String, Option<NodePlanSpec>)>, term: i64) -> bool {
        let now = Instant::now();
        let due = all.into_iter().filter(|(name, _)| self.jobs.pauses.may(&Job::Plan(name.clone()), now));
        let written = self.writer.plans(&self.world.plans, due, term).await;
        let mut is_left = false;
        for (name, tried, done) in written {
            let job = Job::Plan(name.clone());
            match done {
                Ok(Written::Not) => is_left = true,
                Ok(Written::As(plan)) => {
                    self.jobs.end(&job, None);
                    self.world.denied_plans.remove(&name);
                    self.put(*plan);
                }
                Ok(Written::Gone) => {
                    self.jobs.end(&job, None);
                    self.world.plans.remove(&name);
                    self.world.denied_plans.remove(&name);
                }
                Err(error) => {
                    let failure = Failure::of(&error);
                    if failure != Failure::Conflict && !is_fault(&error) {
                        warn!("the plan of {name} could not be written: {error}; it is tried again");
                    }
                    access::deny_plan(&mut self.world, &name, &error);
                    self.jobs.end(&job, Some(failure));
                    self.unsure.insert(name, tried.filter(|_| Failure::is_doubtful(&error)));
                }
            }
        }
        is_left
    }

    fn put(&mut self, mut plan: NodePlan) {
        plan.metadata.managed_fields = None;
        self.lists.note_plan(&plan.name_any());
        put_plan(&mut self.world, plan);
    }

    /// Reads the plans of which nobody knows whether they were written. Returns whether all are
    /// known now: a round that goes by one that is not could place an instance twice.
    async fn read_unsure(&mut self, term: i64) -> bool {
        if self.unsure.is_empty() {
            return true;
        }
        if !self.jobs.pauses.may(&Job::Unsure, Instant::now()) {
            return false;
        }
        let unsure = std::mem::take(&mut self.unsure);
        let all = self.writer.fence(unsure, term).await;
        let mut failure = None;
        for (name, tried, read) in all {
            match read {
                Some(Ok(Some(plan))) => self.put(plan),
                Some(Ok(None)) => drop(self.world.plans.remove(&name)),
                Some(Err(error)) => {
                    access::deny_plan(&mut self.world, &name, &error);
                    if failure.is_none() && !is_fault(&error) {
                        warn!("the plan of {name} cannot be read: {error}; nothing is planned until it can be");
                    }
                    failure = Some(Failure::of(&error));
                    self.unsure.insert(name, tried);
                }
                None => drop(self.unsure.insert(name, tried)),
            }
        }
        self.jobs.end(&Job::Unsure, failure);
        if !self.unsure.is_empty() && !self.world.denied_plans.is_empty() {
            self.say();
        }
        self.unsure.is_empty()
    }

    /// Notes the requests that follow from the plans, and starts as many as may be under way.
    fn follow(&mut self) {
        self.follow_pods();
        self.say();
    }

    /// As [`Operator::follow`], of the statuses of all objects alone. Those of which a request is
    /// under way are looked at again when it has ended: it may bring what is wrong by now.
    fn say(&mut self) {
        self.touched = self.jobs.touched();
        let all = statuses(&self.world, &self.memo, &self.seen.turnovers, &Time(Timestamp::now()));
        let todo = self.writer.statuses(&self.world, all);
        let (refusals, new) = news::refusals(&self.refusals, self.world.plans.values());
        self.refusals = refusals;
        for (node, one) in new {
            self.writer.herald.say(&news::node(&node), [one]);
        }
        self.jobs.plan_rest(todo);
        self.start();
    }

    /// The same of those that were touched. Those of which a request is under way wait for its
    /// answer.
    fn say_touched(&mut self) {
        let Touched { slos, functions } = std::mem::take(&mut self.touched);
        let (late_slos, slos): (BTreeSet<Key>, _) = slos.into_iter().partition(|key| self.jobs.is_busy(&Job::Slo(key.clone())));
        let (late_functions, functions): (BTreeSet<Key>, _) =
            functions.into_iter().partition(|key| self.jobs.is_busy(&Job::Function(key.clone())));
        self.touched = Touched { slos: late_slos, functions: late_functions };
        let now = Touched { slos, functions };
        if now.is_empty() {
            return;
        }
        let all = statuses_of(&now, &self.world, &self.memo, &self.seen.turnovers, &Time(Timestamp::now()));
        let todo = self.writer.statuses(&self.world, all);
        let of = now.slos.into_iter().map(Job::Slo).chain(now.functions.into_iter().map(Job::Function)).collect();
        self.jobs.plan_some(&of, todo);
        self.start();
    }

    /// As [`Operator::follow`], of pods alone.
    fn follow_pods(&mut self) {
        let (todo, are_left) = self.decided();
        let over = access::forget_pods(&mut self.world, |key| todo.contains_key(&Job::Pod(key.clone())));
        self.touched.slos.extend(over);
        self.jobs.plan_pods(todo, are_left);
        self.start();
    }

    /// What is to be done with pods, and whether some were left out: they wait for others' answers.
    fn decided(&mut self) -> (BTreeMap<Job, Work>, bool) {
        let Decided { decisions, turnovers } = pods::decide(&self.world);
        self.touched.note_turnovers(&self.seen.turnovers, &turnovers);
        self.seen = Seen { turnovers, wanted: BTreeMap::new() };
        // A pod that is being given an instance does not have it yet in the world.
        let asks = |key: &Key| self.world.pods.get(key).map(|pod| (key.namespace.clone(), pod.slo.clone(), pod.function.clone()));
        let busy = self.jobs.busy().filter_map(|job| if let Job::Pod(key) = job { Some(key) } else { None });
        let under_way: BTreeSet<_> = busy.chain(&self.unsure_pods).filter_map(asks).collect();
        let (mut todo, mut pods_left): (BTreeMap<Job, Work>, _) = (BTreeMap::new(), false);
        for key in &self.unsure_pods {
            todo.insert(Job::Pod(key.clone()), self.writer.fence_pod(key.clone()));
        }
        for decision in decisions {
            let pod = decision.pod().clone();
            if let Decision::Create(new) = &decision {
                self.seen.wanted.insert(pod.clone(), Key::new(&pod.namespace, &new.slo));
            }
            if asks(&pod).is_some_and(|of| under_way.contains(&of)) {
                pods_left = true;
                continue;
            }
            todo.insert(Job::Pod(pod), self.writer.pod(&self.world, decision, self.term));
        }
        (todo, pods_left)
    }

    /// Starts requests, while the lease is held.
    fn start(&mut self) {
        if self.leads().is_some() {
            self.jobs.start();
        }
    }

    /// Puts what a request has done into the world, and starts others.
    fn finish(&mut self, job: Job, done: Outcome) -> Due {
        let failure = done.as_ref().err().map(Failure::of);
        self.jobs.end(&job, failure);
        if let Job::Pod(key) = &job {
            self.jobs.pause_made(&job, self.world.pods.get(key), &done);
            // What has failed may be carried out yet, unless it was a fence, which is to succeed.
            let is_unsure = match &done {
                Ok(_) => false,
                Err(error) if self.unsure_pods.contains(key) => !write::is_gone(error),
                // One that is made late waits at the gate.
                Err(_) if !self.world.pods.contains_key(key) => false,
                Err(error) => Failure::is_doubtful(error) || write::is_conflict(error),
            };
            match is_unsure {
                true => self.unsure_pods.insert(key.clone()),
                false => self.unsure_pods.remove(key),
            };
            self.jobs.pods_left |= is_unsure;
        }
        self.touched.slos.extend(access::note_pod(&mut self.world, &self.seen.wanted, &job, &done));
        let mut due = Due::Nothing;
        match done {
            Ok(answer) => {
                let pod = self.pod(&job);
                let is_new = answer.is_some_and(|answer| self.lists.take_answer(&mut self.world, answer));
                match &job {
                    Job::Pod(key) if is_new => {
                        self.touch_pod(key, pod.as_ref());
                        self.jobs.pods_left = true;
                    }
                    Job::Pod(_) => {}
                    // It was changed before the answer, and the watch comes after it.
                    _ => due = due.max(Due::round_if(is_new)),
                }
            }
            // What has changed or gone meanwhile comes by the watch.
            Err(error) if failure != Some(Failure::Conflict) && !is_fault(&error) => {
                warn!("{job:?} could not be written: {error}; it is tried again")
            }
            Err(_) => {}
        }
        self.start();
        // What was not to be written while these were under way.
        if self.jobs.is_rest_due() {
            due = due.max(Due::Follow);
        }
        if !self.touched.is_empty() {
            due = due.max(Due::Touched);
        }
        if self.jobs.are_pods_due(&job) { due.max(Due::Pods) } else { due }
    }
}

#[cfg(test)]
mod tests {
    use kube::{Client, Config};
    use sluice_cluster_plan::Made;

    use super::*;

    #[tokio::test]
    async fn a_status_that_is_under_way_is_looked_at_again_though_all_were() {
        // Nothing answers there.
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let (limit, pulse, (_say, held)) = (Duration::from_secs(1), Pulse::new(Instant::now()), watch::channel(None));
        let herald = Herald::start(client.clone(), "me", limit);
        let writer = Writer { client, limit, most: 8, herald, held, pulse };
        let mut operator = Operator::new(writer, "s", Lists::default(), Arc::default());
        let web = Key::new("t", "web");
        operator.jobs.plan_rest([(Job::Slo(web.clone()), Box::pin(std::future::pending::<Outcome>()) as Work)].into());
        operator.jobs.start();
        // By what is known before it has ended, there is nothing to write.
        operator.say();
        assert_eq!(operator.touched.slos, BTreeSet::from([web.clone()]));
        assert_eq!(operator.finish(Job::Slo(web), Ok(None)), Due::Touched);
        operator.say();
        assert!(operator.touched.is_empty(), "once");
    }

    #[test]
    fn for_a_pod_not_all_objects_are_looked_at() {
        let pod = Pod { slo: "web".into(), ..Pod::default() };
        let ready = |pod: &Pod| Pod { is_ready: true, ..pod.clone() };
        let made = Pod { made: Some(Made::default()), ..pod.clone() };
        assert_eq!(due_for(Some(&pod), Some(&ready(&pod))), Due::Touched, "it decides nothing");
        assert_eq!(due_for(Some(&made), Some(&ready(&made))), Due::Pods, "the next one can be replaced");
        let ending = Pod { is_ending: true, ..ready(&pod) };
        let all = [(None, Some(&pod)), (Some(&pod), None), (Some(&pod), Some(&ending)), (None, Some(&made)), (Some(&made), None)];
        for (before, now) in all {
            assert_eq!(due_for(before, now), Due::Pods, "{before:?} {now:?}");
        }
        assert!(Due::Touched < Due::Pods && Due::Pods < Due::Follow && Due::Follow < Due::Round);
    }
}
