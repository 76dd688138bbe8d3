//! The NF socket: where the processes of NFs, spawned or not, come in.
//!
//! # Problem
//! The socket stands in a folder that other users can enter, so anyone may connect: often, without a word, with nonsense, or in
//! another NF's name. None of this may make an honest NF wait, or the one thread that serves the socket.
//!
//! # Approach
//! A [`Listener`] has one descriptor for the supervisor's poll set ([`Listener::fd`], an epoll set of its own, readable when
//! anything is to do), one call that never blocks ([`Listener::serve`]), and one time to call it at the latest
//! ([`Listener::next_deadline_ns`]). Time is an argument.
//! - A connection has [`HELLO_NS`] to send its hello, and is closed after.
//! - At most [`PENDING`] connections wait so. When all places are taken, a newcomer takes that of the oldest connection of the user
//!   who has the most, once that has had [`GRACE_NS`]. So a user who floods the socket shuts out himself.
//! - Of users who can be no NF's ([`Listener::know`]) no more than [`STRANGERS`] connections wait, to be told so; others are closed as they
//!   are accepted.
//! - Who calls is what the kernel says of the moment of connecting: user, group, and a pidfd, so that a pid that is reused while
//!   the hello is under way names nobody else.
//!
//! The caller of [`Listener::serve`] decides what a [`Caller`] may be ([`Caller::may_attach_as`] checks the user) and answers with
//! [`Caller::welcome`] or [`Caller::refuse`]. The table of what an NF may become is in [`super`].
//!
//! # Limits
//! Before Linux 6.5 the kernel does not give a peer's pidfd; it is then opened by pid and the connection checked after: a process
//! that connects, hands its socket to a child and dies within that time can be mistaken for the next process of its pid, which then
//! must have the same user. An NF in a process namespace that is not below the manager's needs 6.5. Who keeps the backlog of the
//! socket itself full (4,096 or what `net.core.somaxconn` says) makes others wait for as long as the manager takes to empty it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::event::epoll;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use sluice_shm::handshake::{self, Answer, HandshakeError, Hello, Welcome};
use sluice_shm::zygote::Surroundings;

use crate::process;

/// Connections that may wait for their hello at a time.
pub const PENDING: usize = 64;

/// Of them, those that may be of users who can be no NF's.
pub const STRANGERS: usize = 4;

/// Time that a connection has for its hello, in nanoseconds.
pub const HELLO_NS: u64 = 1_000_000_000;

/// Time that a connection has in any case, however many others come, in nanoseconds: an honest NF says hello at once, but may be
/// preempted on the way.
pub const GRACE_NS: u64 = 20_000_000;

/// Why the socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The path does not fit in a socket address.
    #[error("the socket path {0} is longer than 107 bytes; choose a shorter runtime_dir")]
    Long(PathBuf),
    /// Something else has the name.
    #[error("{0} is there and is no socket; move it away or choose another runtime_dir")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot make the socket {path}: {source}")]
    System {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The process at the other end, as it was when it connected.
#[derive(Debug)]
pub struct Peer {
    /// Its number, for messages and for comparing with that of a spawned process; None if this pid namespace does not know it.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Names it for ever; readable once it has ended.
    pub pidfd: OwnedFd,
}

/// A process that has said hello and waits for the answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Caller {
    /// What it wants to be.
    pub hello: Hello,
    /// Who it is.
    pub peer: Peer,
    socket: OwnedFd,
}

/// A process that was welcomed.
#[derive(Debug)]
pub struct Attached {
    /// Who it is.
    pub peer: Peer,
    /// The connection; nonblocking. Readable (end of stream) means that the NF has left; it has no reason to say anything.
    pub socket: OwnedFd,
}

/// What came of a connection.
#[derive(Debug)]
pub enum Event {
    /// A hello that wants an answer.
    Hello(Caller),
    /// A connection was closed without becoming a caller.
    Dropped {
        /// User of the peer.
        uid: u32,
        /// Process of the peer, if it is known.
        pid: Option<Pid>,
        /// Why.
        why: Dropped,
    },
}

