//! `sluice bench isolation`: a real TCP flow beside ten UDP flows with their own bottleneck.
//!
//! # Approach
//! ```text
//! TCP: namespace ─► nf1 (120) ─► nf2 (270) ─► namespace          answers go straight back
//! UDP: generator ─► nf1 (120) ─► nf2 (270) ─► nf3 (4500) ─► sink
//! ```
//! All NFs share a core. UDP arrives faster than nf1 and nf2 can process it, and most of it dies
//! before nf3; under the default it displaces TCP. UDP runs alone and beside TCP in each variant.
//! TCP runs alone in each mode under SCHED_OTHER, where it takes a small part of the core and the
//! scheduler decides nothing. `tcp_kept_ratio` and `udp_kept_ratio` compare within the turn. The
//! params `tcp_flows` and `udp_flows` distinguish the cases.
//!
//! TCP is paced: iperf3 sends at [`TCP_MBIT`] and no faster. An unpaced flow takes all there is. On
//! a host with few cores its ends share the manager's core, and would be the bottleneck and thus
//! the measurement. A paced flow demands the same in every variant, and all that it lacks was lost
//! on its way.
//!
//! If UDP displaces a flow altogether, that is a result: `tcp_bps` is then what arrived until the
//! flow was given up, often 0, and `tcp_starved` is 1.
//!
//! # Limits
//! Needs root, iperf3, and a daemon with DPDK. Everything created on the host is removed, also
//! after an interruption. There is no ideal: the chains are at least two processes, which leaves
//! the scheduler a choice. Weights and backpressure alone run under SCHED_OTHER only.
//!
//! # Source
//! NFVnice, figure 13.

use std::time::Duration;

use serde_json::json;

use super::netns::{self, Wires, missing};
use super::{COST, Mode, PARTS, WASTED, chain_of, name_of, nf_of, params, schedulers};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::{Sample, sample};
use crate::bench::report::Params;
use crate::bench::setup::{Class, Device, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment =
    Experiment { name: "isolation", about: "real TCP beside UDP flows with a bottleneck of their own (figure 13)", run };

const COSTS: [u64; 3] = [120, 270, 4500];
const UDP_FLOWS: u32 = 10;
/// Packets per second of all UDP flows.
const UDP_PPS: f64 = 10e6;
/// Rate of the paced TCP flow.
const TCP_MBIT: u32 = 200;

const GROUP: Group = Group {
    title: "TCP, paced at 200 Mbit/s, and UDP through two NFs on one core, UDP with a bottleneck behind",
    keys: &["tcp_flows", "udp_flows"],
    columns: &[
        Column::new("tcp_bps", "TCP Mbit/s", 1e6, 1),
        Column::new("udp_pps", "UDP kpps", 1e3, 1),
        Column::new("tcp_kept_ratio", "TCP kept", 1.0, 3),
        Column::new("udp_kept_ratio", "UDP kept", 1.0, 3),
        WASTED,
    ],
    plotted: 2,
    form: Form::Bars,
};

/// The flows of a case.
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

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, derive, vec![(GROUP, |_| true)]);
    for (class, mode) in schedulers().into_iter().flat_map(|class| PARTS.map(|mode| (class, mode))) {
        let name = name_of(mode, class);
        for flows in FLOWS.into_iter().filter(|flows| flows.udp || class == Class::Other) {
            let why = missing.or_else(|| mode.idle_under(class)).or_else(|| alone(mode, class));
            if let Some(why) = why {
                plan.leave_out(&name, flows.params(), why);
                continue;
            }
            let row_name = name.clone();
            let run = move |lab: &Lab| Ok(vec![Row::new(&row_name, &flows.params(), one(lab, mode, class, flows)?)]);
            plan.cases.push(Case { name: name.clone(), params: flows.params(), run: Box::new(run) });
        }
    }
    plan
}

