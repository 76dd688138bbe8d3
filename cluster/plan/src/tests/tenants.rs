//! Pods of tenants, and packets that two of them are to have.

use super::*;
use crate::Pod;
use crate::pods::{Decision, bind};

fn from(port: &str, vlan: Option<u16>, dst: Option<&str>) -> Match {
    Match { port: Some(port.into()), vlan, dst: dst.map(str::to_owned), ..Match::default() }
}

impl Cluster {
    fn why(&self, namespace: &str, name: &str) -> Option<(&'static str, String)> {
        self.memo.why.get(&Key::new(namespace, name)).map(|why| (why.reason, why.message.clone()))
    }
}

#[test]
fn of_two_tenants_with_the_same_packets_the_younger_is_refused() {
    let mut cluster = Cluster::new(3);
    cluster.tenant("a");
    cluster.ask_in("t", "web", reserved("web", 1e6), from("in", None, Some("10.0.0.0/8")));
    cluster.run();
    cluster.ask_in("a", "web", reserved("web", 1e6), from("in", None, Some("10.1.0.0/16")));
    cluster.run();
    let (reason, message) = cluster.why("a", "web").unwrap();
    assert!(reason == "IngressTaken" && message.contains("the SLO t/web") && message.contains("VLAN"), "{message}");
    assert!(cluster.is_kept("web"));
    let chains = cluster.statuses().chains;
    let of = |namespace: &str| &chains.iter().find(|(key, _)| key.namespace == namespace).unwrap().1.conditions[0];
    assert_eq!((of("a").reason.as_str(), of("t").reason.as_str()), ("IngressTaken", "Promised"));
    // Another operator, which knows neither, decides the same; and then they are apart.
    cluster.succeed();
    assert_eq!(cluster.round(), 0);
    assert!(cluster.why("a", "web").is_some() && cluster.why("t", "web").is_none());
    cluster.ask_in("a", "web", reserved("web", 1e6), from("in", None, Some("192.0.2.0/24")));
    cluster.run();
    assert_eq!(cluster.why("a", "web"), None);
}

#[test]
fn a_change_of_a_chain_takes_no_packets_from_others() {
    let mut cluster = Cluster::new(3);
    cluster.tenant("a");
    for (namespace, vlan) in [("a", 1), ("t", 2)] {
        cluster.ask_in(namespace, "web", reserved("web", 1e6), from("in", Some(vlan), None));
    }
    cluster.run();
    assert!(cluster.memo.why.is_empty());
    // The first by age and name, but the packets are in another's plan.
    cluster.ask_in("a", "web", reserved("web", 1e6), from("in", None, None));
    cluster.run();
    assert_eq!(cluster.why("a", "web").unwrap().0, "IngressTaken");
    assert!(cluster.why("t", "web").is_none() && cluster.is_kept("web"));
    let chains = cluster.world.plans.values().flat_map(|plan| &plan.spec.chains).filter(|chain| chain.namespace == "a");
    assert!(
        chains.clone().count() == 1 && chains.clone().all(|chain| chain.chain.ingress[0].vlan == Some(1)),
        "it stays as it was"
    );
}

