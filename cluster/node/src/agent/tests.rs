use std::collections::BTreeSet;

use sluice_api::promise::{Promise, Promises};
use sluice_cluster_types::{
    Match, NetworkFunctionSpec, NodePlanStatus, PlannedChain, PlannedFunction, Resources, ServiceChainSpec,
};
use sluice_slo::assignment::Promised;
use sluice_slo::examples::{shape, slo};
use sluice_slo::placement::{Instance, PlacedServer};
use sluice_slo::slo::{Slo, Workload};

use super::*;

/// A daemon that keeps what it is given, unless it refuses something. What is placed names chains
/// that it has.
#[derive(Default)]
struct Fake {
    config: Config,
    placed: Option<Assignment>,
    refuse: Option<&'static str>,
    /// What fails, and how often.
    fail: Option<(&'static str, u32)>,
    /// An SLO that cannot be placed.
    unfit: Option<&'static str>,
    /// Whether no chain can be removed.
    is_stuck: bool,
    is_away: bool,
    /// Whether it ends when something is placed.
    ends: bool,
    applies: usize,
}

impl Fake {
    fn check(&self) -> Result<(), DaemonError> {
        let chains: BTreeSet<&str> = self.config.chains.iter().map(|chain| chain.name.as_str()).collect();
        let slos = self.placed.iter().flat_map(|placed| &placed.slos).map(|promised| promised.slo.name.as_str());
        match slos.into_iter().find(|slo| !chains.contains(slo)) {
            Some(slo) => Err(DaemonError::Refused(format!("no chain is named as the SLO \"{slo}\""))),
            None => Ok(()),
        }
    }

    fn answer(&mut self, to: &str) -> Result<(), DaemonError> {
        self.is_away |= self.ends && to == "place";
        if let Some((_, times)) = self.fail.as_mut().filter(|(what, times)| *what == to && *times > 0) {
            *times -= 1;
            return Err(DaemonError::Failed("a thread has ended".into()));
        }
        match self.refuse {
            _ if self.is_away => Err(DaemonError::Away("no sluiced answers".into())),
            Some(what) if what == to => Err(DaemonError::Refused("another binary".into())),
            _ => Ok(()),
        }
    }
}

impl Daemon for Fake {
    fn apply(&mut self, config: &str, _: &std::path::Path) -> Result<(), DaemonError> {
        self.answer("apply")?;
        let new: Config = toml::from_str(config).unwrap();
        if self.is_stuck && new.chains.len() < self.config.chains.len() {
            return Err(DaemonError::Refused("packets are in the chain".into()));
        }
        let before = std::mem::replace(&mut self.config, new);
        self.applies += 1;
        self.check().inspect_err(|_| self.config = before)
    }

    fn place(&mut self, assignment: &Assignment) -> Result<Vec<String>, DaemonError> {
        self.answer("place")?;
        assignment.check().unwrap();
        if let Some(slo) = self.unfit.filter(|unfit| assignment.slos.iter().any(|one| one.slo.name == *unfit)) {
            return Err(DaemonError::Refused(format!("{slo} does not fit")));
        }
        let before = self.placed.replace(assignment.clone());
        self.check().inspect_err(|_| self.placed = before)?;
        Ok(vec!["no cache ways here".into()])
    }

    fn withdraw(&mut self) -> Result<(), DaemonError> {
        self.answer("withdraw")?;
        self.placed = None;
        Ok(())
    }

    fn placement(&mut self) -> Result<Option<Assignment>, DaemonError> {
        self.answer("placement")?;
        Ok(self.placed.clone())
    }

