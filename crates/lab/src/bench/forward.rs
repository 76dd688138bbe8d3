//! `sluice bench forward`: the cost of forwarding packets through chains of bridge NFs.
//!
//! # Terms
//! - *poll* NFs poll, each on its own core; *shared* NFs sleep and share one core; *fused* ones
//!   sleep in one process; *inline* ones run in the packet thread.
//! - *open* loop: the generator sends as fast as it can, and packets without room are dropped at
//!   the entry.
//! - *closed* loop: the generator waits for room, and at most [`CLOSED_RING`] packets are in
//!   flight.
//! - *Capacity*: the median of what the open loop delivered.
//!
//! Packets have 64 bytes on the wire and [`FLOWS`] flows.
//!
//! # Approach
//! Each run starts its own daemon with all roles on one core, lets it warm up, and reads its
//! counters twice. All variants of a part alternate, so that disturbances of the host affect all of
//! them. The parts:
//! - throughput, and cycles per packet per hop: the time between two delivered packets in ticks of
//!   the time-stamp counter, over the number of NFs. The manager works concurrently on its own
//!   core, so this is elapsed time, not the sum of both cores' work;
//! - latency from entry to exit at 10, 50 and 90 % of capacity, from the daemon's histograms (one
//!   packet in 128, with a resolution of an eighth);
//! - search: the greatest rate without loss (NDR) and with a loss of at most [`PDR_LOSS`] (PDR), in
//!   steps of a fiftieth of capacity, as counted by all drops of a trial. A trial lasts a second or
//!   longer, after a warm-up, so that a short pause of the host is a small part of it. Its rate is
//!   what the generator sent, from the packet thread. Where that is less than 99 % of what was
//!   asked (`late_trials_count`), the trial is no verdict ([`search`](crate::bench::search)):
//!   `generator_limits_count` says of how many of NDR and PDR the generator is the limit;
//! - flow tables: the rate of one inline bridge by entries of the flow table ([`TABLES`]). Each
//!   packet is of another flow than the one before it. A generator has at most four million flows,
//!   so most entries of the largest table are of flows that have ended (`flows/ending`): they stay
//!   until their timeout, and new ones are added all the time;
//! - start of an NF, from spawn to its first returned packet, beside 0, 99 and 999 others that
//!   carry packets, by the daemon's clock;
//! - memory: private pages of each of 1, 100 and 1,000 NFs that have all carried packets, and the
//!   time to start them all;
//! - reclaim: NFs are killed one after another under overload. The time until their frames are back
//!   counts from the daemon's event of the end by its own clock, and from the kill (with the
//!   kernel's share) by polling, with a resolution of a millisecond.
//!
//! # Limits
//! Needs two cores. It inherits its scheduling class: on a busy host,
//! `chrt -r 5 sluice bench forward` shows what the host allows. Times that the daemon does not
//! report are left out.

use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::json;

use crate::bench::daemon::{Daemon, Programs};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::flow_tables::{FILL_PATIENCE, TABLES, Table};
use crate::bench::host::{Cores, HostInfo};
use crate::bench::host_speed::HostSpeed;
use crate::bench::lab::{self, Miss};
use crate::bench::pools::meminfo;
use crate::bench::proc::Tasks;
use crate::bench::report::{LeftOut, Params, Report, Variant, median};
use crate::bench::search::{Trial, Trials, greatest};
use crate::bench::setup::{Chain, PACKET_BYTES, SINK, Service, Setup, Traffic};
use crate::bench::stats::{Window, since};
use crate::bench::table::{Column, Form, Group};
use sluice_api::config::Run as How;
use sluice_api::model::{Nf, NfState};
use sluice_host::process::Proc;

pub const EXPERIMENT: Experiment =
    Experiment { name: "forward", about: "packets through 1, 2 and 3 bridges: rate, latency, start, memory, reclaim", run };

const NF: &str = "sluice-nf-bridge";
const LENGTHS: [usize; 3] = [1, 2, 3];
const FLOWS: u32 = 16;
const OPEN_RING: u32 = 2048;
/// Ring of the closed loop: the most packets in flight.
const CLOSED_RING: u32 = 4096;
/// Shares of capacity at which latency is measured.
const LOADS: [u32; 3] = [10, 50, 90];
/// Numbers of NFs at which start and memory are measured.
const CROWDS: [u32; 3] = [1, 100, 1000];
/// NFs started one after another in each run.
const STARTS: usize = 5;
/// Packets per second through a crowd: each NF gets some, and the load is negligible.
const CROWD_PPS: f64 = 20_000.0;
/// Packets per second for an NF that starts, so that its first packet is already there.
const PROBE_PPS: f64 = 1_000_000.0;
/// NFs of which all but one are killed in each run.
const VICTIMS: u32 = 8;
/// Time limit for actions that take milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Loss that PDR allows, as a part.
const PDR_LOSS: f64 = 0.005;
/// Greatest rate of a search, relative to capacity: dropping takes time, which a lower load saves.
const SEARCHED: f64 = 1.28;
/// Rates of a search.
const STEPS: u32 = 64;
/// Least seconds of a trial.
const LEAST_TRIAL_S: f64 = 1.0;

