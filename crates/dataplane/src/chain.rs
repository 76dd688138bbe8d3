//! Chains, and the paths that packets take through them.
//!
//! A chain names services. A *path* names the NFs: one instance of each service, fixed when a flow
//! is first seen, from its ingress port to its egress port. A frame in use carries the number of
//! its path and its hop, so forwarding is two array accesses and no hash. Paths are immutable, and
//! a packet stays on its path whatever happens to rules and chains meanwhile. An ended path is
//! freed once no packet can be on it ([`registry`]). `manager.max_paths` bounds their number. All
//! flows with the same instances share a path. Where a chain has many combinations, flows are
//! spread over some thousands. At the bound, new flows share the paths that their chain has.

mod detours;
pub mod registry;
pub mod ways;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_ownership::{Moves, Moving};
use sluice_policy::spread;

use crate::bucket::Bucket;
use crate::classify::rule::RuleSet;
use crate::counter::Counter;
use sluice_api::config::{OnFailure, Overload};
use sluice_api::model::ChainCounts;

pub use registry::PathRegistry;
pub use sluice_api::drops::DropReason;

/// Combinations of instances over which the flows of a chain are spread at most.
const SPREAD: usize = 4096;

/// Most hops of a path.
pub const MAX_HOPS: usize = 255;

/// What one manager thread counts for one chain.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct ChainCounters {
    /// What the API reports.
    pub api: ChainCounts<Counter>,
    /// Value of `entry_packets` at which the next packet is timed.
    pub timed_at: Counter,
    /// Packets that went into programs; their frames were given back.
    pub outside: Counter,
    /// Packets that came out of programs, or were counted as lost there.
    pub back: Counter,
    /// Times that a flow found no path because of the limit.
    pub no_path: Counter,
    /// Packets dropped, by [`DropReason`].
    pub drops: [Counter; DropReason::ALL.len()],
}

/// A chain as the packet threads know it.
#[derive(Debug, Default)]
pub struct Chain {
    /// Its number.
    pub number: u16,
    /// Changes when the chain is replaced, so that its flows are decided again.
    pub version: u32,
    /// Its name.
    pub name: String,
    /// Numbers of its services.
    pub services: Vec<u16>,
    /// Which hops are traversed in reverse; hops behind the end are not.
    pub reversed: Vec<bool>,
    /// Number of its egress port.
    pub egress: u16,
    /// What it does when a service has no instance.
    pub on_failure: OnFailure,
    /// Counters, by manager thread.
    pub counters: Arc<[ChainCounters]>,
    /// The rate limit, if there is one.
    pub police: Option<Arc<Bucket>>,
}

impl Chain {
    /// Frames that its packets hold; approximate, as threads count meanwhile.
    pub fn frames(&self) -> u64 {
        let at_the_door = [DropReason::Entry, DropReason::Policed];
        let inside = |c: &ChainCounters| {
            let lost = DropReason::ALL.iter().filter(|why| !at_the_door.contains(why)).map(|why| c.drops[*why as usize].get());
            let gone = lost.fold(c.api.exit_packets.get().wrapping_add(c.outside.get()), u64::wrapping_add);
            c.api.entry_packets.get().wrapping_add(c.back.get()).wrapping_sub(gone)
        };
        // One thread may let out what another let in: only the sum is a number of packets.
        let sum = self.counters.iter().map(inside).fold(0, u64::wrapping_add);
        if (sum as i64) < 0 { 0 } else { sum }
    }

    /// Whether a hop is traversed in reverse.
    pub fn is_reversed(&self, hop: usize) -> bool {
        self.reversed.get(hop).copied().unwrap_or(false)
    }
}

/// An instance that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Number of the NF.
    pub nf: u16,
    /// Identity for spreading flows: survives restarts, and passes to its successor.
    pub id: u64,
    /// Number of the NF that it replaced. That NF's flows are with this one now.
    pub former: Option<u16>,
    /// Whether it gets new flows, not only keeps old ones. At least one of a service does.
    pub is_open: bool,
    /// Number of the packet thread that it runs in: only flows of that thread get it.
    pub thread: Option<u16>,
}

