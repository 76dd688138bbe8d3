//! SLOs on demand: instances that are asked for, and those that are no longer needed.

use sluice_api::config::OnFailure;
use sluice_cluster_types::{Footprint, OnDemand};

use super::*;
use crate::Pod;
use crate::share::{CALM, LONGEST, LOOK};

fn on_demand(most_instances: Option<i64>, most_pps: Option<f64>) -> SloSpec {
    let on_demand = Some(OnDemand { latency_us: 50.0, most_instances, most_pps });
    let footprint = Some(Footprint { cores: 2, memory_mib: 64 });
    SloSpec { chain: Some("web".into()), on_demand, footprint, ..SloSpec::default() }
}

impl Cluster {
    /// A node asks for one more instance than it has.
    fn lacks(&mut self, slo: &str) {
        let node = self.nodes(slo)[0].clone();
        let here = self.instances(slo).iter().filter(|(on, _)| *on == node).count() as u32;
        let status = self.world.plans.get_mut(&node).unwrap().status.as_mut().unwrap();
        status.uses.iter_mut().find(|one| one.slo == format!("t_{slo}")).unwrap().asks_for = Some(here + 1);
    }

    /// The caps that nodes get.
    fn caps(&self, slo: &str) -> Vec<(Option<u32>, Option<f64>)> {
        let all = self.world.plans.values().flat_map(|plan| &plan.spec.slos).filter(|one| one.slo.name == format!("t_{slo}"));
        let cap = |promise| if let Promise::OnDemand { cap, .. } = promise { (cap.instances, cap.load_pps) } else { (None, None) };
        all.map(|one| cap(one.slo.promise)).collect()
    }
}

#[test]
fn one_on_demand_grows_when_a_node_asks_up_to_its_cap() {
    let mut cluster = Cluster::new(2);
    cluster.ask("web", on_demand(Some(3), None));
    cluster.run();
    let one = cluster.instances("web");
    assert_eq!((one.len(), one[0].1.ways, one[0].1.cores.len()), (1, 0, 2));
    for has in [2, 3, 3] {
        cluster.lacks("web");
        cluster.run();
        assert_eq!(cluster.instances("web").len(), has);
    }
}

#[test]
fn one_without_a_pod_that_runs_says_so() {
    let mut cluster = Cluster::new(1);
    let key = Key::new("t", "nat");
    cluster.world.functions.insert(key, NetworkFunction::new("nat", NetworkFunctionSpec::default()));
    cluster.ask("web", on_demand(Some(1), None));
    cluster.promise("firm", 1e6);
    cluster.run();
    let said = |cluster: &Cluster| {
        let status = cluster.status("web");
        (status.state.clone(), status.conditions[2].reason.clone(), status.why)
    };
    let lacks = |cluster: &Cluster| {
        let (state, reason, why) = said(cluster);
        assert_eq!((state.as_str(), reason.as_str()), ("violated", "NotAttached"));
        let words = ["no pod of the NF \"nat\" is ready on node n000", "-n t -l sluice.dev/slo=web,sluice.dev/function=nat"];
        assert!(words.iter().all(|words| why.contains(words)), "{why}");
    };
    // Its node says that the latency is kept: no packet is late.
    lacks(&cluster);
    assert_eq!(cluster.said("firm").0, "kept", "of what is reserved, the node measures it");
    let pod = Pod {
        slo: "web".into(),
        function: "nat".into(),
        instance: Some(cluster.instances("web")[0].1.number),
        node: Some(node_name(0)),
        is_ready: true,
        ..Pod::default()
    };
    let key = Key::new("t", "p");
    cluster.world.pods.insert(key.clone(), pod.clone());
    let kept = || ("kept".to_string(), "Measured".to_string(), String::new());
    assert_eq!(said(&cluster), kept());
    for other in [
        Pod { is_ready: false, ..pod.clone() },
        Pod { is_ending: true, ..pod.clone() },
        Pod { node: Some("other".into()), ..pod.clone() },
        Pod { slo: "firm".into(), ..pod.clone() },
    ] {
        cluster.world.pods.insert(key.clone(), other);
        lacks(&cluster);
    }
    // Packets pass: it runs, whatever else its pod has that is not ready.
    let status = cluster.world.plans.get_mut("n000").unwrap().status.as_mut().unwrap();
    status.uses.iter_mut().for_each(|one| one.delivered_pps = 1.0);
    assert_eq!(said(&cluster), kept());
    let on_failure = |cluster: &mut Cluster, what: OnFailure| {
        cluster.world.plans.get_mut("n000").unwrap().spec.chains.iter_mut().for_each(|one| one.chain.on_failure = what);
    };
    on_failure(&mut cluster, OnFailure::Bypass);
    // They may pass without it.
    lacks(&cluster);
    on_failure(&mut cluster, OnFailure::default());
    // Before its NF has attached once, nothing is measured.
    let status = cluster.world.plans.get_mut("n000").unwrap().status.as_mut().unwrap();
    status.uses.iter_mut().for_each(|one| one.state = "new".into());
    assert_eq!(said(&cluster), ("ready".into(), "NotMeasured".into(), String::new()));
    // A program of the node has no pods.
    cluster.tenant("t");
    cluster.run();
    assert_eq!(said(&cluster), kept());
}

