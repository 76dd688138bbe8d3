//! A packet thread's view of a foreign program: its ring on one side, its wires on the other.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::ring::Consumer;

use super::backlog::Backlog;
use super::watch::{Suspect, Tail, Watch, tail_of};
use super::{Ledger, Wires};
use sluice_dataplane::chain::{Chain, DropReason, Path, PathRegistry};
use sluice_dataplane::classify::flow_table::{FlowTable, Known, random_seed};
use sluice_dataplane::classify::key::{FlowKey, LONG};
use sluice_dataplane::decision::{Decision, Packed, Refusal};
use sluice_dataplane::frame::{Held, Packet, SAMPLED, TRACED};
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::hooks::{FeedCounters, Feeder};
use sluice_dataplane::plane::Plane;
use sluice_dataplane::port::WireEnd;
use sluice_dataplane::queue::Arrivals;
use sluice_dataplane::trace::{Mark, TraceWhat};

/// Number of flows that a hop remembers.
const FLOWS: usize = 1 << 16;
/// Idle time after which a flow is forgotten, in milliseconds.
const FLOW_MS: u64 = 30_000;
/// Replaces the ingress port in the keys of packets that go in, and that come out of each side.
const GOES_IN: u16 = u16::MAX - 2;
const COMES_OUT: [u16; 2] = [u16::MAX, u16::MAX - 1];

/// Where a packet that came out continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Lead {
    /// Not looked up yet.
    #[default]
    Unknown,
    /// It belongs to no chain.
    Stray,
    /// The path, or the reason to drop it; and the descriptor's flags FRAGMENT and NON_IP.
    Decided(Decision, u8),
}

impl Lead {
    const NF_DOWN: Self = Self::Decided(Decision::Drop(Refusal::NfDown), 0);

    /// Number of the path, and the descriptor's flags.
    fn path_and_kind(self) -> (Option<u32>, u8) {
        match self {
            Self::Decided(Decision::Path(number), kind) => (Some(number), kind),
            Self::Decided(_, kind) => (None, kind),
            Self::Unknown | Self::Stray => (None, 0),
        }
    }
}

/// A chain's pass through the program.
#[derive(Debug)]
struct Visit {
    chain: Arc<Chain>,
    /// Side at which its packets come out.
    out: usize,
    /// Ingress port of its packets: the last seen one, or a possible one.
    ingress: u16,
    ledger: Ledger,
    /// Packets written off so far.
    written_off: u64,
}

impl Visit {
    /// Counts packets from a port that go in. Returns how many are to be written off by now.
    fn enter(&mut self, ingress: u16, now_ns: u64, n: u64) -> u64 {
        self.ingress = ingress;
        let gone = self.ledger.advance(now_ns);
        self.ledger.enter(n);
        gone
    }
}

/// An end of a wire, and packets from it that have not continued.
struct Wire {
    queue: Box<dyn WireEnd>,
    packets: [Packet; BURST],
    leads: [Lead; BURST],
    /// Marks of recognised packets that went in.
    marks: [Mark; BURST],
    from: usize,
    to: usize,
    overruns: u64,
}

impl Wire {
    fn new(queue: Box<dyn WireEnd>) -> Self {
        let (packets, marks) = ([Packet::default(); BURST], [Mark::default(); BURST]);
        Self { queue, packets, leads: [Lead::default(); BURST], marks, from: 0, to: 0, overruns: 0 }
    }
}

/// Feeds a foreign program, and forwards its output.
pub struct ForeignHop {
    handle: Arc<NfHandle>,
    counters: Arc<FeedCounters>,
    rings: Vec<Consumer>,
    /// Next ring to read.
    turn: usize,
    /// Packets taken from a ring and not yet gone in: `from..to`.
    pending: [Descriptor; BURST],
    from: usize,
    to: usize,
    wires: Vec<Wire>,
    backlog: Backlog,
    by_design: bool,
    stay_ns: u64,
    visits: Vec<Visit>,
    flows: FlowTable,
    /// Marked packets inside.
    watch: Watch,
    /// Table generation of `visits` and the leads of waiting packets.
    generation: u32,
}

