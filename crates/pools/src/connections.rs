//! The connections with NFs of their own, by key.
//!
//! Approach: connections are in a list that only grows; free elements are reused. An index with
//! open addressing and linear probing leads from the key's hash to the element; removal moves later
//! entries back, so there are no tombstones. Memory is allocated once, and touched when used.

use sluice_policy::pool::life::Life;
use sluice_shm::memory::advise_hugepages;
use sluice_shm::prefetch;

use sluice_dataplane::classify::key::FlowKey;

pub const NONE: u32 = u32::MAX;
/// In place of a slot: a shared service handles this part of the connection.
pub const FALLEN_BACK: u16 = u16::MAX - 1;
/// In place of a slot: the NF has died.
pub const LOST: u16 = u16::MAX;
/// Most pooled services of a connection.
pub(crate) const MOST_MEMBERS: usize = sluice_config::validate::MAX_POOLS;
/// Keys known of a connection at a time: by direction, ingress port and DSCP.
pub const FLOWS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Number of the service.
    pub service: u16,
    /// Slot of its NF in the pool, or [`FALLEN_BACK`] or [`LOST`].
    pub slot: u16,
    /// For a class: the slot's turn when it was assigned; see [`super::classes`].
    pub turn: u16,
}

/// What distinguishes the flow table's keys of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Number of the ingress port.
    pub ingress: u16,
    pub dscp: u8,
    pub direction: u8,
}

#[derive(Debug, Clone, Copy)]
pub struct Connection {
    pub key: FlowKey,
    hash: u64,
    /// Time of its last known packet, in milliseconds.
    pub seen_ms: u64,
    /// After its end: until when its NFs get late packets, in nanoseconds.
    pub until_ns: u64,
    members: [Holding; MOST_MEMBERS],
    flows: [Flow; FLOWS],
    before: u32,
    behind: u32,
    assigned: u8,
    flowing: u8,
    /// Flow that the next one replaces.
    oldest: u8,
    /// Whether it is in the queue of ended ones.
    queued: bool,
    /// Whether the element is in use.
    pub used: bool,
    pub life: Life,
}

impl Connection {
    /// Its members, one for each service.
    #[inline]
    pub fn members(&self) -> &[Holding] {
        &self.members[..self.assigned as usize]
    }

    /// As above, mutable.
    pub(crate) fn members_mut(&mut self) -> &mut [Holding] {
        &mut self.members[..self.assigned as usize]
    }

    /// What it has of a service.
    #[inline]
    pub fn holding(&self, service: u16) -> Option<&Holding> {
        self.members().iter().find(|member| member.service == service)
    }

    /// The slot of a service.
    #[inline]
    pub fn member(&self, service: u16) -> Option<u16> {
        self.holding(service).map(|member| member.slot)
    }

    pub fn room(&self) -> usize {
        MOST_MEMBERS - self.assigned as usize
    }

    /// Adds a member of a service, or replaces the one of that service.
    pub fn assign(&mut self, member: Holding) -> bool {
        if let Some(known) = self.members_mut().iter_mut().find(|known| known.service == member.service) {
            *known = member;
            return true;
        }
        let Some(free) = self.members.get_mut(self.assigned as usize) else { return false };
        *free = member;
        self.assigned += 1;
        true
    }

    /// Its keys in the flow table.
    pub fn flows(&self) -> impl Iterator<Item = FlowKey> + '_ {
        let key = |flow: &Flow| FlowKey::of_connection(&self.key, flow.direction, flow.ingress, flow.dscp);
        self.flows[..self.flowing as usize].iter().map(key)
    }

    /// Adds a key. Returns the one that it replaces.
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

    pub(crate) fn forget_flows(&mut self) {
        self.flowing = 0;
    }
}

#[derive(Debug)]
pub struct Connections {
    list: Vec<Connection>,
    most: usize,
    /// The first free element; `behind` leads to the next.
    free: u32,
    /// High half of the hash, and element index.
    index: Vec<u64>,
    count: usize,
    /// The queue of ended ones.
    head: u32,
    tail: u32,
}

const EMPTY: u64 = 0;

impl Connections {
    pub fn new(most: usize) -> Self {
        let most = most.min(NONE as usize - 1);
        let index = if most == 0 { 1 } else { (most * 2).next_power_of_two() };
        // Zeroes are mapped when touched; large pages, since new connections are scattered over it.
        let index = vec![EMPTY; index];
        advise_hugepages(&index);
        let mut list = Vec::with_capacity(most);
        advise_hugepages(list.spare_capacity_mut());
        Self { list, most, free: NONE, index, count: 0, head: NONE, tail: NONE }
    }

