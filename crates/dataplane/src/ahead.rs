//! Fetches what a burst of packets on many paths will touch, before it is let in.
//!
//! # Problem
//! Where hundreds of NFs share a core, nearly each packet goes to another one. It touches a dozen
//! lines that no near cache has, on pages that the TLB does not know, and most are found by way of
//! the one before: the path, its NFs, the NF's end, its handle, its credits. A packet thread that
//! lets in one packet after another waits for each of them: with 900 NFs, a third of its time (by
//! samples, on an Intel Xeon guest).
//!
//! # Approach
//! Passes over all packets of the burst, each of which fetches the lines that the pass before made
//! known. So the waits of one pass overlap.

use sluice_shm::ring::Producer;
use sluice_shm::{BURST, prefetch, prefetch_whole, prefetch_write};

use crate::chain::PathRegistry;
use crate::decision::Packed;
use crate::handle::Hot;
use crate::plane::Plane;

/// From this many changes of the path in a burst on, it is worthwhile.
pub(crate) const MANY: usize = 8;

/// Most NFs that a burst is fetched for.
const MOST: usize = 2 * BURST;

/// An NF of a path, and whether packets enter the path there.
type Next = (u16, bool);

impl Plane {
    /// Fetches what packets with these decisions, at most [`BURST`], will touch until they are on
    /// the rings of their first NFs.
    #[inline(never)]
    pub(crate) fn fetch_ahead(&self, registry: &PathRegistry, decisions: &[Packed]) {
        let decisions = &decisions[..decisions.len().min(BURST)];
        if decisions.windows(2).filter(|pair| pair[0] != pair[1]).count() < MANY {
            return;
        }
        for decision in decisions {
            registry.fetch(*decision);
        }
        let paths = || decisions.chunk_by(|a, b| a == b).filter_map(|run| registry.of(run[0]));
        for path in paths() {
            path.nfs.iter().take(1).for_each(prefetch);
            path.hops.iter().take(1).for_each(prefetch);
        }
        let mut next: [Next; MOST] = [(0, false); MOST];
        let mut n = 0;
        let nfs = paths().flat_map(|path| path.nfs.iter().map(|nf| (nf, path.hops.first())));
        for ((nf, first), place) in nfs.zip(&mut next) {
            (*place, n) = ((*nf, first.is_some_and(|hop| hop.nf == *nf)), n + 1);
            // Not what it points to: that is read in the next pass.
            self.nfs.get(usize::from(*nf)).iter().for_each(|end| prefetch_whole(*end));
        }
        let next = &next[..n];
        let end_of = |nf: u16| self.nfs.get(usize::from(nf)).and_then(Option::as_ref);
        for (nf, is_first) in next {
            let Some(end) = end_of(*nf) else { continue };
            prefetch(&end.handle.gate);
            prefetch(&end.handle.hot);
            end.producer.iter().filter(|_| *is_first).for_each(Producer::prefetch_next);
        }
        for (nf, is_first) in next {
            let Some(end) = end_of(*nf) else { continue };
            let Hot { in_flight, counters, core_page, slot, .. } = &end.handle.hot;
            prefetch_write(&**in_flight);
            if *is_first {
                prefetch_write(&counters[self.index].api.rx_packets);
                prefetch_write(core_page.posted(*slot));
            }
        }
    }
}
