//! The translation of packets.
//!
//! # Direction
//! By address alone: a packet from an inside prefix to another address goes out and gets an outside
//! source; a packet to an outside address comes in and gets an inside destination. All others (not
//! IPv4, ARP, between inside hosts, link-local and broadcast destinations) pass unchanged and are
//! counted.
//!
//! # What is translated
//! TCP, UDP (a missing checksum stays missing), ICMP queries (echo) by their identifier, and ICMP
//! errors about any of them with the packet that they quote (RFC 5508). Checksums are updated by
//! difference, so a wrong one stays wrong. Other protocols have nothing that tells flows apart;
//! they are dropped and counted.
//!
//! # Fragments
//! The first fragment has the ports. Its translation is remembered by the datagram's addresses,
//! protocol and number until all of it has passed, 30 seconds at most, and the others follow it. A
//! later fragment that comes before the first one is dropped and counted.
//!
//! # Limits
//! No hairpinning: a packet from the inside to an outside address is dropped and counted. No
//! protocol helpers (FTP, SIP).

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::Ipv4Net;
use sluice_nf::header::{Headers, NotThere, parse, protocol};
use sluice_nf::{Burst, Handler};
use sluice_nf_parts::datagram::{Datagrams, Part};
use sluice_nf_parts::flow::stays_on_link;
use sluice_nf_parts::icmp::Quoted;
use sluice_nf_parts::report::{Report, Reports};
use sluice_nf_parts::table::AGE_TICK;

use crate::mapping::{Full, Inside, Mappings, PortSpace};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    NoMapping,
    NoPort,
    TableFull,
    Fragment,
    Malformed,
    Protocol,
    Hairpin,
}

impl From<Full> for Refused {
    fn from(full: Full) -> Self {
        match full {
            Full::Ports => Self::NoPort,
            Full::Table => Self::TableFull,
        }
    }
}

impl From<NotThere> for Refused {
    fn from(_: NotThere) -> Self {
        Self::Malformed
    }
}

/// Names of the counters of [`Refused`], in its order.
const REFUSED: [&str; 7] = [
    "dropped_no_mapping",
    "dropped_no_port",
    "dropped_table_full",
    "dropped_fragment",
    "dropped_malformed",
    "dropped_protocol",
    "dropped_hairpin",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    In,
    Neither,
}

#[derive(Debug)]
pub struct Nat {
    inside: Vec<Ipv4Net>,
    mappings: Mappings,
    /// The address that the fragments of a datagram get.
    datagrams: Datagrams<Ipv4Addr>,
    out: u64,
    back: u64,
    passed: u64,
    expired: u64,
    refused: [u64; REFUSED.len()],
}

impl Nat {
    pub fn new(inside: Vec<Ipv4Net>, mappings: Mappings) -> Self {
        Self { inside, mappings, datagrams: Datagrams::new(), out: 0, back: 0, passed: 0, expired: 0, refused: [0; REFUSED.len()] }
    }

    fn is_inside(&self, address: Ipv4Addr) -> bool {
        self.inside.iter().any(|prefix| prefix.contains(&address))
    }

