//! The connections that have NFs of their own, found by their key.
//!
//! Approach: connections lie in a list that is as long as it ever had to be; places of those that are over are used again. An index, open
//! addressing with linear probing, leads from the key's hash to the place; a removal moves back what stood behind, so that there are no
//! marks of former entries. Memory is asked for once and touched as connections come. Those that have ended are in a queue of their own.

use sluice_policy::pool::life::Life;
use sluice_shm::memory::advise_hugepages;
use sluice_shm::prefetch;

use sluice_dataplane::classify::key::FlowKey;

/// No connection.
pub const NONE: u32 = u32::MAX;
/// Instead of a slot: a shared service has this part of the connection.
pub const FALLEN_BACK: u16 = u16::MAX - 1;
/// Instead of a slot: the NF has died.
pub const LOST: u16 = u16::MAX;
/// Most pooled services of a connection.
pub const SEATS: usize = sluice_config::validate::MAX_POOLS;
/// Keys of a connection that are known at a time: directions, times ports and DSCPs by which its packets come.
pub const FLOWS: usize = 4;

/// One pooled service of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Number of the service.
    pub service: u16,
    /// Slot of its NF in the pool, [`FALLEN_BACK`] or [`LOST`].
    pub slot: u16,
    /// Of a class's NF: the turn of the slot at which it was given; see [`super::classes`].
    pub turn: u16,
}

/// What the flow table's keys of a connection differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Number of the port.
    pub ingress: u16,
    /// DSCP.
    pub dscp: u8,
    /// Direction.
    pub direction: u8,
}

/// A connection.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// Its key.
    pub key: FlowKey,
    hash: u64,
    /// When it is known to have had a packet, in milliseconds.
    pub seen_ms: u64,
    /// Once it has ended: until when its NFs are kept for late packets, in nanoseconds.
    pub until_ns: u64,
    seats: [Seat; SEATS],
    flows: [Flow; FLOWS],
    before: u32,
    behind: u32,
    seated: u8,
    flowing: u8,
    /// Flow that makes room for the next one.
    oldest: u8,
    /// It is in the queue of those that have ended.
    queued: bool,
    /// It is there.
    pub used: bool,
    /// Whether it has ended.
    pub life: Life,
}

impl Connection {
    /// Its seats.
    #[inline]
    pub fn seats(&self) -> &[Seat] {
        &self.seats[..self.seated as usize]
    }

    /// The same, to be changed.
    pub fn seats_mut(&mut self) -> &mut [Seat] {
        &mut self.seats[..self.seated as usize]
    }

    /// The slot of a service.
    #[inline]
    pub fn seat(&self, service: u16) -> Option<u16> {
        self.seats().iter().find(|seat| seat.service == service).map(|seat| seat.slot)
    }

    /// How many further services it has room for.
    pub fn room(&self) -> usize {
        SEATS - self.seated as usize
    }

    /// Gives it a slot of a service, in place of a former one.
    pub fn sit(&mut self, seat: Seat) -> bool {
        if let Some(known) = self.seats_mut().iter_mut().find(|known| known.service == seat.service) {
            *known = seat;
            return true;
        }
        let Some(free) = self.seats.get_mut(self.seated as usize) else { return false };
        *free = seat;
        self.seated += 1;
        true
    }

    /// Its keys in the flow table.
    pub fn flows(&self) -> impl Iterator<Item = FlowKey> + '_ {
        let key = |flow: &Flow| FlowKey::of_connection(&self.key, flow.direction, flow.ingress, flow.dscp);
        self.flows[..self.flowing as usize].iter().map(key)
    }

    /// Notes a key of it. Says which one had to go for it.
    pub fn note(&mut self, flow: Flow) -> Option<FlowKey> {
        if self.flows[..self.flowing as usize].contains(&flow) {
            return None;
        }
        if let Some(free) = self.flows.get_mut(self.flowing as usize) {
            *free = flow;
            self.flowing += 1;
            return None;
        }
        let at = self.oldest as usize % FLOWS;
        self.oldest = self.oldest.wrapping_add(1);
        let gone = std::mem::replace(&mut self.flows[at], flow);
        Some(FlowKey::of_connection(&self.key, gone.direction, gone.ingress, gone.dscp))
    }

    /// Forgets its keys.
    pub fn forget_flows(&mut self) {
        self.flowing = 0;
    }
}

/// The connections of one thread.
#[derive(Debug)]
pub struct Connections {
    list: Vec<Connection>,
    most: usize,
    /// The first free place, which leads to the next by `behind`.
    free: u32,
    /// High half of the hash, and place.
    index: Vec<u64>,
    count: usize,
    /// The queue of those that have ended.
    head: u32,
    tail: u32,
}

