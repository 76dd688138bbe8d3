//! One of the two buffers: bytes, the requests for them, and the operations that move them.
//!
//! # Terms
//! A *request* is one call of `read_data` or `write_data`, with its callback. An *operation* is one
//! read or write of the kernel. Writes that are adjacent in the buffer and in the file share one.
//!
//! # Order
//! The kernel may carry operations out in any order. An operation that touches bytes which an
//! earlier one of the buffer writes, or writes bytes which an earlier one reads, is a *barrier*: it
//! starts when all before it have ended. Buffers follow each other as wholes, which keeps the rest
//! in order.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::io::Errno;

use super::callback::Callback;
use super::error::IoError;
use super::file::{File, STANDS};

/// Alignment of a buffer, and the largest of a read in it: enough to bypass the page cache.
const ALIGN: usize = 4096;
/// A request takes at least as much room as this many bytes: its bookkeeping is as large.
const SMALLEST: usize = 32;

/// Bytes that the kernel reads and writes while no other code does.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, ALIGN).expect("the options bound the size");
        // SAFETY: the options forbid a size of 0.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.layout.size());
        // SAFETY: offset is not past the end.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in new() with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

struct Request {
    bytes: Range<usize>,
    callback: Option<Callback>,
}

struct Operation {
    kind: Direction,
    file: File,
    /// First byte in the file, or [`STANDS`].
    at: u64,
    bytes: Range<usize>,
    requests: Range<usize>,
    /// Bytes done so far.
    done: usize,
    failure: Option<Errno>,
    is_barrier: bool,
}

impl Operation {
    /// Whether the two must keep their order.
    fn conflicts(&self, other: &Self) -> bool {
        if self.file.raw() != other.file.raw() || (self.kind == Direction::Read && other.kind == Direction::Read) {
            return false;
        }
        let end = |o: &Self| o.at.saturating_add(o.bytes.len() as u64);
        self.at == STANDS || other.at == STANDS || (self.at < end(other) && other.at < end(self))
    }
}

/// The rest of an operation that the kernel is to do.
pub(super) struct Ask {
    pub(super) kind: Direction,
    pub(super) fd: std::os::fd::RawFd,
    pub(super) at: u64,
    pub(super) start: *mut u8,
    pub(super) len: u32,
}

/// A request that has ended.
pub(super) struct Ended {
    pub(super) callback: Callback,
    pub(super) start: *const u8,
    pub(super) len: usize,
    pub(super) failure: Option<IoError>,
}

/// A buffer: filling, then with the kernel, then empty again.
pub(super) struct Buffer {
    memory: Memory,
    requests: Vec<Request>,
    operations: Vec<Operation>,
    most_operations: usize,
    used: usize,
    /// Operations given to the kernel so far, from the front.
    given: usize,
    with_kernel: usize,
    /// Operations that have ended, with callbacks still to be called.
    ended: VecDeque<usize>,
    /// The next request of the first of them.
    next: usize,
    /// Requests whose callbacks have returned.
    settled: usize,
    has_writes: bool,
}

