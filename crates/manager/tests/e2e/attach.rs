//! NFs that come by themselves: started by somebody else, perhaps as another user.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sluice_manager::control::model::NfState;

use crate::support::{Daemon, chain, find_nf, find_port, nf, port};

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

/// Starts a bridge as another user, which looks for the daemon by its environment.
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

/// A daemon whose sockets everybody can reach, and a copy of the bridge that everybody may run: the folder of the build may be closed.
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
        eprintln!("left out: only root can become another user");
        return;
    }
    let (mut daemon, program) = open_daemon(&format!("user = \"{NOBODY}\""));
    // Another one than the service's may not.
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
        eprintln!("left out: only root can become another user");
        return;
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
