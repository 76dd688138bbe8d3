//! Pods that the operator makes.

use super::*;
use crate::pods::{Decision, bind};
use crate::status::{Touched, statuses_of};
use crate::{Made, Pod};

/// A cluster with an SLO whose NF has an image, and more than one instance.
fn cluster(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new(nodes);
    image(&mut cluster, "nf:1");
    cluster.promise("web", 12e6);
    cluster.run();
    assert!(cluster.instances("web").len() > 1);
    cluster
}

fn image(cluster: &mut Cluster, image: &str) {
    image_in(cluster, "t", image);
}

fn image_in(cluster: &mut Cluster, namespace: &str, image: &str) {
    let spec = NetworkFunctionSpec { image: Some(image.into()), ..NetworkFunctionSpec::default() };
    cluster.world.functions.insert(Key::new(namespace, "nat"), NetworkFunction::new("nat", spec));
    cluster.world.epoch += 1;
}

/// Carries out what is decided, as the API server would. Returns it.
fn act(world: &mut World) -> Vec<Decision> {
    let decisions = bind(world);
    for decision in &decisions {
        match decision {
            Decision::Create(new) => {
                let made = Made { owner: new.owner.clone(), template: new.template.clone(), ..Made::default() };
                let pod = Pod {
                    slo: new.slo.clone(),
                    function: new.function.clone(),
                    uid: new.pod.name.clone(),
                    instance: Some(new.number),
                    node: Some(new.node.clone()),
                    is_gated: true,
                    made: Some(made),
                    ..Pod::default()
                };
                assert!(world.pods.insert(new.pod.clone(), pod).is_none(), "nothing is made twice");
            }
            Decision::Bind { pod, node, number } => {
                let pod = world.pods.get_mut(pod).unwrap();
                assert_eq!((pod.node.as_ref(), pod.instance), (Some(node), Some(*number)), "it was made for that");
                pod.is_gated = false;
            }
            Decision::Delete { pod, uid } => assert_eq!(world.pods.remove(pod).unwrap().uid, *uid),
            other => panic!("{other:?}"),
        }
    }
    decisions
}

/// All that runs is ready.
fn ready(world: &mut World) {
    world.pods.values_mut().filter(|pod| !pod.is_gated && pod.made.is_some()).for_each(|pod| pod.is_ready = true);
}

/// What is decided, by kind: pods that are made, bound and deleted.
fn kinds(decisions: &[Decision]) -> [usize; 3] {
    let count = |is_it: fn(&Decision) -> bool| decisions.iter().filter(|one| is_it(one)).count();
    [
        count(|one| matches!(one, Decision::Create(_))),
        count(|one| matches!(one, Decision::Bind { .. })),
        count(|one| matches!(one, Decision::Delete { .. })),
    ]
}

#[test]
fn each_instance_gets_a_pod_that_is_made_for_it() {
    let mut cluster = cluster(2);
    let instances = cluster.instances("web");
    let made = bind(&cluster.world);
    assert_eq!(kinds(&made), [instances.len(), 0, 0]);
    for (decision, (node, one)) in made.iter().zip(&instances) {
        let Decision::Create(new) = decision else { panic!("{decision:?}") };
        assert_eq!((&new.node, new.number, new.memory_mib), (node, one.number, one.memory_mib));
        assert_eq!((new.nf.clone(), new.folder.as_str()), (format!("t_nat/{}", one.number), "t_web"));
        assert!(new.pod.namespace == "t" && new.pod.name.starts_with(&format!("web-nat-{}-", one.number)), "{}", new.pod);
    }
    assert_eq!(act(&mut cluster.world), made);
    assert_eq!(kinds(&act(&mut cluster.world)), [0, instances.len(), 0]);
    assert!(bind(&cluster.world).is_empty());
    // One that is deleted by hand is followed by another one, when it has gone.
    let (key, pod) = cluster.world.pods.first_key_value().map(|(key, pod)| (key.clone(), pod.clone())).unwrap();
    cluster.world.pods.get_mut(&key).unwrap().is_ending = true;
    assert!(bind(&cluster.world).is_empty(), "its name is not free yet");
    cluster.world.pods.remove(&key);
    assert!(matches!(&bind(&cluster.world)[..], [Decision::Create(new)] if new.pod == key));
    // One that has ended by itself is in the way.
    let made = Some(Made { has_ended: true, ..pod.made.clone().unwrap() });
    cluster.world.pods.insert(key.clone(), Pod { is_ending: true, made, ..pod });
    assert!(matches!(&act(&mut cluster.world)[..], [Decision::Delete { pod, .. }] if *pod == key));
    while !act(&mut cluster.world).is_empty() {}
    cluster.world.slos.clear();
    cluster.run();
    assert_eq!(kinds(&act(&mut cluster.world)), [0, 0, instances.len()]);
    assert!(bind(&cluster.world).is_empty());
}

