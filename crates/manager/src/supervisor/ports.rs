//! How ports are opened, replaced and closed while packets flow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_shm::arena::HEADROOM;

use super::notice::NoticeKind;
use super::report::details_of;
use super::{PortState, Supervisor, SupervisorError};
use crate::controller::events::What;
use crate::dataplane::LetGo;
use sluice_api::config as model;
use sluice_api::model as api;
use sluice_config::tenancy::{Holder, Owner};
use sluice_config::{diff, validate};
use sluice_dataplane::port::OpenPort;
use sluice_dataplane::queue::QueueCounters;

/// Least time between two lines about packets that are too large for a port.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// How many dropped packets the log has reported, and when.
#[derive(Debug, Default)]
pub(super) struct Reported {
    packets: u64,
    at: Option<Instant>,
}

impl Reported {
    /// How many of all `packets` the log is to report now.
    fn news(&mut self, packets: u64, now: Instant) -> Option<u64> {
        if packets <= self.packets || self.at.is_some_and(|at| now.duration_since(at) < REPORT_EVERY) {
            return None;
        }
        self.at = Some(now);
        Some(packets - std::mem::replace(&mut self.packets, packets))
    }
}

/// Least time over which a port's lag behind its rate is measured.
const BEHIND_OVER: Duration = Duration::from_secs(1);
/// Least lag, as a part of the rate: threads pause now and then.
const BEHIND_FROM: f64 = 0.01;

/// The present lag of a port behind the rate at which it makes packets.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// When it was measured, and the skipped packets until then.
    looked: Option<(Instant, u64)>,
    pps: f64,
}

impl Behind {
    /// Measures it, if it is time to. `skipped` is the total of skipped packets.
    fn look(&mut self, skipped: u64, rate_pps: f64, now: Instant) {
        let Some((at, before)) = self.looked else {
            self.looked = Some((now, skipped));
            return;
        };
        let passed = now.duration_since(at);
        if passed >= BEHIND_OVER {
            let pps = skipped.saturating_sub(before) as f64 / passed.as_secs_f64();
            self.pps = if pps > rate_pps * BEHIND_FROM { pps } else { 0.0 };
            self.looked = Some((now, skipped));
        }
    }

    /// Packets per second; 0 if it keeps its rate.
    pub(super) fn pps(&self) -> f64 {
        self.pps
    }
}

/// The log message for a port in another state, with what it uses.
fn said(port: &model::Port, state: api::PortState, interface: &str) -> String {
    let name = &port.name;
    match state {
        api::PortState::Up if port.kind.output_waits() => format!("port {name}: {interface} is written again"),
        api::PortState::Up => format!("port {name} is up: {interface} has a link"),
        api::PortState::NoLink => {
            format!(
                "port {name}: {interface} has no link, and packets for it are dropped as no_link; see that it and its other end are up"
            )
        }
        api::PortState::Gone => {
            format!(
                "port {name}: {interface} is gone, and packets for it are dropped as no_link; it is opened when it is there again"
            )
        }
        api::PortState::Waiting => format!("port {name} waits for {interface}, which is not there yet"),
        api::PortState::Blocked => format!(
            "port {name}: {interface} cannot be written, so chains to it take no packets once what is inside fills their buffers; see whether \
             its disk is full"
        ),
    }
}

fn named(tenant: &Option<String>) -> String {
    tenant.as_ref().map_or("services without a tenant".into(), |name| format!("tenant `{name}`"))
}

impl Supervisor {
    /// Checks whether a port could be opened, before anything changes for it.
    pub(super) fn look_at(&self, config: &model::Port) -> Result<(), SupervisorError> {
        self.host.opener.kinds.look_at_memory(config, &self.plane.memories().usual_pool())?;
        let room = self.plane.arena().geometry().stride as usize - HEADROOM;
        Ok(self.host.opener.kinds.look_at(config, room)?)
    }

    /// Opens a port without giving it to the packet threads. `wanted` is the coming configuration.
    pub(super) fn open(&self, config: &model::Port, wanted: &model::Config) -> Result<OpenPort, SupervisorError> {
        self.open_as(config, wanted, false)
    }