impl ForeignHop {
    /// For the NF of a handle. One wire makes it a tap. `stay_ns`: maximum time inside before a
    /// packet counts as lost.
    pub fn new(
        handle: Arc<NfHandle>,
        threads: usize,
        wires: Wires,
        counters: Arc<FeedCounters>,
        by_design: bool,
        stay_ns: u64,
    ) -> Self {
        let rings = (0..threads as u32).filter_map(|thread| handle.region.rx_consumer(thread)).collect();
        Self {
            handle,
            counters,
            rings,
            turn: 0,
            pending: [Descriptor::default(); BURST],
            from: 0,
            to: 0,
            wires: wires.ends.into_iter().map(Wire::new).collect(),
            backlog: wires.backlog,
            by_design,
            stay_ns,
            visits: Vec::new(),
            flows: FlowTable::new(FLOWS, random_seed()),
            watch: Watch::default(),
            generation: 0,
        }
    }

    fn is_tap(&self) -> bool {
        self.wires.len() == 1
    }

    /// Publishes the number of packets inside.
    fn report_inside(&self) {
        let inside = self.visits.iter().map(|visit| visit.ledger.inside()).sum();
        self.counters.inside.store(inside, Ordering::Relaxed);
    }

    /// Finds the chains that pass the program.
    #[cold]
    fn learn(&mut self, plane: &mut Plane) {
        let tables = plane.tables.clone();
        self.generation = tables.generation;
        let mut before = std::mem::take(&mut self.visits);
        for chain in tables.chains.iter().flatten() {
            for at in (0..chain.services.len()).filter(|at| chain.services[*at] == self.handle.service) {
                let out = usize::from(!chain.is_reversed(at));
                let known = before.iter().position(|v| v.chain.number == chain.number && v.out == out);
                let (ledger, ingress, written_off) = match known.map(|at| before.swap_remove(at)) {
                    Some(visit) => (visit.ledger, visit.ingress, visit.written_off),
                    None => {
                        let rule = tables.rules.rules().iter().find(|rule| rule.chain == chain.number);
                        (Ledger::new(self.stay_ns), rule.and_then(|rule| rule.port).unwrap_or(0), 0)
                    }
                };
                self.visits.push(Visit { chain: chain.clone(), out, ingress, ledger, written_off });
            }
        }
        // Chains that are gone.
        for mut visit in before {
            let gone = visit.ledger.close();
            write_off(plane, &self.counters, &mut visit, gone, self.by_design, DropReason::NotBack);
        }
        // Waiting packets are looked up again.
        for wire in &mut self.wires {
            wire.leads[wire.from..wire.to].fill(Lead::Unknown);
        }
    }