const EMPTY: u64 = 0;

impl Connections {
    /// For up to `most` connections.
    pub fn new(most: usize) -> Self {
        let most = most.min(NONE as usize - 1);
        let index = if most == 0 { 1 } else { (most * 2).next_power_of_two() };
        // Zeroes, which the system gives as they are touched; on large pages, as each new connection is somewhere else in it.
        let index = vec![EMPTY; index];
        advise_hugepages(&index);
        let mut list = Vec::with_capacity(most);
        advise_hugepages(list.spare_capacity_mut());
        Self { list, most, free: NONE, index, count: 0, head: NONE, tail: NONE }
    }

    /// How many there may be.
    pub fn most(&self) -> usize {
        self.most
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Places that have ever been used.
    pub fn places(&self) -> u32 {
        self.list.len() as u32
    }

    /// The connection at a place.
    #[inline]
    pub fn get(&self, at: u32) -> Option<&Connection> {
        self.list.get(at as usize).filter(|c| c.used)
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Connection> {
        self.list.get_mut(at as usize).filter(|c| c.used)
    }

    /// No connection has an NF of this service any more. Looks at all of them.
    #[cold]
    pub fn lose(&mut self, service: u16) {
        let seats = self.list.iter_mut().flat_map(Connection::seats_mut);
        seats.filter(|seat| seat.service == service).for_each(|seat| seat.slot = LOST);
    }

    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.index.len() - 1)
    }

