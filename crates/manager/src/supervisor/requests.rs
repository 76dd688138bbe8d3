//! What NFs ask for: a priority within the bounds of their service.
//!
//! An NF writes it in its page ([`NfRequest::Priority`]), and each tick reads it of the services
//! that allow it, of some NFs in turn where there are many. The process is not trusted: what it
//! asks for is brought within the bounds, and changes a few times a second at most
//! ([`PriorityRequest`]). It takes effect as `sluice set service NAME priority=…` does, and is
//! counted and an event. The return to the service's own that the end of a flow causes is counted
//! alone: else each flow would have two events.
//!
//! [`PriorityRequest`]: super::nfs::PriorityRequest

use std::sync::atomic::Ordering;

use sluice_shm::clock::monotonic_ns;
use sluice_shm::page::{Control, NfRequest};

use super::Supervisor;
use super::nfs::{FormerRequest, Nf};
use crate::controller::events::Subject;
use sluice_api::model::EventKind;

/// NFs whose requests a tick reads, in turn: each costs a cache line or two.
const READ: usize = 512;

/// Reads what an NF asks for. Returns what it asked for before, if that was something else.
fn read_request(nf: &mut Nf, now_ns: u64) -> Option<FormerRequest> {
    let page = &nf.handle.as_ref()?.region.page;
    // The NF can write both words; it only asks.
    let flow = page.control(Control::Reset).load(Ordering::Relaxed);
    nf.request.take(page.asked(NfRequest::Priority, flow), flow, now_ns)
}

impl Supervisor {
    /// Gives NFs the priorities that they ask for, as far as their services allow it.
    pub(super) fn read_requests(&mut self) {
        let Self { nfs, services, turns, .. } = self;
        let lets_ask: Vec<bool> = services.iter().map(|s| s.as_ref().is_some_and(|s| s.config.lets_ask())).collect();
        if !lets_ask.contains(&true) {
            return;
        }
        let (now_ns, mut left, mut changed) = (monotonic_ns(), READ, Vec::new());
        let next = nfs.each_from(turns.next_request, |nf| {
            if lets_ask.get(usize::from(nf.service)) != Some(&true) {
                return true;
            }
            let is_next = left > 0;
            if is_next {
                left -= 1;
                changed.extend(read_request(nf, now_ns).map(|former| (nf.number, former)));
            }
            is_next
        });
        turns.next_request = next.unwrap_or(turns.next_request);
        changed.into_iter().for_each(|(number, former)| self.grant_request(number, former));
    }

    /// Gives an NF the priority that it asks for.
    fn grant_request(&mut self, number: u16, former: FormerRequest) {
        let Some((nf, service)) = self.nfs.get(&number).and_then(|nf| Some((nf, self.service_of(nf)?))) else { return };
        let wanted = nf.request.priority();
        let [from, to] = [former.priority, wanted].map(|wanted| service.config.priority_for(wanted));
        if from == to {
            return;
        }
        self.weigh(nf);
        if !former.was_reset {
            let asks = wanted.map_or("asks for none any more".to_string(), |wanted| format!("asks for {wanted}"));
            self.controller.events().note(EventKind::Priority, Subject::Nf(&nf.name), format!("{asks}: {from} → {to}"));
        }
        self.nfs.get_mut(&number).into_iter().for_each(|nf| nf.request.changes += 1);
    }
}
