//! The entry: finds the path of each packet of a port queue, and admits, holds or drops it.

use std::ops::Range;
use std::sync::Arc;

use sluice_api::protocol;
use sluice_shm::BURST;
use sluice_shm::clock::Clock;

use crate::batch::{Basis, Batch, OwnedQueue, Sole, gather};
use crate::capture::LossReason;
use crate::chain::{Chain, DropReason, Path, PathKind, PathRegistry, Tables};
use crate::classify::flow_table::Known;
use crate::classify::key::FlowKey;
use crate::classify::rule::{Rule, RuleTerms};
use crate::classify::tcp::{self, is_urgent};
use crate::classify::{Classifier, Lookup, tcp_flags};
use crate::decision::{Decision, Packed, Refusal, WaitFor};
use crate::frame::{NO_ARENA, Packet};
use crate::plane::Plane;
use crate::steer::{Arrival, ChooseChain, ChooseInstances, Chosen, Env, Released, SteerRequest};
use crate::trace::TraceRequest;

/// A bit for each of `n` packets, at most [`BURST`].
fn mask(n: usize, is: impl Fn(usize) -> bool) -> u32 {
    (0..n.min(BURST)).fold(0, |mask, i| mask | u32::from(is(i)) << i)
}

/// A bit for each of `n` packets from `first` on for which NFs are woken at once.
#[inline(always)]
fn urgent_of(owned: &OwnedQueue, first: usize, n: usize) -> u32 {
    if owned.has_urgent { mask(n, |i| is_urgent(owned.batch.tcp[first + i])) } else { 0 }
}

/// A bit for each of `n` packets from `first` on that the active trace covers.
#[inline(always)]
fn traceable_of(owned: &OwnedQueue, first: usize, n: usize) -> u32 {
    if owned.traces_some { mask(n, |i| owned.batch.traceable[first + i]) } else { u32::MAX }
}

/// Determines which packets of a queue a new trace covers: they came before it began.
#[cold]
pub(crate) fn look_for_trace(plane: &Plane, owned: &mut OwnedQueue) {
    owned.traces_some = plane.trace().is_some_and(TraceRequest::is_selective);
    for i in owned.from..owned.to {
        let packet = owned.batch.packets[i];
        owned.batch.traceable[i] = plane.traces(&plane.key_of(packet, owned.port), packet);
    }
}

/// The terms of a flow on a chain, by the rule that names the chain. If no rule chose the chain,
/// the terms that the rules would give the flow there, or else the default.
pub(crate) fn terms_of(tables: &Tables, key: &FlowKey, chain: u16, rule: Option<usize>) -> RuleTerms {
    let rules = tables.rules.rules();
    let rule = rule.or_else(|| tables.rules.first_rule(key)).map(|rule| &rules[rule]);
    rule.filter(|rule| rule.chain == chain).map(|rule| rule.terms).unwrap_or_default()
}

/// What happens to packets whose decision is not a path in use.
enum Instead {
    /// They are classified again: their path has ended.
    LookAgain,
    /// They are dropped.
    Drop(Refusal),
    /// They wait.
    Wait(WaitFor),
}

/// What happens to packets whose decision is not a path in use. `looked`: classified again.
#[cold]
fn instead_of(path: Option<&Path>, decision: Decision, looked: bool) -> Instead {
    match (path, decision) {
        (Some(path), _) if path.refuses() && !path.has_ended() => Instead::Drop(Refusal::NfDown),
        // A service may have an instance again, a path be free, steering know the chain.
        (_, Decision::Path(_) | Decision::Drop(Refusal::NfDown | Refusal::NoPath) | Decision::Wait(WaitFor::Steering))
            if !looked =>
        {
            Instead::LookAgain
        }
        (Some(path), _) if path.refuses() => Instead::Drop(Refusal::NfDown),
        (_, Decision::Path(_)) => Instead::Drop(Refusal::NoPath),
        (_, Decision::Drop(why)) => Instead::Drop(why),
        // Instances that are not known yet, or not any more, count as none.
        (_, Decision::Wait(WaitFor::Steering)) => Instead::Drop(Refusal::NfDown),
        (_, Decision::Wait(what)) => Instead::Wait(what),
    }
}

struct Undecided {
    packet: Packet,
    i: usize,
    found: Lookup,
    tcp: u8,
    /// Whether it was decided about before, and so must not begin or end a connection again.
    is_counted: bool,
}

