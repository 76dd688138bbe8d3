//! Sharing against a model of contention, and against arbitrary observations.

use proptest::prelude::*;

use sluice_planner::contention::{Behaviour, Running, occupancies};
use sluice_planner::samples::{KINDS, Misses, OnServer, server};
use sluice_slo::on_demand::*;
use sluice_slo::placement::bits;
use sluice_slo::slo::Cap;

fn lease_of(ways: u32, classes: u32) -> Lease {
    let way_bytes = server().way_bytes;
    Lease { mask: bits(1, ways), classes, min_ways: 1, way_bytes, riders: false, reserved: vec![1, bits(ways + 1, 3)] }
}

fn on(kind: &str) -> OnServer<'static> {
    OnServer { kind: KINDS.iter().find(|known| known.name == kind).unwrap(), way_bytes: server().way_bytes }
}

/// An instance of the model.
#[derive(Debug, Clone)]
struct Runs {
    slo: String,
    number: u32,
    on: OnServer<'static>,
    offered_pps: f64,
    promise_us: f64,
    cap: Cap,
}

impl Runs {
    fn id(&self) -> InstanceId {
        InstanceId { slo: self.slo.clone(), number: self.number }
    }

    fn latency_us(&self, ways: f64, load_pps: f64) -> f64 {
        self.on.latency_us(ways, load_pps / self.on.throughput_pps(ways)).min(1e9)
    }
}

/// An instance offered this part of its throughput with `ways` ways, within `times` the latency
/// that it has then.
fn runs(slo: &str, kind: &str, ways: f64, part: f64, times: f64) -> Runs {
    let on = on(kind);
    let offered_pps = on.throughput_pps(ways) * part;
    let promise_us = on.latency_us(ways, part) * times;
    Runs { slo: slo.into(), number: 0, on, offered_pps, promise_us, cap: Cap { instances: Some(1), load_pps: None } }
}

/// A server of the model: decisions take effect in the next period.
struct World {
    lease: Lease,
    runs: Vec<Runs>,
    sharing: Sharing,
    last: Decision,
}

impl World {
    fn new(lease: Lease, runs: Vec<Runs>) -> Self {
        Self { lease, runs, sharing: Sharing::default(), last: Decision::default() }
    }

    fn load(&self, runs: &Runs) -> f64 {
        let limit = self.last.policed.iter().find(|policed| policed.id == runs.id());
        limit.map_or(runs.offered_pps, |policed| policed.limit_pps.min(runs.offered_pps))
    }

    /// How many ways each holds.
    fn held(&self) -> Vec<f64> {
        let class = |runs: &Runs| self.last.classes.iter().find(|class| class.instances.contains(&runs.id()));
        let is_shared = |runs: &Runs| class(runs).is_none_or(|class| class.shared);
        let shared: Vec<&Runs> = self.runs.iter().filter(|runs| is_shared(runs)).collect();
        let ways = self.last.classes.iter().find(|class| class.shared).map_or(self.lease.ways(), CacheClass::ways);
        let running: Vec<Running<'_>> =
            shared.iter().map(|runs| Running { behaviour: &runs.on, load_pps: self.load(runs) }).collect();
        let mut held = occupancies(&running, f64::from(ways)).into_iter();
        let own = |runs: &Runs| f64::from(class(runs).map_or(0, CacheClass::ways));
        self.runs.iter().map(|runs| if is_shared(runs) { held.next().unwrap() } else { own(runs) }).collect()
    }

    fn latencies_us(&self) -> Vec<f64> {
        self.runs.iter().zip(self.held()).map(|(runs, held)| runs.latency_us(held, self.load(runs))).collect()
    }

    fn observe(&self) -> Observation {
        let mut slos: Vec<Terms> = Vec::new();
        for runs in &self.runs {
            if slos.iter().all(|terms| terms.slo != runs.slo) {
                let latency_ns = (runs.promise_us * 1e3).ceil() as u64;
                slos.push(Terms { slo: runs.slo.clone(), latency_ns, cap: runs.cap, elsewhere: 0, refused: false });
            }
        }
        let seen = |(runs, held): (&Runs, f64)| {
            let load = self.load(runs);
            let set = match runs.on.kind.nfs[0].misses {
                Misses::Uniform(set_mib) | Misses::Zipf { set_mib, .. } => set_mib * f64::from(1 << 20),
                Misses::Traced { .. } => f64::INFINITY,
            };
            InstanceSample {
                id: runs.id(),
                latency_p95_ns: (load > 0.0).then(|| (runs.latency_us(held, load) * 1e3) as u64),
                occupancy_bytes: if load > 0.0 { (held * self.lease.way_bytes as f64).min(set) as u64 } else { 0 },
                misses_per_s: load.min(runs.on.throughput_pps(held)) * runs.on.misses_per_packet(held),
                offered_pps: runs.offered_pps,
            }
        };
        let instances = self.runs.iter().zip(self.held()).map(seen).collect();
        Observation { lease: self.lease.clone(), slos, instances }
    }

