//! The NF socket: accepts the processes of NFs, spawned or not.
//!
//! # Problem
//! The socket is in a folder that other users can enter, so any process may connect: often, without
//! a message, with garbage, or under another NF's name. None of this may delay an honest NF or
//! block the one thread that serves the socket.
//!
//! # Approach
//! A [`Listener`] has one descriptor for the supervisor's poll set ([`Listener::fd`], an epoll
//! set), one call that never blocks ([`Listener::serve`]), and a deadline for the next call
//! ([`Listener::next_deadline_ns`]). Time is an argument.
//! - A connection that sends no hello within [`HELLO_NS`] is closed.
//! - At most [`PENDING`] connections wait for their hello. When all places are taken, a new
//!   connection replaces the oldest one of the user with the most, once that has had [`GRACE_NS`].
//!   So a user that floods the socket displaces only its own connections.
//! - At most [`STRANGERS`] connections wait of users that run no NF ([`Listener::know`]), so that
//!   they can be refused with a reason. Others are closed as they are accepted.
//! - A listener that [shares](Listener::sharing) its thread with others accepts [`SHARE`]
//!   connections in a call, and after [`REFUSALS`] refusals since the last admission none for
//!   [`REST_NS`].
//! - The kernel identifies the peer as of its connection: user, group, and a pidfd. So a pid that
//!   is reused before the hello arrives identifies no other process.
//!
//! The caller of [`Listener::serve`] decides what a [`Caller`] may be ([`Caller::may_attach_as`]
//! checks the user) and answers with [`Caller::welcome`] or [`Caller::refuse`].
//!
//! # Limits
//! Before Linux 6.5 the kernel gives no pidfd of a peer. It is then opened by pid, and the
//! connection is checked afterwards. A process that connects, passes its socket to a child and
//! exits in between can be mistaken for the next process with its pid, if that has the same user.
//! An NF in a process namespace that is not below the manager's needs 6.5. A client that keeps the
//! backlog of the socket full (4,096 or `net.core.somaxconn`) delays others until the manager has
//! emptied it.

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

/// Most connections that wait for their hello at a time.
pub const PENDING: usize = 64;

/// Most of them that may belong to users that run no NF.
pub const STRANGERS: usize = 4;

/// Time that a connection has to send its hello, in nanoseconds.
pub const HELLO_NS: u64 = 1_000_000_000;

/// Time for which no other connection can replace a new one, in nanoseconds.
///
/// An honest NF sends its hello at once, but may be preempted before.
pub const GRACE_NS: u64 = 20_000_000;

/// Most connections that one call accepts of a listener that shares its thread.
pub const SHARE: usize = 16;

/// Refusals since the last admission after which such a listener rests.
pub const REFUSALS: u32 = 32;

/// Length of this rest, in nanoseconds.
pub const REST_NS: u64 = 100_000_000;

/// Why the socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The path does not fit in a socket address.
    #[error("the socket path {0} is longer than 107 bytes; choose a shorter runtime_dir")]
    Long(PathBuf),
    /// The path exists and is no socket.
    #[error("{0} is there and is no socket; move it away or choose another runtime_dir")]
    NotASocket(PathBuf),
    #[error("cannot make the socket {path}: {source}")]
    System {
        /// Path of the socket.
        path: PathBuf,
        source: io::Error,
    },
}

/// The process at the other end, as it was when it connected.
#[derive(Debug)]
pub struct Peer {
    /// For messages and to recognise a spawned process; None if this pid namespace lacks it.
    pub pid: Option<Pid>,
    pub uid: u32,
    pub gid: u32,
    /// Never refers to another process; readable once this one has ended.
    pub pidfd: OwnedFd,
}

/// A process that has sent its hello and waits for the answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Caller {
    pub hello: Hello,
    pub peer: Peer,
    socket: OwnedFd,
}

/// A process that was accepted as an NF or a zygote.
#[derive(Debug)]
pub struct Attached {
    pub peer: Peer,
    /// The nonblocking connection. An NF sends nothing more on it: readable means end of stream.
    pub socket: OwnedFd,
}

