//! Random choices that depend only on a seed and the number of a step.
//!
//! So a run can be repeated whatever its timing was.

pub struct Draw(u64);

impl Draw {
    /// The choices of step `step` of the run `seed`.
    pub fn new(seed: u64, step: u64) -> Self {
        let mut draw = Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ step.wrapping_mul(0x2545_f491_4f6c_dd1d));
        draw.next();
        draw
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is above 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `n` of 100 cases.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    /// One of these names; the list is not empty.
    pub fn name(&mut self, of: &[&'static str]) -> &'static str {
        of[self.below(of.len() as u64) as usize]
    }

    /// One of `of`, which is not empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_drawn_the_same_each_time_and_unlike_its_neighbours() {
        let draws = |seed, step| {
            let mut draw = Draw::new(seed, step);
            [(); 8].map(|()| draw.below(1 << 40))
        };
        assert_eq!(draws(7, 12), draws(7, 12));
        assert_ne!(draws(7, 12), draws(7, 13));
        assert_ne!(draws(7, 12), draws(8, 12));
        let mut draw = Draw::new(1, 1);
        assert!((0..100).all(|_| (3..=5).contains(&draw.between(3, 5))));
        assert!((0..100).all(|_| !draw.percent(0) && draw.percent(100)));
    }
}
