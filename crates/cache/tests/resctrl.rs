//! Cache classes on a stand-in with the kernel's refusals.
//!
//! Needs /dev/fuse, and root or fusermount3.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use sluice_cache::control::{BandwidthUnit, CacheControl, ClassSpec, Count, Granted};
use sluice_cache::resctrl::Resctrl;
use sluice_cache::{CacheError, Origin};
use sluice_resctrl_stand_in::{Bandwidth, Count as Raw, Machine, Monitoring, StandIn};

/// A mounted stand-in; None, and the test is skipped, where none can be mounted.
#[track_caller]
fn mount(machine: Machine) -> Option<StandIn> {
    StandIn::for_test(machine)
}

fn open(kernel: &StandIn) -> Resctrl {
    Resctrl::open(kernel.path(), Path::new("/nowhere")).unwrap()
}

fn text(kernel: &StandIn, file: &str) -> String {
    fs::read_to_string(kernel.path().join(file)).unwrap()
}

/// The masks of a group's line.
fn masks(kernel: &StandIn, group: &str) -> BTreeMap<u32, u32> {
    let text = fs::read_to_string(kernel.path().join(group).join("schemata")).unwrap();
    let found = sluice_cache::schemata::parse(&text).unwrap();
    found.get("L3").or_else(|| found.get("L3DATA")).unwrap().clone()
}

fn all(mask: u32) -> BTreeMap<u32, u32> {
    BTreeMap::from([(0, mask), (2, mask)])
}

/// An idle process, killed on drop.
struct Idle(Child);

impl Idle {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn groups(kernel: &StandIn) -> Vec<String> {
    let mut found: Vec<String> =
        fs::read_dir(kernel.path()).unwrap().flatten().map(|e| e.file_name().into_string().unwrap()).collect();
    found.retain(|name| kernel.path().join(name).join("tasks").exists());
    found.sort();
    found
}

#[test]
fn the_shape_is_read() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let cache = open(&kernel);
    let shape = cache.shape();
    assert_eq!((shape.ways, shape.min_ways, shape.io_mask, shape.sparse, shape.code_and_data), (20, 1, 0xc_0000, false, false));
    // The least of all resources, without the root's.
    assert_eq!(shape.classes, 7);
    assert_eq!(shape.domains.iter().map(|domain| domain.id).collect::<Vec<_>>(), [0, 2]);
    let bandwidth = shape.bandwidth.unwrap();
    assert_eq!((bandwidth.unit, bandwidth.least, bandwidth.step, bandwidth.most), (BandwidthUnit::Percent, 10, 10, 100));
    assert!(shape.occupancy && shape.traffic);
    assert_eq!(cache.origin(), Origin::Resctrl);
}

#[test]
fn a_class_has_its_ways_alone() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    let web = cache.make(&ClassSpec::new("web", 4)).unwrap();
    assert_eq!(web, Granted { name: "web".into(), masks: all(0xf), bandwidth: all(100), widened: false });
    let one = ClassSpec { domains: vec![2], bandwidth: Some(35), ..ClassSpec::new("one", 3) };
    let one = cache.make(&one).unwrap();
    // Rounded as by the hardware.
    assert_eq!((one.masks, one.bandwidth), (BTreeMap::from([(2, 0x70)]), BTreeMap::from([(2, 40)])));
    // In a domain without its own ways it shares the root class's.
    assert_eq!(masks(&kernel, "sluice-one"), BTreeMap::from([(0, 0xf_fff0), (2, 0x70)]));
    assert_eq!(masks(&kernel, ""), BTreeMap::from([(0, 0xf_fff0), (2, 0xf_ff80)]));
    assert!(text(&kernel, "sluice-one/schemata").contains("MB:0= 100;2=  40"));
    assert_eq!(cache.resize("web", 6).unwrap().masks, BTreeMap::from([(0, 0x3f), (2, 0x1f80)]));
    assert_eq!(cache.classes().len(), 2);
    cache.release("web").unwrap();
    assert_eq!(masks(&kernel, "")[&0], 0xf_ffff);
    assert!(matches!(cache.release("web"), Err(CacheError::Unknown { .. })));
    drop(cache);
    assert_eq!((groups(&kernel), masks(&kernel, "")), (Vec::new(), all(0xf_ffff)));
}

