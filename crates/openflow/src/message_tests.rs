use proptest::prelude::*;

use super::*;
use crate::multipart::{Desc, FlowRequest, FlowStats, PortStats, TableStats};
use crate::oxm::{Field, FieldId};

/// Consistent matches, with the prerequisites of each field.
fn fields() -> impl Strategy<Value = Match> {
    let one = (0..FieldId::ALL.len(), any::<u128>(), any::<u128>(), any::<bool>());
    (prop::collection::vec(one, 0..6), prop::sample::select(vec![0x800u128, 0x86dd, 0x806, 0x88cc]), any::<u8>()).prop_map(
        |(some, ethertype, protocol)| {
            let exact = |id: FieldId, value| Field { id, value, mask: id.all() };
            let base = [exact(FieldId::EthType, ethertype), exact(FieldId::IpProto, protocol.into())];
            let ip = ethertype == 0x800 || ethertype == 0x86dd;
            let mut good: Vec<Field> = base.into_iter().take(1 + usize::from(ip)).collect();
            for (at, value, mask, exactly) in some {
                let id = FieldId::ALL[at];
                let mask = if exactly || !id.is_maskable() { id.all() } else { mask & id.all() };
                let mut more = good.clone();
                more.push(Field { id, value: value & mask, mask });
                if Match::new(more.clone()).is_ok() {
                    good = more;
                }
            }
            Match::new(good).unwrap()
        },
    )
}

fn outputs() -> impl Strategy<Value = Vec<Output>> {
    prop::collection::vec((any::<u32>(), any::<u16>()).prop_map(|(port, max_len)| Output { port, max_len }), 0..3)
}

