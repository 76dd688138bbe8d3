//! A port that generates traffic.
//!
//! Terms: flow i of F has source address `src + i` and source port 32,768 + (i mod 32,768). Flows
//! are strictly round-robin. The last 16 bytes of each packet are a stamp ([`super::stamp`]), by
//! which a sink measures loss, reordering and latency.
//!
//! Approach. Queue q of Q has the flows q, q + Q, q + 2Q, … and its share of rate and count, so
//! each flow stays on one queue and all queues together make one queue's traffic. All flows of a
//! queue have the same sequence number in a round, so a packet needs no state by flow: it is a
//! prebuilt template, with source address, source port, checksums and stamp stored over it. Packets
//! of at most 64 bytes are one store of 64 bytes and two of 16. There is no division and, except at
//! the end of a round, no branch a packet.
//!
//! Checksums. IPv4's is always set, as are those of TCP and of UDP over IPv6: what differs between
//! packets is added to the template's sum. UDP over IPv4 has 0, "not computed" (RFC 768), because
//! that is the case that measures the platform.
//!
//! Flows that end (`flow_packets`): after that many packets another flow replaces flow i, with the
//! next source port. The first flow of each place is shorter, by its number, so that ends are
//! spread over time. TCP flows then begin with SYN and end with RST, which ends a connection from
//! either side: nothing closes the other direction. For a sink, all flows of a place are one.
//!
//! Packets with a checksum over all their bytes (`checksum`, see [`super::stamp`]) are made in
//! private memory and copied to their frame as a whole: others may write to a frame, and a checksum
//! computed from it would prove nothing.
//!
//! A mix of sizes (`imix`) follows a fixed pattern that holds each size in its exact share, evenly
//! spread, and shifts from round to round so that every flow gets every size in its share, too.
//!
//! Limits. Packets that leave through a generator are dropped and counted as `swallowed`.
//! Timestamps are the caller's, one a burst.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use sluice_shm::BURST;
use sluice_shm::arena::{Arena, HEADROOM, MAX_STRIDE};

use super::pace::Pacer;
use super::stamp::{self, FlowRange, MAX_FLOWS};
use crate::error::PortError;
use sluice_api::config::{Gen, GenProtocol};
use sluice_dataplane::frame::{FrameCache, Packet};
use sluice_dataplane::port::OpenPort;
use sluice_dataplane::queue::{PortQueue, QueueCounters};

/// Longest pattern of a mix: the sum of its weights, divided by their greatest common divisor.
const MAX_PATTERN: u32 = 4096;

const SRC_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// RFC 2544's network for benchmarks.
const DST_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// RFC 5180's network for benchmarks.
const SRC_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
const DST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0xffff, 0, 0, 0, 1);
/// Locally administered.
const SRC_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SRC_PORT: u32 = 0x8000;
/// TCP flags of a segment: PSH and ACK.
const DATA: u8 = 0x18;
/// TCP flags of the first segment of a flow that ends: SYN.
const SYN: u8 = 0x02;
/// TCP flags of the last one: RST and ACK.
const RST: u8 = 0x14;

/// Opens a generator. `room` is the largest packet that a frame holds, in bytes.
///
/// # Errors
/// [`PortError::Setting`] for contradictory settings, or packets too small or too large.
pub fn open(name: &str, queues: u32, settings: &Gen, room: usize) -> Result<OpenPort, PortError> {
    let plan = Template::new(settings, room).map_err(|what| PortError::Setting { port: name.into(), what })?;
    let range = FlowRange::take(settings.flows).ok_or_else(|| PortError::Setting {
        port: name.into(),
        what: format!("all generators together have more than {MAX_FLOWS} flows; set fewer flows"),
    })?;
    let range = Arc::new(range);
    let queues = (0..queues.max(1))
        .map(|q| -> Box<dyn PortQueue> {
            let share = Share::new(settings, queues.max(1), q);
            match (settings.ipv6, settings.protocol) {
                (false, GenProtocol::Udp) => Box::new(GenQueue::<false, false>::new(&plan, share, &range)),
                (false, GenProtocol::Tcp) => Box::new(GenQueue::<false, true>::new(&plan, share, &range)),
                (true, GenProtocol::Udp) => Box::new(GenQueue::<true, false>::new(&plan, share, &range)),
                (true, GenProtocol::Tcp) => Box::new(GenQueue::<true, true>::new(&plan, share, &range)),
            }
        })
        .collect();
    Ok(OpenPort { queues, description: describe(settings), memory: None, link: Arc::default() })
}

/// Instead of a number of cache lines: packets of any size, with a checksum.
const CHECKED: usize = 3;

/// The first 128 bytes of each flow's packets, by flow number, for rules. Checksums are left out.
///
/// # Errors
/// What is wrong with the settings, as for [`open`].
pub fn headers(settings: &Gen) -> Result<impl Fn(u32) -> [u8; 128], String> {
    let plan = Template::new(settings, MAX_STRIDE - HEADROOM)?;
    let l3 = usize::from(plan.l3);
    let (src_at, l4) = if settings.ipv6 { (l3 + 20, l3 + 40) } else { (l3 + 12, l3 + 20) };
    Ok(move |flow: u32| {
        let mut packet = plan.classes[0].lines;
        packet[src_at..src_at + 4].copy_from_slice(&plan.src.wrapping_add(flow).to_be_bytes());
        packet[l4..l4 + 2].copy_from_slice(&((SRC_PORT + (flow & 0x7fff)) as u16).to_be_bytes());
        packet
    })
}

/// What a generator with these settings says of itself.
pub fn describe(settings: &Gen) -> String {
    let sizes = match settings.imix.as_slice() {
        [] => format!("{} bytes", settings.size),
        mix => format!("{} bytes", mix.iter().map(|(size, weight)| format!("{weight}×{size}")).collect::<Vec<_>>().join(" + ")),
    };
    let protocol = if settings.protocol == GenProtocol::Tcp { "TCP" } else { "UDP" };
    let ip = if settings.ipv6 { "IPv6" } else { "IPv4" };
    let rate = if settings.rate > 0.0 { format!("{} packets/s", settings.rate) } else { "as fast as possible".into() };
    let count = if settings.count > 0 { format!(", {} packets", settings.count) } else { String::new() };
    let life = if settings.flow_packets > 0 { format!(" of {} packets each", settings.flow_packets) } else { String::new() };
    let checksum = if settings.checksum { ", with a checksum" } else { "" };
    format!("generates {protocol}/{ip}, {sizes}, {} flows{life}, {rate}{count}{checksum}", settings.flows)
}

