//! Encoding and decoding of messages (section 7).
//!
//! [`Message::decode`] takes the body of one whole message. If it is invalid, the result is a
//! [`Fault`] for the sender. Both directions of every message are here, so that tests can act as
//! the controller. Messages about groups, meters and queues are refused.

use crate::VERSION;
use crate::fault::Fault;
use crate::instruction::{self, Instruction, Output};
use crate::multipart::{MultipartRequest, Reply};
use crate::oxm::Match;
use crate::port::{PortChange, PortDesc};
use crate::wire::{Put, Reader};

pub const HEADER: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub version: u8,
    /// Type of the message.
    pub kind: u8,
    pub length: u16,
    /// Transaction ID, which pairs reply and request.
    pub xid: u32,
}

impl Header {
    pub fn decode(bytes: &[u8; HEADER]) -> Self {
        let [version, kind, a, b, c, d, e, f] = *bytes;
        Self { version, kind, length: u16::from_be_bytes([a, b]), xid: u32::from_be_bytes([c, d, e, f]) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    pub datapath_id: u64,
    /// Number of packets that it can hold.
    pub buffers: u32,
    /// Number of flow tables.
    pub tables: u8,
    /// Bits of [`capability`].
    pub capabilities: u32,
}

impl Features {
    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.datapath_id);
        out.u32(self.buffers);
        out.u8(self.tables);
        out.zeros(3);
        out.u32(self.capabilities);
        out.zeros(4);
    }
}

/// Bits of [`Features::capabilities`].
pub mod capability {
    pub const FLOW_STATS: u32 = 1;
    pub const TABLE_STATS: u32 = 1 << 1;
    pub const PORT_STATS: u32 = 1 << 2;
}

/// Treatment of fragments, and the length of packet-ins that no action requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchConfig {
    /// 0: fragments are treated normally.
    pub flags: u16,
    /// Length in bytes.
    pub miss_send_len: u16,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self { flags: 0, miss_send_len: 128 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Why {
    /// Only the table-miss entry matched.
    NoMatch = 0,
    /// An action of a flow entry.
    Action = 1,
    /// Invalid TTL.
    InvalidTtl = 2,
}

/// A packet sent to the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketIn {
    /// The held packet, or [`crate::NO_BUFFER`].
    pub buffer_id: u32,
    pub total_len: u16,
    pub why: Why,
    pub table_id: u8,
    pub cookie: u64,
    /// Further fields: the ingress port.
    pub fields: Match,
    /// The packet, or its first bytes.
    pub data: Vec<u8>,
}

impl PacketIn {
    fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.buffer_id);
        out.u16(self.total_len);
        out.u8(self.why as u8);
        out.u8(self.table_id);
        out.u64(self.cookie);
        self.fields.encode(out);
        out.zeros(2);
        out.extend_from_slice(&self.data);
    }
}

/// A packet from the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketOut {
    /// A held packet, or [`crate::NO_BUFFER`].
    pub buffer_id: u32,
    /// The assumed ingress port.
    pub in_port: u32,
    pub actions: Vec<Output>,
    /// The packet, if `buffer_id` names none.
    pub data: Vec<u8>,
}

impl PacketOut {
    fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.buffer_id);
        out.u32(self.in_port);
        let at = out.len();
        out.u16(0);
        out.zeros(6);
        let from = out.len();
        instruction::encode_actions(&self.actions, out);
        out.length_at(at, from);
        out.extend_from_slice(&self.data);
    }
}

/// Kind of a change of the flow table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlowModCommand {
    /// Adds an entry and replaces one with the same match and priority.
    Add = 0,
    /// Changes the instructions of all entries within a match.
    Modify = 1,
    /// Changes the instructions of the entry with this match and priority.
    ModifyStrict = 2,
    /// Deletes all entries within a match.
    Delete = 3,
    /// Deletes the entry with this match and priority.
    DeleteStrict = 4,
}

