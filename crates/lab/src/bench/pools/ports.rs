//! `sluice bench ports`: packets of 128 bytes through 1, 2 and 4 receiving ports.
//!
//! # Approach
//! Each receiving port has a chain of its own, which ends at a sending port of its own. The NFs are
//! light. Packets come as fast as they are taken, and what finds no room is dropped at the entry.
//! - `gen/one`: the ports generate their packets, and sinks take them. [`NFS`] NFs with a flow each
//!   are divided among the ports: a pool for each chain. So more ports do not mean more NFs.
//! - `null/one`: the ports are DPDK devices without a wire (net_null), to receive and to send. All
//!   packets of such a device have the same bytes, and are one flow: each chain has one NF.
//! - `gen/each` and `null/each`: a packet thread, and a core for NFs, for each port. Each thread
//!   has a queue of each port. A chain without a pool has an NF for each thread.
//! - `null/inline` and `null/needed`: [`INLINE`] bridges in the packet thread between two such
//!   devices, packets of 64 bytes; with `needed` they are not looked up in the flow table.
//!
//! With `one`, all ports share a packet thread, and all NFs share a core: what is shown is the cost
//! of more ports. `of_one_port` is the total delivered rate, relative to that of one port of the
//! same kind in the same turn; `least_of_most` is the rate of the sending port that sends least,
//! relative to the one that sends most; `wasted_pps` are packets lost inside, after an NF had
//! worked on them.
//!
//! # Limits
//! No port has a wire, so none has the limit of a network card. Generated packets are made in the
//! packet threads, which is a part of what is measured; net_null only takes and returns frames.
//! With `null`, more ports mean more NFs. Where the host has too few cores for `each`, or the
//! daemon has no DPDK, these variants are left out.
//!
//! # Source
//! Flurries, section 6, with two ports of network cards.

use std::fmt::Write;

use serde_json::Value;
use sluice_api::config::Run;
use sluice_api::model::Stats;

use super::{Kind, frames, ring};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::report::Params;
use crate::bench::sched::{COST, DELIVERED, chain_of, params};
use crate::bench::setup::{Chain, Pool, SINK, Service, Setup};
use crate::bench::stats::Window;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "ports",
    about: "128-byte packets of 1, 2 and 4 ports, with light NFs behind them (Flurries, section 6)",
    run,
};

/// Numbers of receiving ports.
const PORTS: [u32; 3] = [1, 2, 4];
/// NFs of pools, of all chains together.
const NFS: u32 = 16;
/// Bridges between two devices.
const INLINE: usize = 3;
const BRIDGE: &str = "sluice-nf-bridge";
/// Size of a packet without the four bytes of its frame check sequence, as ports are configured.
const BYTES: u32 = 128 - 4;

/// How packets come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// They are generated, and sinks take them.
    Gen,
    /// By DPDK devices without a wire.
    Null,
}

const GROUP: Group = Group {
    title: "128-byte packets of several ports, each with a chain of its own",
    keys: &["ports"],
    columns: &[
        DELIVERED,
        Column::new("of_one_port", "of one port", 1.0, 3),
        Column::new("least_of_most", "least port, of most", 1.0, 3),
        Column::new("wasted_pps", "wasted pps", 1.0, 0),
        Column::new("entry_drop_pps", "entry drops Mpps", 1e6, 2),
        Column::new("manager_busy_percent", "manager busy %", 1.0, 1),
    ],
    plotted: 2,
    form: Form::Bars,
};

const BETWEEN: Group = Group {
    title: "64-byte packets through bridges in the packet thread, between two devices without a wire",
    keys: &["nfs"],
    columns: &[DELIVERED, Column::new("manager_busy_percent", "manager busy %", 1.0, 1)],
    plotted: 1,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[COST, BRIDGE])?;
    super::warn_of_small_pages();
    lab.run(&plan(&lab))
}

