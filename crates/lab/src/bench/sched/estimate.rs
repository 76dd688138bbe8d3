//! `sluice bench estimate`: packet costs of NFs, from outside and inside.
//!
//! # Approach
//! - `nf/NAME`: `sluice estimate` runs every included NF, with a configuration that gives it work.
//!   Its result is `outside_burst_ns`; `inside_burst_ns` is the library's sample of bursts in the
//!   same rounds, and `error_percent` the distance of the former from the latter, by pairs of the
//!   same round. Then the NF runs in a daemon, overloaded with packets of the same kind.
//!   `running_packet_ns` is the daemon's value from the library's samples (time-stamp counter, the
//!   handler alone), and `cpu_packet_ns` is CPU time of the process per packet (process clock, with
//!   the cost of taking and returning packets).
//! - `all`: median and worst of the errors, without sign, and the number of NFs within ten percent.
//! - `units`: a MAC swapper with artificial work in units of 50 ns, by two clocks:
//!   `outside_packet_ns` by the time-stamp counter, and `cpu_packet_ns` by the kernel's clock of
//!   the process. `added_ratio` is what the work adds to the estimate, relative to what was added.
//! - `load/MODE`: one NF in a daemon at a part of its capacity, with both clocks:
//!   `running_packet_ns`, `cpu_packet_ns`, and `outside_packet_ns`, the estimate from outside while
//!   it runs. For an NF that polls, only time in which its ring was never empty counts
//!   ([`Outside`]). `estimated_packet_ns` is the value of `sluice estimate`.
//!
//! # Limits
//! Below capacity, the ring of an NF that polls alone on its core is often empty, so there is no
//! estimate from outside, unless a scheduler parks the NF between slices. The ring is read through
//! the control API every other millisecond, so in `load` the NF with the cheaper packets is
//! measured only where it sleeps. The process clock advances at the kernel's tick. `decrypt` gets
//! packets that `encrypt` made, in a capture. NFs in C are measured where they are built
//! (`make -C nfs/c`).
//!
//! # Source
//! UNiS (Anthony and Bai), figure 4, which is `units`; the load of `load/MODE` is another quantity.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sluice_policy::sched::cost::{Idle, Outside};

use super::{COST, Mode, RING, chain_of, nf, params, traffic_to};
use crate::bench::daemon::{Daemon, LAB};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::{Reading, Sample};
use crate::bench::outside::{UNIT_NS, cycles};
use crate::bench::report::{Params, median};
use crate::bench::setup::{Class, Service, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "estimate",
    about: "what a packet costs each NF, from outside and inside, by artificial work (UNiS, figure 4) and by load of its core",
    run: |args| Lab::measure(args, &[], plan),
};

/// Flows of all packets.
const FLOWS: u32 = 1_000;
/// Allowed error of an estimate against the library's own.
const WITHIN_PERCENT: f64 = 10.0;
/// Packets per second of the capture for `decrypt`.
const CAPTURE_PPS: f64 = 50_000.0;
/// Artificial work, in units of [`UNIT_NS`].
const UNITS: [u32; 6] = [0, 1, 2, 4, 8, 16];
/// Parts of capacity, in percent.
const LOADS: [u32; 6] = [10, 25, 50, 75, 90, 100];
/// Cycles per packet, and whether the NF polls.
const LINES: [(u64, bool); 3] = [(550, false), (4_500, false), (4_500, true)];
/// Packets of its queue that may be in the NF's hands and no longer on its ring.
const IN_HAND: u64 = 32;
/// Polling intervals: of the ring, of the process clock (much longer than a tick), of the service
/// time.
const LOOK: Duration = Duration::from_millis(2);
const CLOCK_EVERY: Duration = Duration::from_millis(200);
const SERVICE_EVERY: Duration = Duration::from_millis(50);

/// An NF and its workload.
struct Example {
    name: &'static str,
    program: &'static str,
    /// `{}` is the folder of its files.
    args: &'static [&'static str],
    /// Name and content of its files.
    files: &'static [(&'static str, &'static str)],
    /// A program with arguments that creates more files.
    make: Option<(&'static str, &'static [&'static str])>,
    /// The NF whose packets it gets.
    after: Option<&'static str>,
}

const fn plain(name: &'static str, program: &'static str, args: &'static [&'static str]) -> Example {
    Example { name, program, args, files: &[], make: None, after: None }
}

const KEYS: &[(&str, &str)] = &[("keys", "0 000102030405060708090a0b0c0d0e0f\n")];

