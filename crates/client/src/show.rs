//! Answers of the API as tables and lines.

use std::collections::BTreeMap;
use std::io::{self, Write};

use sluice_api::change::FormerConfig;
use sluice_api::config;
use sluice_api::health::Death;
use sluice_api::model::{
    Chain, ChainState, Event, EventKind, Fusable, Memory, Nf, NfPart, NfState, Openflow, Otlp, Pool, Port, PortState, Rule,
    Schedule, Service, Stats, Status, Thread, Timeline, Trace, Woken,
};
use sluice_api::promise::Buffers;

use sluice_cli::number::{age, grouped, rate, short, time};
use sluice_cli::table::{Cell, Table, Tone};

use crate::header;

/// Tone of an NF's state.
pub fn nf_tone(state: NfState) -> Tone {
    match state {
        NfState::Running => Tone::Good,
        NfState::Failed => Tone::Bad,
        NfState::Starting | NfState::Stopping | NfState::Restarting | NfState::Expected => Tone::Warn,
    }
}

/// Tone of a chain's state.
pub fn chain_tone(state: ChainState) -> Tone {
    match state {
        ChainState::Open => Tone::Good,
        ChainState::Refused | ChainState::Bypassing => Tone::Warn,
        ChainState::Down => Tone::Bad,
    }
}

/// State of an NF in a word; while it takes packets, the decision about it.
pub fn nf_word(nf: &Nf) -> (&'static str, Tone) {
    match nf.state {
        NfState::Running if nf.sched.throttled => ("throttled", Tone::Warn),
        NfState::Running if nf.sched.held => ("held", Tone::Warn),
        state => (state.word(), nf_tone(state)),
    }
}

/// State of a chain's entry in a word.
pub fn chain_word(chain: &Chain) -> (&'static str, Tone) {
    match chain.state {
        ChainState::Refused if chain.throttled => ("throttled", Tone::Warn),
        state => (state.word(), chain_tone(state)),
    }
}

/// An NF's share of its core, if it has one: `25 %`.
pub fn share(nf: &Nf) -> String {
    if nf.sched.share > 0.0 { format!("{:.0} %", nf.sched.share * 100.0) } else { "-".into() }
}

/// An NF's load in cores, once it is known: `0.42`, `26.5`.
pub fn load(nf: &Nf) -> String {
    match nf.sched.load {
        load if load <= 0.0 && nf.sched.service_ns <= 0.0 => "-".into(),
        load if load < 9.995 => format!("{load:.2}"),
        load => short(load),
    }
}

/// An NF's median time for a packet, once it is known: `250 ns`.
pub fn cost(nf: &Nf) -> String {
    if nf.sched.service_ns > 0.0 { time(nf.sched.service_ns.round() as u64) } else { "-".into() }
}

/// A chain's path: `fw → nat → out`.
pub fn way(chain: &Chain) -> String {
    let mut hops: Vec<&str> = chain.services.iter().map(String::as_str).collect();
    hops.push(&chain.egress);
    hops.join(" → ")
}

/// The conditions of a rule, as on the command line.
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

/// The pools of `sluice status`.
fn pools(pools: &[Pool]) -> Table {
    let columns = [
        "POOL",
        "PER",
        ">SIZE",
        ">MIN-MAX",
        ">IDLE",
        ">ASSIGNED",
        ">LINGERING",
        ">FLOWS",
        ">WAITS",
        ">FALLBACKS",
        ">DROPS",
        ">SETUP P50",
        ">P99",
    ];
    let mut table = Table::new(&columns);
    for pool in pools {
        let measured = |ns: u64| if pool.setup_ns.count == 0 { "-".into() } else { time(ns) };
        table.row(vec![
            pool.service.as_str().into(),
            pool.per.as_str().into(),
            pool.size.to_string().into(),
            format!("{}-{}", pool.min, pool.max).into(),
            pool.idle.to_string().into(),
            pool.assigned.to_string().into(),
            (pool.lingering + pool.resetting).to_string().into(),
            grouped(pool.activations).into(),
            grouped(pool.waits).into(),
            grouped(pool.fallbacks).into(),
            Cell::toned(grouped(pool.drops), if pool.drops > 0 { Tone::Warn } else { Tone::Plain }),
            measured(pool.setup_ns.p50).into(),
            measured(pool.setup_ns.p99).into(),
        ]);
    }
    table
}

