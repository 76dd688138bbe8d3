//! Nodes that refuse plans, and agents that do not answer any more.

use super::*;
use crate::health::SLOW;

/// A node with room for many SLOs, ten of which come at once. The fifth is bad, and is refused with
/// these words.
fn ten(said: &str) -> (Cluster, usize) {
    let mut cluster = Cluster::new(1);
    cluster.world.classes.get_mut("a").unwrap().spec.cores = 15;
    cluster.world.epoch += 1;
    cluster.run();
    cluster.promise("old", 1e5);
    cluster.run();
    cluster.bad.insert("t_s4".into(), said.into());
    for i in 0..10 {
        cluster.promise(&format!("s{i}"), 1e5);
    }
    for rounds in 0..40 {
        let wrote = cluster.round();
        assert!(cluster.is_kept("old"));
        if !cluster.agents() && wrote == 0 {
            return (cluster, rounds);
        }
    }
    panic!("rounds do not end");
}

fn nine_run(cluster: &Cluster, said: &str) {
    for i in (0..10).filter(|i| *i != 4) {
        assert_eq!(cluster.said(&format!("s{i}")), ("kept".into(), "Placed".into()), "s{i}");
    }
    let (status, why) = (cluster.said("s4"), cluster.status("s4").why);
    assert_eq!(status, ("refused".into(), "NodeRefuses".into()));
    assert!(why.contains(&format!("node n000 refuses it: {said}")), "{why}");
}

#[test]
fn one_bad_slo_of_ten_is_held_and_the_others_run() {
    let said = "the program ended at once";
    let (mut cluster, blind) = ten(said);
    nine_run(&cluster, said);
    // Words that name it spare most tries.
    let named = "\"t_s4\" was admitted by a profile of another binary of \"t_nat\"";
    let (other, seen) = ten(named);
    nine_run(&other, named);
    assert!(seen < blind, "{seen} and {blind} rounds");
    // Words that name a good one cost a try, and hold nothing else.
    let wrong = "it is not as t_s7";
    nine_run(&ten(wrong).0, wrong);
    // Another operator finds it out anew, and nothing that runs is touched.
    let before = cluster.world.plans.clone();
    cluster.succeed();
    cluster.run();
    nine_run(&cluster, said);
    let instances = |plans: &BTreeMap<String, NodePlan>| plans["n000"].spec.server.instances.clone();
    assert_eq!(instances(&before), instances(&cluster.world.plans));
    // It is mended, and tried again in time.
    cluster.bad.clear();
    cluster.now = cluster.memo.next_deadline(cluster.now).unwrap();
    cluster.run();
    assert!(cluster.is_kept("s4"));
}

#[test]
fn while_a_node_is_tried_it_gets_nothing_else() {
    let mut cluster = Cluster::new(2);
    cluster.bad.insert("t_s1".into(), "no".into());
    for i in 0..4 {
        cluster.promise(&format!("s{i}"), 1e6);
    }
    cluster.round();
    let node = cluster.nodes("s1")[0].clone();
    assert!((0..4).all(|i| cluster.nodes(&format!("s{i}")) == [node.clone()]));
    cluster.agents();
    cluster.round();
    assert!(cluster.status("s0").why.contains("refuses a plan with it and others: no"), "{}", cluster.status("s0").why);
    cluster.promise("new", 1e6);
    cluster.round();
    assert!(cluster.is_kept("new") && cluster.nodes("new") != std::slice::from_ref(&node));
    cluster.run();
    assert!([0, 2, 3].iter().all(|i| cluster.nodes(&format!("s{i}")) == [node.clone()]));
    assert_eq!(cluster.said("s1").1, "NodeRefuses");
}

#[test]
fn what_a_node_refuses_with_and_without_goes_elsewhere() {
    let mut cluster = Cluster::new(2);
    for count in [1, 3] {
        let names: Vec<String> = (0..count).map(|i| format!("s{count}{i}")).collect();
        names.iter().for_each(|name| cluster.promise(name, 1e6));
        cluster.round();
        let node = cluster.nodes(&names[0])[0].clone();
        cluster.refuse.insert(node.clone(), "cannot read sluice.toml".into());
        cluster.run();
        for name in &names {
            assert!(cluster.is_kept(name) && cluster.nodes(name) != [node.clone()], "{:?}", cluster.memo.why);
        }
        cluster.refuse.clear();
        cluster.run();
    }
}

#[test]
fn a_trial_ends_when_its_slos_or_its_node_go() {
    for is_node in [true, false] {
        let mut cluster = Cluster::new(2);
        cluster.bad.insert("t_s1".into(), "no".into());
        for i in 0..4 {
            cluster.promise(&format!("s{i}"), 1e6);
        }
        cluster.round();
        let node = cluster.nodes("s1")[0].clone();
        cluster.agents();
        cluster.round();
        match is_node {
            true => cluster.world.nodes.get_mut(&node).unwrap().is_ready = false,
            false => (0..4).for_each(|i| drop(cluster.world.slos.remove(&Key::new("t", &format!("s{i}"))))),
        }
        cluster.promise("new", 1e6);
        cluster.run();
        cluster.world.nodes.get_mut(&node).unwrap().is_ready = true;
        cluster.run();
        assert!(cluster.is_kept("new"));
        cluster.promise("more", 15e6);
        cluster.promise("most", 15e6);
        cluster.run();
        let both = cluster.nodes("more").into_iter().chain(cluster.nodes("most")).collect::<std::collections::BTreeSet<_>>();
        assert!(both.contains(&node), "{both:?}");
    }
}

