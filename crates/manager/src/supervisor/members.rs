//! The instances over which new flows of a service are spread, and how many each gets.

use std::collections::BTreeMap;

use super::Supervisor;
use super::nfs::{Nf, canary_parts};
use sluice_dataplane::chain::Member;

impl Supervisor {
    /// The members of each service. `parts` of an NF are how many times it is among them, 1 if it
    /// has none there; with none it keeps its flows and gets no new ones.
    pub(super) fn spread(&self, parts: &BTreeMap<u16, u32>) -> Vec<Vec<Member>> {
        let parts_of = |nf: &Nf| parts.get(&nf.number).copied().unwrap_or(1);
        let of_service = |(number, service): (usize, &Option<super::ServiceState>)| {
            // Only the pool's steering chooses its members.
            let shared = service.as_ref().filter(|s| s.pool.is_none());
            let instances = shared.map_or(&[][..], |s| &s.instances);
            let runs = |nf: &&Nf| nf.life().takes_packets();
            let living = instances.iter().filter_map(|n| self.nfs.get(n)).filter(runs);
            // Where all running instances are to end their flows, new flows still go to them.
            let none_open = living.clone().all(|nf| parts_of(nf) == 0);
            let thread_of = |nf: &Nf| match shared {
                Some(service) if service.config.is_inline() => Some(self.plane.receiver(nf.core)),
                Some(service) if self.is_sharded(&service.config) => Some(self.plane.division().drains(nf.number) as u16),
                _ => None,
            };
            let member = |nf: &Nf, parts: u32| Member {
                thread: thread_of(nf),
                nf: nf.number,
                id: nf.position.spread_id,
                former: nf.position.former,
                is_open: none_open || parts > 0,
            };
            let canary = self.canary_of(number as u16).and_then(|(nf, percent)| Some((self.nfs.get(&nf).filter(runs)?, percent)));
            let others: u32 = living.clone().map(parts_of).sum();
            // Alone it would get all flows.
            let canary = canary.filter(|_| others > 0);
            let (times, own) = canary.map_or((1, 0), |(_, percent)| canary_parts(others, percent));
            let usual = living.flat_map(|nf| several(member(nf, parts_of(nf)), parts_of(nf).max(1) * times));
            usual.chain(canary.into_iter().flat_map(|(nf, _)| several(member(nf, own), own))).collect()
        };
        self.services.iter().enumerate().map(of_service).collect()
    }
}

/// A member repeated `times` times under different ids, so that it gets that many times the flows.
fn several(member: Member, times: u32) -> impl Iterator<Item = Member> {
    (0..u64::from(times)).map(move |n| Member { id: member.id.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), ..member })
}
