//! Packet memory by tenant: an arena for each, and one that no NF maps.
//!
//! **Problem.** An NF may write at any time to all that it has mapped: to packets that another NF
//! has, that wait for a port, or that a device has just put there. Among NFs of one tenant that is
//! the tenant's own affair. Packets of another tenant must be out of reach.
//!
//! **Approach.** Each tenant that has NFs has its own arena: a file whose descriptor is passed to
//! its NFs only. Services without `tenant` form a tenant without a name. A port receives into the
//! arena of the one tenant that its packets can be for ([`owner_of`]). Where that may be several,
//! or is not known, it receives into the *ingress* arena, which is passed to no NF; a packet is
//! copied into the tenant's arena on admission, when classification has its header in the cache
//! anyway. A packet is also copied where a chain crosses tenants. A port only reads what it sends,
//! so nothing is copied at the exit, nor for a chain without NFs. With one tenant there is one
//! arena and no copy.
//!
//! A port without an arena that it may receive into receives nothing ([`Memories::for_port`]):
//! between two steps of a change after which all of its packets are another tenant's.
//!
//! All arenas lie in one range of addresses and share the numbering of frames
//! ([`sluice_shm::arena`]), so tables by frame and code that reads and writes frames are
//! unaffected.
//!
//! Arenas are made when needed. A tenant keeps its arena while the configuration names it, also
//! without NFs. Then the arena rests, in case the tenant comes again, unless arenas are short
//! ([`Memories::are_short`]). Then it is given up ([`Memories::give_up`]), and removed with its
//! last packet.
//!
//! **Limits.** There is a slot for each tenant in the configuration, and a few for tenants that
//! come later or arenas that are made anew ([`Memories::renew`]). The ingress arena stays, the last
//! arena does, and all do where devices keep their frames.

use std::sync::Arc;

use sluice_shm::arena::{Arena, Geometry, Range, SLOT};
use sluice_shm::memory::{MemoryError, MemoryFile};

use sluice_api::config::{self as model, Config, Hugepages};
use sluice_config::tenancy::{Holder, Owner, frames_of, holders, owner_of, tenants};
use sluice_dataplane::frame::{FramePool, NO_ARENA};
use sluice_dataplane::port::{Devices, Fault, Kinds};

/// Most slots beyond those that the configuration needs, if [`SPARE_FRAMES`] allows.
const SPARE_SLOTS: u32 = 8;
/// Most frames of these slots. An unused slot costs 16 bytes of tables per frame.
const SPARE_FRAMES: u32 = SLOT * 8;
/// With fewer free slots, arenas are short.
const FREE_SLOTS: usize = 2;
/// Most arenas: their numbers are a byte, and the last means none.
const MOST: u32 = 254;

#[derive(Debug)]
pub struct TenantMemory {
    /// Its number, which is part of the number of each of its frames.
    pub number: u8,
    pub holder: Holder,
    /// Its frames that no thread holds.
    pub pool: Arc<FramePool>,
    pub is_shared: bool,
    /// NFs placed with it: those with a mapping, and ended ones that are not removed yet.
    users: u32,
    file: MemoryFile,
    arena: Arena,
}

impl TenantMemory {
    /// The file, whose descriptor goes to the NFs of its tenant.
    pub fn file(&self) -> &MemoryFile {
        &self.file
    }

