//! What packet threads do with advice: follow it, ask the controller, hold packets meanwhile.
//!
//! Problem: an SDN controller takes milliseconds to decide about a flow, or never answers. The
//! packet threads must neither wait, lock, allocate nor make a system call for it.
//!
//! Approach: each Rx thread chooses chains before the rules do ([`ChooseChain`]). It looks a new
//! flow up in the present [`Advice`]. If that says *ask*, it takes an empty [`Question`] from the
//! [`Line`], copies the beginning of the packet into it, and enqueues it for the agent. Both queues
//! are bounded and lock-free; their boxes are allocated at the start. Answers return as new advice
//! or as commands. Questions a second and held packets are bounded. If a question fails, one of the
//! flow's next packets repeats it.
//!
//! Limits: a held packet that finds its chain's gate closed is dropped, even if the port waits.

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

/// The buffer number of a question without a held packet.
pub const NOT_HELD: u32 = u32::MAX;
/// Low bits of a buffer number, which identify the packet; the others identify the thread.
pub(super) const BUFFER_BITS: u32 = 24;
/// Questions that may be asked at once after a pause.
const BURST: u64 = 32;
const QUESTIONS: usize = 512;

/// A packet about which the controller is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Number of the entry that asks.
    pub number: u32,
    pub ingress: u16,
    pub thread: u16,
    pub len: u16,
    /// The held packet, or [`NOT_HELD`].
    pub buffer: u32,
    /// Number of valid bytes in `bytes`.
    pub copied: u16,
    pub bytes: Box<[u8]>,
}

/// State shared by the packet threads and the agent.
#[derive(Debug)]
pub struct Line {
    empty: ArrayQueue<Box<Question>>,
    asked: ArrayQueue<Box<Question>>,
    pub tally: Tally,
    missed: AtomicU64,
    held: AtomicU64,
}

impl Line {
    /// For `threads` threads, with the configured sizes.
    pub fn new(config: &Openflow, threads: usize) -> Self {
        let question = || Question { number: 0, ingress: 0, thread: 0, len: 0, buffer: NOT_HELD, copied: 0, bytes: Box::default() };
        let empty = ArrayQueue::new(QUESTIONS);
        for _ in 0..QUESTIONS {
            let _ = empty.push(Box::new(Question { bytes: vec![0; config.packet_in_bytes as usize].into(), ..question() }));
        }
        // Twice as many numbers as entries, since the numbers of removed entries rest for a while.
        let tally = Tally::new(threads, config.entries.saturating_mul(2).min(MAX_NUMBER));
        Self { empty, asked: ArrayQueue::new(QUESTIONS), tally, missed: AtomicU64::new(0), held: AtomicU64::new(0) }
    }

    /// The next question. It must be returned by [`Line::give_back`].
    pub fn next(&self) -> Option<Box<Question>> {
        self.asked.pop()
    }

    pub fn give_back(&self, question: Box<Question>) {
        let _ = self.empty.push(question);
    }

    /// Questions not asked because too many were in flight or in a second.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// Packet-outs that may wait for a thread's next round; more are dropped as unanswered.
const INJECTED: usize = 256;

#[derive(Debug)]
struct Waiting {
    buffer: u32,
    packet: Packet,
    ingress: u16,
    key: FlowKey,
    until_ns: u64,
    asked: bool,
}

/// The part of one Rx thread.
#[derive(Debug)]
pub struct PacketIns {
    line: Arc<Line>,
    thread: usize,
    advice: Arc<Advice>,
    /// Time between two questions, and when the next one is due, in nanoseconds.
    interval_ns: u64,
    due_ns: u64,
    waiting: Vec<Waiting>,
    room: usize,
    wait_ns: u64,
    next_buffer: u32,
    /// Packets to send on, oldest first; room for those that wait and for [`INJECTED`] packet-outs.
    released: VecDeque<Released>,
}

impl PacketIns {
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

    #[inline]
    fn tally(&self, number: u32, bytes: u16, now_ns: u64) {
        self.line.tally.add(self.thread, number, bytes, now_ns / 1_000_000);
    }
}

fn beyond_of(plane: &Plane, packet: Packet) -> [u64; BEYOND] {
    let (bytes, len) = plane.head_of(packet);
    beyond(&bytes[..len])
}

fn choice(answer: Answer) -> Choice {
    match answer {
        Answer::Chain(chain) => Choice::Chain(chain),
        Answer::Rules => Choice::Rules,
        Answer::Drop => Choice::Drop(Refusal::Forbidden),
        Answer::Ask(_) => Choice::Drop(Refusal::Unanswered),
    }
}

impl ChooseChain for PacketIns {
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
                // Once for a flow: the flow table notes the entry about which it was asked.
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

    /// Retries failed questions and releases expired packets, in the order of arrival.
    #[cold]
    fn poll(&mut self, plane: &mut Plane) {
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

impl PacketIns {
    /// Asks about a flow which earlier packets could not ask about, or whose every packet asks.
    /// Returns its entry if it need not be asked about again.
    #[cold]
    fn ask_again(&mut self, plane: &Plane, key: &FlowKey, packet: Packet) -> Option<u32> {
        let advice = self.advice.clone();
        let entry = advice.find(key, || beyond_of(plane, packet)).entry?;
        self.tally(entry.number, packet.len, plane.now_ns);
        let Answer::Ask(max_len) = entry.answer else { return None };
        let asked = self.ask(plane, key.ingress(), packet, entry.number, max_len, NOT_HELD);
        (asked && advice.meanwhile == Meanwhile::Rules).then_some(entry.number)
    }

    /// Asks about a packet. Returns whether it succeeded; counts a failure.
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
        // There are as many slots as boxes.
        self.line.asked.push(question).is_ok()
    }

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

    /// Replaces the advice. Packets that wait for it follow it.
    pub(super) fn follow(&mut self, plane: &mut Plane, advice: Arc<Advice>) {
        // The agent frees the old one: here that would take packet time.
        self.advice = advice;
        self.poll(plane);
    }

    /// Sends a held packet on by an answer; None: by the advice, without asking.
    pub(super) fn release(&mut self, plane: &mut Plane, buffer: u32, answer: Option<Answer>) {
        if let Some(at) = self.waiting.iter().position(|w| w.buffer == buffer) {
            let Waiting { packet, key, .. } = self.waiting.remove(at);
            self.line.held.fetch_sub(1, Ordering::Relaxed);
            self.send(plane, packet, key, answer);
        }
    }

    /// Sends a packet from the controller, as if received by a port.
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
