//! Keeps packets until a member is idle.

use sluice_policy::pool::State;

use sluice_dataplane::steer::{Arrival, Wanted};

use super::PoolSteering;
use super::waiting::Waiting;

/// Time between two looks at waiting packets if no member becomes idle, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;

impl PoolSteering {
    /// Enqueues a packet that waits for a pool. Returns the oldest if it has to be dropped for it.
    pub(super) fn enqueue(&mut self, wanted: Wanted, arrival: &Arrival<'_>, now_ns: u64) -> Option<Waiting> {
        let thread = self.thread;
        let Arrival { packet, key, flags, tcp } = *arrival;
        let waiting = Waiting { packet, key: *key, flags, tcp, wanted, since_ns: now_ns };
        let Some(members) = self.members(wanted.service) else { return Some(waiting) };
        let most = members.table.pool.queue;
        members.counters(thread).api.waits.add(1);
        // A member may have become idle since that decision.
        self.freed |= members.pool.count(State::Idle) > 0;
        let (connection, _) = key.connection();
        let gone = self.waiting.push(connection, waiting, most)?;
        self.count_drop(gone.wanted.service);
        Some(gone)
    }

    fn count_drop(&self, service: u16) {
        if let Some(members) = self.members(service) {
            members.counters(self.thread).api.drops.add(1);
        }
    }

    /// Whether to examine waiting packets: a member became idle, or time passed. Begins the look.
    #[inline]
    pub(super) fn wants_look(&mut self, now_ns: u64) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let due = self.freed || now_ns.saturating_sub(self.looked_ns) >= LOOK_NS;
        if due {
            self.freed = false;
            self.looked_ns = now_ns;
            self.waiting.look();
        }
        due
    }

    /// Dequeues and drops the first packet of its queue.
    pub(super) fn gives_up(&mut self, waiting: &Waiting) {
        self.waiting.pop(waiting.wanted.service);
        self.count_drop(waiting.wanted.service);
    }

    /// Keeps the first flow of a queue waiting, for what
    /// [`ChooseInstances::wanted`](sluice_dataplane::steer::ChooseInstances::wanted) reports.
    pub(super) fn waits_on(&mut self, waiting: &Waiting) {
        let lacking = self.wanted.service;
        let members = self.members(lacking);
        let most = members.map_or(0, |members| members.table.pool.queue);
        // Flows of another class may have a member of their class by now.
        let alone = members.is_some_and(|members| members.class.is_some());
        self.waiting.pass(waiting.wanted.service, lacking, most, alone);
    }
}
