//! Pools: their size, and their publication to the packet threads.
//!
//! Members are NFs like all others: started, watched, restarted, measured. Three things differ.
//! Packet threads learn of them by tables of their own ([`sluice_pools`]). Their number follows the
//! flows. And the number of a removed member is given to the next one, so that its paths need not
//! be made again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_policy::pool::sizing::Counts;
use sluice_shm::clock::monotonic_ns;
use sluice_shm::histogram::Histogram;

use super::nfs::{Nf, PoolChange, PoolLife, PoolSize, State};
use super::{Supervisor, SupervisorError};
use crate::control::totals::Counted;
use crate::dataplane::{DataPlane, RxThread};
use sluice_api::config::{self as model, Per};
use sluice_api::model as api;
use sluice_dataplane::classify::flow_table::random_seed;
use sluice_dataplane::worker::Snapshot;
use sluice_pools::{PoolCounters, PoolMember, PoolSteering, PoolTable};

pub(super) struct PoolState {
    counters: Arc<[PoolCounters]>,
    pub(super) life: PoolLife,
}

fn bounds(service: &model::Service) -> (u32, u32) {
    (service.first_instances(), service.most_instances())
}

impl PoolState {
    /// A new pool for a service; none if the service is shared.
    pub(super) fn of(service: &model::Service, threads: usize) -> Option<Self> {
        service.is_pooled().then(|| Self {
            counters: (0..threads).map(|_| PoolCounters::default()).collect(),
            life: PoolLife::new(monotonic_ns(), bounds(service)),
        })
    }

    /// The same pool after a change of its service.
    pub(super) fn after(former: Option<Self>, service: &model::Service, threads: usize) -> Option<Self> {
        let new = Self::of(service, threads)?;
        let Some(mut former) = former else { return Some(new) };
        former.life.bound(bounds(service));
        former.life.stir();
        Some(former)
    }

    fn unmet(&self) -> u64 {
        self.sum(|c| c.api.waits.get() + c.api.fallbacks.get() + c.api.drops.get())
    }

    /// Members that wait for a flow at a packet thread.
    fn idle_at(&self, thread: usize) -> u32 {
        self.counters.get(thread).map_or(0, |counters| counters.idle.load(Ordering::Relaxed))
    }

    fn sum(&self, what: impl Fn(&PoolCounters) -> u64) -> u64 {
        self.counters.iter().map(what).sum()
    }
}

impl DataPlane {
    /// Makes the Rx threads use a pool's present table. Later commands find it in use.
    pub fn use_pool(&mut self, table: &Arc<PoolTable>) {
        for rx_thread in self.rx() {
            let (table, RxThread { thread, part, flows, paths }) = (table.clone(), *rx_thread);
            self.send(thread, move |worker| {
                let (plane, rx) = worker.parts();
                let new = || Box::new(PoolSteering::new(thread, part, flows, paths, random_seed()));
                let steering = rx.instances.get_or_insert_with(|| new());
                if let Some(steering) = steering.as_any().downcast_mut::<PoolSteering>() {
                    steering.use_pool(&table, &plane.nfs, rx.classifier.table(), &rx.registry);
                }
            });
        }
        self.keep(table.service, table.clone());
    }

    /// Requests the removal of up to `n` idle members of a service's pool, where most are idle:
    /// `idle` is their number at a thread.
    fn dismiss(&self, service: u16, n: u32, idle: impl Fn(usize) -> u32) {
        for (thread, n) in shares(n, self.rx().iter().map(|rx| (rx.thread, idle(rx.thread))).collect()) {
            self.send(thread, move |worker| {
                let instances = worker.parts().1.instances.as_mut();
                if let Some(steering) = instances.and_then(|instances| instances.as_any().downcast_mut::<PoolSteering>()) {
                    steering.dismiss(service, n);
                }
            });
        }
    }
}

/// Takes `n` one by one from the threads that have most, and returns how many each gives.
fn shares(n: u32, mut has: Vec<(usize, u32)>) -> Vec<(usize, u32)> {
    let mut given: Vec<(usize, u32)> = Vec::new();
    for _ in 0..n {
        // The first of several with as many.
        let Some((who, left)) = has.iter_mut().rev().max_by_key(|(_, left)| *left).filter(|(_, left)| *left > 0) else { break };
        *left -= 1;
        match given.iter_mut().find(|(known, _)| known == who) {
            Some((_, given)) => *given += 1,
            None => given.push((*who, 1)),
        }
    }
    given
}

