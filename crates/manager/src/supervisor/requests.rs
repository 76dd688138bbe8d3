//! What NFs ask for: a priority within the bounds of their service.
//!
//! An NF writes it in its page ([`NfRequest::Priority`]), and each tick reads it of the services
//! that allow it, of some NFs in turn where there are many. The process is not trusted: what it
//! asks for is brought within the bounds, and changes a few times a second at most
//! ([`PriorityRequest`]). It takes effect as `sluice set service NAME priority=…` does, and is
//! counted and an event.
//!
//! [`PriorityRequest`]: super::nfs::PriorityRequest

use std::sync::atomic::Ordering;

use sluice_shm::clock::monotonic_ns;
use sluice_shm::page::{Control, NfRequest};

use super::Supervisor;
use super::nfs::Nf;
use crate::controller::events::Subject;
use sluice_api::model::EventKind;

/// NFs whose requests a tick reads, in turn: each costs a cache line or two.
const HEARD: usize = 512;

/// Reads what an NF asks for. Returns what it asked for before, if that was something else.
fn heard(nf: &mut Nf, now_ns: u64) -> Option<Option<f64>> {
    let page = &nf.handle.as_ref()?.region.page;
    // The NF can write both words; it only asks.
    let flow = page.control(Control::Reset).load(Ordering::Relaxed);
    let (asked, before) = (page.asked(NfRequest::Priority, flow), nf.asked.priority());
    nf.asked.hear(asked, now_ns).then_some(before)
}

impl Supervisor {
    /// Gives NFs the priorities that they ask for, as far as their services allow it.
    pub(super) fn hear_requests(&mut self) {
        let Self { nfs, services, turns, .. } = self;
        let lets_ask: Vec<bool> = services.iter().map(|s| s.as_ref().is_some_and(|s| s.config.lets_ask())).collect();
        if !lets_ask.contains(&true) {
            return;
        }
        let (now_ns, mut left, mut changed) = (monotonic_ns(), HEARD, Vec::new());
        let next = nfs.each_from(turns.next_heard, |nf| {
            if lets_ask.get(usize::from(nf.service)) != Some(&true) {
                return true;
            }
            let is_next = left > 0;
            if is_next {
                left -= 1;
                changed.extend(heard(nf, now_ns).map(|before| (nf.number, before)));
            }
            is_next
        });
        turns.next_heard = next.unwrap_or(turns.next_heard);
        changed.into_iter().for_each(|(number, before)| self.give_asked(number, before));
    }

    /// Gives an NF the priority that it asks for. `before`: what it asked for until now.
    fn give_asked(&mut self, number: u16, before: Option<f64>) {
        let Some((nf, service)) = self.nfs.get(&number).and_then(|nf| Some((nf, self.service_of(nf)?))) else { return };
        let asked = nf.asked.priority();
        let [from, to] = [before, asked].map(|asked| service.config.priority_for(asked));
        if from == to {
            return;
        }
        self.weigh(nf);
        let asks = asked.map_or("asks for none any more".to_string(), |asked| format!("asks for {asked}"));
        self.controller.events().note(EventKind::Priority, Subject::Nf(&nf.name), format!("{asks}: {from} → {to}"));
        self.nfs.get_mut(&number).into_iter().for_each(|nf| nf.asked.changes += 1);
    }
}
