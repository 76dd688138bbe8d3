use super::super::filter::*;
use super::*;
use crate::skip::skip;
use rustix::process::Signal;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio as CommandStdio};

const ROLE: &str = "SLUICE_TEST_ROLE";

fn shell(script: &str) -> SpawnSpec {
    let mut spec = SpawnSpec::new("test.0", "/bin/sh");
    spec.args = vec!["-c".into(), script.into()];
    spec.stdio = Stdio::Null;
    spec
}

fn run_to_end(spec: &SpawnSpec) -> Exit {
    let spawned = spawn(spec).unwrap();
    let exit = process::wait(spawned.pidfd.as_fd()).unwrap();
    assert_eq!(reap(&spawned).unwrap_err(), Errno::CHILD, "collected once");
    exit
}

/// Runs to the end with the output in a file, and returns the output.
fn output_of(mut spec: SpawnSpec) -> String {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    spec.stdio = Stdio::Log(log.clone());
    let exit = run_to_end(&spec);
    let output = std::fs::read_to_string(log).unwrap();
    assert_eq!(exit, Exit::Code(0), "{output}");
    output
}

/// The fields of the process's own `/proc/PID/status`.
fn status_of(mut spec: SpawnSpec) -> HashMap<String, String> {
    spec.exec = "/bin/cat".into();
    spec.args = vec!["/proc/self/status".into()];
    let fields = output_of(spec);
    let pairs = fields.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.split_ascii_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// This test program, run in a role of [`roles`].
fn role(name: &str) -> SpawnSpec {
    let mut spec = SpawnSpec::new("test.0", std::env::current_exe().unwrap());
    spec.args = ["--exact", "spawn::tests::roles", "--nocapture"].map(Into::into).to_vec();
    spec.env = vec![(ROLE.into(), name.into())];
    spec
}

fn role_command(name: &str) -> Command {
    let spec = role(name);
    let mut command = Command::new(spec.exec);
    command.args(spec.args).envs(spec.env).stdin(CommandStdio::null());
    command
}

#[test]
fn a_pipe_is_all_that_it_gets_and_nobody_keeps_its_other_end() {
    use std::io::Read;
    // Twice: the slot is reused.
    for _ in 0..2 {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let script = "echo out; echo err >&2; for fd in /proc/self/fd/*; do echo ${fd##*/}; done";
        let spec = SpawnSpec { stdio: Stdio::Pipe(Arc::new(theirs)), ..shell(script) };
        let spawned = spawn(&spec).unwrap();
        drop(spec);
        let mut said = String::new();
        // It ends: neither this process nor the slot has the other end any more.
        std::fs::File::from(ours).read_to_string(&mut said).unwrap();
        let _ = process::wait(spawned.pidfd.as_fd());
        // 3 is the shell's, which reads the folder.
        let fds: Vec<&str> = said.lines().skip(2).filter(|fd| *fd != "3").collect();
        assert!(said.starts_with("out\nerr\n") && fds == ["0", "1", "2"], "{said}");
    }
}

/// Not a test itself: the roles that other tests run in a separate process.
#[test]
fn roles() {
    match std::env::var(ROLE).as_deref() {
        Ok("denied") => try_what_is_denied(),
        Ok("arguments") => try_arguments(),
        Ok("born") => {
            let folder = std::env::var_os("SLUICE_TEST_FOLDER").map(PathBuf::from);
            println!("{}", output_of(SpawnSpec { born_in: folder, ..shell("cat /proc/self/cgroup") }));
        }
        Ok("parent") => {
            let mut spec = SpawnSpec::new("test.0", "/bin/sleep");
            spec.args = vec!["1000".into()];
            spec.stdio = Stdio::Null;
            let apart = SpawnSpec { apart: rustix::process::geteuid().is_root(), ..spec.clone() };
            let children = [spawn(&spec).unwrap(), spawn(&apart).unwrap()];
            for child in &children {
                println!("child {}", child.pid.as_raw_nonzero());
            }
            // The streams' other end closes when the test that started this process fails.
            process::wait(children[0].pidfd.as_fd()).unwrap();
        }
        Ok("thousand") => spawn_a_thousand(),
        _ => {}
    }
}

#[test]
fn a_process_runs_ends_and_is_collected() {
    assert_eq!(run_to_end(&shell("exit 0")), Exit::Code(0));
    assert_eq!(run_to_end(&shell("exit 7")), Exit::Code(7));
    assert_eq!(run_to_end(&shell("kill -SEGV $$")), Exit::Signal(libc::SIGSEGV));

    let sleeper = spawn(&shell("exec sleep 1000")).unwrap();
    assert_eq!(reap(&sleeper), Ok(None));
    process::send_signal(sleeper.pidfd.as_fd(), Signal::TERM).unwrap();
    assert_eq!(process::wait(sleeper.pidfd.as_fd()), Ok(Exit::Signal(libc::SIGTERM)));
}

#[test]
fn arguments_and_environment_are_exactly_those_given() {
    let mut spec = shell(r#"printf '%s\n' "$0" "$@"; exec /usr/bin/env"#);
    spec.args.extend(["zero", "with space", "", "$HOME"].map(OsString::from));
    spec.env = vec![("SLUICE_NF".into(), "ids.0".into()), ("EMPTY".into(), "".into()), ("E".into(), "a=b".into())];
    let output = output_of(spec);
    // PWD is the shell's own addition.
    let lines: Vec<&str> = output.lines().filter(|l| !l.starts_with("PWD=") && !l.starts_with("_=")).collect();
    let (args, env) = lines.split_at(4);
    assert_eq!(args, ["zero", "with space", "", "$HOME"]);
    let mut env = env.to_vec();
    env.sort_unstable();
    assert_eq!(env, ["E=a=b", "EMPTY=", "SLUICE_NF=ids.0"]);
}

#[test]
fn nothing_of_the_manager_is_inherited() {
    // Not close-on-exec, as a C library may leave them.
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    // ls has the folder itself open as 3.
    assert_eq!(output_of(shell("ls /proc/self/fd; readlink /proc/self/fd/0")), "0\n1\n2\n3\n/dev/null\n");
    // The manager keeps its own.
    assert!(rustix::io::fcntl_getfd(&reader).is_ok());

    let status = status_of(shell(""));
    // This program, like every Rust program, ignores SIGPIPE.
    assert_eq!(status["SigIgn"], "0000000000000000");
    assert_eq!(status["SigBlk"], "0000000000000000");
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(status["Seccomp"], "0");
    assert_eq!(status["PPid"], std::process::id().to_string());
    assert_eq!(
        output_of(shell("cut -d ' ' -f 5 /proc/$$/stat; echo $$")).lines().collect::<std::collections::HashSet<_>>().len(),
        1
    );
}

#[test]
fn this_threads_signals_are_as_before() {
    let blocked = |text: String| text.lines().find_map(|l| l.strip_prefix("SigBlk:").map(str::to_owned)).unwrap();
    let before = blocked(std::fs::read_to_string("/proc/thread-self/status").unwrap());
    run_to_end(&shell("exit 0"));
    spawn(&SpawnSpec::new("test.0", "/no/such")).unwrap_err();
    assert_eq!(blocked(std::fs::read_to_string("/proc/thread-self/status").unwrap()), before);
}

#[test]
fn the_core_is_taken() {
    let core = *crate::affinity::allowed().unwrap().last().unwrap();
    let spec = SpawnSpec { cores: [core].into(), ..shell("") };
    assert_eq!(status_of(spec)["Cpus_allowed_list"], core.to_string());
}

#[test]
fn the_limit_of_descriptors_is_the_one_from_before_it_was_raised() {
    process::raise_nofile(0).unwrap();
    let soft = process::nofile_before().unwrap().current.unwrap();
    assert_eq!(output_of(shell("ulimit -S -n")).trim(), soft.to_string());
}

#[test]
fn logs_are_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("ids.0.log");
    for word in ["first", "second"] {
        let spec = SpawnSpec { stdio: Stdio::Log(log.clone()), ..shell(&format!("echo {word}; echo {word} >&2")) };
        assert_eq!(run_to_end(&spec), Exit::Code(0));
    }
    assert_eq!(std::fs::read_to_string(log).unwrap(), "first\nfirst\nsecond\nsecond\n");
}

fn message(spec: &SpawnSpec) -> String {
    spawn(spec).unwrap_err().to_string()
}

#[test]
fn each_failure_says_what_to_do() {
    let bare = SpawnSpec::new("ids.0", "bridge");
    assert_eq!(message(&bare), "NF ids.0: the program bridge is not an absolute path; give the whole path");
    let missing = SpawnSpec::new("ids.0", "/no/such/program");
    assert_eq!(
        message(&missing),
        "NF ids.0: cannot execute /no/such/program: No such file or directory (os error 2); there is no such program, or not \
         the interpreter that its first line names"
    );
    assert!(message(&SpawnSpec::new("ids.0", "/etc/passwd")).contains("it is not executable"));
    let zero = SpawnSpec { args: vec!["a\0b".into()], ..shell("") };
    assert!(message(&zero).contains("an argument contains a zero byte"), "{}", message(&zero));
    let equals = SpawnSpec { env: vec![("A=B".into(), "c".into())], ..shell("") };
    assert!(message(&equals).contains("the variable A=B contains"), "{}", message(&equals));
    for core in [1023, 70_000, usize::MAX] {
        let text = message(&SpawnSpec { cores: [core].into(), ..shell("") });
        assert!(text.starts_with(&format!("NF test.0: cannot pin it to core {core}: Invalid argument")), "{text}");
    }
    let log = SpawnSpec { stdio: Stdio::Log("/no/such/folder/log".into()), ..shell("") };
    assert!(message(&log).starts_with("NF test.0: cannot open its log /no/such/folder/log: No such file"));
}

#[test]
fn the_user_and_its_groups_are_taken_or_refused() {
    let user = User { uid: 65534, gid: 65533, groups: vec![7, 8] };
    let spec = SpawnSpec { user: Some(user), filter: Filter::Nf { storage: false, zygote: false }, ..shell("") };
    if !rustix::process::geteuid().is_root() {
        skip("only root can take another user: what is asserted is that it is refused");
        assert!(message(&spec).contains("become user 65534: Operation not permitted"), "{}", message(&spec));
        return;
    }
    let status = status_of(spec);
    assert_eq!(status["Uid"], "65534 65534 65534 65534");
    assert_eq!(status["Gid"], "65533 65533 65533 65533");
    assert_eq!(status["Groups"], "7 8");
    assert_eq!(status["CapEff"], "0000000000000000");
    assert_eq!(status["CapPrm"], "0000000000000000");
    assert_eq!(status["Seccomp"], "2");
    assert_eq!(rustix::process::geteuid().as_raw(), 0, "the manager stays who it is");
}

/// Tries each denied call with arguments that no kernel accepts, and some things that must work.
fn try_what_is_denied() {
    let errno_of = |number: c_long| {
        // SAFETY: -1 is no valid pointer, length, descriptor or flag: the kernel refuses the call.
        let result = unsafe { libc::syscall(number, -1 as c_long, -1 as c_long, -1 as c_long, -1 as c_long, -1 as c_long) };
        if result < 0 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
    };
    let mut numbers: Vec<c_long> = denied().collect();
    #[cfg(target_arch = "x86_64")]
    if has_x32() {
        let own = X32_OWN.iter().filter(|(_, native)| denied().any(|number| number == *native)).map(|(own, _)| *own);
        numbers.extend(denied().chain(own).map(|number| number | X32_BIT));
    }
    for number in numbers {
        println!("call {number} {}", errno_of(number));
    }
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    assert!(std::fs::read("/proc/self/stat").is_ok());
    println!("worked");
}

#[test]
fn the_filter_denies_its_list_and_nothing_else() {
    let with = output_of(SpawnSpec { filter: Filter::Nf { storage: false, zygote: false }, ..role("denied") });
    let without = output_of(role("denied"));
    let calls = |text: &str| text.lines().filter(|l| l.starts_with("call ")).map(str::to_owned).collect::<Vec<_>>();
    assert!(calls(&with).len() > DENIED.len() - 1);
    for line in calls(&with) {
        assert!(line.ends_with(&format!(" {}", libc::EPERM)), "{line}");
    }
    let ptrace = format!("call {} ", libc::SYS_ptrace);
    assert!(calls(&without).iter().any(|l| l.starts_with(&ptrace) && !l.ends_with(&format!(" {}", libc::EPERM))));
    assert!(with.contains("worked") && without.contains("worked"), "{with}");
    // The library's storage has io_uring; a foreign program places its threads itself.
    let storing = output_of(SpawnSpec { filter: Filter::Nf { storage: true, zygote: false }, ..role("denied") });
    let foreign = output_of(SpawnSpec { filter: Filter::Foreign, ..role("denied") });
    let is_denied = |text: &str, number: c_long| text.contains(&format!("call {number} {}\n", libc::EPERM));
    assert!(is_denied(&with, libc::SYS_io_uring_setup) && !is_denied(&storing, libc::SYS_io_uring_setup));
    assert!(is_denied(&storing, libc::SYS_sched_setaffinity) && !is_denied(&foreign, libc::SYS_sched_setaffinity));
    assert!(is_denied(&foreign, libc::SYS_ptrace));
}

/// Calls that are denied by argument, with denied and allowed arguments, and the kernel's answers.
fn try_arguments() {
    // SAFETY: no call below accesses memory of this process other than its arguments: a page of a
    // fresh mapping, or nothing.
    unsafe {
        let errno = |result: c_long| if result < 0 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 };
        let file = libc::memfd_create(c"hole".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, 1 << 16), 0);
        let shared = libc::mmap(null_mut(), 1 << 16, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0);
        shared.cast::<u8>().write(7);
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        for (what, mode) in [("plain", 0), ("kept", keep), ("punch", keep | libc::FALLOC_FL_PUNCH_HOLE), ("zero", keep | 0x10)] {
            println!("{what} {}", errno(libc::fallocate(file, mode, 0, 4096).into()));
        }
        for (what, advice) in [("dontneed", libc::MADV_DONTNEED), ("remove", libc::MADV_REMOVE), ("poison", libc::MADV_HWPOISON)] {
            println!("{what} {}", errno(libc::madvise(shared, 4096, advice).into()));
        }
        println!("byte {}", shared.cast::<u8>().read());
        for (what, flag) in [("fork", 0), ("userns", libc::CLONE_NEWUSER), ("netns", libc::CLONE_NEWUSER | libc::CLONE_NEWNET)] {
            let flags = c_long::from(flag | libc::SIGCHLD);
            let pid = libc::syscall(libc::SYS_clone, flags, 0 as c_long, 0 as c_long, 0 as c_long, 0 as c_long);
            if pid == 0 {
                libc::_exit(0);
            }
            println!("{what} {}", errno(pid));
            if pid > 0 {
                libc::waitpid(pid as libc::pid_t, null_mut(), 0);
            }
        }
        println!("clone3 {}", errno(libc::syscall(libc::SYS_clone3, null::<c_void>(), 0 as c_long)));
    }
    // Threads are then made by `clone`.
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    println!("worked");
}

