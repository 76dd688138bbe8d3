//! The entry: from the packets that a port queue holds to the path of each, or what is done with it instead.

use std::ops::Range;

use sluice_policy::pool::life::flag;
use sluice_shm::BURST;
use sluice_shm::arena::Arena;
use sluice_shm::clock::Clock;

use super::{Batch, MOST_BURSTS, OwnedQueue, VECTOR};
use crate::asker;
use crate::chain::{self, Drop, Path, PathRegistry, Tables};
use crate::classify::advice::{Answer, UNASKED};
use crate::classify::flow_table::Decision;
use crate::classify::key::{FlowKey, LONG, SHORT};
use crate::classify::rule::Terms;
use crate::classify::{Classifier, Lookup, tcp};
use crate::director::{Asked, Director, Env, Waiting};
use crate::forward::Plane;
use crate::frame::Packet;
use sluice_config::protocol;

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

/// Whether a packet with these TCP flags is one that NFs are woken for at once: it ends its connection, or half of it.
#[inline(always)]
pub(super) fn is_urgent(tcp_flags: u8) -> bool {
    tcp_flags & (flag::FIN | flag::RST) != 0
}

/// A bit for each of `n` packets from `first` on, at most [`BURST`].
fn mask(n: usize, is: impl Fn(usize) -> bool) -> u32 {
    (0..n.min(BURST)).fold(0, |mask, i| mask | u32::from(is(i)) << i)
}

/// A bit for each of `n` packets from `first` on that NFs are woken for at once.
#[inline(always)]
pub(super) fn urgent_of(owned: &OwnedQueue, first: usize, n: usize) -> u32 {
    if owned.has_urgent { mask(n, |i| is_urgent(owned.batch.tcp[first + i])) } else { 0 }
}

/// A bit for each of `n` packets from `first` on that the trace that goes on is about; all if it is about all rules.
#[inline(always)]
pub(super) fn traceable_of(owned: &OwnedQueue, first: usize, n: usize) -> u32 {
    if owned.traces_rule { mask(n, |i| owned.batch.traceable[first + i]) } else { u32::MAX }
}

/// Finds which of the packets that a queue holds the trace is about that begins: nobody has asked when they came.
#[cold]
pub(super) fn look_for_trace(plane: &Plane, owned: &mut OwnedQueue) {
    owned.traces_rule = plane.trace.as_ref().is_some_and(|trace| trace.rule.is_some());
    for i in owned.from..owned.to {
        owned.batch.traceable[i] = plane.traces(&asker::key_of(plane, owned.batch.packets[i], owned.port));
    }
}

