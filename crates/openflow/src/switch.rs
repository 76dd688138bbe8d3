//! The switch: requests in, replies and [`Task`]s out.
//!
//! Entries stay when a controller leaves, while the agreements of a connection (role, asynchronous
//! messages, packet length) start anew with the next ([`Switch::greet`]). The caller executes
//! events in order, so that a barrier is answered when the changes before it are in force.

use crate::fault::Fault;
use crate::instruction::{self, Output};
use crate::message::{
    Asyncs, Features, FlowModCommand, FlowRemoved, Message, PacketIn, PacketOut, Role, SwitchConfig, Why, capability,
};
use crate::multipart::{Desc, FlowStats, MultipartRequest, PortStats, Reply, TableStats};
use crate::port::{self, PortChange, PortDesc};
use crate::table::{EntryCounts, EntryTable};
use crate::{ALL_TABLES, NO_BUFFER};

/// What a switch needs of the packet path.
pub trait Plant: EntryCounts {
    /// Counters of a port; None if there is no such port.
    fn port_stats(&self, number: u32) -> Option<PortStats>;
    /// Packets looked up in the table, and packets that matched.
    fn table_counts(&self) -> (u64, u64);
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    Send(u32, Message),
    /// Refuse message number `.0`.
    Refuse(u32, Fault),
    /// Put the changed flow table in force.
    TableChanged,
    /// Answer a barrier when everything before is in force.
    Barrier(u32),
    /// Send a packet from the controller.
    Packet {
        /// Number of the requesting message.
        xid: u32,
        /// The assumed ingress port.
        in_port: u32,
        /// Its output; None drops it.
        output: Option<Output>,
        data: Vec<u8>,
    },
    /// Release a held packet, or refuse message `xid` with [`Fault::BUFFER_UNKNOWN`].
    Held {
        /// Number of the requesting message.
        xid: u32,
        buffer_id: u32,
        /// Its output; None drops it.
        output: Option<Output>,
    },
}

/// A port that entries may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchPort {
    pub desc: PortDesc,
    /// Whether packets may be sent to it.
    pub takes_packets: bool,
}

#[derive(Debug)]
pub struct Switch {
    features: Features,
    desc: Desc,
    table: EntryTable,
    ports: Vec<SwitchPort>,
    config: SwitchConfig,
    role: Role,
    /// Latest generation ID of a master.
    generation: Option<u64>,
    asyncs: Asyncs,
    changes: u64,
}

impl Switch {
    /// A switch with up to `entries` flow entries that holds up to `buffers` packets.
    pub fn new(datapath_id: u64, desc: Desc, entries: u32, buffers: u32) -> Self {
        let capabilities = capability::FLOW_STATS | capability::TABLE_STATS | capability::PORT_STATS;
        Self {
            features: Features { datapath_id, buffers, tables: 1, capabilities },
            desc,
            table: EntryTable::new(entries),
            ports: Vec::new(),
            config: SwitchConfig::default(),
            role: Role::default(),
            generation: None,
            asyncs: Asyncs::default(),
            changes: 0,
        }
    }

    /// Starts a new connection.
    pub fn greet(&mut self) {
        self.config = SwitchConfig::default();
        self.role = Role::default();
        self.asyncs = Asyncs::default();
    }

    pub fn table(&self) -> &EntryTable {
        &self.table
    }

    pub fn table_mut(&mut self) -> &mut EntryTable {
        &mut self.table
    }

    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Sets the ports. Returns the port-status messages.
    pub fn set_ports(&mut self, ports: Vec<SwitchPort>) -> Vec<Message> {
        let mut sent = Vec::new();
        let before = std::mem::replace(&mut self.ports, ports);
        let mut report = |change: PortChange, desc: &PortDesc| {
            if self.asyncs.port_status[self.column()] >> change as u32 & 1 == 1 {
                sent.push(Message::PortStatus(change, desc.clone()));
            }
        };
        for old in &before {
            match self.ports.iter().find(|new| new.desc.number == old.desc.number) {
                None => report(PortChange::Delete, &old.desc),
                Some(new) if new != old => report(PortChange::Modify, &new.desc),
                Some(_) => {}
            }
        }
        for new in self.ports.iter().filter(|new| !before.iter().any(|old| old.desc.number == new.desc.number)) {
            report(PortChange::Add, &new.desc);
        }
        sent
    }

