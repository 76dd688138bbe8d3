//! `sluice flows`.
//!
//! `--follow` asks again and again for the flows that have ended since: the daemon keeps the last
//! ones, and says how many it does not have any more.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use sluice_api::client::Client;
use sluice_api::model::{FlowLogCounts, FlowOrder, FlowReport, FlowsReply, FlowsRequest, MAX_FLOWS};
use sluice_api::parse;
use sluice_api::protocol::{ProtocolMatch, has_ports};
use sluice_cli::number::{age, grouped, time};
use sluice_cli::table::{Cell, Table, Tone, colour};
use sluice_cli::usage::json;

use crate::filter;

#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Show each flow when it ends, until Ctrl-C
    #[arg(long, short, conflicts_with_all = ["top", "live", "ended", "count"])]
    pub follow: bool,
    /// The flow that ended with this number, which an exemplar of a metric names
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
          conflicts_with_all = ["follow", "top", "live", "ended", "count"])]
    pub number: Option<u64>,
    /// Only flows with packets that were dropped, or without
    #[arg(long, value_enum)]
    pub verdict: Option<FlowVerdict>,
    /// Only flows of this chain
    #[arg(long)]
    pub chain: Option<String>,
    /// Only flows of chains of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only flows whose packets this filter accepts, in libpcap's language
    #[arg(long, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// Those with most of it first, not those with the latest packets
    #[arg(long, value_enum, value_name = "WHAT")]
    pub top: Option<TopFlows>,
    /// Only flows that go on
    #[arg(long, conflicts_with = "ended")]
    pub live: bool,
    /// Only flows that have ended
    #[arg(long)]
    pub ended: bool,
    /// How many flows
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(sluice_api::model::MAX_FLOWS)))]
    pub count: u32,
    /// Print JSON, as the API returns it; with --follow a line for each flow
    #[arg(long)]
    pub json: bool,
}

/// What became of the packets of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlowVerdict {
    /// Some were dropped
    Dropped,
    /// None was dropped
    Forwarded,
}

/// What flows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopFlows {
    /// Bytes
    Bytes,
    /// Packets
    Packets,
    /// Packets that were dropped
    Dropped,
    /// Average latency
    Latency,
}

/// Time between two questions of `--follow`, unless more flows are left.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for which flows are metered before the first answer is of use.
const SETTLED_S: f64 = 1.0;

/// `sluice flows`.
pub fn run(client: &mut Client, args: FlowsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let filter = args.filter.as_deref().map(filter::compile).transpose()?.unwrap_or_default();
    let order = match args.top {
        None => FlowOrder::Last,
        Some(TopFlows::Bytes) => FlowOrder::Bytes,
        Some(TopFlows::Packets) => FlowOrder::Packets,
        Some(TopFlows::Dropped) => FlowOrder::Dropped,
        Some(TopFlows::Latency) => FlowOrder::Latency,
    };
    let request = FlowsRequest {
        chain: args.chain,
        tenant: args.tenant,
        dropped: args.verdict.map(|verdict| verdict == FlowVerdict::Dropped),
        filter,
        live: !args.ended,
        ended: !args.live,
        after: None,
        order,
        limit: args.count,
    };
    match args.number {
        Some(number) => one(client, number, request, args.json, out),
        None if args.follow => follow(client, request, args.json, out),
        None => list(client, &request, args.json, out),
    }
}

fn one(client: &mut Client, number: u64, request: FlowsRequest, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    print(&find(client, number, request)?, as_json, out)
}

/// An answer with the one flow that ended with this number.
fn find(client: &mut Client, number: u64, request: FlowsRequest) -> anyhow::Result<FlowsReply> {
    let mut reply = client.flows(&FlowsRequest { after: Some(number - 1), limit: 1, ..request })?;
    reply.flows.retain(|flow| flow.number == Some(number));
    if reply.flows.is_empty() {
        anyhow::bail!(
            "flow {number} has not ended, is not kept any more, or is of others than are asked for; the file of [flow_log] may have it"
        );
    }
    Ok(reply)
}

/// A packet of the flow that ended with this number, in words.
///
/// # Errors
/// It has not ended, or is not kept any more.
pub fn packet_of(client: &mut Client, number: u64) -> anyhow::Result<String> {
    let reply = find(client, number, FlowsRequest::default())?;
    Ok(reply.flows.iter().map(packet).collect())
}

