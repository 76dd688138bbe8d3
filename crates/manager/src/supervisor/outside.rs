//! Schedules of cores with NFs that do not cooperate.
//!
//! A core has a schedule ([`sluice_turns`]) if a polling NF shares it, or if its mechanism is the
//! doorbell. All NFs of the core are in it: otherwise the kernel would leave them only what a
//! polling NF does not use. A polling NF that is alone on its core needs none.
//!
//! On a core with a packet thread, NFs have no real-time priorities: the thread that runs their
//! time slices would get only what they leave, which is nothing.
//!
//! An NF's former state (class, cgroup, running or not) is restored when it leaves a schedule, when
//! the daemon ends, and by the guard process if the daemon is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::process::Pid;
use sluice_policy::sched::workflow::{Settings, Why};
use sluice_shm::page::Counter;

use super::nfs::{Nf, State};
use super::{Supervisor, SupervisorError};
use crate::dataplane::PlaneError;
use sluice_api::config::{self as model, ByWhat, Drops, Mode};
use sluice_api::model as api;
use sluice_dataplane::hooks::Sharing;
use sluice_host::cgroup::processes_below;
use sluice_host::process::Proc;
use sluice_host::processes::auto;
use sluice_host::processes::guard::Guard;
use sluice_host::processes::realtime;
use sluice_host::processes::{self, Controller, Gates, Mechanism, Refused, Target, ThreadWatch};
use sluice_host::record::UNDO;
use sluice_turns::rings::Program;
use sluice_turns::{CoreSchedule, Counters};

/// The program that becomes the guard: this one.
const OURSELVES: &str = "/proc/self/exe";

#[derive(Default)]
pub(super) struct Outside {
    guard: Option<Arc<Guard>>,
    cores: BTreeMap<usize, Governed>,
    /// Cores that were refused a schedule; logged once.
    refused: BTreeSet<usize>,
    /// Whether an NF was not ready at the last check.
    look_again: bool,
    /// Whether NFs are not pinned yet: the next of the rare looks checks them again.
    look_later: bool,
    /// The choice for a core: mechanism, times of a switch, and reason. Measured once, as that
    /// occupies the core for a while.
    chosen: BTreeMap<usize, (Mechanism, SwitchTimes, String)>,
    /// Cores with an NF that cannot have a real-time class.
    without_realtime: BTreeSet<usize>,
    /// Processes of foreign NFs when they were added.
    processes: BTreeMap<u16, Vec<i32>>,
    /// Ticks until the next check of them.
    next_look: u32,
}

/// Ticks between two checks of the processes of foreign NFs, and of the guard.
const LOOK_EVERY: u32 = 25;

impl Outside {
    /// The guard, once a process was changed.
    pub(super) fn guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref()
    }

    /// Ends the guard. No NF is in a schedule any more.
    pub(super) fn end_guard(&mut self) {
        self.guard = None;
    }

    /// Whether new processes for a core start elsewhere: a polling NF would delay them there.
    pub(super) fn is_governed(&self, core: usize) -> bool {
        self.cores.get(&core).is_some_and(|governed| !governed.members.is_empty())
    }
}

struct Governed {
    mechanism: Mechanism,
    because: String,
    switch_ns: u64,
    counters: Arc<Counters>,
    /// Its NFs, each with a watch for changes of its threads.
    members: BTreeMap<u16, ThreadWatch>,
    /// NFs that cannot be in it; logged once.
    refused: BTreeSet<u16>,
}

/// All mechanisms, in the order in which they are tried. While an NF is stopped, those of the first
/// tier keep the core from all that it has forked, the second from what it has forked in slices.
const TIERS: [&[Mechanism]; 3] =
    [&[Mechanism::Realtime, Mechanism::Freeze], &[Mechanism::Freezer], &[Mechanism::Signal, Mechanism::Gate, Mechanism::Doorbell]];