    pub fn geometry(&self) -> Geometry {
        self.arena.geometry()
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether it can be freed: no NF has it mapped, and all its frames are in its pool.
    pub fn is_left(&self) -> bool {
        self.users == 0 && self.pool.available() == self.geometry().frames as usize
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NoMemory {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Devices have none for it, or do not start.
    #[error(transparent)]
    Starting(Fault),
    /// Devices keep its frames for good.
    #[error("frames are DPDK's here, and devices keep those that they were given; restart sluiced to have fresh packet memory")]
    Devices,
    /// The tenant has none.
    #[error("there is no packet memory of tenant {0}; see `sluice tenant list`")]
    None(String),
    #[error(
        "there are {0} arenas of packet memory, and no place for another; restart sluiced with all tenants in its configuration"
    )]
    NoSlot(u32),
}

#[derive(Debug)]
pub struct Memories {
    range: Range,
    whole: Arena,
    settings: model::Memory,
    devices: Option<Arc<dyn Devices>>,
    memories: Vec<Option<TenantMemory>>,
    /// Whether there was no memory, or there were no hugepages, for the last arena.
    is_short: bool,
}

impl Memories {
    /// Reserves addresses for the arenas of a configuration and a few more, and makes those arenas.
    ///
    /// # Errors
    /// [`NoMemory::Memory`]; [`NoMemory::Starting`] if devices are wanted and do not start.
    pub fn new(config: &Config, kinds: &dyn Kinds) -> Result<Self, NoMemory> {
        let holders = holders(config);
        let settings = config.memory.clone();
        let stride = Geometry::stride_for(settings.packet_bytes as usize) as u32;
        let most = settings.tenants.values().copied().fold(settings.frames, u32::max);
        let spare = (SPARE_FRAMES / most.max(SLOT).next_power_of_two()).clamp(1, SPARE_SLOTS);
        let wanted = holders.len() as u32;
        let reserve = |slots: u32| Range::reserve(slots.min(MOST), most, stride);
        // A process with limited address space gets only the slots that it needs.
        let range = reserve(wanted + spare).or_else(|_| reserve(wanted))?;
        let whole = range.whole();
        let memories = (0..range.slots()).map(|_| None).collect();
        let mut this = Self { range, whole, settings, devices: None, memories, is_short: false };
        // DPDK takes hugepages for itself if the arenas have left some.
        let frames: u32 = holders.iter().map(|holder| frames_of(&this.settings, holder)).sum();
        let files = holders.into_iter().zip(0..).map(|(holder, slot)| Ok((this.file_for(&holder, slot)?, holder)));
        let files = files.collect::<Result<Vec<_>, NoMemory>>()?;
        let huge = files.iter().all(|((file, _), _)| file.is_huge());
        this.devices = kinds.devices(config, frames, huge).map_err(NoMemory::Starting)?;
        for (slot, ((file, arena), holder)) in files.into_iter().enumerate() {
            this.put(slot, holder, file, arena)?;
        }
        Ok(this)
    }

    fn file_for(&self, holder: &Holder, slot: u32) -> Result<(MemoryFile, Arena), MemoryError> {
        let make = |hugepages| self.range.make(slot, frames_of(&self.settings, holder), hugepages);
        match self.settings.hugepages {
            Hugepages::Never => make(false),
            Hugepages::Always => make(true),
            Hugepages::Auto => make(true).or_else(|_| make(false)),
        }
    }

    /// Puts an arena in its slot, with all of its frames free.
    fn put(&mut self, slot: usize, holder: Holder, file: MemoryFile, arena: Arena) -> Result<(), NoMemory> {
        let Geometry { first, frames, .. } = arena.geometry();
        let pool = match &self.devices {
            Some(devices) => devices.pool(&arena, self.range.shift()).map_err(NoMemory::Starting)?,
            None => FramePool::from(first, frames),
        };
        self.memories[slot] = Some(TenantMemory { number: slot as u8, holder, pool, is_shared: false, users: 0, file, arena });
        Ok(())
    }

    fn make(&mut self, holder: Holder) -> Result<u8, NoMemory> {
        let slot = self.memories.iter().position(Option::is_none).ok_or(NoMemory::NoSlot(self.memories.len() as u32))?;
        let made = self.file_for(&holder, slot as u32);
        let is_as_wanted = |file: &MemoryFile| file.is_huge() || matches!(self.settings.hugepages, Hugepages::Never);
        self.is_short = !made.as_ref().is_ok_and(|(file, _)| is_as_wanted(file));
        let (file, arena) = made?;
        self.put(slot, holder, file, arena)?;
        Ok(slot as u8)
    }

    /// The arena of a holder, made if there is none; and whether it is new.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn of(&mut self, holder: &Holder) -> Result<(u8, bool), NoMemory> {
        if let Some(known) = self.find(holder) {
            return Ok((known.number, false));
        }
        // An unused arena that was made before there was any tenant goes to the first one.
        let nobodys = Holder::Tenant(None);
        let is_nobodys = |memory: &&mut TenantMemory| memory.holder == nobodys && !memory.is_shared;
        if matches!(holder, Holder::Tenant(_))
            && self.iter().count() == 1
            && let Some(memory) = self.memories.iter_mut().flatten().find(is_nobodys)
            && memory.geometry().frames == frames_of(&self.settings, holder)
        {
            memory.holder = holder.clone();
            return Ok((memory.number, false));
        }
        Ok((self.make(holder.clone())?, true))
    }

