//! Rules: which chain the first packet of a flow belongs to.
//!
//! Problem: find the first match in an ordered list of rules for each new flow, while other packets
//! wait: a few thousand rules within a few microseconds.
//!
//! Terms: a rule is a set of keys that must all match; one without keys matches everything.
//! [`Rule::matches`] is the definition, and [`RuleSet::first_match`] gives the same answer fast.
//!
//! Approach: three lists, for IPv4, IPv6 and the rest, hold the rules that can match there, in
//! order. Each list is packed in blocks of eight rules, so that one vector instruction compares one
//! field of eight: mask and value for equality, first and span for port ranges.
//!
//! Semantics:
//! - An IPv4 prefix matches only IPv4, an IPv6 prefix only IPv6.
//! - Port ranges match packets that have ports: never fragments, ICMP, AH or ESP.
//! - Protocol `ip` is any IP, including fragments; `non-ip` is all else, including malformed ones.
//! - DSCP, addresses and protocol numbers match only IP. Ingress port and VLAN match anything.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use sluice_policy::sched::priority::Weight;
use sluice_policy::sched::threshold;

use super::hits::RuleHits;
use super::key::{FlowKey, PacketKind};
use sluice_api::protocol::has_ports;

/// The protocol that a rule matches.
pub use sluice_api::protocol::ProtocolMatch as Protocol;

/// An address prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// IPv4: address, masked, and mask.
    V4(u32, u32),
    /// IPv6: address, masked, and mask.
    V6(u128, u128),
}

impl Prefix {
    /// The first `len` bits of an address; `None` if the address has fewer bits.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        match address {
            IpAddr::V4(a) if len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                Some(Self::V4(a.to_bits() & mask, mask))
            }
            IpAddr::V6(a) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Some(Self::V6(a.to_bits() & mask, mask))
            }
            _ => None,
        }
    }

    /// Whether an address is in the prefix.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (*self, address) {
            (Self::V4(prefix, mask), IpAddr::V4(a)) => a.to_bits() & mask == prefix,
            (Self::V6(prefix, mask), IpAddr::V6(a)) => a.to_bits() & mask == prefix,
            _ => false,
        }
    }

    fn is_v4(&self) -> bool {
        matches!(self, Self::V4(..))
    }
}

/// A rule as plain values. A key that is `None` matches anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Number of the ingress port.
    pub port: Option<u16>,
    /// Id of the outer VLAN tag; 0 is untagged.
    pub vlan: Option<u16>,
    /// Protocol.
    pub protocol: Protocol,
    /// Source prefix.
    pub src: Option<Prefix>,
    /// Destination prefix.
    pub dst: Option<Prefix>,
    /// Source ports.
    pub src_port: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub dst_port: Option<RangeInclusive<u16>>,
    /// DSCP, 0 to 63.
    pub dscp: Option<u8>,
    /// Number of the chain of matching packets.
    pub chain: u16,
    /// Terms for their flows.
    pub terms: RuleTerms,
}

/// Terms for a rule's flows at NFs that are not shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleTerms {
    /// Their weight.
    pub weight: Weight,
    /// When NFs with one flow at a time are woken, if it differs from the service's setting.
    pub wakeup: Option<threshold::Rules>,
    /// Number of their tenant, from 1; 0 if the rule names none.
    pub tenant: u32,
}

impl Rule {
    /// Whether it matches all packets from its port, or from any.
    pub fn takes_all(&self) -> bool {
        let Self { port, chain, terms, .. } = *self;
        *self == Self { port, chain, terms, ..Self::default() }
    }

    /// The contradiction between keys, if there is one.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let about_ip = self.src.is_some() || self.dst.is_some() || self.dscp.is_some() || self.has_ports();
        if self.protocol == Protocol::NonIp && about_ip {
            return Some("non-ip packets have no address, port or DSCP");
        }
        if let (Some(src), Some(dst)) = (self.src, self.dst)
            && src.is_v4() != dst.is_v4()
        {
            return Some("src and dst are of different IP versions");
        }
        match self.protocol {
            Protocol::Number(number) if self.has_ports() && !has_ports(number) => Some("its protocol has no ports"),
            _ => None,
        }
    }

    fn has_ports(&self) -> bool {
        self.src_port.is_some() || self.dst_port.is_some()
    }

    /// Whether it has a key that only IP packets can match.
    fn is_about_ip(&self) -> bool {
        let protocol = matches!(self.protocol, Protocol::Ip | Protocol::Number(_));
        protocol || self.src.is_some() || self.dst.is_some() || self.dscp.is_some() || self.has_ports()
    }

    /// Whether a packet matches all keys.
    pub fn matches(&self, key: &FlowKey) -> bool {
        let is_ip = matches!(key.kind(), PacketKind::Ip | PacketKind::Fragment);
        let protocol = match self.protocol {
            Protocol::Any => true,
            Protocol::Ip => is_ip,
            Protocol::NonIp => !is_ip,
            Protocol::Number(number) => is_ip && key.protocol() == number,
        };
        let address = |prefix: Option<Prefix>, side: fn((IpAddr, IpAddr)) -> IpAddr| {
            prefix.is_none_or(|p| key.addresses().is_some_and(|both| p.contains(side(both))))
        };
        let port = |range: &Option<RangeInclusive<u16>>, side: fn((u16, u16)) -> u16| {
            range.as_ref().is_none_or(|r| key.ports().is_some_and(|both| r.contains(&side(both))))
        };
        protocol
            && self.port.is_none_or(|p| p == key.ingress())
            && self.vlan.is_none_or(|v| v == key.vlan())
            && self.dscp.is_none_or(|d| is_ip && d == key.dscp())
            && address(self.src, |(src, _)| src)
            && address(self.dst, |(_, dst)| dst)
            && port(&self.src_port, |(src, _)| src)
            && port(&self.dst_port, |(_, dst)| dst)
    }
}

