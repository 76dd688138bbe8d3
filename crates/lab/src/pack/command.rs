//! `sluice pack`: uses as few cores as the load needs, once or repeatedly.

use std::io::Write;
use std::time::Duration;

use sluice_api::client::Client;
use sluice_api::model::Stats;
use sluice_cli::lab::pack::PackArgs;
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::json;

use super::{Move, Packing, Request};

/// Readings of a round, and the time between two.
const READINGS: (usize, Duration) = (10, Duration::from_millis(50));

/// Plans, and moves NFs if requested.
pub fn run(args: &PackArgs, client: &mut Client, out: &mut dyn Write) -> anyhow::Result<()> {
    let request = Request {
        cores: args.cores.iter().cloned().flatten().collect(),
        margin: args.margin / 100.0,
        sensitive: args.sensitive.clone(),
    };
    let mut reported = None;
    loop {
        let plan = super::over(look(client)?).and_then(|stats| super::plan(&stats, &request));
        let Some(every) = args.every else {
            let plan = plan?;
            if args.json {
                json(out, &plan)?
            } else {
                print(&plan, out)?
            }
            return if args.apply { carry_out(&plan, args, client, out) } else { Ok(()) };
        };
        match plan {
            // Reported when something is done.
            Ok(plan) if plan.is_worth_it() => {
                if args.json {
                    json(out, &plan)?
                } else {
                    print(&plan, out)?
                }
                reported = None;
                // NFs may change at the same time, for example by an applied configuration. If the
                // daemon is gone, the next round reports it.
                if let Err(error) = carry_out(&plan, args, client, out) {
                    let text = format!("{error:#}");
                    announce(&text, every);
                    reported = Some(text);
                }
            }
            Ok(_) => reported = None,
            // A passing condition: load changes, and a moved NF has to be measured first.
            Err(error) if error.passes() => {
                let text = error.to_string();
                if reported.as_ref() != Some(&text) {
                    announce(&text, every);
                    reported = Some(text);
                }
            }
            Err(error) => return Err(error.into()),
        }
        out.flush()?;
        std::thread::sleep(Duration::from_secs_f64(every));
    }
}

/// Takes the readings of a round.
fn look(client: &mut Client) -> anyhow::Result<Vec<Stats>> {
    let mut readings = vec![client.stats()?];
    while readings.len() < READINGS.0 {
        std::thread::sleep(READINGS.1);
        readings.push(client.stats()?);
    }
    Ok(readings)
}

/// Reports why this round is skipped; a closed stderr is ignored.
fn announce(text: &str, every: f64) {
    let _ = writeln!(std::io::stderr(), "sluice: {text}; looking again every {every} s");
}

/// Makes the moves of a plan, and reports them.
fn carry_out(plan: &Packing, args: &PackArgs, client: &mut Client, out: &mut dyn Write) -> anyhow::Result<()> {
    for step in &plan.moves {
        out.flush()?;
        make(step, client)?;
        if !args.json {
            writeln!(out, "moved {} from core {} to core {}", step.nf, step.from, step.to)?;
        }
    }
    Ok(())
}

/// Replaces an instance by one on the new core.
fn make(step: &Move, client: &mut Client) -> anyhow::Result<()> {
    client.move_nf(&step.nf, step.to)?;
    Ok(())
}

fn print(plan: &Packing, out: &mut dyn Write) -> std::io::Result<()> {
    let now = if plan.fits_now { "" } else { ", and at least one has too much to do" };
    let least = if plan.is_least { "no fewer would do" } else { "whether fewer would do is not known" };
    writeln!(out, "{} in use now{now}; {} needed, {least}", cores(plan.cores_now), cores(plan.cores_needed))?;
    let mut table = Table::new(&[">CORE", ">LOAD", "NFS"]);
    for core in &plan.cores {
        table.row(vec![core.core.to_string().into(), format!("{:.2}", core.load).into(), core.nfs.join(" ").into()]);
    }
    table.print(out, colour())?;
    if plan.conflicts > 0 {
        writeln!(out, "sensitive NFs that share a core: {} pairs", plan.conflicts)?;
    }
    if plan.moves.is_empty() {
        return writeln!(out, "all are where they should be");
    }
    plan.moves.iter().try_for_each(|step| writeln!(out, "{}: core {} → core {}", step.nf, step.from, step.to))
}

fn cores(n: usize) -> String {
    if n == 1 { "1 core".into() } else { format!("{n} cores") }
}
