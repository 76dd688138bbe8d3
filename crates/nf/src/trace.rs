//! An NF without a manager, on generated packets, that writes its loads and stores: what a model of the cache is fed with.
//!
//! # Problem
//! How many cache misses a packet costs depends on which addresses the NF's handler touches. Tools that follow a program from outside slow it
//! down a hundred times, and tell nothing of other cache sizes.
//!
//! # Approach
//! - With `SLUICE_TRACE` set, an NF that was built with the feature `trace` attaches to nobody: its handler is made by its own `main`, with its
//!   own arguments, and run in the [`harness`](crate::harness). All flows once, then packets to warm up, then those that count. The value is
//!   `packets=N,warm_up=N,accesses=N,flows=N,zipf=S,bytes=N,spread=0|1,seed=N,l1=NxN,input=0|1,output=0|1`; what is left out has a default.
//! - The compiler's coverage pass calls a function at each load and store (scripts/trace-nf has the flags). Without the flags nobody calls them,
//!   and the same program runs under other tools, on the same packets.
//! - A first cache of `l1=SETSxWAYS` stands here already, least recently used replaced: what it holds goes no further, which leaves a
//!   twentieth to be written. Without it, an access to the same line as the one before is left out: no cache notices it.
//! - Records go to standard output, eight bytes each, least first: the address in 56 bits; above it 1 to 5 for 1, 2, 4, 8 or 16 bytes;
//!   the uppermost bit for a store. Of an access over two lines each that is not held has a record, as of one byte. With no size it is a
//!   mark, and in place of the address the number of accesses until then, those included that were left out. The first mark ends the
//!   warm-up, the second the trace.
//! - `accesses=N` ends the trace with the burst in which so many have been made since the first mark, and the warm-up with a tenth of them: an NF
//!   that makes thousands for a packet tells as much with fewer packets. A third mark then has, for its number, the packets that count.
//! - NFs of a chain hand packets on: `input=1` takes them from standard input instead, `output=1` writes those that go on ([`relay`]).
//! - The generator keeps no table, so that nothing but the NF fills a cache: Zipf by rejection-inversion, and powers by series, where the C
//!   library's have tables of some KiB.
//!
//! # Limits
//! Code that comes compiled (the standard library's, memcpy, memcmp) is not followed, nor what the code generator makes of copies and
//! comparisons of a fixed size; spills neither. The packets lie in the 32 frames of the harness, so they are always cached, as they are
//! where receive queues are bounded. The NF must print nothing. Time moves a microsecond a burst, and no ticks come.
//!
//! # Source
//! W. Hörmann and G. Derflinger, Rejection-inversion to generate variates from monotone discrete distributions, 1996.

mod relay;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use sluice_shm::BURST;
use sluice_shm::descriptor::Descriptor;

use crate::context::Context;
use crate::error::NfError;
use crate::harness::Harness;
use crate::header::checksum;
use crate::packet::Verdict;
use crate::run::Handler;
use relay::Part;

/// Records that are gathered before they are written.
const RECORDS: usize = 8_192;

/// The harness's clock before the first burst.
const START_NS: u64 = 1_000_000_000;

/// The part of the accesses that are enough after which a warm-up is too.
const WARM_UP_PART: u64 = 10;

/// Most sets and ways that the first cache has; sets are a power of two.
const MOST_SETS: usize = 256;
const MOST_WAYS: usize = 16;

/// Loads and stores of 1, 2, 4, 8 and 16 bytes.
const SIZES: u64 = 5;
const KINDS: usize = 2 * SIZES as usize;

/// A line is 64 bytes.
const LINE_BITS: u32 = 6;
const LINE_BYTES: u64 = 1 << LINE_BITS;

const STORE: u64 = 1 << 63;
const ADDRESS: u64 = (1 << 56) - 1;

