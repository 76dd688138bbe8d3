//! Errors of an NF that could not start, or had to leave.

use std::path::PathBuf;

use sluice_shm::handshake::HandshakeError;
use sluice_shm::memory::MemoryError;

/// Why an NF could not attach to its manager.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No manager socket is named.
    #[error(
        "no manager socket is named: let sluiced start this NF (a [[service]] with `exec`), or set SLUICE_SOCKET or --sluice-socket to the nf.sock in its runtime_dir"
    )]
    NoSocket,
    /// No NF name is given.
    #[error(
        "this NF has no name: set SLUICE_NF or --sluice-nf to its service (such as ids) or its instance (such as ids.0) in the manager's configuration"
    )]
    NoName,
    /// The socket does not answer.
    #[error("cannot connect to the manager at {path}: {source}; is sluiced running, and may this user open its socket?")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: rustix::io::Errno,
    },
    /// A zygote in pull style owns its loop, so the library cannot tell when it is initialised.
    #[error(
        "an NF in pull style cannot be forked from a zygote: the library cannot tell when it is initialised; write it in callback style, or leave `zygote` out of its service"
    )]
    PullZygote,
    /// The manager refused, or its message is not valid.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// What the manager passed could not be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Why an NF ended other than by a clean stop.
#[derive(Debug, thiserror::Error)]
pub enum NfError {
    /// It could not attach.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Its handler could not be made.
    #[error("{0}")]
    Handler(Box<dyn std::error::Error>),
    /// Its handler panicked; the current burst went back as dropped.
    #[error("the handler panicked; its burst was dropped and every frame returned: {0}")]
    Panicked(String),
    /// Its handler reported an error; the current burst went back as dropped.
    #[error("the handler failed with code {0}; its burst was dropped and every frame returned")]
    Failed(i32),
    /// The manager closed its socket.
    #[error("the manager is gone; start this NF again when it is back")]
    ManagerGone,
    /// The manager wrote an impossible value.
    #[error("the manager's side of the shared memory is broken ({0}); build both sides from the same release and report this")]
    Broken(&'static str),
}
