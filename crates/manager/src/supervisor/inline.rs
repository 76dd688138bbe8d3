//! NFs of inline chains, whose handlers run in the packet threads ([`InThread`]).
//!
//! # Approach
//! Such an NF has a life like others, and no process. Its handlers are loaded in a thread of their
//! own, which may take long, and then given to the packet thread of its core. All that would end a
//! process takes the handlers out of that thread.
//!
//! # Limits
//! Handlers that never return keep their packet thread for ever.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

use sluice_nf::group::InThread;
use sluice_shm::arena::Arena;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::descriptor::Descriptor;
use sluice_shm::zygote::Surroundings;

use super::nfs::{Event, Nf, State, at_once};
use super::notice::NoticeKind;
use super::{Job, Supervisor};
use crate::dataplane::Place;
use crate::nf::death::Cause;
use sluice_config::fuse;
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::handlers::Inline;

struct Handlers(InThread);

impl Inline for Handlers {
    fn burst(&mut self, arena: &Arena, burst: &mut [Descriptor], now_ns: u64) -> bool {
        // SAFETY: the packet thread passes packets that are in its hands, each with a frame of its
        // own in the arena.
        unsafe { self.0.burst(arena, burst, now_ns) }
    }

    fn tick(&mut self, now_ns: u64) -> bool {
        self.0.tick(now_ns)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Least number of packets that may be on their way to an NF: two bursts.
const LEAST_ROOM: u32 = 64;

impl Supervisor {
    /// Clears and drops handlers away from this thread: that may take long. The daemon's end waits
    /// for it.
    fn retire_handlers(&mut self, mut handlers: InThread) {
        let remote = self.remote();
        let work = move || {
            handlers.clean();
            drop(handlers);
            remote.hand(Box::new(|this: &mut Self| this.host.in_work -= 1));
        };
        match std::thread::Builder::new().name("sluice-inline".into()).spawn(work) {
            Ok(_) => self.host.in_work += 1,
            Err(error) => warn!("cannot start a thread that clears the state of an NF: {error}"),
        }
    }

    /// Loads the handlers of an NF, and gives them to the packet thread of its core once they are
    /// made.
    pub(super) fn launch_inline(&mut self, number: u16) {
        self.feed(number, Event::Launched);
        let Some(nf) = self.nfs.get_mut(&number).filter(|nf| nf.is(State::Starting)) else { return };
        nf.counted.spawned_ns = Some(monotonic_ns());
        // Its handlers learn names and numbers before they are loaded.
        nf.learned = vec![at_once(Instant::now())];
        // Of the whole daemon: another NF may have the number when a late load ends.
        self.host.loads += 1;
        nf.held.load = Some(self.host.loads);
        let (load, core, of, name) = (self.host.loads, nf.core, nf.service, nf.name.clone());
        let Some(config) = self.nfs.get(&number).and_then(|nf| self.service_of(nf)).map(|service| service.config.clone()) else {
            return;
        };
        let made = self.plane.place_foreign(core).and_then(|place| {
            let handle = self.plane.inline_handle((number, &name, of), config.ring_slots().max(LEAST_ROOM), &place);
            handle.map_err(|error| (self.plane.vacate(&place), error).1).map(|handle| (handle, place))
        });
        let (handle, place) = match made {
            Ok(made) => made,
            Err(error) => return self.not_loaded(number, error.to_string()),
        };
        let _ = handle.waker.set(self.turns.waker.clone());
        let (ports, services, chains) = (self.port_names(), self.service_names(), self.chain_names());
        let surroundings = Surroundings { name, ports, services, chains };
        let (args, objects) = (config.args.iter().map(OsString::from).collect(), fuse::objects(&config));
        let (remote, own_place) = (self.remote(), place.clone());
        let work = move || {
            let loaded = InThread::load(args, &objects, &surroundings, core as u32, handle.region.page.clone());
            let job: Job = Box::new(move |this: &mut Self| this.inline_loaded((number, load), (handle, place), loaded));
            remote.hand(job);
        };
        if let Err(error) = std::thread::Builder::new().name("sluice-inline".into()).spawn(work) {
            self.plane.vacate(&own_place);
            self.not_loaded(number, format!("cannot start a thread: {error}"));
        }
    }

    fn inline_loaded(
        &mut self,
        (number, load): (u16, u64),
        (handle, place): (Arc<NfHandle>, Place),
        loaded: Result<InThread, String>,
    ) {
        let is_wanted = |nf: &&mut Nf| nf.held.load == Some(load) && nf.is(State::Starting) && nf.handle.is_none();
        let Some(nf) = self.nfs.get_mut(&number).filter(is_wanted) else {
            self.plane.vacate(&place);
            return loaded.into_iter().for_each(|handlers| self.retire_handlers(handlers));
        };
        let handlers = match loaded {
            Ok(handlers) => handlers,
            Err(why) => {
                self.plane.vacate(&place);
                return self.not_loaded(number, why);
            }
        };
        nf.place = Some(place);
        nf.handle = Some(handle.clone());
        nf.counted.service_times.get_mut().begin();
        nf.counted.welcomed(monotonic_ns());
        self.feed(number, Event::Granted);
        match self.plane.attach_inline(&handle, Box::new(Handlers(handlers))) {
            Ok(()) => {
                self.feed(number, Event::Admitted);
                self.feed(number, Event::Ready);
            }
            Err(error) => self.not_loaded(number, error.to_string()),
        }
    }

    fn not_loaded(&mut self, number: u16, why: String) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let (service, is_on_trial) = (nf.service, nf.life().is_on_trial());
        let line = format!("{}: {why}", nf.name);
        self.feed(number, Event::Fails(Cause::Unstarted(why)));
        self.host.notices.print(NoticeKind::Failed(service), || line.clone());
        if is_on_trial {
            self.trial_failed(number, line);
        }
        self.lost(number);
    }

    /// Takes an NF's handlers out of their packet thread; with that it has ended.
    pub(super) fn end_inline(&mut self, number: u16) {
        match self.plane.take_inline(number) {
            Ok(Some(inline)) => {
                if let Ok(handlers) = inline.into_any().downcast::<Handlers>() {
                    let Handlers(handlers) = *handlers;
                    let (why, is_on_trial) =
                        (handlers.why().to_owned(), self.nfs.get(&number).is_some_and(|nf| nf.life().is_on_trial()));
                    if is_on_trial && !why.is_empty() {
                        self.trial_failed(number, why.clone());
                    }
                    if !why.is_empty() {
                        self.feed(number, Event::Fails(Cause::Failed(why)));
                    }
                    self.retire_handlers(handlers);
                }
            }
            Ok(None) => {}
            Err(error) => warn!("{error}"),
        }
        self.lost(number);
    }
}
