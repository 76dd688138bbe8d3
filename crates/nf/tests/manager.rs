//! NFs as processes, against a fake manager.

mod support;

use std::process::Command;

use rustix::process::Signal;
use sluice_shm::page::{Control, Counter};
use support::{Back, Manager, Mode, test_nf, wait_for};

const NEXT: u8 = 0;
const DROP: u8 = 1;
const TO_PORT: u8 = 2;
const TO_SERVICE: u8 = 3;

const N0: &[u8] = b"n0";
const N4: &[u8] = b"n4";

fn back(verdict: u8, arg: u16, bytes: &[u8]) -> Back {
    Back { verdict, arg, bytes: bytes.to_vec() }
}

fn verdicts_and_bytes(style: &str, mode: Mode) {
    let manager = Manager::new();
    let mut process = manager.spawn(test_nf(style));
    let mut nf = manager.welcome(1, mode);
    assert_eq!(process.line(), "ready ids.0");
    nf.send(&[b"n0", b"d0", b"p0", b"s0", b"+0", b"-0", b"i0000"]);
    let expected = [
        back(NEXT, 0, b"n1"),
        back(DROP, 0, b"d0"),
        back(TO_PORT, 1, b"p0"),
        back(TO_SERVICE, 2, b"s0"),
        back(NEXT, 0, b"more+0"),
        back(NEXT, 0, b"0"),
        back(NEXT, 1, b"i\0\x01\0\0"),
    ];
    assert_eq!(nf.collect(7), expected);
    // Both rings, more than a burst.
    nf.post(0, &[N0; 40]);
    nf.post(1, &[N4; 30]);
    let got = nf.collect(70);
    assert_eq!(got.iter().filter(|b| b.bytes == b"n1").count(), 40);
    assert_eq!(got.iter().filter(|b| b.bytes == b"n5").count(), 30);
    process.signal(Signal::TERM);
    let (status, out, _) = process.end();
    assert!(status.success(), "{status}");
    assert_eq!(out, "clean\n");
    assert_eq!(nf.count(Counter::Packets), 77);
    assert_eq!(nf.count(Counter::Drops), 1);
    assert_eq!(nf.count(Counter::Errors), 0);
    assert!(nf.count(Counter::Bursts) >= 4);
}

#[test]
fn a_sleeping_nf_gives_verdicts_and_bytes_back() {
    verdicts_and_bytes("callback", Mode::default());
}

#[test]
fn a_lingering_nf_gives_verdicts_and_bytes_back() {
    verdicts_and_bytes("callback", Mode { linger_ns: 20_000, ..Mode::default() });
}

#[test]
fn a_polling_nf_gives_verdicts_and_bytes_back() {
    verdicts_and_bytes("callback", Mode { poll: true, ..Mode::default() });
}

#[test]
fn a_pulling_nf_gives_verdicts_and_bytes_back() {
    verdicts_and_bytes("pull", Mode::default());
}

#[test]
fn a_packet_that_was_read_and_not_written_goes_back_as_dropped() {
    let manager = Manager::new();
    let _process = manager.spawn(test_nf("pull"));
    let mut nf = manager.welcome(0, Mode::default());
    nf.send(&[b"f0", b"n0", b"f5"]);
    let mut got = nf.collect(3);
    got.sort_by(|a, b| a.bytes.cmp(&b.bytes));
    assert_eq!(got, [back(DROP, 0, b"f1"), back(DROP, 0, b"f6"), back(NEXT, 0, b"n1")]);
}

#[test]
fn on_the_managers_word_it_drains_and_leaves() {
    for style in ["callback", "pull"] {
        let manager = Manager::new();
        let mut process = manager.spawn(test_nf(style));
        let mut nf = manager.welcome(0, Mode::default());
        nf.post(0, &[N0; 50]);
        nf.post(1, &[N0; 14]);
        nf.control(Control::Stop, 1);
        nf.wake();
        let (status, out, _) = process.end();
        assert!(status.success(), "{style}: {status}");
        assert_eq!(out, "ready ids.0\nclean\n", "{style}");
        assert_eq!(nf.collect(64).len(), 64, "{style}: nothing stays behind");
    }
}

