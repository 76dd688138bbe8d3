//! The life of a network function's process: [`spawn`](sluice_host::spawn) starts it, by itself or as an OCI runtime
//! that starts its [`container`](sluice_host::container), [`attach`] meets it, [`output`] logs what it says,
//! [`record`](sluice_host::record) remembers it for the next manager.

pub mod attach;
pub mod death;
pub mod output;
