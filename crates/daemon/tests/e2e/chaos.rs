//! `sluice bench chaos`: a short run has no findings and writes its steps.

use std::process::Command;

use crate::support::build_nfs;

#[test]
fn a_short_run_of_chaos_finds_nothing_amiss() {
    build_nfs();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("chaos.json");
    let answer = Command::new(crate::support::sluice())
        .args(["bench", "chaos", "--seconds", "10", "--seed", "1", "--repeats", "1", "--only", "apart", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let metrics = &report["variants"][0]["metrics"];
    assert_eq!(metrics["findings_count"]["median"], 0.0, "{report:#}");
    assert!(metrics["steps_count"]["median"].as_f64().unwrap() > 0.0, "{report:#}");
    assert!(metrics["delivered_count"]["median"].as_f64().unwrap() > 0.0, "{report:#}");
    let steps = std::fs::read_to_string(folder.path().join("chaos.apart-1.steps")).unwrap();
    assert!(steps.lines().next().unwrap().contains("apply"), "{steps}");
}
