//! What packet threads say about packets that might come.

use super::{DataPlane, PlaneError};
use sluice_dataplane::outlook::Outlook;

impl DataPlane {
    /// What a packet of `len` bytes would meet in a packet thread if it came in at a port and began
    /// with `bytes`.
    ///
    /// # Errors
    /// [`PlaneError::Silent`].
    pub fn outlook(&self, thread: usize, bytes: &[u8], len: u16, ingress: u16) -> Result<Outlook, PlaneError> {
        let bytes = bytes.to_vec();
        self.ask(thread, move |worker| {
            let (plane, rx) = worker.parts();
            rx.outlook(plane, &bytes, len, ingress)
        })
    }
}
