//! Packing of NFs on cores.
//!
//! # Problem
//! NFs that share a core cost less than a core each, while their loads fit; beyond that queues
//! grow. Wanted are as few cores as carry everything with a margin, neighbours that do not evict
//! each other from the core's caches, and few moves, because a move loses the cache's contents.
//!
//! # Terms and units
//! *Load*: what an NF needs, in cores ([`super::load`]). *Capacity*: how much of a core may be
//! planned, 1 − margin. *Sensitive*: an NF whose cost grows when its data leave the caches.
//! *Conflict*: a pair of sensitive NFs on one core. *Move*: an NF that is not where it was.
//!
//! # Approach
//! Bin packing for, in this order, fewest cores, fewest conflicts, fewest moves.
//! 1. The least number of cores is the largest of three lower bounds: the sum of loads over the
//!    capacity, the NFs of more than half a capacity, and the cores with pinned NFs. From there up,
//!    each number is tried: the present places, then best-fit decreasing, then a search of bounded
//!    length that places the largest first and never tries two equal cores.
//! 2. A packing that the search found is laid over the cores so that most load stays where it is.
//! 3. Single moves and swaps that lower conflicts, then moves, are made while there are any.
//!
//! # Limits
//! The number of cores is proved least if [`Packing::is_least`]; the search ends without a proof
//! after [`STEPS`] steps. Conflicts and moves are a local optimum. An NF that needs more than a
//! core's capacity cannot be packed: it needs more instances.
//!
//! Source: UNiS (Anthony and Bai), its future work; best-fit decreasing: D. S. Johnson,
//! "Near-optimal bin packing algorithms", 1973.

/// Steps of the search for one number of cores.
pub const STEPS: u32 = 200_000;
/// Loads closer than this are equal, in cores.
const EPSILON: f64 = 1e-9;

/// An NF to be placed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Item {
    /// Its load, in cores.
    pub load: f64,
    /// Whether its cost grows when its data leave the caches.
    pub sensitive: bool,
    /// Its present core, as an index into the list of cores.
    pub at: Option<usize>,
    /// It must stay where it is.
    pub pinned: bool,
}

/// The cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cores {
    /// How many there are.
    pub count: usize,
    /// How much of each may be planned, 0 to 1.
    pub capacity: f64,
}

/// A place for each item.
#[derive(Debug, Clone, PartialEq)]
pub struct Packing {
    /// The core of each item.
    pub at: Vec<usize>,
    /// Number of cores with an item.
    pub cores: usize,
    /// Pairs of sensitive items that share a core.
    pub conflicts: usize,
    /// Items that changed their core.
    pub moves: usize,
    /// It is proved that no packing has fewer cores.
    pub is_least: bool,
}

/// Why there is no packing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PackingError {
    /// A load is negative or not finite.
    #[error("the load of item {item} is {load}: a load is cores, 0 or more; measure it again")]
    Load {
        /// Index of the item.
        item: usize,
        /// Its load.
        load: f64,
    },
    /// One item is too much for a core.
    #[error("item {item} needs {load:.2} cores and a core may be planned up to {capacity:.2}: give its service more instances")]
    TooBig {
        /// Index of the item.
        item: usize,
        /// Its load.
        load: f64,
        /// Capacity of a core.
        capacity: f64,
    },
    /// An item is pinned to a core that is not in the list.
    #[error("item {item} has to stay on a core that is not in the list of cores: add the core, or let the item move")]
    Pinned {
        /// Index of the item.
        item: usize,
    },
    /// All items are too much for all cores.
    #[error(
        "{load:.2} cores are needed, and {cores} cores of which {capacity:.2} may be planned do not hold them: add cores, or lower the margin"
    )]
    TooMuch {
        /// Sum of all loads.
        load: f64,
        /// Number of cores.
        cores: usize,
        /// Capacity of a core.
        capacity: f64,
    },
}

/// Packs items on as few cores as possible.
pub fn pack(items: &[Item], cores: Cores) -> Result<Packing, PackingError> {
    check(items, cores)?;
    let problem = Problem::new(items, cores);
    let least = problem.lower_bound();
    let mut proved = true;
    for count in least..=cores.count {
        match problem.fit(count) {
            Found::Yes(mut at) => {
                problem.improve(&mut at);
                return Ok(problem.packing(at, proved));
            }
            Found::No => {}
            Found::Unknown => proved = false,
        }
    }
    Err(PackingError::TooMuch { load: items.iter().map(|i| i.load).sum(), cores: cores.count, capacity: cores.capacity })
}

