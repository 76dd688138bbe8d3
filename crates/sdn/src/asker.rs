//! What packet threads do with advice: follow it, ask for it, and hold packets meanwhile.
//!
//! Problem: an SDN controller decides about flows, may take milliseconds for it, or never answer; the packet threads must
//! neither wait nor lock, allocate or make a system call for it.
//!
//! Approach: each Rx thread has an [`Asker`], which chooses chains before the rules do ([`ChooseChain`]). It looks a new flow up in the
//! [`Advice`] in force; where that says *ask*, it takes an empty [`Question`] from the [`Line`], copies the beginning of the packet into
//! it, and puts it where the asking thread finds it: both are bounded queues without locks, filled with boxes that were made at the
//! start. The answers come back as new advice or as commands ([`super::adviser`]). How many questions a thread asks in a second is
//! bounded, and so is how many packets it holds. A flow that could not be asked about is asked about with one of its next packets.
//!
//! Limits: a packet that was held and finds its chain's gate closed is dropped, whatever its port says about overload.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use sluice_api::config::{Fail, Openflow};
use sluice_dataplane::classify::key::FlowKey;
use sluice_dataplane::decision::Refusal;
use sluice_dataplane::frame::Packet;
use sluice_dataplane::plane::Plane;
use sluice_dataplane::steer::{Choice, ChooseChain, Chosen, Released};

use super::advice::{Advice, Answer, BEYOND, MAX_NUMBER, Meanwhile, Tally, UNASKED, beyond};

/// No packet is held for a question.
pub const NOT_HELD: u32 = u32::MAX;
/// Bits of a held packet's number that say which packet; those above say whose.
pub(super) const BUFFER_BITS: u32 = 24;
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

/// Packets of the controller that may wait for a thread's next round; more are dropped as unanswered.
const INJECTED: usize = 256;

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
    /// Packets that go on, oldest first, with room for all that may be held and for [`INJECTED`] of the controller.
    released: VecDeque<Released>,
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
            released: VecDeque::with_capacity(room + INJECTED),
        }
    }

    /// Counts a packet by the number of its entry.
    #[inline]
    fn tally(&self, number: u32, bytes: u16, now_ns: u64) {
        self.line.tally.add(self.thread, number, bytes, now_ns / 1_000_000);
    }
}

fn beyond_of(plane: &Plane, packet: Packet) -> [u64; BEYOND] {
    let (bytes, len) = plane.head_of(packet);
    beyond(&bytes[..len])
}

/// What an answer chooses.
fn choice(answer: Answer) -> Choice {
    match answer {
        Answer::Chain(chain) => Choice::Chain(chain),
        Answer::Rules => Choice::Rules,
        Answer::Drop => Choice::Drop(Refusal::Forbidden),
        Answer::Ask(_) => Choice::Drop(Refusal::Unanswered),
    }
}

impl ChooseChain for Asker {
    fn choose(&mut self, plane: &Plane, key: &FlowKey, packet: Packet, old: u32) -> Chosen {
        let advice = self.advice.clone();
        let found = advice.find(key, || beyond_of(plane, packet));
        let Some(entry) = found.entry else {
            return Chosen { choice: choice(advice.otherwise()), note: 0, settles: found.settles };
        };
        self.tally(entry.number, packet.len, plane.now_ns);
        let chosen = |choice, note| Chosen { choice, note, settles: found.settles };
        let Answer::Ask(max_len) = entry.answer else { return chosen(choice(entry.answer), entry.number) };
        match advice.meanwhile {
            Meanwhile::Wait => Chosen { settles: false, ..chosen(Choice::Wait, entry.number) },
            Meanwhile::Rules => {
                // Once for a flow: the entry that it was asked about is noted with it.
                let asked = old == entry.number || self.ask(plane, key.ingress(), packet, entry.number, max_len, NOT_HELD);
                chosen(Choice::Rules, if asked { entry.number } else { UNASKED })
            }
            Meanwhile::Drop => {
                self.ask(plane, key.ingress(), packet, entry.number, max_len, NOT_HELD);
                chosen(Choice::Drop(Refusal::Unanswered), UNASKED)
            }
        }
    }

    #[inline]
    fn count(&mut self, plane: &Plane, key: &FlowKey, packet: Packet, note: u32) -> Option<u32> {
        if note == UNASKED {
            return self.ask_again(plane, key, packet);
        }
        self.tally(note, packet.len, plane.now_ns);
        None
    }

