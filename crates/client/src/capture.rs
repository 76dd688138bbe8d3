//! `sluice capture`, and `sluice extcap`, by which Wireshark starts it.
//!
//! The daemon sends pcapng. Only whole blocks are written, so that a capture which is interrupted
//! is a whole file.
//!
//! Protocol of Wireshark: doc/extcap.adoc of its sources.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clap::Args;
use sluice_api::client::Client;
use sluice_api::model::CaptureRequest;
use sluice_cli::usage::{Usage, seconds};

use crate::filter;
use crate::output::{self, Output};

#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// The file to write; - is standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: PathBuf,
    /// Only packets of this chain
    #[arg(long)]
    pub chain: Option<String>,
    /// Only at this hop: NF:in, NF:out, port:NAME or drop; several times for several
    #[arg(long, value_name = "HOP")]
    pub hop: Vec<String>,
    /// Only packets that this filter accepts, in libpcap's language
    #[arg(long, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// How many packets
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// How long, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Of this many packets in each packet thread capture one, before the filter
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,
    /// Most packets of each kind in each packet thread, before the filter: of one hop, one chain
    /// and one drop reason
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub each: Option<u32>,
    /// Most bytes of a packet
    #[arg(long, short, value_name = "BYTES", default_value_t = u16::MAX, value_parser = clap::value_parser!(u16).range(1..))]
    pub snaplen: u16,
}

/// What Wireshark asks for.
#[derive(Debug, Args)]
pub struct ExtcapArgs {
    #[arg(long)]
    pub extcap_interfaces: bool,
    /// Its version, which makes no difference
    #[arg(long, num_args = 0..=1, require_equals = true)]
    pub extcap_version: Option<Option<String>>,
    #[arg(long)]
    pub extcap_interface: Option<String>,
    #[arg(long)]
    pub extcap_dlts: bool,
    #[arg(long)]
    pub extcap_config: bool,
    #[arg(long)]
    pub extcap_capture_filter: Option<String>,
    #[arg(long)]
    pub capture: bool,
    #[arg(long)]
    pub fifo: Option<PathBuf>,
    #[arg(long)]
    pub chain: Option<String>,
}

/// Of blocks of pcapng.
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Option of a block of statistics: packets that were missed.
const MISSED: u16 = 5;

/// Before the name of a hop, among the interfaces of Wireshark.
const PREFIX: &str = "sluice-";

/// `sluice capture`.
pub fn run(client: &mut Client, args: CaptureArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let is_stdout = args.write == Path::new("-");
    if is_stdout && io::stdout().is_terminal() {
        return Err(Usage("a capture is not for a terminal; give -w FILE, or pipe it: `… -w - | wireshark -k -i -`".into()).into());
    }
    let filter = args.filter.as_deref().map(filter::compile).transpose()?.unwrap_or_default();
    let request = CaptureRequest {
        chain: args.chain,
        hops: args.hop,
        filter,
        count: args.count,
        duration_ms: args.seconds.map(|seconds| (seconds * 1e3) as u64),
        sample: args.sample,
        each: args.each,
        snaplen: args.snaplen,
    };
    let output = if is_stdout { Output::Pipe(out) } else { Output::File(args.write, None) };
    let Blocks { packets, missed, .. } = write(client, &request, output)?;
    let missed: u64 = missed.values().sum();
    eprintln!("sluice: {packets} packets, {missed} missed");
    Ok(())
}

/// `sluice extcap`.
pub fn extcap(client: &mut Client, args: ExtcapArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.extcap_interfaces {
        writeln!(out, "extcap {{version={}}}", env!("CARGO_PKG_VERSION"))?;
        for hop in hops(client)? {
            writeln!(out, "interface {{value={PREFIX}{hop}}}{{display=Sluice: {hop}}}")?;
        }
        return Ok(());
    }
    let interface = args.extcap_interface.as_deref().unwrap_or_default();
    let Some(hop) = interface.strip_prefix(PREFIX) else {
        return Err(Usage("Wireshark runs this command; `sluice capture` is for people".into()).into());
    };
    if args.extcap_dlts {
        return Ok(writeln!(out, "dlt {{number=1}}{{name=EN10MB}}{{display=Ethernet}}")?);
    }
    if args.extcap_config {
        let chain = "arg {number=0}{call=--chain}{display=Chain}{type=string}{tooltip=Only packets of this chain}";
        return Ok(writeln!(out, "{chain}")?);
    }
    let filter = match args.extcap_capture_filter.as_deref().filter(|filter| !filter.is_empty()).map(filter::compile).transpose() {
        // What is printed says what is wrong.
        Err(error) if !args.capture => return Ok(writeln!(out, "{error}")?),
        filter => filter?.unwrap_or_default(),
    };
    if !args.capture {
        return Ok(());
    }
    let fifo = args.fifo.ok_or_else(|| Usage("--capture needs --fifo".into()))?;
    let chain = args.chain.filter(|chain| !chain.is_empty());
    let request = CaptureRequest { chain, hops: vec![hop.into()], filter, ..CaptureRequest::default() };
    match write(client, &request, Output::File(fifo, None)) {
        // Wireshark has stopped.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) => Ok(()),
        ended => ended.map(drop),
    }
}

