//! A stand-in for the kernel's resctrl, for tests, with the kernel's refusals.
//!
//! ```no_run
//! let machine = sluice_resctrl_stand_in::Machine::default();
//! let resctrl = sluice_resctrl_stand_in::StandIn::mount(machine).unwrap();
//! std::fs::create_dir(resctrl.path().join("web")).unwrap();
//! assert!(std::fs::write(resctrl.path().join("web/schemata"), "L3:0=5\n").is_err());
//! ```
//! The module `kernel` documents its answers and its limits. It needs root and `/dev/fuse`.

mod kernel;
mod machine;
mod mount;
#[path = "../../../host/src/skip.rs"]
mod skip;

pub use kernel::{Count, Errno, Kernel, NodeKind};
pub use machine::{Bandwidth, Machine, Monitoring};
pub use mount::StandIn;