/// The Rx role of a thread.
pub struct Rx {
    /// The paths.
    pub registry: Arc<PathRegistry>,
    /// The flow table, and the parsing of headers.
    pub classifier: Classifier,
    /// The clock.
    pub clock: Clock,
    /// The feature that chooses chains before the rules do, if there is one.
    pub chains: Option<Box<dyn ChooseChain>>,
    /// The feature that chooses instances, if there is one.
    pub instances: Option<Box<dyn ChooseInstances>>,
}

impl Rx {
    #[inline(always)]
    fn basis(&self, plane: &Plane) -> Basis {
        let moved = self.instances.as_ref().map_or(0, |instances| instances.moved());
        Basis { generation: plane.generation, moved }
    }

    /// Runs the features between two bursts. Returns how many packets they sent on.
    #[inline]
    pub(crate) fn step(&mut self, plane: &mut Plane) -> usize {
        let mut work = 0;
        if let Some(instances) = &mut self.instances {
            instances.step(self.classifier.table(), plane.now_ns);
            work += instances.release(plane, &self.registry, self.classifier.table(), &self.clock);
        }
        if self.chains.as_ref().is_some_and(|chains| chains.has_released()) {
            work += self.send_released(plane);
        }
        work
    }

    /// Reads packets from a port queue, unless it still holds some, and admits those with room.
    #[inline]
    pub(crate) fn receive(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) -> usize {
        if owned.from == owned.to {
            if owned.pace.must_skip() || !self.read(plane, owned) {
                return 0;
            }
        } else if owned.basis != self.basis(plane) {
            if !owned.move_in(&mut plane.frames) {
                if owned.memory == NO_ARENA {
                    // Nothing says whose they are.
                    let to = owned.to;
                    self.refuse(plane, owned, Refusal::NoRule, to);
                }
                return 0;
            }
            self.classify(plane, owned);
        }
        if owned.basis != self.basis(plane) {
            // A packet has ended a connection that packets before it belonged to.
            self.classify(plane, owned);
        }
        gather(owned);
        let before = owned.from;
        let let_in = self.let_in(plane, owned);
        owned.pace.note(let_in);
        owned.from - before
    }

    /// Admits packets that a queue holds, in runs of one path. Returns how many.
    #[inline(always)]
    fn let_in(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) -> usize {
        let mut let_in = 0;
        let mut looked = false;
        while owned.from < owned.to {
            let first = owned.from;
            owned.fetch_ahead(plane, &self.registry);
            let decision = owned.batch.decisions[first];
            let most = owned.to.min(first + BURST);
            let mut end = first + 1;
            while end < most && owned.batch.decisions[end] == decision {
                end += 1;
            }
            let path = self.registry.of(decision);
            let Some(path) = path.filter(|path| path.goes() || looked && !path.refuses()) else {
                match instead_of(path, decision.unpack(), looked) {
                    Instead::LookAgain => {
                        looked = true;
                        self.classify(plane, owned);
                        if owned.basis != self.basis(plane) {
                            self.classify(plane, owned);
                        }
                    }
                    // They are tried again when there is an NF, or a number for their path.
                    Instead::Drop(Refusal::NfDown | Refusal::NoPath) if owned.waits => break,
                    Instead::Drop(why) => self.refuse(plane, owned, why, end),
                    Instead::Wait(what) => self.wait(plane, owned, what, end),
                }
                continue;
            };
            if !plane.changed.is_empty() && plane.awaits_former(&path.chain) {
                break;
            }
            let within = path.chain.police.as_ref().map_or(end - first, |bucket| bucket.take(plane.now_ns, end - first));
            let m = plane.admit(path, within);
            if m > 0 {
                let (traceable, urgent) = (traceable_of(owned, first, m), urgent_of(owned, first, m));
                let Batch { packets, flags, .. } = &*owned.batch;
                let number = decision.bits();
                plane.enter(path, number, &packets[first..first + m], &flags[first..first + m], traceable, urgent);
                let_in += m;
            }
            owned.from += m;
            if m < within {
                if owned.waits {
                    // They are tried again, and count against the limit then.
                    path.chain.police.iter().for_each(|bucket| bucket.give_back(within - m));
                    break;
                }
                plane.count_refused(path, within - m);
                turn_away(self.chains.as_deref(), plane, path, owned, DropReason::Entry, first + within);
            }
            if within < end - first {
                turn_away(self.chains.as_deref(), plane, path, owned, DropReason::Policed, end);
            }
        }
        let_in
    }

