//! Hooks by which features decide about a flow's first packet.
//!
//! A flow's chain is chosen first: by a [`ChooseChain`], if there is one, else by the rules. Then
//! an instance of each service is chosen: by a [`ChooseInstances`] for chains that it handles, else
//! by the flow's hash. The flow table remembers the decision for the flow's other packets.
//!
//! Both belong to one packet thread. They never block, lock, make system calls, or allocate by
//! packet.

use std::any::Any;
use std::sync::Arc;

use sluice_shm::clock::Clock;
use sluice_shm::histogram::Histogram;

use crate::chain::{Chain, PathRegistry, Tables};
use crate::classify::flow_table::FlowTable;
use crate::classify::key::FlowKey;
use crate::classify::rule::RuleTerms;
use crate::decision::{Decision, Refusal, WaitFor};
use crate::frame::Packet;
use crate::plane::Plane;

/// How the chain of a flow is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The rules.
    Rules,
    /// This chain.
    Chain(u16),
    /// No chain: the packet is dropped.
    Drop(Refusal),
    /// No chain yet: the packet is [held](ChooseChain::hold).
    Wait,
}

impl Choice {
    /// The chain, and the index of the rule that names it, if one does.
    ///
    /// # Errors
    /// The decision, if there is no chain.
    pub fn chain(self, tables: &Tables, key: &FlowKey) -> Result<(u16, Option<usize>), Decision> {
        match self {
            Self::Chain(chain) => Ok((chain, None)),
            Self::Drop(why) => Err(Decision::Drop(why)),
            Self::Wait => Err(Decision::Wait(WaitFor::Answer)),
            Self::Rules => {
                let rule = tables.rules.first_rule(key).ok_or(Decision::Drop(Refusal::NoRule))?;
                Ok((tables.rules.rules()[rule].chain, Some(rule)))
            }
        }
    }
}

/// A choice for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// The chain.
    pub choice: Choice,
    /// Note to keep in the flow table: see
    /// [`Known::note`](crate::classify::flow_table::Known::note).
    pub note: u32,
    /// Whether the flow table may keep it: it holds for all packets with this key.
    pub settles: bool,
}

impl Chosen {
    /// The rules choose, and nothing is noted.
    pub const RULES: Self = Self { choice: Choice::Rules, note: 0, settles: true };
}

/// A packet that was held, or made here, and goes on.
#[derive(Debug, Clone, Copy)]
pub struct Released {
    /// The packet.
    pub packet: Packet,
    /// Its key.
    pub key: FlowKey,
    /// Its chain.
    pub choice: Choice,
}

/// Chooses the chains of flows before the rules do.
pub trait ChooseChain: Send {
    /// Chooses for a packet of a flow that is unknown, or has this `note`.
    fn choose(&mut self, plane: &Plane, key: &FlowKey, packet: Packet, note: u32) -> Chosen;

    /// Counts a packet of a known flow with a nonzero note. Returns a new note, if it changes.
    fn count(&mut self, plane: &Plane, key: &FlowKey, packet: Packet, note: u32) -> Option<u32>;

    /// The current choice for a packet; nothing is counted or changed.
    fn now(&self, plane: &Plane, key: &FlowKey, packet: Packet) -> Choice;

    /// Holds a packet for an answer, or drops it if too many are held.
    fn hold(&mut self, plane: &mut Plane, packet: Packet, ingress: u16);

    /// Polls the packets that it holds, every few rounds.
    fn poll(&mut self, plane: &mut Plane);

    /// Packets that it holds.
    fn held(&self) -> usize;

    /// Whether there are packets to send on.
    fn has_released(&self) -> bool;

    /// Takes the first packet to send on.
    fn next_released(&mut self) -> Option<Released>;

    /// Drops all packets that it holds.
    fn let_go(&mut self, plane: &mut Plane);

    /// Itself, for commands of its feature.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Context of a decision about instances.
pub struct Env<'a> {
    /// Where packets go.
    pub tables: &'a Tables,
    /// The paths.
    pub registry: &'a PathRegistry,
    /// The thread's flow table.
    pub flows: &'a mut FlowTable,
    /// Generation to record with decisions.
    pub generation: u32,
    /// The clock.
    pub clock: &'a Clock,
}