    fn direction(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Result<Direction, Refused> {
        let from_inside = self.is_inside(src);
        if self.mappings.is_outside(dst) {
            return if from_inside { Err(Refused::Hairpin) } else { Ok(Direction::In) };
        }
        let goes_out = from_inside && !self.is_inside(dst) && !stays_on_link(dst.into());
        Ok(if goes_out { Direction::Out } else { Direction::Neither })
    }

    /// Translates a packet in place.
    fn translate(&mut self, packet: &mut [u8], now_ns: u64) -> Result<Direction, Refused> {
        let Some(mut headers) = parse(packet) else { return Ok(Direction::Neither) };
        let (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) = (headers.src(packet), headers.dst(packet)) else {
            return Ok(Direction::Neither);
        };
        let direction = self.direction(src, dst)?;
        if direction == Direction::Neither {
            return Ok(direction);
        }
        let part = Part::of(packet, &headers);
        if let Some(part) = part.filter(|part| !part.is_first()) {
            let known = self.datagrams.follow(&part).ok_or(Refused::Fragment)?;
            set_address(packet, &headers, direction, known)?;
            return Ok(direction);
        }
        let session = Session::of(packet, &headers);
        let address = match (session, direction) {
            (Ok(session), Direction::Out) => {
                let inside = Inside { address: src, port: session.src, pool: session.pool };
                let (address, port) = self.mappings.outbound(inside, now_ns, session.flags)?;
                headers.set_src(packet, address.into())?;
                session.set_port(packet, &mut headers, direction, port)?;
                address
            }
            (Ok(session), _) => {
                let (address, port) =
                    self.mappings.inbound(session.pool, dst, session.dst, now_ns, session.flags).ok_or(Refused::NoMapping)?;
                headers.set_dst(packet, address.into())?;
                session.set_port(packet, &mut headers, direction, port)?;
                address
            }
            (Err(refused), _) => {
                let quoted = Quoted::find(packet, &headers).ok_or(refused)?;
                self.translate_error(packet, &headers, &quoted, direction)?;
                return Ok(direction);
            }
        };
        if let Some(part) = part {
            self.datagrams.remember(&part, address, now_ns);
        }
        Ok(direction)
    }

    /// Translates an ICMP error and the packet that it quotes, which went the other way.
    fn translate_error(&self, packet: &mut [u8], headers: &Headers, quoted: &Quoted, direction: Direction) -> Result<(), Refused> {
        let pool = match quoted.key.protocol() {
            protocol::TCP => PortSpace::Tcp,
            protocol::UDP => PortSpace::Udp,
            protocol::ICMP => PortSpace::Icmp,
            _ => return Err(Refused::Protocol),
        };
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (quoted.key.src(), quoted.key.dst()) else { return Err(Refused::Malformed) };
        if direction == Direction::Out {
            let inside = Inside { address: dst, port: quoted.key.dst_port(), pool };
            let (address, port) = self.mappings.peek_outbound(inside).ok_or(Refused::NoMapping)?;
            headers.set_src(packet, address.into())?;
            quoted.set_dst(packet, address.into(), port)?;
        } else {
            let (address, port) = self.mappings.peek_inbound(pool, src, quoted.key.src_port()).ok_or(Refused::NoMapping)?;
            headers.set_dst(packet, address.into())?;
            quoted.set_src(packet, address.into(), port)?;
        }
        Ok(quoted.seal(packet, headers)?)
    }
}

fn set_address(packet: &mut [u8], headers: &Headers, direction: Direction, address: Ipv4Addr) -> Result<(), NotThere> {
    if direction == Direction::Out { headers.set_src(packet, address.into()) } else { headers.set_dst(packet, address.into()) }
}

/// The part of a packet that tells its flow from others between the same addresses.
#[derive(Debug, Clone, Copy)]
struct Session {
    pool: PortSpace,
    src: u16,
    dst: u16,
    flags: u8,
}

impl Session {
    fn of(packet: &[u8], headers: &Headers) -> Result<Self, Refused> {
        let number = headers.ip.map(|ip| ip.protocol);
        let ports = headers.l4.and_then(|l4| l4.ports);
        let id = headers.echo_id(packet);
        match (number, ports, id) {
            (Some(protocol::TCP), Some((src, dst)), _) => {
                let at = headers.l4.map(|l4| l4.offset as usize + 13);
                let flags = at.and_then(|at| packet.get(at)).copied().ok_or(Refused::Malformed)?;
                Ok(Self { pool: PortSpace::Tcp, src, dst, flags })
            }
            (Some(protocol::UDP), Some((src, dst)), _) => Ok(Self { pool: PortSpace::Udp, src, dst, flags: 0 }),
            (Some(protocol::ICMP), _, Some(id)) => Ok(Self { pool: PortSpace::Icmp, src: id, dst: id, flags: 0 }),
            (Some(protocol::TCP | protocol::UDP | protocol::ICMP), ..) => Err(Refused::Malformed),
            _ => Err(Refused::Protocol),
        }
    }

    fn set_port(&self, packet: &mut [u8], headers: &mut Headers, direction: Direction, port: u16) -> Result<(), NotThere> {
        match (self.pool, direction) {
            (PortSpace::Icmp, _) => headers.set_echo_id(packet, port),
            (_, Direction::Out) => headers.set_src_port(packet, port),
            _ => headers.set_dst_port(packet, port),
        }
    }
}

impl Handler for Nat {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        let now_ns = burst.now_ns();
        for mut packet in burst.iter_mut() {
            match self.translate(packet.data_mut(), now_ns) {
                Ok(Direction::Out) => self.out += 1,
                Ok(Direction::In) => self.back += 1,
                Ok(Direction::Neither) => self.passed += 1,
                Err(refused) => {
                    self.refused[refused as usize] += 1;
                    packet.drop();
                }
            }
        }
    }

    fn tick(&mut self, now_ns: u64) {
        self.expired += self.mappings.age(now_ns);
        self.datagrams.age(now_ns);
    }

    fn tick_every(&self) -> Option<Duration> {
        Some(AGE_TICK)
    }
}

const COLUMNS: &[&str] = &["protocol", "inside", "inside_port", "outside", "outside_port", "last_seen_s"];

impl Reports for Nat {
    fn report(&self, now_ns: u64) -> Report {
        let mut report = Report::new("nat")
            .counter("translated_out", self.out)
            .counter("translated_in", self.back)
            .counter("not_translated", self.passed)
            .counter("mappings", self.mappings.len() as u64)
            .counter("mappings_expired", self.expired);
        for (name, n) in REFUSED.into_iter().zip(self.refused) {
            report = report.counter(name, n);
        }
        let rows = self.mappings.iter().map(|(inside, mapping)| {
            let (address, port) = self.mappings.outside(mapping);
            let pool = match inside.pool {
                PortSpace::Tcp => "tcp",
                PortSpace::Udp => "udp",
                PortSpace::Icmp => "icmp",
            };
            vec![
                pool.into(),
                inside.address.to_string().into(),
                inside.port.into(),
                address.to_string().into(),
                port.into(),
                report.wall_clock_s(mapping.last_ns, now_ns).into(),
            ]
        });
        let rows = rows.collect();
        report.table("mappings", COLUMNS, rows)
    }
}

#[cfg(test)]
#[path = "nat_tests.rs"]
mod tests;
