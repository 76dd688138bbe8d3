//! The protocol between a manager and a zygote.
//!
//! A *zygote* is a process of a service that has made its handler and has no packets, rings or
//! threads: instances are forked from it. It connects as an NF does ([`crate::handshake`]) and gets
//! no memory:
//!
//! 1. Zygote: [`Hello`] with `is_zygote`.
//! 2. Manager: [`Surroundings`], or a refusal.
//! 3. Zygote, when its handler is ready: [`ZygoteReport::Ready`], or [`ZygoteReport::Unfit`] and it
//!    leaves.
//! 4. For each instance, manager: [`Fork`], with a pipe for standard output and error; zygote:
//!    [`ZygoteReport::Forked`], with the child's pidfd if it has one, or [`ZygoteReport::Failed`].
//!    The child has the zygote's parent, leaves this connection and attaches as every NF does, by
//!    the name that the manager chose.
//!
//! All messages use one socket. Closing either end ends the zygote, but not its children.

use std::os::fd::{AsFd, OwnedFd};

use crate::handshake::{Answer, HandshakeError, Hello, MESSAGE, NAME, Reader, header, receive, send};

/// Variable that starts a program as a zygote.
pub const ENV_ZYGOTE: &str = "SLUICE_ZYGOTE";

const SURROUNDINGS: u32 = 5;
const FORK: u32 = 6;
const READY: u32 = 7;
const UNFIT: u32 = 8;
const FORKED: u32 = 9;
const FAILED: u32 = 10;
/// The manager's refusal of a hello; see [`Answer`].
const REFUSAL: u32 = 3;

/// Where the zygote's children will run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// The zygote's name, such as `ids.zygote`.
    pub name: String,
    /// Names of the ports, by number. The name of an unused number is empty.
    pub ports: Vec<String>,
    /// Names of the services, by number.
    pub services: Vec<String>,
    /// Names of the chains, by number.
    pub chains: Vec<String>,
}

impl Surroundings {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = header(SURROUNDINGS);
        out.text(&self.name);
        [&self.ports, &self.services, &self.chains].into_iter().for_each(|texts| out.texts(texts));
        out.0
    }

    /// Decodes bytes from a manager.
    ///
    /// # Errors
    /// [`HandshakeError::NotSluice`], [`HandshakeError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = Reader(bytes);
        if input.header()? != SURROUNDINGS {
            return Err(HandshakeError::NotSluice);
        }
        Ok(Self { name: input.text(NAME)?, ports: input.texts()?, services: input.texts()?, chains: input.texts()? })
    }
}

/// A request for one more instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// Name of the instance, such as `ids.7`.
    pub name: String,
}

impl Fork {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = header(FORK);
        out.text(&self.name);
        out.0
    }

    /// Decodes bytes from a manager.
    ///
    /// # Errors
    /// As [`Surroundings::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = Reader(bytes);
        if input.header()? != FORK {
            return Err(HandshakeError::NotSluice);
        }
        Ok(Self { name: input.text(NAME)? })
    }
}

/// A zygote's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZygoteReport {
    /// Its handler is ready: it can be forked.
    Ready,
    /// It cannot be forked, with the reason.
    Unfit(String),
    /// An instance was forked.
    Forked {
        /// Its name.
        name: String,
        /// Its process.
        pid: i32,
    },
    /// An instance could not be forked.
    Failed {
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
}

impl ZygoteReport {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let of = |kind, texts: &[&str]| {
            let mut out = header(kind);
            texts.iter().for_each(|text| out.text(text));
            out
        };
        match self {
            Self::Ready => of(READY, &[]).0,
            Self::Unfit(why) => of(UNFIT, &[why]).0,
            Self::Forked { name, pid } => {
                let mut out = of(FORKED, &[name]);
                out.u32(pid.cast_unsigned());
                out.0
            }
            Self::Failed { name, why } => of(FAILED, &[name, why]).0,
        }
    }

    /// Decodes bytes from a zygote.
    ///
    /// # Errors
    /// As [`Surroundings::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = Reader(bytes);
        Ok(match input.header()? {
            READY => Self::Ready,
            UNFIT => Self::Unfit(input.text(MESSAGE)?),
            FORKED => Self::Forked { name: input.text(NAME)?, pid: input.u32()?.cast_signed() },
            FAILED => Self::Failed { name: input.text(NAME)?, why: input.text(MESSAGE)? },
            _ => return Err(HandshakeError::NotSluice),
        })
    }
}

/// The zygote's half of the handshake: sends its hello on a connected socket, awaits the answer.
///
/// # Errors
/// [`HandshakeError::Refused`] with the manager's reason, and the socket's errors.
pub fn attach(socket: &OwnedFd, name: &str) -> Result<Surroundings, HandshakeError> {
    send(socket.as_fd(), &Hello { name: name.into(), is_zygote: true }.encode(), &[])?;
    let (message, _) = receive(socket.as_fd())?;
    if let Ok(REFUSAL) = Reader(&message).header()
        && let Answer::Refusal(why) = Answer::decode(&message)?
    {
        return Err(HandshakeError::Refused(why));
    }
    Surroundings::decode(&message)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn what_is_said_is_understood() {
        let surroundings =
            Surroundings { name: "ids.zygote".into(), ports: vec!["lan".into(), String::new()], ..Surroundings::default() };
        assert_eq!(Surroundings::decode(&surroundings.encode()).unwrap(), surroundings);
        let fork = Fork { name: "ids.7".into() };
        assert_eq!(Fork::decode(&fork.encode()).unwrap(), fork);
        for report in [
            ZygoteReport::Ready,
            ZygoteReport::Unfit("it has threads".into()),
            ZygoteReport::Forked { name: "ids.7".into(), pid: i32::MAX },
            ZygoteReport::Failed { name: "ids.7".into(), why: "no memory".into() },
        ] {
            assert_eq!(ZygoteReport::decode(&report.encode()).unwrap(), report);
            assert!(Fork::decode(&report.encode()).is_err());
        }
        let hello = Hello { name: "ids.zygote".into(), is_zygote: true };
        assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
    }

    #[test]
    fn a_zygote_gets_its_surroundings_or_the_reason_why_not() {
        let surroundings = Surroundings { name: "ids.zygote".into(), ..Surroundings::default() };
        for (answer, expected) in [
            (surroundings.encode(), Ok(surroundings)),
            (Answer::Refusal("no".into()).encode(), Err("the manager refused: no".to_owned())),
        ] {
            let (nf, manager) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            send(manager.as_fd(), &answer, &[]).unwrap();
            assert_eq!(attach(&nf, "ids.zygote").map_err(|error| error.to_string()), expected);
            let (message, _) = receive(manager.as_fd()).unwrap();
            assert!(Hello::decode(&message).unwrap().is_zygote);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 4u32..12) {
            let mut framed = header(kind).0;
            framed.extend(&bytes);
            for bytes in [&bytes, &framed] {
                let _ = (Surroundings::decode(bytes), Fork::decode(bytes), ZygoteReport::decode(bytes));
            }
        }
    }
}
