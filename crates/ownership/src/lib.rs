//! The owner of each frame, and the number of packets on their way to each NF.
//!
//! Packet threads share no other writable words about frames and credits. The crate holds every
//! step that changes one, so that a model checker can run the same functions as the manager (`make
//! loom`): two or three threads, a few frames, at most four preemptions; see `model.rs`. All of it
//! is in the manager's private memory: no NF can write it. For the model checker one more step is
//! here, by which threads agree on a bit ([`agree`]).
//!
//! # The rules
//! 1. A frame that no NF has is in the hands of one thread (or of a queue between threads). Its
//!    word is 0, or, between two NFs, marks it as in a thread's hands.
//! 2. A word that names an NF is changed only by the thread that drains that NF.
//! 3. An NF becomes the owner of a frame only when the thread that writes its ring has found room
//!    for the frame; then the frame is enqueued: [`FrameTable::hand_over`]. Between the two steps
//!    the NF may return the frame, if it guesses its number; then the packet has passed it early,
//!    and the descriptor that follows names a frame that is not its own.
//! 4. A credit is taken before the packet starts ([`credits::reserve`]) and returned once: by the
//!    thread that claims the frame from the NF, or by the one that finds no room for it further on.
//! 5. A word that names a path that has ended changes in one of these ways: it names another NF of
//!    the path, or a thread has the frame; the packet leaves the path for ever; or the packet moves
//!    to another word, or may come back to this one, during a step of the path's [`Moves`]. So a
//!    scan of all words can show that no packet is on a path ([`FrameTable::left`]).
//!
//! By 2 and 3 no thread writes a word that names an NF whose rings all threads have given up. So
//! the thread that drains it finds all its frames in the table, while the other threads go on.

pub mod agree;
pub mod credits;
pub mod frames;
mod sync;

#[cfg(all(test, loom))]
mod model;

pub use frames::{
    DETOUR, DETOURS, FrameTable, Held, KINDS, MARKS, Moves, Moving, SAMPLED, TRACED, URGENT, in_hand, kind_of, owner, with_kind,
};
