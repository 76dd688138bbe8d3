//! `sluice estimate`: real NFs, measured from outside.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;
use sluice_api::model::NfState;

use crate::skip::skip;
use crate::support::{Daemon, PATIENCE, chain, find_nf, nf, port, service};

fn sluice(args: &[&str]) -> Output {
    Command::new(crate::support::sluice()).args(args).output().expect("sluice runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An estimate as JSON; None, and the test is skipped, on a host with one core.
/// Retries while other programs keep the cores busy.
fn estimate(args: &[&str]) -> Option<Value> {
    let until = Instant::now() + 10 * PATIENCE;
    let out = loop {
        let out = sluice(&[&["estimate", "--bursts", "500", "--json"], args].concat());
        if !text(&out.stderr).contains("other programs keep the cores so busy") || Instant::now() > until {
            break out;
        }
    };
    if text(&out.stderr).contains("need a core each") {
        skip(text(&out.stderr));
        return None;
    }
    assert!(out.status.success(), "{}", text(&out.stderr));
    Some(serde_json::from_slice(&out.stdout).expect("it prints JSON and nothing else"))
}

fn median(found: &Value, what: &str) -> f64 {
    found[what]["median"].as_f64().unwrap()
}

#[test]
fn a_cost_is_found_kept_and_used() {
    let folder = crate::support::open_folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let cost = nf("sluice-nf-cost");
    let config = [
        format!("[manager]\nestimates = {:?}\n", path("state/kept.json")),
        port("in", "gen", ""),
        port("out", "sink", ""),
        service("work", &nf("sluice-nf-macswap"), ""),
        chain("c", "in", &["work"], "out", ""),
    ];
    let config = config.concat();
    std::fs::write(path("c.toml"), config).unwrap();

    let Some(light) = estimate(&[&cost, "--", "--cycles", "50"]) else { return };
    let heavy = estimate(&[&cost, "--", "--cycles", "3000"]).unwrap();
    let simulate = || sluice(&["simulate", &path("c.toml"), "--rate", "1e8", "--seconds", "0.05", "--json"]);
    assert!(!simulate().status.success(), "nobody knows what a packet costs the service");
    let kept = estimate(&["work", "--config", &path("c.toml"), "--keep", &path("state/kept.json")]).unwrap();
    for found in [&light, &heavy, &kept] {
        // A round has one burst alone and eight in a row.
        assert!(found["rounds"].as_u64().unwrap() * 9 >= 500);
        assert_eq!(found["packets"].as_u64().unwrap(), found["rounds"].as_u64().unwrap() * 9 * 32);
        assert_eq!(found["dropped"], 0);
        let (burst, packet) = (median(found, "ns_per_burst"), median(found, "ns_per_packet"));
        assert!((burst / 32.0 - packet).abs() <= packet * 1e-6);
    }
    // Sixty times the work costs more, whatever else the machine does.
    assert!(median(&heavy, "cycles_per_packet") > 4.0 * median(&light, "cycles_per_packet"), "{light} {heavy}");

    // The simulator uses the kept estimate.
    let out = simulate();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let file: Value = serde_json::from_slice(&std::fs::read(path("state/kept.json")).unwrap()).unwrap();
    let entries: Vec<&Value> = file.as_object().unwrap().values().collect();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0]["estimate"], kept);

    // It is the daemon's first guess, too: no packet comes.
    let chain = "[[chain]]\nname = \"c\"\nservices = [\"work\"]\negress = \"out\"\n";
    let body = port("out", "sink", "") + &service("work", &nf("sluice-nf-macswap"), "") + chain;
    let mut daemon = Daemon::start(&format!("estimates = {:?}", path("state/kept.json")), &body);
    let stats = daemon.wait("it runs", |s| find_nf(s, "work.0").state == NfState::Running);
    let (guess, kept) = (find_nf(&stats, "work.0").sched.service_ns, median(&kept, "ns_per_packet"));
    // On a busy machine, so light an NF may measure as nothing beside its rings.
    assert!((guess - kept).abs() <= kept * 1e-9, "{guess}, kept {kept}");
    daemon.stop();
}

#[test]
fn captured_packets_are_sent_and_drops_are_counted() {
    let folder = crate::support::open_folder();
    let rules = folder.path().join("none.rules");
    std::fs::write(&rules, "default deny\n").unwrap();
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/host-traffic.pcap").display().to_string();
    let firewall = nf("sluice-nf-firewall");
    let Some(found) = estimate(&[&firewall, "--capture", &capture, "--", "--rules", rules.to_str().unwrap()]) else { return };
    assert!(found["dropped"].as_u64().unwrap() > 0, "{found}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    let refusal = |args: &[&str]| {
        let out = sluice(&[&["estimate"], args].concat());
        assert!(!out.status.success());
        text(&out.stderr)
    };
    assert!(refusal(&["no-such-nf"]).contains("there is no program no-such-nf"));
    let bad_args = refusal(&[&nf("sluice-nf-cost"), "--", "--no-such-option"]);
    // With one core, that is the error.
    assert!(bad_args.contains("--no-such-option") || bad_args.contains("need a core each"), "{bad_args}");
    let no_nf = refusal(&["/bin/true"]);
    assert!(no_nf.contains("before it attached") || no_nf.contains("need a core each"), "{no_nf}");
    assert!(refusal(&["x", "--config", "/nowhere.toml"]).contains("/nowhere.toml"));
    assert!(refusal(&["/bin/true", "--capture", "/nowhere.pcap"]).contains("/nowhere.pcap"));
}
