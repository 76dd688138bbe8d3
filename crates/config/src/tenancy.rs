//! Packet memory and tenants: which tenants need an arena, and which ports belong to one of them.

use std::collections::BTreeSet;

use sluice_api::config::{self as model, Config};

/// The holder of an arena.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A tenant, or without a name the services without a tenant.
    Tenant(Option<String>),
    /// Packets whose tenant is not known yet. No NF maps this arena.
    Ingress,
    /// Packets of a tenant whose arena was replaced or that is gone. No NF maps it; the last packet
    /// frees it.
    Former,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tenant(Some(name)) => write!(f, "{name}"),
            Self::Tenant(None) => f.write_str("-"),
            Self::Ingress => f.write_str("ingress"),
            Self::Former => f.write_str("former"),
        }
    }
}

/// Whether this name, in reports, belongs to an arena of no named tenant.
pub fn is_taken(name: &str) -> bool {
    [Holder::Tenant(None), Holder::Ingress, Holder::Former].iter().any(|holder| holder.to_string() == name)
}

/// The owner of the packets of a port, by the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// One tenant.
    Tenant(Option<String>),
    /// None: no rule applies to the port.
    Nobody,
    /// Not known until a rule matches.
    Several,
}

/// The tenants with NFs that map packet memory.
pub fn tenants(config: &Config) -> BTreeSet<Option<&str>> {
    config.services.iter().filter(|service| !service.is_foreign()).map(|service| service.tenant.as_deref()).collect()
}

/// The tenant of the first NF of a chain. None if the first hop is foreign or unknown.
pub(crate) fn entry_of<'a>(config: &'a Config, chain: &str) -> Option<Option<&'a str>> {
    let chain = config.chains.iter().find(|known| known.name == chain)?;
    let first = model::hop(chain.services.first()?).0;
    let service = config.services.iter().find(|service| service.name == first)?;
    (!service.is_foreign()).then_some(service.tenant.as_deref())
}

/// The chains that a port's packets may take, each with the index of its rule.
pub(crate) fn chains_of<'a>(config: &'a Config, port: &str) -> impl Iterator<Item = (usize, &'a str)> {
    let applies = move |rule: &model::Rule| rule.port.as_ref().is_none_or(|of| *of == port);
    config.rules.iter().enumerate().filter(move |(_, rule)| applies(rule)).map(|(number, rule)| (number, &*rule.chain))
}

/// The owner of a port's packets: the configured tenant, or the one that all its rules lead to.
pub fn owner_of(config: &Config, port: &model::Port) -> Owner {
    let mut entries = chains_of(config, &port.name).map(|(_, chain)| entry_of(config, chain));
    let own = port.tenant.as_deref().map(Some);
    // An OpenFlow controller may send any packet to any chain.
    if own.is_none() && config.openflow.controller.is_some() {
        return Owner::Several;
    }
    match own.map(Some).or_else(|| entries.next()) {
        None => Owner::Nobody,
        // A rule that contradicts the port is wrong, but can exist briefly during a change.
        Some(Some(first)) if entries.all(|entry| entry == Some(first)) => Owner::Tenant(first.map(str::to_owned)),
        Some(_) => Owner::Several,
    }
}

/// Whether all packets of a service belong to one tenant.
///
/// All NFs of its chains, and all NFs that may send to it by a verdict, are this tenant's.
pub fn is_alone_at(config: &Config, service: &str, tenant: Option<&str>) -> bool {
    let tenants_of = |chain: &model::Chain| {
        let hops = chain.services.iter().map(|written| model::hop(written).0);
        let services = hops.filter_map(|name| config.services.iter().find(|known| known.name == name));
        services.filter(|service| !service.is_foreign()).map(|service| service.tenant.as_deref()).collect::<BTreeSet<_>>()
    };
    let passes = |chain: &&model::Chain| chain.services.iter().any(|written| model::hop(written).0 == service);
    let sends = |known: &&model::Service| known.may_send_to.iter().flatten().any(|to| to == service);
    let is_theirs = |of: Option<&str>| of == tenant;
    // A chain without NFs of Sluice has no tenant, which matters only if there are several.
    tenants(config).iter().all(|of| is_theirs(*of))
        || config.chains.iter().filter(passes).map(tenants_of).all(|of| !of.is_empty() && of.into_iter().all(is_theirs))
            && config.services.iter().filter(sends).all(|known| is_theirs(known.tenant.as_deref()))
}

/// Whether packets may enter at a port. None enter at a sink, or at a capture that is only written.
pub fn receives(port: &model::Port) -> bool {
    port.kind.no_input().is_none()
}

/// Whether packets may enter without a known tenant: from shared ports or from programs.
fn needs_ingress(config: &Config) -> bool {
    let is_open = |port: &model::Port| receives(port) && !matches!(owner_of(config, port), Owner::Tenant(_));
    config.services.iter().any(model::Service::is_foreign)
        || config.openflow.controller.is_some()
        || config.ports.iter().any(is_open)
}

/// Holders of arenas: the tenants in order of their services, and the ingress for several.
pub fn holders(config: &Config) -> Vec<Holder> {
    let mut holders: Vec<Holder> = Vec::new();
    for service in config.services.iter().filter(|service| !service.is_foreign()) {
        let holder = Holder::Tenant(service.tenant.clone());
        if !holders.contains(&holder) {
            holders.push(holder);
        }
    }
    if holders.len() > 1 && needs_ingress(config) {
        holders.push(Holder::Ingress);
    }
    if holders.is_empty() {
        holders.push(Holder::Tenant(None));
    }
    holders
}