#[test]
fn a_node_whose_agent_is_silent_gets_nothing_and_is_lost_after_a_while() {
    let mut cluster = Cluster::new(3);
    cluster.promise("web", 5e6);
    cluster.run();
    let node = cluster.nodes("web")[0].clone();
    cluster.world.nodes.get_mut(&node).unwrap().is_served = false;
    cluster.world.epoch += 1;
    cluster.promise("new", 2e6);
    cluster.run();
    assert!(cluster.is_kept("new") && cluster.nodes("new") != std::slice::from_ref(&node), "nothing new goes there");
    assert_eq!(cluster.nodes("web"), std::slice::from_ref(&node), "its daemon may run on");
    let status = cluster.status("web");
    assert_eq!((status.state.as_str(), status.conditions[1].reason.as_str()), ("degraded", "AgentSilent"));
    let asks = format!("kubectl get pods -A --field-selector spec.nodeName={node}");
    assert!(status.why.contains(&format!("the agent of node {node}")) && status.why.contains(&asks), "{}", status.why);
    assert_eq!(status.conditions[2].status, "Unknown", "what it has measured is old");
    cluster.promise("huge", 40e6);
    cluster.run();
    assert!(cluster.status("huge").why.contains(&asks), "{}", cluster.status("huge").why);
    cluster.world.slos.remove(&Key::new("t", "huge"));
    assert_eq!(cluster.memo.next_deadline(cluster.now), Some(cluster.now + SLOW));
    cluster.now += SLOW;
    cluster.run();
    assert!(cluster.is_kept("web") && cluster.nodes("web") != [node.clone()]);
    assert_eq!(cluster.said("web").0, "kept");
    assert!(cluster.world.plans[&node].spec.server.instances.is_empty());
    // It is there again, and takes over that it has nothing.
    cluster.world.nodes.get_mut(&node).unwrap().is_served = true;
    cluster.world.epoch += 1;
    cluster.run();
    for i in 0..2 {
        cluster.promise(&format!("more{i}"), 14e6);
    }
    cluster.run();
    assert!(["more0", "more1"].iter().any(|slo| cluster.nodes(slo).contains(&node)));
}

#[test]
fn an_agent_that_answers_again_in_time_has_lost_nothing() {
    let mut cluster = Cluster::new(2);
    cluster.promise("web", 5e6);
    cluster.run();
    let (before, node) = (cluster.instances("web"), cluster.nodes("web")[0].clone());
    for _ in 0..3 {
        cluster.world.nodes.get_mut(&node).unwrap().is_served = false;
        cluster.run();
        cluster.now += SLOW / 2;
        cluster.run();
        cluster.world.nodes.get_mut(&node).unwrap().is_served = true;
        cluster.run();
    }
    assert_eq!(cluster.instances("web"), before);
    assert_eq!(cluster.said("web").0, "kept");
}

#[test]
fn an_slo_that_one_node_refuses_goes_to_another_and_no_further() {
    let mut cluster = Cluster::new(4);
    cluster.promise("old", 2e6);
    cluster.run();
    let node = cluster.nodes("old")[0].clone();
    cluster.bad.insert("t_new".into(), "another binary".into());
    cluster.promise("new", 2e6);
    let mut tried = std::collections::BTreeSet::new();
    for _ in 0..20 {
        cluster.round();
        tried.extend(cluster.nodes("new"));
        cluster.agents();
    }
    assert!(tried.len() == 2 && tried.contains(&node), "{tried:?}");
    assert!(cluster.instances("new").is_empty() && cluster.is_kept("old"));
    assert_eq!(cluster.said("new"), ("refused".into(), "NodeRefuses".into()));
    let nodes: Vec<String> = tried.into_iter().collect();
    let why = cluster.status("new").why;
    assert!(why.contains(&format!("nodes {} refuse it: another binary", nodes.join(" and "))), "{why}");
    cluster.bad.clear();
    cluster.run();
    assert_eq!(cluster.said("new").1, "NodeRefuses", "it would be refused again");
    assert_eq!(cluster.memo.next_deadline(cluster.now), Some(Duration::from_secs(600)));
    cluster.world.functions.get_mut(&Key::new("t", "nat")).unwrap().spec.args = vec!["--other".into()];
    cluster.run();
    assert!(cluster.is_kept("new"));
}

