//! Events of a node: what has changed from turn to turn, for people that look at its plan.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Error};
use sluice_cluster_types::{NodePlan, NodePlanSpec, Slo};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::{info, warn};

use crate::api::{MANAGER, within};
use crate::turn::{Trouble, Turn};

/// Most events at once.
const BURST: u32 = 20;
/// After each of these times there may be one more.
const REFILL: Duration = Duration::from_secs(15);
/// Pause before an event is written again that the API server did not answer.
const PAUSE: Duration = Duration::from_secs(5);
/// Most bytes of a text, which the API bounds.
const LONGEST: usize = 1000;

/// Something that has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct News {
    pub is_good: bool,
    /// One word, for programs.
    pub reason: &'static str,
    /// What the agent did.
    action: &'static str,
    pub note: String,
    /// Namespace and name of the SLO that it is about.
    slo: Option<(String, String)>,
}

fn good(reason: &'static str, action: &'static str, note: String) -> News {
    News { is_good: true, reason, action, note, slo: None }
}

fn bad(reason: &'static str, action: &'static str, note: String) -> News {
    News { is_good: false, ..good(reason, action, note) }
}

/// What a turn has changed.
pub fn of(plan: &NodePlanSpec, before: &Turn, now: &Turn) -> Vec<News> {
    let mut news = of_daemon(before.trouble.as_ref(), now.trouble.as_ref());
    let (old, new) = (&before.status, &now.status);
    if new.applied_revision != old.applied_revision {
        let note = format!("took over revision {} of the plan: {} instances", new.applied_revision, plan.server.instances.len());
        news.push(good("Applied", "TakeOver", note));
    }
    if let Some(why) = new.refused.as_ref().filter(|_| new.refused != old.refused) {
        news.push(bad("Refused", "TakeOver", format!("revision {} of the plan is refused: {why}", new.observed_revision)));
    }
    for one in &new.uses {
        let was = old.uses.iter().find(|other| other.slo == one.slo).map_or("new", |other| other.state.as_str());
        let Some(chain) = plan.chains.iter().find(|chain| chain.name == one.slo) else { continue };
        let name = format!("{}/{}", chain.namespace, chain.slo);
        let found = match (was == "violated", one.state.as_str()) {
            (false, "violated") => {
                let latency = one.latency_us.map(|us| format!(", 95 % within {us} µs")).unwrap_or_default();
                let load = format!("{} of {} packets/s{latency}", one.delivered_pps, one.offered_pps);
                bad("SloViolated", "Measure", format!("the SLO {name} is violated here: {load}; see `sluice slo list` on the node"))
            }
            (true, "kept") => good("SloKept", "Measure", format!("the SLO {name} is kept here again")),
            _ => continue,
        };
        news.push(News { slo: Some((chain.namespace.clone(), chain.slo.clone())), ..found });
    }
    news
}

/// What the API server does not let the agent do, and what to do.
pub fn no_access(fault: String) -> News {
    bad("NoAccess", "Ask", fault)
}

fn of_daemon(before: Option<&Trouble>, now: Option<&Trouble>) -> Vec<News> {
    let is_away = |trouble: Option<&Trouble>| matches!(trouble, Some(Trouble::Away(_)));
    let mut news = Vec::new();
    if is_away(before) && !is_away(now) {
        news.push(good("DaemonBack", "Ask", "sluiced answers again".into()));
    }
    let is_new = before.map(std::mem::discriminant) != now.map(std::mem::discriminant);
    match now.filter(|_| is_new) {
        Some(Trouble::Away(why)) => news.push(bad("DaemonAway", "Ask", why.clone())),
        Some(Trouble::Failed(why)) => news.push(bad("DaemonFails", "Ask", why.clone())),
        Some(Trouble::Between(why)) => news.push(bad("BetweenPlans", "TakeOver", why.clone())),
        None => {}
    }
    news
}

