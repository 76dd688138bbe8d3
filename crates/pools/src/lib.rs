//! Pool steering: selects the NFs of a flow where a service has one for each flow.
//!
//! # Terms
//! A *pooled* service is one that is not shared; its NFs are *members* of its pool. A *connection*
//! is both directions of a flow on all its chains; it holds a member of each pooled service that it
//! has met. With `per = "class"` all connections of a traffic class share a member ([`classes`]).
//!
//! # Approach
//! Each Rx thread has a [`PoolSteering`]. Each member of a pool `per = "flow"` belongs to one
//! thread, so nothing is shared or locked. Decisions go into the thread's flow table. After that,
//! only packets with SYN, FIN or RST come here, and flows that the flow table has forgotten. A new
//! connection costs a look-up, a member from the front of each queue, and the path number of this
//! combination, which the thread caches. If idle, members with the same index are taken from all
//! pools, so that there are about as many paths as members.
//!
//! A connection ends by its packets, by silence, or because its members say so. Ended, it keeps
//! its members for late packets, for a while, and for less if idle ones are lacking. When it is
//! over ([`life`](sluice_policy::pool::life)), its keys leave the flow table. When the last packet
//! has left its members they are reset: the word [`Control::Reset`] changes, and the member is
//! idle. The library reads the word after it has read packets and before its handler gets them, so
//! the state is clean before the next flow's first packet, without a wake or an answer. With
//! `isolation = "strict"` another process takes its place instead.
//!
//! Packets that wait for an idle member [are kept here](waiting), in order of arrival.
//!
//! # Isolation of flows
//! A member gets packets of one connection alone, from its assignment until it is drained. Packets
//! that were classified earlier and are held at a gate are classified again before admission if
//! [`PoolSteering::moved`] has changed. [`PoolSteering::step`] alone resets members, between two
//! bursts.
//!
//! # Limits
//! A connection is identified by its addresses at the ingress port: if a chain changes them (NAT),
//! the two directions are two connections. Both directions must reach the same Rx thread; the
//! configuration is checked for that. A chain with pooled services costs a decision for each TCP
//! packet with SYN, to detect half-open connections.

mod age;
pub mod classes;
pub mod connections;
mod held;
mod members;
mod search;
pub mod waiting;

pub use members::{PoolCounters, PoolMember, PoolTable};

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_policy::pool::State;
use sluice_policy::pool::life::{ConnectionEvent, Life};
use sluice_shm::clock::Clock;
use sluice_shm::histogram::Histogram;
use sluice_shm::page::Control;

use sluice_api::config::{Isolation, OnFailure, Per};
use sluice_api::protocol;
use sluice_dataplane::chain::registry::{Course, End};
use sluice_dataplane::chain::ways::{MAX_NFS, Ways};
use sluice_dataplane::chain::{self, Chain, PathKind, PathRegistry, Tables};
use sluice_dataplane::classify::flow_table::{FlowTable, Known};
use sluice_dataplane::classify::key::{FlowKey, HashKeys};
use sluice_dataplane::classify::tcp::is_urgent;
use sluice_dataplane::decision::{Decision, Refusal, WaitFor};
use sluice_dataplane::end::NfEnd;
use sluice_dataplane::handle::StopReason;
use sluice_dataplane::plane::Plane;
use sluice_dataplane::roles::Portion;
use sluice_dataplane::steer::{Arrival, ChooseInstances, Env, Foreseen, SteerRequest, Wanted};
use sluice_policy::tcp;

use classes::ClassKey;
use connections::{Connections, FALLEN_BACK, Flow, Holding, LOST, NONE, Round};
use members::Members;
use waiting::Lines;
use waiting::Waiting;

/// Draining members that one step examines, oldest first.
const DRAINED: usize = 16;
/// Ended connections that one step examines for members that are needed.
const CUT: usize = 64;

/// The outcome of a search for a member.
#[derive(Debug, Clone, Copy)]
enum Finds {
    /// An idle member.
    Idle,
    /// The member of its class.
    Class(u32),
    /// None: another service gets the flow.
    Nobody,
}

