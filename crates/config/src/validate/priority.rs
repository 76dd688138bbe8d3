//! Checks of priorities: of services, of rules and of tenants.

use super::Validation;
use crate::problem::At;
use sluice_api::config::Service;
use sluice_api::nearest;

impl Validation<'_> {
    /// Checks that the priority of a service is one that its instances may ask for.
    pub(super) fn bounds_of_priority(&mut self, i: usize, service: &Service) {
        let (name, priority, (least, most)) = (&service.name, service.priority, service.priority_bounds());
        if service.priority_min == Some(0.0) {
            self.error(
                At::entry("service", i, "priority_min"),
                format!("NFs of service \"{name}\" could ask for the priority 0, and would never run"),
                "write a number above 0",
            );
        }
        if priority < least {
            self.error(
                At::entry("service", i, "priority_min"),
                format!("the priority of service \"{name}\" ({priority}) is below what its NFs may ask for (from {least})"),
                format!("write priority_min = {priority} or less, or another priority"),
            );
        }
        if priority > most {
            self.error(
                At::entry("service", i, "priority_max"),
                format!("the priority of service \"{name}\" ({priority}) is above what its NFs may ask for (up to {most})"),
                format!("write priority_max = {priority} or more, or another priority"),
            );
        }
    }

    /// Checks that every priority is above 0, and that the tenants of rules exist.
    pub(super) fn priorities(&mut self) {
        let config = self.config;
        let tenants = &config.sched.tenants;
        let at = At { section: "sched", entry: None, key: "tenants", item: None };
        for (name, priority) in tenants {
            self.word(at, "the name of a tenant", name, true);
            if !(priority.is_finite() && *priority > 0.0) {
                self.error(
                    at,
                    format!("tenant \"{name}\" cannot have the priority {priority}"),
                    "write a number above 0; 1 is what the others have, 2 twice that",
                );
            }
        }
        let of_services = config.services.iter().filter_map(|service| service.tenant.as_deref());
        let known: Vec<&str> = tenants.keys().map(String::as_str).chain(of_services).collect();
        for (i, rule) in config.rules.iter().enumerate() {
            if let Some(priority) = rule.priority
                && !(priority.is_finite() && priority > 0.0)
            {
                self.error(
                    At::entry("rule", i, "priority"),
                    format!("a rule cannot have the priority {priority}"),
                    "write a number above 0; 1 is what the others have, 2 twice that",
                );
            }
            let Some(tenant) = rule.tenant.as_deref().filter(|tenant| !known.contains(tenant)) else { continue };
            let help = match known[..] {
                [] => format!("write its priority in [sched]: tenants = {{ {tenant} = 2.0 }}"),
                _ => nearest::hint(tenant, &known),
            };
            self.error(At::entry("rule", i, "tenant"), format!("no tenant is called \"{tenant}\""), help);
        }
    }
}

#[cfg(test)]
mod tests {

    fn said(sched: &str, rule: &str) -> String {
        let text = format!(
            "[sched]\n{sched}\n[[port]]\nname = \"a\"\nkind = \"gen\"\n[[port]]\nname = \"b\"\nkind = \"sink\"\n[[chain]]\nname = \
             \"c\"\negress = \"b\"\n[[rule]]\nport = \"a\"\nchain = \"c\"\n{rule}\n"
        );
        crate::load::parse(&text, "a.toml").map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    #[test]
    fn priorities_are_above_0_and_tenants_are_known() {
        assert_eq!(said("tenants = { gold = 4, free = 0.5 }", "tenant = \"gold\"\npriority = 2"), "");
        let bounds = |keys: &str| format!("[[service]]\nname = \"s\"\nexec = \"x\"\n{}", keys.replace(", ", "\n"));
        for keys in ["priority_min = 0.5", "priority_min = 0.5, priority_max = 4, priority = 2", "priority_max = 1"] {
            assert_eq!(said(&bounds(keys), ""), "", "{keys}");
        }
        for (sched, rule, words) in [
            ("tenants = { gold = 0 }", "", "tenant \"gold\" cannot have the priority 0"),
            ("tenants = { gold = \"much\" }", "", "tenants"),
            ("tenants = { gold = 4 }", "tenant = \"golf\"", "did you mean \"gold\"?"),
            ("", "tenant = \"gold\"", "tenants = { gold = 2.0 }"),
            ("", "priority = 0", "a rule cannot have the priority 0"),
            ("priorities = \"real\"", "", "priorities cannot be \"real\""),
            (&bounds("priority_min = 0"), "", "could ask for the priority 0"),
            (&bounds("priority_min = 1.5"), "", "write priority_min = 1 or less, or another priority"),
            (&bounds("priority = 3, priority_max = 2"), "", "write priority_max = 3 or more, or another priority"),
            (&bounds("priority_max = -1"), "", "priority_max cannot be -1"),
        ] {
            let text = said(sched, rule);
            assert!(text.contains(words), "{sched} {rule}: {text}");
        }
    }
}
