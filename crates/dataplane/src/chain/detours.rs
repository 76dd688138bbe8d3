//! A thread's record of detours, so that an NF that sends packets everywhere costs no lock.
//!
//! NFs choose a detour for each packet. Each is asked of the registry once: its number is kept
//! while its path goes, a refusal until the registry frees paths. A set-associative table; nothing
//! that still holds is pushed out.
//!
//! # Limits
//! A detour whose set is full is refused without a question, until something in the set ends.

/// Most sets, and places of each.
const SETS: usize = 1024;
const PLACES: usize = 8;

/// What the registry said of a detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detour {
    /// Its path has this number.
    Path(u32),
    /// There was no place for it, after this number of [frees](super::PathRegistry::free).
    Refused(u32),
}

/// The record.
#[derive(Debug)]
pub(super) struct Detours {
    sets: Vec<[Option<(u64, Detour)>; PLACES]>,
}

impl Detours {
    /// A record for about `most` detours; a power of two.
    pub(super) fn new(most: usize) -> Self {
        Self { sets: vec![[None; PLACES]; (most / PLACES).clamp(1, SETS)] }
    }

    /// The key of a detour. The version stands for the chain.
    pub(super) fn key(version: u32, ingress: u16, nf: u16) -> u64 {
        u64::from(version) << 32 | u64::from(ingress) << 16 | u64::from(nf)
    }

    fn set(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.sets.len() - 1)
    }

    /// What is known of a detour. `None`: the registry is to be asked, and there is a place for
    /// its answer. `holds` says whether an answer is still valid, `full` is the one of a full set.
    #[inline]
    pub(super) fn find(&self, key: u64, holds: impl Fn(Detour) -> bool, full: Detour) -> Option<Detour> {
        let mut is_full = true;
        for place in &self.sets[self.set(key)] {
            match place.filter(|(_, answer)| holds(*answer)) {
                Some((known, answer)) if known == key => return Some(answer),
                Some(_) => {}
                None => is_full = false,
            }
        }
        is_full.then_some(full)
    }

    /// Notes an answer in a place whose own does not hold.
    pub(super) fn note(&mut self, key: u64, answer: Detour, holds: impl Fn(Detour) -> bool) {
        let at = self.set(key);
        let place = self.sets[at].iter_mut().find(|place| !place.is_some_and(|(_, old)| holds(old)));
        if let Some(place) = place {
            *place = Some((key, answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_stays_and_a_full_set_refuses() {
        let mut detours = Detours::new(1);
        let full = Detour::Refused(7);
        let keys: Vec<u64> = (0..9).map(|nf| Detours::key(3, 1, nf)).collect();
        for (number, key) in (0..).zip(&keys[..8]) {
            assert_eq!(detours.find(*key, |_| true, full), None);
            detours.note(*key, Detour::Path(number), |_| true);
        }
        assert_eq!(detours.find(keys[8], |_| true, full), Some(full));
        detours.note(keys[8], Detour::Path(8), |_| true);
        assert_eq!(detours.find(keys[8], |_| true, full), Some(full), "it has pushed nothing out");
        assert!((0..8).all(|at| detours.find(keys[at], |_| true, full) == Some(Detour::Path(at as u32))));
        // One of them has ended.
        let holds = |answer: Detour| answer != Detour::Path(5);
        assert_eq!((detours.find(keys[5], holds, full), detours.find(keys[8], holds, full)), (None, None));
        detours.note(keys[8], Detour::Path(8), holds);
        assert_eq!(detours.find(keys[8], holds, full), Some(Detour::Path(8)));
        assert_eq!(detours.find(keys[5], holds, full), Some(full));
    }

    #[test]
    fn detours_of_other_chains_ports_and_nfs_are_others() {
        let keys = [Detours::key(1, 0, 0), Detours::key(0, 1, 0), Detours::key(0, 0, 1), Detours::key(0, 0, 0)];
        let mut detours = Detours::new(64);
        for (number, key) in (0..).zip(keys) {
            detours.note(key, Detour::Path(number), |_| true);
        }
        for (number, key) in (0..).zip(keys) {
            assert_eq!(detours.find(key, |_| true, Detour::Refused(0)), Some(Detour::Path(number)));
        }
    }
}
