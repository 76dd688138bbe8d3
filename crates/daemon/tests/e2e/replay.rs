//! `sluice replay`: one command takes a capture through NFs, and leaves nothing but its file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use etherparse::PacketBuilder;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};

use crate::support::{open_folder, sluice};

/// A packet of a capture: nanoseconds since 1970, bytes, and bytes that a snap length has cut off.
type Recorded = (u64, Vec<u8>, u32);

/// A packet that was written: name of its interface, time, original length, bytes.
type Written = (String, u64, u32, Vec<u8>);

const TIME: u64 = 1_700_000_000_123_456_789;

/// A pcap with nanoseconds.
fn capture(link: u32, packets: &[Recorded]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = words(&[0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 262_144, link]);
    for (time, bytes, cut) in packets {
        let len = bytes.len() as u32;
        file.extend(words(&[(time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32, len, len + cut]));
        file.extend(bytes);
    }
    file
}

/// A UDP packet without a link header, to this port.
fn udp(port: u16, payload: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4([10, 0, 0, 1], [192, 0, 2, 1], 64).udp(5000, port).write(&mut packet, &vec![7; payload]).unwrap();
    packet
}

fn written(file: &Path) -> Vec<Written> {
    let bytes = fs::read(file).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let (mut names, mut packets) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                let name = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                names.push(name.unwrap());
            }
            Block::EnhancedPacket(packet) => {
                let name = names[packet.interface_id as usize].clone();
                packets.push((name, packet.timestamp.as_nanos() as u64, packet.original_len, packet.data.to_vec()));
            }
            other => panic!("{other:?}"),
        }
    }
    packets
}

/// A folder with a capture, and one for temporary files.
struct Site {
    folder: tempfile::TempDir,
    temporary: tempfile::TempDir,
}

