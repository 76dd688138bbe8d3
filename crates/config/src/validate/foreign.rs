//! Checks of foreign services.

use super::{At, Validation};
use sluice_api::config::AF_XDP_LARGEST;

use crate::socket;
use sluice_api::config::{Chain, Drops, Service, Via, hop};
use sluice_host::link;

impl Validation<'_> {
    /// Checks that only foreign services have the keys of foreign services.
    pub(super) fn not_foreign(&mut self, i: usize, service: &Service) {
        let given = [
            ("via", service.via != Via::AfPacket),
            ("interfaces", service.interfaces != ["in", "out"]),
            ("netns", service.netns.is_some()),
            ("setup", !service.setup.is_empty()),
            ("ready", !service.ready.is_empty()),
            ("teardown", !service.teardown.is_empty()),
            ("drops", service.drops != Drops::Counted),
            ("pid_file", service.pid_file.is_some()),
        ];
        for (key, _) in given.into_iter().filter(|(_, given)| *given) {
            self.error(
                At::entry("service", i, key),
                format!("`{key}` is of services that are foreign, and \"{}\" is not", service.name),
                format!("write kind = \"foreign\", or remove `{key}`"),
            );
        }
    }

    /// Checks that a foreign program can be started, fed and found.
    pub(super) fn foreign(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        let not_for_it = [
            ("attach", service.attach, "it does not know the way to the daemon; give it `exec`, or `setup` alone"),
            ("zygote", service.zygote, "its program is started as it is; remove `zygote`"),
            ("tenant", service.tenant.is_some(), "it shares no memory with anybody; remove `tenant`"),
            ("priority_min", service.priority_min.is_some(), "its program asks for nothing; remove `priority_min`"),
            ("priority_max", service.priority_max.is_some(), "its program asks for nothing; remove `priority_max`"),
        ];
        for (key, _, help) in not_for_it.into_iter().filter(|(_, given, _)| *given) {
            self.error(at(key), format!("service \"{name}\" is foreign, and cannot have `{key}`"), help);
        }
        self.foreign_program(i, service);
        self.interfaces(i, service);
        let most = AF_XDP_LARGEST as u64 - 18;
        if service.via == Via::AfXdp && u64::from(service.mtu) > most {
            self.error(
                at("mtu"),
                format!("AF_XDP takes no packets as large as an MTU of {} makes them", service.mtu),
                format!("write mtu = {most} or less, or via = \"af_packet\""),
            );
        }
        if service.via.is_device() {
            self.device(i, service);
        }
        if let Some(netns) = &service.netns {
            self.word(at("netns"), "the name of a network namespace", netns, true);
            if service.instances > 1 {
                self.error(
                    at("instances"),
                    format!("{} instances of service \"{name}\" cannot share a network namespace", service.instances),
                    "leave `netns` out, so that each has one of its own, or write instances = 1",
                );
            }
        }
        // Ethernet header and VLAN tag.
        let largest = u64::from(service.mtu) + 18;
        if largest > u64::from(self.config.memory.packet_bytes) {
            self.error(
                at("mtu"),
                format!("an MTU of {} makes packets of {largest} bytes, and memory.packet_bytes is less", service.mtu),
                format!("write packet_bytes = {largest} in [memory], or a smaller MTU"),
            );
        }
        for (key, commands) in [("setup", &service.setup), ("ready", &service.ready), ("teardown", &service.teardown)] {
            for (n, command) in commands.iter().enumerate() {
                if command.trim().is_empty() || command.contains('\0') {
                    self.error(at(key).item(n), format!("{command:?} is no command"), "write what you would write to a shell");
                }
            }
        }
    }

    /// Checks that the work is done by one of `exec` and `pid_file`, or by commands in `setup`.
    fn foreign_program(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        if service.exec.is_some() && service.pid_file.is_some() {
            self.error(
                at("pid_file"),
                format!("foreign service \"{name}\" has a program to start and one that was started by somebody else"),
                "remove `exec` or `pid_file`",
            );
        }
        if service.pid_file.is_some() && service.netns.is_none() {
            self.warn(
                at("pid_file"),
                format!(
                    "the process of service \"{name}\" is there before the network namespace that is made for its interfaces, so it cannot \
                     be in it"
                ),
                "write netns = \"NAME\", the one that the process was started in (`ip netns add NAME`, `ip netns exec NAME PROGRAM`); where \
                 `setup` passes packets without it, all is well",
            );
        }
        if service.pid_file.is_some() && service.instances > 1 {
            self.error(
                at("instances"),
                format!("{} instances of service \"{name}\" cannot be one process", service.instances),
                "write instances = 1, and a service with a pid_file for each process",
            );
        }
        if service.exec.is_none() && service.setup.is_empty() && service.pid_file.is_none() {
            self.error(
                at("exec"),
                format!("foreign service \"{name}\" has neither a program nor a command that sets something up"),
                "write exec = \"PROGRAM\", or setup = [\"COMMAND\"] where the kernel does the work (nftables, tc, a bridge)",
            );
        }
        if service.exec.is_none() && !service.args.is_empty() {
            self.error(at("args"), format!("service \"{name}\" has arguments and no program"), "write exec, or remove `args`");
        }
    }

    /// Checks the one or two interfaces and their names; a tap counts no losses.
    fn interfaces(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        if !(1..=2).contains(&service.interfaces.len()) {
            self.error(
                at("interfaces"),
                format!("service \"{name}\" has {} interfaces", service.interfaces.len()),
                "write two, the side where packets go in and the one where they come out, or one for a tap",
            );
        }
        for (n, interface) in service.interfaces.iter().enumerate() {
            if !link::is_name(interface) {
                self.error(
                    at("interfaces").item(n),
                    format!("no interface can be called {interface:?}"),
                    format!("write 1 to {} letters without blanks, \"/\" and \":\"; not \"lo\" or \"all\"", link::MAX_NAME),
                );
            }
            if service.interfaces[..n].contains(interface) {
                self.error(at("interfaces").item(n), format!("two interfaces are called \"{interface}\""), "give them two names");
            }
        }
        if service.is_tap() && service.drops == Drops::Counted {
            self.error(
                at("drops"),
                format!("service \"{name}\" has one interface, so nothing comes back from it"),
                "write drops = \"by-design\" for a tap, or two interfaces",
            );
        }
    }

    /// Checks that a DPDK device can be made, and that a program connects to it.
    fn device(&mut self, i: usize, service: &Service) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        if !sluice_dpdk::BUILT_IN {
            self.error(
                at("via"),
                format!("service \"{name}\" shares memory by a device of DPDK, and this sluiced was built without"),
                "build it with `--features dpdk` (Debian: libdpdk-dev), or write via = \"af_packet\"",
            );
        }
        for interface in &service.interfaces {
            if let Err(what) = socket::of_side(&self.config.manager.runtime_dir, &format!("{name}.999"), interface) {
                self.error(at("interfaces"), what, "choose a shorter `runtime_dir`, or other names");
            }
        }
        if service.exec.is_none() {
            self.error(
                at("exec"),
                format!("nobody connects to the sockets of service \"{name}\""),
                "write exec = \"PROGRAM\"; only interfaces of the kernel are served without one",
            );
        }
    }

    /// Checks that a reversed hop has a far side, and that no foreign program repeats in a
    /// direction.
    pub(super) fn sides(&mut self, at: At, chain: &Chain, at_hop: usize) {
        let (name, reverse) = hop(&chain.services[at_hop]);
        let Some(service) = self.config.services.iter().find(|s| s.name == name) else { return };
        if reverse && (!service.is_foreign() || service.is_tap()) {
            self.error(
                at,
                format!("service \"{name}\" has no far side"),
                format!("write \"{name}\"; \":reverse\" is for foreign services with two interfaces"),
            );
        }
        if service.is_foreign() && !service.is_tap() && chain.services[..at_hop].contains(&chain.services[at_hop]) {
            self.error(
                at,
                format!("chain \"{}\" sends packets to \"{name}\" twice, and what comes back belongs to either", chain.name),
                "let another service of the same program do the second part",
            );
        }
    }
}

