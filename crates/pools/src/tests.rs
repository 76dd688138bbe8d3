use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use sluice_policy::sched::priority::Weight;
use sluice_shm::page::{Counter, NfRequest};

use super::waiting::LONGEST_WAIT_NS;
use super::*;
use sluice_api::config::{self as model, WhenEmpty};
use sluice_config::class::TrafficClass;
use sluice_dataplane::assigned::Assigned;
use sluice_dataplane::chain::{ChainCounters, Member};
use sluice_dataplane::classify::rule::RuleTerms;
use sluice_dataplane::fake::{self, Fake};
use sluice_dataplane::frame::Packet;
use sluice_dataplane::waker::Waker;

const MS: u64 = 1_000_000;
/// Idle timeout of the flow table, in milliseconds.
const FLOW_MS: u64 = 30_000;

/// Steering with pools of services 0 and 1 (NFs 0 to 7, 8 to 15); service 2 is shared (NF 16).
struct Rig {
    steering: PoolSteering,
    nfs: Vec<Option<NfEnd>>,
    tables: Tables,
    registry: PathRegistry,
    flows: FlowTable,
    clock: Clock,
    counters: Vec<Arc<[PoolCounters]>>,
    assigned: Arc<Assigned>,
    terms: RuleTerms,
    per: Per,
    waker: Arc<Waker>,
}

fn chain(number: u16, services: &[u16]) -> Option<Arc<Chain>> {
    Some(Arc::new(Chain {
        number,
        version: u32::from(number) + 1,
        name: format!("c{number}"),
        services: services.into(),
        egress: 9,
        counters: Arc::new([ChainCounters::default()]),
        ..Chain::default()
    }))
}

impl Rig {
    fn new(pool: model::Pool) -> Self {
        Self::of(Per::Flow, pool)
    }

    fn of(per: Per, pool: model::Pool) -> Self {
        Self::part(Portion { of: 1, this: 0 }, per, pool)
    }

    /// One of several Rx threads.
    fn part(part: Portion, per: Per, pool: model::Pool) -> Self {
        let page = fake::core_page(32);
        let nfs: Vec<_> = (0..17).map(|number| Some(fake::end(&Fake::default().on(&page, number)))).collect();
        let tables = Tables {
            generation: 1,
            chains: vec![chain(0, &[0, 2, 1]), chain(1, &[1, 0])],
            services: vec![vec![], vec![], vec![Member { nf: 16, id: 1, former: None, is_open: true, thread: None }]],
            ..Default::default()
        };
        let mut rig = Self {
            steering: PoolSteering::new(0, part, 64, 256, 7),
            nfs,
            tables,
            registry: PathRegistry::new(256),
            flows: FlowTable::new(256, 3),
            clock: Clock::new(),
            per,
            counters: (0..2).map(|_| [PoolCounters::default()].into()).collect(),
            assigned: Arc::new(Assigned::new(32)),
            terms: RuleTerms::default(),
            waker: Arc::new(Waker::new(Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()))),
        };
        rig.has(0, 0..8, &pool);
        rig.has(1, 8..16, &pool);
        rig
    }

    fn has(&mut self, service: u16, members: impl IntoIterator<Item = u16>, pool: &model::Pool) {
        self.has_and_leaves(service, members, &[], pool);
    }

    /// As above, with members of an old version.
    fn has_and_leaves(&mut self, service: u16, members: impl IntoIterator<Item = u16>, leaves: &[u16], pool: &model::Pool) {
        let table = PoolTable {
            service,
            per: self.per,
            pool: pool.clone(),
            fallback: Some(2),
            members: members.into_iter().map(|nf| PoolMember { nf, part: nf, leaves: leaves.contains(&nf) }).collect(),
            counters: self.counters[service as usize].clone(),
            assigned: Some(self.assigned.clone()),
            waker: Some(self.waker.clone()),
        };
        self.steering.use_pool(&Arc::new(table), &self.nfs, &mut self.flows, &self.registry);
    }

    /// A packet of connection `n` on a chain: its NFs, or another decision.
    fn packet(&mut self, chain: usize, n: u16, back: bool, flags: u8) -> Result<Vec<u16>, Decision> {
        let key = key(n, back);
        let hash = self.flows.hash_of(&key);
        let Rig { steering, tables, registry, flows, clock, terms, .. } = self;
        let now_ns = clock.now_ns();
        if let Some(known) = flows.lookup(&key, hash, now_ns / MS).filter(|known| registry.holds(known.decision))
            && !steering.note(&key, flags, flows, now_ns)
        {
            return Ok(registry.of(known.decision).unwrap().hops.iter().map(|hop| hop.nf).collect());
        }
        let chain = tables.chains[chain].as_ref().unwrap();
        assert!(steering.concerns(chain));
        let asked = SteerRequest {
            key: &key,
            hash,
            chain,
            flags,
            old: None,
            has_waited: false,
            settles: true,
            note: 0,
            terms: *terms,
            since_ns: now_ns,
        };
        let decision = steering.decide(&asked, &mut Env { tables, registry, flows, generation: 1, clock });
        registry.of(decision.into()).map(|path| path.hops.iter().map(|hop| hop.nf).collect()).ok_or(decision)
    }

    /// What a packet of connection `n` would meet.
    fn foresee(&self, chain: usize, n: u16) -> Result<Vec<Foreseen>, Decision> {
        let key = key(n, false);
        let asked = SteerRequest {
            key: &key,
            hash: self.flows.hash_of(&key),
            chain: self.tables.chains[chain].as_ref().unwrap(),
            flags: 0,
            old: None,
            has_waited: false,
            settles: false,
            note: 0,
            terms: self.terms,
            since_ns: self.clock.now_ns(),
        };
        self.steering.foresee_path(&asked, &self.tables)
    }

    /// Waits until the time for late packets is over.
    fn step(&mut self) {
        self.steering.step(&mut self.flows, u64::MAX);
    }

    fn count(&self, state: State) -> u32 {
        self.steering.pools.iter().flatten().map(|members| members.pool.count(state)).sum()
    }
}

