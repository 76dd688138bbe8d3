//! NFs in OCI containers, with the host's runtimes crun and runc.
//!
//! Root directories hold one of our programs and the libraries that `ldd` names; no registry.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal};
use sluice_api::model::{ChainState, Nf, NfState};
use sluice_host::container::FOLDER;

use crate::foreign::can;
use crate::pools::{end_flows_soon, pool};
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, nf, parent, port, refusal, signal, wait_until_gone};

const RUNTIMES: [&str; 2] = ["crun", "runc"];
const PACKETS: u64 = 5_000;

/// A root directory with a program and its libraries.
fn root_of(program: &str, root: &Path) {
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(program, root.join("bin/nf")).unwrap();
    let ldd = Command::new("ldd").arg(program).output().unwrap();
    for word in String::from_utf8_lossy(&ldd.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let to = root.join(&word[1..]);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(word, to).unwrap();
    }
}

/// A root directory with the bridge.
fn bridge() -> (tempfile::TempDir, PathBuf) {
    let folder = crate::support::open_folder();
    let root = folder.path().join("root");
    root_of(&nf("sluice-nf-bridge"), &root);
    (folder, root)
}

fn contained(name: &str, root: &Path, runtime: &str, keys: &str) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\nexec = \"/bin/nf\"\ncontainer = {{ root = {root:?}, runtime = \"{runtime}\" }}\n{keys}\n"
    )
}

fn endless(services: &str, names: &[&str], on_failure: &str) -> String {
    port("in", "gen", "rate = 5000\nflows = 8")
        + &port("out", "sink", "")
        + services
        + &chain("c", "in", names, "out", &format!("on_failure = \"{on_failure}\""))
}

/// The namespace of kind `what` that a process is in.
fn namespace(pid: u32, what: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{what}")).unwrap()
}

fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn pid_of(nf: &Nf) -> u32 {
    nf.pid.expect("it runs")
}

/// Cgroups of the daemon's containers.
fn cgroups_of(daemon: &Daemon) -> Vec<PathBuf> {
    let mine = format!("sluice-{}-", daemon.pid());
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
            let name = entry.file_name();
            // The cgroup that holds this daemon's NFs lives as long as the daemon.
            if name.to_string_lossy().starts_with(&mine) && !name.to_string_lossy().ends_with("-nfs") {
                found.push(entry.path());
            }
            folders.push(entry.path());
        }
    }
    found
}

#[test]
fn every_packet_passes_contained_nfs_and_a_stop_leaves_nothing() {
    if !can(&RUNTIMES) {
        return;
    }
    let (_folder, root) = bridge();
    for runtime in RUNTIMES {
        let gen_keys = format!("count = {PACKETS}\nflows = 16\noverload = \"wait\"");
        let services = contained("a", &root, runtime, "") + &contained("b", &root, runtime, "user = \"65534\"\nmode = \"poll\"");
        let body = port("in", "gen", &gen_keys) + &port("out", "sink", "") + &services + &chain("c", "in", &["a", "b"], "out", "");
        let mut daemon = Daemon::start("", &body);
        daemon.wait_for_all("in", "out", PACKETS);
        let stats = daemon.stats();
        assert!(stats.nfs.iter().all(|nf| nf.rx_packets == PACKETS && nf.violations == 0), "{stats:#?}");
        let folders = fs::read_dir(daemon.run_dir().join(FOLDER)).unwrap().flatten();
        let folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
        assert_eq!(folders.len(), 2);
        let (a, b) = (pid_of(find_nf(&stats, "a.0")), pid_of(find_nf(&stats, "b.0")));
        assert_eq!((status(a, "Uid"), status(b, "Uid")), ("0 0 0 0".into(), "65534 65534 65534 65534".into()));
        assert_eq!(status(a, "Cpus_allowed_list"), find_nf(&stats, "a.0").core.to_string());
        daemon.stop();
        assert!(folders.iter().all(|folder| !folder.exists()));
        for leftover in [a, b] {
            wait_until_gone(leftover);
        }
    }
}

