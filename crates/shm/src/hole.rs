//! Survives holes in shared memory.
//!
//! # Problem
//! Memory that is shared by a descriptor can lose pages: another process punches a hole
//! (`fallocate`, `madvise(MADV_REMOVE)`; seals do not forbid it), and the next touch gets a new
//! page. If all hugepages are taken, or all memory, the kernel sends SIGBUS, which ends the
//! process.
//!
//! # Approach
//! Every [`Mapping`](crate::memory::Mapping) is in a table of this process. After [`install`], a
//! SIGBUS for an address in one of them maps private zeroed memory over the missing page and counts
//! it ([`count`], [`Mapping::holes`](crate::memory::Mapping::holes)); the access is repeated and
//! finds zeroes. The reader of the count ends the cause, and restores shared memory when there is
//! some ([`SharedMemory::mend`](crate::memory::SharedMemory::mend)). Any other SIGBUS goes to its
//! former handler: it ends the process.
//!
//! The handler only uses atomics and calls `mmap` directly. It runs on its thread's alternative
//! stack, if there is one (Rust's library makes one).
//!
//! # Limits
//! A hole for which the kernel has a page costs a page fault and makes no signal: the number of
//! pages shows it ([`has_lost_pages`](crate::memory::SharedMemory::has_lost_pages)).
//! When the kernel itself touches such a page it returns EFAULT. Until it is mended, the page is
//! private: other processes see another one. The table holds [`ENTRIES`] mappings; holes in others
//! end the process. A broken memory chip (`BUS_MCEERR_AR`) is no hole.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Mappings that the table holds.
pub const ENTRIES: usize = 1 << 17;

/// A mapping. `start` is 0 in a free entry, and [`TAKEN`] while it is being filled.
struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    holes: AtomicU32,
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

    fn take(&self, start: usize, len: usize, page: usize) -> bool {
        // Acquire: the writes below come after.
        if self.start.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // Relaxed: the fence publishes it, before anything of the new mapping.
        self.takings.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.len.store(len, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.holes.store(0, Ordering::Relaxed);
        // Release: a reader of the start sees the rest.
        self.start.store(start, Ordering::Release);
        true
    }

    /// Start, length and page size of one mapping. None if it is free or changed meanwhile.
    fn mapping(&self) -> Option<(usize, usize, usize)> {
        self.mapping_while(|| ())
    }

    /// As [`mapping`](Self::mapping), with a call after the start is read, for tests.
    fn mapping_while(&self, happens: impl FnOnce()) -> Option<(usize, usize, usize)> {
        // Acquire: the next loads are not older than this.
        let takings = self.takings.load(Ordering::Acquire);
        // Acquire: with the length and the page that belong to it.
        let start = self.start.load(Ordering::Acquire);
        happens();
        let (len, page) = (self.len.load(Ordering::Relaxed), self.page.load(Ordering::Relaxed));
        // Acquire: a reader of a value of a later mapping sees that `takings` has changed.
        fence(Ordering::Acquire);
        let is_same = self.start.load(Ordering::Relaxed) == start && self.takings.load(Ordering::Relaxed) == takings;
        (start > TAKEN && page > 0 && is_same).then_some((start, len, page))
    }
}

/// Where to look for a free entry first.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Upper bound of the entries that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

static COUNT: AtomicU64 = AtomicU64::new(0);

struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is installed.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));

/// An entry of the table, freed when dropped.
#[derive(Debug)]
pub(crate) struct Registered(Option<usize>);

impl Registered {
    /// Enters a mapping with pages of `page` bytes.
    pub(crate) fn new(start: usize, len: usize, page: usize) -> Self {
        // Relaxed: a hint.
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        for n in 0..ENTRIES {
            let at = (first + n) % ENTRIES;
            if TABLE[at].take(start, len, page) {
                // Release, for the handler's Acquire: the part that it searches holds this entry.
                USED.fetch_max(at + 1, Ordering::Release);
                return Self(Some(at));
            }
        }
        Self(None)
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    fn entry(&self) -> Option<&'static Entry> {
        self.0.map(|at| &TABLE[at])
    }

    pub(crate) fn page(&self) -> usize {
        self.entry().map_or(4096, |entry| entry.page.load(Ordering::Relaxed))
    }

    /// Pages of it that were found missing.
    pub(crate) fn holes(&self) -> u32 {
        // Relaxed: a number that is polled.
        self.entry().map_or(0, |entry| entry.holes.load(Ordering::Relaxed))
    }

