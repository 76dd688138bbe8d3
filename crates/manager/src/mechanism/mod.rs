//! Mechanisms: how the manager makes the kernel do what a policy decided.

pub mod affinity;
pub mod announce;
pub mod cgroup;
pub mod class;
pub mod link;
pub mod netns;
pub mod process;
pub mod processes;
pub mod redirect;
pub mod silence;
