//! All paths, by number: made for a flow's first packet, ended when something that they depend on
//! is gone, freed when nothing can refer to them, and their places reused.
//!
//! # Invariant
//! Packet threads look up paths by number without a lock and use them for one round. Frames, flow
//! tables and queues keep numbers much longer. So a number is a place and its *turn*: a number of a
//! former turn finds no path.
//!
//! | stage | found by | what ends the stage |
//! |---|---|---|
//! | going | new flows, by course; packets, by number | an [`End`] of something on it |
//! | ended | packets, by number | all threads passed a fence, and no frame names it |
//! | hidden | nothing; a thread may still use it | all threads passed another fence |
//! | free | – | its place is given to another path |
//!
//! Packets inside follow an ended path to its end; new packets have their flow decided again. The
//! thread that publishes tables moves paths through these stages. Packet threads learn of a change
//! one after another, so one may make a path from tables older than the end of an NF on it. Such a
//! path is ended when it is made.
//! # Limits
//! A number recurs after 65,536 turns of its place (with the usual number of places); all free
//! places have their turns before one has its next.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::detours::{Detour, Detours};
use super::ways::{Way, Ways};
use super::{Chain, Hop, MAX_HOPS, Member, Path, PathKind, SPREAD, Tables, kept, mixed, picked};
use crate::decision::{Decision, Packed, Refusal};
use sluice_api::config::OnFailure;
use sluice_ownership::Moves;
use sluice_shm::prefetch_whole;

/// Paths ended per hold of the lock: a packet thread may be waiting to make one.
const AT_ONCE: usize = 256;
/// At most one in this many paths is a detour: NFs can create them.
const DETOURS: usize = 4;

/// An event that ends paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// This NF gets no flows any more.
    Nf(u16),
    /// A service has instances again: flows that lack it, or are refused, are decided again.
    Back(u16),
    /// A service's instances are chosen another way: all flows of chains with it are decided again.
    Service(u16),
    /// A chain has another version, or is gone.
    Chain {
        /// Its number.
        number: u16,
        /// Its version; 0 if it is gone.
        version: u32,
    },
    /// No packets come in at this port any more.
    Ingress(u16),
}

/// What a path is made from.
#[derive(Debug, Clone, Copy)]
pub struct Course<'a> {
    /// Port where its packets enter.
    pub ingress: u16,
    /// Its chain.
    pub chain: &'a Arc<Chain>,
    /// The NFs, in order.
    pub nfs: &'a [u16],
    /// Which of them are traversed in reverse; those behind the end are not.
    pub reversed: &'a [bool],
    /// The kind of the path.
    pub kind: PathKind,
    /// Generation of the tables that it is made from.
    pub under: u32,
}

impl Course<'_> {
    /// A path of it, which has no number.
    pub fn path(&self) -> Path {
        let Self { ingress, chain, nfs, reversed, kind, .. } = *self;
        let reverse = |i: usize| reversed.get(i).copied().unwrap_or(false);
        let hop = |(i, nf): (usize, &u16)| Hop { nf: *nf, last_visit: !nfs[i + 1..].contains(nf), reverse: reverse(i) };
        let hops = nfs.iter().enumerate().map(hop).collect();
        let mut once = nfs.to_vec();
        once.sort_unstable();
        once.dedup();
        let refuses = kind == PathKind::Refuses;
        let egress = if refuses { u16::MAX } else { chain.egress };
        let (stops, has_ended) = (AtomicBool::new(refuses), AtomicBool::new(false));
        Path { ingress, chain: chain.clone(), hops, nfs: once.into(), egress, kind, moves: Moves::default(), stops, has_ended }
    }
}

/// The instances that a flow gets on a chain.
struct Picked {
    nfs: [u16; MAX_HOPS],
    reversed: [bool; MAX_HOPS],
    len: usize,
    kind: PathKind,
}

impl Picked {
    #[inline(always)]
    fn course<'a>(&'a self, ingress: u16, chain: &'a Arc<Chain>, tables: &Tables) -> Course<'a> {
        let (nfs, reversed) = (&self.nfs[..self.len], &self.reversed[..self.len]);
        Course { ingress, chain, nfs, reversed, kind: self.kind, under: tables.generation }
    }
}

/// A path that a flow would take.
#[derive(Debug)]
pub enum PathAhead {
    /// It has this number.
    Known(u32),
    /// It would be made.
    New(Box<Path>),
}

/// Stands for "no path" in a place: a number that is never looked up there.
fn none(place: usize) -> u32 {
    place as u32 ^ 1
}

/// A place for a path, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    /// Number of the path that is here, or [`none`].
    number: AtomicU32,
    path: UnsafeCell<Option<Path>>,
}

// SAFETY: `path` is written in two places. `number` writes it while the place has no number; it
// took the place from the free list under the lock, so no other thread has it. `free` writes it
// when no reference can exist, which its caller guarantees. All others read it, and only after
// reading the path's number (Acquire), which was stored (Release) after the path.
unsafe impl Sync for Slot {}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PathKey {
    ingress: u16,
    chain: u16,
    version: u32,
    nfs: Box<[u16]>,
    reversed: Box<[bool]>,
    kind: PathKind,
}

impl PathKey {
    fn of(path: &Path) -> Self {
        Self {
            ingress: path.ingress,
            chain: path.chain.number,
            version: path.chain.version,
            nfs: path.hops.iter().map(|hop| hop.nf).collect(),
            reversed: path.hops.iter().map(|hop| hop.reverse).collect(),
            kind: path.kind,
        }
    }
}

