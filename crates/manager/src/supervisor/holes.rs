//! Handling of NFs that make holes in shared memory: see [`sluice_shm::hole`].
//!
//! A missing page is private to the daemon until it is mended, and packets in it are lost. An NF
//! that has a hole in its own region has made it. A hole in a core page or in packet memory may be
//! the work of any NF that has it mapped; those with additional rights are suspected first.
//!
//! Where the host has a page, it fills the hole at the next touch. Nothing breaks, but the touch
//! costs the packet thread time, and so all tenants. Such holes are seen at a tick by the number of
//! pages that the memory has. Each tick with fewer than before is a violation of each NF that has
//! the memory mapped and whose rights let it make a hole. If there is none, it is nobody's.
//!
//! # Limits
//! Only fewer pages at a tick count. A hole that is filled between two ticks is not seen; the
//! longer holes keep the packet thread busy, the more likely one is open at a tick. Nor is one that
//! an NF makes after it has touched as many pages that the memory did not have. An honest NF with
//! such rights can have violations where memory is short: the kernel takes pages that nobody has
//! written to, and the parts of transparent hugepages behind the end of a file. None is ever
//! forgotten.

use std::collections::HashMap;
use std::sync::Arc;

use sluice_shm::hole;
use sluice_shm::memory::Mapping;

use super::Supervisor;
use super::nfs::Nf;
use super::upgrade::Purpose;
use sluice_api::config::Service;
use sluice_dataplane::handle::{StopReason, Violation};

#[derive(Debug, Default)]
pub(super) struct Holes {
    seen: u64,
    is_broken: bool,
}

/// Whether an NF's rights let it make a hole: its filter does not deny it. That of a container
/// always does, whatever the keys say.
fn may_make(service: &Service) -> bool {
    service.attach || service.container.is_none() && (service.storage || !service.filter)
}

impl Supervisor {
    /// Stops NFs that have made holes, and mends memory.
    pub(super) fn see_holes(&mut self) {
        self.count_filled();
        let count = hole::count();
        if count != self.host.holes.seen {
            self.host.holes.seen = count;
            self.host.holes.is_broken = true;
            let is_of_shadow = self.end_shadows_that_dig();
            self.end_those_that_dig(is_of_shadow);
        }
        if self.host.holes.is_broken {
            self.mend();
        }
    }

    /// Counts holes that the host fills.
    fn count_filled(&self) {
        // Each page and arena is looked at once: the answer is about what was lost since then.
        let (mut pages, mut arenas) = (HashMap::new(), HashMap::new());
        for nf in self.that_map().filter(|nf| self.may_make_holes(nf)) {
            let Some(handle) = &nf.handle else { continue };
            let page = nf.place.as_ref().and_then(|place| self.plane.page_memory(place));
            let arena = nf.place.as_ref().and_then(|place| self.plane.memory_of(place));
            let losses = [
                handle.region.memory.has_lost_pages(),
                page.is_some_and(|page| *pages.entry(std::ptr::from_ref(page)).or_insert_with(|| page.has_lost_pages())),
                arena.is_some_and(|arena| *arenas.entry(arena.number).or_insert_with(|| arena.file().has_lost_pages())),
            ];
            if losses.contains(&true) {
                handle.violates(Violation::Hole, 1, self.config.manager.max_violations);
            }
        }
    }

    /// Ends shadows with a hole in their memory, which no NF has. Returns whether there are any.
    /// Their memory is not mended: it goes with them.
    fn end_shadows_that_dig(&mut self) -> bool {
        let mut is_any = false;
        for upgrade in &mut self.changes.upgrades {
            let Purpose::Shadow(trial, _) = &upgrade.purpose else { continue };
            if trial.has_hole() {
                let why = "a page of its memory was missing, and it may have made the hole; if the host was out of memory, give it more \
                           and begin the shadow again";
                upgrade.trial.fails_for(why.into());
                is_any = true;
            }
        }
        is_any
    }