#[test]
fn classes_move_together_when_there_is_no_other_room() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    for name in ["a", "b", "c"] {
        cache.make(&ClassSpec::new(name, 4)).unwrap();
    }
    cache.release("b").unwrap();
    // Four ways are free between the others and six behind them.
    assert_eq!(cache.make(&ClassSpec::new("d", 9)).unwrap().masks, all(0x1_ff00));
    assert_eq!((masks(&kernel, "sluice-a"), masks(&kernel, "sluice-c"), masks(&kernel, "")), (all(0xf), all(0xf0), all(0xe_0000)));
    let error = cache.make(&ClassSpec::new("e", 2)).unwrap_err();
    assert!(matches!(error, CacheError::NoRoom { domain: 0, asked: 2, free: 1 }), "{error}");
    assert_eq!(groups(&kernel), ["sluice-a", "sluice-c", "sluice-d"]);
    assert!(matches!(cache.resize("a", 6), Err(CacheError::NoRoom { .. })));
    assert_eq!(masks(&kernel, "sluice-a"), all(0xf));
    // I/O ways go to classes that accept them, all but the one that the root class keeps.
    cache.make(&ClassSpec { io_ways: true, ..ClassSpec::new("io", 2) }).unwrap();
    assert_eq!((masks(&kernel, "sluice-io"), masks(&kernel, "")), (all(0x6_0000), all(0x8_0000)));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let Some(kernel) = mount(Machine { min_cbm_bits: 2, bandwidth: None, ..Machine::default() }) else { return };
    let mut cache = open(&kernel);
    let ways = |ways| ClassSpec::new("x", ways);
    assert!(matches!(cache.make(&ways(1)), Err(CacheError::Ways { asked: 1, least: 2, most: 18 })));
    assert!(matches!(cache.make(&ways(19)), Err(CacheError::Ways { .. })));
    assert!(matches!(cache.make(&ClassSpec { domains: vec![1], ..ways(2) }), Err(CacheError::Domain { domain: 1, .. })));
    assert!(matches!(cache.make(&ClassSpec { bandwidth: Some(50), ..ways(2) }), Err(CacheError::NoBandwidth)));
    for name in ["", "a/b", "info", ".x", "mon_groups", "a b", &"x".repeat(65)] {
        assert!(matches!(cache.make(&ClassSpec::new(name, 2)), Err(CacheError::Name { .. })), "{name}");
    }
    cache.make(&ways(2)).unwrap();
    assert!(matches!(cache.make(&ways(2)), Err(CacheError::Exists { .. })));
    assert!(matches!(cache.assign_tasks("y", &[1]), Err(CacheError::Unknown { .. })));
    assert!(matches!(cache.resize("x", 1), Err(CacheError::Ways { .. })));
    assert_eq!(text(&kernel, "info/last_cmd_status"), "ok\n");
}

#[test]
fn a_bandwidth_beyond_the_limits_is_refused() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    for asked in [5, 101] {
        let spec = ClassSpec { bandwidth: Some(asked), ..ClassSpec::new("x", 2) };
        assert!(matches!(cache.make(&spec), Err(CacheError::Bandwidth { least: 10, most: 100, .. })));
    }
    assert!(groups(&kernel).is_empty());
}

#[test]
fn a_bandwidth_that_the_kernel_refuses_undoes_the_class() {
    // The limits change after open has read them.
    let machine =
        Machine { bandwidth: Some(Bandwidth { num_closids: 8, min: 10, max: 60, granularity: 10 }), ..Machine::default() };
    let Some(kernel) = mount(machine) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 4)).unwrap();
    let error = cache.make(&ClassSpec { bandwidth: Some(90), ..ClassSpec::new("b", 4) }).unwrap_err();
    assert!(error.to_string().contains("MB value 90 out of range [10,60]"), "{error}");
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["sluice-a".to_string()], all(0xf_fff0)));
    assert_eq!(cache.classes().len(), 1);
}

