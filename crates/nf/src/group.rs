//! A group: handlers from shared objects, in one process, one after another for each burst.
//!
//! # Approach
//! To the manager a group is one NF: one pair of rings, one slot on its core. A burst goes through
//! all parts in place. A packet with a verdict other than `Next` leaves the group where it got it:
//! later parts do not see it, and the others keep their order. Each part's packets, drops and time
//! are counted on the group's page; of a burst each millisecond the time of each part is taken.
//!
//! # Limits
//! The parts share a process: an error of one ends all, and none is protected from another. They
//! start together and leave together. None may use storage, or own its loop (pull style).

use std::ffi::{OsString, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use sluice_shm::BURST;
use sluice_shm::descriptor::{Descriptor, Verdict as RawVerdict};
use sluice_shm::object;
use sluice_shm::page::{MAX_PARTS, Page, PartCounter};

use crate::context::Context;
use crate::error::NfError;
use crate::options::Options;
use crate::packet::Burst;
use crate::part::{Entry, OTHER_VERSION, Packets, SYMBOL, Table, VERSION, encode};
use crate::run::{self, Step, Ticker};

/// Nanoseconds between samples of the parts' service times.
const SAMPLE_NS: u64 = 1_000_000;

/// A part as the arguments name it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    /// Its service.
    name: String,
    /// Its program, whose shared object is loaded.
    program: PathBuf,
    args: Vec<OsString>,
}

/// Reads `--part NAME=PROGRAM ARGS...`, once for each part.
fn wanted(args: Vec<OsString>) -> Result<Vec<Wanted>, String> {
    let usage = "write --part NAME=PROGRAM and the part's arguments, for each part";
    let mut parts: Vec<Wanted> = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg != object::PART {
            let Some(part) = parts.last_mut() else { return Err(format!("{} comes before a part; {usage}", arg.display())) };
            part.args.push(arg);
            continue;
        }
        let named = args.next().unwrap_or_default();
        let split = named.as_bytes().iter().position(|byte| *byte == b'=').filter(|at| *at > 0);
        let Some(at) = split.filter(|at| at + 1 < named.len()) else {
            return Err(format!("{} is no part; {usage}", named.display()));
        };
        let (name, program) = named.as_bytes().split_at(at);
        let program = Path::new(std::ffi::OsStr::from_bytes(&program[1..])).to_path_buf();
        parts.push(Wanted { name: String::from_utf8_lossy(name).into_owned(), program, args: Vec::new() });
    }
    match parts.len() {
        0 => Err(format!("a group has no parts; {usage}")),
        n if n > MAX_PARTS => Err(format!("a group has {n} parts; {MAX_PARTS} are the most")),
        _ => Ok(parts),
    }
}

/// The folders in which a bare name is looked for: that of this program, then those of PATH.
fn folders() -> Vec<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside.into_iter().chain(std::env::split_paths(&path)).collect()
}

struct Part {
    name: String,
    table: Table,
    args: Vec<OsString>,
    ticker: Ticker,
    /// Unloaded after the handler is dropped.
    _object: Library,
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(free) = self.table.free {
            // SAFETY: the table's own state, once; the object is still loaded.
            unsafe { free(self.table.state) };
        }
    }
}

/// The message of a part's last failure.
fn said(table: &Table) -> String {
    let mut words = [0; 512];
    // SAFETY: the buffer has that length.
    let n = table.said.map_or(0, |said| unsafe { said(words.as_mut_ptr(), words.len()) });
    String::from_utf8_lossy(&words[..n.min(words.len())]).into_owned()
}

impl Part {
    /// Loads a part's object and makes its handler.
    fn load(number: usize, wanted: Wanted, context: &Context) -> Result<Self, String> {
        let Wanted { name, program, args } = wanted;
        let given = std::env::var(object::ENV_OBJECTS).ok().and_then(|first| first.parse::<usize>().ok());
        let given = given.map(|first| PathBuf::from(format!("/proc/self/fd/{}", first + number))).filter(|path| path.exists());
        let path = given
            .or_else(|| object::find(&program, &folders(), Path::exists))
            .ok_or_else(|| format!("part {name}: there is no {} beside its program", object::name_of(&program).display()))?;
        // SAFETY: the object is as trusted as a program of this service: its constructors run here.
        let opened = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        let wrong = |error: libloading::Error| format!("part {name}: cannot load {}: {error}", path.display());
        let library = opened.map_err(wrong)?;
        // SAFETY: the symbol of this name is an Entry, by the interface.
        let entry = *unsafe { library.get::<Entry>(SYMBOL) }.map_err(wrong)?;
        let mut table = Table::EMPTY;
        let request = encode(&Context { args: args.clone(), ..context.clone() });
        // SAFETY: the request has that length, and the table is ours.
        match unsafe { entry(VERSION, request.as_ptr(), request.len(), &raw mut table) } {
            0 => {
                let every = (table.tick_ns > 0).then(|| Duration::from_nanos(table.tick_ns));
                Ok(Self { name, table, args, ticker: Ticker::new(every, crate::now_ns()), _object: library })
            }
            OTHER_VERSION => {
                Err(format!("part {name}: {} was built with another release of the library; build both from one", path.display()))
            }
            _ => Err(format!("part {name}: {}", said(&table))),
        }
    }

