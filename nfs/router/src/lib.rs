//! Routes IPv4 and IPv6 by the longest matching prefix of the destination.
//!
//! A route sets MAC addresses, lowers the TTL (hop limit), and sends the packet out of a port by
//! name or on along the chain. As RFC 1812 (section 5.2) asks, packets with a wrong IPv4 header
//! checksum, with an expired TTL, or without a route are dropped, each with a counter. Packets that
//! are not IP (such as ARP) or go to link-local and broadcast addresses (such as IPv6's neighbour
//! discovery) pass unchanged, so that neighbours still find each other through the router.
//!
//! Limits: no ICMP errors, no fragmentation, and IPv4 options and IPv6 routing headers are carried,
//! not processed. The module `routes` describes the route file; SIGHUP reads it again.

mod routes;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Parser;
use sluice_nf::header::{Headers, checksum, parse};
use sluice_nf::{Burst, Context, Handler, Packet};
use sluice_nf_parts::flow::stays_on_link;
use sluice_nf_parts::lines::{self, FileError};
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{Report, ReportArgs, Reported, Reports};

use routes::{Action, Routes};

/// Routes IPv4 and IPv6 by the longest matching prefix
///
/// SIGHUP reads the route file again.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-router", version, after_help = HELP)]
struct Args {
    /// Route file
    #[arg(long, value_name = "FILE")]
    routes: PathBuf,
    #[command(flatten)]
    report: ReportArgs,
}

const HELP: &str = "Route file, a line each: `PREFIX drop` or `PREFIX [mac MAC] [from MAC] [port NAME]`\n  \
    0.0.0.0/0 mac 02:00:00:00:00:01\n  10.0.0.0/8 mac 02:00:00:00:00:02 from 02:00:00:00:00:ff port lan\n  192.0.2.0/24 drop";

fn read(path: &Path, context: &Context) -> Result<Routes, FileError> {
    lines::read(path, |text| Routes::parse(text, &|name| context.port(name)))
}

#[derive(Debug, Default)]
struct Counters {
    forwarded: u64,
    by_route: u64,
    no_route: u64,
    expired: u64,
    bad_checksum: u64,
    not_routed: u64,
}

#[derive(Debug)]
struct Router {
    routes: Routes,
    fresh: Option<Reload<Routes>>,
    counters: Counters,
}

impl Router {
    fn new(routes: Routes, fresh: Option<Reload<Routes>>) -> Self {
        Self { routes, fresh, counters: Counters::default() }
    }

    #[inline]
    fn route(&mut self, packet: &mut Packet<'_>) {
        let headers = parse(packet.data());
        let destination = headers.and_then(|headers| headers.dst(packet.data()));
        let (Some(headers), Some(destination)) = (headers, destination.filter(|address| !stays_on_link(*address))) else {
            self.counters.not_routed += 1;
            return;
        };
        if !is_header_right(packet.data(), &headers) {
            self.counters.bad_checksum += 1;
            return packet.drop();
        }
        let Some(number) = self.routes.find(destination) else {
            self.counters.no_route += 1;
            return packet.drop();
        };
        let len = packet.len();
        let route = self.routes.get_mut(number);
        route.packets += 1;
        route.bytes += len as u64;
        let Action::Forward { mac, from, port } = route.action else {
            self.counters.by_route += 1;
            return packet.drop();
        };
        if !matches!(headers.decrement_ttl(packet.data_mut()), Ok(1..)) {
            self.counters.expired += 1;
            return packet.drop();
        }
        if let Some(mac) = mac {
            packet.data_mut()[..6].copy_from_slice(&mac.0);
        }
        if let Some(from) = from {
            packet.data_mut()[6..12].copy_from_slice(&from.0);
        }
        if let Some(port) = port {
            packet.to_port(port);
        }
        self.counters.forwarded += 1;
    }
}

/// Whether the checksum of an IPv4 header is right; IPv6 has none.
#[inline]
fn is_header_right(packet: &[u8], headers: &Headers) -> bool {
    headers.ipv4(packet).is_none_or(|header| checksum::compute(header.slice()) == 0)
}

impl Handler for Router {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            self.route(&mut packet);
        }
    }

    fn tick(&mut self, _now_ns: u64) {
        if let Some(mut routes) = self.fresh.as_ref().and_then(Reload::take) {
            routes.inherit(&self.routes);
            self.routes = routes;
        }
    }
}

