//! Layout of masks: which ways each class gets.
//!
//! # Problem
//! Classes request numbers of ways. The hardware requires masks that do not overlap, on most
//! processors without gaps. The root class, where everything else on the host runs, keeps at least
//! the fewest ways of a mask. I/O ways are left to it and to classes that accept them.
//!
//! # Approach
//! A class that keeps its size keeps its mask if all fit that way. Otherwise all are laid out anew,
//! side by side from the lowest way, those without I/O ways first. A class that moves loses its
//! cached data once. The root class gets the longest run of what is left.
//!
//! # Limits
//! Where other programs' groups split the ways, the side-by-side order may miss a fit that another
//! order has.

/// The fixed constraints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub all: u32,
    /// Ways that devices use too.
    pub io: u32,
    /// Ways of other programs' groups.
    pub taken: u32,
    /// Ways that the root class may have.
    pub root: u32,
    /// Fewest ways of a mask.
    pub min_ways: u32,
    /// Whether masks may have gaps.
    pub sparse: bool,
}

/// The request of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    pub ways: u32,
    /// Whether I/O ways are acceptable.
    pub io: bool,
    /// Its present mask; 0 is none.
    pub mask: u32,
}

/// The resulting masks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Masks of the classes, in the order of the requests.
    pub masks: Vec<u32>,
    pub root: u32,
}

/// A mask of the lowest `ways` bits.
pub fn low(ways: u32) -> u32 {
    u32::MAX.checked_shr(32u32.saturating_sub(ways)).unwrap_or(0)
}

/// The lowest mask of `ways` ways in `free`, without gaps unless `sparse`.
pub fn place(free: u32, ways: u32, sparse: bool) -> Option<u32> {
    if ways == 0 || free.count_ones() < ways {
        return None;
    }
    if sparse {
        let mut mask = free;
        while mask.count_ones() > ways {
            mask &= !(1 << (31 - mask.leading_zeros()));
        }
        return Some(mask);
    }
    (0..=32 - ways).map(|from| low(ways) << from).find(|mask| free & mask == *mask)
}

/// The longest run of `free`, or all of it if `sparse`.
pub fn longest(free: u32, sparse: bool) -> u32 {
    if sparse {
        return free;
    }
    (1..=free.count_ones()).rev().find_map(|ways| place(free, ways, false)).unwrap_or(0)
}

/// Most ways of a new class if all were laid out anew.
pub fn room(wants: &[Want], io: bool, limits: &Limits) -> u32 {
    let fits = |ways: &u32| {
        let mut all = wants.to_vec();
        all.push(Want { ways: *ways, io, mask: 0 });
        lay_out(&all, limits).is_some()
    };
    (1..=limits.all.count_ones()).rev().find(fits).unwrap_or(0)
}

/// Masks for all, or none if they do not fit.
pub fn lay_out(wants: &[Want], limits: &Limits) -> Option<Layout> {
    kept(wants, limits).or_else(|| anew(wants, limits))
}

fn root(used: u32, limits: &Limits) -> Option<u32> {
    let root = longest(limits.root & limits.all & !limits.taken & !used, limits.sparse);
    (root.count_ones() >= limits.min_ways.max(1)).then_some(root)
}

fn allowed(want: &Want, limits: &Limits) -> u32 {
    limits.all & !limits.taken & if want.io { u32::MAX } else { !limits.io }
}

/// Classes stay in place if they can; the largest of the others are placed first.
fn kept(wants: &[Want], limits: &Limits) -> Option<Layout> {
    let stays = |want: &&Want| want.mask.count_ones() == want.ways && want.mask != 0 && want.mask & !allowed(want, limits) == 0;
    let mut used = wants.iter().filter(stays).fold(0, |used, want| used | want.mask);
    let mut masks: Vec<u32> = wants.iter().map(|want| if stays(&want) { want.mask } else { 0 }).collect();
    let mut others: Vec<usize> = (0..wants.len()).filter(|i| masks[*i] == 0).collect();
    others.sort_by_key(|i| std::cmp::Reverse(wants[*i].ways));
    for i in others {
        let free = allowed(&wants[i], limits) & !used;
        // Where it overlaps its old mask most: a class that shrinks or grows loses no more than it
        // must.
        let near = (0..32).map(|from| low(wants[i].ways).checked_shl(from).unwrap_or(0));
        let near = near.filter(|mask| mask.count_ones() == wants[i].ways && free & mask == *mask);
        let near = near.max_by_key(|mask| ((mask & wants[i].mask).count_ones(), std::cmp::Reverse(*mask)));
        let mask = near.or_else(|| place(free, wants[i].ways, limits.sparse))?;
        used |= mask;
        masks[i] = mask;
    }
    Some(Layout { root: root(used, limits)?, masks })
}

