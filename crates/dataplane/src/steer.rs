//! Where features have a say about a flow's first packet.
//!
//! A flow's chain is chosen first: by a [`ChooseChain`], if there is one, and else by the rules. Then an instance of each of its
//! services: by a [`ChooseInstances`], for chains that concern it, and else by the flow's hash. What is decided goes into the flow
//! table, which answers for the flow's other packets.
//!
//! Both belong to one packet thread. None of their functions may block, lock, make a system call, or allocate for each packet.

use std::any::Any;
use std::sync::Arc;

use sluice_shm::clock::Clock;
use sluice_shm::histogram::Histogram;

use crate::chain::{Chain, PathRegistry, Tables};
use crate::classify::flow_table::FlowTable;
use crate::classify::key::FlowKey;
use crate::classify::rule::Terms;
use crate::decision::{Decision, Refusal, WaitFor};
use crate::frame::Packet;
use crate::plane::Plane;

/// What chooses the chain of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The rules.
    Rules,
    /// It is this one.
    Chain(u16),
    /// None: the packet is dropped.
    Drop(Refusal),
    /// Nothing yet: the packet is [held](ChooseChain::hold).
    Wait,
}

impl Choice {
    /// The chain, with the place of the rule that names it, if one does; or what becomes of the packet instead.
    ///
    /// # Errors
    /// The decision where there is no chain.
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

/// What was chosen for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// What chooses the chain.
    pub choice: Choice,
    /// What the flow table is to keep with the flow: see [`Known::note`](crate::classify::flow_table::Known::note).
    pub note: u32,
    /// Whether the flow table may keep it: it holds for all packets with this key.
    pub settles: bool,
}

impl Chosen {
    /// The rules choose, and nothing is noted.
    pub const RULES: Self = Self { choice: Choice::Rules, note: 0, settles: true };
}

/// A packet that goes on after it was held, or that was made here.
#[derive(Debug, Clone, Copy)]
pub struct Released {
    /// The packet.
    pub packet: Packet,
    /// Its key.
    pub key: FlowKey,
    /// What chooses its chain.
    pub choice: Choice,
}

/// Chooses the chains of flows before the rules do.
pub trait ChooseChain: Send {
    /// Chooses for a packet of a flow that is not known, or was noted with `note`.
    fn choose(&mut self, plane: &Plane, key: &FlowKey, packet: Packet, note: u32) -> Chosen;

    /// A packet of a known flow with a note, which is not 0. Another note for the flow, if it is to have one.
    fn count(&mut self, plane: &Plane, key: &FlowKey, packet: Packet, note: u32) -> Option<u32>;

    /// What would choose the chain of a packet; nothing is counted or changed.
    fn now(&self, plane: &Plane, key: &FlowKey, packet: Packet) -> Choice;

    /// Holds a packet that is to wait for an answer, or drops it if it holds too many.
    fn hold(&mut self, plane: &mut Plane, packet: Packet, ingress: u16);

    /// Looks after the packets that it holds, every few rounds.
    fn tend(&mut self, plane: &mut Plane);

    /// Packets that it holds.
    fn held(&self) -> usize;

    /// Whether there are packets to go on.
    fn has_released(&self) -> bool;

    /// Gives the first of these away.
    fn next_released(&mut self) -> Option<Released>;

    /// Drops all packets that it holds.
    fn let_go(&mut self, plane: &mut Plane);

    /// Itself, for commands of its feature.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// What decisions about instances need besides the packet.
pub struct Env<'a> {
    /// Where packets go.
    pub tables: &'a Tables,
    /// The paths.
    pub registry: &'a PathRegistry,
    /// The thread's flow table.
    pub flows: &'a mut FlowTable,
    /// Generation that decisions are noted with.
    pub generation: u32,
    /// The clock.
    pub clock: &'a Clock,
}

/// A packet that needs a decision about instances.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Its key.
    pub key: &'a FlowKey,
    /// The flow table's hash of it.
    pub hash: u64,
    /// Its chain.
    pub chain: &'a Arc<Chain>,
    /// Its TCP flags; 0 of others.
    pub flags: u8,
    /// The path that its flow had.
    pub old: Option<u32>,
    /// It has waited, and it is its turn.
    pub has_waited: bool,
    /// Whether the flow table may keep what is decided.
    pub settles: bool,
    /// What the flow table is to keep besides: see [`Known::note`](crate::classify::flow_table::Known::note).
    pub note: u32,
    /// What its flow is given, if it is a new one.
    pub terms: Terms,
    /// When it was found to be of no known flow, or its turn came, in nanoseconds of [`Env::clock`].
    pub since_ns: u64,
}

/// What a packet that waits will be given, as was decided when it came.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Number of the service that had no idle instance.
    pub service: u16,
    /// Number of its chain.
    pub chain: u16,
    /// As [`Asked::note`].
    pub note: u32,
    /// What its flow is given.
    pub terms: Terms,
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
    /// Its TCP flags; 0 of others.
    pub tcp: u8,
}

/// Chooses the instances of services that are not shared by hash.
pub trait ChooseInstances: Send {
    /// Whether it wants to see the TCP flags of packets.
    fn watches(&self) -> bool;

    /// Changes when packets that were classified before may not be let in by that.
    fn moved(&self) -> u32;

    /// Whether a chain has a service whose instances it chooses.
    fn concerns(&self, chain: &Chain) -> bool;

    /// A packet of an unknown flow comes: what is known of its connection is fetched into the cache.
    fn foresee(&self, key: &FlowKey);

    /// A packet of a known flow with SYN, FIN or RST. True: a new connection begins, and what is known of the flow does not count.
    fn note(&mut self, key: &FlowKey, flags: u8, flows: &mut FlowTable, now_ns: u64) -> bool;

    /// Decides about a packet. What holds for further packets of the flow goes into the flow table.
    fn decide(&mut self, asked: &Asked<'_>, env: &mut Env<'_>) -> Decision;

    /// What the packet wants that was decided about last, if it is to wait for an instance.
    fn wanted(&self) -> Wanted;

    /// Keeps a packet that waits for an instance. Says whether a packet was dropped for it, or it was itself.
    fn wait(&mut self, plane: &mut Plane, wanted: Wanted, arrival: &Arrival<'_>) -> bool;

    /// What is due between two bursts.
    fn step(&mut self, flows: &mut FlowTable, now_ns: u64);

    /// Lets packets go on that waited, as far as there are instances now. Says how many.
    fn release(&mut self, plane: &mut Plane, registry: &PathRegistry, flows: &mut FlowTable, clock: &Clock) -> usize;

    /// Ends what has said nothing for too long, every few rounds.
    fn age(&mut self, flows: &mut FlowTable, now_ms: u64, flow_timeout_ms: u64);

    /// Packets that wait.
    fn waiting(&self) -> usize;

    /// Drops all packets that wait.
    fn let_go(&mut self, plane: &mut Plane);

    /// How long setting up a connection took, by number of the service, in nanoseconds.
    fn setups(&self) -> Vec<(u16, Histogram)>;

    /// Itself, for commands of its feature.
    fn as_any(&mut self) -> &mut dyn Any;
}