    /// Reads a burst, or several if gathering is worth it, and classifies it. False: none.
    #[inline]
    fn read(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) -> bool {
        (owned.from, owned.to) = (0, 0);
        owned.batch.put_in_order();
        self.look_anew(plane, owned);
        plane.frames.choose(owned.memory);
        for _ in 0..owned.bursts() {
            let from = owned.to;
            let n = owned.queue.rx_burst(&mut owned.batch.packets[from..from + BURST], &mut plane.frames, plane.now_ns);
            owned.to = from + n;
            let is_plain = n == 0 || self.classify_burst(plane, owned, from..from + n, false);
            // A decision may concern the packets behind it: they are not read before it.
            if n < BURST || !is_plain {
                break;
            }
        }
        plane.frames.choose_usual();
        if owned.to == 0 {
            return false;
        }
        if let Some(observers) = &mut plane.observers {
            owned.show(observers, &self.registry, plane.frames.arena(), plane.now_ns);
        }
        owned.counters.api.rx_packets.add(owned.to as u64);
        owned.counters.api.rx_bytes.add(owned.batch.packets[..owned.to].iter().map(|p| u64::from(p.len)).sum());
        true
    }

    /// Classifies the packets that a queue holds again.
    fn classify(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) {
        self.look_anew(plane, owned);
        for from in (owned.from..owned.to).step_by(BURST) {
            let to = owned.to.min(from + BURST);
            self.classify_burst(plane, owned, from..to, true);
        }
    }

    #[inline(always)]
    fn look_anew(&self, plane: &Plane, owned: &mut OwnedQueue) {
        owned.basis = self.basis(plane);
        owned.traces_some = plane.trace().is_some_and(TraceRequest::is_selective);
        owned.has_urgent = false;
        owned.fetch_anew();
    }

    /// Classifies a burst of packets that a queue holds; `again`: not for the first time. Returns
    /// whether all of them are of known flows that stay as they are.
    #[inline(always)]
    fn classify_burst(&mut self, plane: &mut Plane, owned: &mut OwnedQueue, burst: Range<usize>, again: bool) -> bool {
        let Batch { packets, decisions, flags, tcp: tcp_seen, .. } = &mut *owned.batch;
        let (held, decisions) = (&packets[burst.clone()], &mut decisions[burst.clone()]);
        let watches = self.instances.as_ref().is_some_and(|instances| instances.watches());
        // The end of a connection concerns NFs that are not woken for each packet.
        let reads_flags = watches || plane.timers.are_used();
        let looks_at_all = again || plane.trace().is_some_and(TraceRequest::is_selective);
        if plane.settings.skips_lookups
            && !looks_at_all
            && !reads_flags
            && let Some(path) = self.sole(plane, &mut owned.sole, owned.port)
        {
            self.classifier.flags_of(plane.frames.arena(), held, owned.port, &mut flags[burst]);
            decisions.fill(Packed::path(path));
            return true;
        }
        let (generation, now_ms) = (plane.generation, plane.now_ns / 1_000_000);
        let (mut rest, mut left) = ([Lookup::Miss; BURST], 0u32);
        let mut note = |i: usize, found| (rest[i], left) = (found, left | 1 << i);
        let (arena, port, flags) = (plane.frames.arena(), owned.port, &mut flags[burst.clone()]);
        // A path that ended is noticed later, and its packets are classified `again`.
        if reads_flags {
            let tcp_seen = &mut tcp_seen[burst.clone()];
            self.classifier.classify_burst(arena, held, port, now_ms, flags, |i, key, found| match found {
                Lookup::Hit(known) if known.is_settled(generation) && !looks_at_all => {
                    let tcp = tcp_flags(key, arena, held[i]);
                    if tcp & (tcp::SYN | tcp::FIN | tcp::RST) == 0 {
                        (tcp_seen[i], decisions[i]) = (tcp, known.decision);
                    } else {
                        note(i, found);
                    }
                }
                found => note(i, found),
            });
        } else {
            self.classifier.classify_burst(arena, held, port, now_ms, flags, |i, _, found| match found {
                Lookup::Hit(known) if known.is_settled(generation) && !looks_at_all => decisions[i] = known.decision,
                found => note(i, found),
            });
        }
        left == 0 || self.classify_rest(plane, owned, burst.start, (&rest, left), (again, watches, reads_flags))
    }

