//! `sluice pack`: NFs of a running daemon are brought together, and packets flow on.

use std::process::{Command, Output};

use crate::support::{Daemon, chain, find_chain, find_nf, find_port, port, service};

fn pack(daemon: &Daemon, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("--socket").arg(daemon.run_dir().join("control.sock")).arg("pack").args(args);
    command.output().expect("sluice runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Two cores, if this process may use them.
fn two_cores() -> Option<[usize; 2]> {
    let cores = sluice_manager::mechanism::affinity::allowed().expect("the kernel says which cores there are");
    <[usize; 2]>::try_from(cores.get(..2)?).ok()
}

#[test]
fn nfs_that_fit_on_a_core_are_brought_together_and_no_packet_is_lost() {
    let Some([one, other]) = two_cores() else {
        println!("left out: there is one core");
        return;
    };
    // The cheap one comes to the dear one.
    let text_of = |core: usize, cycles: u32| format!("args = [\"--cycles\", \"{cycles}\"]\ncores = [{core}]");
    let config = port("in", "gen", "rate = 5000\nflows = 8\ncount = 0")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-cost", &text_of(one, 20_000))
        + &service("b", "sluice-nf-cost", &text_of(other, 200))
        + &chain("c", "in", &["a", "b"], "out", "");
    // Whatever else runs here, what is to leave may take its time.
    let mut daemon = Daemon::start("drain_ms = 60000", &config);
    daemon.wait("it is known what packets cost", |s| {
        let known = |name| find_nf(s, name).sched.service_ns > 0.0 && find_nf(s, name).sched.arrival_pps > 0.0;
        known("a.0") && known("b.0")
    });
    let cores = format!("{one},{other}");
    let dry = pack(&daemon, &["--cores", &cores, "--json"]);
    assert!(dry.status.success(), "{}", text(&dry.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&dry.stdout).unwrap();
    assert_eq!((plan["cores_now"].as_u64(), plan["cores_needed"].as_u64()), (Some(2), Some(1)), "{plan}");
    let step = &plan["moves"][0];
    let (moved, to) = ("b.0", one as u32);
    assert_eq!((step["nf"].as_str(), step["to"].as_u64()), (Some(moved), Some(u64::from(to))), "{plan}");
    assert_eq!(find_nf(&daemon.stats(), moved).core, other as u32, "a plan moves nobody");

    let done = pack(&daemon, &["--cores", &cores, "--apply"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains(&format!("moved {moved} from")), "{}", text(&done.stdout));
    let before = find_port(&daemon.stats(), "out").tx_packets;
    let stats = daemon.wait("packets flow through what was moved", |s| find_port(s, "out").tx_packets > before + 1000);
    assert!(stats.nfs.iter().all(|nf| nf.core == to), "{:?}", stats.nfs.iter().map(|nf| (&nf.name, nf.core)).collect::<Vec<_>>());
    assert!(stats.nfs.iter().all(|nf| nf.name != moved));

    daemon.silence("c", "in");
    daemon.wait_until_empty();
    let stats = daemon.stats();
    let chain = find_chain(&stats, "c");
    assert_eq!((chain.wasted, chain.entry_packets), (0, chain.exit_packets), "{chain:#?}");

    // Nothing is to be done any more.
    let again = pack(&daemon, &["--cores", &cores]);
    assert!(text(&again.stdout).contains("all are where they should be"), "{}{}", text(&again.stdout), text(&again.stderr));
    daemon.stop();
}
