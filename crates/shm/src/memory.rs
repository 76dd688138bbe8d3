//! Shared memory that can be passed to another process: a sealed memfd and its mapping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::hole::Registered;

/// Why shared memory could not be made or mapped.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refused a call.
    #[error("cannot {doing} ({bytes} bytes of shared memory): {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Size of the memory.
        bytes: usize,
        /// The kernel's error.
        source: rustix::io::Errno,
    },
    /// No hugepages are free.
    #[error(
        "{needed} hugepages of 2 MiB are needed and the host has too few free; reserve them (echo {needed} > /proc/sys/vm/nr_hugepages) or set `hugepages = \"auto\"`"
    )]
    NoHugepages {
        /// Hugepages that the arena needs.
        needed: usize,
    },
    /// More frames than there are numbers for.
    #[error("{arenas} arenas of {frames} frames are more frames than there are numbers for; lower `frames` in [memory]")]
    TooManyFrames {
        /// Number of arenas.
        arenas: u32,
        /// Frames of each.
        frames: u32,
    },
    /// The peer passed less memory than it announced.
    #[error("the peer passed {actual} bytes of memory where {expected} were announced")]
    TooSmall {
        /// Size of the memory that came.
        actual: usize,
        /// Size that was announced.
        expected: usize,
    },
}

/// The number of the file system of hugepages.
const HUGETLBFS: u64 = 0x9584_58f6;

/// Size of a hugepage, in bytes.
pub const HUGEPAGE: usize = 2 << 20;

/// A shared mapping. Dropping it unmaps.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    registered: Registered,
}

// SAFETY: plain memory, valid in every thread until dropped; access is by atomics or raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the addresses can be reused.
        self.registered = Registered::none();
        // SAFETY: this value owns the mapping, and everything made from it holds an Arc of it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, readable, writable and shared.
    ///
    /// # Errors
    /// [`MemoryError::TooSmall`] if the file is shorter than `len`; [`MemoryError::System`].
    pub fn new(fd: BorrowedFd<'_>, len: usize, populate: bool) -> Result<Arc<Self>, MemoryError> {
        let fail = |doing| move |source| MemoryError::System { doing, bytes: len, source };
        let actual = fstat(fd).map_err(fail("read the size of"))?.st_size as usize;
        if actual < len || len == 0 {
            return Err(MemoryError::TooSmall { actual, expected: len });
        }
        let flags = if populate { MapFlags::SHARED | MapFlags::POPULATE } else { MapFlags::SHARED };
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, 0) }.map_err(fail("map"))?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null without MAP_FIXED");
        let ordinary = rustix::param::page_size();
        let page = fstatfs(fd).map_or(ordinary, |of| if of.f_type as u64 == HUGETLBFS { of.f_bsize as usize } else { ordinary });
        let registered = Registered::new(start.as_ptr() as usize, len.next_multiple_of(page), page);
        Ok(Arc::new(Self { start, len, registered }))
    }

    /// Pages that were found missing and have private memory instead: see [`crate::hole`].
    pub fn holes(&self) -> u32 {
        self.registered.holes()
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// First byte. Dereferencing it is bound by the crate's rules for unsafe code.
    #[inline(always)]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Address of `len` bytes at `offset`, aligned to `align`. None if they are not inside.
    pub(crate) fn at(&self, offset: usize, len: usize, align: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len || !(self.start.as_ptr() as usize + offset).is_multiple_of(align) {
            return None;
        }
        // SAFETY: offset is inside the mapping.
        Some(unsafe { self.start.add(offset) })
    }

    /// The atomic word at `offset`. None if it is not inside or not aligned.
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, 4, 4)?;
        // SAFETY: inside the mapping, aligned, lives as long as self; any bits are a valid u32.
        Some(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
    }

    /// The atomic word at `offset`. None if it is not inside or not aligned.
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at(offset, 8, 8)?;
        // SAFETY: inside the mapping, aligned, lives as long as self; any bits are a valid u64.
        Some(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// All its whole words.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: as in atomic_u64; a mapping starts at a page.
        unsafe { std::slice::from_raw_parts(self.start().cast(), self.len / size_of::<AtomicU64>()) }
    }

    /// Asks the kernel for transparent hugepages. A kernel without them is no error.
    pub fn advise_hugepages(&self) {
        // SAFETY: advice about a mapping that self owns changes no contents.
        let _ = unsafe { madvise(self.start().cast(), self.len, Advice::LinuxHugepage) };
    }
}