#[test]
fn what_was_learnt_is_forgotten_between_two_flows() {
    let manager = Manager::new();
    let mut process = manager.spawn(test_nf("callback"));
    let mut nf = manager.welcome(0, Mode::default());
    nf.post(0, &[N0]);
    nf.wake();
    assert_eq!(nf.collect(1).len(), 1);
    assert_eq!(nf.count(Counter::Reset), 0);
    nf.control(Control::Reset, 7);
    nf.post(0, &[N0]);
    nf.wake();
    assert_eq!(nf.collect(1).len(), 1);
    assert_eq!(nf.count(Counter::Reset), 7, "clean before the first packet of the next flow came back");
    nf.control(Control::Reset, 8);
    wait_for("clean without a packet", || (nf.count(Counter::Reset) == 8).then_some(()));
    nf.control(Control::Stop, 1);
    nf.wake();
    let (status, out, _) = process.end();
    assert!(status.success(), "{status}");
    assert_eq!(out, "ready ids.0\nclean\nclean\nclean\n");
}

#[test]
fn a_sleeping_nf_wakes_for_a_signal() {
    for (style, signal) in [("callback", Signal::TERM), ("callback", Signal::INT), ("pull", Signal::TERM)] {
        let manager = Manager::new();
        let mut process = manager.spawn(test_nf(style));
        let nf = manager.welcome(0, Mode::default());
        wait_for("sleep", || nf.is_asleep().then_some(()));
        process.signal(signal);
        let (status, out, _) = process.end();
        assert!(status.success(), "{style}: {status}");
        assert_eq!(out, "ready ids.0\nclean\n", "{style}");
    }
}

#[test]
fn a_panic_returns_every_frame_and_ends_the_nf() {
    let manager = Manager::new();
    let mut process = manager.spawn(test_nf("callback"));
    let mut nf = manager.welcome(0, Mode::default());
    nf.post(0, &[b"n0", b"+0", b"!0", b"n0"]);
    nf.wake();
    let (status, out, err) = process.end();
    assert_eq!(status.code(), Some(1));
    assert!(!out.contains("clean"), "what panicked is not called again");
    assert!(err.contains("ids.0: the handler panicked") && err.contains("as asked"), "{err}");
    let got = nf.collect(4);
    assert!(got.iter().all(|b| b.verdict == DROP), "{got:?}");
    assert_eq!((nf.count(Counter::Errors), nf.count(Counter::Drops)), (1, 4));
}

#[test]
fn ticks_come_without_packets() {
    let manager = Manager::new();
    let mut command = test_nf("callback");
    command.env("TICK", "1");
    let mut process = manager.spawn(command);
    let mut nf = manager.welcome(0, Mode::default());
    assert_eq!(process.line(), "ready ids.0");
    assert_eq!([process.line(), process.line()], ["tick 1", "tick 2"]);
    nf.send(&[b"n0"]);
    assert_eq!(nf.collect(1), [back(NEXT, 0, b"n1")]);
    assert!(process.line().starts_with("tick"));
}

#[test]
fn an_nf_whose_manager_is_gone_leaves() {
    for mode in [Mode::default(), Mode { poll: true, ..Mode::default() }] {
        let manager = Manager::new();
        let mut process = manager.spawn(test_nf("callback"));
        let mut nf = manager.welcome(0, mode);
        nf.hang_up();
        let (status, _, err) = process.end();
        assert_eq!(status.code(), Some(1));
        assert!(err.contains("the manager is gone"), "{err}");
    }
}

#[test]
fn a_full_tx_ring_suspends_and_loses_nothing() {
    let manager = Manager::new();
    let _process = manager.spawn(test_nf("callback"));
    let mut nf = manager.welcome(0, Mode { rings: 2, capacity: 8, ..Mode::default() });
    nf.post(0, &[N0; 8]);
    nf.post(1, &[N0; 8]);
    nf.wake();
    // The tx ring holds 8 descriptors, so the NF has taken 8.
    wait_for("as many to be taken as can be returned", || (nf.waiting() == 8).then_some(()));
    wait_for("sleep", || nf.is_asleep().then_some(()));
    let got: Vec<_> = (0..16).map(|_| nf.one()).collect();
    assert!(got.iter().all(|b| b.bytes == b"n1"));
    nf.send(&[b"n0"]);
    assert_eq!(nf.one(), back(NEXT, 0, b"n1"));
}

