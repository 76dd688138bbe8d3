//! Counts the packets and bytes of every flow, and when it was first and last seen.
//!
//! A flow is a 5-tuple in one direction. All fragments of a datagram, including the first, count
//! for one flow without ports. Packets that are not IP count as one flow. Bytes are those from the
//! Ethernet header, without FCS.
//!
//! The table is bounded. When it is nearly full, idle flows are forgotten (their packets stay in
//! the totals, as `forgotten`); packets that still find no space are counted as `untracked`. Every
//! packet passes unchanged.

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use sluice_nf::header::parse;
use sluice_nf::{Burst, Context, Handler};
use sluice_nf_parts::flow::FlowKey;
use sluice_nf_parts::report::{Report, ReportArgs, Reported, Reports};
use sluice_nf_parts::table::{AGE_TICK, Table};

/// Counts the packets and bytes of every flow
#[derive(Debug, Parser)]
#[command(
    name = "sluice-nf-monitor",
    version,
    after_help = "Example: sluice-nf-monitor --report /run/flows.json --format json --every 10"
)]
struct Args {
    /// Most flows to remember
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    flows: u32,
    /// Seconds after which an idle flow may be forgotten; only when the table is nearly full
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    idle: u64,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    packets: u64,
    bytes: u64,
}

impl Count {
    #[inline(always)]
    fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    fn add_all(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    count: Count,
    first_ns: u64,
    last_ns: u64,
}

#[derive(Debug)]
struct Monitor {
    flows: Table<FlowKey, Flow>,
    idle_ns: u64,
    total: Count,
    non_ip: Count,
    forgotten: Count,
    untracked: Count,
}

impl Monitor {
    fn new(args: &Args) -> Self {
        let none = Count::default();
        Self {
            flows: Table::with_limit(args.flows as usize),
            idle_ns: args.idle.saturating_mul(1_000_000_000),
            total: none,
            non_ip: none,
            forgotten: none,
            untracked: none,
        }
    }

    #[inline]
    fn count(&mut self, packet: &[u8], now_ns: u64) {
        self.total.add(packet.len());
        let Some(flow) = parse(packet).and_then(|headers| headers.flow(packet)) else {
            self.non_ip.add(packet.len());
            return;
        };
        let key = FlowKey::from(flow);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.count.add(packet.len());
            flow.last_ns = now_ns;
            return;
        }
        let count = Count { packets: 1, bytes: packet.len() as u64 };
        if self.flows.insert(key, Flow { count, first_ns: now_ns, last_ns: now_ns }).is_none() {
            self.untracked.add(packet.len());
        }
    }
}

impl Handler for Monitor {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        let now_ns = burst.now_ns();
        for packet in burst.iter_mut() {
            self.count(packet.data(), now_ns);
        }
    }

    fn tick(&mut self, now_ns: u64) {
        if self.flows.len() >= self.flows.limit() / 8 * 7 {
            let (idle_ns, forgotten) = (self.idle_ns, &mut self.forgotten);
            let is_old = |_: &FlowKey, flow: &Flow| now_ns.saturating_sub(flow.last_ns) >= idle_ns;
            self.flows.age(is_old, |_, _, flow| forgotten.add_all(flow.count));
        }
    }

    fn tick_every(&self) -> Option<Duration> {
        Some(AGE_TICK)
    }
}

const COLUMNS: &[&str] = &["protocol", "src", "src_port", "dst", "dst_port", "packets", "bytes", "first_seen_s", "last_seen_s"];

impl Reports for Monitor {
    fn report(&self, now_ns: u64) -> Report {
        let report = Report::new("monitor")
            .counter("packets", self.total.packets)
            .counter("bytes", self.total.bytes)
            .counter("flows", self.flows.len() as u64)
            .counter("non_ip_packets", self.non_ip.packets)
            .counter("non_ip_bytes", self.non_ip.bytes)
            .counter("forgotten_packets", self.forgotten.packets)
            .counter("forgotten_bytes", self.forgotten.bytes)
            .counter("untracked_packets", self.untracked.packets)
            .counter("untracked_bytes", self.untracked.bytes);
        let mut flows: Vec<(&FlowKey, &Flow)> = self.flows.iter().collect();
        // The largest first; the key makes the order the same every time.
        flows.sort_unstable_by_key(|(key, flow)| (std::cmp::Reverse(flow.count.bytes), **key));
        let rows = flows.into_iter().map(|(key, flow)| {
            vec![
                protocol_name(key.protocol()).into(),
                key.src().to_string().into(),
                key.src_port().into(),
                key.dst().to_string().into(),
                key.dst_port().into(),
                flow.count.packets.into(),
                flow.count.bytes.into(),
                report.wall_clock_s(flow.first_ns, now_ns).into(),
                report.wall_clock_s(flow.last_ns, now_ns).into(),
            ]
        });
        let rows = rows.collect();
        report.table("flows", COLUMNS, rows)
    }
}

