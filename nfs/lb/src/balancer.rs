//! The path of a packet through the load balancer.
//!
//! # To the virtual address
//! A packet to the virtual address and port goes to the backend of its connection, else to the one
//! that Maglev hashing picks. The connection is then remembered, so that it stays there when
//! backends come and go. When the table is full, hashing alone decides, which is the same unless
//! backends changed. With `mac` only the destination MAC address is written: the backends own the
//! virtual address (on a loopback device) and answer directly. With `ip` the destination address
//! and port are written, and answers come back through here.
//!
//! # From the backends
//! With `ip`, the answers of known connections get the virtual address and port back as their
//! source.
//!
//! ICMP errors about a connection take the way of the connection, with the quoted packet
//! translated. Fragments take the way of their first one; one that comes before it is dropped and
//! counted. All other packets pass unchanged.
//!
//! # Limits
//! A connection is forgotten when idle, and soon after a reset or a FIN from the client. A
//! connection whose backend was removed from the file gets another one.

use std::net::IpAddr;
use std::time::Duration;

use sluice_nf::header::{Headers, NotThere, parse, protocol};
use sluice_nf::{Burst, Handler};
use sluice_nf_parts::datagram::{Datagrams, Part};
use sluice_nf_parts::flow::FlowKey;
use sluice_nf_parts::icmp::Quoted;
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{Report, Reports};
use sluice_nf_parts::table::{AGE_TICK, Table};

use crate::backends::Backend;
use crate::maglev::{Maglev, hash_words};

const SECOND: u64 = 1_000_000_000;
/// How long a connection is kept after a reset or the client's FIN.
const CLOSING_S: u64 = 30;

/// How packets get to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rewrite {
    /// Destination MAC address; backends answer by themselves
    Mac,
    /// Destination address and port; answers come back through here
    Ip,
}

/// The balanced service.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: u8,
    pub rewrite: Rewrite,
    /// Seconds after which an idle connection is forgotten.
    pub idle_s: u64,
}

/// Backends and the table that spreads flows over them.
#[derive(Debug)]
pub struct Backends {
    backends: Vec<Backend>,
    maglev: Maglev,
}

impl Backends {
    pub fn new(backends: Vec<Backend>) -> Self {
        let shares: Vec<(&str, u32)> = backends.iter().map(|backend| (backend.name.as_str(), backend.weight)).collect();
        let maglev = Maglev::new(&shares);
        Self { backends, maglev }
    }
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    backend: u16,
    closing: bool,
    last_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    NoBackend,
    Fragment,
    Malformed,
}

const REFUSED: [&str; 3] = ["dropped_no_backend", "dropped_fragment", "dropped_malformed"];

impl From<NotThere> for Refused {
    fn from(_: NotThere) -> Self {
        Self::Malformed
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    ToBackend(u16),
    FromBackend,
    Nothing,
}

#[derive(Debug, Clone, Copy, Default)]
struct Hits {
    packets: u64,
    bytes: u64,
    connections: u64,
}

#[derive(Debug)]
pub struct Balancer {
    service: Service,
    pool: Backends,
    hits: Vec<Hits>,
    fresh: Option<Reload<Backends>>,
    connections: Table<FlowKey, Connection>,
    /// The backend that the fragments of a datagram go to; None if they come from one.
    datagrams: Datagrams<Option<u16>>,
    from_backends: u64,
    passed: u64,
    untracked: u64,
    refused: [u64; REFUSED.len()],
}

impl Balancer {
    /// `limit` is the most connections that it remembers; `fresh` brings new backends.
    pub fn new(service: Service, pool: Backends, limit: usize, fresh: Option<Reload<Backends>>) -> Self {
        Self {
            service,
            hits: vec![Hits::default(); pool.backends.len()],
            pool,
            fresh,
            connections: Table::with_limit(limit),
            datagrams: Datagrams::new(),
            from_backends: 0,
            passed: 0,
            untracked: 0,
            refused: [0; REFUSED.len()],
        }
    }

    /// Sets new backends. Connections and counters stay with backends of the same name.
    fn set_pool(&mut self, pool: Backends) {
        let place = |name: &str| pool.backends.iter().position(|backend| backend.name == name).map(|place| place as u16);
        let moved: Vec<Option<u16>> = self.pool.backends.iter().map(|backend| place(&backend.name)).collect();
        let mut hits = vec![Hits::default(); pool.backends.len()];
        for (old, new) in moved.iter().enumerate().filter_map(|(old, new)| Some((old, (*new)?))) {
            hits[new as usize] = self.hits[old];
        }
        let moved = |backend: u16| moved.get(backend as usize).copied().flatten();
        self.connections.retain(|_, connection| moved(connection.backend).inspect(|new| connection.backend = *new).is_some());
        self.datagrams.change(|backend| backend.map_or(Some(None), |old| moved(old).map(Some)));
        self.hits = hits;
        self.pool = pool;
    }