#[test]
fn a_container_has_nothing_of_the_host_but_its_socket() {
    if !can(&RUNTIMES) {
        return;
    }
    let (_folder, root) = bridge();
    for runtime in RUNTIMES {
        let mut daemon = Daemon::start("", &endless(&contained("a", &root, runtime, ""), &["a"], "restart"));
        let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
        let pid = pid_of(find_nf(&stats, "a.0"));
        for what in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            assert_ne!(namespace(pid, what), namespace(daemon.pid(), what), "{what}");
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(pid, set), "0000000000000000", "{set}");
        }
        assert_eq!((status(pid, "NoNewPrivs").as_str(), status(pid, "Seccomp").as_str()), ("1", "2"));
        // It is the first and only process that it sees.
        assert!(status(pid, "NSpid").ends_with(" 1"), "{}", status(pid, "NSpid"));
        let inside = PathBuf::from(format!("/proc/{pid}/root"));
        let seen = fs::read_dir(inside.join("proc")).unwrap().flatten();
        let seen = seen.filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit())).count();
        assert_eq!(seen, 1);
        // Its files are those of its root directory, which is read-only.
        let names = |folder: &Path| {
            let mut names: Vec<_> = fs::read_dir(folder).unwrap().flatten().map(|e| e.file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&inside), names(&root));
        assert!(!inside.join("etc").exists() && !inside.join("sys").exists());
        let mounts = fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap();
        let mut points: Vec<(&str, &str)> = mounts.lines().filter_map(|l| l.split_once(' ')?.1.split_once(' ')).collect();
        points.retain(|(_, rest)| !rest.starts_with("proc ") && !rest.starts_with("tmpfs ") && !rest.starts_with("devtmpfs "));
        let (mut shared, rest): (Vec<_>, Vec<_>) = points.into_iter().partition(|(at, _)| !at.starts_with("/dev/"));
        shared.sort_unstable();
        assert!(shared.len() == 2 && shared[0].0 == "/" && shared[1].0 == "/run/sluice/nf.sock", "{mounts}\n{rest:?}");
        assert!(shared[0].1.split(' ').nth(1).unwrap().split(',').any(|option| option == "ro"), "{mounts}");
        // No interface but the loopback, which is down.
        let interfaces = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
        assert_eq!(interfaces.lines().skip(2).map(|l| l.split(':').next().unwrap().trim()).collect::<Vec<_>>(), ["lo"]);
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/net/route")).unwrap().lines().count(), 1);
        // Nothing of the daemon's environment.
        let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        assert!(environment.contains("SLUICE_SOCKET=/run/sluice/nf.sock") && !environment.contains("CARGO"), "{environment}");
        daemon.stop();
    }
}

#[test]
fn each_flow_has_a_container_of_its_own() {
    if !can(&RUNTIMES) {
        return;
    }
    let (_folder, root) = bridge();
    for runtime in RUNTIMES {
        let keys = "per = \"flow\"\n[service.pool]\nmin = 2\nmax = 4\nqueue = 256";
        let body = port("in", "gen", "rate = 2000\nflows = 3\ncount = 3000\noverload = \"wait\"")
            + &port("out", "sink", "")
            + &contained("a", &root, runtime, keys)
            + &chain("c", "in", &["a"], "out", "");
        let mut daemon = Daemon::start("", &body);
        let stats = daemon.wait("each flow has its container, one of which was made for it", |s| pool(s, "a").assigned == 3);
        let pids: Vec<u32> = stats.nfs.iter().filter(|nf| nf.state == NfState::Running).map(pid_of).collect();
        let spaces: BTreeSet<PathBuf> = pids.iter().map(|pid| namespace(*pid, "mnt")).collect();
        assert!(pids.len() >= 3 && spaces.len() == pids.len(), "{pids:?} {spaces:?}");
        let stats = daemon.wait("all have passed", |s| find_port(s, "out").tx_packets == 3000);
        let of_each: Vec<u64> = stats.nfs.iter().map(|nf| nf.tx_packets).filter(|n| *n > 0).collect();
        assert_eq!(of_each, [1000; 3], "{runtime}");
        // Not before: a flow whose container starts slowly holds the others up.
        end_flows_soon(&daemon, "a");
        daemon.wait("those that are not needed any more are gone", |s| {
            pool(s, "a").ended == 3 && s.nfs.len() == 2 && pool(s, "a").idle == 2
        });
        daemon.wait_until_empty();
        daemon.stop();
        pids.into_iter().for_each(wait_until_gone);
    }
}

