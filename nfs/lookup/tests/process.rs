//! The lookup as a process, against a fake manager.

#[path = "../../../crates/nf/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use etherparse::PacketBuilder;
use rustix::process::Signal;
use sluice_shm::page::Control;
use support::{Manager, Mode};

const NEXT: u8 = 0;
const DROP: u8 = 1;

fn lookup() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sluice-nf-lookup"))
}

fn build(folder: &Path, text: &str) -> PathBuf {
    let (source, table) = (folder.join("hosts.txt"), folder.join("hosts.tbl"));
    std::fs::write(&source, text).unwrap();
    let output = lookup().arg("--build").arg(&source).arg("--table").arg(&table).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    table
}

fn udp(to: [u8; 4], port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 9, 9, 9], to, 64).udp(port, 53).write(&mut packet, b"x").unwrap();
    packet
}

fn dscp(packet: &[u8]) -> u8 {
    packet[15] >> 2
}

#[test]
fn packets_wait_for_their_records_and_keep_their_order() {
    // Enough for many buckets.
    let mut text = String::from("10.0.0.1 drop\n10.0.0.2 mark 46\n10.0.0.3 pass\n");
    (0..5000u32).for_each(|i| text += &format!("172.16.{}.{} mark {}\n", i / 250, i % 250, i % 64));
    for arguments in [&["--format", "json"][..], &["--format", "json", "--pending", "4"]] {
        let manager = Manager::new();
        let table = build(manager.folder(), &text);
        let mut command = lookup();
        command.arg("--table").arg(&table).args(arguments);
        let mut process = manager.spawn(command);
        let mut nf = manager.welcome(0, Mode::default());
        let mut ipv6 = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6([1; 16], [2; 16], 64).udp(1, 2).write(&mut ipv6, b"x").unwrap();
        let packets = [udp([10, 0, 0, 1], 1), udp([10, 0, 0, 2], 2), udp([10, 0, 0, 3], 3), ipv6, udp([8, 8, 8, 8], 5)];
        nf.send(&packets.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let got = nf.collect(5);
        assert_eq!(got.iter().map(|b| b.verdict).collect::<Vec<_>>(), [DROP, NEXT, NEXT, NEXT, NEXT]);
        assert_eq!(got.iter().map(|b| dscp(&b.bytes)).collect::<Vec<_>>()[1], 46);
        let unchanged = |i: usize| got[i].bytes == packets[i];
        assert!(unchanged(2) && unchanged(3) && unchanged(4));
        nf.reuse_frames();
        for round in 0..10u16 {
            let packets: Vec<_> = (0..60u16).map(|i| udp([172, 16, (round * 2) as u8, (i * 4) as u8], i)).collect();
            nf.send(&packets.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for (i, back) in (0..60u16).zip(nf.collect(60)) {
                let number = u32::from(round * 2) * 250 + u32::from(i * 4);
                assert_eq!((back.bytes[34..36].to_vec(), u32::from(dscp(&back.bytes))), (i.to_be_bytes().to_vec(), number % 64));
            }
            nf.reuse_frames();
        }
        // Packets that wait at the stop still leave.
        nf.send(&[&udp([10, 0, 0, 2], 7)]);
        nf.control(Control::Stop, 1);
        nf.wake();
        assert_eq!(dscp(&nf.collect(1)[0].bytes), 46);
        let (status, out, err) = process.end();
        assert!(status.success(), "{status} {err}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        let count = |name: &str| report["counters"][name].as_u64().unwrap();
        assert_eq!(
            ["records", "packets", "dropped", "marked", "passed", "missing", "not_ipv4"].map(count),
            [5003, 606, 1, 602, 3, 1, 1]
        );
    }
}

#[test]
fn unknown_addresses_and_failures_go_as_configured() {
    let manager = Manager::new();
    let table = build(manager.folder(), "10.0.0.1 pass\n");
    for (slot, (arguments, verdicts)) in
        [(&["--missing", "drop"][..], [DROP, DROP]), (&["--on-error", "pass"], [NEXT, NEXT]), (&[], [NEXT, DROP])]
            .into_iter()
            .enumerate()
    {
        let whole = std::fs::read(&table).unwrap();
        let mut command = lookup();
        command.arg("--table").arg(&table).args(arguments);
        let mut process = manager.spawn(command);
        let mut nf = manager.welcome(slot as u32, Mode::default());
        nf.send(&[&udp([8, 8, 8, 8], 1)]);
        assert_eq!(nf.collect(1)[0].verdict, verdicts[0], "{arguments:?}");
        // A truncated table cannot be read any more.
        std::fs::File::options().write(true).open(&table).unwrap().set_len(600).unwrap();
        nf.send(&[&udp([10, 0, 0, 1], 1)]);
        assert_eq!(nf.collect(1)[0].verdict, verdicts[1], "{arguments:?}");
        process.signal(Signal::TERM);
        let (status, out, err) = process.end();
        assert!(status.success() && out.contains(" failed 1") && err.contains("become shorter"), "{status} {out} {err}");
        std::fs::write(&table, whole).unwrap();
    }
}

#[test]
fn what_cannot_be_is_said_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("hosts.txt");
    std::fs::write(&source, "10.0.0.1 kill\n").unwrap();
    let output = lookup().arg("--build").arg(&source).args(["--table", "/nonexistent/t"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("hosts.txt:1: `kill` is no action"), "{text}");

    let manager = Manager::new();
    let mut command = lookup();
    command.arg("--table").arg(&source);
    let mut process = manager.spawn(command);
    let _nf = manager.accept(0);
    let (status, _, err) = process.end();
    assert!(!status.success() && err.contains("--build TEXT --table FILE"), "{err}");
}
