//! The life of a network function's process: [`spawn`](sluice_host::spawn) starts it, by itself or as an OCI runtime
//! that starts its [`container`](sluice_host::container), [`attach`](sluice_host::attach) meets it, [`output`] logs what it says,
//! [`record`](sluice_host::record) remembers it for the next manager.

pub mod death;
pub mod output;
