//! The entry: from the packets that a port queue holds to the path of each, or what is done with it instead.

use std::sync::Arc;

use sluice_policy::pool::life::flag;
use sluice_shm::BURST;
use sluice_shm::arena::Arena;
use sluice_shm::clock::Clock;

use super::OwnedQueue;
use crate::asker;
use crate::chain::{self, Chain, Drop, PathRegistry, Tables};
use crate::classify::advice::{Answer, UNASKED};
use crate::classify::flow_table::Decision;
use crate::classify::key::{FlowKey, LONG, SHORT, protocol};
use crate::classify::{Classifier, Lookup, tcp};
use crate::director::{Asked, Director, Env};
use crate::forward::Plane;
use crate::frame::Packet;

/// What decisions of a thread are noted with: those of another generation are made anew.
#[inline(always)]
pub(super) fn generation(plane: &Plane, director: &Director) -> u32 {
    plane.generation.wrapping_add(director.shift())
}

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

/// The bits of `n` packets from `first` on.
#[inline(always)]
pub(super) fn urgent_of(urgent: u32, first: usize, n: usize) -> u32 {
    if urgent == 0 { 0 } else { (u64::from(urgent >> first) & ((1u64 << n) - 1)) as u32 }
}

/// Finds the paths of the packets that a queue holds.
#[inline]
pub(super) fn classify(
    classifier: &mut Classifier,
    registry: &PathRegistry,
    plane: &mut Plane,
    director: &mut Director,
    clock: &Clock,
    owned: &mut OwnedQueue,
) {
    let (from, to) = (owned.from, owned.to);
    let held = &owned.packets[from..to];
    let wanted_rule = plane.trace.as_ref().and_then(|t| t.rule);
    owned.traceable = if wanted_rule.is_some() { 0 } else { u32::MAX };
    let now_ms = plane.now_ns / 1_000_000;
    let generation = generation(plane, director);
    let ingress = owned.port;
    (owned.generation, owned.moved) = (generation, director.moved());
    let watches = director.watches();
    // NFs that are not woken for each packet are for the end of a connection.
    let hurries = plane.timers.are_used();
    owned.urgent = 0;
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
        owned.flags[from + i] = classifier.key(i).flags();
        if wanted_rule.is_some() && plane.tables.rules.first_rule(classifier.key(i)) == wanted_rule {
            owned.traceable |= 1 << (from + i);
        }
        let mut found = *found;
        if watches || hurries {
            let flags =
                tcp_flags(classifier.key(i), &headers[i], held[i].len, |bytes| copy_long(plane.frames.arena(), &held[i], bytes));
            owned.tcp[from + i] = flags;
            owned.urgent |= u32::from(is_urgent(flags)) << (from + i);
            if watches && flags & (flag::SYN | flag::FIN | flag::RST) != 0 && matches!(found, Lookup::Hit(_)) {
                let key = *classifier.key(i);
                if director.note(&key, flags, classifier.table(), plane.now_ns) {
                    found = Lookup::Miss;
                }
            }
        }
        owned.paths[from + i] = match found {
            Lookup::Hit(decision) if decision.generation == generation => {
                if decision.note != 0 {
                    noted(classifier, plane, held[i], i, decision);
                }
                decision.path
            }
            found => decide(classifier, registry, plane, director, clock, held[i], (i, found, owned.tcp[from + i])),
        };
        if owned.paths[from + i] == chain::WAIT {
            owned.waiting[from + i] = (*classifier.key(i), director.wanted());
        }
    }
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

