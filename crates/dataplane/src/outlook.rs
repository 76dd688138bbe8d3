//! What a packet would meet if it came now: its flow's entry, rule, chain and path, and what would
//! keep it out.
//!
//! Problem: an operator asks what becomes of a header, without a packet. Approach: the packet
//! thread that would receive it walks the way of [`Rx`] between two rounds. Each step is the one
//! that packets take, or the part of it that chooses; what would be counted, kept or made is not.
//!
//! Limits: what happens behind the entry is not foreseen, as an NF's verdict or a full ring. TCP
//! flags are not regarded: of a connection that has ended, and is kept for late packets, a SYN that
//! would begin it anew is foreseen as one of these.

use std::sync::Arc;

use crate::admit::Obstacle;
use crate::chain::registry::{Course, PathAhead};
use crate::chain::{Chain, Path, PathKind};
use crate::classify::key::{FlowKey, LONG};
use crate::decision::{Decision, Refusal, WaitFor};
use crate::frame::Packet;
use crate::plane::Plane;
use crate::rx::{Rx, terms_of};
use crate::steer::{Choice, Chosen, Foreseen, SteerRequest};

/// What the flow table knows of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFlow {
    /// The decision.
    pub decision: Decision,
    /// NFs of its path, if it is one that exists.
    pub nfs: Vec<u16>,
    /// Whether it stands; else the flow's next packet is decided again.
    pub stands: bool,
    /// Milliseconds since the flow's last packet, to within two ticks of the table.
    pub idle_ms: u64,
}

/// What happens to a packet at the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is let in.
    Enters,
    /// It has a path, and this keeps it out.
    KeptOut(Obstacle),
    /// It is dropped without a path.
    Refused(Refusal),
    /// It waits.
    Waits(WaitFor),
}

/// What a packet would meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// Its key.
    pub key: FlowKey,
    /// What is known of its flow.
    pub flow: Option<KnownFlow>,
    /// Number of its chain, if it has one.
    pub chain: Option<u16>,
    /// Index of the rule that names the chain, if a rule does.
    pub rule: Option<usize>,
    /// The NFs of its path.
    pub nfs: Vec<Foreseen>,
    /// Whether its path leaves out a service that has no instance.
    pub bypasses: bool,
    /// What happens to it.
    pub fate: Fate,
}

/// A path as far as it is known.
struct Ahead {
    nfs: Vec<Foreseen>,
    bypasses: bool,
    fate: Fate,
}

impl Ahead {
    fn none(fate: Fate) -> Self {
        Self { nfs: Vec::new(), bypasses: false, fate }
    }
}

/// What becomes of a packet without a path.
fn fate_of(decision: Decision) -> Fate {
    match decision {
        Decision::Drop(why) => Fate::Refused(why),
        // Instances that a thread does not know count as none.
        Decision::Wait(WaitFor::Steering) => Fate::Refused(Refusal::NfDown),
        Decision::Wait(what) => Fate::Waits(what),
        // Its path has ended, and there is no other.
        Decision::Path(_) => Fate::Refused(Refusal::NoPath),
    }
}

impl Rx {
    /// What a packet of `len` bytes would meet that comes in at a port and begins with `bytes`.
    #[cold]
    pub fn outlook(&self, plane: &mut Plane, bytes: &[u8], len: u16, ingress: u16) -> Outlook {
        let key = FlowKey::parse(&bytes[..bytes.len().min(LONG)], len, ingress);
        let flow = self.known_flow(plane, &key);
        let named = self.choice_now(plane, &key, bytes).chain(&plane.tables, &key);
        let (chain, rule) = named.map_or((None, None), |(chain, rule)| (Some(chain), rule));
        let decided = flow.as_ref().filter(|flow| flow.stands).map(|flow| flow.decision);
        let ahead = match (decided, named) {
            (Some(Decision::Path(number)), _) => self.registry.get(number).map(|path| ahead(plane, path)),
            // A service may have an instance again, a path be free, steering know the chain.
            (Some(Decision::Drop(Refusal::NfDown | Refusal::NoPath) | Decision::Wait(WaitFor::Steering)), _) => None,
            (Some(instead), _) | (None, Err(instead)) => Some(Ahead::none(fate_of(instead))),
            (None, Ok(_)) => None,
        };
        let old = flow.as_ref().and_then(|flow| if let Decision::Path(number) = flow.decision { Some(number) } else { None });
        let ahead = ahead.unwrap_or_else(|| match named {
            Ok((number, rule)) => self.foresee(plane, &key, number, rule, old),
            Err(instead) => Ahead::none(fate_of(instead)),
        });
        let Ahead { nfs, bypasses, fate } = ahead;
        Outlook { key, flow, chain, rule, nfs, bypasses, fate }
    }