    /// Takes packets that come out at a side, and forwards as many as there is room for.
    fn take(&mut self, plane: &mut Plane, registry: &PathRegistry, side: usize) -> usize {
        let is_held_up = plane.is_blocked() && plane.may_block(&self.handle, 0);
        if self.handle.is_held_up.load(Ordering::Relaxed) != is_held_up {
            self.handle.is_held_up.store(is_held_up, Ordering::Relaxed);
        }
        if is_held_up {
            return 0;
        }
        let tap = self.is_tap();
        let wire = &mut self.wires[side];
        if wire.from == wire.to {
            if !wire.queue.has_packet() {
                return 0;
            }
            let n = wire.queue.rx_burst(&mut wire.packets, &mut plane.frames, plane.now_ns);
            (wire.from, wire.to) = (0, n);
            wire.leads[..n].fill(Lead::Unknown);
            if tap {
                // A tap's output is ignored.
                self.counters.api.strays.add(n as u64);
                plane.frames.free_packets(&wire.packets[..n]);
                wire.from = n;
                return n;
            }
            self.recognise(plane, side);
        }
        let before = self.wires[side].from;
        let mut relead = false;
        while self.wires[side].from < self.wires[side].to {
            let first = self.wires[side].from;
            for at in first..self.wires[side].to {
                if self.wires[side].leads[at] == Lead::Unknown {
                    let packet = self.wires[side].packets[at];
                    self.wires[side].leads[at] = self.lead(plane, registry, side, packet);
                }
            }
            let wire = &mut self.wires[side];
            let lead = wire.leads[first];
            let end = (first + 1..wire.to).find(|at| wire.leads[*at] != lead).unwrap_or(wire.to);
            let n = end - first;
            let (number, kind) = lead.path_and_kind();
            let path = number.and_then(|number| registry.get(number));
            if number.is_some() && !relead && path.is_none_or(Path::has_ended) {
                // The path has ended since it was found.
                self.wires[side].leads[first..].fill(Lead::Unknown);
                relead = true;
                continue;
            }
            let way = path.filter(|path| !path.refuses()).and_then(|path| Some((path, self.position(plane, path, side)?)));
            let (Some(number), Some((path, hop))) = (number, way) else {
                let lead = if path.is_some_and(Path::refuses) { Lead::NF_DOWN } else { lead };
                self.refuse(plane, lead, side, first, end);
                continue;
            };
            let m = plane.admit_onward(path, hop + 1, n);
            let wire = &mut self.wires[side];
            if m > 0 {
                let nf = self.handle.number;
                let mut at = first;
                while at < first + m {
                    let marked = (at..first + m).find(|at| wire.marks[*at].flags != 0);
                    let until = marked.unwrap_or(first + m);
                    if at < until {
                        plane.onward(path, number, hop + 1, &wire.packets[at..until], kind);
                    }
                    if let Some(at) = marked {
                        plane.onward_marked(path, number, hop + 1, wire.packets[at], wire.marks[at].of_kind(kind), nf);
                    }
                    at = until + 1;
                }
                wire.from += m;
                self.settle(plane, path, side, m);
            }
            if m < n {
                break;
            }
        }
        self.wires[side].from - before
    }

    /// Recognises marked packets among those that just came out at a side.
    #[inline]
    fn recognise(&mut self, plane: &Plane, side: usize) {
        let wire = &mut self.wires[side];
        wire.marks[..wire.to].fill(Mark::default());
        for at in wire.from..wire.to {
            if self.watch.is_empty() {
                return;
            }
            let tail = tail_of(plane.frames.arena(), wire.packets[at]);
            if let Some(mark) = tail.and_then(|tail| self.watch.came_out(&tail, side)) {
                wire.marks[at] = mark;
            }
        }
    }

    /// The tails and marks of packets that are about to go in.
    #[cold]
    fn looks(&self, plane: &Plane, packets: &[Packet]) -> [(Option<Tail>, Mark); BURST] {
        let mut looks = [(None, Mark::default()); BURST];
        for (look, packet) in looks.iter_mut().zip(packets) {
            let held = Held::unpack(plane.table.word(packet.frame).unwrap_or(0));
            let mark = if held.flags & (SAMPLED | TRACED) == 0 { Mark::default() } else { plane.mark_of(*packet, held) };
            *look = (tail_of(plane.frames.arena(), *packet), mark);
        }
        looks
    }

    /// Watches the marked packets among those that went in.
    #[cold]
    fn keep_in_sight(&mut self, plane: &Plane, looks: &[(Option<Tail>, Mark)], out: usize) {
        let nf = self.handle.number;
        let lost = |mark: &Mark| plane.record_mark(mark, TraceWhat::LostSight(nf));
        for (tail, mark) in looks {
            let twin = tail.and_then(|tail| self.watch.went_in(&tail, out));
            twin.iter().for_each(lost);
            if mark.flags == 0 {
                continue;
            }
            plane.record_mark(mark, TraceWhat::WentIn(nf));
            let is_watched = tail.filter(|_| twin.is_none()).is_some_and(|tail| self.watch.begin(tail, *mark, out, plane.now_ns));
            if !is_watched {
                lost(mark);
            }
        }
    }