/// As [`Mapping::advise_hugepages`], for the whole hugepages in a slice of private memory. Best
/// called before the memory is touched.
pub fn advise_hugepages<T>(slice: &[T]) {
    let from = (slice.as_ptr() as usize).next_multiple_of(HUGEPAGE);
    let to = (slice.as_ptr() as usize + size_of_val(slice)) / HUGEPAGE * HUGEPAGE;
    if to > from {
        // SAFETY: the range lies inside the slice, which is mapped; the advice changes no contents.
        let _ = unsafe { madvise(std::ptr::with_exposed_provenance_mut(from), to - from, Advice::LinuxHugepage) };
    }
}

/// Writes a word of each page, so that no later write waits for memory: the kernel clears a
/// hugepage first, and the host of a virtual machine may have to find it. The contents stay.
pub fn populate(words: &mut [u64]) {
    for page in words.chunks_mut(rustix::param::page_size() / size_of::<u64>()) {
        // Without the box, a compiler may leave out a write of what is there.
        let word = std::hint::black_box(&mut page[0]);
        *word = std::hint::black_box(*word);
    }
}

/// Addresses without memory, parts of which get memory by [`place`](Reservation::place).
#[derive(Debug)]
pub struct Reservation {
    /// The whole mapping, larger than the range, which begins at a hugepage.
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain addresses; reads and writes there are bound by the rules for arenas.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: new() mapped it; every arena over it holds an Arc of it.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
    }
}

impl Reservation {
    /// Reserves `len` bytes of addresses, aligned to a hugepage. They take no memory.
    ///
    /// # Errors
    /// [`MemoryError::System`] if the kernel refuses.
    pub fn new(len: usize) -> Result<Arc<Self>, MemoryError> {
        let mapped_len = len.next_multiple_of(HUGEPAGE) + HUGEPAGE;
        let fail = |source| MemoryError::System { doing: "reserve addresses for", bytes: len, source };
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped_len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let mapped: NonNull<u8> = NonNull::new(mapped.map_err(fail)?.cast()).expect("mmap never returns null without MAP_FIXED");
        let skip = mapped.as_ptr().align_offset(HUGEPAGE);
        // SAFETY: a hugepage more than the range was mapped.
        let start = unsafe { mapped.add(skip) };
        Ok(Arc::new(Self { mapped, mapped_len, start, len: len.next_multiple_of(HUGEPAGE) }))
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Maps a file over the addresses from `offset` (a multiple of a hugepage) on.
    ///
    /// # Errors
    /// [`MemoryError::NoHugepages`] if too few are free for its file; [`MemoryError::System`]. Then
    /// the addresses have no memory.
    pub fn place(&self, offset: usize, file: &MemoryFile) -> Result<(), MemoryError> {
        assert!(offset.is_multiple_of(HUGEPAGE) && offset + file.len <= self.len, "an arena lies in its slot");
        // SAFETY: inside the range, as asserted.
        let at = unsafe { self.start.add(offset) };
        let flags = MapFlags::SHARED | MapFlags::FIXED | if file.huge { MapFlags::POPULATE } else { MapFlags::empty() };
        // SAFETY: MAP_FIXED replaces addresses of this range only, and no reference to them exists:
        // arenas copy their bytes. A file that is replaced has all its frames back.
        let placed = unsafe { mmap(at.as_ptr().cast(), file.len, ProtFlags::READ | ProtFlags::WRITE, flags, file.fd.as_fd(), 0) };
        if let Ok(at) = placed {
            let address = at.expose_provenance();
            file.placed.get_or_init(|| (address, Registered::new(address, file.len, file.page())));
        }
        match placed {
            Ok(_) if file.huge => Ok(()),
            Ok(_) => {
                // SAFETY: advice about a new mapping changes no contents. Its failure is no error.
                let _ = unsafe { madvise(at.as_ptr().cast(), file.len, Advice::LinuxHugepage) };
                Ok(())
            }
            Err(source) => {
                // Reserves again what a failed call may have unmapped.
                self.clear(offset, file.len);
                Err(refused(file.huge, file.len, MemoryError::System { doing: "map", bytes: file.len, source }))
            }
        }
    }

    /// Takes the memory away from whole pages of the range.
    pub fn clear(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.len, "a slot lies in its range");
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in place(). If the kernel refuses, the former memory stays, which is as safe.
        let _ = unsafe { mmap_anonymous(self.start.as_ptr().add(offset).cast(), len, ProtFlags::empty(), flags) };
    }
}

