//! What is told of packets while they flow: traces.

use std::sync::Barrier;

use sluice_manager::control::client::ClientError;
use sluice_manager::control::model::TraceRequest;

use crate::support::{Daemon, chain, port, service};

#[test]
fn there_is_one_trace_at_a_time() {
    let body = port("idle", "gen", "rate = 1\ncount = 1")
        + &port("busy", "gen", "rate = 5000")
        + &port("out", "sink", "")
        + &service("s", "sluice-nf-bridge", "")
        + &chain("quiet", "idle", &[], "out", "")
        + &chain("c", "busy", &["s"], "out", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("the one packet of the quiet chain has passed", |s| {
        s.chains.iter().any(|c| c.name == "quiet" && c.exit_packets == 1)
    });
    let trace = |chain: &str, timeout_ms: u64| {
        daemon.client().trace(&TraceRequest { chain: Some(chain.into()), rule: None, count: 5, timeout_ms })
    };
    // Two ask at once, and each would wait in vain: the second is refused.
    let barrier = Barrier::new(2);
    let ask = || {
        barrier.wait();
        trace("quiet", 5_000)
    };
    let answers = std::thread::scope(|scope| {
        let askers = [scope.spawn(ask), scope.spawn(ask)];
        askers.map(|asker| asker.join().unwrap())
    });
    let refused: Vec<&ClientError> = answers.iter().filter_map(|a| a.as_ref().err()).collect();
    assert!(refused.len() == 1 && refused[0].to_string().contains("another trace"), "{answers:?}");
    let told = answers.iter().find_map(|a| a.as_ref().ok()).unwrap();
    assert!(told.timed_out && told.packets.is_empty());
    // When it has ended there is room for the next.
    assert_eq!(trace("c", 20_000).unwrap().packets.len(), 5);
    daemon.stop();
}