    fn promises(&mut self) -> Result<Promises, DaemonError> {
        self.answer("promises")?;
        let slos = self.placed.iter().flat_map(|placed| &placed.slos);
        let promises = slos.map(|one| Promise { slo: one.slo.name.clone(), ..Promise::default() }).collect();
        Ok(Promises { promises, ..Promises::default() })
    }
}

/// Less than any pause.
const TURN: Duration = Duration::from_millis(10);
const BASE: &str = "[[port]]\nname = \"in\"\nkind = \"gen\"\n[[port]]\nname = \"out\"\nkind = \"sink\"\n\
                    [promises]\ncores = [1, 2, 3, 4, 5, 6, 7, 8, 9]\ncache = \"none\"\n";

/// A plan with SLOs of these names, each with one instance of `t_nat`.
pub fn plan(revision: i64, slos: &[&str]) -> NodePlanSpec {
    let instance = |(i, name): (usize, &&str)| Instance {
        slo: (*name).into(),
        number: 0,
        cores: vec![i as u32],
        ways: 1,
        memory_mib: 16,
        capacity_pps: 1e6,
        load_pps: 1e6,
    };
    let mut server = PlacedServer::empty("n0", &shape());
    server.instances = slos.iter().enumerate().map(instance).collect();
    let promised = |name: &&str| {
        let slo = Slo { name: (*name).into(), workload: Workload::Nf("t_nat".into()), ..slo(1e6, 100.0) };
        Promised { slo, profile: None }
    };
    let chain = |name: &&str| PlannedChain {
        name: (*name).into(),
        namespace: "t".into(),
        slo: (*name).into(),
        chain: ServiceChainSpec {
            services: vec!["t_nat".into()],
            ingress: vec![Match { port: Some("in".into()), ..Match::default() }],
            egress: "out".into(),
            ..ServiceChainSpec::default()
        },
    };
    let spec = NetworkFunctionSpec { exec: Some("sluice-nf-nat".into()), ..NetworkFunctionSpec::default() };
    let nat = PlannedFunction { name: "t_nat".into(), namespace: "t".into(), function: "nat".into(), spec };
    let functions = if slos.is_empty() { Vec::new() } else { vec![nat] };
    let slos_of = slos.iter().map(promised).collect();
    NodePlanSpec { term: 1, revision, server, slos: slos_of, chains: slos.iter().map(chain).collect(), functions }
}

fn agent(folder: &tempfile::TempDir) -> Agent<Fake> {
    let base = folder.path().join("base.toml");
    std::fs::write(&base, BASE).unwrap();
    Agent::new(Fake::default(), base, folder.path().join("kept.json"), None)
}

fn chains(agent: &Agent<Fake>) -> Vec<&str> {
    agent.daemon.config.chains.iter().map(|chain| chain.name.as_str()).collect()
}

#[test]
fn a_plan_is_taken_over_and_the_next_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    let turn = agent.turn(&plan(1, &["a", "b"]), now);
    assert_eq!((turn.status.applied_revision, turn.status.refused, turn.trouble), (1, None, None));
    assert_eq!(turn.status.uses.iter().map(|one| one.slo.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(turn.status.notes, ["no cache ways here"]);
    let service = &agent.daemon.config.services[0];
    assert_eq!((service.name.as_str(), service.instances, service.tenant.as_deref()), ("t_nat", 0, Some("t")));
    let applies = agent.daemon.applies;
    agent.turn(&plan(1, &["a", "b"]), now);
    assert_eq!(agent.daemon.applies, applies, "nothing is done twice");
    agent.turn(&plan(2, &["b", "c"]), now);
    assert_eq!(chains(&agent), ["b", "c"]);
    agent.turn(&plan(3, &[]), now);
    assert_eq!((chains(&agent), &agent.daemon.placed), (vec![], &None));
    assert_eq!(agent.daemon.config.ports.len(), 2, "what the node itself has stays");
}

#[test]
fn a_plan_for_a_larger_server_is_refused_before_anything_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    let mut empty = plan(1, &[]);
    empty.server.shape.cores = 64;
    let refused = agent.turn(&empty, now).status.refused.unwrap();
    assert!(refused.contains("has 64 cores for NFs, and `cores` in [promises] of its sluiced names 9"), "{refused}");
    assert_eq!(agent.daemon.applies, 0);
    // Once the class is corrected, it is as any other.
    let turn = agent.turn(&plan(2, &["a"]), now);
    assert_eq!((turn.status.applied_revision, turn.status.refused), (2, None));
}

#[test]
fn what_the_daemon_refuses_leaves_the_old_plan_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    agent.turn(&plan(1, &["a"]), now);
    for step in ["apply", "place"] {
        agent.daemon.refuse = Some(step);
        let at = now + AGAIN * 2;
        let turn = agent.turn(&plan(2, &["b"]), at);
        let NodePlanStatus { observed_revision, applied_revision, refused, uses, .. } = turn.status;
        assert_eq!((observed_revision, applied_revision, refused.as_deref()), (2, 1, Some("another binary")));
        assert_eq!((uses[0].slo.as_str(), chains(&agent)), ("a", vec!["a"]));
        agent.daemon.refuse = None;
        assert!(agent.turn(&plan(2, &["b"]), at).status.refused.is_some(), "it is not tried again at once");
        agent.held = None;
    }
    assert_eq!(agent.turn(&plan(2, &["b"]), now + AGAIN * 4).status.applied_revision, 2);
}

