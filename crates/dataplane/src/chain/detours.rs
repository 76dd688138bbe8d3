//! A thread's record of detours, so that an NF that sends packets everywhere costs no lock.
//!
//! NFs choose a detour for each packet. Each is asked of the registry once: its number is kept
//! while its path goes, a refusal until the registry frees paths. A set-associative table; nothing
//! that still holds is pushed out.
//!
//! # Limits
//! Where a set is full of paths, any other detour of it is asked of the registry each time. There
//! are twice as many places as the registry has detours, which makes that rare. With a refusal
//! among them, the registry is full, and the detour is refused without a question.

/// Most sets, and places of each.
const SETS: usize = 4096;
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

    /// What is known of a detour; `None`: the registry is to be asked. `holds` says whether an
    /// answer is still valid.
    #[inline]
    pub(super) fn find(&self, key: u64, holds: impl Fn(Detour) -> bool) -> Option<Detour> {
        let (mut is_full, mut refused) = (true, None);
        for place in &self.sets[self.set(key)] {
            match place.filter(|(_, answer)| holds(*answer)) {
                Some((known, answer)) if known == key => return Some(answer),
                Some((_, answer @ Detour::Refused(_))) => refused = Some(answer),
                Some(_) => {}
                None => is_full = false,
            }
        }
        refused.filter(|_| is_full)
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
    fn what_holds_stays_and_a_set_that_is_full_with_a_refusal_refuses() {
        let mut detours = Detours::new(1);
        let keys: Vec<u64> = (0..10).map(|nf| Detours::key(3, 1, nf)).collect();
        for (number, key) in (0..).zip(&keys[..8]) {
            assert_eq!(detours.find(*key, |_| true), None);
            detours.note(*key, Detour::Path(number), |_| true);
        }
        assert_eq!(detours.find(keys[8], |_| true), None, "all are paths, so there may be one for it");
        detours.note(keys[8], Detour::Path(8), |_| true);
        assert_eq!(detours.find(keys[8], |_| true), None, "it has pushed nothing out");
        assert!((0..8).all(|at| detours.find(keys[at], |_| true) == Some(Detour::Path(at as u32))));
        // One of them has ended.
        let holds = |answer: Detour| answer != Detour::Path(5);
        assert_eq!((detours.find(keys[5], holds), detours.find(keys[8], holds)), (None, None));
        detours.note(keys[8], Detour::Refused(7), holds);
        for at in [5, 8, 9] {
            assert_eq!(detours.find(keys[at], holds), Some(Detour::Refused(7)), "{at}");
        }
        assert_eq!(detours.find(keys[4], holds), Some(Detour::Path(4)));
    }

    #[test]
    fn detours_of_other_chains_ports_and_nfs_are_others() {
        let keys = [Detours::key(1, 0, 0), Detours::key(0, 1, 0), Detours::key(0, 0, 1), Detours::key(0, 0, 0)];
        let mut detours = Detours::new(64);
        for (number, key) in (0..).zip(keys) {
            detours.note(key, Detour::Path(number), |_| true);
        }
        for (number, key) in (0..).zip(keys) {
            assert_eq!(detours.find(key, |_| true), Some(Detour::Path(number)));
        }
    }
}
