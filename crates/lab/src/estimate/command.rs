//! `sluice estimate`: what a packet costs an NF, measured on this host.

use std::io::Write;
use std::path::Path;

use sluice_api::config::{Config, Gen, Service};
use sluice_cli::lab::estimate::EstimateArgs;
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::{Usage, json};
use sluice_config::estimates::{Estimate, Kept, KeptEstimate, Of, Spread};
use sluice_config::{host, load};
use sluice_host::user::User;

use super::{EstimateError, Names, Procedure, References, Subject, packets};

pub fn run(args: &EstimateArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let here = host::Host::here();
    let (subject, plain_args) = match &args.config {
        Some(path) => of_config(&args.nf, path, &here)?,
        None => of_program(&args.nf, &args.args, &here)?,
    };
    let reference =
        |program: &'static str| host::resolve_exec(Path::new(program), &here).map_err(|_| EstimateError::NoReference(program));
    let references = References { idle: reference(super::IDLE)?, busy: reference(super::BUSY)? };
    let packets = match &args.capture {
        Some(path) => packets::captured(path)?,
        None => packets::crafted(&Gen { size: args.size, flows: args.flows, ..Gen::default() })?,
    };
    let of = Of::here(&subject.exec, &plain_args)?;
    // Read before the measurement, so that an unusable file is reported at once.
    let mut known = args.keep.as_deref().map(Kept::read).transpose()?.unwrap_or_default();
    let core = args.core.or_else(|| here.allowed.last().copied()).unwrap_or(0);
    let found = super::estimate(&subject, &references, &Procedure { core, rounds: args.bursts.div_ceil(super::BURSTS), packets })?;
    if let Some(path) = &args.keep {
        known.put(KeptEstimate { of, estimate: found.clone() });
        known.write(path)?;
    }
    if args.json {
        return json(out, &found);
    }
    print(&subject.name, &found, out)?;
    if let Some(path) = &args.keep {
        writeln!(out, "kept in {}", path.display())?;
    }
    Ok(())
}

pub fn of_program(nf: &str, args: &[String], here: &host::Host) -> anyhow::Result<(Subject, Vec<String>)> {
    let exec = host::resolve_exec(Path::new(nf), here).map_err(|why| Usage(format!("{nf}: {why}")))?;
    let subject = Subject {
        name: exec.file_name().map_or_else(|| nf.into(), |name| name.to_string_lossy().into_owned()),
        exec,
        args: args.iter().map(Into::into).collect(),
        ..Subject::default()
    };
    Ok((subject, args.to_vec()))
}

pub fn of_config(nf: &str, path: &Path, here: &host::Host) -> anyhow::Result<(Subject, Vec<String>)> {
    let config = config(path)?;
    let Some(service) = config.services.iter().find(|service| service.name == nf) else {
        let known: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
        return Err(Usage(format!("{} has no service {}; it has {}", path.display(), nf, known.join(", "))).into());
    };
    Ok((subject_of(&config, service, here)?, service.args.clone()))
}

/// Reads a configuration, and prints its warnings.
pub fn config(path: &Path) -> anyhow::Result<Config> {
    let loaded = load::read(path)?;
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    Ok(loaded.config)
}

/// How a service is started.
pub fn subject_of(config: &Config, service: &Service, here: &host::Host) -> anyhow::Result<Subject> {
    if service.container.is_some() {
        let what = format!("service {} runs in a container; measure its program by its path on this host", service.name);
        return Err(Usage(what).into());
    }
    let Some(exec) = &service.exec else {
        return Err(Usage(format!("service {} names no program (exec), so there is nothing to start", service.name)).into());
    };
    let exec = host::resolve_exec(exec, here).map_err(|why| Usage(format!("service {}: {why}", service.name)))?;
    Ok(Subject {
        name: format!("{}.0", service.name),
        exec,
        args: service.args.iter().map(Into::into).collect(),
        env: service.env.iter().map(|(key, value)| (key.into(), value.into())).collect(),
        user: service.user.as_deref().map(User::look_up).transpose()?,
        names: Names {
            ports: config.ports.iter().map(|port| port.name.clone()).collect(),
            services: config.services.iter().map(|service| service.name.clone()).collect(),
            chains: config.chains.iter().map(|chain| chain.name.clone()).collect(),
        },
    })
}

fn print(name: &str, found: &Estimate, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{name}: {} rounds of bursts of {} packets, {} packets dropped by it", found.rounds, found.burst, found.dropped)?;
    let mut table = Table::new(&["", ">MEDIAN", ">A QUARTER BELOW", ">A QUARTER ABOVE"]);
    let mut row = |what: &str, spread: Spread, digits: usize| {
        let number = |value: f64| format!("{value:.digits$}");
        table.row(vec![what.into(), number(spread.median).into(), number(spread.low).into(), number(spread.high).into()]);
    };
    row("ns a packet", found.ns_per_packet, 2);
    row("cycles a packet", found.cycles_per_packet, 1);
    row("ns a burst", found.ns_per_burst, 0);
    row("cycles a burst", found.cycles_per_burst, 0);
    table.print(out, colour())?;
    let off = |part: f64| if part < 0.0 { format!("{:.1} % less", -part * 100.0) } else { format!("{:.1} % more", part * 100.0) };
    let inside = match (found.inside_ns, found.off_inside) {
        (Some(ns), Some(part)) => format!("{ns:.0} ns a burst, which this is {} than", off(part)),
        _ => "too few samples".into(),
    };
    writeln!(out, "taken off for rings: {:.0} ns a burst, within {:.0} ns; inside: {inside}", found.ring_ns, found.ring_spread_ns)
}
