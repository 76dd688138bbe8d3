//! Events of Kubernetes: what has become of an object, where `kubectl describe` shows it.
//!
//! What is news follows from the status before and the one that was written, so another operator
//! says nothing twice. Events are hints: they are written one after the other beside everything
//! else, at a bounded rate for each object and in all, and what is too much is left out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Error};
use sluice_access::denied;
use sluice_cluster_plan::Key;
use sluice_cluster_plan::pods::Decision;
use sluice_cluster_types::condition::{ACCEPTED, ADMITTED, KEPT, ROLLED_OUT};
use sluice_cluster_types::{NetworkFunctionStatus, NodePlan, SloStatus};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::{debug, warn};

use crate::write::{MANAGER, within};

/// Most events that wait to be written.
const QUEUE: usize = 8192;
/// Time between two events.
const PACE: Duration = Duration::from_millis(20);
/// Events of an object at once, and the time after which it can have one more.
const BURST: u32 = 10;
const REFILL: Duration = Duration::from_secs(60);
/// Longest note that the API server takes, in bytes.
const LONGEST: usize = 1000;

/// Something that has happened to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    pub is_bad: bool,
    /// One word.
    pub reason: String,
    pub action: &'static str,
    pub note: String,
}

impl News {
    fn good(reason: &str, action: &'static str, note: impl Into<String>) -> Self {
        Self { is_bad: false, reason: reason.into(), action, note: note.into() }
    }

    fn bad(reason: &str, action: &'static str, note: impl Into<String>) -> Self {
        Self { is_bad: true, reason: reason.into(), action, note: note.into() }
    }
}

/// A condition in two statuses.
struct Pair<'a> {
    was: Option<&'a Condition>,
    is: &'a Condition,
}

impl<'a> Pair<'a> {
    fn of(kind: &str, before: &'a [Condition], after: &'a [Condition]) -> Option<Self> {
        let find = |all: &'a [Condition]| all.iter().find(|one| one.type_ == kind);
        Some(Self { was: find(before), is: find(after)? })
    }

    fn was(&self, word: &str) -> bool {
        self.was.is_some_and(|was| was.status == word)
    }

    fn is(&self, word: &str) -> bool {
        self.is.status == word
    }

    /// Whether it does not hold, for another reason than before.
    fn is_worse(&self) -> bool {
        self.is("False")
            && self.is.reason != "Waiting"
            && (!self.was("False") || self.was.is_some_and(|was| was.reason != self.is.reason))
    }
}

/// What is new of an SLO.
pub fn of_slo(before: &SloStatus, after: &SloStatus) -> Vec<News> {
    let mut news = Vec::new();
    if let Some(admitted) = Pair::of(ADMITTED, &before.conditions, &after.conditions) {
        let nodes = |status: &SloStatus| status.nodes.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (had, has) = (nodes(before), nodes(after));
        let left: Vec<&str> = had.iter().filter(|node| !has.contains(node)).map(String::as_str).collect();
        let new: Vec<&str> = has.iter().filter(|node| !had.contains(node)).map(String::as_str).collect();
        if admitted.is_worse() {
            news.push(News::bad(&admitted.is.reason, "Place", &admitted.is.message));
        } else if admitted.is("True") && !admitted.was("True") {
            news.push(News::good("Admitted", "Place", format!("{} instances on {}", after.instances, after.nodes)));
        } else if !left.is_empty() && !new.is_empty() {
            news.push(News::good("Moved", "Place", format!("from {} to {}", left.join(" "), new.join(" "))));
        }
    }
    if let Some(kept) = Pair::of(KEPT, &before.conditions, &after.conditions) {
        if kept.is_worse() {
            news.push(News::bad(&kept.is.reason, "Keep", &kept.is.message));
        } else if kept.is("True") && kept.was("False") {
            news.push(News::good("KeptAgain", "Keep", &kept.is.message));
        }
    }
    news
}

/// What is new of a chain, a profile or a class, by its conditions.
pub fn accepted(before: Option<&Vec<Condition>>, after: &[Condition]) -> Vec<News> {
    let before = before.map(Vec::as_slice).unwrap_or_default();
    let Some(accepted) = Pair::of(ACCEPTED, before, after) else { return Vec::new() };
    let bad = accepted.is_worse().then(|| News::bad(&accepted.is.reason, "Accept", &accepted.is.message));
    let good = (accepted.is("True") && accepted.was("False")).then(|| News::good("Accepted", "Accept", &accepted.is.message));
    bad.into_iter().chain(good).collect()
}