pub fn key(n: u16, back: bool) -> FlowKey {
    let mut packet = [0u8; 64];
    packet[12..15].copy_from_slice(&[0x08, 0, 0x45]);
    packet[17] = 46;
    packet[23] = protocol::TCP;
    let (client, server) = if back { (30, 26) } else { (26, 30) };
    packet[client..client + 4].copy_from_slice(&[10, 0, (n >> 8) as u8, n as u8]);
    packet[server..server + 4].copy_from_slice(&[10, 1, 0, 1]);
    let (client, server) = if back { (36, 34) } else { (34, 36) };
    packet[client..client + 2].copy_from_slice(&40_000u16.to_be_bytes());
    packet[server..server + 2].copy_from_slice(&80u16.to_be_bytes());
    FlowKey::parse(&packet, 64, u16::from(back))
}

fn drops() -> model::Pool {
    model::Pool { when_empty: WhenEmpty::Drop, ..Default::default() }
}

#[test]
fn a_member_is_worth_what_its_flow_is_until_it_has_another() {
    let mut rig = Rig::new(drops());
    let handle = |rig: &Rig, nf: u16| rig.nfs[usize::from(nf)].as_ref().unwrap().handle.clone();
    let news = |rig: &Rig| {
        let mut news = Vec::new();
        rig.assigned.take(|number| news.push(number));
        news
    };
    rig.packet(0, 0, false, tcp::SYN).unwrap();
    assert!(news(&rig).is_empty(), "an ordinary flow changes nothing");
    rig.terms.weight = Weight::new(4.0);
    rig.packet(0, 1, false, tcp::SYN).unwrap();
    rig.packet(0, 1, true, tcp::SYN | tcp::ACK).unwrap();
    assert_eq!(news(&rig), [1, 9], "once for each member, and not the shared one");
    for nf in [1, 9] {
        let nf = handle(&rig, nf);
        let page = &nf.core_page;
        assert_eq!((nf.weight(), page.level(nf.slot)), (4.0, 4));
        assert_eq!(fake::page_share(&nf), 4 * fake::page_share(&handle(&rig, 0)));
        assert!(page.budget(nf.slot) > 0, "its first packets go first");
    }
    // Its flow ends. An ordinary flow gets the member when all others are taken.
    rig.packet(0, 1, false, tcp::RST).unwrap();
    rig.step();
    rig.terms.weight = Weight::ORDINARY;
    for n in 2..9 {
        rig.packet(0, n, false, tcp::SYN).unwrap();
    }
    assert_eq!(news(&rig), [1, 9]);
    let nf = handle(&rig, 1);
    assert_eq!((nf.weight(), nf.core_page.level(nf.slot)), (1.0, 0));
    assert_eq!(fake::page_share(&nf), fake::page_share(&handle(&rig, 0)));
}

#[test]
fn both_directions_on_both_chains_meet_the_same_members_which_are_aligned() {
    let mut rig = Rig::new(drops());
    for n in 0..8 {
        let there = rig.packet(0, n, false, tcp::SYN).unwrap();
        assert_eq!(there, [n, 16, 8 + n], "the n-th of each pool");
        assert_eq!(rig.packet(1, n, true, tcp::SYN | tcp::ACK).unwrap(), [8 + n, n]);
        assert_eq!(rig.packet(0, n, false, tcp::ACK).unwrap(), there);
        assert_eq!(rig.packet(0, n, false, tcp::ACK).unwrap(), there, "and again, from the flow table");
    }
    assert_eq!(rig.packet(0, 8, false, tcp::SYN), Err(Decision::Drop(Refusal::NoneIdle)));
    assert_eq!((rig.count(State::Assigned), rig.steering.connections()), (16, 8));
    assert_eq!(rig.flows.stats().entries, 8, "half-open directions are asked about again");
    assert_eq!(rig.registry.len(), 16);
    assert_eq!((rig.counters[0][0].api.activations.get(), rig.counters[0][0].api.drops.get()), (8, 1));
}

