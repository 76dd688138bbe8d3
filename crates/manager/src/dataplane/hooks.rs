//! What features install in the packet threads: feeders of foreign programs, and inline NFs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_shm::page::{Region, RegionLayout};

use super::{DataPlane, Place, PlaneError};
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::handlers::Inline;
use sluice_dataplane::hooks::Feeder;

impl DataPlane {
    /// Gives the feeder of a foreign program to the thread that drains it.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn feed(&self, feeder: Box<dyn Feeder>) -> Result<(), PlaneError> {
        self.ask(self.division.drains(feeder.number()), |worker| worker.feed(feeder))
    }

    /// Takes the feeder back. Packets on its ring stay there for [`DataPlane::detach`].
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn unfeed(&self, number: u16) -> Result<Option<Box<dyn Feeder>>, PlaneError> {
        self.ask(self.division.drains(number), move |worker| worker.unfeed(number))
    }

    /// The packet thread that receives on a core. The first one if there is none.
    pub fn receiver(&self, core: usize) -> u16 {
        let thread = self.rx.iter().find(|rx| self.links[rx.thread].core == core).or(self.rx.first());
        thread.map_or(0, |rx| rx.thread as u16)
    }

    /// Makes a region for an NF that runs in packet threads.
    ///
    /// # Errors
    /// [`PlaneError::Memory`].
    pub fn inline_handle(
        &mut self,
        (number, name, service): (u16, &str, u16),
        capacity: u32,
        place: &Place,
    ) -> Result<Arc<NfHandle>, PlaneError> {
        let threads = self.links.len();
        let layout = RegionLayout::new(threads as u32, capacity).expect("the configuration checks the ring size");
        let region = Region::create(layout)?;
        let (page, slot, core) = (place.page.clone(), place.slot, place.key.0);
        let in_flight = self.in_flight.entry(number).or_default().clone();
        // Its thread lets its packets in, and runs it.
        in_flight.share(1);
        let name = name.into();
        let handle = NfHandle::new(number, name, service, core, true, region, page, slot, threads, in_flight, 1.0, None);
        // Relaxed: a channel passes the handle to the threads.
        handle.memory.store(place.memory, Ordering::Relaxed);
        Ok(handle)
    }

    /// Gives an NF's handlers to the thread that receives on its core, and notifies the others.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn attach_inline(&self, handle: &Arc<NfHandle>, inline: Box<dyn Inline>) -> Result<(), PlaneError> {
        let (own, mut inline) = (usize::from(self.receiver(handle.core)), Some(inline));
        for thread in 0..self.links.len() {
            let (handle, inline) = (handle.clone(), if thread == own { inline.take() } else { None });
            self.ask(thread, move |worker| worker.attach_inline(&handle, inline))?;
        }
        Ok(())
    }

    /// Takes an NF's handlers out of the packet threads.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn take_inline(&self, number: u16) -> Result<Option<Box<dyn Inline>>, PlaneError> {
        Ok(self.ask_all(move |worker| worker.take_inline(number))?.into_iter().flatten().next())
    }
}
