//! What packet threads do with advice: follow it, ask for it, and hold packets meanwhile.
//!
//! Problem: somebody outside (an SDN controller) decides about flows, may take milliseconds for it, or never answer; the packet threads must
//! neither wait nor lock, allocate or make a system call for it.
//!
//! Approach: each Rx thread has an [`Asker`]. It looks a new flow up in the [`Advice`] in force; where that says *ask*, it takes an empty
//! [`Question`] from the [`Line`], copies the beginning of the packet into it, and puts it where the asking thread finds it: both are
//! bounded queues without locks, filled with boxes that were made at the start. The answers come back as new advice or as
//! [`crate::worker::Command`]s. How many questions a thread asks in a second is bounded, and so is how many packets it holds. A flow that
//! could not be asked about is asked about with one of its next packets.
//!
//! This is all that classification knows of who is asked; a director of flows on this host could be put in the same place.
//!
//! Limits: a packet that was held and finds its chain's gate closed is dropped, whatever its port says about overload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use crossbeam_queue::ArrayQueue;

use crate::chain::{self, Counter, Drop, PathRegistry, Tables};
use crate::classify::advice::{Advice, Answer, MAX_NUMBER, Meanwhile, Tally, UNASKED, beyond};
use crate::classify::key::{FlowKey, LONG};
use crate::classify::rss::queue_of;
use crate::dataplane::owner;
use crate::forward::Plane;
use crate::frame::Packet;
use crate::worker::Command;
use crate::worker::rest::Alarm;
use sluice_api::config::{Fail, Openflow};

/// No packet is held for a question.
pub const NOT_HELD: u32 = u32::MAX;
/// Bits of a held packet's number that say which packet; those above say whose.
const BUFFER_BITS: u32 = 24;
/// Questions that may be asked at once after a pause.
const BURST: u64 = 32;
/// Questions on their way at a time.
const QUESTIONS: usize = 512;

/// What the one outside is told of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Number of the entry that says ask.
    pub number: u32,
    /// Number of the port where it came in.
    pub ingress: u16,
    /// Number of the thread that asks.
    pub thread: u16,
    /// Its length in bytes.
    pub len: u16,
    /// The packet that is held for it, or [`NOT_HELD`].
    pub buffer: u32,
    /// How many of `bytes` are the packet's.
    pub copied: u16,
    /// Its beginning.
    pub bytes: Box<[u8]>,
}

/// What the packet threads and the one who asks share.
#[derive(Debug)]
pub struct Line {
    empty: ArrayQueue<Box<Question>>,
    asked: ArrayQueue<Box<Question>>,
    /// Packets by entry.
    pub tally: Tally,
    missed: AtomicU64,
    held: AtomicU64,
}

impl Line {
    /// For so many threads, with what the configuration says of sizes.
    pub fn new(config: &Openflow, threads: usize) -> Self {
        let question = || Question { number: 0, ingress: 0, thread: 0, len: 0, buffer: NOT_HELD, copied: 0, bytes: Box::default() };
        let empty = ArrayQueue::new(QUESTIONS);
        for _ in 0..QUESTIONS {
            let _ = empty.push(Box::new(Question { bytes: vec![0; config.packet_in_bytes as usize].into(), ..question() }));
        }
        // Twice as many numbers as entries: those of removed ones rest for a while.
        let tally = Tally::new(threads, config.entries.saturating_mul(2).min(MAX_NUMBER));
        Self { empty, asked: ArrayQueue::new(QUESTIONS), tally, missed: AtomicU64::new(0), held: AtomicU64::new(0) }
    }

    /// The next question. Give it back with [`Line::give_back`].
    pub fn next(&self) -> Option<Box<Question>> {
        self.asked.pop()
    }

    /// Gives a question back, so that it can be used again.
    pub fn give_back(&self, question: Box<Question>) {
        let _ = self.empty.push(question);
    }