    /// The program's position in a path, for packets that come out at a side.
    fn position(&self, plane: &Plane, path: &Path, side: usize) -> Option<usize> {
        let mine = |nf: u16| {
            nf == self.handle.number
                || plane.tables.services.get(self.handle.service as usize).is_some_and(|all| all.iter().any(|m| m.nf == nf))
        };
        path.hops.iter().position(|hop| usize::from(!hop.reverse) == side && mine(hop.nf))
    }

    /// Counts packets that came out and continued.
    fn settle(&mut self, plane: &Plane, path: &Path, side: usize, n: usize) {
        let settled = match self.visits.iter_mut().find(|v| v.chain.number == path.chain.number && v.out == side) {
            Some(visit) => visit.ledger.leave(n as u64),
            None => 0,
        };
        if self.counters.api.returned.get() == 0 {
            self.handle.first_return_ns.store(plane.now_ns, Ordering::Relaxed);
        }
        self.counters.api.returned.add(n as u64);
        self.counters.api.originated.add(n as u64 - settled);
        path.chain.counters[plane.index].api.originated_packets.add(n as u64 - settled);
    }

    /// The path of a packet that came out at a side.
    fn lead(&mut self, plane: &mut Plane, registry: &PathRegistry, side: usize, packet: Packet) -> Lead {
        let key = key_of(plane, packet, COMES_OUT[side]);
        let hash = self.flows.hash_of(&key);
        let now_ms = plane.now_ns / 1_000_000;
        let known = self.flows.lookup(&key, hash, now_ms);
        if let Some(known) = known.filter(|known| known.generation == plane.generation && registry.holds(known.decision)) {
            return Lead::Decided(known.decision.unpack(), key.flags());
        }
        let mut candidates = self.visits.iter().enumerate().filter(|(_, visit)| visit.out == side);
        let at = match (candidates.next(), candidates.next()) {
            (None, _) => return Lead::Stray,
            (Some((only, _)), None) => only,
            _ => match self.choose(plane, packet, side, now_ms) {
                Some(at) => at,
                None => return Lead::Stray,
            },
        };
        let visit = &self.visits[at];
        let old = known.and_then(|known| known.decision.number());
        let decision = match old {
            Some(path) if registry.still_valid(&plane.tables, path, visit.chain.number) => Decision::Path(path),
            old => {
                let hash = key.symmetric_hash();
                registry.decide(&mut plane.ways, &plane.tables, visit.ingress, visit.chain.number, hash, old)
            }
        };
        if matches!(decision, Decision::Path(_)) {
            let known = Known { decision: decision.into(), generation: plane.generation, note: 0 };
            self.flows.insert(&key, hash, known, now_ms);
        }
        Lead::Decided(decision, key.flags())
    }

    /// The chain of a packet that came out at a side, of several: the one that its flow went in by,
    /// else that of the first matching rule, for any ingress port.
    #[cold]
    fn choose(&mut self, plane: &Plane, packet: Packet, side: usize, now_ms: u64) -> Option<usize> {
        let key = key_of(plane, packet, GOES_IN);
        let hash = self.flows.hash_of(&key);
        let of = |chain: u32| self.visits.iter().position(|v| v.out == side && u32::from(v.chain.number) == chain);
        if let Some(at) = self.flows.lookup(&key, hash, now_ms).and_then(|seen| of(seen.decision.number()?)) {
            return Some(at);
        }
        // The first rule, over the ingress ports of these chains.
        let mut ports: Vec<u16> = self.visits.iter().filter(|v| v.out == side).map(|v| v.ingress).collect();
        ports.dedup();
        let rule = |port: &u16| plane.tables.rules.first_rule(&key_of(plane, packet, *port));
        let first = ports.iter().filter_map(rule).filter_map(|rule| {
            let chain = plane.tables.rules.rules()[rule].chain;
            self.visits.iter().position(|v| v.out == side && v.chain.number == chain).map(|at| (rule, at))
        });
        first.min().map(|(_, at)| at)
    }