/// A mechanism by its word; none for `auto` and `none`.
fn named(what: ByWhat) -> Option<Mechanism> {
    match what {
        ByWhat::Auto | ByWhat::None => None,
        ByWhat::Realtime => Some(Mechanism::Realtime),
        ByWhat::Freeze => Some(Mechanism::Freeze),
        ByWhat::Signal => Some(Mechanism::Signal),
        ByWhat::Freezer => Some(Mechanism::Freezer),
        ByWhat::Gate => Some(Mechanism::Gate),
        ByWhat::Doorbell => Some(Mechanism::Doorbell),
    }
}

/// What a switch takes on this host: as [`Settings::switch_ns`] and [`Settings::stop_ns`].
#[derive(Debug, Clone, Copy)]
struct SwitchTimes {
    switch_ns: u64,
    stop_ns: u64,
}

fn settings_of(config: &model::Workflow, SwitchTimes { switch_ns, stop_ns }: SwitchTimes) -> Settings {
    Settings {
        near: config.near,
        divisor: config.divisor,
        switch_ns,
        stop_ns,
        least_switches: config.least_switches,
        longest_wait_ns: u64::from(config.longest_wait_us) * 1_000,
        park_after_ns: u64::from(config.park_after_us) * 1_000,
    }
}

struct Chosen {
    controller: Box<dyn Controller>,
    because: String,
    times: SwitchTimes,
}

impl Supervisor {
    /// Refuses a configured mechanism that the host does not allow, before anything starts.
    pub(super) fn prepare_outside(&mut self, wanted: &model::Config) -> Result<(), SupervisorError> {
        let polls = |core: &usize| wanted.services.iter().any(|s| s.mode == Mode::Poll && s.cores.contains(core));
        let cores: BTreeSet<usize> = wanted.services.iter().flat_map(|s| s.cores.iter().copied()).filter(polls).collect();
        for core in cores {
            let is_threads = wanted.manager.cores().any(|thread| thread == core);
            if let Some(mechanism) = named(wanted.workflow.of_core(core)) {
                if mechanism == Mechanism::Realtime && is_threads {
                    return Err(SupervisorError::Invalid(format!(
                        "core {core} cannot have a schedule as [workflow] says: a packet thread of the manager runs there, which NFs of \
                         real-time priority would keep off it; choose another mechanism for it, or another core for one of them"
                    )));
                }
                let made = self.guard().and_then(|guard| processes::make(mechanism, &self.folder_of(core), &guard));
                // Dropped at once: it has no NFs.
                made.map_err(|refused| {
                    SupervisorError::Invalid(format!("core {core} cannot have a schedule as [workflow] says: {refused}"))
                })?;
            }
            // Measured now, while no packets move and no NF runs. A failure is tried again and
            // logged when the choice is needed.
            let instances: usize = wanted.services.iter().map(|service| service.most_on(core)).sum();
            if wanted.workflow.of_core(core) != ByWhat::None && instances > 1 {
                let foreign = wanted.services.iter().any(|s| s.is_foreign() && s.cores.contains(&core));
                if foreign || is_threads {
                    // A foreign program is in a cgroup that may have no real-time class.
                    self.outside.without_realtime.insert(core);
                }
                let _ = self.choose(core);
            }
        }
        Ok(())
    }

    /// Whether NFs of a core get time slices, as far as the services decide that.
    pub(super) fn has_turns(&self, core: usize) -> bool {
        let may_poll = |service: &model::Service| service.mode == Mode::Poll && service.cores.contains(&core);
        match self.config.workflow.of_core(core) {
            ByWhat::None => false,
            ByWhat::Doorbell => true,
            _ => self.services.iter().flatten().any(|service| may_poll(&service.config)),
        }
    }

    fn guard(&mut self) -> Result<Arc<Guard>, Refused> {
        match &self.outside.guard {
            Some(guard) if guard.is_alive() => Ok(guard.clone()),
            _ => Ok(self
                .outside
                .guard
                .insert(Guard::start_with(Path::new(OURSELVES), Some(&self.config.manager.runtime_dir.join(UNDO)))?)
                .clone()),
        }
    }

    fn folder_of(&self, core: usize) -> processes::Settings {
        processes::Settings::new(&format!("sluice-{}-core{core}", std::process::id()))
    }

