//! Looks up the destination address of every IPv4 packet in a table on disk.
//!
//! A record says whether packets pass, are dropped or get a DSCP. A packet waits in its frame until
//! its record has been read; meanwhile other packets are taken, and their reads go to the disk
//! together. A lookup is one read of 512 bytes (module `table`), cached by the kernel only, or with
//! `--direct` not at all. Packets leave in the order of arrival (module `waiting`). When
//! `--pending` packets wait (a burst may exceed that), the NF sleeps until the disk has answered.
//! Packets that are not IPv4 pass.

mod table;
mod waiting;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use sluice_nf::header::parse;
use sluice_nf::pull::{Nf, OwnedPacket};
use sluice_nf::storage::{File, IoError, IoResult, Storage, StorageOptions};
use sluice_nf::{Context, Options, Packet};
use sluice_nf_parts::parse_args;
use sluice_nf_parts::report::{Report, ReportArgs, Reporter};

use table::{Action, BLOCK, Layout, TableError};
use waiting::Waiting;

/// Looks destination addresses up in a table on disk, while packets wait
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-lookup", version, after_help = HELP)]
struct Args {
    /// Table on disk
    #[arg(long, value_name = "FILE")]
    table: PathBuf,
    /// Make the table from this text, and exit
    #[arg(long, value_name = "TEXT")]
    build: Option<PathBuf>,
    /// What happens to packets to addresses that are not in the table
    #[arg(long, value_enum, default_value_t = Otherwise::Pass)]
    missing: Otherwise,
    /// What happens to packets whose lookup failed
    #[arg(long, value_enum, default_value_t = Otherwise::Drop)]
    on_error: Otherwise,
    /// Most packets that wait for the disk; the NF's ring should be larger
    #[arg(long, value_name = "PACKETS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..=8192))]
    pending: u32,
    /// Bypass the kernel's page cache: every lookup reads the disk
    #[arg(long)]
    direct: bool,
    #[command(flatten)]
    report: ReportArgs,
}

const HELP: &str = "Text of a table, a line each: `ADDRESS pass|drop|mark DSCP`; # starts a comment\n  \
    10.0.0.1 drop\n  10.0.0.2 mark 46\n\
    Examples:\n  \
    sluice-nf-lookup --build hosts.txt --table /var/lib/hosts.tbl      makes the table\n  \
    sluice-nf-lookup --table /var/lib/hosts.tbl --missing drop         uses it, in a configuration's `exec` and `args`";

/// Verdict for a packet without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Otherwise {
    /// On to the next hop
    Pass,
    /// Dropped
    Drop,
}

/// Result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    NotIpv4,
    Record(Action),
    Missing,
    Failed,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    packets: u64,
    not_ipv4: u64,
    passed: u64,
    dropped: u64,
    marked: u64,
    missing: u64,
    failed: u64,
}

type Queue = Rc<RefCell<Waiting<OwnedPacket, Answer>>>;

struct Lookup {
    storage: Storage,
    file: File,
    layout: Layout,
    waiting: Queue,
    most_waiting: usize,
    missing: Otherwise,
    on_error: Otherwise,
    counts: Counts,
    /// The first error is reported, the others are only counted.
    is_reported: Rc<Cell<bool>>,
}

type AnyError = Box<dyn std::error::Error>;

/// Opens a table and checks its header, with blocking reads.
fn open(path: &Path, direct: bool) -> Result<(File, Layout), TableError> {
    use std::io::Read;
    let mut header = [0; BLOCK];
    let mut plain = std::fs::File::open(path)?;
    let bytes = plain.metadata()?.len();
    if bytes < BLOCK as u64 {
        return Err(TableError::Format("it is shorter than a header"));
    }
    plain.read_exact(&mut header)?;
    let layout = Layout::new(&header, bytes)?;
    let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
    Ok((File::new(file), layout))
}

impl Lookup {
    fn new(args: &Args, context: &Context) -> Result<Self, AnyError> {
        let (file, layout) = open(&args.table, args.direct).map_err(|error| format!("{}: {error}", args.table.display()))?;
        let batch_operations = args.pending as usize / 2;
        let batch_bytes = (batch_operations * BLOCK).max(4096);
        let storage = Storage::new(context, &StorageOptions { batch_bytes, batch_operations, flush_interval: Duration::ZERO })?;
        // Disks with larger sectors refuse small direct reads: fail at the start, not at every
        // packet.
        let tried: Rc<Cell<Option<IoError>>> = Rc::default();
        let result = tried.clone();
        storage.read_data(&file, BLOCK as u64, BLOCK, move |outcome| result.set(outcome.err()))?;
        storage.flush();
        if let Some(error) = tried.get() {
            let advice = if args.direct { "; without --direct it may be possible" } else { "" };
            return Err(format!("{}: cannot read a record: {error}{advice}", args.table.display()).into());
        }
        Ok(Self {
            storage,
            file,
            layout,
            waiting: Rc::new(RefCell::new(Waiting::new())),
            most_waiting: args.pending as usize,
            missing: args.missing,
            on_error: args.on_error,
            counts: Counts::default(),
            is_reported: Rc::default(),
        })
    }

