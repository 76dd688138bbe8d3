//! What NFs return: which tx rings are looked at in a round, and how much is taken from each.

use sluice_shm::BURST;
use sluice_shm::core_page::CorePage;

use super::{Worker, send};

/// With more NFs than this, only the tx rings of those that have said that they returned packets are looked at, and all of them once in
/// [`ROUNDS_PER_DUTY`](super::ROUNDS_PER_DUTY) rounds; with fewer, all of them each time, and ahead.
pub(super) const MOST_LOOKED_AT: usize = 32;

/// The NFs of one page that a thread drains.
pub(super) struct Place {
    pub(super) page: CorePage,
    /// A bit for each slot that is drained.
    mine: Vec<u64>,
    /// By slot: which drain.
    drains: Vec<u32>,
}

impl Place {
    pub(super) fn new(page: CorePage) -> Self {
        let words = page.words();
        Self { page, mine: vec![0; words], drains: vec![0; words * 64] }
    }

    pub(super) fn add(&mut self, slot: u32, drain: usize) {
        self.mine[slot as usize / 64] |= 1 << (slot % 64);
        self.drains[slot as usize] = drain as u32;
    }
}

impl Worker {
    /// Drains the NFs: those that said that they returned packets, or all of them.
    #[inline]
    pub(super) fn transmit(&mut self, all: bool) -> usize {
        let mut work = 0;
        for i in 0..self.foreign.len() {
            work += self.foreign[i].poll(&mut self.setup.plane, &self.setup.registry);
        }
        if all || self.drains.len() <= MOST_LOOKED_AT {
            for i in 0..self.drains.len() {
                work += self.drain(i);
            }
            return work;
        }
        for place in 0..self.places.len() {
            for index in 0..self.places[place].mine.len() {
                let Place { page, mine, .. } = &self.places[place];
                let mut bits = if mine[index] == 0 { 0 } else { page.take_returned(index, mine[index]) };
                while bits != 0 {
                    let slot = index * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    let drain = self.places[place].drains[slot] as usize;
                    work += self.drain(drain);
                    if !self.drains[drain].is_cut_off && self.drains[drain].consumer.available() != Ok(0) {
                        // What is left is for the next round.
                        self.places[place].page.note_returned(slot as u32);
                    }
                }
            }
        }
        work
    }

    /// Takes back what an NF returned, as far as there is room for it.
    #[inline]
    fn drain(&mut self, i: usize) -> usize {
        let mut work = 0;
        let plane = &mut self.setup.plane;
        let drain = &mut self.drains[i];
        if drain.behind.is_some() && drain.waits() {
            return 0;
        }
        // Two bursts, so that what comes from upstream never outruns what goes on downstream.
        for _ in 0..2 {
            if plane.is_blocked() && plane.may_block(&drain.handle, drain.fills) {
                break;
            }
            plane.filled = 0;
            let n = plane.forward(&self.setup.registry, drain);
            work += n;
            if plane.filled != 0 {
                drain.fills |= plane.filled;
                // Many NFs may have more for a port than fits in its buffer.
                for port in 0..plane.out.len() {
                    if plane.out[port].is_full() {
                        work += send(plane, &mut self.queues, &mut self.setup.lanes_out, port as u16);
                    }
                }
            }
            if n < BURST {
                break;
            }
        }
        work
    }
}
