//! Watches the interface of a port: says what state it is in, and opens it anew when it was made anew.
//!
//! # Problem
//! An interface goes with the container or the machine at its other end, and comes again under its name. A packet socket stays bound to
//! the one that is gone, for ever, and says so once.
//!
//! # Approach
//! A thread for each port, which sleeps until something about an interface changes (a netlink socket says so, whose messages are not
//! read), and for a fifth of a second (`EVERY`) at most: a namespace that was made anew says nothing. Then it asks the kernel three things: what interface the
//! port's sockets are bound to, which one has the name now, and whether that has a link. Where the first two differ, the socket of a port
//! with one queue is bound to the new interface, at once. Several share packets by their flows, which the kernel does not let go on with
//! another interface, and a namespace needs sockets of its own: then the queues give their sockets back, which are closed here because that
//! takes milliseconds, and are given others once there is an interface to open. That goes over channels that the packet threads look at in
//! their housekeeping, so packets meet no lock and no system call.
//!
//! # Limits
//! A socket keeps its namespace alive, so one whose name was taken away lives on for `EVERY` and that housekeeping. An interface that
//! was given another name is as good as gone. Where sockets are opened anew, the first packets of the new interface are lost.

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
use crate::link::Link;
use sluice_api::config::AfPacket;
use sluice_api::model::PortState;
use sluice_host::link;
use sluice_host::netns::{self, Netns};

/// Longest time between two looks.
const EVERY: Duration = Duration::from_millis(200);
/// The same while packet threads have sockets that they are to give back.
const SOON: Duration = Duration::from_millis(5);

/// Whether an error says that there is no such interface, or no such namespace.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::ENOENT))
}

/// Where a queue gets other sockets from.
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

    /// What is to take the place of the queue's socket, if something is: another one, or none for now.
    pub(super) fn next(&self) -> Option<Option<PacketSocket>> {
        self.next.try_recv().ok()
    }

    /// Gives back a socket.
    pub(super) fn give_back(&self, socket: PacketSocket) {
        // The thread lives as long as this. If not, the socket is closed here.
        let _ = self.former.send(socket);
    }
}

/// The thread that watches. It ends when this is dropped.
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

/// The interface of a port, watched.
#[derive(Debug)]
pub(super) struct Watched {
    port: String,
    settings: AfPacket,
    queues: u32,
    room: usize,
    link: Arc<Link>,
    /// Becomes readable when something about an interface changes.
    bell: Option<OwnedFd>,
    /// One of the sockets in use, to ask with.
    probe: Option<OwnedFd>,
    /// Device and inode of the namespace that the sockets are in, where it has a name.
    namespace: Option<(u64, u64)>,
    /// How often sockets were opened.
    opened: u16,
    /// Of an interface that is there and could not be opened, this was said.
    has_complained: bool,
}

/// The thread's ends of the channels to the queues.
struct Queues {
    to: Vec<Sender<Option<PacketSocket>>>,
    former: Receiver<PacketSocket>,
    /// Sockets that they have.
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

    /// The state of the port.
    pub(super) fn link(&self) -> Arc<Link> {
        self.link.clone()
    }

    /// Opens a socket for each queue.
    pub(super) fn open(&mut self) -> Result<Vec<PacketSocket>, Failed> {
        let settings = &self.settings;
        // Of this process, this interface, and this time: sockets of one number and another interface are refused by the kernel, and those of
        // before may be open still.
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
            // It would keep the former one alive.
            self.bell = None;
        }
        let bell = self.bell.take();
        let all = || {
            // First: what changes from now on is heard.
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

    /// Starts the thread, and returns the end of each queue. `opened` sockets go to the queues.
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
            // An error is a look more.
            let _ = poll(&mut fds, Some(&patience));
            if !fds[0].revents().is_empty() {
                return;
            }
            self.bell.iter().for_each(link::hush);
            self.step(&mut queues);
        }
    }

    /// Looks at the interface, and does what is to be done.
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
                    // One that has ended wants nothing any more.
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
                // One that is made anew is brought up a moment later, and packets cannot be shared before.
                let is_early = error.raw_os_error() == Some(libc::EINVAL) && self.queues > 1;
                if !is_early {
                    self.complain(doing, &error);
                }
            }
        }
    }

    /// Binds the one socket to the interface that has the name now, if there is one. Nothing is made for it, so its first packets are kept.
    fn bind_anew(&mut self) {
        let Some(probe) = &self.probe else { return };
        let Ok(index) = link::index_by(probe, &self.settings.interface) else { return };
        match bind(probe, index, self.settings.promiscuous) {
            Ok(()) => {
                let state = self.look().unwrap_or(PortState::Gone);
                self.link.set(state);
                self.has_complained = false;
            }
            // It has gone again.
            Err((_, error)) if is_missing(&error) => {}
            Err((doing, error)) => self.complain(doing, &error),
        }
    }

    /// Says once that an interface that is there cannot be opened.
    fn complain(&mut self, doing: &str, error: &io::Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            let (port, interface) = (&self.port, &self.settings.interface);
            warn!("port {port}: cannot {doing} interface {interface}, and it is tried again and again: {error}");
        }
    }

    /// Whether the sockets are in the namespace that has its name.
    fn is_same_namespace(&self) -> bool {
        let Some(name) = &self.settings.netns else { return true };
        stat(netns::path_of(name)).is_ok_and(|file| self.namespace == Some((file.st_dev, file.st_ino)))
    }

    /// The state of the interface that the sockets are bound to. None if it is not the one of the name any more.
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