/// Every included NF. Generated packets go from 10.0.0.1 and up to 198.18.0.1, UDP port 9.
const EXAMPLES: &[Example] = &[
    plain("bridge", "sluice-nf-bridge", &[]),
    plain("mark", "sluice-nf-mark", &[]),
    plain("macswap", "sluice-nf-macswap", &[]),
    plain("single", "sluice-nf-single", &[]),
    plain("vlan", "sluice-nf-vlan", &["tag", "--id", "100"]),
    plain("cost-50", COST, &["--cycles", "50"]),
    plain("cost-120", COST, &["--cycles", "120"]),
    plain("cost-270", COST, &["--cycles", "270"]),
    plain("cost-550", COST, &["--cycles", "550"]),
    plain("cost-4500", COST, &["--cycles", "4500"]),
    plain("monitor", "sluice-nf-monitor", &[]),
    plain("nat", "sluice-nf-nat", &["--inside", "10.0.0.0/8", "--outside", "203.0.113.1"]),
    Example {
        files: &[("rules", "stateful\ndefault deny\nallow udp from 10.0.0.0/8 to 198.18.0.0/15\n")],
        ..plain("firewall", "sluice-nf-firewall", &["--rules", "{}/rules"])
    },
    Example {
        files: &[("backends", "b1 10.1.0.1\nb2 10.1.0.2 weight 2\n")],
        ..plain("lb", "sluice-nf-lb", &["--vip", "198.18.0.1:9", "--protocol", "udp", "--backends", "{}/backends"])
    },
    Example {
        files: &[("routes", "0.0.0.0/0 mac 02:00:00:00:00:01\n198.18.0.0/15 mac 02:00:00:00:00:02\n")],
        ..plain("router", "sluice-nf-router", &["--routes", "{}/routes"])
    },
    Example {
        files: &[("patterns", "alert nocase text /etc/passwd\ndrop hex 4d 5a 90 00\nalert text evil.example\n")],
        ..plain("search", "sluice-nf-search", &["--patterns", "{}/patterns"])
    },
    Example { files: KEYS, ..plain("encrypt", "sluice-nf-encrypt", &["--keys", "{}/keys"]) },
    Example { files: KEYS, after: Some("encrypt"), ..plain("decrypt", "sluice-nf-decrypt", &["--keys", "{}/keys"]) },
    plain("logger", "sluice-nf-logger", &["--write", "{}/log.pcap", "--keep", "2"]),
    Example {
        files: &[("hosts", "198.18.0.1 pass\n10.0.0.1 drop\n")],
        make: Some(("sluice-nf-lookup", &["--build", "{}/hosts", "--table", "{}/table"])),
        ..plain("lookup", "sluice-nf-lookup", &["--table", "{}/table"])
    },
    plain("bridge-c", "sluice-bridge-c", &[]),
    plain("mark-c", "sluice-mark-c", &[]),
    plain("monitor-c", "sluice-monitor-c", &[]),
];

const NFS: Group = Group {
    title: "What a packet costs an NF",
    keys: &[],
    columns: &[
        Column::new("error_percent", "error %", 1.0, 1),
        Column::new("outside_burst_ns", "outside ns/burst", 1.0, 0),
        Column::new("inside_burst_ns", "inside ns/burst", 1.0, 0),
        Column::new("outside_packet_ns", "outside ns/packet", 1.0, 1),
        Column::new("ring_burst_ns", "rings ns/burst", 1.0, 0),
        Column::new("ring_spread_burst_ns", "their spread", 1.0, 0),
        Column::new("running_packet_ns", "running, inside", 1.0, 1),
        Column::new("cpu_packet_ns", "running, CPU time", 1.0, 1),
    ],
    plotted: 1,
    form: Form::Bars,
};
const ALL: Group = Group {
    title: "All NFs together",
    keys: &[],
    columns: &[
        Column::new("median_error_percent", "median error %", 1.0, 1),
        Column::new("worst_error_percent", "worst error %", 1.0, 1),
        Column::new("within_count", "NFs within 10 %", 1.0, 0),
        Column::new("nfs_count", "of", 1.0, 0),
    ],
    plotted: 0,
    form: Form::Bars,
};
const WORK: Group = Group {
    title: "A MAC swapper with artificial work",
    keys: &["units"],
    columns: &[
        Column::new("outside_packet_ns", "outside, time-stamp counter, ns", 1.0, 1),
        Column::new("cpu_packet_ns", "running, kernel's clock, ns", 1.0, 1),
        Column::new("running_packet_ns", "running, inside ns", 1.0, 1),
        Column::new("added_ratio", "added, of the work", 1.0, 3),
    ],
    plotted: 2,
    form: Form::Lines("units"),
};
const LOAD: Group = Group {
    title: "Against load",
    keys: &["cycles", "load_percent"],
    columns: &[
        Column::new("running_packet_ns", "inside ns/packet", 1.0, 1),
        Column::new("outside_packet_ns", "outside ns/packet", 1.0, 1),
        Column::new("cpu_packet_ns", "CPU time ns/packet", 1.0, 1),
        Column::new("estimated_packet_ns", "estimated ns/packet", 1.0, 1),
        Column::new("delivered_pps", "delivered Mpps", 1e6, 3),
    ],
    plotted: 3,
    form: Form::Lines("load_percent"),
};

