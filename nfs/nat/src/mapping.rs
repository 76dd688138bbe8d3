//! Mappings between inside and outside addresses and ports.
//!
//! # Terms
//! A *mapping* ties an inside address and port to an outside address and port, for one *pool*: TCP
//! ports, UDP ports, or ICMP query identifiers, which are used like ports. It holds for all peers
//! of the inside host ("endpoint-independent mapping and filtering", RFC 4787, REQ-1 and REQ-8), so
//! that peer-to-peer software works; restricting the peers is a firewall's task.
//!
//! # Approach
//! Inside to outside uses a hash table, outside to inside an array indexed by the port. An inside
//! host always gets the same outside address ("paired", REQ-2). It keeps its own port if that is
//! free and not below 1024; otherwise it gets a free one from a random start on (RFC 6056), found
//! in a bitmap, so that even a nearly full pool costs well under a microsecond.
//!
//! # Timeouts
//! UDP and ICMP: idle time. TCP: the long timeout once the outside has answered; 4 minutes (RFC
//! 5382, REQ-5) before that, after a reset, and after a FIN from both sides. Packets of both
//! directions keep a mapping alive. Expired mappings go at the next sweep, which passes every two
//! seconds.
//!
//! # Limits
//! 64,512 mappings for each pool and outside address (65,536 ICMP identifiers), and in all the
//! limit of the table. Sequence numbers are ignored.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, RandomState};
use std::net::Ipv4Addr;

use sluice_nf_parts::table::{Handle, Table};

const PORTS: usize = 1 << 16;
const POOLS: usize = 3;
const FIRST_PORT: usize = 1024;
/// RFC 5382, REQ-5.
const TCP_TRANSITORY_NS: u64 = 240 * SECOND;
const SECOND: u64 = 1_000_000_000;

pub mod tcp_flags {
    /// No more data from this side.
    pub const FIN: u8 = 1;
    /// First packet of a connection.
    pub const SYN: u8 = 2;
    /// The connection is aborted.
    pub const RST: u8 = 4;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 16;
}

/// The kind of a port number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSpace {
    Tcp = 0,
    Udp = 1,
    Icmp = 2,
}

/// Timeouts of idle mappings, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For an established TCP connection.
    pub tcp_s: u64,
    pub udp_s: u64,
    pub icmp_s: u64,
}

/// The inside end of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inside {
    pub address: Ipv4Addr,
    /// Its port or ICMP identifier.
    pub port: u16,
    pub pool: PortSpace,
}

/// The outside end of a mapping, and the state of its timeout.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    /// Index in [`Mappings::outside`].
    address: u16,
    /// Outside port or ICMP identifier.
    pub port: u16,
    /// Time of the last packet.
    pub last_ns: u64,
    answered: bool,
    reset: bool,
    fin_out: bool,
    fin_in: bool,
}

/// Why there is no mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    Ports,
    Table,
}

#[derive(Debug)]
pub struct Mappings {
    table: Table<Inside, Mapping>,
    outside: Vec<Ipv4Addr>,
    /// Handle + 1 of each outside port, 0 if it is free; by address, pool and port.
    by_port: Vec<u32>,
    /// A bit for each entry of `by_port` that is taken.
    taken: Vec<u64>,
    timeouts: Timeouts,
    /// None in a trace, which must be reproducible.
    random: Option<RandomState>,
    draws: u64,
}

impl Mappings {
    /// For at most `limit` mappings, onto these outside addresses (1 to 256).
    pub fn new(outside: Vec<Ipv4Addr>, limit: usize, timeouts: Timeouts) -> Self {
        let places = outside.len() * POOLS * PORTS;
        Self {
            table: Table::with_limit(limit),
            outside,
            by_port: vec![0; places],
            taken: vec![0; places / 64],
            timeouts,
            random: (!sluice_nf::is_traced()).then(RandomState::new),
            draws: 0,
        }
    }