    fn now(&self, plane: &Plane, key: &FlowKey, packet: Packet) -> Choice {
        let found = self.advice.find(key, || beyond_of(plane, packet)).entry;
        match found.map_or(self.advice.otherwise(), |entry| entry.answer) {
            Answer::Ask(_) if self.advice.meanwhile == Meanwhile::Rules => Choice::Rules,
            answer => choice(answer),
        }
    }

    #[cold]
    fn hold(&mut self, plane: &mut Plane, packet: Packet, ingress: u16) {
        let key = plane.key_of(packet, ingress);
        if self.waiting.len() >= self.room {
            return plane.refuse_one(packet, &key, None, Refusal::Unanswered);
        }
        // One packet of a flow asks for all of it.
        let asked = self.waiting.iter().any(|w| w.asked && w.key == key);
        self.next_buffer = (self.next_buffer + 1) & ((1 << BUFFER_BITS) - 1);
        let buffer = (self.thread as u32) << BUFFER_BITS | self.next_buffer;
        let until_ns = plane.now_ns + self.wait_ns;
        self.waiting.push(Waiting { buffer, packet, ingress, key, until_ns, asked });
        self.line.held.fetch_add(1, Ordering::Relaxed);
        if !asked {
            self.ask_for_last(plane);
        }
    }

    /// Goes through the packets that are held, in the order in which they came: what could not be asked before, and those whose time is
    /// over.
    #[cold]
    fn tend(&mut self, plane: &mut Plane) {
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
                plane.refuse_one(packet, &waiting.key, None, Refusal::Unanswered);
                continue;
            }
            self.released.push_back(Released { packet, key: waiting.key, choice: choice(answer) });
        }
    }

    fn held(&self) -> usize {
        self.waiting.len() + self.released.len()
    }

    #[inline]
    fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    fn next_released(&mut self) -> Option<Released> {
        self.released.pop_front()
    }

    fn let_go(&mut self, plane: &mut Plane) {
        while let Some(Waiting { packet, key, .. }) = self.waiting.pop() {
            self.line.held.fetch_sub(1, Ordering::Relaxed);
            plane.refuse_one(packet, &key, None, Refusal::Unanswered);
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl Asker {
    /// Asks about a flow that could not be asked about before, or is to be asked about with each packet. Its entry, if it need not be again.
    #[cold]
    fn ask_again(&mut self, plane: &Plane, key: &FlowKey, packet: Packet) -> Option<u32> {
        let advice = self.advice.clone();
        let entry = advice.find(key, || beyond_of(plane, packet)).entry?;
        self.tally(entry.number, packet.len, plane.now_ns);
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

    /// Has other advice from now on. Packets that wait for it go where it says.
    pub(super) fn follow(&mut self, plane: &mut Plane, advice: Arc<Advice>) {
        // Whoever made the old one ends it: here it would cost time.
        self.advice = advice;
        self.tend(plane);
    }

    /// Does with a packet that is held what an answer says; None: what the advice says, but for asking again.
    pub(super) fn release(&mut self, plane: &mut Plane, buffer: u32, answer: Option<Answer>) {
        if let Some(at) = self.waiting.iter().position(|w| w.buffer == buffer) {
            let Waiting { packet, key, .. } = self.waiting.remove(at);
            self.line.held.fetch_sub(1, Ordering::Relaxed);
            self.send(plane, packet, key, answer);
        }
    }

    /// Sends a packet of the controller's, as if it had come in at a port.
    pub(super) fn inject(&mut self, plane: &mut Plane, ingress: u16, answer: Option<Answer>, bytes: &[u8]) {
        let mut frame = [0];
        let Ok(len) = u16::try_from(bytes.len()) else { return };
        if plane.frames.alloc(&mut frame) == 0 {
            plane.refused[Refusal::Unanswered as usize].add(1);
            return;
        }
        let packet = Packet::fresh(frame[0], len);
        if !plane.frames.arena().write(packet.frame, packet.offset, bytes) {
            plane.refused[Refusal::Unanswered as usize].add(1);
            plane.discard(packet.frame);
            return;
        }
        let key = plane.key_of(packet, ingress);
        self.send(plane, packet, key, answer);
    }

    /// Has one packet go where an answer says.
    fn send(&mut self, plane: &mut Plane, packet: Packet, key: FlowKey, answer: Option<Answer>) {
        if self.released.len() >= self.room + INJECTED {
            return plane.refuse_one(packet, &key, None, Refusal::Unanswered);
        }
        let answer = answer.unwrap_or_else(|| match self.advice.find(&key, || beyond_of(plane, packet)).entry {
            Some(entry) => {
                self.tally(entry.number, packet.len, plane.now_ns);
                entry.answer
            }
            None => self.advice.otherwise(),
        });
        self.released.push_back(Released { packet, key, choice: choice(answer) });
    }
}
