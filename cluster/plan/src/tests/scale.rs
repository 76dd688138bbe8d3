//! A large cluster that loses many nodes at once.

use std::collections::BTreeSet;
use std::time::Instant;

use super::*;

const NODES: usize = 1000;
const SLOS: usize = 5000;
const TENANTS: usize = 20;
const LOST: usize = 50;

fn tenant(i: usize) -> String {
    format!("tenant{}", i % TENANTS)
}

/// Every node and every tenant's SLO, each tenant with a VLAN of its own.
fn large() -> Cluster {
    let mut cluster = Cluster::new(NODES);
    (0..TENANTS).for_each(|i| cluster.tenant(&tenant(i)));
    for i in 0..SLOS {
        let name = format!("s{i}");
        let from = Match { port: Some("in".into()), vlan: Some(1 + (i % TENANTS) as u16), ..Match::default() };
        cluster.ask_in(&tenant(i), &name, reserved(&name, pps(i)), from);
    }
    cluster
}

/// Rounds until nothing changes, without the checks of each, which take longer than the rounds.
fn settle(cluster: &mut Cluster, what: &str) -> usize {
    let (mut spent, mut most) = (Duration::ZERO, Duration::ZERO);
    for rounds in 1..200 {
        let began = Instant::now();
        let round = place(&cluster.world, &mut cluster.memo, cluster.term, cluster.now);
        let took = began.elapsed();
        (spent, most) = (spent + took, most.max(took));
        let wrote = round.plans.len();
        for spec in round.plans {
            let status = cluster.world.plans.get(&spec.server.name).and_then(|plan| plan.status.clone());
            let mut plan = NodePlan::new(&spec.server.name, spec.clone());
            plan.status = status;
            cluster.world.plans.insert(spec.server.name, plan);
        }
        if !cluster.agents() && wrote == 0 {
            eprintln!("{what}: {rounds} rounds, {spent:?} in all, {most:?} at most, the last {took:?}");
            return rounds;
        }
    }
    panic!("rounds do not end");
}

fn pps(i: usize) -> f64 {
    1.9e6 + (i * 7919 % 20) as f64 * 9e4
}

fn name(i: usize) -> String {
    format!("{}_s{i}", tenant(i))
}

/// What each SLO has: node and instance.
fn all(cluster: &Cluster) -> BTreeMap<String, Vec<(String, Instance)>> {
    let mut all: BTreeMap<String, Vec<(String, Instance)>> = BTreeMap::new();
    for plan in cluster.world.plans.values() {
        for one in &plan.spec.server.instances {
            all.entry(one.slo.clone()).or_default().push((plan.spec.server.name.clone(), one.clone()));
        }
    }
    all
}

#[test]
fn when_fifty_of_a_thousand_nodes_are_lost_what_fits_is_placed_again_and_nothing_else_moves() {
    let mut cluster = large();
    settle(&mut cluster, "from nothing");
    cluster.check();
    let before = all(&cluster);
    assert_eq!(before.len(), SLOS);
    let lost: BTreeSet<String> = (0..LOST).map(|i| node_name(i * 17)).collect();
    for node in &lost {
        cluster.world.nodes.get_mut(node).unwrap().is_ready = false;
    }
    cluster.world.epoch += 1;
    let rounds = settle(&mut cluster, "fifty nodes lost");
    let hit = before.values().filter(|of| of.iter().any(|(node, _)| lost.contains(node))).count();
    assert!(rounds <= hit.div_ceil(256) + 4, "{rounds} rounds for {hit} SLOs");
    cluster.check();
    let after = all(&cluster);
    let mut without = 0;
    for i in 0..SLOS {
        let has = after.get(&name(i)).map(Vec::as_slice).unwrap_or_default();
        assert!(has.iter().all(|(node, _)| !lost.contains(node)));
        let promised = pps(i);
        let is_kept = has.iter().map(|(_, one)| one.load_pps).sum::<f64>() >= promised * (1.0 - 1e-6);
        let why = cluster.memo.why.get(&Key::new(&tenant(i), &format!("s{i}")));
        assert_eq!(is_kept, why.is_none(), "s{i}: {has:?} {why:?}");
        without += usize::from(!is_kept);
        for (node, one) in before.get(&name(i)).into_iter().flatten().filter(|(node, _)| !lost.contains(node)) {
            let is_it = |(on, now): &(String, Instance)| on == node && now.number == one.number && now.cores == one.cores;
            // One that is kept may need fewer, with those that it got for the lost ones.
            assert!(is_kept || has.iter().any(is_it), "s{i}: {one:?} of {node} is gone");
        }
    }
    eprintln!("{hit} SLOs hit, {without} without a place");
    assert!(without > 0 && without < hit, "some fit, and some do not");
    let mut apart = before.iter().filter(|(_, of)| of.iter().all(|(node, _)| !lost.contains(node)));
    assert!(apart.all(|(slo, of)| after[slo] == *of), "those on other nodes are as they were");
    cluster.succeed();
    assert_eq!(settle(&mut cluster, "another operator"), 1);
}
