//! Tests of the path of a packet.

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::{Icmpv4Type, IpHeaders, PacketBuilder, PacketBuilderStep};
use sluice_nf::Verdict;
use sluice_nf::harness::Harness;
use sluice_nf::{Context, PortId};
use sluice_nf_parts::table::AGE_TICKS;

use super::*;

const CLIENT: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [192, 0, 2, 9];
const SECOND: u64 = 1_000_000_000;
const WEB: &str = "stateful\nallow tcp from 10.0.0.0/8 to any port 80\nallow udp from 10.0.0.0/8\nallow icmp from 10.0.0.0/8";

fn rules(text: &str) -> Rules {
    let context = Context::for_test("firewall.0", &["wan", "lan"], &[], &[]);
    Rules::parse(text, &|name| context.port(name)).unwrap()
}

fn nf(text: &str) -> Harness<Firewall> {
    Harness::new(Firewall::new(rules(text), 8, None))
}

fn ip(src: [u8; 4], dst: [u8; 4]) -> PacketBuilderStep<IpHeaders> {
    PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(src, dst, 64)
}

/// A TCP packet with flags such as "SA".
fn tcp(src: [u8; 4], src_port: u16, dst: [u8; 4], dst_port: u16, flags: &str) -> Vec<u8> {
    let mut step = ip(src, dst).tcp(src_port, dst_port, 1, 1000);
    for flag in flags.chars() {
        step = match flag {
            'S' => step.syn(),
            'A' => step.ack(1),
            'F' => step.fin(),
            _ => step.rst(),
        };
    }
    let mut packet = Vec::new();
    step.write(&mut packet, b"data").unwrap();
    packet
}

fn out(port: u16, flags: &str) -> Vec<u8> {
    tcp(CLIENT, port, SERVER, 80, flags)
}

fn back(port: u16, flags: &str) -> Vec<u8> {
    tcp(SERVER, 80, CLIENT, port, flags)
}

fn udp(src: [u8; 4], src_port: u16, dst: [u8; 4], dst_port: u16, payload: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    ip(src, dst).udp(src_port, dst_port).write(&mut packet, &vec![5; payload]).unwrap();
    packet
}

#[track_caller]
fn allows(nf: &mut Harness<Firewall>, packet: &[u8]) {
    let outcome = nf.send(packet);
    assert_eq!((outcome.verdict, &outcome.bytes[..]), (Verdict::Next, packet));
}

/// Denied, and counted in `counter`.
#[track_caller]
fn denies(nf: &mut Harness<Firewall>, packet: &[u8], counter: &str) {
    let before = nf.handler().report(0).get(counter).unwrap();
    assert_eq!(nf.send(packet).verdict, Verdict::Drop);
    assert_eq!(nf.handler().report(0).get(counter), Some(before + 1), "{counter}");
}

#[test]
fn without_state_each_packet_is_decided_by_the_rules() {
    let mut nf = nf("deny tcp to 192.0.2.0/24 port 22\nallow tcp to any port 1-100\ndeny udp");
    allows(&mut nf, &out(5000, "A"));
    denies(&mut nf, &back(5000, "A"), "denied");
    denies(&mut nf, &tcp(CLIENT, 1, SERVER, 22, "S"), "denied");
    denies(&mut nf, &udp(CLIENT, 1, SERVER, 80, 0), "denied");
    let text = nf.handler().report(0).to_text();
    for row in
        ["1 1 58 deny tcp to 192.0.2.0/24 port 22", "2 1 58 allow tcp to any port 1-100", "3 1 42 deny udp", "- 1 58 default deny"]
    {
        assert!(text.lines().any(|line| line.split_whitespace().eq(row.split(' '))), "{row} is not in\n{text}");
    }
}

#[test]
fn answers_of_allowed_connections_pass_and_nothing_else() {
    let mut nf = nf(WEB);
    denies(&mut nf, &back(5000, "SA"), "denied_out_of_state");
    denies(&mut nf, &out(5000, "A"), "denied_out_of_state");
    allows(&mut nf, &out(5000, "S"));
    allows(&mut nf, &back(5000, "SA"));
    allows(&mut nf, &out(5000, "A"));
    denies(&mut nf, &back(5001, "A"), "denied_out_of_state");
    denies(&mut nf, &tcp(SERVER, 80, CLIENT, 22, "S"), "denied");
    allows(&mut nf, &udp(CLIENT, 9, SERVER, 53, 0));
    allows(&mut nf, &udp(SERVER, 53, CLIENT, 9, 0));
    denies(&mut nf, &udp(SERVER, 54, CLIENT, 9, 0), "denied");
    let report = nf.handler().report(0);
    assert_eq!(report.get("connections"), Some(2));
    assert!(report.to_text().contains("3    174"), "all packets of a connection count for its rule:\n{}", report.to_text());
}

#[test]
fn pings_are_connections_by_their_identifier() {
    let mut nf = nf(WEB);
    let echo = |is_request: bool, id| {
        let mut packet = Vec::new();
        if is_request {
            ip(CLIENT, SERVER).icmpv4_echo_request(id, 1).write(&mut packet, b"x").unwrap();
        } else {
            ip(SERVER, CLIENT).icmpv4_echo_reply(id, 1).write(&mut packet, b"x").unwrap();
        }
        packet
    };
    allows(&mut nf, &echo(true, 7));
    allows(&mut nf, &echo(false, 7));
    denies(&mut nf, &echo(false, 8), "denied");
}

