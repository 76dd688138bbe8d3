//! `sluice bench interference`: what NFs and others do to an NF through cache and memory.
//!
//! # Approach
//! Everything is measured on cores behind one last-level cache, without classes (no `cache`), with
//! NFs of large tables ([`KINDS`]), whose generator, manager, handler and sink are one packet
//! thread (inline, without lookups in the flow table), as fast as it can.
//! - `memory`: the time of a load that misses all caches, on one core, while all others write
//!   memory ([`memory`]) for a part of the time (`pace_percent`); `of_idle` is relative to idle
//!   others.
//! - `slowdown/NF`: the NF beside the same, instead of that load.
//! - `beside/NF`: the NF beside one NF (`neighbour`) on each other core, each in its own daemon and
//!   at full load. `degraded_percent` is the throughput that it loses.
//! - `delayed/NF`: the NF as a process that polls, on a core of its own and at a fixed rate, beside
//!   the same. `grown_percent` is what its 95th percentile of latency grows by.
//!
//! Each is relative to the same NF alone in the same turn. `worst` and `worst-delay` have the worst
//! of all; `crowd` is `several` from [`SEVERAL`] neighbours on, and `few` below.
//!
//! # Limits
//! Two cores show what one neighbour does. `delayed` needs three, and what the paper measures, an
//! NF among many, four or five; what is missing is left out, with the reason. Neighbours have
//! packets in memory of their own, and no device writes into the cache.
//!
//! # Source
//! ResQ, figures 2 (NFs without isolation), 3 (latency of memory by bandwidth) and 4 (NFs by load
//! of memory).

mod memory;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use sluice_api::config::Run;
use sluice_cache::host::l3_caches;
use sluice_cache::trace::examples::{EXAMPLES, Example, Scale};
use tempfile::TempDir;

use crate::bench::daemon::{Daemon, open_to_nfs};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Row, Trials};
use crate::bench::measure::{Sample, sample};
use crate::bench::report::Params;
use crate::bench::sched::{chain_of, params};
use crate::bench::setup::{Chain, Service, Setup, Traffic};
use crate::bench::stats::Window;
use crate::bench::table::{Column, Form, Group};
use crate::profile::chase::PointerChain;
use memory::{MemoryWriters, load_ns};

pub const EXPERIMENT: Experiment = Experiment {
    name: "interference",
    about: "NFs, and loads from memory, beside cores that use the same cache and memory (ResQ, figures 2 to 4)",
    run,
};

/// NFs with large tables, by name of [`EXAMPLES`].
const KINDS: [&str; 4] = ["monitor", "nat", "firewall-stateful", "lb"];
/// Kinds of neighbours.
const NEIGHBOURS: [&str; 2] = ["monitor", "nat"];
/// The neighbour of an NF that has none.
const ALONE: &str = "none";
const PACKET_BYTES: [u32; 2] = [64, 1_518];
/// Parts of the time for which others write memory, in percent.
const PACES: [u32; 5] = [0, 25, 50, 75, 100];
/// The same beside NFs.
const PACES_OF_NFS: [u32; 3] = [0, 50, 100];
/// Neighbours that are several.
const SEVERAL: usize = 3;
/// Packets per second at which latency is measured: a small part of what each NF carries.
const PACED_PPS: f64 = 200_000.0;
const RING: u32 = 2048;
/// Size of a last-level cache that the kernel does not describe.
const STATED_BYTES: u64 = 32 << 20;
/// Size of the memory that is written, relative to the cache.
const TIMES: u64 = 4;
const CHAIN: &str = "c";
const SERVICE: &str = "nf";
const MEMORY: &str = "memory";
const WORST: &str = "worst";
const WORST_DELAY: &str = "worst-delay";

