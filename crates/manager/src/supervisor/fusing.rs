//! Chains of which `status` says what one process would save ([`sluice_policy::plan::fusing`]).
//!
//! Only isolated chains that the configuration allows to be fused as they are, without a polling
//! NF. A chain with an SLO keeps what was measured of its services. A service that several chains
//! pass rules its chains out: how much of its work is whose is not measured.

use std::collections::HashMap;

use super::Supervisor;
use super::nfs::State;
use sluice_api::config::{Chain, Mode, Run, hop};
use sluice_api::model as api;
use sluice_config::fuse;
use sluice_config::host::Host;
use sluice_config::validate::MAX_NAME;
use sluice_policy::plan::fusing::{Measured, saving};

impl Supervisor {
    pub(super) fn fusable(&self) -> Vec<api::Fusable> {
        let mut users: HashMap<&str, usize> = HashMap::new();
        let hops = self.config.chains.iter().flat_map(|chain| &chain.services);
        hops.for_each(|name| *users.entry(hop(name).0).or_default() += 1);
        let is_alone = |chain: &&Chain| chain.services.iter().all(|name| users.get(name.as_str()) == Some(&1));
        let isolated = self.config.chains.iter().filter(|chain| chain.run == Run::Isolated && chain.services.len() > 1);
        let saves = isolated.filter(is_alone).filter_map(|chain| Some((chain, self.hint(chain)?)));
        let found: Vec<_> = saves.filter(|(chain, _)| self.not_promised(&chain.name).is_ok()).collect();
        if found.is_empty() {
            return Vec::new();
        }
        // It looks for files.
        let host = Host::here();
        found
            .into_iter()
            .filter(|(chain, _)| fuse::could_fuse(&self.config, chain, MAX_NAME, &host))
            .map(|(_, hint)| hint)
            .collect()
    }

    /// What fusing would save, by what is measured of the NFs.
    fn hint(&self, chain: &Chain) -> Option<api::Fusable> {
        let mut nfs = Vec::new();
        for (service, name) in chain.services.iter().enumerate() {
            let state = self.services.get(usize::from(self.service_number(name)?))?.as_ref()?;
            if state.config.mode == Mode::Poll {
                return None;
            }
            for nf in state.instances.iter().filter_map(|number| self.nfs.get(number)) {
                if !nf.is(State::Running) {
                    return None;
                }
                let cpu = &nf.counted.cpu;
                let packet_ns = nf.handle.as_ref()?.load.service_ns.get();
                nfs.push(Measured { service, core: nf.core, used: cpu.percent() / 100.0, pps: cpu.pps(), packet_ns });
            }
        }
        let saving = saving(chain.services.len(), &nfs)?;
        Some(api::Fusable {
            chain: chain.name.clone(),
            services: chain.services.clone(),
            packet_ns: saving.packet_ns,
            core: saving.core as u32,
            saves_percent: saving.saved * 100.0,
        })
    }
}
