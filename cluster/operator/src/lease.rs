//! Which of several operators acts: the one with the lease.
//!
//! # Approach
//! As Kubernetes' own controllers do it: a candidate takes the lease when its holder has not
//! renewed it for the lease's time by the candidate's own clock, so clocks need not agree. The
//! holder acts for two thirds of that time after its last renewal, so it has stopped before another
//! one begins. Requests have a time limit that fits into the last third.
//!
//! *Term*: the lease's transitions, one more for each holder. It is written into each plan, and the
//! API server refuses a plan with a lower one: what a holder has sent that was stopped, and goes on
//! later, does no harm, as its successor writes the term into all plans first. If the lease was
//! deleted, the count begins above the terms of the plans.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::sync::{Notify, watch};
use tracing::warn;

use crate::write::{is_conflict, within};

/// A candidate, or the holder.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    me: String,
    time: Duration,
    /// The last lease that was seen, and since when.
    seen: Option<(LeaseSpec, Instant)>,
    holds: Option<Held>,
}

/// The lease is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub term: i64,
    /// Until then alone, unless it is renewed.
    pub until: Instant,
}

/// Whether the lease is held in this term.
pub fn leads(held: &watch::Receiver<Option<Held>>, term: i64) -> bool {
    held.borrow().is_some_and(|held| held.term == term && Instant::now() < held.until)
}

impl Candidate {
    pub fn new(client: Client, namespace: &str, name: &str, me: &str, time: Duration) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.into(), me: me.into(), time, seen: None, holds: None }
    }

    /// The lease, while it is held.
    pub fn held(&self) -> Option<Held> {
        self.holds.filter(|held| Instant::now() < held.until)
    }

    /// Time between two attempts.
    pub fn period(&self) -> Duration {
        self.time / 6
    }

    /// Takes or renews the lease if that is possible. `highest` is the highest term of any plan.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    pub async fn attempt(&mut self, highest: i64) -> Result<(), Error> {
        let began = Instant::now();
        let until = began + self.time * 2 / 3;
        let found = within(self.time / 6, self.api.get_opt(&self.name)).await?;
        let Some(found) = found else {
            let spec = self.spec(highest.saturating_add(1), None)?;
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(spec) };
            let made = within(self.time / 6, self.api.create(&PostParams::default(), &lease)).await;
            return self.settle(made, until);
        };
        let spec = found.spec.clone().unwrap_or_default();
        let is_mine = spec.holder_identity.as_deref() == Some(self.me.as_str());
        let is_free = spec.holder_identity.as_deref().is_none_or(str::is_empty);
        match &self.seen {
            Some((seen, _)) if *seen == spec => {}
            _ => self.seen = Some((spec.clone(), began)),
        }
        let is_over = self.seen.as_ref().is_some_and(|(_, since)| since.elapsed() >= self.time);
        if !is_mine && !is_free && !is_over {
            self.holds = None;
            return Ok(());
        }
        let transitions = i64::from(spec.lease_transitions.unwrap_or(0));
        // A holder's plans have its own term.
        let goes_on = is_mine && self.holds.is_some() && highest <= transitions;
        let term = if goes_on { transitions } else { transitions.max(highest).saturating_add(1) };
        let acquired = spec.acquire_time.filter(|_| goes_on);
        let lease = Lease { metadata: found.metadata, spec: Some(self.spec(term, acquired)?) };
        let written = within(self.time / 6, self.api.replace(&self.name, &PostParams::default(), &lease)).await;
        self.settle(written, until)
    }

    /// Gives the lease back, so that another operator can begin at once.
    pub async fn release(&mut self) {
        if self.holds.take().is_none() {
            return;
        }
        let Ok(Some(mut lease)) = within(self.time / 6, self.api.get_opt(&self.name)).await else { return };
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(self.me.as_str())) else {
            return;
        };
        spec.holder_identity = Some(String::new());
        // If that fails, the lease ends by itself.
        let _ = within(self.time / 6, self.api.replace(&self.name, &PostParams::default(), &lease)).await;
    }

    fn settle(&mut self, written: Result<Lease, Error>, until: Instant) -> Result<(), Error> {
        match written {
            Ok(lease) => {
                let spec = lease.spec.unwrap_or_default();
                let term = i64::from(spec.lease_transitions.unwrap_or(0));
                self.seen = Some((spec, Instant::now()));
                self.holds = Some(Held { term, until });
                Ok(())
            }
            // Another one was faster.
            Err(error) if is_conflict(&error) => {
                self.holds = None;
                Ok(())
            }
            // It may have been written; until the lease is read again, what was held is held.
            Err(error) => Err(error),
        }
    }

    /// # Errors
    /// A lease cannot count that far.
    fn spec(&self, term: i64, acquired: Option<MicroTime>) -> Result<LeaseSpec, Error> {
        let now = MicroTime(Timestamp::now());
        Ok(LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(self.time.as_secs()).ok(),
            lease_transitions: Some(transitions(term, &self.name)?),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            ..LeaseSpec::default()
        })
    }

    /// Takes and renews the lease, and gives it back at `end`. `say` has whether it is held.
    /// `highest` is the highest term of the plans, negative until they are read.
    pub async fn stand(mut self, say: watch::Sender<Option<Held>>, highest: Arc<AtomicI64>, end: Arc<Notify>) {
        let mut ticks = tokio::time::interval(self.period());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut has_warned = false;
        loop {
            tokio::select! {
                () = end.notified() => return self.release().await,
                _ = ticks.tick() => {}
            }
            // Without the terms of the plans, none of its own is known to be high enough.
            let above = highest.load(Ordering::Relaxed);
            if above < 0 {
                continue;
            }
            match self.attempt(above).await {
                Ok(()) => has_warned = false,
                Err(error) if !has_warned => {
                    warn!("the lease cannot be read or written: {error}; it is tried again");
                    has_warned = true;
                }
                Err(_) => {}
            }
            let held = self.held();
            say.send_if_modified(|before| std::mem::replace(before, held) != held);
        }
    }
}

/// A term as a lease counts it.
fn transitions(term: i64, lease: &str) -> Result<i32, Error> {
    let far = |_| {
        let message = format!(
            "the next term would be {term}, and a lease counts to {}: somebody has written a term by hand. Delete the lease {lease} \
             if it is of that (kubectl get lease), and otherwise the NodePlans with such a term (kubectl get nodeplans \
             -o custom-columns=NAME:.metadata.name,TERM:.spec.term)",
            i32::MAX
        );
        Error::Service(message.into())
    };
    i32::try_from(term).map_err(far)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_that_no_lease_can_hold_says_what_to_do() {
        assert_eq!(transitions(i64::from(i32::MAX), "a").ok(), Some(i32::MAX));
        let error = transitions(i64::from(i32::MAX) + 1, "a").unwrap_err().to_string();
        assert!(error.contains("Delete the lease a") && error.contains("2147483648"), "{error}");
    }
}