/// Why a connection was closed.
#[derive(Debug, thiserror::Error)]
pub enum Dropped {
    /// It said no hello in time.
    #[error("it said no hello within a second")]
    Silent,
    /// Its user is no NF's.
    #[error("no service runs as its user: set `user` of the service that it is of")]
    Stranger,
    /// Others wanted its place.
    #[error("too many connections of its user wait for a hello")]
    Crowded,
    /// It closed, or what it said is no hello.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Its process ended or cannot be named.
    #[error("its process cannot be watched: {0}")]
    Unwatched(Errno),
}

#[derive(Debug)]
struct Waiting {
    socket: OwnedFd,
    pid: Option<Pid>,
    uid: u32,
    gid: u32,
    since_ns: u64,
}

/// The NF socket and the connections that wait for their hello. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    epoll: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's file, and its mode.
    file: (u64, u64),
    mode: u32,
    waiting: [Option<Waiting>; PENDING],
    /// Users who may be NFs; all without.
    known: Option<BTreeSet<u32>>,
    /// Whether the epoll set looks at the socket: not while all places are taken, nor while there are no descriptors to accept
    /// with.
    accepting: bool,
    /// Until when there were no descriptors or no memory to accept with.
    short_until_ns: u64,
}

/// Mark of the listening socket in the epoll set; a connection's is its place.
const LISTENER: u64 = PENDING as u64;

/// Time between two tries when there are no descriptors or no memory to accept with, in nanoseconds.
const SHORT_NS: u64 = 50_000_000;

/// Most connections that one call accepts, so that a flood does not keep the supervisor from its other work.
const ACCEPTS: usize = 2 * PENDING;

