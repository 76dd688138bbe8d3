//! The greatest load with no more than a given loss, by trials.
//!
//! # Approach
//! A load is a number of steps. The search halves the interval between a load that is carried and
//! one that is not. A load is carried if one of two trials loses no more than the threshold: half
//! of the trials may be disturbed by other programs of the host. Trials are kept, so that a search
//! with another threshold repeats none.
//!
//! # Source
//! MLRsearch of the IETF's benchmarking group, where NDR is the search without loss and PDR the one
//! with a small loss. Its trials grow longer as the interval shrinks; ours all have one length.

use std::collections::BTreeMap;

/// Most trials of a load.
const TRIALS: usize = 2;

/// Losses by load, in the order of the trials.
pub type Trials = BTreeMap<u32, Vec<f64>>;

/// The greatest load of 1 to `most` steps with a loss of at most `threshold`, or 0.
///
/// `trial` returns the part that is lost at a load.
///
/// # Errors
/// A trial failed.
pub fn greatest<E>(most: u32, threshold: f64, trials: &mut Trials, mut trial: impl FnMut(u32) -> Result<f64, E>) -> Result<u32, E> {
    let (mut carried, mut too_much) = (0, most + 1);
    while carried + 1 < too_much {
        let load = u32::midpoint(carried, too_much);
        let losses = trials.entry(load).or_default();
        while losses.len() < TRIALS && losses.iter().all(|loss| *loss > threshold) {
            losses.push(trial(load)?);
        }
        let is_carried = losses.iter().any(|loss| *loss <= threshold);
        *(if is_carried { &mut carried } else { &mut too_much }) = load;
    }
    Ok(carried)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Searches among 64 loads. Those up to `lossless` lose nothing, and each further one a
    /// thousandth more. Returns the load and the number of trials.
    fn search(lossless: u32, threshold: f64, trials: &mut Trials) -> (u32, usize) {
        let mut count = 0;
        let trial = |load: u32| {
            count += 1;
            Ok::<f64, Infallible>(f64::from(load.saturating_sub(lossless)) / 1000.0)
        };
        let found = greatest(64, threshold, trials, trial).unwrap();
        (found, count)
    }

    #[test]
    fn the_greatest_load_is_found_with_any_threshold() {
        for lossless in 0..=64 {
            let mut trials = Trials::new();
            let (ndr, first) = search(lossless, 0.0, &mut trials);
            let (pdr, second) = search(lossless, 0.005, &mut trials);
            assert_eq!((ndr, pdr), (lossless, (lossless + 5).min(64)));
            // Two searches of seven loads, with two trials each, would be 28.
            assert!(first + second <= 20, "{first} {second}");
            assert_eq!(trials.values().map(Vec::len).sum::<usize>(), first + second);
        }
    }

    #[test]
    fn one_disturbed_trial_of_a_load_does_not_count() {
        let mut seen = Trials::new();
        let disturbed = |load: u32| {
            let of_load = seen.entry(load).or_default();
            of_load.push(0.0);
            Ok::<f64, Infallible>(if load > 20 || of_load.len() == 1 { 0.1 } else { 0.0 })
        };
        assert_eq!(greatest(64, 0.0, &mut Trials::new(), disturbed), Ok(20));
    }

    #[test]
    fn a_trial_that_fails_ends_the_search() {
        assert_eq!(greatest(64, 0.0, &mut Trials::new(), |_| Err("no daemon")), Err("no daemon"));
    }
}