#[test]
fn a_killed_container_follows_on_failure() {
    if !can(&RUNTIMES) {
        return;
    }
    let (_folder, root) = bridge();
    for runtime in RUNTIMES {
        let mut daemon = Daemon::start("", &endless(&contained("a", &root, runtime, ""), &["a"], "restart"));
        let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
        let first = find_nf(&stats, "a.0").clone();
        let its_runtime = parent(pid_of(&first));
        assert_eq!(parent(its_runtime), daemon.pid(), "the runtime is the daemon's child");
        signal(&first, Signal::KILL);
        let back = daemon.wait("a.0 is back", |s| find_nf(s, "a.0").restarts == 1 && find_nf(s, "a.0").state == NfState::Running);
        wait_until_gone(its_runtime);
        let before = find_port(&back, "out").tx_packets;
        let stats = daemon.wait("its chain delivers", |s| find_port(s, "out").tx_packets > before + 500);
        // The same when the runtime is killed: its container goes with it.
        let second = find_nf(&stats, "a.0").clone();
        let pid = Pid::from_raw(parent(pid_of(&second)) as i32).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        wait_until_gone(pid_of(&second));
        daemon.wait("a.0 is back again", |s| find_nf(s, "a.0").restarts == 2 && find_nf(s, "a.0").state == NfState::Running);
        let folder = daemon.run_dir().join(FOLDER);
        let lives = move || fs::read_dir(&folder).map_or(0, Iterator::count);
        daemon.wait("what former lives left is gone", |_| lives() == 1);
        // The same when an instance is added and removed.
        daemon.client().add_nf("a", None).unwrap();
        let stats = daemon.wait("a.1 runs", |s| s.nfs.len() == 2 && find_nf(s, "a.1").state == NfState::Running);
        daemon.client().remove_nf("a.1").unwrap();
        wait_until_gone(pid_of(find_nf(&stats, "a.1")));
        daemon.wait("its folder is gone", |_| lives() == 1);
        daemon.stop();
    }
}

