//! `sluice bench peers [--with DIR]`: Linux, and other data planes where they are installed, beside
//! ours.
//!
//! # Approach
//! Linux is always there: its chains run in turns with the same chains of ours ([`linux_chain`]).
//! With `--with`, the data planes that a folder has adapters of run after them.
//!
//! An adapter ([`adapter`]) says how a peer is started for a chain, on which number of cores, and
//! where it prints its rate. It runs in turns with a chain of as many bridges of ours, on the same
//! cores and no more of them: the generator, the daemon and the NFs in one packet thread
//! (`sluice/inline`); NFs that share a second core (`sluice/shared`), where the peer's share one or
//! cores are few; or NFs that poll on cores of their own (`sluice/poll`). Our packets have 64
//! bytes on the wire and are made in memory; the peer's are as its adapter says. `core_pps` is the
//! rate over the number of cores; `of_peer` and `of_peer_per_core` are ours relative to the peer's,
//! within the turn.
//!
//! # Limits
//! What is comparable differs from peer to peer; its adapter says it in words, which are printed
//! below the result. A peer's rate is the one that it prints: nothing else counts its packets. A
//! peer warms up and ends as its adapter says.

mod adapter;
mod process;

use std::rc::Rc;

use anyhow::Context;
use serde_json::json;
use sluice_api::config::Run;

use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Derive, Lab, Row, Shown, Trials};
use crate::bench::linux_chain;
use crate::bench::measure::Sample;
use crate::bench::report::{Params, Variant};
use crate::bench::setup::{Chain, PACKET_BYTES, Service, Setup, Traffic};
use crate::bench::table::{Column, Form, Group};
use adapter::{Adapter, RunValues};

pub const EXPERIMENT: Experiment =
    Experiment { name: "peers", about: "Linux beside ours, and other data planes that are installed: peers [--with DIR]", run };

const NF: &str = "sluice-nf-bridge";
const FLOWS: u32 = 16;
const RING: u32 = 2048;
const DELIVERED: &str = "delivered_pps";
const PER_CORE: &str = "core_pps";
/// How the names of our variants begin.
const OURS: &str = "sluice/";

const GROUP: Group = Group {
    title: "Chains of other data planes and ours, 64-byte packets",
    keys: &["peer", "chain_length"],
    columns: &[
        Column::new(DELIVERED, "delivered Mpps", 1e6, 3),
        Column::new("cores_count", "cores", 1.0, 0),
        Column::new(PER_CORE, "Mpps a core", 1e6, 3),
        Column::new("of_peer", "of peer", 1.0, 2),
        Column::new("of_peer_per_core", "of peer, a core", 1.0, 2),
    ],
    plotted: 1,
    form: Form::Bars,
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let adapters = args.with.as_deref().map(adapter::read_all).transpose()?.unwrap_or_default();
    let adapters: Vec<Rc<Adapter>> = adapters.into_iter().map(Rc::new).collect();
    let mut nfs = vec![NF];
    nfs.extend(linux_chain::NFS);
    let lab = Lab::here(args, &nfs)?;
    let ended = lab.run(&plan(&lab, linux_chain::plan(), &adapters));
    for adapter in adapters.iter().filter(|adapter| adapter.missing().is_none()) {
        println!("{}: {}", adapter.name, adapter.what_is_comparable.trim());
    }
    ended
}

/// How our NFs run on a number of cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Inline,
    Shared,
    Poll,
}

impl Way {
    /// Beside a peer on this number of cores; `is_shared` says that its NFs share one.
    fn of(cores: usize, chain_length: u32, is_shared: bool) -> Self {
        match cores {
            0 | 1 => Self::Inline,
            cores if cores > chain_length as usize && !is_shared => Self::Poll,
            _ => Self::Shared,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Inline => "sluice/inline",
            Self::Shared => "sluice/shared",
            Self::Poll => "sluice/poll",
        }
    }

    fn cores(self, chain_length: u32) -> usize {
        match self {
            Self::Inline => 1,
            Self::Shared => 2,
            Self::Poll => 1 + chain_length as usize,
        }
    }
}

