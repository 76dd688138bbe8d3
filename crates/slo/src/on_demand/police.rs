//! Policing of an instance's input, once cache and instances are exhausted.
//!
//! # Approach
//! While a promise is broken the limit falls by the ratio of promised to measured latency, but
//! never by more than half. Once latency has been well below the promise for a while, it rises by a
//! twentieth, but stays below where the promise broke; that is tried again after a pause, twice as
//! long each time. A limit above the offered load is removed. A limit that leaves too few packets
//! to measure latency rises as if all were well (`UNKNOWN`), or it would stay for ever.
//!
//! # Limits
//! Policing cannot keep a latency that no load keeps: the limit ends at a hundredth of the offered
//! load.

use serde::{Deserialize, Serialize};

use super::{CALM, Pause, SETTLE};

/// Most and least that is left of a limit when it falls.
const FALL: (f64, f64) = (0.5, 0.95);
const RISE: f64 = 1.05;
/// How near it rises to a limit that was too high.
const BELOW: f64 = 0.97;
/// Least limit, as a part of the offered load.
const LEAST: f64 = 0.01;
/// A limit of this multiple of the offered load has no effect.
const LIFTED: f64 = 1.1;

#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Police {
    /// Packets per second; none admits everything.
    pub limit_pps: Option<f64>,
    /// A limit that was too high.
    too_high_pps: Option<f64>,
    pause: Pause,
    /// Periods until the next change.
    wait: u32,
}

impl Police {
    /// Clears what was learnt: the cache is shared differently, and what was too high may be fine
    /// now.
    pub fn forget(&mut self) {
        self.too_high_pps = None;
        self.pause.forget();
    }

    /// Advances one period. `part` is the promised over the measured latency; it is set where the
    /// promise is broken and nothing else is left to do.
    pub fn step(&mut self, part: Option<f64>, calm: u32, offered_pps: f64) {
        self.wait = self.wait.saturating_sub(1);
        self.pause.step();
        if let Some(part) = part.filter(|_| self.wait == 0 && offered_pps > 0.0) {
            let was = self.limit_pps.unwrap_or(offered_pps).min(offered_pps);
            self.limit_pps = Some((was * part.clamp(FALL.0, FALL.1)).max(offered_pps * LEAST));
            self.too_high_pps = Some(was);
            self.pause.start();
            // Packets that wait in front of the NF are still late.
            self.wait = SETTLE + 1;
        }
        let Some(limit) = self.limit_pps.filter(|_| calm >= CALM && self.wait == 0) else { return };
        let most = self.too_high_pps.filter(|_| !self.pause.is_over()).map_or(f64::INFINITY, |pps| pps * BELOW);
        let next = (limit * RISE).min(most);
        if limit >= offered_pps * LIFTED {
            self.limit_pps = None;
        } else if next > limit {
            self.limit_pps = Some(next);
            self.wait = SETTLE + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_falls_until_the_promise_holds_and_stays_there() {
        // Broken above 6 million, calm below 5.
        let (mut police, mut changes, mut broken) = (Police::default(), 0, 0);
        let mut calm = 0;
        for _ in 0..1000 {
            let in_pps = police.limit_pps.unwrap_or(10e6).min(10e6);
            calm = if in_pps < 5e6 { calm + 1 } else { 0 };
            let before = police.limit_pps;
            police.step((in_pps > 6e6).then_some(6e6 / in_pps), calm, 10e6);
            changes += u32::from(police.limit_pps != before);
            broken += u32::from(in_pps > 6e6);
        }
        assert!((5e6..=6e6).contains(&police.limit_pps.unwrap()), "{police:?}");
        assert!(changes < 5 && broken < 10, "{changes} {broken}");
        // Less is offered, and the limit goes after a while.
        for _ in 0..200 {
            police.step(None, 100, 4e6);
        }
        assert_eq!(police.limit_pps, None);
    }

    #[test]
    fn what_no_load_keeps_leaves_a_hundredth() {
        let mut police = Police::default();
        for _ in 0..100 {
            police.step(Some(0.1), 0, 1e6);
        }
        assert_eq!(police.limit_pps, Some(1e4));
        police.step(Some(0.1), 0, 0.0);
        assert_eq!(police.limit_pps, Some(1e4));
    }
}
