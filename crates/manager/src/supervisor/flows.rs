//! Flows: what the supervisor begins and ends of their metering.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use sluice_api::ApiError;
use sluice_api::config::FlowLogConfig;
use sluice_api::model::{self as api, MAX_FLOWS};
use sluice_config::diff::living_flow_log;
use sluice_dataplane::meter::{FlowMeter, MeterSettings, MeteredFlows, meter};

use super::backend::Remote;
use super::{Supervisor, SupervisorError};
use crate::capture::filter::PacketFilter;
use crate::flows::{FORGET, FlowLog, FlowNames, FlowOutputs, FlowSource};
use crate::threads::join_within;

/// Longest wait for the log at the end: all flows are written then, and a disk may hang.
const WRITTEN: Duration = Duration::from_secs(30);

/// The log of flows, while flows are metered.
pub(super) struct FlowKeeper {
    log: Arc<FlowLog>,
    thread: JoinHandle<()>,
    /// The revision of the names that it has.
    named: (u32, u64),
}

fn meter_settings(config: &FlowLogConfig) -> MeterSettings {
    MeterSettings { flows: config.flows as usize, idle_ns: config.idle_ms * 1_000_000, active_ns: config.active_ms * 1_000_000 }
}

/// The meters of all packet threads, and what they count.
#[derive(Default)]
struct Meters {
    #[expect(clippy::vec_box, reason = "a packet thread gets one as it is")]
    meters: Vec<Box<FlowMeter>>,
    flows: Vec<Arc<MeteredFlows>>,
}

impl Meters {
    /// Takes time: the memory of all flows is written.
    fn new(config: &FlowLogConfig, threads: usize) -> Self {
        let settings = meter_settings(config);
        let (meters, flows) = (0..threads).map(|_| meter(settings)).unzip();
        Self { meters, flows }
    }
}

impl FlowSource for Remote {
    fn ask_names(&self) {
        self.hand(Box::new(|supervisor| supervisor.name_flows()));
    }

    fn ask_end(&self) {
        self.hand(Box::new(|supervisor| {
            if supervisor.seen.flows.as_ref().is_some_and(|keeper| !keeper.log.is_kept() && keeper.log.silence() >= FORGET) {
                // It ends by itself.
                drop(supervisor.end_metering());
            }
        }));
    }
}

/// What a request for flows finds.
struct Found {
    /// None: flows are not metered yet.
    log: Option<Arc<FlowLog>>,
    names: FlowNames,
    config: FlowLogConfig,
    threads: usize,
}

impl Remote {
    /// Answers a request for flows, from whose first on they are metered.
    pub(super) fn look_at_flows(&self, request: &api::FlowsRequest) -> Result<api::FlowsReply, ApiError> {
        let filter = PacketFilter::asked(&request.filter)?;
        if request.limit == 0 || request.limit > MAX_FLOWS {
            let what = format!("cannot report {} flows", request.limit);
            return Err(ApiError::unprocessable(what, format!("ask for 1 to {MAX_FLOWS}")));
        }
        let asked = request.clone();
        let Found { log, names, config, threads } = self.change(move |supervisor| supervisor.find_flows(&asked))?;
        let log = match log {
            Some(log) => log,
            None => {
                // The supervisor does not wait for the memory.
                let meters = Meters::new(&config, threads);
                self.change(move |supervisor| supervisor.begin_metering(FlowOutputs::default(), meters))?
            }
        };
        Ok(log.answer(request, filter.as_ref(), names))
    }
}

impl Supervisor {
    /// Begins to log flows, if the configuration asks for it.
    pub(super) fn start_flow_log(&mut self, outputs: FlowOutputs) -> Result<(), SupervisorError> {
        if outputs.is_some() {
            let meters = Meters::new(&self.config.flow_log, self.plane.threads());
            self.begin_metering(outputs, meters)?;
        }
        Ok(())
    }

    /// Has flows be logged elsewhere, and end after other times. Those that are metered go on.
    pub(super) fn change_flow_log(&mut self, wanted: FlowLogConfig) -> Result<(), SupervisorError> {
        let outputs = self.changes.outputs.take().map_or_else(|| FlowOutputs::open(&wanted), Ok)?;
        let now = living_flow_log(&self.config.flow_log, &wanted);
        let former = std::mem::replace(&mut self.config.flow_log, now);
        let Some(keeper) = &self.seen.flows else {
            return self.start_flow_log(outputs).inspect_err(|_| self.config.flow_log = former);
        };
        keeper.log.write_to(outputs);
        let MeterSettings { idle_ns, active_ns, .. } = meter_settings(&wanted);
        (0..self.plane.threads()).for_each(|thread| self.plane.send(thread, move |worker| worker.time_meter(idle_ns, active_ns)));
        Ok(())
    }

