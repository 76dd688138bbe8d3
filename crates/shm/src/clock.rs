//! The monotonic clock, read without a system call.
//!
//! An invariant time-stamp counter (x86-64) is read and scaled; elsewhere the kernel's clock is
//! read. Times are CLOCK_MONOTONIC's, within the drift that [`Clock::resync`] corrects.

use rustix::time::{ClockId, clock_gettime};

/// Fraction bits of the scale.
const SHIFT: u32 = 32;

/// Converts counter readings to nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    base_ticks: u64,
    base_ns: u64,
    /// Nanoseconds per tick, times 2³². 0: read the kernel's clock.
    scale: u64,
}

/// The kernel's monotonic clock, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The processor's counter; the kernel's clock on machines other than x86-64.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC has no memory effects, and every x86-64 processor has it.
    #[allow(unused_unsafe)]
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    monotonic_ns()
}

fn counter_is_invariant() -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has CPUID.
    #[allow(unused_unsafe)]
    unsafe {
        use core::arch::x86_64::__cpuid;
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl Clock {
    /// Calibrates against the kernel's clock, which takes 2 ms. `resync` refines it later.
    pub fn new() -> Self {
        if !counter_is_invariant() {
            return Self::kernel();
        }
        let (t0, n0) = Self::pair();
        while monotonic_ns() - n0 < 2_000_000 {
            std::hint::spin_loop();
        }
        let (t1, n1) = Self::pair();
        Self { base_ticks: t1, base_ns: n1, scale: Self::scale(t1 - t0, n1 - n0) }
    }

    /// The kernel's clock.
    pub fn kernel() -> Self {
        Self { base_ticks: 0, base_ns: 0, scale: 0 }
    }

    /// A clock with a scale that `scale_raw` returned, for a process that must start at once.
    pub fn with_scale(scale: u64) -> Self {
        let (base_ticks, base_ns) = Self::pair();
        Self { base_ticks, base_ns, scale: if counter_is_invariant() { scale } else { 0 } }
    }

    /// Nanoseconds per tick, times 2³²; 0 if the counter is not used.
    pub fn scale_raw(&self) -> u64 {
        self.scale
    }

    /// Nanoseconds of a tick; 1 if the counter is not used.
    pub fn ns_per_tick(&self) -> f64 {
        if self.scale == 0 { 1.0 } else { self.scale as f64 / (1u64 << SHIFT) as f64 }
    }

    fn scale(ticks: u64, ns: u64) -> u64 {
        ((u128::from(ns) << SHIFT) / u128::from(ticks.max(1))) as u64
    }

    /// A reading of both clocks at one moment: the closest of five tries.
    fn pair() -> (u64, u64) {
        (0..5)
            .map(|_| {
                let before = ticks();
                let ns = monotonic_ns();
                let after = ticks();
                (after - before, before + (after - before) / 2, ns)
            })
            .min_by_key(|(width, ..)| *width)
            .map(|(_, at, ns)| (at, ns))
            .expect("five tries were made")
    }

    /// Now, in nanoseconds of CLOCK_MONOTONIC.
    #[inline(always)]
    pub fn now_ns(&self) -> u64 {
        if self.scale == 0 {
            return monotonic_ns();
        }
        self.at(ticks())
    }

    /// The time of a counter reading, in nanoseconds.
    #[inline(always)]
    pub fn at(&self, ticks: u64) -> u64 {
        // Saturating: the counter of another core may lag a little behind the base.
        self.base_ns + ((u128::from(ticks.saturating_sub(self.base_ticks)) * u128::from(self.scale)) >> SHIFT) as u64
    }

    /// Measures the scale since the last call, and corrects the drift. Call it about every second;
    /// it costs below 1 µs. Time never runs backwards: each line starts where the last one ends.
    pub fn resync(&mut self) {
        if self.scale == 0 {
            return;
        }
        let (ticks, ns) = Self::pair();
        let passed = ticks.wrapping_sub(self.base_ticks);
        if passed < 1_000_000 {
            return;
        }
        let ours = self.at(ticks);
        let measured = Self::scale(passed, ns.saturating_sub(self.base_ns).max(1));
        // A suspended machine makes nonsense of one interval, so only small corrections are taken.
        if measured.abs_diff(self.scale) < self.scale / 100 {
            self.scale = measured;
        }
        self.base_ticks = ticks;
        self.base_ns = ours.max(ns);
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_never_runs_backwards_and_stays_near_the_kernels() {
        let mut clock = Clock::new();
        let mut last = 0;
        for i in 0..200_000 {
            if i % 50_000 == 0 {
                clock.resync();
            }
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
        assert!(clock.now_ns().abs_diff(monotonic_ns()) < 50_000_000);
    }
}