#[test]
fn an_nf_that_goes_to_sleep_starts_the_next_one() {
    let manager = Manager::new();
    let _first = manager.spawn(test_nf("callback"));
    let mut a = manager.welcome(0, Mode::default());
    let _second = manager.spawn(test_nf("callback"));
    let mut b = manager.welcome(3, Mode::default());
    // B has packets, and only A wakes it. B's own timeout may come first: then try again.
    wait_for("a hand-over", || {
        wait_for("sleep", || (a.is_asleep() && b.is_asleep()).then_some(()));
        b.post(0, &[b"n0"]);
        a.send(&[b"n0"]);
        assert_eq!(a.one(), back(NEXT, 0, b"n1"));
        assert_eq!(b.one(), back(NEXT, 0, b"n1"));
        a.reuse_frames();
        b.reuse_frames();
        (a.count(Counter::HandOvers) > 0).then_some(())
    });
    assert!(a.count(Counter::Sleeps) > 0);
}

#[test]
fn when_it_is_to_yield_it_sleeps_with_packets_waiting() {
    let manager = Manager::new();
    let _process = manager.spawn(test_nf("callback"));
    let mut nf = manager.welcome(0, Mode::default());
    wait_for("sleep", || nf.is_asleep().then_some(()));
    nf.control(Control::Yield, 1);
    nf.send(&[N0; 64]);
    wait_for("a sleep with work left", || (nf.is_asleep() && nf.waiting() == 32).then_some(()));
    nf.control(Control::Yield, 0);
    assert_eq!(nf.collect(64).len(), 64);
}

#[test]
fn service_times_are_sampled() {
    let manager = Manager::new();
    let _process = manager.spawn(test_nf("callback"));
    let mut nf = manager.welcome(0, Mode::default());
    wait_for("samples", || {
        nf.send(&[b"d0"]);
        nf.one();
        nf.reuse_frames();
        (nf.count(Counter::Sampled) >= 3).then_some(())
    });
    // The page may be written between the two reads: the histogram is first.
    let recorded = sluice_shm::histogram::Followed::default().follow(nf.region.page.service_time()).count();
    assert!((3..=nf.count(Counter::Packets)).contains(&recorded));
    assert!(nf.count(Counter::BusyNs) > 0);
}

#[test]
fn what_goes_wrong_at_the_start_is_said_once() {
    let manager = Manager::new();
    let mut process = manager.spawn(test_nf("callback"));
    manager.refuse("ids.0 is attached already");
    let (status, _, err) = process.end();
    assert_eq!(status.code(), Some(1));
    assert_eq!(err, "ids.0: the manager refused: ids.0 is attached already\n");

    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let err = run(test_nf("callback").env_remove("SLUICE_SOCKET"));
    assert!(err.contains("no manager socket is named") && err.lines().count() == 1, "{err}");
    let err = run(test_nf("callback").args(["--sluice-socket", "/nowhere/nf.sock"]).env_remove("SLUICE_NF"));
    assert!(err.contains("this NF has no name") && err.lines().count() == 1, "{err}");
    let err = run(test_nf("callback").args(["--sluice-socket=/nowhere/nf.sock", "--sluice-nf=ids"]));
    assert!(err.contains("cannot connect to the manager at /nowhere/nf.sock") && err.lines().count() == 1, "{err}");
}

#[test]
fn a_handler_that_cannot_be_made_says_why() {
    let manager = Manager::new();
    let mut process = manager.spawn(test_nf("broken"));
    let peer = manager.accept(0);
    let (status, _, err) = process.end();
    assert_eq!(status.code(), Some(1));
    assert_eq!(err, "ids.0: the rule file is missing; give one with --rules\n");
    assert_eq!(peer.count(Counter::Ready), 0);
}
