//! Checks of tenants' memory: ports of a tenant, and tenants with their own number of frames.

use super::Validation;
use crate::problem::At;
use crate::tenancy;
use sluice_api::nearest;

impl Validation<'_> {
    /// Checks that a tenant's name is not that of an arena without a tenant.
    pub(super) fn name_of_tenant(&mut self, at: At, name: &str) {
        self.word(at, "the name of a tenant", name, true);
        if tenancy::is_taken(name) {
            self.error(
                at,
                format!("no tenant can be called \"{name}\": so status and metrics call packet memory that is no named tenant's"),
                "use another name",
            );
        }
    }

    /// Checks that a tenant's port leads to that tenant alone, and that every named tenant exists.
    pub(super) fn tenants(&mut self) {
        let config = self.config;
        let known: Vec<&str> = tenancy::tenants(config).into_iter().flatten().collect();
        let help = |name: &str| match known[..] {
            [] => format!("write tenant = \"{name}\" in the [[service]] sections of its NFs"),
            _ => nearest::hint(name, &known),
        };
        for name in config.memory.tenants.keys().filter(|name| !known.contains(&name.as_str())) {
            let at = At { section: "memory", entry: None, key: "tenants", item: None };
            self.warn(at, format!("no service is of tenant \"{name}\", so nobody has these frames"), help(name));
        }
        for (number, port) in config.ports.iter().enumerate() {
            let Some(tenant) = port.tenant.as_deref() else { continue };
            let at = At::entry("port", number, "tenant");
            if !known.contains(&tenant) {
                self.error(at, format!("no service is of tenant \"{tenant}\""), help(tenant));
                continue;
            }
            let is_there = |chain: &str| config.chains.iter().any(|known| known.name == chain);
            let mut others = tenancy::chains_of(config, &port.name).filter(|(_, chain)| is_there(chain));
            let other = others.find(|(_, chain)| tenancy::entry_of(config, chain) != Some(Some(tenant)));
            if let Some((rule, chain)) = other {
                self.error(
                    at,
                    format!(
                        "port {} is of tenant \"{tenant}\", whose NFs can read all that comes in there, and rule {rule} leads to chain \
                         {chain}, which does not begin at one of them",
                        port.name
                    ),
                    "write another `port` in that rule, or remove `tenant` here: then packets are copied when they are let in",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {

    fn said(port: &str, chain: &str, rule: &str) -> String {
        let text = format!(
            "[[port]]\nname = \"a\"\nkind = \"gen\"\n{port}\n[[port]]\nname = \"b\"\nkind = \"sink\"\n[[service]]\nname = \
             \"r\"\nattach = true\ntenant = \"red\"\n[[service]]\nname = \"s\"\nattach = true\n[[chain]]\nname = \"c\"\nservices = \
             [{chain}]\negress = \"b\"\n[[chain]]\nname = \"d\"\nservices = [\"r\"]\negress = \"b\"\n[[rule]]\n{rule}\n"
        );
        crate::load::parse(&text, "a.toml").map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    #[test]
    fn a_port_of_a_tenant_gives_its_packets_to_nobody_else() {
        for (port, chain, rule, words) in [
            ("", "\"s\"", "chain = \"c\"", ""),
            ("tenant = \"red\"", "\"r\"", "chain = \"c\"", ""),
            ("tenant = \"red\"", "\"r\", \"s\"", "chain = \"c\"", ""),
            ("tenant = \"red\"", "\"s\"", "port = \"b\"\nchain = \"c\"", ""),
            ("tenant = \"red\"", "\"s\"", "chain = \"c\"", "rule 0 leads to chain c, which does not begin at one of them"),
            ("tenant = \"red\"", "", "chain = \"c\"", "rule 0 leads to chain c"),
            ("tenant = \"rod\"", "\"r\"", "chain = \"c\"", "did you mean \"red\"?"),
        ] {
            let text = said(port, chain, rule);
            assert!(if words.is_empty() { text.is_empty() } else { text.contains(words) }, "{port} {chain} {rule}: {text}");
        }
    }

    #[test]
    fn no_tenant_is_called_like_memory_of_nobody() {
        let of = |tenant: &str| {
            let text = format!("[[service]]\nname = \"r\"\nattach = true\ntenant = \"{tenant}\"\n");
            crate::load::parse(&text, "a.toml").map_or_else(|errors| errors.to_string(), |_| String::new())
        };
        for name in ["ingress", "former", "-"] {
            assert!(of(name).contains("no tenant can be called"), "{name}: {}", of(name));
        }
        for name in ["Ingress", "formers", "--", "red"] {
            assert_eq!(of(name), "", "{name}");
        }
    }

    #[test]
    fn frames_of_tenants_are_whole_numbers_within_bounds() {
        for (frames, words) in [
            ("{ red = 4096 }", ""),
            ("{ red = 4 }", "512 to 67108864"),
            ("{ red = 4096.5 }", "whole number"),
            ("{ red = \"many\" }", "whole number"),
        ] {
            let service = "[[service]]\nname = \"r\"\nattach = true\ntenant = \"red\"\n";
            let text = format!("[memory]\ntenants = {frames}\n{service}");
            let text = crate::load::parse(&text, "a.toml").map_or_else(|errors| errors.to_string(), |_| String::new());
            assert!(if words.is_empty() { text.is_empty() } else { text.contains(words) }, "{frames}: {text}");
        }
    }
}