const LOADS: Group = Group {
    title: "A load from memory, by the time for which all other cores write",
    keys: &["others"],
    columns: &[
        Column::new("load_ns", "load ns", 1.0, 0),
        Column::new("written_bytes_per_s", "lines written GB/s", 1e9, 2),
        Column::new("of_idle", "of idle others", 1.0, 2),
    ],
    plotted: 2,
    form: Form::Lines("pace_percent"),
};
const SLOWED: Group = Group {
    title: "NFs, by the time for which all other cores write memory",
    keys: &["others"],
    columns: &[
        Column::new("degraded_percent", "throughput lost %", 1.0, 1),
        Column::new("delivered_pps", "delivered Mpps", 1e6, 3),
        Column::new("written_bytes_per_s", "lines written GB/s", 1e9, 2),
    ],
    plotted: 1,
    form: Form::Lines("pace_percent"),
};
const BESIDE: Group = Group {
    title: "NFs beside one on each other core, without isolation",
    keys: &["packet_bytes", "neighbour", "others"],
    columns: &[
        Column::new("degraded_percent", "throughput lost %", 1.0, 1),
        Column::new("delivered_pps", "delivered Mpps", 1e6, 3),
        Column::new("grown_percent", "p95 grown %", 1.0, 1),
        Column::new("latency_ns_p95", "p95 µs", 1e3, 2),
    ],
    plotted: 3,
    form: Form::Bars,
};
const OF_ALL: Group = Group {
    title: "The worst of all",
    keys: &["crowd"],
    columns: &[
        Column::new("worst_degraded_percent", "throughput lost %", 1.0, 1),
        Column::new("worst_grown_percent", "p95 grown %", 1.0, 1),
    ],
    plotted: 0,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let programs: Vec<String> = KINDS.iter().filter_map(|kind| Some(program(example(kind)?))).collect();
    let lab = Lab::here(args, &programs.iter().map(String::as_str).collect::<Vec<_>>())?;
    let cache = LastCache::of(lab.manager_core);
    lab.run(&plan(&lab, &cache))
}

fn example(name: &str) -> Option<&'static Example> {
    EXAMPLES.iter().find(|example| example.name == name)
}

fn program(example: &Example) -> String {
    format!("sluice-nf-{}", example.nf)
}

/// The last-level cache of the manager's core.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastCache {
    bytes: u64,
    /// The cores behind it; none where they are unknown.
    cores: Option<Vec<usize>>,
}

impl LastCache {
    fn of(core: usize) -> Self {
        let is_own = |cpus: &[u32]| cpus.iter().any(|cpu| usize::try_from(*cpu) == Ok(core));
        let own = l3_caches(Path::new("/")).into_iter().find(|cache| is_own(&cache.cpus));
        let cores = |cpus: Vec<u32>| cpus.into_iter().filter_map(|cpu| usize::try_from(cpu).ok()).collect::<Vec<usize>>();
        own.map_or(Self { bytes: STATED_BYTES, cores: None }, |cache| Self { bytes: cache.bytes, cores: Some(cores(cache.cpus)) })
    }

    /// The physical cores besides the manager's that are behind it.
    fn others(&self, lab: &Lab) -> Vec<usize> {
        let apart = (1..).map_while(|cores| lab.cores.own(cores).ok()).last().unwrap_or_default();
        apart.iter().copied().filter(|core| self.cores.as_ref().is_none_or(|own| own.contains(core))).collect()
    }
}

/// One measurement of an NF.
#[derive(Debug, Clone, Copy)]
struct Trial {
    nf: &'static Example,
    /// On each of the other cores.
    neighbour: Option<&'static Example>,
    packet_bytes: u32,
}

fn plan(lab: &Lab, cache: &LastCache) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![
        (LOADS, |v| v.name == MEMORY),
        (SLOWED, |v| v.name.starts_with("slowdown/")),
        (BESIDE, |v| v.params.contains_key("neighbour")),
        (OF_ALL, |v| v.params.contains_key("crowd")),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, compare, shown);
    let others = cache.others(lab);
    if others.is_empty() {
        for name in [MEMORY, WORST, WORST_DELAY] {
            plan.leave_out(name, Params::new(), "it needs two physical cores behind one last-level cache that it may use");
        }
        return plan;
    }
    plan.cases.extend(of_memory(cache, &others));
    let kinds = || KINDS.iter().filter_map(|kind| example(kind));
    plan.cases.extend(kinds().flat_map(|nf| PACES_OF_NFS.map(|pace| slowdown(nf, pace, cache.bytes, &others))));
    let trials: Vec<Trial> = PACKET_BYTES.iter().flat_map(|bytes| kinds().flat_map(move |nf| trials(nf, *bytes))).collect();
    plan.cases.extend(trials.iter().map(|trial| beside(*trial, &others)));
    if let [own, neighbours @ ..] = &others[..]
        && !neighbours.is_empty()
    {
        plan.cases.extend(trials.iter().map(|trial| delayed(*trial, *own, neighbours)));
    }
    // Beside the NF and its neighbours, a delayed one has the packet thread's core.
    for (name, need) in [(WORST, SEVERAL + 1), (WORST_DELAY, SEVERAL + 2)] {
        let have = others.len() + 1;
        if have < need {
            let why = format!("{SEVERAL} neighbours: it needs {need} physical cores behind one cache, and there are {have}");
            plan.leave_out(name, crowd(true), why);
        }
    }
    plan
}

/// An NF alone, and beside each kind of neighbour.
fn trials(nf: &'static Example, packet_bytes: u32) -> Vec<Trial> {
    let neighbours = NEIGHBOURS.iter().filter_map(|kind| example(kind)).map(Some);
    std::iter::once(None).chain(neighbours).map(|neighbour| Trial { nf, neighbour, packet_bytes }).collect()
}

