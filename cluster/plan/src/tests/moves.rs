//! SLOs that move, so that fewer nodes are in use.

use std::collections::BTreeSet;

use sluice_cluster_types::{Footprint, OnDemand};

use super::*;
use crate::health::is_settled;
use crate::moves::{PAUSE, RETRY, STALL};
use crate::search::due;
use crate::{Better, Pod};

/// Of the solver, which needs less.
const LIMIT: Duration = Duration::from_secs(60);

/// The instances that nodes run: those of the plans that they have taken over last.
#[derive(Default)]
pub(super) struct Running(BTreeMap<String, BTreeSet<(String, u32)>>);

impl Running {
    pub(super) fn note(&mut self, cluster: &Cluster) {
        for (node, plan) in cluster.world.plans.iter().filter(|(_, plan)| is_settled(plan)) {
            let of = plan.spec.server.instances.iter().map(|one| (one.slo.clone(), one.number)).collect();
            self.0.insert(node.clone(), of);
        }
    }

    /// Whether those of an SLO to which packets are led carry what it is promised.
    pub(super) fn carry(&self, cluster: &Cluster, slo: &str) -> bool {
        let spec = &cluster.world.slos[&Key::new("t", slo)].spec;
        let promised = spec.promise().and_then(|promise| promise.throughput_pps()).unwrap();
        let runs = |node: &String, one: &Instance| self.0.get(node).is_some_and(|of| of.contains(&(one.slo.clone(), one.number)));
        let led = cluster.instances(slo).into_iter().filter(|(node, one)| one.load_pps > 0.0 && runs(node, one));
        led.map(|(_, one)| one.capacity_pps).sum::<f64>() >= promised * (1.0 - 1e-6)
    }
}

impl Cluster {
    /// A search, if one is due. Returns the nodes that are to be free.
    pub(super) fn optimise(&mut self, gap: f64) -> Vec<String> {
        let search = due(&self.world, &mut self.memo, self.now);
        let Some(better) = search.and_then(|search| search.run(gap, LIMIT)) else { return Vec::new() };
        let free = better.free.clone();
        self.memo.take(better, self.now);
        free
    }

    fn used(&self) -> usize {
        self.world.plans.values().filter(|plan| !plan.spec.server.instances.is_empty()).count()
    }

    fn has_idle(&self, slos: &[String]) -> bool {
        slos.iter().any(|slo| self.instances(slo).iter().any(|(_, one)| one.load_pps <= 0.0))
    }

    fn check_steps(&self, running: &Running, slos: &[String], step: usize) {
        for slo in slos {
            assert!(running.carry(self, slo) && self.is_kept(slo), "{step} {slo}: {:?}", self.instances(slo));
        }
    }

    /// Rounds and nodes in turn until nothing changes, half of the nodes at a time. At each step,
    /// what runs and has packets carries what is promised.
    fn steps(&mut self, slos: &[String]) {
        let (mut running, mut quiet) = (Running::default(), 0);
        running.note(self);
        for step in 0..500 {
            let wrote = self.round();
            self.check_steps(&running, slos, step);
            let others = self.world.nodes.keys().enumerate().filter(|(i, _)| i % 2 == step % 2);
            self.silent = others.map(|(_, node)| node.clone()).collect();
            let has_changed = self.agents();
            self.silent.clear();
            running.note(self);
            self.check_steps(&running, slos, step);
            quiet = if wrote > 0 || has_changed { 0 } else { quiet + 1 };
            if quiet == 3 {
                return;
            }
        }
        panic!("rounds do not end");
    }
}

/// Nodes full of SLOs, two thirds of which have gone; and the others.
fn holes() -> (Cluster, Vec<String>) {
    let mut cluster = Cluster::new(8);
    (0..24).for_each(|i| cluster.promise(&format!("s{i}"), 3e6));
    cluster.run();
    assert!(cluster.memo.why.is_empty());
    cluster.world.slos.retain(|key, _| key.name[1..].parse::<usize>().unwrap() % 3 == 0);
    cluster.run();
    assert!(cluster.used() > 2, "they are on many nodes");
    let slos = cluster.world.slos.keys().map(|key| key.name.clone()).collect();
    (cluster, slos)
}

