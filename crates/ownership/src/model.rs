//! Models of packet threads that pass frames to an NF, reclaim them, and let the NF go, and of the
//! scan for paths without packets while packets change frames or are given away: `make loom`. Last
//! comes a model of threads that agree on a bit.
//!
//! # What is tried
//! The interleavings of two or three threads with one to three frames that loom distinguishes, and
//! what each may then read by the memory model, with at most [`PREEMPTIONS`] preemptions. The
//! manager's code around these functions is reduced to a few lines here.
//!
//! What an NF returns is on its ring before the threads begin. As threads may read the ring at any
//! time, this covers every time at which the NF may write, and every way in which it may die: a
//! frame that it has, one that it guesses, and the same one twice. Each model is also run with a
//! wrong order of steps, and must find the error.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::thread;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::ring::{self, Consumer, Producer};

use crate::sync::{Ordering, fence};
use crate::{FrameTable, Held, Moves, agree, credits, in_hand, owner};

/// More preemptions take hours, and have found nothing more.
const PREEMPTIONS: usize = 4;

/// The former NF, and the NF that dies.
const BEFORE: u16 = owner::FIRST_NF;
const DIES: u16 = BEFORE + 1;

fn word(owner: u16) -> u64 {
    Held { owner, hop: u8::from(owner == DIES), flags: 0, path: 1 }.pack()
}

fn descriptor(frame: u32) -> Descriptor {
    Descriptor { frame, len: 60, ..Default::default() }
}

/// Enqueues frames in a thread's hands to an NF, if it still has a ring; returns how many.
type Pass = fn(&FrameTable, Option<&mut Producer>, &[Descriptor], u64) -> usize;

/// As the manager does it.
fn reserve_first(table: &FrameTable, to: Option<&mut Producer>, burst: &[Descriptor], word: u64) -> usize {
    to.map_or(0, |to| table.hand_over(to, burst, |_| word, |_| {}).unwrap_or(0))
}

/// The wrong order: the owner is written before there is room.
fn own_first(table: &FrameTable, to: Option<&mut Producer>, burst: &[Descriptor], word: u64) -> usize {
    burst.iter().for_each(|descriptor| table.own(descriptor.frame, word));
    to.map_or(0, |to| to.enqueue(burst).unwrap_or(0))
}

/// State that the packet threads share.
struct Manager {
    table: FrameTable,
    /// Packets on their way to the NF that dies.
    in_flight: AtomicU32,
    freed: Vec<AtomicU32>,
    posted: AtomicU32,
    /// Frames that were reclaimed, and frames that should have been.
    found: AtomicU32,
    left: AtomicU32,
    /// Posting is to stop, and has stopped.
    detach: AtomicBool,
    is_detached: AtomicBool,
    pass: Pass,
}

impl Manager {
    fn new(frames: u32, pass: Pass) -> Arc<Self> {
        Arc::new(Self {
            table: FrameTable::new(frames),
            in_flight: AtomicU32::new(0),
            freed: (0..frames).map(|_| AtomicU32::new(0)).collect(),
            posted: AtomicU32::new(0),
            found: AtomicU32::new(0),
            left: AtomicU32::new(0),
            detach: AtomicBool::new(false),
            is_detached: AtomicBool::new(false),
            pass,
        })
    }

    fn discard(&self, frame: u32) {
        self.table.free(frame);
        assert_eq!(self.freed[frame as usize].fetch_add(1, Ordering::Relaxed), 0, "frame {frame} is freed twice");
    }

    /// Passes frames on to the NF that dies; drops those that do not fit.
    fn pass_on(&self, to: Option<&mut Producer>, burst: &[Descriptor]) {
        let queued = (self.pass)(&self.table, to, burst, word(DIES));
        self.posted.fetch_add(queued as u32, Ordering::Relaxed);
        if queued < burst.len() {
            credits::give_back(&self.in_flight, (burst.len() - queued) as u32, 2);
            burst[queued..].iter().for_each(|descriptor| self.discard(descriptor.frame));
        }
    }

