//! State of a connection, and its timeouts.
//!
//! A TCP connection begins with a SYN and has three timeouts: 30 seconds until it is answered, the
//! configured one while it is open, and 10 seconds after a FIN from both sides or an RST. UDP has
//! 30 seconds until it is answered, then the configured timeout; all else has the configured one.
//! Sequence numbers are ignored.

use sluice_nf::header::protocol;
use sluice_nf_parts::flow::FlowKey;

use crate::rules::Timeouts;

const SECOND: u64 = 1_000_000_000;
const OPENING_S: u64 = 30;
const CLOSING_S: u64 = 10;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A connection that a rule allowed.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// The rule that allowed it; None is the policy.
    pub rule: Option<u32>,
    /// The rule file that it was last checked against.
    pub generation: u32,
    /// Port where its first packet entered.
    pub ingress: u16,
    /// Whether the table's key is that of the answers.
    first_is_reversed: bool,
    answered: bool,
    reset: bool,
    /// FIN seen in the first packet's direction, and in the other one.
    fins: [bool; 2],
    last_ns: u64,
}

impl Connection {
    /// A connection whose first packet's key became the table's by [`FlowKey::canonical`].
    pub fn new(rule: Option<u32>, generation: u32, ingress: u16, first_is_reversed: bool, now_ns: u64) -> Self {
        Self { rule, generation, ingress, first_is_reversed, answered: false, reset: false, fins: [false; 2], last_ns: now_ns }
    }

    /// The key of its first packet, from the table's.
    pub fn first_key(&self, key: &FlowKey) -> FlowKey {
        if self.first_is_reversed { key.reversed() } else { *key }
    }

    #[inline]
    pub fn note(&mut self, is_reversed: bool, flags: u8, now_ns: u64) {
        let is_answer = is_reversed != self.first_is_reversed;
        self.last_ns = now_ns;
        self.answered |= is_answer;
        self.reset |= flags & RST != 0;
        self.fins[usize::from(is_answer)] |= flags & FIN != 0;
    }

    /// Whether it is closed, so that a new connection may use the same ports.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.reset || self.fins == [true; 2]
    }

    /// Whether its timeout has passed.
    #[inline]
    pub fn is_old(&self, number: u8, timeouts: &Timeouts, now_ns: u64) -> bool {
        let seconds = match number {
            protocol::TCP if self.is_over() => CLOSING_S,
            protocol::TCP | protocol::UDP if !self.answered => OPENING_S,
            protocol::TCP => timeouts.tcp_s,
            protocol::UDP => timeouts.udp_s,
            _ => timeouts.other_s,
        };
        now_ns.saturating_sub(self.last_ns) >= seconds.saturating_mul(SECOND)
    }
}

/// Whether a TCP packet with these flags begins a connection.
#[inline]
pub fn begins(flags: u8) -> bool {
    flags & (SYN | ACK | RST | FIN) == SYN
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts { tcp_s: 1000, udp_s: 100, other_s: 5 };

    /// Seconds that a connection lives after these packets: whether each is an answer, and its
    /// flags.
    fn lives(number: u8, packets: &[(bool, u8)]) -> u64 {
        let mut connection = Connection::new(None, 0, 0, true, 0);
        for (is_answer, flags) in packets {
            connection.note(!is_answer, *flags, 0);
        }
        (1..=1000).find(|s| connection.is_old(number, &TIMEOUTS, s * SECOND)).unwrap()
    }

    #[test]
    fn a_tcp_connection_opens_and_closes() {
        let open = [(false, SYN), (true, SYN | ACK), (false, ACK)];
        let with = |more: &[(bool, u8)]| lives(6, &[&open[..], more].concat());
        assert_eq!(lives(6, &[(false, SYN)]), 30);
        assert_eq!(with(&[]), 1000);
        assert_eq!(with(&[(false, FIN | ACK), (false, FIN | ACK)]), 1000, "half closed");
        assert_eq!(with(&[(false, FIN | ACK), (true, FIN | ACK)]), 10);
        assert_eq!(with(&[(true, RST)]), 10);
    }

    #[test]
    fn others_live_by_their_timeouts() {
        assert_eq!(lives(17, &[(false, 0)]), 30);
        assert_eq!(lives(17, &[(false, 0), (true, 0)]), 100);
        assert_eq!(lives(1, &[(false, 0)]), 5);
    }

    #[test]
    fn only_a_bare_syn_begins_a_connection() {
        assert!(begins(SYN));
        assert!(begins(SYN | 0x40 | 0x80), "with ECN bits");
        for flags in [0, ACK, SYN | ACK, SYN | FIN, SYN | RST, RST, FIN | ACK] {
            assert!(!begins(flags), "{flags:#x}");
        }
    }
}
