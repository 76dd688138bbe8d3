//! When a connection is over.
//!
//! # Problem
//! An NF of a pool belongs to a connection until that ends. Who looks at packets on their way sees most of what the two ends say, but
//! not all, not in order, and perhaps only one direction.
//!
//! # Terms and units
//! *Direction*: 0 or 1, by whatever tells the two apart. Flags are those of a TCP header; other protocols have none. Times are
//! milliseconds.
//!
//! # Approach
//! A connection has *ended* when both directions have said FIN, or one RST: late packets may follow. One whose first packet says FIN had ended
//! before it was known: somebody who was not answered says it again, and is answered by a packet or two. A new connection between the
//! same ends (a SYN without ACK) ends the old one at once. One that says nothing is *silent*, after a time that depends on what is known
//! of it: TCP is established when both directions have carried something without SYN; before, and when one direction has said FIN, it
//! is half-open. So a SYN that nobody answers, a scan, and a stray packet of a connection long gone hold an NF for a short time only.
//!
//! # Limits
//! Sequence numbers are not looked at: whoever can put a packet between the two ends can end their connection here. A TCP connection
//! of which only one direction passes stays half-open.

use crate::tcp;

/// After how long of silence a connection is over, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Of an established TCP connection.
    pub tcp_ms: u64,
    /// Of a TCP connection that is not, or not any more.
    pub half_open_ms: u64,
    /// Of everything else.
    pub other_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { tcp_ms: 300_000, half_open_ms: 10_000, other_ms: 30_000 }
    }
}

impl Timeouts {
    /// The longer of each: what a connection has that several services serve.
    pub fn or_longer(self, other: Self) -> Self {
        Self {
            tcp_ms: self.tcp_ms.max(other.tcp_ms),
            half_open_ms: self.half_open_ms.max(other.half_open_ms),
            other_ms: self.other_ms.max(other.other_ms),
        }
    }
}

/// What a packet means for its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It goes on.
    GoesOn,
    /// This packet has ended it.
    Ends,
    /// It has ended before, and this is a late packet.
    Late,
    /// It is another one between the same ends.
    BeginsAnew,
}

/// What is known of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Life {
    bits: u8,
}

const CARRIED: u8 = 1;
const FINISHED: u8 = 4;
const ENDED: u8 = 16;
const TCP: u8 = 32;
const SEEN: u8 = 64;
const BOTH: u8 = 3;

impl Life {
    /// A connection of which nothing was seen yet.
    pub fn new(tcp: bool) -> Self {
        Self { bits: if tcp { TCP } else { 0 } }
    }

    /// A packet in a direction, with these TCP flags.
    #[inline]
    pub fn packet(&mut self, direction: u8, flags: u8) -> Event {
        if self.bits & TCP == 0 {
            return Event::GoesOn;
        }
        let direction = direction & 1;
        if self.has_ended() {
            return if flags & (tcp::SYN | tcp::ACK | tcp::RST) == tcp::SYN { Event::BeginsAnew } else { Event::Late };
        }
        let is_first = self.bits & SEEN == 0;
        self.bits |= SEEN;
        if flags & tcp::SYN == 0 {
            self.bits |= CARRIED << direction;
        }
        if flags & tcp::FIN != 0 {
            self.bits |= FINISHED << direction;
        }
        let again = is_first && flags & (tcp::SYN | tcp::FIN) == tcp::FIN;
        if flags & tcp::RST != 0 || again || (self.bits / FINISHED) & BOTH == BOTH {
            self.bits |= ENDED;
            return Event::Ends;
        }
        Event::GoesOn
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.bits & ENDED != 0
    }

    /// Whether both directions of a TCP connection have carried something, and none has said FIN.
    pub fn is_established(&self) -> bool {
        self.bits & TCP != 0 && (self.bits / CARRIED) & BOTH == BOTH && (self.bits / FINISHED) & BOTH == 0
    }

    /// After how many milliseconds of silence it is over.
    pub fn timeout_ms(&self, timeouts: &Timeouts) -> u64 {
        if self.bits & TCP == 0 {
            timeouts.other_ms
        } else if self.is_established() {
            timeouts.tcp_ms
        } else {
            timeouts.half_open_ms
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tcp::{ACK, FIN, RST, SYN};

    const TIMES: Timeouts = Timeouts { tcp_ms: 3, half_open_ms: 1, other_ms: 2 };

    #[test]
    fn a_whole_connection() {
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, SYN), Event::GoesOn);
        assert_eq!(life.packet(1, SYN | ACK), Event::GoesOn);
        assert_eq!(life.timeout_ms(&TIMES), 1, "nobody has acknowledged");
        assert_eq!(life.packet(0, ACK), Event::GoesOn);
        assert_eq!(life.packet(1, ACK), Event::GoesOn);
        assert_eq!(life.timeout_ms(&TIMES), 3);
        assert_eq!(life.packet(0, FIN | ACK), Event::GoesOn);
        assert_eq!(life.timeout_ms(&TIMES), 1, "half-closed");
        assert_eq!(life.packet(0, FIN | ACK), Event::GoesOn, "the same FIN again");
        assert_eq!(life.packet(1, FIN | ACK), Event::Ends);
        assert_eq!(life.packet(0, ACK), Event::Late);
        assert_eq!(life.packet(1, FIN | ACK), Event::Late);
        assert_eq!(life.packet(1, SYN | ACK), Event::Late, "an answer begins nothing");
        assert_eq!(life.packet(1, SYN), Event::BeginsAnew);
    }

    #[test]
    fn a_reset_ends_whatever_there_is() {
        let mut life = Life::new(true);
        assert_eq!(life.packet(1, RST), Event::Ends);
        assert!(life.has_ended());
    }

    #[test]
    fn one_that_is_met_at_its_end_has_ended() {
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, FIN | ACK), Event::Ends, "said again, because nobody answered");
        assert_eq!(life.packet(1, ACK), Event::Late);
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, SYN), Event::GoesOn);
        assert_eq!(life.packet(0, FIN | ACK), Event::GoesOn, "its beginning was seen");
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, SYN | FIN), Event::GoesOn);
    }

    #[test]
    fn what_is_not_tcp_ends_by_silence_alone() {
        let mut life = Life::new(false);
        assert!((0..=255).all(|flags| life.packet(flags & 1, flags) == Event::GoesOn));
        assert_eq!(life.timeout_ms(&TIMES), 2);
    }

    proptest! {
        #[test]
        fn it_ends_once_and_by_both_fins_or_a_reset_or_a_fin_alone(packets in prop::collection::vec((0..2u8, any::<u8>()), 0..40)) {
            let mut life = Life::new(true);
            let (mut fins, mut ended) = ([false; 2], false);
            for (i, (direction, flags)) in packets.into_iter().enumerate() {
                let event = life.packet(direction, flags);
                if ended {
                    let anew = flags & SYN != 0 && flags & (ACK | RST) == 0;
                    prop_assert_eq!(event, if anew { Event::BeginsAnew } else { Event::Late });
                } else {
                    fins[direction as usize] |= flags & FIN != 0;
                    ended = fins == [true; 2] || flags & RST != 0 || i == 0 && flags & (SYN | FIN) == FIN;
                    prop_assert_eq!(event, if ended { Event::Ends } else { Event::GoesOn });
                }
                prop_assert_eq!(life.has_ended(), ended);
                prop_assert!(!life.is_established() || fins == [false; 2]);
            }
        }
    }
}
