//! Life of a connection: when it is over.
//!
//! # Problem
//! An NF of a pool belongs to a connection until that ends. An observer of the packets sees most of
//! what the two ends send, but not all, not in order, and perhaps only one direction.
//!
//! # Terms and units
//! *Direction*: 0 or 1, as the caller tells the two apart. Flags are those of a TCP header; other
//! protocols have none. Times are milliseconds.
//!
//! # Approach
//! A connection has *ended* after a FIN in both directions, or one RST; late packets may follow. If
//! its first packet has a FIN, it had ended before: an unanswered end repeats its FIN, and a packet
//! or two answer it. A SYN without ACK after the end begins a new connection between the same ends.
//! It has also ended when its NFs say so ([`Life::end`]), whose word the caller checks.
//! A connection without packets is *silent* after a timeout. TCP is established, with a longer one,
//! when both directions have carried something without SYN, and none a FIN; before and after, it is
//! half-open. So an unanswered SYN, a scan, and a stray packet hold an NF for a short time only.
//!
//! # Limits
//! Sequence numbers are ignored: anything that can insert a packet between the two ends can end
//! their connection here. A TCP connection with only one visible direction stays half-open.

use crate::tcp;

/// Silence after which a connection is over, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For an established TCP connection.
    pub tcp_ms: u64,
    /// For a half-open TCP connection.
    pub half_open_ms: u64,
    /// For all other protocols.
    pub other_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { tcp_ms: 300_000, half_open_ms: 10_000, other_ms: 30_000 }
    }
}

impl Timeouts {
    /// The longer of each, for a connection that several services serve.
    pub fn or_longer(self, other: Self) -> Self {
        Self {
            tcp_ms: self.tcp_ms.max(other.tcp_ms),
            half_open_ms: self.half_open_ms.max(other.half_open_ms),
            other_ms: self.other_ms.max(other.other_ms),
        }
    }
}

/// Effect of a packet on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The connection goes on.
    GoesOn,
    /// This packet has ended it.
    Ends,
    /// The connection has ended before; this is a late packet.
    Late,
    /// A new connection begins between the same ends.
    BeginsAnew,
}

/// State of one connection.
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
    /// A connection without packets so far.
    pub fn new(tcp: bool) -> Self {
        Self { bits: if tcp { TCP } else { 0 } }
    }

    /// Takes a packet in a direction, with these TCP flags.
    #[inline]
    pub fn packet(&mut self, direction: u8, flags: u8) -> ConnectionEvent {
        if self.bits & TCP == 0 {
            return ConnectionEvent::GoesOn;
        }
        let direction = direction & 1;
        if self.has_ended() {
            return if flags & (tcp::SYN | tcp::ACK | tcp::RST) == tcp::SYN {
                ConnectionEvent::BeginsAnew
            } else {
                ConnectionEvent::Late
            };
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
            return ConnectionEvent::Ends;
        }
        ConnectionEvent::GoesOn
    }

    /// Ends the connection, whatever its packets say.
    pub fn end(&mut self) {
        self.bits |= ENDED;
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.bits & ENDED != 0
    }

    /// Whether both directions of a TCP connection have carried something, and none a FIN.
    pub fn is_established(&self) -> bool {
        self.bits & TCP != 0 && (self.bits / CARRIED) & BOTH == BOTH && (self.bits / FINISHED) & BOTH == 0
    }

    /// Silence after which it is over, in milliseconds.
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
        assert_eq!(life.packet(0, SYN), ConnectionEvent::GoesOn);
        assert_eq!(life.packet(1, SYN | ACK), ConnectionEvent::GoesOn);
        assert_eq!(life.timeout_ms(&TIMES), 1, "nobody has acknowledged");
        assert_eq!(life.packet(0, ACK), ConnectionEvent::GoesOn);
        assert_eq!(life.packet(1, ACK), ConnectionEvent::GoesOn);
        assert_eq!(life.timeout_ms(&TIMES), 3);
        assert_eq!(life.packet(0, FIN | ACK), ConnectionEvent::GoesOn);
        assert_eq!(life.timeout_ms(&TIMES), 1, "half-closed");
        assert_eq!(life.packet(0, FIN | ACK), ConnectionEvent::GoesOn, "the same FIN again");
        assert_eq!(life.packet(1, FIN | ACK), ConnectionEvent::Ends);
        assert_eq!(life.packet(0, ACK), ConnectionEvent::Late);
        assert_eq!(life.packet(1, FIN | ACK), ConnectionEvent::Late);
        assert_eq!(life.packet(1, SYN | ACK), ConnectionEvent::Late, "an answer begins nothing");
        assert_eq!(life.packet(1, SYN), ConnectionEvent::BeginsAnew);
    }

    #[test]
    fn a_reset_ends_whatever_there_is() {
        let mut life = Life::new(true);
        assert_eq!(life.packet(1, RST), ConnectionEvent::Ends);
        assert!(life.has_ended());
    }

    #[test]
    fn one_that_is_met_at_its_end_has_ended() {
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, FIN | ACK), ConnectionEvent::Ends, "said again, because nobody answered");
        assert_eq!(life.packet(1, ACK), ConnectionEvent::Late);
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, SYN), ConnectionEvent::GoesOn);
        assert_eq!(life.packet(0, FIN | ACK), ConnectionEvent::GoesOn, "its beginning was seen");
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, SYN | FIN), ConnectionEvent::GoesOn);
    }

    #[test]
    fn one_that_is_said_to_be_over_has_ended() {
        let mut life = Life::new(true);
        assert_eq!(life.packet(0, ACK), ConnectionEvent::GoesOn);
        life.end();
        assert!(life.has_ended());
        assert_eq!(life.packet(1, FIN | ACK), ConnectionEvent::Late);
        assert_eq!(life.packet(0, SYN), ConnectionEvent::BeginsAnew);
        let mut life = Life::new(false);
        life.end();
        assert!(life.has_ended() && life.packet(0, 0) == ConnectionEvent::GoesOn);
    }

    #[test]
    fn what_is_not_tcp_ends_by_silence_or_a_word_alone() {
        let mut life = Life::new(false);
        assert!((0..=255).all(|flags| life.packet(flags & 1, flags) == ConnectionEvent::GoesOn));
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
                    prop_assert_eq!(event, if anew { ConnectionEvent::BeginsAnew } else { ConnectionEvent::Late });
                } else {
                    fins[direction as usize] |= flags & FIN != 0;
                    ended = fins == [true; 2] || flags & RST != 0 || i == 0 && flags & (SYN | FIN) == FIN;
                    prop_assert_eq!(event, if ended { ConnectionEvent::Ends } else { ConnectionEvent::GoesOn });
                }
                prop_assert_eq!(life.has_ended(), ended);
                prop_assert!(!life.is_established() || fins == [false; 2]);
            }
        }
    }
}
