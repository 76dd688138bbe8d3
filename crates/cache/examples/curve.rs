//! The misses of a traced NF for every number of ways of this host's cache, or of 20 ways of 2,304 KiB:
//!
//! ```sh
//! traced=$(scripts/trace-nf nat)
//! cargo run --release -p sluice-cache --example curve -- 1000000 100000 uniform \
//!     "$traced/sluice-nf-nat" --inside 10.0.0.0/8 --outside 203.0.113.1
//! ```
//! The words are packets, flows, `uniform` or Zipf's exponent (with `spread:` before it for destinations all over), and the NF with its
//! arguments. It prints the curve, and the CPU time of the model and the reader, without the NF's.

use std::path::Path;

use sluice_cache::model::{Geometry, Hierarchy};
use sluice_cache::trace::{Traffic, profile};

/// CPU time of this process, without its children's.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [packets, flows, law, program, args @ ..] = words.as_slice() else {
        eprintln!("usage: curve PACKETS FLOWS [spread:]uniform|EXPONENT NF [ARGUMENTS]");
        std::process::exit(2);
    };
    let (spread, law) = law.strip_prefix("spread:").map_or((false, law.as_str()), |law| (true, law));
    let packets: u64 = packets.parse().expect("a number of packets");
    let flows = flows.parse().expect("a number of flows");
    let zipf = (law != "uniform").then(|| law.parse().expect("uniform or an exponent"));
    let traffic = Traffic { packets, warm_up: packets / 10, flows, zipf, bytes: 60, spread, seed: 1 };
    let size = |sets, ways| Some(Geometry { sets, ways });
    let paper = Hierarchy { line: 64, l1: size(64, 8), l2: size(512, 8), llc: Geometry { sets: 36_864, ways: 20 } };
    let before = cpu_s();
    match profile(Path::new(program), args, &traffic, paper) {
        Ok(curve) => {
            let took = cpu_s() - before;
            for ways in 0..=paper.llc.ways {
                println!("{ways:2} ways  {:8.4} misses a packet", curve.misses_per_packet(ways));
            }
            let all = packets + traffic.warm_up + u64::from(flows);
            let each = curve.accesses as f64 / packets as f64;
            println!("{each:.1} accesses a packet (repeats left out); {took:.2} s of CPU for {all} packets");
        }
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