fn plan(lab: &Lab) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![
        (NFS, |v| v.name.starts_with("nf/")),
        (ALL, |v| v.name == "all"),
        (WORK, |v| v.name == "units"),
        (LOAD, |v| v.params.contains_key("load_percent")),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, derive, shown);
    for example in EXAMPLES {
        let name = format!("nf/{}", example.name);
        let needed = [LAB, "sluice-nf-bridge", COST, example.program].into_iter().chain(example.after.map(|_| "sluice-nf-encrypt"));
        let missing = needed.filter_map(|program| lab.programs.has(program, program).err()).next();
        if let Some(why) = missing {
            plan.leave_out(&name, Params::new(), why.to_string());
            continue;
        }
        plan.cases.push(Case::one(name, Params::new(), move |lab| compare(lab, example)));
    }
    for units in UNITS {
        let of = params(&[("units", json!(units))]);
        plan.cases.push(Case::one("units", of, move |lab| work(lab, units)));
    }
    for (cycles, polls) in LINES {
        let name = format!("load/{}", if polls { "poll" } else { "sleep" });
        let of = params(&[("cycles", json!(cycles))]);
        let (row, row_params) = (name.clone(), of.clone());
        let run = move |lab: &Lab| line(lab, &row, &row_params, cycles, polls);
        plan.cases.push(Case { name, params: of, run: Box::new(run) });
    }
    plan
}

/// Runs `sluice estimate` and returns its result.
fn estimate(lab: &Lab, program: &str, args: &[String], capture: Option<&Path>) -> anyhow::Result<Value> {
    let mut command = Command::new(lab.programs.path(LAB));
    command.arg("estimate").arg(lab.programs.path(program));
    command.args(["--json", "--core", &lab.cores.shared().to_string()]);
    match capture {
        Some(file) => command.arg("--capture").arg(file),
        None => command.args(["--size", "60", "--flows", &FLOWS.to_string()]),
    };
    let out = command.arg("--").args(args).output().context("cannot start sluice estimate")?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// A value of its result; the median where there is a spread.
fn number(found: &Value, key: &str) -> Option<f64> {
    found[key].as_f64().or_else(|| found[key]["median"].as_f64())
}

/// Creates the files of an example in a folder, and returns its arguments with the folder's name.
fn prepare(lab: &Lab, example: &Example, folder: &Path) -> anyhow::Result<Vec<String>> {
    use std::os::unix::fs::PermissionsExt;
    // Not at creation, where the umask would mask bits.
    std::fs::set_permissions(folder, crate::bench::daemon::open_to_nfs())?;
    let place = folder.display().to_string();
    let filled = |args: &[&str]| args.iter().map(|arg| arg.replace("{}", &place)).collect::<Vec<_>>();
    for (name, text) in example.files {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644))?;
    }
    if let Some((program, args)) = example.make {
        let out = Command::new(lab.programs.path(program)).args(filled(args)).output()?;
        ensure!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(filled(example.args))
}

/// An NF in a daemon, behind another one if it needs that one's packets.
fn setup(lab: &Lab, services: Vec<Service>, rate: f64) -> Setup {
    let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
    let mut traffic = traffic_to("c", rate);
    traffic.flows = FLOWS;
    Setup {
        manager_core: lab.manager_core,
        sched: Some(Mode::Sluice.sched(Class::Other)),
        traffic: vec![traffic],
        chains: vec![chain_of("c", &names)],
        services,
        ..Setup::default()
    }
}

