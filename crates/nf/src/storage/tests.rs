//! Tests with real files, and with a pipe as a slow disk, which takes 64 KiB until it is read.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use proptest::prelude::*;
use rustix::io::Errno;

use super::*;

type Seen = Rc<RefCell<Vec<(u32, Result<Vec<u8>, IoError>)>>>;

struct Fixture {
    storage: Storage,
    context: Context,
    folder: tempfile::TempDir,
    seen: Seen,
}

impl Fixture {
    fn new(batch_bytes: usize, batch_operations: usize, flush_interval: Duration) -> Self {
        let context = Context::for_test("t.0", &[], &[], &[]);
        let options = StorageOptions { batch_bytes, batch_operations, flush_interval };
        let storage = Storage::new(&context, &options).expect("these tests need io_uring");
        Self { storage, context, folder: tempfile::tempdir().unwrap(), seen: Seen::default() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("file")
    }

    fn file(&self) -> File {
        File::new(std::fs::File::options().read(true).write(true).create(true).truncate(false).open(self.path()).unwrap())
    }

    /// A callback that records its argument under `name`.
    fn note(&self, name: u32) -> impl FnOnce(IoResult<'_>) + use<> {
        let seen = self.seen.clone();
        move |outcome| seen.borrow_mut().push((name, outcome.map(<[u8]>::to_vec)))
    }

    fn names(&self) -> Vec<u32> {
        self.seen.borrow().iter().map(|(name, _)| *name).collect()
    }

    fn poll_until(&self, n: usize) {
        let started = std::time::Instant::now();
        while self.seen.borrow().len() < n {
            assert!(started.elapsed() < Duration::from_secs(30), "waited in vain for {n} callbacks");
            self.storage.poll();
            std::thread::yield_now();
        }
    }
}

const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn bytes_and_order_are_kept_over_many_buffers() {
    let t = Fixture::new(4096, 4, NEVER);
    let file = t.file();
    let mut expected = Vec::new();
    for i in 0..1000u32 {
        let data: Vec<u8> = (0..i % 97 + 1).map(|b| (b + i) as u8).collect();
        let (head, tail) = data.split_at(data.len() / 2);
        t.storage.write_parts(&file, At::End, &[head, tail], t.note(i)).unwrap();
        expected.extend(data);
    }
    assert!(t.seen.borrow().len() < 1000, "the last buffer is still filling");
    t.storage.flush();
    assert!(t.storage.is_idle());
    assert_eq!(std::fs::read(t.path()).unwrap(), expected);
    assert_eq!(file.end(), expected.len() as u64);
    assert_eq!(t.names(), (0..1000).collect::<Vec<_>>());
    let written: Vec<u8> = t.seen.borrow().iter().flat_map(|(_, outcome)| outcome.clone().unwrap()).collect();
    assert_eq!(written, expected, "each callback got its own bytes");
}

#[test]
fn a_file_goes_on_at_its_end() {
    let t = Fixture::new(4096, 4, NEVER);
    std::fs::write(t.path(), "before ").unwrap();
    let file = t.file();
    t.storage.write_data(&file, At::End, b"after", |_| {}).unwrap();
    t.storage.write_data(&file, At::Byte(0), b"B", |_| {}).unwrap();
    t.storage.flush();
    assert_eq!(std::fs::read_to_string(t.path()).unwrap(), "Before after");
}

#[test]
fn reads_see_the_writes_before_them_and_end_with_the_file() {
    let t = Fixture::new(8192, 16, NEVER);
    let file = t.file();
    t.storage.write_data(&file, At::Byte(100), b"hello", |_| {}).unwrap();
    t.storage.read_data(&file, 100, 5, t.note(0)).unwrap();
    t.storage.write_data(&file, At::Byte(100), b"J", |_| {}).unwrap();
    t.storage.read_data(&file, 98, 4000, t.note(1)).unwrap();
    t.storage.read_data(&file, 5000, 10, t.note(2)).unwrap();
    t.storage.flush();
    let mut seen = t.seen.take();
    seen.sort_by_key(|(name, _)| *name);
    let expected: [(u32, &[u8]); 3] = [(0, b"hello"), (1, b"\0\0Jello"), (2, b"")];
    assert_eq!(seen, expected.map(|(name, bytes)| (name, Ok(bytes.to_vec()))));
}

#[test]
fn errors_reach_the_callbacks() {
    let t = Fixture::new(4096, 8, NEVER);
    std::fs::write(t.path(), "text").unwrap();
    let read_only = File::new(std::fs::File::open(t.path()).unwrap());
    let write_only = File::new(std::fs::File::options().write(true).open(t.path()).unwrap());
    let full = File::new(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let folder = File::new(std::fs::File::open(t.folder.path()).unwrap());
    t.storage.write_data(&read_only, At::End, b"x", t.note(0)).unwrap();
    t.storage.read_data(&write_only, 0, 4, t.note(1)).unwrap();
    t.storage.write_data(&full, At::End, b"abc", t.note(2)).unwrap();
    t.storage.write_data(&full, At::End, b"def", t.note(3)).unwrap();
    t.storage.read_data(&folder, 0, 4, t.note(4)).unwrap();
    t.storage.read_data(&read_only, 0, 4, t.note(5)).unwrap();
    t.storage.flush();
    let mut seen = t.seen.take();
    seen.sort_by_key(|(name, _)| *name);
    let failed = |errno| Err(IoError { errno, done: 0 });
    let outcomes: Vec<_> = seen.into_iter().map(|(_, outcome)| outcome).collect();
    let expected = [Errno::BADF, Errno::BADF, Errno::NOSPC, Errno::NOSPC, Errno::ISDIR].map(failed);
    assert_eq!(outcomes[..5], expected);
    assert_eq!(outcomes[5], Ok(b"text".to_vec()), "the others go on");
    assert_eq!(read_only.end(), 5, "the caller takes the end back if it wants to");
}

#[test]
fn a_write_past_the_file_size_limit_is_short_and_says_how_much() {
    // The limit is the process's, so the test is a process.
    if std::env::var_os("SLUICE_LIMITED").is_none() {
        let test = "storage::tests::a_write_past_the_file_size_limit_is_short_and_says_how_much";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact"])
            .env("SLUICE_LIMITED", "1")
            .output();
        let output = status.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    }
    let t = Fixture::new(4096, 8, NEVER);
    let file = t.file();
    let limit = rustix::process::Rlimit { current: Some(10), maximum: Some(10) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    // SAFETY: ignoring a signal has no handler that could be unsafe.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for (name, data) in [(0, b"01234567"), (1, b"89abcdef"), (2, b"ghijklmn")] {
        t.storage.write_data(&file, At::End, data, t.note(name)).unwrap();
    }
    t.storage.flush();
    let failed = |done| Err(IoError { errno: Errno::FBIG, done });
    assert_eq!(t.seen.take(), [(0, Ok(b"01234567".to_vec())), (1, failed(2)), (2, failed(0))]);
    assert_eq!(std::fs::read(t.path()).unwrap(), b"0123456789");
}

#[test]
fn requests_that_cannot_be_are_refused_at_once() {
    let t = Fixture::new(4096, 8, NEVER);
    let file = t.file();
    let size = |len| Err(RequestError::Size { len, most: 4096 });
    assert_eq!(t.storage.write_data(&file, At::End, &[], t.note(0)), size(0));
    assert_eq!(t.storage.write_data(&file, At::End, &[0; 4097], t.note(0)), size(4097));
    assert_eq!(t.storage.read_data(&file, 0, 5000, t.note(0)), size(5000));
    t.storage.write_data(&file, At::End, &[1; 4096], t.note(1)).unwrap();
    t.storage.flush();
    assert_eq!((t.names(), file.end()), (vec![1], 4096));
    assert!(matches!(Storage::new(&t.context, &StorageOptions::default()), Err(StorageError::Second)));
    drop(t.storage);
    for options in [(100, 1), (4096, 0), (4096, 5000), (65 << 20, 1)] {
        let options = StorageOptions { batch_bytes: options.0, batch_operations: options.1, flush_interval: NEVER };
        assert!(matches!(Storage::new(&t.context, &options), Err(StorageError::Options { .. })), "{options:?}");
    }
    assert!(Storage::new(&t.context, &StorageOptions::default()).is_ok(), "the first is gone");
}

#[test]
fn what_waited_for_the_interval_is_written_without_more_requests() {
    for interval in [Duration::ZERO, Duration::from_millis(5)] {
        let t = Fixture::new(4096, 8, interval);
        let file = t.file();
        let started = std::time::Instant::now();
        t.storage.write_data(&file, At::End, b"alone", t.note(0)).unwrap();
        t.poll_until(1);
        assert!(started.elapsed() >= interval);
        assert_eq!(std::fs::read(t.path()).unwrap(), b"alone");
    }
    let t = Fixture::new(4096, 8, NEVER);
    t.storage.write_data(&t.file(), At::End, b"waits", t.note(0)).unwrap();
    t.storage.poll();
    assert_eq!(std::fs::read(t.path()).unwrap(), b"");
    t.storage.flush();
    assert_eq!(std::fs::read(t.path()).unwrap(), b"waits");
}

fn pipe() -> (std::fs::File, File) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (read.into(), File::new(write))
}

#[test]
fn with_both_buffers_full_a_request_waits() {
    let t = Fixture::new(64 << 10, 8, NEVER);
    let (mut out, file) = pipe();
    // What the pipe takes, what the kernel then has, and what fills the other buffer.
    let blocks: Vec<Vec<u8>> = (0..6u8).map(|i| vec![i; 32 << 10]).collect();
    for (name, block) in blocks.iter().enumerate() {
        t.storage.write_data(&file, At::End, block, t.note(name as u32)).unwrap();
    }
    t.storage.poll();
    assert!(t.names().len() <= 2, "the pipe is full: {:?}", t.names());
    // The reader starts when the next request waits, or just before; it gets everything in order.
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 7 * (32 << 10)];
        out.read_exact(&mut all).unwrap();
        all
    });
    t.storage.write_data(&file, At::End, &[6; 32 << 10], t.note(6)).unwrap();
    assert!(t.names().len() >= 2, "the first buffer was done before the request was taken: {:?}", t.names());
    t.storage.flush();
    assert_eq!(t.names(), (0..7).collect::<Vec<_>>());
    assert_eq!(reader.join().unwrap(), [blocks.concat(), vec![6; 32 << 10]].concat());
}

