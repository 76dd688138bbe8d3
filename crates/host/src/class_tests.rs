use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::thread::set_capabilities;
use rustix::time::{ClockId, clock_getres};

use super::cgroup::{CgroupError, Hierarchy};
use super::*;
use crate::skip::skip;

const THREADS: &str = "SLUICE_TEST_THREADS";

fn slash() -> &'static Path {
    Path::new("/")
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn sleep() -> Self {
        let mut command = Command::new("/bin/sleep");
        Self::start(command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()))
    }

    fn start(command: &mut Command) -> Self {
        let running = Self(command.spawn().unwrap());
        // The tests may inherit another class.
        set(slash(), running.pid(), Class::Other).unwrap();
        running
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn classes(&self) -> Vec<Option<Class>> {
        of(slash(), self.pid()).unwrap().into_iter().map(|(_, class)| class).collect()
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether this process may give class rr; otherwise the test is skipped.
fn may_rr() -> bool {
    let sleeper = Running::sleep();
    match set(slash(), sleeper.pid(), Class::Rr(1)) {
        Ok(_) => true,
        Err(error @ (ClassError::NotPermitted { .. } | ClassError::NoBudget { .. })) => {
            skip(error);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_process_is_given_each_class_and_its_own_back() {
    let sleeper = Running::sleep();
    assert_eq!(sleeper.classes(), [Some(Class::Other)]);
    let former = set(slash(), sleeper.pid(), Class::Batch).unwrap();
    assert_eq!(sleeper.classes(), [Some(Class::Batch)]);
    former.restore().unwrap();
    assert_eq!(sleeper.classes(), [Some(Class::Other)]);
    if may_rr() {
        let former = set(slash(), sleeper.pid(), Class::Rr(7)).unwrap();
        assert_eq!(sleeper.classes(), [Some(Class::Rr(7))]);
        set(slash(), sleeper.pid(), Class::Rr(99)).unwrap();
        assert_eq!(sleeper.classes(), [Some(Class::Rr(99))]);
        former.restore().unwrap();
        assert_eq!(sleeper.classes(), [Some(Class::Other)]);
    }
    // The last one: to leave it needs a capability.
    set(slash(), sleeper.pid(), Class::Idle).unwrap();
    assert_eq!(sleeper.classes(), [Some(Class::Idle)]);
}

#[test]
fn the_idle_class_and_the_flag_for_children_survive() {
    // Leaving the idle class needs the same capability.
    if !may_rr() {
        return;
    }
    let sleeper = Running::sleep();
    let pid = sleeper.pid().as_raw_nonzero().get();
    let idle = Policy { number: libc::SCHED_IDLE | libc::SCHED_RESET_ON_FORK, priority: 0 };
    idle.give(pid).unwrap();
    assert_eq!(sleeper.classes(), [Some(Class::Idle)]);
    let former = set(slash(), sleeper.pid(), Class::Batch).unwrap();
    assert_eq!(sleeper.classes(), [Some(Class::Batch)]);
    assert_eq!(Policy::of(pid), Ok(Policy { number: libc::SCHED_BATCH | libc::SCHED_RESET_ON_FORK, priority: 0 }));
    former.restore().unwrap();
    assert_eq!(Policy::of(pid), Ok(idle));
}

/// Not a test itself: the process with threads of
/// [`all_threads_are_given_a_class_and_new_ones_have_it`].
#[test]
fn process_with_threads() {
    if std::env::var_os(THREADS).is_none() {
        return;
    }
    let wait = || drop(std::thread::spawn(std::thread::park));
    (0..3).for_each(|_| wait());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if line == "one more" {
            wait();
        }
        println!("threads started");
    }
}

#[test]
fn all_threads_are_given_a_class_and_new_ones_have_it() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::process_with_threads", module_path!().split_once("::").unwrap().1);
    command.args(["--exact", &name, "--nocapture"]).env(THREADS, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Running::start(&mut command);
    let (mut stdin, stdout) = (process.0.stdin.take().unwrap(), process.0.stdout.take().unwrap());
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok).filter(|line| line.contains("threads started"));
    stdin.write_all(b"none more\n").unwrap();
    lines.next().unwrap();
    let count = process.classes().len();
    assert!(count >= 4, "{count}");
    // One of them differs, and gets its own class back.
    let pid = process.pid().as_raw_nonzero().get();
    let other = threads(slash(), pid).unwrap().into_iter().find(|tid| *tid != pid).unwrap();
    let (class, differs) = if may_rr() { (Class::Rr(3), libc::SCHED_IDLE) } else { (Class::Batch, libc::SCHED_BATCH) };
    Policy { number: differs, priority: 0 }.give(other).unwrap();
    let before = of(slash(), process.pid()).unwrap();

    let former = set(slash(), process.pid(), class).unwrap();
    assert_eq!(process.classes(), vec![Some(class); count]);
    stdin.write_all(b"one more\n").unwrap();
    lines.next().unwrap();
    let heir = if may_rr() && may_give() { Class::Other } else { class };
    assert_eq!(process.classes(), [vec![Some(class); count], vec![Some(heir)]].concat(), "what a real-time thread makes is not");
    former.restore().unwrap();
    let after = of(slash(), process.pid()).unwrap();
    assert_eq!(after[..count], before);
    assert_eq!(after[count].1, Some(Class::Other), "as the first");
    assert!(before.iter().any(|(tid, class)| *tid == other && *class != Some(Class::Other)));
}

#[test]
fn what_cannot_be_says_what_to_do() {
    let mut sleeper = Running::sleep();
    let (pid, number) = (sleeper.pid(), sleeper.pid().as_raw_nonzero().get());
    for priority in [0, 100] {
        let text = set(slash(), pid, Class::Rr(priority)).unwrap_err().to_string();
        assert_eq!(text, format!("class rr has no priority {priority}; choose one from 1 to 99"));
    }
    let former = set(slash(), pid, Class::Batch).unwrap();
    sleeper.end();
    former.restore().unwrap();
    let text = set(slash(), pid, Class::Batch).unwrap_err().to_string();
    assert_eq!(text, format!("no process has pid {number}, so it has no scheduling class; start it first"));
    assert!(matches!(of(slash(), pid), Err(ClassError::NoProcess { .. })));
}

#[test]
fn without_the_capability_rr_is_refused_and_nothing_has_changed() {
    let sleeper = Running::sleep();
    // Capabilities belong to a thread: this one drops its own.
    let refused = std::thread::spawn({
        let pid = sleeper.pid();
        move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, sets).unwrap();
            let batch = set(slash(), pid, Class::Batch);
            (batch.map(drop), set(slash(), pid, Class::Rr(1)))
        }
    });
    let (batch, rr) = refused.join().unwrap();
    batch.unwrap();
    match rr {
        Err(ClassError::NotPermitted { pid, class: Class::Rr(1) }) => assert_eq!(pid, sleeper.pid().as_raw_nonzero().get()),
        Err(ClassError::NoBudget { .. }) => println!("the tests run in a cgroup without real-time budget"),
        // RLIMIT_RTPRIO allows it without the capability.
        Ok(_) => assert_ne!(rustix::process::getrlimit(rustix::process::Resource::Rtprio).current, Some(0)),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(sleeper.classes(), [Some(Class::Batch)]);
}

#[test]
fn a_cgroup_without_budget_is_named_both_ways_round() {
    if !may_rr() {
        return;
    }
    let name = format!("sluice-class-{}", std::process::id());
    let group = match Hierarchy::find(slash()).and_then(|hierarchy| hierarchy.create(&name, &[])) {
        Ok(group) => group,
        Err(
            error @ (CgroupError::NoController { .. }
            | CgroupError::NotDelegated { .. }
            | CgroupError::RealTime { .. }
            | CgroupError::NotPermitted { .. }),
        ) => return skip(error),
        Err(error) => panic!("{error}"),
    };
    let sleeper = Running::sleep();
    let nf = group.add_nf("ids.0", 1).unwrap();
    let has_budgets = fs::read_to_string(nf.path().join("cpu.rt_runtime_us")).is_ok_and(|text| text.trim() == "0");
    nf.join(sleeper.pid()).unwrap();
    let given = set(slash(), sleeper.pid(), Class::Rr(1));
    if !has_budgets {
        return skip("this kernel has no real-time budgets of cgroups");
    }
    let error = given.unwrap_err();
    assert!(matches!(&error, ClassError::NoBudget { cgroup, .. } if cgroup == nf.path()), "{error}");
    let text = error.to_string();
    assert!(text.contains("cpu.rt_runtime_us") && text.contains("kernel.sched_rt_runtime_us"), "{text}");
    assert_eq!(sleeper.classes(), [Some(Class::Other)]);

    let real_time = Running::sleep();
    set(slash(), real_time.pid(), Class::Rr(1)).unwrap();
    let error = nf.join(real_time.pid()).unwrap_err();
    assert!(matches!(&error, CgroupError::RealTime { path } if path == nf.path()), "{error}");
}

/// A tree with the setting in it.
fn tree(text: &str) -> (tempfile::TempDir, RrSlice) {
    let root = tempfile::tempdir().unwrap();
    let setting = RrSlice::at(root.path());
    fs::create_dir_all(setting.path().parent().unwrap()).unwrap();
    fs::write(setting.path(), text).unwrap();
    (root, setting)
}

#[test]
fn the_slice_is_set_and_put_back_however_it_ends() {
    let (_root, setting) = tree("100\n");
    let read = || fs::read_to_string(setting.path()).unwrap();
    assert_eq!(setting.read_ms().unwrap(), 100);
    let slice = setting.set(1).unwrap();
    assert_eq!((read().as_str(), slice.former(), slice.path()), ("1", 100, setting.path()));
    slice.restore().unwrap();
    assert_eq!(read(), "100");
    drop(setting.set(5).unwrap());
    assert_eq!(read(), "100");
    let inner = setting.clone();
    let unwound = std::thread::spawn(move || {
        let slice = inner.set(7).unwrap();
        panic!("as expected, {slice:?}");
    });
    unwound.join().unwrap_err();
    assert_eq!(read(), "100");
}

#[test]
fn the_slice_of_a_killed_manager_goes_by_its_record() {
    use crate::process::Proc;
    use crate::record::Record;
    let (_root, setting) = tree("100\n");
    let dir = tempfile::tempdir().unwrap();
    let (mut record, _) = Record::open(dir.path(), Proc::default()).unwrap();
    record.changed(setting.path(), &setting.read_ms().unwrap().to_string()).unwrap();
    // As a kill leaves it: the slice is still set when the next manager comes.
    let _slice = setting.set(1).unwrap();
    drop(record);
    let (_, report) = Record::open(dir.path(), Proc::default()).unwrap();
    assert_eq!(report.restored, [setting.path()]);
    assert_eq!(setting.read_ms().unwrap(), 100);
}

#[test]
fn no_slice_is_set_that_cannot_be() {
    let (root, setting) = tree("100\n");
    for ms in [0, 1 << 31] {
        let text = setting.set(ms).unwrap_err().to_string();
        assert_eq!(text, format!("a slice of {ms} ms is out of range; choose one from 1 to 2147483647 ms"));
    }
    assert_eq!(setting.read_ms().unwrap(), 100);
    for text in ["", "many", "-3"] {
        fs::write(setting.path(), text).unwrap();
        let error = setting.set(1).unwrap_err().to_string();
        assert!(error.contains("is no number of milliseconds"), "{error}");
        assert_eq!(fs::read_to_string(setting.path()).unwrap(), text, "unchanged, since it could not be put back");
    }
    fs::remove_file(setting.path()).unwrap();
    assert!(setting.set(1).unwrap_err().to_string().starts_with("cannot read"));
    assert_eq!(fs::read_dir(root.path().join("proc/sys/kernel")).unwrap().count(), 0, "nothing was made");
}

#[test]
fn the_kernel_rounds_the_slice_up_to_its_ticks_and_says_so() {
    if !may_rr() {
        return;
    }
    let setting = RrSlice::at(slash());
    let before = setting.read_ms().unwrap();
    let slice = match setting.set(1) {
        Ok(slice) => slice,
        Err(error @ ClassError::SliceNotPermitted { .. }) => return skip(error),
        Err(error) => panic!("{error}"),
    };
    assert_eq!((setting.read_ms().unwrap(), slice.former()), (1, before));
    // The coarse clock moves once a tick.
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let tick = Duration::new(tick.tv_sec as u64, tick.tv_nsec as u32);
    let ticks = Duration::from_millis(1).as_nanos().div_ceil(tick.as_nanos());
    let effective = slice.effective().unwrap();
    assert_eq!(effective, tick * ticks as u32);
    let sleeper = Running::sleep();
    set(slash(), sleeper.pid(), Class::Rr(1)).unwrap();
    assert_eq!(interval(sleeper.pid().as_raw_nonzero().get()), Ok(effective));
    slice.restore().unwrap();
    assert_eq!(setting.read_ms().unwrap(), before);
}
