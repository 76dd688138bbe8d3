//! Server patterns: which slots a server can have at once.
//!
//! A *slot* is room for an instance: cores, and ways of its own class or (0) a place in the shared
//! class. A *pattern* is the slots of one server, whose cores, ways and classes suffice for all of
//! them. Given the worth of each slot, [`Bench`] finds the pattern of most worth by dynamic
//! programming over cores, classes and ways, and enumerates all patterns of nearly as much.

use std::collections::BTreeSet;

use sluice_slo::placement::ServerShape;

/// Cores and ways; 0 ways is a place in the shared class.
pub type Slot = (u32, u32);
/// The slots of a server, largest first.
pub type Pattern = Vec<Slot>;

/// Worth of slots, and the resulting tables for whole servers.
pub struct Bench<'a> {
    shape: &'a ServerShape,
    /// Slots with their own class and their worth; only sizes that an instance has.
    own: Vec<(Slot, f64)>,
    /// Places in the shared class, by cores.
    places: Vec<(Slot, f64)>,
    /// Classes that can be of use.
    classes: u32,
    /// Most worth of slots with their own classes, by cores, classes and ways.
    best: Vec<f64>,
    /// Most worth of places in the shared class, by cores.
    shared: Vec<f64>,
}

impl<'a> Bench<'a> {
    /// `worth(cores, ways)` for all slots in `slots`; worth never falls with the ways.
    pub fn new(shape: &'a ServerShape, slots: &[Slot], worth: impl Fn(Slot) -> f64) -> Self {
        let classes = shape.own_classes().min(shape.cores);
        let own = slots.iter().filter(|slot| slot.1 > 0).map(|slot| ((slot.0, slot.1.max(shape.min_ways)), worth(*slot)));
        let mut own: Vec<(Slot, f64)> = own.collect();
        own.sort_by_key(|slot| std::cmp::Reverse(slot.0));
        let places: Vec<(Slot, f64)> = slots.iter().filter(|slot| slot.1 == 0).map(|slot| (*slot, worth(*slot))).collect();
        let mut bench = Self { shape, own, places, classes, best: Vec::new(), shared: Vec::new() };
        bench.fill();
        bench
    }

    fn at(&self, cores: u32, classes: u32, ways: u32) -> usize {
        ((cores * (self.classes + 1) + classes) * (self.shape.ways() + 1) + ways) as usize
    }

    fn fill(&mut self) {
        let (cores, ways) = (self.shape.cores, self.shape.ways());
        self.best = vec![0.0; self.at(cores, self.classes, ways) + 1];
        for c in 1..=cores {
            for k in 1..=self.classes {
                for w in 1..=ways {
                    let fits = self.own.iter().filter(|((slot_cores, slot_ways), _)| *slot_cores <= c && *slot_ways <= w);
                    let values = fits
                        .map(|((slot_cores, slot_ways), value)| value + self.best[self.at(c - slot_cores, k - 1, w - slot_ways)]);
                    let best = values.fold(0.0, f64::max);
                    let at = self.at(c, k, w);
                    self.best[at] = best;
                }
            }
        }
        self.shared = vec![0.0; cores as usize + 1];
        for c in 1..=cores {
            let fits = self.places.iter().filter(|(slot, _)| slot.0 <= c);
            let best = fits.map(|(slot, value)| value + self.shared[(c - slot.0) as usize]).fold(0.0, f64::max);
            self.shared[c as usize] = best;
        }
    }

    /// Classes and ways left for own classes if `places` cores are in the shared class; none if
    /// there can be no shared class.
    fn beside(&self, places: u32) -> Option<(u32, u32)> {
        match places {
            0 => Some((self.classes, self.shape.ways())),
            _ => {
                let classes = (self.shape.own_classes() - 1).min(self.classes);
                Some((classes, self.shape.ways().checked_sub(self.shape.min_ways)?))
            }
        }
    }

