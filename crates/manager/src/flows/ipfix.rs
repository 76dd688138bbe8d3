//! Flows as IPFIX messages to a collector, by UDP.
//!
//! Source: RFC 7011 (messages, templates), RFC 7012 and IANA's registry of information elements. An
//! encoder of its own: what is sent is two fixed templates, and the crates that there are decode.
//!
//! Limits: chains, tenants and NFs have no standard element and are in the file alone. What is not
//! IP is not sent. UDP may lose messages; their numbers show the collector how many records.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_api::model::FlowEndReason;
use sluice_dataplane::meter::FlowRecord;

const VERSION: u16 = 10;
const HEADER: usize = 16;
/// Largest message: it fits into a packet of most networks.
const MOST: usize = 1400;
/// Time after which the collector gets the templates again: it may have started anew.
const TEMPLATES: Duration = Duration::from_secs(30);
/// Longest wait for space in the socket, for each message; after one, none for the rest of a step.
const PATIENCE: Duration = Duration::from_millis(5);
/// Observation domain.
const DOMAIN: u32 = 1;
/// The set of templates.
const TEMPLATE_SET: u16 = 2;
/// The templates of IPv4 and of IPv6.
const V4: u16 = 256;
const V6: u16 = 257;

/// Elements that both templates have behind the addresses, and their lengths in bytes.
const COMMON: [(u16, u16); 13] = [
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (6, 1),   // tcpControlBits, without its upper byte (RFC 7011, section 6.2)
    (2, 8),   // packetDeltaCount
    (1, 8),   // octetDeltaCount
    (133, 8), // droppedPacketDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
    (10, 4),  // ingressInterface
    (58, 2),  // vlanId
    (136, 1), // flowEndReason
    (61, 1),  // flowDirection: ingress
];

/// Data of one template that is not sent yet.
#[derive(Debug)]
struct DataSet {
    template: u16,
    bytes: Vec<u8>,
    records: u32,
}

impl DataSet {
    fn new(template: u16) -> Self {
        Self { template, bytes: Vec::with_capacity(MOST), records: 0 }
    }
}

/// Sends flows to a collector.
#[derive(Debug)]
pub struct Exporter {
    socket: UdpSocket,
    address: SocketAddr,
    v4: DataSet,
    v6: DataSet,
    /// Records in the messages before this one.
    sequence: u32,
    /// When the templates were sent last.
    introduced: Option<Instant>,
    is_failing: bool,
    /// Whether the socket had no space for a message of this step.
    is_full: bool,
    /// Flows that could not be sent.
    pub lost: u64,
}

fn template(out: &mut Vec<u8>, id: u16, addresses: [(u16, u16); 2]) {
    let fields = addresses.iter().chain(&COMMON);
    out.extend(id.to_be_bytes());
    out.extend((fields.clone().count() as u16).to_be_bytes());
    for (element, len) in fields {
        out.extend(element.to_be_bytes());
        out.extend(len.to_be_bytes());
    }
}

/// The set of both templates.
fn templates() -> Vec<u8> {
    let mut all = Vec::new();
    template(&mut all, V4, [(8, 4), (12, 4)]);
    template(&mut all, V6, [(27, 16), (28, 16)]);
    set(TEMPLATE_SET, &all)
}

fn set(id: u16, content: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], &((content.len() + 4) as u16).to_be_bytes(), content].concat()
}

/// The number of IANA for the end of a flow.
fn end_reason(end: Option<FlowEndReason>) -> u8 {
    match end {
        Some(FlowEndReason::Idle) => 1,
        Some(FlowEndReason::Active) | None => 2,
        Some(FlowEndReason::Finished | FlowEndReason::Reset) => 3,
        Some(FlowEndReason::Stopped) => 4,
        Some(FlowEndReason::Evicted) => 5,
    }
}