    /// Drops packets without a path.
    #[cold]
    fn refuse(&mut self, plane: &mut Plane, lead: Lead, side: usize, from: usize, to: usize) {
        let n = (to - from) as u64;
        match lead {
            Lead::Decided(Decision::Drop(why @ (Refusal::NfDown | Refusal::NoPath)), _) => plane.refused[why as usize].add(n),
            _ => self.counters.api.strays.add(n),
        }
        let wire = &mut self.wires[side];
        plane.frames.free_packets(&wire.packets[from..to]);
        wire.from = to;
    }

    /// Takes packets from the rings and sends them in.
    fn feed(&mut self, plane: &mut Plane, registry: &PathRegistry) -> usize {
        let mut work = 0;
        // As many as are taken from an NF's tx ring in a round.
        for _ in 0..2 {
            if self.from == self.to {
                self.next_burst();
            }
            if self.from == self.to {
                break;
            }
            let n = if self.is_tap() { self.show(plane, registry) } else { self.send(plane, registry) };
            work += n;
            if self.from < self.to {
                break;
            }
        }
        work
    }

    fn next_burst(&mut self) {
        for _ in 0..self.rings.len() {
            // These rings have no other user, so their cursors are right.
            let n = self.rings[self.turn].dequeue(&mut self.pending).unwrap_or(0);
            self.turn = (self.turn + 1) % self.rings.len();
            if n > 0 {
                (self.from, self.to) = (0, n);
                // Only this thread writes this word.
                let taken = self.handle.core_page.taken(self.handle.slot);
                taken.store(taken.load(Ordering::Relaxed).wrapping_add(n as u32), Ordering::Relaxed);
                return;
            }
        }
    }

    /// Copies packets to a tap, and forwards them.
    fn show(&mut self, plane: &mut Plane, registry: &PathRegistry) -> usize {
        let (from, to) = (self.from, self.to);
        let mut packets = [Packet::default(); BURST];
        for (packet, d) in packets.iter_mut().zip(&self.pending[from..to]) {
            *packet = Packet { frame: d.frame, offset: d.offset, len: d.len };
        }
        let shown = self.wires[0].queue.copy_out(&packets[..to - from], &mut plane.frames, plane.now_ns);
        self.counters.api.entered.add(shown as u64);
        self.counters.api.missed.add((to - from - shown) as u64);
        plane.take(registry, &self.handle, &mut self.pending[from..to]);
        self.from = to;
        to - from
    }