    /// Questions that were not asked: too many on their way, or too many in a second.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Packets that are held at the moment.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// A packet that is held.
#[derive(Debug)]
struct Waiting {
    buffer: u32,
    packet: Packet,
    ingress: u16,
    key: FlowKey,
    until_ns: u64,
    asked: bool,
}

/// What advice says about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advised {
    /// What is done with it.
    pub answer: Answer,
    /// Instead of a path, if no path is to be looked for.
    pub instead: Option<u32>,
    /// What the flow table is to remember besides.
    pub note: u32,
    /// Whether it may be remembered.
    pub settles: bool,
}

/// A thread's end.
#[derive(Debug)]
pub struct Asker {
    line: Arc<Line>,
    thread: usize,
    advice: Arc<Advice>,
    /// Time between two questions, in nanoseconds, and when the next one would be in its turn.
    interval_ns: u64,
    due_ns: u64,
    waiting: Vec<Waiting>,
    room: usize,
    wait_ns: u64,
    next_buffer: u32,
    /// Packets that go on by a chain with services that are not shared, each with what was said of it: the director has a word in it.
    pooled: Vec<(Packet, FlowKey, Answer)>,
    /// Packets of flows that entries forbid.
    pub forbidden: Counter,
    /// Packets that nobody answered for.
    pub unanswered: Counter,
}

impl Asker {
    /// For Rx thread number `thread` of `of`.
    pub fn new(line: Arc<Line>, config: &Openflow, thread: usize, of: usize) -> Self {
        let room = (config.held as usize).div_ceil(of.max(1));
        let away = match config.fail {
            Fail::Standalone => Answer::Rules,
            Fail::Secure => Answer::Drop,
        };
        Self {
            line,
            thread,
            advice: Arc::new(Advice::new([], away, Meanwhile::Rules, away)),
            interval_ns: 1_000_000_000 * of.max(1) as u64 / u64::from(config.packet_in_rate.max(1)),
            due_ns: 0,
            waiting: Vec::with_capacity(room),
            room,
            wait_ns: config.wait_ms * 1_000_000,
            next_buffer: 0,
            pooled: Vec::new(),
            forbidden: Counter::default(),
            unanswered: Counter::default(),
        }
    }

    /// Packets that are held.
    pub fn held(&self) -> usize {
        self.waiting.len()
    }

    /// Counts a packet by the number of its entry.
    #[inline]
    pub fn count(&self, number: u32, bytes: u16, now_ns: u64) {
        self.line.tally.add(self.thread, number, bytes, now_ns / 1_000_000);
    }

    /// What is to be done with a packet whose flow is not known, or was noted with `old`.
    pub fn advise(&mut self, plane: &Plane, key: &FlowKey, packet: Packet, old: u32) -> Advised {
        let advice = self.advice.clone();
        let found = advice.find(key, || beyond_of(plane, packet));
        let Some(entry) = found.entry else {
            return Advised { answer: advice.otherwise(), instead: None, note: 0, settles: found.settles };
        };
        self.count(entry.number, packet.len, plane.now_ns);
        let settled = |answer| Advised { answer, instead: None, note: entry.number, settles: found.settles };
        let Answer::Ask(max_len) = entry.answer else { return settled(entry.answer) };
        match advice.meanwhile {
            Meanwhile::Wait => Advised { instead: Some(chain::HELD), settles: false, ..settled(Answer::Rules) },
            Meanwhile::Rules => {
                // Once for a flow: the entry that it was asked about is noted with it.
                let asked = old == entry.number || self.ask(plane, key.ingress(), packet, entry.number, max_len, NOT_HELD);
                Advised { note: if asked { entry.number } else { UNASKED }, ..settled(Answer::Rules) }
            }
            Meanwhile::Drop => {
                self.ask(plane, key.ingress(), packet, entry.number, max_len, NOT_HELD);
                Advised { instead: Some(chain::UNANSWERED), note: UNASKED, ..settled(Answer::Drop) }
            }
        }
    }