    pub fn most(&self) -> usize {
        self.most
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Elements that were ever in use.
    pub fn places(&self) -> u32 {
        self.list.len() as u32
    }

    #[inline]
    pub fn get(&self, at: u32) -> Option<&Connection> {
        self.list.get(at as usize).filter(|c| c.used)
    }

    #[inline]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Connection> {
        self.list.get_mut(at as usize).filter(|c| c.used)
    }

    /// Marks the members of a service as lost in all connections.
    #[cold]
    pub fn lose(&mut self, service: u16) {
        let members = self.list.iter_mut().flat_map(Connection::members_mut);
        members.filter(|member| member.service == service).for_each(|member| member.slot = LOST);
    }

    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.index.len() - 1)
    }

    /// Prefetches what [`find`](Self::find) reads first: among many connections it is uncached.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.index[self.home(hash)]);
    }

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

    /// Adds a connection whose key is new. None if the list is full.
    pub fn insert(&mut self, key: FlowKey, hash: u64, life: Life, now_ms: u64) -> Option<u32> {
        let member = Holding { service: 0, slot: LOST, turn: 0 };
        let flow = Flow { ingress: 0, dscp: 0, direction: 0 };
        let connection = Connection {
            key,
            hash,
            seen_ms: now_ms,
            until_ns: 0,
            members: [member; MOST_MEMBERS],
            flows: [flow; FLOWS],
            before: NONE,
            behind: NONE,
            assigned: 0,
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
            // Capacity was reserved: nothing is allocated.
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
            // It may fill the hole if its home is not between the hole and itself.
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

    /// Appends an ended connection to the queue.
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

    /// The first ended connection, if its time for late packets is over.
    #[inline]
    pub(crate) fn first_over(&self, now_ns: u64) -> Option<u32> {
        self.get(self.head).filter(|c| c.until_ns <= now_ns).map(|_| self.head)
    }

    pub(crate) fn first_ended(&self) -> Option<u32> {
        self.get(self.head).map(|_| self.head)
    }

    /// The next ended connection.
    pub fn next_ended(&self, at: u32) -> Option<u32> {
        let behind = self.get(at).filter(|c| c.queued)?.behind;
        self.get(behind).map(|_| behind)
    }
}

/// How far the connections have been examined in turn, and when last, in milliseconds.
#[derive(Debug, Default)]
pub struct Round {
    hand: u32,
    at_ms: u64,
}

/// Time in which all are examined, if there are many, in milliseconds.
const ROUND_MS: u64 = 2_000;
/// Most that are examined at a time.
const MOST_DUE: u32 = 16_384;

impl Round {
    /// How many of `places` to examine at `now_ms`: `least` or more, or all of them; none sooner
    /// than `every_ms` after the last time.
    pub fn due(&mut self, places: u32, now_ms: u64, every_ms: u64, least: u32) -> u32 {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms).min(ROUND_MS);
        if elapsed_ms < every_ms {
            return 0;
        }
        self.at_ms = now_ms;
        let due = (u64::from(places) * elapsed_ms / ROUND_MS) as u32;
        due.clamp(least, MOST_DUE).min(places)
    }

    /// The next place to examine.
    pub fn next(&mut self, places: u32) -> u32 {
        self.hand = if self.hand + 1 >= places { 0 } else { self.hand + 1 };
        self.hand
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
        // Few hashes, to exercise probing and moving back.
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
    fn all_places_come_in_turn_and_within_a_round() {
        let mut round = Round::default();
        assert_eq!((round.due(0, 5, 1, 64), round.due(9, 5, 1, 64)), (0, 0), "none, and no time has passed");
        assert_eq!([6, 6, 7].map(|now_ms| round.due(9, now_ms, 1, 4)), [4, 0, 4]);
        assert_eq!((0..4).map(|_| round.next(3)).collect::<Vec<_>>(), [1, 2, 0, 1]);
        let mut round = Round::default();
        let all: u32 = (1..=200).map(|n| round.due(10_000, n * 10, 10, 32)).sum();
        assert_eq!(all, 10_000);
        assert_eq!((round.due(10_000, 2_009, 10, 32), round.due(10_000, 9_000, 10, 32)), (0, 10_000));
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