#[test]
fn packets_that_differ_in_anything_are_not_the_same() {
    let ip = |protocol: Option<&str>, dst_port: Option<&str>| Match {
        protocol: protocol.map(str::to_owned),
        dst_port: dst_port.map(str::to_owned),
        ..from("in", None, None)
    };
    let pairs = [
        (from("in", None, None), from("out", None, None), false),
        (from("in", Some(1), None), from("in", Some(2), None), false),
        (from("in", Some(1), None), Match { port: None, vlan: Some(1), ..Match::default() }, true),
        (from("in", Some(1), None), Match { dscp: Some(3), ..Match::default() }, true),
        (from("in", None, Some("10.0.0.0/8")), from("in", None, Some("11.0.0.0/8")), false),
        (from("in", None, Some("10.0.0.0/8")), from("in", None, Some("2001:db8::/32")), false),
        (from("in", None, Some("2001:db8::/32")), from("in", None, Some("2001:db8::1")), true),
        (from("in", None, Some("0.0.0.0/0")), from("in", None, Some("11.0.0.0/8")), true),
        (ip(Some("tcp"), None), ip(Some("udp"), None), false),
        (ip(Some("tcp"), None), ip(Some("6"), Some("80")), true),
        (ip(Some("tcp"), Some("80-90")), ip(None, Some("90-99")), true),
        (ip(Some("tcp"), Some("80-90")), ip(None, Some("91-99")), false),
        (ip(Some("icmp"), None), ip(None, Some("91-99")), false),
        (ip(Some("non-ip"), None), from("in", None, Some("10.0.0.0/8")), false),
        (ip(Some("non-ip"), None), ip(Some("ip"), None), false),
        (ip(Some("icmpv6"), None), from("in", None, Some("10.0.0.0/8")), false),
        (ip(Some("ip"), None), from("in", Some(7), None), true),
    ];
    for (first, second, is_same) in pairs {
        for (one, other) in [(&first, &second), (&second, &first)] {
            let mut cluster = Cluster::new(2);
            cluster.tenant("a");
            cluster.ask_in("a", "web", reserved("web", 1e6), one.clone());
            cluster.ask_in("t", "web", reserved("web", 1e6), other.clone());
            cluster.round();
            assert_eq!(cluster.why("t", "web").is_some_and(|(reason, _)| reason == "IngressTaken"), is_same, "{one:?} {other:?}");
            assert_eq!(cluster.why("a", "web"), None);
        }
    }
}

#[test]
fn on_other_processors_the_same_packets_are_no_matter() {
    let mut cluster = Cluster::new(1);
    cluster.tenant("a");
    let other = cluster.world.profiles.get_mut(&Key::new("a", "nat")).unwrap();
    other.spec.profile.key.cpu = "B".into();
    cluster.ask_in("a", "web", reserved("web", 1e6), from("in", None, None));
    cluster.ask_in("t", "web", reserved("web", 1e6), from("in", None, None));
    cluster.run();
    assert!(cluster.is_kept("web"));
    assert_eq!(cluster.why("a", "web").unwrap().0, "NoServer");
}

#[test]
fn pods_are_bound_to_what_is_written_and_to_nothing_else() {
    let mut cluster = Cluster::new(2);
    let pod = || Pod { slo: "web".into(), function: "nat".into(), is_gated: true, ..Pod::default() };
    for name in ["p0", "p1", "p2"] {
        cluster.world.pods.insert(Key::new("t", name), pod());
    }
    assert!(bind(&cluster.world).iter().all(|decision| matches!(decision, Decision::Note { .. })));
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
    // Another one waits, and gets the number when the first has gone.
    let (old, next) = (Key::new("t", "p0"), Key::new("t", "p1"));
    let waits = Pod { slo: "web".into(), function: "nat".into(), is_gated: true, ..Pod::default() };
    cluster.world.pods.insert(next.clone(), waits);
    assert_eq!(Some(cluster.instances("web")[0].1.number), number);
    assert_eq!(bind(&cluster.world), [Decision::Evict { pod: old.clone() }]);
    cluster.world.pods.get_mut(&old).unwrap().is_ending = true;
    assert!(matches!(&bind(&cluster.world)[..], [Decision::Bind { pod, .. }] if *pod == next));
    cluster.world.pods.remove(&next);
    // One that was never at the gate is left alone, whatever its labels say.
    let old = cluster.world.pods.get_mut(&old).unwrap();
    (old.is_ending, old.node) = (false, None);
    assert!(bind(&cluster.world).is_empty());
}

#[test]
fn a_pod_waits_while_the_node_of_its_instance_is_cordoned() {
    let mut cluster = Cluster::new(1);
    cluster.promise("web", 1e6);
    cluster.run();
    cluster.node(0).is_cordoned = true;
    cluster.run();
    let (reason, why) = cluster.why("t", "web").unwrap();
    assert!(reason == "NoServer" && why.ends_with("; node n000 is cordoned"), "{reason}: {why}");
    let key = Key::new("t", "p0");
    let pod = Pod { slo: "web".into(), function: "nat".into(), is_gated: true, ..Pod::default() };
    cluster.world.pods.insert(key.clone(), pod);
    let decisions = bind(&cluster.world);
    let [Decision::Note { pod, why: Some(why) }] = &decisions[..] else { panic!("{decisions:?}") };
    assert!(*pod == key && why.contains("on node n000, which is cordoned: kubectl uncordon n000"), "{why}");
    cluster.world.pods.get_mut(&key).unwrap().refused = Some(why.clone());
    assert!(bind(&cluster.world).is_empty(), "said once");
    cluster.node(0).is_cordoned = false;
    assert_eq!(bind(&cluster.world), [Decision::Bind { pod: key, node: node_name(0), number: 0 }]);
}

