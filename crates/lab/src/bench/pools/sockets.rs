//! `sluice bench nf-sockets`: NFs that each read a port of their own, beside a pool of as many.
//!
//! # Approach
//! ```text
//! sockets    sender ── veth i ── NF i                 for each NF
//! sluice     sender ── veth ── packet thread ── NF i
//! ```
//! All is in a network namespace without a name. A thread sends packets of 64 bytes round robin,
//! each by a system call, to the NFs: by their interfaces, or by as many flows. NFs swap the MAC
//! addresses and burn the cycles of [`Kind::Light`]. Packets go back by the pair by which they
//! came, where the kernel counts them (`delivered_pps`). All NFs share one core; the sender and the
//! packet thread, which sleeps while nothing comes, have the other. `nfs` varies where packets come
//! as fast as possible (`rate_pps` 0), and the rate with [`PACED_NFS`] NFs.
//!
//! `nf_cpu_percent` and `switches_per_s` are of the NFs' processes. What the kernel does for a
//! packet counts for its sender: the thread above, an NF with a socket, or the packet thread.
//!
//! # The baseline
//! An NF of `sockets` is a process with the socket of our `af_packet` ports. It has a receive ring
//! shared with the kernel, sends a burst by one system call and past the interface's queue, and
//! sleeps in `poll` while its ring is empty. That has at least as many slots as a ring of the pool.
//! It has no flow table to ask, and nothing checks what it returns. It lacks what netmap has: the
//! kernel makes a buffer for each packet, and copies it on its way in and out. The kernel's
//! scheduler alone divides the core.
//!
//! # Limits
//! Needs root. NFs with sockets end with this process, also after SIGKILL, and the namespace with
//! the last process in it. A veth pair is no NIC: the kernel receives on the core that sends. Other
//! load of the cores counts.
//!
//! # Source
//! Flurries, figures 4a to 4c, whose baseline is netmap with interrupts.

#[path = "../../../../../nfs/cost/src/work.rs"]
mod work;

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use rustix::net::SendFlags;
use serde_json::Value;
use sluice_api::config::Gen;
use sluice_dataplane::frame::{FrameCache, FramePool, Packet};
use sluice_dataplane::queue::{Arrivals, PortQueue};
use sluice_host::netns::Netns;
use sluice_host::{affinity, link, process};
use sluice_ports::af_packet::InterfaceQueue;
use sluice_ports::af_packet::socket::{self, SocketOptions};
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, Geometry};

use super::{CHAIN, Kind, NF_CPU, POOL, SWITCHES, nfs_and, ring};
use crate::bench::daemon::{Daemon, LAB};
use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Miss, Shown, Trials, nothing};
use crate::bench::linux_chain::load::Sender;
use crate::bench::measure::Sample;
use crate::bench::proc::Task;
use crate::bench::report::Variant;
use crate::bench::sched::netns::Running;
use crate::bench::sched::{COST, chain_of};
use crate::bench::setup::{Chain, Setup};
use crate::bench::table::{Column, Form, Group};
use crate::estimate::packets;
use work::Work;

pub const EXPERIMENT: Experiment = Experiment {
    name: "nf-sockets",
    about: "NFs with a packet socket each on one core, beside a pool of as many (Flurries, figures 4a to 4c)",
    run,
};

const SOCKETS: &str = "sockets";
const WAYS: [&str; 2] = [SOCKETS, "sluice"];
/// Numbers of NFs where packets come as fast as possible.
const NFS: [u32; 6] = [1, 5, 20, 45, 100, 240];
/// Packets per second, and the number of NFs that get them.
const RATES: [f64; 4] = [1e3, 1e4, 1e5, 3e5];
const PACED_NFS: u32 = 20;
const MTU: u32 = 1_500;
/// Bytes that a slot of an NF's ring and a frame hold of a packet.
const ROOM: usize = 128;
/// Frames of an NF: a burst comes and another goes.
const FRAMES: u32 = 2 * BURST as u32;
/// How the names of the sender's ends begin.
const SENDERS: &str = "to";
const DELIVERED: &str = "delivered_pps";
/// Time limit for an NF to be ready, and for the first packet to come back.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of the line that an NF says then.
const LINE: u64 = 256;