    /// Column of [`Asyncs`] for the present role.
    fn column(&self) -> usize {
        usize::from(self.role == Role::Slave)
    }

    /// Whether the controller wants packet-ins for this reason.
    pub(crate) fn wants_packets(&self, why: Why) -> bool {
        self.asyncs.packet_in[self.column()] >> why as u32 & 1 == 1
    }

    /// A packet-in, if the controller wants it.
    pub fn show(&self, packet: PacketIn) -> Option<Message> {
        self.wants_packets(packet.why).then_some(Message::PacketIn(packet))
    }

    /// Sends flow-removed messages that the controller wants.
    fn report_removed(&self, removed: Vec<FlowRemoved>, events: &mut Vec<Task>) {
        let wants = self.asyncs.flow_removed[self.column()];
        let wanted = removed.into_iter().filter(|r| wants >> r.reason as u32 & 1 == 1);
        events.extend(wanted.map(|r| Task::Send(0, Message::FlowRemoved(r))));
    }

    pub fn expire(&mut self, plant: &dyn Plant, now_ms: u64, events: &mut Vec<Task>) {
        let outcome = self.table.expire(plant, now_ms);
        if outcome.changed {
            events.push(Task::TableChanged);
        }
        self.report_removed(outcome.removed, events);
    }

    /// Checks that this switch supports an output.
    fn look_at(&self, output: Option<Output>, from_controller: bool) -> Result<(), Fault> {
        match output.map(|o| o.port) {
            None | Some(port::NORMAL) => Ok(()),
            Some(port::CONTROLLER) if !from_controller => Ok(()),
            Some(port::TABLE) if from_controller => Ok(()),
            Some(number) if self.ports.iter().any(|p| p.takes_packets && p.desc.number == number) => Ok(()),
            Some(_) => Err(Fault::OUT_PORT),
        }
    }

    /// Handles a message from the controller; appends actions to `events`.
    pub fn handle(&mut self, xid: u32, message: Message, plant: &dyn Plant, now_ms: u64, events: &mut Vec<Task>) {
        if let Err(fault) = self.answer(xid, message, plant, now_ms, events) {
            events.push(Task::Refuse(xid, fault));
        }
    }