#[test]
fn when_slos_have_gone_the_others_move_together_and_are_kept_at_each_step() {
    let (mut cluster, slos) = holes();
    let before = cluster.used();
    let free = cluster.optimise(0.1);
    assert!(!free.is_empty());
    cluster.steps(&slos);
    assert_eq!(cluster.used(), before - free.len());
    assert!(free.iter().all(|node| cluster.world.plans[node].spec.server.instances.is_empty()));
    assert!(cluster.memo.why.is_empty() && !cluster.has_idle(&slos));
    cluster.succeed();
    assert_eq!(cluster.round(), 0, "another operator has nothing to do");
}

#[test]
fn packets_that_still_come_hold_a_node_and_break_no_promise() {
    let (mut cluster, slos) = holes();
    let before = cluster.used();
    let free = cluster.optimise(0.1);
    cluster.lingers = true;
    cluster.steps(&slos);
    assert_eq!(cluster.used(), before, "nothing is stopped to which packets come");
    assert!(cluster.has_idle(&slos));
    cluster.lingers = false;
    let uses = cluster.world.plans.values_mut().filter_map(|plan| plan.status.as_mut()).flat_map(|status| &mut status.uses);
    uses.for_each(|one| one.offered_pps = 0.0);
    cluster.steps(&slos);
    assert_eq!(cluster.used(), before - free.len());
}

#[test]
fn servers_are_placed_anew_in_steps_that_have_room() {
    let (mut cluster, slos) = holes();
    let search = due(&cluster.world, &mut cluster.memo, cluster.now).unwrap();
    let target = search.anew(LIMIT).unwrap();
    target.check().unwrap();
    let better = search.ordered(&target).unwrap();
    let before = cluster.used();
    cluster.memo.take(better, cluster.now);
    cluster.steps(&slos);
    assert!(cluster.used() < before && !cluster.has_idle(&slos));
}

#[test]
fn nothing_moves_for_less_than_the_gap_and_no_search_follows_another_at_once() {
    let (mut cluster, _) = holes();
    let is_due = |cluster: &mut Cluster| due(&cluster.world, &mut cluster.memo, cluster.now).is_some();
    assert!(cluster.optimise(0.95).is_empty());
    let next = cluster.memo.next_search().unwrap();
    assert_eq!(next, cluster.now + PAUSE);
    cluster.world.epoch += 1;
    assert!(!is_due(&mut cluster), "it is too early");
    cluster.world.epoch -= 1;
    cluster.now = next;
    assert!(!is_due(&mut cluster), "nothing has changed");
    cluster.world.epoch += 1;
    assert!(!cluster.optimise(0.1).is_empty());
    cluster.world.epoch += 1;
    cluster.now += PAUSE;
    assert!(!is_due(&mut cluster), "SLOs move");
    cluster.now += STALL;
    assert!(is_due(&mut cluster), "they do not go on");
}

#[test]
fn a_search_without_a_node_that_takes_over_its_plan_is_soon_followed_by_another() {
    let (mut cluster, _) = holes();
    let is_due = |cluster: &mut Cluster| due(&cluster.world, &mut cluster.memo, cluster.now).is_some();
    let late = cluster.world.plans.iter().find(|(_, plan)| !plan.spec.server.instances.is_empty()).unwrap().0.clone();
    let take_over = |cluster: &mut Cluster, by: i64| {
        cluster.world.plans.get_mut(&late).unwrap().status.as_mut().unwrap().applied_revision += by;
    };
    take_over(&mut cluster, -1);
    assert!(is_due(&mut cluster), "the others are searched");
    cluster.now += RETRY;
    assert!(!is_due(&mut cluster), "nothing has changed");
    take_over(&mut cluster, 1);
    assert!(is_due(&mut cluster));
    // One that is late again and again does not have all of them searched each time.
    take_over(&mut cluster, -1);
    cluster.now += PAUSE;
    assert!(is_due(&mut cluster));
    take_over(&mut cluster, -1);
    cluster.now += RETRY;
    assert!(is_due(&mut cluster));
    assert_eq!(cluster.memo.next_search(), Some(cluster.now + PAUSE));
}