    /// The path of all packets of a port, if there is one.
    #[inline(always)]
    fn sole(&mut self, plane: &mut Plane, sole: &mut Sole, port: u16) -> Option<u32> {
        let is_known = sole.under == Some(plane.tables.generation) && sole.path.is_none_or(|path| self.registry.goes(path));
        if !is_known {
            *sole = self.look_for_sole(plane, port);
        }
        sole.path
    }

    #[cold]
    fn look_for_sole(&mut self, plane: &mut Plane, port: u16) -> Sole {
        let under = Some(plane.tables.generation);
        let path = self.sole_chain(plane, port).and_then(|(rule, chain)| {
            let decision = self.registry.decide(&mut plane.ways, &plane.tables, port, chain, 0, None);
            let Decision::Path(number) = decision else { return None };
            self.registry.get(number).filter(|path| path.kind == PathKind::Whole)?;
            plane.tables.rules.count(rule, plane.index);
            Some(number)
        });
        Sole { under, path }
    }

    /// The rule and the chain of all packets of a port, if neither another rule nor a feature looks
    /// at them and each service has one instance.
    fn sole_chain(&self, plane: &Plane, port: u16) -> Option<(usize, u16)> {
        let tables = &plane.tables;
        let of_port = |rule: &Rule| rule.port.is_none_or(|own| own == port);
        let (number, rule) = tables.rules.rules().iter().enumerate().find(|(_, rule)| of_port(rule))?;
        let chain = tables.chains.get(usize::from(rule.chain))?.as_ref()?;
        let alone = |service: &u16| {
            let members = tables.services.get(usize::from(*service)).map_or(&[][..], |members| members);
            !tables.is_steered(*service) && members.iter().filter(|member| member.serves(plane.index)).count() == 1
        };
        let is_it = rule.takes_all() && self.chains.is_none() && chain.services.iter().all(alone);
        is_it.then_some((number, rule.chain))
    }

    /// Classifies those packets of a burst from `from` on that need more than a lookup: each bit of
    /// `left` is one. The same arguments and result as for `classify_burst`.
    #[inline(never)]
    fn classify_rest(
        &mut self,
        plane: &mut Plane,
        owned: &mut OwnedQueue,
        from: usize,
        (found, mut left): (&[Lookup; BURST], u32),
        (again, watches, reads_flags): (bool, bool, bool),
    ) -> bool {
        let mut is_plain = true;
        let generation = plane.generation;
        let traces_some = plane.trace().is_some_and(TraceRequest::is_selective);
        if let Some(instances) = self.instances.as_ref().filter(|_| watches) {
            let misses = (0..BURST).filter(|i| left >> i & 1 != 0 && matches!(found[*i], Lookup::Miss));
            misses.for_each(|i| instances.foresee(self.classifier.key(i)));
        }
        while left != 0 {
            let i = left.trailing_zeros() as usize;
            left &= left - 1;
            let Batch { packets, decisions, tcp: tcp_seen, traceable, came, .. } = &mut *owned.batch;
            let packet = packets[from + i];
            came[from + i] = (from + i) as u16;
            if traces_some {
                traceable[from + i] = plane.traces(self.classifier.key(i), packet);
            }
            let (mut found, mut tcp) = (found[i], 0);
            if reads_flags {
                tcp = tcp_flags(self.classifier.key(i), plane.frames.arena(), packet);
                tcp_seen[from + i] = tcp;
                owned.has_urgent |= is_urgent(tcp);
                if watches && !again && tcp & (tcp::SYN | tcp::FIN | tcp::RST) != 0 && matches!(found, Lookup::Hit(_)) {
                    is_plain = false;
                    if self.begins_anew(i, tcp, plane.now_ns) {
                        found = Lookup::Miss;
                    }
                }
            }
            decisions[from + i] = match found {
                Lookup::Hit(known) if known.generation == generation && (!again || self.registry.holds(known.decision)) => {
                    if known.note != 0 {
                        self.count_noted(plane, packet, i, known);
                    }
                    known.decision
                }
                found => {
                    is_plain = false;
                    // A packet that waited, or had no path, has not begun or ended anything yet.
                    let is_counted = again && decisions[from + i].number().is_some();
                    self.decide(plane, Undecided { packet, i, found, tcp, is_counted }).into()
                }
            };
            if let Some(instances) = &self.instances
                && decisions[from + i] == Packed::from(Decision::Wait(WaitFor::Instance))
            {
                owned.waiting[from + i] = (*self.classifier.key(i), instances.wanted());
            }
        }
        is_plain
    }

