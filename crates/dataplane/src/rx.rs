//! The entry: from the packets that a port queue holds to the path of each, and into it; or what is done with a packet instead.

use std::ops::Range;
use std::sync::Arc;

use sluice_api::protocol;
use sluice_shm::BURST;
use sluice_shm::arena::Arena;
use sluice_shm::clock::Clock;

use crate::batch::{Basis, Batch, OwnedQueue, gather};
use crate::chain::{Chain, DropReason, Path, PathRegistry, Tables};
use crate::classify::flow_table::Known;
use crate::classify::key::{FlowKey, LONG, SHORT};
use crate::classify::rule::Terms;
use crate::classify::{Classifier, Lookup, tcp};
use crate::decision::{Decision, Packed, Refusal, WaitFor};
use crate::frame::Packet;
use crate::plane::Plane;
use crate::steer::{Arrival, Asked, ChooseChain, ChooseInstances, Chosen, Env, Released};

/// TCP flags of a packet; 0 if it has none, or they cannot be read.
#[inline(always)]
fn tcp_flags(key: &FlowKey, header: &[u8; SHORT], len: u16, more: impl FnOnce(&mut [u8; LONG]) -> usize) -> u8 {
    if key.protocol() != protocol::TCP || key.flags() != 0 {
        return 0;
    }
    tcp::flags(&header[..SHORT.min(len.into())]).unwrap_or_else(|| long_tcp_flags(more))
}

#[cold]
#[inline(never)]
fn long_tcp_flags(more: impl FnOnce(&mut [u8; LONG]) -> usize) -> u8 {
    let mut bytes = [0; LONG];
    let copied = more(&mut bytes).min(LONG);
    tcp::flags(&bytes[..copied]).unwrap_or(0)
}

/// Whether NFs are woken at once for a packet with these TCP flags: it ends its connection, or half of it.
#[inline(always)]
pub fn is_urgent(tcp_flags: u8) -> bool {
    tcp_flags & (tcp::FIN | tcp::RST) != 0
}

/// A bit for each of `n` packets from `first` on, at most [`BURST`].
fn mask(n: usize, is: impl Fn(usize) -> bool) -> u32 {
    (0..n.min(BURST)).fold(0, |mask, i| mask | u32::from(is(i)) << i)
}

/// A bit for each of `n` packets from `first` on that NFs are woken for at once.
#[inline(always)]
fn urgent_of(owned: &OwnedQueue, first: usize, n: usize) -> u32 {
    if owned.has_urgent { mask(n, |i| is_urgent(owned.batch.tcp[first + i])) } else { 0 }
}

/// A bit for each of `n` packets from `first` on that the trace that goes on is about; all if it is about all rules.
#[inline(always)]
fn traceable_of(owned: &OwnedQueue, first: usize, n: usize) -> u32 {
    if owned.traces_rule { mask(n, |i| owned.batch.traceable[first + i]) } else { u32::MAX }
}

/// Finds which of the packets that a queue holds the trace is about that begins: nobody has asked when they came.
#[cold]
pub(crate) fn look_for_trace(plane: &Plane, owned: &mut OwnedQueue) {
    owned.traces_rule = plane.trace.as_ref().is_some_and(|trace| trace.rule.is_some());
    for i in owned.from..owned.to {
        owned.batch.traceable[i] = plane.traces(&plane.key_of(owned.batch.packets[i], owned.port));
    }
}

/// Copies the beginnings of packets. Their lengths.
#[inline(always)]
fn copy_headers(arena: &Arena, packets: &[Packet], headers: &mut [[u8; SHORT]; BURST]) -> [u16; BURST] {
    let mut lens = [0; BURST];
    for ((header, len), packet) in headers.iter_mut().zip(&mut lens).zip(packets) {
        *len = packet.len;
        // What lies behind a short packet in its frame is copied too and never looked at.
        match arena.read_array(packet.frame, packet.offset) {
            Some(copy) => *header = copy,
            None => copy_short(arena, packet, header),
        }
    }
    lens
}

/// Copies the header of a packet so near the end of its frame that there are fewer than [`SHORT`] bytes. A function of its own, so
/// that the common copy keeps its fixed size.
#[cold]
#[inline(never)]
fn copy_short(arena: &Arena, packet: &Packet, header: &mut [u8; SHORT]) {
    *header = [0; SHORT];
    arena.read(packet.frame, packet.offset, &mut header[..(packet.len as usize).min(SHORT)]);
}

