//! Instances that are forked from a zygote, against a fake manager.

mod support;

use rustix::process::Signal;
use sluice_shm::page::{Control, Counter};
use sluice_shm::zygote::ZygoteReport;
use support::{Manager, Mode, Zygote, status_of, test_nf};

fn ready(manager: &Manager, process: &mut support::Process) -> Zygote {
    let zygote = manager.welcome_zygote();
    assert_eq!(process.line(), "ready ids.zygote");
    assert_eq!(zygote.report(), Some(ZygoteReport::Ready));
    zygote
}

#[test]
fn each_instance_has_a_copy_of_the_handler_and_a_life_of_its_own() {
    let manager = Manager::new();
    let mut process = manager.spawn_zygote(test_nf("callback"));
    let zygote = ready(&manager, &mut process);
    let own = std::process::id().to_string();

    zygote.ask("ids.3");
    let mut first = manager.welcome(0, Mode::default());
    let mut first_child = zygote.forked("ids.3");
    assert_eq!((first.name.as_str(), process.line().as_str()), ("ids.3", "forked ids.3"));
    assert_eq!(first_child.status("PPid"), own, "it is a child of the zygote's parent");
    assert_eq!(first_child.status("Threads"), "1");
    assert_eq!(rustix::process::getpgid(Some(first_child.pid)).unwrap(), first_child.pid, "it leads a group of its own");
    for same in ["Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "SigBlk", "CapEff"] {
        assert_eq!(first_child.status(same), status_of(process.pid(), same), "{same}");
    }
    // An instance stops on these two, even if the test itself was started with them ignored.
    let stops = [Signal::INT, Signal::TERM].map(|signal| 1u64 << (signal.as_raw() - 1)).iter().sum::<u64>();
    let ignored = |mask: &str| u64::from_str_radix(mask, 16).unwrap() & !stops;
    assert_eq!(ignored(&first_child.status("SigIgn")), ignored(&status_of(process.pid(), "SigIgn")));
    first.send(&[b"#0", b"#0", b"#0"]);
    assert_eq!(first.collect(3).into_iter().map(|b| b.bytes[1]).collect::<Vec<_>>(), [1, 2, 3]);

    zygote.ask("ids.4");
    let mut second = manager.welcome(1, Mode::default());
    let mut second_child = zygote.forked("ids.4");
    assert_eq!(process.line(), "forked ids.4");
    second.send(&[b"#0"]);
    assert_eq!(second.collect(1)[0].bytes[1], 1, "what the first has learnt is not there");

    first_child.signal(Signal::KILL);
    assert_eq!(first_child.end(), None);
    second.send(&[b"#0"]);
    assert_eq!(second.collect(1)[0].bytes[1], 2);

    zygote.ask("ids.5");
    let mut third = manager.welcome(2, Mode::default());
    let mut third_child = zygote.forked("ids.5");
    assert_eq!(process.line(), "forked ids.5");
    // The zygote dies, and its instances go on.
    process.signal(Signal::KILL);
    assert_eq!(zygote.report(), None);
    third.send(&[b"n0"]);
    assert_eq!(third.collect(1)[0].bytes, b"n1");
    for (nf, child) in [(&second, &mut second_child), (&third, &mut third_child)] {
        nf.control(Control::Stop, 1);
        nf.wake();
        assert_eq!(child.end(), Some(0));
        assert_eq!(process.line(), "clean");
    }
}

#[test]
fn an_instance_stops_for_a_signal_and_its_zygote_when_it_is_let_go() {
    let manager = Manager::new();
    let mut process = manager.spawn_zygote(test_nf("callback"));
    let zygote = ready(&manager, &mut process);
    zygote.ask("ids.0");
    let _nf = manager.welcome(0, Mode::default());
    let mut child = zygote.forked("ids.0");
    assert_eq!(process.line(), "forked ids.0");
    child.signal(Signal::TERM);
    assert_eq!(child.end(), Some(0));
    assert_eq!(process.line(), "clean");
    drop(zygote);
    let (status, out, err) = process.end();
    assert!(status.success(), "{status} {err}");
    assert_eq!(out, "", "it has had no packets, and nothing to clean");
}

#[test]
fn what_cannot_be_forked_says_why() {
    for (style, why, code) in [
        ("threads", "it has 2 threads when its handler is made; start threads in `forked`", 0),
        ("storage", "its storage was set up with its handler; set it up in `forked`", 0),
        ("pull", "it is written in pull style", 1),
    ] {
        let manager = Manager::new();
        let file = manager.folder().join("file");
        std::fs::write(&file, "").unwrap();
        let mut command = test_nf(style);
        command.env("FILE", file);
        let mut process = manager.spawn_zygote(command);
        let zygote = manager.welcome_zygote();
        assert_eq!(zygote.report(), Some(ZygoteReport::Unfit(why.into())), "{style}");
        let (status, _, err) = process.end();
        assert_eq!(status.code(), Some(code), "{style}: {err}");
        assert_eq!(err.contains("write it in callback style"), code == 1, "{style}: {err}");
        assert_eq!(zygote.report(), None);
    }
}

#[test]
fn a_handler_that_cannot_be_made_or_go_on_says_why() {
    let manager = Manager::new();
    let mut process = manager.spawn_zygote(test_nf("broken"));
    let zygote = manager.welcome_zygote();
    let (status, _, err) = process.end();
    assert_eq!((status.code(), zygote.report()), (Some(1), None));
    assert_eq!(err, "ids.zygote: the rule file is missing; give one with --rules\n");

    let mut command = test_nf("callback");
    command.env("FORKED_BROKEN", "1");
    let mut process = manager.spawn_zygote(command);
    let zygote = ready(&manager, &mut process);
    zygote.ask("ids.8");
    let nf = manager.accept(0);
    assert_eq!(zygote.forked("ids.8").end(), Some(1));
    assert_eq!(nf.count(Counter::Ready), 0);
    drop(zygote);
    let (status, _, err) = process.end();
    assert!(status.success());
    assert_eq!(err, "ids.8: the random device is missing\n");
}

#[test]
fn an_instance_that_is_refused_ends_and_its_zygote_goes_on() {
    let manager = Manager::new();
    let mut process = manager.spawn_zygote(test_nf("callback"));
    let zygote = ready(&manager, &mut process);
    zygote.ask("ids.0");
    manager.refuse("nobody waits for ids.0");
    assert_eq!(zygote.forked("ids.0").end(), Some(1));
    zygote.ask("ids.1");
    let mut nf = manager.welcome(0, Mode::default());
    let _child = zygote.forked("ids.1");
    nf.send(&[b"n0"]);
    assert_eq!(nf.collect(1)[0].bytes, b"n1");
}
