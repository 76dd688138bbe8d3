//! How an NF and the manager meet: one message each way over a SOCK_SEQPACKET Unix socket.
//!
//! 1. The NF connects to the manager's socket (`SLUICE_SOCKET` holds the path) and sends [`Hello`].
//! 2. The manager answers [`Welcome`] with the descriptors of the arena of the NF's tenant, the
//!    NF's region and its core page, or [`Answer::Refusal`].
//! 3. When its handler is ready the NF sends [`ready`]. It gets no packets before.
//! 4. The socket stays open. When the NF's end closes, the NF has left.
//!
//! | state | may become | by |
//! |---|---|---|
//! | expected (spawned or `attach = true`) | attached | a valid hello |
//! | expected | failed | the process ends, or no hello in time |
//! | attached | ready | its message that its handler is ready |
//! | ready | draining | removal, or the manager's stop: the NF's `Stop` word is set |
//! | attached, ready, draining | gone | its process ends or its socket closes: frames reclaimed |
//!
//! Forbidden: a hello for an attached NF (one process a name), and a second hello on one socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::LAYOUT_VERSION;
use crate::arena::Geometry;
use crate::page::RegionLayout;

/// First word of every message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"slu1");

/// Longest name of a service, an NF, a port or a chain, in bytes.
pub const NAME: usize = 63;

/// Variable that holds the path of the manager's socket.
pub const ENV_SOCKET: &str = "SLUICE_SOCKET";

/// Variable that holds the name of the NF, such as `ids.0`.
pub const ENV_NF: &str = "SLUICE_NF";

pub(crate) const MESSAGE: usize = 32 * 1024;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The socket failed or was closed.
    #[error("the connection to the manager broke: {0}")]
    Socket(#[from] rustix::io::Errno),
    /// The message is not one of this protocol.
    #[error("the peer sent something that is not a Sluice handshake")]
    NotSluice,
    /// The other side was built from another version.
    #[error("the peer speaks layout version {theirs}, this side {LAYOUT_VERSION}; build both from the same release")]
    Version {
        /// The peer's version.
        theirs: u32,
    },
    /// The manager refused, with its reason.
    #[error("the manager refused: {0}")]
    Refused(String),
}

/// First message of an NF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Name of the NF, such as `ids.0`, or of its service: then the manager picks a free instance.
    pub name: String,
    /// Whether it is a zygote instead of an NF: see [`crate::zygote`].
    pub is_zygote: bool,
}

/// The manager's answer. The descriptors of arena, region and core page come with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// How frames lie in the arena of the NF's tenant.
    pub geometry: Geometry,
    /// The layout of the region.
    pub region: RegionLayout,
    /// Slots of the core page.
    pub slots: u32,
    /// This NF's slot.
    pub slot: u32,
    /// Whether NFs of the core page that go to sleep start the next one.
    pub hands_over: bool,
    /// This NF's name.
    pub name: String,
    /// Processor that the NF belongs on; `u32::MAX` for any.
    pub core: u32,
    /// Whether the NF never sleeps.
    pub poll: bool,
    /// Nanoseconds for which the NF goes on looking for work before it sleeps.
    pub linger_ns: u32,
    /// Scale of the clock ([`crate::clock::Clock::with_scale`]), so that the NF need not calibrate.
    pub clock_scale: u64,
    /// Names of the ports, by number. The name of an unused number is empty.
    pub ports: Vec<String>,
    /// Names of the services, by number.
    pub services: Vec<String>,
    /// Names of the chains, by number.
    pub chains: Vec<String>,
}

/// An answer of the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The NF is accepted.
    Welcome(Box<Welcome>),
    /// The NF is refused, with the reason.
    Refusal(String),
}

#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend_from_slice(text.as_bytes());
    }
    pub(crate) fn texts(&mut self, texts: &[String]) {
        self.u32(texts.len() as u32);
        texts.iter().for_each(|t| self.text(t));
    }
}

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(HandshakeError::NotSluice)?;
        self.0 = rest;
        Ok(*head)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, HandshakeError> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64, HandshakeError> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    pub(crate) fn text(&mut self, longest: usize) -> Result<String, HandshakeError> {
        let len = self.u32()? as usize;
        if len > longest || len > self.0.len() {
            return Err(HandshakeError::NotSluice);
        }
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| HandshakeError::NotSluice)
    }
    pub(crate) fn texts(&mut self) -> Result<Vec<String>, HandshakeError> {
        let n = self.u32()? as usize;
        if n > self.0.len() {
            return Err(HandshakeError::NotSluice);
        }
        (0..n).map(|_| self.text(NAME)).collect()
    }
    pub(crate) fn header(&mut self) -> Result<u32, HandshakeError> {
        if self.u32()? != MAGIC {
            return Err(HandshakeError::NotSluice);
        }
        let theirs = self.u32()?;
        if theirs != LAYOUT_VERSION {
            return Err(HandshakeError::Version { theirs });
        }
        self.u32()
    }
}

