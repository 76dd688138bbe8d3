//! Nodes that are lost, emptied or refuse, and promises that change.

use super::*;
use sluice_cluster_types::NetworkFunctionStatus;

/// Rounds and agents in turn, each of which must keep all of these SLOs.
fn keeps(cluster: &mut Cluster, slos: &[&str]) {
    for _ in 0..50 {
        let wrote = cluster.round();
        for slo in slos {
            assert!(cluster.is_kept(slo), "{slo}: {:?}", cluster.instances(slo));
        }
        if !cluster.agents() && wrote == 0 {
            return;
        }
    }
    panic!("rounds do not end");
}

#[test]
fn what_was_on_lost_nodes_is_placed_again_at_once() {
    let mut cluster = Cluster::new(6);
    let slos: Vec<String> = (0..8).map(|i| format!("s{i}")).collect();
    for (i, slo) in slos.iter().enumerate() {
        cluster.promise(slo, 3e6 + i as f64 * 1e5);
    }
    cluster.run();
    let names: Vec<&str> = slos.iter().map(String::as_str).collect();
    let lost = cluster.nodes("s7")[0].clone();
    let apart: Vec<&str> = names.iter().copied().filter(|slo| !cluster.nodes(slo).contains(&lost)).collect();
    let before: Vec<_> = apart.iter().map(|slo| cluster.instances(slo)).collect();
    cluster.world.nodes.get_mut(&lost).unwrap().is_ready = false;
    cluster.round();
    assert!(names.iter().all(|slo| cluster.is_kept(slo)), "in one round");
    assert_eq!(apart.iter().map(|slo| cluster.instances(slo)).collect::<Vec<_>>(), before, "others do not move");
    assert!(cluster.world.plans[&lost].spec.server.instances.is_empty());
    keeps(&mut cluster, &names);
    cluster.world.nodes.remove(&lost);
    cluster.run();
    assert!(!cluster.world.plans.contains_key(&lost), "the plan of a node that is gone goes");
}

#[test]
fn where_there_is_too_little_the_least_promised_go_without_and_say_so() {
    let mut cluster = Cluster::new(2);
    for (name, pps) in [("large", 14e6), ("small", 8e6)] {
        cluster.promise(name, pps);
    }
    cluster.run();
    let on = cluster.nodes("large");
    assert_ne!(on, cluster.nodes("small"));
    cluster.world.nodes.get_mut(&on[0]).unwrap().is_ready = false;
    cluster.world.epoch += 1;
    cluster.run();
    // What runs does not move for one that is placed again.
    assert!(cluster.is_kept("small") && !cluster.is_kept("large"));
    assert_eq!(cluster.said("large"), ("refused".into(), "NoRoom".into()));
    cluster.node(if on[0] == "n000" { 0 } else { 1 }).is_ready = true;
    cluster.run();
    assert!(cluster.is_kept("large"));
}

#[test]
fn a_cordoned_node_is_emptied_and_every_promise_holds_at_each_step() {
    let mut cluster = Cluster::new(3);
    cluster.promise("web", 12e6);
    cluster.promise("dns", 2e6);
    cluster.run();
    assert_eq!(cluster.nodes("web"), ["n000"]);
    cluster.lingers = true;
    cluster.node(0).is_cordoned = true;
    keeps(&mut cluster, &["web", "dns"]);
    assert!(cluster.instances("web").iter().any(|(node, one)| node == "n000" && one.load_pps == 0.0), "packets still come there");
    cluster.lingers = false;
    for plan in cluster.world.plans.values_mut() {
        let status = plan.status.as_mut().unwrap();
        status.uses.iter_mut().for_each(|one| one.offered_pps = 0.0);
    }
    keeps(&mut cluster, &["web", "dns"]);
    assert!(cluster.world.plans["n000"].spec.server.instances.is_empty());
    cluster.node(0).is_cordoned = false;
    assert_eq!(cluster.round(), 0, "nothing comes back");
}

