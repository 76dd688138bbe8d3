//! `sluice bench linux-chain`: chains that the kernel makes alone, beside the same chains of ours.
//!
//! # Approach
//! ```text
//! sender ── veth ── chain ── veth ── receiver
//! ```
//! Sender and receiver are namespaces. 16 flows of UDP packets of 64 bytes come from one thread,
//! 50,000 a second (`load` is `paced`) or as many as it can send (`flood`). The chain is
//! - of no hop: a bridge of the kernel, or a chain of ours without an NF;
//! - of one: a stateful firewall;
//! - of three: the firewall, a source NAT, and a count of packets and bytes of each flow.
//!
//! Hops of the kernel route, with rules of nftables. The variants:
//! - `linux`: a namespace for each hop, with a veth pair between two of them, as containers are;
//! - `linux/steered`: the same, with the work spread over cores by flow (receive packet steering);
//! - `linux/one`: all that the three hops do in one namespace, the kernel's best case;
//! - `sluice`: an NF for each hop, between `af_packet` ports;
//! - `sluice/fused`: all NFs in one process.
//!
//! All have the same cores, those that this process may use. `busy_cores` is their time in
//! processes, kernel and interrupts, so the sender's part and the kernel's part of the ports are in
//! it for both; `delivered_per_cpu_s` is packets at the receiver a second of that time. `of_linux`
//! and `of_linux_per_cpu` are ours relative to the kernel's best variant of the same length and
//! load, within the turn. The daemon's threads sleep while nothing comes.
//!
//! # Limits
//! Needs root, iproute2, ethtool and nft. All namespaces are removed, also after an error or an
//! interruption, but not after SIGKILL. Other load of the cores counts. The kernel counts its time
//! in ticks, which say little of less than a tenth of a second. A veth pair is no NIC: the kernel
//! forwards in the sender's system call, or on the core that it was steered to. The kernel's hops
//! take one from a packet's TTL, ours do not.

mod hops;
pub mod load;

use std::path::Path;

use anyhow::Context;
use serde_json::json;
use sluice_api::config::Run;

use crate::bench::daemon::{Daemon, open_to_nfs};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::sched::netns::{self, Side, Wires};
use crate::bench::sched::{chain_of, params};
use crate::bench::setup::{Chain, PACKET_BYTES, Service, Setup};
use crate::bench::table::{Column, Form, Group};
use hops::{Hops, NfKind, PORT, SENDERS, TRANSLATED};
use load::{HostCounts, Sender};

pub const EXPERIMENT: Experiment = Experiment {
    name: "linux-chain",
    about: "chains of the kernel (namespaces, nftables) beside the same chains of ours, per core used",
    run: |args| Lab::measure(args, &NFS, |_| plan()),
};

/// The hops of the longest chain.
const HOPS: [NfKind; 3] = [NfKind::Firewall, NfKind::Nat, NfKind::Monitor];
/// The NFs of ours.
pub const NFS: [&str; 3] = ["sluice-nf-firewall", "sluice-nf-nat", "sluice-nf-monitor"];
/// Lengths of chains, and their variants.
const CHAINS: [(usize, &[Way]); 3] = [
    (0, &[Way::Linux, Way::Sluice]),
    (1, &[Way::Linux, Way::LinuxSteered, Way::Sluice]),
    (3, &[Way::Linux, Way::LinuxSteered, Way::LinuxOne, Way::Sluice, Way::SluiceFused]),
];
/// Loads, and their packets per second; 0 is as fast as possible.
const LOADS: [(&str, f64); 2] = [("paced", 50_000.0), ("flood", 0.0)];
const DELIVERED: &str = "delivered_pps";
const PER_CPU: &str = "delivered_per_cpu_s";

pub const GROUP: Group = Group {
    title: "UDP of 64 bytes through no hop, a firewall, and firewall, NAT and monitor",
    keys: &["nfs", "load"],
    columns: &[
        Column::new(DELIVERED, "delivered kpps", 1e3, 1),
        Column::new("lost_percent", "lost %", 1.0, 1),
        Column::new("busy_cores", "cores", 1.0, 2),
        Column::new("softirq_cores", "in softirq", 1.0, 2),
        Column::new(PER_CPU, "kpackets per CPU second", 1e3, 1),
        Column::new("of_linux", "of best Linux", 1.0, 2),
        Column::new("of_linux_per_cpu", "per CPU second", 1.0, 2),
    ],
    plotted: 7,
    form: Form::Bars,
};