/// The pools of one thread; see the module.
#[derive(Debug)]
pub struct PoolSteering {
    thread: usize,
    part: Portion,
    most: usize,
    most_paths: usize,
    keys: HashKeys,
    pools: Vec<Option<Members>>,
    per_flow: bool,
    connections: Connections,
    ways: Ways,
    has_ways: bool,
    /// Paths that end because of a change of a pool.
    ends: Vec<End>,
    /// Members that wait for their last packets.
    draining: VecDeque<(u16, u32)>,
    waiting: Lines,
    /// What the last waiting packet needs.
    wanted: Wanted,
    looked_ns: u64,
    /// A member has become idle since the last look at the waiting packets.
    freed: bool,
    /// A flow found no idle member since the last step, while others linger.
    lacked: bool,
    /// The last connection examined for that; earlier ones hold no member that is needed.
    cut_at: Option<u32>,
    /// A published value has changed.
    stirred: bool,
    moved: u32,
    aged: Round,
    heard: Round,
}

impl PoolSteering {
    /// The pools of thread number `thread`, which is `part` of the Rx threads. `seed` is secret.
    /// Up to `most` connections and `most_paths` paths, allocated with the first pool.
    pub fn new(thread: usize, part: Portion, most: usize, most_paths: usize, seed: u64) -> Self {
        Self {
            thread,
            part,
            most,
            most_paths,
            keys: HashKeys::new(seed),
            pools: Vec::new(),
            per_flow: false,
            connections: Connections::new(0),
            ways: Ways::new(1, 0),
            has_ways: false,
            ends: Vec::new(),
            draining: VecDeque::new(),
            waiting: Lines::default(),
            wanted: Wanted::default(),
            looked_ns: 0,
            freed: false,
            lacked: false,
            cut_at: None,
            stirred: false,
            moved: 0,
            aged: Round::default(),
            heard: Round::default(),
        }
    }

    fn members(&self, service: u16) -> Option<&Members> {
        self.pools.get(service as usize)?.as_ref()
    }

    fn members_mut(&mut self, service: u16) -> Option<&mut Members> {
        self.pools.get_mut(service as usize)?.as_mut()
    }

    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Applies a change of a pool. Flows whose path changes are decided again.
    #[cold]
    pub fn use_pool(&mut self, table: &Arc<PoolTable>, nfs: &[Option<NfEnd>], flows: &mut FlowTable, registry: &PathRegistry) {
        self.learn_pool(table, nfs, flows);
        registry.end(&std::mem::take(&mut self.ends), None);
    }

    /// Puts another kind of pool, or none, where a service has one.
    fn replace_pool(&mut self, table: &Arc<PoolTable>, flows: &mut FlowTable) {
        let (service, at) = (table.service, table.service as usize);
        if self.pools[at].is_some() {
            let known: Vec<u32> = self.pools[at].iter().flat_map(|members| members.slots.values().copied()).collect();
            known.into_iter().for_each(|slot| self.leave(service, slot, flows));
            // Connections of a former class pool hold no member of the new one.
            self.connections.lose(service);
        }
        self.pools[at] = (table.per != Per::Shared).then(|| Members::new(table.clone()));
        // Only flows of chains with the service are decided again.
        self.ends.push(End::Service(service));
    }

