//! The life of an NF process: [`spawn`](sluice_host::spawn) starts it, directly or through an OCI
//! runtime that starts its [`container`](sluice_host::container), [`attach`](sluice_host::attach)
//! connects it, [`output`] logs its output, [`record`](sluice_host::record) keeps it for the next
//! manager.

pub mod death;
pub mod output;