impl Site {
    fn new(capture: &[u8]) -> Self {
        let site = Self { folder: open_folder(), temporary: open_folder() };
        fs::write(site.source(), capture).unwrap();
        site
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("in.pcap")
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Replays the capture into the file `out`. Nothing temporary may be left.
    fn replay(&self, args: &[&str]) -> Output {
        let mut command = Command::new(sluice());
        command.arg("replay").arg(self.source()).args(args).arg("-w").arg(self.target());
        command.env("TMPDIR", self.temporary.path()).env_remove("SLUICE_CONTROL").stdin(Stdio::null());
        let output = command.output().unwrap();
        let left = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(left(self.temporary.path()), Vec::<std::ffi::OsString>::new(), "{output:?}");
        let known = ["in.pcap", "out", "rules"];
        let others: Vec<_> = left(self.folder.path()).into_iter().filter(|name| known.iter().all(|known| name != known)).collect();
        assert_eq!(others, Vec::<std::ffi::OsString>::new(), "{output:?}");
        output
    }

    /// Replays a capture that must pass; returns what it says.
    #[track_caller]
    fn passes(&self, args: &[&str]) -> String {
        let output = self.replay(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Replays a capture that must be refused with this code; returns why. The file stays as it is.
    #[track_caller]
    fn fails(&self, code: i32, args: &[&str]) -> String {
        fs::write(self.target(), "old").unwrap();
        let output = self.replay(args);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(fs::read(self.target()).unwrap(), b"old");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Runs all cases, three at a time: most of the time they wait.
fn three_at_a_time<T: Send>(cases: Vec<T>, run: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| std::iter::from_fn(next).for_each(&run));
        }
    });
}

#[test]
fn raw_packets_pass_firewall_and_nat_with_their_times_and_lengths() {
    let mut cut = udp(53, 1000);
    cut.truncate(60);
    let packets: [Recorded; 3] = [(TIME, udp(53, 100), 0), (TIME + 1, cut, 968), (TIME + 1_000_000_007, udp(80, 1), 0)];
    let site = Site::new(&capture(101, &packets));
    let said = site.passes(&["--through", "firewall,nat"]);
    assert!(said.contains(": 3 came, 3 left, 0 dropped\n  3 with a made Ethernet header\n  1 in the capture in part"), "{said}");
    let got = written(&site.target());
    assert_eq!(got.len(), 3);
    for ((interface, time, len, bytes), (wanted_time, wanted, cut)) in got.iter().zip(&packets) {
        assert_eq!((interface.as_str(), time, *len), ("out-made", wanted_time, wanted.len() as u32 + cut + 14));
        assert_eq!((bytes.len(), &bytes[12..14]), (wanted.len() + 14, &[8, 0][..]));
        // The NAT's address, and the destination as it was.
        assert_eq!(bytes[26..34], [203, 0, 113, 1, 192, 0, 2, 1]);
        assert_eq!(bytes[36..38], wanted[22..24], "the destination port");
    }
}

#[test]
fn what_a_firewall_drops_is_counted_by_reason() {
    let packets: Vec<Recorded> = (0..20).map(|i| (TIME + i, udp(if i % 4 == 0 { 9 } else { 53 }, 20), 0)).collect();
    let site = Site::new(&capture(101, &packets));
    let rules = site.folder.path().join("rules");
    fs::write(&rules, "default allow\ndeny udp from 10.0.0.0/8 to any port 9\n").unwrap();
    let firewall = format!("fw=sluice-nf-firewall --rules {}", rules.display());
    let said = site.passes(&["--through", "bridge,fw,bridge", "--nf", &firewall]);
    assert!(said.contains(": 20 came, 15 left, 5 dropped"), "{said}");
    let row = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {said}"));
    let words = |name: &str| row(name).split_whitespace().map(str::to_string).collect::<Vec<_>>();
    assert_eq!(words("fw.0"), ["fw.0", "20", "15", "5", "0"]);
    assert_eq!(words("bridge-2.0"), ["bridge-2.0", "15", "15", "0", "0"]);
    assert_eq!(words("verdict"), ["verdict", "5"]);
    assert_eq!(written(&site.target()).len(), 15);
}

#[test]
fn each_link_type_is_replayed() {
    let (four, six) = (udp(53, 30), [vec![0x60u8, 0, 0, 0, 0, 0, 59, 64], vec![1; 32]].concat());
    let ethernet = |source: [u8; 6], kind: [u8; 2]| [&[2, 0, 0, 0, 0, 2][..], &source, &kind].concat();
    let made = [2u8, 0, 0, 0, 0, 1];
    let sender = [4u8, 5, 6, 7, 8, 9];
    let cooked = [&[0u8, 0, 0, 1, 0, 6][..], &sender, &[0, 0, 8, 0]].concat();
    let cooked_2 = [&[8u8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6][..], &sender, &[0, 0]].concat();
    let cases = vec![
        (0, vec![2, 0, 0, 0], &four, made, [8, 0]),
        (0, vec![0, 0, 0, 2], &four, made, [8, 0]),
        (0, vec![30, 0, 0, 0], &six, made, [0x86, 0xdd]),
        (9, vec![0xff, 3, 0, 0x21], &four, made, [8, 0]),
        (9, vec![0, 0x57], &six, made, [0x86, 0xdd]),
        (101, vec![], &six, made, [0x86, 0xdd]),
        (108, vec![0, 0, 0, 24], &six, made, [0x86, 0xdd]),
        (113, cooked, &four, sender, [8, 0]),
        (228, vec![], &four, made, [8, 0]),
        (229, vec![], &six, made, [0x86, 0xdd]),
        (276, cooked_2, &four, sender, [8, 0]),
    ];
    three_at_a_time(cases, |(link, header, payload, source, kind)| {
        let site = Site::new(&capture(link, &[(TIME, [&header[..], payload].concat(), 0)]));
        site.passes(&["--through", "bridge"]);
        let wanted = [ethernet(source, kind), payload.clone()].concat();
        let len = wanted.len() as u32;
        assert_eq!(written(&site.target()), [("out-made".to_string(), TIME, len, wanted)], "link type {link} {header:?}");
    });
}

/// The packets of a little-endian pcap.
fn recorded(file: &[u8]) -> Vec<Recorded> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let unit_ns = if word(0) == 0xa1b2_3c4d { 1 } else { 1000 };
    let (mut packets, mut at) = (Vec::new(), 24);
    while at < file.len() {
        let len = word(at + 8);
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit_ns;
        packets.push((time, file[at + 16..at + 16 + len as usize].to_vec(), word(at + 12) - len));
        at += 16 + len as usize;
    }
    packets
}