/// Bits of [`FlowMod::flags`].
pub mod flow_flag {
    /// Send a flow-removed message when the entry is removed.
    pub const SEND_FLOW_REMOVED: u16 = 1;
    /// Refuse the entry if another of its priority overlaps it.
    pub const CHECK_OVERLAP: u16 = 1 << 1;
    /// Reset the counters.
    pub const RESET_COUNTS: u16 = 1 << 2;
    /// Packets need not be counted.
    pub const NO_PACKET_COUNTS: u16 = 1 << 3;
    /// Bytes need not be counted.
    pub const NO_BYTE_COUNTS: u16 = 1 << 4;
    pub const ALL: u16 = 0x1f;
}

/// A change of the flow table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowMod {
    /// The cookie. To modify or delete, entries must agree with it in the bits of `cookie_mask`.
    pub cookie: u64,
    pub cookie_mask: u64,
    pub table_id: u8,
    pub command: FlowModCommand,
    /// Seconds without a packet after which the entry expires; 0: never.
    pub idle_timeout: u16,
    /// Seconds after which the entry expires; 0: never.
    pub hard_timeout: u16,
    /// The highest priority wins.
    pub priority: u16,
    /// A held packet to send through the table, or [`crate::NO_BUFFER`].
    pub buffer_id: u32,
    /// Deletes only entries with this output port, unless [`crate::port::ANY`].
    pub out_port: u32,
    /// Deletes only entries with this group, unless [`crate::ANY_GROUP`].
    pub out_group: u32,
    /// Bits of [`flow_flag`].
    pub flags: u16,
    pub fields: Match,
    pub instructions: Vec<Instruction>,
}

impl FlowMod {
    /// A change with default values.
    pub fn new(command: FlowModCommand, fields: Match) -> Self {
        Self {
            cookie: 0,
            cookie_mask: 0,
            table_id: 0,
            command,
            idle_timeout: 0,
            hard_timeout: 0,
            priority: 0x8000,
            buffer_id: crate::NO_BUFFER,
            out_port: crate::port::ANY,
            out_group: crate::ANY_GROUP,
            flags: 0,
            fields,
            instructions: Vec::new(),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.cookie);
        out.u64(self.cookie_mask);
        out.u8(self.table_id);
        out.u8(self.command as u8);
        out.u16(self.idle_timeout);
        out.u16(self.hard_timeout);
        out.u16(self.priority);
        out.u32(self.buffer_id);
        out.u32(self.out_port);
        out.u32(self.out_group);
        out.u16(self.flags);
        out.zeros(2);
        self.fields.encode(out);
        instruction::encode(&self.instructions, out);
    }
}

/// Why an entry was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Idle timeout.
    Idle = 0,
    /// Hard timeout.
    Hard = 1,
    /// The controller deleted it.
    Delete = 2,
}

/// Report of a removed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowRemoved {
    pub cookie: u64,
    pub priority: u16,
    pub reason: Reason,
    pub table_id: u8,
    /// Lifetime in whole seconds.
    pub duration_s: u32,
    /// Remaining nanoseconds of the lifetime.
    pub duration_ns: u32,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    /// Packets that matched it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    pub fields: Match,
}

impl FlowRemoved {
    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.cookie);
        out.u16(self.priority);
        out.u8(self.reason as u8);
        out.u8(self.table_id);
        out.u32(self.duration_s);
        out.u32(self.duration_ns);
        out.u16(self.idle_timeout);
        out.u16(self.hard_timeout);
        out.u64(self.packets);
        out.u64(self.bytes);
        self.fields.encode(out);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Role {
    /// No change; only in requests.
    NoChange = 0,
    /// One of several with equal rights.
    #[default]
    Equal = 1,
    /// The only one with write access.
    Master = 2,
    /// Read-only.
    Slave = 3,
}

