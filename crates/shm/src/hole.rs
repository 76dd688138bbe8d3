//! Survives holes in shared memory.
//!
//! # Problem
//! Memory that is shared by a descriptor can lose pages under the feet of whoever has it mapped: another process punches a hole
//! (`fallocate`, `madvise(MADV_REMOVE)`; seals do not forbid it), and the next touch gets a new page. If there is none, because the memory
//! stands on hugepages and somebody has taken them all, or the host has no memory left, the kernel sends SIGBUS, which ends the process.
//!
//! # Approach
//! Every [`Mapping`](crate::memory::Mapping) is in a table of this process. After [`install`], a SIGBUS for an address in one of them maps
//! private zeroed memory over the page that is missing, counts it ([`count`], [`Mapping::holes`](crate::memory::Mapping::holes)), and the
//! access is tried again and finds zeroes. Whoever looks at the count ends the cause, and puts shared memory back where there is some
//! ([`SharedMemory::mend`](crate::memory::SharedMemory::mend)). Any other SIGBUS goes to whatever handled it before: it ends the process.
//!
//! The handler does nothing but read and write atomics and call `mmap` directly. It runs on the alternative stack of its thread, if it has
//! one, as threads of Rust's library do.
//!
//! # Limits
//! The kernel touches memory for a process, too, and says EFAULT then. Until it is mended, the page is this process's alone: others see
//! another one there. The table holds [`ENTRIES`] mappings; those beyond are not survived. A broken memory chip (`BUS_MCEERR_AR`) is no hole.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Mappings that the table holds.
pub const ENTRIES: usize = 1 << 17;

/// A mapping. `start` is 0 in one that is free, and [`TAKEN`] while it is filled.
struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    holes: AtomicU32,
    /// How often it was taken.
    takings: AtomicU32,
}

const TAKEN: usize = 1;

static TABLE: [Entry; ENTRIES] = [const { Entry::free() }; ENTRIES];

impl Entry {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            holes: AtomicU32::new(0),
            takings: AtomicU32::new(0),
        }
    }

    /// Takes it for a mapping, if it is free.
    fn take(&self, start: usize, len: usize, page: usize) -> bool {
        // Acquire: what is written below comes after.
        if self.start.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // Relaxed: the fence publishes it, before anything of the new mapping.
        self.takings.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.len.store(len, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.holes.store(0, Ordering::Relaxed);
        // Release: who sees the start sees the rest.
        self.start.store(start, Ordering::Release);
        true
    }

    /// Start, length and page size, all of one mapping. None of one that is free, or was given to
    /// another meanwhile.
    fn mapping(&self) -> Option<(usize, usize, usize)> {
        self.mapping_while(|| ())
    }

    /// The same, if something happens when the start was read.
    fn mapping_while(&self, happens: impl FnOnce()) -> Option<(usize, usize, usize)> {
        // Acquire: what is read next is not older than this.
        let takings = self.takings.load(Ordering::Acquire);
        // Acquire: with the length and the page that belong to it.
        let start = self.start.load(Ordering::Acquire);
        happens();
        let (len, page) = (self.len.load(Ordering::Relaxed), self.page.load(Ordering::Relaxed));
        // Acquire: whoever has read something of a later mapping sees that it was taken for that.
        fence(Ordering::Acquire);
        let is_same = self.start.load(Ordering::Relaxed) == start && self.takings.load(Ordering::Relaxed) == takings;
        (start > TAKEN && page > 0 && is_same).then_some((start, len, page))
    }
}

/// Where to look for a free entry first.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Entries that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Holes that were found.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// What handled the signal before.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is there.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));

/// A place in the table. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Registered(Option<usize>);

impl Registered {
    /// Enters a mapping of pages of this size.
    pub(crate) fn new(start: usize, len: usize, page: usize) -> Self {
        // Relaxed: a hint.
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        for n in 0..ENTRIES {
            let at = (first + n) % ENTRIES;
            if TABLE[at].take(start, len, page) {
                // Release, for the handler's Acquire: what it looks through holds this entry.
                USED.fetch_max(at + 1, Ordering::Release);
                return Self(Some(at));
            }
        }
        Self(None)
    }

