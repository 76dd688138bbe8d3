//! The rule file, and the search for the first match.
//!
//! # Rule file
//! A rule is a line:
//!
//! `allow|deny [PROTOCOL] [via PORT] [from PREFIX|any [port LIST]] [to PREFIX|any [port LIST]]`
//!
//! PROTOCOL is `any`, `tcp`, `udp`, `icmp`, `icmpv6`, `sctp` or a number. PORT is the name of a
//! port of the configuration, where the packet entered. LIST is port numbers and ranges with
//! commas, such as `80,443,8000-8080`; it needs `tcp`, `udp` or `sctp`. The first rule that matches
//! decides; without a match the policy does. The other lines are
//!
//! | line | meaning | without it |
//! |---|---|---|
//! | `default allow` or `default deny` | the policy | deny |
//! | `non-ip allow` or `non-ip deny` | action for all that is not IP, such as ARP | allow |
//! | `stateful` | allowed connections pass in both directions | each packet by the rules |
//! | `timeout tcp\|udp\|other SECONDS` | when an idle connection is forgotten | 3600, 180, 30 |
//!
//! # Limits
//! Rules are tried one after another: without `stateful`, each packet pays for thousands of them. A
//! later fragment has no ports, and no rule with ports matches it.

use std::net::IpAddr;

use ipnet::IpNet;
use sluice_nf::PortId;
use sluice_nf::header::protocol;
use sluice_nf_parts::flow::FlowKey;
use sluice_nf_parts::lines::{self, LineError, Words};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hits {
    pub packets: u64,
    pub bytes: u64,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its line, from 1.
    pub line: usize,
    /// The line itself, without comment.
    pub text: String,
    pub action: Action,
    protocol: Option<u8>,
    via: Option<PortId>,
    src: End,
    dst: End,
    pub hits: Hits,
}

/// Condition on one end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct End {
    prefix: Option<Prefix>,
    /// First and last of each range; no ranges match everything.
    ports: Vec<(u16, u16)>,
}

/// A prefix in the form that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Prefix {
    is_ipv4: bool,
    bits: u128,
    mask: u128,
}

impl From<IpNet> for Prefix {
    fn from(net: IpNet) -> Self {
        match (net.network(), net.netmask()) {
            (IpAddr::V4(bits), IpAddr::V4(mask)) => {
                Self { is_ipv4: true, bits: bits.to_bits().into(), mask: mask.to_bits().into() }
            }
            (IpAddr::V6(bits), IpAddr::V6(mask)) => Self { is_ipv4: false, bits: bits.to_bits(), mask: mask.to_bits() },
            _ => unreachable!("a prefix and its mask are of one family"),
        }
    }
}

impl End {
    #[inline]
    fn matches(&self, is_ipv4: bool, bits: u128, port: Option<u16>) -> bool {
        self.prefix.is_none_or(|p| p.is_ipv4 == is_ipv4 && bits & p.mask == p.bits)
            && (self.ports.is_empty()
                || port.is_some_and(|port| self.ports.iter().any(|(first, last)| (*first..=*last).contains(&port))))
    }
}

/// The part of a packet that rules match.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    pub key: FlowKey,
    /// Whether the key has ports; later fragments and some protocols have none.
    pub has_ports: bool,
    /// Number of the port where it entered.
    pub ingress: u16,
}

impl Rule {
    #[inline]
    fn matches(&self, subject: &Subject) -> bool {
        let key = &subject.key;
        let port = |port: u16| subject.has_ports.then_some(port);
        self.protocol.is_none_or(|protocol| protocol == key.protocol())
            && self.via.is_none_or(|via| via.0 == subject.ingress)
            && self.src.matches(key.is_ipv4(), key.src_bits(), port(key.src_port()))
            && self.dst.matches(key.is_ipv4(), key.dst_bits(), port(key.dst_port()))
    }
}

/// A rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub rules: Vec<Rule>,
    /// Action without a matching rule.
    pub policy: Action,
    pub policy_hits: Hits,
    /// Action for packets that are not IP.
    pub non_ip: Action,
    pub stateful: bool,
    pub timeouts: Timeouts,
}

