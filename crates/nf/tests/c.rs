//! NFs in C, compiled by the system's compiler and run against a fake manager.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use sluice_shm::page::{Control, Counter, NfRequest};
use sluice_shm::zygote::ZygoteReport;
use support::{Manager, Mode, outputs};

const NEXT: u8 = 0;
const DROP: u8 = 1;

#[derive(Clone, Copy)]
enum Link {
    Static,
    Shared,
}

fn compile(source: &str, folder: &Path, link: Link) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("nf");
    let libraries = outputs().join("deps");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
    cc.arg(root.join("include")).arg("-o").arg(&program).arg(root.join(source));
    match link {
        Link::Static => cc.arg(libraries.join("libsluice_nf.a")),
        Link::Shared => {
            // As installed: the program asks for the name that the library has for the loader.
            std::os::unix::fs::symlink(libraries.join("libsluice_nf.so"), folder.join(env!("SLUICE_NF_SONAME"))).unwrap();
            cc.arg("-L").arg(&libraries).arg("-lsluice_nf").arg(format!("-Wl,-rpath,{}", folder.display()))
        }
    };
    cc.args(["-lpthread", "-ldl", "-lm"]);
    let output = cc.output().expect("a C compiler is needed: install gcc or clang");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn probe(program: &Path, style: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(style);
    command
}

#[test]
fn the_bridge_passes_packets_on() {
    for link in [Link::Static, Link::Shared] {
        let manager = Manager::new();
        let program = compile("../../nfs/c/bridge.c", manager.folder(), link);
        let mut process = manager.spawn(Command::new(program));
        let mut nf = manager.welcome(0, Mode::default());
        nf.send(&[b"first", b"second"]);
        let got = nf.collect(2);
        assert_eq!([&got[0].bytes[..], &got[1].bytes], [&b"first"[..], b"second"]);
        assert!(got.iter().all(|b| b.verdict == NEXT));
        process.signal(Signal::TERM);
        let (status, out, err) = process.end();
        assert!(status.success(), "{status} {err}");
        assert_eq!((out.as_str(), err.as_str()), ("", ""));
    }
}

#[test]
fn help_needs_no_manager() {
    let folder = tempfile::tempdir().unwrap();
    for (source, words) in [("../../nfs/c/mark.c", "Usage: nf [OPTIONS]"), ("../../nfs/c/monitor.c", "[SECONDS]")] {
        let program = compile(source, folder.path(), Link::Static);
        let output = Command::new(program).arg("--help").env_remove("SLUICE_SOCKET").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains(words), "{source}: {said}");
    }
}

