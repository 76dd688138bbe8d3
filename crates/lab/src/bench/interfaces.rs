//! `sluice bench interfaces`: what ports of kernel interfaces cost, `af_packet` and `af_xdp`.
//!
//! # Approach
//! All without an NF. `packets_per_cpu_s` is what the ports sent for each second of CPU time of all
//! threads of the daemon, by the kernel; `of_af_packet` relates it to `af_packet` in the same turn.
//! - `wire/…`: from a generator to one end of a veth pair, and from its other end to a sink, in
//!   one packet thread that is always busy. What reached the sink counts.
//! - `tcp/…`: TCP of iperf3 as fast as it goes, from a namespace through the daemon to another,
//!   both on a core that is not the packet thread's. What both ports sent counts.
//!
//! # Limits
//! Offloads are off. A veth pair has no hardware in between: the receiving host's network stack
//! runs in the sender's system call, and its time is the daemon's.

use std::time::Duration;

use serde_json::json;
use sluice_api::model::Stats;

use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Shown, Trials};
use crate::bench::measure::{Reading, Sample};
use crate::bench::proc::threads_run_ns;
use crate::bench::sched::netns::{self, PLAIN, TcpResult, Wires, call, port};
use crate::bench::sched::{chain_of, params};
use crate::bench::setup::{SINK, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "interfaces",
    about: "packets of kernel interfaces for a second of CPU time: af_packet and af_xdp",
    run: |args| Lab::measure(args, &[], |_| plan(netns::missing_without)),
};

const KINDS: [&str; 2] = ["af_packet", "af_xdp"];
/// Sizes of packets with their frame check sequence, in bytes.
const SIZES: [u32; 2] = [64, 1_518];
const FLOWS: u32 = 64;
const PER_CPU: &str = "packets_per_cpu_s";

const COLUMNS: &[Column] = &[
    Column::new(PER_CPU, "packets/CPU s", 1.0, 0),
    Column::new("of_af_packet", "of af_packet", 1.0, 2),
    Column::new("delivered_pps", "packets/s", 1.0, 0),
];
const WIRE: Group = Group {
    title: "Through a veth pair and back, by port",
    keys: &["packet_bytes"],
    columns: COLUMNS,
    plotted: 2,
    form: Form::Bars,
};
const TCP: Group = Group {
    title: "TCP between two namespaces, by port",
    keys: &[],
    columns: &[COLUMNS[0], COLUMNS[1], COLUMNS[2], Column::new("tcp_bps", "Gbit/s", 1e9, 2)],
    plotted: 2,
    form: Form::Bars,
};

/// `missing`: why namespaces are impossible here without a need for some programs.
fn plan(missing: impl Fn(&[&str]) -> Option<String>) -> Trials {
    let groups: Vec<Shown> = vec![(WIRE, |v| v.name.starts_with("wire/")), (TCP, |v| v.name.starts_with("tcp/"))];
    let mut plan = Trials::new(EXPERIMENT.name, of_af_packet, groups);
    for size in SIZES {
        for kind in KINDS {
            let (name, of) = (format!("wire/{kind}"), params(&[("packet_bytes", json!(size))]));
            match missing(&["iperf3"]) {
                Some(why) => plan.leave_out(&name, of, why),
                None => plan.cases.push(Case::one(name, of, move |lab| wire(lab, kind, size))),
            }
        }
    }
    for kind in KINDS {
        let (name, of) = (format!("tcp/{kind}"), params(&[]));
        match missing(&[]) {
            Some(why) => plan.leave_out(&name, of, why),
            None => plan.cases.push(Case::one(name, of, move |lab| tcp(lab, kind))),
        }
    }
    plan
}

/// Relates each variant to that with `af_packet`.
fn of_af_packet(rows: &mut [Row]) -> Vec<Row> {
    let way = |name: &str| name.split('/').next().unwrap_or_default().to_string();
    let base: Vec<_> = rows
        .iter()
        .filter(|row| row.name.ends_with("/af_packet"))
        .filter_map(|row| Some((way(&row.name), row.params.clone(), row.get(PER_CPU)?)))
        .collect();
    for row in rows {
        let same = base.iter().find(|(of, params, _)| *of == way(&row.name) && *params == row.params);
        row.put("of_af_packet", row.get(PER_CPU).zip(same).map(|(own, (.., base))| own / base));
    }
    Vec::new()
}

/// A veth pair of the host.
struct Pair([String; 2]);

impl Pair {
    fn lay() -> anyhow::Result<Self> {
        let pair = Self(["a", "b"].map(|end| format!("slb{}{end}", std::process::id())));
        let [a, b] = &pair.0;
        call("ip", &["link", "add", a, "type", "veth", "peer", "name", b])?;
        for end in [a, b] {
            call("ethtool", &[&["-K", end.as_str()], &PLAIN[..]].concat())?;
            call("ip", &["link", "set", end, "up"])?;
        }
        Ok(pair)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // It may not exist.
        let _ = call("ip", &["link", "del", &self.0[0]]);
    }
}

