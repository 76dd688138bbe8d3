//! A group: handlers from shared objects, in one process, one after another for each burst.
//!
//! # Approach
//! To the manager a group is one NF: one pair of rings, one slot on its core. A burst goes through
//! all parts in place. A packet with a verdict other than `Next` leaves the group where it got it:
//! later parts do not see it, and the others keep their order. Each part's packets, drops and time
//! are counted on the group's page; of a burst each millisecond the time of each part is taken.
//!
//! In a packet thread of the manager ([`InThread`]) a group has no rings: it gets bursts by a call.
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
use sluice_shm::arena::Arena;
use sluice_shm::descriptor::{Descriptor, Verdict as RawVerdict, flags};
use sluice_shm::object;
use sluice_shm::page::{Counter, MAX_PARTS, Page, PartCounter, returned};
use sluice_shm::zygote::Surroundings;

use crate::context::Context;
use crate::error::NfError;
use crate::options::Options;
use crate::packet::Burst;
use crate::part::{EntryPoint, HandlerTable, OTHER_VERSION, Packets, SYMBOL, VERSION, encode};
use crate::run::{self, FallibleHandler, Ticker};

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
    table: HandlerTable,
    args: Vec<OsString>,
    ticker: Ticker,
    /// Closed after the handler is dropped.
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
fn said(table: &HandlerTable) -> String {
    let mut words = [0; 512];
    // SAFETY: the buffer has that length.
    let n = table.said.map_or(0, |said| unsafe { said(words.as_mut_ptr(), words.len()) });
    String::from_utf8_lossy(&words[..n.min(words.len())]).into_owned()
}

