//! Watches a port's interface: reports its state, and opens it again when it was recreated.
//!
//! # Problem
//! An interface goes with the container or machine at its other end, and comes back under its name.
//! A packet socket stays bound to the old one for ever, and reports that once.
//!
//! # Approach
//! A thread for each port sleeps until interfaces change (a netlink socket becomes readable; its
//! messages are not read), and for a fifth of a second (`EVERY`) at most, since a recreated
//! namespace sends no event. It then asks the kernel which interface the sockets are bound to,
//! which one has the name now, and whether that has a link. If the first two differ, the socket of
//! a port with one queue is bound to the new interface at once. Sockets that share packets by flow
//! cannot be bound again, and a new namespace needs new sockets. Then the queues return their
//! sockets, which are closed here because that takes milliseconds, and get others once there is an
//! interface to open. That goes over channels which packet threads read in their housekeeping, so
//! packets meet no lock and no system call.
//!
//! # Limits
//! A socket keeps its namespace alive, so one whose name was removed lives on for `EVERY` and one
//! housekeeping. A renamed interface counts as gone. Where sockets are opened again, the new
//! interface's first packets are lost.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{fstat, stat};

use super::Failed;
use super::socket::{PacketSocket, SocketOptions, bind};
use sluice_api::config::AfPacket;
use sluice_api::model::PortState;
use sluice_dataplane::link::Link;
use sluice_host::link;
use sluice_host::netns::{self, Netns};

/// Longest time between two checks.
const EVERY: Duration = Duration::from_millis(200);
/// The same while packet threads still have sockets to return.
const SOON: Duration = Duration::from_millis(5);

/// Whether an error means that there is no such interface or namespace.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::ENOENT))
}

/// Where a queue gets new sockets from.
#[derive(Debug)]
pub struct Source {
    link: Arc<Link>,
    next: Receiver<Option<PacketSocket>>,
    former: Sender<PacketSocket>,
    /// Ends with the last queue of the port.
    _thread: Arc<Thread>,
}

impl Source {
    /// The state of the port.
    #[inline]
    pub(super) fn state(&self) -> PortState {
        self.link.state()
    }

    /// The replacement of the queue's socket, if there is one: another socket, or none for now.
    pub(super) fn next(&self) -> Option<Option<PacketSocket>> {
        self.next.try_recv().ok()
    }

    pub(super) fn give_back(&self, socket: PacketSocket) {
        // The thread lives as long as this. If not, the socket is closed here.
        let _ = self.former.send(socket);
    }
}

/// The watching thread. It ends when this is dropped.
#[derive(Debug)]
struct Thread {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The watched interface of a port.
#[derive(Debug)]
pub(super) struct Watched {
    port: String,
    settings: AfPacket,
    queues: u32,
    room: usize,
    link: Arc<Link>,
    /// Becomes readable when interfaces change.
    bell: Option<OwnedFd>,
    /// One of the sockets in use, for queries.
    probe: Option<OwnedFd>,
    /// Device and inode of the sockets' namespace, if it has a name.
    namespace: Option<(u64, u64)>,
    /// How often sockets were opened.
    opened: u16,
    /// The log has reported that an existing interface could not be opened.
    has_complained: bool,
}

/// The thread's ends of the channels to the queues.
struct Queues {
    to: Vec<Sender<Option<PacketSocket>>>,
    former: Receiver<PacketSocket>,
    /// Sockets that queues have.
    out: usize,
}

impl Watched {
    pub(super) fn new(port: &str, queues: u32, settings: &AfPacket, room: usize) -> Self {
        Self {
            port: port.into(),
            settings: settings.clone(),
            queues,
            room,
            link: Arc::default(),
            bell: None,
            probe: None,
            namespace: None,
            opened: 0,
            has_complained: false,
        }
    }

    pub(super) fn link(&self) -> Arc<Link> {
        self.link.clone()
    }

    pub(super) fn open(&mut self) -> Result<Vec<PacketSocket>, Failed> {
        let settings = &self.settings;
        // Depends on process, interface and time: the kernel refuses a number that sockets of
        // another interface use, and old sockets may still be open.
        let group = (std::process::id() as u16).wrapping_mul(31).wrapping_add(settings.interface.bytes().map(u16::from).sum());
        let group = group.wrapping_add(self.opened.wrapping_mul(7919));
        let options = SocketOptions {
            interface: &settings.interface,
            slots: settings.slots,
            room: self.room,
            promiscuous: settings.promiscuous,
            bypass: false,
            fanout: (self.queues > 1).then_some(group),
        };
        let queues = self.queues;
        let namespace = settings.netns.as_ref().map(|name| Netns::open(&netns::path_of(name))).transpose();
        let namespace = namespace.inspect_err(|_| self.bell = None)?;
        let id = namespace.as_ref().and_then(|ns| fstat(ns.fd()).ok()).map(|file| (file.st_dev, file.st_ino));
        if id != std::mem::replace(&mut self.namespace, id) {
            // It would keep the old namespace alive.
            self.bell = None;
        }
        let bell = self.bell.take();
        let all = || {
            // First, so that no change from now on is missed.
            let bell = bell.or_else(|| link::bell().ok());
            let sockets = (0..queues).map(|_| PacketSocket::open(&options).map_err(Failed)).collect::<Result<Vec<_>, _>>();
            Ok::<_, Failed>((bell, sockets))
        };
        let (bell, sockets) = match &namespace {
            None => all(),
            Some(ns) => ns.visit(all),
        }?;
        self.bell = bell;
        let sockets = sockets?;
        self.opened = self.opened.wrapping_add(1);
        self.probe = sockets.first().map(PacketSocket::probe).transpose()?;
        let state = self.look().unwrap_or(PortState::Gone);
        self.link.set(state);
        Ok(sockets)
    }

