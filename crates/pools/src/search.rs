//! The search for the members that a connection lacks, and what it would find.

use sluice_api::config::{OnFailure, Per, WhenEmpty};
use sluice_dataplane::chain::{Chain, Tables};
use sluice_dataplane::decision::{Decision, Refusal, WaitFor};
use sluice_dataplane::steer::{Foreseen, SteerRequest};
use sluice_policy::pool::State;

use super::{Finds, PoolSteering, shared};
use crate::connections::{FALLEN_BACK, MOST_MEMBERS};
use crate::members::Members;

/// Why a connection gets no members.
#[derive(Debug, Clone, Copy)]
enum NoMembers {
    /// It has ended, and a late packet takes no member of this service.
    Late(u16),
    /// No member of this service is idle, and its pool drops packets then.
    Empty(u16),
    /// No member of this service is idle, and packets wait for one.
    Wait(u16),
    /// It would have more members than it can name.
    TooMany,
}

/// The pools of a chain that a connection has no member of, and how each finds one.
struct Search {
    lacking: [(u16, Finds); MOST_MEMBERS],
    n: usize,
    /// Whether members linger while none is idle.
    lacked: bool,
    without: Option<NoMembers>,
}

impl PoolSteering {
    /// The pools of a chain that the connection `found` has no member of, and how each finds one.
    pub(super) fn lacking(
        &mut self,
        chain: &Chain,
        found: Option<u32>,
        asked: &SteerRequest<'_>,
    ) -> Result<([(u16, Finds); MOST_MEMBERS], usize), Decision> {
        let Search { lacking, n, lacked, without } = self.search(chain, found, asked);
        let falls_back = |(service, finds): &(u16, Finds)| matches!(finds, Finds::Nobody).then_some(*service);
        let short = match without {
            Some(NoMembers::Empty(service) | NoMembers::Wait(service)) => Some(service),
            Some(NoMembers::Late(_) | NoMembers::TooMany) | None => None,
        };
        let short = lacking[..n].iter().filter_map(falls_back).chain(short);
        short.filter_map(|service| self.members(service)).for_each(|members| members.table.lacks_one());
        let count_drop = |service: u16| {
            self.members(service).into_iter().for_each(|members| members.counters(self.thread).api.drops.add(1));
        };
        match without {
            None => {}
            Some(NoMembers::TooMany) => return Err(Decision::Drop(Refusal::NoPath)),
            Some(NoMembers::Late(service)) => {
                count_drop(service);
                return Err(Decision::Drop(Refusal::NoneIdle));
            }
            Some(NoMembers::Empty(service)) => {
                count_drop(service);
                self.lacked |= lacked;
                return Err(Decision::Drop(Refusal::NoneIdle));
            }
            Some(NoMembers::Wait(service)) => {
                self.lacked |= lacked;
                return Err(self.waits_for(service, chain, asked));
            }
        }
        self.lacked |= lacked;
        Ok((lacking, n))
    }

    /// Looks for the pools of a chain that the connection `found` has no member of; changes
    /// nothing.
    fn search(&self, chain: &Chain, found: Option<u32>, asked: &SteerRequest<'_>) -> Search {
        let known = found.and_then(|place| self.connections.get(place));
        // All or nothing: a waiting connection holds no member for which another waits.
        let mut lacking = [(0u16, Finds::Idle); MOST_MEMBERS];
        let (mut n, mut lacked) = (0, false);
        let without = |n: usize, lacked: bool, lacking, why: NoMembers| Search { lacking, n, lacked, without: Some(why) };
        for service in &chain.services {
            let Some(members) = self.members(*service).filter(|members| members.table.per.is_held()) else { continue };
            let has = known.and_then(|c| c.holding(*service)).is_some_and(|held| members.holds(held));
            if has || lacking[..n].iter().any(|(other, _)| other == service) {
                continue;
            }
            if known.is_some_and(|c| c.life.has_ended()) {
                return without(n, lacked, lacking, NoMembers::Late(*service));
            }
            let bypassed = members.table.members.is_empty() && chain.on_failure == OnFailure::Bypass;
            if bypassed {
                continue;
            }
            if n == MOST_MEMBERS || known.is_some_and(|c| c.member(*service).is_none() && c.room() <= n) {
                return without(n, lacked, lacking, NoMembers::TooMany);
            }
            if let Some(slot) = members.of_class(asked) {
                lacking[n] = (*service, Finds::Class(slot));
                n += 1;
                continue;
            }
            let others_wait = self.waiting.of(*service) > 0 && !asked.has_waited;
            let idle = members.pool.count(State::Idle) > 0 && !others_wait;
            lacked |= members.pool.count(State::Idle) == 0 && members.pool.count(State::Lingering) > 0;
            match members.table.pool.when_empty {
                WhenEmpty::Wait if !idle => return without(n, lacked, lacking, NoMembers::Wait(*service)),
                WhenEmpty::Drop if !idle => return without(n, lacked, lacking, NoMembers::Empty(*service)),
                _ => {}
            }
            lacking[n] = (*service, if idle { Finds::Idle } else { Finds::Nobody });
            n += 1;
        }
        Search { lacking, n, lacked, without: None }
    }

