//! The misses of a traced NF against ways, for this host's or a default cache.
//!
//! ```sh
//! traced=$(scripts/trace-nf nat)
//! cargo run --release -p sluice-cache --example curve -- 1000000 100000 uniform \
//!     "$traced/sluice-nf-nat" --inside 10.0.0.0/8 --outside 203.0.113.1
//! ```
//! The arguments are packets, flows, `uniform` or Zipf's exponent (preceded by `spread:` for
//! destinations over the whole address space), and the NF with its arguments. The default cache
//! has 20 ways of 2,304 KiB. It prints the curve, and the CPU time of the model and the traced NF.

use sluice_cache::model::{Geometry, Hierarchy};
use sluice_cache::trace::{Traced, TracedTraffic, profile};

/// CPU time of this process, and of its children that have ended.
fn cpu_s() -> [f64; 2] {
    // utime, stime, cutime and cstime are words 14 to 17, in hundredths of a second on every Linux
    // platform. Word 2 is the name in brackets, which may contain blanks.
    let text = std::fs::read_to_string("/proc/self/stat").expect("a /proc");
    let words: Vec<f64> =
        text.rsplit(')').next().unwrap_or("").split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect();
    [(words[11] + words[12]) / 100.0, (words[13] + words[14]) / 100.0]
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
    let traffic = TracedTraffic { packets, warm_up: packets / 10, accesses: None, flows, zipf, bytes: 60, spread, seed: 1 };
    let size = |sets, ways| Some(Geometry { sets, ways });
    let paper = Hierarchy { line: 64, l1: size(64, 8), l2: size(512, 8), llc: Geometry { sets: 36_864, ways: 20 } };
    let before = cpu_s();
    let nf = Traced { program: program.into(), args: args.to_vec(), env: std::env::vars_os().collect() };
    match profile(&nf, &traffic, paper) {
        Ok(curve) => {
            let after = cpu_s();
            let [model, nf] = [0, 1].map(|i| after[i] - before[i]);
            for ways in 0..=paper.llc.ways {
                println!("{ways:2} ways  {:8.4} misses a packet", curve.misses_per_packet(ways));
            }
            let all = packets + traffic.warm_up + u64::from(flows);
            let each = curve.accesses as f64 / packets as f64;
            println!("{each:.1} accesses a packet; {model:.2} s of CPU for the model and {nf:.2} s for the NF, for {all} packets");
        }
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}