    /// Ends the log of flows; those that go on are logged as stopped.
    pub(super) fn stop_flow_log(&mut self) {
        let Some(thread) = self.end_metering() else { return };
        if !join_within(thread, WRITTEN) {
            let waited = WRITTEN.as_secs();
            warn!(
                "the log of flows has not taken the last ones within {waited} s and is left; see whether the disk of its file hangs"
            );
        }
    }

    fn find_flows(&self, request: &api::FlowsRequest) -> Result<Found, SupervisorError> {
        if let Some(chain) = &request.chain {
            self.chain_number(chain).ok_or_else(|| self.no_such("chain", chain))?;
        }
        if let Some(tenant) = &request.tenant
            && !self.config.services.iter().any(|service| service.tenant.as_ref() == Some(tenant))
        {
            return Err(SupervisorError::NoSuch(format!("no service is of a tenant \"{tenant}\"; see `sluice tenant list`")));
        }
        Ok(Found {
            log: self.seen.flows.as_ref().map(|keeper| keeper.log.clone()),
            names: self.flow_names(),
            config: self.config.flow_log.clone(),
            threads: self.plane.threads(),
        })
    }

    /// Gives each packet thread its meter, unless flows are metered already.
    fn begin_metering(&mut self, outputs: FlowOutputs, meters: Meters) -> Result<Arc<FlowLog>, SupervisorError> {
        if let Some(keeper) = &self.seen.flows {
            return Ok(keeper.log.clone());
        }
        let Meters { meters, flows } = meters;
        let named = self.names_revision();
        let (log, thread) = FlowLog::start(flows, outputs, self.flow_names(), self.remote())?;
        for (thread, meter) in meters.into_iter().enumerate() {
            // It has had none: the former one was given back before.
            self.plane.send(thread, move |worker| drop(worker.meter(meter)));
        }
        self.seen.flows = Some(FlowKeeper { log: log.clone(), thread, named });
        Ok(log)
    }

    /// Has the packet threads give their meters back, and the log end. Returns its thread.
    fn end_metering(&mut self) -> Option<JoinHandle<()>> {
        let FlowKeeper { log, thread, .. } = self.seen.flows.take()?;
        let end = |thread| {
            let (to, meter) = channel();
            let flows = log.flows_of(thread)?.clone();
            self.plane.send(thread, move |worker| drop(to.send(worker.end_meter(&flows))));
            Some(meter)
        };
        log.end((0..self.plane.threads()).filter_map(end).collect());
        Some(thread)
    }

    /// What the log has counted, if the configuration asks for one.
    pub(super) fn flow_log_counts(&self) -> Option<api::FlowLogCounts> {
        self.seen.flows.as_ref().filter(|keeper| keeper.log.is_kept()).map(|keeper| keeper.log.counts())
    }

    /// Flows for the latencies of a chain, while flows are metered.
    pub(super) fn exemplars(&self, chain: &str) -> Vec<api::Exemplar> {
        self.seen.flows.as_ref().map_or_else(Vec::new, |keeper| keeper.log.exemplars(chain))
    }

    /// Gives the log the names that there are now, unless it has them.
    fn name_flows(&mut self) {
        let now = self.names_revision();
        let Some(keeper) = &self.seen.flows else { return };
        if keeper.named == now {
            return keeper.log.keep_names();
        }
        keeper.log.name(self.flow_names());
        if let Some(keeper) = &mut self.seen.flows {
            keeper.named = now;
        }
    }

    /// Another one after each change of [`Self::flow_names`]: NFs have names without new tables.
    fn names_revision(&self) -> (u32, u64) {
        (self.published.tables.generation, self.nfs.revision())
    }

    fn flow_names(&self) -> FlowNames {
        let tenant = |service: &u16| self.services.get(usize::from(*service))?.as_ref()?.config.tenant.clone();
        let of_chains = self.chains.iter().flatten();
        let tenants = of_chains.filter_map(|chain| Some((chain.number, chain.services.iter().find_map(tenant)?))).collect();
        FlowNames { hops: self.names(), tenants }
    }
}
