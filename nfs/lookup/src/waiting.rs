//! Packets that wait for the disk, in the order of arrival.
//!
//! Reads end in any order, but packets leave in the order of arrival, so that no flow is reordered:
//! a decided packet waits for those before it.

use std::collections::VecDeque;

/// Packets of type `P`, each with its result `A`, if known.
#[derive(Debug)]
pub struct Waiting<P, A> {
    packets: VecDeque<(P, Option<A>)>,
    /// Ticket of the first.
    first: u64,
}

impl<P, A> Waiting<P, A> {
    pub fn new() -> Self {
        Self { packets: VecDeque::new(), first: 0 }
    }

    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Adds a packet, and returns its ticket.
    pub fn push(&mut self, packet: P) -> u64 {
        self.packets.push_back((packet, None));
        self.first + self.packets.len() as u64 - 1
    }

    /// Sets the result of the packet with a ticket.
    pub fn settle(&mut self, ticket: u64, answer: A) {
        let place = ticket.checked_sub(self.first).and_then(|place| self.packets.get_mut(place as usize));
        if let Some((_, slot)) = place {
            *slot = Some(answer);
        }
    }

    /// Takes the first packet, if it is decided.
    pub fn next(&mut self) -> Option<(P, A)> {
        let (_, answer) = self.packets.front_mut()?;
        let answer = answer.take()?;
        self.first += 1;
        self.packets.pop_front().map(|(packet, _)| (packet, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_in_the_order_in_which_they_came() {
        let mut waiting = Waiting::new();
        let tickets: Vec<u64> = ["a", "b", "c"].map(|packet| waiting.push(packet)).into();
        waiting.settle(tickets[2], 3);
        waiting.settle(tickets[1], 2);
        assert_eq!(waiting.next(), None, "the first is not decided");
        waiting.settle(tickets[0], 1);
        assert_eq!([waiting.next(), waiting.next()], [Some(("a", 1)), Some(("b", 2))]);
        let late = waiting.push("d");
        waiting.settle(tickets[0], 9);
        waiting.settle(late, 4);
        assert_eq!([waiting.next(), waiting.next(), waiting.next()], [Some(("c", 3)), Some(("d", 4)), None]);
        assert_eq!(waiting.len(), 0);
    }
}
