//! Parts of a core that are reserved for some of its NFs, whatever load the others have.
//!
//! # Problem
//! Shares by load ([`super::weight`]) follow the NF with the most packets: a tenant that sends ten
//! times its rate gets most of the core, and the others get less than their SLO says.
//!
//! # Terms and units
//! *Part*: what an NF has reserved, 0 to 1 of the core. A *group* of NFs has one part together
//! (those of a chain that share one place). NFs without a part get the rest, at least the floor.
//!
//! # Approach
//! An NF whose share by load is larger than its part keeps it. One with less is lifted to its part,
//! and the others go down in proportion, until none is below. Within a group shares follow the
//! load. An unused part is not lost: shares divide time among the NFs that want it.
//!
//! # Limits
//! Parts of more than the core are scaled down to it. Shares do not say when an NF runs.

/// Reserved part of a core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reservation {
    /// NFs of one group share the part.
    pub group: u32,
    /// Fraction of the core, 0 to 1.
    pub part: f64,
}

/// One group, or an NF without a part.
struct Item {
    share: f64,
    least: f64,
    is_lifted: bool,
}

/// Lifts shares of the NFs of one core, which sum to 1, so that each group has its part. `parts` is
/// in the order of `shares`; `floor` is the least share of an NF without a part.
pub fn keep(shares: &mut [f64], parts: &[Option<Reservation>], floor: f64) {
    let mut items: Vec<Item> = Vec::new();
    let mut groups: Vec<(u32, usize)> = Vec::new();
    let mut of: Vec<usize> = Vec::with_capacity(shares.len());
    for (share, part) in shares.iter().zip(parts.iter().chain(std::iter::repeat(&None))) {
        let known = part.and_then(|part| groups.iter().find(|(group, _)| *group == part.group)).map(|(_, item)| *item);
        let item = known.unwrap_or_else(|| {
            let least = part.map_or(floor, |part| if part.part.is_finite() { part.part.clamp(0.0, 1.0) } else { 0.0 });
            items.push(Item { share: 0.0, least, is_lifted: false });
            groups.extend(part.map(|part| (part.group, items.len() - 1)));
            items.len() - 1
        });
        items[item].share += share;
        of.push(item);
    }
    let before: Vec<f64> = items.iter().map(|item| item.share).collect();
    let promised: f64 = items.iter().map(|item| item.least).sum();
    if promised > 1.0 {
        items.iter_mut().for_each(|item| item.least /= promised);
    }
    lift(&mut items);
    for (share, item) in shares.iter_mut().zip(&of) {
        let members = of.iter().filter(|other| *other == item).count() as f64;
        let now = items[*item].share;
        *share = if before[*item] > 0.0 { now * *share / before[*item] } else { now / members };
    }
}

/// Lifts each to its least. A lifted item stays lifted: others only get less by that.
fn lift(items: &mut [Item]) {
    loop {
        let lifted: f64 = items.iter().filter(|item| item.is_lifted).map(|item| item.least).sum();
        let rest: f64 = items.iter().filter(|item| !item.is_lifted).map(|item| item.share).sum();
        let scale = if rest > 0.0 { (1.0 - lifted).max(0.0) / rest } else { 0.0 };
        let mut has_more = false;
        for item in items.iter_mut().filter(|item| !item.is_lifted && item.share * scale < item.least) {
            item.is_lifted = true;
            has_more = true;
        }
        if !has_more {
            items.iter_mut().for_each(|item| item.share = if item.is_lifted { item.least } else { item.share * scale });
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(group: u32, part: f64) -> Option<Reservation> {
        Some(Reservation { group, part })
    }

    fn of(shares: &[f64], parts: &[Option<Reservation>]) -> Vec<f64> {
        let mut out = shares.to_vec();
        keep(&mut out, parts, 0.01);
        out
    }

    fn close(got: &[f64], expected: &[f64]) {
        assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-9), "{got:?}, expected {expected:?}");
    }

    #[test]
    fn one_that_floods_gets_what_the_others_leave() {
        let quarter = |group| part(group, 0.25);
        // By load a rogue would have 0.79 of the core.
        close(&of(&[0.07, 0.07, 0.07, 0.79], &[quarter(1), quarter(2), quarter(3), quarter(4)]), &[0.25; 4]);
        // An NF that needs more than its part keeps what is not reserved for others.
        close(&of(&[0.1, 0.2, 0.7], &[part(1, 0.2), part(2, 0.2), None]), &[0.2, 0.2, 0.6]);
        close(&of(&[0.9, 0.1], &[part(1, 0.5), None]), &[0.9, 0.1]);
    }

    #[test]
    fn a_chain_shares_its_part_by_load() {
        close(&of(&[0.03, 0.01, 0.96], &[part(1, 0.4), part(1, 0.4), None]), &[0.3, 0.1, 0.6]);
        close(&of(&[0.0, 0.0, 1.0], &[part(1, 0.4), part(1, 0.4), None]), &[0.2, 0.2, 0.6]);
    }

    #[test]
    fn one_without_a_promise_keeps_the_floor() {
        close(&of(&[0.5, 0.5], &[part(1, 1.0), None]), &[1.0 / 1.01, 0.01 / 1.01]);
        close(&of(&[0.5, 0.5], &[None, None]), &[0.5, 0.5]);
        close(&of(&[], &[]), &[]);
    }

    proptest! {
        #[test]
        fn all_is_given_and_parts_are_kept(loads in prop::collection::vec((0.0..10.0f64, 0.0..0.2f64, 0u32..4), 1..8)) {
            let sum: f64 = loads.iter().map(|(load, ..)| load).sum();
            prop_assume!(sum > 0.0);
            let shares: Vec<f64> = loads.iter().map(|(load, ..)| load / sum).collect();
            let of_group = |group| loads.iter().find(|(_, _, g)| *g == group).map_or(0.0, |(_, part, _)| *part);
            let parts: Vec<Option<Reservation>> = loads.iter().map(|(_, _, g)| (*g > 0).then(|| Reservation { group: *g, part: of_group(*g) })).collect();
            let got = of(&shares, &parts);
            prop_assert!((got.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{got:?}");
            let free = parts.iter().filter(|part| part.is_none()).count() as f64 * 0.01;
            let promised: f64 = (1..4).map(of_group).sum::<f64>() + free;
            for group in (1..4).filter(|group| parts.iter().flatten().any(|part| part.group == *group)) {
                let has: f64 = got.iter().zip(&parts).filter(|(_, p)| p.is_some_and(|p| p.group == group)).map(|(s, _)| s).sum();
                prop_assert!(has >= of_group(group) / promised.max(1.0) - 1e-9, "{group}: {has}");
            }
        }
    }
}
