//! The NF's gate: where a scheduler without other means makes it wait.
//!
//! An NF uses its [gate](sluice_shm::gate) in one or both of two ways, and reports which in its
//! page:
//! - it *looks* at the gate before each burst, and waits there while it is closed, unless it polls:
//!   a polling NF is stopped by the scheduler, as a foreign program is;
//! - it *comes when called*: a real-time signal makes each thread of the process wait at the gate,
//!   in a handler, between two instructions. That also works for polling NFs and for threads that
//!   the library does not know. A program that wants no handlers
//!   ([`Options::signals`](crate::Options)) has none.
//!
//! An NF whose manager is gone waits for at most a second: nothing would open the gate.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_shm::gate::{COMES_WHEN_CALLED, IGNORES, LOOKS, come_when_called};
use sluice_shm::page::{Control, Counter, Page};

/// The connection to the manager, for the handler; -1 for none.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// Whether the manager at the other end is gone. Safe in a signal handler.
pub(crate) fn is_gone(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
    // An interrupted call is no answer; the next check will do.
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL)
}

fn is_orphan() -> bool {
    let fd = SOCKET.load(Ordering::Relaxed);
    if fd < 0 {
        return true;
    }
    // SAFETY: let_go() removes the number before the socket is closed; if another thread has just
    // reused it, the poll changes nothing there.
    is_gone(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Sets up the use of the gate and reports it in the page. Only a process's first NF can be called.
pub(crate) fn prepare(page: &Page, socket: &OwnedFd, polls: bool, may_handle: bool) {
    let looks = if polls { IGNORES } else { LOOKS };
    let mut comes = IGNORES;
    if may_handle {
        // Leaked: the signal may come at any time until the process ends.
        let page: &'static Page = Box::leak(Box::new(page.clone()));
        if come_when_called(page.control(Control::Gate), is_orphan) {
            SOCKET.store(socket.as_raw_fd(), Ordering::Relaxed);
            comes = COMES_WHEN_CALLED;
        }
    }
    // Release: the handler is installed before the word is visible.
    page.counter(Counter::Gate).store(looks + comes, Ordering::Release);
}

/// Removes a connection that is about to be closed, if the handler uses it.
pub(crate) fn let_go(socket: &OwnedFd) {
    let _ = SOCKET.compare_exchange(socket.as_raw_fd(), -1, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use sluice_shm::gate::SIGNAL;
    use sluice_shm::page::{Region, RegionLayout};

    fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(std::time::Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_thread_that_is_called_waits_until_the_gate_opens_or_nobody_is_left_to_open_it() {
        let region = Region::create(RegionLayout::new(1, 8).unwrap()).unwrap();
        let (own, manager) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        prepare(&region.page, &own, true, true);
        let does = || region.page.counter(Counter::Gate).load(Ordering::Acquire);
        assert_eq!(does(), COMES_WHEN_CALLED);
        let second = Region::create(RegionLayout::new(1, 8).unwrap()).unwrap();
        prepare(&second.page, &own, false, true);
        assert_eq!(
            second.page.counter(Counter::Gate).load(Ordering::Acquire),
            LOOKS,
            "a process has one gate that it is called to"
        );
        assert!(!is_gone(own.as_fd()));

        let (count, tid, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
        let worker = std::thread::spawn({
            let (count, tid, stop) = (count.clone(), tid.clone(), stop.clone());
            move || {
                tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
                while !stop.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        until("it runs", || count.load(Ordering::Relaxed) > 0);
        let call = || {
            // SAFETY: the signal has a handler, which was installed above.
            let sent = unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), tid.load(Ordering::SeqCst), SIGNAL) };
            assert_eq!(sent, 0);
        };
        // An open gate is passed.
        call();
        let seen = count.load(Ordering::Relaxed);
        until("it runs on", || count.load(Ordering::Relaxed) > seen + 1000);

        let gate = region.page.gate();
        gate.close();
        call();
        let stands = || {
            let path = format!("/proc/self/task/{}/wchan", tid.load(Ordering::SeqCst));
            std::fs::read_to_string(path).is_ok_and(|text| text.contains("futex")) || {
                let seen = count.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
                seen == count.load(Ordering::Relaxed)
            }
        };
        until("it stands", stands);
        gate.open();
        let seen = count.load(Ordering::Relaxed);
        until("it runs again", || count.load(Ordering::Relaxed) > seen);

        gate.close();
        call();
        until("it stands again", stands);
        drop(manager);
        let seen = count.load(Ordering::Relaxed);
        until("it runs when nobody is left", || count.load(Ordering::Relaxed) > seen);
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        let_go(&own);
        assert!(is_orphan());
    }
}
