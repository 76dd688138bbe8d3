//! The SDN controller's agent ([`sluice_sdn`]), and the ports and chains that are reported to it.

use std::sync::Arc;

use super::{PortState, Supervisor};
use crate::dataplane::{DataPlane, RxThread, threads_of};
use sluice_api::config::Config;
use sluice_api::model as api;
use sluice_dataplane::steer::ChooseChain;
use sluice_sdn::packet_in::{Line, PacketIns};
use sluice_sdn::threads::RxThreads;
use sluice_sdn::{Agent, PortView, Topology};

#[derive(Default)]
pub(super) struct Sdn {
    /// Packets that the Rx threads send to the controller; none without a controller.
    line: Option<Arc<Line>>,
    agent: Option<Agent>,
}

impl Sdn {
    /// The state of a configuration, before the agent is started.
    pub(super) fn new(config: &Config) -> Self {
        let threads = threads_of(&config.manager).len();
        let line = config.openflow.controller.is_some().then(|| Arc::new(Line::new(&config.openflow, threads)));
        Self { line, agent: None }
    }

    /// The chooser that sends an Rx thread's new flows to the controller, if there is one.
    pub(super) fn chooser(&self, config: &Config, rx: RxThread) -> Option<Box<dyn ChooseChain>> {
        let line = self.line.clone()?;
        Some(Box::new(PacketIns::new(line, &config.openflow, rx.thread, rx.part.of)))
    }

    /// Starts the agent, if there is a controller.
    ///
    /// # Errors
    /// The system's, if it makes no thread.
    pub(super) fn start(&mut self, config: &Config, plane: &DataPlane) -> std::io::Result<()> {
        let threads = self.line.clone().map(|line| RxThreads::new(line, plane.rx_commands()));
        self.agent = Agent::start(&config.openflow, threads)?;
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        self.agent = None;
    }

    /// Whether the agent of a controller runs.
    pub(super) fn is_there(&self) -> bool {
        self.agent.is_some()
    }

    /// The state of the connection to the controller.
    pub(super) fn status(&self) -> Option<api::Openflow> {
        self.agent.as_ref().map(Agent::status)
    }
}

impl Supervisor {
    pub(super) fn update_agent(&self) {
        let Some(agent) = &self.published.sdn.agent else { return };
        let port = |(number, port): (usize, &Option<PortState>)| {
            let port = port.as_ref()?;
            let counters = port.counters.clone();
            Some(PortView { number: number as u16, name: port.config.name.clone(), counters })
        };
        let ports = self.ports.iter().enumerate().filter_map(port).collect();
        agent.update(Topology { ports, chains: self.chains.iter().flatten().cloned().collect() });
    }
}