/// `sluice status`.
pub fn status(out: &mut dyn Write, status: &Status, colour: bool) -> io::Result<()> {
    writeln!(out, "sluiced {}, process {}, up {}", status.version, status.pid, age(status.uptime_s))?;
    writeln!(out, "health   {}", status.health.verdict.word())?;
    for problem in &status.health.problems {
        writeln!(out, "  {} {}, since {}", problem.subject, problem.what, age(problem.since_s))?;
    }
    for warning in &status.health.warnings {
        writeln!(out, "  warning: {} {}, since {}", warning.subject, warning.what, age(warning.since_s))?;
    }
    writeln!(out, "config   {}", status.config.as_deref().unwrap_or("none"))?;
    let pages = if status.hugepages { "hugepages" } else { "ordinary pages" };
    writeln!(out, "frames   {} of {} in use, {pages}", grouped(status.frames.in_use), grouped(status.frames.total))?;
    // A single tenant has all memory, and nothing is copied.
    for memory in status.memories.iter().filter(|_| status.memories.len() > 1) {
        let copied = grouped(memory.gate_packets + memory.crossing_packets);
        let starved =
            if memory.starved > 0 { format!(", {} dropped for want of frames", grouped(memory.starved)) } else { String::new() };
        let (in_use, frames) = (grouped(memory.in_use), grouped(memory.frames));
        writeln!(out, "  tenant {}: {in_use} of {frames} in use, {copied} packets copied in{starved}", memory.tenant)?;
    }
    writeln!(out, "flows    {}", grouped(status.flows))?;
    writeln!(out, "cores    {}", status.cores)?;
    writeln!(out, "tuning   {:.2} % of a core", status.tuning_percent)?;
    writeln!(out, "buffers  {}", buffers(&status.buffers))?;
    if let Some(openflow) = &status.openflow {
        controller(out, openflow)?;
    }
    if let Some(otlp) = &status.otlp {
        writeln!(out, "metrics  {}", pushed(otlp))?;
    }
    if !status.promises.is_empty() {
        let count = |(state, names): (&String, &Vec<String>)| match state.as_str() {
            "kept" => format!("{} kept", names.len()),
            word => format!("{} {word} ({})", names.len(), names.join(", ")),
        };
        writeln!(out, "promises {}", status.promises.iter().map(count).collect::<Vec<_>>().join(", "))?;
    }
    for Fusable { chain, services, packet_ns, core, saves_percent } in &status.fusable {
        let (services, cost) = (services.join(", "), time(packet_ns.round() as u64));
        writeln!(out, "advice   {services} cost {cost} together: fused saves {saves_percent:.0} % of core {core} (chain {chain})")?;
    }
    if status.threads.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    threads(&status.threads).print(out, colour)?;
    if !status.pools.is_empty() {
        writeln!(out)?;
        pools(&status.pools).print(out, colour)?;
    }
    if !status.schedules.is_empty() {
        writeln!(out)?;
        schedules(&status.schedules).print(out, colour)?;
    }
    Ok(())
}

fn threads(threads: &[Thread]) -> Table {
    let mut table = Table::new(&["THREAD", ">CORE", ">BUSY", ">ROUND P50", ">P99", ">P99.9"]);
    for thread in threads {
        let measured = |ns: u64| if thread.round_ns.count == 0 { "-".into() } else { time(ns) };
        table.row(vec![
            thread.role.as_str().into(),
            thread.core.to_string().into(),
            format!("{:.0} %", thread.busy_percent).into(),
            measured(thread.round_ns.p50).into(),
            measured(thread.round_ns.p99).into(),
            measured(thread.round_ns.p999).into(),
        ]);
    }
    table
}

