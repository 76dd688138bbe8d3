//! Timelines: what the supervisor gives them to sample, and the flight recorder.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::backend::Remote;
use super::nfs::Nf;
use super::{Supervisor, SupervisorError};
use crate::control::Pieces;
use crate::controller::events::EventLog;
use crate::timeline::flight::FlightRecorder;
use crate::timeline::kept;
use crate::timeline::live::LiveTimeline;
use crate::timeline::sampler::{NfSubject, Subjects};
use crate::timeline::watcher::{Ask, Watcher};
use sluice_api::ApiError;
use sluice_api::config::Recorder;
use sluice_api::model::{self as api, MAX_TIMELINE_HZ, MAX_TIMELINE_MS, MAX_TIMELINES, MIN_TIMELINE_HZ};

/// Asks the supervisor, and waits for nothing.
fn asks(remote: Remote) -> Ask {
    Box::new(move || {
        let (to, answer) = channel();
        remote.hand(Box::new(move |supervisor| drop(to.send(supervisor.subjects()))));
        answer
    })
}

fn unreadable(folder: &Path, error: &io::Error) -> ApiError {
    ApiError::internal(format!("cannot read {} (recorder.folder): {error}", folder.display()))
}

impl Remote {
    /// Begins a recording.
    pub(super) fn begin_timeline(&self, request: &api::RecordRequest) -> Result<Pieces, ApiError> {
        if request.duration_ms == 0 || request.duration_ms > MAX_TIMELINE_MS {
            let what = format!("cannot record for {} ms", request.duration_ms);
            return Err(ApiError::unprocessable(what, format!("ask for 1 to {MAX_TIMELINE_MS} ms")));
        }
        if !(MIN_TIMELINE_HZ..=MAX_TIMELINE_HZ).contains(&request.rate_hz) {
            let what = format!("cannot take {} samples a second", request.rate_hz);
            return Err(ApiError::unprocessable(what, format!("ask for {MIN_TIMELINE_HZ} to {MAX_TIMELINE_HZ}")));
        }
        let (place, subjects, log) = self.change(Supervisor::plan_timeline)?;
        let period = Duration::from_secs(1) / request.rate_hz;
        let watcher = Watcher::new(period, asks(self.clone()), log);
        Ok(Box::new(LiveTimeline::new(watcher, subjects, period, Duration::from_millis(request.duration_ms), place)))
    }

    /// The files of the flight recorder, oldest first.
    pub(super) fn kept_timelines(&self) -> Result<Vec<api::Timeline>, ApiError> {
        let folder = self.call(|supervisor| supervisor.config.recorder.folder.clone())?;
        kept::list(&folder).map_err(|error| unreadable(&folder, &error))
    }

    /// One of these files.
    pub(super) fn kept_timeline(&self, name: &str) -> Result<Pieces, ApiError> {
        let folder = self.call(|supervisor| supervisor.config.recorder.folder.clone())?;
        match kept::read(&folder, name).map_err(|error| unreadable(&folder, &error))? {
            Some(pieces) => Ok(Box::new(pieces)),
            None => {
                let all = kept::list(&folder).unwrap_or_default();
                let known: Vec<&str> = all.iter().map(|known| known.name.as_str()).collect();
                Err(ApiError::not_found("timeline", name, &known))
            }
        }
    }
}

impl Supervisor {
    /// Gives a recording its place among those at a time, and what it begins with.
    fn plan_timeline(&mut self) -> Result<(Arc<()>, Subjects, Arc<EventLog>), SupervisorError> {
        self.seen.timelines.retain(|other| other.strong_count() > 0);
        if self.seen.timelines.len() >= MAX_TIMELINES {
            let what = format!("{MAX_TIMELINES} recordings go on, the most at a time; try again when one has ended");
            return Err(SupervisorError::Conflict(what));
        }
        let place = Arc::new(());
        self.seen.timelines.push(Arc::downgrade(&place));
        Ok((place, self.subjects(), self.controller.events().clone()))
    }

    /// Starts a flight recorder, if the configuration asks for one.
    ///
    /// # Errors
    /// [`SupervisorError::Invalid`]: its folder takes no file, or there is no memory or thread.
    pub(super) fn make_recorder(&self, wanted: &Recorder) -> Result<Option<FlightRecorder>, SupervisorError> {
        if wanted.memory_mib == 0 {
            return Ok(None);
        }
        let folder = &wanted.folder;
        let unfinished = kept::unfinished_name();
        kept::prepare(folder, &unfinished).map_err(|error| {
            let folder = folder.display();
            SupervisorError::Invalid(format!("cannot write into {folder}: {error}; set recorder.folder to another folder"))
        })?;
        let log = self.controller.events().clone();
        let started = FlightRecorder::start(wanted, unfinished, asks(self.remote()), log);
        started.map(Some).map_err(|error| {
            SupervisorError::Invalid(format!("cannot start the flight recorder: {error}; set recorder.memory_mib to less, or to 0"))
        })
    }

    /// Goes over to another flight recorder; the former one writes what is due, and ends.
    pub(super) fn change_recorder(&mut self, wanted: Recorder) -> Result<(), SupervisorError> {
        let started = match self.changes.recorder.take() {
            Some(ahead) => Some(ahead),
            None => self.make_recorder(&wanted)?,
        };
        self.seen.former_recorders.retain(|former| !former.has_ended());
        if let Some(mut former) = std::mem::replace(&mut self.seen.recorder, started) {
            former.end();
            self.seen.former_recorders.push(former);
        }
        self.config.recorder = wanted;
        Ok(())
    }

    /// What there is to sample.
    fn subjects(&self) -> Subjects {
        let subject = |nf: &Nf| {
            let handle = nf.handle.clone()?;
            let is_foreign = nf.foreign.is_some();
            let service = self.services.get(usize::from(nf.service)).and_then(Option::as_ref);
            // Foreign NFs of all tenants have one page of their core.
            let tenant = service.filter(|_| !is_foreign).and_then(|service| service.config.tenant.clone());
            Some(NfSubject { handle, tenant, is_process: !is_foreign && !nf.is_inline() })
        };
        let chains = self.chains.iter().flatten().map(|chain| (chain.name.clone(), chain.counters.clone()));
        let ports = self.ports.iter().flatten().map(|port| (port.config.name.clone(), port.counters.clone()));
        Subjects { nfs: self.nfs.values().filter_map(subject).collect(), chains: chains.collect(), ports: ports.collect() }
    }
}