impl Member {
    /// Whether flows that may get another instance may get this one too.
    pub(super) fn is_for(&self, other: &Self) -> bool {
        self.thread.is_none() || self.thread == other.thread
    }

    /// Whether flows of a packet thread may get it.
    #[inline]
    pub fn serves(&self, thread: usize) -> bool {
        self.thread.is_none_or(|own| usize::from(own) == thread)
    }
}

/// The instance that a flow hash selects among those that get new flows of a packet thread.
pub fn picked(members: &[Member], hash: u32, thread: usize) -> Option<u16> {
    let open = || members.iter().filter(|m| m.is_open && m.serves(thread));
    match members {
        [] => None,
        [only] => only.serves(thread).then_some(only.nf),
        _ => open().nth(spread::pick(hash, open().map(|m| m.id))).map(|m| m.nf),
    }
}

/// The instance that now has an NF's flows of a packet thread: that NF if it lives, or its
/// successor.
pub fn kept(members: &[Member], nf: u16, thread: usize) -> Option<u16> {
    let same = members.iter().find(|m| m.nf == nf);
    let now = same.or_else(|| members.iter().find(|m| m.former == Some(nf)));
    now.filter(|m| m.serves(thread)).map(|m| m.nf)
}

/// A port as the packet threads know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Its name.
    pub name: String,
    /// What it does when a gate is closed.
    pub overload: Overload,
    /// Manager threads that own its queues, in order.
    pub owners: Vec<usize>,
    /// Number of the arena that its packets are received into.
    pub memory: u8,
}

/// Everything that decides where packets go, as one immutable value. A change makes a new one.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// Grows with each change. Flows are decided again if their path ends or rules change.
    pub generation: u32,
    /// The rules.
    pub rules: RuleSet,
    /// The chains, by number.
    pub chains: Vec<Option<Arc<Chain>>>,
    /// The live instances of each service, by number.
    pub services: Vec<Vec<Member>>,
    /// By service number: whether a [steer](crate::steer::ChooseInstances) assigns its instances.
    pub steered: Vec<bool>,
    /// The ports, by number.
    pub ports: Vec<Option<PortInfo>>,
    /// Of the NFs of a core, run those later in their chains first.
    pub downstream_first: bool,
    /// Where the instances of each service may send packets by a verdict, by number.
    pub may_send: Vec<MaySend>,
}

/// Ports and services, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    ports: Vec<u64>,
    services: Vec<u64>,
}

impl Places {
    /// These ports and services.
    pub fn new(ports: impl IntoIterator<Item = u16>, services: impl IntoIterator<Item = u16>) -> Self {
        let set = |numbers: &mut dyn Iterator<Item = u16>| {
            let mut words = Vec::new();
            for number in numbers {
                let word = usize::from(number) / 64;
                words.resize(words.len().max(word + 1), 0);
                words[word] |= 1 << (number % 64);
            }
            words
        };
        Self { ports: set(&mut ports.into_iter()), services: set(&mut services.into_iter()) }
    }

    /// Adds all of another set.
    pub fn add(&mut self, other: &Self) {
        for (mine, others) in [(&mut self.ports, &other.ports), (&mut self.services, &other.services)] {
            mine.resize(mine.len().max(others.len()), 0);
            mine.iter_mut().zip(others).for_each(|(word, other)| *word |= other);
        }
    }

    fn has(&self, step: VerdictTarget) -> bool {
        let (words, number) = match step {
            VerdictTarget::Port(number) => (&self.ports, number),
            VerdictTarget::Service(number) => (&self.services, number),
        };
        words.get(usize::from(number) / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }
}

/// The destination of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictTarget {
    /// Out of this port.
    Port(u16),
    /// To an instance of this service.
    Service(u16),
}

