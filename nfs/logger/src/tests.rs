use std::path::Path;

use etherparse::PacketBuilder;
use sluice_nf::Verdict;
use sluice_nf::harness::Harness;

use super::*;

#[path = "../../../crates/host/src/skip.rs"]
mod skip;
use skip::skip;

const SECOND: u64 = 1_000_000_000;

struct Fixture {
    nf: Harness<Logger>,
    context: Context,
    folder: tempfile::TempDir,
}

fn logger(arguments: &str) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let (nf, context) = logger_in(folder.path(), arguments);
    Fixture { nf, context, folder }
}

fn logger_in(folder: &Path, arguments: &str) -> (Harness<Logger>, Context) {
    let context = Context::for_test("log.0", &[], &[], &[]);
    let path = folder.join("log.pcap");
    let arguments = ["logger", "--write", path.to_str().unwrap()].into_iter().chain(arguments.split_whitespace());
    let args = Args::try_parse_from(arguments).unwrap();
    (Harness::new(Logger::new(&args, &context, 0).unwrap()), context)
}

fn udp(port: u16, payload: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 1], [10, 0, 1, 1], 64).udp(port, 53);
    builder.write(&mut packet, &vec![port as u8; payload]).unwrap();
    packet
}

/// A record: time in nanoseconds, original length, bytes.
type Record = (u64, u32, Vec<u8>);

/// Reads a file by the format's description, without the code that writes it.
fn read(path: &Path) -> Vec<Record> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let half = |at: usize| u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap());
    assert_eq!((word(0), half(4), half(6), word(8), word(12), word(20)), (0xa1b2_3c4d, 2, 4, 0, 0, 1), "{path:?}");
    let (mut at, mut records) = (24, Vec::new());
    while at < bytes.len() {
        let (seconds, nanos, kept, len) = (word(at), word(at + 4), word(at + 8) as usize, word(at + 12));
        assert!(nanos < 1_000_000_000 && kept as u32 <= word(16).min(len));
        records.push((u64::from(seconds) * SECOND + u64::from(nanos), len, bytes[at + 16..at + 16 + kept].to_vec()));
        at += 16 + kept;
    }
    assert_eq!(at, bytes.len(), "the last record is whole");
    records
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

impl Fixture {
    /// Stops in order, as the library does, and returns what is in the files.
    fn stop(mut self) -> (Report, Vec<Vec<Record>>) {
        let report = stop(&mut self.nf, &self.context);
        (report, files(self.folder.path()).iter().map(|path| read(path)).collect())
    }
}

fn stop(nf: &mut Harness<Logger>, _context: &Context) -> Report {
    if let Some(storage) = nf.handler().log.storage() {
        storage.flush();
    }
    let report = nf.handler().report(0);
    nf.clean();
    report
}

#[test]
fn one_of_two_flows_is_logged_whole_and_in_order() {
    for arguments in ["--port 1000", "--port 1000 --blocking"] {
        let mut t = logger(arguments);
        let before = unix_ns();
        t.nf.tick(5 * SECOND);
        let packets: Vec<_> = (0..300).map(|i| udp(if i % 2 == 0 { 1000 } else { 2000 }, i)).collect();
        t.nf.set_now(5 * SECOND + 1234);
        for (outcome, packet) in t.nf.burst(&packets).iter().zip(&packets) {
            assert_eq!((outcome.verdict, &outcome.bytes), (Verdict::Next, packet));
        }
        let (report, files) = t.stop();
        let [records] = &files[..] else { panic!("one file: {files:?}") };
        let expected: Vec<_> = packets.into_iter().step_by(2).collect();
        assert_eq!(records.iter().map(|record| record.2.clone()).collect::<Vec<_>>(), expected, "{arguments}");
        let after = unix_ns() + 1234;
        assert!(records.iter().all(|record| (before..=after).contains(&record.0) && record.1 as usize == record.2.len()));
        let get = |name| report.get(name).unwrap();
        assert_eq!((get("packets"), get("matched"), get("logged"), get("lost"), get("files")), (300, 150, 150, 0, 1));
        assert_eq!(get("logged_bytes"), expected.iter().map(|packet| packet.len() as u64 + 16).sum::<u64>());
    }
}

#[test]
fn long_packets_are_cut_and_their_length_is_kept() {
    let mut t = logger("--snap 60");
    t.nf.burst(&[udp(1, 500), vec![9; 20]]);
    let (_, files) = t.stop();
    assert_eq!(files[0].iter().map(|r| (r.1, r.2.len())).collect::<Vec<_>>(), [(542, 60), (20, 20)]);
}

#[test]
fn files_rotate_by_size_and_only_the_last_ones_stay() {
    for blocking in ["", "--blocking"] {
        let mut t = logger(&format!("--rotate-mib 1 --keep 2 {blocking}"));
        // 1,000 bytes with the record's header, so 1,048 fit a file of 1 MiB.
        let packets: Vec<_> = (0..3 * 1048 + 10u32).map(|i| [&i.to_be_bytes()[..], &[7; 980]].concat()).collect();
        t.nf.burst(&packets);
        let (report, files) = t.stop();
        assert_eq!((report.get("files"), report.get("logged")), (Some(4), Some(3 * 1048 + 10)), "{blocking}");
        assert_eq!(files.iter().map(Vec::len).collect::<Vec<_>>(), [1048, 10]);
        let last: Vec<_> = files.concat().into_iter().map(|record| record.2).collect();
        assert_eq!(last, packets[2 * 1048..], "nothing is lost between files");
    }
}

