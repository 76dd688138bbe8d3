//! The NFs and their lives.
//!
//! [`NfSet`] owns every NF. Decisions about an NF's life are in its [`Life`], a state machine that
//! only [`NfSet::on`] advances: it takes an event and returns the actions for the supervisor.
//! [`state`] has the states and the table of transitions.

mod canary;
mod counted;
mod event;
#[cfg_attr(not(feature = "foreign"), path = "without_foreign.rs")]
mod foreign;
mod life;
#[cfg(test)]
mod life_tests;
mod pool;
mod process;
mod request;
mod shadow;
mod state;
mod trial;
mod zygote;

use std::collections::btree_map::Values;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Instant;

use rustix::process::Pid;
use sluice_shm::clock::monotonic_ns;

pub(crate) use canary::{
    Canary, CanarySight, CanaryStage, CanaryWatch, ENOUGH_PACKETS, Passage, canary_fault, canary_lacks, canary_parts, wrong_canary,
};
pub(crate) use counted::Counted;
pub(crate) use event::{Action, Again, End, Ended, Event, TrialEnd};
pub(crate) use foreign::Foreign;
pub(crate) use life::{BACKOFF, HELLO_PATIENCE, Life, Origin};
pub(crate) use pool::{PoolChange, PoolLife, PoolSize};
pub(crate) use process::Process;
pub(crate) use request::{FormerRequest, PriorityRequest};
pub(crate) use shadow::{ShadowPlan, ShadowStage, ShadowTrial, ShadowWatch};
pub(crate) use state::State;
pub(crate) use trial::{Advance, Instance, Trial, step_of_all};
pub(crate) use zygote::{ASKED, Stage, ZygoteAction, ZygoteEvent, ZygoteLife};

use crate::dataplane::{Fence, Place};
use sluice_dataplane::handle::NfHandle;
use sluice_host::cgroup::pen::Pen;

/// The intervals in which processes have learned names and numbers.
pub(crate) type Learned = Vec<(Instant, Instant)>;

/// The interval of one that learned all at this time.
pub(crate) fn at_once(at: Instant) -> (Instant, Instant) {
    (at, at)
}

pub(crate) struct Nf {
    pub(crate) number: u16,
    pub(crate) name: String,
    pub(crate) service: u16,
    pub(crate) core: usize,
    life: Life,
    pub(crate) handle: Option<Arc<NfHandle>>,
    pub(crate) place: Option<Place>,
    pub(crate) process: Option<Process>,
    pub(crate) held: Held,
    /// When its process, and the zygote that was to fork it, learned names of ports, services and
    /// chains.
    pub(crate) learned: Learned,
    pub(crate) removal: Removal,
    pub(crate) foreign: Option<Foreign>,
    pub(crate) counted: Counted,
    pub(crate) position: Position,
    pub(crate) request: PriorityRequest,
}

#[derive(Default)]
pub(crate) struct Held {
    /// A started program that started the NF's own process. It ends with the NF.
    pub(crate) wrapper: Option<Process>,
    pub(crate) connection: Option<OwnedFd>,
    /// Whether it has reported on this connection that its handler is made.
    pub(crate) has_said_ready: bool,
    /// Holds all processes that its process starts.
    pub(crate) pen: Option<Pen>,
    /// Number of the last load of its handlers for a packet thread.
    pub(crate) load: Option<u64>,
}

/// What a removal of an NF waits for.
#[derive(Default)]
pub(crate) struct Removal {
    /// Passed when packet threads send it nothing more. Until then, one may be about to.
    pub(crate) fence: Option<Fence>,
    /// Receivers to notify when it is gone.
    pub(crate) waiters: Vec<Sender<()>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    /// Number of the instance that it has succeeded.
    pub(crate) former: Option<u16>,
    /// Its id when flows are spread.
    pub(crate) spread_id: u64,
    /// Number of its instance in the placement, if it serves an SLO.
    pub(crate) instance: Option<u32>,
}