fn crowd(is_several: bool) -> Params {
    params(&[("crowd", json!(if is_several { "several" } else { "few" }))])
}

/// A case with one row.
fn case(name: String, of: Params, run: impl Fn(&Lab) -> Result<Sample, Miss> + 'static) -> Case {
    let (row_name, row_params) = (name.clone(), of.clone());
    Case { name, params: of, run: Box::new(move |lab: &Lab| Ok(vec![Row::new(&row_name, &row_params, run(lab)?)])) }
}

/// The chain of pointers, made on first use; none if there is too little memory.
type MadeChain = Rc<OnceCell<Option<PointerChain>>>;

fn of_memory(cache: &LastCache, others: &[usize]) -> Vec<Case> {
    let (made, bytes) = (MadeChain::default(), cache.bytes);
    let of_pace = |pace: u32| {
        let (made, cores) = (made.clone(), others.to_vec());
        let of = params(&[("pace_percent", json!(pace)), ("others", json!(cores.len()))]);
        case(MEMORY.into(), of, move |lab| {
            let too_little =
                || Miss::LeaveOut(format!("too little memory for one that a cache of {} MiB does not hold", bytes >> 20));
            let chain = made.get_or_init(|| PointerChain::behind(bytes)).as_ref().ok_or_else(too_little)?;
            let writers = writers(pace, bytes, &cores)?;
            let (before, began) = (written(&writers), Instant::now());
            let load_ns = load_ns(chain, lab.manager_core, Duration::from_secs_f64(lab.args.seconds))?;
            Ok(Sample::from([("load_ns".into(), load_ns), rate(&writers, before, began)]))
        })
    };
    PACES.map(of_pace).into()
}

/// Threads that write memory on these cores; none at pace 0.
fn writers(pace_percent: u32, cache_bytes: u64, cores: &[usize]) -> Result<Option<MemoryWriters>, Miss> {
    let start = || MemoryWriters::start(cores, pace_percent, cache_bytes.saturating_mul(TIMES));
    Ok((pace_percent > 0).then(start).transpose()?)
}

fn written(writers: &Option<MemoryWriters>) -> u64 {
    writers.as_ref().map_or(0, MemoryWriters::written)
}

/// Bytes of written lines per second since then, as a metric.
fn rate(writers: &Option<MemoryWriters>, before: u64, began: Instant) -> (String, f64) {
    ("written_bytes_per_s".into(), (written(writers) - before) as f64 / began.elapsed().as_secs_f64())
}

fn slowdown(nf: &'static Example, pace: u32, cache_bytes: u64, others: &[usize]) -> Case {
    let cores = others.to_vec();
    let of = params(&[("pace_percent", json!(pace)), ("others", json!(cores.len()))]);
    case(format!("slowdown/{}", nf.name), of, move |lab| {
        let files = Files::make(lab, &[nf])?;
        let writers = writers(pace, cache_bytes, &cores)?;
        let (before, began) = (written(&writers), Instant::now());
        let mut sample = lab.flow(&inline(nf, &files, PACKET_BYTES[0], lab.manager_core))?;
        sample.extend([rate(&writers, before, began)]);
        Ok(sample)
    })
}

fn of_trial(Trial { neighbour, packet_bytes, .. }: Trial, others: usize) -> Params {
    let neighbour = neighbour.map_or(ALONE, |example| example.name);
    params(&[("neighbour", json!(neighbour)), ("packet_bytes", json!(packet_bytes)), ("others", json!(others))])
}

fn beside(trial: Trial, others: &[usize]) -> Case {
    let cores = others.to_vec();
    case(format!("beside/{}", trial.nf.name), of_trial(trial, cores.len()), move |lab| {
        let files = Files::make(lab, &[trial.nf])?;
        let own = inline(trial.nf, &files, trial.packet_bytes, lab.manager_core);
        among(lab, trial, &cores, |lab| lab.flow(&own))
    })
}

fn delayed(trial: Trial, own: usize, others: &[usize]) -> Case {
    let cores = others.to_vec();
    case(format!("delayed/{}", trial.nf.name), of_trial(trial, cores.len()), move |lab| {
        let files = Files::make(lab, &[trial.nf])?;
        let setup = apart(inline(trial.nf, &files, trial.packet_bytes, lab.manager_core), own);
        among(lab, trial, &cores, |lab| latency(lab, &setup))
    })
}