#[test]
fn classes_run_out() {
    let Some(kernel) = mount(Machine { num_closids: 3, ..Machine::default() }) else { return };
    let mut cache = open(&kernel);
    assert_eq!(cache.shape().classes, 2);
    cache.make(&ClassSpec::new("a", 2)).unwrap();
    cache.make(&ClassSpec::new("b", 2)).unwrap();
    let error = cache.make(&ClassSpec::new("c", 2)).unwrap_err();
    assert!(matches!(error, CacheError::NoClass { classes: 2, .. }) && error.to_string().contains("CLOSID"), "{error}");
    assert_eq!(masks(&kernel, ""), all(0xf_fff0));
    cache.release("a").unwrap();
    cache.make(&ClassSpec::new("c", 2)).unwrap();
}

#[test]
fn code_and_data_have_one_mask_and_half_the_classes() {
    let Some(kernel) = mount(Machine { cdp: true, num_closids: 8, ..Machine::default() }) else { return };
    let mut cache = open(&kernel);
    assert!(cache.shape().code_and_data && cache.shape().classes == 3);
    cache.make(&ClassSpec::new("a", 5)).unwrap();
    let lines = text(&kernel, "sluice-a/schemata");
    assert!(lines.contains("L3DATA:0=1f;2=1f") && lines.contains("L3CODE:0=1f;2=1f"), "{lines}");
}

#[test]
fn monitoring_ids_run_out_and_come_back_late() {
    let monitoring = Monitoring { num_rmids: 3, events: vec!["llc_occupancy".into()], nodes: 1 };
    let Some(kernel) = mount(Machine { monitoring: Some(monitoring), ..Machine::default() }) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 2)).unwrap();
    cache.watch("a", "w", &[]).unwrap();
    assert!(matches!(cache.make(&ClassSpec::new("b", 2)), Err(CacheError::NoMonitor { .. })));
    assert!(matches!(cache.watch("a", "v", &[]), Err(CacheError::NoMonitor { .. })));
    cache.watch("a", "w", &[]).unwrap();
    kernel.kernel().set_dirty(true);
    cache.release("a").unwrap();
    cache.make(&ClassSpec::new("b", 2)).unwrap_err();
    let error = cache.make(&ClassSpec::new("b", 2)).unwrap_err();
    assert!(matches!(error, CacheError::Limbo { .. }) && error.to_string().contains("try again"), "{error}");
    // Lines of the old groups have left the cache.
    kernel.kernel().set_dirty(false);
    cache.make(&ClassSpec::new("b", 2)).unwrap();
}

#[test]
fn masks_that_the_kernel_refuses_leave_all_as_it_was() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 4)).unwrap();
    // Another program takes ways and makes its group exclusive.
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    fs::write(kernel.path().join("theirs/schemata"), "L3:0=ff00;2=ff00\n").unwrap();
    fs::write(kernel.path().join("schemata"), "L3:0=f00f0;2=f00f0\n").unwrap_err();
    assert!(text(&kernel, "info/last_cmd_status").contains("non-consecutive"));
    fs::write(kernel.path().join("schemata"), "L3:0=f0000;2=f0000\n").unwrap();
    fs::write(kernel.path().join("theirs/mode"), "exclusive\n").unwrap();
    // Ours go beside it.
    assert_eq!(cache.make(&ClassSpec::new("b", 4)).unwrap().masks, all(0xf0));
    let error = cache.make(&ClassSpec::new("c", 6)).unwrap_err();
    assert!(matches!(&error, CacheError::Foreign { group, .. } if group == "theirs"), "{error}");
    assert_eq!(groups(&kernel), ["sluice-a", "sluice-b", "theirs"]);
    assert_eq!(masks(&kernel, ""), all(0xf_0000));
}

#[test]
fn a_group_of_others_with_all_ways_is_named() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    let error = cache.make(&ClassSpec::new("a", 2)).unwrap_err();
    assert!(matches!(&error, CacheError::Foreign { group, .. } if group == "theirs"), "{error}");
    assert_eq!(groups(&kernel), ["theirs"]);
}