/// Copies the first bytes of a packet, and says how many.
#[inline]
fn copy_long(arena: &Arena, packet: &Packet, bytes: &mut [u8; LONG]) -> usize {
    let n = (packet.len as usize).min(LONG);
    if arena.read(packet.frame, packet.offset, &mut bytes[..n]) { n } else { 0 }
}

/// What flows are given on a chain: by the rule that names it. Where no rule has chosen the chain, flows are given what the rules would
/// give them on that chain, and else what is ordinary.
fn terms_of(tables: &Tables, key: &FlowKey, chain: u16, rule: Option<usize>) -> Terms {
    let rules = tables.rules.rules();
    let rule = rule.or_else(|| tables.rules.first_rule(key)).map(|rule| &rules[rule]);
    rule.filter(|rule| rule.chain == chain).map(|rule| rule.terms).unwrap_or_default()
}

/// What is done with packets whose decision is no path that goes.
enum Instead {
    /// They are looked at again: their path has ended.
    LookAgain,
    /// They are dropped.
    Drop(Refusal),
    /// They wait.
    Wait(WaitFor),
}

/// What is done with packets whose decision is no path that goes. `looked`: they have been looked at again.
#[cold]
fn instead_of(path: Option<&Path>, decision: Decision, looked: bool) -> Instead {
    match (path, decision) {
        (Some(path), _) if path.refuses() && !path.has_ended() => Instead::Drop(Refusal::NfDown),
        // A service may have an instance again, a path a place, and what chooses instances may know the chain.
        (_, Decision::Path(_) | Decision::Drop(Refusal::NfDown | Refusal::NoPath) | Decision::Wait(WaitFor::Steering))
            if !looked =>
        {
            Instead::LookAgain
        }
        (Some(path), _) if path.refuses() => Instead::Drop(Refusal::NfDown),
        (_, Decision::Path(_)) => Instead::Drop(Refusal::NoPath),
        (_, Decision::Drop(why)) => Instead::Drop(why),
        // Instances that are about to be known, or not any more, are as good as none.
        (_, Decision::Wait(WaitFor::Steering)) => Instead::Drop(Refusal::NfDown),
        (_, Decision::Wait(what)) => Instead::Wait(what),
    }
}

/// A packet that needs a decision.
struct Undecided {
    packet: Packet,
    /// Its number in the last burst.
    i: usize,
    /// What the flow table said.
    found: Lookup,
    /// Its TCP flags.
    tcp: u8,
    /// It was decided about before, and does not begin or end a connection a second time.
    is_counted: bool,
}

/// The Rx role of a thread.
pub struct Rx {
    /// The paths.
    pub registry: Arc<PathRegistry>,
    /// The flow table, and the reading of headers.
    pub classifier: Classifier,
    /// The clock.
    pub clock: Clock,
    /// What chooses chains before the rules do, if there is something.
    pub chains: Option<Box<dyn ChooseChain>>,
    /// What chooses instances, if there is something.
    pub instances: Option<Box<dyn ChooseInstances>>,
}

impl Rx {
    /// What decisions are made by now.
    #[inline(always)]
    fn basis(&self, plane: &Plane) -> Basis {
        let moved = self.instances.as_ref().map_or(0, |instances| instances.moved());
        Basis { generation: plane.generation, moved }
    }

    /// What features have to do between two bursts. Says how many packets that sent on.
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

    /// Takes packets from a port queue, or what is left of the last ones, and lets in what there is room for.
    #[inline]
    pub(crate) fn receive(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) -> usize {
        if owned.from == owned.to {
            if owned.pace.must_skip() || !self.read(plane, owned) {
                return 0;
            }
        } else if owned.basis != self.basis(plane) {
            self.classify(plane, owned);
        }
        if owned.basis != self.basis(plane) {
            // A packet has ended a connection that packets before it still went to.
            self.classify(plane, owned);
        }
        if !owned.waits {
            gather(owned);
        }
        let before = owned.from;
        let let_in = self.let_in(plane, owned);
        plane.announce();
        owned.pace.note(let_in);
        owned.from - before
    }