    /// Asks about a flow that could not be asked about before, or is to be asked about with each packet. Its entry, if it need not be again.
    #[cold]
    pub fn ask_again(&mut self, plane: &Plane, key: &FlowKey, packet: Packet) -> Option<u32> {
        let advice = self.advice.clone();
        let entry = advice.find(key, || beyond_of(plane, packet)).entry?;
        self.count(entry.number, packet.len, plane.now_ns);
        let Answer::Ask(max_len) = entry.answer else { return None };
        let asked = self.ask(plane, key.ingress(), packet, entry.number, max_len, NOT_HELD);
        (asked && advice.meanwhile == Meanwhile::Rules).then_some(entry.number)
    }

    /// Asks about a packet. Whether that was possible now; if not, that is counted.
    fn ask(&mut self, plane: &Plane, ingress: u16, packet: Packet, number: u32, max_len: u16, buffer: u32) -> bool {
        let asked = self.try_to_ask(plane, ingress, packet, number, max_len, buffer);
        if !asked {
            self.line.missed.fetch_add(1, Ordering::Relaxed);
        }
        asked
    }

    fn try_to_ask(&mut self, plane: &Plane, ingress: u16, packet: Packet, number: u32, max_len: u16, buffer: u32) -> bool {
        let now = plane.now_ns;
        let due = self.due_ns.max(now.saturating_sub(BURST * self.interval_ns));
        let Some(mut question) = (due <= now).then(|| self.line.empty.pop()).flatten() else { return false };
        self.due_ns = due + self.interval_ns;
        let copied = question.bytes.len().min(packet.len.into()).min(max_len.into());
        let copied = if plane.frames.arena().read(packet.frame, packet.offset, &mut question.bytes[..copied]) { copied } else { 0 };
        (question.number, question.ingress, question.len, question.buffer) = (number, ingress, packet.len, buffer);
        (question.thread, question.copied) = (self.thread as u16, copied as u16);
        // There are no more boxes than places.
        self.line.asked.push(question).is_ok()
    }
}

pub(crate) fn head_of(plane: &Plane, packet: Packet) -> ([u8; LONG], usize) {
    let mut bytes = [0; LONG];
    let len = (packet.len as usize).min(LONG);
    let there = plane.frames.arena().read(packet.frame, packet.offset, &mut bytes[..len]);
    (bytes, if there { len } else { 0 })
}

fn beyond_of(plane: &Plane, packet: Packet) -> [u64; crate::classify::advice::BEYOND] {
    let (bytes, len) = head_of(plane, packet);
    beyond(&bytes[..len])
}

pub(crate) fn key_of(plane: &Plane, packet: Packet, ingress: u16) -> FlowKey {
    let (bytes, len) = head_of(plane, packet);
    FlowKey::parse(&bytes[..len], packet.len, ingress)
}

/// The chain of a flow about which an answer is known, with the rule that names it, if one does; or what stands instead of a path.
pub fn chain_of(tables: &Tables, key: &FlowKey, answer: Answer) -> Result<(u16, Option<usize>), u32> {
    match answer {
        Answer::Chain(chain) => Ok((chain, None)),
        Answer::Drop => Err(chain::FORBIDDEN),
        Answer::Ask(_) => Err(chain::UNANSWERED),
        Answer::Rules => {
            let rule = tables.rules.first_rule(key).ok_or(chain::NO_RULE)?;
            Ok((tables.rules.rules()[rule].chain, Some(rule)))
        }
    }
}

/// The chain of a packet, as advice and rules say now; nobody is asked, and nothing is counted.
pub fn chain_now(plane: &Plane, key: &FlowKey, packet: Packet) -> Option<u16> {
    let answer = plane.asker.as_deref().map_or(Answer::Rules, |asker| {
        let advice = &asker.advice;
        match advice.find(key, || beyond_of(plane, packet)).entry.map_or(advice.otherwise(), |entry| entry.answer) {
            Answer::Ask(_) if advice.meanwhile == Meanwhile::Rules => Answer::Rules,
            answer => answer,
        }
    });
    chain_of(&plane.tables, key, answer).ok().map(|(chain, _)| chain)
}

