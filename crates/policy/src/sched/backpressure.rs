//! Backpressure along chains: which chains are refused at entry, which NFs yield.
//!
//! # Problem
//! A packet that is dropped in front of a slow NF wastes the work of every NF before it, and the
//! CPU time of that work is missing where it would have helped. So a chain that passes a bottleneck
//! is refused at its entry, before any work, and the NFs before the bottleneck make room for it.
//!
//! # Terms and units
//! *Queue*: packets that wait for an NF, out of *ring*, the most that can. *Watermarks*: percent of
//! the ring. *Queueing time*: how long a packet that arrives now waits, in nanoseconds
//! ([`queueing_ns`]). *Bottleneck*: an NF in state [`QueueState::Throttle`]. *Throttled*: a chain
//! that passes a bottleneck. *Held*: an NF that must yield. NFs and chains are numbered from 0.
//!
//! # Approach
//! Two steps. [`QueueWatch`] finds bottlenecks, one small state machine for each NF:
//!
//! | from | to | when |
//! |---|---|---|
//! | clear | watch | queue ≥ high watermark |
//! | clear, watch | throttle | queue ≥ high watermark and queueing time > threshold |
//! | watch, throttle | clear | queue < low watermark |
//!
//! Between the watermarks nothing changes. A long queue that moves fast (a burst) is only watched.
//!
//! [`Pressure`] knows the chains and derives the consequences. A chain is throttled while any NF
//! that it visits is a bottleneck. An NF is held if it is no bottleneck itself and if, in every
//! chain that visits it, its last visit lies before the last visit of a bottleneck: running, it
//! could only lengthen queues that are too long.
//!
//! When an NF becomes or ceases to be a bottleneck, only its own chains are reviewed.
//!
//! # Limits
//! A throttle does not stop packets that are inside. Held NFs get no further, so rings between a
//! held NF and its bottleneck drain first; the caller must not hold an NF that has to stop. A
//! bottleneck is never held, even before another one: its own ring towards that one suspends it.
//!
//! Source: NFVnice, sections 3.3 (states, watermarks; chains are throttled, not NFs) and 4.3.

/// Limits of one NF's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// Queue length at which the NF becomes watched, in packets.
    pub high: u32,
    /// Queue length below which the NF is clear again, in packets.
    pub low: u32,
    /// Queueing time above which a watched NF is a bottleneck, in nanoseconds.
    pub queueing_ns: u64,
}

impl Watermarks {
    /// Limits for a ring of `ring` packets, from watermarks in percent of it. The high watermark is
    /// at least one packet; the low one is not above it.
    pub fn new(ring: u32, high_percent: u32, low_percent: u32, queueing_ns: u64) -> Self {
        let packets = |percent: u32| u32::try_from((u64::from(ring) * u64::from(percent)).div_ceil(100)).unwrap_or(u32::MAX);
        let high = packets(high_percent.min(100)).max(1);
        Self { high, low: packets(low_percent).min(high), queueing_ns }
    }
}

/// How long a packet that arrives now waits, in nanoseconds: the service of the packets before it
/// (if the service time is known, in nanoseconds a packet), and at least the age of the oldest.
pub fn queueing_ns(queue: u32, service_ns: Option<u64>, oldest_ns: u64) -> u64 {
    service_ns.map_or(0, |s| s.saturating_mul(u64::from(queue))).max(oldest_ns)
}

/// State of an NF's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueState {
    /// The queue is short.
    #[default]
    Clear,
    /// The queue is or was long, and moves.
    Watch,
    /// The NF is a bottleneck.
    Throttle,
}

/// The state machine of one NF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueWatch {
    state: QueueState,
}

impl QueueWatch {
    /// The state after the last step.
    pub fn state(&self) -> QueueState {
        self.state
    }

    /// Takes queue (packets) and queueing time (ns). True if the NF begins or ceases to be a
    /// bottleneck.
    #[inline]
    pub fn step(&mut self, limits: &Watermarks, queue: u32, queueing_ns: u64) -> bool {
        let before = self.state;
        self.state = match before {
            QueueState::Clear | QueueState::Watch if queue >= limits.high => match queueing_ns > limits.queueing_ns {
                true => QueueState::Throttle,
                false => QueueState::Watch,
            },
            QueueState::Watch | QueueState::Throttle if queue < limits.low => QueueState::Clear,
            same => same,
        };
        (before == QueueState::Throttle) != (self.state == QueueState::Throttle)
    }
}

