//! Burns a calibrated number of cycles on every packet, and passes it on: the network function of experiments.
//!
//! The number is fixed, or taken from a list: by flow (all packets of a flow cost the same), or drawn for each packet. How the cycles
//! are spent, and why not by waiting for a clock, is told in the module `work`.

mod work;

use std::hash::BuildHasher;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use foldhash::fast::FixedState;
use sluice_nf::header::parse;
use sluice_nf::{Burst, Handler};
use sluice_nf_parts::parse_args;

use work::Work;

/// Burns a calibrated number of cycles on every packet
///
/// The work is a chain of dependent instructions, calibrated at the start, so it is the same however the process is scheduled.
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-cost", version, after_help = "Example: sluice-nf-cost --cycles 120,270,550 --pick flow")]
struct Args {
    /// Cycles for a packet, of the processor's time-stamp counter; or a list with commas
    #[arg(long, value_delimiter = ',', required = true, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    cycles: Vec<u64>,
    /// How a packet's cost is picked from a list. `random` draws the same sequence in every run
    #[arg(long, value_enum, default_value_t = Pick::Random)]
    pick: Pick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pick {
    /// Each packet draws
    Random,
    /// All packets of a flow cost the same
    Flow,
}

/// The handler.
#[derive(Debug)]
struct Cost {
    work: Work,
    /// Steps of work, one entry for each of the list.
    steps: Vec<u64>,
    pick: Pick,
    /// The state of the draw.
    draws: u64,
    flows: FixedState,
}

impl Cost {
    fn new(work: Work, args: &Args) -> Self {
        let steps = args.cycles.iter().map(|cycles| work.steps(*cycles)).collect();
        Self { work, steps, pick: args.pick, draws: 0, flows: FixedState::with_seed(0) }
    }

    /// Steps for this packet.
    #[inline]
    fn steps(&mut self, packet: &[u8]) -> u64 {
        if let [only] = self.steps[..] {
            return only;
        }
        let hash = match self.pick {
            Pick::Random => {
                self.draws += 1;
                self.flows.hash_one(self.draws)
            }
            Pick::Flow => {
                let flow = parse(packet).and_then(|headers| headers.flow(packet));
                flow.map_or(0, |flow| self.flows.hash_one(flow))
            }
        };
        let place = (u128::from(hash) * self.steps.len() as u128) >> 64;
        self.steps[place as usize]
    }
}

impl Handler for Cost {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for packet in burst.iter_mut() {
            let steps = self.steps(packet.data());
            self.work.run(packet.data(), steps);
        }
    }
}

fn main() -> ExitCode {
    let args: Args = parse_args();
    let work = Work::calibrated();
    eprintln!("a step takes {:.2} cycles", work.cycles_per_step());
    sluice_nf::run(|_| Ok(Cost::new(work, &args)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use sluice_nf::Verdict;
    use sluice_nf::harness::Harness;

    use super::*;

    fn cost(args: &[&str]) -> Cost {
        Cost::new(Work::with_rate(4, 1), &Args::try_parse_from(["cost"].iter().chain(args)).unwrap())
    }

    /// A UDP packet over IPv4 with this source port.
    fn packet(port: u16) -> Vec<u8> {
        let mut packet = vec![0; 14 + 20 + 8];
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14..24].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]);
        packet[34..36].copy_from_slice(&port.to_be_bytes());
        packet
    }

    #[test]
    fn a_fixed_cost_is_the_same_for_all() {
        let mut cost = cost(&["--cycles", "400"]);
        assert!((0..50).all(|port| cost.steps(&packet(port)) == 100));
        assert_eq!(Harness::new(cost).send(&packet(1)), sluice_nf::harness::Outcome { verdict: Verdict::Next, bytes: packet(1) });
    }

    #[test]
    fn a_flow_keeps_its_cost_and_flows_differ() {
        let mut cost = cost(&["--cycles", "40,400,4000", "--pick", "flow"]);
        let first: Vec<u64> = (0..100).map(|port| cost.steps(&packet(port))).collect();
        let second: Vec<u64> = (0..100).map(|port| cost.steps(&packet(port))).collect();
        assert_eq!(first, second);
        assert_eq!(first.into_iter().collect::<HashSet<_>>(), HashSet::from([10, 100, 1000]));
        assert_eq!(cost.steps(&[0; 5]), cost.steps(&[1; 5]), "what is no IP packet is one flow");
    }

    #[test]
    fn draws_are_even_and_the_same_in_every_run() {
        let run = || {
            let mut cost = cost(&["--cycles", "40,400"]);
            (0..1000).map(|_| cost.steps(&packet(1))).collect::<Vec<u64>>()
        };
        let draws = run();
        assert_eq!(draws, run());
        // 500 of 1,000; a standard deviation is 16.
        assert!(draws.iter().filter(|steps| **steps == 10).count().abs_diff(500) < 80);
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [&[][..], &["--cycles", "-1"], &["--cycles", "1,x"], &["--cycles", "1", "--pick", "turn"]] {
            assert!(Args::try_parse_from(["cost"].iter().chain(args)).is_err(), "{args:?}");
        }
    }
}