fn service(lab: &Lab, name: &str, program: &str, args: &[String]) -> Service {
    Service { exec: program.into(), args: args.to_vec(), ring: RING, ..nf(name, lab.cores.shared(), &[]) }
}

/// Compares outside, inside and running costs of an NF.
fn compare(lab: &Lab, example: &Example) -> Result<Sample, Miss> {
    let folder = tempfile::Builder::new().prefix("sluice-bench-nf-").tempdir()?;
    let args = prepare(lab, example, folder.path())?;
    let mut services = vec![service(lab, "nf", example.program, &args)];
    let before = example.after.and_then(|name| EXAMPLES.iter().find(|other| other.name == name));
    let mut capture = None;
    if let Some(before) = before {
        let before = service(lab, "before", before.program, &prepare(lab, before, folder.path())?);
        let file = folder.path().join("packets.pcap");
        record(lab, before.clone(), &file)?;
        capture = Some(file);
        services.insert(0, before);
    }
    let found = estimate(lab, example.program, &args, capture.as_deref())?;
    costs(lab, &found, services)
}

/// Costs of a MAC swapper with this much artificial work.
fn work(lab: &Lab, units: u32) -> Result<Sample, Miss> {
    let hz = lab.tsc_hz().ok_or_else(|| Miss::LeaveOut("the frequency of the time-stamp counter is not known".into()))?;
    let cycles = cycles(f64::from(units) * UNIT_NS, hz).to_string();
    let args = ["--swap-macs", "--cycles", &cycles].map(str::to_string);
    let found = estimate(lab, COST, &args, None)?;
    let mut sample = costs(lab, &found, vec![service(lab, "nf", COST, &args)])?;
    // That is of the NFs that come along.
    sample.remove("error_percent");
    Ok(sample)
}

/// The estimate's costs, and those of the last of these services in a daemon.
fn costs(lab: &Lab, found: &Value, services: Vec<Service>) -> Result<Sample, Miss> {
    let mut row = Row::new("", &Params::new(), Sample::new());
    for (metric, key, unit) in [
        ("outside_burst_ns", "ns_per_burst", 1.0),
        ("outside_packet_ns", "ns_per_packet", 1.0),
        ("outside_packet_cycles", "cycles_per_packet", 1.0),
        ("inside_burst_ns", "inside_ns", 1.0),
        ("error_percent", "off_inside", 100.0),
        ("ring_burst_ns", "ring_ns", 1.0),
        ("ring_spread_burst_ns", "ring_spread_ns", 1.0),
    ] {
        row.put(metric, number(found, key).map(|value| value * unit));
    }
    lab.programs.go_on()?;
    let seen = watch(lab, &setup(lab, services, 0.0), Idle::Sleeps)?;
    row.put("running_packet_ns", seen.inside_ns);
    row.put("cpu_packet_ns", seen.cpu_ns);
    Ok(row.sample)
}

/// Writes an NF's packets to a capture.
fn record(lab: &Lab, of: Service, file: &Path) -> Result<(), Miss> {
    let mut setup = setup(lab, vec![of], CAPTURE_PPS);
    setup.files = vec![("file".into(), file.into())];
    setup.chains[0].egress = "file".into();
    let daemon = lab.start(&setup)?;
    lab.warm_up()?;
    Ok(daemon.stop()?)
}

/// Measurements of an NF in a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Seen {
    /// From its library, by way of the daemon: nanoseconds per packet.
    inside_ns: Option<f64>,
    /// All CPU time over all packets.
    cpu_ns: Option<f64>,
    /// By ring progress over CPU time.
    outside_ns: Option<f64>,
    /// Packets per second that it returned.
    pps: f64,
}

/// Runs a setup and observes the NF at the end of its chain.
fn watch(lab: &Lab, setup: &Setup, idle: Idle) -> Result<Seen, Miss> {
    let daemon = lab.start(setup)?;
    lab.warm_up()?;
    let seen = look(lab, &daemon, idle)?;
    daemon.stop()?;
    Ok(seen)
}