    /// Checks all cores: adds NFs that have come, and releases those that are alone.
    pub(super) fn govern(&mut self) {
        self.outside.look_again = false;
        let mode = |nf: &Nf| Some(self.service_of(nf)?.config.mode);
        let polled: BTreeSet<usize> = self
            .nfs
            .values()
            .filter(|nf| match self.config.workflow.of_core(nf.core) {
                ByWhat::None => false,
                // For NFs that yield by themselves: configured core by core.
                ByWhat::Doorbell => nf.handle.is_some(),
                _ => nf.handle.is_some() && mode(nf) == Some(Mode::Poll),
            })
            .map(|nf| nf.core)
            .collect();
        let mut wanted: BTreeMap<usize, Vec<u16>> = BTreeMap::new();
        for nf in self.nfs.values().filter(|nf| polled.contains(&nf.core) && has_turns(nf)) {
            wanted.entry(nf.core).or_default().push(nf.number);
        }
        wanted.retain(|_, nfs| nfs.len() > 1);
        let cores: BTreeSet<usize> = wanted.keys().chain(self.outside.cores.keys()).copied().collect();
        for core in cores {
            let nfs = wanted.remove(&core).unwrap_or_default();
            let now = self.outside.cores.get(&core);
            let is_so = now.map_or(nfs.is_empty(), |governed| {
                nfs.iter().all(|nf| governed.members.contains_key(nf) || governed.refused.contains(nf))
                    && governed.members.keys().all(|nf| nfs.contains(nf))
            });
            if !is_so && !self.outside.refused.contains(&core) {
                self.regovern(core, &nfs);
            }
        }
    }

    /// Checks NFs again that were not ready.
    pub(super) fn govern_late(&mut self) {
        self.outside.next_look = self.outside.next_look.checked_sub(1).unwrap_or(LOOK_EVERY);
        if self.outside.next_look == 0 && !self.turns.stopping {
            self.look_after_schedules();
        }
        if self.outside.look_again {
            self.govern();
        }
        self.look_for_threads();
    }

    /// Adds threads that NFs with time slices have started. This reads folders.
    fn look_for_threads(&mut self) {
        // All are checked, because each change is reported once.
        let has_changed =
            |governed: &mut Governed| governed.members.values_mut().fold(false, |changed, watch| watch.has_changed() | changed);
        let changed = self.outside.cores.iter_mut().filter_map(|(core, governed)| has_changed(governed).then_some(*core));
        for core in changed.collect::<Vec<usize>>() {
            if let Ok(Some(mut schedule)) = self.lend_schedule(core) {
                schedule.look_again();
                self.put(schedule);
            }
        }
    }

    /// Puts exactly these NFs in the schedule of a core.
    fn regovern(&mut self, core: usize, nfs: &[u16]) {
        let mut schedule = match self.lend_schedule(core) {
            Ok(Some(schedule)) => schedule,
            Ok(None) if nfs.is_empty() => {
                self.outside.cores.remove(&core);
                return;
            }
            Ok(None) => match self.choose(core) {
                Ok(chosen) => {
                    let counters = Arc::new(Counters::default());
                    let settings = settings_of(&self.config.workflow, chosen.times);
                    let governed = Governed {
                        mechanism: chosen.controller.mechanism(),
                        because: chosen.because,
                        switch_ns: chosen.times.switch_ns,
                        counters: counters.clone(),
                        members: BTreeMap::new(),
                        refused: BTreeSet::new(),
                    };
                    self.outside.cores.insert(core, governed);
                    Box::new(CoreSchedule::new(core, chosen.controller, settings, counters))
                }
                Err(refused) => {
                    self.outside.refused.insert(core);
                    warn!("core {core} gets no schedule, and the kernel divides it among NFs that poll: {refused}");
                    return;
                }
            },
            Err(error) => {
                self.outside.cores.remove(&core);
                warn!("core {core} has lost its schedule: {error}");
                return;
            }
        };
        let Some(governed) = self.outside.cores.get_mut(&core) else { return };
        let leaving: Vec<u16> = governed.members.keys().filter(|nf| !nfs.contains(nf)).copied().collect();
        governed.refused.retain(|nf| nfs.contains(nf));
        for number in leaving {
            governed.members.remove(&number);
            self.outside.processes.remove(&number);
            if let Err(failed) = schedule.remove(number) {
                warn!("an NF of core {core} does not get back what it had: {failed}");
            }
        }
        let mechanism = governed.mechanism;
        for number in nfs {
            if !self.outside.cores.get(&core).is_some_and(|governed| governed.members.contains_key(number)) {
                self.take_in(core, mechanism, *number, &mut schedule);
            }
        }
        let is_refused = self.outside.cores.get(&core).is_some_and(|governed| !governed.refused.is_empty());
        let free = named(self.config.workflow.of_core(core)).is_none();
        if is_refused && free && mechanism == Mechanism::Realtime && self.outside.without_realtime.insert(core) {
            // An NF without real-time priority would get nothing beside others.
            drop(schedule);
            self.outside.cores.remove(&core);
            self.outside.chosen.remove(&core);
            self.regovern(core, nfs);
        } else if schedule.is_empty() {
            for failed in schedule.teardown() {
                warn!("the schedule of core {core} leaves something behind: {failed}");
            }
            self.outside.cores.remove(&core);
        } else {
            self.put(schedule);
        }
    }