#[test]
fn what_a_node_asked_for_before_its_last_plan_does_not_count() {
    let mut cluster = Cluster::new(2);
    cluster.ask("web", on_demand(Some(9), None));
    cluster.run();
    cluster.lacks("web");
    for _ in 0..3 {
        cluster.round();
    }
    assert_eq!(cluster.instances("web").len(), 2);
}

#[test]
fn a_load_at_its_cap_gets_no_more_instances_and_nodes_share_the_cap() {
    let mut cluster = Cluster::new(3);
    cluster.ask("web", on_demand(Some(8), Some(2e6)));
    cluster.run();
    cluster.loads.insert("t_web".into(), 2.1e6);
    cluster.agents();
    cluster.lacks("web");
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 1, "the promise ends there");
    cluster.loads.insert("t_web".into(), 1.9e6);
    for _ in 0..5 {
        cluster.agents();
        cluster.lacks("web");
        cluster.run();
    }
    assert!(cluster.nodes("web").len() > 1, "{:?}", cluster.instances("web"));
    let caps = cluster.caps("web");
    let sum: f64 = caps.iter().filter_map(|(_, pps)| *pps).sum();
    assert!((sum - 2e6).abs() < 1.0, "{caps:?}");
    let count = |node: &String| cluster.instances("web").iter().filter(|(on, _)| on == node).count() as u32;
    let elsewhere: Vec<u32> = cluster.nodes("web").iter().map(|node| cluster.instances("web").len() as u32 - count(node)).collect();
    assert_eq!(caps.iter().map(|(most, _)| most.unwrap()).collect::<Vec<_>>(), elsewhere.iter().map(|n| 8 - n).collect::<Vec<_>>());
}

