//! The state of a port's interface, for packet threads, reports and the log.
//!
//! One thread changes it: the one that watches the interface, queries the device or writes the
//! file. Packet threads read one word. Changes are kept for the supervisor, which logs them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use sluice_shm::clock::monotonic_ns;

use sluice_api::model::PortState;

const KEPT: usize = 64;

/// The state of a port; initially [`PortState::Up`].
#[derive(Debug, Default)]
pub struct Link {
    state: AtomicU8,
    /// Changes that were not taken yet, with the monotonic clock in nanoseconds.
    changes: Mutex<Vec<(u64, PortState)>>,
}

impl Link {
    /// The state, as last set.
    #[inline]
    pub fn state(&self) -> PortState {
        // Relaxed: it publishes nothing else.
        PortState::ALL[usize::from(self.state.load(Ordering::Relaxed)) % PortState::ALL.len()]
    }

    /// Changes the state. Never blocks: returns `false` while changes are being taken.
    pub fn set(&self, state: PortState) -> bool {
        if self.state() == state {
            return true;
        }
        let mut changes = match self.changes.try_lock() {
            Ok(changes) => changes,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if changes.len() == KEPT {
            changes.remove(0);
        }
        changes.push((monotonic_ns(), state));
        self.state.store(state as u8, Ordering::Relaxed);
        true
    }

    /// The changes since the last call, oldest first, with the monotonic clock in nanoseconds.
    pub fn take_changes(&self) -> Vec<(u64, PortState)> {
        std::mem::take(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_kept_in_order_and_taken_once() {
        let link = Link::default();
        assert!(link.set(PortState::Up) && link.take_changes().is_empty());
        for state in [PortState::Gone, PortState::Gone, PortState::NoLink, PortState::Up] {
            assert!(link.set(state));
            assert_eq!(link.state(), state);
        }
        let states: Vec<_> = link.take_changes().into_iter().map(|(_, state)| state).collect();
        assert_eq!(states, [PortState::Gone, PortState::NoLink, PortState::Up]);
        assert!(link.take_changes().is_empty());
        for _ in 0..KEPT {
            link.set(PortState::Waiting);
            link.set(PortState::Up);
        }
        assert_eq!(link.take_changes().len(), KEPT);
    }
}
