//! `sluice plan optimise`: the least number of servers, and the steps to get there.
//!
//! Servers of one shape are one problem. Problems are solved one after another, each in the
//! optimiser's background thread and within the remaining time. The plan is not locked meanwhile:
//! if it has changed when the result is there, the result is discarded.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use sluice_cli::lab::plan::OptimiseArgs;
use sluice_cli::usage::json;
use sluice_planner::demand::Demand;
use sluice_planner::migration::{self, Migration, Old};
use sluice_planner::optimiser::background::Background;
use sluice_planner::optimiser::{IS_BUILT, OptimiserError};
use sluice_slo::on_demand::Footprint;
use sluice_slo::placement::{Instance, ServerShape};
use sluice_slo::slo::Promise;

use super::folder::{Folder, Plan};
use super::profiles::Profiles;
use super::steps::{Steps, said};

#[derive(Debug, Serialize)]
struct Answer {
    servers_now: usize,
    servers: usize,
    /// Lower bound of servers, if each SLO stays on servers of its shape.
    at_least: usize,
    shapes: usize,
    /// Possible excess of servers, as a part of those in the solution.
    gap: f64,
    timed_out: bool,
    applied: bool,
    kept: bool,
    /// The steps; none if they save too few servers.
    migration: Option<Migration>,
}

/// Runs the optimiser, reports the result, and applies it if requested.
pub fn run(folder: &Folder, args: &OptimiseArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if !IS_BUILT {
        return Err(OptimiserError::NotBuilt.into());
    }
    let mut plan = folder.read()?;
    let mut answer = solve(&plan, &Profiles::read(folder)?, args)?;
    let is_wanted = |migration: &&Migration| (args.apply || args.in_steps) && !migration.steps.is_empty();
    if let Some(migration) = answer.migration.as_ref().filter(is_wanted) {
        let _lock = folder.lock()?;
        ensure!(
            folder.read()? == plan,
            "the plan was changed while the optimiser ran, so its answer is for another one: nothing was moved; run it again"
        );
        if args.in_steps {
            Steps::of(&plan, migration).keep(folder)?;
        } else {
            plan.placement = migration.placement.clone();
            folder.write(&plan)?;
        }
        (answer.applied, answer.kept) = (args.apply, args.in_steps);
    } else if args.in_steps {
        let _lock = folder.lock()?;
        Steps::forget(folder)?;
    }
    if args.json {
        return json(out, &answer);
    }
    print(&answer, args, out)?;
    if answer.applied {
        writeln!(out, "written to {}", folder.placement().display())?;
    }
    if answer.kept {
        writeln!(out, "kept in {}; `sluice plan step` takes the first", folder.steps().display())?;
    }
    Ok(())
}

/// The shapes of the servers in use.
fn shapes(plan: &Plan) -> Vec<ServerShape> {
    let mut shapes: Vec<ServerShape> = Vec::new();
    for server in plan.placement.servers.iter().filter(|server| !server.instances.is_empty()) {
        if !shapes.contains(&server.shape) {
            shapes.push(server.shape.clone());
        }
    }
    shapes
}