/// The packing as it is; None if a core is over its capacity or an item has no core.
pub fn as_it_is(items: &[Item], cores: Cores) -> Option<Packing> {
    let problem = Problem::new(items, cores);
    let at: Vec<usize> = items.iter().map(|item| item.at.filter(|at| *at < cores.count)).collect::<Option<_>>()?;
    problem.loads(&at).iter().all(|load| problem.fits(*load)).then(|| problem.packing(at, false))
}

fn check(items: &[Item], cores: Cores) -> Result<(), PackingError> {
    for (i, item) in items.iter().enumerate() {
        if !(item.load >= 0.0 && item.load.is_finite()) {
            return Err(PackingError::Load { item: i, load: item.load });
        }
        if item.load > cores.capacity + EPSILON {
            return Err(PackingError::TooBig { item: i, load: item.load, capacity: cores.capacity });
        }
        if item.pinned && item.at.is_none_or(|at| at >= cores.count) {
            return Err(PackingError::Pinned { item: i });
        }
    }
    Ok(())
}

enum Found {
    Yes(Vec<usize>),
    No,
    Unknown,
}

struct Problem<'a> {
    items: &'a [Item],
    cores: Cores,
    /// Items that may move, the largest first.
    order: Vec<usize>,
}

impl<'a> Problem<'a> {
    fn new(items: &'a [Item], cores: Cores) -> Self {
        let mut order: Vec<usize> = (0..items.len()).filter(|i| !items[*i].pinned).collect();
        order.sort_by(|a, b| items[*b].load.total_cmp(&items[*a].load));
        Self { items, cores, order }
    }

    fn fits(&self, load: f64) -> bool {
        load <= self.cores.capacity + EPSILON
    }

    /// Least number of cores that any packing needs.
    fn lower_bound(&self) -> usize {
        if self.items.is_empty() {
            return 0;
        }
        let sum: f64 = self.items.iter().map(|i| i.load).sum();
        let by_sum = ((sum - EPSILON) / self.cores.capacity).ceil().max(1.0) as usize;
        let large = self.items.iter().filter(|i| i.load > self.cores.capacity / 2.0 + EPSILON).count();
        let mut pinned: Vec<usize> = self.items.iter().filter(|i| i.pinned).filter_map(|i| i.at).collect();
        pinned.sort_unstable();
        pinned.dedup();
        by_sum.max(large).max(pinned.len())
    }

    fn pinned(&self) -> Vec<f64> {
        let mut loads = vec![0.0; self.cores.count];
        for item in self.items.iter().filter(|i| i.pinned) {
            loads[item.at.expect("checked before")] += item.load;
        }
        loads
    }

    fn loads(&self, at: &[usize]) -> Vec<f64> {
        let mut loads = vec![0.0; self.cores.count];
        at.iter().zip(self.items).for_each(|(core, item)| loads[*core] += item.load);
        loads
    }

    /// The `count` cores to use: those with pinned items, then those with the highest present load.
    fn chosen(&self, count: usize) -> Vec<usize> {
        let mut now = vec![0.0; self.cores.count];
        let mut is_pinned = vec![false; self.cores.count];
        for item in self.items {
            if let Some(at) = item.at.filter(|at| *at < self.cores.count) {
                now[at] += item.load.max(EPSILON);
                is_pinned[at] |= item.pinned;
            }
        }
        let mut cores: Vec<usize> = (0..self.cores.count).collect();
        cores.sort_by(|a, b| is_pinned[*b].cmp(&is_pinned[*a]).then(now[*b].total_cmp(&now[*a])).then(a.cmp(b)));
        cores.truncate(count);
        cores
    }