    /// `again`: it was closed for another one, which could not be opened.
    fn open_as(&self, config: &model::Port, wanted: &model::Config, again: bool) -> Result<OpenPort, SupervisorError> {
        let memories = self.plane.memories();
        let memory = memories.get(memories.for_port(wanted, config));
        if memory.is_none() && config.kind.has_fixed_memory() {
            return Err(SupervisorError::Conflict(format!(
                "port `{}` is a device, and there is no packet memory that it may receive into and that no tenant's NFs have mapped; \
                 write `tenant` in the port's section, or restart sluiced",
                config.name
            )));
        }
        // Other ports receive into the arena that the tables name, or nothing.
        let pool = memory.map_or_else(|| memories.usual_pool(), |memory| memory.pool.clone());
        let (kinds, bounded) = (&self.host.opener.kinds, self.host.opener.room.bounded(config, &wanted.ports));
        let arena = self.plane.arena();
        let opened = if again { kinds.open_again(&bounded, arena, &pool) } else { kinds.open(&bounded, arena, &pool) };
        let mut open = opened?;
        open.memory = memory.map(|memory| memory.number).filter(|_| config.kind.has_fixed_memory());
        Ok(open)
    }

    /// The configuration after the changes under way: it decides whose a port's packets are.
    fn coming(&self) -> &model::Config {
        self.changes.coming.as_deref().unwrap_or(&self.config)
    }

    /// Checks that devices will receive only packets of the tenant whose arena they were opened
    /// with. Other ports receive into another arena with the next tables; a device keeps its own.
    pub(super) fn keeps_to_memory(&self, wanted: &model::Config) -> Result<(), SupervisorError> {
        let bound = self.ports.iter().flatten().filter_map(|state| Some((state, self.plane.memories().get(state.memory?)?)));
        for (state, memory) in bound {
            // A port that is to be opened anew gets what it needs then.
            let stays = |port: &&model::Port| port.name == state.config.name && **port == state.config;
            let Some(port) = wanted.ports.iter().find(stays) else { continue };
            let Holder::Tenant(tenant) = &memory.holder else { continue };
            let is_only = |config| sluice_config::tenancy::tenants(config).iter().all(|known| known.map(str::to_owned) == *tenant);
            let is_theirs = match sluice_config::tenancy::owner_of(wanted, port) {
                Owner::Tenant(owner) => owner == *tenant,
                Owner::Several => false,
                // It was the tenant's by a rule or by its section if there were others already, and
                // nothing says that it is another's.
                Owner::Nobody => !is_only(&self.config),
            };
            // An arena that no NF has seen yet is the first tenant's.
            let is_first = || !memory.is_shared && sluice_config::tenancy::tenants(wanted).len() <= 1;
            if !is_theirs && !is_only(wanted) && !is_first() {
                return Err(SupervisorError::Conflict(format!(
                    "port `{}` is a device that receives into the memory of {}, and would receive packets of others; write `tenant` in the \
                     port's section, remove the port and add it again after this change, or restart sluiced with it",
                    port.name,
                    named(tenant),
                )));
            }
        }
        self.programs_keep_to_memory(wanted)
    }

    /// Checks that foreign programs fed by devices will send only packets of the tenant whose arena
    /// their devices were opened with.
    fn programs_keep_to_memory(&self, wanted: &model::Config) -> Result<(), SupervisorError> {
        for nf in self.nfs.values().filter(|nf| nf.life().stays()) {
            let memory = nf.foreign.as_ref().and_then(|foreign| self.plane.memories().get(foreign.memory()?));
            let Some(Holder::Tenant(tenant)) = memory.map(|memory| &memory.holder) else { continue };
            let Some(Some(service)) = self.services.get(usize::from(nf.service)) else { continue };
            // The programs of a service that is replaced start anew.
            let name = &service.config.name;
            let stays = |wanted: &&model::Service| **wanted == service.config || diff::some_stay(&service.config, wanted);
            if !wanted.services.iter().filter(|wanted| wanted.name == *name).any(|wanted| stays(&wanted)) {
                continue;
            }
            if !sluice_config::tenancy::is_alone_at(wanted, name, tenant.as_deref()) {
                return Err(SupervisorError::Conflict(format!(
                    "the program of service `{name}` is fed by devices that receive into the memory of {}, and would send packets of \
                     others there; apply a configuration without that service before this one, or restart sluiced with this one",
                    named(tenant),
                )));
            }
        }
        Ok(())
    }