/// The outcome of a connection.
#[derive(Debug)]
pub enum AttachEvent {
    /// It sent a hello, which the manager must answer.
    Hello(Caller),
    /// It was closed without becoming a caller.
    Dropped {
        uid: u32,
        /// As [`Peer::pid`].
        pid: Option<Pid>,
        why: Dropped,
    },
}

/// Why a connection was closed.
#[derive(Debug, thiserror::Error)]
pub enum Dropped {
    /// It sent no hello within [`HELLO_NS`].
    #[error("it said no hello within a second")]
    Silent,
    /// Its user runs no NF, and [`STRANGERS`] such connections wait already.
    #[error("no service runs as its user: set `user` of the service that it is of")]
    Stranger,
    /// A newer connection took its place.
    #[error("too many connections of its user wait for a hello")]
    Crowded,
    /// It closed, or its message is no hello.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Its process has ended, no pidfd of it can be had, or epoll refused the connection.
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

/// The NF socket and the connections that wait for their hello.
///
/// Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    epoll: OwnedFd,
    path: PathBuf,
    /// The folder where the socket is made before it is moved to its path.
    made_in: Option<PathBuf>,
    /// Device and inode of the socket's file.
    file: (u64, u64),
    mode: u32,
    waiting: [Option<Waiting>; PENDING],
    /// Users that may run NFs; None for all.
    known: Option<BTreeSet<u32>>,
    /// Whether the epoll set watches the listening socket: false before [`Self::opens_ns`].
    accepting: bool,
    /// Earliest time of the next accept after descriptors or memory ran out, or in a rest.
    short_until_ns: u64,
    /// Refusals since the last admission, if it shares its thread.
    refused: Option<u32>,
}

/// Epoll data of the listening socket; that of a connection is its place.
const LISTENER: u64 = PENDING as u64;

/// Delay before the next accept when descriptors or memory run out, in nanoseconds.
const SHORT_NS: u64 = 50_000_000;

/// Most connections that one call accepts, so that a flood does not starve the supervisor.
const ACCEPTS: usize = 2 * PENDING;

/// Name of a socket in the folder where it is made, until it has its mode.
const NEW: &str = ".new";

/// Whether a socket can have this path.
///
/// # Errors
/// [`AttachError::Long`].
pub fn check_path(path: &Path) -> Result<(), AttachError> {
    SocketAddrUnix::new(path).map(drop).map_err(|_| AttachError::Long(path.into()))
}

/// Removes a socket that is at a path.
fn clear(path: &Path) -> Result<(), AttachError> {
    let system = |source: io::Error| AttachError::System { path: path.into(), source };
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path).map_err(system),
        Ok(_) => Err(AttachError::NotASocket(path.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(system(error)),
    }
}

/// Makes a socket at a path, in place of one there, by way of a folder that only the manager can
/// write, if there is one; also returns its file's device and inode.
fn listen_at(path: &Path, made_in: Option<&Path>, mode: u32) -> Result<(OwnedFd, (u64, u64)), AttachError> {
    check_path(path)?;
    clear(path)?;
    let Some(folder) = made_in else { return make_at(path, mode) };
    let new = folder.join(NEW);
    clear(&new)?;
    let made = make_at(&new, mode)?;
    std::fs::rename(&new, path).map_err(|source| {
        // Else the folder could not be removed.
        let _ = std::fs::remove_file(&new);
        AttachError::System { path: path.into(), source }
    })?;
    Ok(made)
}