#[test]
fn without_the_api_server_the_last_plan_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let now = Instant::now();
    agent(&folder).turn(&plan(7, &["a"]), now);
    // Agent and daemon are started anew.
    let mut agent = agent(&folder);
    let kept = agent.applied().unwrap().clone();
    assert_eq!(kept.revision, 7);
    agent.turn(&kept, now);
    assert_eq!(chains(&agent), ["a"]);
    agent.daemon = Fake { is_away: true, ..Fake::default() };
    let turn = agent.turn(&kept, now);
    assert_eq!((turn.trouble, turn.status.refused), (Some(Trouble::Away("no sluiced answers".into())), None));
    agent.daemon = Fake::default();
    agent.turn(&kept, now);
    assert_eq!(chains(&agent), ["a"], "a daemon that was restarted gets it again");
}

#[test]
fn a_way_back_that_fails_is_said_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    agent.turn(&plan(1, &["a"]), now);
    agent.daemon.unfit = Some("b");
    agent.daemon.is_stuck = true;
    let turn = agent.turn(&plan(2, &["b"]), now);
    let refused = turn.status.refused.unwrap();
    for words in ["b does not fit", "packets are in the chain", "between the two plans", "restart sluiced"] {
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!((turn.trouble, turn.status.applied_revision), (Some(Trouble::Between(refused)), 1));
    assert_eq!(chains(&agent), ["b", "a"]);
    agent.daemon.is_stuck = false;
    agent.turn(&plan(2, &["b"]), now);
    assert_eq!(chains(&agent), ["b", "a"], "it is not tried again at once");
    let turn = agent.turn(&plan(2, &["b"]), now + BACK);
    assert_eq!((turn.status.refused.as_deref(), turn.trouble), (Some("b does not fit"), None));
    assert_eq!(chains(&agent), ["a"]);
}

#[test]
fn what_is_left_of_a_plan_that_cannot_go_is_placed_back() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    agent.turn(&plan(1, &["a"]), now);
    // The new plan is placed, and the chain of the old one cannot go.
    agent.daemon.is_stuck = true;
    let turn = agent.turn(&plan(2, &["b"]), now);
    assert!(matches!(turn.trouble, Some(Trouble::Between(_))), "{turn:?}");
    agent.daemon.is_stuck = false;
    agent.turn(&plan(2, &["b"]), now + BACK);
    assert_eq!((chains(&agent), agent.daemon.placed.as_ref().unwrap().slos[0].slo.name.as_str()), (vec!["a"], "a"));
    let turn = agent.turn(&plan(2, &["b"]), now + AGAIN);
    assert_eq!((turn.status.applied_revision, turn.trouble, chains(&agent)), (2, None, vec!["b"]));
}

#[test]
fn a_daemon_that_was_restarted_gets_the_old_plan_while_the_new_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    agent.turn(&plan(1, &["a"]), now);
    agent.daemon.unfit = Some("b");
    agent.turn(&plan(2, &["b"]), now);
    agent.daemon = Fake { unfit: Some("b"), ..Fake::default() };
    let turn = agent.turn(&plan(2, &["b"]), now + TURN);
    assert_eq!(turn.status.refused.as_deref(), Some("b does not fit"));
    assert_eq!((chains(&agent), agent.daemon.placed.is_some()), (vec!["a"], true));
}