/// The chains of Linux, and those of adapters.
fn plan(lab: &Lab, linux: Trials, adapters: &[Rc<Adapter>]) -> Trials {
    let mut plan = with_linux(linux);
    let cores: Vec<usize> = std::iter::once(lab.manager_core).chain(lab.cores.besides_manager()).collect();
    for adapter in adapters {
        for hops in adapter.chain_lengths.iter().copied() {
            let need = adapter.cores(hops);
            let params = Params::from([
                ("peer".to_string(), json!(adapter.name)),
                ("chain_length".to_string(), json!(hops)),
                ("packet_bytes".to_string(), json!(PACKET_BYTES)),
            ]);
            let why = match adapter.missing() {
                Some(program) => Some(format!("there is no program {program} here; install it, or put it into PATH")),
                None if need > cores.len() => Some(format!("it needs {need} cores, and there are {}", cores.len())),
                None => None,
            };
            if let Some(why) = why {
                plan.leave_out(&adapter.name, params, why);
                continue;
            }
            let cores = &cores[..need];
            plan.cases.push(ours(Way::of(need, hops, adapter.shares_core()), hops, params.clone(), cores));
            plan.cases.push(theirs(adapter, hops, params, cores));
        }
    }
    plan
}

/// The chains of Linux and ours, to which those of other peers are added.
fn with_linux(linux: Trials) -> Trials {
    let derive: Derive = |rows| {
        of_peers(rows);
        linux_chain::of_linux(rows)
    };
    let shown: Vec<Shown> = vec![(linux_chain::GROUP, |variant| !is_of_peer(variant)), (GROUP, is_of_peer)];
    Trials { experiment: EXPERIMENT.name, derive, groups: shown, ..linux }
}

/// Whether a variant is of an adapter's chain or of ours beside it.
fn is_of_peer(variant: &Variant) -> bool {
    variant.params.contains_key("peer")
}

fn ours(way: Way, hops: u32, params: Params, cores: &[usize]) -> Case {
    let cores = cores.to_vec();
    Case::one(way.name(), params, move |lab| {
        let mut sample = lab.flow(&setup(way, hops, &cores))?;
        put_cores(&mut sample, way.cores(hops));
        Ok(sample)
    })
}

fn theirs(adapter: &Rc<Adapter>, hops: u32, params: Params, cores: &[usize]) -> Case {
    let (adapter, cores) = (adapter.clone(), cores.to_vec());
    Case::one(adapter.name.clone(), params, move |lab| {
        let folder = tempfile::Builder::new().prefix("sluice-peer-").tempdir().context("cannot make a temporary folder")?;
        let values = RunValues {
            cores: &cores,
            seconds: lab.args.seconds,
            packet_bytes: PACKET_BYTES,
            flows: FLOWS,
            chain_length: hops,
            folder: folder.path(),
        };
        let mut sample = Sample::from([(DELIVERED.into(), process::delivered_pps(&adapter, &values, &lab.programs)?)]);
        put_cores(&mut sample, cores.len());
        Ok(sample)
    })
}

/// A chain of bridges on these cores, of which the first is the packet thread's.
fn setup(way: Way, hops: u32, cores: &[usize]) -> Setup {
    let core = |number: u32| match way {
        Way::Poll => number as usize,
        Way::Inline | Way::Shared => 1,
    };
    let bridge = |number: u32| Service {
        name: format!("b{number}"),
        exec: NF.into(),
        core: cores.get(core(number)).copied().unwrap_or(cores[0]),
        poll: way == Way::Poll,
        ring: RING,
        ..Service::default()
    };
    let services: Vec<Service> = (1..=hops).map(bridge).collect();
    let run = if way == Way::Inline { Run::Inline } else { Run::Isolated };
    Setup {
        manager_core: cores[0],
        traffic: vec![Traffic { flows: FLOWS, ..Traffic::default() }],
        chains: vec![Chain { services: services.iter().map(|service| service.name.clone()).collect(), run, ..Chain::default() }],
        services,
        ..Setup::default()
    }
}

fn put_cores(sample: &mut Sample, cores: usize) {
    let per_core = sample.get(DELIVERED).map(|pps| pps / cores as f64);
    sample.insert("cores_count".into(), cores as f64);
    sample.extend(per_core.map(|pps| (PER_CORE.to_string(), pps)));
}

