//! The core pages: one for the NFs of a core and tenant, with a slot for each of them.

use std::collections::HashMap;

use sluice_dataplane::frame::NO_ARENA;
use sluice_shm::core_page::CorePage;
use sluice_shm::memory::{MemoryError, SharedMemory};

/// A core, and the tenant whose NFs have a page there.
pub(super) type PageKey = (usize, Option<String>);

/// A slot on a core's page, assigned to an NF.
#[derive(Debug, Clone)]
pub struct Place {
    pub page: CorePage,
    pub slot: u32,
    /// Number of the arena of its tenant; [`NO_ARENA`] for a program that maps none.
    pub memory: u8,
    pub(super) key: PageKey,
}

struct Owned {
    memory: SharedMemory,
    page: CorePage,
    /// By slot: the number of the arena of its NF, if it has one.
    used: Vec<Option<u8>>,
}

impl Owned {
    fn has_nfs(&self) -> bool {
        self.used.iter().any(Option::is_some)
    }
}

pub(super) struct CorePages {
    pages: HashMap<PageKey, Owned>,
    slots: u32,
    hands_over: bool,
    /// The cores of the packet threads.
    threads: Vec<usize>,
}

impl CorePages {
    /// For pages of this many slots, whose NFs hand over or not, on a host whose packet threads
    /// have these cores.
    pub(super) fn new(slots: u32, hands_over: bool, threads: Vec<usize>) -> Self {
        Self { pages: HashMap::new(), slots, hands_over, threads }
    }

    /// Slots of a page.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Assigns a slot to an NF with this arena; none if the page has none left.
    ///
    /// # Errors
    /// As [`CorePage::create`], for the first NF of a page.
    pub(super) fn take(&mut self, key: PageKey, memory: u8) -> Result<Option<Place>, MemoryError> {
        if !self.pages.contains_key(&key) {
            let (shared, page) = CorePage::create(self.slots, self.hands_over)?;
            self.pages.insert(key.clone(), Owned { memory: shared, page, used: Vec::new() });
        }
        let slots = self.slots;
        let entry = self.pages.get_mut(&key).expect("it was just put there");
        let slot = match entry.used.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if entry.used.len() < slots as usize => {
                entry.used.push(None);
                entry.used.len() - 1
            }
            None => return Ok(None),
        };
        entry.used[slot] = Some(memory);
        entry.page.reset(slot as u32);
        let place = Place { page: entry.page.clone(), slot: slot as u32, memory, key };
        self.say_shared(place.key.0);
        Ok(Some(place))
    }

    /// Frees the slot of an NF whose process has ended and which no thread has.
    pub(super) fn vacate(&mut self, place: &Place) {
        if let Some(entry) = self.pages.get_mut(&place.key) {
            entry.page.reset(place.slot);
            entry.used[place.slot as usize] = None;
        }
        self.say_shared(place.key.0);
    }

    /// The memory of a place's page.
    pub(super) fn memory_of(&self, place: &Place) -> Option<&SharedMemory> {
        self.pages.get(&place.key).map(|entry| &entry.memory)
    }

    pub(super) fn has_nfs(&self, core: usize) -> bool {
        self.of(core).any(Owned::has_nfs)
    }

    fn of(&self, core: usize) -> impl Iterator<Item = &Owned> {
        self.pages.iter().filter(move |(key, _)| key.0 == core).map(|(_, entry)| entry)
    }

    /// Says on the pages of a core whether its NFs share it with what is not on their page: other
    /// tenants' NFs, programs that use no page, and packet threads.
    fn say_shared(&self, core: usize) {
        let in_use = self.of(core).filter(|entry| entry.has_nfs()).count();
        let has_program = self.of(core).flat_map(|entry| &entry.used).any(|used| *used == Some(NO_ARENA));
        let is_shared = in_use > 1 || has_program || self.threads.contains(&core);
        self.of(core).for_each(|entry| entry.page.set_shared(is_shared));
    }
}

#[cfg(test)]
mod tests {
    use sluice_shm::core_page::Linger;

    use super::*;

    #[test]
    fn nfs_linger_for_long_only_on_a_core_of_their_own() {
        let mut pages = CorePages::new(4, true, vec![0]);
        let mut take = |core, tenant: Option<&str>, memory| pages.take((core, tenant.map(str::to_owned)), memory).unwrap().unwrap();
        let may = |place: &Place| {
            place.page.set_linger(Linger::of(u32::MAX));
            place.page.linger_ns() == Linger::LONGEST_NS
        };
        let (first, second, elsewhere) = (take(1, None, 0), take(1, None, 0), take(2, None, 0));
        assert!(may(&first) && may(&second) && may(&elsewhere));
        assert!(!may(&take(0, None, 0)), "a packet thread's core");
        let other = take(1, Some("red"), 1);
        assert!(!may(&first) && !may(&second) && !may(&other) && may(&elsewhere));
        let program = take(2, None, NO_ARENA);
        assert!(!may(&elsewhere));
        pages.vacate(&other);
        pages.vacate(&program);
        assert!(may(&first) && may(&elsewhere));
        pages.vacate(&first);
        assert!(pages.has_nfs(1));
        pages.vacate(&second);
        assert!(!pages.has_nfs(1) && pages.has_nfs(2) && pages.memory_of(&first).is_some());
    }
}
