//! Packets that wait for an idle member, by flow.
//!
//! # Approach
//! Each service has a queue of flows, oldest first, each with its packets. An idle member goes to
//! the first flow, with all of its packets. So one look costs a decision for each packet that
//! leaves and one for each queue, however many wait.
//!
//! A full queue drops its oldest packet, whose wait has been the longest at the other end, too. But
//! the end of a flow is never dropped while its beginning waits: a member with the rest of a flow
//! would be held until a timeout.

use std::collections::{HashMap, VecDeque};

use slab::Slab;

use sluice_dataplane::classify::key::FlowKey;
use sluice_dataplane::frame::Packet;
use sluice_dataplane::steer::Wanted;

/// Longest wait of a packet, in nanoseconds.
pub(super) const LONGEST_WAIT_NS: u64 = 5_000_000_000;
const NONE: usize = usize::MAX;

#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    pub packet: Packet,
    pub key: FlowKey,
    /// Its descriptor's flags.
    pub flags: u8,
    pub tcp: u8,
    pub wanted: Wanted,
    /// Its arrival, in nanoseconds.
    pub since_ns: u64,
}

impl Waiting {
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= LONGEST_WAIT_NS
    }
}

#[derive(Debug)]
struct Node {
    waiting: Waiting,
    next: usize,
}

#[derive(Debug)]
struct Flow {
    connection: FlowKey,
    first: usize,
    last: usize,
}

#[derive(Debug, Default)]
struct Line {
    flows: VecDeque<usize>,
    packets: u32,
    room: usize,
    /// Flows not yet examined in this look.
    unseen: usize,
}

/// The queues of one thread.
#[derive(Debug, Default)]
pub struct Lines {
    lines: Vec<Line>,
    flows: Slab<Flow>,
    nodes: Slab<Node>,
    by_connection: HashMap<FlowKey, usize>,
}