/// What one queue generates.
#[derive(Debug, Clone, PartialEq)]
struct Share {
    first: u32,
    /// Distance to its next flow.
    step: u32,
    flows: u32,
    /// Flows of the whole port.
    of: u32,
    /// Packets per second; 0: as fast as possible.
    rate: f64,
    /// Packets in total; `u64::MAX`: for ever.
    count: u64,
}

impl Share {
    fn new(settings: &Gen, queues: u32, queue: u32) -> Self {
        let all = u64::from(settings.flows);
        let of = |n: u64| n.saturating_sub(queue.into()).div_ceil(queues.into());
        let flows = of(all);
        // Packet n of all belongs to flow n mod F: whole rounds, and a partial last one.
        let count = match settings.count {
            _ if flows == 0 => 0,
            0 => u64::MAX,
            count => count / all * flows + of(count % all),
        };
        let rate = settings.rate * flows as f64 / all as f64;
        Self { first: queue, step: queues, flows: flows as u32, of: settings.flows, rate, count }
    }
}

/// All packets of one size.
#[derive(Debug, Clone)]
struct SizeClass {
    line: [u8; 64],
    lines: [u8; 128],
    /// The whole packet, zero-padded to 128 bytes.
    whole: Vec<u8>,
    size: u16,
    /// Sum of the IPv4 header without its checksum and source address.
    ip_sum: u16,
    /// Sum of pseudo header, header and payload without the fields that differ by packet.
    l4_sum: u64,
    /// 8 if the stamp begins at an odd byte of the sum, else 0.
    turn: u32,
    /// By how much a segment advances the TCP sequence number.
    payload: u32,
    /// IPv4: bytes 10 to 18 of the header: the first half of the destination, and zeros.
    head: u64,
    /// IPv4: bytes 18 to 26 from the start of the header, without the source port.
    tail: u64,
}

/// What all queues share.
#[derive(Debug, Clone)]
struct Template {
    classes: Vec<SizeClass>,
    /// Numbers of classes, in the order in which they are sent.
    pattern: Vec<u8>,
    /// Offset of the IP header.
    l3: u16,
    /// Lowest 32 bits of the first source address.
    src: u32,
    /// Packets of a flow; 0: flows do not end.
    flow_packets: u32,
    checksum: bool,
    /// The first source address and the destination address.
    addresses: (IpAddr, IpAddr),
}

/// Whether packets of this size fit in frames that have this room.
fn fits(size: usize, room: usize) -> Result<(), String> {
    const MOST: usize = MAX_STRIDE - HEADROOM;
    match size {
        _ if size <= room => Ok(()),
        _ if size > MOST => Err(format!("packets of {size} bytes fit in no frame; set at most {MOST} bytes")),
        _ => Err(format!("packets of {size} bytes do not fit in a frame; set memory.packet_bytes to at least {size}")),
    }
}

impl Template {
    fn new(settings: &Gen, room: usize) -> Result<Self, String> {
        let Gen { ref imix, rate, flows, ipv6, vlan, dscp, .. } = *settings;
        if !(1..=MAX_FLOWS).contains(&flows) {
            return Err(format!("flows = {flows} is out of range; set 1 to {MAX_FLOWS}"));
        }
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(format!("rate = {rate} is no rate; set packets per second, or 0 for as fast as possible"));
        }
        if dscp > 63 {
            return Err(format!("dscp = {dscp} is out of range; set 0 to 63"));
        }
        if let Some(vlan) = vlan.filter(|vlan| *vlan > 4094) {
            return Err(format!("vlan = {vlan} is out of range; set 0 to 4094"));
        }
        let address = |key: &str, value: Option<IpAddr>, default: IpAddr| match value {
            Some(address) if address.is_ipv6() != ipv6 => {
                Err(format!("{key} = {address} does not go with ipv6 = {ipv6}; set ipv6 = {}, or another address", !ipv6))
            }
            other => Ok(other.unwrap_or(default)),
        };
        let src = address("src", settings.src, if ipv6 { SRC_V6.into() } else { SRC_V4.into() })?;
        let dst = address("dst", settings.dst, if ipv6 { DST_V6.into() } else { DST_V4.into() })?;
        let mix = if imix.is_empty() { vec![(settings.size, 1)] } else { imix.clone() };
        let l3 = if vlan.is_some() { 18u16 } else { 14 };
        let headers = usize::from(l3) + ip_bytes(ipv6) + l4_bytes(settings.protocol);
        let (end, what) = if settings.checksum {
            (stamp::CHECKSUM_BYTES + stamp::BYTES, ", a checksum and a stamp")
        } else {
            (stamp::BYTES, " and a stamp")
        };
        let needed = headers + end;
        for (size, _) in &mix {
            let size = usize::from(*size);
            if size < needed {
                return Err(format!("packets of {size} bytes have no room for their headers{what}; set at least {needed} bytes"));
            }
            fits(size, room)?;
        }
        if settings.flow_packets == 1 {
            return Err(
                "flow_packets = 1 leaves no packet to end a flow with; set 2 or more, or 0 for flows that do not end".into()
            );
        }
        let pattern = pattern(&mix.iter().map(|(_, weight)| *weight).collect::<Vec<_>>())?;
        let mut plan = Self {
            classes: Vec::new(),
            pattern,
            l3,
            src: low_bits(src),
            flow_packets: settings.flow_packets,
            checksum: settings.checksum,
            addresses: (src, dst),
        };
        plan.classes = mix.iter().map(|(size, _)| plan.class(settings, usize::from(*size))).collect();
        Ok(plan)
    }

    fn class(&self, settings: &Gen, size: usize) -> SizeClass {
        let (src, dst) = self.addresses;
        let tcp = settings.protocol == GenProtocol::Tcp;
        let l3 = usize::from(self.l3);
        let l4 = l3 + ip_bytes(settings.ipv6);
        let mut packet = vec![0u8; size.max(128)];
        packet[0..6].copy_from_slice(&DST_MAC);
        packet[6..12].copy_from_slice(&SRC_MAC);
        if let Some(vlan) = settings.vlan {
            packet[12..14].copy_from_slice(&[0x81, 0]);
            packet[14..16].copy_from_slice(&vlan.to_be_bytes());
        }
        packet[l3 - 2..l3].copy_from_slice(if settings.ipv6 { &[0x86, 0xdd] } else { &[8, 0] });
        let protocol = if tcp { 6 } else { 17 };
        let l4_len = (size - l4) as u16;
        match (src, dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                packet[l3..l3 + 4].copy_from_slice(&(6u32 << 28 | u32::from(settings.dscp) << 22).to_be_bytes());
                packet[l3 + 4..l3 + 6].copy_from_slice(&l4_len.to_be_bytes());
                packet[l3 + 6..l3 + 8].copy_from_slice(&[protocol, 64]);
                packet[l3 + 8..l3 + 24].copy_from_slice(&src.octets());
                // The low four bytes differ between flows.
                packet[l3 + 20..l3 + 24].fill(0);
                packet[l3 + 24..l3 + 40].copy_from_slice(&dst.octets());
            }
            (_, dst) => {
                packet[l3..l3 + 2].copy_from_slice(&[0x45, settings.dscp << 2]);
                packet[l3 + 2..l3 + 4].copy_from_slice(&((size - l3) as u16).to_be_bytes());
                // Do not fragment; time to live 64.
                packet[l3 + 6..l3 + 10].copy_from_slice(&[0x40, 0, 64, protocol]);
                packet[l3 + 16..l3 + 20].copy_from_slice(&low_bits(dst).to_be_bytes());
            }
        }
        packet[l4 + 2..l4 + 4].copy_from_slice(&settings.dst_port.to_be_bytes());
        if tcp {
            // Acknowledgement 1, five words of header, flags, window 65,535.
            packet[l4 + 8..l4 + 12].copy_from_slice(&1u32.to_be_bytes());
            packet[l4 + 12..l4 + 16].copy_from_slice(&[0x50, DATA, 0xff, 0xff]);
        } else {
            packet[l4 + 4..l4 + 6].copy_from_slice(&l4_len.to_be_bytes());
        }
        let addresses = if settings.ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let pseudo = sum(&packet[addresses]) + sum(&[0, protocol]) + sum(&l4_len.to_be_bytes());
        let word = |at: usize| packet[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let (mut line, mut lines) = ([0; 64], [0; 128]);
        line.copy_from_slice(&packet[..64]);
        lines.copy_from_slice(&packet[..128]);
        SizeClass {
            line,
            lines,
            ip_sum: if settings.ipv6 { 0 } else { fold(sum(&packet[l3..l4])) },
            l4_sum: pseudo + sum(&packet[l4..size]),
            turn: if (size - stamp::BYTES - l4) % 2 == 1 { 8 } else { 0 },
            payload: (size - l4 - l4_bytes(settings.protocol)) as u32,
            head: word(l3 + 10),
            tail: word(l3 + 18),
            size: size as u16,
            whole: packet,
        }
    }
}