    fn learn_pool(&mut self, table: &Arc<PoolTable>, nfs: &[Option<NfEnd>], flows: &mut FlowTable) {
        let service = table.service;
        let at = service as usize;
        if self.pools.len() <= at {
            self.pools.resize_with(at + 1, || None);
        }
        if table.per.is_held() && self.connections.most() == 0 {
            self.connections = Connections::new(self.most);
        }
        if !self.has_ways {
            self.has_ways = true;
            self.ways = Ways::new(self.most_paths, 0);
        }
        let is_alike = |of: &Members| of.table.per == table.per && of.table.pool.class == table.pool.class;
        if !self.pools[at].as_ref().is_some_and(is_alike) {
            self.replace_pool(table, flows);
        }
        self.per_flow = self.pools.iter().flatten().any(|members| members.table.per.is_held());
        let part = self.part;
        let Some(members) = self.members_mut(service) else { return };
        let former = std::mem::replace(&mut members.table, table.clone());
        if !table.per.is_held() {
            if former.members != table.members {
                self.ends.push(End::Service(service));
            }
            return;
        }
        let mine = |member: &&PoolMember| part.has(member.part as usize);
        let here: HashSet<u16> = table.members.iter().filter(mine).map(|m| m.nf).collect();
        let gone: Vec<u32> = members.slots.iter().filter(|(nf, _)| !here.contains(nf)).map(|(_, slot)| *slot).collect();
        // Chains begin or cease to bypass the pool when it becomes empty or not.
        let ends = (former.members.is_empty() != table.members.is_empty()).then_some(End::Service(service));
        self.ends.extend(ends);
        gone.into_iter().for_each(|slot| self.leave(service, slot, flows));
        let Some(members) = self.members_mut(service) else { return };
        for member in table.members.iter().filter(mine) {
            let Some(Some(end)) = nfs.get(member.nf as usize) else { continue };
            if member.leaves {
                match members.slots.get(&member.nf).copied() {
                    Some(slot) if members.pool.state(slot) != State::Idle => members.leaves[slot as usize] = true,
                    Some(slot) => members.let_go(slot),
                    None => end.handle.dismissed.store(true, Ordering::Relaxed),
                }
                continue;
            }
            if members.slots.contains_key(&member.nf) || end.handle.dismissed.load(Ordering::Relaxed) {
                continue;
            }
            members.join(member.nf, &end.handle);
        }
        let (most, wait) = (members.nfs.len(), members.table.pool.queue as usize);
        self.draining.reserve(most);
        self.waiting.reserve(service, wait);
        self.freed = true;
        self.stirred = true;
    }

    /// A member is gone: its connection, unless it has ended, gets another with its next packet.
    #[cold]
    fn leave(&mut self, service: u16, slot: u32, flows: &mut FlowTable) {
        self.moved = self.moved.wrapping_add(1);
        self.stirred = true;
        let Some(members) = self.members_mut(service) else { return };
        let was = members.pool.leave(slot);
        let nf = members.nfs[slot as usize].take().map(|handle| handle.number);
        if let Some(nf) = nf {
            members.slots.remove(&nf);
        }
        if members.class.is_some() {
            members.classes.lose(slot);
            // Flows of its connections are decided again.
            self.ends.extend(nf.filter(|_| was != State::Idle).map(End::Nf));
            return;
        }
        let holder = std::mem::replace(&mut members.holders[slot as usize], NONE);
        if let Some(connection) = self.connections.get_mut(holder) {
            connection.members_mut().iter_mut().filter(|held| held.service == service).for_each(|held| held.slot = LOST);
            forget(connection, flows);
        }
    }

    /// Removes `n` idle members of a service; the readers of their handles stop them.
    #[cold]
    pub fn dismiss(&mut self, service: u16, n: u32) {
        self.stirred = true;
        let Some(members) = self.members_mut(service) else { return };
        for _ in 0..n {
            let Some(slot) = members.pool.dismiss() else { return };
            members.let_go(slot);
        }
    }

    /// Ends a connection; late packets still find its members for a while.
    fn end(&mut self, place: u32, now_ns: u64) {
        let Some(connection) = self.connections.get(place) else { return };
        let mut linger_ms = 0;
        for held in connection.members() {
            let Some(Some(members)) = self.pools.get_mut(held.service as usize) else { continue };
            linger_ms = linger_ms.max(members.table.pool.linger_ms);
            if members.class.is_none() {
                members.pool.linger(held.slot.into());
            }
        }
        self.connections.enqueue(place, now_ns + u64::from(linger_ms) * 1_000_000);
        self.stirred = true;
    }

    /// Removes a connection and its keys in the flow table, and releases its members.
    fn finish(&mut self, place: u32, flows: &mut FlowTable) {
        self.release(place, flows);
        self.connections.remove(place);
    }

