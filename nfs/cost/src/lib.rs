//! Burns a calibrated number of cycles on every packet, for experiments.
//!
//! # Terms
//! A *list* of costs, from which a packet's cost is picked: at random for each packet, the same for
//! all packets of a flow, all of them, or one for all until a signal. A *stage* is one list. With
//! several, a burst goes through one stage after another, like NFs of one stage each that one
//! process calls in turn: what experiments call the ideal of a chain.
//!
//! The module `work` explains how the cycles are spent.

mod work;

use std::error::Error;
use std::hash::BuildHasher;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, ValueEnum};
use foldhash::fast::FixedState;
use signal_hook::consts::SIGUSR1;
use sluice_nf::header::{Headers, parse};
use sluice_nf::{Burst, Context, Handler};

use work::Work;

/// Most cycles of a packet in a stage.
const MOST: u64 = 1_000_000_000;

/// Burns a calibrated number of cycles on every packet
///
/// The work is a chain of dependent instructions, calibrated at the start: it is the same under any
/// scheduling.
#[derive(Debug, Parser)]
#[command(
    name = "sluice-nf-cost",
    version,
    after_help = "\
Examples:
  sluice-nf-cost --cycles 270
  sluice-nf-cost --cycles 120,270,550 --pick flow     each flow has one of three costs
  sluice-nf-cost --cycles 120,270,550 --pick each     every packet pays 940 cycles, in three stages
  sluice-nf-cost --cycles 120,360 --pick signal       120, and after `kill -USR1` 360, and after another 120 again"
)]
struct Args {
    /// Cycles for a packet, of the processor's time-stamp counter; or a list with commas. Each
    /// further one adds a stage, which a burst goes through after the stages before
    #[arg(long, required = true, value_name = "CYCLES")]
    cycles: Vec<List>,
    /// How a packet's cost is picked from a list
    #[arg(long, value_enum, default_value_t = Pick::Random)]
    pick: Pick,
    /// Seed of the draws of `random`; stage i begins at SEED + i. The same seed draws the same
    /// costs in every run
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Swap the MAC addresses of the packet in each stage, as `sluice-nf-macswap` does
    #[arg(long)]
    swap_macs: bool,
    /// Panic once this many packets have come, to see what becomes of the rest
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    fail_after: Option<u64>,
}

/// Costs in cycles, separated by commas; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct List(Vec<u64>);

impl FromStr for List {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cost = |word: &str| match word.parse::<u64>() {
            Ok(cycles) if cycles <= MOST => Ok(cycles),
            Ok(_) => Err(format!("{word} is too many; write at most {MOST}")),
            Err(_) => Err(format!("\"{word}\" is no number of cycles; write one such as 550, or several with commas")),
        };
        text.split(',').map(cost).collect::<Result<_, _>>().map(Self)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pick {
    /// Each packet draws
    Random,
    /// All packets of a flow cost the same
    Flow,
    /// Every packet pays every cost of the list, one stage after another
    Each,
    /// All packets cost the same: the first of the list, and after each SIGUSR1 the next
    Signal,
}

/// A list of costs, and how one is picked.
#[derive(Debug)]
struct Stage {
    work: Work,
    /// Steps of work for each cost of the list.
    steps: Vec<u64>,
    pick: Pick,
    swap_macs: bool,
    /// Index of the cost for [`Pick::Signal`].
    place: usize,
    draws: u64,
    flows: FixedState,
    draw: FixedState,
}

impl Stage {
    fn new(work: Work, cycles: &[u64], pick: Pick, seed: u64) -> Self {
        let steps = cycles.iter().map(|cycles| work.steps(*cycles)).collect();
        Self {
            work,
            steps,
            pick,
            swap_macs: false,
            place: 0,
            draws: 0,
            flows: FixedState::with_seed(0),
            draw: FixedState::with_seed(seed),
        }
    }