#[test]
fn a_node_that_takes_nothing_but_an_empty_plan_stops_no_slo_and_gets_no_more() {
    let mut cluster = Cluster::new(3);
    cluster.liars.insert("n000".into(), "it has no core 15".into());
    for i in 0..2 {
        let name = format!("s{i}");
        cluster.promise(&name, 9e6);
        cluster.run();
        assert!(cluster.is_kept(&name) && !cluster.nodes(&name).contains(&node_name(0)), "{:?}", cluster.memo.why);
        assert_eq!(cluster.said(&name), ("kept".into(), "Placed".into()));
    }
    let before = cluster.world.plans["n000"].spec.revision;
    // Together there is room on the others.
    for i in 2..4 {
        cluster.promise(&format!("s{i}"), 2e6);
    }
    cluster.run();
    assert!((0..4).all(|i| cluster.is_kept(&format!("s{i}"))), "{:?}", cluster.memo.why);
    assert_eq!(cluster.world.plans["n000"].spec.revision, before, "two have shown what it is");
    // It is mended, and asked again in time.
    cluster.liars.clear();
    cluster.now += Duration::from_secs(600);
    for i in 0..3 {
        cluster.promise(&format!("more{i}"), 13e6);
    }
    cluster.run();
    assert!((0..3).any(|i| cluster.nodes(&format!("more{i}")).contains(&node_name(0))));
}

#[test]
fn an_slo_that_is_held_holds_up_no_trial_of_another_node() {
    let mut cluster = Cluster::new(2);
    cluster.bad.insert("t_big".into(), "no".into());
    // The first is on both nodes, and beside others on one.
    cluster.promise("big", 20e6);
    (0..3).for_each(|i| cluster.promise(&format!("s{i}"), 1e6));
    cluster.round();
    assert_eq!(cluster.nodes("big").len(), 2);
    cluster.run();
    assert!((0..3).all(|i| cluster.is_kept(&format!("s{i}"))), "{:?}", cluster.memo.why);
    assert_eq!(cluster.said("big").1, "NodeRefuses");
    cluster.promise("more", 14e6);
    cluster.promise("most", 8e6);
    cluster.run();
    assert!(["more", "most"].iter().all(|slo| cluster.is_kept(slo)), "both nodes have more: {:?}", cluster.memo.why);
}

/// Two SLOs on the first node, which refuses more for the one that grows.
fn grown(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new(nodes);
    cluster.promise("web", 3e6);
    cluster.promise("old", 2e6);
    cluster.run();
    assert!(["web", "old"].iter().all(|slo| cluster.nodes(slo) == ["n000"]));
    cluster.most.insert("n000".into(), 3.5e6);
    cluster.promise("web", 9e6);
    cluster.round();
    cluster.agents();
    let status = cluster.status("web");
    assert_eq!((status.conditions[1].status.as_str(), status.conditions[1].reason.as_str()), ("False", "NodeRefuses"));
    cluster
}

#[test]
fn a_change_that_a_node_refuses_is_taken_back_and_goes_elsewhere() {
    let mut cluster = grown(2);
    for _ in 0..20 {
        cluster.round();
        assert!(cluster.carried("web") >= 3e6 && cluster.is_kept("old"));
        cluster.agents();
    }
    cluster.run();
    assert!(cluster.is_kept("web") && cluster.nodes("web") == ["n001"], "{:?}", cluster.memo.why);
    assert_eq!(cluster.said("web"), ("kept".into(), "Placed".into()));
}

#[test]
fn a_change_that_has_no_other_place_is_held_and_nothing_waits_for_it() {
    let mut cluster = grown(1);
    cluster.run();
    let words = |cluster: &Cluster| {
        assert_eq!(cluster.said("web"), ("degraded".into(), "NodeRefuses".into()));
        let why = cluster.status("web").why;
        assert!(why.contains("node n000 refuses it: more than 3500000"), "{why}");
    };
    words(&cluster);
    let plan = &cluster.world.plans["n000"];
    assert_eq!(plan.status.as_ref().unwrap().applied_revision, plan.spec.revision);
    let web = plan.spec.slos.iter().find(|one| one.slo.name == "t_web").unwrap();
    assert_eq!(web.slo.promise.throughput_pps(), Some(3e6));
    assert!(cluster.carried("web") >= 3e6);
    // What else changes there is taken over.
    cluster.world.slos.remove(&Key::new("t", "old"));
    cluster.promise("new", 1e6);
    cluster.run();
    assert!(cluster.is_kept("new") && cluster.instances("old").is_empty());
    words(&cluster);
    // It is mended, and tried again in time.
    cluster.most.clear();
    cluster.now += Duration::from_secs(600);
    cluster.run();
    assert!(cluster.is_kept("web"), "{:?}", cluster.memo.why);
    assert_eq!(cluster.said("web"), ("kept".into(), "Placed".into()));
}

#[test]
fn a_change_among_others_is_tried_apart_from_them() {
    let mut cluster = Cluster::new(1);
    cluster.promise("web", 3e6);
    cluster.run();
    cluster.most.insert("n000".into(), 3.5e6);
    cluster.promise("web", 5e6);
    (0..3).for_each(|i| cluster.promise(&format!("s{i}"), 1e6));
    cluster.run();
    assert!((0..3).all(|i| cluster.is_kept(&format!("s{i}"))), "{:?}", cluster.memo.why);
    assert_eq!(cluster.said("web"), ("degraded".into(), "NodeRefuses".into()));
}