    /// Lets the packets in that a queue holds, run by run of one path, as far as there is room. Says how many.
    #[inline(always)]
    fn let_in(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) -> usize {
        let mut let_in = 0;
        let mut looked = false;
        while owned.from < owned.to {
            let first = owned.from;
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
                    // They come again when there is an NF, or a place for their path.
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
                    // They come again, and are counted against the limit then.
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

    /// Takes packets from a queue, a burst or, where those of a burst go to many NFs, as many bursts as are worth gathering; and finds
    /// their paths. False: there are none.
    #[inline]
    fn read(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) -> bool {
        (owned.from, owned.to) = (0, 0);
        self.look_anew(plane, owned);
        plane.frames.choose(owned.memory);
        for _ in 0..owned.bursts() {
            let from = owned.to;
            let n = owned.queue.rx_burst(&mut owned.batch.packets[from..from + BURST], &mut plane.frames, plane.now_ns);
            owned.to = from + n;
            let is_plain = n == 0 || self.classify_burst(plane, owned, from..from + n, false);
            // What a decision changes is for the packets behind it: these are not read before it is carried out.
            if n < BURST || !is_plain {
                break;
            }
        }
        plane.frames.choose_usual();
        if owned.to == 0 {
            return false;
        }
        owned.counters.rx_packets.add(owned.to as u64);
        owned.counters.rx_bytes.add(owned.batch.packets[..owned.to].iter().map(|p| u64::from(p.len)).sum());
        true
    }

    /// Finds the paths of the packets that a queue holds again.
    fn classify(&mut self, plane: &mut Plane, owned: &mut OwnedQueue) {
        self.look_anew(plane, owned);
        for from in (owned.from..owned.to).step_by(BURST) {
            let to = owned.to.min(from + BURST);
            self.classify_burst(plane, owned, from..to, true);
        }
    }

    /// Notes by what decisions are made from here on.
    #[inline(always)]
    fn look_anew(&self, plane: &Plane, owned: &mut OwnedQueue) {
        owned.basis = self.basis(plane);
        owned.traces_rule = plane.trace.as_ref().is_some_and(|trace| trace.rule.is_some());
        owned.has_urgent = false;
    }

    /// Finds the paths of a burst of packets that a queue holds. `again`: not for the first time. Says whether all of them are of flows
    /// that are known and go on.
    #[inline]
    fn classify_burst(&mut self, plane: &mut Plane, owned: &mut OwnedQueue, burst: Range<usize>, again: bool) -> bool {
        let mut is_plain = true;
        let (from, to) = (burst.start, burst.end);
        let Batch { packets, decisions, flags: descriptor_flags, tcp: tcp_seen, traceable, came } = &mut *owned.batch;
        let held = &packets[from..to];
        let wanted_rule = plane.trace.as_ref().and_then(|t| t.rule);
        let now_ms = plane.now_ns / 1_000_000;
        let generation = plane.generation;
        let watches = self.instances.as_ref().is_some_and(|instances| instances.watches());
        // NFs that are not woken for each packet are for the end of a connection.
        let wants_ends = plane.timers.are_used();
        let mut found = [Lookup::Miss; BURST];
        let arena = plane.frames.arena();
        let headers = &mut owned.headers;
        let lens = copy_headers(arena, held, headers);
        let more = |i: usize, bytes: &mut [u8; LONG]| copy_long(arena, &held[i], bytes);
        self.classifier.classify_burst(&headers[..held.len()], &lens, owned.port, now_ms, more, &mut found);
        if let Some(instances) = self.instances.as_ref().filter(|_| watches) {
            let misses = (0..to - from).filter(|i| matches!(found[*i], Lookup::Miss));
            misses.for_each(|i| instances.foresee(self.classifier.key(i)));
        }
        for (i, found) in found[..to - from].iter().enumerate() {
            descriptor_flags[from + i] = self.classifier.key(i).flags();
            came[from + i] = (from + i) as u8;
            if wanted_rule.is_some() {
                traceable[from + i] = plane.tables.rules.first_rule(self.classifier.key(i)) == wanted_rule;
            }
            let mut found = *found;
            if watches || wants_ends {
                let more = |bytes: &mut [u8; LONG]| copy_long(plane.frames.arena(), &held[i], bytes);
                let flags = tcp_flags(self.classifier.key(i), &headers[i], held[i].len, more);
                tcp_seen[from + i] = flags;
                owned.has_urgent |= is_urgent(flags);
                if watches && !again && flags & (tcp::SYN | tcp::FIN | tcp::RST) != 0 && matches!(found, Lookup::Hit(_)) {
                    is_plain = false;
                    if self.begins_anew(i, flags, plane.now_ns) {
                        found = Lookup::Miss;
                    }
                }
            }
            decisions[from + i] = match found {
                // Only those that are looked at again may have a path that has ended: the others are looked at again when that is noticed.
                Lookup::Hit(known) if known.generation == generation && (!again || self.registry.holds(known.decision)) => {
                    if known.note != 0 {
                        self.count_noted(plane, held[i], i, known);
                    }
                    known.decision
                }
                found => {
                    is_plain = false;
                    // One that was to wait, or had no way, has not begun or ended anything yet.
                    let is_counted = again && decisions[from + i].number().is_some();
                    let asked = Undecided { packet: held[i], i, found, tcp: tcp_seen[from + i], is_counted };
                    self.decide(plane, asked).into()
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

    /// Looks at the TCP flags of packet `i` of the last burst, whose flow is known. True: a new connection begins with it.
    fn begins_anew(&mut self, i: usize, flags: u8, now_ns: u64) -> bool {
        let key = *self.classifier.key(i);
        self.instances.as_mut().is_some_and(|instances| instances.note(&key, flags, self.classifier.table(), now_ns))
    }

    /// Decides about a flow that is new, or was decided under older tables.
    #[cold]
    fn decide(&mut self, plane: &mut Plane, asked: Undecided) -> Decision {
        let Undecided { packet, i, found, is_counted, .. } = asked;
        let flags = if is_counted { 0 } else { asked.tcp };
        // Setting up a connection is measured from here.
        let watches = self.instances.as_ref().is_some_and(|instances| instances.watches());
        let since_ns = if watches { self.clock.now_ns() } else { plane.now_ns };
        let generation = plane.generation;
        let now_ms = plane.now_ns / 1_000_000;
        // An earlier packet of the burst may have made the flow known.
        let mut known = match found {
            Lookup::Miss => self.classifier.again(i, now_ms),
            Lookup::Hit(known) => Some(known),
        };
        // Then nobody has looked at the flags of this one yet.
        let is_looked_at = !matches!(found, Lookup::Miss) || known.is_none() || flags & (tcp::SYN | tcp::FIN | tcp::RST) == 0;
        if !is_looked_at && self.begins_anew(i, flags, plane.now_ns) {
            known = None;
        }
        if let Some(known) = known
            && known.generation == generation
            && self.registry.holds(known.decision)
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
                    let asked = Asked { key: &key, hash, chain, flags, old, has_waited: false, settles, note, terms, since_ns };
                    return self.choose_instances(plane, &asked);
                }
                let decision = self.by_hash(plane, &key, number, old);
                // What may be otherwise in a moment without a change of rules is asked about again.
                settles &= matches!(decision, Decision::Path(_));
                decision
            }
        };
        if settles {
            self.classifier.remember(i, Known { decision: decision.into(), generation, note: chosen.note }, now_ms);
        }
        decision
    }

    /// A chain, if its instances are chosen by something else than the flow's hash.
    #[inline]
    fn steered<'a>(&self, tables: &'a Tables, number: u16) -> Option<&'a Arc<Chain>> {
        let chain = tables.chains.get(usize::from(number))?.as_ref()?;
        self.instances.as_ref().is_some_and(|instances| instances.concerns(chain)).then_some(chain)
    }

    fn choose_instances(&mut self, plane: &Plane, asked: &Asked<'_>) -> Decision {
        let Some(instances) = &mut self.instances else { return Decision::Wait(WaitFor::Steering) };
        let (tables, generation) = (&plane.tables, plane.generation);
        let (registry, flows, clock) = (&self.registry, self.classifier.table(), &self.clock);
        let decision = instances.decide(asked, &mut Env { tables, registry, flows, generation, clock });
        if decision == Decision::Drop(Refusal::NoPath) {
            asked.chain.counters[plane.index].no_path.add(1);
        }
        decision
    }

    /// The path of a flow on a chain by its hash. `old` is the path that it had.
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

    /// Counts a packet, number `i` of the last burst, by what was noted of its flow.
    #[inline(never)]
    fn count_noted(&mut self, plane: &Plane, packet: Packet, i: usize, known: Known) {
        let Some(chains) = &mut self.chains else { return };
        if let Some(note) = chains.count(plane, self.classifier.key(i), packet, known.note) {
            self.classifier.remember(i, Known { note, ..known }, plane.now_ns / 1_000_000);
        }
    }

    /// Has packets wait, those from the first that a queue holds to `to`.
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
                        owned.counters.entry_drops.add(1);
                    }
                }
                // Nothing is there any more that it could wait for.
                _ => {
                    owned.counters.entry_drops.add(1);
                    let key = plane.key_of(packets[i], owned.port);
                    plane.refuse_one(packets[i], &key, None, Refusal::NfDown);
                }
            }
        }
        owned.from = to;
    }

    /// Lets packets go on that were held for an answer, or made here. Says how many there were.
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
                        let asked = Asked { key, hash, chain, flags, old, has_waited, settles, note, terms, since_ns };
                        let decision = self.choose_instances(plane, &asked);
                        // The next packet of the flow is chosen for anew, and is counted by what that says.
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
                    let (traceable, urgent) = (u32::from(plane.traces(key)), u32::from(is_urgent(flags)));
                    plane.enter(path, number, &[*packet], &[key.flags()], traceable, urgent);
                }
                Some(path) => {
                    plane.count_lost(&path.chain, DropReason::Entry, 1);
                    plane.count_refused(path, 1);
                    plane.tell_refused(*packet, key, chain, DropReason::Entry.name());
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

    /// Drops packets that have no path, from the first that a queue holds to `to`.
    #[cold]
    fn refuse(&mut self, plane: &mut Plane, owned: &mut OwnedQueue, why: Refusal, to: usize) {
        let n = (to - owned.from) as u64;
        plane.refused[why as usize].add(n);
        owned.counters.entry_drops.add(n);
        drop_held(self.chains.as_deref(), plane, owned, None, why.name(), to);
    }

    /// Drops all packets that wait.
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

    /// Packets that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.chains.as_ref().map_or(0, |chains| chains.held()) + self.instances.as_ref().map_or(0, |instances| instances.waiting())
    }
}