#[test]
fn a_killed_container_is_left_out() {
    if !can(&RUNTIMES) {
        return;
    }
    let (_folder, root) = bridge();
    let mut daemon = Daemon::start("", &endless(&contained("a", &root, "auto", ""), &["a"], "bypass"));
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
    signal(find_nf(&stats, "a.0"), Signal::KILL);
    let stats = daemon.wait("the hop is left out", |s| find_chain(s, "c").state == ChainState::Bypassing);
    let before = find_port(&stats, "out").tx_packets;
    daemon.wait("its chain delivers", |s| find_port(s, "out").tx_packets > before + 500);
    daemon.silence("c", "in");
    daemon.wait_until_empty();
    let folder = daemon.run_dir().join(FOLDER);
    daemon.wait("its folder is gone", |_| fs::read_dir(&folder).map_or(0, Iterator::count) == 0);
    assert_eq!(cgroups_of(&daemon), Vec::<PathBuf>::new(), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn containers_end_with_a_daemon_that_is_killed() {
    if !can(&RUNTIMES) {
        return;
    }
    let (_folder, root) = bridge();
    for runtime in RUNTIMES {
        let mut daemon = Daemon::start("", &endless(&contained("a", &root, runtime, ""), &["a"], "restart"));
        let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
        let nf = find_nf(&stats, "a.0").clone();
        // A stopped NF does not see that its daemon is gone. The kernel still ends it.
        signal(&nf, Signal::STOP);
        let its_runtime = parent(pid_of(&nf));
        daemon.end(Signal::KILL);
        wait_until_gone(pid_of(&nf));
        wait_until_gone(its_runtime);
        assert_eq!(fs::read_dir(daemon.run_dir().join(FOLDER)).unwrap().count(), 1, "its folder is left for the next start");
        assert_ne!(cgroups_of(&daemon), Vec::<PathBuf>::new());
        let mut next = {
            let before = cgroups_of(&daemon);
            let next = Daemon::again(daemon.into_folder());
            assert!(before.iter().all(|cgroup| !cgroup.exists()), "{before:?}");
            next
        };
        next.wait("packets flow again", |s| find_port(s, "out").tx_packets > 500);
        assert_eq!(fs::read_dir(next.run_dir().join(FOLDER)).unwrap().count(), 1);
        next.stop();
    }
}

#[test]
fn a_bundle_is_started_as_it_says() {
    if !can(&RUNTIMES) {
        return;
    }
    let (folder, _) = bridge();
    let bundle = folder.path();
    for runtime in RUNTIMES {
        let _ = fs::remove_file(bundle.join("config.json"));
        let spec = Command::new(if runtime == "crun" { "/usr/bin/crun" } else { "/usr/sbin/runc" })
            .arg("spec")
            .current_dir(bundle)
            .output();
        assert!(spec.unwrap().status.success());
        let text = fs::read_to_string(bundle.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["process"]["args"] = serde_json::json!(["/bin/nf"]);
        config["process"]["user"] = serde_json::json!({ "uid": 4242, "gid": 4242 });
        config["root"]["path"] = serde_json::json!("root");
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let service = format!(
            "[[service]]\nname = \"a\"\ncontainer = {{ bundle = {bundle:?}, runtime = \"{runtime}\" }}\n[service.env]\nX = \"y\"\n"
        );
        let mut daemon = Daemon::start("", &endless(&service, &["a"], "restart"));
        let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
        let pid = pid_of(find_nf(&stats, "a.0"));
        assert_eq!(status(pid, "Uid"), "4242 4242 4242 4242", "the user of its bundle may attach");
        assert_eq!(status(pid, "CapBnd"), "0000000000000000", "whatever its bundle says");
        assert!(fs::read_to_string(format!("/proc/{pid}/environ")).unwrap().contains("X=y"));
        daemon.stop();
    }
}

#[test]
fn a_container_speaks_for_its_own_nf_only() {
    if !can(&RUNTIMES) {
        return;
    }
    let (_folder, root) = bridge();
    // Its arguments make it attach under another NF's name.
    let liar = contained("liar", &root, "crun", "args = [\"--sluice-nf\", \"guest\"]");
    let services = contained("a", &root, "crun", "") + "[[service]]\nname = \"guest\"\nattach = true\n";
    let mut daemon = Daemon::start("", &endless(&services, &["a"], "restart"));
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
    signal(find_nf(&stats, "a.0"), Signal::STOP);
    let mut config = fs::read_to_string(daemon.folder().join("sluice.toml")).unwrap();
    config += &liar;
    fs::write(daemon.folder().join("sluice.toml"), config).unwrap();
    daemon.says(&["apply", daemon.folder().join("sluice.toml").to_str().unwrap()]);
    daemon.wait("the liar is refused", |s| find_nf(s, "liar.0").state != NfState::Starting);
    daemon.wait_for_log("a process in the container of another NF may not attach as guest.0");
    assert!(daemon.log().lines().any(|line| line.starts_with("liar.0: ") && line.contains("guest.0")), "{}", daemon.log());
    assert_eq!(find_nf(&daemon.stats(), "guest.0").state, NfState::Expected);
    signal(find_nf(&stats, "a.0"), Signal::CONT);
    daemon.stop();
}

#[test]
fn what_cannot_be_started_is_refused_before_anything_starts() {
    if !can(&RUNTIMES) {
        return;
    }
    let (folder, root) = bridge();
    let said = |service: &str| {
        let place = crate::support::open_folder();
        let output = refusal(place.path(), &(head(place.path(), "") + &endless(service, &["a"], "restart")));
        assert_eq!(output.status.code(), Some(1));
        assert!(!place.path().join("run").exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let bundle = folder.path();
    let without = said(&format!("[[service]]\nname = \"a\"\ncontainer = {{ bundle = {bundle:?} }}\n"));
    assert!(without.contains("sluice.toml:") && without.contains("cannot read the bundle's"), "{without}");
    let runtime = said(&contained("a", &root, "/usr/bin/no-such-runtime", ""));
    assert!(runtime.contains("sluice.toml:") && runtime.contains("there is no program /usr/bin/no-such-runtime"), "{runtime}");
    fs::remove_file(root.join("bin/nf")).unwrap();
    let program = said(&contained("a", &root, "auto", ""));
    assert!(program.contains("sluice.toml:") && program.contains("there is no program /bin/nf in the root directory"), "{program}");
}

#[test]
fn a_program_that_ends_at_once_is_reported() {
    if !can(&RUNTIMES) {
        return;
    }
    let folder = crate::support::open_folder();
    let root = folder.path().join("root");
    // It ends with an error about an unknown argument.
    root_of(&nf("sluice-nf-cost"), &root);
    for runtime in RUNTIMES {
        let place = crate::support::open_folder();
        let service = contained("a", &root, runtime, "args = [\"--no-such-argument\"]");
        let output = refusal(place.path(), &(head(place.path(), "") + &endless(&service, &["a"], "restart")));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let is_its = |line: &str| line.starts_with("a.0: ") && line.contains("--no-such-argument");
        assert!(said.lines().any(is_its), "its words come through, under its name: {said}");
        assert!(said.contains("a.0 ended before it was ready"), "{said}");
        assert!(!place.path().join("run").exists(), "{said}");
    }
}

/// The cgroups of a process by version 1 controller; version 2 has an empty name.
fn cgroups(pid: u32) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    lines.map(|(controller, path)| (controller.to_owned(), path.to_owned())).collect()
}

/// Names of all system calls, by the kernel's header, which comes with the C library's.
fn system_calls() -> Vec<String> {
    let header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
    let text = fs::read_to_string(header).unwrap_or_else(|error| panic!("{header}: {error}"));
    let names = text.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn a_container_is_bounded_and_its_bundle_allows_it_nothing_more() {
    if !can(&RUNTIMES) {
        return;
    }
    let (folder, _) = bridge();
    let bundle = folder.path();
    let is_mounted = |controller: &str| cgroups(std::process::id()).iter().any(|(name, _)| name == controller);
    // A filter that allows what it does not name, and one that denies that: it names all calls.
    let mut filters = vec![serde_json::json!({ "defaultAction": "SCMP_ACT_ALLOW" })];
    if cfg!(target_arch = "x86_64") {
        let all = serde_json::json!([{ "names": system_calls(), "action": "SCMP_ACT_ALLOW" }]);
        filters.push(serde_json::json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": all }));
    }
    for (runtime, filter) in RUNTIMES.iter().flat_map(|runtime| filters.iter().map(move |filter| (*runtime, filter))) {
        let _ = fs::remove_file(bundle.join("config.json"));
        let program = if runtime == "crun" { "/usr/bin/crun" } else { "/usr/sbin/runc" };
        assert!(Command::new(program).arg("spec").current_dir(bundle).output().unwrap().status.success());
        let text = fs::read_to_string(bundle.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["process"]["args"] = serde_json::json!(["/bin/nf", "hostile-nf", "reach"]);
        config["root"]["path"] = serde_json::json!("root");
        config["linux"]["seccomp"] = filter.clone();
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        root_of(&crate::support::hostile_nf(), &bundle.join("root"));
        let service =
            format!("[[service]]\nname = \"a\"\npids = 99\ncontainer = {{ bundle = {bundle:?}, runtime = \"{runtime}\" }}\n");
        let mut daemon = Daemon::start("", &endless(&service, &["a"], "restart"));
        let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
        daemon.wait_for_log("a.0: hostile: done");
        let log = daemon.log();
        let tried: Vec<&str> = log.lines().filter(|line| line.starts_with("a.0: hostile: ") && line.contains(" = ")).collect();
        assert!(tried.len() >= 12 && tried.iter().all(|line| !line.ends_with("= ok")), "{runtime}: {filter}: {tried:#?}");
        let nf = find_nf(&stats, "a.0");
        let pid = pid_of(nf);
        let of = |controller: &str| cgroups(pid).into_iter().find(|(name, _)| name == controller).map(|(_, path)| path);
        if is_mounted("pids") {
            daemon.wait("it is in its pen", |_| of("pids").is_some_and(|path| path.contains("-nfs/nf-a.0-")));
            let limit = Path::new("/sys/fs/cgroup/pids").join(of("pids").unwrap().trim_start_matches('/')).join("pids.max");
            assert_eq!(fs::read_to_string(&limit).unwrap().trim(), "99", "{limit:?}");
        }
        if is_mounted("cpuset") {
            let own = format!("-nfs/cores-{}", nf.core);
            daemon.wait("it is kept on its core", |_| of("cpuset").is_some_and(|path| path.ends_with(&own)));
        }
        daemon.stop();
    }
}
