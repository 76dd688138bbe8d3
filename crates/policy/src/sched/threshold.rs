//! Wake policy: at how many packets, or after how long, a sleeping NF is started.
//!
//! # Problem
//! An NF that has one flow and little to do for each packet spends more on wake-ups than on work: a
//! switch costs as much as some dozens of packets. Started for every packet, thousands of NFs share
//! their core in slices of a packet. Started by a clock alone, a short flow waits at each step of
//! its handshake. Which of the two hurts depends on the flow.
//!
//! # Terms and units
//! *Waiting*: packets in the queue of an NF that sleeps. *Threshold*: packets at which it is
//! started. *Timer*: the longest that packets wait below the threshold, in nanoseconds. *Early*:
//! the first packets of a flow, each of which starts the NF. *Urgent*: a packet that starts it
//! regardless of the threshold, such as the end of a connection.
//!
//! # Approach
//! The first [`Rules::early`] packets of a flow start the NF at once: for such a short flow latency
//! counts. Then the threshold adapts to the flow: it begins at [`Rules::least`], grows by one each
//! time that it is met (additive increase), and is halved each time that the timer expires first
//! (multiplicative decrease). So a fast flow is processed in growing pieces, none of which waits
//! longer than the timer, and a slowed flow soon starts its NF for each packet again.
//!
//! | name | early | threshold | timer |
//! |---|---|---|---|
//! | `min` | – | 1: every packet | – |
//! | `adaptive` | 36 | 1 and more, by increase and decrease | 1 ms |
//! | `naive-100us` | 0 | 32, always | 100 µs |
//! | `naive-1ms` | 0 | 32, always | 1 ms |
//!
//! # Limits
//! The threshold is for one queue. An NF that is shared by flows has one threshold for all of them,
//! and is early only once. A caller that counts in several threads has a threshold in each. For a
//! trickle, of which every second packet waits for the timer, the threshold alternates between 1
//! and 2; bounds `least = most = 1` switch that off.
//!
//! Source: W. Zhang et al., "Flurries: Countless Fine-Grained NFs for Flexible Per-Flow
//! Customization", CoNEXT 2016, section 5.1 (adaptive wakeup), and tables 1 and 2 for the names.

/// Parameters of a wake policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Packets at the beginning of a flow, each of which starts the NF.
    pub early: u32,
    /// Least threshold, and the first one, in packets; 1 or more.
    pub least: u32,
    /// Largest threshold, in packets; equal to `least` for a fixed one.
    pub most: u32,
    /// Longest wait of packets, in nanoseconds.
    pub timer_ns: u64,
}

/// Early packets of a flow: T_start of the paper.
pub const EARLY: u32 = 36;
/// Threshold of the naive policies, in packets: a burst.
pub const NAIVE: u32 = 32;
/// Default timer, in nanoseconds.
pub const TIMER_NS: u64 = 1_000_000;
/// Default bound of an adaptive threshold, in packets.
pub const MOST: u32 = 256;

impl Rules {
    /// Additive increase and multiplicative decrease, with the paper's numbers.
    pub const ADAPTIVE: Self = Self { early: EARLY, least: 1, most: MOST, timer_ns: TIMER_NS };
    /// A burst, or 100 µs.
    pub const NAIVE_100_US: Self = Self { early: 0, least: NAIVE, most: NAIVE, timer_ns: 100_000 };
    /// A burst, or a millisecond.
    pub const NAIVE_1_MS: Self = Self { early: 0, least: NAIVE, most: NAIVE, timer_ns: TIMER_NS };

    /// The same for an NF whose queue holds `queue` packets: no threshold is more than half of
    /// them, so that a sender that waits for space never waits for the timer.
    pub fn within(self, queue: u32) -> Self {
        let half = (queue / 2).max(1);
        let most = self.most.clamp(1, half);
        Self { least: self.least.clamp(1, most), most, ..self }
    }
}

/// Why an NF was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartCause {
    /// Its flow has only begun.
    Early,
    /// The threshold was met.
    Threshold,
    /// The timer expired.
    Timer,
    /// An urgent packet arrived.
    Urgent,
}

