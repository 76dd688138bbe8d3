//! What the tests share: a daemon that ends with its test, and waits for its state.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use sluice_api::ErrorKind;
use sluice_api::client::{Client, ClientError};
use sluice_api::model::{Chain, Memory, Nf, Port, Stats};
use sluice_host::process::Proc;
use sluice_host::record::Record;

/// Time limit of every wait, generous for a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Packages of the NFs that the tests run.
const NFS: [&str; 6] =
    ["sluice-nf-bridge", "sluice-nf-monitor", "sluice-nf-crypt", "sluice-nf-firewall", "sluice-nf-nat", "sluice-nf-cost"];

fn target() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sluiced")).parent().expect("a program lies in a folder")
}

/// Builds the client, the lab and the NFs beside the daemon, where it finds them.
/// Existing programs are taken as they are (`make test` has just built them): a build in the target
/// folder of a running `cargo test` would remove libraries that later parts of it need.
pub fn build_nfs() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let nfs = ["bridge", "monitor", "encrypt", "decrypt", "firewall", "nat", "cost"].map(|nf| format!("sluice-nf-{nf}"));
        let examples = ["test_nf", "flow_nf", "awkward_nf"].map(|nf| format!("examples/{nf}"));
        let programs = nfs.into_iter().chain(examples).chain(["sluice", "sluice-lab"].map(str::to_string));
        if { programs }.all(|program| target().join(program).exists()) {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.arg("build").arg("--quiet").current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.arg("--target-dir").arg(target().parent().expect("a profile's folder lies in the target folder"));
        if target().ends_with("release") {
            cargo.arg("--release");
        }
        let mut nfs = Command::new(cargo.get_program());
        nfs.args(cargo.get_args()).current_dir(env!("CARGO_MANIFEST_DIR")).arg("--bins");
        NFS.iter().for_each(|nf| {
            nfs.args(["-p", nf]);
        });
        assert!(nfs.status().expect("cargo runs").success(), "build the NFs: cargo build --workspace");
        for (name, built) in [("test_nf", "test NF"), ("flow_nf", "NF for flows"), ("awkward_nf", "bad neighbour")] {
            let mut example = Command::new(cargo.get_program());
            example.args(cargo.get_args()).current_dir(env!("CARGO_MANIFEST_DIR")).args(["-p", "sluice-nf", "--example", name]);
            assert!(example.status().expect("cargo runs").success(), "build the {built}: cargo build -p sluice-nf --examples");
        }
        cargo.args(["-p", "sluice-client", "-p", "sluice-lab"]);
        // The daemon's own features, so that its library is not built once more.
        for (feature, is_there) in [("dpdk", cfg!(feature = "dpdk")), ("otel", cfg!(feature = "otel"))] {
            if is_there {
                cargo.args(["--features", &format!("sluice-daemon/{feature}")]);
            }
        }
        assert!(cargo.status().expect("cargo runs").success(), "build client and lab: cargo build -p sluice-client -p sluice-lab");
    });
}

/// The client's program.
pub fn sluice() -> PathBuf {
    build_nfs();
    target().join("sluice")
}

/// The path of an NF's program.
pub fn nf(name: &str) -> String {
    build_nfs();
    target().join(name).display().to_string()
}

/// The program of an NF that breaks the rules; takes `hostile-nf` and a mode.
pub fn hostile_nf() -> String {
    build_nfs();
    target().join("sluice-lab").display().to_string()
}

/// The program of a bridge that is a bad neighbour.
pub fn awkward_nf() -> String {
    build_nfs();
    target().join("examples/awkward_nf").display().to_string()
}

/// The program of the library's test NF.
/// It prints when its handler is made and when it is forked; it needs port `wan`, service `ids`.
pub fn test_nf() -> String {
    target().join("examples/test_nf").display().to_string()
}

/// The program of the NF that has one flow at a time.
pub fn flow_nf() -> String {
    build_nfs();
    target().join("examples/flow_nf").display().to_string()
}

/// A port's section.
pub fn port(name: &str, kind: &str, keys: &str) -> String {
    format!("[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\n{keys}\n")
}

/// A service's section.
pub fn service(name: &str, exec: &str, keys: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nexec = \"{exec}\"\n{keys}\n")
}

