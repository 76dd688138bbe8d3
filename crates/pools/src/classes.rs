//! The traffic classes with members of a pool, at one thread.
//!
//! A class has one member for all its connections, which are counted; it is free after the last. A
//! member that leaves, or is lost, accepts no more connections: the class gets another one.

use std::collections::HashMap;
use std::net::IpAddr;

use sluice_api::parse::network_of;
use sluice_config::class::TrafficClass;
use sluice_dataplane::classify::key::FlowKey;

/// What distinguishes the packets of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClassKey {
    kind: u8,
    word: u128,
}

impl ClassKey {
    /// The class of a packet whose rule names tenant number `tenant`.
    pub fn of(class: TrafficClass, key: &FlowKey, tenant: u32) -> Self {
        match class {
            TrafficClass::Tenant => Self { kind: 1, word: tenant.into() },
            TrafficClass::Vlan => Self { kind: 1, word: key.vlan().into() },
            TrafficClass::Port => Self { kind: 1, word: key.ingress().into() },
            TrafficClass::Dscp => Self { kind: 1, word: key.dscp().into() },
            TrafficClass::Prefix { source, v4, v6 } => match key.addresses() {
                None => Self::default(),
                Some((src, dst)) => match if source { src } else { dst } {
                    address @ IpAddr::V4(_) => Self { kind: 4, word: word(network_of(address, v4)) },
                    address @ IpAddr::V6(_) => Self { kind: 6, word: word(network_of(address, v6)) },
                },
            },
        }
    }
}

fn word(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    key: ClassKey,
    connections: u32,
    /// Grows when the member is lost, and so invalidates older connections' records.
    turn: u16,
}

#[derive(Debug, Default)]
pub struct Classes {
    slots: HashMap<ClassKey, u32>,
    held: Vec<Held>,
}

impl Classes {
    pub fn extend(&mut self, most: usize) {
        self.held.resize(most.max(self.held.len()), Held::default());
        self.slots.reserve(most.saturating_sub(self.slots.len()));
    }

    pub fn find(&self, key: &ClassKey) -> Option<u32> {
        self.slots.get(key).copied()
    }

    /// The present turn of a slot, which connections record.
    pub fn turn(&self, slot: u32) -> u16 {
        self.held.get(slot as usize).map_or(0, |held| held.turn)
    }

    pub fn give(&mut self, key: ClassKey, slot: u32) {
        if let Some(held) = self.held.get_mut(slot as usize) {
            (held.key, held.connections) = (key, 0);
            self.slots.insert(key, slot);
        }
    }

    /// Adds a connection to a slot.
    pub fn join(&mut self, slot: u32) {
        self.held.get_mut(slot as usize).into_iter().for_each(|held| held.connections += 1);
    }

    /// Removes a connection. Returns whether it was the last one of its class in the slot.
    pub fn rise(&mut self, slot: u32, turn: u16) -> bool {
        let Some(held) = self.held.get_mut(slot as usize).filter(|held| held.turn == turn) else { return false };
        held.connections = held.connections.saturating_sub(1);
        let is_last = held.connections == 0;
        if is_last {
            self.forget(slot);
        }
        is_last
    }

    /// Marks the member of a slot as lost.
    pub fn lose(&mut self, slot: u32) {
        self.forget(slot);
        if let Some(held) = self.held.get_mut(slot as usize) {
            (held.connections, held.turn) = (0, held.turn.wrapping_add(1));
        }
    }

    fn forget(&mut self, slot: u32) {
        let Some(held) = self.held.get(slot as usize) else { return };
        // The class may have another member by now.
        if self.slots.get(&held.key) == Some(&slot) {
            self.slots.remove(&held.key);
        }
    }
}
