//! `sluice bench crash-loop`: flows beside an NF of another tenant that ends again and again.
//!
//! # Approach
//! A chain with half a million flows gets half of its measured rate. Beside it, a chain of another
//! tenant has one NF, which is killed as soon as it runs. The result is what the first chain loses:
//! packets refused at its gate, and packets dropped inside. A variant without kills shows the
//! losses that the host causes. The rate is measured once, before the first variant: what the chain
//! delivers with the same flows under overload.
//!
//! Both NFs have the same core where the host has no more. For up to a tick, its kernel
//! gives that to a starting NF or to the daemon's threads, and its hypervisor to another guest. A
//! ring that holds fewer packets loses what comes meanwhile. The question is another one, so
//! [`RING`] holds more than that, also where the rate is measured.
//!
//! # Limits
//! A generator leaves out what was due while its packet thread was away: the offered rate is what
//! came.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::bench::daemon::Daemon;
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::sched::params;
use crate::bench::setup::{Chain, Service, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};
use sluice_api::model::Stats;

pub const EXPERIMENT: Experiment = Experiment {
    name: "crash-loop",
    about: "half a million flows while another tenant's NF ends again and again",
    run: |args| Lab::measure(args, &[NF], |_| plan()),
};

const NF: &str = "sluice-nf-bridge";
/// Port of the undisturbed chain.
const IN: &str = "in";
/// Flows of the undisturbed chain.
const FLOWS: u32 = 500_000;
/// Slots of the rings. Up to the high watermark (80 %) they hold 7 ms of 7.5 million packets a
/// second, more than a tick of a kernel with 250 a second.
const RING: u32 = 65_536;
/// Frames of each tenant's memory: both rings, and some on their way.
const FRAMES: u32 = 4 * RING;
/// Offered load, as a part of the chain's capacity.
const LOAD: f64 = 0.5;
/// Longest measurement of that capacity, in seconds.
const MEASURED_FOR: f64 = 3.0;
/// Polling interval for the other NF, with and without kills: the daemon's replies use the NFs'
/// core.
const LOOK_EVERY: Duration = Duration::from_millis(20);

const GROUP: Group = Group {
    title: "A chain with 500,000 flows beside an NF that ends again and again",
    keys: &["flows", "kills"],
    columns: &[
        Column::new("offered_pps", "offered Mpps", 1e6, 3),
        Column::new("delivered_pps", "delivered Mpps", 1e6, 3),
        Column::new("lost_count", "lost", 1.0, 0),
        Column::new("killed_count", "killed", 1.0, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 1),
    ],
    plotted: 1,
    form: Form::Bars,
};

fn plan() -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    let carried = Rc::new(Cell::new(None));
    for (name, kills) in [("calm", false), ("crash-loop", true)] {
        let of = params(&[("flows", FLOWS.into()), ("kills", u64::from(kills).into())]);
        let carried = carried.clone();
        plan.cases.push(Case::one(name, of, move |lab| {
            let pps = match carried.get() {
                Some(pps) => pps,
                None => measure(lab)?,
            };
            carried.set(Some(pps));
            one(lab, LOAD * pps, kills)
        }));
    }
    plan
}

/// The chain, with this many packets per second, and the other tenant's chain beside it.
fn setup(rate: f64) -> Setup {
    let service =
        |name: &str, tenant| Service { name: name.into(), exec: NF.into(), tenant: Some(tenant), ring: RING, ..Service::default() };
    let chain = |name: &str, of: &str| Chain { name: name.into(), services: vec![of.into()], ..Chain::default() };
    let traffic = |name: &str, chain: &str, rate, flows| Traffic {
        name: name.into(),
        chain: chain.into(),
        rate,
        flows,
        ..Traffic::default()
    };
    Setup {
        frames: FRAMES,
        traffic: vec![traffic(IN, "kept", rate, FLOWS), traffic("other", "other", 1_000.0, 16)],
        services: vec![service("kept", "blue"), service("other", "red")],
        chains: vec![chain("kept", "kept"), chain("other", "other")],
        ..Setup::default()
    }
}

