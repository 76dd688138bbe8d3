//! Runs an NF without a manager on generated packets, and records its loads and stores.
//!
//! # Problem
//! The cache misses of a packet depend on the addresses that the NF's handler touches. Tools that
//! follow a program from outside slow it down a hundred times, and show nothing of other cache
//! sizes; a model of the cache needs the addresses themselves.
//!
//! # Approach
//! - With `SLUICE_TRACE` set, an NF built with the feature `trace` does not attach: its own `main`
//!   makes its handler, with its own arguments, and the [`harness`](crate::harness) runs it. An NF
//!   that owns its loop attaches to a [stand-in](pull). First each flow once, then packets to warm
//!   up, then those that count. The value is a list of these keys, each with a default:
//!   `packets=N`, `warm_up=N`, `accesses=N`, `flows=N`, `zipf=S`, `bytes=N`, `spread=0|1`,
//!   `seed=N`, `l1=NxN`, `input=0|1`, `output=0|1`, with commas between.
//! - The compiler's coverage pass calls a function at each load and store (scripts/trace-nf has the
//!   flags). Built without the flags, the program runs under other tools, on the same packets.
//! - A first cache of `l1=SETSxWAYS` (LRU) filters here: accesses that hit it are not recorded,
//!   which leaves a twentieth. Without it, an access to the same line as the one before is left
//!   out: no cache notices it.
//! - Records go to standard output, eight bytes each, little-endian: the address in 56 bits; above
//!   it 1 to 5 for 1, 2, 4, 8 or 16 bytes; the top bit for a store. An access over two lines has a
//!   record of one byte for each line that misses. A record of no size is a mark, with the number
//!   of accesses so far in place of the address, including those left out and those before the
//!   first packet: 0 means that the pass was not applied. The first mark ends the warm-up, the
//!   second the trace.
//! - `accesses=N` ends the trace after the burst in which N accesses since the first mark are
//!   reached, and the warm-up after a tenth of N: an NF with thousands of accesses a packet needs
//!   fewer packets. A third mark then has the number of packets that count.
//! - NFs of a chain hand packets on: `input=1` reads them from standard input instead, `output=1`
//!   writes those that go on ([`relay`]).
//!
//! # Limits
//! Precompiled code (the standard library's, the C library's comparisons) is not followed except
//! for [`copies`]; nor are spills, or copies and comparisons of a fixed size, which the code
//! generator expands. The packets lie in the harness's 32 frames, so they are always cached, as
//! with bounded receive queues. Time moves 1 µs a burst, and no ticks come. The NF must print
//! nothing.

#[cfg(target_arch = "x86_64")]
mod copies;
mod packets;
pub(crate) mod pull;
mod relay;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use sluice_shm::descriptor::Descriptor;

use crate::context::Context;
use crate::error::NfError;
use crate::handler::Handler;
use crate::harness::Harness;
use crate::packet::Verdict;
use packets::PacketSource;
use relay::Part;

const RECORDS: usize = 8_192;

const START_NS: u64 = 1_000_000_000;

/// Most sets and ways of the first cache; the number of sets is a power of two.
const MOST_SETS: usize = 1 << u8::BITS;
const MOST_WAYS: usize = 16;

/// Loads and stores of 1, 2, 4, 8 and 16 bytes.
const SIZES: u64 = 5;
const KINDS: usize = 2 * SIZES as usize;

/// Bytes of stack within which a thread is the followed one. Stacks are further apart, and a
/// handler uses less.
const STACK: usize = 1 << 20;

const LINE_BITS: u32 = 6;
const LINE_BYTES: u64 = 1 << LINE_BITS;

const STORE: u64 = 1 << 63;
const ADDRESS: u64 = (1 << 56) - 1;

// One thread runs the handler and is followed; others are not, but must do no harm. So all is
// relaxed: the reader refuses a torn trace. Calls by two threads at once may count as one.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BUFFER: [AtomicU64; RECORDS] = [const { AtomicU64::new(0) }; RECORDS];
static FIRST: First = First::new();

