//! Priorities by tenant, rule and position, as the kernel and reports have them.

use sluice_api::model::{Nf, Stats};

use crate::skip::skip;
use crate::support::{Daemon, RR, chain, class, find_nf, find_port, flow_nf, port, service};
use crate::workflow::alone;

/// A flow of a tenant and one of none, each with an NF of its own.
fn two_flows(sched: &str) -> String {
    let to = |n: u8| format!("rate = 2000\ndst = \"10.9.{n}.1\"\noverload = \"wait\"");
    let pool = "per = \"flow\"\n[service.pool]\nmin = 2\nmax = 2";
    let rule = |port: &str, more: &str| format!("[[rule]]\nname = \"{port}\"\nport = \"{port}\"\nchain = \"c\"\n{more}\n");
    port("gold", "gen", &to(1))
        + &port("rest", "gen", &to(2))
        + &port("out", "sink", "")
        + &service("ids", &flow_nf(), &format!("args = [\"/dev/null\"]\n{pool}"))
        + "[[chain]]\nname = \"c\"\nservices = [\"ids\"]\negress = \"out\"\n"
        + &rule("gold", "tenant = \"gold\"\npriority = 2")
        + &rule("rest", "")
        + &format!("[sched]\ntenants = {{ gold = 2 }}\n{sched}\n")
}

/// The NFs of the tenant's flow and of the other one, once both have one.
fn both(daemon: &mut Daemon) -> [Nf; 2] {
    let stats = daemon.wait("both flows have an NF, and one of them is worth more", |s| {
        let is_busy = |nf: &Nf| nf.tx_packets > 50;
        s.nfs.len() == 2 && s.nfs.iter().all(is_busy) && s.nfs.iter().any(|nf| nf.sched.priority == 4.0)
    });
    let of = |is_gold: bool| stats.nfs.iter().find(|nf| (nf.sched.priority == 4.0) == is_gold).cloned().unwrap();
    [of(true), of(false)]
}

/// A share that changes by less is not written again.
const MARGIN: f64 = 0.05;

const REFUSED: &str = "priorities have their effect by weights alone";

#[test]
fn a_member_has_the_priority_of_its_flow_where_the_kernel_allows_it() {
    let _alone = alone();
    let mut daemon = Daemon::start("", &two_flows("priorities = \"realtime\""));
    let [gold, rest] = both(&mut daemon);
    assert_eq!((gold.sched.level, rest.sched.level, rest.sched.priority), (4, 0, 1.0));
    if daemon.log().contains(REFUSED) {
        skip("this host allows no real-time classes");
    } else {
        let pids = [&gold, &rest].map(|nf| nf.pid.unwrap());
        daemon.wait("the kernel has the priorities", |_| pids.map(class) == [(RR, 5), (RR, 1)]);
    }
    daemon.stop();
}

#[test]
fn a_member_has_the_share_of_its_flow() {
    let _alone = alone();
    let mut daemon = Daemon::start("", &two_flows(""));
    let [gold, rest] = both(&mut daemon);
    let pids = [&gold, &rest].map(|nf| nf.pid.unwrap());
    assert!(pids.map(class).iter().all(|(class, _)| *class != RR), "nobody asked for real time");
    let share = |s: &Stats, nf: &Nf| find_nf(s, &nf.name).sched.share;
    daemon.wait("the tenant's has more of the core", |s| share(s, &gold) > 1.5 * share(s, &rest) && share(s, &rest) > 0.0);
    // Without packets, shares go by priority alone.
    daemon.silence("gold", "gold");
    daemon.silence("rest", "rest");
    daemon.wait("shares go by priority", |s| (share(s, &gold) - 0.8).abs() < MARGIN && (share(s, &rest) - 0.2).abs() < MARGIN);
    daemon.stop();
}

#[test]
fn those_further_down_go_first() {
    let _alone = alone();
    let config = port("in", "gen", "rate = 5000\noverload = \"wait\"")
        + &port("out", "sink", "")
        + &["a", "b", "d"].map(|name| service(name, "sluice-nf-bridge", "")).concat()
        + &chain("c", "in", &["a", "b", "d"], "out", "")
        + "[sched]\npriorities = \"realtime\"\ndownstream_first = true\n";
    let mut daemon = Daemon::start("", &config);
    let stats = daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 1000);
    if daemon.log().contains(REFUSED) {
        skip("this host allows no real-time classes");
    } else {
        let pids = ["a.0", "b.0", "d.0"].map(|name| find_nf(&stats, name).pid.unwrap());
        daemon.wait("the kernel has their order", |_| pids.map(class) == [(RR, 1), (RR, 2), (RR, 3)]);
    }
    daemon.silence("c", "in");
    daemon.wait("without packets shares go by position", |s| {
        let share = |name: &str| find_nf(s, name).sched.share;
        (share("d.0") - 4.0 / 7.0).abs() < MARGIN && (share("a.0") - 1.0 / 7.0).abs() < MARGIN
    });
    daemon.wait_until_empty();
    daemon.stop();
}
