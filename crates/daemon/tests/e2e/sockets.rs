//! NFs from outside that keep an SLO: each attaches by the SLO's socket, as the instance that it is
//! to be.

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use sluice_api::model::{Nf, NfState, Stats};

use crate::promises::{NEVER, PROMISES, assignment, on_demand};
use crate::skip::skip;
use crate::support::{Daemon, chain, find_chain, find_nf, nf, open_nf, port};

/// A user that owns nothing.
const NOBODY: u32 = 65_534;

/// An NF that ends with its test.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two chains whose NFs something else starts.
fn body() -> String {
    port("acme-in", "gen", "rate = 3000\noverload = \"wait\"\nflows = 64")
        + &port("rogue-in", "gen", "rate = 3000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + "[[service]]\nname = \"nf\"\nattach = true\ninstances = 0\n"
        + &chain("acme", "acme-in", &["nf"], "out", "")
        + &chain("rogue", "rogue-in", &["nf"], "out", "")
        + PROMISES
        + "cache = \"none\"\n"
}

fn folder(daemon: &Daemon, slo: &str) -> PathBuf {
    daemon.run_dir().join("attach").join(slo)
}

/// A command that starts a bridge under a name, by a socket.
fn bridge(program: &str, socket: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.env("SLUICE_SOCKET", socket).env("SLUICE_NF", name).current_dir("/").stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The same, by the socket of an SLO.
fn at(daemon: &Daemon, slo: &str, name: &str) -> Command {
    bridge(&nf("sluice-nf-bridge"), &folder(daemon, slo).join("nf.sock"), name)
}

fn come(daemon: &Daemon, slo: &str, name: &str) -> Guest {
    Guest(at(daemon, slo, name).spawn().unwrap())
}

/// What a bridge says that is not let in.
fn refused(mut command: Command) -> String {
    let ended = command.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{said}");
    said
}

fn windows(stats: &Stats, slo: &str) -> u64 {
    stats.promises.iter().find(|promise| promise.slo == slo).unwrap_or_else(|| panic!("no promise to {slo}")).windows
}

/// The NF of a service on a core.
fn on_core<'a>(stats: &'a Stats, service: &str, core: u32) -> &'a Nf {
    stats.nfs.iter().find(|nf| nf.service == service && nf.core == core).unwrap_or_else(|| panic!("{:?}", stats.nfs))
}

