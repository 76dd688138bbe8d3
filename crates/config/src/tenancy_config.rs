//! A configuration of tenants in few words, for tests.
//!
//! The manager includes this file by its path.

use std::collections::BTreeSet;

use sluice_api::config::Config;

/// Ports (`NAME` or `NAME TENANT`), chains of services named by tenant (`-`: none, `!`: foreign),
/// and rules `PORT CHAIN` (`*`: any port).
pub fn config(ports: &[&str], chains: &[(&str, &[&str])], rules: &[&str]) -> Config {
    let mut text = String::new();
    let mut services = BTreeSet::new();
    for port in ports {
        let (name, tenant) = port.split_once(' ').map_or((*port, String::new()), |(n, t)| (n, format!("tenant = \"{t}\"\n")));
        text += &format!("[[port]]\nname = \"{name}\"\nkind = \"gen\"\n{tenant}");
    }
    for (name, hops) in chains {
        services.extend(hops.iter().copied());
        let named = hops.iter().map(|hop| format!("\"of{}\"", hop.replace('-', "none").replace('!', "prog"))).collect::<Vec<_>>();
        text += &format!("[[chain]]\nname = \"{name}\"\negress = \"out\"\nservices = [{}]\n", named.join(", "));
    }
    for service in services {
        text += &match service {
            "-" => "[[service]]\nname = \"ofnone\"\nattach = true\n".to_string(),
            "!" => "[[service]]\nname = \"ofprog\"\nkind = \"foreign\"\nexec = \"true\"\n".to_string(),
            tenant => format!("[[service]]\nname = \"of{tenant}\"\nattach = true\ntenant = \"{tenant}\"\n"),
        };
    }
    for rule in rules {
        let (port, chain) = rule.split_once(' ').unwrap();
        let port = if port == "*" { String::new() } else { format!("port = \"{port}\"\n") };
        text += &format!("[[rule]]\n{port}chain = \"{chain}\"\n");
    }
    toml::from_str(&format!("{text}[[port]]\nname = \"out\"\nkind = \"sink\"\n")).unwrap()
}