fn ip_bytes(ipv6: bool) -> usize {
    if ipv6 { 40 } else { 20 }
}

fn l4_bytes(protocol: GenProtocol) -> usize {
    if protocol == GenProtocol::Tcp { 20 } else { 8 }
}

fn low_bits(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    }
}

/// Sum of little-endian 16-bit words. The ones' complement sum does not depend on the byte order
/// (RFC 1071), if the result is stored in the same order.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) | u64::from(*word.get(1).unwrap_or(&0)) << 8).sum()
}

/// Folds a sum of 32-bit or 16-bit words to 16 bits.
#[inline(always)]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Numbers `0..weights.len()` by weight, evenly spread: at each step each number gets its weight in
/// credit, and the one with the most (the first of several) is next and pays for all.
fn pattern(weights: &[u32]) -> Result<Vec<u8>, String> {
    if weights.contains(&0) || weights.len() > 256 {
        return Err("each size of imix needs a weight of at least 1, and there can be 256 sizes; leave the others out".into());
    }
    let common = weights.iter().copied().fold(0, gcd);
    let total: u64 = weights.iter().map(|weight| u64::from(weight / common)).sum();
    if total > MAX_PATTERN.into() {
        return Err(format!("the weights of imix add up to {total}; set smaller ones that add up to at most {MAX_PATTERN}"));
    }
    let mut credit = vec![0i64; weights.len()];
    let deal = |_| {
        credit.iter_mut().zip(weights).for_each(|(credit, weight)| *credit += i64::from(weight / common));
        let next = (0..credit.len()).rev().max_by_key(|i| credit[*i]).unwrap_or(0);
        credit[next] -= total as i64;
        next as u8
    };
    Ok((0..total).map(deal).collect())
}

#[derive(Debug, Clone, Copy)]
struct Life {
    left: u32,
    /// Flows that had this place before.
    before: u32,
    /// It has sent none yet.
    is_new: bool,
}

fn lives(share: &Share, packets: u32) -> Box<[Life]> {
    let first = |i: u32| Life { left: 2 + (share.first + i * share.step) % (packets - 1), before: 0, is_new: true };
    (0..share.flows).map(first).collect()
}

/// The pace of one queue.
#[derive(Debug)]
struct Pace {
    /// Its part of the port's rate: its flows, of those of the port.
    part: (f64, f64),
    /// Whether it has a rate, and does not go as fast as possible.
    is_paced: bool,
    pacer: Pacer,
}

impl Pace {
    fn of(share: &Share) -> Self {
        let part = (f64::from(share.flows), f64::from(share.of));
        Self { part, is_paced: share.rate > 0.0, pacer: Pacer::new(share.rate) }
    }

    /// Packets that may be made now.
    #[inline(always)]
    fn due(&mut self, now_ns: u64) -> u64 {
        if self.is_paced { self.pacer.due(now_ns) } else { u64::MAX }
    }

    /// Counts packets that were made.
    #[inline(always)]
    fn sent(&mut self, packets: u64) {
        if self.is_paced {
            self.pacer.sent(packets);
        }
    }

    /// Goes over to another rate of the port, in packets per second; 0: as fast as possible.
    fn change(&mut self, rate_pps: f64) {
        let rate = rate_pps * self.part.0 / self.part.1;
        self.is_paced = rate > 0.0;
        self.pacer.change(rate);
    }
}

