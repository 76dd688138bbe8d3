//! NFs as the manager knows them.

pub mod handle;
