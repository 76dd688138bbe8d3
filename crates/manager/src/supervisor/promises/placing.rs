//! Puts assignments in force: begins, waits for new instances, finishes or gives up.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use sluice_shm::clock::monotonic_ns;
use sluice_shm::page::Counter;
use sluice_slo::assignment::{Assignment, Promised};
use sluice_slo::placement::Instance;

use super::{Kept, PlaceResult, Placing, PromiseKeeper, check_profiles, sockets};
use crate::supervisor::change::Gone;
use crate::supervisor::nfs::{Nf, State};
use crate::supervisor::{Supervisor, SupervisorError};
use sluice_api::promise::Placed;
use sluice_config::diff::Change;
use sluice_promises::classes::{Capacity, ClassesError};
use sluice_promises::kept;
use sluice_promises::overlay::Overlaid;

/// Longest time until new instances are ready.
const READY_PATIENCE: Duration = Duration::from_secs(20);

/// Whether an assignment takes ways from a class that an SLO has now and keeps.
fn takes_away(promises: &PromiseKeeper, assignment: &Assignment, room: Option<Capacity>) -> bool {
    let wanted = promises.steering.clone().lay_out(assignment, room);
    let all = promises.kept.as_ref().map_or(0, |kept| kept.assignment.server.shape.llc_ways);
    let shrinks = |instance: &Instance| {
        let class = promises.steering.class_of(instance).0;
        // An instance with the whole cache is in no class.
        let whole = Some(instance.ways).filter(|ways| *ways >= all);
        let before = whole.or_else(|| promises.classes.classes().get(&class).copied()).unwrap_or(0);
        wanted.get(&class).copied().unwrap_or(0) < before
    };
    let stays = |slo: &str| assignment.slos.iter().any(|promised| promised.slo.name == slo);
    let now = promises.kept.iter().flat_map(|kept| &kept.assignment.server.instances);
    now.filter(|instance| stays(&instance.slo)).any(shrinks)
}

impl PromiseKeeper {
    /// Keeps an assignment instead of the former one.
    fn take_over(&mut self, assignment: Assignment, overlaid: Overlaid) {
        for slo in assignment.slos.iter().map(|promised| &promised.slo) {
            let limit = self.limit(&assignment, slo);
            let bucket = self.buckets.entry(slo.name.clone()).or_default();
            bucket.limit(monotonic_ns(), limit);
        }
        let is_promised = |name: &String| assignment.slos.iter().any(|promised| promised.slo.name == *name);
        self.buckets.retain(|name, bucket| {
            if !is_promised(name) {
                bucket.limit(monotonic_ns(), None);
            }
            is_promised(name)
        });
        // Observations of other SLOs do not apply to these.
        let before = self.kept.as_ref().map_or(&[][..], |kept| &kept.assignment.slos);
        let same = |name: &str| {
            let of =
                |slos: &[Promised]| slos.iter().find(|promised| promised.slo.name == name).map(|promised| promised.slo.promise);
            of(before).is_some() && of(before) == of(&assignment.slos)
        };
        self.watch.forget_unless(same);
        self.last.retain(|name, _| same(name));
        let Overlaid { services, base, notes, .. } = overlaid;
        self.kept = Some(Kept { assignment, services, base, notes }).filter(|kept| !kept.assignment.slos.is_empty());
        self.steering.follow(self.kept.as_ref().map(|kept| &kept.assignment));
        self.troubles.clear();
    }
}

impl Supervisor {
    /// Begins to put a requested assignment in force; its outcome goes to the receiver.
    pub(in crate::supervisor) fn begin_placing(
        &mut self,
        assignment: Assignment,
    ) -> Result<Receiver<PlaceResult>, SupervisorError> {
        let told = self.begin(assignment)?;
        self.promises.steering.ask_anew();
        // The outcome of an instance that was being added belongs to the former placement.
        self.promises.adding = None;
        Ok(told)
    }

