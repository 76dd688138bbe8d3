//! Eviction of the ways that a cache class has lost.
//!
//! # Problem
//! A class that shrinks keeps the lines in its former ways, and hits them there until they are
//! replaced. On a quiet host they are not: an NF would be measured with more cache than it has.
//!
//! # Approach
//! Those ways belong to the root class now. A thread in that class, on another core behind the same
//! cache, writes memory of twice the size of the cache, in several passes.
//!
//! # Limits
//! The processor chooses the lines to evict, so some may stay. Ways in no class, because other
//! groups cut off the root class from them, stay as they are.

use std::hint::black_box;

use sluice_cache::control::Shape;

use super::chase::free_bytes;
use sluice_host::affinity;

/// Size of the written memory, relative to the cache.
const TIMES: u64 = 2;
const PASSES: u8 = 2;
/// Bytes of a line, or fewer.
const LINE: usize = 64;

/// The cache of a core.
#[derive(Debug, PartialEq, Eq)]
pub struct Behind {
    bytes: u64,
    /// The other cores behind it.
    cores: Vec<usize>,
}

impl Behind {
    /// The cache of this core; None if its size or its processors are unknown.
    pub fn of(shape: &Shape, core: usize) -> Option<Self> {
        let is_own = |cpu: &u32| usize::try_from(*cpu) == Ok(core);
        let domain = shape.domains.iter().find(|domain| domain.cpus.iter().any(is_own))?;
        let bytes = domain.way_bytes?.checked_mul(u64::from(shape.ways))?;
        let cores = domain.cpus.iter().filter(|cpu| !is_own(cpu)).filter_map(|cpu| usize::try_from(*cpu).ok()).collect();
        Some(Self { bytes, cores })
    }

    /// Fills it from another core. Returns false if no other core behind it is allowed, or there is
    /// too little memory.
    pub fn fill(&self) -> bool {
        let Some(bytes) = self.bytes.checked_mul(TIMES).filter(|bytes| free_bytes().is_some_and(|free| *bytes < free / 2)) else {
            return false;
        };
        let Ok(bytes) = usize::try_from(bytes) else { return false };
        let fill = || {
            // The kernel refuses a core that is not allowed.
            if !self.cores.iter().any(|core| affinity::pin(*core).is_ok()) {
                return false;
            }
            let mut memory = vec![0u8; bytes];
            for pass in 1..=PASSES {
                memory.iter_mut().step_by(LINE).for_each(|byte| *byte = pass);
                black_box(&mut memory);
            }
            true
        };
        std::thread::scope(|scope| scope.spawn(fill).join().unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use sluice_cache::control::Domain;

    use super::*;

    fn shape(domains: Vec<Domain>) -> Shape {
        Shape { ways: 8, ..Shape::without_control(domains) }
    }

    #[test]
    fn the_cache_is_that_of_the_core() {
        let domain = |id, cpus: &[u32]| Domain { id, cpus: cpus.into(), way_bytes: Some(1000 * u64::from(id + 1)) };
        let two = shape(vec![domain(0, &[0, 1]), domain(1, &[2, 3])]);
        assert_eq!(Behind::of(&two, 3), Some(Behind { bytes: 16_000, cores: vec![2] }));
        assert_eq!(Behind::of(&two, 4), None);
        assert_eq!(Behind::of(&shape(vec![Domain { way_bytes: None, ..domain(0, &[0, 1]) }]), 0), None);
    }

    #[test]
    fn it_is_filled_from_another_core_only() {
        let own = affinity::Saved::of_this_thread().unwrap().cores();
        assert!(Behind { bytes: 1 << 20, cores: own.clone() }.fill());
        assert_eq!(affinity::Saved::of_this_thread().unwrap().cores(), own, "this thread stays where it is");
        assert!(!Behind { bytes: 1 << 20, cores: Vec::new() }.fill());
        assert!(!Behind { bytes: u64::MAX, cores: own }.fill());
    }
}