/// Where the instances of a service may send packets by a verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaySend {
    /// Under the current configuration.
    pub now: Places,
    /// Now or under an earlier configuration: an NF that missed a change is not a violator.
    pub ever: Places,
}

/// What happens to a packet that an NF sends somewhere by a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It goes there.
    Goes,
    /// It is dropped.
    Refused,
    /// It is dropped, and the NF has violated its configuration.
    Violates,
}

impl Tables {
    /// Whether the instances of a service may send packets somewhere by a verdict.
    pub fn may_send(&self, service: u16, to: VerdictTarget) -> Sent {
        match self.may_send.get(usize::from(service)) {
            Some(may) if may.now.has(to) => Sent::Goes,
            Some(may) if may.ever.has(to) => Sent::Refused,
            _ => Sent::Violates,
        }
    }

    /// Whether a [steer](crate::steer::ChooseInstances) assigns instances of a service to flows.
    pub(crate) fn is_steered(&self, service: u16) -> bool {
        self.steered.get(service as usize).copied().unwrap_or(false)
    }

    /// The depth of each service in the chains: hops of the longest way to it over all chains
    /// together, so that a service lies behind all that may send it packets. Where chains form a
    /// circle, the hop that closes it does not count; chains with lower numbers take precedence.
    pub fn depths(&self) -> Vec<u32> {
        let mut behind = vec![Vec::new(); self.services.len()];
        let ways = || self.chains.iter().flatten().map(|chain| &chain.services);
        for pair in ways().flat_map(|services| services.windows(2)) {
            let (from, to) = (usize::from(pair[0]), usize::from(pair[1]));
            if from != to && to < behind.len() && from < behind.len() {
                behind[from].push(to);
            }
        }
        let order = in_order(ways().flat_map(|services| services.iter()).map(|service| usize::from(*service)), &behind);
        let mut place = vec![0; behind.len()];
        order.iter().enumerate().for_each(|(at, service)| place[*service] = at);
        let mut depths = vec![0; behind.len()];
        for service in order {
            // A hop to a service earlier in the order closes a circle.
            for to in behind[service].iter().filter(|to| place[**to] > place[service]) {
                depths[*to] = depths[*to].max(depths[service] + 1);
            }
        }
        depths
    }
}

/// The services reachable from `first`, each before those behind it; of a circle the first one met.
fn in_order(first: impl Iterator<Item = usize>, behind: &[Vec<usize>]) -> Vec<usize> {
    let mut is_met = vec![false; behind.len()];
    // The current way, with the number of successors visited of each service on it.
    let (mut way, mut done) = (Vec::new(), Vec::new());
    for service in first.filter(|service| *service < behind.len()) {
        if !std::mem::replace(&mut is_met[service], true) {
            way.push((service, 0));
        }
        while let Some((at, next)) = way.last_mut() {
            match behind[*at].get(*next) {
                Some(to) => {
                    *next += 1;
                    if !std::mem::replace(&mut is_met[*to], true) {
                        way.push((*to, 0));
                    }
                }
                None => {
                    done.push(*at);
                    way.pop();
                }
            }
        }
    }
    done.reverse();
    done
}

/// One hop of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Number of the NF.
    pub nf: u16,
    /// Whether the path does not come to this NF again.
    pub last_visit: bool,
    /// Whether the NF is traversed in reverse.
    pub reverse: bool,
}

/// The kind of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathKind {
    /// Through an instance of each service of its chain.
    Whole,
    /// A service was left out because it had no instance.
    Bypasses,
    /// A service has no instance, and the chain lets no packets in without it.
    Refuses,
    /// Where an NF sends packets that are inside: to an instance of a service, and out.
    Detour,
}

impl PathKind {
    /// Whether a service was left out, or blocks the path, because it had no instance.
    pub(crate) fn goes_without(self) -> bool {
        matches!(self, Self::Bypasses | Self::Refuses)
    }
}

