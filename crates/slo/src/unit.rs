//! Numbers in notes for people: three digits and a unit.

fn digits(value: f64) -> String {
    match value.abs() {
        0.0..9.995 => format!("{value:.2}"),
        9.995..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The value in the smallest unit in which it is below a thousand.
fn scaled(value: f64, units: [&str; 4]) -> String {
    let mut scaled = value;
    for unit in &units[..3] {
        if scaled.abs() < 999.5 {
            return format!("{} {unit}", digits(scaled));
        }
        scaled /= 1e3;
    }
    format!("{} {}", digits(scaled), units[3])
}

/// Packets per second: `377 kpps`.
pub(crate) fn rate(pps: f64) -> String {
    scaled(pps, ["pps", "kpps", "Mpps", "Gpps"])
}

/// A time, given in microseconds: `6.68 ms`.
pub(crate) fn time(us: f64) -> String {
    scaled(us * 1e3, ["ns", "µs", "ms", "s"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_enough() {
        assert_eq!([rate(377_290.839_269_990_6), rate(999.6), rate(0.0)], ["377 kpps", "1.00 kpps", "0.00 pps"]);
        assert_eq!([time(6.6843e3), time(0.65), time(9.996), time(2e6)], ["6.68 ms", "650 ns", "10.0 µs", "2.00 s"]);
    }
}