/// A packet of a flow in words, as [`header::packet`](crate::header::packet) reads them.
fn packet(flow: &FlowReport) -> String {
    let vlan = flow.vlan.map_or_else(String::new, |vlan| format!("vlan {vlan} "));
    let protocol = flow.protocol.strip_prefix("0x").map_or_else(|| flow.protocol.clone(), |number| format!("ethertype {number}"));
    let has_ports = matches!(parse::protocol(&flow.protocol), Ok(ProtocolMatch::Number(number)) if has_ports(number));
    let fragment = if has_ports && flow.src_port.is_none() { " fragment" } else { "" };
    let (src, dst) = (end(&flow.src, flow.src_port), end(&flow.dst, flow.dst_port));
    format!("{vlan}{protocol} {src} > {dst}{fragment} on {}", flow.port)
}

fn list(client: &mut Client, request: &FlowsRequest, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut reply = client.flows(request)?;
    if reply.log.metered_s < SETTLED_S {
        std::thread::sleep(Duration::from_secs_f64(SETTLED_S - reply.log.metered_s.max(0.0)));
        reply = client.flows(request)?;
    }
    print(&reply, as_json, out)
}

fn print(reply: &FlowsReply, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if as_json {
        return json(out, reply);
    }
    if reply.flows.is_empty() {
        writeln!(out, "no such flow")?;
    } else {
        let since_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        table(&reply.flows, since_ns).print(out, colour())?;
    }
    eprintln!("sluice: {}", summary(&reply.log));
    Ok(())
}

fn follow(client: &mut Client, mut request: FlowsRequest, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let first = client.flows(&FlowsRequest { limit: 1, ..request.clone() })?;
    (request.limit, request.after) = (MAX_FLOWS, Some(first.next));
    loop {
        let reply = client.flows(&request)?;
        if reply.missed > 0 {
            eprintln!("sluice: {} flows ended too fast to be shown", grouped(reply.missed));
        }
        for flow in &reply.flows {
            if as_json {
                writeln!(out, "{}", serde_json::to_string(flow)?)?;
            } else {
                writeln!(out, "{}", line(flow))?;
            }
        }
        // What looks on waits for it.
        out.flush()?;
        request.after = Some(reply.next);
        if reply.flows.len() < MAX_FLOWS as usize {
            std::thread::sleep(PAUSE);
        }
    }
}

/// What the answer says of all flows: `1,200 live, 35 ended in 61 s`.
fn summary(log: &FlowLogCounts) -> String {
    let mut text = format!("{} live, {} ended in {}", grouped(log.live), grouped(log.ended), age(log.metered_s));
    for (number, what) in [
        (log.lost, "lost"),
        (log.unwritten, "unwritten"),
        (log.unsent, "not sent to the collector"),
        (log.flowless_drops, "drops of no flow"),
    ] {
        if number > 0 {
            text += &format!(", {} {what}", grouped(number));
        }
    }
    text
}

/// An address, with its port if it has one.
fn end(address: &str, port: Option<u16>) -> String {
    match port {
        None => address.into(),
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
    }
}

fn state(flow: &FlowReport) -> &'static str {
    match (flow.end, flow.tcp) {
        (Some(end), _) => end.word(),
        (None, Some(tcp)) => tcp.word(),
        (None, None) => "live",
    }
}

fn dropped(flow: &FlowReport) -> String {
    match (&flow.drop_reason, flow.dropped_packets) {
        (_, 0) => "-".into(),
        (None, n) => grouped(n),
        (Some(why), n) => format!("{} {why}", grouped(n)),
    }
}

fn table(flows: &[FlowReport], now_ns: u64) -> Table {
    let columns = [
        "PROTOCOL", "FROM", "TO", "TENANT", "CHAIN", "NFS", ">PACKETS", ">BYTES", ">DROPPED", ">LATENCY", "STATE", ">FIRST",
        ">LAST",
    ];
    let mut table = Table::new(&columns);
    for flow in flows {
        let ago = |at_ns: u64| age(now_ns.saturating_sub(at_ns) as f64 / 1e9);
        let word = |word: &Option<String>| Cell::from(word.as_deref().unwrap_or("-"));
        let tone = if flow.dropped_packets > 0 { Tone::Warn } else { Tone::Plain };
        table.row(vec![
            flow.protocol.as_str().into(),
            end(&flow.src, flow.src_port).into(),
            end(&flow.dst, flow.dst_port).into(),
            word(&flow.tenant),
            word(&flow.chain),
            if flow.nfs.is_empty() { "-".into() } else { flow.nfs.join(",").into() },
            grouped(flow.packets).into(),
            grouped(flow.bytes).into(),
            Cell::toned(dropped(flow), tone),
            flow.latency_ns.map_or("-".into(), |ns| time(ns).into()),
            state(flow).into(),
            ago(flow.first_ns).into(),
            ago(flow.last_ns).into(),
        ]);
    }
    table
}

