//! The backends file.
//!
//! A line for each backend: `NAME ADDRESS[:PORT] [mac MAC] [weight N]`. An IPv6 address with a port
//! is in brackets. NAME decides which flows a backend gets, so that a replacement with the same
//! name keeps the share. Without PORT the flow's port stays. `weight 0` drains: connections go on,
//! and no new ones come. The default weight is 1.

use std::net::{IpAddr, SocketAddr};

use sluice_nf_parts::lines::{self, LineError};
use sluice_nf_parts::mac::Mac;

use crate::maglev::MAX_BACKENDS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Unique in the file.
    pub name: String,
    pub address: IpAddr,
    /// None keeps the port of the virtual address.
    pub port: Option<u16>,
    pub mac: Option<Mac>,
    /// Its weight, relative to the others.
    pub weight: u32,
}

/// Requirements for all backends.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// A MAC address, because packets are sent by it.
    pub mac: bool,
    /// An address of this family, because it is written into packets.
    pub family_of: Option<IpAddr>,
}

/// Parses a backends file; fails on a bad line, an unmet need, or without any backend.
pub fn parse(text: &str, needs: Needs) -> Result<Vec<Backend>, LineError> {
    let mut backends: Vec<Backend> = Vec::new();
    for mut words in lines::lines(text) {
        let name = words.expect("the name of a backend")?.to_owned();
        if backends.iter().any(|backend| backend.name == name) {
            return Err(words.error(format!("backend `{name}` is in this file already; give this one another name")));
        }
        let word = words.expect("an address such as 10.0.0.1, 10.0.0.1:8080 or [2001:db8::1]:8080")?;
        let with_port = word.parse::<SocketAddr>().map(|both| (both.ip(), Some(both.port())));
        let (address, port) = with_port.or_else(|_| word.parse::<IpAddr>().map(|address| (address, None))).map_err(|_| {
            words.error(format!("`{word}` is not an address such as 10.0.0.1, 10.0.0.1:8080 or [2001:db8::1]:8080"))
        })?;
        let (mut mac, mut weight) = (None, 1);
        while let Some(word) = words.next() {
            match word {
                "mac" => mac = Some(words.parse("a MAC address")?),
                "weight" => weight = words.parse("a number")?,
                other => return Err(words.error(format!("`{other}` is not `mac` or `weight`"))),
            }
        }
        if needs.mac && mac.is_none() {
            return Err(words.error(format!("backend `{name}` has no MAC address, by which packets are sent to it; add `mac MAC`")));
        }
        if let Some(vip) = needs.family_of
            && vip.is_ipv4() != address.is_ipv4()
        {
            return Err(
                words.error(format!("{address} is of another IP version than {vip}; packets cannot be translated between them"))
            );
        }
        backends.push(Backend { name, address, port, mac, weight });
    }
    if backends.is_empty() {
        return Err(LineError { line: 0, message: "there is no backend in this file; add a line such as `web1 10.0.0.1`".into() });
    }
    if backends.len() > MAX_BACKENDS {
        return Err(LineError { line: 0, message: format!("there are more than {MAX_BACKENDS} backends in this file") });
    }
    Ok(backends)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Needs = Needs { mac: false, family_of: None };

    #[test]
    fn a_file_is_read() {
        let text = "# web\na 10.0.0.1\nb 10.0.0.2:8080 mac 02:00:00:00:00:01 weight 5\nc 2001:db8::1\nd [2001:db8::2]:80 weight 0";
        let backends = parse(text, NOTHING).unwrap();
        let b = &backends[1];
        assert_eq!((b.name.as_str(), b.address, b.port), ("b", [10, 0, 0, 2].into(), Some(8080)));
        assert_eq!((b.mac, b.weight), ("02:00:00:00:00:01".parse().ok(), 5));
        assert_eq!((backends[0].port, backends[0].mac, backends[0].weight), (None, None, 1));
        assert_eq!((backends[2].port, backends[3].port, backends[3].weight), (None, Some(80), 0));
    }

    #[test]
    fn errors_name_the_line() {
        let all = Needs { mac: true, family_of: Some([1, 1, 1, 1].into()) };
        for (text, needs, error) in [
            ("# nobody", NOTHING, "0: there is no backend"),
            ("a", NOTHING, "1: the line ends where an address"),
            ("a 10.0.0.1:99999", NOTHING, "1: `10.0.0.1:99999` is not an address"),
            ("a 10.0.0.1\n\na 10.0.0.2", NOTHING, "3: backend `a` is in this file already"),
            ("a 10.0.0.1 wieght 1", NOTHING, "1: `wieght` is not `mac` or `weight`"),
            ("a 10.0.0.1 weight -1", NOTHING, "1: `-1` is not a number"),
            ("a 10.0.0.1", all, "1: backend `a` has no MAC address"),
            ("a ::1 mac 02:00:00:00:00:01", all, "1: ::1 is of another IP version than 1.1.1.1"),
        ] {
            let got = parse(text, needs).unwrap_err().to_string();
            assert!(got.starts_with(error), "{text:?}: {got}");
        }
    }
}