    fn step(&mut self) {
        let seen = self.observe();
        self.last = self.sharing.step(&seen).unwrap();
        check(&seen, &self.last).unwrap();
    }

    /// Steps until all promises are kept and nothing has moved for a while. Returns how many steps
    /// that took; none if more than `most`.
    fn settles(&mut self, most: u32) -> Option<u32> {
        let mut quiet = 0;
        for period in 0..most {
            self.step();
            quiet = if self.last.moved || !self.last.violations.is_empty() { 0 } else { quiet + 1 };
            if quiet == 40 {
                return Some(period - 39);
            }
        }
        None
    }

    /// How often ways move in `periods` periods.
    fn moves(&mut self, periods: u32) -> u32 {
        (0..periods)
            .map(|_| {
                self.step();
                u32::from(self.last.moved)
            })
            .sum()
    }

    fn own_classes(&self) -> usize {
        self.last.classes.iter().filter(|class| !class.shared).count()
    }
}

/// Checks that hardware can apply a decision and that reserved classes are untouched.
fn check(seen: &Observation, decision: &Decision) -> Result<(), TestCaseError> {
    let (lease, mut all) = (&seen.lease, 0u64);
    let mut members: Vec<&InstanceId> = Vec::new();
    for class in &decision.classes {
        let mask = class.mask;
        prop_assert!(mask != 0 && (mask >> mask.trailing_zeros()).trailing_ones() == mask.count_ones(), "gaps: {mask:b}");
        prop_assert!(class.ways() >= lease.min_ways);
        prop_assert!(mask & !lease.mask == 0 && mask & all == 0);
        prop_assert!(lease.reserved.iter().all(|reserved| reserved & mask == 0));
        prop_assert!(class.shared || class.instances.len() == 1);
        all |= mask;
        members.extend(&class.instances);
    }
    prop_assert!(decision.classes.len() <= lease.classes as usize);
    prop_assert!(decision.classes.iter().filter(|class| class.shared).count() <= 1);
    prop_assert!(!lease.riders || decision.classes[0].shared);
    if !decision.classes.is_empty() {
        prop_assert_eq!(all, lease.mask, "all ways are given");
    }
    let mut ids: Vec<&InstanceId> = seen.instances.iter().map(|seen| &seen.id).collect();
    ids.sort();
    members.sort();
    prop_assert_eq!(ids, members, "each in one class");
    for Policed { limit_pps, .. } in &decision.policed {
        prop_assert!(*limit_pps >= 0.0 && limit_pps.is_finite());
    }
    Ok(())
}

fn neighbours() -> Vec<Runs> {
    vec![
        runs("fw", "firewall", 1.0, 0.6, 1.3),
        runs("lpm", "lpm", 5.0, 0.85, 1.2),
        runs("nat", "nat-zipf", 5.0, 0.85, 1.2),
        runs("ids", "ids", 5.0, 0.85, 1.2),
    ]
}

fn hog() -> Runs {
    runs("hog", "redundancy", 2.0, 0.95, 5.0)
}

#[test]
fn a_hog_comes_and_goes() {
    let mut world = World::new(lease_of(18, 15), neighbours());
    assert_eq!(world.settles(100), Some(1), "{:?}", world.last);
    assert_eq!(world.last.classes.len(), 1, "the shared class is enough");
    world.runs.push(hog());
    world.step();
    assert!(!world.last.violations.is_empty(), "the hog hurts");
    let periods = world.settles(300).unwrap();
    assert!(world.own_classes() > 0 && world.last.requests.is_empty() && world.last.policed.is_empty(), "{:?}", world.last);
    assert_eq!(world.moves(2000), 0, "it does not flap");
    world.runs.pop();
    world.settles(300).unwrap();
    assert_eq!(world.last.classes.len(), 1, "after {periods} periods and a hog all are back: {:?}", world.last);
    assert_eq!(world.moves(2000), 0);
}

