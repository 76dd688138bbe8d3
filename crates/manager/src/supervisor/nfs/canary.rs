//! A canary as values: its stages, its part of new flows, and its faults.
//!
//! Pure: the supervisor gives what it has counted, and carries out what follows
//! ([`canary`](super::super::canary)).

use std::collections::BTreeMap;

use sluice_api::change::CanaryRequest;

/// Packets before which drops and times of a canary say nothing.
pub(crate) const ENOUGH_PACKETS: u64 = 100;

/// A canary, by what was asked for.
#[derive(Debug)]
pub(crate) struct Canary {
    pub(crate) wanted: CanaryRequest,
    pub(crate) stage: CanaryStage,
}

#[derive(Debug)]
pub(crate) enum CanaryStage {
    /// It is not ready.
    Starts,
    /// It gets its part of new flows.
    Watched(CanaryWatch),
    /// It had no fault, and its version takes over; it still gets its part. Its number.
    Passed(u16),
}

#[derive(Debug)]
pub(crate) struct CanaryWatch {
    /// Its number.
    pub(crate) nf: u16,
    /// When it has passed, and when it is looked at next, on the monotonic clock.
    pub(crate) until_ns: u64,
    pub(crate) look_ns: u64,
    /// What each of the others had received and dropped at the last look, by its number, and what
    /// all of them have since the beginning.
    pub(crate) before: BTreeMap<u16, Passage>,
    pub(crate) others: Passage,
    /// The SLOs that were violated before.
    pub(crate) violated: Vec<String>,
}

/// What is known of a canary's time so far.
#[derive(Debug, Default)]
pub(crate) struct CanarySight {
    pub(crate) own: Passage,
    pub(crate) others: Passage,
    /// The time that 99 of 100 bursts keep, in nanoseconds, if it is known.
    pub(crate) burst_ns: Option<u64>,
    /// An SLO that is violated since it came.
    pub(crate) violated: Option<String>,
}

/// Packets that NFs received, and those that they dropped by verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Passage {
    pub(crate) received: u64,
    pub(crate) dropped: u64,
}

impl Passage {
    /// The difference from an earlier one of the same instance.
    pub(crate) fn since(self, before: Self) -> Self {
        if self.received < before.received {
            // It was restarted, and counts from 0.
            return self;
        }
        Self { received: self.received - before.received, dropped: self.dropped.saturating_sub(before.dropped) }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self { received: self.received + other.received, dropped: self.dropped + other.dropped }
    }

    fn drops_percent(self) -> f64 {
        if self.received == 0 { 0.0 } else { self.dropped as f64 / self.received as f64 * 100.0 }
    }
}

/// How many times each part of the others counts, and how many parts a canary has, so that it gets
/// about `percent` of new flows (1 to 50).
pub(crate) fn canary_parts(others: u32, percent: u32) -> (u32, u32) {
    let percent = f64::from(percent.clamp(1, 50));
    let own = f64::from(others.max(1)) * percent / (100.0 - percent);
    if own >= 1.0 { (1, own.round() as u32) } else { ((1.0 / own).round() as u32, 1) }
}

impl Canary {
    pub(crate) fn new(wanted: CanaryRequest) -> Self {
        Self { wanted, stage: CanaryStage::Starts }
    }

    /// Its number and its part of new flows in percent, while it gets them.
    pub(crate) fn takes(&self) -> Option<(u16, u32)> {
        match self.stage {
            CanaryStage::Starts => None,
            CanaryStage::Watched(CanaryWatch { nf, .. }) | CanaryStage::Passed(nf) => Some((nf, self.wanted.percent)),
        }
    }
}

/// By how many percent the drops of two counts of packets differ by chance at most, if `percent` of
/// all are dropped: three standard deviations.
fn by_chance_percent(percent: f64, own: u64, others: u64) -> f64 {
    let part = (percent / 100.0).clamp(0.0, 1.0);
    300.0 * (part * (1.0 - part) * (1.0 / own as f64 + 1.0 / others as f64)).sqrt()
}

/// Why a canary without a fault has not passed when its time is over, if it has not.
pub(crate) fn canary_lacks(seen: &CanarySight) -> Option<String> {
    let received = seen.own.received;
    (received < ENOUGH_PACKETS)
        .then(|| format!("it got {received} packets in its time, too few to compare it; {ENOUGH_PACKETS} are the least"))
}

/// The fault of a canary, if what was seen of it shows one.
pub(crate) fn canary_fault(wanted: &CanaryRequest, seen: &CanarySight) -> Option<String> {
    if let Some(slo) = &seen.violated {
        return Some(format!("the SLO {slo} is violated since it takes packets"));
    }
    if seen.own.received < ENOUGH_PACKETS {
        return None;
    }
    let (own, others) = (seen.own, seen.others);
    let (drops, usual) = (own.drops_percent(), others.drops_percent());
    let allowed = usual + wanted.drops_percent;
    // Without packets of the others nothing is known of what is usual.
    if others.received >= ENOUGH_PACKETS && drops > allowed + by_chance_percent(allowed, own.received, others.received) {
        return Some(format!("it dropped {drops:.1} % of its packets, and the old version {usual:.1} % in that time"));
    }
    let (burst_us, most) = (seen.burst_ns? as f64 / 1e3, wanted.burst_us?);
    (burst_us > most)
        .then(|| format!("one of 100 bursts took {burst_us:.1} us or more, and {most} us is the most that was allowed"))
}