    /// Sends packets in, up to the first that the kernel does not take now.
    fn send(&mut self, plane: &mut Plane, registry: &PathRegistry) -> usize {
        let before = self.from;
        while self.from < self.to {
            let first = self.from;
            let held = |plane: &Plane, d: &Descriptor| Held::unpack(plane.table.word(d.frame).unwrap_or(0));
            let of_first = held(plane, &self.pending[first]);
            let mut packets = [Packet::default(); BURST];
            let mut n = 0;
            let mut is_marked = false;
            for d in &self.pending[first..self.to] {
                let this = held(plane, d);
                if (this.path, this.hop) != (of_first.path, of_first.hop) {
                    break;
                }
                packets[n] = Packet { frame: d.frame, offset: d.offset, len: d.len };
                is_marked |= this.flags & (SAMPLED | TRACED) != 0;
                n += 1;
            }
            let (Some(path), hop) = (registry.get(of_first.path), of_first.hop as usize) else {
                // Impossible: the number came from the private table.
                packets[..n].iter().for_each(|packet| plane.discard(packet.frame));
                self.from += n;
                continue;
            };
            let out = usize::from(!path.hops.get(hop).is_some_and(|hop| hop.reverse));
            let visit = self.visits.iter().position(|v| v.chain.number == path.chain.number && v.out == out);
            let Some(visit) = visit else {
                // The chain no longer passes the program: its output could not be matched.
                plane.drop_at(path, hop, &self.pending[first..first + n], DropReason::NfGone);
                self.handle.counters[plane.index].api.tx_packets.add(n as u64);
                self.from += n;
                continue;
            };
            if self.backlog.is_full(1 - out, plane.now_ns) {
                break;
            }
            self.remember(plane, path, out, &packets[..n]);
            let suspect = if plane.observers.is_some() { self.suspect(plane, visit, packets[0]) } else { None };
            let looks = (is_marked || !self.watch.is_empty()).then(|| self.looks(plane, &packets[..n]));
            let end = &mut *self.wires[1 - out].queue;
            let sent = if end.takes_frames() {
                hand_out(plane, path, end, &packets[..n])
            } else {
                let sent = end.copy_out(&packets[..n], &mut plane.frames, plane.now_ns);
                packets[..sent].iter().for_each(|packet| plane.discard(packet.frame));
                sent
            };
            plane.release_from(path, hop, sent as u32);
            self.watch.suspect(suspect.filter(|_| sent > 0));
            if let Some(looks) = looks {
                self.keep_in_sight(plane, &looks[..sent], out);
            }
            let visit = &mut self.visits[visit];
            let gone = visit.enter(path.ingress, plane.now_ns, sent as u64);
            write_off(plane, &self.counters, visit, gone, self.by_design, DropReason::NotBack);
            path.chain.counters[plane.index].outside.add(sent as u64);
            self.counters.api.entered.add(sent as u64);
            self.handle.counters[plane.index].api.tx_packets.add(sent as u64);
            self.from += sent;
            if sent < n {
                break;
            }
        }
        self.from - before
    }

    /// Remembers the chain of flows that go in, where several come out at one side.
    fn remember(&mut self, plane: &Plane, path: &Path, out: usize, packets: &[Packet]) {
        if self.visits.iter().filter(|v| v.out == out).count() < 2 {
            return;
        }
        // For these flows the chain takes the place of a path.
        let known = Known { decision: Packed::path(path.chain.number.into()), generation: 0, note: 0 };
        for packet in packets {
            let key = key_of(plane, *packet, GOES_IN);
            let hash = self.flows.hash_of(&key);
            self.flows.insert(&key, hash, known, plane.now_ns / 1_000_000);
        }
    }

    /// A packet of a visit, to be suspected once it has gone in, if one may be.
    #[cold]
    fn suspect(&self, plane: &Plane, visit: usize, packet: Packet) -> Option<Suspect> {
        if self.by_design || !self.watch.lacks_suspect() {
            return None;
        }
        let Visit { chain, out, written_off, .. } = self.visits.get(visit)?;
        Suspect::new(plane.frames.arena(), packet, chain.number, *out, plane.now_ns, *written_off)
    }

    /// Shows a packet that has not come back, if packets of its visit were written off since it
    /// went in.
    fn show_lost(&mut self, plane: &mut Plane, now_ns: u64) {
        // The ledger's buckets are a sixteenth of the stay: the packet's was written off by then.
        let stay_ns = self.stay_ns + self.stay_ns / 8;
        if let Some(lost) = self.watch.overdue(now_ns.saturating_sub(stay_ns))
            && let Some(visit) = self.visits.iter().find(|v| v.chain.number == lost.chain && v.out == lost.out)
            && visit.written_off > lost.written_off
        {
            plane.show_lost_inside(lost.chain, self.handle.number, lost.len, lost.head());
        }
    }

