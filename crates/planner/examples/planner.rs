//! Figures of the planner, without the rest of Sluice.
//!
//! `cargo run --release -p sluice-slo --example planner [placement|optimiser]`

use std::time::Duration;

use sluice_planner::compare::{CompareError, admission_s, optimum, placement};
use sluice_planner::samples::{Mix, SloTerms, server};

fn main() -> Result<(), CompareError> {
    let what = std::env::args().nth(1).unwrap_or_default();
    let shape = server();
    if what != "optimiser" {
        for (mix, terms) in Mix::ALL.into_iter().flat_map(|mix| SloTerms::ALL.map(|terms| (mix, terms))) {
            for seed in 1..=3 {
                println!("{} {} {seed}", mix.name(), terms.name());
                for one in placement(mix, terms, 200, seed, &shape, Duration::from_secs(60))? {
                    println!(
                        "  {:16} {:4} servers {:4} violated {:8.3} s {:?}",
                        one.name, one.servers, one.violations, one.solve_s, one.bound
                    );
                }
            }
        }
    }
    if what != "placement" {
        for (slos, in_parts) in [(50, false), (100, false), (200, false), (500, false), (1000, false), (5000, true)] {
            for seed in 1..=3 {
                let run = optimum(Mix::Mixed, slos, in_parts, seed, &shape, Duration::from_secs(60))?;
                println!("{slos} {in_parts} {run:?} greedy/bound {:.3}", run.greedy as f64 / run.bound as f64);
            }
        }
        for slos in [200, 5000] {
            let mut times = admission_s(Mix::Mixed, slos, 40, 1, &shape)?;
            times.sort_by(f64::total_cmp);
            println!("admission beside {slos}: median {:.3} ms, most {:.3} ms", times[20] * 1e3, times[39] * 1e3);
        }
    }
    Ok(())
}
