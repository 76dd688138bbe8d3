//! NFs that attach by themselves: another process, or user, starts them.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sluice_api::model::NfState;

use crate::skip::skip;
use crate::support::{
    Daemon, PATIENCE, chain, find_nf, find_port, hostile_nf, nf, open_folder, open_nf, parent, port, service, signal,
};

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

/// Starts a bridge as another user; its environment names the daemon.
fn start(program: &Path, daemon: &Daemon, name: &str, uid: u32) -> Child {
    let mut command = Command::new(program);
    command.env("SLUICE_SOCKET", daemon.run_dir().join("nf.sock")).env("SLUICE_NF", name);
    command.uid(uid).gid(uid).current_dir("/").stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn attaching(keys: &str) -> String {
    port("in", "gen", "rate = 5000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &format!("[[service]]\nname = \"guest\"\nattach = true\n{keys}\n")
        + &chain("c", "in", &["guest"], "out", "")
}

/// A daemon and a bridge that all users reach: the build folder may be closed.
fn open_daemon(keys: &str) -> (Daemon, std::path::PathBuf) {
    let daemon = Daemon::start("", &attaching(keys));
    std::fs::set_permissions(daemon.folder(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = daemon.folder().join("bridge");
    std::fs::copy(nf("sluice-nf-bridge"), &program).unwrap();
    (daemon, program)
}

#[test]
fn an_nf_attaches_as_the_user_of_its_service() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (mut daemon, program) = open_daemon(&format!("user = \"{NOBODY}\""));
    // Any other user may not attach.
    let refused = start(&program, &daemon, "guest", NOBODY - 1).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("may not attach"), "{said}");
    assert_eq!(find_nf(&daemon.stats(), "guest.0").state, NfState::Expected);

    let guest = Guest(start(&program, &daemon, "guest", NOBODY));
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
    assert_eq!(find_nf(&daemon.stats(), "guest.0").pid, Some(guest.0.id()));
    drop(guest);
    daemon.wait("it is expected again", |s| find_nf(s, "guest.0").state == NfState::Expected);
    daemon.stop();
}

#[test]
fn without_a_user_only_root_and_the_managers_own_attach() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (mut daemon, program) = open_daemon("");
    let refused = start(&program, &daemon, "guest.0", NOBODY).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("set `user` of the service"), "{said}");
    let guest = Guest(start(&program, &daemon, "guest.0", 0));
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
    drop(guest);
    daemon.stop();
}

/// Starts a program under an NF's name, as the daemon's own user.
fn come_as(program: &str, arguments: &[&str], daemon: &Daemon, name: &str) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).env("SLUICE_SOCKET", daemon.run_dir().join("nf.sock")).env("SLUICE_NF", name);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn one_that_was_stopped_for_cause_is_let_in_again_after_a_pause_only() {
    let mut daemon = Daemon::start("", &attaching(""));
    let hostile = Guest(come_as(&hostile_nf(), &["hostile-nf", "random"], &daemon, "guest"));
    let stats = daemon.wait("it is stopped", |s| find_nf(s, "guest.0").stops == 1 && find_nf(s, "guest.0").pid.is_none());
    drop(hostile);
    // On a busy host the pause may be over before this one comes, which is then let in.
    if find_nf(&stats, "guest.0").state == NfState::Failed {
        let mut early = Guest(come_as(&nf("sluice-nf-bridge"), &[], &daemon, "guest.0"));
        daemon.wait("it is refused, or let in", |s| {
            early.0.try_wait().unwrap().is_some() || find_nf(s, "guest.0").pid == Some(early.0.id())
        });
        if early.0.try_wait().unwrap().is_some() {
            let mut said = String::new();
            early.0.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
            assert!(said.contains("it is let in again in"), "{said}");
        }
    }
    daemon.wait("the pause is over", |s| find_nf(s, "guest.0").state == NfState::Expected);
    let guest = Guest(come_as(&nf("sluice-nf-bridge"), &[], &daemon, "guest"));
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
    drop(guest);
    daemon.wait("who leaves without a cause is expected at once", |s| find_nf(s, "guest.0").state == NfState::Expected);
    let log = daemon.log();
    let wanted = ["guest.0 has ended after ", ": stopped for violations: ", "; it is let in again in "];
    assert!(wanted.iter().all(|words| log.contains(words)), "{log}");
    daemon.stop();
}

#[test]
fn a_name_that_the_daemon_starts_is_not_given_to_another_process() {
    let folder = open_folder();
    let (script, hold) = (folder.path().join("slow"), folder.path().join("hold"));
    let bridge = open_nf(folder.path(), "sluice-nf-bridge");
    let text = format!("#!/bin/sh\nwhile [ -e {} ]; do sleep 0.05; done\nexec {bridge} \"$@\"\n", hold.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let body = port("in", "gen", "rate = 5000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &service("own", &script.display().to_string(), "")
        + &chain("c", "in", &["own"], "out", "on_failure = \"restart\"");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 500);
    std::fs::write(&hold, "").unwrap();
    signal(find_nf(&stats, "own.0"), Signal::KILL);
    daemon.wait("it is starting again", |s| find_nf(s, "own.0").state == NfState::Starting);
    // It has the same user and the environment of the real one.
    let refused = come_as(&bridge, &[], &daemon, "own.0").wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("neither that one nor a child of it"), "{said}");
    assert!(daemon.log().contains("said that it is own.0"), "{}", daemon.log());
    std::fs::remove_file(&hold).unwrap();
    let before = find_port(&stats, "out").tx_packets;
    let back = daemon.wait("its chain delivers", |s| find_port(s, "out").tx_packets > before + 500);
    assert_eq!(parent(find_nf(&back, "own.0").pid.unwrap()), daemon.pid());
    assert_eq!(find_nf(&back, "own.0").restarts, 1);
    daemon.stop();
}

#[test]
fn a_flood_of_connections_does_not_fill_the_log() {
    const MANY: usize = 3_000;
    let daemon = Daemon::start("", &attaching(""));
    let since = Instant::now();
    let socket = rustix::net::SocketAddrUnix::new(daemon.run_dir().join("nf.sock")).unwrap();
    for _ in 0..MANY {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let own = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&own, &socket).unwrap();
    }
    let said = |log: &str| log.lines().filter(|line| line.contains("a connection to the NF socket")).count();
    let until = Instant::now() + PATIENCE;
    while !daemon.log().contains("more such lines left out") {
        assert!(Instant::now() < until, "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    // One line a second of each of the few kinds.
    let most = 3 * (since.elapsed().as_secs() as usize + 2);
    assert!(said(&daemon.log()) <= most.min(MANY / 2), "{}", daemon.log());
    daemon.stop();
}
