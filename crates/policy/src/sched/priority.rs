//! Priority of an NF: its share of the core, and its place in the order.
//!
//! # Problem
//! Some flows matter more than others: those of a tenant, of a class of traffic, or, where nothing
//! refuses packets at the entry, the packets with the most work invested. An NF with such a flow
//! should get more of its core, and get it sooner.
//!
//! # Terms
//! *Weight*: a number above 0; 1 is ordinary, 2 is worth twice as much. The weight of an NF is that
//! of its service times that of its flow. *Level*: order among NFs with packets; the highest goes
//! first, 0 is ordinary. *Position*: how far down its chains an NF is.
//!
//! # Approach
//! A weight scales the share of the core that the load asks for ([`weight`](super::weight)), and
//! each doubling of it is two levels. An NF with a level goes before others of its core as long as
//! it has budget left of its part of a round ([`wakeup`](super::wakeup)): it is served sooner, and
//! gets no more than its part. A weight below 1 gets less of the core, and its level is 0.
//!
//! Where NFs further down go first, a hop is worth a doubling of the weight: the packets with the
//! most work invested are dropped last. And an NF with more than a part of its ring full goes
//! before all above it ([`pressing`]), with or without budget: their packets would find no space.
//!
//! For the kernel's class SCHED_RR, level and position together are the priority above the lowest
//! one ([`rank`]). That order is strict: the highest has the core as long as it has packets.
//!
//! Source: W. Zhang et al., "Flurries: Countless Fine-Grained NFs for Flexible Per-Flow
//! Customization", CoNEXT 2016, sections 5.2 and 6.2.

/// Highest level.
pub const HIGHEST: u8 = 31;
/// Largest position that counts.
const DEEPEST: u32 = 16;

/// A weight, rounded to thousandths so that equal weights compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Default for Weight {
    fn default() -> Self {
        Self::ORDINARY
    }
}

impl Weight {
    /// The default weight, 1.
    pub const ORDINARY: Self = Self(1000);

    /// The nearest weight: at least a thousandth, at most four millions.
    pub fn new(weight: f64) -> Self {
        // The cast of NaN gives 0.
        Self(((weight * 1000.0).round() as u32).max(1))
    }

    /// The weight as a number.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

/// Level of a weight.
pub fn level(weight: f64) -> u8 {
    if weight > 1.0 { (2.0 * weight.log2()).ceil().min(f64::from(HIGHEST)) as u8 } else { 0 }
}

/// A weight raised by its position, where NFs further down go first.
pub fn raised(weight: f64, depth: u32) -> f64 {
    weight * f64::from(1u32 << depth.min(DEEPEST))
}

/// Distance from the lowest priority of SCHED_RR, 0 to 47; position if `downstream_first`.
pub fn rank(level: u8, depth: u32, downstream_first: bool) -> u8 {
    let by_position = if downstream_first { depth.min(DEEPEST) as u8 } else { 0 };
    level.min(HIGHEST) + by_position
}

/// Packets that make an NF go before those above it: a quarter of `slots`; 0 if it never does.
pub fn pressing(depth: u32, slots: u32, downstream_first: bool) -> u32 {
    if downstream_first && depth > 0 { (slots / 4).max(1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubling_is_two_levels_and_nothing_falls_below_the_ordinary() {
        let levels = [0.001, 0.5, 1.0, 1.1, 1.4, 2.0, 4.0, 1000.0, f64::INFINITY, f64::NAN].map(level);
        assert_eq!(levels, [0, 0, 0, 1, 1, 2, 4, 20, HIGHEST, 0]);
    }

    #[test]
    fn weights_are_as_exact_as_they_are_written() {
        assert_eq!(Weight::new(1.0), Weight::default());
        assert_eq!(Weight::new(2.5).get(), 2.5);
        assert_eq!(Weight::new(0.1).get(), 0.1);
        for odd in [0.0, -3.0, f64::NAN] {
            assert_eq!(Weight::new(odd).get(), 0.001);
        }
        assert_eq!(Weight::new(f64::INFINITY).get(), 4_294_967.295);
    }

    #[test]
    fn the_position_counts_only_where_it_is_to() {
        assert_eq!([0, 1, 2, 99].map(|depth| rank(3, depth, true)), [3, 4, 5, 19]);
        assert_eq!([0, 1, 2, 99].map(|depth| rank(3, depth, false)), [3; 4]);
        assert_eq!([0, 1, 2].map(|depth| raised(1.5, depth)), [1.5, 3.0, 6.0]);
        assert_eq!([0, 1, 5].map(|depth| pressing(depth, 4096, true)), [0, 1024, 1024]);
        assert_eq!((pressing(1, 2, true), pressing(1, 4096, false)), (1, 0));
        // The kernel's priorities end at 99.
        assert!(rank(u8::MAX, u32::MAX, true) < 99);
    }
}