/// Turns a failure to get hugepages into [`MemoryError::NoHugepages`].
fn refused(huge: bool, len: usize, error: MemoryError) -> MemoryError {
    match error {
        MemoryError::System { source, .. } if huge && [rustix::io::Errno::NOMEM, rustix::io::Errno::NOSYS].contains(&source) => {
            MemoryError::NoHugepages { needed: len / HUGEPAGE }
        }
        other => other,
    }
}

/// Blocks that a file had when it was last looked at.
#[derive(Debug, Default)]
struct Blocks(AtomicU64);

impl Blocks {
    /// Whether the file has fewer now.
    fn have_fallen(&self, fd: BorrowedFd<'_>) -> bool {
        let Ok(stat) = fstat(fd) else { return false };
        let now = stat.st_blocks as u64;
        // Relaxed: one thread looks.
        self.0.swap(now, Ordering::Relaxed) > now
    }
}

/// A memfd of this process, to be placed in a [`Reservation`] here and mapped by a peer.
#[derive(Debug)]
pub struct MemoryFile {
    fd: OwnedFd,
    len: usize,
    huge: bool,
    blocks: Blocks,
    /// Where it was placed first, and the holes found there.
    placed: OnceLock<(usize, Registered)>,
}

impl MemoryFile {
    /// Makes a file of `len` zeroed bytes, rounded up to whole pages (2 MiB if `huge`). Its size is
    /// sealed, so that no peer can shrink it.
    ///
    /// # Errors
    /// [`MemoryError::System`] with what the kernel refused; [`MemoryError::NoHugepages`].
    pub fn create(name: &str, len: usize, huge: bool) -> Result<Self, MemoryError> {
        let len = len.next_multiple_of(if huge { HUGEPAGE } else { 4096 });
        let fail = |doing| move |source| refused(huge, len, MemoryError::System { doing, bytes: len, source });
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if huge {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let fd = memfd_create(name, flags).map_err(fail("create"))?;
        ftruncate(&fd, len as u64).map_err(fail("size"))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(fail("seal"))?;
        Ok(Self { fd, len, huge, blocks: Blocks::default(), placed: OnceLock::new() })
    }

    /// The memfd, which is passed to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its size, in bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    fn page(&self) -> usize {
        if self.huge { HUGEPAGE } else { rustix::param::page_size() }
    }

    /// Pages that were missing when touched, since it was last whole.
    pub fn holes(&self) -> u32 {
        self.placed.get().map_or(0, |(_, registered)| registered.holes())
    }

    /// As [`SharedMemory::has_lost_pages`].
    pub fn has_lost_pages(&self) -> bool {
        self.blocks.have_fallen(self.fd())
    }

    /// As [`SharedMemory::mend`].
    pub fn mend(&self) -> bool {
        let Some((at, registered)) = self.placed.get() else { return true };
        let holes = registered.holes();
        if holes == 0 {
            return true;
        }
        // All pages, or the next touch would find the next hole.
        if fallocate(&self.fd, FallocateFlags::KEEP_SIZE, 0, self.len as u64).is_err() {
            return false;
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE);
        // SAFETY: the file was placed there, in a range that outlives it; the replacement is the
        // same file, as large, readable and writable. All access goes through raw copies.
        let is_mapped =
            unsafe { mmap(std::ptr::with_exposed_provenance_mut(*at), self.len, protection, flags, &self.fd, 0) }.is_ok();
        if is_mapped {
            registered.is_mended(holes);
        }
        is_mapped
    }

    /// Whether it consists of hugepages.
    pub fn is_huge(&self) -> bool {
        self.huge
    }
}

/// A memfd that this process made, and its mapping.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    huge: bool,
    blocks: Blocks,
}