    pub fn find(&self, holder: &Holder) -> Option<&TenantMemory> {
        // After a renewal this is the new one: the old one's holder is `Former`.
        self.iter().find(|memory| memory.holder == *holder)
    }

    pub fn get(&self, number: u8) -> Option<&TenantMemory> {
        self.memories.get(usize::from(number))?.as_ref()
    }

    /// Makes a fresh arena for a tenant, which its NFs get from now on; returns its number. The old
    /// one's holder becomes `Former`: its frames come back as packets leave, and then it can be
    /// removed ([`Memories::remove`]).
    ///
    /// # Errors
    /// [`NoMemory`]; the tenant then keeps what it had.
    pub fn renew(&mut self, holder: &Holder) -> Result<u8, NoMemory> {
        let old = self.find(holder).ok_or_else(|| NoMemory::None(holder.to_string()))?.number;
        if self.devices.is_some() {
            return Err(NoMemory::Devices);
        }
        let fresh = self.make(holder.clone())?;
        self.memories[usize::from(old)].iter_mut().for_each(|memory| memory.holder = Holder::Former);
        Ok(fresh)
    }

    /// The arenas of tenants that `wanted` lacks, that no NF has mapped, and that nothing else
    /// keeps. Devices keep all; and one arena stays.
    pub fn unwanted(&self, wanted: &[Holder], kept: &[u8]) -> Vec<u8> {
        if self.devices.is_some() {
            return Vec::new();
        }
        let is_unwanted = |memory: &&TenantMemory| {
            let is_theirs = matches!(memory.holder, Holder::Tenant(_)) && !wanted.contains(&memory.holder);
            is_theirs && memory.users == 0 && !kept.contains(&memory.number)
        };
        let mut unwanted: Vec<u8> = self.iter().filter(is_unwanted).map(|memory| memory.number).collect();
        let in_use = self.iter().filter(|memory| memory.holder != Holder::Former).count();
        unwanted.truncate(in_use.saturating_sub(1));
        unwanted
    }

    /// Whether slots, memory or hugepages for more arenas are short.
    pub fn are_short(&self) -> bool {
        self.is_short || self.memories.iter().filter(|memory| memory.is_none()).count() < FREE_SLOTS
    }

    /// Gives up an [unwanted](Memories::unwanted) arena: nothing is received into it with the next
    /// tables, its frames come back as packets leave, and then it can be removed. Returns whose it
    /// was.
    pub fn give_up(&mut self, number: u8) -> Option<Holder> {
        let memory = self.memories.get_mut(usize::from(number))?.as_mut()?;
        Some(std::mem::replace(&mut memory.holder, Holder::Former))
    }

    pub fn former(&self) -> Vec<u8> {
        self.iter().filter(|memory| memory.holder == Holder::Former).map(|memory| memory.number).collect()
    }

    /// Removes an arena whose frames are all free. Returns false if it cannot: a thread holds some
    /// of them, or an NF has it mapped, whose packets would go to the next arena of that number.
    pub fn remove(&mut self, number: u8) -> bool {
        if !self.get(number).is_some_and(TenantMemory::is_left) {
            return false;
        }
        self.memories[usize::from(number)] = None;
        self.range.clear(number.into());
        true
    }

    /// Notes that an arena's descriptor is passed to an NF.
    pub fn share(&mut self, number: u8) {
        for memory in self.memories.get_mut(usize::from(number)).into_iter().flatten() {
            memory.is_shared = true;
            memory.users += 1;
        }
    }

    /// Notes that such an NF is gone: its process has ended, and no packet thread has it.
    pub fn leave(&mut self, number: u8) {
        let memory = self.memories.get_mut(usize::from(number)).into_iter().flatten();
        memory.for_each(|memory| memory.users = memory.users.saturating_sub(1));
    }

    pub fn iter(&self) -> impl Iterator<Item = &TenantMemory> {
        self.memories.iter().flatten()
    }

