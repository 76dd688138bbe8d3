//! Chains of two tenants that are to get the same packets.
//!
//! # Problem
//! On a node the first rule that matches a packet decides, and rules of all tenants are in one
//! list. Of two that overlap, one tenant would get the other's packets, and nobody would notice.
//!
//! # Approach
//! An SLO whose chain's `ingress` overlaps that of another namespace is not planned. Of two, the
//! one keeps the packets that has them in a plan already, then the older one. So a change of a
//! chain takes nothing from others. Two chains that never run on the same processor do not count,
//! and within a namespace everything may overlap.
//!
//! Entries are found by port and VLAN, then by the prefixes of destination and source. So those
//! that are compared mostly overlap.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use sluice_api::config::PortRange;
use sluice_api::parse;
use sluice_api::protocol::ProtocolMatch;
use sluice_cluster_types::Match;

use crate::wish::{Why, Wish};
use crate::world::{Key, World};

#[cfg(test)]
thread_local! {
    /// Pairs of entries that were compared.
    pub static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The reason of a condition.
pub const INGRESS_TAKEN: &str = "IngressTaken";

type Prefix = (IpAddr, u8);

/// The packets of an entry of `ingress`, without port and VLAN.
#[derive(Debug, Clone)]
struct Packets {
    protocol: ProtocolMatch,
    addresses: [Option<Prefix>; 2],
    ports: [Option<(u16, u16)>; 2],
    dscp: Option<u8>,
}

impl Packets {
    /// None if no packet is meant, which nodes refuse.
    fn of(from: &Match) -> Option<Self> {
        let prefix = |text: &Option<String>| text.as_deref().map(parse::prefix).transpose().ok();
        let range = |text: &Option<String>| text.clone().map(|text| PortRange::Text(text).bounds()).transpose().ok();
        let addresses = [prefix(&from.src)?, prefix(&from.dst)?];
        let ports = [range(&from.src_port)?, range(&from.dst_port)?];
        let is_ip = addresses.iter().any(Option::is_some) || ports.iter().any(Option::is_some) || from.dscp.is_some();
        let protocol = match from.protocol.as_deref().map(parse::protocol).transpose().ok()? {
            None | Some(ProtocolMatch::Any) if is_ip => ProtocolMatch::Ip,
            None => ProtocolMatch::Any,
            Some(protocol) => protocol,
        };
        Some(Self { protocol, addresses, ports, dscp: from.dscp })
    }

    fn overlaps(&self, other: &Self) -> bool {
        let both = |a: &[Option<Prefix>; 2], b: &[Option<Prefix>; 2]| a.iter().zip(b).all(|(a, b)| meet(*a, *b, are_within));
        let is_in = |a: &Self, b: &Self| {
            let family = a.addresses.iter().flatten().all(|(address, _)| b.protocol.has_family(address.is_ipv6()));
            family && (a.ports.iter().all(Option::is_none) || b.protocol.has_ports())
        };
        both(&self.addresses, &other.addresses)
            && self.ports.iter().zip(&other.ports).all(|(a, b)| meet(*a, *b, |a, b| a.0 <= b.1 && b.0 <= a.1))
            && meet(self.dscp, other.dscp, |a, b| a == b)
            && are_alike(self.protocol, other.protocol)
            && is_in(self, other)
            && is_in(other, self)
    }
}

/// Whether one packet can have both values of a key. A key that is left out has all.
fn meet<T>(a: Option<T>, b: Option<T>, is_both: impl Fn(T, T) -> bool) -> bool {
    a.zip(b).is_none_or(|(a, b)| is_both(a, b))
}

fn are_within(a: Prefix, b: Prefix) -> bool {
    let shared = a.1.min(b.1);
    match (a.0, b.0) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).checked_shr(32 - u32::from(shared)).unwrap_or(0) == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).checked_shr(128 - u32::from(shared)).unwrap_or(0) == 0,
        _ => false,
    }
}

fn are_alike(a: ProtocolMatch, b: ProtocolMatch) -> bool {
    match (a, b) {
        (ProtocolMatch::Any, _) | (_, ProtocolMatch::Any) => true,
        (ProtocolMatch::NonIp, other) | (other, ProtocolMatch::NonIp) => other == ProtocolMatch::NonIp,
        (ProtocolMatch::Ip, _) | (_, ProtocolMatch::Ip) => true,
        (ProtocolMatch::Number(a), ProtocolMatch::Number(b)) => a == b,
    }
}

/// Packets that a chain has.
struct Claim {
    wish: usize,
    packets: Packets,
}

/// Port and VLAN; one that is left out has all.
type Place<'a> = (Option<&'a str>, Option<u16>);
/// Claims by namespace.
type Tenants<'a> = BTreeMap<&'a str, Vec<Claim>>;
/// Claims by place, destination and source.
type Claims<'a> = BTreeMap<Place<'a>, Prefixes<Prefixes<Tenants<'a>>>>;

/// The first address of a prefix, as bits from the left of its family, and its length.
type Range = (bool, u128, u8);

/// Values by prefix; one that is left out has all addresses.
#[derive(Debug, Default)]
struct Prefixes<T> {
    all: T,
    ranges: BTreeMap<Range, T>,
    /// Families and lengths that there are.
    lengths: BTreeSet<(bool, u8)>,
}