#[test]
fn a_pod_that_was_made_late_is_not_bound() {
    let mut cluster = cluster(2);
    while !act(&mut cluster.world).is_empty() {}
    let before = cluster.world.pods.clone();
    let lost = cluster.nodes("web")[0].clone();
    cluster.world.nodes.get_mut(&lost).unwrap().is_ready = false;
    cluster.world.epoch += 1;
    cluster.run();
    let decided = bind(&cluster.world);
    assert_eq!(kinds(&decided), [before.len(), 0, before.len()], "elsewhere, they have other names");
    // They are at the gate while the old ones have not gone.
    for decision in decided {
        if let Decision::Create(new) = decision {
            let made = Some(Made { owner: new.owner.clone(), template: new.template.clone(), ..Made::default() });
            let of = (new.slo.clone(), new.function.clone(), Some(new.number), Some(new.node.clone()));
            let pod = Pod { slo: of.0, function: of.1, instance: of.2, node: of.3, is_gated: true, made, ..Pod::default() };
            cluster.world.pods.insert(new.pod.clone(), pod);
        }
    }
    assert_eq!(kinds(&bind(&cluster.world)), [0, 0, before.len()], "these numbers have pods yet");
    before.keys().for_each(|key| cluster.world.pods.get_mut(key).unwrap().is_ending = true);
    assert_eq!(kinds(&act(&mut cluster.world)), [0, before.len(), 0]);
    // A request of an operator that leads no more makes the old ones again, which wait at the gate.
    for (key, pod) in &before {
        cluster.world.pods.insert(key.clone(), Pod { is_gated: true, ..pod.clone() });
    }
    assert_eq!(kinds(&act(&mut cluster.world)), [0, 0, before.len()]);
    assert!(bind(&cluster.world).is_empty());
}

#[test]
fn another_image_goes_from_pod_to_pod_and_stops_at_one_that_does_not_start() {
    let mut cluster = cluster(1);
    while !act(&mut cluster.world).is_empty() {}
    let count = cluster.world.pods.len();
    ready(&mut cluster.world);
    image(&mut cluster, "nf:bad");
    cluster.run();
    let old: Vec<Key> = cluster.world.pods.keys().cloned().collect();
    let left = |cluster: &Cluster| old.iter().filter(|key| cluster.world.pods.contains_key(key)).count();
    assert_eq!(kinds(&act(&mut cluster.world)), [0, 0, 1]);
    while !act(&mut cluster.world).is_empty() {}
    assert_eq!((left(&cluster), cluster.world.pods.len()), (count - 1, count), "the new one is not ready");
    let rolled = |cluster: &Cluster| cluster.statuses().functions[0].1.conditions[0].clone();
    let said = rolled(&cluster);
    assert!(said.reason == "Rolling" && said.message.starts_with(&format!("{} pods are of", count - 1)), "{said:?}");
    assert!(said.message.contains("; the pod t/web-nat-") && said.message.contains("is waited for"), "{said:?}");
    // The next image replaces the one that does not start first.
    image(&mut cluster, "nf:2");
    cluster.run();
    for done in 1..=count {
        while !act(&mut cluster.world).is_empty() {}
        assert_eq!(left(&cluster), count - done);
        ready(&mut cluster.world);
    }
    assert!(bind(&cluster.world).is_empty() && cluster.world.pods.len() == count);
    assert_eq!(rolled(&cluster).reason, "Current");
    // Pods of another SLO of that name are none of this one's.
    cluster.world.slos.get_mut(&Key::new("t", "web")).unwrap().metadata.uid = Some("other".into());
    assert_eq!(kinds(&bind(&cluster.world)), [0, 0, 1]);
}

