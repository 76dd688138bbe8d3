//! What this node has for NFs.

use std::path::Path;

use sluice_api::config::Config;
use sluice_api::promise::Promises;
use sluice_cache::host::Processor;
use sluice_cache::resctrl::Resctrl;
use sluice_cache::{CacheControl, CacheError};

/// The mechanism that sluiced names where it can give cache ways.
const RESCTRL: &str = "resctrl";

/// What a node has for NFs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The processor's model name.
    pub cpu: String,
    /// Cores, as a placement counts them.
    pub cores: u32,
    /// Ways of the last-level cache; 0 where sluiced can give none.
    pub ways: u32,
    /// Least ways of a cache class.
    pub min_ways: u32,
    /// Bytes of a way, if known.
    pub way_bytes: Option<u64>,
}

/// Why it is not known what a node has for NFs.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("`cores` in [promises] of sluiced's configuration is empty: name the cores that NFs may have")]
    NoCores,
    #[error("sluiced gives cache ways by resctrl, which cannot be read here: {0}; is it mounted in this container, too?")]
    Cache(#[from] CacheError),
}

impl Host {
    /// What a node has whose daemon has this configuration and reports this. `system` is the root
    /// directory of `/sys` and `/proc`.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn of(config: &Config, reported: &Promises, system: &Path) -> Result<Self, HostError> {
        let settings = &config.promises;
        let cores = u32::try_from(settings.cores.len()).unwrap_or(u32::MAX);
        if cores == 0 {
            return Err(HostError::NoCores);
        }
        let cpu = Processor::read(system).model;
        if reported.cache != RESCTRL {
            return Ok(Self { cpu, cores, ways: 0, min_ways: 1, way_bytes: None });
        }
        let control = Resctrl::open(&settings.resctrl, system)?;
        let shape = control.shape();
        // The ways of devices are the system's, which has a class of its own.
        let system_ways = shape.io_mask.count_ones().max(shape.min_ways);
        Ok(Self {
            cpu,
            cores,
            ways: shape.ways.saturating_sub(system_ways),
            min_ways: shape.min_ways,
            way_bytes: shape.domains.iter().filter_map(|domain| domain.way_bytes).min(),
        })
    }
}

#[cfg(test)]
mod tests {
    use sluice_resctrl_stand_in::{Machine, StandIn};

    use super::*;

    fn config(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    fn reported(cache: &str) -> Promises {
        Promises { cache: cache.into(), ..Promises::default() }
    }

    #[test]
    fn cores_are_those_of_the_configuration() {
        let nowhere = Path::new("/nowhere");
        let host = Host::of(&config("[promises]\ncores = [1, 2, 2]\n"), &reported("none"), nowhere).unwrap();
        assert_eq!((host.cores, host.ways, host.way_bytes), (3, 0, None));
        let error = Host::of(&config(""), &reported("none"), nowhere).unwrap_err();
        assert!(error.to_string().contains("name the cores"), "{error}");
        let error = Host::of(&config("[promises]\ncores = [1]\nresctrl = \"/nowhere\"\n"), &reported("resctrl"), nowhere);
        assert!(error.unwrap_err().to_string().contains("mounted in this container"));
    }

    #[test]
    fn ways_are_those_that_devices_do_not_use() {
        let Some(resctrl) = StandIn::for_test(Machine::default()) else { return };
        let text = format!("[promises]\ncores = [1]\nresctrl = {:?}\n", resctrl.path());
        let host = Host::of(&config(&text), &reported("resctrl"), Path::new("/nowhere")).unwrap();
        assert_eq!((host.cores, host.ways, host.min_ways), (1, 18, 1), "of 20 ways, devices use 2");
        let none = Host::of(&config(&text), &reported("none"), Path::new("/nowhere")).unwrap();
        assert_eq!(none.ways, 0, "sluiced does not give them");
    }
}