#[test]
fn a_hog_that_only_falls_silent_lets_others_come_back() {
    let mut world = World::new(lease_of(18, 15), [neighbours(), vec![hog()]].concat());
    world.settles(300).unwrap();
    assert!(world.own_classes() > 0);
    let load = std::mem::replace(&mut world.runs[4].offered_pps, 0.0);
    world.settles(300).unwrap();
    assert_eq!(world.own_classes(), 0, "{:?}", world.last);
    // A hog that goes on and off: an instance that came back too early waits longer each time.
    let mut moves = Vec::new();
    for _ in 0..20 {
        let mut sum = 0;
        for offered in [load, 0.0] {
            world.runs[4].offered_pps = offered;
            sum += world.moves(20);
        }
        moves.push(sum);
    }
    assert!(moves[10..].iter().sum::<u32>() < moves[..10].iter().sum(), "{moves:?}");
}

#[test]
fn few_classes_isolate_the_hog() {
    let mut world = World::new(lease_of(18, 2), [neighbours(), vec![hog()]].concat());
    world.settles(300).unwrap();
    let own: Vec<_> = world.last.classes.iter().filter(|class| !class.shared).flat_map(|class| &class.instances).collect();
    assert_eq!(own.iter().map(|id| id.slo.as_str()).collect::<Vec<_>>(), ["hog"], "{:?}", world.last);
}

#[test]
fn what_cache_cannot_do_needs_an_instance() {
    // More than it carries with all of the cache.
    let mut one = runs("nat", "nat-zipf", 18.0, 1.1, 1.0);
    one.promise_us = 40.0;
    one.cap = Cap { instances: Some(2), load_pps: None };
    let mut world = World::new(lease_of(18, 15), vec![one.clone(), runs("fw", "firewall", 1.0, 0.5, 1.5)]);
    world.moves(60);
    assert_eq!(world.last.requests, [Request { slo: "nat".into(), instances: 2 }]);
    assert!(world.last.policed.is_empty());
    assert_eq!(world.last.violations[0].remedy, Remedy::Ask);
    world.moves(50);
    assert_eq!(world.last.requests.len(), 1, "asked for until it is there");
    // It comes, and takes half.
    world.runs[0].offered_pps /= 2.0;
    world.runs.push(Runs { number: 1, offered_pps: one.offered_pps / 2.0, ..one.clone() });
    world.settles(200).unwrap();
    assert!(world.last.requests.is_empty() && world.last.policed.is_empty(), "{:?}", world.last);
    // More again, and the cap is reached.
    world.runs[0].offered_pps = one.offered_pps * 1.5;
    world.settles(500).unwrap();
    assert!(world.last.requests.is_empty());
    let policed: Vec<_> = world.last.policed.iter().map(|policed| policed.id.to_string()).collect();
    assert_eq!(policed, ["nat.0"]);
    assert!(world.latencies_us()[0] <= 40.0);
    assert!(world.load(&world.runs[0]) > 0.8 * world.runs[0].on.carries_pps(4.0, 40.0), "not less than it must be");
    world.moves(1000);
    // And less.
    world.runs[0].offered_pps = one.offered_pps / 2.0;
    world.settles(2000).unwrap();
    world.moves(200);
    assert!(world.last.policed.is_empty(), "{:?}", world.last);
}

#[test]
fn no_room_is_as_the_cap_and_the_agreed_load_is_kept() {
    let mut one = runs("nat", "nat-zipf", 18.0, 1.1, 1.0);
    (one.promise_us, one.cap) = (40.0, Cap { instances: None, load_pps: Some(2e6) });
    let mut world = World::new(lease_of(18, 15), vec![one.clone()]);
    world.step();
    assert_eq!(world.last.policed, [Policed { id: one.id(), limit_pps: 2e6 }]);
    world.settles(10).unwrap_or_default();
    assert!(world.last.violations.is_empty());
    // Two share what was agreed.
    world.runs.push(Runs { number: 1, offered_pps: 0.5e6, ..one.clone() });
    world.step();
    let limits: Vec<f64> = world.last.policed.iter().map(|policed| policed.limit_pps).collect();
    assert_eq!(limits, [1.5e6, 0.5e6]);

    let mut seen = World::new(lease_of(18, 15), vec![Runs { cap: Cap { instances: Some(9), load_pps: None }, ..one }]).observe();
    seen.slos[0].refused = true;
    let mut sharing = Sharing::default();
    let last = (0..100).map(|_| sharing.step(&seen).unwrap()).last().unwrap();
    assert!(last.requests.is_empty() && last.policed.len() == 1, "{last:?}");
}

