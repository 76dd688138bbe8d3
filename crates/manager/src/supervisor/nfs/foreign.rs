//! The state of an NF that is a foreign program.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::process::Pid;
use sluice_shm::page::Counter;

use sluice_api::model as api;
use sluice_dataplane::handle::NfHandle;
use sluice_dataplane::hooks::FeedCounters;
use sluice_dataplane::port::WireEnd;
use sluice_foreign::namespace::ProcessSet;
use sluice_foreign::{Namespace, Wires};
use sluice_host::process::Proc;
use sluice_host::processes::{Refused, Target};

/// The additional state of a foreign NF.
#[derive(Default)]
pub(crate) struct Foreign {
    pub(crate) counters: Arc<FeedCounters>,
    /// The present life: results of former ones are late.
    pub(crate) life: u64,
    /// Its namespace, while it has one and no thread works in it.
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// The ends of its wires, until a packet thread has them.
    pub(crate) wires: Option<Wires>,
    /// Devices that share memory with it, until its namespace is built.
    pub(crate) devices: Vec<Box<dyn WireEnd>>,
    /// Number of the arena that its devices receive into while they are open.
    pub(crate) memory: Option<u8>,
    /// What the record has of it.
    pub(crate) noted: Vec<PathBuf>,
    /// Why it did not start.
    pub(crate) trouble: Option<String>,
    pub(crate) processes: ProcessSet,
    /// CPU time and packets when its cost was last reported.
    pub(crate) reported: (u64, u64),
    /// When its addresses are announced next, and how many times they were.
    pub(crate) announced: Option<(Instant, usize)>,
    /// When its interfaces were checked last.
    pub(crate) looked: Option<Instant>,
}

impl Foreign {
    /// Reports the cost of its packets, as an NF would itself, from the CPU time of its processes
    /// since their start, in nanoseconds.
    pub(crate) fn report_cost(&mut self, handle: &NfHandle, used_ns: u64) {
        let entered = self.counters.api.entered.get();
        let (before_ns, before) = std::mem::replace(&mut self.reported, (used_ns, entered));
        let (took, packets) = (used_ns.saturating_sub(before_ns), entered - before);
        if packets > 0 && took > 0 {
            handle.region.page.add(Counter::BusyNs, took);
            handle.region.page.add(Counter::Sampled, packets);
        }
    }

    /// Notes why it did not start, if no reason is noted yet.
    pub(crate) fn note_trouble(&mut self, why: impl FnOnce() -> String) {
        self.trouble.get_or_insert_with(why);
    }

    /// Why it did not start.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Number of the arena that its devices receive into.
    pub(crate) fn memory(&self) -> Option<u8> {
        self.memory
    }

    pub(crate) fn counters(&self) -> Arc<FeedCounters> {
        self.counters.clone()
    }

    pub(crate) fn members(&self) -> Vec<Pid> {
        self.processes.members()
    }

    /// These of its processes, to be stopped and run as one.
    ///
    /// # Errors
    /// As [`Target::of_pids`].
    pub(crate) fn target(&self, proc: &Proc, name: &str, pids: &[i32]) -> Result<Target, Refused> {
        self.processes.target(proc, name, pids)
    }

    /// A report of its counters. `by_design`: it is meant not to return packets.
    pub(crate) fn report(&self, by_design: bool) -> api::NfForeign {
        let counters = &self.counters;
        let mut report = api::NfForeign {
            inside: counters.inside.load(Ordering::Relaxed),
            by_design,
            processes: self.members().into_iter().map(|pid| pid.as_raw_nonzero().get() as u32).collect(),
            ..api::NfForeign::default()
        };
        report.add_counts(&counters.api.read());
        report
    }
}
