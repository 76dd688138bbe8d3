//! One connection to a controller: whole messages, hello, echo (sections 6.3.1 and 6.4).
//!
//! Pure: [`Session::receive`] takes bytes, [`Session::out`] collects bytes to send,
//! [`Session::next`] returns whole messages, and [`Session::tick`] gets the time. An invalid
//! message is answered with its fault; an impossible length or another version ends the connection.

use std::collections::VecDeque;

use crate::VERSION;
use crate::fault::Fault;
use crate::message::{HEADER, Header, Message};

/// Bytes of a refused message in the error message.
const SHOWN: usize = 64;
/// Payload of echo requests, which identifies them in a capture.
const ECHO: &[u8] = b"sluice";

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Close {
    /// Its bytes are no message.
    #[error("what it says is not OpenFlow")]
    Garbage,
    #[error("it does not speak OpenFlow 1.3")]
    Version,
    /// No message arrived for too long.
    #[error("it is silent")]
    Silent,
}

/// Timeouts in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Time without a message until an echo request.
    pub echo_ms: u64,
    /// Time without a message until the connection is closed.
    pub dead_ms: u64,
}

#[derive(Debug)]
pub struct Session {
    patience: Patience,
    inbox: Vec<u8>,
    whole: VecDeque<(u32, Message, Vec<u8>, usize)>,
    waiting: usize,
    /// The first bytes of the last message that `next` returned.
    taken: Vec<u8>,
    out: Vec<u8>,
    is_up: bool,
    heard_ms: u64,
    asked_ms: u64,
    xid: u32,
    faults: u64,
}

impl Session {
    /// A new connection, with its hello to be sent.
    pub fn new(patience: Patience, now_ms: u64) -> Self {
        let mut this = Self {
            patience,
            inbox: Vec::new(),
            whole: VecDeque::new(),
            waiting: 0,
            taken: Vec::new(),
            out: Vec::new(),
            is_up: false,
            heard_ms: now_ms,
            asked_ms: now_ms,
            xid: 0,
            faults: 0,
        };
        let xid = this.fresh_xid();
        this.send(xid, &Message::Hello(Some(vec![1 << VERSION])));
        this
    }