/// What a variant measures.
#[derive(Debug, Clone, PartialEq)]
enum Run {
    Throughput {
        nfs: usize,
        poll: bool,
        closed: bool,
        how: How,
    },
    /// Inline, in an open loop, without lookups in the flow table.
    Unlooked {
        nfs: usize,
    },
    Latency {
        nfs: usize,
        poll: bool,
        load_percent: u32,
    },
    /// NFs that share a core.
    Search {
        nfs: usize,
    },
    /// Spawned, or forked from a zygote.
    Start {
        nfs: u32,
        forked: bool,
    },
    Memory {
        nfs: u32,
        forked: bool,
    },
    Reclaim,
    /// Inline, in an open loop, by size of the flow table.
    Flows(Table),
}

impl Run {
    fn name(&self) -> &'static str {
        match self {
            Run::Throughput { how: How::Inline, closed: false, .. } => "inline/open",
            Run::Throughput { how: How::Inline, closed: true, .. } => "inline/closed",
            Run::Throughput { how: How::Fused, closed: false, .. } => "fused/open",
            Run::Throughput { how: How::Fused, closed: true, .. } => "fused/closed",
            Run::Throughput { poll: true, closed: false, .. } => "poll/open",
            Run::Throughput { poll: true, closed: true, .. } => "poll/closed",
            Run::Throughput { poll: false, closed: false, .. } => "shared/open",
            Run::Throughput { poll: false, closed: true, .. } => "shared/closed",
            Run::Unlooked { .. } => "inline/needed",
            Run::Latency { poll: true, .. } => "poll/load",
            Run::Latency { poll: false, .. } => "shared/load",
            Run::Search { .. } => "shared/search",
            Run::Start { forked: false, .. } => "start",
            Run::Start { forked: true, .. } => "start/forked",
            Run::Memory { forked: false, .. } => "memory",
            Run::Memory { forked: true, .. } => "memory/forked",
            Run::Reclaim => "reclaim",
            Run::Flows(Table { flow_packets: 0, .. }) => "flows/steady",
            Run::Flows(_) => "flows/ending",
        }
    }

    fn params(&self) -> Params {
        let mode = |poll: &bool| json!(if *poll { "poll" } else { "shared" });
        let mut params = match self {
            Run::Throughput { nfs, poll, closed, how } => vec![
                ("nfs", json!(nfs)),
                ("mode", mode(poll)),
                ("loop", json!(if *closed { "closed" } else { "open" })),
                ("run", json!(how.word())),
                ("flows", json!(FLOWS)),
                ("ring", json!(if *closed { CLOSED_RING } else { OPEN_RING })),
            ],
            Run::Unlooked { nfs } => {
                return Run::Throughput { nfs: *nfs, poll: false, closed: false, how: How::Inline }.params();
            }
            Run::Latency { nfs, poll, load_percent } => vec![
                ("nfs", json!(nfs)),
                ("mode", mode(poll)),
                ("loop", json!("open")),
                ("load_percent", json!(load_percent)),
                ("flows", json!(FLOWS)),
                ("ring", json!(OPEN_RING)),
            ],
            Run::Search { nfs } => {
                vec![("nfs", json!(nfs)), ("mode", mode(&false)), ("flows", json!(FLOWS)), ("ring", json!(OPEN_RING))]
            }
            Run::Start { nfs, .. } | Run::Memory { nfs, .. } => {
                vec![
                    ("nfs", json!(nfs)),
                    ("mode", json!("shared")),
                    ("flows", json!(crowd_flows(*nfs))),
                    ("ring", json!(OPEN_RING)),
                ]
            }
            Run::Reclaim => vec![
                ("nfs", json!(VICTIMS)),
                ("mode", json!("shared")),
                ("loop", json!("open")),
                ("flows", json!(crowd_flows(VICTIMS))),
                ("ring", json!(OPEN_RING)),
            ],
            Run::Flows(Table { entries, flows, flow_packets }) => vec![
                ("nfs", json!(1)),
                ("loop", json!("open")),
                ("run", json!(How::Inline.word())),
                ("entries", json!(entries)),
                ("flows", json!(flows)),
                ("flow_packets", json!(flow_packets)),
            ],
        };
        params.push(("packet_bytes", json!(PACKET_BYTES)));
        params.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
    }
}

/// Flows of which some fall on each of `nfs` instances.
fn crowd_flows(nfs: u32) -> u32 {
    FLOWS * nfs.max(1)
}

