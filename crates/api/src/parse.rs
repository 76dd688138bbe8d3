//! The small languages inside values: prefixes, protocols, addresses of controllers.
//!
//! Validation and classifier use the same functions, so that a value means what was checked. Each
//! error is a sentence that names problem and correct form; the caller adds the place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::nearest;
use crate::protocol::{ICMP, ICMPV6, ProtocolMatch, TCP, UDP};

/// The words that [`protocol`] accepts, besides numbers.
pub(crate) const PROTOCOLS: [&str; 6] = ["tcp", "udp", "icmp", "icmpv6", "ip", "non-ip"];

/// Reads the protocol of a rule: one of `PROTOCOLS`, or a number from 0 to 255.
///
/// # Errors
/// A sentence that names the nearest word.
pub fn protocol(text: &str) -> Result<ProtocolMatch, String> {
    match text {
        "tcp" => Ok(ProtocolMatch::Number(TCP)),
        "udp" => Ok(ProtocolMatch::Number(UDP)),
        "icmp" => Ok(ProtocolMatch::Number(ICMP)),
        "icmpv6" => Ok(ProtocolMatch::Number(ICMPV6)),
        "ip" => Ok(ProtocolMatch::Ip),
        "non-ip" => Ok(ProtocolMatch::NonIp),
        _ if is_digits(text) => match text.parse() {
            Ok(number) => Ok(ProtocolMatch::Number(number)),
            Err(_) => Err(format!("{text} is no protocol number; they go from 0 to 255")),
        },
        _ => Err(format!("no protocol is called {text:?}; {}", nearest::hint(text, &PROTOCOLS))),
    }
}

/// Reads a prefix, such as `10.0.0.0/8` or `2001:db8::/32`; a bare address is a full prefix.
///
/// # Errors
/// A sentence with the correct form, such as the prefix with its host bits cleared.
pub fn prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr =
        address.parse().map_err(|_| format!("{text:?} is no IP prefix; write it like \"10.0.0.0/8\" or \"2001:db8::/32\""))?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => longest,
        Some(bits) => match bits.parse::<u8>() {
            Ok(n) if n <= longest && is_digits(bits) => n,
            _ => {
                return Err(format!(
                    "{bits:?} is no prefix length of an IPv{} address; they go from 0 to {longest}",
                    if address.is_ipv4() { 4 } else { 6 }
                ));
            }
        },
    };
    let network = network_of(address, bits);
    if network != address {
        return Err(format!(
            "{text:?} has bits set behind its first {bits}; write \"{network}/{bits}\" for the network or \"{address}/{longest}\" \
             for the one address"
        ));
    }
    Ok((address, bits))
}

/// The words that [`log_levels`] accepts as levels.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Checks the least level that is logged, by module: `info`, or `warn,sluice_sdn=debug`.
///
/// # Errors
/// A sentence that names the part which is no level.
pub fn log_levels(text: &str) -> Result<(), String> {
    for part in text.split(',') {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        let has_module = part.split_once('=').is_none_or(|(module, _)| !module.is_empty());
        if !LEVELS.contains(&level) || !has_module {
            return Err(format!("{part:?} is no level; write {}, or MODULE=LEVEL, with commas between", LEVELS.join(", ")));
        }
    }
    Ok(())
}

/// A number of bits from 0 to `most`; only digits are accepted.
pub fn bits(text: &str, most: u8) -> Option<u8> {
    text.parse().ok().filter(|bits| is_digits(text) && *bits <= most)
}

/// An address with all bits after the first `bits` cleared.
pub fn network_of(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)).into(),
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)).into(),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Host and port of an SDN controller in `tcp:HOST:PORT`; an IPv6 address is in brackets.
///
/// # Errors
/// The problem, in words.
pub fn controller(text: &str) -> Result<(String, u16), String> {
    let wrong = || format!("{text:?} is no address of a controller");
    let (host, port) = text.strip_prefix("tcp:").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    let fits = !bare.is_empty() && !bare.contains(['[', ']', ' ', '/']) && (bare == host) != bare.contains(':');
    if fits { Ok((bare.to_string(), port)) } else { Err(wrong()) }
}

/// An address of a server that speaks HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddress {
    /// A name, or an address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What the paths there begin with: nothing, or a path that begins with a slash.
    pub path: String,
}