fn plan(lab: &Lab) -> Trials {
    let mut plan = Trials::new(
        EXPERIMENT.name,
        of_one_port,
        vec![(GROUP, |v| v.params.contains_key("ports")), (BETWEEN, |v| !v.params.contains_key("ports"))],
    );
    for wire in [Wire::Gen, Wire::Null] {
        for ports in PORTS {
            plan.cases.push(case(wire, "one", ports, &[lab.manager_core], &[lab.cores.shared()]));
        }
        // With one port, it is the same as `one`.
        for ports in PORTS.into_iter().skip(1) {
            match lab.cores.own(2 * ports as usize - 1) {
                Ok(others) => {
                    let cores = [&[lab.manager_core][..], others].concat();
                    let (threads, nf_cores) = cores.split_at(ports as usize);
                    plan.cases.push(case(wire, "each", ports, threads, nf_cores));
                }
                Err(why) => plan.leave_out(&wire.variant("each"), number_of(ports), why),
            }
        }
    }
    for (name, manager) in [("null/inline", ""), ("null/needed", "flow_table = \"needed\"\n")] {
        let setup = between(lab.manager_core, lab.cores.shared(), manager);
        plan.cases.push(Case::one(name, params(&[("nfs", INLINE.into())]), move |lab| measure(lab, &setup)));
    }
    plan
}

/// Bridges in the packet thread between two devices.
fn between(manager_core: usize, core: usize, manager: &'static str) -> Setup {
    let services: Vec<Service> =
        (1..=INLINE).map(|i| Service { name: format!("b{i}"), exec: BRIDGE.into(), core, ..Service::default() }).collect();
    let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
    let device = |name: &str, number: u32| {
        format!("[[port]]\nname = \"{name}\"\nkind = \"dpdk\"\ndevargs = \"net_null{number},size=64\"\n\n")
    };
    let (input, output) = (receiving(1), "out1");
    let rule = format!("[[rule]]\nport = \"{input}\"\nchain = \"c1\"\n");
    Setup {
        manager_core,
        manager,
        chains: vec![Chain { egress: output.into(), run: Run::Inline, ..chain_of("c1", &names) }],
        services,
        more: device(&input, 0) + &device(output, 1) + &rule,
        ..Setup::default()
    }
}

/// A case with a packet thread on each of some cores, and NFs on others.
fn case(wire: Wire, way: &str, ports: u32, threads: &[usize], nf_cores: &[usize]) -> Case {
    let setup = setup(wire, ports, threads, nf_cores);
    Case::one(wire.variant(way), number_of(ports), move |lab| measure(lab, &setup))
}

/// The param for the number of receiving ports.
fn number_of(ports: u32) -> Params {
    params(&[("ports", ports.into())])
}

fn setup(wire: Wire, ports: u32, threads: &[usize], nf_cores: &[usize]) -> Setup {
    let queues = threads.len();
    let nfs = wire.nfs(ports, queues as u32);
    let ring = ring(nfs);
    let (mut more, mut services, mut chains) = (String::new(), Vec::new(), Vec::new());
    for number in 1..=ports {
        let (input, output, chain) = (receiving(number), wire.sending(number), format!("c{number}"));
        let _ = write!(more, "[[port]]\nname = \"{input}\"\nqueues = {queues}\n{}", wire.receiver(number, ports));
        // The first sink is part of each setup.
        if output != SINK {
            let _ = write!(more, "[[port]]\nname = \"{output}\"\nqueues = {queues}\n{}", wire.sender(number));
        }
        let _ = write!(more, "[[rule]]\nport = \"{input}\"\nchain = \"{chain}\"\n");
        let service = Service {
            name: format!("nf{number}"),
            exec: COST.into(),
            args: super::args(Kind::Light.cycles()),
            instances: queues as u32,
            core: nf_cores[0],
            more_cores: nf_cores[1..].to_vec(),
            ring,
            zygote: wire == Wire::Gen,
            pool: (wire == Wire::Gen).then(|| Pool::of(NFS / ports, ring)),
            ..Service::default()
        };
        chains.push(Chain { egress: output, ..chain_of(&chain, &[service.name.as_str()]) });
        services.push(service);
    }
    Setup {
        manager_core: threads[0],
        shards: if queues > 1 { threads.to_vec() } else { Vec::new() },
        frames: frames(nfs, ring) * queues as u32,
        services,
        chains,
        more,
        ..Setup::default()
    }
}

/// Name of a receiving port.
fn receiving(number: u32) -> String {
    format!("in{number}")
}

impl Wire {
    /// Name of its variant with one packet thread (`one`), or with one for each port (`each`).
    fn variant(self, way: &str) -> String {
        let word = match self {
            Wire::Gen => "gen",
            Wire::Null => "null",
        };
        format!("{word}/{way}")
    }

    /// NFs of all chains together.
    fn nfs(self, ports: u32, threads: u32) -> u32 {
        match self {
            Wire::Gen => NFS,
            Wire::Null => ports * threads,
        }
    }

