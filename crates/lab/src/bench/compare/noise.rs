//! How far numbers scatter, and how improbable it is that they scatter as far as one of them.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

use crate::bench::report::median;

/// Makes a spread of normal numbers their standard deviation.
const OF_GAPS: f64 = 2.2219;
/// The same for two to nine numbers, relative to that for many.
const OF_FEW: [f64; 8] = [0.399, 0.994, 0.512, 0.844, 0.611, 0.857, 0.669, 0.872];

/// How far numbers scatter: about their standard deviation, whatever less than half of them are.
///
/// It is Qn of P. J. Rousseeuw and C. Croux, Alternatives to the Median Absolute Deviation (1993):
/// a quarter of the distances between two numbers are smaller. Where those are 0, as of times in
/// steps, it is the mean distance from the median. 0 of fewer than two numbers.
pub fn spread(numbers: &[f64]) -> f64 {
    let n = numbers.len();
    if n < 2 {
        return 0.0;
    }
    let mut gaps: Vec<f64> = (1..n).flat_map(|at| numbers[..at].iter().map(move |other| (numbers[at] - other).abs())).collect();
    let half = n / 2 + 1;
    let (_, gap, _) = gaps.select_nth_unstable_by(half * (half - 1) / 2 - 1, f64::total_cmp);
    let of_number = match n {
        2..=9 => OF_FEW[n - 2],
        n if n % 2 == 1 => n as f64 / (n as f64 + 1.4),
        n => n as f64 / (n as f64 + 3.8),
    };
    if *gap > 0.0 {
        return OF_GAPS * of_number * *gap;
    }
    let middle = middle(numbers);
    numbers.iter().map(|number| (number - middle).abs()).sum::<f64>() / n as f64 * FRAC_PI_2.sqrt()
}

/// The median of numbers in any order.
pub fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    median(&sorted)
}

/// Standard error of the median of numbers, which were measured one after another.
///
/// Neighbours are alike where the host changes slowly. So the numbers count as fewer, by their
/// correlation ρ with the next: n (1 − ρ) / (1 + ρ) (G. V. Bayley and J. M. Hammersley, The
/// "Effective" Number of Independent Observations in an Autocorrelated Time Series, 1946).
pub fn error_of_median(numbers: &[f64]) -> f64 {
    let middle = middle(numbers);
    let from_middle: Vec<f64> = numbers.iter().map(|number| number - middle).collect();
    let all: f64 = from_middle.iter().map(|one| one * one).sum();
    let with_next: f64 = from_middle.windows(2).map(|two| two[0] * two[1]).sum();
    let alike = if all > 0.0 { (with_next / all).max(0.0) } else { 0.0 };
    let independent = (numbers.len() as f64 * (1.0 - alike) / (1.0 + alike)).max(1.0);
    // The median of normal numbers scatters by √(π/2) more than their mean.
    spread(numbers) * (FRAC_PI_2 / independent).sqrt()
}

/// Probability that a number is at least as many standard deviations from 0, on either side, if the
/// deviation is itself known from numbers only, one more than `freedom`.
///
/// It is that of Student's t, in whole degrees of freedom (M. Abramowitz and I. A. Stegun, Handbook
/// of Mathematical Functions, 26.7.3 and 26.7.4).
pub fn p_of_t(deviations: f64, freedom: usize) -> f64 {
    let freedom = freedom.max(1);
    let angle = (deviations.abs() / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let is_even = freedom.is_multiple_of(2);
    let (first, mut sum, mut term) = if is_even { (2, 0.0, 1.0) } else { (3, 0.0, cos) };
    for k in (first..=freedom).step_by(2) {
        sum += term;
        term *= (k - 1) as f64 / k as f64 * cos * cos;
    }
    let within = if is_even { sin * sum } else { FRAC_2_PI * (angle + sin * sum) };
    (1.0 - within).clamp(0.0, 1.0)
}

/// Probabilities of several tests, each as that of any of them being so improbable by chance (S.
/// Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979).
pub fn of_any(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let (mut out, mut least) = (vec![0.0; order.len()], 0.0f64);
    for (rank, at) in order.iter().enumerate() {
        least = least.max(probabilities[*at] * (order.len() - rank) as f64).min(1.0);
        out[*at] = least;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_most() {
        // Of ten numbers, the 15th of 45 distances: half of them are to neighbours.
        let steps: Vec<f64> = (0..10).map(f64::from).collect();
        assert!((spread(&steps) - 2.2219 * 10.0 / 13.8 * 2.0).abs() < 1e-9, "{}", spread(&steps));
        let mut wild = steps.clone();
        wild[9] = 1e6;
        assert!(spread(&wild) < 1.5 * spread(&steps));
        assert_eq!((spread(&[]), spread(&[7.0]), spread(&[7.0; 5])), (0.0, 0.0, 0.0));
        assert!((spread(&[1.0, 1.0, 1.0, 1.0, 6.0]) - (std::f64::consts::PI / 2.0).sqrt()).abs() < 1e-9, "mostly equal");
        assert_eq!(middle(&[3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn numbers_that_follow_each_other_count_as_fewer() {
        let apart = [0.0, 3.0, 1.0, 2.0, 0.0, 3.0, 1.0, 2.0];
        let mut alike = apart;
        alike.sort_by(f64::total_cmp);
        assert!((error_of_median(&apart) - spread(&apart) * (FRAC_PI_2 / 8.0).sqrt()).abs() < 1e-9);
        assert!(error_of_median(&alike) > 1.5 * error_of_median(&apart));
        assert_eq!(error_of_median(&[1.0; 6]), 0.0);
    }

    #[test]
    fn probabilities_are_those_of_tables() {
        for (t, freedom, p) in
            [(12.706, 1, 0.05), (4.303, 2, 0.05), (3.182, 3, 0.05), (2.571, 5, 0.05), (3.169, 10, 0.01), (3.883, 29, 0.00055)]
        {
            assert!((p_of_t(t, freedom) - p).abs() < 0.02 * p, "{t} {freedom}: {}", p_of_t(t, freedom));
            assert_eq!(p_of_t(-t, freedom), p_of_t(t, freedom));
        }
        assert_eq!((p_of_t(0.0, 4), p_of_t(f64::INFINITY, 4)), (1.0, 0.0));
    }

    #[test]
    fn many_tests_make_each_less_sure() {
        assert_eq!(of_any(&[]), Vec::<f64>::new());
        assert_eq!(of_any(&[0.25, 0.0, 0.125, 0.5]), [0.5, 0.0, 0.375, 0.5]);
        assert_eq!(of_any(&[0.5, 0.75]), [1.0, 1.0]);
    }
}
