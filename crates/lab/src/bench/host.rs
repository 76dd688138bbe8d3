//! What an experiment says and needs to know of the host: its processor, and which cores to give to whom.
//!
//! Everything is read, nothing is changed. Cores that are hardware threads of one physical core disturb each other, so of each
//! physical core one thread is taken first, and the others only where nothing else is left.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluice_cache::host::Processor;
use sluice_shm::clock::Clock;

/// What a result says of the host.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct HostInfo {
    /// Name of the processor.
    pub cpu: String,
    /// Cores that the experiment may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Whether packet memory stood on hugepages.
    pub hugepages: bool,
    /// Version of DPDK that packets came and went by; none where no port was a DPDK device.
    pub dpdk: Option<String>,
    /// Frequency of the time-stamp counter, whose ticks are the cycles of this result: measured against the kernel's clock, and
    /// not the frequency that a core happens to run at. None where there is no such counter.
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

/// Cores that an experiment may use, the ones to take first in front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    all: Vec<usize>,
    /// How many of them are on physical cores of their own.
    physical: usize,
}

impl Cores {
    /// Those of this process, on this host.
    pub fn here() -> Self {
        let allowed = rustix::thread::sched_getaffinity(None)
            .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect::<Vec<_>>())
            .unwrap_or_default();
        Self::of(&allowed, Path::new("/sys"))
    }

    /// `allowed`, in the order in which to take them, by the topology below `sys`.
    fn of(allowed: &[usize], sys: &Path) -> Self {
        let mut seen = BTreeSet::new();
        let (first, rest): (Vec<usize>, Vec<usize>) = allowed.iter().partition(|core| {
            let path = sys.join(format!("devices/system/cpu/cpu{core}/topology/thread_siblings_list"));
            // Without topology, a core is its own.
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

    /// The core that NFs share.
    pub fn shared(&self) -> usize {
        self.all.get(1).copied().unwrap_or(self.all[0])
    }

    /// All but the manager's; never none.
    pub fn besides_manager(&self) -> Vec<usize> {
        if self.all.len() > 1 { self.all[1..].to_vec() } else { self.all.clone() }
    }

    /// A core of its own for each of `nfs` NFs, besides the manager's; or why there are not enough.
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
