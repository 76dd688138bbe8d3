//! The greatest load with no more than a given loss, by trials.
//!
//! # Approach
//! A load is a number of steps. The search halves the interval between a load that is carried and
//! one that is not. A load is carried if one of two trials loses no more than the threshold: half
//! of the trials may be disturbed by other programs of the host. Trials are kept, so that a search
//! with another threshold repeats none.
//!
//! The rate of a trial is what its generator sent. One that sent less than [`SENT`] of the load
//! gives no verdict on what carries the packets: the search goes on below, and says that the
//! generator is the limit if no trial of the first load beyond has a verdict.
//!
//! # Source
//! MLRsearch of the IETF's benchmarking group, where NDR is the search without loss and PDR the one
//! with a small loss. Its trials grow longer as the interval shrinks; ours all have one length.

use std::collections::BTreeMap;

/// Part of a load that a generator has to send: a trial may be a hundredth below its load.
pub const SENT: f64 = 0.99;
/// Most trials of a load.
const TRIALS: usize = 2;

/// What a trial gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// Part of the load that the generator sent.
    pub sent: f64,
    /// Part of what it sent that was lost.
    pub loss: f64,
}

impl Trial {
    /// Whether the generator sent too little for a verdict.
    pub fn is_late(&self) -> bool {
        self.sent < SENT
    }

    fn is_carried(&self, threshold: f64) -> bool {
        !self.is_late() && self.loss <= threshold
    }
}

/// Trials by load, in their order.
pub type Trials = BTreeMap<u32, Vec<Trial>>;

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// The greatest load that is carried, in steps, as it was sent; 0 if none is.
    pub steps: f64,
    /// Whether more was not carried because the generator did not send it.
    pub is_generators_limit: bool,
}

/// The greatest load of 1 to `most` steps with a loss of at most `threshold`.
///
/// `trial` runs one at a load.
///
/// # Errors
/// A trial failed.
pub fn greatest<E>(
    most: u32,
    threshold: f64,
    trials: &mut Trials,
    mut trial: impl FnMut(u32) -> Result<Trial, E>,
) -> Result<Found, E> {
    let (mut carried, mut too_much) = (0, most + 1);
    let mut found = Found { steps: 0.0, is_generators_limit: false };
    while carried + 1 < too_much {
        let load = u32::midpoint(carried, too_much);
        let of_load = trials.entry(load).or_default();
        while of_load.len() < TRIALS && !of_load.iter().any(|one| one.is_carried(threshold)) {
            of_load.push(trial(load)?);
        }
        // What was late before and is sent in the trial is no part of its load.
        let sent = of_load.iter().filter(|one| one.is_carried(threshold)).map(|one| one.sent.min(1.0)).max_by(f64::total_cmp);
        match sent {
            Some(sent) => (carried, found.steps) = (load, f64::from(load) * sent),
            None => (too_much, found.is_generators_limit) = (load, of_load.iter().all(Trial::is_late)),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const LOST: Trial = Trial { sent: 1.0, loss: 0.1 };
    const CARRIED: Trial = Trial { sent: 1.0, loss: 0.0 };

    /// Searches among 64 loads. Those up to `lossless` lose nothing, and each further one a
    /// thousandth more. Returns the load and the number of trials.
    fn search(lossless: u32, threshold: f64, trials: &mut Trials) -> (f64, usize) {
        let mut count = 0;
        let trial = |load: u32| {
            count += 1;
            Ok::<_, Infallible>(Trial { sent: 1.0, loss: f64::from(load.saturating_sub(lossless)) / 1000.0 })
        };
        let found = greatest(64, threshold, trials, trial).unwrap();
        assert!(!found.is_generators_limit);
        (found.steps, count)
    }

    #[test]
    fn the_greatest_load_is_found_with_any_threshold() {
        for lossless in 0..=64 {
            let mut trials = Trials::new();
            let (ndr, first) = search(lossless, 0.0, &mut trials);
            let (pdr, second) = search(lossless, 0.005, &mut trials);
            assert_eq!((ndr, pdr), (f64::from(lossless), f64::from((lossless + 5).min(64))));
            // Two searches of seven loads, with two trials each, would be 28.
            assert!(first + second <= 20, "{first} {second}");
            assert_eq!(trials.values().map(Vec::len).sum::<usize>(), first + second);
        }
    }

    #[test]
    fn one_disturbed_trial_of_a_load_does_not_count() {
        let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
        let disturbed = |load: u32| {
            let times = seen.entry(load).or_default();
            *times += 1;
            Ok::<_, Infallible>(if load > 20 || *times == 1 { LOST } else { CARRIED })
        };
        let found = greatest(64, 0.0, &mut Trials::new(), disturbed).unwrap();
        assert_eq!(found, Found { steps: 20.0, is_generators_limit: false });
    }

    #[test]
    fn a_generator_that_sends_too_little_is_the_limit_and_what_it_sent_is_the_rate() {
        let of = |beyond: fn(u32) -> Trial| {
            let trial = |load: u32| Ok::<_, Infallible>(if load > 20 { beyond(load) } else { Trial { sent: 0.995, ..CARRIED } });
            greatest(64, 0.0, &mut Trials::new(), trial).unwrap()
        };
        // A late one has no verdict, whether it lost something or not.
        for late in [|_: u32| Trial { sent: 0.98, loss: 0.0 }, |_: u32| Trial { sent: 0.98, loss: 0.1 }] {
            assert_eq!(of(late), Found { steps: 20.0 * 0.995, is_generators_limit: true });
        }
        assert_eq!(of(|_| LOST), Found { steps: 20.0 * 0.995, is_generators_limit: false });
        // Beyond what is lost the generator may be late.
        let further = of(|load| if load > 21 { Trial { sent: 0.5, loss: 0.0 } } else { LOST });
        assert_eq!(further, Found { steps: 20.0 * 0.995, is_generators_limit: false });
        // A backlog from before is no part of the rate.
        let found = greatest(64, 0.0, &mut Trials::new(), |_| Ok::<_, Infallible>(Trial { sent: 1.1, loss: 0.0 })).unwrap();
        assert_eq!(found, Found { steps: 64.0, is_generators_limit: false });
    }

    #[test]
    fn a_trial_that_fails_ends_the_search() {
        assert_eq!(greatest(64, 0.0, &mut Trials::new(), |_| Err("no daemon")), Err("no daemon"));
    }
}
