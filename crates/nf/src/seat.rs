//! Where an NF sleeps: its place on the core page, and the storage that also wakes it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use sluice_shm::core_page::CorePage;
use sluice_shm::page::{Counter, Page};

use crate::storage;

/// Longest sleep of an NF that both buffers of its storage are full of: the doorbell and completions wake it, this only guards.
const SUSPENDED: Duration = Duration::from_millis(100);

/// Where an NF sleeps. Without a place, as in unit tests, nobody wakes it but its storage.
#[derive(Default)]
pub(crate) struct Seat {
    place: Option<Place>,
    /// Not owned: callbacks may hold packets, which hold the engine, which holds this.
    storage: RefCell<Weak<storage::Inner>>,
    /// A handler has waited for the disk since this was asked last.
    has_waited: Cell<bool>,
}

/// An attached NF's place.
pub(crate) struct Place {
    pub(crate) core: &'static CorePage,
    pub(crate) slot: u32,
    pub(crate) enough: u32,
    pub(crate) poll: bool,
    pub(crate) page: Page,
}

impl Seat {
    pub(crate) fn new(place: Place) -> Rc<Self> {
        Rc::new(Self { place: Some(place), ..Self::default() })
    }

    /// The NF's storage, if it has one.
    #[inline(always)]
    pub(crate) fn storage(&self) -> Option<Rc<storage::Inner>> {
        self.storage.borrow().upgrade()
    }

    pub(crate) fn set_storage(&self, storage: &Rc<storage::Inner>) {
        *self.storage.borrow_mut() = Rc::downgrade(storage);
    }

    /// Calls the storage's callbacks that are due, and says how many. No borrow that they may need is held.
    #[inline(always)]
    pub(crate) fn poll(&self) -> usize {
        self.storage().map_or(0, |storage| storage.poll())
    }

    /// Whether a handler has waited for the disk since the last call: then its time is no service time.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited.take()
    }

    /// Ends everything that the storage has begun.
    pub(crate) fn flush(&self) {
        if let Some(storage) = self.storage() {
            storage.flush();
        }
    }

    /// Sleeps and hands the core over; see [`CorePage::sleep`]. A completion of the storage ends the sleep too. Returns whether the
    /// core was handed over.
    pub(crate) fn sleep(&self, timeout: Duration, mut has_work: impl FnMut() -> bool) -> bool {
        let Some(place) = &self.place else { return false };
        let Some(storage) = self.storage() else {
            return place.core.sleep(place.slot, place.enough, Some(timeout), has_work);
        };
        let timeout = timeout.min(storage.longest_sleep());
        place.core.sleep_by(
            place.slot,
            place.enough,
            || has_work() || storage.has_completions(),
            |_, seen| storage.wait(place.core.bell(place.slot), seen, timeout),
        )
    }

    /// Sleeps because `storage` can take no more. False if there is no place to sleep in, or the NF does not sleep: then the caller
    /// waits in the kernel.
    pub(crate) fn suspend(&self, storage: &storage::Inner) -> bool {
        self.has_waited.set(true);
        let Some(place) = self.place.as_ref().filter(|place| !place.poll) else { return false };
        place.page.add(Counter::Sleeps, 1);
        let handed_over = place.core.sleep_by(
            place.slot,
            place.enough,
            || storage.has_completions(),
            |_, seen| storage.wait(place.core.bell(place.slot), seen, SUSPENDED),
        );
        if handed_over {
            place.page.add(Counter::HandOvers, 1);
        }
        true
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("slot", &self.place.as_ref().map(|place| place.slot)).finish_non_exhaustive()
    }
}