#[test]
fn members_are_not_kept_for_late_packets_while_somebody_needs_them() {
    let mut rig = Rig::new(drops());
    (0..8).for_each(|n| drop(rig.packet(0, n, false, tcp::ACK).unwrap()));
    rig.packet(0, 3, false, tcp::RST).unwrap();
    rig.packet(0, 5, false, tcp::RST).unwrap();
    rig.steering.step(&mut rig.flows, 0);
    assert_eq!((rig.count(State::Lingering), rig.count(State::Idle)), (4, 0), "their time is not over");
    assert_eq!(rig.packet(0, 8, false, tcp::SYN), Err(Decision::Drop(Refusal::NoneIdle)));
    rig.steering.step(&mut rig.flows, 0);
    assert_eq!((rig.count(State::Lingering), rig.count(State::Idle)), (2, 2), "one was asked for");
    assert_eq!(rig.packet(0, 3, true, tcp::ACK), Err(Decision::Drop(Refusal::NoneIdle)), "a late packet takes no other member");
    assert_eq!(rig.packet(0, 8, false, tcp::SYN).unwrap(), [3, 16, 11], "that of the one that ended first");
}

#[test]
fn late_packets_meet_the_old_members_and_then_these_are_made_as_new() {
    let mut rig = Rig::new(drops());
    let there = rig.packet(0, 1, false, tcp::ACK).unwrap();
    rig.packet(1, 1, true, tcp::ACK).unwrap();
    rig.packet(0, 1, false, tcp::FIN | tcp::ACK).unwrap();
    assert_eq!(rig.count(State::Lingering), 0);
    rig.packet(1, 1, true, tcp::FIN | tcp::ACK).unwrap();
    assert_eq!(rig.count(State::Lingering), 2);
    assert_eq!(rig.packet(0, 1, false, tcp::ACK).unwrap(), there, "a late one");
    let handle = rig.nfs[there[0] as usize].as_ref().unwrap().handle.clone();
    handle.commit(1);
    rig.step();
    assert_eq!((rig.count(State::Draining), rig.count(State::Idle), rig.flows.stats().entries), (1, 15, 0));
    let word = || handle.region.page.control(Control::Reset).load(Ordering::Relaxed);
    assert_eq!(word(), 0, "a packet is inside");
    handle.release(1);
    rig.step();
    assert_eq!((word(), rig.count(State::Idle), rig.steering.connections()), (1, 16, 0));
}

#[test]
fn a_new_connection_between_the_same_ends_has_members_of_its_own() {
    let mut rig = Rig::new(drops());
    let old = rig.packet(0, 1, false, tcp::ACK).unwrap();
    rig.packet(0, 1, false, tcp::RST).unwrap();
    let moved = rig.steering.moved();
    let new = rig.packet(0, 1, false, tcp::SYN).unwrap();
    assert!(old[0] != new[0] && old[2] != new[2], "{old:?} {new:?}");
    assert_ne!(rig.steering.moved(), moved, "packets that are held are looked at again");
    rig.step();
    assert_eq!((rig.count(State::Assigned), rig.count(State::Idle)), (2, 14));
}

#[test]
fn one_that_dies_is_replaced_and_one_that_comes_back_is_idle() {
    let mut rig = Rig::new(drops());
    let before = rig.packet(0, 1, false, tcp::ACK).unwrap();
    let others: Vec<u16> = (0..8).filter(|nf| *nf != before[0]).collect();
    rig.has(0, others, &drops());
    let after = rig.packet(0, 1, false, tcp::ACK).unwrap();
    assert!(after[0] != before[0] && after[2] == before[2], "{before:?} {after:?}");
    rig.has(0, 0..8, &drops());
    assert_eq!(rig.packet(0, 1, false, tcp::ACK).unwrap(), after);
    assert_eq!((rig.count(State::Assigned), rig.count(State::Idle)), (2, 14));
    // Late packets of an ended connection take no other member.
    rig.packet(0, 1, false, tcp::RST).unwrap();
    let others: Vec<u16> = (0..8).filter(|nf| *nf != after[0]).collect();
    rig.has(0, others, &drops());
    assert_eq!(rig.packet(0, 1, false, tcp::ACK), Err(Decision::Drop(Refusal::NoneIdle)));
    rig.step();
    assert_eq!(rig.count(State::Idle), 15);
}