    /// Notes TCP flags of packet `i` of the last burst, of a known flow. True: a new connection.
    fn begins_anew(&mut self, i: usize, flags: u8, now_ns: u64) -> bool {
        let key = *self.classifier.key(i);
        self.instances.as_mut().is_some_and(|instances| instances.note(&key, flags, self.classifier.table(), now_ns))
    }

    /// Decides about a flow that is new, or was decided under older tables.
    #[cold]
    fn decide(&mut self, plane: &mut Plane, asked: Undecided) -> Decision {
        let Undecided { packet, i, found, is_counted, .. } = asked;
        let flags = if is_counted { 0 } else { asked.tcp };
        // Connection set-up is measured from here.
        let watches = self.instances.as_ref().is_some_and(|instances| instances.watches());
        let since_ns = if watches { self.clock.now_ns() } else { plane.now_ns };
        let generation = plane.generation;
        let now_ms = plane.now_ns / 1_000_000;
        // An earlier packet of the burst may have added the flow.
        let mut known = match found {
            Lookup::Miss => self.classifier.again(i, now_ms),
            Lookup::Hit(known) => Some(known),
        };
        // In that case the flags of this packet were not noted yet.
        let is_looked_at = !matches!(found, Lookup::Miss) || known.is_none() || flags & (tcp::SYN | tcp::FIN | tcp::RST) == 0;
        if !is_looked_at && self.begins_anew(i, flags, plane.now_ns) {
            known = None;
        }
        if let Some(known) = known
            && self.stands(&known, generation)
        {
            if known.note != 0 {
                self.count_noted(plane, packet, i, known);
            }
            return known.decision.unpack();
        }
        let key = *self.classifier.key(i);
        let chosen = match &mut self.chains {
            Some(chains) => chains.choose(plane, &key, packet, known.map_or(0, |known| known.note)),
            None => Chosen::RULES,
        };
        let old = known.and_then(|known| known.decision.number());
        let mut settles = chosen.settles;
        let decision = match chosen.choice.chain(&plane.tables, &key) {
            Err(instead) => instead,
            Ok((number, rule)) => {
                if let Some(rule) = rule {
                    plane.tables.rules.count(rule, plane.index);
                }
                if let Some(chain) = self.steered(&plane.tables, number) {
                    let terms = terms_of(&plane.tables, &key, number, rule);
                    let (hash, note, settles) = (self.classifier.hash(i), chosen.note, settles && !is_counted);
                    let asked =
                        SteerRequest { key: &key, hash, chain, flags, old, has_waited: false, settles, note, terms, since_ns };
                    return self.choose_instances(plane, &asked);
                }
                let decision = self.by_hash(plane, &key, number, old);
                // A decision that may change soon without new rules is not remembered.
                settles &= matches!(decision, Decision::Path(_));
                decision
            }
        };
        if settles {
            self.classifier.remember(i, Known { decision: decision.into(), generation, note: chosen.note }, now_ms);
        }
        decision
    }

    /// Whether a decision about a flow still stands under a generation.
    #[inline(always)]
    pub(crate) fn stands(&self, known: &Known, generation: u32) -> bool {
        known.generation == generation && self.registry.holds(known.decision)
    }

