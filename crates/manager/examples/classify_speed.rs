//! What classification costs a packet, by size of the flow table, and by rules.
//!
//! Run it with `cargo run --release -p sluice-manager --example classify_speed`. Figures are
//! nanoseconds and time-stamp-counter cycles, medians of several rounds. Packets are 64-byte
//! IPv4/UDP (IPv6/UDP where named) in the frames of an arena, and flows come in random order.

use std::hint::black_box;
use std::time::Instant;

use sluice_dataplane::classify::flow_table::{Known, random_seed};
use sluice_dataplane::classify::key::FlowKey;
use sluice_dataplane::classify::rule::{Prefix, Protocol, Rule, RuleSet};
use sluice_dataplane::classify::{Classifier, Lookup};
use sluice_dataplane::decision::Packed;
use sluice_shm::arena::{Arena, Geometry, Packet};

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

/// Frames, which fit the L2 cache, like packets that just came in.
const FRAMES: u32 = 1024;

fn table(name: &str, flows: u32, build: fn(u32) -> [u8; 64], ghz: f64) {
    let mut classifier = Classifier::new(1_000_000, random_seed());
    let (_memory, arena) = Arena::create(Geometry { first: 0, frames: FRAMES, stride: 192 }, true)
        .or_else(|_| Arena::create(Geometry { first: 0, frames: FRAMES, stride: 192 }, false))
        .expect("memory for the packets");
    let packets: Vec<Packet> = (0..FRAMES).map(|frame| Packet::fresh(frame, 64)).collect();
    let write = |packet: &Packet, flow: u32| assert!(arena.write_array(packet.frame, packet.offset, &build(flow)));
    let mut flags = [0; BURST];
    let mut out = [Lookup::Miss; BURST];
    for flow in 0..flows {
        write(&packets[0], flow);
        classifier.classify_burst(&arena, &packets[..1], 1, 0, &mut flags, |_, _, _| {});
        classifier.remember(0, Known { decision: Packed::path(flow), generation: 1, note: 0 }, 0);
    }
    // With more flows than frames, packets are written in the loop.
    packets.iter().for_each(|packet| write(packet, packet.frame % flows));
    let mut hits = 0usize;
    let mut random = 1u32;
    let mut run = |classify: bool| {
        median(PACKETS, || {
            for burst in 0..PACKETS / BURST {
                let at = burst % (FRAMES as usize / BURST) * BURST;
                let packets = &packets[at..at + BURST];
                if flows > FRAMES {
                    for packet in packets {
                        random = random.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                        write(packet, ((u64::from(random) * u64::from(flows)) >> 32) as u32);
                    }
                }
                if classify {
                    let now_ms = burst as u64 >> 10;
                    classifier.classify_burst(&arena, packets, 1, now_ms, &mut flags, |i, _, found| out[i] = found);
                    hits += out.iter().filter(|o| matches!(o, Lookup::Hit(_))).count();
                } else {
                    black_box(packets);
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
