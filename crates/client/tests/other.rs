//! Other programs that the client starts, replaced by scripts beside a copy of it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by each test: a program cannot be started while another test's child still has its file
/// open for writing.
static ALONE: Mutex<()> = Mutex::new(());

struct Folder(tempfile::TempDir, #[allow(dead_code)] MutexGuard<'static, ()>);

impl Folder {
    /// A folder with the client.
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_sluice"), folder.path().join("sluice")).unwrap();
        Self(folder, alone)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.path("elsewhere").display());
        Command::new(self.path("sluice")).args(args).env("PATH", path).env("SLUICE_CONTROL", "/nowhere/s").output().unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_lab_takes_the_clients_place() {
    let folder = Folder::new();
    folder.script("sluice-lab", "echo \"$$ $SLUICE_CONTROL $*\"\necho wrong >&2\nexit 7");
    let args = ["--socket", "/run/a socket", "bench", "chain", "--only", "a,b", "--seconds", "2"];
    let child = Command::new(folder.path("sluice"))
        .args(args)
        .env("SLUICE_CONTROL", "/nowhere/s")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), format!("{pid} /nowhere/s {}\n", args.join(" ")), "the same process");
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(7), "wrong\n"));
    // The client reports bad arguments and prints lists itself.
    let wrong = folder.run(&["profile", "nat", "--traffic", "colour=1"]);
    assert!(wrong.status.code() == Some(2) && text(&wrong.stderr).contains("\"colour=1\" names no traffic"), "{wrong:?}");
    let help = folder.run(&["bench", "--help"]);
    assert!(help.status.success() && text(&help.stdout).contains("sluice bench chain --only default"), "{help:?}");
    let completions = folder.run(&["completions", "bash"]);
    assert!(text(&completions.stdout).contains("--leave-old") && text(&completions.stdout).contains("--in-steps"));
}

#[test]
fn the_lab_is_looked_for_in_path_and_missed_with_one_line() {
    let folder = Folder::new();
    let out = folder.run(&["bench"]);
    let said = text(&out.stderr);
    assert!(said.lines().count() == 1 && said.starts_with("sluice: ") && said.contains("install the package sluice-lab"), "{said}");
    assert_eq!(out.status.code(), Some(1));
    folder.script("elsewhere/sluice-lab", "echo here");
    assert_eq!(text(&folder.run(&["bench"]).stdout), "here\n");
}

#[test]
fn a_cluster_is_asked_by_a_program_of_its_own() {
    let folder = Folder::new();
    folder.script("sluice-lab", "echo lab");
    for args in [
        &["slo", "list", "--cluster"][..],
        &["slo", "add", "--cluster", "--namespace", "acme", "-n", "web.yaml"],
        &["slo", "show", "web", "--cluster", "-n", "acme"],
        &["slo", "remove", "web", "--cluster"],
        &["plan", "show", "--cluster"],
        &["top", "--cluster", "-A"],
    ] {
        folder.script("sluice-cluster", "echo \"$*\"");
        assert_eq!(text(&folder.run(args).stdout), format!("{}\n", args.join(" ")));
        std::fs::remove_file(folder.path("sluice-cluster")).unwrap();
        let out = folder.run(args);
        let said = text(&out.stderr);
        let is_clear =
            said.starts_with("sluice: this command needs the program sluice-cluster, ") && said.contains("`make install-cluster`");
        assert!(is_clear && said.lines().count() == 1 && out.status.code() == Some(1), "{said}");
    }
    assert_eq!(text(&folder.run(&["slo", "list"]).stdout), "lab\n");
    // What is of one server alone, and what is of a cluster alone.
    for args in [
        &["slo", "apply", "--cluster"][..],
        &["slo", "list", "-A"],
        &["slo", "list", "--cluster", "-A", "-n", "acme"],
        &["top", "--cluster", "--sort", "cpu"],
        &["slo", "add", "--cluster", "--binary", "a=b", "web.yaml"],
    ] {
        assert_eq!(folder.run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_replay_without_a_daemon_says_what_to_install() {
    let folder = Folder::new();
    let out = folder.run(&["replay", "a.pcap", "--through", "bridge"]);
    let said = text(&out.stderr);
    assert!(said.starts_with("sluice: the program sluiced is neither ") && said.contains("install the package sluice"), "{said}");
    assert!(said.lines().count() == 1 && out.status.code() == Some(1), "{said}");
}

fn config(folder: &Path, port: &str) -> String {
    let path = folder.join("c.toml");
    let ports = format!("[[port]]\nname = \"a\"\n{port}\n[[port]]\nname = \"b\"\nkind = \"sink\"\n");
    std::fs::write(&path, ports + "[[chain]]\nname = \"c\"\negress = \"b\"\n[[rule]]\nchain = \"c\"\n").unwrap();
    path.display().to_string()
}

#[test]
fn the_daemon_says_what_is_wrong_with_ports() {
    let folder = Folder::new();
    let plain = config(folder.0.path(), "kind = \"gen\"");
    let out = folder.run(&["check", &plain]);
    assert!(out.status.success() && text(&out.stdout).contains("is good: 2 ports"), "no port needs the host: {out:?}");
    let path = config(folder.0.path(), "kind = \"pcap\"\nread = \"/dev/null\"");
    let out = folder.run(&["check", &path]);
    let said = text(&out.stderr);
    assert!(out.status.success() && said.contains("warning: ports were not looked at: the program sluiced is neither"), "{said}");
    let page = config(folder.0.path(), "kind = \"gen\"");
    let rest = std::fs::read_to_string(&page).unwrap();
    std::fs::write(&page, format!("[page]\nlisten = \"127.0.0.1:0\"\ntoken = \"t\"\n{rest}")).unwrap();
    let out = folder.run(&["check", &page]);
    let said = text(&out.stderr);
    assert!(said.contains(":2:10: warning: files of the page were not looked at: the program sluiced is neither"), "{said}");
    let path = config(folder.0.path(), "kind = \"pcap\"\nread = \"/dev/null\"");
    folder.script(
        "sluiced",
        r#"[ "$1" = --ports ] || exit 1
echo '[{"severity":"error","at":{"section":"port","entry":0,"key":"read","item":null},"earlier":null,"location":null,
        "earlier_line":null,"message":"it is cut short","help":"write it again"}]'"#,
    );
    let out = folder.run(&["check", &path]);
    let said = text(&out.stderr);
    assert!(said.starts_with(&format!("{path}:4:8: error: it is cut short\n")) && said.contains("= write it again"), "{said}");
    assert!(out.status.code() == Some(1) && said.ends_with("\nsluice: 1 error\n"), "{said}");
    // Not of ports alone.
    folder.script(
        "sluiced",
        r#"echo '[{"severity":"error","at":{"section":"chain","entry":0,"key":"egress"},"message":"no","help":"go"}]'"#,
    );
    let out = folder.run(&["check", &plain]);
    assert!(text(&out.stderr).contains(":10:10: error: no\n"), "{}", text(&out.stderr));
    folder.script("sluiced", "echo 'error: unexpected argument' >&2\nexit 2");
    let said = folder.run(&["check", &path]).stderr;
    assert!(text(&said).contains("says: error: unexpected argument"), "{}", text(&said));
}
