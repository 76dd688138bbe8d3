//! Numbers for people: three significant digits and a unit.

/// A number with a prefix: `0`, `12.3`, `1.23 k`, `45.6 M`.
pub fn short(value: f64) -> String {
    let (scaled, prefix) = scale(value);
    format!("{scaled}{}{prefix}", if prefix.is_empty() { "" } else { " " })
}

/// Packets per second: `12.3 M/s`.
pub fn rate(value: f64) -> String {
    let (scaled, prefix) = scale(value);
    format!("{scaled} {prefix}/s")
}

/// Bits per second, from bytes per second: `9.84 Gb/s`.
pub fn bits(bytes_per_s: f64) -> String {
    let (scaled, prefix) = scale(bytes_per_s * 8.0);
    format!("{scaled} {prefix}b/s")
}

/// A time: `900 ns`, `1.23 µs`, `45.6 ms`, `2.00 s`.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..999_500 => format!("{} µs", digits(ns as f64 / 1e3)),
        999_500..999_500_000 => format!("{} ms", digits(ns as f64 / 1e6)),
        _ => format!("{} s", digits(ns as f64 / 1e9)),
    }
}

/// A long time: `12 s`, `3 min 20 s`, `5 h 2 min`, `3 d 4 h`.
pub fn age(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3_600 => format!("{} min {} s", s / 60, s % 60),
        3_600..86_400 => format!("{} h {} min", s / 3_600, s % 3_600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// A count with its digits in threes: `1,234,567`.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Digits and prefix. A value that rounds to four digits takes the next prefix: 999.6 k is 1.00 M.
/// Whole numbers below 1000 stay whole.
fn scale(value: f64) -> (String, &'static str) {
    if value == value.trunc() && value.abs() < 999.5 {
        return (format!("{value:.0}"), "");
    }
    let mut scaled = value;
    for prefix in ["", "k", "M", "G"] {
        if scaled.abs() < 999.5 {
            return (digits(scaled), prefix);
        }
        scaled /= 1e3;
    }
    (digits(scaled), "T")
}

/// Three significant digits.
fn digits(value: f64) -> String {
    if value.abs() >= 99.95 {
        format!("{value:.0}")
    } else if value.abs() >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits_and_a_unit() {
        let shown: Vec<String> = [0.0, 1.0, 12.0, 999.4, 999.6, 12_345.0, 12_345_678.0, 1.5e9].into_iter().map(rate).collect();
        assert_eq!(shown, ["0 /s", "1 /s", "12 /s", "999 /s", "1.00 k/s", "12.3 k/s", "12.3 M/s", "1.50 G/s"]);
        assert_eq!(short(45_600_000.0), "45.6 M");
        assert_eq!(short(7.0), "7");
        assert_eq!(bits(1.25e9), "10.0 Gb/s");
    }

    #[test]
    fn times_change_their_unit() {
        let shown: Vec<String> = [0, 999, 1_000, 1_234, 45_600_000, 999_499_999, 999_500_000, 2_000_000_000].map(time).to_vec();
        assert_eq!(shown, ["0 ns", "999 ns", "1.00 µs", "1.23 µs", "45.6 ms", "999 ms", "1.00 s", "2.00 s"]);
        assert_eq!([5.9, 200.0, 18_120.0, 273_600.0].map(age), ["5 s", "3 min 20 s", "5 h 2 min", "3 d 4 h"]);
    }

    #[test]
    fn counts_are_in_threes() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