#[cfg(test)]
mod tests {

    fn said(service: &str, chain: &str) -> String {
        let text = format!(
            "[[port]]\nname = \"p\"\nkind = \"sink\"\n[[service]]\nname = \"nf\"\nexec = \"x\"\n\
             [[service]]\nname = \"f\"\n{service}\n[[chain]]\nname = \"c\"\nservices = [{chain}]\negress = \"p\"\n"
        );
        match crate::load::parse(&text, "a.toml") {
            Ok(_) => String::new(),
            Err(errors) => {
                errors.problems.iter().filter(|p| p.is_error()).map(|p| format!("{}; {}\n", p.message, p.help)).collect()
            }
        }
    }

    #[test]
    fn what_is_right_is_accepted() {
        let foreign = "kind = \"foreign\"\nsetup = [\"true\"]";
        let tap = "kind = \"foreign\"\nexec = \"tcpdump\"\ninterfaces = [\"in\"]\ndrops = \"by-design\"";
        for (service, chain) in [
            (foreign, "\"f\""),
            (foreign, "\"nf\", \"f:reverse\""),
            (foreign, "\"f\", \"nf\", \"f:reverse\""),
            (tap, "\"f\", \"nf\", \"f\""),
            (&format!("{foreign}\nvia = \"af_xdp\""), "\"f\""),
        ] {
            assert_eq!(said(service, chain), "", "{service} {chain}");
        }
    }