    #[inline]
    fn steps(&mut self, packet: &[u8]) -> u64 {
        if let [only] = self.steps[..] {
            return only;
        }
        let hash = match self.pick {
            Pick::Random => {
                self.draws += 1;
                self.draw.hash_one(self.draws)
            }
            Pick::Flow => {
                let flow = parse(packet).and_then(|headers| headers.flow(packet));
                flow.map_or(0, |flow| self.flows.hash_one(flow))
            }
            Pick::Each | Pick::Signal => return self.steps[self.place],
        };
        let place = (u128::from(hash) * self.steps.len() as u128) >> 64;
        self.steps[place as usize]
    }

    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            if self.swap_macs && Headers::swap_macs(packet.data_mut()).is_err() {
                packet.drop();
                continue;
            }
            let steps = self.steps(packet.data());
            self.work.run(packet.data(), steps);
        }
    }
}

#[derive(Debug)]
struct Cost {
    stages: Vec<Stage>,
    /// Set by SIGUSR1; None unless [`Pick::Signal`] is used.
    signal: Option<Arc<AtomicBool>>,
    /// Packets until it panics.
    left: Option<u64>,
}

impl Cost {
    fn new(work: &Work, args: &Args, signal: Option<Arc<AtomicBool>>) -> Self {
        let lists: Vec<&[u64]> = match args.pick {
            Pick::Each => args.cycles.iter().flat_map(|list| list.0.chunks(1)).collect(),
            _ => args.cycles.iter().map(|list| &list.0[..]).collect(),
        };
        let seeds = (0..).map(|i| args.seed.wrapping_add(i));
        // Each stage has a chain of work of its own, as each of several processes would.
        let stage = |(list, seed)| Stage { swap_macs: args.swap_macs, ..Stage::new(work.clone(), list, args.pick, seed) };
        let stages = lists.into_iter().zip(seeds).map(stage).collect();
        Self { stages, signal, left: args.fail_after }
    }

    /// Advances to the next cost if a signal came since the last call. Several signals count as
    /// one.
    fn look(&mut self) {
        let Some(signal) = &self.signal else { return };
        // Relaxed: the flag publishes no other data.
        if signal.load(Ordering::Relaxed) && signal.swap(false, Ordering::Relaxed) {
            for stage in &mut self.stages {
                stage.place = (stage.place + 1) % stage.steps.len();
            }
        }
    }
}

impl Handler for Cost {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        self.look();
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(burst.len() as u64).expect("--fail-after says so");
        }
        // The chain of work waits for a byte of each packet, which another core or NF had last.
        burst.prefetch();
        for stage in &mut self.stages {
            stage.burst(burst);
        }
    }
}

fn make(args: Args, _context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    let work = Work::calibrated();
    eprintln!("a step takes {:.2} cycles", work.cycles_per_step());
    let mut signal = None;
    if args.pick == Pick::Signal {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, flag.clone())?;
        signal = Some(flag);
    }
    Ok(Cost::new(&work, &args, signal))
}