#[test]
fn without_room_elsewhere_what_is_on_a_cordoned_node_stays() {
    let mut cluster = Cluster::new(1);
    cluster.promise("web", 12e6);
    cluster.run();
    cluster.node(0).is_cordoned = true;
    keeps(&mut cluster, &["web"]);
    assert_eq!(cluster.said("web").0, "degraded");
}

#[test]
fn a_promise_grows_and_shrinks_in_place() {
    let mut cluster = Cluster::new(2);
    cluster.promise("web", 3e6);
    cluster.run();
    let before = cluster.instances("web");
    cluster.promise("web", 9e6);
    cluster.run();
    assert!(cluster.is_kept("web"));
    let after = cluster.instances("web");
    assert!(before.iter().all(|(node, one)| after.iter().any(|(on, other)| on == node && other.number == one.number)));
    cluster.promise("web", 1e6);
    keeps(&mut cluster, &["web"]);
    assert!(cluster.instances("web").len() < after.len());
    cluster.promise("web", 900e6);
    keeps_less(&mut cluster);
}

/// A promise that is too large is refused, and what runs goes on.
fn keeps_less(cluster: &mut Cluster) {
    cluster.run();
    assert_eq!(cluster.said("web").0, "degraded");
    assert!(cluster.carried("web") > 0.0);
}

fn nf(cluster: &Cluster) -> NetworkFunctionStatus {
    let all = cluster.statuses();
    all.functions.into_iter().next().map_or_else(Default::default, |(_, status)| status)
}

#[test]
fn a_change_of_an_nf_goes_node_by_node_and_stops_at_one_that_refuses() {
    let mut cluster = Cluster::new(5);
    for i in 0..5 {
        cluster.promise(&format!("s{i}"), 14e6);
    }
    cluster.run();
    cluster.refuse.insert("n002".into(), "no such option".into());
    let change = |cluster: &mut Cluster, arg: &str| {
        cluster.world.functions.get_mut(&Key::new("t", "nat")).unwrap().spec.args = vec![arg.into()];
    };
    let has = |cluster: &Cluster, arg: &str| -> Vec<String> {
        let plans = cluster.world.plans.values().filter(|plan| plan.spec.functions[0].spec.args == [arg]);
        plans.map(|plan| plan.spec.server.name.clone()).collect()
    };
    change(&mut cluster, "--new");
    for i in 0..3 {
        assert_eq!(cluster.round(), 1, "one node at a time");
        assert_eq!(has(&cluster, "--new").len(), i + 1);
        assert_eq!(cluster.round(), 0, "and no other before it has taken it over");
        cluster.agents();
    }
    assert_eq!(cluster.round(), 0);
    assert_eq!(has(&cluster, "--new"), ["n000", "n001", "n002"]);
    let status = nf(&cluster);
    assert_eq!((status.nodes, status.current), (5, 2));
    let message = &status.conditions[0].message;
    assert!(message.contains("2 of 5 nodes run it as it is, and node n002 refuses: no such option"), "{message}");
    assert!((0..5).all(|i| cluster.is_kept(&format!("s{i}"))), "the SLOs stay where they are");
    // Another operator sees the same.
    cluster.succeed();
    assert_eq!(cluster.round(), 0);
    cluster.refuse.clear();
    change(&mut cluster, "--better");
    cluster.run();
    assert_eq!(has(&cluster, "--better").len(), 5);
    assert_eq!(nf(&cluster).conditions[0].reason, "Current");
}

#[test]
fn what_a_silent_node_does_not_take_over_goes_elsewhere() {
    let mut cluster = Cluster::new(2);
    cluster.promise("old", 2e6);
    cluster.run();
    let node = cluster.nodes("old")[0].clone();
    cluster.silent.push(node.clone());
    cluster.promise("new", 2e6);
    cluster.run();
    assert_eq!(cluster.nodes("new"), std::slice::from_ref(&node));
    assert_eq!(cluster.memo.next_deadline(cluster.now), Some(crate::health::SLOW));
    cluster.now += crate::health::SLOW;
    cluster.run();
    assert_ne!(cluster.nodes("new"), std::slice::from_ref(&node));
    assert!(cluster.is_kept("new") && cluster.nodes("old") == [node]);
}

