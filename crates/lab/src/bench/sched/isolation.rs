//! `sluice bench isolation`: a real TCP flow beside ten UDP flows with their own bottleneck.
//!
//! # Approach
//! ```text
//! TCP: namespace ─► nf1 (120) ─► nf2 (270) ─► namespace          answers go straight back
//! UDP: generator ─► nf1 (120) ─► nf2 (270) ─► nf3 (4500) ─► sink
//! ```
//! The cost of 4,500 stands for the paper's "High". All NFs share a core. UDP arrives faster than
//! nf1 and nf2 can process it, and most of it dies before nf3; under the default it displaces TCP.
//! UDP runs alone and beside TCP in each variant. TCP runs alone in each mode under SCHED_OTHER,
//! where it takes a small part of the core and the scheduler decides nothing. `tcp_kept_ratio` and
//! `udp_kept_ratio` compare within the turn. The params `tcp_flows` and `udp_flows` distinguish the
//! cases.
//!
//! TCP is paced: iperf3 sends at [`TCP_MBIT`] and no faster. An unpaced flow takes all there is. On
//! a host with few cores its ends share the manager's core, and would be the bottleneck and thus
//! the measurement. A paced flow demands the same in every variant, and all that it lacks was lost
//! on its way.
//!
//! The *course* has the phases of the figure, at a tenth of the requested time for each of its
//! seconds: a TCP flow that is not paced, beside which UDP begins after 15 of 55 seconds and ends
//! after 40. TCP's bits per second are those that leave towards its receiver, with headers and
//! repetitions. `tcp_kept_ratio` is its rate beside UDP over its rate before, without the first
//! [`SETTLE_S`] seconds of each phase. Rows over `paper_s` are the curve. With `nf_cores` 2, as in
//! the paper, the third NF has a core of its own, where neither end of TCP runs. That needs three
//! cores.
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

use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::json;

use super::netns::{self, Wires, missing};
use super::{COST, Mode, PARTS, WASTED, chain_of, name_of, nf_cores, nf_of, params, schedulers};
use crate::bench::daemon::Daemon;
use crate::bench::experiment::Experiment;
use crate::bench::fair::mean;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::{Sample, sample};
use crate::bench::report::Params;
use crate::bench::setup::{Class, Device, Setup, Traffic};
use crate::bench::stats::Window;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "isolation",
    about: "real TCP beside UDP flows with a bottleneck of their own (figure 13)",
    run: |args| Lab::measure(args, &[COST], |lab| plan(missing().as_deref(), apart(lab))),
};

const COSTS: [u64; 3] = [120, 270, 4500];
const UDP_FLOWS: u32 = 10;
/// Packets per second of all UDP flows.
const UDP_PPS: f64 = 10e6;
/// Rate of the paced TCP flow.
const TCP_MBIT: u32 = 200;
/// Rate of a generator that sends next to nothing: a packet per hour.
const CALM_PPS: f64 = 1.0 / 3600.0;
/// Seconds of the figure at which UDP begins and ends, and at which TCP ends.
const UDP_FROM_S: u32 = 15;
const UDP_UNTIL_S: u32 = 40;
const TCP_UNTIL_S: u32 = 55;
/// Seconds of the figure by which a phase has settled.
const SETTLE_S: u32 = 3;
/// Measured time of such a second, as a part of the requested time.
const SECOND: f64 = 0.1;
/// Modes whose course is measured.
const COURSES: [Mode; 3] = [Mode::Default, Mode::Nfvnice, Mode::Sluice];

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