    fn fit(&self, count: usize) -> Found {
        let cores = self.chosen(count);
        let pinned = self.pinned();
        if pinned.iter().any(|load| !self.fits(*load)) {
            return Found::No;
        }
        let stays = |item: &Item| item.at.filter(|at| cores.contains(at));
        if let Some(at) = self.items.iter().map(stays).collect::<Option<Vec<usize>>>()
            && self.loads(&at).iter().all(|load| self.fits(*load))
        {
            return Found::Yes(at);
        }
        if let Some(at) = self.best_fit(&cores, pinned.clone()) {
            return Found::Yes(at);
        }
        let mut at: Vec<usize> = self.items.iter().map(|i| i.at.unwrap_or(0)).collect();
        let mut steps = STEPS;
        let mut loads = pinned;
        match self.search(0, &cores, &mut loads, &mut at, &mut steps) {
            true => {
                self.stay(&cores, &mut at);
                Found::Yes(at)
            }
            false if steps == 0 => Found::Unknown,
            false => Found::No,
        }
    }

    /// Best-fit decreasing: an item stays if it fits, else goes where the least capacity is left.
    fn best_fit(&self, cores: &[usize], mut loads: Vec<f64>) -> Option<Vec<usize>> {
        let mut at: Vec<usize> = self.items.iter().map(|i| i.at.unwrap_or(0)).collect();
        for i in &self.order {
            let item = &self.items[*i];
            let fitting = cores.iter().copied().filter(|core| self.fits(loads[*core] + item.load));
            let core = fitting.max_by(|a, b| {
                (Some(*a) == item.at).cmp(&(Some(*b) == item.at)).then(loads[*a].total_cmp(&loads[*b])).then(b.cmp(a))
            })?;
            loads[core] += item.load;
            at[*i] = core;
        }
        Some(at)
    }

    /// Places the items from `from` on, in order. False if they do not fit or no steps are left.
    fn search(&self, from: usize, cores: &[usize], loads: &mut [f64], at: &mut [usize], steps: &mut u32) -> bool {
        let Some(i) = self.order.get(from) else { return true };
        let item = &self.items[*i];
        for (place, core) in cores.iter().copied().enumerate() {
            // Equally full cores are equivalent.
            let is_known = cores[..place].iter().any(|other| (loads[*other] - loads[core]).abs() < EPSILON);
            if is_known || !self.fits(loads[core] + item.load) {
                continue;
            }
            if *steps == 0 {
                return false;
            }
            *steps -= 1;
            loads[core] += item.load;
            at[*i] = core;
            if self.search(from + 1, cores, loads, at, steps) {
                return true;
            }
            loads[core] -= item.load;
        }
        false
    }

    /// Lays groups over the cores so that most load stays in place. Groups with a pinned item stay.
    fn stay(&self, cores: &[usize], at: &mut [usize]) {
        let has_pinned = |core: usize| self.items.iter().any(|item| item.pinned && item.at == Some(core));
        let mut gains: Vec<(f64, usize, usize)> = Vec::new();
        for group in cores.iter().copied().filter(|core| !has_pinned(*core)) {
            for core in cores.iter().copied().filter(|core| !has_pinned(*core)) {
                let stays =
                    |(i, now): (usize, &usize)| (*now == group && self.items[i].at == Some(core)).then_some(self.items[i].load);
                gains.push((at.iter().enumerate().filter_map(stays).sum(), group, core));
            }
        }
        gains.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut new: Vec<Option<usize>> = vec![None; self.cores.count];
        let mut taken = vec![false; self.cores.count];
        for (_, group, core) in gains {
            if new[group].is_none() && !taken[core] {
                (new[group], taken[core]) = (Some(core), true);
            }
        }
        at.iter_mut().for_each(|core| *core = new[*core].unwrap_or(*core));
    }

    /// Conflicts and moves, compared in this order.
    fn score(&self, at: &[usize]) -> (usize, usize) {
        let mut sensitive = vec![0usize; self.cores.count];
        let mut moves = 0;
        for (item, core) in self.items.iter().zip(at) {
            sensitive[*core] += usize::from(item.sensitive);
            moves += usize::from(item.at.is_some_and(|was| was != *core));
        }
        (sensitive.iter().map(|n| n * n.saturating_sub(1) / 2).sum(), moves)
    }