#[derive(Debug, Clone, Copy)]
struct Visit {
    nf: u32,
    /// Place of its last visit, from 1.
    last: u32,
}

#[derive(Debug, Clone)]
struct Chain {
    /// Each NF of the chain once.
    visits: Box<[Visit]>,
    /// Place of the last visit of a bottleneck; 0 if there is none.
    bottleneck: u32,
    /// Whether it is in `changed_chains`.
    listed: bool,
}

#[derive(Debug, Clone, Default)]
struct Nf {
    /// Numbers of the chains that visit it, each once.
    chains: Vec<u32>,
    /// How many of them have a bottleneck after its last visit.
    before_bottleneck: u32,
    bottleneck: bool,
    held: bool,
    listed: bool,
}

impl Nf {
    fn must_hold(&self) -> bool {
        !self.bottleneck && !self.chains.is_empty() && self.before_bottleneck as usize == self.chains.len()
    }
}

/// All chains and bottlenecks, and which chains are throttled and which NFs are held.
#[derive(Debug, Clone)]
pub struct Pressure {
    chains: Vec<Chain>,
    nfs: Vec<Nf>,
    changed_chains: Vec<usize>,
    changed_nfs: Vec<usize>,
}

impl Pressure {
    /// For NFs 0 to `nfs` − 1, without bottlenecks. A chain lists NF numbers in the order of
    /// visits. An NF may be in many chains and several times in one; numbers from `nfs` on are
    /// ignored.
    pub fn new<C: AsRef<[usize]>>(nfs: usize, chains: &[C]) -> Self {
        let mut all = vec![Nf::default(); nfs];
        let chain = |(number, hops): (usize, &C)| {
            let mut visits: Vec<Visit> = Vec::new();
            for (place, nf) in hops.as_ref().iter().enumerate().filter(|(_, nf)| **nf < nfs) {
                let last = place as u32 + 1;
                match visits.iter_mut().find(|v| v.nf as usize == *nf) {
                    Some(visit) => visit.last = last,
                    None => {
                        all[*nf].chains.push(number as u32);
                        visits.push(Visit { nf: *nf as u32, last });
                    }
                }
            }
            Chain { visits: visits.into(), bottleneck: 0, listed: false }
        };
        let chains = chains.iter().enumerate().map(chain).collect();
        Self { chains, nfs: all, changed_chains: Vec::new(), changed_nfs: Vec::new() }
    }

    /// Sets whether an NF is a bottleneck; false if it was already so. Panics without such an NF.
    #[inline]
    pub fn set(&mut self, nf: usize, bottleneck: bool) -> bool {
        if self.nfs[nf].bottleneck == bottleneck {
            return false;
        }
        self.nfs[nf].bottleneck = bottleneck;
        self.settle(nf);
        // Taken out for the loop, because `review` borrows all of `self`.
        let chains = std::mem::take(&mut self.nfs[nf].chains);
        chains.iter().for_each(|chain| self.review(*chain as usize));
        self.nfs[nf].chains = chains;
        self.settle(nf);
        true
    }

    /// Whether a chain is to be refused at its entry. Panics if there is no such chain.
    #[inline]
    pub fn is_throttled(&self, chain: usize) -> bool {
        self.chains[chain].bottleneck > 0
    }

    /// Whether an NF is to yield. Panics if there is no such NF.
    #[inline]
    pub fn is_held(&self, nf: usize) -> bool {
        self.nfs[nf].held
    }

    /// Whether an NF is a bottleneck. Panics if there is no such NF.
    pub fn is_bottleneck(&self, nf: usize) -> bool {
        self.nfs[nf].bottleneck
    }

    /// Chains whose throttle changed (even back) since [`Pressure::forget_changes`], each once.
    pub fn changed_chains(&self) -> &[usize] {
        &self.changed_chains
    }

    /// NFs that may have become held or free since [`Pressure::forget_changes`], each once.
    pub fn changed_nfs(&self) -> &[usize] {
        &self.changed_nfs
    }

    /// Empties both lists of changes.
    pub fn forget_changes(&mut self) {
        self.changed_chains.drain(..).for_each(|chain| self.chains[chain].listed = false);
        self.changed_nfs.drain(..).for_each(|nf| self.nfs[nf].listed = false);
    }