const COURSE: Group = Group {
    title: "TCP that is not paced, before, beside and after UDP",
    keys: &["nf_cores"],
    columns: &[
        Column::new("tcp_bps.before", "TCP before, Mbit/s", 1e6, 1),
        Column::new("tcp_bps.beside", "beside", 1e6, 1),
        Column::new("tcp_bps.after", "after", 1e6, 1),
        Column::new("tcp_kept_ratio", "TCP kept", 1.0, 3),
        Column::new("udp_pps.beside", "UDP kpps", 1e3, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};
const CURVE: Group = Group {
    title: "TCP that is not paced, and UDP from second 15 to 40 of the figure",
    keys: &["nf_cores"],
    columns: &[Column::new("tcp_bps", "TCP Mbit/s", 1e6, 1), Column::new("udp_pps", "UDP kpps", 1e3, 1)],
    plotted: 2,
    form: Form::LogSeries("paper_s"),
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

/// A core for the third NF alone, or why there is none.
fn apart(lab: &Lab) -> Result<usize, String> {
    lab.cores.own(2).map(|own| own[1]).map_err(|why| format!("a core for the third NF: {why}"))
}

/// `missing` is the reason why the experiment cannot run here; `apart` is a core for the third NF
/// alone.
fn plan(missing: Option<&str>, apart: Result<usize, String>) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![
        (GROUP, |v| v.params.contains_key("tcp_flows")),
        (COURSE, |v| !v.params.contains_key("tcp_flows") && !v.params.contains_key("paper_s")),
        (CURVE, |v| v.params.contains_key("paper_s")),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, derive, shown);
    for (class, mode) in schedulers().into_iter().flat_map(|class| PARTS.map(|mode| (class, mode))) {
        let name = name_of(mode, class);
        for flows in FLOWS.into_iter().filter(|flows| flows.udp || class == Class::Other) {
            let why = missing.or_else(|| mode.idle_under(class)).or_else(|| alone(mode, class));
            if let Some(why) = why {
                plan.leave_out(&name, flows.params(), why);
                continue;
            }
            plan.cases.push(Case::one(name.clone(), flows.params(), move |lab| one(lab, mode, class, flows)));
        }
    }
    let courses = [(params(&[("phases", json!(3))]), Ok(None)), (params(&[nf_cores(2)]), apart.map(Some))];
    for ((of, third), mode) in courses.iter().flat_map(|course| COURSES.map(|mode| (course, mode))) {
        let name = name_of(mode, Class::Other);
        let (third, few) = match third {
            Ok(core) => (*core, None),
            Err(why) => (None, Some(why.as_str())),
        };
        if let Some(why) = missing.or(few) {
            plan.leave_out(&name, of.clone(), why);
            continue;
        }
        let (row_name, row_params) = (name.clone(), of.clone());
        let run = move |lab: &Lab| Ok(rows(&row_name, &row_params, &course(lab, mode, third)?));
        plan.cases.push(Case { name, params: of.clone(), run: Box::new(run) });
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
    let daemon = lab.start(&setup)?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    let mut tcp = None;
    if flows.tcp {
        tcp = Some(wires.tcp(&lab.programs, &ends(lab, None), TCP_MBIT, lab.args.seconds)?);
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

/// Cores of the ends of a TCP flow: any but that of the NFs, and that of the third alone.
fn ends(lab: &Lab, third: Option<usize>) -> Vec<usize> {
    let mut cores = lab.cores.besides_manager();
    cores.retain(|core| *core != lab.cores.shared() && Some(*core) != third);
    cores.push(lab.manager_core);
    cores
}

/// What passed in a second of the figure.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    /// Its end.
    paper_s: u32,
    tcp_bps: f64,
    udp_pps: f64,
}

/// A TCP flow that is not paced, beside which UDP comes and goes. The third NF may have a core of
/// its own.
fn course(lab: &Lab, mode: Mode, third: Option<usize>) -> Result<Vec<Point>, Miss> {
    let wires = Wires::lay()?;
    let [calm, busy] = [CALM_PPS, UDP_PPS].map(|rate| {
        let devargs = [wires.inside_devargs(), wires.outside_devargs()];
        let mut setup = setup(lab, mode, Class::Other, Flows { tcp: true, udp: true }, devargs);
        setup.traffic.iter_mut().for_each(|udp| udp.rate = rate);
        setup.services[2].core = third.unwrap_or(setup.services[2].core);
        setup
    });
    let daemon = lab.start(&calm)?;
    lab.warm_up()?;
    let (programs, cores) = (&lab.programs, ends(lab, third));
    let second = Duration::from_secs_f64(lab.args.seconds * SECOND);
    let points = std::thread::scope(|scope| {
        let tcp = scope.spawn(|| wires.tcp(programs, &cores, 0, (second * TCP_UNTIL_S).as_secs_f64()));
        let points = watch(lab, &daemon, [&calm, &busy], second);
        // To starve beside UDP is a result.
        tcp.join().map_err(|_| anyhow!("a thread of the experiment panicked"))??;
        points
    })?;
    lab.read(&daemon)?;
    daemon.stop()?;
    Ok(points)
}

/// Counts packets in each second of the figure, while UDP comes and goes.
fn watch(lab: &Lab, daemon: &Daemon, [calm, busy]: [&Setup; 2], second: Duration) -> anyhow::Result<Vec<Point>> {
    let (mut last, mut points) = (daemon.stats()?, Vec::new());
    let began = Instant::now();
    for paper_s in 1..=TCP_UNTIL_S {
        lab.programs.pause((second * paper_s).saturating_sub(began.elapsed()))?;
        let now = daemon.stats()?;
        let window = Window { before: &last, after: &now };
        points.push(Point { paper_s, tcp_bps: window.tx_bps("outside"), udp_pps: window.exit_pps("udp") });
        last = now;
        match paper_s {
            UDP_FROM_S => daemon.apply(busy)?,
            UDP_UNTIL_S => daemon.apply(calm)?,
            _ => {}
        }
    }
    Ok(points)
}

/// The phases of a course, and its points.
fn rows(name: &str, of: &Params, points: &[Point]) -> Vec<Row> {
    let settled = |from: u32, until: u32, what: fn(&Point) -> f64| {
        let within = points.iter().filter(|point| point.paper_s > from + SETTLE_S && point.paper_s <= until);
        let values: Vec<f64> = within.map(what).collect();
        (!values.is_empty()).then(|| mean(&values))
    };
    let tcp = |from: u32, until: u32| settled(from, until, |point| point.tcp_bps);
    let (before, beside) = (tcp(0, UDP_FROM_S), tcp(UDP_FROM_S, UDP_UNTIL_S));
    let mut summary = Row::new(name, of, Sample::new());
    summary.put("tcp_bps.before", before);
    summary.put("tcp_bps.beside", beside);
    summary.put("tcp_bps.after", tcp(UDP_UNTIL_S, TCP_UNTIL_S));
    summary.put("tcp_kept_ratio", before.zip(beside).map(|(before, beside)| beside / before));
    summary.put("udp_pps.beside", settled(UDP_FROM_S, UDP_UNTIL_S, |point| point.udp_pps));
    let curve = points.iter().map(|Point { paper_s, tcp_bps, udp_pps }| {
        let sample = Sample::from([("tcp_bps".into(), *tcp_bps), ("udp_pps".into(), *udp_pps)]);
        let mut at = of.clone();
        at.remove("phases");
        at.insert("paper_s".into(), json!(paper_s));
        Row::new(name, &at, sample)
    });
    std::iter::once(summary).chain(curve).collect()
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
        let here = super::plan(None, Ok(2));
        // TCP alone in each mode; UDP alone and both in three modes under each scheduler and in two
        // more under one.
        let courses = here.cases.iter().filter(|case| case.params.contains_key("phases"));
        let names: Vec<&str> = courses.map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["default/other", "nfvnice/other", "sluice/other"]);
        let apart = here.cases.iter().filter(|case| case.params == params(&[nf_cores(2)])).count();
        assert_eq!((apart, here.cases.len() - names.len() - apart), (3, 5 + 2 * (3 * 4 + 2)));
        assert!(here.cases.iter().filter(|case| case.params == FLOWS[0].params()).all(|case| case.name.ends_with("/other")));
        let few = plan(None, Err("a core".into()));
        assert_eq!((here.cases.len() - few.cases.len(), few.left_out.iter().filter(|l| l.why == "a core").count()), (3, 3));
        let nowhere = plan(Some("it needs root"), Ok(2));
        assert!(nowhere.cases.is_empty() && nowhere.left_out.iter().all(|l| l.why == "it needs root"));
        assert_eq!(nowhere.left_out.len(), here.cases.len() + here.left_out.len());
    }

    #[test]
    fn a_course_has_phases_that_have_settled_and_a_point_for_each_second() {
        let point = |paper_s: u32| {
            let beside = paper_s > UDP_FROM_S && paper_s <= UDP_UNTIL_S;
            // A second after each change counts for neither phase.
            let tcp_bps = if [1, 16, 41].contains(&paper_s) {
                1e9
            } else if beside {
                3e6
            } else {
                4e6
            };
            Point { paper_s, tcp_bps, udp_pps: if beside { 1e5 } else { 0.0 } }
        };
        let points: Vec<Point> = (1..=TCP_UNTIL_S).map(point).collect();
        let rows = rows("sluice/other", &params(&[("phases", json!(3))]), &points);
        assert_eq!(rows.len(), 56);
        let phases = ["before", "beside", "after"].map(|phase| rows[0].get(&format!("tcp_bps.{phase}")));
        assert_eq!((phases, rows[0].get("udp_pps.beside")), ([Some(4e6), Some(3e6), Some(4e6)], Some(1e5)));
        assert_eq!(rows[0].get("tcp_kept_ratio"), Some(0.75));
        assert_eq!((&rows[55].params["paper_s"], rows[55].get("tcp_bps")), (&json!(55), Some(4e6)));
        let apart = super::rows("sluice/other", &params(&[nf_cores(2)]), &points);
        assert_eq!(apart[55].params, params(&[nf_cores(2), ("paper_s", json!(55))]));
        let mut unchanged = rows.clone();
        derive(&mut unchanged);
        assert_eq!(unchanged, rows, "a course is compared with itself alone");
    }

    #[test]
    fn to_starve_beside_udp_is_a_result_and_alone_an_error() {
        let [tcp, _, both] = FLOWS;
        assert_eq!(rate(netns::TcpResult::Whole(2e8), tcp).unwrap(), (2e8, 0.0));
        assert_eq!(rate(netns::TcpResult::Starved(3e5), both).unwrap(), (3e5, 1.0));
        assert!(rate(netns::TcpResult::Starved(0.0), tcp).unwrap_err().to_string().contains("nothing is beside it"));
    }
}
