//! The rules of a configuration, as the packet threads have them.

use std::collections::HashMap;

use sluice_api::config as model;
use sluice_api::parse;
use sluice_api::protocol::ProtocolMatch;
use sluice_policy::sched::priority::Weight;

use super::rule::{Prefix, Rule, RuleTerms};

/// Why a rule cannot be used. Each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A rule names a port that is not there.
    #[error("rule {rule}: there is no port {port:?}; name one of the configured ports")]
    NoSuchPort {
        /// Name of the rule.
        rule: String,
        /// What it names.
        port: String,
    },
    /// A rule names a chain that is not there.
    #[error("rule {rule}: there is no chain {chain:?}; name one of the configured chains")]
    NoSuchChain {
        /// Name of the rule.
        rule: String,
        /// What it names.
        chain: String,
    },
    /// A value is not what its key takes.
    #[error("rule {rule}: {key}: {what}")]
    BadValue {
        /// Name of the rule.
        rule: String,
        /// The key.
        key: &'static str,
        /// What is wrong, and what to write.
        what: String,
    },
    /// No packet can match all keys of a rule.
    #[error("rule {rule} can never match: {why}; remove one of the two keys")]
    NeverMatches {
        /// Name of the rule.
        rule: String,
        /// Which keys contradict each other.
        why: &'static str,
    },
}

/// Compiles a configured rule.
///
/// `number` is its place in the list, from 0; `ports` and `chains` map names to numbers.
///
/// # Errors
/// A [`RuleError`] if a name is unknown, a value is not what its key takes, or no packet can match.
pub fn compile(
    rule: &model::Rule,
    number: usize,
    ports: &HashMap<String, u16>,
    chains: &HashMap<String, u16>,
) -> Result<Rule, RuleError> {
    let name = || rule.name.clone().unwrap_or_else(|| format!("rule.{number}"));
    let bad = |key, what| RuleError::BadValue { rule: name(), key, what };
    let prefix = |key, value: &Option<String>| {
        let Some(text) = value else { return Ok(None) };
        let (address, len) = parse::prefix(text).map_err(|what| bad(key, what))?;
        Ok(Prefix::new(address, len))
    };
    let range = |key, value: &Option<model::PortRange>| {
        let Some(range) = value else { return Ok(None) };
        let (first, last) = range.bounds().map_err(|what| bad(key, what))?;
        Ok(Some(first..=last))
    };
    let at_most = |key, value: Option<u16>, most, what: &str| match value {
        Some(v) if v > most => Err(bad(key, format!("{v} is no {what}; they go from 0 to {most}"))),
        _ => Ok(value),
    };
    let protocol = match &rule.protocol {
        None => ProtocolMatch::Any,
        Some(word) => parse::protocol(word).map_err(|what| bad("protocol", what))?,
    };
    let compiled = Rule {
        port: match &rule.port {
            None => None,
            Some(port) => Some(*ports.get(port).ok_or_else(|| RuleError::NoSuchPort { rule: name(), port: port.clone() })?),
        },
        vlan: at_most("vlan", rule.vlan, 4094, "VLAN id")?,
        protocol,
        src: prefix("src", &rule.src)?,
        dst: prefix("dst", &rule.dst)?,
        src_port: range("src_port", &rule.src_port)?,
        dst_port: range("dst_port", &rule.dst_port)?,
        dscp: at_most("dscp", rule.dscp.map(u16::from), 63, "DSCP")?.map(|d| d as u8),
        chain: *chains.get(&rule.chain).ok_or_else(|| RuleError::NoSuchChain { rule: name(), chain: rule.chain.clone() })?,
        terms: RuleTerms {
            weight: rule.priority.map_or(Weight::ORDINARY, Weight::new),
            wakeup: rule.wakeup.map(|wakeup| wakeup.rules_of_flow()),
            tenant: 0,
        },
    };
    match compiled.contradiction() {
        Some(why) => Err(RuleError::NeverMatches { rule: name(), why }),
        None => Ok(compiled),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn compile(text: &str) -> Result<Rule, RuleError> {
        let rule: model::Rule = toml::from_str(text).unwrap();
        let ports = HashMap::from([("wan".to_owned(), 4)]);
        let chains = HashMap::from([("web".to_owned(), 9)]);
        super::compile(&rule, 2, &ports, &chains)
    }

    #[test]
    fn configured_rules_compile() {
        assert_eq!(compile("chain = 'web'"), Ok(Rule { chain: 9, ..Rule::default() }));
        let all = "port = 'wan'\nvlan = 5\nprotocol = 'tcp'\nsrc = '10.0.0.0/8'\ndst = '192.0.2.1'\nsrc_port = '1000-2000'\n\
                   dst_port = 80\ndscp = 46\npriority = 2.5\ntenant = 'gold'\nchain = 'web'";
        let expected = Rule {
            port: Some(4),
            vlan: Some(5),
            protocol: ProtocolMatch::Number(6),
            src: Some(Prefix::V4(0x0a00_0000, 0xff00_0000)),
            dst: Some(Prefix::V4(0xc000_0201, u32::MAX)),
            src_port: Some(1000..=2000),
            dst_port: Some(80..=80),
            dscp: Some(46),
            chain: 9,
            terms: RuleTerms { weight: Weight::new(2.5), ..RuleTerms::default() },
        };
        assert_eq!(compile(all), Ok(expected));
        assert_eq!(
            compile("src = '2001:db8::/32'\nchain = 'web'").unwrap().src,
            Prefix::new("2001:db8::".parse::<IpAddr>().unwrap(), 32)
        );
        for (word, protocol) in [("ip", ProtocolMatch::Ip), ("non-ip", ProtocolMatch::NonIp), ("89", ProtocolMatch::Number(89))] {
            assert_eq!(compile(&format!("protocol = '{word}'\nchain = 'web'")).unwrap().protocol, protocol);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_advice() {
        for (text, message) in [
            ("chain = 'wob'", "rule rule.2: there is no chain \"wob\"; name one of the configured chains"),
            ("name = 'a'\nport = 'x'\nchain = 'web'", "rule a: there is no port \"x\"; name one of the configured ports"),
            (
                "src = '10.0.0.0/33'\nchain = 'web'",
                "rule rule.2: src: \"33\" is no prefix length of an IPv4 address; they go from 0 to 32",
            ),
            ("dst_port = '9-8'\nchain = 'web'", "rule rule.2: dst_port: the range \"9-8\" runs backwards; write \"8-9\""),
            ("vlan = 4095\nchain = 'web'", "rule rule.2: vlan: 4095 is no VLAN id; they go from 0 to 4094"),
            ("dscp = 64\nchain = 'web'", "rule rule.2: dscp: 64 is no DSCP; they go from 0 to 63"),
            ("protocol = '256'\nchain = 'web'", "rule rule.2: protocol: 256 is no protocol number; they go from 0 to 255"),
            (
                "protocol = 'non-ip'\nsrc = '10.0.0.0/8'\nchain = 'web'",
                "rule rule.2 can never match: non-ip packets have no address, port or DSCP; remove one of the two keys",
            ),
            (
                "src = '::1'\ndst = '10.0.0.0/8'\nchain = 'web'",
                "rule rule.2 can never match: src and dst are of different IP versions; remove one of the two keys",
            ),
            (
                "protocol = 'icmp'\ndst_port = 1\nchain = 'web'",
                "rule rule.2 can never match: its protocol has no ports; remove one of the two keys",
            ),
        ] {
            assert_eq!(compile(text).unwrap_err().to_string(), message);
        }
    }
}
