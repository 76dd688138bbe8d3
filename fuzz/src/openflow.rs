//! OpenFlow messages in parts: no panic, parsed messages survive a round trip, and the switch stays
//! within its bounds.

use sluice_openflow::message::{HEADER, Message};
use sluice_openflow::multipart::{Desc, PortStats};
use sluice_openflow::session::{Patience, Session};
use sluice_openflow::switch::{Plant, Switch, SwitchPort};
use sluice_openflow::table::{EntryCount, EntryCounts};

/// A switch that has carried nothing.
pub struct Nothing;

impl EntryCounts for Nothing {
    fn count(&self, _: u32) -> EntryCount {
        EntryCount::default()
    }
}

impl Plant for Nothing {
    fn port_stats(&self, _: u32) -> Option<PortStats> {
        None
    }

    fn table_counts(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Flow entries that the switch holds at most.
pub const ENTRIES: u32 = 8;

/// A switch with one port, and a session after the other side's hello.
pub fn pair() -> (Session, Switch) {
    let mut session = Session::new(Patience { echo_ms: 1000, dead_ms: 3000 }, 0);
    let mut switch = Switch::new(1, Desc::default(), ENTRIES, 4);
    switch.set_ports(vec![SwitchPort { desc: Default::default(), takes_packets: true }]);
    let _ = session.receive(&[4, 0, 0, 8, 0, 0, 0, 1], 0);
    (session, switch)
}

/// Runs one message, and the same bytes as a stream.
pub fn run(bytes: &[u8]) {
    if let Some((kind, body)) = bytes.split_first()
        && let Ok(message) = Message::decode(*kind, body)
    {
        let mut again = Vec::new();
        message.encode(1, &mut again);
        assert_eq!(Message::decode(message.kind(), &again[HEADER..]).expect("it was understood before"), message);
    }
    let (mut session, mut switch) = pair();
    let mut events = Vec::new();
    for (now, part) in bytes.chunks(97).enumerate() {
        let met = session.receive(part, now as u64);
        while let Some((xid, message)) = session.next() {
            switch.handle(xid, message, &Nothing, now as u64, &mut events);
            assert!(switch.table().len() <= ENTRIES as usize);
        }
        switch.expire(&Nothing, now as u64 * 1000, &mut events);
        events.clear();
        if met.is_err() {
            break;
        }
    }
}
