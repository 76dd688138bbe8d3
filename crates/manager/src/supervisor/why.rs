//! `POST /v1/why`: what a header would meet, in names and words.
//!
//! The packet thread that would receive the packet says what it would do with it
//! ([`sluice_dataplane::outlook`]). What only the supervisor knows comes here: the state of ports,
//! the size of frames, and which service lacks an instance.

use std::sync::Arc;

use sluice_api::config::Overload;
use sluice_api::drops::{self, DropReason, PortDrop, Refusal};
use sluice_api::model::{self as api, PortState};
use sluice_config::tenancy::receives;
use sluice_dataplane::admit::Obstacle;
use sluice_dataplane::chain::Chain;
use sluice_dataplane::classify::key::{FlowKey, link};
use sluice_dataplane::classify::rss::queue_of;
use sluice_dataplane::decision::{Decision, WaitFor};
use sluice_dataplane::outlook::{Fate, KnownFlow, Outlook};
use sluice_dataplane::steer::Foreseen;
use sluice_shm::arena::HEADROOM;

use super::{Supervisor, SupervisorError, report};

/// Bytes of an Ethernet header, and of a VLAN tag.
const ETHERNET: usize = 14;
const TAG: usize = 4;

/// A packet that does not exist.
pub(super) struct Imagined {
    port: Option<String>,
    bytes: Vec<u8>,
    len: u16,
}

impl Imagined {
    /// The packet of a request.
    ///
    /// # Errors
    /// [`SupervisorError::Invalid`] if it is none.
    pub(super) fn of(request: &api::WhyRequest) -> Result<Self, SupervisorError> {
        let invalid = |what: String| Err(SupervisorError::Invalid(what));
        let digits = request.packet.as_bytes();
        if digits.is_empty() || digits.len() > api::MAX_DIGITS as usize {
            let what = format!(
                "a packet of {} digits; give its first bytes, from the Ethernet header on: two digits for each, {} at most",
                digits.len(),
                api::MAX_DIGITS
            );
            return invalid(what);
        }
        let digit = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
        let Some(bytes) = digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>() else {
            return invalid(
                "the packet is no hexadecimal number of whole bytes; write it like 0200000000010200000000020800…".into(),
            );
        };
        let len = request.bytes.unwrap_or(0).max(u16::try_from(bytes.len()).unwrap_or(u16::MAX));
        Ok(Self { port: request.port.clone(), bytes, len })
    }
}

/// An obstacle that drops are counted for, with what is done about it.
fn counted(reason: &str, what: impl Into<String>) -> api::WhyNot {
    let remedy = drops::find(reason).map_or_else(String::new, drops::ReasonText::advice);
    api::WhyNot { reason: Some(reason.into()), what: what.into(), remedy }
}

/// A key as rules see it, without its port's number.
fn headers(key: &FlowKey) -> String {
    let text = key.to_string();
    let rest = text.split_once(" vlan ").map_or(text.as_str(), |(_, rest)| rest);
    match rest.split_once(' ') {
        Some(("0", untagged)) => untagged.into(),
        _ => format!("vlan {rest}"),
    }
}

impl Supervisor {
    /// What a packet would meet.
    pub(super) fn why(&self, packet: &Imagined) -> Result<api::WhyReply, SupervisorError> {
        let ingress = self.ingress_of(packet)?;
        let (core, outlook) = self.outlook(packet, ingress)?;
        let port_name = |number: u16| Some(self.ports.get(usize::from(number))?.as_ref()?.config.name.clone());
        let chain = outlook.chain.and_then(|number| self.chains.get(usize::from(number))?.as_ref());
        let mut why = api::WhyReply {
            port: port_name(ingress).unwrap_or_default(),
            packet: headers(&outlook.key),
            bytes: packet.len.into(),
            outcome: api::Fate::Enters,
            rule: outlook.rule.and_then(|at| self.config.rules.get(at).map(|rule| report::series_of(rule, at))),
            chain: chain.map(|chain| chain.name.clone()),
            path: outlook.nfs.iter().map(|instance| self.name_of_instance(*instance)).collect(),
            egress: chain.and_then(|chain| port_name(chain.egress)),
            tenants: chain.map_or_else(Vec::new, |chain| self.tenants_of(chain)),
            entry: outlook.flow.as_ref().map(|flow| self.entry_of(flow, core)),
            ..api::WhyReply::default()
        };
        self.look_at_ingress(ingress, packet.len, &mut why);
        self.look_at_fate(&outlook, ingress, chain, &mut why);
        if let Some(chain) = chain {
            self.look_at_egress(chain, packet, &mut why);
        }
        if outlook.bypasses {
            why.notes.push("a service of its chain has no instance and is left out".into());
        }
        if outlook.chain.is_some() && outlook.rule.is_none() {
            why.notes.push("the SDN controller has chosen its chain, not a rule".into());
        }
        Ok(why)
    }