    /// Takes a burst that an NF returned; `next` gets its own frames. As in the manager, the first
    /// of a run is claimed, then those with the same word. `meanwhile` gives their new word.
    fn take(&self, from: &mut Consumer, owner: u16, meanwhile: fn(u64) -> u64, mut next: impl FnMut(&[Descriptor])) -> u32 {
        let mut burst = [Descriptor::default(); 2];
        let n = from.dequeue(&mut burst).unwrap_or(0);
        let mut claimed = Vec::new();
        let mut run = None;
        for descriptor in &burst[..n] {
            if !run.is_some_and(|word| self.table.claim_same(descriptor.frame, word, meanwhile(word))) {
                run = self.table.claim(descriptor.frame, owner);
                if run.is_some() && meanwhile(1) == 0 {
                    self.table.free(descriptor.frame);
                }
            }
            if run.is_some() {
                claimed.push(*descriptor);
            }
        }
        next(&claimed);
        claimed.len() as u32
    }

    /// The drain thread of the NF that dies: takes what it returned, then all that it had.
    fn drain_to_the_end(&self, mut from: Consumer) {
        let drop = |burst: &[Descriptor]| {
            credits::give_back(&self.in_flight, burst.len() as u32, 2);
            burst.iter().for_each(|descriptor| self.discard(descriptor.frame));
        };
        let mut returned = self.take(&mut from, DIES, |_| 0, drop);
        while !self.is_detached.load(Ordering::Acquire) {
            thread::yield_now();
        }
        returned += self.take(&mut from, DIES, |_| 0, drop);
        let left = self.posted.load(Ordering::Relaxed) - returned;
        let mut found = 0;
        for frame in 0..self.table.frames() {
            if self.table.reclaim(frame, DIES).is_some() {
                credits::give_back(&self.in_flight, 1, 2);
                self.discard(frame);
                found += 1;
            }
        }
        self.found.store(found, Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
    }

    /// At the end each frame was freed once, and no credit is left.
    fn check(&self) {
        let [found, left] = [&self.found, &self.left].map(|n| n.load(Ordering::Relaxed));
        assert_eq!(found, left, "what was posted and not returned is what it had");
        assert!(self.freed.iter().all(|freed| freed.load(Ordering::Relaxed) == 1), "a frame is lost");
        assert_eq!((self.table.in_use(), self.in_flight.load(Ordering::Relaxed)), (0, 0));
    }
}

/// A ring on which an NF has put these frames.
fn returns(frames: &[u32]) -> Consumer {
    let (mut producer, consumer) = ring::private(4);
    let burst: Vec<Descriptor> = frames.iter().map(|frame| descriptor(*frame)).collect();
    assert_eq!(producer.enqueue(&burst), Ok(burst.len()));
    consumer
}

fn check<T: Copy + Send + Sync + 'static>(model: fn(T), with: T) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || model(with));
}

/// One thread passes two frames to an NF whose ring has room for one; another drains the NF, which
/// returns both by guess, the second one twice.
fn early_returns(pass: Pass) {
    let manager = Manager::new(3, pass);
    let (mut to, _nf) = ring::private(2);
    // Frame 2 is on the ring already and stays there.
    assert_eq!(credits::reserve(&manager.in_flight, 3, 3, 2), 3);
    manager.pass_on(Some(&mut to), &[descriptor(2)]);
    let from = returns(&[0, 1, 1]);
    let drains = thread::spawn({
        let manager = manager.clone();
        move || manager.drain_to_the_end(from)
    });
    manager.pass_on(Some(&mut to), &[descriptor(0), descriptor(1)]);
    manager.is_detached.store(true, Ordering::Release);
    drains.join().unwrap();
    manager.check();
}