#[test]
fn a_callback_may_make_requests_but_not_wait() {
    let t = Fixture::new(4096, 2, Duration::ZERO);
    let file = t.file();
    t.storage.write_data(&file, At::End, b"0123456789", |_| {}).unwrap();
    let (storage, again, note, results) = (t.storage.clone(), file.clone(), t.note(1), Rc::new(RefCell::new(Vec::new())));
    let out = results.clone();
    t.storage
        .read_data(&file, 0, 4, move |outcome| {
            let first = outcome.unwrap()[3];
            out.borrow_mut().push(storage.read_data(&again, u64::from(first - b'0'), 2, note));
            storage.flush();
            out.borrow_mut().push(storage.read_data(&again, 0, 4000, |_| {}));
            out.borrow_mut().push(storage.read_data(&again, 0, 4000, |_| panic!("was not taken")));
        })
        .unwrap();
    t.poll_until(1);
    t.storage.flush();
    assert_eq!(*t.seen.borrow(), [(1, Ok(b"34".to_vec()))]);
    assert_eq!(*results.borrow(), [Ok(()), Err(RequestError::Full), Err(RequestError::Full)]);
}

#[test]
fn a_storage_that_is_dropped_waits_for_the_kernel_and_calls_nothing() {
    let t = Fixture::new(4096, 8, NEVER);
    let file = t.file();
    let held = Rc::new(());
    for _ in 0..3 {
        let held = held.clone();
        t.storage.write_data(&file, At::End, &[7; 3000], move |_| drop(held)).unwrap();
    }
    drop(t.storage);
    assert!(std::fs::metadata(t.folder.path().join("file")).unwrap().len() >= 3000);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_file_closes_when_its_last_request_has_ended() {
    let t = Fixture::new(4096, 8, NEVER);
    let (mut out, file) = pipe();
    t.storage.write_data(&file, At::End, b"last words", t.note(0)).unwrap();
    drop(file);
    t.storage.flush();
    let mut all = Vec::new();
    out.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last words");
}

#[test]
fn files_without_page_cache_can_be_read() {
    let t = Fixture::new(64 << 10, 16, NEVER);
    let bytes: Vec<u8> = (0..32 << 10).map(|i: u32| (i / 512) as u8).collect();
    std::fs::write(t.path(), &bytes).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let file: OwnedFd = match rustix::fs::open(t.path(), flags, rustix::fs::Mode::empty()) {
        // tmpfs of older kernels.
        Err(Errno::INVAL) => return crate::skip::skip("this file system has no files without page cache"),
        file => file.unwrap(),
    };
    let file = File::new(file);
    for i in 0..8u32 {
        t.storage.read_data(&file, u64::from(i) * 4096, 4096, t.note(i)).unwrap();
    }
    t.storage.flush();
    let mut seen = t.seen.take();
    seen.sort_by_key(|(name, _)| *name);
    let all: Vec<u8> = seen.into_iter().flat_map(|(_, outcome)| outcome.unwrap()).collect();
    assert_eq!(all, bytes);
}

fn wakes(forget: bool, by_neighbours: bool) {
    sluice_shm::doorbell::look_for_more();
    let t = Fixture::new(4096, 8, Duration::ZERO);
    if forget {
        t.storage.forget_futex();
    }
    let bell: &'static std::sync::atomic::AtomicU32 = Box::leak(Box::default());
    let silent: &'static std::sync::atomic::AtomicU32 = Box::leak(Box::default());
    // The doorbell that rings is the core page's or the NF's own, alone or beside a silent one.
    let doorbells = |seen| match by_neighbours {
        true => Doorbells { first: (bell, seen), second: Some((silent, 0)) },
        false if forget => Doorbells { first: (bell, seen), second: None },
        false => Doorbells { first: (silent, 0), second: Some((bell, seen)) },
    };
    let long = Duration::from_secs(20);
    let started = std::time::Instant::now();
    let (mut out, file) = pipe();
    let ring = |seen: u32| {
        let ringer = std::thread::spawn(move || {
            std::thread::yield_now();
            sluice_shm::doorbell::ring(bell);
        });
        while bell.load(std::sync::atomic::Ordering::Acquire) == seen {
            t.storage.0.wait(doorbells(seen), long);
            t.storage.poll();
        }
        ringer.join().unwrap();
    };
    (0..3).for_each(ring);
    // A doorbell that has rung already prevents the sleep.
    t.storage.0.wait(doorbells(0), long);
    t.storage.poll();
    // A completion wakes, with the doorbell silent.
    t.storage.write_data(&file, At::End, &[1; 4096], t.note(0)).unwrap();
    t.storage.flush();
    let (read, written) = (pipe_reader(&t), t.seen.borrow().len());
    t.storage.read_data(&read.0, 0, 5, t.note(1)).unwrap();
    t.storage.poll();
    // With a read under way the doorbell still wakes, and no operation consumes the next ring.
    (3..6).for_each(ring);
    let mut writer = read.1;
    let late = std::thread::spawn(move || {
        writer.write_all(b"later").unwrap();
        writer
    });
    while t.seen.borrow().len() == written {
        t.storage.0.wait(doorbells(6), long);
        t.storage.poll();
    }
    late.join().unwrap();
    assert_eq!(t.seen.borrow()[1], (1, Ok(b"later".to_vec())));
    let mut all = [0; 4096];
    out.read_exact(&mut all).unwrap();
    assert!(started.elapsed() < long, "nothing was found only by the end of a sleep");
    // The last wait's operation is in the ring: the next ring ends it, the one after the futex.
    (6..9).for_each(ring);
    // The timeout wakes, too.
    t.storage.0.wait(doorbells(9), Duration::from_millis(2));
    assert!(started.elapsed() < long);
}

fn pipe_reader(_: &Fixture) -> (File, std::fs::File) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (File::new(read), write.into())
}

