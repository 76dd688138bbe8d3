//! `sluice bench observers`: what a capture and the flow log cost, and what they miss.
//!
//! # Approach
//! A chain of one bridge gets a million packets a second. Beside it `sluice capture` writes all
//! packets of one hop to a file, from the beginning of the measurement to its end; another variant
//! has no capture. Then a chain gets flows of four packets, so that a million begin and end each
//! minute, and each gets its line in the file of the flow log. The files are in memory
//! (`/dev/shm`): no disk is measured.
//!
//! # Metrics
//! The common ones, and: `captured_count`, `missed_count` (packets that the client was too slow
//! for), `flows_per_minute`, `lost_count` (flows without a line: those that the log did not take,
//! and those that could not be written), `logger_cpu_percent` (time of the log's thread, of one
//! core).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::bench::daemon::{Daemon, open_to_nfs};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::{Sample, sample};
use crate::bench::pools::{ensure_offered, wait_for_packets};
use crate::bench::proc::thread_run_ns;
use crate::bench::sched::{DELIVERED, chain_of, params};
use crate::bench::setup::{Service, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};
use sluice_api::model::FlowLogCounts;

pub const EXPERIMENT: Experiment = Experiment {
    name: "observers",
    about: "a capture of one hop at a million packets a second, and a flow log of a million flows a minute",
    run,
};

const NF: &str = "sluice-nf-bridge";
/// The client, which writes the capture.
const CLIENT: &str = "sluice";
/// The hop that is captured.
const HOP: &str = "nf.0:in";
const CHAIN: &str = "c";
/// Packets per second while a capture is made.
const RATE: f64 = 1e6;
/// Bytes of a packet, and most that one takes in the file.
const PACKET_BYTES: u64 = 60;
const BYTES: f64 = 300.0;
/// Most bytes of a flow's line.
const LINE: f64 = 1_000.0;
/// Least part of the packets that passed that a capture counts: it begins a moment later.
const LEAST_SEEN: f64 = 0.5;
/// Flows that begin each second, a million a minute, and their packets.
const FLOWS_PER_S: f64 = 1e6 / 60.0;
const FLOW_PACKETS: u32 = 4;
/// Flows at a time.
const FLOWS: u32 = 256;
/// Name of the thread that logs flows.
const LOGGER: &str = "sluice-flows";

const CAPTURE: Group = Group {
    title: "A million packets a second, with and without a capture of one hop",
    keys: &["capture"],
    columns: &[
        DELIVERED,
        Column::new("captured_count", "captured", 1.0, 0),
        Column::new("missed_count", "missed", 1.0, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 1),
    ],
    plotted: 1,
    form: Form::Bars,
};

const FLOW_LOG: Group = Group {
    title: "A log of a million flows a minute",
    keys: &["flow_log"],
    columns: &[
        Column::new("flows_per_minute", "flows/min", 1.0, 0),
        Column::new("lost_count", "lost", 1.0, 0),
        Column::new("logger_cpu_percent", "logger CPU %", 1.0, 1),
        DELIVERED,
    ],
    plotted: 1,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[NF])?;
    lab.programs.has(CLIENT, "sluice-client")?;
    lab.run(&plan(&lab))
}

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(
        EXPERIMENT.name,
        nothing,
        vec![(CAPTURE, |v| v.params.contains_key("capture")), (FLOW_LOG, |v| v.params.contains_key("flow_log"))],
    );
    let of = |key: &str, is_on: bool| params(&[(key, Value::from(u64::from(is_on)))]);
    let setup = forwarding(lab);
    plan.cases.push(Case::flow("off", of("capture", false), setup.clone()));
    plan.cases.push(Case::one("capture", of("capture", true), move |lab| captured(lab, &setup)));
    plan.cases.push(Case::one("flow-log", of("flow_log", true), logged));
    plan
}

/// A chain of one NF with this traffic.
fn chain(lab: &Lab, traffic: Traffic) -> Setup {
    Setup {
        manager_core: lab.manager_core,
        traffic: vec![Traffic { chain: CHAIN.into(), ..traffic }],
        services: vec![Service { name: "nf".into(), exec: NF.into(), core: lab.cores.shared(), ring: 4096, ..Service::default() }],
        chains: vec![chain_of(CHAIN, &["nf"])],
        ..Setup::default()
    }
}

fn forwarding(lab: &Lab) -> Setup {
    chain(lab, Traffic { rate: RATE, flows: 16, ..Traffic::default() })
}

/// Flows that are logged to a file.
fn flows(lab: &Lab, file: &Path) -> Setup {
    let rate = FLOWS_PER_S * f64::from(FLOW_PACKETS);
    let traffic = Traffic { rate, flows: FLOWS, flow_packets: FLOW_PACKETS, tcp: true, packet_bytes: 78, ..Traffic::default() };
    Setup { more: format!("[flow_log]\nfile = {file:?}\nfile_mib = 1024\n"), ..chain(lab, traffic) }
}