    /// The most worth, and its pattern.
    pub fn most(&self) -> (f64, Pattern) {
        let mut most = (0.0, 0);
        for places in 0..=self.shape.cores {
            let Some((classes, ways)) = self.beside(places) else { continue };
            let value = self.best[self.at(self.shape.cores - places, classes, ways)] + self.shared[places as usize];
            if value > most.0 {
                most = (value, places);
            }
        }
        let (value, places) = most;
        let mut pattern = Pattern::new();
        let (mut classes, mut ways) = self.beside(places).unwrap_or((0, 0));
        let mut cores = self.shape.cores - places;
        while let Some(((slot_cores, slot_ways), _)) = self.own.iter().find(|((slot_cores, slot_ways), value)| {
            *slot_cores <= cores && *slot_ways <= ways && classes > 0 && *value > 0.0 && {
                let rest = self.best[self.at(cores - slot_cores, classes - 1, ways - slot_ways)];
                value + rest >= self.best[self.at(cores, classes, ways)] - 1e-12
            }
        }) {
            pattern.push((*slot_cores, *slot_ways));
            (cores, ways, classes) = (cores - slot_cores, ways - slot_ways, classes - 1);
        }
        let mut left = places;
        while let Some((slot, value)) = self.places.iter().find(|(slot, value)| {
            slot.0 <= left && *value > 0.0 && value + self.shared[(left - slot.0) as usize] >= self.shared[left as usize] - 1e-12
        }) {
            debug_assert!(*value > 0.0);
            pattern.push(*slot);
            left -= slot.0;
        }
        (value, self.filled(pattern))
    }

    /// Maximal patterns of at least this worth, at most `most` of them, and whether these are all.
    pub fn at_least(&self, worth: f64, most: usize) -> (Vec<Pattern>, bool) {
        let mut found = BTreeSet::new();
        let mut steps = most.saturating_mul(200);
        for places in 0..=self.shape.cores {
            let Some((classes, ways)) = self.beside(places) else { continue };
            // Every way to fill the places is enumerated, as their kinds may differ.
            for filling in self.fillings(places) {
                let value: f64 = filling.iter().map(|i| self.places[*i].1).sum();
                let mut pattern: Pattern = filling.iter().map(|i| self.places[*i].0).collect();
                let mut walk = Walk { bench: self, worth, most, found: &mut found, steps: &mut steps };
                if !walk.go(0, (self.shape.cores - places, classes, ways), value, &mut pattern) {
                    return (found.into_iter().collect(), false);
                }
            }
        }
        (found.into_iter().collect(), true)
    }

    /// Ways to use exactly this many cores for places in the shared class, as indices.
    fn fillings(&self, cores: u32) -> Vec<Vec<usize>> {
        fn go(places: &[(Slot, f64)], from: usize, cores: u32, now: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
            if cores == 0 {
                all.push(now.clone());
            }
            for i in from..places.len() {
                if places[i].0.0 <= cores && cores > 0 {
                    now.push(i);
                    go(places, i, cores - places[i].0.0, now, all);
                    now.pop();
                }
            }
        }
        let mut all = Vec::new();
        go(&self.places, 0, cores, &mut Vec::new(), &mut all);
        all
    }

    /// The pattern, extended while there is room: with more slots, and larger ones.
    pub fn filled(&self, mut pattern: Pattern) -> Pattern {
        let used = |pattern: &Pattern| {
            let own = pattern.iter().filter(|slot| slot.1 > 0);
            let shared = pattern.iter().any(|slot| slot.1 == 0);
            let classes = own.clone().count() as u32 + u32::from(shared);
            let ways = own.map(|slot| slot.1).sum::<u32>() + if shared { self.shape.min_ways } else { 0 };
            (pattern.iter().map(|slot| slot.0).sum::<u32>(), classes, ways)
        };
        let fits = |pattern: &Pattern| {
            let (cores, classes, ways) = used(pattern);
            cores <= self.shape.cores && classes <= self.shape.own_classes() && ways <= self.shape.ways()
        };
        loop {
            let more = self.places.iter().chain(&self.own).map(|(slot, _)| *slot).find(|slot| {
                pattern.push(*slot);
                let has_room = fits(&pattern);
                pattern.pop();
                has_room
            });
            let Some(slot) = more else { break };
            // The smallest that has room: the rest goes to the largest slot.
            let smallest = self.own.iter().rev().map(|(other, _)| *other).find(|other| other.0 == slot.0);
            pattern.push(if slot.1 == 0 { slot } else { smallest.unwrap_or(slot) });
        }
        pattern.sort_unstable_by(|a, b| b.cmp(a));
        for i in 0..pattern.len() {
            let (cores, ways) = pattern[i];
            let larger = self.own.iter().map(|(slot, _)| *slot).filter(|slot| slot.0 == cores && slot.1 > ways && ways > 0);
            for slot in larger {
                let was = std::mem::replace(&mut pattern[i], slot);
                if fits(&pattern) {
                    break;
                }
                pattern[i] = was;
            }
        }
        pattern.sort_unstable_by(|a, b| b.cmp(a));
        pattern
    }
}

