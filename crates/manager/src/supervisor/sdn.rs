//! The SDN controller: who speaks with it ([`sluice_sdn`]), and what that is told of ports and chains.

use std::sync::Arc;

use super::{PortState, Supervisor};
use crate::dataplane::{DataPlane, RxThread, threads_of};
use sluice_api::config::Config;
use sluice_api::model as api;
use sluice_dataplane::steer::ChooseChain;
use sluice_sdn::adviser::Adviser;
use sluice_sdn::asker::{Asker, Line};
use sluice_sdn::{Agent, PortView, Topology};

/// What there is for an SDN controller.
#[derive(Default)]
pub(super) struct Sdn {
    /// Packets that the Rx threads ask about. None if the configuration names no controller.
    line: Option<Arc<Line>>,
    agent: Option<Agent>,
}

impl Sdn {
    /// What a configuration asks for. Nobody speaks with the controller yet.
    pub(super) fn new(config: &Config) -> Self {
        let threads = threads_of(&config.manager).len();
        let line = config.openflow.controller.is_some().then(|| Arc::new(Line::new(&config.openflow, threads)));
        Self { line, agent: None }
    }

    /// What an Rx thread asks about flows, if there is a controller.
    pub(super) fn chooser(&self, config: &Config, rx: RxThread) -> Option<Box<dyn ChooseChain>> {
        let line = self.line.clone()?;
        Some(Box::new(Asker::new(line, &config.openflow, rx.thread, rx.part.of)))
    }

    /// Starts the agent, if there is a controller.
    ///
    /// # Errors
    /// The system's, if it makes no thread.
    pub(super) fn start(&mut self, config: &Config, plane: &DataPlane) -> std::io::Result<()> {
        let adviser = self.line.clone().map(|line| Adviser::new(line, plane.rx_commands()));
        self.agent = Agent::start(&config.openflow, adviser)?;
        Ok(())
    }

    /// Ends the agent.
    pub(super) fn stop(&mut self) {
        self.agent = None;
    }

    /// Whether somebody speaks with a controller.
    pub(super) fn is_there(&self) -> bool {
        self.agent.is_some()
    }

    /// How the controller is spoken with.
    pub(super) fn status(&self) -> Option<api::Openflow> {
        self.agent.as_ref().map(Agent::status)
    }
}

impl Supervisor {
    /// Says to the agent what ports and chains there are.
    pub(super) fn tell_agent(&self) {
        let Some(agent) = &self.published.sdn.agent else { return };
        let port = |(number, port): (usize, &Option<PortState>)| {
            let port = port.as_ref()?;
            let counters = port.counters.clone();
            Some(PortView { number: number as u16, name: port.config.name.clone(), counters })
        };
        let ports = self.ports.iter().enumerate().filter_map(port).collect();
        agent.tell(Topology { ports, chains: self.chains.iter().flatten().cloned().collect() });
    }
}