const GROUP: Group = Group {
    title: "NFs on one core, each with a port or a flow of its own, as fast as packets come",
    keys: &["nfs"],
    columns: &[
        Column::new(DELIVERED, "delivered kpps", 1e3, 1),
        NF_CPU,
        SWITCHES,
        Column::new("offered_pps", "offered kpps", 1e3, 1),
    ],
    plotted: 2,
    form: Form::Lines("nfs"),
};
const PACED: Group = Group { title: "20 of them, by rate", keys: &["rate_pps"], form: Form::Lines("rate_pps"), ..GROUP };

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    super::warn_of_small_pages();
    Lab::measure(args, &[COST, LAB], |_| plan(missing().as_deref()))
}

/// Why the experiment cannot run here, if so.
fn missing() -> Option<String> {
    Netns::private().err().map(|error| format!("it needs root, for a network namespace: {error}; run it with sudo"))
}

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let shown: Vec<Shown> = vec![(GROUP, is_flood), (PACED, |variant| !is_flood(variant))];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, shown);
    let loads = NFS.map(|nfs| (nfs, 0.0)).into_iter().chain(RATES.map(|rate| (PACED_NFS, rate)));
    for ((nfs, rate), way) in loads.flat_map(|load| WAYS.map(|way| (load, way))) {
        let of = nfs_and(nfs, "rate_pps", rate);
        match missing {
            Some(why) => plan.leave_out(way, of, why),
            None => plan.cases.push(Case::one(way, of, move |lab| one(lab, way, nfs, rate))),
        }
    }
    plan
}

fn is_flood(variant: &Variant) -> bool {
    variant.params.get("rate_pps").and_then(Value::as_f64) == Some(0.0)
}

/// Names of the NF's and of the sender's end of a pair.
fn ends(pair: u32) -> [String; 2] {
    [format!("nf{pair}"), format!("{SENDERS}{pair}")]
}

/// Makes a namespace with pairs of interfaces, which end with it.
fn lay(pairs: u32) -> anyhow::Result<Netns> {
    let ns = Netns::private().context("cannot make a network namespace")?;
    let made = ns.visit(|| {
        for pair in 0..pairs {
            let [near, far] = ends(pair);
            link::make_pair(&near, &far, ns.fd(), MTU)?;
            for end in [&near, &far] {
                link::plain(end)?;
                link::up(end)?;
            }
        }
        Ok::<_, io::Error>(())
    });
    made.context("cannot make pairs of interfaces")?;
    Ok(ns)
}

/// Runs a job in a namespace and on a core; threads and processes that it starts stay there.
fn within<T: Send>(ns: &Netns, core: usize, job: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    ns.visit(|| {
        affinity::pin(core)?;
        job()
    })
}

/// NFs that run, and end with it.
enum Started {
    Sockets(Vec<Running>),
    Pool(Box<Daemon>),
}

impl Started {
    /// Starts processes with a socket each, and waits until all of them can receive.
    fn sockets(lab: &Lab, ns: &Netns, nfs: u32) -> anyhow::Result<Self> {
        let (program, slots, cycles) = (lab.programs.path(LAB), ring(nfs).to_string(), Kind::Light.cycles().to_string());
        within(ns, lab.cores.shared(), move || {
            let start = |number: u32| -> anyhow::Result<Running> {
                let [interface, _] = ends(number);
                let mut command = Command::new(&program);
                command.args(["socket-nf", &interface, &slots, &cycles]).stdin(Stdio::piped()).stdout(Stdio::piped());
                Ok(Running(command.spawn().context("cannot start an NF")?))
            };
            let mut started = (0..nfs).map(start).collect::<anyhow::Result<Vec<_>>>()?;
            for nf in &mut started {
                wait_until_ready(nf.0.stdout.as_mut().context("an NF has no output")?)?;
            }
            Ok(Self::Sockets(started))
        })
    }