#[test]
fn without_an_idle_member_a_flow_waits_or_falls_back() {
    let mut rig = Rig::new(model::Pool { queue: 2, ..Default::default() });
    (0..8).for_each(|n| drop(rig.packet(0, n, false, tcp::ACK).unwrap()));
    assert_eq!(rig.packet(0, 8, false, tcp::ACK), Err(Decision::Wait(WaitFor::Instance)));
    let wanted = rig.steering.wanted();
    assert_eq!((wanted.service, wanted.chain), (0, rig.tables.chains[0].as_ref().unwrap().number));
    let mut wait = |frame| {
        let packet = Packet { frame, ..Packet::default() };
        rig.steering.enqueue(wanted, &Arrival { packet, key: &key(8, false), flags: 0, tcp: tcp::ACK }, 0)
    };
    assert_eq!(
        [wait(0), wait(1), wait(2)].map(|gone| gone.map(|gone| gone.packet.frame)),
        [None, None, Some(0)],
        "the oldest goes"
    );
    rig.packet(0, 3, false, tcp::RST).unwrap();
    rig.step();
    assert_eq!(rig.packet(0, 9, false, tcp::ACK), Err(Decision::Wait(WaitFor::Instance)), "who came later waits behind");
    assert!(rig.steering.wants_look(1));
    let next = rig.steering.waiting.first().unwrap();
    assert_eq!((next.key, next.packet.frame, rig.steering.waiting()), (key(8, false), 1, 2));
    assert!(!next.is_over(LONGEST_WAIT_NS - 1) && next.is_over(LONGEST_WAIT_NS), "too long");
    rig.steering.waiting.pop(next.wanted.service);
    assert_eq!(rig.steering.waiting.first().unwrap().packet.frame, 2);
    rig.steering.waits_on(&next);
    assert!(rig.steering.waiting.first().is_none(), "until the next look");
    assert_eq!(rig.steering.waiting.pop_any().unwrap().packet.frame, 2);
    assert_eq!((rig.steering.waiting.pop_any().is_none(), rig.steering.waiting()), (true, 0));

    let mut rig = Rig::new(model::Pool { when_empty: WhenEmpty::Fallback, ..Default::default() });
    (0..8).for_each(|n| drop(rig.packet(0, n, false, tcp::ACK).unwrap()));
    assert_eq!(rig.packet(0, 8, false, tcp::ACK).unwrap(), [16, 16, 16]);
    rig.packet(0, 3, false, tcp::RST).unwrap();
    rig.step();
    assert_eq!(rig.packet(1, 8, true, tcp::ACK).unwrap(), [16, 16], "to its end");
    assert_eq!(rig.counters[0][0].api.fallbacks.get(), 1);
}

#[test]
fn what_is_foreseen_is_what_is_decided_and_takes_no_member() {
    let one_of_each = Ok(vec![Foreseen::OneOf(0), Foreseen::Nf(16), Foreseen::OneOf(1)]);
    let mut rig = Rig::new(drops());
    for n in 0..8 {
        assert_eq!(rig.foresee(0, n), one_of_each);
        assert_eq!(rig.count(State::Idle), 16 - 2 * u32::from(n));
        let met = rig.packet(0, n, false, tcp::ACK).unwrap();
        assert_eq!(rig.foresee(0, n), Ok(met.into_iter().map(Foreseen::Nf).collect()), "its members are known");
    }
    assert_eq!(rig.foresee(0, 8), Err(Decision::Drop(Refusal::NoneIdle)));
    assert_eq!(rig.counters.iter().map(|of| of[0].api.drops.get()).sum::<u64>(), 0, "nothing is counted");
    let mut rig = Rig::new(model::Pool { when_empty: WhenEmpty::Wait, ..Default::default() });
    (0..8).for_each(|n| drop(rig.packet(0, n, false, tcp::ACK).unwrap()));
    assert_eq!(rig.foresee(0, 8), Err(Decision::Wait(WaitFor::Instance)));
    assert_eq!(rig.packet(0, 8, false, tcp::ACK), Err(Decision::Wait(WaitFor::Instance)));
    let (wanted, key) = (rig.steering.wanted(), key(8, false));
    let arrival = Arrival { packet: Packet::default(), key: &key, flags: 0, tcp: tcp::ACK };
    assert!(rig.steering.enqueue(wanted, &arrival, 0).is_none());
    rig.packet(0, 3, false, tcp::RST).unwrap();
    rig.step();
    assert_eq!(rig.foresee(0, 8), Err(Decision::Wait(WaitFor::Instance)), "behind its earlier packet");
    rig.tables.chains.push(chain(2, &[2]));
    assert_eq!(rig.foresee(2, 8), Ok(vec![Foreseen::Nf(16)]), "a chain without pools");
    let mut rig = Rig::new(model::Pool { when_empty: WhenEmpty::Fallback, ..Default::default() });
    (0..8).for_each(|n| drop(rig.packet(0, n, false, tcp::ACK).unwrap()));
    assert_eq!(rig.foresee(0, 8), Ok(vec![Foreseen::Nf(16); 3]));
}

#[test]
fn a_strict_member_is_stopped_and_idle_members_are_let_go() {
    let strict = model::Pool { isolation: Isolation::Strict, ..drops() };
    let mut rig = Rig::new(strict);
    let met = rig.packet(0, 1, false, tcp::RST).unwrap();
    rig.step();
    assert_eq!((rig.count(State::Resetting), rig.count(State::Idle)), (2, 14));
    let handle = |nf: u16| rig.nfs[nf as usize].as_ref().unwrap().handle.clone();
    assert_eq!(handle(met[0]).stop_reason(), StopReason::Spent);
    let handles: Vec<_> = (0..8).map(handle).collect();
    rig.steering.dismiss(0, 3);
    assert_eq!(handles.iter().filter(|h| h.dismissed.load(Ordering::Relaxed)).count(), 3);
    assert_eq!(rig.count(State::Idle), 11);
}

