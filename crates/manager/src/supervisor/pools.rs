//! Pools: how many members they have, and what the packet threads know of them.
//!
//! Members are NFs as all others: started, watched, restarted, measured. What differs: packet threads learn of them by tables of their own
//! ([`sluice_pools`]); how many there are follows the flows; and the number of a
//! member that was let go is given to the next one, so that its paths need not be made again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_policy::pool::sizing::{Counts, Sizing};
use sluice_shm::clock::monotonic_ns;
use sluice_shm::histogram::Histogram;

use super::{Supervisor, SupervisorError};
use crate::control::totals::Counted;
use crate::nf::State;
use sluice_api::config::{self as model, Per};
use sluice_api::model as api;
use sluice_dataplane::worker::Snapshot;
use sluice_pools::{PoolCounters, PoolMember, PoolTable};

/// Time between two looks at the size of a pool.
const EVERY: Duration = Duration::from_millis(100);
/// Most members that are started at a look.
const STARTS: u32 = 64;

/// What the supervisor knows of the pool of a service.
pub(super) struct PoolState {
    counters: Arc<[PoolCounters]>,
    sizing: Sizing,
    looked: Instant,
    /// Members have come since the packet threads were told.
    stirred: bool,
    /// Numbers and indices of members that were let go.
    spare: VecDeque<(u16, u32)>,
}

impl PoolState {
    /// The pool of a service that has none yet; none if the service is shared.
    pub(super) fn of(service: &model::Service, threads: usize) -> Option<Self> {
        service.is_pooled().then(|| Self {
            counters: (0..threads).map(|_| PoolCounters::default()).collect(),
            sizing: Sizing::new(service.first_instances(), service.most_instances()),
            looked: Instant::now(),
            stirred: true,
            spare: VecDeque::new(),
        })
    }

    /// The same pool after a change of its service.
    pub(super) fn after(former: Option<Self>, service: &model::Service, threads: usize) -> Option<Self> {
        let new = Self::of(service, threads)?;
        let Some(mut former) = former else { return Some(new) };
        former.sizing.bound(service.first_instances(), service.most_instances());
        former.stirred = true;
        Some(former)
    }

    /// Keeps the number of a member that is gone for the next one.
    pub(super) fn keep_number(&mut self, number: u16, index: u32) {
        self.spare.push_back((number, index));
    }

    /// Whether a number is kept for the next member.
    pub(super) fn has_spare(&self, number: u16) -> bool {
        self.spare.iter().any(|(spare, _)| *spare == number)
    }

    /// The number and index of a member that was let go: of those, the one whose part has the fewest of `members`, which are indices too. There
    /// are so many parts as `threads`.
    pub(super) fn spare(&mut self, threads: usize, members: impl Iterator<Item = u16>) -> Option<(u16, u32)> {
        if self.spare.is_empty() {
            return None;
        }
        let mut of_part = vec![0u32; threads];
        members.for_each(|index| of_part[usize::from(index) % threads] += 1);
        let few = |(_, (_, index)): &(usize, &(u16, u32))| of_part[*index as usize % threads];
        let (at, _) = self.spare.iter().enumerate().min_by_key(few)?;
        self.spare.remove(at)
    }

    fn unmet(&self) -> u64 {
        self.sum(|c| c.waits.get() + c.fallbacks.get() + c.drops.get())
    }

    /// Members that wait for a flow at a packet thread.
    fn idle_at(&self, thread: usize) -> u32 {
        self.counters.get(thread).map_or(0, |counters| counters.idle.load(Ordering::Relaxed))
    }

    fn sum(&self, what: impl Fn(&PoolCounters) -> u64) -> u64 {
        self.counters.iter().map(what).sum()
    }
}

impl Supervisor {
    /// Starts the process of a member. All members start here, whether they are the first, one more, or take the place of another.
    pub(super) fn start_member(&mut self, number: u16) {
        self.launch_process(number);
    }

