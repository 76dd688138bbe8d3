//! `sluice bench isolation`: a real TCP flow beside ten UDP flows that meet a bottleneck of their own.
//!
//! # Approach
//! ```text
//! TCP: namespace ─► nf1 (120) ─► nf2 (270) ─► namespace          answers go straight back
//! UDP: generator ─► nf1 (120) ─► nf2 (270) ─► nf3 (4500) ─► sink
//! ```
//! All NFs share a core. UDP arrives faster than nf1 and nf2 could work on it, most of it only to die before nf3; the default lets it
//! push TCP out. Each mode runs three times a turn, TCP alone, UDP alone and both: `tcp_kept_ratio` and `udp_kept_ratio` compare
//! within the turn. The params `tcp_flows` and `udp_flows` tell them apart.
//!
//! # Limits
//! Needs root, iperf3, and a daemon with DPDK. TCP is limited to [`TCP_MBIT`] so that on a host with few cores the ends of the flow,
//! which share the manager's core there, are not what is measured. Everything that is made on the host is removed, also after an
//! interruption.
//!
//! # Source
//! NFVnice, figure 13.

use std::time::Duration;

use serde_json::json;

use super::netns::{Wires, missing};
use super::{COST, Mode, chain_of, name_of, nf_of, params};
use crate::lab::{Case, Lab, Miss, Plan, Row, Sample};
use crate::measure::sample;
use crate::report::Params;
use crate::setup::{Class, Device, Setup, Traffic};
use crate::table::{Column, Form, Group};
use crate::{BenchArgs, Experiment};

/// This experiment.
pub const EXPERIMENT: Experiment =
    Experiment { name: "isolation", about: "real TCP beside UDP flows with a bottleneck of their own (figure 13)", run };

const COSTS: [u64; 3] = [120, 270, 4500];
const UDP_FLOWS: u32 = 10;
/// Packets per second of all UDP flows.
const UDP_PPS: f64 = 10e6;
const TCP_MBIT: u32 = 200;
const MODES: [Mode; 2] = [Mode::Default, Mode::Sluice];
const CLASSES: [Class; 2] = [Class::Other, Class::Batch];

const GROUP: Group = Group {
    title: "TCP and UDP through two NFs on one core, UDP with a bottleneck behind",
    keys: &["tcp_flows", "udp_flows"],
    columns: &[
        Column::new("tcp_bps", "TCP Mbit/s", 1e6, 1),
        Column::new("udp_pps", "UDP kpps", 1e3, 1),
        Column::new("tcp_kept_ratio", "TCP kept", 1.0, 3),
        Column::new("udp_kept_ratio", "UDP kept", 1.0, 3),
        Column::new("wasted_pps", "wasted kpps", 1e3, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};

/// Which flows there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flows {
    tcp: bool,
    udp: bool,
}

const FLOWS: [Flows; 3] = [Flows { tcp: true, udp: false }, Flows { tcp: false, udp: true }, Flows { tcp: true, udp: true }];

impl Flows {
    fn params(self) -> Params {
        params(&[("tcp_flows", json!(u8::from(self.tcp))), ("udp_flows", json!(if self.udp { UDP_FLOWS } else { 0 }))])
    }
}

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST])?;
    lab.run(&plan(missing().as_deref()))
}

/// `missing` is why nothing of it can run here.
fn plan(missing: Option<&str>) -> Plan {
    let mut plan = Plan::new(EXPERIMENT.name, derive, vec![(GROUP, |_| true)]);
    for class in CLASSES {
        for mode in MODES {
            for flows in FLOWS {
                let name = name_of(mode, class);
                if let Some(why) = missing {
                    plan.leave_out(&name, flows.params(), why);
                    continue;
                }
                let row_name = name.clone();
                let run = move |lab: &Lab| Ok(vec![Row::new(&row_name, &flows.params(), one(lab, mode, class, flows)?)]);
                plan.cases.push(Case { name, params: flows.params(), run: Box::new(run) });
            }
        }
    }
    plan
}

fn setup(lab: &Lab, mode: Mode, class: Class, flows: Flows, devargs: [String; 2]) -> Setup {
    let core = lab.cores.shared();
    let [inside, outside] = devargs;
    let mut there = chain_of("tcp", &["nf1", "nf2"]);
    there.egress = "outside".into();
    let mut back = chain_of("back", &[]);
    back.egress = "inside".into();
    let udp = Traffic { name: "udp".into(), chain: "udp".into(), rate: UDP_PPS, flows: UDP_FLOWS, ..Traffic::default() };
    Setup {
        manager_core: lab.manager_core,
        sched: Some(mode.sched(class)),
        traffic: flows.udp.then_some(udp).into_iter().collect(),
        devices: vec![
            Device { name: "inside".into(), devargs: inside, chain: "tcp".into() },
            Device { name: "outside".into(), devargs: outside, chain: "back".into() },
        ],
        services: COSTS.iter().zip(1..).map(|(cycles, i)| nf_of(&format!("nf{i}"), core, *cycles)).collect(),
        chains: vec![there, back, chain_of("udp", &["nf1", "nf2", "nf3"])],
        ..Setup::default()
    }
}