/// How a chain is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Linux,
    LinuxSteered,
    LinuxOne,
    Sluice,
    SluiceFused,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::LinuxSteered => "linux/steered",
            Self::LinuxOne => "linux/one",
            Self::Sluice => "sluice",
            Self::SluiceFused => "sluice/fused",
        }
    }

    fn is_linux(self) -> bool {
        self.name().starts_with(LINUX)
    }
}

/// How the names of the kernel's variants begin.
const LINUX: &str = "linux";

/// Why the experiment cannot run here, if so.
fn missing() -> Option<String> {
    netns::missing_without(&["iperf3"]).or_else(|| {
        let has_nft = netns::call("nft", &["--version"]).is_ok();
        (!has_nft).then(|| "there is no nft here; install nftables".into())
    })
}

/// All variants, or why they cannot run here.
pub fn plan() -> Trials {
    planned(missing().as_deref())
}

/// `missing` is the reason why the experiment cannot run here.
fn planned(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, of_linux, vec![(GROUP, |_| true)]);
    for (load, rate) in LOADS {
        for (nfs, ways) in CHAINS {
            for way in ways.iter().copied() {
                let of = params(&[("nfs", json!(nfs)), ("load", json!(load)), ("packet_bytes", json!(PACKET_BYTES))]);
                if let Some(why) = missing {
                    plan.leave_out(way.name(), of, why);
                    continue;
                }
                plan.cases.push(Case::one(way.name(), of, move |lab| one(lab, way, nfs, rate)));
            }
        }
    }
    plan
}

/// What lies between sender and receiver, which ends with it.
enum Between {
    /// Namespaces of the kernel, or none for its bridge.
    Kernel(Option<Hops>),
    Daemon(Box<Daemon>),
}

fn one(lab: &Lab, way: Way, nfs: usize, rate: f64) -> Result<Sample, Miss> {
    let cores: Vec<usize> = std::iter::once(lab.manager_core).chain(lab.cores.besides_manager()).collect();
    // Whatever happens, the sender ends first, then what is between, then both ends.
    let wires = Wires::lay()?;
    let [sender_ns, receiver_ns] = wires.namespaces();
    hops::end_packets(receiver_ns)?;
    let folder = tempfile::Builder::new()
        .prefix("sluice-bench-")
        .permissions(open_to_nfs())
        .tempdir()
        .context("cannot make a temporary folder")?;
    let between = if way.is_linux() {
        Between::Kernel(kernel(&wires, way, &HOPS[..nfs], &cores)?)
    } else {
        let rules = folder.path().join("rules");
        std::fs::write(&rules, firewall_rules()).context("cannot write the firewall's rules")?;
        let interfaces = [wires.host(Side::Inside), wires.host(Side::Outside)];
        Between::Daemon(Box::new(lab.start(&setup(lab, way, nfs, interfaces, &rules))?))
    };
    let sender = Sender::start(sender_ns, rate)?;
    lab.warm_up()?;
    let before = HostCounts::now(&sender, receiver_ns, &cores)?;
    lab.programs.pause(std::time::Duration::from_secs_f64(lab.args.seconds))?;
    let after = HostCounts::now(&sender, receiver_ns, &cores)?;
    drop(sender);
    match between {
        Between::Daemon(daemon) => {
            // Also checks that no NF has ended.
            lab.read(&daemon)?;
            daemon.stop()?;
        }
        Between::Kernel(hops) => drop(hops),
    }
    let sample = sample(&before, &after);
    if after.received == before.received {
        return Err(anyhow::anyhow!("no packet came through; {} were sent", after.sent - before.sent).into());
    }
    Ok(sample)
}