/// Timeouts of idle connections, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For an established TCP connection.
    pub tcp_s: u64,
    /// For UDP that was answered.
    pub udp_s: u64,
    pub other_s: u64,
}

impl Rules {
    /// Parses a rule file; `port` finds a port by its name.
    pub fn parse(text: &str, port: &dyn Fn(&str) -> Option<PortId>) -> Result<Self, LineError> {
        let mut file = Self {
            rules: Vec::new(),
            policy: Action::Deny,
            policy_hits: Hits::default(),
            non_ip: Action::Allow,
            stateful: false,
            timeouts: Timeouts { tcp_s: 3600, udp_s: 180, other_s: 30 },
        };
        for mut words in lines::lines(text) {
            let (line, text) = (words.line(), words.rest());
            match words.expect("a rule")? {
                "allow" => file.rules.push(rule(&mut words, Action::Allow, line, text, port)?),
                "deny" => file.rules.push(rule(&mut words, Action::Deny, line, text, port)?),
                "default" => file.policy = action(&mut words)?,
                "non-ip" => file.non_ip = action(&mut words)?,
                "stateful" => file.stateful = true,
                "timeout" => timeout(&mut words, &mut file.timeouts)?,
                other => {
                    let known = "`allow`, `deny`, `default`, `non-ip`, `stateful` and `timeout`";
                    return Err(words.error(format!("`{other}` begins no line; {known} do")));
                }
            }
            words.end()?;
        }
        Ok(file)
    }

    /// Index of the first rule that matches.
    #[inline]
    pub fn first_match(&self, subject: &Subject) -> Option<usize> {
        self.rules.iter().position(|rule| rule.matches(subject))
    }

    /// Action of a rule, or of the policy.
    #[inline]
    pub fn action(&self, rule: Option<usize>) -> Action {
        rule.map_or(self.policy, |rule| self.rules[rule].action)
    }

    /// Counts a packet for a rule, or the policy.
    #[inline]
    pub fn count(&mut self, rule: Option<usize>, bytes: usize) {
        let hits = rule.map_or(&mut self.policy_hits, |rule| &mut self.rules[rule].hits);
        hits.packets += 1;
        hits.bytes += bytes as u64;
    }

    /// Takes over the counters of rules that an older file has word for word.
    pub fn inherit(&mut self, older: &Self) {
        for rule in &mut self.rules {
            rule.hits = older.rules.iter().find(|old| old.text == rule.text).map_or(Hits::default(), |old| old.hits);
        }
        self.policy_hits = older.policy_hits;
    }
}

fn action(words: &mut Words<'_>) -> Result<Action, LineError> {
    match words.expect("`allow` or `deny`")? {
        "allow" => Ok(Action::Allow),
        "deny" => Ok(Action::Deny),
        other => Err(words.error(format!("`{other}` is not `allow` or `deny`"))),
    }
}

fn timeout(words: &mut Words<'_>, timeouts: &mut Timeouts) -> Result<(), LineError> {
    let place = match words.expect("`tcp`, `udp` or `other`")? {
        "tcp" => &mut timeouts.tcp_s,
        "udp" => &mut timeouts.udp_s,
        "other" => &mut timeouts.other_s,
        other => return Err(words.error(format!("`{other}` is not `tcp`, `udp` or `other`"))),
    };
    *place = words.parse("a number of seconds")?;
    Ok(())
}