#[test]
fn the_kernels_words_are_in_the_message() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let cache = open(&kernel);
    // Commands that this crate never sends, to see the kernel's messages.
    for (text, words) in [
        ("L3:0=0\n", "out of range"),
        ("L3:0=100000\n", "out of range"),
        ("L3:0=5\n", "non-consecutive"),
        ("L3:0=xy\n", "Non-hex"),
        ("L3:0=f;0=f\n", "Duplicate domain 0"),
        ("L3:1=f\n", "ok"),
        ("L3\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L3:a=f\n", "non-numeric domain"),
        ("L3:0=f;;2=f\n", "Missing '='"),
        ("L3:;0=f\n", "Missing '='"),
        ("L2:0=f\n", "resource name 'L2'"),
        ("MB:0=5\n", "out of range"),
        ("MB:0=x\n", "Invalid MB value x"),
    ] {
        let error = fs::write(kernel.path().join("schemata"), text).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(22), "{text}");
        assert!(self::text(&kernel, "info/last_cmd_status").contains(words), "{text}");
    }
    // Without a newline it is no command at all.
    fs::write(kernel.path().join("schemata"), "L3:0=f").unwrap_err();
    assert_eq!(masks(&kernel, ""), all(0xf_ffff));
    fs::write(kernel.path().join("schemata"), "L3:0=f;\n").unwrap();
    assert_eq!(masks(&kernel, ""), BTreeMap::from([(0, 0xf), (2, 0xf_ffff)]), "a semicolon may end a line");
    drop(cache);
    let kernel = mount(Machine { min_cbm_bits: 3, ..Machine::default() }).unwrap();
    fs::write(kernel.path().join("schemata"), "L3:0=3\n").unwrap_err();
    assert!(self::text(&kernel, "info/last_cmd_status").contains("at least 3 bits"));
}

#[test]
fn masks_that_come_back_wider_are_reported_or_undone() {
    // The hardware joins the lowest two ways.
    let Some(kernel) = mount(Machine { widened: 0x3, ..Machine::default() }) else { return };
    // Where the root class has one of them, the other cannot be a class's alone.
    let error = open(&kernel).make(&ClassSpec::new("a", 1)).unwrap_err();
    assert!(matches!(error, CacheError::Widened { domain: 0, .. }) && error.to_string().contains("one class"), "{error}");
    assert_eq!((groups(&kernel), masks(&kernel, "")), (Vec::new(), all(0xf_ffff)));
    fs::write(kernel.path().join("schemata"), "L3:0=ff000;2=ff000\n").unwrap();
    let mut cache = open(&kernel);
    let a = cache.make(&ClassSpec::new("a", 1)).unwrap();
    assert_eq!((a.masks, a.widened), (all(0x3), true));
    let error = cache.make(&ClassSpec::new("b", 1)).unwrap_err();
    assert!(matches!(error, CacheError::Widened { got: 0x3, .. }), "{error}");
    assert_eq!((groups(&kernel), masks(&kernel, "sluice-a")), (vec!["sluice-a".to_string()], all(0x3)));
    // With both ways requested, nothing is wider.
    let a = cache.resize("a", 2).unwrap();
    assert_eq!((a.masks, a.widened), (all(0x3), false));
    assert_eq!(cache.make(&ClassSpec::new("b", 1)).unwrap().masks, all(0x4));
}

#[test]
fn sparse_masks_are_used_where_there_are_any() {
    let Some(kernel) = mount(Machine { sparse: Some(true), ..Machine::default() }) else { return };
    let mut cache = open(&kernel);
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    fs::write(kernel.path().join("theirs/schemata"), "L3:0=5555;2=5555\n").unwrap();
    assert_eq!(cache.make(&ClassSpec::new("a", 8)).unwrap().masks, all(0xaaaa));
    // Kernels before 6.7 do not report it.
    drop(cache);
    let kernel = mount(Machine { sparse: None, ..Machine::default() }).unwrap();
    assert!(!open(&kernel).shape().sparse);
}

#[test]
fn threads_are_moved_and_those_that_cannot_be_are_named() {
    let (one, two, three) = (Idle::start(), Idle::start(), Idle::start());
    let Some(kernel) = mount(Machine { untouchable: vec![three.pid() as i32], ..Machine::default() }) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 2)).unwrap();
    let gone = {
        let ended = Idle::start();
        ended.pid()
    };
    let moved = cache.assign_tasks("a", &[one.pid(), gone, two.pid()]).unwrap();
    assert_eq!((moved.tasks, moved.gone), (vec![one.pid(), two.pid()], vec![gone]));
    assert_eq!(cache.assign_tasks("", &[two.pid()]).unwrap().tasks, [two.pid()]);
    let error = cache.assign_tasks("a", &[two.pid(), three.pid(), one.pid()]).unwrap_err();
    assert!(error.to_string().contains("No permission to move task"), "{error}");
    let CacheError::Task { task, moved, .. } = error else { panic!("{error}") };
    assert_eq!((task, moved), (three.pid(), vec![two.pid()]));
    // More threads than fit in one write.
    let many: Vec<u32> = std::iter::repeat_n(one.pid(), 2_000).collect();
    assert_eq!(cache.assign_tasks("a", &many).unwrap().tasks.len(), 2_000);
    assert_eq!(cache.assign_tasks("a", &[one.pid()]).unwrap().tasks, [one.pid()]);
    cache.release("a").unwrap();
    assert!(text(&kernel, "tasks").lines().any(|line| line == one.pid().to_string()));
}

