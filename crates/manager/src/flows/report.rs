//! A flow's record in words, and as headers that filters read.

use std::collections::HashMap;
use std::net::IpAddr;

use sluice_api::model::{FlowReport, TcpState};
use sluice_api::protocol;
use sluice_dataplane::classify::key::PacketKind;
use sluice_dataplane::classify::tcp;
use sluice_dataplane::meter::FlowRecord;

use crate::capture::{HopNames, name};

/// Names of what flows meet, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowNames {
    pub hops: HopNames,
    /// The tenants of chains, by the chain's number.
    pub tenants: HashMap<u16, String>,
}

impl FlowNames {
    /// Whether all numbers of a flow have names.
    pub fn know(&self, record: &FlowRecord) -> bool {
        record.chain().is_none_or(|chain| self.hops.chains.contains_key(&chain))
            && record.nfs().all(|nf| self.hops.nfs.contains_key(&nf))
            && self.hops.ports.contains_key(&record.key().ingress())
    }

    /// The name of a flow's chain.
    pub fn chain(&self, record: &FlowRecord) -> Option<String> {
        record.chain().map(|chain| name(&self.hops.chains, chain))
    }

    /// The tenant of a flow's chain.
    pub fn tenant(&self, record: &FlowRecord) -> Option<&str> {
        self.tenants.get(&record.chain()?).map(String::as_str)
    }
}

fn protocol_name(number: u8) -> String {
    protocol::name(number).map_or_else(|| number.to_string(), String::from)
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn tcp_state(flags: u8) -> TcpState {
    match flags {
        flags if flags & tcp::RST != 0 => TcpState::Reset,
        flags if flags & tcp::FIN != 0 => TcpState::Finished,
        tcp::SYN => TcpState::Opening,
        _ => TcpState::Open,
    }
}

/// The report of a flow. `epoch_ns` is the wall clock minus the monotonic clock; `number` that of a
/// flow that has ended.
pub fn report(record: &FlowRecord, names: &FlowNames, epoch_ns: u64, number: Option<u64>) -> FlowReport {
    let key = record.key();
    let (protocol, src, dst) = match (key.addresses(), key.macs()) {
        (Some((src, dst)), _) => (protocol_name(key.protocol()), src.to_string(), dst.to_string()),
        (None, Some((src, dst))) => (format!("{:#06x}", key.ethertype()), mac(src), mac(dst)),
        (None, None) => Default::default(),
    };
    let (latency_ns, longest_latency_ns) = record.latency_ns().unzip();
    FlowReport {
        number,
        protocol,
        src,
        src_port: key.ports().map(|(src, _)| src),
        dst,
        dst_port: key.ports().map(|(_, dst)| dst),
        vlan: Some(key.vlan()).filter(|vlan| *vlan != 0),
        port: name(&names.hops.ports, key.ingress()),
        chain: names.chain(record),
        tenant: names.tenant(record).map(String::from),
        nfs: record.nfs().map(|nf| name(&names.hops.nfs, nf)).collect(),
        packets: record.packets(),
        bytes: record.bytes(),
        dropped_packets: record.dropped(),
        drop_reason: record.why().map(|why| why.name().into()),
        first_ns: epoch_ns.wrapping_add(record.first_ns()),
        last_ns: epoch_ns.wrapping_add(record.last_ns()),
        // Without flags there was no packet of it here: only drops of another thread's packets.
        tcp: (key.protocol() == protocol::TCP && record.tcp_flags() != 0).then(|| tcp_state(record.tcp_flags())),
        latency_ns,
        longest_latency_ns,
        end: record.end,
    }
}

/// Ethernet, a tag, IPv6 and TCP.
const HEADERS: usize = 14 + 4 + 40 + 20;

/// The headers of a packet of a flow, as far as the flow has them, and their length. TCP flags are
/// all that were seen.
pub fn headers(record: &FlowRecord) -> ([u8; HEADERS], usize) {
    let key = record.key();
    let (mut out, mut at) = ([0u8; HEADERS], 0);
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    let (src, dst) = key.macs().unwrap_or_default();
    put(&dst);
    put(&src);
    if key.vlan() != 0 {
        put(&[0x81, 0]);
        put(&key.vlan().to_be_bytes());
    }
    let ports = key.ports().map(|(src, dst)| [src.to_be_bytes(), dst.to_be_bytes()].concat()).unwrap_or_default();
    let tcp = [0, 0, 0, 0, 0, 0, 0, 0, 0x50, record.tcp_flags(), 0, 0, 0, 0, 0, 0];
    let rest: &[u8] = match key.protocol() {
        _ if ports.is_empty() => &[],
        protocol::TCP => &tcp,
        _ => &[0, 8, 0, 0],
    };
    let len = (ports.len() + rest.len()) as u8;
    match key.addresses() {
        Some((IpAddr::V4(src), IpAddr::V4(dst))) => {
            // Not the first fragment: that one has ports, which the flow has not.
            let offset = u8::from(key.kind() == PacketKind::Fragment);
            put(&[8, 0, 0x45, 0, 0, 20 + len, 0, 0, 0, offset, 64, key.protocol(), 0, 0]);
            put(&src.octets());
            put(&dst.octets());
        }
        Some((IpAddr::V6(src), IpAddr::V6(dst))) => {
            put(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, len, key.protocol(), 64]);
            put(&src.octets());
            put(&dst.octets());
        }
        _ => put(&key.ethertype().to_be_bytes()),
    }
    put(&ports);
    put(rest);
    (out, at)
}
