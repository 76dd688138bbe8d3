//! The logger as a process, against a fake manager.

#[path = "../../../crates/nf/tests/support/mod.rs"]
mod support;

use std::process::Command;

use etherparse::PacketBuilder;
use rustix::process::Signal;
use support::{Manager, Mode, wait_for};

fn udp(port: u16, payload: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 1], [10, 0, 1, 1], 64).udp(port, 53);
    builder.write(&mut packet, &vec![port as u8; payload]).unwrap();
    packet
}

#[test]
fn everything_is_in_the_file_after_a_clean_stop() {
    for arguments in [&["--flush-ms", "60000"][..], &["--blocking"], &["--batch-kib", "4", "--snap", "1500"]] {
        let manager = Manager::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-nf-logger"));
        command.arg("--write").arg(manager.folder().join("log.pcap")).args(["--port", "1000", "--format", "json"]).args(arguments);
        let mut process = manager.spawn(command);
        let mut nf = manager.welcome(0, Mode::default());
        for round in 0..4 {
            let packets: Vec<_> = (0..60).map(|i| udp(1000 + i % 2, usize::from(i) * 20 + round)).collect();
            nf.send(&packets.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let back: Vec<_> = nf.collect(60).into_iter().map(|b| (b.verdict, b.bytes)).collect();
            assert!(back == packets.into_iter().map(|p| (0, p)).collect::<Vec<_>>(), "packets pass unchanged");
            nf.reuse_frames();
        }
        process.signal(Signal::TERM);
        let (status, out, err) = process.end();
        assert!(status.success(), "{status} {err}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        let counters = &report["counters"];
        assert_eq!((&counters["packets"], &counters["logged"], &counters["lost"]), (&240.into(), &120.into(), &0.into()));
        let expected: usize = (0..4).flat_map(|round| (0..60).step_by(2).map(move |i| 16 + 42 + i * 20 + round)).sum();
        let file = std::fs::metadata(manager.folder().join("log-000001.pcap")).unwrap();
        assert_eq!(file.len() as usize, 24 + expected, "{arguments:?}");
    }
}

#[test]
fn the_file_grows_while_packets_stay_away() {
    let manager = Manager::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-nf-logger"));
    command.arg("--write").arg(manager.folder().join("log.pcap")).args(["--flush-ms", "1"]);
    let _process = manager.spawn(command);
    let mut nf = manager.welcome(0, Mode::default());
    nf.send(&[&udp(1, 100)]);
    assert_eq!(nf.collect(1).len(), 1);
    let path = manager.folder().join("log-000001.pcap");
    wait_for("the record", || (std::fs::metadata(&path).unwrap().len() == 24 + 16 + 142).then_some(()));
}