/// Numbers in no fixed order; adding and removing take constant time.
#[derive(Debug, Default)]
struct Set {
    list: Vec<u32>,
    places: HashMap<u32, usize>,
}

impl Set {
    fn add(&mut self, number: u32) {
        self.places.entry(number).or_insert_with(|| {
            self.list.push(number);
            self.list.len() - 1
        });
    }

    fn remove(&mut self, number: u32) {
        let Some(place) = self.places.remove(&number) else { return };
        self.list.swap_remove(place);
        if let Some(moved) = self.list.get(place) {
            self.places.insert(*moved, place);
        }
    }
}

/// Removes a number from one of several sets, and the set if it is empty.
fn take_out<K: std::hash::Hash + Eq>(sets: &mut HashMap<K, Set>, key: K, number: u32) {
    if let Some(set) = sets.get_mut(&key) {
        set.remove(number);
        if set.list.is_empty() {
            sets.remove(&key);
        }
    }
}

#[derive(Debug, Default)]
struct Numbers {
    /// Paths in use.
    of: HashMap<PathKey, u32>,
    /// Paths in use, by ingress port and version of the chain.
    by_chain: HashMap<(u16, u16, u32), Set>,
    by_nf: HashMap<u16, Set>,
    /// Paths that lack a service or refuse packets, by each service of their chains.
    without: HashMap<u16, Set>,
    ended: Vec<u32>,
    /// Freed places, longest free first, as the number that the next path gets.
    free: VecDeque<u32>,
    /// Places from here on were never used.
    fresh: usize,
    detours: usize,
    /// Generation of the tables in which something went or came back.
    since: HashMap<End, u32>,
    /// Latest version of each chain that exists or existed.
    versions: HashMap<u16, u32>,
}

/// Numbers that paths name.
#[derive(Debug, Default)]
pub struct Names {
    /// Of NFs.
    pub nfs: HashSet<u16>,
    /// Of chains.
    pub chains: HashSet<u16>,
    /// Of the services of these chains.
    pub services: HashSet<u16>,
    /// Of ports where packets enter or leave.
    pub ports: HashSet<u16>,
}

/// The registry of paths: see the module.
#[derive(Debug)]
pub struct PathRegistry {
    slots: Box<[Slot]>,
    /// Bits of a number that are the place.
    bits: u32,
    numbers: Mutex<Numbers>,
    /// Places that were ever used.
    used: AtomicUsize,
    /// Paths in use, and changes of that number.
    len: AtomicUsize,
    changes: AtomicU32,
    /// Times that paths were freed.
    frees: AtomicU32,
}

