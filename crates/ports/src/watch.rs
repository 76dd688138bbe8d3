//! Watches a port's interface: reports its state, and opens it again when it was recreated.
//!
//! # Problem
//! An interface goes with the container or machine at its other end, and comes back under its name.
//! A socket stays bound to the old one for ever, and reports that once.
//!
//! # Approach
//! A thread for each port sleeps until interfaces change (a netlink socket becomes readable; its
//! messages are not read), and for a fifth of a second (`EVERY`) at most, since a recreated
//! namespace sends no event. It then asks the kernel which interface the sockets are bound to,
//! which one has the name now, and whether that has a link. If the first two differ, the only
//! socket of a port is bound to the new interface at once, if its kind can be ([`Sockets::bind`]).
//! Sockets that share packets by flow or have memory registered cannot be bound again, and a new
//! namespace needs new sockets. Then the queues return their sockets, which are closed here because
//! that takes milliseconds, and get others once there is an interface to open. That goes over
//! channels which packet threads read in their housekeeping, so packets meet no lock and no system
//! call.
//!
//! # Limits
//! A socket keeps its namespace alive, so one whose name was removed lives on for `EVERY` and one
//! housekeeping. A renamed interface counts as gone. Where sockets are opened again, the new
//! interface's first packets are lost.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{fstat, stat};

use crate::error::PortError;
use sluice_api::config::WhenMissing;
use sluice_api::model::PortState;
use sluice_dataplane::link::Link;
use sluice_host::link;
use sluice_host::netns::{self, Netns};

/// Longest time between two checks.
const EVERY: Duration = Duration::from_millis(200);
/// The same while packet threads still have sockets to return.
const SOON: Duration = Duration::from_millis(5);

/// Whether a port may be opened without sockets after this error.
pub(crate) fn may_wait(when_missing: WhenMissing, error: &io::Error) -> bool {
    when_missing == WhenMissing::Wait && is_missing(error)
}

/// Whether an error means that there is no such interface or namespace.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::ENOENT))
}

/// The failed operation, and the system's error.
pub(crate) type Failed = (&'static str, io::Error);

fn unentered(error: io::Error) -> Failed {
    ("enter the namespace of", error)
}

/// An interface and its network namespace, by name.
#[derive(Debug, Clone)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// None: the daemon's own.
    pub(crate) netns: Option<String>,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface {}", self.name)?;
        self.netns.as_ref().map_or(Ok(()), |netns| write!(f, " in {netns}"))
    }
}

impl Interface {
    /// Calls this in its namespace.
    pub(crate) fn visit<T: Send, E: Send + From<Failed>>(&self, work: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E> {
        match &self.netns {
            None => work(),
            Some(netns) => {
                let entered = Netns::open(&netns::path_of(netns)).and_then(|ns| ns.visit(|| Ok(work())));
                entered.map_err(unentered)?
            }
        }
    }

    pub(crate) fn failed(&self, port: &str, (doing, source): Failed) -> PortError {
        PortError::Interface { port: port.into(), doing, interface: self.name.clone(), source }
    }
}

/// The sockets of a kind of port.
pub(crate) trait Sockets: Send + Sync + 'static {
    /// Of a queue.
    type Socket: Send + 'static;

    /// Opens a socket for each queue in the calling thread's namespace, and one that is bound to
    /// the same interface, for queries. `nth`: how often that was done before.
    fn open(&self, nth: u16) -> Result<(Vec<Self::Socket>, OwnedFd), Failed>;

    /// Whether [`Self::bind`] can be called.
    fn can_bind(&self) -> bool {
        false
    }

    /// Binds the socket for queries, and with it the only queue's, to the interface of this index.
    fn bind(&self, _probe: &OwnedFd, _index: u32) -> Result<(), Failed> {
        Err(("bind another socket to", io::ErrorKind::Unsupported.into()))
    }

    /// Closes a socket, and returns when the kernel uses none of its memory any more.
    fn close(&self, socket: Self::Socket) {
        drop(socket);
    }

    /// Whether the former sockets have to be closed before others are opened.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Whether this error of [`Self::open`] only says that the interface is not up yet.
    fn is_early(&self, _error: &io::Error) -> bool {
        false
    }
}