/// Makes a socket at a path, in place of another one there. Gives back its file's device and inode, too.
fn listen_at(path: &Path, mode: u32) -> Result<(OwnedFd, (u64, u64)), AttachError> {
    let system = |source: io::Error| AttachError::System { path: path.into(), source };
    let failed = |error: Errno| system(error.into());
    let address = SocketAddrUnix::new(path).map_err(|_| AttachError::Long(path.into()))?;
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path).map_err(system)?,
        Ok(_) => return Err(AttachError::NotASocket(path.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(system(error)),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
    // On Linux the file gets the socket's own mode, less the umask: so it is never wider than asked, not for a moment. The
    // umask is undone after.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode)).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(system)?;
    let metadata = std::fs::symlink_metadata(path).map_err(system)?;
    rustix::net::listen(&socket, 4096).map_err(failed)?;
    Ok((socket, (metadata.dev(), metadata.ino())))
}

impl Listener {
    /// Makes the socket, in place of one that an earlier manager left: the caller holds the lock of the runtime directory
    /// ([`crate::record::Record`]), so nobody listens on that.
    ///
    /// `mode` says who may connect: 0o666 if NFs run as other users, 0o600 if none does. It is no substitute for
    /// [`Caller::may_attach_as`].
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, AttachError> {
        let (socket, file) = listen_at(path, mode)?;
        let failed = |error: Errno| AttachError::System { path: path.into(), source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).map_err(failed)?;
        Ok(Self {
            socket,
            epoll,
            path: path.into(),
            file,
            mode,
            waiting: [const { None }; PENDING],
            known: None,
            accepting: true,
            short_until_ns: 0,
        })
    }

    /// Makes the socket anew if somebody has removed its file, or has put another one there: the caller holds the lock of the runtime
    /// directory. Returns whether that was so. Connections that wait for their hello stay.
    ///
    /// # Errors
    /// [`AttachError`]; then the former socket is there still, and nobody finds it.
    pub fn keep(&mut self) -> Result<bool, AttachError> {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.file) {
            return Ok(false);
        }
        let (socket, file) = listen_at(&self.path, self.mode)?;
        let failed = |error: Errno| AttachError::System { path: self.path.clone(), source: error.into() };
        // The former one leaves the set when it is closed.
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).map_err(failed)?;
        (self.socket, self.file, self.accepting) = (socket, file, true);
        Ok(true)
    }

    /// Readable when [`Listener::serve`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whose connections may wait for a hello, besides root's and the manager's own; anybody's without.
    pub fn know(&mut self, users: Option<BTreeSet<u32>>) {
        self.known = users;
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When [`Listener::serve`] must be called at the latest, on the clock of its argument. None if only its descriptor matters.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let silent = self.waiting.iter().flatten().map(|w| w.since_ns + HELLO_NS).min();
        let knock = (!self.accepting).then(|| self.opens_ns());
        silent.into_iter().chain(knock).min()
    }

    /// When someone who knocks can be let in.
    fn opens_ns(&self) -> u64 {
        let is_full = self.waiting.iter().all(Option::is_some);
        let crowd = self.crowd().filter(|_| is_full).and_then(|place| self.waiting[place].as_ref());
        crowd.map_or(0, |w| w.since_ns + GRACE_NS).max(self.short_until_ns)
    }

    /// Accepts who knocks, reads hellos, closes who has been silent too long, and says what came of it. Never blocks.
    ///
    /// # Errors
    /// Only what makes the socket as a whole unusable. A want of descriptors or memory is not: those who knock then wait.
    pub fn serve(&mut self, now_ns: u64) -> Result<Vec<Event>, Errno> {
        let mut events = Vec::new();
        // Those who have spoken go first: they make room.
        self.read_hellos(&mut events)?;
        self.expire(now_ns, &mut events);
        for _ in 0..ACCEPTS {
            if now_ns < self.short_until_ns {
                break;
            }
            let Some(place) = self.free_place(now_ns, &mut events) else { break };
            if !self.accept_one(place, now_ns, &mut events)? {
                break;
            }
        }
        // Most have sent their hello right after connecting, so it is there: no need for another round of the supervisor.
        self.read_hellos(&mut events)?;
        let room = now_ns >= self.opens_ns();
        if room != self.accepting {
            let flags = if room { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            epoll::modify(&self.epoll, &self.socket, epoll::EventData::new_u64(LISTENER), flags)?;
            self.accepting = room;
        }
        Ok(events)
    }

    /// Reads the hellos that have come, and gives their places free.
    fn read_hellos(&mut self, events: &mut Vec<Event>) -> Result<(), Errno> {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; PENDING + 1];
        let n = match epoll::wait(&self.epoll, &mut ready, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(Errno::INTR) => return Ok(()),
            n => n?,
        };
        for event in &ready[..n] {
            // A copy: the struct is packed.
            let place = event.data.u64() as usize;
            if let Some(waiting) = self.waiting.get_mut(place).and_then(Option::take) {
                // What comes on this connection later is not for the listener.
                epoll::delete(&self.epoll, &waiting.socket)?;
                events.push(waiting.hear());
            }
        }
        Ok(())
    }

    fn expire(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        for place in &mut self.waiting {
            if let Some(silent) = place.take_if(|w| now_ns >= w.since_ns + HELLO_NS) {
                events.push(silent.drop_for(Dropped::Silent));
            }
        }
    }

    /// The oldest connection of the user who has the most.
    fn crowd(&self) -> Option<usize> {
        let places = || self.waiting.iter().enumerate().filter_map(|(place, w)| Some((place, w.as_ref()?)));
        let of = |uid: u32| places().filter(|(_, w)| w.uid == uid).count();
        let (_, greediest) = places().max_by_key(|(_, w)| of(w.uid))?;
        let uid = greediest.uid;
        places().filter(|(_, w)| w.uid == uid).min_by_key(|(_, w)| w.since_ns).map(|(place, _)| place)
    }

    /// A free place, or that of the crowd if someone knocks.
    fn free_place(&mut self, now_ns: u64, events: &mut Vec<Event>) -> Option<usize> {
        if let Some(free) = self.waiting.iter().position(Option::is_none) {
            return Some(free);
        }
        let knocks = rustix::event::PollFlags::IN;
        let mut listener = [rustix::event::PollFd::new(&self.socket, knocks)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if !rustix::event::poll(&mut listener, Some(&now)).is_ok_and(|n| n > 0) {
            return None;
        }
        let place = self.crowd().filter(|_| now_ns >= self.opens_ns())?;
        events.extend(self.waiting[place].take().map(|w| w.drop_for(Dropped::Crowded)));
        Some(place)
    }

    /// Accepts one connection into a free place. False if nobody knocks.
    fn accept_one(&mut self, place: usize, now_ns: u64, events: &mut Vec<Event>) -> Result<bool, Errno> {
        let socket = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            // Whoever knocked has left again.
            Err(Errno::CONNABORTED | Errno::INTR) => return Ok(true),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                self.short_until_ns = now_ns + SHORT_NS;
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let (pid, uid, gid) = process::peer_credentials(socket.as_fd())?;
        let waiting = Waiting { socket, pid, uid, gid, since_ns: now_ns };
        let is_known = |known: &BTreeSet<u32>| uid == 0 || uid == rustix::process::geteuid().as_raw() || known.contains(&uid);
        let is_strange = |uid: &u32| *uid != 0 && *uid != rustix::process::geteuid().as_raw();
        let strangers =
            |known: &BTreeSet<u32>| self.waiting.iter().flatten().filter(|w| is_strange(&w.uid) && !known.contains(&w.uid)).count();
        if self.known.as_ref().is_some_and(|known| !is_known(known) && strangers(known) >= STRANGERS) {
            events.push(waiting.drop_for(Dropped::Stranger));
            return Ok(true);
        }
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        match epoll::add(&self.epoll, &waiting.socket, epoll::EventData::new_u64(place as u64), flags) {
            Ok(()) => self.waiting[place] = Some(waiting),
            Err(error) => events.push(waiting.drop_for(Dropped::Unwatched(error))),
        }
        Ok(true)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only if it is still this one's file.
        let there = std::fs::symlink_metadata(&self.path).map(|m| (m.dev(), m.ino()));
        if there.is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Waiting {
    fn drop_for(self, why: Dropped) -> Event {
        Event::Dropped { uid: self.uid, pid: self.pid, why }
    }

    /// Reads the hello. Descriptors that come with it are closed.
    fn hear(self) -> Event {
        let hello = handshake::receive(self.socket.as_fd()).and_then(|(message, _)| Hello::decode(&message));
        let hello = match hello {
            Ok(hello) => hello,
            Err(error) => {
                if !matches!(error, HandshakeError::Socket(_)) {
                    refuse(self.socket.as_fd(), &error.to_string());
                }
                return self.drop_for(error.into());
            }
        };
        match self.peer_pidfd() {
            Ok(pidfd) => {
                let peer = Peer { pid: self.pid, uid: self.uid, gid: self.gid, pidfd };
                Event::Hello(Caller { hello, peer, socket: self.socket })
            }
            Err(error) => {
                refuse(
                    self.socket.as_fd(),
                    "the manager cannot watch your process; in a container this needs Linux 6.5 on the host",
                );
                self.drop_for(Dropped::Unwatched(error))
            }
        }
    }

    fn peer_pidfd(&self) -> Result<OwnedFd, Errno> {
        match process::peer_pidfd(self.socket.as_fd()) {
            Err(Errno::NOPROTOOPT) => self.pidfd_by_pid(),
            other => other,
        }
    }

    /// Opens the peer by its pid, and checks after that the connection stands and that the process is its user's: if the peer had
    /// died before, its end would be closed.
    fn pidfd_by_pid(&self) -> Result<OwnedFd, Errno> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let pid = self.pid.ok_or(Errno::SRCH)?;
        let pidfd = process::pidfd_open(pid)?;
        let mut connection = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut connection, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let closed = connection[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
        let owner = std::fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).map(|m| m.uid());
        // The folder of a process that may not be dumped belongs to root.
        let owned = owner.is_ok_and(|uid| uid == self.uid || uid == 0);
        if closed || !owned { Err(Errno::SRCH) } else { Ok(pidfd) }
    }
}

fn refuse(socket: BorrowedFd<'_>, reason: &str) {
    // Whether the peer still listens makes no difference.
    let _ = handshake::send(socket, &Answer::Refusal(reason.into()).encode(), &[]);
}

impl Caller {
    /// Checks the user: an NF of a service may be run by the user of that service, by the manager's own, or by root.
    ///
    /// # Errors
    /// The reason, for [`Caller::refuse`].
    pub fn may_attach_as(&self, service_uid: Option<u32>) -> Result<(), String> {
        let manager = rustix::process::geteuid().as_raw();
        let uid = self.peer.uid;
        if uid == 0 || uid == manager || Some(uid) == service_uid {
            return Ok(());
        }
        let who = service_uid.filter(|user| *user != manager && *user != 0);
        let who = who.map_or_else(|| format!("user {manager}"), |user| format!("users {user} and {manager}"));
        Err(format!("user {uid} may not attach as {}; {who} and root may: set `user` of the service", self.hello.name))
    }

    /// Lets it in: sends the welcome with the descriptors of arena, region and core page. Never blocks.
    ///
    /// # Errors
    /// What the socket says: the process has gone.
    pub fn welcome(self, welcome: &Welcome, fds: [BorrowedFd<'_>; 3]) -> Result<Attached, HandshakeError> {
        handshake::send(self.socket.as_fd(), &Answer::Welcome(Box::new(welcome.clone())).encode(), &fds)?;
        Ok(Attached { peer: self.peer, socket: self.socket })
    }

    /// Lets a zygote in: tells it where its children will be. Never blocks.
    ///
    /// # Errors
    /// As [`Caller::welcome`].
    pub fn introduce(self, surroundings: &Surroundings) -> Result<Attached, HandshakeError> {
        handshake::send(self.socket.as_fd(), &surroundings.encode(), &[])?;
        Ok(Attached { peer: self.peer, socket: self.socket })
    }

    /// Says no, and why, and closes the connection. Gives whom it has refused.
    pub fn refuse(self, reason: &str) -> Peer {
        refuse(self.socket.as_fd(), reason);
        self.peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_shm::arena::Geometry;
    use sluice_shm::memory::SharedMemory;
    use sluice_shm::page::RegionLayout;

    const MS: u64 = 1_000_000;

    struct Door {
        _folder: tempfile::TempDir,
        listener: Listener,
    }

    fn door() -> Door {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("nf.sock"), 0o666).unwrap();
        Door { _folder: folder, listener }
    }

    impl Door {
        fn knock(&self) -> OwnedFd {
            knock(self.listener.path())
        }

        fn serve(&mut self, now_ns: u64) -> Vec<Event> {
            self.listener.serve(now_ns).unwrap()
        }

        fn waiting(&self) -> usize {
            self.listener.waiting.iter().flatten().count()
        }

        fn is_readable(&self) -> bool {
            process::wait_readable(self.listener.fd(), Some(0)).unwrap()
        }
    }

    fn knock(path: &Path) -> OwnedFd {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    fn say_hello(socket: &OwnedFd, name: &str) {
        handshake::send(socket.as_fd(), &Hello { name: name.into(), is_zygote: false }.encode(), &[]).unwrap();
    }

    fn answer(socket: &OwnedFd) -> Answer {
        Answer::decode(&handshake::receive(socket.as_fd()).unwrap().0).unwrap()
    }

    fn callers(events: Vec<Event>) -> Vec<Caller> {
        let caller = |event| match event {
            Event::Hello(caller) => caller,
            Event::Dropped { why, .. } => panic!("dropped: {why}"),
        };
        events.into_iter().map(caller).collect()
    }

    fn reasons(events: Vec<Event>) -> Vec<Dropped> {
        let reason = |event| match event {
            Event::Hello(caller) => panic!("a hello of {}", caller.hello.name),
            Event::Dropped { why, .. } => why,
        };
        events.into_iter().map(reason).collect()
    }

    fn welcome() -> Welcome {
        Welcome {
            geometry: Geometry { first: 0, frames: 64, stride: 2240 },
            region: RegionLayout::new(2, 256).unwrap(),
            slots: 8,
            slot: 3,
            name: "ids.0".into(),
            core: 1,
            poll: false,
            linger_ns: 2000,
            clock_scale: 1 << 31,
            ports: vec![],
            services: vec![],
            chains: vec![],
        }
    }

    #[test]
    fn an_nf_comes_in_and_its_leaving_is_seen() {
        let mut door = door();
        assert!(!door.is_readable());
        let path = door.listener.path().to_path_buf();
        let nf = std::thread::spawn(move || {
            let socket = knock(&path);
            let (welcome, _) = handshake::attach(&socket, &Hello { name: "ids".into(), is_zygote: false }).unwrap();
            (socket, welcome)
        });
        let mut events = Vec::new();
        while events.is_empty() {
            process::wait_readable(door.listener.fd(), None).unwrap();
            events = door.serve(0);
        }
        let caller = callers(events).pop().unwrap();
        assert_eq!(caller.hello.name, "ids");
        assert_eq!(caller.peer.pid, Some(rustix::process::getpid()));
        assert_eq!(caller.peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(process::wait_readable(caller.peer.pidfd.as_fd(), Some(0)), Ok(false), "its process lives");
        assert_eq!(caller.may_attach_as(None), Ok(()));

        let memory = SharedMemory::create("test", 4096, false).unwrap();
        let attached = caller.welcome(&welcome(), [memory.fd(), memory.fd(), memory.fd()]).unwrap();
        let (socket, got) = nf.join().unwrap();
        assert_eq!(got, welcome());
        // A second hello is not for the listener, nor is anything else on this connection.
        say_hello(&socket, "ids.0");
        assert!(!door.is_readable());
        assert_eq!(process::wait_readable(attached.socket.as_fd(), Some(0)), Ok(true));
        handshake::receive(attached.socket.as_fd()).unwrap();
        assert_eq!(process::wait_readable(attached.socket.as_fd(), Some(0)), Ok(false));
        drop(socket);
        assert_eq!(process::wait_readable(attached.socket.as_fd(), None), Ok(true));
        assert!(handshake::receive(attached.socket.as_fd()).is_err());
        assert_eq!(door.waiting(), 0);
    }

    #[test]
    fn a_refusal_says_why() {
        let mut door = door();
        let nf = door.knock();
        say_hello(&nf, "ghost");
        callers(door.serve(0)).pop().unwrap().refuse("there is no NF ghost");
        assert_eq!(answer(&nf), Answer::Refusal("there is no NF ghost".into()));
        assert!(handshake::receive(nf.as_fd()).is_err(), "and closes");
    }

    #[test]
    fn only_the_services_user_the_managers_and_root_may_attach() {
        let mut door = door();
        let nf = door.knock();
        say_hello(&nf, "ids.0");
        let mut caller = callers(door.serve(0)).pop().unwrap();
        let manager = rustix::process::geteuid().as_raw();
        for (uid, service, may) in
            [(0, None, true), (manager, Some(1234), true), (1234, Some(1234), true), (1235, Some(1234), false), (1234, None, false)]
        {
            caller.peer.uid = uid;
            assert_eq!(caller.may_attach_as(service).is_ok(), may, "{uid} as {service:?}");
        }
        assert_eq!(
            caller.may_attach_as(Some(77)).unwrap_err(),
            format!("user 1234 may not attach as ids.0; users 77 and {manager} and root may: set `user` of the service")
        );
    }

    #[test]
    fn a_silent_client_keeps_nobody_waiting_and_is_closed_in_time() {
        let mut door = door();
        let silent = door.knock();
        assert!(door.serve(5 * MS).is_empty());
        assert_eq!(door.listener.next_deadline_ns(), Some(1005 * MS));

        let nf = door.knock();
        say_hello(&nf, "ids.0");
        assert_eq!(callers(door.serve(500 * MS)).len(), 1);

        assert!(door.serve(1004 * MS).is_empty());
        assert!(matches!(reasons(door.serve(1005 * MS))[..], [Dropped::Silent]));
        assert!(handshake::receive(silent.as_fd()).is_err(), "closed");
        assert_eq!(door.listener.next_deadline_ns(), None);
    }

    #[test]
    fn nonsense_is_refused_and_a_hangup_is_noticed() {
        let mut door = door();
        let (nonsense, old, gone) = (door.knock(), door.knock(), door.knock());
        handshake::send(nonsense.as_fd(), b"GET / HTTP/1.0", &[]).unwrap();
        let mut other_version = Hello { name: "ids.0".into(), is_zygote: false }.encode();
        other_version[4] ^= 0x40;
        handshake::send(old.as_fd(), &other_version, &[]).unwrap();
        drop(gone);
        let reasons = reasons(door.serve(0));
        assert_eq!(reasons.len(), 3);
        assert!(reasons.iter().any(|r| matches!(r, Dropped::Handshake(HandshakeError::NotSluice))));
        assert!(reasons.iter().any(|r| matches!(r, Dropped::Handshake(HandshakeError::Version { .. }))));
        assert!(reasons.iter().any(|r| matches!(r, Dropped::Handshake(HandshakeError::Socket(_)))));
        assert!(matches!(answer(&nonsense), Answer::Refusal(why) if why.contains("not a Sluice handshake")));
        assert!(matches!(answer(&old), Answer::Refusal(why) if why.contains("build both from the same release")));
        assert_eq!(door.waiting(), 0);
    }

    #[test]
    fn descriptors_that_a_client_sends_are_closed() {
        let mut door = door();
        let nf = door.knock();
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        handshake::send(nf.as_fd(), &Hello { name: "ids.0".into(), is_zygote: false }.encode(), &[writer.as_fd(), writer.as_fd()])
            .unwrap();
        drop(writer);
        let caller = callers(door.serve(0)).pop().unwrap();
        // No writer is left: the end of the stream.
        assert_eq!(rustix::io::read(&reader, &mut [0u8; 1]), Ok(0));
        drop(caller);
    }

    #[test]
    fn a_flood_takes_places_from_its_own_user_only_and_only_after_a_grace() {
        let mut door = door();
        let flood: Vec<OwnedFd> = (0..PENDING).map(|_| door.knock()).collect();
        assert!(door.serve(0).is_empty());
        assert_eq!(door.waiting(), PENDING);
        // One of them is another user's, and the oldest of all.
        door.listener.waiting[9].as_mut().unwrap().uid = 4242;
        for place in (0..PENDING).filter(|p| *p != 9) {
            door.listener.waiting[place].as_mut().unwrap().since_ns = MS + (place == 5) as u64;
        }
        door.listener.waiting[7].as_mut().unwrap().since_ns = MS / 2;

        let late = door.knock();
        say_hello(&late, "ids.0");
        assert!(door.serve(10 * MS).is_empty(), "all are within their grace");
        assert!(!door.is_readable(), "and the supervisor is not woken in vain");
        assert_eq!(door.listener.next_deadline_ns(), Some(MS / 2 + GRACE_NS));

        let mut events = door.serve(MS / 2 + GRACE_NS);
        assert_eq!(callers(events.split_off(1))[0].hello.name, "ids.0");
        assert!(matches!(reasons(events)[..], [Dropped::Crowded]));
        assert!(handshake::receive(flood[7].as_fd()).is_err(), "the oldest of the crowd is closed");
        assert_eq!(door.waiting(), PENDING - 1);
        assert!(door.listener.waiting[9].is_some(), "the other user keeps his place");
    }

    #[test]
    fn a_user_who_is_nobodys_waits_for_nothing() {
        let mut door = door();
        if !rustix::process::geteuid().is_root() {
            eprintln!("not root: nobody else can knock, so what is asserted is that oneself is let in");
            door.listener.know(Some(BTreeSet::new()));
            let _nf = door.knock();
            assert!(door.serve(0).is_empty());
            return;
        }
        std::fs::set_permissions(door._folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = door.listener.path().to_path_buf();
        // A thread can be another user by itself: the system call is of the thread.
        let knock_as = |uid: u32| {
            let path = path.clone();
            let knock = move || {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
                knock(&path)
            };
            std::thread::spawn(knock).join().unwrap()
        };
        door.listener.know(Some([4242].into()));
        // A few are heard, so that they can be told why they may not come.
        let few: Vec<OwnedFd> = (0..STRANGERS).map(|_| knock_as(4243)).collect();
        assert!(door.serve(0).is_empty());
        let stranger = knock_as(4244);
        assert!(matches!(reasons(door.serve(0))[..], [Dropped::Stranger]));
        assert!(handshake::receive(stranger.as_fd()).is_err(), "closed");
        let known = knock_as(4242);
        assert!(door.serve(0).is_empty());
        assert_eq!(door.waiting(), STRANGERS + 1);
        door.listener.know(None);
        let anybody = knock_as(4243);
        assert!(door.serve(0).is_empty());
        assert_eq!(door.waiting(), STRANGERS + 2);
        drop((few, known, anybody));
    }

    #[test]
    fn a_want_of_descriptors_is_waited_out() {
        let mut door = door();
        let nf = door.knock();
        say_hello(&nf, "ids.0");
        door.listener.short_until_ns = 50 * MS;
        assert!(door.serve(10 * MS).is_empty());
        assert!(!door.is_readable(), "the supervisor does not spin");
        assert_eq!(door.listener.next_deadline_ns(), Some(50 * MS));
        assert_eq!(callers(door.serve(50 * MS)).len(), 1);
        assert_eq!(door.listener.next_deadline_ns(), None);
    }

    #[test]
    fn a_thousand_nfs_come_in_at_once() {
        process::raise_nofile(0).unwrap();
        let mut door = door();
        let path = door.listener.path().to_path_buf();
        let nfs = std::thread::spawn(move || {
            let connect = |i: usize| {
                let socket = knock(&path);
                say_hello(&socket, &format!("ids.{i}"));
                socket
            };
            (0..1000).map(connect).collect::<Vec<_>>()
        });
        let mut names = std::collections::HashSet::new();
        while names.len() < 1000 {
            process::wait_readable(door.listener.fd(), None).unwrap();
            // The clock stands still: nobody may be dropped.
            names.extend(callers(door.serve(0)).into_iter().map(|caller| caller.hello.name));
        }
        nfs.join().unwrap();
        assert_eq!(door.waiting(), 0);
        assert!(!door.is_readable());
    }

    #[test]
    fn the_peer_is_also_found_without_the_newer_kernels_help() {
        let mut door = door();
        let nf = door.knock();
        door.serve(0);
        let waiting = door.listener.waiting.iter_mut().find_map(Option::take).unwrap();
        let pidfd = waiting.pidfd_by_pid().unwrap();
        assert_eq!(process::wait_readable(pidfd.as_fd(), Some(0)), Ok(false));
        let stranger = Waiting { uid: 4242, socket: waiting.socket.try_clone().unwrap(), ..waiting };
        if !rustix::process::geteuid().is_root() {
            assert_eq!(stranger.pidfd_by_pid().unwrap_err(), Errno::SRCH);
        }
        assert_eq!(Waiting { pid: None, ..stranger }.pidfd_by_pid().unwrap_err(), Errno::SRCH);
        drop(nf);
        assert_eq!(waiting.pidfd_by_pid().unwrap_err(), Errno::SRCH);
    }

    #[test]
    fn the_socket_replaces_a_stale_one_has_its_mode_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nf.sock");
        let stale = Listener::bind(&path, 0o600).unwrap();
        let listener = Listener::bind(&path, 0o662).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o662);
        drop(stale);
        assert!(path.exists(), "the older one leaves the newer one's file alone");
        drop(listener);
        assert!(!path.exists());

        std::fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&path, 0o666).unwrap_err().to_string();
        assert_eq!(error, format!("{} is there and is no socket; move it away or choose another runtime_dir", path.display()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let error = Listener::bind(&folder.path().join("x".repeat(120)), 0o666).unwrap_err();
        assert!(matches!(error, AttachError::Long(_)));
        let error = Listener::bind(&folder.path().join("missing/nf.sock"), 0o666).unwrap_err().to_string();
        assert!(error.starts_with("cannot make the socket "), "{error}");
    }
}
