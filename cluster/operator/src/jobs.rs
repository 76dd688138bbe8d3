//! Requests beside the rounds: one of each object at a time, pods first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::future::BoxFuture;
use kube::Error;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use sluice_cluster_plan::status::Touched;
use sluice_cluster_plan::{Key, Pod};
use tokio::task::JoinSet;

use crate::backoff::{Backoff, Failure};
use crate::feed::{Change, key};

/// What a request has done: the object as it is now.
pub type Outcome = Result<Option<Change>, Error>;
pub type Work = BoxFuture<'static, Outcome>;

/// What is written, or read, and may fail by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    Pod(Key),
    Slo(Key),
    Chain(Key),
    Function(Key),
    Profile(Key),
    Class(String),
    /// The plan of a node, written in a round.
    Plan(String),
    /// Everything that is read before it leads.
    Begin,
    /// Plans that may be written.
    Unsure,
    /// The leases of agents.
    Leases,
}

impl Job {
    fn is_pod(&self) -> bool {
        matches!(self, Self::Pod(_))
    }

    /// The job of the object that a change is of.
    pub fn of(change: &Change) -> Option<Self> {
        fn of<K: ResourceExt>(event: &Event<K>) -> Option<Key> {
            match event {
                Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => Some(key(object)),
                Event::Init | Event::InitDone => None,
            }
        }
        match change {
            Change::Pod(event) => of(event).map(Self::Pod),
            Change::Slo(event) => of(event).map(Self::Slo),
            Change::Chain(event) => of(event).map(Self::Chain),
            Change::Function(event) => of(event).map(Self::Function),
            Change::Profile(event) => of(event).map(Self::Profile),
            Change::Class(event) => of(event).map(|key| Self::Class(key.name)),
            Change::Plan(event) => of(event).map(|key| Self::Plan(key.name)),
            Change::Node(_) | Change::Lease(_) => None,
        }
    }
}

/// The requests that are under way, and those that are to follow.
pub struct Jobs {
    /// Most at a time.
    most: usize,
    /// In tasks of their own: they go on while a round is computed.
    under_way: JoinSet<(Job, Outcome)>,
    busy: BTreeSet<Job>,
    todo: BTreeMap<Job, Work>,
    /// Whether there may be more to do with pods once no request of pods is under way.
    pub pods_left: bool,
    /// The same of everything else, once nothing is under way.
    pub rest_left: bool,
    pub pauses: Backoff<Job>,
    /// Pods that ended, and so were deleted to be made anew: those that end again and again are
    /// made less and less often.
    pub ended: Backoff<Job>,
    /// When the last round began: a pause that has ended since then is news.
    pub looked: Instant,
}

impl Jobs {
    pub fn new(most: usize) -> Self {
        let under_way = JoinSet::new();
        let (busy, todo, pauses) = (BTreeSet::new(), BTreeMap::new(), Backoff::default());
        let ended = Backoff::default();
        Self { most, under_way, busy, todo, pods_left: false, rest_left: false, pauses, ended, looked: Instant::now() }
    }

    pub fn is_busy(&self, job: &Job) -> bool {
        self.busy.contains(job)
    }

    /// The objects of which a request is under way.
    pub fn busy(&self) -> impl Iterator<Item = &Job> {
        self.busy.iter()
    }

    /// The SLOs and NFs of which a request is under way.
    pub fn touched(&self) -> Touched {
        let slos = self.busy.iter().filter_map(|job| if let Job::Slo(key) = job { Some(key.clone()) } else { None });
        let functions = self.busy.iter().filter_map(|job| if let Job::Function(key) = job { Some(key.clone()) } else { None });
        Touched { slos: slos.collect(), functions: functions.collect() }
    }

    /// What is to be done with pods from now on, and whether some were left out. What is under way,
    /// or has failed just now, comes later.
    pub fn plan_pods(&mut self, todo: BTreeMap<Job, Work>, are_left: bool) {
        self.pods_left = are_left || self.has_busy(&todo);
        self.todo.retain(|job, _| !job.is_pod());
        self.add(todo);
    }

    /// The same of everything else. What is under way may bring what is wrong by now, also of what
    /// is as it should be: of SLOs and NFs, [`Jobs::touched`] says so.
    pub fn plan_rest(&mut self, todo: BTreeMap<Job, Work>) {
        let is_other = |job: &Job| matches!(job, Job::Chain(_) | Job::Profile(_) | Job::Class(_));
        self.rest_left = self.has_busy(&todo) || self.busy.iter().any(is_other);
        self.todo.retain(|job, _| job.is_pod());
        self.add(todo);
    }