impl Buffer {
    pub(super) fn new(bytes: usize, most_operations: usize) -> Self {
        Self {
            memory: Memory::new(bytes),
            requests: Vec::with_capacity(bytes / SMALLEST),
            operations: Vec::with_capacity(most_operations),
            most_operations,
            used: 0,
            given: 0,
            with_kernel: 0,
            ended: VecDeque::with_capacity(most_operations),
            next: 0,
            settled: 0,
            has_writes: false,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.layout.size()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether it can take no more requests.
    pub(super) fn is_full(&self) -> bool {
        self.used == self.bytes() || self.operations.len() == self.most_operations || self.requests.len() == self.most_requests()
    }

    fn most_requests(&self) -> usize {
        self.bytes() / SMALLEST
    }

    /// Takes a write of all `parts`, `len` bytes in all. Returns the callback if there is no room.
    pub(super) fn write(&mut self, file: &File, at: u64, parts: &[&[u8]], len: usize, callback: Callback) -> Result<(), Callback> {
        let start = self.used;
        if self.bytes() - start < len || self.requests.len() == self.most_requests() {
            return Err(callback);
        }
        let joins = self.operations.last().is_some_and(|last| {
            last.kind == Direction::Write
                && last.file.raw() == file.raw()
                && last.bytes.end == start
                && if at == STANDS { last.at == STANDS } else { last.at.checked_add(last.bytes.len() as u64) == Some(at) }
        });
        if !joins && self.operations.len() == self.most_operations {
            return Err(callback);
        }
        let mut to = start;
        for part in parts {
            // SAFETY: the parts are `len` bytes in all and fit behind `start`; the kernel has
            // nothing of a filling buffer. No part lies in it: only the other's slices are lent to
            // callbacks.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), self.memory.at(to), part.len()) };
            to += part.len();
        }
        self.add(Direction::Write, file, at, start..to, callback, joins);
        self.has_writes = true;
        Ok(())
    }

    /// Takes a read of `len` bytes. Returns the callback if there is no room.
    pub(super) fn read(&mut self, file: &File, at: u64, len: usize, callback: Callback) -> Result<(), Callback> {
        // A sector of a file without page cache is a power of two and no longer than the read.
        let start = self.used.next_multiple_of(len.next_power_of_two().min(ALIGN));
        let fits = start + len <= self.bytes();
        if !fits || self.requests.len() == self.most_requests() || self.operations.len() == self.most_operations {
            return Err(callback);
        }
        self.add(Direction::Read, file, at, start..start + len, callback, false);
        Ok(())
    }

    fn add(&mut self, kind: Direction, file: &File, at: u64, bytes: Range<usize>, callback: Callback, joins: bool) {
        self.used = bytes.end;
        let number = self.requests.len();
        self.requests.push(Request { bytes: bytes.clone(), callback: Some(callback) });
        if joins && let Some(last) = self.operations.last() {
            // The added bytes may conflict with earlier operations.
            let grown = Operation { at, bytes: bytes.clone(), ..Operation::bare(kind, file) };
            let before = self.operations.len() - 1;
            let is_barrier = last.is_barrier || self.needs_order(&grown, before);
            if let Some(last) = self.operations.last_mut() {
                last.bytes.end = bytes.end;
                last.requests.end = number + 1;
                last.is_barrier = is_barrier;
            }
            return;
        }
        let mut operation = Operation { at, bytes, requests: number..number + 1, ..Operation::bare(kind, file) };
        operation.is_barrier = self.needs_order(&operation, self.operations.len());
        self.operations.push(operation);
    }

    /// Whether an operation must wait for one of the first `before` since the last barrier.
    fn needs_order(&self, operation: &Operation, before: usize) -> bool {
        if operation.kind == Direction::Read && !self.has_writes {
            return false;
        }
        for other in self.operations[..before].iter().rev() {
            if operation.conflicts(other) {
                return true;
            }
            if other.is_barrier {
                return false;
            }
        }
        false
    }

    /// Submits all up to the next barrier, or that barrier when the kernel has nothing else.
    pub(super) fn give(&mut self, mut ask: impl FnMut(usize, Ask)) {
        while self.given < self.operations.len() {
            if self.operations[self.given].is_barrier && self.with_kernel > 0 {
                return;
            }
            ask(self.given, self.ask(self.given));
            self.given += 1;
            self.with_kernel += 1;
        }
    }

    fn ask(&self, number: usize) -> Ask {
        let operation = &self.operations[number];
        let at = if operation.at == STANDS { STANDS } else { operation.at.saturating_add(operation.done as u64) };
        Ask {
            kind: operation.kind,
            fd: operation.file.raw(),
            at,
            start: self.memory.at(operation.bytes.start + operation.done),
            len: (operation.bytes.len() - operation.done) as u32,
        }
    }

    /// Records the kernel's answer to an operation; returns what is left to do, if any.
    pub(super) fn answer(&mut self, number: usize, result: i32) -> Option<Ask> {
        let operation = &mut self.operations[number];
        match usize::try_from(result) {
            Err(_) => match Errno::from_raw_os_error(-result) {
                Errno::INTR | Errno::AGAIN => return Some(self.ask(number)),
                errno => operation.failure = Some(errno),
            },
            Ok(0) if operation.kind == Direction::Write => operation.failure = Some(Errno::IO),
            Ok(n) => {
                operation.done += n;
                if operation.kind == Direction::Write && operation.done < operation.bytes.len() {
                    return Some(self.ask(number));
                }
            }
        }
        self.with_kernel -= 1;
        self.ended.push_back(number);
        None
    }

    pub(super) fn with_kernel(&self) -> usize {
        self.with_kernel
    }

    /// The next ended request. [`settle`](Self::settle) must follow when its callback has returned.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        let number = *self.ended.front()?;
        let operation = &self.operations[number];
        let index = operation.requests.start + self.next;
        self.next += 1;
        if index + 1 == operation.requests.end {
            self.ended.pop_front();
            self.next = 0;
        }
        let request = &mut self.requests[index];
        let asked = request.bytes.len();
        let done = (operation.bytes.start + operation.done).saturating_sub(request.bytes.start).min(asked);
        let failure = operation.failure.filter(|_| done < asked).map(|errno| IoError { errno, done });
        let callback = request.callback.take().expect("each request ends once");
        Some(Ended { callback, start: self.memory.at(request.bytes.start), len: done, failure })
    }

    /// Notes that a callback has returned. True if it was the last, and the buffer is empty again.
    pub(super) fn settle(&mut self) -> bool {
        self.settled += 1;
        if self.settled < self.requests.len() {
            return false;
        }
        self.requests.clear();
        self.operations.clear();
        (self.used, self.given, self.settled, self.has_writes) = (0, 0, 0, false);
        true
    }
}

impl Operation {
    fn bare(kind: Direction, file: &File) -> Self {
        Self { kind, file: file.clone(), at: 0, bytes: 0..0, requests: 0..0, done: 0, failure: None, is_barrier: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callback() -> Callback {
        Callback::new(|_| {})
    }

    /// What the kernel gets per round, as (kind, offset, length), if each ends before the next.
    fn rounds(buffer: &mut Buffer) -> Vec<Vec<(Direction, u64, u32)>> {
        let mut all = Vec::new();
        loop {
            let mut round = Vec::new();
            let mut numbers = Vec::new();
            buffer.give(|number, ask| {
                round.push((ask.kind, ask.at, ask.len));
                numbers.push((number, ask.len));
            });
            if round.is_empty() {
                return all;
            }
            all.push(round);
            for (number, len) in numbers {
                assert!(buffer.answer(number, len as i32).is_none());
            }
        }
    }

    fn file() -> File {
        File::new(std::fs::File::open("/dev/null").unwrap())
    }

    fn numbered() -> File {
        File::new(std::fs::File::open(std::env::current_exe().unwrap()).unwrap())
    }

    #[test]
    fn neighbours_are_one_operation_and_reads_are_not() {
        let (mut buffer, file) = (Buffer::new(4096, 8), numbered());
        for i in 0..4u64 {
            buffer.write(&file, 100 + 10 * i, &[b"01234", b"56789"], 10, callback()).ok().unwrap();
        }
        buffer.write(&file, 300, &[b"x"], 1, callback()).ok().unwrap();
        buffer.read(&file, 500, 16, callback()).ok().unwrap();
        buffer.read(&file, 516, 16, callback()).ok().unwrap();
        use Direction::{Read, Write};
        assert_eq!(rounds(&mut buffer), [vec![(Write, 100, 40), (Write, 300, 1), (Read, 500, 16), (Read, 516, 16)]]);
        let mut ended = 0;
        while buffer.next_ended().is_some() {
            ended += 1;
            assert_eq!(buffer.settle(), ended == 7);
        }
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_touches_the_same_bytes_keeps_its_order() {
        let (mut buffer, file, other) = (Buffer::new(4096, 16), numbered(), numbered());
        let mut write = |file: &File, at| buffer.write(file, at, &[b"0123456789"], 10, callback()).ok().unwrap();
        write(&file, 0);
        write(&other, 5);
        write(&file, 20);
        write(&file, 9); // overlaps the first
        write(&file, 19); // grows into the third
        buffer.read(&file, 200, 10, callback()).ok().unwrap();
        buffer.read(&file, 28, 10, callback()).ok().unwrap(); // what the last write ends with
        buffer.read(&file, 28, 10, callback()).ok().unwrap();
        use Direction::{Read, Write};
        assert_eq!(
            rounds(&mut buffer),
            [
                vec![(Write, 0, 10), (Write, 5, 10), (Write, 20, 10)],
                vec![(Write, 9, 20), (Read, 200, 10)],
                vec![(Read, 28, 10), (Read, 28, 10)],
            ]
        );
    }

    #[test]
    fn a_stream_is_written_in_order() {
        let (mut buffer, a, b) = (Buffer::new(4096, 16), file(), file());
        for file in [&a, &a, &b, &a] {
            buffer.write(file, STANDS, &[b"xy"], 2, callback()).ok().unwrap();
        }
        assert_eq!(rounds(&mut buffer).iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_short_write_goes_on_and_names_the_packet_that_failed() {
        let (mut buffer, file) = (Buffer::new(4096, 8), numbered());
        for at in [0, 10, 20] {
            buffer.write(&file, at, &[b"0123456789"], 10, callback()).ok().unwrap();
        }
        buffer.give(|_, ask| assert_eq!((ask.at, ask.len), (0, 30)));
        let rest = buffer.answer(0, 4).unwrap();
        assert_eq!((rest.at, rest.len), (4, 26));
        assert_eq!(buffer.answer(0, -libc::EINTR).unwrap().len, 26);
        assert_eq!(buffer.answer(0, 11).unwrap().at, 15);
        assert!(buffer.answer(0, -libc::ENOSPC).is_none());
        let ended: Vec<_> = std::iter::from_fn(|| buffer.next_ended()).map(|e| (e.len, e.failure)).collect();
        let full = |done| Some(IoError { errno: Errno::NOSPC, done });
        assert_eq!(ended, [(10, None), (5, full(5)), (0, full(0))]);
    }

    #[test]
    fn a_full_buffer_gives_the_callback_back() {
        let (mut buffer, file) = (Buffer::new(4096, 2), file());
        assert!(buffer.read(&file, 0, 4000, callback()).is_ok());
        assert!(buffer.write(&file, 0, &[&[0; 97]], 97, callback()).is_err());
        assert!(buffer.read(&file, 0, 90, callback()).is_err(), "reads are aligned");
        assert!(!buffer.is_full());
        assert!(buffer.write(&file, 0, &[&[0; 96]], 96, callback()).is_ok());
        assert!(buffer.is_full());
        let mut small = Buffer::new(4096, 2);
        for _ in 0..128 {
            assert!(small.write(&file, STANDS, &[b"x"], 1, callback()).is_ok());
        }
        assert!(small.write(&file, STANDS, &[b"x"], 1, callback()).is_err(), "a request has its price");
    }
}