/// Where a queue gets new sockets from.
#[derive(Debug)]
pub(crate) struct SocketSource<S> {
    link: Arc<Link>,
    next: Receiver<Option<S>>,
    former: Sender<S>,
    /// Ends with the last queue of the port, or at [`SocketSource::end`].
    thread: Arc<Thread>,
}

impl<S> SocketSource<S> {
    /// The state of the port.
    #[inline]
    pub(crate) fn state(&self) -> PortState {
        self.link.state()
    }

    /// The replacement of the queue's socket, if there is one: another socket, or none for now.
    /// None comes again once all former sockets of the port are closed.
    pub(crate) fn next(&self) -> Option<Option<S>> {
        self.next.try_recv().ok()
    }

    pub(crate) fn give_back(&self, socket: S) {
        // Without the thread, the socket is closed here.
        let _ = self.former.send(socket);
    }

    /// Ends the thread. After that all sockets that were given back are closed.
    pub(crate) fn end(&self) {
        self.thread.end();
    }
}

/// The watching thread. It ends when this is dropped.
#[derive(Debug)]
struct Thread {
    end: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Thread {
    fn end(&self) {
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.end();
    }
}

/// The watched interface of a port.
#[derive(Debug)]
pub(crate) struct Watched<K> {
    port: String,
    interface: Interface,
    sockets: K,
    queues: u32,
    link: Arc<Link>,
    /// Becomes readable when interfaces change.
    changes: Option<OwnedFd>,
    /// The socket for queries, while there are sockets in use.
    probe: Option<OwnedFd>,
    /// Device and inode of the sockets' namespace, if it has a name.
    namespace: Option<(u64, u64)>,
    /// How often sockets were opened.
    opened: u16,
    /// The log has reported that an existing interface could not be opened.
    has_complained: bool,
}

/// The thread's ends of the channels to the queues.
struct Queues<S> {
    to: Vec<Sender<Option<S>>>,
    former: Receiver<S>,
    /// Sockets that queues have.
    out: usize,
}

impl<S> Queues<S> {
    /// Takes the sockets from the queues.
    fn take_away(&self) {
        // A queue that has ended needs nothing any more.
        self.to.iter().for_each(|queue| drop(queue.send(None)));
    }
}

impl<K: Sockets> Watched<K> {
    pub(crate) fn new(port: &str, queues: u32, interface: Interface, sockets: K) -> Self {
        Self {
            port: port.into(),
            interface,
            sockets,
            queues,
            link: Arc::default(),
            changes: None,
            probe: None,
            namespace: None,
            opened: 0,
            has_complained: false,
        }
    }

    pub(crate) fn link(&self) -> Arc<Link> {
        self.link.clone()
    }

    pub(crate) fn open(&mut self) -> Result<Vec<K::Socket>, Failed> {
        let namespace = self.interface.netns.as_ref().map(|name| Netns::open(&netns::path_of(name))).transpose();
        let namespace = namespace.inspect_err(|_| self.changes = None).map_err(unentered)?;
        let id = namespace.as_ref().and_then(|ns| fstat(ns.fd()).ok()).map(|file| (file.st_dev, file.st_ino));
        if id != std::mem::replace(&mut self.namespace, id) {
            // It would keep the old namespace alive.
            self.changes = None;
        }
        let changes = self.changes.take();
        let (sockets, nth) = (&self.sockets, self.opened);
        let all = || {
            // First, so that no change from now on is missed.
            let changes = changes.or_else(|| link::changes().ok());
            Ok((changes, sockets.open(nth)))
        };
        let (changes, opened) = match &namespace {
            None => all(),
            Some(ns) => ns.visit(all),
        }
        .map_err(unentered)?;
        self.changes = changes;
        let (sockets, probe) = opened?;
        self.opened = self.opened.wrapping_add(1);
        self.probe = Some(probe);
        let state = self.look().unwrap_or(PortState::Gone);
        self.link.set(state);
        Ok(sockets)
    }

