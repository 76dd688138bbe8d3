//! Ends connections that were silent for too long, or that their NFs say are over.
//!
//! Some are examined at a time, in turn, so that a call costs little: see
//! [`Round`](crate::connections::Round).
//!
//! # What NFs say
//! An NF that has a connection alone may ask for its end in its page ([`NfRequest::FlowEnd`]). The
//! connection then ends as after a FIN of both sides: late packets still meet its members. An NF is
//! not trusted with what others know of the connection: all that have it alone must say so, which
//! an NF `per = "class"` has not. And each must have had it for a while ([`LEAST_MS`]), since an
//! end costs the manager a reset, or with strict isolation a process. Such an end has no pause as
//! after a death, so a pool has few in a second ([`STRICT_EVERY_MS`]), whatever its size.

use sluice_api::config::Isolation;
use sluice_dataplane::classify::flow_table::FlowTable;
use sluice_policy::pool::life::Timeouts;
use sluice_shm::page::NfRequest;

use super::PoolSteering;
use crate::connections::Connection;

/// Least connections that one call examines for silence.
const LEAST_AGED: u32 = 64;
/// Time between two looks at what NFs say, in milliseconds, and least connections of one look. Each
/// costs a few cache lines.
const HEAR_MS: u64 = 10;
const LEAST_HEARD: u32 = 32;
/// Least time from the assignment of an NF until its word ends the connection, in milliseconds; and
/// that where another process takes its place.
const LEAST_MS: u64 = 100;
const LEAST_STRICT_MS: u64 = 1_000;
/// Least time between two such ends of a pool of this thread where another process takes the place.
const STRICT_EVERY_MS: u64 = 125;

impl PoolSteering {
    /// Ends the connections that were silent for too long, among the next few.
    pub(super) fn end_silent(&mut self, flows: &mut FlowTable, now_ms: u64, flow_timeout_ms: u64) {
        let places = self.connections.places();
        for _ in 0..self.aged.due(places, now_ms, 1, LEAST_AGED) {
            let place = self.aged.next(places);
            let Some(connection) = self.connections.get(place).filter(|c| !c.life.has_ended()) else { continue };
            let longest = connection.members().iter().filter_map(|held| Some(self.members(held.service)?.timeouts()));
            // Without pools the default timeouts apply.
            let timeouts = longest.reduce(Timeouts::or_longer).unwrap_or_default();
            let timeout = connection.life.timeout_ms(&timeouts);
            let silent = now_ms.saturating_sub(connection.seen_ms);
            if silent * 2 < timeout.min(flow_timeout_ms) {
                continue;
            }
            // The flow table knows when its keys were last seen. Only keys with a path of a pool
            // count.
            let idle = connection.flows().filter_map(|key| flows.idle_ms(&key, flows.hash_of(&key), now_ms));
            let idle = idle
                .filter(|(_, known)| known.number().is_some_and(|path| self.ways.knows(path)))
                .map(|(idle_ms, _)| idle_ms)
                .min();
            let silent = idle.map_or(silent, |idle| idle.min(silent));
            if silent >= timeout {
                self.finish(place, flows);
            } else if let Some(connection) = self.connections.get_mut(place) {
                connection.seen_ms = now_ms - silent;
            }
        }
    }

    /// Ends the connections that their NFs say are over, among the next few.
    pub(super) fn end_said(&mut self, now_ms: u64) {
        let places = self.connections.places();
        for _ in 0..self.heard.due(places, now_ms, HEAR_MS, LEAST_HEARD) {
            let place = self.heard.next(places);
            if self.connections.get(place).is_some_and(|c| !c.life.has_ended() && self.is_said_over(c, now_ms)) {
                self.end_by_word(place, now_ms);
            }
        }
    }

    /// Whether all NFs that have this connection alone say that it is over.
    fn is_said_over(&self, connection: &Connection, now_ms: u64) -> bool {
        let mut is_said = false;
        for held in connection.members() {
            let Some(members) = self.members(held.service).filter(|members| members.class.is_none()) else { continue };
            let slot = usize::from(held.slot);
            // None if that NF has died, or another service stands in.
            let Some(Some(handle)) = members.nfs.get(slot) else { continue };
            let least_ms = match members.table.pool.isolation {
                Isolation::Reset => LEAST_MS,
                Isolation::Strict => LEAST_STRICT_MS,
            };
            let since_ms = members.pool.since_ns(held.slot.into()) / 1_000_000;
            let is_soon = now_ms < since_ms + least_ms || now_ms < members.next_end_ms;
            if is_soon || handle.region.page.asked(NfRequest::FlowEnd, members.resets[slot]) == 0 {
                return false;
            }
            is_said = true;
        }
        is_said
    }

    /// Ends a connection that its NFs say is over.
    #[cold]
    fn end_by_word(&mut self, place: u32, now_ms: u64) {
        let thread = self.thread;
        let Some(connection) = self.connections.get_mut(place) else { return };
        connection.life.end();
        let connection = *connection;
        for held in connection.members() {
            let members = self.members_mut(held.service).filter(|members| members.class.is_none());
            if let Some(members) = members.filter(|members| members.nfs.get(usize::from(held.slot)).is_some_and(Option::is_some)) {
                members.counters(thread).api.ended_by_nf.add(1);
                if members.table.pool.isolation == Isolation::Strict {
                    members.next_end_ms = now_ms + STRICT_EVERY_MS;
                }
            }
        }
        self.end(place, now_ms.saturating_mul(1_000_000));
    }
}