    /// The same of these objects alone, of none of which a request is under way.
    pub fn plan_some(&mut self, of: &BTreeSet<Job>, todo: BTreeMap<Job, Work>) {
        self.todo.retain(|job, _| !of.contains(job));
        self.add(todo);
    }

    fn has_busy(&self, todo: &BTreeMap<Job, Work>) -> bool {
        todo.keys().any(|job| self.busy.contains(job))
    }

    fn add(&mut self, mut todo: BTreeMap<Job, Work>) {
        let now = Instant::now();
        todo.retain(|job, _| !self.busy.contains(job) && self.pauses.may(job, now) && self.ended.may(job, now));
        self.todo.append(&mut todo);
    }

    /// Nothing more is begun.
    pub fn stop(&mut self) {
        self.todo.clear();
    }

    /// Starts as many requests as may be under way.
    pub fn start(&mut self) {
        while self.under_way.len() < self.most {
            let Some((job, work)) = self.todo.pop_first() else { return };
            self.busy.insert(job.clone());
            self.under_way.spawn(async move { (job, work.await) });
        }
    }

    /// Waits for the end of a request. None if none is under way.
    pub async fn next(&mut self) -> Option<(Job, Outcome)> {
        match self.under_way.join_next().await? {
            Ok(done) => Some(done),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Notes how a request has ended.
    pub fn end(&mut self, job: &Job, failure: Option<Failure>) {
        self.busy.remove(job);
        match failure {
            None => self.pauses.end(job),
            Some(failure) => self.pauses.fail(job.clone(), failure, Instant::now()),
        }
    }

    /// Has a pod wait that was made, or has ended and was deleted to be made anew. `pod` is it as
    /// it was.
    pub fn pause_made(&mut self, job: &Job, pod: Option<&Pod>, done: &Outcome) {
        let now = Instant::now();
        if done.is_ok() && pod.and_then(|pod| pod.made.as_ref()).is_some_and(|made| made.has_ended) {
            self.ended.fail(job.clone(), Failure::Refused, now);
        }
        // The watch brings what was made, and until then it is not made again.
        if pod.is_none() && matches!(done, Ok(Some(_))) {
            self.pauses.fail(job.clone(), Failure::Away, now);
        }
    }

    /// When the next pause ends that has not ended by `since`.
    pub fn next_pause(&self, since: Instant) -> Option<Instant> {
        [self.pauses.next(since), self.ended.next(since)].into_iter().flatten().min()
    }

    /// Whether pods that were left out can be decided now that this has ended.
    pub fn are_pods_due(&self, ended: &Job) -> bool {
        // Pods are first.
        let has_pods = [self.busy.first(), self.todo.keys().next()].into_iter().flatten().any(Job::is_pod);
        self.pods_left && ended.is_pod() && !has_pods
    }

    /// Whether the rest that was left out can be decided now.
    pub fn is_rest_due(&self) -> bool {
        self.rest_left && self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that fails.
    fn failing() -> Work {
        Box::pin(async { Err(Error::Service("no".into())) })
    }

    fn slo(name: &str) -> Job {
        Job::Slo(Key::new("t", name))
    }

    #[tokio::test]
    async fn an_object_that_fails_waits_and_holds_no_other() {
        let mut jobs = Jobs::new(1);
        jobs.plan_rest([(slo("bad"), failing())].into());
        jobs.start();
        let (job, done) = jobs.next().await.unwrap();
        jobs.end(&job, done.err().map(|error| Failure::of(&error)));
        let both = || BTreeMap::from([(slo("bad"), failing()), (slo("good"), Box::pin(async { Ok(None) }) as Work)]);
        jobs.plan_rest(both());
        jobs.start();
        assert_eq!(jobs.busy().collect::<Vec<_>>(), [&slo("good")], "it alone is begun");
        let (job, done) = jobs.next().await.unwrap();
        jobs.end(&job, done.err().map(|error| Failure::of(&error)));
        assert!(!jobs.is_rest_due(), "nothing was left out");
        // Once it is another object, it does not wait.
        jobs.pauses.end(&slo("bad"));
        jobs.plan_rest(both());
        jobs.start();
        assert_eq!(jobs.busy().collect::<Vec<_>>(), [&slo("bad")]);
    }

    #[tokio::test]
    async fn what_is_planned_of_some_leaves_the_others_as_they_are() {
        let mut jobs = Jobs::new(1);
        jobs.plan_rest([(slo("a"), failing()), (slo("b"), failing()), (slo("c"), failing())].into());
        // One is as it should be by now, and another one is new.
        jobs.plan_some(&[slo("a"), slo("d")].into(), [(slo("d"), failing())].into());
        assert_eq!(jobs.todo.keys().collect::<Vec<_>>(), [&slo("b"), &slo("c"), &slo("d")]);
        jobs.start();
        let (job, done) = jobs.next().await.unwrap();
        jobs.end(&job, done.err().map(|error| Failure::of(&error)));
        assert!(!jobs.rest_left && !jobs.is_rest_due(), "nothing was left out");
    }

    #[tokio::test]
    async fn what_is_under_way_is_looked_at_again_also_where_nothing_is_to_be_written() {
        let mut jobs = Jobs::new(8);
        let (nf, chain) = (Key::new("t", "nat"), Job::Chain(Key::new("t", "c")));
        jobs.plan_rest([(slo("s"), failing()), (Job::Function(nf.clone()), failing())].into());
        jobs.start();
        jobs.plan_rest(BTreeMap::new());
        let touched = Touched { slos: [Key::new("t", "s")].into(), functions: [nf].into() };
        assert_eq!((jobs.touched(), jobs.rest_left), (touched, false));
        jobs.plan_rest([(chain, failing())].into());
        jobs.start();
        assert!(!jobs.rest_left, "nothing of it was under way");
        jobs.plan_rest(BTreeMap::new());
        assert!(jobs.rest_left && !jobs.is_rest_due());
        while let Some((job, _)) = jobs.next().await {
            jobs.end(&job, None);
        }
        assert!(jobs.touched().is_empty() && jobs.is_rest_due());
        jobs.plan_rest(BTreeMap::new());
        assert!(!jobs.is_rest_due(), "it is looked at once");
    }

    #[tokio::test]
    async fn a_pod_that_ends_again_and_again_waits_also_when_it_is_another_one() {
        let mut jobs = Jobs::new(1);
        let pod = Job::Pod(Key::new("t", "p"));
        let since = Instant::now();
        let lasts = |jobs: &mut Jobs| {
            jobs.ended.fail(pod.clone(), Failure::Refused, since);
            jobs.pauses.end(&pod);
            jobs.plan_pods([(pod.clone(), failing())].into(), false);
            jobs.start();
            assert!(!jobs.is_busy(&pod), "it waits");
            jobs.next_pause(since).unwrap().duration_since(since)
        };
        // So long that no test passes it.
        let first: Vec<_> = (0..20).map(|_| lasts(&mut jobs)).collect();
        assert!(first[0] < first[1] && first[18] == first[19], "{first:?}");
        jobs.ended.end(&pod);
        jobs.plan_pods([(pod.clone(), failing())].into(), false);
        jobs.start();
        assert!(jobs.is_busy(&pod), "one that was ready does not");
    }

    #[tokio::test]
    async fn what_is_left_out_is_decided_when_what_it_waits_for_has_ended() {
        let mut jobs = Jobs::new(8);
        let pod = Job::Pod(Key::new("t", "p"));
        let plan = |jobs: &mut Jobs| {
            jobs.plan_pods([(pod.clone(), failing())].into(), false);
            jobs.plan_rest([(slo("s"), failing())].into());
            jobs.start();
        };
        plan(&mut jobs);
        assert!(!jobs.pods_left && !jobs.rest_left);
        // Both are other ones by now.
        plan(&mut jobs);
        assert!(!jobs.are_pods_due(&slo("s")) && !jobs.is_rest_due());
        jobs.end(&pod, None);
        assert!(jobs.are_pods_due(&pod), "a status that is under way holds no pods up");
        jobs.plan_pods(BTreeMap::new(), false);
        assert!(!jobs.are_pods_due(&pod) && !jobs.is_rest_due(), "its own answer is waited for");
        while let Some((job, _)) = jobs.next().await {
            jobs.end(&job, None);
        }
        assert!(jobs.is_rest_due());
    }
}