/// Ports of two interfaces, whose packets take the chains `there` and `back`.
fn ports(kind: &str, [first, second]: [&str; 2]) -> String {
    port(kind, "first", first, "back") + &port(kind, "second", second, "there")
}

fn wire_setup(lab: &Lab, kind: &str, size: u32, interfaces: [&str; 2]) -> Setup {
    let mut out = chain_of("out", &[]);
    out.egress = "first".into();
    Setup {
        manager_core: lab.manager_core,
        traffic: vec![Traffic { chain: "out".into(), flows: FLOWS, packet_bytes: size, ..Traffic::default() }],
        chains: vec![out, chain_of("there", &[]), chain_of("back", &[])],
        more: ports(kind, interfaces),
        ..Setup::default()
    }
}

fn tcp_setup(lab: &Lab, kind: &str, interfaces: [&str; 2]) -> Setup {
    let (mut there, mut back) = (chain_of("there", &[]), chain_of("back", &[]));
    (there.egress, back.egress) = ("first".into(), "second".into());
    Setup {
        manager_core: lab.manager_core,
        rests: true,
        chains: vec![there, back],
        more: ports(kind, interfaces),
        ..Setup::default()
    }
}

fn wire(lab: &Lab, kind: &str, size: u32) -> Result<Sample, Miss> {
    let pair = Pair::lay()?;
    let daemon = lab.start(&wire_setup(lab, kind, size, pair.0.each_ref().map(String::as_str)))?;
    lab.warm_up()?;
    let (before, cpu_ns) = (lab.read(&daemon)?, threads_run_ns(daemon.pid())?);
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let cpu_ns = threads_run_ns(daemon.pid())?.saturating_sub(cpu_ns);
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    Ok(sample(&before, &after, &[SINK], cpu_ns))
}

fn tcp(lab: &Lab, kind: &str) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    let daemon = lab.start(&tcp_setup(lab, kind, wires.hosts()))?;
    let (before, cpu_ns) = (lab.read(&daemon)?, threads_run_ns(daemon.pid())?);
    let result = wires.tcp(&lab.programs, &[lab.cores.shared()], 0, lab.args.seconds)?;
    let cpu_ns = threads_run_ns(daemon.pid())?.saturating_sub(cpu_ns);
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let TcpResult::Whole(bps) = result else {
        return Err(anyhow::anyhow!("TCP did not get through two ports of kind {kind}").into());
    };
    let mut sample = sample(&before, &after, &["first", "second"], cpu_ns);
    sample.insert("tcp_bps".into(), bps);
    Ok(sample)
}

/// What these ports sent between two readings, in which the daemon used this CPU time.
fn sample(before: &Reading, after: &Reading, ports: &[&str], cpu_ns: u64) -> Sample {
    let packets = sent(&after.stats, ports).saturating_sub(sent(&before.stats, ports)) as f64;
    let seconds = after.stats.time_ns.saturating_sub(before.stats.time_ns).max(1) as f64 / 1e9;
    Sample::from([(PER_CPU.into(), packets * 1e9 / cpu_ns.max(1) as f64), ("delivered_pps".into(), packets / seconds)])
}

fn sent(stats: &Stats, ports: &[&str]) -> u64 {
    stats.ports.iter().filter(|port| ports.contains(&port.name.as_str())).map(|port| port.tx_packets).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn every_kind_is_accepted_and_has_its_place() {
        let lab = lab(1);
        for kind in KINDS {
            for size in SIZES {
                assert_accepted(&wire_setup(&lab, kind, size, ["a0", "b0"]), &[]);
            }
            assert_accepted(&tcp_setup(&lab, kind, ["a0", "b0"]), &[]);
        }
        assert_eq!(plan(|_| None).cases.len(), 6);
        let without_iperf3 = plan(|unneeded| (!unneeded.contains(&"iperf3")).then(|| "no iperf3".into()));
        assert_eq!((without_iperf3.cases.len(), without_iperf3.left_out.len()), (4, 2));
    }

    #[test]
    fn one_is_related_to_af_packet_of_the_same_way_and_size() {
        let row = |name: &str, size: u32, per_cpu: f64| {
            Row::new(name, &params(&[("packet_bytes", json!(size))]), Sample::from([(PER_CPU.into(), per_cpu)]))
        };
        let mut rows = [
            row("wire/af_packet", 60, 100.0),
            row("wire/af_xdp", 60, 180.0),
            row("wire/af_packet", 1_514, 50.0),
            row("wire/af_xdp", 1_514, 60.0),
            row("tcp/af_xdp", 60, 70.0),
        ];
        of_af_packet(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.get("of_af_packet")), [Some(1.0), Some(1.8), Some(1.0), Some(1.2), None]);
    }
}