/// Reads `http://HOST:PORT`, with a path or without; an IPv6 address is in brackets.
///
/// # Errors
/// The problem, in words.
pub fn http_address(text: &str) -> Result<HttpAddress, String> {
    if text.starts_with("https:") {
        return Err(format!("{text:?} asks for TLS, which is not spoken here"));
    }
    let wrong = || format!("{text:?} is no address of HTTP with a port");
    let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = host.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse::<u16>().ok().filter(|number| is_digits(port) && *number > 0).ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
    };
    let is_path = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%".contains(&b));
    if !is_host || !is_path {
        return Err(wrong());
    }
    Ok(HttpAddress { host: bare.unwrap_or(host).into(), port, path: path.trim_end_matches('/').into() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::config::PortRange;

    use super::*;

    #[test]
    fn levels_are_words_or_words_of_modules() {
        for good in ["info", "off", "warn,sluice_sdn=debug", "sluice_manager=trace"] {
            assert_eq!(log_levels(good), Ok(()), "{good}");
        }
        for wrong in ["", "loud", "warn,", "sluice_sdn", "=debug", "sluice_sdn=", "Info"] {
            assert!(log_levels(wrong).unwrap_err().contains("is no level"), "{wrong}");
        }
    }

    #[test]
    fn controllers() {
        assert_eq!(controller("tcp:127.0.0.1:6653"), Ok(("127.0.0.1".into(), 6653)));
        assert_eq!(controller("tcp:sdn.example.org:1"), Ok(("sdn.example.org".into(), 1)));
        assert_eq!(controller("tcp:[2001:db8::1]:6653"), Ok(("2001:db8::1".into(), 6653)));
        for wrong in
            ["", "tcp:", "tcp:host", "tcp:host:0", "tcp:host:65536", "tls:host:1", "tcp::1", "tcp:2001:db8::1:6653", "tcp:[h]:1"]
        {
            assert_eq!(controller(wrong), Err(format!("{wrong:?} is no address of a controller")));
        }
    }

    #[test]
    fn prefixes() {
        assert_eq!(prefix("10.0.0.0/8"), Ok((IpAddr::from([10, 0, 0, 0]), 8)));
        assert_eq!(prefix("0.0.0.0/0"), Ok((IpAddr::from([0, 0, 0, 0]), 0)));
        assert_eq!(prefix("192.0.2.7"), Ok((IpAddr::from([192, 0, 2, 7]), 32)));
        assert_eq!(prefix("::/0"), Ok((Ipv6Addr::UNSPECIFIED.into(), 0)));
        assert_eq!(prefix("2001:db8::/32"), Ok(("2001:db8::".parse().unwrap(), 32)));
        assert_eq!(
            prefix("10.1.0.0/8").unwrap_err(),
            "\"10.1.0.0/8\" has bits set behind its first 8; write \"10.0.0.0/8\" for the network or \"10.1.0.0/32\" for the one \
             address"
        );
        assert_eq!(
            prefix("2001:db8::1/64").unwrap_err(),
            "\"2001:db8::1/64\" has bits set behind its first 64; write \"2001:db8::/64\" for the network or \"2001:db8::1/128\" \
             for the one address"
        );
        assert_eq!(prefix("10.0.0.0/33").unwrap_err(), "\"33\" is no prefix length of an IPv4 address; they go from 0 to 32");
        assert_eq!(prefix("::/129").unwrap_err(), "\"129\" is no prefix length of an IPv6 address; they go from 0 to 128");
        assert_eq!(prefix("::/+8").unwrap_err(), "\"+8\" is no prefix length of an IPv6 address; they go from 0 to 128");
        assert_eq!(prefix("ten/8").unwrap_err(), "\"ten/8\" is no IP prefix; write it like \"10.0.0.0/8\" or \"2001:db8::/32\"");
    }

    #[test]
    fn protocols() {
        assert_eq!(protocol("tcp"), Ok(ProtocolMatch::Number(6)));
        assert_eq!(protocol("non-ip"), Ok(ProtocolMatch::NonIp));
        assert_eq!(protocol("47"), Ok(ProtocolMatch::Number(47)));
        assert_eq!(protocol("256").unwrap_err(), "256 is no protocol number; they go from 0 to 255");
        assert_eq!(protocol("upd").unwrap_err(), "no protocol is called \"upd\"; did you mean \"udp\"?");
        assert_eq!(
            protocol("quic").unwrap_err(),
            "no protocol is called \"quic\"; write one of \"tcp\", \"udp\", \"icmp\", \"icmpv6\", \"ip\", \"non-ip\""
        );
        for word in PROTOCOLS {
            let known = protocol(word).unwrap();
            assert!(!matches!(known, ProtocolMatch::Number(number) if crate::protocol::name(number) != Some(word)), "{word}");
        }
    }

    #[test]
    fn what_a_protocol_can_have() {
        assert!(ProtocolMatch::Any.has_ports() && ProtocolMatch::Number(UDP).has_ports() && ProtocolMatch::Number(132).has_ports());
        assert!(!ProtocolMatch::NonIp.has_ports() && !ProtocolMatch::Number(ICMP).has_ports());
        assert!(ProtocolMatch::Number(ICMP).has_family(false) && !ProtocolMatch::Number(ICMP).has_family(true));
        assert!(!ProtocolMatch::NonIp.has_family(false) && !ProtocolMatch::NonIp.has_family(true));
    }

    proptest! {
        #[test]
        fn a_prefix_reads_what_it_writes(bits in any::<u128>(), v6 in any::<bool>(), len in 0u8..=128) {
            let (address, len): (IpAddr, u8) = match v6 {
                true => (Ipv6Addr::from_bits(bits).into(), len),
                false => (Ipv4Addr::from_bits(bits as u32).into(), len % 33),
            };
            let network = network_of(address, len);
            prop_assert_eq!(prefix(&format!("{network}/{len}")), Ok((network, len)));
            prop_assert_eq!(prefix(&format!("{address}/{len}")).is_ok(), network == address);
        }

        #[test]
        fn nothing_panics(text in ".{0,20}") {
            let _ = (prefix(&text), protocol(&text), PortRange::Text(text.clone()).bounds());
        }
    }
}