    /// The arena that a port receives into. [`NO_ARENA`] if there is none that no other tenant's
    /// NFs have mapped: the port then receives nothing.
    pub fn for_port(&self, config: &Config, port: &model::Port) -> u8 {
        let tenants = tenants(config);
        let holder = match owner_of(config, port) {
            // There is no other tenant.
            _ if tenants.len() <= 1 => Holder::Tenant(tenants.first().copied().flatten().map(str::to_owned)),
            Owner::Tenant(tenant) => Holder::Tenant(tenant),
            Owner::Several | Owner::Nobody => Holder::Ingress,
        };
        self.find(&holder).or_else(|| self.find(&Holder::Ingress)).map_or(NO_ARENA, |memory| memory.number)
    }

    /// The arena for frames of unknown owner: the ingress arena, or the only one.
    pub fn usual(&self) -> u8 {
        // A replaced arena is about to be removed.
        let first = || self.iter().find(|memory| memory.holder != Holder::Former).map_or(0, |memory| memory.number);
        self.find(&Holder::Ingress).map_or_else(first, |memory| memory.number)
    }

    /// The free frames of [`Memories::usual`].
    pub fn usual_pool(&self) -> Arc<FramePool> {
        self.get(self.usual()).map(|memory| memory.pool.clone()).expect("there is an arena at all times")
    }

    /// The range that the frames of all arenas lie in.
    pub fn whole(&self) -> &Arena {
        &self.whole
    }

    /// The shift from a frame's number to that of its arena.
    pub fn shift(&self) -> u32 {
        self.range.shift()
    }

    pub fn slots(&self) -> u32 {
        self.range.slots()
    }

    pub fn are_huge(&self) -> bool {
        self.iter().all(|memory| memory.file.is_huge())
    }

    pub fn devices(&self) -> Option<&Arc<dyn Devices>> {
        self.devices.as_ref()
    }
}

#[cfg(test)]
#[path = "../../config/src/tenancy_config.rs"]
mod tenancy_config;

#[cfg(test)]
mod tests {
    use super::tenancy_config::config;
    use super::*;

    fn memories(config: &Config) -> Memories {
        let mut config = config.clone();
        config.memory.frames = 512;
        config.memory.hugepages = Hugepages::Never;
        config.memory.tenants = [("red".to_string(), 1024)].into();
        Memories::new(&config, &sluice_ports::All::default()).unwrap()
    }

    #[test]
    fn ports_receive_into_the_arena_of_their_tenant() {
        let chains: &[(&str, &[&str])] = &[("r", &["red"]), ("b", &["blue"])];
        let config = config(&["a", "b", "c"], chains, &["a r", "b b", "c r", "c b"]);
        let memories = memories(&config);
        let of = |port: &str| {
            let port = config.ports.iter().find(|known| known.name == port).unwrap();
            memories.get(memories.for_port(&config, port)).unwrap().holder.to_string()
        };
        assert_eq!([of("a"), of("b"), of("c"), of("out")], ["red", "blue", "ingress", "ingress"]);
        let frames = |name: &str| {
            let memory = memories.iter().find(|memory| memory.holder.to_string() == name).unwrap();
            (memory.geometry().frames, memory.pool.available())
        };
        assert_eq!([frames("red"), frames("blue"), frames("ingress")], [(1024, 1024), (512, 512), (512, 512)]);
    }

    #[test]
    fn what_nobody_says_whose_it_is_is_received_where_no_nf_reads_it() {
        let chains: &[(&str, &[&str])] = &[("r", &["red"]), ("b", &["blue"])];
        let name = |memories: &Memories, config: &Config, port: &str| {
            let port = config.ports.iter().find(|known| known.name == port).unwrap();
            let number = memories.for_port(config, port);
            memories.get(number).map_or("none".to_string(), |memory| memory.holder.to_string())
        };
        // Arenas made at the start, and when the second tenant comes.
        let two = config(&["a", "b", "c"], chains, &["a r", "b b"]);
        let mut memories_of_two = memories(&two);
        assert_eq!(["a", "b", "c"].map(|port| name(&memories_of_two, &two, port)), ["red", "blue", "ingress"]);
        let one = config(&["a", "c"], &chains[..1], &["a r"]);
        let mut all = memories(&one);
        assert_eq!(["a", "c"].map(|port| name(&all, &one, port)), ["red", "red"], "nobody else could have it");
        holders(&two).iter().for_each(|holder| assert!(all.of(holder).is_ok()));
        assert_eq!(["a", "b", "c"].map(|port| name(&all, &two, port)), ["red", "blue", "ingress"]);
        // Between two steps of a change of a port's tenant, the port receives nothing.
        let [before, after] = ["r", "b"].map(|chain| config(&["a"], chains, &[&format!("a {chain}")]));
        let between = config(&["a"], chains, &["a r", "a b"]);
        let mut steps = memories(&before);
        assert_eq!(holders(&before), holders(&after));
        steps.share(0);
        steps.share(1);
        assert_eq!([&before, &between, &after].map(|config| name(&steps, config, "a")), ["red", "none", "blue"]);
        // A port never receives into what an NF of another tenant has mapped.
        memories_of_two.iter().map(|memory| memory.number).collect::<Vec<_>>().into_iter().for_each(|n| memories_of_two.share(n));
        let number = memories_of_two.for_port(&two, &two.ports[2]);
        assert_eq!(memories_of_two.get(number).unwrap().holder, Holder::Ingress);
    }

