//! The commands.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::CommandFactory;
use serde::Serialize;
use sluice_api::client::Client;
use sluice_api::config::{self as config, Config, PortRange};
use sluice_api::health::HealthVerdict;
use sluice_api::model::{Event, TraceRequest};
use sluice_api::nearest;
use sluice_cli::table::{Table, colour};
use sluice_cli::usage::{Degraded, Usage, json, read};
use sluice_config::host::Host;
use sluice_config::{ConfigErrors, load, problem};

use crate::args::{ChainCommand, NfCommand, PortCommand, RuleCommand, ServiceCommand, TenantCommand};
use crate::args::{Check, Cli, Command, EventsArgs, PortAdd, RuleAdd, StatsArgs, Stop, TraceArgs};
use crate::{capture, doctor, drops, filter, flows, init, man, other, record, replay, revise, show, top, upgrade, values, why};

/// Runs a command, which prints to `out`.
pub fn run(cli: Cli, out: &mut dyn Write) -> anyhow::Result<()> {
    let client = || Client::new(&cli.socket);
    match cli.command {
        Command::Init(args) => init::run(&args, out),
        Command::Check(args) => check(&args, out),
        Command::Status(args) => {
            let status = client()?.status()?;
            if args.json {
                json(out, &status)?
            } else {
                show::status(out, &status, colour())?
            }
            if status.health.verdict == HealthVerdict::Healthy { Ok(()) } else { Err(Degraded.into()) }
        }
        Command::Top(args) if args.across.is_set() => other::become_cluster(),
        Command::Top(args) => top::run(&mut client()?, &args, out),
        Command::Events(args) => events(&mut client()?, &args, out),
        Command::Nf(command) => nf(&mut client()?, command, out),
        Command::Service(command) => service(&mut client()?, command, out),
        Command::Chain(command) => chain(&mut client()?, command, out),
        Command::Rule(command) => rule(&mut client()?, command, out),
        Command::Tenant(command) => tenant(&mut client()?, command, out),
        Command::Port(command) => port(&mut client()?, command, out),
        Command::Stats(args) => stats(&mut client()?, &args, out),
        Command::Config => Ok(out.write_all(client()?.running_config()?.as_bytes())?),
        Command::Apply(args) => revise::apply(&mut client()?, &args, out),
        Command::Set(args) => revise::set(&mut client()?, &args, out),
        Command::Undo(args) => revise::undo(&mut client()?, &args, out),
        Command::Trace(args) => trace(&mut client()?, args, out),
        Command::Drops(args) => drops::run(&mut client()?, &args, out),
        Command::Why(args) => why::run(&mut client()?, &args, out),
        Command::Capture(args) => capture::run(&mut client()?, args, out),
        Command::Replay(args) => replay::run(&args, out),
        Command::Flows(args) => flows::run(&mut client()?, args, out),
        Command::Record(args) => record::run(&mut client()?, args, out),
        Command::Extcap(args) => capture::extcap(&mut client()?, args, out),
        Command::Lab(command) if command.is_of_cluster() => other::become_cluster(),
        Command::Lab(_) => other::become_lab(),
        Command::Doctor(args) => doctor::run(&args, out),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut text);
            Ok(out.write_all(&text)?)
        }
        Command::Man { folder } => man::write(&folder).with_context(|| format!("cannot write man pages into {}", folder.display())),
        Command::Stop(args) => stop(&mut client()?, &args, out),
    }
}

fn list<T: Serialize>(out: &mut dyn Write, all: &[T], as_json: bool, none: &str, table: fn(&[T]) -> Table) -> anyhow::Result<()> {
    match all {
        _ if as_json => json(out, all),
        [] => Ok(writeln!(out, "{none}")?),
        _ => Ok(table(all).print(out, colour())?),
    }
}

fn check(args: &Check, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.explain {
        out.write_all(sluice_config::schema::reference().as_bytes())?;
    }
    let Some(path) = &args.config else { return Ok(()) };
    // With the host's checks, ports are checked as sluiced does before it starts.
    let loaded = if args.no_host {
        load::read(path)
    } else {
        load::read_for(path, &Host::here())?.accept(|config| other::port_problems(path, config))
    }?;
    if args.strict && !loaded.warnings.is_empty() {
        return Err(ConfigErrors { problems: loaded.warnings }.into());
    }
    for warning in &loaded.warnings {
        eprintln!("{warning}");
    }
    let warnings = match problem::count(&loaded.warnings) {
        count if count.is_empty() => count,
        count => format!(", with {count}"),
    };
    let Config { ports, services, chains, rules, .. } = &loaded.config;
    let instances: u64 = services.iter().map(|s| u64::from(s.first_instances())).sum();
    let count = |n: u64, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let words = [
        count(ports.len() as u64, "port"),
        count(services.len() as u64, "service"),
        count(instances, "NF"),
        count(chains.len() as u64, "chain"),
        count(rules.len() as u64, "rule"),
    ];
    Ok(writeln!(out, "{} is good{warnings}: {}", path.display(), words.join(", "))?)
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}