impl Lines {
    /// Reserves space for packets of a service, so that arrivals allocate nothing.
    pub fn reserve(&mut self, service: u16, packets: usize) {
        let at = service as usize;
        if self.lines.len() <= at {
            self.lines.resize_with(at + 1, Line::default);
        }
        let line = &mut self.lines[at];
        line.room = line.room.max(packets);
        line.flows.reserve(packets);
        // Of all queues, since free elements must suffice beyond those in use.
        let room = self.lines.iter().map(|line| line.room).sum::<usize>();
        self.flows.reserve(room);
        self.nodes.reserve(room);
        self.by_connection.reserve(room);
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn flows_of(&self, service: u16) -> usize {
        self.lines.get(service as usize).map_or(0, |line| line.flows.len())
    }

    #[inline]
    pub fn holds(&self, connection: &FlowKey) -> bool {
        !self.is_empty() && self.by_connection.contains_key(connection)
    }

    /// Whether the first packet of a service's queue is the last waiting one of its flow.
    pub fn is_last(&self, service: u16) -> bool {
        let flow = self.lines.get(service as usize).and_then(|line| self.flows.get(*line.flows.front()?));
        flow.is_none_or(|flow| flow.first == flow.last)
    }

    /// Waiting packets of a service.
    #[inline]
    pub fn of(&self, service: u16) -> u32 {
        self.lines.get(service as usize).map_or(0, |line| line.packets)
    }

    /// Enqueues a packet behind those of its connection, or else at the end of its service's queue.
    /// The queue holds `most` packets: returns the one that is dropped, which may be this one.
    pub fn push(&mut self, connection: FlowKey, waiting: Waiting, most: u32) -> Option<Waiting> {
        if most == 0 {
            return Some(waiting);
        }
        let known = self.by_connection.get(&connection).copied();
        let service = known.map_or(waiting.wanted.service, |flow| self.nodes[self.flows[flow].first].waiting.wanted.service);
        let waiting = Waiting { wanted: Wanted { service, ..waiting.wanted }, ..waiting };
        if self.lines.len() <= service as usize {
            self.reserve(service, 1);
        }
        let gone = if self.of(service) >= most { self.pop(service) } else { None };
        let node = self.nodes.insert(Node { waiting, next: NONE });
        // The dropped packet may have been all of its flow.
        match self.by_connection.get(&connection).copied() {
            Some(flow) => {
                let last = std::mem::replace(&mut self.flows[flow].last, node);
                self.nodes[last].next = node;
            }
            None => {
                let flow = self.flows.insert(Flow { connection, first: node, last: node });
                self.by_connection.insert(connection, flow);
                self.lines[service as usize].flows.push_back(flow);
            }
        }
        self.lines[service as usize].packets += 1;
        gone
    }

    /// Begins a look, in which all queues may be served.
    pub fn look(&mut self) {
        self.lines.iter_mut().for_each(|line| line.unseen = line.flows.len());
    }

    /// The first packet of a queue that is still to be served in this look.
    pub fn first(&self) -> Option<Waiting> {
        let line = self.lines.iter().find(|line| line.unseen > 0 && line.packets > 0)?;
        let flow = self.flows.get(*line.flows.front()?)?;
        Some(self.nodes[flow.first].waiting)
    }

    /// Dequeues the first packet of a service's queue.
    pub fn pop(&mut self, service: u16) -> Option<Waiting> {
        let line = self.lines.get_mut(service as usize)?;
        let flow = *line.flows.front()?;
        let Node { waiting, next } = self.nodes.remove(self.flows[flow].first);
        line.packets -= 1;
        if next == NONE {
            line.flows.pop_front();
            line.unseen = line.unseen.saturating_sub(1);
            let Flow { connection, .. } = self.flows.remove(flow);
            self.by_connection.remove(&connection);
        } else {
            self.flows[flow].first = next;
        }
        Some(waiting)
    }

    /// Keeps the first flow of a service's queue waiting, for a member of `lacking`.
    /// If that is another service, the flow moves to the end of its queue, which holds `most`
    /// packets. The queue in which it then waits is skipped in this look, since flows behind lack
    /// the same. With `alone` only this flow is skipped, and goes behind the others.
    pub fn pass(&mut self, service: u16, lacking: u16, most: u32, alone: bool) {
        let moves = service != lacking && self.move_first(service, lacking, most).is_some();
        let Some(line) = self.lines.get_mut(if moves { lacking } else { service } as usize) else { return };
        match (alone, moves) {
            (false, _) => line.unseen = 0,
            (true, true) => {}
            (true, false) => {
                line.flows.rotate_left(1.min(line.flows.len()));
                line.unseen = line.unseen.saturating_sub(1);
            }
        }
    }

    fn move_first(&mut self, from: u16, to: u16, most: u32) -> Option<()> {
        let flow = *self.lines.get(from as usize)?.flows.front()?;
        let next = |at: &usize| self.nodes.get(*at).map(|node| node.next).filter(|next| *next != NONE);
        let nodes: Vec<usize> = std::iter::successors(Some(self.flows[flow].first), next).collect();
        let moved = nodes.len() as u32;
        if self.lines.len() <= to as usize || self.of(to) + moved > most {
            return None;
        }
        nodes.into_iter().for_each(|node| self.nodes[node].waiting.wanted.service = to);
        let line = &mut self.lines[from as usize];
        line.packets -= moved;
        line.flows.pop_front();
        line.unseen = line.unseen.saturating_sub(1);
        let line = &mut self.lines[to as usize];
        line.packets += moved;
        line.flows.push_back(flow);
        Some(())
    }

    pub(crate) fn pop_any(&mut self) -> Option<Waiting> {
        let service = self.lines.iter().position(|line| line.packets > 0)?;
        self.pop(service as u16)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(flow: u8) -> FlowKey {
        crate::tests::key(flow.into(), false).connection().0
    }

    fn packet(frame: u32) -> Packet {
        Packet { frame, ..Packet::default() }
    }

    fn waiting(flow: u8, service: u16, frame: u32) -> Waiting {
        let wanted = Wanted { service, ..Wanted::default() };
        Waiting { packet: packet(frame), key: key(flow), flags: 0, tcp: 0, wanted, since_ns: 0 }
    }

    fn frames(lines: &mut Lines, service: u16) -> Vec<u32> {
        std::iter::from_fn(|| lines.pop(service)).map(|w| w.packet.frame).collect()
    }

    #[test]
    fn packets_of_a_flow_go_together_and_flows_in_the_order_of_their_first() {
        let mut lines = Lines::default();
        for (flow, frame) in [(1, 0), (2, 1), (1, 2), (3, 3), (2, 4)] {
            assert!(lines.push(key(flow), waiting(flow, 0, frame), 8).is_none());
        }
        assert_eq!((lines.of(0), lines.len(), lines.of(7)), (5, 5, 0));
        assert_eq!(frames(&mut lines, 0), [0, 2, 1, 4, 3]);
        assert!(lines.is_empty() && lines.pop(0).is_none() && lines.by_connection.is_empty() && lines.flows.is_empty());
    }

    #[test]
    fn a_full_line_lets_its_oldest_go() {
        let mut lines = Lines::default();
        let mut push = |flow, frame| lines.push(key(flow), waiting(flow, 0, frame), 3).map(|w| w.packet.frame);
        assert_eq!([push(1, 0), push(1, 1), push(2, 2)], [None; 3]);
        assert_eq!([push(1, 3), push(3, 4)], [Some(0), Some(1)], "the end of a flow stays behind what is left of it");
        assert_eq!(frames(&mut lines, 0), [3, 2, 4]);
        // A single flow makes space for itself.
        assert!(lines.push(key(1), waiting(1, 0, 5), 1).is_none());
        assert_eq!(lines.push(key(1), waiting(1, 0, 6), 1).unwrap().packet.frame, 5);
        assert_eq!(lines.push(key(2), waiting(2, 0, 7), 0).unwrap().packet.frame, 7, "no room at all");
        assert_eq!(frames(&mut lines, 0), [6]);
    }

    #[test]
    fn a_flow_that_lacks_another_service_waits_there_and_holds_up_nobody() {
        let mut lines = Lines::default();
        lines.reserve(3, 8);
        for (flow, frame) in [(1, 0), (2, 1), (1, 2)] {
            lines.push(key(flow), waiting(flow, 0, frame), 8);
        }
        lines.look();
        assert_eq!((lines.first().unwrap().packet.frame, lines.is_last(0)), (0, false));
        assert!(lines.holds(&key(1)) && !lines.holds(&key(3)));
        lines.pass(0, 3, 2, false);
        assert_eq!((lines.of(0), lines.of(3), lines.flows_of(3)), (1, 2, 1));
        assert_eq!((lines.first().unwrap().packet.frame, lines.is_last(0)), (1, true));
        // There is no space for another flow.
        lines.pass(0, 3, 2, false);
        assert_eq!((lines.of(0), lines.of(3)), (1, 2));
        assert!(lines.first().is_none(), "until the next look");
        // Further packets of it go where it waits.
        lines.push(key(1), waiting(1, 0, 4), 8);
        lines.look();
        assert_eq!(lines.first().unwrap().packet.frame, 1);
        assert_eq!(frames(&mut lines, 3), [0, 2, 4]);
        assert_eq!(lines.pop_any().unwrap().packet.frame, 1);
        assert!(lines.pop_any().is_none());
    }

    #[test]
    fn a_flow_that_waits_alone_lets_those_behind_it_go() {
        let mut lines = Lines::default();
        for (flow, frame) in [(1, 0), (2, 1), (1, 2), (3, 3)] {
            lines.push(key(flow), waiting(flow, 0, frame), 8);
        }
        lines.look();
        lines.pass(0, 0, 8, true);
        assert_eq!(lines.pop(0).unwrap().packet.frame, 1, "the second flow may go");
        assert_eq!(lines.first().unwrap().packet.frame, 3);
        lines.pass(0, 0, 8, true);
        assert!(lines.first().is_none(), "all were looked at");
        lines.look();
        assert_eq!(frames(&mut lines, 0), [0, 2, 3]);
    }

    proptest! {
        /// Compares with a linear list.
        #[test]
        fn it_is_a_list_of_flows(steps in prop::collection::vec((0u8..4, 0u8..6), 1..200)) {
            let mut lines = Lines::default();
            let mut list: Vec<(u8, Vec<u32>)> = Vec::new();
            for (frame, (what, flow)) in (0u32..).zip(steps) {
                let pop = |list: &mut Vec<(u8, Vec<u32>)>| {
                    let frame = list.first_mut().map(|(_, frames)| frames.remove(0));
                    list.retain(|(_, frames)| !frames.is_empty());
                    frame
                };
                if what == 0 {
                    prop_assert_eq!(lines.pop(0).map(|w| w.packet.frame), pop(&mut list));
                    continue;
                }
                let full = list.iter().map(|(_, frames)| frames.len()).sum::<usize>() >= 5;
                let gone = if full { pop(&mut list) } else { None };
                match list.iter_mut().find(|(known, _)| *known == flow) {
                    Some((_, frames)) => frames.push(frame),
                    None => list.push((flow, vec![frame])),
                }
                prop_assert_eq!(lines.push(key(flow), waiting(flow, 0, frame), 5).map(|w| w.packet.frame), gone);
                prop_assert_eq!(lines.len(), list.iter().map(|(_, frames)| frames.len()).sum::<usize>());
            }
        }
    }
}
