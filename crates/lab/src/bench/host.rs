//! The host of an experiment: its processor, and the order in which cores are used.
//!
//! Everything is read, nothing is changed. Hardware threads of one physical core disturb each
//! other. So one thread of each physical core comes first, and the others are a last resort.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluice_cache::host::Processor;
use sluice_shm::clock::Clock;

/// The host, as a result describes it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct HostInfo {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    /// Whether packet memory was on hugepages.
    pub hugepages: bool,
    /// Version of DPDK; none where no port was a DPDK device.
    pub dpdk: Option<String>,
    /// Frequency of the time-stamp counter, whose ticks are the cycles of this result. It is
    /// measured against the kernel's clock, and is not the current frequency of a core. None
    /// without such a counter.
    pub tsc_hz: Option<f64>,
}

impl HostInfo {
    /// Reads it from the host, in 50 ms.
    pub fn read(cores: &Cores) -> Self {
        let cpu = Processor::read(Path::new("/")).model;
        Self {
            cpu: if cpu.is_empty() { std::env::consts::ARCH.into() } else { cpu },
            cores: cores.all.len(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            hugepages: false,
            dpdk: None,
            tsc_hz: tsc_hz(),
        }
    }
}

pub fn tsc_hz() -> Option<f64> {
    let mut clock = Clock::new();
    std::thread::sleep(std::time::Duration::from_millis(50));
    clock.resync();
    // The scale is nanoseconds per tick, times 2³².
    (clock.scale_raw() > 0).then(|| 1e9 * 2f64.powi(32) / clock.scale_raw() as f64)
}

/// Cores that an experiment may use, in order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    all: Vec<usize>,
    /// How many of them are distinct physical cores.
    physical: usize,
}

impl Cores {
    /// The cores of this process, on this host.
    pub fn here() -> Self {
        let allowed = rustix::thread::sched_getaffinity(None)
            .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect::<Vec<_>>())
            .unwrap_or_default();
        Self::of(&allowed, Path::new("/sys"))
    }

    /// `allowed` in order of preference, by the topology below `sys`.
    fn of(allowed: &[usize], sys: &Path) -> Self {
        let mut seen = BTreeSet::new();
        let (first, rest): (Vec<usize>, Vec<usize>) = allowed.iter().partition(|core| {
            let path = sys.join(format!("devices/system/cpu/cpu{core}/topology/thread_siblings_list"));
            // Without topology, each core counts as a physical one.
            seen.insert(std::fs::read_to_string(path).unwrap_or_else(|_| core.to_string()).trim().to_string())
        });
        Self { physical: first.len(), all: [first, rest].concat() }
    }

    /// The manager's core.
    ///
    /// # Errors
    /// There are fewer than two.
    pub fn manager(&self) -> anyhow::Result<usize> {
        anyhow::ensure!(
            self.all.len() >= 2,
            "this experiment needs two cores, one for the manager and one for NFs, and may use {}; give it more (taskset, cgroup)",
            self.all.len()
        );
        Ok(self.all[0])
    }

    pub fn shared(&self) -> usize {
        self.all.get(1).copied().unwrap_or(self.all[0])
    }

    /// All but the manager's; never empty.
    pub fn besides_manager(&self) -> Vec<usize> {
        if self.all.len() > 1 { self.all[1..].to_vec() } else { self.all.clone() }
    }

    /// A separate core for each of `nfs` NFs, besides the manager's; or the reason why there are
    /// too few.
    pub fn own(&self, nfs: usize) -> Result<&[usize], String> {
        let need = nfs + 1;
        let have = self.physical.max(2.min(self.all.len()));
        if have >= need { Ok(&self.all[1..need]) } else { Err(format!("it needs {need} physical cores, and there are {have}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sys(siblings: &[(usize, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (core, list) in siblings {
            let folder = root.path().join(format!("devices/system/cpu/cpu{core}/topology"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("thread_siblings_list"), format!("{list}\n")).unwrap();
        }
        root
    }

    #[test]
    fn physical_cores_come_first() {
        let root = sys(&[(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")]);
        let cores = Cores::of(&[0, 1, 2, 3], root.path());
        assert_eq!(cores, Cores { all: vec![0, 2, 1, 3], physical: 2 });
        assert_eq!((cores.manager().unwrap(), cores.shared()), (0, 2));
        assert_eq!(cores.besides_manager(), [2, 1, 3]);
        assert_eq!(cores.own(1).unwrap(), [2]);
        assert_eq!(cores.own(2).unwrap_err(), "it needs 3 physical cores, and there are 2");
    }

    #[test]
    fn two_threads_of_one_core_are_better_than_nothing() {
        let root = sys(&[(4, "4,12"), (12, "4,12")]);
        let cores = Cores::of(&[4, 12], root.path());
        assert_eq!(cores.own(1).unwrap(), [12]);
        assert!(cores.own(2).is_err());
    }

    #[test]
    fn one_core_is_too_few() {
        let cores = Cores::of(&[5], Path::new("/nowhere"));
        assert!(cores.manager().unwrap_err().to_string().contains("may use 1"));
    }
}
