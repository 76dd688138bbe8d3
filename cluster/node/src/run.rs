//! The loop: the plan from the API server to the agent, its report back.
//!
//! The agent has a thread of its own, because a daemon may take seconds to answer. It takes a turn
//! each second and at each new plan. A report is written at once if it has news, and else every
//! half minute if its numbers have changed. Lease, events and profiles are beside that, and nothing
//! waits for them.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, Resource};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, Error};
use serde_json::json;
use sluice_access::Faults;
use sluice_cluster_types::condition::{are, written};
use sluice_cluster_types::{NodePlan, NodePlanSpec, NodePlanStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::agent::Agent;
use crate::api::{MANAGER, within};
use crate::args::Args;
use crate::daemon::Daemon;
use crate::news::{self, Desk};
use crate::profile::{self, Place, Reported, Room};
use crate::pulse::{self, Pulse, Watched};
use crate::turn::Turn;
use crate::{dra, lease, report, size};

/// Time between two turns.
const TURN: Duration = Duration::from_secs(1);
/// Time between two reports without news.
const NUMBERS: Duration = Duration::from_secs(30);
/// Pause after the API server did not take a report.
const PAUSE: Duration = Duration::from_secs(2);

/// A plan, and what a turn with it has found.
type Taken = Option<(NodePlanSpec, Turn)>;

/// Runs until a signal ends it. The daemon goes on without it.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let (faults, said) = Faults::new(MANAGER);
    let client = sluice_access::connect(&faults).await?;
    let pulse = Pulse::new(Instant::now());
    let daemon = Watched { daemon: sluice_api::client::Client::new(&args.socket)?, pulse: pulse.clone() };
    let (plans, received) = channel();
    let (say, turns) = watch::channel(None);
    let agent = Agent::new(daemon, args.base.clone(), args.kept.clone(), size::memory_mib(Path::new("/")));
    let before = Turn::of(agent.applied());
    std::thread::Builder::new().name("agent".into()).spawn(move || turn(agent, &received, &say))?;
    info!("node {}: sluiced at {}", args.node, args.socket.display());

    let (owned, owner) = watch::channel(None);
    tokio::spawn(lease::keep(client.clone(), args.namespace.clone(), args.node.clone(), pulse.clone(), owner));
    if let Some(file) = args.beat.clone() {
        let faults = faults.clone();
        tokio::spawn(async move { pulse::beat(&file, &pulse, &faults).await });
    }
    let (desk, events) = Desk::new(&args.node);
    tokio::spawn(news::write(client.clone(), args.node.clone(), events));
    let (profiles, link) = profile::pair();
    if let Some(class) = args.class.clone() {
        let place = Place { node: args.node.clone(), class, program: args.profiler.clone(), base: args.base.clone() };
        tokio::spawn(profile::run(client.clone(), place, link));
    }

    if args.dra {
        tokio::spawn(dra::run(client.clone(), args.clone(), turns.clone()));
    }

    let reports = Reports::new(&client, &args.node, Links { owned, desk, profiles, faults }, before);
    let (mut ends, mut stops) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = ends.recv() => Ok(()),
        _ = stops.recv() => Ok(()),
        () = go(&client, reports, plans, turns, said) => anyhow::bail!("the agent has ended"),
    }
}