    /// Makes single moves and swaps between the used cores while they lower the score.
    fn improve(&self, at: &mut [usize]) {
        let mut used: Vec<usize> = at.to_vec();
        used.sort_unstable();
        used.dedup();
        let mut loads = self.loads(at);
        let mut score = self.score(at);
        while score != (0, 0) {
            let Some((a, b)) = self.step(at, &used, &loads, score) else { return };
            match b {
                To::Core(core) => at[a] = core,
                To::Item(b) => at.swap(a, b),
            }
            loads = self.loads(at);
            score = self.score(at);
        }
    }

    /// Finds a move or swap that lowers the score.
    fn step(&self, at: &mut [usize], used: &[usize], loads: &[f64], score: (usize, usize)) -> Option<(usize, To)> {
        for (place, a) in self.order.iter().copied().enumerate() {
            let (from, load) = (at[a], self.items[a].load);
            for core in used.iter().copied().filter(|core| *core != from && self.fits(loads[*core] + load)) {
                at[a] = core;
                let better = self.score(at) < score;
                at[a] = from;
                if better {
                    return Some((a, To::Core(core)));
                }
            }
            for b in self.order[place + 1..].iter().copied() {
                if at[b] == from {
                    continue;
                }
                let by = load - self.items[b].load;
                if !self.fits(loads[at[b]] + by) || !self.fits(loads[from] - by) {
                    continue;
                }
                at.swap(a, b);
                let better = self.score(at) < score;
                at.swap(a, b);
                if better {
                    return Some((a, To::Item(b)));
                }
            }
        }
        None
    }

    fn packing(&self, at: Vec<usize>, is_least: bool) -> Packing {
        let mut used = at.clone();
        used.sort_unstable();
        used.dedup();
        let (conflicts, moves) = self.score(&at);
        Packing { cores: used.len(), conflicts, moves, is_least: is_least || used.len() == self.lower_bound(), at }
    }
}