// One thread runs the handler and is followed; other threads of an NF are not, but must do no harm. So all is relaxed: a torn trace is
// refused by its reader.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BUFFER: [AtomicU64; RECORDS] = [const { AtomicU64::new(0) }; RECORDS];
static FIRST: First = First {
    lines: [const { AtomicU64::new(0) }; MOST_SETS * MOST_WAYS],
    following: AtomicBool::new(false),
    mask: AtomicUsize::new(0),
    ways: AtomicUsize::new(1),
    accesses: [const { AtomicU64::new(0) }; KINDS],
};

/// The first cache, and what came to it: together, so that an access finds all of it from one address.
#[repr(C, align(64))]
struct First {
    /// The lines of each set, that used last first. No line has the number 0.
    lines: [AtomicU64; MOST_SETS * MOST_WAYS],
    /// Whether anybody is followed.
    following: AtomicBool,
    /// Sets, less one.
    mask: AtomicUsize,
    ways: AtomicUsize,
    /// Loads and stores so far, of each kind.
    accesses: [AtomicU64; KINDS],
}

// What the compiler's calls lead to is a part of them (`inline(always)`) or has a name that begins as theirs do: the pass would put calls
// into other functions.

/// The first place of a line's set.
#[inline(always)]
fn set(line: u64) -> usize {
    (line as usize & FIRST.mask.load(Relaxed) & (MOST_SETS - 1)) * MOST_WAYS
}

/// Loads and stores so far.
fn made() -> u64 {
    FIRST.accesses.iter().map(|of_kind| of_kind.load(Relaxed)).sum()
}

fn follow(is_followed: bool) {
    FIRST.following.store(is_followed, Relaxed);
}

#[inline(always)]
fn record(address: usize, kind: usize) {
    if !FIRST.following.load(Relaxed) {
        return;
    }
    FIRST.accesses[kind].store(FIRST.accesses[kind].load(Relaxed) + 1, Relaxed);
    let (size, store) = (kind as u64 % SIZES + 1, kind as u64 / SIZES * STORE);
    let (address, bytes) = (address as u64, 1 << (size - 1));
    let line = address >> LINE_BITS;
    if address % LINE_BYTES + bytes > LINE_BYTES {
        return __sanitizer_sluice_two(store | line << LINE_BITS);
    }
    // Most accesses are to the line of its set that was used last, and change nothing.
    if FIRST.lines[set(line)].load(Relaxed) != line {
        __sanitizer_sluice_seldom(store | size << 56 | (address & ADDRESS));
    }
}

/// The rest of [`record`], in functions of their own so that the first part saves no registers, nor the second.
// SAFETY: no other code has this name.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __sanitizer_sluice_seldom(record: u64) {
    let line = (record & ADDRESS) >> LINE_BITS;
    let set = set(line);
    let ways = FIRST.ways.load(Relaxed).min(MOST_WAYS);
    // Those used later than this one move one place back; where it is not held, the last one goes.
    let mut next = line;
    for place in &FIRST.lines[set..set + ways] {
        let held = place.load(Relaxed);
        place.store(next, Relaxed);
        if held == line {
            return;
        }
        next = held;
    }
    __sanitizer_sluice_put(record);
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
        // Packets that are handed on get here too, while nobody is followed.
        let is_followed = FIRST.following.load(Relaxed);
        follow(false);
        write_out();
        follow(is_followed);
    }
}

/// Writes what was gathered. Nobody may be followed meanwhile.
#[inline(never)]
fn write_out() {
    let count = COUNT.swap(0, Relaxed).min(RECORDS);
    let mut bytes = vec![0; count * 8];
    for (record, slot) in bytes.as_chunks_mut().0.iter_mut().zip(&BUFFER) {
        *record = slot.load(Relaxed).to_le_bytes();
    }
    if std::io::stdout().lock().write_all(&bytes).is_err() {
        // Who reads has gone: there is nothing left to do.
        std::process::exit(1);
    }
}

