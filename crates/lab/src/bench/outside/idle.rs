//! `sluice bench idle`: what the daemon costs while nothing happens, and a packet after that.
//!
//! # Approach
//! Two namespaces joined by a chain of three NFs, without traffic. The daemon may sleep (its
//! default, `idle = "adaptive"`), and its ports support that. The cost is CPU time of all of its
//! threads, by the kernel: packet threads, the scheduler of NFs that poll, the controller of
//! weights, and the control socket.
//!
//! `lone/…` has each value of `idle`. Behind the time without traffic, single packets of UDP go
//! through the chain, [`PAUSE`] apart, each timed from its sender's call to the receiver's.
//! `latency_ns_added` is their median less that of `lone/spin` in the same turn: what the wake of a
//! packet thread adds. The wakes of NFs and receiver are in both.
//!
//! # Source
//! UNiS names the core that its scheduler always burns as its first limitation.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use sluice_host::netns::{Netns, path_of};

use super::Scheduler;
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Shown, Trials};
use crate::bench::measure::Sample;
use crate::bench::proc::threads_run_ns;
use crate::bench::sched::netns::{self, INSIDE, OUTSIDE, Side, Wires};
use crate::bench::sched::{COST, chain_of, params};
use crate::bench::setup::{Service, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "idle",
    about: "CPU time of the daemon without traffic, and latency of single packets",
    run: |args| Lab::measure(args, &[COST], |_| plan(netns::missing_without(&["iperf3"]).as_deref())),
};

const NFS: usize = 3;
const VARIANTS: [(&str, Scheduler); 2] =
    [("cooperative", Scheduler::Cooperative), ("uncooperative/auto", Scheduler::Uncooperative)];
/// Values of `idle`, as lines of `[manager]`.
const IDLES: [(&str, &str); 3] =
    [("adaptive", "idle = \"adaptive\"\n"), ("sleep", "idle = \"sleep\"\n"), ("spin", "idle = \"spin\"\n")];
/// Time between two lone packets: several times that after which a thread sleeps.
const PAUSE: Duration = Duration::from_millis(5);
/// Lone packets at least.
const LONE: usize = 10;
/// Time limit for a lone packet.
const PATIENCE: Duration = Duration::from_secs(1);
/// Ports of sender and receiver.
const PORTS: (u16, u16) = (20_000, 9_000);
const P50: &str = "latency_ns_p50";

const GROUP: Group = Group {
    title: "A chain of three NFs without a packet",
    keys: &["nfs"],
    columns: &[
        Column::new("daemon_cpu_percent", "daemon's CPU %", 1.0, 2),
        Column::new("nf_cpu_percent", "NFs' CPU %", 1.0, 2),
        Column::new("host_packets_per_s", "packets/s", 1.0, 1),
    ],
    plotted: 1,
    form: Form::Bars,
};

const LONE_PACKETS: Group = Group {
    title: "The same, and single packets, by `idle`",
    keys: &["nfs"],
    columns: &[
        Column::new("daemon_cpu_percent", "daemon's CPU %", 1.0, 2),
        Column::new(P50, "p50 µs", 1e3, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
        Column::new("latency_ns_added", "added, p50 µs", 1e3, 0),
        Column::new("nf_cpu_percent", "NFs' CPU %", 1.0, 2),
    ],
    plotted: 2,
    form: Form::Bars,
};

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let groups: Vec<Shown> = vec![(GROUP, |v| !v.name.starts_with("lone/")), (LONE_PACKETS, |v| v.name.starts_with("lone/"))];
    let mut plan = Trials::new(EXPERIMENT.name, add_added, groups);
    let of = params(&[("nfs", json!(NFS))]);
    for (name, sharing) in VARIANTS {
        match missing {
            Some(why) => plan.leave_out(name, of.clone(), why),
            None => plan.cases.push(Case::one(name, of.clone(), move |lab| one(lab, sharing, None))),
        }
    }
    for (idle, line) in IDLES {
        let name = format!("lone/{idle}");
        match missing {
            Some(why) => plan.leave_out(&name, of.clone(), why),
            None => plan.cases.push(Case::one(name, of.clone(), move |lab| one(lab, Scheduler::Cooperative, Some(line)))),
        }
    }
    plan
}

/// Adds to each way to idle what it adds to the latency of one that polls.
fn add_added(rows: &mut [Row]) -> Vec<Row> {
    let spin = rows.iter().find(|row| row.name == "lone/spin").and_then(|row| row.get(P50));
    for row in rows {
        row.put("latency_ns_added", row.get(P50).zip(spin).map(|(own, spin)| own - spin));
    }
    Vec::new()
}

