//! A tenant's packet memory is made anew.
//!
//! After an NF was stopped for violations nobody knows what it has left behind in its tenant's memory, or who still has it mapped. Then the
//! tenant can have a fresh arena: its ports receive there, its NFs are ended and started again with it, and what is still on its way
//! in the old one leaves as it is. The old one goes when the last of its frames has come back. Other tenants notice nothing.

use super::{State, Supervisor, SupervisorError, life};
use crate::config::model::AfterViolation;
use crate::dataplane::PlaneError;
use crate::memory::{Holder, NoMemory};

impl Supervisor {
    /// Gives a tenant a fresh arena, and starts its NFs again.
    pub(super) fn renew_memory(&mut self, tenant: Option<&str>) -> Result<(), SupervisorError> {
        let holder = Holder::Tenant(tenant.map(str::to_owned));
        if self.plane.memories().find(&holder).is_none() {
            return Err(SupervisorError::NoSuch(format!(
                "there is no packet memory of tenant `{holder}`; see `sluice tenant list`"
            )));
        }
        self.plane.renew(tenant.map(str::to_owned)).map_err(|error| match error {
            PlaneError::NoMemory(why @ (NoMemory::Devices | NoMemory::NoSlot(_))) => SupervisorError::Conflict(why.to_string()),
            other => other.into(),
        })?;
        // From here on its ports receive there.
        self.publish();
        let of_tenant = |number: &u16| {
            let service = self.services.get(usize::from(*number)).and_then(Option::as_ref);
            service.is_some_and(|service| !service.config.is_foreign() && service.config.tenant.as_deref() == tenant)
        };
        let numbers: Vec<u16> =
            self.nfs.values().filter(|nf| nf.state == State::Running && of_tenant(&nf.service)).map(|nf| nf.number).collect();
        for number in numbers {
            if let Some(nf) = self.nfs.get_mut(&number) {
                nf.renewed = true;
                life::kill(nf);
            }
        }
        Ok(())
    }

    /// Takes away what is nobody's any more, once it is empty.
    pub(super) fn drop_former_memory(&mut self) {
        if !self.plane.memories().former().is_empty()
            && let Err(error) = self.plane.drop_former()
        {
            log_line!("sluiced: {error}");
        }
    }

    /// An NF of a service was stopped for violations.
    pub(super) fn after_violation(&mut self, service: u16) {
        if self.config.memory.after_violation == AfterViolation::Keep || self.stopping {
            return;
        }
        let Some(Some(service)) = self.services.get(usize::from(service)) else { return };
        let (name, tenant) = (service.config.name.clone(), service.config.tenant.clone());
        match self.renew_memory(tenant.as_deref()) {
            Ok(()) => log_line!(
                "sluiced: an NF of {name} was stopped for violations: its tenant has fresh packet memory, and its NFs start again"
            ),
            Err(error) => {
                log_line!("sluiced: an NF of {name} was stopped for violations, and its tenant keeps its packet memory: {error}")
            }
        }
    }
}