/// Why a part alone is not run under a scheduler, if so.
fn alone(mode: Mode, class: Class) -> Option<&'static str> {
    let part = matches!(mode, Mode::Weights | Mode::Backpressure) && class != Class::Other;
    part.then_some("the parts alone run under SCHED_OTHER; under all of them the experiment would take minutes more")
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
    let mut tcp = None;
    if flows.tcp {
        // The ends of the flow run on any core but that of the NFs.
        let mut cores = lab.cores.besides_manager();
        cores.retain(|core| *core != lab.cores.shared());
        cores.push(lab.manager_core);
        tcp = Some(wires.tcp(&lab.programs, &cores, TCP_MBIT, lab.args.seconds)?);
    } else {
        lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    }
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let mut out = sample(&setup, &before, &after);
    // Two of the three chains are one flow, so the index means nothing.
    out.remove("jain");
    if flows.udp {
        out.extend(out.get("delivered_pps.udp").copied().map(|pps| ("udp_pps".into(), pps)));
    }
    if let Some(flow) = tcp {
        let (bps, starved) = rate(flow, flows)?;
        out.extend([("tcp_bps".into(), bps), ("tcp_starved".into(), starved)]);
    }
    Ok(out)
}

/// Bits per second of a TCP flow, and 1 if it starved. A flow that starves alone is an error.
fn rate(flow: netns::TcpResult, flows: Flows) -> anyhow::Result<(f64, f64)> {
    match flow {
        netns::TcpResult::Whole(bps) => Ok((bps, 0.0)),
        netns::TcpResult::Starved(bps) if flows.udp => Ok((bps, 1.0)),
        netns::TcpResult::Starved(bps) => {
            anyhow::bail!("TCP does not come through though nothing is beside it ({bps:.0} bits a second do)")
        }
    }
}

/// Adds each kind's rate beside the other, relative to its rate alone: TCP in the same mode, UDP in
/// the same variant.
fn derive(rows: &mut [Row]) -> Vec<Row> {
    let rates = |flows: Flows, metric: &str| -> Vec<(String, f64)> {
        let alone = rows.iter().filter(|row| row.params == flows.params());
        alone.filter_map(|row| Some((row.name.clone(), row.get(metric).filter(|rate| *rate > 0.0)?))).collect()
    };
    let [tcp, udp, both] = FLOWS;
    let (tcp_bps, udp_pps) = (rates(tcp, "tcp_bps"), rates(udp, "udp_pps"));
    for row in rows.iter_mut().filter(|row| row.params == both.params()) {
        let mode = row.name.split_once('/').map(|(mode, _)| format!("{mode}/other"));
        let ratio =
            |metric: &str, rates: &[(String, f64)], name: &str| Some(row.get(metric)? / rates.iter().find(|(of, _)| of == name)?.1);
        let tcp_kept = mode.and_then(|mode| ratio("tcp_bps", &tcp_bps, &mode));
        let udp_kept = ratio("udp_pps", &udp_pps, &row.name);
        row.put("tcp_kept_ratio", tcp_kept);
        row.put("udp_kept_ratio", udp_kept);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

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
            row("default/other", both, &[("tcp_bps", 0.0), ("udp_pps", 4.0)]),
            row("sluice/rr1", both, &[("tcp_bps", 4.0), ("udp_pps", 4.0)]),
        ];
        derive(&mut rows);
        assert_eq!((rows[3].get("tcp_kept_ratio"), rows[3].get("udp_kept_ratio")), (Some(0.75), Some(1.0)));
        assert_eq!((rows[4].get("tcp_kept_ratio"), rows[4].get("udp_kept_ratio")), (Some(0.0), None));
        assert_eq!((rows[5].get("tcp_kept_ratio"), rows[5].get("udp_kept_ratio")), (Some(0.5), None));
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
        let here = super::plan(None);
        // TCP alone in each mode; UDP alone and both in three modes under each scheduler and in two
        // more under one.
        assert_eq!(here.cases.len(), 5 + 2 * (3 * 4 + 2));
        assert!(here.cases.iter().filter(|case| case.params == FLOWS[0].params()).all(|case| case.name.ends_with("/other")));
        let nowhere = plan(Some("it needs root"));
        assert!(nowhere.cases.is_empty() && nowhere.left_out.iter().all(|l| l.why == "it needs root"));
        assert_eq!(nowhere.left_out.len(), here.cases.len() + here.left_out.len());
    }

    #[test]
    fn to_starve_beside_udp_is_a_result_and_alone_an_error() {
        let [tcp, _, both] = FLOWS;
        assert_eq!(rate(netns::TcpResult::Whole(2e8), tcp).unwrap(), (2e8, 0.0));
        assert_eq!(rate(netns::TcpResult::Starved(3e5), both).unwrap(), (3e5, 1.0));
        assert!(rate(netns::TcpResult::Starved(0.0), tcp).unwrap_err().to_string().contains("nothing is beside it"));
    }
}