    /// Starts the thread, and returns each queue's end. `opened` sockets go to the queues.
    pub(crate) fn start(self, opened: usize) -> io::Result<Vec<SocketSource<K::Socket>>> {
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (back, former) = channel();
        let (to, next): (Vec<_>, Vec<_>) = (0..self.queues).map(|_| channel()).unzip();
        if opened == 0 {
            self.link.set(PortState::Waiting);
        }
        let (link, seen) = (self.link.clone(), end.clone());
        let queues = Queues { to, former, out: opened };
        let thread = std::thread::Builder::new().name("sluice-link".into()).spawn(move || self.run(queues, &seen))?;
        let thread = Arc::new(Thread { end, thread: Mutex::new(Some(thread)) });
        let source = |next| SocketSource { link: link.clone(), next, former: back.clone(), thread: thread.clone() };
        Ok(next.into_iter().map(source).collect())
    }

    fn run(mut self, mut queues: Queues<K::Socket>, end: &OwnedFd) {
        loop {
            let patience = if self.probe.is_none() && queues.out > 0 { SOON } else { EVERY };
            let patience = Timespec { tv_sec: 0, tv_nsec: patience.as_nanos() as _ };
            let mut fds = vec![PollFd::new(end, PollFlags::IN)];
            fds.extend(self.changes.iter().map(|changes| PollFd::new(changes, PollFlags::IN)));
            // An error only costs an extra check.
            let _ = poll(&mut fds, Some(&patience));
            if !fds[0].revents().is_empty() {
                queues.former.try_iter().for_each(|socket| self.sockets.close(socket));
                return;
            }
            self.changes.iter().for_each(link::hush);
            self.step(&mut queues);
        }
    }

    /// Checks the interface, and acts on changes.
    fn step(&mut self, queues: &mut Queues<K::Socket>) {
        let closed = queues.former.try_iter().map(|socket| self.sockets.close(socket)).count();
        queues.out -= closed;
        if closed > 0 && queues.out == 0 {
            queues.take_away();
        }
        if self.probe.is_some() {
            match self.look() {
                Some(state) => drop(self.link.set(state)),
                None => {
                    self.link.set(PortState::Gone);
                    if self.sockets.can_bind() && self.is_same_namespace() {
                        self.bind_anew();
                        return;
                    }
                    self.probe = None;
                    queues.take_away();
                }
            }
        }
        if self.probe.is_some() {
            return;
        }
        if self.sockets.is_exclusive() && queues.out > 0 {
            self.lose();
            return;
        }
        match self.open() {
            Ok(sockets) => {
                queues.out += sockets.len();
                self.has_complained = false;
                sockets.into_iter().zip(&queues.to).for_each(|(socket, queue)| drop(queue.send(Some(socket))));
            }
            Err((_, error)) if is_missing(&error) => self.lose(),
            Err((doing, error)) => {
                self.link.set(PortState::NoLink);
                if !self.sockets.is_early(&error) {
                    self.complain(doing, &error);
                }
            }
        }
    }

    /// Says that the interface is gone, unless it has not been there yet. Called again and again,
    /// because setting a state may fail.
    fn lose(&self) {
        if self.link.state() != PortState::Waiting {
            self.link.set(PortState::Gone);
        }
    }

    /// Binds the only socket to the interface that has the name now, if there is one. Since nothing
    /// is created, the first packets are kept.
    fn bind_anew(&mut self) {
        let Some(probe) = &self.probe else { return };
        let Ok(index) = link::index_by(probe, &self.interface.name) else { return };
        match self.sockets.bind(probe, index) {
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
            let (port, interface) = (&self.port, &self.interface.name);
            warn!("port {port}: cannot {doing} interface {interface}, and it is tried again and again: {error}");
        }
    }

    /// Whether the sockets are in the namespace that has its name now.
    fn is_same_namespace(&self) -> bool {
        let Some(name) = &self.interface.netns else { return true };
        stat(netns::path_of(name)).is_ok_and(|file| self.namespace == Some((file.st_dev, file.st_ino)))
    }

    /// The state of the sockets' interface; `None` if it no longer is the one with the name.
    fn look(&self) -> Option<PortState> {
        let probe = self.probe.as_ref()?;
        if !self.is_same_namespace() {
            return None;
        }
        let (name, bound) = (&self.interface.name, link::bound_by(probe).ok()?);
        if bound.is_none() || link::index_by(probe, name).ok() != bound {
            return None;
        }
        Some(if link::has_link_by(probe, name).ok()? { PortState::Up } else { PortState::NoLink })
    }
}