/// Asynchronous messages that a controller wants: bits by reason, for master or equal, then slave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asyncs {
    /// By [`Why`].
    pub packet_in: [u32; 2],
    /// By [`PortChange`].
    pub port_status: [u32; 2],
    /// By [`Reason`].
    pub flow_removed: [u32; 2],
}

impl Default for Asyncs {
    fn default() -> Self {
        Self { packet_in: [0b11, 0], port_status: [0b111, 0b111], flow_removed: [0b1111, 0] }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The version bitmap, if the sender has one: bit N of word N / 32.
    Hello(Option<Vec<u32>>),
    Error(Fault, Vec<u8>),
    EchoRequest(Vec<u8>),
    EchoReply(Vec<u8>),
    FeaturesRequest,
    FeaturesReply(Features),
    GetConfigRequest,
    GetConfigReply(SwitchConfig),
    SetConfig(SwitchConfig),
    PacketIn(PacketIn),
    FlowRemoved(FlowRemoved),
    PortStatus(PortChange, PortDesc),
    PacketOut(PacketOut),
    FlowMod(FlowMod),
    MultipartRequest(MultipartRequest),
    /// A part of a reply, and whether more parts follow.
    MultipartReply(Reply, bool),
    BarrierRequest,
    BarrierReply,
    /// The role, and the generation of the master.
    RoleRequest(Role, u64),
    RoleReply(Role, u64),
    GetAsyncRequest,
    GetAsyncReply(Asyncs),
    SetAsync(Asyncs),
}

impl Message {
    /// Decodes the body of a message of type `kind`.
    ///
    /// # Errors
    /// The fault to report to the sender.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Self, Fault> {
        let mut from = Reader(body);
        let message = match kind {
            0 => Self::Hello(hello(&mut from)),
            1 => Self::Error(Fault { kind: from.u16()?, code: from.u16()? }, from.rest().to_vec()),
            2 => Self::EchoRequest(from.rest().to_vec()),
            3 => Self::EchoReply(from.rest().to_vec()),
            4 => return Err(Fault::BAD_EXPERIMENTER),
            5 => Self::FeaturesRequest,
            6 => Self::FeaturesReply(features(&mut from)?),
            7 => Self::GetConfigRequest,
            8 => Self::GetConfigReply(SwitchConfig { flags: from.u16()?, miss_send_len: from.u16()? }),
            9 => Self::SetConfig(SwitchConfig { flags: from.u16()?, miss_send_len: from.u16()? }),
            10 => Self::PacketIn(packet_in(&mut from)?),
            11 => Self::FlowRemoved(flow_removed(&mut from)?),
            12 => {
                let change = match from.u8()? {
                    0 => PortChange::Add,
                    1 => PortChange::Delete,
                    2 => PortChange::Modify,
                    _ => return Err(Fault::BAD_TYPE),
                };
                from.skip(7)?;
                Self::PortStatus(change, PortDesc::decode(&mut from)?)
            }
            13 => Self::PacketOut(packet_out(&mut from)?),
            14 => Self::FlowMod(flow_mod(&mut from)?),
            // Ports and table are as configured.
            16 => return Err(Fault::PORT_MOD_REFUSED),
            17 => return Err(Fault::TABLE_MOD_CONFIG),
            18 => Self::MultipartRequest(MultipartRequest::decode(&mut from)?),
            19 => {
                let (reply, more) = Reply::decode(&mut from)?;
                Self::MultipartReply(reply, more)
            }
            20 => Self::BarrierRequest,
            21 => Self::BarrierReply,
            24 | 25 => {
                let role = match from.u32()? {
                    0 => Role::NoChange,
                    1 => Role::Equal,
                    2 => Role::Master,
                    3 => Role::Slave,
                    _ => return Err(Fault::ROLE_BAD),
                };
                from.skip(4)?;
                let generation = from.u64()?;
                if kind == 24 { Self::RoleRequest(role, generation) } else { Self::RoleReply(role, generation) }
            }
            26 => Self::GetAsyncRequest,
            27 => Self::GetAsyncReply(asyncs(&mut from)?),
            28 => Self::SetAsync(asyncs(&mut from)?),
            // Groups, queues and meters, and undefined types.
            _ => return Err(Fault::BAD_TYPE),
        };
        if from.is_empty() { Ok(message) } else { Err(Fault::BAD_LEN) }
    }