impl StartCause {
    /// All causes.
    pub const ALL: [Self; 4] = [Self::Early, Self::Threshold, Self::Timer, Self::Urgent];
}

/// Threshold of one NF's flow. See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    packets: u32,
    seen: u32,
}

impl Threshold {
    /// At the beginning of a flow.
    pub fn new(rules: &Rules) -> Self {
        Self { packets: rules.least.max(1), seen: 0 }
    }

    /// The threshold, in packets.
    #[inline]
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Whether each packet still starts the NF.
    #[inline]
    pub fn is_early(&self, rules: &Rules) -> bool {
        self.seen < rules.early
    }

    /// Counts `n` packets for the flow of an NF that runs, or runs without a wake-up.
    #[inline]
    pub fn pass(&mut self, n: u32) {
        self.seen = self.seen.saturating_add(n);
    }

    /// Takes `n` packets for an NF that sleeps, with `waiting` in all; `urgent` if one of them is.
    /// Returns why the NF is to be started, or None if they wait, no longer than the timer.
    #[inline]
    pub fn come(&mut self, rules: &Rules, n: u32, waiting: u32, urgent: bool) -> Option<StartCause> {
        let early = self.is_early(rules);
        self.pass(n);
        if urgent {
            Some(StartCause::Urgent)
        } else if early {
            Some(StartCause::Early)
        } else if waiting >= self.packets {
            self.packets = self.packets.saturating_add(1).min(rules.most.max(rules.least)).max(1);
            Some(StartCause::Threshold)
        } else {
            None
        }
    }

