//! An NF's surroundings: its name, and the numbers of ports, services and chains.

use std::ffi::OsString;

use sluice_shm::handshake::Welcome;
use sluice_shm::page::{NfRequest, Page};
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
    /// Where the NF asks the manager, and where a group counts for its parts. None for a zygote, a
    /// part of a group, and a test.
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

    /// Asks for a priority beside other NFs: 1 is ordinary, 2 is twice the share of the core. The
    /// manager gives the nearest one within the service's `priority_min` and `priority_max`, within
    /// about a tenth of a second, and later where more than some hundred NFs may ask; without these
    /// keys, none. With `per = "flow"` it is for the present flow. 0 goes back to the service's
    /// own. To ask is one store to memory.
    ///
    /// Returns whether there is a manager to ask: not in a unit test, for a part of a group, and in
    /// a zygote, where an instance asks by the context of [`Handler::forked`]. A number that is
    /// negative or not finite asks for nothing.
    ///
    /// [`Handler::forked`]: crate::Handler::forked
    pub fn ask_priority(&self, priority: f64) -> bool {
        if !(priority.is_finite() && priority >= 0.0) {
            return false;
        }
        // At least a thousandth, unless it is 0: the smallest that can be asked for.
        let thousandths = if priority > 0.0 { ((priority * 1000.0).round() as u32).max(1) } else { 0 };
        self.ask(NfRequest::Priority, thousandths)
    }

    /// Says that the present flow is over, with `per = "flow"`: the instance is free for another
    /// one after the pool's `linger_ms`, as after a FIN of both sides, and forgets. For what only
    /// the NF knows: the last answer of a protocol without connections, a verdict about the rest. A
    /// flow ends when the NFs of all its services `per = "flow"` have said so, within about two
    /// seconds, and no sooner than a tenth of a second after its begin (a second with `isolation =
    /// "strict"`). Further packets of it are another flow. Without `per = "flow"` it means nothing.
    ///
    /// Returns as [`Context::ask_priority`].
    pub fn end_flow(&self) -> bool {
        self.ask(NfRequest::FlowEnd, 1)
    }

    fn ask(&self, request: NfRequest, value: u32) -> bool {
        self.page.as_ref().inspect(|page| page.ask(request, value)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use sluice_shm::page::{Region, RegionLayout};

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

    #[test]
    fn what_is_asked_for_is_on_the_page() {
        let context = Context::for_test("ids.0", &[], &[], &[]);
        assert!(!context.ask_priority(2.0) && !context.end_flow(), "nobody is there to ask");
        let page = Region::create(RegionLayout::new(1, 8).unwrap()).unwrap().page;
        let context = Context { page: Some(page.clone()), ..context };
        let asked = || [NfRequest::Priority, NfRequest::FlowEnd].map(|request| page.asked(request, 0));
        for (priority, thousandths) in [(2.5, 2_500), (0.0, 0), (1e-9, 1), (1e300, u32::MAX)] {
            assert!(context.ask_priority(priority));
            assert_eq!(asked(), [thousandths, 0]);
        }
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(!context.ask_priority(wrong));
            assert_eq!(asked(), [u32::MAX, 0], "{wrong} asks for nothing");
        }
        assert!(context.end_flow());
        assert_eq!(asked(), [u32::MAX, 1]);
    }
}