#[test]
fn processors_belong_to_one_class() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 2)).unwrap();
    cache.make(&ClassSpec::new("b", 2)).unwrap();
    cache.assign_cpus("a", &[3, 1, 2]).unwrap();
    cache.assign_cpus("b", &[3]).unwrap();
    assert_eq!((text(&kernel, "sluice-a/cpus_list"), text(&kernel, "sluice-b/cpus_list")), ("1-2\n".into(), "3\n".into()));
    let error = cache.assign_cpus("a", &[99]).unwrap_err();
    assert!(
        matches!(&error, CacheError::Cpus { cpus, .. } if cpus == "99") && error.to_string().contains("online CPUs"),
        "{error}"
    );
    // A processor without a kernel number gives another error number, but the same error here.
    let error = cache.assign_cpus("a", &[5_000]).unwrap_err();
    assert!(
        matches!(&error, CacheError::Cpus { cpus, .. } if cpus == "5000") && error.to_string().contains("Bad CPU list"),
        "{error}"
    );
    // Processors leave the root class only for another class.
    let error = cache.assign_cpus("", &[0]).unwrap_err();
    assert!(error.to_string().contains("default group"), "{error}");
    cache.assign_cpus("a", &[]).unwrap();
    cache.release("b").unwrap();
    assert_eq!(text(&kernel, "cpus_list"), "0-15\n");
}

#[test]
fn use_is_read_for_classes_and_watches() {
    let idle = Idle::start();
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 2)).unwrap();
    cache.assign_tasks("a", &[idle.pid()]).unwrap();
    cache.watch("a", "w", &[idle.pid()]).unwrap();
    assert_eq!(text(&kernel, "sluice-a/mon_groups/w/tasks").trim(), idle.pid().to_string());
    {
        let mut state = kernel.kernel();
        state.count("sluice-a/mon_data/mon_L3_00/llc_occupancy", Raw::Bytes(4_718_592));
        state.count("sluice-a/mon_data/mon_L3_02/llc_occupancy", Raw::Unavailable);
        state.count("sluice-a/mon_data/mon_L3_02/mbm_total_bytes", Raw::Unassigned);
        state.count("sluice-a/mon_groups/w/mon_data/mon_L3_02/mbm_local_bytes", Raw::Bytes(7));
    }
    let usage = cache.usage("a", None).unwrap();
    assert_eq!((usage[&0].occupancy, usage[&2].occupancy), (Count::Bytes(4_718_592), Count::Unavailable));
    assert_eq!((usage[&2].total, usage[&0].total.bytes()), (Count::Unassigned, Some(0)));
    assert_eq!(cache.usage("a", Some("w")).unwrap()[&2].local, Count::Bytes(7));
    assert!(matches!(cache.usage("a", Some("v")), Err(CacheError::Unknown { .. })));
    assert!(cache.usage("", None).unwrap().contains_key(&2));
    // A thread of another class cannot be counted here.
    cache.make(&ClassSpec::new("b", 2)).unwrap();
    let error = cache.watch("b", "x", &[idle.pid()]).unwrap_err();
    assert!(error.to_string().contains("different control group"), "{error}");
    assert!(!kernel.path().join("sluice-b/mon_groups/x").exists());
}