/// The drain thread of the former NF passes frames on while the next NF dies, drops its ring at
/// some time, and goes on; another thread reclaims what the dead NF had.
fn dies_under_load(pass: Pass) {
    let manager = Manager::new(3, pass);
    let (mut to, _nf) = ring::private(2);
    // All have been admitted, and are with the former NF.
    assert_eq!(credits::reserve(&manager.in_flight, 3, 4, 2), 3);
    (0..3).for_each(|frame| manager.table.own(frame, word(BEFORE)));
    let mut before = returns(&[0, 1, 2]);
    let from = returns(&[0]);
    let passes = thread::spawn({
        let manager = manager.clone();
        move || {
            let mut to = Some(&mut to);
            manager.take(&mut before, BEFORE, in_hand, |burst| manager.pass_on(to.as_deref_mut(), burst));
            // The supervisor's request is carried out between two rounds.
            while !manager.detach.load(Ordering::Acquire) {
                thread::yield_now();
            }
            to = None;
            manager.is_detached.store(true, Ordering::Release);
            manager.take(&mut before, BEFORE, in_hand, |burst| manager.pass_on(to.as_deref_mut(), burst));
        }
    });
    let drains = thread::spawn({
        let manager = manager.clone();
        move || manager.drain_to_the_end(from)
    });
    manager.detach.store(true, Ordering::Release);
    passes.join().unwrap();
    drains.join().unwrap();
    manager.check();
}

#[test]
fn what_is_returned_early_is_freed_once() {
    check(early_returns, reserve_first);
}

#[test]
#[should_panic(expected = "freed twice")]
fn an_owner_before_there_is_room_is_found_out_by_early_returns() {
    check(early_returns, own_first);
}

#[test]
fn what_a_dead_one_had_comes_back_once_with_its_credits() {
    check(dies_under_load, reserve_first);
}

#[test]
#[should_panic(expected = "freed twice")]
fn an_owner_before_there_is_room_is_found_out_by_a_death() {
    check(dies_under_load, own_first);
}

/// A path that has ended, with its last packets.
struct Ended {
    table: FrameTable,
    moves: Moves,
}

impl Ended {
    /// Its packet is in the last of `frames` frames, in the hands of a thread.
    fn new(frames: u32) -> Arc<Self> {
        let ended = Self { table: FrameTable::new(frames), moves: Moves::default() };
        ended.table.own(frames - 1, in_hand(word(BEFORE)));
        Arc::new(ended)
    }

    fn is_left(&self) -> bool {
        // Lets the others begin: loom does not see that a scan before a thread's own load of a word
        // depends on what that thread writes there.
        thread::yield_now();
        !self.table.left([(1, &self.moves)]).is_empty()
    }

    /// Runs a step, as one of the path's moves if `says`.
    fn step(&self, says: bool, step: impl FnOnce(&FrameTable)) {
        let moving = says.then(|| self.moves.begin());
        step(&self.table);
        drop(moving);
    }
}

/// A thread carries the packet into a frame that was scanned before; another thread gives the old
/// frame to a packet of another path, and takes it back; the packet then goes to an NF.
fn carries(says: bool) {
    let ended = Ended::new(2);
    let is_free = Arc::new(AtomicBool::new(false));
    let carries = thread::spawn({
        let (ended, is_free) = (ended.clone(), is_free.clone());
        move || {
            ended.step(says, |table| table.carry(1, 0));
            // By the queue of free frames.
            is_free.store(true, Ordering::Release);
            ended.table.own(0, word(DIES));
        }
    });
    let uses = thread::spawn({
        let (ended, is_free) = (ended.clone(), is_free);
        move || {
            if is_free.load(Ordering::Acquire) {
                ended.table.own(1, Held { owner: BEFORE, hop: 0, flags: 0, path: 2 }.pack());
                ended.table.claim(1, BEFORE);
                ended.table.free(1);
            }
        }
    });
    assert!(!ended.is_left(), "a path is given up that a packet is on");
    carries.join().unwrap();
    uses.join().unwrap();
    assert!(!ended.is_left() && ended.table.reclaim(0, DIES).is_some() && ended.is_left());
}

/// A thread gives the packet's frame away, which is not taken.
fn gives_away(says: bool) {
    let ended = Ended::new(1);
    let gives = thread::spawn({
        let ended = ended.clone();
        move || ended.step(says, |table| assert_eq!(table.give_away(std::iter::once(0), || 0), 0))
    });
    assert!(!ended.is_left(), "a path is given up that a packet is on");
    gives.join().unwrap();
    ended.table.free(0);
    assert!(ended.is_left());
}

