//! The daemon's health: the chains, ports and NFs that do not work, and since when.
//!
//! It is healthy when all chains and ports take packets and all NFs run or start. A throttled chain
//! is healthy: it waits, as chains do under overload. So is an NF that has died once and is
//! restarted. One that keeps dying is not, even while it runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sluice_shm::clock::monotonic_ns;

use super::Supervisor;
use super::nfs::{BACKOFF, Nf, State};
use crate::controller::events::Subject;
use sluice_api::health::{Health, HealthVerdict, MOST, Problem};
use sluice_api::model::{ChainState, EventKind, PortState};

/// Consecutive deaths without a good run in between that make a loop.
const LOOP: u32 = 3;

/// Time between two checks.
const EVERY: Duration = Duration::from_millis(100);

/// What does not work, and the last observations.
#[derive(Debug, Default)]
pub(super) struct HealthWatch {
    /// Whether everything has started.
    pub(super) is_up: bool,
    looked: Option<Instant>,
    /// By kind and name of the object, and the word for what is wrong: since when.
    since: BTreeMap<(String, &'static str), Instant>,
    /// States of chains by name, without throttles.
    chains: BTreeMap<String, ChainState>,
}

impl Supervisor {
    /// Checks what does not work, when it is time to, so that its start is known.
    pub(super) fn watch_health(&mut self, now: Instant) {
        if !self.seen.watch.is_up || self.seen.watch.looked.is_some_and(|at| now.duration_since(at) < EVERY) {
            return;
        }
        self.seen.watch.looked = Some(now);
        self.note_chains();
        self.health();
    }

    /// Logs chains whose state has changed since the last check.
    fn note_chains(&mut self) {
        let state = |chain: &std::sync::Arc<sluice_dataplane::chain::Chain>| match self.state_of_chain(chain) {
            (ChainState::Refused, true) => (chain.name.clone(), ChainState::Open),
            (state, _) => (chain.name.clone(), state),
        };
        let now: BTreeMap<String, ChainState> = self.chains.iter().flatten().map(state).collect();
        for (name, state) in &now {
            // A new chain counts as open before.
            let before = self.seen.watch.chains.get(name).copied().unwrap_or(ChainState::Open);
            if before != *state {
                self.controller.events().note(EventKind::Chain, Subject::Other("chain", name), said_of_chain(*state));
            }
        }
        self.seen.watch.chains = now;
    }

    pub(super) fn health(&mut self) -> Health {
        let now = Instant::now();
        let mut found: Vec<(String, &'static str, String)> = Vec::new();
        for chain in self.chains.iter().flatten() {
            match self.state_of_chain(chain) {
                (ChainState::Open, _) | (ChainState::Refused, true) => {}
                (state, _) => found.push((format!("chain {}", chain.name), state.word(), said_of_chain(state).into())),
            }
        }
        for nf in self.nfs.values().filter(|nf| nf.life().stays() && !nf.life().is_on_trial()) {
            let last = || nf.counted.last_death.as_ref().map_or(String::new(), |death| format!("; the last time: {}", death.what));
            let subject = || format!("nf {}", nf.name);
            match nf.life().state() {
                State::Failed => found.push((subject(), "failed", format!("has failed{}", last()))),
                _ if is_in_loop(nf) => {
                    let deaths = nf.life().deaths_in_a_row();
                    found.push((subject(), "loop", format!("has ended {deaths} times in a row{}", last())));
                }
                _ => {}
            }
        }
        if let Some(trouble) = self.host.runtime_dir.trouble() {
            let what = format!("lacks something that cannot be made anew as it was: {trouble}");
            found.push((format!("directory {}", self.config.manager.runtime_dir.display()), "removed", what));
        }
        let mut lesser = Vec::new();
        for port in self.ports.iter().flatten() {
            let subject = || format!("port {}", port.config.name);
            match port.link.state() {
                PortState::Up => {}
                // Its configuration makes it wait.
                state @ PortState::Waiting => lesser.push((subject(), state.word(), said_of_port(state).into())),
                state => found.push((subject(), state.word(), said_of_port(state).into())),
            }
            if let Some(rate) = port.config.kind.rate_pps().filter(|_| port.behind.pps() > 0.0) {
                lesser.push((subject(), "behind", said_of_rate(rate, port.behind.pps())));
            }
        }
        let before = std::mem::take(&mut self.seen.watch.since);
        let mut with_times = |found: Vec<(String, &'static str, String)>| {
            let mut all = Vec::with_capacity(found.len());
            for (subject, word, what) in found {
                let key = (subject, word);
                let since = before.get(&key).copied().unwrap_or(now);
                all.push(Problem { subject: key.0.clone(), what, since_s: now.duration_since(since).as_secs_f64() });
                self.seen.watch.since.insert(key, since);
            }
            all.sort_by(|a, b| b.since_s.total_cmp(&a.since_s));
            all.truncate(MOST);
            all
        };
        let (problems, warnings) = (with_times(found), with_times(lesser));
        let verdict = if problems.is_empty() { HealthVerdict::Healthy } else { HealthVerdict::Degraded };
        Health { verdict, problems, warnings }
    }
}

/// The text for a port that is behind its rate.
fn said_of_rate(rate_pps: f64, missing_pps: f64) -> String {
    let made = (rate_pps - missing_pps).max(0.0);
    format!(
        "makes {made:.0} packets per second of the {rate_pps:.0} that its rate asks for: its packet thread has no time for more, or its \
         packets wait for their chain; lower the rate, or give the role rx another core"
    )
}

fn said_of_port(state: PortState) -> &'static str {
    match state {
        PortState::Up => "takes packets",
        PortState::NoLink => "has no link: packets for it are dropped as no_link; see that its interface and the other end are up",
        PortState::Gone => "has lost its interface: packets for it are dropped as no_link until there is one of that name again",
        PortState::Waiting => "waits for its interface, which is not there yet",
        PortState::Blocked => {
            "cannot write its capture file, so chains to it take no packets; see whether its disk is full, and the log for the error"
        }
    }
}

/// The text for what a chain does with packets at its entry.
fn said_of_chain(state: ChainState) -> &'static str {
    match state {
        ChainState::Open => "takes packets",
        ChainState::Refused => "refuses packets until an NF of one of its services is back",
        ChainState::Bypassing => "bypasses a service of which no NF runs",
        ChainState::Down => "drops all packets, because no NF of one of its services runs, and none is started again",
    }
}

/// Whether an NF has died several times in a row, and has not run well since.
fn is_in_loop(nf: &Nf) -> bool {
    let ran_ns = monotonic_ns().saturating_sub(nf.life().started_ns());
    nf.life().deaths_in_a_row() >= LOOP && !(nf.is(State::Running) && ran_ns >= BACKOFF.good_run_ns)
}