impl SharedMemory {
    /// Makes `len` bytes of zeroed memory on ordinary pages, with a sealed size.
    ///
    /// # Errors
    /// [`MemoryError::System`] with what the kernel refused.
    pub fn create(name: &str, len: usize, populate: bool) -> Result<Self, MemoryError> {
        Self::make(name, len, populate, false)
    }

    /// As [`SharedMemory::create`], on 2 MiB hugepages; `len` is rounded up to whole ones.
    ///
    /// # Errors
    /// [`MemoryError::NoHugepages`] if too few are free.
    pub fn create_huge(name: &str, len: usize) -> Result<Self, MemoryError> {
        Self::make(name, len, true, true)
    }

    fn make(name: &str, len: usize, populate: bool, huge: bool) -> Result<Self, MemoryError> {
        let file = MemoryFile::create(name, len, huge)?;
        // Only a file of hugepages is mapped beyond the requested length.
        let len = if huge { file.len } else { len };
        let mapping = Mapping::new(file.fd(), len, populate).map_err(|error| refused(huge, len, error))?;
        Ok(Self { fd: file.fd, mapping, huge, blocks: file.blocks })
    }

    /// The memfd, which is passed to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The mapping.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Whether it has fewer pages than at the last call, as after a hole that the kernel fills at
    /// the next touch. One that is filled between two calls is not seen. Pages that nobody has
    /// written to can be lost without a hole: the kernel takes them when memory is short.
    pub fn has_lost_pages(&self) -> bool {
        self.blocks.have_fallen(self.fd())
    }

    /// Restores shared memory for missing pages, if there is memory now. Returns whether all is
    /// whole. Such pages hold zeroes, or what other processes wrote there.
    pub fn mend(&self) -> bool {
        let holes = self.mapping.holes();
        if holes == 0 {
            return true;
        }
        let len = self.mapping.len.next_multiple_of(self.mapping.registered.page());
        // All pages, or the next touch would find the next hole.
        if fallocate(&self.fd, FallocateFlags::KEEP_SIZE, 0, self.mapping.len as u64).is_err() {
            return false;
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE);
        let start = self.mapping.start.as_ptr().cast();
        // SAFETY: this value holds the mapping of that range; the replacement is the same memory,
        // as large, readable and writable. All access goes through atomics or raw copies.
        let is_mapped = unsafe { mmap(start, len, protection, flags, &self.fd, 0) }.is_ok();
        if is_mapped {
            self.mapping.registered.is_mended(holes);
        }
        is_mapped
    }

    /// Whether it consists of hugepages.
    pub fn is_huge(&self) -> bool {
        self.huge
    }
}

/// Words that are restored at a time, without a check between them.
const BLOCK: usize = 32;

/// The words of a mapping as they once were, for simulations that begin again. No other thread or
/// process uses the mapping meanwhile.
#[derive(Debug)]
pub struct Snapshot(Vec<u64>);

impl Snapshot {
    /// The words of a mapping as they are now.
    pub fn of(mapping: &Mapping) -> Self {
        // Relaxed here and below: nobody else uses it.
        Self(mapping.words().iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    /// Restores them in that mapping.
    pub fn restore(&self, mapping: &Mapping) {
        let put = |(now, then): (&AtomicU64, &u64)| now.store(*then, Ordering::Relaxed);
        let ((now, now_last), (then, then_last)) = (mapping.words().as_chunks::<BLOCK>(), self.0.as_chunks::<BLOCK>());
        now.iter().zip(then).for_each(|(now, then)| now.iter().zip(then).for_each(put));
        now_last.iter().zip(then_last).for_each(put);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_restores_every_word() {
        let memory = SharedMemory::create("sluice-test", 8 * (2 * BLOCK + 3), false).unwrap();
        let words = memory.mapping().words();
        (0..).zip(words).for_each(|(n, word)| word.store(n, Ordering::Relaxed));
        let snapshot = Snapshot::of(memory.mapping());
        words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        snapshot.restore(memory.mapping());
        assert!((0..).zip(words).all(|(n, word)| word.load(Ordering::Relaxed) == n));
        assert_eq!(words.len(), 2 * BLOCK + 3);
    }
}