fn schedules(schedules: &[Schedule]) -> Table {
    let mut table = Table::new(&[">CORE", "TURNS BY", ">SWITCH", ">TURNS", "ENDED BY", ">LONGEST WAIT", "NFS"]);
    for schedule in schedules {
        let turns: u64 = schedule.turns.values().sum();
        let by: Vec<String> = schedule.turns.iter().filter(|(_, n)| **n > 0).map(|(why, n)| format!("{why} {n}")).collect();
        table.row(vec![
            schedule.core.to_string().into(),
            schedule.mechanism.as_str().into(),
            format!("{:.1} us", schedule.switch_ns as f64 / 1e3).into(),
            grouped(turns).into(),
            by.join(", ").into(),
            format!("{:.2} ms", schedule.longest_wait_ns as f64 / 1e6).into(),
            schedule.nfs.join(" ").into(),
        ]);
    }
    table
}

/// Bounds of NICs' receive queues, in one line.
fn buffers(buffers: &Buffers) -> String {
    let nics = match buffers.queues {
        // Without queues to bound, nothing is missing.
        0 => return "no receive queue of a NIC".to_string(),
        1 => "1 receive queue of a NIC".to_string(),
        n => format!("{n} receive queues of NICs"),
    };
    let bound = match (buffers.per_queue, buffers.by.as_deref()) {
        (Some(most), Some("given")) => format!("{most} packets each at most, as the configuration says"),
        (Some(most), by) => {
            let ways = buffers.ways.map_or(String::new(), |ways| {
                let way =
                    buffers.way_bytes.map_or(String::new(), |bytes| format!(" of {:.2} MiB", bytes as f64 / f64::from(1 << 20)));
                format!(" that stay in {ways} I/O ways{way} (by {})", by.unwrap_or("?"))
            });
            format!("{most} packets each at most{ways}")
        }
        (None, _) => "not bounded".into(),
    };
    let why = buffers.why.as_ref().map_or(String::new(), |why| format!("; {why}"));
    format!("{nics}, {bound}{why}")
}

/// What became of pushed metrics, in one line.
fn pushed(otlp: &Otlp) -> String {
    let Otlp { collector, pushes, dropped_pushes, rejected_points, problem } = otlp;
    let refused = if *rejected_points > 0 { format!(", {} values refused", grouped(*rejected_points)) } else { String::new() };
    let problem = problem.as_ref().map_or(String::new(), |problem| format!(" ({problem})"));
    format!("{} pushes to {collector}, {} dropped{refused}{problem}", grouped(*pushes), grouped(*dropped_pushes))
}

/// The SDN controller's lines of `sluice status`.
fn controller(out: &mut dyn Write, openflow: &Openflow) -> io::Result<()> {
    let state = if openflow.connected { "connected" } else { "not connected" };
    write!(out, "openflow {} {state} for {}", openflow.controller, age(openflow.since_s))?;
    match &openflow.problem {
        Some(problem) => writeln!(out, " ({problem})")?,
        None => writeln!(out)?,
    }
    writeln!(
        out,
        "         {} entries, {} flow-mods, {} packet-ins, {} packet-ins dropped, {} errors, {} packets held",
        grouped(openflow.entries),
        grouped(openflow.flow_mods),
        grouped(openflow.packet_ins),
        grouped(openflow.dropped_packet_ins),
        grouped(openflow.errors),
        grouped(openflow.held)
    )
}

/// Packets that ended in an NF: by its verdict, or, if it has none (foreign), by not coming back.
pub fn dropped(nf: &Nf) -> u64 {
    nf.foreign.as_ref().map_or(nf.verdict_drops, |foreign| foreign.not_back)
}

