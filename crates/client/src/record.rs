//! `sluice record`.
//!
//! The daemon sends a trace of Perfetto: packets behind each other, each with its length. Only
//! whole packets are written, so that a recording which is interrupted is a whole file.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clap::Args;
use sluice_api::client::Client;
use sluice_api::model::{MAX_TIMELINE_HZ, MAX_TIMELINE_MS, MIN_TIMELINE_HZ, RecordRequest};
use sluice_cli::number::grouped;
use sluice_cli::table::colour;
use sluice_cli::usage::{Usage, json, seconds_within};

use crate::output::{self, Output};
use crate::show;

#[derive(Debug, Args)]
pub struct RecordArgs {
    /// The file to write; - is standard output
    #[arg(long, short, value_name = "FILE", required_unless_present = "list", conflicts_with = "list")]
    pub write: Option<PathBuf>,
    /// How long, in seconds, up to 600
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = length)]
    pub seconds: f64,
    /// Samples a second, if the host has time for them
    #[arg(long, value_name = "N", default_value_t = 2_000,
          value_parser = clap::value_parser!(u32).range(i64::from(MIN_TIMELINE_HZ)..=i64::from(MAX_TIMELINE_HZ)))]
    pub rate: u32,
    /// List what the flight recorder has written
    #[arg(long, conflicts_with_all = ["seconds", "rate", "last", "name"])]
    pub list: bool,
    /// Write the last timeline of the flight recorder, and record none
    #[arg(long, conflicts_with_all = ["seconds", "rate", "name"])]
    pub last: bool,
    /// Write this timeline of the flight recorder, and record none
    #[arg(long, conflicts_with_all = ["seconds", "rate"])]
    pub name: Option<String>,
    /// Print the list as JSON
    #[arg(long, requires = "list", conflicts_with = "write")]
    pub json: bool,
}

fn length(text: &str) -> Result<f64, String> {
    seconds_within(text, MAX_TIMELINE_MS)
}

/// What a packet begins with: the key of `Trace.packet`, before its length.
const PACKET: u8 = 0x0a;
/// Most bytes of a length.
const LENGTH: usize = 5;

/// `sluice record`.
pub fn run(client: &mut Client, args: RecordArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.list {
        let all = client.timelines()?;
        return match &all[..] {
            _ if args.json => json(out, &all),
            [] => Ok(writeln!(out, "the flight recorder has written nothing")?),
            all => Ok(show::timelines(all).print(out, colour())?),
        };
    }
    let Some(file) = args.write else { return Err(Usage("give -w FILE".into()).into()) };
    let is_stdout = file == Path::new("-");
    if is_stdout && io::stdout().is_terminal() {
        return Err(Usage("a timeline is not for a terminal; give -w FILE".into()).into());
    }
    let kept = if args.last { Some(last(client)?) } else { args.name };
    let shown = file.display().to_string();
    let mut output = if is_stdout { Output::Pipe(out) } else { Output::File(file, None) };
    let stops = output::stops()?;
    let mut packets = Packets::default();
    let mut failed = None;
    let take = |piece: &[u8]| {
        if let Err(error) = packets.pass(piece, |whole| output.write(whole)) {
            failed = Some(error);
        }
        failed.is_none() && !stops.load(Ordering::Relaxed)
    };
    match &kept {
        Some(name) => client.timeline(name, take)?,
        None => client.record(&RecordRequest { duration_ms: (args.seconds * 1e3) as u64, rate_hz: args.rate }, take)?,
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if !is_stdout {
        eprintln!("sluice: {} packets in {shown}; open it at https://ui.perfetto.dev", grouped(packets.count));
    }
    Ok(())
}

/// The name of the last timeline of the flight recorder.
fn last(client: &mut Client) -> anyhow::Result<String> {
    let last = client.timelines()?.pop().map(|last| last.name);
    last.ok_or_else(|| {
        anyhow::anyhow!(
            "the flight recorder has written nothing: it does when an NF dies or an SLO is broken, and only with \
             recorder.memory_mib above 0 in the configuration"
        )
    })
}

/// Cuts a trace into whole packets, and counts them.
#[derive(Debug, Default)]
struct Packets {
    /// The beginning of a packet whose rest is still to come.
    rest: Vec<u8>,
    count: u64,
}

impl Packets {
    /// Passes the whole packets on that end in a piece.
    fn pass(&mut self, piece: &[u8], write: impl FnOnce(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.rest.extend_from_slice(piece);
        let mut end = 0;
        while let Some(len) = packet_len(&self.rest[end..])? {
            end += len;
            self.count += 1;
        }
        if end > 0 {
            write(&self.rest[..end])?;
            self.rest.drain(..end);
        }
        Ok(())
    }
}

/// The length of the packet that bytes begin with, with its key; none if it does not end there.
fn packet_len(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some((key, rest)) = bytes.split_first() else { return Ok(None) };
    anyhow::ensure!(*key == PACKET, "the daemon sent something other than a trace");
    let mut len = 0;
    for (place, byte) in rest.iter().take(LENGTH).enumerate() {
        len |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            let whole = 2 + place + len;
            return Ok((bytes.len() >= whole).then_some(whole));
        }
    }
    anyhow::ensure!(rest.len() < LENGTH, "the daemon sent a packet whose length has no end");
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(len: usize) -> Vec<u8> {
        let mut bytes = vec![PACKET];
        let mut left = len;
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes.extend(std::iter::repeat_n(PACKET, len));
        bytes
    }

    #[test]
    fn whole_packets_go_on_and_are_counted_wherever_they_are_cut() {
        let all = [0, 1, 127, 128, 300].map(packet);
        let stream = all.concat();
        let ends: Vec<usize> = (1..=all.len()).map(|n| all[..n].iter().map(Vec::len).sum()).collect();
        for cut in 1..stream.len() {
            let (mut packets, mut written) = (Packets::default(), Vec::new());
            for piece in stream.chunks(cut) {
                let take = |whole: &[u8]| {
                    written.extend_from_slice(whole);
                    Ok(())
                };
                packets.pass(piece, take).unwrap();
                assert!(written.is_empty() || ends.contains(&written.len()), "cut at {cut}");
            }
            assert_eq!((&written, packets.count), (&stream, 5));
        }
        // What is cut off is not written.
        let mut packets = Packets::default();
        packets
            .pass(&stream[..stream.len() - 1], |whole| {
                assert_eq!(whole.len(), ends[3]);
                Ok(())
            })
            .unwrap();
        assert_eq!(packets.count, 4);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for bytes in [&b"{}"[..], &[PACKET, 0xff, 0xff, 0xff, 0xff, 0xff]] {
            assert!(Packets::default().pass(bytes, |_| Ok(())).is_err(), "{bytes:?}");
        }
    }
}