#[test]
fn a_host_may_have_only_a_part() {
    let Some(kernel) = mount(Machine { cat: false, bandwidth: None, ..Machine::default() }) else { return };
    let mut cache = open(&kernel);
    assert_eq!((cache.shape().ways, cache.shape().occupancy, cache.shape().domains.len()), (0, true, 2));
    assert!(matches!(cache.make(&ClassSpec::new("a", 2)), Err(CacheError::NoWays { .. })));
    cache.watch("", "w", &[std::process::id()]).unwrap();
    assert!(cache.usage("", Some("w")).is_ok());
    cache.watch("", "w", &[std::process::id()]).unwrap();
    drop(cache);
    assert!(!kernel.path().join("mon_groups/w").exists(), "nothing is left");
    let kernel = mount(Machine { monitoring: None, ..Machine::default() }).unwrap();
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 2)).unwrap();
    assert!(matches!(cache.usage("a", None), Err(CacheError::NoMonitoring)));
    assert!(matches!(cache.watch("a", "w", &[]), Err(CacheError::NoMonitoring)));
    let events = vec!["llc_occupancy".into()];
    let kernel = mount(Machine { monitoring: Some(Monitoring { num_rmids: 8, events, nodes: 2 }), ..Machine::default() }).unwrap();
    let root = open(&kernel);
    assert_eq!(root.usage("", None).unwrap()[&0].total, Count::Absent);
}

#[test]
fn what_is_not_mounted_is_said_with_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let error = Resctrl::open(folder.path(), Path::new("/")).unwrap_err();
    assert!(matches!(error, CacheError::NotMounted { .. }) && error.to_string().contains("mount -t resctrl"), "{error}");
}

#[test]
fn groups_of_a_manager_that_was_killed_are_removed() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut before = open(&kernel);
    before.make(&ClassSpec::new("a", 4)).unwrap();
    before.make(&ClassSpec::new("b", 4)).unwrap();
    std::mem::forget(before);
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    fs::write(kernel.path().join("theirs/schemata"), "L3:0=c0000;2=c0000\n").unwrap();
    let mut cache = open(&kernel);
    assert_eq!(cache.sweep().unwrap(), ["sluice-a", "sluice-b"]);
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["theirs".to_string()], all(0xf_ffff)));
    assert_eq!(cache.make(&ClassSpec::new("a", 18)).err().map(|e| e.to_string().contains("theirs")), Some(true));
    assert_eq!(cache.make(&ClassSpec::new("a", 17)).unwrap().masks, all(0x1_ffff));
}

/// A group of another program with exclusive ways 8 to 15; the root class has to leave them first.
fn theirs_alone(kernel: &StandIn) {
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    fs::write(kernel.path().join("theirs/schemata"), "L3:0=ff00;2=ff00\n").unwrap();
    fs::write(kernel.path().join("schemata"), "L3:0=f0000;2=f0000\n").unwrap();
    fs::write(kernel.path().join("theirs/mode"), "exclusive\n").unwrap();
}

#[test]
fn classes_are_released_beside_a_group_that_has_all_ways() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 4)).unwrap();
    cache.make(&ClassSpec::new("b", 4)).unwrap();
    // A new group has all ways, and shares them.
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    cache.release("b").unwrap();
    assert_eq!((masks(&kernel, "sluice-a"), masks(&kernel, "")), (all(0xf), all(0xf_fff0)));
    assert!(matches!(cache.make(&ClassSpec::new("b", 4)), Err(CacheError::Foreign { .. })));
    assert_eq!((masks(&kernel, "sluice-a"), masks(&kernel, "")), (all(0xf), all(0xf_fff0)));
    cache.release("a").unwrap();
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["theirs".to_string()], all(0xf_ffff)));
    assert!(cache.classes().is_empty());
}

#[test]
fn a_class_of_one_cache_is_independent_of_the_other_cache() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    fs::write(kernel.path().join("theirs/schemata"), "L3:2=f0000\n").unwrap();
    let spec = ClassSpec { domains: vec![2], ..ClassSpec::new("a", 4) };
    assert_eq!(cache.make(&spec).unwrap().masks, BTreeMap::from([(2, 0xf)]));
    assert_eq!(masks(&kernel, "")[&0], 0xf_ffff, "they share all of it, as before");
}

#[test]
fn the_root_class_is_widened_as_far_as_a_group_that_shares_with_nobody_allows() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    cache.make(&ClassSpec::new("a", 4)).unwrap();
    theirs_alone(&kernel);
    cache.make(&ClassSpec::new("b", 4)).unwrap();
    cache.release("a").unwrap();
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["sluice-b".into(), "theirs".to_string()], all(0xf)));
    drop(cache);
    // The longer one of the two runs that are left.
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["theirs".to_string()], all(0xff)));
}