    /// The number of the port where a packet comes in.
    fn ingress_of(&self, packet: &Imagined) -> Result<u16, SupervisorError> {
        if let Some(name) = &packet.port {
            return self.port_number(name).ok_or_else(|| self.no_such("port", name));
        }
        let all = self.ports.iter().enumerate().filter_map(|(number, port)| Some((number as u16, port.as_ref()?)));
        let all: Vec<(u16, &str)> =
            all.filter(|(_, port)| receives(&port.config)).map(|(number, port)| (number, port.config.name.as_str())).collect();
        match all[..] {
            [(only, _)] => Ok(only),
            [] => Err(SupervisorError::Invalid("there is no port where a packet could come in".into())),
            _ => {
                let names: Vec<&str> = all.iter().map(|(_, name)| *name).collect();
                Err(SupervisorError::Invalid(format!("say at which port it comes in: {}", names.join(", "))))
            }
        }
    }

    /// What the packet thread says that would receive the packet, and its core. Of several, the one
    /// that knows its flow.
    fn outlook(&self, packet: &Imagined, ingress: u16) -> Result<(u32, Outlook), SupervisorError> {
        let info = self.published.tables.ports.get(usize::from(ingress)).and_then(Option::as_ref);
        let mut threads = info.map_or_else(Vec::new, |info| info.owners.clone());
        let key = FlowKey::parse(&packet.bytes, packet.len, ingress);
        let queue = queue_of(key.symmetric_hash(), u16::try_from(threads.len()).unwrap_or(u16::MAX));
        let usual = threads.get(usize::from(queue)).copied();
        threads.sort_unstable();
        threads.dedup();
        // A port without queues receives nothing; its packets would meet what is there.
        let usual = usual.unwrap_or_else(|| usize::from(self.plane.receiver(usize::MAX)));
        let core = |thread: usize| self.plane.thread_infos().get(thread).map_or(0, |info| info.core as u32);
        threads.retain(|thread| *thread != usual);
        threads.push(usual);
        let outlooks = self.plane.outlooks(&threads, &packet.bytes, packet.len, ingress)?;
        let mut all: Vec<(usize, Outlook)> = threads.into_iter().zip(outlooks).collect();
        let at = all.iter().position(|(_, outlook)| outlook.flow.is_some()).unwrap_or(all.len() - 1);
        let (thread, outlook) = all.swap_remove(at);
        Ok((core(thread), outlook))
    }

    fn name_of_nf(&self, number: u16) -> String {
        self.nfs.get(&number).map_or_else(|| format!("number {number}"), |nf| nf.name.clone())
    }

    fn name_of_instance(&self, instance: Foreseen) -> String {
        match instance {
            Foreseen::Nf(number) => self.name_of_nf(number),
            Foreseen::OneOf(service) => format!("{}.*", self.name_of_service(service)),
        }
    }

    fn name_of_service(&self, number: u16) -> String {
        let service = self.services.get(usize::from(number)).and_then(Option::as_ref);
        service.map_or_else(|| format!("number {number}"), |service| service.config.name.clone())
    }

    fn tenants_of(&self, chain: &Chain) -> Vec<String> {
        let tenant = |service: &u16| self.services.get(usize::from(*service))?.as_ref()?.config.tenant.clone();
        let mut tenants: Vec<String> = chain.services.iter().filter_map(tenant).collect();
        tenants.sort_unstable();
        tenants.dedup();
        tenants
    }

    fn entry_of(&self, flow: &KnownFlow, core: u32) -> api::FlowEntry {
        let KnownFlow { decision, nfs, stands, idle_ms } = flow;
        let instead = match decision {
            Decision::Path(_) => None,
            Decision::Drop(why) => Some(why.name().into()),
            Decision::Wait(_) => Some("waits".into()),
        };
        let path = nfs.iter().map(|nf| self.name_of_nf(*nf)).collect();
        api::FlowEntry { core, path, instead, holds: *stands, idle_ms: *idle_ms }
    }

    fn look_at_ingress(&self, ingress: u16, len: u16, why: &mut api::WhyReply) {
        let Some(Some(port)) = self.ports.get(usize::from(ingress)) else { return };
        match port.link.state() {
            PortState::Up | PortState::Blocked => {}
            state => {
                let what = format!("port {} receives nothing now: {}", port.config.name, state.words());
                why.obstacles.push(api::WhyNot { reason: None, ..counted(PortDrop::NoLink.name(), what) });
                why.outcome = api::Fate::Dropped;
            }
        }
        let room = (self.plane.arena().geometry().stride as usize).saturating_sub(HEADROOM);
        if usize::from(len) > room {
            let what = format!("it has {len} bytes, and a frame of packet memory holds {room}");
            why.obstacles.push(counted(PortDrop::Oversize.name(), what));
            why.outcome = api::Fate::Dropped;
        }
    }