    /// A chain, if steering chooses its instances.
    #[inline]
    pub(crate) fn steered<'a>(&self, tables: &'a Tables, number: u16) -> Option<&'a Arc<Chain>> {
        let chain = tables.chains.get(usize::from(number))?.as_ref()?;
        self.instances.as_ref().is_some_and(|instances| instances.concerns(chain)).then_some(chain)
    }

    fn choose_instances(&mut self, plane: &Plane, asked: &SteerRequest<'_>) -> Decision {
        let Some(instances) = &mut self.instances else { return Decision::Wait(WaitFor::Steering) };
        let (tables, generation) = (&plane.tables, plane.generation);
        let (registry, flows, clock) = (&self.registry, self.classifier.table(), &self.clock);
        let decision = instances.decide(asked, &mut Env { tables, registry, flows, generation, clock });
        if decision == Decision::Drop(Refusal::NoPath) {
            asked.chain.counters[plane.index].no_path.add(1);
        }
        decision
    }

    /// The path of a flow on a chain by its hash. `old` is its former path.
    fn by_hash(&self, plane: &mut Plane, key: &FlowKey, chain: u16, old: Option<u32>) -> Decision {
        let tables = &plane.tables;
        if let Some(Some(named)) = tables.chains.get(usize::from(chain))
            && named.services.iter().any(|service| tables.is_steered(*service))
        {
            return Decision::Wait(WaitFor::Steering);
        }
        match old {
            Some(path) if self.registry.still_valid(tables, path, chain) => Decision::Path(path),
            old => {
                let decision = self.registry.decide(&mut plane.ways, tables, key.ingress(), chain, key.symmetric_hash(), old);
                if decision == Decision::Drop(Refusal::NoPath)
                    && let Some(Some(named)) = tables.chains.get(usize::from(chain))
                {
                    named.counters[plane.index].no_path.add(1);
                }
                decision
            }
        }
    }

    /// Counts packet `i` of the last burst by the note of its flow.
    #[inline(never)]
    fn count_noted(&mut self, plane: &Plane, packet: Packet, i: usize, known: Known) {
        let Some(chains) = &mut self.chains else { return };
        if let Some(note) = chains.count(plane, self.classifier.key(i), packet, known.note) {
            self.classifier.remember(i, Known { note, ..known }, plane.now_ns / 1_000_000);
        }
    }

    /// Makes packets wait, from the first that a queue holds to `to`.
    #[cold]
    fn wait(&mut self, plane: &mut Plane, owned: &mut OwnedQueue, what: WaitFor, to: usize) {
        for i in owned.from..to {
            let Batch { packets, flags, tcp, came, .. } = &*owned.batch;
            match (what, &mut self.instances, &mut self.chains) {
                (WaitFor::Answer, _, Some(chains)) => chains.hold(plane, packets[i], owned.port),
                (WaitFor::Instance, Some(instances), _) => {
                    let (key, wanted) = &owned.waiting[usize::from(came[i])];
                    let arrival = Arrival { packet: packets[i], key, flags: flags[i], tcp: tcp[i] };
                    if instances.wait(plane, *wanted, &arrival) {
                        owned.counters.api.entry_drops.add(1);
                    }
                }
                // What it could wait for is gone.
                _ => {
                    owned.counters.api.entry_drops.add(1);
                    let key = plane.key_of(packets[i], owned.port);
                    plane.refuse_one(packets[i], &key, None, Refusal::NfDown);
                }
            }
        }
        owned.from = to;
    }

    /// Sends on packets that were held for an answer, or made here. Returns how many.
    #[cold]
    fn send_released(&mut self, plane: &mut Plane) -> usize {
        let mut sent = 0;
        while let Some(released) = self.chains.as_mut().and_then(|chains| chains.next_released()) {
            self.send_one(plane, &released);
            sent += 1;
        }
        sent
    }

    fn send_one(&mut self, plane: &mut Plane, released: &Released) {
        let Released { packet, key, choice } = released;
        let named = choice.chain(&plane.tables, key);
        let chain = named.ok().map(|(chain, _)| chain);
        let (bytes, len) = plane.head_of(*packet);
        let is_tcp = key.protocol() == protocol::TCP && key.flags() == 0;
        let flags = tcp::flags(&bytes[..len]).filter(|_| is_tcp).unwrap_or(0);
        let decision = match named {
            Err(instead) => instead,
            Ok((number, rule)) => {
                rule.into_iter().for_each(|rule| plane.tables.rules.count(rule, plane.index));
                match self.steered(&plane.tables, number) {
                    Some(chain) => {
                        let terms = terms_of(&plane.tables, key, number, rule);
                        let hash = self.classifier.table().hash_of(key);
                        let (old, has_waited, settles, note) = (None, false, false, 0);
                        let since_ns = self.clock.now_ns();
                        let asked = SteerRequest { key, hash, chain, flags, old, has_waited, settles, note, terms, since_ns };
                        let decision = self.choose_instances(plane, &asked);
                        // The next packet of the flow is decided and counted on its own.
                        self.classifier.table().remove(key, hash);
                        decision
                    }
                    None => self.by_hash(plane, key, number, None),
                }
            }
        };
        match decision {
            Decision::Path(number) => match self.registry.get(number) {
                Some(path) if path.refuses() => plane.refuse_one(*packet, key, chain, Refusal::NfDown),
                Some(path) if plane.admit(path, 1) == 1 => {
                    let (traceable, urgent) = (u32::from(plane.traces(key, *packet)), u32::from(is_urgent(flags)));
                    plane.enter(path, number, &[*packet], &[key.flags()], traceable, urgent);
                }
                Some(path) => {
                    plane.count_lost(&path.chain, DropReason::Entry, 1);
                    plane.count_refused(path, 1);
                    plane.report_refused(*packet, key, chain, DropReason::Entry.into());
                    plane.discard(packet.frame);
                }
                None => plane.refuse_one(*packet, key, chain, Refusal::NoPath),
            },
            Decision::Wait(WaitFor::Answer) => plane.refuse_one(*packet, key, chain, Refusal::Unanswered),
            Decision::Wait(what) => match self.instances.as_mut().filter(|_| what == WaitFor::Instance) {
                Some(instances) => {
                    let wanted = instances.wanted();
                    instances.wait(plane, wanted, &Arrival { packet: *packet, key, flags: key.flags(), tcp: flags });
                }
                None => plane.refuse_one(*packet, key, chain, Refusal::NfDown),
            },
            Decision::Drop(why) => plane.refuse_one(*packet, key, chain, why),
        }
    }

    /// Drops packets without a path, from the first that a queue holds to `to`.
    #[cold]
    fn refuse(&mut self, plane: &mut Plane, owned: &mut OwnedQueue, why: Refusal, to: usize) {
        let n = (to - owned.from) as u64;
        plane.refused[why as usize].add(n);
        owned.counters.api.entry_drops.add(n);
        drop_held(self.chains.as_deref(), plane, owned, None, why.into(), to);
    }

    pub(crate) fn let_go(&mut self, plane: &mut Plane) {
        if let Some(chains) = &mut self.chains {
            chains.let_go(plane);
            while let Some(Released { packet, .. }) = chains.next_released() {
                plane.refused[Refusal::Unanswered as usize].add(1);
                plane.discard(packet.frame);
            }
        }
        if let Some(instances) = &mut self.instances {
            instances.let_go(plane);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.chains.as_ref().map_or(0, |chains| chains.held()) + self.instances.as_ref().map_or(0, |instances| instances.waiting())
    }
}