    /// Has a pool go on with other keys. Its members stay; flows that they have are told by the new keys from now on.
    pub(super) fn change_pool(&mut self, config: model::Service) -> Result<(), SupervisorError> {
        let number = self.service_number(&config.name).ok_or_else(|| self.no_such("service", &config.name))?;
        if let Some(known) = self.config.services.iter_mut().find(|s| s.name == config.name) {
            known.clone_from(&config);
        }
        if let Some(Some(service)) = self.services.get_mut(number as usize)
            && let Some(pool) = &mut service.pool
        {
            pool.sizing.bound(config.first_instances(), config.most_instances());
            service.config = config;
        }
        self.publish_pool(number);
        Ok(())
    }

    /// Notes that members of a service have come. False if it has no pool.
    pub(super) fn stir_pool(&mut self, service: u16) -> bool {
        match self.services.get_mut(service as usize).and_then(|s| s.as_mut()?.pool.as_mut()) {
            Some(pool) => {
                pool.stirred = true;
                true
            }
            None => false,
        }
    }

    /// Tells the packet threads of all members that have come.
    pub(super) fn publish_stirred_pools(&mut self) {
        for service in 0..self.services.len() {
            if self.services[service].as_ref().is_some_and(|s| s.pool.as_ref().is_some_and(|pool| pool.stirred)) {
                self.publish_pool(service as u16);
            }
        }
    }

    /// Tells the packet threads which members a pool has now. False if the service has no pool.
    pub(super) fn publish_pool(&mut self, number: u16) -> bool {
        let fallback = |name: &String| {
            let is_it = |s: &Option<super::ServiceState>| s.as_ref().is_some_and(|s| s.config.name == *name);
            self.services.iter().position(is_it).map(|at| at as u16)
        };
        let Some(Some(service)) = self.services.get(number as usize) else { return false };
        let Some(pool) = &service.pool else { return false };
        let config = service.config.pool();
        let runs = |nf: &&super::NfState| nf.state == State::Running && !nf.draining;
        let living = service.instances.iter().filter_map(|n| self.nfs.get(n)).filter(runs);
        let table = PoolTable {
            service: number,
            per: service.config.per,
            fallback: config.fallback.as_ref().and_then(fallback),
            // By its index, which goes on from member to member, so that threads have as many each.
            members: living.map(|nf| PoolMember { nf: nf.number, part: index_of(&nf.name), leaves: nf.leaves }).collect(),
            pool: config,
            counters: pool.counters.clone(),
            assigned: self.tuning.assigned(),
            bell: Some(self.bell.clone()),
        };
        self.plane.use_pool(&Arc::new(table));
        if let Some(Some(service)) = self.services.get_mut(number as usize)
            && let Some(pool) = &mut service.pool
        {
            pool.stirred = false;
        }
        true
    }

    /// Tells the packet threads that a service, which had a pool, has none any more.
    pub(super) fn close_pool(&mut self, number: u16, former: PoolState) {
        // Numbers of members that nobody asks for any more.
        self.resting.extend(former.spare.iter().map(|(number, _)| number));
        let table = PoolTable {
            service: number,
            per: Per::Shared,
            pool: model::Pool::default(),
            fallback: None,
            members: Vec::new(),
            counters: former.counters,
            assigned: None,
            bell: None,
        };
        self.plane.use_pool(&Arc::new(table));
    }