#[test]
fn the_filter_looks_at_arguments() {
    let said = |filter: Filter| output_of(SpawnSpec { filter, ..role("arguments") });
    let has = |text: &str, line: &str| assert!(text.contains(&format!("{line}\n")), "{line}:\n{text}");
    let nf = said(Filter::Nf { storage: false, zygote: false });
    for line in
        ["plain 0", "kept 0", "punch 1", "zero 1", "dontneed 0", "remove 1", "poison 1", "byte 7", "fork 0", "userns 1", "netns 1"]
    {
        has(&nf, line);
    }
    has(&nf, &format!("clone3 {}", libc::ENOSYS));
    has(&nf, "worked");
    // Only the filter has denied it.
    let free = said(Filter::None);
    for line in ["punch 0", "remove 0", "byte 0", "worked"] {
        has(&free, line);
    }
    let foreign = said(Filter::Foreign);
    for line in ["punch 0", "userns 1", "worked"] {
        has(&foreign, line);
    }
}

#[test]
fn one_without_privileges_can_get_none() {
    let spec = SpawnSpec { limits: ProcessLimits { unprivileged: true, ..ProcessLimits::default() }, ..shell("") };
    let status = status_of(spec);
    let root = rustix::process::geteuid().is_root();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"] {
        // Only root can drop from the bounding set, and no_new_privs prevents any gain from it.
        assert!(status[set] == "0000000000000000" || !root && set == "CapBnd", "{set} {}", status[set]);
    }
    assert_eq!(status["NoNewPrivs"], "1");
    let limits = ProcessLimits { unprivileged: true, processes: Some(77), locked: Some(3 << 20), goes_first: true };
    let text = output_of(SpawnSpec { limits, ..shell("cat /proc/self/limits") });
    let takes_back = "cat /proc/self/oom_score_adj; echo 0 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj";
    let said = output_of(SpawnSpec { limits, ..shell(takes_back) });
    // Without CAP_SYS_RESOURCE a process cannot lower what one with it has raised.
    const RESOURCE: u32 = 24;
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = own.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let may_fix = u64::from_str_radix(effective, 16).unwrap() >> RESOURCE & 1 == 1;
    assert_eq!(said, if may_fix { "1000\n1000\n" } else { "1000\n0\n" });
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(output_of(shell("cat /proc/self/oom_score_adj")), own, "who lends it memory stays what it is");
    let has = |name: &str, most: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line[name.len()..].split_whitespace().take(2).collect::<Vec<_>>(), [most, most], "{text}");
    };
    has("Max core file size", "0");
    has("Max processes", "77");
    has("Max locked memory", "3145728");
}