fn one(lab: &Lab, mode: Mode, class: Class, flows: Flows) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    let setup = setup(lab, mode, class, flows, [wires.inside_devargs(), wires.outside_devargs()]);
    let daemon = lab.start(&setup).map_err(|missed| match missed {
        Miss::Failed(error) if format!("{error:#}").contains("--features dpdk") => {
            Miss::LeaveOut("this sluiced was built without DPDK; build it with `--features dpdk` (Debian: libdpdk-dev)".into())
        }
        other => other,
    })?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    let mut tcp_bps = None;
    if flows.tcp {
        // The ends of the flow run on any core but that of the NFs.
        let mut cores = lab.cores.besides_manager();
        cores.retain(|core| *core != lab.cores.shared());
        cores.push(lab.manager_core);
        tcp_bps = Some(wires.tcp(&lab.programs, &cores, TCP_MBIT, lab.args.seconds)?);
    } else {
        lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    }
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let mut out = sample(&setup, &before, &after);
    // Over three chains of which two are one flow, it tells nothing.
    out.remove("jain");
    if flows.udp {
        out.extend(out.get("delivered_pps.udp").copied().map(|pps| ("udp_pps".into(), pps)));
    }
    out.extend(tcp_bps.map(|bps| ("tcp_bps".into(), bps)));
    Ok(out)
}

/// What each kind of flow has left beside the other, of what it had alone.
fn derive(rows: &mut [Row]) -> Vec<Row> {
    let alone = |rows: &[Row], name: &str, flows: Flows, metric: &str| {
        rows.iter().find(|row| row.name == name && row.params == flows.params())?.get(metric).filter(|rate| *rate > 0.0)
    };
    let [tcp, udp, both] = FLOWS;
    let found: Vec<(usize, Option<f64>, Option<f64>)> = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.params == both.params())
        .map(|(i, row)| {
            let ratio = |flows: Flows, metric: &str| Some(row.get(metric)? / alone(rows, &row.name, flows, metric)?);
            (i, ratio(tcp, "tcp_bps"), ratio(udp, "udp_pps"))
        })
        .collect();
    for (i, tcp, udp) in found {
        rows[i].put("tcp_kept_ratio", tcp);
        rows[i].put("udp_kept_ratio", udp);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::tests::lab;

    #[test]
    fn what_is_kept_is_of_what_there_was_alone() {
        let row = |name: &str, flows: Flows, of: &[(&str, f64)]| {
            Row::new(name, &flows.params(), of.iter().map(|(metric, value)| (metric.to_string(), *value)).collect())
        };
        let [tcp, udp, both] = FLOWS;
        let mut rows = vec![
            row("default/other", tcp, &[("tcp_bps", 10.0)]),
            row("sluice/other", tcp, &[("tcp_bps", 8.0)]),
            row("sluice/other", udp, &[("udp_pps", 4.0)]),
            row("sluice/other", both, &[("tcp_bps", 6.0), ("udp_pps", 4.0)]),
            row("default/other", both, &[("tcp_bps", 1.0), ("udp_pps", 4.0)]),
        ];
        derive(&mut rows);
        assert_eq!((rows[3].get("tcp_kept_ratio"), rows[3].get("udp_kept_ratio")), (Some(0.75), Some(1.0)));
        assert_eq!((rows[4].get("tcp_kept_ratio"), rows[4].get("udp_kept_ratio")), (Some(0.1), None));
        assert_eq!(rows[0].get("tcp_kept_ratio"), None);
    }

    #[test]
    fn udp_has_a_bottleneck_of_its_own() {
        let devargs = || ["a".to_string(), "b".to_string()];
        let both = setup(&lab(1), Mode::Sluice, Class::Other, FLOWS[2], devargs());
        assert_eq!((both.chains[0].services.len(), both.chains[1].services.len(), both.chains[2].services.len()), (2, 0, 3));
        assert_eq!((both.devices.len(), both.traffic.len()), (2, 1));
        assert!(setup(&lab(1), Mode::Sluice, Class::Other, FLOWS[0], devargs()).traffic.is_empty());
    }

    #[test]
    fn a_host_that_cannot_says_why() {
        let plan = plan(Some("it needs root"));
        assert!(plan.cases.is_empty() && plan.left_out.len() == 12);
        assert_eq!(super::plan(None).cases.len(), 12);
    }
}