    fn take_in(&mut self, core: usize, mechanism: Mechanism, number: u16, schedule: &mut CoreSchedule) {
        let Some(nf) = self.nfs.get(&number) else { return };
        let Some(handle) = nf.handle.clone() else { return };
        let is_ready = handle.region.page.counter(Counter::Ready).load(Ordering::Acquire) > 0;
        if !mechanism.works_uncooperatively() && !is_ready {
            // It has not reported yet whether it takes part.
            self.outside.look_again = true;
            return;
        }
        let proc = Proc::default();
        let target = match (&nf.foreign, &nf.process) {
            (Some(foreign), _) => {
                let pids = pids_of(&foreign.members());
                let target = foreign.target(&proc, &nf.name, &pids);
                self.outside.processes.insert(number, pids);
                target
            }
            (None, Some(process)) => {
                let with_gates = |target: Target| match Gates::of(&handle.region) {
                    Ok(gates) => target.with_gates(gates),
                    Err(_) => target,
                };
                let target = Target::of_pid(&proc, &nf.name, process.pid.as_raw_nonzero().get());
                target.map(|target| with_forks(nf, with_gates(target)))
            }
            (None, None) => return,
        };
        let depth = self.published.tables.depths().get(usize::from(nf.service)).copied().unwrap_or(0);
        let service = self.services.get(usize::from(nf.service)).and_then(Option::as_ref);
        let foreign = nf.foreign.as_ref().map(|foreign| {
            let is = |what: fn(&model::Service) -> bool| service.is_some_and(|service| what(&service.config));
            let eats = is(|service| service.drops == Drops::ByDesign);
            Program::new(foreign.counters(), is(model::Service::is_tap), eats)
        });
        let pid = nf.process.as_ref().map(|process| process.pid);
        let added = target.and_then(|target| {
            if mechanism == Mechanism::Realtime {
                target.check_pinned(core)?;
            }
            // Before its threads are listed, so that a thread that starts meanwhile is noticed.
            let watch = ThreadWatch::of(&proc, &target);
            schedule.add(&handle, &target, pid, foreign, depth).map(|()| watch)
        });
        let Some(governed) = self.outside.cores.get_mut(&core) else { return };
        match added {
            Ok(watch) => drop(governed.members.insert(number, watch)),
            // The library pins an NF that is started by hand, before it reports that it is ready.
            Err(Refused::Elsewhere { .. }) if nf.foreign.is_none() && !is_ready => self.outside.look_later = true,
            Err(refused) => {
                governed.refused.insert(number);
                let name = &handle.name;
                warn!("{name} has no turns on core {core}, and runs as the kernel has it: {refused}");
            }
        }
    }