pub(crate) fn header(kind: u32) -> Writer {
    let mut out = Writer::default();
    out.u32(MAGIC);
    out.u32(LAYOUT_VERSION);
    out.u32(kind);
    out
}

const HELLO: u32 = 1;
const WELCOME: u32 = 2;
const REFUSAL: u32 = 3;
const ZYGOTE_HELLO: u32 = 4;
const READY: u32 = 5;

/// The message of an NF whose handler is ready for packets.
pub fn ready() -> Vec<u8> {
    header(READY).0
}

/// Whether a message from an NF is that of [`ready`].
pub fn is_ready(message: &[u8]) -> bool {
    Reader(message).header().is_ok_and(|kind| kind == READY)
}

impl Hello {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = header(if self.is_zygote { ZYGOTE_HELLO } else { HELLO });
        out.text(&self.name);
        out.0
    }

    /// Decodes bytes from a peer.
    ///
    /// # Errors
    /// [`HandshakeError::NotSluice`], [`HandshakeError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = Reader(bytes);
        let is_zygote = match input.header()? {
            HELLO => false,
            ZYGOTE_HELLO => true,
            _ => return Err(HandshakeError::NotSluice),
        };
        Ok(Self { name: input.text(NAME)?, is_zygote })
    }
}

impl Answer {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Refusal(why) => {
                let mut out = header(REFUSAL);
                out.text(why);
                out.0
            }
            Self::Welcome(w) => {
                let mut out = header(WELCOME);
                out.u32(w.geometry.first);
                out.u32(w.geometry.frames);
                out.u32(w.geometry.stride);
                out.u64(w.region.magic);
                for word in
                    [w.region.version, w.region.bytes, w.region.rx_rings, w.region.capacity, w.region.rings, w.region.reserved]
                {
                    out.u32(word);
                }
                for word in [w.slots, w.slot, u32::from(w.hands_over), w.core, u32::from(w.poll), w.linger_ns] {
                    out.u32(word);
                }
                out.u64(w.clock_scale);
                out.text(&w.name);
                for texts in [&w.ports, &w.services, &w.chains] {
                    out.texts(texts);
                }
                out.0
            }
        }
    }

    /// Decodes bytes from a manager.
    ///
    /// # Errors
    /// [`HandshakeError::NotSluice`], [`HandshakeError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut input = Reader(bytes);
        match input.header()? {
            REFUSAL => Ok(Self::Refusal(input.text(MESSAGE)?)),
            WELCOME => {
                let geometry = Geometry { first: input.u32()?, frames: input.u32()?, stride: input.u32()? };
                let region = RegionLayout {
                    magic: input.u64()?,
                    version: input.u32()?,
                    bytes: input.u32()?,
                    rx_rings: input.u32()?,
                    capacity: input.u32()?,
                    rings: input.u32()?,
                    reserved: input.u32()?,
                };
                let (slots, slot, hands_over) = (input.u32()?, input.u32()?, input.u32()? != 0);
                let (core, poll, linger_ns) = (input.u32()?, input.u32()? != 0, input.u32()?);
                let clock_scale = input.u64()?;
                let name = input.text(NAME)?;
                let (ports, services, chains) = (input.texts()?, input.texts()?, input.texts()?);
                if !geometry.is_valid() || !region.is_valid() || slot >= slots {
                    return Err(HandshakeError::NotSluice);
                }
                Ok(Self::Welcome(Box::new(Welcome {
                    geometry,
                    region,
                    slots,
                    slot,
                    hands_over,
                    name,
                    core,
                    poll,
                    linger_ns,
                    clock_scale,
                    ports,
                    services,
                    chains,
                })))
            }
            _ => Err(HandshakeError::NotSluice),
        }
    }
}

