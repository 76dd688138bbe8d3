//! Who has each frame, and how many packets are on their way to each NF.
//!
//! These are the only words that packet threads write in common about frames and credits. The crate holds every step that changes
//! one, and nothing else, so that a model checker can try the very functions that the manager calls
//! (`make loom`). It tries two or three threads with a few frames, with at most four preemptions;
//! what is modelled stands in `model.rs`. All of this is in the manager's private memory: no NF can
//! write it.
//!
//! # The rules
//! 1. A frame that no NF has is in the hands of one thread (or of a queue between threads). Its word is 0, or, between two NFs, says that it
//!    is in a thread's hand.
//! 2. A word that names an NF is changed by one thread alone: the one that drains that NF.
//! 3. An NF becomes the owner of a frame only when room for the frame was found on its ring, by the thread that writes the ring, and then
//!    the frame is put there: [`FrameTable::hand_over`]. Between the two steps the NF may return the frame, if it guesses its number; then
//!    the packet has passed it early, and the descriptor that comes later names a frame that is not its own.
//! 4. A credit is taken before the packet starts ([`credits::reserve`]) and given back once: by the thread that claims the frame from the
//!    NF, or by the one that finds no room for it further on.
//! 5. A word that names a path that has ended changes in one of these ways: it names another NF of
//!    the path, or says that a thread has the frame; the packet is gone from the path for ever; or
//!    the packet moves to another word, or may come back to this one, and the path's [`Moves`] say
//!    so meanwhile. So a look at all words finds out that no packet is on a path
//!    ([`FrameTable::left`]).
//!
//! By 2 and 3 no thread writes a word that names an NF whose rings all threads have laid down. So the thread that drains it finds all
//! frames that it had in the table, while the other threads go on.

pub mod credits;
pub mod frames;
mod sync;

#[cfg(all(test, loom))]
mod model;

pub use frames::{FrameTable, Held, Moves, Moving, SAMPLED, TRACED, URGENT, in_hand, owner};