/// The NFs that a flow's packets visit, in order.
#[derive(Debug)]
pub struct Path {
    /// Port where its packets enter.
    pub ingress: u16,
    /// Its chain.
    pub chain: Arc<Chain>,
    /// The NFs.
    pub hops: Box<[Hop]>,
    /// The NFs, each once.
    pub nfs: Box<[u16]>,
    /// Port where its packets leave; none of one that lets no packets in.
    pub egress: u16,
    /// What kind of path it is.
    pub kind: PathKind,
    /// Moves during which a scan of the frame table may miss packets; recorded after its end.
    pub moves: Moves,
    /// Whether arriving packets need a new decision: it has ended, or lets no packets in.
    stops: AtomicBool,
    has_ended: AtomicBool,
}

/// Where a packet goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// To this NF.
    Nf(u16),
    /// Out of this port.
    Port(u16),
}

impl Path {
    /// Whether packets may use it: it has not ended, and lets packets in.
    #[inline(always)]
    pub fn goes(&self) -> bool {
        // Relaxed: packets that use it a round longer find its NFs, or are refused by them.
        !self.stops.load(Ordering::Relaxed)
    }

    /// Whether flows that took it are decided again.
    #[inline(always)]
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Held while its packets change frames or owners. Nothing is recorded for a path in use:
    /// before its packets are searched for, all threads have passed a fence after its end.
    #[inline(always)]
    pub fn moving(&self) -> Option<Moving<'_>> {
        if self.has_ended() { Some(self.moves.begin()) } else { None }
    }

    fn end(&self) {
        // Relaxed: the queues that carry tables and commands about the end order them after this.
        self.has_ended.store(true, Ordering::Relaxed);
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Whether it lets no packets in, because a service has no instance.
    pub fn refuses(&self) -> bool {
        self.kind == PathKind::Refuses
    }

    /// Whether it lacks a service that its chain names.
    pub(crate) fn goes_without(&self) -> bool {
        self.kind.goes_without()
    }

    /// Where a packet goes at hop number `hop`.
    #[inline(always)]
    pub fn step(&self, hop: usize) -> NextHop {
        match self.hops.get(hop) {
            Some(hop) => NextHop::Nf(hop.nf),
            None => NextHop::Port(self.egress),
        }
    }
}

/// Fibonacci hashing: the low bits of the result depend on all bits.
fn mixed(hash: u32) -> u32 {
    hash.wrapping_mul(0x9e37_79b1) >> 16
}

#[cfg(test)]
mod tests {
    use super::registry::ends;
    use super::ways::Ways;
    use super::*;
    use crate::decision::{Decision, Refusal};

    fn decision(registry: &PathRegistry, tables: &Tables, ingress: u16, chain: u16, hash: u32, old: Option<u32>) -> Decision {
        registry.decide(&mut Ways::new(16, 0), tables, ingress, chain, hash, old)
    }

    fn decide(registry: &PathRegistry, tables: &Tables, ingress: u16, chain: u16, hash: u32, old: Option<u32>) -> u32 {
        match decision(registry, tables, ingress, chain, hash, old) {
            Decision::Path(number) => number,
            other => panic!("{other:?}"),
        }
    }

    fn change(registry: &PathRegistry, before: &Tables, after: &mut Tables) {
        after.generation = before.generation + 1;
        registry.end(&ends(before, after), Some(after.generation));
    }

    #[test]
    fn one_that_is_to_end_its_flows_keeps_them_and_gets_no_new_ones() {
        let open = [member(0), member(1), member(2)];
        let ending = [member(0), Member { is_open: false, ..member(1) }, member(2)];
        let mut moved = 0;
        for flow in 0..3000u32 {
            let hash = flow.wrapping_mul(2_654_435_769);
            let (before, after) = (picked(&open, hash, 0).unwrap(), picked(&ending, hash, 0).unwrap());
            assert!(after != 1 && (before == 1 || after == before), "{before} {after}");
            moved += u32::from(before == 1);
            assert_eq!(kept(&ending, before, 0), Some(before));
        }
        assert!(moved.abs_diff(1000) < 150, "{moved}");
        assert_eq!((picked(&[], 7, 0), picked(&ending[1..2], 7, 0)), (None, Some(1)));
        let threads = [0, 1].map(|thread| Member { thread: Some(thread), ..member(thread) });
        assert!((0..100).all(|hash| [0, 1, 2].map(|thread| picked(&threads, hash, thread)) == [Some(0), Some(1), None]));
        assert_eq!(picked(&threads[..1], 7, 1), None);
    }