/// Decides about a flow that is new, or was decided under older tables: `i` is its packet's number in the last burst.
#[cold]
fn decide(
    classifier: &mut Classifier,
    registry: &PathRegistry,
    plane: &mut Plane,
    director: &mut Director,
    clock: &Clock,
    packet: Packet,
    (i, found, flags): (usize, Lookup, u8),
) -> u32 {
    let generation = generation(plane, director);
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
    if advised.instead.is_none()
        && let Some((rule, chain)) = chain_of(&plane.tables, &key, advised.answer)
        && director.concerns(chain)
    {
        let tables = &plane.tables;
        let wakeup = rule.and_then(|rule| tables.rules.rules()[rule].wakeup);
        let weight = rule.map_or_else(Default::default, |rule| tables.rules.rules()[rule].weight);
        let (hash, note, settles) = (classifier.hash(i), advised.note, advised.settles);
        let asked = Asked { key: &key, hash, chain, flags, old, has_waited: false, settles, note, weight, wakeup };
        let path = director.decide(&asked, &mut Env { tables, registry, flows: classifier.table(), generation, clock });
        if let Some(rule) = rule {
            tables.rules.count(rule, plane.index);
        }
        return path;
    }
    let path = advised.instead.unwrap_or_else(|| asker::way(registry, plane, &key, advised.answer, old));
    if advised.settles {
        classifier.remember(i, Decision { path, generation, note: advised.note }, now_ms);
    }
    path
}

/// The chain that an answer names, and the rule by which it does, if it is one.
fn chain_of<'a>(tables: &'a Tables, key: &FlowKey, answer: Answer) -> Option<(Option<usize>, &'a Arc<Chain>)> {
    let (rule, chain) = match answer {
        Answer::Chain(chain) => (None, chain),
        Answer::Drop | Answer::Ask(_) => return None,
        Answer::Rules => {
            let rule = tables.rules.first_rule(key)?;
            (Some(rule), tables.rules.rules()[rule].chain)
        }
    };
    Some((rule, tables.chains.get(usize::from(chain))?.as_ref()?))
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
        let (key, wanted) = &owned.waiting[i];
        if let Some(gone) = director.wait(*wanted, owned.packets[i], key, owned.flags[i], owned.tcp[i], plane.now_ns) {
            plane.none_idle.add(1);
            owned.counters.entry_drops.add(1);
            plane.discard(gone.frame);
        }
    }
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
    let generation = generation(plane, director);
    for (packet, key, answer) in &packets {
        let tables = plane.tables.clone();
        let Some((_, way)) = chain_of(&tables, key, *answer).filter(|(_, way)| director.concerns(way)) else {
            plane.nf_down.add(1);
            plane.discard(packet.frame);
            continue;
        };
        let (head, n) = asker::head_of(plane, *packet);
        let is_tcp = key.protocol() == protocol::TCP && key.flags() == 0;
        let flags = tcp::flags(&head[..n]).filter(|_| is_tcp).unwrap_or(0);
        let hash = classifier.table().hash_of(key);
        let weight = Default::default();
        let (has_waited, settles) = (false, false);
        let asked = Asked { key, hash, chain: way, flags, old: None, has_waited, settles, note: 0, weight, wakeup: None };
        let mut env = Env { tables: &tables, registry, flows: classifier.table(), generation, clock };
        let number = director.decide(&asked, &mut env);
        // The next packet of the flow asks the advice, and is counted by what that says.
        classifier.table().remove(key, hash);
        match registry.get(number) {
            Some(path) if plane.admit(path, 1) == 1 => {
                plane.enter(path, number, &[*packet], &[key.flags()], 0, u32::from(is_urgent(flags)))
            }
            Some(path) => {
                plane.count_lost(&path.chain, Drop::Entry, 1);
                plane.count_refused(path, 1);
                plane.discard(packet.frame);
            }
            None if number == chain::WAIT => {
                if let Some(gone) = director.wait(director.wanted(), *packet, key, key.flags(), flags, plane.now_ns) {
                    plane.none_idle.add(1);
                    plane.discard(gone.frame);
                }
            }
            None => {
                match number {
                    chain::NONE_IDLE => plane.none_idle.add(1),
                    chain::REFUSED => plane.nf_down.add(1),
                    _ => plane.no_path.add(1),
                }
                plane.discard(packet.frame);
            }
        }
    }
    packets.len()
}