impl Nf {
    /// Its index among the instances of its service, from its name.
    pub(crate) fn index(&self) -> u32 {
        self.name.rsplit('.').next().and_then(|index| index.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn new(number: u16, service: u16, name: String, core: usize, life: Life) -> Self {
        Self {
            number,
            service,
            core,
            life,
            handle: None,
            place: None,
            process: None,
            held: Held::default(),
            learned: Learned::new(),
            removal: Removal::default(),
            foreign: None,
            counted: Counted::default(),
            position: Position { former: None, spread_id: restart_stable_id(&name), instance: None },
            request: PriorityRequest::default(),
            name,
        }
    }

    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    /// Kills its process. The end is noticed through its pidfd.
    pub(crate) fn kill(&self) {
        if let Some(handle) = &self.handle {
            // A parked process may be unable to die: it gets the core for that.
            handle.wants_core.store(true, Ordering::Relaxed);
        }
        if let Some(process) = &self.process {
            process.kill();
        }
    }

    pub(crate) fn terminate(&mut self) {
        self.removal.fence = None;
        if let Some(handle) = &self.handle {
            handle.wants_core.store(true, Ordering::Relaxed);
        }
        if let Some(process) = &self.process {
            process.terminate();
        }
    }

    /// Whether it runs in a packet thread, and has no process.
    pub(crate) fn is_inline(&self) -> bool {
        self.held.load.is_some()
    }

    pub(crate) fn is(&self, state: State) -> bool {
        self.life.state() == state
    }
}

/// An instance's id when flows are spread. It comes from the name, so that it stays the same over
/// restarts of NF and manager.
fn restart_stable_id(name: &str) -> u64 {
    // FNV-1a: any fixed hash will do.
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// All NFs, and their present and former numbers.
#[derive(Default)]
pub(crate) struct NfSet {
    nfs: BTreeMap<u16, Nf>,
    names: HashMap<String, u16>,
    /// How often one was added or removed.
    revision: u64,
    next: u16,
    /// Numbers of former NFs: those that paths may still name, and those that are free again.
    resting: Vec<u16>,
    free: Vec<u16>,
}

impl NfSet {
    /// Feeds an event to an NF's life, and returns the actions in their order. An event that its
    /// state forbids is refused and logged.
    pub(crate) fn on(&mut self, number: u16, event: Event) -> Vec<Action> {
        let Some(nf) = self.nfs.get_mut(&number) else { return Vec::new() };
        nf.life.on(monotonic_ns(), event).unwrap_or_else(|forbidden| {
            warn!("{}: {forbidden}", nf.name);
            Vec::new()
        })
    }

    /// Adds an NF. Its number comes from [`NfSet::next_number`].
    pub(crate) fn add(&mut self, nf: Nf) {
        self.revision += 1;
        self.names.insert(nf.name.clone(), nf.number);
        self.nfs.insert(nf.number, nf);
    }

    /// A number that is another one after each change of numbers and names.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<Nf> {
        let nf = self.nfs.remove(&number)?;
        self.revision += 1;
        // A service that was added again may have given the name to another one already.
        if self.names.get(&nf.name) == Some(&number) {
            self.names.remove(&nf.name);
        }
        Some(nf)
    }

    pub(crate) fn get(&self, number: &u16) -> Option<&Nf> {
        self.nfs.get(number)
    }

    pub(crate) fn get_mut(&mut self, number: &u16) -> Option<&mut Nf> {
        self.nfs.get_mut(number)
    }

    pub(crate) fn values(&self) -> Values<'_, u16, Nf> {
        self.nfs.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Nf> {
        self.nfs.values_mut()
    }

    /// Visits all NFs once, from a number on, until `each` returns false; returns that number.
    pub(crate) fn each_from(&mut self, from: u16, mut each: impl FnMut(&mut Nf) -> bool) -> Option<u16> {
        for part in [(Bound::Included(from), Bound::Unbounded), (Bound::Unbounded, Bound::Excluded(from))] {
            for (number, nf) in self.nfs.range_mut(part) {
                if !each(nf) {
                    return Some(*number);
                }
            }
        }
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.nfs.len()
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<u16> {
        self.names.get(name).copied()
    }

    pub(crate) fn know(&self, pid: Pid) -> bool {
        self.nfs.values().flat_map(|nf| nf.process.iter().chain(&nf.held.wrapper)).any(|process| process.pid == pid)
    }

    /// A number for a new NF: a free one that `fits`, else a new one.
    pub(crate) fn next_number(&mut self, fits: impl Fn(u16) -> bool) -> u16 {
        if let Some(at) = self.free.iter().position(|number| fits(*number)) {
            let number = self.free.swap_remove(at);
            // Another NF has the number now: its flows must not go to the former one's successor.
            self.nfs.values_mut().filter(|nf| nf.position.former == Some(number)).for_each(|nf| nf.position.former = None);
            return number;
        }
        while !fits(self.next) && self.next < u16::MAX - 3 {
            self.resting.push(self.next);
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }

    /// Whether there are numbers for this many more NFs.
    pub(crate) fn has_numbers_for(&self, more: u32) -> bool {
        u32::from(self.next) + more <= u32::from(u16::MAX - 2) + self.free.len() as u32
    }

    /// Takes a former number that no NF has now.
    pub(crate) fn take_number(&mut self, number: u16) {
        [&mut self.resting, &mut self.free].into_iter().for_each(|numbers| numbers.retain(|other| *other != number));
    }

    /// Adds numbers that no NF has any more and that paths may still name.
    pub(crate) fn rest(&mut self, numbers: impl IntoIterator<Item = u16>) {
        self.resting.extend(numbers);
    }

    pub(crate) fn rest_some(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Frees rested numbers for reuse.
    pub(crate) fn free_numbers(&mut self, is_free: impl Fn(u16) -> bool) {
        self.free.extend(self.resting.extract_if(.., |number| is_free(*number)));
    }
}
