//! Harmful requests are refused, or warned of, before they take effect.

use sluice_api::client::ClientError;
use sluice_api::model::{Apply, ChainState, NfState};
use sluice_api::{ApiError, ErrorKind};

use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, port, service};

/// Two chains that pass one service, and a port for both.
fn two_chains() -> String {
    port("in", "gen", "rate = 1000\nflows = 8")
        + &port("away", "sink", "")
        + &service("a", "sluice-nf-bridge", "")
        + &service("b", "sluice-nf-bridge", "")
        + &chain("one", "in", &["a", "b"], "away", "")
        + &chain("two", "in", &["b"], "away", "on_failure = \"bypass\"")
}

#[track_caller]
fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> ApiError {
    match answer {
        Err(ClientError::Api(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_instance_that_an_open_chain_passes_is_not_removed_by_mistake() {
    let mut daemon = Daemon::start("", &two_chains());
    daemon.wait("packets flow", |s| find_port(s, "away").tx_packets > 200);
    let mut client = daemon.client();
    let error = refusal(client.remove_nf("a.0"));
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert_eq!(error.error, "a.0 is the last instance of service `a`, which chain `one` passes: its packets would be dropped");
    assert_eq!(error.hint, "start another one first (`sluice nf add a`), or give --force (in the API ?force=true)");
    let error = refusal(client.remove_nf("b.0"));
    assert!(error.error.contains("chains `one`, `two` pass"), "{error}");
    let stats = daemon.stats();
    assert!(stats.nfs.iter().all(|nf| nf.state == NfState::Running) && stats.chains.iter().all(|c| c.state == ChainState::Open));
    // With a second instance, a.0 is not the last.
    client.add_nf("a", None).unwrap();
    daemon.wait("it runs", |s| s.nfs.len() == 3 && find_nf(s, "a.1").state == NfState::Running);
    client.remove_nf("a.0").unwrap();
    // A chain that is not open, or no chain at all, needs no last instance.
    client.force_remove_nf("a.1").unwrap();
    daemon.wait("the chain is down", |s| find_chain(s, "one").state == ChainState::Down);
    let error = refusal(client.remove_nf("b.0"));
    assert!(error.error.contains("which chain `two` passes: its packets would go on without it"), "{error}");
    for chain in ["one", "two"] {
        client.remove_rule(chain).unwrap();
        client.remove_chain(chain).unwrap();
    }
    client.remove_nf("b.0").unwrap();
    assert_eq!(daemon.stats().nfs.len(), 0);
    daemon.stop();
}

#[test]
fn an_nf_on_a_core_that_never_sleeps_is_warned_of() {
    // By default, its threads are on core 0.
    let body = port("in", "gen", "rate = 1000")
        + &port("out", "sink", "")
        + &service("a", "sluice-nf-bridge", "")
        + &chain("c", "in", &["a"], "out", "");
    let folder = crate::support::open_folder();
    let config = head(folder.path(), "idle = \"spin\"") + &body;
    std::fs::write(folder.path().join("sluice.toml"), &config).unwrap();
    let mut daemon = Daemon::again(folder);
    let mut client = daemon.client();
    let warning = "service \"a\" runs on core 0, where a thread of the manager never sleeps; choose another core, or write idle = \
                   \"adaptive\" in [manager]";
    assert_eq!(client.add_nf("a", Some(0)).unwrap().warnings, [warning]);
    assert_eq!(client.add_nf("a", Some(1)).unwrap().warnings, Vec::<String>::new());
    daemon.wait("all run", |s| s.nfs.len() == 3 && s.nfs.iter().all(|nf| nf.state == NfState::Running));
    assert_eq!(client.move_nf("a.2", 0).unwrap().warnings, [warning]);
    assert!(daemon.stats().nfs.iter().all(|nf| nf.warnings.is_empty()), "what is said once is not said for ever");
    // A configuration that is applied warns of it, too.
    let other = config.replace("[[chain]]", "[[service]]\nname = \"b\"\nexec = \"sluice-nf-bridge\"\ncores = [0]\n[[chain]]");
    let applied = client.apply(&Apply { config: other, file: None, dry_run: true }).unwrap();
    assert!(applied.warnings.iter().any(|warning| warning.contains("\"b\" runs on core 0")), "{applied:?}");
    daemon.stop();
}

#[test]
fn what_is_not_there_is_named_as_it_was_written() {
    let mut daemon = Daemon::start("", &two_chains().replace("\"b\"", "\"bridge\""));
    let mut client = daemon.client();
    let error = refusal(client.add_nf("brige", None));
    assert_eq!((error.kind, error.error.as_str()), (ErrorKind::NotFound, "there is no service `brige`; did you mean \"bridge\"?"));
    let error = refusal(client.add_nf("bridge", Some(4095)));
    assert!(error.error.starts_with("no such core: 4095; use one of the cores 0"), "{error}");
    let error = refusal(client.move_nf("bridge.0", 4095));
    assert!(error.error.starts_with("no such core: 4095; use one of the cores 0"), "{error}");
    let error = refusal(client.move_nf("bridge.9", 0));
    assert_eq!(error.error, "there is no NF `bridge.9`; did you mean \"bridge.0\"?");
    assert_eq!(refusal(client.remove_chain("onw")).error, "there is no chain `onw`; did you mean \"one\"?");
    assert_eq!(daemon.stats().nfs.len(), 2);
    daemon.stop();
}

#[test]
fn packet_memory_beyond_the_hosts_is_not_applied() {
    let mut daemon = Daemon::start("", &two_chains());
    let config = (head(daemon.folder(), "") + &two_chains()).replace("frames = 4096", "frames = 67108864\npacket_bytes = 65344");
    let error = refusal(daemon.client().apply(&Apply { config, file: None, dry_run: false }));
    assert!(error.error.contains("packet memory takes ") && error.error.contains(", and this host has "), "{error}");
    assert_eq!(daemon.stats().nfs.len(), 2);
    daemon.stop();
}

#[test]
fn a_service_whose_user_could_use_the_control_socket_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return crate::skip::skip("only root can run NFs as another user");
    }
    let folder = crate::support::open_folder();
    let body = |group: u32| {
        port("in", "gen", "rate = 100")
            + &port("out", "sink", "")
            + &service("s", "sluice-nf-bridge", "user = \"65534\"")
            + &chain("c", "in", &["s"], "out", "")
            + &format!("[control]\ngroup = \"{group}\"\n")
    };
    let refused = crate::support::refusal(folder.path(), &(head(folder.path(), "") + &body(65_534)));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("a member of the group of the control socket"), "{said}");
    let mut daemon = Daemon::start("", &body(65_533));
    daemon.wait("packets flow", |s| find_port(s, "out").tx_packets > 0);
    daemon.stop();
}