fn anew(wants: &[Want], limits: &Limits) -> Option<Layout> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|i| (wants[*i].io, wants[*i].mask.trailing_zeros()));
    let (mut used, mut masks) = (0, vec![0; wants.len()]);
    for i in order {
        let mask = place(allowed(&wants[i], limits) & !used, wants[i].ways, limits.sparse)?;
        used |= mask;
        masks[i] = mask;
    }
    Some(Layout { root: root(used, limits)?, masks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWENTY: Limits = Limits { all: 0xf_ffff, io: 0xc_0000, taken: 0, root: u32::MAX, min_ways: 1, sparse: false };

    fn want(ways: u32, mask: u32) -> Want {
        Want { ways, io: false, mask }
    }

    #[test]
    fn classes_stay_where_they_are_if_that_fits() {
        let layout = lay_out(&[want(4, 0xf0), want(3, 0)], &TWENTY).unwrap();
        assert_eq!(layout, Layout { masks: vec![0xf0, 0x7], root: 0xf_ff00 });
    }

    #[test]
    fn they_are_moved_together_if_it_does_not() {
        // Free: 7, 7 and the two I/O ways; 14 in a row exist only side by side.
        let layout = lay_out(&[want(4, 0x780), want(14, 0)], &TWENTY).unwrap();
        assert_eq!(layout.masks, [0xf, 0x3_fff0]);
        assert_eq!(layout.root, 0xc_0000);
        assert_eq!(lay_out(&[want(4, 0x780), want(15, 0)], &TWENTY), None);
    }

    #[test]
    fn io_ways_are_for_those_that_take_them_and_the_root_keeps_one() {
        let all = Want { ways: 19, io: true, mask: 0 };
        assert_eq!(lay_out(&[all], &TWENTY).unwrap().root, 0x8_0000);
        assert_eq!(lay_out(&[Want { ways: 20, ..all }], &TWENTY), None);
        assert_eq!(lay_out(&[want(19, 0)], &TWENTY), None);
        assert_eq!(room(&[want(4, 0)], false, &TWENTY), 14);
        assert_eq!(room(&[want(4, 0)], true, &TWENTY), 15);
    }

    #[test]
    fn a_class_that_grows_or_shrinks_keeps_what_it_can() {
        assert_eq!(lay_out(&[want(6, 0xf0), want(4, 0xf)], &TWENTY).unwrap().masks, [0x3f0, 0xf]);
        assert_eq!(lay_out(&[want(2, 0xf0), want(4, 0xf)], &TWENTY).unwrap().masks, [0x30, 0xf]);
    }

    #[test]
    fn gaps_are_used_where_masks_may_have_them() {
        let limits = Limits { sparse: true, taken: 0x5555, ..TWENTY };
        assert_eq!(place(0xa, 2, true), Some(0xa));
        let layout = lay_out(&[want(8, 0)], &limits).unwrap();
        assert_eq!(layout.masks[0] & 0x5555, 0);
    }

    proptest! {
        #[test]
        fn layouts_are_sound(
            wants in proptest::collection::vec((1u32..8, any::<bool>(), 0u32..0xf_ffff), 0..6),
            taken in 0u32..0xf_ffff, sparse: bool, min_ways in 1u32..3,
        ) {
            let limits = Limits { taken: taken & (taken >> 3), sparse, min_ways, ..TWENTY };
            let mut wants: Vec<Want> = wants.into_iter().map(|(ways, io, mask)| Want { ways, io, mask }).collect();
            // Present masks of classes do not overlap.
            let mut seen = 0;
            for want in &mut wants {
                want.mask = longest(want.mask & !seen, sparse);
                seen |= want.mask;
            }
            if let Some(layout) = lay_out(&wants, &limits) {
                let mut used = limits.taken;
                for (want, mask) in wants.iter().zip(&layout.masks).chain([(&Want { ways: layout.root.count_ones(), io: true, mask: 0 }, &layout.root)]) {
                    prop_assert_eq!(mask.count_ones(), want.ways);
                    prop_assert_eq!(mask & used, 0);
                    prop_assert!(want.io || mask & limits.io == 0);
                    prop_assert!(sparse || longest(*mask, false) == *mask);
                    used |= mask;
                }
                prop_assert!(layout.root.count_ones() >= min_ways);
            }
        }
    }
}