/// The first cache and its counts, together, so that one address leads to all of them.
#[repr(C, align(64))]
struct First {
    /// The most recently used line of each set. No line has the number 0.
    last: [AtomicU64; MOST_SETS],
    /// Calls so far, by kind: separate counters, so that none waits for the one before.
    calls: [AtomicU64; KINDS],
    /// Sets, less one.
    mask: AtomicU8,
    /// Whether the pass was applied to this program.
    instrumented: AtomicBool,
    /// Whether accesses are followed.
    following: AtomicBool,
    /// An address on the stack of the thread that is followed.
    stack: AtomicUsize,
    /// Loads and stores before the first packet and while following; then minus earlier calls.
    made: AtomicU64,
    /// Ways, less one.
    others: AtomicUsize,
    /// The other lines of each set, most recently used first.
    before: [AtomicU64; MOST_SETS * (MOST_WAYS - 1)],
}

// Functions below the compiler's calls are inlined (`inline(always)`) or have names that begin as
// the pass's do: the pass adds calls to all other functions.

impl First {
    const fn new() -> Self {
        Self {
            last: [const { AtomicU64::new(0) }; MOST_SETS],
            calls: [const { AtomicU64::new(0) }; KINDS],
            mask: AtomicU8::new(0),
            instrumented: AtomicBool::new(false),
            following: AtomicBool::new(false),
            stack: AtomicUsize::new(0),
            made: AtomicU64::new(0),
            others: AtomicUsize::new(0),
            before: [const { AtomicU64::new(0) }; MOST_SETS * (MOST_WAYS - 1)],
        }
    }

    fn shape(&self, (sets, ways): (usize, usize)) {
        self.mask.store((sets - 1) as u8, Relaxed);
        self.others.store(ways - 1, Relaxed);
    }

    #[inline(always)]
    fn set(&self, line: u64) -> usize {
        usize::from(line as u8 & self.mask.load(Relaxed))
    }

    /// Whether a line is the most recently used one of its set.
    #[inline(always)]
    fn is_last(&self, line: u64) -> bool {
        self.last[self.set(line)].load(Relaxed) == line
    }

    /// Whether a line is held; it is from then on.
    #[inline(always)]
    fn holds(&self, line: u64) -> bool {
        let set = self.set(line);
        let mut next = self.last[set].load(Relaxed);
        if next == line {
            return true;
        }
        self.last[set].store(line, Relaxed);
        // More recently used lines move one place back; if it was not held, the last one goes.
        let others = self.others.load(Relaxed).min(MOST_WAYS - 1);
        for place in &self.before[set * (MOST_WAYS - 1)..][..others] {
            let held = place.load(Relaxed);
            place.store(next, Relaxed);
            if held == line {
                return true;
            }
            next = held;
        }
        false
    }
}

/// Loads and stores so far; only valid while not following.
fn made() -> u64 {
    FIRST.made.load(Relaxed)
}

/// Starts or stops following. Returns the former state.
fn follow(is_followed: bool) -> bool {
    __sanitizer_sluice_follow(is_followed)
}

/// As [`follow`], without counting its own loads and stores. A program without the pass is never
/// followed: other tools look at it.
// SAFETY: no other code has this name.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __sanitizer_sluice_follow(is_followed: bool) -> bool {
    if !FIRST.instrumented.load(Relaxed) {
        return false;
    }
    if is_followed {
        let here = 0u8;
        FIRST.stack.store((&raw const here).addr(), Relaxed);
    }
    let was_followed = FIRST.following.swap(is_followed, Relaxed);
    if was_followed != is_followed {
        let calls = if is_followed { calls().wrapping_neg() } else { calls() };
        FIRST.made.store(FIRST.made.load(Relaxed).wrapping_add(calls), Relaxed);
    }
    was_followed
}

/// Calls so far, followed or not.
#[inline(always)]
fn calls() -> u64 {
    let mut sum = 0;
    for of_kind in &FIRST.calls {
        sum += of_kind.load(Relaxed);
    }
    sum
}

/// Most accesses are to the most recently used line of a set and change nothing else.
#[inline(always)]
fn record(address: usize, kind: usize) {
    FIRST.calls[kind].store(FIRST.calls[kind].load(Relaxed) + 1, Relaxed);
    let (size, store) = (kind as u64 % SIZES + 1, kind as u64 / SIZES * STORE);
    let (address, bytes) = (address as u64, 1 << (size - 1));
    let line = address >> LINE_BITS;
    if address % LINE_BYTES + bytes > LINE_BYTES {
        return __sanitizer_sluice_two(store | line << LINE_BITS);
    }
    if !FIRST.is_last(line) {
        __sanitizer_sluice_seldom(store | size << 56 | (address & ADDRESS));
    }
}