    /// Takes a packet, and requests its record.
    fn take(&mut self, mut packet: OwnedPacket) {
        self.counts.packets += 1;
        let address = destination(&packet.packet());
        let ticket = self.waiting.borrow_mut().push(packet);
        let Some(address) = address else {
            self.waiting.borrow_mut().settle(ticket, Answer::NotIpv4);
            return;
        };
        let (waiting, is_reported) = (self.waiting.clone(), self.is_reported.clone());
        let callback = move |outcome: IoResult<'_>| {
            let answer = match outcome {
                Ok(bucket) if bucket.len() == BLOCK => table::find(bucket, address).map_or(Answer::Missing, Answer::Record),
                Ok(_) | Err(_) => Answer::Failed,
            };
            if answer == Answer::Failed && !is_reported.replace(true) {
                let why = outcome.map_or_else(|error| error.to_string(), |_| "it has become shorter".to_owned());
                eprintln!("the table cannot be read: {why}; later failures are only counted");
            }
            waiting.borrow_mut().settle(ticket, answer);
        };
        // No borrow is held here: with both buffers full, callbacks run inside the call.
        if self.storage.read_data(&self.file, self.layout.offset(address), BLOCK, callback).is_err() {
            self.waiting.borrow_mut().settle(ticket, Answer::Failed);
        }
    }

    /// Moves decided packets to `ready`, with their verdicts.
    fn release(&mut self, ready: &mut Vec<OwnedPacket>) {
        if self.waiting.borrow().len() >= self.most_waiting {
            self.storage.flush();
        }
        let mut waiting = self.waiting.borrow_mut();
        while let Some((mut packet, answer)) = waiting.next() {
            decide(&mut packet.packet(), answer, self.missing, self.on_error, &mut self.counts);
            ready.push(packet);
        }
    }

    fn report(&self) -> Report {
        Report::new("lookup")
            .counter("records", self.layout.records)
            .counter("packets", self.counts.packets)
            .counter("not_ipv4", self.counts.not_ipv4)
            .counter("passed", self.counts.passed)
            .counter("dropped", self.counts.dropped)
            .counter("marked", self.counts.marked)
            .counter("missing", self.counts.missing)
            .counter("failed", self.counts.failed)
    }
}

fn destination(packet: &Packet<'_>) -> Option<Ipv4Addr> {
    match parse(packet.data())?.dst(packet.data())? {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// Sets a packet's verdict, and counts: `passed`, `dropped` and `marked` add up to all packets.
fn decide(packet: &mut Packet<'_>, answer: Answer, missing: Otherwise, on_error: Otherwise, counts: &mut Counts) {
    let otherwise = |otherwise| if otherwise == Otherwise::Drop { Action::Drop } else { Action::Pass };
    let action = match answer {
        Answer::Record(action) => action,
        Answer::NotIpv4 => {
            counts.not_ipv4 += 1;
            Action::Pass
        }
        Answer::Missing => {
            counts.missing += 1;
            otherwise(missing)
        }
        Answer::Failed => {
            counts.failed += 1;
            otherwise(on_error)
        }
    };
    match action {
        Action::Pass => counts.passed += 1,
        Action::Drop => {
            counts.dropped += 1;
            packet.drop();
        }
        Action::Mark(dscp) => {
            counts.marked += 1;
            if let Some(headers) = parse(packet.data()) {
                // Cannot fail: it was IPv4 at the lookup, and still is.
                let _ = headers.set_dscp(packet.data_mut(), dscp);
            }
        }
    }
}

fn run(args: &Args) -> Result<(), AnyError> {
    let mut nf = Nf::attach()?;
    let mut lookup = Lookup::new(args, nf.context())?;
    let mut reporter = Reporter::start(&args.report)?;
    let (mut burst, mut ready) = (Vec::new(), Vec::new());
    loop {
        let stop = nf.read_burst(&mut burst, Some(Duration::from_millis(100)))?.is_none();
        for packet in burst.drain(..) {
            lookup.take(packet);
        }
        lookup.release(&mut ready);
        nf.write_burst(&mut ready)?;
        if stop {
            reporter.finish(lookup.report());
            return Ok(());
        }
        if reporter.is_due(nf.now_ns()) {
            reporter.send(lookup.report());
        }
    }
}

fn main() -> ExitCode {
    let args: Args = parse_args();
    let result = match &args.build {
        Some(text) => table::build(text, &args.table)
            .map(|records| println!("{}: {records} records", args.table.display()))
            .map_err(|error| ("build".to_owned(), AnyError::from(error))),
        None => run(&args).map_err(|error| (Options::from_env().name.unwrap_or_else(|| "nf".into()), error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((name, error)) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