#[test]
fn files_rotate_by_age_and_numbers_go_on_after_a_restart() {
    let mut t = logger("--rotate-seconds 10");
    t.nf.set_now(9 * SECOND);
    t.nf.send(&udp(1, 0));
    t.nf.set_now(10 * SECOND);
    t.nf.send(&udp(2, 0));
    t.nf.set_now(11 * SECOND);
    t.nf.send(&udp(3, 0));
    stop(&mut t.nf, &t.context);
    drop(t.nf);
    let (mut nf, context) = logger_in(t.folder.path(), "");
    nf.send(&udp(4, 0));
    stop(&mut nf, &context);
    let found = files(t.folder.path());
    let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["log-000001.pcap", "log-000002.pcap", "log-000003.pcap"]);
    let ports: Vec<Vec<u8>> = found.iter().map(|path| read(path).iter().map(|record| record.2[35]).collect()).collect();
    assert_eq!(ports, [vec![1], vec![2, 3], vec![4]]);
}

/// Runs `test` in a process of its own, whose file sizes can be limited.
fn in_a_process(name: &str, test: impl FnOnce()) {
    if std::env::var_os("SLUICE_LIMITED").is_some() {
        return test();
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--nocapture"]).env("SLUICE_LIMITED", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Limits the size of all files of this process. With the signal caught, the kernel returns EFBIG.
fn limit_files(bytes: u64) {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Default::default()).unwrap();
    let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
}

#[test]
fn a_disk_that_fails_leaves_whole_records_and_is_tried_again() {
    in_a_process("tests::a_disk_that_fails_leaves_whole_records_and_is_tried_again", || {
        // Packet memory is a larger file, so it is created before.
        let both = ["", "--blocking"].map(|blocking| (blocking, logger(&format!("--keep 9 {blocking}"))));
        limit_files(1000);
        for (blocking, mut t) in both {
            let flush = |t: &mut Fixture| t.nf.handler().log.storage().iter().for_each(|storage| storage.flush());
            // 100 bytes with the record's header: nine are whole, the tenth is not.
            let packet = |i: u8| vec![i; 84];
            t.nf.burst(&(0..12).map(packet).collect::<Vec<_>>());
            flush(&mut t);
            t.nf.set_now(SECOND / 2);
            t.nf.send(&packet(20));
            t.nf.set_now(SECOND);
            t.nf.send(&packet(21));
            t.nf.set_now(2 * SECOND);
            t.nf.send(&packet(22));
            flush(&mut t);
            let (report, files) = t.stop();
            let get = |name| report.get(name).unwrap();
            let logged = if blocking.is_empty() { 10 } else { 1 };
            assert_eq!((get("logged"), get("lost"), get("failures"), get("files")), (logged, 15 - logged, 1, 2), "{blocking}");
            let firsts: Vec<Vec<u8>> = files.iter().map(|file| file.iter().map(|record| record.2[0]).collect()).collect();
            // The blocking sink does not know how much of its burst was written, so it loses all of
            // it.
            let expected = if blocking.is_empty() { vec![(0..9).collect(), vec![22]] } else { vec![vec![22]] };
            assert_eq!(firsts, expected, "{blocking}");
        }
    });
}

#[test]
fn what_cannot_be_is_said_at_the_start() {
    let context = Context::for_test("log.0", &[], &[], &[]);
    let error = |arguments: &[&str]| {
        let args = Args::try_parse_from(["logger"].iter().chain(arguments)).unwrap();
        Logger::new(&args, &context, 0).err().unwrap().to_string()
    };
    assert!(error(&["--write", "/nonexistent/log.pcap"]).contains("/nonexistent/log.pcap"));
    assert!(error(&["--write", "/"]).contains("names no file"));
    assert!(error(&["--write", "/tmp/x", "--batch-kib", "4"]).contains("--snap"));
    assert!(Args::try_parse_from(["logger"]).is_err());
}

#[test]
fn tshark_reads_the_files() {
    let Ok(version) = std::process::Command::new("tshark").arg("--version").output() else {
        return skip("tshark is not installed");
    };
    assert!(version.status.success());
    let mut t = logger("");
    t.nf.tick(0);
    t.nf.burst(&[udp(1234, 3), udp(1235, 600)]);
    stop(&mut t.nf, &t.context);
    let path = &files(t.folder.path())[0];
    let fields = ["-T", "fields", "-e", "udp.srcport", "-e", "frame.len", "-e", "frame.cap_len"];
    let output = std::process::Command::new("tshark").arg("-r").arg(path).args(fields).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1234\t45\t45\n1235\t642\t642\n");
}