    /// No place.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    fn entry(&self) -> Option<&'static Entry> {
        self.0.map(|at| &TABLE[at])
    }

    /// Size of its pages, in bytes.
    pub(crate) fn page(&self) -> usize {
        self.entry().map_or(4096, |entry| entry.page.load(Ordering::Relaxed))
    }

    /// Pages of it that were found missing.
    pub(crate) fn holes(&self) -> u32 {
        // Relaxed: a number that is looked at again and again.
        self.entry().map_or(0, |entry| entry.holes.load(Ordering::Relaxed))
    }

    /// It is whole again.
    pub(crate) fn is_mended(&self, holes: u32) {
        // Relaxed: as above. Those that have come since stay.
        if let Some(entry) = self.entry() {
            entry.holes.fetch_sub(holes, Ordering::Relaxed);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Release: whoever takes the entry finds nothing of what was there in use.
        self.entry().into_iter().for_each(|entry| entry.start.store(0, Ordering::Release));
    }
}

/// How many pages of all mappings were found missing since this process has begun.
pub fn count() -> u64 {
    // Relaxed: a number that is looked at again and again.
    COUNT.load(Ordering::Relaxed)
}

/// Survives holes from now on, in all threads. The first call counts.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all-zero bytes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: nobody else touches it: the handler that reads it comes after.
        let before = unsafe { (*BEFORE.0.get()).as_mut_ptr() };
        // SAFETY: both are live and of the type that the calls take; what was there is read before it is replaced.
        unsafe {
            libc::sigaction(libc::SIGBUS, std::ptr::null(), before);
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo, which is of a fault if the code says so; errno is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        let is_fault = (*info).si_code == libc::BUS_ADRERR;
        if is_fault && fill((*info).si_addr() as usize) {
            *libc::__errno_location() = errno;
            return;
        }
    }
    // SAFETY: it was written before this handler was installed, and never after.
    let before = unsafe { (*BEFORE.0.get()).assume_init_ref() };
    let with_info = before.sa_flags & libc::SA_SIGINFO != 0;
    if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN || !with_info {
        // SAFETY: the default again: when this returns, the access is repeated and ends the process. One that was sent comes again.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
        return;
    }
    // SAFETY: the address is of a handler of this form, as its flag says, which gets what the kernel gave.
    unsafe {
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(before.sa_sigaction);
        handler(signal, info, context);
    }
}

