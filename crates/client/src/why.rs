//! `sluice why`: what a packet would meet if it came now.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::Path;

use anyhow::Context;
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use sluice_api::client::Client;
use sluice_api::model::{Fate, FlowEntry, WhyReply, WhyRequest};
use sluice_cli::usage::{Usage, json};

use crate::args::WhyArgs;
use crate::flows;
use crate::header::{self, HeaderWords};

/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;

/// What is wrong with other files.
const NO_CAPTURE: &str = "it is neither pcap nor pcapng";

/// First bytes of a file of pcapng.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// `sluice why`.
pub fn run(client: &mut Client, args: &WhyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let words = match (&args.pcap, args.flow) {
        (Some(file), _) => of_file(file, args.number).with_context(|| format!("cannot read a packet of {}", file.display()))?,
        (None, Some(number)) => header::packet(&flows::packet_of(client, number)?)?,
        (None, None) => header::packet(&args.packet.join(" "))?,
    };
    let port = args.port.clone().or(words.port);
    let request = WhyRequest { port, packet: header::hex(&words.bytes), bytes: words.len };
    let why = client.why(&request)?;
    if args.json { json(out, &why) } else { Ok(print(out, &why)?) }
}

/// A packet of a capture file, from 1.
fn of_file(path: &Path, number: u64) -> anyhow::Result<HeaderWords> {
    let mut file = BufReader::new(File::open(path)?);
    let mut magic = [0; 4];
    file.read_exact(&mut magic).context(NO_CAPTURE)?;
    file.rewind()?;
    let mut left = number.max(1);
    let mut is_it = || {
        left -= 1;
        left == 0
    };
    let words = |bytes: &[u8], len: u32| {
        let len = u16::try_from(len.max(bytes.len() as u32)).unwrap_or(u16::MAX);
        // The daemon looks at headers, and takes no more than a packet has.
        let bytes = bytes[..bytes.len().min(usize::from(len))].to_vec();
        HeaderWords { bytes, len: Some(len), port: None }
    };
    if magic == PCAPNG {
        let mut reader = PcapNgReader::new(file)?;
        // Of each interface of the section.
        let mut links = Vec::new();
        while let Some(block) = reader.next_block() {
            match block? {
                Block::SectionHeader(_) => links.clear(),
                Block::InterfaceDescription(interface) => links.push(interface.linktype),
                Block::EnhancedPacket(packet) if is_it() => {
                    check_link(links.get(packet.interface_id as usize).copied())?;
                    return Ok(words(&packet.data, packet.original_len));
                }
                Block::SimplePacket(packet) if is_it() => {
                    check_link(links.first().copied())?;
                    return Ok(words(&packet.data, packet.original_len));
                }
                _ => {}
            }
        }
    } else {
        let mut reader = PcapReader::new(file).context(NO_CAPTURE)?;
        let link = reader.header().datalink;
        while let Some(packet) = reader.next_packet() {
            let packet = packet?;
            if is_it() {
                check_link(Some(link))?;
                return Ok(words(&packet.data, packet.orig_len));
            }
        }
    }
    Err(Usage(format!("it has no packet number {number}")).into())
}

/// Checks that a packet begins with what the daemon looks at. `link` is that of its interface.
fn check_link(link: Option<DataLink>) -> Result<(), Usage> {
    match link.map(u32::from) {
        // The upper bits of a pcap describe a frame check sequence.
        Some(link) if link & 0xffff == ETHERNET => Ok(()),
        Some(link) => Err(Usage(format!(
            "it has link type {link}, and a packet that comes in has an Ethernet header; give it in words, such as \"tcp 10.0.0.1:1234 > \
             10.0.1.2:80\", or take it from what `sluice replay -w` writes of the file"
        ))),
        None => Err(Usage("no interface of the file describes it; write the file again with `editcap`".into())),
    }
}

/// The decision of a flow's entry.
fn decision(entry: &FlowEntry) -> String {
    match &entry.instead {
        Some(word) if word == "waits" => "its packets wait".into(),
        Some(reason) => format!("its packets are dropped: {reason}"),
        None if entry.path.is_empty() => "a path without NFs".into(),
        None => format!("path {}", entry.path.join(" → ")),
    }
}