    /// The type on the wire.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 0,
            Self::Error(..) => 1,
            Self::EchoRequest(_) => 2,
            Self::EchoReply(_) => 3,
            Self::FeaturesRequest => 5,
            Self::FeaturesReply(_) => 6,
            Self::GetConfigRequest => 7,
            Self::GetConfigReply(_) => 8,
            Self::SetConfig(_) => 9,
            Self::PacketIn(_) => 10,
            Self::FlowRemoved(_) => 11,
            Self::PortStatus(..) => 12,
            Self::PacketOut(_) => 13,
            Self::FlowMod(_) => 14,
            Self::MultipartRequest(_) => 18,
            Self::MultipartReply(..) => 19,
            Self::BarrierRequest => 20,
            Self::BarrierReply => 21,
            Self::RoleRequest(..) => 24,
            Self::RoleReply(..) => 25,
            Self::GetAsyncRequest => 26,
            Self::GetAsyncReply(_) => 27,
            Self::SetAsync(_) => 28,
        }
    }

    /// Appends the message with its header to `out`. Data beyond the largest message is cut.
    pub fn encode(&self, xid: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.u8(VERSION);
        out.u8(self.kind());
        out.u16(0);
        out.u32(xid);
        match self {
            Self::Hello(bitmap) => {
                if let Some(words) = bitmap {
                    let length = 4 + 4 * words.len();
                    out.u16(1);
                    out.u16(length as u16);
                    words.iter().for_each(|word| out.u32(*word));
                    out.zeros(length.next_multiple_of(8) - length);
                }
            }
            Self::Error(fault, data) => {
                out.u16(fault.kind);
                out.u16(fault.code);
                out.extend_from_slice(data);
            }
            Self::EchoRequest(data) | Self::EchoReply(data) => out.extend_from_slice(data),
            Self::FeaturesReply(features) => features.encode(out),
            Self::GetConfigReply(config) | Self::SetConfig(config) => {
                out.u16(config.flags);
                out.u16(config.miss_send_len);
            }
            Self::PacketIn(p) => p.encode(out),
            Self::FlowRemoved(f) => f.encode(out),
            Self::PortStatus(change, desc) => {
                out.u8(*change as u8);
                out.zeros(7);
                desc.encode(out);
            }
            Self::PacketOut(p) => p.encode(out),
            Self::FlowMod(f) => f.encode(out),
            Self::MultipartRequest(request) => request.encode(out),
            Self::MultipartReply(reply, more) => reply.encode(*more, out),
            Self::RoleRequest(role, generation) | Self::RoleReply(role, generation) => {
                out.u32(*role as u32);
                out.zeros(4);
                out.u64(*generation);
            }
            Self::GetAsyncReply(a) | Self::SetAsync(a) => {
                [a.packet_in, a.port_status, a.flow_removed].as_flattened().iter().for_each(|word| out.u32(*word));
            }
            Self::FeaturesRequest | Self::GetConfigRequest | Self::BarrierRequest | Self::BarrierReply | Self::GetAsyncRequest => {}
        }
        out.truncate(start + usize::from(u16::MAX));
        out.length_at(start + 2, start);
    }
}

/// Decodes the elements of a hello; unknown ones are skipped, as specified.
fn hello(from: &mut Reader<'_>) -> Option<Vec<u32>> {
    let mut bitmap = None;
    while !from.is_empty() {
        let (Ok(kind), Ok(length)) = (from.u16(), from.u16()) else { break };
        let length = usize::from(length);
        let Some(Ok(mut body)) = length.checked_sub(4).map(|n| from.part(n)) else { break };
        let _ = from.skip((length.next_multiple_of(8) - length).min(from.len()));
        if kind == 1 && bitmap.is_none() {
            bitmap = Some(std::iter::from_fn(|| body.u32().ok()).collect());
        }
    }
    from.rest();
    bitmap
}

