//! Profiles on request: what a node without instances measures for others.
//!
//! # Approach
//! A node claims a request by a write over the version that it has read, so one node has it. Then
//! it reports that it profiles. An operator writes a plan over the version that it has read, and
//! gives a node that profiles nothing. So once the API server has taken that report, and the plan
//! still has no instances, none come while it measures. If some come all the same, they go first:
//! the measurement ends, and the request waits for the next node.
//!
//! What a node has begun and does not know of, it began before it was restarted: the request waits
//! again, up to [`MOST`] times.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{Api, Patch, PatchParams, PostParams, Resource};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, Error, ResourceExt};
use serde_json::json;
use sluice_cluster_types::{NfProfile, NfProfileSpec, NodePlanSpec, ProfileRequest, ProfileRequestStatus, Progress};
use sluice_slo::profile::Profile;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::api::{MANAGER, within};
use crate::turn::Turn;

mod measure;

use measure::Outcome;
pub use measure::Place;

/// Time between two looks at what is to be done.
const TICK: Duration = Duration::from_secs(1);
/// Nodes claim a request over this time, in milliseconds, each at a time of its own.
const SPREAD: u64 = 2000;
/// Longest wait until the API server knows that the node profiles.
const FENCE: Duration = Duration::from_secs(20);
/// Time without another claim after one that came to nothing.
const REST: Duration = Duration::from_secs(30);
/// A request has failed when the agent was restarted this many times while it measured.
const MOST: i64 = 3;

/// Whether there is room on a node for a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Free,
    /// Its plan has instances.
    Busy,
    /// It has not taken over its plan.
    Unsettled,
}

impl Room {
    pub fn of(plan: &NodePlanSpec, turn: &Turn) -> Self {
        let is_settled = turn.trouble.is_none() && turn.status.applied_revision == plan.revision;
        match plan.server.instances.is_empty() {
            false => Self::Busy,
            true if is_settled => Self::Free,
            true => Self::Unsettled,
        }
    }
}

/// What the reports of a node know of its profiles, and what they say.
pub struct Reported {
    pub room: watch::Sender<Room>,
    /// Whether the node is to report that it profiles.
    pub wanted: watch::Receiver<bool>,
    /// Whether the API server has that report, and a plan without instances.
    pub fenced: watch::Sender<bool>,
}

/// The other side of [`Reported`].
pub struct Link {
    room: watch::Receiver<Room>,
    wanted: watch::Sender<bool>,
    fenced: watch::Receiver<bool>,
}

pub fn pair() -> (Reported, Link) {
    let (room, its_room) = watch::channel(Room::Unsettled);
    let (its_wanted, wanted) = watch::channel(false);
    let (fenced, its_fenced) = watch::channel(false);
    (Reported { room, wanted, fenced }, Link { room: its_room, wanted: its_wanted, fenced: its_fenced })
}

/// Carries out requests for this class, one after the other.
pub async fn run(client: Client, place: Place, link: Link) {
    let api: Api<ProfileRequest> = Api::all(client.clone());
    let mut events = std::pin::pin!(watcher(api, Config::default()).default_backoff());
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut requests = Requests::new(client, place, link);
    let mut is_watched = true;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    // Each list begins so, also one that is refused.
                    is_watched |= !matches!(event, Event::Init);
                    requests.note(event);
                }
                Some(Err(error)) => {
                    if is_watched {
                        warn!("ProfileRequests cannot be watched: {error}; after an upgrade, apply the definitions of the chart");
                    }
                    is_watched = false;
                }
                None => return,
            },
            _ = tick.tick() => requests.step().await,
        }
    }
}

/// Namespace and name.
type Key = (String, String);

fn key(request: &ProfileRequest) -> Key {
    (request.namespace().unwrap_or_default(), request.name_any())
}

struct Running {
    request: ProfileRequest,
    task: JoinHandle<Outcome>,
}

struct Requests {
    client: Client,
    place: Place,
    link: Link,
    /// The requests as last read, and since when each is known.
    known: BTreeMap<Key, (ProfileRequest, Instant)>,
    /// Whether `known` has all of them.
    is_listed: bool,
    running: Option<Running>,
    /// What is to be written.
    outcome: Option<(ProfileRequest, Outcome)>,
    /// Nothing is claimed before.
    rests: Instant,
}

impl Requests {
    fn new(client: Client, place: Place, link: Link) -> Self {
        let known = BTreeMap::new();
        Self { client, place, link, known, is_listed: false, running: None, outcome: None, rests: Instant::now() }
    }