#[derive(Debug, Clone, Copy)]
struct Cursor {
    at: usize,
    /// Index of the flow in the queue.
    flow: u32,
    /// Index of the flow in the port.
    number: u32,
    sequence: u32,
}

/// One queue of a generator, specialised for its IP version and protocol.
struct GenQueue<const V6: bool, const TCP: bool> {
    classes: Box<[SizeClass]>,
    pattern: Box<[u8]>,
    /// Cache lines of a packet, if all have one size of at most two; else 0, or [`CHECKED`].
    lines: usize,
    /// Where packets with a checksum are made.
    draft: Box<[u8]>,
    /// Extra step in the pattern at the end of a round.
    shift: usize,
    l3: u16,
    flows: u32,
    first: u32,
    step: u32,
    src: u32,
    cursor: Cursor,
    /// TCP sequence number of each flow.
    tcp: Box<[u32]>,
    /// Packets of a flow; 0: flows do not end.
    flow_packets: u32,
    /// Progress of the flow in each place, if flows end.
    lives: Box<[Life]>,
    range: Arc<FlowRange>,
    pace: Pace,
    left: u64,
    generated: u64,
    no_frames: u64,
    swallowed: u64,
}

impl<const V6: bool, const TCP: bool> GenQueue<V6, TCP> {
    fn new(plan: &Template, share: Share, range: &Arc<FlowRange>) -> Self {
        let period = plan.pattern.len() as u32;
        // A flow moves by (flows + shift) a round: it gets all sizes if that is coprime to the
        // period.
        let shift = (0..period).find(|shift| gcd(share.flows % period + shift, period) == 1).unwrap_or(0);
        Self {
            classes: plan.classes.clone().into(),
            pattern: plan.pattern.clone().into(),
            lines: match plan.classes.as_slice() {
                _ if plan.checksum => CHECKED,
                [class] if class.size <= 64 => 1,
                [class] if class.size <= 128 => 2,
                _ => 0,
            },
            draft: if plan.checksum { vec![0; MAX_STRIDE].into() } else { Box::default() },
            shift: shift as usize,
            l3: plan.l3,
            flows: share.flows,
            first: share.first,
            step: share.step,
            src: plan.src,
            cursor: Cursor { at: 0, flow: 0, number: share.first, sequence: 0 },
            tcp: if TCP { vec![1; share.flows as usize].into() } else { Box::default() },
            flow_packets: plan.flow_packets,
            lives: if plan.flow_packets == 0 { Box::default() } else { lives(&share, plan.flow_packets) },
            range: range.clone(),
            pace: Pace::of(&share),
            left: share.count,
            generated: 0,
            no_frames: 0,
            swallowed: 0,
        }
    }

    /// Writes the next packets to frames. `LINES` is as [`Self::lines`].
    #[inline(always)]
    fn fill<const LINES: usize>(&mut self, frames: &[u32], out: &mut [Packet], arena: &Arena, now_ns: u64) {
        let time = stamp::time_word(now_ns);
        let time = if LINES == CHECKED { stamp::checked(time) } else { time };
        let is_mix = LINES == 0 || LINES == CHECKED;
        let id = stamp::flow_word(self.range.first(), self.range.run());
        let mut cursor = self.cursor;
        for (frame, packet) in frames.iter().zip(out) {
            let class = if is_mix { &self.classes[usize::from(self.pattern[cursor.at])] } else { &self.classes[0] };
            let mut tcp_sequence = 0;
            if TCP {
                let next = &mut self.tcp[cursor.flow as usize];
                tcp_sequence = *next;
                *next = next.wrapping_add(class.payload);
            }
            // All of it lies in the frame: sizes were checked on opening, and behind the headroom a
            // frame has an odd number of cache lines, so a frame for 65 bytes has 128.
            match LINES {
                1 => _ = arena.write_array(*frame, HEADROOM as u16, &class.line),
                2 => _ = arena.write_array(*frame, HEADROOM as u16, &class.lines),
                CHECKED => {}
                _ if class.size <= 64 => _ = arena.write_array(*frame, HEADROOM as u16, &class.line),
                _ => _ = arena.write(*frame, HEADROOM as u16, &class.whole[..class.size.into()]),
            }
            let rest = id + (u64::from(cursor.number) << 32) + u64::from(cursor.sequence);
            let src = self.src.wrapping_add(cursor.number);
            let (mut ports, mut flags) = (cursor.number, DATA);
            if self.flow_packets > 0 {
                let life = &mut self.lives[cursor.flow as usize];
                ports = ports.wrapping_add(life.before);
                life.left -= 1;
                flags = match life {
                    Life { left: 0, .. } => RST,
                    Life { is_new: true, .. } => SYN,
                    _ => DATA,
                };
                life.is_new = false;
                if life.left == 0 {
                    *life = Life { left: self.flow_packets, before: life.before.wrapping_add(1), is_new: true };
                }
            }
            let src_port = (SRC_PORT + (ports & 0x7fff)) as u16;
            let fields = Fields { src, src_port, tcp_sequence, flags, stamp: [time, rest] };
            if LINES == CHECKED {
                let draft = &mut self.draft[..class.size.into()];
                draft.copy_from_slice(&class.whole[..draft.len()]);
                Self::patch(&mut Draft(draft), class, self.l3, fields);
                seal(draft);
                arena.write(*frame, HEADROOM as u16, draft);
            } else {
                Self::patch(&mut InFrame(arena, *frame), class, self.l3, fields);
            }
            *packet = Packet::fresh(*frame, class.size);
            cursor.flow += 1;
            cursor.number += self.step;
            if cursor.flow == self.flows {
                cursor.flow = 0;
                cursor.number = self.first;
                cursor.sequence = cursor.sequence.wrapping_add(1);
                cursor.at += self.shift;
            }
            if is_mix {
                cursor.at += 1;
                if cursor.at >= self.pattern.len() {
                    cursor.at -= self.pattern.len();
                }
            }
        }
        self.cursor = cursor;
    }