fn nf(client: &mut Client, command: NfCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        NfCommand::List(args) => list(out, &client.stats()?.nfs, args.json, "no NFs", show::nfs),
        NfCommand::Show { name, json: as_json } => {
            let stats = client.stats()?;
            let Some(nf) = stats.nfs.iter().find(|nf| nf.name == name) else {
                let known: Vec<&str> = stats.nfs.iter().map(|nf| nf.name.as_str()).collect();
                return Err(Usage(format!("no NF is named \"{name}\"; {}", nearest::instead("NF", &name, &known))).into());
            };
            if as_json { json(out, nf) } else { Ok(show::nf(out, nf, stats.time_ns)?) }
        }
        NfCommand::Add { service, core } => {
            let nf = client.add_nf(&service, core)?;
            warn(&nf.warnings);
            Ok(writeln!(out, "added NF {} on core {} ({})", nf.name, nf.core, nf.state.word())?)
        }
        NfCommand::Remove { name, force } => {
            if force { client.force_remove_nf(&name) } else { client.remove_nf(&name) }?;
            Ok(writeln!(out, "removed NF {name}")?)
        }
        NfCommand::Move { name, core } => {
            let nf = client.move_nf(&name, core)?;
            warn(&nf.warnings);
            Ok(writeln!(out, "moved {name} to core {}: it is {} now", nf.core, nf.name)?)
        }
        NfCommand::Upgrade(args) => upgrade::run(client, args, out),
    }
}

fn service(client: &mut Client, command: ServiceCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        ServiceCommand::List(args) => list(out, &client.stats()?.services, args.json, "no services", show::services),
        ServiceCommand::Add { file } => {
            let text = read(&file)?;
            let services = services_of(&text).with_context(|| format!("{} describes no service", file.display()))?;
            for service in services {
                let added = client.add_service(&service)?;
                writeln!(out, "added service {} with {}", added.name, added.instances.join(", "))?;
            }
            Ok(())
        }
        ServiceCommand::Remove { name } => {
            client.remove_service(&name)?;
            Ok(writeln!(out, "removed service {name}")?)
        }
    }
}

/// The services of a file: its `[[service]]` sections, or one with its keys at the top level.
fn services_of(text: &str) -> anyhow::Result<Vec<config::Service>> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sections {
        service: Vec<config::Service>,
    }
    let table: toml::Table = text.parse()?;
    if table.get("service").is_some_and(toml::Value::is_array) {
        let sections: Sections = toml::from_str(text)?;
        anyhow::ensure!(!sections.service.is_empty(), "its list of services is empty");
        return Ok(sections.service);
    }
    Ok(vec![toml::from_str(text)?])
}

fn chain(client: &mut Client, command: ChainCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        ChainCommand::List(args) => list(out, &client.stats()?.chains, args.json, "no chains", show::chains),
        ChainCommand::Add { name, services, egress, on_failure, run, fuse } => {
            let (on_failure, run) = (on_failure.into(), run.into());
            let chain = client.add_chain(&config::Chain { name, services, egress, on_failure, run, fuse })?;
            Ok(writeln!(out, "added chain {}: {}", chain.name, show::way(&chain))?)
        }
        ChainCommand::Remove { name } => {
            client.remove_chain(&name)?;
            Ok(writeln!(out, "removed chain {name}")?)
        }
    }
}

fn rule(client: &mut Client, command: RuleCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        RuleCommand::List(args) => list(out, &client.stats()?.rules, args.json, "no rules", show::rules),
        RuleCommand::Add(add) => {
            let RuleAdd { chain, name, position, port, vlan, protocol, src, dst, src_port, dst_port, dscp, priority, tenant } =
                *add;
            let range = |text: String| text.parse().map_or(PortRange::Text(text), PortRange::One);
            let (src_port, dst_port) = (src_port.map(range), dst_port.map(range));
            let rule = config::Rule {
                name,
                port,
                vlan,
                protocol,
                src,
                dst,
                src_port,
                dst_port,
                dscp,
                priority,
                tenant,
                chain,
                wakeup: None,
            };
            let rule = client.add_rule(rule, position)?;
            Ok(writeln!(
                out,
                "added rule {} at position {}: {} → {}",
                rule.name,
                rule.position,
                show::matches(&rule.matches),
                rule.chain
            )?)
        }
        RuleCommand::Remove { name } => {
            client.remove_rule(&name)?;
            Ok(writeln!(out, "removed rule {name}")?)
        }
    }
}

