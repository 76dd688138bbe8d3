//! `sluice bench idle`: what the daemon costs while nothing happens.
//!
//! # Approach
//! Two namespaces joined by a chain of three NFs, without traffic. The daemon may sleep (its
//! default, `idle = "adaptive"`), and its ports support that. The cost is CPU time of all of its
//! threads, by the kernel: packet threads, the scheduler of NFs that poll, the controller of
//! weights, and the control socket.
//!
//! # Source
//! UNiS names the core that its scheduler always burns as its first limitation.

use serde_json::json;

use super::Scheduler;
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Miss, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::proc::threads_run_ns;
use crate::bench::sched::netns::{self, Side, Wires};
use crate::bench::sched::{COST, chain_of, params};
use crate::bench::setup::{Service, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "idle",
    about: "CPU time of the daemon without traffic, with NFs that sleep and with NFs that poll",
    run: |args| Lab::measure(args, &[COST], |_| plan(netns::missing_without(&["iperf3"]).as_deref())),
};

const NFS: usize = 3;
const VARIANTS: [(&str, Scheduler); 2] =
    [("cooperative", Scheduler::Cooperative), ("uncooperative/auto", Scheduler::Uncooperative)];

const GROUP: Group = Group {
    title: "A chain of three NFs without a packet",
    keys: &["nfs"],
    columns: &[
        Column::new("daemon_cpu_percent", "daemon's CPU %", 1.0, 2),
        Column::new("nf_cpu_percent", "NFs' CPU %", 1.0, 2),
        Column::new("host_packets_per_s", "packets/s", 1.0, 1),
    ],
    plotted: 1,
    form: Form::Bars,
};

/// `missing` is the reason why the experiment cannot run here.
fn plan(missing: Option<&str>) -> Trials {
    let mut plan = Trials::new(EXPERIMENT.name, nothing, vec![(GROUP, |_| true)]);
    for (name, sharing) in VARIANTS {
        let of = params(&[("nfs", json!(NFS))]);
        if let Some(why) = missing {
            plan.leave_out(name, of, why);
            continue;
        }
        plan.cases.push(Case::one(name, of, move |lab| one(lab, sharing)));
    }
    plan
}

fn setup(lab: &Lab, sharing: Scheduler, interfaces: [&str; 2]) -> Setup {
    let core = lab.cores.shared();
    let name = |i: usize| format!("nf{i}");
    let poll = sharing != Scheduler::Cooperative;
    let services = (1..=NFS).map(|i| Service {
        name: name(i),
        exec: COST.into(),
        args: vec!["--cycles".into(), "50".into()],
        core,
        poll,
        ..Service::default()
    });
    let names: Vec<String> = (1..=NFS).map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut back = chain_of("back", &[]);
    let mut there = chain_of("there", &names);
    (there.egress, back.egress) = ("outside".into(), "inside".into());
    let port = |name: &str, interface: &str, chain: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"af_packet\"\ninterface = \"{interface}\"\n\n\
             [[rule]]\nport = \"{name}\"\nchain = \"{chain}\"\n\n"
        )
    };
    Setup {
        manager_core: lab.manager_core,
        rests: true,
        services: services.collect(),
        chains: vec![there, back],
        more: port("inside", interfaces[0], "there") + &port("outside", interfaces[1], "back"),
        ..Setup::default()
    }
}

fn one(lab: &Lab, sharing: Scheduler) -> Result<Sample, Miss> {
    let wires = Wires::lay()?;
    let daemon = lab.start(&setup(lab, sharing, [wires.host(Side::Inside), wires.host(Side::Outside)]))?;
    lab.warm_up()?;
    let before = lab.read(&daemon)?;
    let spent_before = threads_run_ns(daemon.pid())?;
    lab.programs.pause(std::time::Duration::from_secs_f64(lab.args.seconds))?;
    let spent = threads_run_ns(daemon.pid())?.saturating_sub(spent_before);
    let after = lab.read(&daemon)?;
    daemon.stop()?;
    let seconds = after.tasks.seconds_since(&before.tasks);
    let nfs = (1..=NFS).filter_map(|i| after.tasks.since(&before.tasks, &format!("nf{i}")));
    // Packets that the kernel itself sends, such as neighbour discovery.
    let packets =
        |reading: &crate::bench::measure::Reading| reading.stats.ports.iter().map(|port| port.rx_packets).sum::<u64>() as f64;
    Ok(Sample::from([
        ("daemon_cpu_percent".into(), spent as f64 / 1e7 / seconds),
        ("nf_cpu_percent".into(), nfs.map(|task| task.run_ns).sum::<u64>() as f64 / 1e7 / seconds),
        ("host_packets_per_s".into(), (packets(&after) - packets(&before)) / seconds),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::daemon::tests::assert_accepted;
    use crate::bench::lab::tests::lab;

    #[test]
    fn both_kinds_are_accepted_and_may_sleep() {
        let lab = lab(1);
        for (_, sharing) in VARIANTS {
            let setup = setup(&lab, sharing, ["a0", "b0"]);
            let toml = setup.toml(std::path::Path::new("/run/x"));
            assert!(toml.contains("[manager]") && !toml.contains("idle = "), "{toml}");
            assert_accepted(&setup, &[COST]);
        }
        assert_eq!(plan(Some("no root")).cases.len(), 0);
    }
}