#[test]
fn members_of_a_former_version_keep_their_flows_and_get_no_others() {
    let mut rig = Rig::new(drops());
    let before = rig.packet(0, 1, false, tcp::ACK).unwrap();
    let old: Vec<u16> = (0..8).filter(|nf| *nf != 7).collect();
    rig.has_and_leaves(0, 0..8, &old, &drops());
    let handle = |rig: &Rig, nf: u16| rig.nfs[nf as usize].as_ref().unwrap().handle.clone();
    let let_go = |rig: &Rig| (0..8).filter(|nf| handle(rig, *nf).dismissed.load(Ordering::Relaxed)).count();
    assert_eq!(let_go(&rig), 6, "those without a flow leave at once");
    assert_eq!(rig.packet(0, 1, false, tcp::ACK).unwrap(), before);
    assert_eq!(rig.packet(0, 2, false, tcp::ACK).unwrap()[0], 7);
    assert_eq!(
        rig.packet(0, 3, false, tcp::ACK),
        Err(Decision::Drop(Refusal::NoneIdle)),
        "the only one of the new version has a flow"
    );
    rig.packet(0, 1, false, tcp::RST).unwrap();
    rig.step();
    assert_eq!((let_go(&rig), rig.steering.members(0).unwrap().pool.size()), (7, 1));
    // A second change before they are gone does not bring them back.
    rig.has_and_leaves(0, 0..8, &old, &drops());
    assert_eq!(rig.steering.members(0).unwrap().pool.size(), 1);
}

fn classes() -> model::Pool {
    model::Pool { class: Some("source-prefix/24".into()), ..drops() }
}

#[test]
fn each_thread_gives_its_own_members_and_lets_those_go() {
    let mut rig = Rig::part(Portion { of: 2, this: 1 }, Per::Flow, drops());
    for n in 0..4 {
        let met = rig.packet(0, n, false, tcp::SYN).unwrap();
        assert!(met[0] % 2 == 1 && met[2] % 2 == 1, "{met:?}");
    }
    assert_eq!(rig.packet(0, 4, false, tcp::SYN), Err(Decision::Drop(Refusal::NoneIdle)), "the others are another thread's");
    rig.packet(0, 0, false, tcp::RST).unwrap();
    rig.step();
    rig.steering.dismiss(0, 3);
    let gone: Vec<u16> =
        (0..8).filter(|nf| rig.nfs[*nf].as_ref().unwrap().handle.dismissed.load(Ordering::Relaxed)).map(|nf| nf as u16).collect();
    assert!(gone.len() == 1 && gone[0] % 2 == 1, "as many as are idle here: {gone:?}");
}

#[test]
fn the_waker_is_called_where_there_may_be_more_members_and_where_one_is_spent() {
    let eight = model::Pool { max: 8, ..drops() };
    let mut rig = Rig::new(eight.clone());
    (0..8).for_each(|n| drop(rig.packet(0, n, false, tcp::SYN).unwrap()));
    rig.packet(0, 8, false, tcp::SYN).unwrap_err();
    assert!(!rig.waker.take(), "there are as many as there may be");
    rig.has(0, 0..7, &eight);
    rig.packet(0, 9, false, tcp::SYN).unwrap_err();
    assert!(rig.waker.take());

    let mut rig = Rig::new(model::Pool { isolation: Isolation::Strict, ..drops() });
    rig.packet(0, 0, false, tcp::SYN).unwrap();
    rig.packet(0, 0, false, tcp::RST).unwrap();
    assert!(!rig.waker.is_called());
    rig.step();
    assert!(rig.waker.take());
}

#[test]
fn with_rss_a_flow_keeps_its_nf_in_both_directions() {
    let mut rig = Rig::of(Per::Rss, drops());
    let mut met = HashSet::new();
    for n in 0..32 {
        let there = rig.packet(0, n, false, tcp::ACK).unwrap();
        assert_eq!(rig.packet(0, n, false, tcp::ACK).unwrap(), there);
        let back = rig.packet(1, n, true, tcp::ACK).unwrap();
        assert_eq!(back, [there[2], there[0]]);
        met.insert(there[0]);
    }
    assert!(met.len() > 4, "{met:?}");
}

#[test]
fn what_makes_a_class_is_what_the_service_says() {
    let packet = |vlan: u16, dscp: u8, ingress: u16| {
        let mut bytes = vec![0u8; 12];
        bytes.extend([0x81, 0, (vlan >> 8) as u8, vlan as u8, 0x08, 0, 0x45, dscp << 2]);
        bytes.resize(80, 1);
        FlowKey::parse(&bytes, 80, ingress)
    };
    let base = packet(5, 10, 1);
    for (class, same, other) in [
        (TrafficClass::Vlan, packet(5, 46, 2), packet(6, 10, 1)),
        (TrafficClass::Dscp, packet(6, 10, 2), packet(5, 46, 1)),
        (TrafficClass::Port, packet(6, 46, 1), packet(5, 10, 2)),
    ] {
        let of = |key: &FlowKey| ClassKey::of(class, key, 3);
        assert!(of(&base) == of(&same) && of(&base) != of(&other), "{class:?}");
    }
    let of = |tenant| ClassKey::of(TrafficClass::Tenant, &base, tenant);
    assert!(of(3) == ClassKey::of(TrafficClass::Tenant, &packet(6, 46, 2), 3) && of(3) != of(4) && of(0) != of(3));
}

