//! `sluice simulate` from the command line: no daemon, no root.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Three NFs of 120, 270 and 550 cycles, with more packets than a core can carry.
const CHAIN: &str = r#"
[[port]]
name = "in"
kind = "gen"
rate = 12e6
[[port]]
name = "out"
kind = "sink"
[[service]]
name = "a"
exec = "sluice-nf-cost"
args = ["--cycles", "120"]
[[service]]
name = "b"
exec = "sluice-nf-cost"
args = ["--cycles", "270"]
[[service]]
name = "c"
exec = "sluice-nf-cost"
args = ["--cycles", "550"]
[[chain]]
name = "abc"
services = ["a", "b", "c"]
egress = "out"
[[rule]]
chain = "abc"
"#;

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("c.toml"), config).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("c.toml")
    }

    fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-lab"));
        command.arg("simulate").arg(self.file()).args(["--seconds", "0.05", "--ghz", "2.3"]).args(args);
        command.env("SLUICE_CONTROL", self.0.path().join("nobody.sock")).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(&[args, &["--json"]].concat())).unwrap()
    }
}

/// Delivered packets per second of the first chain in a run.
fn delivered(report: &serde_json::Value, run: usize) -> f64 {
    report["runs"][run]["chains"][0]["delivered_pps"].as_f64().unwrap()
}

#[test]
fn tables_are_the_same_each_time() {
    let folder = Folder::with(CHAIN);
    let text = folder.ok(&["--cores", "1"]);
    assert!(text.starts_with("3 NFs on 1 core of 2.30 GHz, class other, 0.05 s simulated\n\nCHAIN "), "{text}");
    for (table, first) in [("CHAIN", "abc"), ("NF", "a.0"), ("CORE", "0")] {
        let mut lines = text.lines().skip_while(|line| line.split(' ').next() != Some(table)).skip(1);
        assert_eq!(lines.next().and_then(|line| line.split(' ').next()), Some(first), "{text}");
    }
    assert!(text.contains("note: the manager would move packets at"), "{text}");
    assert_eq!(folder.ok(&["--cores", "1"]), text);
}

#[test]
fn more_cores_carry_more_and_backpressure_wastes_nothing() {
    let folder = Folder::with(CHAIN);
    let one = folder.json(&["--cores", "1", "--compare"]);
    let names: Vec<_> = one["runs"].as_array().unwrap().iter().map(|run| run["variant"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "weights", "backpressure", "nfvnice", "sluice", "ideal"]);
    let [nfvnice, sluice] = [3, 4];
    assert!(delivered(&one, sluice) > delivered(&one, 0), "{one}");
    let wasted = |run: usize| one["runs"][run]["chains"][0]["wasted_pps"].as_f64().unwrap();
    assert!(wasted(0) > 0.0 && wasted(nfvnice) < wasted(0) && wasted(sluice) == 0.0, "{one}");
    let sixteen = folder.json(&["--cores", "16"]);
    assert!(delivered(&sixteen, 0) > 1.2 * delivered(&one, sluice), "{sixteen}");
    assert_eq!(sixteen["runs"][0]["cores"].as_array().unwrap().len(), 16);
    assert_eq!(sixteen["runs"][0]["variant"], "configured");
    let faster = folder.json(&["--cores", "16", "--cost", "a=60,b=60", "--cost", "c=60"]);
    assert!(delivered(&faster, 0) > delivered(&sixteen, 0), "{faster}");
    let text = folder.ok(&["--cores", "2", "--compare"]);
    let head = text.lines().find(|line| line.starts_with("CHAIN")).unwrap();
    let variants: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    assert_eq!(head.split_whitespace().skip(1).collect::<Vec<_>>(), variants);
}

#[test]
fn what_is_missing_is_asked_for() {
    let folder = Folder::with(&CHAIN.replace("rate = 12e6\n", "").replace("sluice-nf-cost", "true"));
    let error = folder.fails(2, &[]);
    assert!(error.contains("come in at in;") && error.contains("--rate in=PPS"), "{error}");
    let error = folder.fails(2, &["--rate", "in=1e6", "--cost", "a=100"]);
    assert!(error.contains("costs b, c;") && error.contains("--measured"), "{error}");
    assert!(folder.fails(2, &["--rate", "1e6", "--cost", "d=1"]).contains("no service"));
    let carried = folder.json(&["--rate", "1e6", "--cost", "a=100,b=100,c=100"]);
    assert!((delivered(&carried, 0) - 1e6).abs() < 1e4, "{carried}");
    for args in [&["--cores", "0"][..], &["--rate", "lots"], &["--cost", "a"], &["--ghz", "0"], &["--seconds", "0"]] {
        folder.fails(2, args);
    }
    let error = folder.fails(1, &["--rate", "1e6", "--measured"]);
    assert!(error.contains("nobody.sock"), "{error}");
    std::fs::write(folder.file(), "[[prot]]\n").unwrap();
    assert!(folder.fails(1, &[]).contains("c.toml:1"));
}

#[test]
fn help_has_examples_and_limits() {
    let output = Command::new(env!("CARGO_BIN_EXE_sluice-lab")).args(["simulate", "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(["Examples:", "--cores 16", "--compare", "Limits:"].iter().all(|word| text.contains(word)), "{text}");
}
