//! What the tests share: a daemon that ends with its test, its configuration, and waiting for what it says.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use sluice_api::client::Client;
use sluice_api::model::{Chain, Memory, Nf, Port, Stats};
use sluice_host::process::Proc;
use sluice_host::record::Record;

/// How long anything may take, on a slow machine that does a lot besides.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The NFs that the tests run.
const NFS: [&str; 5] = ["sluice-nf-bridge", "sluice-nf-monitor", "sluice-nf-crypt", "sluice-nf-nat", "sluice-nf-cost"];

fn target() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sluiced")).parent().expect("a program lies in a folder")
}

/// Builds the client, the lab and the NFs, which other packages of the workspace hold, beside the daemon, where it looks for them. If they are there they are
/// taken as they are (`make test` has just built them): to build in the target folder of a `cargo test` that goes on would take
/// libraries away that its later parts need.
pub fn build_nfs() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let nfs = ["bridge", "monitor", "encrypt", "decrypt", "nat", "cost"].map(|nf| format!("sluice-nf-{nf}"));
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
        if cfg!(feature = "dpdk") {
            // As the daemon itself was built, so that its library is not built once more.
            cargo.args(["--features", "sluice-manager/dpdk"]);
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

/// The program that is an NF that breaks the rules, with the arguments `hostile-nf` and a mode.
pub fn hostile_nf() -> String {
    build_nfs();
    target().join("sluice-lab").display().to_string()
}

/// The program of the bridge that is a bad neighbour.
pub fn awkward_nf() -> String {
    build_nfs();
    target().join("examples/awkward_nf").display().to_string()
}

/// The program of the library's test NF: it says on its standard output when its handler is made and when it is forked, and wants a port
/// `wan` and a service `ids`.
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

/// A chain's section and the rule that leads there from a port of the chain's own.
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

/// A folder that NFs may enter and write to, which run as users of their own where the daemon is root.
pub fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    // After it was made: the umask takes nothing of this.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    folder
}

/// A copy of an NF's program in a folder that is open to others: what an NF's own script starts has to be there for its user, whatever
/// folder this was built in.
pub fn open_nf(folder: &Path, name: &str) -> String {
    let copy = folder.join(name);
    std::fs::copy(nf(name), &copy).unwrap();
    copy.display().to_string()
}

/// The head of a configuration: a small arena, so that several tests share a host.
pub fn head(folder: &Path, manager: &str) -> String {
    let run = folder.join("run");
    format!(
        "[manager]\nruntime_dir = {run:?}\n{manager}\n\
         [memory]\nframes = 4096\nhugepages = \"never\"\n"
    )
}

/// A command that runs the daemon on a configuration in this folder.
pub fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluiced"));
    command.arg(folder.join("sluice.toml")).stdin(Stdio::null());
    command
}

/// Runs the daemon on a configuration that it refuses, and says what it said.
pub fn refusal(folder: &Path, config: &str) -> Output {
    std::fs::write(folder.join("sluice.toml"), config).unwrap();
    command(folder).output().unwrap()
}

/// What each thread of a process waits for: its name, the kernel's function, and its system call with arguments.
fn threads(pid: u32) -> Vec<[String; 3]> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .map(|task| ["comm", "wchan", "syscall"].map(|file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default()))
        .collect()
}

impl Daemon {
    /// Starts a daemon with more keys of `[manager]` and the sections of `body`, and waits until it is ready.
    pub fn start(manager: &str, body: &str) -> Self {
        let folder = open_folder();
        let config = head(folder.path(), manager) + body;
        std::fs::write(folder.path().join("sluice.toml"), config).unwrap();
        Self::again(folder)
    }

    /// Starts a daemon on the configuration that lies in a folder.
    pub fn again(folder: tempfile::TempDir) -> Self {
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        Self::logging_to(folder, log.into())
    }

    /// Starts a daemon with more keys of `[manager]` and the sections of `body` whose log is a
    /// stream socket, as under systemd. What it says is found where it is elsewhere; if not
    /// `for_good`, until it is ready, and then the other end of the socket is closed.
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

    /// The folder of its configuration.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its runtime folder.
    pub fn run_dir(&self) -> PathBuf {
        self.folder().join("run")
    }