impl Part {
    /// Loads a part's object, from a path if one is given, and makes its handler.
    fn load(wanted: Wanted, given: Option<PathBuf>, context: &Context) -> Result<Self, String> {
        let Wanted { name, program, args } = wanted;
        let path = given
            .filter(|path| path.exists())
            .or_else(|| object::find(&program, &folders(), Path::exists))
            .ok_or_else(|| format!("part {name}: there is no {} beside its program", object::name_of(&program).display()))?;
        // SAFETY: the object is as trusted as a program of this service: its constructors run here.
        // It stays loaded: a handler may have started threads, which run on.
        let opened = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
        let wrong = |error: libloading::Error| format!("part {name}: cannot load {}: {error}", path.display());
        let library = opened.map_err(wrong)?;
        // SAFETY: the symbol of this name is an EntryPoint, by the interface.
        let entry = *unsafe { library.get::<EntryPoint>(SYMBOL) }.map_err(wrong)?;
        let mut table = HandlerTable::EMPTY;
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

/// Notes which of the packets in a list is traced, the first of them, and when a part returned it;
/// with an empty list, that it has met none.
#[cold]
fn note_traced(page: &Page, part: usize, list: &[Descriptor]) {
    let traced = list.iter().find(|descriptor| descriptor.flags & flags::TRACED != 0);
    if let Some(word) = page.traced(part) {
        // Relaxed: the packet is published with its descriptor, after this.
        word.store(traced.map_or(0, |descriptor| returned(descriptor.frame, crate::now_ns())), Ordering::Relaxed);
    }
}

/// Whether a burst has a traced packet. No part has met it yet, and a packet may leave before the
/// later ones.
#[inline(always)]
fn begins_trace(page: Option<&Page>, parts: usize, burst: &[Descriptor]) -> bool {
    let is_traced = burst.iter().fold(0, |any, descriptor| any | descriptor.flags) & flags::TRACED != 0;
    if is_traced && let Some(page) = page {
        (0..parts).for_each(|part| note_traced(page, part, &[]));
    }
    is_traced
}

impl Group {
    /// Loads the parts, from the objects that `given` names by their number.
    fn load(parts: Vec<Wanted>, given: impl Fn(usize) -> Option<PathBuf>, context: &Context) -> Result<Self, String> {
        let parts = parts.into_iter().enumerate();
        let parts = parts.map(|(number, wanted)| Part::load(wanted, given(number), context)).collect::<Result<_, _>>()?;
        Ok(Self { parts, page: context.page.clone(), sample_at: 0, rest: [Descriptor::default(); BURST] })
    }

    /// The group of a process, which may have got the objects as open files.
    fn make(parts: Vec<Wanted>, context: &Context) -> Result<Self, NfError> {
        let first = std::env::var(object::ENV_OBJECTS).ok().and_then(|first| first.parse::<usize>().ok());
        let given = |number: usize| Some(PathBuf::from(format!("/proc/self/fd/{}", first? + number)));
        Self::load(parts, given, context).map_err(|words| NfError::Handler(words.into()))
    }
}

/// A group in a thread of the manager.
pub struct InThread {
    group: Group,
    page: Page,
    sample_at: u64,
    why: String,
}

// SAFETY: `part::make` takes handlers that are Send, and the interface demands it of handlers in C.
// The rest is a page of shared memory and numbers.
unsafe impl Send for InThread {}

impl InThread {
    /// Loads the parts that the arguments name, as those of `sluice-nf-group`, from these objects,
    /// for a thread on this core. They count on the page.
    ///
    /// # Errors
    /// What is wrong with the arguments, an object or a handler.
    pub fn load(
        args: Vec<OsString>,
        objects: &[PathBuf],
        surroundings: &Surroundings,
        core: u32,
        page: Page,
    ) -> Result<Self, String> {
        let context = Context { core: Some(core), page: Some(page.clone()), ..Context::of_zygote(surroundings) };
        let group = Group::load(wanted(args)?, |number| objects.get(number).cloned(), &context)?;
        // Release: as a process says it.
        page.counter(Counter::Ready).store(1, Ordering::Release);
        Ok(Self { group, page, sample_at: 0, why: String::new() })
    }

    fn outcome<T>(&mut self, outcome: Result<T, NfError>) -> Option<T> {
        outcome.inspect_err(|error| self.why = error.to_string()).ok()
    }

    /// Handles a burst of at most [`BURST`] packets in place. False: a part has failed, and the
    /// group must not be called again.
    ///
    /// # Safety
    /// The descriptors' frames lie in the arena, are the caller's, and are named once.
    pub unsafe fn burst(&mut self, arena: &Arena, descriptors: &mut [Descriptor], now_ns: u64) -> bool {
        let is_sampled = now_ns >= self.sample_at;
        let before = if is_sampled { crate::now_ns() } else { 0 };
        let n = descriptors.len() as u64;
        // SAFETY: as the caller promises.
        let outcome = self.group.burst(&mut unsafe { Burst::new(arena, descriptors, now_ns) });
        self.page.add(Counter::Packets, n);
        self.page.add(Counter::Bursts, 1);
        if is_sampled {
            self.sample_at = now_ns + SAMPLE_NS;
            let ns = crate::now_ns().saturating_sub(before);
            self.page.service_time().record(ns);
            self.page.add(Counter::BusyNs, ns);
            self.page.add(Counter::Sampled, n);
        }
        match self.outcome(outcome) {
            Some(0) => {}
            Some(errors) => self.page.add(Counter::Errors, errors as u64),
            None => self.page.add(Counter::Errors, 1),
        }
        self.why.is_empty()
    }

    /// Runs the ticks that are due. False as for `burst`.
    pub fn tick(&mut self, now_ns: u64) -> bool {
        let outcome = run::guarded(|| self.group.tick(now_ns));
        self.outcome(outcome).is_some()
    }

    /// Has the parts clear their state, before they are dropped.
    pub fn clean(&mut self) {
        let outcome = run::guarded(|| self.group.clean());
        self.outcome(outcome);
    }

    /// Why it has failed; empty if it has not.
    pub fn why(&self) -> &str {
        &self.why
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

impl FallibleHandler for Group {
    fn burst(&mut self, burst: &mut Burst<'_>) -> Result<usize, NfError> {
        let Self { parts, page, sample_at, rest } = self;
        let now_ns = burst.now_ns();
        let is_sampled = now_ns >= *sample_at;
        let (zero, geometry) = (burst.arena().zero(), burst.arena().geometry());
        let all = burst.descriptors();
        let (mut left, mut errors, mut is_apart) = (all.len(), 0, false);
        let is_traced = begins_trace(page.as_ref(), parts.len(), all);
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
                if is_traced {
                    note_traced(page, number, list);
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
        *sample_at = if is_sampled { now_ns + SAMPLE_NS } else { *sample_at };
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
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use sluice_shm::arena::Geometry;

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
        let mut table = HandlerTable::EMPTY;
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
    struct Counts(Arc<[AtomicU32; 2]>, u64);

    impl Handler for Counts {
        fn burst(&mut self, _burst: &mut Burst<'_>) {}
        fn tick(&mut self, _now_ns: u64) {
            self.0[0].fetch_add(1, Ordering::Relaxed);
        }
        fn tick_every(&self) -> Option<Duration> {
            Some(Duration::from_nanos(self.1))
        }
        fn clean(&mut self) {
            self.0[1].fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_part_ticks_at_its_own_period_and_all_are_cleaned() {
        let counts: [Arc<[AtomicU32; 2]>; 2] = Default::default();
        let parts = counts.iter().zip([100, 300]).map(|(count, every)| {
            let (mut table, request) = (HandlerTable::EMPTY, encode(&Context::default()));
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
        let counts = counts.map(|count| count.each_ref().map(|n| n.load(Ordering::Relaxed)));
        assert_eq!(counts, [[6, 1], [2, 1]]);
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