/// `sluice nf list`. The table is wide: what is 0 everywhere, in health, has no column.
pub fn nfs(nfs: &[Nf]) -> Table {
    // Only if any has died, as the table is wide.
    let have_died = nfs.iter().any(|nf| nf.last_death.is_some());
    let mut columns = vec![
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
        ">SHARE",
        ">LOAD",
        ">COST",
        ">BURST",
        ">P99",
        ">THROTTLES",
        ">MARKED",
        ">RESTARTS",
        ">VIOLATIONS",
    ];
    columns.extend(have_died.then_some("LAST DEATH"));
    let mut table = Table::new(&columns);
    for nf in nfs {
        let measured = |ns: u64| if nf.service_ns.count == 0 { "-".into() } else { time(ns) };
        let (word, tone) = nf_word(nf);
        let mut row = vec![
            nf.name.as_str().into(),
            Cell::toned(word, tone),
            nf.pid.map_or("-".into(), |pid| pid.to_string()).into(),
            nf.core.to_string().into(),
            nf.mode.as_str().into(),
            grouped(nf.rx_packets).into(),
            grouped(nf.tx_packets).into(),
            grouped(dropped(nf)).into(),
            format!("{}/{}", nf.queue, nf.queue_capacity).into(),
            format!("{:.0} %", nf.cpu_percent).into(),
            share(nf).into(),
            load(nf).into(),
            cost(nf).into(),
            measured(nf.service_ns.p50).into(),
            measured(nf.service_ns.p99).into(),
            grouped(nf.sched.throttles).into(),
            grouped(nf.sched.marked).into(),
            nf.restarts.to_string().into(),
            Cell::toned(nf.violations.to_string(), if nf.violations > 0 { Tone::Bad } else { Tone::Plain }),
        ];
        row.extend(have_died.then(|| nf.last_death.as_ref().map_or("-".into(), |death| last_death(death).into())));
        table.row(row);
    }
    table.without_zeros(&["THROTTLES", "MARKED", "RESTARTS", "VIOLATIONS"])
}

/// An NF's last death: `2026-11-25T02:01:40.123Z killed by signal 11 (SIGSEGV)`.
fn last_death(death: &Death) -> String {
    format!("{} {}", clock(death.unix_ms), death.what)
}

/// `sluice nf show`; `now_ns` is the daemon's clock.
pub fn nf(out: &mut dyn Write, nf: &Nf, now_ns: u64) -> io::Result<()> {
    let process = nf.pid.map_or("none".into(), |pid| pid.to_string());
    let died = match &nf.last_death {
        Some(death) => format!("{} ({} ago)", last_death(death), age(now_ns.saturating_sub(death.time_ns) as f64 / 1e9)),
        None => "never".into(),
    };
    let lines = [
        ("name", nf.name.clone()),
        ("service", nf.service.clone()),
        ("state", nf_word(nf).0.into()),
        ("process", process),
        ("core", nf.core.to_string()),
        ("packets", format!("{} in, {} out, {} dropped", grouped(nf.rx_packets), grouped(nf.tx_packets), grouped(dropped(nf)))),
        ("queue", format!("{} of {}", nf.queue, nf.queue_capacity)),
        ("restarts", nf.restarts.to_string()),
        ("stops", format!("{} for violations or because it stood still", nf.stops)),
        ("violations", nf.violations.to_string()),
        ("last death", died),
    ];
    lines.iter().try_for_each(|(name, value)| writeln!(out, "{name:<10}  {value}"))
}

/// A time of day: `2026-11-25T02:01:40.123Z`.
fn clock(unix_ms: u64) -> String {
    let Ok(at) = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ms) * 1_000_000) else { return "?".into() };
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second, ms) = at.to_hms_milli();
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z", u8::from(month))
}

/// `sluice undo --list`.
pub fn history(history: &[FormerConfig]) -> Table {
    let mut table = Table::new(&[">NUMBER", "UNTIL", "REPLACED BY"]);
    for former in history {
        table.row(vec![former.number.to_string().into(), clock(former.unix_ms).into(), former.source.clone().into()]);
    }
    table
}

/// Until when a former configuration was in force, and what replaced it.
pub fn until(former: &FormerConfig) -> String {
    format!("in force until {}, when it was replaced by {}", clock(former.unix_ms), former.source)
}

