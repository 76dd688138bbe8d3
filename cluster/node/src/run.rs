//! The loop: the plan from the API server to the agent, its report back.
//!
//! The agent has a thread of its own, because a daemon may take seconds to answer. It takes a turn
//! each second and at each new plan. A report is written at once if it has news, and else every
//! half minute if its numbers have changed.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, Resource};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, Error};
use serde_json::json;
use sluice_cluster_types::condition::written;
use sluice_cluster_types::{NodePlan, NodePlanSpec, NodePlanStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::agent::{Agent, Turn};
use crate::args::Args;
use crate::daemon::Daemon;
use crate::report;

/// Time between two turns.
const TURN: Duration = Duration::from_secs(1);
/// Time between two reports without news.
const NUMBERS: Duration = Duration::from_secs(30);
/// Pause after the API server did not take a report.
const PAUSE: Duration = Duration::from_secs(2);
/// The owner of the fields of a report.
const MANAGER: &str = "sluice-node";

/// Runs until a signal ends it. The daemon goes on without it.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no API server is known: run in a pod, or name a file in $KUBECONFIG")?;
    let daemon = sluice_api::client::Client::new(&args.socket)?;
    let (plans, received) = channel();
    let (say, turns) = watch::channel(None);
    std::thread::Builder::new().name("agent".into()).spawn({
        let agent = Agent::new(daemon, args.base.clone(), args.kept.clone());
        move || turn(agent, &received, &say)
    })?;
    info!("node {}: sluiced at {}", args.node, args.socket.display());
    let (mut ends, mut stops) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = ends.recv() => Ok(()),
        _ = stops.recv() => Ok(()),
        () = go(&client, &args.node, plans, turns) => anyhow::bail!("the agent has ended"),
    }
}

/// Turns of the agent, until nobody wants them.
fn turn(mut agent: Agent<impl Daemon>, plans: &Receiver<NodePlanSpec>, say: &watch::Sender<Option<(NodePlanSpec, Turn)>>) {
    let mut plan = agent.applied().cloned();
    loop {
        match plans.recv_timeout(TURN) {
            Ok(new) => plan = plans.try_iter().last().or(Some(new)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Some(plan) = &plan else { continue };
        let turn = agent.turn(plan, Instant::now());
        if say.send(Some((plan.clone(), turn))).is_err() {
            return;
        }
    }
}

/// Hands plans to the agent, and writes its reports.
async fn go(client: &Client, node: &str, plans: Sender<NodePlanSpec>, mut turns: watch::Receiver<Option<(NodePlanSpec, Turn)>>) {
    let api: Api<NodePlan> = Api::all(client.clone());
    let only = Config::default().fields(&format!("metadata.name={node}"));
    let mut events = std::pin::pin!(watcher(api.clone(), only).default_backoff());
    let (mut said, mut at, mut not_before) = (NodePlanStatus::default(), Instant::now(), Instant::now());
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Apply(plan) | Event::InitApply(plan))) => {
                    // After a restart, what was said before is known.
                    said.conditions = plan.status.map(|status| status.conditions).unwrap_or_default();
                    if plans.send(plan.spec).is_err() {
                        return;
                    }
                }
                // A plan that is deleted is no reason to stop anything.
                Some(Ok(_)) => {}
                Some(Err(error)) => warn!("the plan cannot be watched: {error}; the last one goes on"),
                None => return,
            },
            changed = turns.changed() => {
                if changed.is_err() {
                    return;
                }
                let Some((plan, turn)) = turns.borrow_and_update().clone() else { continue };
                let state = report::ready(&turn.status, plan.revision, turn.away.as_deref());
                let is_news = report::is_news(&said, &turn.status) || !sluice_cluster_types::condition::are(&said.conditions, std::slice::from_ref(&state));
                let is_due = is_news || (at.elapsed() >= NUMBERS && said.uses != turn.status.uses);
                if !is_due || Instant::now() < not_before {
                    continue;
                }
                let conditions = written(&[state], &said.conditions, None, &Time(Timestamp::now()));
                let status = NodePlanStatus { conditions, ..turn.status };
                match write(&api, node, &status).await {
                    Ok(()) => (said, at) = (status, Instant::now()),
                    Err(error) => {
                        warn!("a report cannot be written: {error}; it is tried again");
                        not_before = Instant::now() + PAUSE;
                    }
                }
            }
        }
    }
}

async fn write(api: &Api<NodePlan>, node: &str, status: &NodePlanStatus) -> Result<(), Error> {
    let body = json!({"apiVersion": NodePlan::api_version(&()), "kind": NodePlan::kind(&()), "status": status});
    let (params, patch) = (PatchParams::apply(MANAGER).force(), Patch::Apply(body));
    let request = api.patch_status(node, &params, &patch);
    match tokio::time::timeout(Duration::from_secs(5), request).await {
        Ok(answer) => answer.map(drop),
        Err(_) => Err(Error::Service("no answer within 5 s".into())),
    }
}
