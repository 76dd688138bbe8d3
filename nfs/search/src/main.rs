//! Searches the payload of every packet for many patterns in one pass.
//!
//! It counts the packets that contain each pattern, and drops packets by the pattern's action. The
//! payload is what follows the last known header (TCP, UDP, ICMP, IP, or Ethernet), without
//! padding. A pattern across two packets is not found: streams are not reassembled. The module
//! `patterns` describes the pattern file; SIGHUP reads it again.

mod patterns;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use sluice_nf::header::parse;
use sluice_nf::{Burst, Handler};
use sluice_nf_parts::lines::{self, LineError};
use sluice_nf_parts::parse_args;
use sluice_nf_parts::reload::Reload;
use sluice_nf_parts::report::{Report, ReportArgs, Reported, Reports};

use patterns::{Action, Searcher};

/// Searches payloads for many patterns in one pass
///
/// SIGHUP reads the pattern file again.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-search", version, after_help = HELP)]
struct Args {
    /// Pattern file
    #[arg(long, value_name = "FILE")]
    patterns: PathBuf,
    #[command(flatten)]
    report: ReportArgs,
}

const HELP: &str = "Pattern file, a line each: `alert|drop [nocase] text TEXT` or `alert|drop [nocase] hex BYTES`\n  \
    alert nocase text /etc/passwd\n  drop hex 4d 5a 90 00";

fn read(path: &Path) -> Result<Searcher, lines::FileError> {
    lines::read(path, |text| {
        let searcher = Searcher::new(patterns::parse(text)?);
        searcher.map_err(|e| LineError { line: 0, message: format!("the patterns make no automaton: {e}; take some out") })
    })
}

#[derive(Debug)]
struct Search {
    searcher: Searcher,
    fresh: Option<Reload<Searcher>>,
    packets: u64,
    alerts: u64,
    dropped: u64,
}

impl Search {
    fn new(searcher: Searcher, fresh: Option<Reload<Searcher>>) -> Self {
        Self { searcher, fresh, packets: 0, alerts: 0, dropped: 0 }
    }
}

impl Handler for Search {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            self.packets += 1;
            let data = packet.data();
            let Some(headers) = parse(data) else { continue };
            let found = self.searcher.search(headers.payload(data));
            self.alerts += u64::from(found.patterns);
            if found.drop {
                self.dropped += 1;
                packet.drop();
            }
        }
    }

    fn tick(&mut self, _now_ns: u64) {
        if let Some(mut searcher) = self.fresh.as_ref().and_then(Reload::take) {
            searcher.inherit(&self.searcher);
            self.searcher = searcher;
        }
    }
}

impl Reports for Search {
    fn report(&self, _now_ns: u64) -> Report {
        let rows = self.searcher.hits().map(|(pattern, packets)| {
            let action = if pattern.action == Action::Drop { "drop" } else { "alert" };
            vec![pattern.line.into(), packets.into(), action.into(), pattern.bytes.escape_ascii().to_string().into()]
        });
        let rows = rows.collect();
        Report::new("search")
            .counter("packets", self.packets)
            .counter("alerts", self.alerts)
            .counter("dropped", self.dropped)
            .table("patterns", &["line", "packets", "action", "pattern"], rows)
    }
}

fn main() -> ExitCode {
    let args: Args = parse_args();
    sluice_nf::run(|_| {
        let searcher = read(&args.patterns)?;
        let path = args.patterns.clone();
        let fresh = Reload::on_hangup(move || read(&path))?;
        Ok(Reported::new(Search::new(searcher, Some(fresh)), &args.report)?)
    })
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use sluice_nf::Verdict;
    use sluice_nf::harness::Harness;

    use super::*;

    fn nf() -> Harness<Search> {
        let patterns = patterns::parse("alert text evil\ndrop text worse\nalert text AAAA").unwrap();
        Harness::new(Search::new(Searcher::new(patterns).unwrap(), None))
    }

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        let builder = PacketBuilder::ethernet2(*b"AAAAAA", *b"AAAAAA").ipv4(*b"evil", *b"wors", 64).tcp(0x4141, 0x4141, 0, 0);
        builder.write(&mut packet, payload).unwrap();
        packet
    }

    #[test]
    fn payloads_are_searched_and_headers_and_padding_are_not() {
        let mut nf = nf();
        let outcomes = nf.burst(&[packet(b"all is well"), packet(b"the evil one"), packet(b"and a worse one")]);
        assert_eq!(outcomes.iter().map(|o| o.verdict).collect::<Vec<_>>(), [Verdict::Next, Verdict::Next, Verdict::Drop]);
        let mut padded = packet(b"ev");
        padded.extend(b"il");
        assert_eq!(nf.send(&padded).bytes, padded);
        let report = nf.handler().report(0);
        assert_eq!(["packets", "alerts", "dropped"].map(|name| report.get(name).unwrap()), [4, 2, 1]);
        assert!(report.to_text().lines().any(|line| line.split_whitespace().eq(["2", "1", "drop", "worse"])));
    }

    #[test]
    fn what_is_no_ip_is_searched_behind_ethernet() {
        let mut nf = nf();
        let mut packet = vec![0; 60];
        packet[14..19].copy_from_slice(b"worse");
        assert_eq!(nf.send(&packet).verdict, Verdict::Drop);
        assert_eq!(nf.send(b"short").verdict, Verdict::Next);
    }

    #[test]
    fn an_example_of_the_help_is_a_pattern_file() {
        let (_, examples) = HELP.split_once('\n').unwrap();
        assert_eq!(patterns::parse(examples).unwrap().len(), 2);
    }
}
