//! Packets that wait for an idle member, by flow.
//!
//! # Approach
//! Each service has a line of flows, the oldest first, and packets of one flow are behind each other: when a member is idle, the first flow
//! is given it, and all of its packets go. So one look costs a decision for each packet that goes, and one more for each line, however many
//! wait.
//!
//! A full line lets its oldest packet go instead of refusing the newest. Who has waited longest is given up first at the other end too; and the end
//! of a flow is never dropped while its beginning waits: a member that is given what is left of a flow would hold it until it times out.

use std::collections::{HashMap, VecDeque};

use slab::Slab;

use crate::classify::key::FlowKey;
use crate::frame::Packet;

/// No packet.
const NONE: usize = usize::MAX;

/// A packet that waits for an idle member.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The packet.
    pub packet: Packet,
    /// Its key.
    pub key: FlowKey,
    /// The descriptor's flags for it.
    pub flags: u8,
    /// Its TCP flags.
    pub tcp: u8,
    /// Number of the service that it waits for.
    pub service: u16,
    /// When it came, in nanoseconds.
    pub since_ns: u64,
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
    /// Its first flow found no member in this look.
    passed: bool,
}

/// The lines of one thread.
#[derive(Debug, Default)]
pub struct Lines {
    /// By number of the service.
    lines: Vec<Line>,
    flows: Slab<Flow>,
    nodes: Slab<Node>,
    by_connection: HashMap<FlowKey, usize>,
}

impl Lines {
    /// Makes room for so many packets of a service, so that none is made when they come.
    pub fn reserve(&mut self, service: u16, packets: usize) {
        let at = service as usize;
        if self.lines.len() <= at {
            self.lines.resize_with(at + 1, Line::default);
        }
        self.lines[at].flows.reserve(packets);
        let most = self.len() + packets;
        self.flows.reserve(most);
        self.nodes.reserve(most);
        self.by_connection.reserve(most);
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Packets that wait for a service.
    #[inline]
    pub fn of(&self, service: u16) -> u32 {
        self.lines.get(service as usize).map_or(0, |line| line.packets)
    }

    /// Has a packet of a connection wait: behind those of it that do, if any, else at the end of its service's line. There is room for `most`
    /// in the line: gives the packet back that has to go, which may be this one.
    pub fn push(&mut self, connection: FlowKey, waiting: Waiting, most: u32) -> Option<Waiting> {
        if most == 0 {
            return Some(waiting);
        }
        let known = self.by_connection.get(&connection).copied();
        let service = known.map_or(waiting.service, |flow| self.nodes[self.flows[flow].first].waiting.service);
        let waiting = Waiting { service, ..waiting };
        if self.lines.len() <= service as usize {
            self.reserve(service, 1);
        }
        let gone = if self.of(service) >= most { self.pop(service) } else { None };
        let node = self.nodes.insert(Node { waiting, next: NONE });
        // What has gone may have been all of it.
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

    /// A look begins: all lines may be served.
    pub fn look(&mut self) {
        self.lines.iter_mut().for_each(|line| line.passed = false);
    }

    /// The first packet of a line that was not passed over in this look.
    pub fn first(&self) -> Option<Waiting> {
        let line = self.lines.iter().find(|line| !line.passed && line.packets > 0)?;
        let flow = self.flows.get(*line.flows.front()?)?;
        Some(self.nodes[flow.first].waiting)
    }

    /// The first packet of a service's line leaves it.
    pub fn pop(&mut self, service: u16) -> Option<Waiting> {
        let line = self.lines.get_mut(service as usize)?;
        let flow = *line.flows.front()?;
        let Node { waiting, next } = self.nodes.remove(self.flows[flow].first);
        line.packets -= 1;
        if next == NONE {
            line.flows.pop_front();
            let Flow { connection, .. } = self.flows.remove(flow);
            self.by_connection.remove(&connection);
        } else {
            self.flows[flow].first = next;
        }
        Some(waiting)
    }

    /// The first flow of a service's line waits on, for `lacking`: in that service's line, at the end, if it is another. The line that it was in
    /// is passed over until the next look if it stays there.
    pub fn pass(&mut self, service: u16, lacking: u16) {
        let Some(line) = self.lines.get_mut(service as usize) else { return };
        if service == lacking {
            line.passed = true;
            return;
        }
        let Some(flow) = line.flows.pop_front() else { return };
        if self.lines.len() <= lacking as usize {
            self.reserve(lacking, 1);
        }
        let (mut at, mut moved) = (self.flows[flow].first, 0);
        while let Some(node) = self.nodes.get_mut(at) {
            node.waiting.service = lacking;
            (at, moved) = (node.next, moved + 1);
        }
        self.lines[service as usize].packets -= moved;
        let to = &mut self.lines[lacking as usize];
        to.packets += moved;
        to.flows.push_back(flow);
        // Whoever waits there has been looked at, or is before it.
        to.passed = true;
    }

    /// Any packet leaves.
    pub fn pop_any(&mut self) -> Option<Waiting> {
        let service = self.lines.iter().position(|line| line.packets > 0)?;
        self.pop(service as u16)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(flow: u8) -> FlowKey {
        crate::director::tests::key(flow.into(), false).connection().0
    }

    fn packet(frame: u32) -> Packet {
        Packet { frame, ..Packet::default() }
    }

    fn waiting(flow: u8, service: u16, frame: u32) -> Waiting {
        Waiting { packet: packet(frame), key: key(flow), flags: 0, tcp: 0, service, since_ns: 0 }
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
        // One that is alone makes room for itself.
        assert!(lines.push(key(1), waiting(1, 0, 5), 1).is_none());
        assert_eq!(lines.push(key(1), waiting(1, 0, 6), 1).unwrap().packet.frame, 5);
        assert_eq!(lines.push(key(2), waiting(2, 0, 7), 0).unwrap().packet.frame, 7, "no room at all");
        assert_eq!(frames(&mut lines, 0), [6]);
    }

    #[test]
    fn a_flow_that_lacks_another_service_waits_there_and_holds_up_nobody() {
        let mut lines = Lines::default();
        for (flow, frame) in [(1, 0), (2, 1), (1, 2)] {
            lines.push(key(flow), waiting(flow, 0, frame), 8);
        }
        lines.look();
        assert_eq!(lines.first().unwrap().packet.frame, 0);
        lines.pass(0, 3);
        assert_eq!((lines.of(0), lines.of(3)), (1, 2));
        assert_eq!(lines.first().unwrap().packet.frame, 1);
        lines.pass(0, 0);
        assert!(lines.first().is_none(), "until the next look");
        // What comes of it goes where it waits.
        lines.push(key(1), waiting(1, 0, 4), 8);
        lines.look();
        assert_eq!(lines.first().unwrap().packet.frame, 1);
        assert_eq!(frames(&mut lines, 3), [0, 2, 4]);
        assert_eq!(lines.pop_any().unwrap().packet.frame, 1);
        assert!(lines.pop_any().is_none());
    }

    proptest! {
        /// Against a list that is searched.
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
