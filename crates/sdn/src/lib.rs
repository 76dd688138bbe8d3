//! The switch side of OpenFlow 1.3: an SDN controller decides about flows without an entry.
//!
//! One thread talks to the controller, by the protocol of [`sluice_openflow`]. Flow entries become
//! [`crate::advice`] ([`entry`]), which the Rx threads follow before the rules. Packets about which
//! they ask arrive in a bounded queue. So neither the controller nor its absence delays a packet.
//! Without a controller in the configuration nothing of this runs.
//! Limits: one table; outputs to chains, to the controller and to the rules (`NORMAL`), one for
//! each entry; no groups or meters. A change of entries re-decides every known flow, so changes in
//! quick succession take effect together. One controller at a time, by TCP without TLS.

// These macros panic when the output is closed; logging does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[macro_use]
extern crate tracing;

pub mod advice;
mod agent;
pub mod entry;
pub mod packet_in;
mod shared;
pub mod threads;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use sluice_shm::clock::monotonic_ns;

use shared::Seen;
pub use shared::{PortView, Topology};
use sluice_api::config as model;
use sluice_api::model as api;
use sluice_api::parse;
use threads::RxThreads;

/// The supervisor's handle of the agent.
pub struct Agent {
    config: model::Openflow,
    threads: RxThreads,
    seen: Arc<Seen>,
    topology: Sender<Topology>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts the thread, if the configuration names a controller.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(config: &model::Openflow, threads: Option<RxThreads>) -> std::io::Result<Option<Self>> {
        let (Some(threads), Some(address)) = (threads, config.controller.as_deref()) else { return Ok(None) };
        let address = parse::controller(address).map_err(std::io::Error::other)?;
        let seen = Arc::new(Seen::default());
        seen.since_ns.store(monotonic_ns(), Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let (topology, changes) = channel();
        let agent = agent::Speaker::new(config.clone(), address, threads.clone(), changes, seen.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("sluice-openflow".into()).spawn(move || agent.run())?;
        Ok(Some(Self { config: config.clone(), threads, seen, topology, stop, thread: Some(thread) }))
    }

    /// Reports the present ports and chains to the agent.
    pub fn update(&self, topology: Topology) {
        // The thread may have ended.
        let _ = self.topology.send(topology);
    }

    pub fn status(&self) -> api::Openflow {
        let seen = &self.seen;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let since_ns = monotonic_ns().saturating_sub(count(&seen.since_ns));
        api::Openflow {
            controller: self.config.controller.clone().unwrap_or_default(),
            datapath_id: format!("{:016x}", self.config.datapath_id),
            connected: seen.connected.load(Ordering::Relaxed),
            since_s: since_ns as f64 / 1e9,
            problem: seen.problem.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            connections: count(&seen.connections),
            packet_ins: count(&seen.packet_ins),
            dropped_packet_ins: count(&seen.unread) + self.threads.line().missed(),
            flow_mods: count(&seen.flow_mods),
            errors: count(&seen.errors),
            entries: count(&seen.entries),
            held: self.threads.line().held(),
        }
    }

    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}