    /// Releases the members of a connection.
    fn release(&mut self, place: u32, flows: &mut FlowTable) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        forget(connection, flows);
        for held in connection.members_mut() {
            let Some(Some(members)) = self.pools.get_mut(held.service as usize) else { continue };
            // From here on the connection no longer holds it.
            let slot = std::mem::replace(&mut held.slot, LOST);
            if members.class.is_some() && !members.classes.rise(slot.into(), held.turn) {
                continue;
            }
            if members.pool.drain(slot.into()) {
                members.holders[slot as usize] = NONE;
                self.draining.push_back((held.service, slot.into()));
            }
        }
        self.moved = self.moved.wrapping_add(1);
        self.stirred = true;
    }

    /// Releases lingering members for flows that lack one, the longest lingering first.
    /// As many as flows wait, or one. Their connections stay, so late packets take no other member.
    #[cold]
    fn cut_short(&mut self, flows: &mut FlowTable) {
        let behind = self.cut_at.and_then(|at| self.connections.next_ended(at));
        let mut place = behind.or_else(|| self.connections.first_ended());
        for _ in 0..CUT {
            let Some(at) = place else { return };
            place = self.connections.next_ended(at);
            self.cut_at = Some(at);
            let wanted = self.connections.get(at).is_some_and(|c| c.members().iter().any(|held| self.wants_back(held)));
            if wanted {
                self.release(at, flows);
            }
        }
    }

    /// Whether a lingering member is needed.
    fn wants_back(&self, held: &Holding) -> bool {
        let Some(members) = self.members(held.service).filter(|members| members.class.is_none()) else { return false };
        let count = |state| members.pool.count(state) as usize;
        let waiting = self.waiting.flows_of(held.service).max(1);
        members.pool.state(held.slot.into()) == State::Lingering
            && count(State::Idle) + count(State::Draining) + count(State::Resetting) < waiting
    }

    /// Resets drained members: the next few of those that wait.
    fn make_new(&mut self, now_ns: u64) {
        for _ in 0..self.draining.len().min(DRAINED) {
            let Some((service, slot)) = self.draining.pop_front() else { return };
            let Some(Some(members)) = self.pools.get_mut(service as usize) else { continue };
            let Some(handle) =
                members.nfs.get(slot as usize).and_then(Option::as_ref).filter(|_| members.pool.state(slot) == State::Draining)
            else {
                continue;
            };
            // Acquire: the thread that counted off the last packet has returned it.
            if handle.in_flight.load(Ordering::Acquire) > 0 {
                self.draining.push_back((service, slot));
                continue;
            }
            let leaves = members.leaves[slot as usize];
            if !leaves {
                members.pool.reset(slot);
            }
            let counters = &members.table.counters[self.thread];
            counters.api.ended.add(1);
            counters.lifetimes_ns.add(now_ns.saturating_sub(members.pool.since_ns(slot)));
            match members.table.pool.isolation {
                _ if leaves => members.let_go(slot),
                Isolation::Reset => {
                    // Never the initial word of a process.
                    let word = members.resets[slot as usize].wrapping_add(1).max(1);
                    members.resets[slot as usize] = word;
                    // Release: pairs with the library's read, which follows its read of further
                    // packets.
                    handle.region.page.control(Control::Reset).store(word, Ordering::Release);
                    members.pool.ready(slot);
                    self.freed = true;
                }
                Isolation::Strict => {
                    handle.ask_to_stop(StopReason::Spent);
                    members.table.waker.iter().for_each(|waker| waker.wake());
                }
            }
            self.stirred = true;
        }
    }

    /// Records what a waiting packet needs.
    fn waits_for(&mut self, service: u16, chain: &Chain, asked: &SteerRequest<'_>) -> Decision {
        let SteerRequest { note, terms, .. } = *asked;
        self.wanted = Wanted { service, chain: chain.number, note, terms };
        Decision::Wait(WaitFor::Instance)
    }

    /// Gives a connection a member of each pooled service of a chain that it lacks.
    /// Returns its index and one of these services; or another decision about the packet.
    fn find_members(
        &mut self,
        chain: &Chain,
        found: Option<u32>,
        (key, hash): (FlowKey, u64),
        asked: &SteerRequest<'_>,
        now_ms: u64,
        now_ns: u64,
    ) -> Result<(u32, Option<u16>), Decision> {
        let (lacking, n) = self.lacking(chain, found, asked)?;
        let place = match found {
            Some(place) => place,
            None if n == 0 => return Ok((NONE, None)),
            None => {
                let life = Life::new(key.protocol() == protocol::TCP && key.flags() == 0);
                self.connections.insert(key, hash, life, now_ms).ok_or(Decision::Drop(Refusal::NoPath))?
            }
        };
        let first = self.take_members(place, &lacking[..n], asked, now_ns);
        self.stirred |= n > 0;
        Ok((place, first))
    }

    /// Gives a connection a member of each pool that it lacks. Returns the first pool that had an
    /// idle one.
    fn take_members(&mut self, place: u32, lacking: &[(u16, Finds)], asked: &SteerRequest<'_>, now_ns: u64) -> Option<u16> {
        let mut first = None;
        for (service, finds) in lacking {
            let preferred =
                self.connections.get(place).and_then(|c| c.members().iter().map(|s| s.slot).find(|slot| *slot < FALLEN_BACK));
            let Some(Some(members)) = self.pools.get_mut(*service as usize) else { continue };
            let counters = &members.table.counters[self.thread];
            let slot = match finds {
                Finds::Idle => members.pool.take(preferred.map(u32::from), now_ns),
                Finds::Class(slot) => Some(*slot),
                Finds::Nobody => None,
            };
            let slot = match slot {
                Some(slot) => {
                    let joins = matches!(finds, Finds::Class(_));
                    if !joins {
                        counters.api.activations.add(1);
                        first.get_or_insert(*service);
                    }
                    if let Some(handle) = &members.nfs[slot as usize] {
                        let changes = if joins { handle.join(asked.terms.weight) } else { handle.assign(asked.terms.weight) };
                        if changes && let Some(assigned) = &members.table.assigned {
                            assigned.add(handle.number);
                        }
                        if !joins && handle.wakeup.is_some() {
                            handle.start.begin(asked.terms.wakeup);
                        }
                    }
                    match members.class {
                        None => members.holders[slot as usize] = place,
                        Some(class) => {
                            if matches!(finds, Finds::Idle) {
                                members.classes.give(ClassKey::of(class, asked.key, asked.terms.tenant), slot);
                            }
                            members.classes.join(slot);
                        }
                    }
                    slot as u16
                }
                None => {
                    counters.api.fallbacks.add(1);
                    FALLEN_BACK
                }
            };
            let turn = members.classes.turn(slot.into());
            if let Some(connection) = self.connections.get_mut(place) {
                connection.assign(Holding { service: *service, slot, turn });
            }
        }
        first
    }

    /// The path through a connection's members, and an instance of each other service.
    fn path(&mut self, asked: &SteerRequest<'_>, place: u32, env: &Env<'_>) -> Decision {
        let chain = asked.chain;
        let ingress = asked.key.ingress();
        let old = asked
            .old
            .and_then(|number| env.registry.get(number))
            .filter(|p| p.kind == PathKind::Whole && p.chain.services == chain.services);
        let (mut nfs, mut reversed, mut len) = ([0; MAX_NFS], [false; MAX_NFS], 0);
        let mut kind = PathKind::Whole;
        let hash = asked.key.symmetric_hash();
        for (i, service) in chain.services.iter().enumerate() {
            if let Some(members) = self.members_mut(*service).filter(|members| members.table.per == Per::RoundRobin) {
                members.turn += 1;
            }
            let nf = match self.members(*service) {
                None => shared(env.tables, *service, hash, old.and_then(|p| p.hops.get(i)).map(|hop| hop.nf), self.thread),
                Some(members) => {
                    let slot = self.connections.get(place).and_then(|c| c.member(*service));
                    self.instance(members, slot, hash, env.tables)
                }
            };
            match nf {
                Some(nf) if len < MAX_NFS => {
                    (nfs[len], reversed[len]) = (nf, chain.is_reversed(i));
                    len += 1;
                }
                Some(_) => return Decision::Drop(Refusal::NoPath),
                None if chain.on_failure == OnFailure::Bypass => kind = PathKind::Bypasses,
                None => return Decision::Drop(Refusal::NfDown),
            }
        }
        let (nfs, reversed) = (&nfs[..len], &reversed[..len]);
        let course = Course { ingress, chain, nfs, reversed, kind, under: env.tables.generation };
        env.registry.find(&mut self.ways, &course).map_or(Decision::Drop(Refusal::NoPath), Decision::Path)
    }
}