#[test]
fn what_was_left_is_swept_beside_a_group_that_shares_with_nobody() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut before = open(&kernel);
    before.make(&ClassSpec::new("a", 4)).unwrap();
    theirs_alone(&kernel);
    std::mem::forget(before);
    let mut cache = open(&kernel);
    assert_eq!(cache.sweep().unwrap(), ["sluice-a"]);
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["theirs".to_string()], all(0xff)));
    assert_eq!(cache.make(&ClassSpec::new("a", 4)).unwrap().masks, all(0xf));
}

#[test]
fn a_tool_takes_over_the_class_that_a_run_before_it_has_left() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut daemon = open(&kernel);
    daemon.make(&ClassSpec::new("a", 4)).unwrap();
    // As a killed tool leaves it.
    fs::create_dir(kernel.path().join("sluice-profile")).unwrap();
    fs::write(kernel.path().join("sluice-profile/schemata"), "L3:0=ff0;2=ff0\n").unwrap();
    fs::write(kernel.path().join("schemata"), "L3:0=ff000;2=ff000\n").unwrap();
    let mut tool = open(&kernel);
    assert!(matches!(open(&kernel).take_over("a/b"), Err(CacheError::Name { .. })));
    assert!(tool.take_over("profile").unwrap());
    // The daemon's class stays, and keeps its ways alone.
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["sluice-a".to_string()], all(0xf_fff0)));
    let error = open(&kernel).take_over("profile").unwrap_err();
    assert!(matches!(error, CacheError::Locked { .. }), "{error}");
    assert_eq!(tool.make(&ClassSpec::new("profile", 8)).unwrap().masks, all(0xff0));
    assert!(!tool.take_over("profile").unwrap(), "its own is not left");
    drop(tool);
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["sluice-a".to_string()], all(0xf_fff0)));
    assert!(!open(&kernel).take_over("profile").unwrap());
}

#[test]
fn a_starting_daemon_leaves_the_class_of_a_tool_that_runs() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut tool = open(&kernel);
    tool.take_over("profile").unwrap();
    tool.make(&ClassSpec::new("profile", 8)).unwrap();
    fs::create_dir(kernel.path().join("sluice-left")).unwrap();
    fs::write(kernel.path().join("sluice-left/schemata"), "L3:0=f00;2=f00\n").unwrap();
    let mut daemon = open(&kernel);
    assert_eq!(daemon.sweep().unwrap(), ["sluice-left"]);
    assert_eq!((groups(&kernel), masks(&kernel, "")), (vec!["sluice-profile".to_string()], all(0xf_ff00)));
    tool.verify("profile").unwrap();
    fs::remove_dir(kernel.path().join("sluice-profile")).unwrap();
    assert!(matches!(tool.verify("profile"), Err(CacheError::Taken { .. })), "who has lost its class is told");
    assert!(matches!(tool.verify("other"), Err(CacheError::Unknown { .. })));
    drop(tool);
    // A killed process holds no lock.
    fs::create_dir(kernel.path().join("sluice-profile")).unwrap();
    assert_eq!(open(&kernel).sweep().unwrap(), ["sluice-profile"]);
    assert_eq!((groups(&kernel), masks(&kernel, "")), (Vec::new(), all(0xf_ffff)));
    // A completed sweep keeps no tool out.
    assert!(!open(&kernel).take_over("profile").unwrap());
}

