//! `sluice drops`: each reason with its rate, where, for which tenant, a packet, and what to do.
//!
//! Approach: two readings of the counters, and between them a capture of the hop `drop` that takes
//! one packet of each kind. Both are there for other clients, too.
//!
//! Limits: a packet is shown of what is dropped meanwhile alone. What a NIC counts (`oversize` with
//! DPDK) has none.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::PcapError;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use serde::Serialize;
use sluice_api::ErrorKind;
use sluice_api::client::{Client, ClientError};
use sluice_api::drops::{self, PortDrop, ReasonText};
use sluice_api::model::{CaptureRequest, Stats};
use sluice_api::nearest;
use sluice_cli::number::{grouped, rate};
use sluice_cli::usage::{Usage, json};

use crate::args::DropsArgs;
use crate::header;

/// Bytes that are captured of a packet.
const SNAP: u16 = 256;
/// Most samples of a reason that are printed.
const PRINTED: usize = 4;

/// A dropped packet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
struct Sample {
    #[serde(skip)]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<String>,
    /// The NFs of its path, if it had one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    path: Vec<String>,
    /// The NF where it was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    nf: Option<String>,
    /// The port where it was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<String>,
    headers: String,
    /// Its length; 0 if that is not known.
    bytes: u32,
    /// Its first bytes, as hexadecimal digits.
    packet: String,
}

/// A place where packets are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Spot {
    /// Such as `chain web`, `NF fw.0`, `port lan`, `pool ids`.
    what: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tenants: Vec<String>,
    /// None if packets are not counted there by this reason.
    packets: Option<u64>,
}

/// What is known of a reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    reason: &'static str,
    meaning: &'static str,
    /// Whether an NF had worked on the packets.
    wasted: bool,
    per_s: f64,
    /// Packets in this time, and since the start.
    packets: u64,
    total: u64,
    places: Vec<Spot>,
    samples: Vec<Sample>,
    remedy: String,
}

/// The drops of a span of time.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Report {
    seconds: f64,
    reasons: Vec<Row>,
    /// Packets that were dropped earlier, by reasons that drop none now.
    earlier: BTreeMap<String, u64>,
}

/// `sluice drops`.
pub fn run(client: &mut Client, args: &DropsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut before = client.stats()?;
    if let Some(chain) = &args.chain
        && !before.chains.iter().any(|known| known.name == *chain)
    {
        let known: Vec<&str> = before.chains.iter().map(|chain| chain.name.as_str()).collect();
        return Err(Usage(format!("no chain is named \"{chain}\"; {}", nearest::instead("chain", chain, &known))).into());
    }
    loop {
        let samples = samples(client, args)?;
        let after = client.stats()?;
        let report = report(&before, &after, samples, args);
        match (args.json, args.watch) {
            (true, false) => json(out, &report)?,
            (true, true) => writeln!(out, "{}", serde_json::to_string(&report)?)?,
            (false, _) => print(out, &report)?,
        }
        if !args.watch {
            return Ok(());
        }
        if !args.json {
            writeln!(out)?;
        }
        out.flush()?;
        before = after;
    }
}

/// Captures what is dropped meanwhile, one packet of each kind in each packet thread.
fn samples(client: &mut Client, args: &DropsArgs) -> anyhow::Result<Vec<Sample>> {
    let lasts = Duration::from_secs_f64(args.seconds);
    let request = CaptureRequest {
        chain: args.chain.clone(),
        hops: vec!["drop".into()],
        duration_ms: Some((lasts.as_millis() as u64).max(1)),
        each: Some(1),
        snaplen: SNAP,
        ..CaptureRequest::default()
    };
    let mut bytes = Vec::new();
    let captured = client.capture(&request, |piece| {
        bytes.extend_from_slice(piece);
        true
    });
    match captured {
        // The counters are there without packets, too.
        Err(ClientError::Api(error)) if error.kind == ErrorKind::Conflict => {
            eprintln!("sluice: no packets are shown: {error}");
            std::thread::sleep(lasts);
        }
        captured => captured?,
    }
    Ok(read(&bytes)?)
}