/// A folder in memory, with room for this many bytes.
fn in_memory(bytes: f64) -> Result<TempDir, Miss> {
    let about = rustix::fs::statvfs("/dev/shm").map_err(std::io::Error::from)?;
    let free = about.f_bavail as f64 * about.f_frsize as f64;
    if free < bytes {
        let why = format!("/dev/shm has {:.0} MB left, and files of {:.0} MB are to be written", free / 1e6, bytes / 1e6);
        return Err(Miss::LeaveOut(why));
    }
    let folder =
        tempfile::tempdir_in("/dev/shm").map_err(|error| Miss::LeaveOut(format!("no file in memory (/dev/shm): {error}")))?;
    std::fs::set_permissions(folder.path(), open_to_nfs())?;
    Ok(folder)
}

/// Measures a setup while something is done to its daemon.
fn measured(lab: &Lab, setup: &Setup, during: impl FnOnce(&Daemon) -> anyhow::Result<Sample>) -> Result<Sample, Miss> {
    let daemon = lab.start(setup)?;
    wait_for_packets(&daemon, setup)?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    let more = during(&daemon)?;
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let mut out = sample(setup, &before, &after);
    ensure_offered(setup, &out)?;
    out.extend(more);
    Ok(out)
}

fn captured(lab: &Lab, setup: &Setup) -> Result<Sample, Miss> {
    let folder = in_memory(RATE * lab.args.seconds * BYTES)?;
    let file = folder.path().join("hop.pcapng");
    let out = measured(lab, setup, |daemon| {
        let mut command = Command::new(lab.programs.path(CLIENT));
        command.arg("--socket").arg(daemon.socket()).args(["capture", "--hop", HOP, "--seconds", &lab.args.seconds.to_string()]);
        let client = command.arg("-w").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let said = client.wait_with_output().context("cannot wait for the capture")?;
        lab.programs.go_on()?;
        let words = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "the capture has failed: {words}");
        let [captured, missed] = counts(&words).with_context(|| format!("the capture counts nothing: {words}"))?;
        let len = std::fs::metadata(&file)?.len();
        ensure!(len > captured * PACKET_BYTES, "{captured} packets are not in a file of {len} bytes");
        Ok(Sample::from([("captured_count".into(), captured as f64), ("missed_count".into(), missed as f64)]))
    })?;
    let (seen, passed) = (out["captured_count"] + out["missed_count"], out["delivered_pps"] * lab.args.seconds);
    if seen < LEAST_SEEN * passed {
        return Err(anyhow::anyhow!("the capture counts {seen:.0} packets, and about {passed:.0} passed the hop").into());
    }
    Ok(out)
}

/// What the client says at the end of a capture: packets in the file, and those missed.
fn counts(said: &str) -> Option<[u64; 2]> {
    let words = said.lines().rev().find_map(|line| line.strip_prefix("sluice: "))?;
    let (captured, missed) = words.split_once(" packets, ")?;
    Some([captured.parse().ok()?, missed.strip_suffix(" missed")?.parse().ok()?])
}

fn logged(lab: &Lab) -> Result<Sample, Miss> {
    let folder = in_memory(FLOWS_PER_S * (lab.args.seconds + 60.0) * LINE)?;
    let file = folder.path().join("flows.json");
    measured(lab, &flows(lab, &file), |daemon| {
        // A flow ends a while after its last packet: from then on as many end as begin.
        daemon.wait_for("flows to end", Duration::from_secs(60), |daemon| {
            Ok((log_of(daemon)?.ended as f64 >= FLOWS_PER_S / 10.0).then_some(()))
        })?;
        let (before, used) = (log_of(daemon)?, logger_ns(daemon)?);
        lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
        let (after, used) = (log_of(daemon)?, logger_ns(daemon)? - used);
        let seconds = after.metered_s - before.metered_s;
        let ended = (after.ended - before.ended) as f64;
        let lost = (after.lost + after.unwritten) - (before.lost + before.unwritten);
        let written = after.ended - after.unwritten;
        daemon.wait_for("the lines of all flows", Duration::from_secs(10), |_| {
            let lines = BufReader::new(File::open(&file)?).split(b'\n').count() as u64;
            Ok((lines >= written).then_some(()))
        })?;
        Ok(Sample::from([
            ("flows_per_minute".into(), ended / seconds * 60.0),
            ("lost_count".into(), lost as f64),
            ("logger_cpu_percent".into(), used as f64 / 1e7 / seconds),
        ]))
    })
}

fn log_of(daemon: &Daemon) -> anyhow::Result<FlowLogCounts> {
    daemon.stats()?.status.flow_log.context("the daemon has no flow log")
}

fn logger_ns(daemon: &Daemon) -> anyhow::Result<u64> {
    match thread_run_ns(daemon.pid(), LOGGER)? {
        Some(ns) => Ok(ns),
        None => bail!("the daemon has no thread {LOGGER}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn the_setups_are_accepted() {
        let lab = lab(1);
        assert_accepted(&forwarding(&lab), &[NF]);
        let folder = tempfile::tempdir().unwrap();
        assert_accepted(&flows(&lab, &folder.path().join("flows.json")), &[NF]);
        assert_eq!(plan(&lab).cases.len(), 3);
    }

    #[test]
    fn the_clients_counts_are_read() {
        assert_eq!(counts("a warning\nsluice: 1000000 packets, 3 missed\n"), Some([1_000_000, 3]));
        for none in ["", "sluice: none", "sluice: 1 packets, 3 lost", "sluice: x packets, 3 missed"] {
            assert_eq!(counts(none), None, "{none}");
        }
    }
}