/// Adds a record of a template, addresses first.
fn put(out: &mut Vec<u8>, addresses: [&[u8]; 2], record: &FlowRecord, epoch_ns: u64) {
    let key = record.key();
    let ms = |ns: u64| epoch_ns.wrapping_add(ns) / 1_000_000;
    let (src_port, dst_port) = key.ports().unwrap_or_default();
    addresses.iter().for_each(|address| out.extend(*address));
    out.extend(src_port.to_be_bytes());
    out.extend(dst_port.to_be_bytes());
    out.extend([key.protocol(), record.tcp_flags()]);
    for number in [record.packets(), record.bytes(), record.dropped(), ms(record.first_ns()), ms(record.last_ns())] {
        out.extend(number.to_be_bytes());
    }
    // 0 stands for no interface.
    out.extend((u32::from(key.ingress()) + 1).to_be_bytes());
    out.extend(key.vlan().to_be_bytes());
    out.extend([end_reason(record.end), 0]);
}

impl Exporter {
    /// An exporter to the collector at an address. Nothing is sent yet.
    ///
    /// # Errors
    /// Those of the system: the host has no such address family, or no route there.
    pub fn new(address: SocketAddr) -> io::Result<Self> {
        let own: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect(address)?;
        // A socket without space must not delay the file for long.
        socket.set_write_timeout(Some(PATIENCE))?;
        let (v4, v6) = (DataSet::new(V4), DataSet::new(V6));
        Ok(Self { socket, address, v4, v6, sequence: 0, introduced: None, is_failing: false, is_full: false, lost: 0 })
    }

    /// Adds a flow, unless it is not IP.
    pub fn push(&mut self, record: &FlowRecord, epoch_ns: u64) {
        let Some(addresses) = record.key().addresses() else { return };
        let data = match addresses {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                put(&mut self.v4.bytes, [&src.octets(), &dst.octets()], record, epoch_ns);
                &mut self.v4
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                put(&mut self.v6.bytes, [&src.octets(), &dst.octets()], record, epoch_ns);
                &mut self.v6
            }
            // Impossible: both are of one packet.
            _ => return,
        };
        data.records += 1;
        let each = data.bytes.len() / data.records as usize;
        if HEADER + 4 + data.bytes.len() + each > MOST {
            self.send_all();
        }
    }

    /// Sends what was added; ends a step.
    pub fn flush(&mut self) {
        self.send_all();
        self.is_full = false;
    }

    fn send_all(&mut self) {
        if self.v4.records + self.v6.records == 0 {
            return;
        }
        if self.introduced.is_none_or(|at| at.elapsed() >= TEMPLATES) && self.send(&templates()).is_ok() {
            self.introduced = Some(Instant::now());
        }
        self.send_data(|this| &mut this.v4);
        self.send_data(|this| &mut this.v6);
    }

    fn send_data(&mut self, of: fn(&mut Self) -> &mut DataSet) {
        let data = of(self);
        let records = std::mem::take(&mut data.records);
        if records == 0 {
            return;
        }
        let content = set(data.template, &data.bytes);
        data.bytes.clear();
        match self.send(&content) {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                self.lost += u64::from(records);
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!("cannot send flows to {}: {error}; they are counted as unsent until it goes again", self.address);
                }
            }
        }
        // Also of what was not sent: the collector sees that records are missing.
        self.sequence = self.sequence.wrapping_add(records);
    }

    /// Sends a message with one set.
    fn send(&mut self, set: &[u8]) -> io::Result<()> {
        if self.is_full {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32);
        let mut message = Vec::with_capacity(HEADER + set.len());
        message.extend(VERSION.to_be_bytes());
        message.extend(((HEADER + set.len()) as u16).to_be_bytes());
        message.extend(now_s.to_be_bytes());
        message.extend(self.sequence.to_be_bytes());
        message.extend(DOMAIN.to_be_bytes());
        message.extend(set);
        let sent = self.socket.send(&message).map(drop);
        self.is_full =
            sent.as_ref().is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
        sent
    }
}
