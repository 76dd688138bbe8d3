//! The route file and its table.
//!
//! # Route file
//! A line for each prefix: `PREFIX drop`, or `PREFIX` and at least one of `mac MAC` (the next hop's
//! address, the new destination), `from MAC` (the new source) and `port NAME` (out of this port
//! instead of the chain's egress). A second line for a prefix is an error. `0.0.0.0/0` and `::/0`
//! are the default routes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use sluice_nf::PortId;
use sluice_nf_parts::lines::{self, LineError, Words};
use sluice_nf_parts::mac::Mac;

/// Action for packets of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Drop,
    Forward {
        /// New destination MAC address.
        mac: Option<Mac>,
        /// New source MAC address.
        from: Option<Mac>,
        /// Port to send out of; None is along the chain.
        port: Option<PortId>,
    },
}

/// One line of the file, with its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Its line, from 1.
    pub line: usize,
    pub prefix: IpNet,
    pub action: Action,
    pub packets: u64,
    pub bytes: u64,
}

/// All routes, found by the longest prefix.
#[derive(Debug, Default)]
pub struct Routes {
    routes: Vec<Route>,
    v4: PrefixMap<Ipv4Net, u32>,
    v6: PrefixMap<Ipv6Net, u32>,
}

impl Routes {
    /// Parses a route file; `port` finds a port by its name.
    pub fn parse(text: &str, port: &dyn Fn(&str) -> Option<PortId>) -> Result<Self, LineError> {
        let mut table = Self::default();
        for mut words in lines::lines(text) {
            let route = route(&mut words, port)?;
            let number = table.routes.len() as u32;
            let older = match route.prefix {
                IpNet::V4(prefix) => table.v4.insert(prefix, number),
                IpNet::V6(prefix) => table.v6.insert(prefix, number),
            };
            if let Some(older) = older {
                let line = table.routes[older as usize].line;
                return Err(words.error(format!("{} has a route in line {line} already; take one of them away", route.prefix)));
            }
            table.routes.push(route);
        }
        Ok(table)
    }

    #[inline]
    pub fn find_v4(&self, address: Ipv4Addr) -> Option<u32> {
        self.v4.get_lpm(&Ipv4Net::from(address)).map(|(_, number)| *number)
    }

    #[inline]
    pub fn find_v6(&self, address: Ipv6Addr) -> Option<u32> {
        self.v6.get_lpm(&Ipv6Net::from(address)).map(|(_, number)| *number)
    }

    #[inline]
    pub fn find(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(v4) => self.find_v4(v4),
            IpAddr::V6(v6) => self.find_v6(v6),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut Route {
        &mut self.routes[number as usize]
    }

    /// All routes, as in the file.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    /// Takes over the counters of prefixes that are in an older table too.
    pub fn inherit(&mut self, older: &Self) {
        let counters: HashMap<IpNet, (u64, u64)> = older.iter().map(|r| (r.prefix, (r.packets, r.bytes))).collect();
        for route in &mut self.routes {
            (route.packets, route.bytes) = counters.get(&route.prefix).copied().unwrap_or_default();
        }
    }
}

fn route(words: &mut Words<'_>, port_of: &dyn Fn(&str) -> Option<PortId>) -> Result<Route, LineError> {
    let prefix: IpNet = words.parse("a prefix such as 10.0.0.0/8 or 2001:db8::/32")?;
    if prefix.trunc() != prefix {
        return Err(words.error(format!("{prefix} has bits set behind its length; {} is meant, or another length", prefix.trunc())));
    }
    let (mut mac, mut from, mut port) = (None, None, None);
    let action = if words.skip("drop") {
        Action::Drop
    } else {
        loop {
            match words.next() {
                Some("mac") => mac = Some(words.parse("a MAC address")?),
                Some("from") => from = Some(words.parse("a MAC address")?),
                Some("port") => {
                    let name = words.expect("the name of a port")?;
                    port =
                        Some(port_of(name).ok_or_else(|| words.error(format!("there is no port `{name}` in the configuration")))?);
                }
                Some(other) => return Err(words.error(format!("`{other}` is none of `mac`, `from`, `port` and `drop`"))),
                None => break,
            }
        }
        if (mac, from, port) == (None, None, None) {
            return Err(words.error("the route leads nowhere; add `mac MAC`, `from MAC`, `port NAME` or `drop`"));
        }
        Action::Forward { mac, from, port }
    };
    words.end()?;
    Ok(Route { line: words.line(), prefix, action, packets: 0, bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Routes, LineError> {
        Routes::parse(text, &|name| (name == "lan").then_some(PortId(3)))
    }

    #[test]
    fn the_longest_prefix_wins() {
        let routes =
            parse("0.0.0.0/0 drop\n10.0.0.0/8 port lan\n10.1.0.0/16 drop\n10.1.2.3/32 drop\n::/0 drop\n2001:db8::/32 port lan")
                .unwrap();
        for (address, line) in [
            ("8.8.8.8", 1),
            ("10.2.0.1", 2),
            ("10.1.255.255", 3),
            ("10.1.2.3", 4),
            ("10.1.2.4", 3),
            ("2001:db9::", 5),
            ("2001:db8:ffff::1", 6),
        ] {
            let number = routes.find(address.parse().unwrap()).unwrap();
            assert_eq!(routes.routes[number as usize].line, line, "{address}");
        }
        assert_eq!(parse("10.0.0.0/8 drop").unwrap().find("11.0.0.0".parse().unwrap()), None);
        assert_eq!(parse("10.0.0.0/8 drop").unwrap().find("::1".parse().unwrap()), None);
    }

    #[test]
    fn a_line_is_read() {
        let routes = parse("# head\n10.0.0.0/8 mac 02:00:00:00:00:01 from 02:00:00:00:00:02 port lan # tail").unwrap();
        let (mac, from) = ("02:00:00:00:00:01".parse().ok(), "02:00:00:00:00:02".parse().ok());
        assert_eq!(routes.routes[0].action, Action::Forward { mac, from, port: Some(PortId(3)) });
        assert_eq!(routes.routes[0].line, 2);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, error) in [
            ("10.0.0.0", "1: `10.0.0.0` is not a prefix such as"),
            ("\n10.0.0.0/33 drop", "2: `10.0.0.0/33` is not a prefix"),
            ("10.0.0.1/8 drop", "1: 10.0.0.1/8 has bits set behind its length; 10.0.0.0/8 is meant"),
            ("10.0.0.0/8", "1: the route leads nowhere"),
            ("10.0.0.0/8 drop port lan", "1: `port` is one word too many"),
            ("10.0.0.0/8 via lan", "1: `via` is none of `mac`"),
            ("10.0.0.0/8 port wan", "1: there is no port `wan`"),
            ("10.0.0.0/8 mac 02", "1: `02` is not a MAC address"),
            ("::/0 drop\n0.0.0.0/0 drop\n::/0 port lan", "3: ::/0 has a route in line 1 already"),
        ] {
            let got = parse(text).unwrap_err().to_string();
            assert!(got.starts_with(error), "{text:?}: {got}");
        }
    }

    #[test]
    fn counters_survive_a_new_file() {
        let mut old = parse("10.0.0.0/8 drop\n11.0.0.0/8 drop").unwrap();
        old.get_mut(1).packets = 5;
        let mut new = parse("11.0.0.0/8 port lan\n12.0.0.0/8 drop").unwrap();
        new.inherit(&old);
        assert_eq!(new.iter().map(|r| r.packets).collect::<Vec<_>>(), [5, 0]);
    }
}