#[test]
fn one_manager_at_a_time_has_classes() {
    for cdp in [false, true] {
        let Some(kernel) = mount(Machine { cdp, ..Machine::default() }) else { return };
        let mut first = open(&kernel);
        first.claim().unwrap();
        first.claim().unwrap();
        first.make(&ClassSpec::new("a", 4)).unwrap();
        let mut second = open(&kernel);
        let error = second.claim().unwrap_err();
        assert!(matches!(error, CacheError::Claimed { .. }) && error.to_string().contains("another sluiced"), "{error}");
        assert_eq!(groups(&kernel), ["sluice-a"]);
        // The locks of tools and managers are independent.
        assert!(!second.take_over("profile").unwrap());
        drop(second);
        first.sweep().unwrap();
        first.verify("a").unwrap();
        drop(first);
        let mut third = open(&kernel);
        third.claim().unwrap();
        assert_eq!((third.sweep().unwrap().len(), groups(&kernel).len()), (0, 0));
        // A killed manager holds no lock, and its groups are swept.
        third.make(&ClassSpec::new("a", 4)).unwrap();
        fs::create_dir(kernel.path().join("sluice-left")).unwrap();
        drop(third);
        let mut next = open(&kernel);
        next.claim().unwrap();
        assert_eq!(next.sweep().unwrap(), ["sluice-left"]);
    }
    // Without ways there is nothing to claim.
    let Some(kernel) = mount(Machine { cat: false, ..Machine::default() }) else { return };
    open(&kernel).claim().unwrap();
}

#[test]
fn ways_come_back_in_any_order_of_ends() {
    let Some(kernel) = mount(Machine::default()) else { return };
    for tool_first in [true, false] {
        let mut tool = open(&kernel);
        tool.take_over("profile").unwrap();
        tool.make(&ClassSpec::new("profile", 8)).unwrap();
        let mut daemon = open(&kernel);
        assert_eq!(daemon.make(&ClassSpec::new("a", 4)).unwrap().masks, all(0xf00));
        assert_eq!(masks(&kernel, ""), all(0xf_f000));
        if tool_first {
            drop(tool);
            drop(daemon);
        } else {
            drop(daemon);
            assert_eq!(masks(&kernel, ""), all(0xf_ff00));
            drop(tool);
        }
        assert_eq!((groups(&kernel), masks(&kernel, "")), (Vec::new(), all(0xf_ffff)), "{tool_first}");
    }
}

#[test]
fn the_doctor_tells_classes_that_are_left() {
    use sluice_cache::doctor::{Level, examine};
    let Some(kernel) = mount(Machine::default()) else { return };
    let system = tempfile::tempdir().unwrap();
    let left = || examine(system.path(), kernel.path()).into_iter().find(|finding| finding.subject == "classes that are left");
    assert_eq!(left(), None);
    fs::create_dir(kernel.path().join("sluice-profile")).unwrap();
    let found = left().unwrap();
    assert!(found.level == Level::Wrong && found.what.contains("sluice-profile"), "{found:?}");
    // A running daemon may have made it.
    let daemon = system.path().join("proc/7");
    fs::create_dir_all(&daemon).unwrap();
    fs::write(daemon.join("comm"), "sluiced\n").unwrap();
    assert_eq!(left(), None);
}

#[test]
fn another_program_may_hold_the_lock() {
    let Some(kernel) = mount(Machine::default()) else { return };
    let mut cache = open(&kernel);
    let other = fs::File::open(kernel.path()).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    assert!(matches!(cache.make(&ClassSpec::new("a", 2)), Err(CacheError::Locked { .. })));
    flock(&other, FlockOperation::Unlock).unwrap();
    cache.make(&ClassSpec::new("a", 2)).unwrap();
}

#[test]
fn the_doctor_finds_what_there_is_and_tries_it() {
    use sluice_cache::doctor::{Level, examine, try_out};
    let Some(kernel) = mount(Machine { cdp: true, ..Machine::default() }) else { return };
    fs::create_dir(kernel.path().join("theirs")).unwrap();
    fs::write(kernel.path().join("theirs/schemata"), "L3DATA:0=f;2=f\nL3CODE:0=f;2=f\n").unwrap();
    let found = examine(Path::new("/nowhere"), kernel.path());
    let of = |subject: &str| found.iter().find(|finding| finding.subject == subject).unwrap();
    assert!(of("CAT").what.starts_with("20 ways in masks without gaps, 1 at least, 7 classes beside the root's; caches 0, 2"));
    assert_eq!((of("CDP").level, of("MBA").level, of("monitoring").level), (Level::Wrong, Level::Good, Level::Good));
    assert!(of("groups").what.contains("theirs"));
    assert_eq!(of("cache classes").level, Level::Good);
    let tried = try_out(&mut open(&kernel));
    assert!(tried.len() == 4 && tried.iter().all(|finding| finding.level == Level::Good), "{tried:?}");
    assert_eq!(groups(&kernel), ["theirs"]);
}
