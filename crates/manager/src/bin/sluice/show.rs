//! What the API says, as tables and lines.

use std::collections::BTreeMap;
use std::io::{self, Write};

use sluice_manager::config::model as config;
use sluice_manager::control::model::{Chain, ChainState, Nf, NfState, Port, Rule, Service, Stats, Status, Trace};

use crate::number::{age, grouped, time};
use crate::table::{Cell, Table, Tone};

/// Colour or tone of a state.
pub fn nf_tone(state: NfState) -> Tone {
    match state {
        NfState::Running => Tone::Good,
        NfState::Failed => Tone::Bad,
        NfState::Starting | NfState::Stopping | NfState::Restarting | NfState::Expected => Tone::Warn,
    }
}

/// Colour or tone of a state.
pub fn chain_tone(state: ChainState) -> Tone {
    match state {
        ChainState::Open => Tone::Good,
        ChainState::Refused | ChainState::Bypassing => Tone::Warn,
        ChainState::Down => Tone::Bad,
    }
}

/// A chain's way: `fw → nat → out`.
pub fn way(chain: &Chain) -> String {
    let mut hops: Vec<&str> = chain.services.iter().map(String::as_str).collect();
    hops.push(&chain.egress);
    hops.join(" → ")
}

/// What a rule matches, in the words of the command line.
pub fn matches(rule: &config::Rule) -> String {
    let range = |range: &config::PortRange| match range {
        config::PortRange::One(port) => port.to_string(),
        config::PortRange::Text(text) => text.clone(),
    };
    let mut words = Vec::new();
    let mut word = |key: &str, value: Option<String>| words.extend(value.map(|v| format!("{key} {v}")));
    word("port", rule.port.clone());
    word("vlan", rule.vlan.map(|v| v.to_string()));
    word("protocol", rule.protocol.clone());
    word("src", rule.src.clone());
    word("dst", rule.dst.clone());
    word("src-port", rule.src_port.as_ref().map(range));
    word("dst-port", rule.dst_port.as_ref().map(range));
    word("dscp", rule.dscp.map(|v| v.to_string()));
    if words.is_empty() { "everything".into() } else { words.join(", ") }
}

/// `sluice status`.
pub fn status(out: &mut dyn Write, status: &Status, colour: bool) -> io::Result<()> {
    writeln!(out, "sluiced {}, process {}, up {}", status.version, status.pid, age(status.uptime_s))?;
    writeln!(out, "config   {}", status.config.as_deref().unwrap_or("none"))?;
    let pages = if status.hugepages { "hugepages" } else { "ordinary pages" };
    writeln!(out, "frames   {} of {} in use, {pages}", grouped(status.frames.in_use), grouped(status.frames.total))?;
    writeln!(out, "flows    {}", grouped(status.flows))?;
    writeln!(out, "cores    {}", status.cores)?;
    if status.threads.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&["THREAD", ">CORE", ">BUSY"]);
    for thread in &status.threads {
        table.row(vec![
            thread.role.as_str().into(),
            thread.core.to_string().into(),
            format!("{:.0} %", thread.busy_percent).into(),
        ]);
    }
    table.print(out, colour)
}

/// `sluice nf list`.
pub fn nfs(nfs: &[Nf]) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "STATE",
        ">PID",
        ">CORE",
        "MODE",
        ">IN",
        ">OUT",
        ">DROPPED",
        ">QUEUE",
        ">CPU",
        ">BURST",
        ">P99",
        ">RESTARTS",
        ">VIOLATIONS",
    ]);
    for nf in nfs {
        let measured = |ns: u64| if nf.service_ns.count == 0 { "-".into() } else { time(ns) };
        table.row(vec![
            nf.name.as_str().into(),
            Cell::toned(nf.state.word(), nf_tone(nf.state)),
            nf.pid.map_or("-".into(), |pid| pid.to_string()).into(),
            nf.core.to_string().into(),
            nf.mode.as_str().into(),
            grouped(nf.rx_packets).into(),
            grouped(nf.tx_packets).into(),
            grouped(nf.verdict_drops).into(),
            format!("{}/{}", nf.queue, nf.queue_capacity).into(),
            format!("{:.0} %", nf.cpu_percent).into(),
            measured(nf.service_ns.p50).into(),
            measured(nf.service_ns.p99).into(),
            nf.restarts.to_string().into(),
            Cell::toned(nf.violations.to_string(), if nf.violations > 0 { Tone::Bad } else { Tone::Plain }),
        ]);
    }
    table
}

/// `sluice service list`.
pub fn services(services: &[Service]) -> Table {
    let mut table = Table::new(&["NAME", ">RUNNING", ">INSTANCES", "CORES", "MODE", ">RING", "PROGRAM"]);
    for service in services {
        let cores: Vec<String> = service.cores.iter().map(usize::to_string).collect();
        let program = match &service.exec {
            Some(exec) => [std::slice::from_ref(exec), &service.args].concat().join(" "),
            None => "(attaches by itself)".into(),
        };
        table.row(vec![
            service.name.as_str().into(),
            service.running.to_string().into(),
            service.instances.len().to_string().into(),
            cores.join(",").into(),
            service.mode.as_str().into(),
            service.ring.to_string().into(),
            program.into(),
        ]);
    }
    table
}

