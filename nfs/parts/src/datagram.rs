//! What was decided about the first fragment of a datagram, for the others.
//!
//! Only the first fragment has the transport header. What a network function decides by it is remembered under the datagram's
//! addresses, protocol and number ([`FlowKey::of_datagram`]) for [`LIFE_NS`]; the other fragments are treated alike. A bounded number of
//! datagrams is remembered; when it is reached, new ones are not.

use crate::flow::FlowKey;
use crate::table::Table;

/// Datagrams remembered at a time.
const LIMIT: usize = 4096;
/// How long a datagram is remembered: as long as hosts wait for the missing fragments (RFC 791 says 15 seconds, Linux 30).
pub const LIFE_NS: u64 = 30_000_000_000;

/// What is remembered of datagrams.
#[derive(Debug)]
pub struct Datagrams<T> {
    table: Table<FlowKey, (T, u64)>,
}

impl<T: Copy> Datagrams<T> {
    /// Nothing is remembered yet.
    pub fn new() -> Self {
        Self { table: Table::with_limit(LIMIT) }
    }

    /// Remembers what was decided about a datagram's first fragment. Whether there was room.
    pub fn remember(&mut self, datagram: FlowKey, decided: T, now_ns: u64) -> bool {
        self.table.insert(datagram, (decided, now_ns)).is_some()
    }

    /// What was decided about a datagram.
    pub fn find(&self, datagram: &FlowKey) -> Option<T> {
        let handle = self.table.find(datagram)?;
        self.table.entry(handle).map(|(_, (decided, _))| *decided)
    }

    /// Changes what was decided, or forgets where `change` gives None.
    pub fn change(&mut self, change: impl Fn(T) -> Option<T>) {
        self.table.retain(|_, (decided, _)| change(*decided).inspect(|new| *decided = *new).is_some());
    }

    /// Forgets what is old; call it at each [`crate::table::AGE_TICK`].
    pub fn age(&mut self, now_ns: u64) {
        self.table.age(|_, (_, since_ns)| now_ns.saturating_sub(*since_ns) >= LIFE_NS, |_, _, _| {});
    }
}

impl<T: Copy> Default for Datagrams<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::AGE_TICKS;

    fn key(id: u32) -> FlowKey {
        let address = "10.0.0.1".parse().unwrap();
        FlowKey::datagram(address, address, 17, id)
    }

    #[test]
    fn datagrams_are_remembered_changed_and_forgotten() {
        let mut datagrams = Datagrams::new();
        assert!(datagrams.remember(key(1), 10, 0));
        assert!(datagrams.remember(key(2), 20, 5));
        assert_eq!((datagrams.find(&key(1)), datagrams.find(&key(2)), datagrams.find(&key(3))), (Some(10), Some(20), None));
        datagrams.change(|n| (n == 20).then_some(21));
        assert_eq!((datagrams.find(&key(1)), datagrams.find(&key(2))), (None, Some(21)));
        for _ in 0..AGE_TICKS {
            datagrams.age(LIFE_NS + 4);
        }
        assert_eq!(datagrams.find(&key(2)), Some(21));
        for _ in 0..AGE_TICKS {
            datagrams.age(LIFE_NS + 5);
        }
        assert_eq!(datagrams.find(&key(2)), None);
    }

    #[test]
    fn their_number_is_bounded() {
        let mut datagrams = Datagrams::new();
        assert!((0..LIMIT as u32).all(|id| datagrams.remember(key(id), id, 0)));
        assert!(!datagrams.remember(key(u32::MAX), 0, 0));
    }
}
