//! Random changes, with operators that end at any time: nothing is placed twice, nothing is left
//! over, and in the end everything is as with one operator that saw it all.

use super::*;

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
            *cluster.node(i) = Node { labels: class().node_selector, is_ready: true, is_cordoned: false, is_served: true };
        }
        cluster.run();
        let slos: Vec<String> = cluster.world.slos.keys().map(|key| key.name.clone()).collect();
        for slo in &slos {
            assert!(cluster.is_kept(slo), "seed {seed}: {slo}: {:?}, {:?}", cluster.memo.why, cluster.instances(slo));
        }
        let placed: std::collections::BTreeSet<String> =
            cluster.world.plans.values().flat_map(|plan| plan.spec.slos.iter().map(|one| one.slo.name.clone())).collect();
        assert_eq!(placed, slos.iter().map(|slo| format!("t_{slo}")).collect(), "seed {seed}: no orphans");
        let idle = |slo: &String| cluster.instances(slo).iter().any(|(_, one)| one.load_pps <= 0.0);
        assert!(!slos.iter().any(idle), "seed {seed}: nothing is left over");
        cluster.succeed();
        assert_eq!(cluster.round(), 0, "seed {seed}: another operator has nothing to do");
    }
}
