//! `--help` and `--version` of every program, without a daemon or privileges.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs that an operator or the daemon starts.
fn programs() -> Vec<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_sluiced")).parent().unwrap();
    let nfs = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../nfs")).unwrap();
    let mut names: Vec<String> = vec!["sluice".into(), "sluiced".into()];
    for folder in nfs.map(|entry| entry.unwrap()).filter(|entry| entry.path().join("Cargo.toml").exists()) {
        match folder.file_name().to_str().unwrap() {
            "parts" => {}
            "crypt" => names.extend(["encrypt", "decrypt"].map(|name| format!("sluice-nf-{name}"))),
            name => names.push(format!("sluice-nf-{name}")),
        }
    }
    names.sort();
    let programs: Vec<PathBuf> = names.iter().map(|name| beside.join(name)).collect();
    if !programs.iter().all(|program| program.exists()) {
        let packages: Vec<String> = names
            .iter()
            .filter(|name| name.starts_with("sluice-nf-"))
            .map(|name| if name.ends_with("crypt") { "sluice-nf-crypt".into() } else { name.clone() })
            .collect();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--bins"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.arg("--target-dir").arg(beside.parent().unwrap());
        if beside.ends_with("release") {
            cargo.arg("--release");
        }
        packages.iter().for_each(|package| {
            cargo.args(["-p", package]);
        });
        assert!(cargo.status().expect("cargo runs").success(), "build the NFs: cargo build --workspace");
    }
    programs
}

#[test]
fn each_program_answers_with_its_name() {
    let programs = programs();
    assert!(programs.len() > 15, "{programs:?}");
    for program in programs {
        let name = program.file_name().unwrap().to_str().unwrap();
        let says = |arg: &str| {
            let mut command = Command::new(&program);
            command.arg(arg).env_remove("SLUICE_SOCKET").env_remove("SLUICE_NF").env_remove("SLUICE_CONTROL");
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{name} {arg}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            said
        };
        let version = says("--version");
        assert_eq!(version.split(' ').next(), Some(name), "{version}");
        assert_eq!(version.lines().count(), 1, "{version}");
        let help = says("--help");
        assert!(help.contains(&format!("Usage: {name}")), "{name}: {help}");
    }
}