    /// Chooses how to stop and start the NFs of a core.
    fn choose(&mut self, core: usize) -> Result<Chosen, Refused> {
        let guard = self.guard()?;
        let settings = self.folder_of(core);
        if let Some((mechanism, times, because)) = self.outside.chosen.get(&core).cloned() {
            return Ok(Chosen { controller: processes::make(mechanism, &settings, &guard)?, because, times });
        }
        let what = self.config.workflow.of_core(core);
        let foreign = self.nfs.values().any(|nf| nf.core == core && nf.foreign.is_some());
        let is_threads = self.config.manager.cores().any(|thread| thread == core);
        let without = foreign || is_threads || self.outside.without_realtime.contains(&core);
        let usual = auto::UNCOOPERATIVE.into_iter().filter(|mechanism| !without || *mechanism != Mechanism::Realtime);
        let wanted: Vec<Mechanism> = named(what).map_or(usual.collect(), |mechanism| vec![mechanism]);
        let (mut choice, mut reasons) = (auto::Choice::of(Vec::new()), Vec::new());
        for tier in TIERS {
            let some: Vec<Mechanism> = wanted.iter().copied().filter(|mechanism| tier.contains(mechanism)).collect();
            if choice.mechanism.is_some() {
                let left =
                    |mechanism: Mechanism| format!("{mechanism}: not tried, because processes that an NF has forked would run on");
                reasons.extend(some.into_iter().map(left));
            } else if !some.is_empty() {
                choice = auto::choose(&settings, &guard, Path::new(OURSELVES), core, &some);
                reasons.extend(choice.reasons());
            }
        }
        let reasons = reasons.join("; ");
        // A configured one is used, whatever the measurement.
        let Some(mechanism) = choice.mechanism.or(named(what)) else {
            return Err(Refused::NotHere { mechanism: Mechanism::Signal, what: reasons });
        };
        let usual = Settings::default();
        let times = SwitchTimes {
            switch_ns: choice.latency_ns().map_or(usual.switch_ns, |ns| ns as u64),
            stop_ns: choice.stop_ns().map_or(usual.stop_ns, |ns| ns as u64),
        };
        let because = if named(what).is_some() { format!("the configuration says so; {reasons}") } else { reasons };
        if mechanism == Mechanism::Realtime {
            for warning in realtime::warnings(&settings) {
                warn!("core {core}: {warning}");
            }
        }
        if let Some(why) = mechanism.outlives_a_kill() {
            warn!("core {core}: {why}");
        }
        self.outside.chosen.insert(core, (mechanism, times, because.clone()));
        Ok(Chosen { controller: processes::make(mechanism, &settings, &guard)?, because, times })
    }

    /// Releases all NFs of a core, and forgets its schedule.
    fn dissolve(&mut self, core: usize) {
        self.outside.cores.remove(&core);
        if let Ok(Some(mut schedule)) = self.lend_schedule(core) {
            for failed in schedule.teardown() {
                warn!("the schedule of core {core} leaves something behind: {failed}");
            }
        }
    }

    /// Replaces a guard that has ended too early, and updates foreign NFs with other processes.
    fn look_after_schedules(&mut self) {
        self.outside.look_again |= std::mem::take(&mut self.outside.look_later);
        if !self.outside.cores.is_empty() && self.outside.guard.as_ref().is_some_and(|guard| !guard.is_alive()) {
            warn!("the guard process has ended, which would undo what turns need if sluiced died; another one is started");
            self.outside.guard = None;
            let cores: Vec<usize> = self.outside.cores.keys().copied().collect();
            cores.into_iter().for_each(|core| self.dissolve(core));
            self.outside.look_again = true;
        }
        let now = |nf: &Nf| nf.foreign.as_ref().map(|foreign| pids_of(&foreign.members()));
        let changed = |(number, pids): (&u16, &Vec<i32>)| {
            let others = self.nfs.get(number).and_then(now).is_some_and(|now| now != *pids && !now.is_empty());
            others.then_some(*number)
        };
        let changed: Vec<u16> = self.outside.processes.iter().filter_map(changed).collect();
        for number in changed {
            self.outside.processes.remove(&number);
            let core = self.nfs.get(&number).map(|nf| nf.core);
            if let Some((core, Ok(Some(mut schedule)))) = core.map(|core| (core, self.lend_schedule(core))) {
                let _ = schedule.remove(number);
                if let Some(governed) = self.outside.cores.get_mut(&core) {
                    governed.members.remove(&number);
                }
                self.put(schedule);
                self.outside.look_again = true;
            }
        }
    }