    /// Takes the expiry of the timer.
    #[inline]
    pub fn expire(&mut self, rules: &Rules) -> StartCause {
        self.packets = (self.packets / 2).max(rules.least).max(1);
        StartCause::Timer
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: Rules = Rules::ADAPTIVE;

    /// A flow past its early packets.
    fn grown(rules: &Rules, threshold: u32) -> Threshold {
        Threshold { packets: threshold, seen: rules.early }
    }

    #[test]
    fn the_first_packets_of_a_flow_do_not_wait() {
        let mut flow = Threshold::new(&RULES);
        for n in 0..36 {
            assert!(flow.is_early(&RULES));
            assert_eq!(flow.come(&RULES, 1, 1, false), Some(StartCause::Early), "packet {n}");
        }
        assert!(!flow.is_early(&RULES));
        assert_eq!(flow.packets(), 1, "they say nothing about the threshold");
        assert_eq!(flow.come(&RULES, 1, 1, false), Some(StartCause::Threshold));
        assert_eq!(flow.come(&RULES, 1, 1, false), None);
        // Packets that found the NF awake count too.
        let mut flow = Threshold::new(&RULES);
        flow.pass(36);
        assert_eq!(flow.come(&RULES, 1, 0, false), None);
    }

    #[test]
    fn a_threshold_that_is_met_grows_by_one_and_one_that_is_not_is_halved() {
        let mut flow = grown(&RULES, 8);
        assert_eq!(flow.come(&RULES, 7, 7, false), None);
        assert_eq!(flow.come(&RULES, 1, 8, false), Some(StartCause::Threshold));
        assert_eq!(flow.packets(), 9);
        assert_eq!(flow.expire(&RULES), StartCause::Timer);
        assert_eq!(flow.packets(), 4);
        (0..5).for_each(|_| assert_eq!(flow.expire(&RULES), StartCause::Timer));
        assert_eq!(flow.packets(), 1);
    }

    #[test]
    fn an_urgent_packet_waits_for_nothing_and_changes_nothing() {
        let mut flow = grown(&RULES, 8);
        assert_eq!(flow.come(&RULES, 1, 1, true), Some(StartCause::Urgent));
        assert_eq!(flow.packets(), 8);
    }

    #[test]
    fn naive_policies_never_change() {
        for rules in [Rules::NAIVE_100_US, Rules::NAIVE_1_MS] {
            let mut flow = Threshold::new(&rules);
            assert_eq!(flow.come(&rules, 1, 1, false), None);
            assert_eq!(flow.come(&rules, 31, 32, false), Some(StartCause::Threshold));
            flow.expire(&rules);
            assert_eq!(flow.packets(), 32);
        }
    }

    #[test]
    fn a_small_queue_bounds_the_threshold() {
        assert_eq!(RULES.within(64).most, 32);
        assert_eq!(RULES.within(2048).most, 256);
        assert_eq!((Rules::NAIVE_1_MS.within(8).least, Rules::NAIVE_1_MS.within(8).most), (4, 4));
        assert_eq!((RULES.within(0).least, RULES.within(0).most), (1, 1));
    }

    #[test]
    fn a_fast_flow_climbs_to_its_bound_and_a_slow_one_comes_down_in_a_few_timers() {
        let rules = RULES.within(64);
        let mut flow = grown(&rules, 1);
        let (mut starts, mut waiting) = (0, 0);
        for _ in 0..10_000 {
            waiting += 1;
            if flow.come(&rules, 1, waiting, false).is_some() {
                (starts, waiting) = (starts + 1, 0);
            }
        }
        assert_eq!(flow.packets(), 32);
        // 1 + 2 + … + 31 packets on the way up, then 32 each.
        assert_eq!(starts, 31 + (10_000 - 31 * 32 / 2) / 32);
        let timers = (0..).take_while(|_| flow.packets() > 1 && flow.expire(&rules) == StartCause::Timer).count();
        assert_eq!(timers, 5);
    }

    #[derive(Debug, Clone, Copy)]
    enum Act {
        Come(u32, bool),
        Pass(u32),
        Expire,
    }

    proptest! {
        #[test]
        fn thresholds_stay_within_their_bounds_and_nothing_waits_that_need_not(
            (early, least, more) in (0..50u32, 1..40u32, 0..60u32),
            acts in prop::collection::vec(
                prop_oneof![
                    6 => (1..40u32, prop::bool::weighted(0.1)).prop_map(|(n, urgent)| Act::Come(n, urgent)),
                    2 => (1..40u32).prop_map(Act::Pass),
                    2 => Just(Act::Expire),
                ],
                1..200,
            ),
        ) {
            let rules = Rules { early, least, most: least + more, timer_ns: 1 };
            let mut flow = Threshold::new(&rules);
            let (mut waiting, mut seen) = (0u32, 0u32);
            for act in acts {
                let before = flow.packets();
                match act {
                    Act::Come(n, urgent) => {
                        waiting += n;
                        let cause = flow.come(&rules, n, waiting, urgent);
                        let at_once = urgent || seen < early;
                        prop_assert_eq!(cause.is_some(), at_once || waiting >= before);
                        prop_assert_eq!(flow.packets(), if cause == Some(StartCause::Threshold) { (before + 1).min(rules.most) } else { before });
                        seen += n;
                        if cause.is_some() {
                            waiting = 0;
                        }
                    }
                    Act::Pass(n) => {
                        flow.pass(n);
                        seen += n;
                    }
                    Act::Expire => {
                        prop_assert_eq!(flow.expire(&rules), StartCause::Timer);
                        prop_assert_eq!(flow.packets(), (before / 2).max(least));
                        waiting = 0;
                    }
                }
                prop_assert!((least..=rules.most).contains(&flow.packets()));
                prop_assert_eq!(flow.is_early(&rules), seen < early);
            }
        }

        /// Whatever the numbers, a queue of that size can meet the threshold.
        #[test]
        fn no_rules_keep_an_nf_asleep_for_ever(early in any::<u32>(), least in any::<u32>(), most in any::<u32>(), queue in 1..100_000u32) {
            let rules = Rules { early, least, most, timer_ns: 0 }.within(queue);
            prop_assert!(rules.least >= 1 && rules.least <= rules.most && rules.most <= (queue / 2).max(1));
            let mut flow = Threshold::new(&rules);
            flow.pass(u32::MAX);
            prop_assert!(flow.come(&rules, queue, queue, false).is_some());
        }
    }
}