/// The packets of a capture. A daemon that ends meanwhile may cut the last one, which is left out.
fn read(bytes: &[u8]) -> Result<Vec<Sample>, PcapError> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut reader = PcapNgReader::new(bytes)?;
    while let Some(block) = reader.next_block() {
        let block = match block {
            Err(PcapError::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            block => block?,
        };
        let Block::EnhancedPacket(packet) = block else { continue };
        let comment = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Comment(comment) => Some(&**comment),
            _ => None,
        });
        let mut sample = of_comment(comment.unwrap_or_default());
        sample.headers = header::line(&packet.data);
        sample.bytes = packet.original_len;
        sample.packet = header::hex(&packet.data);
        let is_alike = |other: &Sample| {
            (&other.reason, &other.chain, &other.nf, &other.port) == (&sample.reason, &sample.chain, &sample.nf, &sample.port)
        };
        // Each packet thread has one.
        if !samples.iter().any(is_alike) {
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// What the daemon says of a packet: `chain=web path=fw.0,nat.0 nf=nat.0 drop=verdict`.
fn of_comment(comment: &str) -> Sample {
    let mut sample = Sample::default();
    for (key, value) in comment.split(' ').filter_map(|word| word.split_once('=')) {
        let value = value.to_string();
        match key {
            "chain" => sample.chain = Some(value),
            "path" => sample.path = value.split(',').map(str::to_owned).collect(),
            "nf" => sample.nf = Some(value),
            "port" => sample.port = Some(value),
            "drop" => sample.reason = value,
            _ => {}
        }
    }
    sample
}

/// By how much a counter has grown. It starts at 0 again where its object is new.
fn grown(before: Option<u64>, after: u64) -> u64 {
    after.saturating_sub(before.filter(|before| *before <= after).unwrap_or(0))
}

/// The tenants of the services of a chain.
fn tenants(stats: &Stats, services: &[String]) -> Vec<String> {
    let name = |service: &String| service.strip_suffix(":reverse").unwrap_or(service).to_string();
    let names: Vec<String> = services.iter().map(name).collect();
    let of = stats.services.iter().filter(|service| names.contains(&service.name));
    let mut tenants: Vec<String> = of.filter_map(|service| service.tenant.clone()).collect();
    tenants.sort_unstable();
    tenants.dedup();
    tenants
}

/// Where the drops of a reason are counted, with those of this time.
fn places(before: &Stats, after: &Stats, reason: &str) -> Vec<Spot> {
    let mut all = Vec::new();
    let mut add = |what: String, tenants: Vec<String>, packets: u64| {
        if packets > 0 {
            all.push(Spot { what, tenants, packets: Some(packets) });
        }
    };
    for chain in &after.chains {
        let former = before.chains.iter().find(|former| former.name == chain.name);
        let packets = chain.drops.get(reason).copied().unwrap_or(0);
        let packets = grown(former.map(|former| former.drops.get(reason).copied().unwrap_or(0)), packets);
        add(format!("chain {}", chain.name), tenants(after, &chain.services), packets);
    }
    for port in &after.ports {
        let former = before.ports.iter().find(|former| former.name == port.name);
        let count = |port: &sluice_api::model::Port| {
            if reason == PortDrop::Untaken.name() { port.tx_drops } else { port.dropped(reason) }
        };
        add(format!("port {}", port.name), Vec::new(), grown(former.map(count), count(port)));
    }
    for nf in after.nfs.iter().filter(|_| reason == "verdict") {
        let former = before.nfs.iter().find(|former| former.name == nf.name).map(|nf| nf.verdict_drops);
        let tenants = tenants(after, std::slice::from_ref(&nf.service));
        add(format!("NF {}", nf.name), tenants, grown(former, nf.verdict_drops));
    }
    for pool in after.status.pools.iter().filter(|_| reason == "none_idle") {
        let former = before.status.pools.iter().find(|former| former.service == pool.service).map(|pool| pool.drops);
        let tenants = tenants(after, std::slice::from_ref(&pool.service));
        add(format!("pool {}", pool.service), tenants, grown(former, pool.drops));
    }
    all
}

fn report(before: &Stats, after: &Stats, samples: Vec<Sample>, args: &DropsArgs) -> Report {
    let seconds = after.time_ns.saturating_sub(before.time_ns) as f64 / 1e9;
    let of = |stats: &Stats, reason: &str| match &args.chain {
        Some(chain) => stats.chains.iter().find(|known| known.name == *chain).and_then(|chain| chain.drops.get(reason).copied()),
        None => stats.drops.get(reason).copied(),
    };
    let (mut reasons, mut earlier) = (Vec::new(), BTreeMap::new());
    let is_wanted = |reason: &&ReasonText| args.reason.as_ref().is_none_or(|wanted| reason.name == wanted);
    for text in drops::all().filter(is_wanted) {
        let total = of(after, text.name).unwrap_or(0);
        let packets = grown(of(before, text.name), total);
        let samples: Vec<Sample> = samples.iter().filter(|sample| sample.reason == text.name).cloned().collect();
        if packets == 0 && samples.is_empty() {
            if total > 0 {
                earlier.insert(text.name.to_string(), total);
            }
            continue;
        }
        let is_here = |spot: &Spot| args.chain.as_ref().is_none_or(|chain| spot.what == format!("chain {chain}"));
        let mut places: Vec<Spot> = places(before, after, text.name).into_iter().filter(is_here).collect();
        // What is dropped before a chain is entered is counted nowhere else.
        for sample in &samples {
            let what = match (&sample.nf, &sample.port, &sample.chain) {
                (Some(nf), ..) => format!("NF {nf}"),
                (_, Some(port), _) => format!("port {port}"),
                (_, _, Some(chain)) => format!("chain {chain}"),
                _ => continue,
            };
            if !places.iter().any(|spot| spot.what == what) {
                places.push(Spot { what, tenants: Vec::new(), packets: None });
            }
        }
        let per_s = if seconds > 0.0 { packets as f64 / seconds } else { 0.0 };
        let (reason, meaning, wasted, remedy) = (text.name, text.meaning, text.is_wasted, text.advice());
        reasons.push(Row { reason, meaning, wasted, per_s, packets, total, places, samples, remedy });
    }
    reasons.sort_by_key(|row: &Row| std::cmp::Reverse(row.packets));
    Report { seconds, reasons, earlier }
}

fn print(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let seconds = report.seconds;
    if report.reasons.is_empty() {
        writeln!(out, "nothing was dropped in {seconds:.1} s")?;
    }
    for (number, row) in report.reasons.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let (now, total) = (grouped(row.packets), grouped(row.total));
        writeln!(out, "{}: {}, {now} packets in {seconds:.1} s, {total} since the start", row.reason, rate(row.per_s))?;
        writeln!(out, "  why     {}{}", row.meaning, if row.wasted { " Wasted work." } else { "" })?;
        let place = |spot: &Spot| {
            let tenants = match spot.tenants.len() {
                0 => String::new(),
                1 => format!(" (tenant {})", spot.tenants[0]),
                _ => format!(" (tenants {})", spot.tenants.join(", ")),
            };
            let packets = spot.packets.map_or_else(String::new, |packets| format!(" {}", grouped(packets)));
            format!("{}{tenants}{packets}", spot.what)
        };
        let places: Vec<String> = row.places.iter().map(place).collect();
        writeln!(out, "  where   {}", if places.is_empty() { "not known".into() } else { places.join(", ") })?;
        for sample in row.samples.iter().take(PRINTED) {
            writeln!(out, "  packet  {}", said_of(sample))?;
        }
        match row.samples.len() {
            0 => writeln!(out, "  packet  none was seen in this time; --seconds waits longer")?,
            n if n > PRINTED => writeln!(out, "  packet  … and of {} more places; --json shows all", n - PRINTED)?,
            _ => {}
        }
        writeln!(out, "  do      {}", row.remedy)?;
    }
    if !report.earlier.is_empty() {
        let earlier: Vec<String> = report.earlier.iter().map(|(reason, n)| format!("{reason} {}", grouped(*n))).collect();
        writeln!(out, "not now, but earlier: {}", earlier.join(", "))?;
    }
    Ok(())
}