#[test]
fn a_program_in_a_closed_folder_is_executed_all_the_same() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can take another user: what is asserted is that it is refused");
        assert!(spawn(&SpawnSpec { user: Some(User { uid: 65534, gid: 65534, groups: vec![] }), ..shell("") }).is_err());
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let program = folder.path().join("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let user = Some(User { uid: 65534, gid: 65534, groups: vec![] });
    assert_eq!(
        run_to_end(&SpawnSpec { user: user.clone(), stdio: Stdio::Null, ..SpawnSpec::new("test.0", &program) }),
        Exit::Code(0)
    );
    // A program that its user may not execute is refused.
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let text = message(&SpawnSpec { user, ..SpawnSpec::new("test.0", &program) });
    assert!(text.contains("Permission denied") && text.contains("chmod o+rx"), "{text}");
}

#[test]
fn what_is_kept_ends_with_its_keeper() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can make process namespaces: what is asserted is that it is refused");
        assert!(Keeper::start(Path::new("/bin/sleep"), &["1000"]).is_err());
        return;
    }
    let keeper = Arc::new(Keeper::start(Path::new("/bin/sleep"), &["1000"]).unwrap());
    assert!(keeper.is_alive());
    let namespace = |pid: Pid| std::fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero())).unwrap();
    let kept = |script: &str| SpawnSpec { keeper: Some(keeper.clone()), ..shell(script) };
    // It is not a first process: signals without a handler work.
    assert_eq!(run_to_end(&kept("kill -TERM $$")), Exit::Signal(libc::SIGTERM));
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    // A grandchild in another session, behind an NF that has ended.
    let script = format!("(setsid sh -c 'echo > {}; exec sleep 1000' &)", ready.display());
    assert_eq!(run_to_end(&kept(&script)), Exit::Code(0));
    let other = spawn(&kept("exec sleep 1000")).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !ready.exists() {
        assert!(std::time::Instant::now() < until, "it does not start");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let inside = namespace(other.pid);
    assert_eq!(inside, namespace(keeper.pid()));
    let left = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries.filter(|entry| std::fs::read_link(entry.path().join("ns/pid")).is_ok_and(|ns| ns == inside)).count()
    };
    // The keeper, the other, and the grandchild.
    assert_eq!(left(), 3);
    // Threads and processes of this one stay in its own namespace.
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    let own = spawn(&shell("exec sleep 1000")).unwrap();
    assert_ne!(namespace(own.pid), inside);
    process::send_signal(own.pidfd.as_fd(), Signal::KILL).unwrap();
    process::wait(own.pidfd.as_fd()).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| process::wait(other.pidfd.as_fd()));
        drop(Arc::into_inner(keeper).unwrap());
        assert_eq!(other.join().unwrap(), Ok(Exit::Signal(libc::SIGKILL)));
    });
    assert_eq!(left(), 0);
}