/// Measures while the neighbours of a trial run, one on each of these cores.
fn among(lab: &Lab, trial: Trial, cores: &[usize], measure: impl Fn(&Lab) -> Result<Sample, Miss>) -> Result<Sample, Miss> {
    let Some(neighbour) = trial.neighbour else { return measure(lab) };
    let files = Files::make(lab, &[neighbour])?;
    let setups = cores.iter().map(|core| inline(neighbour, &files, trial.packet_bytes, *core));
    let daemons = setups.map(|setup| lab.start(&setup)).collect::<Result<Vec<_>, _>>()?;
    let measured = measure(lab)?;
    daemons.into_iter().try_for_each(Daemon::stop)?;
    Ok(measured)
}

/// Like [`Lab::flow`], with the 95th percentile of latency.
fn latency(lab: &Lab, setup: &Setup) -> Result<Sample, Miss> {
    let (before, after) = lab.readings(setup)?;
    let mut out = sample(setup, &before, &after);
    let times = Window { before: &before.stats, after: &after.stats }.latency(CHAIN);
    out.extend(times.quantile(0.95).map(|ns| ("latency_ns_p95".to_string(), ns as f64)));
    Ok(out)
}

/// The files that NFs read, in a folder of their own.
struct Files(TempDir);

impl Files {
    fn make(lab: &Lab, nfs: &[&Example]) -> Result<Self, Miss> {
        let folder = tempfile::Builder::new().prefix("sluice-bench-files-").tempdir()?;
        // After creation, so that the umask has no effect.
        std::fs::set_permissions(folder.path(), open_to_nfs())?;
        let files = Self(folder);
        for nf in nfs {
            nf.make_file(&lab.programs.path(&program(nf)), &files.of(nf))?;
        }
        Ok(files)
    }

    fn of(&self, nf: &Example) -> PathBuf {
        self.0.path().join(nf.name)
    }
}

/// An NF in the packet thread of a core, with as many packets as it takes.
fn inline(nf: &Example, files: &Files, packet_bytes: u32, core: usize) -> Setup {
    let service = Service {
        name: SERVICE.into(),
        exec: program(nf),
        args: nf.args(Scale::Large, &files.of(nf)),
        core,
        ring: RING,
        ..Service::default()
    };
    Setup {
        manager_core: core,
        manager: "flow_table = \"needed\"\n",
        traffic: vec![Traffic { chain: CHAIN.into(), flows: nf.flows(Scale::Large), packet_bytes, ..Traffic::default() }],
        services: vec![service],
        chains: vec![Chain { run: Run::Inline, ..chain_of(CHAIN, &[SERVICE]) }],
        ..Setup::default()
    }
}

/// The same at a fixed rate, as a process that polls on a core of its own.
fn apart(mut setup: Setup, core: usize) -> Setup {
    setup.traffic.iter_mut().for_each(|traffic| traffic.rate = PACED_PPS);
    setup.services.iter_mut().for_each(|service| (service.core, service.poll) = (core, true));
    setup.chains.iter_mut().for_each(|chain| chain.run = Run::Isolated);
    setup
}

/// Compares each row with the same alone, and adds the worst of all.
fn compare(rows: &mut [Row]) -> Vec<Row> {
    let all = rows.to_vec();
    let is_alone =
        |row: &&Row| row.params.get("pace_percent") == Some(&json!(0)) || row.params.get("neighbour") == Some(&json!(ALONE));
    for row in rows.iter_mut() {
        let is_same = |one: &&Row| one.name == row.name && one.params.get("packet_bytes") == row.params.get("packet_bytes");
        let Some(alone) = all.iter().filter(is_alone).find(is_same) else { continue };
        let ratio = |metric: &str| Some(row.get(metric)? / alone.get(metric).filter(|base| *base > 0.0)?);
        let (loads, rates, delays) = (ratio("load_ns"), ratio("delivered_pps"), ratio("latency_ns_p95"));
        row.put("of_idle", loads);
        // Paced, it delivers what it is offered.
        let rates = rates.filter(|_| delays.is_none());
        row.put("degraded_percent", rates.map(|ratio| (1.0 - ratio) * 100.0));
        row.put("grown_percent", delays.map(|ratio| (ratio - 1.0) * 100.0));
    }
    let worst = |name: &str, kind: &str, metric: &str| {
        let is_of_kind = |row: &&Row| row.name.starts_with(kind) && !is_alone(row);
        let of_kind = || rows.iter().filter(is_of_kind);
        let most = of_kind().filter_map(|row| row.get(metric)).reduce(f64::max)?;
        let others = of_kind().filter_map(|row| row.params.get("others")?.as_u64()).max()?;
        let of = crowd(others >= SEVERAL as u64);
        Some(Row::new(name, &of, Sample::from([(format!("worst_{metric}"), most)])))
    };
    [worst(WORST, "beside/", "degraded_percent"), worst(WORST_DELAY, "delayed/", "grown_percent")].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