impl ChooseInstances for PoolSteering {
    #[inline(always)]
    fn watches(&self) -> bool {
        self.per_flow
    }

    #[inline(always)]
    fn moved(&self) -> u32 {
        self.moved
    }

    #[inline]
    fn concerns(&self, chain: &Chain) -> bool {
        !self.pools.is_empty() && chain.services.iter().any(|service| self.members(*service).is_some())
    }

    #[inline]
    fn foresee(&self, key: &FlowKey) {
        let (connection, _) = key.connection();
        self.connections.prefetch(connection.hash(&self.keys));
    }

    fn note(&mut self, key: &FlowKey, flags: u8, flows: &mut FlowTable, now_ns: u64) -> bool {
        let (connection, direction) = key.connection();
        let Some(place) = self.connections.find(&connection, connection.hash(&self.keys)) else { return false };
        let Some(known) = self.connections.get_mut(place) else { return false };
        match known.life.packet(direction, flags) {
            ConnectionEvent::Ends => self.end(place, now_ns),
            ConnectionEvent::BeginsAnew => {
                self.finish(place, flows);
                return true;
            }
            ConnectionEvent::GoesOn | ConnectionEvent::Late => {}
        }
        false
    }

    fn decide(&mut self, asked: &SteerRequest<'_>, env: &mut Env<'_>) -> Decision {
        let (now_ns, now_ms) = (asked.since_ns, asked.since_ns / 1_000_000);
        let chain = asked.chain;
        let mut place = NONE;
        let mut is_new = None;
        let mut ends = false;
        if self.per_flow && chain.services.iter().any(|s| self.members(*s).is_some_and(|members| members.table.per.is_held())) {
            let (key, direction) = asked.key.connection();
            let hash = key.hash(&self.keys);
            let mut found = self.connections.find(&key, hash);
            if let Some(known) = found
                && let Some(connection) = self.connections.get_mut(known)
            {
                match connection.life.packet(direction, asked.flags) {
                    ConnectionEvent::BeginsAnew => {
                        self.finish(known, env.flows);
                        found = None;
                    }
                    ConnectionEvent::Ends => self.end(known, now_ns),
                    ConnectionEvent::GoesOn | ConnectionEvent::Late => {}
                }
            }
            if !asked.has_waited
                && self.waiting.holds(&key)
                && let Some(service) = chain.services.iter().copied().find(|service| self.waiting.of(*service) > 0)
            {
                // Earlier packets of it are still queued.
                return self.waits_for(service, chain, asked);
            }
            match self.find_members(chain, found, (key, hash), asked, now_ms, now_ns) {
                Ok((at, first)) => (place, is_new) = (at, first),
                Err(instead) => return instead,
            }
            if found.is_none()
                && let Some(connection) = self.connections.get_mut(place)
            {
                ends = connection.life.packet(direction, asked.flags) == ConnectionEvent::Ends;
            }
        }
        let decision = self.path(asked, place, env);
        if let Some(connection) = self.connections.get_mut(place) {
            connection.seen_ms = now_ms;
        }
        let whole = matches!(decision, Decision::Path(_));
        let in_turn = chain.services.iter().any(|s| self.members(*s).is_some_and(|members| members.table.per == Per::RoundRobin));
        // Flows with a half-open TCP connection or packets in turn are decided again.
        if whole && asked.settles && !in_turn && (place == NONE || asked.flags & tcp::SYN == 0) {
            if let Some(connection) = self.connections.get_mut(place) {
                let (_, direction) = asked.key.connection();
                let flow = Flow { ingress: asked.key.ingress(), dscp: asked.key.dscp(), direction };
                if let Some(gone) = connection.note(flow) {
                    env.flows.remove(&gone, env.flows.hash_of(&gone));
                }
            }
            env.flows.insert(
                asked.key,
                asked.hash,
                Known { decision: decision.into(), generation: env.generation, note: asked.note },
                now_ms,
            );
        }
        if ends {
            self.end(place, now_ns);
        }
        if let Some(service) = is_new
            && let Some(members) = self.members_mut(service)
        {
            members.setup.record(env.clock.now_ns().saturating_sub(asked.since_ns));
        }
        decision
    }