    /// Starts a daemon with a pool.
    fn pool(lab: &Lab, ns: &Netns, nfs: u32) -> anyhow::Result<Self> {
        let (programs, setup) = (&lab.programs, setup(lab, nfs));
        // Not `lab.start`: a lab stays on its thread.
        Ok(Self::Pool(Box::new(ns.visit(|| Daemon::start(programs, &setup))?)))
    }

    /// Processes of the NFs.
    fn pids(&self, lab: &Lab) -> anyhow::Result<Vec<u32>> {
        Ok(match self {
            Self::Sockets(nfs) => nfs.iter().map(Running::id).collect(),
            Self::Pool(daemon) => lab.read(daemon)?.stats.nfs.iter().filter_map(|nf| nf.pid).collect(),
        })
    }

    /// Ends them.
    ///
    /// # Errors
    /// One has ended before, or the daemon leaves something behind.
    fn end(self, lab: &Lab) -> anyhow::Result<()> {
        match self {
            Self::Sockets(mut nfs) => {
                for nf in &mut nfs {
                    let ended = nf.ended()?;
                    ensure!(ended.is_none(), "an NF ended while it was measured; its error is above");
                }
                Ok(())
            }
            Self::Pool(daemon) => {
                lab.read(&daemon)?;
                daemon.stop()
            }
        }
    }
}

/// Waits for the line by which an NF says that it can receive.
///
/// # Errors
/// It says none, or too long a one.
fn wait_until_ready(output: &mut ChildStdout) -> anyhow::Result<()> {
    let has_said = process::wait_readable(output.as_fd(), Some(PATIENCE.as_millis() as u64))?;
    ensure!(has_said, "an NF says nothing within {PATIENCE:?}");
    let mut line = String::new();
    BufReader::new(output.take(LINE)).read_line(&mut line).context("cannot read what an NF says")?;
    ensure!(line.ends_with('\n'), "an NF does not start; its error is above");
    Ok(())
}

/// A pool whose packets leave by the port by which they came.
fn setup(lab: &Lab, nfs: u32) -> Setup {
    let [interface, _] = ends(0);
    let more = format!(
        "[[port]]\nname = \"wire\"\nkind = \"af_packet\"\ninterface = \"{interface}\"\n\n\
         [[rule]]\nport = \"wire\"\nchain = \"{CHAIN}\"\n"
    );
    let chains = vec![Chain { egress: "wire".into(), ..chain_of(CHAIN, &[POOL]) }];
    Setup { rests: true, traffic: Vec::new(), chains, more, ..super::setup(lab, Kind::Light, nfs, 0.0) }
}

/// Sends packets of as many flows as there are NFs, each by the pair of its number, or all by one.
fn send(lab: &Lab, ns: &Netns, pairs: u32, flows: u32, rate: f64) -> anyhow::Result<Sender> {
    let packets = packets::crafted(&Gen { flows, ..Gen::default() })?;
    within(ns, lab.manager_core, move || {
        let open = |pair: u32| -> anyhow::Result<OwnedFd> {
            let [_, interface] = ends(pair);
            let index = link::index(&interface)?;
            socket::probe(index, false).map_err(|(doing, error)| anyhow!("cannot {doing} {interface}: {error}"))
        };
        let sockets = (0..pairs).map(open).collect::<anyhow::Result<Vec<_>>>()?;
        Sender::of(rate, move |number| {
            let flow = (number % u64::from(flows)) as usize;
            rustix::net::send(&sockets[flow % sockets.len()], &packets[flow], SendFlags::DONTWAIT).is_ok()
        })
    })
}