fn print(out: &mut dyn Write, why: &WhyReply) -> io::Result<()> {
    writeln!(out, "{}, {} bytes, in at port {}", why.packet, why.bytes, why.port)?;
    let rule = why.rule.as_deref().unwrap_or("none");
    writeln!(out, "  rule    {rule}")?;
    let tenants = match &why.tenants[..] {
        [] => String::new(),
        [tenant] => format!(" (tenant {tenant})"),
        tenants => format!(" (tenants {})", tenants.join(", ")),
    };
    writeln!(out, "  chain   {}{tenants}", why.chain.as_deref().unwrap_or("none"))?;
    if let Some(egress) = &why.egress {
        let hops: Vec<&str> = why.path.iter().map(String::as_str).chain([egress.as_str()]).collect();
        writeln!(out, "  path    {}", hops.join(" → "))?;
    }
    match &why.entry {
        Some(entry) => {
            let (decision, holds) = (decision(entry), if entry.holds { "" } else { ", to be decided anew" });
            writeln!(out, "  flow    {decision}{holds}; last packet {} ms ago (core {})", entry.idle_ms, entry.core)?;
        }
        None => writeln!(out, "  flow    not in the flow table")?,
    }
    for note in &why.notes {
        writeln!(out, "  note    {note}")?;
    }
    let fate = match why.outcome {
        Fate::Enters => "it is let in",
        Fate::Waits => "it waits",
        Fate::Dropped => "it is dropped",
    };
    writeln!(out, "  now     {fate}")?;
    for obstacle in &why.obstacles {
        let reason = obstacle.reason.as_ref().map_or_else(String::new, |reason| format!("{reason}: "));
        writeln!(out, "          {reason}{}", obstacle.what)?;
        if !obstacle.remedy.is_empty() {
            writeln!(out, "  do      {}", obstacle.remedy)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_api::model::WhyNot;

    use super::*;

    #[test]
    fn an_answer_is_a_line_for_each_step() {
        let entry = FlowEntry { core: 2, path: vec!["fw.0".into()], instead: None, holds: false, idle_ms: 128 };
        let closed = WhyNot { reason: Some("entry".into()), what: "the gate is closed".into(), remedy: "Give it a core.".into() };
        let waits = WhyNot { what: "something else".into(), ..WhyNot::default() };
        let why = WhyReply {
            port: "lan".into(),
            packet: "tcp 10.0.0.1:1 > 10.0.0.2:2 dscp 0".into(),
            bytes: 60,
            outcome: Fate::Dropped,
            rule: Some("http".into()),
            chain: Some("web".into()),
            path: vec!["fw.0".into(), "ids.*".into()],
            egress: Some("wan".into()),
            tenants: vec!["blue".into()],
            entry: Some(entry),
            obstacles: vec![closed, waits],
            notes: vec!["a note".into()],
        };
        let text = |why: &WhyReply| {
            let mut out = Vec::new();
            print(&mut out, why).unwrap();
            String::from_utf8(out).unwrap()
        };
        let want = "\
tcp 10.0.0.1:1 > 10.0.0.2:2 dscp 0, 60 bytes, in at port lan
  rule    http
  chain   web (tenant blue)
  path    fw.0 → ids.* → wan
  flow    path fw.0, to be decided anew; last packet 128 ms ago (core 2)
  note    a note
  now     it is dropped
          entry: the gate is closed
  do      Give it a core.
          something else
";
        assert_eq!(text(&why), want);
        let stray = WhyReply { outcome: Fate::Waits, ..WhyReply::default() };
        let want = ", 0 bytes, in at port \n  rule    none\n  chain   none\n  flow    not in the flow table\n  now     it waits\n";
        assert_eq!(text(&stray), want);
        let no_path = FlowEntry { instead: Some("no_rule".into()), ..FlowEntry::default() };
        assert_eq!(decision(&no_path), "its packets are dropped: no_rule");
    }

    #[test]
    fn a_packet_of_a_capture_file_is_taken_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let packets =
            ["udp 10.0.0.1:1 > 10.0.0.2:2", "udp 10.0.0.1:3 > 10.0.0.2:4"].map(|text| header::packet(text).unwrap().bytes);
        let mut pcap =
            [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8], &65_535u32.to_le_bytes(), &1u32.to_le_bytes()].concat();
        let mut pcapng = vec![0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0];
        pcapng.extend([&[0xff; 8][..], &[28, 0, 0, 0], &[1, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0]].concat());
        for packet in &packets {
            let len = (packet.len() as u32).to_le_bytes();
            pcap.extend([&[0; 8][..], &len, &1400u32.to_le_bytes(), &packet[..]].concat());
            let block = (32 + packet.len() as u32).to_le_bytes();
            pcapng.extend([&[6, 0, 0, 0][..], &block, &[0; 12], &len, &1400u32.to_le_bytes(), &packet[..], &block].concat());
        }
        for bytes in [&pcap, &pcapng] {
            std::fs::write(&path, bytes).unwrap();
            for (number, packet) in (1..).zip(&packets) {
                let words = of_file(&path, number).unwrap();
                assert_eq!((&words.bytes, words.len), (packet, Some(1400)));
            }
            let error = of_file(&path, 3).unwrap_err().to_string();
            assert_eq!(error, "it has no packet number 3");
        }
        assert!(of_file(&folder.path().join("none"), 1).is_err());
        // Raw IP, by the header of the file and of its interface.
        (pcap[20], pcapng[36]) = (101, 101);
        for (bytes, what) in [(&pcap[..], "it has link type 101"), (&pcapng[..], "it has link type 101"), (&[0; 3][..], "neither")]
        {
            std::fs::write(&path, bytes).unwrap();
            let error = format!("{:#}", of_file(&path, 1).unwrap_err());
            assert!(error.contains(what), "{error}");
        }
    }
}