    /// Stores over a template what differs between packets.
    #[inline(always)]
    fn patch(packet: &mut impl Store, class: &SizeClass, l3: u16, fields: Fields) {
        let l4 = l3 + if V6 { 40 } else { 20 };
        // From here on, words are little-endian readings of the bytes on the wire.
        let src = fields.src.swap_bytes();
        let src_port = fields.src_port.swap_bytes();
        let tcp_sequence = fields.tcp_sequence.swap_bytes();
        let [time, rest] = fields.stamp;
        if V6 {
            packet.store(l3 + 20, &src.to_le_bytes());
            packet.store(l4, &src_port.to_le_bytes());
        } else {
            // Three words of 16 bits: folding once leaves a carry of at most 2.
            let sum = u32::from(class.ip_sum) + (src & 0xffff) + (src >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !(sum + (sum >> 16)) as u16;
            let low = class.head | u64::from(src) << 16 | u64::from(sum);
            let high = class.tail | u64::from(src_port) << 16;
            packet.store(l3 + 10, &(u128::from(low) | u128::from(high) << 64).to_le_bytes());
        }
        let mut flags = 0;
        if TCP {
            packet.store(l4 + 4, &tcp_sequence.to_le_bytes());
            if fields.flags != DATA {
                packet.store(l4 + 13, &[fields.flags]);
                // The template's sum includes the usual flags: their complement removes them.
                flags = (u64::from(fields.flags) << 8) + (0xffff - (u64::from(DATA) << 8));
            }
        }
        if V6 || TCP {
            let stamp = fold((time & 0xffff_ffff) + (time >> 32) + (rest & 0xffff_ffff) + (rest >> 32)).rotate_left(class.turn);
            let sum = class.l4_sum + u64::from(src) + u64::from(src_port) + u64::from(tcp_sequence) + u64::from(stamp) + flags;
            let sum = !fold(sum);
            // In UDP, 0 means "no checksum"; all ones is the same number.
            let sum = if !TCP && sum == 0 { 0xffff } else { sum };
            packet.store(l4 + if TCP { 16 } else { 6 }, &sum.to_le_bytes());
        }
        let stamp = u128::from(time) | u128::from(rest) << 64;
        packet.store(class.size - stamp::BYTES as u16, &stamp.to_le_bytes());
    }
}

/// Where bytes of a packet are stored, by their offset in it.
trait Store {
    fn store<const N: usize>(&mut self, at: u16, bytes: &[u8; N]);
}

struct InFrame<'a>(&'a Arena, u32);

impl Store for InFrame<'_> {
    #[inline(always)]
    fn store<const N: usize>(&mut self, at: u16, bytes: &[u8; N]) {
        self.0.write_array(self.1, HEADROOM as u16 + at, bytes);
    }
}

struct Draft<'a>(&'a mut [u8]);

impl Store for Draft<'_> {
    fn store<const N: usize>(&mut self, at: u16, bytes: &[u8; N]) {
        self.0[usize::from(at)..usize::from(at) + N].copy_from_slice(bytes);
    }
}