/// Starts a daemon and waits until it knows all flows.
fn start(lab: &Lab, rate: f64) -> Result<Daemon, Miss> {
    let daemon = lab.start(&setup(rate))?;
    daemon.wait_for("all flows to be known", Duration::from_secs(60), |daemon| {
        Ok((daemon.stats()?.status.flows >= u64::from(FLOWS)).then_some(()))
    })?;
    Ok(daemon)
}

/// Capacity of the chain, in packets per second.
fn measure(lab: &Lab) -> Result<f64, Miss> {
    let daemon = start(lab, 0.0)?;
    let before = daemon.stats()?;
    lab.programs.pause(Duration::from_secs_f64(lab.args.seconds.min(MEASURED_FOR)))?;
    let after = daemon.stats()?;
    daemon.stop()?;
    Ok(outcome(&before, &after, 0)["delivered_pps"])
}

fn one(lab: &Lab, rate: f64, kills: bool) -> Result<Sample, Miss> {
    let daemon = start(lab, rate)?;
    let before = daemon.stats()?;
    let began = Instant::now();
    let mut killed = 0u64;
    let mut last = None;
    while began.elapsed().as_secs_f64() < lab.args.seconds {
        lab.programs.pause(LOOK_EVERY)?;
        let Some(pid) = daemon.nf("other.0").ok().and_then(|nf| nf.pid).filter(|_| kills) else { continue };
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| last != Some(pid));
        let Some(process) = process.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()) else { continue };
        killed += u64::from(rustix::process::pidfd_send_signal(&process, Signal::KILL).is_ok());
        last = Some(pid);
    }
    let after = daemon.stats()?;
    daemon.stop()?;
    Ok(outcome(&before, &after, killed))
}

fn outcome(before: &Stats, after: &Stats, killed: u64) -> Sample {
    let chain = |stats: &Stats| stats.chains.iter().find(|chain| chain.name == "kept").cloned().unwrap_or_default();
    let (then, now) = (chain(before), chain(after));
    let lost = |chain: &sluice_api::model::Chain| chain.drops.values().sum::<u64>();
    let seconds = (after.time_ns - before.time_ns).max(1) as f64 / 1e9;
    let came = |stats: &Stats| stats.ports.iter().find(|port| port.name == IN).map_or(0, |port| port.rx_packets);
    let mut out = Sample::new();
    out.insert("offered_pps".into(), (came(after) - came(before)) as f64 / seconds);
    out.insert("delivered_pps".into(), (now.exit_packets - then.exit_packets) as f64 / seconds);
    out.insert("lost_count".into(), (lost(&now) - lost(&then)) as f64);
    out.insert("killed_count".into(), killed as f64);
    if let Some(ns) = crate::bench::stats::since(&now.latency_ns, &then.latency_ns).quantile(0.99) {
        out.insert("latency_ns_p99".into(), ns as f64);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;

    #[test]
    fn what_the_other_chain_loses_does_not_count() {
        let chain = |name: &str, left: u64, lost: u64| sluice_api::model::Chain {
            name: name.into(),
            exit_packets: left,
            drops: [("entry".to_string(), lost)].into(),
            ..Default::default()
        };
        let port = |name: &str, rx_packets| sluice_api::model::Port { name: name.into(), rx_packets, ..Default::default() };
        let stats = |time_ns, came, kept, other| {
            let ports = vec![port("other", 8 * came), port(IN, came)];
            Stats { time_ns, ports, chains: vec![kept, other], ..Stats::default() }
        };
        let before = stats(0, 12, chain("kept", 10, 1), chain("other", 5, 0));
        let after = stats(2_000_000_000, 36, chain("kept", 30, 4), chain("other", 5, 900));
        let out = outcome(&before, &after, 7);
        assert_eq!((out["offered_pps"], out["delivered_pps"]), (12.0, 10.0));
        assert_eq!((out["lost_count"], out["killed_count"]), (3.0, 7.0));
    }

    #[test]
    fn the_setup_is_one_that_the_daemon_takes() {
        let text = setup(7.5).toml(std::path::Path::new("/tmp"));
        assert!(text.contains("tenant = \"blue\"") && text.contains("tenant = \"red\""), "{text}");
        assert!(text.contains("rate = 7.5"), "{text}");
        assert_accepted(&setup(7.5), &[NF]);
        assert_eq!(plan().cases.len(), 2);
    }
}