enum To {
    Core(usize),
    Item(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(load: f64) -> Item {
        Item { load, ..Item::default() }
    }

    fn at(load: f64, core: usize) -> Item {
        Item { load, at: Some(core), ..Item::default() }
    }

    fn cores(count: usize) -> Cores {
        Cores { count, capacity: 0.9 }
    }

    fn assert_valid(items: &[Item], cores: Cores, packing: &Packing) {
        let mut loads = vec![0.0; cores.count];
        packing.at.iter().zip(items).for_each(|(core, item)| loads[*core] += item.load);
        assert!(loads.iter().all(|load| *load <= cores.capacity + 1e-6), "{loads:?}");
        assert!(items.iter().zip(&packing.at).all(|(item, core)| !item.pinned || item.at == Some(*core)));
        assert_eq!(packing.cores, loads.iter().zip(0..).filter(|(_, core)| packing.at.contains(core)).count());
    }

    #[test]
    fn as_few_cores_as_the_loads_need() {
        // 0.5 + 0.4, 0.6 + 0.3, 0.45 + 0.45: three full cores of 0.9.
        let items: Vec<Item> = [0.5, 0.6, 0.45, 0.3, 0.45, 0.4].map(load).to_vec();
        let packing = pack(&items, cores(8)).unwrap();
        assert_valid(&items, cores(8), &packing);
        assert_eq!((packing.cores, packing.is_least), (3, true));
        assert_eq!(pack(&[], cores(2)).unwrap().cores, 0);
        assert_eq!(pack(&[load(0.0), load(0.0)], cores(2)).unwrap().cores, 1);
    }

    #[test]
    fn the_search_finds_what_best_fit_does_not() {
        // In cores of 1: best-fit decreasing puts 0.42 beside 0.5 and needs three.
        let items: Vec<Item> = [0.5, 0.42, 0.3, 0.28, 0.3, 0.2].map(load).to_vec();
        let all = Cores { count: 3, capacity: 1.0 };
        let problem = Problem::new(&items, all);
        assert_eq!(problem.best_fit(&[0, 1], vec![0.0; 3]), None);
        let packing = pack(&items, all).unwrap();
        assert_valid(&items, all, &packing);
        assert_eq!((packing.cores, packing.is_least), (2, true));
    }

    #[test]
    fn a_core_more_is_proved_to_be_needed() {
        // Only two and two fit.
        let items: Vec<Item> = [0.45, 0.46, 0.44, 0.43].map(load).to_vec();
        let packing = pack(&items, cores(4)).unwrap();
        assert_eq!((packing.cores, packing.is_least), (2, true));
        let items: Vec<Item> = [0.4, 0.4, 0.4, 0.4, 0.19].map(load).to_vec();
        let packing = pack(&items, cores(4)).unwrap();
        assert_valid(&items, cores(4), &packing);
        assert_eq!((packing.cores, packing.is_least), (3, true));
    }

    #[test]
    fn one_that_fits_where_it_is_stays() {
        let items = [at(0.3, 2), at(0.3, 2), at(0.25, 2)];
        let packing = pack(&items, cores(4)).unwrap();
        assert_eq!((packing.at, packing.moves), (vec![2, 2, 2], 0));
        // Loads fell: the smaller group joins the larger one.
        let items = [at(0.3, 1), at(0.3, 1), at(0.2, 3)];
        let packing = pack(&items, cores(4)).unwrap();
        assert_eq!((packing.at, packing.moves), (vec![1, 1, 1], 1));
        // Loads rose: exactly one leaves.
        let items = [at(0.5, 1), at(0.3, 1), at(0.3, 1)];
        let packing = pack(&items, cores(4)).unwrap();
        assert_valid(&items, cores(4), &packing);
        assert_eq!((packing.cores, packing.moves), (2, 1));
    }

    #[test]
    fn sensitive_neighbours_are_kept_apart_where_that_costs_no_core() {
        let sensitive = |load, core| Item { sensitive: true, ..at(load, core) };
        let items = [sensitive(0.4, 0), sensitive(0.4, 0), at(0.4, 1), at(0.4, 1)];
        let packing = pack(&items, cores(2)).unwrap();
        assert_valid(&items, cores(2), &packing);
        assert_eq!((packing.cores, packing.conflicts, packing.moves), (2, 0, 2));
        // Together they need one core only.
        let packing = pack(&[sensitive(0.4, 0), sensitive(0.4, 1)], cores(2)).unwrap();
        assert_eq!((packing.cores, packing.conflicts), (1, 1));
    }

    #[test]
    fn one_that_is_pinned_stays() {
        let pinned = |load, core| Item { pinned: true, ..at(load, core) };
        let items = [pinned(0.2, 3), at(0.2, 0), at(0.6, 0), pinned(0.3, 1)];
        let packing = pack(&items, cores(4)).unwrap();
        assert_valid(&items, cores(4), &packing);
        assert_eq!(packing.cores, 2);
        assert_eq!(pack(&[pinned(0.2, 4)], cores(4)), Err(PackingError::Pinned { item: 0 }));
        let both = [pinned(0.5, 0), pinned(0.5, 0)];
        assert!(matches!(pack(&both, cores(4)), Err(PackingError::TooMuch { .. })));
    }

    #[test]
    fn what_cannot_be_packed_is_named() {
        assert_eq!(pack(&[load(0.2), load(0.95)], cores(4)), Err(PackingError::TooBig { item: 1, load: 0.95, capacity: 0.9 }));
        let got = pack(&[load(0.8), load(0.8), load(0.8)], cores(2));
        assert!(matches!(got, Err(PackingError::TooMuch { cores: 2, .. })), "{got:?}");
        assert!(matches!(pack(&[load(f64::NAN)], cores(2)), Err(PackingError::Load { item: 0, .. })));
    }

    #[test]
    fn as_it_is_says_whether_all_is_well() {
        let items = [at(0.3, 0), at(0.3, 1)];
        assert_eq!(as_it_is(&items, cores(2)).map(|p| (p.cores, p.is_least)), Some((2, false)));
        assert_eq!(as_it_is(&[at(0.6, 0), at(0.4, 0)], cores(2)), None);
        assert_eq!(as_it_is(&[load(0.1)], cores(2)), None);
    }

    #[test]
    fn many_are_packed_near_the_bound() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(u32::MAX >> 1)
        };
        for _ in 0..20 {
            let items: Vec<Item> = (0..200).map(|_| load(0.02 + random() * 0.4)).collect();
            let packing = pack(&items, cores(200)).unwrap();
            assert_valid(&items, cores(200), &packing);
            let bound = Problem::new(&items, cores(200)).lower_bound();
            assert!(packing.cores <= bound + 1, "{} cores, {bound} at least", packing.cores);
        }
    }
}
