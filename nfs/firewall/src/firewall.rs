//! The path of a packet through the firewall.
//!
//! - Not IP: by `non-ip`.
//! - A fragment after the first: as the first one of its datagram, if that is known; else by the
//!   rules, which see no ports then.
//! - With `stateful`: a packet of a known connection passes, and so does an ICMP error about one; a
//!   TCP packet that neither belongs to one nor begins one is dropped.
//! - All else: by the rules, and what they allow becomes a connection.
//!
//! Always dropped: TCP, UDP, SCTP and ICMP with an incomplete header, and the second 8 bytes of a
//! TCP header alone in a fragment, which is how filters are fooled (RFC 1858). When the table of
//! connections is full, packets that need a new entry are dropped.
//!
//! With a new rule file, the new rules decide a connection's next packet as if it were its first
//! one.

use std::time::Duration;

use sluice_nf::header::{Headers, parse, protocol};
use sluice_nf::{Burst, Handler};
use sluice_nf_parts::datagram::{Datagrams, Part};
use sluice_nf_parts::flow::FlowKey;
use sluice_nf_parts::icmp::Quoted;
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{Report, Reports};
use sluice_nf_parts::table::{AGE_TICK, Table};

use crate::connection::{self, Connection};
use crate::rules::{Action, Rules, Subject};

/// Decision about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    ByRule(Action),
    NonIp(Action),
    /// As the first fragment.
    Fragment(Action),
    Related,
    Malformed,
    OutOfState,
    TableFull,
}

#[derive(Debug, Default)]
struct Counters {
    allowed: u64,
    denied: u64,
    non_ip: u64,
    fragments: u64,
    related: u64,
    malformed: u64,
    out_of_state: u64,
    table_full: u64,
}

#[derive(Debug)]
pub struct Firewall {
    rules: Rules,
    /// Number of the rule file.
    generation: u32,
    fresh: Option<Reload<Rules>>,
    connections: Table<FlowKey, Connection>,
    datagrams: Datagrams<Action>,
    counters: Counters,
}

impl Firewall {
    /// `limit` is the most connections that it remembers; `fresh` brings new rules.
    pub fn new(rules: Rules, limit: usize, fresh: Option<Reload<Rules>>) -> Self {
        Self {
            rules,
            generation: 0,
            fresh,
            connections: Table::with_limit(limit),
            datagrams: Datagrams::new(),
            counters: Counters::default(),
        }
    }

    fn set_rules(&mut self, mut rules: Rules) {
        rules.inherit(&self.rules);
        self.rules = rules;
        self.generation = self.generation.wrapping_add(1);
    }

    #[inline]
    fn decide(&mut self, packet: &[u8], ingress: u16, now_ns: u64) -> Decision {
        let Some(headers) = parse(packet) else { return Decision::NonIp(self.rules.non_ip) };
        let (Some(ip), Some(key)) = (headers.ip, FlowKey::of_session(packet, &headers)) else {
            return Decision::NonIp(self.rules.non_ip);
        };
        let has_ports = headers.l4.is_some_and(|l4| l4.ports.is_some());
        let subject = Subject { key, has_ports, ingress };
        if ip.fragment.is_none() {
            return self.decide_whole(packet, &headers, &subject, now_ns);
        }
        let Some(part) = Part::of(packet, &headers) else { return Decision::Malformed };
        if part.is_first() {
            let decision = self.decide_whole(packet, &headers, &subject, now_ns);
            let action = if decision.passes() { Action::Allow } else { Action::Deny };
            self.datagrams.remember(&part, action, now_ns);
            return decision;
        }
        if part.offset == 8 && ip.protocol == protocol::TCP {
            return Decision::Malformed;
        }
        if let Some(action) = self.datagrams.follow(&part) {
            return Decision::Fragment(action);
        }
        self.by_rules(packet, &subject).1
    }