/// `sluice chain list`.
pub fn chains(chains: &[Chain]) -> Table {
    let mut table = Table::new(&["NAME", "WAY", "STATE", "ON FAILURE", ">ENTERED", ">LEFT", ">DROPPED", ">P50", ">P99", ">P99.9"]);
    for chain in chains {
        let measured = |ns: u64| if chain.latency_ns.count == 0 { "-".into() } else { time(ns) };
        table.row(vec![
            chain.name.as_str().into(),
            way(chain).into(),
            Cell::toned(chain.state.word(), chain_tone(chain.state)),
            chain.on_failure.as_str().into(),
            grouped(chain.entry_packets).into(),
            grouped(chain.exit_packets).into(),
            grouped(chain.drops.values().sum()).into(),
            measured(chain.latency_ns.p50).into(),
            measured(chain.latency_ns.p99).into(),
            measured(chain.latency_ns.p999).into(),
        ]);
    }
    table
}

/// `sluice rule list`.
pub fn rules(rules: &[Rule]) -> Table {
    let mut table = Table::new(&[">#", "NAME", "MATCHES", "CHAIN", ">DECISIONS"]);
    for rule in rules {
        table.row(vec![
            rule.position.to_string().into(),
            rule.name.as_str().into(),
            matches(&rule.matches).into(),
            rule.chain.as_str().into(),
            grouped(rule.hits).into(),
        ]);
    }
    table
}

/// `sluice port list`.
pub fn ports(ports: &[Port]) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "KIND",
        ">QUEUES",
        "OVERLOAD",
        ">IN",
        ">IN BYTES",
        ">OUT",
        ">OUT BYTES",
        ">OUT DROPS",
        ">ENTRY DROPS",
        "WHAT",
    ]);
    for port in ports {
        // A port that only sends has nothing to finish.
        let done = if port.finished && port.rx_packets > 0 { " (finished)" } else { "" };
        table.row(vec![
            port.name.as_str().into(),
            port.kind.as_str().into(),
            port.queues.to_string().into(),
            port.overload.as_str().into(),
            grouped(port.rx_packets).into(),
            grouped(port.rx_bytes).into(),
            grouped(port.tx_packets).into(),
            grouped(port.tx_bytes).into(),
            grouped(port.tx_drops).into(),
            grouped(port.entry_drops).into(),
            format!("{}{done}", port.description).into(),
        ]);
    }
    table
}

fn drops(drops: &BTreeMap<String, u64>) -> Table {
    let mut table = Table::new(&["REASON", ">DROPPED"]);
    for (reason, n) in drops {
        table.row(vec![reason.as_str().into(), grouped(*n).into()]);
    }
    table
}

/// `sluice stats`.
pub fn stats(out: &mut dyn Write, stats: &Stats, colour: bool) -> io::Result<()> {
    status(out, &stats.status, colour)?;
    let tables = [
        ("Ports", ports(&stats.ports), stats.ports.is_empty()),
        ("Services", services(&stats.services), stats.services.is_empty()),
        ("NFs", nfs(&stats.nfs), stats.nfs.is_empty()),
        ("Chains", chains(&stats.chains), stats.chains.is_empty()),
        ("Rules", rules(&stats.rules), stats.rules.is_empty()),
        ("Drops", drops(&stats.drops), stats.drops.is_empty()),
    ];
    for (title, table, empty) in &tables {
        writeln!(out, "\n{title}{}", if *empty { ": none" } else { "" })?;
        if !empty {
            table.print(out, colour)?;
        }
    }
    let details: Vec<_> = stats.ports.iter().filter(|p| !p.details.is_empty()).collect();
    for port in details {
        let words: Vec<String> = port.details.iter().map(|(name, value)| format!("{name} {value}")).collect();
        writeln!(out, "\nPort {}: {}", port.name, words.join(", "))?;
    }
    Ok(())
}

/// `sluice trace`.
pub fn trace(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    for (i, packet) in trace.packets.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        let took = packet.hops.last().map_or(0, |hop| hop.ns);
        // A daemon that does not say how long the packet is says 0.
        let bytes = if packet.bytes > 0 { format!(" · {} bytes", packet.bytes) } else { String::new() };
        writeln!(out, "packet {} · chain {}{bytes} · {} · {}", i + 1, packet.chain, packet.outcome, time(took))?;
        let mut before = None;
        for hop in &packet.hops {
            let step = before.map_or(String::new(), |then| format!("+{}", time(hop.ns.saturating_sub(then))));
            writeln!(out, "  {:>9}  {step:>10}  {}", time(hop.ns), hop.place)?;
            before = Some(hop.ns);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_reads_like_its_command_line() {
        let rule = config::Rule {
            port: Some("in".into()),
            vlan: Some(42),
            dst_port: Some(config::PortRange::Text("80-81".into())),
            src_port: Some(config::PortRange::One(9)),
            ..Default::default()
        };
        assert_eq!(matches(&rule), "port in, vlan 42, src-port 9, dst-port 80-81");
        assert_eq!(matches(&config::Rule::default()), "everything");
    }
}