#[test]
fn pods_and_what_is_on_demand_stay_and_keep_their_nodes() {
    let (mut cluster, slos) = holes();
    let pod = |slo: &String| Pod { slo: slo.clone(), function: "nat".into(), ..Pod::default() };
    cluster.world.pods = slos.iter().map(|slo| (Key::new("t", slo), pod(slo))).collect();
    assert!(cluster.optimise(0.1).is_empty());
    cluster.world.pods.retain(|key, _| key.name == slos[0]);
    let on_demand = Some(OnDemand { latency_us: 50.0, most_instances: Some(1), most_pps: None });
    let footprint = Some(Footprint { cores: 1, memory_mib: 64 });
    cluster.ask("dns", SloSpec { chain: Some("dns".into()), on_demand, footprint, ..SloSpec::default() });
    cluster.run();
    let stay = [slos[0].as_str(), "dns"];
    let of = |cluster: &Cluster| stay.map(|slo| cluster.instances(slo));
    let before = of(&cluster);
    cluster.now += PAUSE;
    let free = cluster.optimise(0.1);
    assert!(!free.is_empty() && stay.iter().all(|slo| cluster.nodes(slo).iter().all(|node| !free.contains(node))));
    cluster.steps(&slos);
    let places = |all: &[Vec<(String, Instance)>; 2]| -> Vec<(String, u32)> {
        all.iter().flatten().map(|(node, one)| (node.clone(), one.number)).collect()
    };
    assert_eq!(places(&of(&cluster)), places(&before));
}

#[test]
fn a_node_that_is_lost_ends_the_moves() {
    let (mut cluster, slos) = holes();
    assert!(!cluster.optimise(0.1).is_empty());
    let lost = cluster.nodes(&slos[0])[0].clone();
    let apart: Vec<&String> = slos.iter().filter(|slo| !cluster.nodes(slo).contains(&lost)).collect();
    let before: Vec<_> = apart.iter().map(|slo| cluster.instances(slo)).collect();
    cluster.world.nodes.get_mut(&lost).unwrap().is_ready = false;
    cluster.world.epoch += 1;
    cluster.run();
    assert!(slos.iter().all(|slo| cluster.is_kept(slo)));
    assert_eq!(apart.iter().map(|slo| cluster.instances(slo)).collect::<Vec<_>>(), before);
}

#[test]
fn an_slo_that_changes_or_goes_meanwhile_is_not_moved_as_it_was() {
    let (mut cluster, mut slos) = holes();
    assert!(!cluster.optimise(0.1).is_empty());
    // What moves is unknown, so all change but two.
    let before: Vec<_> = slos[2..].iter().map(|slo| cluster.instances(slo)).collect();
    slos[2..].iter().for_each(|slo| cluster.promise(slo, 2.9e6));
    cluster.world.slos.remove(&Key::new("t", &slos.remove(0)));
    cluster.steps(&slos);
    let places = |all: &[(String, Instance)]| all.iter().map(|(node, one)| (node.clone(), one.ways)).collect::<BTreeSet<_>>();
    for (slo, before) in slos[1..].iter().zip(before) {
        assert!(places(&cluster.instances(slo)).is_subset(&places(&before)), "{slo}");
    }
    assert!(!cluster.has_idle(&slos));
}

#[test]
fn another_operator_ends_what_has_begun_and_nothing_is_left_over() {
    for rounds in 1..5 {
        let (mut cluster, slos) = holes();
        assert!(!cluster.optimise(0.1).is_empty());
        for _ in 0..rounds {
            cluster.round();
            cluster.agents();
        }
        cluster.succeed();
        cluster.steps(&slos);
        assert!(!cluster.has_idle(&slos) && cluster.memo.why.is_empty(), "after {rounds}");
    }
}

#[test]
fn what_a_search_finds_is_said() {
    let (mut cluster, _) = holes();
    let search = due(&cluster.world, &mut cluster.memo, cluster.now).unwrap();
    let better: Better = search.run(0.1, LIMIT).unwrap();
    let said = better.to_string();
    let nodes = if better.free.len() == 1 { "node" } else { "nodes" };
    assert!(said.contains(" so that ") && said.contains(nodes) && better.free.iter().all(|node| said.contains(node)), "{said}");
}