#[test]
fn all_connections_of_a_class_have_one_member_until_the_last_is_over() {
    let mut rig = Rig::of(Per::Class, classes());
    let one = rig.packet(0, 1, false, tcp::ACK).unwrap();
    assert_eq!(rig.packet(0, 2, false, tcp::ACK).unwrap(), one);
    let other = rig.packet(0, 256, false, tcp::ACK).unwrap();
    assert!(one[0] != other[0] && one[2] != other[2], "{one:?} {other:?}");
    assert_eq!(rig.packet(1, 2, true, tcp::ACK).unwrap(), [one[2], one[0]], "the other direction, on another chain");
    assert_eq!(rig.count(State::Assigned), 4);
    rig.packet(0, 1, false, tcp::RST).unwrap();
    rig.step();
    assert_eq!(rig.count(State::Assigned), 4, "a connection of it goes on");
    assert_eq!(rig.packet(0, 3, false, tcp::ACK).unwrap(), one);
    (2..4).for_each(|n| drop(rig.packet(0, n, false, tcp::RST).unwrap()));
    rig.step();
    assert_eq!((rig.count(State::Assigned), rig.count(State::Idle)), (2, 14));
    assert_eq!(rig.counters[0][0].api.activations.get(), 2);
}

#[test]
fn the_member_of_a_class_is_worth_what_its_most_important_connection_is() {
    let mut rig = Rig::of(Per::Class, classes());
    let mut worth = |n: u16, weight: f64| {
        rig.terms.weight = Weight::new(weight);
        let met = rig.packet(0, n, false, tcp::ACK).unwrap();
        let handle = &rig.nfs[usize::from(met[0])].as_ref().unwrap().handle;
        let mut news = Vec::new();
        rig.assigned.take(|number| news.push(number));
        (handle.weight(), news.len())
    };
    assert_eq!(worth(1, 1.0), (1.0, 0));
    assert_eq!(worth(2, 4.0), (4.0, 2), "both members of the class are reported");
    assert_eq!(worth(3, 2.0), (4.0, 0));
    assert_eq!(worth(256, 2.0), (2.0, 2), "another class has another member");
}

#[test]
fn a_class_whose_member_dies_or_leaves_gets_another_one() {
    let mut rig = Rig::of(Per::Class, classes());
    let before = rig.packet(0, 1, false, tcp::ACK).unwrap();
    rig.packet(0, 256, false, tcp::ACK).unwrap();
    let path_of = |rig: &mut Rig, n: u16| {
        let key = key(n, false);
        rig.flows.lookup(&key, rig.flows.hash_of(&key), 0).unwrap().decision
    };
    let paths = [path_of(&mut rig, 1), path_of(&mut rig, 256)];
    rig.has(0, (0..8).filter(|nf| *nf != before[0]), &classes());
    let holds = paths.map(|path| rig.registry.holds(path));
    assert_eq!(holds, [false, true], "flows of the member are decided anew, and no others");
    rig.packet(0, 256, false, tcp::RST).unwrap();
    rig.step();
    let after = rig.packet(0, 2, false, tcp::ACK).unwrap();
    assert!(after[0] != before[0] && after[2] == before[2], "{before:?} {after:?}");
    // The earlier connection ends: it held the dead member, and still holds the other pool's.
    let _ = rig.packet(0, 1, false, tcp::RST);
    rig.step();
    assert_eq!(rig.count(State::Assigned), 2);
    // A member of an old version keeps its connections.
    rig.has_and_leaves(0, (0..8).filter(|nf| *nf != before[0]), &[after[0]], &classes());
    let next = rig.packet(0, 3, false, tcp::ACK).unwrap();
    assert!(next[0] != after[0] && next[2] == after[2], "{next:?}");
    assert_eq!(rig.packet(0, 2, false, tcp::ACK).unwrap(), after);
    rig.packet(0, 2, false, tcp::RST).unwrap();
    rig.step();
    assert_eq!(rig.packet(0, 4, false, tcp::ACK).unwrap(), next, "the class is the new member's");
    (3..5).for_each(|n| drop(rig.packet(0, n, false, tcp::RST).unwrap()));
    rig.step();
    assert_eq!((rig.count(State::Assigned), rig.steering.connections()), (0, 0));
}

#[test]
fn silence_ends_what_is_half_open_before_what_is_established() {
    let pool = model::Pool { half_open_ms: 1_000, tcp_idle_ms: 1_000_000_000, ..drops() };
    let mut rig = Rig::new(pool);
    rig.packet(0, 1, false, tcp::ACK).unwrap();
    rig.packet(1, 1, true, tcp::ACK).unwrap();
    rig.packet(0, 2, false, tcp::SYN).unwrap();
    let now_ms = rig.clock.now_ns() / MS;
    rig.steering.age(&mut rig.flows, now_ms + 500, FLOW_MS);
    assert_eq!(rig.steering.connections(), 2);
    rig.steering.age(&mut rig.flows, now_ms + 2_000, FLOW_MS);
    assert_eq!(rig.steering.connections(), 1);
    rig.steering.age(&mut rig.flows, now_ms + 2_000_000_000, FLOW_MS);
    rig.step();
    assert_eq!((rig.steering.connections(), rig.count(State::Idle), rig.flows.stats().entries), (0, 16, 0));
}