fn tenant(client: &mut Client, command: TenantCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        TenantCommand::List(args) => list(out, &client.stats()?.status.memories, args.json, "no tenants", show::tenants),
        TenantCommand::Renew { name } => {
            client.renew_memory(&name)?;
            Ok(writeln!(out, "tenant {name} has fresh packet memory; its NFs start again")?)
        }
    }
}

fn port(client: &mut Client, command: PortCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        PortCommand::List(args) => list(out, &client.stats()?.ports, args.json, "no ports", show::ports),
        PortCommand::Add(args) => {
            let port = client.add_port(&port_of(args)?)?;
            Ok(writeln!(out, "added port {}: {}", port.name, port.description)?)
        }
        PortCommand::Remove { name } => {
            client.remove_port(&name)?;
            Ok(writeln!(out, "removed port {name}")?)
        }
    }
}

fn port_of(args: PortAdd) -> Result<config::Port, Usage> {
    let table = match &args.toml {
        // Lines first; a text that is no document may be the inside of an inline table.
        Some(text) => {
            text.parse::<toml::Table>().or_else(|error| values::inline(text).ok_or(error)).map_err(|e| Usage(e.to_string()))?
        }
        None => {
            let mut table = toml::Table::new();
            for key in &args.keys {
                let (name, value) =
                    key.split_once('=').ok_or_else(|| Usage(format!("\"{key}\" is not KEY=VALUE; write for example size=60")))?;
                if table.insert(name.trim().into(), values::value(value)).is_some() {
                    return Err(Usage(format!("{name} is given twice")));
                }
            }
            let mut given =
                |key: &str, value: Option<toml::Value>| value.is_none_or(|value| table.insert(key.into(), value).is_none());
            let fresh = given("name", args.name.map(Into::into))
                && given("kind", args.kind.map(Into::into))
                && given("overload", args.overload.map(Into::into))
                && given("queues", args.queues.map(|n| i64::from(n).into()));
            if !fresh {
                return Err(Usage("name, kind, overload and queues stand on their own, not among KEY=VALUE".into()));
            }
            table
        }
    };
    // The checks of configuration files know the keys of each kind and suggest the nearest.
    load::read_port(table).map_err(|errors| Usage(errors.to_string()))
}

fn stats(client: &mut Client, args: &StatsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.prometheus {
        return Ok(out.write_all(client.metrics()?.as_bytes())?);
    }
    let mut stats = client.stats()?;
    if !args.watch {
        return if args.json { json(out, &stats) } else { Ok(show::stats(out, &stats, colour())?) };
    }
    loop {
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&stats)?)?;
        } else {
            show::stats(out, &stats, colour())?;
            writeln!(out)?;
        }
        out.flush()?;
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        stats = client.stats()?;
    }
}

/// Time between two requests for new events, with --follow.
const FOLLOWED: Duration = Duration::from_millis(200);

fn events(client: &mut Client, args: &EventsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let of_kind = |event: &Event| args.kind.is_empty() || args.kind.contains(&event.event);
    let wanted = |event: &Event| of_kind(event) && args.nf.as_ref().is_none_or(|name| event.nf == *name);
    let mut all = client.events()?;
    // The daemon's clock, read after the events, so that no event is later.
    let stats = client.stats()?;
    if let Some(name) = &args.nf
        && !all.iter().any(|event| event.nf == *name)
        && !stats.nfs.iter().any(|nf| nf.name == *name)
    {
        let known: Vec<&str> = stats.nfs.iter().map(|nf| nf.name.as_str()).collect();
        return Err(Usage(format!("no NF is named \"{name}\"; {}", nearest::instead("NF", name, &known))).into());
    }
    if !args.follow {
        all.retain(wanted);
        if all.is_empty() && !args.json {
            return Ok(writeln!(out, "nothing was decided lately")?);
        }
        return if args.json { json(out, &all) } else { Ok(show::events(out, &all, stats.time_ns)?) };
    }
    let mut seen = 0;
    loop {
        let last = all.last().map_or(0, |event| event.number);
        // A restarted daemon counts from 0.
        seen = if last < seen { 0 } else { seen };
        // Each kind has space of its own, so events of other kinds may be missing in between.
        let missed = last.saturating_sub(seen).saturating_sub(all.iter().filter(|event| event.number > seen).count() as u64);
        if seen > 0 && missed > 0 {
            eprintln!("sluice: {missed} events went by unread: more came within {} ms than are kept", FOLLOWED.as_millis());
        }
        all.retain(|event| event.number > seen && wanted(event));
        if args.json {
            for event in &all {
                writeln!(out, "{}", serde_json::to_string(event)?)?;
            }
        } else {
            show::events(out, &all, stats.time_ns)?;
        }
        out.flush()?;
        seen = last;
        std::thread::sleep(FOLLOWED);
        all = client.events()?;
    }
}