    fn note(&mut self, event: Event<ProfileRequest>) {
        match event {
            Event::Init => {
                self.known.clear();
                self.is_listed = false;
            }
            Event::InitApply(request) | Event::Apply(request) => self.know(request),
            Event::Delete(request) => drop(self.known.remove(&key(&request))),
            Event::InitDone => self.is_listed = true,
        }
    }

    fn know(&mut self, request: ProfileRequest) {
        let key = key(&request);
        let since = self.known.get(&key).filter(|(known, _)| known.uid() == request.uid()).map(|(_, since)| *since);
        self.known.insert(key, (request, since.unwrap_or_else(Instant::now)));
    }

    /// The request as last read; none if it is gone.
    fn current(&self, request: &ProfileRequest) -> Option<&ProfileRequest> {
        self.known.get(&key(request)).map(|(known, _)| known).filter(|known| known.uid() == request.uid())
    }

    /// Does what is to be done next.
    async fn step(&mut self) {
        if !self.is_listed || self.goes_on().await {
            return;
        }
        if let Some((request, outcome)) = self.outcome.take() {
            if !self.settle(&request, &outcome).await {
                self.outcome = Some((request, outcome));
            }
            return;
        }
        if let Some(request) = self.abandoned().cloned() {
            let attempts = request.status.as_ref().map_or(0, |status| status.attempts);
            let why = "the agent of the node was restarted while it measured".to_string();
            let outcome =
                if attempts < MOST { Outcome::Again(why) } else { Outcome::Failed(format!("{why}, {MOST} times: see its log")) };
            // If it fails, it is still to be seen that it was abandoned.
            self.settle(&request, &outcome).await;
            return;
        }
        let now = Instant::now();
        let may = *self.link.room.borrow() == Room::Free && now >= self.rests;
        if let Some(request) = self.waiting(now).filter(|_| may).cloned() {
            self.begin(request).await;
        }
    }

    /// Whether a measurement goes on; sees to it that it ends where it is to.
    async fn goes_on(&mut self) -> bool {
        let Some(running) = self.running.take() else { return false };
        if self.current(&running.request).is_none() {
            running.task.abort();
        } else if *self.link.room.borrow() == Room::Busy {
            running.task.abort();
            let why = format!("{} got instances while it measured", self.place.node);
            self.outcome = Some((running.request, Outcome::Again(why)));
        } else if running.task.is_finished() {
            let found = running.task.await.unwrap_or_else(|error| Outcome::Failed(format!("the agent failed: {error}")));
            self.outcome = Some((running.request, found));
        } else {
            self.running = Some(running);
            return true;
        }
        self.link.wanted.send_replace(false);
        false
    }

    /// A request that this node has begun, and does not know of.
    fn abandoned(&self) -> Option<&ProfileRequest> {
        let is_own =
            |status: &ProfileRequestStatus| status.state == Progress::Running && status.node.as_ref() == Some(&self.place.node);
        self.known.values().map(|(request, _)| request).find(|request| request.status.as_ref().is_some_and(is_own))
    }

    /// The oldest request that waits for a node of this class.
    fn waiting(&self, now: Instant) -> Option<&ProfileRequest> {
        let waits = |request: &ProfileRequest| request.status.as_ref().is_none_or(|status| status.state == Progress::Pending);
        let is_due = |request: &ProfileRequest, since: Instant| {
            let mut hasher = DefaultHasher::new();
            (&self.place.node, request.uid()).hash(&mut hasher);
            now >= since + Duration::from_millis(hasher.finish() % SPREAD)
        };
        let of_class = self.known.values().filter(|(request, _)| request.spec.class == self.place.class && waits(request));
        let oldest = of_class.min_by_key(|(request, _)| (request.creation_timestamp(), key(request)))?;
        is_due(&oldest.0, oldest.1).then_some(&oldest.0)
    }

