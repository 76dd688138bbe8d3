//! Kernel priorities of NFs of class rr: each follows the NF's present flow.
//!
//! Packet threads make no system call, and their assignments last milliseconds. So they note
//! assignments ([`Assigned`]), and a thread of its own reads them and sets the priority of each
//! process, only when it has changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Pid;

use super::Supervisor;
use sluice_api::config::{Sched, Service};
use sluice_dataplane::assigned::Assigned;
use sluice_dataplane::handle::NfHandle;
use sluice_host::class::{self, Class, ClassError};

/// Time between two checks while assignments come, and while none do.
const EVERY: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

const NUMBERS: usize = 1 << 16;

/// Priority of ordinary NFs in class rr: the lowest, below other real-time work.
const LOWEST: u8 = 1;

pub(super) fn class_of(handle: &NfHandle, downstream_first: bool) -> Class {
    Class::Rr(LOWEST + handle.rank(downstream_first))
}

/// The class of a process of class rr that is not an NF's own.
pub(super) const ORDINARY: Class = Class::Rr(LOWEST);

/// Weight of an instance of a service that asks for a priority, or for none. Those with a single
/// flow get the tenant's weight with it.
pub(super) fn own_priority(service: &Service, sched: &Sched, asked: Option<f64>) -> f64 {
    let tenant = service.tenant.as_deref().filter(|_| !service.is_pooled());
    service.priority_for(asked) * sched.priority_of(tenant)
}

#[derive(Debug)]
struct Known {
    handle: Arc<NfHandle>,
    pid: Pid,
    class: Class,
}

#[derive(Debug)]
struct Shared {
    assigned: Arc<Assigned>,
    nfs: Mutex<BTreeMap<u16, Known>>,
    downstream_first: bool,
    stop: AtomicBool,
}

impl Shared {
    fn nfs(&self) -> MutexGuard<'_, BTreeMap<u16, Known>> {
        self.nfs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the priorities of noted NFs. Returns whether there were any.
    fn look(&self) -> bool {
        self.assigned.take(|number| {
            let mut nfs = self.nfs();
            let Some(known) = nfs.get_mut(&number) else { return };
            let class = class_of(&known.handle, self.downstream_first);
            if class == known.class || !known.handle.alive.load(Ordering::Relaxed) {
                return;
            }
            match class::set(Path::new("/"), known.pid, class) {
                Ok(_) => known.class = class,
                // The end of its process is noticed elsewhere.
                Err(ClassError::NoProcess { .. }) => {}
                Err(error) => {
                    warn!("the priority of {} cannot be changed any more: {error}", known.handle.name);
                    nfs.remove(&number);
                }
            }
        })
    }
}

/// The thread that sets priorities.
#[derive(Debug)]
pub(super) struct Priorities {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Priorities {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if it makes no thread.
    pub(super) fn start(downstream_first: bool) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            assigned: Arc::new(Assigned::new(NUMBERS)),
            nfs: Mutex::default(),
            downstream_first,
            stop: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("sluice-priority".into()).spawn({
            let shared = shared.clone();
            move || {
                let mut quiet = 0u32;
                while !shared.stop.load(Ordering::Relaxed) {
                    std::thread::park_timeout(EVERY[usize::from(quiet > 1_000)]);
                    quiet = if shared.look() { 0 } else { quiet.saturating_add(1) };
                }
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The object to note assignments in.
    pub(super) fn assigned(&self) -> Arc<Assigned> {
        self.shared.assigned.clone()
    }

    /// Adds an NF whose process has a class.
    pub(super) fn add(&self, handle: Arc<NfHandle>, pid: Pid, class: Class) {
        let number = handle.number;
        self.shared.nfs().insert(number, Known { handle, pid, class });
        // It may have got a flow, or another position, before this.
        self.shared.assigned.add(number);
    }

    /// Sets the priority of an NF again, after a change of its weight.
    pub(super) fn update(&self, number: u16) {
        self.shared.assigned.add(number);
    }

    /// Removes an NF. Its process is not changed after the return.
    pub(super) fn remove(&self, number: u16) {
        self.shared.nfs().remove(&number);
    }
}

impl Drop for Priorities {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Supervisor {
    /// Checks the positions of NFs again after a change of the chains.
    pub(super) fn rank_again(&self) {
        if let Some(priorities) = self.tuning.priorities().filter(|_| self.config.sched.downstream_first) {
            let depths = self.published.tables.depths();
            for handle in self.nfs.values().filter_map(|nf| nf.handle.as_ref()) {
                // The packet threads do the same when they have the tables, which may be later.
                handle.place(&depths, true);
                priorities.shared.assigned.add(handle.number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_policy::sched::priority::Weight;

    use super::*;
    use sluice_dataplane::fake::{Fake, core_page};

    #[test]
    fn the_class_goes_by_service_flow_and_position() {
        let page = core_page(4);
        let handle = Fake { priority: 2.0, ..Fake::default() }.on(&page, 1);
        assert_eq!(class_of(&handle, true), Class::Rr(3));
        assert!(handle.assign(Weight::new(4.0)) && !handle.assign(Weight::new(4.0)));
        assert_eq!(class_of(&handle, true), Class::Rr(7));
        handle.place(&[2], true);
        assert_eq!((class_of(&handle, true), class_of(&handle, false)), (Class::Rr(9), Class::Rr(7)));
        assert_eq!((page.level(1), page.pressing(1)), (6, sluice_dataplane::fake::RING / 4));
    }

    #[test]
    fn a_service_of_a_tenant_is_worth_what_the_tenant_is() {
        let sched = Sched { tenants: [("gold".to_string(), 3.0)].into(), ..Sched::default() };
        let service = |more: &str| toml::from_str::<Service>(&format!("name = \"s\"\npriority = 2\n{more}")).unwrap();
        let own = |more: &str| own_priority(&service(more), &sched, None);
        assert_eq!(own(""), 2.0);
        assert_eq!(own("tenant = \"gold\""), 6.0);
        assert_eq!(own("tenant = \"tin\""), 2.0);
        assert_eq!(own("tenant = \"gold\"\nper = \"flow\""), 2.0);
        let bounds = service("tenant = \"gold\"\npriority_min = 1\npriority_max = 4");
        let asking = [0.001, 1.5, 4.0, 9.0].map(|asked| own_priority(&bounds, &sched, Some(asked)));
        assert_eq!(asking, [3.0, 4.5, 12.0, 12.0], "within its bounds");
        assert_eq!(own_priority(&service("priority_max = 4"), &sched, Some(1.0)), 2.0, "down to its own");
        assert_eq!(own_priority(&service(""), &sched, Some(9.0)), 2.0, "without bounds it cannot ask");
    }
}