#[test]
fn a_connection_ends_after_its_time_although_the_flow_table_has_forgotten_it_before() {
    const SECOND: u64 = 1_000;
    let mut rig = Rig::new(model::Pool { tcp_idle_ms: 300_000, half_open_ms: 300_000, ..drops() });
    rig.packet(0, 1, false, tcp::ACK).unwrap();
    let (key, began_ms) = (key(1, false), rig.clock.now_ns() / MS);
    let hash = rig.flows.hash_of(&key);
    let pass = |rig: &mut Rig, seconds: std::ops::Range<u64>, has_packets: bool| {
        for second in seconds {
            let now_ms = began_ms + second * SECOND;
            if has_packets {
                assert!(rig.flows.lookup(&key, hash, now_ms).is_some());
            }
            rig.flows.age(now_ms, FLOW_MS, rig.flows.capacity());
            rig.steering.age(&mut rig.flows, now_ms, FLOW_MS);
        }
        rig.steering.connections()
    };
    assert_eq!(pass(&mut rig, 0..111, true), 1);
    // Its last packet came at 110 s; the flow table forgets it at about 140 s.
    assert_eq!(pass(&mut rig, 111..400, false), 1, "silent for less than 300 s");
    assert_eq!(rig.flows.stats().entries, 0);
    assert_eq!(pass(&mut rig, 400..430, false), 0);
}

#[test]
fn packets_that_go_elsewhere_by_now_hold_no_member() {
    for (decision, held) in [(None, 1), (Some(Decision::Drop(Refusal::Forbidden)), 0), (Some(Decision::Path(77)), 0)] {
        let mut rig = Rig::new(model::Pool { half_open_ms: 1_000, ..drops() });
        rig.packet(0, 1, false, tcp::ACK).unwrap();
        let (key, now_ms) = (key(1, false), rig.clock.now_ns() / MS);
        let hash = rig.flows.hash_of(&key);
        let mut seen = rig.flows.lookup(&key, hash, now_ms).unwrap();
        // An outside decision has changed its path, and its packets still arrive.
        seen.decision = decision.map_or(seen.decision, Into::into);
        for after_ms in (0..4_000).step_by(100) {
            rig.flows.insert(&key, hash, seen, now_ms + after_ms);
            rig.steering.age(&mut rig.flows, now_ms + after_ms, FLOW_MS);
        }
        assert_eq!(rig.steering.connections(), held, "{decision:?}");
    }
}

#[test]
fn a_flow_ends_when_all_nfs_that_have_it_alone_say_so() {
    let mut rig = Rig::new(model::Pool { half_open_ms: 1_000_000, ..drops() });
    let began_ms = rig.clock.now_ns() / MS;
    let met = rig.packet(0, 1, false, tcp::ACK).unwrap();
    let pages = [met[0], met[2]].map(|nf| rig.nfs[usize::from(nf)].as_ref().unwrap().handle.region.page.clone());
    let lingering = |rig: &mut Rig, after_ms: u64| {
        rig.steering.age(&mut rig.flows, began_ms + after_ms, FLOW_MS);
        rig.count(State::Lingering)
    };
    pages.iter().for_each(|page| page.ask(NfRequest::FlowEnd, 1));
    assert_eq!(lingering(&mut rig, 50), 0, "too soon");
    pages[1].ask(NfRequest::FlowEnd, 0);
    assert_eq!(lingering(&mut rig, 100_000), 0, "one of them has not");
    pages[1].ask(NfRequest::FlowEnd, 1);
    assert_eq!(lingering(&mut rig, 200_000), 2);
    assert_eq!(rig.packet(0, 1, false, tcp::ACK).unwrap(), met, "a late packet");
    rig.step();
    assert_eq!((rig.count(State::Idle), rig.steering.connections(), rig.flows.stats().entries), (16, 0, 0));
    assert_eq!([0, 1].map(|service: usize| rig.counters[service][0].api.ended_by_nf.get()), [1, 1]);
    // All have flows again. What those two said was about the former one.
    (2..10).for_each(|n| drop(rig.packet(0, n, false, tcp::ACK).unwrap()));
    assert_eq!(lingering(&mut rig, 300_000), 0);
    assert_eq!((rig.count(State::Assigned), rig.steering.connections()), (16, 8));
    // As the library does when it has forgotten that flow.
    pages.iter().for_each(|page| page.counter(Counter::Reset).store(1, Ordering::Relaxed));
    pages.iter().for_each(|page| page.ask(NfRequest::FlowEnd, 1));
    assert_eq!(lingering(&mut rig, 400_000), 2);
}