    /// Fetches ahead what [`find`](Self::find) looks at first: among many connections it is in no cache.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.index[self.home(hash)]);
    }

    /// Place of the connection with a key.
    #[inline]
    pub fn find(&self, key: &FlowKey, hash: u64) -> Option<u32> {
        let mask = self.index.len() - 1;
        let mut at = self.home(hash);
        loop {
            let word = self.index[at];
            if word == EMPTY {
                return None;
            }
            if word >> 32 == hash >> 32 {
                let place = word as u32 - 1;
                if self.list[place as usize].key == *key {
                    return Some(place);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a connection whose key is not there. None if there are as many as there may be.
    pub fn insert(&mut self, key: FlowKey, hash: u64, life: Life, now_ms: u64) -> Option<u32> {
        let seat = Seat { service: 0, slot: LOST, turn: 0 };
        let flow = Flow { ingress: 0, dscp: 0, direction: 0 };
        let connection = Connection {
            key,
            hash,
            seen_ms: now_ms,
            until_ns: 0,
            seats: [seat; SEATS],
            flows: [flow; FLOWS],
            before: NONE,
            behind: NONE,
            seated: 0,
            flowing: 0,
            oldest: 0,
            queued: false,
            used: true,
            life,
        };
        let place = if self.free != NONE {
            let place = self.free;
            self.free = self.list[place as usize].behind;
            self.list[place as usize] = connection;
            place
        } else {
            if self.list.len() >= self.most {
                return None;
            }
            // There is room: nothing is allocated.
            self.list.push(connection);
            self.list.len() as u32 - 1
        };
        let mask = self.index.len() - 1;
        let mut at = self.home(hash);
        while self.index[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.index[at] = (hash >> 32) << 32 | u64::from(place + 1);
        self.count += 1;
        Some(place)
    }

    /// Removes a connection.
    pub fn remove(&mut self, place: u32) {
        let Some(hash) = self.get(place).map(|c| c.hash) else { return };
        self.dequeue(place);
        let mask = self.index.len() - 1;
        let mut hole = self.home(hash);
        while self.index[hole] as u32 != place + 1 {
            hole = (hole + 1) & mask;
        }
        self.index[hole] = EMPTY;
        let mut at = (hole + 1) & mask;
        while self.index[at] != EMPTY {
            let home = (self.index[at] >> 32) as usize & mask;
            // It may move to the hole if its home is not between the hole and where it stands.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.index[hole] = self.index[at];
                self.index[at] = EMPTY;
                hole = at;
            }
            at = (at + 1) & mask;
        }
        let connection = &mut self.list[place as usize];
        connection.used = false;
        connection.behind = self.free;
        self.free = place;
        self.count -= 1;
    }

    /// Puts a connection that has ended at the end of their queue.
    pub fn enqueue(&mut self, place: u32, until_ns: u64) {
        let tail = self.tail;
        let Some(connection) = self.get_mut(place).filter(|c| !c.queued) else { return };
        (connection.queued, connection.until_ns) = (true, until_ns);
        (connection.before, connection.behind) = (tail, NONE);
        match self.list.get_mut(tail as usize) {
            Some(last) => last.behind = place,
            None => self.head = place,
        }
        self.tail = place;
    }

    fn dequeue(&mut self, place: u32) {
        let Some(connection) = self.get_mut(place).filter(|c| c.queued) else { return };
        connection.queued = false;
        let (before, behind) = (connection.before, connection.behind);
        match self.list.get_mut(before as usize) {
            Some(neighbour) => neighbour.behind = behind,
            None => self.head = behind,
        }
        match self.list.get_mut(behind as usize) {
            Some(neighbour) => neighbour.before = before,
            None => self.tail = before,
        }
    }

    /// The connection that has ended first, if the time for its late packets is over.
    #[inline]
    pub fn first_over(&self, now_ns: u64) -> Option<u32> {
        self.get(self.head).filter(|c| c.until_ns <= now_ns).map(|_| self.head)
    }

    /// The connection that has ended first.
    pub fn first_ended(&self) -> Option<u32> {
        self.get(self.head).map(|_| self.head)
    }

    /// The one that has ended after the one at a place.
    pub fn next_ended(&self, at: u32) -> Option<u32> {
        let behind = self.get(at).filter(|c| c.queued)?.behind;
        self.get(behind).map(|_| behind)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u32) -> FlowKey {
        let mut packet = [0u8; 64];
        packet[12..15].copy_from_slice(&[0x08, 0, 0x45]);
        packet[17] = 46;
        packet[23] = 17;
        packet[26..30].copy_from_slice(&n.to_be_bytes());
        FlowKey::parse(&packet, 64, 0).connection().0
    }

    #[derive(Debug, Clone)]
    enum Act {
        Insert(u32),
        Remove(u32),
        End(u32),
        Over,
    }

    proptest! {
        // Few hashes, so that probing and moving back have work to do.
        #[test]
        fn behaves_as_a_map_and_a_queue(
            acts in prop::collection::vec(
                prop_oneof![
                    4 => (0..40u32).prop_map(Act::Insert),
                    3 => (0..40u32).prop_map(Act::Remove),
                    2 => (0..40u32).prop_map(Act::End),
                    1 => Just(Act::Over),
                ],
                1..300,
            ),
            spread in 1..9u64,
        ) {
            let hash = |n: u32| (u64::from(n) % spread * 3) << 32;
            let mut connections = Connections::new(24);
            let mut model: HashMap<u32, u32> = HashMap::new();
            let mut ended: Vec<u32> = Vec::new();
            for act in acts {
                match act {
                    Act::Insert(n) if model.contains_key(&n) => {}
                    Act::Insert(n) => {
                        let place = connections.insert(key(n), hash(n), Life::default(), 0);
                        prop_assert_eq!(place.is_some(), model.len() < 24);
                        if let Some(place) = place {
                            model.insert(n, place);
                        }
                    }
                    Act::Remove(n) => {
                        if let Some(place) = model.remove(&n) {
                            connections.remove(place);
                            ended.retain(|e| *e != n);
                        }
                    }
                    Act::End(n) => {
                        if let Some(place) = model.get(&n).filter(|_| !ended.contains(&n)) {
                            connections.enqueue(*place, 5);
                            ended.push(n);
                        }
                    }
                    Act::Over => {
                        prop_assert_eq!(connections.first_over(4), None);
                        let first = (!ended.is_empty()).then(|| ended.remove(0));
                        prop_assert_eq!(connections.first_over(5), first.map(|n| model[&n]));
                        if let Some(n) = first {
                            connections.remove(model.remove(&n).unwrap());
                        }
                    }
                }
                prop_assert_eq!(connections.len(), model.len());
                for n in 0..40 {
                    prop_assert_eq!(connections.find(&key(n), hash(n)), model.get(&n).copied());
                }
            }
        }
    }

    #[test]
    fn a_connection_knows_its_flows_and_which_made_room() {
        let mut connections = Connections::new(1);
        let place = connections.insert(key(1), 0, Life::default(), 0).unwrap();
        let connection = connections.get_mut(place).unwrap();
        let flow = |dscp| Flow { ingress: 3, dscp, direction: dscp & 1 };
        for dscp in 0..4 {
            assert_eq!(connection.note(flow(dscp)), None);
            assert_eq!(connection.note(flow(dscp)), None, "it is known");
        }
        let gone = connection.note(flow(9)).unwrap();
        assert_eq!((gone.ingress(), gone.dscp(), gone.connection()), (3, 0, (connection.key, 0)));
        assert_eq!(connection.flows().count(), FLOWS);
        connection.forget_flows();
        assert_eq!(connection.flows().count(), 0);
    }
}