    /// A number that an outsider cannot guess.
    fn random(&self, of: impl Hash) -> u64 {
        match &self.random {
            Some(random) => random.hash_one(of),
            None => BuildHasherDefault::<DefaultHasher>::default().hash_one(of),
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub fn is_outside(&self, address: Ipv4Addr) -> bool {
        self.outside.contains(&address)
    }

    /// The outside address and port of a mapping.
    #[inline]
    pub fn outside(&self, mapping: &Mapping) -> (Ipv4Addr, u16) {
        (self.outside[mapping.address as usize], mapping.port)
    }

    /// The outside end for a packet that goes out now; makes a mapping if there is none.
    #[inline]
    pub fn outbound(&mut self, inside: Inside, now_ns: u64, flags: u8) -> Result<(Ipv4Addr, u16), Full> {
        let handle = match self.table.find(&inside) {
            Some(handle) => handle,
            None => self.open(inside, now_ns)?,
        };
        let Some((_, mapping)) = self.table.entry_mut(handle) else { return Err(Full::Table) };
        mapping.last_ns = now_ns;
        if inside.pool == PortSpace::Tcp {
            mapping.tcp_out(flags);
        }
        let mapping = *mapping;
        Ok(self.outside(&mapping))
    }

    /// The inside end for a packet that comes in now.
    #[inline]
    pub fn inbound(&mut self, pool: PortSpace, address: Ipv4Addr, port: u16, now_ns: u64, flags: u8) -> Option<(Ipv4Addr, u16)> {
        let handle = self.handle(pool, address, port)?;
        let (inside, mapping) = self.table.entry_mut(handle)?;
        mapping.last_ns = now_ns;
        if pool == PortSpace::Tcp {
            mapping.tcp_in(flags);
        }
        Some((inside.address, inside.port))
    }

    /// As [`Mappings::inbound`], for an ICMP error, which does not keep the mapping alive.
    pub fn peek_inbound(&self, pool: PortSpace, address: Ipv4Addr, port: u16) -> Option<(Ipv4Addr, u16)> {
        let (inside, _) = self.table.entry(self.handle(pool, address, port)?)?;
        Some((inside.address, inside.port))
    }

    /// As [`Mappings::outbound`], for an ICMP error, which neither makes a mapping nor keeps it
    /// alive.
    pub fn peek_outbound(&self, inside: Inside) -> Option<(Ipv4Addr, u16)> {
        let (_, mapping) = self.table.entry(self.table.find(&inside)?)?;
        Some(self.outside(mapping))
    }

    #[inline]
    fn handle(&self, pool: PortSpace, address: Ipv4Addr, port: u16) -> Option<Handle> {
        let number = self.outside.iter().position(|outside| *outside == address)?;
        self.by_port[place(number, pool, port)].checked_sub(1)
    }

    fn open(&mut self, inside: Inside, now_ns: u64) -> Result<Handle, Full> {
        if self.table.is_full() {
            return Err(Full::Table);
        }
        let number = self.random(inside.address) as usize % self.outside.len();
        let port = self.free_port(number, inside).ok_or(Full::Ports)?;
        let mapping =
            Mapping { address: number as u16, port, last_ns: now_ns, answered: false, reset: false, fin_out: false, fin_in: false };
        let handle = self.table.insert(inside, mapping).ok_or(Full::Table)?;
        let place = place(number, inside.pool, port);
        self.by_port[place] = handle + 1;
        self.taken[place / 64] |= 1 << (place % 64);
        Ok(handle)
    }

    /// The inside's own port if it is free, or another one.
    fn free_port(&mut self, number: usize, inside: Inside) -> Option<u16> {
        let first = if inside.pool == PortSpace::Icmp { 0 } else { FIRST_PORT };
        let own = inside.port as usize;
        if own >= first && self.by_port[place(number, inside.pool, inside.port)] == 0 {
            return Some(inside.port);
        }
        self.draws += 1;
        let pool = place(number, inside.pool, 0) / 64;
        let words = &self.taken[pool + first / 64..pool + PORTS / 64];
        let start = self.random((inside, self.draws)) as usize % words.len();
        let places = (start..words.len()).chain(0..start);
        let free = places.map(|word| (word, words[word])).find(|(_, bits)| *bits != u64::MAX);
        free.map(|(word, bits)| (first + word * 64 + bits.trailing_ones() as usize) as u16)
    }

    /// Ends expired mappings in the share of the table that is due. Returns how many ended.
    pub fn age(&mut self, now_ns: u64) -> u64 {
        let Self { table, by_port, taken, timeouts, .. } = self;
        let mut ended = 0;
        table.age(
            |inside, mapping| now_ns.saturating_sub(mapping.last_ns) >= mapping.timeout_ns(inside.pool, timeouts),
            |_, inside, mapping| {
                let place = place(mapping.address as usize, inside.pool, mapping.port);
                by_port[place] = 0;
                taken[place / 64] &= !(1 << (place % 64));
                ended += 1;
            },
        );
        ended
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Inside, &Mapping)> {
        self.table.iter()
    }
}

fn place(number: usize, pool: PortSpace, port: u16) -> usize {
    (number * POOLS + pool as usize) * PORTS + port as usize
}

impl Mapping {
    fn tcp_out(&mut self, flags: u8) {
        if flags & tcp_flags::SYN != 0 {
            (self.answered, self.reset, self.fin_out, self.fin_in) = (false, false, false, false);
        }
        self.fin_out |= flags & tcp_flags::FIN != 0;
        // Data after a reset that the inside ignored (RFC 5961) revives the connection.
        self.reset = flags & tcp_flags::RST != 0;
    }

    fn tcp_in(&mut self, flags: u8) {
        self.answered |= flags & tcp_flags::ACK != 0;
        self.fin_in |= flags & tcp_flags::FIN != 0;
        self.reset |= flags & tcp_flags::RST != 0;
    }

    fn timeout_ns(&self, pool: PortSpace, timeouts: &Timeouts) -> u64 {
        let long = match pool {
            PortSpace::Udp => timeouts.udp_s,
            PortSpace::Icmp => timeouts.icmp_s,
            PortSpace::Tcp if self.answered && !self.reset && !(self.fin_out && self.fin_in) => timeouts.tcp_s,
            PortSpace::Tcp => return TCP_TRANSITORY_NS,
        };
        long.saturating_mul(SECOND)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use sluice_nf_parts::table::AGE_TICKS;

    use super::tcp_flags::{ACK, FIN, RST, SYN};
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
    const B: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

    fn mappings(limit: usize) -> Mappings {
        Mappings::new(vec![A, B], limit, Timeouts { tcp_s: 7440, udp_s: 300, icmp_s: 60 })
    }

    fn inside(host: u8, port: u16, pool: PortSpace) -> Inside {
        Inside { address: Ipv4Addr::new(10, 0, 0, host), port, pool }
    }

    fn sweep(m: &mut Mappings, now_s: u64) -> u64 {
        (0..AGE_TICKS).map(|_| m.age(now_s * SECOND)).sum()
    }

    #[test]
    fn a_mapping_works_in_both_directions_and_stays() {
        let mut m = mappings(100);
        let end = inside(1, 5000, PortSpace::Udp);
        let (address, port) = m.outbound(end, 0, 0).unwrap();
        assert!(m.is_outside(address));
        assert_eq!(port, 5000, "the port is kept if it is free");
        assert_eq!(m.outbound(end, 1, 0), Ok((address, port)));
        assert_eq!(m.inbound(PortSpace::Udp, address, port, 2, 0), Some((end.address, 5000)));
        assert_eq!(m.inbound(PortSpace::Tcp, address, port, 2, 0), None);
        assert_eq!(m.peek_outbound(end), Some((address, port)));
        assert_eq!(m.peek_inbound(PortSpace::Udp, address, port), Some((end.address, 5000)));
        assert_eq!(m.peek_outbound(inside(2, 5000, PortSpace::Udp)), None);
        assert_eq!(m.len(), 1);
    }

    #[test]
    fn a_host_keeps_its_address_and_no_two_share_a_port() {
        let mut m = mappings(100_000);
        let mut seen = HashSet::new();
        for host in 0..100 {
            let mut addresses = HashSet::new();
            for port in [1, 80, 5000, 5001] {
                let (address, outside) = m.outbound(inside(host, port, PortSpace::Tcp), 0, SYN).unwrap();
                assert!(outside >= 1024);
                assert!(seen.insert((address, outside)), "{address}:{outside} is given twice");
                addresses.insert(address);
            }
            assert_eq!(addresses.len(), 1);
        }
        assert_eq!(seen.iter().map(|(address, _)| address).collect::<HashSet<_>>().len(), 2, "both addresses are used");
    }

    #[test]
    fn a_pool_can_be_filled_to_the_last_port_and_a_freed_one_is_used_again() {
        let mut m = Mappings::new(vec![A], 100_000, Timeouts { tcp_s: 7440, udp_s: 300, icmp_s: 60 });
        let mut ports = HashSet::new();
        for n in 0..64_512u32 {
            let end = Inside { address: Ipv4Addr::from(0x0a00_0000 + n), port: 7, pool: PortSpace::Udp };
            assert!(ports.insert(m.outbound(end, 0, 0).unwrap().1));
        }
        assert_eq!(m.outbound(inside(255, 9, PortSpace::Udp), 0, 0), Err(Full::Ports));
        assert!(m.outbound(inside(255, 9, PortSpace::Icmp), 0, 0).is_ok(), "pools are apart");
        let kept = Inside { address: Ipv4Addr::from(0x0a00_0005), port: 7, pool: PortSpace::Udp };
        let port = m.outbound(kept, 299 * SECOND, 0).unwrap();
        assert_eq!(sweep(&mut m, 300), 64_512, "all but one, and the ICMP one too");
        assert_eq!(m.outbound(kept, 300 * SECOND, 0), Ok(port));
        assert!(m.outbound(inside(255, 9, PortSpace::Udp), 300 * SECOND, 0).is_ok());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut m = mappings(2);
        assert!(m.outbound(inside(1, 1, PortSpace::Udp), 0, 0).is_ok());
        assert!(m.outbound(inside(1, 2, PortSpace::Udp), 0, 0).is_ok());
        assert_eq!(m.outbound(inside(1, 3, PortSpace::Udp), 0, 0), Err(Full::Table));
        assert!(m.outbound(inside(1, 2, PortSpace::Udp), 0, 0).is_ok());
    }

    /// Seconds that a TCP mapping lives after these packets, the last of them at second 0.
    fn lives(packets: &[(bool, u8)]) -> u64 {
        let mut m = mappings(10);
        let end = inside(1, 5000, PortSpace::Tcp);
        for (out, flags) in packets {
            if *out {
                m.outbound(end, 0, *flags).unwrap();
            } else {
                let (address, port) = m.peek_outbound(end).unwrap();
                m.inbound(PortSpace::Tcp, address, port, 0, *flags).unwrap();
            }
        }
        [240, 7440].into_iter().find(|s| sweep(&mut m, *s) == 1).unwrap()
    }

    #[test]
    fn tcp_mappings_live_as_their_connection_does() {
        let open = [(true, SYN), (false, SYN | ACK), (true, ACK)];
        let with = |more: &[(bool, u8)]| lives(&[&open[..], more].concat());
        assert_eq!(lives(&[(true, SYN)]), 240, "nobody answered");
        assert_eq!(with(&[]), 7440);
        assert_eq!(with(&[(true, FIN | ACK), (false, ACK)]), 7440, "half closed");
        assert_eq!(with(&[(true, FIN | ACK), (false, FIN | ACK), (true, ACK)]), 240);
        assert_eq!(with(&[(false, RST)]), 240);
        assert_eq!(with(&[(false, RST), (true, ACK)]), 7440, "a reset that was not believed");
        assert_eq!(with(&[(true, FIN), (false, FIN), (true, SYN), (false, SYN | ACK)]), 7440, "the port is used again");
    }

    #[test]
    fn packets_of_either_direction_keep_a_mapping_alive() {
        let mut m = mappings(10);
        let end = inside(1, 9, PortSpace::Icmp);
        let (address, id) = m.outbound(end, 0, 0).unwrap();
        m.inbound(PortSpace::Icmp, address, id, 50 * SECOND, 0).unwrap();
        assert_eq!(sweep(&mut m, 109), 0);
        m.peek_inbound(PortSpace::Icmp, address, id).unwrap();
        assert_eq!(sweep(&mut m, 110), 1, "an error about it does not count");
        assert_eq!(m.inbound(PortSpace::Icmp, address, id, 110 * SECOND, 0), None);
    }
}