    fn known_flow(&self, plane: &Plane, key: &FlowKey) -> Option<KnownFlow> {
        let flows = self.classifier.flows();
        let hash = flows.hash_of(key);
        let known = flows.peek(key, hash)?;
        let (idle_ms, _) = flows.idle_ms(key, hash, plane.now_ns / 1_000_000)?;
        let path = self.registry.of(known.decision);
        let nfs = path.map_or_else(Vec::new, |path| path.hops.iter().map(|hop| hop.nf).collect());
        Some(KnownFlow { decision: known.decision.unpack(), nfs, stands: self.stands(&known, plane.generation), idle_ms })
    }

    /// What chooses the chain of a packet now. A feature that does may look at its bytes: it gets
    /// them in a frame.
    fn choice_now(&self, plane: &mut Plane, key: &FlowKey, bytes: &[u8]) -> Choice {
        let Some(chains) = &self.chains else { return Chosen::RULES.choice };
        let mut frame = [0];
        if plane.frames.alloc(&mut frame) == 0 {
            // Nothing is received either.
            return Choice::Wait;
        }
        let packet = Packet::fresh(frame[0], bytes.len().min(LONG) as u16);
        plane.frames.arena().write(packet.frame, packet.offset, &bytes[..usize::from(packet.len)]);
        let choice = chains.now(plane, key, packet);
        plane.frames.free(packet.frame);
        choice
    }

    /// The path of a flow on a chain that would be decided about now.
    fn foresee(&self, plane: &mut Plane, key: &FlowKey, number: u16, rule: Option<usize>, old: Option<u32>) -> Ahead {
        let tables = plane.tables.clone();
        if let Some(chain) = self.steered(&tables, number) {
            let (flags, has_waited, settles, note) = (0, false, false, 0);
            let (hash, terms) = (self.classifier.flows().hash_of(key), terms_of(&tables, key, number, rule));
            let asked = SteerRequest { key, hash, chain, flags, old, has_waited, settles, note, terms, since_ns: plane.now_ns };
            let Some(instances) = &self.instances else { return Ahead::none(Fate::Refused(Refusal::NfDown)) };
            return match instances.foresee_path(&asked, &tables) {
                Ok(nfs) => through(plane, key.ingress(), chain, nfs),
                Err(instead) => Ahead::none(fate_of(instead)),
            };
        }
        let named = tables.chains.get(usize::from(number)).and_then(Option::as_ref);
        if named.is_some_and(|chain| chain.services.iter().any(|service| tables.is_steered(*service))) {
            return Ahead::none(fate_of(Decision::Wait(WaitFor::Steering)));
        }
        let kept = old.filter(|path| self.registry.still_valid(&tables, *path, number));
        let foreseen = match kept {
            Some(path) => Ok(PathAhead::Known(path)),
            None => self.registry.foresee(&tables, plane.index, key.ingress(), number, key.symmetric_hash(), old),
        };
        match foreseen {
            Ok(PathAhead::New(path)) => ahead(plane, &path),
            Ok(PathAhead::Known(number)) => match self.registry.get(number) {
                Some(path) => ahead(plane, path),
                None => Ahead::none(Fate::Refused(Refusal::NoPath)),
            },
            Err(why) => Ahead::none(Fate::Refused(why)),
        }
    }
}

/// What a packet meets that takes a path.
fn ahead(plane: &mut Plane, path: &Path) -> Ahead {
    let fate = match path.refuses() {
        true => Fate::Refused(Refusal::NfDown),
        false => plane.obstacle(path).map_or(Fate::Enters, Fate::KeptOut),
    };
    Ahead { nfs: path.hops.iter().map(|hop| Foreseen::Nf(hop.nf)).collect(), bypasses: path.goes_without(), fate }
}

/// What a packet meets on its way through instances, as far as these are chosen already.
fn through(plane: &mut Plane, ingress: u16, chain: &Arc<Chain>, nfs: Vec<Foreseen>) -> Ahead {
    let chosen = nfs.iter().filter_map(|instance| if let Foreseen::Nf(nf) = instance { Some(*nf) } else { None });
    let chosen: Vec<u16> = chosen.collect();
    let (kind, under) = (PathKind::Whole, plane.tables.generation);
    let path = Course { ingress, chain, nfs: &chosen, reversed: &[], kind, under }.path();
    let fate = plane.obstacle(&path).map_or(Fate::Enters, Fate::KeptOut);
    Ahead { bypasses: nfs.len() < chain.services.len(), nfs, fate }
}
