//! Packet threads that pass frames to an NF, take them back, and let it go; and the look for paths
//! that no packet is on, while packets of them change frames or are given away: `make loom`.
//!
//! # What is tried
//! The interleavings of two or three threads with one to three frames that loom tells apart, and
//! what each may then read by the rules of the memory model, with at most [`PREEMPTIONS`] switches
//! of threads where none was due. What the manager does around these functions is played here in as
//! few lines.
//!
//! What an NF writes is on its ring before the threads begin, and its end of the ring to it stands still. As each thread may read a ring
//! at any time, that is every time at which the NF may write it, and every way in which it may die: a returned frame that it has, one that
//! it guesses, and the same one twice. Each model is run once more with the order of steps that the manager had before, and must find it
//! out.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::thread;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::ring::{self, Consumer, Producer};

use crate::sync::Ordering;
use crate::{FrameTable, Held, Moves, credits, in_hand, owner};

/// More switches of threads than that take hours, and have found nothing that fewer did not.
const PREEMPTIONS: usize = 4;

/// The NF before, and the NF that dies.
const BEFORE: u16 = owner::FIRST_NF;
const DIES: u16 = BEFORE + 1;

fn word(owner: u16) -> u64 {
    Held { owner, hop: u8::from(owner == DIES), flags: 0, path: 1 }.pack()
}

fn descriptor(frame: u32) -> Descriptor {
    Descriptor { frame, len: 60, ..Default::default() }
}

/// Puts frames that are in a thread's hands on an NF's ring, if there is one still; says how many went.
type Pass = fn(&FrameTable, Option<&mut Producer>, &[Descriptor], u64) -> usize;

/// As the manager does it.
fn reserve_first(table: &FrameTable, to: Option<&mut Producer>, burst: &[Descriptor], word: u64) -> usize {
    to.map_or(0, |to| table.hand_over(to, burst, |_| word, |_| {}).unwrap_or(0))
}

/// As it did it: the owner is written before there is room.
fn own_first(table: &FrameTable, to: Option<&mut Producer>, burst: &[Descriptor], word: u64) -> usize {
    burst.iter().for_each(|descriptor| table.own(descriptor.frame, word));
    to.map_or(0, |to| to.enqueue(burst).unwrap_or(0))
}

/// What the packet threads have in common.
struct Manager {
    table: FrameTable,
    /// Packets on their way to the NF that dies.
    in_flight: AtomicU32,
    /// Times that each frame came free.
    freed: Vec<AtomicU32>,
    posted: AtomicU32,
    /// Frames that were taken back, and that should have been.
    found: AtomicU32,
    left: AtomicU32,
    /// Nobody is to post any more, and nobody does.
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

    /// Passes frames on to the NF that dies; what it has no room for is dropped.
    fn pass_on(&self, to: Option<&mut Producer>, burst: &[Descriptor]) {
        let queued = (self.pass)(&self.table, to, burst, word(DIES));
        self.posted.fetch_add(queued as u32, Ordering::Relaxed);
        if queued < burst.len() {
            credits::give_back(&self.in_flight, (burst.len() - queued) as u32, 2);
            burst[queued..].iter().for_each(|descriptor| self.discard(descriptor.frame));
        }
    }

    /// Takes a burst that an NF returned; `next` gets what was its own. As the manager: the first
    /// of a run is claimed, those behind it if they have the same word. `meanwhile` is what their
    /// words say then.
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

    /// The thread that drains the NF that dies: takes what it returned, then, when nobody posts to it any more, all that it had.
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

    /// At the end each frame is free, once, and no credit is left.
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

/// A thread passes two frames to an NF whose ring has room for one, and another drains the NF, which returns both, by guess, the second one
/// twice.
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

/// A thread that drains the NF before passes frames on while the next one dies, lets go of its ring at some time, and goes on; another
/// takes back what the dead one had.
fn dies_under_load(pass: Pass) {
    let manager = Manager::new(3, pass);
    let (mut to, _nf) = ring::private(2);
    // All have been let in, and are with the NF before.
    assert_eq!(credits::reserve(&manager.in_flight, 3, 4, 2), 3);
    (0..3).for_each(|frame| manager.table.own(frame, word(BEFORE)));
    let mut before = returns(&[0, 1, 2]);
    let from = returns(&[0]);
    let passes = thread::spawn({
        let manager = manager.clone();
        move || {
            let mut to = Some(&mut to);
            manager.take(&mut before, BEFORE, in_hand, |burst| manager.pass_on(to.as_deref_mut(), burst));
            // What the supervisor asks for is done between two rounds.
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

/// A path that has ended, and what its last packet is in.
struct Ended {
    table: FrameTable,
    moves: Moves,
}

impl Ended {
    /// Its packet is in the last of so many frames, in the hands of a thread.
    fn new(frames: u32) -> Arc<Self> {
        let ended = Self { table: FrameTable::new(frames), moves: Moves::default() };
        ended.table.own(frames - 1, in_hand(word(BEFORE)));
        Arc::new(ended)
    }

    fn is_left(&self) -> bool {
        // The others begin: of a look before a thread's own look at a word loom does not see that
        // it depends on what that thread writes there.
        thread::yield_now();
        !self.table.left([(1, &self.moves)]).is_empty()
    }

    /// `says`: whether it is said that the packet moves.
    fn step(&self, says: bool, step: impl FnOnce(&FrameTable)) {
        let moving = says.then(|| self.moves.begin());
        step(&self.table);
        drop(moving);
    }
}

/// A thread carries the packet into a frame that was looked at before the one that it is in;
/// another one gives that one to a packet of another path, and takes it back; the packet then goes
/// on to an NF.
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

/// Two threads carry a packet of the path each.
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