impl Supervisor {
    /// Starts the process of a member: every member starts here.
    pub(super) fn start_member(&mut self, number: u16) {
        self.launch_process(number);
    }

    /// Gives a pool other keys. Its members stay, and their flows follow the new keys from now on.
    pub(super) fn change_pool(&mut self, config: model::Service) -> Result<(), SupervisorError> {
        let number = self.service_number(&config.name).ok_or_else(|| self.no_such("service", &config.name))?;
        if let Some(known) = self.config.services.iter_mut().find(|s| s.name == config.name) {
            known.clone_from(&config);
        }
        if let Some(Some(service)) = self.services.get_mut(number as usize)
            && let Some(pool) = &mut service.pool
        {
            pool.life.bound(bounds(&config));
            service.config = config;
        }
        self.publish_pool(number);
        Ok(())
    }

    /// Notes that members of a service have come. False if it has no pool.
    pub(super) fn stir_pool(&mut self, service: u16) -> bool {
        match self.services.get_mut(service as usize).and_then(|s| s.as_mut()?.pool.as_mut()) {
            Some(pool) => {
                pool.life.stir();
                true
            }
            None => false,
        }
    }

    /// Publishes all pools whose members have come.
    pub(super) fn publish_stirred_pools(&mut self) {
        for service in 0..self.services.len() {
            if self.services[service].as_ref().is_some_and(|s| s.pool.as_ref().is_some_and(|pool| pool.life.is_stirred())) {
                self.publish_pool(service as u16);
            }
        }
    }

    /// Publishes the members of a pool to the packet threads. False if the service has no pool.
    pub(super) fn publish_pool(&mut self, number: u16) -> bool {
        let fallback = |name: &String| {
            let is_it = |s: &Option<super::ServiceState>| s.as_ref().is_some_and(|s| s.config.name == *name);
            self.services.iter().position(is_it).map(|at| at as u16)
        };
        let Some(Some(service)) = self.services.get(number as usize) else { return false };
        let Some(pool) = &service.pool else { return false };
        let config = service.config.pool();
        let runs = |nf: &&Nf| nf.life().takes_packets();
        let living = service.instances.iter().filter_map(|n| self.nfs.get(n)).filter(runs);
        let table = PoolTable {
            service: number,
            per: service.config.per,
            fallback: config.fallback.as_ref().and_then(fallback),
            // By its index, which goes on from member to member, so that threads have equally many.
            members: living.map(|nf| PoolMember { nf: nf.number, part: nf.index() as u16, leaves: nf.life().leaves() }).collect(),
            pool: config,
            counters: pool.counters.clone(),
            assigned: self.tuning.assigned(),
            waker: Some(self.turns.waker.clone()),
        };
        self.plane.use_pool(&Arc::new(table));
        if let Some(Some(service)) = self.services.get_mut(number as usize)
            && let Some(pool) = &mut service.pool
        {
            pool.life.is_published();
        }
        true
    }

    /// Publishes that a service has no pool any more.
    pub(super) fn close_pool(&mut self, number: u16, former: PoolState) {
        // Numbers of former members that will not be asked for.
        self.nfs.rest(former.life.spares());
        let table = PoolTable {
            service: number,
            per: Per::Shared,
            pool: model::Pool::default(),
            fallback: None,
            members: Vec::new(),
            counters: former.counters,
            assigned: None,
            waker: None,
        };
        self.plane.use_pool(&Arc::new(table));
    }

    /// Starts members where flows need more, and removes idle ones where they need fewer.
    pub(super) fn size_pools(&mut self) {
        if self.turns.stopping || self.services.iter().flatten().all(|s| s.pool.is_none()) {
            return;
        }
        let dismissed = |nf: &&Nf| {
            let spare = nf.handle.as_ref().is_some_and(|h| h.dismissed.load(Ordering::Relaxed));
            nf.life().takes_packets() && spare
        };
        let leaving: Vec<u16> = self.nfs.values().filter(dismissed).map(|nf| nf.number).collect();
        leaving.into_iter().for_each(|number| self.retire(number));
        let now_ns = monotonic_ns();
        for number in 0..self.services.len() as u16 {
            if !self.is_upgrading(number)
                && let Some(change) = self.look_at_pool(number, now_ns)
            {
                self.grow_pool(number, change.start);
            }
        }
    }