fn instructions() -> impl Strategy<Value = Vec<Instruction>> {
    (outputs(), outputs(), 0..4u8).prop_map(|(a, b, which)| match which {
        0 => vec![],
        1 => vec![Instruction::Apply(a)],
        2 => vec![Instruction::Write(b), Instruction::Clear],
        _ => vec![Instruction::Apply(a), Instruction::Write(b)],
    })
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn desc() -> impl Strategy<Value = PortDesc> {
    (any::<u32>(), any::<[u8; 6]>(), "[a-z0-9.]{0,15}", any::<u32>(), any::<u32>())
        .prop_map(|(number, address, name, config, state)| PortDesc { number, address, name, config, state })
}

fn role() -> impl Strategy<Value = Role> {
    prop::sample::select(vec![Role::NoChange, Role::Equal, Role::Master, Role::Slave])
}

fn flow_mod() -> impl Strategy<Value = FlowMod> {
    let commands = [
        FlowModCommand::Add,
        FlowModCommand::Modify,
        FlowModCommand::ModifyStrict,
        FlowModCommand::Delete,
        FlowModCommand::DeleteStrict,
    ];
    let numbers = (any::<[u64; 2]>(), any::<u8>(), any::<[u16; 4]>(), any::<[u32; 3]>());
    (prop::sample::select(commands.to_vec()), numbers, fields(), instructions()).prop_map(
        |(command, ([cookie, cookie_mask], table_id, [idle_timeout, hard_timeout, priority, flags], b), fields, instructions)| {
            FlowMod {
                cookie,
                cookie_mask,
                table_id,
                command,
                idle_timeout,
                hard_timeout,
                priority,
                buffer_id: b[0],
                out_port: b[1],
                out_group: b[2],
                flags,
                fields,
                instructions,
            }
        },
    )
}

fn flow_request() -> impl Strategy<Value = FlowRequest> {
    (any::<u8>(), any::<[u32; 2]>(), any::<[u64; 2]>(), fields()).prop_map(
        |(table_id, [out_port, out_group], [cookie, cookie_mask], fields)| FlowRequest {
            table_id,
            out_port,
            out_group,
            cookie,
            cookie_mask,
            fields,
        },
    )
}

fn flow_stats() -> impl Strategy<Value = FlowStats> {
    (any::<u8>(), any::<[u32; 2]>(), any::<[u16; 4]>(), any::<[u64; 3]>(), fields(), instructions()).prop_map(
        |(table_id, d, s, l, fields, instructions)| FlowStats {
            table_id,
            duration_s: d[0],
            duration_ns: d[1],
            priority: s[0],
            idle_timeout: s[1],
            hard_timeout: s[2],
            flags: s[3],
            cookie: l[0],
            packets: l[1],
            bytes: l[2],
            fields,
            instructions,
        },
    )
}

fn port_stats() -> impl Strategy<Value = PortStats> {
    (any::<u32>(), any::<[u64; 6]>(), any::<u32>()).prop_map(|(number, c, duration_s)| PortStats {
        number,
        rx_packets: c[0],
        tx_packets: c[1],
        rx_bytes: c[2],
        tx_bytes: c[3],
        rx_dropped: c[4],
        tx_dropped: c[5],
        duration_s,
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        "[ -~]{0,31}".prop_map(|text| {
            let all = || text.clone();
            Reply::Desc(Desc { manufacturer: all(), hardware: all(), software: all(), serial: all(), datapath: all() })
        }),
        prop::collection::vec(flow_stats(), 0..4).prop_map(Reply::Flows),
        (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(packets, bytes, flows)| Reply::Aggregate { packets, bytes, flows }),
        (any::<u8>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(table_id, active, lookups, matched)| Reply::Tables(
            vec![TableStats { table_id, active, lookups, matched }]
        )),
        prop::collection::vec(port_stats(), 0..4).prop_map(Reply::PortStats),
        prop::collection::vec(desc(), 0..4).prop_map(Reply::PortDescs),
    ]
}

fn asyncs() -> impl Strategy<Value = Asyncs> {
    any::<[[u32; 2]; 3]>().prop_map(|[packet_in, port_status, flow_removed]| Asyncs { packet_in, port_status, flow_removed })
}

fn message() -> impl Strategy<Value = Message> {
    let small = prop_oneof![
        prop::option::of(prop::collection::vec(any::<u32>(), 0..4)).prop_map(Message::Hello),
        (any::<[u16; 2]>(), data()).prop_map(|([kind, code], data)| Message::Error(Fault { kind, code }, data)),
        data().prop_map(Message::EchoRequest),
        data().prop_map(Message::EchoReply),
        Just(Message::FeaturesRequest),
        (any::<u64>(), any::<u32>(), any::<u8>(), any::<u32>()).prop_map(|(datapath_id, buffers, tables, capabilities)| {
            Message::FeaturesReply(Features { datapath_id, buffers, tables, capabilities })
        }),
        Just(Message::GetConfigRequest),
        any::<[u16; 2]>().prop_map(|[flags, miss_send_len]| Message::SetConfig(SwitchConfig { flags, miss_send_len })),
        Just(Message::BarrierRequest),
        Just(Message::BarrierReply),
        (role(), any::<u64>()).prop_map(|(role, generation)| Message::RoleRequest(role, generation)),
        (role(), any::<u64>()).prop_map(|(role, generation)| Message::RoleReply(role, generation)),
        Just(Message::GetAsyncRequest),
        asyncs().prop_map(Message::GetAsyncReply),
        asyncs().prop_map(Message::SetAsync),
    ];
    let request = prop_oneof![
        Just(MultipartRequest::Desc),
        flow_request().prop_map(MultipartRequest::Flows),
        flow_request().prop_map(MultipartRequest::Aggregate),
        Just(MultipartRequest::Tables),
        any::<u32>().prop_map(MultipartRequest::PortStats),
        Just(MultipartRequest::PortDescs),
    ];
    let large = prop_oneof![
        (any::<[u16; 1]>(), any::<u32>(), any::<u8>(), any::<u64>(), fields(), data(), 0..3u8).prop_map(
            |([total_len], buffer_id, table_id, cookie, fields, data, why)| {
                let why = [Why::NoMatch, Why::Action, Why::InvalidTtl][usize::from(why)];
                Message::PacketIn(PacketIn { buffer_id, total_len, why, table_id, cookie, fields, data })
            }
        ),
        (any::<[u64; 3]>(), any::<[u16; 3]>(), any::<[u32; 2]>(), any::<u8>(), 0..3u8, fields()).prop_map(
            |(l, s, d, table_id, reason, fields)| {
                Message::FlowRemoved(FlowRemoved {
                    cookie: l[0],
                    priority: s[0],
                    reason: [Reason::Idle, Reason::Hard, Reason::Delete][usize::from(reason)],
                    table_id,
                    duration_s: d[0],
                    duration_ns: d[1],
                    idle_timeout: s[1],
                    hard_timeout: s[2],
                    packets: l[1],
                    bytes: l[2],
                    fields,
                })
            }
        ),
        (0..3u8, desc()).prop_map(|(change, desc)| {
            Message::PortStatus([PortChange::Add, PortChange::Delete, PortChange::Modify][usize::from(change)], desc)
        }),
        (any::<u32>(), any::<u32>(), outputs(), data())
            .prop_map(|(buffer_id, in_port, actions, data)| Message::PacketOut(PacketOut { buffer_id, in_port, actions, data })),
        flow_mod().prop_map(Message::FlowMod),
        request.prop_map(Message::MultipartRequest),
        (reply(), any::<bool>()).prop_map(|(reply, more)| Message::MultipartReply(reply, more)),
    ];
    prop_oneof![small, large]
}

fn decode(bytes: &[u8]) -> Result<(u32, Message), Fault> {
    let (head, body) = bytes.split_first_chunk().unwrap();
    let header = Header::decode(head);
    assert_eq!((header.version, usize::from(header.length)), (VERSION, bytes.len()));
    Message::decode(header.kind, body).map(|message| (header.xid, message))
}

proptest! {
    #[test]
    fn what_is_said_is_understood(message in message(), xid in any::<u32>()) {
        let mut bytes = Vec::new();
        message.encode(xid, &mut bytes);
        prop_assert_eq!(decode(&bytes), Ok((xid, message)));
    }

    #[test]
    fn a_message_that_was_damaged_or_cut_panics_nobody(message in message(), at in any::<usize>(), bit in 0..8u8, cut in any::<usize>()) {
        let mut bytes = Vec::new();
        message.encode(1, &mut bytes);
        let kind = bytes[1];
        let body = &mut bytes[HEADER..];
        if !body.is_empty() {
            let at = at % body.len();
            body[at] ^= 1 << bit;
            let cut = cut % body.len();
            let _ = Message::decode(kind, body);
            let _ = Message::decode(kind, &body[..cut]);
        }
    }

    #[test]
    fn whatever_is_understood_means_the_same_when_it_is_said_again(kind in 0..32u8, body in data()) {
        if let Ok(message) = Message::decode(kind, &body) {
            let mut bytes = Vec::new();
            message.encode(1, &mut bytes);
            prop_assert_eq!(decode(&bytes), Ok((1, message)));
        }
    }
}

/// A flow-mod as os-ken 4.2.2 encodes it.
#[test]
fn bytes_of_others_are_understood() {
    let hex =
        |text: &str| -> Vec<u8> { (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect() };
    let bytes = hex(FLOW_MOD);
    let (xid, message) = decode(&bytes).unwrap();
    let Message::FlowMod(change) = &message else { panic!("{message:?}") };
    assert_eq!((xid, change.cookie, change.idle_timeout, change.priority), (0x1234, 7, 5, 100));
    assert_eq!(change.flags, flow_flag::SEND_FLOW_REMOVED);
    assert_eq!(change.instructions, [Instruction::Apply(vec![Output { port: 65537, max_len: 65509 }])]);
    let expected = Match::exact(&[
        (FieldId::InPort, 1),
        (FieldId::EthType, 0x800),
        (FieldId::IpProto, 6),
        (FieldId::Ipv4Src, 0x0a00_0002),
        (FieldId::Ipv4Dst, 0x0a00_0102),
        (FieldId::TcpSrc, 40000),
        (FieldId::TcpDst, 8080),
    ]);
    assert_eq!(change.fields, expected.unwrap());
    let mut again = Vec::new();
    message.encode(xid, &mut again);
    assert_eq!(again, bytes);
}

const FLOW_MOD: &str = "040e008000001234000000000000000700000000000000000000000500000064ffffffff000000000000000000010000\
     00010033800000040000000180000a0208008000140106800016040a000002800018040a00010280001a029c4080001c\
     021f90000000000000040018000000000000001000010001ffe5000000000000";