/// The rest of [`record`], in functions of their own: neither part then saves registers.
// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __sanitizer_sluice_seldom(record: u64) {
    let here = 0u8;
    // Another thread, one that reports or reloads, would take the place of records, and lose them.
    if !FIRST.following.load(Relaxed) || (&raw const here).addr().abs_diff(FIRST.stack.load(Relaxed)) > STACK {
        return;
    }
    if !FIRST.holds((record & ADDRESS) >> LINE_BITS) {
        __sanitizer_sluice_put(record);
    }
}

/// An access to two lines, this one and the next.
// SAFETY: as above.
#[unsafe(no_mangle)]
#[cold]
extern "C" fn __sanitizer_sluice_two(line: u64) {
    for line in [line, line + LINE_BYTES] {
        __sanitizer_sluice_seldom(1 << 56 | line);
    }
}

/// Loads or stores (`kind` as for one byte) of `bytes` bytes, line by line.
// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __sanitizer_sluice_many(address: usize, bytes: usize, kind: usize) {
    if !FIRST.following.load(Relaxed) || bytes == 0 {
        return;
    }
    let (first, last) = (address as u64 >> LINE_BITS, (address + bytes - 1) as u64 >> LINE_BITS);
    let store = kind as u64 / SIZES * STORE;
    for line in first..=last {
        FIRST.calls[kind].store(FIRST.calls[kind].load(Relaxed) + 1, Relaxed);
        __sanitizer_sluice_seldom(store | 1 << 56 | (line << LINE_BITS & ADDRESS));
    }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __sanitizer_sluice_put(record: u64) {
    let count = COUNT.load(Relaxed);
    if let Some(slot) = BUFFER.get(count) {
        slot.store(record, Relaxed);
        COUNT.store(count + 1, Relaxed);
    }
    if count + 1 >= RECORDS {
        // Relayed packets get here too, while not following.
        let was_followed = follow(false);
        write_out();
        follow(was_followed);
    }
}

/// Writes what was gathered; not while following.
#[inline(never)]
fn write_out() {
    let count = COUNT.swap(0, Relaxed).min(RECORDS);
    let mut bytes = vec![0; count * 8];
    for (record, slot) in bytes.as_chunks_mut().0.iter_mut().zip(&BUFFER) {
        *record = slot.load(Relaxed).to_le_bytes();
    }
    if std::io::stdout().lock().write_all(&bytes).is_err() {
        // The reader has gone: there is nothing left to do.
        std::process::exit(1);
    }
}

/// The functions that the pass calls. It skips such names, so they do not call themselves.
macro_rules! called {
    ($($load:ident, $store:ident: $size:literal)*) => { $(
        // SAFETY: only this code has the name that the pass looks for; the signature is its.
        #[unsafe(no_mangle)]
        extern "C" fn $load(address: usize) {
            record(address, $size);
        }
        // SAFETY: as above.
        #[unsafe(no_mangle)]
        extern "C" fn $store(address: usize) {
            record(address, SIZES as usize + $size);
        }
    )* };
}