struct Walk<'a, 'b> {
    bench: &'a Bench<'a>,
    worth: f64,
    most: usize,
    found: &'b mut BTreeSet<Pattern>,
    steps: &'b mut usize,
}

impl Walk<'_, '_> {
    /// Adds slots from index `from` on; false if there are too many patterns.
    fn go(&mut self, from: usize, left: (u32, u32, u32), value: f64, pattern: &mut Pattern) -> bool {
        if *self.steps == 0 {
            return false;
        }
        *self.steps -= 1;
        let (cores, classes, ways) = left;
        if value >= self.worth {
            self.found.insert(self.bench.filled(pattern.clone()));
            if self.found.len() > self.most {
                return false;
            }
        }
        if classes == 0 {
            return true;
        }
        for i in from..self.bench.own.len() {
            let ((slot_cores, slot_ways), slot_value) = self.bench.own[i];
            if slot_cores > cores || slot_ways > ways {
                continue;
            }
            let rest = (cores - slot_cores, classes - 1, ways - slot_ways);
            if value + slot_value + self.bench.best[self.bench.at(rest.0, rest.1, rest.2)] < self.worth {
                continue;
            }
            pattern.push((slot_cores, slot_ways));
            let go_on = self.go(i, rest, value + slot_value, pattern);
            pattern.pop();
            if !go_on {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_slo::examples::shape;

    fn slots(cores: &[u32], ways: std::ops::RangeInclusive<u32>) -> Vec<Slot> {
        cores.iter().flat_map(|c| ways.clone().map(|w| (*c, w))).collect()
    }

    fn fits(shape: &ServerShape, pattern: &Pattern) -> bool {
        let shared = pattern.iter().any(|slot| slot.1 == 0);
        let ways: u32 = pattern.iter().map(|slot| slot.1).sum();
        let classes = pattern.iter().filter(|slot| slot.1 > 0).count() as u32 + u32::from(shared);
        pattern.iter().map(|slot| slot.0).sum::<u32>() <= shape.cores
            && ways + if shared { shape.min_ways } else { 0 } <= shape.ways()
            && classes <= shape.own_classes()
    }

    #[test]
    fn all_patterns_of_the_paper_s_server() {
        let shape = shape();
        let slots = slots(&[1], 1..=18);
        let bench = Bench::new(&shape, &slots, |_| 0.0);
        let all = bench.at_least(0.0, 10_000).0;
        // Partitions of 18 into at most 9 parts.
        assert!(all.iter().all(|pattern| pattern.iter().map(|slot| slot.1).sum::<u32>() == 18 && fits(&shape, pattern)));
        // Fewer than all of them: a pattern with idle cores and a divisible slot is filled up to
        // another one.
        assert!(all.len() >= 30 && all.len() <= 385, "{}", all.len());
    }

    #[test]
    fn the_best_pattern_is_the_best_of_all() {
        for (classes, min_ways, kinds) in [(16, 1, &[1][..]), (5, 1, &[1, 3]), (4, 2, &[1, 2])] {
            let shape = ServerShape { classes, min_ways, cores: 6, llc_ways: 11, ..shape() };
            let slots = slots(kinds, 0..=9);
            let worth = |slot: Slot| f64::from(slot.0) * 0.05 + f64::from(slot.1).powf(0.7) * 0.1 * (1.0 + 0.3 * f64::from(slot.0));
            let bench = Bench::new(&shape, &slots, worth);
            let (value, pattern) = bench.most();
            assert!(fits(&shape, &pattern), "{pattern:?}");
            let sum = |pattern: &Pattern| pattern.iter().map(|slot| worth(*slot)).sum::<f64>();
            assert!(sum(&pattern) >= value - 1e-9);
            let all = bench.at_least(0.0, 100_000).0;
            let best = all.iter().map(sum).fold(0.0, f64::max);
            assert!((best - value).abs() < 1e-9, "{best} {value}");
            assert!(all.iter().all(|pattern| fits(&shape, pattern)));
        }
    }
}