/// The path of a flow on a chain, or what stands instead of one. `old` is the path that it had.
pub fn way(registry: &PathRegistry, plane: &mut Plane, key: &FlowKey, chain: u16, old: Option<u32>) -> u32 {
    let tables = &plane.tables;
    if let Some(Some(named)) = tables.chains.get(usize::from(chain))
        && named.services.iter().any(|service| tables.is_pooled(*service))
    {
        return chain::POOLED;
    }
    match old {
        Some(path) if registry.still_valid(tables, path, chain) => path,
        old => {
            let number = registry.decide(&mut plane.ways, tables, key.ingress(), chain, key.symmetric_hash(), old);
            if number == chain::NO_PATH
                && let Some(Some(named)) = tables.chains.get(usize::from(chain))
            {
                named.counters[plane.index].no_path.add(1);
            }
            number
        }
    }
}

/// Runs a part of this thread's asking beside the plane that it is a part of.
fn with(plane: &mut Plane, act: impl FnOnce(&mut Asker, &mut Plane)) {
    if let Some(mut asker) = plane.asker.take() {
        act(&mut asker, plane);
        plane.asker = Some(asker);
    }
}

/// Has other advice from now on. Packets that wait for it go where it says.
#[cold]
pub fn follow(plane: &mut Plane, registry: &PathRegistry, advice: Arc<Advice>) {
    with(plane, |asker, plane| {
        // Whoever made the old one ends it: here it would cost time.
        asker.advice = advice;
        asker.look(plane, registry);
    });
}

/// Holds a packet, if there is room.
#[cold]
pub fn hold(plane: &mut Plane, packet: Packet, ingress: u16) {
    with(plane, |asker, plane| {
        if asker.waiting.len() >= asker.room {
            asker.unanswered.add(1);
            if plane.is_tracing() {
                plane.tell_refused(packet, &key_of(plane, packet, ingress), None, "unanswered");
            }
            plane.discard(packet.frame);
            return;
        }
        let key = key_of(plane, packet, ingress);
        // One packet of a flow asks for all of it.
        let asked = asker.waiting.iter().any(|w| w.asked && w.key == key);
        asker.next_buffer = (asker.next_buffer + 1) & ((1 << BUFFER_BITS) - 1);
        let buffer = (asker.thread as u32) << BUFFER_BITS | asker.next_buffer;
        let until_ns = plane.now_ns + asker.wait_ns;
        asker.waiting.push(Waiting { buffer, packet, ingress, key, until_ns, asked });
        asker.line.held.fetch_add(1, Ordering::Relaxed);
        if !asked {
            asker.ask_for_last(plane);
        }
    });
}

/// Looks after the packets that are held: what could not be asked before, and those whose time is over.
#[cold]
pub fn tend(plane: &mut Plane, registry: &PathRegistry) {
    with(plane, |asker, plane| asker.look(plane, registry));
}

/// Drops all packets that are held.
#[cold]
pub fn let_go(plane: &mut Plane) {
    with(plane, |asker, plane| {
        while let Some(waiting) = asker.waiting.pop() {
            asker.line.held.fetch_sub(1, Ordering::Relaxed);
            asker.unanswered.add(1);
            plane.discard(waiting.packet.frame);
        }
    });
}

/// Does with a packet that is held what the one outside says; None: what the advice says, but for asking again.
#[cold]
pub fn release(plane: &mut Plane, registry: &PathRegistry, buffer: u32, answer: Option<Answer>) {
    with(plane, |asker, plane| {
        if let Some(at) = asker.waiting.iter().position(|w| w.buffer == buffer) {
            let waiting = asker.waiting.remove(at);
            asker.line.held.fetch_sub(1, Ordering::Relaxed);
            asker.send(plane, registry, waiting.packet, &waiting.key, answer);
        }
    });
}

