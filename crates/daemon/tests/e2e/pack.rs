//! `sluice pack` moves NFs of a running daemon together while packets flow.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use sluice_api::model::{Apply, NfState, Stats};

use crate::skip::skip;
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, port, service};

fn pack(daemon: &Daemon, args: &[&str]) -> Output {
    daemon.sluice(&["pack"]).args(args).output().expect("sluice runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Two cores; None, and the test is skipped, if this process may use one only.
pub fn two_cores() -> Option<[usize; 2]> {
    let cores = sluice_host::affinity::allowed().expect("the kernel says which cores there are");
    let [one, other, ..] = cores[..] else {
        skip("there is one core");
        return None;
    };
    Some([one, other])
}

/// A chain of two NFs on cores of their own, a dear one and a cheap one.
fn dear_and_cheap(one: usize, other: usize) -> String {
    let text_of = |core: usize, cycles: u32| format!("args = [\"--cycles\", \"{cycles}\"]\ncores = [{core}]");
    port("in", "gen", "rate = 5000\nflows = 8\ncount = 0")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-cost", &text_of(one, 20_000))
        + &service("b", "sluice-nf-cost", &text_of(other, 200))
        + &chain("c", "in", &["a", "b"], "out", "")
}

#[test]
fn nfs_that_fit_on_a_core_are_brought_together_and_no_packet_is_lost() {
    let Some([one, other]) = two_cores() else { return };
    let config = dear_and_cheap(one, other);
    // On a busy host, an NF that leaves may take its time.
    let mut daemon = Daemon::start("drain_ms = 60000", &config);
    daemon.wait("it is known what packets cost", |s| {
        let known = |name| {
            let nf = find_nf(s, name);
            nf.sched.service_ns > 0.0 && nf.sched.arrival_pps > 0.0 && nf.cpu_percent > 0.0
        };
        known("a.0") && known("b.0")
    });
    // The load includes wake-ups and switches, as the kernel's figure does; the packets alone of
    // the cheap NF are about a thousandth of a core.
    for nf in &daemon.stats().nfs {
        // A percentage parsed from text is not exact to the last bit.
        assert!(nf.cpu_percent > 0.0 && nf.sched.load >= nf.cpu_percent / 100.0 - 1e-9, "{nf:#?}");
    }
    let cores = format!("{one},{other}");
    let dry = pack(&daemon, &["--cores", &cores, "--json"]);
    assert!(dry.status.success(), "{}", text(&dry.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&dry.stdout).unwrap();
    assert_eq!((plan["cores_now"].as_u64(), plan["cores_needed"].as_u64()), (Some(2), Some(1)), "{plan}");
    let step = &plan["moves"][0];
    // The NF with less load moves to the other; which one depends on wake-ups and on the host.
    let ways = [("a.0", one, other), ("b.0", other, one)];
    let is_way = |(nf, _, to): &(&str, usize, usize)| step["nf"].as_str() == Some(nf) && step["to"].as_u64() == Some(*to as u64);
    assert!(ways.iter().any(is_way) && plan["moves"].as_array().unwrap().len() == 1, "{plan}");
    for (nf, from, _) in ways {
        assert_eq!(find_nf(&daemon.stats(), nf).core, from as u32, "a plan moves nobody");
    }

    let done = pack(&daemon, &["--cores", &cores, "--apply"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    let done = ways.into_iter().find(|(nf, ..)| said.contains(&format!("moved {nf} from")));
    let (moved, _, to) = done.unwrap_or_else(|| panic!("{said}"));
    let before = find_port(&daemon.stats(), "out").tx_packets;
    let stats = daemon.wait("packets flow through what was moved", |s| find_port(s, "out").tx_packets > before + 1000);
    assert!(
        stats.nfs.iter().all(|nf| nf.core == to as u32),
        "{:?}",
        stats.nfs.iter().map(|nf| (&nf.name, nf.core)).collect::<Vec<_>>()
    );
    assert!(stats.nfs.iter().all(|nf| nf.name != moved));
    daemon.wait("it is known what they use now", |s| s.nfs.iter().all(|nf| nf.cpu_percent > 0.0));

    daemon.silence("c", "in");
    daemon.wait_until_empty();
    let stats = daemon.stats();
    let chain = find_chain(&stats, "c");
    assert_eq!((chain.wasted, chain.entry_packets), (0, chain.exit_packets), "{chain:#?}");
    // Packets refused at the entry are lost to the sink, too; what came in is in order.
    let seen = &find_port(&stats, "out").details;
    assert_eq!((seen["stamped"], seen["reordered"], seen["duplicated"]), (chain.exit_packets as f64, 0.0, 0.0), "{seen:?}");

    let again = pack(&daemon, &["--cores", &cores]);
    assert!(text(&again.stdout).contains("all are where they should be"), "{}{}", text(&again.stdout), text(&again.stderr));
    daemon.stop();
}

#[test]
fn looking_again_and_again_goes_on_when_there_is_no_plan_for_a_while() {
    let Some([one, other]) = two_cores() else { return };
    let mut daemon = Daemon::start("drain_ms = 60000", &port("out", "sink", ""));
    let cores = format!("{one},{other}");
    let mut packer = daemon.sluice(&["pack", "--cores", &cores, "--apply", "--every", "0.05"]);
    let mut packer = packer.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("sluice runs");
    let mut said = String::new();
    // Its output has no reader after that, and it still goes on.
    BufReader::new(packer.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("no NF is running") && said.contains("looking again"), "{said}");

    // New NFs, whose cost is unknown at first.
    let config = head(daemon.folder(), "drain_ms = 60000") + &dear_and_cheap(one, other);
    daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    let together = |s: &Stats| {
        let of = |service: &str| s.nfs.iter().find(|nf| nf.service == service && nf.state == NfState::Running);
        s.nfs.len() == 2 && of("a").zip(of("b")).is_some_and(|(a, b)| a.core == b.core)
    };
    let stats = daemon.wait("both NFs run on one core", together);
    let before = find_port(&stats, "out").tx_packets;
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > before + 5000);
    daemon.wait("both NFs are still together", together);
    assert!(packer.try_wait().unwrap().is_none(), "it goes on");
    packer.kill().unwrap();
    packer.wait().unwrap();
    daemon.stop();
}