sluice_nf_parts::nf!(Args, make);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use sluice_nf::Verdict;
    use sluice_nf::harness::{Harness, Outcome};

    use super::*;

    fn args(args: &[&str]) -> Args {
        Args::try_parse_from(["cost"].iter().chain(args)).unwrap()
    }

    fn cost(words: &[&str]) -> Cost {
        Cost::new(&Work::with_rate(4, 1), &args(words), None)
    }

    /// The only stage.
    fn stage(words: &[&str]) -> Stage {
        let mut stages = cost(words).stages;
        assert_eq!(stages.len(), 1);
        stages.remove(0)
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
        let mut fixed = stage(&["--cycles", "400"]);
        assert!((0..50).all(|port| fixed.steps(&packet(port)) == 100));
        let handler = cost(&["--cycles", "400"]);
        assert_eq!(Harness::new(handler).send(&packet(1)), Outcome { verdict: Verdict::Next, bytes: packet(1) });
    }

    #[test]
    fn a_flow_keeps_its_cost_and_flows_differ() {
        let mut stage = stage(&["--cycles", "40,400,4000", "--pick", "flow"]);
        let first: Vec<u64> = (0..100).map(|port| stage.steps(&packet(port))).collect();
        let second: Vec<u64> = (0..100).map(|port| stage.steps(&packet(port))).collect();
        assert_eq!(first, second);
        assert_eq!(first.into_iter().collect::<HashSet<_>>(), HashSet::from([10, 100, 1000]));
        assert_eq!(stage.steps(&[0; 5]), stage.steps(&[1; 5]), "what is no IP packet is one flow");
    }

    fn draws(mut stage: Stage) -> Vec<u64> {
        (0..1000).map(|_| stage.steps(&packet(1))).collect()
    }

    #[test]
    fn draws_are_even_and_the_same_in_every_run() {
        let run = || draws(stage(&["--cycles", "40,400"]));
        assert_eq!(run(), run());
        // 500 of 1,000; a standard deviation is 16.
        assert!(run().iter().filter(|steps| **steps == 10).count().abs_diff(500) < 80);
    }

    #[test]
    fn stages_draw_as_single_ones_of_the_next_seeds_do() {
        let both = cost(&["--cycles", "40,400", "--cycles", "40,400", "--seed", "5"]);
        let both: Vec<Vec<u64>> = both.stages.into_iter().map(draws).collect();
        assert_ne!(both[0], both[1]);
        assert_eq!(both[0], draws(stage(&["--cycles", "40,400", "--seed", "5"])));
        assert_eq!(both[1], draws(stage(&["--cycles", "40,400", "--seed", "6"])));
    }

    #[test]
    fn each_pays_every_cost_as_handlers_one_after_another_do() {
        let mut fused = cost(&["--cycles", "40,400,4000", "--pick", "each"]);
        assert_eq!(fused.stages.iter_mut().map(|s| s.steps(&packet(1))).collect::<Vec<_>>(), [10, 100, 1000]);
        let mut single: Vec<Stage> = ["40", "400", "4000"].iter().map(|cycles| stage(&["--cycles", cycles])).collect();
        for port in 0..5 {
            for stage in fused.stages.iter_mut().chain(&mut single) {
                let steps = stage.steps(&packet(port));
                stage.work.run(&packet(port), steps);
            }
        }
        for (fused, single) in fused.stages.iter().zip(&single) {
            assert_eq!(fused.work, single.work, "the chain of work stands at the same number");
        }
        assert_eq!(Harness::new(fused).send(&packet(1)).verdict, Verdict::Next);
    }

    #[test]
    fn every_stage_swaps_addresses_if_configured() {
        let bytes: Vec<u8> = (0..60).collect();
        let swapped: Vec<u8> = (6..12).chain(0..6).chain(12..60).collect();
        for (stages, want) in [(1, &swapped), (2, &bytes), (3, &swapped)] {
            let words: Vec<&str> = ["--swap-macs"].into_iter().chain(["--cycles", "4"].repeat(stages)).collect();
            assert_eq!(&Harness::new(cost(&words)).send(&bytes).bytes, want, "{stages} stages");
        }
        assert_eq!(Harness::new(cost(&["--swap-macs", "--cycles", "4"])).send(&bytes[..13]).verdict, Verdict::Drop);
    }

    #[test]
    fn a_signal_goes_on_to_the_next_cost() {
        let flag = Arc::new(AtomicBool::new(false));
        let args = args(&["--cycles", "40,400,4000", "--pick", "signal"]);
        let mut cost = Cost::new(&Work::with_rate(4, 1), &args, Some(flag.clone()));
        let mut seen = Vec::new();
        for _ in 0..4 {
            cost.look();
            seen.push(cost.stages[0].steps(&packet(1)));
            cost.look();
            assert_eq!(cost.stages[0].steps(&packet(2)), seen[seen.len() - 1], "no signal, no change");
            flag.store(true, Ordering::Relaxed);
        }
        assert_eq!(seen, [10, 100, 1000, 10]);
    }

    #[test]
    fn nonsense_is_refused() {
        let bad: [&[&str]; 7] = [
            &[],
            &["--cycles", "-1"],
            &["--cycles", "1,x"],
            &["--cycles", ""],
            &["--cycles", "1,"],
            &["--cycles", "2000000000"],
            &["--cycles", "1", "--pick", "turn"],
        ];
        for args in bad {
            assert!(Args::try_parse_from(["cost"].iter().chain(args)).is_err(), "{args:?}");
        }
    }
}