#[test]
fn instances_that_are_no_longer_needed_go_once_no_packets_come_to_them() {
    let mut cluster = Cluster::new(2);
    cluster.ask("web", on_demand(Some(4), None));
    cluster.loads.insert("t_web".into(), 3e6);
    cluster.run();
    for _ in 0..2 {
        cluster.lacks("web");
        cluster.run();
    }
    assert_eq!(cluster.instances("web").len(), 3);
    assert_eq!(cluster.memo.next_deadline(cluster.now), Some(cluster.now + LOOK));
    // Two were not enough for 3e6, so they are for three quarters of that.
    let wait = |cluster: &mut Cluster, pps: f64| {
        cluster.loads.insert("t_web".into(), pps);
        cluster.agents();
        cluster.run();
        cluster.now += CALM;
    };
    wait(&mut cluster, 2.3e6);
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 3);
    wait(&mut cluster, 1.4e6);
    cluster.round();
    let led = |cluster: &Cluster| cluster.instances("web").iter().filter(|(_, one)| one.load_pps > 0.0).count();
    assert_eq!((cluster.instances("web").len(), led(&cluster)), (3, 2), "packets are led away first");
    cluster.run();
    assert_eq!((cluster.instances("web").len(), led(&cluster)), (2, 0));
    // It is needed again, so the next time takes longer.
    cluster.loads.insert("t_web".into(), 3e6);
    cluster.agents();
    cluster.lacks("web");
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 3);
    wait(&mut cluster, 0.0);
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 3);
    cluster.now += CALM;
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 2);
    for _ in 0..5 {
        wait(&mut cluster, 0.0);
        cluster.now += CALM;
        cluster.run();
    }
    assert_eq!(cluster.instances("web").len(), 1, "one stays");
}

#[test]
fn instances_of_a_lost_and_of_a_cordoned_node_have_successors() {
    let mut cluster = Cluster::new(3);
    cluster.ask("web", on_demand(Some(6), None));
    cluster.run();
    for _ in 0..4 {
        cluster.lacks("web");
        cluster.run();
    }
    let nodes = cluster.nodes("web");
    assert_eq!((cluster.instances("web").len(), nodes.len()), (5, 2));
    cluster.world.nodes.get_mut(&nodes[0]).unwrap().is_ready = false;
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 5);
    let cordoned = cluster.nodes("web")[0].clone();
    cluster.world.nodes.get_mut(&nodes[0]).unwrap().is_ready = true;
    cluster.world.nodes.get_mut(&cordoned).unwrap().is_cordoned = true;
    cluster.run();
    assert!(cluster.instances("web").len() == 5 && !cluster.nodes("web").contains(&cordoned), "{:?}", cluster.instances("web"));
}

#[test]
fn instances_of_a_cordoned_node_stay_while_packets_come_to_them() {
    let mut cluster = Cluster::new(3);
    cluster.ask("web", on_demand(Some(6), None));
    cluster.run();
    let cordoned = cluster.nodes("web")[0].clone();
    cluster.lingers = true;
    cluster.world.nodes.get_mut(&cordoned).unwrap().is_cordoned = true;
    cluster.run();
    let loads = |cluster: &Cluster| -> Vec<(bool, bool)> {
        cluster.instances("web").into_iter().map(|(node, one)| (node == cordoned, one.load_pps > 0.0)).collect()
    };
    assert_eq!(loads(&cluster), [(true, false), (false, true)], "packets are led away, and still come");
    cluster.lingers = false;
    for plan in cluster.world.plans.values_mut() {
        plan.status.as_mut().unwrap().uses.iter_mut().for_each(|one| one.offered_pps = 0.0);
    }
    cluster.run();
    assert_eq!(loads(&cluster), [(false, false)]);
}

#[test]
fn another_operator_finds_out_whether_fewer_are_enough() {
    let mut cluster = Cluster::new(2);
    cluster.ask("web", on_demand(Some(4), None));
    cluster.loads.insert("t_web".into(), 1e6);
    cluster.run();
    for _ in 0..2 {
        cluster.lacks("web");
        cluster.run();
    }
    assert_eq!(cluster.instances("web").len(), 3);
    cluster.succeed();
    cluster.agents();
    cluster.run();
    cluster.now += LONGEST - LOOK;
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 3);
    cluster.now += LOOK;
    // Rounds until it is stopped.
    (0..5).for_each(|_| {
        cluster.run();
        cluster.agents();
    });
    assert_eq!(cluster.instances("web").len(), 2);
    // It was one too few, so this is not tried again.
    cluster.lacks("web");
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 3);
    for _ in 0..3 {
        cluster.agents();
        cluster.run();
        cluster.now += LONGEST;
    }
    cluster.run();
    assert_eq!(cluster.instances("web").len(), 3);
}