fn setup(lab: &Lab, sharing: Scheduler, interfaces: [&str; 2]) -> Setup {
    let core = lab.cores.shared();
    let name = |i: usize| format!("nf{i}");
    let poll = sharing != Scheduler::Cooperative;
    let services = (1..=NFS).map(|i| Service {
        name: name(i),
        exec: COST.into(),
        args: vec!["--cycles".into(), "50".into()],
        core,
        poll,
        ..Service::default()
    });
    let names: Vec<String> = (1..=NFS).map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut back = chain_of("back", &[]);
    let mut there = chain_of("there", &names);
    (there.egress, back.egress) = ("outside".into(), "inside".into());
    let port = |name, interface, chain| netns::port("af_packet", name, interface, chain);
    Setup {
        manager_core: lab.manager_core,
        rests: true,
        services: services.collect(),
        chains: vec![there, back],
        more: port("inside", interfaces[0], "there") + &port("outside", interfaces[1], "back"),
        ..Setup::default()
    }
}

/// CPU time without traffic; with a value of `idle`, also the latency of single packets.
fn one(lab: &Lab, sharing: Scheduler, idle: Option<&'static str>) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    let setup = setup(lab, sharing, [wires.host(Side::Inside), wires.host(Side::Outside)]);
    let daemon = lab.start(&Setup { manager: idle.unwrap_or_default(), ..setup })?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    let spent_before = threads_run_ns(daemon.pid())?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let spent = threads_run_ns(daemon.pid())?.saturating_sub(spent_before);
    let after = lab.read(&daemon)?;
    let times_ns = if idle.is_some() { lone_packets(lab, &wires)? } else { Vec::new() };
    daemon.stop()?;
    let seconds = after.tasks.seconds_since(&before.tasks);
    let nfs = (1..=NFS).filter_map(|i| after.tasks.since(&before.tasks, &format!("nf{i}")));
    // Packets that the kernel itself sends, such as neighbour discovery.
    let packets =
        |reading: &crate::bench::measure::Reading| reading.stats.ports.iter().map(|port| port.rx_packets).sum::<u64>() as f64;
    let mut sample = Sample::from([
        ("daemon_cpu_percent".into(), spent as f64 / 1e7 / seconds),
        ("nf_cpu_percent".into(), nfs.map(|task| task.run_ns).sum::<u64>() as f64 / 1e7 / seconds),
        ("host_packets_per_s".into(), (packets(&after) - packets(&before)) / seconds),
    ]);
    for (metric, percent) in [(P50, 50), ("latency_ns_p99", 99)] {
        sample.extend(times_ns.get(times_ns.len() * percent / 100).map(|ns| (metric.to_string(), *ns as f64)));
    }
    Ok(sample)
}

/// Sends single packets from the inner namespace to the outer one for the requested time. Returns
/// how long each took, in nanoseconds, the shortest first.
fn lone_packets(lab: &Lab, wires: &Wires) -> anyhow::Result<Vec<u64>> {
    // A socket stays in the namespace in which it was made.
    let socket = |namespace: &str, at: (&str, u16)| {
        Netns::open(&path_of(namespace))?.visit(|| UdpSocket::bind(at)).with_context(|| format!("cannot make a socket at {at:?}"))
    };
    let [inside, outside] = wires.namespaces();
    let sender = socket(inside, (INSIDE, PORTS.0))?;
    let receiver = socket(outside, (OUTSIDE, PORTS.1))?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let (began, mut times_ns) = (Instant::now(), Vec::new());
    while began.elapsed().as_secs_f64() < lab.args.seconds || times_ns.len() < LONE {
        lab.programs.pause(PAUSE)?;
        let sent = Instant::now();
        sender.send_to(&[0; 18], (OUTSIDE, PORTS.1))?;
        receiver.recv(&mut [0; 64]).with_context(|| format!("a single packet has not come in {PATIENCE:?}"))?;
        times_ns.push(u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times_ns.sort_unstable();
    Ok(times_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn both_kinds_are_accepted_and_may_sleep() {
        let lab = lab(1);
        for (_, sharing) in VARIANTS {
            let setup = setup(&lab, sharing, ["a0", "b0"]);
            let toml = setup.toml(std::path::Path::new("/run/x"));
            assert!(toml.contains("[manager]") && !toml.contains("idle = "), "{toml}");
            assert_accepted(&setup, &[COST]);
        }
        for (_, line) in IDLES {
            assert_accepted(&Setup { manager: line, ..setup(&lab, Scheduler::Cooperative, ["a0", "b0"]) }, &[COST]);
        }
        assert_eq!(plan(Some("no root")).cases.len(), 0);
        let plan = plan(None);
        let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["cooperative", "uncooperative/auto", "lone/adaptive", "lone/sleep", "lone/spin"]);
    }

    #[test]
    fn what_a_sleep_adds_is_relative_to_one_that_polls() {
        let of = params(&[("nfs", json!(NFS))]);
        let row = |name: &str, ns: f64| Row::new(name, &of, Sample::from([(P50.into(), ns)]));
        let mut rows = [row("lone/sleep", 180e3), row("lone/spin", 120e3), Row::new("cooperative", &of, Sample::new())];
        add_added(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.get("latency_ns_added")), [Some(60e3), Some(0.0), None]);
        add_added(&mut rows[..1]);
        assert_eq!(rows[0].get("latency_ns_added"), Some(60e3), "none to compare with");
    }
}