#[test]
fn errors_about_a_connection_pass() {
    let mut nf = nf(WEB);
    let sent = udp(CLIENT, 9, SERVER, 53, 0);
    let mut error = Vec::new();
    let kind = Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port);
    ip([8; 4], CLIENT).icmpv4(kind).write(&mut error, &sent[14..]).unwrap();
    denies(&mut nf, &error, "denied");
    allows(&mut nf, &sent);
    allows(&mut nf, &error);
    assert_eq!(nf.handler().report(0).get("related"), Some(1));
    nf.set_now(30 * SECOND);
    denies(&mut nf, &error, "denied");
}

#[test]
fn connections_end_when_idle_and_their_ports_can_be_used_again() {
    let mut nf = nf(WEB);
    allows(&mut nf, &out(5000, "S"));
    nf.set_now(30 * SECOND);
    denies(&mut nf, &back(5000, "SA"), "denied_out_of_state");
    allows(&mut nf, &out(5000, "S"));
    allows(&mut nf, &back(5000, "SA"));
    allows(&mut nf, &out(5000, "FA"));
    allows(&mut nf, &back(5000, "FA"));
    allows(&mut nf, &out(5000, "A"));
    denies(&mut nf, &tcp(SERVER, 80, CLIENT, 5000, "S"), "denied");
    allows(&mut nf, &out(5000, "S"));
    allows(&mut nf, &back(5000, "SA"));
    nf.set_now(3600 * SECOND);
    allows(&mut nf, &out(5000, "A"));
    for tick in 0..AGE_TICKS as u64 {
        nf.tick(7200 * SECOND + tick);
    }
    assert_eq!(nf.handler().report(0).get("connections"), Some(0));
}

#[test]
fn a_full_table_denies_new_connections_and_keeps_the_old_ones() {
    let mut nf = nf(WEB);
    for port in 0..8 {
        allows(&mut nf, &out(port, "S"));
    }
    denies(&mut nf, &out(8, "S"), "denied_table_full");
    allows(&mut nf, &back(7, "SA"));
}

#[test]
fn new_rules_hold_for_connections_too() {
    let mut nf = nf(WEB);
    allows(&mut nf, &out(5000, "S"));
    allows(&mut nf, &udp(CLIENT, 9, SERVER, 53, 0));
    nf.handler().set_rules(rules("stateful\nallow udp from any to any port 53\nallow tcp from 10.0.0.0/8 to any port 443"));
    denies(&mut nf, &back(5000, "SA"), "denied_out_of_state");
    allows(&mut nf, &udp(SERVER, 53, CLIENT, 9, 0));
    assert!(nf.handler().report(0).to_text().lines().any(|line| line.split_whitespace().take(3).eq(["2", "1", "42"])));
}

#[test]
fn a_rule_can_ask_for_the_port_of_entry() {
    let mut nf = nf("allow via lan");
    denies(&mut nf, &out(1, "S"), "denied");
    nf.set_ingress(PortId(1));
    allows(&mut nf, &out(1, "S"));
}

#[test]
fn what_is_not_ip_follows_its_own_line() {
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    allows(&mut nf("default deny"), &arp);
    denies(&mut nf("default allow\nnon-ip deny"), &arp, "non_ip");
    denies(&mut nf("default allow\nnon-ip deny"), &[0; 5], "non_ip");
}

/// A fragment of a packet: its IP payload from `from` to `to`.
fn fragment(packet: &[u8], from: usize, to: usize, more: bool) -> Vec<u8> {
    let mut fragment = [&packet[..34], &packet[34 + from..34 + to]].concat();
    let len = (fragment.len() - 14) as u16;
    fragment[16..18].copy_from_slice(&len.to_be_bytes());
    fragment[20..22].copy_from_slice(&((from / 8) as u16 | u16::from(more) << 13).to_be_bytes());
    fragment
}

#[test]
fn fragments_follow_their_first_one() {
    for (text, verdict) in
        [(WEB, Verdict::Next), ("allow udp to any port 53", Verdict::Next), ("allow udp to any port 54", Verdict::Drop)]
    {
        let mut nf = nf(text);
        let packet = udp(CLIENT, 9, SERVER, 53, 40);
        assert_eq!(nf.send(&fragment(&packet, 0, 16, true)).verdict, verdict, "{text}");
        assert_eq!(nf.send(&fragment(&packet, 16, 48, false)).verdict, verdict, "{text}");
        assert_eq!(nf.handler().report(0).get("fragments"), Some(1));
    }
    let mut nf = nf("allow udp to any port 53");
    denies(&mut nf, &fragment(&udp(CLIENT, 9, SERVER, 53, 40), 16, 48, false), "denied");
}

#[test]
fn headers_that_are_cut_off_are_denied_whatever_the_rules() {
    let mut nf = nf("default allow");
    let packet = out(1, "S");
    denies(&mut nf, &fragment(&packet, 0, 8, true), "denied_malformed");
    denies(&mut nf, &fragment(&packet, 8, 24, false), "denied_malformed");
    denies(&mut nf, &packet[..40], "denied_malformed");
}