/// Presentation of the groups.
const GROUPS: [Group; 7] = [
    Group {
        title: "Throughput, 64-byte packets",
        keys: &["nfs"],
        columns: &[
            Column::new("delivered_pps", "delivered Mpps", 1e6, 2),
            Column::new("cycles_per_packet_per_hop", "cycles/packet/hop", 1.0, 1),
            Column::new("offered_pps", "offered Mpps", 1e6, 2),
            Column::new("wasted_pps", "wasted pps", 1.0, 0),
            Column::new("latency_ns_p50", "p50 µs", 1e3, 1),
            Column::new("latency_ns_p99", "p99 µs", 1e3, 1),
        ],
        plotted: 2,
        form: Form::Bars,
    },
    Group {
        title: "Latency, by percent of capacity",
        keys: &["nfs", "load_percent"],
        columns: &[
            Column::new("latency_ns_p50", "p50 µs", 1e3, 1),
            Column::new("latency_ns_p99", "p99 µs", 1e3, 1),
            Column::new("latency_ns_p999", "p99.9 µs", 1e3, 1),
            Column::new("delivered_pps", "delivered Mpps", 1e6, 2),
            Column::new("entry_drop_pps", "entry drops pps", 1.0, 0),
        ],
        plotted: 3,
        form: Form::Bars,
    },
    Group {
        title: "Start of one more NF",
        keys: &["nfs"],
        columns: &[
            Column::new("start_ms", "request to first packet, ms", 1.0, 2),
            Column::new("welcomed_ms", "request to welcome, ms", 1.0, 2),
        ],
        plotted: 1,
        form: Form::Bars,
    },
    Group {
        title: "Many NFs at once",
        keys: &["nfs"],
        columns: &[
            Column::new("private_kib", "private KiB per NF", 1.0, 0),
            Column::new("start_all_ms", "start of all, ms", 1.0, 0),
            Column::new("running_nfs", "attached", 1.0, 0),
            Column::new("served_nfs", "with packets", 1.0, 0),
        ],
        plotted: 2,
        form: Form::Bars,
    },
    Group {
        title: "Reclaim of a killed NF's frames",
        keys: &["nfs"],
        columns: &[
            Column::new("reclaim_ns", "from the news, µs", 1e3, 1),
            Column::new("kill_to_reclaim_ns", "from the kill, µs", 1e3, 1),
            Column::new("frames_held", "frames it held", 1.0, 0),
        ],
        plotted: 2,
        form: Form::Bars,
    },
    Group {
        title: "One inline bridge, by entries of the flow table",
        keys: &["entries"],
        columns: &[
            Column::new("delivered_pps", "delivered Mpps", 1e6, 2),
            Column::new("cycles_per_packet_per_hop", "cycles/packet", 1.0, 1),
            Column::new("live_flows", "entries at the end", 1.0, 0),
            Column::new("latency_ns_p99", "p99 µs", 1e3, 1),
        ],
        plotted: 1,
        form: Form::Lines("entries"),
    },
    Group {
        title: "Greatest rate without loss (NDR), and with 0.5 % (PDR)",
        keys: &["nfs"],
        columns: &[
            Column::new("ndr_pps", "NDR Mpps", 1e6, 2),
            Column::new("pdr_pps", "PDR Mpps", 1e6, 2),
            Column::new("trials_count", "trials", 1.0, 0),
            Column::new("late_trials_count", "with a late generator", 1.0, 0),
            Column::new("generator_limits_count", "limits that are the generator's", 1.0, 0),
        ],
        plotted: 2,
        form: Form::Bars,
    },
];

/// Index of a variant's group in [`GROUPS`].
fn group_of(variant: &str) -> usize {
    match variant {
        "poll/load" | "shared/load" => 1,
        "start" | "start/forked" => 2,
        "memory" | "memory/forked" => 3,
        "reclaim" => 4,
        "flows/steady" | "flows/ending" => 5,
        "shared/search" => 6,
        _ => 0,
    }
}

/// State of all runs.
struct Bench<'a> {
    args: &'a BenchArgs,
    programs: Programs,
    cores: Cores,
    host: HostInfo,
    host_speed: HostSpeed,
    manager_core: usize,
    variants: Vec<Variant>,
    left_out: Vec<LeftOut>,
    /// Failed variants, which are not among those left out.
    failed: usize,
}

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let (report, failed) = measure(args, Programs::beside_this_one(&[NF])?)?;
    let of_group = |i: usize| report.variants.iter().filter(|v| group_of(&v.name) == i).collect::<Vec<_>>();
    let groups: Vec<(&Group, Vec<&Variant>)> = GROUPS.iter().enumerate().map(|(i, g)| (g, of_group(i))).collect();
    lab::show(args, &report, &groups)?;
    anyhow::ensure!(failed == 0, "{}", lab::failures(&report));
    Ok(())
}