    /// Starts members where flows ask for more, and has idle ones let go where fewer do. Where flows wait for a member and none is being
    /// started, at once; otherwise each [`EVERY`].
    pub(super) fn size_pools(&mut self, now: Instant) {
        if self.stopping || self.services.iter().flatten().all(|s| s.pool.is_none()) {
            return;
        }
        let dismissed = |nf: &&super::NfState| {
            let spare = nf.handle.as_ref().is_some_and(|h| h.dismissed.load(Ordering::Relaxed));
            nf.state == State::Running && !nf.draining && spare
        };
        let leaving: Vec<u16> = self.nfs.values().filter(dismissed).map(|nf| nf.number).collect();
        leaving.into_iter().for_each(|number| self.retire(number));
        for number in 0..self.services.len() {
            if self.is_upgrading(number as u16) {
                continue;
            }
            let Some(service) = &mut self.services[number] else { continue };
            let Some(pool) = &mut service.pool else { continue };
            let unmet = pool.unmet();
            let is_due = now.duration_since(pool.looked) >= EVERY;
            if service.config.name.is_empty() || !is_due && !pool.sizing.lacks(unmet) {
                continue;
            }
            let stays = |nf: &&super::NfState| {
                !nf.draining && !nf.leaves && !matches!(nf.state, State::Failed | State::Stopping | State::Gone)
            };
            let members = service.instances.iter().filter_map(|n| self.nfs.get(n)).filter(stays).count() as u32;
            if !is_due {
                let starts = |nf: &super::NfState| nf.state == State::Starting && !nf.draining;
                if service.instances.iter().filter_map(|n| self.nfs.get(n)).any(starts) {
                    // It may be what they wait for.
                    continue;
                }
                let wanted = pool.sizing.demand(unmet, members);
                self.grow_pool(number as u16, wanted.saturating_sub(members));
                continue;
            }
            pool.looked = now;
            let leaving = service.instances.iter().filter_map(|n| self.nfs.get(n)).filter(|nf| nf.leaves && !nf.draining).count();
            let in_use = |c: &PoolCounters| {
                [&c.assigned, &c.lingering, &c.resetting].into_iter().map(|n| u64::from(n.load(Ordering::Relaxed))).sum::<u64>()
            };
            let counts = Counts {
                met: pool.sum(|c| c.activations.get()),
                unmet,
                ended: pool.sum(|c| c.ended.get()),
                lifetimes_ns: pool.sum(|c| c.lifetimes_ns.get()),
                members,
                in_use: (pool.sum(in_use) as u32).saturating_sub(leaving as u32),
            };
            let wanted = pool.sizing.look(monotonic_ns(), counts);
            if wanted < members {
                self.plane.dismiss(number as u16, members - wanted, |thread| pool.idle_at(thread));
            }
            self.grow_pool(number as u16, wanted.saturating_sub(members));
        }
    }

    fn grow_pool(&mut self, service: u16, more: u32) {
        for _ in 0..more.min(STARTS) {
            // Where there may be no more NFs, the pool is as large as it can be.
            if self.new_instance(service, None).is_err() {
                break;
            }
        }
    }

    /// What is told of all pools.
    pub(super) fn pool_reports(&self, snapshots: &[Snapshot]) -> Vec<api::Pool> {
        let live = |number: &u16| self.services[*number as usize].as_ref().is_some_and(|s| !s.config.name.is_empty());
        let numbers = (0..self.services.len() as u16).filter(live);
        let report = |number| {
            let mut report = self.pool_report(number, snapshots)?;
            self.past.of_pool(&report.service).into_iter().for_each(|former| report.add(former));
            Some(report)
        };
        numbers.filter_map(report).collect()
    }

    /// What the pool of a service has counted itself, if it has one.
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
        Some(api::Pool {
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
            activations: pool.sum(|c| c.activations.get()),
            ended: pool.sum(|c| c.ended.get()),
            waits: pool.sum(|c| c.waits.get()),
            fallbacks: pool.sum(|c| c.fallbacks.get()),
            drops: pool.sum(|c| c.drops.get()),
            setup_ns: api::Distribution::from(&setup),
        })
    }
}

/// The part that a member belongs to: its index, by its name.
pub(super) fn index_of(name: &str) -> u16 {
    name.rsplit('.').next().and_then(|index| index.parse::<u32>().ok()).unwrap_or(0) as u16
}