called! {
    __sanitizer_cov_load1, __sanitizer_cov_store1: 0
    __sanitizer_cov_load2, __sanitizer_cov_store2: 1
    __sanitizer_cov_load4, __sanitizer_cov_store4: 2
    __sanitizer_cov_load8, __sanitizer_cov_store8: 3
    __sanitizer_cov_load16, __sanitizer_cov_store16: 4
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TracedTraffic {
    packets: u64,
    warm_up: u64,
    /// The number of accesses that suffices, if any.
    accesses: Option<u64>,
    flows: u32,
    /// Exponent; None: all flows are equally frequent.
    zipf: Option<f64>,
    bytes: usize,
    /// Whether flows have destinations all over the address space instead of one.
    spread: bool,
    seed: u64,
    /// Sets and ways of the first cache; one line means none.
    l1: (usize, usize),
    /// Whether packets come from standard input.
    input: bool,
    /// Whether packets that go on are written.
    output: bool,
}

impl TracedTraffic {
    fn parse(text: &str) -> Result<Self, String> {
        let mut found = Self {
            packets: 100_000,
            warm_up: 0,
            accesses: None,
            flows: 1_000,
            zipf: None,
            bytes: 60,
            spread: false,
            seed: 1,
            l1: (1, 1),
            input: false,
            output: false,
        };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let number = value.parse::<u64>();
            match (key, number) {
                ("packets", Ok(n)) => found.packets = n,
                ("warm_up", Ok(n)) => found.warm_up = n,
                ("accesses", Ok(n)) if n > 0 => found.accesses = Some(n),
                ("flows", Ok(n)) if (1..=1 << 24).contains(&n) => found.flows = n as u32,
                ("bytes", Ok(n)) if (60..=1_514).contains(&n) => found.bytes = n as usize,
                ("spread", Ok(n)) if n <= 1 => found.spread = n == 1,
                ("seed", Ok(n)) => found.seed = n,
                ("input", Ok(n)) if n <= 1 => found.input = n == 1,
                ("output", Ok(n)) if n <= 1 => found.output = n == 1,
                ("zipf", _) => {
                    let exponent = value.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 8.0);
                    found.zipf =
                        Some(exponent.ok_or_else(|| format!("SLUICE_TRACE: zipf is above 0 and at most 8, not \"{value}\""))?);
                }
                ("l1", _) => {
                    let cache = value.split_once('x').and_then(|(sets, ways)| Some((sets.parse().ok()?, ways.parse().ok()?)));
                    let fits = |(sets, ways): &(usize, usize)| {
                        usize::is_power_of_two(*sets) && *sets <= MOST_SETS && (1..=MOST_WAYS).contains(ways)
                    };
                    found.l1 = cache.filter(fits).ok_or_else(|| {
                        format!(
                            "SLUICE_TRACE: l1 is SETSxWAYS, the sets a power of two up to {MOST_SETS}, up to {MOST_WAYS} ways, not \"{value}\""
                        )
                    })?;
                }
                _ => {
                    return Err(format!(
                        "SLUICE_TRACE: \"{part}\" is not understood; write packets, warm_up, accesses, flows (up to 16777216), zipf, bytes (60 to 1514), \
                         spread (0 or 1), seed, l1, input (0 or 1) or output (0 or 1), each with = and a number"
                    ));
                }
            }
        }
        Ok(found)
    }
}

/// The traffic that `SLUICE_TRACE` requests.
pub(crate) fn asked() -> Option<Result<TracedTraffic, String>> {
    std::env::var("SLUICE_TRACE").ok().map(|text| TracedTraffic::parse(&text))
}

fn begin(traffic: &TracedTraffic) {
    FIRST.shape(traffic.l1);
    // The pass was applied if there were calls, even if the handler itself has none.
    let calls = calls();
    FIRST.instrumented.store(calls > 0, Relaxed);
    FIRST.made.store(calls, Relaxed);
}

fn context() -> Context {
    Context::for_test("trace", &["in", "out"], &[], &["trace"])
}

/// Makes the handler, runs it on generated packets, and writes its accesses.
pub(crate) fn run<H: Handler>(
    traffic: Result<TracedTraffic, String>,
    make: impl FnOnce(&Context) -> Result<H, Box<dyn std::error::Error>>,
) -> Result<(), NfError> {
    let traffic = traffic.map_err(|why| NfError::Handler(why.into()))?;
    begin(&traffic);
    let handler = make(&context()).map_err(NfError::Handler)?;
    let mut harness = Harness::new(Followed(handler));
    if traffic.input {
        let done = given(&mut harness, traffic.output);
        std::mem::forget(harness);
        return done;
    }
    let mut now_ns = START_NS;
    let mut source = PacketSource::new(traffic);
    while let Some(packets) = source.burst() {
        now_ns += 1_000;
        harness.set_now(now_ns);
        // They are IP, and no fragments.
        let back = harness.give_of_kind(packets, |_| 0);
        if traffic.output {
            hand_on(&harness, &back);
        }
    }
    write_out();
    // Output of the handler's drop would be taken for records.
    std::mem::forget(harness);
    Ok(())
}