#[test]
fn the_monitor_counts_flows() {
    let manager = Manager::new();
    let program = compile("../../nfs/c/monitor.c", manager.folder(), Link::Static);
    let mut process = manager.spawn(Command::new(program));
    let mut nf = manager.welcome(0, Mode::default());
    let udp = |port, payload: &[u8]| {
        let mut packet = Vec::new();
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(port, 53);
        builder.write(&mut packet, payload).unwrap();
        packet
    };
    let mut tcp = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64).tcp(4000, 443, 7, 1024);
    builder.write(&mut tcp, &[7; 200]).unwrap();
    let (small, large) = (udp(1000, b"x"), udp(1000, b"xyz"));
    nf.send(&[&small, &large, &tcp, b"not IP, and not Ethernet either"]);
    assert_eq!(nf.collect(4).iter().map(|b| b.bytes.clone()).collect::<Vec<_>>()[2], tcp);
    let tcp_line = format!("{0} 4000 {1} 443 6: 1 packets, 274 bytes", "101:".repeat(7) + "101", "202:".repeat(7) + "202");
    let udp_line = "10.0.0.1 1000 10.0.0.2 53 17: 2 packets, 88 bytes";
    let expected = [tcp_line.as_str(), udp_line, "other: 1 packets, 31 bytes"];
    process.signal(Signal::USR1);
    assert_eq!([process.line(), process.line(), process.line()], expected);
    process.signal(Signal::TERM);
    let (status, out, err) = process.end();
    assert!(status.success(), "{status} {err}");
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn both_styles_give_verdicts_and_bytes_back() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Static);
    for style in ["callback", "first", "pull"] {
        let mut process = manager.spawn(probe(&program, style));
        let mut nf = manager.welcome(1, Mode::default());
        assert_eq!(process.line(), "ready ids.0", "{style}");
        nf.send(&[b"n0", b"d0", b"p0", b"s0", b"+0", b"-0", b"e0", b"i0"]);
        let got: Vec<_> = nf.collect(8).into_iter().map(|b| (b.verdict, b.bytes)).collect();
        let expected: [(u8, &[u8]); 8] =
            [(0, b"n1"), (1, b"d0"), (2, b"p0"), (3, b"s0"), (0, b"more+0"), (0, b"0"), (0, b"e0en"), (0, b"i0")];
        assert_eq!(got, expected.map(|(verdict, bytes)| (verdict, bytes.to_vec())), "{style}");
        nf.reuse_frames();
        nf.post(0, &[b"n0"; 60].map(|p| &p[..]));
        assert_eq!(nf.collect(60).len(), 60);
        nf.control(Control::Stop, 1);
        nf.wake();
        let (status, out, err) = process.end();
        assert!(status.success(), "{style}: {status} {err}");
        assert_eq!(out, "clean\n", "{style}");
        manager.core.reset(1);
    }
}

#[test]
fn an_error_of_the_handler_drops_its_burst_and_ends_the_nf() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Static);
    let mut process = manager.spawn(probe(&program, "callback"));
    let mut nf = manager.welcome(0, Mode::default());
    // A packet that left its frame is dropped, and the NF goes on.
    nf.send(&[b"w0", b"n0"]);
    let verdicts: Vec<_> = nf.collect(2).iter().map(|b| b.verdict).collect();
    assert_eq!((verdicts, nf.count(Counter::Errors)), (vec![DROP, NEXT], 1));
    nf.send(&[b"n0", b"!0"]);
    assert!(nf.collect(2).iter().all(|b| b.verdict == DROP));
    let (status, out, err) = process.end();
    assert_eq!((status.code(), out.contains("clean")), (Some(1), false));
    assert!(err.starts_with("-3 the handler failed with code -42"), "{err}");
    assert_eq!(nf.count(Counter::Errors), 2);

    let mut broken = probe(&program, "callback");
    broken.env("BROKEN", "1");
    let mut process = manager.spawn(broken);
    let _peer = manager.accept(1);
    let (status, _, err) = process.end();
    assert_eq!(status.code(), Some(1));
    assert!(err.starts_with("-3 "), "{err}");
}

#[test]
fn what_c_asks_for_is_on_its_page() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Static);
    for (slot, style) in [(0, "callback"), (1, "pull")] {
        let mut process = manager.spawn(probe(&program, style));
        let mut nf = manager.welcome(slot, Mode::default());
        let asked = |nf: &support::Nf<'_>| [NfRequest::Priority, NfRequest::FlowEnd].map(|what| nf.region.page.asked(what, 0));
        assert_eq!(asked(&nf), [0, 0], "{style}");
        nf.send(&[b"a0", b"o0"]);
        assert_eq!(nf.collect(2).len(), 2);
        assert_eq!(asked(&nf), [2_500, 1], "{style}");
        process.signal(Signal::TERM);
        let (status, _, err) = process.end();
        assert!(status.success(), "{style}: {status} {err}");
    }
}