    /// Subtracts holes that are mended.
    pub(crate) fn is_mended(&self, holes: u32) {
        // Relaxed: as above. Holes found since then stay counted.
        if let Some(entry) = self.entry() {
            entry.holes.fetch_sub(holes, Ordering::Relaxed);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Release: the next taker of the entry comes after all uses of it.
        self.entry().into_iter().for_each(|entry| entry.start.store(0, Ordering::Release));
    }
}

/// Pages of all mappings that were found missing since this process began.
pub fn count() -> u64 {
    // Relaxed: a number that is polled.
    COUNT.load(Ordering::Relaxed)
}

/// Survives holes from now on, in all threads. Only the first call has an effect.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all-zero bytes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: no other code touches it: the handler that reads it is installed later.
        let before = unsafe { (*BEFORE.0.get()).as_mut_ptr() };
        // SAFETY: both are live and of the right type; `before` is read before it is replaced.
        unsafe {
            libc::sigaction(libc::SIGBUS, std::ptr::null(), before);
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo, of a fault if its code says so; errno is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        let is_fault = (*info).si_code == libc::BUS_ADRERR;
        if is_fault && fill((*info).si_addr() as usize) {
            *libc::__errno_location() = errno;
            return;
        }
    }
    // SAFETY: written before this handler was installed, and never after.
    let before = unsafe { (*BEFORE.0.get()).assume_init_ref() };
    let with_info = before.sa_flags & libc::SA_SIGINFO != 0;
    if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN || !with_info {
        // SAFETY: restores the default: the repeated access, or a signal sent again, is fatal.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
        return;
    }
    // SAFETY: the flag says that the handler has this form; it gets the kernel's arguments.
    unsafe {
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(before.sa_sigaction);
        handler(signal, info, context);
    }
}

/// Maps zeroes over the page of a mapping that holds an address. False if no mapping does.
fn fill(address: usize) -> bool {
    // Acquire: with the entries that were ever used.
    for entry in &TABLE[..USED.load(Ordering::Acquire).min(ENTRIES)] {
        // The mapping of the address is in use, so its entry stays; that of another may go
        // meanwhile.
        let Some((start, len, page)) = entry.mapping() else { continue };
        if address < start || address - start >= len {
            continue;
        }
        let at = address / page * page;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the page lies in a mapping of plain memory that starts at a page; the replacement
        // is as large, readable and writable. A handler may make a raw system call.
        let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, page, protection, flags, -1 as libc::c_long, 0 as libc::c_long) };
        if mapped < 0 {
            return false;
        }
        // Relaxed: numbers that are polled.
        entry.holes.fetch_add(1, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        return true;
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::process::Command;

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    use super::*;
    use crate::memory::{HUGEPAGE, Mapping, MemoryFile, Reservation, SharedMemory};

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
        // Stands in for a hole without memory for a page: nothing lies behind these addresses.
        ftruncate(&file, 2 * 4096).unwrap();
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
    fn a_hole_that_the_kernel_fills_is_seen_by_the_number_of_pages() {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = |fd: BorrowedFd<'_>| fallocate(fd, hole, 4096, 4096).unwrap();
        let memory = SharedMemory::create("filled", 4 * 4096, false).unwrap();
        let touch = |page: usize| memory.mapping().atomic_u64(page * 4096).unwrap().store(7, Ordering::Relaxed);
        assert!(!memory.has_lost_pages());
        (0..3).for_each(touch);
        assert!(!memory.has_lost_pages(), "it has more than before");
        punch(memory.fd());
        assert_eq!((memory.has_lost_pages(), memory.has_lost_pages()), (true, false), "each loss is seen once");
        touch(1);
        assert!(!memory.has_lost_pages());
        punch(memory.fd());
        assert!(memory.has_lost_pages() && memory.mapping().holes() == 0);
        // The same of an arena.
        let (file, range) = (MemoryFile::create("filled", 4 * 4096, false).unwrap(), Reservation::new(HUGEPAGE).unwrap());
        range.place(0, &file).unwrap();
        fallocate(file.fd(), FallocateFlags::KEEP_SIZE, 0, 4 * 4096).unwrap();
        assert!(!file.has_lost_pages());
        punch(file.fd());
        assert_eq!((file.has_lost_pages(), file.has_lost_pages()), (true, false));
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
        // The new start may differ from the old one or be the same.
        assert_eq!(entry.mapping_while(|| give_to(0x7000_2000_0000)), None, "the start of one and the length of the other");
        assert_eq!(entry.mapping_while(|| give_to(0x7000_2000_0000)), None);
        assert_eq!(entry.mapping(), Some((0x7000_2000_0000, HUGE, HUGE)));
        assert_eq!(entry.mapping_while(|| entry.start.store(0, Ordering::Release)), None);
    }

    /// No test of its own: [`any_other_sigbus_is_fatal`] runs it.
    #[test]
    fn one_that_is_killed() {
        let Ok(what) = std::env::var(ROLE) else { return };
        install();
        if what == "raised" {
            // SAFETY: raise() takes no memory.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        let file = memfd_create("unknown", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, read, shared, &file, 0) }.unwrap();
        ftruncate(&file, 0).unwrap();
        // SAFETY: mapped and readable, except for the hole that is tested here.
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