/// What is wrong with a request, if anything is.
pub(crate) fn wrong_canary(wanted: &CanaryRequest) -> Option<&'static str> {
    let CanaryRequest { percent, seconds, drops_percent, burst_us, .. } = wanted;
    if !(1..=50).contains(percent) {
        return Some("a canary gets 1 to 50 percent of new flows");
    }
    if !(1..=86_400).contains(seconds) {
        return Some("a canary is watched for 1 to 86400 seconds");
    }
    if !(0.0..=100.0).contains(drops_percent) {
        return Some("the margin of a canary's drops is 0 to 100 percent");
    }
    let is_time = burst_us.is_none_or(|us| us.is_finite() && us > 0.0);
    (!is_time).then_some("the longest time for a burst is a number of microseconds above 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_gets_about_its_part() {
        for (others, percent) in [(1, 1), (1, 10), (1, 50), (3, 1), (4, 25), (50, 1), (200, 1), (7, 33)] {
            let (times, own) = canary_parts(others, percent);
            let part = f64::from(own) / f64::from(others * times + own) * 100.0;
            let wanted = f64::from(percent);
            assert!((part - wanted).abs() <= wanted * 0.2, "{others} others, {percent} %: {part}");
        }
    }

    fn wanted(drops_percent: f64, burst_us: Option<f64>) -> CanaryRequest {
        CanaryRequest { exec: "x".into(), args: None, percent: 1, seconds: 1, drops_percent, burst_us }
    }

    #[test]
    fn a_fault_is_more_drops_than_the_others_by_a_margin_or_long_bursts_or_a_violated_slo() {
        let of = |received, dropped| Passage { received, dropped };
        let usual = of(10_000, 500);
        let seen = |own, burst_ns| CanarySight { own, others: usual, burst_ns, violated: None };
        let few = of(ENOUGH_PACKETS - 1, ENOUGH_PACKETS - 1);
        assert_eq!(canary_fault(&wanted(1.0, Some(1.0)), &seen(few, Some(9_000))), None, "too few packets");
        assert_eq!(canary_fault(&wanted(1.0, None), &seen(of(1_000, 83), None)), None);
        let said = canary_fault(&wanted(1.0, None), &seen(of(1_000, 84), None)).unwrap();
        assert_eq!(said, "it dropped 8.4 % of its packets, and the old version 5.0 % in that time");
        assert_eq!(canary_fault(&wanted(1.0, Some(9.0)), &seen(of(1_000, 0), Some(9_000))), None);
        assert!(canary_fault(&wanted(1.0, Some(9.0)), &seen(of(1_000, 0), Some(9_001))).unwrap().contains("bursts"));
        let slo = CanarySight { violated: Some("acme".into()), ..CanarySight::default() };
        assert!(canary_fault(&wanted(1.0, None), &slo).unwrap().contains("acme"));
        assert_eq!(usual.since(of(9_000, 100)), of(1_000, 400));
        assert_eq!(usual.since(of(20_000, 100)), usual, "an instance was restarted");
        assert_eq!(usual.and(of(1, 2)), of(10_001, 502));
    }

    #[test]
    fn few_packets_show_only_what_is_no_chance() {
        let of = |received, dropped| Passage { received, dropped };
        let fault =
            |own, others| canary_fault(&wanted(1.0, None), &CanarySight { own, others, ..CanarySight::default() }).is_some();
        // 1 % are dropped anyway.
        let usual = of(100_000, 1_000);
        assert!(!fault(of(100, 5), usual) && fault(of(100, 20), usual));
        assert!(!fault(of(10_000, 210), usual) && fault(of(10_000, 300), usual));
        assert!(!fault(of(1_000, 1_000), of(ENOUGH_PACKETS - 1, 0)), "nothing to compare it with");
        let seen = |received| CanarySight { own: of(received, 0), ..CanarySight::default() };
        assert!(canary_lacks(&seen(ENOUGH_PACKETS - 1)).unwrap().contains("it got 99 packets"));
        assert_eq!(canary_lacks(&seen(ENOUGH_PACKETS)), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(wrong_canary(&wanted(1.0, None)), None);
        for request in [
            CanaryRequest { percent: 0, ..wanted(1.0, None) },
            CanaryRequest { percent: 51, ..wanted(1.0, None) },
            CanaryRequest { seconds: 0, ..wanted(1.0, None) },
            CanaryRequest { seconds: u64::MAX, ..wanted(1.0, None) },
            wanted(f64::NAN, None),
            wanted(-1.0, None),
            wanted(1.0, Some(0.0)),
        ] {
            assert!(wrong_canary(&request).is_some(), "{request:?}");
        }
    }
}
