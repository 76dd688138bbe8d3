//! The arenas of packet memory, as packet threads get and lose them.

use super::{DataPlane, PlaneError, stack};
use crate::memory::TenantMemory;
use sluice_api::config::Config;
use sluice_config::tenancy::Holder;

impl DataPlane {
    /// Makes the missing arenas of a configuration and gives them to all threads. Nothing is
    /// received into them until new tables name them.
    ///
    /// # Errors
    /// [`PlaneError::NoMemory`], [`PlaneError::Silent`].
    pub fn provide(&mut self, config: &Config) -> Result<(), PlaneError> {
        for holder in sluice_config::tenancy::holders(config) {
            self.provide_one(&holder)?;
        }
        Ok(())
    }

    pub(super) fn provide_one(&mut self, holder: &Holder) -> Result<u8, PlaneError> {
        let (number, is_new) = self.memories.of(holder)?;
        if is_new {
            self.show(number)?;
        }
        Ok(number)
    }

    /// Gives a fresh arena to all threads.
    fn show(&self, number: u8) -> Result<(), PlaneError> {
        let memory = self.memories.get(number).expect("it was just made");
        for thread in 0..self.links.len() {
            let (stack, usual) = (stack(memory, self.links.len()), self.memories.usual());
            self.ask(thread, move |worker| worker.add_memory(number, stack, usual))?;
        }
        Ok(())
    }

    /// Makes a fresh arena for a tenant. Its NFs get that one from now on, and its ports receive
    /// there with the next tables.
    ///
    /// # Errors
    /// [`PlaneError::NoMemory`], [`PlaneError::Silent`].
    pub fn renew(&mut self, tenant: Option<String>) -> Result<(), PlaneError> {
        let fresh = self.memories.renew(&Holder::Tenant(tenant))?;
        self.show(fresh)
    }

    /// Gives up the arena of a tenant that is gone, and its core pages. Nothing is received there
    /// with the next tables.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn give_up(&mut self, number: u8) -> Result<(), PlaneError> {
        if let Some(Holder::Tenant(tenant)) = self.memories.give_up(number) {
            self.cores.retain(|(_, of), core| *of != tenant || core.used.contains(&true));
        }
        let usual = self.memories.usual();
        self.ask_all(move |worker| worker.use_usual(usual)).map(drop)
    }

    /// Removes former arenas that no NF has mapped and that are empty. Returns how many are left.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn drop_former(&mut self) -> Result<usize, PlaneError> {
        let former = self.memories.former();
        let mut left = former.len();
        for number in former {
            self.ask_all(move |worker| worker.drop_memory(number, false))?;
            if self.memories.get(number).is_some_and(TenantMemory::is_left) {
                // It is empty, and no NF has it mapped: no thread gets one or copies a packet
                // there.
                self.ask_all(move |worker| worker.drop_memory(number, true))?;
                left -= usize::from(self.memories.remove(number));
            }
        }
        Ok(left)
    }
}