/// Runs all parts; returns the result, and the number of failed variants.
///
/// # Errors
/// The experiment cannot run here, or was interrupted.
fn measure(args: &BenchArgs, programs: Programs) -> anyhow::Result<(Report, usize)> {
    let cores = Cores::here();
    let manager_core = cores.manager()?;
    let host = HostInfo::read(&cores);
    let host_speed = HostSpeed::new(manager_core, cores.shared());
    let (variants, left_out) = (Vec::new(), Vec::new());
    let mut bench = Bench { args, programs, cores, host, host_speed, manager_core, variants, left_out, failed: 0 };
    let parts = parts();
    let all: Vec<(&str, Params)> = parts.iter().flatten().map(|run| (run.name(), run.params())).collect();
    lab::check_asked(args, EXPERIMENT.name, &all.iter().map(|(name, params)| (*name, params)).collect::<Vec<_>>())?;
    for part in &parts {
        bench.part(part)?;
    }
    bench.host_speed.sample();
    let report = Report {
        experiment: EXPERIMENT.name.into(),
        host: bench.host,
        seconds: args.seconds,
        repeats: args.repeats,
        variants: bench.variants,
        left_out: bench.left_out,
        host_speed: bench.host_speed.samples(),
    };
    Ok((report, bench.failed))
}

/// All parts, in their order: a part may need the capacity that one before it has measured.
fn parts() -> Vec<Vec<Run>> {
    let mut throughput = Vec::new();
    for poll in [true, false] {
        for closed in [false, true] {
            throughput.extend(LENGTHS.map(|nfs| Run::Throughput { nfs, poll, closed, how: How::Isolated }));
        }
    }
    for closed in [false, true] {
        throughput.extend(LENGTHS[1..].iter().map(|nfs| Run::Throughput { nfs: *nfs, poll: false, closed, how: How::Fused }));
        throughput.extend(LENGTHS.map(|nfs| Run::Throughput { nfs, poll: false, closed, how: How::Inline }));
    }
    throughput.extend(LENGTHS.map(|nfs| Run::Unlooked { nfs }));
    let mut latency = Vec::new();
    for (nfs, poll) in [(1, true), (1, false), (3, false)] {
        latency.extend(LOADS.map(|load_percent| Run::Latency { nfs, poll, load_percent }));
    }
    let search = [1, 3].map(|nfs| Run::Search { nfs });
    let mut parts = vec![throughput, latency, search.into(), TABLES.map(Run::Flows).into()];
    for forked in [false, true] {
        parts.push(CROWDS.map(|nfs| Run::Start { nfs, forked }).into());
        parts.push(CROWDS.map(|nfs| Run::Memory { nfs, forked }).into());
    }
    parts.push(vec![Run::Reclaim]);
    parts
}

