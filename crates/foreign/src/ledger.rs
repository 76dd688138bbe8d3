//! Estimates the number of packets inside a program.
//!
//! # Problem
//! A foreign program takes packets at one interface and sends packets at another. It may change,
//! hold, multiply and drop them, so its output cannot be matched with its input packet by packet.
//!
//! # Approach
//! Packets are counted, not matched. Incoming packets are added to a bucket of their moment. An
//! outgoing packet settles the oldest one inside; if there is none, the program made it. A bucket
//! older than the maximum stay is written off: its rest has not come back.
//!
//! # Limits
//! A program that makes as many packets as it drops looks like one that does neither. Times are as
//! coarse as a bucket, a sixteenth of the maximum stay.

/// Number of buckets, one for each moment.
const BUCKETS: usize = 16;

/// The account of one way through a program.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Unsettled packets, by moment.
    buckets: [u64; BUCKETS],
    /// Duration of a moment in nanoseconds.
    width_ns: u64,
    /// Number of the present moment.
    moment: u64,
    inside: u64,
}

impl Ledger {
    /// An account with a maximum stay in nanoseconds.
    pub fn new(stay_ns: u64) -> Self {
        Self { buckets: [0; BUCKETS], width_ns: (stay_ns / BUCKETS as u64).max(1), moment: 0, inside: 0 }
    }

    /// Packets that are not settled.
    pub fn inside(&self) -> u64 {
        self.inside
    }

    /// Advances to a time in nanoseconds; returns the number of packets written off.
    pub fn advance(&mut self, now_ns: u64) -> u64 {
        let moment = now_ns / self.width_ns;
        let mut gone = 0;
        if moment > self.moment {
            // A jump of more moments than buckets empties all.
            for at in self.moment + 1..=moment.min(self.moment + BUCKETS as u64) {
                gone += std::mem::take(&mut self.buckets[(at % BUCKETS as u64) as usize]);
            }
            self.moment = moment;
        }
        self.inside -= gone;
        gone
    }

    /// Adds packets that go in, in the present moment.
    pub fn enter(&mut self, n: u64) {
        self.buckets[(self.moment % BUCKETS as u64) as usize] += n;
        self.inside += n;
    }

    /// Settles packets that come out; returns how many had gone in. The program made the others.
    pub fn leave(&mut self, n: u64) -> u64 {
        let mut left = n.min(self.inside);
        let settled = left;
        self.inside -= settled;
        for age in (0..BUCKETS as u64).rev() {
            if left == 0 {
                break;
            }
            let at = (self.moment.wrapping_sub(age) % BUCKETS as u64) as usize;
            let of_it = left.min(self.buckets[at]);
            self.buckets[at] -= of_it;
            left -= of_it;
        }
        settled
    }

    /// Writes off all packets inside; returns their number.
    pub fn close(&mut self) -> u64 {
        self.buckets = [0; BUCKETS];
        std::mem::take(&mut self.inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_comes_back_in_time_is_not_missed() {
        let mut ledger = Ledger::new(1600);
        assert_eq!(ledger.advance(5_000), 0);
        ledger.enter(10);
        assert_eq!(ledger.leave(4), 4);
        assert_eq!(ledger.inside(), 6);
        assert_eq!(ledger.advance(6_400), 0, "not yet");
        assert_eq!(ledger.advance(6_700), 6);
        assert_eq!((ledger.inside(), ledger.leave(3)), (0, 0), "what comes too late was made by the program, for all one can tell");
    }

    #[test]
    fn the_oldest_is_settled_first() {
        let mut ledger = Ledger::new(1600);
        ledger.advance(10_000);
        ledger.enter(5);
        ledger.advance(10_800);
        ledger.enter(5);
        assert_eq!(ledger.leave(5), 5);
        assert_eq!(ledger.advance(11_700), 0, "the old ones had come back");
        assert_eq!(ledger.advance(12_500), 5);
        ledger.enter(2);
        assert_eq!((ledger.close(), ledger.inside()), (2, 0));
    }

    proptest! {
        /// Steps: packets in, packets out, and the time between.
        #[test]
        fn every_packet_is_settled_or_written_off_once(steps in proptest::collection::vec((0u64..50, 0u64..50, 0u64..4000), 1..200)) {
            let mut ledger = Ledger::new(1600);
            let (mut now, mut went_in, mut settled, mut gone) = (0, 0, 0, 0);
            for (enter, leave, later) in steps {
                now += later;
                gone += ledger.advance(now);
                ledger.enter(enter);
                went_in += enter;
                let back = ledger.leave(leave);
                prop_assert!(back <= leave);
                settled += back;
                prop_assert_eq!(went_in, settled + gone + ledger.inside());
                prop_assert_eq!(ledger.inside(), ledger.buckets.iter().sum::<u64>());
            }
            gone += ledger.advance(now + 2000);
            prop_assert_eq!((went_in, ledger.inside()), (settled + gone, 0));
        }
    }
}
