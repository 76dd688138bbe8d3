//! Target size of a pool.
//!
//! # Problem
//! With too few members new flows wait; with too many, memory lies idle. Flows come at a varying
//! rate, and hold a member from their first packet until it is clean, longer than the flow.
//!
//! # Terms and units
//! *Lifetime*: from assigned to idle again, in nanoseconds. *Unmet*: flows that found no idle
//! member. *Look*: the counts since the last one, about each tenth of a second.
//!
//! # Approach
//! Little's law: the mean number in use is rate × lifetime. Where flows come independently, the
//! number varies about its mean like its square root, so the target is the mean plus two of these,
//! and at least the mean × [`Sizing::MARGIN`]. Rate and lifetime are averaged, quickly where they
//! rise and slowly where they fall. An unmet flow outweighs the averages: then the target is at
//! least a quarter more than there are, at once. In a look, a pool grows by at most its own size
//! (by [`Sizing::FIRST`] if it is small) and shrinks by an eighth, once the target has been well
//! below the size for [`Sizing::PATIENCE_NS`].
//!
//! # Limits
//! Flows longer than the observation have no lifetime yet: until one ends, those in use count.
//!
//! Source: J. Little, "A proof for the queuing formula L = λW", Operations Research 9(3), 1961.

/// Counts of a pool, since its start or now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Flows that were given a member, since the start.
    pub met: u64,
    /// Flows (or packets, where flows are unknown) that found none, since the start.
    pub unmet: u64,
    /// Members that became idle again, since the start.
    pub ended: u64,
    /// Sum of their lifetimes, in nanoseconds.
    pub lifetimes_ns: u64,
    /// Members now, including those being started.
    pub members: u32,
    /// Members now that are not idle.
    pub in_use: u32,
}

/// Sizing policy of one pool, with its state.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizing {
    min: u32,
    max: u32,
    last: Counts,
    last_ns: Option<u64>,
    rate: f64,
    lifetime_ns: f64,
    /// Since when fewer members would be enough.
    low_since_ns: Option<u64>,
}

impl Sizing {
    /// Least target, as a multiple of the mean.
    pub const MARGIN: f64 = 1.25;
    /// Least step of growth, in members.
    pub const FIRST: u32 = 4;
    /// Time for which fewer members must be enough before the pool shrinks, in nanoseconds.
    pub const PATIENCE_NS: u64 = 3_000_000_000;
    /// Weights of a look above the average and of one below.
    const WEIGHTS: (f64, f64) = (0.5, 0.05);

    /// For a pool of `min` to `max` members.
    pub fn new(min: u32, max: u32) -> Self {
        let max = max.max(min);
        Self { min, max, last: Counts::default(), last_ns: None, rate: 0.0, lifetime_ns: 0.0, low_since_ns: None }
    }

    /// Sets the bounds to `min` and `max` members. The averages stay.
    pub fn bound(&mut self, min: u32, max: u32) {
        (self.min, self.max) = (min, max.max(min));
    }

    /// Whether flows have found no idle member since the last look; `unmet` as in [`Counts`].
    pub fn lacks(&self, unmet: u64) -> bool {
        unmet > self.last.unmet
    }

    /// Takes a look, and returns the target.
    pub fn look(&mut self, now_ns: u64, counts: Counts) -> u32 {
        let members = counts.members;
        let unmet = counts.unmet.saturating_sub(self.last.unmet);
        let passed = self.last_ns.map(|last| now_ns.saturating_sub(last)).filter(|ns| *ns > 0);
        if let Some(passed) = passed {
            let arrived = counts.met.saturating_sub(self.last.met);
            average(&mut self.rate, arrived as f64 / passed as f64);
            let ended = counts.ended.saturating_sub(self.last.ended);
            if ended > 0 {
                let lifetimes = counts.lifetimes_ns.saturating_sub(self.last.lifetimes_ns);
                average(&mut self.lifetime_ns, lifetimes as f64 / ended as f64);
            }
        }
        (self.last, self.last_ns) = (counts, Some(now_ns));
        let mean = (self.rate * self.lifetime_ns).max(f64::from(counts.in_use));
        let mut wanted = (mean + 2.0 * mean.sqrt()).max(mean * Self::MARGIN).ceil().min(f64::from(u32::MAX)) as u32;
        if unmet > 0 {
            wanted = wanted.max(members.saturating_add((members / 4).max(1)));
        }
        let wanted = wanted.clamp(self.min, self.max);
        if wanted >= members {
            self.low_since_ns = None;
            return wanted.min(members.saturating_add(members.max(Self::FIRST)));
        }
        // A pool that is up to a quarter too large stays.
        if members <= self.max && wanted > members - members / 4 && members > self.min {
            self.low_since_ns = None;
            return members;
        }
        let since = *self.low_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) < Self::PATIENCE_NS {
            return members;
        }
        wanted.max(members - (members / 8).max(1))
    }

    /// The target between two looks, for flows that found no member since the last one: as many
    /// more as these flows, up to a quarter (or [`Sizing::FIRST`], if the pool is small). `unmet`
    /// is as in [`Counts`]. The averages do not change.
    pub fn demand(&mut self, unmet: u64, members: u32) -> u32 {
        let lacking = unmet.saturating_sub(self.last.unmet).min(u64::from((members / 4).max(Self::FIRST))) as u32;
        self.last.unmet = unmet;
        members.saturating_add(lacking).min(self.max).max(members)
    }
}