/// Two threads each carry a packet of the path.
fn two_carry(says: bool) {
    let ended = Ended::new(4);
    ended.table.own(2, in_hand(word(DIES)));
    let threads: Vec<_> = [(3, 1), (2, 0)]
        .map(|(from, to)| {
            let ended = ended.clone();
            thread::spawn(move || ended.step(says, |table| table.carry(from, to)))
        })
        .into_iter()
        .collect();
    assert!(!ended.is_left(), "a path is given up that a packet is on");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    [0, 1].into_iter().for_each(|frame| ended.table.free(frame));
    assert!(ended.is_left());
}

#[test]
fn a_path_is_not_left_while_its_last_packet_changes_frames() {
    check(carries, true);
}

#[test]
#[should_panic(expected = "a path is given up")]
fn a_packet_that_changes_frames_in_silence_is_found_out() {
    check(carries, false);
}

#[test]
fn a_path_is_not_left_while_its_last_packet_is_given_away_in_vain() {
    check(gives_away, true);
}

#[test]
#[should_panic(expected = "a path is given up")]
fn a_packet_that_is_given_away_in_silence_is_found_out() {
    check(gives_away, false);
}

#[test]
fn a_path_is_not_left_while_two_threads_move_its_packets() {
    check(two_carry, true);
}

#[test]
#[should_panic(expected = "a path is given up")]
fn two_threads_that_move_packets_in_silence_are_found_out() {
    check(two_carry, false);
}

#[test]
fn threads_that_let_in_at_once_stay_within_the_limit_and_below_nothing() {
    loom::model(|| {
        let count = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = [2, 3]
            .map(|n| {
                let count = count.clone();
                thread::spawn(move || {
                    let granted = credits::reserve(&count, n, 4, 2);
                    assert!(granted > 0 && count.load(Ordering::Relaxed) <= 4);
                    credits::give_back(&count, granted, 2);
                })
            })
            .into_iter()
            .collect();
        assert!(count.load(Ordering::Relaxed) <= 4);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(count.load(Ordering::Relaxed), 0);
    });
}

/// Has a bit follow words.
type Follow = fn(&dyn Fn() -> bool, &dyn Fn(bool));

/// As the manager does it.
fn fence_before_and_behind(wanted: &dyn Fn() -> bool, write: &dyn Fn(bool)) {
    agree::follow(wanted, write);
}

/// Too little: a thread that finds the bit as it wants it may have looked before the other one
/// wrote it, and shows its own word only later.
fn fence_behind(wanted: &dyn Fn() -> bool, write: &dyn Fn(bool)) {
    loop {
        let is_wanted = wanted();
        write(is_wanted);
        fence(Ordering::SeqCst);
        if wanted() == is_wanted {
            return;
        }
    }
}

/// One thread clears its word, another sets its own, and a bit is to say whether any word is set.
fn two_decide(follow: Follow) {
    let words = Arc::new([1, 0, 1].map(AtomicU32::new));
    let threads = [0u32, 1].map(|value| {
        let words = words.clone();
        thread::spawn(move || {
            let [first, second, bit] = &*words;
            [first, second][value as usize].store(value, Ordering::Relaxed);
            let is_set = |word: &AtomicU32| word.load(Ordering::Relaxed) != 0;
            let wanted = || is_set(first) || is_set(second);
            let write = |is_wanted: bool| {
                if is_set(bit) != is_wanted {
                    bit.store(u32::from(is_wanted), Ordering::Relaxed);
                }
            };
            follow(&wanted, &write);
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(words[2].load(Ordering::Relaxed), 1, "the bit does not follow");
}

#[test]
fn a_bit_follows_the_words_of_two_threads() {
    check(two_decide, fence_before_and_behind as Follow);
}

#[test]
#[should_panic(expected = "the bit does not follow")]
fn threads_that_look_at_a_bit_before_their_words_are_visible_are_found_out() {
    check(two_decide, fence_behind as Follow);
}