#[test]
fn a_pod_of_a_function_that_the_chain_does_not_have_is_not_bound_and_says_why() {
    let mut cluster = Cluster::new(1);
    cluster.promise("web", 1e6);
    cluster.run();
    let (good, bad, lost) = (Key::new("t", "good"), Key::new("t", "bad"), Key::new("t", "lost"));
    let pod = |slo: &str, function: &str| Pod { slo: slo.into(), function: function.into(), is_gated: true, ..Pod::default() };
    cluster.world.pods.insert(bad.clone(), pod("web", "nta"));
    cluster.world.pods.insert(lost.clone(), pod("bew", "nat"));
    let notes: Vec<(Key, String)> = bind(&cluster.world)
        .into_iter()
        .map(|decision| match decision {
            Decision::Note { pod, why } => (pod, why.unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(notes.iter().map(|(key, _)| key).collect::<Vec<_>>(), [&bad, &lost]);
    assert!(notes[0].1.contains("has no function \"nta\", only nat: correct the label sluice.dev/function"), "{}", notes[0].1);
    assert!(notes[1].1.contains("there is no SLO \"bew\" in t"), "{}", notes[1].1);
    // Said once; and the place is another's.
    for (key, why) in notes {
        cluster.world.pods.get_mut(&key).unwrap().refused = Some(why);
    }
    assert!(bind(&cluster.world).is_empty());
    cluster.world.pods.insert(good.clone(), pod("web", "nat"));
    assert!(matches!(&bind(&cluster.world)[..], [Decision::Bind { pod, .. }] if *pod == good));
    // The label is corrected, and then there is nothing to say any more.
    cluster.world.pods.remove(&good);
    cluster.world.pods.get_mut(&bad).unwrap().function = "nat".into();
    assert!(matches!(&bind(&cluster.world)[..], [Decision::Bind { pod, .. }] if *pod == bad));
    let bound = cluster.world.pods.get_mut(&bad).unwrap();
    (bound.is_gated, bound.instance, bound.node) = (false, Some(0), Some(node_name(0)));
    assert_eq!(bind(&cluster.world), [Decision::Note { pod: bad, why: None }]);
}

#[test]
fn of_thousands_that_differ_by_prefix_few_are_compared() {
    use crate::ingress::COMPARED;
    let mut cluster = Cluster::new(1);
    cluster.world.nodes.clear();
    let prefix = |i: usize| format!("10.{}.{}.0/24", i / 256, i % 256);
    (0..5).for_each(|i| cluster.tenant(&format!("tenant{i}")));
    for i in 0..5000 {
        let mut from = from("in", None, (i % 2 == 0).then(|| prefix(i)).as_deref());
        // Half of them differ by their source, and by their destination from the others.
        if i % 2 == 1 {
            (from.src, from.dst) = (Some(prefix(i)), Some("192.0.2.0/24".into()));
        }
        let name = format!("s{i}");
        cluster.ask_in(&format!("tenant{}", i % 5), &name, reserved(&name, 1e6), from);
    }
    COMPARED.set(0);
    cluster.round();
    assert!(COMPARED.get() <= 5000, "{} comparisons", COMPARED.get());
    let taken = |cluster: &Cluster| cluster.memo.why.values().filter(|why| why.reason == "IngressTaken").count();
    assert_eq!(taken(&cluster), 0);
    // Shorter and longer ones are found all the same.
    cluster.tenant("other");
    for (name, dst) in [("a", "10.0.0.0/8"), ("b", "10.0.2.128/25"), ("c", "0.0.0.0/0"), ("d", "10.0.4.0/24")] {
        cluster.ask_in("other", name, reserved(name, 1e6), from("in", None, Some(dst)));
        cluster.world.slos.get_mut(&Key::new("other", name)).unwrap().metadata.creation_timestamp =
            Some(Time(Timestamp::from_second(1).unwrap()));
    }
    cluster.round();
    assert_eq!(taken(&cluster), 4, "{:?}", cluster.memo.why.iter().filter(|(key, _)| key.namespace == "other").collect::<Vec<_>>());
}