/// A packet that needs a decision about instances.
#[derive(Debug, Clone, Copy)]
pub struct SteerRequest<'a> {
    /// Its key.
    pub key: &'a FlowKey,
    /// The flow table's hash of it.
    pub hash: u64,
    /// Its chain.
    pub chain: &'a Arc<Chain>,
    /// Its TCP flags; 0 if it has none.
    pub flags: u8,
    /// The former path of its flow.
    pub old: Option<u32>,
    /// Whether it has waited, and its turn has come.
    pub has_waited: bool,
    /// Whether the flow table may keep the decision.
    pub settles: bool,
    /// Note to keep in the flow table: see
    /// [`Known::note`](crate::classify::flow_table::Known::note).
    pub note: u32,
    /// Terms of its flow, if that is new.
    pub terms: RuleTerms,
    /// When it was found to have no known flow, or its turn came, in nanoseconds of [`Env::clock`].
    pub since_ns: u64,
}

/// What a waiting packet will get, as decided when it came.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Number of the service that had no idle instance.
    pub service: u16,
    /// Number of its chain.
    pub chain: u16,
    /// As [`SteerRequest::note`].
    pub note: u32,
    /// Terms of its flow.
    pub terms: RuleTerms,
}

/// An instance that a packet would get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreseen {
    /// This NF.
    Nf(u16),
    /// One of this service, chosen when the packet comes.
    OneOf(u16),
}

/// A packet that came in at the entry.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The packet.
    pub packet: Packet,
    /// Its key.
    pub key: &'a FlowKey,
    /// Flags of its descriptor.
    pub flags: u8,
    /// Its TCP flags; 0 if it has none.
    pub tcp: u8,
}

/// Chooses the instances of services that are not shared by hash.
pub trait ChooseInstances: Send {
    /// Whether it needs the TCP flags of packets.
    fn watches(&self) -> bool;

    /// Changes when earlier decisions may no longer be used.
    fn moved(&self) -> u32;

    /// Whether it chooses the instances of a service of this chain.
    fn concerns(&self, chain: &Chain) -> bool;

    /// Prefetches what is known of a connection, for a packet of an unknown flow.
    fn foresee(&self, key: &FlowKey);

    /// Notes SYN, FIN or RST of a known flow. True: a new connection, so what is known is void.
    fn note(&mut self, key: &FlowKey, flags: u8, flows: &mut FlowTable, now_ns: u64) -> bool;

    /// Decides about a packet. Decisions that hold for further packets go into the flow table.
    fn decide(&mut self, asked: &SteerRequest<'_>, env: &mut Env<'_>) -> Decision;

    /// The instances that [`ChooseInstances::decide`] would choose for a packet, in the order of
    /// its path; nothing is counted or changed.
    ///
    /// # Errors
    /// The decision, if there is no path.
    fn foresee_path(&self, asked: &SteerRequest<'_>, tables: &Tables) -> Result<Vec<Foreseen>, Decision>;

    /// What the packet decided last waits for, if it must wait for an instance.
    fn wanted(&self) -> Wanted;

    /// Keeps a packet that waits for an instance. Returns whether it, or another one, was dropped.
    fn wait(&mut self, plane: &mut Plane, wanted: Wanted, arrival: &Arrival<'_>) -> bool;

    /// Runs between two bursts.
    fn step(&mut self, flows: &mut FlowTable, now_ns: u64);

    /// Sends on waiting packets for which there are instances now. Returns how many.
    fn release(&mut self, plane: &mut Plane, registry: &PathRegistry, flows: &mut FlowTable, clock: &Clock) -> usize;

    /// Ends connections that were silent for too long, every few rounds.
    fn age(&mut self, flows: &mut FlowTable, now_ms: u64, flow_timeout_ms: u64);

    /// Packets that wait.
    fn waiting(&self) -> usize;

    /// Drops all packets that wait.
    fn let_go(&mut self, plane: &mut Plane);

    /// Duration of connection set-up, by service number, in nanoseconds.
    fn setups(&self) -> Vec<(u16, Histogram)>;

    /// Itself, for commands of its feature.
    fn as_any(&mut self) -> &mut dyn Any;
}