#[test]
fn a_daemon_that_ends_in_the_middle_of_a_change_refuses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    agent.turn(&plan(1, &["a"]), now);
    agent.daemon.ends = true;
    let turn = agent.turn(&plan(2, &["b"]), now);
    assert!(matches!(turn.trouble, Some(Trouble::Away(_))) && turn.status.refused.is_none(), "{turn:?}");
    // It answers again, with the chains of both, and the old plan is the one that counts.
    (agent.daemon.is_away, agent.daemon.ends) = (false, false);
    agent.turn(&plan(1, &["a"]), now + TURN);
    assert_eq!(chains(&agent), ["a"], "nothing is left of the other plan");
}

#[test]
fn a_daemon_that_fails_is_asked_again_before_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    agent.turn(&plan(1, &["a"]), now);
    agent.daemon.fail = Some(("place", TRIES - 1));
    for _ in 1..TRIES {
        let turn = agent.turn(&plan(2, &["b"]), now);
        assert_eq!((turn.status.applied_revision, turn.status.refused, turn.trouble), (1, None, None));
    }
    assert_eq!(agent.turn(&plan(2, &["b"]), now).status.applied_revision, 2);
    agent.daemon.fail = Some(("place", TRIES));
    let turns: Vec<Turn> = (0..TRIES).map(|_| agent.turn(&plan(3, &["a"]), now)).collect();
    let last = turns.last().unwrap();
    assert_eq!((&last.trouble, &last.status.refused), (&Some(Trouble::Failed("a thread has ended".into())), &None));
    assert_eq!(chains(&agent), ["b"], "it has the old plan meanwhile");
    assert_eq!(agent.turn(&plan(3, &["a"]), now + AGAIN).status.applied_revision, 3);
}

#[test]
fn nfs_of_pods_attach_and_the_plan_does_not_wait_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = agent(&folder);
    let mut plan = plan(1, &["a"]);
    plan.functions[0].spec.exec = None;
    let turn = agent.turn(&plan, Instant::now());
    assert_eq!((turn.status.applied_revision, turn.status.refused), (1, None));
    assert_eq!(turn.status.uses[0].state, "new");
    let service = &agent.daemon.config.services[0];
    assert_eq!((service.attach, &service.exec, service.instances), (true, &None, 0));
    assert_eq!((service.tenant.as_deref(), &service.user), (Some("t"), &None), "its pods may have any user");
}

#[test]
fn what_an_nf_may_take_and_how_it_starts_are_keys_of_its_service() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = agent(&folder);
    let mut plan = plan(1, &["a"]);
    agent.turn(&plan, Instant::now());
    let plain = agent.daemon.config.services[0].clone();
    assert_eq!((plain.memory, plain.zygote, plain.storage), (None, false, false));
    let spec = &mut plan.functions[0].spec;
    (spec.zygote, spec.storage) = (true, true);
    spec.resources = Some(Resources { memory_mib: Some(256), pids: Some(plain.pids - 1) });
    plan.revision = 2;
    assert_eq!(agent.turn(&plan, Instant::now()).status.applied_revision, 2);
    let service = &agent.daemon.config.services[0];
    assert_eq!((service.memory, service.pids), (Some(256), plain.pids - 1));
    assert!(service.zygote && service.storage);
}

#[test]
fn what_is_no_plan_for_this_node_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (mut agent, now) = (agent(&folder), Instant::now());
    let mut refused = |change: fn(&mut NodePlanSpec), revision: i64| {
        let mut plan = plan(revision, &["a"]);
        change(&mut plan);
        agent.turn(&plan, now).status.refused.unwrap()
    };
    let port = refused(|plan| plan.chains[0].chain.egress = "wan".into(), 1);
    assert!(port.contains("the port \"wan\", and this node has: in, out"), "{port}");
    std::fs::write(&agent.base, format!("{BASE}[[service]]\nname = \"t_nat\"\nexec = \"x\"\n")).unwrap();
    let taken = agent.turn(&plan(3, &["a"]), now).status.refused.unwrap();
    assert!(taken.contains("rename it there"), "{taken}");
    std::fs::remove_file(&agent.base).unwrap();
    assert!(agent.turn(&plan(4, &["a"]), now).status.refused.unwrap().contains("--base"));
}
