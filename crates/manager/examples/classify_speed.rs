//! What classification costs a packet, by size of the flow table, and by rules.
//!
//! Run it with `cargo run --release -p sluice-manager --example classify_speed`. Figures are
//! nanoseconds and time-stamp-counter cycles, medians of several rounds. Packets are 64-byte
//! IPv4/UDP (IPv6/UDP where named), flows come in random order, and headers lie in ordinary private
//! memory.

use std::hint::black_box;
use std::time::Instant;

use sluice_dataplane::classify::flow_table::{Known, random_seed};
use sluice_dataplane::classify::key::FlowKey;
use sluice_dataplane::classify::rule::{Prefix, Protocol, Rule, RuleSet};
use sluice_dataplane::classify::{Classifier, Lookup};
use sluice_dataplane::decision::Packed;

const BURST: usize = 32;
const PACKETS: usize = 1 << 15;
/// Many short rounds: most are over before anything else takes the core.
const ROUNDS: usize = 301;

fn v4(flow: u32) -> [u8; 64] {
    let mut packet = [0; 64];
    packet[12..18].copy_from_slice(&[0x08, 0, 0x45, 0, 0, 46]);
    packet[23] = 17;
    packet[26..30].copy_from_slice(&(0x0a00_0000 | flow >> 8).to_be_bytes());
    packet[30..34].copy_from_slice(&[192, 168, 0, 1]);
    packet[34..38].copy_from_slice(&[4, flow as u8, 0, 53]);
    packet
}

fn v6(flow: u32) -> [u8; 64] {
    let mut packet = [0; 64];
    packet[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
    packet[34..38].copy_from_slice(&flow.to_be_bytes());
    packet[53] = 1;
    packet[54..58].copy_from_slice(&[4, 0, 0, 53]);
    packet
}

/// Ticks of the time-stamp counter in a nanosecond.
fn ticks_per_ns() -> f64 {
    let (start, ticks) = (Instant::now(), ticks());
    while start.elapsed().as_millis() < 100 {
        std::hint::spin_loop();
    }
    (self::ticks() - ticks) as f64 / start.elapsed().as_nanos() as f64
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    sluice_shm::clock::ticks()
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Median time of a round, in nanoseconds for each of its `n` things.
fn median(n: usize, mut round: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed().as_nanos() as f64 / n as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn table(name: &str, flows: u32, build: fn(u32) -> [u8; 64], ghz: f64) {
    let mut classifier = Classifier::new(1_000_000, random_seed());
    let lens = [64; BURST];
    let mut out = [Lookup::Miss; BURST];
    let whole = |_: usize, _: &mut [u8; 256]| 0;
    for flow in 0..flows {
        classifier.classify_burst(&[build(flow)], &lens, 1, 0, whole, &mut out);
        classifier.remember(0, Known { decision: Packed::path(flow), generation: 1, note: 0 }, 0);
    }
    // Headers are made ahead, in a ring that fits the L2 cache, like packets that just came in.
    // With more flows than the ring has headers, only the address is written in the loop.
    let mut headers: Vec<[u8; 64]> = (0..1024u32).map(|i| build(i % flows)).collect();
    let mut hits = 0usize;
    let mut random = 1u32;
    let mut run = |classify: bool| {
        median(PACKETS, || {
            for burst in 0..PACKETS / BURST {
                let at = burst % (1024 / BURST) * BURST;
                let headers = &mut headers[at..at + BURST];
                if flows > 1024 {
                    for header in headers.iter_mut() {
                        random = random.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                        let flow = ((u64::from(random) * u64::from(flows)) >> 32) as u32;
                        if header[12] == 8 {
                            header[26..30].copy_from_slice(&(0x0a00_0000 | flow >> 8).to_be_bytes());
                            header[35] = flow as u8;
                        } else {
                            header[34..38].copy_from_slice(&flow.to_be_bytes());
                        }
                    }
                }
                if classify {
                    classifier.classify_burst(headers, &lens, 1, burst as u64 >> 10, whole, &mut out);
                    hits += out.iter().filter(|o| matches!(o, Lookup::Hit(_))).count();
                } else {
                    black_box(headers);
                }
            }
        })
    };
    let empty = run(false);
    let ns = run(true) - empty;
    let total = ROUNDS * PACKETS;
    println!("{name} {flows:>9} flows  {ns:6.2} ns  {:6.1} cycles  ({:.2} % hits)", ns * ghz, hits as f64 * 100.0 / total as f64);
}

fn main() {
    let ghz = ticks_per_ns();
    println!("time-stamp counter: {ghz:.2} GHz");
    for flows in [1, 1_000, 100_000, 1_000_000] {
        table("IPv4", flows, v4, ghz);
    }
    for flows in [1, 1_000_000] {
        table("IPv6", flows, v6, ghz);
    }
    for n in [1, 10, 100, 1_000, 4_000u16] {
        let rule = |i: u16| Rule {
            port: Some(1),
            protocol: Protocol::Number(17),
            dst: Prefix::new([192, 168, (i >> 8) as u8 + 1, i as u8].into(), 32),
            dst_port: Some(i..=i + 10),
            ..Rule::default()
        };
        let rules = RuleSet::new((1..n).map(rule).chain([Rule { chain: 7, ..Rule::default() }]).collect());
        let key = FlowKey::parse(&v4(1), 64, 1);
        let times = 40_000 / usize::from(n) + 1;
        let ns = median(times, || {
            for _ in 0..times {
                assert_eq!(black_box(&rules).first_match(black_box(&key)), Some(7));
            }
        });
        println!("rules {n:>5}: {ns:8.1} ns to the last one");
    }
}
