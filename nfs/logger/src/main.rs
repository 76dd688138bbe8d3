//! Writes packets to pcap files without waiting for the disk; every packet passes unchanged.
//!
//! Records are gathered in two alternating buffers ([`sluice_nf::storage`]): while the kernel
//! writes one, the other fills, and all packets go on. If the disk is too slow, both fill up, and
//! the NF sleeps until one is free: no record is omitted. With `--blocking` each burst is written
//! by a blocking system call, for comparison, and for hosts that forbid io_uring.
//!
//! The module `log` describes the files and disk errors, `series` their names, `filter` the
//! conditions.

mod filter;
mod log;
mod series;

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use sluice_nf::storage::{Storage, StorageOptions};
use sluice_nf::{Burst, Context, Handler};
use sluice_nf_parts::parse_args;
use sluice_nf_parts::report::{Report, ReportArgs, Reported, Reports};

use filter::Filter;
use log::{Limits, Log, Sink};

/// Writes packets to pcap files without waiting for the disk
///
/// The files are numbered: --write /var/log/web.pcap makes /var/log/web-000001.pcap, and so on;
/// numbers go on over a restart. Any tool that reads pcap reads them, also while the last one
/// grows. Packets pass unchanged, logged or not.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-logger", version, after_help = HELP)]
struct Args {
    /// The files' name, to which numbers are added
    #[arg(long, value_name = "FILE")]
    write: PathBuf,
    /// Most bytes written of each packet
    #[arg(long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    snap: u32,
    /// Begin the next file before one grows past this many MiB
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    rotate_mib: u64,
    /// Begin the next file, with the next packet, when one is this many seconds old; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    rotate_seconds: u64,
    /// Number of files to keep; the oldest are removed
    #[arg(long, value_name = "FILES", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    disk: DiskArgs,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How the disk is written")]
struct DiskArgs {
    /// KiB of each of the two buffers; larger writes cost less a packet
    #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=65_536))]
    batch_kib: u32,
    /// Longest time in milliseconds that a packet waits in a buffer while the disk is idle; 0:
    /// until the end of its burst
    #[arg(long, value_name = "MS", default_value_t = 10)]
    flush_ms: u64,
    /// Write each burst with a system call and wait for it: for comparison, or where io_uring is
    /// forbidden
    #[arg(long)]
    blocking: bool,
}

const HELP: &str = "Examples:\n  \
    sluice-nf-logger --write /var/log/dns.pcap --protocol udp --port 53 --rotate-mib 50 --keep 20\n  \
    sluice-nf-logger --write /tmp/all.pcap --snap 96 --rotate-seconds 60 --report /run/log.json --format json\n\
    Look at a file: tshark -r /var/log/dns-000001.pcap";

impl Args {
    fn limits(&self) -> Limits {
        Limits {
            snap: self.snap,
            bytes: self.rotate_mib << 20,
            age_ns: if self.rotate_seconds == 0 { u64::MAX } else { self.rotate_seconds.saturating_mul(1_000_000_000) },
            keep: self.keep as usize,
        }
    }

    fn sink(&self, context: &Context) -> Result<Sink, Box<dyn std::error::Error>> {
        if self.disk.blocking {
            return Ok(Sink::Blocking(RefCell::default()));
        }
        let batch_bytes = self.disk.batch_kib as usize * 1024;
        if self.snap as usize + log::RECORD_HEADER > batch_bytes {
            return Err(
                "a packet of --snap bytes does not fit a buffer of --batch-kib: make --snap smaller or --batch-kib larger".into()
            );
        }
        let flush_interval = Duration::from_millis(self.disk.flush_ms);
        let options = StorageOptions { batch_bytes, flush_interval, ..StorageOptions::default() };
        let storage = Storage::new(context, &options).map_err(|error| format!("{error} (here: --blocking)"))?;
        Ok(Sink::Async(storage))
    }
}

struct Logger {
    log: Log,
    filter: Filter,
    /// Offset from the monotonic clock to the time since 1970, which may be set meanwhile.
    offset_ns: u64,
    packets: u64,
    matched: u64,
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl Logger {
    fn new(args: &Args, context: &Context, now_ns: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let log = Log::new(&args.write, args.limits(), args.sink(context)?, now_ns)?;
        let offset_ns = unix_ns().wrapping_sub(now_ns);
        Ok(Self { log, filter: args.filter.clone(), offset_ns, packets: 0, matched: 0 })
    }
}

impl Handler for Logger {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        let now_ns = burst.now_ns();
        let time_ns = now_ns.wrapping_add(self.offset_ns);
        self.packets += burst.len() as u64;
        for packet in burst.iter_mut() {
            if self.filter.holds(packet.data()) {
                self.matched += 1;
                self.log.record(packet.data(), time_ns, now_ns);
            }
        }
        self.log.end_burst();
    }

    fn tick(&mut self, now_ns: u64) {
        self.offset_ns = unix_ns().wrapping_sub(now_ns);
        self.log.tick();
    }

    fn tick_every(&self) -> Option<Duration> {
        Some(Duration::from_millis(100))
    }

    fn clean(&mut self) {
        self.log.finish();
    }
}

impl Reports for Logger {
    fn report(&self, _now_ns: u64) -> Report {
        let tally = self.log.tally();
        Report::new("logger")
            .counter("packets", self.packets)
            .counter("matched", self.matched)
            .counter("logged", tally.logged.get())
            .counter("logged_bytes", tally.bytes.get())
            .counter("lost", tally.lost.get())
            .counter("files", tally.files.get())
            .counter("failures", tally.failures.get())
    }
}

fn main() -> ExitCode {
    let args: Args = parse_args();
    sluice_nf::run(|context| Ok(Reported::new(Logger::new(&args, context, sluice_nf::now_ns())?, &args.report)?))
}

#[cfg(test)]
mod tests;