impl PathRegistry {
    /// A registry for up to `most` paths.
    pub fn new(most: usize) -> Self {
        let most = most.clamp(2, 1 << 28);
        let slot = |place| Slot { number: AtomicU32::new(none(place)), path: UnsafeCell::new(None) };
        Self {
            slots: (0..most).map(slot).collect(),
            // The numbers of other decisions belong to the last turn, which is never assigned.
            bits: most.next_power_of_two().trailing_zeros().max(5),
            numbers: Mutex::default(),
            used: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            changes: AtomicU32::new(0),
            frees: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    fn place(&self, number: u32) -> usize {
        number as usize & ((1 << self.bits) - 1)
    }

    /// The path with a number, if it exists. Packet threads use it only in the round of the call.
    #[inline(always)]
    pub fn get(&self, number: u32) -> Option<&Path> {
        let slot = self.slots.get(self.place(number))?;
        // Acquire: pairs with the store of the number, before which the path was written.
        if slot.number.load(Ordering::Acquire) != number {
            return None;
        }
        // SAFETY: the path of this number exists, and is freed only after all threads have passed a
        // fence that follows the removal of its number.
        unsafe { (*slot.path.get()).as_ref() }
    }

    /// Fetches what [`PathRegistry::of`] reads.
    #[inline(always)]
    pub(crate) fn fetch(&self, decision: Packed) {
        self.slots.get(self.place(decision.bits())).iter().for_each(|slot| prefetch_whole(*slot));
    }

    /// The path of a decision, if there is one.
    #[inline(always)]
    pub fn of(&self, decision: Packed) -> Option<&Path> {
        // Decisions that are not paths have numbers of the last turn.
        self.get(decision.bits())
    }

    /// Whether a path with this number exists and has not ended.
    #[inline]
    pub fn goes(&self, number: u32) -> bool {
        self.get(number).is_some_and(|path| !path.has_ended())
    }

    /// Whether a decision still holds: its path has not ended, or it names none.
    #[inline]
    pub fn holds(&self, decision: Packed) -> bool {
        decision.number().is_none_or(|number| self.goes(number))
    }

    /// Number of paths in use.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether no path is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes with each path that is made or ends.
    pub fn changes(&self) -> u32 {
        // Acquire: the path is made, or ended, before this changes.
        self.changes.load(Ordering::Acquire)
    }

    /// The paths in use, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.all().filter(|path| !path.has_ended())
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a path, made if it is new. `None` at the limit.
    #[cold]
    pub fn number(&self, course: &Course<'_>) -> Option<u32> {
        let Course { ingress, chain, nfs, reversed, kind, .. } = *course;
        let met = |at: usize| reversed.get(at).copied().unwrap_or(false);
        let key = PathKey {
            ingress,
            chain: chain.number,
            version: chain.version,
            nfs: nfs.into(),
            reversed: (0..nfs.len()).map(met).collect(),
            kind,
        };
        let mut numbers = self.lock();
        if let Some(number) = numbers.of.get(&key).copied()
            && (self.goes(number) || numbers.is_over(course))
        {
            return Some(number);
        }
        if kind == PathKind::Detour && numbers.detours >= self.slots.len().div_ceil(DETOURS) {
            return None;
        }
        let number = if numbers.fresh < self.slots.len() {
            numbers.fresh += 1;
            numbers.fresh as u32 - 1
        } else {
            numbers.free.pop_front()?
        };
        let path = course.path();
        if numbers.is_over(course) {
            // Threads that make it again find it, until it is to be freed.
            path.end();
            numbers.ended.push(number);
        } else {
            numbers.by_chain.entry((ingress, chain.number, chain.version)).or_default().add(number);
            for nf in &path.nfs {
                numbers.by_nf.entry(*nf).or_default().add(number);
            }
            for service in chain.services.iter().filter(|_| path.goes_without()) {
                numbers.without.entry(*service).or_default().add(number);
            }
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        numbers.of.insert(key, number);
        numbers.detours += usize::from(kind == PathKind::Detour);
        let slot = &self.slots[self.place(number)];
        // SAFETY: the place has no number, nor had it when it became free: nothing refers to it.
        unsafe { *slot.path.get() = Some(path) };
        // Release: the path is written before its number.
        slot.number.store(number, Ordering::Release);
        self.used.store(numbers.fresh, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        Some(number)
    }

    /// Ends paths: flows that took them are decided again. `generation` is that of the first tables
    /// without them; `None` if the caller makes no more of them.
    pub fn end(&self, ends: &[End], generation: Option<u32>) {
        if ends.is_empty() {
            return;
        }
        let mut numbers = self.lock();
        let mut over = Vec::new();
        for end in ends {
            if let Some(generation) = generation {
                numbers.since.insert(*end, generation);
            }
            match *end {
                End::Nf(nf) => over.extend(numbers.by_nf.get(&nf).into_iter().flat_map(|set| &set.list)),
                End::Chain { number, version } => {
                    numbers.since.remove(end);
                    numbers.versions.insert(number, version);
                    let old = numbers.by_chain.iter().filter(|((_, chain, of), _)| *chain == number && *of != version);
                    over.extend(old.flat_map(|(_, paths)| &paths.list));
                }
                End::Ingress(port) => {
                    let of = numbers.by_chain.iter().filter(|((ingress, ..), _)| *ingress == port);
                    over.extend(of.flat_map(|(_, paths)| &paths.list));
                }
                End::Back(service) => over.extend(numbers.without.get(&service).into_iter().flat_map(|set| &set.list)),
                End::Service(service) => {
                    // All paths of a chain's version have the same services: the first is asked.
                    let has = |path: &Path| path.chain.services.contains(&service);
                    let of = numbers
                        .by_chain
                        .values()
                        .filter(|set| set.list.first().and_then(|first| self.get(*first)).is_some_and(has));
                    over.extend(of.flat_map(|set| &set.list));
                }
            }
        }
        drop(numbers);
        over.sort_unstable();
        over.dedup();
        for some in over.chunks(AT_ONCE) {
            self.end_these(some);
        }
    }

    fn end_these(&self, over: &[u32]) {
        let mut numbers = self.lock();
        let numbers = &mut *numbers;
        for number in over {
            let Some(path) = self.get(*number).filter(|path| !path.has_ended()) else { continue };
            path.end();
            numbers.of.remove(&PathKey::of(path));
            numbers.ended.push(*number);
            take_out(&mut numbers.by_chain, (path.ingress, path.chain.number, path.chain.version), *number);
            path.nfs.iter().for_each(|nf| take_out(&mut numbers.by_nf, *nf, *number));
            if path.goes_without() {
                path.chain.services.iter().for_each(|service| take_out(&mut numbers.without, *service, *number));
            }
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The paths that exist, ended ones included.
    fn all(&self) -> impl Iterator<Item = &Path> {
        let used = self.used.load(Ordering::Acquire);
        let numbers = self.slots[..used].iter().map(|slot| slot.number.load(Ordering::Relaxed)).enumerate();
        numbers.filter(|(place, number)| self.place(*number) == *place).filter_map(|(_, number)| self.get(number))
    }

    /// What paths name, ended ones included.
    pub fn names(&self) -> Names {
        let (mut names, mut versions) = (Names::default(), HashSet::new());
        for path in self.all() {
            names.nfs.extend(&path.nfs);
            names.ports.extend([path.ingress, path.egress]);
            if versions.insert((path.chain.number, path.chain.version)) {
                names.chains.insert(path.chain.number);
                names.services.extend(&path.chain.services);
            }
        }
        names
    }

    /// Whether packets may be on their way to a port.
    pub fn leads_to(&self, port: u16) -> bool {
        self.all().any(|path| path.egress == port)
    }

    /// The paths that ended since the last call. The caller frees them: see the module.
    pub fn take_ended(&self) -> Vec<u32> {
        let ended = std::mem::take(&mut self.lock().ended);
        for some in ended.chunks(AT_ONCE) {
            let mut numbers = self.lock();
            for (number, path) in some.iter().filter_map(|number| Some((number, self.get(*number)?))) {
                let key = PathKey::of(path);
                if numbers.of.get(&key) == Some(number) {
                    numbers.of.remove(&key);
                }
            }
        }
        ended
    }

    /// Removes the numbers of paths that no frame names, so that they cannot be found.
    pub fn hide(&self, ended: &[u32]) {
        for number in ended {
            // Relaxed: a thread that still finds the path passes a fence before it is freed.
            let place = self.place(*number);
            self.slots[place].number.store(none(place), Ordering::Relaxed);
        }
    }

    /// Frees hidden paths, and makes their places available.
    ///
    /// # Safety
    /// Each packet thread has begun a new round since [`PathRegistry::hide`], and only the calling
    /// thread and packet threads look up paths.
    pub unsafe fn free(&self, hidden: &[u32]) {
        if hidden.is_empty() {
            return;
        }
        let mut detours = 0;
        for number in hidden {
            // SAFETY: the place has no number, so no reference arises; by the contract none exists.
            let path = unsafe { (*self.slots[self.place(*number)].path.get()).take() };
            detours += usize::from(path.is_some_and(|path| path.kind == PathKind::Detour));
        }
        for some in hidden.chunks(AT_ONCE) {
            self.lock().free.extend(some.iter().map(|number| self.next_turn(*number)));
        }
        self.lock().detours -= detours;
        // Release: the places are there before threads ask for them again.
        self.frees.fetch_add(1, Ordering::Release);
    }

    fn next_turn(&self, number: u32) -> u32 {
        let next = number.wrapping_add(1u32.checked_shl(self.bits).unwrap_or(0));
        // The largest numbers encode other decisions.
        if next >= u32::MAX >> self.bits << self.bits { self.place(number) as u32 } else { next }
    }

    /// A path that a chain has already and whose NFs all live, chosen by a flow's hash.
    #[cold]
    fn shared(&self, tables: &Tables, thread: usize, ingress: u16, chain: &Chain, hash: u32) -> Option<u32> {
        let members = || chain.services.iter().filter_map(|service| tables.services.get(usize::from(*service))).flatten();
        let is_elsewhere = |path: &Path| members().any(|member| !member.serves(thread) && path.nfs.contains(&member.nf));
        let numbers = self.lock();
        let paths = &numbers.by_chain.get(&(ingress, chain.number, chain.version))?.list;
        let from = hash as usize % paths.len().max(1);
        let mut in_turn = paths[from..].iter().chain(&paths[..from]);
        let goes = |number: &&u32| {
            self.get(**number).is_some_and(|path| matches!(path.kind, PathKind::Whole) && path.goes() && !is_elsewhere(path))
        };
        in_turn.find(goes).copied()
    }

    /// The path for a flow of a chain: an instance of each service by the flow's symmetric hash,
    /// keeping live ones of `old`, the flow's former path. If an instance is missing, a path that
    /// bypasses the service or refuses packets.
    #[cold]
    pub fn decide(&self, ways: &mut Ways, tables: &Tables, ingress: u16, chain: u16, hash: u32, old: Option<u32>) -> Decision {
        let Some(Some(chain)) = tables.chains.get(chain as usize) else { return Decision::Drop(Refusal::NoRule) };
        let picked = self.pick(tables, ways.thread, chain, hash, old);
        let number = self.find(ways, &picked.course(ingress, chain, tables));
        let number = number.or_else(|| self.shared(tables, ways.thread, ingress, chain, hash));
        number.map_or(Decision::Drop(Refusal::NoPath), Decision::Path)
    }

    /// The path that [`PathRegistry::decide`] would find or make for a flow; makes none.
    ///
    /// # Errors
    /// Why there is none.
    #[cold]
    pub fn foresee(
        &self,
        tables: &Tables,
        thread: usize,
        ingress: u16,
        chain: u16,
        hash: u32,
        old: Option<u32>,
    ) -> Result<PathAhead, Refusal> {
        let Some(Some(chain)) = tables.chains.get(chain as usize) else { return Err(Refusal::NoRule) };
        let path = self.pick(tables, thread, chain, hash, old).course(ingress, chain, tables).path();
        let has_place = {
            let numbers = self.lock();
            let is_free = numbers.fresh < self.slots.len() || !numbers.free.is_empty();
            is_free || numbers.of.get(&PathKey::of(&path)).is_some_and(|number| self.goes(*number))
        };
        if has_place {
            return Ok(PathAhead::New(path.into()));
        }
        self.shared(tables, thread, ingress, chain, hash).map(PathAhead::Known).ok_or(Refusal::NoPath)
    }

    /// An instance of each service of a chain for a flow, as [`PathRegistry::decide`] says.
    #[inline(always)]
    fn pick(&self, tables: &Tables, thread: usize, chain: &Chain, hash: u32, old: Option<u32>) -> Picked {
        let old = old
            .and_then(|number| self.get(number))
            .filter(|p| p.kind == PathKind::Whole && p.chain.number == chain.number && p.chain.services == chain.services);
        let (mut nfs, mut reversed, mut len) = ([0; MAX_HOPS], [false; MAX_HOPS], 0);
        let mut kind = PathKind::Whole;
        let instances = |service: &u16| tables.services.get(*service as usize).map_or(1, |m| m.len().max(1));
        let combinations = chain.services.iter().fold(1usize, |n, service| n.saturating_mul(instances(service)));
        let spread_by = if combinations > SPREAD { mixed(hash) % SPREAD as u32 } else { hash };
        for (i, service) in chain.services.iter().enumerate().take(MAX_HOPS) {
            let members: &[Member] = tables.services.get(*service as usize).map_or(&[], |m| m);
            // The flow's instance of this hop stays, if it lives; a bypass has its hops shifted.
            let same_as_before = old.and_then(|p| p.hops.get(i)).and_then(|h| kept(members, h.nf, thread));
            // A service that occurs twice in a chain is the same instance.
            let same = chain.services[..i]
                .iter()
                .position(|s| s == service)
                .filter(|at| kind == PathKind::Whole && *at < len)
                .map(|at| nfs[at]);
            let chosen = same_as_before.or(same).or_else(|| picked(members, spread_by, thread));
            match chosen {
                Some(nf) => {
                    (nfs[len], reversed[len]) = (nf, chain.is_reversed(i));
                    len += 1;
                }
                None if chain.on_failure == OnFailure::Bypass => kind = PathKind::Bypasses,
                None => {
                    (kind, len) = (PathKind::Refuses, 0);
                    break;
                }
            }
        }
        Picked { nfs, reversed, len, kind }
    }

    /// The number of a path, from the thread's notes where possible.
    pub fn find(&self, ways: &mut Ways, course: &Course<'_>) -> Option<u32> {
        if let (PathKind::Detour, [nf]) = (course.kind, course.nfs) {
            return self.find_detour(ways, course, *nf);
        }
        let Some(way) = Way::new(course.chain.version, course.ingress, course.kind, course.nfs) else { return self.number(course) };
        if let Some(number) = ways.find(&way).filter(|number| self.goes(*number)) {
            return Some(number);
        }
        let number = self.number(course)?;
        ways.insert(&way, number);
        Some(number)
    }

    /// As [`PathRegistry::find`], for a detour to an NF: also a refusal is from the notes.
    fn find_detour(&self, ways: &mut Ways, course: &Course<'_>, nf: u16) -> Option<u32> {
        // Acquire: pairs with the end of `free`. It is read before the registry is asked: if paths
        // are freed meanwhile, a refusal is outdated at once.
        let frees = self.frees.load(Ordering::Acquire);
        let holds = |answer: Detour| match answer {
            Detour::Path(number) => self.goes(number),
            Detour::Refused(when) => when == frees,
        };
        let (refused, key) = (Detour::Refused(frees), Detours::key(course.chain.version, course.ingress, nf));
        let answer = ways.detours.find(key, holds).unwrap_or_else(|| {
            let answer = self.number(course).map_or(refused, Detour::Path);
            ways.detours.note(key, answer, holds);
            answer
        });
        match answer {
            Detour::Path(number) => Some(number),
            Detour::Refused(_) => None,
        }
    }

    /// Whether a flow may stay on its path, given the chain that the rules name now.
    pub fn still_valid(&self, tables: &Tables, number: u32, chain: u16) -> bool {
        let Some(path) = self.get(number).filter(|path| !path.has_ended()) else { return false };
        matches!(tables.chains.get(chain as usize), Some(Some(c)) if c.number == path.chain.number && c.version == path.chain.version)
    }
}

/// What ends paths when new tables replace former ones.
pub fn ends(former: &Tables, new: &Tables) -> Vec<End> {
    let mut ends = Vec::new();
    let there: HashSet<u16> = new.services.iter().flatten().map(|member| member.nf).collect();
    let mut gone: Vec<u16> = former.services.iter().flatten().map(|member| member.nf).filter(|nf| !there.contains(nf)).collect();
    gone.dedup();
    ends.extend(gone.into_iter().map(End::Nf));
    for (number, members) in new.services.iter().enumerate() {
        let service = number as u16;
        if former.is_steered(service) != new.is_steered(service) {
            ends.push(End::Service(service));
        } else {
            // Some threads may have had an instance, and others none.
            let had = |member: &Member| former.services.get(number).into_iter().flatten().any(|was| was.is_for(member));
            if !members.iter().all(had) {
                ends.push(End::Back(service));
            }
        }
    }
    let version = |tables: &Tables, number: usize| tables.chains.get(number).and_then(|c| Some(c.as_ref()?.version)).unwrap_or(0);
    let chains = (0..former.chains.len().max(new.chains.len())).map(|number| (number, version(new, number)));
    let other = chains.filter(|(number, now)| version(former, *number) != *now);
    ends.extend(other.map(|(number, version)| End::Chain { number: number as u16, version }));
    let closed = |number: &usize| former.ports[*number].is_some() && !new.ports.get(*number).is_some_and(Option::is_some);
    ends.extend((0..former.ports.len()).filter(closed).map(|number| End::Ingress(number as u16)));
    ends
}

impl Numbers {
    /// Whether something on a path went, or something it lacks came back, after its tables.
    fn is_over(&self, course: &Course<'_>) -> bool {
        // Generations may wrap: they are compared by their difference.
        let is_late = |end| self.since.get(&end).is_some_and(|since| (course.under.wrapping_sub(*since) as i32) < 0);
        let services = &course.chain.services;
        self.versions.get(&course.chain.number).is_some_and(|version| *version != course.chain.version)
            || course.nfs.iter().any(|nf| is_late(End::Nf(*nf)))
            || services.iter().any(|service| is_late(End::Service(*service)))
            || course.kind.goes_without() && services.iter().any(|service| is_late(End::Back(*service)))
            || is_late(End::Ingress(course.ingress))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chain, member, tables};
    use super::*;

    const NONE: &[bool] = &[];

    fn course<'a>(chain: &'a Arc<Chain>, nfs: &'a [u16], under: u32) -> Course<'a> {
        Course { ingress: 0, chain, nfs, reversed: NONE, kind: PathKind::Whole, under }
    }

    fn free(registry: &PathRegistry) -> Vec<u32> {
        let ended = registry.take_ended();
        registry.hide(&ended);
        // SAFETY: there are no threads, and no references to paths.
        unsafe { registry.free(&ended) };
        ended
    }

    #[test]
    fn a_place_is_given_again_and_old_numbers_find_nothing() {
        let registry = PathRegistry::new(4);
        let mut before = Vec::new();
        for version in 1..1000 {
            let chain = chain(0, version, &[0], OnFailure::Drop);
            registry.end(&[End::Chain { number: 0, version }], Some(version));
            let number = registry.number(&course(&chain, &[1], version)).unwrap();
            assert_eq!(registry.get(number).unwrap().chain.version, version);
            assert_eq!((registry.len(), registry.iter().count()), (1, 1));
            assert!(before.iter().all(|old| registry.get(*old).is_none_or(Path::has_ended)));
            if version % 3 == 0 {
                // Packets follow ended paths until these are freed.
                assert_eq!(free(&registry).len(), if version == 3 { 2 } else { 3 });
                assert!(before.iter().all(|old| registry.get(*old).is_none()), "{before:?}");
            }
            before.push(number);
        }
        assert!(before.iter().all(|number| *number < UNGIVEN), "{before:?}");
    }

    /// The least number that is never assigned.
    const UNGIVEN: u32 = u32::MAX - 31;

    #[test]
    fn numbers_of_a_place_come_again_and_never_say_what_is_done_instead_of_a_path() {
        for most in [2, 5, 256, 1 << 16] {
            let registry = PathRegistry::new(most);
            let (mut number, mut turns) = (1, 0u32);
            loop {
                turns += 1;
                number = registry.next_turn(number);
                assert!(number < UNGIVEN && registry.place(number) == 1);
                if number == 1 {
                    break;
                }
            }
            assert!(turns >= 65_535, "{most}: {turns}");
        }
    }

    #[test]
    fn a_path_that_is_made_of_old_tables_has_ended_when_it_is_made() {
        let registry = PathRegistry::new(16);
        let c = chain(0, 1, &[0], OnFailure::Bypass);
        registry.end(&[End::Nf(3), End::Back(0)], Some(7));
        let number = |course: &Course<'_>| registry.number(course).unwrap();
        let late = number(&course(&c, &[3], 6));
        assert!(registry.get(late).unwrap().has_ended() && !registry.goes(late));
        assert_eq!(number(&course(&c, &[3], 6)), late, "one is enough");
        let without = Course { kind: PathKind::Bypasses, ..course(&c, &[], 6) };
        assert!(registry.get(number(&without)).unwrap().has_ended());
        // It is back under the same number, and tables that know of its absence name it.
        let now = number(&course(&c, &[3], 7));
        assert!(now != late && registry.get(now).unwrap().goes());
        assert!(registry.get(number(&Course { under: 7, ..without })).unwrap().goes());
        assert_eq!(free(&registry).len(), 2);
        assert_eq!(number(&course(&c, &[3], 8)), now);
    }

    #[test]
    fn only_paths_that_a_change_concerns_end() {
        let registry = PathRegistry::new(64);
        let chains = || vec![chain(0, 1, &[0, 1], OnFailure::Drop), chain(1, 2, &[2], OnFailure::Drop)];
        let mut ways = Ways::new(64, 0);
        let mut decide = |tables: &Tables, chain: u16, hash: u32| match registry.decide(&mut ways, tables, 0, chain, hash, None) {
            Decision::Path(number) => number,
            other => panic!("{other:?}"),
        };
        let before = tables(chains(), vec![vec![1, 2], vec![3], vec![4]]);
        let paths: Vec<u32> = (0..50).map(|hash| decide(&before, 0, hash)).collect();
        let other = decide(&before, 1, 0);
        let goes = |number: u32| registry.get(number).unwrap().goes();
        let is_on = |number: u32, nf| registry.get(number).unwrap().nfs.contains(&nf);
        // An instance is added: nothing is decided again.
        let more = Tables { generation: 2, ..tables(chains(), vec![vec![1, 2, 5], vec![3], vec![4, 6]]) };
        registry.end(&ends(&before, &more), Some(2));
        assert!(paths.iter().all(|path| goes(*path)) && goes(other));
        // An instance goes.
        let fewer = Tables { generation: 3, ..tables(chains(), vec![vec![1, 5], vec![3], vec![4, 6]]) };
        registry.end(&ends(&more, &fewer), Some(3));
        assert!(paths.iter().all(|path| goes(*path) != is_on(*path, 2)) && goes(other));
        let names = registry.names();
        assert!(names.nfs.contains(&2), "packets may still be on their way");
        assert!(names.chains.len() == 2 && names.services == HashSet::from([0, 1, 2]) && names.ports.contains(&9));
        let ended = registry.take_ended();
        registry.hide(&ended);
        let names = registry.names();
        assert!(!names.nfs.contains(&2) && names.nfs.contains(&1) && registry.leads_to(9));
        // A service without instances refuses packets until it has one.
        let none = Tables { generation: 4, ..tables(chains(), vec![vec![1, 5], vec![], vec![4, 6]]) };
        registry.end(&ends(&fewer, &none), Some(4));
        let refused = decide(&none, 0, 0);
        let path = registry.get(refused).unwrap();
        assert!(path.refuses() && !path.goes() && !path.has_ended() && registry.goes(refused) && goes(other));
        registry.end(&ends(&none, &fewer), Some(5));
        assert!(!registry.goes(refused) && goes(other));
        // A chain is replaced.
        let now = Tables {
            generation: 6,
            ..tables(
                vec![chain(0, 3, &[0], OnFailure::Drop), chain(1, 2, &[2], OnFailure::Drop)],
                vec![vec![1, 5], vec![3], vec![4, 6]],
            )
        };
        let whole = decide(&Tables { generation: 5, ..tables(chains(), vec![vec![1, 5], vec![3], vec![4, 6]]) }, 0, 0);
        assert!(goes(whole));
        registry.end(&ends(&fewer, &now), Some(6));
        assert!(!goes(whole) && goes(other));
    }

    #[test]
    fn what_is_foreseen_is_what_is_decided_and_nothing_is_made() {
        let now = tables(
            vec![chain(0, 1, &[0, 1], OnFailure::Drop), chain(1, 1, &[2], OnFailure::Bypass), chain(2, 1, &[2], OnFailure::Drop)],
            vec![vec![1, 2, 5], vec![3, 7], vec![]],
        );
        let hops = |path: &Path| path.hops.iter().map(|hop| hop.nf).collect::<Vec<_>>();
        let registry = PathRegistry::new(64);
        let mut ways = Ways::new(16, 0);
        for hash in (0..60u32).map(|n| n.wrapping_mul(0x9e37_79b9)) {
            for number in 0..3 {
                let before = registry.len();
                let Ok(PathAhead::New(path)) = registry.foresee(&now, 0, 0, number, hash, None) else { panic!("{hash}") };
                assert_eq!(registry.len(), before);
                let Decision::Path(made) = registry.decide(&mut ways, &now, 0, number, hash, None) else { panic!("{hash}") };
                let made = registry.get(made).unwrap();
                assert_eq!((hops(&path), path.kind, path.egress), (hops(made), made.kind, made.egress));
            }
        }
        assert_eq!(registry.foresee(&now, 0, 0, 9, 0, None).unwrap_err(), Refusal::NoRule);
        // All places are taken: a flow shares what its chain has, or finds none.
        let registry = PathRegistry::new(2);
        let has = |nfs: &[u16]| registry.number(&course(now.chains[0].as_ref().unwrap(), nfs, 1)).unwrap();
        let taken = [has(&[1, 3]), has(&[2, 3])];
        let foreseen = (0..60).map(|hash| registry.foresee(&now, 0, 0, 0, hash, None).unwrap());
        let known = foreseen.filter_map(|path| if let PathAhead::Known(number) = path { Some(number) } else { None });
        assert!({ known }.all(|number| taken.contains(&number)));
        assert_eq!(registry.foresee(&now, 0, 0, 2, 0, None).unwrap_err(), Refusal::NoPath);
    }

    #[test]
    fn flows_of_a_thread_are_decided_again_when_it_has_an_instance_again() {
        let registry = PathRegistry::new(64);
        let at = |threads: &[(u16, u16)]| {
            let own = |(nf, thread): &(u16, u16)| Member { thread: Some(*thread), ..member(*nf) };
            let mut tables = tables(vec![chain(0, 1, &[0], OnFailure::Drop)], vec![vec![]]);
            tables.services[0] = threads.iter().map(own).collect();
            tables
        };
        let (both, one) = (at(&[(1, 0), (2, 1)]), at(&[(1, 0)]));
        let mut ways = [0, 1].map(|thread| Ways::new(64, thread));
        let mut decide = |tables: &Tables, thread: usize| match registry.decide(&mut ways[thread], tables, 0, 0, 7, None) {
            Decision::Path(number) => registry.get(number).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 1].map(|thread| decide(&both, thread).nfs[0]), [1, 2]);
        registry.end(&ends(&both, &one), Some(2));
        let (own, none) = (decide(&one, 0), decide(&one, 1));
        assert!(own.goes() && none.refuses());
        let again = Tables { generation: 3, ..at(&[(1, 0), (2, 1)]) };
        assert_eq!(ends(&one, &again), [End::Back(0)]);
        registry.end(&ends(&one, &again), Some(3));
        assert!(own.goes() && none.has_ended());
        assert_eq!(decide(&again, 1).nfs[0], 2);
        assert_eq!(ends(&both, &again), [], "each thread had one");
    }

    #[test]
    fn what_ends_is_found_without_a_look_at_all_paths() {
        let registry = PathRegistry::new(1024);
        // Each chain has a service of its own and service 0; every third path lacks a service.
        let chains: Vec<_> = (0..30).map(|n| chain(n, 1, &[0, n + 1], OnFailure::Bypass)).collect();
        let mut numbers: Vec<(u32, usize, bool)> = Vec::new();
        for (n, chain) in chains.iter().enumerate() {
            for nf in 0..20 {
                let without = n % 3 == 0;
                let nfs = [nf, 100 + n as u16];
                let kind = if without { PathKind::Bypasses } else { PathKind::Whole };
                numbers.push((
                    registry.number(&Course { kind, ..course(chain, &nfs[..if without { 1 } else { 2 }], 1) }).unwrap(),
                    n,
                    without,
                ));
            }
        }
        let size = |of: fn(&Numbers) -> usize| of(&registry.lock());
        let gone = |numbers: &[(u32, usize, bool)], goes: &dyn Fn(usize, bool, u16) -> bool| {
            for (at, (number, n, without)) in numbers.iter().enumerate() {
                assert_eq!(registry.goes(*number), goes(*n, *without, at as u16 % 20), "{number} of chain {n}");
            }
        };
        assert_eq!(size(|n| n.without[&0].list.len()), 200, "those alone that go without it");
        registry.end(&[End::Back(4)], Some(2));
        gone(&numbers, &|n, _, _| n != 3);
        registry.end(&[End::Nf(7)], Some(3));
        gone(&numbers, &|n, _, nf| n != 3 && nf != 7);
        registry.end(&[End::Service(9)], Some(4));
        gone(&numbers, &|n, _, nf| n != 3 && nf != 7 && n != 8);
        registry.end(&[End::Back(0)], Some(5));
        gone(&numbers, &|n, without, nf| n != 3 && nf != 7 && n != 8 && !without);
        assert_eq!(size(|n| n.without.len()), 0);
        registry.end(&[End::Service(0)], Some(6));
        assert_eq!((size(|n| n.by_chain.len() + n.by_nf.len() + n.of.len()), registry.len()), (0, 0));
        assert_eq!(free(&registry).len(), numbers.len());
    }

    #[test]
    fn detours_do_not_take_all_places() {
        let registry = PathRegistry::new(16);
        let c = chain(0, 1, &[0], OnFailure::Drop);
        let detour = |nf: u16| registry.number(&Course { kind: PathKind::Detour, ..course(&c, &[nf], 1) });
        assert!((0..4).all(|nf| detour(nf).is_some()));
        assert!((4..100).all(|nf| detour(nf).is_none()) && detour(2).is_some());
        registry.end(&[End::Nf(2)], Some(2));
        assert_eq!(free(&registry).len(), 1);
        assert!(detour(9).is_some() && detour(10).is_none());
    }

    #[test]
    fn a_thread_asks_for_a_refused_detour_once_until_paths_are_freed() {
        let (registry, mut ways) = (PathRegistry::new(16), Ways::new(16, 0));
        let c = chain(0, 1, &[0], OnFailure::Drop);
        let find = |ways: &mut Ways, nf: u16| registry.find(ways, &Course { kind: PathKind::Detour, ..course(&c, &[nf], 1) });
        let noted = |ways: &Ways, nf: u16, frees: u32| {
            let holds = |answer: Detour| matches!(answer, Detour::Path(_)) || answer == Detour::Refused(frees);
            ways.detours.find(Detours::key(1, 0, nf), holds)
        };
        let numbers: Vec<u32> = (0..4).map(|nf| find(&mut ways, nf).unwrap()).collect();
        assert_eq!(noted(&ways, 4, 0), None);
        assert!((0..3).all(|_| find(&mut ways, 4).is_none()));
        assert_eq!((noted(&ways, 2, 0), noted(&ways, 4, 0)), (Some(Detour::Path(numbers[2])), Some(Detour::Refused(0))));
        // It stays refused when paths end, and not when they are freed.
        registry.end(&[End::Nf(2)], Some(2));
        assert!(find(&mut ways, 4).is_none() && find(&mut ways, 2).is_none());
        assert_eq!(free(&registry).len(), 1);
        assert_eq!(noted(&ways, 4, 1), None);
        let again = find(&mut ways, 4);
        assert!(again.is_some() && find(&mut ways, 4) == again && find(&mut ways, 5).is_none());
        assert_eq!(find(&mut ways, 1), Some(numbers[1]));
    }

    #[test]
    fn packet_threads_find_a_path_or_none_while_others_are_freed() {
        let registry = PathRegistry::new(8);
        let rounds = [AtomicU32::new(0), AtomicU32::new(0)];
        let (latest, stop) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for round in &rounds {
                let (registry, latest, stop) = (&registry, &latest, &stop);
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    while stop.load(Ordering::Acquire) == 0 {
                        kept.push(latest.load(Ordering::Relaxed));
                        for number in &kept {
                            if let Some(path) = registry.get(*number) {
                                assert_eq!(u32::from(path.nfs[0]), path.chain.version);
                            }
                        }
                        if kept.len() > 50 {
                            kept.clear();
                        }
                        // A fence: paths found before are not used any more.
                        round.fetch_add(1, Ordering::Release);
                        std::thread::yield_now();
                    }
                });
            }
            for version in 1..300 {
                let c = chain(0, version, &[0], OnFailure::Drop);
                registry.end(&[End::Chain { number: 0, version }], Some(version));
                let number = registry.number(&course(&c, &[version as u16], version)).expect("places are given again");
                latest.store(number, Ordering::Relaxed);
                let ended = registry.take_ended();
                registry.hide(&ended);
                let before: Vec<u32> = rounds.iter().map(|round| round.load(Ordering::Acquire)).collect();
                while rounds.iter().zip(&before).any(|(round, before)| round.load(Ordering::Acquire) < before + 2) {
                    std::thread::yield_now();
                }
                // SAFETY: both threads have begun another round since the paths were hidden.
                unsafe { registry.free(&ended) };
            }
            stop.store(1, Ordering::Release);
        });
    }
}
