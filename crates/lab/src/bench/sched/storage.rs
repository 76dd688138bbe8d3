//! `sluice bench storage`: one of two flows is logged to disk; the effect on the other.
//!
//! # Approach
//! Both flows pass one NF that writes the packets of one of them into capture files. With
//! asynchronous writes it continues meanwhile; with blocking ones it waits for the disk. `unlogged`
//! writes nothing and is the reference: `plain_kept_ratio` is the rate of the flow that is not
//! logged, over that in the unlogged variant of the same turn. Both flows together are less than
//! the NF can carry, and the logged one ([`LOGGED_BYTES_PER_S`]) is less than a disk can take: in
//! overload the entry would refuse most packets to be logged. So all losses occur while the NF is
//! blocked.
//!
//! `default/batch` and `nfvnice/batch` are the figure's two platforms: both flows pass a first NF,
//! and one of them the logger behind it, at line rate under SCHED_BATCH. The default has none of
//! NFVnice's parts and writes blocking; the other has all of them and writes asynchronously.
//! `of_default` is the ratio of what both flows together deliver.
//!
//! # Limits
//! The files are written below /var/tmp if it exists (/tmp is often in memory), and removed after
//! each run.
//!
//! # Source
//! NFVnice, figure 14.

use std::path::Path;

use serde_json::json;

use super::{COST, COSTS, Mode, chain_of, line_rate, name_of, nf_of, params, traffic_to};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::setup::{Class, Service, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment =
    Experiment { name: "storage", about: "one of two flows logged to disk, asynchronous and blocking, by size (figure 14)", run };

const NF: &str = "sluice-nf-logger";
/// Sizes on the wire, in bytes.
const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1500];
const LOGGED_PORT: u16 = 4_000;
const PLAIN_PORT: u16 = 5_000;
/// A port that no packet has.
const NO_PORT: u16 = 6_000;
const LOGGED_BYTES_PER_S: f64 = 50e6;
/// Packets per second of the other flow, at most the line rate.
const PLAIN_PPS: f64 = 2e6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    None,
    Async,
    Blocking,
}

const WRITES: [Writes; 3] = [Writes::None, Writes::Async, Writes::Blocking];

impl Writes {
    fn name(self) -> &'static str {
        match self {
            Writes::None => "unlogged/other",
            Writes::Async => "async/other",
            Writes::Blocking => "blocking/other",
        }
    }

    fn args(self, dir: &Path) -> Vec<String> {
        let port = if self == Writes::None { NO_PORT } else { LOGGED_PORT };
        let mut args: Vec<String> = vec!["--write".into(), dir.join("log.pcap").display().to_string()];
        // Two files of 100 MiB at most: a long run does not fill the disk.
        args.extend(["--keep".into(), "2".into(), "--dst-port".into(), port.to_string()]);
        if self == Writes::Blocking {
            args.push("--blocking".into());
        }
        args
    }
}

/// The figure's platforms, and how their loggers write.
const PLATFORMS: [(Mode, Writes); 2] = [(Mode::Default, Writes::Blocking), (Mode::Nfvnice, Writes::Async)];