#[test]
fn an_nf_waits_for_its_own_pods_alone() {
    let mut cluster = cluster(3);
    cluster.tenant("u");
    image_in(&mut cluster, "u", "nf:1");
    cluster.ask_in("u", "web", reserved("web", 12e6), Match { port: Some("other".into()), ..Match::default() });
    cluster.run();
    while !act(&mut cluster.world).is_empty() {}
    ready(&mut cluster.world);
    let of = |cluster: &Cluster, namespace: &str| -> Vec<Key> {
        cluster.world.pods.keys().filter(|key| key.namespace == namespace).cloned().collect()
    };
    assert!(of(&cluster, "t").len() > 1 && of(&cluster, "u").len() > 1);
    ["t", "u"].iter().for_each(|namespace| image_in(&mut cluster, namespace, "nf:2"));
    cluster.run();
    // One of the other tenant's instances has no pod.
    let gone = of(&cluster, "u").remove(0);
    cluster.world.pods.remove(&gone);
    let decided = bind(&cluster.world);
    assert_eq!(kinds(&decided), [1, 0, 1]);
    for decision in &decided {
        let wanted = if matches!(decision, Decision::Create(_)) { "u" } else { "t" };
        assert_eq!(decision.pod().namespace, wanted, "{decision:?}");
    }
}

#[test]
fn a_pod_that_changes_touches_its_slo_and_an_nf_by_its_turnover_alone() {
    let mut cluster = cluster(2);
    cluster.promise("other", 1e6);
    cluster.run();
    while !act(&mut cluster.world).is_empty() {}
    ready(&mut cluster.world);
    let before = decide(&cluster.world).turnovers;
    assert!(before.is_empty(), "{before:?}");
    let key = cluster.world.pods.keys().find(|key| key.name.starts_with("web-")).unwrap().clone();
    cluster.world.pods.get_mut(&key).unwrap().is_ready = false;
    let turnovers = decide(&cluster.world).turnovers;
    let mut touched = Touched::default();
    touched.note_pod(&key, &cluster.world.pods[&key]);
    touched.note_turnovers(&before, &turnovers);
    let expected = Touched { slos: [Key::new("t", "web")].into(), functions: [Key::new("t", "nat")].into() };
    assert_eq!(touched, expected);
    // What is said of them is the same as where all are looked at, and of others nothing is said.
    let some = statuses_of(&touched, &cluster.world, &cluster.memo, &turnovers, &Time(Timestamp::UNIX_EPOCH));
    let mut all = cluster.statuses();
    assert_eq!((all.slos.len(), all.functions.len()), (2, 1));
    all.slos.retain(|(key, _)| key.name == "web");
    assert_eq!((some.slos, some.functions), (all.slos, all.functions));
    assert!(some.chains.is_empty() && some.profiles.is_empty() && some.classes.is_empty());
    let mut touched = Touched::default();
    touched.note_turnovers(&turnovers, &turnovers);
    assert!(touched.is_empty());
    touched.note_turnovers(&turnovers, &before);
    assert_eq!(touched.functions, expected.functions, "it is over");
}

#[test]
fn of_an_nf_with_an_image_others_make_no_pods() {
    let mut cluster = cluster(1);
    let key = Key::new("t", "own");
    let pod = Pod { slo: "web".into(), function: "nat".into(), is_gated: true, ..Pod::default() };
    cluster.world.pods.insert(key.clone(), pod);
    let decided = bind(&cluster.world);
    let note = decided.iter().find(|one| *one.pod() == key);
    assert!(matches!(note, Some(Decision::Note { why: Some(why), .. }) if why.contains("the operator makes its pods")), "{note:?}");
    // One that was bound before the NF had an image keeps its instance until it goes.
    let (node, number) = (Some(node_name(0)), cluster.instances("web")[0].1.number);
    let bound = cluster.world.pods.get_mut(&key).unwrap();
    (bound.is_gated, bound.node, bound.instance) = (false, node, Some(number));
    let instances = cluster.instances("web").len();
    assert_eq!(kinds(&bind(&cluster.world)), [instances - 1, 0, 0]);
}