    /// Checks that no port begins a capture that another one still writes.
    pub(super) fn takes_no_capture(&self, wanted: &model::Config) -> Result<(), SupervisorError> {
        match validate::taken_capture(&self.config, wanted) {
            None => Ok(()),
            Some((port, other)) => Err(SupervisorError::Conflict(format!(
                "port `{}` would write over the capture that port `{}` still writes; apply a configuration in which that one does \
                 not write it before this one",
                port.name, other.name
            ))),
        }
    }

    /// Gives the queues of an opened port, which has its number, to the packet threads.
    pub(super) fn put_port(&mut self, number: u16, open: OpenPort) -> Result<(), SupervisorError> {
        let Some(Some(state)) = self.ports.get_mut(number as usize) else { return Ok(()) };
        let queues = open.queues.len();
        state.description = open.description;
        state.memory = open.memory;
        state.link = open.link;
        let overload = state.config.overload;
        // A file takes everything in the end: packets wait, or a slow disk would cost packets.
        let waits = overload == model::Overload::Wait || state.config.kind.output_waits();
        // The tables name the threads of the queues: packets for the port may come at once.
        state.counters = (0..queues).map(|_| Arc::default()).collect();
        self.publish();
        let counters = self.plane.add_port(number, open.queues, overload, waits)?;
        if let Some(Some(state)) = self.ports.get_mut(number as usize) {
            state.counters = counters;
        }
        self.update_agent();
        Ok(())
    }

    /// Adds a port. Chains that have lost their egress of this name leave by it again.
    pub(super) fn add_port(&mut self, config: model::Port) -> Result<(), SupervisorError> {
        let number = self.changes.port_numbers.next(self.ports.len(), "ports")?;
        let open = self.take_opened(&config)?;
        let name = config.name.clone();
        self.config.ports.push(config.clone());
        self.changes.port_numbers.take(number, &mut self.ports, PortState::new(config), Instant::now());
        let waiting: Vec<model::Chain> = self.config.chains.iter().filter(|c| c.egress == name).cloned().collect();
        for chain in waiting {
            if let Some(of) = self.chain_number(&chain.name) {
                self.chains[of as usize] = Some(self.make_chain(of, &chain)?);
            }
        }
        self.put_port(number, open)
    }

    /// The port that was opened ahead, or else one opened now.
    fn take_opened(&mut self, config: &model::Port) -> Result<OpenPort, SupervisorError> {
        match self.changes.opened.remove(&config.name) {
            Some(open) => Ok(open),
            None => self.open(config, self.coming()),
        }
    }

