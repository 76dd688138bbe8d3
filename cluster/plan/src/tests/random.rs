//! Random changes, with operators that end at any time: nothing is placed twice, nothing is left
//! over, and in the end everything is as with one operator that saw it all.

use std::collections::BTreeSet;

use super::moves::Running;
use super::*;
use crate::moves::PAUSE;

/// Numbers that only depend on the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

fn step(cluster: &mut Cluster, random: &mut Random) {
    let (i, node) = (random.below(12), random.below(8));
    match random.below(8) {
        0..3 => cluster.promise(&format!("s{i}"), 1e6 + random.below(60) as f64 * 1e5),
        3 => drop(cluster.world.slos.remove(&Key::new("t", &format!("s{i}")))),
        4 => cluster.node(node).is_ready ^= true,
        5 => cluster.node(node).is_cordoned ^= true,
        6 => cluster.succeed(),
        _ => cluster.world.functions.get_mut(&Key::new("t", "nat")).unwrap().spec.args = vec![format!("--{i}")],
    }
    // Some rounds are lost with their operator, some nodes are slow.
    for _ in 0..random.below(3) {
        cluster.round();
        if random.below(2) == 0 {
            cluster.agents();
        }
    }
}

#[test]
fn operators_come_and_go() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut cluster = Cluster::new(8);
        for _ in 0..120 {
            step(&mut cluster, &mut random);
        }
        for i in 0..8 {
            *cluster.node(i) = good_node(&class().node_selector);
        }
        cluster.run();
        let slos: Vec<String> = cluster.world.slos.keys().map(|key| key.name.clone()).collect();
        for slo in &slos {
            assert!(cluster.is_kept(slo), "seed {seed}: {slo}: {:?}, {:?}", cluster.memo.why, cluster.instances(slo));
        }
        let placed: BTreeSet<String> =
            cluster.world.plans.values().flat_map(|plan| plan.spec.slos.iter().map(|one| one.slo.name.clone())).collect();
        assert_eq!(placed, slos.iter().map(|slo| format!("t_{slo}")).collect(), "seed {seed}: no orphans");
        let idle = |slo: &String| cluster.instances(slo).iter().any(|(_, one)| one.load_pps <= 0.0);
        assert!(!slos.iter().any(idle), "seed {seed}: nothing is left over");
        cluster.succeed();
        assert_eq!(cluster.round(), 0, "seed {seed}: another operator has nothing to do");
    }
}

/// SLOs, and those of them that have once been carried by what runs.
#[derive(Default)]
struct Kept {
    running: Running,
    slos: BTreeSet<String>,
}

impl Kept {
    fn look(&mut self, cluster: &Cluster, seed: u64) {
        self.running.note(cluster);
        for slo in cluster.world.slos.keys().map(|key| &key.name) {
            let is_carried = self.running.carry(cluster, slo);
            assert!(is_carried || !self.slos.contains(slo), "seed {seed}: {slo}: {:?}", cluster.instances(slo));
            if is_carried {
                self.slos.insert(slo.clone());
            }
        }
    }
}

#[test]
fn what_moves_while_others_come_and_go_is_kept_at_each_step() {
    let mut freed = 0;
    for seed in 0..20 {
        let (mut random, mut cluster, mut kept) = (Random(seed), Cluster::new(10), Kept::default());
        for _ in 0..150 {
            let i = random.below(20);
            let name = format!("s{i}");
            match random.below(8) {
                0..4 if !cluster.world.slos.contains_key(&Key::new("t", &name)) => cluster.promise(&name, 2e6 + i as f64 * 1e5),
                0..6 => {
                    cluster.world.slos.remove(&Key::new("t", &name));
                    kept.slos.remove(&name);
                }
                6 if random.below(4) == 0 => cluster.succeed(),
                _ => {
                    // Time passes only where no node is waited for.
                    cluster.run();
                    kept.look(&cluster, seed);
                    cluster.now += PAUSE;
                    freed += cluster.optimise(0.05).len();
                }
            }
            for _ in 0..random.below(3) {
                cluster.round();
                kept.look(&cluster, seed);
                cluster.silent = (0..10).filter(|_| random.below(3) == 0).map(node_name).collect();
                cluster.agents();
                cluster.silent.clear();
                kept.look(&cluster, seed);
            }
        }
        cluster.run();
        kept.look(&cluster, seed);
        for slo in cluster.world.slos.keys().map(|key| &key.name) {
            let is_idle = cluster.instances(slo).iter().any(|(_, one)| one.load_pps <= 0.0);
            assert!(cluster.is_kept(slo) && !is_idle, "seed {seed}: {slo}: {:?}", cluster.instances(slo));
        }
    }
    assert!(freed > 0);
}