/// Adds each of our rates relative to the peer's with the same chain.
fn of_peers(rows: &mut [Row]) -> Vec<Row> {
    let all = rows.to_vec();
    for row in rows.iter_mut().filter(|row| row.name.starts_with(OURS) && row.params.contains_key("peer")) {
        let Some(peer) = all.iter().find(|other| !other.name.starts_with(OURS) && other.params == row.params) else { continue };
        for (ratio, metric) in [("of_peer", DELIVERED), ("of_peer_per_core", PER_CORE)] {
            let both = row.get(metric).zip(peer.get(metric).filter(|theirs| *theirs > 0.0));
            row.put(ratio, both.map(|(ours, theirs)| ours / theirs));
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::adapter::tests::shell;
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::nothing;
    use crate::bench::lab::tests::lab;

    #[test]
    fn a_peer_runs_in_turns_with_a_chain_of_ours() {
        let mut absent = shell("absent", "");
        absent.programs = vec!["sluice-no-such-program".into()];
        let mut lab = lab(1);
        // A core that this process may use.
        lab.manager_core = lab.cores.besides_manager()[0];
        let mut linux = Trials::new("linux-chain", nothing, Vec::new());
        linux.cases.push(Case::one("linux", Params::new(), |_| Ok(Sample::new())));
        let plan = plan(&lab, linux, &[Rc::new(shell("stub", "echo rate 2")), Rc::new(absent)]);
        let names: Vec<&str> = plan.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["linux", "sluice/inline", "stub", "sluice/inline", "stub"]);
        assert_eq!(plan.cases[3].params["chain_length"], 3);
        assert_eq!(plan.left_out.len(), 2);
        assert!(plan.left_out[0].why.starts_with("there is no program sluice-no-such-program here"));
        let rows = (plan.cases[2].run)(&lab).unwrap();
        assert_eq!((rows[0].get(DELIVERED), rows[0].get(PER_CORE)), (Some(2000.0), Some(2000.0)));
    }

    #[test]
    fn ours_has_no_more_cores_than_the_peer() {
        let ways = [(1, 1), (1, 3), (2, 1), (2, 3), (3, 3), (4, 3), (7, 3)].map(|(cores, hops)| Way::of(cores, hops, false));
        assert_eq!(ways, [Way::Inline, Way::Inline, Way::Poll, Way::Shared, Way::Shared, Way::Poll, Way::Poll]);
        assert_eq!([1, 2, 6].map(|cores| Way::of(cores, 1, true)), [Way::Inline, Way::Shared, Way::Shared]);
        let cores = |way: Way, hops: u32, cores: &[usize]| {
            setup(way, hops, cores).services.iter().map(|service| service.core).collect::<Vec<_>>()
        };
        assert_eq!(cores(Way::Poll, 3, &[4, 5, 6, 7]), [5, 6, 7]);
        assert_eq!(cores(Way::Shared, 3, &[4, 5, 6]), [5, 5, 5]);
        assert_eq!((Way::Poll.cores(3), Way::Shared.cores(3), Way::Inline.cores(3)), (4, 2, 1));
        for way in [Way::Inline, Way::Shared, Way::Poll] {
            assert_accepted(&setup(way, 1, &[0, 1]), &[NF]);
        }
    }

    #[test]
    fn ratios_are_of_the_same_chain() {
        let row = |name: &str, hops: u32, pps: f64, cores: usize| {
            let mut sample = Sample::from([(DELIVERED.into(), pps)]);
            put_cores(&mut sample, cores);
            Row::new(name, &Params::from([("chain_length".into(), json!(hops)), ("peer".into(), json!("vpp"))]), sample)
        };
        let mut rows =
            [row("sluice/shared", 3, 6.0, 2), row("vpp", 3, 4.0, 1), row("sluice/inline", 1, 1.0, 1), row("vpp", 2, 9.0, 1)];
        of_peers(&mut rows);
        assert_eq!((rows[0].get("of_peer"), rows[0].get("of_peer_per_core")), (Some(1.5), Some(0.75)));
        assert_eq!((rows[1].get("of_peer"), rows[2].get("of_peer")), (None, None));
    }
}