    /// Begins to put an assignment in force.
    pub(in crate::supervisor) fn begin(&mut self, assignment: Assignment) -> Result<Receiver<PlaceResult>, SupervisorError> {
        self.not_placing()?;
        let invalid = |why: &dyn std::fmt::Display| SupervisorError::Invalid(format!("{why}; the placement before stands"));
        assignment.check().map_err(|error| invalid(&error))?;
        if let Some(name) = self.promises.settings.server.as_ref().filter(|name| **name != assignment.server.name) {
            return Err(invalid(&format!("the placement is for server \"{}\", and this is \"{name}\"", assignment.server.name)));
        }
        let base = self.promises.base(&self.config);
        let overlaid = self.overlaid(&base, &assignment).map_err(|error| invalid(&error))?;
        self.can_have_sockets(&overlaid).map_err(|error| invalid(&error))?;
        check_profiles(&base, &assignment).map_err(|error| invalid(&error))?;
        self.promises.classes.check(&assignment).map_err(|error| invalid(&error))?;
        let changes = self.plan_as_is(&overlaid.config).map_err(|error| invalid(&error))?;
        self.has_room_for(self.starts(&changes))?;

        let before = self.promises.classes.classes().clone();
        let room = self.promises.classes.room();
        let own = self.promises.steering.all_own().clone();
        let is_late = takes_away(&self.promises, &assignment, room);
        let opened = self.open_sockets(&sockets::attaching(&overlaid.config, &overlaid.services)).map_err(|error| invalid(&error));
        let ready = opened.and_then(|()| match is_late {
            true => Ok(()),
            false => self.change_classes(&assignment).map_err(|error| invalid(&error)),
        });
        if let Err(error) = ready {
            self.close_sockets(&self.attaching_now());
            return Err(error);
        }
        let (reply, told) = channel();
        let until = Instant::now() + READY_PATIENCE;
        let (started, beside, changed) = (Vec::new(), Vec::new(), Vec::new());
        let placing = Placing { assignment, started, beside, classes: before, own, is_late, changes: changed, until, reply };
        self.promises.placing = Some(placing);
        for change in &changes {
            if let Err(error) = self.start_for_placing(change) {
                self.abandon_placing();
                return Err(error);
            }
        }
        self.publish();
        Ok(told)
    }

    /// Changes the classes to those of an assignment. If one is refused, all are as before.
    fn change_classes(&mut self, assignment: &Assignment) -> Result<(), ClassesError> {
        let room = self.promises.classes.room();
        let own = self.promises.steering.all_own().clone();
        let wanted = self.promises.steering.lay_out(assignment, room);
        // An instance that loses its own class moves to the shared one before that is removed.
        self.attend();
        let changed = self.promises.classes.change(wanted);
        if changed.is_err() {
            self.promises.steering.put_back(own);
            self.promises.steering.made(self.promises.classes.classes());
            self.attend();
        }
        changed
    }