const GROUP: Group = Group {
    title: "One of two flows logged to disk",
    keys: &["packet_bytes"],
    columns: &[
        Column::new("delivered_pps.plain", "plain Mpps", 1e6, 3),
        Column::new("delivered_pps.logged", "logged kpps", 1e3, 1),
        Column::new("plain_kept_ratio", "plain kept", 1.0, 3),
        Column::new("of_default", "of default", 1.0, 2),
        Column::new("cpu_percent.logger", "CPU %", 1.0, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
    ],
    plotted: 4,
    form: Form::Lines("packet_bytes"),
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[])?;
    let missing = [NF, COST].iter().find_map(|nf| lab.programs.has(nf, nf).err());
    lab.run(&plan(missing.map(|error| error.to_string()).as_deref()))
}

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, derive, vec![(GROUP, |_| true)]);
    let single = WRITES.map(|writes| (None, writes));
    let platforms = PLATFORMS.map(|(mode, writes)| (Some(mode), writes));
    for (bytes, (mode, writes)) in SIZES.iter().flat_map(|bytes| single.iter().chain(&platforms).map(move |way| (*bytes, *way))) {
        let name = mode.map_or_else(|| writes.name().into(), |mode| name_of(mode, Class::Batch));
        let of = params(&[("packet_bytes", json!(bytes))]);
        if let Some(why) = missing {
            plan.leave_out(&name, of, why);
            continue;
        }
        plan.cases.push(Case::one(name, of, move |lab| {
            one(lab, |folder| match mode {
                None => setup(lab, writes, bytes, folder),
                Some(mode) => platform(lab, mode, writes, bytes, folder),
            })
        }));
    }
    plan
}

/// Measures a setup that logs into this folder.
fn one(lab: &Lab, setup: impl Fn(&Path) -> Setup) -> Result<Sample, Miss> {
    let disk = ["/var/tmp"].iter().map(Path::new).find(|path| path.is_dir());
    let mut builder = tempfile::Builder::new();
    builder.prefix("sluice-bench-log-").permissions(crate::bench::daemon::open_to_nfs());
    let folder = disk.map_or_else(|| builder.tempdir(), |disk| builder.tempdir_in(disk))?;
    // After creation, so that the umask has no effect.
    std::fs::set_permissions(folder.path(), crate::bench::daemon::open_to_nfs())?;
    lab.flow(&setup(folder.path()))
}

fn logger(lab: &Lab, writes: Writes, dir: &Path) -> Service {
    Service {
        name: "logger".into(),
        exec: NF.into(),
        args: writes.args(dir),
        core: lab.cores.shared(),
        ring: super::RING,
        ..Service::default()
    }
}

fn setup(lab: &Lab, writes: Writes, bytes: u32, dir: &Path) -> Setup {
    let mut setup = Setup {
        manager_core: lab.manager_core,
        sched: Some(Mode::Sluice.sched(Class::Other)),
        services: vec![logger(lab, writes, dir)],
        ..Setup::default()
    };
    let logged_pps = LOGGED_BYTES_PER_S / f64::from(bytes);
    for (chain, rate, port) in [("plain", PLAIN_PPS.min(line_rate(bytes)), PLAIN_PORT), ("logged", logged_pps, LOGGED_PORT)] {
        let mut traffic = traffic_to(chain, rate);
        (traffic.packet_bytes, traffic.dst_port, traffic.flows) = (bytes, port, 1);
        setup.traffic.push(traffic);
        setup.chains.push(chain_of(chain, &["logger"]));
    }
    setup
}

/// Both flows through a first NF, and one of them through the logger, at line rate.
fn platform(lab: &Lab, mode: Mode, writes: Writes, bytes: u32, dir: &Path) -> Setup {
    let mut setup = setup(lab, writes, bytes, dir);
    setup.sched = Some(mode.sched(Class::Batch));
    setup.services.insert(0, nf_of("front", lab.cores.shared(), COSTS[0]));
    setup.chains = vec![chain_of("plain", &["front"]), chain_of("logged", &["front", "logger"])];
    setup.traffic.iter_mut().for_each(|traffic| traffic.rate = line_rate(bytes) / 2.0);
    setup
}