    /// Checks a pool if that is worthwhile, and requests the removal of surplus idle members.
    fn look_at_pool(&mut self, number: u16, now_ns: u64) -> Option<PoolChange> {
        let service = self.services.get_mut(usize::from(number))?.as_mut().filter(|service| !service.config.name.is_empty())?;
        let pool = service.pool.as_mut()?;
        let unmet = pool.unmet();
        if !pool.life.wants_look(now_ns, unmet) {
            return None;
        }
        let members = || service.instances.iter().filter_map(|n| self.nfs.get(n)).map(Nf::life);
        let leaving = members().filter(|life| life.leaves() && !life.drains()).count();
        let in_use = |c: &PoolCounters| {
            [&c.assigned, &c.lingering, &c.resetting].into_iter().map(|n| u64::from(n.load(Ordering::Relaxed))).sum::<u64>()
        };
        let counts = Counts {
            met: pool.sum(|c| c.api.activations.get()),
            unmet,
            ended: pool.sum(|c| c.api.ended.get()),
            lifetimes_ns: pool.sum(|c| c.lifetimes_ns.get()),
            members: members().filter(|life| life.stays() && !life.is_lost()).count() as u32,
            in_use: (pool.sum(in_use) as u32).saturating_sub(leaving as u32),
        };
        let is_starting = members().any(|life| life.state() == State::Starting);
        let change = pool.life.look(now_ns, &PoolSize { counts, is_starting });
        if change.dismiss > 0 {
            self.plane.dismiss(number, change.dismiss, |thread| pool.idle_at(thread));
        }
        Some(change)
    }

    fn grow_pool(&mut self, service: u16, more: u32) {
        for _ in 0..more {
            // If there may be no more NFs, the pool cannot grow.
            if self.new_instance(service, None).is_err() {
                break;
            }
        }
    }

    pub(super) fn pool_reports(&self, snapshots: &[Snapshot]) -> Vec<api::Pool> {
        let live = |number: &u16| self.services[*number as usize].as_ref().is_some_and(|s| !s.config.name.is_empty());
        let numbers = (0..self.services.len() as u16).filter(live);
        let report = |number| {
            let mut report = self.pool_report(number, snapshots)?;
            self.seen.past.of_pool(&report.service).into_iter().for_each(|former| report.add(former));
            Some(report)
        };
        numbers.filter_map(report).collect()
    }

    /// The own counts of a service's pool, if it has one.
    pub(super) fn own_pool_report(&mut self, number: u16) -> Option<api::Pool> {
        self.services.get(number as usize)?.as_ref()?.pool.as_ref()?;
        let snapshots = self.snapshots();
        self.pool_report(number, &snapshots)
    }

    fn pool_report(&self, number: u16, snapshots: &[Snapshot]) -> Option<api::Pool> {
        let service = self.services.get(number as usize)?.as_ref()?;
        let pool = service.pool.as_ref()?;
        let config = service.config.pool();
        let mut setup = Histogram::default();
        let mine = |(of, _): &&(u16, Histogram)| *of == number;
        snapshots.iter().flat_map(|s| &s.setups).filter(mine).for_each(|(_, h)| setup.merge(h));
        let now =
            |what: fn(&PoolCounters) -> &std::sync::atomic::AtomicU32| pool.sum(|c| u64::from(what(c).load(Ordering::Relaxed)));
        let mut report = api::Pool {
            service: service.config.name.clone(),
            per: service.config.per.word().into(),
            min: service.config.first_instances(),
            max: service.config.most_instances(),
            isolation: match config.isolation {
                model::Isolation::Reset => "reset",
                model::Isolation::Strict => "strict",
            }
            .into(),
            size: service.instances.len() as u32,
            idle: now(|c| &c.idle),
            assigned: now(|c| &c.assigned),
            lingering: now(|c| &c.lingering),
            resetting: now(|c| &c.resetting),
            setup_ns: api::Distribution::from(&setup),
            ..api::Pool::default()
        };
        pool.counters.iter().for_each(|counters| report.add_counts(&counters.api.read()));
        Some(report)
    }
}
