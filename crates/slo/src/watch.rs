//! Whether SLOs are kept, and which tenant is the cause if not.
//!
//! # Problem
//! A tenant does not get the throughput or latency it was promised. Either it sends more than it
//! may, or a neighbour is the cause; then, which one?
//!
//! # Terms and units
//! A *window* is about one second of measurements. *Offered*: packets that arrived for a tenant.
//! *Policed*: those of them above its rate that were dropped at the entry. *Delivered*: packets
//! that its NFs finished. *Part*: the cores assigned to a tenant; 0.25 is a quarter of one. A
//! tenant *leaves its profile* when it offers more than was promised. It is *rogue* in a window if
//! it leaves its profile or uses more CPU than its part.
//!
//! # Approach
//! A throughput is violated if fewer packets are delivered than were offered, admitted and
//! promised: a tenant that offers more is still owed what was promised, and no more. A latency is
//! violated if the 95th percentile is above the promise while the load of the NFs keeps to the
//! rate, because the tenant does or because the excess was policed; otherwise latency is not
//! evaluated in that window. A violation begins with its first window and ends with the second
//! consecutive window without it. The cause is the tenant that is rogue in the same window and
//! exceeds its allowance by the largest factor; tenants that share a core with the victim come
//! first. Time is an argument.
//!
//! # Limits
//! What takes resources from the whole host (other programs, a hypervisor) has no name here: such a
//! violation is reported without a cause. A tenant that uses more CPU than its part while others
//! leave it idle is blamed only if another tenant suffers at that time.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tolerated excess of a rate, as a part: packets come in bursts, and windows cut them.
const RATE_TOLERANCE: f64 = 0.05;
/// Tolerated shortfall of a throughput, as a part, for the same reason.
const DELIVERY_TOLERANCE: f64 = 0.02;
/// Tolerated CPU use beyond a tenant's part, in cores, for what a window cuts.
const CPU_TOLERANCE: f64 = 0.05;
/// Consecutive windows without a violation that end it.
const GOOD_WINDOWS: u32 = 2;

/// What is promised to a tenant on this server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Packets per second; none on demand.
    pub throughput_pps: Option<f64>,
    /// 95th percentile of latency, in microseconds.
    pub latency_us: f64,
}

/// Measurements of one tenant in one window.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TenantWindow {
    /// Its SLO's name; another name for a tenant without an SLO.
    pub tenant: String,
    /// None for a tenant without an SLO.
    pub terms: Option<Terms>,
    /// Packets per second that arrived.
    pub offered_pps: f64,
    /// Packets per second of these that were dropped as excess.
    pub policed_pps: f64,
    /// Packets per second that its NFs finished.
    pub delivered_pps: f64,
    /// 95th percentile of latency in microseconds, if there were enough packets.
    pub latency_us: Option<f64>,
    /// Whether one of its NFs does not run: then packets arrive that are not counted as its own.
    pub is_down: bool,
    /// Cores that its NFs used.
    pub cpu: f64,
    /// Cores assigned to it.
    pub part: f64,
    pub cores: Vec<usize>,
}

impl TenantWindow {
    /// The factor by which it offers more than was promised, if it does.
    fn excess(&self) -> Option<f64> {
        let promised = self.terms?.throughput_pps?;
        (self.offered_pps > promised * (1.0 + RATE_TOLERANCE)).then(|| self.offered_pps / promised)
    }

    /// Its largest excess over what it may use.
    fn rogue(&self) -> Option<Cause> {
        let by_rate = self.excess().map(|times| {
            let promised = self.terms.and_then(|terms| terms.throughput_pps).unwrap_or(0.0);
            Cause { tenant: self.tenant.clone(), by: By::Rate, measured: self.offered_pps, allowed: promised, times }
        });
        let takes_more = self.cpu > self.part + CPU_TOLERANCE;
        let by_cpu = takes_more.then(|| Cause {
            tenant: self.tenant.clone(),
            by: By::Cpu,
            measured: self.cpu,
            allowed: self.part,
            // A tenant with no part exceeds it by the part of a core that it uses.
            times: self.cpu / self.part.max(CPU_TOLERANCE),
        });
        by_rate.into_iter().chain(by_cpu).max_by(|a, b| a.times.total_cmp(&b.times))
    }
}

/// How a tenant harms others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "CauseKind")]
pub enum By {
    /// It sends more than was promised; in packets per second.
    Rate,
    /// It uses more CPU than its part; in cores.
    Cpu,
}