    fn balance(&mut self, packet: &mut [u8], now_ns: u64) -> Result<Done, Refused> {
        let Some(headers) = parse(packet) else { return Ok(Done::Nothing) };
        let (Some(ip), Some(key)) = (headers.ip, FlowKey::of(packet, &headers)) else { return Ok(Done::Nothing) };
        let to_us = key.dst() == self.service.address;
        if ip.protocol != self.service.protocol {
            return self.balance_error(packet, &headers, to_us);
        }
        let part = Part::of(packet, &headers);
        if let Some(part) = part.filter(|part| !part.is_first()) {
            return match self.datagrams.follow(&part) {
                Some(Some(backend)) => self.send_to(packet, headers, backend),
                Some(None) => self.answer(packet, headers),
                None if to_us => Err(Refused::Fragment),
                None => Ok(Done::Nothing),
            };
        }
        let backend = if to_us {
            if headers.l4.is_none() {
                return Err(Refused::Malformed);
            }
            if key.dst_port() != self.service.port {
                return Ok(Done::Nothing);
            }
            Some(self.backend_of(packet, &headers, &key, now_ns)?)
        } else if self.is_answer(&key, now_ns) {
            None
        } else {
            return Ok(Done::Nothing);
        };
        if let Some(part) = part {
            self.datagrams.remember(&part, backend, now_ns);
        }
        match backend {
            Some(backend) => self.send_to(packet, headers, backend),
            None => self.answer(packet, headers),
        }
    }

    fn backend_of(&mut self, packet: &[u8], headers: &Headers, key: &FlowKey, now_ns: u64) -> Result<u16, Refused> {
        let flags = match headers.l4 {
            Some(l4) if l4.protocol == protocol::TCP => packet.get(l4.offset as usize + 13).copied().unwrap_or_default(),
            _ => 0,
        };
        let (begins, ends) = (flags & 2 != 0, flags & 5 != 0);
        if let Some(connection) = self.connections.get_mut(key)
            && !(connection.closing && begins)
        {
            connection.last_ns = now_ns;
            connection.closing |= ends;
            return Ok(connection.backend);
        }
        let backend = self.pool.maglev.pick(hash_words(&key.words())).ok_or(Refused::NoBackend)?;
        match self.connections.insert(*key, Connection { backend, closing: ends, last_ns: now_ns }) {
            Some(_) => self.hits[backend as usize].connections += 1,
            None => self.untracked += 1,
        }
        Ok(backend)
    }

    /// The key, towards the virtual address, of the connection that `key` is an answer of.
    fn towards_us(&self, key: &FlowKey) -> FlowKey {
        FlowKey::new(key.dst(), self.service.address, key.protocol(), key.dst_port(), self.service.port)
    }

    /// Whether a packet is the answer of a backend in a known connection.
    fn is_answer(&mut self, key: &FlowKey, now_ns: u64) -> bool {
        if self.service.rewrite == Rewrite::Mac || key.is_ipv4() != self.service.address.is_ipv4() {
            return false;
        }
        let towards_us = self.towards_us(key);
        let Some(connection) = self.connections.get_mut(&towards_us) else { return false };
        if !is_end(&self.pool.backends[connection.backend as usize], &self.service, key.src(), key.src_port()) {
            return false;
        }
        connection.last_ns = now_ns;
        true
    }