/// A chain's section, and a rule that leads there from the port `ingress`.
pub fn chain(name: &str, ingress: &str, services: &[&str], egress: &str, keys: &str) -> String {
    format!(
        "[[chain]]\nname = \"{name}\"\nservices = {services:?}\negress = \"{egress}\"\n{keys}\n\
         [[rule]]\nname = \"{name}\"\nport = \"{ingress}\"\nchain = \"{name}\"\n"
    )
}

/// A daemon that ends with its test.
pub struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
    seen: Vec<u32>,
}

/// A folder that NFs may enter and write to, whatever user they run as.
pub fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    // Not at creation, where the umask would mask bits.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    folder
}

/// A copy of an NF's program in a folder that is open to other users.
/// An NF's script must be able to start it as its own user, wherever this was built.
pub fn open_nf(folder: &Path, name: &str) -> String {
    let copy = folder.join(name);
    std::fs::copy(nf(name), &copy).unwrap();
    copy.display().to_string()
}

/// The head of a configuration; its small arena lets several tests share a host.
pub fn head(folder: &Path, manager: &str) -> String {
    let run = folder.join("run");
    format!(
        "[manager]\nruntime_dir = {run:?}\n{manager}\n\
         [memory]\nframes = 4096\nhugepages = \"never\"\n"
    )
}

/// A command that runs the daemon on the configuration in a folder.
pub fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluiced"));
    command.arg(folder.join("sluice.toml")).stdin(Stdio::null());
    command
}

/// Runs the daemon on a configuration that it refuses; returns its output.
pub fn refusal(folder: &Path, config: &str) -> Output {
    std::fs::write(folder.join("sluice.toml"), config).unwrap();
    command(folder).output().unwrap()
}

/// Name, kernel wait function and system call of each of a process's threads.
fn threads(pid: u32) -> Vec<[String; 3]> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .map(|task| ["comm", "wchan", "syscall"].map(|file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default()))
        .collect()
}

impl Daemon {
    /// Starts a daemon with more keys of `[manager]` and `body`; waits until ready.
    pub fn start(manager: &str, body: &str) -> Self {
        let folder = open_folder();
        let config = head(folder.path(), manager) + body;
        std::fs::write(folder.path().join("sluice.toml"), config).unwrap();
        Self::again(folder)
    }

    /// Starts a daemon on the configuration in a folder.
    pub fn again(folder: tempfile::TempDir) -> Self {
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        Self::logging_to(folder, log.into())
    }

    /// As [`Self::start`], with a stream socket as the log, as under systemd.
    /// The log is copied to the usual file: for good, or until the daemon is ready, when the other
    /// end of the socket is closed.
    pub fn start_on_socket(manager: &str, body: &str, for_good: bool) -> Self {
        let folder = open_folder();
        std::fs::write(folder.path().join("sluice.toml"), head(folder.path(), manager) + body).unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut log = std::fs::File::create(folder.path().join("log")).unwrap();
        let reader = std::thread::spawn(move || {
            for line in std::io::BufRead::lines(std::io::BufReader::new(ours)).map_while(Result::ok) {
                writeln!(log, "{line}").unwrap();
                if !for_good && line.starts_with("sluiced: ready") {
                    return;
                }
            }
        });
        let daemon = Self::logging_to(folder, theirs.into());
        if !for_good {
            reader.join().unwrap();
        }
        daemon
    }

