//! Checks of rules.

use std::collections::HashMap;

use super::{Validation, names_of, port_of};
use crate::problem::{At, Problem};
use sluice_api::config::{PortRange, Rule};
use sluice_api::parse;
use sluice_api::protocol::{ICMP, ProtocolMatch};

impl Validation<'_> {
    pub(super) fn rules(&mut self) {
        let config = self.config;
        let chains: Vec<&str> = config.chains.iter().map(|c| c.name.as_str()).collect();
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (i, rule) in config.rules.iter().enumerate() {
            match &rule.name {
                Some(name) => self.name("rule", i, name, true, &mut seen),
                None => {
                    seen.entry(rule.label(i)).or_insert(i);
                }
            }
            self.reference(At::entry("rule", i, "chain"), "chain", &rule.chain, &chains);
            if let Some(port) = &rule.port
                && self.reference(At::entry("rule", i, "port"), "port", port, &names_of(config))
            {
                self.ingress(i, port);
            }
            if let Some(wakeup) = &rule.wakeup {
                self.wakeup_of_rule(i, &rule.chain, wakeup);
            }
            self.matching(i, rule);
        }
    }

    fn ingress(&mut self, i: usize, name: &str) {
        let Some(silent) = port_of(self.config, name).and_then(|port| port.kind.no_input()) else { return };
        self.warn(
            At::entry("rule", i, "port"),
            format!("no packet ever comes in at \"{name}\", which {silent}"),
            "name another port",
        );
    }

    /// Checks that some packet can match a rule.
    fn matching(&mut self, i: usize, rule: &Rule) {
        let at = |key| At::entry("rule", i, key);
        let protocol = match rule.protocol.as_deref().map(parse::protocol) {
            None => ProtocolMatch::Any,
            Some(Ok(protocol)) => protocol,
            Some(Err(text)) => {
                self.sentence(at("protocol"), &text);
                return;
            }
        };
        let word = rule.protocol.as_deref().unwrap_or_default();
        let mut families: Vec<(&'static str, bool)> = Vec::new();
        for (key, text) in [("src", &rule.src), ("dst", &rule.dst)] {
            let Some(text) = text else { continue };
            match parse::prefix(text) {
                Err(text) => self.sentence(at(key), &text),
                Ok(_) if protocol == ProtocolMatch::NonIp => {
                    self.error(
                        at(key),
                        "packets that are not IP have no addresses",
                        format!("remove `{key}`, or protocol = \"non-ip\""),
                    );
                }
                Ok((address, _)) => {
                    families.push((key, address.is_ipv6()));
                    if !protocol.has_family(address.is_ipv6()) {
                        let (other, version) = if protocol == ProtocolMatch::Number(ICMP) { ("icmpv6", 6) } else { ("icmp", 4) };
                        self.error(
                            at("protocol"),
                            format!("no IPv{version} packet is of protocol \"{word}\", and `{key}` is an IPv{version} prefix"),
                            format!("write protocol = \"{other}\""),
                        );
                    }
                }
            }
        }
        if let [(_, a), (_, b)] = families[..]
            && a != b
        {
            self.error(at("dst"), "`src` and `dst` are of different IP versions, so no packet matches both", "write two rules");
        }
        for (key, range) in [("src_port", &rule.src_port), ("dst_port", &rule.dst_port)] {
            let Some(range) = range else { continue };
            if let Err(text) = range.bounds() {
                self.sentence(at(key), &text);
            } else if !protocol.has_ports() {
                self.error(
                    at(key),
                    format!("packets of protocol \"{word}\" have no ports"),
                    format!("remove `{key}`, or write protocol = \"tcp\" or \"udp\""),
                );
            }
        }
        if rule.dscp.is_some() && protocol == ProtocolMatch::NonIp {
            self.error(at("dscp"), "packets that are not IP have no DSCP", "remove `dscp`, or protocol = \"non-ip\"");
        }
    }

    /// Splits an error of [`parse`], "problem; help".
    fn sentence(&mut self, at: At, text: &str) {
        let (message, help) = text.split_once("; ").unwrap_or((text, ""));
        self.error(at, message, help);
    }

    /// Warns about rules that an earlier rule covers.
    pub(super) fn covered(&mut self) {
        let config = self.config;
        for (i, rule) in config.rules.iter().enumerate() {
            if let Some(earlier) = config.rules[..i].iter().position(|earlier| covers(earlier, rule)) {
                self.problems.push(
                    Problem::warning(
                        At::entry("rule", i, ""),
                        format!(
                            "{} never matches: {} before it takes all its packets",
                            rule.label(i),
                            config.rules[earlier].label(earlier)
                        ),
                        "the first rule that matches wins; move this one up, or remove it",
                    )
                    .after(At::entry("rule", earlier, "")),
                );
            }
        }
    }
}

/// Whether `earlier` matches all packets that `later` matches, comparing key by key.
fn covers(earlier: &Rule, later: &Rule) -> bool {
    fn key<T>(earlier: &Option<T>, later: &Option<T>, within: impl Fn(&T, &T) -> bool) -> bool {
        match (earlier, later) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(e), Some(l)) => within(e, l),
        }
    }
    let prefix = |e: &String, l: &String| match (parse::prefix(e), parse::prefix(l)) {
        (Ok((e, bits)), Ok((l, more))) => e.is_ipv6() == l.is_ipv6() && bits <= more && parse::network_of(l, bits) == e,
        _ => false,
    };
    let range = |e: &PortRange, l: &PortRange| match (e.bounds(), l.bounds()) {
        (Ok(e), Ok(l)) => e.0 <= l.0 && l.1 <= e.1,
        _ => false,
    };
    let protocol = |e: &String, l: &String| match (parse::protocol(e), parse::protocol(l)) {
        (Ok(ProtocolMatch::Ip), Ok(ProtocolMatch::Number(_) | ProtocolMatch::Ip)) => true,
        (Ok(e), Ok(l)) => e == l,
        _ => false,
    };
    key(&earlier.port, &later.port, |e, l| e == l)
        && key(&earlier.vlan, &later.vlan, |e, l| e == l)
        && key(&earlier.protocol, &later.protocol, protocol)
        && key(&earlier.src, &later.src, prefix)
        && key(&earlier.dst, &later.dst, prefix)
        && key(&earlier.src_port, &later.src_port, range)
        && key(&earlier.dst_port, &later.dst_port, range)
        && key(&earlier.dscp, &later.dscp, |e, l| e == l)
}