/// Takes packets from a queue, a burst or, where those of a burst go to many NFs, as many bursts as are worth gathering; and finds
/// their paths. False: there are none.
#[inline]
pub(super) fn read(
    classifier: &mut Classifier,
    registry: &PathRegistry,
    plane: &mut Plane,
    director: &mut Director,
    clock: &Clock,
    owned: &mut OwnedQueue,
) -> bool {
    let bursts = if owned.waits { 1 } else { owned.bursts };
    (owned.from, owned.to) = (0, 0);
    look_anew(plane, director, owned);
    plane.frames.choose(owned.memory);
    for _ in 0..bursts {
        let from = owned.to;
        let n = owned.queue.rx_burst(&mut owned.batch.packets[from..from + BURST], &mut plane.frames, plane.now_ns);
        owned.to = from + n;
        let is_plain = n == 0 || classify_burst(classifier, registry, plane, director, clock, owned, from..from + n, false);
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
pub(super) fn classify(
    classifier: &mut Classifier,
    registry: &PathRegistry,
    plane: &mut Plane,
    director: &mut Director,
    clock: &Clock,
    owned: &mut OwnedQueue,
) {
    look_anew(plane, director, owned);
    for from in (owned.from..owned.to).step_by(BURST) {
        let to = owned.to.min(from + BURST);
        classify_burst(classifier, registry, plane, director, clock, owned, from..to, true);
    }
}

/// Notes by what decisions are made from here on.
#[inline(always)]
fn look_anew(plane: &Plane, director: &Director, owned: &mut OwnedQueue) {
    (owned.generation, owned.moved) = (plane.generation, director.moved());
    owned.traces_rule = plane.trace.as_ref().is_some_and(|trace| trace.rule.is_some());
    owned.has_urgent = false;
}

/// Finds the paths of a burst of packets that a queue holds. `again`: not for the first time. Says whether all of them are of flows that are known
/// and go on.
#[inline]
#[allow(clippy::too_many_arguments)]
fn classify_burst(
    classifier: &mut Classifier,
    registry: &PathRegistry,
    plane: &mut Plane,
    director: &mut Director,
    clock: &Clock,
    owned: &mut OwnedQueue,
    burst: Range<usize>,
    again: bool,
) -> bool {
    let mut is_plain = true;
    let (from, to) = (burst.start, burst.end);
    let Batch { packets, paths, flags: descriptor_flags, tcp: tcp_seen, traceable, came } = &mut *owned.batch;
    let held = &packets[from..to];
    let wanted_rule = plane.trace.as_ref().and_then(|t| t.rule);
    let now_ms = plane.now_ns / 1_000_000;
    let generation = plane.generation;
    let ingress = owned.port;
    let watches = director.watches();
    // NFs that are not woken for each packet are for the end of a connection.
    let hurries = plane.timers.are_used();
    let mut lens = [0; BURST];
    let mut found = [Lookup::Miss; BURST];
    let arena = plane.frames.arena();
    let headers = &mut owned.headers;
    for ((header, len), packet) in headers.iter_mut().zip(&mut lens).zip(held) {
        *len = packet.len;
        // What lies behind a short packet in its frame is copied too and never looked at.
        match arena.read_array(packet.frame, packet.offset) {
            Some(copy) => *header = copy,
            None => copy_short(arena, packet, header),
        }
    }
    let more = |i: usize, bytes: &mut [u8; LONG]| copy_long(arena, &held[i], bytes);
    classifier.classify_burst(&headers[..held.len()], &lens, ingress, now_ms, more, &mut found);
    if watches {
        let misses = (0..to - from).filter(|i| matches!(found[*i], Lookup::Miss));
        misses.for_each(|i| director.foresee(classifier.key(i)));
    }
    for (i, found) in found[..to - from].iter().enumerate() {
        descriptor_flags[from + i] = classifier.key(i).flags();
        came[from + i] = (from + i) as u8;
        if wanted_rule.is_some() {
            traceable[from + i] = plane.tables.rules.first_rule(classifier.key(i)) == wanted_rule;
        }
        let mut found = *found;
        if watches || hurries {
            let flags =
                tcp_flags(classifier.key(i), &headers[i], held[i].len, |bytes| copy_long(plane.frames.arena(), &held[i], bytes));
            tcp_seen[from + i] = flags;
            owned.has_urgent |= is_urgent(flags);
            if watches && !again && flags & (flag::SYN | flag::FIN | flag::RST) != 0 && matches!(found, Lookup::Hit(_)) {
                let key = *classifier.key(i);
                is_plain = false;
                if director.note(&key, flags, classifier.table(), plane.now_ns) {
                    found = Lookup::Miss;
                }
            }
        }
        paths[from + i] = match found {
            // Only those that are looked at again may have a path that has ended: the others are looked at again when that is noticed.
            Lookup::Hit(decision) if decision.generation == generation && (!again || registry.holds(decision.path)) => {
                if decision.note != 0 {
                    noted(classifier, plane, held[i], i, decision);
                }
                decision.path
            }
            found => {
                is_plain = false;
                // One that was to wait, or had no way, has not begun or ended anything yet.
                let counted = again && paths[from + i] < chain::LEAST_SPECIAL;
                decide(classifier, registry, plane, director, clock, held[i], (i, found, tcp_seen[from + i]), counted)
            }
        };
        if paths[from + i] == chain::WAIT {
            owned.waiting[from + i] = (*classifier.key(i), director.wanted());
        }
    }
    is_plain
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

/// Decides about a flow that is new, or was decided under older tables: `i` is its packet's number in the last burst. A packet that has
/// `counted` does not begin or end a connection a second time.
#[cold]
#[allow(clippy::too_many_arguments)]
fn decide(
    classifier: &mut Classifier,
    registry: &PathRegistry,
    plane: &mut Plane,
    director: &mut Director,
    clock: &Clock,
    packet: Packet,
    (i, found, flags): (usize, Lookup, u8),
    counted: bool,
) -> u32 {
    let flags = if counted { 0 } else { flags };
    // Setting up a connection is measured from here.
    let since_ns = if director.watches() { clock.now_ns() } else { plane.now_ns };
    let generation = plane.generation;
    let now_ms = plane.now_ns / 1_000_000;
    // An earlier packet of the burst may have made the flow known.
    let mut known = match found {
        Lookup::Miss => classifier.again(i, now_ms),
        Lookup::Hit(decision) => Some(decision),
    };
    // Then nobody has looked at the flags of this one yet.
    let is_looked_at = !matches!(found, Lookup::Miss) || known.is_none() || flags & (flag::SYN | flag::FIN | flag::RST) == 0;
    if !is_looked_at {
        let key = *classifier.key(i);
        if director.note(&key, flags, classifier.table(), plane.now_ns) {
            known = None;
        }
    }
    let found = known;
    if let Some(decision) = found
        && decision.generation == generation
        && registry.holds(decision.path)
    {
        if decision.note != 0 {
            noted(classifier, plane, packet, i, decision);
        }
        return decision.path;
    }
    let key = *classifier.key(i);
    let advised = match plane.asker.take() {
        Some(mut asker) => {
            let advised = asker.advise(plane, &key, packet, found.map_or(0, |d| d.note));
            plane.asker = Some(asker);
            advised
        }
        None => asker::Advised { answer: Answer::Rules, instead: None, note: 0, settles: true },
    };
    let old = found.map(|d| d.path);
    let mut settles = advised.settles;
    let path = match advised.instead.map_or_else(|| asker::chain_of(&plane.tables, &key, advised.answer), Err) {
        Err(instead) => instead,
        Ok((number, rule)) => {
            if let Some(rule) = rule {
                plane.tables.rules.count(rule, plane.index);
            }
            if director.has_pools()
                && let Some(Some(chain)) = plane.tables.chains.get(usize::from(number))
                && director.concerns(chain)
            {
                let tables = &plane.tables;
                let terms = terms_of(tables, &key, number, rule);
                let (hash, note, settles) = (classifier.hash(i), advised.note, settles && !counted);
                let asked = Asked { key: &key, hash, chain, flags, old, has_waited: false, settles, note, terms, since_ns };
                let path = director.decide(&asked, &mut Env { tables, registry, flows: classifier.table(), generation, clock });
                if path == chain::NO_PATH {
                    chain.counters[plane.index].no_path.add(1);
                }
                return path;
            }
            let path = asker::way(registry, plane, &key, number, old);
            // What may be otherwise in a moment without a change of rules is asked about again.
            settles &= path < chain::POOLED;
            path
        }
    };
    if settles {
        classifier.remember(i, Decision { path, generation, note: advised.note }, now_ms);
    }
    path
}

/// What flows are given on a chain: by the rule that names it. A controller names a chain alone: its flows are given what the rules would give
/// them on that chain, and else what is ordinary.
fn terms_of(tables: &Tables, key: &FlowKey, chain: u16, rule: Option<usize>) -> Terms {
    let rules = tables.rules.rules();
    let rule = rule.or_else(|| tables.rules.first_rule(key)).map(|rule| &rules[rule]);
    rule.filter(|rule| rule.chain == chain).map(|rule| rule.terms).unwrap_or_default()
}

/// Counts a packet, number `i` of the last burst, by what was noted of its flow.
#[inline(never)]
fn noted(classifier: &mut Classifier, plane: &mut Plane, packet: Packet, i: usize, decision: Decision) {
    let Some(mut asker) = plane.asker.take() else { return };
    if decision.note != UNASKED {
        asker.count(decision.note, packet.len, plane.now_ns);
    } else if let Some(note) = asker.ask_again(plane, classifier.key(i), packet) {
        classifier.remember(i, Decision { note, ..decision }, plane.now_ns / 1_000_000);
    }
    plane.asker = Some(asker);
}

/// Has packets wait for an idle NF of a pool, as many as may.
#[cold]
pub(super) fn wait(plane: &mut Plane, director: &mut Director, owned: &OwnedQueue, from: usize, to: usize) {
    for i in from..to {
        let Batch { packets, flags, tcp, came, .. } = &*owned.batch;
        let (key, wanted) = &owned.waiting[usize::from(came[i])];
        if let Some(gone) = director.wait(*wanted, packets[i], key, flags[i], tcp[i], plane.now_ns) {
            owned.counters.entry_drops.add(1);
            give_up(plane, &gone);
        }
    }
}

/// Drops a packet for which no NF of a pool was idle.
#[cold]
pub(super) fn give_up(plane: &mut Plane, waiting: &Waiting) {
    plane.none_idle.add(1);
    plane.tell_refused(waiting.packet, &waiting.key, Some(waiting.wanted.chain), "none_idle");
    plane.discard(waiting.packet.frame);
}

/// Lets packets go on that were asked about and go by a chain with pools. Says how many there were.
#[cold]
pub(super) fn direct(
    classifier: &mut Classifier,
    registry: &PathRegistry,
    plane: &mut Plane,
    director: &mut Director,
    clock: &Clock,
) -> usize {
    let packets = plane.asker.as_mut().map_or(Vec::new(), |asker| asker.take_pooled());
    let generation = plane.generation;
    for (packet, key, answer) in &packets {
        let tables = plane.tables.clone();
        let named = asker::chain_of(&tables, key, *answer).ok();
        let way = |(number, rule)| Some((tables.chains.get(usize::from(number))?.as_ref()?, number, rule));
        let Some((way, chain, rule)) = named.and_then(way).filter(|(way, ..)| director.concerns(way)) else {
            plane.nf_down.add(1);
            plane.tell_refused(*packet, key, None, Drop::NfDown.name());
            plane.discard(packet.frame);
            continue;
        };
        let terms = terms_of(&tables, key, chain, rule);
        let (head, n) = asker::head_of(plane, *packet);
        let is_tcp = key.protocol() == protocol::TCP && key.flags() == 0;
        let flags = tcp::flags(&head[..n]).filter(|_| is_tcp).unwrap_or(0);
        let hash = classifier.table().hash_of(key);
        let (has_waited, settles, since_ns) = (false, false, clock.now_ns());
        let asked = Asked { key, hash, chain: way, flags, old: None, has_waited, settles, note: 0, terms, since_ns };
        let mut env = Env { tables: &tables, registry, flows: classifier.table(), generation, clock };
        let number = director.decide(&asked, &mut env);
        // The next packet of the flow asks the advice, and is counted by what that says.
        classifier.table().remove(key, hash);
        match registry.get(number) {
            Some(path) if plane.admit(path, 1) == 1 => {
                let traceable = u32::from(plane.traces(key));
                plane.enter(path, number, &[*packet], &[key.flags()], traceable, u32::from(is_urgent(flags)))
            }
            Some(path) => {
                plane.count_lost(&path.chain, Drop::Entry, 1);
                plane.count_refused(path, 1);
                plane.tell_refused(*packet, key, Some(chain), Drop::Entry.name());
                plane.discard(packet.frame);
            }
            None if number == chain::WAIT => {
                if let Some(gone) = director.wait(director.wanted(), *packet, key, key.flags(), flags, plane.now_ns) {
                    give_up(plane, &gone);
                }
            }
            None => {
                let (counter, why) = match number {
                    chain::NONE_IDLE => (&plane.none_idle, "none_idle"),
                    chain::REFUSED => (&plane.nf_down, Drop::NfDown.name()),
                    _ => (&plane.no_path, "no_path"),
                };
                counter.add(1);
                plane.tell_refused(*packet, key, Some(chain), why);
                plane.discard(packet.frame);
            }
        }
    }
    packets.len()
}

/// What is done with packets of a number that does not stand for a path that goes.
pub(super) enum Instead {
    /// They are looked at again: their path has ended.
    LookAgain,
    /// They wait, or are dropped, as this number says.
    Refuse(u32),
}

/// What is done with packets of a number that does not stand for a path that goes. `looked`: they have been looked at again.
#[cold]
pub(super) fn instead_of(path: Option<&Path>, number: u32, looked: bool) -> Instead {
    match path {
        Some(path) if path.refuses() && !path.has_ended() => Instead::Refuse(chain::REFUSED),
        // A service may have an instance again, and a path a place.
        _ if (number < chain::POOLED || matches!(number, chain::REFUSED | chain::NO_PATH)) && !looked => Instead::LookAgain,
        Some(path) if path.refuses() => Instead::Refuse(chain::REFUSED),
        None if number < chain::POOLED => Instead::Refuse(chain::NO_PATH),
        _ => Instead::Refuse(number),
    }
}

/// Drops packets that have no path, at the door.
#[cold]
pub(super) fn refuse(plane: &mut Plane, owned: &OwnedQueue, number: u32, from: usize, to: usize) {
    let n = (to - from) as u64;
    let asker = plane.asker.as_deref();
    let (counter, why) = match number {
        chain::NO_RULE => (Some(&plane.no_rule), "no_rule"),
        // A pool that is about to be there, or not any more, is as good as none.
        chain::REFUSED | chain::POOLED => (Some(&plane.nf_down), Drop::NfDown.name()),
        chain::NONE_IDLE => (Some(&plane.none_idle), "none_idle"),
        chain::HELD => {
            owned.batch.packets[from..to].iter().for_each(|packet| asker::hold(plane, *packet, owned.port));
            return;
        }
        chain::FORBIDDEN => (asker.map(|asker| &asker.forbidden), "forbidden"),
        chain::UNANSWERED => (asker.map(|asker| &asker.unanswered), "unanswered"),
        _ => (Some(&plane.no_path), "no_path"),
    };
    counter.into_iter().for_each(|counter| counter.add(n));
    owned.counters.entry_drops.add(n);
    if plane.is_tracing() {
        tell_refused(plane, owned, None, why, from, to);
    }
    for packet in &owned.batch.packets[from..to] {
        plane.discard(packet.frame);
    }
}

/// Drops packets that have a path and are not let in.
pub(super) fn turn_away(plane: &mut Plane, path: &Path, owned: &mut OwnedQueue, why: Drop, from: usize, to: usize) {
    path.chain.counters[plane.index].drops[why as usize].add((to - from) as u64);
    owned.counters.entry_drops.add((to - from) as u64);
    if plane.is_tracing() {
        tell_refused(plane, owned, Some(path.chain.number), why.name(), from, to);
    }
    for packet in &owned.batch.packets[from..to] {
        plane.discard(packet.frame);
    }
    owned.from = to;
}

/// Notes for the trace that goes on which packets are dropped at the door. `chain` is their chain, where a path says which.
#[cold]
fn tell_refused(plane: &Plane, owned: &OwnedQueue, chain: Option<u16>, why: &'static str, from: usize, to: usize) {
    for packet in &owned.batch.packets[from..to] {
        if !plane.is_tracing() {
            return;
        }
        let key = asker::key_of(plane, *packet, owned.port);
        let chain = chain.or_else(|| asker::chain_now(plane, &key, *packet));
        plane.tell_refused(*packet, &key, chain, why);
    }
}

/// Reads that are left as they are after one in which no path had packets in several places.
const UNGATHERED: u32 = 64;
/// Packets for each path from which on less is read at a time, and below which more is: many for each, and packets need not wait in the
/// caches for those behind them; few, and each posting costs more than what it carries.
const ENOUGH: (usize, usize) = (16, 8);

/// Puts packets of one path behind each other, in the order in which they came, so that each NF is posted to once: where flows come in turn,
/// that is most of what a packet costs here. Packets of different paths change places; those of one do not. How many bursts are read next
/// follows from what there was to gather.
#[inline]
pub(super) fn gather(owned: &mut OwnedQueue) {
    let (from, to) = (owned.from, owned.to);
    let runs = owned.batch.paths[from..to].windows(2).filter(|pair| pair[0] != pair[1]).count();
    if runs < 2 {
        owned.bursts = 1;
        return;
    }
    if owned.ungathered > 0 {
        owned.ungathered -= 1;
        return;
    }
    let groups = owned.groups.gather(&owned.batch, from, to, &mut owned.spare);
    std::mem::swap(&mut owned.batch, &mut owned.spare);
    let each = (to - from) / groups;
    if groups > runs && (owned.bursts == MOST_BURSTS || each >= ENOUGH.1) {
        (owned.bursts, owned.ungathered) = (1, UNGATHERED);
    } else if each < ENOUGH.1 {
        owned.bursts = (owned.bursts * 2).min(MOST_BURSTS);
    } else if each >= ENOUGH.0 {
        owned.bursts = (owned.bursts / 2).max(1);
    }
}

/// What packets are gathered with.
pub(super) struct Groups {
    /// Number of a path's group, plus 1, at the low bits of the path's number or the next free place: numbers are given in turn. 0: none.
    slots: [u16; 2 * VECTOR],
    /// Path of each group.
    paths: [u32; VECTOR],
    /// Packets of each group; then, where its next one goes.
    places: [u16; VECTOR],
    /// Group of each packet.
    of: [u8; VECTOR],
}

impl Default for Groups {
    fn default() -> Self {
        Self { slots: [0; 2 * VECTOR], paths: [0; VECTOR], places: [0; VECTOR], of: [0; VECTOR] }
    }
}

impl Groups {
    /// Copies packets `from..to` so that those of one path are together. Says how many paths there are.
    fn gather(&mut self, batch: &Batch, from: usize, to: usize, into: &mut Batch) -> usize {
        let last = (2 * (to - from)).next_power_of_two() - 1;
        self.slots[..=last].fill(0);
        let mut groups = 0;
        for (path, of) in batch.paths[from..to].iter().zip(&mut self.of[from..to]) {
            let mut slot = *path as usize & last;
            let group = loop {
                match usize::from(self.slots[slot]) {
                    0 => {
                        (self.paths[groups], self.places[groups]) = (*path, 0);
                        groups += 1;
                        self.slots[slot] = groups as u16;
                        break groups - 1;
                    }
                    group if self.paths[group - 1] == *path => break group - 1,
                    _ => slot = (slot + 1) & last,
                }
            };
            *of = group as u8;
            self.places[group] += 1;
        }
        let mut next = from as u16;
        for place in &mut self.places[..groups] {
            next += std::mem::replace(place, next);
        }
        for i in from..to {
            let place = &mut self.places[usize::from(self.of[i])];
            let at = usize::from(*place);
            *place += 1;
            into.packets[at] = batch.packets[i];
            into.paths[at] = batch.paths[i];
            into.flags[at] = batch.flags[i];
            into.tcp[at] = batch.tcp[i];
            into.traceable[at] = batch.traceable[i];
            into.came[at] = batch.came[i];
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::port::sink::SinkQueue;
    use sluice_api::config::Overload;

    /// A queue that holds packets of these paths, each known by its place.
    fn holding(paths: &[u32]) -> OwnedQueue {
        let mut owned = OwnedQueue::new(0, Box::new(SinkQueue::default()), Overload::Drop, Arc::default());
        hold(&mut owned, paths);
        owned
    }

    fn hold(owned: &mut OwnedQueue, paths: &[u32]) {
        let batch = &mut owned.batch;
        batch.paths[..paths.len()].copy_from_slice(paths);
        for i in 0..paths.len() {
            batch.packets[i].frame = i as u32;
            let mark = i as u8;
            (batch.flags[i], batch.tcp[i], batch.came[i], batch.traceable[i]) = (mark, mark ^ 1, mark, i.is_multiple_of(3));
        }
        (owned.from, owned.to) = (0, paths.len());
    }

    proptest! {
        #[test]
        fn gathered_packets_are_the_same_in_order_by_path(
            paths in (1u32..300).prop_flat_map(|most| prop::collection::vec(0..most, 1..=VECTOR)),
            step in 1u32..1000,
            from in 0usize..4,
        ) {
            let paths: Vec<u32> = paths.iter().map(|path| path * step).collect();
            let mut owned = holding(&paths);
            let to = paths.len();
            let from = from.min(to);
            owned.from = from;
            gather(&mut owned);
            // As a stable sort by the place of a path's first packet would have it.
            let mut wanted: Vec<usize> = (from..to).collect();
            wanted.sort_by_key(|i| paths[from..to].iter().position(|path| *path == paths[*i]));
            let Batch { packets, paths: got, flags, tcp, traceable, came } = &*owned.batch;
            let all = |i: usize| (packets[i].frame, got[i], flags[i], tcp[i], traceable[i], came[i]);
            let got: Vec<_> = (from..to).map(all).collect();
            let came = |i: &usize| (*i as u32, paths[*i], *i as u8, *i as u8 ^ 1, i.is_multiple_of(3), *i as u8);
            prop_assert_eq!(got, wanted.iter().map(came).collect::<Vec<_>>());
        }
    }

    #[test]
    fn more_is_read_where_that_gathers_more() {
        let mut owned = holding(&[]);
        let mut after = |packets: usize, paths: u32| {
            let paths: Vec<u32> = (0..packets as u32).map(|i| i % paths).collect();
            hold(&mut owned, &paths);
            gather(&mut owned);
            owned.bursts
        };
        assert_eq!([after(32, 45), after(64, 45), after(128, 45), after(256, 45)], [2, 4, 8, 8]);
        assert_eq!([after(256, 20), after(256, 16), after(128, 4), after(64, 4)], [8, 4, 2, 1]);
        assert_eq!([after(32, 32), after(32, 2)], [2, 1], "16 for each are enough, and more would stay longer in no cache");
        assert_eq!([after(32, 45), after(32, 1)], [2, 1]);
        assert_eq!([after(32, 900), after(64, 900), after(128, 900), after(256, 900)], [2, 4, 8, 1], "nothing was worth it");
        assert_eq!(after(32, 4), 1);
        assert_eq!(owned.ungathered, UNGATHERED - 1, "for a while it is not tried");
        let runs: Vec<u32> = (0..32).map(|i| i / 8).collect();
        let mut owned = holding(&runs);
        gather(&mut owned);
        assert_eq!((owned.bursts, owned.ungathered), (1, UNGATHERED), "each path is in one place already");
    }
}