    /// Name of a sending port.
    fn sending(self, number: u32) -> String {
        if self == Wire::Gen && number == 1 { SINK.into() } else { format!("{SINK}{number}") }
    }

    /// Keys of a receiving port, of this many.
    fn receiver(self, number: u32, ports: u32) -> String {
        match self {
            Wire::Gen => format!("kind = \"gen\"\nsize = {BYTES}\nflows = {}\n", NFS / ports),
            Wire::Null => device(2 * number),
        }
    }

    /// Keys of a sending port.
    fn sender(self, number: u32) -> String {
        match self {
            Wire::Gen => "kind = \"sink\"\n".into(),
            Wire::Null => device(2 * number + 1),
        }
    }
}

/// Keys of a port that is a device without a wire; each has a number of its own.
fn device(number: u32) -> String {
    format!("kind = \"dpdk\"\ndevargs = \"net_null{number},size={BYTES}\"\n")
}

fn measure(lab: &Lab, setup: &Setup) -> Result<Sample, Miss> {
    let (before, after) = lab.readings(setup)?;
    Ok(sample(setup, &before.stats, &after.stats))
}

/// Metrics of all ports together between two readings. The common ones know one sending port.
fn sample(setup: &Setup, before: &Stats, after: &Stats) -> Sample {
    let window = Window { before, after };
    let sent: Vec<f64> = setup.chains.iter().map(|chain| window.tx_pps(&chain.egress)).collect();
    let offered: f64 = (1..).zip(&sent).map(|(number, _)| window.rx_pps(&receiving(number))).sum();
    let least = sent.iter().copied().min_by(f64::total_cmp).unwrap_or_default();
    let most = sent.iter().copied().max_by(f64::total_cmp).unwrap_or_default();
    let busy = after.status.threads.iter().map(|thread| thread.busy_percent).max_by(f64::total_cmp);
    let mut out = Sample::from([
        ("offered_pps".into(), offered),
        ("delivered_pps".into(), sent.iter().sum()),
        ("least_pps".into(), least),
        ("most_pps".into(), most),
        ("least_of_most".into(), least / most),
        ("wasted_pps".into(), window.wasted_pps()),
        ("entry_drop_pps".into(), window.entry_drop_pps()),
    ]);
    out.extend(busy.map(|percent| ("manager_busy_percent".into(), percent)));
    out
}

