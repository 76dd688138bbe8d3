//! Lines of the log whose number NFs and strangers decide.

use sluice_host::attach;

/// Kinds of lines of which at most one a second is written ([`sluice_host::notice`]). Those about NFs are of a kind for each service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A connection to the NF socket was closed.
    Closed(std::mem::Discriminant<attach::Dropped>),
    /// A process that had no right to a name was refused.
    Impostor,
    /// An NF of a service has ended.
    Ended(u16),
    /// It is stopped for cause.
    Stopped(u16),
    /// It has said no hello because the host is busy.
    Starved,
    /// It is stopped because it said no hello.
    Silent(u16),
    /// It could not be started, or let in.
    Failed(u16),
    /// The same of its zygote.
    Zygote(u16),
    /// A port is in another state.
    Port(u16),
}
