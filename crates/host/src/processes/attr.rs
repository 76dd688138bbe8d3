//! How the kernel schedules a thread: policy, priority, nice value and deadline parameters.
//!
//! Read whole, so that it can be restored whole.

use std::time::Duration;

use rustix::io::Errno;

use crate::process::last_errno;

/// Flag: new threads and children start with the default class. Clearing it needs a capability.
const RESET_ON_FORK: u64 = 1;

/// The result of sched_getattr(2), in the structure's first version; later kernels accept it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[repr(C)]
pub struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const BYTES: u32 = size_of::<Attr>() as u32;
const _: () = assert!(BYTES == 48);

impl Attr {
    /// That of a thread, by thread id; 0 is the calling one.
    ///
    /// # Errors
    /// [`Errno::SRCH`] if there is no such thread.
    pub fn of(tid: i32) -> Result<Self, Errno> {
        let mut attr = Self::default();
        // SAFETY: `attr` is live, of the kernel's layout, and of the length that is passed.
        if unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, BYTES, 0) } != 0 {
            return Err(last_errno());
        }
        Ok(Self { size: BYTES, flags: attr.flags & RESET_ON_FORK, ..attr })
    }

    /// Gives it to a thread.
    ///
    /// # Errors
    /// [`Errno::PERM`] if this user may not, [`Errno::SRCH`] if there is no such thread.
    pub fn give(&self, tid: i32) -> Result<(), Errno> {
        // SAFETY: `self` is of the kernel's layout and contains its length.
        if unsafe { libc::syscall(libc::SYS_sched_setattr, tid, std::ptr::from_ref(self), 0) } != 0 {
            return Err(last_errno());
        }
        Ok(())
    }

    /// The round-robin class with a priority, for a thread that had this.
    #[must_use]
    pub(crate) fn round_robin(&self, priority: u8) -> Self {
        Self {
            size: BYTES,
            policy: libc::SCHED_RR as u32,
            flags: self.flags & RESET_ON_FORK,
            priority: priority.into(),
            ..Self::default()
        }
    }

    /// The same with SCHED_RESET_ON_FORK: children and new threads start with the default class.
    ///
    /// Undoing this needs CAP_SYS_NICE.
    #[must_use]
    pub(crate) fn without_heirs(self) -> Self {
        Self { flags: self.flags | RESET_ON_FORK, ..self }
    }

    /// Whether children and new threads inherit it.
    pub(crate) fn has_heirs(&self) -> bool {
        self.flags & RESET_ON_FORK == 0
    }

    /// Whether it is the default that children start with after SCHED_RESET_ON_FORK.
    pub(crate) fn is_default(&self) -> bool {
        // The runtime is ignored: the kernel returns the slice of this class there.
        self.policy == libc::SCHED_OTHER as u32 && self.nice == 0 && self.flags == 0
    }

    pub(crate) fn is_round_robin(&self, priority: u8) -> bool {
        self.policy == libc::SCHED_RR as u32 && self.priority == u32::from(priority)
    }
}

/// The slice that the kernel gives the calling thread, if that is of the default class and the
/// kernel says it (since Linux 6.12).
pub fn fair_slice() -> Option<Duration> {
    let attr = Attr::of(0).ok()?;
    (attr.policy == libc::SCHED_OTHER as u32 && attr.runtime > 0).then(|| Duration::from_nanos(attr.runtime))
}

/// Changes the priority of a thread that has a real-time class already; the cheapest call.
///
/// # Errors
/// [`Errno::INVAL`] if it has no such class.
#[inline]
pub(crate) fn set_priority(tid: i32, priority: u8) -> Result<(), Errno> {
    let param = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: `param` is live and of the type that the call reads.
    if unsafe { libc::sched_setparam(tid, &raw const param) } != 0 {
        return Err(last_errno());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    #[test]
    fn only_a_fair_thread_has_a_fair_slice() {
        let thread = std::thread::spawn(|| {
            let attr = Attr::of(0).unwrap();
            let wanted = (attr.runtime > 0).then(|| Duration::from_nanos(attr.runtime));
            assert_eq!(fair_slice(), wanted);
            if attr.round_robin(1).give(0).is_err() {
                return skip("this process may not have a real-time class");
            }
            assert_eq!(fair_slice(), None);
        });
        thread.join().unwrap();
    }

    #[test]
    fn what_a_thread_has_is_given_back_whole() {
        let thread = std::thread::spawn(|| {
            let nicer = Attr { nice: 3, ..Attr::of(0).unwrap() };
            nicer.give(0).unwrap();
            let before = Attr::of(0).unwrap();
            assert_eq!(before.nice, 3);
            if before.round_robin(1).give(0).is_err() {
                return skip("this process may not have a real-time class");
            }
            assert!(Attr::of(0).unwrap().is_round_robin(1) && !before.is_round_robin(1));
            before.give(0).unwrap();
            assert_eq!(Attr::of(0), Ok(before));
        });
        thread.join().unwrap();
        assert_eq!(Attr::of(i32::MAX), Err(Errno::SRCH));
    }
}