/// Sends a packet of the one outside's, as if it had come in at a port.
#[cold]
pub fn inject(plane: &mut Plane, registry: &PathRegistry, ingress: u16, answer: Option<Answer>, bytes: &[u8]) {
    with(plane, |asker, plane| {
        let mut frame = [0];
        let Ok(len) = u16::try_from(bytes.len()) else { return };
        if plane.frames.alloc(&mut frame) == 0 {
            asker.unanswered.add(1);
            return;
        }
        let packet = Packet::fresh(frame[0], len);
        if !plane.frames.arena().write(packet.frame, packet.offset, bytes) {
            asker.unanswered.add(1);
            plane.discard(packet.frame);
            return;
        }
        let key = key_of(plane, packet, ingress);
        asker.send(plane, registry, packet, &key, answer);
    });
}

impl Asker {
    /// Asks about the packet that was held last.
    fn ask_for_last(&mut self, plane: &Plane) {
        let advice = self.advice.clone();
        let Some(last) = self.waiting.last() else { return };
        let (packet, ingress, buffer) = (last.packet, last.ingress, last.buffer);
        if let Some(entry) = advice.find(&last.key, || beyond_of(plane, packet)).entry
            && let Answer::Ask(max_len) = entry.answer
        {
            let asked = self.ask(plane, ingress, packet, entry.number, max_len, buffer);
            if let Some(last) = self.waiting.last_mut() {
                last.asked = asked;
            }
        }
    }

    /// Whether there are packets for the director.
    #[inline]
    pub fn has_pooled(&self) -> bool {
        !self.pooled.is_empty()
    }

    /// Gives the packets for the director away.
    pub fn take_pooled(&mut self) -> Vec<(Packet, FlowKey, Answer)> {
        std::mem::take(&mut self.pooled)
    }

    /// Goes through the packets that are held, in the order in which they came.
    fn look(&mut self, plane: &mut Plane, registry: &PathRegistry) {
        let advice = self.advice.clone();
        let mut at = 0;
        while at < self.waiting.len() {
            let waiting = &self.waiting[at];
            let (packet, ingress, buffer, asked) = (waiting.packet, waiting.ingress, waiting.buffer, waiting.asked);
            let found = advice.find(&waiting.key, || beyond_of(plane, packet));
            let said = found.entry.map_or(advice.otherwise(), |entry| entry.answer);
            let answer = match said {
                Answer::Ask(max_len) if advice.meanwhile == Meanwhile::Wait && plane.now_ns < waiting.until_ns => {
                    if let (false, Some(entry)) = (asked, found.entry) {
                        self.waiting[at].asked = self.try_to_ask(plane, ingress, packet, entry.number, max_len, buffer);
                    }
                    at += 1;
                    continue;
                }
                Answer::Ask(_) => advice.unanswered(),
                answer => answer,
            };
            let waiting = self.waiting.remove(at);
            self.line.held.fetch_sub(1, Ordering::Relaxed);
            if said != answer && answer == Answer::Drop {
                self.unanswered.add(1);
                plane.tell_refused(packet, &waiting.key, None, "unanswered");
                plane.discard(packet.frame);
                continue;
            }
            self.send(plane, registry, packet, &waiting.key, Some(answer));
        }
    }