/// A tenant that harms another, and how.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct Cause {
    /// Its SLO's name; another name for a tenant without an SLO.
    pub tenant: String,
    /// The resource that it exceeds.
    pub by: By,
    /// What was measured, in packets per second or cores.
    pub measured: f64,
    /// What it is allowed, in the same unit.
    pub allowed: f64,
    /// Measured value divided by the allowed one.
    pub times: f64,
}

/// The violated term of an SLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ViolationKind")]
pub enum What {
    /// Packets per second.
    Throughput,
    /// The 95th percentile of latency, in microseconds.
    Latency,
}

/// A violated SLO.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct Violation {
    /// The violated term.
    pub what: What,
    /// Value in the last window with the violation, in packets per second or microseconds.
    pub measured: f64,
    /// What was promised.
    pub promised: f64,
    /// How long the violation has lasted, in seconds.
    pub since_s: f64,
    /// The tenant that causes it, if known.
    pub cause: Option<Cause>,
}

/// A tenant that leaves its profile.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct Excess {
    /// Packets per second that it offers.
    pub offered_pps: f64,
    /// Packets per second that were promised.
    pub promised_pps: f64,
    /// How long it has lasted, in seconds.
    pub since_s: f64,
}

/// The evaluation of one tenant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Evaluation {
    pub tenant: String,
    /// Set while it leaves its profile.
    pub excess: Option<Excess>,
    pub violations: Vec<Violation>,
    /// Windows since its SLO took effect.
    pub windows: u64,
    /// Windows in which the throughput was violated, and in which the latency was.
    pub violated: [u64; 2],
    /// Windows in which it left its profile.
    pub exceeded: u64,
}

/// A condition that lasts over several windows.
#[derive(Debug, Clone, Default)]
struct Track<T> {
    /// When it began, and its latest value.
    last: Option<(u64, T)>,
    good: u32,
}

impl<T: Clone> Track<T> {
    /// Adds the value of a window that began at `began_ns`.
    fn add(&mut self, began_ns: u64, now: Option<T>) {
        match now {
            Some(now) => {
                self.good = 0;
                self.last = Some((self.last.as_ref().map_or(began_ns, |(since, _)| *since), now));
            }
            None => {
                self.good += 1;
                if self.good >= GOOD_WINDOWS {
                    self.last = None;
                }
            }
        }
    }

    fn report<R>(&self, now_ns: u64, make: impl FnOnce(f64, T) -> R) -> Option<R> {
        self.last.clone().map(|(since, last)| make(now_ns.saturating_sub(since) as f64 / 1e9, last))
    }
}

/// Measured value, promised value, and cause.
type Broken = (f64, f64, Option<Cause>);

#[derive(Debug, Clone, Default)]
struct Tenant {
    excess: Track<(f64, f64)>,
    broken: [Track<Broken>; 2],
    windows: u64,
    violated: [u64; 2],
    exceeded: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Watch {
    tenants: BTreeMap<String, Tenant>,
}

impl Watch {
    /// Removes the state of tenants for which `same` is false: their SLO has changed.
    pub fn forget_unless(&mut self, same: impl Fn(&str) -> bool) {
        self.tenants.retain(|name, _| same(name));
    }