    /// Gives up marked packets that went in before a time.
    fn give_up(&mut self, plane: &Plane, before_ns: u64) {
        while let Some(mark) = self.watch.give_up(before_ns) {
            plane.record_mark(&mark, TraceWhat::LostSight(self.handle.number));
        }
    }
}

impl Feeder for ForeignHop {
    fn number(&self) -> u16 {
        self.handle.number
    }

    fn poll(&mut self, plane: &mut Plane, registry: &PathRegistry) -> usize {
        if self.generation != plane.tables.generation {
            self.learn(plane);
        }
        let mut work = 0;
        for wire in 0..self.wires.len() {
            // As many as go in at the other side in a round, or small rings would fill up.
            for _ in 0..2 {
                let n = self.take(plane, registry, wire);
                work += n;
                if n < BURST {
                    break;
                }
            }
        }
        work += self.feed(plane, registry);
        if work > 0 {
            self.report_inside();
        }
        work
    }

    fn holds_packets(&self) -> bool {
        self.from < self.to || self.wires.iter().any(|wire| wire.from < wire.to)
    }

    fn arrivals(&self) -> Vec<Arrivals<'_>> {
        self.wires.iter().map(|wire| wire.queue.arrivals()).collect()
    }

    fn housekeeping(&mut self, plane: &mut Plane, now_ns: u64) {
        for visit in &mut self.visits {
            let gone = visit.ledger.advance(now_ns);
            write_off(plane, &self.counters, visit, gone, self.by_design, DropReason::NotBack);
        }
        self.report_inside();
        self.give_up(plane, now_ns.saturating_sub(self.stay_ns));
        self.show_lost(plane, now_ns);
        self.flows.age(now_ns / 1_000_000, FLOW_MS, FLOWS / 64);
        for wire in &mut self.wires {
            wire.queue.housekeeping(now_ns);
            let overruns = wire.queue.overruns();
            self.counters.api.overruns.add(overruns.saturating_sub(std::mem::replace(&mut wire.overruns, overruns)));
        }
    }

    fn leave(&mut self, plane: &mut Plane) {
        for visit in &mut self.visits {
            let gone = visit.ledger.close();
            write_off(plane, &self.counters, visit, gone, self.by_design, DropReason::NfDied);
        }
        self.counters.inside.store(0, Ordering::Relaxed);
        self.give_up(plane, u64::MAX);
        for wire in &mut self.wires {
            plane.refused[Refusal::NfDown as usize].add((wire.to - wire.from) as u64);
            plane.frames.free_packets(&wire.packets[wire.from..wire.to]);
            wire.from = wire.to;
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Sends packets of a path with their frames. Ownership ends before that: the device may reuse them
/// in another thread at once.
fn hand_out(plane: &mut Plane, path: &Path, end: &mut dyn WireEnd, packets: &[Packet]) -> usize {
    let _moving = path.moving();
    let Plane { table, frames, now_ns, .. } = plane;
    table.give_away(packets.iter().map(|packet| packet.frame), || end.tx_burst(packets, frames, *now_ns))
}

/// Counts packets that went in and will not come back.
fn write_off(plane: &Plane, counters: &FeedCounters, visit: &mut Visit, n: u64, by_design: bool, why: DropReason) {
    if n > 0 {
        visit.written_off += n;
        counters.api.not_back.add(n);
        if !by_design {
            plane.count_lost(&visit.chain, why, n);
            // Their frames were freed when they went in.
            visit.chain.counters[plane.index].back.add(n);
        }
    }
}

/// The flow key of a packet, from a copy of its header.
fn key_of(plane: &Plane, packet: Packet, ingress: u16) -> FlowKey {
    let mut header = [0; LONG];
    let len = (packet.len as usize).min(LONG);
    plane.frames.arena().read(packet.frame, packet.offset, &mut header[..len]);
    FlowKey::parse(&header[..len], packet.len, ingress)
}