    /// Sends one packet where an answer says.
    fn send(&mut self, plane: &mut Plane, registry: &PathRegistry, packet: Packet, key: &FlowKey, answer: Option<Answer>) {
        let advice = self.advice.clone();
        let answer = answer.unwrap_or_else(|| match advice.find(key, || beyond_of(plane, packet)).entry {
            Some(entry) => {
                self.count(entry.number, packet.len, plane.now_ns);
                entry.answer
            }
            None => advice.otherwise(),
        });
        let named = chain_of(&plane.tables, key, answer);
        let number = match named {
            Ok((chain, rule)) => {
                rule.into_iter().for_each(|rule| plane.tables.rules.count(rule, plane.index));
                way(registry, plane, key, chain, None)
            }
            Err(instead) => instead,
        };
        if number == chain::POOLED {
            self.pooled.push((packet, *key, answer));
            return;
        }
        let chain = named.ok().map(|(chain, _)| chain);
        let Some(path) = registry.get(number).filter(|path| !path.refuses()) else {
            let (counter, why) = match number {
                chain::NO_RULE => (&plane.no_rule, "no_rule"),
                _ if registry.get(number).is_some() => (&plane.nf_down, Drop::NfDown.name()),
                chain::FORBIDDEN => (&self.forbidden, "forbidden"),
                chain::UNANSWERED => (&self.unanswered, "unanswered"),
                _ => (&plane.no_path, "no_path"),
            };
            counter.add(1);
            plane.tell_refused(packet, key, chain, why);
            plane.discard(packet.frame);
            return;
        };
        if plane.admit(path, 1) == 1 {
            plane.enter(path, number, &[packet], &[key.flags()], u32::from(plane.traces(key)), 0);
        } else {
            plane.count_lost(&path.chain, Drop::Entry, 1);
            plane.count_refused(path, 1);
            plane.tell_refused(packet, key, chain, Drop::Entry.name());
            plane.discard(packet.frame);
        }
    }
}

/// Which thread has asked about a flow, of the flows that were asked about last: a flow's packets are all for one thread. By a part of the
/// [symmetric hash](FlowKey::symmetric_hash), so both directions are found; the rest of it tells which flow it is.
#[derive(Debug)]
pub struct Homes {
    known: Box<[Option<(u32, u16)>]>,
}

impl Homes {
    /// For so many flows, 1 at least; which ones meet in a place is by chance.
    pub fn new(flows: usize) -> Self {
        Self { known: vec![None; flows.max(1)].into() }
    }

    /// Notes which thread has asked about a packet.
    pub fn note(&mut self, question: &Question) {
        let bytes = &question.bytes[..question.bytes.len().min(question.copied.into())];
        let hash = hash_of(bytes, question.len, question.ingress);
        let at = hash as usize % self.known.len();
        self.known[at] = Some((hash, question.thread));
    }

    /// The thread that asked about the flow of this hash, if that is known.
    fn find(&self, hash: u32) -> Option<usize> {
        self.known[hash as usize % self.known.len()].filter(|(whose, _)| *whose == hash).map(|(_, thread)| thread.into())
    }
}

/// The symmetric hash of a packet's flow, from its beginning.
fn hash_of(bytes: &[u8], len: u16, ingress: u16) -> u32 {
    FlowKey::parse(&bytes[..bytes.len().min(LONG)], len, ingress).symmetric_hash()
}

/// The packet threads, as the one who gives advice reaches them.
#[derive(Clone)]
pub struct Adviser {
    line: Arc<Line>,
    /// Number of each Rx thread, where its commands go, and what tells it of them.
    threads: Vec<(usize, Sender<Command>, Arc<Alarm>)>,
}

impl Adviser {
    /// Over these Rx threads.
    pub fn new(line: Arc<Line>, threads: Vec<(usize, Sender<Command>, Arc<Alarm>)>) -> Self {
        Self { line, threads }
    }

    /// What is shared with them.
    pub fn line(&self) -> &Line {
        &self.line
    }

    fn tell(&self, to: &(usize, Sender<Command>, Arc<Alarm>), command: Command) {
        let (_, commands, alarm) = to;
        let _ = commands.send(command);
        alarm.raise();
    }

    /// Has all threads follow other advice. Whoever keeps the old one until nobody else has it ends it where that costs no packet time.
    pub fn advise(&self, advice: &Arc<Advice>) {
        self.threads.iter().for_each(|thread| self.tell(thread, Command::Advice(advice.clone())));
    }

    /// Has a packet that is held go where an answer says; None: where the advice says.
    pub fn release(&self, buffer: u32, answer: Option<Answer>) {
        let owner = self.threads.iter().find(|(number, ..)| *number as u32 == buffer >> BUFFER_BITS);
        if let Some(owner) = owner {
            self.tell(owner, Command::Release(buffer, answer));
        }
    }

