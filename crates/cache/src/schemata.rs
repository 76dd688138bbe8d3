//! The kernel's text formats: masks, processor lists, and the lines of `schemata`.

use std::collections::BTreeMap;

/// One line: a value for each domain id.
pub type Line = BTreeMap<u32, u32>;

/// How values of a line are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Masks.
    Hex,
    /// Bandwidths.
    Decimal,
}

/// Parses the lines of a file, by resource: `L3`, `L3DATA`, `L3CODE`, `MB`; lines of other
/// resources are skipped. None if a line is malformed.
pub fn parse(text: &str) -> Option<BTreeMap<String, Line>> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (name, values) = line.split_once(':')?;
        let base = match name.trim() {
            "L3" | "L3DATA" | "L3CODE" => Base::Hex,
            "MB" => Base::Decimal,
            _ => continue,
        };
        found.insert(name.trim().to_string(), parse_values(values, base)?);
    }
    Some(found)
}

fn parse_values(values: &str, base: Base) -> Option<Line> {
    let radix = if base == Base::Hex { 16 } else { 10 };
    let value = |part: &str| {
        let (id, value) = part.split_once('=')?;
        Some((id.trim().parse().ok()?, u32::from_str_radix(value.trim(), radix).ok()?))
    };
    values.split(';').map(str::trim).filter(|part| !part.is_empty()).map(value).collect()
}

/// A line in the kernel's format, with its newline.
pub fn line(name: &str, base: Base, values: &Line) -> String {
    let part = |(id, value): (&u32, &u32)| match base {
        Base::Hex => format!("{id}={value:x}"),
        Base::Decimal => format!("{id}={value}"),
    };
    format!("{name}:{}\n", values.iter().map(part).collect::<Vec<_>>().join(";"))
}

/// Processors as the kernel lists them: `0-3,8`.
pub(crate) fn cpu_list(cpus: &[u32]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for cpu in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let run = |(from, to): &(u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// Parses what [`cpu_list`] writes. None if malformed, or with processors beyond 65,535.
pub(crate) fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || to > 65_535 {
            return None;
        }
        found.extend(from..=to);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let text = "    MB:0= 100;2=  50\nL3DATA:0=fffff;2=3\nL3CODE:0=fffff;2=c\n    L2:0=ff\n";
        let found = parse(text).unwrap();
        assert_eq!(found["MB"], Line::from([(0, 100), (2, 50)]));
        assert_eq!(found["L3CODE"], Line::from([(0, 0xfffff), (2, 0xc)]));
        assert_eq!(found.len(), 3);
        assert!(parse("L3:0=xyz\n").is_none() && parse("nonsense\n").is_none());
        assert_eq!(line("L3", Base::Hex, &Line::from([(0, 0xf), (2, 0xf0)])), "L3:0=f;2=f0\n");
        assert_eq!(line("MB", Base::Decimal, &Line::from([(0, 50)])), "MB:0=50\n");
    }

    proptest! {
        #[test]
        fn a_list_of_processors_comes_back(mut cpus in proptest::collection::vec(0u32..500, 0..40)) {
            let text = cpu_list(&cpus);
            cpus.sort_unstable();
            cpus.dedup();
            prop_assert_eq!(parse_cpu_list(&text).unwrap(), cpus);
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,60}") {
            let _ = parse(&text);
            let _ = parse_cpu_list(&text);
        }
    }
}