fn rule(
    words: &mut Words<'_>,
    action: Action,
    line: usize,
    text: &str,
    port_of: &dyn Fn(&str) -> Option<PortId>,
) -> Result<Rule, LineError> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rule =
        Rule { line, text, action, protocol: None, via: None, src: End::default(), dst: End::default(), hits: Hits::default() };
    if words.peek().is_some_and(|word| !matches!(word, "via" | "from" | "to" | "port")) {
        rule.protocol = protocol_number(words)?;
    }
    if words.skip("via") {
        let name = words.expect("the name of a port")?;
        let no_port = || words.error(format!("there is no port `{name}` in the configuration"));
        rule.via = Some(port_of(name).ok_or_else(no_port)?);
    }
    if words.skip("from") {
        rule.src = end(words, rule.protocol)?;
    }
    if words.skip("to") {
        rule.dst = end(words, rule.protocol)?;
    }
    if let Some(word) = words.peek() {
        let message = match word {
            "port" => "`port` stands behind an address; write `to any port …` or `from any port …`".into(),
            "via" | "from" | "to" => format!("`{word}` is twice here or out of order, which is `via`, `from`, `to`"),
            _ => format!("`{word}` is not understood here; `via`, `from`, `to` or the end of the line is"),
        };
        return Err(words.error(message));
    }
    if let (Some(src), Some(dst)) = (rule.src.prefix, rule.dst.prefix)
        && src.is_ipv4 != dst.is_ipv4
    {
        return Err(words.error("one prefix is IPv4 and the other one IPv6, which no packet is; take `any` for one of them"));
    }
    Ok(rule)
}

fn protocol_number(words: &mut Words<'_>) -> Result<Option<u8>, LineError> {
    Ok(Some(match words.expect("a protocol")? {
        "any" => return Ok(None),
        "tcp" => protocol::TCP,
        "udp" => protocol::UDP,
        "icmp" => protocol::ICMP,
        "icmpv6" => protocol::ICMPV6,
        "sctp" => protocol::SCTP,
        other => other.parse().map_err(|_| {
            words
                .error(format!("`{other}` is no protocol; `any`, `tcp`, `udp`, `icmp`, `icmpv6`, `sctp` and numbers up to 255 are"))
        })?,
    }))
}

fn end(words: &mut Words<'_>, number: Option<u8>) -> Result<End, LineError> {
    let mut end = End::default();
    if !words.skip("any") {
        let word = words.expect("a prefix or `any`")?;
        // A bare address is a prefix of full length.
        let net = word.parse::<IpNet>().or_else(|_| word.parse::<IpAddr>().map(IpNet::from));
        let net = net.map_err(|_| words.error(format!("`{word}` is not `any`, an address or a prefix such as 10.0.0.0/8")))?;
        if net.trunc() != net {
            return Err(words.error(format!("{net} has bits set behind its length; {} is meant, or another length", net.trunc())));
        }
        end.prefix = Some(net.into());
    }
    if words.skip("port") {
        if !matches!(number, Some(protocol::TCP | protocol::UDP | protocol::SCTP)) {
            return Err(words.error("`port` needs a protocol with ports; begin the rule with `allow tcp`, `deny udp` or the like"));
        }
        let list = words.expect("port numbers such as 80,443,8000-8080")?;
        for range in list.split(',') {
            end.ports.push(port_range(range).ok_or_else(|| {
                words.error(format!("`{range}` is no port number from 0 to 65535 and no range such as 8000-8080"))
            })?);
        }
    }
    Ok(end)
}