    /// Finds a chain's last bottleneck again, and updates the NFs before it.
    fn review(&mut self, number: usize) {
        let chain = &mut self.chains[number];
        let old = chain.bottleneck;
        let places = chain.visits.iter().filter(|v| self.nfs[v.nf as usize].bottleneck).map(|v| v.last);
        let new = places.max().unwrap_or(0);
        chain.bottleneck = new;
        if (old == 0) != (new == 0) && !chain.listed {
            chain.listed = true;
            self.changed_chains.push(number);
        }
        if old == new {
            return;
        }
        for place in 0..self.chains[number].visits.len() {
            let visit = self.chains[number].visits[place];
            let nf = &mut self.nfs[visit.nf as usize];
            match (visit.last < old, visit.last < new) {
                (false, true) => nf.before_bottleneck += 1,
                (true, false) => nf.before_bottleneck -= 1,
                _ => continue,
            }
            self.settle(visit.nf as usize);
        }
    }

    fn settle(&mut self, number: usize) {
        let nf = &mut self.nfs[number];
        let held = nf.must_hold();
        if nf.held != held {
            nf.held = held;
            if !nf.listed {
                nf.listed = true;
                self.changed_nfs.push(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_packets() {
        assert_eq!(Watermarks::new(4096, 80, 60, 9), Watermarks { high: 3277, low: 2458, queueing_ns: 9 });
        assert_eq!(Watermarks::new(100, 100, 100, 0), Watermarks { high: 100, low: 100, queueing_ns: 0 });
        assert_eq!(Watermarks::new(10, 0, 50, 0), Watermarks { high: 1, low: 1, queueing_ns: 0 });
        assert_eq!(Watermarks::new(u32::MAX, 400, 400, 0).low, u32::MAX);
    }

    #[test]
    fn queueing_time_is_the_work_before_or_the_age_already_reached() {
        // 3,277 packets of 211 ns: 691 µs.
        assert_eq!(queueing_ns(3277, Some(211), 0), 691_447);
        assert_eq!(queueing_ns(10, Some(211), 500_000), 500_000);
        assert_eq!(queueing_ns(3277, None, 7), 7);
        assert_eq!(queueing_ns(u32::MAX, Some(u64::MAX), 0), u64::MAX);
    }

    #[test]
    fn states_follow_the_table() {
        use QueueState::{Clear, Throttle, Watch as Watching};
        let limits = Watermarks::new(100, 80, 60, 1000);
        let mut watch = QueueWatch::default();
        // Queue, queueing time, state afterwards.
        let steps = [
            (79, 9999, Clear),
            (80, 1000, Watching),
            (95, 500, Watching),
            (70, 9999, Watching),
            (80, 1001, Throttle),
            (60, 0, Throttle),
            (100, 0, Throttle),
            (59, 9999, Clear),
            (79, 9999, Clear),
            (100, 1001, Throttle),
            (0, 0, Clear),
            (90, 0, Watching),
            (59, 0, Clear),
        ];
        for (i, (queue, ns, state)) in steps.into_iter().enumerate() {
            let before = watch.state();
            let changed = watch.step(&limits, queue, ns);
            assert_eq!(watch.state(), state, "step {i}");
            assert_eq!(changed, (before == Throttle) != (state == Throttle), "step {i}");
        }
    }

    /// Throttled chains and held NFs.
    fn now(p: &Pressure) -> (Vec<usize>, Vec<usize>) {
        let throttled = (0..p.chains.len()).filter(|c| p.is_throttled(*c)).collect();
        (throttled, (0..p.nfs.len()).filter(|n| p.is_held(*n)).collect())
    }

    #[test]
    fn only_the_chains_that_pass_the_bottleneck_are_throttled() {
        // The paper's figure: chains A = 0→1→3, B = 0→2→4→3 (hot: 4), C = 2→4, D = 0→1.
        let mut p = Pressure::new(5, &[vec![0, 1, 3], vec![0, 2, 4, 3], vec![2, 4], vec![0, 1]]);
        assert!(p.set(4, true));
        // 2 has no other chains; 0 and 1 have; 3 comes after the bottleneck.
        assert_eq!(now(&p), (vec![1, 2], vec![2]));
        assert_eq!((p.changed_chains(), p.changed_nfs()), (&[1, 2][..], &[2][..]));
        assert!(!p.set(4, true));
        p.forget_changes();
        assert!(p.set(4, false));
        assert_eq!(now(&p), (vec![], vec![]));
        assert_eq!((p.changed_chains(), p.changed_nfs()), (&[1, 2][..], &[2][..]));
    }

    #[test]
    fn several_bottlenecks_in_a_chain() {
        let mut p = Pressure::new(5, &[vec![0, 1, 2, 3, 4]]);
        p.set(1, true);
        assert_eq!(now(&p), (vec![0], vec![0]));
        p.set(3, true);
        // 1 is a bottleneck and never held; 2 lies between the two.
        assert_eq!(now(&p), (vec![0], vec![0, 2]));
        p.set(1, false);
        assert_eq!(now(&p), (vec![0], vec![0, 1, 2]));
        p.forget_changes();
        p.set(3, false);
        assert_eq!((now(&p), p.changed_chains().len()), ((vec![], vec![]), 1));
    }

    #[test]
    fn an_nf_with_a_free_chain_is_not_held() {
        let mut p = Pressure::new(4, &[vec![0, 1], vec![0, 2], vec![0, 3]]);
        p.set(1, true);
        p.set(2, true);
        assert_eq!(now(&p), (vec![0, 1], vec![]));
        p.set(3, true);
        assert_eq!(now(&p), (vec![0, 1, 2], vec![0]));
        p.set(1, false);
        assert_eq!(now(&p), (vec![1, 2], vec![]));
    }

    #[test]
    fn an_nf_after_the_bottleneck_in_one_chain_runs_though_all_its_chains_are_throttled() {
        let mut p = Pressure::new(2, &[vec![0, 1], vec![1, 0]]);
        p.set(1, true);
        assert_eq!(now(&p), (vec![0, 1], vec![]));
    }

    #[test]
    fn an_nf_twice_in_a_chain() {
        // 0 comes before and after the bottleneck: what is behind must go on.
        let mut p = Pressure::new(3, &[vec![0, 1, 0, 2]]);
        p.set(1, true);
        assert_eq!(now(&p), (vec![0], vec![]));
        p.set(1, false);
        p.set(2, true);
        assert_eq!(now(&p), (vec![0], vec![0, 1]));
        p.set(2, false);
        // The bottleneck twice: 1 lies before its second visit.
        p.set(0, true);
        assert_eq!(now(&p), (vec![0], vec![1]));
        assert_eq!(now(&Pressure::new(1, &[[0usize, 0, 0]])), (vec![], vec![]));
    }

    #[test]
    fn nfs_without_chains_and_chains_without_nfs() {
        let mut p = Pressure::new(2, &[vec![], vec![7, 1]]);
        p.set(0, true);
        assert_eq!(now(&p), (vec![], vec![]));
        p.set(1, true);
        assert_eq!(now(&p), (vec![1], vec![]));
    }

    /// The rules of the module's documentation, without any state.
    fn by_the_rules(bottleneck: &[bool], chains: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
        let throttled = |c: &Vec<usize>| c.iter().any(|nf| bottleneck[*nf]);
        let before = |nf: usize, c: &Vec<usize>| {
            let last = c.iter().rposition(|n| *n == nf);
            c.iter().rposition(|n| bottleneck[*n]) > last
        };
        let held = |nf: &usize| {
            let mut mine = chains.iter().filter(|c| c.contains(nf)).peekable();
            !bottleneck[*nf] && mine.peek().is_some() && mine.all(|c| before(*nf, c))
        };
        ((0..chains.len()).filter(|c| throttled(&chains[*c])).collect(), (0..bottleneck.len()).filter(held).collect())
    }

    #[test]
    fn what_is_remembered_agrees_with_the_rules() {
        let mut z = 7u64;
        let mut random = |n: u64| {
            z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (z >> 33) % n
        };
        for _ in 0..200 {
            let nfs = 1 + random(8) as usize;
            let chains: Vec<Vec<usize>> =
                (0..random(8)).map(|_| (0..random(7)).map(|_| random(nfs as u64) as usize).collect()).collect();
            let mut p = Pressure::new(nfs, &chains);
            let mut bottleneck = vec![false; nfs];
            let mut seen = now(&p);
            for _ in 0..30 {
                let nf = random(nfs as u64) as usize;
                let to = random(2) == 1;
                assert_eq!(p.set(nf, to), bottleneck[nf] != to);
                bottleneck[nf] = to;
                let is = now(&p);
                assert_eq!(is, by_the_rules(&bottleneck, &chains), "{chains:?} {bottleneck:?}");
                let differs = |a: &[usize], b: &[usize], x: usize| a.contains(&x) != b.contains(&x);
                assert!((0..chains.len()).all(|c| !differs(&is.0, &seen.0, c) || p.changed_chains().contains(&c)));
                assert!((0..nfs).all(|n| !differs(&is.1, &seen.1, n) || p.changed_nfs().contains(&n)));
                if random(3) == 0 {
                    p.forget_changes();
                    seen = is;
                }
            }
        }
    }
}