/// Runs the handler on packets from standard input.
fn given<H: Handler>(harness: &mut Harness<H>, output: bool) -> Result<(), NfError> {
    let lost = |e: std::io::Error| NfError::Handler(e.into());
    let mut input = std::io::stdin().lock();
    let mut now_ns = START_NS;
    while let Some(batch) = relay::read(&mut input).map_err(lost)? {
        for part in relay::parts(&batch).map_err(lost)? {
            match part {
                Part::Mark => mark(made()),
                Part::Burst(packets) => {
                    now_ns += 1_000;
                    harness.set_now(now_ns);
                    let back = if packets.is_empty() { Vec::new() } else { harness.give(&packets) };
                    if output {
                        hand_on(harness, &back);
                    }
                }
            }
        }
        write_out();
        std::io::stdout().flush().map_err(lost)?;
    }
    Ok(())
}

/// Writes the packets that go on to the next hop.
fn hand_on<H: Handler>(harness: &Harness<H>, back: &[Descriptor]) {
    let on = || back.iter().filter(|descriptor| Verdict::of(descriptor) == Verdict::Next);
    __sanitizer_sluice_put(relay::ON | on().count() as u64);
    let mut packet = Vec::new();
    for descriptor in on() {
        harness.read(descriptor, &mut packet);
        relay::words(&packet).for_each(|word| __sanitizer_sluice_put(word));
    }
    // What follows is not the handler.
    follow(false);
}

/// A mark, with the accesses so far; the third one with the packets that count.
fn mark(number: u64) {
    __sanitizer_sluice_put(number & ADDRESS);
    // What follows is not the handler.
    follow(false);
}

/// Follows only the handler, not the harness.
struct Followed<H>(H);

impl<H: Handler> Handler for Followed<H> {
    #[inline(always)]
    fn burst(&mut self, burst: &mut crate::packet::Burst<'_>) {
        follow(true);
        self.0.burst(burst);
        follow(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Sets of lines, the most recently used one first.
        #[test]
        fn a_line_is_held_until_as_many_others_of_its_set_were_used(
            lines in proptest::collection::vec(1u64..60, 1..400), sets in 0u32..4, ways in 1usize..6,
        ) {
            let (first, sets) = (First::new(), 1 << sets);
            first.shape((sets, ways));
            let mut plain = vec![Vec::new(); sets];
            for line in lines {
                let set: &mut Vec<u64> = &mut plain[line as usize % sets];
                let place = set.iter().position(|held| *held == line);
                proptest::prop_assert_eq!(first.is_last(line), place == Some(0));
                proptest::prop_assert_eq!(first.holds(line), place.is_some());
                place.map(|place| set.remove(place));
                set.insert(0, line);
                set.truncate(ways);
            }
        }
    }

    #[test]
    fn threads_beside_the_handlers_leave_no_record() {
        FIRST.instrumented.store(true, Relaxed);
        let access = |line: u64| __sanitizer_sluice_seldom(1 << 56 | line << LINE_BITS);
        follow(true);
        access(1);
        std::thread::scope(|scope| scope.spawn(|| access(2)).join().unwrap());
        access(3);
        follow(false);
        let records: Vec<u64> = BUFFER[..COUNT.load(Relaxed)].iter().map(|record| record.load(Relaxed)).collect();
        assert_eq!(records, [1, 3].map(|line| 1 << 56 | line << LINE_BITS));
    }

    #[test]
    fn words_are_read_and_wrong_ones_reported() {
        let found =
            TracedTraffic::parse("packets=5,flows=3,zipf=1.1,bytes=1514,spread=1,seed=9,warm_up=2,accesses=7,l1=64x12,output=1")
                .unwrap();
        let (l1, input, output) = ((64, 12), false, true);
        let wanted = TracedTraffic {
            packets: 5,
            warm_up: 2,
            accesses: Some(7),
            flows: 3,
            zipf: Some(1.1),
            bytes: 1_514,
            spread: true,
            seed: 9,
            l1,
            input,
            output,
        };
        assert_eq!(found, wanted);
        for wrong in [
            "flows=0",
            "accesses=0",
            "zipf=0",
            "zipf=x",
            "bytes=59",
            "spread=2",
            "colour=1",
            "packets",
            "l1=48x8",
            "l1=64x0",
            "l1=4096x2",
        ] {
            assert!(TracedTraffic::parse(wrong).unwrap_err().starts_with("SLUICE_TRACE"), "{wrong}");
        }
    }
}
