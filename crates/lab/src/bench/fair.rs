//! Arithmetic of fairness and of spread.

/// Jain's index of fairness: 1 if all are equal, 1/n if one has everything; none without positive
/// rates.
///
/// Source: Jain, Chiu, Hawe, *A quantitative measure of fairness* (DEC TR-301, 1984).
pub fn jain(rates: &[f64]) -> Option<f64> {
    let squares: f64 = rates.iter().map(|r| r * r).sum();
    let sum: f64 = rates.iter().sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

/// How far the smallest is below the largest, in percent of the largest.
pub fn spread_percent(values: &[f64]) -> Option<f64> {
    // Not a fold with `f64::max`: with it, the test of chain_order's spread failed in a release
    // build of rustc 1.95, as if four of the six values had been looked at. Why is not known.
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    (most > 0.0).then(|| (most - least) / most * 100.0)
}

/// Standard deviation of a population (not of a sample).
pub fn deviation(values: &[f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let mean = mean(values);
    Some((values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt())
}

/// Mean; 0 of an empty slice.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_that_of_the_book() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        // (1 + 2 + 3)² / (3 · 14) = 36 / 42.
        assert!((jain(&[1.0, 2.0, 3.0]).unwrap() - 36.0 / 42.0).abs() < 1e-12);
        // Equal shares of a core for costs 1:2:5:20:40:60, so rates are their inverses.
        let rates = [1.0, 2.0, 5.0, 20.0, 40.0, 60.0].map(|cost| 1.0 / cost);
        // The index is 1.79167² / (6 · 1.29340).
        assert!((jain(&rates).unwrap() - 0.41365).abs() < 1e-4);
        assert_eq!((jain(&[]), jain(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn spread_and_deviation() {
        assert_eq!(spread_percent(&[8.0, 10.0, 9.0]), Some(20.0));
        assert_eq!((spread_percent(&[]), spread_percent(&[0.0])), (None, None));
        assert_eq!(deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), Some(2.0));
        assert_eq!(deviation(&[]), None);
        assert_eq!((mean(&[1.0, 2.0]), mean(&[])), (1.5, 0.0));
    }
}
