//! `sluice pack`: as few cores as the load needs, now or from now on.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use sluice_api::client::Client;
use sluice_api::model::Stats;
use sluice_manager::pack::{self, Move, Plan, Request};

use crate::table::{Table, colour};
use crate::usage::{json, seconds};

/// What `sluice pack --help` says below the options.
pub const HELP: &str = "\
Examples:
  sluice pack                           which NFs could share which cores, by what is measured now
  sluice pack --apply                   move them; packets flow on
  sluice pack --apply --every 10        and look again every ten seconds, until Ctrl-C
  sluice pack --cores 2-5 --margin 20 --sensitive ids,lookup

An NF is moved as by `sluice nf move`: another instance on the new core takes its place, no packet is lost, and none overtakes another. What
it has learnt from packets is learnt anew. Foreign NFs, those that attach, and those with a flow to themselves stay where they are. Loads are those of half a second. LOAD
is in cores: the larger of what the packets of an NF ask for (those refused at an entry with them, times what one costs) and of the CPU time
that it really used, waking and switching with it. Of an NF that polls, which is always busy, what its packets ask for. With --every, NFs are moved only if a core has too much to do, or if one can be freed.";

/// Readings of a look, and the time between two.
const READINGS: (usize, Duration) = (10, Duration::from_millis(50));

/// Arguments of `sluice pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    /// Cores for NFs, such as 1,3 or 2-5; those of the services, without the manager's, if not given
    #[arg(long, value_name = "CORES", value_parser = core_list, value_delimiter = ',')]
    pub cores: Vec<std::ops::RangeInclusive<usize>>,
    /// Percent of each core to keep free
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    pub margin: f64,
    /// Services whose cost grows when their data leave the caches: kept apart where that costs no core
    #[arg(long, value_name = "SERVICE", value_delimiter = ',')]
    pub sensitive: Vec<String>,
    /// Move NFs
    #[arg(long)]
    pub apply: bool,
    /// Look again after so many seconds, and so on
    #[arg(long, value_name = "SECONDS", requires = "apply", value_parser = seconds)]
    pub every: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn core_list(text: &str) -> Result<std::ops::RangeInclusive<usize>, String> {
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("{text:?} is no core, such as 3 or 2-5"));
    match text.split_once('-') {
        None => number(text).map(|core| core..=core),
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last > 4096 { Err(format!("{text} is no range of cores, such as 2-5")) } else { Ok(first..=last) }
        }
    }
}

/// Plans, and moves NFs if asked.
pub fn run(args: &PackArgs, client: &mut Client, out: &mut dyn Write) -> anyhow::Result<()> {
    let request = Request {
        cores: args.cores.iter().cloned().flatten().collect(),
        margin: args.margin / 100.0,
        sensitive: args.sensitive.clone(),
    };
    let mut told = None;
    loop {
        let plan = pack::over(look(client)?).and_then(|stats| pack::plan(&stats, &request));
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
            // Told when something is done.
            Ok(plan) if plan.is_worth_it() => {
                if args.json {
                    json(out, &plan)?
                } else {
                    print(&plan, out)?
                }
                told = None;
                // Somebody else may change NFs at the same time, as applying a configuration does. If the daemon is gone, the next
                // look says so.
                if let Err(error) = carry_out(&plan, args, client, out) {
                    let text = format!("{error:#}");
                    tell(&text, every);
                    told = Some(text);
                }
            }
            Ok(_) => told = None,
            // What is so now need not be so the next time: load moves, and what has just been moved has to be measured first.
            Err(error) if error.passes() => {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    tell(&text, every);
                    told = Some(text);
                }
            }
            Err(error) => return Err(error.into()),
        }
        out.flush()?;
        std::thread::sleep(Duration::from_secs_f64(every));
    }
}

/// What is told for a while.
fn look(client: &mut Client) -> anyhow::Result<Vec<Stats>> {
    let mut readings = vec![client.stats()?];
    while readings.len() < READINGS.0 {
        std::thread::sleep(READINGS.1);
        readings.push(client.stats()?);
    }
    Ok(readings)
}

/// Says why nothing is done for now. That nobody listens any more is no reason to end.
fn tell(text: &str, every: f64) {
    let _ = writeln!(std::io::stderr(), "sluice: {text}; looking again every {every} s");
}

/// Makes the moves of a plan, and tells them.
fn carry_out(plan: &Plan, args: &PackArgs, client: &mut Client, out: &mut dyn Write) -> anyhow::Result<()> {
    for step in &plan.moves {
        out.flush()?;
        make(step, client)?;
        if !args.json {
            writeln!(out, "moved {} from core {} to core {}", step.nf, step.from, step.to)?;
        }
    }
    Ok(())
}

/// Has an instance on the new core take its place.
fn make(step: &Move, client: &mut Client) -> anyhow::Result<()> {
    client.move_nf(&step.nf, step.to)?;
    Ok(())
}

fn print(plan: &Plan, out: &mut dyn Write) -> std::io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(core_list("3"), Ok(3..=3));
        assert_eq!(core_list("2-5"), Ok(2..=5));
        for wrong in ["", "x", "5-2", "1-", "0-99999999"] {
            assert!(core_list(wrong).is_err(), "{wrong}");
        }
    }
}