    #[test]
    fn many_combinations_need_few_paths_and_spread_evenly() {
        let registry = PathRegistry::new(10_000);
        let services: Vec<Vec<u16>> = (0..6).map(|s| (s * 8..s * 8 + 8).collect()).collect();
        let tables = tables(vec![chain(0, 1, &[0, 1, 2, 3, 4, 5], OnFailure::Drop)], services);
        let mut used = [0u32; 48];
        for flow in 0..100_000u32 {
            let path = decide(&registry, &tables, 0, 0, flow.wrapping_mul(2_654_435_769), None);
            registry.get(path).unwrap().hops.iter().for_each(|hop| used[hop.nf as usize] += 1);
        }
        assert!(registry.len() <= SPREAD, "{} paths", registry.len());
        assert!(used.iter().all(|n| n.abs_diff(12_500) < 2_500), "{used:?}");
    }

    #[test]
    fn at_the_bound_flows_share_the_paths_of_their_chain() {
        let registry = PathRegistry::new(4);
        let chains = vec![chain(0, 1, &[0, 1], OnFailure::Drop), chain(1, 1, &[0], OnFailure::Drop)];
        let mut tables = tables(chains, vec![(0..8).collect(), (8..16).collect()]);
        for flow in 0..1000u32 {
            let path = decide(&registry, &tables, 0, 0, flow.wrapping_mul(2_654_435_769), None);
            assert!(registry.still_valid(&tables, path, 0), "flow {flow}");
        }
        assert_eq!(registry.len(), 4);
        let lacking = decision(&registry, &tables, 0, 1, 5, None);
        assert_eq!(lacking, Decision::Drop(Refusal::NoPath), "another chain has none to share");
        // Only paths whose NFs live are shared.
        let gone = registry.get(0).unwrap().hops[0].nf;
        let mut services: Vec<Vec<Member>> = tables.services.clone();
        services[0].retain(|m| m.nf != gone);
        let mut fewer = Tables { chains: tables.chains.clone(), services, ..Default::default() };
        change(&registry, &tables, &mut fewer);
        tables = fewer;
        for flow in 0..1000u32 {
            match decision(&registry, &tables, 0, 0, flow.wrapping_mul(2_654_435_769), None) {
                Decision::Path(path) => assert!(registry.still_valid(&tables, path, 0), "flow {flow}"),
                other => assert_eq!(other, Decision::Drop(Refusal::NoPath), "flow {flow}"),
            }
        }
    }

    pub(super) fn chain(number: u16, version: u32, services: &[u16], on_failure: OnFailure) -> Arc<Chain> {
        Arc::new(Chain {
            number,
            version,
            name: format!("c{number}"),
            services: services.into(),
            egress: 9,
            on_failure,
            counters: Arc::new([ChainCounters::default()]),
            ..Chain::default()
        })
    }

    pub(super) fn member(nf: u16) -> Member {
        Member { nf, id: u64::from(nf) * 7919, former: None, is_open: true, thread: None }
    }

    pub(super) fn tables(chains: Vec<Arc<Chain>>, services: Vec<Vec<u16>>) -> Tables {
        let services = services.into_iter().map(|m| m.into_iter().map(member).collect()).collect();
        Tables { generation: 1, chains: chains.into_iter().map(Some).collect(), services, ..Default::default() }
    }

