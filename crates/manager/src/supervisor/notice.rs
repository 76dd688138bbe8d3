//! Kinds of log lines whose number NFs and strangers decide.

use sluice_host::attach;

/// A kind of lines, of which at most [`BURST`](sluice_host::notice::BURST) are written in
/// [`EVERY`](sluice_host::notice::EVERY). Kinds about NFs are separate for each service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NoticeKind {
    Closed(std::mem::Discriminant<attach::Dropped>),
    /// A process without the right to a name was refused.
    Impostor,
    /// The same by the socket of an SLO.
    Refused,
    /// Something in the runtime directory was removed, and is there again.
    Restored,
    /// The same, and it could not be made.
    Unrestored,
    Ended(u16),
    /// An NF was stopped for cause.
    Stopped(u16),
    /// An NF has not sent its hello because the host is busy.
    Starved,
    /// An NF was stopped because it sent no hello.
    Silent(u16),
    /// An NF could not be started or admitted.
    Failed(u16),
    /// The same for its zygote.
    Zygote(u16),
    Port(u16),
}
