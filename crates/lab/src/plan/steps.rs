//! `sluice plan step`: from one placement to another, one step at a time.
//!
//! `sluice plan optimise --in-steps` keeps the steps in the plan's folder (`steps.json`). A step is
//! taken at the operator's request: the placement becomes that after the step, in which every SLO
//! holds, and `sluice slo apply` applies it to the daemons of the changed servers. So the operator
//! confirms that a step is complete before the next one, which takes as long as old flows stay.
//!
//! # Limits
//! A daemon divides flows among the instances on its own server. Between servers, an external load
//! balancer steers packets; the step says how. The remaining flows of an instance are not counted:
//! completion shows in the packets that it gets.

use std::fs;
use std::io::{ErrorKind, Write};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use sluice_cli::lab::plan::StepArgs;
use sluice_cli::usage::json;
use sluice_host::file;
use sluice_planner::migration::{Migration, Old, Step};
use sluice_slo::placement::Placement;

use super::folder::{Folder, Plan};

/// Format version of `steps.json`.
const FORM: u32 = 1;

/// The remaining steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    form: u32,
    /// The placement before the first of them.
    now: Placement,
    taken: usize,
    left: Vec<Step>,
}

impl Steps {
    pub fn of(plan: &Plan, migration: &Migration) -> Self {
        Self { form: FORM, now: plan.placement.clone(), taken: 0, left: migration.steps.clone() }
    }

    /// Drops a first step that is already in the plan, because the process ended right after it.
    fn caught_up(mut self, placement: &Placement) -> Option<Self> {
        let mut next = self.now.clone();
        let is_taken = self.left.first().is_some_and(|step| step.take(&mut next).is_ok()) && next == *placement && next != self.now;
        if is_taken {
            self.left.remove(0);
            (self.now, self.taken) = (next, self.taken + 1);
        }
        (!self.left.is_empty()).then_some(self)
    }

    fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let steps: Self = serde_json::from_slice(text)?;
        ensure!(steps.form == FORM, "it has form {} and this program knows {FORM}", steps.form);
        Ok(steps)
    }

    /// Reads the steps of a plan, if there are any.
    fn read(folder: &Folder) -> anyhow::Result<Option<Self>> {
        let path = folder.steps();
        match fs::read(&path) {
            Ok(text) => Ok(Some(Self::parse(&text).with_context(|| {
                format!(
                    "{} has no steps of this program: remove it, and make them anew with `sluice plan optimise --in-steps`",
                    path.display()
                )
            })?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => bail!(
                "cannot read {} ({error}): run as a user with permission to, or name another folder with --plan",
                path.display()
            ),
        }
    }

    /// Writes them into a plan; without steps, removes the file.
    pub fn keep(&self, folder: &Folder) -> anyhow::Result<()> {
        if self.left.is_empty() {
            return Self::forget(folder);
        }
        let (path, text) = (folder.steps(), serde_json::to_string_pretty(self)? + "\n");
        file::replace(&path, text.as_bytes()).with_context(|| {
            format!("cannot write {}: run as a user with permission to, or name another folder with --plan", path.display())
        })
    }

    /// Removes the steps of a plan.
    pub fn forget(folder: &Folder) -> anyhow::Result<()> {
        let path = folder.steps();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                bail!("cannot remove {} ({error}): run as a user with permission to", path.display())
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    /// Its number, from 1.
    number: usize,
    /// The number of steps.
    of: usize,
    step: &'a Step,
    /// Servers that it changes.
    servers: Vec<String>,
    /// What to wait for before the next one.
    wait_for: Option<String>,
    notes: Vec<String>,
    /// Whether it was taken.
    taken: bool,
}

pub fn run(folder: &Folder, args: &StepArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let _lock = folder.lock()?;
    let mut plan = folder.read()?;
    let none = "no steps are kept in this plan: `sluice plan optimise --in-steps` makes them";
    let Some(steps) = Steps::read(folder)?.and_then(|steps| steps.caught_up(&plan.placement)) else { bail!(none) };
    let Some((step, rest)) = steps.left.split_first() else { bail!(none) };
    ensure!(
        steps.now == plan.placement,
        "the plan was changed since its steps were made, so they are of another one: nothing was changed; make them anew with \
         `sluice plan optimise --in-steps`"
    );
    let mut next = plan.placement.clone();
    step.take(&mut next).context("nothing was changed; make the steps anew with `sluice plan optimise --in-steps`")?;
    let changed = plan.placement.servers.iter().zip(&next.servers).filter(|(was, is)| was != is);
    let servers: Vec<String> = changed.map(|(was, _)| was.name.clone()).collect();
    let (number, of) = (steps.taken + 1, steps.taken + steps.left.len());
    let notes = notes(step, &next, servers.is_empty());
    let answer = Answer { number, of, step, servers, wait_for: rest.first().and_then(wait), notes, taken: !args.dry_run };
    if !args.dry_run {
        plan.placement = next.clone();
        folder.write(&plan)?;
        Steps { form: FORM, now: next, taken: number, left: rest.to_vec() }.keep(folder)?;
    }
    if args.json {
        return json(out, &answer);
    }
    print(&answer, rest.is_empty(), out)
}

/// What to wait for before a step.
fn wait(next: &Step) -> Option<String> {
    match next {
        Step::Stop { slo, number, .. } => Some(format!("no packets come to {slo}.{number} any more")),
        Step::Resize { slo, number, from, to, capacity_pps, .. } if to <= from && *capacity_pps > 0.0 => {
            Some(format!("no more than {capacity_pps:.0} packets/s come to {slo}.{number}"))
        }
        _ => None,
    }
}

/// Further notes on a step, after which the placement is `next`.
fn notes(step: &Step, next: &Placement, is_nowhere: bool) -> Vec<String> {
    let servers = |slo: &str| next.servers.iter().filter(|server| server.instances.iter().any(|i| i.slo == slo)).count();
    let Step::Redirect { slo, .. } = step else { return Vec::new() };
    let note = || format!("lead packets of {slo} to its servers in these parts: a daemon divides flows on its own server only");
    (servers(slo) > 1 || is_nowhere).then(note).into_iter().collect()
}

fn print(answer: &Answer<'_>, is_last: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let Answer { number, of, step, servers, wait_for, notes, taken } = answer;
    writeln!(out, "step {number} of {of}: {}", said(step))?;
    if !taken {
        return Ok(());
    }
    for note in notes {
        writeln!(out, "  {note}")?;
    }
    if !servers.is_empty() {
        writeln!(out, "  now `sluice slo apply` on {}", servers.join(", "))?;
    }
    if let Some(wait_for) = wait_for {
        writeln!(out, "  and before the next step, wait until {wait_for}")?;
    }
    if is_last {
        writeln!(out, "that was the last step")?;
    }
    Ok(())
}

pub fn said(step: &Step) -> String {
    let ways = |ways: u32| if ways == 0 { "shared class".into() } else { format!("{ways} ways") };
    match step {
        Step::Resize { server, slo, number, from, to, .. } => match from == to {
            true => format!("{slo}.{number} on {server}: {}, by its profile of now", ways(*to)),
            false => format!("resize {slo}.{number} on {server}: {} → {}", ways(*from), ways(*to)),
        },
        Step::Start { server, instance } => {
            let cores = instance.cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            format!("start {}.{} on {server}: core {cores}, {}", instance.slo, instance.number, ways(instance.ways))
        }
        Step::Redirect { slo, parts, away_from, old } => {
            let part = |(number, part): (&u32, &f64)| format!("{:.0} % to {slo}.{number}", part * 100.0);
            let parts = parts.iter().map(part).collect::<Vec<_>>().join(", ");
            let away = away_from.iter().map(|number| format!("{slo}.{number}")).collect::<Vec<_>>().join(", ");
            match (away_from.is_empty(), old) {
                (true, Old::Stay) => format!("divide new flows of {slo}: {parts}"),
                (true, Old::Follow) => format!("divide the flows of {slo}: {parts}"),
                (false, Old::Stay) => format!("send no new flows to {away}: {parts}; its old ones stay until they end"),
                (false, Old::Follow) => format!("send no flows to {away}, old ones neither: {parts}"),
            }
        }
        Step::Stop { server, slo, number } => format!("stop {slo}.{number} on {server}"),
    }
}

#[cfg(test)]
mod tests {
    use sluice_planner::migration;

    use super::super::folder::tests::{admit, plan, slo};
    use super::*;

    fn step(folder: &Folder, dry_run: bool) -> anyhow::Result<String> {
        let mut out = Vec::new();
        run(folder, &StepArgs { dry_run, json: false }, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    /// A plan on two servers, and the steps to have it on one.
    fn spread() -> (tempfile::TempDir, Folder, Migration) {
        let (dir, folder) = plan(3);
        let mut plan = folder.read().unwrap();
        admit(&folder, &mut plan, slo("acme", "nat-zipf", 2e6, 100.0));
        admit(&folder, &mut plan, slo("web", "firewall", 2e6, 100.0));
        let together = plan.placement.clone();
        let servers = &mut plan.placement.servers;
        let moved = servers[0].instances.iter().position(|instance| instance.slo == "web").unwrap();
        let moved = servers[0].instances.remove(moved);
        servers[1].instances.push(moved);
        folder.write(&plan).unwrap();
        let plan = folder.read().unwrap();
        let migration = migration::plan(&plan.placement, &together, 0.0, Old::Stay).unwrap();
        Steps::of(&plan, &migration).keep(&folder).unwrap();
        (dir, folder, migration)
    }

    #[test]
    fn steps_are_taken_one_by_one_and_each_holds() {
        let (_dir, folder, migration) = spread();
        let promised = |folder: &Folder| folder.read().unwrap().placement.loads_pps()["web"];
        let before = promised(&folder);
        let shown = step(&folder, true).unwrap();
        assert_eq!(shown, "step 1 of 3: start web.1 on s0: core 1, ".to_string() + shown.rsplit(", ").next().unwrap());
        assert!(step(&folder, false).unwrap().contains("now `sluice slo apply` on s0\n"));
        let on = |folder: &Folder| folder.read().unwrap().placement.servers.iter().map(|s| s.instances.len()).collect::<Vec<_>>();
        assert_eq!((on(&folder), promised(&folder)), (vec![2, 1, 0], before));
        let shown = step(&folder, false).unwrap();
        assert!(shown.starts_with("step 2 of 3: send no new flows to web.0: 100 % to web.1"), "{shown}");
        assert!(shown.contains("  lead packets of web to its servers"), "{shown}");
        assert!(shown.contains("on s0, s1\n  and before the next step, wait until no packets come to web.0 any more\n"), "{shown}");
        assert!((promised(&folder) / before - 1.0).abs() < 1e-9);
        let shown = step(&folder, false).unwrap();
        assert!(shown.starts_with("step 3 of 3: stop web.0 on s1") && shown.ends_with("that was the last step\n"), "{shown}");
        let sorted = |placement: &Placement| {
            let mut all: Vec<_> =
                placement.instances().map(|(at, i)| (at, i.slo.clone(), i.number, i.ways, i.cores.clone())).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&folder.read().unwrap().placement), sorted(&migration.placement));
        assert!(!folder.steps().exists());
        assert!(step(&folder, false).unwrap_err().to_string().contains("optimise --in-steps"));
    }

    #[test]
    fn a_step_that_was_written_counts_as_taken_whatever_ended_then() {
        let (_dir, folder, _) = spread();
        let before = Steps::read(&folder).unwrap().unwrap();
        step(&folder, false).unwrap();
        before.keep(&folder).unwrap();
        assert!(step(&folder, false).unwrap().starts_with("step 2 of 3"));
    }

    #[test]
    fn each_stop_waits_for_its_own_flows() {
        let stop = |slo: &str| Step::Stop { server: "s0".into(), slo: slo.into(), number: 3 };
        assert_eq!(wait(&stop("a")).unwrap(), "no packets come to a.3 any more");
        let resize = |from, to| Step::Resize { server: "s0".into(), slo: "a".into(), number: 1, from, to, capacity_pps: 2e6 };
        assert_eq!(wait(&resize(4, 2)).unwrap(), "no more than 2000000 packets/s come to a.1");
        assert_eq!(wait(&resize(2, 4)), None);
    }

    #[test]
    fn steps_of_another_plan_are_not_taken() {
        let (_dir, folder, _) = spread();
        let mut changed = folder.read().unwrap();
        admit(&folder, &mut changed, slo("dns", "firewall", 1e5, 100.0));
        folder.write(&changed).unwrap();
        let said = step(&folder, false).unwrap_err().to_string();
        assert!(said.contains("was changed since its steps were made") && said.contains("--in-steps"), "{said}");
        assert_eq!(folder.read().unwrap(), changed);
        std::fs::write(folder.steps(), "{}").unwrap();
        assert!(step(&folder, false).unwrap_err().to_string().contains("no steps of this program"));
    }
}
