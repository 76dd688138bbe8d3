//! How many packets are inside a program, as far as can be told from outside.
//!
//! # Problem
//! A program that knows nothing of Sluice takes packets at one interface and sends packets at another. It may change, hold, multiply
//! and eat them, so what comes out cannot be matched with what went in, packet by packet.
//!
//! # Approach
//! Packets are counted, not matched. What goes in is put to a bucket of its moment. What comes out settles the oldest one that is in;
//! if there is none, the program made it itself. A bucket that is older than the time that a packet may stay is written off: what is
//! left in it has not come back.
//!
//! # Limits
//! A program that makes as many packets as it eats looks like one that does neither. Times are as coarse as a bucket, a sixteenth of
//! the longest stay.

/// Moments that are told apart.
const BUCKETS: usize = 16;

/// The account of one way through a program.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Packets that went in and did not come out, by moment.
    buckets: [u64; BUCKETS],
    /// Nanoseconds of a moment.
    width_ns: u64,
    /// Number of the moment that packets go to.
    moment: u64,
    inside: u64,
}

impl Ledger {
    /// An account where a packet may stay inside for so long, in nanoseconds.
    pub fn new(stay_ns: u64) -> Self {
        Self { buckets: [0; BUCKETS], width_ns: (stay_ns / BUCKETS as u64).max(1), moment: 0, inside: 0 }
    }

    /// Packets that went in and are not settled.
    pub fn inside(&self) -> u64 {
        self.inside
    }

    /// Moves on to a time, in nanoseconds, and says how many packets are written off by that.
    pub fn advance(&mut self, now_ns: u64) -> u64 {
        let moment = now_ns / self.width_ns;
        let mut gone = 0;
        if moment > self.moment {
            // More moments than there are buckets empty all of them.
            for at in self.moment + 1..=moment.min(self.moment + BUCKETS as u64) {
                gone += std::mem::take(&mut self.buckets[(at % BUCKETS as u64) as usize]);
            }
            self.moment = moment;
        }
        self.inside -= gone;
        gone
    }

    /// Packets go in, in the present moment.
    pub fn enter(&mut self, n: u64) {
        self.buckets[(self.moment % BUCKETS as u64) as usize] += n;
        self.inside += n;
    }

    /// Packets come out. Says how many of them settle one that went in; the others were made by the program.
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

    /// Writes off all that is inside, and says how many there were.
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
        /// Steps: what goes in, what comes out, and how much later.
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
