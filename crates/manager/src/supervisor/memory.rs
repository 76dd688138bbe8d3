//! Renewal and end of a tenant's packet memory.
//!
//! After an NF was stopped for violations, its tenant's memory may be damaged, and a process may
//! still have it mapped. Then the tenant can have a fresh arena: its ports receive there, its NFs
//! are restarted with it, and the packets in the old one leave normally. The old arena is removed
//! when no NF has it mapped and all its frames have come back. Other tenants are not affected.
//!
//! The arena of a tenant that no service or port names, and whose last NF is gone, ends in the same
//! way after a rest ([`REST`]): it may come again. Where arenas are short, there is no rest.

use std::collections::HashMap;
use std::time::Instant;

use super::nfs::Event;
use super::numbers::REST;
use super::{Supervisor, SupervisorError};
use crate::dataplane::PlaneError;
use crate::memory::NoMemory;
use sluice_api::config::AfterViolation;
use sluice_config::tenancy::{Holder, holders};

/// The arenas of tenants that are gone, and since when.
#[derive(Debug, Default)]
pub(super) struct Resting(HashMap<u8, Instant>);

impl Resting {
    /// Takes those of the `unwanted` arenas that are to be given up now.
    fn take_over(&mut self, unwanted: &[u8], are_short: bool, now: Instant) -> Vec<u8> {
        self.0.retain(|number, _| unwanted.contains(number));
        let is_over = |number: &u8| {
            let since = *self.0.entry(*number).or_insert(now);
            are_short || now.duration_since(since) >= REST
        };
        let over: Vec<u8> = unwanted.iter().copied().filter(is_over).collect();
        self.0.retain(|number, _| !over.contains(number));
        over
    }
}

impl Supervisor {
    /// Gives a tenant a fresh arena, and restarts its NFs.
    pub(super) fn renew_memory(&mut self, tenant: Option<&str>) -> Result<(), SupervisorError> {
        let holder = Holder::Tenant(tenant.map(str::to_owned));
        let Some(old) = self.plane.memories().find(&holder).map(|memory| memory.number) else {
            return Err(SupervisorError::NoSuch(format!(
                "there is no packet memory of tenant `{holder}`; see `sluice tenant list`"
            )));
        };
        // With devices it is refused below, with or without such a port.
        let mut ports = self.ports.iter().flatten().filter(|_| self.plane.memories().devices().is_none());
        if let Some(port) = ports.find(|port| port.memory == Some(old)) {
            let name = &port.config.name;
            return Err(SupervisorError::Conflict(format!(
                "port `{name}` keeps the packet memory that it was opened with; remove it, make the memory anew, and add the port again"
            )));
        }
        let counted = self.own_memory(old);
        self.plane.renew(tenant.map(str::to_owned)).map_err(|error| match error {
            PlaneError::NoMemory(why @ (NoMemory::Devices | NoMemory::NoSlot(_))) => SupervisorError::Conflict(why.to_string()),
            other => other.into(),
        })?;
        counted.iter().for_each(|memory| self.seen.past.memory(memory));
        // From now on its ports receive there.
        self.publish();
        // All that have the old one mapped, also those that are starting, on trial, or leaving.
        let mapped = self.nfs.values().filter(|nf| nf.place.as_ref().is_some_and(|place| place.memory == old));
        let mapped: Vec<u16> = mapped.map(|nf| nf.number).collect();
        mapped.into_iter().for_each(|number| self.feed(number, Event::Renewed));
        Ok(())
    }

    /// Gives up the arenas of tenants that are gone, when they have rested.
    pub(super) fn give_up_memory(&mut self, now: Instant) {
        let of_ports = self.ports.iter().flatten().filter_map(|port| port.memory);
        let of_programs = self.nfs.values().filter_map(|nf| nf.foreign.as_ref()?.memory());
        let kept: Vec<u8> = of_ports.chain(of_programs).collect();
        let mut wanted = holders(&self.config);
        let named = self.config.ports.iter().filter(|port| port.tenant.is_some());
        wanted.extend(named.map(|port| Holder::Tenant(port.tenant.clone())));
        let memories = self.plane.memories();
        let over = self.changes.memory.take_over(&memories.unwanted(&wanted, &kept), memories.are_short(), now);
        for number in &over {
            let counted = self.own_memory(*number);
            if let Err(error) = self.plane.give_up(*number) {
                warn!("{error}");
            }
            counted.iter().for_each(|memory| self.seen.past.memory(memory));
        }
        if !over.is_empty() {
            self.publish();
        }
    }

    /// Removes former arenas that are empty.
    pub(super) fn drop_former_memory(&mut self) {
        if !self.plane.memories().former().is_empty()
            && let Err(error) = self.plane.drop_former()
        {
            warn!("{error}");
        }
    }

    /// Handles the stop of an NF for violations that had the arena of this holder mapped.
    pub(super) fn after_violation(&mut self, service: u16, holder: &Holder) {
        // If the arena was replaced, the tenant has a fresh one already.
        let Holder::Tenant(tenant) = holder else { return };
        if self.config.memory.after_violation == AfterViolation::Keep || self.turns.stopping {
            return;
        }
        let Some(Some(service)) = self.services.get(usize::from(service)) else { return };
        let name = service.config.name.clone();
        match self.renew_memory(tenant.as_deref()) {
            Ok(()) => {
                warn!("an NF of {name} was stopped for violations: its tenant has fresh packet memory, and its NFs start again")
            }
            Err(error) => {
                warn!("an NF of {name} was stopped for violations, and its tenant keeps its packet memory: {error}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_arena_rests_until_its_tenant_comes_again_or_arenas_are_short() {
        let (begin, mut resting) = (Instant::now(), Resting::default());
        let mut over =
            |unwanted: &[u8], are_short: bool, s: u64| resting.take_over(unwanted, are_short, begin + Duration::from_secs(s));
        let rest = REST.as_secs();
        assert!(over(&[3], false, 0).is_empty() && over(&[3, 4], false, rest - 1).is_empty());
        assert_eq!(over(&[3, 4], false, rest), [3]);
        // Another tenant has the number, and goes.
        assert!(over(&[3, 4], false, rest + 1).is_empty());
        // One comes again.
        assert!(over(&[3], false, 2 * rest - 2).is_empty());
        assert!(over(&[3, 4], false, 2 * rest).is_empty());
        assert_eq!(over(&[3, 4], true, 2 * rest), [3, 4]);
        assert!(over(&[], true, 3 * rest).is_empty());
    }
}
