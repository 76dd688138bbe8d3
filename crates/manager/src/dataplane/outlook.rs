//! What packet threads say about packets that might come.

use super::{DataPlane, PlaneError};
use sluice_dataplane::outlook::Outlook;

impl DataPlane {
    /// What a packet of `len` bytes would meet in each of these packet threads if it came in at a
    /// port and began with `bytes`. All are asked before the first is waited for.
    ///
    /// # Errors
    /// [`PlaneError::Silent`], of the first that does not answer.
    pub fn outlooks(&self, threads: &[usize], bytes: &[u8], len: u16, ingress: u16) -> Result<Vec<Outlook>, PlaneError> {
        let begin = |thread: &usize| {
            let bytes = bytes.to_vec();
            let answer = self.begin(*thread, move |worker| {
                let (plane, rx) = worker.parts();
                rx.outlook(plane, &bytes, len, ingress)
            });
            (*thread, answer)
        };
        let begun: Vec<_> = threads.iter().map(begin).collect();
        begun.into_iter().map(|(thread, answer)| self.wait_for(thread, &answer)).collect()
    }
}