#[test]
fn a_limit_that_leaves_too_few_packets_to_tell_rises_and_goes() {
    let one = runs("nat", "nat-zipf", 18.0, 0.9, 0.001);
    let mut seen = World::new(lease_of(18, 15), vec![one]).observe();
    seen.slos[0].refused = true;
    let mut sharing = Sharing::default();
    let mut limit = |seen: &Observation| sharing.step(seen).unwrap().policed.first().map(|policed| policed.limit_pps);
    let mut low = f64::INFINITY;
    for _ in 0..100 {
        low = limit(&seen).unwrap_or(low);
    }
    assert!(low <= seen.instances[0].offered_pps * 0.011, "no load keeps it: {low}");
    // So few are admitted now that none of them is timed.
    seen.instances[0].latency_p95_ns = None;
    assert!((0..5).all(|_| limit(&seen) == Some(low)), "a few periods say nothing");
    assert!((0..2000).any(|_| limit(&seen).is_some_and(|now| now > low * 1.04)), "it is tried again");
    assert!((0..2000).any(|_| limit(&seen).is_none()), "and is gone in the end");
}

#[test]
fn one_that_does_not_miss_is_not_given_cache() {
    let mut slow = runs("fw", "firewall", 1.0, 0.6, 0.7);
    slow.cap = Cap { instances: Some(3), load_pps: None };
    let mut world = World::new(lease_of(18, 15), vec![slow, runs("nat", "nat-zipf", 4.0, 0.5, 1.5)]);
    world.moves(100);
    assert_eq!((world.own_classes(), world.last.requests.len()), (0, 1), "{:?}", world.last);
}

#[test]
fn noise_does_not_move_ways() {
    let mut world = World::new(lease_of(18, 15), [neighbours(), vec![hog()]].concat());
    world.settles(300).unwrap();
    let mut moves = 0;
    for period in 0..1000u32 {
        let mut seen = world.observe();
        // Each is above its promise now and then, one after the other.
        let at = period as usize % 25;
        if let Some(seen) = seen.instances.get_mut(at) {
            seen.latency_p95_ns = seen.latency_p95_ns.map(|ns| ns * 3);
        }
        world.last = world.sharing.step(&seen).unwrap();
        moves += u32::from(world.last.moved);
    }
    assert_eq!(moves, 0);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut world = World::new(lease_of(18, 15), neighbours());
    world.moves(10);
    let (before, good) = (world.sharing.clone(), world.observe());
    let said = |change: &dyn Fn(&mut Observation)| {
        let (mut sharing, mut seen) = (before.clone(), good.clone());
        change(&mut seen);
        let said = sharing.step(&seen).unwrap_err().to_string();
        assert_eq!(sharing, before, "{said}");
        said
    };
    assert!(said(&|seen| seen.lease.mask = 0).contains("one piece"));
    assert!(said(&|seen| seen.lease.mask = 0b1011).contains("one piece"));
    assert!(said(&|seen| seen.lease.classes = 0).contains("0 classes"));
    assert!(said(&|seen| seen.lease.min_ways = 0).contains("1 at least"));
    assert!(said(&|seen| seen.lease.min_ways = 19).contains("19"));
    assert!(said(&|seen| seen.lease.way_bytes = 0).contains("0 bytes"));
    assert!(said(&|seen| seen.lease.reserved = vec![0b10]).contains("0x2 are reserved"));
    assert!(said(&|seen| seen.slos[0].latency_ns = 0).contains("0 ns"));
    assert!(said(&|seen| seen.slos[0].cap = Cap::default()).contains("no cap"));
    assert!(said(&|seen| seen.slos.push(seen.slos[0].clone())).contains("twice"));
    assert!(said(&|seen| seen.instances.push(seen.instances[0].clone())).contains("fw.0\" is there twice"));
    assert!(said(&|seen| drop(seen.slos.remove(0))).contains("fw.0 is of an SLO that the observation does not have"));
    assert!(said(&|seen| seen.instances[1].misses_per_s = f64::NAN).contains("NaN misses/s"));
    assert!(said(&|seen| seen.instances[1].offered_pps = -1.0).contains("-1 packets/s"));
}

