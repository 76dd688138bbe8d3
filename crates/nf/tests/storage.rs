//! Storage within an NF, against a fake manager. A pipe is a slow disk: 64 KiB until it is read.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};
use rustix::process::Signal;
use sluice_shm::page::{Control, Counter};
use support::{Manager, Mode, test_nf, wait_for};

const DROP: u8 = 1;

/// Capacity of a pipe, in bytes.
const PIPE: usize = 64 << 10;

fn nf(style: &str, path: &PathBuf, batch: usize) -> Command {
    let mut command = test_nf(style);
    command.env("FILE", path).env("BATCH", batch.to_string());
    command
}

fn empty_file(manager: &Manager) -> PathBuf {
    let path = manager.folder().join("file");
    File::create(&path).unwrap();
    path
}

/// A named pipe, opened by the test.
fn pipe(manager: &Manager) -> (PathBuf, File) {
    let path = manager.folder().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, FileMode::RUSR | FileMode::WUSR, 0).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    (path, file)
}

#[test]
fn a_clean_stop_writes_everything_and_runs_the_callbacks() {
    for by_signal in [true, false] {
        let manager = Manager::new();
        let path = empty_file(&manager);
        let mut process = manager.spawn(nf("storage", &path, 4096));
        let mut nf = manager.welcome(0, Mode::default());
        let packets: Vec<Vec<u8>> = (0..60).map(|i| format!("w{i} {}\n", "x".repeat(i * 5)).into_bytes()).collect();
        nf.send(&packets.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(nf.collect(60).len(), 60, "no packet waits for the disk");
        if by_signal {
            process.signal(Signal::TERM);
        } else {
            nf.control(Control::Stop, 1);
            nf.wake();
        }
        let (status, out, err) = process.end();
        assert!(status.success(), "{status} {err}");
        assert_eq!(out, "ready ids.0\nclean: 60 written, 0 failed\n");
        let expected = [packets.concat(), b"the end".to_vec()].concat();
        assert_eq!(std::fs::read(path).unwrap(), expected, "what clean() wrote is there too");
    }
}

#[test]
fn the_interval_writes_without_packets() {
    let manager = Manager::new();
    let path = empty_file(&manager);
    let mut command = nf("storage", &path, 4096);
    command.env("FLUSH_MS", "3");
    let _process = manager.spawn(command);
    let mut nf = manager.welcome(0, Mode::default());
    nf.send(&[b"w alone"]);
    assert_eq!(nf.collect(1)[0].bytes, b"w alone");
    wait_for("the file", || (std::fs::read(&path).unwrap() == b"w alone").then_some(()));
}

#[test]
fn a_completion_wakes_a_sleeping_nf() {
    for mode in [Mode::default(), Mode { poll: true, ..Mode::default() }, Mode { linger_ns: 20_000, ..Mode::default() }] {
        let manager = Manager::new();
        let (path, mut pipe) = pipe(&manager);
        let mut command = nf("storage", &path, 4096);
        command.env("FLUSH_MS", "0");
        let mut process = manager.spawn(command);
        let mut nf = manager.welcome(0, mode);
        assert_eq!(process.line(), "ready ids.0");
        nf.send(&[b"r", b"n"]);
        assert_eq!(nf.collect(2).len(), 2, "other packets go on");
        if !mode.poll {
            wait_for("sleep", || nf.is_asleep().then_some(()));
        }
        pipe.write_all(b"hello").unwrap();
        assert_eq!(process.line(), "read hello");
    }
}

#[test]
fn with_both_buffers_full_the_nf_sleeps_and_goes_on_with_the_disk() {
    for mode in [Mode::default(), Mode { poll: true, ..Mode::default() }] {
        let manager = Manager::new();
        let (path, mut pipe) = pipe(&manager);
        let mut process = manager.spawn(nf("storage", &path, PIPE));
        let mut nf = manager.welcome(0, mode);
        let large = [b"w".to_vec(), vec![7; 1999]].concat();
        // The pipe and each buffer take about 32 packets. Other packets go on all the time.
        let mut sent = 0;
        for _ in 0..6 {
            nf.send(&[&large[..]; 16]);
            sent += 16;
            assert_eq!(nf.collect(16).len(), 16);
            nf.send(&[b"other"]);
            assert_eq!(nf.collect(1)[0].bytes, b"other");
            nf.reuse_frames();
        }
        let sleeps = nf.count(Counter::Sleeps);
        nf.send(&[&large[..]; 16]);
        sent += 16;
        wait_for("the burst to be taken", || (nf.waiting() == 0).then_some(()));
        nf.post(1, &[b"held up"]);
        if !mode.poll {
            wait_for("the suspension", || (nf.is_asleep() && nf.count(Counter::Sleeps) > sleeps).then_some(()));
            // A wake for packets does it neither good nor harm.
            nf.wake();
            wait_for("the suspension", || nf.is_asleep().then_some(()));
        }
        assert_eq!(nf.waiting(), 1, "nothing is read meanwhile");
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; sent * large.len()];
            pipe.read_exact(&mut all).unwrap();
            (all == large.repeat(sent), pipe)
        });
        assert_eq!(nf.collect(17).last().unwrap().bytes, b"held up");
        // The last ones are written at the stop, as no interval ends before.
        process.signal(Signal::TERM);
        let (same, _pipe) = reader.join().unwrap();
        assert!(same);
        let (status, out, err) = process.end();
        assert!(status.success(), "{status} {err}");
        assert!(out.ends_with(&format!("clean: {sent} written, 0 failed\n")), "{out}");
    }
}

