use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::model::CgroupModel;
use super::*;
use crate::class::{self, Class};
use crate::skip::skip;

const BOTH: [Version; 2] = [Version::V1, Version::V2];

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

fn find(model: &Arc<CgroupModel>) -> Result<Hierarchy, CgroupError> {
    Hierarchy::find_on(model.clone(), model.root.path())
}

#[test]
fn shares_become_weights_that_keep_their_ratio() {
    assert_eq!([0.01, 0.25, 1.0].map(|share| Version::V1.weight(share)), [1024, 25_600, 102_400]);
    assert_eq!([0.01, 0.25, 1.0].map(|share| Version::V2.weight(share)), [100, 2500, 10_000]);
    // NFVnice's costs of 120, 270 and 550 cycles, to a thousandth of the smallest share.
    let shares = [120.0, 270.0, 550.0].map(|cost| cost / 940.0);
    for version in BOTH {
        let weights = shares.map(|share| version.weight(share) as f64);
        let total: f64 = weights.iter().sum();
        for (weight, share) in weights.iter().zip(shares) {
            assert!((weight / total - share).abs() < share / 1000.0, "{version}: {weights:?}");
        }
    }
    // Two shares of about 1 % that differ by a hundredth differ as weights.
    assert_eq!(Version::V1.weight(0.0101), 1034);
    assert_eq!(Version::V2.weight(0.0101), 101);
}

#[test]
fn no_share_makes_a_weight_that_the_kernel_refuses() {
    for version in BOTH {
        let (least, most) = version.range();
        for share in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY, 1e-9] {
            assert_eq!(version.weight(share), least, "{share}");
        }
        for share in [1e9, f64::INFINITY] {
            assert_eq!(version.weight(share), most, "{share}");
        }
        assert_eq!(
            [0, 1, 3, 1_000_000].map(|nfs| version.weight_of_all(nfs)),
            match version {
                Version::V1 => [2, 1024, 3072, 262_144],
                Version::V2 => [1, 100, 300, 10_000],
            }
        );
    }
}

#[test]
fn any_name_is_one_path_component_and_no_two_are_the_same() {
    for (name, text) in [
        ("ids.0", "ids.0"),
        ("sluice-42", "sluice-42"),
        ("", "%"),
        (".", "%2E"),
        ("..", "%2E."),
        ("a/../b", "a%2F..%2Fb"),
        ("a_b", "a_b"),
        ("a b", "a%20b"),
        ("a%20b", "a%2520b"),
        ("ü\n", "%C3%BC%0A"),
        ("\0", "%00"),
    ] {
        assert_eq!(component(name), text);
    }
    let model = CgroupModel::new(Version::V1, "/");
    let group = find(&model).unwrap().create("../x", &[]).unwrap();
    assert_eq!(group.path(), model.folder("%2E.%2Fx"));
    let nf = group.add_nf("../../cpu.shares", 1).unwrap();
    assert_eq!(nf.path(), group.path().join("core-1/nf-%2E.%2F..%2Fcpu.shares"));
    group.add_nf("cpu.shares", 1).unwrap();
}