/// A flow that has ended, in a line.
fn line(flow: &FlowReport) -> String {
    let mut words = vec![format!("{} {} → {}", flow.protocol, end(&flow.src, flow.src_port), end(&flow.dst, flow.dst_port))];
    words.extend(flow.tenant.as_ref().map(|tenant| format!("tenant {tenant}")));
    words.extend(flow.chain.as_ref().map(|chain| format!("chain {chain}")));
    words.extend((!flow.nfs.is_empty()).then(|| flow.nfs.join(",")));
    let lasted = time(flow.last_ns.saturating_sub(flow.first_ns));
    words.push(format!("{} packets, {} bytes in {lasted}", grouped(flow.packets), grouped(flow.bytes)));
    words.extend(flow.number.map(|number| format!("flow {number}")));
    words.extend((flow.dropped_packets > 0).then(|| format!("dropped {}", dropped(flow))));
    words.extend(flow.latency_ns.map(|ns| format!("latency {}", time(ns))));
    words.push(state(flow).into());
    words.join("  ")
}

#[cfg(test)]
mod tests {
    use sluice_api::model::{FlowEndReason, TcpState};

    use super::*;
    use crate::header;

    fn flow() -> FlowReport {
        FlowReport {
            protocol: "tcp".into(),
            src: "2001:db8::1".into(),
            src_port: Some(1024),
            dst: "2001:db8::2".into(),
            dst_port: Some(80),
            port: "lan".into(),
            chain: Some("web".into()),
            nfs: vec!["fw.0".into(), "nat.1".into()],
            packets: 12_345,
            bytes: 1_000_000,
            dropped_packets: 3,
            drop_reason: Some("verdict".into()),
            tcp: Some(TcpState::Open),
            ..FlowReport::default()
        }
    }

    #[test]
    fn a_flow_is_a_row_while_it_goes_on_and_a_line_when_it_has_ended() {
        let mut out = Vec::new();
        table(&[flow()], 0).print(&mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        for word in ["[2001:db8::1]:1024", "[2001:db8::2]:80", "fw.0,nat.1", "12,345", "3 verdict", " open "] {
            assert!(text.contains(word), "{word:?} is not in\n{text}");
        }
        let ended = FlowReport { end: Some(FlowEndReason::Finished), tenant: Some("gold".into()), ..flow() };
        let text = line(&ended);
        assert!(text.starts_with("tcp [2001:db8::1]:1024 → [2001:db8::2]:80  tenant gold  chain web  fw.0,nat.1  "), "{text}");
        assert!(text.ends_with("  dropped 3 verdict  finished"), "{text}");
    }

    #[test]
    fn a_flow_has_a_packet_in_words() {
        let between = |protocol: &str, src: &str, dst: &str| FlowReport {
            protocol: protocol.into(),
            src: src.into(),
            dst: dst.into(),
            port: "lan".into(),
            ..FlowReport::default()
        };
        for (flow, line) in [
            (flow(), "tcp [2001:db8::1]:1024 > [2001:db8::2]:80"),
            (FlowReport { vlan: Some(5), ..between("udp", "10.0.0.1", "10.0.0.2") }, "vlan 5 udp 10.0.0.1 > 10.0.0.2 fragment"),
            (between("47", "10.0.0.1", "10.0.0.2"), "protocol 47 10.0.0.1 > 10.0.0.2"),
            (between("0x0806", "02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff"), "arp 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff"),
        ] {
            let words = header::packet(&packet(&flow)).unwrap_or_else(|error| panic!("{flow:?}: {error}"));
            assert_eq!((header::line(&words.bytes).as_str(), words.port.as_deref()), (line, Some("lan")));
        }
    }

    #[test]
    fn what_is_not_known_of_a_flow_is_left_out() {
        let arp = FlowReport {
            protocol: "0x0806".into(),
            src: "02:00:00:00:00:01".into(),
            dst: "ff:ff:ff:ff:ff:ff".into(),
            ..Default::default()
        };
        let text = line(&FlowReport { packets: 1, bytes: 60, end: Some(FlowEndReason::Idle), ..arp });
        assert!(text.starts_with("0x0806 02:00:00:00:00:01 → ff:ff:ff:ff:ff:ff  1 packets, 60 bytes in "), "{text}");
        let log = FlowLogCounts { live: 1200, ended: 35, metered_s: 61.0, unsent: 2, ..FlowLogCounts::default() };
        assert_eq!(summary(&log), "1,200 live, 35 ended in 1 min 1 s, 2 not sent to the collector");
        let log = FlowLogCounts { unsent: 0, flowless_drops: 1234, ..log };
        assert_eq!(summary(&log), "1,200 live, 35 ended in 1 min 1 s, 1,234 drops of no flow");
    }
}