/// The total rate, relative to that of one port of the same kind.
fn of_one_port(rows: &mut [Row]) -> Vec<Row> {
    let kind = |name: &str| name.split('/').next().unwrap_or_default().to_string();
    let ones: Vec<(String, f64)> = rows
        .iter()
        .filter(|row| row.params.get("ports") == Some(&Value::from(1)))
        .filter_map(|row| Some((kind(&row.name), row.get("delivered_pps").filter(|pps| *pps > 0.0)?)))
        .collect();
    for row in rows.iter_mut().filter(|row| row.params.contains_key("ports")) {
        let of = kind(&row.name);
        let one = ones.iter().find(|(one, _)| *one == of).map(|(_, pps)| *pps);
        let ratio = row.get("delivered_pps").zip(one).map(|(own, one)| own / one);
        row.put("of_one_port", ratio);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;
    use crate::bench::stats::tests::partial;

    #[test]
    fn a_variant_is_run_or_left_out() {
        let lab = lab(1);
        let plan = plan(&lab);
        let of = |wire: &str| {
            let cases = plan.cases.iter().map(|case| (&case.name, &case.params));
            let left = plan.left_out.iter().map(|left| (&left.name, &left.params));
            let all = cases.chain(left).filter(|(name, _)| name.starts_with(wire));
            let all = all.filter(|(_, params)| params.contains_key("ports"));
            let mut all: Vec<String> = all.map(|(name, params)| format!("{name} {}", params["ports"])).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(of("gen/"), ["gen/each 2", "gen/each 4", "gen/one 1", "gen/one 2", "gen/one 4"]);
        assert_eq!(of("null/"), ["null/each 2", "null/each 4", "null/one 1", "null/one 2", "null/one 4"]);
        let lacking = [2, 4].map(|ports: usize| usize::from(lab.cores.own(2 * ports - 1).is_err()));
        assert_eq!(plan.left_out.len(), 2 * lacking.iter().sum::<usize>());
        assert!(plan.left_out.iter().all(|left| left.name.ends_with("/each") && left.why.contains("physical cores")));
    }

    #[test]
    fn every_configuration_is_accepted() {
        for (wire, ports) in [Wire::Gen, Wire::Null].into_iter().flat_map(|wire| PORTS.map(|ports| (wire, ports))) {
            for threads in [1, ports as usize] {
                let cores: Vec<usize> = (0..2 * threads).collect();
                let (threads, nf_cores) = cores.split_at(threads);
                let text = setup(wire, ports, threads, nf_cores).toml(std::path::Path::new("/run/x"));
                let checked = sluice_config::load::parse(&text, "x.toml");
                assert!(checked.is_ok(), "{:?}", checked.err());
            }
        }
        for manager in ["", "flow_table = \"needed\"\n"] {
            let text = between(0, 1, manager).toml(std::path::Path::new("/run/x"));
            let checked = sluice_config::load::parse(&text, "x.toml");
            assert!(checked.is_ok(), "{:?}", checked.err());
            assert!(text.contains("run = \"inline\"") && text.contains("trusted = true"), "{text}");
        }
        // One that this host has the cores for.
        assert_accepted(&setup(Wire::Gen, 4, &[0], &[0]), &[COST]);
    }

    #[test]
    fn each_port_has_its_own_chain_and_sending_port() {
        let gen_4 = setup(Wire::Gen, 4, &[3], &[5]);
        assert_eq!(gen_4.chains.iter().map(|chain| chain.egress.as_str()).collect::<Vec<_>>(), ["out", "out2", "out3", "out4"]);
        assert_eq!(gen_4.services.iter().map(|nf| nf.pool.as_ref().unwrap().members).collect::<Vec<_>>(), [(4, 4); 4]);
        assert_eq!(gen_4.more.matches("size = 124\nflows = 4\n").count(), 4, "{}", gen_4.more);
        assert_eq!((gen_4.manager_core, gen_4.shards.len(), gen_4.services[3].core), (3, 0, 5));
        let null = setup(Wire::Null, 2, &[0, 1], &[2, 3]);
        let devices: Vec<String> = (2..6).map(|number| format!("\"net_null{number},size=124\"")).collect();
        assert!(devices.iter().all(|device| null.more.matches(device.as_str()).count() == 1), "{}", null.more);
        assert_eq!(null.chains.iter().map(|chain| chain.egress.as_str()).collect::<Vec<_>>(), ["out1", "out2"]);
        assert_eq!((null.shards.as_slice(), null.services[1].instances), (&[0, 1][..], 2));
        assert!(null.services.iter().all(|nf| nf.pool.is_none() && nf.core == 2 && nf.more_cores == [3]));
    }

    #[test]
    fn rates_are_those_of_all_ports() {
        let stats = |time_ns: u64, n: u64| {
            partial(json!({
                "time_ns": time_ns,
                "status": {"threads": [{"busy_percent": 70.0}, {"busy_percent": 40.0}]},
                "ports": [{"name": "in1", "rx_packets": 8 * n}, {"name": "in2", "rx_packets": 9 * n},
                    {"name": "out", "tx_packets": 4 * n}, {"name": "out2", "tx_packets": 3 * n}],
                "drops": {"entry": 10 * n, "ring_full": n},
            }))
        };
        let (before, after) = (stats(1_000_000_000, 100), stats(3_000_000_000, 300));
        let got = sample(&setup(Wire::Gen, 2, &[0], &[1]), &before, &after);
        let want = [
            ("offered_pps", 1700.0),
            ("delivered_pps", 700.0),
            ("least_pps", 300.0),
            ("most_pps", 400.0),
            ("least_of_most", 0.75),
            ("wasted_pps", 100.0),
            ("entry_drop_pps", 1000.0),
            ("manager_busy_percent", 70.0),
        ];
        assert_eq!(got, Sample::from(want.map(|(metric, value)| (metric.to_string(), value))));
    }

    #[test]
    fn more_ports_are_compared_with_one_of_the_same_kind() {
        let row =
            |name: &str, ports: u32, pps: f64| Row::new(name, &number_of(ports), Sample::from([("delivered_pps".into(), pps)]));
        let mut rows = [row("gen/one", 1, 10.0), row("gen/one", 2, 9.0), row("gen/each", 2, 20.0), row("null/one", 2, 5.0)];
        assert!(of_one_port(&mut rows).is_empty());
        assert_eq!(rows.map(|row| row.get("of_one_port")), [Some(1.0), Some(0.9), Some(2.0), None]);
    }
}
