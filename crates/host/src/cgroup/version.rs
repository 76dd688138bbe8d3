//! The versions of control groups, and their weights.

use sluice_policy::sched::weight;

/// The kernel's two kinds of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each controller; the weight is `cpu.shares`.
    V1,
    /// One hierarchy for all; the weight is `cpu.weight`.
    V2,
}

impl Version {
    /// Name of the weight file.
    pub fn file(self) -> &'static str {
        match self {
            Self::V1 => "cpu.shares",
            Self::V2 => "cpu.weight",
        }
    }

    /// Smallest and largest weight.
    pub fn range(self) -> (u64, u64) {
        match self {
            Self::V1 => (2, 262_144),
            Self::V2 => (1, 10_000),
        }
    }

    /// The kernel's default weight, and that of a process outside of cgroups.
    pub(crate) fn default_weight(self) -> u64 {
        match self {
            Self::V1 => 1024,
            Self::V2 => 100,
        }
    }

    /// The weight for a share, 0 to 1, within the kernel's range. 1 % is the default weight.
    pub fn weight(self, share: f64) -> u64 {
        match self {
            Self::V1 => weight::cgroup_v1(share),
            Self::V2 => weight::cgroup_v2(share),
        }
    }

    /// The weight of a folder with this number of NFs.
    pub(super) fn weight_of_all(self, nfs: usize) -> u64 {
        let (least, most) = self.range();
        (nfs as u64).saturating_mul(self.default_weight()).clamp(least, most)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V1 => "cgroup v1 (cpu.shares)",
            Self::V2 => "cgroup v2 (cpu.weight)",
        })
    }
}
