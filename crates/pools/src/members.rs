//! A pool's table, its counters, and one thread's part of its members.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_api::config::{self as model, Per};
use sluice_api::model::PoolCounts;
use sluice_config::class::TrafficClass;
use sluice_dataplane::assigned::Assigned;
use sluice_dataplane::counter::Counter;
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::steer::SteerRequest;
use sluice_dataplane::waker::Waker;
use sluice_policy::pool::life::Timeouts;
use sluice_policy::pool::{Pool, State};
use sluice_shm::histogram::Histogram;
use sluice_shm::page::Control;

use crate::classes::{ClassKey, Classes};
use crate::connections::{FALLEN_BACK, Holding, LOST, NONE};

/// Counters and state of one thread's part of a pool.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PoolCounters {
    /// Members without a flow.
    pub idle: AtomicU32,
    pub assigned: AtomicU32,
    /// Members whose flow has ended, but which still get its late packets.
    pub lingering: AtomicU32,
    /// Members that are being reset or wait for their last packets.
    pub resetting: AtomicU32,
    /// What the API reports.
    pub api: PoolCounts<Counter>,
    /// Sum of the times for which members that became idle again had flows, in nanoseconds.
    pub lifetimes_ns: Counter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolMember {
    pub nf: u16,
    /// Its Rx thread is this number modulo the number of Rx threads.
    pub part: u16,
    /// It is of an old version: it gets no further flow, and leaves with its present one.
    pub leaves: bool,
}

/// A pool as the packet threads see it. A change makes a new table.
#[derive(Debug, Clone)]
pub struct PoolTable {
    pub service: u16,
    /// What its members receive. A service that is now shared has no pool.
    pub per: Per,
    /// Its `[service.pool]`.
    pub pool: model::Pool,
    /// The service for flows without an idle member.
    pub fallback: Option<u16>,
    /// Its live members.
    pub members: Vec<PoolMember>,
    /// Counters, by manager thread.
    pub counters: Arc<[PoolCounters]>,
    /// Collects members whose new priority the kernel has to apply; none without priorities.
    pub assigned: Option<Arc<Assigned>>,
    /// Wakes the supervisor when a member is lacking or a process is to be replaced.
    pub waker: Option<Arc<Waker>>,
}

impl PoolTable {
    /// Requests a new member, since a flow found no idle one.
    #[cold]
    pub(crate) fn lacks_one(&self) {
        if let Some(waker) = self.waker.as_ref().filter(|_| (self.members.len() as u32) < self.pool.max) {
            waker.wake();
        }
    }
}

/// One thread's part of a service's pool. Vectors are indexed by slot.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) table: Arc<PoolTable>,
    pub(crate) pool: Pool,
    pub(crate) nfs: Vec<Option<Arc<NfHandle>>>,
    /// Index of the connection that holds the member.
    pub(crate) holders: Vec<u32>,
    /// The last word of [`Control::Reset`].
    pub(crate) resets: Vec<u32>,
    /// Whether the member leaves with its flow.
    pub(crate) leaves: Vec<bool>,
    pub(crate) slots: HashMap<u16, u32>,
    /// For a pool of classes: the kind of class, and the members of classes.
    pub(crate) class: Option<TrafficClass>,
    pub(crate) classes: Classes,
    pub(crate) turn: usize,
    /// Until then, no member ends a flow by its word.
    pub(crate) next_end_ms: u64,
    pub(crate) setup: Histogram,
}

impl Members {
    pub(crate) fn new(table: Arc<PoolTable>) -> Self {
        Self {
            class: table.pool.class.as_ref().and_then(|class| class.parse().ok()).filter(|_| table.per == Per::Class),
            classes: Classes::default(),
            table,
            pool: Pool::new(0),
            nfs: Vec::new(),
            holders: Vec::new(),
            resets: Vec::new(),
            leaves: Vec::new(),
            slots: HashMap::new(),
            turn: 0,
            next_end_ms: 0,
            setup: Histogram::default(),
        }
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        let pool = &self.table.pool;
        Timeouts { tcp_ms: pool.tcp_idle_ms.into(), half_open_ms: pool.half_open_ms.into(), other_ms: pool.idle_ms.into() }
    }

    pub(crate) fn counters(&self, thread: usize) -> &PoolCounters {
        &self.table.counters[thread]
    }

    /// Whether this record of a connection refers to a present member.
    pub(crate) fn holds(&self, held: &Holding) -> bool {
        held.slot != LOST && (self.class.is_none() || held.slot == FALLEN_BACK || self.classes.turn(held.slot.into()) == held.turn)
    }

    /// The member of a packet's class, if it accepts further connections.
    pub(crate) fn of_class(&self, asked: &SteerRequest<'_>) -> Option<u32> {
        let slot = self.classes.find(&ClassKey::of(self.class?, asked.key, asked.terms.tenant))?;
        (self.pool.state(slot) == State::Assigned && !self.leaves[slot as usize]).then_some(slot)
    }

    /// Adds a member, unless there are as many as a connection can name.
    pub(crate) fn join(&mut self, nf: u16, handle: &Arc<NfHandle>) {
        let slot = match self.pool.vacant() {
            Some(slot) => slot,
            None if self.nfs.len() >= usize::from(FALLEN_BACK) => return,
            None => {
                let most = (self.nfs.len() * 2).clamp(16, FALLEN_BACK.into());
                self.pool.extend(most);
                self.nfs.resize(most, None);
                self.holders.resize(most, NONE);
                self.resets.resize(most, 0);
                self.leaves.resize(most, false);
                if self.class.is_some() {
                    self.classes.extend(most);
                }
                self.pool.vacant().unwrap_or(0)
            }
        };
        self.pool.join(slot);
        self.nfs[slot as usize] = Some(handle.clone());
        self.holders[slot as usize] = NONE;
        self.leaves[slot as usize] = false;
        // Counted on from there: 0 in a new process, more in one that was a member before.
        self.resets[slot as usize] = handle.region.page.control(Control::Reset).load(Ordering::Relaxed);
        self.slots.insert(nf, slot);
    }

    /// Removes a member for good; the reader of its handle stops it.
    pub(crate) fn let_go(&mut self, slot: u32) {
        self.pool.leave(slot);
        if let Some(handle) = self.nfs[slot as usize].take() {
            self.slots.remove(&handle.number);
            handle.dismissed.store(true, Ordering::Relaxed);
        }
    }

    /// Publishes the counts by state.
    pub(crate) fn show(&self, thread: usize) {
        let counters = self.counters(thread);
        let count = |state| self.pool.count(state);
        counters.idle.store(count(State::Idle), Ordering::Relaxed);
        counters.assigned.store(count(State::Assigned), Ordering::Relaxed);
        counters.lingering.store(count(State::Lingering), Ordering::Relaxed);
        counters.resetting.store(count(State::Draining) + count(State::Resetting), Ordering::Relaxed);
    }
}