#[test]
fn an_nf_from_outside_is_the_instance_that_it_names_and_so_is_the_next_one() {
    let mut daemon = Daemon::start("", &body());
    let wanted = assignment(&[("acme", &[0, 2], 0, 5e3), ("rogue", &[3], 0, 5e3)]);
    daemon.client().place(&wanted).unwrap();
    assert_eq!(daemon.client().placement().unwrap(), wanted, "it does not wait for them");
    let stats = daemon.stats();
    assert!(stats.nfs.iter().all(|nf| nf.state == NfState::Expected) && stats.nfs.len() == 3, "{:?}", stats.nfs);

    // The second place of core 0 is that of no instance; the third is on core 1.
    let guest = come(&daemon, "acme", "nf/1");
    let stats = daemon.wait("packets flow", |s| find_chain(s, "acme").exit_packets > 500);
    let own = on_core(&stats, "acme-nf", 1).clone();
    assert_eq!((own.state, own.pid), (NfState::Running, Some(guest.0.id())));
    let status = std::fs::read_to_string(format!("/proc/{}/status", guest.0.id())).unwrap();
    assert!(status.lines().any(|line| line == "Cpus_allowed_list:\t1"), "{status}");
    let stats = daemon.wait("windows of it", |s| windows(s, "acme") > 1);
    assert_eq!(windows(&stats, "rogue"), 0, "new until the first has attached");

    // A name has one process. Each socket is of one SLO.
    let said = refused(at(&daemon, "acme", "nf/1"));
    assert!(said.contains("is running already; an NF has one process"), "{said}");
    for name in ["rogue-nf.0", "nf/7", "other"] {
        let said = refused(at(&daemon, "acme", name));
        assert!(said.contains(&format!("the socket of the SLO acme, which has no free instance {name:?}")), "{said}");
        assert!(said.contains("nf/0") && said.contains("nf/1"), "{said}");
    }
    let said = refused(bridge(&nf("sluice-nf-bridge"), &daemon.run_dir().join("nf.sock"), "rogue-nf.0"));
    assert!(said.contains("attaches by the socket of that SLO alone"), "{said}");
    assert_eq!(find_nf(&daemon.stats(), "rogue-nf.0").state, NfState::Expected);

    drop(guest);
    daemon.wait("it is expected again", |s| find_nf(s, &own.name).state == NfState::Expected);
    let next = come(&daemon, "acme", "nf/1");
    daemon.wait("the next one is it", |s| find_nf(s, &own.name).pid == Some(next.0.id()));
    let before = find_chain(&daemon.stats(), "acme").exit_packets;
    daemon.wait("packets flow again", |s| find_chain(s, "acme").exit_packets > before + 500);
    // Any free instance, by the service alone.
    let other = come(&daemon, "acme", "nf");
    daemon.wait("the other instance", |s| on_core(s, "acme-nf", 0).pid == Some(other.0.id()));

    daemon.client().withdraw().unwrap();
    assert!(!folder(&daemon, "acme").exists() && !folder(&daemon, "rogue").exists());
    let said = refused(at(&daemon, "acme", "nf/1"));
    assert!(said.contains("cannot connect to the manager"), "{said}");
    drop((next, other));
    daemon.stop();
}

#[test]
fn the_folder_of_an_slos_socket_is_the_right_to_attach() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let mut daemon = Daemon::start("", &body());
    std::fs::set_permissions(daemon.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = open_nf(daemon.folder(), "sluice-nf-bridge");
    daemon.client().place(&assignment(&[("acme", &[0], 0, 5e3), ("rogue", &[3], 0, 5e3)])).unwrap();
    let as_nobody = |socket: &Path, name: &str| {
        let mut command = bridge(&program, socket, name);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    // The host's other users do not come there.
    let said = refused(as_nobody(&folder(&daemon, "acme").join("nf.sock"), "nf/0"));
    assert!(said.contains("Permission denied"), "{said}");
    // A container has the folder without the way to it; so has a process with its descriptor.
    let mount = rustix::fs::open(folder(&daemon, "acme"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let there = PathBuf::from(format!("/proc/self/fd/{}/nf.sock", mount.as_raw_fd()));
    let said = refused(as_nobody(&there, "rogue-nf.0"));
    assert!(said.contains("the socket of the SLO acme"), "{said}");
    let guest = Guest(as_nobody(&there, "nf/0").spawn().unwrap());
    daemon.wait("packets flow", |s| find_chain(s, "acme").exit_packets > 500);
    assert_eq!(find_nf(&daemon.stats(), "acme-nf.0").pid, Some(guest.0.id()));
    drop(guest);
    daemon.stop();
}

#[test]
fn an_slo_on_demand_asks_for_instances_that_others_start() {
    let mut daemon = Daemon::start("", &body());
    let mut wanted = assignment(&[("acme", &[0], 0, 5e3)]);
    on_demand(&mut wanted, "acme", NEVER, 2);
    daemon.client().place(&wanted).unwrap();
    let guest = come(&daemon, "acme", "nf/0");
    let stats = daemon.wait("it asks", |s| {
        s.promises.iter().any(|promise| promise.steered.as_ref().is_some_and(|steered| steered.asks_for.is_some()))
    });
    let asked = stats.promises[0].steered.as_ref().unwrap().asks_for.as_ref().unwrap();
    assert!(asked.instances == 2 && asked.why.contains("only what starts them can place one more"), "{asked:?}");
    assert_eq!(stats.nfs.len(), 1, "{:?}", stats.nfs);
    drop(guest);
    daemon.stop();
}
