//! An NF's surroundings: its name, and the numbers of ports, services and chains.

use std::ffi::OsString;

use sluice_shm::handshake::Welcome;
use sluice_shm::page::Page;
use sluice_shm::zygote::Surroundings;

use crate::options;
use crate::packet::{PortId, ServiceId};

/// The NF's surroundings, as they were when it attached.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The NF's name, such as `ids.0`, or its zygote's, such as `ids.zygote`.
    pub name: String,
    /// Names of the ports, by number. The name of an unused number is empty.
    pub ports: Vec<String>,
    /// Names of the services, by number. The name of an unused number is empty.
    pub services: Vec<String>,
    /// Names of the chains, by number. The name of an unused number is empty.
    pub chains: Vec<String>,
    /// Processor that the NF belongs on, if it has one.
    pub core: Option<u32>,
    /// The NF's own arguments, as [`crate::args`]; those of one part, if it runs in a group.
    pub args: Vec<OsString>,
    /// Where a group counts for its parts.
    #[cfg_attr(not(feature = "group"), allow(dead_code))]
    pub(crate) page: Option<Page>,
}

fn find(names: &[String], name: &str) -> Option<u16> {
    if name.is_empty() {
        return None;
    }
    names.iter().position(|n| n == name).and_then(|i| u16::try_from(i).ok())
}

impl Context {
    /// A context for unit tests: ports, services and chains are numbered from 0 in the order given.
    pub fn for_test(name: &str, ports: &[&str], services: &[&str], chains: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Self { name: name.into(), ports: owned(ports), services: owned(services), chains: owned(chains), ..Self::default() }
    }

    pub(crate) fn of(welcome: &Welcome) -> Self {
        Self {
            name: welcome.name.clone(),
            ports: welcome.ports.clone(),
            services: welcome.services.clone(),
            chains: welcome.chains.clone(),
            core: (welcome.core != u32::MAX).then_some(welcome.core),
            args: options::args(),
            page: None,
        }
    }

    pub(crate) fn of_zygote(surroundings: &Surroundings) -> Self {
        let Surroundings { name, ports, services, chains } = surroundings.clone();
        Self { name, ports, services, chains, core: None, args: options::args(), page: None }
    }

    /// The port of this name. None if it did not exist when this NF, or its zygote, was started:
    /// restart it to find a new one. No other port gets a number that it knows while it runs.
    pub fn port(&self, name: &str) -> Option<PortId> {
        find(&self.ports, name).map(PortId)
    }

    /// The service of this name, of those at the NF's start, as [`Context::port`].
    pub fn service(&self, name: &str) -> Option<ServiceId> {
        find(&self.services, name).map(ServiceId)
    }

    /// Number of the chain of this name, as in [`crate::Packet::chain`]; as [`Context::port`].
    pub fn chain(&self, name: &str) -> Option<u16> {
        find(&self.chains, name)
    }

    /// Name of chain `number`.
    pub fn chain_name(&self, number: u16) -> Option<&str> {
        self.chains.get(number as usize).map(String::as_str).filter(|n| !n.is_empty())
    }

    /// Name of port `number`, as in [`crate::Packet::ingress`].
    pub fn port_name(&self, number: u16) -> Option<&str> {
        self.ports.get(number as usize).map(String::as_str).filter(|n| !n.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers_and_numbers_names() {
        let context = Context::for_test("ids.0", &["lan", "", "wan"], &["ids"], &["out"]);
        assert_eq!(context.port("wan"), Some(PortId(2)));
        assert_eq!(context.port(""), None);
        assert_eq!(context.port("dmz"), None);
        assert_eq!(context.service("ids"), Some(ServiceId(0)));
        assert_eq!(context.chain("out"), Some(0));
        assert_eq!(context.chain_name(0), Some("out"));
        assert_eq!(context.chain_name(1), None);
        assert_eq!(context.port_name(1), None);
        assert_eq!(context.port_name(0), Some("lan"));
    }
}
