//! Draining of NFs: which tx rings a round reads, and how much it takes from each.

use sluice_shm::BURST;
use sluice_shm::core_page::CorePage;

use super::Worker;
use crate::end::Drain;
use crate::tx::send;

/// Above this number of NFs a round reads only tx rings with hints, and all of them once in
/// [`ROUNDS_PER_DUTY`](super::ROUNDS_PER_DUTY) rounds. Up to it, it reads and prefetches all.
pub(super) const MOST_LOOKED_AT: usize = 32;

/// Most tx rings without usable packets that such a round reads; the rest waits for the next one.
const MOST_FRUITLESS: usize = 32;

/// The NFs of one page that a thread drains.
struct Place {
    page: CorePage,
    /// A bit for each slot that is drained.
    mine: Vec<u64>,
    /// A bit for each slot with a hint that is still to be read.
    left: Vec<u64>,
    drains: Vec<u32>,
    /// Packets were taken since that was asked last.
    has_moved: bool,
}

struct Found {
    taken: usize,
    has_more: bool,
}

/// The NFs whose core page hints that they returned packets. Any NF of a page can set hints for all
/// others. So reads of empty rings are bounded and go round: an NF that returned packets is read a
/// few rounds later, whatever the other hints.
#[derive(Default)]
pub(super) struct Returns {
    places: Vec<Place>,
    words: usize,
    /// Page, and word on it, at which the next round begins.
    at: (usize, usize),
}

impl Returns {
    /// Maps a slot of a page to a drain.
    pub(super) fn add(&mut self, page: &CorePage, slot: u32, drain: usize) {
        let at = self.places.iter().position(|place| place.page.is_same(page)).unwrap_or_else(|| {
            let words = page.words();
            self.words += words;
            let (mine, left, drains) = (vec![0; words], vec![0; words], vec![0; words * 64]);
            self.places.push(Place { page: page.clone(), mine, left, drains, has_moved: false });
            self.places.len() - 1
        });
        let place = &mut self.places[at];
        place.mine[slot as usize / 64] |= 1 << (slot % 64);
        place.drains[slot as usize] = drain as u32;
    }

    /// Whether packets of a page's NFs were taken by their hints since this was asked last.
    pub(super) fn take_moved(&mut self, page: &CorePage) -> bool {
        let place = self.places.iter_mut().find(|place| place.page.is_same(page));
        place.is_some_and(|place| std::mem::take(&mut place.has_moved))
    }

    /// Reads the drains with hints, and returns how many packets were taken.
    #[inline]
    fn step(&mut self, mut look: impl FnMut(usize) -> Found) -> usize {
        let (mut taken, mut fruitless) = (0, 0);
        for _ in 0..self.words {
            let (at, index) = self.at;
            let place = &mut self.places[at];
            let mut bits = std::mem::take(&mut place.left[index]);
            if bits == 0 && place.mine[index] != 0 {
                bits = place.page.take_returned(index, place.mine[index]);
            }
            while bits != 0 {
                if fruitless == MOST_FRUITLESS {
                    place.left[index] = bits;
                    return taken;
                }
                let slot = index * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let found = look(place.drains[slot] as usize);
                taken += found.taken;
                place.has_moved |= found.taken > 0;
                fruitless += usize::from(found.taken == 0);
                if found.has_more {
                    place.page.note_returned(slot as u32);
                }
            }
            self.at = if index + 1 < place.mine.len() { (at, index + 1) } else { ((at + 1) % self.places.len(), 0) };
        }
        taken
    }
}

impl Worker {
    /// Drains the NFs with hints, or all.
    #[inline]
    pub(super) fn transmit(&mut self, all: bool) -> usize {
        let mut work = 0;
        for i in 0..self.feeders.len() {
            work += self.feeders[i].poll(&mut self.setup.plane, &self.setup.rx.registry);
        }
        if all || self.drains.len() <= MOST_LOOKED_AT {
            for i in 0..self.drains.len() {
                work += self.drain(i);
            }
            return work;
        }
        let mut returns = std::mem::take(&mut self.returns);
        work += returns.step(|drain| {
            let taken = self.drain(drain);
            let Drain { is_cut_off, consumer, .. } = &mut self.drains[drain];
            Found { taken, has_more: !*is_cut_off && consumer.available() != Ok(0) }
        });
        self.returns = returns;
        work
    }