/// Stores a packet's checksum, if it has space for one.
fn seal(packet: &mut [u8]) {
    let word = |at: usize| packet[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let sum = stamp::checksum(packet.len(), word);
    if let Some(at) = stamp::checksum_at(packet.len()) {
        packet[at..at + stamp::CHECKSUM_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
}

struct Fields {
    src: u32,
    src_port: u16,
    tcp_sequence: u32,
    flags: u8,
    stamp: [u64; 2],
}

impl<const V6: bool, const TCP: bool> PortQueue for GenQueue<V6, TCP> {
    fn rx_burst(&mut self, out: &mut [Packet], frames: &mut FrameCache, now_ns: u64) -> usize {
        let mut wanted = self.left.min(out.len().min(BURST) as u64);
        // A generator that has sent everything is not late.
        if wanted > 0 {
            wanted = wanted.min(self.pace.due(now_ns));
        }
        if wanted == 0 {
            return 0;
        }
        let mut taken = [0; BURST];
        let n = frames.alloc(&mut taken[..wanted as usize]);
        if n == 0 {
            self.no_frames += 1;
            return 0;
        }
        for frame in &taken[..n] {
            // Another core may hold the line: all are prefetched before the first is written.
            frames.arena().prefetch_write(*frame, HEADROOM as u16);
        }
        let arena = frames.arena();
        match self.lines {
            1 => self.fill::<1>(&taken[..n], out, arena, now_ns),
            2 => self.fill::<2>(&taken[..n], out, arena, now_ns),
            CHECKED => self.fill::<CHECKED>(&taken[..n], out, arena, now_ns),
            _ => self.fill::<0>(&taken[..n], out, arena, now_ns),
        }
        let n64 = n as u64;
        self.pace.sent(n64);
        if self.left != u64::MAX {
            self.left -= n64;
        }
        self.generated += n64;
        n
    }

    fn tx_burst(&mut self, packets: &[Packet], frames: &mut FrameCache, _now_ns: u64) -> usize {
        frames.free_packets(packets);
        self.swallowed += packets.len() as u64;
        packets.len()
    }

    fn count_with(&mut self, counters: &Arc<QueueCounters>) {
        self.pace.pacer.count_with(counters);
    }

    fn pace(&mut self, rate_pps: f64) {
        self.pace.change(rate_pps);
    }

    fn is_finished(&self) -> bool {
        self.left == 0
    }

    fn details(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("generated", self.generated as f64),
            ("no_frames", self.no_frames as f64),
            ("skipped", self.pace.pacer.skipped() as f64),
            ("swallowed", self.swallowed as f64),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::SinkQueue;
    use crate::stamp::Stamp;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice, VlanSlice};
    use proptest::prelude::*;
    use sluice_dataplane::classify::key::FlowKey;
    use sluice_dataplane::fake::cache;
    use std::collections::HashMap;

    const ROOM: usize = 2112;

    #[derive(Debug, Clone)]
    struct Seen {
        stamp: Stamp,
        size: u16,
        src: IpAddr,
        dst: IpAddr,
        src_port: u16,
        dst_port: u16,
        dscp: u8,
        vlan: Option<u16>,
        tcp_sequence: Option<u32>,
        edge: (bool, bool),
        payload: usize,
    }

    /// Parses a packet with an independent parser, and checks its lengths and checksums.
    fn parse(bytes: &[u8]) -> Seen {
        let parsed = SlicedPacket::from_ethernet(bytes).unwrap();
        let vlan = parsed.vlan().map(|vlan| match vlan {
            VlanSlice::SingleVlan(tag) => tag.vlan_identifier().value(),
            VlanSlice::DoubleVlan(_) => panic!("one tag"),
        });
        let (src, dst, dscp) = match parsed.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
                (header.source_addr().into(), header.destination_addr().into(), header.dcp().value())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                (header.source_addr().into(), header.destination_addr().into(), header.traffic_class() >> 2)
            }
            other => panic!("{other:?}"),
        };
        let (src_port, dst_port, tcp_sequence, payload) = match (parsed.transport.as_ref().unwrap(), parsed.net.as_ref().unwrap()) {
            (TransportSlice::Udp(udp), NetSlice::Ipv4(_)) => {
                assert_eq!(udp.checksum(), 0, "not computed");
                assert_eq!(usize::from(udp.length()), udp.payload().len() + 8);
                (udp.source_port(), udp.destination_port(), None, udp.payload())
            }
            (TransportSlice::Udp(udp), NetSlice::Ipv6(ip)) => {
                let sum = udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), udp.payload()).unwrap();
                assert_eq!(udp.checksum(), sum);
                assert_eq!(usize::from(udp.length()), udp.payload().len() + 8);
                (udp.source_port(), udp.destination_port(), None, udp.payload())
            }
            (TransportSlice::Tcp(tcp), net) => {
                let sum = match net {
                    NetSlice::Ipv4(ip) => tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap(),
                    NetSlice::Ipv6(ip) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap(),
                    other => panic!("{other:?}"),
                };
                assert_eq!(tcp.checksum(), sum);
                (tcp.source_port(), tcp.destination_port(), Some(tcp.sequence_number()), tcp.payload())
            }
            other => panic!("{other:?}"),
        };
        let edge = match parsed.transport.as_ref() {
            Some(TransportSlice::Tcp(tcp)) => (tcp.syn(), tcp.rst()),
            _ => (false, false),
        };
        let word = u128::from_le_bytes(bytes[bytes.len() - stamp::BYTES..].try_into().unwrap());
        let time = stamp::unchecked(word as u64);
        if time.is_some() {
            let mut again = bytes.to_vec();
            seal(&mut again);
            assert_eq!(again, bytes, "its checksum");
        }
        Seen {
            stamp: Stamp::unpack([time.unwrap_or(word as u64), (word >> 64) as u64]).unwrap(),
            size: bytes.len() as u16,
            src,
            dst,
            src_port,
            dst_port,
            dscp,
            vlan,
            tcp_sequence,
            edge,
            payload: payload.len(),
        }
    }

    /// Takes up to `most` packets of a queue, parsed.
    fn take(queue: &mut dyn PortQueue, frames: &mut FrameCache, most: usize) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut packets = [Packet::default(); 48];
        while seen.len() < most {
            let room = (most - seen.len()).min(packets.len());
            let n = queue.rx_burst(&mut packets[..room], frames, 77 + seen.len() as u64);
            if n == 0 {
                break;
            }
            for packet in &packets[..n] {
                let mut bytes = vec![0; packet.len.into()];
                assert!(frames.arena().read(packet.frame, packet.offset, &mut bytes));
                seen.push(parse(&bytes));
                // What an NF leaves in a frame does not show in the next packet.
                assert!(frames.arena().write(packet.frame, packet.offset, &vec![0xa5; packet.len.into()]));
            }
            frames.free_packets(&packets[..n]);
        }
        seen
    }

    fn settings() -> impl Strategy<Value = Gen> {
        let sizes = prop_oneof![
            (102u16..1600).prop_map(|size| (size, Vec::new())),
            proptest::collection::vec((102u16..1600, 1u32..9), 1..5).prop_map(|mix| (60, mix)),
        ];
        let address = prop_oneof![Just(None), any::<u128>().prop_map(Some)];
        let tag = prop_oneof![Just(None), (0u16..4095).prop_map(Some)];
        (sizes, 1u32..70, any::<[bool; 3]>(), tag, 0u8..64, any::<u16>(), [address.clone(), address]).prop_map(
            |((size, imix), flows, [tcp, ipv6, checksum], vlan, dscp, dst_port, addresses)| {
                let [src, dst] = addresses.map(|bits| {
                    bits.map(|bits: u128| if ipv6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) })
                });
                let protocol = if tcp { GenProtocol::Tcp } else { GenProtocol::Udp };
                Gen { size, imix, flows, protocol, ipv6, vlan, dscp, dst_port, src, dst, checksum, ..Gen::default() }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn packets_are_valid_and_as_asked_for(settings in settings(), queues in 1u32..4, count in 1u64..300) {
            let settings = Gen { count, ..settings };
            let mut port = open("g", queues, &settings, ROOM).unwrap();
            let header = headers(&settings).unwrap();
            let mut frames = cache(64);
            let mut flows: HashMap<u32, (u32, u32, usize)> = HashMap::new();
            let mut total = 0;
            for (q, queue) in port.queues.iter_mut().enumerate() {
                let seen = take(queue.as_mut(), &mut frames, 1000);
                prop_assert!(queue.is_finished());
                total += seen.len();
                let base = seen.iter().map(|s| s.stamp.flow).min().unwrap_or(0) - if seen.is_empty() { 0 } else { q as u32 };
                for s in seen {
                    let flow = s.stamp.flow - base;
                    prop_assert!(flow < settings.flows && flow % queues == q as u32);
                    // A flow's numbers grow by one, TCP sequence numbers by what was sent before.
                    let next = flows.entry(flow).or_insert((0, 1, q));
                    prop_assert_eq!((s.stamp.sequence, q), (next.0, next.2));
                    if let Some(sequence) = s.tcp_sequence {
                        prop_assert_eq!(sequence, next.1);
                    }
                    prop_assert_eq!(s.tcp_sequence.is_some(), settings.protocol == GenProtocol::Tcp);
                    *next = (next.0 + 1, next.1.wrapping_add(s.payload as u32), q);
                    let first = settings.src.unwrap_or(if settings.ipv6 { SRC_V6.into() } else { SRC_V4.into() });
                    prop_assert_eq!(low_bits(s.src), low_bits(first).wrapping_add(flow));
                    prop_assert_eq!(s.dst, settings.dst.unwrap_or(if settings.ipv6 { DST_V6.into() } else { DST_V4.into() }));
                    prop_assert_eq!((s.vlan, s.dscp, s.dst_port), (settings.vlan, settings.dscp, settings.dst_port));
                    prop_assert_eq!(s.src_port, 0x8000 + flow as u16);
                    let key = FlowKey::parse(&header(flow)[..usize::from(s.size).min(128)], s.size, 0);
                    prop_assert_eq!((key.addresses(), key.ports()), (Some((s.src, s.dst)), Some((s.src_port, s.dst_port))));
                    prop_assert_eq!((key.vlan(), key.dscp()), (s.vlan.unwrap_or(0), s.dscp));
                    prop_assert_eq!(key.protocol() == 6, s.tcp_sequence.is_some());
                    if settings.imix.is_empty() {
                        prop_assert_eq!(s.size, settings.size);
                    } else {
                        prop_assert!(settings.imix.iter().any(|(size, _)| *size == s.size));
                    }
                }
            }
            prop_assert_eq!(total as u64, count);
            // Round-robin: no flow has more than one packet more than another.
            let numbers = (0..settings.flows).map(|f| flows.get(&f).map_or(0, |n| n.0));
            let (least, most) = (numbers.clone().min().unwrap(), numbers.max().unwrap());
            prop_assert!(most - least <= 1);
        }

        #[test]
        fn flows_end_after_their_packets_and_others_begin(settings in settings(), flow_packets in 2u32..12) {
            let settings = Gen { flow_packets, ..settings };
            let mut port = open("g", 1, &settings, ROOM).unwrap();
            let seen = take(port.queues[0].as_mut(), &mut cache(64), (settings.flows * flow_packets * 5) as usize);
            let mut places: HashMap<IpAddr, Vec<Seen>> = HashMap::new();
            seen.into_iter().for_each(|s| places.entry(s.src).or_default().push(s));
            prop_assert_eq!(places.len(), settings.flows as usize);
            for place in places.values() {
                let mut flows = place.chunk_by(|a, b| a.src_port == b.src_port).peekable();
                let mut lengths = Vec::new();
                while let Some(flow) = flows.next() {
                    let tcp = settings.protocol == GenProtocol::Tcp;
                    let (first, last) = (0, flow_packets as usize - 1);
                    // The last flow may not be over, and the first one is shorter.
                    let is_over = flows.peek().is_some();
                    for (i, packet) in flow.iter().enumerate() {
                        let ends = if is_over { i + 1 == flow.len() } else { i == last };
                        if tcp && (is_over || !lengths.is_empty()) {
                            prop_assert_eq!(packet.edge, (i == first, ends));
                        }
                    }
                    if let Some(next) = flows.peek() {
                        let after = if flow[0].src_port == u16::MAX { 0x8000 } else { flow[0].src_port + 1 };
                        prop_assert_eq!(next[0].src_port, after);
                        lengths.push(flow.len());
                    }
                }
                prop_assert!((2..=flow_packets as usize).contains(&lengths[0]));
                prop_assert!(lengths.len() >= 4 && lengths[1..].iter().all(|n| *n == flow_packets as usize));
            }
        }

        #[test]
        fn every_flow_gets_the_mix(weights in proptest::collection::vec(1u32..6, 1..4), flows in 1u32..13) {
            let imix: Vec<(u16, u32)> = weights.iter().enumerate().map(|(i, w)| (100 + i as u16, *w)).collect();
            let common = weights.iter().copied().fold(0, gcd);
            let period: u32 = weights.iter().map(|w| w / common).sum();
            let mut port = open("g", 1, &Gen { imix: imix.clone(), flows, ..Gen::default() }, ROOM).unwrap();
            let seen = take(port.queues[0].as_mut(), &mut cache(64), (period * flows) as usize);
            let mut counts: HashMap<(u32, u16), u32> = HashMap::new();
            seen.iter().for_each(|s| *counts.entry((s.stamp.flow, s.size)).or_default() += 1);
            for flow in seen.iter().map(|s| s.stamp.flow) {
                for (size, weight) in &imix {
                    prop_assert_eq!(counts[&(flow, *size)], weight / common);
                }
            }
        }
    }

    #[test]
    fn the_smallest_packets_are_valid() {
        for (ipv6, protocol, vlan, least) in [
            (false, GenProtocol::Udp, None, 58),
            (false, GenProtocol::Udp, Some(5), 62),
            (false, GenProtocol::Tcp, None, 70),
            (true, GenProtocol::Udp, None, 78),
            (true, GenProtocol::Tcp, Some(5), 94),
        ] {
            let settings = Gen { ipv6, protocol, vlan, ..Gen::default() };
            for size in [least, least + 1, least + 2, 64.max(least), 65.max(least)] {
                let mut port = open("g", 1, &Gen { size, ..settings.clone() }, ROOM).unwrap();
                let seen = take(port.queues[0].as_mut(), &mut cache(64), 40);
                assert!(seen.iter().all(|s| s.size == size) && seen.len() == 40);
            }
            let error = open("g", 1, &Gen { size: least - 1, ..settings }, ROOM).err().unwrap().to_string();
            assert!(error.contains(&format!("set at least {least} bytes")), "{error}");
        }
    }

    #[test]
    fn settings_that_cannot_be_are_refused_with_advice() {
        let v6: IpAddr = "::1".parse().unwrap();
        let base = Gen::default;
        for (settings, words) in [
            (Gen { flows: 0, ..base() }, "flows = 0"),
            (Gen { flow_packets: 1, ..base() }, "set 2 or more"),
            (Gen { flows: MAX_FLOWS + 1, ..base() }, "set 1 to"),
            (Gen { rate: -1.0, ..base() }, "rate = -1"),
            (Gen { rate: f64::NAN, ..base() }, "no rate"),
            (Gen { dscp: 64, ..base() }, "dscp = 64"),
            (Gen { vlan: Some(4095), ..base() }, "vlan = 4095"),
            (Gen { src: Some(v6), ..base() }, "set ipv6 = true"),
            (Gen { dst: Some(v6), ..base() }, "dst = ::1"),
            (
                Gen { size: 65, checksum: true, ..base() },
                "no room for their headers, a checksum and a stamp; set at least 66 bytes",
            ),
            (Gen { size: 3000, ..base() }, "memory.packet_bytes to at least 3000"),
            (Gen { size: 65_500, ..base() }, "set at most 65344"),
            (Gen { imix: vec![(60, 0)], ..base() }, "weight"),
            (Gen { imix: vec![(60, 9000), (61, 9001)], ..base() }, "add up to 18001"),
        ] {
            let error = open("west", 1, &settings, ROOM).err().unwrap().to_string();
            assert!(error.starts_with("port west: ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_rate_of_a_port_changes_while_it_runs() {
        let settings = Gen { rate: 1e6, flows: 2, ..Gen::default() };
        let mut frames = cache(256);
        let mut port = open("g", 2, &settings, ROOM).unwrap();
        let mut packets = [Packet::default(); BURST];
        let queue = &mut port.queues[0];
        let mut made = |queue: &mut Box<dyn PortQueue>, now_ns: u64| {
            let n = queue.rx_burst(&mut packets, &mut frames, now_ns);
            queue.tx_burst(&packets[..n], &mut frames, now_ns);
            n
        };
        assert_eq!([made(queue, 0), made(queue, 1_000)], [1, 0], "half of the port's rate");
        queue.pace(0.0);
        assert_eq!([made(queue, 1_000), made(queue, 1_000)], [BURST; 2], "as fast as possible");
        queue.pace(2e3);
        assert_eq!([made(queue, 5_000), made(queue, 5_000), made(queue, 1_006_000)], [1, 0, 1]);
    }

    #[test]
    fn a_rate_is_shared_and_paced() {
        let settings = Gen { rate: 3e6, flows: 3, ..Gen::default() };
        assert_eq!(Share::new(&settings, 2, 0), Share { first: 0, step: 2, flows: 2, of: 3, rate: 2e6, count: u64::MAX });
        assert_eq!(Share::new(&settings, 2, 1), Share { first: 1, step: 2, flows: 1, of: 3, rate: 1e6, count: u64::MAX });
        // A queue without a flow is finished.
        assert_eq!(Share::new(&settings, 4, 3).count, 0);
        let mut frames = cache(64);
        let mut port = open("g", 2, &settings, ROOM).unwrap();
        let mut packets = [Packet::default(); 64];
        let mut total = 0;
        for now in (0..=1_000_000u64).step_by(500) {
            for queue in &mut port.queues {
                let n = queue.rx_burst(&mut packets, &mut frames, now);
                frames.free_packets(&packets[..n]);
                total += n;
            }
        }
        assert_eq!(total, 3000 + 2);
    }

    #[test]
    fn without_frames_nothing_is_made_and_nothing_is_lost() {
        let mut frames = cache(40);
        let mut port = open("g", 1, &Gen { count: 100, ..Gen::default() }, ROOM).unwrap();
        let (queue, mut sink) = (&mut port.queues[0], SinkQueue::default());
        let mut packets = [Packet::default(); 100];
        assert_eq!(queue.rx_burst(&mut packets, &mut frames, 1), 32);
        assert_eq!(queue.rx_burst(&mut packets[32..], &mut frames, 1), 8);
        assert_eq!(queue.rx_burst(&mut packets[40..], &mut frames, 1), 0);
        assert!(queue.details().contains(&("no_frames", 1.0)));
        sink.tx_burst(&packets[..40], &mut frames, 2);
        while !queue.is_finished() {
            let n = queue.rx_burst(&mut packets, &mut frames, 3);
            sink.tx_burst(&packets[..n], &mut frames, 4);
        }
        let details: HashMap<_, _> = sink.details().into_iter().collect();
        assert_eq!((details["stamped"], details["lost"], details["unstamped"]), (100.0, 0.0, 0.0));
        assert!(queue.details().contains(&("generated", 100.0)));
        assert_eq!(frames.held(), 40);
        // Packets sent to a generator are dropped.
        let mut frame = [0];
        frames.alloc(&mut frame);
        assert_eq!(queue.tx_burst(&[Packet::fresh(frame[0], 60)], &mut frames, 5), 1);
        assert!(queue.details().contains(&("swallowed", 1.0)) && frames.held() == 40);
    }

    #[test]
    fn a_sink_counts_packets_that_are_not_as_they_were_made() {
        let mut frames = cache(64);
        let mut port = open("g", 1, &Gen { size: 66, flows: 3, checksum: true, ..Gen::default() }, ROOM).unwrap();
        let (queue, mut sink) = (&mut port.queues[0], SinkQueue::default());
        let details = |sink: &SinkQueue| sink.details().into_iter().collect::<HashMap<_, _>>();
        let mut packets = [Packet::default(); 30];
        assert_eq!(queue.rx_burst(&mut packets, &mut frames, 1), 30);
        // One has a bit changed, one has lost its last byte, and one is a copy of another.
        let mut bytes = [0; 66];
        let arena = frames.arena();
        arena.read(packets[3].frame, packets[3].offset, &mut bytes);
        bytes[7] ^= 1;
        arena.write(packets[3].frame, packets[3].offset, &bytes);
        packets[10].len -= 1;
        arena.read(packets[11].frame, packets[11].offset, &mut bytes);
        arena.write(packets[20].frame, packets[20].offset, &bytes);
        sink.tx_burst(&packets, &mut frames, 2);
        let told = details(&sink);
        assert_eq!((told["altered"], told["unstamped"], told["stamped"]), (1.0, 1.0, 28.0), "{told:?}");
        // 11, 20 and 29 are of one flow: 20 is lost, and 11 came twice.
        assert_eq!((told["lost"], told["duplicated"]), (3.0, 1.0), "{told:?}");
        assert_eq!(queue.rx_burst(&mut packets, &mut frames, 3), 30);
        sink.tx_burst(&packets, &mut frames, 4);
        assert_eq!((details(&sink)["altered"], details(&sink)["stamped"]), (1.0, 58.0));
        assert_eq!(sink.latency().unwrap().count(), 58);
    }

    #[test]
    fn a_mix_is_dealt_evenly() {
        assert_eq!(pattern(&[7, 4, 1]).unwrap(), [0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 1, 0]);
        assert_eq!(pattern(&[14, 7]).unwrap(), [0, 1, 0]);
    }
}
