//! Multipart requests and replies: descriptions and statistics (section 7.3.5).
//!
//! Requests about queues, groups, meters and table features are refused.

use crate::fault::Fault;
use crate::instruction::{self, Instruction};
use crate::oxm::Match;
use crate::port::PortDesc;
use crate::wire::{Put, Reader};

/// Most bytes of parts in one message.
pub const PART: usize = 60_000;

/// Selects flow entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowRequest {
    /// Table, or all.
    pub table_id: u8,
    /// Only entries with this output port, unless [`crate::port::ANY`].
    pub out_port: u32,
    /// Only entries with this group, unless [`crate::ANY_GROUP`].
    pub out_group: u32,
    /// Cookie, in the bits of `cookie_mask`.
    pub cookie: u64,
    pub cookie_mask: u64,
    /// Entries within this match.
    pub fields: Match,
}

impl FlowRequest {
    pub fn all() -> Self {
        Self {
            table_id: crate::ALL_TABLES,
            out_port: crate::port::ANY,
            out_group: crate::ANY_GROUP,
            cookie: 0,
            cookie_mask: 0,
            fields: Match::default(),
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let table_id = from.u8()?;
        from.skip(3)?;
        let (out_port, out_group) = (from.u32()?, from.u32()?);
        from.skip(4)?;
        Ok(Self { table_id, out_port, out_group, cookie: from.u64()?, cookie_mask: from.u64()?, fields: Match::decode(from)? })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u8(self.table_id);
        out.zeros(3);
        out.u32(self.out_port);
        out.u32(self.out_group);
        out.zeros(4);
        out.u64(self.cookie);
        out.u64(self.cookie_mask);
        self.fields.encode(out);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultipartRequest {
    Desc,
    Flows(FlowRequest),
    Aggregate(FlowRequest),
    Tables,
    /// A port, or [`crate::port::ANY`].
    PortStats(u32),
    PortDescs,
}

impl MultipartRequest {
    fn kind(&self) -> u16 {
        match self {
            Self::Desc => 0,
            Self::Flows(_) => 1,
            Self::Aggregate(_) => 2,
            Self::Tables => 3,
            Self::PortStats(_) => 4,
            Self::PortDescs => 13,
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let (kind, flags) = (from.u16()?, from.u16()?);
        from.skip(4)?;
        let this = match kind {
            0 => Self::Desc,
            1 => Self::Flows(FlowRequest::decode(from)?),
            2 => Self::Aggregate(FlowRequest::decode(from)?),
            3 => Self::Tables,
            4 => {
                let port = from.u32()?;
                from.skip(4)?;
                Self::PortStats(port)
            }
            13 => Self::PortDescs,
            _ => return Err(Fault::BAD_MULTIPART),
        };
        // No request needs several messages.
        if flags & 1 == 0 { Ok(this) } else { Err(Fault::MULTIPART_OVERFLOW) }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.kind());
        out.u16(0);
        out.zeros(4);
        match self {
            Self::Flows(request) | Self::Aggregate(request) => request.encode(out),
            Self::PortStats(port) => {
                out.u32(*port);
                out.zeros(4);
            }
            Self::Desc | Self::Tables | Self::PortDescs => {}
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Desc {
    /// Manufacturer; at most 255 bytes are sent, also of the next two.
    pub manufacturer: String,
    pub hardware: String,
    pub software: String,
    /// Serial number; at most 31 bytes.
    pub serial: String,
    /// The operator's name for it; at most 255 bytes.
    pub datapath: String,
}

/// State of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowStats {
    pub table_id: u8,
    /// Age in whole seconds.
    pub duration_s: u32,
    /// Remaining nanoseconds of the age.
    pub duration_ns: u32,
    pub priority: u16,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub flags: u16,
    pub cookie: u64,
    /// Packets that matched it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    pub fields: Match,
    pub instructions: Vec<Instruction>,
}

impl FlowStats {
    fn decode(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let length = usize::from(from.u16()?);
        let mut part = from.part(length.checked_sub(2).ok_or(Fault::BAD_LEN)?)?;
        let table_id = part.u8()?;
        part.skip(1)?;
        let (duration_s, duration_ns, priority) = (part.u32()?, part.u32()?, part.u16()?);
        let (idle_timeout, hard_timeout, flags) = (part.u16()?, part.u16()?, part.u16()?);
        part.skip(4)?;
        Ok(Self {
            table_id,
            duration_s,
            duration_ns,
            priority,
            idle_timeout,
            hard_timeout,
            flags,
            cookie: part.u64()?,
            packets: part.u64()?,
            bytes: part.u64()?,
            fields: Match::decode(&mut part)?,
            instructions: instruction::decode(part)?,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.u16(0);
        out.u8(self.table_id);
        out.zeros(1);
        out.u32(self.duration_s);
        out.u32(self.duration_ns);
        out.u16(self.priority);
        out.u16(self.idle_timeout);
        out.u16(self.hard_timeout);
        out.u16(self.flags);
        out.zeros(4);
        out.u64(self.cookie);
        out.u64(self.packets);
        out.u64(self.bytes);
        self.fields.encode(out);
        instruction::encode(&self.instructions, out);
        out.length_at(start, start);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableStats {
    pub table_id: u8,
    pub active: u32,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that matched an entry.
    pub matched: u64,
}

/// Counters of a port; [`NOT_COUNTED`] for those that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortStats {
    pub number: u32,
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    /// Received packets dropped.
    pub rx_dropped: u64,
    /// Packets dropped before transmission.
    pub tx_dropped: u64,
    pub duration_s: u32,
}

/// Value of a counter that does not exist.
pub const NOT_COUNTED: u64 = u64::MAX;

impl PortStats {
    const BYTES: usize = 112;

    fn decode(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let number = from.u32()?;
        from.skip(4)?;
        let mut this = Self {
            number,
            rx_packets: from.u64()?,
            tx_packets: from.u64()?,
            rx_bytes: from.u64()?,
            tx_bytes: from.u64()?,
            rx_dropped: from.u64()?,
            tx_dropped: from.u64()?,
            duration_s: 0,
        };
        from.skip(6 * 8)?;
        this.duration_s = from.u32()?;
        from.skip(4)?;
        Ok(this)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.number);
        out.zeros(4);
        for counter in [self.rx_packets, self.tx_packets, self.rx_bytes, self.tx_bytes, self.rx_dropped, self.tx_dropped] {
            out.u64(counter);
        }
        // Errors and collisions.
        (0..6).for_each(|_| out.u64(NOT_COUNTED));
        out.u32(self.duration_s);
        out.u32(0);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Desc(Desc),
    Flows(Vec<FlowStats>),
    Aggregate { packets: u64, bytes: u64, flows: u32 },
    Tables(Vec<TableStats>),
    PortStats(Vec<PortStats>),
    PortDescs(Vec<PortDesc>),
}

impl Reply {
    fn kind(&self) -> u16 {
        match self {
            Self::Desc(_) => 0,
            Self::Flows(_) => 1,
            Self::Aggregate { .. } => 2,
            Self::Tables(_) => 3,
            Self::PortStats(_) => 4,
            Self::PortDescs(_) => 13,
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<(Self, bool), Fault> {
        fn all<T>(from: &mut Reader<'_>, one: impl Fn(&mut Reader<'_>) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
            let mut items = Vec::new();
            while !from.is_empty() {
                items.push(one(from)?);
            }
            Ok(items)
        }
        let (kind, flags) = (from.u16()?, from.u16()?);
        from.skip(4)?;
        let this = match kind {
            0 => Self::Desc(Desc {
                manufacturer: from.text(256)?,
                hardware: from.text(256)?,
                software: from.text(256)?,
                serial: from.text(32)?,
                datapath: from.text(256)?,
            }),
            1 => Self::Flows(all(from, FlowStats::decode)?),
            2 => {
                let (packets, bytes, flows) = (from.u64()?, from.u64()?, from.u32()?);
                from.skip(4)?;
                Self::Aggregate { packets, bytes, flows }
            }
            3 => Self::Tables(all(from, |from| {
                let table_id = from.u8()?;
                from.skip(3)?;
                Ok(TableStats { table_id, active: from.u32()?, lookups: from.u64()?, matched: from.u64()? })
            })?),
            4 => Self::PortStats(all(from, PortStats::decode)?),
            13 => Self::PortDescs(all(from, PortDesc::decode)?),
            _ => return Err(Fault::BAD_MULTIPART),
        };
        Ok((this, flags & 1 == 1))
    }

    pub(crate) fn encode(&self, more: bool, out: &mut Vec<u8>) {
        out.u16(self.kind());
        out.u16(more.into());
        out.zeros(4);
        match self {
            Self::Desc(d) => {
                for (text, room) in
                    [(&d.manufacturer, 256), (&d.hardware, 256), (&d.software, 256), (&d.serial, 32), (&d.datapath, 256)]
                {
                    out.text(text, room);
                }
            }
            Self::Flows(all) => all.iter().for_each(|flow| flow.encode(out)),
            Self::Aggregate { packets, bytes, flows } => {
                out.u64(*packets);
                out.u64(*bytes);
                out.u32(*flows);
                out.zeros(4);
            }
            Self::Tables(all) => {
                for table in all {
                    out.u8(table.table_id);
                    out.zeros(3);
                    out.u32(table.active);
                    out.u64(table.lookups);
                    out.u64(table.matched);
                }
            }
            Self::PortStats(all) => all.iter().for_each(|port| port.encode(out)),
            Self::PortDescs(all) => all.iter().for_each(|port| port.encode(out)),
        }
    }

    /// Splits the reply into parts that fit in a message each; at least one.
    pub fn parts(self) -> Vec<Self> {
        fn split<T>(all: Vec<T>, bytes: impl Fn(&T) -> usize, make: fn(Vec<T>) -> Reply) -> Vec<Reply> {
            let mut parts = Vec::new();
            let (mut part, mut size) = (Vec::new(), 0);
            for item in all {
                let more = bytes(&item);
                if size + more > PART && !part.is_empty() {
                    parts.push(make(std::mem::take(&mut part)));
                    size = 0;
                }
                size += more;
                part.push(item);
            }
            parts.push(make(part));
            parts
        }
        match self {
            Self::Flows(all) => {
                let bytes = |flow: &FlowStats| {
                    let mut out = Vec::new();
                    flow.encode(&mut out);
                    out.len()
                };
                split(all, bytes, Self::Flows)
            }
            Self::PortStats(all) => split(all, |_| PortStats::BYTES, Self::PortStats),
            Self::PortDescs(all) => split(all, |_| PortDesc::BYTES, Self::PortDescs),
            small => vec![small],
        }
    }
}