impl Bench<'_> {
    /// Runs the variants of a part alternately.
    fn part(&mut self, runs: &[Run]) -> anyhow::Result<()> {
        let mut runs: Vec<&Run> = runs.iter().filter(|run| self.args.asks_for(run.name(), &run.params())).collect();
        let so_far = self.variants.len() + self.left_out.len();
        runs.truncate(self.args.first.map_or(usize::MAX, |first| (first as usize).saturating_sub(so_far)));
        let mut variants: Vec<Option<Variant>> = runs.iter().map(|r| Some(Variant::new(r.name(), r.params()))).collect();
        for repeat in 0..self.args.repeats {
            for (run, slot) in runs.iter().zip(&mut variants) {
                let Some(variant) = slot else { continue };
                if repeat > 0 && !self.args.runs_again(run.name(), &run.params()) {
                    continue;
                }
                let label = variant.label(&["nfs", "load_percent"]);
                eprintln!("{} of {}: {label}", repeat + 1, self.args.repeats);
                self.host_speed.sample();
                let Err(missed) = self.one(run, variant) else { continue };
                self.programs.go_on()?;
                self.failed += usize::from(matches!(missed, Miss::Failed(_)));
                self.left_out.push(lab::left(&variant.name, &variant.params, missed));
                *slot = None;
            }
        }
        self.variants.extend(variants.into_iter().flatten());
        Ok(())
    }

    fn one(&mut self, run: &Run, variant: &mut Variant) -> Result<(), Miss> {
        match run {
            Run::Throughput { nfs, poll, closed, how } => self.flow(&self.bridges((*nfs, *poll), *closed, *how, 0.0)?, variant),
            Run::Unlooked { nfs } => {
                let setup = Setup { manager: "flow_table = \"needed\"\n", ..self.bridges((*nfs, false), false, How::Inline, 0.0)? };
                self.flow(&setup, variant)
            }
            Run::Latency { nfs, poll, load_percent } => {
                let rate = self.capacity(*nfs, *poll)? * f64::from(*load_percent) / 100.0;
                self.flow(&self.bridges((*nfs, *poll), false, How::Isolated, rate)?, variant)
            }
            Run::Start { nfs, forked } => self.start(*nfs, *forked, variant),
            Run::Memory { nfs, forked } => self.memory(*nfs, *forked, variant),
            Run::Reclaim => self.reclaim(variant),
            Run::Search { nfs } => self.search(*nfs, variant),
            Run::Flows(table) => self.table(*table, variant),
        }
    }

    /// Searches for the greatest rates with each of the allowed losses.
    fn search(&mut self, nfs: usize, variant: &mut Variant) -> Result<(), Miss> {
        let step_pps = self.capacity(nfs, false)? * SEARCHED / f64::from(STEPS);
        let (mut trials, mut generators) = (Trials::new(), 0);
        for (metric, threshold) in [("ndr_pps", 0.0), ("pdr_pps", PDR_LOSS)] {
            let found = greatest(STEPS, threshold, &mut trials, |load| self.trial(nfs, step_pps * f64::from(load)))?;
            variant.add(metric, step_pps * found.steps);
            generators += u32::from(found.is_generators_limit);
        }
        let of = |count: fn(&Trial) -> bool| trials.values().flatten().filter(|one| count(one)).count() as f64;
        variant.add("trials_count", of(|_| true));
        variant.add("late_trials_count", of(Trial::is_late));
        variant.add("generator_limits_count", f64::from(generators));
        Ok(())
    }

    /// A trial at a rate.
    fn trial(&mut self, nfs: usize, rate: f64) -> Result<Trial, Miss> {
        let daemon = Daemon::start(&self.programs, &self.bridges((nfs, false), false, How::Isolated, rate)?)?;
        let mut trial = Trial { sent: 0.0, loss: 0.0 };
        self.window_of(self.args.seconds.max(LEAST_TRIAL_S), &daemon, |window, _, _| {
            let sent_pps = window.rx_pps("in");
            trial = Trial { sent: sent_pps / rate, loss: window.drops_pps().values().sum::<f64>() / sent_pps };
        })?;
        daemon.stop()?;
        Ok(trial)
    }

    /// Packets per second that the open loop delivered.
    fn capacity(&self, nfs: usize, poll: bool) -> Result<f64, Miss> {
        let of = Run::Throughput { nfs, poll, closed: false, how: How::Isolated };
        let variant = self.variants.iter().find(|v| v.name == of.name() && v.params == of.params());
        let delivered = variant.and_then(|v| v.median("delivered_pps")).filter(|pps| *pps > 0.0);
        delivered.ok_or_else(|| Miss::LeaveOut(format!("{} did not run, so its capacity is not known", of.name())))
    }

    /// Warms up, then measures one window.
    fn window(&mut self, daemon: &Daemon, look: impl FnOnce(Window, &Tasks, &Tasks)) -> anyhow::Result<()> {
        self.window_of(self.args.seconds, daemon, look)
    }

    /// The same with a window of another length.
    fn window_of(&mut self, seconds: f64, daemon: &Daemon, look: impl FnOnce(Window, &Tasks, &Tasks)) -> anyhow::Result<()> {
        let warm_up = (seconds * 0.3).clamp(0.1, 1.0);
        self.programs.pause(Duration::from_secs_f64(warm_up))?;
        let before = daemon.stats()?;
        let tasks_before = Tasks::of(&before.nfs);
        self.programs.pause(Duration::from_secs_f64(seconds))?;
        let after = daemon.stats()?;
        let tasks_after = Tasks::of(&after.nfs);
        if let Some(nf) = after.nfs.iter().find(|nf| nf.restarts > 0 || nf.state != NfState::Running) {
            anyhow::bail!("{} ended while it was measured; sluiced says: {}", nf.name, daemon.log());
        }
        self.host.hugepages |= after.status.hugepages;
        look(Window { before: &before, after: &after }, &tasks_before, &tasks_after);
        Ok(())
    }

    /// A chain of bridges.
    fn bridges(&self, (nfs, poll): (usize, bool), closed: bool, how: How, rate: f64) -> Result<Setup, Miss> {
        let cores = if poll { self.cores.own(nfs).map_err(Miss::LeaveOut)?.to_vec() } else { vec![self.cores.shared(); nfs] };
        let ring = if closed { CLOSED_RING } else { OPEN_RING };
        let services: Vec<Service> =
            cores.iter().enumerate().map(|(i, core)| bridge(&format!("b{}", i + 1), 1, *core, poll, ring)).collect();
        Ok(Setup {
            manager_core: self.manager_core,
            traffic: vec![Traffic { name: "in".into(), chain: "c".into(), rate, flows: FLOWS, wait: closed, ..Traffic::default() }],
            chains: vec![Chain { run: how, ..chain("c", services.iter().map(|s| s.name.clone()).collect(), "restart") }],
            services,
            ..Setup::default()
        })
    }

    /// Measures packets through a chain.
    fn flow(&mut self, setup: &Setup, variant: &mut Variant) -> Result<(), Miss> {
        let daemon = Daemon::start(&self.programs, setup)?;
        self.packets(daemon, setup, variant)
    }

    /// Measures packets through a chain once the flow table is filled.
    fn table(&mut self, table: Table, variant: &mut Variant) -> Result<(), Miss> {
        if let Some(why) = table.too_large(meminfo("MemAvailable")) {
            return Err(Miss::LeaveOut(why));
        }
        let setup = table.of(self.bridges((1, false), false, How::Inline, 0.0)?);
        let daemon = Daemon::start(&self.programs, &setup)?;
        daemon.wait_for("all flows in the table", FILL_PATIENCE, |d| Ok(table.is_filled(d.stats()?.status.flows).then_some(())))?;
        self.packets(daemon, &setup, variant)
    }

    /// Measures packets through the chain of a daemon, and stops it.
    fn packets(&mut self, daemon: Daemon, setup: &Setup, variant: &mut Variant) -> Result<(), Miss> {
        let (tsc_hz, mut delivered) = (self.host.tsc_hz, 0.0);
        self.window(&daemon, |window, before, after| {
            delivered = window.tx_pps(SINK);
            variant.add("offered_pps", window.rx_pps("in"));
            variant.add("delivered_pps", delivered);
            variant.add("entry_drop_pps", window.entry_drop_pps());
            variant.add("wasted_pps", window.wasted_pps());
            for (why, pps) in window.drops_pps() {
                variant.add(&format!("drop_pps.{why}"), pps);
            }
            if let Some(hz) = tsc_hz {
                variant.add("cycles_per_packet_per_hop", hz / delivered / setup.services.len() as f64);
            }
            variant.add("live_flows", window.after.status.flows as f64);
            let latency = window.latency("c");
            for (metric, q) in [("latency_ns_p50", 0.5), ("latency_ns_p99", 0.99), ("latency_ns_p999", 0.999)] {
                if let Some(ns) = latency.quantile(q) {
                    variant.add(metric, ns as f64);
                }
            }
            for (then, now) in window.nfs() {
                let nf = &now.service;
                let per_s = |count: fn(&Nf) -> u64| count(now).saturating_sub(count(then)) as f64 / window.seconds();
                variant.add(&format!("cpu_percent.{nf}"), now.cpu_percent);
                variant.add(&format!("sleeps_per_s.{nf}"), per_s(|nf| nf.sleeps));
                variant.add(&format!("hand_overs_per_s.{nf}"), per_s(|nf| nf.hand_overs));
                variant.add(&format!("wakes_per_s.{nf}"), per_s(|nf| nf.wakes));
                if let Some(ns) = since(&now.service_ns, &then.service_ns).quantile(0.5) {
                    variant.add(&format!("service_ns_p50.{nf}"), ns as f64);
                }
                if let Some(spent) = after.since(before, &now.name) {
                    variant.add(&format!("switches_voluntary_per_s.{nf}"), spent.voluntary as f64 / window.seconds());
                    variant.add(&format!("switches_involuntary_per_s.{nf}"), spent.involuntary as f64 / window.seconds());
                }
            }
        })?;
        daemon.stop()?;
        if delivered == 0.0 {
            return Err(anyhow::anyhow!("it served nothing: delivered_pps is 0").into());
        }
        Ok(())
    }

    /// Starts one more NF beside others that carry packets, several times.
    fn start(&mut self, nfs: u32, forked: bool, variant: &mut Variant) -> Result<(), Miss> {
        let core = self.cores.shared();
        let mut setup = Setup {
            manager_core: self.manager_core,
            traffic: vec![Traffic {
                name: "probes".into(),
                chain: "p".into(),
                rate: PROBE_PPS,
                flows: FLOWS,
                ..Traffic::default()
            }],
            services: vec![Service { zygote: forked, ..bridge("probe", 0, core, false, OPEN_RING) }],
            chains: vec![chain("p", vec!["probe".into()], "restart")],
            ..Setup::default()
        };
        if nfs > 1 {
            crowd(&mut setup, nfs - 1, core, forked);
        }
        let daemon = Daemon::start(&self.programs, &setup)?;
        if forked {
            daemon.wait_for("what is forked from", PATIENCE, |d| {
                let stats = d.ask("GET", "/v1/stats", None)?;
                let mut services = stats["services"].as_array().into_iter().flatten();
                Ok(services.all(|s| s["zygote"]["state"] == "ready").then_some(()))
            })?;
        }
        let mut unreported = false;
        for _ in 0..STARTS {
            let nf: Nf = serde_json::from_value(daemon.ask("POST", "/v1/nfs", Some(&json!({"service": "probe"})))?)
                .context("cannot understand the answer to POST /v1/nfs")?;
            let nf = daemon.wait_for("a packet through the new NF", PATIENCE, |d| {
                let nf = d.nf(&nf.name)?;
                Ok((nf.first_packet_ns.is_some() || nf.tx_packets > 0).then_some(nf))
            })?;
            match nf.first_packet_ns {
                Some(ns) => variant.add("start_ms", ns as f64 / 1e6),
                None => unreported = true,
            }
            if let Some(ns) = nf.started_ns {
                variant.add("welcomed_ms", ns as f64 / 1e6);
            }
            daemon.ask("DELETE", &format!("/v1/nfs/{}?force=true", nf.name), None)?;
        }
        daemon.stop()?;
        if unreported {
            return Err(Miss::LeaveOut("this sluiced does not report the time from spawn to first packet".into()));
        }
        Ok(())
    }

    /// Measures the memory of many NFs of one service.
    fn memory(&mut self, nfs: u32, forked: bool, variant: &mut Variant) -> Result<(), Miss> {
        let mut setup = Setup { manager_core: self.manager_core, ..Setup::default() };
        crowd(&mut setup, nfs, self.cores.shared(), forked);
        let daemon = Daemon::start(&self.programs, &setup)?;
        // The daemon answers once all its NFs have attached.
        variant.add("start_all_ms", daemon.ready_after.as_secs_f64() * 1e3);
        let running = |nfs: &[Nf]| nfs.iter().filter(|nf| nf.state == NfState::Running).count();
        let all = daemon.wait_for("all NFs running", PATIENCE, |d| {
            let all = d.stats()?.nfs;
            Ok((running(&all) == nfs as usize).then_some(all))
        })?;
        variant.add("running_nfs", running(&all) as f64);
        let all = daemon.wait_for("a packet through each NF", PATIENCE, |d| {
            let all = d.stats()?.nfs;
            Ok(all.iter().all(|nf| nf.tx_packets > 0).then_some(all))
        })?;
        variant.add("served_nfs", all.iter().filter(|nf| nf.tx_packets > 0).count() as f64);
        let proc = Proc::default();
        let private = |nf: &Nf| proc.private_bytes(Pid::from_raw(nf.pid? as i32)?).ok();
        let mut kib: Vec<f64> = all.iter().filter_map(private).map(|bytes| bytes as f64 / 1024.0).collect();
        daemon.stop()?;
        if kib.is_empty() {
            return Err(Miss::LeaveOut("/proc/PID/smaps_rollup of the NFs cannot be read".into()));
        }
        kib.sort_by(f64::total_cmp);
        variant.add("private_kib", median(&kib));
        variant.add("private_kib_most", kib[kib.len() - 1]);
        Ok(())
    }

    /// Kills NFs while they hold packets.
    fn reclaim(&mut self, variant: &mut Variant) -> Result<(), Miss> {
        let setup = Setup {
            manager_core: self.manager_core,
            traffic: vec![Traffic { name: "in".into(), chain: "c".into(), flows: crowd_flows(VICTIMS), ..Traffic::default() }],
            services: vec![bridge("victim", VICTIMS, self.cores.shared(), false, OPEN_RING)],
            // No NF is restarted, so a dead one's packets can be observed. Its flows go to the
            // remaining NFs.
            chains: vec![chain("c", vec!["victim".into()], "drop")],
            ..Setup::default()
        };
        let daemon = Daemon::start(&self.programs, &setup)?;
        for i in 1..VICTIMS {
            let name = format!("victim.{i}");
            let (nf, pid) = daemon.wait_for("packets with the NF", PATIENCE, |d| {
                let nf = d.nf(&name)?;
                Ok(nf.pid.filter(|_| nf.tx_packets > 0 && nf.frames_held > 0).map(|pid| (nf, pid)))
            })?;
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("the daemon names no process")?;
            let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).context("cannot open the NF's process")?;
            let killed = Instant::now();
            rustix::process::pidfd_send_signal(&process, Signal::KILL).context("cannot kill the NF")?;
            let (after, polled) = daemon.wait_for("the dead NF's frames", PATIENCE, |d| {
                let nf = d.nf(&name)?;
                Ok((nf.pid.is_none() && nf.frames_held == 0).then(|| (nf, killed.elapsed())))
            })?;
            if let Some(ns) = after.reclaim_ns {
                variant.add("reclaim_ns", ns as f64);
            }
            variant.add("kill_to_reclaim_ns", polled.as_nanos() as f64);
            variant.add("frames_held", nf.frames_held as f64);
        }
        Ok(daemon.stop()?)
    }
}