    /// Has a packet go where an answer says, as if it had come in at a port that has so many queues. It goes to the thread that its flow's
    /// other packets come to: the one that asked about it, else the one whose queue it is where [`queue_of`] spreads the flows.
    pub fn inject(&self, homes: &Homes, ingress: u16, queues: usize, answer: Option<Answer>, bytes: Vec<u8>) {
        let hash = hash_of(&bytes, bytes.len().try_into().unwrap_or(u16::MAX), ingress);
        let asked = homes.find(hash).and_then(|asked| self.threads.iter().find(|(number, ..)| *number == asked));
        let spread = || {
            let queue = queue_of(hash, queues.try_into().unwrap_or(u16::MAX));
            self.threads.get(owner(ingress, queue.into(), queues, self.threads.len()))
        };
        if let Some(thread) = asked.or_else(spread) {
            self.tell(thread, Command::Inject(ingress, answer, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// An IPv4 packet with UDP on it.
    fn packet(src: u8, sport: u16, dst: u8, dport: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 60];
        bytes[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
        bytes[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        bytes[26..30].copy_from_slice(&[10, 0, 0, src]);
        bytes[30..34].copy_from_slice(&[10, 0, 0, dst]);
        bytes[34..36].copy_from_slice(&sport.to_be_bytes());
        bytes[36..38].copy_from_slice(&dport.to_be_bytes());
        bytes
    }

    fn adviser(threads: usize) -> (Adviser, Vec<Receiver<Command>>) {
        let config = Openflow::default();
        let (threads, commands): (Vec<_>, Vec<_>) = (0..threads)
            .map(|i| {
                let (sender, receiver) = channel();
                ((i + 3, sender, Arc::new(Alarm::new().unwrap())), receiver)
            })
            .unzip();
        (Adviser::new(Arc::new(Line::new(&config, threads.len())), threads), commands)
    }

    fn taken(commands: &[Receiver<Command>]) -> Vec<usize> {
        let took = |receiver: &Receiver<Command>| receiver.try_iter().filter(|c| matches!(c, Command::Inject(..))).count();
        commands.iter().map(took).collect()
    }

    #[test]
    fn what_the_controller_sends_goes_to_the_thread_that_its_flow_comes_to() {
        let (adviser, commands) = adviser(3);
        let mut homes = Homes::new(64);
        let (there, back) = (packet(1, 1000, 2, 80), packet(2, 80, 1, 1000));
        // Nobody has asked: both directions go where software spreads them, on ports whose queues are spread alike.
        for queues in [3, 6] {
            adviser.inject(&homes, 0, queues, None, there.clone());
            adviser.inject(&homes, 1, queues, None, back.clone());
            let took = taken(&commands);
            assert_eq!(took.iter().sum::<usize>(), 2);
            assert!(took.contains(&2), "{took:?}");
        }
        // A port of one queue is one thread's.
        for port in 0..6 {
            adviser.inject(&homes, port, 1, None, there.clone());
        }
        assert_eq!(taken(&commands), [2, 2, 2]);
        // Somebody has asked: that one, whichever direction it is.
        for thread in 0..3 {
            let bytes: Box<[u8]> = there.clone().into();
            let (len, copied) = (bytes.len() as u16, bytes.len() as u16);
            homes.note(&Question { number: 1, ingress: 0, thread: thread + 3, len, buffer: NOT_HELD, copied, bytes });
            adviser.inject(&homes, 0, 3, None, there.clone());
            adviser.inject(&homes, 1, 3, None, back.clone());
            assert_eq!(taken(&commands)[usize::from(thread)], 2);
        }
        // What is no packet goes somewhere, too.
        adviser.inject(&homes, 0, 3, None, Vec::new());
        assert_eq!(taken(&commands).iter().sum::<usize>(), 1);
    }
}