/// Turns of the agent, until nobody wants them.
fn turn(mut agent: Agent<impl Daemon>, plans: &Receiver<NodePlanSpec>, say: &watch::Sender<Taken>) {
    let mut plan = agent.applied().cloned();
    loop {
        if let Some(plan) = &plan {
            let turn = agent.turn(plan, Instant::now());
            if say.send(Some((plan.clone(), turn))).is_err() {
                return;
            }
        } else {
            agent.look();
        }
        match plans.recv_timeout(TURN) {
            Ok(new) => plan = plans.try_iter().last().or(Some(new)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Hands plans to the agent, and its turns to those that go by them.
async fn go(
    client: &Client,
    mut reports: Reports,
    plans: Sender<NodePlanSpec>,
    mut turns: watch::Receiver<Taken>,
    mut said: UnboundedReceiver<String>,
) {
    let api: Api<NodePlan> = Api::all(client.clone());
    let only = Config::default().fields(&format!("metadata.name={}", reports.node));
    let mut events = std::pin::pin!(watcher(api, only).default_backoff());
    let mut is_watched = true;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Apply(plan) | Event::InitApply(plan))) => {
                    is_watched = true;
                    reports.know(&plan);
                    if !plan.spec.server.instances.is_empty() {
                        // A measurement ends before the daemon has the plan.
                        reports.links.profiles.room.send_replace(Room::Busy);
                    }
                    if plans.send(plan.spec).is_err() {
                        return;
                    }
                }
                // A plan that is deleted is no reason to stop anything, but owns nothing any more.
                Some(Ok(Event::Init | Event::Delete(_))) => drop(reports.links.owned.send_replace(None)),
                Some(Ok(Event::InitDone)) => is_watched = true,
                Some(Err(error)) => {
                    if is_watched {
                        warn!("the plan cannot be watched: {error}; the last one goes on");
                    }
                    is_watched = false;
                }
                None => return,
            },
            Some(fault) = said.recv() => reports.links.desk.take(news::no_access(fault), Instant::now()),
            changed = turns.changed() => {
                if changed.is_err() {
                    return;
                }
                let taken = turns.borrow_and_update().clone();
                if let Some((plan, turn)) = taken {
                    reports.take(&plan, turn).await;
                }
            }
        }
    }
}

/// Those that go by plans and turns, besides the report.
struct Links {
    /// The owner of the lease.
    owned: watch::Sender<Option<OwnerReference>>,
    desk: Desk,
    profiles: Reported,
    faults: Faults,
}

/// Reports of a node.
struct Reports {
    api: Api<NodePlan>,
    node: String,
    links: Links,
    /// What was written last, and when.
    said: NodePlanStatus,
    at: Instant,
    /// Whether the API server may have something else: a write had no answer.
    is_unsure: bool,
    not_before: Instant,
    /// The last turn.
    before: Turn,
}

impl Reports {
    fn new(client: &Client, node: &str, links: Links, before: Turn) -> Self {
        let (api, now) = (Api::all(client.clone()), Instant::now());
        Self { api, node: node.into(), links, said: NodePlanStatus::default(), at: now, is_unsure: false, not_before: now, before }
    }

    /// The plan as the API server has it.
    fn know(&mut self, plan: &NodePlan) {
        // After a restart, what was said before is known.
        self.said.conditions = plan.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        self.links.owned.send_replace(plan.owner_ref(&()));
        self.links.desk.know(plan);
    }

    async fn take(&mut self, plan: &NodePlanSpec, turn: Turn) {
        let now = Instant::now();
        for news in news::of(plan, &self.before, &turn) {
            self.links.desk.take(news, now);
        }
        self.before.clone_from(&turn);
        self.links.profiles.room.send_replace(Room::of(plan, &turn));
        let states = [report::ready(&turn, plan.revision), report::connected(self.links.faults.summary(now))];
        let status = NodePlanStatus { profiling: *self.links.profiles.wanted.borrow(), ..turn.status };
        let is_news = report::is_news(&self.said, &status) || !are(&self.said.conditions, &states);
        let is_due = self.is_unsure || is_news || (self.at.elapsed() >= NUMBERS && self.said.uses != status.uses);
        if !is_due || now < self.not_before {
            return;
        }
        let conditions = written(&states, &self.said.conditions, None, &Time(Timestamp::now()));
        let status = NodePlanStatus { conditions, ..status };
        // Until there is an answer, an operator may have read either.
        self.links.profiles.fenced.send_replace(false);
        let was_unsure = std::mem::replace(&mut self.is_unsure, true);
        match write(&self.api, &self.node, &status).await {
            Ok(written) => {
                // A plan that is written over this one is of an operator that has read it.
                let is_fenced = status.profiling && written.spec.server.instances.is_empty();
                self.links.profiles.fenced.send_replace(is_fenced);
                (self.said, self.at, self.is_unsure) = (status, now, false);
            }
            Err(error) => {
                if !was_unsure {
                    warn!("a report cannot be written: {error}; it is tried again");
                }
                self.not_before = Instant::now() + PAUSE;
            }
        }
    }
}

async fn write(api: &Api<NodePlan>, node: &str, status: &NodePlanStatus) -> Result<NodePlan, Error> {
    let body = json!({"apiVersion": NodePlan::api_version(&()), "kind": NodePlan::kind(&()), "status": status});
    within(api.patch_status(node, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body))).await
}