fn derive(rows: &mut [Row]) -> Vec<Row> {
    let default = name_of(Mode::Default, Class::Batch);
    let of_default: Vec<_> = rows
        .iter()
        .filter(|row| row.name == default)
        .filter_map(|row| Some((row.params.clone(), row.get("delivered_pps").filter(|pps| *pps > 0.0)?)))
        .collect();
    let of_unlogged: Vec<_> = rows
        .iter()
        .filter(|row| row.name == Writes::None.name())
        .filter_map(|row| Some((row.params.clone(), row.get("delivered_pps.plain").filter(|pps| *pps > 0.0)?)))
        .collect();
    for row in rows {
        // The flows are not meant to have equal rates.
        row.sample.remove("jain");
        if row.name.ends_with("/batch") {
            let base = of_default.iter().find(|(params, _)| *params == row.params && row.name != default).map(|(_, pps)| *pps);
            let ratio = row.get("delivered_pps").zip(base).map(|(pps, base)| pps / base);
            row.put("of_default", ratio);
            continue;
        }
        if row.name == Writes::None.name() {
            continue;
        }
        let base = of_unlogged.iter().find(|(params, _)| *params == row.params).map(|(_, pps)| *pps);
        let ratio = row.get("delivered_pps.plain").zip(base).map(|(pps, base)| pps / base);
        row.put("plain_kept_ratio", ratio);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn only_one_of_the_flows_is_logged() {
        let setup = setup(&lab(1), Writes::Blocking, 1500, "/d".as_ref());
        assert_eq!(setup.services[0].args, ["--write", "/d/log.pcap", "--keep", "2", "--dst-port", "4000", "--blocking"]);
        assert_eq!((setup.traffic[0].dst_port, setup.traffic[1].dst_port), (PLAIN_PORT, LOGGED_PORT));
        assert_eq!((setup.traffic[0].rate, setup.traffic[1].rate), (line_rate(1500), LOGGED_BYTES_PER_S / 1500.0));
        assert!(setup.toml("/tmp/x".as_ref()).contains("size = 1496"));
        assert!(!Writes::None.args("/d".as_ref()).contains(&LOGGED_PORT.to_string()));
    }

    #[test]
    fn what_is_kept_is_of_the_same_size() {
        let row = |name: &str, bytes: u32, pps: f64| {
            Row::new(name, &params(&[("packet_bytes", json!(bytes))]), Sample::from([("delivered_pps.plain".into(), pps)]))
        };
        let mut rows = vec![row("unlogged/other", 64, 4.0), row("async/other", 64, 3.0), row("async/other", 128, 3.0)];
        derive(&mut rows);
        let kept: Vec<_> = rows.iter().map(|row| row.get("plain_kept_ratio")).collect();
        assert_eq!(kept, [None, Some(0.75), None]);
    }

    #[test]
    fn platforms_log_behind_an_nf_of_both_flows_and_are_compared() {
        let both = platform(&lab(1), Mode::Nfvnice, Writes::Async, 64, "/d".as_ref());
        let names = |chain: usize| both.chains[chain].services.join(" ");
        assert_eq!([names(0), names(1)], ["front", "front logger"]);
        assert!(both.traffic.iter().all(|traffic| traffic.rate == line_rate(64) / 2.0));
        let row = |name: &str, pps: f64| {
            Row::new(name, &params(&[("packet_bytes", json!(64))]), Sample::from([("delivered_pps".into(), pps)]))
        };
        let mut rows = vec![row("default/batch", 2.0), row("nfvnice/batch", 3.0), row("unlogged/other", 9.0)];
        derive(&mut rows);
        assert_eq!([0, 1, 2].map(|i: usize| rows[i].get("of_default")), [None, Some(1.5), None]);
        assert_eq!(rows[1].get("plain_kept_ratio"), None);
    }

    #[test]
    fn the_daemon_accepts_the_configurations() {
        for (mode, writes) in PLATFORMS {
            assert_accepted(&platform(&lab(1), mode, writes, 1500, "/d".as_ref()), &[NF, COST]);
        }
    }

    #[test]
    fn without_the_nf_all_is_left_out() {
        let without = plan(Some("there is no logger"));
        assert_eq!((without.cases.len(), without.left_out.len()), (0, 6 * 5));
        let names: Vec<String> = plan(None).cases.into_iter().take(5).map(|case| case.name).collect();
        assert_eq!(names, ["unlogged/other", "async/other", "blocking/other", "default/batch", "nfvnice/batch"]);
    }
}