/// The link type of a little-endian pcap; its upper bits describe a frame check sequence.
fn link_type(file: &[u8]) -> u32 {
    u32::from_le_bytes(file[20..24].try_into().unwrap()) & 0xffff
}

#[test]
fn real_captures_are_replayed_or_refused_with_the_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let within = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let paths = within(folder.clone()).chain(["tcpdump", "zeek"].into_iter().flat_map(|of| within(folder.join(of))));
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pcap");
    let captures: Vec<(PathBuf, Vec<u8>)> = paths.filter(is_capture).map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let types: BTreeSet<u32> = captures.iter().map(|(_, file)| link_type(file)).collect();
    assert_eq!((captures.len(), types), (13, BTreeSet::from([0, 1, 9, 50, 101, 113, 228, 229, 276])));
    three_at_a_time(captures, |(path, file)| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let site = Site::new(&file);
        if name == "heap-overflow-1.pcap" {
            let why = site.fails(1, &["--through", "bridge"]);
            assert!(why.contains("packet 1 of link type 101 (raw IP) has IP version 3"), "{why}");
            return;
        }
        site.passes(&["--through", "bridge"]);
        // Behind the made header comes what was captured, without its own link header.
        let (from, made) = if link_type(&file) == 1 { ("out", 0) } else { ("out-made", 14) };
        let (got, wanted) = (written(&site.target()), recorded(&file));
        assert_eq!(got.len(), wanted.len(), "{name}");
        for ((interface, time, len, bytes), (wanted_time, caught, cut)) in got.iter().zip(&wanted) {
            assert_eq!((interface.as_str(), time, len - bytes.len() as u32), (from, wanted_time, *cut), "{name}");
            assert!(caught.ends_with(&bytes[made..]) && bytes.len() > made, "{name}");
            assert!(made > 0 || bytes == caught, "{name}");
        }
    });
}

#[test]
fn jumbo_packets_and_stacks_of_vlans_pass_unchanged() {
    let tags = [0x88u8, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 8, 0];
    let packet = |len: usize| [&[2u8; 12][..], &tags, &vec![0x45; len - 26]].concat();
    let packets: Vec<Recorded> = [60, 1522, 9018, 65_344].into_iter().map(|len| (TIME, packet(len), 0)).collect();
    let site = Site::new(&capture(1, &packets));
    site.passes(&["--through", "bridge,monitor"]);
    let wanted: Vec<Written> =
        packets.into_iter().map(|(time, bytes, _)| ("out".to_string(), time, bytes.len() as u32, bytes)).collect();
    assert_eq!(written(&site.target()), wanted);
    let site = Site::new(&capture(1, &[(TIME, packet(100), 0), (TIME, packet(65_345), 0)]));
    let why = site.fails(1, &["--through", "bridge"]);
    assert!(why.contains("packet 2 has 65345 bytes") && why.contains("cut the packets with `editcap -s 65344`"), "{why}");
}

#[test]
fn what_cannot_be_replayed_is_refused_and_changes_nothing() {
    let wifi = Site::new(&capture(105, &[(TIME, vec![0; 60], 0)]));
    let why = wifi.fails(1, &["--through", "bridge"]);
    assert!(why.contains("in.pcap: packet 1 has link type 105 (Wi-Fi)") && why.contains("editcap"), "{why}");
    let site = Site::new(&capture(101, &[(TIME, udp(53, 20), 0)]));
    let why = site.fails(2, &["--through", "nosuchnf"]);
    assert!(why.contains("nosuchnf: there is no program sluice-nf-nosuchnf"), "{why}");
    let why = site.fails(2, &["--through", "router"]);
    assert!(why.contains("router needs arguments"), "{why}");
    // It is found out when the NF is started.
    let why = site.fails(1, &["--through", "nat", "--nf", "nat=sluice-nf-nat --inside nonsense --outside 203.0.113.1"]);
    assert!(why.contains("sluiced has ended") && why.contains("nat"), "{why}");
    let cut = Site::new(&capture(101, &[(TIME, udp(53, 20), 0)])[..50]);
    let why = cut.fails(1, &["--through", "bridge"]);
    assert!(why.contains("cut short: the file ends at byte 50"), "{why}");
}