    /// Waits until no chain leads packets to a port, at most as long as a stop would.
    fn drain(&mut self, number: u16) {
        let until = Instant::now() + Duration::from_millis(self.config.manager.drain_ms);
        while self.plane.registry().leads_to(number) && Instant::now() < until {
            self.plane.collect();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Closes a port. One with a stuck file or device counts as closed.
    pub(super) fn close(&mut self, number: u16) -> Result<(), SupervisorError> {
        if self.plane.close_port(number)? == LetGo::Stuck {
            let name = self.ports[number as usize].as_ref().map_or("?", |p| &p.config.name);
            warn!("what port {name} writes to takes no more packets; look what holds it up: it is left to end by itself");
        }
        Ok(())
    }

    /// Closes a port, and keeps its counters for the totals.
    fn close_and_count(&mut self, number: u16) -> Result<(), SupervisorError> {
        // After the close, no thread knows its details.
        let details = details_of(usize::from(number), &self.snapshots());
        self.close(number)?;
        if let Some(Some(state)) = self.ports.get_mut(usize::from(number)) {
            self.seen.past.port(&state.config.name, &std::mem::take(&mut state.counters), details);
        }
        Ok(())
    }

    /// Opens a port anew under the same number, which chains keep naming. The new one opens before
    /// the old one closes. If it needs the old one's file or device it opens after, and the old one
    /// is opened again if that fails.
    ///
    /// # Errors
    /// As [`Kinds::open`](sluice_dataplane::port::Kinds::open); the old port is then as before. If
    /// it cannot be opened again either, the port is removed, also from the configuration in force,
    /// so that the next apply opens it.
    pub(super) fn replace_port(&mut self, config: model::Port) -> Result<(), SupervisorError> {
        let number = self.port_number(&config.name).ok_or_else(|| self.no_such("port", &config.name))?;
        let old =
            self.ports[number as usize].as_ref().map(|p| p.config.clone()).ok_or_else(|| self.no_such("port", &config.name))?;
        let open = if self.host.opener.kinds.share(&old, &config) {
            self.close_and_count(number)?;
            match self.open(&config, self.coming()) {
                Ok(open) => open,
                Err(error) => return Err(self.bring_back(number, &old, error)),
            }
        } else {
            let open = self.take_opened(&config)?;
            self.close_and_count(number)?;
            open
        };
        if let Some(known) = self.config.ports.iter_mut().find(|p| p.name == config.name) {
            known.clone_from(&config);
        }
        self.ports[number as usize] = Some(PortState::new(config));
        self.put_port(number, open)
    }

    /// Opens the old port again after its replacement failed to open. Returns the error to report.
    fn bring_back(&mut self, number: u16, old: &model::Port, why: SupervisorError) -> SupervisorError {
        let again = self.open_as(old, &self.config, true).and_then(|open| self.put_port(number, open));
        let Err(error) = again else { return why };
        self.ports[number as usize] = None;
        self.config.ports.retain(|p| p.name != old.name);
        self.publish();
        self.rest_port(number);
        SupervisorError::Conflict(format!(
            "{why}; and the port as it was before cannot be opened again ({error}), so port `{}` is closed: mend the configuration and \
             apply it again",
            old.name
        ))
    }

    pub(super) fn remove_port(&mut self, name: &str) -> Result<(), SupervisorError> {
        let number = self.port_number(name).ok_or_else(|| self.no_such("port", name))?;
        self.drain(number);
        self.close_and_count(number)?;
        self.ports[number as usize] = None;
        self.config.ports.retain(|p| p.name != name);
        self.publish();
        self.rest_port(number);
        Ok(())
    }

    /// Logs and records state changes of ports' interfaces, and logs packets that are too large.
    pub(super) fn see_ports(&mut self, now: Instant) {
        let packet_bytes = self.config.memory.packet_bytes;
        for (number, state) in self.ports.iter_mut().enumerate() {
            let Some(state) = state else { continue };
            let name = &state.config.name;
            for (at_ns, is) in state.link.take_changes() {
                self.controller.events().add(at_ns, name, What::Port(is));
                self.host.notices.print(NoticeKind::Port(number as u16), || {
                    said(&state.config, is, &self.host.opener.kinds.uses(&state.config))
                });
            }
            let sum = |of: fn(&QueueCounters) -> u64| state.counters.iter().map(|counters| of(counters)).sum::<u64>();
            let (came, left) = (sum(|counters| counters.oversize.get()), sum(|counters| counters.mtu.get()));
            if let Some(rate_pps) = state.config.kind.rate_pps() {
                state.behind.look(sum(|counters| counters.skipped.get()), rate_pps, now);
            }
            if let Some(came) = state.reported.0.news(came, now) {
                warn!(
                    "port {name}: packets dropped as oversize: {came}; they are larger than a frame holds and cannot be cut; \
                     raise `packet_bytes` in [memory] (it is {packet_bytes}) above the MTU of the other end and restart, or lower that MTU; \
                     where the MTU fits, switch offloads off at the other end: ethtool -K INTERFACE tx off tso off gso off"
                );
            }
            if let Some(left) = state.reported.1.news(left, now) {
                warn!(
                    "port {name}: packets dropped as mtu: {left}; they are larger than its interface takes; raise its MTU \
                     (`ip link set INTERFACE mtu BYTES`), or lower that of the interfaces where they come from"
                );
            }
        }
    }

    /// Lets the number of a port that is gone rest for later reuse.
    fn rest_port(&mut self, number: u16) {
        let round = self.plane.rounds();
        self.changes.port_numbers.rest(number, Instant::now(), round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_behind_its_rate_while_it_skips_packets_and_not_ever_after() {
        let (mut behind, start) = (Behind::default(), Instant::now());
        let mut at = |ms: u64, skipped: u64| {
            behind.look(skipped, 100_000.0, start + Duration::from_millis(ms));
            behind.pps()
        };
        // Skips before the first measurement do not count, and a part of a second is too short.
        assert_eq!([at(0, 5_000), at(900, 40_000)], [0.0, 0.0]);
        assert_eq!([at(1_000, 40_000), at(1_500, 60_000)], [35_000.0, 35_000.0]);
        // A thread that paused for a moment has not missed the rate.
        assert_eq!([at(2_000, 60_000), at(3_000, 61_000), at(4_000, 61_000)], [20_000.0, 0.0, 0.0]);
    }
}