    /// Starts the thread, and returns each queue's end. `opened` sockets go to the queues.
    pub(super) fn start(self, opened: usize) -> io::Result<Vec<Source>> {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (back, former) = channel();
        let (to, next): (Vec<_>, Vec<_>) = (0..self.queues).map(|_| channel()).unzip();
        if opened == 0 {
            self.link.set(PortState::Waiting);
        }
        let (link, seen) = (self.link.clone(), end.clone());
        let queues = Queues { to, former, out: opened };
        let thread = std::thread::Builder::new().name("sluice-link".into()).spawn(move || self.run(queues, &seen))?;
        let thread = Arc::new(Thread { end, thread: Some(thread) });
        let source = |next| Source { link: link.clone(), next, former: back.clone(), _thread: thread.clone() };
        Ok(next.into_iter().map(source).collect())
    }

    fn run(mut self, mut queues: Queues, end: &OwnedFd) {
        loop {
            let patience = if self.probe.is_none() && queues.out > 0 { SOON } else { EVERY };
            let patience = Timespec { tv_sec: 0, tv_nsec: patience.as_nanos() as _ };
            let mut fds = vec![PollFd::new(end, PollFlags::IN)];
            fds.extend(self.bell.iter().map(|bell| PollFd::new(bell, PollFlags::IN)));
            // An error only costs an extra check.
            let _ = poll(&mut fds, Some(&patience));
            if !fds[0].revents().is_empty() {
                return;
            }
            self.bell.iter().for_each(link::hush);
            self.step(&mut queues);
        }
    }

    /// Checks the interface, and acts on changes.
    fn step(&mut self, queues: &mut Queues) {
        queues.out -= queues.former.try_iter().map(drop).count();
        if self.probe.is_some() {
            match self.look() {
                Some(state) => drop(self.link.set(state)),
                None => {
                    self.link.set(PortState::Gone);
                    if self.queues == 1 && self.is_same_namespace() {
                        self.bind_anew();
                        return;
                    }
                    self.probe = None;
                    // A queue that has ended needs nothing any more.
                    queues.to.iter().for_each(|queue| drop(queue.send(None)));
                }
            }
        }
        if self.probe.is_some() {
            return;
        }
        match self.open() {
            Ok(sockets) => {
                queues.out += sockets.len();
                self.has_complained = false;
                sockets.into_iter().zip(&queues.to).for_each(|(socket, queue)| drop(queue.send(Some(socket))));
            }
            Err(Failed((_, error))) if is_missing(&error) => {
                if self.link.state() == PortState::NoLink {
                    self.link.set(PortState::Gone);
                }
            }
            Err(Failed((doing, error))) => {
                self.link.set(PortState::NoLink);
                // A recreated interface is brought up later; only then can sockets share it.
                let is_early = error.raw_os_error() == Some(libc::EINVAL) && self.queues > 1;
                if !is_early {
                    self.complain(doing, &error);
                }
            }
        }
    }

    /// Binds the single socket to the interface that has the name now, if there is one. Since
    /// nothing is created, the first packets are kept.
    fn bind_anew(&mut self) {
        let Some(probe) = &self.probe else { return };
        let Ok(index) = link::index_by(probe, &self.settings.interface) else { return };
        match bind(probe, index, self.settings.promiscuous) {
            Ok(()) => {
                let state = self.look().unwrap_or(PortState::Gone);
                self.link.set(state);
                self.has_complained = false;
            }
            // It is gone again.
            Err((_, error)) if is_missing(&error) => {}
            Err((doing, error)) => self.complain(doing, &error),
        }
    }

    /// Logs once that an existing interface cannot be opened.
    fn complain(&mut self, doing: &str, error: &io::Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            let (port, interface) = (&self.port, &self.settings.interface);
            warn!("port {port}: cannot {doing} interface {interface}, and it is tried again and again: {error}");
        }
    }

    /// Whether the sockets are in the namespace that has its name now.
    fn is_same_namespace(&self) -> bool {
        let Some(name) = &self.settings.netns else { return true };
        stat(netns::path_of(name)).is_ok_and(|file| self.namespace == Some((file.st_dev, file.st_ino)))
    }

    /// The state of the sockets' interface; `None` if it no longer is the one with the name.
    fn look(&self) -> Option<PortState> {
        let probe = self.probe.as_ref()?;
        if !self.is_same_namespace() {
            return None;
        }
        let (name, bound) = (&self.settings.interface, link::bound_by(probe).ok()?);
        if bound.is_none() || link::index_by(probe, name).ok() != bound {
            return None;
        }
        Some(if link::has_link_by(probe, name).ok()? { PortState::Up } else { PortState::NoLink })
    }
}