    fn outcome(&self, code: Option<c_int>) -> Result<(), NfError> {
        match code {
            None | Some(0) => Ok(()),
            Some(_) => Err(NfError::Handler(format!("part {}: {}", self.name, said(&self.table)).into())),
        }
    }
}

struct Group {
    parts: Vec<Part>,
    page: Option<Page>,
    sample_at: u64,
    /// What is left of a burst once packets have left the group.
    rest: [Descriptor; BURST],
}

/// Adds to a counter of a part, which only this thread writes.
#[inline(always)]
fn add(page: &Page, part: usize, counter: PartCounter, n: u64) {
    if let Some(word) = page.part(part, counter) {
        // Relaxed: one writer, and it publishes nothing.
        word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

impl Group {
    fn make(parts: Vec<Wanted>, context: &Context) -> Result<Self, NfError> {
        let parts = parts.into_iter().enumerate();
        let parts = parts.map(|(number, wanted)| Part::load(number, wanted, context)).collect::<Result<_, _>>();
        let parts = parts.map_err(|words| NfError::Handler(words.into()))?;
        Ok(Self { parts, page: context.page.clone(), sample_at: 0, rest: [Descriptor::default(); BURST] })
    }
}

/// Puts the packets that leave the group into their places, and moves the others of `list` to its
/// front, in order. Returns how many those are.
fn stay(list: &mut [Descriptor], places: &mut [u8; BURST], all: &mut [Descriptor]) -> usize {
    let mut kept = 0;
    for i in 0..list.len() {
        if list[i].verdict == RawVerdict::Next as u8 {
            list[kept] = list[i];
            places[kept] = places[i];
            kept += 1;
        } else {
            all[places[i] as usize] = list[i];
        }
    }
    kept
}

impl Step for Group {
    fn burst(&mut self, burst: &mut Burst<'_>) -> Result<usize, NfError> {
        let Self { parts, page, sample_at, rest } = self;
        let now_ns = burst.now_ns();
        let is_sampled = now_ns >= *sample_at;
        let (zero, geometry) = (burst.arena().zero(), burst.arena().geometry());
        let all = burst.descriptors();
        let (mut left, mut errors, mut is_apart) = (all.len(), 0, false);
        // Where in the burst each packet that is left belongs, once some have left.
        let mut places = [0u8; BURST];
        for (number, part) in parts.iter().enumerate() {
            let list = if is_apart { &mut rest[..left] } else { &mut all[..left] };
            let mut packets = Packets {
                descriptors: list.as_mut_ptr(),
                zero,
                now_ns,
                count: left as u32,
                first: geometry.first,
                frames: geometry.frames,
                stride: geometry.stride,
                errors: 0,
            };
            let before = if is_sampled { crate::now_ns() } else { 0 };
            // SAFETY: the part's own state, and a burst that is ours.
            part.outcome(part.table.burst.map(|handle| unsafe { handle(part.table.state, &raw mut packets) }))?;
            errors += packets.errors as usize;
            let list = if is_apart { &rest[..left] } else { &all[..left] };
            let gone = list.iter().any(|d| d.verdict != RawVerdict::Next as u8);
            if let Some(page) = page.as_ref() {
                add(page, number, PartCounter::Packets, left as u64);
                if gone {
                    let drops = list.iter().filter(|d| d.verdict == RawVerdict::Drop as u8).count();
                    add(page, number, PartCounter::Drops, drops as u64);
                }
                if is_sampled {
                    add(page, number, PartCounter::BusyNs, crate::now_ns().saturating_sub(before));
                    add(page, number, PartCounter::Sampled, left as u64);
                }
            }
            if !gone {
                continue;
            }
            if !is_apart {
                rest[..left].copy_from_slice(&all[..left]);
                places = std::array::from_fn(|i| i as u8);
            }
            (left, is_apart) = (stay(&mut rest[..left], &mut places, all), true);
            if left == 0 {
                break;
            }
        }
        if is_apart {
            for (descriptor, place) in rest[..left].iter().zip(places) {
                all[place as usize] = *descriptor;
            }
        }
        if is_sampled {
            *sample_at = now_ns + SAMPLE_NS;
        }
        Ok(errors)
    }

    fn tick(&mut self, now_ns: u64) {
        for part in &mut self.parts {
            if part.ticker.is_due(now_ns) {
                // SAFETY: the part's own state.
                let code = part.table.tick.map(|tick| unsafe { tick(part.table.state, now_ns) });
                // The caller takes a panic for a failure of the handler, which this is.
                part.outcome(code).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    fn tick_every(&self) -> Option<Duration> {
        self.parts.iter().map(|part| part.table.tick_ns).filter(|ns| *ns > 0).min().map(Duration::from_nanos)
    }

    fn clean(&mut self) {
        for part in &self.parts {
            // SAFETY: the part's own state.
            let code = part.table.clean.map(|clean| unsafe { clean(part.table.state) });
            part.outcome(code).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn forked(&mut self, context: &Context) -> Result<(), NfError> {
        self.page = context.page.clone();
        for part in &self.parts {
            let request = encode(&Context { args: part.args.clone(), ..context.clone() });
            // SAFETY: the part's own state, and a request of that length.
            part.outcome(part.table.forked.map(|forked| unsafe { forked(part.table.state, request.as_ptr(), request.len()) }))?;
        }
        Ok(())
    }
}

const HELP: &str = "\
Runs several NFs in one process, one after another for each burst

Usage: sluice-nf-group --part NAME=PROGRAM [ARGS]... [--part NAME=PROGRAM [ARGS]...]...

Each part is loaded from the shared object of its program: libsluice_nf_nat.so for sluice-nf-nat,
in the same folder, in ../lib/sluice, or in a folder of PATH. sluiced starts it for a chain with
run = \"fused\".
";

/// The `main` of a group's program: loads the parts that its arguments name, and runs them.
pub fn main() -> ExitCode {
    let args = crate::args();
    let answer = match args.first() {
        Some(arg) if arg == "--version" => concat!("sluice-nf-group ", env!("CARGO_PKG_VERSION"), "\n"),
        Some(arg) if arg != "--help" => "",
        _ => HELP,
    };
    if !answer.is_empty() {
        // A closed stdout is no error.
        let _ = io::Write::write_all(&mut io::stdout(), answer.as_bytes());
        return ExitCode::SUCCESS;
    }
    match wanted(args) {
        Err(words) => {
            eprintln!("sluice-nf-group: {words}");
            ExitCode::from(2)
        }
        Ok(parts) => run::ended(&Options::from_env(), |options| run::run_step(options, |context| Group::make(parts, context))),
    }
}

#[cfg(test)]
mod tests {
    use sluice_shm::arena::{Arena, Geometry};

    use super::*;
    use crate::handler::Handler;
    use crate::packet::{PortId, Verdict};
    use crate::part;

    /// Does with a packet what its first byte says of this part, and appends its own number.
    struct Sorts(u8);

    impl Handler for Sorts {
        fn burst(&mut self, burst: &mut Burst<'_>) {
            for mut packet in burst.iter_mut() {
                let wanted = packet.data()[0];
                packet.append(1).unwrap()[0] = self.0;
                match wanted {
                    wanted if wanted == self.0 => packet.drop(),
                    wanted if wanted == self.0 + 100 => packet.to_port(PortId(7)),
                    wanted if wanted == self.0 + 200 => panic!("packet {wanted}"),
                    _ => {}
                }
            }
        }
    }

    fn part(number: u8) -> Part {
        let mut table = Table::EMPTY;
        let request = encode(&Context::default());
        // SAFETY: the request has that length, and the table is ours.
        let code = unsafe { part::make(VERSION, request.as_ptr(), request.len(), &raw mut table, |_| Ok(Sorts(number))) };
        assert_eq!(code, 0);
        let ticker = Ticker::new(None, 0);
        Part { name: format!("p{number}"), table, args: Vec::new(), ticker, _object: Library::this() }
    }

    fn group(parts: u8) -> Group {
        let parts = (1..=parts).map(part).collect();
        Group { parts, page: None, sample_at: 0, rest: [Descriptor::default(); BURST] }
    }

    /// Sends packets with these first bytes: their verdicts, and the parts that each has met.
    fn send(group: &mut Group, wanted: &[u8]) -> Result<Vec<(Verdict, Vec<u8>)>, NfError> {
        let geometry = Geometry { first: 0, frames: 32, stride: Geometry::stride_for(128) as u32 };
        let (_memory, arena) = Arena::create(geometry, false).unwrap();
        let mut descriptors: Vec<Descriptor> = (0..)
            .zip(wanted)
            .map(|(frame, byte)| {
                assert!(arena.write(frame, 128, &[*byte]));
                Descriptor { frame, offset: 128, len: 1, ..Default::default() }
            })
            .collect();
        // SAFETY: the frames are this test's, and each is named once.
        let mut burst = unsafe { Burst::new(&arena, &mut descriptors, 1) };
        group.burst(&mut burst)?;
        let met = |d: &Descriptor| {
            let mut bytes = vec![0; d.len as usize];
            assert!(arena.read(d.frame, d.offset, &mut bytes));
            (Verdict::of(d), bytes.split_off(1))
        };
        Ok(descriptors.iter().map(met).collect())
    }

    #[test]
    fn a_packet_leaves_where_its_verdict_says_and_the_others_keep_their_order() {
        let out = send(&mut group(3), &[9, 1, 2, 101, 9, 3, 103, 102, 9]).unwrap();
        let next = |met: &[u8]| (Verdict::Next, met.to_vec());
        let port = Verdict::ToPort(PortId(7));
        assert_eq!(
            out,
            [
                next(&[1, 2, 3]),
                (Verdict::Drop, vec![1]),
                (Verdict::Drop, vec![1, 2]),
                (port, vec![1]),
                next(&[1, 2, 3]),
                (Verdict::Drop, vec![1, 2, 3]),
                (port, vec![1, 2, 3]),
                (port, vec![1, 2]),
                next(&[1, 2, 3]),
            ]
        );
        assert_eq!(send(&mut group(2), &[1, 1]).unwrap(), [(Verdict::Drop, vec![1]), (Verdict::Drop, vec![1])]);
    }

    #[test]
    fn a_part_that_panics_ends_the_group_with_its_name() {
        let error = send(&mut group(3), &[9, 202]).unwrap_err();
        assert_eq!(error.to_string(), "part p2: it panicked: packet 202");
    }

    /// Counts its ticks and cleanings.
    struct Counts(std::rc::Rc<std::cell::Cell<(u32, u32)>>, u64);

    impl Handler for Counts {
        fn burst(&mut self, _burst: &mut Burst<'_>) {}
        fn tick(&mut self, _now_ns: u64) {
            self.0.set((self.0.get().0 + 1, self.0.get().1));
        }
        fn tick_every(&self) -> Option<Duration> {
            Some(Duration::from_nanos(self.1))
        }
        fn clean(&mut self) {
            self.0.set((self.0.get().0, self.0.get().1 + 1));
        }
    }

    #[test]
    fn each_part_ticks_at_its_own_period_and_all_are_cleaned() {
        let counts: [std::rc::Rc<std::cell::Cell<(u32, u32)>>; 2] = std::array::from_fn(|_| std::rc::Rc::default());
        let parts = counts.iter().zip([100, 300]).map(|(count, every)| {
            let (mut table, request) = (Table::EMPTY, encode(&Context::default()));
            let made = |_: &Context| Ok(Counts(count.clone(), every));
            // SAFETY: the request has that length, and the table is ours.
            assert_eq!(unsafe { part::make(VERSION, request.as_ptr(), request.len(), &raw mut table, made) }, 0);
            let ticker = Ticker::new(Some(Duration::from_nanos(table.tick_ns)), 0);
            Part { name: "counts".into(), table, args: Vec::new(), ticker, _object: Library::this() }
        });
        let mut group = Group { parts: parts.collect(), page: None, sample_at: 0, rest: [Descriptor::default(); BURST] };
        assert_eq!(group.tick_every(), Some(Duration::from_nanos(100)));
        (1..=6).for_each(|n| group.tick(n * 100));
        group.clean();
        assert_eq!(counts.map(|count| count.get()), [(6, 1), (2, 1)]);
    }

    #[test]
    fn arguments_are_those_of_the_part_before_them() {
        let of = |text: &str| wanted(text.split(' ').map(OsString::from).collect());
        let parts = of("--part fw=sluice-nf-firewall --rules x --part nat=/opt/nat").unwrap();
        assert_eq!((parts[0].name.as_str(), parts[0].args.len(), parts[1].program.to_str()), ("fw", 2, Some("/opt/nat")));
        for wrong in ["", "--rules", "--part", "--part fw", "--part =x", "--part fw="] {
            assert!(of(wrong).unwrap_err().contains("--part NAME=PROGRAM"), "{wrong}");
        }
    }
}