    #[test]
    fn a_path_has_one_instance_of_each_service_and_ends_at_the_port() {
        let registry = PathRegistry::new(64);
        let tables = tables(vec![chain(0, 1, &[0, 1, 0], OnFailure::Drop)], vec![vec![4, 5], vec![6]]);
        let number = decide(&registry, &tables, 2, 0, 12345, None);
        let path = registry.get(number).unwrap();
        assert_eq!(path.hops.len(), 3);
        assert_eq!(path.hops[0].nf, path.hops[2].nf, "a service that comes twice is met in the same instance");
        assert!(!path.hops[0].last_visit && path.hops[1].last_visit && path.hops[2].last_visit);
        assert_eq!(path.step(1), NextHop::Nf(6));
        assert_eq!(path.step(3), NextHop::Port(9));
        assert_eq!(decide(&registry, &tables, 2, 0, 12345, None), number, "the same combination has one number");
        assert_ne!(decide(&registry, &tables, 3, 0, 12345, None), number, "another ingress port is another path");
    }

    #[test]
    fn a_flow_stays_on_its_instance_when_others_come() {
        let registry = PathRegistry::new(64);
        let c = chain(0, 1, &[0], OnFailure::Drop);
        let before = tables(vec![c.clone()], vec![vec![4]]);
        let after = tables(vec![c.clone()], vec![vec![4, 5, 6, 7]]);
        for hash in 0..200 {
            let old = decide(&registry, &before, 0, 0, hash, None);
            assert_eq!(decide(&registry, &after, 0, 0, hash, Some(old)), old);
            assert!(registry.still_valid(&after, old, 0));
        }
        let moved =
            (0..200).filter(|hash| registry.get(decide(&registry, &after, 0, 0, *hash, None)).unwrap().hops[0].nf != 4).count();
        assert!(moved > 100, "new flows are spread over all instances");
    }

    #[test]
    fn a_flow_goes_on_with_the_one_that_took_its_instances_place() {
        let registry = PathRegistry::new(64);
        let c = chain(0, 1, &[0], OnFailure::Drop);
        let before = tables(vec![c.clone()], vec![vec![4, 5]]);
        let mut after = tables(vec![c], vec![vec![4]]);
        after.services[0].push(Member { nf: 6, id: member(5).id, former: Some(5), is_open: true, thread: None });
        for hash in 0..200 {
            let old = decide(&registry, &before, 0, 0, hash, None);
            let now = decide(&registry, &after, 0, 0, hash, Some(old));
            let nf = |number| registry.get(number).unwrap().hops[0].nf;
            assert_eq!(nf(now), if nf(old) == 5 { 6 } else { 4 });
            assert_eq!(
                decide(&registry, &after, 0, 0, hash, None),
                now,
                "and so does one that comes later, the other direction too"
            );
        }
    }

    #[test]
    fn a_dead_service_is_bypassed_or_refused() {
        let registry = PathRegistry::new(64);
        let whole = vec![vec![4], vec![5]];
        let broken = vec![vec![4], vec![]];
        let bypass = chain(0, 1, &[0, 1], OnFailure::Bypass);
        let all = tables(vec![bypass.clone()], whole.clone());
        let full = decide(&registry, &all, 0, 0, 1, None);
        let mut without = tables(vec![bypass.clone()], broken.clone());
        change(&registry, &all, &mut without);
        assert!(!registry.still_valid(&without, full, 0));
        let number = decide(&registry, &without, 0, 0, 1, Some(full));
        let path = registry.get(number).unwrap();
        assert_eq!((path.kind, path.hops.len()), (PathKind::Bypasses, 1));
        assert!(registry.still_valid(&without, number, 0));
        let mut again = tables(vec![bypass], whole.clone());
        change(&registry, &without, &mut again);
        assert!(!registry.still_valid(&again, number, 0), "back to the full path when the NF is back");
        for policy in [OnFailure::Drop, OnFailure::Restart] {
            let registry = PathRegistry::new(64);
            let number = decide(&registry, &tables(vec![chain(0, 1, &[0, 1], policy)], broken.clone()), 0, 0, 1, None);
            let path = registry.get(number).unwrap();
            assert!(path.refuses() && !path.goes() && path.nfs.is_empty() && path.step(0) == NextHop::Port(u16::MAX));
        }
    }