#[test]
fn an_nf_is_weighed_on_both_versions_and_nothing_stays() {
    for version in BOTH {
        let model = CgroupModel::new(version, "/daemons");
        if version == Version::V2 {
            // As systemd does for the folders of its units.
            model.write(&model.folder(SUBTREE), "+cpu").unwrap();
        }
        let before = model.tree();
        model.start(42, false);
        model.start(43, false);
        let hierarchy = find(&model).unwrap();
        assert_eq!(hierarchy.version(), version);
        let base = if version == Version::V1 { "daemons/" } else { "" };
        assert_eq!(hierarchy.base().components().as_path(), model.folder(base).components().as_path());
        assert_eq!(hierarchy.setting(), None);
        assert_eq!(hierarchy.path_of("sluice-1"), model.folder(&format!("{base}sluice-1")));

        let group = hierarchy.create("sluice-1", &[]).unwrap();
        assert_eq!(group.path(), hierarchy.path_of("sluice-1"));
        let (ids, nat) = (group.add_nf("ids.0", 1).unwrap(), group.add_nf("nat.0", 1).unwrap());
        assert_eq!(ids.path(), group.path_of("ids.0", 1));
        ids.join(pid(42)).unwrap();
        nat.join(pid(43)).unwrap();
        assert_eq!(model.cgroup_of(42), Path::new(&format!("{base}sluice-1/core-1/nf-ids.0")));

        assert_eq!(ids.weight().unwrap(), version.default_weight());
        assert_eq!(ids.set_weight(0.75).unwrap(), version.weight(0.75));
        // A shorter number after a longer one, from another thread's handle.
        let handle = nat.handle();
        nat.set_weight(1.0).unwrap();
        std::thread::spawn(move || handle.set(0.02).unwrap()).join().unwrap();
        assert_eq!((ids.weight().unwrap(), nat.weight().unwrap()), (version.weight(0.75), version.weight(0.02)));
        let all = || fs::read_to_string(group.path().join(version.file())).unwrap();
        assert_eq!(all().trim(), (2 * version.default_weight()).to_string());

        // It still runs, so it is moved home.
        let handle = nat.handle();
        nat.remove().unwrap();
        assert_eq!(model.cgroup_of(43), Path::new("daemons"));
        assert_eq!(all().trim(), version.default_weight().to_string());
        assert!(matches!(handle.set(0.5), Err(CgroupError::Gone { .. })));
        group.remove().unwrap();
        assert_eq!(model.cgroup_of(42), Path::new("daemons"));
        let text = ids.set_weight(0.5).unwrap_err().to_string();
        assert!(text.ends_with("leave removing it to sluiced, and restart the NF"), "{text}");
        // No error after the group is gone.
        ids.remove().unwrap();
        let names = |tree: Vec<(String, Vec<i32>)>| tree.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(model.tree()), names(before));
    }
}

#[test]
fn nfs_of_a_core_have_a_folder_that_weighs_what_they_would() {
    for version in BOTH {
        let model = CgroupModel::new(version, "/");
        let group = find(&model).unwrap().create("sluice-1", &[]).unwrap();
        let weight = |path: &Path| fs::read_to_string(path.join(version.file())).unwrap().trim().parse::<u64>().unwrap();
        let (ids, lb) = (group.add_nf("ids.0", 1).unwrap(), group.add_nf("lb.0", 2).unwrap());
        let nat = group.add_nf("nat.0", 1).unwrap();
        let one = version.default_weight();
        let of_core = |core| weight(&group.path_of_core(core));
        assert_eq!((of_core(1), of_core(2), weight(group.path())), (2 * one, one, 3 * one));
        lb.set_weight(0.0).unwrap();
        assert_eq!(of_core(2), one, "whatever it weighs itself");
        ids.remove().unwrap();
        assert_eq!((of_core(1), of_core(2), weight(group.path())), (one, one, 2 * one));
        assert_eq!(group.cores(), [group.path_of_core(1), group.path_of_core(2)]);
        group.remove().unwrap();
        nat.remove().unwrap();
    }
}

#[test]
fn nfs_beside_a_packet_thread_weigh_as_much_as_one() {
    for version in BOTH {
        let model = CgroupModel::new(version, "/");
        let group = find(&model).unwrap().create("sluice-1", &[0, 1]).unwrap();
        let one = version.default_weight();
        let weight = |path: PathBuf| fs::read_to_string(path.join(version.file())).unwrap().trim().parse::<u64>().unwrap() / one;
        let weights = || [group.path_of_core(1), group.path_of_core(2), group.path().into()].map(weight);
        let [ids, nat] = ["ids.0", "nat.0"].map(|name| group.add_nf(name, 1).unwrap());
        let [lb, ips] = ["lb.0", "ips.0"].map(|name| group.add_nf(name, 2).unwrap());
        assert_eq!(weights(), [1, 2, 3]);
        nat.remove().unwrap();
        assert_eq!(weights(), [1, 2, 3]);
        ids.remove().unwrap();
        assert_eq!(weights()[1..], [2, 2]);
        let again = group.add_nf("ids.0", 1).unwrap();
        assert_eq!(weights(), [1, 2, 3]);
        for nf in [lb, ips, again] {
            nf.remove().unwrap();
        }
        group.remove().unwrap();
    }
}

