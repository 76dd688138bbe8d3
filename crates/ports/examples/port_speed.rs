//! What a packet costs in the generator and in the sink, with nothing between them.
//!
//!     cargo run --release -p sluice-ports --example port_speed [-- SECONDS]
//!
//! Each variant sends bursts of 32 packets from a generator to a sink on one thread. It prints
//! nanoseconds and time-stamp-counter cycles a packet for each of the two; the counter is read
//! between them, which adds about one cycle a packet. Variants run in many short rounds, SECONDS
//! each in all (default 1). The figures are the median of the rounds and, in brackets, the minimum,
//! which on a busy machine is closer to an idle one's. "Hot": frames go around in the caches.
//! "Wide": each burst takes frames that were long unused, as with many packets in flight; the
//! generator then waits for memory.

use std::time::Instant;

use sluice_api::config::{Gen, GenProtocol, Overload, Port, PortKind, Sink};
use sluice_dataplane::frame::{FrameCache, FramePool, Packet};
use sluice_dataplane::port::Kinds;
use sluice_dataplane::queue::PortQueue;
use sluice_ports::All;
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, DEFAULT_STRIDE, Geometry};
use sluice_shm::clock::{Clock, ticks};

const FRAMES: u32 = 16_384;
const TURNS: usize = 201;

struct Variant {
    name: &'static str,
    source: Box<dyn PortQueue>,
    sink: Box<dyn PortQueue>,
    /// Packets in flight: 32, or many.
    depth: usize,
    /// (generator, sink, both) of each turn, in ticks a packet.
    samples: Vec<[f64; 3]>,
    /// Nanoseconds a tick.
    tick_ns: f64,
}

fn queue(arena: &Arena, pool: &FramePool, kind: PortKind) -> Box<dyn PortQueue> {
    let port = Port { name: "speed".into(), overload: Overload::Drop, queues: 1, tenant: None, kind };
    All::default().open(&port, arena, pool).expect("the variants are valid").queues.remove(0)
}

fn turn(variant: &mut Variant, frames: &mut FrameCache, clock: &Clock, seconds: f64) {
    let mut waiting = vec![Packet::default(); variant.depth];
    for packets in waiting.chunks_mut(BURST) {
        let n = variant.source.rx_burst(packets, frames, clock.now_ns());
        assert_eq!(n, packets.len(), "there are frames enough");
    }
    let (mut made, mut swallowed, mut count) = (0, 0, 0u64);
    let (begin, begin_ticks) = (Instant::now(), ticks());
    while begin.elapsed().as_secs_f64() < seconds {
        for _ in 0..4 {
            for packets in waiting.chunks_mut(BURST) {
                let now_ns = clock.now_ns();
                let before = ticks();
                variant.sink.tx_burst(packets, frames, now_ns);
                let between = ticks();
                let n = variant.source.rx_burst(packets, frames, now_ns);
                let after = ticks();
                swallowed += between - before;
                made += after - between;
                count += n as u64;
            }
        }
    }
    let all = ticks() - begin_ticks;
    variant.tick_ns = begin.elapsed().as_nanos() as f64 / all as f64;
    variant.samples.push([made, swallowed, all].map(|ticks| ticks as f64 / count as f64));
    variant.sink.tx_burst(&waiting, frames, clock.now_ns());
}

/// Median and minimum of a column.
fn summary(samples: &[[f64; 3]], column: usize) -> (f64, f64) {
    let mut values: Vec<f64> = samples.iter().map(|sample| sample[column]).collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).map_or(1.0, |text| text.parse().expect("SECONDS is a number"));
    let geometry = Geometry { first: 0, frames: FRAMES, stride: DEFAULT_STRIDE as u32 };
    let (_memory, arena) = Arena::create(geometry, false).expect("there is memory for the arena");
    let pool = FramePool::new(FRAMES);
    let mut frames = FrameCache::new(pool.clone(), arena.clone(), FRAMES as usize);
    let clock = Clock::new();
    let udp = Gen::default;
    let tcp = || Gen { protocol: GenProtocol::Tcp, ..Gen::default() };
    let variants = [
        ("60-byte UDP/IPv4, 1 flow, hot", BURST, udp()),
        ("60-byte UDP/IPv4, 1,000 flows, hot", BURST, Gen { flows: 1_000, ..udp() }),
        ("60-byte UDP/IPv4, 1,000,000 flows, hot", BURST, Gen { flows: 1_000_000, ..udp() }),
        ("60-byte UDP/IPv4, 1,000 flows, wide", 8192, Gen { flows: 1_000, ..udp() }),
        ("70-byte TCP/IPv4, 1,000 flows, hot", BURST, Gen { flows: 1_000, size: 70, ..tcp() }),
        ("78-byte UDP/IPv6, 1,000 flows, hot", BURST, Gen { flows: 1_000, size: 78, ipv6: true, ..udp() }),
        ("1,514-byte UDP/IPv4, 1,000 flows, hot", BURST, Gen { flows: 1_000, size: 1514, ..udp() }),
        (
            "7×60 + 4×590 + 1×1,514, 1,000 flows, hot",
            BURST,
            Gen { flows: 1_000, imix: vec![(60, 7), (590, 4), (1514, 1)], ..udp() },
        ),
    ];
    let mut variants = variants.map(|(name, depth, settings)| Variant {
        name,
        source: queue(&arena, &pool, PortKind::Gen(settings)),
        sink: queue(&arena, &pool, PortKind::Sink(Sink {})),
        depth,
        samples: Vec::new(),
        tick_ns: 0.0,
    });
    for _ in 0..TURNS {
        for variant in &mut variants {
            turn(variant, &mut frames, &clock, seconds / TURNS as f64);
        }
    }
    println!("{:42} {:>25} {:>25} {:>25}", "a packet costs", "generator", "sink", "both, with loop");
    for variant in &variants {
        let details: Vec<_> = variant.sink.details();
        let lost = details.iter().filter(|(name, _)| *name != "stamped").map(|(_, n)| *n).sum::<f64>();
        assert_eq!(lost, 0.0, "nothing was lost on the way: {details:?}");
        print!("{:42}", variant.name);
        for column in 0..3 {
            let (median, least) = summary(&variant.samples, column);
            print!(" {:5.1} ns {:5.1} cy ({:5.1})", median * variant.tick_ns, median, least);
        }
        println!();
    }
}