    #[test]
    fn a_chain_that_was_replaced_is_decided_anew() {
        let registry = PathRegistry::new(64);
        let old = decide(&registry, &tables(vec![chain(0, 1, &[0], OnFailure::Drop)], vec![vec![4], vec![5]]), 0, 0, 1, None);
        let now = tables(vec![chain(0, 2, &[1], OnFailure::Drop)], vec![vec![4], vec![5]]);
        assert!(!registry.still_valid(&now, old, 0));
        assert_eq!(registry.get(decide(&registry, &now, 0, 0, 1, Some(old))).unwrap().hops[0].nf, 5);
        assert_eq!(decision(&registry, &now, 0, 7, 1, None), Decision::Drop(Refusal::NoRule), "no such chain");
    }

    #[test]
    fn depth_is_the_longest_way_over_all_chains() {
        let depths = |chains: &[&[u16]]| {
            let chains = chains.iter().enumerate().map(|(number, services)| chain(number as u16, 1, services, OnFailure::Drop));
            tables(chains.collect(), vec![vec![]; 4]).depths()
        };
        assert_eq!(depths(&[&[0, 1], &[2, 0, 1]]), [1, 2, 0, 0]);
        // What follows the second chain's first hop is behind all of the first chain.
        assert_eq!(depths(&[&[0, 1, 2], &[2, 3]]), [0, 1, 2, 3]);
        assert_eq!(depths(&[&[2, 3], &[0, 1, 2]]), [0, 1, 2, 3]);
        // Circles: back again, within a chain, twice in a row. Services before stay connected.
        assert_eq!(depths(&[&[0, 1, 2], &[2, 1, 0]]), [0, 1, 2, 0]);
        assert_eq!(depths(&[&[0, 1, 2, 1, 3]]), [0, 1, 2, 2]);
        assert_eq!(depths(&[&[0, 0, 1]]), [0, 1, 0, 0]);
        assert_eq!(depths(&[&[3], &[0, 1, 0, 3]]), [0, 1, 0, 1]);
        assert_eq!(depths(&[]), [0; 4]);
    }

    #[test]
    fn a_service_may_send_where_it_is_allowed_to_and_violates_nothing_by_what_it_was_allowed_before() {
        let mut ever = Places::new([70], []);
        let now = Places::new([0, 64], [3]);
        ever.add(&now);
        let tables = Tables { may_send: vec![MaySend { now, ever }], ..Default::default() };
        let sent = |to| tables.may_send(0, to);
        assert_eq!([0, 64].map(|port| sent(VerdictTarget::Port(port))), [Sent::Goes; 2]);
        assert_eq!((sent(VerdictTarget::Service(3)), sent(VerdictTarget::Service(0))), (Sent::Goes, Sent::Violates));
        assert_eq!((sent(VerdictTarget::Port(70)), sent(VerdictTarget::Port(u16::MAX))), (Sent::Refused, Sent::Violates));
        assert_eq!(tables.may_send(1, VerdictTarget::Port(0)), Sent::Violates, "nothing is known of the service");
    }

    #[test]
    fn the_frames_of_a_chain_are_those_that_came_in_and_have_not_gone() {
        let counters = [ChainCounters::default(), ChainCounters::default()];
        counters[0].api.entry_packets.add(100);
        counters[0].drops[DropReason::Entry as usize].add(50);
        counters[1].api.exit_packets.add(30);
        counters[1].drops[DropReason::NfDied as usize].add(5);
        counters[1].outside.add(20);
        counters[0].back.add(10);
        let chain = Arc::try_unwrap(chain(0, 1, &[0], OnFailure::Drop)).unwrap();
        let chain = Chain { counters: Arc::new(counters), ..chain };
        assert_eq!(chain.frames(), 55);
        chain.counters[1].api.exit_packets.add(56);
        assert_eq!(chain.frames(), 0, "seen between two counts");
    }
}
