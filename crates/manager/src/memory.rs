//! Packet memory by tenant: an arena for each tenant, and one that no NF maps.
//!
//! **Problem.** An NF may write to all that it has mapped, at any time: to packets that another NF has, that wait for a port, or that a
//! device has just put there. Among NFs of one tenant that is the tenant's own affair. Packets of another must be out of reach.
//!
//! **Approach.** Each tenant that has NFs has an arena of its own, a file of which its NFs are passed the descriptor and no others are.
//! Those of services without `tenant` are a tenant too, without a name. What comes in at a port is received into the arena of the tenant
//! that it can only be for ([`owner_of`]), or, where it may be for several or nothing says for
//! whom, into the *ingress* arena, which is passed to nobody, and is copied into the tenant's arena
//! when it is let in: after the classification has had its header in the cache anyway. A chain that
//! crosses tenants is copied at the crossing. A port only reads what it sends, so nothing is copied
//! at the exit, nor for a chain without NFs. With one tenant there is one arena and no copy.
//!
//! Where there is no arena that a port may receive into, it receives nothing
//! ([`Memories::for_port`]): for the moment between two steps of a change after which all of its
//! packets are another tenant's.
//!
//! All arenas lie in one range of addresses and share the numbers of frames ([`sluice_shm::arena`]), so that tables by frame and all who
//! read and write frames know nothing of this.
//!
//! **Limits.** Arenas are made when they are needed and stay: a tenant whose last NF has gone keeps its arena. There are as many slots as
//! the configuration names tenants, and a few for those that come later or are made anew ([`Memories::renew`]).

use std::sync::Arc;

use sluice_shm::arena::{Arena, Geometry, Range, SLOT};
use sluice_shm::memory::{MemoryError, MemoryFile};

use sluice_api::config::{self as model, Config, Hugepages};
use sluice_config::tenancy::{Holder, Owner, frames_of, holders, owner_of, tenants};
use sluice_dataplane::frame::{FramePool, NO_ARENA};
use sluice_ports as port;

/// Slots beyond those that the configuration needs: at most so many, while their frames are no more than [`SPARE_FRAMES`].
const SPARE_SLOTS: u32 = 8;
/// What a slot costs before it is used are 16 bytes of tables for each of its frames.
const SPARE_FRAMES: u32 = SLOT * 8;
/// Most arenas: their numbers are a byte, and the last stands for none.
const MOST: u32 = 254;

/// An arena with its free frames.
#[derive(Debug)]
pub struct Memory {
    /// Its number, which that of each of its frames says.
    pub number: u8,
    /// Whose packets it holds.
    pub holder: Holder,
    /// Its frames that no thread holds.
    pub pool: Arc<FramePool>,
    /// Whether an NF was ever passed its descriptor.
    pub is_shared: bool,
    /// NFs that have a place with it: those that have it mapped, and those whose processes have
    /// ended and are not taken out yet.
    users: u32,
    file: MemoryFile,
    arena: Arena,
}

impl Memory {
    /// The file, whose descriptor goes to the NFs of its tenant.
    pub fn file(&self) -> &MemoryFile {
        &self.file
    }

    /// How its frames lie.
    pub fn geometry(&self) -> Geometry {
        self.arena.geometry()
    }

    /// The arena.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether nothing is left in it: no NF has it mapped, and all of its frames are in its pool.
    pub fn is_left(&self) -> bool {
        self.users == 0 && self.pool.available() == self.geometry().frames as usize
    }
}

/// Why there is no memory for a tenant's packets.
#[derive(Debug, thiserror::Error)]
pub enum NoMemory {
    /// The host has none.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// DPDK has none for it, or does not start.
    #[error(transparent)]
    Dpdk(#[from] sluice_dpdk::DpdkError),
    /// Devices know its frames for good.
    #[error("frames are DPDK's here, and devices keep those that they were given; restart sluiced to have fresh packet memory")]
    Devices,
    /// Nobody has it.
    #[error("there is no packet memory of tenant {0}; see `sluice tenant list`")]
    None(String),
    /// There are as many arenas as there can be without a restart.
    #[error(
        "there are {0} arenas of packet memory, and no place for another; restart sluiced with all tenants in its configuration"
    )]
    NoSlot(u32),
}