#[test]
fn doorbell_and_completions_wake_a_sleeper() {
    wakes(false, false);
    wakes(false, true);
}

#[test]
fn doorbell_and_completions_wake_a_sleeper_on_an_older_kernel() {
    wakes(true, false);
    wakes(true, true);
}

fn model(path: &Path, operations: &[(bool, u16, u8)], batch_operations: usize) -> Result<(), TestCaseError> {
    let context = Context::for_test("t.0", &[], &[], &[]);
    let options = StorageOptions { batch_bytes: 4096, batch_operations, flush_interval: NEVER };
    let storage = Storage::new(&context, &options).unwrap();
    let options = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let file = File::new(options);
    let mut expected = vec![0u8; 1024];
    let (reads, wrong) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    storage.write_data(&file, At::Byte(0), &expected, |_| {}).unwrap();
    let mut asked = 0;
    for (i, (is_write, at, len)) in operations.iter().enumerate() {
        let (at, len) = (usize::from(at % 900), usize::from(len % 100) + 1);
        let range = at..at + len;
        if *is_write {
            expected[range.clone()].fill(i as u8);
            storage.write_data(&file, At::Byte(at as u64), &expected[range], |outcome| assert!(outcome.is_ok())).unwrap();
        } else {
            let (want, reads, wrong) = (expected[range].to_vec(), reads.clone(), wrong.clone());
            asked += 1;
            let check = move |outcome: IoResult<'_>| {
                reads.set(reads.get() + 1);
                wrong.set(wrong.get() + u32::from(outcome != Ok(&want[..])));
            };
            storage.read_data(&file, at as u64, len, check).unwrap();
        }
    }
    storage.flush();
    prop_assert_eq!((reads.get(), wrong.get()), (asked, 0));
    prop_assert_eq!(std::fs::read(path).unwrap(), expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn overlapping_requests_see_what_their_order_says(
        operations in prop::collection::vec((any::<bool>(), any::<u16>(), any::<u8>()), 1..120),
        batch in 1usize..20,
    ) {
        let folder = tempfile::tempdir().unwrap();
        model(&folder.path().join("file"), &operations, batch)?;
    }
}