fn one(lab: &Lab, way: &str, nfs: u32, rate: f64) -> Result<Sample, Miss> {
    let pairs = if way == SOCKETS { nfs } else { 1 };
    // Whatever happens, the sender ends first, then the NFs, then the namespace.
    let ns = lay(pairs)?;
    let started = if way == SOCKETS { Started::sockets(lab, &ns, nfs)? } else { Started::pool(lab, &ns, nfs)? };
    let sender = send(lab, &ns, pairs, nfs, rate)?;
    let began = Instant::now();
    while returned(&ns)? == 0 {
        if began.elapsed() > PATIENCE {
            return Err(anyhow!("no packet came back within {PATIENCE:?}; {} were sent", sender.sent()).into());
        }
        lab.programs.pause(Duration::from_millis(10))?;
    }
    lab.warm_up()?;
    let pids = started.pids(lab)?;
    let before = Counts::now(&ns, &sender, &pids)?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
    let after = Counts::now(&ns, &sender, &pids)?;
    drop(sender);
    started.end(lab)?;
    Ok(sample(&before, &after))
}

/// Counts of the host at one moment.
struct Counts {
    at: Instant,
    sent: u64,
    /// Packets that came back to the sender's ends.
    back: u64,
    /// CPU time of all NFs, in nanoseconds, and their context switches.
    run_ns: u64,
    switches: u64,
}

impl Counts {
    fn now(ns: &Netns, sender: &Sender, pids: &[u32]) -> anyhow::Result<Self> {
        let tasks: Vec<Task> = pids.iter().filter_map(|pid| Task::read(Path::new("/proc"), *pid)).collect();
        Ok(Self {
            at: Instant::now(),
            sent: sender.sent(),
            back: returned(ns)?,
            run_ns: tasks.iter().map(|task| task.run_ns).sum(),
            switches: tasks.iter().map(|task| task.voluntary + task.involuntary).sum(),
        })
    }
}

