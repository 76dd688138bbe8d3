//! Configuration: one TOML file, typed, validated before anything takes effect.
//!
//! [`sluice_api::config`] holds the types and [`schema`] describes them. [`load`] reads a file.
//! [`validate`] checks what can be known without the host, [`on_host`] checks the rest. [`diff`]
//! finds what has to change on a running daemon, and [`edit`] changes single keys. [`fuse`] makes
//! groups of fused chains. [`estimates`] is the file that `[manager] estimates` names.
//! Every [`problem`] has the same form: where, what, and what to do.

#![warn(missing_docs)]

pub mod changes;
pub mod class;
pub mod container;
pub mod diff;
pub mod edit;
pub mod estimates;
pub mod fuse;
pub mod host;
pub mod load;
pub mod on_host;
mod privileges;
pub mod problem;
pub mod schema;
pub mod socket;
pub mod tenancy;
pub mod validate;

pub use problem::{ConfigErrors, Problem};

#[cfg(test)]
#[path = "../../api/src/in_the_tree.rs"]
mod in_the_tree;
#[cfg(test)]
mod tests;