    #[test]
    fn what_is_wrong_is_reported_once() {
        let f = "kind = \"foreign\"\nsetup = [\"true\"]";
        let cases = [
            ("kind = \"foreign\"".to_string(), "neither a program nor a command"),
            (format!("{f}\nattach = true"), "cannot have `attach`"),
            (format!("{f}\ntenant = \"red\""), "cannot have `tenant`"),
            (format!("{f}\npriority_max = 4"), "cannot have `priority_max`"),
            (format!("{f}\nargs = [\"x\"]"), "arguments and no program"),
            (format!("{f}\ninterfaces = []"), "has 0 interfaces"),
            (format!("{f}\ninterfaces = [\"a\", \"a\"]"), "two interfaces are called \"a\""),
            (format!("{f}\ninterfaces = [\"a b\", \"c\"]"), "no interface can be called \"a b\""),
            (format!("{f}\ninterfaces = [\"in\"]"), "nothing comes back from it"),
            (format!("{f}\nvia = \"af_xdp\"\nmtu = 4000\n[memory]\npacket_bytes = 9000"), "takes no packets as large"),
            (format!("{f}\nnetns = \"x\"\ninstances = 2"), "cannot share a network namespace"),
            (format!("{f}\nnetns = \"a/b\""), "the name of a network namespace cannot be"),
            (format!("{f}\nmtu = 9000"), "write packet_bytes = 9018"),
            (format!("{f}\nready = [\" \"]"), "\" \" is no command"),
            ("exec = \"x\"\nsetup = [\"true\"]".to_string(), "`setup` is of services that are foreign"),
            ("exec = \"x\"\ndrops = \"by-design\"".to_string(), "`drops` is of services that are foreign"),
            ("exec = \"x\"\nkind = \"alien\"".to_string(), "kind cannot be \"alien\""),
        ];
        for (service, wanted) in cases {
            let said = said(&service, "\"f\"");
            assert!(said.contains(wanted) && said.lines().count() == 1, "{service}:\n{said}");
        }
        for (chain, wanted) in [
            ("\"f\", \"nf:reverse\"", "\"nf\" has no far side"),
            ("\"f\", \"f:reverse\"", "chain loop"),
            ("\"f\", \"nf\", \"f\"", "to \"f\" twice"),
            ("\"g:reverse\"", "no service is called \"g\""),
        ] {
            let said = said(f, chain);
            assert!(said.contains(wanted) && said.lines().count() == 1, "{chain}:\n{said}");
        }
    }

    #[test]
    fn a_process_that_runs_already_is_in_a_namespace_that_is_there() {
        let warnings = |netns: &str| {
            let text = format!(
                "[[port]]\nname = \"p\"\nkind = \"sink\"\n[[service]]\nname = \"f\"\nkind = \"foreign\"\npid_file = \"/run/f.pid\"\n{netns}\n\
                 [[chain]]\nname = \"c\"\nservices = [\"f\"]\negress = \"p\"\n"
            );
            let loaded = crate::load::read_text(&text, "a.toml").unwrap();
            let about = |p: &&crate::Problem| p.message.contains("is there before the network namespace");
            loaded.warnings.iter().filter(about).map(|p| p.help.clone()).collect::<Vec<_>>()
        };
        assert_eq!(warnings("netns = \"theirs\""), Vec::<String>::new());
        let said = warnings("");
        assert!(said.len() == 1 && said[0].contains("write netns"), "{said:?}");
    }

    #[test]
    fn memory_is_shared_with_dpdk_and_with_a_program() {
        let via = "kind = \"foreign\"\nvia = \"memif\"";
        let with_program = said(&format!("{via}\nexec = \"x\""), "\"f\"");
        assert_eq!(with_program.contains("built without"), !sluice_dpdk::BUILT_IN, "{with_program}");
        assert!(!with_program.contains("nobody connects"), "{with_program}");
        let without = said(&format!("{via}\nsetup = [\"true\"]"), "\"f\"");
        assert!(without.contains("nobody connects to the sockets of service \"f\""), "{without}");
        let comma = said(&format!("{via}\nexec = \"x\"\ninterfaces = [\"a,b\", \"c\"]"), "\"f\"");
        assert!(comma.contains("no socket of a device can be called"), "{comma}");
    }
}