fn features(from: &mut Reader<'_>) -> Result<Features, Fault> {
    let (datapath_id, buffers, tables) = (from.u64()?, from.u32()?, from.u8()?);
    from.skip(3)?;
    let capabilities = from.u32()?;
    from.skip(4)?;
    Ok(Features { datapath_id, buffers, tables, capabilities })
}

fn packet_in(from: &mut Reader<'_>) -> Result<PacketIn, Fault> {
    let (buffer_id, total_len) = (from.u32()?, from.u16()?);
    let why = match from.u8()? {
        0 => Why::NoMatch,
        1 => Why::Action,
        2 => Why::InvalidTtl,
        _ => return Err(Fault::BAD_TYPE),
    };
    let (table_id, cookie, fields) = (from.u8()?, from.u64()?, Match::decode(from)?);
    from.skip(2)?;
    Ok(PacketIn { buffer_id, total_len, why, table_id, cookie, fields, data: from.rest().to_vec() })
}

fn packet_out(from: &mut Reader<'_>) -> Result<PacketOut, Fault> {
    let (buffer_id, in_port, actions) = (from.u32()?, from.u32()?, from.u16()?);
    from.skip(6)?;
    let actions = instruction::decode_actions(from.part(actions.into()).map_err(|_| Fault::BAD_LEN)?)?;
    Ok(PacketOut { buffer_id, in_port, actions, data: from.rest().to_vec() })
}

fn flow_mod(from: &mut Reader<'_>) -> Result<FlowMod, Fault> {
    let (cookie, cookie_mask, table_id) = (from.u64()?, from.u64()?, from.u8()?);
    let command = match from.u8()? {
        0 => FlowModCommand::Add,
        1 => FlowModCommand::Modify,
        2 => FlowModCommand::ModifyStrict,
        3 => FlowModCommand::Delete,
        4 => FlowModCommand::DeleteStrict,
        _ => return Err(Fault::FLOW_COMMAND),
    };
    let (idle_timeout, hard_timeout, priority) = (from.u16()?, from.u16()?, from.u16()?);
    let (buffer_id, out_port, out_group, flags) = (from.u32()?, from.u32()?, from.u32()?, from.u16()?);
    from.skip(2)?;
    let fields = Match::decode(from)?;
    let instructions = instruction::decode(Reader(from.rest()))?;
    Ok(FlowMod {
        cookie,
        cookie_mask,
        table_id,
        command,
        idle_timeout,
        hard_timeout,
        priority,
        buffer_id,
        out_port,
        out_group,
        flags,
        fields,
        instructions,
    })
}

fn flow_removed(from: &mut Reader<'_>) -> Result<FlowRemoved, Fault> {
    let (cookie, priority) = (from.u64()?, from.u16()?);
    let reason = match from.u8()? {
        0 => Reason::Idle,
        1 => Reason::Hard,
        2 => Reason::Delete,
        _ => return Err(Fault::BAD_TYPE),
    };
    Ok(FlowRemoved {
        cookie,
        priority,
        reason,
        table_id: from.u8()?,
        duration_s: from.u32()?,
        duration_ns: from.u32()?,
        idle_timeout: from.u16()?,
        hard_timeout: from.u16()?,
        packets: from.u64()?,
        bytes: from.u64()?,
        fields: Match::decode(from)?,
    })
}

fn asyncs(from: &mut Reader<'_>) -> Result<Asyncs, Fault> {
    let mut pair = || Ok::<_, Fault>([from.u32()?, from.u32()?]);
    Ok(Asyncs { packet_in: pair()?, port_status: pair()?, flow_removed: pair()? })
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