#[test]
fn a_panic_leaves_nothing() {
    for version in BOTH {
        let model = CgroupModel::new(version, "/");
        let before = model.tree();
        let host = model.clone();
        let unwound = std::thread::spawn(move || {
            let group = find(&host).unwrap().create("sluice-1", &[]).unwrap();
            host.start(42, false);
            let nf = group.add_nf("ids.0", 1).unwrap();
            nf.join(pid(42)).unwrap();
            panic!("as expected");
        });
        unwound.join().unwrap_err();
        assert_eq!(model.tree(), [(before[0].0.clone(), vec![1, 42])]);
    }
}

#[test]
fn a_host_that_does_not_pass_cpu_on_is_reported_and_put_back() {
    let model = CgroupModel::new(Version::V2, "/");
    let hierarchy = find(&model).unwrap();
    let file = model.folder(SUBTREE);
    assert_eq!(hierarchy.setting(), Some((file.clone(), "-cpu".to_owned())));
    let cpu = || fs::read_to_string(&file).unwrap().contains("cpu");
    let group = hierarchy.create("sluice-1", &[]).unwrap();
    assert!(cpu());
    group.add_nf("ids.0", 1).unwrap().set_weight(0.5).unwrap();
    // A failed creation changes nothing.
    assert!(matches!(hierarchy.create("sluice-1", &[]), Err(CgroupError::Exists { .. })));
    assert!(cpu(), "the first one needs it");
    // A second manager finds cpu enabled, and leaves it so.
    let other = find(&model).unwrap();
    assert_eq!(other.setting(), None);
    let others = other.create("sluice-2", &[]).unwrap();
    group.remove().unwrap();
    assert!(cpu());
    others.remove().unwrap();

    let model = CgroupModel::new(Version::V2, "/");
    let group = find(&model).unwrap().create("sluice-1", &[]).unwrap();
    let file = model.folder(SUBTREE);
    group.remove().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "memory\n");
}

#[test]
fn version_2_uses_the_nearest_folder_that_may_have_children() {
    // A unit with Delegate=cpu and DelegateSubgroup=manager: the folder above the manager's is
    // empty and has the controller.
    let model = CgroupModel::new(Version::V2, "/sluiced.service/manager");
    model.write(&model.folder(SUBTREE), "+cpu").unwrap();
    let hierarchy = find(&model).unwrap();
    assert_eq!(hierarchy.base(), model.folder(""));
    model.write(&model.folder("sluiced.service").join(SUBTREE), "+cpu").unwrap();
    let hierarchy = find(&model).unwrap();
    assert_eq!(hierarchy.base(), model.folder("sluiced.service"));
    let nf = hierarchy.create("sluice-1", &[]).unwrap().add_nf("ids.0", 1).unwrap();
    assert!(nf.path().starts_with(model.folder("sluiced.service")));
}

#[test]
fn a_manager_shut_in_its_own_folder_is_reported_with_what_to_do() {
    let model = CgroupModel::new(Version::V2, "/shut.service");
    // The mount shows only the manager's own folder, as in a container without a cgroup namespace;
    // it has cpu and processes.
    model.write(&model.folder(SUBTREE), "+cpu").unwrap();
    let own = model.root.path().join("proc/self");
    let line = "31 27 0:22 /shut.service /sys/fs/cgroup/shut.service rw - cgroup2 cgroup2 rw\n";
    fs::write(own.join("mountinfo"), line).unwrap();
    let text = find(&model).unwrap_err().to_string();
    assert!(text.contains("Delegate=cpu and DelegateSubgroup=manager, or set [sched] weights = false"), "{text}");
    fs::write(own.join("mountinfo"), "22 27 0:21 / /proc rw - proc proc rw\n").unwrap();
    let text = find(&model).unwrap_err().to_string();
    assert!(text.starts_with("no cgroup cpu controller is mounted below") && text.contains("weights = false"), "{text}");
    fs::remove_file(own.join("mountinfo")).unwrap();
    let text = find(&model).unwrap_err().to_string();
    assert!(text.starts_with("cannot read") && text.contains("mountinfo"), "{text}");
}