/// All arenas.
#[derive(Debug)]
pub struct Memories {
    range: Range,
    whole: Arena,
    settings: model::Memory,
    devices: Option<port::dpdk::Devices>,
    memories: Vec<Option<Memory>>,
}

impl Memories {
    /// Reserves addresses for the arenas that a configuration needs and a few more, and makes those.
    ///
    /// # Errors
    /// [`NoMemory::Memory`]; [`NoMemory::Dpdk`] if DPDK is wanted and does not start.
    pub fn new(config: &Config) -> Result<Self, NoMemory> {
        let holders = holders(config);
        let settings = config.memory.clone();
        let stride = Geometry::stride_for(settings.packet_bytes as usize) as u32;
        let most = settings.tenants.values().copied().fold(settings.frames, u32::max);
        let spare = (SPARE_FRAMES / most.max(SLOT).next_power_of_two()).clamp(1, SPARE_SLOTS);
        let wanted = holders.len() as u32;
        let reserve = |slots: u32| Range::reserve(slots.min(MOST), most, stride);
        // Who runs with a limit of addresses has those that it needs.
        let range = reserve(wanted + spare).or_else(|_| reserve(wanted))?;
        let whole = range.whole();
        let memories = (0..range.slots()).map(|_| None).collect();
        let mut this = Self { range, whole, settings, devices: None, memories };
        // DPDK takes hugepages for itself if the arenas have left some.
        let frames: u32 = holders.iter().map(|holder| frames_of(&this.settings, holder)).sum();
        let files = holders.into_iter().zip(0..).map(|(holder, slot)| Ok((this.file_for(&holder, slot)?, holder)));
        let files = files.collect::<Result<Vec<_>, NoMemory>>()?;
        let huge = files.iter().all(|((file, _), _)| file.is_huge());
        this.devices = port::dpdk::devices(config, frames, huge)?;
        for (slot, ((file, arena), holder)) in files.into_iter().enumerate() {
            this.put(slot, holder, file, arena)?;
        }
        Ok(this)
    }