impl Reports for Router {
    fn report(&self, _now_ns: u64) -> Report {
        let c = &self.counters;
        let rows = self
            .routes
            .iter()
            .map(|route| vec![route.line.into(), route.prefix.to_string().into(), route.packets.into(), route.bytes.into()]);
        let rows = rows.collect();
        Report::new("router")
            .counter("forwarded", c.forwarded)
            .counter("dropped_by_route", c.by_route)
            .counter("dropped_no_route", c.no_route)
            .counter("dropped_expired", c.expired)
            .counter("dropped_bad_checksum", c.bad_checksum)
            .counter("not_routed", c.not_routed)
            .table("routes", &["line", "prefix", "packets", "bytes"], rows)
    }
}

fn make(args: Args, context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    let routes = read(&args.routes, context)?;
    let (path, context) = (args.routes.clone(), context.clone());
    let fresh = Reload::on_hangup(move || read(&path, &context))?;
    Ok(Reported::new(Router::new(routes, Some(fresh)), &args.report)?)
}

sluice_nf_parts::nf!(Args, make);

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use sluice_nf::harness::Harness;
    use sluice_nf::{PortId, Verdict};

    use super::*;

    fn nf() -> Harness<Router> {
        let text = "10.0.0.0/8 mac 02:00:00:00:00:01 from 02:00:00:00:00:02\n10.9.0.0/16 port lan\n192.0.2.0/24 drop\n\
            2001:db8::/32 mac 02:00:00:00:00:03";
        let context = Context::for_test("router.0", &["wan", "lan"], &[], &[]);
        Harness::new(Router::new(Routes::parse(text, &|name| context.port(name)).unwrap(), None))
    }

    fn v4(destination: [u8; 4], ttl: u8) -> Vec<u8> {
        let mut packet = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([8; 4], destination, ttl).udp(1, 2).write(&mut packet, &[7; 20]).unwrap();
        packet
    }

    fn v6(destination: [u8; 16], hops: u8) -> Vec<u8> {
        let mut packet = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6([8; 16], destination, hops).udp(1, 2).write(&mut packet, &[7; 20]).unwrap();
        packet
    }

    fn ours() -> [u8; 16] {
        "2001:db8::5".parse::<std::net::Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn macs_and_ttl_change_and_checksums_stay_right() {
        let mut nf = nf();
        let out = nf.send(&v4([10, 1, 1, 1], 64));
        assert_eq!(out.verdict, Verdict::Next);
        assert_eq!(out.bytes[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        let headers = parse(&out.bytes).unwrap();
        assert_eq!(headers.ttl(&out.bytes), Some(63));
        assert!(headers.are_checksums_right(&out.bytes));
        let out = nf.send(&v6(ours(), 2));
        assert_eq!(out.bytes[..12], [2, 0, 0, 0, 0, 3, 1, 1, 1, 1, 1, 1]);
        assert_eq!(parse(&out.bytes).unwrap().ttl(&out.bytes), Some(1));
    }

    #[test]
    fn a_route_with_a_port_goes_there_and_keeps_the_macs() {
        let mut nf = nf();
        let sent = v4([10, 9, 1, 1], 64);
        let out = nf.send(&sent);
        assert_eq!((out.verdict, &out.bytes[..12]), (Verdict::ToPort(PortId(1)), &sent[..12]));
    }

    #[test]
    fn each_reason_to_drop_has_its_counter() {
        let mut nf = nf();
        let mut broken = v4([10, 1, 1, 1], 64);
        broken[24] ^= 1;
        for packet in
            [v4([10, 1, 1, 1], 1), v4([10, 1, 1, 1], 0), v6(ours(), 1), v4([11, 0, 0, 1], 64), v4([192, 0, 2, 1], 64), broken]
        {
            let out = nf.send(&packet);
            assert_eq!((out.verdict, out.bytes), (Verdict::Drop, packet));
        }
        let report = nf.handler().report(0);
        for (name, n) in [
            ("dropped_expired", 3),
            ("dropped_no_route", 1),
            ("dropped_by_route", 1),
            ("dropped_bad_checksum", 1),
            ("forwarded", 0),
        ] {
            assert_eq!(report.get(name), Some(n), "{name}");
        }
        assert!(report.to_text().lines().any(|line| line.split_whitespace().eq(["3", "192.0.2.0/24", "1", "62"])));
    }

    #[test]
    fn what_stays_on_the_link_passes_unchanged() {
        let mut nf = nf();
        let mut arp = vec![0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let discovery = "ff02::1:ff00:1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        for packet in [arp, vec![1; 5], v4([255; 4], 1), v4([224, 0, 0, 5], 1), v4([169, 254, 1, 1], 1), v6(discovery, 255)] {
            let out = nf.send(&packet);
            assert_eq!((out.verdict, out.bytes), (Verdict::Next, packet));
        }
        assert_eq!(nf.handler().report(0).get("not_routed"), Some(6));
    }
}