/// What is new of an NF.
pub fn of_function(before: &NetworkFunctionStatus, after: &NetworkFunctionStatus) -> Vec<News> {
    let Some(rolled) = Pair::of(ROLLED_OUT, &before.conditions, &after.conditions) else { return Vec::new() };
    let is_stopped = rolled.is.reason == "NodeRefuses" && rolled.is_worse();
    let bad = is_stopped.then(|| News::bad("RolloutStopped", "RollOut", &rolled.is.message));
    let good =
        (rolled.is.reason == "Current" && rolled.was("False")).then(|| News::good("RolledOut", "RollOut", &rolled.is.message));
    bad.into_iter().chain(good).collect()
}

/// What is new of a pod of which this was decided: that it goes, or that the API server does not
/// let the operator make, place or evict it.
pub fn of_pod<T>(decision: &Decision, done: &Result<Option<T>, Error>) -> Option<News> {
    match (done, decision) {
        (Ok(Some(_)), _) => None,
        (Ok(None), Decision::Delete { .. }) => Some(News::good(
            "Deleted",
            "Place",
            "no plan has an instance for it any more, or its NF has another image or is started otherwise: then another pod follows",
        )),
        (Ok(None), _) => Some(News::good(
            "Evicted",
            "Place",
            "no plan has an instance for it any more; what made it can make another, which waits at the gate",
        )),
        (Err(Error::Api(status)), Decision::Create(new)) if status.reason == "AlreadyExists" => {
            let note = format!("another pod has the name {}, by which the operator would make one: delete it", new.pod.name);
            Some(News::bad("PodRefused", "Place", note))
        }
        (Err(error), _) => denied(error, MANAGER).map(|why| News::bad("PodRefused", "Place", why)),
    }
}

/// A node whose agent is silent.
pub fn silent() -> News {
    let note = "its agent does not renew its lease, so it gets nothing new: see sluice-node and sluiced there";
    News::bad("AgentSilent", "Serve", note)
}

/// What the API server does not let the operator do, and what to do.
pub fn no_access(fault: String) -> News {
    News::bad("NoAccess", "Ask", fault)
}

/// A node that fewer others can do without.
pub fn freed() -> News {
    News::good("Freed", "Place", "its SLOs move to nodes in use that have room for them, so that it is free")
}

/// What nodes say that refuse their plans, by node: what is there now, and what of it is new.
pub fn refusals<'a>(
    before: &BTreeMap<String, String>,
    plans: impl Iterator<Item = &'a NodePlan>,
) -> (BTreeMap<String, String>, Vec<(String, News)>) {
    let refusal = |plan: &'a NodePlan| {
        let status = plan.status.as_ref().filter(|status| status.observed_revision == plan.spec.revision)?;
        Some((plan.spec.server.name.clone(), status.refused.clone()?))
    };
    let now: BTreeMap<String, String> = plans.filter_map(refusal).collect();
    let is_new = |(node, said): &(&String, &String)| before.get(*node) != Some(*said);
    let news = |(node, said): (&String, &String)| {
        let note = format!("{said}; it goes on with the plan before. Change what it refuses, or the node");
        (node.clone(), News::bad("PlanRefused", "TakeOver", note))
    };
    let new = now.iter().filter(is_new).map(news).collect();
    (now, new)
}

/// A node, by the name that `kubectl describe` asks for.
pub fn node(name: &str) -> ObjectReference {
    let own = |text: &str| Some(text.to_owned());
    ObjectReference { api_version: own("v1"), kind: own("Node"), name: own(name), uid: own(name), ..ObjectReference::default() }
}

/// A lease, for what concerns the operator itself.
pub fn lease(namespace: &str, name: &str) -> ObjectReference {
    let own = |text: &str| Some(text.to_owned());
    ObjectReference { api_version: own("coordination.k8s.io/v1"), kind: own("Lease"), ..named(&Key::new(namespace, name)) }
}

pub fn pod(key: &Key, uid: &str) -> ObjectReference {
    let own = |text: &str| Some(text.to_owned());
    ObjectReference { api_version: own("v1"), kind: own("Pod"), uid: own(uid), ..named(key) }
}

fn named(key: &Key) -> ObjectReference {
    ObjectReference { name: Some(key.name.clone()), namespace: Some(key.namespace.clone()), ..ObjectReference::default() }
}

/// Takes events, and has them written.
#[derive(Debug, Clone)]
pub struct Herald(Sender<(ObjectReference, News)>);

impl Herald {
    /// `me` is the operator's own name.
    pub fn start(client: Client, me: &str, limit: Duration) -> Self {
        let (out, queue) = channel(QUEUE);
        let reporter = Reporter { controller: MANAGER.into(), instance: Some(me.into()) };
        tokio::spawn(publish(Recorder::new(client, reporter), queue, limit));
        Self(out)
    }