    /// Makes the file of an arena in a slot.
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
            Some(devices) => devices.pool(&arena, self.range.shift())?,
            None => FramePool::from(first, frames),
        };
        self.memories[slot] = Some(Memory { number: slot as u8, holder, pool, is_shared: false, users: 0, file, arena });
        Ok(())
    }

    /// Makes an arena in a slot of its own.
    fn make(&mut self, holder: Holder) -> Result<u8, NoMemory> {
        let slot = self.memories.iter().position(Option::is_none).ok_or(NoMemory::NoSlot(self.memories.len() as u32))?;
        let (file, arena) = self.file_for(&holder, slot as u32)?;
        self.put(slot, holder, file, arena)?;
        Ok(slot as u8)
    }

    /// The arena of a holder, made if there is none yet. Says whether it is new.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn of(&mut self, holder: &Holder) -> Result<(u8, bool), NoMemory> {
        if let Some(known) = self.find(holder) {
            return Ok((known.number, false));
        }
        // One that was made before anybody was known is the first's.
        let nobodys = Holder::Tenant(None);
        let is_nobodys = |memory: &&mut Memory| memory.holder == nobodys && !memory.is_shared;
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

    /// The arena of a holder, if there is one.
    pub fn find(&self, holder: &Holder) -> Option<&Memory> {
        // Of one that is made anew the new one: the old one has no holder any more.
        self.iter().find(|memory| memory.holder == *holder)
    }

    /// The arena with a number.
    pub fn get(&self, number: u8) -> Option<&Memory> {
        self.memories.get(usize::from(number))?.as_ref()
    }

    /// Makes a fresh arena for a tenant, whose NFs are given that one from now on. The one that it had is nobody's any more: its frames come back
    /// as packets leave, and it is taken away then ([`Memories::remove`]). Says the number of the fresh one.
    ///
    /// # Errors
    /// [`NoMemory`]; then the tenant has what it had.
    pub fn renew(&mut self, holder: &Holder) -> Result<u8, NoMemory> {
        let old = self.find(holder).ok_or_else(|| NoMemory::None(holder.to_string()))?.number;
        if self.devices.is_some() {
            return Err(NoMemory::Devices);
        }
        let fresh = self.make(holder.clone())?;
        self.memories[usize::from(old)].iter_mut().for_each(|memory| memory.holder = Holder::Former);
        Ok(fresh)
    }

    /// The arenas that are nobody's any more.
    pub fn former(&self) -> Vec<u8> {
        self.iter().filter(|memory| memory.holder == Holder::Former).map(|memory| memory.number).collect()
    }

    /// Takes an arena away of which all frames are free. False: they are not, a thread has some of
    /// them, or an NF has it mapped: packets for that one would be copied into whatever has the
    /// number next.
    pub fn remove(&mut self, number: u8) -> bool {
        if !self.get(number).is_some_and(Memory::is_left) {
            return false;
        }
        self.memories[usize::from(number)] = None;
        self.range.clear(number.into());
        true
    }

    /// Notes that an NF is passed an arena's descriptor.
    pub fn share(&mut self, number: u8) {
        for memory in self.memories.get_mut(usize::from(number)).into_iter().flatten() {
            memory.is_shared = true;
            memory.users += 1;
        }
    }

    /// Notes that an NF that was passed an arena's descriptor is gone: its process has ended, and
    /// no packet thread has it.
    pub fn leave(&mut self, number: u8) {
        let memory = self.memories.get_mut(usize::from(number)).into_iter().flatten();
        memory.for_each(|memory| memory.users = memory.users.saturating_sub(1));
    }

    /// All arenas.
    pub fn iter(&self) -> impl Iterator<Item = &Memory> {
        self.memories.iter().flatten()
    }

    /// The arena that what comes in at a port is received into. [`NO_ARENA`] if there is none that no
    /// other tenant's NFs have mapped: nothing is received then.
    pub fn for_port(&self, config: &Config, port: &model::Port) -> u8 {
        let tenants = tenants(config);
        let holder = match owner_of(config, port) {
            // Nobody else could have it.
            _ if tenants.len() <= 1 => Holder::Tenant(tenants.first().copied().flatten().map(str::to_owned)),
            Owner::Tenant(tenant) => Holder::Tenant(tenant),
            Owner::Several | Owner::Nobody => Holder::Ingress,
        };
        self.find(&holder).or_else(|| self.find(&Holder::Ingress)).map_or(NO_ARENA, |memory| memory.number)
    }

    /// The arena that frames are taken from where it is not known for whom: the ingress arena, or the only one.
    pub fn usual(&self) -> u8 {
        // One that is nobody's any more is taken away.
        let first = || self.iter().find(|memory| memory.holder != Holder::Former).map_or(0, |memory| memory.number);
        self.find(&Holder::Ingress).map_or_else(first, |memory| memory.number)
    }

    /// Its free frames.
    pub fn usual_pool(&self) -> Arc<FramePool> {
        self.get(self.usual()).map(|memory| memory.pool.clone()).expect("there is an arena at all times")
    }

    /// The frames of all arenas.
    pub fn whole(&self) -> &Arena {
        &self.whole
    }

    /// From a frame's number to that of its arena.
    pub fn shift(&self) -> u32 {
        self.range.shift()
    }

    /// How many arenas there can be.
    pub fn slots(&self) -> u32 {
        self.range.slots()
    }

    /// Whether all arenas stand on hugepages.
    pub fn are_huge(&self) -> bool {
        self.iter().all(|memory| memory.file.is_huge())
    }

    /// DPDK, if it was started.
    pub fn devices(&self) -> Option<&port::dpdk::Devices> {
        self.devices.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Ports in and out, chains of services named by tenant (`-` is none, `!` a foreign program's), and rules `PORT CHAIN`.
    fn config(ports: &[&str], chains: &[(&str, &[&str])], rules: &[&str]) -> Config {
        let mut text = String::new();
        let mut services = BTreeSet::new();
        for port in ports {
            let (name, tenant) = port.split_once(' ').map_or((*port, String::new()), |(n, t)| (n, format!("tenant = \"{t}\"\n")));
            text += &format!("[[port]]\nname = \"{name}\"\nkind = \"gen\"\n{tenant}");
        }
        for (name, hops) in chains {
            services.extend(hops.iter().copied());
            let named =
                hops.iter().map(|hop| format!("\"of{}\"", hop.replace('-', "none").replace('!', "prog"))).collect::<Vec<_>>();
            text += &format!("[[chain]]\nname = \"{name}\"\negress = \"out\"\nservices = [{}]\n", named.join(", "));
        }
        for service in services {
            text += &match service {
                "-" => "[[service]]\nname = \"ofnone\"\nattach = true\n".to_string(),
                "!" => "[[service]]\nname = \"ofprog\"\nkind = \"foreign\"\nexec = \"true\"\n".to_string(),
                tenant => format!("[[service]]\nname = \"of{tenant}\"\nattach = true\ntenant = \"{tenant}\"\n"),
            };
        }
        for rule in rules {
            let (port, chain) = rule.split_once(' ').unwrap();
            let port = if port == "*" { String::new() } else { format!("port = \"{port}\"\n") };
            text += &format!("[[rule]]\n{port}chain = \"{chain}\"\n");
        }
        toml::from_str(&format!("{text}[[port]]\nname = \"out\"\nkind = \"sink\"\n")).unwrap()
    }

    fn memories(config: &Config) -> Memories {
        let mut config = config.clone();
        config.memory.frames = 512;
        config.memory.hugepages = Hugepages::Never;
        config.memory.tenants = [("red".to_string(), 1024)].into();
        Memories::new(&config).unwrap()
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
        // There from the start, and when the second tenant comes.
        let two = config(&["a", "b", "c"], chains, &["a r", "b b"]);
        let mut memories_of_two = memories(&two);
        assert_eq!(["a", "b", "c"].map(|port| name(&memories_of_two, &two, port)), ["red", "blue", "ingress"]);
        let one = config(&["a", "c"], &chains[..1], &["a r"]);
        let mut all = memories(&one);
        assert_eq!(["a", "c"].map(|port| name(&all, &one, port)), ["red", "red"], "nobody else could have it");
        holders(&two).iter().for_each(|holder| assert!(all.of(holder).is_ok()));
        assert_eq!(["a", "b", "c"].map(|port| name(&all, &two, port)), ["red", "blue", "ingress"]);
        // Between two steps of a change after which all that comes in at a port is another
        // tenant's, it is nobody's.
        let [before, after] = ["r", "b"].map(|chain| config(&["a"], chains, &[&format!("a {chain}")]));
        let between = config(&["a"], chains, &["a r", "a b"]);
        let mut steps = memories(&before);
        assert_eq!(holders(&before), holders(&after));
        steps.share(0);
        steps.share(1);
        assert_eq!([&before, &between, &after].map(|config| name(&steps, config, "a")), ["red", "none", "blue"]);
        // Whatever else is there, it is not received into what an NF has mapped.
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
            match memories.of(&Holder::Tenant(Some(format!("t{n}")))) {
                Ok((_, made)) => assert!(made),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("restart"), "{error}");
    }
}