const LANES: usize = 8;

type Lane = [u32; LANES];

/// Equality of a field, for eight rules.
#[derive(Debug, Clone, Copy, Default)]
struct Equal {
    mask: Lane,
    value: Lane,
}

/// A port range for eight rules. A packet without ports has port [`NO_PORT`].
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    first: Lane,
    span: Lane,
}

/// Above all ports: only the range of a rule without a port key includes it.
const NO_PORT: u32 = 1 << 16;

/// Eight rules of a list whose addresses have `A` words of 32 bits.
#[derive(Debug, Clone)]
struct Block<const A: usize> {
    /// Ingress port and VLAN, then protocol and DSCP.
    edge: [Equal; 2],
    src: [Equal; A],
    dst: [Equal; A],
    ports: [Range; 2],
    /// Positions of the rules in the whole list. Unused lanes match nothing.
    rules: [u32; LANES],
}

struct Probe<const A: usize> {
    edge: [u32; 2],
    src: [u32; A],
    dst: [u32; A],
    ports: [u32; 2],
}

impl<const A: usize> Probe<A> {
    #[inline(always)]
    fn new(key: &FlowKey) -> Self {
        let [src_high, src_low, dst_high, dst_low, edge, tail] = *key.words();
        // Network order of words: the last of A is the lowest.
        let words = |high: u64, low: u64| {
            let all = [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32];
            std::array::from_fn(|i| all[i % 4])
        };
        let ports = key.ports().map_or([NO_PORT; 2], |(src, dst)| [src.into(), dst.into()]);
        Self {
            edge: [(edge >> 32) as u32, tail as u32 & 0xffff],
            src: words(src_high, src_low),
            dst: words(dst_high, dst_low),
            ports,
        }
    }
}

impl<const A: usize> Block<A> {
    fn empty() -> Self {
        // No packet has these ports: lanes that are not overwritten never match.
        let never = Range { first: [u32::MAX; LANES], span: [0; LANES] };
        Self {
            edge: Default::default(),
            src: [Equal::default(); A],
            dst: [Equal::default(); A],
            ports: [never; 2],
            rules: [u32::MAX; LANES],
        }
    }

    fn set(&mut self, lane: usize, number: u32, rule: &Rule) {
        let equal = |field: &mut Equal, mask: u32, value: u32| (field.mask[lane], field.value[lane]) = (mask, value);
        let (port, vlan) = (rule.port.map(u32::from), rule.vlan.map(u32::from));
        let all_of = |present: bool, bits: u32| if present { bits } else { 0 };
        equal(
            &mut self.edge[0],
            all_of(port.is_some(), 0xffff) | all_of(vlan.is_some(), 0xffff_0000),
            port.unwrap_or(0) | vlan.unwrap_or(0) << 16,
        );
        let number_of = match rule.protocol {
            Protocol::Number(number) => Some(u32::from(number)),
            _ => None,
        };
        let dscp = rule.dscp.map(u32::from);
        equal(
            &mut self.edge[1],
            all_of(number_of.is_some(), 0xff) | all_of(dscp.is_some(), 0xff00),
            number_of.unwrap_or(0) | dscp.unwrap_or(0) << 8,
        );
        for (fields, prefix) in [(&mut self.src, rule.src), (&mut self.dst, rule.dst)] {
            let (value, mask) = match prefix {
                None => (0, 0),
                Some(Prefix::V4(value, mask)) => (value.into(), mask.into()),
                Some(Prefix::V6(value, mask)) => (value, mask),
            };
            for (i, field) in fields.iter_mut().enumerate() {
                equal(field, (mask >> (32 * i)) as u32, (value >> (32 * i)) as u32);
            }
        }
        for (field, range) in self.ports.iter_mut().zip([&rule.src_port, &rule.dst_port]) {
            (field.first[lane], field.span[lane]) = match range {
                None => (0, NO_PORT),
                Some(range) => ((*range.start()).into(), u32::from(*range.end()) - u32::from(*range.start())),
            };
        }
        self.rules[lane] = number;
    }