fn make_at(path: &Path, mode: u32) -> Result<(OwnedFd, (u64, u64)), AttachError> {
    let system = |source: io::Error| AttachError::System { path: path.into(), source };
    let failed = |error: Errno| system(error.into());
    let address = SocketAddrUnix::new(path).map_err(|_| AttachError::Long(path.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
    // On Linux the file gets the socket's own mode, less the umask, so it is never wider than
    // asked. The second call undoes the umask; it follows a link that is there instead by now.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode)).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(system)?;
    let metadata = std::fs::symlink_metadata(path).map_err(system)?;
    rustix::net::listen(&socket, 4096).map_err(failed)?;
    Ok((socket, (metadata.dev(), metadata.ino())))
}

impl Listener {
    /// Makes the socket, in place of one that an earlier manager left.
    ///
    /// The caller holds the lock of the runtime directory ([`crate::record::Record`]), so no
    /// process listens on the earlier one. `mode` limits which users may connect: 0o666 if NFs run
    /// as other users, 0o600 if none does. It does not replace [`Caller::may_attach_as`].
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, AttachError> {
        Self::bind_by(None, path, mode)
    }

    /// The same, at a path in a folder that others can write. The socket is made and gets its mode
    /// in another folder of the same file system, which the manager alone can write: between the
    /// two steps others could put a link in its place.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn bind_from(folder: &Path, path: &Path, mode: u32) -> Result<Self, AttachError> {
        Self::bind_by(Some(folder), path, mode)
    }

    fn bind_by(made_in: Option<&Path>, path: &Path, mode: u32) -> Result<Self, AttachError> {
        let (socket, file) = listen_at(path, made_in, mode)?;
        let failed = |error: Errno| AttachError::System { path: path.into(), source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).map_err(failed)?;
        Ok(Self {
            socket,
            epoll,
            path: path.into(),
            made_in: made_in.map(Path::to_path_buf),
            file,
            mode,
            waiting: [const { None }; PENDING],
            known: None,
            accepting: true,
            short_until_ns: 0,
            refused: None,
        })
    }

    /// The listener as one of several with a thread: none delays the others by its own flood.
    #[must_use]
    pub fn sharing(mut self) -> Self {
        self.refused = Some(0);
        self
    }

    /// Notes what became of a caller.
    pub fn answered(&mut self, is_admitted: bool, now_ns: u64) {
        match is_admitted {
            true => self.refused = self.refused.map(|_| 0),
            false => self.count_refused(1, now_ns),
        }
    }

    fn count_refused(&mut self, n: usize, now_ns: u64) {
        let Some(refused) = &mut self.refused else { return };
        *refused += n as u32;
        if *refused >= REFUSALS {
            *refused = 0;
            self.short_until_ns = self.short_until_ns.max(now_ns + REST_NS);
        }
    }

    /// Makes the socket anew if its file was removed or replaced, and returns whether it was.
    ///
    /// The caller holds the lock of the runtime directory. Connections that wait for their hello
    /// stay.
    ///
    /// # Errors
    /// [`AttachError`]; the listener then keeps the former socket, which no client can reach.
    pub fn keep(&mut self) -> Result<bool, AttachError> {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.file) {
            return Ok(false);
        }
        let (socket, file) = listen_at(&self.path, self.made_in.as_deref(), self.mode)?;
        let failed = |error: Errno| AttachError::System { path: self.path.clone(), source: error.into() };
        // Closing the former one removes it from the set.
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).map_err(failed)?;
        (self.socket, self.file, self.accepting) = (socket, file, true);
        Ok(true)
    }

    /// Readable when [`Listener::serve`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Sets the users that may run NFs besides root and the manager's own; None for all.
    pub fn know(&mut self, users: Option<BTreeSet<u32>>) {
        self.known = users;
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Latest time of the next [`Listener::serve`], on the clock of its argument.
    ///
    /// None if only the descriptor matters.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let silent = self.waiting.iter().flatten().map(|w| w.since_ns + HELLO_NS).min();
        let knock = (!self.accepting).then(|| self.opens_ns());
        silent.into_iter().chain(knock).min()
    }

    /// Earliest time at which a new connection can be accepted.
    fn opens_ns(&self) -> u64 {
        let is_full = self.waiting.iter().all(Option::is_some);
        let crowd = self.crowd().filter(|_| is_full).and_then(|place| self.waiting[place].as_ref());
        crowd.map_or(0, |w| w.since_ns + GRACE_NS).max(self.short_until_ns)
    }

    /// Accepts connections, reads hellos and closes silent connections. Never blocks.
    ///
    /// # Errors
    /// Only if the socket as a whole is unusable. When descriptors or memory run out, new
    /// connections wait in the backlog.
    pub fn serve(&mut self, now_ns: u64) -> Result<Vec<AttachEvent>, Errno> {
        let mut events = Vec::new();
        // Hellos first, because they free places.
        self.read_hellos(&mut events)?;
        self.expire(now_ns, &mut events);
        for _ in 0..self.refused.map_or(ACCEPTS, |_| SHARE) {
            if now_ns < self.short_until_ns {
                break;
            }
            let Some(place) = self.free_place(now_ns, &mut events) else { break };
            if !self.accept_one(place, now_ns, &mut events)? {
                break;
            }
        }
        // Most clients send their hello right after connecting, so reading it now saves a round of
        // the supervisor.
        self.read_hellos(&mut events)?;
        let dropped = events.iter().filter(|event| matches!(event, AttachEvent::Dropped { .. })).count();
        self.count_refused(dropped, now_ns);
        let room = now_ns >= self.opens_ns();
        if room != self.accepting {
            let flags = if room { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            epoll::modify(&self.epoll, &self.socket, epoll::EventData::new_u64(LISTENER), flags)?;
            self.accepting = room;
        }
        Ok(events)
    }

    /// Reads the hellos that have arrived, and frees their places.
    fn read_hellos(&mut self, events: &mut Vec<AttachEvent>) -> Result<(), Errno> {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; PENDING + 1];
        let n = match epoll::wait(&self.epoll, &mut ready, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(Errno::INTR) => return Ok(()),
            n => n?,
        };
        for event in &ready[..n] {
            // A copy: the struct is packed.
            let place = event.data.u64() as usize;
            if let Some(waiting) = self.waiting.get_mut(place).and_then(Option::take) {
                // Later messages on this connection are not for the listener.
                epoll::delete(&self.epoll, &waiting.socket)?;
                events.push(waiting.hear());
            }
        }
        Ok(())
    }

    fn expire(&mut self, now_ns: u64, events: &mut Vec<AttachEvent>) {
        for place in &mut self.waiting {
            if let Some(silent) = place.take_if(|w| now_ns >= w.since_ns + HELLO_NS) {
                events.push(silent.drop_for(Dropped::Silent));
            }
        }
    }

    /// The place of the oldest connection of the user with the most.
    fn crowd(&self) -> Option<usize> {
        let places = || self.waiting.iter().enumerate().filter_map(|(place, w)| Some((place, w.as_ref()?)));
        let of = |uid: u32| places().filter(|(_, w)| w.uid == uid).count();
        let (_, greediest) = places().max_by_key(|(_, w)| of(w.uid))?;
        let uid = greediest.uid;
        places().filter(|(_, w)| w.uid == uid).min_by_key(|(_, w)| w.since_ns).map(|(place, _)| place)
    }

    /// A free place, or [`Self::crowd`]'s if a connection is waiting to be accepted.
    fn free_place(&mut self, now_ns: u64, events: &mut Vec<AttachEvent>) -> Option<usize> {
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

    /// Accepts one connection into a free place. False if none can be accepted now.
    fn accept_one(&mut self, place: usize, now_ns: u64, events: &mut Vec<AttachEvent>) -> Result<bool, Errno> {
        let socket = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            // The client has closed again, or a signal came: the next one may be there.
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
        // The file may be a newer listener's.
        let there = std::fs::symlink_metadata(&self.path).map(|m| (m.dev(), m.ino()));
        if there.is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Waiting {
    fn drop_for(self, why: Dropped) -> AttachEvent {
        AttachEvent::Dropped { uid: self.uid, pid: self.pid, why }
    }

    /// Reads the hello, and closes descriptors that come with it.
    fn hear(self) -> AttachEvent {
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
                AttachEvent::Hello(Caller { hello, peer, socket: self.socket })
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

    /// Opens the peer by its pid, then checks that the process is its user's and the connection is
    /// open.
    ///
    /// If the peer had ended before, its end would be closed.
    fn pidfd_by_pid(&self) -> Result<OwnedFd, Errno> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let pid = self.pid.ok_or(Errno::SRCH)?;
        let pidfd = process::pidfd_open(pid)?;
        let mut connection = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut connection, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        let closed = connection[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
        let owner = std::fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).map(|m| m.uid());
        // Root owns the /proc folder of a process that is not dumpable.
        let owned = owner.is_ok_and(|uid| uid == self.uid || uid == 0);
        if closed || !owned { Err(Errno::SRCH) } else { Ok(pidfd) }
    }
}

fn refuse(socket: BorrowedFd<'_>, reason: &str) {
    // A peer that has closed needs no answer.
    let _ = handshake::send(socket, &Answer::Refusal(reason.into()).encode(), &[]);
}

impl Caller {
    /// Checks the user: only the service's, the manager's own and root may attach as its NF.
    ///
    /// # Errors
    /// The reason, for [`Caller::refuse`].
    pub fn may_attach_as(&self, service_uid: Option<u32>) -> Result<(), String> {
        let manager = rustix::process::geteuid().as_raw();
        let uid = self.peer.uid;
        if uid == 0 || uid == manager || Some(uid) == service_uid {
            return Ok(());
        }
        let others = service_uid.filter(|user| *user != manager && *user != 0);
        let users = others.map_or_else(|| format!("user {manager}"), |user| format!("users {user} and {manager}"));
        Err(format!("user {uid} may not attach as {}; {users} and root may: set `user` of the service", self.hello.name))
    }

    /// Sends the welcome with the descriptors of arena, region and core page. Never blocks.
    ///
    /// # Errors
    /// Those of the socket: the process has gone.
    pub fn welcome(self, welcome: &Welcome, fds: [BorrowedFd<'_>; 3]) -> Result<Attached, HandshakeError> {
        handshake::send(self.socket.as_fd(), &Answer::Welcome(Box::new(welcome.clone())).encode(), &fds)?;
        Ok(Attached { peer: self.peer, socket: self.socket })
    }

    /// Accepts a zygote: sends the surroundings of its future children. Never blocks.
    ///
    /// # Errors
    /// As [`Caller::welcome`].
    pub fn introduce(self, surroundings: &Surroundings) -> Result<Attached, HandshakeError> {
        handshake::send(self.socket.as_fd(), &surroundings.encode(), &[])?;
        Ok(Attached { peer: self.peer, socket: self.socket })
    }

    /// Refuses the hello with a reason, closes the connection, and returns the peer.
    pub fn refuse(self, reason: &str) -> Peer {
        refuse(self.socket.as_fd(), reason);
        self.peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
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

        fn serve(&mut self, now_ns: u64) -> Vec<AttachEvent> {
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

    fn callers(events: Vec<AttachEvent>) -> Vec<Caller> {
        let caller = |event| match event {
            AttachEvent::Hello(caller) => caller,
            AttachEvent::Dropped { why, .. } => panic!("dropped: {why}"),
        };
        events.into_iter().map(caller).collect()
    }

    fn reasons(events: Vec<AttachEvent>) -> Vec<Dropped> {
        let reason = |event| match event {
            AttachEvent::Hello(caller) => panic!("a hello of {}", caller.hello.name),
            AttachEvent::Dropped { why, .. } => why,
        };
        events.into_iter().map(reason).collect()
    }

    fn welcome() -> Welcome {
        Welcome {
            geometry: Geometry { first: 0, frames: 64, stride: 2240 },
            region: RegionLayout::new(2, 256).unwrap(),
            slots: 8,
            slot: 3,
            hands_over: true,
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
        // Nothing more on this connection is for the listener, not even a second hello.
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
        // No writer is left, so this is the end of the stream.
        assert_eq!(rustix::io::read(&reader, &mut [0u8; 1]), Ok(0));
        drop(caller);
    }

    #[test]
    fn a_flood_takes_places_from_its_own_user_only_and_only_after_a_grace() {
        let mut door = door();
        let flood: Vec<OwnedFd> = (0..PENDING).map(|_| door.knock()).collect();
        assert!(door.serve(0).is_empty());
        assert_eq!(door.waiting(), PENDING);
        // One of them is another user's and the oldest of all.
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
    fn a_user_without_a_service_waits_for_nothing() {
        let mut door = door();
        if !rustix::process::geteuid().is_root() {
            skip("only root can knock as another user: what is asserted is that oneself is let in");
            door.listener.know(Some(BTreeSet::new()));
            let _nf = door.knock();
            assert!(door.serve(0).is_empty());
            return;
        }
        std::fs::set_permissions(door._folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = door.listener.path().to_path_buf();
        // The system call changes the user of the calling thread only.
        let knock_as = |uid: u32| {
            let path = path.clone();
            let knock = move || {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
                knock(&path)
            };
            std::thread::spawn(knock).join().unwrap()
        };
        door.listener.know(Some([4242].into()));
        // A few wait, so that they can be refused with a reason.
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
    fn a_listener_that_shares_its_thread_takes_its_share_and_rests_after_refusals() {
        let shared = || {
            let Door { _folder, listener } = door();
            Door { _folder, listener: listener.sharing() }
        };
        let mut door = shared();
        let flood: Vec<OwnedFd> = (0..100).map(|_| door.knock()).collect();
        flood.iter().for_each(|one| say_hello(one, "ghost"));
        let mut now = 0;
        for _ in 0..2 {
            for _ in 0..REFUSALS as usize / SHARE {
                let all = callers(door.serve(now));
                assert_eq!(all.len(), SHARE);
                for caller in all {
                    caller.refuse("there is no NF ghost");
                    door.listener.answered(false, now);
                }
            }
            // The others of the thread have it to themselves.
            assert!(door.serve(now).is_empty() && door.serve(now + REST_NS - 1).is_empty() && !door.is_readable());
            assert_eq!(door.listener.next_deadline_ns(), Some(now + REST_NS));
            now += REST_NS;
        }
        // What is admitted is none of a flood.
        for _ in 0..REFUSALS {
            door.listener.answered(false, now);
            door.listener.answered(true, now);
        }
        assert_eq!(callers(door.serve(now)).len(), SHARE);
        // What says no hello counts, too.
        let mut door = shared();
        let closed: Vec<OwnedFd> = (0..100).map(|_| door.knock()).collect();
        drop(closed);
        assert_eq!([door.serve(0).len(), door.serve(0).len(), door.serve(0).len()], [SHARE, SHARE, 0]);
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
            // The clock does not advance, so no connection may be dropped.
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

    #[test]
    fn a_link_in_place_of_a_socket_changes_the_mode_of_no_other_file() {
        use std::sync::atomic::{AtomicBool, Ordering};
        const TIMES: usize = 2_000;
        let folder = tempfile::tempdir().unwrap();
        let (own, path) = (folder.path().join("slo"), folder.path().join("slo/nf.sock"));
        std::fs::create_dir(&own).unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, "").unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut listener = Listener::bind_from(folder.path(), &path, 0o666).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // What may write the SLO's folder puts links there, as fast as it can.
            scope.spawn(|| {
                let link = own.join("link");
                while !is_over.load(Ordering::Relaxed) {
                    if std::fs::symlink_metadata(&path).is_ok_and(|there| there.file_type().is_socket()) {
                        std::os::unix::fs::symlink(&other, &link).unwrap();
                        std::fs::rename(&link, &path).unwrap();
                    }
                }
            });
            for _ in 0..TIMES {
                let _ = std::fs::remove_file(&path);
                // It may find a link there already.
                let _ = listener.keep();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(other.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        assert!(listener.keep().unwrap());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        assert!(!folder.path().join(NEW).exists());
        let mut door = Door { _folder: folder, listener };
        let nf = door.knock();
        say_hello(&nf, "ids.0");
        assert_eq!(callers(door.serve(0)).len(), 1);
    }
}