    /// Sends an ICMP error about a connection the connection's way; passes on all others.
    fn balance_error(&mut self, packet: &mut [u8], headers: &Headers, to_us: bool) -> Result<Done, Refused> {
        let Some(quoted) = Quoted::find(packet, headers).filter(|q| q.key.protocol() == self.service.protocol) else {
            return Ok(Done::Nothing);
        };
        let service = self.service;
        if to_us {
            // About a packet from the virtual address to the client.
            let key = quoted.key.reversed();
            let Some(backend) = self.connections.get_mut(&key).map(|connection| connection.backend) else {
                return Ok(Done::Nothing);
            };
            if service.rewrite == Rewrite::Ip {
                let end = &self.pool.backends[backend as usize];
                headers.set_dst(packet, end.address)?;
                quoted.set_src(packet, end.address, end.port.unwrap_or(service.port))?;
                quoted.seal(packet, headers)?;
            }
            self.set_mac(packet, backend);
            return Ok(Done::ToBackend(backend));
        }
        if service.rewrite == Rewrite::Mac || quoted.key.is_ipv4() != service.address.is_ipv4() {
            return Ok(Done::Nothing);
        }
        // About a packet from the client to a backend.
        let answer = quoted.key.reversed();
        let towards_us = self.towards_us(&answer);
        let Some(connection) = self.connections.get_mut(&towards_us) else { return Ok(Done::Nothing) };
        if !is_end(&self.pool.backends[connection.backend as usize], &service, answer.src(), answer.src_port()) {
            return Ok(Done::Nothing);
        }
        if headers.src(packet) == Some(answer.src()) {
            headers.set_src(packet, service.address)?;
        }
        quoted.set_dst(packet, service.address, service.port)?;
        quoted.seal(packet, headers)?;
        Ok(Done::FromBackend)
    }

    fn set_mac(&self, packet: &mut [u8], backend: u16) {
        if let (Some(mac), Some(place)) = (self.pool.backends[backend as usize].mac, packet.first_chunk_mut::<6>()) {
            *place = mac.0;
        }
    }

    fn send_to(&self, packet: &mut [u8], mut headers: Headers, backend: u16) -> Result<Done, Refused> {
        let end = &self.pool.backends[backend as usize];
        if self.service.rewrite == Rewrite::Ip {
            headers.set_dst(packet, end.address)?;
            if let (Some(port), Some(_)) = (end.port, headers.l4) {
                headers.set_dst_port(packet, port)?;
            }
        }
        self.set_mac(packet, backend);
        Ok(Done::ToBackend(backend))
    }

    fn answer(&self, packet: &mut [u8], mut headers: Headers) -> Result<Done, Refused> {
        headers.set_src(packet, self.service.address)?;
        if headers.l4.is_some() {
            headers.set_src_port(packet, self.service.port)?;
        }
        Ok(Done::FromBackend)
    }
}

/// Whether an address and port are a backend's.
fn is_end(backend: &Backend, service: &Service, address: IpAddr, port: u16) -> bool {
    backend.address == address && backend.port.unwrap_or(service.port) == port
}

impl Handler for Balancer {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        let now_ns = burst.now_ns();
        for mut packet in burst.iter_mut() {
            match self.balance(packet.data_mut(), now_ns) {
                Ok(Done::ToBackend(backend)) => {
                    let hits = &mut self.hits[backend as usize];
                    hits.packets += 1;
                    hits.bytes += packet.len() as u64;
                }
                Ok(Done::FromBackend) => self.from_backends += 1,
                Ok(Done::Nothing) => self.passed += 1,
                Err(refused) => {
                    self.refused[refused as usize] += 1;
                    packet.drop();
                }
            }
        }
    }

    fn tick(&mut self, now_ns: u64) {
        if let Some(pool) = self.fresh.as_ref().and_then(Reload::take) {
            self.set_pool(pool);
        }
        let idle_s = self.service.idle_s;
        let is_old = |_: &FlowKey, connection: &Connection| {
            let seconds = if connection.closing { CLOSING_S.min(idle_s) } else { idle_s };
            now_ns.saturating_sub(connection.last_ns) >= seconds.saturating_mul(SECOND)
        };
        self.connections.age(is_old, |_, _, _| {});
        self.datagrams.age(now_ns);
    }

    fn tick_every(&self) -> Option<Duration> {
        Some(AGE_TICK)
    }
}

impl Reports for Balancer {
    fn report(&self, _now_ns: u64) -> Report {
        let mut report = Report::new("lb")
            .counter("connections", self.connections.len() as u64)
            .counter("from_backends", self.from_backends)
            .counter("passed", self.passed)
            .counter("untracked_connections", self.untracked);
        for (name, n) in REFUSED.into_iter().zip(self.refused) {
            report = report.counter(name, n);
        }
        let rows = self.pool.backends.iter().zip(&self.hits).map(|(backend, hits)| {
            let address = backend.address.to_string();
            let numbers = [u64::from(backend.weight), hits.connections, hits.packets, hits.bytes];
            [backend.name.clone(), address].into_iter().map(Into::into).chain(numbers.map(Into::into)).collect()
        });
        report.table("backends", &["name", "address", "weight", "connections", "packets", "bytes"], rows.collect())
    }
}

#[cfg(test)]
#[path = "balancer_tests.rs"]
mod tests;