/// Makes a chain of the kernel between two ends.
fn kernel(wires: &Wires, way: Way, kinds: &[NfKind], cores: &[usize]) -> Result<Option<Hops>, Miss> {
    if kinds.is_empty() {
        wires.join()?;
        return Ok(None);
    }
    let hops: Vec<Vec<NfKind>> = match way {
        Way::LinuxOne => vec![kinds.to_vec()],
        _ => kinds.iter().map(|kind| vec![*kind]).collect(),
    };
    let hops = Hops::lay(wires, &hops)?;
    if way == Way::LinuxSteered {
        hops.steer(cores).map_err(|error| Miss::LeaveOut(format!("packets cannot be steered here: {error:#}")))?;
    }
    Ok(Some(hops))
}

fn firewall_rules() -> String {
    format!("stateful\ndefault deny\nallow udp from {SENDERS} to any port {PORT}\n")
}

/// Our chain between two interfaces.
fn setup(lab: &Lab, way: Way, nfs: usize, interfaces: [&str; 2], rules: &Path) -> Setup {
    let args = |kind: NfKind| -> Vec<String> {
        match kind {
            NfKind::Firewall => vec!["--rules".into(), rules.display().to_string()],
            NfKind::Nat => vec!["--inside".into(), SENDERS.into(), "--outside".into(), TRANSLATED.into()],
            NfKind::Monitor => Vec::new(),
        }
    };
    let service = |(exec, kind): (&&str, &NfKind)| Service {
        name: exec.trim_start_matches("sluice-nf-").into(),
        exec: (*exec).into(),
        args: args(*kind),
        core: lab.cores.shared(),
        ..Service::default()
    };
    let services: Vec<Service> = NFS.iter().zip(&HOPS).take(nfs).map(service).collect();
    let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
    let run = if way == Way::SluiceFused { Run::Fused } else { Run::Isolated };
    let there = Chain { egress: "outside".into(), run, ..chain_of("there", &names) };
    let back = Chain { egress: "inside".into(), ..chain_of("back", &[]) };
    let port = |name, interface, chain| netns::port("af_packet", name, interface, chain);
    Setup {
        manager_core: lab.manager_core,
        rests: true,
        services,
        chains: vec![there, back],
        more: port("inside", interfaces[0], "there") + &port("outside", interfaces[1], "back"),
        ..Setup::default()
    }
}

/// What came between two readings.
fn sample(before: &HostCounts, after: &HostCounts) -> Sample {
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
    let (sent, received) = ((after.sent - before.sent) as f64, after.received.saturating_sub(before.received) as f64);
    let busy_s = after.cores.busy_s - before.cores.busy_s;
    let mut out = Sample::from([
        ("offered_pps".into(), sent / seconds),
        (DELIVERED.into(), received / seconds),
        ("busy_cores".into(), busy_s / seconds),
        ("softirq_cores".into(), (after.cores.softirq_s - before.cores.softirq_s) / seconds),
    ]);
    if sent > 0.0 {
        // Packets on their way are of another window.
        out.insert("lost_percent".into(), (100.0 * (1.0 - received / sent)).max(0.0));
    }
    // A window shorter than a few ticks has no time.
    if busy_s > 0.0 {
        out.insert(PER_CPU.into(), received / busy_s);
    }
    out
}

