//! What is said of profiles and classes.

use sluice_cluster_types::{Has, NfProfileStatus, ServerClassStatus};

use super::*;

fn profile_status(cluster: &Cluster, name: &str) -> NfProfileStatus {
    let all = cluster.statuses().profiles;
    all.into_iter().find(|(key, _)| *key == Key::new("t", name)).unwrap().1
}

fn class_status(cluster: &Cluster) -> ServerClassStatus {
    let mut all = cluster.statuses().classes;
    assert_eq!((all.len(), all[0].0.as_str()), (1, "a"));
    all.remove(0).1
}

#[test]
fn a_profile_says_how_many_slos_are_planned_by_it_and_why_none_is() {
    let mut cluster = Cluster::new(1);
    let said = |cluster: &Cluster, name: &str| {
        let status = profile_status(cluster, name);
        let one = &status.conditions[0];
        (one.status == "True", one.reason.clone(), status.slos, one.message.clone())
    };
    let (is_good, reason, slos, message) = said(&cluster, "nat");
    assert_eq!((is_good, reason.as_str(), slos), (true, "Unused", 0));
    assert!(message.contains("classes of its processor: a"), "{message}");
    for name in ["web", "db"] {
        cluster.promise(name, 1e6);
    }
    cluster.run();
    let (is_good, reason, slos, _) = said(&cluster, "nat");
    assert_eq!((is_good, reason.as_str(), slos), (true, "Used", 2));
    // What is said already is not said again.
    let status = profile_status(&cluster, "nat");
    cluster.world.profiles.get_mut(&Key::new("t", "nat")).unwrap().status = Some(status);
    assert!(cluster.statuses().profiles.is_empty());
    let add = |cluster: &mut Cluster, name: &str, seconds: i64, change: fn(&mut sluice_slo::profile::Profile)| {
        let mut one = NfProfile::new(name, NfProfileSpec { profile: profile() });
        one.metadata.creation_timestamp = Some(Time(Timestamp::from_second(seconds).unwrap()));
        change(&mut one.spec.profile);
        cluster.world.profiles.insert(Key::new("t", name), one);
        cluster.world.epoch += 1;
        cluster.run();
    };
    add(&mut cluster, "newer", 1, |_| {});
    assert_eq!((said(&cluster, "newer").2, said(&cluster, "nat").1.as_str()), (2, "Older"));
    add(&mut cluster, "bad", 2, |profile| profile.form = 0);
    let (is_good, reason, slos, message) = said(&cluster, "bad");
    assert_eq!((is_good, reason.as_str(), slos), (false, "BadProfile", 0));
    assert!(message.ends_with("; profile again"), "{message}");
    add(&mut cluster, "foreign", 3, |profile| profile.key.cpu = "B".into());
    let (is_good, reason, _, message) = said(&cluster, "foreign");
    assert_eq!((is_good, reason.as_str()), (false, "NoServer"));
    assert!(message.contains("the processor \"B\"") && message.contains("profile it on one of their nodes"), "{message}");
}

#[test]
fn a_class_says_which_node_has_less_than_it_says() {
    let mut cluster = Cluster::new(3);
    let status = class_status(&cluster);
    assert_eq!((status.nodes, status.fitting, status.conditions[0].reason.as_str()), (3, 3, "Fits"));
    cluster.world.classes.get_mut("a").unwrap().status = Some(status);
    assert!(cluster.statuses().classes.is_empty());
    let shape = shape();
    let all = Has { cpu: shape.cpu.clone(), cores: shape.cores, ways: shape.llc_ways, memory_mib: shape.memory_mib };
    let less = [
        (Has { cores: shape.cores - 1, ..all.clone() }, "cores in `cores` of [promises]"),
        (Has { cpu: "B".into(), ..all.clone() }, "the processor \"B\" in place of"),
        (Has { ways: 1, ..all.clone() }, "1 cache ways for NFs in place of"),
        (Has { memory_mib: 1, ..all.clone() }, "1 MiB of memory in place of"),
    ];
    for (has, word) in less {
        cluster.world.plans.get_mut("n001").unwrap().status.as_mut().unwrap().has = Some(has);
        let status = class_status(&cluster);
        let one = &status.conditions[0];
        assert_eq!((status.nodes, status.fitting, one.reason.as_str(), one.status.as_str()), (3, 2, "NodeDiffers", "False"));
        assert!(one.message.contains("as n001, which has") && one.message.contains(word), "{}", one.message);
    }
    cluster.world.plans.get_mut("n001").unwrap().status.as_mut().unwrap().has = Some(all);
    assert!(cluster.statuses().classes.is_empty(), "it has what it says");
    // Numbers by which what runs there would not fit.
    cluster.promise("web", 1e6);
    cluster.run();
    cluster.world.classes.get_mut("a").unwrap().spec.cpu = "B".into();
    cluster.world.plans.values_mut().for_each(|plan| plan.status.as_mut().unwrap().has = None);
    cluster.run();
    let status = class_status(&cluster);
    assert_eq!((status.fitting, status.conditions[0].reason.as_str()), (2, "NodeKeepsOther"));
    cluster.world.nodes.clear();
    let status = class_status(&cluster);
    assert_eq!((status.nodes, status.conditions[0].reason.as_str()), (0, "Unused"));
}