    /// Takes what an NF returned, as far as there is room for it.
    #[inline]
    fn drain(&mut self, i: usize) -> usize {
        let mut work = 0;
        let plane = &mut self.setup.plane;
        let drain = &mut self.drains[i];
        if !drain.behind.is_empty() && drain.waits() {
            return 0;
        }
        // Two bursts, so that upstream never outpaces downstream.
        for _ in 0..2 {
            if plane.is_blocked() && plane.may_block(&drain.handle, drain.fills) {
                let has_packets = drain.consumer.available().is_ok_and(|packets| packets > 0);
                drain.hold_up(has_packets);
                break;
            }
            drain.hold_up(false);
            plane.filled = 0;
            let n = plane.forward(&self.setup.rx.registry, drain);
            work += n;
            if plane.filled != 0 {
                drain.fills |= plane.filled;
                // Many NFs may have more packets for a port than fit in its buffer.
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        page: CorePage,
        returns: Returns,
        packets: Vec<usize>,
        looks: Vec<usize>,
    }

    impl Rig {
        fn new(n: usize) -> Self {
            let (_memory, page) = CorePage::create(n as u32, true).unwrap();
            let mut returns = Returns::default();
            (0..n).for_each(|slot| returns.add(&page, slot as u32, slot));
            Self { page, returns, packets: vec![0; n], looks: vec![0; n] }
        }

        /// A round that takes at most two bursts of each. Returns rings read, and packets taken.
        fn round(&mut self) -> (usize, usize) {
            let mut looks = 0;
            let taken = self.returns.step(|drain| {
                looks += 1;
                self.looks[drain] += 1;
                let taken = self.packets[drain].min(2 * BURST);
                self.packets[drain] -= taken;
                Found { taken, has_more: self.packets[drain] > 0 }
            });
            (looks, taken)
        }

        fn say_all(&self) {
            (0..self.packets.len() as u32).for_each(|slot| self.page.note_returned(slot));
        }
    }

    #[test]
    fn those_that_said_so_are_looked_at_and_again_while_they_have_more() {
        let mut rig = Rig::new(200);
        assert_eq!(rig.round(), (0, 0));
        for slot in [3, 70, 199] {
            rig.packets[slot] = 65;
            rig.page.note_returned(slot as u32);
        }
        assert_eq!([rig.round(), rig.round(), rig.round()], [(3, 192), (3, 3), (0, 0)]);
        // However many have packets.
        rig.packets.fill(1);
        rig.say_all();
        assert_eq!([rig.round(), rig.round()], [(200, 200), (0, 0)]);
    }

    #[test]
    fn what_moved_on_a_page_is_said_once_and_of_that_page() {
        let mut rig = Rig::new(40);
        let (_memory, other) = CorePage::create(40, true).unwrap();
        assert!(!rig.returns.take_moved(&rig.page.clone()));
        rig.say_all();
        assert_eq!(rig.round(), (MOST_FRUITLESS, 0));
        assert!(!rig.returns.take_moved(&rig.page.clone()), "a hint is no packet");
        rig.packets[39] = 1;
        assert_eq!(rig.round().1, 1);
        assert!(!rig.returns.take_moved(&other));
        assert_eq!([(); 2].map(|()| rig.returns.take_moved(&rig.page.clone())), [true, false]);
    }

    #[test]
    fn one_that_says_of_all_that_they_returned_packets_costs_a_bounded_number_of_looks_and_delays_nobody_for_long() {
        let mut rig = Rig::new(900);
        rig.looks.fill(0);
        for _ in 0..100 {
            rig.say_all();
            // One that has packets all the time, among others of its word.
            rig.packets[500] += 1;
            let (looks, _) = rig.round();
            assert!(looks <= MOST_FRUITLESS + 1, "{looks}");
        }
        assert!(rig.packets[500] < 60, "{} wait", rig.packets[500]);
        let (least, most) = (rig.looks.iter().min(), rig.looks.iter().max());
        assert!(least >= Some(&3) && most <= Some(&5), "all in turn: {least:?} to {most:?}");
        // It ends: each hint is read once, and nothing more.
        rig.packets[500] = 0;
        let rest: usize = (0..100).map(|_| rig.round().0).sum();
        assert!(rest <= 900 + 64 && rig.round() == (0, 0), "{rest}");
    }
}