#[test]
fn an_observation_and_a_decision_are_json() {
    let mut world = World::new(lease_of(18, 15), neighbours());
    world.step();
    let mut seen = world.observe();
    // Serialisation may change the last digit.
    for seen in &mut seen.instances {
        (seen.misses_per_s, seen.offered_pps) = (seen.misses_per_s.round(), seen.offered_pps.round());
    }
    assert_eq!(serde_json::from_str::<Observation>(&serde_json::to_string(&seen).unwrap()).unwrap(), seen);
    assert_eq!(serde_json::from_str::<Decision>(&serde_json::to_string(&world.last).unwrap()).unwrap(), world.last);
}

fn any_runs() -> impl Strategy<Value = Vec<(usize, f64, f64, f64)>> {
    // Kind, part of the remaining ways, load, and factor of the promise over what is achievable.
    prop::collection::vec((0..KINDS.len(), 0.1..1.0f64, 0.1..0.9f64, 1.0..1.6f64), 2..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Where a partition keeps all latencies with some slack, all promises are kept in the end, and
    /// nothing moves any more.
    #[test]
    fn a_partition_is_found_where_there_is_one(of in any_runs(), hogs in 0usize..3) {
        let mut left = 18 - of.len() as u32 - hogs as u32;
        let mut all: Vec<Runs> = Vec::new();
        for (i, &(kind, part, load, times)) in of.iter().enumerate() {
            let more = (f64::from(left) * part) as u32;
            left -= more;
            all.push(runs(&format!("s{i}"), &KINDS[kind].name, f64::from(1 + more), load, times / SLACK));
        }
        for i in 0..hogs {
            all.push(Runs { slo: format!("hog{i}"), ..runs("", "redundancy", 1.0, 0.9, 2.0) });
        }
        let mut world = World::new(lease_of(18, 15), all);
        let periods = world.settles(1500);
        prop_assert!(periods.is_some(), "{:?}\n{:?}\n{:?}", world.last, world.sharing, world.runs);
        prop_assert_eq!(world.moves(300), 0);
    }

    /// For any observation, hardware can have the classes; and a serialised state continues like
    /// the original.
    #[test]
    fn classes_can_be_made_whatever_is_seen(
        steps in prop::collection::vec(
            (
                prop::collection::vec((0u32..4, 0u32..3, 0u64..400, 0u64..60, 0.0..4.0f64, 0.0..2.0f64), 0..9),
                1u32..20, 1u32..3, 1u32..6, any::<bool>(),
            ),
            1..30,
        ),
        repeats in 1usize..12,
    ) {
        let (mut sharing, mut copy) = (Sharing::default(), Sharing::default());
        for (instances, ways, min_ways, classes, riders) in steps {
            let lease = Lease { min_ways, riders, ..lease_of(ways.max(min_ways), classes) };
            let slos = (0..4).map(|i| Terms {
                slo: i.to_string(),
                latency_ns: 100,
                cap: Cap { instances: Some(i + 1), load_pps: (i > 1).then_some(1.0) },
                elsewhere: i,
                refused: i == 3,
            });
            let mut seen = Observation { lease, slos: slos.collect(), instances: Vec::new() };
            for (slo, number, ns, mib, misses_per_s, offered_pps) in instances {
                let id = InstanceId { slo: slo.to_string(), number };
                if seen.instances.iter().all(|seen| seen.id != id) {
                    let latency_p95_ns = (ns > 0).then_some(ns);
                    seen.instances.push(InstanceSample { id, latency_p95_ns, occupancy_bytes: mib << 20, misses_per_s, offered_pps });
                }
            }
            for _ in 0..repeats {
                let decision = sharing.step(&seen).unwrap();
                check(&seen, &decision)?;
                let other = copy.step(&seen).unwrap();
                // Serialisation may change the last digit of limits.
                prop_assert_eq!((&other.classes, &other.requests), (&decision.classes, &decision.requests));
                copy = serde_json::from_str(&serde_json::to_string(&copy).unwrap()).unwrap();
            }
        }
    }
}