/// Adds our rates relative to the kernel's best of the same chain and load.
pub fn of_linux(rows: &mut [Row]) -> Vec<Row> {
    let all = rows.to_vec();
    for row in rows.iter_mut().filter(|row| !row.name.starts_with(LINUX)) {
        let kernels = all.iter().filter(|other| other.name.starts_with(LINUX) && other.params == row.params);
        let kernels: Vec<&Row> = kernels.collect();
        for (ratio, metric) in [("of_linux", DELIVERED), ("of_linux_per_cpu", PER_CPU)] {
            let best = kernels.iter().filter_map(|kernel| kernel.get(metric)).reduce(f64::max).filter(|best| *best > 0.0);
            let both = row.get(metric).zip(best);
            row.put(ratio, both.map(|(ours, best)| ours / best));
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::bench::daemon::tests::{assert_accepted, built};
    use crate::bench::experiment::BenchArgs;
    use crate::bench::lab::tests::lab;
    use crate::bench::proc::CoreTimes;
    use crate::skip::skip;

    #[test]
    fn all_variants_run_under_both_loads_or_none_does() {
        assert_eq!(planned(None).cases.len(), 2 * (2 + 3 + 5));
        let none = planned(Some("there is no nft here"));
        assert_eq!((none.cases.len(), none.left_out.len()), (0, 20));
        assert_eq!(crate::bench::lab::left_out_lines(&none.left_out).len(), 1, "one reason");
    }

    #[test]
    fn the_daemon_accepts_our_chains() {
        let lab = lab(1);
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("rules");
        std::fs::write(&rules, firewall_rules()).unwrap();
        for (nfs, ways) in CHAINS {
            for way in ways.iter().filter(|way| !way.is_linux()) {
                let setup = setup(&lab, *way, nfs, ["a0", "b0"], &rules);
                assert!(!setup.toml(Path::new("/run/x")).contains("idle = "), "its threads may sleep");
                assert_accepted(&setup, &NFS);
            }
        }
    }

    #[test]
    fn rates_are_of_a_window_and_of_the_time_of_cores() {
        let now = Instant::now();
        let reading = |s: u64, sent: u64, received: u64, busy_s: f64| HostCounts {
            at: now + Duration::from_secs(s),
            sent,
            received,
            cores: CoreTimes { busy_s, softirq_s: busy_s / 2.0, irq_s: 0.0, stolen_s: 0.0 },
        };
        let out = sample(&reading(0, 100, 50, 1.0), &reading(2, 500, 350, 2.0));
        let want = [
            (DELIVERED, 150.0),
            (PER_CPU, 300.0),
            ("busy_cores", 0.5),
            ("lost_percent", 25.0),
            ("offered_pps", 200.0),
            ("softirq_cores", 0.25),
        ];
        assert_eq!(out, Sample::from(want.map(|(metric, value)| (metric.to_string(), value))));
        let idle = sample(&reading(0, 7, 7, 1.0), &reading(1, 7, 7, 1.0));
        assert!(!idle.contains_key(PER_CPU) && !idle.contains_key("lost_percent"));
    }

    #[test]
    fn ours_is_compared_with_the_kernels_best() {
        let row = |name: &str, nfs: u32, pps: f64, per_cpu: f64| {
            let sample = Sample::from([(DELIVERED.into(), pps), (PER_CPU.into(), per_cpu)]);
            Row::new(name, &params(&[("nfs", json!(nfs))]), sample)
        };
        let mut rows =
            [row("linux", 3, 4.0, 10.0), row("linux/one", 3, 8.0, 5.0), row("sluice", 3, 6.0, 5.0), row("sluice", 1, 1.0, 1.0)];
        of_linux(&mut rows);
        assert_eq!((rows[2].get("of_linux"), rows[2].get("of_linux_per_cpu")), (Some(0.75), Some(0.5)));
        assert_eq!((rows[0].get("of_linux"), rows[3].get("of_linux")), (None, None));
    }

    #[test]
    fn packets_come_through_every_chain_and_nothing_is_left() {
        if let Some(why) = missing() {
            return skip(why);
        }
        let Some(programs) = built(&NFS) else { return };
        let args = BenchArgs { seconds: 0.1, repeats: 1, ..BenchArgs::default() };
        let lab = Lab::with(&args, programs).unwrap();
        for (nfs, ways) in CHAINS {
            for way in ways {
                // On a busy host nothing may come through in a window as short as this.
                let mut tried = one(&lab, *way, nfs, 10_000.0);
                for _ in 0..2 {
                    if matches!(tried, Err(Miss::Failed(_))) {
                        tried = one(&lab, *way, nfs, 10_000.0);
                    }
                }
                match tried {
                    Ok(sample) => assert!(sample[DELIVERED] > 0.0, "{} {nfs}", way.name()),
                    Err(Miss::LeaveOut(why)) if *way == Way::LinuxSteered => skip(why),
                    Err(Miss::LeaveOut(why)) => panic!("{} {nfs}: {why}", way.name()),
                    Err(Miss::Failed(error)) => panic!("{} {nfs}: {error:#}", way.name()),
                }
            }
        }
        let process = std::process::id();
        let left = netns::call("ip", &["netns", "list"]).unwrap() + &netns::call("ip", &["-o", "link"]).unwrap();
        assert!(!left.contains(&format!("sluice-bench-{process}-")), "{left}");
        // Both host ends, and the bridge.
        assert!(!["i", "o", "b"].iter().any(|end| left.contains(&format!("slb{process}{end}"))), "{left}");
    }
}