#[test]
fn a_container_and_two_mounts_are_understood() {
    let model = CgroupModel::new(Version::V1, "/docker/ab/daemon");
    let own = model.root.path().join("proc/self");
    // The container sees its own part at the mount point; cgroup2 is also mounted, without cpu.
    let lines = "31 27 0:22 /docker/ab /sys/fs/cgroup/cpu/docker/ab rw - cgroup cgroup rw,cpu,cpuacct\n\
                 32 27 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    fs::write(own.join("mountinfo"), lines).unwrap();
    let hierarchy = find(&model).unwrap();
    assert_eq!((hierarchy.version(), hierarchy.base()), (Version::V1, &*model.folder("docker/ab/daemon")));
    // A path outside of the mounted part is taken as its top.
    for member in ["1:cpu,cpuacct:/elsewhere", "1:cpu:/docker/ab", "1:cpu:/docker/ab/../..", "1:cpu:/docker/ab/none"] {
        fs::write(own.join("cgroup"), member).unwrap();
        assert_eq!(find(&model).unwrap().base(), model.folder("docker/ab"), "{member}");
    }
    fs::write(own.join("cgroup"), "0::/\n").unwrap();
    assert!(matches!(find(&model), Err(CgroupError::System { .. })));
}

#[test]
fn refusals_say_what_they_are() {
    for version in BOTH {
        let model = CgroupModel::new(version, "/");
        let group = find(&model).unwrap().create("sluice-1", &[]).unwrap();
        let nf = group.add_nf("ids.0", 1).unwrap();
        let text = nf.join(pid(999)).unwrap_err().to_string();
        assert!(text.starts_with("no process has pid 999"), "{text}");
        model.start(42, true);
        let error = nf.join(pid(42)).unwrap_err();
        assert!(matches!(&error, CgroupError::RealTime { path } if path == nf.path()), "{error}");
        assert!(error.to_string().contains("set [sched] weights = false, or another class than rr"), "{error}");
        let error = group.add_nf("ids.0", 1).unwrap_err();
        assert!(matches!(&error, CgroupError::Exists { path } if path == nf.path()), "{error}");
        assert!(nf.path().exists());
    }
    // Version 2 refuses to pass cpu on while real-time processes run in cgroups.
    let model = CgroupModel::new(Version::V2, "/");
    model.start(42, true);
    assert!(matches!(find(&model).unwrap().create("sluice-1", &[]), Err(CgroupError::RealTime { .. })));
    assert_eq!(model.tree().len(), 1);
}

