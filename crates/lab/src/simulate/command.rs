//! `sluice simulate`: the capacity of a configuration on other cores.

use std::collections::BTreeMap;
use std::io::{self, Write};

use sluice_api::client::{Client, ClientError};
use sluice_api::config::{Config, Service};
use sluice_cli::lab::simulate::SimulateArgs;
use sluice_cli::number;
use sluice_cli::table::{Cell, Table, Tone, colour};
use sluice_cli::usage::{Usage, json};
use sluice_config::estimates::{Kept, Of};
use sluice_config::host::{Host, resolve_exec};
use sluice_config::load;

use super::report::{ChainRow, Run};
use super::{Options, Report, SimulateError, Simulation, cost};

/// Simulates; `client` connects to the daemon if its measurements are needed.
pub fn run(args: &SimulateArgs, client: impl FnOnce() -> Result<Client, ClientError>, out: &mut dyn Write) -> anyhow::Result<()> {
    let loaded = load::read(&args.config)?;
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    let host_mhz = host_mhz(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let mut measured = kept(&loaded.config, host_mhz);
    if args.measured {
        measured.extend(cost::measured(&client()?.stats()?.nfs, host_mhz));
    }
    let options = Options {
        cores: args.cores.map(|n| n as usize),
        rate_pps: args.rate.iter().rev().find(|(port, _)| port.is_none()).map(|(_, rate)| *rate),
        port_rates: args.rate.iter().filter_map(|(port, rate)| Some((port.clone()?, *rate))).collect(),
        costs: args.cost.iter().cloned().collect(),
        measured,
        switch_ns: args.switch,
        mhz: args.ghz.map_or(host_mhz, |ghz| (ghz * 1e3).round() as u64),
        measure_ns: (args.seconds * 1e9) as u64,
    };
    let plan = Simulation::new(&loaded.config, &options).map_err(usage)?;
    let report = Report::of(&plan, args.compare);
    if args.json { json(out, &report) } else { Ok(print(out, &report, args.compare, colour())?) }
}

/// Cycles per packet of services that `sluice estimate --keep` has measured; an unreadable file
/// counts as empty.
fn kept(config: &Config, host_mhz: u64) -> BTreeMap<String, u64> {
    let kept = Kept::read(&config.manager.estimates).unwrap_or_default();
    let here = Host::here();
    let cycles = |service: &Service| {
        let exec = resolve_exec(service.exec.as_ref().filter(|_| service.container.is_none())?, &here).ok()?;
        let ns = kept.find(&Of::here(&exec, &service.args).ok()?)?.ns_per_packet.median;
        Some((service.name.clone(), cost::cycles_of(ns, host_mhz)))
    };
    config.services.iter().filter_map(cycles).collect()
}

fn usage(error: SimulateError) -> anyhow::Error {
    if error.is_usage() { Usage(error.to_string()).into() } else { error.into() }
}

fn print(out: &mut dyn Write, report: &Report, compare: bool, colour: bool) -> io::Result<()> {
    let Some(ideal) = report.runs.last() else { return Ok(()) };
    let first = &report.runs[0];
    let cores = first.cores.len();
    let clock = format!("{} of {:.2} GHz", plural(cores, "core"), report.ghz);
    writeln!(out, "{} on {clock}, class {}, {} s simulated", plural(first.nfs.len(), "NF"), report.class, report.seconds)?;
    writeln!(out)?;
    if compare {
        compared(report, ideal).print(out, colour)?;
    } else {
        chains(first, ideal).print(out, colour)?;
        writeln!(out)?;
        nfs(first).print(out, colour)?;
        writeln!(out)?;
        used(first).print(out, colour)?;
    }
    let busiest = report.runs.iter().map(|run| run.manager_pps).fold(0.0, f64::max);
    writeln!(out)?;
    writeln!(out, "note: each switch to an NF costs its core {}; --switch NS says another cost", number::time(report.switch_ns))?;
    writeln!(out, "note: the manager would move packets at {}, which is not limited here", number::rate(busiest))?;
    report.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn chains(run: &Run, ideal: &Run) -> Table {
    let mut table = Table::new(&["CHAIN", ">OFFERED", ">DELIVERED", ">ENTRY DROPS", ">WASTED", ">OF IDEAL"]);
    let all = (run.chains.len() > 1).then(|| run.total(ideal));
    for chain in run.chains.iter().chain(&all) {
        table.row(vec![
            chain.name.as_str().into(),
            number::rate(chain.offered_pps).into(),
            number::rate(chain.delivered_pps).into(),
            number::rate(chain.entry_drops_pps).into(),
            wasted(chain.wasted_pps),
            percent_of_ideal(chain).into(),
        ]);
    }
    table
}

fn nfs(run: &Run) -> Table {
    let mut table = Table::new(&["NF", ">CORE", ">CPU", ">SHARE", ">PACKETS", ">DROPS"]);
    for nf in &run.nfs {
        let polls = if nf.polls { " (polls)" } else { "" };
        table.row(vec![
            nf.name.as_str().into(),
            nf.core.to_string().into(),
            format!("{:.1} %{polls}", nf.cpu_percent).into(),
            nf.share.map_or_else(|| "–".into(), |share| format!("{:.1} %", share * 100.0)).into(),
            number::rate(nf.packets_pps).into(),
            wasted(nf.drops_pps),
        ]);
    }
    table
}

fn used(run: &Run) -> Table {
    let mut table = Table::new(&["CORE", ">NFS", ">BUSY", ">SWITCHES", ">IDLE"]);
    for core in &run.cores {
        let idle = format!("{:.1} %{}", core.idle_percent, if core.polls { " (polling)" } else { "" });
        // A core without idle time limits chains.
        let tone = if core.idle_percent < 1.0 { Tone::Warn } else { Tone::Plain };
        table.row(vec![
            core.core.to_string().into(),
            core.nfs.to_string().into(),
            Cell::toned(format!("{:.1} %", core.busy_percent), tone),
            format!("{:.1} %", core.switch_percent).into(),
            idle.into(),
        ]);
    }
    table
}

fn compared(report: &Report, ideal: &Run) -> Table {
    let head = ["CHAIN", "", ">DEFAULT", ">WEIGHTS", ">BACKPRESSURE", ">NFVNICE", ">SLUICE", ">IDEAL"];
    debug_assert_eq!(head.len(), report.runs.len() + 2);
    let mut table = Table::new(&head);
    let several = ideal.chains.len() > 1;
    for i in 0..ideal.chains.len() + usize::from(several) {
        let rows: Vec<ChainRow> = report.runs.iter().map(|r| r.chains.get(i).cloned().unwrap_or_else(|| r.total(ideal))).collect();
        let mut line = |name: &str, what: &str, cell: &dyn Fn(&ChainRow) -> Cell| {
            table.row([name.into(), what.into()].into_iter().chain(rows.iter().map(cell)).collect());
        };
        line(&rows[0].name, "delivered", &|c| number::rate(c.delivered_pps).into());
        line("", "of ideal", &|c| percent_of_ideal(c).into());
        line("", "wasted", &|c| wasted(c.wasted_pps));
    }
    table
}

fn wasted(pps: f64) -> Cell {
    Cell::toned(number::rate(pps), if pps > 0.0 { Tone::Warn } else { Tone::Plain })
}

fn percent_of_ideal(chain: &ChainRow) -> String {
    chain.share_of_ideal.map_or_else(|| "–".into(), |share| format!("{:.1} %", share * 100.0))
}

fn plural(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

/// Clock of the host in MHz: the nominal one in its model's name, since the current one varies with
/// load; else the current one; else 2,500.
fn host_mhz(cpuinfo: &str) -> u64 {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim())
    };
    let nominal = value("model name").and_then(|name| name.rsplit_once('@')?.1.trim().strip_suffix("GHz")?.trim().parse().ok());
    let now = || value("cpu MHz")?.parse::<f64>().ok();
    let mhz = nominal.map(|ghz: f64| ghz * 1e3).or_else(now).filter(|mhz| (100.0..100_000.0).contains(mhz));
    mhz.map_or(2_500, |mhz| mhz.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_the_nominal_one_where_it_is_known() {
        let cpu = "processor\t: 0\nmodel name\t: Some CPU E5-2697 v3 @ 2.60GHz\ncpu MHz\t\t: 1197.304\n";
        assert_eq!(host_mhz(cpu), 2_600);
        assert_eq!(host_mhz("model name\t: AMD EPYC\ncpu MHz\t\t: 2249.998\n"), 2_250);
        assert_eq!([host_mhz(""), host_mhz("cpu MHz\t: 0.000\n"), host_mhz("cpu MHz\t: x\n")], [2_500; 3]);
    }
}