    /// Evaluates the window from `began_ns` to `now_ns`. Returns one result per tenant with an SLO,
    /// in the order of `seen`. State of tenants that are not in `seen` is removed.
    pub fn evaluate(&mut self, began_ns: u64, now_ns: u64, seen: &[TenantWindow]) -> Vec<Evaluation> {
        self.tenants.retain(|name, _| seen.iter().any(|one| one.tenant == *name && one.terms.is_some()));
        let rogues: Vec<(&TenantWindow, Cause)> = seen.iter().filter_map(|one| Some((one, one.rogue()?))).collect();
        let mut all = Vec::new();
        for (one, terms) in seen.iter().filter_map(|one| Some((one, one.terms?))) {
            let tenant = self.tenants.entry(one.tenant.clone()).or_default();
            let excess = one.excess().map(|_| (one.offered_pps, terms.throughput_pps.unwrap_or(0.0)));
            let cause = blame(one, &rogues);
            let broken = [throughput(one, terms), latency(one, terms)];
            // Unpoliced excess delays the tenant's own packets: its latency says nothing.
            let is_known = [true, excess.is_none() || one.policed_pps > 0.0];
            tenant.windows += 1;
            tenant.exceeded += u64::from(excess.is_some());
            tenant.excess.add(began_ns, excess);
            let tracks = tenant.broken.iter_mut().zip(&mut tenant.violated).zip(broken);
            for ((track, count), broken) in tracks.zip(is_known).filter_map(|(track, is_known)| is_known.then_some(track)) {
                *count += u64::from(broken.is_some());
                // The cause stays until another is found.
                let before = track.last.as_ref().and_then(|(_, (.., cause))| cause.clone());
                track.add(began_ns, broken.map(|(measured, promised)| (measured, promised, cause.clone().or(before))));
            }
            let violation = |track: &Track<Broken>, what| {
                track.report(now_ns, |since_s, (measured, promised, cause)| Violation { what, measured, promised, since_s, cause })
            };
            let violations = [What::Throughput, What::Latency].into_iter().zip(&tenant.broken);
            all.push(Evaluation {
                tenant: one.tenant.clone(),
                excess: tenant.excess.report(now_ns, |since_s, (offered_pps, promised_pps)| Excess {
                    offered_pps,
                    promised_pps,
                    since_s,
                }),
                violations: violations.filter_map(|(what, track)| violation(track, what)).collect(),
                windows: tenant.windows,
                violated: tenant.violated,
                exceeded: tenant.exceeded,
            });
        }
        all
    }
}

fn throughput(one: &TenantWindow, terms: Terms) -> Option<(f64, f64)> {
    let promised = terms.throughput_pps?;
    // Where bursts above the rate were policed, the rest of the window cannot make up for them.
    let due = if one.is_down { promised } else { (one.offered_pps - one.policed_pps).min(promised) };
    (one.delivered_pps < due * (1.0 - DELIVERY_TOLERANCE)).then_some((one.delivered_pps, due))
}

fn latency(one: &TenantWindow, terms: Terms) -> Option<(f64, f64)> {
    one.latency_us.filter(|measured| *measured > terms.latency_us).map(|measured| (measured, terms.latency_us))
}

/// The cause: of the rogue tenants that share a core with the victim, or else of all, the one with
/// the largest excess.
fn blame(victim: &TenantWindow, rogues: &[(&TenantWindow, Cause)]) -> Option<Cause> {
    let others = || rogues.iter().filter(|(rogue, _)| rogue.tenant != victim.tenant);
    let most = |found: &mut dyn Iterator<Item = &(&TenantWindow, Cause)>| {
        found.map(|(_, cause)| cause).max_by(|a, b| a.times.total_cmp(&b.times)).cloned()
    };
    let near = most(&mut others().filter(|(rogue, _)| rogue.cores.iter().any(|core| victim.cores.contains(core))));
    near.or_else(|| most(&mut others()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn seen(tenant: &str, offered_pps: f64, delivered_pps: f64, latency_us: f64) -> TenantWindow {
        TenantWindow {
            tenant: tenant.into(),
            terms: Some(Terms { throughput_pps: Some(1000.0), latency_us: 100.0 }),
            offered_pps,
            delivered_pps,
            latency_us: Some(latency_us),
            cpu: 0.1,
            part: 0.25,
            cores: vec![1],
            ..TenantWindow::default()
        }
    }

    #[test]
    fn a_promise_that_is_kept_says_nothing() {
        let mut watch = Watch::default();
        let found = watch.evaluate(0, S, &[seen("a", 1000.0, 999.0, 100.0), seen("b", 10.0, 10.0, 5.0)]);
        assert!(found.iter().all(|evaluated| evaluated.violations.is_empty() && evaluated.excess.is_none()));
        assert_eq!((found[0].windows, found[0].violated), (1, [0, 0]));
        let stall = TenantWindow { latency_us: None, ..seen("a", 0.0, 0.0, 0.0) };
        assert!(watch.evaluate(S, 2 * S, std::slice::from_ref(&stall))[0].violations.is_empty(), "nothing came");
        let down = watch.evaluate(2 * S, 3 * S, &[TenantWindow { is_down: true, ..stall }]);
        assert_eq!((down[0].violations[0].what, down[0].violations[0].promised), (What::Throughput, 1000.0));
    }

    #[test]
    fn violations_have_a_beginning_an_end_and_a_cause() {
        let mut watch = Watch::default();
        let rogue = seen("rogue", 10_000.0, 5_000.0, 900.0);
        let found = watch.evaluate(0, S, &[seen("a", 1000.0, 500.0, 250.0), rogue.clone()]);
        let [throughput, latency] = &found[0].violations[..] else { panic!("{found:?}") };
        assert_eq!(
            (throughput.what, throughput.measured, throughput.promised, throughput.since_s),
            (What::Throughput, 500.0, 1000.0, 1.0)
        );
        assert_eq!((latency.what, latency.measured, latency.promised), (What::Latency, 250.0, 100.0));
        let cause = throughput.cause.clone().unwrap();
        assert_eq!((&*cause.tenant, cause.by, cause.times, cause.allowed), ("rogue", By::Rate, 10.0, 1000.0));
        assert!(found[1].violations.is_empty(), "it gets what was promised, and nobody knows how late that alone would be");
        assert_eq!(found[1].excess, Some(Excess { offered_pps: 10_000.0, promised_pps: 1000.0, since_s: 1.0 }));
        // One good window does not end it, two do.
        let good = || seen("a", 1000.0, 1000.0, 50.0);
        let found = watch.evaluate(S, 2 * S, &[good(), rogue.clone()]);
        assert_eq!((found[0].violations.len(), found[0].violations[0].since_s), (2, 2.0));
        let found = watch.evaluate(2 * S, 3 * S, &[good(), rogue]);
        assert!(found[0].violations.is_empty());
        assert_eq!((found[0].windows, found[0].violated, found[1].exceeded), (3, [1, 1], 3));
    }

    #[test]
    fn one_that_sends_more_has_a_right_to_what_was_promised() {
        let mut watch = Watch::default();
        let broken = |found: &[Evaluation]| found[0].violations.iter().map(|one| (one.what, one.measured)).collect::<Vec<_>>();
        let starved = TenantWindow { policed_pps: 100.0, ..seen("a", 1100.0, 300.0, 250.0) };
        let found = watch.evaluate(0, S, std::slice::from_ref(&starved));
        assert_eq!(broken(&found), [(What::Throughput, 300.0), (What::Latency, 250.0)]);
        assert_eq!((found[0].violated, found[0].exceeded), ([1, 1], 1));
        // It came in bursts, most of which was policed; what was admitted was delivered.
        let bursts = TenantWindow { policed_pps: 600.0, ..seen("b", 1200.0, 600.0, 50.0) };
        assert!(Watch::default().evaluate(0, S, &[bursts])[0].violations.is_empty());
        // A window without an evaluation ends no earlier violation.
        for window in 1..5 {
            let unpoliced = seen("a", 10_000.0, 1000.0, 900.0);
            let found = watch.evaluate(window * S, (window + 1) * S, &[unpoliced]);
            assert_eq!(found[0].violated, [1, 1]);
            let still = found[0].violations.iter().any(|one| one.what == What::Latency && one.measured == 250.0);
            assert!(still, "{found:?}");
        }
    }

    #[test]
    fn a_neighbour_on_the_core_is_blamed_first_and_by_its_cpu_too() {
        let mut watch = Watch::default();
        let victim = seen("a", 1000.0, 100.0, 50.0);
        let far = TenantWindow { cores: vec![2], ..seen("far", 50_000.0, 0.0, 0.0) };
        let greedy = TenantWindow { cpu: 0.75, ..seen("greedy", 900.0, 900.0, 50.0) };
        let free = TenantWindow { terms: None, cpu: 0.2, part: 0.0, ..seen("free", 0.0, 0.0, 0.0) };
        let found = watch.evaluate(0, S, &[victim.clone(), far.clone(), greedy, free.clone()]);
        assert_eq!(found.len(), 3, "a tenant without a promise is only blamed");
        let cause = |found: &[Evaluation]| found[0].violations[0].cause.clone().unwrap();
        assert_eq!((&*cause(&found).tenant, cause(&found).by), ("free", By::Cpu), "four times nothing is most");
        let found = watch.evaluate(S, 2 * S, &[victim.clone(), far.clone(), free]);
        assert_eq!(&*cause(&found).tenant, "free");
        let found = watch.evaluate(2 * S, 3 * S, &[victim.clone(), far]);
        assert_eq!(&*cause(&found).tenant, "far", "nobody on the core");
        assert_eq!(
            &*cause(&watch.evaluate(3 * S, 4 * S, std::slice::from_ref(&victim))).tenant,
            "far",
            "it goes on, and nobody else is to blame"
        );
        let mut alone = Watch::default();
        assert_eq!(alone.evaluate(0, S, &[victim])[0].violations[0].cause, None);
    }

    #[test]
    fn on_demand_there_is_no_rate_to_leave() {
        let mut watch = Watch::default();
        let terms = Some(Terms { throughput_pps: None, latency_us: 100.0 });
        let found = watch.evaluate(0, S, &[TenantWindow { terms, ..seen("a", 1e6, 5e5, 150.0) }]);
        assert_eq!(found[0].excess, None);
        assert_eq!(found[0].violations.iter().map(|v| v.what).collect::<Vec<_>>(), [What::Latency]);
    }
}