/// Drops packets that have no path, at the door.
#[cold]
pub(super) fn refuse(plane: &mut Plane, owned: &OwnedQueue, number: u32, from: usize, to: usize) {
    let n = (to - from) as u64;
    match number {
        chain::NO_RULE => plane.no_rule.add(n),
        // A pool that is about to be there, or not any more, is as good as none.
        chain::REFUSED | chain::POOLED => plane.nf_down.add(n),
        chain::NONE_IDLE => plane.none_idle.add(n),
        chain::HELD => {
            owned.packets[from..to].iter().for_each(|packet| asker::hold(plane, *packet, owned.port));
            return;
        }
        chain::FORBIDDEN | chain::UNANSWERED => {
            if let Some(asker) = &plane.asker {
                if number == chain::FORBIDDEN { asker.forbidden.add(n) } else { asker.unanswered.add(n) }
            }
        }
        _ => plane.no_path.add(n),
    }
    owned.counters.entry_drops.add(n);
    for packet in &owned.packets[from..to] {
        plane.discard(packet.frame);
    }
}

/// Bursts that are left as they are after one in which no path had packets in several places.
const UNGATHERED: u32 = 64;

/// Puts packets of one path behind each other, in the order in which they came, so that each NF is posted to once: where flows come in turn,
/// that is most of what a packet costs here. Packets of different paths change places; those of one do not.
#[inline]
pub(super) fn gather(owned: &mut OwnedQueue) {
    let (from, to) = (owned.from, owned.to);
    let runs = owned.paths[from..to].windows(2).filter(|pair| pair[0] != pair[1]).count();
    // One that waits, that is urgent, or that a trace is about, is known by its place.
    let by_place = !matches!(owned.traceable, 0 | u32::MAX)
        || owned.urgent != 0
        || owned.paths[from..to].iter().any(|path| *path >= chain::LEAST_SPECIAL);
    if runs < 2 || by_place {
        return;
    }
    if owned.ungathered > 0 {
        owned.ungathered -= 1;
        return;
    }
    let (packets, paths, flags) = (owned.packets, owned.paths, owned.flags);
    let (mut done, mut at, mut groups) = (0u32, from, 0);
    for i in from..to {
        if done >> i & 1 != 0 {
            continue;
        }
        groups += 1;
        for j in i..to {
            if paths[j] == paths[i] {
                done |= 1 << j;
                (owned.packets[at], owned.paths[at], owned.flags[at]) = (packets[j], paths[j], flags[j]);
                at += 1;
            }
        }
    }
    if groups > runs {
        owned.ungathered = UNGATHERED;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::model::Overload;
    use crate::port::sink::SinkQueue;

    proptest! {
        #[test]
        fn gathered_packets_are_the_same_in_order_by_path(paths in prop::collection::vec(0u32..6, 1..=BURST), from in 0usize..4) {
            let mut owned = OwnedQueue::new(0, Box::new(SinkQueue::default()), Overload::Drop, Arc::default());
            let to = paths.len();
            let from = from.min(to);
            owned.paths[..to].copy_from_slice(&paths);
            for i in 0..to {
                owned.packets[i].frame = i as u32;
                owned.flags[i] = i as u8;
            }
            (owned.from, owned.to) = (from, to);
            gather(&mut owned);
            // As a stable sort by the place of a path's first packet would have it.
            let mut wanted: Vec<usize> = (from..to).collect();
            wanted.sort_by_key(|i| paths[from..to].iter().position(|path| *path == paths[*i]));
            let got: Vec<(u32, u32, u8)> = (from..to).map(|i| (owned.packets[i].frame, owned.paths[i], owned.flags[i])).collect();
            let wanted: Vec<(u32, u32, u8)> = wanted.iter().map(|i| (*i as u32, paths[*i], *i as u8)).collect();
            prop_assert_eq!(got, wanted);
        }
    }
}