    #[inline(always)]
    fn first_match(&self, probe: &Probe<A>) -> Option<usize> {
        // Zero where all fields agree. Loops of eight without branches become vector code.
        let mut differ: Lane = [0; LANES];
        let mut compare = |field: &Equal, word: u32| {
            for (d, (mask, value)) in differ.iter_mut().zip(field.mask.iter().zip(&field.value)) {
                *d |= (word & mask) ^ value;
            }
        };
        for (i, word) in probe.edge.into_iter().enumerate() {
            compare(&self.edge[i], word);
        }
        for i in 0..A {
            compare(&self.src[i], probe.src[i]);
            compare(&self.dst[i], probe.dst[i]);
        }
        for (field, port) in self.ports.iter().zip(probe.ports) {
            for (d, (first, span)) in differ.iter_mut().zip(field.first.iter().zip(&field.span)) {
                // By how much the distance from the first port exceeds the span; never below zero.
                *d |= port.wrapping_sub(*first).max(*span) - span;
            }
        }
        let mut matching = 0u32;
        for (i, d) in differ.iter().enumerate() {
            matching |= u32::from(*d == 0) << i;
        }
        (matching != 0).then(|| matching.trailing_zeros() as usize)
    }
}

/// The rules that can match one of the three classes of packets.
#[derive(Debug, Clone)]
struct List<const A: usize>(Vec<Block<A>>);

impl<const A: usize> List<A> {
    fn new<'a>(rules: impl Iterator<Item = (usize, &'a Rule)>) -> Self {
        let mut blocks: Vec<Block<A>> = Vec::new();
        for (at, (number, rule)) in rules.enumerate() {
            if at % LANES == 0 {
                blocks.push(Block::empty());
            }
            if let Some(block) = blocks.last_mut() {
                block.set(at % LANES, number as u32, rule);
            }
        }
        Self(blocks)
    }

    #[inline(always)]
    fn first_match(&self, key: &FlowKey) -> Option<usize> {
        let probe = Probe::new(key);
        self.0.iter().find_map(|block| block.first_match(&probe).map(|lane| block.rules[lane] as usize))
    }
}

/// A compiled, ordered list of rules.
#[derive(Debug, Clone)]
pub struct RuleSet {
    rules: Vec<Rule>,
    /// Counters of each rule; empty if nothing counts.
    hits: Vec<RuleHits>,
    v4: List<1>,
    v6: List<4>,
    rest: List<0>,
}

impl Default for RuleSet {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl RuleSet {
    /// Timers of the rules, in nanoseconds.
    pub(crate) fn timers_ns(&self) -> impl Iterator<Item = u64> + '_ {
        self.rules.iter().filter_map(|rule| Some(rule.terms.wakeup?.timer_ns))
    }

    /// Compiles rules; the first that matches wins.
    pub fn new(rules: Vec<Rule>) -> Self {
        let able = |rule: &&Rule| rule.contradiction().is_none();
        let ip = |v4: bool| {
            rules.iter().enumerate().filter(move |(_, rule)| {
                able(rule) && rule.protocol != Protocol::NonIp && [rule.src, rule.dst].iter().flatten().all(|p| p.is_v4() == v4)
            })
        };
        let (v4, v6) = (List::new(ip(true)), List::new(ip(false)));
        let rest = List::new(rules.iter().enumerate().filter(|(_, rule)| !rule.is_about_ip()));
        Self { v4, v6, rest, rules, hits: Vec::new() }
    }

    /// The same rules, with a decision counter for each, in order.
    pub fn counting(self, hits: Vec<RuleHits>) -> Self {
        Self { hits, ..self }
    }

    /// Counts a decision of a rule by a thread.
    #[inline]
    pub fn count(&self, rule: usize, thread: usize) {
        if let Some(hits) = self.hits.get(rule) {
            hits.add(thread);
        }
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Index of the first rule that matches.
    #[inline]
    pub fn first_rule(&self, key: &FlowKey) -> Option<usize> {
        match key.version() {
            4 => self.v4.first_match(key),
            6 => self.v6.first_match(key),
            _ => self.rest.first_match(key),
        }
    }

    /// Number of the chain of the first rule that matches.
    #[inline]
    pub fn first_match(&self, key: &FlowKey) -> Option<u16> {
        self.first_rule(key).map(|rule| self.rules[rule].chain)
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