/// The functions that the compiler's pass calls. It leaves functions with such names alone, so they do not call themselves.
macro_rules! called {
    ($($load:ident, $store:ident: $size:literal)*) => { $(
        // SAFETY: the name is one that the compiler's pass looks for and that no other code has, and the signature is the pass's.
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

/// What the packets are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Traffic {
    packets: u64,
    warm_up: u64,
    /// Accesses that are enough, if there is such a number.
    accesses: Option<u64>,
    flows: u32,
    /// Exponent; none is every flow as often as the others.
    zipf: Option<f64>,
    bytes: usize,
    /// Whether flows have destinations all over the address space, and not one.
    spread: bool,
    seed: u64,
    /// Sets and ways of the first cache; one line is none.
    l1: (usize, usize),
    /// Whether packets come from standard input.
    input: bool,
    /// Whether packets that go on are written.
    output: bool,
}

impl Traffic {
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

/// What `SLUICE_TRACE` asks for.
pub(crate) fn asked() -> Option<Result<Traffic, String>> {
    std::env::var("SLUICE_TRACE").ok().map(|text| Traffic::parse(&text))
}

/// The natural logarithm of a number above 0, to nine digits.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let (mut exponent, mut part) = ((bits >> 52) as f64 - 1023.0, f64::from_bits(bits & MANTISSA | 1023 << 52));
    if part > std::f64::consts::SQRT_2 {
        (exponent, part) = (exponent + 1.0, part / 2.0);
    }
    // 2 artanh(z), where z is at most .172.
    let z = (part - 1.0) / (part + 1.0);
    let square = z * z;
    let series = (0..7).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    2.0 * z * series + exponent * std::f64::consts::LN_2
}

/// e to the power of a number that keeps it within what a float is, to nine digits.
fn exp(y: f64) -> f64 {
    let twos = (y / std::f64::consts::LN_2).round().clamp(-1022.0, 1023.0);
    let rest = y - twos * std::f64::consts::LN_2;
    let series = (1..11).rev().fold(1.0, |sum, k| 1.0 + rest / f64::from(k) * sum);
    series * f64::from_bits(((twos + 1023.0) as u64) << 52)
}

fn pow(x: f64, y: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { exp(y * ln(x)) }
}

/// Numbers from 0 to 1, and from 1 to `n` by Zipf's law.
struct Draw {
    state: u64,
    n: f64,
    s: f64,
    first: f64,
    last: f64,
    near: f64,
}

impl Draw {
    fn new(traffic: &Traffic) -> Self {
        let s = traffic.zipf.unwrap_or(0.0);
        let n = f64::from(traffic.flows);
        let mut draw = Self { state: traffic.seed | 1 << 63, n, s, first: 0.0, last: 0.0, near: 0.0 };
        draw.first = draw.area(1.5) - 1.0;
        draw.last = draw.area(n + 0.5);
        draw.near = 2.0 - draw.area_inverse(draw.area(2.5) - pow(2.0, -s));
        draw
    }

    fn unit(&mut self) -> f64 {
        // Xorshift, Marsaglia 2003, with Vigna's multiplier.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn area(&self, x: f64) -> f64 {
        if (self.s - 1.0).abs() < 1e-9 { ln(x) } else { (pow(x, 1.0 - self.s) - 1.0) / (1.0 - self.s) }
    }

    fn area_inverse(&self, y: f64) -> f64 {
        if (self.s - 1.0).abs() < 1e-9 { exp(y) } else { pow(1.0 + y * (1.0 - self.s), 1.0 / (1.0 - self.s)) }
    }

    /// A flow's number, from 0.
    fn flow(&mut self) -> u32 {
        if self.s == 0.0 {
            return (self.unit() * self.n) as u32;
        }
        loop {
            let u = self.last + self.unit() * (self.first - self.last);
            let x = self.area_inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.near || u >= self.area(k + 0.5) - pow(k, -self.s) {
                return k as u32 - 1;
            }
        }
    }
}

/// Makes UDP packets that differ in their flows alone, so that little is written for each.
struct Maker {
    /// A packet of no flow.
    whole: Vec<u8>,
    /// The sum of its header's words.
    sum: u32,
    spread: bool,
}

impl Maker {
    fn new(bytes: usize, spread: bool) -> Self {
        let mut whole = vec![0; bytes];
        whole[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        whole[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        whole[12..14].copy_from_slice(&[8, 0]);
        let ip_bytes = (bytes - 14) as u16;
        whole[14..24].copy_from_slice(&[0x45, 0, (ip_bytes >> 8) as u8, ip_bytes as u8, 0, 0, 0x40, 0, 64, 17]);
        whole[36..38].copy_from_slice(&9u16.to_be_bytes());
        whole[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
        let sum = u32::from(!checksum::compute(&whole[14..34]));
        Self { whole, sum, spread }
    }

    /// Makes a packet one of this flow.
    fn write(&self, packet: &mut [u8], flow: u32) {
        let from = 10 << 24 | flow & 0xff_ffff;
        let mut to = u32::from_be_bytes([198, 18, 0, 1]);
        if self.spread {
            to = flow.wrapping_mul(0x9e37_79b1);
            // Addresses of hosts: not 0/8, 127/8, or above 223.
            to = to & 0xff_ffff | (1 + (to >> 24) % 126) << 24;
        }
        let port = 1_024 + (flow % 60_000) as u16;
        let addresses = u64::from(from) << 32 | u64::from(to);
        let words = (from >> 16) + (from & 0xffff) + (to >> 16) + (to & 0xffff);
        let mut sum = self.sum + words;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        // The checksum, both addresses and the source port.
        packet[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        packet[26..34].copy_from_slice(&addresses.to_be_bytes());
        packet[34..36].copy_from_slice(&port.to_be_bytes());
    }
}

/// Makes the handler, runs it on generated packets, and writes its accesses.
pub(crate) fn run<H: Handler>(
    traffic: Result<Traffic, String>,
    make: impl FnOnce(&Context) -> Result<H, Box<dyn std::error::Error>>,
) -> Result<(), NfError> {
    let traffic = traffic.map_err(|why| NfError::Handler(why.into()))?;
    FIRST.mask.store(traffic.l1.0 - 1, Relaxed);
    FIRST.ways.store(traffic.l1.1, Relaxed);
    let context = Context::for_test("trace", &["in", "out"], &[], &["trace"]);
    let handler = make(&context).map_err(NfError::Handler)?;
    let mut harness = Harness::new(Followed(handler));
    let mut draw = Draw::new(&traffic);
    let mut now_ns = START_NS;
    if traffic.input {
        let done = given(&mut harness, traffic.output);
        std::mem::forget(harness);
        return done;
    }
    let maker = Maker::new(traffic.bytes, traffic.spread);
    let mut packets = vec![maker.whole.clone(); BURST];
    // Until there have been so many accesses. Says how many packets there were.
    let mut send = |count: u64, accesses: Option<u64>, next: &mut dyn FnMut(u64) -> u32| {
        let last = accesses.map_or(u64::MAX, |accesses| made() + accesses);
        for first in (0..count).step_by(BURST) {
            if made() >= last {
                return first;
            }
            let n = (count - first).min(BURST as u64) as usize;
            for (i, packet) in packets[..n].iter_mut().enumerate() {
                maker.write(packet, next(first + i as u64));
            }
            now_ns += 1_000;
            harness.set_now(now_ns);
            // They are IP, and no fragments.
            let back = harness.give_of_kind(&packets[..n], |_| 0);
            if traffic.output {
                hand_on(&harness, &back);
            }
        }
        count
    };
    send(u64::from(traffic.flows), None, &mut |i| i as u32);
    send(traffic.warm_up, traffic.accesses.map(|accesses| accesses / WARM_UP_PART), &mut |_| draw.flow());
    mark(made());
    let sent = send(traffic.packets, traffic.accesses, &mut |_| draw.flow());
    mark(made());
    if traffic.accesses.is_some() {
        mark(sent);
    }
    write_out();
    // What the handler would say when it is dropped would be taken for records.
    std::mem::forget(harness);
    Ok(())
}

/// Runs the handler on packets from standard input.
fn given<H: Handler>(harness: &mut Harness<H>, output: bool) -> Result<(), NfError> {
    let lost = |e: std::io::Error| NfError::Handler(e.into());
    let mut input = std::io::stdin().lock();
    let mut now_ns = START_NS;
    while let Some(parts) = relay::read(&mut input).map_err(lost)? {
        for part in parts {
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
    on().for_each(|descriptor| relay::words(&harness.packet(descriptor)).for_each(|word| __sanitizer_sluice_put(word)));
    // What follows is not the handler.
    follow(false);
}

/// A mark, with the accesses until then; the third with the packets that count.
fn mark(number: u64) {
    __sanitizer_sluice_put(number & ADDRESS);
    // What follows is not the handler.
    follow(false);
}

/// Follows the handler alone, not the harness.
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

    #[test]
    fn words_are_read_and_wrong_ones_told() {
        let found =
            Traffic::parse("packets=5,flows=3,zipf=1.1,bytes=1514,spread=1,seed=9,warm_up=2,accesses=7,l1=64x12,output=1").unwrap();
        let (l1, input, output) = ((64, 12), false, true);
        let wanted = Traffic {
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
            assert!(Traffic::parse(wrong).unwrap_err().starts_with("SLUICE_TRACE"), "{wrong}");
        }
    }

    #[test]
    fn powers_by_series_are_those_of_the_library() {
        for x in [1e-9, 0.3, 0.999, 1.0, 1.4142, 1.4143, 2.0, 777.5, 1.7e7] {
            for y in [-8.0, -1.3, -0.01, 0.3, 1.0, 7.0] {
                let wanted = f64::powf(x, y);
                assert!((pow(x, y) / wanted - 1.0).abs() < 1e-6, "{x} {y}: {} {wanted}", pow(x, y));
            }
            assert!((ln(x) - x.ln()).abs() < 1e-8, "{x}");
        }
        assert_eq!(pow(0.0, 3.0), 0.0);
    }

    #[test]
    fn flows_follow_the_law() {
        for s in [0.7, 1.0, 1.3] {
            let mut draw = Draw::new(&Traffic { zipf: Some(s), flows: 100, ..Traffic::parse("").unwrap() });
            let mut counts = [0u32; 100];
            (0..200_000).for_each(|_| counts[draw.flow() as usize] += 1);
            let sum: f64 = (1..=100).map(|k| f64::from(k).powf(-s)).sum();
            for k in [1u32, 2, 10, 100] {
                let (got, wanted) = (f64::from(counts[k as usize - 1]), 200_000.0 * f64::from(k).powf(-s) / sum);
                assert!((got - wanted).abs() < 5.0 * wanted.sqrt(), "{s} {k}: {got} {wanted}");
            }
        }
        let mut draw = Draw::new(&Traffic::parse("flows=10").unwrap());
        assert!((0..1_000).all(|_| draw.flow() < 10));
    }

    #[test]
    fn packets_are_ones_that_nfs_take() {
        for (flow, bytes, spread) in [(0, 60, false), (70_000, 1_514, true), ((1 << 24) - 1, 60, true)] {
            let maker = Maker::new(bytes, spread);
            let mut packet = maker.whole.clone();
            // Over another one, as in use.
            for flow in [9, flow] {
                maker.write(&mut packet, flow);
            }
            let headers = crate::header::parse(&packet).unwrap();
            assert!(headers.flow(&packet).is_some());
            assert_eq!(checksum::compute(&packet[14..34]), 0);
            assert_eq!(u32::from_be_bytes(packet[26..30].try_into().unwrap()), 10 << 24 | flow);
        }
    }
}
