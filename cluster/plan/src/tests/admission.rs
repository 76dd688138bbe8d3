//! Admission, refusal, and what is said of both.

use sluice_cluster_types::{Footprint, OnDemand};

use super::*;
use crate::Pod;
use crate::pods::{Decision, bind};

#[test]
fn an_slo_is_admitted_and_a_node_runs_it() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.world.plans.len(), 3, "each node of a class has a plan");
    cluster.promise("web", 12e6);
    assert_eq!(cluster.round(), 1);
    assert!(cluster.is_kept("web"));
    assert_eq!(cluster.said("web"), ("admitted".into(), "Placed".into()));
    cluster.agents();
    assert_eq!(cluster.said("web"), ("kept".into(), "Placed".into()));
    assert_eq!(cluster.round(), 0, "nothing changes any more");
    let plan = &cluster.world.plans["n000"].spec;
    assert_eq!((plan.term, plan.chains[0].chain.services.clone()), (1, vec!["t_nat".to_string()]));
    assert_eq!((plan.functions[0].name.as_str(), plan.slos[0].slo.name.as_str()), ("t_nat", "t_web"));
    assert_eq!(plan.slos[0].profile.as_ref().unwrap().workload, plan.slos[0].slo.workload);
    cluster.world.slos.clear();
    cluster.run();
    assert!(cluster.world.plans.values().all(|plan| plan.spec.server.instances.is_empty() && plan.spec.functions.is_empty()));
}

#[test]
fn what_has_no_room_says_so_and_comes_when_there_is_room() {
    let mut cluster = Cluster::new(1);
    cluster.promise("big", 14e6);
    cluster.run();
    cluster.promise("late", 9e6);
    cluster.run();
    assert!(cluster.is_kept("big") && cluster.instances("late").is_empty());
    assert_eq!(cluster.said("late"), ("refused".into(), "NoRoom".into()));
    assert!(cluster.status("late").why.contains("this would fit"), "{}", cluster.status("late").why);
    cluster.world.slos.remove(&Key::new("t", "big"));
    cluster.run();
    assert!(cluster.is_kept("late"));
    assert_eq!(cluster.said("late"), ("kept".into(), "Placed".into()));
}

#[test]
fn of_too_many_the_least_promised_is_refused() {
    let mut cluster = Cluster::new(1);
    for (name, pps) in [("a-small", 2e6), ("b-large", 9e6), ("c-middle", 7e6)] {
        cluster.promise(name, pps);
    }
    cluster.run();
    assert!(cluster.is_kept("b-large") && cluster.is_kept("c-middle") && !cluster.is_kept("a-small"));
}

#[test]
fn what_cannot_be_says_what_to_do() {
    let mut cluster = Cluster::new(1);
    let why = |cluster: &mut Cluster, spec: SloSpec| {
        cluster.ask("web", spec);
        cluster.run();
        let status = cluster.status("web");
        (status.conditions[0].reason.clone(), status.why)
    };
    let (reason, message) = why(&mut cluster, SloSpec { traffic: Some("IMIX".into()), ..reserved("web", 1e6) });
    assert!(reason == "NoProfile" && message.contains("\"64 B\": name one of these"), "{message}");
    let quick = Some(Reserved { throughput_pps: 1e6, latency_us: 1.0 });
    let (reason, message) = why(&mut cluster, SloSpec { reserved: quick, ..reserved("web", 1e6) });
    assert!(reason == "Impossible" && message.contains("the shortest"), "{message}");
    cluster.world.classes.get_mut("a").unwrap().cpu = "B".into();
    cluster.world.epoch += 1;
    let (reason, message) = why(&mut cluster, reserved("web", 1e6));
    assert!(reason == "NoServer" && message.contains("the nodes have B: profile it on one of them"), "{message}");
    cluster.world.functions.clear();
    let (reason, message) = why(&mut cluster, reserved("web", 1e6));
    assert!(reason == "NoFunction" && message.contains("no NetworkFunction \"nat\" in t"), "{message}");
    cluster.world.slos.insert(Key::new("t", "zweb"), Slo::new("zweb", reserved("web", 1e6)));
    cluster.run();
    assert_eq!(cluster.said("zweb").1, "SecondSlo");
    cluster.world.chains.clear();
    cluster.run();
    assert_eq!(cluster.said("web").1, "NoChain");
}