    fn answer(&mut self, xid: u32, message: Message, plant: &dyn Plant, now_ms: u64, events: &mut Vec<Task>) -> Result<(), Fault> {
        let mut reply = |message| events.push(Task::Send(xid, message));
        if self.role == Role::Slave && matches!(message, Message::PacketOut(_) | Message::FlowMod(_)) {
            return Err(Fault::IS_SLAVE);
        }
        match message {
            Message::FeaturesRequest => reply(Message::FeaturesReply(self.features)),
            Message::GetConfigRequest => reply(Message::GetConfigReply(self.config)),
            Message::SetConfig(config) => {
                if config.flags != 0 {
                    return Err(Fault::CONFIG_FLAGS);
                }
                self.config = config;
            }
            Message::RoleRequest(role, generation) => {
                if matches!(role, Role::Master | Role::Slave) {
                    // An older generation, in wrapping arithmetic.
                    if self.generation.is_some_and(|known| (generation.wrapping_sub(known) as i64) < 0) {
                        return Err(Fault::ROLE_STALE);
                    }
                    self.generation = Some(generation);
                }
                if role != Role::NoChange {
                    self.role = role;
                }
                reply(Message::RoleReply(self.role, self.generation.unwrap_or(u64::MAX)));
            }
            Message::GetAsyncRequest => reply(Message::GetAsyncReply(self.asyncs)),
            Message::SetAsync(asyncs) => self.asyncs = asyncs,
            Message::BarrierRequest => events.push(Task::Barrier(xid)),
            Message::MultipartRequest(request) => {
                let mut parts = self.look_up(request, plant, now_ms)?.parts().into_iter().peekable();
                while let Some(part) = parts.next() {
                    reply(Message::MultipartReply(part, parts.peek().is_some()));
                }
            }
            Message::FlowMod(change) => {
                let output = instruction::output_of(&change.instructions)?;
                let gives = !matches!(change.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
                if gives {
                    self.look_at(output, false)?;
                }
                let outcome = self.table.change(&change, plant, now_ms)?;
                self.changes += 1;
                if outcome.changed {
                    events.push(Task::TableChanged);
                }
                self.report_removed(outcome.removed, events);
                if gives && change.buffer_id != NO_BUFFER {
                    let output = Some(Output { port: port::TABLE, max_len: 0 });
                    events.push(Task::Held { xid, buffer_id: change.buffer_id, output });
                }
            }
            Message::PacketOut(packet) => events.push(self.packet_out(xid, packet)?),
            // Messages that only a switch sends.
            _ => return Err(Fault::BAD_TYPE),
        }
        Ok(())
    }

    fn packet_out(&self, xid: u32, packet: PacketOut) -> Result<Task, Fault> {
        let output = match packet.actions[..] {
            [] => None,
            [only] => Some(only),
            _ => return Err(Fault::TOO_MANY_ACTIONS),
        };
        self.look_at(output, true)?;
        let PacketOut { buffer_id, in_port, data, .. } = packet;
        if buffer_id != NO_BUFFER {
            return Ok(Task::Held { xid, buffer_id, output });
        }
        if data.is_empty() {
            return Err(Fault::BAD_PACKET);
        }
        Ok(Task::Packet { xid, in_port, output, data })
    }

    fn look_up(&self, request: MultipartRequest, plant: &dyn Plant, now_ms: u64) -> Result<Reply, Fault> {
        let in_table = |table: u8| if table == 0 || table == ALL_TABLES { Ok(()) } else { Err(Fault::BAD_TABLE_ID) };
        Ok(match request {
            MultipartRequest::Desc => Reply::Desc(self.desc.clone()),
            MultipartRequest::Flows(asked) => {
                in_table(asked.table_id)?;
                Reply::Flows(self.table.select(&asked).map(|e| e.stats(plant, now_ms)).collect())
            }
            MultipartRequest::Aggregate(asked) => {
                in_table(asked.table_id)?;
                let all: Vec<FlowStats> = self.table.select(&asked).map(|e| e.stats(plant, now_ms)).collect();
                let sum = |of: fn(&FlowStats) -> u64| all.iter().map(of).fold(0u64, u64::saturating_add);
                Reply::Aggregate { packets: sum(|f| f.packets), bytes: sum(|f| f.bytes), flows: all.len() as u32 }
            }
            MultipartRequest::Tables => {
                let (lookups, matched) = plant.table_counts();
                Reply::Tables(vec![TableStats { table_id: 0, active: self.table.len() as u32, lookups, matched }])
            }
            MultipartRequest::PortStats(port::ANY) => {
                Reply::PortStats(self.ports.iter().filter_map(|p| plant.port_stats(p.desc.number)).collect())
            }
            MultipartRequest::PortStats(number) => {
                let known = self.ports.iter().any(|p| p.desc.number == number);
                Reply::PortStats(vec![plant.port_stats(number).filter(|_| known).ok_or(Fault::BAD_PORT)?])
            }
            MultipartRequest::PortDescs => Reply::PortDescs(self.ports.iter().map(|p| p.desc.clone()).collect()),
        })
    }
}

#[cfg(test)]
#[path = "switch_tests.rs"]
mod tests;
