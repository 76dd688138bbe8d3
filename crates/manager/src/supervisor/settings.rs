//! Settings that change while packets move.
//!
//! [`sluice_config::diff`] says which keys these are. They take effect in these ways:
//! - `latency_sample`, `ecn`, the watermarks and `queueing_us`: by a command to each packet thread,
//!   which carries it out between two rounds.
//! - `weight_every_ms`, `weight_margin_percent` and `min_share_percent`: the share controller reads
//!   them in its next round.
//! - `rr_slice_ms`, and `class` between the fair ones: by the kernel, for NFs that run.
//! - `priority` of a service, the bounds of what its NFs [ask for](super::requests), and `tenants`:
//!   in the handle of each NF, on its core's page and as its priority in the kernel; the weights of
//!   rules by new tables.
//! - `rate` of a generator: by a command to the threads that have its queues.
//! - `log_level`: by the daemon's log ([`crate::levels`]).

use super::nfs::Nf;
use super::priorities::own_priority;
use super::{Supervisor, SupervisorError, ports};
use crate::dataplane::{DataPlane, plane_settings};
use crate::levels;
use sluice_api::config::{Config, Manager, Port, PortKind, Sched, Service};
use sluice_config::diff::{living_manager, living_sched, with_priority_of};

impl DataPlane {
    /// Has all threads use other settings.
    fn tune(&self, config: &Config) {
        let forward = plane_settings(config);
        for thread in 0..self.threads() {
            let sched = config.sched.clone();
            self.send(thread, move |worker| worker.tune(forward, sched));
        }
    }

    /// Changes the rate of a port that makes packets, in packets per second.
    fn pace(&self, port: u16, rate_pps: f64) {
        (0..self.threads()).for_each(|thread| self.send(thread, move |worker| worker.pace(port, rate_pps)));
    }
}

impl Supervisor {
    pub(super) fn change_manager(&mut self, manager: &Manager) {
        let now = living_manager(&self.config.manager, manager);
        let former = std::mem::replace(&mut self.config.manager, now);
        let now = &self.config.manager;
        if now.log_level != former.log_level {
            levels::set(now.log_level.as_deref());
        }
        if now.latency_sample != former.latency_sample {
            self.promises.time(now.latency_sample > 0);
            self.plane.tune(&self.config);
        }
    }

    /// # Errors
    /// The kernel refuses the time slice; nothing has changed then.
    pub(super) fn change_sched(&mut self, sched: &Sched) -> Result<(), SupervisorError> {
        let now = living_sched(&self.config.sched, sched);
        if now.rr_slice_ms != self.config.sched.rr_slice_ms {
            self.set_slice(now.rr_slice_ms)?;
        }
        let former = std::mem::replace(&mut self.config.sched, now);
        self.plane.tune(&self.config);
        self.controller.tune(&self.config.sched);
        if former.tenants != self.config.sched.tenants {
            self.weigh_again(|_| true);
            // Rules weigh flows by their tenant.
            self.publish();
        }
        if former.class != self.config.sched.class {
            self.set_class_again();
        }
        Ok(())
    }

    pub(super) fn change_priority(&mut self, wanted: &Service) -> Result<(), SupervisorError> {
        let number = self.service_number(&wanted.name).ok_or_else(|| self.no_such("service", &wanted.name))?;
        let known = self.config.services.iter_mut().filter(|known| known.name == wanted.name);
        let state = self.services.get_mut(usize::from(number)).into_iter().flatten().map(|state| &mut state.config);
        known.chain(state).for_each(|config| *config = with_priority_of(config, wanted));
        self.weigh_again(|nf| nf.service == number);
        Ok(())
    }

    /// Gives NFs the weight of their service again, or what they ask for.
    fn weigh_again(&self, is_one: impl Fn(&Nf) -> bool) {
        self.nfs.values().filter(|nf| is_one(nf)).for_each(|nf| self.weigh(nf));
    }

    /// Gives an NF the weight of its service, or what it asks for.
    pub(super) fn weigh(&self, nf: &Nf) {
        let (Some(handle), Some(service)) = (&nf.handle, self.service_of(nf)) else { return };
        handle.set_priority(own_priority(&service.config, &self.config.sched, nf.request.priority()));
        if let Some(priorities) = self.tuning.priorities() {
            priorities.update(nf.number);
        }
    }

    pub(super) fn change_rate(&mut self, wanted: Port) -> Result<(), SupervisorError> {
        let number = self.port_number(&wanted.name).ok_or_else(|| self.no_such("port", &wanted.name))?;
        let description = self.host.opener.kinds.description(&wanted);
        if let PortKind::Gen(settings) = &wanted.kind {
            self.plane.pace(number, settings.rate);
        }
        self.config.ports.iter_mut().filter(|known| known.name == wanted.name).for_each(|known| known.clone_from(&wanted));
        if let Some(Some(state)) = self.ports.get_mut(usize::from(number)) {
            state.config = wanted;
            // It keeps up with another rate or not: what was measured before says nothing.
            state.behind = ports::Behind::default();
            state.description = description.unwrap_or_else(|| std::mem::take(&mut state.description));
        }
        Ok(())
    }
}