/// Moves an average towards a value: quickly up, slowly down.
fn average(average: &mut f64, value: f64) {
    let (up, down) = Sizing::WEIGHTS;
    *average += (value - *average) * if value > *average { up } else { down };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOOK_NS: u64 = 100_000_000;

    /// Runs looks over flows with a rate (a second) and a life (in milliseconds). Returns the
    /// members at the end and the most there were.
    fn settle(sizing: &mut Sizing, counts: &mut Counts, now: &mut u64, (rate, life_ms): (u64, u64), looks: u32) -> (u32, u32) {
        let mut most = 0;
        for _ in 0..looks {
            *now += LOOK_NS;
            let wanted_in_use = (rate * life_ms / 1000) as u32;
            let came = rate / 10;
            if wanted_in_use > counts.members {
                counts.unmet += came / 2;
            }
            counts.met += came;
            counts.ended += came;
            counts.lifetimes_ns += came * life_ms * 1_000_000;
            counts.in_use = wanted_in_use.min(counts.members);
            counts.members = sizing.look(*now, *counts);
            most = most.max(counts.members);
        }
        (counts.members, most)
    }

    #[test]
    fn it_grows_quickly_to_what_littles_law_says_and_shrinks_slowly() {
        let mut sizing = Sizing::new(2, 1000);
        let (mut counts, mut now) = (Counts { members: 2, ..Counts::default() }, 0);
        // 1,000 flows a second of 200 ms: 200 in use.
        let (members, most) = settle(&mut sizing, &mut counts, &mut now, (1000, 200), 20);
        assert!((240..=400).contains(&members), "{members}");
        assert!(most <= 500, "{most}");
        let (at_once, _) = settle(&mut sizing, &mut counts, &mut now, (0, 0), 10);
        assert_eq!(at_once, members, "a pause of a second is no reason");
        let (in_the_end, _) = settle(&mut sizing, &mut counts, &mut now, (0, 0), 2000);
        assert_eq!(in_the_end, 2);
    }

    #[test]
    fn long_flows_without_an_end_count_as_they_are() {
        let mut sizing = Sizing::new(1, 64);
        let counts = Counts { met: 20, members: 20, in_use: 20, ..Counts::default() };
        assert!(sizing.look(0, counts) >= 25);
        // The pool is empty, and another flow came.
        assert!(sizing.look(LOOK_NS, Counts { unmet: 1, members: 25, in_use: 25, ..counts }) >= 31);
    }

    #[test]
    fn flows_that_found_none_are_given_members_between_two_looks() {
        let mut sizing = Sizing::new(1, 40);
        sizing.look(0, Counts { members: 1, ..Counts::default() });
        assert!(!sizing.lacks(0) && sizing.lacks(1));
        assert_eq!(sizing.demand(1, 1), 2);
        assert!(!sizing.lacks(1));
        assert_eq!(sizing.demand(1, 2), 2, "the same flow is counted once");
        assert_eq!(sizing.demand(100, 2), 2 + Sizing::FIRST);
        assert_eq!(sizing.demand(200, 20), 25);
        assert_eq!((sizing.demand(300, 38), sizing.demand(400, 50)), (40, 50), "up to the most, and it never shrinks");
        assert_eq!(sizing.look(LOOK_NS, Counts { members: 40, unmet: 400, in_use: 40, ..Counts::default() }), 40);
        sizing.bound(1, 80);
        assert_eq!((sizing.demand(400, 40), sizing.demand(401, 40)), (40, 41), "with other bounds, what was is not lacking again");
    }

    proptest! {
        #[test]
        fn always_within_bounds_and_never_in_leaps(
            min in 0..50u32,
            more in 0..200u32,
            looks in prop::collection::vec((0..500u64, 0..20u64, 0..500u64, 0..10_000_000_000u64, 0..300u32), 1..100),
        ) {
            let max = min + more;
            let mut sizing = Sizing::new(min, max);
            let mut counts = Counts { members: min, ..Counts::default() };
            let mut now = 0;
            for (met, unmet, ended, lifetimes, in_use) in looks {
                now += LOOK_NS;
                counts.met += met;
                counts.unmet += unmet;
                counts.ended += ended;
                counts.lifetimes_ns += lifetimes;
                counts.in_use = in_use.min(counts.members);
                let wanted = sizing.look(now, counts);
                prop_assert!((min..=max).contains(&wanted));
                prop_assert!(wanted <= counts.members + counts.members.max(Sizing::FIRST));
                prop_assert!(wanted + (counts.members / 8).max(1) >= counts.members);
                if unmet > 0 && counts.members < max {
                    prop_assert!(wanted > counts.members);
                }
                counts.members = wanted;
            }
        }
    }
}