/// Drops packets that have a path and are not let in, from the first that a queue holds to `to`.
fn turn_away(chains: Option<&dyn ChooseChain>, plane: &mut Plane, path: &Path, owned: &mut OwnedQueue, why: DropReason, to: usize) {
    let n = (to - owned.from) as u64;
    path.chain.counters[plane.index].drops[why as usize].add(n);
    owned.counters.entry_drops.add(n);
    drop_held(chains, plane, owned, Some(path.chain.number), why.name(), to);
}

/// Drops packets, from the first that a queue holds to `to`. `chain` is their chain, where a path says which.
fn drop_held(
    chains: Option<&dyn ChooseChain>,
    plane: &mut Plane,
    owned: &mut OwnedQueue,
    chain: Option<u16>,
    why: &'static str,
    to: usize,
) {
    if plane.is_tracing() {
        tell_refused(chains, plane, owned, chain, why, to);
    }
    for packet in &owned.batch.packets[owned.from..to] {
        plane.discard(packet.frame);
    }
    owned.from = to;
}

/// Notes for the trace that goes on which packets are dropped at the door.
#[cold]
fn tell_refused(
    chains: Option<&dyn ChooseChain>,
    plane: &Plane,
    owned: &OwnedQueue,
    chain: Option<u16>,
    why: &'static str,
    to: usize,
) {
    for packet in &owned.batch.packets[owned.from..to] {
        if !plane.is_tracing() {
            return;
        }
        let key = plane.key_of(*packet, owned.port);
        let chain = chain.or_else(|| {
            let choice = chains.map_or(Chosen::RULES.choice, |chains| chains.now(plane, &key, *packet));
            choice.chain(&plane.tables, &key).ok().map(|(chain, _)| chain)
        });
        plane.tell_refused(*packet, &key, chain, why);
    }
}