fn protocol_name(number: u8) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        other => other.to_string(),
    }
}

fn make(args: Args, _context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    Ok(Reported::new(Monitor::new(&args), &args.report)?)
}

sluice_nf_parts::nf!(Args, make);

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use sluice_nf::Verdict;
    use sluice_nf::harness::Harness;
    use sluice_nf_parts::table::AGE_TICKS;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn udp(src: u8, port: u16, payload: usize) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, src], [10, 0, 1, 1], 64).udp(port, 53);
        let mut packet = Vec::new();
        builder.write(&mut packet, &vec![0; payload]).unwrap();
        packet
    }

    fn monitor(flows: &str) -> Harness<Monitor> {
        Harness::new(Monitor::new(&Args::try_parse_from(["monitor", "--flows", flows, "--idle", "10"]).unwrap()))
    }

    fn json(nf: &mut Harness<Monitor>, now_ns: u64) -> serde_json::Value {
        serde_json::from_str(&nf.handler().report(now_ns).to_json()).unwrap()
    }

    #[test]
    fn flows_are_counted_with_their_times() {
        let mut nf = monitor("100");
        nf.set_now(SECOND);
        assert_eq!(nf.send(&udp(1, 5000, 18)).bytes, udp(1, 5000, 18), "packets pass unchanged");
        nf.set_now(3 * SECOND);
        nf.burst(&[udp(1, 5000, 100), udp(2, 5000, 0), udp(1, 5001, 0)]);
        assert_eq!(nf.send(&[0; 20]).verdict, Verdict::Next);
        let report = json(&mut nf, 3 * SECOND);
        assert_eq!(report["counters"]["packets"], 5);
        assert_eq!(report["counters"]["non_ip_bytes"], 20);
        let flow = &report["flows"][0];
        assert_eq!((&flow["src"], &flow["src_port"], &flow["protocol"]), (&"10.0.0.1".into(), &5000.into(), &"udp".into()));
        assert_eq!((&flow["packets"], &flow["bytes"]), (&2.into(), &(60 + 142).into()));
        let seen = |name: &str| flow[name].as_f64().unwrap();
        assert!((seen("last_seen_s") - seen("first_seen_s") - 2.0).abs() < 1e-4);
        assert_eq!(report["flows"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn totals_add_up_when_flows_are_forgotten_or_find_no_place() {
        let mut nf = monitor("8");
        nf.burst(&(0..8).map(|port| udp(1, port, 0)).collect::<Vec<_>>());
        nf.send(&udp(1, 100, 0));
        nf.set_now(11 * SECOND);
        nf.send(&udp(1, 7, 0));
        for _ in 0..AGE_TICKS {
            nf.tick(11 * SECOND);
        }
        nf.send(&udp(1, 100, 0));
        let report = json(&mut nf, 11 * SECOND);
        let get = |name: &str| report["counters"][name].as_u64().unwrap();
        assert_eq!((get("packets"), get("untracked_packets")), (11, 1));
        let tracked: u64 = report["flows"].as_array().unwrap().iter().map(|flow| flow["packets"].as_u64().unwrap()).sum();
        assert_eq!(tracked + get("forgotten_packets") + get("untracked_packets") + get("non_ip_packets"), 11);
        assert!(get("forgotten_packets") > 0);
        assert!(report["flows"].as_array().unwrap().iter().any(|flow| flow["src_port"] == 7), "a flow in use stays");
    }

    #[test]
    fn fragments_count_together() {
        let mut nf = monitor("8");
        let mut first = udp(1, 5000, 32);
        first[20] |= 0x20;
        let mut second = udp(1, 9999, 32);
        second[21] = 5;
        nf.burst(&[first, second]);
        let report = json(&mut nf, 0);
        assert_eq!(report["flows"].as_array().unwrap().len(), 1);
        assert_eq!((&report["flows"][0]["packets"], &report["flows"][0]["src_port"]), (&2.into(), &0.into()));
    }
}