    fn start_for_placing(&mut self, change: &Change) -> Result<(), SupervisorError> {
        match change {
            Change::AddService { service } => {
                self.add_service(service.clone())?;
                self.promises.placing.iter_mut().for_each(|placing| {
                    placing.started.push(service.name.clone());
                    placing.changes.push(sluice_config::changes::describe(change, &self.config));
                });
            }
            Change::ChangeInstances { service, instances, cores, .. } => {
                let Some(number) = self.service_number(service) else { return Ok(()) };
                let (starts, _) = self.turnover(service, *instances, cores);
                for core in starts {
                    let nf = self.start_beside(number, core)?;
                    self.promises.placing.iter_mut().for_each(|placing| placing.beside.push(nf));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins to put an empty assignment in force.
    pub(in crate::supervisor) fn begin_withdrawing(&mut self) -> Result<Receiver<PlaceResult>, SupervisorError> {
        self.not_placing()?;
        let Some(kept) = &self.promises.kept else {
            let nothing = || SupervisorError::NoSuch("nothing is placed here".into());
            // A placement that could not be restored after a restart is withdrawn too.
            let path = self.promises.settings.placement.clone().filter(|path| path.exists()).ok_or_else(nothing)?;
            kept::write(&path, None).map_err(|error| SupervisorError::Invalid(error.to_string()))?;
            self.promises.troubles.clear();
            let (reply, told) = channel();
            let _ = reply.send(Ok((Placed { changes: Vec::new(), notes: self.promises.notes() }, Gone::new())));
            return Ok(told);
        };
        let mut nothing = kept.assignment.clone();
        nothing.server.instances.clear();
        nothing.slos.clear();
        self.begin_placing(nothing)
    }

    /// Sends packets to new instances when they are ready, and gives up if they will not be.
    pub(in crate::supervisor) fn go_on_placing(&mut self) {
        let Some(placing) = self.promises.placing.as_ref().filter(|_| !self.turns.stopping) else { return };
        let numbers = placing.started.iter().filter_map(|name| self.service_number(name));
        let services = numbers.filter_map(|number| self.services[number as usize].as_ref());
        let all = services.flat_map(|service| &service.instances).chain(&placing.beside);
        // One that attaches comes when the placement is in force.
        let is_ours = |nf: &&Nf| self.service_of(nf).is_none_or(|service| !service.config.attach);
        let nfs: Vec<&Nf> = all.filter_map(|number| self.nfs.get(number)).filter(is_ours).collect();
        let is_ready = |nf: &&Nf| {
            // Acquire: pairs with the library's store when its handler is made.
            let is_made =
                |h: &sluice_dataplane::handle::NfHandle| h.region.page.counter(Counter::Ready).load(Ordering::Acquire) > 0;
            nf.is(State::Running) && (nf.foreign.is_some() || nf.handle.as_deref().is_some_and(is_made))
        };
        if nfs.iter().all(is_ready) {
            self.finish_placing();
            return;
        }
        let ended =
            nfs.iter().find(|nf| nf.life().restarts() > 0 || matches!(nf.life().state(), State::Failed | State::Restarting));
        let why = match ended {
            Some(nf) => format!("{} ended before it was ready: run its program by hand with its arguments to see why", nf.name),
            None if Instant::now() >= placing.until => format!("its NFs are not ready after {} s", READY_PATIENCE.as_secs()),
            None => return,
        };
        if let Some(placing) = self.abandon_placing() {
            let why = format!("the placement is not taken, and the one before stands: {why}");
            let _ = placing.reply.send(Err(SupervisorError::Conflict(why)));
        }
    }

    /// Undoes the beginnings of an assignment.
    fn abandon_placing(&mut self) -> Option<Placing> {
        let placing = self.promises.placing.take()?;
        for name in &placing.started {
            let _ = self.remove_service(name);
        }
        placing.beside.iter().for_each(|nf| self.retire(*nf));
        self.close_sockets(&self.attaching_now());
        if let Err(error) = self.promises.classes.change(placing.classes.clone()) {
            warn!("{error}");
        }
        self.promises.steering.put_back(placing.own.clone());
        self.promises.steering.made(self.promises.classes.classes());
        self.attend();
        self.publish();
        Some(placing)
    }

    /// Puts an assignment in force whose instances are ready.
    fn finish_placing(&mut self) {
        let Some(placing) = &self.promises.placing else { return };
        let (assignment, beside, is_late) = (placing.assignment.clone(), placing.beside.len(), placing.is_late);
        let (changes, overlaid) = match self.plan_anew(&assignment, beside, is_late) {
            Ok(planned) => planned,
            Err(error) => {
                if let Some(placing) = self.abandon_placing() {
                    let _ = placing.reply.send(Err(error));
                }
                return;
            }
        };
        let Some(mut placing) = self.promises.placing.take() else { return };
        let attaching = sockets::attaching(&overlaid.config, &overlaid.services);
        self.promises.take_over(assignment, overlaid);
        self.close_sockets(&attaching);
        placing.beside.iter().for_each(|nf| self.count_in(*nf));
        // Before they get packets.
        self.attend();
        placing.changes.extend(changes.iter().map(|change| sluice_config::changes::describe(change, &self.config)));
        let result: Result<Gone, SupervisorError> = changes.iter().try_fold(Gone::new(), |mut gone, change| {
            gone.extend(self.step(change)?);
            Ok(gone)
        });
        self.publish();
        if result.is_ok() {
            self.keep_placement();
        }
        self.attend();
        self.promises.windows.restart(monotonic_ns());
        let placed = Placed { changes: std::mem::take(&mut placing.changes), notes: self.promises.notes() };
        let _ = placing.reply.send(result.map(|gone| (placed, gone)));
    }

    /// Plans an assignment once more: something else may have changed while its instances started.
    fn plan_anew(
        &mut self,
        assignment: &Assignment,
        beside: usize,
        is_late: bool,
    ) -> Result<(Vec<Change>, Overlaid), SupervisorError> {
        let overlaid = self.overlaid(&self.promises.base(&self.config), assignment);
        let overlaid = overlaid.map_err(|error| SupervisorError::Conflict(error.to_string()))?;
        let changes = self.plan_as_is(&overlaid.config)?;
        // More would start than stand ready: an instance was lost, or another change was made.
        if self.starts(&changes) as usize > beside {
            let why = "services have changed while the placement was taken, and the one before stands; place it anew";
            return Err(SupervisorError::Conflict(why.into()));
        }
        if is_late {
            self.change_classes(assignment)
                .map_err(|error| SupervisorError::Invalid(format!("{error}; the placement before stands")))?;
        }
        Ok((changes, overlaid))
    }

    /// Saves the placement for a restart, if that is configured.
    fn keep_placement(&mut self) {
        let Some(path) = &self.promises.settings.placement else { return };
        if let Err(error) = kept::write(path, self.promises.kept.as_ref().map(|kept| &kept.assignment)) {
            self.promises.trouble(format!("the placement is not kept over a restart: {error}"));
        }
    }

    /// Begins to restore the placement from before a restart. Packets flow meanwhile.
    pub(in crate::supervisor) fn restore_placement(&mut self) {
        let Some(path) = self.promises.settings.placement.clone() else { return };
        let began = match kept::read(&path) {
            Ok(None) => return,
            Ok(Some(assignment)) => self.begin_placing(assignment).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match began {
            Ok(outcome) => self.promises.restoring = Some(outcome),
            Err(why) => self.promises.not_restored(&why),
        }
    }

    /// Handles the outcome of the restoration.
    pub(in crate::supervisor) fn see_restored(&mut self) {
        let Some(outcome) = &self.promises.restoring else { return };
        match outcome.try_recv() {
            Err(TryRecvError::Empty) => return,
            Ok(Err(error)) => self.promises.not_restored(&error.to_string()),
            Ok(Ok(_)) | Err(TryRecvError::Disconnected) => {}
        }
        self.promises.restoring = None;
    }
}