fn solve(plan: &Plan, profiles: &Profiles, args: &OptimiseArgs) -> anyhow::Result<Answer> {
    let until = Instant::now() + Duration::from_secs_f64(args.limit);
    let servers_now = plan.placement.used();
    let mut answer = Answer {
        servers_now,
        servers: 0,
        at_least: 0,
        shapes: 0,
        gap: 0.0,
        timed_out: false,
        applied: false,
        kept: false,
        migration: None,
    };
    let mut target = plan.placement.clone();
    let mut out_of_time = 0;
    for shape in shapes(plan) {
        let demands = demands(plan, profiles, &shape)?;
        let left = until.saturating_duration_since(Instant::now());
        answer.shapes += 1;
        match Background::start(demands, shape, target.clone(), left).context("the system gives no thread")?.wait() {
            Ok(outcome) => {
                answer.at_least += outcome.solution.bound;
                answer.timed_out |= outcome.solution.timed_out;
                target = outcome.placement;
            }
            // The placement on servers of this shape stays.
            Err(OptimiserError::OutOfTime { bound }) => {
                answer.at_least += bound;
                answer.timed_out = true;
                out_of_time += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if out_of_time > 0 && out_of_time == answer.shapes {
        return Err(OptimiserError::OutOfTime { bound: answer.at_least }.into());
    }
    answer.servers = target.used();
    if answer.servers > 0 {
        answer.gap = answer.servers.saturating_sub(answer.at_least) as f64 / answer.servers as f64;
    }
    if servers_now.saturating_sub(answer.servers) >= args.threshold {
        // With stepwise migration, daemons leave old flows in place.
        let old = if args.leave_old || args.in_steps { Old::Stay } else { Old::Follow };
        answer.migration = Some(migration::plan(&plan.placement, &target, 0.0, old)?);
    }
    Ok(answer)
}

/// Demands of the SLOs on servers of this shape; for an SLO that spans shapes, its part.
fn demands(plan: &Plan, profiles: &Profiles, shape: &ServerShape) -> anyhow::Result<Vec<Demand>> {
    let all = plan.placement.loads_pps();
    let own = |slo: &str| -> Vec<&Instance> {
        let there = plan.placement.instances().filter(|(at, _)| plan.placement.servers[*at].shape == *shape);
        there.map(|(_, instance)| instance).filter(|instance| instance.slo == slo).collect()
    };
    let mut demands = Vec::new();
    for admitted in &plan.slos {
        let mut slo = admitted.slo.clone();
        let own = own(&slo.name);
        let Some(first) = own.first() else { continue };
        if let Promise::Reserved { throughput_pps, .. } = &mut slo.promise {
            let (here, all) = (own.iter().map(|instance| instance.load_pps).sum::<f64>(), all[slo.name.as_str()]);
            if here <= 0.0 {
                // They are to get no packets, so they can go.
                continue;
            }
            // Not scaled if that is all of it, to keep the exact number.
            *throughput_pps *= if here >= all * (1.0 - 1e-9) { 1.0 } else { here / all };
        }
        let demand = match &admitted.profile {
            Some(key) => Demand::of(&slo, profiles.of(&slo.name, key)?, shape),
            None => {
                let footprint = Footprint { cores: first.cores.len() as u32, memory_mib: first.memory_mib };
                Demand::unmeasured(&slo, footprint, shape)
            }
        };
        demands.push(demand.with_context(|| format!("SLO \"{}\"", slo.name))?);
    }
    Ok(demands)
}

fn print(answer: &Answer, args: &OptimiseArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let Answer { servers_now, servers, at_least, shapes, gap, timed_out, .. } = *answer;
    if servers_now == 0 {
        return Ok(writeln!(out, "nothing is promised, so no server is in use")?);
    }
    let count = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let proof = match gap {
        0.0 => "no fewer would do".into(),
        gap => format!("at least {at_least} are needed (gap {:.1} %)", gap * 100.0),
    };
    let shapes = if shapes > 1 { ", where each SLO stays on servers of its shape" } else { "" };
    let time = if timed_out { "; the solver ran out of time" } else { "" };
    writeln!(out, "{} in use, {servers} would do, and {proof}{shapes}{time}", count(servers_now, "server"))?;
    let Some(migration) = &answer.migration else {
        let saves = count(servers_now.saturating_sub(servers), "server");
        let threshold = args.threshold;
        return Ok(writeln!(out, "{saves} saved is less than the threshold of {threshold}: the placement stays as it is")?);
    };
    if migration.steps.is_empty() {
        return Ok(writeln!(out, "everything is where it should be")?);
    }
    let (saves, starts) = (count(migration.saves, "server"), count(migration.starts, "instance"));
    writeln!(out, "{saves} saved, {starts} started, in {}:", count(migration.steps.len(), "step"))?;
    for (i, step) in migration.steps.iter().enumerate() {
        writeln!(out, "{:>4}  {}", i + 1, said(step))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_slo::on_demand::lease;
    use sluice_slo::slo::{Cap, Slo};

    use super::super::folder::Admitted;
    use super::super::folder::tests::{admit, plan, slo};
    use super::super::profiles::UNMEASURED;
    use super::*;

    fn args(apply: bool) -> OptimiseArgs {
        OptimiseArgs { limit: 60.0, threshold: 1, leave_old: true, apply, in_steps: false, json: false }
    }

    fn text(folder: &Folder, args: &OptimiseArgs) -> anyhow::Result<String> {
        let mut out = Vec::new();
        run(folder, args, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    /// A plan on two servers that one could carry.
    fn spread() -> (tempfile::TempDir, Folder) {
        let (dir, folder) = plan(3);
        let mut plan = folder.read().unwrap();
        admit(&folder, &mut plan, slo("acme", "nat-zipf", 2e6, 100.0));
        admit(&folder, &mut plan, slo("web", "firewall", 2e6, 100.0));
        let servers = &mut plan.placement.servers;
        let moved = servers[0].instances.iter().position(|instance| instance.slo == "web").unwrap();
        let moved = servers[0].instances.remove(moved);
        servers[1].instances.push(moved);
        folder.write(&plan).unwrap();
        (dir, folder)
    }

    #[test]
    #[cfg_attr(feature = "optimiser", ignore = "is about builds without the solver")]
    fn without_a_solver_one_error_says_so() {
        let (_dir, folder) = spread();
        let before = std::fs::read(folder.placement()).unwrap();
        assert!(text(&folder, &args(true)).unwrap_err().to_string().contains("--features optimiser"));
        assert_eq!(std::fs::read(folder.placement()).unwrap(), before);
    }

    #[test]
    #[cfg_attr(not(feature = "optimiser"), ignore = "needs --features optimiser")]
    fn a_server_is_saved_and_the_steps_are_reported() {
        let (_dir, folder) = spread();
        let before = std::fs::read(folder.placement()).unwrap();
        let shown = text(&folder, &args(false)).unwrap();
        assert!(
            shown.starts_with("2 servers in use, 1 would do, and no fewer would do\n1 server saved, 1 instance started"),
            "{shown}"
        );
        assert!(shown.contains("stay until they end"), "{shown}");
        assert_eq!(std::fs::read(folder.placement()).unwrap(), before, "nothing is changed unasked");
        let many = text(&folder, &OptimiseArgs { threshold: 2, ..args(true) }).unwrap();
        assert!(many.ends_with("less than the threshold of 2: the placement stays as it is\n"), "{many}");
        assert_eq!(std::fs::read(folder.placement()).unwrap(), before);
        let kept = text(&folder, &OptimiseArgs { in_steps: true, leave_old: false, ..args(false) }).unwrap();
        assert!(kept.contains("stay until they end") && kept.contains("`sluice plan step` takes the first"), "{kept}");
        assert!(folder.steps().exists() && std::fs::read(folder.placement()).unwrap() == before);
        text(&folder, &OptimiseArgs { in_steps: true, threshold: 2, ..args(false) }).unwrap();
        assert!(!folder.steps().exists(), "those of before are no longer wanted");
        assert!(text(&folder, &args(true)).unwrap().contains("written to "));
        let after = folder.read().unwrap();
        assert_eq!((after.placement.used(), after.slos.len()), (1, 2));
    }

    #[test]
    #[cfg_attr(not(feature = "optimiser"), ignore = "needs --features optimiser")]
    fn an_slo_on_servers_of_two_shapes_has_its_part_on_each() {
        let (_dir, folder) = spread();
        let mut plan = folder.read().unwrap();
        // Half of it on a server with more memory, and a third server like that with another SLO.
        let servers = &mut plan.placement.servers;
        let first = servers[0].instances[0].clone();
        assert_eq!((first.slo.as_str(), servers[0].instances.len()), ("acme", 1));
        servers[0].instances[0].load_pps /= 2.0;
        let second = Instance { number: 1, cores: vec![0], load_pps: first.load_pps / 2.0, ..first.clone() };
        servers[2].instances.push(second);
        servers[1].shape.memory_mib += 1;
        servers[2].shape = servers[1].shape.clone();
        let Answer { servers_now, servers, shapes, migration, .. } =
            solve(&plan, &Profiles::read(&folder).unwrap(), &args(false)).unwrap();
        assert_eq!((servers_now, servers, shapes), (3, 2, 2));
        let migration = migration.unwrap();
        migration.placement.check().unwrap();
        let loads = migration.placement.loads_pps();
        assert!((loads["acme"] / first.load_pps - 1.0).abs() < 1e-9 && loads.len() == 2, "{loads:?}");
        let is_on = |memory: u64| {
            let own = migration.placement.servers.iter().filter(|server| server.shape.memory_mib == memory);
            own.flat_map(|server| &server.instances).filter(|one| one.slo == "acme").map(|one| one.load_pps).sum::<f64>()
        };
        assert!((is_on(plan.placement.servers[0].shape.memory_mib) - first.load_pps / 2.0).abs() < 1.0);
    }

    #[test]
    #[cfg_attr(not(feature = "optimiser"), ignore = "needs --features optimiser")]
    fn one_on_demand_moves_with_the_others() {
        let (_dir, folder) = spread();
        let mut plan = folder.read().unwrap();
        let cap = Cap { instances: Some(2), load_pps: None };
        let dns = Slo { promise: Promise::OnDemand { latency_us: 100.0, cap }, ..slo("dns", "unknown", 1.0, 1.0) };
        lease(&mut plan.placement, &dns, UNMEASURED).unwrap();
        let leased = plan.placement.servers.iter_mut().find_map(|server| {
            let at = server.instances.iter().position(|instance| instance.slo == "dns")?;
            Some(server.instances.remove(at))
        });
        plan.placement.servers[1].instances.push(Instance { cores: vec![5], ..leased.unwrap() });
        plan.slos.push(Admitted { slo: dns, profile: None });
        folder.write(&plan).unwrap();
        let shown = text(&folder, &args(true)).unwrap();
        assert!(shown.starts_with("2 servers in use, 1 would do"), "{shown}");
        let placement = folder.read().unwrap().placement;
        let dns: Vec<_> = placement.instances().filter(|(_, instance)| instance.slo == "dns").collect();
        assert_eq!((placement.used(), dns.len(), dns[0].1.ways, dns[0].1.cores.len()), (1, 1, 0, 1));
    }

    #[test]
    fn a_profile_that_is_gone_is_asked_for() {
        let (dir, folder) = spread();
        std::fs::remove_file(dir.path().join("profiles/firewall.json")).unwrap();
        let plan = folder.read().unwrap();
        let error = solve(&plan, &Profiles::read(&folder).unwrap(), &args(false));
        assert!(error.unwrap_err().to_string().contains("web was admitted is no longer in"));
    }
}