    /// Whether the controller has sent hello with a common version.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    pub fn faults(&self) -> u64 {
        self.faults
    }

    pub fn fresh_xid(&mut self) -> u32 {
        self.xid = self.xid.wrapping_add(1);
        self.xid
    }

    pub fn send(&mut self, xid: u32, message: &Message) {
        message.encode(xid, &mut self.out);
    }

    /// Enqueues an error message about the peer's message `xid`.
    pub fn refuse(&mut self, xid: u32, fault: Fault, shown: &[u8]) {
        self.faults += 1;
        self.send(xid, &Message::Error(fault, shown[..shown.len().min(SHOWN)].to_vec()));
    }

    /// Bytes to send; the sender removes them.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    pub fn backlog(&self) -> usize {
        self.out.len()
    }

    /// Bytes of messages received and not yet returned by [`Session::next`]. Decoded, they take
    /// several times as much memory, so the receiver pauses if there are many.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes bytes from the controller.
    ///
    /// # Errors
    /// Why the connection has to be closed after [`Session::out`] is sent. Earlier messages remain.
    pub fn receive(&mut self, bytes: &[u8], now_ms: u64) -> Result<(), Close> {
        self.inbox.extend_from_slice(bytes);
        let mut inbox = std::mem::take(&mut self.inbox);
        let mut rest = &inbox[..];
        while let Some((header, _)) = rest.split_first_chunk::<HEADER>() {
            let header = Header::decode(header);
            let length = usize::from(header.length);
            if length < HEADER {
                return Err(Close::Garbage);
            }
            if !self.is_up && header.kind != 0 && header.kind != 1 {
                return Err(Close::Garbage);
            }
            let Some((message, tail)) = rest.split_at_checked(length) else { break };
            rest = tail;
            // Only whole messages are a sign of life.
            self.heard_ms = now_ms;
            self.take(header, message)?;
        }
        // A part of a message that comes byte by byte is not copied for each of them.
        let taken = inbox.len() - rest.len();
        inbox.drain(..taken);
        self.inbox = inbox;
        Ok(())
    }

    fn take(&mut self, header: Header, bytes: &[u8]) -> Result<(), Close> {
        let body = &bytes[HEADER..];
        if header.kind == 0 {
            if let Ok(Message::Hello(bitmap)) = Message::decode(0, body) {
                let speaks = match bitmap {
                    Some(words) => words.first().is_some_and(|word| word & (1 << VERSION) != 0),
                    // Without a bitmap, the lower version of both is used.
                    None => header.version >= VERSION,
                };
                if !speaks {
                    self.refuse(header.xid, Fault::HELLO_INCOMPATIBLE, b"OpenFlow 1.3 is spoken here");
                    return Err(Close::Version);
                }
                self.is_up = true;
            }
            return Ok(());
        }
        if header.version != VERSION {
            self.refuse(header.xid, Fault::BAD_VERSION, bytes);
            return if self.is_up { Ok(()) } else { Err(Close::Version) };
        }
        match Message::decode(header.kind, body) {
            Ok(Message::EchoRequest(data)) => self.send(header.xid, &Message::EchoReply(data)),
            Ok(Message::EchoReply(_)) => {}
            Ok(Message::Error(..)) => {
                self.faults += 1;
                if !self.is_up {
                    return Err(Close::Version);
                }
            }
            Ok(message) => {
                self.waiting += bytes.len();
                self.whole.push_back((header.xid, message, bytes[..bytes.len().min(SHOWN)].to_vec(), bytes.len()));
            }
            Err(fault) => self.refuse(header.xid, fault, bytes),
        }
        Ok(())
    }

    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<(u32, Message)> {
        let (xid, message, beginning, bytes) = self.whole.pop_front()?;
        self.waiting -= bytes;
        self.taken = beginning;
        Some((xid, message))
    }

    /// Enqueues an error message about the last message of [`Session::next`].
    pub fn refuse_taken(&mut self, xid: u32, fault: Fault) {
        let taken = std::mem::take(&mut self.taken);
        self.refuse(xid, fault, &taken);
        self.taken = taken;
    }

    /// Checks for silence of the controller.
    ///
    /// # Errors
    /// [`Close::Silent`] if it lasted too long.
    pub fn tick(&mut self, now_ms: u64) -> Result<(), Close> {
        if self.waiting > 0 && self.out.is_empty() {
            // It has read everything, and is not read from while its requests are pending.
            self.heard_ms = now_ms;
        }
        let silent_ms = now_ms.saturating_sub(self.heard_ms);
        if silent_ms >= self.patience.dead_ms {
            return Err(Close::Silent);
        }
        if self.is_up && silent_ms >= self.patience.echo_ms && now_ms.saturating_sub(self.asked_ms) >= self.patience.echo_ms {
            self.asked_ms = now_ms;
            let xid = self.fresh_xid();
            self.send(xid, &Message::EchoRequest(ECHO.to_vec()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Patience = Patience { echo_ms: 1000, dead_ms: 3000 };

    fn bytes(xid: u32, message: &Message) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(xid, &mut out);
        out
    }

    fn hello() -> Vec<u8> {
        bytes(9, &Message::Hello(Some(vec![1 << 4])))
    }

    /// Takes the messages to be sent.
    fn said(session: &mut Session) -> Vec<(u32, Message)> {
        let out = std::mem::take(session.out());
        let mut rest = &out[..];
        let mut all = Vec::new();
        while let Some((head, _)) = rest.split_first_chunk() {
            let header = Header::decode(head);
            let (message, tail) = rest.split_at(header.length.into());
            all.push((header.xid, Message::decode(header.kind, &message[HEADER..]).unwrap()));
            rest = tail;
        }
        all
    }

    #[test]
    fn hello_then_messages_byte_by_byte() {
        let mut session = Session::new(PATIENCE, 0);
        assert_eq!(said(&mut session), [(1, Message::Hello(Some(vec![16])))]);
        let all = [hello(), bytes(5, &Message::FeaturesRequest), bytes(6, &Message::EchoRequest(b"x".to_vec()))].concat();
        for byte in all {
            session.receive(&[byte], 5).unwrap();
        }
        assert!(session.is_up());
        assert_eq!(session.next(), Some((5, Message::FeaturesRequest)));
        assert_eq!(session.next(), None);
        assert_eq!(said(&mut session), [(6, Message::EchoReply(b"x".to_vec()))]);
    }

    #[test]
    fn versions_are_agreed_on_or_not() {
        let meets = |hello: &[u8]| {
            let mut session = Session::new(PATIENCE, 0);
            let met = session.receive(hello, 0);
            (met, session.is_up(), session.faults())
        };
        let plain = |version: u8| vec![version, 0, 0, 8, 0, 0, 0, 1];
        let list = |version: u8, words: &[u32]| {
            let mut hello = bytes(1, &Message::Hello(Some(words.to_vec())));
            hello[0] = version;
            hello
        };
        assert_eq!(meets(&plain(4)), (Ok(()), true, 0));
        assert_eq!(meets(&plain(6)), (Ok(()), true, 0));
        assert_eq!(meets(&list(5, &[0b11_0000])), (Ok(()), true, 0));
        assert_eq!(meets(&plain(1)), (Err(Close::Version), false, 1));
        assert_eq!(meets(&list(5, &[0b10_0000])), (Err(Close::Version), false, 1));
    }

    #[test]
    fn nonsense_is_refused_or_ends_the_connection() {
        let mut session = Session::new(PATIENCE, 0);
        assert_eq!(session.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", 0), Err(Close::Garbage));
        let mut session = Session::new(PATIENCE, 0);
        assert_eq!(session.receive(&[4, 0, 0, 7, 0, 0, 0, 0], 0), Err(Close::Garbage));
        let mut session = Session::new(PATIENCE, 0);
        session.receive(&hello(), 0).unwrap();
        said(&mut session);
        // An undefined type, then another version.
        session.receive(&[4, 77, 0, 8, 0, 0, 0, 3, 1, 5, 0, 8, 0, 0, 0, 4], 0).unwrap();
        let faults: Vec<_> = said(&mut session).into_iter().map(|(xid, m)| (xid, matches!(m, Message::Error(..)))).collect();
        assert_eq!(faults, [(3, true), (4, true)]);
        assert_eq!(session.faults(), 2);
    }

    #[test]
    fn silence_is_asked_about_then_ends_it() {
        let mut session = Session::new(PATIENCE, 0);
        session.receive(&hello(), 500).unwrap();
        said(&mut session);
        session.tick(1499).unwrap();
        assert_eq!(said(&mut session), []);
        session.tick(1500).unwrap();
        session.tick(1600).unwrap();
        let asked = said(&mut session);
        assert!(matches!(asked[..], [(_, Message::EchoRequest(_))]), "{asked:?}");
        session.receive(&bytes(asked[0].0, &Message::EchoReply(Vec::new())), 2000).unwrap();
        session.tick(4999).unwrap();
        // Half a message is no sign of life.
        session.receive(&[4, 2], 4999).unwrap();
        assert_eq!(session.tick(5000), Err(Close::Silent));
    }

    #[test]
    fn what_waits_is_known_and_is_no_silence_of_a_reader() {
        let mut session = Session::new(PATIENCE, 0);
        session.receive(&hello(), 0).unwrap();
        said(&mut session);
        let flood: Vec<u8> = (0..1000).flat_map(|xid| bytes(xid, &Message::BarrierRequest)).collect();
        session.receive(&flood, 0).unwrap();
        assert_eq!(session.waiting(), flood.len());
        session.tick(10_000).unwrap();
        session.next().unwrap();
        assert_eq!(session.waiting(), flood.len() - HEADER);
        // The controller does not read.
        session.send(0, &Message::BarrierReply);
        assert_eq!(session.tick(13_000), Err(Close::Silent));
        while session.next().is_some() {}
        assert_eq!(session.waiting(), 0);
    }

    proptest! {
        #[test]
        fn whatever_comes_nothing_panics(greets in any::<bool>(), parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..20)) {
            let mut session = Session::new(PATIENCE, 0);
            if greets {
                session.receive(&hello(), 0).unwrap();
            }
            for part in parts {
                if session.receive(&part, 0).is_err() {
                    break;
                }
                while session.next().is_some() {}
            }
        }
    }
}