/// How many events there may be.
struct Bucket {
    left: u32,
    since: Instant,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        while self.left < BURST && now.saturating_duration_since(self.since) >= REFILL {
            self.left += 1;
            self.since += REFILL;
        }
        if self.left == BURST {
            self.since = now;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

/// Takes news of a node, and has them written as events of its plan.
pub struct Desk {
    bucket: Bucket,
    out: Sender<(News, ObjectReference)>,
    about: ObjectReference,
}

impl Desk {
    /// A desk, and what [`write()`] is to write.
    pub fn new(node: &str) -> (Self, Receiver<(News, ObjectReference)>) {
        let (out, news) = channel(BURST as usize);
        let (version, kind) = (NodePlan::api_version(&()).into(), NodePlan::kind(&()).into());
        let about =
            ObjectReference { api_version: Some(version), kind: Some(kind), name: Some(node.into()), ..ObjectReference::default() };
        (Self { bucket: Bucket { left: BURST, since: Instant::now() }, out, about }, news)
    }

    /// The plan as it was last read.
    pub fn know(&mut self, plan: &NodePlan) {
        // With the version, so that events with other texts are other events.
        self.about = ObjectReference { resource_version: plan.metadata.resource_version.clone(), ..plan.object_ref(&()) };
    }

    /// Has news written, unless there were too many lately.
    pub fn take(&mut self, news: News, now: Instant) {
        if news.is_good {
            info!("{}", news.note);
        } else {
            warn!("{}", news.note);
        }
        if self.bucket.take(now) {
            // Where the API server is away for long, the first ones wait for it.
            let _ = self.out.try_send((news, self.about.clone()));
        }
    }
}

/// Writes events, also those of a time in which the API server was away.
pub async fn write(client: Client, node: String, mut news: Receiver<(News, ObjectReference)>) {
    let recorder = Recorder::new(client, Reporter { controller: MANAGER.into(), instance: Some(node) });
    while let Some((news, about)) = news.recv().await {
        let event = event(&news);
        loop {
            match within(recorder.publish(&event, &about)).await {
                Ok(()) => break,
                Err(Error::Api(status)) if status.code < 500 && status.code != 429 => {
                    warn!(
                        "the API server refuses an event: {}; the chart's rights of sluice-node are to be as it has them",
                        status.message
                    );
                    break;
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

fn event(news: &News) -> Event {
    let secondary = news.slo.as_ref().map(|(namespace, name)| ObjectReference {
        api_version: Some(Slo::api_version(&()).into()),
        kind: Some(Slo::kind(&()).into()),
        namespace: Some(namespace.clone()),
        name: Some(name.clone()),
        ..ObjectReference::default()
    });
    let end = news.note.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= LONGEST).last().unwrap_or(0);
    Event {
        type_: if news.is_good { EventType::Normal } else { EventType::Warning },
        reason: news.reason.into(),
        note: Some(news.note[..end].into()),
        action: news.action.into(),
        secondary,
    }
}

#[cfg(test)]
mod tests {
    use sluice_cluster_types::Use;

    use super::*;
    use crate::agent::tests::plan;

    fn turn(revision: i64, state: &str) -> Turn {
        let mut turn = Turn::default();
        turn.status.applied_revision = revision;
        turn.status.uses = vec![Use { slo: "a".into(), state: state.into(), ..Use::default() }];
        turn
    }

    fn reasons(before: &Turn, now: &Turn) -> Vec<&'static str> {
        of(&plan(2, &["a"]), before, now).iter().map(|news| news.reason).collect()
    }

    #[test]
    fn what_changes_is_news_once() {
        assert_eq!(reasons(&turn(1, "kept"), &turn(2, "kept")), ["Applied"]);
        assert_eq!(reasons(&turn(2, "kept"), &turn(2, "violated")), ["SloViolated"]);
        assert_eq!(reasons(&turn(2, "violated"), &turn(2, "kept")), ["SloKept"]);
        assert!(reasons(&turn(2, "violated"), &turn(2, "violated")).is_empty());
        let mut refused = turn(1, "kept");
        refused.status.refused = Some("no".into());
        assert_eq!(reasons(&turn(1, "kept"), &refused), ["Refused"]);
        assert!(reasons(&refused, &refused).is_empty());
        let away = |why: &str| Turn { trouble: Some(Trouble::Away(why.into())), ..turn(2, "kept") };
        assert_eq!(reasons(&turn(2, "kept"), &away("no answer")), ["DaemonAway"]);
        assert!(reasons(&away("no answer"), &away("another word")).is_empty());
        assert_eq!(reasons(&away("no answer"), &turn(2, "kept")), ["DaemonBack"]);
    }

    #[test]
    fn there_are_few_events_at_once() {
        let began = Instant::now();
        let mut bucket = Bucket { left: BURST, since: began };
        assert_eq!((0..2 * BURST).filter(|_| bucket.take(began)).count(), BURST as usize);
        assert!(!bucket.take(began + REFILL / 2) && bucket.take(began + REFILL) && !bucket.take(began + REFILL));
        let long = bad("Refused", "TakeOver", "µ".repeat(LONGEST));
        assert_eq!(event(&long).note.unwrap().len(), LONGEST);
    }
}