/// Every hop that there is.
fn hops(client: &mut Client) -> anyhow::Result<Vec<String>> {
    let stats = client.stats()?;
    let nfs = stats.nfs.iter().flat_map(|nf| [format!("{}:in", nf.name), format!("{}:out", nf.name)]);
    let ports = stats.ports.iter().map(|port| format!("port:{}", port.name));
    Ok(nfs.chain(ports).chain(["drop".into()]).collect())
}

/// Captures until it ends by itself, a signal comes, or the output takes no more.
fn write(client: &mut Client, request: &CaptureRequest, mut output: Output<'_>) -> anyhow::Result<Blocks> {
    let stops = output::stops()?;
    let mut blocks = Blocks::default();
    let mut failed = None;
    client.capture(request, |piece| {
        if let Err(error) = blocks.pass(piece, |whole| output.write(whole)) {
            failed = Some(error);
        }
        failed.is_none() && !stops.load(Ordering::Relaxed)
    })?;
    failed.map_or(Ok(blocks), Err)
}

/// Cuts a stream of pcapng into whole blocks, and counts.
#[derive(Debug, Default)]
struct Blocks {
    /// The beginning of a block whose rest is still to come.
    rest: Vec<u8>,
    packets: u64,
    /// Packets that were missed, by interface.
    missed: HashMap<u32, u64>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Blocks {
    /// Passes the whole blocks on that end in a piece.
    fn pass(&mut self, piece: &[u8], write: impl FnOnce(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let joined;
        let bytes = if self.rest.is_empty() {
            piece
        } else {
            joined = [&std::mem::take(&mut self.rest)[..], piece].concat();
            &joined[..]
        };
        let mut end = 0;
        while let Some((kind, len)) = word(bytes, end).zip(word(bytes, end + 4)) {
            let len = len as usize;
            anyhow::ensure!(len >= 12 && len.is_multiple_of(4), "the daemon sent a block of {len} bytes, which cannot be");
            let Some(block) = bytes.get(end..end + len) else { break };
            match kind {
                PACKET => self.packets += 1,
                STATISTICS => {
                    let missed = word(block, 8).zip(option(&block[..len - 4], 20, MISSED));
                    self.missed.extend(missed);
                }
                _ => {}
            }
            end += len;
        }
        self.rest = bytes[end..].to_vec();
        if end == 0 { Ok(()) } else { write(&bytes[..end]) }
    }
}

/// The number in an option of a block whose options begin at an offset.
fn option(block: &[u8], mut at: usize, wanted: u16) -> Option<u64> {
    loop {
        let head = word(block, at)?;
        let (code, len) = (head as u16, (head >> 16) as usize);
        if code == wanted {
            return Some(u64::from_le_bytes(*block.get(at + 4..)?.first_chunk()?));
        }
        at += 4 + len.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (12 + body.len()) as u32;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
    }

    #[test]
    fn whole_blocks_go_on_and_are_counted_wherever_they_are_cut() {
        let statistics = |interface: u32, missed: u64| {
            let options = [&4u16.to_le_bytes()[..], &8u16.to_le_bytes(), &9u64.to_le_bytes(), &[5, 0, 8, 0], &missed.to_le_bytes()];
            block(STATISTICS, &[&interface.to_le_bytes()[..], &[0; 8], &options.concat(), &[0; 4]].concat())
        };
        let all = [block(0x0a0d_0d0a, &[1; 16]), block(PACKET, &[7; 40]), statistics(0, 3), statistics(1, 1), statistics(0, 5)];
        let stream = all.concat();
        for cut in 1..stream.len() {
            let (mut blocks, mut written) = (Blocks::default(), Vec::new());
            for piece in stream.chunks(cut) {
                let before = written.len();
                let take = |whole: &[u8]| {
                    written.extend_from_slice(whole);
                    Ok(())
                };
                blocks.pass(piece, take).unwrap();
                let ends = all.iter().scan(0, |end, block| {
                    *end += block.len();
                    Some(*end)
                });
                assert!(written.len() == before || { ends }.any(|end| end == written.len()), "cut at {cut}");
            }
            assert_eq!(written, stream);
            assert_eq!((blocks.packets, blocks.missed), (1, HashMap::from([(0, 5), (1, 1)])));
        }
        let broken = Blocks::default().pass(&block(PACKET, &[0; 3]), |_| Ok(())).unwrap_err();
        assert!(broken.to_string().contains("15 bytes"), "{broken}");
    }
}