#[test]
fn a_process_that_has_one_flow_has_it_for_a_second_at_least() {
    let mut rig = Rig::new(model::Pool { isolation: Isolation::Strict, half_open_ms: 1_000_000, ..drops() });
    let began_ms = rig.clock.now_ns() / MS;
    rig.packet(0, 1, false, tcp::ACK).unwrap();
    rig.nfs.iter().flatten().for_each(|nf| nf.handle.region.page.ask(NfRequest::FlowEnd, 1));
    rig.steering.age(&mut rig.flows, began_ms + 900, FLOW_MS);
    assert_eq!(rig.count(State::Lingering), 0);
    rig.steering.age(&mut rig.flows, began_ms + 100_000, FLOW_MS);
    assert_eq!(rig.count(State::Lingering), 2);
}

#[test]
fn nfs_of_a_strict_pool_end_one_flow_at_a_time() {
    for (isolation, ended) in [(Isolation::Reset, [8, 8, 8]), (Isolation::Strict, [1, 1, 2])] {
        let mut rig = Rig::new(model::Pool { isolation, half_open_ms: 1_000_000, ..drops() });
        let began_ms = rig.clock.now_ns() / MS;
        (0..8).for_each(|n| drop(rig.packet(0, n, false, tcp::ACK).unwrap()));
        rig.nfs.iter().flatten().for_each(|nf| nf.handle.region.page.ask(NfRequest::FlowEnd, 1));
        let found = [100_000, 100_100, 102_100].map(|after_ms| {
            rig.steering.age(&mut rig.flows, began_ms + after_ms, FLOW_MS);
            rig.counters[0][0].api.ended_by_nf.get()
        });
        assert_eq!(found, ended, "{isolation:?}");
    }
}

#[test]
fn an_nf_of_a_class_ends_no_flow() {
    let mut rig = Rig::of(Per::Class, classes());
    rig.packet(0, 1, false, tcp::ACK).unwrap();
    let now_ms = rig.clock.now_ns() / MS;
    rig.nfs.iter().flatten().for_each(|nf| nf.handle.region.page.ask(NfRequest::FlowEnd, 1));
    rig.steering.age(&mut rig.flows, now_ms + 1_000, FLOW_MS);
    rig.step();
    assert_eq!((rig.count(State::Assigned), rig.steering.connections()), (2, 1));
}

#[derive(Debug, Clone)]
enum Act {
    Packet(usize, u16, bool, u8),
    Step,
    Inside(u16, bool),
    Lives(u16, bool),
}

proptest! {
    // Members never have two connections at a time, connections keep their members, none is lost.
    #[test]
    fn members_are_never_shared_and_never_lost(
        acts in prop::collection::vec(
            prop_oneof![
                8 => (0..2usize, 0..12u16, any::<bool>(), prop::sample::select(vec![2u8, 16, 16, 16, 17, 4])).prop_map(|(c, n, b, f)| Act::Packet(c, n, b, f)),
                2 => Just(Act::Step),
                1 => (0..16u16, any::<bool>()).prop_map(|(nf, is)| Act::Inside(nf, is)),
                1 => (0..8u16, any::<bool>()).prop_map(|(nf, is)| Act::Lives(nf, is)),
            ],
            1..150,
        ),
    ) {
        let mut rig = Rig::new(drops());
        let mut inside = [false; 16];
        let mut living = [true; 8];
        for act in acts {
            match act {
                Act::Packet(chain, n, back, flags) => {
                    if let Ok(nfs) = rig.packet(chain, n, back, flags) {
                        let (connection, _) = key(n, back).connection();
                        for nf in nfs.into_iter().filter(|nf| *nf < 16) {
                            let members = rig.steering.members(nf / 8).unwrap();
                            let holder = members.holders[members.slots[&nf] as usize];
                            prop_assert_eq!(rig.steering.connections.get(holder).unwrap().key, connection);
                        }
                    }
                }
                Act::Step => rig.step(),
                Act::Inside(nf, is) => {
                    let handle = &rig.nfs[nf as usize].as_ref().unwrap().handle;
                    if std::mem::replace(&mut inside[nf as usize], is) != is {
                        if is { handle.commit(1) } else { handle.release(1) }
                    }
                }
                Act::Lives(nf, is) => {
                    living[nf as usize] = is;
                    let members: Vec<u16> = (0..8).filter(|nf| living[*nf as usize]).collect();
                    rig.has(0, members, &drops());
                }
            }
            let there = living.iter().filter(|is| **is).count() as u32;
            prop_assert_eq!(rig.steering.members(0).unwrap().pool.size(), there);
            prop_assert_eq!(rig.steering.members(1).unwrap().pool.size(), 8);
        }
        // When all have ended, all are idle.
        for n in 0..12 {
            for (chain, back) in [(0, false), (1, true)] {
                let _ = rig.packet(chain, n, back, tcp::RST);
            }
        }
        for end in rig.nfs[..16].iter().flatten() {
            let left = end.handle.in_flight.load(Ordering::Relaxed);
            end.handle.release(left);
        }
        rig.step();
        rig.steering.age(&mut rig.flows, u64::MAX / 2, FLOW_MS);
        rig.step();
        prop_assert_eq!(rig.count(State::Idle), rig.steering.pools.iter().flatten().map(|s| s.pool.size()).sum::<u32>());
        prop_assert_eq!((rig.steering.connections(), rig.flows.stats().entries), (0, 0));
    }
}
