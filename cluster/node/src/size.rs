//! Whether this host has what a plan counts on.
//!
//! A plan has the server that the ServerClass describes, and that may be more than there is. Such a
//! plan is refused before an SLO comes, so that all of them go elsewhere. The daemon itself looks
//! when there is something to place. What cannot be read is taken as it is described.

use std::path::Path;

use sluice_api::config::Config;
use sluice_api::config::promise::Cache;
use sluice_slo::placement::ServerShape;

/// Why a plan is none for this host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error(
        "the ServerClass of this node has {class} cores for NFs, and `cores` in [promises] of its sluiced names {here}: \
         make them the same"
    )]
    Cores { class: u32, here: usize },
    #[error(
        "the ServerClass of this node has {class} ways of the cache, and there are {here}: write llcWays as \
         `sluice doctor` shows it here"
    )]
    Ways { class: u32, here: u32 },
    #[error(
        "the ServerClass of this node has {class} MiB of memory for NFs, and the whole node has {here}: write as \
         memoryMib what NFs may have of it"
    )]
    Memory { class: u64, here: u64 },
}

/// Compares a server with this host, which has `memory_mib` if that is known.
///
/// # Errors
/// [`SizeError`]: the host has less.
pub fn check(shape: &ServerShape, base: &Config, memory_mib: Option<u64>) -> Result<(), SizeError> {
    let (class, here) = (shape.cores, base.promises.cores.len());
    if class as usize > here {
        return Err(SizeError::Cores { class, here });
    }
    let class = shape.llc_ways;
    if let Some(here) = ways(base).filter(|here| class > *here) {
        return Err(SizeError::Ways { class, here });
    }
    let class = shape.memory_mib;
    match memory_mib.filter(|here| class > *here) {
        Some(here) => Err(SizeError::Memory { class, here }),
        None => Ok(()),
    }
}

/// The ways of the cache, where sluiced gives them.
fn ways(base: &Config) -> Option<u32> {
    if base.promises.cache == Cache::None {
        return None;
    }
    let mask = std::fs::read_to_string(base.promises.resctrl.join("info/L3/cbm_mask")).ok()?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()?.count_ones())
}

/// All memory of this host, in MiB. `system` is the root directory of `/proc`.
pub fn memory_mib(system: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(system.join("proc/meminfo")).ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? / 1024)
}

#[cfg(test)]
mod tests {
    use sluice_slo::examples::shape;

    use super::*;

    #[test]
    fn a_class_that_says_more_than_there_is_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("resctrl/info/L3")).unwrap();
        std::fs::write(at("resctrl/info/L3/cbm_mask"), "fffff\n").unwrap();
        std::fs::create_dir(at("proc")).unwrap();
        std::fs::write(at("proc/meminfo"), "MemTotal:       67108864 kB\nMemFree:          812 kB\n").unwrap();
        let base = |cache: &str| -> Config {
            let cores = "cores = [1, 2, 3, 4, 5, 6, 7, 8, 9]";
            toml::from_str(&format!("[promises]\n{cores}\ncache = \"{cache}\"\nresctrl = {:?}\n", at("resctrl"))).unwrap()
        };
        let memory = memory_mib(folder.path());
        assert_eq!((memory, memory_mib(&at("none"))), (Some(65536), None));
        let look = |shape: &ServerShape| check(shape, &base("auto"), memory);
        look(&shape()).unwrap();
        assert_eq!(look(&ServerShape { cores: 10, ..shape() }), Err(SizeError::Cores { class: 10, here: 9 }));
        assert_eq!(look(&ServerShape { memory_mib: 65537, ..shape() }), Err(SizeError::Memory { class: 65537, here: 65536 }));
        let more = ServerShape { llc_ways: 21, ..shape() };
        assert_eq!(look(&more), Err(SizeError::Ways { class: 21, here: 20 }));
        check(&more, &base("none"), memory).unwrap();
        check(&ServerShape { memory_mib: u64::MAX, ..shape() }, &base("auto"), None).unwrap();
    }
}