#[test]
fn errors_of_the_disk_reach_the_nf() {
    let manager = Manager::new();
    let mut process = manager.spawn(nf("storage", &"/dev/full".into(), 4096));
    let mut nf = manager.welcome(0, Mode::default());
    nf.send(&[b"w1", b"w2", b"n"]);
    assert_eq!(nf.collect(3).len(), 3);
    process.signal(Signal::TERM);
    let (status, out, _) = process.end();
    assert!(status.success(), "{status}");
    assert_eq!(out, "ready ids.0\nclean: 0 written, 2 failed\n");
}

#[test]
fn a_callback_that_panics_ends_the_nf_like_a_handler() {
    let manager = Manager::new();
    let path = empty_file(&manager);
    let mut command = nf("storage", &path, 4096);
    command.env("FLUSH_MS", "0");
    let mut process = manager.spawn(command);
    let mut nf = manager.welcome(0, Mode::default());
    nf.send(&[b"!"]);
    let (status, _, err) = process.end();
    assert_eq!(status.code(), Some(1));
    assert!(err.contains("the handler panicked") && err.contains("as asked"), "{err}");
    assert_eq!(nf.count(Counter::Errors), 1);
}

#[test]
fn packets_wait_for_their_writes_in_pull_style() {
    let manager = Manager::new();
    let path = empty_file(&manager);
    let mut command = nf("storage-pull", &path, 4096);
    command.env("FLUSH_MS", "0");
    let _process = manager.spawn(command);
    let mut nf = manager.welcome(0, Mode::default());
    for _ in 0..20 {
        nf.send(&[b"one", b"two", b"three"]);
        let got: Vec<_> = nf.collect(3).into_iter().map(|b| b.bytes).collect();
        assert_eq!(got, [&b"one"[..], b"two", b"three"]);
        nf.reuse_frames();
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"onetwothree".repeat(20));

    // With an interval that never ends, the stop writes them.
    let path = manager.folder().join("second");
    File::create(&path).unwrap();
    let mut process = manager.spawn(self::nf("storage-pull", &path, 4096));
    let mut nf = manager.welcome(1, Mode::default());
    nf.send(&[b"held", b"fast"]);
    wait_for("the packets to be taken", || (nf.waiting() == 0).then_some(()));
    process.signal(Signal::TERM);
    assert_eq!(nf.collect(2).iter().map(|b| &b.bytes[..]).collect::<Vec<_>>(), [b"held", b"fast"]);
    let (status, out, err) = process.end();
    assert!(status.success(), "{status} {err}");
    assert_eq!(out, "ready ids.0\nclean\n");
    assert_eq!(std::fs::read(&path).unwrap(), b"heldfast");

    // Without room on the disk they are dropped, as the callback reports the error.
    let mut process = manager.spawn(self::nf("storage-pull", &"/dev/full".into(), 4096));
    let mut nf = manager.welcome(2, Mode::default());
    nf.send(&[b"held"]);
    wait_for("the packet to be taken", || (nf.waiting() == 0).then_some(()));
    process.signal(Signal::TERM);
    assert_eq!(nf.collect(1)[0].verdict, DROP);
    assert!(process.end().0.success());
}
