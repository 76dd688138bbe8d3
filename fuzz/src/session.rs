//! An OpenFlow controller that sends whole messages of any kind in any order, over time. The
//! session, the switch and its table stay within their bounds.

use arbitrary::{Arbitrary, Unstructured};
use sluice_openflow::message::HEADER;
use sluice_openflow::switch::{SwitchPort, Task};

use crate::openflow::{ENTRIES, Nothing, pair};

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// A whole message; the length in its header is correct.
    Message { kind: u8, xid: u32, body: &'a [u8] },
    /// Bytes of a message, and how many arrive at once.
    Bytes { bytes: &'a [u8], at_once: u8 },
    /// Time goes by.
    Wait { ms: u16 },
    /// All that was queued has been sent.
    Sent,
    /// The ports change.
    Ports(u8),
}

/// Most bytes queued per byte that came: unread answers must not grow without bound.
const ANSWER: usize = 1 << 16;

/// Runs one input: steps of the controller and of time.
pub fn run(bytes: &[u8]) {
    let (mut session, mut switch) = pair();
    let mut input = Unstructured::new(bytes);
    let (mut now, mut events) = (0u64, Vec::new());
    while !input.is_empty() {
        let Ok(step) = Step::arbitrary(&mut input) else { return };
        let mut met = Ok(());
        match step {
            Step::Message { kind, xid, body } => {
                let body = &body[..body.len().min(usize::from(u16::MAX) - HEADER)];
                let mut message = vec![4, kind % 32];
                message.extend(((HEADER + body.len()) as u16).to_be_bytes());
                message.extend(xid.to_be_bytes());
                message.extend(body);
                met = session.receive(&message, now);
            }
            Step::Bytes { bytes, at_once } => {
                for part in bytes.chunks(usize::from(at_once).max(1)) {
                    met = met.and_then(|()| session.receive(part, now));
                }
            }
            Step::Wait { ms } => {
                now += u64::from(ms);
                met = session.tick(now);
                switch.expire(&Nothing, now, &mut events);
            }
            Step::Sent => session.out().clear(),
            Step::Ports(n) => {
                let port = || SwitchPort { desc: Default::default(), takes_packets: n & 16 != 0 };
                for message in switch.set_ports((0..n % 4).map(|_| port()).collect()) {
                    let xid = session.fresh_xid();
                    session.send(xid, &message);
                }
            }
        }
        while let Some((xid, message)) = session.next() {
            switch.handle(xid, message, &Nothing, now, &mut events);
        }
        for event in events.drain(..) {
            match event {
                Task::Send(xid, message) => session.send(xid, &message),
                Task::Refuse(xid, fault) => session.refuse_taken(xid, fault),
                _ => {}
            }
        }
        assert!(switch.table().len() <= ENTRIES as usize, "the table has {} entries", switch.table().len());
        assert!(switch.table().entries().count() <= ENTRIES as usize);
        assert!(session.backlog() <= (bytes.len() + 1) * ANSWER, "{} bytes wait to be sent", session.backlog());
        if met.is_err() {
            return;
        }
    }
}