    /// `is_known`: a hole was found elsewhere.
    fn end_those_that_dig(&self, is_known: bool) {
        let mut named = Vec::new();
        for nf in self.that_map() {
            let Some(handle) = &nf.handle else { continue };
            if handle.region.memory.mapping().holes() > 0 {
                named.push((nf, "its own rings"));
            }
        }
        let broken = |mapping: &Arc<Mapping>| mapping.holes() > 0;
        let at_page = |nf: &&Nf| {
            let memory = nf.place.as_ref().and_then(|place| self.plane.page_memory(place));
            memory.is_some_and(|memory| broken(memory.mapping()))
        };
        let page: Vec<&Nf> = self.that_map().filter(at_page).collect();
        named.extend(self.suspects(page).into_iter().map(|nf| (nf, "the page of its core")));
        for memory in self.plane.memories().iter().filter(|memory| memory.file().holes() > 0) {
            // The NFs of the tenant; none for memory that no NF maps.
            let maps = |nf: &&Nf| nf.place.as_ref().is_some_and(|place| place.memory == memory.number);
            let all: Vec<&Nf> = self.that_map().filter(|nf| nf.handle.is_some() && maps(nf)).collect();
            named.extend(self.suspects(all).into_iter().map(|nf| (nf, "packet memory")));
        }
        if named.is_empty() && !is_known {
            warn!("a page of shared memory was missing and no NF has that memory; the host may be out of memory or hugepages");
        }
        for (nf, what) in named {
            warn!(
                "a page of {what} was missing, which {} has mapped and may have made a hole in; it is stopped. If the host was \
                 out of memory or hugepages, give it more and start the NF again",
                nf.name
            );
            if let Some(handle) = &nf.handle {
                handle.note_violation(Violation::Hole);
                handle.ask_to_stop(StopReason::Violations);
            }
            nf.kill();
        }
    }

    /// The NFs that map shared memory. Foreign ones and those in packet threads have a slot and
    /// rings that only the daemon maps.
    fn that_map(&self) -> impl Iterator<Item = &Nf> {
        self.nfs.values().filter(|nf| nf.foreign.is_none() && !nf.is_inline())
    }

    /// The NFs that share a mapping and whose rights let them make a hole; all, if none has.
    fn suspects<'a>(&self, nfs: Vec<&'a Nf>) -> Vec<&'a Nf> {
        let able: Vec<&Nf> = nfs.iter().filter(|nf| self.may_make_holes(nf)).copied().collect();
        if able.is_empty() { nfs } else { able }
    }

    fn may_make_holes(&self, nf: &Nf) -> bool {
        self.service_of(nf).is_some_and(|service| may_make(&service.config))
    }

    /// Fills the holes as far as there is memory; the next tick tries the rest again.
    fn mend(&mut self) {
        let pages = self.nfs.values().filter_map(|nf| self.plane.page_memory(nf.place.as_ref()?));
        let regions = self.nfs.values().filter_map(|nf| Some(&nf.handle.as_ref()?.region.memory));
        let arenas = self.plane.memories().iter().filter(|memory| !memory.file().mend()).count();
        // Both are attempted for all, without stopping at a failure.
        self.host.holes.is_broken = pages.chain(regions).filter(|memory| !memory.mend()).count() + arenas > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nf_may_make_holes_where_no_filter_denies_it() {
        const CONTAINER: &str = "exec = \"/nf\"\ncontainer = { root = \"/srv/nf\" }";
        let may = |keys: &str| may_make(&toml::from_str(&format!("name = \"nf\"\n{keys}")).unwrap());
        for keys in ["storage = true", "filter = false", "attach = true"] {
            assert!(may(keys), "{keys}");
        }
        assert!(!may("exec = \"nf\"") && !may(CONTAINER));
        // Containers have the whole filter.
        for keys in ["storage = true", "filter = false"] {
            assert!(!may(&format!("{CONTAINER}\n{keys}")), "{keys}");
        }
    }
}