    /// The instance of a pool that a packet gets. `slot`: of its connection, if that has one.
    #[inline]
    pub(super) fn instance(&self, members: &Members, slot: Option<u16>, hash: u32, tables: &Tables) -> Option<u16> {
        let all = &members.table.members;
        match members.table.per {
            Per::Flow | Per::Class => match slot? {
                FALLEN_BACK => members.table.fallback.and_then(|fallback| shared(tables, fallback, hash, None, self.thread)),
                slot => members.nfs.get(slot as usize).and_then(Option::as_ref).map(|handle| handle.number),
            },
            Per::RoundRobin => (!all.is_empty()).then(|| all[members.turn % all.len()].nf),
            Per::Rss | Per::Shared => (!all.is_empty()).then(|| all[hash as usize % all.len()].nf),
        }
    }

    /// The instance of a pool that a packet would get, if it would get one. `finds`: how its
    /// connection would find a member, if it lacks one.
    fn foreseen(&self, members: &Members, held: Option<u16>, finds: Option<Finds>, hash: u32, tables: &Tables) -> Option<Foreseen> {
        let slot = match finds {
            None if members.table.per == Per::RoundRobin && !members.table.members.is_empty() => {
                return Some(Foreseen::OneOf(members.table.service));
            }
            Some(Finds::Idle) => return Some(Foreseen::OneOf(members.table.service)),
            Some(Finds::Class(slot)) => Some(slot as u16),
            Some(Finds::Nobody) => Some(FALLEN_BACK),
            None => held,
        };
        self.instance(members, slot, hash, tables).map(Foreseen::Nf)
    }

    /// The instances that a packet would get: as [`PoolSteering::find_members`] and
    /// [`PoolSteering::path`] choose, without a change.
    pub(super) fn foresee(&self, asked: &SteerRequest<'_>, tables: &Tables) -> Result<Vec<Foreseen>, Decision> {
        let (chain, hash) = (asked.chain, asked.key.symmetric_hash());
        let (key, _) = asked.key.connection();
        let is_held = |service: &u16| self.members(*service).is_some_and(|members| members.table.per.is_held());
        let holds_members = self.per_flow && chain.services.iter().any(is_held);
        let found = if holds_members { self.connections.find(&key, key.hash(&self.keys)) } else { None };
        let is_behind = || self.waiting.holds(&key) && chain.services.iter().any(|service| self.waiting.of(*service) > 0);
        if holds_members && !asked.has_waited && is_behind() {
            return Err(Decision::Wait(WaitFor::Instance));
        }
        let Search { lacking, n, without, .. } = self.search(chain, found, asked);
        match without {
            None => {}
            Some(NoMembers::Late(_) | NoMembers::Empty(_)) => return Err(Decision::Drop(Refusal::NoneIdle)),
            Some(NoMembers::Wait(_)) => return Err(Decision::Wait(WaitFor::Instance)),
            Some(NoMembers::TooMany) => return Err(Decision::Drop(Refusal::NoPath)),
        }
        let connection = found.and_then(|place| self.connections.get(place));
        let mut nfs = Vec::new();
        for service in &chain.services {
            let instance = match self.members(*service) {
                None => shared(tables, *service, hash, None, self.thread).map(Foreseen::Nf),
                Some(members) => {
                    let finds = lacking[..n].iter().find(|(other, _)| other == service).map(|(_, finds)| *finds);
                    self.foreseen(members, connection.and_then(|c| c.member(*service)), finds, hash, tables)
                }
            };
            match instance {
                Some(instance) => nfs.push(instance),
                None if chain.on_failure == OnFailure::Bypass => {}
                None => return Err(Decision::Drop(Refusal::NfDown)),
            }
        }
        Ok(nfs)
    }
}