    /// Claims a request, and has it measured.
    async fn begin(&mut self, request: ProfileRequest) {
        let attempts = request.status.as_ref().map_or(0, |status| status.attempts) + 1;
        let node = Some(self.place.node.clone());
        let status = ProfileRequestStatus { state: Progress::Running, node, attempts, ..ProfileRequestStatus::default() };
        match self.write(&request, &status).await {
            Ok(claimed) => {
                let (namespace, name) = key(&claimed);
                info!("profiles for {namespace}/{name}");
                self.know(claimed.clone());
                self.link.wanted.send_replace(true);
                let job = measured(self.client.clone(), self.place.clone(), claimed.clone(), self.link.fenced.clone());
                self.running = Some(Running { request: claimed, task: tokio::spawn(job) });
            }
            // Another node was faster, or it is gone: the watch will say so.
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                warn!("a ProfileRequest cannot be claimed: {error}; it is tried again");
                self.rests = Instant::now() + REST;
            }
        }
    }

    /// Writes what became of a request. Returns whether there is nothing more to write.
    async fn settle(&mut self, request: &ProfileRequest, outcome: &Outcome) -> bool {
        let Some(current) = self.current(request).cloned() else { return true };
        let attempts = current.status.as_ref().map_or(0, |status| status.attempts);
        let node = Some(self.place.node.clone());
        let failed = |message: String| ProfileRequestStatus {
            state: Progress::Failed,
            node: node.clone(),
            message,
            attempts,
            ..ProfileRequestStatus::default()
        };
        let status = match outcome {
            Outcome::Failed(why) => failed(why.clone()),
            Outcome::Again(why) => {
                self.rests = Instant::now() + REST;
                ProfileRequestStatus { message: why.clone(), attempts, ..ProfileRequestStatus::default() }
            }
            Outcome::Done(profile) => match self.keep(&current, profile).await {
                Ok(Ok(name)) => ProfileRequestStatus { state: Progress::Done, profile: Some(name), ..failed(String::new()) },
                Ok(Err(why)) => failed(why),
                Err(error) => {
                    warn!("an NFProfile cannot be written: {error}; it is tried again");
                    return false;
                }
            },
        };
        match self.write(&current, &status).await {
            Ok(written) => {
                self.know(written);
                true
            }
            Err(Error::Api(status)) if status.code == 404 => true,
            Err(error) => {
                warn!("the status of a ProfileRequest cannot be written: {error}; it is tried again");
                false
            }
        }
    }

    /// Writes the status over the version of a request that is known.
    async fn write(&self, request: &ProfileRequest, status: &ProfileRequestStatus) -> Result<ProfileRequest, Error> {
        let (namespace, name) = key(request);
        let api: Api<ProfileRequest> = Api::namespaced(self.client.clone(), &namespace);
        let ProfileRequestStatus { state, node, profile, message, attempts } = status;
        let body = json!({
            "metadata": {"resourceVersion": request.resource_version(), "uid": request.uid()},
            // What has no value is removed.
            "status": {"state": state, "node": node, "profile": profile, "message": message, "attempts": attempts},
        });
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        within(api.patch_status(&name, &params, &Patch::Merge(body))).await
    }

    /// Makes the NFProfile of a request, which goes with it. Returns its name, or why the API
    /// server does not take it.
    async fn keep(&self, request: &ProfileRequest, profile: &Profile) -> Result<Result<String, String>, Error> {
        let (namespace, name) = key(request);
        let api: Api<NfProfile> = Api::namespaced(self.client.clone(), &namespace);
        let mut object = NfProfile::new(&name, NfProfileSpec { profile: profile.clone() });
        object.metadata.owner_references = request.owner_ref(&()).map(|owner| vec![owner]);
        let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        match within(api.create(&params, &object)).await {
            Ok(_) => Ok(Ok(name)),
            // It may be this one, if the answer to an earlier write did not come.
            Err(Error::Api(status)) if status.code == 409 => {
                let there = within(api.get_opt(&name)).await?;
                let is_it = there
                    .is_some_and(|there| there.owner_references().iter().any(|owner| Some(&owner.uid) == request.uid().as_ref()));
                let taken = format!("there is another NFProfile \"{name}\" in {namespace}: make a request with another name");
                Ok(if is_it { Ok(name) } else { Err(taken) })
            }
            Err(Error::Api(status)) if status.code < 500 && status.code != 429 => Ok(Err(status.message)),
            Err(error) => Err(error),
        }
    }
}

/// Measures once no instances can come any more.
async fn measured(client: Client, place: Place, request: ProfileRequest, mut fenced: watch::Receiver<bool>) -> Outcome {
    let is_fenced = async { fenced.wait_for(|is| *is).await.is_ok() };
    if !tokio::time::timeout(FENCE, is_fenced).await.unwrap_or(false) {
        return Outcome::Again(format!("{} could not report that it profiles", place.node));
    }
    let job = match measure::job(&client, &place, &request).await {
        Ok(job) => job,
        Err(outcome) => return outcome,
    };
    match measure::run(&place.program, &job, measure::LIMIT).await {
        Ok(profile) => Outcome::Done(Box::new(profile)),
        Err(why) => Outcome::Failed(why),
    }
}