fn port_range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Rules, LineError> {
        Rules::parse(text, &|name| (name == "lan").then_some(PortId(3)))
    }

    fn subject(protocol: u8, src: &str, src_port: u16, dst: &str, dst_port: u16) -> Subject {
        let key = FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), protocol, src_port, dst_port);
        Subject { key, has_ports: matches!(protocol, 6 | 17), ingress: 0 }
    }

    #[test]
    fn the_first_match_decides() {
        let rules = parse(
            "deny tcp from any to 10.0.0.5 port 22\n\
             allow tcp to 10.0.0.0/8 port 22,80,8000-8080\n\
             allow udp from 192.0.2.0/24 port 53\n\
             deny any from 2001:db8::/32\n\
             allow 47\n\
             allow icmpv6",
        )
        .unwrap();
        for (subject, rule) in [
            (subject(6, "1.1.1.1", 9, "10.0.0.5", 22), Some(0)),
            (subject(6, "1.1.1.1", 9, "10.0.0.6", 22), Some(1)),
            (subject(6, "1.1.1.1", 9, "10.0.0.5", 8000), Some(1)),
            (subject(6, "1.1.1.1", 9, "10.0.0.5", 8080), Some(1)),
            (subject(6, "1.1.1.1", 9, "10.0.0.5", 8081), None),
            (subject(6, "1.1.1.1", 9, "11.0.0.5", 80), None),
            (subject(17, "192.0.2.9", 53, "11.0.0.5", 80), Some(2)),
            (subject(17, "192.0.2.9", 54, "11.0.0.5", 80), None),
            (subject(17, "2001:db8::9", 53, "::5", 80), Some(3)),
            (subject(58, "2001:db8::9", 0, "::5", 0), Some(3)),
            (subject(58, "2001:db9::9", 0, "::5", 0), Some(5)),
            (subject(47, "1.1.1.1", 0, "2.2.2.2", 0), Some(4)),
        ] {
            assert_eq!(rules.first_match(&subject), rule, "{subject:?}");
        }
        let later_fragment = Subject { has_ports: false, ..subject(6, "1.1.1.1", 0, "10.0.0.5", 0) };
        assert_eq!(rules.first_match(&later_fragment), None);
    }

    #[test]
    fn a_port_where_packets_enter_can_be_asked_for() {
        let rules = parse("allow via lan").unwrap();
        let from = |ingress| Subject { ingress, ..subject(6, "1.1.1.1", 1, "2.2.2.2", 2) };
        assert_eq!((rules.first_match(&from(3)), rules.first_match(&from(2))), (Some(0), None));
    }

    #[test]
    fn other_lines_are_read() {
        let rules = parse("default allow # open\nnon-ip deny\nstateful\ntimeout tcp 60\ntimeout udp 5\ntimeout other 1").unwrap();
        assert_eq!((rules.policy, rules.non_ip, rules.stateful), (Action::Allow, Action::Deny, true));
        assert_eq!(rules.timeouts, Timeouts { tcp_s: 60, udp_s: 5, other_s: 1 });
        let rules = parse("").unwrap();
        assert_eq!((rules.policy, rules.non_ip, rules.stateful), (Action::Deny, Action::Allow, false));
    }

    #[test]
    fn errors_name_the_line_and_say_what_to_write() {
        for (text, error) in [
            ("\npass tcp", "2: `pass` begins no line; `allow`, `deny`"),
            ("allow tpc", "1: `tpc` is no protocol"),
            ("allow 256", "1: `256` is no protocol"),
            ("allow tcp port 80", "1: `port` stands behind an address"),
            ("allow from any port 80", "1: `port` needs a protocol with ports"),
            ("allow icmp to any port 80", "1: `port` needs a protocol with ports"),
            ("allow tcp to any port 80-70", "1: `80-70` is no port number"),
            ("allow tcp to any port 80,", "1: `` is no port number"),
            ("allow tcp to any port", "1: the line ends where port numbers"),
            ("allow tcp to 10.0.0.1/8", "1: 10.0.0.1/8 has bits set behind its length; 10.0.0.0/8 is meant"),
            ("allow tcp to 10.0.0.0/99", "1: `10.0.0.0/99` is not `any`"),
            ("allow tcp to any from any", "1: `from` is twice here or out of order"),
            ("allow tcp from any any", "1: `any` is not understood here"),
            ("allow from 10.0.0.0/8 to ::/0", "1: one prefix is IPv4"),
            ("allow via wan", "1: there is no port `wan`"),
            ("default", "1: the line ends where `allow` or `deny`"),
            ("default drop", "1: `drop` is not `allow` or `deny`"),
            ("timeout sctp 5", "1: `sctp` is not `tcp`"),
            ("timeout tcp never", "1: `never` is not a number of seconds"),
            ("stateful yes", "1: `yes` is one word too many"),
        ] {
            let got = parse(text).unwrap_err().to_string();
            assert!(got.starts_with(error), "{text:?}: {got}");
        }
    }

    #[test]
    fn counters_survive_a_new_file() {
        let mut old = parse("allow tcp\ndeny udp").unwrap();
        old.count(Some(1), 60);
        old.count(None, 70);
        let mut new = parse("# now\nallow icmp\ndeny   udp # same").unwrap();
        new.inherit(&old);
        assert_eq!(new.rules[0].hits, Hits::default());
        assert_eq!(new.rules[1].hits, Hits { packets: 1, bytes: 60 });
        assert_eq!(new.policy_hits, Hits { packets: 1, bytes: 70 });
    }
}