#[test]
fn a_process_that_cannot_be_moved_keeps_its_folder_and_moves_nobody_else() {
    let model = CgroupModel::new(Version::V1, "/daemon");
    let group = find(&model).unwrap().create("sluice-1", &[]).unwrap();
    let nf = group.add_nf("ids.0", 1).unwrap();
    // Shown as 0, and writing 0 would move the writer.
    model.start_foreign(7, nf.path());
    let error = nf.remove().unwrap_err();
    assert!(matches!(error, CgroupError::Busy { .. }), "{error}");
    assert_eq!(model.cgroup_of(1), Path::new("daemon"));
    assert_eq!(model.cgroup_of(7), Path::new("daemon/sluice-1/core-1/nf-ids.0"));
    assert!(matches!(group.remove(), Err(CgroupError::Busy { .. })));
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn sleep() -> Self {
        let child = Command::new("/bin/sleep").arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let running = Self(child);
        // The tests may inherit a real-time class, whose processes cannot enter these cgroups.
        class::set(Path::new("/"), running.pid(), Class::Other).unwrap();
        running
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder on the real kernel; None, and the test is skipped, where that is impossible.
fn real() -> Option<(Hierarchy, Group)> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("sluice-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let made = Hierarchy::find(Path::new("/")).and_then(|hierarchy| Ok((hierarchy.clone(), hierarchy.create(&name, &[])?)));
    match made {
        Ok(made) => Some(made),
        Err(
            error @ (CgroupError::NoController { .. }
            | CgroupError::NotDelegated { .. }
            | CgroupError::NotPermitted { .. }
            | CgroupError::RealTime { .. }),
        ) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_kernel_of_this_host_weighs_a_process() {
    let Some((hierarchy, group)) = real() else { return };
    let version = hierarchy.version();
    let sleeper = Running::sleep();
    let member = || mount::find(&Linux, Path::new("/"), &sleeper.pid().to_string()).unwrap().unwrap().1;
    let home = member();
    let nf = group.add_nf("ids.0", 1).unwrap();
    assert_eq!(nf.weight().unwrap(), version.default_weight());
    nf.join(sleeper.pid()).unwrap();
    assert_eq!(member(), nf.path());
    for share in [0.37, 1.0, 0.01, 0.0, 5.0] {
        assert_eq!(nf.set_weight(share).unwrap(), nf.weight().unwrap(), "{share}");
    }
    assert_eq!(nf.weight().unwrap(), version.weight(5.0));
    // The model's errors are the kernel's.
    for text in ["many", "-1"] {
        let error = Linux.write(&nf.path().join(version.file()), text).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{text:?}");
    }
    assert_eq!(Linux.remove(nf.path()).unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert_eq!(Linux.write(&nf.path().join(PROCS), "999999999").unwrap_err().raw_os_error(), Some(libc::ESRCH));
    assert!(matches!(group.add_nf("ids.0", 1), Err(CgroupError::Exists { .. })));
    let idle = group.add_nf("idle.0", 1).unwrap();
    let all = fs::read_to_string(group.path().join(version.file())).unwrap();
    assert_eq!(all.trim(), (2 * version.default_weight()).to_string());

    let (path, of_nf, handle) = (group.path().to_owned(), nf.path().to_owned(), nf.handle());
    nf.remove().unwrap();
    assert!(!of_nf.exists());
    assert_eq!(member(), home, "it runs on");
    assert!(matches!(handle.set(0.5), Err(CgroupError::Gone { .. })));
    let mut ended = Running::sleep();
    idle.join(ended.pid()).unwrap();
    let gone = ended.pid();
    ended.0.kill().unwrap();
    ended.0.wait().unwrap();
    assert!(matches!(idle.join(gone), Err(CgroupError::NoProcess { .. })));
    idle.join(sleeper.pid()).unwrap();
    group.remove().unwrap();
    assert!(!path.exists());
    assert_eq!(member(), home);
}

#[test]
fn the_kernel_of_this_host_is_left_clean_by_a_panic() {
    let Some((_, group)) = real() else { return };
    let path = group.path().to_owned();
    let unwound = std::thread::spawn(move || {
        let sleeper = Running::sleep();
        let nf = group.add_nf("ids.0", 1).unwrap();
        nf.join(sleeper.pid()).unwrap();
        panic!("as expected, in {:?}", group.path());
    });
    unwound.join().unwrap_err();
    assert!(!path.exists());
}

#[test]
fn what_a_killed_manager_left_goes_by_its_record() {
    use crate::process::Proc;
    use crate::record::{Record, Thing};
    let Some((_, group)) = real() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (mut record, _) = Record::open(dir.path(), Proc::default()).unwrap();
    record.made(Thing::Cgroup, group.path()).unwrap();
    record.made(Thing::Cgroup, &group.path_of_core(1)).unwrap();
    record.made(Thing::Cgroup, &group.path_of("ids.0", 1)).unwrap();
    let nf = group.add_nf("ids.0", 1).unwrap();
    let mut sleeper = Running::sleep();
    nf.join(sleeper.pid()).unwrap();
    let paths = [nf.path().to_owned(), group.path_of_core(1), group.path().to_owned()];
    // As a kill leaves it: nothing has been removed when the next manager comes.
    drop(record);

    let (record, report) = Record::open(dir.path(), Proc::default()).unwrap();
    assert_eq!((report.removed, report.failed), (paths.to_vec(), vec![]));
    assert!(paths.iter().all(|path| !path.exists()));
    assert!(!sleeper.0.wait().unwrap().success(), "it was killed");
    assert!(record.finish().unwrap().is_nothing());
}