fn look(lab: &Lab, daemon: &Daemon, idle: Idle) -> anyhow::Result<Seen> {
    let time = Duration::from_secs_f64(lab.args.seconds);
    let window_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut outside = Outside::new(window_ns, idle);
    let mut services = Vec::new();
    let began = Instant::now();
    let (mut clock_at, mut service_at) = (Duration::ZERO, Duration::ZERO);
    let first = lab.read(daemon)?;
    let name = first.stats.nfs.last().map(|nf| nf.name.clone()).context("the daemon has no NF")?;
    let of = |reading: &Reading| {
        let nf = reading.stats.nfs.iter().find(|nf| nf.name == name).cloned();
        nf.with_context(|| format!("{name} is gone"))
    };
    let run_ns = |reading: &Reading| reading.tasks.since(&first.tasks, &name).map(|task| task.run_ns);
    let mut last = None;
    while began.elapsed() < time || last.is_none() {
        let now = lab.read(daemon)?;
        let nf = of(&now)?;
        outside.ring(nf.tx_packets, nf.queue.saturating_sub(IN_HAND));
        if began.elapsed() >= clock_at {
            clock_at = began.elapsed() + CLOCK_EVERY;
            outside.cpu(now.stats.time_ns, run_ns(&now).unwrap_or(0));
        }
        if began.elapsed() >= service_at {
            service_at = began.elapsed() + SERVICE_EVERY;
            services.extend(Some(nf.sched.service_ns).filter(|ns| *ns > 0.0));
        }
        last = Some(now);
        // An NF that sleeps is measured over all of its time, which needs few readings.
        lab.programs.pause(if idle == Idle::Polls { LOOK } else { SERVICE_EVERY })?;
    }
    let last = last.context("nothing was read")?;
    let packets = of(&last)?.tx_packets.saturating_sub(of(&first)?.tx_packets);
    ensure!(packets > 0, "no packet came through {name}");
    services.sort_unstable_by(f64::total_cmp);
    Ok(Seen {
        inside_ns: (!services.is_empty()).then(|| median(&services)),
        cpu_ns: run_ns(&last).map(|ns| ns as f64 / packets as f64),
        outside_ns: outside.ns_per_packet(last.stats.time_ns),
        pps: packets as f64 / last.tasks.seconds_since(&first.tasks),
    })
}

/// One NF at parts of its capacity.
fn line(lab: &Lab, name: &str, of: &Params, cycles: u64, polls: bool) -> Result<Vec<Row>, Miss> {
    let args = ["--cycles".to_string(), cycles.to_string()];
    let estimated = number(&estimate(lab, COST, &args, None)?, "ns_per_packet");
    let at = |rate: f64| {
        let idle = if polls { Idle::Polls } else { Idle::Sleeps };
        watch(lab, &setup(lab, vec![Service { poll: polls, ..service(lab, "nf", COST, &args) }], rate), idle)
    };
    let full = at(0.0)?;
    let mut rows = Vec::new();
    for load in LOADS {
        let seen = if load == 100 { full } else { at(full.pps * f64::from(load) / 100.0)? };
        let mut params = of.clone();
        params.insert("load_percent".into(), json!(load));
        let mut row = Row::new(name, &params, Sample::from([("delivered_pps".into(), seen.pps)]));
        row.put("running_packet_ns", seen.inside_ns);
        row.put("cpu_packet_ns", seen.cpu_ns);
        row.put("outside_packet_ns", seen.outside_ns);
        row.put("estimated_packet_ns", estimated);
        rows.push(row);
    }
    Ok(rows)
}