#[test]
fn one_is_born_in_its_cgroup() {
    let Some(home) = crate::cgroup::unified_home(Path::new("/")) else {
        skip("no cgroups of version 2 are mounted: what is asserted is that a folder that is none is refused");
        assert!(spawn(&SpawnSpec { born_in: Some("/".into()), ..shell("") }).is_err());
        return;
    };
    let folder = home.join(format!("sluice-test-born-{}", std::process::id()));
    if std::fs::create_dir(&folder).is_err() {
        skip("no cgroup can be made here: what is asserted is that one that is not there is told");
        let text = message(&SpawnSpec { born_in: Some(folder), ..shell("") });
        assert!(text.contains("cannot join its cgroup"), "{text}");
        return;
    }
    let output = output_of(SpawnSpec { born_in: Some(folder.clone()), ..shell("cat /proc/self/cgroup; exit 0") });
    assert!(output.contains(&format!("{}\n", folder.file_name().unwrap().display())), "{output}");
    // Under a filter without clone3, as a unit's, it joins the cgroup. The test's own process has
    // the NF filter, which answers the same.
    let inner = SpawnSpec { filter: Filter::Nf { storage: false, zygote: false }, ..role("born") };
    let said = output_of(SpawnSpec {
        env: [inner.env.clone(), vec![("SLUICE_TEST_FOLDER".into(), folder.clone().into())]].concat(),
        ..inner
    });
    assert!(said.contains(&format!("{}\n", folder.file_name().unwrap().display())), "{said}");
    // A failing step is reported from there too.
    let text = message(&SpawnSpec { born_in: Some(folder.clone()), ..SpawnSpec::new("test.0", "/no/such") });
    assert!(text.contains("there is no such program"), "{text}");
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn children_die_with_a_killed_parent() {
    let mut parent = role_command("parent").stdout(CommandStdio::piped()).spawn().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    // The test harness writes its own text before, without a newline.
    let pids = lines.map_while(Result::ok).filter_map(|l| Pid::from_raw(l.split("child ").nth(1)?.parse().ok()?));
    let pidfds: Vec<OwnedFd> = pids.take(2).map(|pid| process::pidfd_open(pid).unwrap()).collect();
    assert_eq!(pidfds.len(), 2);
    for pidfd in &pidfds {
        assert_eq!(process::wait_readable(pidfd.as_fd(), Some(0)), Ok(false));
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    for pidfd in &pidfds {
        assert_eq!(process::wait_readable(pidfd.as_fd(), Some(30_000)), Ok(true));
    }
}

#[test]
fn what_is_apart_ends_with_its_first_process() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make process namespaces");
    }
    let apart = |script: &str| SpawnSpec { apart: true, ..shell(script) };
    assert_eq!(output_of(apart("echo $$; cat /proc/1/comm")), "1\nsh\n", "and the processes in /proc are its own");
    // A grandchild in another session, without the terminal.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("inside");
    let script = format!("(setsid sleep 1000 & readlink /proc/$!/ns/pid > {}; exit); exec sleep 1000", file.display());
    let first = spawn(&apart(&script)).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let inside = loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.ends_with('\n') {
            break text;
        }
        assert!(std::time::Instant::now() < until, "it does not start");
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    process::send_signal(first.pidfd.as_fd(), Signal::KILL).unwrap();
    assert_eq!(process::wait(first.pidfd.as_fd()), Ok(Exit::Signal(libc::SIGKILL)));
    // The end of the first is the end of all.
    let left = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| std::fs::read_link(entry.path().join("ns/pid")).is_ok_and(|ns| ns.as_os_str() == inside.trim_end()));
    assert_eq!(left.count(), 0);
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn spawn_a_thousand() {
    let failing = SpawnSpec::new("test.0", "/no/such/program");
    let mut spec = SpawnSpec::new("test.0", "/bin/true");
    spec.stdio = Stdio::Null;
    // The first of each makes the stack and the filter.
    run_to_end(&spec);
    spawn(&failing).unwrap_err();
    let before = open_descriptors();
    let root = rustix::process::geteuid().is_root();
    let keeper = root.then(|| Arc::new(Keeper::start(Path::new("/bin/sleep"), &["1000"]).unwrap()));
    let with_keeper = open_descriptors();
    for (seccomp, keeper) in [(false, None), (true, None), (true, keeper.clone())] {
        let kept = keeper.is_some();
        spec.filter = if seccomp { Filter::Nf { storage: false, zygote: false } } else { Filter::None };
        spec.limits.unprivileged = seccomp;
        spec.keeper = keeper;
        let mut times = Vec::new();
        for _ in 0..500 {
            let start = std::time::Instant::now();
            let spawned = spawn(&spec).unwrap();
            times.push(start.elapsed());
            assert_eq!(process::wait(spawned.pidfd.as_fd()), Ok(Exit::Code(0)));
        }
        times.sort_unstable();
        println!("spawn with seccomp = {seccomp}, kept = {kept}: median {:?}, 99 % {:?}", times[250], times[495]);
        for _ in 0..100 {
            spawn(&failing).unwrap_err();
        }
    }
    assert_eq!(open_descriptors(), with_keeper);
    spec.keeper = None;
    drop(keeper);
    assert_eq!(open_descriptors(), before);
    // No child is left, running or not.
    assert_eq!(rustix::process::wait(rustix::process::WaitOptions::NOHANG).unwrap_err(), Errno::CHILD);
}

#[test]
fn a_thousand_spawns_leave_no_descriptor_and_no_zombie() {
    // In a separate process: other tests of this one open descriptors and have children.
    let output = role_command("thousand").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("seccomp = true"));
}

#[test]
fn threads_may_spawn_at_once() {
    let spawn_some = |base: i32| {
        for i in 0..25 {
            assert_eq!(run_to_end(&shell(&format!("exit {}", base + i))), Exit::Code(base + i));
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|n| drop(scope.spawn(move || spawn_some(n * 50)))));
}

#[test]
fn a_limit_of_processes_above_the_managers_own_is_the_managers_own() {
    let mut spec = SpawnSpec::new("crowd.0", "/bin/true");
    spec.limits.processes = Some(u64::MAX / 2);
    let spawned = spawn(&spec).expect("root without CAP_SYS_RESOURCE may not raise its limit, and need not");
    assert_eq!(process::wait(spawned.pidfd.as_fd()), Ok(Exit::Code(0)));
}