#[test]
fn a_node_without_an_agent_gets_nothing() {
    let mut cluster = Cluster::new(0);
    cluster.silent = vec![node_name(0)];
    cluster
        .world
        .nodes
        .insert(node_name(0), Node { labels: class().node_selector, is_ready: true, is_cordoned: false, is_served: true });
    cluster.promise("web", 1e6);
    cluster.run();
    assert!(cluster.instances("web").is_empty());
    assert!(cluster.status("web").why.contains("has a ServerClass and an agent"), "{}", cluster.status("web").why);
    cluster.silent.clear();
    cluster.run();
    assert!(cluster.is_kept("web"), "{:?}", cluster.status("web"));
}

#[test]
fn one_on_demand_grows_when_a_node_asks_up_to_its_cap() {
    let mut cluster = Cluster::new(2);
    let on_demand = Some(OnDemand { latency_us: 50.0, most_instances: Some(3), most_pps: None });
    let footprint = Some(Footprint { cores: 2, memory_mib: 64 });
    cluster.ask("web", SloSpec { chain: "web".into(), on_demand, footprint, ..SloSpec::default() });
    cluster.run();
    let one = cluster.instances("web");
    assert_eq!((one.len(), one[0].1.ways, one[0].1.cores.len()), (1, 0, 2));
    for (asked, has) in [(2, 2), (9, 3)] {
        let node = cluster.nodes("web")[0].clone();
        cluster.world.plans.get_mut(&node).unwrap().status.as_mut().unwrap().uses[0].asks_for = Some(asked);
        cluster.run();
        assert_eq!(cluster.instances("web").len(), has);
    }
}

#[test]
fn pods_are_bound_to_what_is_written_and_to_nothing_else() {
    let mut cluster = Cluster::new(2);
    let pod = || Pod { slo: "web".into(), function: "nat".into(), is_gated: true, ..Pod::default() };
    for name in ["p0", "p1", "p2"] {
        cluster.world.pods.insert(Key::new("t", name), pod());
    }
    assert!(bind(&cluster.world).is_empty());
    cluster.promise("web", 3e6);
    cluster.run();
    let count = cluster.instances("web").len();
    let bound = bind(&cluster.world);
    assert_eq!(bound.len(), count.min(3));
    let node = cluster.nodes("web")[0].clone();
    assert_eq!(bound[0], Decision::Bind { pod: Key::new("t", "p0"), node: node.clone(), number: 0 });
    for (name, number) in [("p0", 0), ("p1", 0), ("p2", 7)] {
        let bound = Pod { is_gated: false, instance: Some(number), node: Some(node.clone()), ..pod() };
        cluster.world.pods.insert(Key::new("t", name), bound);
    }
    let evicted = ["p1", "p2"].map(|name| Decision::Evict { pod: Key::new("t", name) });
    assert_eq!(bind(&cluster.world)[..2], evicted, "the instance has a pod, or there is none");
    cluster.world.pods.get_mut(&Key::new("t", "p0")).unwrap().is_ending = true;
    assert!(!bind(&cluster.world).contains(&evicted[0]), "it takes the place of the one that ends");
}

#[test]
fn a_pod_does_not_stay_where_its_instance_was() {
    let mut cluster = Cluster::new(2);
    cluster.promise("web", 1e6);
    cluster.run();
    let first = cluster.nodes("web")[0].clone();
    let number = Some(cluster.instances("web")[0].1.number);
    let pod = Pod { slo: "web".into(), function: "nat".into(), instance: number, node: Some(first.clone()), ..Pod::default() };
    cluster.world.pods.insert(Key::new("t", "p0"), pod);
    assert!(bind(&cluster.world).is_empty());
    cluster.world.nodes.get_mut(&first).unwrap().is_ready = false;
    cluster.world.epoch += 1;
    cluster.run();
    assert_ne!(cluster.nodes("web"), [first]);
    assert_eq!(bind(&cluster.world), [Decision::Evict { pod: Key::new("t", "p0") }]);
    // One that was never at the gate is left alone, whatever its labels say.
    cluster.world.pods.get_mut(&Key::new("t", "p0")).unwrap().node = None;
    assert!(bind(&cluster.world).is_empty());
}