/// The errors of all NFs together, and what artificial work adds.
fn derive(rows: &mut [Row]) -> Vec<Row> {
    let of_work = |row: &Row| (row.name == "units").then(|| Some((row.params["units"].as_f64()?, row.get("outside_packet_ns")?)));
    let none = rows.iter().filter_map(|row| of_work(row).flatten()).find(|(units, _)| *units == 0.0).map(|(_, ns)| ns);
    for row in rows.iter_mut() {
        let added = of_work(row).flatten().filter(|(units, _)| *units > 0.0).zip(none);
        row.put("added_ratio", added.map(|((units, ns), none)| (ns - none) / (units * UNIT_NS)));
    }
    let mut errors: Vec<f64> = rows.iter().filter_map(|row| Some(row.get("error_percent")?.abs())).collect();
    errors.sort_unstable_by(f64::total_cmp);
    let Some(worst) = errors.last().copied() else { return Vec::new() };
    let within = errors.iter().filter(|error| **error <= WITHIN_PERCENT).count();
    let sample = Sample::from([
        ("median_error_percent".into(), median(&errors)),
        ("worst_error_percent".into(), worst),
        ("within_count".into(), within as f64),
        ("nfs_count".into(), errors.len() as f64),
    ]);
    vec![Row::new("all", &Params::new(), sample)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::{assert_accepted, built};
    use crate::bench::experiment::BenchArgs;
    use crate::bench::lab::tests::lab;
    use crate::bench::report::Report;

    #[test]
    fn errors_are_summed_up_without_their_sign() {
        let row = |error: f64| Row::new("nf/x", &Params::new(), Sample::from([("error_percent".into(), error)]));
        let mut rows = vec![row(-12.0), row(3.0), row(-4.0), Row::new("load/sleep", &Params::new(), Sample::new())];
        let all = derive(&mut rows);
        let got = |metric: &str| all[0].get(metric);
        assert_eq!((got("median_error_percent"), got("worst_error_percent")), (Some(4.0), Some(12.0)));
        assert_eq!((got("within_count"), got("nfs_count")), (Some(2.0), Some(3.0)));
        assert!(derive(&mut []).is_empty());
    }

    #[test]
    fn artificial_work_adds_as_much_as_there_is_of_it() {
        let row = |units: u32, ns: f64| {
            Row::new("units", &params(&[("units", json!(units))]), Sample::from([("outside_packet_ns".into(), ns)]))
        };
        let mut rows = vec![row(0, 5.0), row(2, 95.0), row(4, 205.0)];
        assert!(derive(&mut rows).is_empty());
        assert_eq!([0, 1, 2].map(|i: usize| rows[i].get("added_ratio")), [None, Some(0.9), Some(1.0)]);
    }

    #[test]
    fn every_nf_that_comes_along_is_measured_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../nfs");
        for entry in std::fs::read_dir(root).unwrap().flatten() {
            let folder = entry.file_name().into_string().unwrap();
            let has = |program: &str| EXAMPLES.iter().any(|example| example.program == program);
            match folder.as_str() {
                // What others are made of, and what runs several.
                "parts" | "group" => {}
                "c" => assert!(["bridge", "mark", "monitor"].iter().all(|name| has(&format!("sluice-{name}-c")))),
                "crypt" => assert!(has("sluice-nf-encrypt") && has("sluice-nf-decrypt")),
                name => assert!(has(&format!("sluice-nf-{name}")), "{name}"),
            }
        }
        let names: std::collections::BTreeSet<&str> = EXAMPLES.iter().map(|example| example.name).collect();
        assert_eq!(names.len(), EXAMPLES.len());
        assert!(EXAMPLES.iter().filter_map(|example| example.after).all(|name| names.contains(name)));
    }

    #[test]
    fn programs_that_are_not_built_are_left_out() {
        let plan = plan(&lab(1));
        assert_eq!((plan.cases.len(), plan.left_out.len()), (UNITS.len() + LINES.len(), EXAMPLES.len()));
    }

    #[test]
    fn the_daemon_accepts_the_configurations() {
        let lab = lab(1);
        let folder = tempfile::tempdir().unwrap();
        let mut one = setup(&lab, vec![service(&lab, "nf", COST, &["--cycles".into(), "50".into()])], 0.0);
        assert_accepted(&one, &[COST]);
        one.files = vec![("file".into(), folder.path().join("x.pcap"))];
        one.chains[0].egress = "file".into();
        assert_accepted(&one, &[COST]);
    }

    #[test]
    fn a_short_run_compares_an_nf() {
        const METRICS: [&str; 5] = ["outside_burst_ns", "inside_burst_ns", "error_percent", "running_packet_ns", "cpu_packet_ns"];
        let Some(programs) = built(&[COST, LAB, "sluice-nf-bridge"]) else { return };
        let only = vec!["nf/cost-270".into()];
        let args = BenchArgs { seconds: 0.2, repeats: 1, only, ..BenchArgs::default() };
        let lab = match Lab::with(&args, programs) {
            Ok(lab) => lab,
            Err(why) => return crate::skip::skip(why),
        };
        // On a busy host a moment may not be enough for a sample of each.
        let has_all = |report: &Report| METRICS.iter().all(|metric| report.variants[0].metrics.contains_key(*metric));
        let mut runs = (0..20).map(|_| lab.conduct(&plan(&lab)).unwrap());
        let (report, failed) = runs.find(|(report, failed)| *failed > 0 || has_all(report)).expect("a run with all metrics");
        assert_eq!(failed, 0, "{:?}", report.left_out);
        let names: Vec<&str> = report.variants.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["nf/cost-270", "all"]);
        for metric in METRICS {
            assert_eq!(report.variants[0].metrics[metric].samples.len(), 1, "{metric}");
        }
    }
}
