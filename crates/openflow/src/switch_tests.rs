use super::*;
use crate::instruction::Instruction;
use crate::message::{FlowMod, Reason, flow_flag};
use crate::multipart::FlowRequest;
use crate::oxm::{FieldId, Match};
use crate::table::EntryCount;

struct Two;

impl EntryCounts for Two {
    fn count(&self, _: u32) -> EntryCount {
        EntryCount { packets: 2, bytes: 120, seen_ms: 0 }
    }
}

impl Plant for Two {
    fn port_stats(&self, number: u32) -> Option<PortStats> {
        (number < 1000).then_some(PortStats {
            number,
            rx_packets: 1,
            tx_packets: 2,
            rx_bytes: 3,
            tx_bytes: 4,
            rx_dropped: 5,
            tx_dropped: 6,
            duration_s: 7,
        })
    }

    fn table_counts(&self) -> (u64, u64) {
        (10, 4)
    }
}

fn a_port(number: u32, takes_packets: bool) -> SwitchPort {
    SwitchPort { desc: PortDesc { number, name: format!("p{number}"), ..Default::default() }, takes_packets }
}

fn switch() -> Switch {
    let mut switch = Switch::new(0x42, Desc::default(), 16, 8);
    switch.set_ports(vec![a_port(1, false), a_port(100, true)]);
    switch
}

fn asked(switch: &mut Switch, message: Message) -> Vec<Task> {
    let mut events = Vec::new();
    switch.handle(5, message, &Two, 0, &mut events);
    events
}

fn add(port: u32) -> FlowMod {
    let instructions = vec![Instruction::Apply(vec![Output { port, max_len: 0 }])];
    FlowMod { instructions, ..FlowMod::new(FlowModCommand::Add, Match::exact(&[(FieldId::InPort, 1)]).unwrap()) }
}

#[test]
fn says_what_it_is_and_what_it_has() {
    let mut switch = switch();
    let features = Features { datapath_id: 0x42, buffers: 8, tables: 1, capabilities: 7 };
    assert_eq!(asked(&mut switch, Message::FeaturesRequest), [Task::Send(5, Message::FeaturesReply(features))]);
    let set = SwitchConfig { flags: 0, miss_send_len: 77 };
    assert_eq!(asked(&mut switch, Message::SetConfig(set)), []);
    assert_eq!(asked(&mut switch, Message::GetConfigRequest), [Task::Send(5, Message::GetConfigReply(set))]);
    let reassemble = SwitchConfig { flags: 2, miss_send_len: 77 };
    assert_eq!(asked(&mut switch, Message::SetConfig(reassemble)), [Task::Refuse(5, Fault::CONFIG_FLAGS)]);
    assert_eq!(asked(&mut switch, Message::BarrierRequest), [Task::Barrier(5)]);
    assert_eq!(asked(&mut switch, Message::BarrierReply), [Task::Refuse(5, Fault::BAD_TYPE)]);
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::PortDescs));
    assert!(matches!(&sent[..], [Task::Send(5, Message::MultipartReply(Reply::PortDescs(all), false))] if all.len() == 2));
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::PortStats(port::ANY)));
    assert!(matches!(&sent[..], [Task::Send(5, Message::MultipartReply(Reply::PortStats(all), false))] if all.len() == 2));
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::PortStats(3)));
    assert_eq!(sent, [Task::Refuse(5, Fault::BAD_PORT)]);
}

#[test]
fn entries_lead_to_ports_that_take_packets() {
    let mut switch = switch();
    assert_eq!(asked(&mut switch, Message::FlowMod(add(100))), [Task::TableChanged]);
    for reserved in [port::CONTROLLER, port::NORMAL] {
        assert_eq!(asked(&mut switch, Message::FlowMod(add(reserved))), [Task::TableChanged]);
    }
    for wrong in [1, 7, port::IN_PORT, port::TABLE, port::ANY, 0xffff_fffb, 0xffff_fffc] {
        assert_eq!(asked(&mut switch, Message::FlowMod(add(wrong))), [Task::Refuse(5, Fault::OUT_PORT)], "{wrong:#x}");
    }
    let held = FlowMod { buffer_id: 3, ..add(100) };
    let output = Some(Output { port: port::TABLE, max_len: 0 });
    let events = asked(&mut switch, Message::FlowMod(held));
    assert_eq!(events, [Task::TableChanged, Task::Held { xid: 5, buffer_id: 3, output }]);
    assert_eq!(switch.changes(), 4);
}

#[test]
fn statistics_of_entries() {
    let mut switch = switch();
    asked(&mut switch, Message::FlowMod(add(100)));
    let other = FlowMod { priority: 3, ..add(port::CONTROLLER) };
    asked(&mut switch, Message::FlowMod(other));
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::Flows(FlowRequest::all())));
    assert!(matches!(&sent[..], [Task::Send(5, Message::MultipartReply(Reply::Flows(all), false))] if all.len() == 2));
    let some = FlowRequest { out_port: 100, ..FlowRequest::all() };
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::Aggregate(some)));
    let sum = Reply::Aggregate { packets: 0, bytes: 0, flows: 1 };
    assert_eq!(sent, [Task::Send(5, Message::MultipartReply(sum, false))]);
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::Tables));
    let tables = vec![TableStats { table_id: 0, active: 2, lookups: 10, matched: 4 }];
    assert_eq!(sent, [Task::Send(5, Message::MultipartReply(Reply::Tables(tables), false))]);
    let nowhere = FlowRequest { table_id: 3, ..FlowRequest::all() };
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::Flows(nowhere)));
    assert_eq!(sent, [Task::Refuse(5, Fault::BAD_TABLE_ID)]);
}