    /// What keeps the packet out, or holds it, at the entry.
    fn look_at_fate(&self, outlook: &Outlook, ingress: u16, chain: Option<&Arc<Chain>>, why: &mut api::WhyReply) {
        let name = chain.map_or("its chain", |chain| chain.name.as_str());
        let port = self.ports.get(usize::from(ingress)).and_then(Option::as_ref);
        let waits = port.is_some_and(|port| port.config.overload == Overload::Wait);
        let (obstacle, fate) = match outlook.fate {
            Fate::Enters => return,
            Fate::KeptOut(obstacle) => {
                let what = self.obstacle_in_words(obstacle, name);
                match obstacle.reason() {
                    Some(reason) if waits => (counted(reason.name(), what), api::Fate::Waits),
                    Some(reason) => (counted(reason.name(), what), api::Fate::Dropped),
                    None => (api::WhyNot { what, ..api::WhyNot::default() }, api::Fate::Waits),
                }
            }
            Fate::Refused(refusal) => {
                // Where the port waits, so does what may have a path again.
                let may_wait = waits && matches!(refusal, Refusal::NfDown | Refusal::NoPath);
                let fate = if may_wait { api::Fate::Waits } else { api::Fate::Dropped };
                (counted(refusal.name(), self.refusal_in_words(refusal, chain)), fate)
            }
            Fate::Waits(what) => {
                let what = match what {
                    WaitFor::Answer => "it waits for an answer of the SDN controller".into(),
                    WaitFor::Instance | WaitFor::Steering => {
                        format!("no instance of a pool of chain {name} is idle: it waits for one")
                    }
                };
                (api::WhyNot { what, ..api::WhyNot::default() }, api::Fate::Waits)
            }
        };
        why.obstacles.push(obstacle);
        // What is dropped before is dropped for good.
        if why.outcome == api::Fate::Enters {
            why.outcome = fate;
        }
    }

    fn obstacle_in_words(&self, obstacle: Obstacle, chain: &str) -> String {
        match obstacle {
            Obstacle::Former => format!("chain {chain} has just changed: it waits until the packets inside have left"),
            Obstacle::Limit => format!("chain {chain} has its limit: its tenant sends more than its SLO promises"),
            Obstacle::Throttled(nf) => {
                format!("the gate of chain {chain} is closed: NF {} is throttled, its queue is long", self.name_of_nf(nf))
            }
            Obstacle::Full(nf) => format!("the gate of chain {chain} is closed: NF {} has no room", self.name_of_nf(nf)),
            Obstacle::Gone(nf) => format!("the gate of chain {chain} is closed: NF {} is gone", self.name_of_nf(nf)),
            Obstacle::Frames => {
                format!("the gate of chain {chain} is closed: its packets hold all frames that they may (`sluice tenant list`)")
            }
            Obstacle::Port => format!("the gate of chain {chain} is closed: the port where its packets leave takes no more"),
        }
    }

    fn refusal_in_words(&self, refusal: Refusal, chain: Option<&Arc<Chain>>) -> String {
        match (refusal, chain) {
            (Refusal::NfDown, Some(chain)) => {
                let runs = |number: &u16| self.nfs.get(number).is_some_and(|nf| nf.life().takes_packets());
                let lacks = |service: &&u16| match self.services.get(usize::from(**service)) {
                    Some(Some(service)) => !service.instances.iter().any(runs),
                    _ => true,
                };
                let names: Vec<String> = chain.services.iter().filter(lacks).map(|number| self.name_of_service(*number)).collect();
                match &names[..] {
                    [] => format!("a service of chain {} has no instance that takes packets of this packet thread", chain.name),
                    _ => {
                        format!("service {} of chain {} has no instance that runs (`sluice nf list`)", names.join(", "), chain.name)
                    }
                }
            }
            _ => drops::find(refusal.name()).map_or_else(String::new, |reason| reason.meaning.into()),
        }
    }

    /// What the port does with the packet where it would leave.
    fn look_at_egress(&self, chain: &Chain, packet: &Imagined, why: &mut api::WhyReply) {
        let Some(Some(port)) = self.ports.get(usize::from(chain.egress)) else {
            why.obstacles
                .push(counted(DropReason::NoSuchPort.name(), format!("chain {} leaves by a port that is gone", chain.name)));
            return;
        };
        let name = &port.config.name;
        match port.link.state() {
            PortState::Up => {}
            PortState::Blocked => {
                let what = format!("port {name} cannot write its file: when its buffers are full, the chain takes no packets");
                why.obstacles.push(api::WhyNot { what, ..api::WhyNot::default() });
            }
            state => {
                let what = format!("port {name} drops what should leave there: {}", state.words());
                why.obstacles.push(counted(PortDrop::NoLink.name(), what));
            }
        }
        // An MTU does not include the Ethernet header and a tag.
        let header = link(&packet.bytes).map_or(ETHERNET, |(_, _, end)| end.clamp(ETHERNET, ETHERNET + TAG));
        let behind = usize::from(packet.len).saturating_sub(header);
        if let Some(mtu) = self.host.opener.kinds.mtu(&port.config).filter(|mtu| behind > *mtu as usize) {
            let what = format!("it has {behind} bytes behind its Ethernet header, and the MTU of port {name} is {mtu}");
            why.obstacles.push(counted(PortDrop::Mtu.name(), what));
        }
    }
}