/// Sends one message with file descriptors (at most 4).
///
/// # Errors
/// The socket's errors.
pub fn send(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), HandshakeError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == message.len() { Ok(()) } else { Err(HandshakeError::NotSluice) }
}

/// Receives one message and its file descriptors. Extra descriptors are closed.
///
/// # Errors
/// The socket's errors; [`HandshakeError::NotSluice`] if the message was cut or the peer closed.
pub fn receive(socket: BorrowedFd<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), HandshakeError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; MESSAGE];
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Err(HandshakeError::Socket(rustix::io::Errno::CONNRESET));
    }
    if got.flags.contains(rustix::net::ReturnFlags::TRUNC) {
        return Err(HandshakeError::NotSluice);
    }
    message.truncate(got.bytes);
    Ok((message, fds))
}

/// The NF's half: sends `hello` on a connected socket and waits for the answer.
///
/// # Errors
/// [`HandshakeError::Refused`] with the manager's reason, and as [`receive`].
pub fn attach(socket: &OwnedFd, hello: &Hello) -> Result<(Welcome, [OwnedFd; 3]), HandshakeError> {
    send(socket.as_fd(), &hello.encode(), &[])?;
    let (message, fds) = receive(socket.as_fd())?;
    match Answer::decode(&message)? {
        Answer::Refusal(why) => Err(HandshakeError::Refused(why)),
        Answer::Welcome(welcome) => {
            let fds: [OwnedFd; 3] = fds.try_into().map_err(|_| HandshakeError::NotSluice)?;
            Ok((*welcome, fds))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn welcome() -> Welcome {
        Welcome {
            geometry: Geometry { first: 32_768, frames: 64, stride: 2240 },
            region: RegionLayout::new(2, 256).unwrap(),
            slots: 8,
            slot: 3,
            hands_over: true,
            name: "ids.0".into(),
            core: 1,
            poll: false,
            linger_ns: 2000,
            clock_scale: 1 << 31,
            ports: vec!["lan".into(), String::new(), "wan".into()],
            services: vec!["ids".into()],
            chains: vec![],
        }
    }

    #[test]
    fn a_handshake_passes_the_descriptors() {
        let (nf, manager) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let peer = std::thread::spawn(move || attach(&nf, &Hello { name: "ids".into(), is_zygote: false }).unwrap());
        let (message, _) = receive(manager.as_fd()).unwrap();
        assert_eq!(Hello::decode(&message).unwrap(), Hello { name: "ids".into(), is_zygote: false });
        let memory = crate::memory::SharedMemory::create("x", 4096, false).unwrap();
        send(manager.as_fd(), &Answer::Welcome(Box::new(welcome())).encode(), &[memory.fd(), memory.fd(), memory.fd()]).unwrap();
        let (got, fds) = peer.join().unwrap();
        assert_eq!(got, welcome());
        crate::memory::Mapping::new(fds[2].as_fd(), 4096, false)
            .unwrap()
            .atomic_u32(0)
            .unwrap()
            .store(9, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(memory.mapping().atomic_u32(0).unwrap().load(std::sync::atomic::Ordering::Relaxed), 9);
    }

    #[test]
    fn a_refusal_carries_its_reason() {
        let (nf, manager) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send(manager.as_fd(), &Answer::Refusal("no such NF".into()).encode(), &[]).unwrap();
        let error = attach(&nf, &Hello { name: "x".into(), is_zygote: false }).unwrap_err();
        assert_eq!(error.to_string(), "the manager refused: no such NF");
    }

    #[test]
    fn the_word_that_it_is_ready_is_no_other_message() {
        assert!(is_ready(&ready()));
        assert!(!is_ready(&Hello { name: "x".into(), is_zygote: false }.encode()) && !is_ready(&[]));
        assert!(Hello::decode(&ready()).is_err() && Answer::decode(&ready()).is_err());
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Hello { name: "x".into(), is_zygote: false }.encode();
        bytes[4] = 99;
        assert!(matches!(Hello::decode(&bytes), Err(HandshakeError::Version { theirs: 99 })));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 1u32..5) {
            let _ = Hello::decode(&bytes);
            let _ = Answer::decode(&bytes);
            let mut framed = header(kind).0;
            framed.extend(bytes);
            let _ = Hello::decode(&framed);
            let _ = Answer::decode(&framed);
        }
    }
}