/// `sluice service list`.
pub fn services(services: &[Service]) -> Table {
    let mut table = Table::new(&["NAME", ">RUNNING", ">INSTANCES", "CORES", "MODE", ">RING", "PROGRAM"]);
    for service in services {
        let cores: Vec<String> = service.cores.iter().map(usize::to_string).collect();
        let program = match (&service.exec, &service.container) {
            (Some(exec), None) => [std::slice::from_ref(exec), &service.args].concat().join(" "),
            (exec, Some(container)) => {
                let words = [format!("(container {container})")].into_iter().chain(exec.clone()).chain(service.args.clone());
                words.collect::<Vec<_>>().join(" ")
            }
            (None, None) => "(attaches by itself)".into(),
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
    let columns = ["NAME", "WAY", "STATE", "ON FAILURE", ">ENTERED", ">LEFT", ">DROPPED", ">WASTED", ">P50", ">P99", ">P99.9"];
    let mut table = Table::new(&columns);
    for chain in chains {
        let measured = |ns: u64| if chain.latency_ns.count == 0 { "-".into() } else { time(ns) };
        let (word, tone) = chain_word(chain);
        table.row(vec![
            chain.name.as_str().into(),
            way(chain).into(),
            Cell::toned(word, tone),
            chain.on_failure.as_str().into(),
            grouped(chain.entry_packets).into(),
            grouped(chain.exit_packets).into(),
            grouped(chain.drops.values().sum()).into(),
            Cell::toned(grouped(chain.wasted), if chain.wasted > 0 { Tone::Warn } else { Tone::Plain }),
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

/// `sluice tenant list`.
pub fn tenants(memories: &[Memory]) -> Table {
    let mut table = Table::new(&["TENANT", ">FRAMES", ">FREE", ">WITH NFS", ">COPIED AT GATE", ">CROSSING", ">BYTES", ">STARVED"]);
    for memory in memories {
        table.row(vec![
            memory.tenant.as_str().into(),
            grouped(memory.frames).into(),
            grouped(memory.free).into(),
            grouped(memory.in_use).into(),
            grouped(memory.gate_packets).into(),
            grouped(memory.crossing_packets).into(),
            grouped(memory.gate_bytes + memory.crossing_bytes).into(),
            Cell::toned(grouped(memory.starved), if memory.starved > 0 { Tone::Warn } else { Tone::Plain }),
        ]);
    }
    table
}

/// `sluice port list`.
pub fn ports(ports: &[Port]) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "KIND",
        "STATE",
        ">QUEUES",
        "OVERLOAD",
        ">IN",
        ">IN BYTES",
        ">OUT",
        ">OUT BYTES",
        ">OUT DROPS",
        ">ENTRY DROPS",
        ">OVERSIZE",
        "WHAT",
    ]);
    for port in ports {
        // A port that only sends has nothing to finish.
        let done = if port.finished && port.rx_packets > 0 { " (finished)" } else { "" };
        table.row(vec![
            port.name.as_str().into(),
            port.kind.as_str().into(),
            match port.state {
                PortState::Up if port.behind_pps > 0.0 => Cell::toned(format!("behind by {}", rate(port.behind_pps)), Tone::Warn),
                PortState::Up => PortState::Up.words().into(),
                other => Cell::toned(other.words(), Tone::Warn),
            },
            port.queues.to_string().into(),
            port.overload.as_str().into(),
            grouped(port.rx_packets).into(),
            grouped(port.rx_bytes).into(),
            grouped(port.tx_packets).into(),
            grouped(port.tx_bytes).into(),
            grouped(port.not_sent()).into(),
            grouped(port.entry_drops).into(),
            grouped(port.dropped("oversize")).into(),
            format!("{}{done}", port.description).into(),
        ]);
    }
    table.without_zeros(&["OUT DROPS", "ENTRY DROPS", "OVERSIZE"])
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
    for nf in &stats.nfs {
        let Some(f) = &nf.foreign else { continue };
        let counts = [
            ("went in", f.entered),
            ("came out", f.returned),
            ("made by it", f.originated),
            (if f.by_design { "not back (by design)" } else { "not back" }, f.not_back),
            ("inside", f.inside),
            ("strays", f.strays),
            ("missed", f.missed),
            ("overruns", f.overruns),
            ("processes", f.processes.len() as u64),
        ];
        let words: Vec<String> = counts.iter().map(|(name, n)| format!("{name} {}", grouped(*n))).collect();
        writeln!(out, "\nForeign NF {}: {}", nf.name, words.join(", "))?;
    }
    for nf in stats.nfs.iter().filter(|nf| !nf.parts.is_empty()) {
        let part = |part: &NfPart| {
            let time = part.packet_ns.map_or(String::new(), |ns| format!(", {ns:.0} ns each"));
            format!("{} {} ({} dropped{time})", part.service, grouped(part.packets), grouped(part.drops))
        };
        writeln!(out, "\nParts of {}: {}", nf.name, nf.parts.iter().map(part).collect::<Vec<_>>().join(" → "))?;
    }
    let mut woken: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for nf in &stats.nfs {
        let Some(of_nf) = &nf.woken else { continue };
        let sums = woken.entry(&nf.service).or_default();
        sums.iter_mut().zip(of_nf.causes()).for_each(|(sum, (_, n))| *sum += n);
    }
    for (service, sums) in woken {
        let words = Woken::default().causes().into_iter().zip(sums);
        let words: Vec<String> = words.map(|((cause, _), n)| format!("{cause} {}", grouped(n))).collect();
        writeln!(out, "\nNFs of {service} were woken by: {}", words.join(", "))?;
    }
    let details: Vec<_> = stats.ports.iter().filter(|p| !p.details.is_empty()).collect();
    for port in details {
        let words: Vec<String> = port.details.iter().map(|(name, value)| format!("{name} {value}")).collect();
        writeln!(out, "\nPort {}: {}", port.name, words.join(", "))?;
    }
    Ok(())
}

/// `sluice events`: a line for each, with its time before (-) or after `now_ns`.
pub fn events(out: &mut dyn Write, events: &[Event], now_ns: u64) -> io::Result<()> {
    let of = |event: &Event| {
        let port = event.port.as_ref().map(|port| format!("port {port}"));
        port.or_else(|| event.subject.clone()).unwrap_or_else(|| event.nf.clone())
    };
    let name = events.iter().map(|e| of(e).chars().count()).max().unwrap_or(0);
    for event in events {
        // 0 if the daemon reports no time of day.
        let clock = if event.unix_ms > 0 { format!("{}  ", clock(event.unix_ms)) } else { String::new() };
        writeln!(out, "{clock}{:>14}  {:<name$}  {}", relative(event.time_ns, now_ns), of(event), decision(event))?;
    }
    Ok(())
}

/// Time from `now_ns`: `-1.3 s`, `+0.2 s`, `-3 min 20 s`.
fn relative(time_ns: u64, now_ns: u64) -> String {
    let seconds = (i128::from(time_ns) - i128::from(now_ns)) as f64 / 1e9;
    match seconds.abs() {
        0.0..60.0 => format!("{seconds:+.1} s"),
        far => format!("{}{}", if seconds < 0.0 { '-' } else { '+' }, age(far)),
    }
}

/// An event in words.
fn decision(event: &Event) -> String {
    match event.event {
        EventKind::Throttle => {
            let now = if event.throttled == Some(true) { "still is" } else { "is open again" };
            match event.count {
                0 if event.throttled == Some(true) => "throttled".into(),
                0 => "open again".into(),
                1 => format!("throttled once, {now}"),
                n => format!("throttled {} times, {now}", grouped(n)),
            }
        }
        EventKind::Share => {
            let percent = |share: Option<f64>| match share {
                Some(share) if share > 0.0 => format!("{:.1} %", share * 100.0),
                _ => "none".into(),
            };
            let writes = if event.count == 1 { "1 write".into() } else { format!("{} writes", grouped(event.count)) };
            format!("share {} → {} ({writes})", percent(event.from), percent(event.to))
        }
        EventKind::Port => event.state.unwrap_or_default().words().into(),
        kind => format!("{}: {}", kind.word(), event.text.as_deref().unwrap_or("")),
    }
}

/// `sluice record --list`.
pub fn timelines(timelines: &[Timeline]) -> Table {
    let mut table = Table::new(&["NAME", "WRITTEN", "WHY", ">BYTES"]);
    for timeline in timelines {
        table.row(vec![
            timeline.name.as_str().into(),
            clock(timeline.unix_ms).into(),
            timeline.why.as_str().into(),
            grouped(timeline.bytes).into(),
        ]);
    }
    table
}

/// `sluice trace`.
pub fn trace(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    for (i, packet) in trace.packets.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        let took = packet.hops.last().map_or(0, |hop| hop.ns);
        // 0 if the daemon reports no length.
        let bytes = if packet.bytes > 0 { format!(" · {} bytes", packet.bytes) } else { String::new() };
        let chain = packet.chain.as_ref().map_or("no chain".to_string(), |chain| format!("chain {chain}"));
        writeln!(out, "packet {} · {chain}{bytes} · {} · {}", i + 1, packet.outcome, time(took))?;
        if let Some(headers) = header::line_of_hex(&packet.packet) {
            writeln!(out, "  {headers}")?;
        }
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
    use sluice_api::health::{Health, Problem};
    use sluice_api::model;

    use super::*;

    fn throttle(count: u64, throttled: bool) -> Event {
        Event { nf: "ids.0".into(), event: EventKind::Throttle, count, throttled: Some(throttled), ..Event::default() }
    }

    #[test]
    fn a_decision_is_a_line_with_its_time() {
        let share = Event { nf: "nat.0".into(), event: EventKind::Share, count: 2, ..Event::default() };
        let all = [
            Event { time_ns: 800_000_000_000, from: Some(0.0), to: Some(0.25), count: 1, ..share.clone() },
            Event { time_ns: 998_700_000_000, from: Some(0.25), to: Some(0.501), ..share },
            Event { time_ns: 999_000_000_000, ..throttle(12, true) },
            Event { time_ns: 1_000_200_000_000, ..throttle(0, false) },
        ];
        let mut out = Vec::new();
        events(&mut out, &all, 1_000_000_000_000).unwrap();
        let want = [
            "   -3 min 20 s  nat.0  share none → 25.0 % (1 write)",
            "        -1.3 s  nat.0  share 25.0 % → 50.1 % (2 writes)",
            "        -1.0 s  ids.0  throttled 12 times, still is",
            "        +0.2 s  ids.0  open again",
        ];
        assert_eq!(String::from_utf8(out).unwrap().lines().collect::<Vec<_>>(), want);
        let (text, subject) = (Some("1 change".to_string()), Some("configuration".to_string()));
        let applied = Event { event: EventKind::Apply, unix_ms: 1_764_036_100_123, text, subject, ..Event::default() };
        let mut out = Vec::new();
        events(&mut out, &[applied], 0).unwrap();
        let want = "2025-11-25T02:01:40.123Z          +0.0 s  configuration  apply: 1 change\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        assert_eq!(decision(&throttle(1, false)), "throttled once, is open again");
        assert_eq!(decision(&throttle(1_000, true)), "throttled 1,000 times, still is");
    }

    #[test]
    fn a_traced_packet_is_shown_with_its_chain_if_it_has_one() {
        let hops = vec![model::Hop { place: "port in".into(), ns: 0 }];
        let stray = model::TracedPacket { bytes: 60, hops, outcome: "dropped: no_rule".into(), ..Default::default() };
        let (chain, outcome) = (Some("web".into()), "dropped: entry".into());
        let packet = header::hex(&header::packet("udp 10.0.0.1:1 > 10.0.0.2:2").unwrap().bytes);
        let refused = model::TracedPacket { chain, outcome, packet, ..stray.clone() };
        let mut out = Vec::new();
        trace(&mut out, &Trace { packets: vec![stray, refused], timed_out: false }).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = out.lines().filter(|line| line.starts_with("packet")).collect();
        let want =
            ["packet 1 · no chain · 60 bytes · dropped: no_rule · 0 ns", "packet 2 · chain web · 60 bytes · dropped: entry · 0 ns"];
        assert_eq!(lines, want);
        let said: Vec<&str> = out.lines().filter(|line| line.starts_with("  udp")).collect();
        assert_eq!(said, ["  udp 10.0.0.1:1 > 10.0.0.2:2"]);
    }

    #[test]
    fn a_state_says_what_was_decided() {
        let mut nf = Nf { state: NfState::Running, ..Nf::default() };
        assert_eq!((nf_word(&nf).0, share(&nf), load(&nf), cost(&nf)), ("running", "-".into(), "-".into(), "-".into()));
        nf.sched.held = true;
        assert_eq!(nf_word(&nf).0, "held");
        (nf.sched.throttled, nf.sched.share, nf.sched.service_ns) = (true, 0.254, 249.6);
        assert_eq!(
            (nf_word(&nf).0, share(&nf), load(&nf), cost(&nf)),
            ("throttled", "25 %".into(), "0.00".into(), "250 ns".into())
        );
        let loads = [9.994, 26.53, 260.4, 4e6].map(|cores| {
            nf.sched.load = cores;
            load(&nf)
        });
        assert_eq!(loads, ["9.99", "26.5", "260", "4.00 M"]);
        nf.state = NfState::Restarting;
        assert_eq!(nf_word(&nf).0, "restarting");
        let mut chain = Chain { state: ChainState::Refused, ..Chain::default() };
        assert_eq!(chain_word(&chain).0, "refused");
        chain.throttled = true;
        assert_eq!(chain_word(&chain).0, "throttled");
        chain.state = ChainState::Down;
        assert_eq!(chain_word(&chain).0, "down");
    }

    #[test]
    fn a_port_that_cannot_keep_its_rate_says_so() {
        let port = |name: &str, behind_pps: f64| Port { name: name.into(), kind: "gen".into(), behind_pps, ..Port::default() };
        let mut out = Vec::new();
        ports(&[port("slow", 34_800.0), port("quick", 0.0)]).print(&mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("slow").contains(" behind by 34.8 k/s ") && line("quick").contains(" up "), "{text}");
        // A warning: the rate is no fault of the daemon.
        let what = "makes 65200 packets per second of the 100000 that its rate asks for".to_string();
        let health = Health { warnings: vec![Problem { subject: "port slow".into(), what, since_s: 3.0 }], ..Health::default() };
        let mut out = Vec::new();
        status(&mut out, &Status { health, ..Status::default() }, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("health   healthy\n  warning: port slow makes 65200 ") && text.contains(", since 3 s\n"), "{text}");
    }

    #[test]
    fn pushed_metrics_are_a_line_with_what_was_lost() {
        let otlp = Otlp { collector: "http://127.0.0.1:4318".into(), pushes: 1_234, ..Otlp::default() };
        assert_eq!(pushed(&otlp), "1,234 pushes to http://127.0.0.1:4318, 0 dropped");
        let otlp = Otlp { dropped_pushes: 2, rejected_points: 5, problem: Some("it answers 503".into()), ..otlp };
        let mut out = Vec::new();
        status(&mut out, &Status { otlp: Some(otlp), ..Status::default() }, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let want = "metrics  1,234 pushes to http://127.0.0.1:4318, 2 dropped, 5 values refused (it answers 503)\n";
        assert!(text.contains(want), "{text}");
    }

    #[test]
    fn a_chain_that_is_better_fused_is_a_line() {
        let services = ["firewall", "nat", "monitor"].map(String::from).to_vec();
        let web = Fusable { chain: "web".into(), services, packet_ns: 239.6, core: 1, saves_percent: 35.2 };
        let mut out = Vec::new();
        status(&mut out, &Status { fusable: vec![web], ..Status::default() }, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let want = "\nadvice   firewall, nat, monitor cost 240 ns together: fused saves 35 % of core 1 (chain web)\n";
        assert!(text.ends_with(want), "{text}");
    }

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