    /// What it has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    /// Waits until it has said this. What NFs say is logged a moment later.
    #[track_caller]
    pub fn wait_for_log(&self, what: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.log().contains(what) {
            assert!(Instant::now() < until, "it does not say {what:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(&self.run_dir().join("control.sock")).unwrap()
    }

    /// Its counters.
    pub fn stats(&mut self) -> Stats {
        let stats = self.client().stats().unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        self.seen.extend(stats.nfs.iter().filter_map(|nf| nf.pid));
        stats
    }

    /// Waits until its counters say what is waited for.
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

    /// Waits until a sink has had so many packets, and checks that it had each once and in order.
    #[track_caller]
    pub fn wait_for_all(&mut self, source: &str, sink: &str, packets: u64) {
        let stats = self.wait(&format!("{sink} has all of {source}"), |s| {
            let sink = find_port(s, sink);
            // The details are told a moment after the counters.
            let stamped = sink.details.get("stamped").is_some_and(|n| *n >= packets as f64);
            find_port(s, source).finished && sink.tx_packets >= packets && stamped
        });
        assert_nothing_amiss(&stats, sink, packets);
    }

    /// Waits until no packet is inside, and each frame is in the pool of its own memory, once. DPDK's
    /// devices keep some to receive into.
    #[track_caller]
    pub fn wait_until_empty(&mut self) {
        let config = std::fs::read_to_string(self.folder().join("sluice.toml")).unwrap_or_default();
        let have_devices = ["dpdk", "memif", "vhost-user"].iter().any(|word| config.contains(&format!("\"{word}\"")));
        self.wait("all frames are free", |s| {
            let is_whole = |memory: &Memory| memory.in_use == 0 && (have_devices || memory.free == memory.frames);
            s.status.memories.iter().all(is_whole) && s.nfs.iter().all(|nf| nf.frames_held == 0)
        });
    }

    /// Ends what a port of this chain sends.
    pub fn silence(&mut self, chain: &str, ingress: &str) {
        self.client().remove_rule(chain).unwrap();
        self.client().remove_port(ingress).unwrap();
    }

    /// Sends a signal to the daemon, and waits for its end.
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

    /// Waits until every process of an NF that was ever seen is gone.
    #[track_caller]
    pub fn wait_until_nfs_are_gone(&self) {
        let until = Instant::now() + PATIENCE;
        while let Some(pid) = self.seen.iter().find(|pid| is_alive(**pid)) {
            assert!(Instant::now() < until, "NF process {pid} is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the daemon as an operator does, and checks that it leaves nothing behind.
    #[track_caller]
    pub fn stop(self) {
        self.stop_and_log();
    }

    /// The same, and gives all that it has said: what its NFs have said is logged by then.
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

    /// Gives its folder away; the daemon has ended.
    pub fn into_folder(mut self) -> tempfile::TempDir {
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The kernel ends its NFs with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What outlives a killed daemon is in its record: namespaces, cgroups, what foreign programs have started.
        if self.run_dir().exists()
            && let Ok((record, _)) = Record::open(&self.run_dir(), Proc::default())
        {
            let _ = record.finish();
        }
    }
}

/// Whether there is a process of this number, collected or not.
pub fn is_alive(pid: u32) -> bool {
    Pid::from_raw(pid as i32).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Waits until a process has ended and was collected.
#[track_caller]
pub fn wait_until_gone(pid: u32) {
    let until = Instant::now() + PATIENCE;
    while is_alive(pid) {
        assert!(Instant::now() < until, "process {pid} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The parent of a process.
pub fn parent(pid: u32) -> u32 {
    let stat = sluice_host::process::Proc::default().stat(Pid::from_raw(pid as i32).unwrap()).unwrap();
    stat.ppid as u32
}

/// Sends a signal to the process of an NF.
pub fn signal(nf: &Nf, signal: Signal) {
    let pid = nf.pid.and_then(|pid| Pid::from_raw(pid as i32)).expect("it runs");
    kill_process(pid, signal).unwrap();
}

/// A port of this name.
#[track_caller]
pub fn find_port<'a>(stats: &'a Stats, name: &str) -> &'a Port {
    stats.ports.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}"))
}

/// An NF of this name.
#[track_caller]
pub fn find_nf<'a>(stats: &'a Stats, name: &str) -> &'a Nf {
    stats.nfs.iter().find(|nf| nf.name == name).unwrap_or_else(|| panic!("no NF {name}"))
}

/// A chain of this name.
#[track_caller]
pub fn find_chain<'a>(stats: &'a Stats, name: &str) -> &'a Chain {
    stats.chains.iter().find(|chain| chain.name == name).unwrap_or_else(|| panic!("no chain {name}"))
}

/// Checks that a sink has had so many packets of a generator, each once and in order.
#[track_caller]
pub fn assert_nothing_amiss(stats: &Stats, sink: &str, packets: u64) {
    let sink = find_port(stats, sink);
    assert_eq!(sink.tx_packets, packets);
    for (what, expected) in [("stamped", packets as f64), ("lost", 0.0), ("reordered", 0.0), ("duplicated", 0.0)] {
        assert_eq!(sink.details.get(what), Some(&expected), "{what} of {}: {:?}", sink.name, sink.details);
    }
}

/// The class SCHED_RR, as the kernel numbers it.
pub const RR: u32 = 2;

/// Class and real-time priority of a process's main thread, as in proc_pid_stat(5): fields 41 and 40.
pub fn class(pid: u32) -> (u32, u32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The second field is the program's name, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[41 - 3].parse().unwrap(), fields[40 - 3].parse().unwrap())
}
