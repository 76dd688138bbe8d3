//! Carries out decisions about SLOs on demand ([`sluice_promises::steer`]).

use std::sync::mpsc::TryRecvError;

use sluice_slo::assignment::Assignment;
use sluice_slo::on_demand::Request;

use super::promises::{Adding, PromiseKeeper};
use super::{Supervisor, SupervisorError};
use sluice_api::promise::{self as report, Steered};
use sluice_promises::sight::OnDemand;
use sluice_promises::steer::{is_on_demand, one_more};

impl PromiseKeeper {
    /// Logs a trouble once.
    pub(super) fn trouble(&mut self, trouble: String) {
        if self.troubles.insert(trouble.clone()) {
            warn!("{trouble}");
        }
    }

    /// Why SLOs on demand share no cache, if there are any and they cannot.
    pub(super) fn why_unshared(&self) -> Option<String> {
        let any = self.slos().any(is_on_demand);
        let why = self.classes.why_none().unwrap_or("the processor cannot give ways of its cache");
        let said = || format!("SLOs on demand share no cache: {why}; they get instances, and their input is policed");
        (any && !self.classes.gives_ways()).then(said)
    }

    /// Whether traffic from memory is counted on this host.
    fn counts_traffic(&self) -> bool {
        !self.traffic.is_empty()
    }

    pub(super) fn steered(&self, assignment: &Assignment, slo: &str) -> Option<Steered> {
        let slo = assignment.slos.iter().map(|promised| &promised.slo).find(|other| other.name == slo && is_on_demand(other))?;
        let lacking = self.steering.lacking(&slo.name);
        Some(Steered {
            own_ways: self.steering.own(assignment, &slo.name),
            shared_ways: self.classes.shared_ways(),
            limit_pps: self.steering.limit(slo).filter(|_| self.settings.police),
            asks_for: lacking.map(|lacking| report::Asked { instances: lacking.instances, why: lacking.why.clone() }),
            remedy: self.steering.remedy(&slo.name),
        })
    }

    pub(super) fn decisions(&self, now_ns: u64) -> Vec<report::Decided> {
        let age = |at_ns: u64| now_ns.saturating_sub(at_ns) as f64 / 1e9;
        let told = self.steering.noted();
        told.map(|told| report::Decided { age_s: age(told.at_ns), slo: told.slo.clone(), what: told.what.clone() }).collect()
    }
}

impl Supervisor {
    /// Ends a window for SLOs on demand.
    pub(super) fn steer(&mut self, now: u64, assignment: &Assignment, seen: &[OnDemand]) {
        self.see_added(now);
        // During a placement ways are reserved; and an SLO without measurements is not gone.
        let all = assignment.slos.iter().filter(|promised| is_on_demand(&promised.slo)).count();
        // Nor does an instance that is not counted yet count as one without misses.
        let is_counted = !self.promises.uncounted.awaits(seen) || !self.promises.counts_traffic();
        if all > 0 && seen.len() == all && self.promises.placing.is_none() && is_counted {
            self.decide(now, assignment, seen);
        }
        for told in self.promises.steering.unsaid() {
            info!("{}: {}", told.slo, told.what);
        }
    }

    fn decide(&mut self, now: u64, assignment: &Assignment, seen: &[OnDemand]) {
        if let Some(why) = self.promises.why_unshared().filter(|_| !std::mem::replace(&mut self.promises.said_unshared, true)) {
            warn!("{why}");
        }
        let room = self.promises.classes.room();
        let requests = match self.promises.steering.step(now, assignment, room, seen) {
            Ok(requests) => requests,
            Err(error) => return self.promises.trouble(error.to_string()),
        };
        let wanted = self.promises.steering.lay_out(assignment, room);
        if room.is_some() && wanted != *self.promises.classes.classes() {
            // An instance that goes back moves to the shared class before its own is removed.
            self.attend();
            if let Err(error) = self.promises.classes.change(wanted) {
                self.promises.trouble(format!("cache classes of SLOs on demand stay as they were: {error}"));
            }
        }
        self.promises.steering.made(self.promises.classes.classes());
        self.attend();
        for slo in assignment.slos.iter().map(|promised| &promised.slo).filter(|slo| is_on_demand(slo)) {
            let limit = self.promises.limit(assignment, slo);
            if let Some(bucket) = self.promises.buckets.get(&slo.name) {
                bucket.limit(now, limit);
            }
        }
        for request in requests {
            if self.add_instance(now, assignment, &request) {
                // One at a time: the next one needs the resulting assignment.
                break;
            }
        }
    }

    /// Begins to place one more instance, and returns whether it did.
    fn add_instance(&mut self, now: u64, assignment: &Assignment, request: &Request) -> bool {
        let ours = match self.attaching_now().contains(&request.slo) {
            true => Err(SupervisorError::Invalid("its NFs attach, and only what starts them can place one more".into())),
            false => one_more(assignment, &request.slo).map_err(|error| SupervisorError::Invalid(error.to_string())),
        };
        let began = ours.and_then(|more| self.begin(more));
        match began {
            Ok(outcome) => {
                self.promises.adding = Some(Adding { request: request.clone(), outcome });
                true
            }
            Err(error) => {
                self.promises.steering.refuse(now, request, error.to_string());
                false
            }
        }
    }

    /// Handles the outcome of an instance that was being added.
    fn see_added(&mut self, now: u64) {
        let Some(adding) = self.promises.adding.take() else { return };
        let Request { slo, instances } = &adding.request;
        match adding.outcome.try_recv() {
            Ok(Ok(_)) => self.promises.steering.note(now, slo, format!("has {instances} instances now, as it asked for")),
            Ok(Err(error)) => self.promises.steering.refuse(now, &adding.request, error.to_string()),
            Err(TryRecvError::Empty) => self.promises.adding = Some(adding),
            Err(TryRecvError::Disconnected) => {}
        }
    }
}
