//! `sluice plan`: the servers of a plan, and the least number that its SLOs need.

pub mod folder;
mod init;
mod optimise;
pub mod profiles;
mod steps;

use std::io::Write;

use anyhow::Context;
use serde::Serialize;
use sluice_cli::bars;
use sluice_cli::lab::plan::{PlanArgs, PlanCommand, ShowArgs};
use sluice_cli::table::colour;
use sluice_cli::usage::json;

use folder::{Folder, Plan};

/// A plan, as JSON output.
#[derive(Serialize)]
struct PlanOutput<'a> {
    slos: &'a [folder::Admitted],
    servers: &'a [sluice_slo::placement::PlacedServer],
}

pub fn run(args: &PlanArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = Folder::at(&args.folder.plan);
    match &args.command {
        PlanCommand::Init(init) => init::run(&folder, init, out),
        PlanCommand::Show(show) => self::show(&folder.read()?, show, out),
        PlanCommand::Optimise(optimise) => optimise::run(&folder, optimise, out),
        PlanCommand::Step(step) => steps::run(&folder, step, out),
    }
}

fn show(plan: &Plan, args: &ShowArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.json {
        return json(out, &PlanOutput { slos: &plan.slos, servers: &plan.placement.servers });
    }
    let Some(path) = &args.svg else { return bars::print(&plan.placement, colour(), out) };
    let names: Vec<&str> = plan.slos.iter().map(|admitted| admitted.slo.name.as_str()).collect();
    std::fs::write(path, bars::svg(&plan.placement, &names)?).with_context(|| format!("cannot write {}", path.display()))
}