/// Drops packets that have a path and are not admitted, from the first that a queue holds to `to`.
fn turn_away(chains: Option<&dyn ChooseChain>, plane: &mut Plane, path: &Path, owned: &mut OwnedQueue, why: DropReason, to: usize) {
    let n = (to - owned.from) as u64;
    path.chain.counters[plane.index].drops[why as usize].add(n);
    owned.counters.api.entry_drops.add(n);
    drop_held(chains, plane, owned, Some(path.chain.number), why.into(), to);
}

/// Drops packets, from the first that a queue holds to `to`. `chain` is their path's chain.
fn drop_held(
    chains: Option<&dyn ChooseChain>,
    plane: &mut Plane,
    owned: &mut OwnedQueue,
    chain: Option<u16>,
    why: LossReason,
    to: usize,
) {
    if plane.observers.is_some() {
        report_refused(chains, plane, owned, chain, why, to);
    }
    for packet in &owned.batch.packets[owned.from..to] {
        plane.discard(packet.frame);
    }
    owned.from = to;
}

/// Shows packets that are dropped at the entry to those that look.
#[cold]
fn report_refused(
    chains: Option<&dyn ChooseChain>,
    plane: &mut Plane,
    owned: &OwnedQueue,
    chain: Option<u16>,
    why: LossReason,
    to: usize,
) {
    for packet in &owned.batch.packets[owned.from..to] {
        if !plane.is_watched() {
            return;
        }
        let key = plane.key_of(*packet, owned.port);
        let chain = chain.or_else(|| {
            let choice = chains.map_or(Chosen::RULES.choice, |chains| chains.now(plane, &key, *packet));
            choice.chain(&plane.tables, &key).ok().map(|(chain, _)| chain)
        });
        plane.report_refused(*packet, &key, chain, why);
    }
}