fn trace(client: &mut Client, args: TraceArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let timeout_ms = (args.timeout * 1e3) as u64;
    let wanted = args.count;
    let filter = args.filter.as_deref().map(filter::compile).transpose()?.unwrap_or_default();
    let TraceArgs { chain, rule, port, .. } = args;
    let trace = client.trace(&TraceRequest { chain, rule, port, filter, count: wanted, timeout_ms })?;
    if args.json {
        json(out, &trace)?;
    } else {
        show::trace(out, &trace)?;
    }
    out.flush()?;
    if trace.packets.is_empty() {
        anyhow::bail!("no packet came by within {} s; `sluice top` says whether any flow, --timeout waits longer", args.timeout);
    }
    if trace.timed_out {
        eprintln!("sluice: only {} of {wanted} packets came by within {} s", trace.packets.len(), args.timeout);
    }
    Ok(())
}

fn stop(client: &mut Client, args: &Stop, out: &mut dyn Write) -> anyhow::Result<()> {
    let pid = client.status()?.pid;
    // Opened before the daemon stops, so that it cannot be another process with the same number.
    let process = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
    client.shutdown()?;
    if args.no_wait {
        return Ok(writeln!(out, "sluiced (process {pid}) is shutting down")?);
    }
    let Some(process) = process else {
        return Ok(writeln!(out, "sluiced (process {pid}) is shutting down; it cannot be waited for from here")?);
    };
    let timeout = rustix::event::Timespec::try_from(Duration::from_secs_f64(args.timeout)).context("--timeout is too long")?;
    let mut fds = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let gone = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timeout)))? > 0;
    anyhow::ensure!(gone, "sluiced (process {pid}) still runs after {} s; look at its log, or kill it", args.timeout);
    Ok(writeln!(out, "sluiced (process {pid}) has stopped")?)
}

#[cfg(test)]
mod tests {
    use sluice_api::config::{Overload, PortKind};

    use std::path::Path;

    use super::*;

    fn args(name: &str, kind: &str, keys: &[&str]) -> PortAdd {
        let keys = keys.iter().map(|k| k.to_string()).collect();
        PortAdd { name: Some(name.into()), kind: Some(kind.into()), keys, overload: None, queues: None, toml: None }
    }

    fn toml(text: &str) -> PortAdd {
        PortAdd { name: None, kind: None, keys: Vec::new(), overload: None, queues: None, toml: Some(text.into()) }
    }

    #[test]
    fn a_port_can_be_said_in_three_ways() {
        let words = PortAdd { overload: Some("wait".into()), ..args("r", "pcap", &["read=/tmp/a b.pcap", "repeat=2", "rate=5"]) };
        let port = port_of(words).unwrap();
        assert_eq!((port.name.as_str(), port.overload, port.queues), ("r", Overload::Wait, 1));
        let PortKind::Pcap(pcap) = &port.kind else { panic!("{port:?}") };
        assert_eq!((pcap.read.as_deref(), pcap.repeat, pcap.rate), (Some(Path::new("/tmp/a b.pcap")), Some(2), 5.0));
        let inline = "name = \"r\", kind = \"pcap\", overload = \"wait\", read = \"/tmp/a b.pcap\", repeat = 2, rate = 5";
        assert_eq!(port_of(toml(inline)).unwrap(), port);
        assert_eq!(port_of(toml(&inline.replace(", ", "\n"))).unwrap(), port);
    }

    #[test]
    fn a_port_that_makes_no_sense_is_refused() {
        for (args, word) in [
            (args("x", "gen", &["size"]), "KEY=VALUE"),
            (args("x", "gen", &["siz=3"]), "port \"x\": a port of kind \"gen\" has no key \"siz\""),
            (args("x", "gen", &["siz=3"]), "did you mean \"size\"?"),
            (args("x", "gen", &["size=big"]), "size takes a whole number"),
            (args("x", "gen", &["size=60", "size=61"]), "twice"),
            (args("x", "gen", &["name=y"]), "on their own"),
            (args("x", "gem", &[]), "did you mean \"gen\"?"),
            (toml("kind = "), "TOML"),
        ] {
            let error = port_of(args).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_file_may_hold_one_service_or_several() {
        assert_eq!(services_of("name = \"a\"\nexec = \"x\"").unwrap()[0].name, "a");
        let two = services_of("[[service]]\nname = \"a\"\n[[service]]\nname = \"b\"\nattach = true").unwrap();
        assert_eq!(two.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(services_of("[[service]]\nname = \"a\"\n[[chain]]\nname = \"b\"\negress = \"c\"").is_err());
        assert!(services_of("nmae = \"a\"").is_err());
    }
}