/// Number of frames in a holder's arena.
pub fn frames_of(settings: &model::Memory, holder: &Holder) -> u32 {
    let own = match holder {
        Holder::Tenant(Some(name)) => settings.tenants.get(name),
        _ => None,
    };
    own.copied().unwrap_or(settings.frames)
}

#[cfg(test)]
#[path = "tenancy_config.rs"]
mod tenancy_config;

#[cfg(test)]
mod tests {
    use super::tenancy_config::config;
    use super::*;

    fn named(holders: &[Holder]) -> String {
        holders.iter().map(Holder::to_string).collect::<Vec<_>>().join(" ")
    }

    fn owner(config: &Config, port: &str) -> Owner {
        owner_of(config, config.ports.iter().find(|known| known.name == port).unwrap())
    }

    #[test]
    fn each_tenant_has_an_arena_and_only_those_that_need_it_an_ingress() {
        let of = |config: &Config| named(&holders(config));
        assert_eq!(of(&config(&["a"], &[], &[])), "-");
        assert_eq!(of(&config(&["a"], &[("c", &["-"])], &["a c"])), "-");
        assert_eq!(of(&config(&["a", "b"], &[("c", &["red"]), ("none", &[])], &["a c", "b none"])), "red", "one tenant, one arena");
        let two: &[(&str, &[&str])] = &[("r", &["red"]), ("b", &["blue"])];
        assert_eq!(of(&config(&["a", "b"], two, &["a r", "b b"])), "blue red", "each port is of one of them");
        assert_eq!(of(&config(&["a"], two, &["a r", "a b"])), "blue red ingress");
        assert_eq!(of(&config(&["a", "b"], two, &["a r", "* b"])), "blue red ingress");
        assert_eq!(
            of(&config(&["a", "b", "c"], two, &["a r", "b b"])),
            "blue red ingress",
            "nobody says whose the packets of c are"
        );
        assert_eq!(of(&config(&["a", "b", "c"], &two[..1], &["a r"])), "red", "nobody else could have them");
        assert_eq!(of(&config(&["a", "b", "c red"], two, &["a r", "b b"])), "blue red");
        assert_eq!(
            of(&config(&["a"], &[("c", &["red", "!", "blue"])], &["a c"])),
            "blue red ingress",
            "a program may send anything"
        );
    }

    #[test]
    fn what_passes_a_program_is_one_tenants_if_all_its_chains_are() {
        for (chains, sends, alone) in [
            (&[("c", &["red", "!"][..])][..], "", true),
            (&[("c", &["red", "!"]), ("d", &["blue"])], "", true),
            (&[("c", &["red", "!"]), ("d", &["!", "red"]), ("e", &["blue"])], "", true),
            (&[("c", &["red", "!"]), ("d", &["blue", "!"])], "", false),
            (&[("c", &["red", "!", "blue"])], "", false),
            (&[("c", &["red", "!"]), ("d", &["!"])], "", true),
            (&[("c", &["red", "!"]), ("d", &["!"]), ("e", &["blue"])], "", false),
            (&[("c", &["red", "!"]), ("d", &["blue"])], "ofblue", false),
            (&[("c", &["red", "!"]), ("d", &["blue"])], "ofred", true),
        ] {
            let mut config = config(&["a"], chains, &["a c"]);
            let sender = config.services.iter_mut().filter(|service| service.name == sends);
            sender.for_each(|service| service.may_send_to = Some(vec!["ofprog".into()]));
            assert_eq!(is_alone_at(&config, "ofprog", Some("red")), alone, "{chains:?} {sends}");
        }
    }

    #[test]
    fn packets_come_in_wherever_there_is_something_to_read() {
        for (kind, comes) in [
            ("kind = \"gen\"", true),
            ("kind = \"sink\"", false),
            ("kind = \"pcap\"\nread = \"a\"", true),
            ("kind = \"pcap\"\nwrite = \"a\"", false),
            ("kind = \"af_packet\"\ninterface = \"eth0\"", true),
            ("kind = \"dpdk\"\ndevargs = \"net_null0\"", true),
        ] {
            assert_eq!(receives(&toml::from_str(&format!("name = \"p\"\n{kind}\n")).unwrap()), comes, "{kind}");
        }
    }

    #[test]
    fn a_port_is_of_the_tenant_that_all_its_rules_lead_to() {
        let chains: &[(&str, &[&str])] =
            &[("r", &["red"]), ("b", &["blue"]), ("rb", &["red", "blue"]), ("n", &["-"]), ("none", &[]), ("f", &["!", "red"])];
        let red = || Owner::Tenant(Some("red".into()));
        for (rules, wanted) in [
            (&["a r"][..], red()),
            (&["a r", "b b"], red()),
            (&["a rb", "a r"], red()),
            (&["a n"], Owner::Tenant(None)),
            (&["b b"], Owner::Nobody),
            (&["a r", "a b"], Owner::Several),
            (&["a r", "* b"], Owner::Several),
            (&["a r", "a n"], Owner::Several),
            (&["a r", "a none"], Owner::Several),
            (&["a f"], Owner::Several),
        ] {
            assert_eq!(owner(&config(&["a", "b"], chains, rules), "a"), wanted, "{rules:?}");
        }
        assert_eq!(owner(&config(&["a red"], chains, &[]), "a"), red());
        assert_eq!(owner(&config(&["a red"], chains, &["a b"]), "a"), Owner::Several, "as long as a rule says otherwise");
        let mut asked = config(&["a", "b red"], chains, &["a r", "b r"]);
        asked.openflow.controller = Some("192.0.2.1:6653".into());
        assert_eq!((owner(&asked, "a"), owner(&asked, "b")), (Owner::Several, red()));
    }
}