fn bridge(name: &str, instances: u32, core: usize, poll: bool, ring: u32) -> Service {
    Service { name: name.into(), exec: NF.into(), instances, core, poll, ring, ..Service::default() }
}

fn chain(name: &str, services: Vec<String>, on_failure: &'static str) -> Chain {
    Chain { name: name.into(), services, on_failure, ..Chain::default() }
}

/// Adds `nfs` instances of one service, and a little traffic spread over them.
fn crowd(setup: &mut Setup, nfs: u32, core: usize, forked: bool) {
    let flows = crowd_flows(nfs);
    setup.traffic.push(Traffic { name: "crowds".into(), chain: "crowd".into(), rate: CROWD_PPS, flows, ..Traffic::default() });
    setup.services.push(Service { zygote: forked, ..bridge("crowd", nfs, core, false, OPEN_RING) });
    setup.chains.push(chain("crowd", vec!["crowd".into()], "restart"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::{assert_accepted, built};

    #[test]
    fn numbers_are_params_and_every_variant_has_a_group() {
        let run = Run::Throughput { nfs: 3, poll: false, closed: true, how: How::Isolated };
        let want =
            json!({"nfs": 3, "mode": "shared", "loop": "closed", "packet_bytes": 64, "flows": 16, "ring": 4096, "run": "isolated"});
        assert_eq!(json!(run.params()), want);
        assert_eq!(GROUPS[group_of(run.name())].title, "Throughput, 64-byte packets");
        let load = Run::Latency { nfs: 1, poll: true, load_percent: 90 };
        assert_eq!((load.params()["load_percent"].as_u64(), GROUPS[group_of(load.name())].plotted), (Some(90), 3));
        assert!(GROUPS[group_of(Run::Start { nfs: 1, forked: true }.name())].title.starts_with("Start"));
        assert!(GROUPS[group_of(Run::Memory { nfs: 1, forked: true }.name())].title.starts_with("Many"));
        assert!(GROUPS[group_of(Run::Reclaim.name())].title.starts_with("Reclaim"));
        let of_table = |table: Table| (Run::Flows(table).name(), GROUPS[group_of(Run::Flows(table).name())].form);
        assert_eq!(of_table(TABLES[0]), ("flows/steady", Form::Lines("entries")));
        assert_eq!(of_table(TABLES[4]), ("flows/ending", Form::Lines("entries")));
        assert_eq!(Run::Flows(TABLES[4]).params()["entries"], 10_000_000);
        assert!(GROUPS[group_of(Run::Search { nfs: 1 }.name())].title.contains("NDR"));
        assert!(GROUPS.iter().all(|g| g.plotted <= g.columns.len()));
    }

    #[test]
    fn what_is_asked_for_has_to_be_something() {
        let parts = parts();
        let all: Vec<(&str, Params)> = parts.iter().flatten().map(|run| (run.name(), run.params())).collect();
        let of = |args: BenchArgs| {
            let all: Vec<(&str, &Params)> = all.iter().map(|(name, params)| (*name, params)).collect();
            lab::check_asked(&BenchArgs { repeats: 2, ..args }, "forward", &all).map_err(|error| error.to_string())
        };
        let again = |word: &str| of(BenchArgs { again: vec![word.parse().unwrap()], ..BenchArgs::default() });
        assert_eq!(again("shared/open"), Ok(()));
        assert_eq!(again("shraed/open").unwrap_err(), "--again leaves nothing of forward to repeat");
        let given = vec!["entires=10000".parse().unwrap()];
        assert!(of(BenchArgs { given, ..BenchArgs::default() }).unwrap_err().starts_with("forward has no parameter entires"));
    }

    #[test]
    fn the_daemon_accepts_the_configurations() {
        let mut setup = Setup {
            traffic: vec![Traffic {
                name: "in".into(),
                chain: "c".into(),
                rate: 2.5e6,
                flows: FLOWS,
                wait: true,
                ..Traffic::default()
            }],
            services: vec![bridge("b1", 1, 0, true, CLOSED_RING), bridge("b2", 0, 0, false, OPEN_RING)],
            chains: vec![chain("c", vec!["b1".into(), "b2".into()], "drop")],
            ..Setup::default()
        };
        for table in TABLES {
            assert_accepted(&table.of(setup.clone()), &[NF]);
        }
        crowd(&mut setup, 1000, 0, true);
        assert_accepted(&setup, &[NF]);
    }

    #[test]
    fn a_short_run_measures_every_part() {
        let Some(programs) = built(&[NF]) else { return };
        if let Err(why) = Cores::here().manager() {
            return crate::skip::skip(why);
        }
        let args = BenchArgs { seconds: 0.5, repeats: 1, ..BenchArgs::default() };
        let mut bench = Bench {
            args: &args,
            programs,
            manager_core: Cores::here().manager().unwrap(),
            host: HostInfo::read(&Cores::here()),
            host_speed: HostSpeed::new(Cores::here().manager().unwrap(), Cores::here().shared()),
            cores: Cores::here(),
            variants: Vec::new(),
            left_out: Vec::new(),
            failed: 0,
        };
        bench.part(&[Run::Throughput { nfs: 3, poll: false, closed: false, how: How::Isolated }]).unwrap();
        bench
            .part(&[Run::Latency { nfs: 3, poll: false, load_percent: 10 }, Run::Memory { nfs: 4, forked: false }, Run::Reclaim])
            .unwrap();
        bench.part(&[Run::Search { nfs: 3 }]).unwrap();
        bench.part(&[Run::Start { nfs: 2, forked: false }, Run::Start { nfs: 2, forked: true }]).unwrap();
        assert_eq!(bench.failed, 0, "{:?}", bench.left_out);
        let of = |name: &str| bench.variants.iter().find(|v| v.name == name).unwrap();
        assert_eq!(of("shared/open").metrics["delivered_pps"].samples.len(), 1);
        assert!(of("shared/load").metrics.contains_key("latency_ns_p999"));
        assert!(of("shared/search").median("ndr_pps") <= of("shared/search").median("pdr_pps"));
        assert!(of("shared/search").median("late_trials_count") <= of("shared/search").median("trials_count"));
        assert!(of("shared/search").median("generator_limits_count").is_some_and(|searches| searches <= 2.0));
        assert_eq!(of("memory").median("running_nfs"), Some(4.0));
        assert!(of("memory").median("private_kib").unwrap() > 0.0);
        assert_eq!(of("reclaim").metrics["frames_held"].samples.len(), VICTIMS as usize - 1);
        if let Some(start) = bench.variants.iter().find(|v| v.name == "start") {
            assert_eq!(start.metrics["start_ms"].samples.len(), STARTS);
        }
    }
}