    fn foresee_path(&self, asked: &SteerRequest<'_>, tables: &Tables) -> Result<Vec<Foreseen>, Decision> {
        self.foresee(asked, tables)
    }

    fn wanted(&self) -> Wanted {
        self.wanted
    }

    #[cold]
    fn wait(&mut self, plane: &mut Plane, wanted: Wanted, arrival: &Arrival<'_>) -> bool {
        let gone = self.enqueue(wanted, arrival, plane.now_ns);
        gone.inspect(|gone| give_up(plane, gone)).is_some()
    }

    #[inline]
    fn step(&mut self, flows: &mut FlowTable, now_ns: u64) {
        if !self.per_flow {
            return;
        }
        while let Some(place) = self.connections.first_over(now_ns) {
            self.finish(place, flows);
        }
        if std::mem::take(&mut self.lacked) {
            self.cut_short(flows);
        }
        if !self.draining.is_empty() {
            self.make_new(now_ns);
        }
        if std::mem::take(&mut self.stirred) {
            self.pools.iter().flatten().for_each(|members| members.show(self.thread));
        }
    }

    #[inline]
    fn release(&mut self, plane: &mut Plane, registry: &PathRegistry, flows: &mut FlowTable, clock: &Clock) -> usize {
        if self.wants_look(plane.now_ns) { self.let_go_on(plane, registry, flows, clock) } else { 0 }
    }