/// A packet in a line: its headers, its length, and where it was.
fn said_of(sample: &Sample) -> String {
    let mut text = sample.headers.clone();
    if sample.bytes > 0 {
        text += &format!(", {} bytes", sample.bytes);
    }
    let word = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} {value}"));
    let path = (!sample.path.is_empty()).then(|| format!("path {}", sample.path.join(" → ")));
    let words = [word("chain", &sample.chain), path, word("at NF", &sample.nf), word("at port", &sample.port)];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() { text } else { format!("{text} ({})", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use pcap_file::DataLink;
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use sluice_api::model::{Chain, Pool, Port, Service, Status};

    use super::*;

    fn args() -> DropsArgs {
        DropsArgs { chain: None, reason: None, seconds: 2.0, watch: false, json: false }
    }

    fn stats(time_s: u64, entry: u64, mtu: u64) -> Stats {
        let chain = Chain {
            name: "web".into(),
            services: vec!["fw".into(), "nat:reverse".into()],
            drops: BTreeMap::from([("entry".into(), entry), ("verdict".into(), 7)]),
            ..Chain::default()
        };
        let service = |name: &str| Service { name: name.into(), tenant: Some("blue".into()), ..Service::default() };
        Stats {
            time_ns: time_s * 1_000_000_000,
            status: Status { pools: vec![Pool::default()], ..Status::default() },
            ports: vec![Port { name: "wan".into(), drops: BTreeMap::from([("mtu".into(), mtu)]), ..Port::default() }],
            services: vec![service("fw"), service("nat"), Service { tenant: Some("red".into()), ..service("ids") }],
            chains: vec![chain],
            drops: BTreeMap::from([
                ("entry".into(), entry),
                ("verdict".into(), 7),
                ("mtu".into(), mtu),
                ("no_rule".into(), time_s),
                ("nf_down".into(), 0),
            ]),
            ..Stats::default()
        }
    }

    fn samples() -> Vec<Sample> {
        let words = header::packet("udp 10.0.0.1:53 > 10.0.0.2:99").unwrap();
        let with = |comment: &str| Sample { headers: header::line(&words.bytes), bytes: 60, ..of_comment(comment) };
        vec![with("chain=web path=fw.0,nat.0 port=lan drop=entry"), with("port=stray drop=no_rule"), with("port=wan drop=mtu")]
    }

    #[test]
    fn the_packets_before_a_cut_one_are_kept() {
        let data = header::packet("udp 10.0.0.1:53 > 10.0.0.2:99").unwrap().bytes;
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        writer.write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0)).unwrap();
        for reason in ["entry", "mtu"] {
            let packet = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_secs(1),
                original_len: data.len() as u32,
                data: (&data[..]).into(),
                options: vec![EnhancedPacketOption::Comment(format!("drop={reason}").into())],
            };
            writer.write_pcapng_block(packet).unwrap();
        }
        let bytes = writer.into_inner();
        let reasons = |bytes: &[u8]| read(bytes).unwrap().into_iter().map(|sample| sample.reason).collect::<Vec<_>>();
        assert_eq!(reasons(&bytes), ["entry", "mtu"]);
        assert_eq!(reasons(&bytes[..bytes.len() - 3]), ["entry"]);
    }

    #[test]
    fn each_reason_has_its_rate_its_place_its_packet_and_a_remedy() {
        let report = report(&stats(10, 5, 0), &stats(12, 2_005, 3), samples(), &args());
        let rows: Vec<_> = report.reasons.iter().map(|row| (row.reason, row.packets, row.total, row.samples.len())).collect();
        assert_eq!(rows, [("entry", 2_000, 2_005, 1), ("mtu", 3, 3, 1), ("no_rule", 2, 12, 1)]);
        let spot = |what: &str, tenants: &[&str], packets| Spot {
            what: what.into(),
            tenants: tenants.iter().map(|tenant| (*tenant).to_string()).collect(),
            packets,
        };
        assert_eq!(report.reasons[0].places, [spot("chain web", &["blue"], Some(2_000)), spot("port lan", &[], None)]);
        assert_eq!(report.reasons[1].places, [spot("port wan", &[], Some(3))]);
        assert_eq!(report.reasons[2].places, [spot("port stray", &[], None)]);
        assert_eq!(report.earlier, BTreeMap::from([("verdict".to_string(), 7)]));
        let mut out = Vec::new();
        print(&mut out, &report).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in [
            "entry: 1.00 k/s, 2,000 packets in 2.0 s, 2,005 since the start",
            "  where   chain web (tenant blue) 2,000, port lan",
            "  packet  udp 10.0.0.1:53 > 10.0.0.2:99, 60 bytes (chain web, path fw.0 → nat.0, at port lan)",
            "  do      Make MTUs equal.",
            "not now, but earlier: verdict 7",
        ] {
            assert!(text.lines().any(|known| known == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_chain_and_a_reason_can_be_chosen() {
        let (before, after) = (stats(10, 5, 0), stats(12, 2_005, 3));
        let of_chain = DropsArgs { chain: Some("web".into()), ..args() };
        let report_of = |samples: Vec<Sample>, args: &DropsArgs| {
            let report = report(&before, &after, samples, args);
            report.reasons.iter().map(|row| row.reason).collect::<Vec<_>>()
        };
        assert_eq!(report_of(samples()[..1].to_vec(), &of_chain), ["entry"]);
        // Counted by no chain, and seen.
        assert_eq!(report_of(vec![of_comment("chain=web port=lan drop=nf_down")], &of_chain), ["entry", "nf_down"]);
        assert_eq!(report_of(samples(), &DropsArgs { reason: Some("mtu".into()), ..args() }), ["mtu"]);
        let nothing = report(&before, &before, Vec::new(), &args());
        let mut out = Vec::new();
        print(&mut out, &nothing).unwrap();
        let want = "nothing was dropped in 0.0 s\nnot now, but earlier: entry 5, no_rule 10, verdict 7\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn a_counter_that_began_again_has_grown_by_what_it_has() {
        assert_eq!((grown(Some(5), 9), grown(Some(9), 5), grown(None, 3), grown(Some(3), 3)), (4, 5, 3, 0));
    }
}