/// Packets that came back to the sender's ends.
fn returned(ns: &Netns) -> anyhow::Result<u64> {
    Ok(received(&ns.visit(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?))
}

/// Packets that the sender's ends received, from `/proc/net/dev`.
fn received(devices: &str) -> u64 {
    let of = |line: &str| -> Option<u64> {
        let (_, counts) = line.trim_start().strip_prefix(SENDERS)?.split_once(':')?;
        // The first number is bytes.
        counts.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    devices.lines().filter_map(of).sum()
}

/// What came between two readings.
fn sample(before: &Counts, after: &Counts) -> Sample {
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
    let per_s = |of: fn(&Counts) -> u64| of(after).saturating_sub(of(before)) as f64 / seconds;
    Sample::from([
        ("offered_pps".into(), per_s(|counts| counts.sent)),
        (DELIVERED.into(), per_s(|counts| counts.back)),
        (NF_CPU.metric.into(), per_s(|counts| counts.run_ns) / 1e7),
        (SWITCHES.metric.into(), per_s(|counts| counts.switches)),
    ])
}

/// The NF with a socket: takes packets of an interface of its namespace, swaps their addresses,
/// burns `cycles` for each, and sends them back, until its standard input ends.
///
/// # Errors
/// The interface, or memory for frames.
pub fn run_nf(interface: &str, slots: u32, cycles: u64) -> anyhow::Result<()> {
    let options = SocketOptions { interface, slots, room: ROOM, promiscuous: true, bypass: true, fanout: None };
    let mut queue = InterfaceQueue::open(&options).map_err(|(doing, error)| anyhow!("cannot {doing} {interface}: {error}"))?;
    let stride = Geometry::stride_for(ROOM) as u32;
    let (_memory, arena) = Arena::create(Geometry { first: 0, frames: FRAMES, stride }, false)?;
    let mut frames = FrameCache::new(FramePool::new(FRAMES), arena, FRAMES as usize);
    let mut work = Work::calibrated();
    let steps = work.steps(cycles);
    // The other end of the pipe is the experiment's, and closes however that ends.
    std::thread::spawn(|| {
        if io::copy(&mut io::stdin(), &mut io::sink()).is_ok() {
            std::process::exit(0);
        }
    });
    println!("ready; a step takes {:.2} cycles", work.cycles_per_step());
    let mut packets = [Packet::default(); BURST];
    loop {
        let n = queue.rx_burst(&mut packets, &mut frames, 0);
        if n == 0 {
            if let Arrivals::Readable(socket) = queue.arrivals() {
                process::wait_readable(socket, None)?;
            }
            continue;
        }
        for packet in &packets[..n] {
            let Some(mut macs) = frames.arena().read_array::<12>(packet.frame, packet.offset) else { continue };
            macs.rotate_left(6);
            frames.arena().write_array(packet.frame, packet.offset, &macs);
            work.run(&macs, steps);
        }
        let sent = queue.tx_burst(&packets[..n], &mut frames, 0);
        // The kernel had no room for the rest.
        frames.free_packets(&packets[sent..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::{assert_accepted, built};
    use crate::bench::lab::tests::lab;
    use crate::skip::skip;

    #[test]
    fn both_have_the_same_loads_or_none_runs() {
        let all = plan(None);
        assert_eq!(all.cases.len(), 2 * (6 + 4));
        let [sockets, ours] = &all.cases[4..6] else { panic!() };
        assert_eq!((sockets.name.as_str(), ours.name.as_str(), &sockets.params), ("sockets", "sluice", &ours.params));
        assert!(is_flood(&Variant::new("sluice", ours.params.clone())));
        let none = plan(Some("it needs root"));
        assert_eq!((none.cases.len(), none.left_out.len()), (0, 20));
    }

    #[test]
    fn the_daemon_accepts_a_pool_of_each_size() {
        for nfs in NFS {
            let setup = setup(&lab(1), nfs);
            let text = setup.toml(Path::new("/run/x"));
            assert!(!text.contains("idle = ") && !text.contains("\"gen\""), "{text}");
            assert_accepted(&setup, &[COST]);
        }
    }

    #[test]
    fn an_nf_is_ready_once_it_has_said_a_line() {
        let of = |script: &str| {
            let mut nf = Running(Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap());
            wait_until_ready(nf.0.stdout.as_mut().unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(of("echo ready"), Ok(()));
        for script in ["true", "printf ready", "exec tr '\\0' x < /dev/zero"] {
            assert_eq!(of(script).unwrap_err(), "an NF does not start; its error is above", "{script}");
        }
    }

    #[test]
    fn rates_are_of_a_window() {
        let devices = " face |bytes packets\n    lo: 1 2 0\n   nf0: 60 7 0\n   to0: 6000     100    0\n  to12: 60 1 0\n";
        assert_eq!(received(devices), 101);
        let began = Instant::now();
        let at = |s: u64| {
            let at = began + Duration::from_secs(s);
            Counts { at, sent: 400 * s, back: 300 * s, run_ns: 250_000_000 * s, switches: 200 * s }
        };
        let want = [(DELIVERED, 300.0), ("nf_cpu_percent", 25.0), ("offered_pps", 400.0), ("switches_per_s", 200.0)];
        assert_eq!(sample(&at(0), &at(2)), Sample::from(want.map(|(metric, value)| (metric.to_string(), value))));
    }

    #[test]
    fn packets_come_back_from_both() {
        if let Some(why) = missing() {
            return skip(why);
        }
        let Some(programs) = built(&[COST, LAB]) else { return };
        let args = BenchArgs { seconds: 0.1, repeats: 1, ..BenchArgs::default() };
        let lab = Lab::with(&args, programs).unwrap();
        for way in WAYS {
            // It fails if none does. On a busy host the window may be too short for one more.
            assert!(one(&lab, way, 3, 10_000.0).unwrap()["offered_pps"] >= 0.0, "{way}");
        }
    }
}