    fn age(&mut self, flows: &mut FlowTable, now_ms: u64, flow_timeout_ms: u64) {
        self.end_said(now_ms);
        self.end_silent(flows, now_ms, flow_timeout_ms);
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn let_go(&mut self, plane: &mut Plane) {
        while let Some(waiting) = self.waiting.pop_any() {
            give_up(plane, &waiting);
        }
    }

    fn setups(&self) -> Vec<(u16, Histogram)> {
        self.pools.iter().flatten().map(|members| (members.table.service, members.setup.clone())).collect()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl PoolSteering {
    /// Sends waiting packets on for which there is now a member. Returns their number.
    #[cold]
    fn let_go_on(&mut self, plane: &mut Plane, registry: &PathRegistry, flows: &mut FlowTable, clock: &Clock) -> usize {
        let mut went = 0;
        while let Some(waiting) = self.waiting.first() {
            let (packet, key) = (waiting.packet, waiting.key);
            if waiting.is_over(plane.now_ns) {
                self.gives_up(&waiting);
                give_up(plane, &waiting);
                continue;
            }
            let tables = plane.tables.clone();
            let Wanted { service, chain, note, terms } = waiting.wanted;
            let Some(Some(chain)) = tables.chains.get(usize::from(chain)) else {
                self.waiting.pop(service);
                plane.refuse_one(packet, &key, None, Refusal::NoRule);
                continue;
            };
            let generation = plane.generation;
            let hash = flows.hash_of(&key);
            // Packets queued behind it must leave first.
            let settles = note == 0 && self.waiting.is_last(service);
            let (flags, old, has_waited, since_ns) = (waiting.tcp, None, true, clock.now_ns());
            let asked = SteerRequest { key: &key, hash, chain, flags, old, has_waited, settles, note, terms, since_ns };
            match self.decide(&asked, &mut Env { tables: &tables, registry, flows: &mut *flows, generation, clock }) {
                Decision::Wait(_) => self.waits_on(&waiting),
                Decision::Path(number) => match registry.get(number) {
                    Some(path) if plane.admit(path, 1) == 1 => {
                        self.waiting.pop(service);
                        let (traceable, urgent) = (u32::from(plane.traces(&key, packet)), u32::from(is_urgent(waiting.tcp)));
                        plane.enter(path, number, &[packet], &[waiting.flags], traceable, urgent);
                        went += 1;
                    }
                    // Its NF accepts no packets now: its queue is skipped until the next look.
                    _ => self.waiting.pass(service, service, 0, false),
                },
                Decision::Drop(_) => {
                    self.waiting.pop(service);
                    give_up(plane, &waiting);
                }
            }
        }
        went
    }
}

#[cold]
fn give_up(plane: &mut Plane, waiting: &Waiting) {
    plane.refuse_one(waiting.packet, &waiting.key, Some(waiting.wanted.chain), Refusal::NoneIdle);
}

/// An instance of a shared service for a flow of a packet thread: the flow's former one if it
/// lives, else by hash.
fn shared(tables: &Tables, service: u16, hash: u32, kept: Option<u16>, thread: usize) -> Option<u16> {
    let members = tables.services.get(service as usize).map_or(&[][..], |m| m);
    kept.and_then(|nf| chain::kept(members, nf, thread)).or_else(|| chain::picked(members, hash, thread))
}

/// Removes a connection's keys from the flow table.
fn forget(connection: &mut connections::Connection, flows: &mut FlowTable) {
    for key in connection.flows() {
        flows.remove(&key, flows.hash_of(&key));
    }
    connection.forget_flows();
}

#[cfg(test)]
mod tests;
