//! Admission, refusal, and what is said of both.

use super::*;
use crate::Pod;

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
fn what_the_api_server_denies_is_in_the_status() {
    let mut cluster = Cluster::new(1);
    cluster.promise("web", 12e6);
    cluster.run();
    cluster.promise("late", 1e6);
    cluster.world.denied_plans.insert(node_name(0), "op may not update nodeplans".into());
    assert_eq!(cluster.said("late"), ("refused".into(), "PlansDenied".into()));
    let why = cluster.status("late").why;
    assert_eq!(why, "the plan of node n000 cannot be written: op may not update nodeplans");
    assert_eq!(cluster.said("web"), ("kept".into(), "Placed".into()), "what runs goes on");
    cluster.world.denied_plans.clear();
    let pod = Pod { slo: "web".into(), function: "nat".into(), is_gated: true, ..Pod::default() };
    cluster.world.pods.insert(Key::new("t", "p"), pod);
    cluster.world.denied_pods.insert(Key::new("t", "p"), (Key::new("t", "web"), "op may not patch pods".into()));
    let status = cluster.status("web");
    assert_eq!((status.state.as_str(), status.conditions[1].reason.as_str()), ("degraded", "PodsDenied"));
    assert_eq!(status.why, "its pods cannot be placed: op may not patch pods");
    cluster.world.pods.get_mut(&Key::new("t", "p")).unwrap().is_ending = true;
    assert_eq!(cluster.said("web"), ("kept".into(), "Placed".into()), "nothing is to be done with it any more");
    cluster.world.pods.clear();
    assert_eq!(cluster.status("web").conditions[1].reason, "PodsDenied", "it cannot be made");
    cluster.world.denied_pods.clear();
    assert_eq!(cluster.said("web"), ("kept".into(), "Placed".into()));
}

#[test]
fn the_same_objects_get_the_same_plans() {
    let plans = || {
        let mut cluster = Cluster::new(3);
        for i in 0..20 {
            let tenant = format!("tenant{i}");
            cluster.tenant(&tenant);
            let from = Match { port: Some("in".into()), vlan: Some(1 + i), ..Match::default() };
            cluster.ask_in(&tenant, "web", reserved("web", 9e6), from);
        }
        cluster.run();
        let with = cluster.world.plans.values().map(|plan| plan.spec.clone()).collect::<Vec<_>>();
        assert!(with.iter().all(|plan| !plan.slos.is_empty()) && with.iter().map(|plan| plan.slos.len()).sum::<usize>() < 20);
        with
    };
    assert_eq!(plans(), plans());
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
    cluster.world.classes.get_mut("a").unwrap().spec.cpu = "B".into();
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
    cluster.world.nodes.insert(node_name(0), good_node(&class().node_selector));
    cluster.promise("web", 1e6);
    cluster.run();
    assert!(cluster.instances("web").is_empty());
    assert!(cluster.status("web").why.contains("has a ServerClass and an agent"), "{}", cluster.status("web").why);
    cluster.silent.clear();
    cluster.run();
    assert!(cluster.is_kept("web"), "{:?}", cluster.status("web"));
}

#[test]
fn an_slo_of_an_nf_is_planned_as_a_chain_of_it_alone() {
    let mut cluster = Cluster::new(2);
    let of_nf = |port: &str| SloSpec {
        function: Some("nat".into()),
        chain: None,
        ingress: vec![Match { port: Some(port.into()), ..Match::default() }],
        egress: Some("out".into()),
        ..reserved("", 1e6)
    };
    for name in ["one", "two"] {
        cluster.world.slos.insert(Key::new("t", name), Slo::new(name, of_nf("in")));
    }
    cluster.run();
    // An NF has as many SLOs as wanted.
    for name in ["one", "two"] {
        assert!(cluster.is_kept(name) && cluster.said(name) == ("kept".into(), "Placed".into()), "{:?}", cluster.status(name));
    }
    let chain = |cluster: &Cluster| {
        let node = cluster.nodes("one").remove(0);
        cluster.world.plans[&node].spec.chains.iter().find(|chain| chain.name == "t_one").unwrap().chain.clone()
    };
    let planned = chain(&cluster);
    assert_eq!((planned.services, planned.ingress, planned.egress), (vec!["t_nat".into()], of_nf("in").ingress, "out".into()));
    // Its packets change as those of a chain.
    cluster.world.slos.get_mut(&Key::new("t", "one")).unwrap().spec = of_nf("other");
    cluster.run();
    assert_eq!(chain(&cluster).ingress, of_nf("other").ingress);
    assert!(cluster.is_kept("one"));
    // Those of another tenant are not its own.
    cluster.tenant("a");
    cluster.ask_in("a", "web", reserved("web", 1e6), Match { port: Some("other".into()), ..Match::default() });
    cluster.run();
    assert_eq!(cluster.memo.why[&Key::new("a", "web")].reason, "IngressTaken");
    cluster.world.functions.remove(&Key::new("t", "nat"));
    cluster.run();
    assert_eq!(cluster.said("one"), ("degraded".into(), "NoFunction".into()));
}