#[test]
fn many_entries_come_in_several_messages() {
    let mut switch = Switch::new(1, Desc::default(), 2000, 0);
    switch.set_ports(vec![a_port(100, true)]);
    for n in 0..2000u128 {
        let fields = Match::exact(&[(FieldId::InPort, n)]).unwrap();
        asked(&mut switch, Message::FlowMod(FlowMod { fields, ..add(100) }));
    }
    let sent = asked(&mut switch, Message::MultipartRequest(MultipartRequest::Flows(FlowRequest::all())));
    assert!(sent.len() > 2);
    let mut entries = 0;
    for (i, event) in sent.iter().enumerate() {
        let Task::Send(5, message @ Message::MultipartReply(Reply::Flows(part), more)) = event else { panic!("{event:?}") };
        assert_eq!(*more, i + 1 < sent.len());
        entries += part.len();
        let mut bytes = Vec::new();
        message.encode(5, &mut bytes);
        assert_eq!(Message::decode(19, &bytes[8..]).as_ref(), Ok(message), "nothing was cut");
    }
    assert_eq!(entries, 2000);
}

#[test]
fn a_slave_only_looks() {
    let mut switch = switch();
    let role = |switch: &mut Switch, role, generation| asked(switch, Message::RoleRequest(role, generation));
    let reply = |role, generation| [Task::Send(5, Message::RoleReply(role, generation))];
    assert_eq!(role(&mut switch, Role::NoChange, 0), reply(Role::Equal, u64::MAX));
    assert_eq!(role(&mut switch, Role::Slave, 7), reply(Role::Slave, 7));
    assert_eq!(asked(&mut switch, Message::FlowMod(add(100))), [Task::Refuse(5, Fault::IS_SLAVE)]);
    assert!(!switch.wants_packets(Why::NoMatch));
    assert_eq!(role(&mut switch, Role::Master, 6), [Task::Refuse(5, Fault::ROLE_STALE)]);
    assert_eq!(role(&mut switch, Role::Master, 8), reply(Role::Master, 8));
    assert!(switch.wants_packets(Why::NoMatch));
    role(&mut switch, Role::Slave, 9);
    switch.greet();
    assert_eq!(asked(&mut switch, Message::FlowMod(add(100))), [Task::TableChanged], "another connection begins anew");
    assert_eq!(role(&mut switch, Role::Master, 8), [Task::Refuse(5, Fault::ROLE_STALE)], "but for the generation");
}

#[test]
fn news_go_to_those_that_want_them() {
    let mut switch = switch();
    let sent = switch.set_ports(vec![a_port(1, false), a_port(101, true)]);
    let changes: Vec<_> = sent
        .iter()
        .map(|m| match m {
            Message::PortStatus(change, desc) => (*change, desc.number),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(changes, [(PortChange::Delete, 100), (PortChange::Add, 101)]);
    asked(&mut switch, Message::FlowMod(FlowMod { flags: flow_flag::SEND_FLOW_REMOVED, hard_timeout: 1, ..add(101) }));
    let mut events = Vec::new();
    switch.expire(&Two, 1000, &mut events);
    assert!(matches!(&events[..], [Task::TableChanged, Task::Send(0, Message::FlowRemoved(r))] if r.reason == Reason::Hard));
    let none = Asyncs { packet_in: [0, 0], port_status: [0, 0], flow_removed: [0, 0] };
    asked(&mut switch, Message::SetAsync(none));
    assert_eq!(switch.set_ports(vec![]), []);
    asked(&mut switch, Message::GetAsyncRequest);
    assert!(!switch.wants_packets(Why::Action));
}

#[test]
fn packets_of_the_controllers() {
    let mut switch = switch();
    let out = |buffer_id, ports: &[u32], data: &[u8]| {
        let actions = ports.iter().map(|port| Output { port: *port, max_len: 0 }).collect();
        Message::PacketOut(PacketOut { buffer_id, in_port: 1, actions, data: data.to_vec() })
    };
    let output = |port| Some(Output { port, max_len: 0 });
    let sent = asked(&mut switch, out(NO_BUFFER, &[100], b"packet"));
    assert_eq!(sent, [Task::Packet { xid: 5, in_port: 1, output: output(100), data: b"packet".to_vec() }]);
    let held = asked(&mut switch, out(4, &[port::TABLE], b""));
    assert_eq!(held, [Task::Held { xid: 5, buffer_id: 4, output: output(port::TABLE) }]);
    assert_eq!(asked(&mut switch, out(4, &[], b"")), [Task::Held { xid: 5, buffer_id: 4, output: None }]);
    for (wrong, fault) in [
        (out(NO_BUFFER, &[100], b""), Fault::BAD_PACKET),
        (out(NO_BUFFER, &[1], b"x"), Fault::OUT_PORT),
        (out(NO_BUFFER, &[port::CONTROLLER], b"x"), Fault::OUT_PORT),
        (out(NO_BUFFER, &[100, 100], b"x"), Fault::TOO_MANY_ACTIONS),
    ] {
        assert_eq!(asked(&mut switch, wrong), [Task::Refuse(5, fault)]);
    }
}