    fn logging_to(folder: tempfile::TempDir, log: std::os::fd::OwnedFd) -> Self {
        build_nfs();
        let child = command(folder.path()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut daemon = Self { child, folder, seen: Vec::new() };
        let until = Instant::now() + PATIENCE;
        while !daemon.log().contains("sluiced: ready") {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("sluiced ended with {status}:\n{}", daemon.log());
            }
            assert!(Instant::now() < until, "sluiced is not ready:\n{}", daemon.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon.stats();
        daemon
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn run_dir(&self) -> PathBuf {
        self.folder().join("run")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    /// Waits until its log contains `what`. The output of NFs comes a moment later.
    #[track_caller]
    pub fn wait_for_log(&self, what: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.log().contains(what) {
            assert!(Instant::now() < until, "it does not say {what:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// `sluice` with these arguments, which asks this daemon.
    pub fn sluice(&self, args: &[&str]) -> Command {
        let mut command = Command::new(sluice());
        command.arg("--socket").arg(self.run_dir().join("control.sock")).args(args);
        command
    }

    /// What `sluice` writes; it must succeed.
    #[track_caller]
    pub fn says(&self, args: &[&str]) -> String {
        let output = self.sluice(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn client(&self) -> Client {
        Client::new(&self.run_dir().join("control.sock")).unwrap()
    }

    /// Its counters. Remembers the processes of NFs, for checks that they are gone.
    pub fn stats(&mut self) -> Stats {
        let until = Instant::now() + PATIENCE;
        let stats = loop {
            match self.client().stats() {
                Ok(stats) => break stats,
                // It is said to try again: the host may be busy.
                Err(ClientError::Api(error)) if error.kind == ErrorKind::Timeout && Instant::now() < until => {}
                Err(error) => panic!("{error}\n{}", self.log()),
            }
        };
        self.seen.extend(stats.nfs.iter().filter_map(|nf| nf.pid));
        stats
    }

    /// Waits until its counters fulfil `is`.
    #[track_caller]
    pub fn wait(&mut self, what: &str, mut is: impl FnMut(&Stats) -> bool) -> Stats {
        let until = Instant::now() + PATIENCE;
        loop {
            let stats = self.stats();
            if is(&stats) {
                return stats;
            }
            if Instant::now() > until {
                panic!("waited in vain until {what}:\n{stats:#?}\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a sink has `packets` packets; checks for each, once and in order.
    #[track_caller]
    pub fn wait_for_all(&mut self, source: &str, sink: &str, packets: u64) {
        let stats = self.wait(&format!("{sink} has all of {source}"), |s| {
            let sink = find_port(s, sink);
            // Details are updated a moment after the counters.
            let stamped = sink.details.get("stamped").is_some_and(|n| *n >= packets as f64);
            find_port(s, source).finished && sink.tx_packets >= packets && stamped
        });
        assert_nothing_amiss(&stats, sink, packets);
    }

    /// Waits until no packet is inside, and each memory's pool has all its frames.
    /// DPDK's devices keep some to receive into.
    #[track_caller]
    pub fn wait_until_empty(&mut self) {
        let config = std::fs::read_to_string(self.folder().join("sluice.toml")).unwrap_or_default();
        let have_devices = ["dpdk", "af_xdp", "memif", "vhost-user"].iter().any(|word| config.contains(&format!("\"{word}\"")));
        self.wait("all frames are free", |s| {
            let is_whole = |memory: &Memory| memory.in_use == 0 && (have_devices || memory.free == memory.frames);
            s.status.memories.iter().all(is_whole) && s.nfs.iter().all(|nf| nf.frames_held == 0)
        });
    }

    /// Removes a chain's rule, which has the chain's name; checks that each packet that entered has
    /// left, once and in order.
    #[track_caller]
    pub fn settle(&mut self, chain: &str, sink: &str) -> Stats {
        self.client().remove_rule(chain).unwrap();
        let stats = self.wait("its packets have left", |s| {
            let (entered, sink) = (find_chain(s, chain).entry_packets, find_port(s, sink));
            entered == sink.tx_packets && sink.details.get("stamped") == Some(&(entered as f64))
        });
        assert_nothing_amiss(&stats, sink, find_chain(&stats, chain).entry_packets);
        stats
    }

    /// Removes a chain's rule, which has the chain's name, and its ingress port.
    pub fn silence(&mut self, chain: &str, ingress: &str) {
        self.client().remove_rule(chain).unwrap();
        self.client().remove_port(ingress).unwrap();
    }

    /// Sends a signal to the daemon and waits for its end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "sluiced does not end: {:#?}\n{}", threads(self.pid()), self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until all NF processes that were ever seen have ended.
    #[track_caller]
    pub fn wait_until_nfs_are_gone(&self) {
        let until = Instant::now() + PATIENCE;
        while let Some(pid) = self.seen.iter().find(|pid| is_alive(**pid)) {
            assert!(Instant::now() < until, "NF process {pid} is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the daemon as an operator does; checks that it leaves nothing behind.
    #[track_caller]
    pub fn stop(self) {
        self.stop_and_log();
    }

    /// As [`Self::stop`]; returns the whole log, which by then has all output of NFs.
    #[track_caller]
    pub fn stop_and_log(mut self) -> String {
        self.stats();
        let status = self.end(Signal::TERM);
        assert!(status.success(), "{status}:\n{}", self.log());
        if let Ok(left) = std::fs::read_dir(self.run_dir()) {
            let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
            let record = std::fs::read_to_string(self.run_dir().join("record"));
            panic!("{left:?} is left in the runtime directory; record: {record:?}; log:\n{}", self.log());
        }
        if let Some(pid) = self.seen.iter().find(|pid| is_alive(**pid)) {
            panic!("NF process {pid} is left");
        }
        self.log()
    }

    /// Returns its folder; the daemon has ended.
    pub fn into_folder(mut self) -> tempfile::TempDir {
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The kernel ends its NFs with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its record names what outlives a killed daemon: namespaces, cgroups, foreign processes.
        if self.run_dir().exists()
            && let Ok((record, _)) = Record::open(&self.run_dir(), Proc::default())
        {
            let _ = record.finish();
        }
    }
}

/// Whether there is a process of this number; a zombie counts.
pub fn is_alive(pid: u32) -> bool {
    Pid::from_raw(pid as i32).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Waits until a process has ended and was reaped.
#[track_caller]
pub fn wait_until_gone(pid: u32) {
    let until = Instant::now() + PATIENCE;
    while is_alive(pid) {
        assert!(Instant::now() < until, "process {pid} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn parent(pid: u32) -> u32 {
    let stat = sluice_host::process::Proc::default().stat(Pid::from_raw(pid as i32).unwrap()).unwrap();
    stat.ppid as u32
}

pub fn signal(nf: &Nf, signal: Signal) {
    let pid = nf.pid.and_then(|pid| Pid::from_raw(pid as i32)).expect("it runs");
    kill_process(pid, signal).unwrap();
}

/// Processes that have this word as an argument: an NF's, and what it has forked.
pub fn named(word: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        // Compares whole arguments: neither the daemon nor the test runner matches.
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    };
    pids.filter(is_it).collect()
}

#[track_caller]
pub fn wait_until_none(word: &str) {
    let until = Instant::now() + PATIENCE;
    while !named(word).is_empty() {
        assert!(Instant::now() < until, "{word}: {:?} are left", named(word));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The line of a version 1 controller in `/proc/PID/cgroup`, if this host has it; that of version 2
/// for `""`.
pub fn cgroup_of(pid: u32, controller: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let has_it = |line: &&str| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == controller));
    text.lines().find(has_it).map(str::to_owned)
}

#[track_caller]
pub fn find_port<'a>(stats: &'a Stats, name: &str) -> &'a Port {
    stats.ports.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}"))
}

#[track_caller]
pub fn find_nf<'a>(stats: &'a Stats, name: &str) -> &'a Nf {
    stats.nfs.iter().find(|nf| nf.name == name).unwrap_or_else(|| panic!("no NF {name}"))
}

#[track_caller]
pub fn find_chain<'a>(stats: &'a Stats, name: &str) -> &'a Chain {
    stats.chains.iter().find(|chain| chain.name == name).unwrap_or_else(|| panic!("no chain {name}"))
}

/// Checks that a sink has `packets` packets of a generator, each once and in order.
#[track_caller]
pub fn assert_nothing_amiss(stats: &Stats, sink: &str, packets: u64) {
    let sink = find_port(stats, sink);
    assert_eq!(sink.tx_packets, packets);
    for (what, expected) in [("stamped", packets as f64), ("lost", 0.0), ("reordered", 0.0), ("duplicated", 0.0)] {
        assert_eq!(sink.details.get(what), Some(&expected), "{what} of {}: {:?}", sink.name, sink.details);
    }
}

/// The kernel's number of SCHED_RR.
pub const RR: u32 = 2;

/// Class and real-time priority of a main thread: proc_pid_stat(5), fields 41, 40.
pub fn class(pid: u32) -> (u32, u32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The second field is the program's name, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[41 - 3].parse().unwrap(), fields[40 - 3].parse().unwrap())
}
