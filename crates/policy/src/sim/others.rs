//! Other processes of a core, which come at random and have it for a moment.
//!
//! They are all that is no NF: threads of the kernel and of the platform, and other programs. One
//! that slept has had less of the core than an NF that runs, so it preempts that NF, of either fair
//! class. Real-time classes go before it.
//!
//! # Limits
//! All come at any time, independently of NFs and ticks, with pauses up to twice the mean and for
//! the same time each. They come at once, also where the kernel would let an NF end its slice.

use super::process::draw;
use super::scenario::{Class, Others, Scenario};

/// Those of one core.
#[derive(Debug, Clone)]
pub(super) struct OtherProcesses {
    often: Others,
    state: u64,
    /// When the next one comes, in nanoseconds.
    next_ns: u64,
    /// Time for which the present one still has the core, in nanoseconds.
    left_ns: u64,
}

impl OtherProcesses {
    /// None if no NF of the scenario's class gives the core to one.
    pub(super) fn of(core: usize, scenario: &Scenario) -> Option<Self> {
        let often = scenario.machine.others.filter(|_| !matches!(scenario.class, Class::Rr(_)))?;
        let state = scenario.seed.wrapping_add((core as u64).wrapping_mul(0x6a09_e667_f3bc_c909));
        let mut others = Self { often, state, next_ns: 0, left_ns: 0 };
        others.next_ns = others.pause_ns();
        Some(others)
    }

    /// A time until the next one: up to twice the mean.
    fn pause_ns(&mut self) -> u64 {
        1 + draw(&mut self.state) % self.often.every_ns.saturating_mul(2)
    }

    #[inline]
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Whether one comes now.
    #[inline]
    pub(super) fn comes(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_ns {
            return false;
        }
        self.left_ns = self.often.has_ns;
        self.next_ns = now_ns + self.left_ns + self.pause_ns();
        true
    }

    /// The time that the present one takes of `most_ns`.
    #[inline]
    pub(super) fn take(&mut self, most_ns: u64) -> u64 {
        let ns = self.left_ns.min(most_ns);
        self.left_ns -= ns;
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Machine, Variant};

    fn others(class: Class) -> Option<OtherProcesses> {
        let mut scenario = Scenario::new(Vec::new(), Vec::new(), Variant::Default, class);
        scenario.machine = Machine { others: Some(Others { every_ns: 1000, has_ns: 100 }), ..scenario.machine };
        OtherProcesses::of(0, &scenario)
    }

    #[test]
    fn they_come_as_often_as_they_should_and_have_the_core_for_their_time() {
        let mut others = others(Class::Batch).unwrap();
        let mut now_ns = 0;
        for _ in 0..10_000 {
            assert!(!others.comes(others.next_ns() - 1) && others.take(1000) == 0);
            now_ns = others.next_ns();
            assert!(others.comes(now_ns));
            assert_eq!([others.take(30), others.take(1000), others.take(1000)], [30, 70, 0]);
        }
        let mean_ns = now_ns / 10_000;
        assert!(mean_ns.abs_diff(1100) < 30, "{mean_ns}");
    }

    #[test]
    fn a_real_time_class_goes_before_them() {
        assert!(others(Class::Other).is_some() && others(Class::Rr(4)).is_none());
    }
}