#[test]
fn a_node_that_profiles_gets_nothing_until_it_is_done() {
    let mut cluster = Cluster::new(1);
    cluster.run();
    let node = node_name(0);
    let profiles = |cluster: &mut Cluster, is: bool| {
        cluster.world.plans.get_mut(&node).unwrap().status.as_mut().unwrap().profiling = is;
    };
    profiles(&mut cluster, true);
    cluster.promise("new", 2e6);
    cluster.run();
    assert!(cluster.nodes("new").is_empty());
    profiles(&mut cluster, false);
    cluster.run();
    assert_eq!(cluster.nodes("new"), [node]);
}

#[test]
fn terms_change_on_all_nodes_or_on_none() {
    let mut cluster = Cluster::new(2);
    cluster.promise("web", 20e6);
    cluster.run();
    assert_eq!(cluster.nodes("web"), ["n000", "n001"]);
    // The second node has another processor, of which there is no profile.
    let other = |server: &mut sluice_slo::placement::PlacedServer| server.shape.cpu = "B".into();
    other(&mut cluster.world.plans.get_mut("n001").unwrap().spec.server);
    let before: Vec<_> = cluster.world.plans.values().map(|plan| plan.spec.slos.clone()).collect();
    let mut spec = reserved("web", 20e6);
    spec.reserved.as_mut().unwrap().latency_us = 2000.0;
    cluster.ask("web", spec);
    cluster.round();
    assert_eq!(cluster.said("web").1, "NoServer");
    assert_eq!(cluster.world.plans.values().map(|plan| plan.spec.slos.clone()).collect::<Vec<_>>(), before);
}

#[test]
fn a_plan_is_waited_for_from_the_round_that_writes_it() {
    let mut cluster = Cluster::new(2);
    assert_eq!(cluster.memo.next_deadline(cluster.now), None);
    cluster.promise("new", 2e6);
    cluster.now += Duration::from_secs(5);
    cluster.round();
    let (began, end) = (cluster.now, cluster.now + crate::health::SLOW);
    assert_eq!(cluster.memo.next_deadline(began), Some(end));
    // It passes before it is asked for.
    let late = end + Duration::from_secs(1);
    let due = cluster.memo.next_deadline(late).unwrap();
    assert!(due > late && due < late + Duration::from_secs(1), "{due:?}");
    cluster.now = due;
    cluster.round();
    assert!(cluster.memo.next_deadline(due).is_none_or(|next| next > due + Duration::from_secs(1)), "a round moves it on");
}

#[test]
fn a_change_waits_only_for_nodes_that_have_not_taken_it_over() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|i| cluster.promise(&format!("s{i}"), 14e6));
    cluster.run();
    let change = |cluster: &mut Cluster, arg: &str| {
        cluster.world.functions.get_mut(&Key::new("t", "nat")).unwrap().spec.args = vec![arg.into()];
    };
    let has = |cluster: &Cluster, arg: &str| -> Vec<String> {
        let plans = cluster.world.plans.values().filter(|plan| plan.spec.functions[0].spec.args == [arg]);
        plans.map(|plan| plan.spec.server.name.clone()).collect()
    };
    change(&mut cluster, "--new");
    cluster.round();
    cluster.agents();
    // The first has it, and then another plan, which it does not take over.
    assert_eq!(has(&cluster, "--new"), ["n000"]);
    cluster.silent.push("n000".into());
    let slo = (0..3).map(|i| format!("s{i}")).find(|slo| cluster.nodes(slo) == ["n000"]).unwrap();
    cluster.promise(&slo, 13e6);
    cluster.run();
    assert_eq!(has(&cluster, "--new").len(), 3);
    change(&mut cluster, "--better");
    cluster.run();
    assert_eq!(has(&cluster, "--better"), ["n000"]);
    let message = nf(&cluster).conditions[0].message.clone();
    assert!(message.contains("node n000 is waited for"), "{message}");
    cluster.silent.clear();
    cluster.run();
    assert_eq!(has(&cluster, "--better").len(), 3);
}