    /// Decides about a packet that has its transport header, if its protocol has one.
    #[inline]
    fn decide_whole(&mut self, packet: &[u8], headers: &Headers, subject: &Subject, now_ns: u64) -> Decision {
        let number = subject.key.protocol();
        let needs_header = matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP | protocol::ICMP | protocol::ICMPV6);
        if needs_header && headers.l4.is_none() {
            return Decision::Malformed;
        }
        if !self.rules.stateful {
            return self.by_rules(packet, subject).1;
        }
        let is_tcp = number == protocol::TCP;
        let flags =
            if is_tcp { headers.l4.and_then(|l4| packet.get(l4.offset as usize + 13)).copied().unwrap_or_default() } else { 0 };
        let (key, is_reversed) = subject.key.canonical();
        if let Some(handle) = self.connections.find(&key)
            && let Some((_, connection)) = self.connections.entry_mut(handle)
        {
            let is_dead = connection.is_old(number, &self.rules.timeouts, now_ns)
                || is_tcp && connection.is_over() && connection::begins(flags)
                || connection.generation != self.generation && !renew(connection, &key, subject, &self.rules, self.generation);
            if !is_dead {
                connection.note(is_reversed, flags, now_ns);
                let rule = connection.rule.map(|rule| rule as usize);
                self.rules.count(rule, packet.len());
                return Decision::ByRule(Action::Allow);
            }
            self.connections.remove(handle);
        }
        if is_tcp && !connection::begins(flags) {
            return Decision::OutOfState;
        }
        if let Some(quoted) = Quoted::find(packet, headers)
            && let Some(about) = self.connections.get_mut(&quoted.key.canonical().0)
            && !about.is_old(quoted.key.protocol(), &self.rules.timeouts, now_ns)
        {
            return Decision::Related;
        }
        let (rule, decision) = self.by_rules(packet, subject);
        if decision == Decision::ByRule(Action::Allow) {
            let rule = rule.map(|rule| rule as u32);
            let mut connection = Connection::new(rule, self.generation, subject.ingress, is_reversed, now_ns);
            connection.note(is_reversed, flags, now_ns);
            if self.connections.insert(key, connection).is_none() {
                return Decision::TableFull;
            }
        }
        decision
    }

    fn by_rules(&mut self, packet: &[u8], subject: &Subject) -> (Option<usize>, Decision) {
        let rule = self.rules.first_match(subject);
        self.rules.count(rule, packet.len());
        (rule, Decision::ByRule(self.rules.action(rule)))
    }
}

/// Checks a connection against a new rule file. Returns whether it may go on.
#[cold]
fn renew(connection: &mut Connection, key: &FlowKey, subject: &Subject, rules: &Rules, generation: u32) -> bool {
    let first = Subject { key: connection.first_key(key), ingress: connection.ingress, ..*subject };
    let rule = rules.first_match(&first);
    connection.rule = rule.map(|rule| rule as u32);
    connection.generation = generation;
    rules.action(rule) == Action::Allow
}

impl Decision {
    fn passes(self) -> bool {
        matches!(self, Self::ByRule(Action::Allow) | Self::NonIp(Action::Allow) | Self::Fragment(Action::Allow) | Self::Related)
    }
}

impl Counters {
    #[inline]
    fn add(&mut self, decision: Decision) {
        match decision {
            Decision::ByRule(_) => {}
            Decision::NonIp(_) => self.non_ip += 1,
            Decision::Fragment(_) => self.fragments += 1,
            Decision::Related => self.related += 1,
            Decision::Malformed => self.malformed += 1,
            Decision::OutOfState => self.out_of_state += 1,
            Decision::TableFull => self.table_full += 1,
        }
        *(if decision.passes() { &mut self.allowed } else { &mut self.denied }) += 1;
    }
}

impl Handler for Firewall {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        let now_ns = burst.now_ns();
        for mut packet in burst.iter_mut() {
            let decision = self.decide(packet.data(), packet.ingress(), now_ns);
            self.counters.add(decision);
            if !decision.passes() {
                packet.drop();
            }
        }
    }

    fn tick(&mut self, now_ns: u64) {
        if let Some(rules) = self.fresh.as_ref().and_then(Reload::take) {
            self.set_rules(rules);
        }
        let timeouts = self.rules.timeouts;
        let is_old = |key: &FlowKey, connection: &Connection| connection.is_old(key.protocol(), &timeouts, now_ns);
        self.connections.age(is_old, |_, _, _| {});
        self.datagrams.age(now_ns);
    }

    fn tick_every(&self) -> Option<Duration> {
        Some(AGE_TICK)
    }
}

impl Reports for Firewall {
    fn report(&self, _now_ns: u64) -> Report {
        let c = &self.counters;
        let policy = if self.rules.policy == Action::Allow { "default allow" } else { "default deny" };
        let rules = self.rules.rules.iter().map(|rule| (rule.line.into(), rule.hits, rule.text.as_str()));
        let rows = rules
            .chain([(serde_json::Value::Null, self.rules.policy_hits, policy)])
            .map(|(line, hits, text)| vec![line, hits.packets.into(), hits.bytes.into(), text.into()])
            .collect();
        Report::new("firewall")
            .counter("allowed", c.allowed)
            .counter("denied", c.denied)
            .counter("connections", self.connections.len() as u64)
            .counter("non_ip", c.non_ip)
            .counter("fragments", c.fragments)
            .counter("related", c.related)
            .counter("denied_malformed", c.malformed)
            .counter("denied_out_of_state", c.out_of_state)
            .counter("denied_table_full", c.table_full)
            .table("rules", &["line", "packets", "bytes", "rule"], rows)
    }
}

#[cfg(test)]
#[path = "firewall_tests.rs"]
mod tests;