    #[test]
    fn frames_are_taken_from_no_arena_that_goes() {
        let mut memories = memories(&config(&["a"], &[("r", &["red"])], &["a r"]));
        let fresh = memories.renew(&Holder::Tenant(Some("red".into()))).unwrap();
        assert_eq!((memories.former(), memories.usual()), (vec![0], fresh));
    }

    #[test]
    fn what_a_tenant_that_is_gone_had_is_free_for_others() {
        let red = config(&["a"], &[("r", &["red"])], &["a r"]);
        let (wanted, mut memories) = (holders(&red), memories(&red));
        let tenant = |n: u32| Holder::Tenant(Some(format!("t{n}")));
        // Far more tenants, one after another, than there are slots.
        for n in 0..3 * memories.slots() {
            let (number, is_new) = memories.of(&tenant(n)).unwrap();
            memories.share(number);
            assert!(is_new && memories.unwanted(&wanted, &[]).is_empty(), "an NF has it mapped");
            memories.leave(number);
            assert!(memories.unwanted(&[tenant(n)], &[0]).is_empty(), "it is in the configuration");
            assert_eq!((memories.unwanted(&wanted, &[number]), memories.unwanted(&wanted, &[])), (vec![], vec![number]));
            assert_eq!((memories.give_up(number), memories.former()), (Some(tenant(n)), vec![number]));
            assert!(memories.unwanted(&wanted, &[]).is_empty() && memories.remove(number));
        }
        // Frames of an unknown tenant have an arena at all times.
        memories.of(&tenant(0)).unwrap();
        assert_eq!(memories.unwanted(&[Holder::Tenant(None)], &[]), vec![0]);
        memories.give_up(0);
        assert_eq!((memories.usual(), memories.unwanted(&[Holder::Tenant(None)], &[])), (1, vec![]));
    }

    #[test]
    fn what_nobody_has_seen_is_the_first_tenants() {
        let mut memories = memories(&config(&["a"], &[], &[]));
        let red = Holder::Tenant(Some("blue".into()));
        assert_eq!(memories.of(&red).unwrap(), (0, false));
        memories.share(0);
        assert_eq!(memories.of(&Holder::Tenant(None)).unwrap(), (1, true));
        assert_eq!(memories.of(&Holder::Ingress).unwrap(), (2, true));
        assert_eq!((memories.of(&red).unwrap(), memories.usual()), ((0, false), 2));
        let fresh = memories.renew(&red).unwrap();
        assert_eq!((fresh, memories.of(&red).unwrap(), memories.former()), (3, (3, false), vec![0]));
        assert!(!memories.remove(0), "an NF has it mapped");
        memories.leave(0);
        assert!(memories.remove(0) && memories.get(0).is_none() && memories.former().is_empty());
        assert!(matches!(memories.renew(&Holder::Tenant(Some("nobody".into()))), Err(NoMemory::None(_))));
        let mut n = 0;
        let error = loop {
            n += 1;
            assert_eq!(memories.are_short(), memories.slots() as usize - memories.iter().count() < FREE_SLOTS);
            match memories.of(&Holder::Tenant(Some(format!("t{n}")))) {
                Ok((_, made)) => assert!(made),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("restart"), "{error}");
    }
}