#[test]
fn c_is_forked() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Static);
    let mut process = manager.spawn_zygote(probe(&program, "zygote"));
    let zygote = manager.welcome_zygote();
    assert_eq!(zygote.report(), Some(ZygoteReport::Ready));
    for (slot, name, said) in [(0, "ids.4", "madeforked ids.4"), (1, "ids.5", "forked ids.5")] {
        zygote.ask(name);
        let mut nf = manager.welcome(slot, Mode::default());
        let mut child = zygote.forked(name);
        assert_eq!(process.line(), said);
        nf.send(&[b"#0", b"#0"]);
        assert_eq!(nf.collect(2).into_iter().map(|b| b.bytes[1]).collect::<Vec<_>>(), [1, 2], "{name}");
        nf.control(Control::Stop, 1);
        nf.wake();
        assert_eq!(child.end(), Some(0));
    }
    drop(zygote);
    let (status, out, err) = process.end();
    assert!(status.success(), "{status} {err}");
    assert_eq!(out, "");

    let mut command = probe(&program, "zygote");
    command.env("BROKEN", "1");
    let mut process = manager.spawn_zygote(command);
    let zygote = manager.welcome_zygote();
    assert_eq!(zygote.report(), Some(ZygoteReport::Ready));
    zygote.ask("ids.0");
    let nf = manager.accept(2);
    assert_eq!(zygote.forked("ids.0").end(), Some(1));
    assert_eq!(nf.count(Counter::Ready), 0);
    drop(zygote);
    let (_, _, err) = process.end();
    assert_eq!(err, "-3 the handler failed with code 7; its burst was dropped and every frame returned\n");
}

#[test]
fn ticks_reach_c() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Static);
    let mut command = probe(&program, "callback");
    command.env("TICK", "1");
    let mut process = manager.spawn(command);
    let _nf = manager.welcome(0, Mode::default());
    assert_eq!([process.line(), process.line(), process.line()], ["ready ids.0", "tick 1", "tick 2"]);
}

#[test]
fn c_reads_and_writes_files() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Static);
    let path = manager.folder().join("file");
    std::fs::write(&path, "").unwrap();
    let mut command = probe(&program, "storage");
    command.env("FILE", &path);
    let mut process = manager.spawn(command);
    let mut nf = manager.welcome(0, Mode::default());
    nf.send(&[b"w one, ", b"w two"]);
    assert_eq!(nf.collect(2).len(), 2);
    nf.send(&[b"r"]);
    assert_eq!(process.line(), "read one, w two");
    process.signal(Signal::TERM);
    let (status, out, err) = process.end();
    assert!(status.success(), "{status} {err}");
    assert_eq!(out, "clean: 2 written, 0 failed\n");
    assert_eq!(std::fs::read(&path).unwrap(), b"W one, w two");

    let mut command = probe(&program, "storage");
    command.env("FILE", "/dev/full");
    let mut process = manager.spawn(command);
    let mut nf = manager.welcome(1, Mode::default());
    nf.send(&[b"w one", b"w two"]);
    assert_eq!(nf.collect(2).len(), 2);
    process.signal(Signal::TERM);
    let (status, out, err) = process.end();
    assert!(status.success(), "{status} {err}");
    assert_eq!(out, "clean: 0 written, 2 failed\n");
}

#[test]
fn what_was_read_and_not_written_goes_back_when_c_detaches() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Static);
    let mut process = manager.spawn(probe(&program, "pull"));
    let mut nf = manager.welcome(0, Mode::default());
    nf.send(&[b"f0", b"n0", b"f1"]);
    assert_eq!(nf.collect(1)[0].bytes, b"n1");
    process.signal(Signal::TERM);
    let (status, _, err) = process.end();
    assert!(status.success(), "{status} {err}");
    assert!(nf.collect(2).iter().all(|b| b.verdict == DROP));
}

#[test]
fn header_helpers_and_errors_work_without_a_manager() {
    let manager = Manager::new();
    let program = compile("tests/probe.c", manager.folder(), Link::Shared);
    for style in ["headers", "errors"] {
        let output = probe(&program, style).output().unwrap();
        assert!(output.status.success(), "{style}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