    /// Releases an NF whose process has ended: its remains may be parked, or in its cgroup.
    pub(super) fn leave_schedule(&mut self, number: u16) {
        let Some(core) = self.nfs.get(&number).map(|nf| nf.core) else { return };
        if !self.outside.cores.get(&core).is_some_and(|governed| governed.members.contains_key(&number)) {
            return;
        }
        if let Ok(Some(mut schedule)) = self.lend_schedule(core) {
            // The guard restores what cannot be restored here.
            let _ = schedule.remove(number);
            if let Some(governed) = self.outside.cores.get_mut(&core) {
                governed.members.remove(&number);
            }
            self.put(schedule);
        }
    }

    /// Borrows a core's schedule. Until it is put back, the NF that has the core keeps it.
    fn lend_schedule(&self, core: usize) -> Result<Option<Box<CoreSchedule>>, PlaneError> {
        let sharing = self.plane.take_sharing(core)?;
        Ok(sharing.and_then(|sharing| sharing.into_any().downcast().ok()))
    }

    fn put(&mut self, schedule: Box<CoreSchedule>) {
        let core = schedule.core();
        if let Err(error) = self.plane.put_sharing(schedule) {
            self.outside.cores.remove(&core);
            warn!("core {core} has lost its schedule: {error}");
        }
    }

    pub(super) fn schedule_reports(&self) -> Vec<api::Schedule> {
        let report = |(core, governed): (&usize, &Governed)| api::Schedule {
            core: *core as u32,
            mechanism: governed.mechanism.name().into(),
            because: governed.because.clone(),
            switch_ns: governed.switch_ns,
            nfs: governed.members.keys().filter_map(|number| Some(self.nfs.get(number)?.name.clone())).collect(),
            turns: Why::ALL
                .into_iter()
                .map(|why| (why.name().to_string(), governed.counters.ended[why as usize].load(Ordering::Relaxed)))
                .collect(),
            controller_ns: governed.counters.controller_ns.load(Ordering::Relaxed),
            longest_wait_ns: governed.counters.longest_wait_ns.load(Ordering::Relaxed),
            wait_ns: api::Distribution::from(&governed.counters.waits_ns.snapshot()),
            failures: governed.counters.failures.load(Ordering::Relaxed),
        };
        self.outside.cores.iter().map(report).collect()
    }
}

/// An NF's process with its cgroup, if that is one that holds all that the process has forked.
fn with_forks(nf: &Nf, target: Target) -> Target {
    let pid = target.members()[0].raw();
    match nf.held.wrapper.as_ref().and_then(|wrapper| wrapper.container.as_ref()) {
        Some(container) => {
            let mut pids = Vec::new();
            let holds = |folder: &&PathBuf| processes_below(folder, &mut pids).is_ok() && pids.contains(&pid);
            match container.cgroup.as_ref().filter(holds) {
                Some(folder) => target.in_cgroup(folder),
                None => target,
            }
        }
        None => match nf.held.pen.as_ref().and_then(|pen| pen.folder_with(pid)) {
            Some(folder) => target.in_cgroup(folder).weighed_there(),
            None => target,
        },
    }
}

fn pids_of(members: &[Pid]) -> Vec<i32> {
    let mut pids: Vec<i32> = members.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    pids.sort_unstable();
    pids
}

/// Whether an NF has processes that can have time slices.
fn has_turns(nf: &Nf) -> bool {
    // One that makes its handler may need time slices for that.
    let has_begun = nf.is(State::Starting) && nf.foreign.is_none();
    let runs = (has_begun || matches!(nf.life().state(), State::Running | State::Stopping)) && nf.handle.is_some();
    runs && (nf.process.is_some() || nf.foreign.as_ref().is_some_and(|foreign| !foreign.members().is_empty()))
}