    pub fn say(&self, of: &ObjectReference, news: impl IntoIterator<Item = News>) {
        for one in news {
            // Too many wait.
            let _ = self.0.try_send((of.clone(), one));
        }
    }
}

async fn publish(recorder: Recorder, mut queue: Receiver<(ObjectReference, News)>, limit: Duration) {
    let mut budget = Budget::default();
    let mut has_warned = false;
    while let Some((of, news)) = queue.recv().await {
        let object = format!("{:?} {:?} {:?}", of.kind, of.namespace, of.name);
        if !budget.takes(&object, Instant::now()) {
            continue;
        }
        let type_ = if news.is_bad { EventType::Warning } else { EventType::Normal };
        let note = Some(cut(&news.note));
        let event = Event { type_, reason: news.reason, note, action: news.action.into(), secondary: None };
        match within(limit, recorder.publish(&event, &of)).await {
            Ok(()) => has_warned = false,
            Err(error) if !has_warned => {
                warn!("events cannot be written: {error}; may the operator create and patch events of events.k8s.io?");
                has_warned = true;
            }
            Err(error) => debug!("an event of {object} is left out: {error}"),
        }
        tokio::time::sleep(PACE).await;
    }
}

fn cut(note: &str) -> String {
    let end = (0..=LONGEST.min(note.len())).rev().find(|at| note.is_char_boundary(*at));
    note[..end.unwrap_or(0)].to_owned()
}

/// How many events each object may still have: those that have had some of late.
#[derive(Debug, Default)]
struct Budget(BTreeMap<String, (u32, Instant)>);

impl Budget {
    fn takes(&mut self, object: &str, now: Instant) -> bool {
        let refilled = |since: &Instant| u32::try_from(now.duration_since(*since).as_secs() / REFILL.as_secs()).unwrap_or(u32::MAX);
        // Those that are full again need no entry.
        self.0.retain(|_, (used, since)| refilled(since) < *used);
        let (used, since) = self.0.entry(object.into()).or_insert((0, now));
        let back = refilled(since);
        *used -= back.min(*used);
        *since += REFILL * back;
        let is_free = *used < BURST;
        *used += u32::from(is_free);
        is_free
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use sluice_cluster_types::condition::{State, written};

    use super::*;

    fn slo(nodes: &str, admitted: Option<bool>, reason: &'static str, kept: Option<bool>) -> SloStatus {
        let states = [State::new(ADMITTED, admitted, reason, "m"), State::new(KEPT, kept, "Measured", "k")];
        let conditions = written(&states, &[], None, &Time(Timestamp::UNIX_EPOCH));
        SloStatus { nodes: nodes.into(), instances: 2, conditions, ..SloStatus::default() }
    }

    fn reasons(before: &SloStatus, after: &SloStatus) -> String {
        let word = |news: News| format!("{}{}", if news.is_bad { "!" } else { "" }, news.reason);
        of_slo(before, after).into_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_changes_for_an_slo_is_news_once() {
        let (none, bad) = (SloStatus::default(), |reason| slo("", Some(false), reason, None));
        let good = |nodes| slo(nodes, Some(true), "Placed", Some(true));
        assert_eq!(reasons(&none, &good("a")), "Admitted");
        assert_eq!(reasons(&none, &bad("NoRoom")), "!NoRoom");
        assert_eq!(reasons(&bad("NoRoom"), &bad("NoRoom")), "");
        assert_eq!(reasons(&bad("NoRoom"), &bad("NoProfile")), "!NoProfile");
        assert_eq!(reasons(&none, &bad("Waiting")), "", "its turn comes");
        assert_eq!(of_slo(&good("a b"), &good("b c"))[0].note, "from a to c");
        assert_eq!(reasons(&good("a"), &good("a b")), "");
        let violated = slo("a", Some(true), "Placed", Some(false));
        assert_eq!(reasons(&good("a"), &violated), "!Measured");
        assert_eq!(reasons(&violated, &good("a")), "KeptAgain");
    }

    #[test]
    fn an_object_has_a_bounded_number_of_events() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        let mut taken = |object: &str, at: u64| budget.takes(object, start + Duration::from_secs(at));
        assert_eq!((0..50).filter(|_| taken("a", 0)).count(), 10);
        assert!(taken("b", 0), "others go on");
        assert_eq!((0..50).filter(|_| taken("a", 125)).count(), 2);
        assert_eq!((0..50).filter(|_| taken("a", 100_000)).count(), 10);
        assert_eq!(budget.0.len(), 1, "those that are full again are forgotten");
        assert_eq!(cut(&"é".repeat(900)).len(), 1000);
    }
}