fn range((address, length): Prefix) -> Range {
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    (address.is_ipv6(), bits & mask(length), length)
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl<T: Default> Prefixes<T> {
    fn entry(&mut self, prefix: Option<Prefix>) -> &mut T {
        let Some(prefix) = prefix else { return &mut self.all };
        let range = range(prefix);
        self.lengths.insert((range.0, range.2));
        self.ranges.entry(range).or_default()
    }

    /// The values of prefixes that overlap this one.
    fn overlapping(&self, prefix: Option<Prefix>) -> impl Iterator<Item = &T> {
        let any = (false, 0, 0)..=(true, u128::MAX, u8::MAX);
        let (within, around) = match prefix.map(range) {
            None => (any, None),
            Some((family, first, length)) => {
                ((family, first, length)..=(family, first | !mask(length), u8::MAX), Some((family, first, length)))
            }
        };
        let shorter = around.into_iter().flat_map(move |(family, first, length)| {
            let lengths = self.lengths.range((family, 0)..(family, length));
            lengths.filter_map(move |(_, shorter)| self.ranges.get(&(family, first & mask(*shorter), *shorter)))
        });
        std::iter::once(&self.all).chain(shorter).chain(self.ranges.range(within).map(|(_, value)| value))
    }
}

/// Why SLOs are not planned whose packets another tenant has.
pub fn taken(world: &World, wishes: &[Wish<'_>]) -> BTreeMap<Key, Why> {
    let placed = placed(world);
    let mut order: Vec<(usize, bool)> = wishes
        .iter()
        .enumerate()
        .map(|(i, wish)| (i, placed.get(wish.name()).is_none_or(|all| !all.contains(&wish.ingress()))))
        .collect();
    order.sort_by(|(a, is_new), (b, is_other_new)| {
        let rank = |i: usize| (&wishes[i].rank.0, wishes[i].key);
        is_new.cmp(is_other_new).then_with(|| rank(*a).cmp(&rank(*b)))
    });
    let mut claims = Claims::new();
    let mut taken = BTreeMap::new();
    for (i, _) in order {
        let wish = &wishes[i];
        let own: Vec<(Place<'_>, Packets)> =
            wish.ingress().iter().filter_map(|from| Some(((from.port.as_deref(), from.vlan), Packets::of(from)?))).collect();
        let other = own.iter().find_map(|(place, packets)| first(&claims, *place, packets, i, wishes));
        match other {
            Some(other) => drop(taken.insert(wish.key.clone(), why(other))),
            None => {
                for (place, packets) in own {
                    let [src, dst] = packets.addresses;
                    let tenants = claims.entry(place).or_default().entry(dst).entry(src);
                    tenants.entry(&wish.key.namespace).or_default().push(Claim { wish: i, packets });
                }
            }
        }
    }
    taken
}

/// The chains' `ingress` in plans, by SLO.
fn placed(world: &World) -> HashMap<&str, Vec<&[Match]>> {
    let mut placed: HashMap<&str, Vec<&[Match]>> = HashMap::new();
    for chain in world.plans.values().flat_map(|plan| &plan.spec.chains) {
        placed.entry(&chain.name).or_default().push(&chain.chain.ingress);
    }
    placed
}

/// Another tenant's chain that has some of these packets.
fn first<'a>(
    claims: &Claims<'a>,
    (port, vlan): Place<'a>,
    packets: &Packets,
    i: usize,
    wishes: &'a [Wish<'_>],
) -> Option<&'a Wish<'a>> {
    let own = wishes[i].key.namespace.as_str();
    let find = |of: &Prefixes<Prefixes<Tenants<'_>>>| {
        let [src, dst] = packets.addresses;
        let tenants = of.overlapping(dst).flat_map(|of| of.overlapping(src)).flatten();
        let mut others = tenants.filter(|(namespace, _)| **namespace != own).flat_map(|(_, claims)| claims);
        let is_taken = |claim: &&Claim| {
            #[cfg(test)]
            COMPARED.set(COMPARED.get() + 1);
            claim.packets.overlaps(packets) && may_meet(&wishes[claim.wish], &wishes[i])
        };
        others.find(is_taken).map(|claim| &wishes[claim.wish])
    };
    match (port, vlan) {
        // Most entries name both, so that few others are looked at.
        (Some(_), Some(_)) => {
            [(port, vlan), (port, None), (None, vlan), (None, None)].iter().find_map(|place| claims.get(place).and_then(find))
        }
        _ => {
            let are = |place: &Place<'_>| meet(port, place.0, |a, b| a == b) && meet(vlan, place.1, |a, b| a == b);
            claims.iter().filter(|(place, _)| are(place)).find_map(|(_, of)| find(of))
        }
    }
}

/// Whether two SLOs can be on one node. On demand, every processor will do.
fn may_meet(a: &Wish<'_>, b: &Wish<'_>) -> bool {
    let is_any = |wish: &Wish<'_>| wish.profiles.is_empty();
    is_any(a) || is_any(b) || a.profiles.iter().any(|one| b.profiles.iter().any(|other| one.key.cpu == other.key.cpu))
}

fn why(other: &Wish<'_>) -> Why {
    let message = format!(
        "packets of its chain are those of the SLO {} already: name another port, VLAN, prefix or protocol in ingress of the chain",
        other.key
    );
    Why::new(INGRESS_TAKEN, message)
}