/// Maps zeroes over the page of a mapping in which an address lies. False if it lies in none.
fn fill(address: usize) -> bool {
    // Acquire: with the entries that were ever used.
    for entry in &TABLE[..USED.load(Ordering::Acquire).min(ENTRIES)] {
        // The mapping of the address is in use, so nobody gives up its entry; that of another one
        // may go at any moment.
        let Some((start, len, page)) = entry.mapping() else { continue };
        if address < start || address - start >= len {
            continue;
        }
        let at = address / page * page;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the page lies in a mapping of this process that is used as plain memory only, whose start is a whole page's; what comes
        // in its place is as large, readable and writable. A raw system call is allowed in a handler.
        let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, page, protection, flags, -1 as libc::c_long, 0 as libc::c_long) };
        if mapped < 0 {
            return false;
        }
        // Relaxed: numbers that are looked at again and again.
        entry.holes.fetch_add(1, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        return true;
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::memory::{Mapping, SharedMemory};

    const ROLE: &str = "SLUICE_TEST_HOLE";

    #[test]
    fn a_missing_page_reads_as_zeroes_and_is_counted() {
        install();
        let file = memfd_create("holes", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4 * 4096).unwrap();
        let mapping = Mapping::new(file.as_fd(), 4 * 4096, false).unwrap();
        let word = |at: usize| mapping.atomic_u64(at).unwrap();
        (0..4).for_each(|page| word(page * 4096).store(7, Ordering::Relaxed));
        let before = count();
        // What only a hole without memory for another page does elsewhere: there is nothing behind these addresses.
        ftruncate(&file, 2 * 4096).unwrap();
        // From a thread of its own, too.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(word(2 * 4096 + 8).load(Ordering::Relaxed), 0);
                word(2 * 4096).store(9, Ordering::Relaxed);
            });
        });
        assert_eq!(word(2 * 4096).load(Ordering::Relaxed), 9, "it is memory");
        assert_eq!(word(3 * 4096).load(Ordering::Relaxed), 0);
        assert_eq!((word(0).load(Ordering::Relaxed), word(4096).load(Ordering::Relaxed)), (7, 7), "the rest is as it was");
        assert_eq!(mapping.holes(), 2);
        assert!(count() >= before + 2);
    }

    #[test]
    fn what_was_missing_is_shared_again_when_there_is_memory() {
        install();
        let memory = SharedMemory::create("mended", 4 * 4096, true).unwrap();
        let peer = Mapping::new(memory.fd(), 4 * 4096, false).unwrap();
        let word = |mapping: &Mapping, at: usize| mapping.atomic_u64(at).unwrap().load(Ordering::Relaxed);
        memory.mapping().atomic_u64(0).unwrap().store(7, Ordering::Relaxed);
        // As the handler does it.
        assert!(fill(memory.mapping().atomic_u64(4096).unwrap().as_ptr() as usize));
        peer.atomic_u64(4096).unwrap().store(9, Ordering::Relaxed);
        assert_eq!((memory.mapping().holes(), word(memory.mapping(), 4096)), (1, 0), "a page of its own");
        assert!(memory.mend());
        assert_eq!((memory.mapping().holes(), word(memory.mapping(), 4096)), (0, 9), "the page of both");
        assert_eq!(word(memory.mapping(), 0), 7);
        assert!(memory.mend(), "and what is whole stays so");
    }

    #[test]
    fn an_entry_that_is_given_to_another_mapping_meanwhile_is_not_mixed_up() {
        const HUGE: usize = 2 << 20;
        let entry = Entry::free();
        assert_eq!(entry.mapping(), None);
        assert!(entry.take(0x7000_1000_0000, 4096, 4096) && !entry.take(0x7000_2000_0000, HUGE, HUGE));
        assert_eq!(entry.mapping(), Some((0x7000_1000_0000, 4096, 4096)));
        let give_to = |start: usize| {
            entry.start.store(0, Ordering::Release);
            assert!(entry.take(start, HUGE, HUGE));
        };
        // Its place among the addresses may be another's, or the very same.
        assert_eq!(entry.mapping_while(|| give_to(0x7000_2000_0000)), None, "the start of one and the length of the other");
        assert_eq!(entry.mapping_while(|| give_to(0x7000_2000_0000)), None);
        assert_eq!(entry.mapping(), Some((0x7000_2000_0000, HUGE, HUGE)));
        assert_eq!(entry.mapping_while(|| entry.start.store(0, Ordering::Release)), None);
    }

    /// No test of its own: what [`any_other_sigbus_is_fatal`] runs.
    #[test]
    fn one_that_is_killed() {
        let Ok(what) = std::env::var(ROLE) else { return };
        install();
        if what == "raised" {
            // SAFETY: it takes no memory.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        let file = memfd_create("unknown", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, read, shared, &file, 0) }.unwrap();
        ftruncate(&file, 0).unwrap();
        // SAFETY: mapped, and readable but for what is asked here.
        println!("survived {}", unsafe { at.cast::<u8>().read_volatile() });
    }

    #[test]
    fn any_other_sigbus_is_fatal() {
        for what in ["raised", "unknown"] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let output =
                command.args(["--exact", "hole::tests::one_that_is_killed", "--nocapture"]).env(ROLE, what).output().unwrap();
            use std::os::unix::process::ExitStatusExt;
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{what}: {said}");
            assert!(!said.contains("survived"));
        }
    }
}
